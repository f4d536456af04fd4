//! Calls of a child that runs on its parent's memory, with descriptors of its own.
//!
//! Called by `api` and `readiness` before they look at the entry of a number.
//!
//! A child of vfork, or of a clone like it, closes numbers and uses them for other files, and the
//! table of the parent, which is the only one, must not record that. So the child asks the kernel
//! what a number names, and the kernel makes every call. A number that still names a connection is
//! brought there first: the connection leaves its lanes for good, because the child's calls cannot
//! be followed (reason `shared`). That costs a connection its lanes where such a child really uses
//! it. A child that only closes, duplicates and executes never comes here.

use libc::{c_int, pollfd};
use sdp_stats::Reason;
use sdp_sys::{pid, section};

use crate::{
    conn::{self, ConnGuard, Half, Stage},
    datapath::splice,
    migration::{handover::NextReader, incompatible},
    process::{
        self,
        libc_calls::FdSet,
        table::{self, Entry},
    },
};

/// Whether a call on `fd` is the kernel's because the caller has other descriptors than those in
/// the table.
#[inline(always)]
pub(crate) fn is(fd: c_int) -> bool {
    pid::may_be_borrowed() && is_here(fd)
}

/// [`is`] for a call that moves bytes: false for one that receives where the number names the connection and some of its
/// bytes could not be given to the kernel. The call finds those, and does not wait.
#[inline(always)]
pub(crate) fn moves(fd: c_int, half: Half) -> bool {
    pid::may_be_borrowed() && moves_here(fd, half)
}

#[cold]
#[inline(never)]
fn moves_here(fd: c_int, half: Half) -> bool {
    is_here(fd) && (half == Half::Send || !has_rest(fd))
}

/// [`is`] for `poll`.
#[inline(always)]
pub(crate) fn polls(fds: &[pollfd]) -> bool {
    if !pid::may_be_borrowed() || process::is_ours() {
        return false;
    }
    fds.iter().for_each(|entry| leave(entry.fd));
    true
}

/// [`is`] for `select`.
#[inline(always)]
pub(crate) fn selects(count: c_int, sets: [FdSet; 3]) -> bool {
    if !pid::may_be_borrowed() || process::is_ours() {
        return false;
    }
    for fd in 0..count.min(process::highest_descriptor().saturating_add(1)) {
        if sets.iter().any(|set| set.has(fd as usize)) {
            leave(fd);
        }
    }
    true
}

/// [`is`] for a wait on an epoll set: of any connection in it nothing but its doorbell would come.
#[inline(always)]
pub(crate) fn waits_for_all() -> bool {
    if !pid::may_be_borrowed() || process::is_ours() {
        return false;
    }
    table::walk(|fd, _| leave(fd));
    true
}

#[cold]
#[inline(never)]
fn is_here(fd: c_int) -> bool {
    if process::is_ours() {
        return false;
    }
    leave(fd);
    true
}

/// The file that `fd` names leaves its lanes, if it is a connection here as well.
#[cold]
#[inline(never)]
fn leave(fd: c_int) {
    let is_connection = matches!(table::entry(fd), Some(Entry::Conn(_)))
        && ConnGuard::new(fd, Half::Receive)
            .is_some_and(|conn| !matches!(conn.stage(), Stage::Fresh | Stage::Listener));
    if is_connection {
        incompatible::leave(fd, Reason::Shared, Some(NextReader::Image(fd)));
    }
}

#[cold]
fn has_rest(fd: c_int) -> bool {
    let _section = section::Guard::enter();
    ConnGuard::new(fd, Half::Receive).is_some_and(|conn| {
        conn.stage() == Stage::Attached
            && conn::is_named(&conn, fd)
            && splice::has_ring_bytes(&conn)
    })
}

/// Before such a child forks: its own child holds all that it holds, and no record names that one.
#[cold]
#[inline(never)]
pub(crate) fn before_fork() {
    pid::begin_borrowed_fork();
    table::walk(|fd, _| leave(fd));
}

/// In the child of one that forked so: the memory is a copy of its parent's parent's, the descriptors are not. Nothing
/// is tracked here any more, and no number is touched.
#[cold]
#[inline(never)]
pub(crate) fn forked() {
    process::retire();
    table::walk(|fd, _| {
        table::clear(fd);
    });
}

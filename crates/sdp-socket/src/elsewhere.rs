//! Calls of a child that runs on its parent's memory, with descriptors of its own.
//!
//! A child of vfork, or of a clone like it, closes numbers and uses them for something else, and the table of the
//! parent, which is all that there is, must not learn of it. So what a number names is asked of the kernel here, and
//! every call is the kernel's. A number that still names a connection is brought there first: the connection leaves
//! its lanes for good, because the child's calls cannot be followed (reason `shared`). That costs a connection its
//! lanes where such a child really uses it. Who only closes, duplicates and executes never comes here.

use libc::c_int;
use sdp_stats::Reason;
use sdp_sys::{pid, section};

use crate::{
    conn::{Half, Stage},
    exec,
    handover::Heir,
    pin, process, splice,
    table::{self, Entry, Pinned},
};

/// Whether a call on `fd` is the kernel's because the caller has other descriptors than the table tells of.
#[inline(always)]
pub(crate) fn is(fd: c_int) -> bool {
    pid::may_be_borrowed() && is_here(fd)
}

/// [`is`] for a call that receives: false where the number names the connection and some of its bytes could not be given
/// to the kernel. The call finds those, and does not wait.
#[inline(always)]
pub(crate) fn is_receiving(fd: c_int) -> bool {
    pid::may_be_borrowed() && is_here(fd) && !has_rest(fd)
}

/// [`is`] for a wait: on many descriptors, which `each` tells.
#[inline(always)]
pub(crate) fn waits(each: impl FnOnce(&mut dyn FnMut(c_int))) -> bool {
    if !pid::may_be_borrowed() || process::is_ours() {
        return false;
    }
    each(&mut |fd| leave(fd));
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

/// What `fd` names leaves its lanes, if it is a connection here as well.
#[cold]
fn leave(fd: c_int) {
    let is_connection = matches!(table::entry(fd), Some(Entry::Conn(_)))
        && Pinned::new(fd, Half::Receive)
            .is_some_and(|conn| !matches!(conn.stage(), Stage::Fresh | Stage::Listener));
    if is_connection {
        pin::leave(fd, Reason::Shared, Some(Heir::Image(fd)));
    }
}

#[cold]
fn has_rest(fd: c_int) -> bool {
    let _section = section::Guard::enter();
    Pinned::new(fd, Half::Receive).is_some_and(|conn| {
        conn.stage() == Stage::Attached
            && exec::is_named(&conn, fd)
            && splice::has_ring_bytes(&conn)
    })
}

/// Before such a child forks: what it holds its own child holds as well, of whom nobody will know.
#[cold]
pub(crate) fn before_fork() {
    pid::begin_borrowed_fork();
    table::walk(|fd, _| leave(fd));
}

/// In the child of one that forked so: the memory is a copy of its parent's parent's, the descriptors are not. Nothing
/// is tracked here any more, and no number is touched.
#[cold]
pub(crate) fn forked() {
    process::retire();
    table::walk(|fd, _| {
        table::clear(fd);
    });
}

//! Sets that the library did not see made: kept over exec, received with SCM_RIGHTS, one too many for the mirror, or
//! made when there was no memory.
//!
//! Called by `readiness`, by `lifecycle/adopt.rs` and by [`super::promote`].
//!
//! A wait on such a set is the kernel's alone, which knows nothing of rings. So every connection in
//! one is on the kernel lane for good (reason `unseen-set`). A registration that is made here is
//! seen. The library does not see a registration that another process made, on the same set, of a
//! connection that came to this process as well or went through other hands: such connections have
//! no lanes while there may be such a set.

use libc::c_int;
use sdp_stats::Reason;
use sdp_sys::{
    holders::{self, Held},
    procfs::{self, Kind},
    section, stat,
};

use crate::{
    conn::{self, Conn, ConnGuard, Half, Holders, Stage},
    migration::{
        handover::{self, NextReader},
        incompatible,
    },
    process::{
        self,
        table::{self, Entry},
    },
};

/// Whether a number that the table does not know as a set is one. Where the kernel does not show
/// it, it may be.
fn may_be_set(fd: c_int) -> bool {
    table::entry(fd).is_none()
        && match procfs::kind(fd) {
            Ok(kind) => kind == Kind::EpollSet,
            Err(_) => stat::at_hand(fd).is_ok_and(|stat| stat.is_anonymous()),
        }
}

/// Before `fd` is registered with `set_fd`, which the table does not know as a set.
#[cold]
#[inline(never)]
pub(crate) fn about_to_have(set_fd: c_int, fd: c_int) {
    let Some(Entry::Conn(index)) = table::entry(fd) else { return };
    let is_listener = conn::get(index).is_none_or(|conn| conn.stage() == Stage::Listener);
    if !is_listener && may_be_set(set_fd) {
        // The kernel reads like a stranger: the bytes in the ring have to come before its own.
        incompatible::leave(fd, Reason::UnseenSet, Some(NextReader::Stranger));
    }
}

/// `fd` has come from another process: if it is a set, connections that others had may be in it.
#[cold]
pub(crate) fn received(fd: c_int) {
    if process::is_retired() || !process::is_ours() || !may_be_set(fd) {
        return;
    }
    table::walk(|number, entry| {
        if let Entry::Conn(index) = entry
            && conn::get(index).is_some_and(is_of_others)
        {
            let _section = section::Guard::enter();
            if let Some(conn) = ConnGuard::new(number, Half::Receive) {
                handover::leave_to(&conn, number, Reason::UnseenSet, NextReader::Stranger);
            }
        }
    });
}

/// Whether another process may have registered the connection.
fn is_of_others(conn: &Conn) -> bool {
    conn.has(Holders::Adopted | Holders::Passed)
}

/// Whether a connection of [others](is_of_others) may be in a set that this process has and does not know. Dear.
#[cold]
pub(crate) fn may_have() -> bool {
    holders::has_set(|fd| matches!(table::entry(fd), Some(Entry::Set(_) | Entry::Hidden)))
        != Held::No
}

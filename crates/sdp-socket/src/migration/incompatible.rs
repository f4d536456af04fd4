//! Uses of a descriptor that keep its connection on the kernel lane for good.
//!
//! Called by `api` for the hooks, and by `lifecycle`.

use libc::c_int;
use sdp_stats::Reason;
use sdp_sys::{kernel, section};

use crate::{
    conn::{self, Conn, ConnGuard, Half, options::Leaving},
    migration::{
        demote,
        handover::{self, NextReader},
    },
    process,
};

/// Why a program's own use of a descriptor keeps it on the kernel lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incompatible {
    /// `fdopen`: stdio reads and writes behind our back.
    Stdio,
    /// Duplicated onto descriptor 0, 1 or 2.
    StandardDescriptor,
    /// Made for its new image by a vfork child, which has it as this number.
    ForImage(c_int),
    /// To be duplicated in a child of `posix_spawn`, onto this number.
    Spawned(c_int),
    /// POSIX asynchronous I/O.
    Aio,
    /// A call that only the kernel can make, on this connection.
    Kernels,
}

/// Moves a connection to the kernel lane for good. False: the unread bytes could not be handed
/// over, and the process that was to have the connection must not have it.
pub fn fall_back(fd: c_int, why: Incompatible) -> bool {
    let (reason, next) = match why {
        Incompatible::Stdio => (Reason::Stdio, Some(NextReader::Stranger)),
        Incompatible::StandardDescriptor => {
            (Reason::StandardDescriptor, Some(NextReader::Stranger))
        }
        Incompatible::ForImage(new @ 0..=2) => {
            (Reason::StandardDescriptor, Some(NextReader::Image(new)))
        }
        Incompatible::ForImage(new) => (Reason::Exec, Some(NextReader::Image(new))),
        Incompatible::Spawned(0..=2) => (Reason::StandardDescriptor, Some(NextReader::Stranger)),
        Incompatible::Spawned(_) => (Reason::Exec, Some(NextReader::Stranger)),
        Incompatible::Aio => (Reason::Aio, Some(NextReader::Ourselves)),
        Incompatible::Kernels => (Reason::UnsuitableSocket, Some(NextReader::Ourselves)),
    };
    leave(fd, reason, next)
}

/// The same for an option or a request. False: as of [`leave`].
pub(crate) fn leave_for(fd: c_int, leaving: &Leaving) -> bool {
    leave(fd, leaving.reason, leaving.hands_over.then_some(NextReader::Call))
}

/// Moves the connection that `fd` names to the kernel lane for good, in any stage. Without a next
/// reader our own calls read it, which deliver ring bytes first. False: as of
/// [`handover::leave_to`].
pub(crate) fn leave(fd: c_int, reason: Reason, next: Option<NextReader>) -> bool {
    if process::is_ours() {
        leave_here(fd, reason, next, |_| true)
    } else {
        // A vfork child that is killed in the middle would leave its parent's locks behind.
        without_signals(|| leave_here(fd, reason, next, |conn| conn::is_named(conn, fd)))
    }
}

fn leave_here(
    fd: c_int,
    reason: Reason,
    next: Option<NextReader>,
    is_it: impl Fn(&Conn) -> bool,
) -> bool {
    let _section = section::Guard::enter();
    if let Some(conn) = ConnGuard::new(fd, Half::Receive)
        && is_it(&conn)
    {
        match next {
            None => {
                demote::leave(&conn, fd, reason);
            }
            Some(next) => return handover::leave_to(&conn, fd, reason, next),
        }
    }
    true
}

/// With all signals that can be blocked.
fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let (all, mut before) = (u64::MAX, 0u64);
    let blocked = kernel::exchange_signal_mask(libc::SIG_SETMASK, &all, &mut before);
    let result = work();
    if blocked.is_ok() {
        let _ = kernel::set_signal_mask(libc::SIG_SETMASK, &before);
    }
    result
}

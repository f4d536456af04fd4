//! What a program does with a descriptor that keeps its connection on the kernel lane for good.

use libc::c_int;
use sdp_stats::Reason;
use sdp_sys::section;

use crate::{
    conn::Half,
    demote, exec,
    handover::{self, Heir},
    process,
    table::Pinned,
};

/// Why a program's own use of a descriptor keeps it on the kernel lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// `fdopen`: stdio reads and writes behind our back.
    Stdio,
    /// Duplicated onto descriptor 0, 1 or 2.
    StandardDescriptor,
    /// Duplicated by a vfork child onto another number, for its new image.
    ForImage,
    /// To be duplicated in a child of `posix_spawn`, onto this number.
    Spawned(c_int),
    /// POSIX asynchronous I/O.
    Aio,
    /// `F_SETOWN`, `F_SETSIG`, `O_ASYNC`, FIOASYNC.
    SignalDriven,
}

/// Moves a connection to the kernel lane for good.
pub fn pin(fd: c_int, why: Pin) {
    let (reason, heir) = match why {
        Pin::Stdio => (Reason::Stdio, Some(Heir::Stranger)),
        Pin::StandardDescriptor => (Reason::StandardDescriptor, Some(Heir::Ourselves)),
        Pin::ForImage => (Reason::Exec, Some(Heir::Ourselves)),
        Pin::Spawned(0..=2) => (Reason::StandardDescriptor, Some(Heir::Stranger)),
        Pin::Spawned(_) => (Reason::Exec, Some(Heir::Stranger)),
        Pin::Aio => (Reason::Aio, Some(Heir::Ourselves)),
        Pin::SignalDriven => (Reason::SignalDriven, None),
    };
    leave(fd, reason, heir);
}

/// Moves what `fd` names to the kernel lane for good, whatever stage it is in. Without an heir our own calls read it,
/// which deliver ring bytes first.
pub(crate) fn leave(fd: c_int, reason: Reason, heir: Option<Heir<'_>>) {
    let _section = section::Guard::enter();
    if let Some(conn) = Pinned::new(fd, Half::Receive)
        && (process::is_ours() || exec::is_as_in_parent(&conn, fd))
    {
        match heir {
            None => {
                demote::leave(&conn, fd, reason);
            }
            Some(heir) => {
                handover::leave_to(&conn, fd, reason, heir);
            }
        }
    }
}

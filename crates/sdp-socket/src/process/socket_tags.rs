//! Marks that stay on an open socket wherever it goes: record locks on bytes that no socket has.
//!
//! Called by `conn/publish.rs`, `lifecycle` and `migration/holders.rs`.
//!
//! Family memory ends at exec and does not travel with SCM_RIGHTS; locks of the open socket do,
//! through fork, exec and messages, until no process has it open any more. They carry two facts:
//! that a process which passed the connection on may still use it ([`announce`]), and how the
//! report has counted the end, so that the next process does not count it again ([`count_as`]).
//!
//! Each holder of the socket can set such locks: a forged one changes counts and delays lanes, and
//! nothing else.

use libc::{c_int, c_short};
use sdp_sys::kernel;

use crate::process::settings;

/// The byte that says that a process has passed the connection on.
const PASSED_ON: i64 = 0;
/// Marks of counting begin here …
const COUNTED: i64 = 1 << 41;
/// … and each run that makes a report has so many bytes, by a hash of where its report goes.
const RUN_BYTES: i64 = 1 << 9;
/// Every other one is used: the kernel would melt neighbours into one lock.
const STEP: i64 = 2;

/// A lock of the process (`F_SETLK`), which the kernel drops when the process closes the connection
/// or ends, or of the open socket (`F_OFD_SETLK`), dropped when no process has that open any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Process,
    OpenSocket,
}

/// Says that a process that passed the connection on may go on using it.
pub(crate) fn announce(fd: c_int, whose: Whose) {
    set(fd, whose, PASSED_ON, libc::F_RDLCK);
}

/// Whether a process [`announce`]d itself, other than this process by a lock of its own.
pub(crate) fn is_announced(fd: c_int) -> bool {
    find(fd, PASSED_ON, 1).is_none_or(|found| found.is_some())
}

/// Marks the socket with how this run's report counts this end of a connection: a raw
/// [`sdp_stats::Verdict`].
pub(crate) fn count_as(fd: c_int, verdict: u32) {
    let Some(at) = place(verdict) else { return };
    let old = find(fd, first(), RUN_BYTES).flatten();
    if old != Some(at) {
        set(fd, Whose::OpenSocket, at, libc::F_RDLCK);
        if let Some(old) = old {
            set(fd, Whose::OpenSocket, old, libc::F_UNLCK);
        }
    }
}

/// How this end is counted already; `None`: not in this run.
pub(crate) fn counted_as(fd: c_int) -> Option<u32> {
    let at = find(fd, first(), RUN_BYTES).flatten()?;
    // Another program's lock may begin before our bytes.
    u32::try_from(at.checked_sub(first())? / STEP).ok()
}

fn place(verdict: u32) -> Option<i64> {
    let at = i64::from(verdict) * STEP;
    (at < RUN_BYTES).then(|| first() + at)
}

/// The first byte of this run's tags (FNV-1a).
fn first() -> i64 {
    let hash = settings::report()
        .iter()
        .fold(0x811c_9dc5u32, |hash, b| (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    COUNTED + i64::from(hash) * RUN_BYTES
}

fn set(fd: c_int, whose: Whose, at: i64, kind: c_int) {
    let lock = record(at, 1, kind);
    let _ = match whose {
        Whose::Process => kernel::set_lock(fd, &lock),
        Whose::OpenSocket => kernel::set_file_lock(fd, &lock),
    };
}

/// Where the first lock begins that touches the `len` bytes from `at` and is not this process's
/// own; `None`: the kernel does not report it.
fn find(fd: c_int, at: i64, len: i64) -> Option<Option<i64>> {
    let mut lock = record(at, len, libc::F_WRLCK);
    kernel::blocking_lock(fd, &mut lock).ok()?;
    Some((lock.l_type != libc::F_UNLCK as c_short).then_some(lock.l_start))
}

fn record(at: i64, len: i64, kind: c_int) -> libc::flock {
    libc::flock {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: at,
        l_len: len,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::fd::AsRawFd};

    use super::*;

    #[test]
    fn an_open_socket_keeps_one_mark_through_its_duplicates() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let fd = socket.as_raw_fd();
        assert_eq!(counted_as(fd), None);
        for verdict in [7, 1, 2, 65, 1] {
            count_as(fd, verdict);
            assert_eq!(counted_as(fd), Some(verdict));
        }
        let other = socket.try_clone().expect("a duplicate");
        assert_eq!(counted_as(other.as_raw_fd()), Some(1));
        assert!(!is_announced(fd));
        announce(fd, Whose::OpenSocket);
        assert!(is_announced(other.as_raw_fd()));
        assert_eq!(counted_as(fd), Some(1));
        drop(other);
        assert_eq!(counted_as(fd), Some(1));
    }

    #[test]
    fn what_is_no_verdict_is_not_kept() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        count_as(socket.as_raw_fd(), 256);
        assert_eq!(counted_as(socket.as_raw_fd()), None);
    }
}

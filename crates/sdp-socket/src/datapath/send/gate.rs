//! The gate of a half. Its holder alone may change lane, log, tail and carrier position.

use libc::c_int;
use sdp_fabric_shm::identity::{self, Presence};
use sdp_fabric_shm::link::{Holder, Intent, ShmHalf};
use sdp_sys::time::monotonic_ns;

use crate::conn::{self, Conn, Limits, carrier};

/// How long the gate of a half may be held against us before the peer counts as hostile. More than a
/// hand-over takes at most, which holds it throughout.
pub(crate) const GATE_TIMEOUT_NS: u64 = 5_000_000_000;
/// From then on a wait for the gate sleeps for short times instead of yielding.
const GATE_SPIN_NS: u64 = 1_000_000;
const GATE_SLEEP_NS: i64 = 200_000;
/// … and asks this often whether the holder still lives.
const GATE_LOOK_NS: u64 = 10_000_000;

/// Holds the gate of a half while `body` runs. `None`: the peer kept it too long. The caller holds this
/// end's lock of the half.
pub(crate) fn gated<R>(
    conn: &Conn,
    half: ShmHalf<'_>,
    side: usize,
    body: impl FnOnce() -> R,
) -> Option<R> {
    gated_at(conn, None, half, side, body)
}

/// Takes the gate of a half, which the caller gives back. False: the peer kept it too long. The caller
/// holds this end's lock of the half.
pub(crate) fn take_gate(conn: &Conn, half: ShmHalf<'_>, side: usize) -> bool {
    half.try_gate(side).is_ok() || gate_contended(conn, None, half, side)
}

/// As [`gated`], for a connection that may be in the table no more: `fd` is its carrier, if known.
/// Without it this cannot ask whether the peer still lives.
pub(crate) fn gated_at<R>(
    conn: &Conn,
    fd: Option<c_int>,
    half: ShmHalf<'_>,
    side: usize,
    body: impl FnOnce() -> R,
) -> Option<R> {
    if half.try_gate(side).is_err() && !gate_contended(conn, fd, half, side) {
        return None;
    }
    let result = body();
    half.open_gate();
    Some(result)
}

/// Whether the peer has closed its end: a byte on the carrier that is never read would turn its FIN
/// into a reset. Under the gate, which its close takes, too.
pub(crate) fn has_peer_closed(conn: &Conn) -> bool {
    conn.link().is_none_or(|link| link.peer().intent() == Intent::Closed)
}

#[cold]
fn gate_contended(conn: &Conn, fd: Option<c_int>, half: ShmHalf<'_>, side: usize) -> bool {
    let start = monotonic_ns();
    let mut looked = start;
    loop {
        for _ in 0..200 {
            match half.try_gate(side) {
                Ok(()) => return true,
                // The half's lock is ours: a family member of ours died inside.
                Err(held) if held == Holder::of(side) => return true,
                Err(_) => core::hint::spin_loop(),
            }
        }
        let now = monotonic_ns();
        let waited = now.saturating_sub(start);
        if waited > GATE_TIMEOUT_NS || conn.has(Limits::Hostile) {
            return false;
        }
        if waited < GATE_SPIN_NS {
            sdp_sys::time::yield_now();
            continue;
        }
        if now.saturating_sub(looked) > GATE_LOOK_NS {
            looked = now;
            // It was killed inside, and has not sent the message that it was about to publish.
            if let Some(holder) = half.gate_holder()
                && is_peer_dead(conn, fd)
                && half.take_gate_over(holder, side)
            {
                return true;
            }
        }
        sdp_sys::time::sleep(GATE_SLEEP_NS);
    }
}

/// Whether the process that the connection was met with has ended, and no other process has its
/// socket open for sending. A peer whose state cannot be found out counts as alive. `fd`: the
/// carrier, where the table may not know it.
fn is_peer_dead(conn: &Conn, fd: Option<c_int>) -> bool {
    conn.has_peer_ended(0)
        && fd.or_else(|| conn::number_of(conn)).is_some_and(|fd| {
            // Not FIN: a process that has forked may have ended after a half-close, and its child reads.
            carrier::tcp_state(fd) == carrier::TCP_CLOSE || is_orphaned(conn, fd)
        })
}

/// Whether no process has the peer's socket open. FIN alone does not prove it where it waits behind
/// bytes that our kernel has no room for.
fn is_orphaned(conn: &Conn, fd: c_int) -> bool {
    if conn.is_across() {
        return false; // no table here knows it, and a FIN may be a half-close
    }
    let Some(tuple) = conn.name(fd) else { return false };
    match identity::diag(&tuple.reversed()) {
        Ok(Some(socket)) => socket.presence() == Presence::Closed,
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Shutdown, TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    use super::*;
    use crate::conn::Stage;

    /// The process that had met may have ended after a half-close, while its child holds the gate.
    #[test]
    fn a_half_close_elsewhere_is_no_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        other.shutdown(Shutdown::Write).unwrap();
        while !carrier::is_over(ours.as_raw_fd()) {
            std::thread::yield_now();
        }
        crate::lifecycle::hand_in();
        let (_, conn) = conn::create(Stage::Candidate).expect("a slot");
        conn.across.store(Conn::IS_ACROSS, core::sync::atomic::Ordering::Relaxed);
        assert!(!is_orphaned(conn, ours.as_raw_fd()));
    }
}

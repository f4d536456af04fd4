//! Out of the guard: the stream is handed back to the carrier for somebody who knows the kernel's stream alone (G8), at
//! this end or at the other.

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_fabric_verbs::endpoint::VerbsTx;
use sdp_remote::{Inbound, Leaving, SendContext, Wait};
use sdp_stats::{Direction, Reason};
use sdp_sys::{fd, time::monotonic_ns};

use super::{
    carrier_io::Socket,
    device, let_go, look,
    pair::{self, Pair, Receiving, Sending},
    reset, tend,
};
use crate::conn::{Conn, Pinned, flag, publish};

/// How long one who leaves waits for the other end, and how long apart he looks.
const LEAVE_NS: u64 = 2_000_000_000;
const LEAVE_NAP_NS: u64 = 1_000_000;

/// Whether a connection that had met is plain TCP again, for good (G8).
pub(super) fn is_plain(conn: &Conn) -> bool {
    pair::of(conn).is_some_and(|(_, pair)| pair.is_plain.load(Ordering::Acquire))
}

/// Before somebody who knows the kernel's stream alone gets the connection: it becomes plain TCP, with all that is unread
/// (G8). Waits 2 s at most. False: it is lost, and was reset. Slow.
pub(crate) fn hand_back(conn: &Conn, fd: c_int, reason: Reason) -> bool {
    conn.pin_to_kernel(reason);
    if let_go(conn, reason) {
        return true;
    }
    if conn.has(flag::HOSTILE) {
        return false;
    }
    let Some((number, pair)) = pair::of(conn) else { return false };
    let end = monotonic_ns() + LEAVE_NS;
    let is_out = await_proof(conn, pair, fd, end) && {
        device::cut(number, pair);
        leave_guard(conn, pair, fd, end)
    };
    if !is_out {
        reset(conn);
        return false;
    }
    conn.note_reason(reason);
    for direction in [Direction::Send, Direction::Receive] {
        publish::half_demoted(conn, direction, reason);
    }
    true
}

/// In the middle of the first meeting the peer may not know of markers: its end is awaited. True: there may be some.
fn await_proof(conn: &Conn, pair: &Pair, fd: c_int, end: u64) -> bool {
    loop {
        let knows = |sending: &mut Sending, _: &mut [u8]| {
            sending.outbound.as_ref().is_some_and(|outbound| outbound.may_leave())
        };
        if pair.sending(conn, knows) == Some(true) {
            return true;
        }
        if monotonic_ns() >= end || pair.shared.is_link_dead() {
            return false;
        }
        let _ = fd::poll_one(fd, libc::POLLIN, Some(LEAVE_NAP_NS as i64));
        look(conn);
        tend(conn, pair);
    }
}

/// LEAVE, until both halves are raw. False: that did not come about.
fn leave_guard(conn: &Conn, pair: &Pair, fd: c_int, end: u64) -> bool {
    loop {
        let step = pair.receiving(conn, |Receiving { inbound, rx, .. }| {
            pair.sending(conn, |Sending { outbound, .. }, ring| {
                let (inbound, outbound) = (inbound.as_mut()?, outbound.as_mut()?);
                let mut socket = Socket(fd);
                let mut io = SendContext {
                    tx: None::<&mut VerbsTx>,
                    carrier: &mut socket,
                    ring,
                    shared: &pair.shared,
                    now: monotonic_ns(),
                };
                Some(sdp_remote::leave(outbound, inbound, rx.as_mut(), &mut io))
            })
        });
        match step.flatten().flatten() {
            Some(Ok(Leaving::Done)) => {
                pair.is_plain.store(true, Ordering::Release);
                return true;
            }
            Some(Ok(Leaving::Waits(wait))) if monotonic_ns() < end => {
                let events = match wait {
                    Wait::Carrier => libc::POLLOUT,
                    Wait::Return => libc::POLLIN,
                    Wait::Segments | Wait::Credit { .. } => 0,
                };
                let _ = fd::poll_one(fd, events, Some(LEAVE_NAP_NS as i64));
            }
            _ => return false,
        }
    }
}

/// A moment of waiting for what the peer, or another thread, leaves. False: it was long enough.
#[cold]
pub(super) fn await_return(conn: &Pinned, until: &mut Option<u64>) -> bool {
    let now = monotonic_ns();
    if now >= *until.get_or_insert(now + LEAVE_NS) {
        return false;
    }
    let _ = fd::poll_one(conn.fd(), libc::POLLIN, Some(LEAVE_NAP_NS as i64));
    look(conn);
    true
}

/// What the peer gave back is taken, so that it can be sent again: under the receiving half's lock. True: look again.
pub(super) fn take_return(conn: &Conn, pair: &Pair, inbound: &mut Inbound, fd: c_int) -> bool {
    let taken = pair.sending(conn, |Sending { outbound, .. }, ring| {
        let mut socket = Socket(fd);
        let outbound = outbound.as_mut()?;
        let taken = sdp_remote::take_return(outbound, inbound, &mut socket, &pair.shared, ring);
        Some(taken.is_ok())
    });
    taken.flatten() == Some(true)
}

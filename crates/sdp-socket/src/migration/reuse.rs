//! The meeting of two processes that have met before: in shared memory, with a segment that has
//! been used already.
//!
//! Called by [`super::promote`] at each step of a meeting.
//!
//! [`sdp_fabric_shm::pool`] keeps segments of connections that have ended. This module decides
//! which may be kept, when a connection tries that way first, and proves the words of the offer
//! slot by the kernel: the carrier's other end is the socket that sock_diag shows, and the process
//! with which the segment is shared holds it. It refuses to wait for long: a step that finds
//! nothing leads to the meeting by name after a few calls.

use core::sync::atomic::Ordering;

use sdp_fabric_shm::{
    diag_client::Carrier,
    identity::{self, Examined, Tuple},
    pool::{Answer, Offer},
    refusal::Refusal,
    rendezvous::Rendezvous,
};

use crate::{
    conn::{Conn, Holders, Limits, Origin, pool::POOL},
    process,
};
use sdp_sys::fd;

/// Calls after which an offer that was not taken is withdrawn.
const OFFER_TICKS: u32 = 16;
/// Calls for which the end that accepted the connection waits for an offer, if it may expect one.
const LOOK_TICKS: u32 = 3;

/// The outcome of a step.
pub(crate) enum Outcome {
    /// Nothing: meet by name.
    None,
    /// An offer is out, or may come.
    Wait,
    /// The segment of an earlier connection is this one's.
    Attached(Offer),
    /// The connection can have no lanes.
    Failed(Refusal),
}

/// One step of the meeting. Under the meeting's lock, with the connection in [`Stage::Meeting`]; `by_name`: how far it
/// has come that way; `is_last`: an offer that was not taken by now is withdrawn.
pub(crate) fn step(
    conn: &Conn,
    fd: i32,
    tuple: &Tuple,
    by_name: &Rendezvous,
    is_last: bool,
) -> Outcome {
    let lease = conn.lease.load(Ordering::Relaxed);
    if lease != 0 {
        if is_last {
            conn.pool_ticks.store(OFFER_TICKS, Ordering::Relaxed);
        }
        return await_answer(conn, fd, tuple, lease);
    }
    if by_name.is_joining() || POOL.is_empty() || conn.has(Holders::Adopted) {
        return Outcome::None;
    }
    let ticks = conn.pool_ticks.load(Ordering::Relaxed);
    if !conn.has(Origin::Accepted) {
        if !by_name.is_idle() || ticks != 0 {
            return Outcome::None;
        }
        conn.pool_ticks.store(1, Ordering::Relaxed);
        if !may_come(conn, fd) {
            return Outcome::None;
        }
        if let Some(offer) = POOL.candidate(tuple) {
            POOL.tell(process::peers(), &offer);
        }
        let lease = POOL.offer(process::peers(), tuple, conn.index(), fd, conn.index());
        conn.lease.store(lease.unwrap_or(0), Ordering::Relaxed);
        return if lease.is_some() { Outcome::Wait } else { Outcome::None };
    }
    if let Some(offer) = POOL.look(tuple)
        && may_come(conn, fd)
    {
        return take(conn, fd, tuple, offer);
    }
    if by_name.is_idle() && ticks < LOOK_TICKS && POOL.may_be_offered(process::peers()) {
        conn.pool_ticks.store(ticks + 1, Ordering::Relaxed);
        return Outcome::Wait;
    }
    Outcome::None
}

/// Whether no other connection can have the same addresses while this one has: a socket that is, or was, bound to a
/// device leaves room for one that is not.
fn has_its_addresses_alone(conn: &Conn, fd: i32) -> bool {
    let device = || fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
    !conn.has(Origin::Bound) && device() == Ok(0)
}

/// Whether the process is one whose making the library did not see.
fn is_unseen_child() -> bool {
    sdp_sys::pid::current() as u32 != process::pid()
}

/// Whether the connection may be met on an offer slot. Not in a child of a fork that the library
/// did not see, which has the offer slots of its parent.
fn may_come(conn: &Conn, fd: i32) -> bool {
    !is_unseen_child() && has_its_addresses_alone(conn, fd)
}

/// The end that offered.
fn await_answer(conn: &Conn, fd: i32, tuple: &Tuple, lease: u32) -> Outcome {
    let (peers, owner) = (process::peers(), conn.index());
    if is_unseen_child() {
        return Outcome::None; // the offer is its parent's
    }
    let offer = match POOL.answer(lease, owner) {
        Answer::Taken(offer) => offer,
        Answer::Waiting if conn.pool_ticks.fetch_add(1, Ordering::Relaxed) < OFFER_TICKS => {
            return Outcome::Wait;
        }
        Answer::Waiting | Answer::Lost => {
            // The other process is gone, or another one has the connection: not offered a second
            // time.
            if !POOL.withdraw(peers, lease, owner, false) {
                return Outcome::Wait; // taken just now
            }
            conn.lease.store(0, Ordering::Relaxed);
            return Outcome::None;
        }
    };
    let proven = prove(conn, fd, tuple, &offer);
    if let Ok(true) = proven
        && POOL.confirm(lease, owner)
    {
        return Outcome::Attached(offer);
    }
    conn.lease.store(0, Ordering::Relaxed);
    POOL.distrust(offer.kept.peer);
    let _ = POOL.withdraw(peers, lease, owner, true);
    proven.map_or_else(Outcome::Failed, |_| Outcome::None)
}

/// The end that takes the other one's offer.
fn take(conn: &Conn, fd: i32, tuple: &Tuple, offer: Offer) -> Outcome {
    match prove(conn, fd, tuple, &offer) {
        Ok(true) => {}
        Ok(false) => {
            POOL.refuse(process::peers(), &offer);
            return Outcome::None;
        }
        Err(refusal) => return Outcome::Failed(refusal),
    }
    if !POOL.take(tuple, &offer, conn.index(), fd, conn.index()) {
        return Outcome::None;
    }
    conn.lease.store(offer.lease(), Ordering::Relaxed);
    Outcome::Attached(offer)
}

/// Whether the process with which the segment is shared holds the connection's other end, and that
/// is of the user that both processes had when they met by name. The other process has to prove the
/// same of our own end.
///
/// One that can read our memory is believed that it holds an end of these addresses, and held it when it said so.
/// Both ends look, each after the other's word, whether their own is still connected; so there was a
/// moment when both were, and in one network namespace two such sockets are the ends of one connection
/// ([`has_its_addresses_alone`]).
fn prove(conn: &Conn, fd: i32, tuple: &Tuple, offer: &Offer) -> Result<bool, Refusal> {
    let strange = Holders::Passed | Holders::Uncertain;
    POOL.tell(process::peers(), offer);
    let may_be_elsewhere = conn.has(Origin::MayBeElsewhere) || process::has_networks();
    if !may_be_elsewhere && !conn.has(strange) && POOL.could_read_us(offer) {
        let is_ours = tuple.is_of(fd) && has_its_addresses_alone(conn, fd);
        return Ok(is_ours && !conn.has(Limits::Fallback));
    }
    let carrier = Carrier { fd, tuple, may_be_elsewhere };
    let peer = match process::diag_client().find(process::nonce(), process::hidden_min, &carrier) {
        Some(peer) => peer,
        None => match identity::examine(fd, tuple)? {
            Examined::Open { peer, uid, .. } if peer.uid == uid => peer,
            _ => return Ok(false),
        },
    };
    Ok(!conn.has(Limits::Fallback)
        && process::peers().holds(offer.kept.peer, offer.descriptor, &peer))
}

#[cfg(test)]
mod model;

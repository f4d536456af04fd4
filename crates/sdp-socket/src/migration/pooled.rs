//! The meeting of two processes that have met before: in shared memory, with a segment that has been used already.
//!
//! [`sdp_fabric_shm::pool`] keeps segments of connections that have ended. This module decides which may be
//! kept, when a connection tries that way first, and proves what the board says by the kernel: the carrier's other end is
//! the socket that sock_diag tells, and the process with which the segment is shared holds it. It refuses to wait
//! for long: a step that finds nothing leads to the meeting by name after a few calls.

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_fabric_shm::{
    asker::{Asker, Carrier, Notes},
    identity::{self, Examined, Tuple},
    pool::{Answer, Loan, Met, Pool},
    refusal::Refusal,
    rendezvous::Rendezvous,
};

use crate::{
    conn::{Conn, Stage, flag},
    process,
};
use sdp_sys::fd;

/// Calls after which an offer that nobody took is withdrawn.
const OFFER_TICKS: u32 = 16;
/// Calls for which the end that accepted the connection waits for an offer, if it may expect one.
const LOOK_TICKS: u32 = 3;

#[unsafe(link_section = ".data.hot")]
static POOL: Pool = Pool::new();
#[unsafe(link_section = ".data.hot")]
static ASKER: Asker =
    Asker::new(Notes { kept: process::note_hidden, gone: process::forget_hidden });
/// Ends of connections that never met, one in so many of which looks after segments shared with the dead.
const LOOK_EVERY: u32 = 16;
/// Counts them.
static PASSED: AtomicU32 = AtomicU32::new(0);

/// What came of a step.
pub(crate) enum Outcome {
    /// Nothing: meet by name.
    None,
    /// An offer is out, or may come.
    Wait,
    /// The segment of an earlier connection is this one's.
    Attached(Met),
    /// The connection can have no lanes.
    Failed(Refusal),
}

/// Whether anything is kept: no fork is in progress, and the process has lanes. What slips through is undone by
/// the second [`clear`] around a fork.
fn is_keeping() -> bool {
    process::forks().is_multiple_of(2) && !process::is_retired()
}

/// A connection has met its other end by name: its segment may come back. Under the meeting's lock.
pub(crate) fn lend(conn: &Conn, loan: Loan) {
    const EXCLUDED: u32 = flag::ADOPTED | flag::PASSED | flag::UNCERTAIN;
    if process::tunables().keeps_segments()
        && is_keeping()
        && !conn.has(EXCLUDED)
        && process::peers().can_tell(loan.peer)
    {
        let lease = POOL.lend(process::peers(), loan);
        conn.lease.store(lease.unwrap_or(0), Ordering::Relaxed);
    }
}

/// The connection is torn down, or forgets its segment: nobody uses it any more. True: mapping and user of the peer are
/// the pool's.
pub(crate) fn ended(conn: &Conn) -> bool {
    let lease = conn.lease.swap(0, Ordering::Relaxed);
    if lease == 0 {
        POOL.drop_dead(process::peers());
        return false;
    }
    const SPOILT: u32 = flag::HOSTILE | flag::PINNED | flag::PASSED | flag::UNCERTAIN;
    let is_clean = |conn: &Conn| {
        conn.segment().is_some_and(|segment| {
            [0, 1].iter().all(|side| segment.end(*side).touched.load(Ordering::Relaxed) == 0)
        })
    };
    let keep =
        is_keeping() && conn.stage() == Stage::Attached && !conn.has(SPOILT) && is_clean(conn);
    POOL.ended(process::peers(), lease, conn.index(), keep)
}

/// The meeting is called off: an open offer is withdrawn. Under the meeting's lock.
pub(crate) fn call_off(conn: &Conn) {
    if conn.segment().is_none() {
        let lease = conn.lease.swap(0, Ordering::Relaxed);
        if lease != 0 {
            let _ = POOL.withdraw(process::peers(), lease, conn.index(), true);
        }
    }
}

/// A connection ends that never met its other end: others that share segments with us may have ended meanwhile.
pub(crate) fn passed_by() {
    if !POOL.is_empty() && PASSED.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
        POOL.drop_dead(process::peers());
    }
}

/// Before a fork, in the parent after it, and around leaving a trust domain: nothing stays mapped that no connection uses, and what was
/// attached before does not come back.
pub(crate) fn clear() {
    POOL.clear(process::peers());
    ASKER.close();
}

/// The process is about to end.
pub(crate) fn leave() {
    POOL.leave();
}

/// In a fork child.
pub(crate) fn become_child() {
    POOL.become_child();
    ASKER.become_child();
}

/// The process's way to ask the kernel about other ends.
pub(crate) fn asker() -> &'static Asker {
    &ASKER
}

/// The program is about to overwrite a hidden descriptor. False as in [`Asker::lose`].
pub(crate) fn lose(number: i32) -> bool {
    ASKER.lose(number)
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
    if by_name.is_joining() || POOL.is_empty() || conn.has(flag::ADOPTED) {
        return Outcome::None;
    }
    let ticks = conn.pool_ticks.load(Ordering::Relaxed);
    if !conn.has(flag::ACCEPTED) {
        if !by_name.is_idle() || ticks != 0 {
            return Outcome::None;
        }
        conn.pool_ticks.store(1, Ordering::Relaxed);
        if !may_come(conn, fd) {
            return Outcome::None;
        }
        if let Some(met) = POOL.candidate(tuple) {
            POOL.tell(process::peers(), &met);
        }
        let lease = POOL.offer(process::peers(), tuple, conn.index(), fd, conn.index());
        conn.lease.store(lease.unwrap_or(0), Ordering::Relaxed);
        return if lease.is_some() { Outcome::Wait } else { Outcome::None };
    }
    if let Some(met) = POOL.look(tuple)
        && may_come(conn, fd)
    {
        return take(conn, fd, tuple, met);
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
    !conn.has(flag::BOUND) && device() == Ok(0)
}

/// Whether the process is one of which nobody saw how it was made.
fn is_unseen_child() -> bool {
    sdp_sys::pid::current() as u32 != process::pid()
}

/// Whether the connection may be met on a board. Not in a child of a fork that nobody saw, which has the boards of its
/// parent.
fn may_come(conn: &Conn, fd: i32) -> bool {
    !is_unseen_child() && has_its_addresses_alone(conn, fd)
}

/// The end that offered.
fn await_answer(conn: &Conn, fd: i32, tuple: &Tuple, lease: u32) -> Outcome {
    let (peers, owner) = (process::peers(), conn.index());
    if is_unseen_child() {
        return Outcome::None; // the offer is its parent's
    }
    let met = match POOL.answer(lease, owner) {
        Answer::Taken(met) => met,
        Answer::Waiting if conn.pool_ticks.fetch_add(1, Ordering::Relaxed) < OFFER_TICKS => {
            return Outcome::Wait;
        }
        Answer::Waiting | Answer::Lost => {
            // Nobody is there any more, or somebody else has the connection: not offered a second time.
            if !POOL.withdraw(peers, lease, owner, false) {
                return Outcome::Wait; // taken just now
            }
            conn.lease.store(0, Ordering::Relaxed);
            return Outcome::None;
        }
    };
    let proven = prove(conn, fd, tuple, &met);
    if let Ok(true) = proven
        && POOL.confirm(lease, owner)
    {
        return Outcome::Attached(met);
    }
    conn.lease.store(0, Ordering::Relaxed);
    POOL.distrust(met.loan.peer);
    let _ = POOL.withdraw(peers, lease, owner, true);
    proven.map_or_else(Outcome::Failed, |_| Outcome::None)
}

/// The end that takes what the other one offers.
fn take(conn: &Conn, fd: i32, tuple: &Tuple, met: Met) -> Outcome {
    match prove(conn, fd, tuple, &met) {
        Ok(true) => {}
        Ok(false) => {
            POOL.refuse(process::peers(), &met);
            return Outcome::None;
        }
        Err(refusal) => return Outcome::Failed(refusal),
    }
    if !POOL.take(tuple, &met, conn.index(), fd, conn.index()) {
        return Outcome::None;
    }
    conn.lease.store(met.lease(), Ordering::Relaxed);
    Outcome::Attached(met)
}

/// Whether the process with which the segment is shared holds the connection's other end, and that is of the user
/// that both processes had when they met by name. The same of our own end is for the other process to prove.
///
/// One that can read our memory is believed that it holds an end of these addresses, and held it when it said so.
/// Both ends look, each after the other's word, whether their own is still connected; so there was a
/// moment when both were, and in one network namespace two such sockets are the ends of one connection
/// ([`has_its_addresses_alone`]).
fn prove(conn: &Conn, fd: i32, tuple: &Tuple, met: &Met) -> Result<bool, Refusal> {
    const STRANGE: u32 = flag::PASSED | flag::UNCERTAIN;
    POOL.tell(process::peers(), met);
    let may_be_elsewhere = conn.has(flag::MAY_BE_ELSEWHERE) || process::has_networks();
    if !may_be_elsewhere && !conn.has(STRANGE) && POOL.could_read_us(met) {
        let is_ours = tuple.is_of(fd) && has_its_addresses_alone(conn, fd);
        return Ok(is_ours && !conn.has(flag::PINNED));
    }
    let carrier = Carrier { fd, tuple, may_be_elsewhere };
    let peer = match ASKER.find(process::nonce(), process::hidden_min, &carrier) {
        Some(peer) => peer,
        None => match identity::examine(fd, tuple)? {
            Examined::Open { peer, uid, .. } if peer.uid == uid => peer,
            _ => return Ok(false),
        },
    };
    Ok(!conn.has(flag::PINNED) && process::peers().holds(met.loan.peer, met.descriptor, &peer))
}

#[cfg(test)]
mod equals;

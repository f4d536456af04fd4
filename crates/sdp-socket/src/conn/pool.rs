//! Segments of connections that have ended, kept for later ones with the same process.
//!
//! Called by [`super::slot`] when a connection ends, by `migration` when it has met, and by
//! `lifecycle` around fork and exec.
//!
//! [`sdp_fabric_shm::pool`] keeps them; here stands which may be kept, and when all are given up. Called where a connection
//! attaches, is torn down or gives up a meeting, and around forks and changes of trust. These take
//! one:
//! [`crate::migration::reuse`].

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_fabric_shm::pool::{KeptSegment, Pool};

use crate::{
    conn::{Conn, Holders, Limits, Mask, Stage},
    process,
};

#[unsafe(link_section = ".data.hot")]
pub(crate) static POOL: Pool = Pool::new();

/// So many connections may end without having met before one of them looks for segments shared with
/// dead processes.
const LOOK_EVERY: u32 = 16;

/// Counts them.
static PASSED: AtomicU32 = AtomicU32::new(0);

/// Whether anything is kept: no fork is in progress, and the process has lanes. The second
/// [`clear`] around a fork undoes one that slips through.
fn is_keeping() -> bool {
    process::forks().is_multiple_of(2) && !process::is_retired()
}

/// A connection has met its other end by name: its segment may come back. Under the meeting's lock.
pub(crate) fn keep(conn: &Conn, kept: KeptSegment) {
    let excluded = Holders::Adopted | Holders::Passed | Holders::Uncertain;
    if process::tunables().keeps_segments()
        && is_keeping()
        && !conn.has(excluded)
        && process::peers().can_tell(kept.peer)
    {
        let lease = POOL.keep(process::peers(), kept);
        conn.lease.store(lease.unwrap_or(0), Ordering::Relaxed);
    }
}

/// The connection is torn down, or forgets its segment: no call uses it any more. True: the pool
/// now owns the mapping and the use of the peer.
pub(crate) fn ended(conn: &Conn) -> bool {
    let lease = conn.lease.swap(0, Ordering::Relaxed);
    if lease == 0 {
        POOL.drop_dead(process::peers());
        return false;
    }
    let spoilt = (Limits::Hostile | Limits::Fallback).with(Holders::Passed | Holders::Uncertain);
    let is_clean = |conn: &Conn| {
        conn.segment().is_some_and(|segment| {
            [0, 1].iter().all(|side| segment.end(*side).touched.load(Ordering::Relaxed) == 0)
        })
    };
    let keep =
        is_keeping() && conn.stage() == Stage::Attached && !conn.has(spoilt) && is_clean(conn);
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

/// A connection ends that never met its other end: other processes that share segments with this
/// one may have ended meanwhile.
pub(crate) fn passed_by() {
    if !POOL.is_empty() && PASSED.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
        POOL.drop_dead(process::peers());
    }
}

/// Before a fork, in the parent after it, and around leaving a trust domain: no segment without a
/// connection stays mapped, and no segment that was attached before comes back.
pub(crate) fn clear() {
    POOL.clear(process::peers());
    process::diag_client().close();
}

/// The process is about to end.
pub(crate) fn leave() {
    POOL.leave();
}

/// In a fork child.
pub(crate) fn become_child() {
    POOL.become_child();
    process::diag_client().become_child();
}

/// The program is about to overwrite a hidden descriptor. False as in [`DiagClient::lose`].
pub(crate) fn lose(number: i32) -> bool {
    process::diag_client().lose(number)
}

//! Memory comes back without a thread (R4): pages that bulk traffic touched, after a silence.
//!
//! [`super::send`] notes what was written; `readiness` and [`super::wait`] call it before they
//! sleep.
//!
//! A ring keeps every page that was ever written. Senders note that they wrote beyond the first
//! one; from then on sleeps that the library sees are limited, and a thread on its way into one
//! returns the free pages of the *sending* rings of this process's connections, once they sent
//! nothing for a while. Then sleeps have no limit again. A process that never calls again keeps its
//! pages, and so does one whose sleeps are all on connections without a lane.
//!
//! Only a producer returns pages, under its half's lock, and only pages that are free by its own
//! checked cursors: so it is safe against a peer that reads, writes or lies meanwhile. The first
//! page stays: small traffic lives there, and would fault it in again.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sdp_fabric_shm::endpoint::{RECLAIM_MAX, Reclaimed};
use sdp_shm::ring::PAGE;
use sdp_sys::{errno::Errno, time::monotonic_ns};

use crate::{
    conn::{self, CONNS, Conn, Half, Limits, Mask, Pages},
    datapath::send,
    process,
};

const WORDS: usize = CONNS / 64;
/// Connections that give back in one look; more of them wait for the next, soon.
const GIVERS_MAX: u32 = 32;
/// How soon.
const SOON_NS: u64 = 1_000_000;

/// Connections whose sending ring has touched more than its first page, a bit each.
static TOUCHED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// A bit of [`TOUCHED`] was set once, in this process or before a fork of it.
#[unsafe(link_section = ".bss.hot")]
static HAS_TOUCHED: AtomicBool = AtomicBool::new(false);
/// When to look next; 0: nothing to look for.
static LOOK_AT: AtomicU64 = AtomicU64::new(0);

/// Half of the silence: a connection gives back at the second look after its last bulk, so between one
/// half and the whole of it. `None`: never.
fn half_silence_ns() -> Option<u64> {
    match process::tunables().give_back_s() {
        0 => None,
        seconds => Some(u64::from(seconds) * 500_000_000),
    }
}

/// After a send that moved `bytes` of payload and the tail from `before` to `after`, both counted from the
/// ring's origin.
#[inline]
pub(crate) fn sent(conn: &Conn, ring_bytes: u32, before: u64, after: u64, bytes: usize) {
    let mask = u64::from(ring_bytes).wrapping_sub(1);
    let is_small = (before | after) & mask & !(PAGE - 1) == 0 && (bytes as u64) < PAGE;
    if !is_small && !conn.has(Pages::Bulky | Pages::Kept) {
        note(conn);
    }
}

#[cold]
fn note(conn: &Conn) {
    if let Some(segment) = conn.segment() {
        segment.end(conn.side()).touched.store(1, Ordering::Relaxed);
    }
    let Some(half) = half_silence_ns() else { return };
    conn.set(Pages::Bulky);
    let index = conn.index();
    if !HAS_TOUCHED.load(Ordering::Relaxed) {
        HAS_TOUCHED.store(true, Ordering::SeqCst);
    }
    if let Some(word) = TOUCHED.get(index as usize / 64) {
        word.fetch_or(1 << (index % 64), Ordering::SeqCst);
    }
    // A thread that stops looking at this moment looks at the bits once more.
    if LOOK_AT.load(Ordering::SeqCst) == 0 {
        let due = monotonic_ns().saturating_add(half);
        let _ = LOOK_AT.compare_exchange(0, due, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Before a sleep: looks, if that is due, and returns how long the sleep may last, nanoseconds. `None`: as
/// long as it likes. Nothing is locked.
#[inline]
pub(crate) fn before_sleep() -> Option<u64> {
    match LOOK_AT.load(Ordering::Relaxed) {
        0 => None,
        due => limit(due),
    }
}

#[cold]
fn limit(due: u64) -> Option<u64> {
    let now = monotonic_ns();
    if now < due {
        return Some(due - now);
    }
    if process::is_retired() {
        return None; // nobody looks any more
    }
    let half = half_silence_ns()?;
    let next = now.saturating_add(half);
    // One thread looks; the others sleep until the next time.
    if LOOK_AT.compare_exchange(due, next, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
        look(now, next);
    }
    match LOOK_AT.load(Ordering::SeqCst) {
        0 => None,
        due => Some(due.saturating_sub(now)),
    }
}

/// Walks over the rings that were touched. `next` is when the next look is due unless this one says
/// otherwise.
fn look(now: u64, next: u64) {
    let mut givers = 0;
    for (number, word) in TOUCHED.iter().enumerate() {
        let mut bits = word.load(Ordering::SeqCst);
        while bits != 0 {
            let index = (number * 64) as u32 + bits.trailing_zeros();
            let bit = bits & bits.wrapping_neg();
            bits &= !bit;
            let Some(conn) = conn::get(index).filter(|conn| conn.acquire_live(Half::Send)) else {
                word.fetch_and(!bit, Ordering::SeqCst);
                continue;
            };
            if conn.has(Pages::Bulky) {
                // It sent since the last look: its pages are returned at the next one, if it sends
                // nothing until then.
                conn.flags.remove(Pages::Bulky, Ordering::SeqCst);
            } else if givers < GIVERS_MAX {
                givers += 1;
                // Before: a sender that touches pages meanwhile sets it again.
                word.fetch_and(!bit, Ordering::SeqCst);
                reclaim(conn);
            }
            conn.release(Half::Send);
        }
    }
    if givers == GIVERS_MAX {
        let _ = LOOK_AT.compare_exchange(next, now + SOON_NS, Ordering::SeqCst, Ordering::Relaxed);
        return;
    }
    let any = || TOUCHED.iter().any(|word| word.load(Ordering::SeqCst) != 0);
    if any() || LOOK_AT.compare_exchange(next, 0, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return;
    }
    // A sender that noted something since the look at the bits may have found that a thread would
    // look.
    if any() {
        let _ = LOOK_AT.compare_exchange(0, next, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Returns what this end's ring has free, piece by piece: the lock is free in between.
fn reclaim(conn: &Conn) {
    let Some(segment) = conn.segment() else { return };
    let mut offset = 0;
    while offset < u64::from(segment.ring_bytes()) && !conn.has(Pages::Bulky.with(Limits::Hostile))
    {
        let given = send::with_source(conn, |source, _, _, _| {
            // An impossible cursor is the next call's to report.
            source.tx.reclaim(offset).map_err(|_| Errno(libc::EPROTO))
        });
        match given {
            Ok(Reclaimed::Bytes(_)) => offset += RECLAIM_MAX,
            Ok(Reclaimed::Refused) => return conn.set(Pages::Kept),
            Err(_) => return,
        }
    }
}

/// In a fork child: the parent returns the pages that were touched.
pub(crate) fn forget() {
    if !HAS_TOUCHED.load(Ordering::Relaxed) {
        return; // most processes: a child would look at each word
    }
    for (number, word) in TOUCHED.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        if bits == 0 {
            continue; // without a write, which would copy the page
        }
        word.store(0, Ordering::Relaxed);
        while bits != 0 {
            if let Some(conn) = conn::get((number * 64) as u32 + bits.trailing_zeros()) {
                conn.flags.remove(Pages::Bulky, Ordering::Relaxed);
            }
            bits &= bits - 1;
        }
    }
    if LOOK_AT.load(Ordering::Relaxed) != 0 {
        LOOK_AT.store(0, Ordering::Relaxed);
    }
}

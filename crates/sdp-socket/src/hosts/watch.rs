//! A message that is lost without a word from the device is noticed by time: by the sender's next
//! call, or by a reader, which comes back for it. A reader that fell asleep before another thread
//! sent knows of no time: it is woken once, and comes back by itself while such a pair of threads
//! goes on.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sdp_sys::time::monotonic_ns;

use super::pair::Pair;
use crate::{conn::Conn, wake::doorbell};

/// How often a reader of a busy connection comes back, and for how long after it had to be woken.
const SLEEP_NS: u64 = 300_000_000;
const BUSY_NS: u64 = 1_000_000_000;

/// Of one connection.
#[derive(Debug)]
pub(super) struct Watch {
    /// A reader sleeps, and does not come back by itself.
    is_asleep: AtomicBool,
    /// When one had to be woken last, in nanoseconds.
    woken_ns: AtomicU64,
}

impl Watch {
    /// Of a connection that has just begun.
    pub(super) fn begin(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
        self.woken_ns.store(0, Ordering::Relaxed);
    }

    /// Before a reader sleeps: when it comes back by itself, after `bound` at the latest.
    /// [`must_stay_awake`] follows.
    pub(super) fn sleep(&self, bound: Option<u64>) -> Option<u64> {
        if bound.is_some() {
            return bound;
        }
        let woken = self.woken_ns.load(Ordering::Relaxed);
        if woken != 0 && monotonic_ns().saturating_sub(woken) < BUSY_NS {
            return Some(SLEEP_NS);
        }
        self.is_asleep.store(true, Ordering::Release);
        None
    }

    /// It sleeps no more.
    pub(super) fn wake(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

/// A reader that is about to sleep for any time: whether something was sent since it looked. Under
/// the lock of the sending half: a message sent behind it finds [`Watch::is_asleep`].
pub(super) fn must_stay_awake(conn: &Conn, pair: &Pair) -> bool {
    pair.watch.is_asleep.load(Ordering::Relaxed)
        && pair.sending(conn, |sending, _| {
            sending.outbound.as_ref().is_some_and(|half| half.must_watch())
        }) == Some(true)
}

/// After a send, the lock of its half given back: a reader that would not come back does.
#[inline]
pub(super) fn sent(conn: &Conn, pair: &Pair) {
    if pair.watch.is_asleep.load(Ordering::Acquire)
        && pair.watch.is_asleep.swap(false, Ordering::AcqRel)
    {
        pair.watch.woken_ns.store(monotonic_ns(), Ordering::Relaxed);
        doorbell::signal_self(conn.index());
    }
}

//! Counters that only threads of one process change.
//!
//! A locked instruction costs as much as a dozen others, and more where stores before it are still
//! on their way to a cache line of another CPU. A process with a single thread needs none: a signal
//! handler in the middle of an addition has its change to the counter undone (a call that uses a
//! connection) or lost (a statistic of a call that a handler makes within a call) but never torn.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::pid::is_single_threaded;

/// How to count: found out once for several counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// No other thread counts: by a load and a store.
    Exclusive,
    /// Other threads may count: by locked instructions.
    Atomic,
}

impl Counting {
    /// The way that is allowed now. Valid until this thread makes another one: not across a sleep.
    #[inline(always)]
    pub fn now() -> Self {
        if is_single_threaded() { Self::Exclusive } else { Self::Atomic }
    }

    /// Whether no other thread counts.
    #[inline(always)]
    pub const fn is_single(self) -> bool {
        matches!(self, Self::Exclusive)
    }

    /// Adds `n`, wrapping, and returns the value before. Sequentially consistent among threads.
    #[inline(always)]
    pub fn add(self, counter: &AtomicU32, n: u32) -> u32 {
        if self.is_single() {
            let before = counter.load(Relaxed);
            counter.store(before.wrapping_add(n), Relaxed);
            return before;
        }
        counter.fetch_add(n, SeqCst)
    }

    /// Subtracts `n`, wrapping; as [`Counting::add`].
    #[inline(always)]
    pub fn sub(self, counter: &AtomicU32, n: u32) -> u32 {
        self.add(counter, n.wrapping_neg())
    }

    /// Adds `n`, wrapping, in no order.
    #[inline(always)]
    pub fn add_wide(self, counter: &AtomicU64, n: u64) {
        if self.is_single() {
            counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            counter.fetch_add(n, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_with_one_thread_and_with_several() {
        let (narrow, wide) = (AtomicU32::new(0), AtomicU64::new(u64::MAX));
        assert_eq!(Counting::now().add(&narrow, 3), 0);
        assert_eq!(Counting::now().sub(&narrow, 1), 3);
        Counting::now().add_wide(&wide, 2);
        assert_eq!((narrow.load(Relaxed), wide.load(Relaxed)), (2, 1));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        Counting::now().add(&narrow, 1);
                        Counting::now().add_wide(&wide, 1);
                    }
                });
            }
        });
        assert_eq!((narrow.load(Relaxed), wide.load(Relaxed)), (40_002, 40_001));
    }
}

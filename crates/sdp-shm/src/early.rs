//! Early sleepers: threads that fell asleep on a connection before it had an arm word.
//!
//! Used by an end that tells its peer that every thread asleep at it has armed (O10). A thread that
//! is about to wait for candidates marks them, counts itself, and then looks whether one of them
//! has got lanes meanwhile; a thread that gets lanes for a connection publishes that and then looks
//! at mark and count. The mark belongs to a connection, the count to the process: it is not
//! recorded which thread sleeps for which connection, so a single early sleeper counts for all
//! marked connections. It refuses to wake any thread.
//!
//! ```text
//! sleeper                                    end that gets lanes
//! Y1  mark each connection, count            Z1  publish that the connection has lanes
//! Y2  fence (seq_cst)                        Z2  fence (seq_cst)
//! Y3  has one got lanes? then arm            Z3  marked, and somebody counted? then say nothing
//! Y4  sleep, then discount
//! ```
//!
//! # Ordering
//! Y2 pairs with Z2 (store buffering): either Y3 sees the lanes or Z3 sees mark and count. A thread that
//! never comes back from its sleep stays counted, which costs wake bytes, not wake-ups.

use core::sync::atomic::Ordering;

use crate::sync::{AtomicU32, fence};

/// Marks a connection by `bit` of its `flags` (Y1).
#[inline]
pub fn mark(flags: &AtomicU32, bit: u32) {
    if flags.load(Ordering::Relaxed) & bit == 0 {
        flags.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Counts the calling thread, when all that it waits for is marked (Y1, Y2). Look whether anything has lanes
/// before sleeping.
#[inline]
pub fn fall_asleep(count: &AtomicU32) {
    count.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst); // Y2, pairs with Z2 in `is_nobody_asleep`
}

/// The calling thread sleeps no more (Y4).
#[inline]
pub fn wake_up(count: &AtomicU32) {
    count.fetch_add(1u32.wrapping_neg(), Ordering::Relaxed);
}

/// Whether no thread can be asleep early on the connection with these flags, whose lanes are
/// published (Z2, Z3).
#[inline]
pub fn is_nobody_asleep(flags: &AtomicU32, bit: u32, count: &AtomicU32) -> bool {
    fence(Ordering::SeqCst); // Z2, pairs with Y2 in `fall_asleep`
    flags.load(Ordering::Relaxed) & bit == 0 || count.load(Ordering::Relaxed) == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_marked_connections_mind_a_sleeper() {
        const BIT: u32 = 4;
        let (count, marked, other) = (AtomicU32::new(0), AtomicU32::new(1), AtomicU32::new(1));
        mark(&marked, BIT);
        mark(&marked, BIT);
        assert_eq!(marked.load(Ordering::Relaxed), 1 | BIT);
        assert!(is_nobody_asleep(&marked, BIT, &count));
        fall_asleep(&count);
        assert!(!is_nobody_asleep(&marked, BIT, &count));
        assert!(is_nobody_asleep(&other, BIT, &count));
        wake_up(&count);
        assert!(is_nobody_asleep(&marked, BIT, &count));
    }
}

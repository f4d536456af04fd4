//! Arm words: how a sleeper says that it wants to be woken, and how the waker finds out.
//!
//! A word is `sequence << 2 | mode`. The sleeper (of the receive arm: the consumer; of the space arm:
//! the producer) writes it; the waker clears the mode after it has rung.
//!
//! ```text
//! waker                                     sleeper
//! W1  publish (release)                     S1  arm: new sequence, mode
//! W2  fence (seq_cst)                       S2  fence (seq_cst)
//! W3  seen = word                           S3  look again: something there? do not sleep
//! W4  if mode(seen): ring                   S4  sleep on what is remembered until consumed
//! W5  compare-and-swap seen -> seen without mode
//! ```
//!
//! # Ordering
//! W2 pairs with S2 (store buffering): either W3 sees the arm or S3 sees the published bytes.
//! Dropping either fence loses a wake-up. W4 comes before W5, so that a waker killed between the
//! two leaves the word armed and the next writer rings. W5 is a compare-and-swap and S1 always
//! takes a new sequence, so that a late W5 cannot wipe out a newer arm.

use core::sync::atomic::Ordering;

use crate::sync::{AtomicU32, fence};

/// How the sleeper is to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One byte on the carrier: wakes every thread that waits there, and costs as much as TCP.
    Carrier,
    /// The process's doorbell page and eventfd.
    Doorbell,
}

const NONE: u32 = 0;
const CARRIER: u32 = 1;
const DOORBELL: u32 = 2;
const MODE_MASK: u32 = 3;

/// Arms the word (S1, S2). When the word is still armed in another mode, the carrier mode is written,
/// because it reaches every sleeper.
#[inline]
pub fn arm(word: &AtomicU32, mode: Mode) {
    let wanted = match mode {
        Mode::Carrier => CARRIER,
        Mode::Doorbell => DOORBELL,
    };
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let old_mode = seen & MODE_MASK;
        let mode = if old_mode == NONE || old_mode == wanted { wanted } else { CARRIER };
        let next = ((seen >> 2).wrapping_add(1) << 2) | mode;
        match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => seen = now,
        }
    }
    fence(Ordering::SeqCst); // S2, pairs with W2 in `check`
}

/// Whether the word is armed, without ordering: a hint to avoid arming twice.
#[inline]
pub fn is_armed(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) & MODE_MASK != NONE
}

/// The value of the word that a waker saw, to be given to [`disarm`] after the wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen(u32);

impl Seen {
    /// The word, for a caller that keeps it as a number.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// The opposite of [`Seen::word`]. Any other number disarms nothing, or an arm that is like it.
    #[inline(always)]
    pub const fn of(word: u32) -> Self {
        Self(word)
    }
}

/// After publishing: looks at the word (W2, W3). `None`: no thread waits.
#[inline]
pub fn check(word: &AtomicU32) -> Option<(Mode, Seen)> {
    fence(Ordering::SeqCst); // W2, pairs with S2 in `arm`
    look(word)
}

#[inline(always)]
fn look(word: &AtomicU32) -> Option<(Mode, Seen)> {
    let seen = word.load(Ordering::Relaxed);
    match seen & MODE_MASK {
        NONE => None,
        DOORBELL => Some((Mode::Doorbell, Seen(seen))),
        _ => Some((Mode::Carrier, Seen(seen))), // a hostile 3 included: a wake byte always works
    }
}

/// Gives a gate back (stores 0 there) and then looks at the word (W2, W3), at the price of one barrier where
/// the processor's exchange is one.
#[inline(always)]
pub fn release_and_check(gate: &AtomicU32, word: &AtomicU32) -> Option<(Mode, Seen)> {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        gate.swap(0, Ordering::SeqCst); // W2: no load passes a locked instruction here
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        look(word)
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    {
        gate.store(0, Ordering::Release);
        check(word)
    }
}

/// After ringing (W5): clears the arm that was answered, and no newer one.
#[inline]
pub fn disarm(word: &AtomicU32, seen: Seen) {
    let _ =
        word.compare_exchange(seen.0, seen.0 & !MODE_MASK, Ordering::Release, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn late_disarm_leaves_a_newer_arm_alone() {
        let word = AtomicU32::new(0);
        arm(&word, Mode::Doorbell);
        let (mode, seen) = check(&word).expect("armed");
        assert_eq!(mode, Mode::Doorbell);
        arm(&word, Mode::Doorbell);
        disarm(&word, seen);
        assert!(is_armed(&word));
        let (_, seen) = check(&word).expect("still armed");
        disarm(&word, seen);
        assert!(check(&word).is_none());
    }

    #[test]
    fn two_modes_in_one_word_become_the_one_that_reaches_everybody() {
        let word = AtomicU32::new(0);
        arm(&word, Mode::Doorbell);
        arm(&word, Mode::Carrier);
        assert_eq!(check(&word).expect("armed").0, Mode::Carrier);
        arm(&word, Mode::Doorbell);
        assert_eq!(check(&word).expect("armed").0, Mode::Carrier);
    }

    #[test]
    fn sequence_wraps() {
        let word = AtomicU32::new(!MODE_MASK);
        arm(&word, Mode::Doorbell);
        assert_eq!(word.load(Ordering::Relaxed), DOORBELL);
    }
}

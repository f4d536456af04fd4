//! Doorbell page: shows which of the owner's connections have news, and whether a thread of the
//! owner sleeps.
//!
//! One page of bits per process, shared with every process it talks to. A producer that finds an
//! arm word in doorbell mode sets the connection's bit; only when one of the owner's threads sleeps
//! does it also write the owner's eventfd. An event loop that is busy thus learns of new data
//! without a system call on either side.
//!
//! Bits are hints: the owner looks at the ring before it believes anything, and ignores bits of
//! slots it does not use, so a hostile peer can waste time, nothing else.
//!
//! # Ordering
//! * word bit, then summary bit (producer) against summary swap, then word swap (owner): a bit set
//!   after the owner's word swap finds the word zero and sets the summary again. No bit is lost. A
//!   producer that finds other bits in the word looks whether the summary has its bit, and sets it
//!   otherwise: the producer that set the others may have been killed between the two steps.
//! * bit, fence, `sleepers` (producer) against `sleepers`, fence, bits (owner): store buffering
//!   again, either the producer sees the sleeper or the owner sees the bit.

use core::{mem::size_of, ptr::NonNull, sync::atomic::Ordering};

use crate::sync::{AtomicU32, AtomicU64, MODELLED, fence};

/// Bytes of a doorbell page memfd.
pub const DOORBELL_BYTES: usize = 8192;
/// Connections that one process can have on doorbells; those beyond use wake bytes.
pub const DOORBELL_SLOTS: u32 = if MODELLED { 128 } else { 32_768 };
const WORDS: usize = DOORBELL_SLOTS as usize / 64;
const SUMMARY: usize = WORDS.div_ceil(64);

/// The page.
#[repr(C, align(128))]
pub struct DoorbellPage {
    sleepers: AtomicU32,
    rings: AtomicU32,
    pad: [AtomicU32; 30],
    summary: [AtomicU64; SUMMARY],
    pad2: [AtomicU64; 8],
    bits: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<DoorbellPage>() <= DOORBELL_BYTES);

#[cfg(all(test, loom))]
impl DoorbellPage {
    pub(crate) fn for_model() -> Self {
        Self {
            sleepers: AtomicU32::new(0),
            rings: AtomicU32::new(0),
            pad: core::array::from_fn(|_| AtomicU32::new(0)),
            summary: core::array::from_fn(|_| AtomicU64::new(0)),
            pad2: core::array::from_fn(|_| AtomicU64::new(0)),
            bits: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// A mapped doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell(NonNull<DoorbellPage>);

// SAFETY: the page consists of atomics.
unsafe impl Send for Doorbell {}
// SAFETY: the page consists of atomics, which any threads may use at once.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    /// Describes a mapping of [`DOORBELL_BYTES`] bytes.
    ///
    /// # Safety
    /// The mapping is readable, writable, page aligned, cannot shrink, and stays mapped for as long
    /// as any copy of the value is used.
    pub const unsafe fn new(base: NonNull<u8>) -> Self {
        Self(base.cast())
    }

    /// First byte of the mapping.
    pub const fn base(self) -> NonNull<u8> {
        self.0.cast()
    }

    #[inline]
    fn page(&self) -> &DoorbellPage {
        // SAFETY: `new`'s contract; atomics only.
        unsafe { self.0.as_ref() }
    }

    /// Producer: sets the bit of `slot`. True when the owner's eventfd must be written too.
    #[inline]
    pub fn ring(self, slot: u32) -> bool {
        let page = self.page();
        let word = slot as usize / 64;
        let Some(bits) = page.bits.get(word) else { return true };
        let before = bits.fetch_or(1 << (slot % 64), Ordering::SeqCst);
        if let Some(summary) = page.summary.get(word / 64) {
            let bit = 1 << (word % 64);
            // Others' bits do not mean that the summary is set: the producer that set them may have
            // been stopped or killed right here.
            if before == 0 || summary.load(Ordering::Relaxed) & bit == 0 {
                summary.fetch_or(bit, Ordering::SeqCst);
            }
        }
        fence(Ordering::SeqCst);
        page.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Producer, before it writes to a foreign doorbell whose owner must read the written bytes
    /// out.
    #[inline]
    pub fn count_ring(self) {
        self.page().rings.fetch_add(1, Ordering::SeqCst);
    }

    /// Owner: how often producers have counted, modulo 2³² (a hint; the word is writable by peers).
    #[inline]
    pub fn rings(self) -> u32 {
        self.page().rings.load(Ordering::Acquire)
    }

    /// Owner: announces a sleeper. Look at the bits again before sleeping.
    #[inline]
    pub fn fall_asleep(self) {
        self.page().sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Owner: one sleeper less.
    #[inline]
    pub fn wake_up(self) {
        let _ = self
            .page()
            .sleepers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(1)));
    }

    /// Owner: threads now asleep (a hint; the word is writable by peers).
    #[inline]
    pub fn sleepers(self) -> u32 {
        self.page().sleepers.load(Ordering::Relaxed)
    }

    /// Owner, in a fork child or after start: no thread sleeps.
    pub fn reset(self) {
        self.page().sleepers.store(0, Ordering::Relaxed);
    }

    /// Owner: whether any bit is set.
    #[inline]
    pub fn any(self) -> bool {
        self.page().summary.iter().any(|s| s.load(Ordering::Relaxed) != 0)
    }

    /// Owner: takes all bits and calls `each` with every slot that was set.
    #[inline]
    pub fn take(self, mut each: impl FnMut(u32)) {
        let page = self.page();
        for (i, summary) in page.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let words = summary.swap(0, Ordering::SeqCst);
            self.take_words(i, words, |_| u64::MAX, &mut each);
        }
    }

    fn take_words(
        self,
        i: usize,
        mut words: u64,
        mask: impl Fn(usize) -> u64,
        each: &mut impl FnMut(u32),
    ) {
        while words != 0 {
            let word = i * 64 + words.trailing_zeros() as usize;
            words &= words - 1;
            let Some(bits) = self.page().bits.get(word) else { continue };
            let mut set = bits.swap(0, Ordering::SeqCst) & mask(word);
            while set != 0 {
                each(word as u32 * 64 + set.trailing_zeros());
                set &= set - 1;
            }
        }
    }

    #[cfg(not(all(test, loom)))]
    /// Owner: whether a bit may be set among those of some slots.
    #[inline]
    pub fn any_of(self, slots: &Slots) -> bool {
        let mut summaries = self.page().summary.iter().zip(&slots.summary);
        summaries.any(|(s, mask)| s.load(Ordering::Relaxed) & mask.load(Ordering::Relaxed) != 0)
    }

    #[cfg(not(all(test, loom)))]
    /// [`Doorbell::take`] of some slots. Words with none of them are not looked at, so that
    /// whatever stands there costs nothing.
    pub fn take_of(self, slots: &Slots, mut each: impl FnMut(u32)) {
        let page = self.page();
        for (i, (summary, mask)) in page.summary.iter().zip(&slots.summary).enumerate() {
            let mask = mask.load(Ordering::Relaxed);
            if summary.load(Ordering::Relaxed) & mask != 0 {
                let words = summary.fetch_and(!mask, Ordering::SeqCst) & mask;
                self.take_words(i, words, |word| slots.word(word), &mut each);
            }
        }
    }
}

#[cfg(not(all(test, loom)))]
/// Some of a page's slots, in memory of the owner's alone.
#[derive(Debug)]
pub struct Slots {
    summary: [AtomicU64; SUMMARY],
    bits: [AtomicU64; WORDS],
}

#[cfg(not(all(test, loom)))]
impl Slots {
    /// None.
    pub const fn new() -> Self {
        Self {
            summary: [const { AtomicU64::new(0) }; SUMMARY],
            bits: [const { AtomicU64::new(0) }; WORDS],
        }
    }
}

#[cfg(not(all(test, loom)))]
impl Default for Slots {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(all(test, loom)))]
impl Slots {
    fn word(&self, word: usize) -> u64 {
        self.bits.get(word).map_or(0, |bits| bits.load(Ordering::Relaxed))
    }

    /// Puts a slot in, before its bit can be set.
    pub fn add(&self, slot: u32) {
        let word = slot as usize / 64;
        if let (Some(bits), Some(summary)) = (self.bits.get(word), self.summary.get(word / 64)) {
            bits.fetch_or(1 << (slot % 64), Ordering::SeqCst);
            summary.fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }

    /// Takes it out. (The word is looked at from then on, which does no harm.)
    pub fn remove(&self, slot: u32) {
        if let Some(bits) = self.bits.get(slot as usize / 64) {
            bits.fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
        }
    }

    /// Takes all out.
    pub fn clear(&self) {
        for word in self.summary.iter().chain(&self.bits) {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn page() -> Doorbell {
        // SAFETY: zeros of this size, aligned to a page; leaked, so that they outlive every copy.
        unsafe { Doorbell::new(crate::leaked(DOORBELL_BYTES)) }
    }

    #[test]
    fn bits_come_out_once() {
        let doorbell = page();
        assert!(!doorbell.ring(5));
        assert!(!doorbell.ring(DOORBELL_SLOTS - 1));
        assert!(!doorbell.ring(64));
        let mut got = std::vec::Vec::new();
        doorbell.take(|slot| got.push(slot));
        assert_eq!(got, [5, 64, DOORBELL_SLOTS - 1]);
        assert!(!doorbell.any());
        doorbell.take(|_| panic!("taken twice"));
    }

    #[test]
    fn eventfd_is_written_only_for_sleepers() {
        let doorbell = page();
        assert!(!doorbell.ring(1));
        doorbell.fall_asleep();
        assert!(doorbell.ring(2));
        doorbell.wake_up();
        assert!(!doorbell.ring(3));
        doorbell.wake_up();
        assert_eq!(doorbell.sleepers(), 0, "never wraps");
    }

    #[test]
    fn only_some_slots_are_asked_for() {
        static SLOTS: Slots = Slots::new();
        let doorbell = page();
        SLOTS.add(70);
        SLOTS.add(DOORBELL_SLOTS - 1);
        for slot in [5, 71, 70, DOORBELL_SLOTS - 1] {
            doorbell.ring(slot);
        }
        let mut got = std::vec::Vec::new();
        assert!(doorbell.any_of(&SLOTS));
        doorbell.take_of(&SLOTS, |slot| got.push(slot));
        assert_eq!(got, [70, DOORBELL_SLOTS - 1]);
        assert!(doorbell.any() && !doorbell.any_of(&SLOTS));
        SLOTS.remove(70);
        doorbell.ring(70);
        doorbell.take_of(&SLOTS, |_| panic!("not asked for"));
        SLOTS.clear();
        doorbell.ring(DOORBELL_SLOTS - 1);
        assert!(!doorbell.any_of(&SLOTS));
    }

    #[test]
    fn a_slot_beyond_the_page_always_rings() {
        assert!(page().ring(DOORBELL_SLOTS));
    }
}

//! Bell page: how a peer process says which of our connections has something, and whether anybody
//! sleeps.
//!
//! One page of bits per process, shared with every process it talks to. A producer that finds an arm
//! word in bell mode sets the connection's bit; only when somebody of the owner's threads sleeps does
//! it also write the owner's eventfd. An event loop that is busy thus learns of new data without a
//! system call on either side.
//!
//! Bits are hints: the owner looks at the ring before it believes anything, and ignores bits of slots
//! it does not use, so a hostile peer can waste time, nothing else.
//!
//! # Ordering
//! * word bit, then summary bit (producer) against summary swap, then word swap (owner): a bit set
//!   after the owner's word swap finds the word zero and sets the summary again. No bit is lost.
//!   A producer that finds other bits in the word looks whether the summary has its bit, and sets it
//!   otherwise: who set the others may have been killed between the two steps.
//! * bit, fence, `sleepers` (producer) against `sleepers`, fence, bits (owner): store buffering again,
//!   either the producer sees the sleeper or the owner sees the bit.

use core::{mem::size_of, ptr::NonNull, sync::atomic::Ordering};

use crate::sync::{AtomicU32, AtomicU64, MODELLED, fence};

/// Bytes of a bell page memfd.
pub const BELL_BYTES: usize = 8192;
/// Connections that one process can have on bells; those beyond use carrier bells.
pub const BELL_SLOTS: u32 = if MODELLED { 128 } else { 32_768 };
const WORDS: usize = BELL_SLOTS as usize / 64;
const SUMMARY: usize = WORDS.div_ceil(64);

/// The page.
#[repr(C, align(128))]
pub struct BellPage {
    sleepers: AtomicU32,
    rings: AtomicU32,
    pad: [AtomicU32; 30],
    summary: [AtomicU64; SUMMARY],
    pad2: [AtomicU64; 8],
    bits: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<BellPage>() <= BELL_BYTES);

#[cfg(all(test, loom))]
impl BellPage {
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

/// A mapped bell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell(NonNull<BellPage>);

// SAFETY: the page consists of atomics.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    /// Describes a mapping of [`BELL_BYTES`] bytes.
    ///
    /// # Safety
    /// The mapping is readable, writable, page aligned, cannot shrink, and stays mapped for as long as
    /// any copy of the value is used.
    pub const unsafe fn new(base: NonNull<u8>) -> Self {
        Self(base.cast())
    }

    /// First byte of the mapping.
    pub const fn base(self) -> NonNull<u8> {
        self.0.cast()
    }

    #[inline]
    fn page(&self) -> &BellPage {
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
            // Others' bits do not mean that the summary is set: who set them may have been stopped or
            // killed right here.
            if before == 0 || summary.load(Ordering::Relaxed) & bit == 0 {
                summary.fetch_or(bit, Ordering::SeqCst);
            }
        }
        fence(Ordering::SeqCst);
        page.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Producer, before it writes to a doorbell whose owner must take out what is written.
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

    /// Owner, in a fork child or after start: nobody sleeps.
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
            let mut words = summary.swap(0, Ordering::SeqCst);
            while words != 0 {
                let word = i * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let Some(bits) = page.bits.get(word) else { continue };
                let mut set = bits.swap(0, Ordering::SeqCst);
                while set != 0 {
                    each(word as u32 * 64 + set.trailing_zeros());
                    set &= set - 1;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn page() -> Bell {
        let layout = std::alloc::Layout::from_size_align(BELL_BYTES, 4096).unwrap();
        // SAFETY: non-zero size; leaked, so it outlives every copy.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        // SAFETY: just allocated with the size and alignment asked for.
        unsafe { Bell::new(NonNull::new(base).unwrap()) }
    }

    #[test]
    fn bits_come_out_once() {
        let bell = page();
        assert!(!bell.ring(5));
        assert!(!bell.ring(BELL_SLOTS - 1));
        assert!(!bell.ring(64));
        let mut got = std::vec::Vec::new();
        bell.take(|slot| got.push(slot));
        assert_eq!(got, [5, 64, BELL_SLOTS - 1]);
        assert!(!bell.any());
        bell.take(|_| panic!("taken twice"));
    }

    #[test]
    fn eventfd_is_written_only_for_sleepers() {
        let bell = page();
        assert!(!bell.ring(1));
        bell.fall_asleep();
        assert!(bell.ring(2));
        bell.wake_up();
        assert!(!bell.ring(3));
        bell.wake_up();
        assert_eq!(bell.sleepers(), 0, "never wraps");
    }

    #[test]
    fn a_slot_beyond_the_page_always_rings() {
        assert!(page().ring(BELL_SLOTS));
    }
}

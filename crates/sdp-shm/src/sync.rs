//! The one door through which this crate's structures get atomics, fences, sleeping and death.
//!
//! In every build but one these are the processor's and the kernel's, by name and without a layer
//! in between. When the models are built (`--cfg loom`, only under `cfg(test)`), the same names are
//! the stand-ins of `model`: atomics whose every legal reordering is explored, and whose ordering a
//! model can weaken at one place of the real code. The bytes in the ring itself are not atomic;
//! [`ring_write`] and [`ring_read`] report accesses to a model, and are nothing otherwise. Family
//! memory does not pass through here: it is only used under its lock.

#[cfg(all(test, loom))]
pub(crate) use crate::model::stand_in::{
    AtomicU32, AtomicU64, MODELLED, fence, futex_wait, futex_wake, is_dead, is_stopped, ring_read,
    ring_write,
};
#[cfg(not(all(test, loom)))]
pub(crate) use real::*;

#[cfg(not(all(test, loom)))]
mod real {
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};

    pub(crate) use sdp_sys::pid::{is_dead, is_stopped};
    use sdp_sys::sys;

    use crate::layout::Segment;

    /// Whether this is a build of the models: sizes are small then.
    pub(crate) const MODELLED: bool = false;

    /// Sleeps while `word` has the value `seen`, at most `ns` nanoseconds (below a second). True
    /// when another thread woke this one.
    pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, ns: i64) -> bool {
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: ns };
        // SAFETY: word and timeout outlive the call. Not FUTEX_PRIVATE: the word is shared.
        unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const timeout) }
            .is_ok()
    }

    /// Wakes one that sleeps on `word`.
    #[inline]
    pub(crate) fn futex_wake(word: &AtomicU32) {
        // SAFETY: the address is a live word; FUTEX_WAKE reads nothing through the other arguments.
        let _ = unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    /// Ring bytes `at .. at + len` are about to be written, or were.
    #[inline(always)]
    pub(crate) fn ring_write(_: Segment, _at: usize, _len: usize) {}

    /// Ring bytes `at .. at + len` are about to be read.
    #[inline(always)]
    pub(crate) fn ring_read(_: Segment, _at: usize, _len: usize) {}
}

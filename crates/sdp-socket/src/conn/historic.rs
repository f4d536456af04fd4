//! Properties of a socket that the kernel does not report. The historic SDP ones: whether the
//! program asked for one by its family, and the values of their two options. And time limits of a
//! negative number of seconds, which the kernel obeys as "do not wait" and reports as "for ever".
//! One word, so that the slots keep their size; it is copied by fork, and lost where the socket goes
//! on in a new image.

use core::sync::atomic::{AtomicU32, Ordering};

use super::Half;

/// The word: bits 0 to 20 the threshold plus one, 0 where none is set; 21 to 28 the error of the last `bind`; 29 and 30
/// whether receives and sends do not wait; 31 whether the socket was asked for as an SDP one.
#[derive(Debug)]
pub(crate) struct Historic(AtomicU32);

/// `AF_INET_SDP`. (`AF_IB`, which has no sockets.)
pub(crate) const IPV4: libc::c_int = 27;
/// Most that a threshold may be, in bytes.
pub(crate) const THRESHOLD_MAX: u32 = 1 << 20;
const THRESHOLD: u32 = (1 << BIND_AT) - 1;
const BIND_AT: u32 = 21;
const BIND: u32 = 0xff;
/// Receives do not wait; sends: the bit above.
const AT_ONCE: u32 = 1 << 29;
const EXPLICIT: u32 = 1 << 31;

const _: () = assert!(THRESHOLD_MAX < THRESHOLD && BIND << BIND_AT & AT_ONCE == 0);
const _: () = assert!(AT_ONCE << (Half::Send as u32) & EXPLICIT == 0);

impl Historic {
    /// As a fresh socket has it.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// As another one has it: the socket goes on under a new slot.
    pub(crate) fn copy(&self, from: &Self) {
        self.0.store(from.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The program asked for an SDP socket.
    pub(crate) fn set_explicit(&self) {
        self.0.fetch_or(EXPLICIT, Ordering::Relaxed);
    }

    /// Whether it did.
    #[inline]
    pub(crate) fn is_explicit(&self) -> bool {
        self.0.load(Ordering::Relaxed) & EXPLICIT != 0
    }

    /// The program has set the time limit of a half: whether to a negative number of seconds.
    pub(crate) fn note_limit(&self, half: Half, is_negative: bool) {
        let bit = AT_ONCE << half as u32;
        self.change(bit, if is_negative { bit } else { 0 });
    }

    /// Whether that was the last time limit of the half.
    pub(crate) fn is_at_once(&self, half: Half) -> bool {
        self.0.load(Ordering::Relaxed) & AT_ONCE << half as u32 != 0
    }

    /// A connection has its time limits from its listener.
    pub(crate) fn inherit_limits(&self, listener: u32) {
        let bits = AT_ONCE | AT_ONCE << 1;
        self.change(bits, listener & bits);
    }

    /// The word, for [`Self::inherit_limits`].
    pub(crate) fn word(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// `SDP_ZCOPY_THRESH` in bytes, 0 never. `None`: not set.
    pub(crate) fn threshold(&self) -> Option<u32> {
        (self.0.load(Ordering::Relaxed) & THRESHOLD).checked_sub(1)
    }

    /// Sets it; the greatest there may be, for a greater one.
    pub(crate) fn set_threshold(&self, bytes: u32) {
        self.change(THRESHOLD, bytes.min(THRESHOLD_MAX) + 1);
    }

    /// Error number of the last `bind`, 0 for one that succeeded, or none.
    pub(crate) fn bind_error(&self) -> u32 {
        self.0.load(Ordering::Relaxed) >> BIND_AT & BIND
    }

    /// The result of the last `bind`, likewise.
    pub(crate) fn note_bind(&self, error: u32) {
        self.change(BIND << BIND_AT, (error & BIND) << BIND_AT);
    }

    fn change(&self, mask: u32, to: u32) {
        let changed = |word| Some(word & !mask | to);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_parts_do_not_touch_each_other() {
        let word = Historic(AtomicU32::new(0));
        assert_eq!((word.is_explicit(), word.threshold(), word.bind_error()), (false, None, 0));
        for (threshold, error) in [(0, 0), (THRESHOLD_MAX, 98), (4096, 255), (0, 99)] {
            word.set_threshold(threshold);
            word.note_bind(error);
            assert_eq!((word.threshold(), word.bind_error()), (Some(threshold), error));
            assert!(!word.is_explicit());
        }
        word.set_explicit();
        assert_eq!((word.threshold(), word.bind_error()), (Some(0), 99));
        word.note_limit(Half::Send, true);
        assert!(word.is_at_once(Half::Send) && !word.is_at_once(Half::Receive));
        let accepted = Historic(AtomicU32::new(0));
        accepted.inherit_limits(word.word());
        assert!(accepted.is_at_once(Half::Send) && !accepted.is_explicit());
        word.note_limit(Half::Receive, true);
        word.note_limit(Half::Send, false);
        assert!(word.is_at_once(Half::Receive) && !word.is_at_once(Half::Send));
        word.note_bind(0);
        word.set_threshold(u32::MAX);
        assert!(word.is_explicit());
        assert_eq!((word.threshold(), word.bind_error()), (Some(THRESHOLD_MAX), 0));
        let other = Historic(AtomicU32::new(7));
        other.copy(&word);
        assert!(other.is_explicit());
        word.reset();
        assert_eq!((word.is_explicit(), word.threshold()), (false, None));
    }
}

//! An end's statements about itself, in a segment.

use core::sync::atomic::Ordering;

use sdp_shm::layout::{CLOSED, EndLine, LEAVES, PASSED_ON, RESETS};

/// [`EndLine::intent`] of an end that wants the kernel lane, without more.
const CARRIER: u32 = 1;

/// What an end wants for its inbound half from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Either lane.
    Open,
    /// The kernel lane, for good.
    Carrier,
    /// The same, because its last descriptor is being closed: no process reads it any more.
    Closed,
    /// The same, and it never uses the link again: all that was unread is in the kernel's stream,
    /// or was never there. The other end may forget the link.
    PassedOn,
}

/// An end's statement about a reset of its carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetNote {
    /// Nothing.
    None,
    /// It resets on purpose, or was cut off: the cause is not unread wake bytes.
    Resets,
    /// Its process is about to become an image that closes it, without another word of the library.
    Leaves,
}

/// The words of one end. Its own process writes them; the other end reads.
#[derive(Clone, Copy)]
pub struct ShmEnd<'a>(pub(super) &'a EndLine);

impl ShmEnd<'_> {
    /// Whether it is attached.
    #[inline]
    pub fn is_attached(self) -> bool {
        self.0.attached.load(Ordering::Acquire) != 0
    }

    /// Says that it is. Before this nothing of the end means anything.
    pub fn attach(self) {
        self.0.attached.store(1, Ordering::Release);
    }

    /// Its intent. An unknown value is [`Intent::Carrier`].
    #[inline]
    pub fn intent(self) -> Intent {
        match self.0.intent.load(Ordering::SeqCst) {
            0 => Intent::Open,
            CLOSED => Intent::Closed,
            PASSED_ON => Intent::PassedOn,
            _ => Intent::Carrier,
        }
    }

    /// Whether it wants nothing in particular ([`Intent::Open`]).
    #[inline]
    pub fn is_open(self) -> bool {
        self.0.intent.load(Ordering::SeqCst) == 0
    }

    /// States its intent.
    pub fn intend(self, intent: Intent) {
        let word = match intent {
            Intent::Open => 0,
            Intent::Carrier => CARRIER,
            Intent::Closed => CLOSED,
            Intent::PassedOn => PASSED_ON,
        };
        self.0.intent.store(word, Ordering::SeqCst);
    }

    /// From [`Intent::Open`] to [`Intent::Closed`], under the gate of its inbound half: a producer
    /// that holds the gate and does not see it signals before the close. False when it had another
    /// one.
    pub fn close(self) -> bool {
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        let before = self.0.intent.compare_exchange(0, CLOSED, order.0, order.1);
        matches!(before, Ok(_) | Err(CLOSED))
    }

    /// Its statement about a reset. An unknown value is [`ResetNote::Resets`].
    pub fn reset_note(self) -> ResetNote {
        match self.0.reset.load(Ordering::SeqCst) {
            0 => ResetNote::None,
            LEAVES => ResetNote::Leaves,
            _ => ResetNote::Resets,
        }
    }

    /// Says it.
    pub fn note_reset(self, note: ResetNote) {
        let word = match note {
            ResetNote::None => 0,
            ResetNote::Resets => RESETS,
            ResetNote::Leaves => LEAVES,
        };
        self.0.reset.store(word, Ordering::SeqCst);
    }

    /// Says [`ResetNote::Leaves`], unless something was said before.
    pub fn note_leaving(self) {
        let _ = self.0.reset.compare_exchange(0, LEAVES, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// CPU on which it last ran, plus one; 0 unknown. A hint for spinning.
    #[inline]
    pub fn cpu(self) -> u32 {
        self.0.cpu.load(Ordering::Relaxed)
    }

    /// Notes the CPU, with a store only if it changed.
    #[inline]
    pub fn note_cpu(self, cpu: u32) {
        if self.cpu() != cpu {
            self.0.cpu.store(cpu, Ordering::Relaxed);
        }
    }

    /// Number of its carrier in its process, plus one; 0 unknown. A hint, verified by its user.
    pub fn socket(self) -> u32 {
        self.0.descriptor.load(Ordering::Relaxed)
    }

    /// Says so.
    pub fn note_socket(self, number_plus_one: u32) {
        self.0.descriptor.store(number_plus_one, Ordering::Relaxed);
    }
}

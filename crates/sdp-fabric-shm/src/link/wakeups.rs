//! How far a half has come, and which threads have to be woken for it.

use core::sync::atomic::Ordering;

use sdp_shm::arm::{self, Seen};

use super::ShmHalf;

/// The event that a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The consumer, for bytes.
    Bytes,
    /// The producer, for room.
    Space,
}

/// How a sleeper is to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By one byte on the carrier: wakes every thread that waits there, and costs as much as TCP.
    Carrier,
    /// By the process's doorbell.
    Doorbell,
}

/// A sleeper that a waker saw, for [`ShmHalf::disarm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Armed {
    /// How it is to be woken.
    pub how: How,
    /// The mark of this arm: a later one differs.
    pub mark: u32,
}

/// Positions and arms of one half (O1 to O10).
///
/// # Ordering
/// ```text
/// waker                                     sleeper
/// W1  moves a position (publishes, frees)   S1, S2  arm
/// W2, W3  armed                             S3  looks at the position again: it moved? does not sleep
/// W4  signals                               S4  sleeps on something that remembers the signal
/// W5  disarm
/// ```
/// Either W3 sees the arm or S3 sees the position. W4 comes before W5, so that a waker that is
/// killed in between leaves the arm for the next one; and a late W5 leaves a newer arm alone.
impl ShmHalf<'_> {
    /// The end of the published bytes ([`What::Bytes`]), or of the freed ones ([`What::Space`]), in
    /// bytes of the ring since it was attached. Changes with every event; takes no lock.
    #[inline]
    pub fn position(self, what: What) -> u64 {
        match what {
            What::Bytes => self.lines.producer.tail.load(Ordering::Acquire),
            What::Space => self.lines.consumer.head.load(Ordering::Acquire),
        }
    }

    /// Bytes of the ring that may be published and not freed.
    #[inline]
    pub fn size(self) -> u64 {
        u64::from(self.ring_bytes)
    }

    /// Bytes that could be published now; a glance. Not more than [`ShmHalf::size`], whatever the
    /// peer states.
    #[inline]
    pub fn free(self) -> u64 {
        let freed = self.position(What::Space);
        self.size().saturating_sub(self.position(What::Bytes).wrapping_sub(freed))
    }

    /// The sleeper (S1, S2).
    #[inline]
    pub fn arm(self, what: What, how: How) {
        let mode = match how {
            How::Carrier => arm::Mode::Carrier,
            How::Doorbell => arm::Mode::Doorbell,
        };
        arm::arm(&self.arm_line(what).word, mode);
    }

    /// The waker, after it moved a position (W2, W3). `None`: no thread waits.
    #[inline]
    pub fn armed(self, what: What) -> Option<Armed> {
        arm::check(&self.arm_line(what).word).map(armed)
    }

    /// The waker, after it signalled (W5).
    #[inline]
    pub fn disarm(self, what: What, armed: Armed) {
        arm::disarm(&self.arm_line(what).word, Seen::of(armed.mark));
    }

    /// The producer, before it signals: when, in ticks of the processor's clock.
    #[inline]
    pub fn note_signal(self, ticks: u64) {
        self.lines.receive_arm.rung_at.store(ticks, Ordering::Relaxed);
    }

    /// The consumer: when it was signalled last; 0 unknown. The peer's word, for the order of
    /// events.
    #[inline]
    pub fn signalled_at(self) -> u64 {
        self.lines.receive_arm.rung_at.load(Ordering::Relaxed)
    }
}

/// The result of a look at an arm word, in the terms of the seam.
#[inline(always)]
pub const fn armed((mode, seen): (arm::Mode, Seen)) -> Armed {
    let how = match mode {
        arm::Mode::Doorbell => How::Doorbell,
        arm::Mode::Carrier => How::Carrier,
    };
    Armed { how, mark: seen.word() }
}

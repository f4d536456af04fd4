//! How far a half has come, and which threads have to be woken for it.

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

/// A sleeper that a waker saw, for [`Wakeups::disarm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Armed {
    /// How it is to be woken.
    pub how: How,
    /// The fabric's mark of this arm: a later one differs.
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
pub trait Wakeups: Copy {
    /// The end of the published bytes ([`What::Bytes`]), or of the freed ones ([`What::Space`]), in
    /// bytes of the fabric since it was attached. Changes with every event; takes no lock.
    fn position(self, what: What) -> u64;
    /// Bytes of the fabric that may be published and not freed.
    fn size(self) -> u64;
    /// Bytes that could be published now; a glance. Not more than [`Wakeups::size`], whatever the
    /// peer states.
    fn free(self) -> u64 {
        let freed = self.position(What::Space);
        self.size().saturating_sub(self.position(What::Bytes).wrapping_sub(freed))
    }
    /// The sleeper (S1, S2).
    fn arm(self, what: What, how: How);
    /// The waker, after it moved a position (W2, W3). `None`: no thread waits, or the fabric wakes
    /// by itself.
    fn armed(self, what: What) -> Option<Armed>;
    /// The waker, after it signalled (W5).
    fn disarm(self, what: What, armed: Armed);
    /// The producer, before it signals: when, in ticks of the processor's clock.
    fn note_signal(self, ticks: u64);
    /// The consumer: when it was signalled last; 0 unknown. The peer's word, for the order of
    /// events.
    fn signalled_at(self) -> u64;
}

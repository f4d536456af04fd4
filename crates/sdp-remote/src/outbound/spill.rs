//! Bytes that go by the carrier because the other end made no room for too long, or its proof is to come.
//!
//! What the kernel has taken cannot be had back, and it takes megabytes at once. So few bytes go at
//! first, then the sender waits for room again; each wait in vain doubles them. A reader that was
//! late for a moment finds the sender on the queue pair again; a program that does not read at all
//! costs a few waits.

/// Bytes behind the first wait.
const FIRST: u64 = 64 * 1024;

/// The state of one sending half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spill {
    /// Bytes that may go before the next wait.
    left: u64,
    /// Bytes that a wait in vain allows; 0: bytes are not counted.
    next: u64,
    /// Messages with payload that had been posted then: with the next one a spill is over.
    messages: u64,
}

impl Spill {
    pub(super) const fn none() -> Self {
        Self { left: 0, next: 0, messages: 0 }
    }

    /// There was no room for too long (again). `messages`: those with payload that were posted.
    pub(super) fn allow(&mut self, messages: u64) {
        if self.messages != messages {
            *self = Self { messages, ..Self::none() };
        }
        self.left = self.next.max(FIRST);
        self.next = self.left.saturating_mul(2);
    }

    /// The half has left the queue pair: what was counted before it came there is over. `messages`: as
    /// above.
    pub(super) fn left_sdp(&mut self, messages: u64) {
        if self.messages != messages {
            *self = Self { messages, ..Self::none() };
        }
    }

    /// The kernel has taken bytes.
    pub(super) fn took(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }

    /// How many bytes may go before the next wait; `None`: no wait is due.
    pub(super) const fn left(self) -> Option<u64> {
        if self.next == 0 { None } else { Some(self.left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_in_vain_lets_twice_as_many_bytes_go() {
        let mut spill = Spill::none();
        assert_eq!(spill.left(), None);
        for piece in [FIRST, 2 * FIRST, 4 * FIRST] {
            spill.allow(7);
            assert_eq!(spill.left(), Some(piece));
            spill.took(piece as usize - 1);
            assert_eq!(spill.left(), Some(1));
            spill.took(2);
            assert_eq!(spill.left(), Some(0));
        }
        spill.left_sdp(7);
        assert_eq!(spill.left(), Some(0));
        spill.left_sdp(8);
        assert_eq!(spill.left(), None);
        spill.allow(8);
        assert_eq!(spill.left(), Some(FIRST));
    }
}

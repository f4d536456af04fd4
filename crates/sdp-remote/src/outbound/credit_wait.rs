//! How long a sender waits for room that the other end is to make, before its bytes go by the
//! carrier.

/// At first: a reader that wants a busy CPU is late by that.
const FIRST_NS: u64 = 100_000_000;
/// At most, where the other end has made room behind earlier waits: its program reads, and one of
/// several threads of it may be as late as that.
const LONGEST_NS: u64 = 400_000_000;
/// Longer for each byte that went by the carrier before the half came to the queue pair: the other
/// program reads the ring behind them, and where the kernel's buffers are large nothing tells of its
/// reads.
const CARRIER_BYTE_NS: u64 = 100;
/// And that at most.
const CARRIER_MOST_NS: u64 = 1_000_000_000;
/// Where this end has not read either what came since the wait began: both programs may be sending,
/// and TCP takes the bytes of both.
const SHORTEST_NS: u64 = 1_000_000;
/// What the other end frees of the ring without its program: messages of this library's own.
const CONTROLS: u32 = 16;
/// The other end reads on the carrier, if that allows this many bytes more.
const CARRIER_STEP: u64 = 16 * 1024;

/// The wait of one sending half for room, for the other end's proof, or for its invitation. It begins
/// anew with each piece of news that the other end makes room.
#[derive(Debug)]
pub(super) struct CreditWait {
    /// When it began, in nanoseconds.
    since: Option<u64>,
    /// The peer's last words about credit and room then.
    told: (u64, u32),
    /// Bytes that the carrier had taken when the half left a queue pair last.
    sent_then: u64,
    /// The half has been on this queue pair before.
    has_left: bool,
    /// The carrier's bytes from here on lie before those in the ring; `u64::MAX`: none are counted.
    read_to: u64,
    /// Bytes that the carrier allowed when the wait began.
    allowed: u64,
    /// Messages that this end's program had read then.
    read: u32,
    /// How long one is: longer behind one that was worth it, shorter behind one in vain.
    longest_ns: u64,
}

/// What a wait is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// What the other end has told of credit and room.
    pub(super) told: (u64, u32),
    /// Messages that came: those unread, and how many were read.
    pub(super) came: (u32, u32),
    /// Bytes that the carrier has taken.
    pub(super) carried: u64,
}

impl CreditWait {
    pub(super) const fn new() -> Self {
        Self {
            since: None,
            told: (0, 0),
            sent_then: 0,
            has_left: false,
            read_to: 0,
            allowed: 0,
            read: 0,
            longest_ns: FIRST_NS,
        }
    }

    /// Of a new queue pair. What went by the carrier since the last one may be unread.
    pub(super) const fn begin(&mut self) {
        let sent_then = self.sent_then;
        *self = Self { sent_then, read_to: sent_then, ..Self::new() };
    }

    /// Whether somebody waits.
    pub(super) const fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Nobody waits any more.
    pub(super) const fn stop(&mut self) {
        self.since = None;
    }

    /// The half leaves the queue pair, behind `carried` bytes that the carrier has taken.
    pub(super) const fn leave(&mut self, carried: u64) {
        (self.sent_then, self.has_left) = (carried, true);
    }

    /// The half comes (back) to it.
    pub(super) const fn come(&mut self) {
        self.read_to = self.sent_then;
    }

    /// There was room.
    #[inline]
    pub(super) fn end(&mut self) {
        if self.since.take().is_some() {
            self.longest_ns = (self.longest_ns * 2).min(LONGEST_NS);
        }
    }

    /// It was in vain.
    pub(super) fn give_up(&mut self) {
        (self.since, self.read_to) = (None, u64::MAX);
        self.longest_ns = (self.longest_ns / 4).max(SHORTEST_NS);
    }

    /// Begins, or goes on; until when. `None`: no longer. `allowed`: what [`crate::Carrier::allowed`]
    /// says, which is asked when the wait begins, and before it ends: a reader may have megabytes to
    /// read on the carrier before it comes to the ring.
    pub(super) fn until(
        &mut self,
        heard: Heard,
        now: u64,
        allowed: impl Fn() -> u64,
    ) -> Option<u64> {
        let is_freed = heard.told.1.wrapping_sub(self.told.1) > CONTROLS;
        if self.told.0 != heard.told.0 || is_freed {
            self.end();
            if !self.has_left && is_freed {
                // The ring holds nothing from before those bytes: they are read.
                self.read_to = heard.carried;
            }
            self.told = heard.told;
        }
        if self.since.is_none() {
            (self.since, self.read, self.allowed) = (Some(now), heard.came.1, allowed());
        }
        let until = self.ends_at(heard)?;
        if now < until {
            return Some(until);
        }
        let allowed = allowed();
        if allowed.saturating_sub(self.allowed) < CARRIER_STEP {
            return None;
        }
        (self.since, self.allowed) = (Some(now), allowed);
        self.ends_at(heard)
    }

    /// When one that goes on ends.
    pub(super) fn ends_at(&self, heard: Heard) -> Option<u64> {
        let (unread, read) = heard.came;
        let reads = unread == 0 || read != self.read;
        let behind = heard.carried.saturating_sub(self.read_to).saturating_mul(CARRIER_BYTE_NS);
        let longest_ns = self.longest_ns.saturating_add(behind.min(CARRIER_MOST_NS));
        let longest_ns = if reads { longest_ns } else { SHORTEST_NS };
        self.since.map(|since| since.saturating_add(longest_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Heard = heard((0, 0), (0, 0));

    const fn heard(told: (u64, u32), came: (u32, u32)) -> Heard {
        Heard { told, came, carried: 0 }
    }

    fn none() -> u64 {
        0
    }

    #[test]
    fn a_wait_in_vain_makes_the_next_ones_shorter_and_one_that_is_worth_it_longer() {
        let mut wait = CreditWait::new();
        assert_eq!(wait.until(NOTHING, 5, none), Some(5 + FIRST_NS));
        assert_eq!(wait.until(NOTHING, 5 + FIRST_NS, none), None);
        for _ in 0..10 {
            wait.give_up();
        }
        assert_eq!(wait.until(NOTHING, 5, none), Some(5 + SHORTEST_NS));
        assert_eq!(wait.until(heard((1, 0), (0, 0)), 7, none), Some(7 + 2 * SHORTEST_NS));
        wait.end();
        assert_eq!(wait.until(heard((1, 0), (0, 0)), 9, none), Some(9 + 4 * SHORTEST_NS));
        for told in 2..20 {
            wait.until(heard((told, 0), (0, 0)), 9, none);
        }
        assert_eq!(wait.until(heard((20, 0), (0, 0)), 9, none), Some(9 + LONGEST_NS));
    }

    #[test]
    fn an_end_that_does_not_read_waits_for_a_moment() {
        let mut wait = CreditWait::new();
        assert_eq!(wait.until(heard((0, 0), (3, 8)), 5, none), Some(5 + SHORTEST_NS));
        assert_eq!(wait.until(heard((0, 0), (2, 9)), 6, none), Some(5 + FIRST_NS));
        assert_eq!(wait.ends_at(heard((0, 0), (2, 8))), Some(5 + SHORTEST_NS));
        wait.stop();
        assert_eq!(wait.ends_at(heard((0, 0), (0, 0))), None);
    }

    #[test]
    fn a_peer_that_reads_on_the_carrier_is_waited_for() {
        let mut wait = CreditWait::new();
        assert_eq!(wait.until(NOTHING, 5, || 100), Some(5 + FIRST_NS));
        let end = 5 + FIRST_NS;
        assert_eq!(wait.until(NOTHING, end, || 100 + CARRIER_STEP), Some(end + FIRST_NS));
        let end = end + FIRST_NS;
        assert_eq!(wait.until(NOTHING, end, || 99 + 2 * CARRIER_STEP), None);
    }

    #[test]
    fn a_peer_with_much_on_the_carrier_is_waited_for_longer_and_once() {
        let mut wait = CreditWait::new();
        let mut heard = Heard { carried: 1_000_000, ..NOTHING };
        let longest = FIRST_NS + 1_000_000 * CARRIER_BYTE_NS;
        assert_eq!(wait.until(heard, 5, none), Some(5 + longest));
        assert_eq!(wait.until(heard, 5 + longest, none), None);
        wait.give_up();
        heard.carried = 1 << 30;
        assert_eq!(wait.until(heard, 5, none), Some(5 + FIRST_NS / 4));
        heard.told = (0, CONTROLS);
        assert_eq!(wait.until(heard, 5, none), Some(5 + FIRST_NS / 4));
        heard.told = (0, CONTROLS + 1);
        wait.come();
        assert_eq!(wait.until(heard, 6, none), Some(6 + FIRST_NS / 2));
        // Behind the way back to the queue pair, for what went by the carrier meanwhile.
        wait.leave((1 << 30) - 1000);
        wait.come();
        assert_eq!(wait.ends_at(heard), Some(6 + FIRST_NS / 2 + 1000 * CARRIER_BYTE_NS));
        heard.carried = 1 << 40;
        assert_eq!(wait.ends_at(heard), Some(6 + FIRST_NS / 2 + CARRIER_MOST_NS));
    }
}

//! How long a sender waits for room that the other end is to make, before its bytes go by the
//! carrier.

/// At first and at most: a reader that wants a busy CPU is late by that.
const LONGEST_NS: u64 = 100_000_000;
/// Where this end has not read either what came since the wait began: both programs may be sending,
/// and TCP takes the bytes of both.
const SHORTEST_NS: u64 = 1_000_000;
/// The other end reads on the carrier, if that allows this many bytes more.
const CARRIER_STEP: u64 = 16 * 1024;

/// The wait of one sending half. It begins anew with each piece of news that the other end makes room.
#[derive(Debug)]
pub(super) struct CreditWait {
    /// When it began, in nanoseconds.
    since: Option<u64>,
    /// The peer's last words about credit and room then.
    told: (u64, u32),
    /// Bytes that the carrier allowed then.
    allowed: u64,
    /// Messages that this end's program had read then.
    read: u32,
    /// How long one is: longer behind one that was worth it, shorter behind one in vain.
    longest_ns: u64,
}

/// What the other end has told of room, and messages that came: those unread, and how many were read.
pub(super) type Heard = ((u64, u32), (u32, u32));

impl CreditWait {
    pub(super) const fn new() -> Self {
        Self { since: None, told: (0, 0), allowed: 0, read: 0, longest_ns: LONGEST_NS }
    }

    /// Nobody waits any more.
    pub(super) const fn stop(&mut self) {
        self.since = None;
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
        self.since = None;
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
        if self.told != heard.0 {
            self.end();
            self.told = heard.0;
        }
        if self.since.is_none() {
            (self.since, self.read, self.allowed) = (Some(now), heard.1.1, allowed());
        }
        let until = self.ends_at(heard.1)?;
        if now < until {
            return Some(until);
        }
        let allowed = allowed();
        if allowed.saturating_sub(self.allowed) < CARRIER_STEP {
            return None;
        }
        (self.since, self.allowed) = (Some(now), allowed);
        self.ends_at(heard.1)
    }

    /// When one that goes on ends.
    pub(super) fn ends_at(&self, (unread, read): (u32, u32)) -> Option<u64> {
        let reads = unread == 0 || read != self.read;
        let longest_ns = if reads { self.longest_ns } else { SHORTEST_NS };
        self.since.map(|since| since.saturating_add(longest_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Heard = ((0, 0), (0, 0));

    fn none() -> u64 {
        0
    }

    #[test]
    fn a_wait_in_vain_makes_the_next_ones_shorter_and_one_that_is_worth_it_longer() {
        let mut wait = CreditWait::new();
        assert_eq!(wait.until(NOTHING, 5, none), Some(5 + LONGEST_NS));
        assert_eq!(wait.until(NOTHING, 5 + LONGEST_NS, none), None);
        for _ in 0..10 {
            wait.give_up();
        }
        assert_eq!(wait.until(NOTHING, 5, none), Some(5 + SHORTEST_NS));
        assert_eq!(wait.until(((1, 0), (0, 0)), 7, none), Some(7 + 2 * SHORTEST_NS));
        wait.end();
        assert_eq!(wait.until(((1, 0), (0, 0)), 9, none), Some(9 + 4 * SHORTEST_NS));
    }

    #[test]
    fn an_end_that_does_not_read_waits_for_a_moment() {
        let mut wait = CreditWait::new();
        assert_eq!(wait.until(((0, 0), (3, 8)), 5, none), Some(5 + SHORTEST_NS));
        assert_eq!(wait.until(((0, 0), (2, 9)), 6, none), Some(5 + LONGEST_NS));
        assert_eq!(wait.ends_at((2, 8)), Some(5 + SHORTEST_NS));
        wait.stop();
        assert_eq!(wait.ends_at((0, 0)), None);
    }

    #[test]
    fn a_peer_that_reads_on_the_carrier_is_waited_for() {
        let mut wait = CreditWait::new();
        assert_eq!(wait.until(NOTHING, 5, || 100), Some(5 + LONGEST_NS));
        let end = 5 + LONGEST_NS;
        assert_eq!(wait.until(NOTHING, end, || 100 + CARRIER_STEP), Some(end + LONGEST_NS));
        let end = end + LONGEST_NS;
        assert_eq!(wait.until(NOTHING, end, || 99 + 2 * CARRIER_STEP), None);
    }
}

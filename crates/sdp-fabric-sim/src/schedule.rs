//! Events in virtual time.
//!
//! A heap ordered by (time, order of scheduling): order breaks ties, never chance or address, so
//! that a seed replays. Time only moves to the next event, or to where the test sends it.

use std::{cmp::Reverse, collections::BinaryHeap};

use sdp_rdma::cm::Reject;

/// Events that may wait at once. A queue pair has at most a few in flight (one per kind, and a
/// superseded one per kind), so this bound is never met unless the bookkeeping is wrong.
pub const EVENTS_MAX: usize = 16 * crate::world::QUEUE_PAIRS_MAX;

/// An event of a queue pair at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its oldest posted request reaches the peer.
    Arrive(u32),
    /// Its oldest executed request completes.
    Complete(u32),
    /// It learns that the peer freed room.
    Window(u32),
    /// Its connection request reaches the listener.
    Request(u32),
    /// The acceptance reaches it.
    Reply(u32),
    /// The refusal reaches it.
    Refused(u32, Reject),
    /// It gives up waiting for an answer.
    ConnectTimeout(u32),
    /// It learns that the peer disconnected, failed or died.
    PeerGone(u32),
}

impl Event {
    pub(crate) const fn queue_pair(self) -> u32 {
        match self {
            Self::Arrive(n)
            | Self::Complete(n)
            | Self::Window(n)
            | Self::Request(n)
            | Self::Reply(n)
            | Self::Refused(n, _)
            | Self::ConnectTimeout(n)
            | Self::PeerGone(n) => n,
        }
    }
}

#[derive(Debug)]
struct Entry {
    at_ns: u64,
    order: u64,
    event: Event,
}

impl Entry {
    const fn key(&self) -> (u64, u64) {
        (self.at_ns, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The clock and the events that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    heap: BinaryHeap<Reverse<Entry>>,
    scheduled: u64,
    now_ns: u64,
}

impl Schedule {
    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Adds an event; a time in the past means now.
    pub(crate) fn add(&mut self, at_ns: u64, event: Event) {
        assert!(self.heap.len() < EVENTS_MAX, "more than {EVENTS_MAX} events wait");
        let at_ns = at_ns.max(self.now_ns);
        self.heap.push(Reverse(Entry { at_ns, order: self.scheduled, event }));
        self.scheduled += 1;
    }

    pub(crate) fn next_at_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at_ns)
    }

    /// Takes the next event if it is due at `limit_ns` or before, and moves the clock to it.
    pub(crate) fn take(&mut self, limit_ns: u64) -> Option<Event> {
        if self.next_at_ns()? > limit_ns {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.now_ns = entry.at_ns;
        Some(entry.event)
    }

    /// Moves the clock, never backwards and never past an event that waits.
    pub(crate) fn move_to(&mut self, now_ns: u64) {
        let now_ns = now_ns.min(self.next_at_ns().unwrap_or(now_ns));
        self.now_ns = self.now_ns.max(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order_of_scheduling() {
        let mut schedule = Schedule::default();
        schedule.add(20, Event::Arrive(1));
        schedule.add(10, Event::Arrive(2));
        schedule.add(20, Event::Arrive(3));
        assert_eq!(schedule.take(5), None);
        let order: Vec<_> = std::iter::from_fn(|| schedule.take(100)).collect();
        assert_eq!(order, [Event::Arrive(2), Event::Arrive(1), Event::Arrive(3)]);
        assert_eq!(schedule.now_ns(), 20);
    }

    #[test]
    fn time_never_goes_backwards_nor_past_an_event() {
        let mut schedule = Schedule::default();
        schedule.move_to(50);
        schedule.add(10, Event::Window(1));
        schedule.move_to(90);
        assert_eq!(schedule.now_ns(), 50);
        assert_eq!(schedule.take(50), Some(Event::Window(1)));
        schedule.move_to(90);
        schedule.move_to(20);
        assert_eq!(schedule.now_ns(), 90);
    }
}

//! The recorder of a page: the last events of a process's connections.
//!
//! A ring that is written without locks, where a connection changes its lane or cannot have one;
//! never for a message. Each event is numbered. Its number is cleared while it is written and
//! stored last, so that a reader that copies the ring twice knows which events were whole.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use crate::page::Page;
use crate::reason::Reason;
use crate::writer::{Direction, Fabric};

/// Events that are kept.
pub const EVENTS: usize = 127;
/// Words of an event.
pub const EVENT_WORDS: usize = 4;

/// The kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A lane is there: the ends have met.
    Met = 1,
    /// A half went to the lane.
    Promoted = 2,
    /// The connection stays on the kernel lane, for another reason than before.
    Fallback = 3,
    /// A half left the lane.
    Demoted = 4,
    /// Unread bytes are handed over to a process that reads the kernel's stream alone.
    HandOver = 5,
    /// The queue pair to the other host ended.
    LaneLost = 6,
    /// The connection was reset: every call answers ECONNRESET.
    Reset = 7,
    /// The rules want SDP or nothing, and it could not be had.
    Refused = 8,
}

/// An event as the writer knows it.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// The kind of event.
    pub kind: Kind,
    /// To which half; of both where none is given.
    pub direction: Option<Direction>,
    /// Why.
    pub reason: Option<Reason>,
    /// By which fabric.
    pub fabric: Option<Fabric>,
    /// Descriptor number.
    pub fd: i32,
    /// Local port, remote port; 0 where not known.
    pub ports: (u16, u16),
    /// `CLOCK_BOOTTIME` nanoseconds.
    pub now_ns: u64,
}

/// Words in shared memory: the number in the first one's lower half, the kind of event in its
/// upper; time; descriptor and ports; the process.
#[repr(C)]
struct Slot([AtomicU64; EVENT_WORDS]);

/// The ring, with the number of events that there have been.
#[repr(C, align(64))]
pub struct Trace {
    next: AtomicU64,
    reserved: [AtomicU64; EVENT_WORDS - 1],
    slots: [Slot; EVENTS],
}

const _: () = assert!(size_of::<Trace>() == 4096);

impl Page {
    /// Records an event. Any thread, also in a signal handler.
    pub fn record(&self, event: &Event) {
        let number = self.trace.next.fetch_add(1, Relaxed);
        let Some(Slot([first, time, place, who])) =
            self.trace.slots.get((number % EVENTS as u64) as usize)
        else {
            return;
        };
        let byte = |n: Option<u32>| u64::from(n.map_or(0, |n| n + 1) as u8);
        let what = event.kind as u64
            | byte(event.direction.map(|d| d as u32)) << 8
            | byte(event.reason.map(|r| u32::from(r.code()))) << 16
            | byte(event.fabric.map(|f| f as u32)) << 24;
        first.store(0, Relaxed);
        core::sync::atomic::fence(Release);
        time.store(event.now_ns, Relaxed);
        let ports = u64::from(event.ports.0) << 16 | u64::from(event.ports.1);
        place.store(u64::from(event.fd.cast_unsigned()) | ports << 32, Relaxed);
        who.store(0, Relaxed);
        first.store(u64::from((number as u32).wrapping_add(1)) | what << 32, Release);
    }
}

#[cfg(feature = "reader")]
pub use reading::{EventView, parse_events};

#[cfg(feature = "reader")]
mod reading {
    use super::{EVENT_WORDS, EVENTS};

    /// An event as read: anything may be in it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct EventView {
        /// Its number, from 1 on.
        pub number: u32,
        /// Number of [`super::Kind`].
        pub kind: u8,
        /// Number of [`crate::Direction`].
        pub direction: Option<u8>,
        /// Code of a reason.
        pub reason: Option<u8>,
        /// Number of [`crate::Fabric`].
        pub fabric: Option<u8>,
        /// Descriptor number.
        pub fd: i32,
        /// Local port, remote port.
        pub ports: (u16, u16),
        /// `CLOCK_BOOTTIME` nanoseconds.
        pub at_ns: u64,
    }

    /// The events of two copies of a ring, one taken after the other, oldest first: those that are in both.
    pub fn parse_events(first: &[u64], second: &[u64]) -> Vec<EventView> {
        let slots = |words: &[u64]| -> Vec<[u64; EVENT_WORDS]> {
            let slots = words.as_chunks().0.iter().skip(1);
            slots.take(EVENTS).copied().collect()
        };
        let event = |[what, at_ns, place, _]: [u64; EVENT_WORDS]| {
            let [kind, direction, reason, fabric] = ((what >> 32) as u32).to_le_bytes();
            EventView {
                number: what as u32,
                kind,
                direction: direction.checked_sub(1),
                reason: reason.checked_sub(1),
                fabric: fabric.checked_sub(1),
                fd: (place as u32).cast_signed(),
                ports: ((place >> 48) as u16, (place >> 32) as u16),
                at_ns,
            }
        };
        let both = slots(first).into_iter().zip(slots(second));
        let mut events: Vec<_> =
            both.filter(|(a, b)| a == b && a[0] as u32 != 0).map(|(slot, _)| event(slot)).collect();
        events.sort_by_key(|e| e.number);
        events
    }
}

#[cfg(all(test, feature = "reader"))]
mod tests {
    use super::*;

    fn event(n: u64) -> Event {
        Event {
            kind: Kind::Demoted,
            direction: Some(Direction::Receive),
            reason: Some(Reason::Shared),
            fabric: None,
            fd: n as i32,
            ports: (6379, 40_000),
            now_ns: n,
        }
    }

    fn ring(page: &Page) -> Vec<u64> {
        let words = crate::map::words_of(page);
        words[words.len() - size_of::<Trace>() / 8..].to_vec()
    }

    #[test]
    fn the_last_events_are_kept_in_order() {
        let page = crate::map::zeroed_page();
        assert!(parse_events(&ring(&page), &ring(&page)).is_empty());
        let count = EVENTS as u64 * 2 + 5;
        (1..=count).for_each(|n| page.record(&event(n)));
        let events = parse_events(&ring(&page), &ring(&page));
        assert_eq!(events.len(), EVENTS);
        let expected: Vec<_> = (count + 1 - EVENTS as u64..=count).collect();
        assert_eq!(events.iter().map(|e| u64::from(e.number)).collect::<Vec<_>>(), expected);
        assert_eq!(events.iter().map(|e| e.at_ns).collect::<Vec<_>>(), expected);
        let last = events.last().unwrap();
        assert_eq!((last.kind, last.direction, last.fabric), (4, Some(1), None));
        assert_eq!(last.reason, Some(Reason::Shared.code() as u8));
        assert_eq!((last.fd, last.ports), (count as i32, (6379, 40_000)));
    }

    #[test]
    fn what_is_written_between_two_looks_is_left_out() {
        let page = crate::map::zeroed_page();
        (1..=3).for_each(|n| page.record(&event(n)));
        let first = ring(&page);
        (4..=EVENTS as u64 + 1).for_each(|n| page.record(&event(n)));
        let events = parse_events(&first, &ring(&page));
        assert_eq!(events.iter().map(|e| e.number).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn threads_record_side_by_side() {
        let page = crate::map::zeroed_page();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (1..=EVENTS as u64 / 4).for_each(|n| page.record(&event(n))));
            }
        });
        let mut numbers: Vec<_> =
            parse_events(&ring(&page), &ring(&page)).iter().map(|e| e.number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), EVENTS / 4 * 4);
    }

    #[test]
    fn rubbish_is_some_event_or_none() {
        for fill in [u64::MAX, 1, 1 << 63, 0x0101_0101_0101_0101] {
            let words = vec![fill; size_of::<Trace>() / 8];
            assert!(parse_events(&words, &words).len() <= EVENTS);
            assert!(parse_events(&words[..5], &words).len() <= EVENTS);
        }
    }
}

//! The order in which a wait reports events.
//!
//! Over TCP the kernel has one list, in the order in which connections became ready, and programs rely on it: a client that
//! sends on one connection and then on another one is heard in that order, nearly always. Here some of it comes by the
//! kernel and some by rings.
//!
//! * Between lanes: each sender notes when it signalled ([`sdp_shm::layout::ArmLine`]), and bits
//!   that are taken together go to the ready lists in that order. Entries that were on a list
//!   before, because the program may not have read all, come before them, as with the kernel.
//! * Between the kernel and lanes: as long as a connection in the set is not known to receive by
//!   its lane, each wait that has events of rings asks the kernel too, and reports the kernel's
//!   events first. A wait that slept was signalled between the kernel's other events, and reports
//!   the rings' events there.
//! * It asks for listeners and for descriptors that are no connections now and then, not each time:
//!   a server whose connections are all on their lanes makes no system calls for them. A wait that
//!   asks reports the kernel's events first, and those alone.
//! * Where the kernel reports a listener, the rings' events are kept for the next wait: a client
//!   may have sent something on the connection that is to be accepted before it used a lane.

use core::marker::PhantomData;

use libc::epoll_event;
use sdp_sys::errno::Errno;

use crate::{
    conn::{self, Stage, alive},
    process::libc_calls::{self, Mask},
    readiness,
    wake::{
        arming, doorbell,
        interest::{
            ET, ONESHOT, OUT,
            mirror::{Mirror, NONE, with},
            signal_own_sets,
        },
        strangers::Doorbells,
    },
};

/// Most events handled in one go.
pub(super) const BATCH: usize = 96;
/// Bits that are put in order together.
const SORTED: usize = 64;

impl Mirror {
    /// Whether the kernel's event under these data may be a listener's.
    pub(super) fn is_of_listener(&mut self, set: u32, data: u64) -> bool {
        let mut at = self.first_like(set, data);
        while let Some(reg) = self.registrations.get(at as usize) {
            if reg.is_used
                && reg.set == set
                && reg.data == data
                && conn::get(reg.conn).is_some_and(|conn| conn.stage() == Stage::Listener)
            {
                return true;
            }
            at = reg.next_hash;
        }
        false
    }
}

/// Moves the doorbell page's bits to the ready lists of the sets that they concern, for a wait on
/// this one. Whether there were any.
pub(super) fn collect_bits(set: u32) -> bool {
    let Some(doorbell) = doorbell::pages().filter(|doorbell| doorbell.any()) else { return false };
    let taken = with(|m| {
        let (held, count) = hold_empty(m, set);
        let bits = take_bits(m, doorbell);
        held.iter().take(count).for_each(|at| m.push_ready(*at));
        bits
    });
    if taken.is_some_and(|bits| bits.others_sleep && bits.any) {
        signal_own_sets();
    }
    true
}

/// Takes those off a ready list that have nothing in their rings, before bits are taken: messages
/// that come for them from here on come later than those that have been signalled.
fn hold_empty(m: &mut Mirror, set: u32) -> ([u32; SORTED], usize) {
    let (mut held, mut count) = ([NONE; SORTED], 0);
    let Some(last) = m.set(set).map(|s| s.ready_last).filter(|last| *last != NONE) else {
        return (held, 0);
    };
    for _ in 0..SORTED {
        let Some(at) = m.pop_ready(set) else { break };
        let conn = m.reg(at).map(|reg| reg.conn).and_then(conn::get);
        if conn.is_some_and(readiness::seems_empty)
            && let Some(place) = held.get_mut(count)
        {
            *place = at;
            count += 1;
        } else {
            m.push_ready(at);
        }
        if at == last {
            break;
        }
    }
    (held, count)
}

/// The result of [`take_bits`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bits {
    pub(super) any: bool,
    /// A thread sleeps on one of the sets that they concern.
    others_sleep: bool,
    pass: alive::Pass,
}

impl Bits {
    /// Whether another thread must be woken for them.
    pub(super) fn wake_others(self) -> bool {
        self.others_sleep
    }

    fn ready(&mut self, m: &mut Mirror, slot: u32) {
        if let Some(conn) = conn::get(slot) {
            self.any = true;
            self.pass.moved(conn);
            self.others_sleep |= m.ready_conn(conn);
        }
    }
}

/// Takes the bits, in the order in which they were set.
pub(super) fn take_bits(m: &mut Mirror, doorbell: Doorbells) -> Bits {
    let mut bits = Bits::default();
    let mut taken = [0u32; SORTED];
    let mut count = 0;
    doorbell.take(|slot| {
        if count == SORTED {
            in_order(m, &mut taken, &mut bits);
            count = 0;
        }
        if let Some(place) = taken.get_mut(count) {
            *place = slot;
        }
        count += 1;
    });
    match taken.get_mut(..count) {
        Some(&mut [slot]) => bits.ready(m, slot),
        Some(several) => in_order(m, several, &mut bits),
        None => {}
    }
    bits
}

fn in_order(m: &mut Mirror, slots: &mut [u32], bits: &mut Bits) {
    let mut keyed = [(0u64, 0u32); SORTED];
    let keyed = keyed.get_mut(..slots.len()).unwrap_or(&mut []);
    for (to, slot) in keyed.iter_mut().zip(slots.iter()) {
        *to = (conn::get(*slot).map_or(0, arming::rung_at), *slot);
    }
    // By the peers' own words: a lie makes a wrong order, nothing else.
    sort(keyed);
    for (_, slot) in keyed.iter() {
        bits.ready(m, *slot);
    }
}

/// By insertion: few, and often in order as they are.
fn sort(keyed: &mut [(u64, u32)]) {
    for end in 1..keyed.len() {
        for at in (0..end).rev() {
            let Some([before, after]) = keyed.get_mut(at..at + 2) else { return };
            if before.0 <= after.0 {
                break;
            }
            core::mem::swap(before, after);
        }
    }
}

/// The program's room for events, of a wait that has not returned. It need not be aligned.
pub(super) struct Room<'a> {
    at: *mut epoll_event,
    count: usize,
    until: PhantomData<&'a mut epoll_event>,
}

impl Room<'_> {
    /// # Safety
    /// `at` is writable for `count` events as long as the value exists.
    pub(super) unsafe fn new(at: *mut epoll_event, count: usize) -> Self {
        Self { at, count, until: PhantomData }
    }

    /// The event at place `i`; none beyond the room.
    #[inline(never)]
    pub(super) fn get(&self, i: usize) -> epoll_event {
        if i >= self.count {
            return epoll_event { events: 0, u64: 0 };
        }
        // SAFETY: within the program's array, by the contract of `new`; an event may be any bits.
        unsafe { self.at.add(i).read_unaligned() }
    }

    /// Writes the event at place `i`; nothing beyond the room.
    #[inline(never)]
    pub(super) fn put(&mut self, i: usize, event: epoll_event) {
        if i < self.count {
            // SAFETY: within the program's array, by the contract of `new`.
            unsafe { self.at.add(i).write_unaligned(event) }
        }
    }

    /// Has libc fill it; how many events there are. May block, may be cancelled.
    pub(super) fn wait(
        &mut self,
        set_fd: i32,
        timeout_ms: i32,
        mask: Mask,
    ) -> Result<usize, Errno> {
        // SAFETY: the program's array is writable for as many events, by the contract of `new`.
        unsafe { libc_calls::epoll_pwait(set_fd, self.at, self.count as i32, timeout_ms, mask) }
    }
}

/// The events that a wait returns.
pub(super) struct Output<'a> {
    pub(super) events: Room<'a>,
    pub(super) max: usize,
    pub(super) used: usize,
    /// End of the events that the kernel has reported last.
    pub(super) end_of_kernels: usize,
    /// Registration of each of the first events, so that ring and kernel make one event of one.
    from: [u32; BATCH],
}

impl<'a> Output<'a> {
    /// Fills `events`, a batch at most. Those beyond it could not be kept apart; a program that
    /// asks for more gets them next time.
    pub(super) fn new(events: Room<'a>) -> Self {
        let max = events.count.min(BATCH);
        Self { events, max, used: 0, end_of_kernels: 0, from: [NONE; BATCH] }
    }

    /// Puts the events that the kernel has reported before the first `rings` ones.
    pub(super) fn bring_forward(&mut self, rings: usize) {
        let end = self.end_of_kernels;
        if rings == 0 || end <= rings {
            return;
        }
        // By three reversals, because the program's array need not be aligned.
        self.reverse(0, rings);
        self.reverse(rings, end);
        self.reverse(0, end);
    }

    /// Takes back the first `rings` events, if all of them stay on the ready list: those of
    /// level-triggered registrations that do not report room. False: nothing was taken back.
    pub(super) fn withdraw(&mut self, m: &mut Mirror, rings: usize) -> bool {
        let stays = |i: usize| {
            let at = self.from.get(i).copied().unwrap_or(NONE);
            let events = self.events.get(i).events;
            events & OUT == 0 && m.reg(at).is_some_and(|reg| reg.events & (ET | ONESHOT) == 0)
        };
        if rings >= self.used || !(0..rings).all(stays) {
            return false;
        }
        for i in rings..self.used {
            self.events.put(i - rings, self.events.get(i));
        }
        for i in rings..self.used {
            let held = self.from.get(i).copied().unwrap_or(NONE);
            if let Some(place) = self.from.get_mut(i - rings) {
                *place = held;
            }
        }
        self.used -= rings;
        self.end_of_kernels = self.used;
        true
    }

    /// Turns the events from `first` to before `end` round.
    fn reverse(&mut self, first: usize, end: usize) {
        for i in 0..(end - first) / 2 {
            let (a, b) = (first + i, end - 1 - i);
            let held = self.events.get(a);
            self.events.put(a, self.events.get(b));
            self.events.put(b, held);
            if let Some(part) = self.from.get_mut(first + i..end - i)
                && let [a, .., b] = part
            {
                core::mem::swap(a, b);
            }
        }
    }

    /// Reports events of a registration ([`NONE`]: not one of ours).
    pub(super) fn push(&mut self, events: u32, data: u64, from: u32) {
        if from != NONE
            && let Some(at) = self.from.iter().take(self.used).position(|f| *f == from)
        {
            let mut held = self.events.get(at);
            held.events |= events;
            return self.events.put(at, held);
        }
        if self.used < self.max {
            self.events.put(self.used, epoll_event { events, u64: data });
            if let Some(slot) = self.from.get_mut(self.used) {
                *slot = from;
            }
            self.used += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn reported(out: &Output<'_>, events: &[epoll_event]) -> Vec<(u64, u32)> {
        let data = events.iter().map(|event| event.u64);
        data.zip(out.from).take(out.used).collect()
    }

    #[test]
    fn what_the_kernel_told_comes_forward() {
        let mut events = [epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: the array outlives the output that fills it.
        let mut out = Output::new(unsafe { Room::new(events.as_mut_ptr(), events.len()) });
        for (data, from) in [(1, 11), (2, 12), (3, NONE), (4, 14), (5, NONE)] {
            out.push(1, data, from);
        }
        out.end_of_kernels = 5;
        out.bring_forward(2);
        assert_eq!(reported(&out, &events), [(3, NONE), (4, 14), (5, NONE), (1, 11), (2, 12)]);
        // Events of rings behind the kernel's stay there.
        out.push(1, 6, 16);
        out.end_of_kernels = 4;
        out.bring_forward(3);
        let wanted = [(1, 11), (3, NONE), (4, 14), (5, NONE), (2, 12), (6, 16)];
        assert_eq!(reported(&out, &events), wanted);
        out.end_of_kernels = 2;
        out.bring_forward(2);
        assert_eq!(reported(&out, &events), wanted, "the kernel told nothing");
    }

    #[test]
    fn equal_times_keep_their_order() {
        let mut keyed = [(5, 1), (3, 2), (5, 3), (0, 4), (3, 5)];
        sort(&mut keyed);
        assert_eq!(keyed, [(0, 4), (3, 2), (3, 5), (5, 1), (5, 3)]);
    }
}

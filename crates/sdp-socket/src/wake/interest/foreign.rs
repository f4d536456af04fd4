//! Foreign doorbells ([`crate::wake::strangers`]) in epoll sets: beside the hidden
//! eventfd, under its data.

use libc::epoll_event;
use sdp_sys::kernel;

use super::{
    ALWAYS, ET, IN,
    mirror::{Mirror, make_mirror, with},
    signal_own_sets,
};
use crate::{process, wake::strangers};

/// Which doorbells are in the kernel's set (a bit each), and under which data.
#[derive(Clone, Copy, Default)]
pub(crate) struct Doors {
    inside: u32,
    data: u64,
}

impl Doors {
    pub(super) fn is_empty(&self) -> bool {
        self.inside == 0
    }
}

/// A doorbell has been made. `publish` gets how many threads sleep on sets, which count in its page
/// from then on; those that sleep elsewhere come back with it.
pub(crate) fn foreign_doorbell_made(publish: impl FnOnce(u32)) {
    make_mirror(); // nobody falls asleep in a set of one that is made meanwhile
    let mut publish = Some(publish);
    with(|m| {
        let asleep = m
            .each_set()
            .map(|set| set.sleepers.saturating_sub(set.sleepers_without_doorbell))
            .sum();
        publish.take().into_iter().for_each(|publish| publish(asleep));
        m.set_numbers().for_each(|set| m.follow_anchor(set));
    });
    publish.into_iter().for_each(|publish| publish(0));
    signal_own_sets();
}

/// The doorbell at `place` has another number now, and `from`, which names it too, is the program's
/// in a moment.
pub(crate) fn foreign_doorbell_moved(place: usize, from: i32) {
    with(|m| {
        for index in m.set_numbers() {
            let Some(set) = m.set(index) else { continue };
            if set.doors.inside >> place & 1 != 0 {
                set.doors.inside &= !(1 << place);
                control(set.epfd, libc::EPOLL_CTL_DEL, from, 0);
                m.follow_anchor(index);
            }
        }
    });
}

/// Whether an event says something that each holder of a foreign doorbell can bring about: an
/// error, or that it has been shut.
pub(crate) fn may_be_foul(m: &mut Mirror, set: u32, event: &epoll_event) -> bool {
    let (events, data) = (event.events, event.u64);
    events & ALWAYS != 0
        && m.set(set).is_some_and(|set| set.doors.inside != 0 && set.hidden == Some(data))
}

/// The same for a doorbell of a family member, which may wait on the set, too: its data is not
/// known here.
pub(crate) fn may_be_a_family_member_s(event: &epoll_event) -> bool {
    event.events & ALWAYS != 0 && process::has_family()
}

fn control(epfd: i32, op: i32, fd: i32, data: u64) -> bool {
    control_as(epfd, op, fd, data, IN | ET)
}

fn control_as(epfd: i32, op: i32, fd: i32, data: u64, events: u32) -> bool {
    let interest = epoll_event { events, u64: data };
    kernel::epoll_ctl(epfd, op, fd, &interest).is_ok()
}

impl Mirror {
    /// Sees to it that all doorbells are in the set under the data of the hidden eventfd, and out
    /// of it where that is.
    pub(crate) fn follow_anchor(&mut self, index: u32) {
        let count = strangers::count();
        let Some(set) = self.set(index) else { return };
        let (epfd, target, mut doors) = (set.epfd, set.hidden, set.doors);
        if doors.inside == 0 && (count == 0 || target.is_none()) {
            return;
        }
        let mut is_deaf = false;
        for (place, fd) in strangers::descriptors(count).enumerate() {
            let (bit, data) = (1 << place, target.unwrap_or(0));
            let op = match (doors.inside & bit != 0, target) {
                (false, None) => continue,
                (true, Some(data)) if data == doors.data => continue,
                (false, Some(_)) => libc::EPOLL_CTL_ADD,
                (true, Some(_)) => libc::EPOLL_CTL_MOD,
                (true, None) => libc::EPOLL_CTL_DEL,
            };
            let is_done = control(epfd, op, fd, data);
            is_deaf |= !is_done && op != libc::EPOLL_CTL_DEL;
            match op {
                libc::EPOLL_CTL_ADD if is_done => doors.inside |= bit,
                libc::EPOLL_CTL_DEL => doors.inside &= !bit,
                _ => {}
            }
        }
        doors.data = target.unwrap_or(0);
        set.doors = doors;
        if is_deaf {
            self.use_carrier(index);
        }
    }

    /// From now on the doorbells in the set are reported as `events`.
    pub(super) fn change_doors(&mut self, index: u32, events: u32) -> bool {
        let Some(set) = self.set(index) else { return false };
        let (epfd, doors) = (set.epfd, set.doors);
        if doors.inside == 0 {
            return true;
        }
        let inside = strangers::descriptors(strangers::count()).enumerate();
        let mut inside = inside.filter(|(place, _)| doors.inside >> place & 1 != 0);
        inside.all(|(_, fd)| control_as(epfd, libc::EPOLL_CTL_MOD, fd, doors.data, events))
    }
}

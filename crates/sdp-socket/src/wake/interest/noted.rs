//! Registrations that need no mirror yet.
//!
//! As long as nothing in a set is on a lane, waits on it are the kernel's, and none looks into the
//! mirror. So the one registration that a candidate has as a rule is noted with the connection,
//! which costs servers that close each connection after one request a few stores. It goes to the
//! mirror before either is needed there: when the connection's ends begin to meet, when something
//! else comes onto a lane in the set, when there is a second registration, or one that the kernel
//! disables by itself.
//!
//! A note may outlive its set; the set's serial then shows that it is void. What it does not
//! promise: a connection that a call holds open, whose last number the program has closed, is not
//! found when a lane comes into the set. The program may take an event that the kernel still
//! reports for it for the event of another connection with the same data.

use core::sync::atomic::Ordering::{Relaxed, Release};

use sdp_stats::Reason;

use super::{
    Change, EXCLUSIVE, ONESHOT, enter,
    mirror::{Mirror, SETS, Set},
};
use crate::{
    conn::{self, Conn, Noted, Stage},
    process::table::{self, Entry},
};

/// The set with this serial number and its place, if it has not been closed; none has the number 0.
pub(crate) fn set_with(m: &mut Mirror, serial: u64) -> Option<(u32, &mut Set)> {
    let place = (serial % SETS as u64) as u32;
    m.set(place).filter(|set| set.serial == serial).map(|set| (place, set))
}

/// The set for which something is noted with a connection, if it has not been closed since.
fn set_of<'a>(m: &'a mut Mirror, noted: &Noted) -> Option<(u32, &'a mut Set)> {
    set_with(m, noted.serial.load(Relaxed))
}

/// Whether it is enough to note a change with the connection; then it is noted.
#[inline(always)]
pub(crate) fn suffices(m: &mut Mirror, conn: &Conn, change: &Change) -> bool {
    let (events, data) = (change.wanted.events, change.wanted.u64);
    if events & (ONESHOT | EXCLUSIVE) != 0
        || conn.registrations.load(Relaxed) != 0
        // A thread that makes it meet its other end comes for the lock afterwards, and finds the
        // note.
        || !matches!(conn.stage(), Stage::Fresh | Stage::Candidate)
    {
        return false;
    }
    let noted = &conn.noted;
    let before = noted.serial.load(Relaxed);
    let is_noted = before != 0 && set_of(m, noted).is_some();
    let Some(set) = m.set(change.set).filter(|set| !set.has_lane) else { return false };
    if is_noted && (before != set.serial || noted.number.load(Relaxed) != change.fd) {
        return false; // in another set, or by another number
    }
    if change.op == libc::EPOLL_CTL_DEL {
        set.noted = set.noted.saturating_sub(u32::from(is_noted));
        noted.serial.store(0, Relaxed);
        return true;
    }
    set.noted += u32::from(!is_noted);
    noted.data.store(data, Relaxed);
    noted.events.store(events, Relaxed);
    noted.number.store(change.fd, Relaxed);
    noted.serial.store(set.serial, Relaxed);
    m.stale_data.forget(change.set, data);
    true
}

/// Moves the notes of a connection into the mirror. True: sleepers must look.
pub(crate) fn enlist(m: &mut Mirror, conn: &Conn) -> bool {
    let noted = &conn.noted;
    let (number, events) = (noted.number.load(Relaxed), noted.events.load(Relaxed));
    let Some((place, set)) = set_of(m, noted) else {
        noted.serial.store(0, Relaxed); // nothing is noted, or for a set that is closed
        return false;
    };
    set.noted = set.noted.saturating_sub(1);
    let at = m.add(place, conn, number, events, noted.data.load(Relaxed));
    noted.serial.store(0, Release);
    match at {
        Some(at) => enter(m, at, conn),
        None => {
            conn.fall_back(Reason::Limit);
            false
        }
    }
}

/// Drops the notes of a connection.
pub(crate) fn drop_note(m: &mut Mirror, conn: &Conn) {
    if let Some((_, set)) = set_of(m, &conn.noted) {
        set.noted = set.noted.saturating_sub(1);
    }
    conn.noted.reset();
}

/// Something has come onto a lane in this set: all that is noted for it goes to the mirror. True: sleepers must look.
#[cold]
pub(crate) fn enlist_all(m: &mut Mirror, set: u32) -> bool {
    let Some(serial) = m.set(set).filter(|set| set.noted != 0).map(|set| set.serial) else {
        return false;
    };
    let mut sleeps = false;
    table::walk(|_, entry| {
        if let Entry::Conn(index) = entry
            && let Some(conn) = conn::get(index)
            && conn.noted.serial.load(Relaxed) == serial
        {
            sleeps |= enlist(m, conn);
        }
    });
    sleeps
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use libc::epoll_event;

    use super::*;
    use crate::{
        process,
        wake::interest::{mirror::with, mirrored},
    };

    const IN: u32 = libc::EPOLLIN as u32;

    /// A candidate in a place that no other test of this process uses.
    fn candidate(fd: i32) -> &'static Conn {
        crate::lifecycle::hand_in();
        let (index, conn) = conn::create(Stage::Candidate).expect("a slot");
        process::note_descriptor(fd);
        assert_eq!(table::put(fd, Entry::Conn(index)), Ok(None));
        conn
    }

    fn change(set: u32, op: i32, fd: i32, events: u32, data: u64) -> Change {
        Change { set, op, fd, wanted: epoll_event { events, u64: data }, strips: false }
    }

    /// Passes the change to the mirror, unless a note was enough; whether it was.
    fn tell(m: &mut Mirror, conn: &Conn, change: &Change) -> bool {
        let is_enough = suffices(m, conn, change);
        if !is_enough {
            assert!(!mirrored(m, conn, change));
        }
        is_enough
    }

    fn mirrored_ones(m: &Mirror, conn: &Conn) -> Vec<(u32, i32, u32, u64)> {
        m.registrations_of(conn).map(|(_, r)| (r.set, r.fd, r.events, r.data)).collect()
    }

    fn on_a_mirror(body: impl FnOnce(&mut Mirror)) {
        assert!(crate::wake::interest::mirror::make_mirror());
        with(body).expect("a mirror");
    }

    #[test]
    fn one_registration_of_a_young_connection_is_in_no_mirror() {
        let conn = candidate(301);
        on_a_mirror(|m| {
            let set = m.open_set(100).expect("a set");
            assert!(tell(m, conn, &change(set, libc::EPOLL_CTL_ADD, 301, IN, 1)));
            assert!(tell(m, conn, &change(set, libc::EPOLL_CTL_MOD, 301, IN | 4, 2)));
            assert_eq!(mirrored_ones(m, conn), []);
            // Its ends meet.
            assert!(conn.change_stage(Stage::Candidate, Stage::Meeting));
            assert!(!enlist(m, conn) && !enlist(m, conn));
            assert_eq!(mirrored_ones(m, conn), [(set, 301, IN | 4, 2)]);
            assert!(!tell(m, conn, &change(set, libc::EPOLL_CTL_DEL, 301, 0, 0)));
            assert_eq!(mirrored_ones(m, conn), []);
        });
    }

    #[test]
    fn a_second_one_or_one_that_the_kernel_disables_brings_it_there() {
        let (conn, other) = (candidate(302), candidate(303));
        on_a_mirror(|m| {
            let sets = [101, 102].map(|fd| m.open_set(fd).expect("a set"));
            assert!(tell(m, conn, &change(sets[0], libc::EPOLL_CTL_ADD, 302, IN, 1)));
            assert!(!tell(m, conn, &change(sets[1], libc::EPOLL_CTL_ADD, 302, IN, 2)));
            assert_eq!(mirrored_ones(m, conn), [(sets[1], 302, IN, 2), (sets[0], 302, IN, 1)]);
            assert!(tell(m, other, &change(sets[0], libc::EPOLL_CTL_ADD, 303, IN, 3)));
            let once = IN | ONESHOT;
            assert!(!tell(m, other, &change(sets[0], libc::EPOLL_CTL_MOD, 303, once, 3)));
            assert_eq!(mirrored_ones(m, other), [(sets[0], 303, once, 3)]);
            for (conn, fd) in [(conn, 302), (other, 303)] {
                m.each_registration(conn, |m, at, _| m.remove(at));
                table::clear(fd);
            }
        });
    }

    fn count(m: &mut Mirror, set: u32) -> u32 {
        m.set(set).expect("a set").noted
    }

    #[test]
    fn a_lane_in_the_set_brings_all_there() {
        let conns = [304, 305].map(candidate);
        on_a_mirror(|m| {
            let set = m.open_set(104).expect("a set");
            for (conn, fd) in conns.into_iter().zip(304..) {
                assert!(tell(m, conn, &change(set, libc::EPOLL_CTL_ADD, fd, IN, fd as u64)));
            }
            assert_eq!(count(m, set), 2);
            assert!(tell(m, conns[1], &change(set, libc::EPOLL_CTL_DEL, 305, 0, 0)));
            assert_eq!(count(m, set), 1);
            m.set(set).expect("a set").has_lane = true;
            assert!(!enlist_all(m, set));
            assert_eq!(count(m, set), 0);
            assert_eq!(mirrored_ones(m, conns[0]), [(set, 304, IN, 304)]);
            assert_eq!(mirrored_ones(m, conns[1]), []);
            // From here on all are.
            assert!(!tell(m, conns[1], &change(set, libc::EPOLL_CTL_ADD, 305, IN, 7)));
            assert_eq!(mirrored_ones(m, conns[1]), [(set, 305, IN, 7)]);
        });
        for fd in [304, 305] {
            process::forget(fd);
        }
        on_a_mirror(|m| assert!(conns.iter().all(|conn| mirrored_ones(m, conn).is_empty())));
    }

    #[test]
    fn a_note_of_a_closed_set_means_nothing() {
        let conn = candidate(306);
        let mut before = 0;
        on_a_mirror(|m| {
            before = m.open_set(105).expect("a set");
            assert!(tell(m, conn, &change(before, libc::EPOLL_CTL_ADD, 306, IN, 9)));
        });
        crate::wake::interest::closed(before);
        on_a_mirror(|m| {
            assert!(!enlist(m, conn));
            assert_eq!(mirrored_ones(m, conn), []);
            let set = m.open_set(106).expect("a set");
            assert!(tell(m, conn, &change(set, libc::EPOLL_CTL_ADD, 306, IN, 1)));
            m.set(set).expect("a set").is_used = false;
            // In the same place, or another: the note does not hinder.
            let set = m.open_set(107).expect("a set");
            assert!(tell(m, conn, &change(set, libc::EPOLL_CTL_ADD, 306, IN, 2)));
            assert_eq!(count(m, set), 1);
        });
        process::forget(306);
    }

    /// A call that is in progress may still make its ends meet.
    #[test]
    fn nothing_of_a_closed_connection_comes_to_the_mirror() {
        let conn = candidate(307);
        conn.acquire(crate::conn::Half::Receive);
        let mut set = 0;
        on_a_mirror(|m| {
            set = m.open_set(108).expect("a set");
            assert!(tell(m, conn, &change(set, libc::EPOLL_CTL_ADD, 307, IN, 3)));
        });
        process::forget(307);
        crate::wake::interest::meets(conn);
        on_a_mirror(|m| {
            assert_eq!(mirrored_ones(m, conn), []);
            assert_eq!(count(m, set), 0);
        });
        conn.release(crate::conn::Half::Receive);
    }
}

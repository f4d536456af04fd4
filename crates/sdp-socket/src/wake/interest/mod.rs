//! The epoll sets in which a connection is registered, and the threads to wake when something
//! happens to it.
//!
//! The kernel's registrations are the program's own. Beside them stands a mirror ([`mirror`]),
//! keyed by set, socket and number. Called by the calls on epoll sets (`readiness`), which change
//! it and wait on it, and by every room that does something to a connection for which a thread may
//! wait in a set: it meets its other end, gets lanes, has room again, is closed, is forked. It
//! reads no byte of a connection.
//!
//! # Files
//! `mirror`: the registrations of all sets. `stale`: earlier registrations, whose events may still
//! come. `noted`: registrations that the mirror need not have yet. `foreign`: doorbells of other
//! users in sets. `order`: by which lane a registration's bytes come.
//!
//! # Locking
//! One lock for all sets of the process (in-process, spinning; held for nanoseconds to microseconds, never across a
//! sleep or a fork).

pub(crate) mod foreign;
pub(crate) mod mirror;
pub(crate) mod noted;
mod order;
pub(crate) mod stale;

use core::sync::atomic::{AtomicBool, Ordering, fence};

use foreign::Doors;
pub(crate) use foreign::{foreign_doorbell_made, foreign_doorbell_moved};
use libc::{c_int, epoll_event};
pub(crate) use mirror::Mirror;
use mirror::{FORKING, NONE, lock, unlock, with};
use sdp_stats::Reason;
use sdp_sys::{pid::is_single_threaded, tls};

use crate::{
    conn::{Conn, Half, RowFlag, Stage, Waiters},
    process::fork_page::FORK_PAGE,
    wake::{doorbell, strangers},
};

pub(crate) const IN: u32 = libc::EPOLLIN as u32;
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
pub(crate) const ET: u32 = libc::EPOLLET as u32;
pub(crate) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(crate) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Events that pass whatever the ring holds.
pub(crate) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
pub(crate) const IN_KIND: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// What a registration's program has been told of the end of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing.
    Open,
    /// An edge has told it beside the last bytes in the ring. The kernel's event of it is still to come.
    Told,
    /// The kernel's word of it has been passed on: it belongs to each further event.
    Known,
}

/// There may be a set with something on a lane that this process has from its parent, and has not waited on yet.
#[unsafe(link_section = ".bss.hot")]
pub(crate) static HAS_INHERITED: AtomicBool = AtomicBool::new(false);

/// In a fork child: a set has something on a lane.
pub(crate) fn note_inherited() {
    HAS_INHERITED.store(true, Ordering::Relaxed);
}

/// [`crate::process::fork_page::Epoll`].
static SEES_WAITS: &AtomicBool = &FORK_PAGE.epoll.sees_waits;

/// One more number names the set.
pub(crate) fn duplicated(index: u32) {
    with(|m| {
        if let Some(set) = m.set(index) {
            set.refs += 1;
        }
    });
}

/// One number less names the set.
pub(crate) fn closed(index: u32) {
    with(|m| {
        let Some(set) = m.set(index) else { return };
        set.refs -= 1;
        if set.refs > 0 {
            return;
        }
        // The kernel's set goes with its last number.
        (set.anchor, set.hidden, set.doors) = (NONE, None, Doors::default());
        m.each_member(index, |m, at| {
            if let Some(set) = m.set(index) {
                set.anchor = NONE;
            }
            m.remove(at);
        });
        if let Some(set) = m.set(index) {
            set.is_used = false;
        }
    });
}

/// Whether the connection is in a set, as far as we have seen.
pub(crate) fn knows(conn: &Conn) -> bool {
    // The note first: `enlist` moves a registration from it into the mirror, so that one of the two looks finds it.
    !conn.noted.is_empty() || conn.registrations.load(Ordering::Relaxed) != 0
}

/// The connection's last number in this process is about to be closed.
pub(crate) fn forget_conn(conn: &Conn) {
    if !knows(conn) {
        return;
    }
    with(|m| {
        noted::drop_note(m, conn);
        m.each_registration(conn, |m, at, _| m.remove(at));
    });
}

/// The connection's ends meet, or have met: its registrations are in the mirror from here on.
pub(crate) fn meets(conn: &Conn) {
    // Under the lock even if nothing is noted: a thread that has seen it as a candidate may be
    // about to.
    if with(|m| noted::enlist(m, conn)) == Some(true) {
        signal_own_sets();
    }
}

/// The connection has got a segment: its sets need the hidden eventfd, its half must be armed for threads
/// that sleep on them already, and one must look.
pub(crate) fn attached(conn: &Conn) {
    // Pairs with `enter`: a registration that is being made sees the lanes, or is seen.
    fence(Ordering::SeqCst);
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(row) = conn.row() {
        row.flags.insert(RowFlag::InSet, Ordering::SeqCst);
    }
    let sleeps = with(|m| {
        let mut sleeps = false;
        m.each_registration(conn, |m, at, _| sleeps |= welcome(m, at, conn));
        sleeps
    });
    if sleeps == Some(true) {
        signal_own_sets();
    }
}

/// A registration of an attached connection that is new, or new to its lane. True: sleepers must look.
pub(crate) fn welcome(m: &mut Mirror, at: u32, conn: &Conn) -> bool {
    let Some(set) = m.reg(at).map(|reg| {
        reg.reported = 0; // a cursor of lanes that it had before, perhaps
        reg.end = End::Open;
        reg.set
    }) else {
        return false;
    };
    m.learn_lane(at, conn);
    m.push_ready(at);
    let is_first = m.set(set).is_some_and(|set| {
        set.had_lane = true;
        !core::mem::replace(&mut set.has_lane, true)
    });
    let others_sleep = is_first && noted::enlist_all(m, set);
    m.reanchor(set);
    let sleeps = others_sleep || m.set(set).is_some_and(|s| s.sleepers > 0 || s.by_carrier);
    if sleeps {
        mirror::arm(conn);
    }
    sleeps
}

/// The doorbell page has been made.
pub(crate) fn doorbell_made() {
    count_sleepers();
}

/// A thread waits for the set itself: with `poll` or `select`, or by another set that it is in.
pub(crate) fn watched(index: u32) {
    let is_ready = with(|m| {
        let is_new = m.set(index).is_some_and(|s| !s.by_carrier);
        m.use_carrier(index);
        is_new && m.set(index).is_some_and(|s| s.ready_first != NONE)
    });
    if is_ready == Some(true) {
        signal_own_sets();
    }
}

/// Whether the kernel may call a set readable that has nothing for the program: a doorbell is in it.
pub(crate) fn may_seem_readable(index: u32) -> bool {
    with(|m| m.set(index).is_some_and(|s| s.has_lane && s.hidden.is_some())) == Some(true)
}

/// The hidden eventfd has another number now, and `from`, which names it too, is the program's in a moment.
pub(crate) fn doorbell_moved(from: i32) {
    with(|m| {
        for i in m.set_numbers() {
            if m.unhide(i, from) {
                m.reanchor(i);
            }
        }
    });
}

/// The hidden eventfd is about to be closed for good. Others hold duplicates, so that closing alone would
/// leave it in the sets.
pub(crate) fn doorbell_leaves() {
    let event = doorbell::event_fd();
    with(|m| m.set_numbers().for_each(|i| _ = m.unhide(i, event)));
}

/// R10: whether a non-blocking sender of this connection can get EAGAIN when the ring is full: it
/// waits where the library sees it, in sets whose registrations the library understands, and can be
/// woken.
pub(crate) fn can_wait_for_room(conn: &Conn) -> bool {
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return can_be_rung(conn); // waits with poll or select
    }
    with(|m| may_wait_for_room(m, conn)).unwrap_or(false)
}

/// Whether all threads that wait for this connection wait where the library sees it, and can be
/// woken.
pub(crate) fn can_be_rung(conn: &Conn) -> bool {
    let rings = || match conn.stage() {
        Stage::Guarded => strangers::has_device(),
        _ => conn.has(Waiters::PeerHasDoorbell),
    };
    (conn.has(Waiters::Seen) || SEES_WAITS.load(Ordering::Relaxed))
        && rings()
        && !conn.has(Waiters::ByCarrier)
        && doorbell::pages().is_some()
}

/// As [`can_wait_for_room`], under the lock.
pub(crate) fn may_wait_for_room(m: &Mirror, conn: &Conn) -> bool {
    if !can_be_rung(conn) {
        return false;
    }
    m.registrations_of(conn).all(|(_, reg)| reg.events & (ONESHOT | EXCLUSIVE) == 0)
}

/// A sender got EAGAIN: level-triggered registrations must not see the carrier's "writable" until
/// there is room in the ring.
pub(crate) fn sender_waits(conn: &Conn) {
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut is_first = false;
    with(|m| {
        m.each_registration(conn, |m, at, reg| {
            if reg.events & OUT != 0 && reg.events & ET == 0 && !reg.is_stripped {
                m.strip(at, true);
            }
            // Room that came meanwhile is found by the next wait.
            m.push_ready(at);
            if let Some(set) = m.set(reg.set) {
                is_first |= !core::mem::replace(&mut set.has_room_waiters, true);
            }
        });
    });
    if is_first && conn.stage() == Stage::Guarded {
        // A thread that sleeps in the set knows of no time at which to look for room.
        signal_own_sets();
    }
}

/// A wish for room ([`sender_waits`]) is granted to a thread that waits by other means, or in vain:
/// from now on the sets see the carrier's "writable" again.
pub(crate) fn room_granted(conn: &Conn) {
    let asked = conn.flags.remove(Waiters::WantRoom, Ordering::SeqCst).has(Waiters::WantRoom);
    if asked && conn.registrations.load(Ordering::Relaxed) != 0 {
        with(|m| m.grant_room(conn, NONE));
    }
}

/// A sender got EAGAIN for a cause whose end no peer signals: a ring that is full and cannot be
/// left for the carrier at this moment (L2). The carrier's "writable" is true, so a level-triggered
/// program comes back at once; an edge that was reported does not come again unless the library
/// asks the kernel to look anew.
#[cold]
pub(crate) fn sender_comes_back(conn: &Conn) {
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    with(|m| {
        m.each_registration(conn, |m, at, reg| {
            // One with ONESHOT is enabled anew by the program, which has the same effect.
            if reg.events & OUT != 0 && reg.events & (ET | ONESHOT) == ET {
                m.strip(at, false);
            }
        });
    });
}

/// A call may have consumed wake bytes of a connection ([`Waiters::Consumed`]), which the kernel
/// reports to no other thread any more: this puts the connection on the ready lists of its sets,
/// and wakes the threads that sleep in one of them, in `poll`, or for the doorbell in a receive
/// call. Where the process has no doorbell they look again by themselves
/// ([`crate::datapath::wait::BOUNDED_SLEEP_NS`]).
#[inline]
pub(crate) fn wake_bytes_consumed(conn: &Conn) {
    if conn.has(Waiters::Consumed) {
        tell_of_consumed(conn, None);
    }
}

#[cold]
#[inline(never)]
pub(crate) fn tell_of_consumed(conn: &Conn, mirror: Option<&mut Mirror>) {
    let flags = conn.flags.remove(Waiters::Consumed | Waiters::Polled, Ordering::SeqCst);
    let in_a_set = match mirror {
        Some(mirror) => mirror.ready_conn(conn),
        None if conn.registrations.load(Ordering::Relaxed) == 0 => false,
        None => with(|m| m.ready_conn(conn)) == Some(true),
    };
    if in_a_set {
        signal_own_sets();
    } else if !is_single_threaded()
        && (flags.has(Waiters::Polled) || conn.is_used_by_another_call(Half::Receive))
    {
        doorbell::signal_self(conn.index());
    }
}

/// The socket listens from here on: its registrations are no connection's.
pub(crate) fn listens(conn: &Conn) {
    if conn.registrations.load(Ordering::Relaxed) != 0 {
        with(|m| m.each_registration(conn, |m, at, _| m.set_kernels(at, false)));
    }
}

/// Before a fork: no thread is in the middle of a change.
pub(crate) fn fork_prepare() {
    lock();
    FORKING.store(tls::thread_id() as u32, Ordering::Release);
}

/// After a fork, in the parent.
pub(crate) fn fork_parent() {
    FORKING.store(0, Ordering::Release);
    unlock();
}

/// After a fork, in the child: sets are shared with the parent by the kernel, the hidden eventfd in them
/// is the parent's.
pub(crate) fn fork_child() {
    FORKING.store(0, Ordering::Release);
    unlock();
    with(|m| {
        for set in m.each_set() {
            (set.anchor, set.hidden, set.doors) = (NONE, None, Doors::default());
            set.is_silent = false;
            (set.sleepers, set.sleepers_without_doorbell) = (0, 0);
            set.is_inherited = set.members > 0;
            if set.is_inherited && set.has_lane {
                note_inherited();
            }
        }
    });
}

/// A change of a registration that the kernel has just been given.
pub(crate) struct Change {
    pub(crate) set: u32,
    pub(crate) op: c_int,
    pub(crate) fd: c_int,
    pub(crate) wanted: epoll_event,
    /// All but "writable".
    pub(crate) strips: bool,
}

/// The mirror follows a change of a registration of `conn`. True: sleepers must look.
#[inline(always)]
pub(crate) fn follow(m: &mut Mirror, conn: &Conn, change: &Change) -> bool {
    if !conn.has(Waiters::Seen) {
        conn.set(Waiters::Seen);
    }
    if !SEES_WAITS.load(Ordering::Relaxed) {
        SEES_WAITS.store(true, Ordering::Relaxed);
    }
    if noted::suffices(m, conn, change) {
        return false;
    }
    mirrored(m, conn, change)
}

/// [`follow`] for what is in the mirror, or shall be.
pub(crate) fn mirrored(m: &mut Mirror, conn: &Conn, change: &Change) -> bool {
    let Change { set, op, fd, wanted, strips } = *change;
    let (events, data) = (wanted.events, wanted.u64);
    let mut sleeps = noted::enlist(m, conn);
    match (op, m.find(set, conn, fd)) {
        (libc::EPOLL_CTL_DEL, Some(at)) => m.remove(at),
        (libc::EPOLL_CTL_DEL, None) => {}
        (_, Some(at)) => {
            if m.registrations.get(at as usize).is_some_and(|r| r.data != data) {
                m.rehash(at, data);
            }
            if let Some(reg) = m.reg(at) {
                reg.events = events;
                reg.is_disabled = false;
                reg.is_stripped = strips;
                reg.reported = 0;
                reg.end = End::Open;
            }
            sleeps |= enter(m, at, conn);
        }
        (_, None) => match m.add(set, conn, fd, events, data) {
            Some(at) => {
                if let Some(reg) = m.reg(at) {
                    reg.is_stripped = strips;
                }
                sleeps |= enter(m, at, conn);
            }
            // No room: a thread that waits here cannot be woken by the doorbell.
            None => conn.fall_back(Reason::Limit),
        },
    }
    if events & OUT != 0
        && let Some(set) = m.set(set)
    {
        if conn.has(Waiters::WantRoom) {
            // A sender got EAGAIN before this registration: this set's sleeps are bounded from now
            // on.
            set.has_room_waiters = true;
        } else {
            set.wants_writable = true;
        }
    }
    if events & EXCLUSIVE != 0 {
        conn.fall_back(Reason::UnsuitableSocket);
    }
    if events & ONESHOT != 0
        && let Some(set) = m.set(set)
    {
        set.has_oneshots = true;
    }
    sleeps
}

/// A registration was made or changed. True: sleepers must look.
pub(crate) fn enter(m: &mut Mirror, at: u32, conn: &Conn) -> bool {
    fence(Ordering::SeqCst); // pairs with `attached`
    if conn.has_lanes() {
        return welcome(m, at, conn);
    }
    false
}

/// Wakes all threads that sleep for the doorbell.
pub(crate) fn signal_own_sets() {
    doorbell::ring_all();
}

/// The doorbell page exists from now on: threads that sleep already count in it.
pub(crate) fn count_sleepers() {
    let Some(doorbell) = doorbell::pages() else { return };
    with(|m| {
        for set in m.each_set() {
            for _ in 0..core::mem::take(&mut set.sleepers_without_doorbell) {
                doorbell.fall_asleep();
            }
        }
    });
}

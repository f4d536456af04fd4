//! Sets that are waited for themselves: in another set, or by `poll` and `select`.
//!
//! The kernel calls such a set readable as long as a doorbell's edge is left in it, which a program
//! takes out only by a wait on the set; but it may receive without one, and ask again. So what the
//! kernel says is verified here.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use libc::{c_int, epoll_event, sigset_t};
use sdp_sys::{
    errno::Errno,
    fd, sys,
    time::{monotonic_ns, yield_now},
};

use super::{order::collect_bits, wait::milliseconds};
use crate::{
    conn::{self, Half, Stage, Waiters},
    process::{
        self,
        libc_calls::{self, Mask},
        table::{self, Entry},
    },
    readiness::{self, Look},
    wake::{
        arming,
        interest::{
            ET, IN_KIND, ONESHOT, OUT,
            mirror::{Mirror, NONE, REGISTRATIONS, with},
            noted::set_with,
            tell_of_consumed,
        },
    },
};

/// Most sets in others. The kernel's word for any more is passed on as it is.
const MOST: usize = 16;
/// How often a set is looked at that the kernel calls readable, and that has nothing.
const LOOKS: usize = 4;

/// A set in another one. Changes under the mirror's lock.
struct Nested {
    /// Serial numbers of both sets ([`crate::wake::interest::mirror::Set::serial`]); 0: none.
    outer: AtomicU64,
    inner: AtomicU64,
    /// Under which number the inner one was added, and the program's data.
    fd: AtomicI32,
    data: AtomicU64,
}

static NESTED: [Nested; MOST] = [const {
    Nested {
        outer: AtomicU64::new(0),
        inner: AtomicU64::new(0),
        fd: AtomicI32::new(-1),
        data: AtomicU64::new(0),
    }
}; MOST];
/// There has been one.
static ANY: AtomicBool = AtomicBool::new(false);

/// `epoll_ctl` on a set for another set of ours, which `fd` names.
///
/// # Safety
/// `event` is null or a readable event.
#[cold]
pub(super) unsafe fn control(
    (set_fd, outer): (c_int, u32),
    op: c_int,
    (fd, inner): (c_int, u32),
    event: *mut epoll_event,
) -> Result<usize, Errno> {
    // SAFETY: the caller's.
    let done = unsafe { sys!(libc::SYS_epoll_ctl, set_fd, op, fd, event) };
    if done.is_ok() {
        let wanted = match op {
            libc::EPOLL_CTL_DEL => epoll_event { events: 0, u64: 0 },
            // SAFETY: the kernel has read it; packed, so an unaligned read.
            _ => unsafe { event.read_unaligned() },
        };
        // The kernel disables such a registration when it reports it: its events are all passed on.
        let op = if wanted.events & ONESHOT != 0 { libc::EPOLL_CTL_DEL } else { op };
        with(|m| note(m, outer, op, (fd, inner), wanted.u64));
    }
    done
}

fn note(m: &mut Mirror, outer: u32, op: c_int, (fd, inner): (c_int, u32), data: u64) {
    let Some(inner) = m.set(inner).map(|s| s.serial) else { return };
    let Some(set) = m.set(outer) else { return };
    let serial = set.serial;
    let is_it = |n: &&Nested| n.outer.load(Relaxed) == serial && n.fd.load(Relaxed) == fd;
    let known = NESTED.iter().find(is_it);
    if op == libc::EPOLL_CTL_DEL {
        known.into_iter().for_each(|n| n.outer.store(0, Relaxed));
        return;
    }
    set.has_nested = true;
    ANY.store(true, Relaxed);
    // Either of the two has gone.
    let is_free = |n: &&Nested| {
        [&n.outer, &n.inner].iter().any(|serial| set_with(m, serial.load(Relaxed)).is_none())
    };
    let Some(place) = known.or_else(|| NESTED.iter().find(is_free)) else { return };
    place.inner.store(inner, Relaxed);
    place.fd.store(fd, Relaxed);
    place.data.store(data, Relaxed);
    place.outer.store(serial, Relaxed);
}

/// Whether other sets of ours are in this one, or were.
#[inline]
pub(super) fn are_in(set_fd: c_int) -> bool {
    ANY.load(Relaxed)
        && matches!(table::entry(set_fd), Some(Entry::Set(set))
            if with(|m| m.set(set).is_some_and(|s| s.has_nested)) == Some(true))
}

/// [`wait::wait`] on a set with others in it: events of these are passed on where they are true.
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
pub(super) unsafe fn wait(
    set_fd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, Errno>> {
    let Some(Entry::Set(set)) = table::entry(set_fd) else { return None };
    if max <= 0 || events.is_null() {
        return None;
    }
    let until = timeout_ns.map(|ns| monotonic_ns().saturating_add(ns));
    let mut left = timeout_ns;
    loop {
        // SAFETY: the caller's.
        let done = unsafe { super::wait::wait(set_fd, events, max, left, mask) };
        let done = match done {
            Some(done) => done,
            None if process::is_retired() => return None,
            // SAFETY: the caller's.
            None => unsafe {
                let mask = Mask::new(mask);
                libc_calls::epoll_pwait(set_fd, events, max, milliseconds(left), mask)
            },
        };
        let Ok(got) = done else { return Some(done) };
        let mut kept = 0;
        for i in 0..got.min(max as usize) {
            // SAFETY: the wait wrote so many events; packed, so unaligned accesses.
            unsafe {
                let event = events.add(i).read_unaligned();
                if is_true(set, &event) {
                    events.add(kept).write_unaligned(event);
                    kept += 1;
                }
            }
        }
        left = until.map(|until| until.saturating_sub(monotonic_ns()));
        if kept > 0 || got == 0 || left == Some(0) {
            return Some(Ok(kept));
        }
    }
}

/// Whether an event of a set is one for the program: not that of an inner set which has nothing.
fn is_true(outer: u32, event: &epoll_event) -> bool {
    let (events, data) = (event.events, event.u64);
    if events & !IN_KIND != 0 {
        return true;
    }
    let inner = with(|m| {
        let serial = m.set(outer)?.serial;
        let is_it = |n: &&Nested| n.outer.load(Relaxed) == serial && n.data.load(Relaxed) == data;
        let found = NESTED.iter().find(is_it)?;
        let (inner, _) = set_with(m, found.inner.load(Relaxed))?;
        Some((found.fd.load(Relaxed), inner))
    });
    match inner.flatten() {
        // Another descriptor may have the same data: it is its event, where the set is not readable.
        Some((fd, inner)) if table::entry(fd) == Some(Entry::Set(inner)) => {
            fd::readiness(fd, libc::POLLIN) == 0 || has_events(fd, inner)
        }
        _ => true,
    }
}

/// Whether a set that the kernel calls readable has an event for the program.
pub(crate) fn has_events(set_fd: c_int, set: u32) -> bool {
    collect_bits(set);
    let has_none = |m: &mut Mirror| {
        let is_ours = m.set(set).is_some_and(|s| s.by_carrier && s.has_lane);
        let has_none = is_ours && !look_through(m, set);
        if has_none && !needs_device(m, set) {
            m.silence(set);
        }
        has_none
    };
    let is_readable = || fd::readiness(set_fd, libc::POLLIN) != 0;
    for _ in 0..LOOKS {
        if with(has_none) != Some(true) {
            return true;
        }
        if !is_readable() {
            return false;
        }
        if with(|m| are_carriers_read(m, set)) != Some(true) {
            return true;
        }
        // All that wake bytes stand for is looked at anew. A peer counts one behind sending it.
        yield_now();
    }
    true
}

/// Whether messages may come for a set by a device, which tells of them by the doorbells alone.
fn needs_device(m: &mut Mirror, set: u32) -> bool {
    let mut needs_device = false;
    m.each_member(set, |m, at| {
        let conn = m.reg(at).and_then(|reg| conn::get(reg.conn));
        needs_device |= conn.is_some_and(|c| matches!(c.stage(), Stage::Remote | Stage::Guarded));
    });
    needs_device
}

/// Takes wake bytes from the carriers of a set's members, whose messages the program has received.
/// False: a member is readable.
fn are_carriers_read(m: &mut Mirror, set: u32) -> bool {
    let mut are_read = true;
    m.each_member(set, |m, at| {
        let Some(reg) = m.reg(at).map(|r| *r).filter(|reg| are_read && !reg.is_disabled) else {
            return;
        };
        let Some(conn) = conn::get(reg.conn).filter(|conn| conn.has_lanes()) else { return };
        if reg.events & IN_KIND != 0 && conn.acquire_live(Half::Receive) {
            are_read = readiness::try_verify(conn, reg.fd).is_some_and(|v| !v.readable);
            if conn.has(Waiters::Consumed) {
                tell_of_consumed(conn, Some(m));
            }
            conn.release(Half::Receive);
        }
    });
    are_read
}

/// Takes those off a set's ready list that have nothing; whether any is left.
fn look_through(m: &mut Mirror, set: u32) -> bool {
    let Some(last) = m.set(set).map(|s| s.ready_last).filter(|last| *last != NONE) else {
        return false;
    };
    let mut is_there = false;
    for _ in 0..REGISTRATIONS {
        let Some(at) = m.pop_ready(set) else { break };
        if has_event(m, at) {
            m.push_ready(at);
            is_there = true;
        }
        if at == last {
            break;
        }
    }
    is_there
}

/// Whether a wait would report something for this registration, or has to look at it. If not, its connection is armed.
fn has_event(m: &mut Mirror, at: u32) -> bool {
    let Some(reg) = m.reg(at).map(|r| *r).filter(|reg| !reg.is_disabled) else { return false };
    if reg.is_unjudged {
        return true;
    }
    let Some(conn) = conn::get(reg.conn).filter(|conn| conn.has_lanes()) else { return false };
    if reg.events & OUT != 0 && conn.has(Waiters::WantRoom) {
        return true;
    }
    if reg.events & IN_KIND == 0 || !conn.acquire_live(Half::Receive) {
        return false;
    }
    let has_event = match readiness::look_or_arm(conn) {
        Look::Empty => false,
        Look::Busy => true,
        Look::Readable(cursor) if reg.events & ET != 0 && reg.reported == cursor => {
            arming::arm(conn);
            readiness::cursor(conn) != cursor
        }
        Look::Readable(_) => true,
    };
    conn.release(Half::Receive);
    has_event
}

//! epoll sets: the kernel stays the sleeping truth, rings are looked at first.
//!
//! The kernel's registrations are the program's own, with the program's own data. Beside them we keep a
//! mirror of the registrations of tracked stream sockets, keyed by (set, socket, number), so that
//!
//! * a producer's doorbell (a bit in our doorbell page) finds the registrations that it concerns,
//! * a kernel event can be verified: was it a wake byte, or something for the program?
//!
//! A set that contains a connection on a lane also contains the process's hidden eventfd, edge-triggered
//! and never read, under the data of one such registration (its *anchor*), so that a wait that we do not
//! see gets nothing that is not the program's.
//!
//! # Ready list
//! A registration with something in its ring is on its set's ready list: put there by a doorbell
//! bit, taken off when a wait finds its ring empty and has armed it again. A wait therefore costs
//! by its ready connections, not by its registered ones.
//!
//! # Files
//! The mirror, and the events that other rooms report: [`crate::wake::interest`]. `copies`: errors
//! that are none. `end`: the end beside the last bytes. `inherited`: sets that a fork child has from its parent. `nested`: sets that are
//! waited for themselves. `once`: registrations with ONESHOT. `order`: which events a wait reports
//! first. `pause`: a look before it sleeps. `room`: senders that wait for room. `wait`:
//! `epoll_wait`. Here: `epoll_create` and `epoll_ctl`.

mod copies;
mod end;
mod inherited;
mod nested;
mod once;
mod order;
mod pause;
mod room;
mod wait;

pub(crate) use copies::settle;
use libc::{c_int, epoll_event, sigset_t};
pub(crate) use nested::has_events;
use sdp_sys::{errno::Errno, sys};

use crate::{
    conn::{self, Waiters, publish},
    migration::{handover, unseen},
    process::{
        self,
        table::{self, Entry},
    },
    wake::interest::{
        Change, ET, EXCLUSIVE, ONESHOT, OUT, closed, follow,
        mirror::{self, make_mirror, with},
        signal_own_sets, stale, watched,
    },
};

/// `epoll_wait` on a set of ours. `None`: pass the call on.
///
/// # Safety
/// `events` is writable for `max` events; `mask` is null or a signal set.
#[inline]
pub(crate) unsafe fn wait(
    set_fd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's.
    unsafe {
        if nested::are_in(set_fd) {
            return nested::wait(set_fd, events, max, timeout_ns, mask);
        }
        wait::wait(set_fd, events, max, timeout_ns, mask)
    }
}

/// After `epoll_create`.
#[unsafe(link_section = ".text.open")]
pub(crate) fn created(epfd: i32) {
    if process::is_retired() || !process::is_ours() || !make_mirror() {
        return process::forget(epfd);
    }
    process::forget(epfd);
    let index = with(|m| m.open_set(epfd)).flatten();
    if let Some(index) = index {
        process::note_descriptor(epfd);
        if table::put(epfd, Entry::Set(index)).is_err() {
            closed(index); // the kernel's alone
        }
    }
}

/// `epoll_ctl` on a set of ours. `None`: pass the call on.
///
/// # Safety
/// `event` is null or a readable event.
pub(crate) unsafe fn control(
    set_fd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<Result<usize, Errno>> {
    if op == libc::EPOLL_CTL_ADD
        && let Some(Entry::Set(inner)) = table::entry(fd)
        && process::is_ours()
    {
        watched(inner);
    }
    let Some(Entry::Set(set)) = table::entry(set_fd) else {
        if op != libc::EPOLL_CTL_DEL {
            unseen::about_to_have(set_fd, fd);
        }
        return None;
    };
    if !process::is_ours() {
        return None;
    }
    if op == libc::EPOLL_CTL_ADD {
        handover::claim_copy(fd);
    }
    let conn = match table::entry(fd) {
        Some(Entry::Conn(index)) => conn::get(index)?,
        Some(Entry::Hidden) => return Some(Err(Errno::EBADF)),
        _ => {
            if op != libc::EPOLL_CTL_DEL && !event.is_null() && stale::latest() != 0 {
                // From here on events under this data can be matched to their owner. SAFETY: the
                // caller's; packed, so an unaligned read.
                let data = unsafe { event.read_unaligned() }.u64;
                with(|m| m.stale_data.forget(set, data));
            }
            if let Some(Entry::Set(inner)) = table::entry(fd)
                && (op == libc::EPOLL_CTL_DEL || !event.is_null())
            {
                // SAFETY: the caller's.
                return Some(unsafe { nested::control((set_fd, set), op, (fd, inner), event) });
            }
            return None;
        }
    };
    publish::show_listener(conn);
    if event.is_null() && op != libc::EPOLL_CTL_DEL {
        return None;
    }
    let wanted = if event.is_null() {
        epoll_event { events: 0, u64: 0 }
    } else {
        // SAFETY: the caller's; epoll_event is packed, so an unaligned read.
        unsafe { event.read_unaligned() }
    };
    // While the ring is full, "writable" is not the carrier's to say. One edge too many does no harm, but one with
    // ONESHOT that is not for the program would have to be enabled again, and come again at once.
    let strips = wanted.events & OUT != 0
        && wanted.events & (ET | ONESHOT) != ET
        && wanted.events & EXCLUSIVE == 0
        && conn.has(Waiters::WantRoom)
        && !super::sender_may_go_on(conn);
    let mut m = mirror::locked()?;
    let mut passed =
        epoll_event { events: wanted.events & !if strips { OUT } else { 0 }, ..wanted };
    let event = if event.is_null() { event } else { &raw mut passed };
    // SAFETY: null or our copy of the caller's event.
    let done = unsafe { sys!(libc::SYS_epoll_ctl, set_fd, op, fd, event) };
    let sleeps = done.is_ok() && follow(&mut m, conn, &Change { set, op, fd, wanted, strips });
    drop(m);
    if sleeps {
        signal_own_sets();
    }
    if op != libc::EPOLL_CTL_DEL && done.is_ok() && conn.has_lanes() {
        crate::migration::demote::entered_set(conn, fd);
    }
    Some(done)
}

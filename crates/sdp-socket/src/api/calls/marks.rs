//! Results of waits in which a connection shows an error that is none: the copy of a marked packet
//! ([`crate::migration::across::marks`]).
//!
//! Called by the hooks after a wait, whoever made it. An error without a copy is the program's.

use core::slice;

use libc::{c_int, epoll_event, pollfd};

use crate::{conn::carrier, migration::across::marks};

/// Whether there may be such a result. One load.
#[inline]
pub fn may_have_copies() -> bool {
    marks::may_be()
}

/// Corrects the result of `poll`: how many entries are left. 0: the wait is to be made again.
///
/// # Safety
/// `fds` has `count` entries.
pub unsafe fn settle_poll(fds: *mut pollfd, count: usize, ready: c_int) -> c_int {
    // SAFETY: the caller's.
    let fds = unsafe { slice::from_raw_parts_mut(fds, count) };
    let mut left = ready;
    for entry in fds.iter_mut().filter(|entry| entry.revents & libc::POLLERR != 0) {
        if marks::take_of(entry.fd) {
            entry.revents &= !libc::POLLERR | carrier::readiness(entry.fd, 0);
            left -= c_int::from(entry.revents == 0);
        }
    }
    left
}

/// Corrects the result of `epoll_wait`: how many events are left. 0: the wait is to be made again.
///
/// # Safety
/// `events` has `count` entries.
pub unsafe fn settle_epoll(events: *mut epoll_event, count: c_int) -> c_int {
    const ERR: u32 = libc::EPOLLERR as u32;
    const OVER: u32 = (libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;
    // SAFETY: the caller's.
    let events = unsafe { slice::from_raw_parts_mut(events, count as usize) };
    // An event does not say whose it is. A connection that has an error of its own has ended, too.
    let is_suspect = |event: &epoll_event| event.events & (ERR | OVER) == ERR;
    if !events.iter().any(is_suspect) || !marks::take_all() {
        return count;
    }
    let mut left = 0;
    for at in 0..events.len() {
        let Some(mut event) = events.get(at).copied() else { break };
        if is_suspect(&event) {
            event.events &= !ERR;
        }
        if event.events != 0
            && let Some(to) = events.get_mut(left)
        {
            *to = event;
            left += 1;
        }
    }
    left as c_int
}

//! Results of waits in which a connection shows an error that is none: the copy of a marked packet
//! ([`crate::migration::across::marks`]).
//!
//! Called by the hooks after a wait, whoever made it. An error without a copy is the program's.

use core::slice;

use libc::{c_int, epoll_event, fd_set, pollfd};
use sdp_sys::fd;

use crate::{
    migration::across::marks,
    process::libc_calls::FdSet,
    readiness::{SELECT_BITS, epoll},
};

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
        if marks::is_gone(entry.fd) {
            entry.revents &= !libc::POLLERR;
            left -= c_int::from(entry.revents == 0);
        }
    }
    left
}

/// Corrects the result of `epoll_wait`: how many events are left. 0: the wait is to be made again.
///
/// # Safety
/// `events` has `count` entries.
pub unsafe fn settle_epoll(set: c_int, events: *mut epoll_event, count: c_int) -> c_int {
    // SAFETY: the caller's.
    epoll::settle(set, unsafe { slice::from_raw_parts_mut(events, count as usize) }) as c_int
}

/// Descriptors that the copies of sets have room for.
const KEPT: usize = libc::FD_SETSIZE;
const WORD: usize = u64::BITS as usize;

/// The sets of a `select`, as the program gave them, where copies may show.
pub struct SelectSets {
    at: [*mut fd_set; 3],
    bits: usize,
    /// `None`: they cannot be restored.
    kept: Option<[[u64; KEPT / WORD]; 3]>,
}

impl SelectSets {
    /// The sets as a wait has left them, of which there are no copies.
    ///
    /// # Safety
    /// As [`SelectSets::keep`].
    pub const unsafe fn of_result(count: c_int, at: [*mut fd_set; 3]) -> Self {
        let bits = if count > 0 { count as usize } else { 0 };
        Self { at, bits, kept: None }
    }

    /// # Safety
    /// Each set is null, or readable and writable for `count` bits, in whole words, as long as this
    /// value is used.
    pub unsafe fn keep(count: c_int, at: [*mut fd_set; 3]) -> Self {
        // SAFETY: the caller's.
        let mut sets = unsafe { Self::of_result(count, at) };
        let bits = sets.bits;
        if bits <= KEPT && may_have_copies() {
            let mut kept = [[0; KEPT / WORD]; 3];
            for (to, from) in kept.iter_mut().zip(at).filter(|(_, from)| !from.is_null()) {
                for (i, word) in to.iter_mut().enumerate().take(bits.div_ceil(WORD)) {
                    // SAFETY: within the set, by the caller's promise.
                    *word = unsafe { from.cast::<u64>().wrapping_add(i).read_unaligned() };
                }
            }
            sets.kept = Some(kept);
        }
        sets
    }

    /// Corrects the result of a `select` that found `ready` entries; how many are left. 0: the sets
    /// are as they were, and the wait is to be made again. (The kernel calls a socket with an error
    /// readable and writable.)
    #[cold]
    pub fn settle(&self, ready: c_int) -> c_int {
        // SAFETY: by the contract of `keep`.
        let [read, write, _] = self.at.map(|at| unsafe { FdSet::new(at, self.bits) });
        let mut left = ready;
        for fd in 0..self.bits.min(SELECT_BITS) {
            let is_shown = read.has(fd) || write.has(fd);
            if !is_shown || marks::has_lanes(fd as c_int) || !marks::is_gone(fd as c_int) {
                continue;
            }
            let now = fd::readiness(fd as c_int, libc::POLLIN | libc::POLLOUT);
            let shown = [
                (read, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
                (write, libc::POLLOUT | libc::POLLERR),
            ];
            for (set, means) in shown {
                // Where the sets cannot be restored the last entry stays: the call is over by it.
                if set.has(fd) && now & means == 0 && (left > 1 || self.kept.is_some()) {
                    set.clear(fd);
                    left -= 1;
                }
            }
        }
        if left == 0 {
            self.restore();
        }
        left
    }

    fn restore(&self) {
        let kept = self.kept.iter().flatten();
        for (from, to) in kept.zip(self.at).filter(|(_, to)| !to.is_null()) {
            for (i, word) in from.iter().enumerate().take(self.bits.div_ceil(WORD)) {
                // SAFETY: within the set, by the contract of `keep`.
                unsafe { to.cast::<u64>().wrapping_add(i).write_unaligned(*word) };
            }
        }
    }
}

//! Calls with one buffer: the fast path of the lane first.

use libc::{c_int, iovec};

use super::{Call, done_unless_retired, recv};
use crate::{
    conn::{Laned, iovec::Buffers},
    datapath::{fast, receive},
    hosts,
    wake::interest,
};

/// `recv` and `read` into one buffer: tries the fast path first.
///
/// # Safety
/// See the module.
#[inline]
#[unsafe(link_section = ".text.hot")]
pub unsafe fn recv_one(fd: c_int, iov: &iovec, flags: c_int) -> Call {
    match if fast::is_simple(flags) { fast::lane(fd) } else { None } {
        Some(Laned::Segment) => {
            let (to, len) = (iov.iov_base.cast::<u8>(), iov.iov_len);
            // SAFETY: the program's buffer.
            match unsafe { fast::receive(fd, to, len) } {
                Some(fast::Received::Done(n)) => return Call::Done(n as isize),
                Some(fast::Received::Partly(n)) => {
                    let rest = iovec { iov_base: to.wrapping_add(n).cast(), iov_len: len - n };
                    // SAFETY: the rest of the program's buffer.
                    let buffers = unsafe { Buffers::new(&raw const rest, 1) };
                    let more = buffers.map_or(0, |mut rest| receive::rest_of(fd, &mut rest));
                    return Call::Done((n + more) as isize);
                }
                Some(fast::Received::Empty | fast::Received::Later) | None => {}
            }
        }
        // SAFETY: the caller's.
        Some(Laned::QueuePair) => return unsafe { recv_by_queue_pair(fd, iov, flags) },
        // SAFETY: the caller's.
        Some(Laned::Unmet) => return unsafe { recv_unmet(fd, iov, flags) },
        None => {}
    }
    // SAFETY: the caller's.
    unsafe { recv(fd, iov, 1, flags) }
}

/// [`recv_one`] on a connection with a queue pair.
///
/// # Safety
/// See the module.
#[inline(never)]
unsafe fn recv_by_queue_pair(fd: c_int, iov: &iovec, flags: c_int) -> Call {
    // SAFETY: the program's buffer.
    let got = unsafe { hosts::fast::receive(fd, iov.iov_base.cast(), iov.iov_len) };
    // SAFETY: the caller's.
    got.map_or_else(|| unsafe { recv(fd, iov, 1, flags) }, |n| Call::Done(n as isize))
}

/// [`recv_one`] on a connection that may have a queue pair soon.
///
/// # Safety
/// See the module.
#[inline(never)]
unsafe fn recv_unmet(fd: c_int, iov: &iovec, flags: c_int) -> Call {
    // SAFETY: the program's buffer.
    match unsafe { hosts::unmet::receive(fd, iov.iov_base.cast(), iov.iov_len, flags) } {
        Some(result) => {
            hosts::take_new(interest::attached);
            done_unless_retired(result)
        }
        // SAFETY: the caller's.
        None => unsafe { recv(fd, iov, 1, flags) },
    }
}

/// `send` and `write` from one buffer, by the fast path: how many bytes. `None`: nothing was sent,
/// and [`send`] is to be tried.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn send_one(fd: c_int, from: *const u8, len: usize, flags: c_int) -> Option<usize> {
    match if fast::is_simple(flags) { fast::lane(fd) } else { None } {
        // SAFETY: the program's buffer.
        Some(Laned::Segment) => unsafe { fast::send(fd, from, len) }.then_some(len),
        // SAFETY: the program's buffer.
        Some(Laned::QueuePair) => unsafe { hosts::fast::send(fd, from, len, flags) },
        // SAFETY: the program's buffer.
        Some(Laned::Unmet) => unsafe { hosts::unmet::send(fd, from, len, flags) },
        None => None,
    }
}

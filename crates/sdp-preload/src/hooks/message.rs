//! Messages with vectors and control data, one or many per call.

use core::ptr;
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use sdp_socket::{
    calls::{self, Call},
    options::flags::MSG_CMSG_COMPAT as CMSG_COMPAT,
};
use sdp_sys::time;

use super::slowly;
use crate::{errno, real};

/// Most messages that the kernel takes in one `sendmmsg` (`UIO_MAXIOV`); of `recvmmsg` it takes all.
const MESSAGES: c_uint = 1024;
const NANOSECONDS: i64 = 1_000_000_000;

/// After a receive that the socket layer did not make: descriptors may have arrived. The header is
/// looked into only now, when the kernel has accepted it: a bad pointer is `EFAULT`, not a fault.
#[inline]
unsafe fn arrived(fd: c_int, msg: *const msghdr, result: ssize_t) -> ssize_t {
    // SAFETY: the kernel accepted the header, so it is readable.
    if result >= 0 && unsafe { (*msg).msg_controllen } != 0 {
        // SAFETY: the kernel accepted the header and wrote the control data, so both are readable.
        unsafe { calls::received_descriptors(fd, msg) };
    }
    result
}

/// Whether a message to be sent has control data that matters.
#[inline]
unsafe fn has_control(msg: *const msghdr) -> bool {
    // SAFETY: the program's header, not null.
    calls::involved() && !msg.is_null() && unsafe { (*msg).msg_controllen } != 0
}

/// The function to call for one message: the next definition of the name, or for `syscall` libc's.
pub(super) type Receive = unsafe fn(c_int, *mut msghdr, c_int) -> ssize_t;
pub(super) type Send = unsafe fn(c_int, *const msghdr, c_int) -> ssize_t;

#[inline]
pub(super) unsafe fn receive_one(
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
    real: Receive,
) -> ssize_t {
    // SAFETY: the program's header.
    unsafe {
        if !calls::is_tracked(fd) {
            return arrived(fd, msg, real(fd, msg, flags));
        }
        answer!(calls::recvmsg(fd, msg, flags), flags, arrived(fd, msg, real(fd, msg, flags)))
    }
}

#[inline]
pub(super) unsafe fn send_one(fd: c_int, msg: *const msghdr, flags: c_int, real: Send) -> ssize_t {
    // SAFETY: the program's header.
    unsafe {
        if !calls::is_tracked(fd) && !has_control(msg) || flags & libc::MSG_FASTOPEN != 0 {
            return real(fd, msg, flags);
        }
        slowly(move || answer!(calls::sendmsg(fd, msg, flags), flags, real(fd, msg, flags)))
    }
}

/// `recvmmsg`, which `real` makes for descriptors without a lane.
#[inline]
pub(super) unsafe fn receive_all(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
    one: Receive,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program's array, filled as far as the result says.
    unsafe {
        let is_refused = msgs.is_null() || flags & CMSG_COMPAT != 0;
        let call =
            if calls::is_tracked(fd) && !is_refused { calls::recvmmsg(fd) } else { Call::Pass };
        if let Call::Done(_) = call {
            return receive_many(fd, msgs, n, flags, timeout, one);
        }
        let result = real();
        let mut bytes = 0;
        for i in 0..usize::try_from(result).unwrap_or(0) {
            arrived(fd, ptr::from_ref(&(*msgs.add(i)).msg_hdr), 0);
            bytes += (*msgs.add(i)).msg_len as isize;
        }
        if let Call::Counted(ticket) = call {
            calls::finish(ticket, bytes, flags);
        }
        result
    }
}

/// `sendmmsg`. Also taken apart for an untracked socket when any message has control data: descriptors that are passed on
/// leave their lanes before.
#[inline]
pub(super) unsafe fn send_all(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    one: Send,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program's array.
    unsafe {
        if calls::is_tracked(fd) && !msgs.is_null() {
            return send_many(fd, msgs, n, flags, one);
        }
        if !msgs.is_null() {
            for i in 0..n.min(MESSAGES) as usize {
                if has_control(ptr::from_ref(&(*msgs.add(i)).msg_hdr)) {
                    return send_many(fd, msgs, n, flags, one);
                }
            }
        }
        real()
    }
}

/// `recvmmsg` on a stream of ours, with the kernel's rules: the time limit is looked at after each
/// message, `MSG_WAITFORONE` makes the rest non-blocking, an error is reported only when nothing was
/// received before it.
#[cold]
unsafe fn receive_many(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
    real: Receive,
) -> c_int {
    let mut flags = flags;
    let mut limit = None;
    if !timeout.is_null() {
        // SAFETY: the program's, not null.
        let t = unsafe { *timeout };
        if t.tv_sec < 0 || !(0..NANOSECONDS).contains(&t.tv_nsec) {
            errno::set(libc::EINVAL);
            return -1;
        }
        let ns = t.tv_sec.saturating_mul(NANOSECONDS).saturating_add(t.tv_nsec);
        limit = Some(time::monotonic_ns().saturating_add(ns as u64));
    }
    let mut done: c_uint = 0;
    while done < n {
        // SAFETY: the program's array has n entries.
        let entry = unsafe { msgs.add(done as usize) };
        let wait = flags & !libc::MSG_WAITFORONE;
        // SAFETY: done < n: an entry of the program's array.
        let result = unsafe { receive_one(fd, &raw mut (*entry).msg_hdr, wait, real) };
        if result < 0 {
            if done == 0 {
                return -1;
            }
            calls::keep_error(fd, errno::get());
            break;
        }
        // SAFETY: done < n: an entry of the program's array, which the kernel has just accepted.
        let out_of_band = unsafe {
            (*entry).msg_len = result as c_uint;
            (*entry).msg_hdr.msg_flags & libc::MSG_OOB != 0
        };
        done = done.wrapping_add(1);
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if let Some(limit) = limit {
            let left = limit.saturating_sub(time::monotonic_ns()) as i64;
            // SAFETY: the program's, not null.
            unsafe {
                (*timeout).tv_sec = left / NANOSECONDS;
                (*timeout).tv_nsec = left % NANOSECONDS;
            }
            if left == 0 {
                break;
            }
        }
        if out_of_band {
            break;
        }
    }
    done as c_int
}

/// Bytes of a message.
unsafe fn length(msg: *const msghdr) -> usize {
    // SAFETY: a message header, with as many vectors as it says.
    unsafe {
        let count = (*msg).msg_iovlen;
        (0..count).fold(0, |sum, i| sum.saturating_add((*(*msg).msg_iov.add(i)).iov_len))
    }
}

#[cold]
unsafe fn send_many(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, real: Send) -> c_int {
    let mut done: c_uint = 0;
    let mut is_short = false;
    while done < n.min(MESSAGES) && !is_short {
        // SAFETY: the program's array has n entries, and the call has read the buffers that they
        // point to.
        let result = unsafe {
            let entry = msgs.add(done as usize);
            let result = send_one(fd, &raw const (*entry).msg_hdr, flags, real);
            if result >= 0 {
                (*entry).msg_len = result as c_uint;
                // The kernel goes on behind a whole message only, or there would be a gap in the stream.
                is_short = (result as usize) < length(&raw const (*entry).msg_hdr);
            }
            result
        };
        if result < 0 {
            if done == 0 {
                return -1;
            }
            break;
        }
        done = done.wrapping_add(1);
    }
    done as c_int
}

hooks! {
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
        receive_one(fd, msg, flags, real::recvmsg)
    }

    fn recvmmsg(
        fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int {
        receive_all(fd, msgs, n, flags, timeout, real::recvmsg, move || {
            real::recvmmsg(fd, msgs, n, flags, timeout)
        })
    }

    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        send_one(fd, msg, flags, real::sendmsg)
    }

    fn __sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        send_one(fd, msg, flags, real::sendmsg)
    }

    fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
        send_all(fd, msgs, n, flags, real::sendmsg, move || real::sendmmsg(fd, msgs, n, flags))
    }
}

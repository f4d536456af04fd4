//! epoll sets.

use core::ptr;
use libc::{c_int, epoll_event, sigset_t, timespec};
use sdp_socket::calls::{self, Call};

use super::poll::{is_valid, milliseconds, pointer};
use super::slowly;
use crate::{errno, real};

#[inline]
pub(super) fn created(set: c_int) -> c_int {
    if set >= 0 {
        calls::epoll_created(set);
    }
    set
}

#[cold]
#[inline(never)]
unsafe fn wait_ms(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
    real: impl Fn() -> c_int,
) -> c_int {
    let limit = milliseconds(timeout);
    // SAFETY: the program's array; the timeout lives on this stack.
    let wait =
        || match unsafe { calls::epoll_wait(set, events, max, pointer(limit.as_ref()), mask) } {
            Call::Done(result) => errno::from_result(result) as c_int,
            Call::Pass | Call::Counted(_) | Call::EarlyWait => real(),
        };
    // SAFETY: the wait has written as many events as it says.
    unsafe { settled(events, wait) }
}

/// The result of a wait, without an error that is none.
///
/// # Safety
/// `events` has as many events as `wait` says.
unsafe fn settled(events: *mut epoll_event, wait: impl Fn() -> c_int) -> c_int {
    loop {
        let ready = wait();
        if ready <= 0 || !calls::may_have_copies() {
            return ready;
        }
        // SAFETY: the caller's.
        match unsafe { calls::settle_epoll(events, ready) } {
            0 => {}
            left => return left,
        }
    }
}

hooks! {
    fn epoll_create(size: c_int) -> c_int {
        created(real::epoll_create(size))
    }

    #[unsafe(link_section = ".text.open")]
    fn epoll_create1(flags: c_int) -> c_int {
        created(real::epoll_create1(flags))
    }

    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if !calls::is_tracked(set) && !calls::is_tracked(fd) {
            return real::epoll_ctl(set, op, fd, event);
        }
        slowly(move || {
            answer!(calls::epoll_ctl(set, op, fd, event), real::epoll_ctl(set, op, fd, event))
        })
    }

    fn epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        if !calls::is_tracked(set) {
            return real::epoll_wait(set, events, max, timeout);
        }
        wait_ms(set, events, max, timeout, ptr::null(), move || {
            real::epoll_wait(set, events, max, timeout)
        })
    }

    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int {
        if !calls::is_tracked(set) {
            return real::epoll_pwait(set, events, max, timeout, mask);
        }
        wait_ms(set, events, max, timeout, mask, move || {
            real::epoll_pwait(set, events, max, timeout, mask)
        })
    }

    fn epoll_pwait2(
        set: c_int, events: *mut epoll_event, max: c_int,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if !calls::is_tracked(set) || !is_valid(timeout) {
            return real::epoll_pwait2(set, events, max, timeout, mask);
        }
        slowly(move || settled(events, || match calls::epoll_wait(set, events, max, timeout, mask) {
            Call::Done(result) => errno::from_result(result) as c_int,
            Call::Pass | Call::Counted(_) | Call::EarlyWait => real::epoll_pwait2(set, events, max, timeout, mask),
        }))
    }
}

//! epoll sets.

use core::ptr;
use libc::{c_int, epoll_event, sigset_t, timespec};
use sdp_socket::calls::{self, Call};

use super::poll::{is_valid, milliseconds, pointer, settled, to_milliseconds};
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
    real: impl Fn(c_int) -> c_int,
) -> c_int {
    let limit = milliseconds(timeout);
    // SAFETY: the program's pointers.
    unsafe {
        wait_for(set, events, max, limit, mask, &|left| real(left.map_or(-1, to_milliseconds)))
    }
}

#[inline(never)]
unsafe fn wait_for(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    limit: Option<timespec>,
    mask: *const sigset_t,
    real: &dyn Fn(Option<&timespec>) -> c_int,
) -> c_int {
    // SAFETY: the program's array; the timeout lives on this stack.
    let wait = |left: Option<&timespec>| match unsafe {
        calls::epoll_wait(set, events, max, pointer(left), mask)
    } {
        Call::Done(result) => errno::from_result(result) as c_int,
        Call::Pass | Call::Counted(_) | Call::EarlyWait => real(left),
    };
    // SAFETY: the wait has written as many events as it says.
    settled(limit, &wait, &|ready| unsafe { calls::settle_epoll(set, events, ready) })
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
        wait_ms(set, events, max, timeout, ptr::null(), move |left| {
            real::epoll_wait(set, events, max, left)
        })
    }

    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int {
        if !calls::is_tracked(set) {
            return real::epoll_pwait(set, events, max, timeout, mask);
        }
        wait_ms(set, events, max, timeout, mask, move |left| {
            real::epoll_pwait(set, events, max, left, mask)
        })
    }

    fn epoll_pwait2(
        set: c_int, events: *mut epoll_event, max: c_int,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if !calls::is_tracked(set) || !is_valid(timeout) {
            return real::epoll_pwait2(set, events, max, timeout, mask);
        }
        slowly(move || wait_for(set, events, max, timeout.as_ref().copied(), mask, &|left| {
            real::epoll_pwait2(set, events, max, pointer(left), mask)
        }))
    }
}

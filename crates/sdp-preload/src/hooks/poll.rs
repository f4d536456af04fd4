//! Waiting for many descriptors: poll and select.
//!
//! The socket layer takes one form of timeout, a `timespec`; the conversions are here. When it has
//! nothing to say, the very function that the program called is called: a cancellation point with the
//! program's own arguments.

use core::ptr;
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use sdp_socket::calls::{self, Call};
use sdp_sys::time;

use crate::{errno, real};

const MICROSECONDS: i64 = 1_000_000;
const NANOSECONDS: i64 = 1_000_000_000;

/// Milliseconds as libc counts them; negative: for ever.
pub(super) fn milliseconds(timeout: c_int) -> Option<timespec> {
    (timeout >= 0).then(|| timespec {
        tv_sec: i64::from(timeout / 1000),
        tv_nsec: i64::from(timeout % 1000) * 1_000_000,
    })
}

/// A pointer to the timeout, null for ever.
pub(super) fn pointer(timeout: Option<&timespec>) -> *const timespec {
    timeout.map_or(ptr::null(), ptr::from_ref)
}

/// Whether the kernel would accept the timeout.
///
/// # Safety
/// `timeout` is null or readable.
pub(super) unsafe fn is_valid(timeout: *const timespec) -> bool {
    // SAFETY: the caller's promise.
    timeout.is_null()
        || unsafe { (*timeout).tv_sec >= 0 && (0..NANOSECONDS).contains(&(*timeout).tv_nsec) }
}

#[inline(never)]
unsafe fn poll_ms(fds: *mut pollfd, n: nfds_t, timeout: c_int, real: impl Fn() -> c_int) -> c_int {
    let limit = milliseconds(timeout);
    // SAFETY: the program's array; the timeout lives on this stack.
    let wait =
        || match unsafe { calls::poll(fds, n as usize, pointer(limit.as_ref()), ptr::null()) } {
            Call::Done(result) => errno::from_result(result) as c_int,
            Call::EarlyWait => early(&real),
            Call::Pass | Call::Counted(_) => real(),
        };
    // SAFETY: the program's array.
    unsafe { settled(fds, n, wait) }
}

/// The result of a wait, without an error that is none.
///
/// # Safety
/// `fds` has `n` entries, if `wait` finds a ready one.
unsafe fn settled(fds: *mut pollfd, n: nfds_t, wait: impl Fn() -> c_int) -> c_int {
    loop {
        let ready = wait();
        if ready <= 0 || !calls::may_have_copies() {
            return ready;
        }
        // SAFETY: the caller's.
        match unsafe { calls::settle_poll(fds, n as usize, ready) } {
            0 => {}
            left => return left,
        }
    }
}

#[inline(never)]
unsafe fn poll_until(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    real: impl Fn() -> c_int,
) -> c_int {
    // SAFETY: the program's pointers.
    if !unsafe { is_valid(timeout) } {
        return real();
    }
    // SAFETY: the program's pointers.
    let wait = || match unsafe { calls::poll(fds, n as usize, timeout, mask) } {
        Call::Done(result) => errno::from_result(result) as c_int,
        Call::EarlyWait => early(&real),
        Call::Pass | Call::Counted(_) => real(),
    };
    // SAFETY: the program's array.
    unsafe { settled(fds, n, wait) }
}

/// The program's own wait, for connections that may come onto a lane meanwhile.
pub(super) fn early<R>(real: impl FnOnce() -> R) -> R {
    let result = real();
    calls::early_wait_over(); // does not touch errno
    result
}

/// Whether the array really holds `n` entries; if not, libc's fortified function ends the program.
fn fits(n: nfds_t, room: size_t) -> bool {
    room as u64 / size_of::<pollfd>() as u64 >= n
}

/// `select`. Linux writes the remaining time into `timeout`, whatever the outcome.
#[inline(never)]
pub(super) unsafe fn select_us(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *mut timeval,
    real: impl Fn() -> c_int,
) -> c_int {
    let mut limit = None;
    if !timeout.is_null() {
        // SAFETY: the program's, not null.
        let t = unsafe { *timeout };
        if t.tv_sec < 0 || t.tv_usec < 0 {
            return real();
        }
        limit = Some(timespec {
            tv_sec: t.tv_sec.saturating_add(t.tv_usec / MICROSECONDS),
            tv_nsec: t.tv_usec % MICROSECONDS * 1000,
        });
    }
    let start = if limit.is_some() { time::monotonic_ns() } else { 0 };
    // SAFETY: the program's sets; the timeout lives on this stack.
    let call = unsafe { calls::select(n, r, w, e, pointer(limit.as_ref()), ptr::null()) };
    let result = match call {
        Call::Done(result) => result,
        Call::EarlyWait => return early(real),
        Call::Pass | Call::Counted(_) => return real(),
    };
    if let Some(limit) = limit {
        let whole = limit.tv_sec.saturating_mul(NANOSECONDS).saturating_add(limit.tv_nsec);
        let spent = time::monotonic_ns().saturating_sub(start);
        let left = whole.saturating_sub(i64::try_from(spent).unwrap_or(i64::MAX)).max(0);
        // SAFETY: the program's, not null.
        unsafe {
            (*timeout).tv_sec = left / NANOSECONDS;
            (*timeout).tv_usec = left % NANOSECONDS / 1000;
        }
    }
    errno::from_result(result) as c_int
}

hooks! {
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        if !calls::concerns(fds, n as usize) {
            return real::poll(fds, n, timeout);
        }
        poll_ms(fds, n, timeout, move || real::poll(fds, n, timeout))
    }

    fn __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        if !calls::concerns(fds, n as usize) {
            return real::poll(fds, n, timeout);
        }
        poll_ms(fds, n, timeout, move || real::poll(fds, n, timeout))
    }

    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int {
        if !fits(n, room) || !calls::concerns(fds, n as usize) {
            return real::__poll_chk(fds, n, timeout, room);
        }
        poll_ms(fds, n, timeout, move || real::__poll_chk(fds, n, timeout, room))
    }

    fn ppoll(
        fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if !calls::concerns(fds, n as usize) {
            return real::ppoll(fds, n, timeout, mask);
        }
        poll_until(fds, n, timeout, mask, move || real::ppoll(fds, n, timeout, mask))
    }

    fn __ppoll_chk(
        fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t,
    ) -> c_int {
        if !fits(n, room) || !calls::concerns(fds, n as usize) {
            return real::__ppoll_chk(fds, n, timeout, mask, room);
        }
        poll_until(fds, n, timeout, mask, move || real::__ppoll_chk(fds, n, timeout, mask, room))
    }

    fn select(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        if !calls::involved() {
            return real::select(n, r, w, e, timeout);
        }
        select_us(n, r, w, e, timeout, move || real::select(n, r, w, e, timeout))
    }

    fn __select(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        if !calls::involved() {
            return real::select(n, r, w, e, timeout);
        }
        select_us(n, r, w, e, timeout, move || real::select(n, r, w, e, timeout))
    }

    /// Unlike `select`, leaves the program's timeout alone.
    fn pselect(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if !calls::involved() || !is_valid(timeout) {
            return real::pselect(n, r, w, e, timeout, mask);
        }
        match calls::select(n, r, w, e, timeout, mask) {
            Call::Done(result) => errno::from_result(result) as c_int,
            Call::EarlyWait => early(|| real::pselect(n, r, w, e, timeout, mask)),
            Call::Pass | Call::Counted(_) => real::pselect(n, r, w, e, timeout, mask),
        }
    }
}

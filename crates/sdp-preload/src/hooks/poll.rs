//! Waiting for many descriptors: poll and select.
//!
//! The socket layer takes one form of timeout, a `timespec`; the conversions are here. When it has
//! nothing to say, the very function that the program called is called: a cancellation point with the
//! program's own arguments.

use core::ptr;
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use sdp_socket::calls::{self, Call, SelectSets};
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
unsafe fn poll_ms(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: c_int,
    real: impl Fn(c_int) -> c_int,
) -> c_int {
    let limit = milliseconds(timeout);
    // SAFETY: the program's array.
    unsafe { poll_for(fds, n, limit, ptr::null(), &|left| real(left.map_or(-1, to_milliseconds))) }
}

/// Rounded up, as the kernel does.
pub(super) fn to_milliseconds(time: &timespec) -> c_int {
    let ms = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(ms).unwrap_or(c_int::MAX)
}

/// The result of a wait for this long, without an error that is none ([`calls::may_have_copies`]).
/// `settle`: how many of the ready ones are left; for 0 the rest of the time is waited.
#[inline(never)]
pub(super) fn settled(
    limit: Option<timespec>,
    wait: &dyn Fn(Option<&timespec>) -> c_int,
    settle: &dyn Fn(c_int) -> c_int,
) -> c_int {
    let mut since = calls::may_have_copies().then(time::monotonic_ns);
    let mut left = limit;
    loop {
        let ready = wait(left.as_ref());
        if ready <= 0 || !calls::may_have_copies() {
            return ready;
        }
        match settle(ready) {
            // Where the first copy of the process came during this wait, its time begins with that.
            0 => {
                let since = *since.get_or_insert_with(time::monotonic_ns);
                left = limit.map(|limit| rest(&limit, since));
            }
            left => return left,
        }
    }
}

/// Of a time that began then.
fn rest(limit: &timespec, since: u64) -> timespec {
    let whole = limit.tv_sec.saturating_mul(NANOSECONDS).saturating_add(limit.tv_nsec);
    let spent = time::monotonic_ns().saturating_sub(since);
    let left = whole.saturating_sub(i64::try_from(spent).unwrap_or(i64::MAX)).max(0);
    timespec { tv_sec: left / NANOSECONDS, tv_nsec: left % NANOSECONDS }
}

#[inline(never)]
unsafe fn poll_for(
    fds: *mut pollfd,
    n: nfds_t,
    limit: Option<timespec>,
    mask: *const sigset_t,
    real: &dyn Fn(Option<&timespec>) -> c_int,
) -> c_int {
    // SAFETY: the program's pointers; the timeout lives on this stack.
    let wait = |left: Option<&timespec>| match unsafe {
        calls::poll(fds, n as usize, pointer(left), mask)
    } {
        Call::Done(result) => errno::from_result(result) as c_int,
        Call::EarlyWait => early(|| real(left)),
        Call::Pass | Call::Counted(_) => real(left),
    };
    // SAFETY: the program's array, in which the wait has found something.
    settled(limit, &wait, &|ready| unsafe { calls::settle_poll(fds, n as usize, ready) })
}

#[inline(never)]
unsafe fn poll_until(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    real: impl Fn(*const timespec) -> c_int,
) -> c_int {
    // SAFETY: the program's pointers.
    unsafe {
        if !is_valid(timeout) {
            return real(timeout);
        }
        poll_for(fds, n, timeout.as_ref().copied(), mask, &|left| real(pointer(left)))
    }
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
    if calls::may_have_copies() {
        // SAFETY: the caller's.
        return unsafe { select_beside_copies(n, [r, w, e], timeout, &real) };
    }
    // SAFETY: the program's pointers.
    let ready = unsafe { select_once(n, r, w, e, timeout, &real) };
    if ready <= 0 || !calls::may_have_copies() {
        return ready;
    }
    // SAFETY: the program's sets, in which the wait has found something.
    unsafe { settle_result(n, [r, w, e], ready) }
}

/// The first copy came during the wait, before which nobody kept the sets.
#[cold]
#[inline(never)]
unsafe fn settle_result(n: c_int, at: [*mut fd_set; 3], ready: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { SelectSets::of_result(n, at) }.settle(ready)
}

/// `select` where copies of marked packets may show. A function of its own: its copies of the sets are large for a stack.
#[cold]
#[inline(never)]
unsafe fn select_beside_copies(
    n: c_int,
    [r, w, e]: [*mut fd_set; 3],
    timeout: *mut timeval,
    real: &impl Fn() -> c_int,
) -> c_int {
    // SAFETY: the program's sets, until this returns.
    let sets = unsafe { SelectSets::keep(n, [r, w, e]) };
    loop {
        // SAFETY: the program's pointers.
        let ready = unsafe { select_once(n, r, w, e, timeout, real) };
        if ready <= 0 {
            return ready;
        }
        match sets.settle(ready) {
            0 => {} // for the time that is left
            left => return left,
        }
    }
}

unsafe fn select_once(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *mut timeval,
    real: &impl Fn() -> c_int,
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
        let left = rest(&limit, start);
        // SAFETY: the program's, not null.
        unsafe {
            (*timeout).tv_sec = left.tv_sec;
            (*timeout).tv_usec = left.tv_nsec / 1000;
        }
    }
    errno::from_result(result) as c_int
}

/// `pselect`, which, unlike `select`, leaves the program's timeout alone.
#[inline(never)]
unsafe fn select_until(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
    real: impl Fn(*const timespec) -> c_int,
) -> c_int {
    // SAFETY: the program's sets and timeout, until this returns.
    let (sets, limit) = unsafe { (SelectSets::keep(n, [r, w, e]), timeout.as_ref().copied()) };
    let wait = |left: Option<&timespec>| {
        let timeout = pointer(left);
        // SAFETY: the program's pointers.
        match unsafe { calls::select(n, r, w, e, timeout, mask) } {
            Call::Done(result) => errno::from_result(result) as c_int,
            Call::EarlyWait => early(|| real(timeout)),
            Call::Pass | Call::Counted(_) => real(timeout),
        }
    };
    settled(limit, &wait, &|ready| sets.settle(ready))
}

hooks! {
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        if !calls::concerns(fds, n as usize) {
            return real::poll(fds, n, timeout);
        }
        poll_ms(fds, n, timeout, move |left| real::poll(fds, n, left))
    }

    fn __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        if !calls::concerns(fds, n as usize) {
            return real::poll(fds, n, timeout);
        }
        poll_ms(fds, n, timeout, move |left| real::poll(fds, n, left))
    }

    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int {
        if !fits(n, room) || !calls::concerns(fds, n as usize) {
            return real::__poll_chk(fds, n, timeout, room);
        }
        poll_ms(fds, n, timeout, move |left| real::__poll_chk(fds, n, left, room))
    }

    fn ppoll(
        fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if !calls::concerns(fds, n as usize) {
            return real::ppoll(fds, n, timeout, mask);
        }
        poll_until(fds, n, timeout, mask, move |left| real::ppoll(fds, n, left, mask))
    }

    fn __ppoll_chk(
        fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t,
    ) -> c_int {
        if !fits(n, room) || !calls::concerns(fds, n as usize) {
            return real::__ppoll_chk(fds, n, timeout, mask, room);
        }
        poll_until(fds, n, timeout, mask, move |left| real::__ppoll_chk(fds, n, left, mask, room))
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

    fn pselect(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if !calls::involved() || !is_valid(timeout) {
            return real::pselect(n, r, w, e, timeout, mask);
        }
        select_until(n, r, w, e, timeout, mask, move |left| real::pselect(n, r, w, e, left, mask))
    }
}

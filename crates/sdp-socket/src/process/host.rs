//! Blocking calls that must go through libc, because a cancelled thread is cancelled inside them.

use core::{
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t, timespec};
use sdp_sys::{errno::Errno, sys};

use crate::process::settings;

/// `ppoll` of libc (the next definition in the chain, never ours).
pub type Ppoll =
    unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
/// `epoll_pwait` of libc (the next definition in the chain, never ours).
pub type EpollPwait =
    unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;

/// What the host has to do before the first connection.
pub type Settle = extern "C" fn();

static PPOLL: AtomicUsize = AtomicUsize::new(0);
static EPOLL_PWAIT: AtomicUsize = AtomicUsize::new(0);
static SETTLE: AtomicUsize = AtomicUsize::new(0);

/// Tells the socket layer where the real waits are, and what to call before the first connection. Called once, by
/// the preload library's constructor; without it raw system calls are used.
pub fn install(ppoll: Ppoll, epoll_pwait: EpollPwait, settle: Settle) {
    PPOLL.store(ppoll as usize, Ordering::Release);
    EPOLL_PWAIT.store(epoll_pwait as usize, Ordering::Release);
    SETTLE.store(settle as usize, Ordering::Release);
}

/// Before the process's first connection: once, and not again after a change of privilege.
pub(crate) fn settle() {
    let settle = SETTLE.swap(0, Ordering::AcqRel);
    if settle != 0 {
        // SAFETY: `install` stored a function of this type.
        let settle: Settle = unsafe { core::mem::transmute(settle) };
        settle();
    }
}

/// The error number that a libc call has just left.
fn last_errno() -> Errno {
    // SAFETY: the location is the calling thread's.
    Errno(unsafe { *libc::__errno_location() })
}

/// Polls; may block, may be cancelled. `mask`: null for none.
pub(crate) fn ppoll(
    fds: &mut [pollfd],
    timeout: Option<&timespec>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    settings::attend();
    let timeout = timeout.map_or(ptr::null(), ptr::from_ref);
    let real = PPOLL.load(Ordering::Acquire);
    if real == 0 {
        // The kernel writes the remaining time back.
        let mut copy = if timeout.is_null() {
            timespec { tv_sec: 0, tv_nsec: 0 }
        } else {
            // SAFETY: not null: made from a reference above.
            unsafe { *timeout }
        };
        let timeout = if timeout.is_null() { ptr::null_mut() } else { &raw mut copy };
        // SAFETY: everything outlives the call.
        return unsafe { sys!(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, mask, 8) };
    }
    // SAFETY: `install` stored a function of this type.
    let real: Ppoll = unsafe { core::mem::transmute(real) };
    // SAFETY: everything outlives the call.
    let n = unsafe { real(fds.as_mut_ptr(), fds.len() as nfds_t, timeout, mask) };
    if n < 0 { Err(last_errno()) } else { Ok(n as usize) }
}

/// Waits on an epoll set; may block, may be cancelled.
///
/// # Safety
/// `events` is writable for `max` events; `mask` is null or a signal set.
pub(crate) unsafe fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    settings::attend();
    let real = EPOLL_PWAIT.load(Ordering::Acquire);
    if real == 0 {
        // SAFETY: the caller's.
        return unsafe {
            sys!(libc::SYS_epoll_pwait, set, events, max, timeout_ms as isize, mask, 8)
        };
    }
    // SAFETY: `install` stored a function of this type.
    let real: EpollPwait = unsafe { core::mem::transmute(real) };
    // SAFETY: the caller's.
    let n = unsafe { real(set, events, max, timeout_ms, mask) };
    if n < 0 { Err(last_errno()) } else { Ok(n as usize) }
}

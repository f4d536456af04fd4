//! Blocking calls that must go through libc, because a cancelled thread is cancelled inside them.

use core::sync::atomic::{AtomicUsize, Ordering};

/// `ppoll` of libc (the next definition in the chain, never ours).
pub type Ppoll = unsafe extern "C" fn(
    *mut libc::pollfd,
    libc::nfds_t,
    *const libc::timespec,
    *const libc::sigset_t,
) -> libc::c_int;
/// `epoll_pwait` of libc (the next definition in the chain, never ours).
pub type EpollPwait = unsafe extern "C" fn(
    libc::c_int,
    *mut libc::epoll_event,
    libc::c_int,
    libc::c_int,
    *const libc::sigset_t,
) -> libc::c_int;

static PPOLL: AtomicUsize = AtomicUsize::new(0);
static EPOLL_PWAIT: AtomicUsize = AtomicUsize::new(0);

/// Tells the socket layer where the real waits are. Called once, by the preload library's
/// constructor; without it raw system calls are used.
pub fn install(ppoll: Ppoll, epoll_pwait: EpollPwait) {
    PPOLL.store(ppoll as usize, Ordering::Release);
    EPOLL_PWAIT.store(epoll_pwait as usize, Ordering::Release);
}

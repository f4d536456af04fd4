//! Blocking calls that must go through libc, because a cancelled thread is cancelled inside them.
//!
//! Called by `readiness` and `datapath/wait.rs`; `install` by the preload library's constructor.

use core::{
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec};
use sdp_sys::{errno::Errno, sys};

use crate::process::settings;

/// `ppoll` of libc (the next definition in the chain, never ours).
pub type Ppoll =
    unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
/// `epoll_pwait` of libc (the next definition in the chain, never ours).
pub type EpollPwait =
    unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
/// `pselect` of libc (the next definition in the chain, never ours).
pub type Pselect = unsafe extern "C" fn(
    c_int,
    *mut fd_set,
    *mut fd_set,
    *mut fd_set,
    *const timespec,
    *const sigset_t,
) -> c_int;

/// The preload library's work before the first connection.
pub type FirstConnection = extern "C" fn();

static PPOLL: AtomicUsize = AtomicUsize::new(0);
static EPOLL_PWAIT: AtomicUsize = AtomicUsize::new(0);
static PSELECT: AtomicUsize = AtomicUsize::new(0);
static FIRST_CONNECTION: AtomicUsize = AtomicUsize::new(0);

/// Gives the socket layer the functions for real waits, and one to call before the first
/// connection. Called once, by the preload library's constructor; without it raw system calls are
/// used.
pub fn install(
    ppoll: Ppoll,
    epoll_pwait: EpollPwait,
    pselect: Pselect,
    first_connection: FirstConnection,
) {
    PPOLL.store(ppoll as usize, Ordering::Release);
    EPOLL_PWAIT.store(epoll_pwait as usize, Ordering::Release);
    PSELECT.store(pselect as usize, Ordering::Release);
    FIRST_CONNECTION.store(first_connection as usize, Ordering::Release);
}

/// Before the process's first connection: once, and not again after a change of privilege.
pub(crate) fn first_connection() {
    let first_connection = FIRST_CONNECTION.swap(0, Ordering::AcqRel);
    if first_connection != 0 {
        // SAFETY: `install` stored a function of this type.
        let first_connection: FirstConnection = unsafe { core::mem::transmute(first_connection) };
        first_connection();
    }
}

/// The error number that a libc call has just left.
fn last_errno() -> Errno {
    // SAFETY: the location is the calling thread's.
    Errno(unsafe { *libc::__errno_location() })
}

/// The set of signals that the program hands to a wait. The kernel reads it, and libc on the way
/// there; nothing else.
#[derive(Clone, Copy)]
pub(crate) struct Mask(*const sigset_t);

impl Mask {
    /// The signals that the thread lets through.
    pub(crate) const NONE: Self = Self(ptr::null());

    /// # Safety
    /// Null, or the set that the program passed to a wait that has not returned yet.
    pub(crate) unsafe fn new(mask: *const sigset_t) -> Self {
        Self(mask)
    }

    /// Whether there is none.
    pub(crate) fn is_none(self) -> bool {
        self.0.is_null()
    }
}

/// A set of descriptors that the program hands to `select`, as far as the call looks at it.
#[derive(Clone, Copy)]
pub(crate) struct FdSet {
    at: *mut u64,
    bits: usize,
}

impl FdSet {
    /// # Safety
    /// Null, or readable and writable for `bits` bits, in whole words at any address, until the
    /// call returns.
    pub(crate) unsafe fn new(at: *mut fd_set, bits: usize) -> Self {
        Self { at: at.cast(), bits }
    }

    /// The word of a descriptor, and its bit there. `None`: it is beyond the set, or there is none.
    fn place(self, fd: usize) -> Option<(*mut u64, u64)> {
        let is_inside = fd < self.bits && !self.at.is_null();
        is_inside.then(|| (self.at.wrapping_add(fd / 64), 1 << (fd % 64)))
    }

    /// Whether a descriptor is in it.
    pub(crate) fn has(self, fd: usize) -> bool {
        // SAFETY: within the program's set, by the contract of `new`.
        self.place(fd).is_some_and(|(word, bit)| unsafe { word.read_unaligned() } & bit != 0)
    }

    /// Puts a descriptor in.
    fn put(self, fd: usize) {
        if let Some((word, bit)) = self.place(fd) {
            // SAFETY: within the set, by the contract of `new`.
            unsafe { word.write_unaligned(word.read_unaligned() | bit) };
        }
    }

    /// Takes a descriptor out.
    pub(crate) fn clear(self, fd: usize) {
        if let Some((word, bit)) = self.place(fd) {
            // SAFETY: within the program's set, by the contract of `new`.
            unsafe { word.write_unaligned(word.read_unaligned() & !bit) };
        }
    }
}

/// Polls; may block, may be cancelled.
pub(crate) fn ppoll(
    fds: &mut [pollfd],
    timeout: Option<&timespec>,
    Mask(mask): Mask,
) -> Result<usize, Errno> {
    settings::attend();
    let real = PPOLL.load(Ordering::Acquire);
    if real == 0 {
        // The kernel writes the remaining time back.
        let mut copy = timeout.copied();
        let timeout = copy.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: everything outlives the call.
        return unsafe { sys!(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, mask, 8) };
    }
    let timeout = timeout.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `install` stored a function of this type.
    let real: Ppoll = unsafe { core::mem::transmute(real) };
    // SAFETY: everything outlives the call.
    let n = unsafe { real(fds.as_mut_ptr(), fds.len() as nfds_t, timeout, mask) };
    if n < 0 { Err(last_errno()) } else { Ok(n as usize) }
}

/// [`ppoll`] for calls that may wait for as many descriptors as they like: `poll` accepts no more entries than the process
/// may have descriptors, by a limit that may have been lowered since.
pub(crate) fn ppoll_any(
    fds: &mut [pollfd],
    timeout: Option<&timespec>,
    mask: Mask,
) -> Result<usize, Errno> {
    match ppoll(fds, timeout, mask) {
        Err(Errno::EINVAL) => select_instead(fds, timeout, mask),
        other => other,
    }
}

/// Numbers that fit in a set of `select`.
const SELECT_NUMBERS: usize = 1024;
/// The longest sleep where something is waited for that `select` does not tell.
const UNTOLD: timespec = timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The same by `select`, which asks for no limit. What it cannot tell (higher numbers, the end of a stream alone) is looked
/// at every ten milliseconds.
#[cold]
#[inline(never)]
fn select_instead(
    fds: &mut [pollfd],
    timeout: Option<&timespec>,
    Mask(mask): Mask,
) -> Result<usize, Errno> {
    const KINDS: [(i16, i16); 3] = [
        (libc::POLLIN | libc::POLLRDNORM, libc::POLLIN),
        (libc::POLLOUT | libc::POLLWRNORM, libc::POLLOUT),
        (libc::POLLPRI, libc::POLLPRI),
    ];
    let mut words = [[0u64; SELECT_NUMBERS / 64]; 3];
    let (mut count, mut is_told) = (0, true);
    // SAFETY: arrays of so many bits, each used by this call alone.
    let sets =
        words.each_mut().map(|set| unsafe { FdSet::new(set.as_mut_ptr().cast(), SELECT_NUMBERS) });
    for entry in fds.iter_mut() {
        entry.revents = 0;
        let Ok(fd) = usize::try_from(entry.fd) else { continue };
        is_told &= fd < SELECT_NUMBERS && KINDS.iter().any(|(of, _)| entry.events & of != 0);
        for (set, (of, _)) in sets.iter().zip(KINDS) {
            if fd < SELECT_NUMBERS && entry.events & of != 0 {
                set.put(fd);
                count = count.max(fd + 1);
            }
        }
    }
    let is_long = timeout.is_none_or(|t| t.tv_sec > 0 || t.tv_nsec > UNTOLD.tv_nsec);
    let timeout = if is_told || !is_long { timeout } else { Some(&UNTOLD) };
    let [read, write, except] = sets.map(|set| set.at.cast::<fd_set>());
    let real = PSELECT.load(Ordering::Acquire);
    let n = if real == 0 {
        let mut copy = timeout.copied();
        let timeout = copy.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: everything outlives the call. A mask is left out, which only a program without libc's calls has.
        unsafe { sys!(libc::SYS_pselect6, count, read, write, except, timeout, 0) }?
    } else {
        let timeout = timeout.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `install` stored a function of this type.
        let real: Pselect = unsafe { core::mem::transmute(real) };
        // SAFETY: everything outlives the call.
        match unsafe { real(count as c_int, read, write, except, timeout, mask) } {
            -1 => return Err(last_errno()),
            n => n as usize,
        }
    };
    for entry in fds.iter_mut().filter(|_| n != 0) {
        for (set, (of, means)) in sets.iter().zip(KINDS) {
            if entry.fd >= 0 && entry.events & of != 0 && set.has(entry.fd as usize) {
                entry.revents |= means;
            }
        }
    }
    Ok(n)
}

/// Waits on an epoll set; may block, may be cancelled.
///
/// # Safety
/// `events` is writable for `max` events.
pub(crate) unsafe fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
    Mask(mask): Mask,
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

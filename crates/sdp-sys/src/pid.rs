//! Process identity and death.

use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};

use crate::{
    OwnedFd,
    errno::Errno,
    fd,
    kernel::{self, owned},
    libcs, stat, tls,
};

/// Whether a process counts as one with a single thread where libc knows of no second one: it does while these are
/// the bits.
#[unsafe(link_section = ".bss.hot")]
static SHARED: AtomicU8 = AtomicU8::new(0);
/// Something was made to run on this process's memory by other means than libc's: it may be a thread that
/// libc does not know. Or a thread was cancelled. Set before, never cleared.
const THREADED: u8 = 1;
/// A thread lent its memory to a child and has not been seen since. A call that looks whether there
/// is a second thread looks for the child, too.
const LENT: u8 = 2;
/// libc reports whether there is a second thread. Not known before [`ask_libc`].
const BY_LIBC: u8 = 4;

/// Where libc's own knowledge of whether the process has a second thread is; null where it has none (musl).
#[unsafe(link_section = ".bss.hot")]
static KNOWLEDGE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Asks whether libc reports a second thread, as glibc has done since 2.32. Once, before
/// [`is_single_threaded`] may say yes; false: this is another C library.
pub fn ask_libc() -> bool {
    // The first in the order of look-ups: a program may have a copy of the variable.
    // SAFETY: one of the loader's constants.
    let at = unsafe { libcs::symbol(libc::RTLD_DEFAULT, c"__libc_single_threaded") }.cast();
    KNOWLEDGE.store(at, Relaxed);
    let is_known = !at.is_null();
    if is_known {
        SHARED.fetch_or(BY_LIBC, Relaxed);
    }
    is_known
}

/// Whether the calling thread is the only one that can touch this process's memory: libc knows of no
/// other, and neither `clone` nor a raw system call made one behind its back. Nor is it a vfork child, which runs
/// alone, but on other descriptors. Stays true until this very thread makes another one or a child, so it never
/// becomes false within a section ([`crate::section`]).
#[inline(always)]
pub fn is_single_threaded() -> bool {
    // SAFETY: where libc reports it, it is a byte that only libc writes; read like any other flag.
    SHARED.load(Relaxed) == BY_LIBC && unsafe { KNOWLEDGE.load(Relaxed).read_volatile() } != 0
}

/// This process's id, from the kernel each time (a cached copy would be wrong after a raw clone).
#[inline]
pub fn current() -> i32 {
    kernel::getpid().map_or(0, |pid| pid as i32)
}

/// The parent's id; 0 where that is outside this process namespace.
pub fn parent() -> u32 {
    kernel::getppid().unwrap_or(0) as u32
}

/// The real user's id.
pub fn user() -> u32 {
    kernel::getuid().unwrap_or(0) as u32
}

/// The effective user's id. An error: a filter of system calls.
pub fn effective_user() -> Result<u32, Errno> {
    kernel::geteuid().map(|uid| uid as u32)
}

/// Duplicates descriptor `number` of process `pid` into this process, if we may.
pub fn descriptor_of(pid: i32, number: u32) -> Result<OwnedFd, Errno> {
    descriptor_in(owned(kernel::pidfd_open(pid))?.raw(), number)
}

/// [`descriptor_of`] for the process that a pidfd names.
pub fn descriptor_in(process: i32, number: u32) -> Result<OwnedFd, Errno> {
    owned(kernel::pidfd_getfd(process, number))
}

/// Ends the process at once: no handlers, nothing flushed.
pub fn exit(code: i32) -> ! {
    loop {
        let _ = kernel::exit_group(code);
    }
}

/// Whether the caller may be a vfork child of process `owner`, running on its memory: free unless
/// this thread called vfork before; then one system call finds out.
#[inline]
pub fn is_borrowed(owner: u32) -> bool {
    let slot = tls::slot(tls::Slot::Borrowed);
    if slot.load(Relaxed) == 0 {
        return false;
    }
    if current() as u32 != owner {
        return true;
    }
    // The parent runs again only when its vfork child is gone.
    slot.store(0, Relaxed);
    SHARED.fetch_and(!LENT, Relaxed);
    false
}

/// Whether this thread called vfork and may be its child: without asking the kernel.
#[inline(always)]
pub fn may_be_borrowed() -> bool {
    tls::slot(tls::Slot::Borrowed).load(Relaxed) != 0
}

/// The process counts as one with several threads from here on.
#[inline]
pub fn count_as_threaded() {
    SHARED.fetch_or(THREADED, Relaxed);
}

/// The calling thread is about to give its memory to a child, and waits until that is gone or has a
/// memory of its own. Memory that is lent by a process that borrowed it stays borrowed.
#[inline]
pub fn lend() {
    SHARED.fetch_or(LENT, Relaxed);
    tls::slot(tls::Slot::Borrowed).fetch_or(LENDS, Relaxed);
}

/// Bits of [`tls::Slot::Borrowed`].
const LENDS: usize = 1;
const FORKS: usize = 2;

/// Notes that the calling thread, which runs on borrowed memory, forks: the child has its
/// descriptors, of which the copied memory has no record.
pub fn begin_borrowed_fork() {
    tls::slot(tls::Slot::Borrowed).fetch_or(FORKS, Relaxed);
}

/// After a fork, on both sides: whether it was one after [`begin_borrowed_fork`].
pub fn end_borrowed_fork() -> bool {
    let slot = tls::slot(tls::Slot::Borrowed);
    // Not written unless it must be: in a fork child that would cost a copy of the page.
    slot.load(Relaxed) & FORKS != 0 && slot.fetch_and(!FORKS, Relaxed) & FORKS != 0
}

/// In a fork child, whose only thread has just forked: it has lent nothing.
pub fn forked() {
    if SHARED.load(Relaxed) & LENT != 0 {
        SHARED.fetch_and(!LENT, Relaxed);
        tls::slot(tls::Slot::Borrowed).fetch_and(FORKS, Relaxed);
    }
}

/// Whether process `pid` has ended: `pidfd_open` returns ESRCH, or the descriptor polls readable (a
/// zombie has ended too, which `kill(pid, 0)` would not show). A reused id counts as alive, and so
/// does a process about which that cannot be found out: safe, merely slow.
pub fn is_dead(pid: i32) -> bool {
    match owned(kernel::pidfd_open(pid)) {
        Err(e) => e == Errno::ESRCH,
        Ok(pidfd) => has_ended(pidfd.raw()),
    }
}

/// [`is_dead`], or it is being torn down: that closes its sockets before it counts as dead.
pub fn has_ended_or_is_about_to(pid: i32) -> bool {
    is_dead(pid) || crate::holders::is_exiting(pid)
}

/// Whether process `pid` is stopped by a signal or a tracer, as far as /proc shows.
pub fn is_stopped(pid: i32) -> bool {
    matches!(crate::holders::state_of(pid), Some(b'T' | b't'))
}

/// Whether the process that a pidfd names has ended.
pub fn has_ended(pidfd: i32) -> bool {
    fd::readiness(pidfd, libc::POLLIN) != 0
}

/// The same, or it ends within so many milliseconds: a process that is being torn down closes its
/// sockets before it counts as ended.
pub fn ends_within(pidfd: i32, ms: u32) -> bool {
    if ms == 0 || has_ended(pidfd) {
        return has_ended(pidfd);
    }
    let mut set = [libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 }];
    let mut time =
        libc::timespec { tv_sec: i64::from(ms / 1000), tv_nsec: i64::from(ms % 1000) * 1_000_000 };
    kernel::poll(&mut set, Some(&mut time)).is_ok_and(|ready| ready == 1)
}

/// Whether this process's children are born into another process namespace than its own, by the
/// kernel's word. False where it cannot be found out (no `/proc`).
pub fn has_children_elsewhere() -> bool {
    let inode = |path: &core::ffi::CStr| stat::of_path(path).map(|stat| stat.id);
    // A namespace that has no process yet does not show.
    inode(c"/proc/self/ns/pid").is_ok_and(|own| inode(c"/proc/self/ns/pid_for_children") != Ok(own))
}

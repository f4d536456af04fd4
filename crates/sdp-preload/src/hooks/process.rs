//! Processes: fork in its spellings, terminals that fork or replace descriptors, and the end.
//!
//! A vfork child runs on its parent's memory: nothing that it does here may leave a trace. The
//! socket layer's functions see to that themselves; the decision made here (the orderly end) asks
//! [`is_borrowed`]. One table has the meaning of a process's numbers, so a process that shares the
//! memory but not the descriptors, or the descriptors but not the memory, and does not keep its
//! parent waiting meanwhile, ends the lanes of the process before ([`begin`]). So does a process
//! that runs beside its parent on the words of the same thread.
//!
//! A program's `pthread_atfork` handlers run in the child before `fork` returns there, when nothing
//! is the child's yet: a connection that they close or shut down would end the parent's. Those that
//! run before may wait for a thread that waits for a lock which we hold over the fork. So before
//! the first handlers of the program we register some of our own, which libc runs last before the
//! fork ([`last_before`]) and first in the child ([`first_in_child`]).

use core::ffi::c_void;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use libc::{c_char, c_int, pid_t, pthread_t, termios, winsize};
use sdp_socket::calls::{self, Leave};
use sdp_sys::{pid, sys, tls};

use super::privilege;
use crate::real;

/// Remembers the process: in the constructor and in a fork child. Its id.
pub(crate) fn own() -> pid_t {
    let id = pid::current();
    calls::hooks().owner.store(id, Ordering::Relaxed);
    id
}

/// Whether the caller is a vfork child (or a raw clone of the process), so that nothing here is its
/// to change. One system call.
pub(super) fn is_borrowed() -> bool {
    let owner = calls::hooks().owner.load(Ordering::Relaxed);
    owner != 0 && owner != pid::current()
}

/// The calling thread is not in the middle of a fork.
const NOT_FORKING: usize = 0;
/// It is, and [`last_before`] prepares that.
const UNPREPARED: usize = 1;
/// It is, and that has been prepared.
const PREPARED: usize = 2;

/// One of these, of the innermost fork: a handler may fork.
fn forking() -> &'static AtomicUsize {
    tls::slot(tls::Slot::Forking)
}

/// Before a fork with which libc runs the program's handlers; returns the earlier value of
/// [`forking`].
#[unsafe(link_section = ".text.hot.parent")]
fn prepare() -> usize {
    if ARE_REGISTERED.load(Ordering::Acquire) != YES {
        return prepare_now();
    }
    let before = forking().load(Ordering::Relaxed);
    forking().store(UNPREPARED, Ordering::Relaxed);
    before
}

/// Before another one.
#[unsafe(link_section = ".text.hot.parent")]
fn prepare_now() -> usize {
    let before = forking().load(Ordering::Relaxed);
    forking().store(PREPARED, Ordering::Relaxed);
    calls::fork_prepare();
    before
}

/// After it, in the parent.
#[unsafe(link_section = ".text.hot.parent")]
fn parent(result: pid_t, before: usize) {
    // It may have failed too early.
    if forking().load(Ordering::Relaxed) == PREPARED {
        calls::fork_parent(result);
    }
    forking().store(before, Ordering::Relaxed);
}

/// Whether the calling thread is in the middle of a fork, for which everything has been done: another preloaded library
/// may make it by `syscall`.
pub(super) fn is_forking() -> bool {
    if forking().load(Ordering::Relaxed) == UNPREPARED {
        prepare_now();
    }
    forking().load(Ordering::Relaxed) != NOT_FORKING
}

/// A child with its own copy of the memory starts.
fn child() {
    tls::forked();
    forking().store(NOT_FORKING, Ordering::Relaxed);
    calls::fork_child((!privilege::is_sandboxed()).then(own));
}

/// libc runs it before a fork, after all handlers of the program's. A fork of libc's own is none of it.
unsafe extern "C" fn last_before() {
    if forking().load(Ordering::Relaxed) == UNPREPARED {
        prepare_now();
    }
}

/// libc runs it in a fork child before any handler of the program's. A fork that this thread has not
/// prepared (one of libc's own) is none of it.
unsafe extern "C" fn first_in_child() {
    if calls::is_forking() {
        child();
        calls::hooks().begun.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether [`first_in_child`] has begun the child that `fork` returns in; once for each such return.
fn has_begun() -> bool {
    let begun = &calls::hooks().begun;
    let count = begun.load(Ordering::Relaxed);
    if count != 0 {
        begun.store(count - 1, Ordering::Relaxed); // the child has no other thread yet
    }
    count != 0
}

/// Whether our handlers are registered.
static ARE_REGISTERED: AtomicU8 = AtomicU8::new(NO);
const NO: u8 = 0;
const NOW: u8 = 1;
const YES: u8 = 2;
/// Looks at a registration that another thread is making. In a child that thread may be missing.
const LOOKS: u32 = 1000;

/// Before the program's first handlers: ours.
fn register_first() {
    let state = &ARE_REGISTERED;
    match state.compare_exchange(NO, NOW, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            let (before, child) = (last_before as *const c_void, first_in_child as *const c_void);
            let object = (&raw const ARE_REGISTERED).cast_mut().cast();
            // SAFETY: functions that are there as long as the process: this library is never
            // unloaded. The last argument only distinguishes objects that are.
            let failed =
                unsafe { real::__register_atfork(before, core::ptr::null(), child, object) } != 0;
            state.store(if failed { NO } else { YES }, Ordering::Release);
        }
        Err(NOW) => {
            for _ in 0..LOOKS {
                if state.load(Ordering::Acquire) != NOW {
                    break;
                }
                sdp_sys::time::yield_now();
            }
        }
        Err(_) => {}
    }
}

/// The two sides of a fork, distinguished by its result. `before`: of [`prepare`].
fn forked(result: pid_t, before: usize) -> pid_t {
    if result == 0 {
        if !has_begun() {
            child();
        }
        forking().store(before, Ordering::Relaxed);
    } else {
        parent(result, before);
    }
    result
}

/// A terminal or the null device has taken the places of the standard descriptors.
fn standard_descriptors_replaced() {
    for fd in libc::STDIN_FILENO..=libc::STDERR_FILENO {
        calls::new_descriptor(fd);
    }
}

/// Before `clone` with these flags: whether it is a fork, into a memory of its own.
pub(super) fn begin(flags: u64) -> bool {
    let has = |flag: c_int| flags & u64::from(flag as u32) != 0;
    let (shares_memory, shares_files) = (has(libc::CLONE_VM), has(libc::CLONE_FILES));
    // A thread with its creator's words, both running, could not even count its sections.
    let shares_words = shares_memory && !has(libc::CLONE_SETTLS);
    let waits = has(libc::CLONE_VFORK);
    if shares_words && !shares_files && waits && !has(libc::CLONE_THREAD) {
        sdp_sys::pid::lend();
        return false;
    }
    if shares_memory {
        sdp_sys::pid::count_as_threaded();
    }
    let parts = shares_memory != shares_files || shares_words && !waits;
    if parts && !privilege::is_sandboxed() {
        calls::leaving(Leave::Descriptors);
    }
    !shares_memory
}

/// A fork by `clone` with these flags, which `real` makes.
pub(super) fn fork_with(flags: u64, real: impl FnOnce() -> pid_t) -> pid_t {
    let is_elsewhere = flags & libc::CLONE_NEWPID as u64 != 0;
    let before = is_elsewhere && calls::children_elsewhere(true);
    if flags & libc::CLONE_NEWNET as u64 != 0 {
        calls::networks_differ();
    }
    let preparation = prepare_now();
    let pid = real();
    // Only a child that goes on at the call comes here.
    let pid = forked(pid, preparation);
    if is_elsewhere && pid != 0 {
        calls::children_elsewhere(before);
    }
    pid
}

/// The first steps of a new process of `clone`: on the stack of the caller, of which a process with
/// memory of its own has a copy.
#[repr(C)]
struct Start {
    child: unsafe extern "C" fn(*mut c_void) -> c_int,
    arg: *mut c_void,
}

unsafe extern "C" fn start(arg: *mut c_void) -> c_int {
    // SAFETY: the caller's `Start`, in this process's copy of its stack.
    unsafe {
        let Start { child: run, arg } = arg.cast::<Start>().read();
        child();
        run(arg)
    }
}

/// Before a process ends without running its exit handlers.
#[unsafe(link_section = ".text.hot")]
pub(crate) fn ending() {
    if calls::involved() && !privilege::is_sandboxed() && !is_borrowed() {
        calls::exiting();
    }
}

/// Should `_exit` ever come back.
fn gone(status: c_int) -> ! {
    loop {
        // SAFETY: no pointers.
        let _ = unsafe { sys!(libc::SYS_exit_group, status) };
    }
}

hooks! {
    #[unsafe(link_section = ".text.hot")]
    fn fork() -> pid_t {
        let before = prepare();
        forked(real::fork(), before)
    }

    fn __fork() -> pid_t {
        let before = prepare();
        forked(real::fork(), before)
    }

    fn __libc_fork() -> pid_t {
        let before = prepare();
        forked(real::fork(), before)
    }

    fn _Fork() -> pid_t {
        let before = prepare_now();
        forked(real::_Fork(), before)
    }

    /// Threads and vfork-like children pass; a process with memory of its own is a fork.
    fn clone(
        run: Option<unsafe extern "C" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int,
        arg: *mut c_void, ptid: usize, tls: usize, ctid: usize,
    ) -> c_int {
        let Some(run) = run else {
            return real::clone(core::ptr::null(), stack, flags, arg, ptid, tls, ctid);
        };
        // Without a stack libc refuses.
        if stack.is_null() || !begin(u64::from(flags as u32)) {
            return real::clone(run as *const c_void, stack, flags, arg, ptid, tls, ctid);
        }
        let mut first = Start { child: run, arg };
        fork_with(u64::from(flags as u32), || {
            // SAFETY: the program's arguments, but for the function and its own, which leads to the program's.
            unsafe {
                real::clone(
                    start as *const c_void, stack, flags, (&raw mut first).cast(), ptid, tls, ctid,
                )
            }
        })
    }

    /// `pthread_atfork` calls this.
    fn __register_atfork(
        prepare: *const c_void, parent: *const c_void, child: *const c_void, object: *mut c_void,
    ) -> c_int {
        register_first();
        real::__register_atfork(prepare, parent, child, object)
    }

    /// Forks inside libc: the parent never returns, the caller goes on as its child.
    fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
        let before = prepare();
        let result = real::daemon(nochdir, noclose);
        let has_begun = has_begun();
        if has_begun || is_borrowed() {
            if !has_begun {
                child();
            }
            forking().store(before, Ordering::Relaxed);
            if noclose == 0 {
                standard_descriptors_replaced();
            }
        } else {
            parent(-1, before);
        }
        result
    }

    fn login_tty(fd: c_int) -> c_int {
        let result = real::login_tty(fd);
        if result == 0 {
            standard_descriptors_replaced();
            if fd > libc::STDERR_FILENO {
                calls::new_descriptor(fd);
            }
        }
        result
    }

    fn forkpty(
        master: *mut c_int, name: *mut c_char, term: *const termios, size: *const winsize,
    ) -> pid_t {
        let before = prepare();
        let pid = forked(real::forkpty(master, name, term, size), before);
        match pid {
            0 => standard_descriptors_replaced(),
            1.. => calls::new_descriptor(*master),
            _ => {}
        }
        pid
    }

    /// Without a second thread, too: libc heeds a cancellation in its own calls alone.
    fn pthread_cancel(thread: pthread_t) -> c_int {
        pid::count_as_threaded();
        real::pthread_cancel(thread)
    }

    #[unsafe(link_section = ".text.hot")]
    fn _exit(status: c_int) -> ! {
        ending();
        real::_exit(status);
        gone(status)
    }

    fn _Exit(status: c_int) -> ! {
        ending();
        real::_Exit(status);
        gone(status)
    }

    fn quick_exit(status: c_int) -> ! {
        ending();
        real::quick_exit(status);
        gone(status)
    }
}

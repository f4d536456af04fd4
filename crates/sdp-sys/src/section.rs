//! Critical sections that a signal handler of the program cannot break into.
//!
//! A handler may call `send` on the very connection that it interrupts. If it ran while the library
//! holds that connection's lock, the thread would wait for itself. So the library's handler wrapper
//! (preload crate) asks [`defer`] first: inside a section the signal is handed back to the kernel,
//! blocked, and the end of the outermost section lets it in. The price is a counter up and down per
//! section (about a nanosecond); nothing is paid in system calls unless a signal really falls into a
//! section (two in the handler, one at the end).
//!
//! The kernel keeps the queue: a signal that was put off is sent to the thread again with its
//! siginfo, so order among signals, `SA_NODEFER`, alternate stacks, coalescing of standard signals
//! and a handler that leaves with `siglongjmp` all behave as if the signals had arrived at the end
//! of the library call. That is where the kernel itself runs handlers for real system calls.
//!
//! It refuses sections around a wait of the program's. That happens at depth 0, in libc, so that
//! signals and cancellation reach it. Sleeps inside one are bounded, and its signals are late by as
//! much: short sleeps until another process gives a lock (twenty seconds) or a gate (five) back or
//! is found dead, a hand-over (four), and moments until another thread has taken a step that it is
//! in the middle of. [`mark`] and [`Mark::interrupted`] then show whether the call has to return
//! `EINTR`.
//!
//! Faults that the code itself causes (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS raised by
//! the kernel) cannot wait and run at once, also inside a section.

use crate::{kernel, sys, tls};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed, compiler_fence};

/// While one exists, handlers of the program do not run in this thread (see the module). Nests.
#[must_use = "the section ends when the guard is dropped"]
#[derive(Debug)]
pub struct Guard(PhantomData<*mut ()>);

impl Guard {
    /// Enters a section.
    #[inline(always)]
    pub fn enter() -> Self {
        enter();
        Self(PhantomData)
    }
}

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        leave();
    }
}

/// A section in which a half is locked for a copy to or from the program's memory, which may fault.
#[must_use = "the section ends when the guard is dropped"]
#[derive(Debug)]
pub struct Copying(PhantomData<*mut ()>);

impl Copying {
    /// Enters a section for the sending half of a descriptor, or, negative, for its receiving half.
    #[inline(always)]
    pub fn enter(half_of: i32) -> Self {
        let block = tls::sections();
        block.copying.store(half_of, Relaxed);
        block.depth.store(block.depth.load(Relaxed).wrapping_add(1), Relaxed);
        compiler_fence(core::sync::atomic::Ordering::SeqCst);
        Self(PhantomData)
    }
}

impl Drop for Copying {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(core::sync::atomic::Ordering::SeqCst);
        let block = tls::sections();
        block.copying.store(0, Relaxed);
        leave_from(block);
    }
}

/// The half that the thread has locked for a copy; 0 none.
pub fn copying() -> i32 {
    tls::sections().copying.load(Relaxed)
}

/// Notes such a half; returns the one before.
pub fn set_copying(half_of: i32) -> i32 {
    let word = &tls::sections().copying;
    let before = word.load(Relaxed);
    word.store(half_of, Relaxed);
    before
}

/// Enters a section without a guard; every call is paired with one [`leave`] in the same thread.
#[inline(always)]
pub fn enter() {
    let depth = &tls::sections().depth;
    depth.store(depth.load(Relaxed).wrapping_add(1), Relaxed);
    // The counter is written before anything that the section protects; a handler in this thread
    // sees program order, so a compiler fence is enough.
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

/// Leaves a section; the outermost one lets signals in that were put off.
#[inline(always)]
pub fn leave() {
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    leave_from(tls::sections());
}

#[inline(always)]
fn leave_from(block: &tls::Sections) {
    let depth = block.depth.load(Relaxed).wrapping_sub(1);
    block.depth.store(depth, Relaxed);
    // A signal between the store and this look runs at once, which is right: the depth is 0.
    if depth == 0 && block.pending.load(Relaxed) != 0 {
        release(block);
    }
}

/// Whether the calling thread is inside a section: true in a fault handler that interrupted one.
/// Code that is entered this way must not take a lock of the library.
#[inline(always)]
pub fn inside() -> bool {
    tls::sections().depth.load(Relaxed) != 0
}

/// Depth set aside while a fault handler runs, see [`suspend`].
#[derive(Debug)]
#[must_use = "give it back with `resume`"]
pub struct Suspended(u32);

/// Before the program's handler for a fault inside a section runs: it may leave with `siglongjmp`
/// and never come back. The thread must not stay in a section for ever then (its signals would
/// never run again); the state that the section protected is lost for this connection only.
pub fn suspend() -> Suspended {
    let depth = &tls::sections().depth;
    let saved = depth.load(Relaxed);
    depth.store(0, Relaxed);
    Suspended(saved)
}

/// The fault handler returned: the section goes on.
pub fn resume(suspended: Suspended) {
    tls::sections().depth.store(suspended.0, Relaxed);
}

/// Restores the signal mask; signals that were put off are delivered before this returns.
#[cold]
#[inline(never)]
fn release(block: &tls::Sections) {
    let mask = !block.unblocked.load(Relaxed);
    block.unblocked.store(0, Relaxed);
    block.pending.store(0, Relaxed);
    let _ = kernel::set_signal_mask(libc::SIG_SETMASK, &mask);
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signals that the kernel raises for an instruction. Never blocked: a fault with its signal
/// blocked kills the process.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);
/// Signals that a section blocks once it has put one off: all but faults and the two signals that
/// libc keeps for itself (cancellation, set-id in all threads).
const PUT_OFF: u64 = !(FAULTS | bit(32) | bit(33));

/// Set while the process is in a sandbox: nothing is put off then, because that takes system calls
/// that the sandbox may not allow.
static OFF: AtomicBool = AtomicBool::new(false);

/// Whether signals are put off in this process. Switched off before a seccomp filter is installed,
/// when all lanes have been left and no section is worth protecting; on again if that failed.
pub fn set_deferring(on: bool) {
    OFF.store(!on, Relaxed);
}

/// Whether a signal is a fault of the interrupted code.
#[inline]
pub fn is_fault(signal: i32, code: i32) -> bool {
    (1..=64).contains(&signal) && FAULTS & bit(signal) != 0 && code > 0
}

/// Called first thing by the handler wrapper. True: the signal has been put off, return without
/// running the program's handler. False: run it now.
///
/// # Safety
/// The kernel gave `info` and `context` to an `SA_SIGINFO` handler for `signal` in this thread, and
/// they are unchanged.
#[inline]
pub unsafe fn defer(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    if !inside() {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { defer_inside(signal, info, context) }
}

#[cold]
unsafe fn defer_inside(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    // SAFETY: the kernel's siginfo, valid while the handler runs.
    let code = unsafe { (*info).si_code };
    if is_fault(signal, code) || OFF.load(Relaxed) {
        return false;
    }
    // Nothing else may come in while the signal is sent again; with SA_NODEFER even the same signal
    // would. The mask ends with the handler.
    let _ = kernel::set_signal_mask(libc::SIG_BLOCK, &PUT_OFF);
    // A family member created with raw clone() has a stale cached id, hence no cache here: rare
    // path.
    let (pid, tid) = (kernel::getpid().unwrap_or(0), kernel::gettid().unwrap_or(0));
    // SAFETY: info is a whole siginfo. Any si_code is allowed towards one's own process.
    let sent = unsafe { sys!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) };
    if sent.is_err() {
        // The user's quota of queued signals is used up. With SI_USER the kernel delivers a signal
        // even then, without its details, as it does for kill().
        // SAFETY: info is a whole siginfo of ours: the program's handler does not see this copy.
        unsafe {
            (*info).si_code = libc::SI_USER;
            if sys!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info).is_err() {
                return false;
            }
        }
    }
    // The interrupted code goes on with everything blocked. When several signals arrive at once,
    // each frame interrupts the one before: their masks are supersets of the section's, so the
    // union of the signals that were unblocked in any of them is the set that was unblocked in the
    // section.
    let block = tls::sections();
    // SAFETY: context is the kernel's ucontext; its signal set is 8 bytes at the start of
    // `uc_sigmask` (libc's type is larger), restored by sigreturn.
    unsafe {
        let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        let old = mask.read_unaligned();
        block.unblocked.store(block.unblocked.load(Relaxed) | !old, Relaxed);
        mask.write_unaligned(old | PUT_OFF);
    }
    block.pending.store(1, Relaxed);
    true
}

/// Whether a signal of the calling thread waits for the end of the section.
#[inline]
pub fn is_signal_waiting() -> bool {
    tls::sections().pending.load(Relaxed) != 0
}

/// Called by the handler wrapper right before it runs the program's handler at depth 0.
#[inline]
pub fn handler_runs(restart: bool) {
    let block = tls::sections();
    block.handlers.store(block.handlers.load(Relaxed).wrapping_add(1), Relaxed);
    if !restart {
        block.no_restart.store(block.no_restart.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// A handler of the program begins. Followed by [`handler_returned`], unless it never returns.
#[inline]
pub fn handler_begins() {
    let running = &tls::sections().running;
    running.store(running.load(Relaxed).wrapping_add(1), Relaxed);
}

/// It has returned.
#[inline]
pub fn handler_returned() {
    let running = &tls::sections().running;
    running.store(running.load(Relaxed).wrapping_sub(1), Relaxed);
}

/// Whether the calling thread may be in a handler of the program: then nothing may be called that is not safe there. True
/// for ever after a handler that left by `siglongjmp`.
#[inline]
pub fn in_handler() -> bool {
    tls::sections().running.load(Relaxed) != 0
}

/// A moment in this thread's life, to compare with later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    handlers: u32,
    no_restart: u32,
}

/// The effect of signals on this thread since a [`Mark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// No handler of the program ran. A wait that answers EINTR nevertheless was stopped and
    /// continued, or a handler ran that libsdp does not know (installed by a raw system call).
    No,
    /// Only handlers with `SA_RESTART` ran: a call that the kernel restarts goes on waiting.
    Restart,
    /// A handler without `SA_RESTART` ran: the call returns `EINTR` (or the bytes that it has so
    /// far).
    Return,
}

/// Remembers now. Take it at the *entry* of a blocking call: a handler that was put off in a section
/// of the call counts as an interruption of the call, as it would in the kernel.
#[inline]
pub fn mark() -> Mark {
    let block = tls::sections();
    Mark { handlers: block.handlers.load(Relaxed), no_restart: block.no_restart.load(Relaxed) }
}

impl Mark {
    /// The effect of signals on this thread since the mark.
    #[inline]
    pub fn interrupted(self) -> Interrupted {
        let now = mark();
        if now.no_restart != self.no_restart {
            Interrupted::Return
        } else if now.handlers != self.handlers {
            Interrupted::Restart
        } else {
            Interrupted::No
        }
    }

    /// Whether a call that the kernel would restart must return `EINTR` because a handler without
    /// `SA_RESTART` ran since the mark.
    #[inline]
    pub fn interrupted_without_restart(self) -> bool {
        self.interrupted() == Interrupted::Return
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicI32, AtomicU32};

    /// Serialises the tests: handlers are per process.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    static RAN: AtomicU32 = AtomicU32::new(0);
    static RAN_INSIDE: AtomicU32 = AtomicU32::new(0);
    static LAST_VALUE: AtomicI32 = AtomicI32::new(0);
    static ORDER: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];

    unsafe extern "C" fn wrapper(
        signal: i32,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: straight from the kernel.
        if unsafe { defer(signal, info, context) } {
            return;
        }
        handler_runs(signal == libc::SIGUSR2);
        if inside() {
            RAN_INSIDE.fetch_add(1, Relaxed);
        }
        // SAFETY: the kernel's siginfo; reading the value field is harmless for any signal.
        LAST_VALUE.store(unsafe { (*info).si_value().sival_ptr } as usize as i32, Relaxed);
        let n = RAN.fetch_add(1, Relaxed) as usize;
        if let Some(place) = ORDER.get(n) {
            place.store(signal, Relaxed);
        }
    }

    fn install(signal: i32, flags: i32) {
        RAN.store(0, Relaxed);
        // SAFETY: a zero sigaction is valid; the handler has the SA_SIGINFO signature.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = wrapper as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | flags;
            assert_eq!(libc::sigaction(signal, &raw const action, core::ptr::null_mut()), 0);
        }
    }

    fn mask() -> u64 {
        let mut mask = 0u64;
        // SAFETY: 8 bytes are written.
        unsafe {
            sys!(libc::SYS_rt_sigprocmask, 0, 0usize, &raw mut mask, 8usize).unwrap();
        }
        mask
    }

    fn raise(signal: i32) {
        // SAFETY: a handler is installed.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn a_signal_waits_for_the_end_of_the_outermost_section() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        install(libc::SIGUSR1, 0);
        let before = mask();
        let entry = mark();
        let outer = Guard::enter();
        let inner = Guard::enter();
        raise(libc::SIGUSR1);
        assert_eq!(RAN.load(Relaxed), 0);
        drop(inner);
        assert_eq!(RAN.load(Relaxed), 0, "still in the outer section");
        assert_eq!(entry.interrupted(), Interrupted::No);
        drop(outer);
        assert_eq!(RAN.load(Relaxed), 1);
        assert_eq!(RAN_INSIDE.load(Relaxed), 0);
        assert_eq!(mask(), before, "the mask is the program's again");
        assert_eq!(entry.interrupted(), Interrupted::Return);
        assert!(entry.interrupted_without_restart());
    }

    #[test]
    fn outside_a_section_it_runs_at_once() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        install(libc::SIGUSR2, 0);
        let entry = mark();
        raise(libc::SIGUSR2);
        assert_eq!(RAN.load(Relaxed), 1);
        assert_eq!(entry.interrupted(), Interrupted::Restart);
    }

    #[test]
    fn several_signals_in_one_section_all_arrive_with_nodefer() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        let real_time = libc::SIGRTMIN() + 3;
        install(libc::SIGUSR1, libc::SA_NODEFER);
        install(real_time, libc::SA_NODEFER);
        let before = mask();
        {
            let _guard = Guard::enter();
            // SAFETY: plain data; queued to this thread, one of each number may be pending.
            unsafe {
                let mut info = [0u32; 32];
                info[2] = libc::SI_QUEUE as u32;
                info[6] = 41;
                for _ in 0..3 {
                    let tid = sys!(libc::SYS_gettid).unwrap();
                    let pid = sys!(libc::SYS_getpid).unwrap();
                    sys!(libc::SYS_rt_tgsigqueueinfo, pid, tid, real_time, &raw const info)
                        .unwrap();
                }
            }
            raise(libc::SIGUSR1);
            assert_eq!(RAN.load(Relaxed), 0);
        }
        assert_eq!(RAN.load(Relaxed), 4, "real-time signals queue, none is lost");
        assert_eq!(mask(), before);
        assert_eq!(RAN_INSIDE.load(Relaxed), 0);
    }

    #[test]
    fn details_survive_the_detour() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        install(libc::SIGUSR1, 0);
        {
            let _guard = Guard::enter();
            // SAFETY: plain data.
            unsafe {
                let value = libc::sigval { sival_ptr: 4711 as *mut libc::c_void };
                assert_eq!(libc::pthread_sigqueue(libc::pthread_self(), libc::SIGUSR1, value), 0);
            }
            LAST_VALUE.store(0, Relaxed);
        }
        assert_eq!(LAST_VALUE.load(Relaxed), 4711);
    }

    #[test]
    fn two_signals_at_the_same_instant() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        install(libc::SIGUSR1, 0);
        install(libc::SIGUSR2, 0);
        let before = mask();
        let both = bit(libc::SIGUSR1) | bit(libc::SIGUSR2);
        // SAFETY: 8-byte masks; both handlers are installed.
        unsafe {
            sys!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const both, 0usize, 8usize)
                .unwrap();
            raise(libc::SIGUSR1);
            raise(libc::SIGUSR2);
            let guard = Guard::enter();
            // Both frames are built before either wrapper runs.
            sys!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const both, 0usize, 8usize)
                .unwrap();
            assert_eq!(RAN.load(Relaxed), 0);
            drop(guard);
        }
        assert_eq!(RAN.load(Relaxed), 2);
        assert_eq!(mask(), before);
    }

    #[test]
    fn a_fault_runs_at_once() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        assert!(is_fault(libc::SIGSEGV, 1));
        assert!(!is_fault(libc::SIGSEGV, libc::SI_USER));
        assert!(!is_fault(libc::SIGUSR1, 1));
        assert!(!is_fault(0, 1) && !is_fault(65, 1));
        assert_eq!(PUT_OFF & bit(libc::SIGBUS), 0);
    }

    #[test]
    fn storm() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        install(libc::SIGALRM, 0);
        let before = mask();
        let inside_before = RAN_INSIDE.load(Relaxed);
        // SAFETY: the raw id of this thread; the sender is joined before the thread can end.
        let me = unsafe { libc::pthread_self() } as usize;
        let sender = std::thread::spawn(move || {
            for _ in 0..2000 {
                // SAFETY: see above.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGALRM) };
                std::thread::yield_now();
            }
        });
        while !sender.is_finished() {
            let _outer = Guard::enter();
            let _inner = Guard::enter();
        }
        sender.join().unwrap();
        assert!(RAN.load(Relaxed) > 0);
        assert_eq!(RAN_INSIDE.load(Relaxed), inside_before);
        assert_eq!(mask(), before);
    }
}

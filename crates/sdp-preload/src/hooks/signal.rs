//! Signal handlers: installed behind a wrapper, reported back as the program gave them.
//!
//! A handler of the program may call `send` on the connection whose lock the interrupted code holds.
//! The wrapper puts the signal off until the library's critical section ends
//! ([`sdp_sys::section`]) and remembers whether a handler without `SA_RESTART` ran, which decides
//! whether a wait of the library returns `EINTR`.
//!
//! The kernel's action is the program's with two differences: the address is the wrapper's, and
//! `SA_SIGINFO` is set. Mask, stack, `SA_RESETHAND`, `SA_NODEFER` and the rest are the kernel's to
//! apply. Where the program asks for the action, it is put together again. `SIG_DFL` and `SIG_IGN`
//! are installed as they are.
//!
//! A vfork child has its parent's table of handlers here, but actions of its own in the kernel: the
//! action that it installs is installed as it is, and not noted.
//!
//! libc's own uses inside (`system`, `abort`, `posix_spawn`) save and restore the kernel's action and
//! are right as they are.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use libc::{c_int, sighandler_t, siginfo_t};
use sdp_socket::calls;
use sdp_sys::{kernel, section, sys};

use super::{privilege, process};
use crate::{errno, real};

/// The program gave `SA_SIGINFO` itself.
const INFO: usize = 1 << 63;
/// `SA_RESTART`.
const RESTART: usize = 1 << 62;
/// `SA_RESETHAND`.
const ONCE: usize = 1 << 61;
/// The program has installed `SIG_DFL` or `SIG_IGN` since.
const PLAIN: usize = 1 << 60;
const ADDRESS: usize = !(INFO | RESTART | ONCE | PLAIN);

/// Addresses below are codes (`SIG_DFL`, `SIG_IGN`, `SIG_HOLD`), not functions.
const FIRST_ADDRESS: usize = 4096;

/// Signals for which `siginterrupt` asked that calls be interrupted (libc keeps its own set for the
/// same purpose, out of reach): `signal` then installs without `SA_RESTART`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

fn wrapper_address() -> usize {
    wrapper as *const () as usize
}

fn cell(signal: c_int) -> Option<&'static AtomicUsize> {
    if signal < 1 {
        return None;
    }
    // One word each: the address, and in the top bits, which no user address has, the flags that
    // matter. So a handler that runs while another thread changes the action sees one or the other.
    calls::hooks().handlers.get(signal as usize)
}

/// Whether the table of handlers is another process's, which waits meanwhile.
fn is_anothers() -> bool {
    sdp_sys::pid::may_be_borrowed() && !privilege::is_sandboxed() && process::is_borrowed()
}

/// Packs a handler; none if the address cannot be packed (then it is installed as it is).
fn pack(address: usize, flags: c_int) -> Option<usize> {
    if address < FIRST_ADDRESS || address & !ADDRESS != 0 {
        return None;
    }
    let mut word = address;
    for (flag, bit) in
        [(libc::SA_SIGINFO, INFO), (libc::SA_RESTART, RESTART), (libc::SA_RESETHAND, ONCE)]
    {
        if flags & flag != 0 {
            word |= bit;
        }
    }
    Some(word)
}

/// The kernel calls this for every signal that the program handles.
unsafe extern "C" fn wrapper(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let word = cell(signal).map_or(0, |cell| cell.load(Ordering::Acquire));
    if section::inside() {
        // SAFETY: straight from the kernel.
        return unsafe { inside(signal, info, context, word) };
    }
    section::handler_runs(word & RESTART != 0);
    let address = word & ADDRESS;
    if address != 0 {
        // SAFETY: the program installed it for this signal. One that takes the number only ignores
        // the other two arguments, which the C conventions of both architectures permit.
        unsafe {
            let run: Handler = core::mem::transmute(address);
            section::handler_begins();
            run(signal, info, context);
            section::handler_returned();
        }
    }
}

/// A signal in a critical section: put off, or a fault that cannot wait.
#[cold]
unsafe fn inside(signal: c_int, info: *mut siginfo_t, context: *mut c_void, word: usize) {
    // SAFETY: the kernel's siginfo.
    let fault = section::is_fault(signal, unsafe { (*info).si_code });
    if !fault {
        if word & ONCE != 0 {
            set_again(signal);
        }
        // SAFETY: straight from the kernel.
        if unsafe { section::defer(signal, info, context) } {
            return;
        }
    }
    let address = word & ADDRESS;
    if address == 0 {
        return;
    }
    section::handler_runs(word & RESTART != 0);
    let mut left = if fault { calls::let_go() } else { None };
    if let Some(left) = &mut left {
        // SAFETY: the value is this frame's, and is not moved.
        unsafe { left.watch() };
    }
    let depth = section::suspend();
    // SAFETY: the program installed it for this signal. One that takes the number only ignores the
    // other two arguments, which the C conventions permit.
    unsafe {
        let run: Handler = core::mem::transmute(address);
        section::handler_begins();
        run(signal, info, context);
        section::handler_returned();
    }
    section::resume(depth);
    if let Some(left) = &mut left {
        left.take_again(signal);
    }
}

/// The kernel's form of an action (x86-64 and AArch64 agree).
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    #[cfg(target_arch = "x86_64")]
    restorer: usize,
    mask: u64,
}

/// With `SA_RESETHAND` the kernel has forgotten the handler by now. The signal is going to arrive a
/// second time, so the handler is put back as it was; mask and flags the kernel still has.
#[cold]
fn set_again(signal: c_int) {
    let mut action = KernelAction {
        handler: 0,
        flags: 0,
        #[cfg(target_arch = "x86_64")]
        restorer: 0,
        mask: 0,
    };
    // SAFETY: the kernel's layout and size of the mask.
    unsafe {
        let got = sys!(libc::SYS_rt_sigaction, signal, 0usize, &raw mut action, size_of::<u64>());
        if got.is_ok() && action.handler == libc::SIG_DFL {
            action.handler = wrapper_address();
            let _ =
                sys!(libc::SYS_rt_sigaction, signal, &raw const action, 0usize, size_of::<u64>());
        }
    }
}

/// `sigaction`.
///
/// # Safety
/// As for `sigaction`.
#[unsafe(link_section = ".text.open")]
unsafe fn change(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let Some(cell) = cell(signal) else {
        // SAFETY: the program's arguments.
        return unsafe { real::sigaction(signal, new, old) };
    };
    let before = cell.load(Ordering::Acquire);
    let mut wrapped;
    let mut install = new;
    let mut stored = None;
    let is_noted = !is_anothers();
    // SAFETY: null or the program's action.
    let wanted = unsafe { new.as_ref() };
    if is_noted
        && let Some(action) = wanted
        && action.sa_sigaction != wrapper_address()
        && let Some(word) = pack(action.sa_sigaction, action.sa_flags)
    {
        wrapped = *action;
        wrapped.sa_sigaction = wrapper_address();
        wrapped.sa_flags |= libc::SA_SIGINFO;
        install = &raw const wrapped;
        // First the table: the wrapper may be called as soon as the kernel knows it.
        cell.store(word, Ordering::Release);
        stored = Some(word);
    }
    // SAFETY: the program's arguments, or our copy of the action.
    let result = unsafe { real::sigaction(signal, install, old) };
    if result != 0 {
        if stored.is_some() {
            cell.store(before, Ordering::Release);
        }
        return result;
    }
    if is_noted && !new.is_null() && stored.is_none() {
        cell.fetch_or(PLAIN, Ordering::AcqRel);
    }
    // SAFETY: null or filled by libc.
    if let Some(action) = unsafe { old.as_mut() } {
        let ours = action.sa_sigaction == wrapper_address();
        // After SA_RESETHAND the kernel says SIG_DFL, with the flags that the wrapper came with.
        let spent = action.sa_sigaction == libc::SIG_DFL && before & (ONCE | PLAIN) == ONCE;
        if ours {
            action.sa_sigaction = before & ADDRESS;
        }
        if (ours || spent) && before & INFO == 0 {
            action.sa_flags &= !libc::SA_SIGINFO;
        }
    }
    result
}

/// `signal` in its two meanings: installs, returns the handler before.
fn install(
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
    blocks_itself: bool,
) -> sighandler_t {
    if handler == libc::SIG_ERR || cell(signal).is_none() {
        errno::set(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: a zero action is a valid one; the sets are this function's own.
    unsafe {
        let mut new: libc::sigaction = core::mem::zeroed();
        let mut old: libc::sigaction = core::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if blocks_itself {
            // The set's first word has the kernel's signals.
            (&raw mut new.sa_mask).cast::<u64>().write(bit(signal));
        }
        if change(signal, &raw const new, &raw mut old) < 0 {
            libc::SIG_ERR
        } else {
            old.sa_sigaction
        }
    }
}

fn bit(signal: c_int) -> u64 {
    1u64.checked_shl((signal as u32).wrapping_sub(1)).unwrap_or(0)
}

/// BSD: the handler stays, calls are restarted unless `siginterrupt` said otherwise.
fn bsd(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0;
    install(signal, handler, if interrupts { 0 } else { libc::SA_RESTART }, true)
}

/// System V: one shot, not blocked, not restarted.
fn sysv(signal: c_int, handler: sighandler_t) -> sighandler_t {
    const SA_INTERRUPT: c_int = 0x2000_0000;
    install(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT, false)
}

/// `sigset`'s third disposition: keep the signal blocked.
const SIG_HOLD: sighandler_t = 2;

fn hold_or_set(signal: c_int, disposition: sighandler_t) -> sighandler_t {
    if cell(signal).is_none() {
        errno::set(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let (set, mut before) = (bit(signal), 0);
    if disposition == SIG_HOLD {
        if kernel::exchange_signal_mask(libc::SIG_BLOCK, &set, &mut before).is_err() {
            return libc::SIG_ERR;
        }
        if before & set != 0 {
            return SIG_HOLD;
        }
        // SAFETY: no new action; the old one, for which zeros are valid, is this function's own.
        return unsafe {
            let mut old: libc::sigaction = core::mem::zeroed();
            if change(signal, core::ptr::null(), &raw mut old) < 0 {
                return libc::SIG_ERR;
            }
            old.sa_sigaction
        };
    }
    let old = install(signal, disposition, 0, false);
    if old == libc::SIG_ERR
        || kernel::exchange_signal_mask(libc::SIG_UNBLOCK, &set, &mut before).is_err()
    {
        return libc::SIG_ERR;
    }
    if before & set != 0 { SIG_HOLD } else { old }
}

hooks! {
    #[unsafe(link_section = ".text.open")]
    fn sigaction(
        signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction,
    ) -> c_int {
        change(signal, new, old)
    }

    fn __sigaction(
        signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction,
    ) -> c_int {
        change(signal, new, old)
    }

    fn __libc_sigaction(
        signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction,
    ) -> c_int {
        change(signal, new, old)
    }

    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        bsd(number, handler)
    }

    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        bsd(number, handler)
    }

    fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
        bsd(number, handler)
    }

    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        sysv(number, handler)
    }

    fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        sysv(number, handler)
    }

    fn sigset(number: c_int, disposition: sighandler_t) -> sighandler_t {
        hold_or_set(number, disposition)
    }

    /// libc takes the kernel's action, wrapper and all, and changes its `SA_RESTART`.
    fn siginterrupt(number: c_int, interrupt: c_int) -> c_int {
        let result = real::siginterrupt(number, interrupt);
        if result == 0 && !is_anothers() && let Some(cell) = cell(number) {
            if interrupt == 0 {
                INTERRUPTING.fetch_and(!bit(number), Ordering::Relaxed);
                cell.fetch_or(RESTART, Ordering::AcqRel);
            } else {
                INTERRUPTING.fetch_or(bit(number), Ordering::Relaxed);
                cell.fetch_and(!RESTART, Ordering::AcqRel);
            }
        }
        result
    }
}

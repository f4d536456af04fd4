//! Ways around the hooks: `syscall`, `prctl`, plug-ins with names of their own, io_uring.
//!
//! `syscall` may fork on the caller's stack or return twice, so numbers that mean nothing to the
//! library are passed on by a jump with everything in place. For the others a function looks at the
//! descriptor; on one that is not tracked the call is made as it came, all six arguments.

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use libc::{c_int, c_long, c_uint, msghdr, size_t, ssize_t};
use sdp_socket::calls::{self, Call, IoUring};
use sdp_sys::{libcs, tls};

use super::{descriptor, epoll, execute, io, message, poll, privilege, process, socket};
use crate::{errno, real};

/// Whether the process (not a plug-in of it, for that see [`is_in_libuv`]) is built on libuv.
fn has_libuv() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Ordering::Relaxed) {
        NO => false,
        YES => true,
        _ => {
            // SAFETY: one of the loader's constants.
            let found = unsafe { libcs::symbol(libc::RTLD_DEFAULT, c"uv_version") };
            KNOWN.store(if found.is_null() { NO } else { YES }, Ordering::Relaxed);
            !found.is_null()
        }
    }
}

/// Whether the object that `address` lies in is libuv, or has libuv inside: a plug-in that was loaded for
/// itself, as Python's extension modules are, so that the program's own look-ups do not find its names.
#[cold]
fn is_in_libuv(address: *const c_void) -> bool {
    let Some(object) =
        libcs::object_at(address.addr()).filter(|object| !object.dli_fname.is_null())
    else {
        return false;
    };
    // SAFETY: the signature of `dlopen`, which the pointer leads to.
    let open: unsafe extern "C" fn(*const libc::c_char, c_int) -> *mut c_void =
        unsafe { core::mem::transmute(DLOPEN.load(Ordering::Acquire)) };
    // SAFETY: the loader's own text; nothing is loaded that is not loaded already.
    let handle = unsafe { open(object.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: `dlopen`'s handle.
    let found = unsafe { libcs::symbol(handle, c"uv_version") };
    // The look-up goes on in the libraries that the object depends on: that is not the caller.
    let is_inside = !found.is_null()
        && libcs::object_at(found.addr()).is_some_and(|home| home.dli_fbase == object.dli_fbase);
    // SAFETY: `dlopen`'s handle, given back once.
    unsafe { libcs::close(handle) };
    is_inside
}

/// Whether io_uring is refused to a caller: `caller` is an address in it, null if it is not known.
fn denies_io_uring(caller: *const c_void) -> bool {
    if privilege::is_sandboxed() {
        // All connections stay on TCP, and to look at the rule file or the loader's list is not for us.
        return false;
    }
    match calls::io_uring() {
        IoUring::Deny => true,
        IoUring::Allow => false,
        IoUring::Auto => has_libuv() || (!caller.is_null() && is_in_libuv(caller)),
    }
}

/// `io_uring_setup`, made by `syscall` from `caller`.
unsafe extern "C" fn ring_setup(
    number: c_long,
    entries: usize,
    parameters: usize,
    caller: *const c_void,
) -> c_long {
    if denies_io_uring(caller) {
        errno::set(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the program's own arguments; the kernel looks at two.
    unsafe { real::syscall(number, entries, parameters, 0, 0, 0, 0) }
}

/// Whether `prctl` or `seccomp` arguments can install a filter. Programs probe with a null filter.
fn installs_filter(strict: bool, filter: bool, program: usize) -> bool {
    strict || (filter && program != 0)
}

/// Whether `prctl` does.
fn enters_sandbox(option: c_int, mode: usize, program: usize) -> bool {
    option == libc::PR_SET_SECCOMP
        && installs_filter(mode == SECCOMP_MODE_STRICT, mode == SECCOMP_MODE_FILTER, program)
}

const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_MODE_FILTER: usize = 2;

/// Numbers that are looked at. Those of the first group only where the architecture has them.
const SEEN: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_shutdown,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_seccomp,
    libc::SYS_prctl,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit_group,
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setgid,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
];

/// Bound of the numbers that can be looked at.
const NUMBERS: usize = 512;

/// Numbers that make processes and threads.
const BEARING: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
];

/// One byte per number: 1 in [`SEEN`], 2 in [`BEARING`], 3 for `io_uring_setup`.
static LOOKED_AT: [u8; NUMBERS] = {
    let mut table = [0; NUMBERS];
    let mut i = 0;
    while i < SEEN.len() {
        table[SEEN[i] as usize] = 1;
        i += 1;
    }
    i = 0;
    while i < BEARING.len() {
        table[BEARING[i] as usize] = 2;
        i += 1;
    }
    table[libc::SYS_io_uring_setup as usize] = 3;
    table
};

/// `syscall`: nothing of the library for numbers it does not look at.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall(number: c_long) -> c_long {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "cmp rdi, {numbers}",
        "jae 2f",
        "lea rax, [rip + {table}]",
        "movzx eax, byte ptr [rax + rdi]",
        "cmp eax, 1",
        "je {seen}",
        "jb 2f",
        "cmp eax, 2",
        "je 3f",
        // The number and two arguments are in place; the fourth is where this returns to.
        "mov rcx, qword ptr [rsp]",
        "jmp {ring_setup}",
        "3:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {born}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test eax, eax",
        "jnz {forking}",
        "2:",
        "jmp qword ptr [rip + {next}]",
        born = sym born,
        forking = sym forking,
        numbers = const NUMBERS,
        table = sym LOOKED_AT,
        seen = sym seen,
        ring_setup = sym ring_setup,
        next = sym real::syscall::NEXT,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "cmp x0, #{numbers}",
        "b.hs 2f",
        "adrp x16, {table}",
        "add x16, x16, #:lo12:{table}",
        "ldrb w16, [x16, x0]",
        "cmp w16, #1",
        "b.eq {seen}",
        "b.lo 2f",
        "cmp w16, #2",
        "b.eq 3f",
        "mov x3, x30",
        "b {ring_setup}",
        "3:",
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "bl {born}",
        "mov w16, w0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "cbnz w16, {forking}",
        "2:",
        "adrp x16, {next}",
        "ldr x16, [x16, #:lo12:{next}]",
        "br x16",
        born = sym born,
        forking = sym forking,
        numbers = const NUMBERS,
        table = sym LOOKED_AT,
        seen = sym seen,
        ring_setup = sym ring_setup,
        next = sym real::syscall::NEXT,
    );
}

/// The arguments of a call of [`BEARING`]: flags of `clone`, and the stack of the new one, 0 for a
/// copy of the caller's. `None`: the kernel refuses it.
unsafe fn kin(number: c_long, a: usize, b: usize) -> Option<(u64, usize)> {
    /// Of `struct clone_args` in its first version, and where the flags and the stack lie in it.
    const LEAST: usize = 64;
    const STACK: usize = 40;
    match number {
        libc::SYS_clone => Some((a as u64, b)),
        libc::SYS_clone3 if a == 0 || b < LEAST => None,
        libc::SYS_clone3 => {
            let at = a as *const u8;
            // SAFETY: the program's arguments, of at least this size.
            unsafe {
                let flags = at.cast::<u64>().read_unaligned();
                Some((flags, at.add(STACK).cast::<u64>().read_unaligned() as usize))
            }
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => Some(((libc::CLONE_VM | libc::CLONE_VFORK) as u64, 0)),
        _ => Some((0, 0)),
    }
}

/// Before a call of [`BEARING`]. Not 0: [`forking`] is to make it, because the child goes on here with a copy of all
/// memory. Otherwise the child may be on the caller's stack or on another one, and nothing of ours may be there.
unsafe extern "C" fn born(number: c_long, a: usize, b: usize) -> c_int {
    // SAFETY: the caller's.
    let Some((flags, stack)) = (unsafe { kin(number, a, b) }) else { return 0 };
    if process::is_forking() {
        return 0;
    }
    let is_fork = process::begin(flags);
    if is_fork && stack != 0 {
        // The new process goes on in code that calls no hook. Its calls are like those of a vfork
        // child until it executes something.
        sdp_sys::pid::lend();
    }
    (is_fork && stack == 0).into()
}

/// A fork by `syscall`.
unsafe extern "C" fn forking(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the arguments are the program's, as it gave them to `syscall`.
    let flags = unsafe { kin(number, a, b) }.map_or(0, |(flags, _)| flags);
    // SAFETY: the program's own arguments, unchanged.
    let real = || unsafe { real::syscall(number, a, b, c, d, e, f) } as libc::pid_t;
    process::fork_with(flags, real).into()
}

/// How many calls of `syscall` the calling thread has had looked at, wrapping.
#[inline]
pub(super) fn calls_seen() -> usize {
    tls::slot(tls::Slot::Seen).load(Ordering::Relaxed)
}

/// A call with a number from [`SEEN`]. The parameters are where `syscall`'s variable arguments are,
/// all of them in registers or, the last one on x86-64, in the caller's argument area (read even if
/// the caller passed fewer: the word there is passed on unchanged).
///
/// The hook asks the kernel through libc's `syscall`, never through another preloaded library's
/// function of the call's name: that one may be the caller, and would ask again.
unsafe extern "C" fn seen(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let seen = tls::slot(tls::Slot::Seen);
    seen.store(seen.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    // SAFETY: the program's own arguments, unchanged.
    let real = || unsafe { real::syscall(number, a, b, c, d, e, f) };
    let int = || real() as c_int;
    let size = || real() as ssize_t;
    let addressed = |addr: *const libc::sockaddr, len: libc::socklen_t| {
        // SAFETY: the program's own arguments, or its address in another family.
        unsafe { real::syscall(number, a, addr as usize, len as usize, d, e, f) as c_int }
    };
    let (fd, other) = (a as c_int, c as c_int);
    // SAFETY: each function gets the arguments that the program gave to the system call of its name.
    unsafe {
        match number {
            libc::SYS_close_range => {
                descriptor::close_many(a as c_uint, b as c_uint, other, int).into()
            }
            libc::SYS_dup => descriptor::duplicated(fd, int()).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => duplicate(fd, b as c_int, 0, int).into(),
            libc::SYS_dup3 => duplicate(fd, b as c_int, other, int).into(),
            libc::SYS_sendmsg => message::send_one(fd, b as _, other, sendmsg) as c_long,
            libc::SYS_recvmsg => message::receive_one(fd, b as _, other, recvmsg) as c_long,
            libc::SYS_sendmmsg => {
                message::send_all(fd, b as _, c as c_uint, d as c_int, sendmsg, int).into()
            }
            libc::SYS_socket => {
                let real = |family: c_int| real::syscall(number, family as usize, b, c, d, e, f);
                socket::open(fd, b as c_int, other, |family| real(family) as c_int).into()
            }
            libc::SYS_connect => socket::connect_to(fd, b as _, c as _, addressed).into(),
            libc::SYS_bind if calls::is_tracked(fd) => {
                socket::bind_to(fd, b as _, c as _, addressed).into()
            }
            libc::SYS_listen => socket::hear(fd, int).into(),
            libc::SYS_accept | libc::SYS_accept4 => socket::take(fd, c as _, int).into(),
            libc::SYS_splice if calls::is_tracked(fd) || calls::is_tracked(other) => {
                answer!(calls::splice(fd, b as _, other, d as _, e, f as c_uint), size()) as c_long
            }
            libc::SYS_sendfile if calls::is_tracked(fd) || calls::is_tracked(b as c_int) => {
                answer!(calls::sendfile(fd, b as c_int, c as _, d), size()) as c_long
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => epoll::created(int()).into(),
            libc::SYS_epoll_create1 => epoll::created(int()).into(),
            libc::SYS_epoll_ctl if calls::is_tracked(fd) || calls::is_tracked(other) => {
                answer!(calls::epoll_ctl(fd, b as c_int, other, d as _), real())
            }
            libc::SYS_seccomp => {
                let strict = a == SECCOMP_SET_MODE_STRICT;
                if installs_filter(strict, a == SECCOMP_SET_MODE_FILTER, c) {
                    privilege::enter_sandbox(-1, real)
                } else {
                    real()
                }
            }
            libc::SYS_prctl if enters_sandbox(fd, b, c) => privilege::enter_sandbox(-1, real),
            libc::SYS_execve | libc::SYS_execveat => {
                execute::replaced();
                real()
            }
            libc::SYS_exit_group => {
                process::ending();
                real()
            }
            n if waits(n) => {
                settled(n, a, b, c, d, || wait(n, a, b, c, d, e, f, &real).unwrap_or_else(&real))
            }
            n if moves(n) && calls::is_tracked(fd) => moved(n, a, b, c, d, e, f, real),
            n => {
                changes(n, a, b, c);
                real()
            }
        }
    }
}

/// `sendmsg` by libc's `syscall`.
unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's arguments; the kernel looks at three.
    let result = unsafe {
        real::syscall(libc::SYS_sendmsg, fd as usize, msg.addr(), flags as usize, 0, 0, 0)
    };
    result as ssize_t
}

/// `recvmsg` likewise.
unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's arguments; the kernel looks at three.
    let result = unsafe {
        real::syscall(libc::SYS_recvmsg, fd as usize, msg.addr(), flags as usize, 0, 0, 0)
    };
    result as ssize_t
}

/// `dup2` and `dup3`.
fn duplicate(old: c_int, new: c_int, flags: c_int, real: impl Fn() -> c_int) -> c_int {
    let is_tracked = calls::is_tracked(old) || calls::is_tracked(new);
    if !is_tracked || flags & !libc::O_CLOEXEC != 0 {
        return real();
    }
    descriptor::replace(old, new, real)
}

/// Calls whose only question is whether their first argument is tracked.
fn moves(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmmsg
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_close
            | libc::SYS_fcntl
            | libc::SYS_ioctl
            | libc::SYS_shutdown
            | libc::SYS_setsockopt
            | libc::SYS_getsockopt
    )
}

/// Those calls, as the hooks of their names.
#[allow(clippy::too_many_arguments)]
unsafe fn moved(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    real: impl Fn() -> c_long + Copy,
) -> c_long {
    let fd = a as c_int;
    let int = || real() as c_int;
    let size = || real() as ssize_t;
    // SAFETY: the arguments are the program's; each call checks, or passes to the kernel, the same
    // as the program's own call would.
    unsafe {
        match number {
            libc::SYS_read => match io::single(b as _, c) {
                Some(iov) if c != 0 => answer!(calls::recv_one(fd, &iov, 0), real()),
                _ => real(),
            },
            libc::SYS_readv if io::counts(c as c_int) => {
                answer!(calls::readv(fd, b as _, c, 0), real())
            }
            libc::SYS_recvfrom => {
                io::receive_from(fd, b as _, c, d as c_int, e as _, f as _, size) as c_long
            }
            libc::SYS_recvmmsg => {
                let flags = d as c_int;
                message::receive_all(fd, b as _, c as c_uint, flags, e as _, recvmsg, int).into()
            }
            libc::SYS_write | libc::SYS_sendto => {
                let flags = if number == libc::SYS_sendto { d as c_int } else { 0 };
                match io::single(b as _, c) {
                    Some(iov) if flags & libc::MSG_FASTOPEN == 0 => {
                        if let Some(sent) = calls::send_one(fd, b as _, c, flags) {
                            return sent as c_long;
                        }
                        answer!(calls::send(fd, &raw const iov, 1, flags), flags, real())
                    }
                    None => {
                        calls::sends_beyond_memory(fd);
                        real()
                    }
                    _ => real(),
                }
            }
            libc::SYS_writev if io::counts(c as c_int) => {
                answer!(calls::send(fd, b as _, c, 0), real())
            }
            // The position is the fourth argument; the fifth is no part of it where words have 64 bits.
            libc::SYS_preadv2 => {
                io::receive_at(fd, b as _, c as c_int, d as _, f as c_int, size) as c_long
            }
            libc::SYS_pwritev2 => {
                io::transmit_at(fd, b as _, c as c_int, d as _, f as c_int, size) as c_long
            }
            libc::SYS_close => {
                let result = answer!(calls::closing(fd), real());
                calls::closed(fd);
                result
            }
            libc::SYS_fcntl => descriptor::control(fd, b as c_int, c, int).into(),
            libc::SYS_ioctl => answer!(calls::ioctl(fd, b as _, c), real()),
            libc::SYS_shutdown => answer!(calls::shutdown(fd, b as c_int), real()),
            libc::SYS_setsockopt => {
                answer!(calls::setsockopt(fd, b as c_int, c as c_int, d as _, e as _), real())
            }
            libc::SYS_getsockopt => {
                socket::option_of(fd, b as c_int, c as c_int, d as _, e as _, int).into()
            }
            _ => real(),
        }
    }
}

fn waits(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(number, libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait) {
        return true;
    }
    matches!(
        number,
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2
    )
}

/// The result of a wait without an error that is none ([`calls::may_have_copies`]).
///
/// # Safety
/// The arguments are those of the wait.
unsafe fn settled(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    wait: impl Fn() -> c_long,
) -> c_long {
    let count = if number == libc::SYS_pselect6 { a as c_int } else { 0 };
    // SAFETY: the program's sets, until this returns.
    let sets = unsafe { calls::SelectSets::keep(count, [b as _, c as _, d as _]) };
    loop {
        let ready = wait();
        if ready <= 0 || !calls::may_have_copies() {
            return ready;
        }
        // SAFETY: the program's arrays, in which the wait has found something.
        let left = unsafe {
            match number {
                #[cfg(target_arch = "x86_64")]
                libc::SYS_poll => calls::settle_poll(a as _, b as u32 as usize, ready as c_int),
                libc::SYS_ppoll => calls::settle_poll(a as _, b as u32 as usize, ready as c_int),
                libc::SYS_pselect6 => sets.settle(ready as c_int),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_select => return ready,
                _ => calls::settle_epoll(a as c_int, b as _, ready as c_int),
            }
        };
        if left != 0 {
            return left.into();
        }
    }
}

/// Waits: the socket layer's answer, if it has one. The kernel's own rules for the time that is left
/// (`ppoll`, `pselect6` write it back) hold when it has none.
#[allow(clippy::too_many_arguments)]
unsafe fn wait(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    real: &impl Fn() -> c_long,
) -> Option<c_long> {
    let fd = a as c_int;
    if !calls::involved() {
        return None;
    }
    // SAFETY: the arguments are the program's; each call checks, or passes to the kernel, the same
    // as the program's own call would.
    let call = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => {
                let limit = poll::milliseconds(c as c_int);
                calls::poll(
                    a as _,
                    b as u32 as usize,
                    poll::pointer(limit.as_ref()),
                    core::ptr::null(),
                )
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => {
                let result =
                    poll::select_us(fd, b as _, c as _, d as _, e as _, || real() as c_int);
                return Some(result.into());
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait if calls::is_tracked(fd) => {
                let limit = poll::milliseconds(d as c_int);
                calls::epoll_wait(
                    fd,
                    b as _,
                    c as c_int,
                    poll::pointer(limit.as_ref()),
                    core::ptr::null(),
                )
            }
            libc::SYS_ppoll if poll::is_valid(c as _) => {
                calls::poll(a as _, b as u32 as usize, c as _, d as _)
            }
            libc::SYS_pselect6 if poll::is_valid(e as _) => {
                // The last argument points to {mask, size of the mask}.
                let mask = (f as *const usize).as_ref().copied().unwrap_or(0);
                calls::select(fd, b as _, c as _, d as _, e as _, mask as _)
            }
            libc::SYS_epoll_pwait if calls::is_tracked(fd) => {
                let limit = poll::milliseconds(d as c_int);
                calls::epoll_wait(fd, b as _, c as c_int, poll::pointer(limit.as_ref()), e as _)
            }
            libc::SYS_epoll_pwait2 if calls::is_tracked(fd) && poll::is_valid(d as _) => {
                calls::epoll_wait(fd, b as _, c as c_int, d as _, e as _)
            }
            _ => Call::Pass,
        }
    };
    match call {
        Call::Done(result) => Some(errno::from_result(result) as c_long),
        Call::EarlyWait => Some(poll::early(real)),
        Call::Pass | Call::Counted(_) => None,
    }
}

/// Changes of identity and surroundings.
unsafe fn changes(number: c_long, a: usize, b: usize, c: usize) {
    let (a32, b32, c32) = (a as u32, b as u32, c as u32);
    match number {
        libc::SYS_setuid => privilege::before_setuid(a32),
        libc::SYS_setreuid => privilege::before_setreuid(a32, b32),
        libc::SYS_setresuid => privilege::before_setresuid(a32, b32, c32),
        libc::SYS_setgid => privilege::before_setgid(a32),
        libc::SYS_setregid => privilege::before_setregid(a32, b32),
        libc::SYS_setresgid => privilege::before_setresgid(a32, b32, c32),
        // SAFETY: the arguments are the program's, as it gave them to `syscall`.
        libc::SYS_setgroups => unsafe { privilege::before_setgroups(a, b as _) },
        // SAFETY: the arguments are the program's, as it gave them to `syscall`.
        libc::SYS_capset => unsafe { privilege::before_capset(a as _, b as _) },
        libc::SYS_chroot => privilege::before_chroot(),
        libc::SYS_unshare => privilege::before_unshare(a as c_int),
        libc::SYS_setns => privilege::before_setns(a as c_int, b as c_int),
        _ => {}
    }
}

hooks! {
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        if enters_sandbox(option, a, b) {
            return privilege::enter_sandbox(-1, || real::prctl(option, a, b, c, d));
        }
        real::prctl(option, a, b, c, d)
    }

    /// liburing makes its system calls itself; this is the place to refuse.
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        if denies_io_uring(core::ptr::null()) {
            return -libc::ENOSYS;
        }
        real::io_uring_queue_init(entries, ring, flags)
    }

    fn io_uring_queue_init_params(
        entries: c_uint, ring: *mut c_void, params: *mut c_void,
    ) -> c_int {
        if denies_io_uring(core::ptr::null()) {
            return -libc::ENOSYS;
        }
        real::io_uring_queue_init_params(entries, ring, params)
    }

    fn io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, params: *mut c_void, buf: *mut c_void, size: size_t,
    ) -> c_int {
        if denies_io_uring(core::ptr::null()) {
            return -libc::ENOSYS;
        }
        real::io_uring_queue_init_mem(entries, ring, params, buf, size)
    }
}

/// Flags that are taken away from `dlopen`: none, or `RTLD_DEEPBIND`, with which a plug-in's calls go
/// past the hooks.
static DLOPEN_KEEPS: AtomicU32 = AtomicU32::new(u32::MAX);

/// Makes plug-ins that ask for names of their own first use the hooks all the same.
pub(crate) fn drop_deepbind() {
    DLOPEN_KEEPS.store(!(libc::RTLD_DEEPBIND as u32), Ordering::Relaxed);
}

static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(resolve_dlopen as *const () as *mut c_void);

/// Resolves `dlopen`; before the constructor by the first caller.
pub(crate) extern "C" fn bind_dlopen() -> *mut c_void {
    const NAME: &CStr = c"dlopen";
    let next = real::find(NAME);
    DLOPEN.store(next, Ordering::Release);
    next
}

#[unsafe(naked)]
unsafe extern "C" fn resolve_dlopen() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {bind}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        bind = sym bind_dlopen,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {bind}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        bind = sym bind_dlopen,
    );
}

/// `dlopen` searches relative to the object that calls it, which it finds by the return address: a
/// jump.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(path: *const libc::c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "and esi, dword ptr [rip + {keeps}]",
        "jmp qword ptr [rip + {next}]",
        keeps = sym DLOPEN_KEEPS,
        next = sym DLOPEN,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "adrp x16, {keeps}",
        "ldr w16, [x16, #:lo12:{keeps}]",
        "and w1, w1, w16",
        "adrp x16, {next}",
        "ldr x16, [x16, #:lo12:{next}]",
        "br x16",
        keeps = sym DLOPEN_KEEPS,
        next = sym DLOPEN,
    );
}

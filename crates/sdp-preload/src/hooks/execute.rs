//! New images: the exec family, vfork and posix_spawn.
//!
//! Each member is hooked, because libc's own do not pass through `execve`. `execl` and its variants
//! take any number of arguments: their trampolines lay the argument registers next to the arguments
//! on the stack, which is the vector that `execv` wants. `vfork` returns twice on one stack, so
//! nothing may be between the program and libc: a jump.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{c_char, c_int};
use sdp_socket::calls::{self, Incompatible};

use super::privilege;
use crate::real;

/// Connections that the new image is to have leave their lanes.
pub(super) fn replaced() {
    if calls::involved() && !privilege::is_sandboxed() {
        calls::executing();
    }
}

hooks! {
    fn execve(
        path: *const c_char, argv: *const *const c_char, envp: *const *const c_char,
    ) -> c_int {
        replaced();
        real::execve(path, argv, envp)
    }

    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
        replaced();
        real::execv(path, argv)
    }

    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
        replaced();
        real::execvp(file, argv)
    }

    fn execvpe(
        file: *const c_char, argv: *const *const c_char, envp: *const *const c_char,
    ) -> c_int {
        replaced();
        real::execvpe(file, argv, envp)
    }

    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        replaced();
        real::fexecve(fd, argv, envp)
    }

    fn execveat(
        dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char,
        flags: c_int,
    ) -> c_int {
        replaced();
        real::execveat(dir, path, argv, envp, flags)
    }
}

hooks! {
    fn posix_spawn(
        pid: *mut libc::pid_t, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char,
        envp: *const *mut c_char,
    ) -> c_int {
        if !spawned() {
            return libc::ENOMEM;
        }
        real::posix_spawn(pid, path, actions, attributes, argv, envp)
    }

    fn posix_spawnp(
        pid: *mut libc::pid_t, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char,
        envp: *const *mut c_char,
    ) -> c_int {
        if !spawned() {
            return libc::ENOMEM;
        }
        real::posix_spawnp(pid, file, actions, attributes, argv, envp)
    }

    /// libc duplicates the descriptor in the spawned child, where no hook sees it: the new image gets
    /// the connection, so it is on the kernel lane by then.
    fn posix_spawn_file_actions_adddup2(
        actions: *mut libc::posix_spawn_file_actions_t, old: c_int, new: c_int,
    ) -> c_int {
        if calls::is_tracked(old) && !calls::fall_back(old, Incompatible::Spawned(new)) {
            return libc::ENOMEM;
        }
        real::posix_spawn_file_actions_adddup2(actions, old, new)
    }
}

/// The child of `posix_spawn` runs in libc: it has to leave its lanes before. False: something
/// cannot.
fn spawned() -> bool {
    !calls::involved() || privilege::is_sandboxed() || calls::spawning()
}

/// `execle`: the environment follows the null that ends the arguments.
unsafe extern "C" fn with_environment(path: *const c_char, argv: *const *const c_char) -> c_int {
    let mut end = argv;
    // SAFETY: the program ended its arguments with a null pointer, followed by the environment; the
    // trampoline made one array of them.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, argv, (*end.add(1)).cast())
    }
}

/// A function `name(path, arg0, …, NULL)` that calls `inner(path, argv)`.
macro_rules! listed {
    ($($(#[$meta:meta])* $name:ident => $inner:path;)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            // The fifth register argument ends up where the return address was; the caller's stack
            // arguments follow it. The return address waits below and goes back at the end.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                "call {inner}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                inner = sym $inner,
            );
            // Seven register arguments right below the caller's stack arguments.
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {inner}",
                "ldp x29, x30, [sp], #80",
                "ret",
                inner = sym $inner,
            );
        }
    )*};
}

listed! {
    execl => execv;
    execlp => execvp;
    execle => with_environment;
}

/// Where `vfork` leads.
static VFORK: AtomicPtr<c_void> = AtomicPtr::new(resolve_vfork as *const () as *mut c_void);

/// Resolves `vfork`; before the constructor by the first caller.
pub(crate) extern "C" fn bind_vfork() -> *mut c_void {
    let next = real::find(c"vfork");
    VFORK.store(next, Ordering::Release);
    next
}

/// Looks the function up with the caller's frame untouched, then goes there.
#[unsafe(naked)]
unsafe extern "C" fn resolve_vfork() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "sub rsp, 8",
        "call {bind}",
        "add rsp, 8",
        "jmp rax",
        bind = sym bind_vfork,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {bind}",
        "ldp x29, x30, [sp], #16",
        "br x0",
        bind = sym bind_vfork,
    );
}

/// From here on this thread's words may be its child's (`sdp_sys::pid::is_borrowed`).
extern "C" fn lend() {
    sdp_sys::pid::lend();
}

macro_rules! jump {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> libc::pid_t {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "sub rsp, 8",
                "call {lend}",
                "add rsp, 8",
                "jmp qword ptr [rip + {next}]",
                lend = sym lend,
                next = sym VFORK,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-16]!",
                "bl {lend}",
                "ldp x29, x30, [sp], #16",
                "adrp x16, {next}",
                "ldr x16, [x16, #:lo12:{next}]",
                "br x16",
                lend = sym lend,
                next = sym VFORK,
            );
        }
    )*};
}

jump! { vfork __vfork }

//! The system call instruction.
//!
//! # Safety
//!
//! A system call is as safe as its arguments: callers of [`syscall6`] promise that every pointer
//! argument is valid for the kernel's use of it.

use crate::errno::{Errno, check};

/// As below, through libc: Miri knows no system call instruction, and a few calls by their numbers.
///
/// # Safety
/// The arguments must be valid for the call; see the module.
#[cfg(miri)]
pub unsafe fn syscall6(
    n: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let pointer = core::ptr::with_exposed_provenance::<u8>;
    // SAFETY: the caller's promise.
    unsafe {
        match (n, b as i32) {
            (libc::SYS_futex, libc::FUTEX_WAIT) => {
                let time = pointer(d).cast::<libc::timespec>();
                if libc::syscall(n, pointer(a), b as i32, c as u32, time) == 0 { 0 } else { -110 }
            }
            (libc::SYS_futex, _) => libc::syscall(n, pointer(a), b as i32, c as u32) as isize,
            _ => {
                let _ = (e, f);
                -38 // ENOSYS: what needs it is not run here
            }
        }
    }
}

/// Issues system call `n`. The result is the kernel's: −4095…−1 is a negated error number.
///
/// # Safety
/// The arguments must be valid for the call; see the module.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub unsafe fn syscall6(
    n: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 kernel convention: number in rax, arguments in rdi rsi rdx r10 r8 r9,
    // rcx and r11 are overwritten. Memory may be read and written (no `nomem`).
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") n as isize => ret, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, out("rcx") _, out("r11") _,
            options(nostack));
    }
    ret
}

/// Issues system call `n`. The result is the kernel's: −4095…−1 is a negated error number.
///
/// # Safety
/// The arguments must be valid for the call; see the module.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
pub unsafe fn syscall6(
    n: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let ret: isize;
    // SAFETY: the AArch64 kernel convention: number in x8, arguments in x0…x5, result in x0.
    unsafe {
        core::arch::asm!("svc 0", in("x8") n, inlateout("x0") a as isize => ret, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    ret
}

/// Issues a system call and returns `Result<usize, Errno>`; up to six arguments, each cast with
/// `as usize`.
#[macro_export]
macro_rules! sys {
    ($n:expr) => { $crate::sys!(@ $n, 0, 0, 0, 0, 0, 0) };
    ($n:expr, $a:expr) => { $crate::sys!(@ $n, $a, 0, 0, 0, 0, 0) };
    ($n:expr, $a:expr, $b:expr) => { $crate::sys!(@ $n, $a, $b, 0, 0, 0, 0) };
    ($n:expr, $a:expr, $b:expr, $c:expr) => { $crate::sys!(@ $n, $a, $b, $c, 0, 0, 0) };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr) => { $crate::sys!(@ $n, $a, $b, $c, $d, 0, 0) };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::sys!(@ $n, $a, $b, $c, $d, $e, 0)
    };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::sys!(@ $n, $a, $b, $c, $d, $e, $f)
    };
    (@ $n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::raw::result($crate::raw::syscall6(
            $n, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize,
        ))
    };
}

/// See [`check`].
#[inline]
pub fn result(ret: isize) -> Result<usize, Errno> {
    check(ret)
}

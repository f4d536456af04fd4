//! The calling thread's `errno`, and the kernel's way of returning errors turned into libc's.

use libc::c_int;

/// `errno`.
#[inline]
pub(crate) fn get() -> c_int {
    // SAFETY: libc's per-thread word, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
#[inline]
pub(crate) fn set(value: c_int) {
    // SAFETY: libc's per-thread word, always valid.
    unsafe { *libc::__errno_location() = value }
}

/// A result in the kernel's convention (negative: an error number) becomes −1 and `errno`.
#[inline]
pub(crate) fn from_result(result: isize) -> isize {
    if result < 0 {
        set(result.wrapping_neg() as c_int);
        -1
    } else {
        result
    }
}

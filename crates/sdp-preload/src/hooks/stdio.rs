//! stdio on descriptors: libc reads, writes and closes them without any hook seeing it.
//!
//! So a connection that gets a stream stays on the kernel lane, and the end of the stream is the end
//! of the number. `dprintf` and its variants write through a stream of their own on the number.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{FILE, c_char, c_int};
use sdp_socket::calls::{self, Incompatible};

use crate::{errno, real};

/// The number under a stream, −1 for streams without one (memory, cookies).
unsafe fn number(file: *mut FILE) -> c_int {
    let before = errno::get();
    // SAFETY: the program's open stream.
    let fd = unsafe { real::fileno(file) };
    if fd < 0 {
        errno::set(before);
    }
    fd
}

/// The stream is about to close its descriptor: the bytes that it still holds are written first,
/// then the connection ends as in `close`; libc closes the number itself.
#[cold]
unsafe fn ending(file: *mut FILE, fd: c_int) {
    let before = errno::get();
    // SAFETY: the program's open stream. A failure is reported again by the close.
    unsafe { real::fflush(file) };
    errno::set(before);
    calls::closing(fd);
    calls::closed(fd); // the stream is closed later, by libc itself
}

unsafe fn reopen(file: *mut FILE, real: impl Fn() -> *mut FILE) -> *mut FILE {
    // SAFETY: the program's open stream.
    unsafe {
        let fd = number(file);
        if calls::is_tracked(fd) {
            ending(file, fd);
        }
        let result = real();
        if !result.is_null() {
            let fd = number(result);
            if fd >= 0 {
                calls::new_descriptor(fd);
            }
        }
        result
    }
}

/// Before libc writes to the number without a hook.
extern "C" fn writes_unseen(fd: c_int) {
    if calls::is_tracked(fd) {
        let before = errno::get();
        calls::fall_back(fd, Incompatible::Stdio);
        errno::set(before);
    }
}

/// A variadic function that has the descriptor as its first argument: all argument registers are kept
/// over [`writes_unseen`], then libc's function is jumped to.
macro_rules! unseen_writer {
    ($name:ident, $before:ident, ($($fixed:ident: $ty:ty),*)) => {
        /// The resolver of [`real`] would lose variable arguments: bound here if the constructor has
        /// not run yet.
        extern "C" fn $before(fd: c_int) {
            static BOUND: AtomicBool = AtomicBool::new(false);
            if !BOUND.load(Ordering::Acquire) {
                real::$name::bind();
                BOUND.store(true, Ordering::Release);
            }
            writes_unseen(fd);
        }

        #[doc = concat!("`", stringify!($name), "`: the connection leaves its lane first.")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($fixed: $ty),*) -> c_int {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "sub rsp, 184",
                "mov qword ptr [rsp], rdi",
                "mov qword ptr [rsp + 8], rsi",
                "mov qword ptr [rsp + 16], rdx",
                "mov qword ptr [rsp + 24], rcx",
                "mov qword ptr [rsp + 32], r8",
                "mov qword ptr [rsp + 40], r9",
                "mov qword ptr [rsp + 176], rax",
                "movaps xmmword ptr [rsp + 48], xmm0",
                "movaps xmmword ptr [rsp + 64], xmm1",
                "movaps xmmword ptr [rsp + 80], xmm2",
                "movaps xmmword ptr [rsp + 96], xmm3",
                "movaps xmmword ptr [rsp + 112], xmm4",
                "movaps xmmword ptr [rsp + 128], xmm5",
                "movaps xmmword ptr [rsp + 144], xmm6",
                "movaps xmmword ptr [rsp + 160], xmm7",
                "call {unseen}",
                "mov rdi, qword ptr [rsp]",
                "mov rsi, qword ptr [rsp + 8]",
                "mov rdx, qword ptr [rsp + 16]",
                "mov rcx, qword ptr [rsp + 24]",
                "mov r8, qword ptr [rsp + 32]",
                "mov r9, qword ptr [rsp + 40]",
                "mov rax, qword ptr [rsp + 176]",
                "movaps xmm0, xmmword ptr [rsp + 48]",
                "movaps xmm1, xmmword ptr [rsp + 64]",
                "movaps xmm2, xmmword ptr [rsp + 80]",
                "movaps xmm3, xmmword ptr [rsp + 96]",
                "movaps xmm4, xmmword ptr [rsp + 112]",
                "movaps xmm5, xmmword ptr [rsp + 128]",
                "movaps xmm6, xmmword ptr [rsp + 144]",
                "movaps xmm7, xmmword ptr [rsp + 160]",
                "add rsp, 184",
                "jmp qword ptr [rip + {next}]",
                unseen = sym $before,
                next = sym real::$name::NEXT,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-208]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "bl {unseen}",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp q0, q1, [sp, #80]",
                "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "ldp x29, x30, [sp], #208",
                "adrp x16, {next}",
                "ldr x16, [x16, #:lo12:{next}]",
                "br x16",
                unseen = sym $before,
                next = sym real::$name::NEXT,
            );
        }
    };
}

unseen_writer!(dprintf, before_dprintf, (fd: c_int, format: *const c_char));
unseen_writer!(__dprintf_chk, before_dprintf_chk, (fd: c_int, flag: c_int, format: *const c_char));

hooks! {
    /// The arguments are a pointer on all machines that we know: an array that decays, or a structure
    /// passed by reference.
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        writes_unseen(fd);
        real::vdprintf(fd, format, arguments)
    }

    fn __vdprintf_chk(
        fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void,
    ) -> c_int {
        writes_unseen(fd);
        real::__vdprintf_chk(fd, flag, format, arguments)
    }

    /// libc writes each line by itself.
    fn backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> () {
        writes_unseen(fd);
        real::backtrace_symbols_fd(frames, count, fd)
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if calls::is_tracked(fd) && !calls::fall_back(fd, Incompatible::Stdio) {
            errno::set(libc::ENOMEM);
            return core::ptr::null_mut();
        }
        real::fdopen(fd, mode)
    }

    fn fclose(file: *mut FILE) -> c_int {
        let fd = number(file);
        if calls::is_tracked(fd) {
            ending(file, fd);
        }
        real::fclose(file)
    }

    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        reopen(file, || real::freopen(path, mode, file))
    }

    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        reopen(file, || real::freopen64(path, mode, file))
    }
}

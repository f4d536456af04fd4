//! libsdp.so: the names that a program calls instead of libc's.
//!
//! Preloaded, these definitions come before libc's. Each is thin: a descriptor that the library
//! does not track costs a bounds check, a load and a jump to the next definition; for all others
//! the hook asks the socket layer ([`sdp_socket::calls`]), which answers "pass", "pass, and tell me
//! the result" or "done". No state of a connection lives here.
//!
//! ```text
//! program ── hooks::* ── is_tracked(fd)? ── no ──> real::* (next definition, libc)
//!                              └── yes ── sdp_socket::calls::* ── Pass / Counted ──> real::*
//!                                                              └─ Done(result)
//! ```
//!
//! It refuses allocation, locks, output, and system calls on the path of a descriptor that is not
//! tracked. It needs libc and nothing else.
//!
//! # Names that are left alone, on purpose
//!
//! `getsockname`, `getpeername`, `fstat`, `isatty`, `isfdtype`: the carrier is the program's own TCP
//! socket and answers them. `system`, `popen`, `getaddrinfo`,
//! `syslog` and the rest of stdio act on descriptors inside libc, where no hook sees them; nothing
//! changes in this process. `exit` runs the program's own handlers, which may still use sockets, so
//! the orderly end is taken in this library's destructor instead. `seteuid`, `setegid` and `setfsuid`
//! change effective ids only, which is no change of privilege (it can be undone).
//!
//! The complete list of exported names is `tests/abi/exports.txt`.

#![no_std]

/// The tests' build is made without link-time optimization, which would leave this name out: core's own code names it,
/// and nothing unwinds.
#[cfg(feature = "fake-verbs")]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

mod direct;
mod errno;
mod image;
mod real;
mod start;

mod hooks {
    //! The exported names, by the kind of call.
    #[macro_use]
    mod define;

    mod descriptor;
    mod epoll;
    mod escape;
    mod execute;
    mod io;
    mod message;
    mod poll;
    mod privilege;
    mod process;
    mod signal;
    mod socket;
    mod stdio;

    /// Keeps the code for tracked descriptors out of line, so that the common path through a hook
    /// has no stack frame.
    #[cold]
    #[inline(never)]
    fn slowly<R>(what: impl FnOnce() -> R) -> R {
        what()
    }

    pub(crate) use escape::drop_deepbind;
    pub(crate) use process::{ending, own};

    /// Resolves the names that are jumps and keep a pointer of their own.
    pub(crate) fn bind_trampolines() {
        execute::bind_vfork();
        escape::bind_dlopen();
    }
}

/// A panic is a defect of this library; the program cannot go on with state that may be half done.
/// Nothing is printed: descriptor 2 is the program's.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: no arguments; never returns.
    unsafe { libc::abort() }
}

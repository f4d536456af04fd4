//! stdio on descriptors: libc reads, writes and closes them without any hook seeing it.
//!
//! So a connection that gets a stream stays on the kernel lane, and the end of the stream is the end
//! of the number.

use libc::{FILE, c_char, c_int};
use sdp_socket::calls::{self, Pin};

use crate::{errno, real};

/// The number under a stream, −1 for streams without one (memory, cookies).
unsafe fn number(file: *mut FILE) -> c_int {
    let before = errno::get();
    // SAFETY: the program's open stream.
    let fd = unsafe { libc::fileno(file) };
    if fd < 0 {
        errno::set(before);
    }
    fd
}

/// The stream is about to close its descriptor: what it still holds is written first, then the
/// connection ends as in `close`; libc closes the number itself.
#[cold]
unsafe fn ending(file: *mut FILE, fd: c_int) {
    let before = errno::get();
    // SAFETY: the program's open stream. A failure is reported again by the close.
    unsafe { libc::fflush(file) };
    errno::set(before);
    calls::closing(fd);
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

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if calls::is_tracked(fd) {
            calls::pin(fd, Pin::Stdio);
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

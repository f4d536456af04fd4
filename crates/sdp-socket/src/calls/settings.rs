//! What the hooks ask about socket options, and about the flags of `preadv2` and `pwritev2`.

use libc::{c_int, socklen_t};
use sdp_sys::errno::Errno;

use super::{Call, done};
use crate::{
    conn::Half,
    elsewhere,
    options::{self, Verdict, flags},
    pin::{self, Pin, pin},
    process,
    table::Pinned,
};

/// `setsockopt`: options that the SDP lane cannot keep pin the connection to the kernel lane first.
///
/// # Safety
/// See the module.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const libc::c_void,
    len: socklen_t,
) -> Call {
    if elsewhere::is(fd) {
        return Call::Pass;
    }
    if !options::setting(fd, level, name, value, len) && level == libc::IPPROTO_TCP {
        return done(Err(Errno(libc::EBUSY))); // the kernel would begin in the middle of the stream
    }
    Call::Pass
}

/// Before `getsockopt`: one option is a receive call of the kernel.
pub fn getsockopt(fd: c_int, level: c_int, name: c_int) {
    if let Verdict::Leaves(leaving) = options::get(level, name) {
        pin::leave_for(fd, &leaving);
    }
}

/// After a `getsockopt` that succeeded: an error that the program has asked for with `SO_ERROR` is told, and no
/// receive call tells it again.
///
/// # Safety
/// The kernel has written to `value`, as many bytes as `len` says.
pub unsafe fn option_told(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const libc::c_void,
    len: *const socklen_t,
) {
    if (level, name) != (libc::SOL_SOCKET, libc::SO_ERROR) {
        return;
    }
    // SAFETY: the caller's.
    if (unsafe { *len } as usize) < size_of::<c_int>() {
        return;
    }
    // SAFETY: as above.
    let error = unsafe { value.cast::<c_int>().read_unaligned() };
    if error != 0
        && process::is_ours()
        && let Some(conn) = Pinned::new(fd, Half::Receive)
    {
        conn.note_told(Errno(error));
    }
}

/// Of `preadv2` and `pwritev2` on a tracked descriptor, without an offset: the flags of a socket call that mean the
/// same. `None`: the kernel's to say, which reads and writes the TCP socket if it does.
pub fn vector_flags(fd: c_int, flags: c_int) -> Option<c_int> {
    let meant = flags::vector_flags(flags);
    if meant.is_none() {
        pin(fd, Pin::Kernels);
    }
    meant
}

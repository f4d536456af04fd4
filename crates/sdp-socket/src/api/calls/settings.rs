//! What the hooks ask about socket options, and about the flags of `preadv2` and `pwritev2`.

use libc::{c_int, socklen_t};
use sdp_sys::errno::Errno;

use super::{Call, done};
use crate::{
    api::options::{self, Verdict, flags},
    lifecycle::elsewhere,
    migration::pin::{self, Pin, pin},
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

/// Of `preadv2` and `pwritev2` on a tracked descriptor, without an offset: the flags of a socket call that mean the
/// same. `None`: the kernel's to say, which reads and writes the TCP socket if it does.
pub fn vector_flags(fd: c_int, flags: c_int) -> Option<c_int> {
    let meant = flags::vector_flags(flags);
    if meant.is_none() {
        pin(fd, Pin::Kernels);
    }
    meant
}

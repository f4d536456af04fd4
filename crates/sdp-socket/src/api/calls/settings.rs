//! Hooks of socket options, and of the flags of `preadv2` and `pwritev2`.

use libc::{c_int, c_void, socklen_t};
use sdp_sys::{errno::Errno, memory};

use super::{Call, done};
use crate::{
    conn::{
        ConnGuard, Half, Origin, alive,
        options::{self, Verdict, flags, historic},
    },
    lifecycle::elsewhere,
    migration::{
        across::marks,
        incompatible::{self, Incompatible, fall_back},
    },
};

/// `setsockopt`: options that the SDP lane cannot keep make the connection fall back to TCP first.
///
/// # Safety
/// See the module.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Call {
    if elsewhere::is(fd) {
        return Call::Pass;
    }
    if let Some(result) = historic::set_option(fd, level, name, value, len) {
        return done(result);
    }
    if !setting(fd, level, name, value, len) && level == libc::IPPROTO_TCP {
        return done(Err(Errno(libc::EBUSY))); // the kernel would begin in the middle of the stream
    }
    Call::Pass
}

/// The program reads an option that the library may have set, or `sets` it.
fn keep_out_of(fd: c_int, level: c_int, name: c_int, sets: bool) {
    if alive::is_about(level, name)
        && let Some(conn) = ConnGuard::new(fd, Half::Receive)
    {
        alive::make_way(&conn, sets);
    }
}

/// Before `setsockopt`. False: the unread bytes, which the kernel is to interpret, could not be
/// given to it.
fn setting(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> bool {
    if matches!((level, name), (libc::SOL_SOCKET, libc::SO_BINDTODEVICE | libc::SO_BINDTOIFINDEX))
        && let Some(conn) = ConnGuard::new(fd, Half::Receive)
    {
        conn.set(Origin::Bound);
    }
    if level == libc::SOL_SOCKET {
        note_limit(fd, name, value, len);
    }
    if fills_error_queue(level, name) {
        marks::end(fd);
    }
    keep_out_of(fd, level, name, true);
    if let Verdict::Leaves(leaving) = options::set(level, name)
        && leaving.holds_for(value, len)
    {
        return incompatible::leave_for(fd, &leaving);
    }
    true
}

/// Whether an option brings messages to the error queue that are for the program.
fn fills_error_queue(level: c_int, name: c_int) -> bool {
    matches!(
        (level, name),
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY | libc::SO_TIMESTAMPING | TIMESTAMPING_NEW)
            | (libc::IPPROTO_IP, libc::IP_RECVERR)
            | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    )
}

/// A time limit that the kernel is going to accept: whether it is a negative number of seconds.
fn note_limit(fd: c_int, name: c_int, value: *const c_void, len: socklen_t) {
    let half = match name {
        libc::SO_RCVTIMEO | RCVTIMEO_NEW => Half::Receive,
        libc::SO_SNDTIMEO | SNDTIMEO_NEW => Half::Send,
        _ => return,
    };
    let words = size_of::<libc::timeval>();
    let Some(conn) = ConnGuard::new(fd, half).filter(|_| len as usize >= words) else { return };
    let half_of = words / 2;
    let second = value.cast::<u8>().wrapping_add(half_of);
    if !memory::is_readable(value.cast(), half_of) || !memory::is_readable(second, half_of) {
        return;
    }
    // SAFETY: two readable words, of the program's memory, lent to this call.
    let [seconds, microseconds] = unsafe { value.cast::<[i64; 2]>().read_unaligned() };
    if (0..1_000_000).contains(&microseconds) {
        conn.historic.note_limit(half, seconds < 0);
    }
}

/// Options with 64-bit times on machines of 32 bits; here only their numbers differ.
const RCVTIMEO_NEW: c_int = 66;
const SNDTIMEO_NEW: c_int = 67;
const TIMESTAMPING_NEW: c_int = 65;

/// Before `getsockopt`: one option is a receive call of the kernel, and some it does not know.
///
/// # Safety
/// See the module.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Call {
    keep_out_of(fd, level, name, false);
    if let Verdict::Leaves(leaving) = options::get(level, name) {
        incompatible::leave_for(fd, &leaving);
    }
    // SAFETY: the caller's.
    match unsafe { historic::get_option(fd, level, name, value, len) } {
        Some(result) => done(result),
        None => Call::Pass,
    }
}

/// Of `preadv2` and `pwritev2` on a tracked descriptor, without an offset: the flags of a socket call that mean the
/// same. `None`: the kernel's to say, which reads and writes the TCP socket if it does.
pub fn vector_flags(fd: c_int, flags: c_int) -> Option<c_int> {
    let meant = flags::vector_flags(flags);
    if meant.is_none() {
        fall_back(fd, Incompatible::Kernels);
    }
    meant
}

//! Options of the historic SDP sockets. The kernel knows none of them: the library keeps them and
//! reports them.
//!
//! The historic stack had them at the level of TCP; `SOL_SDP` stands in its headers, and is taken for the same.

use libc::{c_int, c_void, socklen_t};
use sdp_sys::{errno::Errno, memory, sys};

use super::{Row, Verdict, WORKS};
use crate::{
    conn::{
        ConnGuard, Half,
        historic::{self, THRESHOLD_MAX},
    },
    process,
};

/// Level of SDP in the historic headers.
const SOL_SDP: c_int = 1025;
const SDP_ZCOPY_THRESH: c_int = 80;
const SDP_LAST_BIND_ERR: c_int = 81;
/// The smallest threshold that means something: a page.
const PAGE: c_int = 4096;
/// The value reported for a threshold that was not set.
const NOT_SET: c_int = -1;

table! {
    /// `SOL_SDP`, and the level with the number of `AF_INET_SDP`.
    OPTIONS set_here;
    [SDP_ZCOPY_THRESH 80] WORKS, "kept and told, without effect yet; also at the level of `IPPROTO_TCP`";
    [SDP_LAST_BIND_ERR 81] WORKS, "only asked for: of an explicit socket; also at the level of `IPPROTO_TCP`";
    [SO_KEEPALIVE 9] WORKS, "at level 27 (`AF_INET_SDP`): as at `SOL_SOCKET`; only set";
}

fn is_ours(level: c_int, name: c_int) -> bool {
    matches!(level, libc::IPPROTO_TCP | SOL_SDP)
        && matches!(name, SDP_ZCOPY_THRESH | SDP_LAST_BIND_ERR)
}

/// `setsockopt`, if the option is one of these.
pub(crate) fn set_option(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Option<Result<usize, Errno>> {
    let is_keepalive = (level, name) == (historic::IPV4, libc::SO_KEEPALIVE);
    if !(is_keepalive || is_ours(level, name)) || !process::is_ours() {
        return None;
    }
    if is_keepalive {
        let level = libc::SOL_SOCKET;
        // SAFETY: the program's own arguments, which the kernel checks.
        return Some(unsafe { sys!(libc::SYS_setsockopt, number, level, name, value, len) });
    }
    let conn = ConnGuard::new(number, Half::Receive)?;
    if name == SDP_LAST_BIND_ERR {
        return Some(Err(Errno(libc::ENOPROTOOPT)));
    }
    Some(given(value, len).and_then(|value| match value {
        0 | PAGE..=MOST => {
            conn.historic.set_threshold(value.unsigned_abs());
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }))
}

/// [`THRESHOLD_MAX`], as programs give it.
const MOST: c_int = THRESHOLD_MAX as c_int;

fn given(value: *const c_void, len: socklen_t) -> Result<c_int, Errno> {
    if (len as usize) < size_of::<c_int>() {
        return Err(Errno::EINVAL);
    }
    if !memory::is_readable(value.cast(), size_of::<c_int>()) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: four readable bytes.
    Ok(unsafe { value.cast::<c_int>().read_unaligned() })
}

/// `getsockopt`, likewise.
///
/// # Safety
/// `value` and `len` are the program's, as `getsockopt` demands.
pub(crate) unsafe fn get_option(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<Result<usize, Errno>> {
    if !is_ours(level, name) || !process::is_ours() {
        return None;
    }
    let conn = ConnGuard::new(number, Half::Receive)?;
    let known = match name {
        SDP_ZCOPY_THRESH => conn.historic.threshold().map_or(NOT_SET, |n| n as c_int),
        _ => -(conn.historic.bind_error() as c_int),
    };
    if !memory::is_readable(len.cast(), size_of::<socklen_t>()) {
        return Some(Err(Errno::EFAULT));
    }
    // SAFETY: readable.
    let room = unsafe { len.read_unaligned() };
    if room.cast_signed() < 0 {
        return Some(Err(Errno::EINVAL));
    }
    let n = (room as usize).min(size_of::<c_int>());
    if n > 0 && !memory::is_readable(value.cast(), n) {
        return Some(Err(Errno::EFAULT));
    }
    // SAFETY: the program's own output pointers, as the kernel would take them; both lead
    // somewhere.
    unsafe {
        len.write_unaligned(n as socklen_t);
        core::ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), value.cast(), n);
    }
    Some(Ok(0))
}

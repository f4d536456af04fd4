//! Message headers: what the kernel says of them, and what only it can put into them.

use core::sync::atomic::Ordering;

use libc::{c_int, msghdr};
use sdp_link::{EndWords, Link, SwitchLog};
use sdp_sys::{errno::Errno, sys};

use crate::conn::{
    Half, Pinned,
    iovec::IOV_MAX,
    options::flags::MSG_CMSG_COMPAT,
    words::{self, SDP_BIT},
};

/// Whether all that will ever be received, or sent, goes through the TCP socket, and nothing is left in the ring before it.
/// Then what the kernel adds to bytes, or knows of them beside, is the kernel's to tell, and control data its to obey.
///
/// Without the half's lock: from a lane that is left for good nothing leads back, and one word says which lane it is and
/// how many switches there were before.
#[cold]
pub(crate) fn is_kernels(conn: &Pinned, half: Half) -> bool {
    let (Some(link), Some(row)) = (conn.link(), conn.row()) else { return false };
    // By this process, or by a relative.
    if link.own().is_open() {
        return false;
    }
    let log = link.half(conn.half_index(half));
    let state = match half {
        Half::Receive => &row.sink,
        Half::Send => &row.source,
    };
    let bits = state.words.get(words::BITS).map_or(SDP_BIT, |word| word.load(Ordering::Acquire));
    let theirs = || match half {
        Half::Receive => log.written(),
        Half::Send => log.followed(),
    };
    bits & SDP_BIT == 0 && bits as u32 == theirs()
}

/// Whether a message to be sent has control data.
///
/// # Safety
/// The header is null or valid.
pub(crate) unsafe fn has_control(header: *const msghdr) -> bool {
    // SAFETY: the caller's.
    !header.is_null() && unsafe { (*header).msg_controllen } != 0
}

/// Why the kernel refuses a message whatever its bytes are: too many buffers, control data, a length of the address, a
/// flag. What it accepts of these means nothing to a lane.
///
/// # Safety
/// The header is null or valid.
pub(crate) unsafe fn refused(fd: c_int, header: *const msghdr, flags: c_int) -> Option<Errno> {
    if header.is_null() {
        return None;
    }
    if flags & MSG_CMSG_COMPAT != 0 {
        return Some(Errno::EINVAL);
    }
    // SAFETY: the caller's.
    let mut header = unsafe { *header };
    if header.msg_iovlen > IOV_MAX {
        return Some(Errno(libc::EMSGSIZE));
    }
    let has_bad_name = !header.msg_name.is_null() && header.msg_namelen.cast_signed() < 0;
    if header.msg_controllen == 0 && !has_bad_name {
        return None;
    }
    header.msg_iovlen = 0;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a header without buffers, so that no byte is sent; the kernel looks at what it points to.
    let asked = unsafe { sys!(libc::SYS_sendmsg, fd, &raw const header, flags) };
    // An end is found, and told, by the send itself.
    asked.err().filter(|e| *e != Errno::EPIPE)
}

/// Calls `each` with every descriptor in the message's SCM_RIGHTS.
///
/// # Safety
/// `msg` is a valid header whose control data is readable.
pub(crate) unsafe fn each_right(msg: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: the caller's header; the macros stay within msg_controllen.
    unsafe {
        if (*msg).msg_control.is_null() {
            return;
        }
        let mut at = libc::CMSG_FIRSTHDR(msg);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*at).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(at).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    each(data.add(i).read_unaligned());
                }
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
}

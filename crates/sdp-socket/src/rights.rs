//! Descriptors in the control data of a message.

use libc::{c_int, msghdr};

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

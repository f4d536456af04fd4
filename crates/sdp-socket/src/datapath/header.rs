//! Message headers: what the kernel reports in them, and control data, which only the kernel can
//! carry out.
//!
//! Called by `api`, before a message is sent or received.

use core::{ptr::NonNull, sync::atomic::Ordering};

use libc::{c_int, msghdr};
use sdp_sys::{errno::Errno, kernel::zeroed, sys};

use crate::conn::{
    ConnGuard, Half,
    iovec::{IOV_MAX, Vector},
    options::{flags::MSG_CMSG_COMPAT, tcp},
    words::{self, SDP_BIT},
};

/// Whether all that will ever be received, or sent, goes through the TCP socket, and nothing is
/// left in the ring before it. Then the kernel reports what it adds to the bytes or knows beside
/// them, and obeys control data.
///
/// Without the half's lock: from a lane that is left for good nothing leads back, and one word says which lane it is and
/// how many switches there were before.
#[cold]
pub(crate) fn is_kernels(conn: &ConnGuard, half: Half) -> bool {
    let (Some(link), Some(row)) = (conn.link(), conn.row()) else { return false };
    // By this process, or by a family member.
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

/// The header of a message of the program's, until the call returns.
#[derive(Clone, Copy)]
pub(crate) struct Header(NonNull<msghdr>);

impl Header {
    /// `None`: null.
    ///
    /// # Safety
    /// Null, or a header that is readable until the call returns, with its vector and its control data.
    pub(crate) unsafe fn new(header: *const msghdr) -> Option<Self> {
        NonNull::new(header.cast_mut()).map(Self)
    }

    /// The program's header, copied.
    fn read(self) -> msghdr {
        // SAFETY: readable, by the contract of `new`.
        unsafe { self.0.read() }
    }

    /// Bytes of control data, or of room for it.
    pub(crate) fn control_len(self) -> usize {
        self.read().msg_controllen
    }

    /// Puts `TCP_CM_INQ` into the room for control data, of as many bytes, as the kernel does.
    pub(crate) fn tell_unread(self, room: usize, unread: c_int) {
        const VALUE: u32 = size_of::<c_int>() as u32;
        let at = self.0.as_ptr();
        // SAFETY: the header and its room are writable, by the contract of `new` and of `recvmsg`; the
        // macros' lengths are compared with the room.
        unsafe {
            let (len, space) = (libc::CMSG_LEN(VALUE) as usize, libc::CMSG_SPACE(VALUE) as usize);
            if (*at).msg_control.is_null() || room < len {
                (*at).msg_flags |= libc::MSG_CTRUNC;
                return;
            }
            let control = (*at).msg_control.cast::<libc::cmsghdr>();
            let mut header: libc::cmsghdr = zeroed();
            (header.cmsg_len, header.cmsg_level) = (len, libc::IPPROTO_TCP);
            header.cmsg_type = tcp::INQ;
            control.write_unaligned(header);
            control.add(1).cast::<c_int>().write_unaligned(unread);
            (*at).msg_controllen = space.min(room);
        }
    }

    /// Elements of its vector.
    pub(crate) fn elements(self) -> usize {
        self.read().msg_iovlen
    }

    /// Its vector.
    pub(crate) fn vector(self) -> Vector {
        let header = self.read();
        // SAFETY: the header's own, by the contract of `new`.
        unsafe { Vector::new(header.msg_iov, header.msg_iovlen) }
    }
}

/// Whether a message to be sent has control data.
pub(crate) fn has_control(header: Option<Header>) -> bool {
    header.is_some_and(|header| header.control_len() != 0)
}

/// The error with which the kernel refuses a message, whatever its bytes are: too many buffers,
/// control data, a length of the address, a flag. Those of these that it accepts mean nothing to a
/// lane.
pub(crate) fn refused(fd: c_int, header: Option<Header>, flags: c_int) -> Option<Errno> {
    let mut header = header?.read();
    if flags & MSG_CMSG_COMPAT != 0 {
        return Some(Errno::EINVAL);
    }
    if header.msg_iovlen > IOV_MAX {
        return Some(Errno(libc::EMSGSIZE));
    }
    let has_bad_name = !header.msg_name.is_null() && header.msg_namelen.cast_signed() < 0;
    if header.msg_controllen == 0 && !has_bad_name {
        return None;
    }
    header.msg_iovlen = 0;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a header without buffers, so that no byte is sent; the kernel checks the addresses in
    // it.
    let asked = unsafe { sys!(libc::SYS_sendmsg, fd, &raw const header, flags) };
    // The send itself finds that the connection has ended, and reports it.
    asked.err().filter(|e| *e != Errno::EPIPE)
}

/// Calls `each` with every descriptor in the message's SCM_RIGHTS.
pub(crate) fn each_right(header: Header, mut each: impl FnMut(c_int)) {
    let msg = header.0.as_ptr().cast_const();
    // SAFETY: header and control data are readable, by the contract of `new`; the macros stay within msg_controllen.
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

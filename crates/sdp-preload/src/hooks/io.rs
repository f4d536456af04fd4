//! Plain receiving and sending: one buffer or a vector of them, and the bulk calls.
//!
//! The functions that programs call most. Each is a table load and a jump for a descriptor that is
//! not tracked; the code for a tracked one is kept out of line, so that the common path has no
//! stack frame.

use core::ffi::c_void;
use libc::{c_int, c_uint, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use sdp_socket::calls;

use super::slowly;
use crate::{direct, real};

/// The kernel moves at most this many bytes in one call (`INT_MAX` rounded down to a page).
const MOST: size_t = 0x7fff_f000;
/// Longest vector that the kernel takes (`UIO_MAXIOV`).
const VECTOR: c_int = 1024;

/// Of [`receive`]: a call for no bytes is over at once, whatever has arrived.
const READ: u8 = 0;
/// It waits like any other.
const RECV: u8 = 1;

/// One buffer as a vector, with the kernel's limit applied. None: longer than any object, for the
/// kernel to refuse.
#[inline]
pub(super) fn single(buf: *const c_void, n: size_t) -> Option<iovec> {
    isize::try_from(n).ok()?;
    Some(clipped(buf, n))
}

/// One buffer of a call of sockets, which the kernel makes for any length.
#[inline]
fn clipped(buf: *const c_void, n: size_t) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: n.min(MOST) }
}

#[cold]
#[inline(never)]
#[unsafe(link_section = ".text.hot")]
unsafe fn receive<const KIND: u8>(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    real: impl Fn(c_int, *mut c_void, size_t, c_int) -> ssize_t,
) -> ssize_t {
    let iov = if KIND == RECV { Some(clipped(buf, n)) } else { single(buf, n) };
    let Some(iov) = iov.filter(|_| KIND == RECV || n != 0) else {
        return real(fd, buf, n, flags);
    };
    // SAFETY: one vector entry that lives on this stack; the buffer is the program's.
    answer!(unsafe { calls::recv_one(fd, &iov, flags) }, flags, real(fd, buf, n, flags))
}

#[cold]
#[inline(never)]
#[unsafe(link_section = ".text.hot")]
unsafe fn transmit(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
    real: impl Fn(c_int, *const c_void, size_t, c_int) -> ssize_t,
) -> ssize_t {
    // SAFETY: the program's buffer.
    if let Some(sent) = unsafe { calls::send_one(fd, buf.cast(), n, flags) } {
        return sent as ssize_t;
    }
    let Some(iov) = single(buf, n) else {
        calls::sends_beyond_memory(fd);
        return real(fd, buf, n, flags);
    };
    // SAFETY: one vector entry that lives on this stack; the buffer is the program's.
    answer!(unsafe { calls::send(fd, &raw const iov, 1, flags) }, flags, real(fd, buf, n, flags))
}

#[inline]
pub(super) fn counts(n: c_int) -> bool {
    (0..=VECTOR).contains(&n)
}

hooks! {
    #[unsafe(link_section = ".text.hot")]
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::read(fd, buf, n);
        }
        receive::<READ>(fd, buf, n, 0, |fd, buf, n, _| direct::read(fd, buf, n))
    }

    fn __read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::read(fd, buf, n);
        }
        receive::<READ>(fd, buf, n, 0, |fd, buf, n, _| direct::read(fd, buf, n))
    }

    /// Fortified: more than the buffer holds is for libc, which ends the program.
    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        if !calls::is_tracked(fd) || n > room {
            return real::__read_chk(fd, buf, n, room);
        }
        receive::<READ>(fd, buf, n, 0, move |fd, buf, n, _| {
            real::__read_chk(fd, buf, n, room)
        })
    }

    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        if !calls::is_tracked(fd) || !counts(n) {
            return real::readv(fd, iov, n);
        }
        slowly(move || answer!(calls::readv(fd, iov, n as usize, 0), real::readv(fd, iov, n)))
    }

    #[unsafe(link_section = ".text.hot")]
    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::recv(fd, buf, n, flags);
        }
        receive::<RECV>(fd, buf, n, flags, |fd, buf, n, flags| direct::recv(fd, buf, n, flags))
    }

    fn __recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::recv(fd, buf, n, flags);
        }
        receive::<RECV>(fd, buf, n, flags, |fd, buf, n, flags| direct::recv(fd, buf, n, flags))
    }

    fn __recv_chk(
        fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int,
    ) -> ssize_t {
        if !calls::is_tracked(fd) || n > room {
            return real::__recv_chk(fd, buf, n, room, flags);
        }
        receive::<RECV>(fd, buf, n, flags, move |fd, buf, n, flags| {
            real::__recv_chk(fd, buf, n, room, flags)
        })
    }

    fn recvfrom(
        fd: c_int, buf: *mut c_void, n: size_t, flags: c_int,
        addr: *mut sockaddr, len: *mut socklen_t,
    ) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::recvfrom(fd, buf, n, flags, addr, len);
        }
        receive_from(fd, buf, n, flags, addr, len, move || {
            real::recvfrom(fd, buf, n, flags, addr, len)
        })
    }

    fn __recvfrom_chk(
        fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int,
        addr: *mut sockaddr, len: *mut socklen_t,
    ) -> ssize_t {
        if !calls::is_tracked(fd) || n > room {
            return real::__recvfrom_chk(fd, buf, n, room, flags, addr, len);
        }
        receive_from(fd, buf, n, flags, addr, len, move || {
            real::__recvfrom_chk(fd, buf, n, room, flags, addr, len)
        })
    }

    #[unsafe(link_section = ".text.hot")]
    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::write(fd, buf, n);
        }
        transmit(fd, buf, n, 0, |fd, buf, n, _| direct::write(fd, buf, n))
    }

    fn __write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::write(fd, buf, n);
        }
        transmit(fd, buf, n, 0, |fd, buf, n, _| direct::write(fd, buf, n))
    }

    fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        if !calls::is_tracked(fd) || !counts(n) {
            return real::writev(fd, iov, n);
        }
        slowly(move || answer!(calls::send(fd, iov, n as usize, 0), real::writev(fd, iov, n)))
    }

    #[unsafe(link_section = ".text.hot")]
    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::send(fd, buf, n, flags);
        }
        transmit(fd, buf, n, flags, |fd, buf, n, flags| direct::send(fd, buf, n, flags))
    }

    fn __send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
        if !calls::is_tracked(fd) {
            return real::send(fd, buf, n, flags);
        }
        transmit(fd, buf, n, flags, |fd, buf, n, flags| direct::send(fd, buf, n, flags))
    }

    /// On a connected stream the address is ignored, as in the kernel; with `MSG_FASTOPEN` the call
    /// is a connect and the kernel's.
    fn sendto(
        fd: c_int, buf: *const c_void, n: size_t, flags: c_int,
        addr: *const sockaddr, len: socklen_t,
    ) -> ssize_t {
        // An address that is too long is the kernel's to refuse.
        let is_refused = !addr.is_null() && len as usize > size_of::<libc::sockaddr_storage>();
        if !calls::is_tracked(fd) || flags & libc::MSG_FASTOPEN != 0 || is_refused {
            return real::sendto(fd, buf, n, flags, addr, len);
        }
        transmit(fd, buf, n, flags, move |fd, buf, n, flags| {
            real::sendto(fd, buf, n, flags, addr, len)
        })
    }

    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        if !calls::is_tracked(out) && !calls::is_tracked(input) {
            return real::sendfile(out, input, offset, n);
        }
        slowly(move || {
            answer!(calls::sendfile(out, input, offset, n), real::sendfile(out, input, offset, n))
        })
    }

    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        if !calls::is_tracked(out) && !calls::is_tracked(input) {
            return real::sendfile(out, input, offset, n);
        }
        slowly(move || {
            answer!(calls::sendfile(out, input, offset, n), real::sendfile(out, input, offset, n))
        })
    }

    fn preadv2(
        fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t {
        receive_at(fd, iov, n, offset, flags, move || real::preadv2(fd, iov, n, offset, flags))
    }

    fn preadv64v2(
        fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t {
        receive_at(fd, iov, n, offset, flags, move || real::preadv2(fd, iov, n, offset, flags))
    }

    fn pwritev2(
        fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t {
        transmit_at(fd, iov, n, offset, flags, move || real::pwritev2(fd, iov, n, offset, flags))
    }

    fn pwritev64v2(
        fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t {
        transmit_at(fd, iov, n, offset, flags, move || real::pwritev2(fd, iov, n, offset, flags))
    }

    fn splice(
        input: c_int, off_in: *mut i64, out: c_int, off_out: *mut i64, n: size_t, flags: c_uint,
    ) -> ssize_t {
        if !calls::is_tracked(input) && !calls::is_tracked(out) {
            return real::splice(input, off_in, out, off_out, n, flags);
        }
        slowly(move || {
            answer!(
                calls::splice(input, off_in, out, off_out, n, flags),
                real::splice(input, off_in, out, off_out, n, flags)
            )
        })
    }
}

/// The offset with which `preadv2` and `pwritev2` are `readv` and `writev`; others are errors on a socket.
const HERE: off_t = -1;

pub(super) unsafe fn receive_at(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
    real: impl Fn() -> ssize_t,
) -> ssize_t {
    if calls::is_tracked(fd)
        && offset == HERE
        && counts(n)
        && let Some(wait) = calls::vector_flags(fd, flags)
    {
        // SAFETY: the program's vector.
        return slowly(move || answer!(unsafe { calls::readv(fd, iov, n as usize, wait) }, real()));
    }
    real()
}

pub(super) unsafe fn transmit_at(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
    real: impl Fn() -> ssize_t,
) -> ssize_t {
    if calls::is_tracked(fd)
        && offset == HERE
        && counts(n)
        && let Some(wait) = calls::vector_flags(fd, flags)
    {
        // SAFETY: the program's vector.
        return slowly(move || answer!(unsafe { calls::send(fd, iov, n as usize, wait) }, real()));
    }
    real()
}

/// A connected stream has no source address to report: the kernel leaves `addr` alone and says that
/// its length is 0.
#[cold]
#[inline(never)]
pub(super) unsafe fn receive_from(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    real: impl Fn() -> ssize_t,
) -> ssize_t {
    let iov = clipped(buf, n);
    // SAFETY: one vector entry that lives on this stack; the buffer is the program's.
    match unsafe { calls::recv(fd, &raw const iov, 1, flags) } {
        calls::Call::Done(result) => {
            if result >= 0 && !addr.is_null() && !len.is_null() {
                // SAFETY: the program's, valid because it asks for an address.
                unsafe { *len = 0 };
            }
            crate::errno::from_result(result)
        }
        other => answer!(other, flags, real()),
    }
}

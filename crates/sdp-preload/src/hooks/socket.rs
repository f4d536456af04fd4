//! Sockets: made, connected, accepted, shut down, controlled.

use core::ffi::c_void;
use libc::{c_int, c_ulong, sockaddr, socklen_t};
use sdp_socket::calls::{self, Call};

use super::{escape, slowly};
use crate::{errno, real};

/// Whether the next byte is the urgent one; not named by the libc bindings.
const SIOCATMARK: c_ulong = 0x8905;

pub(super) unsafe fn connect_to(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
    real: impl FnOnce(*const sockaddr, socklen_t) -> c_int,
) -> c_int {
    let inet = calls::inet_address(fd, addr, len);
    let (addr, len) = inet.as_ref().map_or((addr, len), calls::InetAddress::parts);
    if calls::disconnecting(fd, addr, len) {
        return slowly(move || {
            let result = real(addr, len);
            let error = errno::get();
            calls::disconnected(fd, result == 0);
            errno::set(error);
            result
        });
    }
    if let Some(error) = calls::refusing(fd, addr, len) {
        errno::set(error);
        return -1;
    }
    let result = real(addr, len);
    // An interrupted connect goes on in the kernel, like one that is in progress.
    if result == 0 || matches!(errno::get(), libc::EINPROGRESS | libc::EINTR) {
        // SAFETY: the kernel accepted the address.
        unsafe { calls::connected(fd, addr, len) };
    }
    result
}

/// `bind` of a tracked descriptor.
#[cold]
#[inline(never)]
pub(super) unsafe fn bind_to(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
    real: impl FnOnce(*const sockaddr, socklen_t) -> c_int,
) -> c_int {
    let inet = calls::inet_address(fd, addr, len);
    let (addr, len) = inet.as_ref().map_or((addr, len), calls::InetAddress::parts);
    let result = real(addr, len);
    calls::bound(fd, if result == 0 { 0 } else { errno::get() });
    result
}

/// `getsockopt` of a tracked descriptor.
#[cold]
pub(super) unsafe fn option_of(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
    real: impl FnOnce() -> c_int,
) -> c_int {
    slowly(move || {
        // SAFETY: the caller's.
        let answer = unsafe { calls::getsockopt(fd, level, name, value, len) };
        if let Call::Done(result) = answer {
            return errno::from_result(result) as c_int;
        }
        let result = real();
        if result == 0 {
            // SAFETY: the call succeeded.
            unsafe { calls::option_read(fd, level, name, value, len) };
        }
        result
    })
}

/// `socket`. A socket that another preloaded library asked for in its place, by `syscall`, has been
/// looked at there.
#[inline]
pub(super) fn open(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    real: impl FnOnce(c_int) -> c_int,
) -> c_int {
    if calls::is_historic(domain) {
        return open_historic(domain, kind, protocol, real);
    }
    let seen = escape::calls_seen();
    let fd = real(domain);
    if fd >= 0 && escape::calls_seen() == seen {
        calls::opened(fd, domain, kind, protocol);
    }
    fd
}

/// [`open`] with a family of the historic stack.
#[cold]
#[inline(never)]
fn open_historic(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    real: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let family = match calls::asked(domain, kind, protocol) {
        Ok(family) => family,
        Err(error) => {
            errno::set(error);
            return -1;
        }
    };
    let seen = escape::calls_seen();
    let fd = real(family);
    let is_noted = escape::calls_seen() != seen;
    if fd >= 0 && !calls::made(fd, family, kind, protocol, is_noted) {
        // SAFETY: a descriptor that no other code knows of.
        unsafe { real::close(fd) };
        errno::set(libc::ENOBUFS);
        return -1;
    }
    fd
}

/// `listen`.
#[inline]
pub(super) fn hear(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let result = real();
    if result == 0 {
        calls::listening(fd);
    }
    result
}

/// `accept`, as [`open`]. A client that a listener for SDP clients only turns away is not shown:
/// the call waits for the next.
#[inline]
pub(super) fn take(fd: c_int, len: *mut socklen_t, real: impl Fn() -> c_int) -> c_int {
    let room = if calls::may_turn_away(fd) { room(len) } else { None };
    loop {
        let generation = calls::accepting(fd);
        let seen = escape::calls_seen();
        let new = real();
        if new < 0 || escape::calls_seen() != seen {
            return new;
        }
        if !calls::turns_away(fd, new) {
            calls::accepted(fd, new, generation);
            return new;
        }
        match room {
            _ if len.is_null() => {}
            // SAFETY: the kernel has just written the length there.
            Some(room) => unsafe { *len = room },
            // The rules have changed meanwhile, and the room that the program has is not known any
            // more.
            None => {
                errno::set(libc::ECONNABORTED);
                return -1;
            }
        }
    }
}

/// How much room the program has for an address; nothing where that cannot be read, as the kernel will say.
#[cold]
fn room(len: *mut socklen_t) -> Option<socklen_t> {
    // SAFETY: it was looked at that it can be read.
    sdp_sys::memory::is_readable(len.cast(), size_of::<socklen_t>()).then(|| unsafe { *len })
}

hooks! {
    #[unsafe(link_section = ".text.open")]
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        open(domain, kind, protocol, move |family| real::socket(family, kind, protocol))
    }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        let result = real::socketpair(domain, kind, protocol, fds);
        if result == 0 {
            calls::new_descriptor(*fds);
            calls::new_descriptor(*fds.add(1));
        }
        result
    }

    #[unsafe(link_section = ".text.open")]
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        connect_to(fd, addr, len, move |addr, len| real::connect(fd, addr, len))
    }

    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        connect_to(fd, addr, len, move |addr, len| real::connect(fd, addr, len))
    }

    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        if !calls::is_tracked(fd) {
            return real::bind(fd, addr, len);
        }
        bind_to(fd, addr, len, move |addr, len| real::bind(fd, addr, len))
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        hear(fd, move || real::listen(fd, backlog))
    }

    #[unsafe(link_section = ".text.open")]
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        take(fd, len, move || real::accept(fd, addr, len))
    }

    #[unsafe(link_section = ".text.open")]
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        take(fd, len, move || real::accept4(fd, addr, len, flags))
    }

    #[unsafe(link_section = ".text.open")]
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if !calls::is_tracked(fd) {
            return real::shutdown(fd, how);
        }
        slowly(move || answer!(calls::shutdown(fd, how), real::shutdown(fd, how)))
    }

    fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t,
    ) -> c_int {
        if !calls::is_tracked(fd) {
            return real::setsockopt(fd, level, name, value, len);
        }
        slowly(move || {
            answer!(
                calls::setsockopt(fd, level, name, value, len),
                real::setsockopt(fd, level, name, value, len)
            )
        })
    }

    fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t,
    ) -> c_int {
        if !calls::is_tracked(fd) {
            return real::getsockopt(fd, level, name, value, len);
        }
        option_of(fd, level, name, value, len, move || {
            real::getsockopt(fd, level, name, value, len)
        })
    }

    fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
        if !calls::is_tracked(fd) {
            return real::ioctl(fd, request, arg);
        }
        slowly(move || answer!(calls::ioctl(fd, request, arg), real::ioctl(fd, request, arg)))
    }

    /// libc asks with an `ioctl` of its own, which no hook would see.
    fn sockatmark(fd: c_int) -> c_int {
        if !calls::is_tracked(fd) {
            return real::sockatmark(fd);
        }
        let mut mark: c_int = 0;
        match calls::ioctl(fd, SIOCATMARK, (&raw mut mark).addr()) {
            Call::Done(0) => mark,
            Call::Done(result) => errno::from_result(result) as c_int,
            Call::Pass | Call::Counted(_) | Call::EarlyWait => real::sockatmark(fd),
        }
    }
}

//! Hooks of sockets that a program asks to be SDP by their family.

use libc::{c_int, sockaddr, socklen_t};

use crate::lifecycle::explicit;
pub use crate::lifecycle::explicit::InetAddress;

/// Whether `socket` was asked for one of the historic families. A comparison, nothing else.
#[inline(always)]
pub fn is_historic(domain: c_int) -> bool {
    (explicit::EARLY..=explicit::IPV6).contains(&domain)
}

/// Before such a `socket`: the family to ask the kernel for, or the error number that the call fails with.
pub fn asked(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, c_int> {
    explicit::asked(domain, kind, protocol)
}

/// After such a `socket` that succeeded, with the family that [`asked`] answered. `is_noted`: [`opened`](super::opened) was
/// called for it. False: the library cannot have it, and it is to be closed.
pub fn made(fd: c_int, family: c_int, kind: c_int, protocol: c_int, is_noted: bool) -> bool {
    explicit::made(fd, family, kind, protocol, is_noted)
}

/// Before `bind` and `connect`: the address for the kernel, if it is not the program's own.
#[inline]
pub fn inet_address(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<InetAddress> {
    explicit::inet_address(fd, addr, len)
}

/// After `bind` on a tracked descriptor, with its error number or 0.
pub fn bound(fd: c_int, error: c_int) {
    explicit::bound(fd, error);
}

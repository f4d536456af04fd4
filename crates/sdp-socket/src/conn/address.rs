//! The addresses of a carrier's two ends, as rules and reports see them: 16 bytes (IPv4 as
//! v4-mapped) and a port.
//!
//! Called where rules need an address (`lifecycle`), and where a report shows one
//! ([`super::publish`]).
//!
//! Called where rules are asked (`lifecycle`) and by the report ([`crate::conn::publish`]). Asks
//! the kernel; keeps nothing.

use libc::c_int;
use sdp_sys::kernel::{self, End};

/// Bytes of a socket address that we look at.
pub(crate) const ADDRESS_MAX: usize = 28;

/// A socket address as rules see it: 16 bytes (IPv4 as v4-mapped) and a port.
pub(crate) fn parse_address(bytes: &[u8]) -> Option<([u8; 16], u16)> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => {
            let [a, b, c, d] = *bytes.get(4..)?.first_chunk()?;
            Some(([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d], port))
        }
        libc::AF_INET6 => Some((*bytes.get(8..)?.first_chunk()?, port)),
        _ => None,
    }
}

/// The interface of an address that is link-local (`sin6_scope_id`), otherwise 0.
pub(crate) fn interface_of(bytes: &[u8]) -> u32 {
    let is_link_local = bytes.first_chunk().map(|family| u16::from_ne_bytes(*family))
        == Some(libc::AF_INET6 as u16)
        && matches!(bytes.get(8..10), Some([0xfe, 0x80..=0xbf]));
    let scope = bytes.get(24..).and_then(<[u8]>::first_chunk).filter(|_| is_link_local);
    scope.map_or(0, |scope| u32::from_ne_bytes(*scope))
}

/// The address of this end. `None`: not a socket of these families.
pub(crate) fn local_address(fd: c_int) -> Option<([u8; 16], u16)> {
    let mut bytes = [0u8; ADDRESS_MAX];
    kernel::name_of(fd, End::Local, &mut bytes).ok()?;
    parse_address(&bytes)
}

/// The address of the other end. `None`: likewise, or not connected.
pub(crate) fn remote_address(fd: c_int) -> Option<([u8; 16], u16)> {
    let mut name = [0u8; ADDRESS_MAX];
    kernel::name_of(fd, End::Remote, &mut name).ok()?;
    parse_address(&name)
}

//! Explicit conversion: a program asks for an SDP socket by the family that the historic stack had.
//!
//! Called by `api` when a socket is made and bound, and by [`super::open`] and [`super::listener`]
//! for its rule.
//!
//! `AF_INET_SDP` is 27, in early versions 26, and `AF_INET6_SDP` is 28. Such a socket is a TCP
//! socket here, as any other whose bytes may go over SDP, and it is strict ([`super::strict`]): the
//! historic one had no TCP to fall back to, and no rule was asked. The program may pass addresses
//! of those families to `bind` and `connect`; the library always returns `AF_INET` or `AF_INET6`.
//!
//! Where the library has nothing to give (a process that has left it, a child on its parent's memory) the kernel
//! answers, as it does without the library: the family is unknown.

use libc::{c_int, sockaddr, socklen_t};
use sdp_config::{Family, Role};
use sdp_sys::section;

use crate::{
    conn::{self, Conn, Origin, address::ADDRESS_MAX, historic::IPV4},
    lifecycle::{opened, strict},
    process::{
        self, settings,
        table::{self, Entry},
    },
};

/// `AF_INET_SDP` as the guides of 2005 had it. Linux gave the number to `AF_LLC`.
pub(crate) const EARLY: c_int = 26;
/// `AF_INET6_SDP`. (`AF_MPLS`, which has none either.)
pub(crate) const IPV6: c_int = 28;

/// The part of a socket's type that is not flags.
const TYPE_MASK: c_int = 0xf;
/// Longest address that the kernel takes.
const LONGEST: usize = size_of::<libc::sockaddr_storage>();

/// The family of IP that one of the numbers means.
fn meant(family: c_int) -> Option<c_int> {
    match family {
        EARLY | IPV4 => Some(libc::AF_INET),
        IPV6 => Some(libc::AF_INET6),
        _ => None,
    }
}

/// Before a `socket` with one of the numbers: the family to ask the kernel for, or the error.
#[inline(never)]
pub(crate) fn asked(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, c_int> {
    let is_stream = kind & TYPE_MASK == libc::SOCK_STREAM;
    let is_tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
    let is_llc = domain == EARLY && !(is_stream && is_tcp);
    if is_llc || process::is_retired() || !process::is_ours() {
        return Ok(domain);
    }
    if !is_stream {
        return Err(libc::ESOCKTNOSUPPORT);
    }
    if !is_tcp {
        return Err(libc::EPROTONOSUPPORT);
    }
    Ok(meant(domain).unwrap_or(domain))
}

/// After that `socket`, with the family that was asked for; `is_noted`: the library saw another call make it. False: the
/// library cannot have one more.
#[inline(never)]
pub(crate) fn made(fd: c_int, family: c_int, kind: c_int, protocol: c_int, is_noted: bool) -> bool {
    if !is_noted {
        opened(fd, family, kind, protocol);
    }
    if meant(family).is_some() {
        return true; // the kernel's
    }
    let Some(conn) = connection(fd) else { return false };
    conn.historic.set_explicit();
    true
}

fn connection(fd: c_int) -> Option<&'static Conn> {
    match table::entry(fd) {
        Some(Entry::Conn(index)) => conn::get(index),
        _ => None,
    }
}

/// The rules' verdict for a socket; an explicit one does not ask them.
pub(crate) fn family(conn: &Conn, role: Role, address: [u8; 16], port: u16) -> Family {
    if conn.historic.is_explicit() { Family::Sdp } else { settings::family(role, address, port) }
}

/// An address in a family that the kernel knows.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct InetAddress {
    bytes: [u8; ADDRESS_MAX],
    len: socklen_t,
}

impl InetAddress {
    /// The address, as a call takes it.
    pub fn parts(&self) -> (*const sockaddr, socklen_t) {
        (self.bytes.as_ptr().cast(), self.len)
    }
}

/// Before `bind` and `connect`: the address to give to the kernel in place of the program's. `None`: the program's own.
#[inline]
pub(crate) fn inet_address(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> Option<InetAddress> {
    let conn = connection(fd)?;
    if conn.historic.is_explicit() { inet_here(addr, len, conn.has(Origin::V6)) } else { None }
}

#[cold]
#[inline(never)]
fn inet_here(addr: *const sockaddr, len: socklen_t, is_v6: bool) -> Option<InetAddress> {
    if len as usize > LONGEST || !process::is_ours() {
        return None;
    }
    let _section = section::Guard::enter();
    let mut bytes = strict::copied(addr, len)?;
    let (to, _) = bytes.split_first_chunk_mut::<2>()?;
    let given = c_int::from(u16::from_ne_bytes(*to));
    if !is_v6 && (given == libc::AF_INET6 || given == IPV6) && len as usize >= ADDRESS_MAX {
        return in_ipv4(&bytes);
    }
    *to = (meant(given)? as u16).to_ne_bytes();
    Some(InetAddress { bytes, len: len.min(ADDRESS_MAX as socklen_t) })
}

/// An IPv6 address on a socket of IPv4: the historic `bind` did not look at the family, and programs rely on it where
/// they ask for the wildcard. `None`: it is not one of IPv4.
fn in_ipv4(bytes: &[u8; ADDRESS_MAX]) -> Option<InetAddress> {
    let (address, _) = bytes.get(8..)?.split_first_chunk::<16>()?;
    let host = match address {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, host @ ..] => *host,
        address if *address == [0; 16] => [0; 4],
        _ => return None,
    };
    let [a, b] = (libc::AF_INET as u16).to_ne_bytes();
    let [c, d, e, f] = host;
    let mut inet =
        InetAddress { bytes: [0; ADDRESS_MAX], len: size_of::<libc::sockaddr_in>() as socklen_t };
    *inet.bytes.first_chunk_mut()? = [a, b, bytes[2], bytes[3], c, d, e, f];
    Some(inet)
}

/// After a `bind`, with its error number, 0 for none.
#[inline(never)]
pub(crate) fn bound(fd: c_int, error: c_int) {
    if let Some(conn) = connection(fd)
        && conn.historic.is_explicit()
    {
        conn.historic.note_bind(error.unsigned_abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_mean_stream_sockets_alone() {
        const FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        for kind in [libc::SOCK_STREAM, libc::SOCK_STREAM | FLAGS] {
            for protocol in [0, libc::IPPROTO_TCP] {
                assert_eq!(asked(EARLY, kind, protocol), Ok(libc::AF_INET));
                assert_eq!(asked(IPV4, kind, protocol), Ok(libc::AF_INET));
                assert_eq!(asked(IPV6, kind, protocol), Ok(libc::AF_INET6));
            }
            assert_eq!(asked(IPV4, kind, libc::IPPROTO_UDP), Err(libc::EPROTONOSUPPORT));
            assert_eq!(asked(EARLY, kind, 4), Ok(EARLY), "AF_LLC's");
        }
        assert_eq!(asked(IPV6, libc::SOCK_DGRAM, 0), Err(libc::ESOCKTNOSUPPORT));
        assert_eq!(asked(EARLY, libc::SOCK_DGRAM | FLAGS, 0), Ok(EARLY), "AF_LLC's");
    }

    #[test]
    fn a_socket_that_the_library_cannot_have_is_not_one_of_sdp() {
        let out_of_reach = table::DESCRIPTORS as c_int;
        let is_made = |family| made(out_of_reach, family, libc::SOCK_STREAM, 0, false);
        assert!(!is_made(libc::AF_INET) && !is_made(libc::AF_INET6));
        assert!(is_made(EARLY), "the kernel's");
    }

    #[test]
    fn addresses_lose_their_family_and_nothing_else() {
        let mut address = [7u8; size_of::<libc::sockaddr_storage>() + 1];
        let rewritten = |address: &[u8], len: usize| {
            inet_here(address.as_ptr().cast(), len as socklen_t, true).map(|p| (p.bytes, p.len))
        };
        for (given, means) in
            [(EARLY, libc::AF_INET), (IPV4, libc::AF_INET), (IPV6, libc::AF_INET6)]
        {
            address[..2].copy_from_slice(&(given as u16).to_ne_bytes());
            for (len, kept) in [(16, 16), (28, 28), (size_of::<libc::sockaddr_storage>(), 28)] {
                let (bytes, n) = rewritten(&address, len).expect("one of the numbers");
                assert_eq!((n, &bytes[..2]), (kept, &(means as u16).to_ne_bytes()[..]));
                assert!(bytes[2..kept as usize].iter().all(|byte| *byte == 7));
            }
            assert!(
                rewritten(&address, 15).is_none() && rewritten(&address, address.len()).is_none()
            );
        }
        address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        assert!(rewritten(&address, 16).is_none());
        assert!(inet_here(core::ptr::null(), 16, false).is_none());
        assert!(inet_here(core::ptr::without_provenance(8), 16, false).is_none());
    }

    #[test]
    fn ipv6_addresses_of_ipv4_will_do_on_sockets_of_ipv4() {
        let mut address = [0u8; ADDRESS_MAX];
        let rewritten = |address: &[u8], is_v6| {
            let inet = inet_here(address.as_ptr().cast(), address.len() as socklen_t, is_v6)?;
            Some((inet.bytes.first_chunk::<8>().copied()?, inet.len))
        };
        let [a, b] = (libc::AF_INET as u16).to_ne_bytes();
        for family in [libc::AF_INET6, IPV6] {
            address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
            address[2..4].copy_from_slice(&[7, 8]);
            address[8..].fill(0);
            assert_eq!(rewritten(&address, false), Some(([a, b, 7, 8, 0, 0, 0, 0], 16)));
            address[18..24].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 9]);
            assert_eq!(rewritten(&address, false), Some(([a, b, 7, 8, 127, 0, 0, 9], 16)));
            assert!(rewritten(&address[..27], false).is_none_or(|(_, len)| len != 16));
            address[8] = 0x20;
            assert_eq!(rewritten(&address, false), None, "of IPv6");
        }
        address[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        assert!(rewritten(&address, true).is_none(), "the program's own");
    }
}

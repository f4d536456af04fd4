//! Strict clients, by rule (`use sdp`) or by the socket that they asked for ([`super::explicit`]): whether a connection that
//! is about to be made can have an SDP lane at all.
//!
//! A listener whose connections may get lanes is marked: `IP_MULTICAST_LOOP`, which means nothing to TCP, is taken
//! from its socket. sock_diag shows that to everybody in the network namespace, and the mark goes where the socket
//! goes. A strict client asks for the listener that the kernel would choose before it connects, so that nothing
//! reaches a peer that cannot have SDP. The mark is no secret and no proof: it decides whether `connect` fails, no
//! more.

use libc::{c_int, sockaddr, socklen_t};
use sdp_config::{Family, Role};
use sdp_sys::{
    fd, memory,
    netlink::{Diag, Pair},
    section, sys,
};

use crate::{
    conn::{
        self, Stage,
        address::{ADDRESS_MAX, parse_address},
    },
    lifecycle::may_be_another,
    process::{
        self, log, settings,
        table::{self, Entry},
    },
};

/// What a v4-mapped address begins with.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Bytes that can be asked about at a time.
const AT_ONCE: usize = 8;
/// Where a v4-mapped address has its IPv4 one.
const IPV4_AT: usize = 12;

/// A socket listens whose connections may get lanes.
pub(crate) fn mark(listener: c_int) {
    // Where that is refused strict clients take us for a program without the library.
    let _ = fd::setsockopt_int(listener, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 0);
}

/// A rule says that they do not get them any more.
pub(crate) fn unmark(listener: c_int) {
    let _ = fd::setsockopt_int(listener, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 1);
}

/// Before `connect`: the error with which it fails because the rules, or the program, want SDP or nothing and there is no
/// SDP.
#[unsafe(link_section = ".text.open")]
pub(crate) fn refusal(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    let Some(Entry::Conn(index)) = table::entry(fd) else { return None };
    let conn = conn::get(index)?;
    let is_new = conn.stage() == Stage::Fresh || may_be_another(conn);
    let is_asked_for = conn.historic.is_explicit();
    if !is_new || !process::is_ours() || !process::start() {
        return None;
    }
    settings::refresh();
    if !is_asked_for && !settings::has_strict_clients() {
        return None;
    }
    let _section = section::Guard::enter();
    let bytes = copied(addr, len)?;
    let (address, port) = parse_address(&bytes)?;
    let by_rule = || settings::family_unlogged(Role::Client, address, port) == Family::Sdp;
    if !is_asked_for && !by_rule() {
        return None;
    }
    let errno = judge(&bytes, address, port)?;
    log::refused(fd, address, port, is_asked_for, errno);
    Some(errno)
}

/// The address, if it can be read and has its length: the kernel tells what is wrong with another.
pub(super) fn copied(addr: *const sockaddr, len: socklen_t) -> Option<[u8; ADDRESS_MAX]> {
    let n = (len as usize).min(ADDRESS_MAX);
    if addr.is_null() || n < size_of::<libc::sockaddr_in>() {
        return None;
    }
    let from = addr.cast::<u8>();
    let can_read = |at| memory::is_readable(from.wrapping_add(at), AT_ONCE.min(n - at));
    if !(0..n).step_by(AT_ONCE).all(can_read) {
        return None;
    }
    let mut bytes = [0u8; ADDRESS_MAX];
    // SAFETY: n readable bytes; n <= ADDRESS_MAX.
    unsafe { core::ptr::copy_nonoverlapping(addr.cast::<u8>(), bytes.as_mut_ptr(), n) };
    Some(bytes)
}

/// The error of a connection to this address; `None`: it may have a lane, or there is no telling.
fn judge(bytes: &[u8; ADDRESS_MAX], address: [u8; 16], port: u16) -> Option<c_int> {
    if !settings::tunables().has_shm() {
        return Some(libc::ENETUNREACH); // no fabric at all
    }
    let mut diag = Diag::open().ok()?;
    match diag.find_marked(&question(bytes, address, port)) {
        Ok(Some((_, Some(true)))) => Some(libc::ECONNREFUSED), // nobody with the library, or a rule against it
        // The kernel refuses it itself, if it is an address of ours.
        Ok(None) => (!is_local(bytes)).then_some(libc::ENETUNREACH),
        _ => None,
    }
}

/// The question for the listener that a connection to `address` would reach.
fn question(bytes: &[u8; ADDRESS_MAX], address: [u8; 16], port: u16) -> Pair {
    let is_v4 = address.starts_with(&MAPPED);
    let mut local = [0; 16];
    if is_v4 {
        let mut v4 = [0; 4];
        v4.copy_from_slice(address.get(IPV4_AT..).unwrap_or(&[0; 4]));
        if v4 == [0; 4] {
            v4 = [127, 0, 0, 1]; // as the kernel reads it
        }
        local.first_chunk_mut::<4>().into_iter().for_each(|to| *to = v4);
    } else {
        local = address;
        if local == [0; 16] {
            local[15] = 1;
        }
    }
    let scope = bytes.last_chunk().map_or(0, |scope| u32::from_ne_bytes(*scope));
    Pair {
        family: if is_v4 { libc::AF_INET } else { libc::AF_INET6 } as u8,
        local,
        local_port: port,
        remote: [0; 16],
        remote_port: 0,
        interface: if is_v4 { 0 } else { scope },
    }
}

/// Whether this network namespace has the address: what can be bound to it, with any port. In doubt it has.
fn is_local(bytes: &[u8; ADDRESS_MAX]) -> bool {
    let family = i32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let Ok(probe) = fd::socket(family, kind) else { return true };
    let mut any_port = *bytes;
    any_port[2..4].fill(0);
    let len = if family == libc::AF_INET { size_of::<libc::sockaddr_in>() } else { ADDRESS_MAX };
    // SAFETY: the address outlives the call.
    let bound = unsafe { sys!(libc::SYS_bind, probe.raw(), any_port.as_ptr(), len) };
    !bound.is_err_and(|error| error.0 == libc::EADDRNOTAVAIL)
}

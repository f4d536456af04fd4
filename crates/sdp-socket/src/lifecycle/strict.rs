//! SDP or nothing, by rule (`use sdp`) or by the socket that was asked for ([`super::explicit`]): whether a connection
//! can have an SDP lane at all.
//!
//! Called by `api` around `connect`, and by [`super::listener`] at `accept`.
//!
//! Sockets whose connections may get lanes are marked, listeners and those that are about to
//! connect: `IP_MULTICAST_LOOP`, which has no effect on TCP, is cleared on them. sock_diag shows
//! that to every process in the network namespace, and the mark goes where the socket goes. A
//! strict client asks for the listener that the kernel would choose before it connects, so that
//! nothing reaches a peer that cannot have SDP. A strict server asks for the other end of what it
//! has accepted, and turns it away with a reset before the program sees it. The mark is no secret
//! and no proof: it decides whether a call fails, no more. Nothing is known of other hosts before
//! the two ends meet: they pass where there is a device that may reach them.

use core::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, sockaddr, socklen_t};
use sdp_config::{Family, Role};
use sdp_stats::{
    Reason,
    trace::{Event, Kind},
};
use sdp_sys::{
    fd,
    kernel::{self, End},
    memory,
    netlink::{Diag, Pair},
    section,
};

use crate::{
    conn::{
        self, Stage,
        address::{ADDRESS_MAX, local_address, parse_address},
        carrier,
    },
    hosts,
    lifecycle::may_be_another,
    process::{
        self, log, page, settings,
        table::{self, Entry},
        trace,
    },
};

/// The first bytes of a v4-mapped address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Bytes that can be asked about at a time.
const AT_ONCE: usize = 8;

/// Called when a socket listens whose connections may get lanes, or is about to connect and may get
/// one.
#[unsafe(link_section = ".text.open")]
pub(crate) fn mark(socket: c_int) {
    // Where that is refused strict ends take us for a program without the library.
    let _ = fd::setsockopt_int(socket, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 0);
}

/// A rule says that they do not get them any more.
pub(crate) fn unmark(listener: c_int) {
    let _ = fd::setsockopt_int(listener, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 1);
}

/// Before `connect`: the error with which it fails because the rules, or the program, want SDP or nothing and there is no
/// SDP.
#[unsafe(link_section = ".text.open")]
pub fn refusing(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    let Some(Entry::Conn(index)) = table::entry(fd) else { return None };
    let conn = conn::get(index)?;
    let is_new = conn.stage() == Stage::Fresh || may_be_another(conn);
    let is_asked_for = conn.historic.is_explicit();
    if !is_new || !process::is_ours() || !process::start() {
        return None;
    }
    settings::refresh();
    let _section = section::Guard::enter();
    if !is_asked_for && !settings::tells_clients_apart() {
        mark(fd);
        return None;
    }
    let bytes = copied(addr, len)?;
    let (address, port) = parse_address(&bytes)?;
    let family = || settings::family_unlogged(Role::Client, address, port);
    match if is_asked_for { Family::Sdp } else { family() } {
        Family::Sdp => {}
        Family::Tcp => return None,
        Family::Both => {
            mark(fd);
            return None;
        }
    }
    let Some((errno, reason)) = refusal(&bytes, address, port) else {
        mark(fd);
        return None;
    };
    count(fd, reason);
    log::refused(fd, address, port, is_asked_for, reason, errno);
    Some(errno)
}

fn count(fd: c_int, reason: Reason) {
    if let Some(page) = page::current() {
        page.count_refused(reason);
    }
    trace::record(Event {
        kind: Kind::Refused,
        direction: None,
        reason: Some(reason),
        fabric: None,
        fd,
        ports: (0, 0),
        now_ns: 0,
    });
}

/// After an `accept`, before the program has the descriptor: whether the connection is turned away,
/// because its listener takes SDP clients only and this one cannot have SDP. Then its descriptor is
/// closed.
#[unsafe(link_section = ".text.open")]
pub fn turns_away(listener: c_int, fd: c_int) -> bool {
    if !may_turn_away(listener) || !process::is_ours() || process::is_retired() {
        return false;
    }
    let _section = section::Guard::enter();
    let is_asked_for = match table::entry(listener) {
        Some(Entry::Conn(index)) => conn::get(index).is_some_and(|c| c.historic.is_explicit()),
        _ => false,
    };
    let is_strict = || {
        let (address, port) = local_address(listener).unwrap_or(([0; 16], 0));
        settings::family_unlogged(Role::Server, address, port) == Family::Sdp
    };
    if !is_asked_for && !is_strict() {
        return false;
    }
    let Some((remote, own)) = ends(fd) else { return false };
    let Some(reason) = judge_client(&remote, &own) else { return false };
    count(fd, reason);
    if let Some((address, port)) = parse_address(&remote) {
        log::turned_away(listener, address, port, is_asked_for, reason);
    }
    carrier::reset_on_close(fd);
    fd::close(fd);
    true
}

/// Before `accept`, and after it: whether the listener may be one for SDP clients only.
#[inline]
pub fn may_turn_away(listener: c_int) -> bool {
    if !table::is_tracked(listener) {
        return false;
    }
    settings::refresh();
    settings::has_strict_servers() || EXPLICIT_LISTENS.load(Ordering::Relaxed)
}

/// A listener takes SDP clients only because the program asked for it so.
pub(crate) fn explicit_listens() {
    EXPLICIT_LISTENS.store(true, Ordering::Relaxed);
}

static EXPLICIT_LISTENS: AtomicBool = AtomicBool::new(false);

type Address = [u8; ADDRESS_MAX];

/// The addresses of a connection's other end and of its own.
fn ends(fd: c_int) -> Option<(Address, Address)> {
    let of = |end| {
        let mut bytes = [0u8; ADDRESS_MAX];
        kernel::name_of(fd, end, &mut bytes).ok()?;
        Some(bytes)
    };
    Some((of(End::Remote)?, of(End::Local)?))
}

/// Why the other end of an accepted connection cannot have a lane; `None`: it may, or that cannot
/// be known.
fn judge_client(remote: &Address, own: &Address) -> Option<Reason> {
    let (address, port) = parse_address(remote)?;
    let (own, own_port) = parse_address(own)?;
    let tunables = settings::tunables();
    if !tunables.has_shm() && !tunables.has_verbs() {
        return Some(Reason::Disabled);
    }
    let mut diag = Diag::open().ok()?;
    let mut pair = question(remote, address, port);
    (pair.remote, pair.remote_port) = (in_place(own), own_port);
    match diag.find_marked(&pair) {
        // A listener, where there is no such connection.
        Ok(Some((found, mark))) if found.pair.remote_port == own_port => match mark {
            Some(true) => Some(Reason::PeerNotListening),
            _ => (!tunables.has_shm()).then_some(Reason::Disabled),
        },
        // It has gone: that is the program's to see.
        Ok(_) if is_local(remote) => None,
        Ok(_) => hosts::unreachable(),
        Err(_) => None,
    }
}

/// An address as sock_diag has it: IPv4 in the first four bytes.
fn in_place(address: [u8; 16]) -> [u8; 16] {
    match address.strip_prefix(&MAPPED) {
        Some([a, b, c, d]) => [*a, *b, *c, *d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        _ => address,
    }
}

/// The address, if it can be read and has its length: the kernel reports the error of another.
pub(super) fn copied(addr: *const sockaddr, len: socklen_t) -> Option<Address> {
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

/// The error of a connection to this address; `None`: it may have a lane, or that cannot be known.
fn refusal(bytes: &Address, address: [u8; 16], port: u16) -> Option<(c_int, Reason)> {
    let tunables = settings::tunables();
    if !tunables.has_shm() && !tunables.has_verbs() {
        return Some((libc::ENETUNREACH, Reason::Disabled));
    }
    let mut diag = Diag::open().ok()?;
    match diag.find_marked(&question(bytes, address, port)) {
        // No listener with the library, or a rule against it.
        Ok(Some((_, Some(true)))) => Some((libc::ECONNREFUSED, Reason::PeerNotListening)),
        Ok(Some(_)) => (!tunables.has_shm()).then_some((libc::ENETUNREACH, Reason::Disabled)),
        // The kernel refuses it itself, if it is an address of ours.
        Ok(None) if is_local(bytes) => None,
        Ok(None) => Some((libc::ENETUNREACH, hosts::unreachable()?)),
        Err(_) => None,
    }
}

/// The question for the listener that a connection to `address` would reach.
fn question(bytes: &Address, address: [u8; 16], port: u16) -> Pair {
    let is_v4 = address.starts_with(&MAPPED);
    let mut local = in_place(address);
    if local == [0; 16] {
        // As the kernel reads it.
        if is_v4 {
            [local[0], local[3]] = [127, 1];
        } else {
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

/// Whether this network namespace has the address: a socket can be bound to it, with any port. In
/// doubt it has.
fn is_local(bytes: &Address) -> bool {
    let family = i32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let Ok(probe) = fd::socket(family, kind) else { return true };
    let mut any_port = *bytes;
    any_port[2..4].fill(0);
    let len = if family == libc::AF_INET { size_of::<libc::sockaddr_in>() } else { ADDRESS_MAX };
    let bound = kernel::bind(probe.raw(), &any_port, len);
    !bound.is_err_and(|error| error.0 == libc::EADDRNOTAVAIL)
}

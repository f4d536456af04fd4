//! Which connections are this room's: those whose other end is on another host, where one can be reached by RDMA at all.
//!
//! A host without RDMA pays one question to the kernel in the life of a process, at its first connection
//! ([`may_reach`]); nothing of RDMA is opened or loaded before a connection to another host has earned it ([`device`]).

use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use sdp_fabric_verbs::cm::Manager;
use sdp_stats::Reason;

use super::{IN_USE, carrier_io::is_of_this_host, end, pair, places, role};
use crate::{
    conn::{Conn, Holders, Stage},
    process::{self, place},
};

/// The answer of [`may_reach`]: nothing yet, or whether there is a connection manager.
static MANAGER: AtomicU32 = AtomicU32::new(NOT_ASKED);
const NOT_ASKED: u32 = 0;
const THERE: u32 = 1;
const MISSING: u32 = 2;

/// Whether this host has a way to reach another one by RDMA: asked once in a process, and known to
/// its children. Without the connection manager no device does.
fn may_reach() -> bool {
    let known = MANAGER.load(Ordering::Relaxed);
    if known != NOT_ASKED {
        return known == THERE;
    }
    let is_there = Manager::is_there();
    MANAGER.store(if is_there { THERE } else { MISSING }, Ordering::Relaxed);
    is_there
}

/// A connection exists, and has moved nothing: it is this room's if its other end is on another
/// host. `remote`: the address that a `connect` asked for, which may still be in progress, and its interface if it
/// is link-local.
pub(crate) fn consider(conn: &Conn, fd: c_int, remote: Option<([u8; 16], u32)>) {
    if !process::tunables().has_verbs()
        || conn.stage() != Stage::Candidate
        || conn.has(Holders::Adopted)
        || !may_reach()
    {
        return;
    }
    let named = || conn.name(fd).map(|tuple| (*tuple.remote.bytes(), tuple.interface));
    let Some((remote, interface)) = remote.or_else(named) else { return };
    if is_loopback(&remote) || is_of_this_host(&remote, interface) {
        return;
    }
    if places::has_refused()
        && let Some(reason) = conn.name(fd).and_then(|tuple| places::refusal(&tuple))
    {
        // Where no device has its own address (a bridge to containers) the ends may meet in the
        // directory.
        if reason != Reason::NoDevice || !place::is_known() {
            conn.fall_back(reason);
        }
        return;
    }
    let role = role(conn);
    IN_USE.store(true, Ordering::Relaxed);
    if pair::take(conn, role).is_none() {
        conn.fall_back(Reason::Limit);
    } else if !conn.change_stage(Stage::Candidate, Stage::Remote) {
        end(conn);
    }
}

/// An address that is this host's without a question.
pub(crate) fn is_loopback(ip: &[u8; 16]) -> bool {
    let [.., mapped, mapped_too, first, _, _, last] = *ip;
    let begins_with_zeros = ip.iter().take(10).all(|byte| *byte == 0);
    let is_v4 = begins_with_zeros && mapped == 0xff && mapped_too == 0xff;
    is_v4 && first == 127 || u128::from_be_bytes(*ip) == u128::from(last) && last == 1
}

/// Why no address of another host can be reached; `None`: one may be, by some address of this host.
pub(crate) fn unreachable() -> Option<Reason> {
    (!process::tunables().has_verbs() || !may_reach()).then_some(Reason::RemotePeer)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::is_loopback;

    #[test]
    fn loopback_is_known_by_its_address() {
        let texts = [
            "127.0.0.1",
            "127.9.8.7",
            "::1",
            "126.0.0.1",
            "10.0.0.1",
            "::",
            "::2",
            "fe80::1",
            "1::1",
        ];
        for text in texts {
            let address: IpAddr = text.parse().unwrap();
            let ip: Ipv6Addr = match address {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            assert_eq!(is_loopback(&ip.octets()), address.is_loopback(), "{text}");
        }
    }
}

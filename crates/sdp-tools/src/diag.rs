//! The kernel's TCP sockets by `sock_diag`: one query instead of a text for each network namespace.
//!
//! Where the kernel has no sock_diag, or a namespace may not be entered, callers read `/proc`
//! instead ([`crate::kernel`]).

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::kernel::Entry;
use crate::sys;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// Number of the state LISTEN.
const LISTEN: u8 = 10;

/// A query for all TCP sockets of a family, in every state.
fn request(family: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    bytes.extend([0; 8]); // sequence and port: one query, one socket
    bytes.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.resize(HEADER + REQUEST, 0);
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}

fn port(bytes: &[u8], at: usize) -> u16 {
    let bytes = bytes.get(at..at + 2).and_then(|b| b.try_into().ok());
    bytes.map_or(0, u16::from_be_bytes)
}

fn address(bytes: &[u8], at: usize, is_v6: bool) -> IpAddr {
    let octets: [u8; 16] =
        bytes.get(at..at + 16).and_then(|b| b.try_into().ok()).unwrap_or([0; 16]);
    match is_v6 {
        true => IpAddr::V6(Ipv6Addr::from(octets)),
        false => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
    }
}

/// One answer; `None` if it is too short to be one.
fn entry(body: &[u8]) -> Option<Entry> {
    if body.len() < ANSWER {
        return None;
    }
    let is_v6 = i32::from(body[0]) == libc::AF_INET6;
    let state = body[1];
    Some(Entry {
        local: (address(body, 8, is_v6), port(body, 4)),
        remote: (address(body, 24, is_v6), port(body, 6)),
        state,
        // Of a listener it is the longest that the queue may become.
        send_queue: if state == LISTEN { 0 } else { word(body, 60).into() },
        receive_queue: word(body, 56).into(),
        uid: word(body, 64),
        inode: word(body, 68).into(),
        is_v6,
    })
}

/// Takes the messages of one packet; false once the last one was there.
fn take(packet: &[u8], entries: &mut Vec<Entry>) -> io::Result<bool> {
    let mut rest = packet;
    while rest.len() >= HEADER {
        let len = word(rest, 0) as usize;
        let kind = word(rest, 4) as u16;
        let Some(message) = rest.get(..len).filter(|m| m.len() >= HEADER) else { break };
        let body = &message[HEADER..];
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR => {
                return Err(io::Error::from_raw_os_error(
                    word(body, 0).cast_signed().wrapping_neg(),
                ));
            }
            _ if kind == BY_FAMILY => entries.extend(entry(body)),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// All TCP sockets of this thread's network namespace.
fn here() -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        sys::sock_diag(&request(family as u8), |packet| take(packet, &mut entries))?;
    }
    Ok(entries)
}

/// All TCP sockets of the network namespace of the process in `directory` (of `/proc`).
///
/// # Errors
/// The kernel has no sock_diag, or the namespace may not be entered.
pub fn entries(directory: &Path) -> io::Result<Vec<Entry>> {
    let space = directory.join("ns/net");
    let same = std::fs::read_link("/proc/self/ns/net")? == std::fs::read_link(&space)?;
    if same {
        return here();
    }
    let space = File::open(space)?;
    // A thread of its own enters it, and goes.
    let thread = std::thread::spawn(move || sys::enter_network(&space).and_then(|()| here()));
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn the_kernel_tells_what_proc_tells() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let v6 = std::net::TcpListener::bind("[::1]:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ports = [
            listener.local_addr().unwrap().port(),
            v6.local_addr().unwrap().port(),
            client.local_addr().unwrap().port(),
        ];
        let ours = |mut all: Vec<Entry>| {
            all.retain(|e| ports.contains(&e.local.1));
            all.sort_by_key(|e| (e.local.1, e.state, e.inode));
            all
        };
        let own = Path::new("/proc/self");
        let found = ours(entries(own).expect("sock_diag"));
        assert_eq!(found, ours(kernel::from_proc(own)));
        assert!(found.len() >= 4, "{found:?}");
    }

    #[test]
    fn damaged_answers_do_no_harm() {
        let mut entries = Vec::new();
        for len in 0..200u32 {
            for kind in [BY_FAMILY, 3, 9] {
                let mut packet = len.to_ne_bytes().to_vec();
                packet.extend(kind.to_ne_bytes());
                packet.resize(100, 0xff);
                let _ = take(&packet, &mut entries);
            }
        }
    }
}

//! The kernel's own tables of TCP sockets: its view of a connection's carrier.
//!
//! Used to complete the data that processes publish (state, addresses, queues) and to list
//! connections that are not SDP. Each process is looked up in its own network namespace: by
//! sock_diag ([`crate::diag`]), or, where that is not to be had, in `/proc/PID/net/tcp` and `tcp6`.
//! Changes nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use sdp_stats::Endpoint;

use crate::{diag, names};

/// One socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Local address and port.
    pub local: (IpAddr, u16),
    /// Remote address and port; zeros for a listener.
    pub remote: (IpAddr, u16),
    /// TCP state number.
    pub state: u8,
    /// Bytes sent and not acknowledged.
    pub send_queue: u64,
    /// Bytes received and not read; for a listener, connections not accepted.
    pub receive_queue: u64,
    /// Owner.
    pub uid: u32,
    /// Inode of the socket; 0 when no descriptor names it.
    pub inode: u64,
    /// Of a socket for IPv6.
    pub is_v6: bool,
}

/// All TCP sockets that the process in `directory` (of `/proc`) sees; none when it has gone.
pub fn list(directory: &Path) -> Vec<Entry> {
    diag::entries(directory).unwrap_or_else(|_| from_proc(directory))
}

/// Likewise, out of `/proc`.
pub(crate) fn from_proc(directory: &Path) -> Vec<Entry> {
    let mut all = Vec::new();
    for name in ["net/tcp", "net/tcp6"] {
        let text = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
        all.extend(entries(&text));
    }
    all
}

/// The sockets in the text of `/proc/net/tcp` or `tcp6`. Lines that make no sense are left out.
pub fn entries(text: &str) -> impl Iterator<Item = Entry> {
    text.lines().skip(1).filter_map(entry)
}

fn entry(line: &str) -> Option<Entry> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, queues, _, _, uid, _, inode, ..] = fields.as_slice() else {
        return None;
    };
    let (send, receive) = queues.split_once(':')?;
    let local = hex_end(local)?;
    Some(Entry {
        is_v6: local.0.is_ipv6(),
        local,
        remote: hex_end(remote)?,
        state: u8::from_str_radix(state, 16).ok()?,
        send_queue: u64::from_str_radix(send, 16).ok()?,
        receive_queue: u64::from_str_radix(receive, 16).ok()?,
        uid: uid.parse().ok()?,
        inode: inode.parse().ok()?,
    })
}

/// `0100007F:0050`: words of the address in network order, printed as host numbers.
fn hex_end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (i, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(i * 8)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

/// The sockets of one network namespace, by the lower 32 bits of the inode (all that a page keeps).
#[derive(Debug, Default)]
pub struct Sockets {
    all: HashMap<u32, Entry>,
    by_ends: HashMap<(Endpoint, Endpoint), u32>,
}

impl Sockets {
    /// Those that the process in `directory` (of `/proc`) sees; none when it has gone.
    pub fn of(directory: &Path) -> Self {
        let mut sockets = Self::default();
        for entry in list(directory).into_iter().filter(|e| e.inode != 0) {
            let ends = (names::endpoint(entry.local), names::endpoint(entry.remote));
            sockets.by_ends.insert(ends, entry.inode as u32);
            sockets.all.insert(entry.inode as u32, entry);
        }
        sockets
    }

    /// The inode of a connection's socket.
    pub fn of_ends(&self, local: Endpoint, remote: Endpoint) -> Option<u32> {
        self.by_ends.get(&(local, remote)).copied()
    }

    /// The socket with this inode.
    pub fn get(&self, inode: u32) -> Option<&Entry> {
        self.all.get(&inode)
    }
}

/// The inode of the socket that a process's descriptor names; 0 when it names none.
pub fn inode_of(directory: &Path, fd: i32) -> u32 {
    let link = std::fs::read_link(directory.join("fd").join(fd.to_string())).unwrap_or_default();
    let text = link.to_string_lossy();
    let inode = text.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
    inode.and_then(|n| n.parse::<u64>().ok()).map_or(0, |n| n as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn ends_are_read() {
        let v6 = "00000000000000000000000001000000:0016";
        assert_eq!(hex_end(v6).unwrap(), ("::1".parse().unwrap(), 22));
        assert_eq!(hex_end("0100007F"), None);
        assert_eq!(hex_end("01:1"), None);
    }

    #[test]
    fn a_socket_is_found_by_its_descriptor_and_by_its_ends() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let own = Path::new("/proc/self");
        let inode = inode_of(own, listener.as_raw_fd());
        let sockets = Sockets::of(own);
        let entry = sockets.get(inode).expect("the kernel lists it");
        assert_eq!(entry.local.1, listener.local_addr().unwrap().port());
        assert_eq!(entry.state, 10);
        assert_eq!(inode_of(own, -1), 0);
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sockets = Sockets::of(own);
        let end = |addr: std::net::SocketAddr| names::endpoint((addr.ip(), addr.port()));
        let (local, remote) = (end(client.local_addr().unwrap()), end(client.peer_addr().unwrap()));
        let inode = inode_of(own, client.as_raw_fd());
        assert_eq!(sockets.of_ends(local, remote), Some(inode));
        assert_ne!(sockets.of_ends(remote, local), Some(inode), "the other end");
    }
}

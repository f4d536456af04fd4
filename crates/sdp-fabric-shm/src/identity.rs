//! The process at the other end of a TCP connection, by the kernel's knowledge.
//!
//! The rendezvous asks here three things about a carrier: its addresses ([`Tuple`]), whether the
//! socket at the other end is on this host and which user owns it ([`examine`]), and whether a user
//! id is good enough to be believed ([`check_uid`]). Nothing is taken from the peer itself. It
//! refuses to guess: a socket in another network namespace, a connection to itself or an ambiguous
//! user id is an answer of its own.

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_sys::{
    Errno, fd,
    kernel::{self, End, zeroed},
    netlink::{Diag, Pair},
    procfs,
    stat::{self, Identity},
};

use crate::refusal::Refusal;

/// Address family of an [`Addr`] after normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4, also when the socket is an IPv6 one with a v4-mapped address.
    V4,
    /// IPv6.
    V6,
}

/// An address and port. IPv4 is kept in its v4-mapped form, so that both ends of a connection agree
/// whatever kind of socket they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Addr {
    bytes: [u8; 16],
    port: u16,
}

/// The first bytes of a v4-mapped address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Addr {
    /// From an IPv4 address in network order.
    pub const fn v4(ip: [u8; 4], port: u16) -> Self {
        let mut bytes = [0; 16];
        let ([head @ .., a, b, c, d], [e, f, g, h]) = (&mut bytes, ip);
        *head = MAPPED;
        (*a, *b, *c, *d) = (e, f, g, h);
        Self { bytes, port }
    }

    /// From an IPv6 address in network order; a v4-mapped one is an IPv4 address from here on.
    pub const fn v6(bytes: [u8; 16], port: u16) -> Self {
        Self { bytes, port }
    }

    /// The 16 bytes, network order, IPv4 as v4-mapped.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.bytes
    }

    /// The port, host order.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The family.
    pub fn family(&self) -> Family {
        if self.bytes.starts_with(&MAPPED) { Family::V4 } else { Family::V6 }
    }

    /// In the form of sock_diag: IPv4 in the first four bytes.
    fn diag_bytes(&self) -> [u8; 16] {
        match self.family() {
            Family::V6 => self.bytes,
            Family::V4 => {
                let mut bytes = [0; 16];
                let [.., a, b, c, d] = self.bytes;
                [bytes[0], bytes[1], bytes[2], bytes[3]] = [a, b, c, d];
                bytes
            }
        }
    }
}

/// Both addresses of a connection, from one end's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// The end's own address.
    pub local: Addr,
    /// The other end's address.
    pub remote: Addr,
    /// Interface index of a link-local IPv6 connection, otherwise 0. Needed to find its socket; no
    /// part of the rendezvous name.
    pub interface: u32,
}

/// Why a descriptor has no [`Tuple`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TupleError {
    /// Not a TCP socket over IPv4 or IPv6.
    NotTcp,
    /// Not connected (any more).
    NotConnected,
    /// Another error of the kernel.
    Kernel(Errno),
}

impl Tuple {
    /// The tuple of a connected TCP socket.
    pub fn of(carrier: i32) -> Result<Self, TupleError> {
        // MPTCP and SCTP sockets have inet addresses too.
        match fd::getsockopt_int(carrier, libc::SOL_SOCKET, libc::SO_PROTOCOL) {
            Ok(libc::IPPROTO_TCP) => {}
            Ok(_) | Err(Errno(libc::ENOTSOCK)) => return Err(TupleError::NotTcp),
            Err(error) => return Err(TupleError::Kernel(error)),
        }
        Self::named(carrier)
    }

    /// [`Tuple::of`] for what is known to be a TCP socket.
    fn named(carrier: i32) -> Result<Self, TupleError> {
        let (local, interface) = address(carrier, End::Local)?;
        let (remote, _) = address(carrier, End::Remote)?;
        Ok(Self { local, remote, interface })
    }

    /// Whether `carrier` has these addresses now, and is connected: not reset, nor closed by both ends. As long as
    /// that is so no other connection of its network namespace can have them, unless it is bound to a device.
    pub fn is_of(&self, carrier: i32) -> bool {
        Self::named(carrier) == Ok(*self)
    }

    /// The same connection seen from the other end.
    pub const fn reversed(&self) -> Self {
        Self { local: self.remote, remote: self.local, interface: self.interface }
    }

    /// Which of the two ends this one is: 0 has the smaller (address, port). `None`: one socket
    /// connected to itself.
    pub fn side(&self) -> Option<u8> {
        match self.local.cmp(&self.remote) {
            core::cmp::Ordering::Less => Some(0),
            core::cmp::Ordering::Equal => None,
            core::cmp::Ordering::Greater => Some(1),
        }
    }

    pub(crate) fn same_addresses(&self, other: &Self) -> bool {
        self.local == other.local && self.remote == other.remote
    }

    pub(crate) fn to_pair(self) -> Pair {
        let v4 = self.local.family() == Family::V4 && self.remote.family() == Family::V4;
        let raw = |addr: &Addr| if v4 { addr.diag_bytes() } else { addr.bytes };
        Pair {
            // For a mapped pair the kernel looks in the same table whichever family asks, and finds
            // sockets of both.
            family: if v4 { libc::AF_INET } else { libc::AF_INET6 } as u8,
            local: raw(&self.local),
            local_port: self.local.port,
            remote: raw(&self.remote),
            remote_port: self.remote.port,
            interface: self.interface,
        }
    }

    pub(crate) fn from_pair(pair: &Pair) -> Self {
        let addr = |bytes: [u8; 16], port| {
            if i32::from(pair.family) == libc::AF_INET {
                let [a, b, c, d, ..] = bytes;
                Addr::v4([a, b, c, d], port)
            } else {
                Addr::v6(bytes, port)
            }
        };
        Self {
            local: addr(pair.local, pair.local_port),
            remote: addr(pair.remote, pair.remote_port),
            interface: pair.interface,
        }
    }
}

/// `getsockname` or `getpeername`: the address, and the interface if it is link-local.
fn address(carrier: i32, end: End) -> Result<(Addr, u32), TupleError> {
    let mut raw: libc::sockaddr_storage = zeroed();
    match kernel::name_of(carrier, end, &mut raw) {
        Ok(_) => {}
        Err(Errno(libc::ENOTCONN)) => return Err(TupleError::NotConnected),
        Err(error) => return Err(TupleError::Kernel(error)),
    }
    parse_address(&raw).ok_or(TupleError::NotTcp)
}

/// An address of IPv4 or IPv6, and the interface if it is link-local.
fn parse_address(raw: &libc::sockaddr_storage) -> Option<(Addr, u32)> {
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            let addr: libc::sockaddr_in = kernel::address(raw);
            let ip = addr.sin_addr.s_addr.to_ne_bytes();
            Some((Addr::v4(ip, u16::from_be(addr.sin_port)), 0))
        }
        libc::AF_INET6 => {
            let addr: libc::sockaddr_in6 = kernel::address(raw);
            let ip = addr.sin6_addr.s6_addr;
            Some((Addr::v6(ip, u16::from_be(addr.sin6_port)), addr.sin6_scope_id))
        }
        _ => None,
    }
}

/// Whether the kernel translates addresses of a connection, as far as it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Translation {
    /// Connection tracking does not know the connection, so it does not translate it either.
    Untracked,
    /// Connection tracking knows the connection. It is not translated here; connection tracking
    /// does not show the other end.
    Possible,
    /// The connection was made to another address than the one here: they are no name of it.
    Certain,
}

/// The answer of connection tracking about the connection `tuple` that `carrier` holds. One system
/// call.
pub fn translation(carrier: i32, tuple: &Tuple) -> Translation {
    /// `SO_ORIGINAL_DST`, and the same of IPv6.
    const ORIGINAL_DST: i32 = 80;
    let mut raw: libc::sockaddr_storage = zeroed();
    let level = match tuple.remote.family() {
        Family::V4 => libc::SOL_IP,
        Family::V6 => libc::SOL_IPV6,
    };
    match kernel::getsockopt(carrier, level, ORIGINAL_DST, &mut raw) {
        Ok(_) => match parse_address(&raw) {
            // It is one or the other depending on which end connected.
            Some((addr, _)) if addr == tuple.remote || addr == tuple.local => Translation::Possible,
            _ => Translation::Certain,
        },
        // Not tracked, or nothing there that tracks.
        Err(Errno(libc::ENOENT | libc::ENOPROTOOPT)) => Translation::Untracked,
        Err(_) => Translation::Possible,
    }
}

/// A TCP socket of this network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSocket {
    /// Inode number; 0 when no descriptor names the socket.
    pub inode: u64,
    /// Owner's user id.
    pub uid: u32,
    /// TCP state number (1 is ESTABLISHED).
    pub state: u8,
}

/// The state of a [`PeerSocket`], by its inode and its TCP state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A process holds it.
    Open,
    /// Still in a listener's queue: no process has accepted it.
    NotAccepted,
    /// Closed by its last holder; the kernel is only finishing the protocol.
    Closed,
}

impl PeerSocket {
    /// See [`Presence`].
    pub const fn presence(&self) -> Presence {
        const ESTABLISHED: u8 = 1;
        const CLOSE_WAIT: u8 = 8;
        match (self.inode, self.state) {
            // Closing takes a socket out of both states at once, so without an inode it was never
            // accepted (our FIN may already have reached it).
            (0, ESTABLISHED | CLOSE_WAIT) => Presence::NotAccepted,
            (0, _) => Presence::Closed,
            _ => Presence::Open,
        }
    }
}

/// Why the kernel's socket tables could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiagError {
    /// sock_diag is refused, and /proc/net is missing, unreadable or too long.
    NoProc,
    /// No free descriptor.
    NoDescriptors,
    /// No kernel memory.
    NoMemory,
}

impl From<DiagError> for Refusal {
    fn from(error: DiagError) -> Self {
        match error {
            DiagError::NoProc => Self::NoProc,
            DiagError::NoDescriptors => Self::NoDescriptors,
            DiagError::NoMemory => Self::NoMemory,
        }
    }
}

impl DiagError {
    /// Errors that mean "not now" rather than "not this way".
    pub(crate) const fn of_shortage(error: Errno) -> Option<Self> {
        match error.0 {
            libc::EMFILE | libc::ENFILE => Some(Self::NoDescriptors),
            libc::ENOMEM | libc::ENOBUFS => Some(Self::NoMemory),
            _ => None,
        }
    }
}

/// Where to look sockets up.
enum Source {
    Netlink(Diag),
    Proc,
}

impl Source {
    fn open() -> Result<Self, DiagError> {
        match Diag::open() {
            Ok(diag) => Ok(Self::Netlink(diag)),
            Err(error) => DiagError::of_shortage(error).map_or(Ok(Self::Proc), Err),
        }
    }

    fn find(&mut self, tuple: &Tuple) -> Result<Option<PeerSocket>, DiagError> {
        let Self::Netlink(diag) = self else { return procnet::find(tuple) };
        match diag.find(&tuple.to_pair()) {
            // A lookup that finds no connection may end at a listener for the address.
            Ok(entry) => Ok(entry
                .filter(|e| Tuple::from_pair(&e.pair).same_addresses(tuple))
                .map(|e| PeerSocket { inode: u64::from(e.inode), uid: e.uid, state: e.state })),
            Err(error) => match DiagError::of_shortage(error) {
                Some(shortage) => Err(shortage),
                None => {
                    *self = Self::Proc;
                    procnet::find(tuple)
                }
            },
        }
    }
}

/// The socket whose own view of a connection is `tuple`. For the other end of a connection of ours
/// ask with [`Tuple::reversed`]. `None`: no such socket in this network namespace.
///
/// Cost: about 2 µs by sock_diag; without it, /proc/net/tcp is read through.
pub fn diag(tuple: &Tuple) -> Result<Option<PeerSocket>, DiagError> {
    let mut source = Source::open()?;
    match (source.find(tuple)?, source) {
        // A kernel whose sock_diag knows no TCP also answers ENOENT; the caller can find that out
        // only by asking for a socket that must exist, so this asks the other source.
        (None, Source::Netlink(_)) if !knows_tcp() => procnet::find(tuple),
        (found, _) => Ok(found),
    }
}

/// Whether sock_diag has ever found a TCP socket for this process; set by [`examine`].
static KNOWS_TCP: AtomicU32 = AtomicU32::new(0);

fn knows_tcp() -> bool {
    KNOWS_TCP.load(Ordering::Relaxed) != 0
}

/// Both ends of a connection, examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Examined {
    /// The other end is on this host and held by a process.
    Open {
        /// The other end.
        peer: PeerSocket,
        /// Our own end.
        own: Identity,
        /// Its owner, and our effective user.
        uid: u32,
    },
    /// The other end is on this host, but no process has accepted it yet.
    NotAccepted,
}

/// Looks at both ends of the connection `tuple` that descriptor `carrier` holds.
///
/// # Errors
/// [`Refusal::RemotePeer`]: the other end is not in our network namespace, or the carrier is not;
/// [`Refusal::UidDiffers`]: the carrier's owner is not our effective user (a dropped privilege);
/// [`Refusal::UidUnmapped`]: that user has no name here; [`Refusal::PeerNotListening`]: the other end is closed; what the
/// sources lack otherwise.
pub fn examine(carrier: i32, tuple: &Tuple) -> Result<Examined, Refusal> {
    let id = stat::stat(carrier).map_err(|_| Refusal::RemotePeer)?.id;
    let mut source = Source::open()?;
    // This end must be where it is looked for: the pair 127.0.0.1:a, 127.0.0.1:b of another network
    // namespace can exist here as well, as another process's connection.
    let mut own = source.find(tuple)?;
    match (own, &source) {
        (Some(_), Source::Netlink(_)) => KNOWS_TCP.store(1, Ordering::Relaxed),
        (None, Source::Netlink(_)) => {
            source = Source::Proc;
            own = source.find(tuple)?;
        }
        _ => {}
    }
    let own = own.filter(|own| own.inode == id.ino).ok_or(Refusal::RemotePeer)?;
    if own.uid != effective_uid() {
        return Err(Refusal::UidDiffers);
    }
    check_mapped(own.uid)?;
    let peer = source.find(&tuple.reversed())?.ok_or(Refusal::RemotePeer)?;
    match peer.presence() {
        Presence::NotAccepted => Ok(Examined::NotAccepted),
        Presence::Closed => Err(Refusal::PeerNotListening),
        Presence::Open => Ok(Examined::Open { peer, own: id, uid: own.uid }),
    }
}

/// The calling thread's effective user id.
pub fn effective_uid() -> u32 {
    sdp_sys::pid::effective_user().unwrap_or(u32::MAX)
}

/// Whether credentials with user `uid` may speak for a socket owned by `owner`: the same user or
/// root. Users that are not mapped here look alike: which of them it is, the handle proves that they
/// send, and their process is a party of its own ([`crate::party`]).
pub fn check_uid(uid: u32, owner: u32) -> Result<(), Refusal> {
    if uid == owner || uid == 0 { Ok(()) } else { Err(Refusal::Untrusted) }
}

/// Refuses the overflow uid wherever it can stand for an unmapped user: all unmapped users look
/// alike. Where every uid is mapped (the initial user namespace) it is a real user, usually
/// `nobody`.
pub(crate) fn check_mapped(uid: u32) -> Result<(), Refusal> {
    if uid == overflow_uid() && !maps_every_uid() { Err(Refusal::UidUnmapped) } else { Ok(()) }
}

/// The system's overflow uid, read once.
fn overflow_uid() -> u32 {
    const UNKNOWN: u32 = u32::MAX;
    /// The kernel's default.
    const DEFAULT: u32 = 65534;
    static CACHED: AtomicU32 = AtomicU32::new(UNKNOWN);
    let cached = CACHED.load(Ordering::Relaxed);
    if cached != UNKNOWN {
        return cached;
    }
    let mut buf = [0; 16];
    let text = read_small(c"/proc/sys/kernel/overflowuid", &mut buf);
    let text = text.and_then(|text| text.strip_suffix(b"\n"));
    let Some(uid) = text.and_then(procfs::decimal).and_then(|uid| u32::try_from(uid).ok()) else {
        return DEFAULT;
    };
    CACHED.store(uid, Ordering::Relaxed);
    uid
}

/// Whether this user namespace maps all uids, as the initial one does. A namespace can map all only
/// if its parent does, so then no unmapped user exists anywhere above.
fn maps_every_uid() -> bool {
    let mut buf = [0; 64];
    let Some(text) = read_small(c"/proc/thread-self/uid_map", &mut buf) else { return false };
    let mut fields = text.split(|byte| byte.is_ascii_whitespace()).filter(|f| !f.is_empty());
    let first = [fields.next(), fields.next(), fields.next()];
    first == [Some(&b"0"[..]), Some(b"0"), Some(b"4294967295")] && fields.next().is_none()
}

fn read_small<'a>(path: &core::ffi::CStr, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = procfs::open(path).ok()?;
    let len = procfs::read(file.raw(), buf).ok()?;
    buf.get(..len)
}

/// /proc/net/tcp and tcp6: the socket tables as text, for sandboxes that refuse netlink.
///
/// Slow (the whole table is formatted by the kernel) and not a snapshot; a socket that is missed
/// means TCP, never a wrong partner. Reading is bounded by [`MAX_BYTES`].
mod procnet {
    use core::ffi::CStr;

    use sdp_sys::procfs;

    use super::{Addr, DiagError, Family, PeerSocket, Tuple};

    /// Bytes read of one table at most: some 100 000 sockets.
    const MAX_BYTES: usize = 16 << 20;
    /// Room for a piece of the table; a line has at most about 200 bytes.
    const BUFFER: usize = 2048;

    /// The socket whose own view of a connection is `tuple`.
    pub(crate) fn find(tuple: &Tuple) -> Result<Option<PeerSocket>, DiagError> {
        // An IPv4 connection may be held by an IPv6 socket.
        if tuple.local.family() == Family::V4
            && let Some(found) = scan(c"/proc/thread-self/net/tcp", tuple)?
        {
            return Ok(Some(found));
        }
        // A system without IPv6 has no such file.
        match scan(c"/proc/thread-self/net/tcp6", tuple) {
            Err(DiagError::NoProc) if tuple.local.family() == Family::V4 => Ok(None),
            other => other,
        }
    }

    fn scan(path: &CStr, tuple: &Tuple) -> Result<Option<PeerSocket>, DiagError> {
        let failed = |error| DiagError::of_shortage(error).unwrap_or(DiagError::NoProc);
        let file = procfs::open(path).map_err(failed)?;
        let mut buf = [0u8; BUFFER];
        let mut kept = 0;
        let mut total = 0;
        while total < MAX_BYTES {
            let room = buf.get_mut(kept..).unwrap_or(&mut []);
            let len = procfs::read(file.raw(), room).map_err(failed)?;
            if len == 0 {
                return Ok(None);
            }
            total += len;
            let filled = kept + len;
            let mut start = 0;
            while let Some(rest) = buf.get(start..filled)
                && let Some(end) = rest.iter().position(|byte| *byte == b'\n')
            {
                if let Some((found, socket)) = rest.get(..end).and_then(line)
                    && found.local == tuple.local
                    && found.remote == tuple.remote
                {
                    return Ok(Some(socket));
                }
                start += end + 1;
            }
            if start == 0 && filled >= BUFFER {
                return Err(DiagError::NoProc); // no line is that long: not the file we know
            }
            // Byte by byte: `copy_within` would bring a panic along.
            kept = filled.saturating_sub(start);
            for i in 0..kept {
                let byte = buf.get(start + i).copied().unwrap_or(0);
                if let Some(to) = buf.get_mut(i) {
                    *to = byte;
                }
            }
        }
        Err(DiagError::NoProc)
    }

    /// Takes one line apart; `None` for the heading and for anything else.
    fn line(text: &[u8]) -> Option<(Tuple, PeerSocket)> {
        let mut fields = text.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let local = addr(fields.nth(1)?)?;
        let remote = addr(fields.next()?)?;
        let state = u8::try_from(hex(fields.next()?)?).ok()?;
        let uid = u32::try_from(procfs::decimal(fields.nth(3)?)?).ok()?;
        let inode = procfs::decimal(fields.nth(1)?)?;
        Some((Tuple { local, remote, interface: 0 }, PeerSocket { inode, uid, state }))
    }

    /// `0100007F:1F90`, or four such words for IPv6: each word is the network-order bytes read as a
    /// native number; the port is a number.
    fn addr(text: &[u8]) -> Option<Addr> {
        let colon = text.iter().position(|byte| *byte == b':')?;
        let (words, port) = (text.get(..colon)?, text.get(colon + 1..)?);
        let port = u16::try_from(hex(port)?).ok()?;
        let mut bytes = [0; 16];
        let (words, rest) = words.as_chunks::<8>();
        if !rest.is_empty() {
            return None;
        }
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&hex(word)?.to_ne_bytes());
        }
        match words.len() {
            1 => bytes.first_chunk().map(|ip| Addr::v4(*ip, port)),
            4 => Some(Addr::v6(bytes, port)),
            _ => None,
        }
    }

    /// A hexadecimal number of one to eight digits.
    fn hex(text: &[u8]) -> Option<u32> {
        if text.is_empty() || text.len() > 8 {
            return None;
        }
        text.iter().try_fold(0u32, |sum, byte| Some(sum << 4 | char::from(*byte).to_digit(16)?))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        #[cfg(target_endian = "little")]
        fn lines_of_both_tables() {
            let text =
                b"  12: 0100007F:1F90 0200007F:D431 01 00000000:00000000 00:00000000 00000000 \
            1000        0 73211 1 0000000000000000 20 4 30 10 -1";
            let (tuple, socket) = line(text).unwrap();
            assert_eq!(tuple.local, Addr::v4([127, 0, 0, 1], 8080));
            assert_eq!(tuple.remote, Addr::v4([127, 0, 0, 2], 54321));
            assert_eq!(socket, PeerSocket { inode: 73211, uid: 1000, state: 1 });

            let text = b"   0: 0000000000000000FFFF00000100007F:0050 \
            00000000000000000000000001000000:0051 08 00000000:00000000 00:00000000 00000000 \
            0        0 0 1";
            let (tuple, socket) = line(text).unwrap();
            assert_eq!(tuple.local, Addr::v4([127, 0, 0, 1], 80), "mapped is IPv4");
            let mut loopback = [0; 16];
            loopback[15] = 1;
            assert_eq!(tuple.remote, Addr::v6(loopback, 81));
            assert_eq!(socket, PeerSocket { inode: 0, uid: 0, state: 8 });
        }

        #[test]
        fn malformed_lines_are_skipped() {
            let heading =
                b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
            uid  timeout inode";
            assert!(line(heading).is_none());
            for bad in [&b"0: 0100007F:1F90"[..], b"", b"0: 0100007:1F90 0100007F:1 01 0 0 0 0 0 1"]
            {
                assert!(line(bad).is_none());
            }
        }
    }
}

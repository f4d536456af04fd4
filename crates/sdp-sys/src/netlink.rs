//! sock_diag: asks the kernel which socket of this network namespace has a given TCP address pair.
//!
//! Used to find out whether the other end of a connection lives on this host and which user owns
//! it, and to check a proof of possession against it. Only exact questions about one pair are
//! asked, never dumps. An answer is taken only from the kernel, only for the pair asked for.

use crate::{
    errno::Errno,
    kernel::{self, owned},
    owned::OwnedFd,
};

/// Request length: netlink header and `inet_diag_req_v2`.
const REQUEST_LEN: usize = 16 + 56;
/// Shortest answer: netlink header and `inet_diag_msg`.
const ANSWER_LEN: usize = 16 + 72;
/// Room for an answer with everything that is asked for.
const LONG_ANSWER_LEN: usize = 1024;
/// Attribute INET_DIAG_INFO, and the wish for it.
const INFO: u16 = 2;
const WANTS_INFO: u8 = 1 << (INFO - 1);
/// Places in `struct tcp_info`.
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_BYTES_SENT: usize = 200;
const INFO_BYTES_RETRANS: usize = 208;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// "Any incarnation of the socket".
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// A pair of addresses from one socket's point of view. IPv4 addresses are in the first four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// The socket's own address.
    pub local: [u8; 16],
    /// The socket's own port.
    pub local_port: u16,
    /// Its peer's address.
    pub remote: [u8; 16],
    /// Its peer's port.
    pub remote_port: u16,
    /// Interface index of a link-local connection, 0 otherwise. Not looked at in answers.
    pub interface: u32,
}

/// A socket as sock_diag describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Addresses of the socket found; a lookup may end at a listener, which has no remote side.
    pub pair: Pair,
    /// TCP state number.
    pub state: u8,
    /// Owner's user id in our user namespace.
    pub uid: u32,
    /// Inode number; 0 when no descriptor names the socket.
    pub inode: u32,
}

/// The bytes that a TCP socket has moved so far, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// TCP state number (1 is ESTABLISHED).
    pub state: u8,
    /// Bytes that came in, in order; a FIN counts as one.
    pub received: u64,
    /// Bytes that were put on the wire, without repetitions.
    pub transmitted: u64,
}

/// Attribute INET_DIAG_SOCKOPT, which Linux 5.10 and newer send unasked: a bit for each of some
/// options.
const OPTIONS: u16 = 22;
/// `IP_MULTICAST_LOOP` among them, in the first byte.
const OPTION_MULTICAST_LOOP: u8 = 1 << 4;

/// A sock_diag socket, closed when dropped.
#[derive(Debug)]
pub struct Diag {
    fd: OwnedFd,
    sequence: u32,
}

impl Diag {
    /// Opens one. Sandboxes refuse with EPERM, EACCES, EAFNOSUPPORT or EPROTONOSUPPORT.
    pub fn open() -> Result<Self, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let (family, protocol) = (libc::AF_NETLINK, libc::NETLINK_SOCK_DIAG);
        Ok(Self { fd: owned(kernel::socket(family, kind, protocol))?, sequence: 0 })
    }

    /// Its descriptor.
    pub const fn raw(&self) -> i32 {
        self.fd.raw()
    }

    /// The same socket at `min` or above ([`OwnedFd::move_up`]).
    pub fn move_up(self, min: i32) -> Self {
        Self { fd: self.fd.move_up(min), sequence: self.sequence }
    }

    /// The socket the kernel would give a segment of `pair`; `None` when there is none (or when the
    /// kernel has no TCP support in sock_diag: it answers ENOENT to both).
    ///
    /// # Errors
    /// The kernel's refusal, or EBADMSG for an answer that makes no sense.
    pub fn find(&mut self, pair: &Pair) -> Result<Option<Entry>, Errno> {
        // The attributes behind the entry are cut off.
        let mut answer = [0u8; ANSWER_LEN];
        let len = self.ask(pair, 0, &mut answer)?;
        parse(answer.get(..len).unwrap_or(&[]), self.sequence)
    }

    /// [`Diag::find`], and the bytes that the socket has moved; `None` also where the kernel does
    /// not tell.
    ///
    /// # Errors
    /// As [`Diag::find`].
    pub fn moved(&mut self, pair: &Pair) -> Result<Option<(Entry, Counters)>, Errno> {
        let mut answer = [0u8; LONG_ANSWER_LEN];
        let len = self.ask(pair, WANTS_INFO, &mut answer)?;
        let bytes = answer.get(..len).unwrap_or(&[]);
        let entry = parse(bytes, self.sequence)?;
        Ok(entry.and_then(|entry| Some((entry, counters(bytes)?))))
    }

    /// [`Diag::find`], and whether the socket has `IP_MULTICAST_LOOP`; `None` where the kernel does not tell.
    ///
    /// # Errors
    /// As [`Diag::find`].
    pub fn find_marked(&mut self, pair: &Pair) -> Result<Option<(Entry, Option<bool>)>, Errno> {
        let mut answer = [0u8; LONG_ANSWER_LEN];
        let len = self.ask(pair, 0, &mut answer)?;
        let bytes = answer.get(..len).unwrap_or(&[]);
        let entry = parse(bytes, self.sequence)?;
        let options = attribute(bytes, OPTIONS).and_then(<[u8]>::first);
        Ok(entry.map(|entry| (entry, options.map(|bits| bits & OPTION_MULTICAST_LOOP != 0))))
    }

    /// Asks for a pair; the length of the answer.
    fn ask(&mut self, pair: &Pair, wishes: u8, answer: &mut [u8]) -> Result<usize, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(pair, wishes, self.sequence);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // An unconnected netlink socket sends to the kernel, which answers before sendto returns.
        kernel::send(self.fd.raw(), &request, flags)?;
        let (len, from) = kernel::receive_from(self.fd.raw(), answer, flags)?;
        if from.nl_pid != 0 {
            return Err(Errno(libc::EBADMSG));
        }
        Ok(len)
    }
}

/// The bytes moved, from the attribute INET_DIAG_INFO, a `tcp_info`.
fn counters(bytes: &[u8]) -> Option<Counters> {
    let info = attribute(bytes, INFO)?;
    let wide = |at| field(info, at).map(u64::from_ne_bytes);
    Some(Counters {
        state: *info.first()?,
        received: wide(INFO_BYTES_RECEIVED)?,
        transmitted: wide(INFO_BYTES_SENT)?.wrapping_sub(wide(INFO_BYTES_RETRANS)?),
    })
}

/// The value of an attribute of an answer.
fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut at = ANSWER_LEN;
    loop {
        let length = usize::from(u16::from_ne_bytes(field(bytes, at)?));
        let kind = u16::from_ne_bytes(field(bytes, at + 2)?);
        if length < 4 {
            return None;
        }
        if kind == wanted {
            return bytes.get(at + 4..at + length);
        }
        at += length.next_multiple_of(4);
    }
}

fn request(pair: &Pair, wishes: u8, sequence: u32) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    put(&mut bytes, 0, (REQUEST_LEN as u32).to_ne_bytes());
    put(&mut bytes, 4, SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&mut bytes, 6, NLM_F_REQUEST.to_ne_bytes());
    put(&mut bytes, 8, sequence.to_ne_bytes());
    put(&mut bytes, 16, [pair.family, libc::IPPROTO_TCP as u8, wishes, 0]);
    put(&mut bytes, 20, u32::MAX.to_ne_bytes());
    put(&mut bytes, 24, pair.local_port.to_be_bytes());
    put(&mut bytes, 26, pair.remote_port.to_be_bytes());
    put(&mut bytes, 28, pair.local);
    put(&mut bytes, 44, pair.remote);
    put(&mut bytes, 60, pair.interface.to_ne_bytes());
    put(&mut bytes, 64, NO_COOKIE);
    bytes
}

/// Stores `N` bytes at `offset`.
#[inline(always)]
fn put<const N: usize>(bytes: &mut [u8; REQUEST_LEN], offset: usize, field: [u8; N]) {
    if let Some(to) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *to = field;
    }
}

/// The `N` bytes at `offset`.
fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

fn parse(bytes: &[u8], sequence: u32) -> Result<Option<Entry>, Errno> {
    let bad = Errno(libc::EBADMSG);
    let length = u32::from_ne_bytes(field(bytes, 0).ok_or(bad)?) as usize;
    let kind = u16::from_ne_bytes(field(bytes, 4).ok_or(bad)?);
    if u32::from_ne_bytes(field(bytes, 8).ok_or(bad)?) != sequence {
        return Err(bad);
    }
    match kind {
        NLMSG_ERROR => match i32::from_ne_bytes(field(bytes, 16).ok_or(bad)?).wrapping_neg() {
            libc::ENOENT => Ok(None),
            error if error > 0 => Err(Errno(error)),
            _ => Err(bad),
        },
        SOCK_DIAG_BY_FAMILY if length >= ANSWER_LEN => entry(bytes).map(Some).ok_or(bad),
        _ => Err(bad),
    }
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    Some(Entry {
        pair: Pair {
            family: *bytes.get(16)?,
            local: field(bytes, 24)?,
            local_port: u16::from_be_bytes(field(bytes, 20)?),
            remote: field(bytes, 40)?,
            remote_port: u16::from_be_bytes(field(bytes, 22)?),
            interface: u32::from_ne_bytes(field(bytes, 56)?),
        },
        state: *bytes.get(17)?,
        uid: u32::from_ne_bytes(field(bytes, 80)?),
        inode: u32::from_ne_bytes(field(bytes, 84)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        let mut local = [0; 16];
        local[..4].copy_from_slice(&[127, 0, 0, 1]);
        Pair { family: 2, local, local_port: 80, remote: local, remote_port: 81, interface: 0 }
    }

    #[test]
    fn the_question_is_laid_out_as_the_kernel_reads_it() {
        let bytes = request(&pair(), 0, 0x0102_0304);
        let fields: [u32; 18] = kernel::from_bytes(&bytes).unwrap();
        let ports = u32::from_ne_bytes([0, 80, 0, 81]);
        let address = u32::from_ne_bytes([127, 0, 0, 1]);
        let (kind, family) = (u32::from_ne_bytes([20, 0, 1, 0]), u32::from_ne_bytes([2, 6, 0, 0]));
        let (any, none) = (u32::MAX, 0);
        assert_eq!(fields[..7], [72, kind, 0x0102_0304, none, family, any, ports]);
        assert_eq!(fields[7..15], [address, 0, 0, 0, address, 0, 0, 0]);
        assert_eq!(fields[15..], [none, any, any]);
    }

    #[test]
    fn short_and_foreign_answers_are_refused() {
        let mut answer = vec![0u8; ANSWER_LEN];
        answer[..4].copy_from_slice(&(ANSWER_LEN as u32).to_ne_bytes());
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[8..12].copy_from_slice(&7u32.to_ne_bytes());
        assert!(parse(&answer, 7).unwrap().is_some());
        assert!(parse(&answer, 8).is_err(), "answer to another question");
        for len in 0..ANSWER_LEN {
            assert!(parse(&answer[..len], 7).is_err(), "{len} bytes");
        }
        answer[..4].copy_from_slice(&20u32.to_ne_bytes());
        assert!(parse(&answer, 7).is_err(), "header claims less than an entry");
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert!(parse(&answer, 7).is_err(), "an acknowledgement is not an answer");
        answer[16..20].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        assert_eq!(parse(&answer, 7), Ok(None));
        answer[16..20].copy_from_slice(&i32::MIN.to_ne_bytes());
        assert!(parse(&answer, 7).is_err());
    }

    #[test]
    fn a_listener_tells_the_mark() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut pair = pair();
        pair.local_port = listener.local_addr().unwrap().port();
        (pair.remote, pair.remote_port) = ([0; 16], 0);
        let mut diag = Diag::open().unwrap();
        let marked = diag.find_marked(&pair).unwrap().unwrap().1;
        let raw = std::os::fd::AsRawFd::as_raw_fd(&listener);
        crate::fd::setsockopt_int(raw, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 0).unwrap();
        let later = diag.find_marked(&pair).unwrap().unwrap().1;
        // Before Linux 5.10 neither is reported.
        assert!(matches!((marked, later), (Some(true), Some(false)) | (None, None)));
    }

    #[test]
    fn unused_pair_is_not_found() {
        let mut diag = Diag::open().unwrap();
        // Ports below the ephemeral range on an address that no process binds.
        let mut pair = pair();
        pair.local[..4].copy_from_slice(&[127, 213, 9, 77]);
        assert_eq!(diag.find(&pair).unwrap(), None);
        assert_eq!(diag.find(&pair).unwrap(), None, "the same socket answers again");
    }
}

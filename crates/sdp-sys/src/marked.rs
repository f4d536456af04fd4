//! A send on a TCP socket of which the kernel shows the packet, headers included.
//!
//! Both sequence numbers with which a TCP connection began are the same at both its ends, whatever
//! addresses were translated between them. A process learns those of its own connections without
//! privilege: it marks a send (`SO_TIMESTAMPING` with `SOF_TIMESTAMPING_TX_SCHED`, for this one
//! message), and the kernel puts a copy of the packet on the socket's error queue when it hands it
//! to the device. An acceptor has the other end's number also from the SYN, which its listener had
//! saved.
//!
//! The copy is there when the call returns, if the packet went out at once. Nagle's algorithm,
//! `MSG_MORE` and a full window keep it back; then it comes later, and the socket shows an error
//! condition until it is read. So a caller marks only a send behind which nothing waits, and takes
//! what comes later away ([`take`]). Kernels since 4.7; `net.core.tstamp_allow_data` = 0 forbids it.

use crate::{
    errno::Errno,
    fd,
    kernel::{self, zeroed},
    sys,
};

/// Room for one control message of one word.
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    word: u32,
    padding: u32,
}

const SO_TIMESTAMPING: i32 = 37;
const TX_SCHED: u32 = 1 << 8;
/// As many bytes of the copy as have headers in them.
const HEADERS_MAX: usize = 192;
/// The longest header of a device that is looked behind.
const DEVICE_MAX: usize = 40;
/// The protocols that IP headers name.
const TCP: u8 = 6;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
/// Headers between that of IPv6 and that of TCP.
const EXTENSIONS_MAX: usize = 4;

/// What the header of a sent packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// The next byte that is expected from the other end.
    pub acknowledged: u32,
    /// Bytes of payload.
    pub payload: u32,
}

/// `sendmsg` of the elements, marked.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// Each of the `count` elements at `iov` names memory that may be read, as `sendmsg` demands.
pub unsafe fn send(
    fd: i32,
    iov: *mut libc::iovec,
    count: usize,
    flags: i32,
) -> Result<usize, Errno> {
    let len = size_of::<libc::cmsghdr>() + size_of::<u32>();
    let mut header: libc::cmsghdr = zeroed();
    header.cmsg_len = len as _;
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = SO_TIMESTAMPING;
    let control = Control { header, word: TX_SCHED, padding: 0 };
    let mut msg: libc::msghdr = zeroed();
    (msg.msg_iov, msg.msg_iovlen) = (iov, count as _);
    msg.msg_control = (&raw const control).cast_mut().cast();
    msg.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the message and its control data outlive the call, which only reads them; the
    // elements are the caller's.
    unsafe { sys!(libc::SYS_sendmsg, fd, &raw const msg, flags) }
}

/// Takes the first copy off the error queue. `Ok(None)`: what was there has no header of TCP.
///
/// # Errors
/// EAGAIN: nothing is there.
pub fn take(fd: i32) -> Result<Option<Sent>, Errno> {
    let mut bytes = [0u8; HEADERS_MAX];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut msg: libc::msghdr = zeroed();
    (msg.msg_iov, msg.msg_iovlen) = (&raw mut iov, 1);
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message and its buffer outlive the call, which writes no further than it says.
    let len = unsafe { sys!(libc::SYS_recvmsg, fd, &raw mut msg, flags) }?;
    Ok(parse(bytes.get(..len.min(HEADERS_MAX)).unwrap_or(&[])))
}

/// The header of TCP in a packet as a device gets it, behind a header of the device's.
fn parse(packet: &[u8]) -> Option<Sent> {
    /// The kind of packet behind the commonest of these headers, that of Ethernet.
    const KINDS: [[u8; 2]; 2] = [[8, 0], [0x86, 0xdd]];
    if packet.get(12..14).is_some_and(|kind| KINDS.iter().any(|known| known == kind))
        && let Some(sent) = packet.get(14..).and_then(behind_device)
    {
        return Some(sent);
    }
    (0..=DEVICE_MAX).step_by(2).find_map(|at| behind_device(packet.get(at..)?))
}

fn behind_device(ip: &[u8]) -> Option<Sent> {
    match ip.first()? >> 4 {
        4 => behind_v4(ip),
        6 => behind_v6(ip),
        _ => None,
    }
}

/// Bytes of a device's header may look like the beginning of one of IP; the sum does not fit then.
fn behind_v4(ip: &[u8]) -> Option<Sent> {
    let header = usize::from(ip.first()? & 15) * 4;
    let fits = sum(ip.get(..header)?) == 0xffff && header >= 20;
    let whole = usize::from(u16_at(ip, 2)?);
    (fits && ip.get(9) == Some(&TCP)).then(|| of_tcp(ip, header, whole))?
}

fn behind_v6(ip: &[u8]) -> Option<Sent> {
    let mut whole = 40 + u16_at(ip, 4)? as usize;
    let (mut next, mut at) = (*ip.get(6)?, 40);
    for _ in 0..EXTENSIONS_MAX {
        if next == TCP {
            return of_tcp(ip, at, whole);
        }
        if ![HOP_BY_HOP, ROUTING, DESTINATION].contains(&next) {
            return None;
        }
        /// The option of a packet that is longer than its header can say.
        const JUMBO: [u8; 2] = [0xc2, 4];
        let extension = ip.get(at..)?;
        if next == HOP_BY_HOP && whole == 40 && extension.get(2..4) == Some(&JUMBO) {
            whole = 40 + u32_at(extension, 4)? as usize;
        }
        next = *extension.first()?;
        at += 8 + 8 * usize::from(*extension.get(1)?);
    }
    None
}

/// The TCP header at `at` of a packet of `whole` bytes.
fn of_tcp(ip: &[u8], at: usize, whole: usize) -> Option<Sent> {
    let tcp = ip.get(at..)?;
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    let payload = whole.checked_sub(at)?.checked_sub(header).filter(|_| header >= 20)?;
    Some(Sent {
        sequence: u32_at(tcp, 4)?,
        acknowledged: u32_at(tcp, 8)?,
        payload: u32::try_from(payload).ok()?,
    })
}

/// Sum of a header's words, which is all ones for a header that was not damaged.
fn sum(header: &[u8]) -> u32 {
    let mut sum = 0;
    for pair in header.chunks_exact(2) {
        sum += pair.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}

const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;

/// Has a listener keep the SYN of each connection from here on, unless the program has it do so:
/// then the program asks for them, and each can be asked for once.
pub fn save_syns(listener: i32) {
    if fd::getsockopt_int(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN) == Ok(0) {
        let _ = fd::setsockopt_int(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, 1);
    }
}

/// The sequence number of the SYN with which an accepted connection began, by its listener's
/// memory, which this takes away. `None`: nothing was kept, or it was taken.
pub fn saved_syn(fd: i32) -> Option<u32> {
    let mut bytes = [0u8; HEADERS_MAX];
    let len = kernel::getsockopt(fd, libc::IPPROTO_TCP, TCP_SAVED_SYN, &mut bytes).ok()?;
    let syn = bytes.get(..len)?;
    // From the IP header on. Its sum need not be right: a device may have checked the packet.
    let tcp = match syn.first()? >> 4 {
        4 => usize::from(syn.first()? & 15) * 4,
        6 => return behind_v6(syn).map(|sent| sent.sequence),
        _ => return None,
    };
    u32_at(syn, tcp + 4)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    use super::*;

    /// Two connected sockets, the connecting one first.
    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        save_syns(listener.as_raw_fd());
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn send_marked(socket: &TcpStream, bytes: &[u8], flags: i32) -> usize {
        let mut iov =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one element, whose bytes are borrowed.
        unsafe { send(socket.as_raw_fd(), &raw mut iov, 1, flags) }.unwrap()
    }

    /// The number before the first byte, if `sent` bytes were handed over by now.
    fn first(sent: Sent, bytes: u32) -> u32 {
        sent.sequence.wrapping_add(sent.payload).wrapping_sub(bytes).wrapping_sub(1)
    }

    #[test]
    fn both_ends_learn_the_same_numbers() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut one, mut two) = pair(address);
            assert_eq!(send_marked(&one, b"hello", 0), 5);
            let ours = take(one.as_raw_fd()).unwrap().unwrap();
            assert_eq!(ours.payload, 5);
            let n_c = first(ours, 5);
            assert_eq!(saved_syn(two.as_raw_fd()), Some(n_c), "{address}");
            assert_eq!(saved_syn(two.as_raw_fd()), None, "once");
            two.read_exact(&mut [0; 5]).unwrap();
            assert_eq!(send_marked(&two, b"world!", 0), 6);
            let theirs = take(two.as_raw_fd()).unwrap().unwrap();
            assert_eq!(theirs.acknowledged.wrapping_sub(5 + 1), n_c);
            assert_eq!(ours.acknowledged.wrapping_sub(1), first(theirs, 6));
            one.read_exact(&mut [0; 6]).unwrap();
            assert_eq!(take(one.as_raw_fd()), Err(Errno::EAGAIN), "one copy for one mark");
        }
    }

    #[test]
    fn large_sends_show_their_last_packet() {
        let (one, _two) = pair("127.0.0.1:0");
        let mut handed = 0;
        let mut seen = None;
        for len in [1usize, 1400, 16_384, 60_000] {
            handed += send_marked(&one, &vec![7; len], 0) as u32;
            let copy = take(one.as_raw_fd()).unwrap().unwrap();
            let n_c = first(copy, handed);
            assert_eq!(*seen.get_or_insert(n_c), n_c, "{len}");
        }
    }

    #[test]
    fn what_the_kernel_keeps_back_comes_later() {
        let (one, mut two) = pair("127.0.0.1:0");
        send_marked(&one, b"first", libc::MSG_MORE);
        assert_eq!(take(one.as_raw_fd()), Err(Errno::EAGAIN));
        send_marked(&one, b"second", 0);
        two.read_exact(&mut [0; 11]).unwrap();
        let copy = take(one.as_raw_fd()).unwrap().unwrap();
        assert_eq!(copy.payload, 11, "one packet");
        let (one, two) = pair("127.0.0.1:0"); // Nagle's algorithm is on, and nobody reads
        send_marked(&one, b"x", 0);
        take(one.as_raw_fd()).unwrap();
        send_marked(&one, b"y", 0);
        let _ = take(one.as_raw_fd()); // there if the first byte is acknowledged by now
        drop(two);
    }

    #[test]
    fn a_reader_sees_no_error() {
        let (one, two) = pair("127.0.0.1:0");
        send_marked(&one, b"hello", 0);
        assert_ne!(fd::readiness(one.as_raw_fd(), 0) & libc::POLLERR, 0, "until it is taken");
        assert_eq!(fd::getsockopt_int(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
        take(one.as_raw_fd()).unwrap();
        assert_eq!(fd::readiness(one.as_raw_fd(), 0) & libc::POLLERR, 0);
        drop(two);
    }

    #[test]
    fn a_program_that_saves_syns_keeps_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        fd::setsockopt_int(listener.as_raw_fd(), libc::IPPROTO_TCP, TCP_SAVE_SYN, 2).unwrap();
        save_syns(listener.as_raw_fd());
        let saves = fd::getsockopt_int(listener.as_raw_fd(), libc::IPPROTO_TCP, TCP_SAVE_SYN);
        assert_eq!(saves, Ok(2));
    }

    fn v4(options: usize, payload: usize) -> Vec<u8> {
        let header = 20 + options;
        let mut packet = vec![0x40 | (header / 4) as u8, 0];
        packet.extend(((header + 20 + payload) as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.resize(header, 1);
        let check = !sum(&packet) as u16;
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet
    }

    fn v6(first: u8, len: u16) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(len.to_be_bytes());
        packet.extend([first, 64]);
        packet.resize(40, 9);
        packet
    }

    fn tcp() -> Vec<u8> {
        let mut header = vec![0, 1, 0, 2];
        header.extend(0x0102_0304u32.to_be_bytes());
        header.extend(0x0a0b_0c0du32.to_be_bytes());
        header.extend([5 << 4, 16, 0, 0, 0, 0, 0, 0]);
        header
    }

    #[test]
    fn headers_of_devices_are_passed_over() {
        let expected =
            Some(Sent { sequence: 0x0102_0304, acknowledged: 0x0a0b_0c0d, payload: 100 });
        for device in
            [&[][..], &[1; 14], &[0x45, 0, 0, 0, 0, 0, 0, 0, 0, TCP, 0, 0, 8, 0], &[3; 18]]
        {
            for options in [0, 4, 40] {
                let packet = [device, &v4(options, 100), &tcp()].concat();
                assert_eq!(parse(&packet), expected, "{device:?}, {options}");
            }
            let packet = [device, &v6(TCP, 120), &tcp()].concat();
            assert_eq!(parse(&packet), expected, "{device:?}");
        }
    }

    #[test]
    fn extension_headers_are_passed_over() {
        let destination = [TCP, 0, 1, 4, 0, 0, 0, 0];
        let packet = [&v6(DESTINATION, 128)[..], &destination, &tcp()].concat();
        assert_eq!(parse(&packet).map(|sent| sent.payload), Some(100));
        let hop = [DESTINATION, 0, 5, 2, 0, 0, 1, 0];
        let packet = [&v6(HOP_BY_HOP, 136)[..], &hop, &destination, &tcp()].concat();
        assert_eq!(parse(&packet).map(|sent| sent.payload), Some(100));
        let mut jumbo = vec![TCP, 0, 0xc2, 4];
        jumbo.extend(200_028u32.to_be_bytes());
        let packet = [&v6(HOP_BY_HOP, 0)[..], &jumbo, &tcp()].concat();
        assert_eq!(parse(&packet).map(|sent| sent.payload), Some(200_000));
    }

    #[test]
    fn nothing_else_is_a_header() {
        let whole = [&v4(0, 100)[..], &tcp()].concat();
        // The last bytes say nothing that is wanted.
        for len in 0..whole.len() - 7 {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        let mut damaged = whole;
        damaged[9] = 17;
        assert_eq!(parse(&damaged), None);
        assert_eq!(parse(&[0x60; 192]), None);
        assert_eq!(parse(&[0; 192]), None);
    }
}

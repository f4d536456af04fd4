//! pcapng (draft-ietf-opsawg-pcapng): one section, one interface of raw IP packets, a block for each
//! segment, and statistics at the end.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use sdp_stats::Endpoint;

/// Link type: packets begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// PSH and ACK.
const FLAGS: u8 = 0x18;
const TCP: u8 = 6;
const TCP_HEADER: usize = 20;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// Longest payload of a segment in an IPv4 packet.
const PAYLOAD_MAX: usize = 65535 - IPV4_HEADER - TCP_HEADER;

/// A segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// When it was seen, in nanoseconds since 1970.
    pub(super) time_ns: u64,
    /// Sender.
    pub(super) from: Endpoint,
    /// Receiver.
    pub(super) to: Endpoint,
    /// Number of its first byte.
    pub(super) sequence: u32,
    /// Number of the next byte of the other direction.
    pub(super) acknowledges: u32,
    /// Payload.
    pub(super) payload: Vec<u8>,
}

fn ip(end: &Endpoint) -> IpAddr {
    let address = Ipv6Addr::from(end.addr);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

impl Frame {
    /// As a line of text.
    pub(super) fn line(&self) -> String {
        let end = |end: &Endpoint| SocketAddr::new(ip(end), end.port);
        let (s, us) = (self.time_ns / 1_000_000_000, self.time_ns / 1000 % 1_000_000);
        let (from, to) = (end(&self.from), end(&self.to));
        let (seq, ack, len) = (self.sequence, self.acknowledges, self.payload.len());
        let mut out = String::new();
        let _ = writeln!(out, "{s}.{us:06} {from} > {to}: seq {seq}, ack {ack}, {len} bytes");
        out
    }
}

/// A block: type, length, body padded to words, length.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = u32::try_from(padded + 12).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(padded + 12);
    out.extend(kind.to_ne_bytes());
    out.extend(length.to_ne_bytes());
    out.extend(body);
    out.resize(padded + 8, 0);
    out.extend(length.to_ne_bytes());
    out
}

/// Adds an option: code, length, value padded to words.
fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_ne_bytes());
    to.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Ends the options.
fn end_of_options(to: &mut Vec<u8>) {
    to.extend([0; 4]);
}

/// The blocks with which a file begins.
pub(super) fn beginning() -> Vec<u8> {
    let mut section = Vec::new();
    section.extend(BYTE_ORDER.to_ne_bytes());
    section.extend(1u16.to_ne_bytes());
    section.extend(0u16.to_ne_bytes());
    section.extend(u64::MAX.to_ne_bytes()); // length not known
    option(&mut section, 4, concat!("sdp capture ", env!("CARGO_PKG_VERSION")).as_bytes());
    end_of_options(&mut section);
    let mut interface = Vec::new();
    interface.extend(LINKTYPE_RAW.to_ne_bytes());
    interface.extend(0u16.to_ne_bytes());
    interface.extend(0u32.to_ne_bytes()); // packets are whole
    option(&mut interface, 2, b"sdp");
    option(&mut interface, 9, &[9]); // times in nanoseconds
    end_of_options(&mut interface);
    let mut out = block(SECTION_HEADER, &section);
    out.extend(block(INTERFACE_DESCRIPTION, &interface));
    out
}

fn put_time(to: &mut Vec<u8>, time_ns: u64) {
    to.extend(((time_ns >> 32) as u32).to_ne_bytes());
    to.extend((time_ns as u32).to_ne_bytes());
}

/// The blocks of a segment, before which `dropped` others were left out.
pub(super) fn packet(frame: &Frame, mut dropped: u64) -> Vec<u8> {
    let mut out = Vec::new();
    // One at least, also of nothing.
    let mut rest = frame.payload.as_slice();
    let mut sequence = frame.sequence;
    loop {
        let (part, behind) = rest.split_at(rest.len().min(PAYLOAD_MAX));
        let bytes = ip_packet(frame, sequence, part);
        let mut body = Vec::with_capacity(bytes.len() + 48);
        body.extend(0u32.to_ne_bytes());
        put_time(&mut body, frame.time_ns);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_ne_bytes();
        body.extend(len);
        body.extend(len);
        body.extend(&bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        if dropped > 0 {
            option(&mut body, 4, &dropped.to_ne_bytes());
            end_of_options(&mut body);
            dropped = 0;
        }
        out.extend(block(ENHANCED_PACKET, &body));
        if behind.is_empty() {
            return out;
        }
        sequence = sequence.wrapping_add(part.len() as u32);
        rest = behind;
    }
}

/// The block with which a file ends.
pub(super) fn statistics(time_ns: u64, written: u64, dropped: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(0u32.to_ne_bytes());
    put_time(&mut body, time_ns);
    option(&mut body, 4, &written.saturating_add(dropped).to_ne_bytes());
    option(&mut body, 5, &dropped.to_ne_bytes());
    end_of_options(&mut body);
    block(INTERFACE_STATISTICS, &body)
}

/// Adds big-endian words to a sum for a checksum.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let whole: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    whole + rest.first().map_or(0, |byte| u64::from(*byte) << 8)
}

fn checksum(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ip_packet(frame: &Frame, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(TCP_HEADER + payload.len());
    tcp.extend(frame.from.port.to_be_bytes());
    tcp.extend(frame.to.port.to_be_bytes());
    tcp.extend(sequence.to_be_bytes());
    tcp.extend(frame.acknowledges.to_be_bytes());
    tcp.extend([(TCP_HEADER as u8 / 4) << 4, FLAGS]);
    tcp.extend(u16::MAX.to_be_bytes()); // window
    tcp.extend([0; 4]); // checksum, urgent pointer
    tcp.extend(payload);
    let length = tcp.len() as u64;
    let (mut out, addresses) = match (ip(&frame.from), ip(&frame.to)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0];
            header.extend(((IPV4_HEADER + tcp.len()) as u16).to_be_bytes());
            header.extend([0, 0, 0x40, 0, 64, TCP, 0, 0]); // do not fragment
            header.extend(from.octets());
            header.extend(to.octets());
            let own = checksum(sum(&header)).to_be_bytes();
            header.splice(10..12, own);
            (header, sum(&from.octets()) + sum(&to.octets()))
        }
        (from, to) => {
            let octets = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let (from, to) = (octets(from), octets(to));
            let mut header = vec![0x60, 0, 0, 0];
            header.extend((tcp.len() as u16).to_be_bytes());
            header.extend([TCP, 64]);
            header.extend(from);
            header.extend(to);
            debug_assert_eq!(header.len(), IPV6_HEADER);
            (header, sum(&from) + sum(&to))
        }
    };
    let own = checksum(addresses + u64::from(TCP) + length + sum(&tcp)).to_be_bytes();
    tcp.splice(16..18, own);
    out.extend(tcp);
    out
}

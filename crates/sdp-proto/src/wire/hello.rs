//! Hello and HelloAck, the private data of connection set-up (spec 2.3, 2.4, 2.5).
//!
//! Built by the end that connects or accepts, checked here field by field. Both travel only through
//! a connection manager or a rendezvous socket, never on the queue pair.

use super::{
    bsdh::{Flags, HEADER_LEN, Header},
    mid::Mid,
};
use crate::Violation;

/// Length of a Hello of profile A: with addresses, under the SDP service ID.
pub const HELLO_LEN: usize = 92;
/// Length of a Hello of profile B: without addresses, which the connection manager carries itself.
pub const HELLO_SHORT_LEN: usize = 32;
/// Shortest Hello of profile A that we accept: without the reserved tail.
pub const HELLO_MIN_LEN: usize = 64;
/// Length of a HelloAck.
pub const HELLO_ACK_LEN: usize = 196;
/// Length of the part of a HelloAck that says something.
const HELLO_ACK_USED: usize = 24;

/// The version that we send: 2.2.
pub const VERSION: u8 = 0x22;
/// The major version that we accept.
pub const VERSION_MAJOR: u8 = 2;

/// Capability nibble: the sender knows our lane messages (spec 2.11).
pub const CAPABILITY_LANES: u8 = 0x8;

/// Fewest receive buffers with which the credit rules are free of deadlock (spec 4.3).
pub const BUFS_MIN: u16 = 3;
/// Smallest receive buffer: the largest standard header and one byte (spec 4.3).
pub const RECEIVE_SIZE_MIN: u32 = 37;

const _: () = assert!(HELLO_LEN == sdp_rdma::cm::REQUEST_DATA_MAX);
const _: () = assert!(HELLO_ACK_LEN == sdp_rdma::cm::REPLY_DATA_MAX);

/// An IP address as set-up messages carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// IPv4.
    V4([u8; 4]),
    /// IPv6.
    V6([u8; 16]),
}

impl Address {
    const fn encode(self) -> [u8; 16] {
        match self {
            Self::V4([a, b, c, d]) => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d],
            Self::V6(bytes) => bytes,
        }
    }

    fn parse(is_v4: bool, bytes: [u8; 16]) -> Result<Self, Violation> {
        if !is_v4 {
            return Ok(Self::V6(bytes));
        }
        let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] = bytes else {
            return Err(Violation::HelloAddress);
        };
        Ok(Self::V4([a, b, c, d]))
    }
}

/// The TCP-like names of the connection by profile A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// Address of the connecting end.
    pub source: Address,
    /// Port of the connecting end.
    pub port: u16,
    /// Address of the accepting end; of the same family. Its port is in the service ID.
    pub destination: Address,
}

/// A ring in which the peer writes its messages (spec 2.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Its length in bytes is 2 to the power of this.
    pub log2: u8,
    /// The key to its memory, whose addresses begin at 0.
    pub key: u32,
}

impl Ring {
    /// As the fields of a set-up message say; a length of 0 is no ring.
    fn parse(log2: u8, key: [u8; 4]) -> Result<Option<Self>, Violation> {
        let is_length = sdp_rdma::fabric::PeerRing::LOG2.contains(&log2);
        match log2 {
            0 => Ok(None),
            _ if is_length => Ok(Some(Self { log2, key: u32::from_be_bytes(key) })),
            _ => Err(Violation::HelloRing { log2 }),
        }
    }
}

/// Where the key to a ring stands in the private data of a reply, behind a HelloAck.
pub const ACK_RING_KEY: usize = 52;

/// Hello: the connecting end's message to the accepting end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Receive buffers that the sender has posted; at least [`BUFS_MIN`].
    pub bufs: u16,
    /// Version byte: major in the high nibble.
    pub version: u8,
    /// Advertisements that the sender accepts outstanding towards it; at least 1.
    pub max_adverts: u8,
    /// Capability nibble, 0 to 15.
    pub capabilities: u8,
    /// Size in bytes that the sender would like the peer's receive buffers to have; a hint.
    pub desired_receive_size: u32,
    /// Size in bytes of the sender's receive buffers, header included.
    pub receive_size: u32,
    /// Names; `None` is profile B.
    pub names: Option<Names>,
    /// The sender's ring. In profile B alone: its key stands in the place of the port.
    pub ring: Option<Ring>,
}

/// An encoded Hello: 92 or 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloBytes {
    bytes: [u8; HELLO_LEN],
    len: u8,
}

impl HelloBytes {
    /// The private data to send.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len as usize).unwrap_or(&self.bytes)
    }
}

impl Hello {
    /// The private data: 92 bytes with names, 32 without. Both names must be of one family: the
    /// message claims the family of the source address.
    pub fn encode(&self) -> HelloBytes {
        let len = if self.names.is_some() { HELLO_LEN } else { HELLO_SHORT_LEN };
        let header = setup_header(Mid::Hello, self.bufs, len);
        let (family, port, source, destination) = match self.names {
            None => (Family::V4, 0, [0; 16], [0; 16]),
            Some(names) => (
                match names.source {
                    Address::V4(_) => Family::V4,
                    Address::V6(_) => Family::V6,
                },
                names.port,
                names.source.encode(),
                names.destination.encode(),
            ),
        };
        let mut out = Writer::<HELLO_LEN>::new();
        out.put(&header.encode());
        out.put(&[self.version, ((family as u8) << 4) | (self.capabilities & 0xf)]);
        let ring = self.ring.filter(|_| self.names.is_none());
        out.put(&[ring.map_or(0, |ring| ring.log2), self.max_adverts]);
        out.put(&self.desired_receive_size.to_be_bytes());
        out.put(&self.receive_size.to_be_bytes());
        match ring {
            Some(ring) => out.put(&ring.key.to_be_bytes()),
            None => {
                out.put(&port.to_be_bytes());
                out.put(&[0, 0]);
            }
        }
        if self.names.is_some() {
            out.put(&source);
            out.put(&destination);
        }
        HelloBytes { bytes: out.bytes, len: len as u8 }
    }

    /// Reads the private data of a connection request. The length identifies profile B; bytes
    /// behind the length that the header states are ignored, because connection managers pad with
    /// zeros.
    ///
    /// # Errors
    ///
    /// The variants of [`Violation`] that begin with `Hello`.
    pub fn parse(data: &[u8]) -> Result<Self, Violation> {
        let header = parse_setup_header(data, Mid::Hello)?;
        let length_error = Violation::HelloLength { received: clamp(data.len()) };
        let len = header.len as usize;
        if len > data.len()
            || !(len == HELLO_SHORT_LEN || (HELLO_MIN_LEN..=HELLO_LEN).contains(&len))
        {
            return Err(length_error);
        }
        let Some(
            [version, family, log2, max_adverts, d0, d1, d2, d3, r0, r1, r2, r3, p0, p1, k2, k3],
        ) = field::<16>(data, HEADER_LEN)
        else {
            return Err(length_error);
        };
        check_version(version)?;
        let is_v4 = match family >> 4 {
            4 => true,
            6 => false,
            version => return Err(Violation::HelloFamily { version }),
        };
        let names = if len == HELLO_SHORT_LEN {
            None
        } else {
            let (Some(source), Some(destination)) = (field::<16>(data, 32), field::<16>(data, 48))
            else {
                return Err(length_error);
            };
            Some(Names {
                source: Address::parse(is_v4, source)?,
                port: u16::from_be_bytes([p0, p1]),
                destination: Address::parse(is_v4, destination)?,
            })
        };
        // With names the byte is reserved.
        let ring = match names {
            None => Ring::parse(log2, [p0, p1, k2, k3])?,
            Some(_) => None,
        };
        let hello = Self {
            bufs: header.bufs,
            version,
            max_adverts,
            capabilities: family & 0xf,
            desired_receive_size: u32::from_be_bytes([d0, d1, d2, d3]),
            receive_size: u32::from_be_bytes([r0, r1, r2, r3]),
            names,
            ring,
        };
        check_limits(hello.bufs, hello.max_adverts, hello.receive_size)?;
        Ok(hello)
    }
}

/// HelloAck: the accepting end's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloAck {
    /// Receive buffers that the sender has posted; at least [`BUFS_MIN`].
    pub bufs: u16,
    /// Version byte: major in the high nibble.
    pub version: u8,
    /// Advertisements that the sender accepts outstanding towards it; at least 1.
    pub max_adverts: u8,
    /// Capability nibble, 0 to 15. Others send 0.
    pub capabilities: u8,
    /// Size in bytes of the sender's receive buffers, header included.
    pub receive_size: u32,
    /// The sender's ring. Its key stands at [`ACK_RING_KEY`], which is not a HelloAck's, but the
    /// reply's.
    pub ring: Option<Ring>,
}

impl HelloAck {
    /// The private data of the reply.
    pub fn encode(&self) -> [u8; HELLO_ACK_LEN] {
        let mut out = Writer::<HELLO_ACK_LEN>::new();
        out.put(&setup_header(Mid::HelloAck, self.bufs, HELLO_ACK_LEN).encode());
        let log2 = self.ring.map_or(0, |ring| ring.log2);
        out.put(&[self.version, self.capabilities & 0xf, log2, self.max_adverts]);
        out.put(&self.receive_size.to_be_bytes());
        if let Some(ring) = self.ring {
            out.at = ACK_RING_KEY;
            out.put(&ring.key.to_be_bytes());
        }
        out.bytes
    }

    /// Reads the private data of a reply.
    ///
    /// # Errors
    ///
    /// The variants of [`Violation`] that begin with `Hello`.
    pub fn parse(data: &[u8]) -> Result<Self, Violation> {
        let header = parse_setup_header(data, Mid::HelloAck)?;
        let length_error = Violation::HelloLength { received: clamp(data.len()) };
        let len = header.len as usize;
        if len > data.len() || !(HELLO_ACK_USED..=HELLO_ACK_LEN).contains(&len) {
            return Err(length_error);
        }
        let Some([version, family, log2, max_adverts, r0, r1, r2, r3]) =
            field::<8>(data, HEADER_LEN)
        else {
            return Err(length_error);
        };
        check_version(version)?;
        let key = field::<4>(data, ACK_RING_KEY).unwrap_or_default();
        let ack = Self {
            bufs: header.bufs,
            version,
            max_adverts,
            capabilities: family & 0xf,
            receive_size: u32::from_be_bytes([r0, r1, r2, r3]),
            ring: Ring::parse(log2, key)?,
        };
        check_limits(ack.bufs, ack.max_adverts, ack.receive_size)?;
        Ok(ack)
    }
}

#[derive(Clone, Copy)]
enum Family {
    V4 = 4,
    V6 = 6,
}

fn setup_header(mid: Mid, bufs: u16, len: usize) -> Header {
    Header { mid, flags: Flags::NONE, bufs, len: len as u32, mseq: 0, mseq_ack: 0 }
}

fn parse_setup_header(data: &[u8], mid: Mid) -> Result<Header, Violation> {
    let Some([found, flags, b0, b1, l0, l1, l2, l3, numbers @ ..]) =
        data.first_chunk::<HEADER_LEN>()
    else {
        return Err(Violation::HelloLength { received: clamp(data.len()) });
    };
    if *found != mid.byte() {
        return Err(Violation::HelloMid { mid: *found });
    }
    if *flags != 0 || *numbers != [0; 8] {
        return Err(Violation::HelloNumbered);
    }
    let bufs = u16::from_be_bytes([*b0, *b1]);
    let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]);
    Ok(Header { mid, flags: Flags::NONE, bufs, len, mseq: 0, mseq_ack: 0 })
}

fn check_version(version: u8) -> Result<(), Violation> {
    // The minor version never ends an attempt; the lower one counts, and so far all are equal.
    if version >> 4 == VERSION_MAJOR { Ok(()) } else { Err(Violation::HelloVersion { version }) }
}

fn check_limits(bufs: u16, max_adverts: u8, size: u32) -> Result<(), Violation> {
    if max_adverts == 0 {
        return Err(Violation::HelloNoAdverts);
    }
    if bufs < BUFS_MIN {
        return Err(Violation::HelloFewBuffers { bufs });
    }
    if size < RECEIVE_SIZE_MIN {
        return Err(Violation::HelloSmallBuffers { size });
    }
    Ok(())
}

fn clamp(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn field<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk().copied()
}

/// Writes fields one behind the other; fields that do not fit are dropped.
struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    fn put(&mut self, field: &[u8]) {
        let end = self.at.saturating_add(field.len());
        if let Some(room) = self.bytes.get_mut(self.at..end) {
            room.copy_from_slice(field);
        }
        self.at = end;
    }
}

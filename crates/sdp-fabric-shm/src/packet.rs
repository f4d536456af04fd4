//! The packets of the rendezvous, byte by byte.
//!
//! Three kinds, little-endian, without padding; descriptors travel beside them in the order given.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `SDPr` |
//! | 4 | 2 | version |
//! | 6 | 1 | kind: 1 join, 2 accept, 3 reject |
//! | 7 | 1 | flags: 1 eventfd or foreign doorbell attached, 2 doorbell page attached |
//! | 8 | 4 | slot of the sender's end in its doorbell page |
//! | 12 | 4 | join: bytes per ring; reject: code; else 0 |
//! | 16 | 8 | nonce: identity of the sender's process |
//! | 24 | 92 or 196 | join: Hello; accept: HelloAck |
//!
//! Descriptors: join: segment, path handle of the sender's carrier, eventfd?, doorbell page?;
//! accept: path handle, eventfd?, doorbell page?; reject: none. For another user's process the end
//! of a foreign doorbell that is written to takes the eventfd's place, and the page of that user
//! the doorbell page's.

use crate::{name::VERSION, refusal::Refusal};

/// Length of an SDP Hello.
pub const HELLO_LEN: usize = 92;
/// Length of an SDP HelloAck.
pub const HELLO_ACK_LEN: usize = 196;
/// Longest packet.
pub const MAX_LEN: usize = PREFIX_LEN + HELLO_ACK_LEN;

const PREFIX_LEN: usize = 24;
const MAGIC: [u8; 4] = *b"SDPr";
const JOIN: u8 = 1;
const ACCEPT: u8 = 2;
const REJECT: u8 = 3;
const HAS_DOORBELL: u8 = 1;
const HAS_DOORBELL_PAGE: u8 = 2;

/// The fields about its sender of every packet but a reject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// Identity that the process chose at random; says nothing without the kernel's pid.
    pub nonce: u64,
    /// The end's place in the sender's doorbell page; a number that its user has to check.
    pub slot: u32,
    /// An eventfd is attached; for another user, the end of a foreign doorbell to write to.
    pub has_doorbell: bool,
    /// A doorbell page is attached.
    pub has_doorbell_page: bool,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// From the end that connected.
    Join {
        /// Bytes per ring of the attached segment.
        ring_bytes: u32,
        /// SDP Hello.
        hello: [u8; HELLO_LEN],
    },
    /// The offerer's yes.
    Accept {
        /// SDP HelloAck.
        ack: [u8; HELLO_ACK_LEN],
    },
    /// The offerer's no.
    Reject {
        /// Code of a [`RejectCode`]; unknown ones are possible.
        code: u32,
    },
}

/// Why an offerer says no, for the other side's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectCode {
    /// Packet, descriptors or proof were wrong.
    Invalid = 1,
    /// Another version.
    Version = 2,
    /// No memory or descriptors.
    Resources = 3,
    /// Not yet: one of the ends does not know enough of the stream.
    Later = 4,
}

impl From<Refusal> for RejectCode {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Version => Self::Version,
            Refusal::NoMemory | Refusal::NoDescriptors | Refusal::NoProc => Self::Resources,
            _ => Self::Invalid,
        }
    }
}

/// A packet ready to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Encoded {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Encoded {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Builds a packet.
pub fn encode(sender: &Sender, body: &Body) -> Encoded {
    let (kind, word, tail): (u8, u32, &[u8]) = match body {
        Body::Join { ring_bytes, hello } => (JOIN, *ring_bytes, hello),
        Body::Accept { ack } => (ACCEPT, 0, ack),
        Body::Reject { code } => (REJECT, *code, &[]),
    };
    let flags = u8::from(sender.has_doorbell) * HAS_DOORBELL
        + u8::from(sender.has_doorbell_page) * HAS_DOORBELL_PAGE;
    let [low, high] = VERSION.to_le_bytes();
    let parts: [&[u8]; 6] = [
        &MAGIC,
        &[low, high, kind, flags],
        &sender.slot.to_le_bytes(),
        &word.to_le_bytes(),
        &sender.nonce.to_le_bytes(),
        tail,
    ];
    let mut bytes = [0; MAX_LEN];
    for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    Encoded { bytes, len: PREFIX_LEN + tail.len() }
}

/// Takes a packet apart.
///
/// # Errors
/// [`Refusal::Version`]: ours, but another version; [`Refusal::Untrusted`]: unknown magic, kind or
/// flags, or a length that does not fit exactly.
pub fn decode(bytes: &[u8]) -> Result<(Sender, Body), Refusal> {
    let bad = Refusal::Untrusted;
    let magic: [u8; 4] = field(bytes, 0).ok_or(bad)?;
    let version = u16::from_le_bytes(field(bytes, 4).ok_or(bad)?);
    if magic != MAGIC {
        return Err(bad);
    }
    if version != VERSION {
        return Err(Refusal::Version);
    }
    let [kind, flags] = field(bytes, 6).ok_or(bad)?;
    let slot = u32::from_le_bytes(field(bytes, 8).ok_or(bad)?);
    let word = u32::from_le_bytes(field(bytes, 12).ok_or(bad)?);
    let nonce = u64::from_le_bytes(field(bytes, 16).ok_or(bad)?);
    let tail = bytes.get(PREFIX_LEN..).ok_or(bad)?;
    let body = match kind {
        JOIN => Body::Join { ring_bytes: word, hello: tail.try_into().map_err(|_| bad)? },
        ACCEPT if word == 0 => Body::Accept { ack: tail.try_into().map_err(|_| bad)? },
        REJECT if tail.is_empty() && flags == 0 => Body::Reject { code: word },
        _ => return Err(bad),
    };
    if flags & !(HAS_DOORBELL | HAS_DOORBELL_PAGE) != 0 {
        return Err(bad);
    }
    let has_doorbell = flags & HAS_DOORBELL != 0;
    let has_doorbell_page = flags & HAS_DOORBELL_PAGE != 0;
    Ok((Sender { nonce, slot, has_doorbell, has_doorbell_page }, body))
}

/// The `N` bytes at `offset`.
fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: Sender = Sender {
        nonce: 0x0102_0304_0506_0708,
        slot: 9,
        has_doorbell: true,
        has_doorbell_page: false,
    };

    fn bodies() -> [Body; 3] {
        [
            Body::Join { ring_bytes: 65536, hello: [7; HELLO_LEN] },
            Body::Accept { ack: [8; HELLO_ACK_LEN] },
            Body::Reject { code: 2 },
        ]
    }

    #[test]
    fn round_trip() {
        for body in bodies() {
            let sender = match body {
                Body::Reject { .. } => Sender { has_doorbell: false, ..SENDER },
                _ => SENDER,
            };
            let encoded = encode(&sender, &body);
            assert_eq!(decode(encoded.as_bytes()), Ok((sender, body)));
        }
        let join = encode(&SENDER, &bodies()[0]);
        assert_eq!(join.as_bytes()[..16], *b"SDPr\x03\0\x01\x01\x09\0\0\0\0\0\x01\0");
        assert_eq!(join.as_bytes().len(), 116);
    }

    #[test]
    fn every_other_length_is_refused() {
        for body in bodies() {
            let encoded = encode(&Sender { has_doorbell: false, ..SENDER }, &body);
            let mut long = [0u8; MAX_LEN + 8];
            long[..encoded.len].copy_from_slice(encoded.as_bytes());
            for len in (0..long.len()).filter(|len| *len != encoded.len) {
                assert_eq!(decode(&long[..len]), Err(Refusal::Untrusted), "{body:?} as {len}");
            }
        }
    }

    #[test]
    fn every_changed_byte_of_the_fixed_part_is_seen() {
        let good = encode(&SENDER, &bodies()[0]);
        for at in 0..4 {
            let mut bytes = good.bytes;
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes[..good.len]), Err(Refusal::Untrusted));
        }
        for at in 4..6 {
            let mut bytes = good.bytes;
            bytes[at] ^= 0x80;
            assert_eq!(decode(&bytes[..good.len]), Err(Refusal::Version));
        }
        for (at, value) in [(6, 0), (6, 2), (6, 3), (6, 4), (6, 255), (7, 4), (7, 0x81)] {
            let mut bytes = good.bytes;
            bytes[at] = value;
            assert_eq!(decode(&bytes[..good.len]), Err(Refusal::Untrusted), "{at} = {value}");
        }
    }
}

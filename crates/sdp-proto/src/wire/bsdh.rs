//! The base header in front of every message (spec 2.1).

use super::mid::Mid;
use crate::{PeerCredit, Violation};

/// Length of the base header in bytes.
pub const HEADER_LEN: usize = 16;
/// The same as the engine's arithmetic wants it.
pub(crate) const HEADER: u32 = HEADER_LEN as u32;

/// Flags of the base header. Unknown bits are sent as zero and ignored on receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u8);

impl Flags {
    /// None set.
    pub const NONE: Self = Self(0);
    /// OOB_PRES: the last payload byte is urgent.
    pub const OOB_PRES: Self = Self(0x01);
    /// OOB_PEND: an urgent byte is coming, at most 65 535 bytes ahead.
    pub const OOB_PEND: Self = Self(0x02);
    /// REQ_PIPE: the sink would like Pipelined mode.
    pub const REQ_PIPE: Self = Self(0x04);

    pub(crate) const KNOWN: u8 = 0x07;

    /// Keeps the known bits of a header byte.
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte & Self::KNOWN)
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A base header as it is on the wire, in registers: its 16 bytes as two little-endian words,
/// whatever the host's order is. The only place that defines where a field is. Nothing is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words(pub [u64; 2]);

const _: () = assert!(size_of::<Words>() == HEADER_LEN);

impl Words {
    /// Identifier, and the flags that are looked at.
    const KIND: u64 = 0xff | (Flags::KNOWN as u64) << 8;

    /// A header of these fields.
    #[inline(always)]
    pub(crate) const fn new(header: &Header) -> Self {
        let Header { mid, flags, bufs, len, mseq, mseq_ack } = *header;
        Self([
            mid.byte() as u64
                | (flags.byte() as u64) << 8
                | (bufs.swap_bytes() as u64) << 16
                | (len.swap_bytes() as u64) << 32,
            mseq.swap_bytes() as u64 | (mseq_ack.swap_bytes() as u64) << 32,
        ])
    }

    /// From the bytes on the wire.
    #[inline]
    pub const fn from_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        let n = u128::from_le_bytes(bytes);
        Self([n as u64, (n >> 64) as u64])
    }

    /// The bytes on the wire.
    #[inline]
    pub const fn to_bytes(self) -> [u8; HEADER_LEN] {
        let Self([first, second]) = self;
        ((second as u128) << 64 | first as u128).to_le_bytes()
    }

    /// Whether this is Data without any known flag.
    #[inline(always)]
    pub(crate) const fn is_bare_data(self) -> bool {
        self.0[0] & Self::KIND == Mid::Data.byte() as u64
    }

    #[inline(always)]
    const fn mid(self) -> u8 {
        self.0[0] as u8
    }

    #[inline(always)]
    const fn flags(self) -> Flags {
        Flags::from_byte((self.0[0] >> 8) as u8)
    }

    #[inline(always)]
    const fn bufs(self) -> u16 {
        ((self.0[0] >> 16) as u16).swap_bytes()
    }

    /// Length of the whole message in bytes.
    #[inline(always)]
    pub(crate) const fn len(self) -> u32 {
        ((self.0[0] >> 32) as u32).swap_bytes()
    }

    /// Sequence number of the message.
    #[inline(always)]
    pub(crate) const fn mseq(self) -> u32 {
        (self.0[1] as u32).swap_bytes()
    }

    #[inline(always)]
    const fn mseq_ack(self) -> u32 {
        ((self.0[1] >> 32) as u32).swap_bytes()
    }
}

/// A base header whose own rules hold: known identifier, legal flags, length equal to the message's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// The kind of message.
    pub mid: Mid,
    /// Its flags.
    pub flags: Flags,
    /// Receive buffers that the sender has posted now.
    pub bufs: u16,
    /// Length of the whole message in bytes.
    pub len: u32,
    /// Sequence number of the message.
    pub mseq: u32,
    /// Sequence number of the last message that the sender received.
    pub mseq_ack: u32,
}

impl Header {
    /// The header as it is on the wire.
    #[inline]
    pub const fn encode(&self) -> [u8; HEADER_LEN] {
        Words::new(self).to_bytes()
    }

    /// Reads the header of a message of which `first_bytes` are the beginning and which is
    /// `total_len` bytes long. Bytes beyond the header are not looked at.
    ///
    /// # Errors
    ///
    /// [`Violation::TooShort`], [`Violation::LengthMismatch`], [`Violation::ReservedMid`],
    /// [`Violation::UrgentNotInData`], [`Violation::UrgentWithoutPayload`],
    /// [`Violation::PipeHintMisplaced`].
    #[inline]
    pub fn parse(first_bytes: &[u8], total_len: u32) -> Result<Self, Violation> {
        let Some(bytes) = first_bytes.first_chunk::<HEADER_LEN>() else {
            return Err(Violation::TooShort { received: total_len });
        };
        let words = Words::from_bytes(*bytes);
        let mid = words.mid();
        let header = Self {
            // Data first: nearly every message is one.
            mid: if mid == Mid::Data.byte() { Mid::Data } else { Mid::from_byte(mid)? },
            flags: words.flags(),
            bufs: words.bufs(),
            len: words.len(),
            mseq: words.mseq(),
            mseq_ack: words.mseq_ack(),
        };
        if total_len < HEADER {
            return Err(Violation::TooShort { received: total_len });
        }
        if header.len != total_len {
            return Err(Violation::LengthMismatch { len: header.len, received: total_len });
        }
        if header.flags != Flags::NONE {
            header.check_flags()?;
        }
        Ok(header)
    }

    /// The header's word about the receiver's right to send.
    #[inline]
    pub const fn credit(&self) -> PeerCredit {
        PeerCredit { bufs: self.bufs, mseq_ack: self.mseq_ack }
    }

    fn check_flags(&self) -> Result<(), Violation> {
        let mid = self.mid.byte();
        if self.flags.has(Flags::OOB_PRES) {
            if self.mid != Mid::Data {
                return Err(Violation::UrgentNotInData { mid });
            }
            if self.len == HEADER {
                return Err(Violation::UrgentWithoutPayload);
            }
        }
        if self.flags.has(Flags::REQ_PIPE)
            && !matches!(self.mid, Mid::RdmaRdCompl | Mid::RdmaWrCompl)
        {
            return Err(Violation::PipeHintMisplaced { mid });
        }
        Ok(())
    }
}

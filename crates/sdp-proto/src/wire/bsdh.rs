//! The base header in front of every message (spec 2.1).

use super::mid::Mid;
use crate::{PeerCredit, Violation};

/// Length of the base header in bytes.
pub const HEADER_LEN: usize = 16;
/// The same as the engine's arithmetic wants it.
pub(crate) const HEADER: u32 = HEADER_LEN as u32;

/// Flags of the base header. Unknown bits are sent as zero and ignored on receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

    const KNOWN: u8 = 0x07;

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

/// A base header whose own rules hold: known identifier, legal flags, length equal to the message's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
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
        let [b0, b1] = self.bufs.to_be_bytes();
        let [l0, l1, l2, l3] = self.len.to_be_bytes();
        let [s0, s1, s2, s3] = self.mseq.to_be_bytes();
        let [a0, a1, a2, a3] = self.mseq_ack.to_be_bytes();
        [self.mid.byte(), self.flags.byte(), b0, b1, l0, l1, l2, l3, s0, s1, s2, s3, a0, a1, a2, a3]
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
        let [mid, flags, b0, b1, l0, l1, l2, l3, s0, s1, s2, s3, a0, a1, a2, a3] = *bytes;
        let header = Self {
            // Data first: it is what nearly every message is.
            mid: if mid == Mid::Data.byte() { Mid::Data } else { Mid::from_byte(mid)? },
            flags: Flags::from_byte(flags),
            bufs: u16::from_be_bytes([b0, b1]),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
            mseq: u32::from_be_bytes([s0, s1, s2, s3]),
            mseq_ack: u32::from_be_bytes([a0, a1, a2, a3]),
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

    /// What the header says about the receiver's right to send.
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

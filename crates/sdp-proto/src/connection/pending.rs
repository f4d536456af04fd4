//! Control messages that an end has to send because of what its sink received.
//!
//! The sink produces them, the holder of the source sends them. Between the two they rest in one
//! `u64`, which is all that has to be shared: a thread that holds only the sink adds to the word,
//! and the holder of the source takes from it. The word is bounded because everything in it is
//! bounded by what the peer may have outstanding.

use super::{mode::Mode, words::Corrupt};
use crate::{
    Violation,
    wire::{Body, ModeChange},
};

/// Source advertisements that we accept outstanding towards us, as our set-up messages announce.
pub const MAX_ADVERTS: u8 = 1;

/// Control messages to send. Empty by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PendingControl {
    /// Bytes read from the oldest advertisement and not reported yet.
    read_bytes: u32,
    /// Advertisements to be answered with SendSm.
    send_sm: u8,
    flags: u8,
}

// Sent lowest bit first: nothing may follow the acknowledgement of a suspension.
const RESIZE_ACK: u8 = 1 << 0;
const COMBINED: u8 = 1 << 1;
const SINK_CANCEL_ACK: u8 = 1 << 2;
const SUSPEND_ACK: u8 = 1 << 3;
/// No message of its own: the report asks for Pipelined mode.
const PIPE: u8 = 1 << 4;
const FLAGS: u8 = RESIZE_ACK | SUSPEND_ACK | COMBINED | SINK_CANCEL_ACK | PIPE;

impl PendingControl {
    /// Nothing to send.
    pub const NOTHING: Self = Self { read_bytes: 0, send_sm: 0, flags: 0 };
    /// One SendSm.
    pub const SEND_SM: Self = Self { read_bytes: 0, send_sm: 1, flags: 0 };
    /// ChRcvBufAck with the size of our receive buffers.
    pub const RESIZE_ACK: Self = Self { read_bytes: 0, send_sm: 0, flags: RESIZE_ACK };
    /// SuspCommAck, after which nothing more is sent.
    pub const SUSPEND_ACK: Self = Self { read_bytes: 0, send_sm: 0, flags: SUSPEND_ACK };
    /// ModeChange: the peer's sending half returns from Buffered to Combined.
    pub const COMBINED: Self = Self { read_bytes: 0, send_sm: 0, flags: COMBINED };
    /// SinkCancelAck.
    pub const SINK_CANCEL_ACK: Self = Self { read_bytes: 0, send_sm: 0, flags: SINK_CANCEL_ACK };

    /// RdmaRdCompl for `bytes` of the oldest advertisement.
    pub const fn read_bytes(bytes: u32) -> Self {
        Self { read_bytes: bytes, send_sm: 0, flags: 0 }
    }

    /// Its report asks for Pipelined mode, too.
    pub const fn asking_for_pipelined(self) -> Self {
        Self { flags: self.flags | PIPE, ..self }
    }

    /// Whether a report or a SendSm waits to be sent.
    pub const fn has_answer(self) -> bool {
        self.read_bytes != 0 || self.send_sm != 0
    }

    /// Without a SendSm, if there is one.
    pub const fn without_send_sm(self) -> Option<Self> {
        if self.send_sm == 0 { None } else { Some(Self { send_sm: 0, ..self }) }
    }

    /// The advertisements that the reports and the SendSm are about were withdrawn.
    pub const fn without_answers(self) -> Self {
        Self { read_bytes: 0, send_sm: 0, flags: self.flags & !PIPE }
    }

    /// Whether the report that is to be sent asks for Pipelined mode.
    pub(crate) const fn asks_for_pipelined(self) -> bool {
        self.flags & PIPE != 0
    }

    /// Whether there is nothing to send.
    #[inline]
    pub const fn is_nothing(self) -> bool {
        self.read_bytes == 0 && self.send_sm == 0 && self.flags == 0
    }

    /// Both.
    ///
    /// # Errors
    ///
    /// A peer that asks for more answers than the protocol lets it have outstanding:
    /// [`Violation::TooManyAdverts`], [`Violation::ResizeTwice`].
    pub const fn add(self, other: Self) -> Result<Self, Violation> {
        let send_sm = self.send_sm.saturating_add(other.send_sm);
        if send_sm > MAX_ADVERTS {
            return Err(Violation::TooManyAdverts { limit: MAX_ADVERTS as u32 });
        }
        if self.flags & other.flags & RESIZE_ACK != 0 {
            return Err(Violation::ResizeTwice);
        }
        Ok(Self {
            // Bounded by the length of an advertisement, at most 2^31.
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            send_sm,
            flags: self.flags | other.flags,
        })
    }

    /// Packs it.
    pub const fn to_word(self) -> u64 {
        (self.read_bytes as u64) | ((self.send_sm as u64) << 32) | ((self.flags as u64) << 40)
    }

    /// Unpacks and checks it.
    pub const fn from_word(word: u64) -> Result<Self, Corrupt> {
        let pending = Self {
            read_bytes: word as u32,
            send_sm: (word >> 32) as u8,
            flags: (word >> 40) as u8,
        };
        if word >> 48 != 0 || pending.send_sm > MAX_ADVERTS || pending.flags & !FLAGS != 0 {
            return Err(Corrupt { word: 0 });
        }
        Ok(pending)
    }

    /// The rest when `taken` has been sent; the word may have grown meanwhile.
    pub const fn without(self, taken: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(taken.read_bytes),
            send_sm: self.send_sm.saturating_sub(taken.send_sm),
            flags: self.flags & !taken.flags,
        }
    }

    /// The message to send first, and the part of this that it settles. Reports of finished reads
    /// come before the SendSm that ends the same advertisement (spec 7.3).
    pub(crate) const fn first(self, receive_size: u32) -> Option<(Body, Self)> {
        if self.read_bytes != 0 {
            let bytes = self.read_bytes;
            let settles = Self { flags: self.flags & PIPE, ..Self::read_bytes(bytes) };
            return Some((Body::RdmaRdCompl { bytes }, settles));
        }
        if self.send_sm != 0 {
            return Some((Body::SendSm, Self::SEND_SM));
        }
        Some(match self.flags & self.flags.wrapping_neg() {
            RESIZE_ACK => (Body::ChRcvBufAck { size: receive_size }, Self::RESIZE_ACK),
            COMBINED => {
                let change = ModeChange { for_source: true, mode: Mode::Combined };
                (Body::ModeChange(change), Self::COMBINED)
            }
            SINK_CANCEL_ACK => (Body::SinkCancelAck, Self::SINK_CANCEL_ACK),
            SUSPEND_ACK => (Body::SuspCommAck, Self::SUSPEND_ACK),
            _ => return None,
        })
    }
}

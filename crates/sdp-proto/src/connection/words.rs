//! Small values that the two halves of an end exchange, and the packing of state into words.
//!
//! The engine's state is kept by others in memory that related processes share, as `u64` words. The
//! engine checks the words when it loads them: a process may have died in the middle of writing
//! them.

/// How the fabric counts receive buffers (spec 4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Credits {
    /// A byte window is the back-pressure: `Bufs` is always 65 535, messages need no credit and
    /// there are no credit updates.
    Implicit,
    /// `Bufs` counts receive buffers, and the rules of spec 4.3 hold to the letter.
    Explicit,
}

/// The sink's facts that the source puts into headers. One `u64` in shared memory, so that it is
/// always read in one piece: bufs and acknowledgement must be of the same instant (spec 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ack {
    /// Receive buffers posted now; 65 535 where credits are implicit.
    pub bufs: u16,
    /// Sequence number of the last message received.
    pub mseq_ack: u32,
    /// Empty Data messages received so far, modulo 2^16. They alone call for no credit update, or
    /// two ends would answer updates with updates for ever (spec 4.4).
    pub empty: u16,
}

impl Ack {
    /// The value where credits are implicit.
    #[inline]
    pub const fn implicit(mseq_ack: u32) -> Self {
        Self { bufs: u16::MAX, mseq_ack, empty: 0 }
    }

    /// Packs it.
    #[inline]
    pub const fn to_word(self) -> u64 {
        (self.mseq_ack as u64) | ((self.bufs as u64) << 32) | ((self.empty as u64) << 48)
    }

    /// Unpacks it; every word is a legal value.
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self { bufs: (word >> 32) as u16, mseq_ack: word as u32, empty: (word >> 48) as u16 }
    }

    /// The sequence number up to which this allows the peer to send.
    const fn limit(self) -> u32 {
        self.mseq_ack.wrapping_add(self.bufs as u32)
    }

    /// How many more messages this allows the peer than `sent_ack` did; negative when fewer.
    pub(crate) const fn raise_over(self, sent_ack: Self) -> i32 {
        self.limit().wrapping_sub(sent_ack.limit()) as i32
    }

    /// Messages that the peer may still send by the credits that it was `sent_ack`, now that we
    /// received up to `self`.
    pub(crate) const fn left_of(self, sent_ack: Self) -> i32 {
        sent_ack.limit().wrapping_sub(self.mseq_ack) as i32
    }
}

/// A peer's header about our right to send; input of [`crate::Source::learn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredit {
    /// Receive buffers that the peer had posted.
    pub bufs: u16,
    /// Last message that the peer had received.
    pub mseq_ack: u32,
}

/// Private state that makes no sense: a family member of this process died while writing it, or
/// wrote where it should not. The connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt {
    /// Index of the word that is wrong.
    pub word: u8,
}

/// Word 0 of the packed state, as far as both halves agree; the other bits are each half's own.
pub(crate) mod bits {
    use super::Credits;
    use crate::Mode;

    /// [`Credits`].
    pub(crate) const CREDITS: u64 = 1;
    const MODE_SHIFT: u32 = 1;
    /// [`Mode`]. All bits together are no mode.
    pub(crate) const MODE: u64 = 0b11 << MODE_SHIFT;
    const GATES_SHIFT: u32 = 8;
    /// Streams that have ended, and requests that are unanswered: the fast path needs none.
    pub(crate) const GATES: u64 = 0xff << GATES_SHIFT;

    pub(crate) const fn of(credits: Credits, mode: Mode, gates: u8) -> u64 {
        credits.to_bits() | (mode as u64) << MODE_SHIFT | (gates as u64) << GATES_SHIFT
    }

    pub(crate) fn read(bits: u64) -> Option<(Credits, Mode, u8)> {
        let credits = Credits::from_bits(bits & CREDITS)?;
        let mode = Mode::from_bits((bits & MODE) >> MODE_SHIFT)?;
        Some((credits, mode, gates(bits)))
    }

    pub(crate) const fn gates(bits: u64) -> u8 {
        (bits >> GATES_SHIFT) as u8
    }

    /// Whether a plain message may come or go: implicit credits, a mode, none of `special`.
    #[inline(always)]
    pub(crate) const fn are_plain(bits: u64, special: u64) -> bool {
        bits & (CREDITS | special) == 0 && bits & MODE != MODE
    }
}

/// The number of the message after `mseq`.
#[inline(always)]
pub(crate) const fn next(mseq: u32) -> u32 {
    mseq.wrapping_add(1)
}

/// The stream position behind a message with `payload` bytes.
#[inline(always)]
pub(crate) const fn advance(position: u64, payload: u32) -> u64 {
    position.wrapping_add(payload as u64)
}

pub(crate) const fn pack(low: u32, high: u32) -> u64 {
    (low as u64) | ((high as u64) << 32)
}

pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

pub(crate) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

impl Credits {
    pub(crate) const fn to_bits(self) -> u64 {
        match self {
            Self::Implicit => 0,
            Self::Explicit => 1,
        }
    }

    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            0 => Some(Self::Implicit),
            1 => Some(Self::Explicit),
            _ => None,
        }
    }
}

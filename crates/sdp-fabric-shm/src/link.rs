//! One end of a connection on a segment: what the socket layer asks of a lane, over the control
//! lines.
//!
//! Everything that the library reads or writes in a segment's control page after set-up goes
//! through here, but for two that need the lines as they are: the fast path and the takeover by a
//! killed process.
//!
//! | type | what it is for | rules in `docs/spec/lanes.md` |
//! |---|---|---|
//! | [`ShmLink`] | hands out the others, by half and by end | |
//! | [`ShmTx`], [`ShmRx`] | a half's queue, with positions that outlive a call | |
//! | [`ShmHalf`] | the lane of a half's bytes, and from which position | L1 to L10 |
//! | | how far a half has come, and how a sleeper is found | O1 to O10 |
//! | [`ShmEnd`] | what an end says of itself as a whole | E1 to E4, R5, R3 |
//!
//! Handles are `Copy`, own nothing and never block. The socket layer decides which threads sleep,
//! how long, and what a process does about a dead peer.
//!
//! # Halves and sides
//! Half `h` carries the bytes that side `h` sends. The *producer* of a half is the end that sends
//! on it, the *consumer* the other one. A method is the producer's or the consumer's; its first
//! line says so. Private state (how many log entries are known, how many carrier bytes were
//! counted) is the caller's and passed by value, under the caller's lock of the half.
//!
//! # Trust
//! The peer wrote every value that a method returns, and may be hostile. Numbers that could harm
//! the caller are checked here ([`ShmHalf::next`], [`ShmHalf::accept`]), and an impossible one
//! is [`Broken`]. Positions and hints are returned as they are: the caller compares them with its
//! own and believes nothing.

mod end;
mod log;
mod wakeups;

use sdp_shm::{
    layout::{ArmLine, Half, Segment},
    ring::{ALIGN, PLAIN_HEADER, Record, checked_origin, fast_record, record_bytes},
};

use crate::endpoint::{ShmRx, ShmTx};

pub use end::{Intent, ResetNote, ShmEnd};
pub use log::{Ended, Holder, Lane, PENDING_MAX, Switch, Trust};
pub use wakeups::{Armed, How, What, armed};

/// Bits that no cursor has.
const MISALIGNED: u64 = ALIGN as u64 - 1;

/// Stops a half for good: the peer, or a dead process of this end, left an impossible value. The
/// connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// The state that a producer keeps between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxSaved {
    /// End of the published bytes.
    pub position: u64,
    /// End of the bytes that the consumer had freed at the last look.
    pub freed: u64,
    /// Position at which index 0 of the ring is ([`ShmTx::origin`]).
    pub origin: u64,
}

/// One end of an attached connection.
#[derive(Clone, Copy, Debug)]
pub struct ShmLink {
    segment: Segment,
    side: usize,
}

impl ShmLink {
    /// This end is side `side` (modulo 2) of the segment.
    #[inline(always)]
    pub const fn new(segment: Segment, side: usize) -> Self {
        Self { segment, side: side & 1 }
    }

    /// The segment.
    #[inline(always)]
    pub const fn segment(&self) -> Segment {
        self.segment
    }

    /// The producer's end of half `half`, under the caller's lock of it.
    ///
    /// # Errors
    /// No producer ever saved that.
    #[inline(always)]
    pub fn open_tx(&self, half: usize, saved: TxSaved) -> Result<ShmTx, Broken> {
        let TxSaved { position, freed, origin } = saved;
        let ring_bytes = u64::from(self.segment.ring_bytes());
        if (position | freed) & MISALIGNED != 0 || position.wrapping_sub(freed) > ring_bytes {
            return Err(Broken);
        }
        Ok(ShmTx::resume(self.segment, half, position, freed, origin))
    }

    /// The consumer's end of half `half`, under the caller's lock of it: it has released everything
    /// before `freed`, and read a part of the message of `current` bytes that begins there (0:
    /// none). The producer gets the bytes that it releases at [`ShmRx::publish`].
    ///
    /// # Errors
    /// No consumer ever was there.
    #[inline(always)]
    pub fn open_rx(&self, half: usize, freed: u64, current: u32) -> Result<ShmRx, Broken> {
        let scan = match current {
            0 => freed,
            len => Record { start: freed, len }.end(),
        };
        let ring_bytes = u64::from(self.segment.ring_bytes());
        if freed & MISALIGNED != 0 || scan.wrapping_sub(freed) > ring_bytes {
            return Err(Broken);
        }
        Ok(ShmRx::new(self.segment, half, scan, freed).onlooker())
    }

    /// The half that carries the bytes that side `half` sends; `half` is taken modulo 2.
    #[inline(always)]
    pub fn half(&self, half: usize) -> ShmHalf<'_> {
        ShmHalf::new(self.segment.half(half), self.segment.ring_bytes())
    }

    /// The identifier of the last message in the ring of half `half`, which has been taken up to `head`, if that message is a
    /// header alone. A hint: the bytes of a longer one may look like that, and they are the peer's.
    pub fn last_message(&self, half: usize, head: u64) -> Option<u8> {
        let tail = self.half(half).position(What::Bytes);
        let at = tail.wrapping_sub(record_bytes(PLAIN_HEADER) as u64);
        if (tail | head) & MISALIGNED != 0 || at < head || at > tail {
            return None;
        }
        let origin = checked_origin(self.segment, half, 0, head)?;
        let found = fast_record(self.segment, half, origin, at, tail)?;
        (found.record.len as usize == PLAIN_HEADER).then_some(found.header[0] as u8)
    }

    /// This end.
    #[inline(always)]
    pub fn own(&self) -> ShmEnd<'_> {
        ShmEnd(self.segment.end(self.side))
    }

    /// The other end.
    #[inline(always)]
    pub fn peer(&self) -> ShmEnd<'_> {
        ShmEnd(self.segment.end(self.side ^ 1))
    }
}

/// A half's control lines.
#[derive(Clone, Copy)]
pub struct ShmHalf<'a> {
    lines: &'a Half,
    ring_bytes: u32,
}

impl<'a> ShmHalf<'a> {
    /// Of a segment whose rings have `ring_bytes`.
    #[inline(always)]
    pub const fn new(lines: &'a Half, ring_bytes: u32) -> Self {
        Self { lines, ring_bytes }
    }

    #[inline(always)]
    const fn arm_line(self, what: What) -> &'a ArmLine {
        match what {
            What::Bytes => &self.lines.receive_arm,
            What::Space => &self.lines.space_arm,
        }
    }
}

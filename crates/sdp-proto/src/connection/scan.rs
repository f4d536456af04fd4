//! Control that stands behind unread payload.
//!
//! Where a received message stays in a ring until it is read, an answer that our source waits for
//! can stand behind payload that the program will not read before our source gets on: both ends
//! would hang where TCP would not. So a holder of either half of an end may look ahead: a [`Scan`]
//! walks over all that has arrived, in order, and picks out the answers for the source. Payload,
//! the end of the stream and everything else that belongs to a place in the stream is left for
//! [`super::sink::Sink::handle`], when the message is read (spec 8.3).
//!
//! The peer can change the ring's bytes between the two looks. The sink judges a message again when
//! it is read, and the source takes the scan's answers once only: [`Scan::has_seen`].

use super::{sink::SourceInput, words::Corrupt};
use crate::{Violation, wire::Message};

/// How far an end has looked ahead. One word of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    last_mseq: u32,
}

impl Scan {
    /// Nothing has been looked at.
    pub const fn new() -> Self {
        Self { last_mseq: 0 }
    }

    /// Looks at the next message: its answer to the source, if it has one. Its header's credit
    /// counts, too.
    ///
    /// # Errors
    ///
    /// [`Violation::MseqGap`].
    pub fn look(&mut self, message: &Message) -> Result<Option<SourceInput>, Violation> {
        let expected = self.last_mseq.wrapping_add(1);
        let found = message.header.mseq;
        if found != expected {
            return Err(Violation::MseqGap { expected, found });
        }
        self.last_mseq = expected;
        Ok(SourceInput::of(message))
    }

    /// Whether this message was looked at. When the sink later answers it with
    /// [`super::sink::SinkAction::ForSource`], the source knows already.
    pub const fn has_seen(&self, message: &Message) -> bool {
        self.last_mseq.wrapping_sub(message.header.mseq) as i32 >= 0
    }

    /// Last message looked at; 0 before the first.
    pub const fn last_mseq(&self) -> u32 {
        self.last_mseq
    }

    /// Continues from a message, after the death of a holder.
    pub const fn recover_at(&mut self, last_mseq: u32) {
        self.last_mseq = last_mseq;
    }

    /// Packs it.
    pub const fn to_word(self) -> u64 {
        self.last_mseq as u64
    }

    /// Unpacks and checks it.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] when more than a sequence number is there.
    pub const fn from_word(word: u64) -> Result<Self, Corrupt> {
        if word >> 32 != 0 {
            return Err(Corrupt { word: 0 });
        }
        Ok(Self { last_mseq: word as u32 })
    }
}

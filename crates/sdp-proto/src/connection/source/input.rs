//! The peer's input to the source: credit with every header, and its sink's answers.

use super::*;
use crate::{Violation, connection::sink::SourceInput};

/// An event that the peer's sink caused at our source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceEvent {
    /// Nothing to do.
    Nothing,
    /// The peer has read bytes of the advertisement.
    Read {
        /// How many since the last report.
        bytes: u32,
        /// Whether the advertisement is finished and its memory free.
        finished: bool,
    },
    /// The peer does not read: send this much of the buffer, its end, as Data. The memory is free.
    SendRest {
        /// How many bytes are left.
        bytes: u32,
    },
    /// The cancellation is done, and this much was not read. The memory is free.
    Cancelled {
        /// How many bytes are left.
        bytes: u32,
    },
    /// The peer advertised a buffer of its own first: all unfinished SrcAvails are void, and the
    /// buffer is usable. The memory is free.
    Overridden {
        /// How many bytes were not read.
        bytes: u32,
    },
    /// The peer advertised a buffer that is usable.
    SinkBuffer,
    /// The peer recalled buffers that were not filled: add [`PendingControl::SINK_CANCEL_ACK`].
    BuffersDropped,
    /// The peer's sink changed the mode.
    ModeChanged(Mode),
    /// The peer's receive buffers have this size.
    Resized {
        /// Bytes, header included.
        size: u32,
    },
    /// The peer agreed to the suspension: disconnect.
    Suspended,
}

impl Source {
    /// Learns from a header of the peer, before its message is handled. Headers are given in order
    /// of arrival.
    ///
    /// # Errors
    ///
    /// [`Violation::AckBeyondSent`]; with explicit credits also [`Violation::AckBackwards`].
    #[inline]
    pub fn learn(&mut self, peer: PeerCredit) -> Result<(), Violation> {
        let unacked = self.last_mseq.wrapping_sub(peer.mseq_ack);
        if unacked > i32::MAX as u32 {
            return Err(Violation::AckBeyondSent { ack: peer.mseq_ack, sent: self.last_mseq });
        }
        match self.credits {
            // Acknowledgements may come by other ways too, out of order: only the newest counts.
            Credits::Implicit => {
                if peer.mseq_ack.wrapping_sub(self.acked) as i32 > 0 {
                    self.acked = peer.mseq_ack;
                }
            }
            Credits::Explicit => {
                if unacked > self.last_mseq.wrapping_sub(self.acked) {
                    let ack = peer.mseq_ack;
                    return Err(Violation::AckBackwards { ack, known: self.acked });
                }
                self.acked = peer.mseq_ack;
                self.peer_bufs = peer.bufs;
            }
        }
        if self.marks & MODE_UNACKED != 0 && self.acked.wrapping_sub(self.mode_mseq) as i32 >= 0 {
            self.marks &= !MODE_UNACKED;
            self.mode_mseq = 0;
        }
        Ok(())
    }

    /// Takes a message of the peer's sink to our source.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke; the connection is to be reset.
    pub fn handle(&mut self, input: &SourceInput) -> Result<SourceEvent, Violation> {
        match *input {
            SourceInput::SendSm { mseq_ack } => Ok(self.handle_send_sm(mseq_ack)),
            SourceInput::RdmaRdCompl { bytes, wants_pipelined } => {
                self.handle_read(bytes, wants_pipelined)
            }
            SourceInput::ModeChange(change) => {
                if !change.for_source || !self.mode.may_change(Side::Sink, change.mode) {
                    return Err(Violation::ModeIllegal { byte: change.byte() });
                }
                self.mode = change.mode;
                Ok(SourceEvent::ModeChanged(change.mode))
            }
            // We fill no sink buffers: sending Data instead discards them, which is legal. After
            // Pipelined mode was left, some may still arrive until the peer knows (spec 3.3).
            SourceInput::SinkAvail(_)
                if self.mode == Mode::Pipelined || self.marks & MODE_UNACKED != 0 =>
            {
                Ok(SourceEvent::Nothing)
            }
            SourceInput::SinkAvail(_) => Err(Violation::SinkAvailNotPipelined),
            SourceInput::SinkAvailCancel => Ok(SourceEvent::Nothing),
            SourceInput::ChRcvBufAck { size } => self.handle_resize_ack(size),
            SourceInput::SuspCommAck => {
                if self.marks & SUSPEND_ASKED == 0 {
                    return Err(Violation::SuspCommAckUnasked);
                }
                self.marks &= !SUSPEND_ASKED;
                Ok(SourceEvent::Suspended)
            }
        }
    }

    fn handle_send_sm(&mut self, mseq_ack: u32) -> SourceEvent {
        let is_stale = (mseq_ack.wrapping_sub(self.advert_mseq) as i32) < 0;
        if self.gates & ADVERT == 0 || is_stale {
            return SourceEvent::Nothing;
        }
        let bytes = self.advert_left;
        let was_cancelled = self.marks & CANCELLING != 0;
        self.end_advert();
        if was_cancelled {
            return SourceEvent::Cancelled { bytes };
        }
        self.advert_left = bytes;
        self.marks |= REST;
        SourceEvent::SendRest { bytes }
    }

    fn handle_read(&mut self, bytes: u32, wants_pipelined: bool) -> Result<SourceEvent, Violation> {
        if self.gates & ADVERT == 0 {
            return Err(Violation::ReadComplUnasked { bytes });
        }
        if bytes == 0 || bytes > self.advert_left {
            return Err(Violation::ReadComplLength { bytes, left: self.advert_left });
        }
        if wants_pipelined {
            self.marks |= PIPE_WANTED;
        }
        self.position = self.position.wrapping_add(u64::from(bytes));
        self.advert_left = self.advert_left.wrapping_sub(bytes);
        let finished = self.advert_left == 0;
        if finished {
            self.end_advert();
        }
        Ok(SourceEvent::Read { bytes, finished })
    }

    fn handle_resize_ack(&mut self, size: u32) -> Result<SourceEvent, Violation> {
        if self.marks & RESIZE_ASKED == 0 {
            return Err(Violation::ResizeAckUnasked { size });
        }
        if size < RECEIVE_SIZE_MIN {
            return Err(Violation::ResizeTooSmall { size });
        }
        let (asked, from) = (self.resize, self.resize_from);
        if size < asked.min(from) || size > asked.max(from) {
            return Err(Violation::ResizeAckWrong { size, asked });
        }
        self.marks &= !RESIZE_ASKED;
        self.resize = 0;
        self.resize_from = 0;
        self.peer_receive_size = size;
        Ok(SourceEvent::Resized { size })
    }

    fn end_advert(&mut self) {
        self.gates &= !ADVERT;
        self.marks &= !CANCELLING;
        self.advert_mseq = 0;
        self.advert_left = 0;
    }
}

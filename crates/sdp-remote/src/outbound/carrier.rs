//! Messages that the sending half has to write to the carrier: proofs, markers, the bytes of a
//! resume, bytes that the peer gave back, and those that this end gives back when it leaves. One
//! piece after the other, as the kernel takes them.

use sdp_guard::{
    marker::{Kind, MARKER_LEN, Marker},
    producer::{Lane, Piece},
};

use super::{
    Leave, Outbound, PIECE_MAX, Partial, SAY_DEAD, SAY_PROOF, SendContext, SendError, Stage, Wait,
    carrier_error, ring_pieces,
};
use crate::{Carrier, Reason};

impl Outbound {
    pub(super) fn flush_to_carrier<T, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        loop {
            if let Some(partial) = self.partial {
                self.write_partial(io.carrier, partial)?;
            } else if self.says != 0 {
                self.say(io)?;
            } else if let Some(piece) = self.producer.next_piece() {
                self.write_piece(io, piece)?;
            } else if self.producer.backlog().is_some() {
                // Bytes that are due are not kept: cannot be.
                return Err(SendError::Broken(Reason::Lost));
            } else if self.leave == Leave::Ask {
                let marker = self.producer.marker(Kind::Leave, self.producer.stream());
                self.begin_marker(io.carrier, marker, false)?;
                self.leave = Leave::Waits;
            } else if self.must_hold {
                self.write_raw(io.carrier)?;
                let _ = self.producer.hold();
                self.must_hold = false;
            } else if !self.write_return(io)? {
                return Ok(());
            }
        }
    }

    /// Another process has written to the carrier meanwhile, and the peer has shown no PROOF: no marker is written from here
    /// on, and no queue pair follows. False: the peer knows markers, or some are due.
    pub fn forgo_proof(&mut self) -> bool {
        if self.may_leave() || self.producer.lane() != Lane::Kernel || self.has_backlog() {
            return false;
        }
        (self.stage, self.meeting) = (Stage::None, 0);
        true
    }

    /// The last marker of the producer.
    fn write_raw(&mut self, carrier: &mut impl Carrier) -> Result<(), SendError> {
        let raw = self.producer.marker(Kind::Raw, self.producer.stream());
        self.begin_marker(carrier, raw, true)
    }

    /// A piece of RETURN; false: there is none.
    fn write_return<T, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<bool, SendError> {
        match self.leave {
            Leave::Gives { .. } | Leave::Alone if self.producer.lane() == Lane::Kernel => {
                self.write_raw(io.carrier)?;
                let _ = self.producer.go_raw();
            }
            Leave::Alone => self.leave = Leave::Gone,
            Leave::Gives { stream, len } => {
                let marker = self.producer.marker(Kind::Return, stream);
                self.begin_marker(io.carrier, Marker { follows: len, ..marker }, false)?;
                self.leave = Leave::Bytes { at: stream, left: len };
            }
            Leave::Bytes { left: 0, .. } => self.leave = Leave::Gone,
            Leave::Bytes { at, left } => {
                let len = left.min(PIECE_MAX as u32);
                let pieces = ring_pieces(io.ring, at, len as usize);
                let sent = io.carrier.send(pieces).map_err(carrier_error)? as u32;
                let sent = sent.min(len);
                self.producer.wrote_aside(sent);
                self.leave = Leave::Bytes { at: at + u64::from(sent), left: left - sent };
            }
            Leave::No | Leave::Ask | Leave::Waits | Leave::Gone => return Ok(false),
        }
        Ok(true)
    }

    fn say<T, C: Carrier>(&mut self, io: &mut SendContext<'_, T, C>) -> Result<(), SendError> {
        let (kind, flag) = if self.says & SAY_PROOF != 0 {
            (Kind::Proof, SAY_PROOF)
        } else {
            (Kind::Dead, SAY_DEAD)
        };
        let marker = self.producer.marker(kind, self.producer.stream());
        self.begin_marker(io.carrier, marker, false)?;
        self.says &= !flag;
        if flag == SAY_PROOF {
            // Even if the kernel has a part of it only: the rest goes before anything else.
            self.is_proof_written = true;
            // With it the peer forgets the seals of earlier meetings.
            self.proven = self.proven.map(|_| self.seal);
        }
        self.prove(io.shared);
        Ok(())
    }

    /// Gives the kernel the first bytes of a marker.
    fn begin_marker(
        &mut self,
        carrier: &mut impl Carrier,
        marker: Marker,
        is_own: bool,
    ) -> Result<(), SendError> {
        if !self.is_clean {
            // Bytes that went without the end of a record: a marker behind them could share their segment.
            if carrier.unsent().map_err(carrier_error)? != 0 {
                return Err(SendError::Wait(Wait::Unsegmented));
            }
            self.is_clean = true;
        }
        // A seal that the peer knows: the acceptor speaks first, so its new one is known at once.
        let proven =
            if self.is_proof_written { self.seal } else { self.proven.unwrap_or(self.seal) };
        let seal = if marker.kind == Kind::Proof { self.seal } else { proven };
        let bytes = marker.encode(&seal);
        let sent = carrier.send([&bytes, &[]]).map_err(carrier_error)?;
        self.took_marker(Partial { bytes, sent, is_own });
        Ok(())
    }

    fn write_partial(
        &mut self,
        carrier: &mut impl Carrier,
        partial: Partial,
    ) -> Result<(), SendError> {
        let rest = partial.bytes.get(partial.sent..).unwrap_or_default();
        let sent = carrier.send([rest, &[]]).map_err(carrier_error)?;
        self.took_marker(Partial { sent: partial.sent.saturating_add(sent), ..partial });
        Ok(())
    }

    fn took_marker(&mut self, partial: Partial) {
        if partial.sent < MARKER_LEN {
            self.partial = Some(partial);
            return;
        }
        self.partial = None;
        if partial.is_own {
            self.producer.wrote_marker();
        } else {
            self.producer.wrote_aside(MARKER_LEN as u32);
        }
    }

    fn write_piece<T, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        piece: Piece,
    ) -> Result<(), SendError> {
        match piece {
            Piece::Marker(marker) => self.begin_marker(io.carrier, marker, true),
            Piece::Returned { stream, len } => {
                let len = u64::from(len).min(PIECE_MAX) as usize;
                let sent = io.carrier.send(ring_pieces(io.ring, stream, len));
                let sent = sent.map_err(carrier_error)?.min(len);
                self.producer.wrote_backlog(sent as u32);
                Ok(())
            }
            Piece::Kept { .. } => {
                let Some(backlog) = self.producer.backlog() else { return Ok(()) };
                let len = backlog.to.saturating_sub(backlog.from).min(PIECE_MAX) as usize;
                let pieces = ring_pieces(io.ring, backlog.from, len);
                let sent = io.carrier.send(pieces).map_err(carrier_error)?.min(len);
                self.is_clean = sent == len;
                self.producer.wrote_backlog(sent as u32);
                Ok(())
            }
        }
    }
}

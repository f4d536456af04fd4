//! The sending half: SrcAvails that are unanswered, and the peer's SinkAvails.

use sdp_rdma::key::RemoteSlice;

use super::queue::{OWN, Queue, ZCOPY_ADVERTS, src_avail_limit};
use crate::{
    Ack, Hold, Mode, Outgoing, PeerCredit, PendingControl, Source, SourceConfig, SourceEvent,
    SourceInput, Violation,
    connection::words::advance,
    wire::{ADVERT_MAX, Body, Header, LaneRequest, LaneSwitch, Message, SinkAvail, SrcAvail},
};

/// An unfinished SrcAvail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Advert {
    mseq: u32,
    /// Bytes that were neither inline nor reported.
    left: u32,
}

/// The sending half of an end with zero copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZcopySource {
    source: Source,
    adverts: Queue<Advert, OWN>,
    /// Number of the SrcAvailCancel whose answer is due.
    cancel: Option<u32>,
    /// Bytes of SrcAvails that a SendSm ended during the cancellation.
    dropped: u32,
    /// Number of the last Withdrawn, until the peer acknowledges it.
    withdrawn: Option<u32>,
    /// Its number: answers that acknowledge less are void.
    void_before: Option<u32>,
    /// Bytes that must go as Data before anything else (spec 7.3, 7.8).
    rest: u32,
    /// The peer's buffers that may be written to.
    buffers: Queue<RemoteSlice, { ZCOPY_ADVERTS as usize }>,
    /// Payload messages sent while there was no such buffer, less the stale ones (spec 7.6).
    sent_payloads: u32,
    /// Its value when Pipelined mode was left: those behind that use up nothing.
    payloads_before: u32,
    /// Number of the last ModeChange that left it: SinkAvails that acknowledge less are from before.
    left_pipelined: Option<u32>,
    /// SinkCancelAck is due.
    owes_cancel_ack: bool,
    /// Whether the peer knows Withdrawn.
    may_withdraw: bool,
}

impl ZcopySource {
    /// A source of a new connection. `may_withdraw`: both ends agreed on it at set-up.
    pub const fn new(config: &SourceConfig, may_withdraw: bool) -> Self {
        Self::with(Source::new(config), may_withdraw)
    }

    /// Made of a plain source that has sent nothing yet.
    pub const fn with(source: Source, may_withdraw: bool) -> Self {
        Self {
            source,
            adverts: Queue::EMPTY,
            cancel: None,
            dropped: 0,
            withdrawn: None,
            void_before: None,
            rest: 0,
            buffers: Queue::EMPTY,
            sent_payloads: 0,
            payloads_before: 0,
            left_pipelined: None,
            owes_cancel_ack: false,
            may_withdraw,
        }
    }

    /// What it has in common with a plain one, to look at.
    pub const fn plain(&self) -> &Source {
        &self.source
    }

    /// The plain one, for payload where nothing of zero copy can be: neither end has agreed to it.
    pub const fn plain_mut(&mut self) -> &mut Source {
        &mut self.source
    }

    /// Bytes that are advertised, and neither reported nor given back.
    pub fn unread(&self) -> u32 {
        self.adverts.iter().fold(self.dropped, |sum, advert| sum.saturating_add(advert.left))
    }

    /// Whether memory is advertised: it stays registered and as it is.
    pub fn is_advertised(&self) -> bool {
        !self.adverts.is_empty()
    }

    /// Whether a cancellation waits for its answer.
    pub const fn is_cancelling(&self) -> bool {
        self.cancel.is_some()
    }

    /// Bytes behind [`Source::position`] that must go as Data.
    pub const fn rest(&self) -> u32 {
        self.rest
    }

    /// The peer's buffer that the next WRITE is to fill, from its beginning on.
    pub fn sink_buffer(&self) -> Option<RemoteSlice> {
        self.buffers.first().filter(|_| self.rest == 0)
    }

    // Messages.

    /// The next Data message, as of [`Source::next_data`]. While a younger SrcAvail is unanswered, only what a SendSm asked for.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn next_data(&self, ack: Ack, want: u32) -> Result<Outgoing, Hold> {
        self.check_cancel_ack()?;
        let limit = if self.is_advertised() { self.rest } else { u32::MAX };
        self.source.next_data(ack, want.min(limit))
    }

    /// [`Source::plain_data`] of this half, where nothing of zero copy is under way.
    pub fn plain_data(&self, ack: Ack, payload: u32) -> Option<Header> {
        let is_plain = self.rest == 0
            && !self.owes_cancel_ack
            && self.adverts.is_empty()
            && self.buffers.is_empty();
        if is_plain { self.source.plain_data(ack, payload) } else { None }
    }

    /// [`Source::commit_plain`] of this half.
    pub const fn commit_plain(&mut self, ack: Ack, header: &Header) {
        self.source.commit_plain(ack, header);
        self.sent_payloads = self.sent_payloads.wrapping_add(1);
    }

    /// [`Source::next_urgent`] of this half.
    ///
    /// # Errors
    ///
    /// As there; [`Hold::RestFirst`].
    pub fn next_urgent(&self, ack: Ack, want: u32) -> Result<Outgoing, Hold> {
        self.check_rest()?;
        self.source.next_urgent(ack, want)
    }

    /// [`Source::next_control`] of this half.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn next_control(&self, ack: Ack, pending: PendingControl) -> Result<Outgoing, Hold> {
        self.source.next_control(ack, pending)
    }

    /// SrcAvail for `buffer`, whose first `inline` bytes are the message's payload. Its memory is
    /// registered, and stays as it is until the answer.
    ///
    /// # Errors
    ///
    /// [`Hold::ModeForbids`] in Buffered mode; [`Hold::AdvertOutstanding`] with as many as may be;
    /// [`Hold::RestFirst`]; [`Hold::Cancelling`]; [`Hold::WithdrawnUnacked`];
    /// [`Hold::SinkBufferFirst`]; [`Hold::AdvertShape`] when the payload breaks spec 7.2; the credit
    /// reasons.
    #[cold]
    #[inline(never)]
    pub fn advertise(&self, ack: Ack, buffer: RemoteSlice, inline: u32) -> Result<Outgoing, Hold> {
        self.check_rest()?;
        if self.cancel.is_some() {
            return Err(Hold::Cancelling);
        }
        if self.withdrawn.is_some() {
            return Err(Hold::WithdrawnUnacked);
        }
        let (limit, inline_fits) = match self.source.mode() {
            Mode::Buffered => return Err(Hold::ModeForbids),
            Mode::Combined => (1, inline != 0),
            Mode::Pipelined => (src_avail_limit(self.source.peer_max_adverts()), inline == 0),
        };
        if self.adverts.len() >= limit {
            return Err(Hold::AdvertOutstanding);
        }
        if !self.buffers.is_empty() {
            return Err(Hold::SinkBufferFirst);
        }
        let body = Body::SrcAvail(SrcAvail { buffer });
        let room = self.source.peer_receive_size().saturating_sub(body.header_len());
        if !inline_fits || inline >= buffer.len || inline > room || buffer.len > ADVERT_MAX {
            return Err(Hold::AdvertShape);
        }
        self.source.advert(ack, body, inline)
    }

    /// SrcAvailCancel for all unfinished SrcAvails.
    ///
    /// # Errors
    ///
    /// [`Hold::NoAdvert`], [`Hold::Cancelling`], and the credit reasons.
    #[cold]
    #[inline(never)]
    pub fn cancel(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if self.adverts.is_empty() {
            return Err(Hold::NoAdvert);
        }
        if self.cancel.is_some() {
            return Err(Hold::Cancelling);
        }
        self.source.control(ack, Body::SrcAvailCancel)
    }

    /// Withdrawn: the SrcAvails that were cancelled are taken back, whatever the peer does. **Their
    /// memory must not be readable any more.** What was not reported is due as Data from here on
    /// ([`Self::rest`]), also if the call that advertised ends: the peer may have read of it.
    ///
    /// # Errors
    ///
    /// [`Hold::NoAdvert`] without a cancellation; [`Hold::ModeForbids`] where the peer does not know
    /// it; the credit reasons.
    #[cold]
    #[inline(never)]
    pub fn withdraw(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if !self.may_withdraw {
            return Err(Hold::ModeForbids);
        }
        if self.cancel.is_none() {
            return Err(Hold::NoAdvert);
        }
        self.source.control(ack, Body::Withdrawn { position: self.source.position() })
    }

    /// RdmaWrCompl: the first `bytes` of [`Self::sink_buffer`] were written, by requests that were
    /// posted before this message.
    ///
    /// # Errors
    ///
    /// [`Hold::NoAdvert`] without such a buffer; [`Hold::RestFirst`]; [`Hold::AdvertShape`] for no byte
    /// or too many; the reasons for which no payload may go.
    pub fn written(&self, ack: Ack, bytes: u32) -> Result<Outgoing, Hold> {
        self.check_rest()?;
        let buffer = self.buffers.first().ok_or(Hold::NoAdvert)?;
        if bytes == 0 || bytes > buffer.len {
            return Err(Hold::AdvertShape);
        }
        if self.source.has_ended() {
            return Err(Hold::Ended);
        }
        self.source.control(ack, Body::RdmaWrCompl { bytes })
    }

    /// SinkAvail: what [`super::ZcopySink::lend`] has answered.
    ///
    /// # Errors
    ///
    /// The credit reasons.
    pub fn lend(&self, ack: Ack, avail: SinkAvail) -> Result<Outgoing, Hold> {
        self.source.control(ack, Body::SinkAvail(avail))
    }

    /// SinkAvailCancel: when [`super::ZcopySink::recall`] says so.
    ///
    /// # Errors
    ///
    /// The credit reasons.
    pub fn recall(&self, ack: Ack) -> Result<Outgoing, Hold> {
        self.source.control(ack, Body::SinkAvailCancel)
    }

    /// [`Source::change_mode`] of this half.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn change_mode(&self, ack: Ack, mode: Mode) -> Result<Outgoing, Hold> {
        self.check_cancel_ack()?;
        if mode != Mode::Pipelined && self.is_advertised() {
            return Err(Hold::AdvertOutstanding);
        }
        self.source.change_mode(ack, mode)
    }

    /// [`Source::disconnect`] of this half.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn disconnect(&self, ack: Ack) -> Result<Outgoing, Hold> {
        self.check_whole()?;
        self.source.disconnect(ack)
    }

    /// [`Source::switch_lane`] of this half.
    ///
    /// # Errors
    ///
    /// As there; [`Hold::RestFirst`].
    pub fn switch_lane(&self, ack: Ack, switch: LaneSwitch) -> Result<Outgoing, Hold> {
        self.check_whole()?;
        self.source.switch_lane(ack, switch)
    }

    /// [`Source::request_lane`] of this half.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn request_lane(&self, ack: Ack, request: LaneRequest) -> Result<Outgoing, Hold> {
        self.source.request_lane(ack, request)
    }

    /// [`Source::suspend`] of this half.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn suspend(&self, ack: Ack, port: u16) -> Result<Outgoing, Hold> {
        self.check_whole()?;
        self.source.suspend(ack, port)
    }

    /// [`Source::commit`] of this half.
    pub fn commit(&mut self, sent: &Outgoing) {
        self.source.commit(sent);
        self.note_sent(sent.message());
    }

    /// What a sent message leaves behind beside what the plain source notes.
    #[cold]
    #[inline(never)]
    fn note_sent(&mut self, message: &Message) {
        let (mseq, payload) = (message.header.mseq, message.payload_len());
        // Numbers come round again.
        let is_recent = |before: &u32| mseq.wrapping_sub(*before) < 1 << 30;
        self.void_before = self.void_before.filter(is_recent);
        self.left_pipelined = self.left_pipelined.filter(is_recent);
        match message.body {
            Body::Data if payload != 0 => {
                self.rest = self.rest.saturating_sub(payload);
                // Payload uses up the oldest buffer of the peer (spec 7.6).
                if self.buffers.pop().is_none() {
                    self.sent_payloads = self.sent_payloads.wrapping_add(1);
                }
            }
            Body::SrcAvail(advert) => {
                let left = advert.buffer.len.saturating_sub(payload);
                self.adverts.push(Advert { mseq, left });
                if payload != 0 {
                    self.sent_payloads = self.sent_payloads.wrapping_add(1);
                }
            }
            Body::SrcAvailCancel => self.cancel = Some(mseq),
            Body::SinkCancelAck => self.owes_cancel_ack = false,
            Body::Withdrawn { .. } => {
                self.rest = self.rest.saturating_add(self.unread());
                (self.withdrawn, self.void_before) = (Some(mseq), Some(mseq));
                self.end_all();
            }
            Body::RdmaWrCompl { bytes } => {
                self.buffers.pop();
                self.source.count_one_sided(bytes);
            }
            Body::ModeChange(change) if !change.for_source && change.mode != Mode::Pipelined => {
                self.buffers.clear();
                self.payloads_before = self.sent_payloads;
                self.left_pipelined = Some(mseq);
            }
            Body::DisConn => self.buffers.clear(),
            _ => {}
        }
        self.set_gate();
    }

    // Input.

    /// [`Source::learn`] of this half.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn learn(&mut self, peer: PeerCredit) -> Result<(), Violation> {
        self.source.learn(peer)?;
        self.withdrawn = self.withdrawn.filter(|mseq| !self.source.has_acked(*mseq));
        Ok(())
    }

    /// Takes a message of the peer's sink, whose header acknowledged `mseq_ack`. Its header was learnt
    /// before, or a younger one.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke; the connection is to be reset.
    #[cold]
    #[inline(never)]
    pub fn handle(&mut self, input: &SourceInput, mseq_ack: u32) -> Result<SourceEvent, Violation> {
        let event = match *input {
            SourceInput::SendSm { .. } => self.handle_send_sm(mseq_ack),
            SourceInput::RdmaRdCompl { bytes, wants_pipelined } => {
                if wants_pipelined {
                    self.source.want_pipelined();
                }
                self.handle_read(bytes, mseq_ack)?
            }
            SourceInput::SinkAvail(avail) => self.handle_sink_avail(&avail, mseq_ack)?,
            SourceInput::SinkAvailCancel if self.buffers.is_empty() => SourceEvent::Nothing,
            SourceInput::SinkAvailCancel => {
                self.buffers.clear();
                self.owes_cancel_ack = true;
                SourceEvent::BuffersDropped
            }
            _ => self.source.handle(input)?,
        };
        self.set_gate();
        Ok(event)
    }

    /// Whether an answer was sent before the peer knew of the last Withdrawn: it says nothing any
    /// more (spec 7.8).
    fn is_void(&self, mseq_ack: u32) -> bool {
        self.void_before.is_some_and(|mseq| is_before(mseq_ack, mseq))
    }

    fn handle_send_sm(&mut self, mseq_ack: u32) -> SourceEvent {
        let Some(oldest) = self.adverts.first() else { return SourceEvent::Nothing };
        if self.is_void(mseq_ack) || is_before(mseq_ack, oldest.mseq) {
            return SourceEvent::Nothing;
        }
        if let Some(cancel) = self.cancel {
            if is_before(mseq_ack, cancel) {
                // It crossed the cancellation, and means the oldest alone.
                self.dropped = self.dropped.saturating_add(oldest.left);
                self.adverts.pop();
                if !self.adverts.is_empty() {
                    return SourceEvent::Nothing;
                }
            }
            let bytes = self.unread();
            self.end_all();
            return SourceEvent::Cancelled { bytes };
        }
        self.adverts.pop();
        self.rest = self.rest.saturating_add(oldest.left);
        SourceEvent::SendRest { bytes: oldest.left }
    }

    fn handle_read(&mut self, bytes: u32, mseq_ack: u32) -> Result<SourceEvent, Violation> {
        if self.is_void(mseq_ack) {
            return Ok(SourceEvent::Nothing);
        }
        let oldest = self.adverts.first().filter(|oldest| !is_before(mseq_ack, oldest.mseq));
        let Some(oldest) = oldest else { return Err(Violation::ReadComplUnasked { bytes }) };
        let due = self.rest.saturating_add(self.dropped);
        if due != 0 {
            return Err(Violation::ReadComplBeforeRest { bytes, rest: due });
        }
        if bytes == 0 || bytes > oldest.left {
            return Err(Violation::ReadComplLength { bytes, left: oldest.left });
        }
        self.source.count_one_sided(bytes);
        let finished = bytes == oldest.left;
        if finished {
            self.adverts.pop();
            self.cancel = self.cancel.filter(|_| !self.adverts.is_empty());
        } else if let Some(oldest) = self.adverts.first_mut() {
            oldest.left = oldest.left.saturating_sub(bytes);
        }
        Ok(SourceEvent::Read { bytes, finished })
    }

    fn handle_sink_avail(
        &mut self,
        avail: &SinkAvail,
        mseq_ack: u32,
    ) -> Result<SourceEvent, Violation> {
        // By its own acknowledgement: younger headers may have been learnt, and the mode changed.
        let has_left = self.left_pipelined.is_some_and(|mseq| is_before(mseq_ack, mseq));
        if !has_left && self.source.mode() != Mode::Pipelined {
            return Err(Violation::SinkAvailNotPipelined);
        }
        let (len, limit) = (avail.buffer.len, self.source.peer_receive_size());
        if len <= limit {
            return Err(Violation::SinkAvailShort { len, limit });
        }
        let sent = if has_left { self.payloads_before } else { self.sent_payloads };
        if avail.non_discards != sent {
            // Payload that was sent before it came has used it up (spec 7.6).
            self.sent_payloads = self.sent_payloads.wrapping_sub(1);
            self.payloads_before = self.payloads_before.wrapping_sub(1);
            return Ok(SourceEvent::Nothing);
        }
        if has_left || self.source.has_ended() {
            return Ok(SourceEvent::Nothing);
        }
        if self.adverts.first().is_some_and(|oldest| !is_before(mseq_ack, oldest.mseq)) {
            return Err(Violation::SinkAvailBesideAdvert { len });
        }
        if !self.buffers.push(avail.buffer) {
            return Err(Violation::TooManyAdverts { limit: u32::from(ZCOPY_ADVERTS) });
        }
        if self.adverts.is_empty() {
            return Ok(SourceEvent::SinkBuffer);
        }
        let bytes = self.unread();
        self.end_all();
        Ok(SourceEvent::Overridden { bytes })
    }

    fn end_all(&mut self) {
        self.adverts.clear();
        (self.cancel, self.dropped) = (None, 0);
    }

    const fn check_cancel_ack(&self) -> Result<(), Hold> {
        if self.owes_cancel_ack { Err(Hold::CancelAckFirst) } else { Ok(()) }
    }

    fn check_rest(&self) -> Result<(), Hold> {
        self.check_cancel_ack()?;
        if self.rest != 0 { Err(Hold::RestFirst) } else { Ok(()) }
    }

    /// Whether everything that was begun is complete.
    fn check_whole(&self) -> Result<(), Hold> {
        self.check_rest()?;
        if self.is_advertised() { Err(Hold::AdvertOutstanding) } else { Ok(()) }
    }

    fn set_gate(&mut self) {
        self.source.set_advertised(self.is_advertised() && self.rest == 0);
    }

    /// Position behind everything that is sent, advertised or due.
    pub fn end_position(&self) -> u64 {
        advance(advance(self.source.position(), self.unread()), self.rest)
    }
}

/// Whether a message acknowledged less than `mseq`.
const fn is_before(mseq_ack: u32, mseq: u32) -> bool {
    (mseq_ack.wrapping_sub(mseq) as i32) < 0
}

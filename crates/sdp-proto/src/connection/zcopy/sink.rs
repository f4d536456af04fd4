//! The receiving half: SrcAvails to READ from, and our own SinkAvails.

use sdp_rdma::key::RemoteSlice;

use super::queue::{OWN, Queue, ZCOPY_ADVERTS, sink_avail_limit};
use crate::{
    Ack, Hold, Mode, PendingControl, Sink, SinkAction, SinkConfig, Violation,
    wire::{Body, Message, Payload, SinkAvail},
};

/// Unreported bytes at which a report is due.
const REPORT: u32 = 1 << 20;

/// An advertisement of the peer that is not answered to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Offer {
    /// What no READ was started for.
    unread: RemoteSlice,
    /// Bytes that were not counted yet: `unread`, and those of READs under way.
    left: u32,
    /// Bytes that were read and not reported.
    unreported: u32,
    /// No READ is started any more: a SendSm is due.
    is_refused: bool,
}

/// The receiving half of an end with zero copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZcopySink {
    sink: Sink,
    offers: Queue<Offer, { ZCOPY_ADVERTS as usize }>,
    /// Bytes of READs under way.
    flying: u32,
    /// The first of those are void: their advertisement was withdrawn.
    void: u32,
    /// Number of a SrcAvailCancel that is not answered yet.
    cancel: Option<u32>,
    /// The cancellation has dropped something: a SendSm is due behind the reports.
    owes_send_sm: bool,
    /// The reports that are due are given out although there may be more to read.
    is_report_wanted: bool,
    /// Reports ask for Pipelined mode.
    wants_pipelined: bool,
    /// Bytes that a SendSm asked for: due as Data before anything is read again.
    rest: u32,
    /// Position behind the last payload of a message: its sender knew of all that was read before.
    base: u64,
    /// Bytes that come again, behind a Withdrawn.
    skip: u32,
    /// Lengths of our own advertisements, oldest first.
    lent: Queue<u32, OWN>,
    /// SinkAvailCancel was sent.
    is_recalling: bool,
    /// Payload messages that used up none of our own advertisements (spec 7.6).
    payloads: u32,
    peer_max_adverts: u16,
    may_withdraw: bool,
}

impl ZcopySink {
    /// A sink of a new connection; the peer accepts `peer_max_adverts`. `may_withdraw`: both
    /// ends agreed on it at set-up.
    pub const fn new(config: &SinkConfig, peer_max_adverts: u16, may_withdraw: bool) -> Self {
        Self::with(Sink::new(config), peer_max_adverts, may_withdraw)
    }

    /// Made of a plain sink that has taken nothing yet.
    pub const fn with(sink: Sink, peer_max_adverts: u16, may_withdraw: bool) -> Self {
        Self {
            sink,
            offers: Queue::EMPTY,
            flying: 0,
            void: 0,
            cancel: None,
            owes_send_sm: false,
            is_report_wanted: false,
            wants_pipelined: false,
            rest: 0,
            base: 0,
            skip: 0,
            lent: Queue::EMPTY,
            is_recalling: false,
            payloads: 0,
            peer_max_adverts,
            may_withdraw,
        }
    }

    /// What it has in common with a plain one, to look at.
    pub const fn plain(&self) -> &Sink {
        &self.sink
    }

    /// The plain one, where neither end has agreed to zero copy: it answers each SrcAvail with SendSm.
    pub const fn plain_mut(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// Whether an advertisement waits for a READ or a refusal.
    pub fn is_offered(&self) -> bool {
        self.offers.iter().any(|offer| offer.left != 0 && !offer.is_refused)
    }

    /// Bytes of READs under way: in process (spec 1.3). Their memory is the device's until they have ended.
    pub const fn flying(&self) -> u32 {
        self.flying.saturating_add(self.void)
    }

    /// Buffers of ours that the peer may write to.
    pub fn lent(&self) -> usize {
        self.lent.len()
    }

    /// The acknowledgement for our headers. While READs are under way that a cancellation waits for,
    /// it stays before the cancellation (spec 7.4); buffers of messages behind it count as posted.
    pub fn ack(&self, posted: u16) -> Ack {
        let ack = self.sink.ack(posted);
        let Some(cancel) = self.cancel.filter(|_| !self.offers.is_empty()) else { return ack };
        let mseq_ack = cancel.wrapping_sub(1);
        let held = ack.mseq_ack.wrapping_sub(mseq_ack);
        let bufs = u32::from(ack.bufs).saturating_add(held);
        Ack { bufs: u16::try_from(bufs).unwrap_or(u16::MAX), mseq_ack, empty: ack.empty }
    }

    /// [`Sink::leave_buffered`] of this half.
    pub fn leave_buffered(&mut self) -> Option<PendingControl> {
        self.sink.leave_buffered()
    }

    // READ.

    /// The next memory of the peer to READ, at most `most` bytes. Nothing while bytes before it are
    /// due as Data, or a cancellation is known. Take the messages that have come first.
    pub fn next_read(&self, most: u32) -> Option<RemoteSlice> {
        if self.cancel.is_some() || self.rest != 0 || self.void != 0 {
            return None;
        }
        let offer = self.offers.iter().find(|offer| offer.unread.len != 0)?;
        if offer.is_refused || most == 0 {
            return None;
        }
        Some(RemoteSlice { len: offer.unread.len.min(most), ..offer.unread })
    }

    /// The READ of [`Self::next_read`], of `len` bytes, is posted. READs end in this order.
    pub fn read_posted(&mut self, len: u32) {
        let next = self.offers.iter_mut().find(|offer| offer.unread.len != 0);
        let Some(offer) = next else { return };
        let len = len.min(offer.unread.len);
        offer.unread.addr = offer.unread.addr.wrapping_add(u64::from(len));
        offer.unread.len = offer.unread.len.saturating_sub(len);
        self.flying = self.flying.saturating_add(len);
    }

    /// The oldest READ, of `len` bytes, has completed. `true`: they are the next bytes of the stream.
    /// `false`: they are not, whatever they are, and come again as Data.
    pub fn read_done(&mut self, len: u32) -> bool {
        if self.void != 0 {
            self.void = self.void.saturating_sub(len);
            return false;
        }
        let Some(offer) = self.offers.iter_mut().find(|offer| offer.left != 0) else {
            return false;
        };
        offer.left = offer.left.saturating_sub(len);
        offer.unreported = offer.unreported.saturating_add(len);
        self.flying = self.flying.saturating_sub(len);
        self.sink.count_one_sided(len);
        self.settle_cancel();
        true
    }

    /// The oldest advertisement is not read any further: it is answered with SendSm when the READs that
    /// are under way have ended.
    pub fn refuse(&mut self) {
        let next = self.offers.iter_mut().find(|offer| offer.left != 0 && !offer.is_refused);
        if let Some(offer) = next {
            offer.is_refused = true;
        }
    }

    /// What was read is reported now, and not only when there is much of it or the advertisement is
    /// finished.
    pub const fn report(&mut self) {
        self.is_report_wanted = true;
    }

    /// Reports ask for Pipelined mode from here on, or no more.
    pub const fn want_pipelined(&mut self, wants: bool) {
        self.wants_pipelined = wants;
    }

    /// The next report or SendSm, to be added to what is pending; one at a time, so that each is
    /// about one advertisement. Ask after each message, after each READ, and when what was pending
    /// was sent.
    #[cold]
    #[inline(never)]
    pub fn next_answer(&mut self, pending: PendingControl) -> Option<PendingControl> {
        if pending.has_answer() {
            return None;
        }
        if let Some(offer) = self.offers.first() {
            return self.answer_oldest(offer);
        }
        core::mem::take(&mut self.owes_send_sm).then_some(PendingControl::SEND_SM)
    }

    fn answer_oldest(&mut self, offer: Offer) -> Option<PendingControl> {
        let is_flying = offer.left != offer.unread.len;
        if self.rest != 0 {
            // Nothing about a younger one before the rest of an older one.
            return None;
        }
        if offer.is_refused && offer.left != 0 && !is_flying {
            self.offers.pop();
            self.rest = offer.left;
            let report = self.read(offer.unreported);
            return report.add(PendingControl::SEND_SM).ok();
        }
        let is_due = offer.left == 0
            || self.is_report_wanted
            || offer.unreported >= REPORT
            || self.cancel.is_some() && self.flying == 0;
        if offer.unreported == 0 || !is_due {
            self.is_report_wanted &= offer.unreported != 0 || is_flying;
            return None;
        }
        if offer.left == 0 {
            self.offers.pop();
            // The last report ends a cancellation; a SendSm that is due follows all the same.
            self.cancel = self.cancel.filter(|_| !self.offers.is_empty());
        } else if let Some(offer) = self.offers.first_mut() {
            offer.unreported = 0;
        }
        self.is_report_wanted = false;
        Some(self.read(offer.unreported))
    }

    const fn read(&self, bytes: u32) -> PendingControl {
        let report = PendingControl::read_bytes(bytes);
        if self.wants_pipelined && bytes != 0 { report.asking_for_pipelined() } else { report }
    }

    /// A cancellation is answered when no READ is under way: what was not read is dropped.
    fn settle_cancel(&mut self) {
        if self.cancel.is_none() || self.flying != 0 {
            return;
        }
        let mut kept = Queue::EMPTY;
        for offer in self.offers.iter() {
            self.owes_send_sm |= offer.left != 0;
            if offer.unreported != 0 {
                kept.push(Offer { left: 0, is_refused: false, ..*offer });
            }
        }
        self.offers = kept;
        if self.offers.is_empty() {
            self.cancel = None;
        }
    }

    /// A SendSm that was pending when the advertisements were cancelled will not be sent: the answer to
    /// the cancellation stands for it.
    pub const fn owe_send_sm(&mut self) {
        self.owes_send_sm = true;
    }

    // SinkAvail.

    /// A buffer of ours that the peer may write to from here on; the SinkAvail to send
    /// ([`super::ZcopySource::lend`]), at once; `pending` is what is to be sent before it.
    ///
    /// # Errors
    ///
    /// [`Hold::ModeForbids`] outside Pipelined mode; [`Hold::AdvertOutstanding`] with as many as may
    /// be, during a recall, or while the peer's SrcAvail is unanswered or its answer pending; [`Hold::RestFirst`] while
    /// bytes are due as Data; [`Hold::AdvertShape`] for one into which a message may not fit (spec 7.1);
    /// [`Hold::Ended`].
    pub fn lend(
        &mut self,
        buffer: RemoteSlice,
        pending: PendingControl,
    ) -> Result<SinkAvail, Hold> {
        if self.sink.has_ended() {
            return Err(Hold::Ended);
        }
        if self.sink.mode() != Mode::Pipelined {
            return Err(Hold::ModeForbids);
        }
        let is_full = self.lent.len() >= sink_avail_limit(self.peer_max_adverts);
        let is_answered = self.offers.is_empty() && !self.owes_send_sm && !pending.has_answer();
        if is_full || self.is_recalling || !is_answered {
            return Err(Hold::AdvertOutstanding);
        }
        if self.rest != 0 || self.skip != 0 {
            return Err(Hold::RestFirst);
        }
        if buffer.len <= self.sink.receive_size() || buffer.len > crate::wire::ADVERT_MAX {
            return Err(Hold::AdvertShape);
        }
        self.lent.push(buffer.len);
        Ok(SinkAvail { buffer, non_discards: self.payloads })
    }

    /// The last SinkAvail could not be posted.
    pub fn unlend(&mut self) {
        if let Some(last) = self.lent.places.iter_mut().rev().find(|place| place.is_some()) {
            *last = None;
        }
    }

    /// Asks for our buffers back: whether SinkAvailCancel is to be sent
    /// ([`super::ZcopySource::recall`]). They stay the device's until [`Self::lent`] is none.
    pub fn recall(&mut self) -> bool {
        let is_new = !self.lent.is_empty() && !self.is_recalling;
        self.is_recalling |= is_new;
        is_new
    }

    // Messages.

    /// [`Sink::handle`] of this half.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke; the connection is to be reset.
    #[cold]
    #[inline(never)]
    pub fn handle(&mut self, message: &Message) -> Result<SinkAction, Violation> {
        let mut after = self.sink;
        let mseq = after.admit(message)?;
        let action = match message.body {
            Body::Data if message.payload().is_some() => {
                let payload = self.take_payload(message, mseq)?;
                return Ok(payload.map_or(SinkAction::Nothing, SinkAction::Deliver));
            }
            Body::SrcAvail(advert) => self.handle_src_avail(message, advert.buffer, mseq)?,
            Body::SrcAvailCancel => {
                // What a SendSm was sent for may come as Data, or not at all.
                self.rest = 0;
                if !self.offers.is_empty() && self.cancel.is_none() {
                    self.cancel = Some(mseq);
                    self.settle_cancel();
                }
                SinkAction::Cancelled
            }
            Body::Withdrawn { position } if self.may_withdraw => self.handle_withdrawn(position)?,
            Body::Withdrawn { .. } => SinkAction::Nothing,
            Body::RdmaWrCompl { bytes } => self.handle_written(bytes)?,
            Body::SinkCancelAck => {
                if !core::mem::take(&mut self.is_recalling) {
                    return Err(Violation::SinkCancelAckUnasked);
                }
                self.lent.clear();
                SinkAction::Recalled
            }
            Body::SinkAvail(_) if message.payload().is_some() => {
                let SinkAction::DeliverForSource(_, input) = after.handle(message)? else {
                    return Ok(SinkAction::Nothing);
                };
                let payload = self.take_payload(message, mseq)?;
                return Ok(match payload {
                    Some(payload) => SinkAction::DeliverForSource(payload, input),
                    None => SinkAction::ForSource(input),
                });
            }
            Body::DisConn | Body::LaneSwitch(_) | Body::SuspComm { .. } => {
                let is_open = self.offers.iter().any(|offer| offer.left != 0);
                if is_open || self.rest != 0 || self.skip != 0 {
                    return Err(Violation::EndBesideAdvert { mid: message.header.mid.byte() });
                }
                self.forget_lent();
                return self.sink.handle(message);
            }
            Body::ModeChange(change) if !change.for_source => {
                if change.mode == Mode::Buffered && !self.offers.is_empty() {
                    return Err(Violation::ModeWithAdvert);
                }
                let action = self.sink.handle(message)?;
                if change.mode != Mode::Pipelined {
                    self.forget_lent();
                }
                return Ok(action);
            }
            _ => return self.sink.handle(message),
        };
        if !matches!(message.body, Body::SrcAvail(_)) {
            self.sink.count(mseq, 0);
        }
        Ok(action)
    }

    fn forget_lent(&mut self) {
        self.lent.clear();
        self.is_recalling = false;
    }

    /// Payload of a message: where what is new of it lies.
    fn take_payload(&mut self, message: &Message, mseq: u32) -> Result<Option<Payload>, Violation> {
        let Some(payload) = message.payload() else {
            self.sink.count(mseq, 0);
            return Ok(None);
        };
        if self.rest != 0 {
            if !self.offers.is_empty() && payload.len > self.rest {
                return Err(Violation::PayloadBesideAdvert { len: payload.len });
            }
            self.rest = self.rest.saturating_sub(payload.len);
        } else if self.offers.iter().any(|offer| offer.left != 0) {
            return Err(Violation::PayloadBesideAdvert { len: payload.len });
        }
        // One message's payload uses up our oldest advertisement (spec 7.6).
        if self.lent.pop().is_none() {
            self.payloads = self.payloads.wrapping_add(1);
        }
        self.is_recalling &= !self.lent.is_empty();
        let known = self.skip.min(payload.len);
        self.skip = self.skip.saturating_sub(known);
        let len = payload.len.saturating_sub(known);
        self.sink.count(mseq, len);
        self.base = self.sink.position();
        let fresh = Payload { offset: payload.offset.saturating_add(known), len };
        Ok(Some(fresh).filter(|fresh| fresh.len != 0))
    }

    fn handle_src_avail(
        &mut self,
        message: &Message,
        buffer: RemoteSlice,
        mseq: u32,
    ) -> Result<SinkAction, Violation> {
        let inline = message.payload_len();
        self.sink.check_shape(inline, buffer.len)?;
        if self.cancel.is_some() || self.owes_send_sm {
            return Err(Violation::AdvertInCancel { mid: message.header.mid.byte() });
        }
        if self.rest != 0 && self.sink.mode() == Mode::Combined {
            return Err(Violation::AdvertBeforeRest { rest: self.rest });
        }
        if self.skip != 0 {
            return Err(Violation::AdvertBeforeRest { rest: self.skip });
        }
        if !self.lent.is_empty() {
            // WRITE wins: the source finds our advertisement, and takes its own as void (spec 3.6).
            self.sink.count(mseq, 0);
            return Ok(SinkAction::Nothing);
        }
        let limit = match self.sink.mode() {
            Mode::Pipelined => ZCOPY_ADVERTS,
            _ => 1,
        };
        let open = self.offers.iter().filter(|offer| offer.left != 0).count();
        let offer = Offer {
            unread: RemoteSlice {
                addr: buffer.addr.wrapping_add(u64::from(inline)),
                len: buffer.len.saturating_sub(inline),
                ..buffer
            },
            left: buffer.len.saturating_sub(inline),
            unreported: 0,
            is_refused: false,
        };
        if open >= usize::from(limit) || !self.offers.push(offer) {
            return Err(Violation::TooManyAdverts { limit: u32::from(limit) });
        }
        self.sink.count(mseq, inline);
        if inline != 0 {
            self.payloads = self.payloads.wrapping_add(1);
            self.base = self.sink.position();
        }
        Ok(SinkAction::Advertised(message.payload()))
    }

    fn handle_withdrawn(&mut self, position: u64) -> Result<SinkAction, Violation> {
        if self.cancel.is_none() && self.offers.iter().any(|offer| offer.left != 0) {
            return Err(Violation::WithdrawnUncancelled);
        }
        let here = self.sink.position();
        let again = here.wrapping_sub(position);
        let most = here.wrapping_sub(self.base);
        if again > most || again > u64::from(crate::wire::ADVERT_MAX) || self.skip != 0 {
            return Err(Violation::WithdrawnPosition { position, here });
        }
        self.skip = again as u32;
        self.void = self.void.saturating_add(self.flying);
        self.flying = 0;
        self.offers.clear();
        (self.cancel, self.owes_send_sm, self.rest) = (None, false, 0);
        self.is_report_wanted = false;
        Ok(SinkAction::Withdrawn)
    }

    fn handle_written(&mut self, bytes: u32) -> Result<SinkAction, Violation> {
        let Some(len) = self.lent.first() else {
            return Err(Violation::WriteComplUnasked { bytes });
        };
        if bytes == 0 || bytes > len {
            return Err(Violation::WriteComplLength { bytes, len });
        }
        self.lent.pop();
        self.is_recalling &= !self.lent.is_empty();
        self.sink.count_one_sided(bytes);
        Ok(SinkAction::Written { bytes })
    }
}

//! The sending half of an end: sequence numbers, credit, and when each message may be sent.
//!
//! Used under the source's lock by the thread that sends. Every message is made in two steps: a
//! `&self` method builds it or returns why it must wait, and [`Source::commit`] takes note that the
//! fabric has it. A fabric that is full in between costs nothing and changes nothing.

mod commands;
mod input;
pub(super) mod store;

use super::{
    credit::{Class, Due, RESERVE, may_send, update_due},
    mode::{Mode, Side},
    pending::PendingControl,
    words::{Ack, Credits, PeerCredit, advance, next},
};
use crate::wire::{
    Body, Encoded, Flags, HEADER, Header, Message, Mid, ModeChange, hello::RECEIVE_SIZE_MIN,
};

pub use input::SourceEvent;

/// How a source begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceConfig {
    /// How receive buffers are counted.
    pub credits: Credits,
    /// Receive buffers that the peer's set-up message announced.
    pub peer_bufs: u16,
    /// Longest message that the peer takes, header included; at least 37 bytes.
    pub peer_receive_size: u32,
    /// Advertisements that the peer accepts outstanding; at least 1.
    pub peer_max_adverts: u16,
    /// Receive buffers that our own set-up message announced.
    pub bufs: u16,
    /// Size of our own receive buffers, header included: the answer to a resize request.
    pub receive_size: u32,
}

impl SourceConfig {
    /// A fabric with implicit credits and messages of at most `message_size` bytes in each
    /// direction.
    pub const fn implicit(message_size: u32) -> Self {
        Self {
            credits: Credits::Implicit,
            peer_bufs: u16::MAX,
            peer_receive_size: message_size,
            peer_max_adverts: 1,
            bufs: u16::MAX,
            receive_size: message_size,
        }
    }
}

/// Why a message must wait, or cannot be sent at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// No credit: nothing may be sent before the peer's next message (spec 4.3).
    NoCredit,
    /// The last two credits are kept for control messages (spec 4.3).
    Reserved,
    /// The last credit is kept for a message that allows the peer more than before (spec 4.3).
    MustRaise,
    /// There is nothing to send.
    NothingToSend,
    /// DisConn was sent: no payload follows (spec 5.3).
    Ended,
    /// AbortConn was sent: nothing follows (spec 5.3).
    Aborted,
    /// The connection is suspended: nothing follows (spec 5.6).
    Suspended,
    /// AbortConn is legal only after DisConn; disconnect without it (spec 5.3).
    NotEnded,
    /// An advertisement is unanswered: no payload before its answer (spec 3.5).
    AdvertOutstanding,
    /// The rest of an answered advertisement goes first, as Data (spec 7.3).
    RestFirst,
    /// SinkCancelAck goes first, or payload would seem to use up what was dropped (spec 7.7).
    CancelAckFirst,
    /// The last Withdrawn is not acknowledged yet (spec 7.8).
    WithdrawnUnacked,
    /// A sink advertisement is usable: it is written to first (spec 3.6).
    SinkBufferFirst,
    /// There is no advertisement to cancel.
    NoAdvert,
    /// The cancellation is on its way already (spec 7.4).
    Cancelling,
    /// The advertisement's length or payload is not legal (spec 2.6, 7.2).
    AdvertShape,
    /// The mode, or the peer's limits, do not allow it (spec 3.1, 3.2).
    ModeForbids,
    /// The last change of mode is not acknowledged yet (spec 3.3).
    ModePending,
    /// A resize request is unanswered, or the size is not legal or not new (spec 4.7).
    ResizeRefused,
}

/// A message ready for the fabric. Nothing has happened until it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    encoded: Encoded,
    message: Message,
    ack: Ack,
    settles: PendingControl,
}

impl Outgoing {
    /// Base and extended header, 16 to 40 bytes.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.encoded.as_slice()
    }

    /// Payload bytes that must follow the header.
    #[inline]
    pub const fn payload_len(&self) -> u32 {
        self.message.payload_len()
    }

    /// The message as the peer will parse it.
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// Whether the SEND carries the solicited-event bit (spec 2.9).
    pub const fn is_solicited(&self) -> bool {
        let urgent = Flags::OOB_PRES.with(Flags::OOB_PEND).byte();
        self.message.header.mid.is_solicited() || self.message.header.flags.byte() & urgent != 0
    }

    /// Whether the message may use room that the fabric keeps for control messages.
    pub const fn is_control(&self) -> bool {
        self.message.payload_len() == 0
    }

    /// The part of [`PendingControl`] that this message settles. Take it out of the shared word
    /// before posting and put it back if the fabric is full, or the peer may seem to ask twice.
    pub const fn settles(&self) -> PendingControl {
        self.settles
    }
}

/// The sending half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    credits: Credits,
    mode: Mode,
    /// Reasons why payload has to wait.
    gates: u8,
    marks: u8,
    /// Receive buffers that the peer had posted when it had received up to `acked`.
    peer_bufs: u16,
    peer_max_adverts: u16,
    peer_receive_size: u32,
    receive_size: u32,
    /// Last message committed.
    last_mseq: u32,
    /// Last message that the peer is known to have received.
    acked: u32,
    /// The acknowledgement in our last message to the peer.
    sent_ack: Ack,
    /// Payload bytes sent, read by the peer included.
    position: u64,
    /// Number of the advertisement, while `ADVERT` is set.
    advert_mseq: u32,
    /// Bytes of the advertisement, or of the rest to send as Data, that are still to go.
    advert_left: u32,
    /// Number of the last ModeChange, while `MODE_UNACKED` is set.
    mode_mseq: u32,
    /// Size asked for, while `RESIZE_ASKED` is set.
    resize: u32,
    /// Size of the peer's buffers when it was asked, while `RESIZE_ASKED` is set.
    resize_from: u32,
}

/// DisConn was sent.
const ENDED: u8 = 1 << 0;
/// AbortConn was sent.
const ABORTED: u8 = 1 << 1;
/// SuspComm or SuspCommAck was sent.
const SUSPENDED: u8 = 1 << 2;
/// A SrcAvail is unanswered.
const ADVERT: u8 = 1 << 3;
const GATES: u8 = ENDED | ABORTED | SUSPENDED | ADVERT;

/// SrcAvailCancel was sent for the advertisement.
const CANCELLING: u8 = 1 << 0;
/// The rest of an answered advertisement is to go as Data.
const REST: u8 = 1 << 1;
/// OOB_PEND was sent for an urgent byte still to come.
const ANNOUNCED: u8 = 1 << 2;
/// ModeChange was sent and is not acknowledged.
const MODE_UNACKED: u8 = 1 << 3;
/// ChRcvBuf was sent and is not answered.
const RESIZE_ASKED: u8 = 1 << 4;
/// SuspComm was sent and is not answered.
const SUSPEND_ASKED: u8 = 1 << 5;
/// The peer asked for Pipelined mode.
const PIPE_WANTED: u8 = 1 << 6;
const MARKS: u8 = 0x7f;

/// An announced urgent byte follows within this many bytes, with the payload of the announcing
/// message included (spec 6.1).
const URGENT_AHEAD_MAX: u32 = 65_535;

const _: () = assert!(size_of::<Source>() <= 256);

impl Source {
    /// Words of the packed form.
    pub const WORDS: usize = 9;
    /// Word of the packed form: the special conditions, and the size that the peer takes.
    pub const BITS: usize = 0;
    /// Word of the packed form: the last message committed, and the last one that the peer has.
    pub const SEQUENCE: usize = 1;
    /// Word of the packed form: the acknowledgement in our last message to the peer ([`Ack`]).
    pub const SENT_ACK: usize = 2;
    /// Word of the packed form: the longest message in each direction.
    pub const SIZES: usize = 3;
    /// Word of the packed form: payload bytes sent so far.
    pub const POSITION: usize = 4;

    /// A source of a new connection: Combined mode, the first message will be number 1.
    pub const fn new(config: &SourceConfig) -> Self {
        let bufs = match config.credits {
            Credits::Implicit => u16::MAX,
            Credits::Explicit => config.bufs,
        };
        Self {
            credits: config.credits,
            mode: Mode::Combined,
            gates: 0,
            marks: 0,
            peer_bufs: config.peer_bufs,
            peer_max_adverts: config.peer_max_adverts,
            peer_receive_size: config.peer_receive_size,
            receive_size: config.receive_size,
            last_mseq: 0,
            acked: 0,
            sent_ack: Ack { bufs, mseq_ack: 0, empty: 0 },
            position: 0,
            advert_mseq: 0,
            advert_left: 0,
            mode_mseq: 0,
            resize: 0,
            resize_from: 0,
        }
    }

    /// The next Data message, carrying at most `want` bytes.
    ///
    /// # Errors
    ///
    /// [`Hold`] says what to wait for.
    #[inline]
    pub fn next_data(&self, ack: Ack, want: u32) -> Result<Outgoing, Hold> {
        self.data(ack, want.min(self.max_payload()), Flags::NONE)
    }

    /// The header of a Data message of just `payload` bytes, where nothing but credit decides whether
    /// it may go: the same as [`Self::next_data`] has. `None`: ask that. Committed by
    /// [`Self::commit_plain`].
    #[inline]
    pub const fn plain_data(&self, ack: Ack, payload: u32) -> Option<Header> {
        if self.gates != 0 || self.marks != 0 || payload == 0 || payload > self.max_payload() {
            return None;
        }
        if matches!(self.credits, Credits::Explicit) && self.available() <= RESERVE {
            return None;
        }
        Some(Header {
            mid: Mid::Data,
            flags: Flags::NONE,
            bufs: ack.bufs,
            len: HEADER.wrapping_add(payload),
            mseq: next(self.last_mseq),
            mseq_ack: ack.mseq_ack,
        })
    }

    /// [`Self::commit`] of a message with this header.
    #[inline]
    pub const fn commit_plain(&mut self, ack: Ack, header: &Header) {
        self.sent_ack = ack;
        self.last_mseq = header.mseq;
        self.position = advance(self.position, header.len.wrapping_sub(HEADER));
    }

    /// The next Data message of a stretch of `want` bytes whose last byte is urgent. As long as the
    /// message does not reach it, this sends the bytes before it, announcing the byte as soon as
    /// that is allowed; the message that carries the byte ends with it.
    ///
    /// # Errors
    ///
    /// As [`Self::next_data`].
    pub fn next_urgent(&self, ack: Ack, want: u32) -> Result<Outgoing, Hold> {
        let payload = want.min(self.max_payload());
        let mut flags = Flags::NONE;
        if payload == want {
            flags = flags.with(Flags::OOB_PRES);
        }
        if want <= URGENT_AHEAD_MAX && self.marks & ANNOUNCED == 0 {
            flags = flags.with(Flags::OOB_PEND);
        }
        self.data(ack, payload, flags)
    }

    /// The next control message: one that is pending, or else a credit update if one is due.
    ///
    /// # Errors
    ///
    /// [`Hold::NothingToSend`] when all is settled; the other reasons say what to wait for.
    pub fn next_control(&self, ack: Ack, pending: PendingControl) -> Result<Outgoing, Hold> {
        let Some((body, settles)) = pending.first(self.receive_size) else {
            return self.credit_update(ack);
        };
        let mut outgoing = self.control(ack, body)?;
        if settles.asks_for_pipelined() && matches!(body, Body::RdmaRdCompl { .. }) {
            outgoing = self.build(ack, body, 0, Flags::REQ_PIPE);
        }
        outgoing.settles = settles;
        Ok(outgoing)
    }

    /// An empty Data message that announces new buffers to the peer, if it must know now (spec
    /// 4.4). Never where credits are implicit.
    ///
    /// # Errors
    ///
    /// [`Hold::NothingToSend`] when none is due; else why it has to wait.
    #[inline]
    pub fn credit_update(&self, ack: Ack) -> Result<Outgoing, Hold> {
        self.update(ack, Due::Now)
    }

    /// The same, if the peer must know when nothing else has been sent for a while. Two ends that
    /// sent these at once would answer each other without end (spec 4.4).
    ///
    /// # Errors
    ///
    /// As [`Self::credit_update`].
    pub fn late_update(&self, ack: Ack) -> Result<Outgoing, Hold> {
        self.update(ack, Due::Late)
    }

    /// Whether [`Self::credit_update`] has a message, or would have one if there were credit.
    #[inline]
    pub const fn owes_update(&self, ack: Ack) -> bool {
        matches!(self.credits, Credits::Explicit)
            && matches!(update_due(ack, self.sent_ack), Due::Now)
    }

    /// An empty Data message that tells the peer nothing but what goes beside it, where messages are
    /// written into rings (spec 2.12).
    ///
    /// # Errors
    ///
    /// Why it has to wait.
    pub fn room_update(&self, ack: Ack) -> Result<Outgoing, Hold> {
        self.control(ack, Body::Data)
    }

    #[inline]
    /// An empty Data message that acknowledges, before the connection ends, what the peer was not told of yet.
    ///
    /// # Errors
    ///
    /// [`Hold::NothingToSend`] if it was told of all; else why the message has to wait.
    pub fn last_acknowledgement(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if ack.mseq_ack == self.sent_ack.mseq_ack {
            return Err(Hold::NothingToSend);
        }
        self.control(ack, Body::Data)
    }

    fn update(&self, ack: Ack, due: Due) -> Result<Outgoing, Hold> {
        if self.credits == Credits::Implicit || update_due(ack, self.sent_ack) != due {
            return Err(Hold::NothingToSend);
        }
        self.control(ack, Body::Data)
    }

    /// Takes note that the fabric has the message. Messages are committed in the order in which they
    /// were built, each before the next is built.
    #[inline]
    pub fn commit(&mut self, sent: &Outgoing) {
        debug_assert_eq!(sent.message.header.mseq, next(self.last_mseq));
        self.sent_ack = sent.ack;
        if sent.message.body == Body::Data && self.marks == 0 && sent.message.payload_len() != 0 {
            self.last_mseq = sent.message.header.mseq;
            self.position = advance(self.position, sent.message.payload_len());
            if sent.message.header.flags != Flags::NONE {
                self.note_sent(&sent.message, 0);
            }
            return;
        }
        self.last_mseq = sent.message.header.mseq;
        self.position = advance(self.position, sent.message.payload_len());
        self.note_sent(&sent.message, sent.message.payload_len());
    }

    /// Messages that may still be sent by the last thing the peer said; with implicit credits,
    /// always 65 535.
    #[inline]
    pub const fn available(&self) -> u32 {
        match self.credits {
            Credits::Implicit => u16::MAX as u32,
            Credits::Explicit => {
                (self.peer_bufs as u32).saturating_sub(self.last_mseq.wrapping_sub(self.acked))
            }
        }
    }

    /// Largest payload of one Data message, in bytes.
    #[inline]
    pub const fn max_payload(&self) -> u32 {
        self.peer_receive_size.saturating_sub(HEADER)
    }

    /// Sequence number of the last message committed; 0 before the first.
    pub const fn last_mseq(&self) -> u32 {
        self.last_mseq
    }

    /// Last message that the peer is known to have received.
    pub const fn acked(&self) -> u32 {
        self.acked
    }

    /// Payload bytes sent so far (spec 8.2).
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The mode of this half-connection.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether DisConn was sent.
    pub const fn has_ended(&self) -> bool {
        self.gates & ENDED != 0
    }

    /// Whether the peer may have read `mseq`, as far as the acknowledgements say.
    pub(super) const fn has_acked(&self, mseq: u32) -> bool {
        self.acked.wrapping_sub(mseq) as i32 >= 0
    }

    /// Payload waits for an answer of the peer, or not; what is advertised is the caller's to know.
    pub(super) const fn set_advertised(&mut self, is_waiting: bool) {
        self.gates = if is_waiting { self.gates | ADVERT } else { self.gates & !ADVERT };
        self.marks &= !(CANCELLING | REST);
        (self.advert_mseq, self.advert_left) = (0, 0);
    }

    /// Bytes that went by one-sided work.
    pub(super) const fn count_one_sided(&mut self, bytes: u32) {
        self.position = advance(self.position, bytes);
    }

    /// The peer asked for Pipelined mode.
    pub(super) const fn want_pipelined(&mut self) {
        self.marks |= PIPE_WANTED;
    }

    /// Longest message that the peer takes.
    pub(super) const fn peer_receive_size(&self) -> u32 {
        self.peer_receive_size
    }

    /// Advertisements that the peer takes.
    pub(super) const fn peer_max_adverts(&self) -> u16 {
        self.peer_max_adverts
    }

    /// A message without regard to gates: those are the caller's.
    pub(super) fn advert(&self, ack: Ack, body: Body, inline: u32) -> Result<Outgoing, Hold> {
        match self.check_open() {
            Ok(()) | Err(Hold::AdvertOutstanding) => {}
            Err(hold) => return Err(hold),
        }
        self.check_credit(ack, Class::Payload)?;
        Ok(self.build(ack, body, inline, Flags::NONE))
    }

    #[inline]
    fn data(&self, ack: Ack, payload: u32, flags: Flags) -> Result<Outgoing, Hold> {
        if self.gates != 0 {
            self.check_open()?;
        }
        if self.credits == Credits::Explicit {
            self.check_credit(ack, Class::Payload)?;
        }
        if payload == 0 {
            return Err(Hold::NothingToSend);
        }
        Ok(self.build(ack, Body::Data, payload, flags))
    }

    #[inline]
    fn build(&self, ack: Ack, body: Body, payload: u32, flags: Flags) -> Outgoing {
        let header = Header {
            mid: body.mid(),
            flags,
            bufs: ack.bufs,
            len: body.header_len().wrapping_add(payload),
            mseq: next(self.last_mseq),
            mseq_ack: ack.mseq_ack,
        };
        let message = Message { header, body };
        let settles = PendingControl::NOTHING;
        Outgoing { encoded: message.encode(), message, ack, settles }
    }

    pub(super) fn control(&self, ack: Ack, body: Body) -> Result<Outgoing, Hold> {
        if self.gates & ABORTED != 0 {
            return Err(Hold::Aborted);
        }
        if self.gates & SUSPENDED != 0 {
            return Err(Hold::Suspended);
        }
        self.check_credit(ack, Class::Control)?;
        Ok(self.build(ack, body, 0, Flags::NONE))
    }

    fn check_credit(&self, ack: Ack, class: Class) -> Result<(), Hold> {
        may_send(self.available(), ack.raise_over(self.sent_ack) > 0, class)
    }

    /// Whether payload may follow the messages sent so far.
    fn check_open(&self) -> Result<(), Hold> {
        match self.gates {
            0 => Ok(()),
            gates if gates & ABORTED != 0 => Err(Hold::Aborted),
            gates if gates & SUSPENDED != 0 => Err(Hold::Suspended),
            gates if gates & ENDED != 0 => Err(Hold::Ended),
            _ => Err(Hold::AdvertOutstanding),
        }
    }

    /// State that a sent message leaves behind, sequence and position apart.
    fn note_sent(&mut self, message: &Message, payload: u32) {
        match message.body {
            Body::Data => {
                let flags = message.header.flags;
                if flags.has(Flags::OOB_PRES) {
                    self.marks &= !ANNOUNCED;
                } else if flags.has(Flags::OOB_PEND) {
                    self.marks |= ANNOUNCED;
                }
                if self.marks & REST != 0 {
                    self.advert_left = self.advert_left.saturating_sub(payload);
                    if self.advert_left == 0 {
                        self.marks &= !REST;
                    }
                }
            }
            Body::DisConn => self.gates |= ENDED,
            Body::AbortConn => self.gates |= ABORTED,
            Body::SuspCommAck => self.gates |= SUSPENDED,
            Body::SuspComm { .. } => {
                self.gates |= SUSPENDED;
                self.marks |= SUSPEND_ASKED;
            }
            Body::ModeChange(change) if !change.for_source => {
                self.mode = change.mode;
                self.mode_mseq = message.header.mseq;
                self.marks |= MODE_UNACKED;
            }
            Body::SrcAvail(advert) => {
                self.gates |= ADVERT;
                self.advert_mseq = message.header.mseq;
                self.advert_left = advert.buffer.len.saturating_sub(payload);
            }
            Body::SrcAvailCancel => self.marks |= CANCELLING,
            Body::ChRcvBuf { size } => {
                self.marks |= RESIZE_ASKED;
                self.resize = size;
                self.resize_from = self.peer_receive_size;
                // The smaller size holds at once (spec 4.7).
                self.peer_receive_size = self.peer_receive_size.min(size);
            }
            _ => {}
        }
    }
}

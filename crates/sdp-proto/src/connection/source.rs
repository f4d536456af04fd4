//! The sending half of an end: sequence numbers, credit, and what may be sent when.
//!
//! Used under the source's lock by whoever sends. Every message is made in two steps: a `&self`
//! method builds it or says why it must wait, and [`Source::commit`] takes note that the fabric has
//! it. A fabric that is full in between costs nothing and changes nothing.

use super::{
    credit::{Class, is_update_due, may_send},
    mode::{Mode, Side},
    owed::Owed,
    sink::SourceInput,
    words::{Ack, Corrupt, Credits, PeerCredit, high, low, pack},
};
use crate::{
    Violation,
    wire::{
        Body, Encoded, Flags, HEADER, Header, LaneRequest, LaneSwitch, Message, ModeChange,
        SrcAvail, hello::RECEIVE_SIZE_MIN,
    },
};
use sdp_rdma::key::RemoteSlice;

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
    /// A fabric with implicit credits and messages of at most `message_size` bytes either way.
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
    /// The last two credits are kept for control messages (spec 4.3). If nothing else is to be sent,
    /// send [`Source::credit_probe`].
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
    /// A resize request is unanswered, or the peer refused one in this direction (spec 4.7).
    ResizeRefused,
}

/// A message ready for the fabric. Nothing has happened until it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    encoded: Encoded,
    message: Message,
    ack: Ack,
    settles: Owed,
    is_probe: bool,
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

    /// The part of [`Owed`] that this message settles. Take it out of the shared word before posting
    /// and put it back if the fabric is full, or the peer may seem to ask twice.
    pub const fn settles(&self) -> Owed {
        self.settles
    }
}

/// What the peer's sink caused at our source.
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

/// The sending half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// What our last message told the peer.
    told: Ack,
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
/// A credit probe was sent, and no new credit came yet.
const PROBED: u8 = 1 << 3;
/// ModeChange was sent and is not acknowledged.
const MODE_UNACKED: u8 = 1 << 4;
/// ChRcvBuf was sent and is not answered.
const RESIZE_ASKED: u8 = 1 << 5;
/// SuspComm was sent and is not answered.
const SUSPEND_ASKED: u8 = 1 << 6;
/// The peer asked for Pipelined mode.
const PIPE_WANTED: u8 = 1 << 7;

/// An announced urgent byte follows within this many bytes, what the announcing message carries
/// included (spec 6.1).
const URGENT_AHEAD_MAX: u32 = 65_535;

const _: () = assert!(size_of::<Source>() <= 256);

impl Source {
    /// Words of the packed form.
    pub const WORDS: usize = 9;

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
            told: Ack { bufs, mseq_ack: 0, empty: 0 },
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

    /// The next Data message of a stretch of `want` bytes whose last byte is urgent. As long as the
    /// message does not reach it, this sends what comes before, announcing the byte as soon as that
    /// is allowed; the message that carries the byte ends with it.
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

    /// The next control message: what the sink owes, or else a credit update if one is due.
    ///
    /// # Errors
    ///
    /// [`Hold::NothingToSend`] when all is settled; the other reasons say what to wait for.
    pub fn next_control(&self, ack: Ack, owed: Owed) -> Result<Outgoing, Hold> {
        let Some((body, settles)) = owed.first(self.receive_size) else {
            return self.credit_update(ack);
        };
        let mut outgoing = self.control(ack, body)?;
        outgoing.settles = settles;
        Ok(outgoing)
    }

    /// An empty Data message that tells the peer of new buffers, if the rules want one (spec 4.4).
    /// Never where credits are implicit.
    ///
    /// # Errors
    ///
    /// [`Hold::NothingToSend`] when none is due; else why it has to wait.
    pub fn credit_update(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if self.credits == Credits::Implicit || !is_update_due(ack, self.told) {
            return Err(Hold::NothingToSend);
        }
        self.control(ack, Body::Data)
    }

    /// An empty Data message that makes the peer tell us of its buffers, for a sender that was
    /// answered [`Hold::Reserved`] and has nothing else to send (spec 4.4). At most one until new
    /// credit comes.
    ///
    /// # Errors
    ///
    /// [`Hold::NothingToSend`] when it would not help; else why it has to wait.
    pub fn credit_probe(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if self.credits == Credits::Implicit
            || self.marks & PROBED != 0
            || self.available() != super::credit::RESERVE
        {
            return Err(Hold::NothingToSend);
        }
        let mut outgoing = self.control(ack, Body::Data)?;
        outgoing.is_probe = true;
        Ok(outgoing)
    }

    /// DisConn: the end of our stream. Everything before it must have been committed.
    ///
    /// # Errors
    ///
    /// [`Hold::Ended`] when it was sent before, [`Hold::AdvertOutstanding`] and [`Hold::RestFirst`]
    /// while the stream is not complete, and the credit reasons.
    pub fn disconnect(&self, ack: Ack) -> Result<Outgoing, Hold> {
        self.check_open()?;
        if self.marks & REST != 0 {
            return Err(Hold::RestFirst);
        }
        self.control(ack, Body::DisConn)
    }

    /// AbortConn: reset after DisConn. When it has to wait, disconnect without it.
    ///
    /// # Errors
    ///
    /// [`Hold::NotEnded`] before DisConn: then a reset is just a disconnection.
    pub fn abort(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if self.gates & ENDED == 0 {
            return Err(Hold::NotEnded);
        }
        self.control(ack, Body::AbortConn)
    }

    /// SrcAvail for `buffer`, whose first `inline` bytes are the message's payload.
    ///
    /// # Errors
    ///
    /// [`Hold::ModeForbids`] in Buffered mode, [`Hold::AdvertOutstanding`], [`Hold::RestFirst`],
    /// [`Hold::AdvertShape`] when the payload breaks spec 7.2, and the credit reasons.
    pub fn advertise(&self, ack: Ack, buffer: RemoteSlice, inline: u32) -> Result<Outgoing, Hold> {
        self.check_open()?;
        if self.marks & REST != 0 {
            return Err(Hold::RestFirst);
        }
        let body = Body::SrcAvail(SrcAvail { buffer });
        let inline_fits = match self.mode {
            Mode::Buffered => return Err(Hold::ModeForbids),
            Mode::Combined => inline != 0,
            Mode::Pipelined => inline == 0,
        };
        let room = self.peer_receive_size.saturating_sub(body.header_len());
        let len = buffer.len;
        if !inline_fits || inline >= len || inline > room || len > crate::wire::ADVERT_MAX {
            return Err(Hold::AdvertShape);
        }
        self.check_credit(ack, Class::Payload)?;
        Ok(self.build(ack, body, inline, Flags::NONE))
    }

    /// SrcAvailCancel for the unanswered advertisement.
    ///
    /// # Errors
    ///
    /// [`Hold::NoAdvert`], [`Hold::Cancelling`], and the credit reasons.
    pub fn cancel(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if self.gates & ADVERT == 0 {
            return Err(Hold::NoAdvert);
        }
        if self.marks & CANCELLING != 0 {
            return Err(Hold::Cancelling);
        }
        self.control(ack, Body::SrcAvailCancel)
    }

    /// ModeChange to `mode`, where the source is the master.
    ///
    /// # Errors
    ///
    /// [`Hold::ModeForbids`] for an illegal transition, or Pipelined with a peer that did not ask
    /// for it or takes one advertisement only; [`Hold::ModePending`] while the last change is not
    /// acknowledged; [`Hold::AdvertOutstanding`]; and the credit reasons.
    pub fn change_mode(&self, ack: Ack, mode: Mode) -> Result<Outgoing, Hold> {
        if !self.mode.may_change(Side::Source, mode) {
            return Err(Hold::ModeForbids);
        }
        if mode == Mode::Pipelined && (self.peer_max_adverts < 2 || self.marks & PIPE_WANTED == 0) {
            return Err(Hold::ModeForbids);
        }
        if self.marks & MODE_UNACKED != 0 {
            return Err(Hold::ModePending);
        }
        if mode != Mode::Pipelined && self.gates & ADVERT != 0 {
            return Err(Hold::AdvertOutstanding);
        }
        self.control(ack, Body::ModeChange(ModeChange { for_source: false, mode }))
    }

    /// ChRcvBuf: asks the peer for receive buffers of `size` bytes.
    ///
    /// # Errors
    ///
    /// [`Hold::ResizeRefused`] while another request is unanswered or for an illegal size, and the
    /// credit reasons.
    pub fn request_resize(&self, ack: Ack, size: u32) -> Result<Outgoing, Hold> {
        if self.marks & RESIZE_ASKED != 0
            || size < RECEIVE_SIZE_MIN
            || size == self.peer_receive_size
        {
            return Err(Hold::ResizeRefused);
        }
        self.control(ack, Body::ChRcvBuf { size })
    }

    /// SuspComm: asks the peer to reconnect to `port`. Nothing follows it.
    ///
    /// # Errors
    ///
    /// [`Hold::AdvertOutstanding`] and the reasons for which nothing may be sent.
    pub fn suspend(&self, ack: Ack, port: u16) -> Result<Outgoing, Hold> {
        if self.gates & ADVERT != 0 {
            return Err(Hold::AdvertOutstanding);
        }
        self.control(ack, Body::SuspComm { service: 0x0001_0000 | u64::from(port) })
    }

    /// LaneSwitch: only between ends that agreed on lane messages.
    ///
    /// # Errors
    ///
    /// [`Hold::AdvertOutstanding`] and the reasons for which nothing may be sent.
    pub fn switch_lane(&self, ack: Ack, switch: LaneSwitch) -> Result<Outgoing, Hold> {
        self.check_open()?;
        self.control(ack, Body::LaneSwitch(switch))
    }

    /// LaneRequest: only between ends that agreed on lane messages.
    ///
    /// # Errors
    ///
    /// The reasons for which nothing may be sent.
    pub fn request_lane(&self, ack: Ack, request: LaneRequest) -> Result<Outgoing, Hold> {
        self.control(ack, Body::LaneRequest(request))
    }

    /// Takes note that the fabric has the message. Messages are committed in the order in which they
    /// were built, each before the next is built.
    #[inline]
    pub fn commit(&mut self, sent: &Outgoing) {
        debug_assert_eq!(sent.message.header.mseq, self.last_mseq.wrapping_add(1));
        self.told = sent.ack;
        if sent.message.body == Body::Data && self.marks == 0 && sent.message.payload_len() != 0 {
            self.last_mseq = sent.message.header.mseq;
            self.position = self.position.wrapping_add(u64::from(sent.message.payload_len()));
            if sent.message.header.flags != Flags::NONE {
                self.note_sent(&sent.message, 0);
            }
            return;
        }
        self.last_mseq = sent.message.header.mseq;
        self.position = self.position.wrapping_add(u64::from(sent.message.payload_len()));
        self.note_sent(&sent.message, sent.message.payload_len());
        if sent.is_probe {
            self.marks |= PROBED;
        }
    }

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
                if self.available() > super::credit::RESERVE {
                    self.marks &= !PROBED;
                }
            }
        }
        if self.marks & MODE_UNACKED != 0 && self.acked.wrapping_sub(self.mode_mseq) as i32 >= 0 {
            self.marks &= !MODE_UNACKED;
            self.mode_mseq = 0;
        }
        Ok(())
    }

    /// Takes what the peer's sink said to us.
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

    /// Payload bytes sent so far.
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

    /// Returns to a recovery point after the death of a holder; follow with [`Self::replay`] for
    /// what stands in the ring behind it.
    pub const fn recover_at(&mut self, last_mseq: u32, position: u64) {
        self.last_mseq = last_mseq;
        self.position = position;
    }

    /// Takes note of a message that a dead holder had sent, found behind the recovery point.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] when it is not the next one.
    pub fn replay(&mut self, found: &Message) -> Result<(), Corrupt> {
        if found.header.mseq != self.last_mseq.wrapping_add(1) {
            return Err(Corrupt { word: 1 });
        }
        self.last_mseq = found.header.mseq;
        self.position = self.position.wrapping_add(u64::from(found.payload_len()));
        self.note_sent(found, found.payload_len());
        Ok(())
    }

    /// Packs the state.
    #[inline]
    pub const fn to_words(&self) -> [u64; Self::WORDS] {
        let bits = self.credits.to_bits()
            | ((self.mode as u64) << 1)
            | ((self.gates as u64) << 8)
            | ((self.marks as u64) << 16)
            | ((self.peer_max_adverts as u64) << 32)
            | ((self.peer_bufs as u64) << 48);
        [
            bits,
            pack(self.last_mseq, self.acked),
            self.told.to_word(),
            pack(self.peer_receive_size, self.receive_size),
            self.position,
            pack(self.advert_mseq, self.advert_left),
            pack(self.mode_mseq, self.resize),
            self.resize_from as u64,
            0,
        ]
    }

    /// Unpacks and checks the state.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] names the first word that cannot be.
    #[inline]
    pub fn from_words(words: &[u64; Self::WORDS]) -> Result<Self, Corrupt> {
        let [bits, sequence, told, sizes, position, advert, requests, from, spare] = *words;
        let (Some(credits), Some(mode)) =
            (Credits::from_bits(bits & 1), Mode::from_bits((bits >> 1) & 3))
        else {
            return Err(Corrupt { word: 0 });
        };
        let source = Self {
            credits,
            mode,
            gates: (bits >> 8) as u8,
            marks: (bits >> 16) as u8,
            peer_max_adverts: (bits >> 32) as u16,
            peer_bufs: (bits >> 48) as u16,
            last_mseq: low(sequence),
            acked: high(sequence),
            told: Ack::from_word(told),
            peer_receive_size: low(sizes),
            receive_size: high(sizes),
            position,
            advert_mseq: low(advert),
            advert_left: high(advert),
            mode_mseq: low(requests),
            resize: high(requests),
            resize_from: low(from),
        };
        if bits & 0xff00_00f8 != 0 || source.gates & !GATES != 0 || source.peer_max_adverts == 0 {
            return Err(Corrupt { word: 0 });
        }
        if credits == Credits::Explicit
            && source.last_mseq.wrapping_sub(source.acked) > u32::from(u16::MAX)
        {
            return Err(Corrupt { word: 1 });
        }
        if source.peer_receive_size < RECEIVE_SIZE_MIN || source.receive_size < RECEIVE_SIZE_MIN {
            return Err(Corrupt { word: 3 });
        }
        let has_advert = source.gates & ADVERT != 0;
        let has_rest = source.marks & REST != 0;
        if (has_advert && has_rest)
            || (has_advert || has_rest) != (source.advert_left != 0)
            || (!has_advert && (source.advert_mseq != 0 || source.marks & CANCELLING != 0))
        {
            return Err(Corrupt { word: 5 });
        }
        if (source.marks & MODE_UNACKED == 0 && source.mode_mseq != 0)
            || (source.marks & RESIZE_ASKED != 0) != (source.resize != 0)
        {
            return Err(Corrupt { word: 6 });
        }
        if (source.resize == 0) != (source.resize_from == 0) || high(from) != 0 {
            return Err(Corrupt { word: 7 });
        }
        if spare != 0 {
            return Err(Corrupt { word: 8 });
        }
        Ok(source)
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
            mseq: self.last_mseq.wrapping_add(1),
            mseq_ack: ack.mseq_ack,
        };
        let message = Message { header, body };
        let settles = Owed::NOTHING;
        Outgoing { encoded: message.encode(), message, ack, settles, is_probe: false }
    }

    fn control(&self, ack: Ack, body: Body) -> Result<Outgoing, Hold> {
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
        may_send(self.available(), ack.raise_over(self.told) > 0, class)
    }

    /// Whether payload may follow what was sent so far.
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

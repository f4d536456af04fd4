//! The receiving half of an end: order, end of stream, and the action that each message calls for.
//!
//! Used under the sink's lock by the thread that receives. It sees headers only: it answers where
//! payload lies, and the fabric moves it. It answers source advertisements with SendSm; it sends
//! nothing itself.

use super::{
    mode::{Mode, Side},
    pending::{MAX_ADVERTS, PendingControl},
    words::{Ack, Corrupt, Credits, advance, bits, high, low, next, pack},
};
use crate::{
    Violation,
    wire::{
        Body, Flags, LaneRequest, LaneSwitch, Message, ModeChange, Payload, SinkAvail,
        hello::RECEIVE_SIZE_MIN,
    },
};

/// Low 32 bits of the service IDs that belong to SDP are the port; this is the rest (spec 5.6).
const SERVICE_BASE: u64 = 0x0001_0000;

/// How a sink begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkConfig {
    /// How receive buffers are counted.
    pub credits: Credits,
    /// Longest message that the peer may send to us, header included; at least 37 bytes.
    pub receive_size: u32,
    /// Whether the ends agreed at set-up to switch lanes by messages (spec 2.11).
    pub lane_messages: bool,
}

impl SinkConfig {
    /// A fabric with implicit credits and messages of at most `receive_size` bytes.
    pub const fn implicit(receive_size: u32) -> Self {
        Self { credits: Credits::Implicit, receive_size, lane_messages: false }
    }
}

/// A message of the peer's sink to our source; input of [`crate::Source::handle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceInput {
    /// SendSm, with the acknowledgement that its header carried.
    SendSm {
        /// MSeqAck of the message.
        mseq_ack: u32,
    },
    /// RdmaRdCompl.
    RdmaRdCompl {
        /// Bytes read since the last report.
        bytes: u32,
        /// Whether the peer asked for Pipelined mode.
        wants_pipelined: bool,
    },
    /// ModeChange for our sending half.
    ModeChange(ModeChange),
    /// SinkAvail.
    SinkAvail(SinkAvail),
    /// SinkAvailCancel.
    SinkAvailCancel,
    /// ChRcvBufAck.
    ChRcvBufAck {
        /// Size in bytes of the peer's receive buffers.
        size: u32,
    },
    /// SuspCommAck.
    SuspCommAck,
}

impl SourceInput {
    /// The part of a message for the source of the end that receives it, if it has one.
    pub(super) const fn of(message: &Message) -> Option<Self> {
        Some(match message.body {
            Body::SendSm => Self::SendSm { mseq_ack: message.header.mseq_ack },
            Body::RdmaRdCompl { bytes } => Self::RdmaRdCompl {
                bytes,
                wants_pipelined: message.header.flags.has(Flags::REQ_PIPE),
            },
            Body::ModeChange(change) if change.for_source => Self::ModeChange(change),
            Body::SinkAvail(advert) => Self::SinkAvail(advert),
            Body::SinkAvailCancel => Self::SinkAvailCancel,
            Body::ChRcvBufAck { size } => Self::ChRcvBufAck { size },
            Body::SuspCommAck => Self::SuspCommAck,
            _ => return None,
        })
    }
}

/// The action that a received message calls for. An urgent announcement may ride on any message:
/// look at `message.header.flags` for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkAction {
    /// Nothing: release the message.
    Nothing,
    /// Payload for the program; release the message when it has been copied.
    Deliver(Payload),
    /// Payload for the program, and a control message to send.
    DeliverAndAnswer(Payload, PendingControl),
    /// A control message to send: add it to the end's [`PendingControl`].
    Answer(PendingControl),
    /// Give this to the source.
    ForSource(SourceInput),
    /// Give this to the source, then deliver the payload.
    DeliverForSource(Payload, SourceInput),
    /// The peer will send no more payload.
    EndOfStream,
    /// The peer reset the connection.
    Reset,
    /// The peer's source changed the mode.
    ModeChanged(Mode),
    /// The peer will send nothing more here. Either add [`PendingControl::SUSPEND_ACK`] and
    /// reconnect to the service, or reset.
    Suspend {
        /// Service ID to reconnect to.
        service: u64,
    },
    /// An advertisement to READ from, or to refuse, and the payload that came with it.
    Advertised(Option<Payload>),
    /// All advertisements were cancelled: if a SendSm is pending, take it out
    /// ([`PendingControl::without_send_sm`]) and call [`crate::ZcopySink::owe_send_sm`], so that a single SendSm
    /// answers, which acknowledges the cancellation.
    Cancelled,
    /// All advertisements were taken back: take the answers out of what is pending
    /// ([`PendingControl::without_answers`]), and start no READ for them.
    Withdrawn,
    /// The oldest of our own advertisements was written to.
    Written {
        /// How many bytes, from its beginning on.
        bytes: u32,
    },
    /// All of our advertisements that were not used are free.
    Recalled,
    /// The peer's payload changes lanes here.
    LaneSwitch(LaneSwitch),
    /// The peer asks our payload to change lanes.
    LaneRequest(LaneRequest),
}

/// The receiving half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sink {
    credits: Credits,
    mode: Mode,
    gates: u8,
    lane_messages: bool,
    /// Empty Data messages received, modulo 2^16.
    empty: u16,
    /// Last message received.
    last_mseq: u32,
    /// MSeqAck of the advertisement that is to be answered, while `ADVERT` is set.
    advert_ack: u32,
    receive_size: u32,
    /// Payload bytes received so far.
    position: u64,
}

/// DisConn was received.
const ENDED: u8 = 1 << 0;
/// AbortConn was received.
const RESET: u8 = 1 << 1;
/// SuspComm or SuspCommAck was received.
const SUSPENDED: u8 = 1 << 2;
/// A SrcAvail was received, and the peer cannot have seen our answer yet for all we know.
const ADVERT: u8 = 1 << 3;
const GATES: u8 = ENDED | RESET | SUSPENDED | ADVERT;

/// In word 0 of the packed state: [`SinkConfig::lane_messages`].
const LANE_MESSAGES: u64 = 1 << 3;
/// Bits that are never set.
pub(super) const SPARE: u64 = 0xf0;
const EMPTY_SHIFT: u32 = 16;

const _: () = assert!(size_of::<Sink>() <= 256);

impl Sink {
    /// Words of the packed form.
    pub const WORDS: usize = 4;
    /// Word of the packed form: the special conditions, and the receive size.
    pub const BITS: usize = 0;
    /// Word of the packed form: the last message taken, and the advertisement that is to be answered.
    pub const SEQUENCE: usize = 1;
    /// Word of the packed form: payload bytes taken so far.
    pub const POSITION: usize = 2;
    /// Word of the packed form: nothing yet, 0.
    pub const SPARE: usize = 3;

    /// A sink of a new connection: Combined mode, message 1 is due.
    pub const fn new(config: &SinkConfig) -> Self {
        Self {
            credits: config.credits,
            mode: Mode::Combined,
            gates: 0,
            lane_messages: config.lane_messages,
            empty: 0,
            last_mseq: 0,
            advert_ack: 0,
            receive_size: config.receive_size,
            position: 0,
        }
    }

    /// Takes the next message, in order of arrival. Give the source the message's
    /// [`crate::wire::Header::credit`] first: credit counts for every message (spec 2.8).
    ///
    /// # Errors
    ///
    /// The rule that the peer broke; the connection is to be reset.
    #[inline]
    pub fn handle(&mut self, message: &Message) -> Result<SinkAction, Violation> {
        let expected = self.admit(message)?;
        let Body::Data = message.body else {
            let action = self.handle_control(message)?;
            self.last_mseq = expected;
            return Ok(action);
        };
        self.last_mseq = expected;
        let Some(payload) = message.payload() else {
            self.empty = self.empty.wrapping_add(1);
            return Ok(SinkAction::Nothing);
        };
        self.position = advance(self.position, payload.len);
        Ok(SinkAction::Deliver(payload))
    }

    /// What holds for every message; its number.
    #[inline(always)]
    pub(super) fn admit(&mut self, message: &Message) -> Result<u32, Violation> {
        let header = &message.header;
        let expected = next(self.last_mseq);
        if header.mseq != expected {
            return Err(Violation::MseqGap { expected, found: header.mseq });
        }
        if header.len > self.receive_size {
            return Err(Violation::MessageTooLong { len: header.len, limit: self.receive_size });
        }
        if self.gates != 0 {
            self.check_gates(message)?;
        }
        Ok(expected)
    }

    /// Message `mseq` was taken, and carried `bytes` new bytes of the stream.
    pub(super) const fn count(&mut self, mseq: u32, bytes: u32) {
        self.last_mseq = mseq;
        self.position = advance(self.position, bytes);
    }

    /// Bytes that came by one-sided work.
    pub(super) const fn count_one_sided(&mut self, bytes: u32) {
        self.position = advance(self.position, bytes);
    }

    /// Longest message that it takes.
    pub(super) const fn receive_size(&self) -> u32 {
        self.receive_size
    }

    /// The acknowledgement for our headers, with `posted` receive buffers posted at this instant
    /// (ignored where credits are implicit).
    #[inline]
    pub const fn ack(&self, posted: u16) -> Ack {
        match self.credits {
            Credits::Implicit => Ack::implicit(self.last_mseq),
            Credits::Explicit => Ack { bufs: posted, mseq_ack: self.last_mseq, empty: self.empty },
        }
    }

    /// Leaves Buffered mode: the sink is its master. Answers with the ModeChange to send.
    pub fn leave_buffered(&mut self) -> Option<PendingControl> {
        if !self.mode.may_change(Side::Sink, Mode::Combined) {
            return None;
        }
        self.mode = Mode::Combined;
        Some(PendingControl::COMBINED)
    }

    /// Sequence number of the last message taken.
    pub const fn last_mseq(&self) -> u32 {
        self.last_mseq
    }

    /// Payload bytes taken so far (spec 8.2).
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The mode of this half-connection.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the peer has ended its stream.
    pub const fn has_ended(&self) -> bool {
        self.gates & ENDED != 0
    }

    /// [`Self::has_ended`] of a state whose word [`Self::BITS`] this is; unchecked, for a glance.
    #[inline]
    pub const fn is_end_in(word: u64) -> bool {
        bits::gates(word) & ENDED != 0
    }

    /// Continues after the death of a holder: `last_mseq` is the last message whose payload was
    /// given to the program, `position` counts the bytes up to there.
    pub const fn recover_at(&mut self, last_mseq: u32, position: u64) {
        self.last_mseq = last_mseq;
        self.position = position;
    }

    /// Notes after the death of a holder that the last message it took was DisConn.
    pub const fn recover_end(&mut self) {
        self.gates |= ENDED;
    }

    /// Packs the state.
    #[inline]
    pub const fn to_words(&self) -> [u64; Self::WORDS] {
        let lane_messages = if self.lane_messages { LANE_MESSAGES } else { 0 };
        let bits = bits::of(self.credits, self.mode, self.gates)
            | lane_messages
            | ((self.empty as u64) << EMPTY_SHIFT)
            | pack(0, self.receive_size);
        let mut words = [0; Self::WORDS];
        words[Self::BITS] = bits;
        words[Self::SEQUENCE] = pack(self.last_mseq, self.advert_ack);
        words[Self::POSITION] = self.position;
        words
    }

    /// Unpacks and checks the state.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] names the first word that cannot be.
    #[inline]
    pub fn from_words(words: &[u64; Self::WORDS]) -> Result<Self, Corrupt> {
        let (bits, sequence) = (words[Self::BITS], words[Self::SEQUENCE]);
        let Some((credits, mode, gates)) = bits::read(bits) else {
            return Err(Corrupt { word: 0 });
        };
        let receive_size = high(bits);
        if bits & SPARE != 0 || gates & !GATES != 0 || receive_size < RECEIVE_SIZE_MIN {
            return Err(Corrupt { word: 0 });
        }
        if gates & ADVERT == 0 && high(sequence) != 0 {
            return Err(Corrupt { word: 1 });
        }
        if words[Self::SPARE] != 0 {
            return Err(Corrupt { word: 3 });
        }
        Ok(Self {
            credits,
            mode,
            gates,
            lane_messages: bits & LANE_MESSAGES != 0,
            empty: (bits >> EMPTY_SHIFT) as u16,
            last_mseq: low(sequence),
            advert_ack: high(sequence),
            receive_size,
            position: words[Self::POSITION],
        })
    }

    /// The uncommon states: something ended, or an advertisement is open.
    #[cold]
    fn check_gates(&mut self, message: &Message) -> Result<(), Violation> {
        let mid = message.header.mid.byte();
        if self.gates & RESET != 0 {
            return Err(Violation::AfterAbortConn { mid });
        }
        if self.gates & SUSPENDED != 0
            && !matches!(message.body, Body::SuspCommAck | Body::AbortConn)
        {
            return Err(Violation::AfterSuspComm { mid });
        }
        let is_payload = message.payload().is_some();
        if self.gates & ENDED != 0 && (is_payload || matches!(message.body, Body::SrcAvail(_))) {
            return Err(Violation::AfterDisConn { mid });
        }
        if self.gates & ADVERT != 0 {
            // Our SendSm was sent after the advertisement came, so a peer that has seen it
            // acknowledges more than the advertisement did (spec 3.5).
            if message.header.mseq_ack != self.advert_ack {
                self.gates &= !ADVERT;
                self.advert_ack = 0;
            } else if matches!(message.body, Body::SrcAvail(_)) {
                return Err(Violation::TooManyAdverts { limit: u32::from(MAX_ADVERTS) });
            } else if is_payload {
                return Err(Violation::PayloadBesideAdvert { len: message.payload_len() });
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn handle_control(&mut self, message: &Message) -> Result<SinkAction, Violation> {
        if let Some(input) = SourceInput::of(message) {
            if message.body == Body::SuspCommAck {
                self.gates |= SUSPENDED;
            }
            return Ok(match self.take_payload(message) {
                Some(payload) => SinkAction::DeliverForSource(payload, input),
                None => SinkAction::ForSource(input),
            });
        }
        match message.body {
            Body::DisConn => {
                if self.gates & ENDED != 0 {
                    return Err(Violation::DisConnTwice);
                }
                self.gates |= ENDED;
                Ok(SinkAction::EndOfStream)
            }
            Body::AbortConn => {
                self.gates |= RESET;
                Ok(SinkAction::Reset)
            }
            Body::SrcAvail(advert) => self.handle_src_avail(message, advert.buffer.len),
            // Nothing is read here, so nothing is here that the peer does not know of (spec 7.8).
            Body::Withdrawn { position } if self.lane_messages => {
                if position != self.position {
                    let here = self.position;
                    return Err(Violation::WithdrawnPosition { position, here });
                }
                self.gates &= !ADVERT;
                self.advert_ack = 0;
                Ok(SinkAction::Withdrawn)
            }
            // The SendSm that answers the advertisement is pending or sent already, and answers the
            // cancellation too (spec 7.4).
            Body::SrcAvailCancel => Ok(SinkAction::Nothing),
            Body::ModeChange(change) => self.handle_mode_change(change),
            // We advertise no sink buffers.
            Body::RdmaWrCompl { bytes } => Err(Violation::WriteComplUnasked { bytes }),
            Body::SinkCancelAck => Err(Violation::SinkCancelAckUnasked),
            Body::ChRcvBuf { size } if size < RECEIVE_SIZE_MIN => {
                Err(Violation::ResizeTooSmall { size })
            }
            Body::ChRcvBuf { .. } => Ok(SinkAction::Answer(PendingControl::RESIZE_ACK)),
            Body::SuspComm { service } => {
                if service & !0xffff != SERVICE_BASE {
                    return Err(Violation::SuspCommService { service });
                }
                self.gates |= SUSPENDED;
                Ok(SinkAction::Suspend { service })
            }
            Body::LaneSwitch(switch) if self.lane_messages => Ok(SinkAction::LaneSwitch(switch)),
            Body::LaneRequest(request) if self.lane_messages => {
                Ok(SinkAction::LaneRequest(request))
            }
            Body::Experimental { mid } if self.lane_messages && is_lane_mid(mid) => {
                Err(Violation::LaneMalformed { mid })
            }
            // Experimental messages of others, and the answers to the source above.
            _ => Ok(SinkAction::Nothing),
        }
    }

    fn handle_src_avail(&mut self, message: &Message, len: u32) -> Result<SinkAction, Violation> {
        self.check_shape(message.payload_len(), len)?;
        self.gates |= ADVERT;
        self.advert_ack = message.header.mseq_ack;
        Ok(match self.take_payload(message) {
            Some(payload) => SinkAction::DeliverAndAnswer(payload, PendingControl::SEND_SM),
            None => SinkAction::Answer(PendingControl::SEND_SM),
        })
    }

    /// Whether the mode allows an advertisement of `len` bytes with `inline` bytes inline.
    pub(super) const fn check_shape(&self, inline: u32, len: u32) -> Result<(), Violation> {
        match self.mode {
            Mode::Buffered => return Err(Violation::AdvertInBuffered),
            Mode::Combined if inline == 0 => return Err(Violation::InlineMissing),
            Mode::Pipelined if inline != 0 => return Err(Violation::InlineUnexpected { inline }),
            Mode::Combined | Mode::Pipelined => {}
        }
        if inline >= len {
            return Err(Violation::InlineTooLong { inline, len });
        }
        Ok(())
    }

    fn handle_mode_change(&mut self, change: ModeChange) -> Result<SinkAction, Violation> {
        if !self.mode.may_change(Side::Source, change.mode) {
            return Err(Violation::ModeIllegal { byte: change.byte() });
        }
        if change.mode == Mode::Buffered && self.gates & ADVERT != 0 {
            return Err(Violation::ModeWithAdvert);
        }
        self.mode = change.mode;
        Ok(SinkAction::ModeChanged(change.mode))
    }

    fn take_payload(&mut self, message: &Message) -> Option<Payload> {
        let payload = message.payload()?;
        self.position = advance(self.position, payload.len);
        Some(payload)
    }
}

const fn is_lane_mid(mid: u8) -> bool {
    use crate::wire::lane::{LANE_REQUEST, LANE_SWITCH, WITHDRAWN};
    matches!(mid, LANE_SWITCH | LANE_REQUEST | WITHDRAWN)
}

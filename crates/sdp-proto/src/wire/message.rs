//! A whole message without its payload: base header and typed extended header.

use super::{
    advert::{SINK_AVAIL_LEN, SRC_AVAIL_LEN, SinkAvail, SrcAvail},
    bsdh::{HEADER, HEADER_LEN, Header},
    control::ModeChange,
    lane::{
        LANE_REQUEST, LANE_REQUEST_LEN, LANE_SWITCH, LANE_SWITCH_LEN, LaneRequest, LaneSwitch,
        WITHDRAWN, WITHDRAWN_LEN,
    },
    mid::Mid,
};
use crate::Violation;

/// Bytes of a message that [`Message::parse`] can want to see: the longest header of all.
pub const PREFIX_MAX: usize = HEADER_LEN + LANE_SWITCH_LEN;

const _: () = assert!(PREFIX_MAX == 40);
const _: () = assert!(HEADER_LEN + SINK_AVAIL_LEN <= PREFIX_MAX);
const _: () = assert!(HEADER_LEN + SRC_AVAIL_LEN == 32);
const _: () = assert!(HEADER_LEN + SINK_AVAIL_LEN == 36);

/// The content of a message beyond its base header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Body {
    /// Payload, or none: a credit update.
    Data,
    /// End of the stream.
    DisConn,
    /// Reset after the end of the stream.
    AbortConn,
    /// Send the rest of the oldest advertisement as Data.
    SendSm,
    /// Bytes written into the oldest sink advertisement.
    RdmaWrCompl {
        /// How many.
        bytes: u32,
    },
    /// Bytes read from the oldest source advertisement since the last report.
    RdmaRdCompl {
        /// How many.
        bytes: u32,
    },
    /// A new transfer mode.
    ModeChange(ModeChange),
    /// Drop all unfinished source advertisements.
    SrcAvailCancel,
    /// Drop all unfinished sink advertisements.
    SinkAvailCancel,
    /// They are dropped.
    SinkCancelAck,
    /// Wanted size of the receiver's buffers.
    ChRcvBuf {
        /// Bytes, header included.
        size: u32,
    },
    /// Size of the sender's buffers.
    ChRcvBufAck {
        /// Bytes, header included.
        size: u32,
    },
    /// Reconnect elsewhere.
    SuspComm {
        /// Service ID to reconnect to.
        service: u64,
    },
    /// Agreed.
    SuspCommAck,
    /// Memory to write into.
    SinkAvail(SinkAvail),
    /// Memory to read from.
    SrcAvail(SrcAvail),
    /// Payload moves to another lane (ours, experimental).
    LaneSwitch(LaneSwitch),
    /// Please move payload to another lane (ours, experimental).
    LaneRequest(LaneRequest),
    /// All unfinished source advertisements are taken back (ours, experimental).
    Withdrawn {
        /// Position in the stream of the payload that follows.
        position: u64,
    },
    /// An experimental message that is not ours, or not well-formed.
    Experimental {
        /// Its identifier, 0x40 to 0x7f.
        mid: u8,
    },
}

impl Body {
    /// The identifier that goes with it.
    pub const fn mid(&self) -> Mid {
        match self {
            Self::Data => Mid::Data,
            Self::DisConn => Mid::DisConn,
            Self::AbortConn => Mid::AbortConn,
            Self::SendSm => Mid::SendSm,
            Self::RdmaWrCompl { .. } => Mid::RdmaWrCompl,
            Self::RdmaRdCompl { .. } => Mid::RdmaRdCompl,
            Self::ModeChange(_) => Mid::ModeChange,
            Self::SrcAvailCancel => Mid::SrcAvailCancel,
            Self::SinkAvailCancel => Mid::SinkAvailCancel,
            Self::SinkCancelAck => Mid::SinkCancelAck,
            Self::ChRcvBuf { .. } => Mid::ChRcvBuf,
            Self::ChRcvBufAck { .. } => Mid::ChRcvBufAck,
            Self::SuspComm { .. } => Mid::SuspComm,
            Self::SuspCommAck => Mid::SuspCommAck,
            Self::SinkAvail(_) => Mid::SinkAvail,
            Self::SrcAvail(_) => Mid::SrcAvail,
            Self::LaneSwitch(_) => Mid::Experimental(LANE_SWITCH),
            Self::LaneRequest(_) => Mid::Experimental(LANE_REQUEST),
            Self::Withdrawn { .. } => Mid::Experimental(WITHDRAWN),
            Self::Experimental { mid } => Mid::Experimental(*mid),
        }
    }

    /// Length in bytes of the extended header.
    pub const fn extended_len(&self) -> u32 {
        match self {
            Self::RdmaWrCompl { .. }
            | Self::RdmaRdCompl { .. }
            | Self::ModeChange(_)
            | Self::ChRcvBuf { .. }
            | Self::ChRcvBufAck { .. } => 4,
            Self::SuspComm { .. } => 8,
            Self::SrcAvail(_) => SRC_AVAIL_LEN as u32,
            Self::SinkAvail(_) => SINK_AVAIL_LEN as u32,
            Self::LaneSwitch(_) => LANE_SWITCH_LEN as u32,
            Self::LaneRequest(_) => LANE_REQUEST_LEN as u32,
            Self::Withdrawn { .. } => WITHDRAWN_LEN as u32,
            _ => 0,
        }
    }

    /// Length in bytes of base and extended header.
    pub const fn header_len(&self) -> u32 {
        HEADER_LEN as u32 + self.extended_len()
    }

    /// Whether payload may follow the headers.
    pub const fn may_carry_payload(&self) -> bool {
        matches!(
            self,
            Self::Data | Self::SrcAvail(_) | Self::SinkAvail(_) | Self::Experimental { .. }
        )
    }
}

/// Where the payload of a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// Offset in bytes from the start of the message.
    pub offset: u32,
    /// Length in bytes, never 0.
    pub len: u32,
}

/// A parsed message. `header.mid` and `body` agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// The base header.
    pub header: Header,
    /// The rest.
    pub body: Body,
}

impl Message {
    /// Reads a message of the queue pair of which `first_bytes` are the beginning and which is
    /// `total_len` bytes long. Give at least `min(total_len, PREFIX_MAX)` bytes; for Data, 16 do.
    ///
    /// # Errors
    ///
    /// Those of [`Header::parse`], and [`Violation::ExtendedHeaderCut`],
    /// [`Violation::UnexpectedPayload`], [`Violation::HelloAfterSetup`], [`Violation::ModeUnknown`],
    /// [`Violation::AdvertLength`].
    #[inline]
    pub fn parse(first_bytes: &[u8], total_len: u32) -> Result<Self, Violation> {
        let header = Header::parse(first_bytes, total_len)?;
        if header.mid == Mid::Data {
            return Ok(Self { header, body: Body::Data });
        }
        parse_body(header, first_bytes.get(HEADER_LEN..).unwrap_or(&[]))
    }

    /// [`Self::parse`] of a message of `total_len` bytes that lies elsewhere: `copy` fills a buffer
    /// from the message's start as far as the message goes, and says with how many bytes. Of Data,
    /// which nearly every message is, it is asked for the base header only. All that is judged was
    /// copied in one call, so that a peer that changes the bytes meanwhile changes one whole message.
    ///
    /// # Errors
    ///
    /// As [`Self::parse`].
    #[inline]
    pub fn read(
        total_len: u32,
        mut copy: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<Self, Violation> {
        let mut first = [0; PREFIX_MAX];
        let look = if total_len < HEADER { total_len as usize } else { HEADER_LEN };
        let mut have = first.get_mut(..look).map_or(0, &mut copy);
        if first[0] != Mid::Data.byte() {
            have = copy(&mut first);
        }
        Self::parse(first.get(..have).unwrap_or(&[]), total_len)
    }

    /// The part of the message that belongs to the peer's stream, if any. The content of
    /// experimental messages does not.
    #[inline]
    pub const fn payload(&self) -> Option<Payload> {
        let len = self.payload_len();
        if len == 0 || matches!(self.body, Body::Experimental { .. }) {
            return None;
        }
        Some(Payload { offset: self.body.header_len(), len })
    }

    /// Payload bytes that follow the headers.
    #[inline]
    pub const fn payload_len(&self) -> u32 {
        self.header.len.wrapping_sub(self.body.header_len())
    }

    /// Base and extended header as they are on the wire.
    #[inline]
    pub fn encode(&self) -> Encoded {
        let mut bytes = [0; PREFIX_MAX];
        if let Some(base) = bytes.first_chunk_mut::<HEADER_LEN>() {
            *base = self.header.encode();
        }
        if let Some(extended) = bytes.get_mut(HEADER_LEN..)
            && self.header.mid != Mid::Data
        {
            encode_body(&self.body, extended);
        }
        Encoded { bytes, len: self.body.header_len() as u8 }
    }
}

/// The encoded headers of a message: 16 to 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; PREFIX_MAX],
    len: u8,
}

impl Encoded {
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len as usize).unwrap_or(&self.bytes)
    }
}

#[inline(never)]
fn parse_body(header: Header, extended: &[u8]) -> Result<Message, Violation> {
    let mid = header.mid.byte();
    let cut = Violation::ExtendedHeaderCut { mid, len: header.len };
    // The prefix may run on beyond the message (a whole receive buffer): look at the message only.
    let inside = (header.len as usize).saturating_sub(HEADER_LEN);
    let extended = extended.get(..inside).unwrap_or(extended);
    let word = || extended.first_chunk().map(|b| u32::from_be_bytes(*b)).ok_or(cut);
    let body = match header.mid {
        Mid::Hello | Mid::HelloAck => return Err(Violation::HelloAfterSetup { mid }),
        Mid::DisConn => Body::DisConn,
        Mid::AbortConn => Body::AbortConn,
        Mid::SendSm => Body::SendSm,
        Mid::RdmaWrCompl => Body::RdmaWrCompl { bytes: word()? },
        Mid::RdmaRdCompl => Body::RdmaRdCompl { bytes: word()? },
        Mid::ModeChange => {
            let [byte, _, _, _] = word()?.to_be_bytes();
            Body::ModeChange(ModeChange::from_byte(byte)?)
        }
        Mid::SrcAvailCancel => Body::SrcAvailCancel,
        Mid::SinkAvailCancel => Body::SinkAvailCancel,
        Mid::SinkCancelAck => Body::SinkCancelAck,
        Mid::ChRcvBuf => Body::ChRcvBuf { size: word()? },
        Mid::ChRcvBufAck => Body::ChRcvBufAck { size: word()? },
        Mid::SuspComm => {
            Body::SuspComm { service: u64::from_be_bytes(*extended.first_chunk().ok_or(cut)?) }
        }
        Mid::SuspCommAck => Body::SuspCommAck,
        Mid::SinkAvail => Body::SinkAvail(SinkAvail::parse(extended.first_chunk().ok_or(cut)?)?),
        Mid::SrcAvail => Body::SrcAvail(SrcAvail::parse(extended.first_chunk().ok_or(cut)?)?),
        Mid::Experimental(mid) => parse_experimental(mid, inside, extended),
        Mid::Data => Body::Data,
    };
    if header.len != body.header_len() && !body.may_carry_payload() {
        return Err(Violation::UnexpectedPayload { mid, len: header.len });
    }
    Ok(Message { header, body })
}

/// Whether these are our messages is for the engine to say, so nothing here is an error.
fn parse_experimental(mid: u8, inside: usize, extended: &[u8]) -> Body {
    let ours = match (mid, inside) {
        (LANE_SWITCH, LANE_SWITCH_LEN) => {
            extended.first_chunk().and_then(LaneSwitch::parse).map(Body::LaneSwitch)
        }
        (LANE_REQUEST, LANE_REQUEST_LEN) => {
            extended.first_chunk().and_then(LaneRequest::parse).map(Body::LaneRequest)
        }
        (WITHDRAWN, WITHDRAWN_LEN) => extended
            .first_chunk()
            .map(|bytes| Body::Withdrawn { position: u64::from_be_bytes(*bytes) }),
        _ => None,
    };
    ours.unwrap_or(Body::Experimental { mid })
}

#[inline(never)]
fn encode_body(body: &Body, out: &mut [u8]) {
    match body {
        Body::RdmaWrCompl { bytes: word }
        | Body::RdmaRdCompl { bytes: word }
        | Body::ChRcvBuf { size: word }
        | Body::ChRcvBufAck { size: word } => put(out, &word.to_be_bytes()),
        Body::ModeChange(change) => put(out, &[change.byte(), 0, 0, 0]),
        Body::SuspComm { service } => put(out, &service.to_be_bytes()),
        Body::SinkAvail(advert) => put(out, &advert.encode()),
        Body::SrcAvail(advert) => put(out, &advert.encode()),
        Body::LaneSwitch(switch) => put(out, &switch.encode()),
        Body::LaneRequest(request) => put(out, &request.encode()),
        Body::Withdrawn { position } => put(out, &position.to_be_bytes()),
        _ => {}
    }
}

fn put(out: &mut [u8], field: &[u8]) {
    if let Some(room) = out.get_mut(..field.len()) {
        room.copy_from_slice(field);
    }
}

//! Message identifiers (spec 2.2).

use crate::Violation;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mid {
    /// Connection request, in connection manager private data only.
    Hello,
    /// Connection reply, in connection manager private data only.
    HelloAck,
    /// End of the stream in the direction it travels.
    DisConn,
    /// Reset after DisConn.
    AbortConn,
    /// Sink to source: send the oldest advertisement's bytes as Data.
    SendSm,
    /// Source to sink: bytes written into the oldest sink advertisement.
    RdmaWrCompl,
    /// Sink to source: bytes read from the oldest source advertisement.
    RdmaRdCompl,
    /// Mode master to slave.
    ModeChange,
    /// Source to sink: drop all unfinished source advertisements.
    SrcAvailCancel,
    /// Sink to source: drop all unfinished sink advertisements.
    SinkAvailCancel,
    /// Source to sink: they are dropped.
    SinkCancelAck,
    /// Source to sink: please use receive buffers of another size.
    ChRcvBuf,
    /// Sink to source: the size now in use.
    ChRcvBufAck,
    /// Stop here and reconnect elsewhere.
    SuspComm,
    /// Agreed, and nothing more will be sent.
    SuspCommAck,
    /// Experimental range; ours are in [`super::lane`].
    Experimental(u8),
    /// Sink to source: a buffer to write into.
    SinkAvail,
    /// Source to sink: a buffer to read from.
    SrcAvail,
    /// Payload, or a credit update when empty.
    Data,
}

impl Mid {
    /// First of the experimental identifiers.
    pub const EXPERIMENTAL_FIRST: u8 = 0x40;
    /// Last of the experimental identifiers.
    pub const EXPERIMENTAL_LAST: u8 = 0x7f;

    /// Every assigned identifier, for tables and tests.
    pub const ASSIGNED: [Self; 18] = [
        Self::Hello,
        Self::HelloAck,
        Self::DisConn,
        Self::AbortConn,
        Self::SendSm,
        Self::RdmaWrCompl,
        Self::RdmaRdCompl,
        Self::ModeChange,
        Self::SrcAvailCancel,
        Self::SinkAvailCancel,
        Self::SinkCancelAck,
        Self::ChRcvBuf,
        Self::ChRcvBufAck,
        Self::SuspComm,
        Self::SuspCommAck,
        Self::SinkAvail,
        Self::SrcAvail,
        Self::Data,
    ];

    /// The identifier as it is on the wire.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Hello => 0x00,
            Self::HelloAck => 0x01,
            Self::DisConn => 0x02,
            Self::AbortConn => 0x03,
            Self::SendSm => 0x04,
            Self::RdmaWrCompl => 0x05,
            Self::RdmaRdCompl => 0x06,
            Self::ModeChange => 0x07,
            Self::SrcAvailCancel => 0x08,
            Self::SinkAvailCancel => 0x09,
            Self::SinkCancelAck => 0x0a,
            Self::ChRcvBuf => 0x0b,
            Self::ChRcvBufAck => 0x0c,
            Self::SuspComm => 0x0d,
            Self::SuspCommAck => 0x0e,
            Self::Experimental(byte) => byte,
            Self::SinkAvail => 0xfd,
            Self::SrcAvail => 0xfe,
            Self::Data => 0xff,
        }
    }

    /// Reads an identifier; a reserved one is [`Violation::ReservedMid`].
    pub const fn from_byte(byte: u8) -> Result<Self, Violation> {
        Ok(match byte {
            0x00 => Self::Hello,
            0x01 => Self::HelloAck,
            0x02 => Self::DisConn,
            0x03 => Self::AbortConn,
            0x04 => Self::SendSm,
            0x05 => Self::RdmaWrCompl,
            0x06 => Self::RdmaRdCompl,
            0x07 => Self::ModeChange,
            0x08 => Self::SrcAvailCancel,
            0x09 => Self::SinkAvailCancel,
            0x0a => Self::SinkCancelAck,
            0x0b => Self::ChRcvBuf,
            0x0c => Self::ChRcvBufAck,
            0x0d => Self::SuspComm,
            0x0e => Self::SuspCommAck,
            0x40..=0x7f => Self::Experimental(byte),
            0xfd => Self::SinkAvail,
            0xfe => Self::SrcAvail,
            0xff => Self::Data,
            mid => return Err(Violation::ReservedMid { mid }),
        })
    }

    /// Whether the sender sets the solicited-event bit of the SEND (spec 2.9). A receiver never
    /// depends on it.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::AbortConn
                | Self::SuspComm
                | Self::SuspCommAck
                | Self::SendSm
                | Self::SrcAvailCancel
                | Self::SinkAvailCancel
                | Self::SinkCancelAck
                | Self::RdmaWrCompl
                | Self::RdmaRdCompl
        )
    }

    /// The field's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "Hello",
            Self::HelloAck => "HelloAck",
            Self::DisConn => "DisConn",
            Self::AbortConn => "AbortConn",
            Self::SendSm => "SendSm",
            Self::RdmaWrCompl => "RdmaWrCompl",
            Self::RdmaRdCompl => "RdmaRdCompl",
            Self::ModeChange => "ModeChange",
            Self::SrcAvailCancel => "SrcAvailCancel",
            Self::SinkAvailCancel => "SinkAvailCancel",
            Self::SinkCancelAck => "SinkCancelAck",
            Self::ChRcvBuf => "ChRcvBuf",
            Self::ChRcvBufAck => "ChRcvBufAck",
            Self::SuspComm => "SuspComm",
            Self::SuspCommAck => "SuspCommAck",
            Self::Experimental(super::lane::LANE_SWITCH) => "LaneSwitch",
            Self::Experimental(super::lane::LANE_REQUEST) => "LaneRequest",
            Self::Experimental(super::lane::WITHDRAWN) => "Withdrawn",
            Self::Experimental(_) => "Experimental",
            Self::SinkAvail => "SinkAvail",
            Self::SrcAvail => "SrcAvail",
            Self::Data => "Data",
        }
    }
}

//! Our experimental messages: lane switches between hosts (spec 2.11), advertisements that are
//! taken back (spec 7.8).
//!
//! On one host the lane log lives in the shared segment. Between hosts the producer of a stream
//! announces a switch on the SDP lane itself. Only peers that agreed at set-up send these; other
//! peers ignore them, as every experimental message.

/// Identifier of LaneSwitch.
pub const LANE_SWITCH: u8 = 0x40;
/// Identifier of LaneRequest.
pub const LANE_REQUEST: u8 = 0x41;

/// Identifier of Withdrawn.
pub const WITHDRAWN: u8 = 0x43;

/// Length of LaneSwitch's extended header.
pub(crate) const LANE_SWITCH_LEN: usize = 24;
/// Length of LaneRequest's extended header.
pub(crate) const LANE_REQUEST_LEN: usize = 8;
/// Length of Withdrawn's extended header.
pub(crate) const WITHDRAWN_LEN: usize = 8;

/// Which lane carries the payload of a half-connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    /// The kernel's TCP connection.
    Carrier = 0,
    /// SDP.
    Sdp = 1,
}

impl Lane {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Carrier),
            1 => Some(Self::Sdp),
            _ => None,
        }
    }
}

/// LaneSwitch: from `stream_position` on, the sender's payload travels by `lane`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneSwitch {
    /// The lane from here on.
    pub lane: Lane,
    /// Number of this switch in its half-connection, from 1.
    pub sequence: u32,
    /// Bytes that the sender has put on the carrier in its whole life.
    pub carrier_position: u64,
    /// Bytes of the stream before the switch, over all lanes.
    pub stream_position: u64,
}

/// LaneRequest: the consumer asks the producer to switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneRequest {
    /// The lane that the consumer wants.
    pub lane: Lane,
    /// The last switch that the consumer has seen; 0 for none.
    pub sequence: u32,
}

impl LaneSwitch {
    pub(crate) const fn encode(&self) -> [u8; LANE_SWITCH_LEN] {
        let [s0, s1, s2, s3] = self.sequence.to_be_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = self.carrier_position.to_be_bytes();
        let [p0, p1, p2, p3, p4, p5, p6, p7] = self.stream_position.to_be_bytes();
        [
            self.lane as u8,
            0,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            c0,
            c1,
            c2,
            c3,
            c4,
            c5,
            c6,
            c7,
            p0,
            p1,
            p2,
            p3,
            p4,
            p5,
            p6,
            p7,
        ]
    }

    pub(crate) fn parse(bytes: &[u8; LANE_SWITCH_LEN]) -> Option<Self> {
        let [lane, 0, 0, 0, s0, s1, s2, s3, c0, c1, c2, c3, c4, c5, c6, c7, position @ ..] = *bytes
        else {
            return None;
        };
        Some(Self {
            lane: Lane::from_byte(lane)?,
            sequence: u32::from_be_bytes([s0, s1, s2, s3]),
            carrier_position: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            stream_position: u64::from_be_bytes(position),
        })
    }
}

impl LaneRequest {
    pub(crate) const fn encode(&self) -> [u8; LANE_REQUEST_LEN] {
        let [s0, s1, s2, s3] = self.sequence.to_be_bytes();
        [self.lane as u8, 0, 0, 0, s0, s1, s2, s3]
    }

    pub(crate) fn parse(bytes: &[u8; LANE_REQUEST_LEN]) -> Option<Self> {
        let [lane, 0, 0, 0, sequence @ ..] = *bytes else { return None };
        Some(Self { lane: Lane::from_byte(lane)?, sequence: u32::from_be_bytes(sequence) })
    }
}

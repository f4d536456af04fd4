//! Extended headers of the two advertisements (spec 2.6).

use crate::Violation;
use sdp_rdma::key::{RemoteSlice, Rkey};

/// Longest buffer that one advertisement may describe, in bytes.
pub const ADVERT_MAX: u32 = 1 << 31;

/// Length of SrcAvail's extended header.
pub(crate) const SRC_AVAIL_LEN: usize = 16;
/// Length of SinkAvail's extended header.
pub(crate) const SINK_AVAIL_LEN: usize = 20;

/// SrcAvail: memory of the source that the sink may READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SrcAvail {
    /// The whole buffer, inline payload included; 1 to 2^31 bytes. The address is opaque.
    pub buffer: RemoteSlice,
}

/// SinkAvail: memory of the sink that the source may WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkAvail {
    /// The whole buffer, 1 to 2^31 bytes. The address is opaque.
    pub buffer: RemoteSlice,
    /// Payload messages received so far that used up no sink advertisement (spec 7.6).
    pub non_discards: u32,
}

impl SrcAvail {
    pub(crate) const fn encode(&self) -> [u8; SRC_AVAIL_LEN] {
        encode_slice(&self.buffer)
    }

    pub(crate) fn parse(bytes: &[u8; SRC_AVAIL_LEN]) -> Result<Self, Violation> {
        Ok(Self { buffer: parse_slice(bytes)? })
    }
}

impl SinkAvail {
    pub(crate) const fn encode(&self) -> [u8; SINK_AVAIL_LEN] {
        let [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15] =
            encode_slice(&self.buffer);
        let [n0, n1, n2, n3] = self.non_discards.to_be_bytes();
        [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15, n0, n1, n2, n3]
    }

    pub(crate) fn parse(bytes: &[u8; SINK_AVAIL_LEN]) -> Result<Self, Violation> {
        let [slice @ .., n0, n1, n2, n3] = bytes;
        Ok(Self {
            buffer: parse_slice(slice)?,
            non_discards: u32::from_be_bytes([*n0, *n1, *n2, *n3]),
        })
    }
}

const fn encode_slice(slice: &RemoteSlice) -> [u8; 16] {
    let [l0, l1, l2, l3] = slice.len.to_be_bytes();
    let [k0, k1, k2, k3] = slice.rkey.0.to_be_bytes();
    let [a0, a1, a2, a3, a4, a5, a6, a7] = slice.addr.to_be_bytes();
    [l0, l1, l2, l3, k0, k1, k2, k3, a0, a1, a2, a3, a4, a5, a6, a7]
}

fn parse_slice(bytes: &[u8; 16]) -> Result<RemoteSlice, Violation> {
    let [l0, l1, l2, l3, k0, k1, k2, k3, a0, a1, a2, a3, a4, a5, a6, a7] = *bytes;
    let len = u32::from_be_bytes([l0, l1, l2, l3]);
    if len == 0 || len > ADVERT_MAX {
        return Err(Violation::AdvertLength { len });
    }
    Ok(RemoteSlice {
        addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        len,
        rkey: Rkey(u32::from_be_bytes([k0, k1, k2, k3])),
    })
}

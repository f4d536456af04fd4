//! Connection manager: private data, events, refusals.

/// Largest private data of a connection request (SDP Hello, profile A).
pub const REQUEST_DATA_MAX: usize = 92;
/// Largest private data of a reply (SDP HelloAck).
pub const REPLY_DATA_MAX: usize = 196;

/// Private data with its length; bytes beyond `len` are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; REPLY_DATA_MAX],
    len: u8,
}

impl PrivateData {
    /// Copies `data`; `None` when it is longer than [`REPLY_DATA_MAX`].
    pub fn new(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; REPLY_DATA_MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { bytes, len: data.len() as u8 })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len as usize).unwrap_or(&[])
    }
}

/// Why a connection request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reject {
    /// No process listens on the service.
    InvalidService,
    /// The listener's consumer refused; its code.
    Consumer(u8),
    /// The listener's backlog, a table or the service name is taken.
    Busy,
    /// The peer's identity could not be proven.
    Untrusted,
    /// Private data longer than the message that carries it.
    PrivateDataTooLong,
    /// The request is no longer there: answered, withdrawn or timed out.
    Stale,
}

//! Work requests and completions.

/// The poster's name for a work request, returned in its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// The kind of work that a completion completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// A SEND: the peer's queue pair has taken the message.
    Send,
    /// A one-sided READ: the bytes are in local memory.
    Read,
    /// A one-sided WRITE: the bytes are in the peer's memory.
    Write,
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// Remote key, range or right refused by the peer.
    RemoteAccess,
    /// Local key, range or right refused.
    LocalProtection,
    /// The peer did not answer.
    RetryExceeded,
    /// The queue pair went to the error state before this request ran.
    Flushed,
}

/// A completion queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request.
    pub id: WorkId,
    /// Its kind.
    pub opcode: Opcode,
    /// Its end.
    pub status: Status,
}

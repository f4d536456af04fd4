//! The rules that a peer may break, and where they are stated.

/// A rule of the protocol, or a limit of this implementation, that a message has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rule {
    /// A message ends before its fixed header fields do.
    TooShort,
    /// The version is not 1.
    Version,
    /// A procedure that this version no longer has: `RDMA_MSGP`, or one that it never had.
    Procedure,
    /// `RDMA_DONE`, which no end may send any more.
    Done,
    /// `RDMA_ERROR` sent to a responder.
    ErrorToResponder,
    /// A list or a chunk runs past the end of the message.
    Truncated,
    /// A word that says whether an item follows is neither 0 nor 1.
    Discriminator,
    /// A chunk with more segments than are taken.
    Segments,
    /// More Read chunks than are taken.
    ReadChunks,
    /// More Write chunks than are taken.
    WriteChunks,
    /// The position of a Read chunk is not a multiple of four, or lies beyond the message.
    Position,
    /// The sum of a chunk's lengths is larger than any message that is taken.
    Length,
    /// `RDMA_NOMSG` without a chunk that holds the message.
    NothingToRead,
    /// The XID of the header is not that of the RPC message.
    Xid,
    /// The RPC message is not a call, or its first words are missing.
    NotACall,
    /// More calls at once than credits were granted.
    Credits,
    /// The XID of a call is that of another one that has no reply yet.
    TwiceInFlight,
    /// A result does not fit into the chunk that was given for it.
    WriteChunkTooSmall,
    /// A reply fits neither into a message nor into the chunk that was given for it.
    ReplyTooLong,
    /// A reply has a Read list.
    ReadListInReply,
    /// A reply's chunk is not that of the call, or has more bytes than were offered.
    ReplyChunk,
    /// A responder has refused a call by `ERR_VERS`.
    ErrVers,
    /// A responder has refused a call by `ERR_CHUNK`.
    ErrChunk,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 23] = [
        Self::TooShort,
        Self::Version,
        Self::Procedure,
        Self::Done,
        Self::ErrorToResponder,
        Self::Truncated,
        Self::Discriminator,
        Self::Segments,
        Self::ReadChunks,
        Self::WriteChunks,
        Self::Position,
        Self::Length,
        Self::NothingToRead,
        Self::Xid,
        Self::NotACall,
        Self::Credits,
        Self::TwiceInFlight,
        Self::WriteChunkTooSmall,
        Self::ReplyTooLong,
        Self::ReadListInReply,
        Self::ReplyChunk,
        Self::ErrVers,
        Self::ErrChunk,
    ];

    /// A short name for tables and counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too-short",
            Self::Version => "version",
            Self::Procedure => "procedure",
            Self::Done => "done",
            Self::ErrorToResponder => "error-to-responder",
            Self::Truncated => "truncated",
            Self::Discriminator => "discriminator",
            Self::Segments => "segments",
            Self::ReadChunks => "read-chunks",
            Self::WriteChunks => "write-chunks",
            Self::Position => "position",
            Self::Length => "length",
            Self::NothingToRead => "nothing-to-read",
            Self::Xid => "xid",
            Self::NotACall => "not-a-call",
            Self::Credits => "credits",
            Self::TwiceInFlight => "twice-in-flight",
            Self::WriteChunkTooSmall => "write-chunk-too-small",
            Self::ReplyTooLong => "reply-too-long",
            Self::ReadListInReply => "read-list-in-reply",
            Self::ReplyChunk => "reply-chunk",
            Self::ErrVers => "err-vers",
            Self::ErrChunk => "err-chunk",
        }
    }

    /// The section that states it.
    pub const fn section(self) -> &'static str {
        match self {
            Self::TooShort => "RFC 8166, 4.2",
            Self::Version => "RFC 8166, 4.5.1",
            Self::Procedure => "RFC 8166, 4.2.4 and 4.6.1",
            Self::Done => "RFC 8166, 4.6.2",
            Self::ErrorToResponder => "RFC 8166, 4.5",
            Self::Truncated | Self::Discriminator => "RFC 8166, 4.5.2",
            Self::Segments => "RFC 8166, 4.3, and a limit of this implementation",
            Self::ReadChunks => "RFC 8166, 4.3.1, and RFC 8267, 4",
            Self::WriteChunks => "RFC 8166, 4.3.2, and RFC 8267, 4",
            Self::Position => "RFC 8166, 3.4.5",
            Self::Length => "RFC 8166, 3.5, and a limit of this implementation",
            Self::NothingToRead => "RFC 8166, 3.5.3",
            Self::Xid => "RFC 8166, 4.2.1",
            Self::NotACall => "RFC 8166, 4.5.2, and RFC 8167, 4",
            Self::Credits => "RFC 8166, 3.3.1",
            Self::TwiceInFlight => "RFC 8166, 4.2.1, and RFC 5531, 9",
            Self::WriteChunkTooSmall => "RFC 8166, 3.4.6 and 4.5.3",
            Self::ReplyTooLong => "RFC 8166, 3.5.3 and 4.5.3",
            Self::ReadListInReply => "RFC 8166, 4.3.1",
            Self::ReplyChunk => "RFC 8166, 4.3.3",
            Self::ErrVers => "RFC 8166, 4.5.1",
            Self::ErrChunk => "RFC 8166, 4.5.2 and 4.5.3",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_a_section() {
        for (at, rule) in Rule::ALL.iter().enumerate() {
            assert_eq!(*rule as usize, at);
            assert!(rule.section().starts_with("RFC "), "{rule:?}");
            let same = Rule::ALL.iter().filter(|other| other.name() == rule.name());
            assert_eq!(same.count(), 1, "{rule:?}");
        }
    }
}

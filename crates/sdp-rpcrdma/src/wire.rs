//! Transport headers: words of 32 bits, most significant byte first (RFC 8166, 4).

use crate::{
    rpc::{roundup, word},
    rule::Rule,
};

/// Segments of a chunk that are taken at most. Linux sends up to 11.
pub const SEGMENTS_MAX: usize = 32;
/// Read chunks that are taken at most: one at position zero, one at another (RFC 8267, 4).
pub const READ_CHUNKS_MAX: usize = 2;
/// Bytes of a header with empty lists.
pub const HEADER: usize = 28;
/// Bytes of the shortest message that a requester looks at.
const ERROR_LEAST: usize = 16;
/// Bytes of the longest header that is made here: one Write chunk and a Reply chunk.
pub const HEADER_MAX: usize = HEADER + 2 * (8 + 16 * SEGMENTS_MAX);
/// Bytes of the longest header that is taken; the rest of a message need not be looked at.
pub const HEADER_TAKEN: usize = HEADER_MAX + READ_CHUNKS_MAX * SEGMENTS_MAX * 24;
/// The version.
pub const VERSION: u32 = 1;

/// `RDMA_MSG`: the RPC message follows.
const MSG: u32 = 0;
/// `RDMA_NOMSG`: it is in a chunk.
const NOMSG: u32 = 1;
/// `RDMA_DONE`, of earlier days.
const DONE: u32 = 3;
/// `RDMA_ERROR`.
const ERROR: u32 = 4;
/// `ERR_VERS`.
const ERR_VERS: u32 = 1;
/// `ERR_CHUNK`.
const ERR_CHUNK: u32 = 2;

/// Memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// The key.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
    /// The address, in the peer's terms.
    pub offset: u64,
}

/// Segments that hold one item, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    segments: [Segment; SEGMENTS_MAX],
    count: u8,
}

impl Chunk {
    /// One without segments.
    pub const EMPTY: Self =
        Self { segments: [Segment { handle: 0, length: 0, offset: 0 }; SEGMENTS_MAX], count: 0 };

    /// One of one segment.
    pub const fn of(segment: Segment) -> Self {
        let mut chunk = Self::EMPTY;
        chunk.segments[0] = segment;
        chunk.count = 1;
        chunk
    }

    /// Adds a segment.
    ///
    /// # Errors
    /// There are [`SEGMENTS_MAX`].
    pub fn push(&mut self, segment: Segment) -> Result<(), Rule> {
        let place = self.segments.get_mut(usize::from(self.count)).ok_or(Rule::Segments)?;
        *place = segment;
        self.count += 1;
        Ok(())
    }

    /// The segments.
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Bytes in all; no sum of so few 32-bit numbers overflows.
    pub fn total(&self) -> u64 {
        self.segments().iter().map(|segment| u64::from(segment.length)).sum()
    }

    /// Bytes of the chunk in a Write list or as a Reply chunk.
    fn encoded(&self) -> usize {
        8 + 16 * self.segments().len()
    }
}

/// An item of a call that is in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadChunk {
    /// Its place in the RPC message.
    pub position: u32,
    /// Where it is.
    pub chunk: Chunk,
}

/// The three lists of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lists {
    /// In rising order of positions.
    reads: [Option<ReadChunk>; READ_CHUNKS_MAX],
    /// Room for a result.
    pub write: Option<Chunk>,
    /// Room for a whole reply.
    pub reply: Option<Chunk>,
}

impl Lists {
    /// None of them.
    pub const EMPTY: Self = Self { reads: [None; READ_CHUNKS_MAX], write: None, reply: None };

    /// Items that are to be read, in rising order of positions.
    pub fn reads(&self) -> impl Iterator<Item = &ReadChunk> {
        self.reads.iter().flatten()
    }

    /// Bytes that are to be read.
    pub fn to_read(&self) -> u64 {
        self.reads().map(|read| read.chunk.total()).sum()
    }

    /// Whether all three are empty.
    pub fn are_empty(&self) -> bool {
        self.reads().next().is_none() && self.write.is_none() && self.reply.is_none()
    }

    fn add_read(&mut self, position: u32, segment: Segment) -> Result<(), Rule> {
        let same = |read: &&mut ReadChunk| read.position == position;
        if let Some(read) = self.reads.iter_mut().flatten().find(same) {
            return read.chunk.push(segment);
        }
        let mut chunk = Chunk::EMPTY;
        chunk.push(segment)?;
        let place = self.reads.iter_mut().find(|read| read.is_none()).ok_or(Rule::ReadChunks)?;
        *place = Some(ReadChunk { position, chunk });
        if let [Some(first), Some(second)] = &mut self.reads
            && first.position > second.position
        {
            core::mem::swap(first, second);
        }
        Ok(())
    }
}

/// A header that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The XID, of the RPC message too.
    pub xid: u32,
    /// Credits that are asked for or granted; never 0.
    pub credits: u32,
    /// The RPC message is not behind the header but in a chunk.
    pub is_nomsg: bool,
    /// The lists.
    pub lists: Lists,
    /// Bytes of the header.
    pub len: usize,
}

/// What becomes of a message that was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The message is dropped.
    Drop(Rule),
    /// The message is answered with `ERR_VERS`; the version is echoed.
    Version(u32, u32),
    /// The message is answered with `ERR_CHUNK`, by its XID.
    Chunk(u32, Rule),
}

impl Refusal {
    /// The rule that was broken.
    pub const fn rule(&self) -> Rule {
        match self {
            Self::Version(..) => Rule::Version,
            Self::Drop(rule) | Self::Chunk(_, rule) => *rule,
        }
    }
}

/// Reads words, and never past the end.
struct Reader<'a> {
    bytes: &'a [u8],
    index: usize,
}

impl Reader<'_> {
    fn word(&mut self) -> Result<u32, Rule> {
        let word = word(self.bytes, self.index).ok_or(Rule::Truncated)?;
        self.index += 1;
        Ok(word)
    }

    /// Whether an item follows.
    fn follows(&mut self) -> Result<bool, Rule> {
        match self.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Rule::Discriminator),
        }
    }

    fn segment(&mut self) -> Result<Segment, Rule> {
        let (handle, length) = (self.word()?, self.word()?);
        let offset = u64::from(self.word()?) << 32 | u64::from(self.word()?);
        Ok(Segment { handle, length, offset })
    }

    /// A Write or Reply chunk. Its count is compared with what is left before anything is kept.
    fn chunk(&mut self) -> Result<Chunk, Rule> {
        let count = self.word()? as usize;
        let left = (self.bytes.len() / 4).saturating_sub(self.index);
        if count > left / 4 {
            return Err(Rule::Truncated);
        }
        let mut chunk = Chunk::EMPTY;
        for _ in 0..count {
            chunk.push(self.segment()?)?;
        }
        Ok(chunk)
    }

    fn lists(&mut self) -> Result<Lists, Rule> {
        let mut lists = Lists::EMPTY;
        while self.follows()? {
            let position = self.word()?;
            let segment = self.segment()?;
            lists.add_read(position, segment)?;
        }
        while self.follows()? {
            let chunk = self.chunk()?;
            if lists.write.replace(chunk).is_some() {
                return Err(Rule::WriteChunks);
            }
        }
        if self.follows()? {
            lists.reply = Some(self.chunk()?);
        }
        Ok(lists)
    }
}

/// Decodes the header of a message that came to a responder. `len` is the length of the message, of
/// which `bytes` has the beginning ([`HEADER_TAKEN`], or all of it); a call may have `most` bytes.
///
/// # Errors
/// What becomes of the message.
pub fn decode(bytes: &[u8], len: usize, most: u32) -> Result<Header, Refusal> {
    if bytes.len() < HEADER || len < bytes.len() {
        return Err(Refusal::Drop(Rule::TooShort));
    }
    let mut reader = Reader { bytes, index: 0 };
    let mut fixed = [0; 4];
    for place in &mut fixed {
        *place = reader.word().map_err(Refusal::Drop)?;
    }
    let [xid, version, credits, procedure] = fixed;
    if version != VERSION {
        return Err(Refusal::Version(xid, version));
    }
    let refuse = |rule| Refusal::Chunk(xid, rule);
    let is_nomsg = match procedure {
        MSG => false,
        NOMSG => true,
        DONE => return Err(Refusal::Drop(Rule::Done)),
        ERROR => return Err(Refusal::Drop(Rule::ErrorToResponder)),
        _ => return Err(refuse(Rule::Procedure)),
    };
    let lists = reader.lists().map_err(refuse)?;
    let header = Header { xid, credits: credits.max(1), is_nomsg, lists, len: 4 * reader.index };
    check(&header, len, most).map_err(refuse)?;
    Ok(header)
}

/// What came to a requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is looked at once, and never kept")]
pub enum Replied {
    /// A reply, or a call in the other direction.
    Header(Header),
    /// An error in the place of a reply (RFC 8166, 4.5): its XID, credits, and the rule that the
    /// responder says was broken.
    Error(u32, u32, Rule),
}

/// Decodes the header of a message of `len` bytes that came to a requester, of which `bytes` has the
/// beginning ([`HEADER_TAKEN`], or all of it).
///
/// # Errors
/// The rule that was broken, and the XID if the message has one.
pub fn decode_reply(bytes: &[u8], len: usize) -> Result<Replied, (Option<u32>, Rule)> {
    // An error is shorter than a header with its lists.
    if bytes.len() < ERROR_LEAST || len < bytes.len() {
        return Err((None, Rule::TooShort));
    }
    let mut reader = Reader { bytes, index: 0 };
    let mut fixed = [0; 4];
    for place in &mut fixed {
        *place = reader.word().map_err(|rule| (None, rule))?;
    }
    let [xid, version, credits, procedure] = fixed;
    // A responder that has no version 1 echoes ours, so another one is nobody's.
    if version != VERSION {
        return Err((None, Rule::Version));
    }
    let credits = credits.max(1);
    let wrong = |rule| (Some(xid), rule);
    let is_nomsg = match procedure {
        MSG => false,
        NOMSG => true,
        DONE => return Err((None, Rule::Done)),
        ERROR => {
            let rule = match reader.word().map_err(wrong)? {
                ERR_VERS => Rule::ErrVers,
                _ => Rule::ErrChunk,
            };
            return Ok(Replied::Error(xid, credits, rule));
        }
        _ => return Err(wrong(Rule::Procedure)),
    };
    let lists = reader.lists().map_err(wrong)?;
    Ok(Replied::Header(Header { xid, credits, is_nomsg, lists, len: 4 * reader.index }))
}

/// The rules between a header's parts.
fn check(header: &Header, len: usize, most: u32) -> Result<(), Rule> {
    let lists = &header.lists;
    let at_zero = lists.reads().filter(|read| read.position == 0).count();
    if lists.reads().count() - at_zero > 1 {
        return Err(Rule::ReadChunks);
    }
    let inline = if header.is_nomsg { 0 } else { len.saturating_sub(header.len) as u64 };
    if lists.to_read() + inline + 8 > u64::from(most) {
        return Err(Rule::Length);
    }
    let base = match lists.reads().next() {
        Some(first) if header.is_nomsg && first.position == 0 => first.chunk.total(),
        _ if header.is_nomsg => return Err(Rule::NothingToRead),
        _ => inline,
    };
    if header.is_nomsg && base == 0 {
        return Err(Rule::NothingToRead);
    }
    // Position zero is that of a whole message.
    if !header.is_nomsg && at_zero != 0 {
        return Err(Rule::Position);
    }
    let is_wrong =
        |read: &ReadChunk| roundup(read.position) != 0 || u64::from(read.position) > base;
    if lists.reads().any(is_wrong) { Err(Rule::Position) } else { Ok(()) }
}

/// A header, or an answer, as it travels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes<const ROOM: usize = HEADER_MAX> {
    bytes: [u8; ROOM],
    len: usize,
}

/// An error, in the place of a reply.
pub type Answer = Bytes<HEADER>;

impl<const ROOM: usize> core::fmt::Debug for Bytes<ROOM> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl<const ROOM: usize> Bytes<ROOM> {
    const fn new() -> Self {
        Self { bytes: [0; ROOM], len: 0 }
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            if let Some(place) = self.bytes.get_mut(self.len..self.len + 4) {
                place.copy_from_slice(&word.to_be_bytes());
                self.len += 4;
            }
        }
    }

    fn chunk(&mut self, chunk: &Chunk) {
        self.words(&[1, chunk.segments().len() as u32]);
        chunk.segments().iter().for_each(|segment| self.segment(segment));
    }

    fn segment(&mut self, segment: &Segment) {
        let (high, low) = ((segment.offset >> 32) as u32, segment.offset as u32);
        self.words(&[segment.handle, segment.length, high, low]);
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Bytes of a reply's header, or of a call's in the other direction.
pub fn encoded_len(write: Option<&Chunk>, reply: Option<&Chunk>) -> usize {
    let write = write.map_or(0, Chunk::encoded);
    HEADER + write + reply.map_or(0, |chunk| chunk.encoded() - 4)
}

/// A reply's header, or a call's in the other direction, whose lists are empty.
pub fn encode(
    xid: u32,
    credits: u32,
    is_nomsg: bool,
    write: Option<&Chunk>,
    reply: Option<&Chunk>,
) -> Bytes {
    encode_all(xid, credits, is_nomsg, None, write, reply)
}

/// The header of a call: the whole call is in `whole`, or behind the header; the reply may go into
/// `reply`.
pub fn encode_call(
    xid: u32,
    credits: u32,
    whole: Option<Segment>,
    reply: Option<Segment>,
) -> Bytes {
    let chunk = reply.map(Chunk::of);
    encode_all(xid, credits, whole.is_some(), whole, None, chunk.as_ref())
}

/// Bytes of such a header.
pub const fn call_len(has_whole: bool, has_reply: bool) -> usize {
    // Discriminator, position, segment; and in the place of a zero: one, count, segment.
    let whole = if has_whole { 24 } else { 0 };
    HEADER + whole + if has_reply { 4 + 16 } else { 0 }
}

fn encode_all(
    xid: u32,
    credits: u32,
    is_nomsg: bool,
    whole: Option<Segment>,
    write: Option<&Chunk>,
    reply: Option<&Chunk>,
) -> Bytes {
    let mut bytes = Bytes::new();
    bytes.words(&[xid, VERSION, credits, if is_nomsg { NOMSG } else { MSG }]);
    if let Some(segment) = whole {
        // At position zero.
        bytes.words(&[1, 0]);
        bytes.segment(&segment);
    }
    bytes.words(&[0]);
    if let Some(chunk) = write {
        bytes.chunk(chunk);
    }
    bytes.words(&[0]);
    match reply {
        Some(chunk) => bytes.chunk(chunk),
        None => bytes.words(&[0]),
    }
    bytes
}

/// The answer to a header of another version, which is echoed.
pub fn version_error(xid: u32, version: u32, credits: u32) -> Answer {
    let mut bytes = Answer::new();
    bytes.words(&[xid, version, credits, ERROR, ERR_VERS, VERSION, VERSION]);
    bytes
}

/// The answer to a header that cannot be taken, or in the place of a reply that cannot be given.
pub fn chunk_error(xid: u32, credits: u32) -> Answer {
    let mut bytes = Answer::new();
    bytes.words(&[xid, VERSION, credits, ERROR, ERR_CHUNK]);
    bytes
}

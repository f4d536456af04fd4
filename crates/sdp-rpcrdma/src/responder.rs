//! The server's side of a connection: which calls may come, where their parts are, and which form
//! a reply takes.
//!
//! Its user receives messages, moves bytes by RDMA Read and Write, and hands whole RPC messages to
//! a server and back. This machine says what to do, and remembers the calls that have no reply yet.
//! Nothing depends on the order in which replies come.

use alloc::vec::Vec;

use crate::{
    private_data::Offer,
    results,
    rpc::{CALLBACKS_MAX, Direction, Target, direction, roundup},
    rule::Rule,
    wire::{self, Answer, Bytes, Chunk, Header, Refusal, Segment, decode},
};

/// Beside the chunks that a call offers, a reply has room for so many bytes.
pub const REPLY_ROOM: u32 = 4096;

/// What holds for a connection as long as it lives.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Calls that may be without a reply. As many receive buffers are posted.
    pub credits: u32,
    /// What this end said.
    pub ours: Offer,
    /// What the peer said.
    pub theirs: Offer,
    /// Bytes of the longest RPC message.
    pub most: u32,
}

/// A call that may be forwarded when there are buffers for it.
#[derive(Debug, Clone, Copy)]
pub struct Incoming {
    header: Header,
    /// Bytes of the message behind the header.
    inline: u32,
    most: u32,
}

/// A part of a call, and its place in the RPC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the received message.
    Inline {
        /// Where they begin there.
        from: u32,
        /// Their place.
        to: u32,
        /// How many.
        len: u32,
    },
    /// Bytes of the peer's memory.
    Read {
        /// Where they are.
        segment: Segment,
        /// Their place.
        to: u32,
    },
    /// Zeros.
    Pad {
        /// Their place.
        to: u32,
        /// How many.
        len: u32,
    },
}

impl Incoming {
    /// Its XID.
    pub const fn xid(&self) -> u32 {
        self.header.xid
    }

    /// Whether it has chunks of any kind.
    pub fn has_chunks(&self) -> bool {
        !self.header.lists.are_empty()
    }

    /// Whether parts of it, or all of it, are to be read.
    pub fn has_reads(&self) -> bool {
        self.header.lists.reads().next().is_some()
    }

    /// Whether all of it is to be read.
    pub const fn is_long(&self) -> bool {
        self.header.is_nomsg
    }

    /// Bytes of the whole RPC message.
    pub fn len(&self) -> u32 {
        let pads: u64 = self.inserted().map_or(0, |read| pad_of(&read.chunk));
        let inline = if self.header.is_nomsg { 0 } else { u64::from(self.inline) };
        // The decoder has compared the sum with the longest message.
        (self.header.lists.to_read() + inline + pads) as u32
    }

    /// Never: a call has at least the words that name it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that a reply may have: what the call's chunks can take, and [`REPLY_ROOM`].
    pub fn reply_room(&self) -> u32 {
        let lists = &self.header.lists;
        let of = |chunk: &Option<Chunk>| chunk.as_ref().map_or(0, Chunk::total);
        let offered = of(&lists.write) + of(&lists.reply);
        offered.min(u64::from(self.most)) as u32 + REPLY_ROOM
    }

    /// The item that goes into the middle of the message.
    fn inserted(&self) -> Option<&wire::ReadChunk> {
        self.header.lists.reads().find(|read| read.position != 0)
    }

    /// The parts of the RPC message; those that are to be read in the order of the list.
    pub fn pieces(&self, mut each: impl FnMut(Piece)) {
        let (at, gap) = match self.inserted() {
            Some(read) => {
                let total = (read.chunk.total() + pad_of(&read.chunk)) as u32;
                (read.position, total)
            }
            None => (u32::MAX, 0),
        };
        if self.header.is_nomsg {
            let base = self.header.lists.reads().find(|read| read.position == 0);
            let mut from = 0u32;
            for segment in base.iter().flat_map(|read| read.chunk.segments()) {
                each_side(at, gap, from, segment.length, |skip, to, len| {
                    let offset = segment.offset.wrapping_add(u64::from(skip));
                    let segment = Segment { length: len, offset, ..*segment };
                    each(Piece::Read { segment, to });
                });
                from = from.saturating_add(segment.length);
            }
        } else {
            let header = self.header.len as u32;
            each_side(at, gap, 0, self.inline, |skip, to, len| {
                each(Piece::Inline { from: header + skip, to, len });
            });
        }
        if let Some(read) = self.inserted() {
            let mut to = at;
            for segment in read.chunk.segments().iter().filter(|segment| segment.length != 0) {
                each(Piece::Read { segment: *segment, to });
                to += segment.length;
            }
            let len = pad_of(&read.chunk) as u32;
            if len != 0 {
                each(Piece::Pad { to, len });
            }
        }
    }
}

/// Cuts a run of bytes at `at`, behind which it is moved by `gap`: bytes skipped, place, length.
fn each_side(at: u32, gap: u32, from: u32, len: u32, mut each: impl FnMut(u32, u32, u32)) {
    let before = at.saturating_sub(from).min(len);
    if before != 0 {
        each(0, from, before);
    }
    if before != len {
        each(before, from + before + gap, len - before);
    }
}

fn pad_of(chunk: &Chunk) -> u64 {
    // The position is a multiple of four, and so is what stands before the chunk.
    u64::from(roundup((chunk.total() & 3) as u32))
}

/// What a message is.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::large_enum_variant, reason = "it is looked at once, and never kept")]
pub enum Arrival {
    /// A call: [`Responder::begin`] takes it.
    Call(Incoming),
    /// The client's answer to a callback, which begins there in the message.
    CallbackReply(usize),
    /// The message is dropped.
    Drop(Rule),
    /// The message is answered with this.
    Refuse(Answer, Rule),
}

/// A call without a reply.
#[derive(Debug, Clone, Copy)]
struct Call {
    xid: u32,
    write: Option<Chunk>,
    reply: Option<Chunk>,
    /// The one key of all its segments.
    handle: Option<u32>,
    target: Option<Target>,
}

/// How a reply goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In the message.
    Inline,
    /// In the message, but for its result, which is in the Write chunk.
    Reduced,
    /// In the Reply chunk.
    Long,
}

/// A reply's message: the header, and behind it these bytes of the RPC message.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    /// The header.
    pub header: Bytes,
    /// Two ranges of the RPC message: begin and length.
    pub inline: [(u32, u32); 2],
    /// How it goes.
    pub form: Form,
    /// A key that the Send may invalidate.
    pub invalidate: Option<u32>,
}

/// A transfer into the peer's memory, before the reply's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Where the bytes begin in the RPC message.
    pub from: u32,
    /// Where they go, and how many.
    pub segment: Segment,
}

/// A connection's responder.
#[derive(Debug)]
pub struct Responder {
    settings: Settings,
    calls: Vec<Option<Call>>,
    callbacks: [Option<u32>; CALLBACKS_MAX],
}

impl Responder {
    /// For a new connection.
    pub fn new(settings: Settings) -> Self {
        let mut calls = Vec::new();
        calls.resize(settings.credits.max(1) as usize, None);
        Self { settings, calls, callbacks: [None; CALLBACKS_MAX] }
    }

    /// Calls that may be without a reply.
    pub fn credits(&self) -> u32 {
        self.calls.len() as u32
    }

    /// Bytes of the longest message that may be sent: the smaller of what this end sends and what
    /// the peer takes (RFC 8797, 4).
    pub fn reply_limit(&self) -> u32 {
        self.settings.ours.sends.min(self.settings.theirs.receives)
    }

    /// Calls that have no reply.
    pub fn in_flight(&self) -> usize {
        self.calls.iter().flatten().count()
    }

    /// Looks at a message of `len` bytes, of which `bytes` has the beginning
    /// ([`wire::HEADER_TAKEN`] + [`Target::BYTES`], or all of it). Nothing is remembered but that a
    /// callback was answered.
    pub fn arrive(&mut self, bytes: &[u8], len: usize) -> Arrival {
        let header = match decode(bytes, len, self.settings.most) {
            Ok(header) => header,
            Err(refusal) => return self.refused(&refusal),
        };
        let incoming = Incoming {
            header,
            inline: len.saturating_sub(header.len) as u32,
            most: self.settings.most,
        };
        if header.is_nomsg {
            return Arrival::Call(incoming);
        }
        let message = bytes.get(header.len..).unwrap_or(&[]);
        match direction(message) {
            Some((xid, Direction::Reply)) if header.lists.are_empty() => {
                let is_its = |callback: &&mut Option<u32>| **callback == Some(xid);
                match self.callbacks.iter_mut().find(is_its) {
                    Some(callback) => {
                        *callback = None;
                        Arrival::CallbackReply(header.len)
                    }
                    None => Arrival::Drop(Rule::Xid),
                }
            }
            Some((xid, Direction::Call)) if xid == header.xid => Arrival::Call(incoming),
            Some((_, Direction::Call)) => self.refuse(header.xid, Rule::Xid),
            _ => self.refuse(header.xid, Rule::NotACall),
        }
    }

    fn refused(&self, refusal: &Refusal) -> Arrival {
        match *refusal {
            Refusal::Drop(rule) => Arrival::Drop(rule),
            Refusal::Version(xid, version) => {
                let answer = wire::version_error(xid, version, self.credits());
                Arrival::Refuse(answer, Rule::Version)
            }
            Refusal::Chunk(xid, rule) => self.refuse(xid, rule),
        }
    }

    fn refuse(&self, xid: u32, rule: Rule) -> Arrival {
        Arrival::Refuse(wire::chunk_error(xid, self.credits()), rule)
    }

    /// Takes a call; its name until the reply.
    ///
    /// # Errors
    /// The peer has broken a rule that ends the connection.
    pub fn begin(&mut self, incoming: &Incoming) -> Result<usize, Rule> {
        if self.find(incoming.xid()).is_some() {
            return Err(Rule::TwiceInFlight);
        }
        let free = self.calls.iter().position(Option::is_none).ok_or(Rule::Credits)?;
        let lists = &incoming.header.lists;
        let chunks = lists.reads().map(|read| &read.chunk).chain(&lists.write).chain(&lists.reply);
        let mut handles = chunks.flat_map(|chunk| chunk.segments()).map(|segment| segment.handle);
        let first = handles.next();
        let handle = first.filter(|first| handles.all(|handle| handle == *first));
        let (xid, write, reply) = (incoming.xid(), lists.write, lists.reply);
        if let Some(place) = self.calls.get_mut(free) {
            *place = Some(Call { xid, write, reply, handle, target: None });
        }
        Ok(free)
    }

    /// The whole call is there and begins with these bytes ([`Target::BYTES`] at least): whether it
    /// is a call of that XID, and may be forwarded.
    ///
    /// # Errors
    /// The message is answered with this instead, and forgotten.
    pub fn complete(&mut self, slot: usize, bytes: &[u8]) -> Result<(), (Answer, Rule)> {
        let credits = self.credits();
        let Some(Some(call)) = self.calls.get_mut(slot) else {
            return Err((wire::chunk_error(0, credits), Rule::Xid));
        };
        let xid = call.xid;
        let rule = match direction(bytes) {
            Some((found, Direction::Call)) if found == xid => {
                call.target = Target::of(bytes);
                return Ok(());
            }
            Some((_, Direction::Call)) => Rule::Xid,
            _ => Rule::NotACall,
        };
        self.forget(slot);
        Err((wire::chunk_error(xid, credits), rule))
    }

    /// The call without a reply that has this XID.
    pub fn find(&self, xid: u32) -> Option<usize> {
        self.calls.iter().position(|call| call.is_some_and(|call| call.xid == xid))
    }

    /// Forgets a call that gets no reply.
    pub fn forget(&mut self, slot: usize) {
        if let Some(place) = self.calls.get_mut(slot) {
            *place = None;
        }
    }

    /// The form of a reply (RFC 8166, 3.5), whose RPC message is given whole. `transfer` gets what is
    /// written into the peer's memory, in order; the message goes behind that. The call is done.
    ///
    /// # Errors
    /// It cannot be given: an answer in its place.
    pub fn reply(
        &mut self,
        slot: usize,
        message: &[u8],
        mut transfer: impl FnMut(Transfer),
    ) -> Result<Reply, (Answer, Rule)> {
        let credits = self.credits();
        let limit = u64::from(self.reply_limit());
        let may_invalidate = self.settings.theirs.remote_invalidation;
        let Some(call) = self.calls.get_mut(slot).and_then(Option::take) else {
            return Err((wire::chunk_error(0, credits), Rule::Xid));
        };
        let fail = |rule| Err((wire::chunk_error(call.xid, credits), rule));
        let Ok(len) = u32::try_from(message.len()) else { return fail(Rule::ReplyTooLong) };
        let offered = call.write.filter(|chunk| chunk.total() != 0);
        let place = match (&offered, call.target) {
            (Some(_), Some(target)) => results::place_of(target, message).ok(),
            _ => None,
        };
        // The result goes where the client wants it, and not in part.
        let (kept, write) = match (place, offered) {
            (Some(place), Some(mut chunk)) => {
                if u64::from(place.len) > chunk.total() {
                    return fail(Rule::WriteChunkTooSmall);
                }
                fill(&mut chunk, [(place.at, place.len), (0, 0)], &mut transfer);
                let behind = place.at + place.len + roundup(place.len);
                ([(0, place.at), (behind, len.saturating_sub(behind))], Some(chunk))
            }
            _ => ([(0, len), (0, 0)], call.write.map(unused)),
        };
        let left = u64::from(kept[0].1) + u64::from(kept[1].1);
        let invalidate = call.handle.filter(|_| may_invalidate);
        let header_len = wire::encoded_len(write.as_ref(), call.reply.as_ref()) as u64;
        if header_len + left <= limit {
            let reply = call.reply.map(unused);
            let header = wire::encode(call.xid, credits, false, write.as_ref(), reply.as_ref());
            let form = if place.is_some() { Form::Reduced } else { Form::Inline };
            return Ok(Reply { header, inline: kept, form, invalidate });
        }
        match call.reply {
            Some(mut chunk) if chunk.total() >= left && header_len <= limit => {
                fill(&mut chunk, kept, &mut transfer);
                let header = wire::encode(call.xid, credits, true, write.as_ref(), Some(&chunk));
                Ok(Reply { header, inline: [(0, 0); 2], form: Form::Long, invalidate })
            }
            _ => fail(Rule::ReplyTooLong),
        }
    }

    /// The answer in the place of a reply that is longer than there is room for.
    pub fn give_up(&mut self, slot: usize) -> Option<Answer> {
        let call = self.calls.get_mut(slot)?.take()?;
        Some(wire::chunk_error(call.xid, self.credits()))
    }

    /// The header of a callback of `len` bytes (RFC 8167, 5); `None`: it is too long, or there are
    /// [`CALLBACKS_MAX`] without an answer.
    pub fn callback(&mut self, xid: u32, len: usize) -> Option<Bytes> {
        if wire::HEADER + len > self.reply_limit() as usize {
            return None;
        }
        // One that the server sends again is one.
        let known = self.callbacks.iter().position(|callback| *callback == Some(xid));
        let place = known.or_else(|| self.callbacks.iter().position(Option::is_none))?;
        *self.callbacks.get_mut(place)? = Some(xid);
        Some(wire::encode(xid, CALLBACKS_MAX as u32, false, None, None))
    }

    /// Whether a callback may be sent now.
    pub fn may_call_back(&self) -> bool {
        self.callbacks.iter().any(Option::is_none)
    }
}

/// The chunk as it comes back when nothing was written there.
fn unused(mut chunk: Chunk) -> Chunk {
    fill(&mut chunk, [(0, 0); 2], &mut |_| ());
    chunk
}

/// Fills a chunk's segments, each to its end before the next; afterwards its lengths are what was
/// written.
fn fill(chunk: &mut Chunk, sources: [(u32, u32); 2], transfer: &mut impl FnMut(Transfer)) {
    let mut sources = sources.into_iter();
    let (mut from, mut left) = sources.next().unwrap_or_default();
    let mut filled = Chunk::EMPTY;
    for segment in chunk.segments() {
        let mut used = 0;
        while used < segment.length {
            if left == 0 {
                match sources.next() {
                    Some(next) => (from, left) = next,
                    None => break,
                }
                continue;
            }
            let length = left.min(segment.length - used);
            let offset = segment.offset.wrapping_add(u64::from(used));
            transfer(Transfer { from, segment: Segment { length, offset, ..*segment } });
            (used, from, left) = (used + length, from + length, left - length);
        }
        // As many as before.
        let _ = filled.push(Segment { length: used, ..*segment });
    }
    *chunk = filled;
}

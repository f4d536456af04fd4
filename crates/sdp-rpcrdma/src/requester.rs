//! The client's side of a connection: which form a call takes, when it may go, and what a message
//! of the responder's is.
//!
//! Its user has whole RPC messages and memory that the responder may read and write. A call goes in
//! a message where it fits, else as a whole in the user's memory (RFC 8166, 3.5.3): so nothing is
//! known of what it means. A Reply chunk is offered where the reply might not fit into a message.
//! For a new connection there is a new machine: one call until the first grant (RFC 8166, 3.3.3),
//! and the user sends calls without a reply again, with their XIDs.

use alloc::vec::Vec;

use crate::{
    private_data::Offer,
    rpc::{CALLBACKS_MAX, Direction, direction},
    rule::Rule,
    wire::{self, Bytes, Chunk, Header, Replied, Segment, decode_reply},
};

/// What holds for a connection as long as it lives.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Calls that may be without a reply, if as many are granted. As many receive buffers are
    /// posted, and [`CALLBACKS_MAX`] for callbacks.
    pub credits: u32,
    /// What this end said.
    pub ours: Offer,
    /// What the peer said.
    pub theirs: Offer,
}

/// The memory that a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The call goes as a whole in the user's memory.
    pub call: bool,
    /// The reply may come into the user's memory.
    pub reply: bool,
}

/// What a message of the responder's is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A reply, which begins there in the message.
    Reply {
        /// Of the call.
        xid: u32,
        /// Where it begins.
        from: usize,
    },
    /// A reply in the memory that was offered, from its beginning.
    Long {
        /// Of the call.
        xid: u32,
        /// Bytes.
        len: u32,
    },
    /// The call gets no reply: it was refused, or what came is none.
    Failed {
        /// Of the call.
        xid: u32,
        /// Why.
        rule: Rule,
    },
    /// A callback, which begins there in the message.
    Callback(usize),
    /// The message is dropped.
    Drop(Rule),
}

/// A call without a reply.
#[derive(Debug, Clone, Copy)]
struct Call {
    xid: u32,
    reply: Option<Segment>,
}

/// A connection's requester.
#[derive(Debug)]
pub struct Requester {
    settings: Settings,
    granted: u32,
    calls: Vec<Call>,
    callbacks: [Option<u32>; CALLBACKS_MAX],
}

impl Requester {
    /// For a new connection.
    pub fn new(settings: Settings) -> Self {
        let settings = Settings { credits: settings.credits.max(1), ..settings };
        let calls = Vec::with_capacity(settings.credits as usize);
        Self { settings, granted: 1, calls, callbacks: [None; CALLBACKS_MAX] }
    }

    /// Calls that may be without a reply now (RFC 8166, 3.3.1).
    pub fn credits(&self) -> u32 {
        self.granted.min(self.settings.credits)
    }

    /// Calls without a reply.
    pub fn in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Whether a call may go now.
    pub fn may_call(&self) -> bool {
        self.calls.len() < self.credits() as usize
    }

    /// Bytes of the longest message that may be sent: the smaller of what this end sends and what
    /// the peer takes (RFC 8797, 4).
    pub fn call_limit(&self) -> u32 {
        self.settings.ours.sends.min(self.settings.theirs.receives)
    }

    /// Bytes of the longest message that the peer may send.
    pub fn reply_limit(&self) -> u32 {
        self.settings.theirs.sends.min(self.settings.ours.receives)
    }

    /// What a call of `len` bytes needs whose reply has at most `reply` bytes.
    pub fn needs(&self, len: u32, reply: u32) -> Needs {
        let fits = |header: usize, len: u32, limit: u32| {
            header as u64 + u64::from(len) <= u64::from(limit)
        };
        let needs_reply = !fits(wire::HEADER, reply, self.reply_limit());
        let needs_call = !fits(wire::call_len(false, needs_reply), len, self.call_limit());
        Needs { call: needs_call, reply: needs_reply }
    }

    /// Takes a call of `len` bytes: its header, with the call behind it if `whole` is not given.
    ///
    /// # Errors
    /// It may not go now ([`Rule::Credits`]), its XID is that of another one without a reply, or it
    /// does not fit.
    pub fn call(
        &mut self,
        xid: u32,
        len: u32,
        whole: Option<Segment>,
        reply: Option<Segment>,
    ) -> Result<Bytes, Rule> {
        if self.calls.iter().any(|call| call.xid == xid) {
            return Err(Rule::TwiceInFlight);
        }
        if !self.may_call() {
            return Err(Rule::Credits);
        }
        let inline = if whole.is_some() { 0 } else { len as usize };
        let header = wire::call_len(whole.is_some(), reply.is_some());
        if header + inline > self.call_limit() as usize {
            return Err(Rule::Length);
        }
        self.calls.push(Call { xid, reply });
        let whole = whole.map(|segment| Segment { length: len, ..segment });
        Ok(wire::encode_call(xid, self.settings.credits, whole, reply))
    }

    /// Looks at a message of `len` bytes, of which `bytes` has the beginning
    /// ([`wire::HEADER_TAKEN`] and 8 more, or all of it). A call that gets its reply, or none, is
    /// done.
    pub fn arrive(&mut self, bytes: &[u8], len: usize) -> Arrival {
        let header = match decode_reply(bytes, len) {
            Ok(Replied::Header(header)) => header,
            Ok(Replied::Error(xid, credits, rule)) => {
                let arrival = self.fail(xid, rule);
                // Of a stranger's message nothing is believed.
                if matches!(arrival, Arrival::Failed { .. }) {
                    self.granted = credits;
                }
                return arrival;
            }
            Err((Some(xid), rule)) => return self.fail(xid, rule),
            Err((None, rule)) => return Arrival::Drop(rule),
        };
        let message = bytes.get(header.len..).unwrap_or(&[]);
        let what = if header.is_nomsg { None } else { direction(message) };
        if let Some((xid, Direction::Call)) = what
            && header.lists.are_empty()
        {
            return self.callback(xid, header);
        }
        let Some(at) = self.calls.iter().position(|call| call.xid == header.xid) else {
            return Arrival::Drop(Rule::Xid);
        };
        self.granted = header.credits;
        let Call { xid, reply } = self.calls.swap_remove(at);
        match Self::judge(&header, reply, what) {
            Ok(Some(len)) => Arrival::Long { xid, len },
            Ok(None) => Arrival::Reply { xid, from: header.len },
            Err(rule) => Arrival::Failed { xid, rule },
        }
    }

    /// A reply to a call that offered this: its bytes in the memory offered, or `None`.
    fn judge(
        header: &Header,
        offered: Option<Segment>,
        what: Option<(u32, Direction)>,
    ) -> Result<Option<u32>, Rule> {
        let lists = &header.lists;
        if lists.reads().next().is_some() {
            return Err(Rule::ReadListInReply);
        }
        // None was offered.
        if lists.write.as_ref().is_some_and(|chunk| !chunk.segments().is_empty()) {
            return Err(Rule::WriteChunks);
        }
        let used = match (&lists.reply, offered) {
            (None, _) => 0,
            (Some(chunk), Some(offered)) => used(chunk, offered)?,
            (Some(chunk), None) if chunk.segments().is_empty() => 0,
            (Some(_), None) => return Err(Rule::ReplyChunk),
        };
        match (header.is_nomsg, what) {
            (true, _) if used >= 8 => Ok(Some(used)),
            (true, _) => Err(Rule::NothingToRead),
            (false, _) if used != 0 => Err(Rule::ReplyChunk),
            (false, Some((xid, Direction::Reply))) if xid == header.xid => Ok(None),
            (false, Some((_, Direction::Reply))) => Err(Rule::Xid),
            (false, _) => Err(Rule::NotACall),
        }
    }

    fn fail(&mut self, xid: u32, rule: Rule) -> Arrival {
        match self.calls.iter().position(|call| call.xid == xid) {
            Some(at) => {
                self.calls.swap_remove(at);
                Arrival::Failed { xid, rule }
            }
            None => Arrival::Drop(rule),
        }
    }

    fn callback(&mut self, xid: u32, header: Header) -> Arrival {
        if xid != header.xid {
            return Arrival::Drop(Rule::Xid);
        }
        if self.callbacks.contains(&Some(xid)) {
            return Arrival::Drop(Rule::TwiceInFlight);
        }
        match self.callbacks.iter_mut().find(|callback| callback.is_none()) {
            Some(place) => {
                *place = Some(xid);
                Arrival::Callback(header.len)
            }
            None => Arrival::Drop(Rule::Credits),
        }
    }

    /// The header of the answer of `len` bytes to a callback (RFC 8167, 5); `None`: there is no such
    /// callback, or the answer does not fit.
    pub fn callback_reply(&mut self, xid: u32, len: usize) -> Option<Bytes> {
        let is_its = |callback: &&mut Option<u32>| **callback == Some(xid);
        let place = self.callbacks.iter_mut().find(is_its)?;
        *place = None;
        let fits = wire::HEADER + len <= self.call_limit() as usize;
        fits.then(|| wire::encode(xid, CALLBACKS_MAX as u32, false, None, None))
    }
}

/// Bytes that were written into the memory offered (RFC 8166, 4.3.3: the same segment comes back).
fn used(chunk: &Chunk, offered: Segment) -> Result<u32, Rule> {
    match chunk.segments() {
        [] => Ok(0),
        [one] if one.handle == offered.handle && one.offset == offered.offset => {
            if one.length <= offered.length { Ok(one.length) } else { Err(Rule::ReplyChunk) }
        }
        _ => Err(Rule::ReplyChunk),
    }
}

//! One client: its queue pair, its connection to the server, and the calls between them.
//!
//! A call is admitted when there are blocks for it and for its reply; until then it waits in its
//! receive buffer. The mark, what came inline and what is read from the client's memory are put
//! together in one block, which goes to the socket as it is. A reply goes from the socket into its
//! block, and from there into the client's memory, or inline.

use std::{
    collections::VecDeque,
    io::{self, Write},
    net::{IpAddr, TcpStream},
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    endpoint::{VerbsRx, VerbsTx},
    fabric::Id,
};
use sdp_rdma::{
    fabric::{PostError, ReceiveQueue, Received, SendOptions, SendQueue},
    key::{LocalSlice, RemoteSlice, Rkey},
    work::{Status, WorkId},
};
use sdp_rpcrdma::{
    responder::{Arrival, Form, Incoming, Piece, Responder, Transfer},
    rpc::{Direction, MARK, Target, mark},
    rule::Rule,
    wire::HEADER_TAKEN,
};

use serde_json::{Value, json};

use crate::{
    bytes::{Into, Ranges},
    counts::{Counts, End, Spans},
    poll::Edges,
    pool::{self, Block, Pool},
    records::{HEAD, Records, Taker},
};

/// Bytes of the longest RPC message.
pub const RECORD_MAX: u32 = (pool::MOST - 2 * pool::LEAST) as u32;
/// Callbacks that wait for their turn.
const CALLBACKS_WAITING: usize = 16;
/// Bytes of the longest callback.
const CALLBACK_MAX: usize = 4096;
/// Messages of one client that are looked at before it is the next client's turn.
const MESSAGES_AT_ONCE: usize = 64;
/// Requests that wait for the device, beyond which no message is taken.
const POSTS_WAITING: usize = 256;
/// Bytes of a message that are looked at.
const LOOK: usize = HEADER_TAKEN + Target::BYTES;
/// Rounds without room that the fabric's own credits would make: replies need none.
const AHEAD: u32 = 1 << 16;

/// A call that has begun.
#[derive(Debug, Default)]
struct Slot {
    args: Option<Block>,
    args_len: u32,
    reply: Option<Block>,
    room: u32,
    /// READs that have not completed.
    reads: u32,
    /// When it came.
    came: Option<Instant>,
    /// When it was whole.
    forwarded: Option<Instant>,
}

/// A reply on its way.
#[derive(Debug)]
struct Out {
    block: Option<Block>,
    /// WRITEs that have not completed.
    writes: u32,
    is_sent: bool,
}

/// A request for the device that waits for room in the send queue.
#[derive(Debug)]
enum Post {
    Read { local: LocalSlice, remote: RemoteSlice, slot: usize },
    Write { local: LocalSlice, remote: RemoteSlice, out: usize },
    Send { header: Vec<u8>, out: Option<usize>, inline: [(u32, u32); 2] },
}

/// What the next completion ends.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Read(usize),
    Write(usize),
    Probe,
}

/// What a record is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Reply(usize),
    Callback,
    Nobody,
}

/// A record on its way to the server.
#[derive(Debug)]
struct Record {
    block: Block,
    len: usize,
    sent: usize,
}

/// The client's side.
#[derive(Debug)]
struct Side {
    tx: VerbsTx,
    rx: VerbsRx,
    responder: Responder,
    slots: Vec<Slot>,
    waiting: VecDeque<Received>,
    posts: VecDeque<Post>,
    fates: VecDeque<Fate>,
    outs: Vec<Option<Out>>,
    to_server: VecDeque<Record>,
    /// Of the record that is coming.
    record_for: For,
    callback: Vec<u8>,
    callbacks: VecDeque<Vec<u8>>,
    transfers: Vec<Transfer>,
    scratch: Vec<u8>,
    /// SENDs posted; wraps.
    sent: u32,
    /// Bytes of the pool that its blocks have.
    held: usize,
    /// No new calls.
    is_draining: bool,
    counts: Counts,
    spans: Spans,
    end: Option<End>,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    /// Its queue pair.
    pub id: Id,
    /// Its address.
    pub peer: Option<IpAddr>,
    /// `None` once the client has ended.
    server: Option<TcpStream>,
    records: Records,
    side: Side,
    /// Of the server's socket.
    pub edges: Edges,
}

impl Side {
    fn fail(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    fn take_block(&mut self, pool: &mut Pool, len: usize) -> Option<Block> {
        let block = pool.take(len)?;
        self.held += block.len();
        Some(block)
    }

    fn free(&mut self, pool: &mut Pool, block: Block) {
        self.held -= block.len();
        pool.free(block);
    }

    fn new_out(&mut self, out: Out) -> usize {
        match self.outs.iter().position(Option::is_none) {
            Some(free) => {
                self.outs[free] = Some(out);
                free
            }
            None => {
                self.outs.push(Some(out));
                self.outs.len() - 1
            }
        }
    }

    /// Frees a reply's block when nothing needs it any more.
    fn settle_out(&mut self, pool: &mut Pool, index: usize) {
        let Some(out) = self.outs[index].as_ref() else { return };
        if out.is_sent && out.writes == 0 {
            let out = self.outs[index].take();
            if let Some(block) = out.and_then(|out| out.block) {
                self.free(pool, block);
            }
        }
    }

    fn try_post(&mut self, pool: &mut Pool, post: &Post) -> Result<(), PostError> {
        match post {
            Post::Read { local, remote, slot } => {
                self.tx.post_read(WorkId(0), *local, *remote)?;
                self.fates.push_back(Fate::Read(*slot));
                self.counts.bytes_read += u64::from(local.len);
            }
            Post::Write { local, remote, out } => {
                self.tx.post_write(WorkId(0), *local, *remote)?;
                self.fates.push_back(Fate::Write(*out));
                self.counts.bytes_written += u64::from(local.len);
            }
            Post::Send { header, out, inline } => {
                let block = out.and_then(|out| self.outs[out].as_ref()?.block.as_ref());
                let range = |(from, len): (u32, u32)| {
                    let (from, to) = (from as usize, from as usize + len as usize);
                    block.map_or(&[][..], |block| pool.get(block, from..to))
                };
                let mut ranges = Ranges(inline.map(range));
                // Who called has a receive buffer for the reply.
                self.tx.allow(self.sent.wrapping_add(AHEAD));
                self.tx.post_send(WorkId(0), header, &mut ranges, SendOptions::default())?;
                self.sent = self.sent.wrapping_add(1);
                if let Some(index) = *out {
                    if let Some(out) = self.outs[index].as_mut() {
                        out.is_sent = true;
                    }
                    self.settle_out(pool, index);
                }
            }
        }
        Ok(())
    }

    fn post(&mut self, pool: &mut Pool, post: Post) {
        if self.end.is_some() {
            return;
        }
        if self.posts.is_empty() {
            match self.try_post(pool, &post) {
                Ok(()) => return,
                Err(PostError::Full) => self.counts.posts_waited += 1,
                Err(_) => return self.fail(End::QueuePair),
            }
        }
        self.posts.push_back(post);
    }

    /// Posts what waited; whether any was.
    fn pump(&mut self, pool: &mut Pool) -> bool {
        let mut had_some = false;
        while self.end.is_none()
            && let Some(post) = self.posts.pop_front()
        {
            match self.try_post(pool, &post) {
                Ok(()) => had_some = true,
                Err(PostError::Full) => {
                    self.posts.push_front(post);
                    break;
                }
                Err(_) => self.fail(End::QueuePair),
            }
        }
        had_some
    }

    fn send(&mut self, pool: &mut Pool, bytes: &[u8]) {
        self.post(pool, Post::Send { header: bytes.to_vec(), out: None, inline: [(0, 0); 2] });
    }

    fn complete(&mut self, pool: &mut Pool) -> bool {
        let mut had_some = false;
        while let Some(completion) = self.tx.poll_completion() {
            had_some = true;
            if completion.status != Status::Success {
                self.fail(End::Transfer);
                continue;
            }
            match self.fates.pop_front() {
                Some(Fate::Read(slot)) => {
                    self.slots[slot].reads -= 1;
                    if self.slots[slot].reads == 0 {
                        self.forward(pool, slot);
                    }
                }
                Some(Fate::Write(index)) => {
                    if let Some(out) = self.outs[index].as_mut() {
                        out.writes -= 1;
                    }
                    self.settle_out(pool, index);
                }
                Some(Fate::Probe) | None => {}
            }
        }
        had_some
    }

    fn receive(&mut self, pool: &mut Pool) -> bool {
        let mut had_some = false;
        for _ in 0..MESSAGES_AT_ONCE {
            // A peer that takes no messages is heard no more until it does.
            if self.end.is_some() || self.posts.len() >= POSTS_WAITING {
                break;
            }
            match self.rx.poll_receive() {
                Ok(Some(message)) => {
                    had_some = true;
                    if !self.arrived(pool, message, !self.waiting.is_empty()) {
                        self.counts.waited += 1;
                        self.waiting.push_back(message);
                    }
                }
                Ok(None) => break,
                Err(_) => self.fail(End::ClientGone),
            }
        }
        had_some
    }

    /// Looks again at calls that waited, oldest first.
    fn retry(&mut self, pool: &mut Pool) -> bool {
        let mut had_some = false;
        for _ in 0..self.waiting.len() {
            if self.posts.len() >= POSTS_WAITING {
                break;
            }
            let Some(message) = self.waiting.pop_front() else { break };
            if self.end.is_some() || !self.arrived(pool, message, false) {
                self.waiting.push_front(message);
                break;
            }
            had_some = true;
        }
        had_some
    }

    /// A message has come; whether it need not wait. Behind others that wait, only a call without
    /// chunks is taken.
    fn arrived(&mut self, pool: &mut Pool, message: Received, others_wait: bool) -> bool {
        let mut bytes = [0; LOOK];
        let len = message.len as usize;
        let look = len.min(LOOK);
        let look = self.rx.copy_header(message, &mut bytes[..look]);
        match self.responder.arrive(&bytes[..look], len) {
            Arrival::Drop(rule) => {
                self.counts.broke(rule);
                self.rx.release(message);
            }
            Arrival::Refuse(answer, rule) => {
                self.counts.broke(rule);
                self.rx.release(message);
                self.send(pool, answer.as_slice());
            }
            Arrival::CallbackReply(at) => {
                let len = len - at;
                if let Some(block) = self.take_block(pool, MARK + len) {
                    let mut to = Into(pool.get_mut(&block, MARK..MARK + len), 0);
                    self.rx.copy_out(message, at as u32, len as u32, &mut to);
                    self.enqueue(pool, block, len as u32);
                } else {
                    self.counts.callbacks_dropped += 1;
                }
                self.rx.release(message);
                self.call_back(pool);
            }
            Arrival::Call(incoming) => {
                if self.is_draining || others_wait && incoming.has_chunks() {
                    return false;
                }
                return self.call(pool, message, &incoming);
            }
        }
        true
    }

    /// Blocks for a call and its reply. No client has more than half of the pool, unless it has
    /// nothing; an eighth is for calls without chunks.
    fn admit(&mut self, pool: &mut Pool, incoming: &Incoming) -> Option<(Block, Block)> {
        let (args, reply) = (MARK + incoming.len() as usize, incoming.reply_room() as usize);
        if incoming.has_chunks() {
            let blocks = [args, reply].map(|len| len.max(pool::LEAST).next_power_of_two());
            let needed = blocks.iter().sum::<usize>();
            let is_greedy = self.held > 0 && self.held + needed > pool.bytes() / 2;
            if is_greedy || pool.free_bytes() < needed + pool.bytes() / 8 {
                return None;
            }
        }
        let args = self.take_block(pool, args)?;
        match self.take_block(pool, reply) {
            Some(reply) => Some((args, reply)),
            None => {
                self.free(pool, args);
                None
            }
        }
    }

    fn call(&mut self, pool: &mut Pool, message: Received, incoming: &Incoming) -> bool {
        let Some((args, reply)) = self.admit(pool, incoming) else { return false };
        let slot = match self.responder.begin(incoming) {
            Ok(slot) => slot,
            Err(rule) => {
                self.free(pool, args);
                self.free(pool, reply);
                self.rx.release(message);
                self.counts.broke(rule);
                self.fail(End::Broken(rule));
                return true;
            }
        };
        let mut reads = 0;
        let mut posts: Vec<Post> = Vec::new();
        incoming.pieces(|piece| match piece {
            Piece::Inline { from, to, len } => {
                let (at, end) = (MARK + to as usize, MARK + to as usize + len as usize);
                self.rx.copy_out(message, from, len, &mut Into(pool.get_mut(&args, at..end), 0));
            }
            Piece::Pad { to, len } => {
                let (at, end) = (MARK + to as usize, MARK + to as usize + len as usize);
                pool.get_mut(&args, at..end).fill(0);
            }
            Piece::Read { segment, to } => {
                let local = pool.local(&args, MARK as u32 + to, segment.length);
                let (addr, len, rkey) = (segment.offset, segment.length, Rkey(segment.handle));
                posts.push(Post::Read { local, remote: RemoteSlice { addr, len, rkey }, slot });
                reads += 1;
            }
        });
        self.rx.release(message);
        let (args_len, room) = (incoming.len(), incoming.reply_room());
        self.slots[slot] = Slot {
            args: Some(args),
            args_len,
            reply: Some(reply),
            room,
            reads,
            came: Some(Instant::now()),
            forwarded: None,
        };
        self.counts.calls += 1;
        self.counts.calls_read += u64::from(incoming.has_reads());
        self.counts.calls_long += u64::from(incoming.is_long());
        self.counts.calls_inline += u64::from(!incoming.has_chunks());
        posts.into_iter().for_each(|post| self.post(pool, post));
        if reads == 0 {
            self.forward(pool, slot);
        }
        true
    }

    /// The call is whole: it goes to the server.
    fn forward(&mut self, pool: &mut Pool, slot: usize) {
        let len = self.slots[slot].args_len;
        let Some(args) = self.slots[slot].args.take() else { return };
        let head = MARK + (len as usize).min(Target::BYTES);
        match self.responder.complete(slot, pool.get(&args, MARK..head)) {
            Ok(()) => {
                let now = Instant::now();
                if let Some(came) = self.slots[slot].came {
                    self.spans.forward.note(now - came);
                }
                self.slots[slot].forwarded = Some(now);
                self.enqueue(pool, args, len);
            }
            Err((answer, rule)) => {
                self.counts.broke(rule);
                self.free(pool, args);
                if let Some(reply) = std::mem::take(&mut self.slots[slot]).reply {
                    self.free(pool, reply);
                }
                self.send(pool, answer.as_slice());
            }
        }
    }

    fn enqueue(&mut self, pool: &mut Pool, block: Block, len: u32) {
        pool.get_mut(&block, 0..MARK).copy_from_slice(&mark(len));
        self.counts.bytes_to_server += u64::from(len);
        self.to_server.push_back(Record { block, len: MARK + len as usize, sent: 0 });
    }

    /// A whole reply of the server's.
    fn answer(&mut self, pool: &mut Pool, slot: usize, len: usize) {
        let Slot { reply: Some(block), forwarded, .. } = std::mem::take(&mut self.slots[slot])
        else {
            return;
        };
        let came = Instant::now();
        if let Some(forwarded) = forwarded {
            self.spans.server.note(came - forwarded);
        }
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.clear();
        let message = pool.get(&block, 0..len);
        match self.responder.reply(slot, message, |transfer| transfers.push(transfer)) {
            Ok(reply) => {
                match reply.form {
                    Form::Inline => self.counts.replies_inline += 1,
                    Form::Reduced => self.counts.replies_write += 1,
                    Form::Long => self.counts.replies_long += 1,
                }
                let writes: Vec<(LocalSlice, RemoteSlice)> = transfers
                    .iter()
                    .map(|Transfer { from, segment }| {
                        let local = pool.local(&block, *from, segment.length);
                        let (addr, len) = (segment.offset, segment.length);
                        (local, RemoteSlice { addr, len, rkey: Rkey(segment.handle) })
                    })
                    .collect();
                let count = writes.len() as u32;
                let out = self.new_out(Out { block: Some(block), writes: count, is_sent: false });
                for (local, remote) in writes {
                    self.post(pool, Post::Write { local, remote, out });
                }
                let header = reply.header.as_slice().to_vec();
                self.post(pool, Post::Send { header, out: Some(out), inline: reply.inline });
            }
            Err((answer, rule)) => {
                self.counts.broke(rule);
                self.free(pool, block);
                self.send(pool, answer.as_slice());
            }
        }
        self.spans.reply.note(came.elapsed());
        self.transfers = transfers;
    }

    /// A callback goes to the client, or waits until another was answered.
    fn call_back(&mut self, pool: &mut Pool) {
        while self.responder.may_call_back()
            && let Some(callback) = self.callbacks.pop_front()
        {
            let xid = callback.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
            match self.responder.callback(xid, callback.len()) {
                Some(header) => {
                    self.counts.callbacks += 1;
                    let bytes = [header.as_slice(), &callback].concat();
                    self.send(pool, &bytes);
                }
                None => self.counts.callbacks_dropped += 1,
            }
        }
    }

    fn write(&mut self, pool: &mut Pool, server: &mut TcpStream) -> io::Result<bool> {
        let mut had_some = false;
        while let Some(record) = self.to_server.front_mut() {
            let bytes = pool.get(&record.block, record.sent..record.len);
            match server.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => record.sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return if had_some && is_full(&e) { Ok(false) } else { Err(e) },
            }
            had_some = true;
            if record.sent == record.len
                && let Some(record) = self.to_server.pop_front()
            {
                self.free(pool, record.block);
            }
        }
        Ok(true)
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Takes the server's records.
struct Taking<'a> {
    side: &'a mut Side,
    pool: &'a mut Pool,
}

impl Taking<'_> {
    /// Room of what the record is for.
    fn fits(&self, len: usize) -> bool {
        match self.side.record_for {
            For::Reply(slot) => len <= self.side.slots[slot].room as usize,
            For::Callback => len <= CALLBACK_MAX,
            For::Nobody => true,
        }
    }

    /// The record is longer than there is room for.
    fn skip(&mut self) {
        match self.side.record_for {
            For::Reply(slot) => {
                if let Some(block) = std::mem::take(&mut self.side.slots[slot]).reply {
                    self.side.free(self.pool, block);
                }
                self.side.counts.broke(Rule::ReplyTooLong);
                if let Some(answer) = self.side.responder.give_up(slot) {
                    self.side.send(self.pool, answer.as_slice());
                }
            }
            For::Callback => self.side.counts.callbacks_dropped += 1,
            For::Nobody => {}
        }
        self.side.record_for = For::Nobody;
    }
}

impl Taker for Taking<'_> {
    fn begin(&mut self, head: [u8; HEAD], xid: u32, way: Option<Direction>, len: usize) {
        self.side.record_for = match way {
            Some(Direction::Call) => For::Callback,
            Some(Direction::Reply) => {
                let known = self.side.responder.find(xid);
                match known.filter(|slot| self.side.slots[*slot].forwarded.is_some()) {
                    Some(slot) => For::Reply(slot),
                    None => For::Nobody,
                }
            }
            None => For::Nobody,
        };
        if self.side.record_for == For::Nobody {
            self.side.counts.unknown_records += 1;
        }
        if !self.fits(len) {
            return self.skip();
        }
        match self.side.record_for {
            For::Reply(slot) => {
                if let Some(block) = &self.side.slots[slot].reply {
                    self.pool.get_mut(block, 0..HEAD).copy_from_slice(&head);
                }
            }
            For::Callback => {
                self.side.callback.clear();
                self.side.callback.extend(head);
                self.side.callback.resize(len, 0);
            }
            For::Nobody => {}
        }
    }

    fn grow(&mut self, len: usize) {
        if !self.fits(len) {
            return self.skip();
        }
        if self.side.record_for == For::Callback {
            self.side.callback.resize(len, 0);
        }
    }

    fn room(&mut self, at: usize, most: usize) -> &mut [u8] {
        match self.side.record_for {
            For::Reply(slot) => match &self.side.slots[slot].reply {
                Some(block) => self.pool.get_mut(block, at..at + most),
                None => &mut self.side.scratch,
            },
            For::Callback => &mut self.side.callback[at..at + most],
            For::Nobody => &mut self.side.scratch,
        }
    }

    fn end(&mut self, len: usize) {
        self.side.counts.bytes_from_server += len as u64;
        match std::mem::replace(&mut self.side.record_for, For::Nobody) {
            For::Reply(slot) => self.side.answer(self.pool, slot, len),
            For::Callback if self.side.callbacks.len() < CALLBACKS_WAITING => {
                let callback = std::mem::take(&mut self.side.callback);
                self.side.callbacks.push_back(callback);
                self.side.call_back(self.pool);
            }
            For::Callback => self.side.counts.callbacks_dropped += 1,
            For::Nobody => {}
        }
    }
}

impl Client {
    /// A client whose queue pair was accepted, and whose server is connected.
    pub fn new(
        id: Id,
        peer: Option<IpAddr>,
        queues: (VerbsTx, VerbsRx),
        server: TcpStream,
        responder: Responder,
    ) -> Self {
        let (tx, rx) = queues;
        let slots = (0..responder.credits()).map(|_| Slot::default()).collect();
        let side = Side {
            tx,
            rx,
            responder,
            slots,
            waiting: VecDeque::new(),
            posts: VecDeque::new(),
            fates: VecDeque::new(),
            outs: Vec::new(),
            to_server: VecDeque::new(),
            record_for: For::Nobody,
            callback: Vec::new(),
            callbacks: VecDeque::new(),
            transfers: Vec::new(),
            scratch: vec![0; 16 * 1024],
            sent: 0,
            held: 0,
            is_draining: false,
            counts: Counts::default(),
            spans: Spans::default(),
            end: None,
        };
        let records = Records::default();
        Self { id, peer, server: Some(server), records, side, edges: Edges::default() }
    }

    /// Does what can be done now; whether there was something.
    pub fn step(&mut self, pool: &mut Pool, timeout: Duration) -> bool {
        let side = &mut self.side;
        if self.records.is_within() && self.edges.is_silent(timeout) {
            side.fail(End::HalfRecord);
        }
        let mut had_some = side.receive(pool);
        if !side.fates.is_empty() {
            had_some |= side.complete(pool);
        }
        had_some |= side.pump(pool);
        if !side.waiting.is_empty() {
            had_some |= side.retry(pool);
        }
        let Some(server) = self.server.as_mut() else { return had_some };
        if self.edges.is_readable && side.end.is_none() {
            had_some = true;
            let mut taking = Taking { side, pool };
            let read = self.records.read(server, &mut taking, RECORD_MAX as usize);
            match read {
                Ok(more) => self.edges.was_read(more),
                Err(end) => side.fail(end),
            }
        }
        if self.edges.is_writable && side.end.is_none() && !side.to_server.is_empty() {
            match self.edges.was_written(side.write(pool, server)) {
                Ok(took_some) => had_some |= took_some,
                Err(_) => side.fail(End::ServerGone),
            }
        }
        had_some
    }

    /// Its end, if it has come to one.
    pub const fn end(&self) -> Option<End> {
        self.side.end
    }

    /// Ends it, unless it has ended.
    pub fn fail(&mut self, end: End) {
        self.side.fail(end);
    }

    /// Closes the connection to the server, whose port the client may take again at once.
    pub fn hang_up(&mut self) {
        self.server = None;
    }

    /// Takes no new calls from here on.
    pub const fn drain(&mut self) {
        self.side.is_draining = true;
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        let side = &self.side;
        side.responder.in_flight() == 0 && side.fates.is_empty() && side.posts.is_empty()
    }

    /// Calls without a reply.
    pub fn in_flight(&self) -> usize {
        self.side.responder.in_flight()
    }

    /// What was counted.
    pub const fn counts(&self) -> &Counts {
        &self.side.counts
    }

    /// How long its calls took.
    pub const fn spans(&self) -> &Spans {
        &self.side.spans
    }

    /// What an operator may want to know of it.
    pub fn to_json(&self) -> Value {
        let side = &self.side;
        json!({
            "address": self.peer.map(|peer| peer.to_string()),
            "credits": side.responder.credits(),
            "in_flight": side.responder.in_flight(),
            "waiting": side.waiting.len(),
            "memory": side.held,
            "counts": side.counts.to_json(),
        })
    }

    /// Asks the peer's device whether it is there: a WRITE of no bytes.
    pub fn probe(&mut self) {
        if self.side.fates.is_empty() && self.side.posts.is_empty() {
            let local = LocalSlice { addr: 0, len: 0, lkey: sdp_rdma::key::Lkey(0) };
            let remote = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
            match self.side.tx.post_write(WorkId(0), local, remote) {
                Ok(()) => self.side.fates.push_back(Fate::Probe),
                Err(PostError::Full) => {}
                Err(_) => self.side.fail(End::QueuePair),
            }
        }
    }

    /// Gives all blocks back. Its queue pair has ended: no device uses them.
    pub fn bury(mut self, pool: &mut Pool) -> (Counts, Spans) {
        let side = &mut self.side;
        let slots = side.slots.iter_mut().flat_map(|slot| [slot.args.take(), slot.reply.take()]);
        let outs = side.outs.iter_mut().flatten().map(|out| out.block.take());
        let records = side.to_server.drain(..).map(|record| Some(record.block));
        for block in slots.chain(outs).chain(records).flatten() {
            pool.free(block);
        }
        (self.side.counts, self.side.spans)
    }
}

//! One client of a proxy: its TCP connection, its queue pair to the server, and the calls between
//! them.
//!
//! A call stays where it was put until its reply has come: in a buffer of its own if it fits into a
//! message, else in an area that the server may read. When the queue pair is lost, a new one is made
//! and all calls without a reply go again, with their XIDs, so that the server knows those that it
//! has had.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    endpoint::{VerbsRx, VerbsTx},
    fabric::Id,
};
use sdp_rdma::{
    fabric::{PostError, ReceiveQueue, Received, SendOptions, SendQueue},
    key::{Lkey, LocalSlice, RemoteSlice, Rkey},
    work::{Status, WorkId},
};
use sdp_rpcrdma::{
    bounds,
    requester::{Arrival, Requester},
    rpc::{self, Direction, MARK, direction, mark},
    rule::Rule,
    wire::HEADER_TAKEN,
};
use serde_json::{Value, json};

use crate::{
    areas::{self, Area, Areas, Held, Use},
    bytes::{Into, Ranges},
    counts::{End, LocalCounts},
    poll::Edges,
    records::{HEAD, Records, Taker},
};

/// Bytes of the longest RPC message.
pub const RECORD_MAX: usize = areas::LARGE - 8192;
/// Bytes of a call that is kept in a buffer of its own.
const SMALL: usize = 4096;
/// Calls of one client that are kept.
const CALLS_MAX: usize = 64;
/// Answers to callbacks of one client that are kept.
const CALLBACKS_MAX: usize = 16;
/// Messages of one server that are looked at before it is the next client's turn.
const MESSAGES_AT_ONCE: usize = 64;
/// Bytes of a message that are looked at.
const LOOK: usize = HEADER_TAKEN + HEAD;
/// Rounds without room that the fabric's own credits would make.
const AHEAD: u32 = 1 << 16;
/// A server with calls in flight that is silent for so long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(20);
/// And after so long the connection is given up, as the kernel's client does.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first wait before the next try to connect, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The word of a call that says what its credentials are, and `RPCSEC_GSS`.
const FLAVOUR: usize = 6;
const GSS: u32 = 6;
/// `SYSTEM_ERR` (RFC 5531, 9), for a call that the transport has refused.
const SYSTEM_ERR: u32 = 5;

/// Where a call lies.
#[derive(Debug)]
enum Body {
    Small(Vec<u8>),
    Area(Area),
}

/// A call without a reply.
#[derive(Debug)]
struct Call {
    xid: u32,
    len: usize,
    /// What its reply may have.
    bound: usize,
    body: Body,
    reply: Option<Area>,
    is_sent: bool,
    /// Its queue pair, always this one: on another the server would not know the call again.
    via: usize,
    /// The server takes its sequence number once (RFC 2203, 5.3.3.1).
    is_numbered: bool,
}

/// What goes to the client behind its mark.
#[derive(Debug)]
enum Answer {
    Bytes(Vec<u8>),
    Area(Area),
}

#[derive(Debug)]
struct Out {
    answer: Answer,
    len: usize,
    sent: usize,
}

/// What the record is that is coming.
#[derive(Debug)]
enum Coming {
    Nothing,
    /// There is no area for it yet.
    Waits(usize),
    Call(Body),
    CallbackReply(Vec<u8>),
    Nobody,
}

/// The connection to the server.
#[derive(Debug)]
pub struct Up {
    /// Its queue pair.
    pub id: Id,
    tx: VerbsTx,
    rx: VerbsRx,
    requester: Requester,
    /// SENDs posted; wraps.
    sent: u32,
    heard: Instant,
    was_probed: bool,
    probes: u32,
    /// Something has come by it.
    is_answered: bool,
    /// Answers to callbacks that wait for the device.
    posts: VecDeque<Vec<u8>>,
}

impl Up {
    /// One that was accepted.
    pub fn new(id: Id, (tx, rx): (VerbsTx, VerbsRx), requester: Requester) -> Self {
        let (heard, posts) = (Instant::now(), VecDeque::new());
        let (sent, probes, was_probed, is_answered) = (0, 0, false, false);
        Self { id, tx, rx, requester, sent, heard, was_probed, probes, is_answered, posts }
    }

    fn send(&mut self, header: &[u8], body: &[u8]) -> Result<(), PostError> {
        // Who has granted a call has a buffer for the call, by its grant.
        self.tx.allow(self.sent.wrapping_add(AHEAD));
        let mut ranges = Ranges([body, &[]]);
        self.tx.post_send(WorkId(0), header, &mut ranges, SendOptions::default())?;
        self.sent = self.sent.wrapping_add(1);
        Ok(())
    }
}

/// How far the connection to the server is.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are up")]
pub enum Link {
    /// There is none; the next try is due.
    Down(Instant),
    /// The server was asked.
    Asking(Id),
    /// The server has accepted.
    Up(Up),
    /// It ends: the server may still reach the areas.
    Ending(Up),
}

/// One of a client's connections to the server.
#[derive(Debug)]
pub struct Path {
    /// How far it is.
    pub link: Link,
    /// Which of the server's addresses it uses; counts on.
    pub to: usize,
    wait: Duration,
}

impl Path {
    const fn up(&mut self) -> Option<&mut Up> {
        match &mut self.link {
            Link::Up(up) => Some(up),
            _ => None,
        }
    }

    fn lose(&mut self, why: End) {
        if let Link::Up(up) = std::mem::replace(&mut self.link, Link::Down(Instant::now())) {
            say!("sdp nfs proxy: connection to the server ended: {}", why.name());
            self.link = Link::Ending(up);
        }
    }

    fn retry_later(&mut self) {
        self.link = Link::Down(Instant::now() + self.wait);
        self.wait = (2 * self.wait).min(RETRY.1);
    }
}

/// A client.
#[derive(Debug)]
pub struct Local {
    /// `None` once it has ended.
    stream: Option<TcpStream>,
    records: Records,
    side: Side,
    /// The connections to the server.
    pub paths: Vec<Path>,
    was_up: bool,
    /// Tries in a row that found no server.
    refusals: usize,
    /// Of its socket.
    pub edges: Edges,
}

/// All but the connections.
#[derive(Debug)]
struct Side {
    /// In the order in which they came.
    calls: Vec<Call>,
    coming: Coming,
    outs: VecDeque<Out>,
    /// Answers to callbacks.
    to_server: VecDeque<Vec<u8>>,
    scratch: Vec<u8>,
    is_draining: bool,
    counts: LocalCounts,
    /// Connections to the server.
    queue_pairs: usize,
    end: Option<End>,
}

impl Side {
    fn fail(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// Whether bytes of the client's may be taken now.
    fn is_ready(&mut self, areas: &mut Areas) -> bool {
        match self.coming {
            _ if self.end.is_some() => false,
            Coming::Waits(len) => match areas.take(Use::Call, len, &mut self.held(areas)) {
                Some(area) => {
                    self.coming = Coming::Call(Body::Area(area));
                    true
                }
                None => false,
            },
            Coming::Nothing => {
                !self.is_draining
                    && self.calls.len() + self.outs.len() < CALLS_MAX
                    && self.to_server.len() < CALLBACKS_MAX
            }
            _ => true,
        }
    }

    /// Its large areas.
    fn held(&self, areas: &Areas) -> Held {
        let mut held = Held::default();
        let of = |body: &'_ Body| match body {
            Body::Area(area) => areas.count(area, &mut held),
            Body::Small(_) => {}
        };
        self.calls.iter().map(|call| &call.body).for_each(of);
        if let Coming::Call(Body::Area(area)) = &self.coming {
            areas.count(area, &mut held);
        }
        for call in &self.calls {
            call.reply.iter().for_each(|area| areas.count(area, &mut held));
        }
        for out in &self.outs {
            if let Answer::Area(area) = &out.answer {
                areas.count(area, &mut held);
            }
        }
        held
    }

    fn answer(&mut self, answer: Answer, len: usize) {
        self.outs.push_back(Out { answer, len, sent: 0 });
    }

    /// The call is over.
    fn remove(&mut self, areas: &mut Areas, xid: u32) -> Option<Option<Area>> {
        let at = self.calls.iter().position(|call| call.is_sent && call.xid == xid)?;
        let call = self.calls.remove(at);
        if let Body::Area(area) = call.body {
            areas.free(area);
        }
        Some(call.reply)
    }

    /// The server answers by an error of the transport: the client hears of one of RPC.
    fn refuse(&mut self, areas: &mut Areas, xid: u32, rule: Rule) {
        self.counts.broke(rule);
        self.counts.failed += 1;
        if let Some(Some(area)) = self.remove(areas, xid) {
            areas.free(area);
        }
        let reply = [xid, 1, 0, 0, 0, SYSTEM_ERR].map(u32::to_be_bytes).concat();
        let len = reply.len();
        self.answer(Answer::Bytes(reply), len);
    }

    fn write(&mut self, areas: &mut Areas, stream: &mut TcpStream) -> io::Result<bool> {
        let mut had_some = false;
        while let Some(out) = self.outs.front_mut() {
            let head = mark(out.len as u32);
            let body = match &out.answer {
                Answer::Bytes(bytes) => &bytes[..],
                Answer::Area(area) => areas.get(area, 0..out.len),
            };
            let head = &head[out.sent.min(MARK)..];
            let body = &body[out.sent.saturating_sub(MARK)..];
            match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => out.sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && had_some => return Ok(false),
                Err(e) => return Err(e),
            }
            had_some = true;
            if out.sent == MARK + out.len
                && let Some(Out { answer: Answer::Area(area), .. }) = self.outs.pop_front()
            {
                areas.free(area);
            }
        }
        Ok(true)
    }

    /// Gives answers to callbacks to the connections by which the callbacks came.
    fn route_answers(&mut self, paths: &mut [Path]) {
        if paths.iter_mut().all(|path| path.up().is_none()) {
            return;
        }
        while let Some(reply) = self.to_server.pop_front() {
            let xid = reply.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
            let routed = paths.iter_mut().filter_map(Path::up).find_map(|up| {
                let header = up.requester.callback_reply(xid, reply.len())?;
                up.posts.push_back([header.as_slice(), &reply].concat());
                Some(())
            });
            self.counts.callbacks_dropped += u64::from(routed.is_none());
        }
    }

    /// Sends what may go; whether something did.
    fn send(&mut self, areas: &mut Areas, up: &mut Up, via: usize) -> Result<bool, End> {
        let mut had_some = false;
        while let Some(bytes) = up.posts.pop_front() {
            match up.send(&bytes, &[]) {
                Ok(()) => had_some = true,
                Err(PostError::Full) => {
                    up.posts.push_front(bytes);
                    return Ok(had_some);
                }
                Err(_) => return Err(End::QueuePair),
            }
        }
        Ok(self.send_calls(areas, up, via)? || had_some)
    }

    fn send_calls(&mut self, areas: &mut Areas, up: &mut Up, via: usize) -> Result<bool, End> {
        if self.calls.iter().all(|call| call.is_sent || call.via != via) {
            return Ok(false);
        }
        let (mut had_some, mut held) = (false, self.held(areas));
        for call in &mut self.calls {
            if !up.requester.may_call() {
                break;
            }
            if call.is_sent || call.via != via {
                continue;
            }
            let bound = u32::try_from(call.bound).unwrap_or(u32::MAX);
            let needs = up.requester.needs(call.len as u32, bound);
            if needs.reply && call.reply.is_none() {
                call.reply = areas.take(Use::Reply, call.bound.min(areas::LARGE), &mut held);
                if call.reply.is_none() {
                    self.counts.waited += 1;
                    // Others may go that need none.
                    continue;
                }
            }
            if needs.call
                && let Body::Small(bytes) = &call.body
            {
                let area = areas.take(Use::Call, bytes.len(), &mut held);
                let Some(area) = area else { continue };
                areas.get_mut(&area, 0..bytes.len()).copy_from_slice(bytes);
                call.body = Body::Area(area);
            }
            if up.tx.room() == 0 {
                break;
            }
            let offered = call.reply.as_ref().map(|area| {
                let len = call.bound.min(areas.len(area)) as u32;
                areas.segment(area, len)
            });
            let (whole, inline) = match &call.body {
                Body::Area(area) => (Some(areas.segment(area, call.len as u32)), &[][..]),
                Body::Small(bytes) => (None, &bytes[..]),
            };
            let header = match up.requester.call(call.xid, call.len as u32, whole, offered) {
                Ok(header) => header,
                Err(rule) => {
                    self.counts.broke(rule);
                    return Err(End::Broken(rule));
                }
            };
            if up.requester.in_flight() == 1 {
                // Silence begins here.
                (up.heard, up.was_probed) = (Instant::now(), false);
            }
            call.is_sent = true;
            self.counts.calls += 1;
            self.counts.calls_long += u64::from(whole.is_some());
            self.counts.offered += u64::from(offered.is_some());
            had_some = true;
            match up.send(header.as_slice(), inline) {
                Ok(()) => {}
                Err(PostError::Full) => {
                    up.posts.push_back([header.as_slice(), inline].concat());
                    break;
                }
                Err(_) => return Err(End::QueuePair),
            }
        }
        Ok(had_some)
    }

    /// Takes messages; whether there were some.
    fn receive(&mut self, areas: &mut Areas, up: &mut Up) -> Result<bool, End> {
        let mut had_some = false;
        for _ in 0..MESSAGES_AT_ONCE {
            match up.rx.poll_receive() {
                Ok(Some(message)) => {
                    had_some = true;
                    up.is_answered = true;
                    (up.heard, up.was_probed) = (Instant::now(), false);
                    self.arrived(areas, up, message);
                }
                Ok(None) => break,
                Err(_) => return Err(End::ServerGone),
            }
        }
        if up.probes > 0 {
            while let Some(completion) = up.tx.poll_completion() {
                up.probes = up.probes.saturating_sub(1);
                if completion.status != Status::Success {
                    return Err(End::Transfer);
                }
            }
        }
        Ok(had_some)
    }

    fn arrived(&mut self, areas: &mut Areas, up: &mut Up, message: Received) {
        let mut bytes = [0; LOOK];
        let len = message.len as usize;
        let look = len.min(LOOK);
        let look = up.rx.copy_header(message, &mut bytes[..look]);
        let rest = |up: &Up, from: usize| {
            let mut bytes = vec![0; len - from];
            let mut to = Into(&mut bytes, 0);
            up.rx.copy_out(message, from as u32, (len - from) as u32, &mut to);
            bytes
        };
        match up.requester.arrive(&bytes[..look], len) {
            Arrival::Reply { xid, from } => {
                self.counts.replies_inline += 1;
                if let Some(Some(area)) = self.remove(areas, xid) {
                    areas.free(area);
                }
                self.answer(Answer::Bytes(rest(up, from)), len - from);
            }
            Arrival::Long { xid, len } => {
                let len = len as usize;
                match self.remove(areas, xid) {
                    Some(Some(area)) if len <= areas.len(&area) => {
                        let head = areas.get(&area, 0..HEAD.min(len));
                        if direction(head) == Some((xid, Direction::Reply)) {
                            self.counts.replies_long += 1;
                            self.answer(Answer::Area(area), len);
                        } else {
                            areas.free(area);
                            self.refuse(areas, xid, Rule::NotACall);
                        }
                    }
                    Some(Some(area)) => areas.free(area),
                    Some(None) | None => {}
                }
            }
            Arrival::Failed { xid, rule } => self.refuse(areas, xid, rule),
            Arrival::Callback(from) => {
                self.counts.callbacks += 1;
                self.answer(Answer::Bytes(rest(up, from)), len - from);
            }
            Arrival::Drop(rule) => self.counts.broke(rule),
        }
        up.rx.release(message);
    }
}

/// The queue pair of a call, out of `count`. XIDs are counted, by Linux in the byte order of the
/// machine, so the bits that change may be the highest or the lowest.
fn queue_pair_of(xid: u32, count: usize) -> usize {
    let mixed = u64::from(xid.wrapping_mul(0x9e37_79b9));
    ((mixed * count as u64) >> u32::BITS) as usize
}

/// Takes the client's records.
struct Taking<'a> {
    side: &'a mut Side,
    areas: &'a mut Areas,
}

impl Taking<'_> {
    /// A body for so many bytes, which begins as the old one.
    fn place(&mut self, len: usize, old: &[u8]) {
        self.side.coming = if len <= SMALL {
            let mut bytes = old.to_vec();
            bytes.resize(len, 0);
            Coming::Call(Body::Small(bytes))
        } else {
            // What has come of it is kept beside until there is an area.
            self.side.scratch.clear();
            self.side.scratch.extend(old);
            match self.areas.take(Use::Call, len, &mut self.side.held(self.areas)) {
                Some(area) => Coming::Call(Body::Area(area)),
                None => Coming::Waits(len),
            }
        };
        self.settle();
    }

    /// What was kept beside goes to its area.
    fn settle(&mut self) {
        if let Coming::Call(Body::Area(area)) = &self.side.coming
            && !self.side.scratch.is_empty()
        {
            let kept = std::mem::take(&mut self.side.scratch);
            self.areas.get_mut(area, 0..kept.len()).copy_from_slice(&kept);
        }
    }
}

impl Taker for Taking<'_> {
    fn is_ready(&mut self) -> bool {
        let is_ready = self.side.is_ready(self.areas);
        self.settle();
        is_ready
    }

    fn begin(&mut self, head: [u8; HEAD], _: u32, way: Option<Direction>, len: usize) {
        match way {
            Some(Direction::Call) => self.place(len, &head),
            Some(Direction::Reply) if len <= SMALL => {
                let mut bytes = head.to_vec();
                bytes.resize(len, 0);
                self.side.coming = Coming::CallbackReply(bytes);
            }
            _ => {
                self.side.coming = Coming::Nobody;
                self.side.fail(End::ClientRecord);
            }
        }
    }

    fn grow(&mut self, len: usize) {
        match std::mem::replace(&mut self.side.coming, Coming::Nobody) {
            Coming::Call(Body::Small(bytes)) => self.place(len, &bytes),
            Coming::Call(Body::Area(area)) if len <= self.areas.len(&area) => {
                self.side.coming = Coming::Call(Body::Area(area));
            }
            Coming::Call(Body::Area(area)) => {
                let bytes = self.areas.get(&area, 0..self.areas.len(&area)).to_vec();
                self.areas.free(area);
                self.place(len, &bytes);
            }
            Coming::CallbackReply(mut bytes) if len <= SMALL => {
                bytes.resize(len, 0);
                self.side.coming = Coming::CallbackReply(bytes);
            }
            _ => self.side.fail(End::ClientRecord),
        }
    }

    fn room(&mut self, at: usize, most: usize) -> &mut [u8] {
        match &mut self.side.coming {
            Coming::Call(Body::Small(bytes)) | Coming::CallbackReply(bytes) => {
                &mut bytes[at..at + most]
            }
            Coming::Call(Body::Area(area)) => self.areas.get_mut(area, at..at + most),
            _ => {
                self.side.scratch.resize(SMALL, 0);
                &mut self.side.scratch
            }
        }
    }

    fn end(&mut self, len: usize) {
        match std::mem::replace(&mut self.side.coming, Coming::Nothing) {
            Coming::Call(body) => {
                let bytes = match &body {
                    Body::Small(bytes) => &bytes[..len],
                    Body::Area(area) => self.areas.get(area, 0..len),
                };
                let xid = bytes.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
                let bound = bounds::reply_of(bytes).map_or(areas::LARGE, |len| len as usize);
                let is_numbered = rpc::word(bytes, FLAVOUR) == Some(GSS);
                let (reply, is_sent) = (None, false);
                let via = queue_pair_of(xid, self.side.queue_pairs);
                let call = Call { xid, len, bound, body, reply, is_sent, via, is_numbered };
                let calls = &mut self.side.calls;
                let Some(old) = calls.iter_mut().find(|call| call.xid == xid) else {
                    return calls.push(call);
                };
                // The client asks again, and will have its reply. What goes is what it has sent last.
                self.side.counts.repeated += 1;
                let old = if old.is_sent { call } else { std::mem::replace(old, call) };
                if let Body::Area(area) = old.body {
                    self.areas.free(area);
                }
                old.reply.into_iter().for_each(|area| self.areas.free(area));
            }
            Coming::CallbackReply(bytes) => self.side.to_server.push_back(bytes),
            Coming::Nothing | Coming::Waits(_) | Coming::Nobody => {}
        }
    }
}

impl Local {
    /// A client that has connected, and is to have a number of connections to the server.
    pub fn new(stream: TcpStream, queue_pairs: usize) -> Self {
        let now = Instant::now();
        let path = |to| Path { link: Link::Down(now), to, wait: RETRY.0 };
        let paths: Vec<Path> = (0..queue_pairs.max(1)).map(path).collect();
        let side = Side {
            calls: Vec::new(),
            coming: Coming::Nothing,
            outs: VecDeque::new(),
            to_server: VecDeque::new(),
            scratch: Vec::new(),
            is_draining: false,
            counts: LocalCounts::default(),
            queue_pairs: paths.len(),
            end: None,
        };
        Self {
            stream: Some(stream),
            records: Records::default(),
            side,
            paths,
            was_up: false,
            refusals: 0,
            edges: Edges::default(),
        }
    }

    /// Does what can be done now; whether there was something.
    pub fn step(&mut self, areas: &mut Areas, timeout: Duration) -> bool {
        let side = &mut self.side;
        let Some(stream) = self.stream.as_mut().filter(|_| side.end.is_none()) else {
            return false;
        };
        let mut had_some = false;
        let end = if side.is_draining && self.edges.has_ended {
            Some(End::ClientGone)
        } else if self.records.is_within() && self.edges.is_silent(timeout) {
            Some(End::HalfRecord)
        } else if !side.outs.is_empty() && self.edges.is_full(timeout) {
            Some(End::TakesNothing)
        } else {
            None
        };
        if let Some(end) = end {
            side.fail(end);
            return true;
        }
        if self.edges.is_readable && side.is_ready(areas) {
            had_some = true;
            let mut taking = Taking { side, areas };
            match self.records.read(stream, &mut taking, RECORD_MAX) {
                Ok(more) => self.edges.was_read(more),
                Err(End::ServerGone) => side.fail(End::ClientGone),
                Err(_) => side.fail(End::ClientRecord),
            }
        }
        side.route_answers(&mut self.paths);
        for (via, path) in self.paths.iter_mut().enumerate() {
            let Some(up) = path.up() else { continue };
            let done = side.receive(areas, up).and_then(|received| {
                let sent = side.send(areas, up, via)?;
                Ok(received || sent)
            });
            match done.and_then(|done| Self::is_patient(up).map(|()| done)) {
                Ok(done) => had_some |= done,
                Err(why) => {
                    had_some = true;
                    path.lose(why);
                }
            }
        }
        if self.edges.is_writable && side.end.is_none() && !side.outs.is_empty() {
            match self.edges.was_written(side.write(areas, stream)) {
                Ok(took_some) => had_some |= took_some,
                Err(_) => side.fail(End::ClientGone),
            }
        }
        had_some
    }

    /// Asks a silent server's device whether it is there: a WRITE of no bytes.
    fn is_patient(up: &mut Up) -> Result<(), End> {
        if up.requester.in_flight() == 0 {
            return Ok(());
        }
        let silent = up.heard.elapsed();
        if silent > PATIENCE {
            return Err(End::Transfer);
        }
        if silent > SILENCE && !up.was_probed {
            let local = LocalSlice { addr: 0, len: 0, lkey: Lkey(0) };
            let remote = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
            up.was_probed = true;
            match up.tx.post_write(WorkId(0), local, remote) {
                Ok(()) => up.probes += 1,
                Err(PostError::Full) => {}
                Err(_) => return Err(End::QueuePair),
            }
        }
        Ok(())
    }

    /// Which of its connections is asked for, or up, by this name.
    pub fn path_of(&self, id: Id) -> Option<usize> {
        self.paths.iter().position(|path| match &path.link {
            Link::Asking(of) => *of == id,
            Link::Up(up) => up.id == id,
            Link::Down(_) | Link::Ending(_) => false,
        })
    }

    /// The server has accepted.
    pub fn up(&mut self, at: usize, up: Up) {
        (self.was_up, self.refusals) = (true, 0);
        self.side.counts.connects += 1;
        self.paths[at].link = Link::Up(up);
    }

    /// A connection to the server is lost: it ends.
    pub fn lose(&mut self, at: usize, why: End) {
        self.paths[at].lose(why);
    }

    /// The server reaches the areas by this connection no more: its calls without a reply go again.
    pub fn ended(&mut self, at: usize, areas: &mut Areas) {
        let is_its = |call: &&mut Call| call.via == at;
        for call in self.side.calls.iter_mut().filter(is_its) {
            if call.is_sent && call.is_numbered {
                // The server would drop it for its number: the client makes another, if it has to
                // connect.
                self.side.end.get_or_insert(End::Sequence);
            }
            self.side.counts.again += u64::from(call.is_sent);
            call.is_sent = false;
            if let Some(area) = call.reply.take() {
                areas.free(area);
            }
        }
        let path = &mut self.paths[at];
        if matches!(&path.link, Link::Ending(up) if up.is_answered) {
            path.wait = RETRY.0;
        }
        path.retry_later();
    }

    /// The server did not accept: the next try is later, at the next of its addresses. A client that
    /// never had a server, at any of the `addresses`, ends.
    pub fn refused(&mut self, at: usize, addresses: usize, why: End) {
        self.refusals += 1;
        if !self.was_up && self.refusals >= addresses {
            self.side.fail(why);
        }
        self.paths[at].to += 1;
        self.paths[at].retry_later();
    }

    /// Its end, if it has come to one.
    pub const fn end(&self) -> Option<End> {
        self.side.end
    }

    /// Ends it, unless it has ended.
    pub fn fail(&mut self, end: End) {
        self.side.fail(end);
    }

    /// Closes the client's connection.
    pub fn hang_up(&mut self) {
        self.stream = None;
    }

    /// Takes no new calls from here on.
    pub const fn drain(&mut self) {
        self.side.is_draining = true;
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.side.calls.is_empty()
            && self.side.outs.is_empty()
            && matches!(self.side.coming, Coming::Nothing)
    }

    /// What was counted.
    pub const fn counts(&self) -> &LocalCounts {
        &self.side.counts
    }

    /// What an operator may want to know of it.
    pub fn to_json(&self) -> Value {
        let peer = self.stream.as_ref().and_then(|stream| stream.peer_addr().ok());
        let state = |path: &Path| match &path.link {
            Link::Down(_) => "down",
            Link::Asking(_) => "asking",
            Link::Up(_) => "up",
            Link::Ending(_) => "ending",
        };
        // The worst of them.
        let states: Vec<&str> = self.paths.iter().map(state).collect();
        let worst = states.iter().find(|state| **state != "up").unwrap_or(&"up");
        let ups = self.paths.iter().filter_map(|path| match &path.link {
            Link::Up(up) => Some(&up.requester),
            _ => None,
        });
        let credits: u32 = ups.clone().map(Requester::credits).sum();
        let in_flight: usize = ups.map(Requester::in_flight).sum();
        json!({
            "address": peer.map(|peer| peer.to_string()),
            "state": worst,
            "queue_pairs": states,
            "credits": credits,
            "in_flight": in_flight,
            "waiting": self.side.calls.len() - in_flight.min(self.side.calls.len()),
            "counts": self.side.counts.to_json(),
        })
    }

    /// Gives all areas back. Its queue pair has ended.
    pub fn bury(mut self, areas: &mut Areas) -> LocalCounts {
        for call in self.side.calls.drain(..) {
            let body = if let Body::Area(area) = call.body { Some(area) } else { None };
            [body, call.reply].into_iter().flatten().for_each(|area| areas.free(area));
        }
        for out in self.side.outs.drain(..) {
            if let Answer::Area(area) = out.answer {
                areas.free(area);
            }
        }
        if let Coming::Call(Body::Area(area)) = self.side.coming {
            areas.free(area);
        }
        self.side.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_xids_are_spread_in_either_byte_order() {
        for count in [1, 2, 3, 4, 16] {
            for order in [u32::to_be, u32::to_le] {
                let mut used = vec![0; count];
                for xid in 0x1234_5600..0x1234_5700 {
                    used[queue_pair_of(order(xid), count)] += 1;
                }
                let even = 256 / count;
                assert!(used.iter().all(|n| even / 2 <= *n && *n <= 2 * even), "{used:?}");
            }
        }
    }
}

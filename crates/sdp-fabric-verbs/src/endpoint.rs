//! The data path: queue pairs' halves, and one drain for all of them.
//!
//! One completion queue serves all connections. A thread that polls anything drains it, if no other
//! thread does at that moment, and puts completions where their owners look: messages into the
//! connection's inbox, ends of sends into its ring of requests. A half is driven by one thread at a
//! time; both halves at once.

use core::{
    cell::{Cell, UnsafeCell},
    sync::atomic::{AtomicBool, AtomicU16, Ordering},
};

use sdp_rdma::{
    fabric::{Gather, PostError, QpError, ReceiveQueue, Received, Scatter, SendOptions, SendQueue},
    key::{LocalSlice, RemoteSlice},
    work::{Completion, Opcode, WorkId},
};

use crate::{
    abi::verbs as abi,
    budget::{BUFFER, DEPTH, INLINE, RESERVE},
    device::{Cq, Mr, RawQp},
    entry::{ASKED, Entry, KIND_SHIFT, NO_PLACE},
    fabric::Slow,
    pool::{Places, Region, Shared},
    status::{error_of, status_code, status_of},
    work_id::{self, Owner},
};

mod chain;
mod conn;
mod news;
mod receives;
mod ring;

use chain::{Chain, Request, Waiting};
pub use conn::Conn;
use news::News;
pub use receives::{Receives, are_shared};
pub(crate) use ring::{PIECES, Parts};
pub use ring::{RingRx, RingTx, longest};

/// Messages that an inbox holds; promises stay below it.
pub const INBOX: usize = 128;
/// Completions taken at a time.
const BATCH: usize = 8;
/// Bytes of the header that nearly every message begins with.
const HEADER: usize = 16;
/// Every how many sends one asks for a completion of its own, so that buffers come back.
const SIGNAL_EVERY: u32 = 8;
/// Nothing wrong.
const ALIVE: u8 = 0;

/// Messages that a connection has sent and released, and may send: for credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Our queue pair.
    pub number: u32,
    /// The peer's.
    pub peer_number: u32,
    /// SENDs posted; wraps.
    pub sent: u32,
    /// Messages that have arrived; wraps.
    pub arrived: u32,
    /// Messages released to the peer; wraps.
    pub released: u32,
    /// Messages that the receiving half has reported; wraps.
    pub reported: u32,
    /// Freed of the ring, in its units; wraps.
    pub freed: u32,
    /// Requests that will report their ends and have not yet.
    pub is_waiting: bool,
    /// The connection has failed, or an end has said goodbye.
    pub has_failed: bool,
    /// All that was posted has completed, and nothing more is.
    pub has_ended: bool,
}

/// The objects that all connections of a fabric share.
pub struct Core {
    /// Fields end in this order: connections before the objects that they depend on.
    pub(crate) slow: UnsafeCell<Slow>,
    pub(crate) conns: Region<Conn>,
    /// Stands for places that do not exist: it is never looked up.
    spare: Conn,
    pub(crate) cq: Cq,
    pub(crate) receive_queue: Receives,
    /// The registration of `memory`.
    pub(crate) mr: Mr,
    /// Receive buffers, then send buffers.
    pub(crate) memory: Region<[u8; BUFFER]>,
    pub(crate) receives: usize,
    pub(crate) places: Places,
    /// Whose message a receive buffer holds, or whose queue it waits in ([`receives`]).
    pub(crate) owners: Region<AtomicU16>,
    draining: AtomicBool,
    /// Another thread wants a look after this one.
    again: AtomicBool,
    /// A queue that all share has failed: there are fewer receive buffers than were promised, or
    /// completions that are never reported.
    pub(crate) is_broken: AtomicBool,
    /// Something for a slow step to do.
    pub(crate) is_due: AtomicBool,
    news: News,
}

// SAFETY: `slow` is touched by the one fabric that owns it (`&mut`), all else is atomic, or a buffer that has one
// user at a time.
unsafe impl Sync for Core {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Core {}

impl core::fmt::Debug for Core {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Core")
    }
}

impl Core {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        slow: Slow,
        conns: Region<Conn>,
        cq: Cq,
        receive_queue: Receives,
        mr: Mr,
        memory: Region<[u8; BUFFER]>,
        receives: usize,
        owners: Region<AtomicU16>,
    ) -> Self {
        let places = Places::new(memory.len() - receives);
        Self {
            slow: UnsafeCell::new(slow),
            conns,
            spare: Conn::new(),
            cq,
            receive_queue,
            mr,
            memory,
            receives,
            places,
            owners,
            draining: AtomicBool::new(false),
            again: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            news: News::new(),
        }
    }

    fn piece(&self, buffer: usize, len: usize) -> abi::Sge {
        // SAFETY: within the region; only the address is computed.
        let at = unsafe { self.memory.as_ptr().add(buffer) };
        abi::Sge { addr: at as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Bytes of a buffer that the caller uses.
    fn cells(&self, buffer: usize, from: usize, len: usize) -> &[Cell<u8>] {
        if buffer >= self.memory.len() || from > BUFFER || len > BUFFER - from {
            return &[];
        }
        // SAFETY: within the region, by the check; as cells, because a device may have been given the memory. The caller
        // is the buffer's only user in this process.
        unsafe {
            let at = self.memory.as_ptr().add(buffer).cast::<Cell<u8>>().add(from);
            core::slice::from_raw_parts(at, len)
        }
    }

    /// The connection's place.
    pub(crate) fn place(&self, index: usize) -> &Conn {
        self.conns.get(index).unwrap_or(&self.spare)
    }

    fn conn(&self, index: usize) -> Option<&Conn> {
        self.conns.get(index)
    }

    /// The device failed this queue pair.
    pub(crate) fn fail_one(&self, number: u32) {
        let conn = self.by_number(number).and_then(|index| self.conn(index));
        if conn.is_some_and(|conn| conn.fail(QpError::Fatal)) {
            self.wants_step();
        }
    }

    /// An object that all connections share has failed: the device is as good as lost.
    pub(crate) fn break_down(&self) {
        if !self.is_broken.swap(true, Ordering::AcqRel) {
            for conn in self.conns.iter() {
                conn.fail(QpError::Fatal);
            }
        }
        self.wants_step();
    }

    /// A slow step is due, and connections may have failed.
    pub(crate) fn wants_step(&self) {
        self.news.note_all();
        self.is_due.store(true, Ordering::Release);
    }

    /// The channel becomes readable with the next completion; with `solicited_only`, with the next
    /// message that its sender wants noticed, or failure. Look again between this and sleeping. Fast.
    ///
    /// # Errors
    /// The provider's.
    pub fn arm(&self, solicited_only: bool) -> Result<(), crate::Error> {
        // A thread that slept all the same would not be woken.
        self.cq.arm(solicited_only).inspect_err(|_| self.break_down())
    }

    /// Takes the channel's events; whether there were any. Fast.
    pub fn take_wakeups(&self) -> bool {
        self.cq.take_wakeups()
    }

    /// Whether a slow step is due.
    pub fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// Takes the completions, unless another thread does; whether there were any. Fast.
    pub fn drain(&self) -> bool {
        // A thread that finds another at it leaves a note: that one takes the completions that came
        // meanwhile.
        let is_mine = || !self.draining.swap(true, Ordering::SeqCst);
        let mut goes_on = is_mine();
        if !goes_on {
            self.again.store(true, Ordering::SeqCst);
            goes_on = is_mine();
        }
        let mut had_some = false;
        while goes_on {
            // A note from before this is about completions that are taken here.
            self.again.store(false, Ordering::Relaxed);
            had_some |= self.drain_here();
            self.draining.store(false, Ordering::SeqCst);
            goes_on = self.again.load(Ordering::SeqCst) && is_mine();
        }
        had_some
    }

    /// Whether a thread takes completions now: messages that it has taken may not be told of yet.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    fn drain_here(&self) -> bool {
        let mut had_some = false;
        loop {
            let mut room = [abi::Wc::default(); BATCH];
            let Some(batch) = self.cq.poll(&mut room) else {
                self.break_down();
                break;
            };
            for wc in batch {
                self.take(wc);
            }
            had_some |= !batch.is_empty();
            if batch.len() < BATCH {
                break;
            }
        }
        had_some
    }

    fn take(&self, wc: &abi::Wc) {
        match work_id::buffer_of(wc.wr_id) {
            Some(work_id::NO_BUFFER) => return self.take_record(wc),
            Some(buffer) => return self.take_message(wc, buffer),
            None => {}
        }
        let Some(conn) = self.conn(work_id::place_of(wc.wr_id)) else { return };
        if !work_id::is_of(wc.wr_id, conn.generation.load(Ordering::Relaxed)) {
            return; // a queue pair that is gone
        }
        let number = wc.wr_id as u32;
        if work_id::is_last(wc.wr_id) {
            // Behind all others: those that did not report went well.
            self.free_buffers(conn, number);
            conn.done.store(number, Ordering::Release);
            conn.is_drained.store(true, Ordering::Release);
            return self.wants_step();
        }
        if wc.status != abi::WC_SUCCESS {
            conn.entry(number).status.store(status_code(wc.status), Ordering::Relaxed);
            if conn.fail(error_of(wc.status)) {
                self.wants_step();
            }
        }
        self.free_buffers(conn, number.wrapping_add(1));
        conn.done.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Gives back a request's send buffer, if it has one.
    fn free_buffer(&self, entry: &Entry) {
        let place = entry.info.fetch_or(NO_PLACE, Ordering::Relaxed) & NO_PLACE;
        if place != NO_PLACE {
            self.places.give_back(place as usize);
        }
    }

    /// Gives back the send buffers of the requests below `end`, which have ended. Before `done`
    /// counts them: their entries are used again then.
    fn free_buffers(&self, conn: &Conn, end: u32) {
        let mut number = conn.done.load(Ordering::Relaxed);
        while Conn::is_behind(number, end) {
            self.free_buffer(conn.entry(number));
            number = number.wrapping_add(1);
        }
    }

    fn take_message(&self, wc: &abi::Wc, buffer: usize) {
        let Some(owner) = self.owners.get(buffer) else { return };
        let index = self.receiver(wc);
        let conn = index.and_then(|index| self.conn(index));
        let (Some(index), Some(conn)) = (index, conn) else {
            return self.put_back(buffer); // a queue pair that is gone
        };
        if wc.status != abi::WC_SUCCESS {
            if conn.fail(error_of(wc.status)) {
                self.wants_step();
            }
            return self.put_back(buffer);
        }
        let arrived = conn.arrived.load(Ordering::Relaxed);
        let kept = arrived.wrapping_sub(conn.released.load(Ordering::Acquire));
        let promised = conn.promised.load(Ordering::Relaxed);
        if kept >= promised + RESERVE || kept as usize >= INBOX {
            // More than it was promised: others' buffers.
            if conn.fail(QpError::Framing) {
                self.wants_step();
            }
            return self.put_back(buffer);
        }
        owner.store(receives::holder(index), Ordering::Relaxed);
        let len = (wc.byte_len as usize).min(BUFFER) as u64;
        if let Some(place) = conn.inbox.get(arrived as usize % INBOX) {
            place.store((buffer as u64) << 32 | len, Ordering::Relaxed);
        }
        conn.arrived.store(arrived.wrapping_add(1), Ordering::Release);
        self.news.note(index);
    }

    /// No posts from here on, and a last request that reports when all before it have ended. The
    /// queue pair is in the error state; `None`: it could not be put there, and messages posted now
    /// would be sent.
    pub(crate) fn close_posts(&self, index: usize, qp: Option<RawQp>) {
        let Some(conn) = self.conn(index) else { return };
        conn.take_turn();
        conn.is_closed.store(true, Ordering::Relaxed);
        let last = conn.posted.load(Ordering::Relaxed);
        let wr_id = conn.owner(index).last(last);
        let mut request = abi::SendWr::new(wr_id, abi::WR_SEND, abi::SEND_SIGNALED);
        // SAFETY: the caller has the queue pair; no memory is named.
        let posted = qp.is_some_and(|qp| unsafe { qp.post(&mut request, &mut []) }.is_ok());
        if !posted {
            conn.done.store(last, Ordering::Release);
            conn.is_drained.store(true, Ordering::Release);
            self.wants_step();
        }
        conn.end_turn();
    }

    /// Gives back all buffers of a connection that are not in use any more: its queue pair and its
    /// halves are gone.
    pub(crate) fn clear(&self, index: usize) {
        let Some(conn) = self.conn(index) else { return };
        conn.promised.store(0, Ordering::Relaxed);
        conn.entries.iter().for_each(|entry| self.free_buffer(entry));
        self.release_all(index);
    }

    /// A connection's counts; `None`: there is none in this place.
    pub fn counts(&self, index: usize) -> Option<Counts> {
        let conn = self.conn(index)?;
        let number = conn.number.load(Ordering::Acquire);
        (number != 0).then(|| Counts {
            number,
            peer_number: conn.peer_number.load(Ordering::Relaxed),
            sent: conn.sent.load(Ordering::Relaxed),
            arrived: conn.arrived.load(Ordering::Acquire),
            released: conn.released.load(Ordering::Acquire),
            reported: conn.reported.load(Ordering::Acquire),
            freed: conn.rings.freed(),
            is_waiting: Conn::is_behind(
                conn.done.load(Ordering::Acquire),
                conn.signalled.load(Ordering::Relaxed),
            ),
            has_failed: conn.error().is_some(),
            has_ended: conn.is_drained.load(Ordering::Acquire),
        })
    }

    /// Takes the completions; whether messages of this place have arrived that its receiving half
    /// has not polled. Fast.
    pub fn has_news(&self, index: usize) -> bool {
        self.drain();
        self.conn(index).is_some_and(|conn| {
            conn.arrived.load(Ordering::Acquire) != conn.reported.load(Ordering::Relaxed)
        })
    }

    /// The peer of this place has freed so much of its ring, as a message of its would say.
    pub fn learn_freed(&self, index: usize, freed: u32) {
        let _ = self.conn(index).and_then(|conn| conn.rings.learn(freed));
    }

    /// For tests: the peer of this place hears that so much of the ring was freed, true or not.
    #[cfg(feature = "stand-in")]
    pub fn pretend_freed(&self, index: usize, freed: u32) {
        self.place(index).rings.pretend(freed);
    }

    /// The peer of this place has room for `messages` in all (promised and released; wraps).
    pub fn allow(&self, index: usize, messages: u32) {
        if let Some(conn) = self.conn(index) {
            conn.allowed.store(messages, Ordering::Release);
        }
    }
}

/// Sending half.
#[derive(Debug)]
pub struct VerbsTx {
    core: Shared<Core>,
    index: usize,
    owner: Owner,
    /// Requests whose ends were reported or are not to be reported; wraps.
    reported: u32,
    /// Requests since one that completes by itself.
    silent: u32,
    /// The last READ, while it may be in flight.
    read: Option<u32>,
    /// Messages that are posted with the next one.
    chain: Chain,
}

impl VerbsTx {
    pub(crate) fn new(core: Shared<Core>, index: usize) -> Self {
        let owner = core.place(index).owner(index);
        Self { core, index, owner, reported: 0, silent: 0, read: None, chain: Chain::new() }
    }

    fn conn(&self) -> &Conn {
        self.core.place(self.index)
    }

    /// Forgets requests that have ended and whose ends need not be reported.
    #[inline]
    fn settle(&mut self) {
        let conn = self.core.place(self.index);
        let done = conn.done.load(Ordering::Acquire);
        while Conn::is_behind(self.reported, done) {
            let entry = conn.entry(self.reported);
            let is_asked = entry.info.load(Ordering::Relaxed) & ASKED != 0;
            if is_asked || entry.status.load(Ordering::Relaxed) != 0 {
                break;
            }
            self.reported = self.reported.wrapping_add(1);
        }
        if self.read.is_some_and(|read| Conn::is_behind(read, done)) {
            self.read = None;
        }
    }

    /// Entries of the send queue that are free.
    fn free_entries(&self) -> u32 {
        let posted = self.conn().posted.load(Ordering::Relaxed);
        let taken = posted.wrapping_sub(self.reported).wrapping_add(self.chain.len() as u32);
        DEPTH.saturating_sub(taken)
    }

    fn credit(&self, is_control: bool) -> u32 {
        let conn = self.conn();
        let allowed = conn.allowed.load(Ordering::Acquire);
        let allowed = if is_control { allowed.wrapping_add(RESERVE) } else { allowed };
        let left = allowed.wrapping_sub(conn.sent.load(Ordering::Relaxed));
        if (left as i32) < 0 { 0 } else { left }
    }

    #[inline]
    fn ready(&mut self, is_control: bool) -> Result<(), PostError> {
        if let Some(error) = self.conn().error() {
            return Err(PostError::Failed(error));
        }
        let kept_free = if is_control { 0 } else { RESERVE };
        self.settle();
        if self.free_entries() <= kept_free {
            self.core.drain();
            self.settle();
            if self.free_entries() <= kept_free {
                return Err(PostError::Full);
            }
        }
        Ok(())
    }

    /// Posts a request whose entry is free.
    fn post(
        &mut self,
        id: WorkId,
        kind: u32,
        place: u32,
        is_asked: bool,
        mut request: abi::SendWr,
        pieces: &mut [abi::Sge],
    ) -> Result<(), PostError> {
        let noted = Request { id, kind, place, is_asked };
        if self.chain.len() != 0 {
            match pieces.first() {
                Some(piece) if request.opcode == abi::WR_SEND => {
                    let piece = *piece;
                    return self.post_chain(Some((noted, &mut request, piece)));
                }
                _ => self.post_chain(None)?,
            }
        }
        let core = &*self.core;
        let conn = core.place(self.index);
        conn.take_turn();
        let qp = conn.qp.load(Ordering::Acquire);
        let error = conn.error();
        if conn.is_closed.load(Ordering::Relaxed) || qp.is_null() || error.is_some() {
            conn.end_turn();
            return Err(PostError::Failed(error.unwrap_or(QpError::Disconnected)));
        }
        let number = conn.posted.load(Ordering::Relaxed);
        let is_due = self.silent + 1 >= SIGNAL_EVERY || chain::is_scarce(core, &noted);
        let is_signalled = is_asked || is_due;
        request.wr_id = self.owner.request(number);
        if is_signalled {
            request.send_flags |= abi::SEND_SIGNALED;
        }
        if request.opcode == abi::WR_SEND && self.read.is_some() {
            request.send_flags |= abi::SEND_FENCE;
        }
        let entry = conn.entry(number);
        chain::note(entry, &noted);
        conn.posted.store(number.wrapping_add(1), Ordering::Release);
        // SAFETY: the queue pair lives while this half does; a send buffer is this request's until
        // it has completed; the memory that READ and WRITE name is registered, or the device
        // refuses it.
        let posted = unsafe { RawQp::of(qp) }
            .map_or(Err(crate::Error::NoDevice), |qp| unsafe { qp.post(&mut request, pieces) });
        if posted.is_err() {
            conn.posted.store(number, Ordering::Release);
            entry.info.store(NO_PLACE, Ordering::Relaxed);
            conn.end_turn();
            if conn.fail(QpError::Fatal) {
                core.wants_step();
            }
            return Err(PostError::Failed(conn.error().unwrap_or(QpError::Fatal)));
        }
        if is_signalled {
            conn.signalled.store(number.wrapping_add(1), Ordering::Relaxed);
        }
        conn.end_turn();
        self.silent = if is_signalled { 0 } else { self.silent + 1 };
        if request.opcode == abi::WR_RDMA_READ {
            self.read = Some(number);
        }
        Ok(())
    }

    fn one_sided(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
        opcode: i32,
        kind: u32,
    ) -> Result<(), PostError> {
        self.ready(false)?;
        let mut request = abi::SendWr::new(0, opcode, 0);
        (request.remote_addr, request.rkey) = (remote.addr, remote.rkey.0);
        let length = local.len.min(remote.len);
        let mut piece = [abi::Sge { addr: local.addr, length, lkey: local.lkey.0 }];
        let pieces = if length == 0 { &mut piece[..0] } else { &mut piece[..] };
        self.post(id, kind, NO_PLACE, true, request, pieces)
    }
}

impl VerbsTx {
    /// Whether a message may be posted now; the flags of its request.
    #[inline]
    fn admit(&mut self, len: usize, options: SendOptions) -> Result<u32, PostError> {
        if len > BUFFER {
            return Err(PostError::TooLong);
        }
        self.ready(options.control)?;
        if self.credit(options.control) == 0 {
            return Err(PostError::Full);
        }
        Ok(if options.solicited { abi::SEND_SOLICITED } else { 0 })
    }

    /// Puts a message into a send buffer.
    #[inline]
    fn fill(&self, header: &[u8], payload: &mut impl Gather) -> Result<usize, PostError> {
        let take = || self.core.places.take();
        let Some(place) = take().or_else(|| self.core.drain().then(take).flatten()) else {
            return Err(PostError::Full);
        };
        let (buffer, len) = (self.core.receives + place, header.len() + payload.len());
        gather(self.core.cells(buffer, 0, len), header, payload);
        Ok(place)
    }
}

/// Copies a header, which is of the same length nearly always.
#[inline(always)]
fn copy(to: &[Cell<u8>], from: &[u8]) {
    match (<&[Cell<u8>; HEADER]>::try_from(to), <&[u8; HEADER]>::try_from(from)) {
        (Ok(to), Ok(from)) => to.iter().zip(from).for_each(|(cell, byte)| cell.set(*byte)),
        _ => to.iter().zip(from).for_each(|(cell, byte)| cell.set(*byte)),
    }
}

/// Copies header and payload to where they are sent from.
#[inline]
fn gather(into: &[Cell<u8>], header: &[u8], payload: &mut impl Gather) {
    let (head, rest) = into.split_at_checked(header.len().min(into.len())).unwrap_or((into, &[]));
    copy(head, header);
    if !rest.is_empty() {
        payload.copy_to(0, rest);
    }
}

impl SendQueue for VerbsTx {
    fn max_message(&self) -> usize {
        BUFFER
    }

    fn room(&self) -> usize {
        self.core.drain();
        let conn = self.conn();
        if conn.error().is_some()
            || self.credit(false) == 0
            || self.free_entries() <= RESERVE
            || !self.core.places.has_free()
        {
            return 0;
        }
        BUFFER - HEADER
    }

    #[inline]
    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let flags = self.admit(header.len() + payload.len(), options)?;
        let len = header.len() + payload.len();
        let mut request = abi::SendWr::new(0, abi::WR_SEND, flags);
        if len <= INLINE as usize {
            request.send_flags |= abi::SEND_INLINE;
            let mut bytes = [0u8; INLINE as usize];
            let cells = Cell::from_mut(&mut bytes[..len]).as_slice_of_cells();
            gather(cells, header, payload);
            let addr = cells.as_ptr() as u64;
            let mut piece = [abi::Sge { addr, length: len as u32, lkey: 0 }];
            let pieces = if len == 0 { &mut piece[..0] } else { &mut piece[..] };
            self.post(id, 0, NO_PLACE, options.signalled, request, pieces)?;
        } else {
            let place = self.fill(header, payload)?;
            let mut piece = [self.core.piece(self.core.receives + place, len)];
            let posted = self.post(id, 0, place as u32, options.signalled, request, &mut piece);
            if let Err(error) = posted {
                self.core.places.give_back(place);
                return Err(error);
            }
        }
        self.conn().sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn post_send_before(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let len = header.len() + payload.len();
        if len <= INLINE as usize || self.chain.is_full() {
            return self.post_send(id, header, payload, options);
        }
        let flags = self.admit(len, options)?;
        let place = self.fill(header, payload)? as u32;
        let request = Request { id, kind: 0, place, is_asked: options.signalled };
        self.chain.push(Waiting { request, len: len as u32, flags });
        self.conn().sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) {
        if self.chain.len() != 0 {
            let _ = self.post_chain(None); // the queue pair has failed
        }
    }

    fn post_read(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.one_sided(id, local, remote, abi::WR_RDMA_READ, 1)
    }

    fn post_write(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.one_sided(id, local, remote, abi::WR_RDMA_WRITE, 2)
    }

    fn allow(&mut self, messages: u32) {
        self.conn().allowed.store(messages, Ordering::Release);
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.settle();
        if self.reported == self.conn().done.load(Ordering::Acquire) {
            self.core.drain();
            self.settle();
        }
        let conn = self.conn();
        if !Conn::is_behind(self.reported, conn.done.load(Ordering::Acquire)) {
            return None;
        }
        let entry = conn.entry(self.reported);
        let opcode = match entry.info.load(Ordering::Relaxed) >> KIND_SHIFT {
            0 => Opcode::Send,
            1 => Opcode::Read,
            _ => Opcode::Write,
        };
        let status = status_of(entry.status.load(Ordering::Relaxed));
        let id = WorkId(entry.id.load(Ordering::Relaxed));
        self.reported = self.reported.wrapping_add(1);
        Some(Completion { id, opcode, status })
    }
}

impl Drop for VerbsTx {
    fn drop(&mut self) {
        self.conn().halves.fetch_and(!1, Ordering::Release);
        self.core.wants_step();
    }
}

/// Receiving half.
#[derive(Debug)]
pub struct VerbsRx {
    core: Shared<Core>,
    index: usize,
}

impl VerbsRx {
    pub(crate) const fn new(core: Shared<Core>, index: usize) -> Self {
        Self { core, index }
    }

    /// The connection's place, for [`Core::counts`].
    pub const fn index(&self) -> usize {
        self.index
    }

    fn conn(&self) -> &Conn {
        self.core.place(self.index)
    }

    #[inline]
    fn next(&self) -> Option<Received> {
        let conn = self.conn();
        let reported = conn.reported.load(Ordering::Relaxed);
        if reported == conn.arrived.load(Ordering::Acquire) {
            return None;
        }
        let word = conn.inbox[reported as usize % INBOX].load(Ordering::Relaxed);
        conn.reported.store(reported.wrapping_add(1), Ordering::Relaxed);
        Some(Received { token: word >> 32, len: word as u32 })
    }
}

impl ReceiveQueue for VerbsRx {
    #[inline]
    fn posted(&self) -> u16 {
        let conn = self.conn();
        let kept = conn
            .reported
            .load(Ordering::Relaxed)
            .wrapping_sub(conn.released.load(Ordering::Relaxed));
        conn.promised.load(Ordering::Relaxed).saturating_sub(kept) as u16
    }

    #[inline]
    fn poll_receive(&mut self) -> Result<Option<Received>, QpError> {
        if let Some(message) = self.next() {
            return Ok(Some(message));
        }
        // All messages that had arrived are in the inbox once its last request has ended, whichever
        // thread drains.
        let is_drained = self.conn().is_drained.load(Ordering::Acquire);
        self.core.drain();
        match (self.next(), self.conn().error()) {
            (Some(message), _) => Ok(Some(message)),
            (None, Some(error)) if is_drained => Err(error),
            (None, _) => Ok(None),
        }
    }

    #[inline]
    fn poll_another(&mut self) -> Option<Received> {
        self.next()
    }

    #[inline]
    fn copy_header(&self, message: Received, dst: &mut [u8]) -> usize {
        let len = dst.len().min(message.len as usize);
        let cells = self.core.cells(message.token as usize, 0, len);
        let read = |(byte, cell): (&mut u8, &Cell<u8>)| *byte = cell.get();
        match (<&mut [u8; HEADER]>::try_from(&mut *dst), <&[Cell<u8>; HEADER]>::try_from(cells)) {
            (Ok(dst), Ok(cells)) => dst.iter_mut().zip(cells).for_each(read),
            _ => dst.iter_mut().zip(cells).for_each(read),
        }
        cells.len()
    }

    #[inline]
    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter) {
        sink.accept(self.core.cells(message.token as usize, offset as usize, len as usize));
    }

    #[inline]
    fn release(&mut self, message: Received) {
        if self.core.release(self.index, message.token as usize) {
            self.conn().released.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for VerbsRx {
    fn drop(&mut self) {
        self.conn().halves.fetch_and(!2, Ordering::Release);
        self.core.wants_step();
    }
}

//! Messages that are written into a ring at the receiver.
//!
//! A message is one WRITE with immediate data into the peer's ring, and completes one of its
//! receives, which has no buffer. Records begin at multiples of 16 bytes, one behind the other; one
//! that would cross the ring's end is two requests of one list, the first without immediate data.
//! The immediate data says how much of its own ring the sender has freed since the connection began,
//! in units of 16 bytes modulo 2^31, and in its first bit whether the record crosses the end.
//!
//! There are two credits. *Messages*: receives that are posted, of which the protocol tells the
//! peer. *Bytes*: the ring's, less the bytes that were written and not freed; of these the last
//! [`CONTROL_ROOM`] are for control messages. A receive is posted again, in lists, when its message
//! was reported, whether it is read or not.
//!
//! The peer may write anything anywhere in the ring at any time. Where a record begins and how long
//! it is comes of this end's own counting and of the device's word, never of the ring.

use core::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use sdp_rdma::{
    fabric::{
        Gather, PeerRing, PostError, QpError, ReceiveQueue, Received, Scatter, SendOptions,
        SendQueue,
    },
    key::{LocalSlice, RemoteSlice},
    work::{Completion, WorkId},
};

use super::{Conn, Core, INBOX, SIGNAL_EVERY, VerbsTx, chain, chain::Request, copy, gather};
use crate::{
    abi::verbs as abi,
    budget::{DEPTH, INLINE, RESERVE, RING_MESSAGES, RING_RECEIVES},
    device::{RECEIVES_MOST, RawQp},
    entry::NO_PLACE,
    pool::Shared,
    status::error_of,
    work_id::{self, Owner},
};

/// Bytes of a ring's unit: records begin at multiples of it.
const UNIT: u32 = 16;
/// In immediate data: the record crosses the ring's end.
const CROSSES: u32 = 1 << 31;
/// Units of a ring that control messages alone may use.
const CONTROL_ROOM: u32 = 1024 / UNIT;
/// Most payload of a message.
const PAYLOAD_MOST: u32 = 32 * 1024;
/// Bytes of a place for a header.
pub(super) const HEADER_ROOM: usize = 64;
/// Receives that are posted again together.
const LIST: u32 = RING_RECEIVES - RING_MESSAGES - RESERVE;
/// Messages that can be borrowed at once.
const BORROWED: usize = 128;
/// Most pieces of a request: header, and bytes from both ends of the kept ones.
pub(crate) const PIECES: usize = 3;

const _: () = assert!(LIST as usize <= RECEIVES_MOST && LIST >= 1);
const _: () = assert!(RING_RECEIVES as usize <= INBOX);

/// The longest message into a ring of this number of bytes: a quarter of it behind a header. A peer that has
/// read everything has told of three quarters at least.
pub const fn longest(ring: u32) -> u32 {
    let payload = if ring / 4 < PAYLOAD_MOST { ring / 4 } else { PAYLOAD_MOST };
    if payload == 0 { 0 } else { payload + super::HEADER as u32 }
}

/// Units of a record.
const fn units(len: u32) -> u32 {
    if len == 0 { 1 } else { len.div_ceil(UNIT) }
}

/// The ring of a connection and the memory that it sends from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    /// Address and length of the ring.
    pub(crate) ring: (u64, u32),
    /// Address of [`DEPTH`] places for headers, and their key.
    pub(crate) headers: (u64, u32),
    /// Address, length and key of the kept bytes.
    pub(crate) kept: (u64, u32, u32),
}

/// The rings of both ends, as a connection's place has them. Positions count units since the
/// connection began, and wrap.
#[derive(Debug)]
pub(crate) struct Rings {
    ring: AtomicU64,
    /// In bytes; 0: there is none.
    size: AtomicU32,
    headers: AtomicU64,
    headers_key: AtomicU32,
    kept: AtomicU64,
    kept_len: AtomicU32,
    kept_key: AtomicU32,
    /// Of the peer's, in bytes; 0: it is not known yet.
    peer_size: AtomicU32,
    peer_key: AtomicU32,
    /// Written into the peer's ring. The sending half's.
    written: AtomicU32,
    /// Freed by the peer. The drain's.
    peer_freed: AtomicU32,
    /// Freed by this end. The receiving half's.
    freed: AtomicU32,
    /// The peer was told so. The sending half's.
    told: AtomicU32,
    /// A record was not to be believed: where those behind it begin is not known. The drain's.
    is_lost: AtomicBool,
}

impl Rings {
    pub(super) const fn new() -> Self {
        Self {
            ring: AtomicU64::new(0),
            size: AtomicU32::new(0),
            headers: AtomicU64::new(0),
            headers_key: AtomicU32::new(0),
            kept: AtomicU64::new(0),
            kept_len: AtomicU32::new(0),
            kept_key: AtomicU32::new(0),
            peer_size: AtomicU32::new(0),
            peer_key: AtomicU32::new(0),
            written: AtomicU32::new(0),
            peer_freed: AtomicU32::new(0),
            freed: AtomicU32::new(0),
            told: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    pub(super) fn begin(&self) {
        for word in [&self.size, &self.peer_size, &self.kept_len, &self.written] {
            word.store(0, Ordering::Relaxed);
        }
        self.is_lost.store(false, Ordering::Relaxed);
        for word in [&self.peer_freed, &self.freed, &self.told] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The memory of a connection that has not begun.
    pub(crate) fn set(&self, parts: &Parts) {
        self.ring.store(parts.ring.0, Ordering::Relaxed);
        self.size.store(parts.ring.1, Ordering::Relaxed);
        self.headers.store(parts.headers.0, Ordering::Relaxed);
        self.headers_key.store(parts.headers.1, Ordering::Relaxed);
        self.kept.store(parts.kept.0, Ordering::Relaxed);
        self.kept_len.store(parts.kept.1, Ordering::Relaxed);
        self.kept_key.store(parts.kept.2, Ordering::Relaxed);
    }

    /// Whether the connection has a ring.
    pub(super) fn is_there(&self) -> bool {
        self.size() != 0
    }

    fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// The piece of the kept bytes that these are.
    fn piece(&self, bytes: &[u8]) -> Option<abi::Sge> {
        let (addr, len) = (bytes.as_ptr() as u64, bytes.len() as u64);
        let from = addr.checked_sub(self.kept.load(Ordering::Relaxed))?;
        let is_inside = from + len <= u64::from(self.kept_len.load(Ordering::Relaxed));
        let lkey = self.kept_key.load(Ordering::Relaxed);
        is_inside.then_some(abi::Sge { addr, length: len as u32, lkey })
    }

    pub(super) fn freed(&self) -> u32 {
        self.freed.load(Ordering::Acquire)
    }

    /// The peer is told this from here on, true or not.
    #[cfg(feature = "stand-in")]
    pub(super) fn pretend(&self, freed: u32) {
        self.freed.store(freed, Ordering::Release);
    }

    /// `None`: the peer says that it has freed what was never written.
    pub(super) fn learn(&self, immediate: u32) -> Option<()> {
        let before = self.peer_freed.load(Ordering::Relaxed);
        let more = immediate.wrapping_sub(before) & !CROSSES;
        let written = self.written.load(Ordering::Acquire).wrapping_sub(before);
        (more <= written)
            .then(|| self.peer_freed.store(before.wrapping_add(more), Ordering::Release))
    }
}

impl Core {
    /// Gives a fresh queue pair its receives. A slow step.
    ///
    /// # Errors
    /// The provider's.
    pub(super) fn stock_ring(&self, index: usize, qp: RawQp) -> Result<(), crate::Error> {
        let id = self.place(index).owner(index).receive(work_id::NO_BUFFER);
        let mut left = RING_RECEIVES as usize;
        while left != 0 {
            let count = left.min(RECEIVES_MOST);
            // SAFETY: the caller's queue pair lives.
            unsafe { qp.post_empty_receives(id, count) }?;
            left -= count;
        }
        Ok(())
    }

    /// A WRITE into a ring has completed a receive, or the receive has failed.
    pub(super) fn take_record(&self, wc: &abi::Wc) {
        let index = work_id::place_of(wc.wr_id);
        let Some(conn) = self.conn(index) else { return };
        if !work_id::is_of(wc.wr_id, conn.generation.load(Ordering::Relaxed)) {
            return; // a queue pair that is gone
        }
        let fails = |why| {
            conn.rings.is_lost.store(true, Ordering::Relaxed);
            if conn.fail(why) {
                self.wants_step();
            }
        };
        if wc.status != abi::WC_SUCCESS {
            return fails(error_of(wc.status));
        }
        let arrived = conn.arrived.load(Ordering::Relaxed);
        let waiting = arrived.wrapping_sub(conn.reported.load(Ordering::Acquire));
        let immediate = u32::from_be(wc.imm_data);
        let is_ours = wc.opcode == abi::WC_RECV_RDMA_WITH_IMM
            && (waiting as usize) < INBOX
            && !conn.rings.is_lost.load(Ordering::Relaxed);
        if !is_ours || conn.rings.learn(immediate).is_none() {
            return fails(QpError::Framing);
        }
        if let Some(place) = conn.inbox.get(arrived as usize % INBOX) {
            let word = u64::from(immediate & CROSSES) << 32 | u64::from(wc.byte_len);
            place.store(word, Ordering::Relaxed);
        }
        conn.arrived.store(arrived.wrapping_add(1), Ordering::Release);
        self.news.note(index);
    }
}

/// Sending half.
#[derive(Debug)]
pub struct RingTx(VerbsTx);

impl RingTx {
    pub(crate) fn new(core: Shared<Core>, index: usize) -> Self {
        Self(VerbsTx::new(core, index))
    }

    fn rings(&self) -> &Rings {
        &self.0.conn().rings
    }

    /// Units of the peer's ring that a message may use now.
    fn free(&self, is_control: bool) -> u32 {
        let rings = self.rings();
        let written = rings.written.load(Ordering::Relaxed);
        let used = written.wrapping_sub(rings.peer_freed.load(Ordering::Acquire));
        let all = rings.peer_size.load(Ordering::Relaxed) / UNIT;
        let kept = if is_control { 0 } else { CONTROL_ROOM };
        all.saturating_sub(used).saturating_sub(kept)
    }

    /// Whether a message of this number of bytes may be posted now.
    #[inline]
    fn admit(&mut self, len: usize, is_control: bool) -> Result<(), PostError> {
        if let Some(error) = self.0.conn().error() {
            return Err(PostError::Failed(error));
        }
        if len > self.max_message() {
            return Err(PostError::TooLong);
        }
        let needs = units(len as u32);
        if self.0.credit(is_control) == 0 {
            return Err(PostError::Full);
        }
        if self.free(is_control) < needs {
            self.0.core.drain();
            if self.free(is_control) < needs {
                return Err(PostError::Full);
            }
        }
        // A message that crosses the end takes two.
        let kept_free = if is_control { 1 } else { 1 + RESERVE };
        self.0.settle();
        if self.0.free_entries() <= kept_free {
            self.0.core.drain();
            self.0.settle();
            if self.0.free_entries() <= kept_free {
                return Err(PostError::Full);
            }
        }
        Ok(())
    }

    /// Posts a record, whose pieces are at `pieces`.
    fn post(
        &mut self,
        id: WorkId,
        pieces: &[abi::Sge],
        len: u32,
        flags: u32,
        is_asked: bool,
    ) -> Result<(), PostError> {
        let tx = &mut self.0;
        let core = &*tx.core;
        let conn = core.place(tx.index);
        let rings = &conn.rings;
        conn.take_turn();
        let Some(qp) = chain::usable(conn) else {
            conn.end_turn();
            return Err(PostError::Failed(conn.error().unwrap_or(QpError::Disconnected)));
        };
        // Before it: a thread that sees both knows what the last message says.
        conn.sent.fetch_add(1, Ordering::AcqRel);
        let freed = rings.freed.load(Ordering::Acquire);
        let written = rings.written.load(Ordering::Relaxed);
        let size = rings.peer_size.load(Ordering::Relaxed);
        let at = (u64::from(written) * u64::from(UNIT) % u64::from(size.max(UNIT))) as u32;
        let first = len.min(size - at);
        let crosses = first < len;
        let number = conn.posted.load(Ordering::Relaxed);
        let last = if crosses { number.wrapping_add(1) } else { number };
        let noted = Request { id, kind: 0, place: NO_PLACE, is_asked };
        let is_signalled = is_asked || tx.silent + 1 >= SIGNAL_EVERY;
        let mut fence = if tx.read.is_some() { abi::SEND_FENCE } else { 0 };
        let inline = flags & abi::SEND_INLINE;
        let [mut before, mut behind] = [[abi::Sge::default(); PIECES]; 2];
        let counts = split(pieces, first, &mut before, &mut behind);
        let rkey = rings.peer_key.load(Ordering::Relaxed);
        let mut request = abi::SendWr::new(
            tx.owner.request(last),
            abi::WR_RDMA_WRITE_WITH_IMM,
            flags | if is_signalled { abi::SEND_SIGNALED } else { 0 },
        );
        let crossing = if crosses { CROSSES } else { 0 };
        request.imm_data = (freed & !CROSSES | crossing).to_be();
        request.rkey = rkey;
        let mut leading = abi::SendWr::new(tx.owner.request(number), abi::WR_RDMA_WRITE, inline);
        (leading.remote_addr, leading.rkey) = (u64::from(at), rkey);
        (leading.sg_list, leading.num_sge) = (before.as_mut_ptr(), counts.0 as i32);
        if crosses {
            leading.send_flags |= core::mem::take(&mut fence);
            leading.next = &raw mut request;
            (request.sg_list, request.num_sge) = (behind.as_mut_ptr(), counts.1 as i32);
            let nobody = Request { id, kind: 0, place: NO_PLACE, is_asked: false };
            chain::note(conn.entry(number), &nobody);
        } else {
            request.remote_addr = u64::from(at);
            (request.sg_list, request.num_sge) = (before.as_mut_ptr(), counts.0 as i32);
        }
        request.send_flags |= fence;
        chain::note(conn.entry(last), &noted);
        conn.posted.store(last.wrapping_add(1), Ordering::Release);
        rings.written.store(written.wrapping_add(units(len)), Ordering::Release);
        let list = if crosses { &raw mut leading } else { &raw mut request };
        // SAFETY: the queue pair lives while this half does; requests and pieces are on this stack,
        // and copied by the post, as inline bytes are; a header's place and the kept bytes are this
        // record's until it has completed, and registered for as long as the queue pair lives.
        let posted = unsafe { qp.post_all(list) };
        if is_signalled && posted.is_ok() {
            conn.signalled.store(last.wrapping_add(1), Ordering::Relaxed);
        }
        if posted.is_err() {
            // The device may have the first of two.
            conn.posted.store(number, Ordering::Release);
        }
        conn.end_turn();
        if posted.is_err() {
            if conn.fail(QpError::Fatal) {
                core.wants_step();
            }
            return Err(PostError::Failed(conn.error().unwrap_or(QpError::Fatal)));
        }
        tx.silent = if is_signalled { 0 } else { tx.silent + 1 };
        rings.told.store(freed, Ordering::Relaxed);
        Ok(())
    }
}

/// Divides pieces at a byte; how many pieces each part has.
fn split(
    pieces: &[abi::Sge],
    first: u32,
    before: &mut [abi::Sge; PIECES],
    behind: &mut [abi::Sge; PIECES],
) -> (usize, usize) {
    let mut left = first;
    let (mut here, mut there) = (before.iter_mut(), behind.iter_mut());
    let mut counts = (0, 0);
    for piece in pieces.iter().filter(|piece| piece.length != 0) {
        let len = piece.length.min(left);
        left -= len;
        if len != 0
            && let Some(to) = here.next()
        {
            *to = abi::Sge { length: len, ..*piece };
            counts.0 += 1;
        }
        if len < piece.length
            && let Some(to) = there.next()
        {
            *to = abi::Sge {
                addr: piece.addr + u64::from(len),
                length: piece.length - len,
                lkey: piece.lkey,
            };
            counts.1 += 1;
        }
    }
    counts
}

impl SendQueue for RingTx {
    fn max_message(&self) -> usize {
        longest(self.rings().peer_size.load(Ordering::Relaxed)) as usize
    }

    fn room(&self) -> usize {
        self.0.core.drain();
        let conn = self.0.conn();
        if conn.error().is_some()
            || self.0.credit(false) == 0
            || self.0.free_entries() <= RESERVE + 1
        {
            return 0;
        }
        let bytes = self.free(false) as usize * UNIT as usize;
        bytes.min(self.max_message()).saturating_sub(super::HEADER)
    }

    fn room_for_all(&self) -> usize {
        if self.room() == 0 { 0 } else { self.free(false) as usize * UNIT as usize }
    }

    #[inline]
    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let len = header.len() + payload.len();
        self.admit(len, options.control)?;
        let flags = if options.solicited { abi::SEND_SOLICITED } else { 0 };
        if len <= INLINE as usize {
            let mut bytes = [0u8; INLINE as usize];
            let cells = Cell::from_mut(&mut bytes[..len]).as_slice_of_cells();
            gather(cells, header, payload);
            let piece = abi::Sge { addr: cells.as_ptr() as u64, length: len as u32, lkey: 0 };
            let flags = flags | abi::SEND_INLINE;
            return self.post(id, &[piece], len as u32, flags, options.signalled);
        }
        // Bytes that the device does not know are no connection's.
        let Some([a, b]) = payload.kept() else { return Err(PostError::Unsupported) };
        let rings = self.rings();
        let (Some(a), Some(b)) = (rings.piece(a), rings.piece(b)) else {
            return Err(PostError::Unsupported);
        };
        if header.len() > HEADER_ROOM {
            return Err(PostError::TooLong);
        }
        let number = self.0.conn().posted.load(Ordering::Relaxed);
        let addr =
            rings.headers.load(Ordering::Relaxed) + (number % DEPTH) as u64 * HEADER_ROOM as u64;
        let lkey = rings.headers_key.load(Ordering::Relaxed);
        // SAFETY: a place of the connection's headers, whose last request has completed: there are
        // as many as requests that can be under way. As cells, because a device reads it.
        let place = unsafe { core::slice::from_raw_parts(addr as *const Cell<u8>, header.len()) };
        copy(place, header);
        let first = abi::Sge { addr, length: header.len() as u32, lkey };
        self.post(id, &[first, a, b], len as u32, flags, options.signalled)
    }

    fn post_read(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.0.post_read(id, local, remote)
    }

    fn post_write(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.0.post_write(id, local, remote)
    }

    fn allow(&mut self, messages: u32) {
        self.0.allow(messages);
    }

    fn reach(&mut self, ring: PeerRing) {
        let size = if PeerRing::LOG2.contains(&ring.log2) { 1 << ring.log2 } else { 0 };
        self.rings().peer_key.store(ring.key.0, Ordering::Relaxed);
        self.rings().peer_size.store(size, Ordering::Relaxed);
    }

    #[inline]
    fn owes_room(&self) -> bool {
        let rings = self.rings();
        let told = rings.told.load(Ordering::Relaxed);
        let more = rings.freed.load(Ordering::Acquire).wrapping_sub(told);
        more >= rings.size() / UNIT / 4
    }

    fn progress(&self) -> u32 {
        self.rings().peer_freed.load(Ordering::Acquire)
    }

    fn unread(&self) -> (u32, u32) {
        let conn = self.0.conn();
        let released = conn.released.load(Ordering::Acquire);
        (conn.arrived.load(Ordering::Acquire).wrapping_sub(released), released)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.0.poll_completion()
    }
}

/// Receiving half.
#[derive(Debug)]
pub struct RingRx {
    core: Shared<Core>,
    index: usize,
    owner: Owner,
    /// Address and length of the ring: a forked child reads it by these, whatever comes to have the
    /// place.
    ring: u64,
    size: u32,
    /// Where the next record begins, in units; wraps.
    tail: u32,
    /// Receives that are to be posted again.
    unposted: u32,
    borrowed: Borrowed,
}

/// Records that were reported and not released, by their positions, oldest first. Those that were
/// released stand only between others.
#[derive(Debug)]
struct Borrowed {
    places: [Option<u32>; BORROWED],
    first: usize,
    len: usize,
}

impl Borrowed {
    const fn new() -> Self {
        Self { places: [None; BORROWED], first: 0, len: 0 }
    }

    const fn is_full(&self) -> bool {
        self.len == BORROWED
    }

    fn at(&mut self, number: usize) -> Option<&mut Option<u32>> {
        self.places.get_mut((self.first + number) % BORROWED)
    }

    fn push(&mut self, position: u32) {
        let len = self.len;
        if let Some(place) = self.at(len) {
            *place = Some(position);
            self.len += 1;
        }
    }

    /// Whether it was borrowed.
    fn release(&mut self, position: u32) -> bool {
        let found =
            (0..self.len).find(|number| self.at(*number).is_some_and(|p| *p == Some(position)));
        let Some(place) = found.and_then(|number| self.at(number)) else { return false };
        *place = None;
        while self.len != 0 && self.at(self.len - 1).is_some_and(|place| place.is_none()) {
            self.len -= 1;
        }
        while self.len != 0 && self.at(0).is_some_and(|place| place.is_none()) {
            self.first = (self.first + 1) % BORROWED;
            self.len -= 1;
        }
        true
    }

    fn oldest(&self) -> Option<u32> {
        if self.len == 0 { None } else { self.places.get(self.first).copied().flatten() }
    }
}

impl RingRx {
    pub(crate) fn new(core: Shared<Core>, index: usize) -> Self {
        let conn = core.place(index);
        let (owner, size) = (conn.owner(index), conn.rings.size());
        let ring = conn.rings.ring.load(Ordering::Relaxed);
        Self { core, index, owner, ring, size, tail: 0, unposted: 0, borrowed: Borrowed::new() }
    }

    /// The connection's place, for [`Core::counts`].
    pub const fn index(&self) -> usize {
        self.index
    }

    fn conn(&self) -> &Conn {
        self.core.place(self.index)
    }

    fn fail(&self, why: QpError) {
        if self.conn().fail(why) {
            self.core.wants_step();
        }
    }

    #[inline]
    fn next(&mut self) -> Option<Received> {
        let core = self.core.clone();
        let conn = core.place(self.index);
        let reported = conn.reported.load(Ordering::Relaxed);
        if reported == conn.arrived.load(Ordering::Acquire) || self.borrowed.is_full() {
            return None;
        }
        let word = conn.inbox[reported as usize % INBOX].load(Ordering::Relaxed);
        let Some(len) = self.judge(word) else {
            self.fail(QpError::Framing);
            return None;
        };
        let message = Received { token: u64::from(self.tail), len };
        self.borrowed.push(self.tail);
        self.tail = self.tail.wrapping_add(units(len));
        conn.reported.store(reported.wrapping_add(1), Ordering::Release);
        self.unposted += 1;
        if self.unposted >= LIST {
            self.post_receives();
        }
        Some(message)
    }

    /// The length of the record that a completion is about; `None`: it cannot be.
    fn judge(&self, word: u64) -> Option<u32> {
        let (size, len) = (self.size, word as u32);
        let left = size - self.offset(self.tail);
        let len = match word >> 32 == 0 {
            true => Some(len).filter(|len| *len <= left)?,
            // The first request went up to the end of the ring.
            false => len.checked_add(left)?,
        };
        let used = self.tail.wrapping_sub(self.conn().rings.freed.load(Ordering::Relaxed));
        (len <= longest(size) && used + units(len) <= size / UNIT).then_some(len)
    }

    /// Of a position, in bytes from the ring's beginning.
    fn offset(&self, position: u32) -> u32 {
        (u64::from(position) * u64::from(UNIT) % u64::from(self.size.max(UNIT))) as u32
    }

    fn post_receives(&mut self) {
        let conn = self.conn();
        // SAFETY: the pointer of a queue pair that lives while this half does, or null.
        let qp = unsafe { RawQp::of(conn.qp.load(Ordering::Acquire)) };
        let Some(qp) = qp.filter(|_| conn.error().is_none()) else { return };
        let id = self.owner.receive(work_id::NO_BUFFER);
        // SAFETY: the queue pair lives while this half does, which is borrowed here.
        if unsafe { qp.post_empty_receives(id, self.unposted as usize) }.is_err() {
            self.fail(QpError::Fatal); // the peer was promised them
        }
        self.unposted = 0;
    }

    /// Bytes of a message, as they lie in the ring.
    fn cells(&self, message: Received, from: u32, len: u32) -> [&[Cell<u8>]; 2] {
        let size = self.size;
        if from > message.len || len > message.len - from || message.len > size {
            return [&[], &[]];
        }
        let at = (self.offset(message.token as u32) + from) % size.max(UNIT);
        let first = len.min(size - at);
        let ring = self.ring as *const Cell<u8>;
        // SAFETY: within the ring, which is there as long as this half is; as cells, because the
        // peer may write there at any time.
        unsafe {
            [
                core::slice::from_raw_parts(ring.add(at as usize), first as usize),
                core::slice::from_raw_parts(ring, (len - first) as usize),
            ]
        }
    }
}

impl ReceiveQueue for RingRx {
    #[inline]
    fn posted(&self) -> u16 {
        RING_MESSAGES as u16
    }

    #[inline]
    fn poll_receive(&mut self) -> Result<Option<Received>, QpError> {
        if let Some(message) = self.next() {
            return Ok(Some(message));
        }
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
        let [a, b] = self.cells(message, 0, len as u32);
        let cells = a.iter().chain(b);
        dst.iter_mut().zip(cells).for_each(|(byte, cell)| *byte = cell.get());
        a.len() + b.len()
    }

    #[inline]
    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter) {
        for cells in self.cells(message, offset, len) {
            if !cells.is_empty() {
                sink.accept(cells);
            }
        }
    }

    #[inline]
    fn release(&mut self, message: Received) {
        if self.borrowed.release(message.token as u32) {
            let conn = self.core.place(self.index);
            let freed = self.borrowed.oldest().unwrap_or(self.tail);
            conn.rings.freed.store(freed, Ordering::Release);
            conn.released.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for RingRx {
    fn drop(&mut self) {
        self.conn().halves.fetch_and(!2, Ordering::Release);
        self.core.wants_step();
    }
}

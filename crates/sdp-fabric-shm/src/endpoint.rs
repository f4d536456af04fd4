//! Queue pair halves on a shared segment.
//!
//! A [`ShmTx`] or [`ShmRx`] is a view: private cursors plus the segment. The socket layer builds one
//! under the half's lock, works, and stores the cursors back ([`ShmTx::cursors`]), so that any process
//! of the family can go on where another stopped. Nothing is published until the caller says so, so
//! that several messages of one call cost one store and one look at the arm word.
//!
//! One-sided work through `process_vm_readv` comes with zero copy; until then it is
//! [`PostError::Unsupported`], which callers must expect of any fabric.

use core::{cell::Cell, mem::MaybeUninit};

use sdp_rdma::{
    fabric::{Gather, PostError, QpError, ReceiveQueue, Received, Scatter, SendOptions, SendQueue},
    key::{LocalSlice, RemoteSlice},
    work::{Completion, Opcode, Status, WorkId},
};
use sdp_shm::{
    layout::Segment,
    ring::{CONTROL_RESERVE, Consumer, HEADER_MAX, Producer, PushError, Record, record_bytes},
};
use sdp_sys::memfd;

/// Longest message in any ring: the most payload behind the longest header. The length has 16 bits.
pub const MESSAGE_MAX: usize = PAYLOAD_MAX + HEADER_MAX;
const PAYLOAD_MAX: usize = 63 * 1024;
/// Most payload of one message in the smallest ring.
const PAYLOAD_LEAST: usize = 16 * 1024;
/// Header that [`SendQueue::room`] leaves room for.
const BASE_HEADER: usize = 16;
/// Most ring bytes that one [`ShmTx::reclaim`] looks at: the half's lock is held meanwhile. A multiple
/// of the page size.
pub const RECLAIM_MAX: u64 = 256 * 1024;
/// Completions kept for the caller; signalled posts beyond answer `Full`.
const COMPLETIONS: usize = 16;
/// Messages that may be released before an older one is.
const DEFERRED: usize = 16;

/// Sending half.
#[derive(Debug, Clone, Copy)]
pub struct ShmTx {
    producer: Producer,
    /// The first `completions` are valid, oldest first. Not initialised: a view is made for each call.
    completed: [MaybeUninit<Completion>; COMPLETIONS],
    completions: usize,
    failed: Option<QpError>,
}

impl ShmTx {
    /// Resumes at private cursors (tail, consumer's head as last seen), with the origin that the segment says.
    #[inline]
    pub fn new(segment: Segment, half: usize, tail: u64, head: u64) -> Self {
        Self::of(Producer::new(segment, half, tail, head))
    }

    /// The same with a private copy of the origin.
    #[inline]
    pub fn resume(segment: Segment, half: usize, tail: u64, head: u64, origin: u64) -> Self {
        Self::of(Producer::resume(segment, half, tail, head, origin))
    }

    #[inline]
    fn of(producer: Producer) -> Self {
        Self {
            producer,
            completed: [const { MaybeUninit::uninit() }; COMPLETIONS],
            completions: 0,
            failed: None,
        }
    }

    /// (tail, consumer's head as last seen), to be stored.
    #[inline]
    pub fn cursors(&self) -> (u64, u64) {
        (self.producer.tail(), self.producer.seen_head())
    }

    /// Cursor at which index 0 of the ring is.
    #[inline]
    pub fn origin(&self) -> u64 {
        self.producer.origin()
    }

    /// Bytes of the ring that a message of `len` bytes takes, without padding that may lie before
    /// it.
    #[inline(always)]
    pub fn footprint(&self, len: usize) -> u64 {
        record_bytes(len) as u64
    }

    /// Makes everything posted visible to the peer: one store.
    #[inline]
    pub fn publish(&self) {
        self.producer.publish();
    }

    /// Reads the consumer's cursor again.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), QpError> {
        self.producer.refresh().map_err(|_| self.fail(QpError::Framing))
    }

    /// Whether the peer has taken everything (by the cursor last seen).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.producer.is_empty()
    }

    /// Gives memory of this ring back to the kernel that holds nothing for the peer: idle pages in
    /// the [`RECLAIM_MAX`] bytes from `offset` on. Returns how many bytes of the ring that were. The
    /// caller holds the half's lock: no other thread writes there. The peer reads only published
    /// bytes; a peer that reads elsewhere finds zeros.
    ///
    /// # Errors
    /// [`QpError::Framing`] for an impossible cursor of the peer.
    pub fn reclaim(&mut self, offset: u64) -> Result<Reclaimed, QpError> {
        self.refresh()?;
        let end = offset.saturating_add(RECLAIM_MAX);
        let mut bytes = 0;
        for (from, len) in self.producer.idle_pages() {
            let to = from.saturating_add(len).min(end);
            let from = from.max(offset);
            let len = to.saturating_sub(from) as usize;
            if let (Some(at), 1..) = (self.producer.at(from), len) {
                // SAFETY: whole pages inside the ring, in which no reader has anything left to
                // read.
                if unsafe { memfd::reclaim(at, len) }.is_err() {
                    return Ok(Reclaimed::Refused);
                }
                bytes += len;
            }
        }
        Ok(Reclaimed::Bytes(bytes))
    }

    fn fail(&mut self, error: QpError) -> QpError {
        *self.failed.get_or_insert(error)
    }
}

/// How [`ShmTx::reclaim`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaimed {
    /// So many bytes of the ring hold no memory any more.
    Bytes(usize),
    /// The kernel refuses (memory locked by the program, an old kernel): it would again.
    Refused,
}

/// Most payload of one message in a ring of so many bytes: several fit. Longer sends are cut.
#[inline]
pub const fn payload_max(ring_bytes: u64) -> usize {
    let several = ring_bytes as usize / 4;
    if several > PAYLOAD_MAX {
        PAYLOAD_MAX
    } else if several < PAYLOAD_LEAST {
        PAYLOAD_LEAST
    } else {
        several
    }
}

impl SendQueue for ShmTx {
    fn max_message(&self) -> usize {
        payload_max(self.producer.size()) + HEADER_MAX
    }

    #[inline]
    fn room(&self) -> usize {
        self.producer.room().min(self.max_message()).saturating_sub(BASE_HEADER)
    }

    #[inline]
    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        if let Some(error) = self.failed {
            return Err(PostError::Failed(error));
        }
        let len = payload.len();
        if header.len() > HEADER_MAX || header.len() + len > self.max_message() {
            return Err(PostError::TooLong);
        }
        if options.signalled && self.completions >= COMPLETIONS {
            return Err(PostError::Full);
        }
        let pushed = self.producer.push(header, len, options.control, |offset, cells| {
            payload.copy_to(offset, cells);
        });
        match pushed {
            Ok(()) => {}
            Err(PushError::Full) => return Err(PostError::Full),
            Err(PushError::TooLong) => return Err(PostError::TooLong),
            Err(PushError::Corrupt(_)) => {
                return Err(PostError::Failed(self.fail(QpError::Framing)));
            }
        }
        // The bytes are in the ring: nothing further can go wrong with them on this side.
        if options.signalled
            && let Some(entry) = self.completed.get_mut(self.completions)
        {
            entry.write(Completion { id, opcode: Opcode::Send, status: Status::Success });
            self.completions += 1;
        }
        Ok(())
    }

    fn post_read(&mut self, _: WorkId, _: LocalSlice, _: RemoteSlice) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn post_write(&mut self, _: WorkId, _: LocalSlice, _: RemoteSlice) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        // Oldest first: completions come in the order of the posts.
        self.completions = self.completions.checked_sub(1)?;
        // SAFETY: there was at least one, so the first is initialised; it is rotated out of the valid part.
        let oldest = unsafe { self.completed.first()?.assume_init() };
        self.completed.rotate_left(1);
        Some(oldest)
    }
}

/// Receiving half.
#[derive(Debug, Clone, Copy)]
pub struct ShmRx {
    consumer: Consumer,
    limit: u64,
    /// The first `waiting` were released before their turn. The rest is not initialised: a view is made
    /// for each call.
    deferred: [MaybeUninit<Received>; DEFERRED],
    waiting: usize,
    failed: Option<QpError>,
}

impl ShmRx {
    /// Resumes at private cursors (scan, head).
    #[inline]
    pub fn new(segment: Segment, half: usize, scan: u64, head: u64) -> Self {
        let consumer = Consumer::new(segment, half, scan, head);
        Self {
            consumer,
            limit: u64::MAX,
            deferred: [const { MaybeUninit::uninit() }; DEFERRED],
            waiting: 0,
            failed: None,
        }
    }

    /// (scan, head), to be stored.
    #[inline]
    pub fn cursors(&self) -> (u64, u64) {
        (self.consumer.scan(), self.consumer.head())
    }

    /// Reports no message that begins at or behind this ring cursor (the lane ends there).
    #[inline]
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The message of `len` bytes that begins where everything before was released: an earlier view
    /// reported it, and it was read in part.
    #[inline(always)]
    pub fn current(&self, len: u32) -> Received {
        Received { token: self.consumer.head(), len }
    }

    /// A copy for looking ahead: it releases nothing, however far it walks.
    #[inline]
    pub fn onlooker(&self) -> Self {
        Self { consumer: self.consumer.onlooker(), ..*self }
    }

    /// Publishes the released room. For an owner that works on an [`ShmRx::onlooker`], because it
    /// stores how far it is before the producer may have the room.
    #[inline]
    pub fn publish(&self) {
        self.consumer.publish();
    }

    /// The message at the head, if it was released before those in front of it.
    #[inline]
    fn take_deferred(&mut self) -> Option<Received> {
        let head = self.consumer.head();
        let valid = self.deferred.get_mut(..self.waiting)?;
        // SAFETY: the first `waiting` are initialised.
        let at = valid.iter().position(|entry| unsafe { entry.assume_init() }.token == head)?;
        valid.swap(at, self.waiting - 1);
        self.waiting -= 1;
        // SAFETY: the first `waiting` + 1 were initialised until now; this was the last of them
        // and is none any more.
        Some(unsafe { self.deferred.get(self.waiting)?.assume_init() })
    }

    /// Contiguous ring bytes of a message from `offset`, for a system call that writes them elsewhere.
    pub fn piece(&self, message: Received, offset: u32) -> &[Cell<u8>] {
        self.consumer.piece(record(message), offset)
    }
}

#[inline]
fn record(message: Received) -> Record {
    Record { start: message.token, len: message.len }
}

impl ReceiveQueue for ShmRx {
    fn posted(&self) -> u16 {
        u16::MAX
    }

    #[inline]
    fn poll_receive(&mut self) -> Result<Option<Received>, QpError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        match self.consumer.next(self.limit) {
            Ok(found) => Ok(found.map(|r| Received { token: r.start, len: r.len })),
            Err(_) => Err(*self.failed.get_or_insert(QpError::Framing)),
        }
    }

    #[inline]
    fn copy_header(&self, message: Received, dst: &mut [u8]) -> usize {
        let len = dst.len().min(message.len as usize);
        let mut done = 0;
        self.consumer.read(record(message), 0, len as u32, |cells| {
            for (byte, cell) in dst.iter_mut().skip(done).zip(cells) {
                *byte = cell.get();
            }
            done += cells.len();
        });
        len
    }

    #[inline]
    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter) {
        self.consumer.read(record(message), offset, len, |cells: &[Cell<u8>]| sink.accept(cells));
    }

    #[inline]
    fn release(&mut self, message: Received) {
        if message.token != self.consumer.head() {
            if let Some(entry) = self.deferred.get_mut(self.waiting) {
                entry.write(message);
                self.waiting += 1;
            }
            return;
        }
        self.consumer.free_to(record(message).end());
        while let Some(next) = self.take_deferred() {
            self.consumer.free_to(record(next).end());
        }
    }
}

/// Ring bytes that data may fill in a ring of `ring_bytes`.
pub const fn data_window(ring_bytes: u32) -> u64 {
    ring_bytes as u64 - CONTROL_RESERVE
}

//! The ring of records of one half.
//!
//! A record is `{u32 length, u32 kind}` followed by `length` bytes of message, padded to 16. Kinds are
//! MSG and PAD; a PAD fills the rest of the lap. The 8-byte header and the first 56 bytes of a message
//! never wrap; the rest may. `tail` and `head` are monotonic counts of ring bytes, index = (count −
//! origin) modulo size. One store of the tail publishes a record: a producer killed before it has sent
//! nothing.
//!
//! # Restart in the first pages
//! A producer that finds the ring empty well into the lap makes its tail the *origin*: the next record is
//! at index 0. So a connection with small messages lives in the first page of its ring and never touches
//! the others. Records of more than [`RESTART_RECORD_MAX`] bytes do not restart: they go round. Nothing is
//! written into the ring for a restart, and no room is lost. Whether it is empty is asked once per
//! [`RESTART_EVERY`] bytes of the ring only: the consumer's cursor is in a cache line of the consumer's CPU.
//!
//! The origin is never beyond the published head: the ring was empty there. So all that the
//! consumer still has to read lies where the origin says that it can see now, and as long as it has
//! anything left to read, the origin stays as it is. A consumer that has read everything looks at
//! the tail first, then at the origin, which was stored before.
//!
//! # Hostile peer
//! The consumer copies `tail` once and demands `head <= tail <= head + size` and alignment; it
//! copies each record header once and demands a known kind and a length within the published bytes.
//! The producer demands `head <= tail` and `tail - head <= size` of the head that the consumer
//! publishes. Anything else is [`Corrupt`]; the caller resets the connection. Payload is copied out
//! exactly once.

use core::{
    cell::Cell,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{layout::Segment, sync};

/// Bytes before each message.
pub const RECORD_HEADER: usize = 8;
/// Alignment of records.
pub const ALIGN: usize = 16;
/// Room that only control records may use. Bounds the control messages that an end can have to send
/// while data fills the ring.
pub const CONTROL_RESERVE: u64 = 1024;
/// Bytes of a record that never wrap.
pub const CONTIGUOUS: usize = 64;
/// Header of the messages that have a shorter way through the ring.
pub const PLAIN_HEADER: usize = 16;
/// Longest message header handed to [`Producer::push`].
pub const HEADER_MAX: usize = CONTIGUOUS - RECORD_HEADER;
/// An empty ring restarts at its first page from this index on. Below one page, so that small
/// traffic keeps to one page per ring.
pub const RESTART_INDEX: u64 = 3072;

/// Ring bytes of the largest record for which an empty ring restarts. Larger ones are faster where they
/// have not been lately: their cache lines are the reader's for longer than it takes to fetch them.
pub const RESTART_RECORD_MAX: u64 = 6 * 1024;

/// Grain in which memory is given back. The first page of a ring is kept: small traffic lives there.
pub const PAGE: u64 = 4096;
/// Beyond [`RESTART_INDEX`] the consumer's cursor is read again once per so many bytes of the ring; a
/// power of two.
pub const RESTART_EVERY: u64 = 1024;
/// How far ahead of their positions both ends ask for their next cache lines, in bytes.
const AHEAD: u64 = 256;

/// Kind of a record: a message.
pub const KIND_MESSAGE: u32 = 1;
/// Kind of a record: padding up to the end of the lap.
pub const KIND_PAD: u32 = 2;

/// The other end wrote something impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corrupt {
    /// A cursor moved backwards, too far, or off alignment.
    Cursor,
    /// A record header with an unknown kind or an impossible length.
    Record,
}

/// Why a push did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushError {
    /// No room now.
    Full,
    /// Longer than the ring can ever take.
    TooLong,
    /// The consumer's cursor is impossible.
    Corrupt(Corrupt),
}

/// Whether a record of `need` bytes at `index` is the first one in its [`RESTART_EVERY`] bytes, as far as
/// records are of about one size.
#[inline]
const fn is_time_to_ask(index: u64, need: u64) -> bool {
    index & (RESTART_EVERY - 1) < need
}

/// Whether an empty ring restarts at `index` for a record of `need` bytes.
#[inline]
const fn restarts_at(index: u64, need: u64) -> bool {
    index >= RESTART_INDEX && need <= RESTART_RECORD_MAX
}

/// Where in a ring of `size` bytes cursor `at` is. The origin comes from the segment: a forged one gives an
/// aligned index within the ring, too.
#[inline(always)]
const fn index_of(at: u64, origin: u64, size: u64) -> u64 {
    at.wrapping_sub(origin) & (size - 1) & !(ALIGN as u64 - 1)
}

/// The segment's word for where index 0 of a half's ring is, unchecked. The result is no more than
/// [`index_of`] makes of it.
#[inline(always)]
pub(crate) fn origin(segment: Segment, half: usize) -> u64 {
    // Stored before the tail that made the consumer look, and read after it.
    segment.half(half).producer.origin.load(Ordering::Relaxed)
}

/// The segment's word for where index 0 of a half's ring is, for its consumer, whose head is
/// `head`. `seen` is the result of an earlier call when the head was not beyond where it is now, or
/// 0, which is right for any head. `None`: forged, because misaligned or beyond the head.
#[inline(always)]
pub fn checked_origin(segment: Segment, half: usize, seen: u64, head: u64) -> Option<u64> {
    let now = origin(segment, half);
    if now == seen {
        return Some(seen); // the head never goes back
    }
    if !now.is_multiple_of(ALIGN as u64) || now > head {
        return None;
    }
    // Seldom. Else a record's address is known before the producer's line is here, and both are fetched at
    // the same time.
    Some(sdp_sys::cache::opaque(now))
}

const fn align_up(n: usize) -> usize {
    (n + ALIGN - 1) & !(ALIGN - 1)
}

/// Ring bytes that a message of `len` bytes takes.
pub const fn record_bytes(len: usize) -> usize {
    align_up(RECORD_HEADER + len)
}

/// The producer's view: private cursors over a half of a segment.
#[derive(Debug, Clone, Copy)]
pub struct Producer {
    segment: Segment,
    half: usize,
    tail: u64,
    /// Consumer's head as last seen and checked.
    head: u64,
    /// Cursor at which index 0 is.
    origin: u64,
}

impl Producer {
    /// Resumes at private cursors (`0, 0` for a new ring), with the origin that the segment says. A peer may
    /// have forged that: then it finds its own bytes elsewhere.
    #[inline]
    pub fn new(segment: Segment, half: usize, tail: u64, head: u64) -> Self {
        Self::resume(segment, half, tail, head, origin(segment, half))
    }

    /// Resumes at private cursors and a private copy of the origin: the line with the segment's was last
    /// with the consumer.
    #[inline]
    pub fn resume(segment: Segment, half: usize, tail: u64, head: u64, origin: u64) -> Self {
        Self { segment, half, tail, head, origin }
    }

    /// Cursor at which index 0 of the ring is.
    #[inline]
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// The ring is empty: the next record goes to index 0. A consumer that sees it already has
    /// nothing to read before the tail, which is there. The caller that stores the producer's
    /// private words stores the new origin with them, also if no record follows.
    #[inline]
    fn restart(&mut self) {
        self.origin = self.tail;
        self.segment.half(self.half).producer.origin.store(self.origin, Ordering::Relaxed);
    }

    /// Count of ring bytes published.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Consumer's head as last seen.
    #[inline]
    pub fn seen_head(&self) -> u64 {
        self.head
    }

    /// Bytes of the ring.
    #[inline]
    pub fn size(&self) -> u64 {
        u64::from(self.segment.ring_bytes())
    }

    /// Reads and checks the consumer's head.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), Corrupt> {
        let head = self.segment.half(self.half).consumer.head.load(Ordering::Acquire);
        if !head.is_multiple_of(ALIGN as u64) || head < self.head || head > self.tail {
            return Err(Corrupt::Cursor);
        }
        self.head = head;
        Ok(())
    }

    /// Whether everything published has been freed (after [`Producer::refresh`]).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Free bytes by the cursor last seen.
    #[inline]
    pub fn free(&self) -> u64 {
        self.size().wrapping_sub(self.tail.wrapping_sub(self.head))
    }

    /// Parts of the ring, (offset, bytes) in whole pages, that hold nothing which the consumer still has
    /// to read, by the cursor last seen: only the producer writes there, so its owner may give them back.
    /// The first page is never among them. Empty parts have no bytes.
    pub fn idle_pages(&self) -> [(u64, u64); 2] {
        let size = self.size();
        let inward = |from: u64, to: u64| {
            // Rounded inwards: the pages at both ends may hold live bytes.
            let from = from.next_multiple_of(PAGE).max(PAGE);
            let to = to & !(PAGE - 1);
            (from, to.saturating_sub(from))
        };
        let index = |at| index_of(at, self.origin, size);
        let (from, to) = (index(self.tail), index(self.head));
        match self.free() {
            0 => [(0, 0); 2],
            free if free == size => [inward(0, size), (0, 0)],
            _ if from < to => [inward(from, to), (0, 0)],
            _ => [inward(from, size), inward(0, to)],
        }
    }

    /// First byte of an offset in this ring; `None` beyond it.
    pub fn at(&self, offset: u64) -> Option<NonNull<u8>> {
        let ring = self.segment.ring(self.half).cast::<u8>();
        // SAFETY: below the ring size, so within the mapping.
        (offset < self.size()).then(|| unsafe { ring.add(offset as usize) })
    }

    /// Message bytes that fit now by the cursor last seen, for data.
    #[inline]
    pub fn room(&self) -> usize {
        let lap_left = self.size() - index_of(self.tail, self.origin, self.size());
        let pad = if lap_left < CONTIGUOUS as u64 { lap_left } else { 0 };
        let free = self.free().saturating_sub(CONTROL_RESERVE + pad);
        (free as usize & !(ALIGN - 1)).saturating_sub(RECORD_HEADER)
    }

    /// Writes one record, without publishing it: `header`, then `payload_len` bytes that `fill` copies
    /// (called with the ring's memory in one or two pieces and the payload offset of each). Returns the
    /// bytes that `fill` said it wrote; a short count shortens the record.
    ///
    /// `control`: may use the reserve. Publish with [`Producer::publish`].
    #[inline]
    pub fn push<F>(
        &mut self,
        header: &[u8],
        payload_len: usize,
        control: bool,
        mut fill: F,
    ) -> Result<(), PushError>
    where
        F: FnMut(usize, &[Cell<u8>]),
    {
        let size = self.size();
        let total = RECORD_HEADER + header.len() + payload_len;
        let need = align_up(total) as u64;
        let reserve = if control { 0 } else { CONTROL_RESERVE };
        if header.len() > HEADER_MAX || need + CONTROL_RESERVE + CONTIGUOUS as u64 > size {
            return Err(PushError::TooLong);
        }
        let mut index = index_of(self.tail, self.origin, size);
        if restarts_at(index, need) {
            if self.head != self.tail && is_time_to_ask(index, need) {
                self.refresh().map_err(PushError::Corrupt)?;
            }
            if self.head == self.tail {
                self.restart();
                index = 0;
            }
        }
        let mut lap_left = size - index;
        let pad = if lap_left < CONTIGUOUS as u64 { lap_left } else { 0 };
        if self.free() < need + pad + reserve {
            self.refresh().map_err(PushError::Corrupt)?;
            if self.free() < need + pad + reserve {
                return Err(PushError::Full);
            }
        }
        if pad != 0 {
            self.write_record_header(index, (lap_left as usize - RECORD_HEADER) as u32, KIND_PAD);
            self.tail = self.tail.wrapping_add(pad);
            index = 0;
            lap_left = size;
        }
        self.write_record_header(index, (header.len() + payload_len) as u32, KIND_MESSAGE);
        let at = index as usize + RECORD_HEADER;
        for (cell, byte) in self.cells(at, header.len()).iter().zip(header) {
            cell.set(*byte);
        }
        let at = at + header.len();
        let first = payload_len.min(lap_left as usize - RECORD_HEADER - header.len());
        if first != 0 {
            fill(0, self.cells(at, first));
        }
        if first < payload_len {
            fill(first, self.cells(0, payload_len - first));
        }
        self.tail = self.tail.wrapping_add(need);
        Ok(())
    }

    /// [`Producer::push`] for the common case: a header of 16 bytes, given as two words in the order of
    /// memory on a little-endian host, and a payload that `fill` writes to one
    /// place, with neither padding nor wrap. False when it is not that simple, or when there is no room;
    /// no record was written then.
    #[inline(always)]
    pub fn push_fast(
        &mut self,
        header: [u64; 2],
        payload_len: usize,
        fill: impl FnOnce(&[Cell<u8>]),
    ) -> bool {
        let size = self.size();
        let total = RECORD_HEADER + PLAIN_HEADER + payload_len;
        let need = align_up(total) as u64;
        let mut index = index_of(self.tail, self.origin, size);
        let restarts = restarts_at(index, need);
        let may_restart = restarts && is_time_to_ask(index, need);
        if (may_restart || self.free() < need + CONTROL_RESERVE) && self.refresh().is_err() {
            return false;
        }
        if restarts && self.head == self.tail {
            self.restart();
            index = 0;
        }
        let lap_left = size - index;
        if lap_left < need || lap_left < CONTIGUOUS as u64 || self.free() < need + CONTROL_RESERVE {
            return false;
        }
        // The bytes behind were read by the consumer a lap ago: their cache lines are on its CPU.
        let ahead = index.wrapping_add(need).wrapping_add(AHEAD) & (size - 1);
        if let Some(byte) = cells(self.segment, self.half, ahead as usize, 1).first() {
            sdp_sys::cache::will_write(byte.as_ptr());
        }
        self.write_record_header(index, (PLAIN_HEADER + payload_len) as u32, KIND_MESSAGE);
        let [first, second] = header;
        // SAFETY: index is a multiple of 16 and at least 64 bytes of the lap follow; mapped by
        // `Segment::new`'s contract and accessed as atomics.
        unsafe {
            let words =
                self.segment.ring(self.half).as_ptr().add(index as usize).cast::<AtomicU64>();
            (*words.add(1)).store(first.to_le(), Ordering::Relaxed);
            (*words.add(2)).store(second.to_le(), Ordering::Relaxed);
        }
        sync::ring_write(self.segment, index as usize + RECORD_HEADER, PLAIN_HEADER);
        fill(self.cells(index as usize + RECORD_HEADER + PLAIN_HEADER, payload_len));
        self.tail = self.tail.wrapping_add(need);
        true
    }

    /// Publishes everything pushed since the last call: one store.
    #[inline]
    pub fn publish(&self) {
        // Pairs with the acquire load in `Consumer::refresh`: the record's bytes are visible first.
        self.segment.half(self.half).producer.tail.store(self.tail, Ordering::Release);
    }

    #[inline]
    fn write_record_header(&self, index: u64, len: u32, kind: u32) {
        // SAFETY: index is a multiple of 16 below the ring size, so eight bytes fit there; the memory
        // is mapped by `Segment::new`'s contract and accessed as atomics.
        unsafe {
            let at = self.segment.ring(self.half).as_ptr().add(index as usize).cast::<AtomicU64>();
            (*at).store(u64::from(len) | u64::from(kind) << 32, Ordering::Relaxed);
        }
        sync::ring_write(self.segment, index as usize, RECORD_HEADER);
    }

    #[inline]
    fn cells(&self, at: usize, len: usize) -> &[Cell<u8>] {
        sync::ring_write(self.segment, at, len);
        cells(self.segment, self.half, at, len)
    }
}

/// Ring bytes `at .. at + len` of a half, clamped to the ring.
#[inline]
fn cells(segment: Segment, half: usize, at: usize, len: usize) -> &'static [Cell<u8>] {
    let size = segment.ring_bytes() as usize;
    let at = at.min(size);
    let len = len.min(size - at);
    // SAFETY: clamped to the mapped ring. `Cell<u8>` has the layout of `u8` and promises nothing
    // about other writers. The lifetime is bounded by `Segment::new`'s contract: callers of this
    // private function hand the slice on only for the length of one call.
    unsafe {
        core::slice::from_raw_parts(segment.ring(half).as_ptr().cast::<Cell<u8>>().add(at), len)
    }
}

/// A record found by the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Ring cursor of its header.
    pub start: u64,
    /// Message length in bytes.
    pub len: u32,
}

impl Record {
    /// Cursor behind the record.
    #[inline]
    pub fn end(self) -> u64 {
        self.start.wrapping_add(record_bytes(self.len as usize) as u64)
    }
}

/// The consumer's view: private cursors over a half of a segment.
#[derive(Debug, Clone, Copy)]
pub struct Consumer {
    segment: Segment,
    half: usize,
    /// Next record to report.
    scan: u64,
    /// Freed up to here.
    head: u64,
    /// Producer's tail as last seen and checked.
    tail: u64,
    /// Cursor at which index 0 is, as the producer said when the tail was read. Checked.
    origin: u64,
    /// A PAD (from, to) that was skipped while something older was still borrowed. One is enough: a
    /// second one would end a whole lap later, beyond the bytes that `head` allows to be published.
    skipped: (u64, u64),
    /// Does not publish the room that it frees: its owner does when it is time
    /// ([`Consumer::publish`]), or it stays unpublished.
    is_quiet: bool,
}

impl Consumer {
    /// Resumes at private cursors (`0, 0` for a new ring); `scan` is `head`, or the end of the one
    /// record that begins at `head` and is still borrowed.
    #[inline]
    pub fn new(segment: Segment, half: usize, scan: u64, head: u64) -> Self {
        // A forged one is corrupt as soon as it is asked for a message; until then 0 is as good.
        let origin = checked_origin(segment, half, 0, head).unwrap_or(0);
        Self { segment, half, scan, head, tail: scan, origin, skipped: (0, 0), is_quiet: false }
    }

    /// A copy that walks on without freeing anything for the producer, not even a PAD: records that
    /// it passes stay as they are for the cursors that it was copied from.
    #[inline]
    pub fn onlooker(&self) -> Self {
        Self { is_quiet: true, ..*self }
    }

    /// Publishes the room freed so far. For an owner that walks as an onlooker because it has to
    /// store other words first: once published, the bytes are the producer's.
    #[inline]
    pub fn publish(&self) {
        // Pairs with the acquire load in `Producer::refresh`: our reads of the freed bytes come first.
        self.segment.half(self.half).consumer.head.store(self.head, Ordering::Release);
    }

    /// Cursor of the next record to report.
    #[inline]
    pub fn scan(&self) -> u64 {
        self.scan
    }

    /// Freed up to here.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Reads and checks the producer's tail.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), Corrupt> {
        // Pairs with the release store in `Producer::publish`.
        let tail = self.segment.half(self.half).producer.tail.load(Ordering::Acquire);
        if !tail.is_multiple_of(ALIGN as u64)
            || tail < self.tail
            || tail.wrapping_sub(self.head) > u64::from(self.segment.ring_bytes())
        {
            return Err(Corrupt::Cursor);
        }
        self.origin = checked_origin(self.segment, self.half, self.origin, self.head)
            .ok_or(Corrupt::Cursor)?;
        self.tail = tail;
        Ok(())
    }

    /// Whether the producer has published beyond the reported position; one load, nothing checked.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.segment.half(self.half).producer.tail.load(Ordering::Acquire) != self.scan
    }

    /// The next record before ring cursor `limit`, if one is published. PADs are skipped, and freed at
    /// once when nothing older is still borrowed.
    #[inline]
    pub fn next(&mut self, limit: u64) -> Result<Option<Record>, Corrupt> {
        let size = u64::from(self.segment.ring_bytes());
        for _ in 0..2 {
            if self.scan == self.tail {
                self.refresh()?;
            }
            if self.scan >= limit || self.scan == self.tail {
                return Ok(None);
            }
            let index = index_of(self.scan, self.origin, size);
            let header = self.record_header(index);
            let (len, kind) = (header as u32, (header >> 32) as u32);
            let available = self.tail.wrapping_sub(self.scan);
            let record = Record { start: self.scan, len };
            let end = record.end();
            if end.wrapping_sub(self.scan) > available {
                return Err(Corrupt::Record);
            }
            match kind {
                KIND_MESSAGE if size - index >= CONTIGUOUS as u64 => {
                    self.scan = end;
                    return Ok(Some(record));
                }
                KIND_PAD if end.wrapping_sub(self.scan) == size - index => {
                    let start = self.scan;
                    self.scan = end;
                    if self.head == start {
                        self.free_to(end);
                    } else {
                        self.skipped = (start, end);
                    }
                }
                _ => return Err(Corrupt::Record),
            }
        }
        // Two PADs in a row: no producer of ours does that.
        Err(Corrupt::Record)
    }

    /// Hands message bytes `offset .. offset + len` to `take`, in one or two pieces. Clamped to the
    /// record.
    #[inline]
    pub fn read(&self, record: Record, offset: u32, len: u32, take: impl FnMut(&[Cell<u8>])) {
        read_record(self.segment, self.half, self.origin, record, offset, len, take);
    }

    /// Message bytes from `offset` on, as far as they lie without a wrap, for a system call that
    /// writes ring bytes into a file descriptor.
    pub fn piece(&self, record: Record, offset: u32) -> &[Cell<u8>] {
        let size = self.segment.ring_bytes() as usize;
        let offset = offset.min(record.len) as usize;
        let index = index_of(record.start, self.origin, size as u64) as usize;
        let at = (index + RECORD_HEADER + offset) & (size - 1);
        let len = (record.len as usize - offset).min(size - at);
        cells(self.segment, self.half, at, len)
    }

    /// Frees everything before ring cursor `to` and publishes the head, unless the view is an onlooker.
    #[inline]
    pub fn free_to(&mut self, to: u64) {
        if to <= self.head || to > self.scan {
            return;
        }
        let to = if to == self.skipped.0 { self.skipped.1.max(to) } else { to };
        self.head = to;
        if !self.is_quiet {
            self.publish();
        }
    }

    #[inline]
    fn record_header(&self, index: u64) -> u64 {
        sync::ring_read(self.segment, index as usize, RECORD_HEADER);
        // SAFETY: index is a multiple of 16 below the ring size; mapped by `Segment::new`'s contract.
        unsafe {
            let at = self.segment.ring(self.half).as_ptr().add(index as usize).cast::<AtomicU64>();
            (*at).load(Ordering::Relaxed)
        }
    }
}

/// A message found by [`fast_record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastRecord {
    /// Where it is.
    pub record: Record,
    /// Its first 16 bytes, copied once: words in the order of memory on a little-endian host.
    pub header: [u64; 2],
}

/// The message at cursor `at` of a half's ring that is published up to `end` and has its index 0 at
/// `origin`, for a caller that walks over records that need no more than that. `None`: no whole
/// message of at least a header there, be it padding or damage: [`Consumer::next`] finds out which.
#[inline(always)]
pub fn fast_record(
    segment: Segment,
    half: usize,
    origin: u64,
    at: u64,
    end: u64,
) -> Option<FastRecord> {
    let size = u64::from(segment.ring_bytes());
    let index = index_of(at, origin, size);
    if size - index < CONTIGUOUS as u64 {
        return None;
    }
    let word = |i: usize| {
        sync::ring_read(segment, index as usize + 8 * i, 8);
        // SAFETY: index is a multiple of 16 at least 64 below the ring size, i below 3; mapped by
        // `Segment::new`'s contract.
        unsafe {
            let words = segment.ring(half).as_ptr().add(index as usize).cast::<AtomicU64>();
            (*words.add(i)).load(Ordering::Relaxed)
        }
    };
    let first = word(0);
    let (len, kind) = (first as u32, (first >> 32) as u32);
    let record = Record { start: at, len };
    if kind != KIND_MESSAGE
        || (len as usize) < PLAIN_HEADER
        || record.end().wrapping_sub(at) > end.wrapping_sub(at)
    {
        return None;
    }
    if end.wrapping_sub(at) > AHEAD {
        // Complete, so that the producer does not want it any more.
        let ahead = (index + AHEAD) & (size - 1);
        if let Some(byte) = cells(segment, half, ahead as usize, 1).first() {
            sdp_sys::cache::will_read(byte.as_ptr());
        }
    }
    let header = [u64::from_le(word(1)), u64::from_le(word(2))];
    Some(FastRecord { record, header })
}

/// Hands bytes `offset .. offset + len` of a message to `take`, in one or two pieces. Clamped to the
/// record.
#[inline(always)]
pub fn read_record(
    segment: Segment,
    half: usize,
    origin: u64,
    record: Record,
    offset: u32,
    len: u32,
    mut take: impl FnMut(&[Cell<u8>]),
) {
    let size = segment.ring_bytes() as usize;
    let offset = offset.min(record.len) as usize;
    let len = (len as usize).min(record.len as usize - offset);
    let index = index_of(record.start, origin, size as u64) as usize;
    let at = (index + RECORD_HEADER + offset) & (size - 1);
    let first = len.min(size - at);
    sync::ring_read(segment, at, first);
    sync::ring_read(segment, 0, len - first);
    if first != 0 {
        take(cells(segment, half, at, first));
    }
    if first < len {
        take(cells(segment, half, 0, len - first));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

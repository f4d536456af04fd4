//! The fast path: the commonest send and the commonest receive, on few words.
//!
//! Called by `api` for one buffer, and by [`super::receive`], before anything of the slow path.
//!
//! The call has one buffer, the half is on the SDP lane with no switch pending, plain Data messages
//! lie in the ring in one piece, and no thread sleeps: then a call is a lock, a few words of state,
//! a copy and a store.
//! [`crate::datapath::send`] and [`crate::datapath::receive`] try this first. Whatever is not that simple, or does not look
//! right, is refused here *before* anything has changed, and left to them; nothing is decided here.
//!
//! The fast path differs from the slow path only in how often it touches the other end's cache
//! lines:
//!
//! * The consumer remembers how far the ring was published and no switch was pending when it last
//!   looked (the *seen tail*), and looks again when it has read that far. An entry written later
//!   takes effect behind the seen tail, because the producer's tail only grows.
//! * It publishes the bytes that it frees when the seen tail is reached, or [`PUBLISH_EVERY`] bytes
//!   were freed. So the published head is exact whenever everything has been read.

use core::{
    cell::Cell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use libc::c_int;
use sdp_fabric_shm::link::{ShmLink, armed as shm_armed};
use sdp_proto::{Ack, Sink, Source};
use sdp_shm::{
    arm,
    family::Row,
    layout::{Half as HalfLines, Segment},
    lock,
    ring::{self, ALIGN, PLAIN_HEADER, Producer, Record},
};
use sdp_sys::{flags::Mask, section};

use crate::{
    conn::{
        self, Conn, ConnGuard, Counted, Half, Laned, Limits, RowFlag, Stage, Waiters, carrier,
        words::{
            self, BITS, CURRENT, ENGINE, HEAD, ORIGIN, PUBLISHED, SDP_BIT, SEEN, SEEN_TAIL,
            SINK_BASE, SOURCE_BASE, TAIL, put,
        },
    },
    datapath::{count, reclaim, send, wait},
    process::{
        self,
        table::{self, Entry},
    },
    wake::spin,
};

/// Longest message that is sent this way; longer ones are cut into pieces.
const LONGEST: usize = 16 * 1024;
/// Ring bytes that the consumer frees at most before it publishes them.
const PUBLISH_EVERY: u64 = 4096;
/// A sender looks at its CPU's number while less than so many ring bytes are unread as far as it knows …
const LOOK_BELOW: u64 = 256;
/// … and else once per so many; a power of two.
const LOOK_EVERY: u64 = 1024;
const MISALIGNED: u64 = ALIGN as u64 - 1;

/// A half's lock, held. Takes no locked instruction where no other thread or process can want the
/// lock.
struct Held<'a> {
    word: &'a AtomicU32,
    alone: bool,
}

impl<'a> Held<'a> {
    #[inline(always)]
    fn take(word: &'a AtomicU32, alone: bool) -> Option<Self> {
        let pid = process::pid();
        let taken = if alone { lock::try_lock_alone(word, pid) } else { lock::try_lock(word, pid) };
        // Not `then_some`: dropping the value that it makes in vain would release a lock that
        // another thread holds.
        if taken { Some(Self { word, alone }) } else { None }
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.alone {
            lock::unlock_alone(self.word);
        } else {
            lock::unlock(self.word);
        }
    }
}

/// An attached connection, for the length of one section.
struct InUse {
    conn: &'static Conn,
    /// Keeps it alive; none where only this thread could end it, which is in a section.
    _held: Option<ConnGuard>,
    segment: Segment,
    row: &'static Row,
    /// No other thread or process can want its locks.
    alone: bool,
}

impl InUse {
    /// The connection that `fd` names, if its lanes are this process's to use. In a section.
    #[inline(always)]
    fn get(fd: c_int, half: Half) -> Option<Self> {
        let Some(Entry::Conn(index)) = table::entry(fd) else { return None };
        let conn = conn::get(index)?;
        if conn.stage() != Stage::Attached {
            return None;
        }
        let single = sdp_sys::pid::is_single_threaded();
        let held = match single {
            true => None,
            // The number may be another's: `crate::lifecycle::elsewhere`.
            false if sdp_sys::pid::may_be_borrowed() => return None,
            false => Some(ConnGuard::new(fd, half)?),
        };
        let conn = match &held {
            Some(held) => held.conn(),
            None => conn,
        };
        let (segment, row) = (conn.segment()?, conn.row()?);
        let is_ours = row.user.load(Ordering::Acquire) == process::pid()
            || row.flags.load(Ordering::Acquire).has(RowFlag::Several);
        let alone = single && !process::has_family();
        is_ours.then_some(Self { conn, _held: held, segment, row, alone })
    }
}

/// The lane of the connection that the descriptor names, for callers that shall not pay for more
/// when it has none.
#[inline(always)]
pub(crate) fn lane(fd: c_int) -> Option<Laned> {
    match table::entry(fd) {
        Some(Entry::Conn(index)) => conn::get(index)?.lane(),
        _ => None,
    }
}

/// The outcome of a receive.
pub(crate) enum Received {
    /// This many bytes; nothing more is to be had, or wanted.
    Done(usize),
    /// This many bytes so far; the slow path goes on.
    Partly(usize),
    /// Nothing: the ring is empty.
    Empty,
    /// Nothing yet: the stream is to be left alone for a moment ([`spin::leave_alone`]).
    Later,
}

/// Sends `len` bytes as one message. False: nothing was done.
///
/// # Safety
/// `from` is readable for `len` bytes (the program's own promise).
#[inline(never)]
pub(crate) unsafe fn send(fd: c_int, from: *const u8, len: usize) -> bool {
    let special = Limits::Hostile | Limits::Shut | Limits::Fallback | Limits::PeerGone;
    if len == 0 || len > LONGEST || from.is_null() {
        return false;
    }
    let _section = section::Copying::enter(fd);
    let Some(used) = InUse::get(fd, Half::Send) else { return false };
    let side = used.conn.side();
    let Some(_held) = Held::take(&used.row.source.lock, used.alone) else { return false };
    let flags = used.conn.flags.load(Ordering::Relaxed);
    if flags.has(special)
        || !flags.has(Counted::HasRow)
        || used.conn.turn.is_taken()
        || process::tunables().bars_fast_path()
        || used.segment.end(side ^ 1).intent.load(Ordering::Relaxed) != 0
        // A family member may have passed this end on.
        || !used.alone && used.segment.end(side).intent.load(Ordering::Relaxed) != 0
    {
        return false;
    }
    let copy = |to: &[Cell<u8>]| {
        // SAFETY: `to` has `len` cells; the program's buffer is readable for as many bytes, and no part of
        // the ring.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_ptr().cast_mut().cast(), len) };
    };
    push(&used, fd, side, len, copy)
}

/// Under the lock.
#[inline(always)]
fn push(used: &InUse, fd: c_int, side: usize, len: usize, copy: impl FnOnce(&[Cell<u8>])) -> bool {
    let InUse { conn, row, segment, .. } = *used;
    let words = &row.source.words;
    let load = |at: usize| words[at].load(Ordering::Relaxed);
    let (tail_before, mut head_seen, lane) = (load(TAIL), load(SEEN), load(BITS));
    if (tail_before | head_seen) & MISALIGNED != 0
        || tail_before.wrapping_sub(head_seen) > u64::from(segment.ring_bytes())
        || lane & SDP_BIT == 0
    {
        return false;
    }
    let lines = segment.half(side);
    if tail_before != head_seen
        && let Some(now) = send::is_time_to_watch(conn)
    {
        // E4. Of a connection that is used now and then the reader has taken all since the last
        // message: then it lives. Otherwise the slow path looks, and so it does if the socket
        // itself was ended.
        let has_taken_all = lines.consumer.head.load(Ordering::Acquire) == tail_before;
        if !has_taken_all || carrier::may_be_dead(fd) {
            return false;
        }
        conn.looked.store(now, Ordering::Relaxed);
        conn.looked_head.store(tail_before, Ordering::Relaxed);
        head_seen = tail_before;
    }
    let unread = tail_before.wrapping_sub(head_seen);
    let looks_around = unread < LOOK_BELOW || tail_before & (LOOK_EVERY - 1) < len as u64;
    let ack = Ack::from_word(row.ack.load(Ordering::Acquire));
    let engine: [u64; Source::FAST_WORDS] = core::array::from_fn(|at| load(ENGINE + at));
    let Some(message) = Source::fast_data(engine, ack, len as u32) else { return false };
    let origin = load(ORIGIN);
    let mut ring = Producer::resume(segment, side, tail_before, head_seen, origin);
    // L10: the consumer ends a section under the gate, so from here on it has not, or waits.
    let gate = &lines.log.gate;
    let mine = side as u32 + 1;
    if gate.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    let pushed = lines.producer.switches.load(Ordering::Acquire) == lane as u32
        && ring.push_fast(message.header, len, copy);
    let keep = |ring: &Producer| {
        words[SEEN].store(ring.seen_head(), Ordering::Relaxed);
        if ring.origin() != origin {
            put(&words[ORIGIN], ring.origin());
        }
    };
    if !pushed {
        gate.store(0, Ordering::Release);
        keep(&ring);
        return false;
    }
    put(&words[SOURCE_BASE], load(ENGINE + Source::POSITION));
    ring.publish();
    words::step();
    let armed = arm::release_and_check(gate, &lines.receive_arm.word);
    keep(&ring);
    let before = |engine: &[AtomicU64; Source::WORDS]| {
        put(&engine[Source::SEQUENCE], message.sequence);
        put(&engine[Source::SENT_ACK], message.sent_ack);
        put(&engine[Source::POSITION], message.position);
    };
    words::finish_source(words, before, ring.tail());
    if conn.one_way.load(Ordering::Relaxed) != 0 {
        conn.one_way.store(0, Ordering::Relaxed);
    }
    count::sent_by_ring(conn, row, len);
    let index = |at: u64| at.wrapping_sub(ring.origin());
    reclaim::sent(conn, segment.ring_bytes(), index(tail_before), index(ring.tail()), len);
    match armed {
        Some(armed) => {
            send::ring_sleeper(conn, fd, row, ShmLink::new(segment, side), shm_armed(armed));
        }
        None => spin::reached(conn, false),
    }
    // A slow sender stores the number of its CPU at every message, a fast one now and then.
    if looks_around {
        let cpu = crate::wake::spin::this_cpu();
        let end = segment.end(side);
        if end.cpu.load(Ordering::Relaxed) != cpu {
            end.cpu.store(cpu, Ordering::Relaxed);
        }
    }
    true
}

/// Receives into one buffer. `None`: nothing was done.
///
/// # Safety
/// `to` is writable for `len` bytes (the program's own promise).
#[inline(never)]
pub(crate) unsafe fn receive(fd: c_int, to: *mut u8, len: usize) -> Option<Received> {
    if len == 0 || to.is_null() {
        return None;
    }
    let _section = section::Copying::enter(fd.wrapping_neg());
    let used = InUse::get(fd, Half::Receive)?;
    // Wake bytes are left to the slow path: a thread that waits where no doorbell reaches is woken by the next one.
    if used.conn.has(Limits::Hostile.with(Waiters::ByCarrier)) || used.conn.is_peculiar() {
        return None;
    }
    if used.conn.left_alone.load(Ordering::Relaxed) != 0 && is_left_alone(&used) {
        return Some(Received::Later);
    }
    let _held = Held::take(&used.row.sink.lock, used.alone)?;
    let mut to = to;
    let copy = |from: &[Cell<u8>]| {
        // SAFETY: all pieces together are at most `len` bytes, for which the program's buffer is writable;
        // it is no part of the ring. A peer that scribbles meanwhile changes bytes, nothing else.
        unsafe {
            core::ptr::copy_nonoverlapping(from.as_ptr().cast(), to, from.len());
            to = to.add(from.len());
        }
    };
    pull(&used, len, copy)
}

/// Whether everything that the reader of a stream saw has been read, and it is not yet to look
/// again. Without the lock: a hint. Where the slow path forgot the seen tail, the tail counts as
/// reached: in this process this ends the wait, and this process would not notice what another one
/// has seen.
fn is_left_alone(used: &InUse) -> bool {
    let word = |i: usize| used.row.sink.words.get(i).map_or(0, |word| word.load(Ordering::Relaxed));
    let (message, _) = words::message_in(word(words::CURRENT));
    message == 0
        && word(words::HEAD) == word(words::SEEN_TAIL)
        && !used.row.flags.load(Ordering::Relaxed).has(RowFlag::Several)
        && spin::is_left_alone(used.conn)
}

/// Under the lock.
#[inline(always)]
fn pull(used: &InUse, wanted: usize, mut copy: impl FnMut(&[Cell<u8>])) -> Option<Received> {
    let InUse { conn, row, segment, .. } = *used;
    let half = conn.half_index(Half::Receive);
    let lines = segment.half(half);
    let words = &row.sink.words;
    let load = |at: usize| words[at].load(Ordering::Relaxed);
    let size = u64::from(segment.ring_bytes());
    let (head, current, bits) = (load(HEAD), load(CURRENT), load(BITS));
    let mut engine: [u64; Sink::FAST_WORDS] = core::array::from_fn(|at| load(ENGINE + at));
    if head & MISALIGNED != 0 || bits & SDP_BIT == 0 || !Sink::may_be_fast(engine[Sink::BITS]) {
        return None;
    }
    let (mut message, mut offset) = words::message_in(current);
    let is_within = u64::from(message) <= size && offset <= message;
    let mut seen_tail = load(SEEN_TAIL);
    if !is_within || seen_tail & MISALIGNED != 0 || seen_tail.wrapping_sub(head) > size {
        return None;
    }
    // While there is a seen tail the ring is not empty, and its origin the one that was seen, and
    // checked, with it.
    let mut origin = load(ORIGIN);
    if seen_tail == head && message != 0 {
        origin = ring::checked_origin(segment, half, origin, head)?;
    }
    let was_left_alone =
        seen_tail == head && message == 0 && conn.left_alone.load(Ordering::Relaxed) != 0;
    if was_left_alone {
        conn.left_alone.store(0, Ordering::Relaxed); // unless what is found says otherwise
    }
    let mut at = head;
    let (mut got, mut messages) = (0, 0);
    let is_done = loop {
        if message == 0 {
            if at == seen_tail {
                // The tail first: an entry that is not there after it takes effect behind it.
                let tail = lines.producer.tail.load(Ordering::Acquire);
                if lines.producer.switches.load(Ordering::SeqCst) != bits as u32
                    || tail & MISALIGNED != 0
                    || tail.wrapping_sub(at) > size
                {
                    break false;
                }
                if tail == at {
                    break true;
                }
                let Some(now) = ring::checked_origin(segment, half, origin, at) else {
                    break false;
                };
                origin = now;
                seen_tail = tail;
            }
            let Some(found) = ring::fast_record(segment, half, origin, at, seen_tail) else {
                break false;
            };
            let len = found.record.len;
            if was_left_alone && at == head {
                spin::gathered(conn, seen_tail.wrapping_sub(at), len, size);
            }
            let Some(taken) = Sink::fast_take(engine, found.header, len) else { break false };
            engine[Sink::SEQUENCE] = taken.sequence;
            engine[Sink::POSITION] = taken.position;
            message = len;
            offset = PLAIN_HEADER as u32;
            row.ack.store(taken.ack.to_word(), Ordering::Release);
        }
        let rest = message.wrapping_sub(offset);
        let n = rest.min(u32::try_from(wanted - got).unwrap_or(u32::MAX));
        let record = Record { start: at, len: message };
        ring::read_record(segment, half, origin, record, offset, n, &mut copy);
        got += n as usize;
        if n == rest {
            at = record.end();
            if seen_tail.wrapping_sub(at) > size {
                seen_tail = at; // begun by the slow path, which leaves no seen tail
            }
            message = 0;
            offset = 0;
            messages += 1;
        } else {
            offset += n;
        }
        if got == wanted {
            break true;
        }
    };
    if got == 0 {
        return is_done.then_some(Received::Empty);
    }
    put(&words[SINK_BASE], load(ENGINE + Sink::POSITION));
    let progress = words::Progress {
        current: words::current(message, offset, at),
        position: engine[Sink::POSITION],
        sequence: engine[Sink::SEQUENCE],
        head: at,
    };
    words::finish_sink(words, &progress, |_| ());
    put(&words[ORIGIN], origin);
    put(&words[SEEN_TAIL], seen_tail);
    let crossed = wait::crosses_eighth(size, head, at);
    let published = load(PUBLISHED);
    if at != published
        && (at == seen_tail || crossed || at.wrapping_sub(published) >= PUBLISH_EVERY)
    {
        put(&words[PUBLISHED], at);
        words::step();
        // Pairs with the acquire load in `Producer::refresh`: our reads of the freed bytes come first.
        lines.consumer.head.store(at, Ordering::Release);
        if crossed {
            wait::room_freed(conn, ShmLink::new(segment, half ^ 1).half(half), at);
        }
    }
    count::received_by_ring(conn, row, got, messages);
    Some(if is_done { Received::Done(got) } else { Received::Partly(got) })
}

/// The slow path begins on the receiving half: what was freed is published, and there is no seen
/// tail.
#[inline]
pub(crate) fn forget_seen_tail(words: &[AtomicU64], lines: &HalfLines) {
    let (Some(head), Some(seen_tail), Some(published)) =
        (words.first(), words.get(words::SEEN_TAIL), words.get(words::PUBLISHED))
    else {
        return;
    };
    let at = head.load(Ordering::Relaxed);
    if published.load(Ordering::Relaxed) != at {
        put(published, at);
        lines.consumer.head.store(at, Ordering::Release);
    }
    put(seen_tail, at);
}

/// Whether a call with these flags may try the fast path: they change nothing for a call that need
/// not wait.
pub(crate) const fn is_simple(flags: c_int) -> bool {
    const HARMLESS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
    flags & !HARMLESS == 0
}

#[cfg(test)]
mod killed;
#[cfg(test)]
mod model;

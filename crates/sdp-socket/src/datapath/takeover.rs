//! Going on with a half whose last user was killed inside its lock.
//!
//! Called by [`crate::datapath::send::with_source`] and [`crate::datapath::receive::with_sink`]
//! when the lock was taken over. Bytes that the dead user had published, or stored as read, stay;
//! an operation that it had only begun never happened. Its private words may be half stored: they
//! are made again from the order in which they are stored ([`crate::conn::words`]), from a walk
//! over the messages that the dead user was busy with, from the log, and from the kernel's own
//! counts of the carrier. It refuses to guess: where that does not add up, where the kernel gives
//! no count, or where unread bytes were being handed over to another stream, it resets the
//! connection.
//!
//! A next owner may be killed in here, too: everything is stored in the usual order, and the next
//! one begins again.

use core::sync::atomic::{AtomicU64, Ordering};

use sdp_fabric_shm::{
    endpoint::{ShmRx, ShmTx},
    link::ShmLink,
};
use sdp_proto::{
    Sink, Source,
    wire::{Body, Message},
};
use sdp_rdma::fabric::{ReceiveQueue, Received};
use sdp_shm::{
    family::Row,
    layout::{Half as HalfLines, LOG_ENTRIES, Segment},
    ring::ALIGN,
};

use crate::{
    conn::{
        self, Conn, carrier,
        words::{self, SDP_BIT, put},
    },
    datapath::{
        lane::{self, Broken, COUNTED_BIT, Lane, SourceState},
        receive, send,
    },
};

/// Most switches that one holder of the lock follows without storing its state.
const FOLLOWED_MAX: u32 = 64;
/// No cursor is odd: family members that load the state find it broken too.
const POISON: u64 = 1;
const MISALIGNED: u64 = ALIGN as u64 - 1;

/// Unread bytes are about to be put into another stream: a next owner cannot know how many are
/// there twice.
#[cold]
pub(crate) fn handing(words: &[AtomicU64]) {
    if let Some(mark) = words.get(words::HANDING) {
        put(mark, 1);
    }
}

/// All that was handed over is stored as read.
#[inline]
pub(crate) fn handed(words: &[AtomicU64]) {
    if let Some(mark) = words.get(words::HANDING) {
        put(mark, 0);
    }
}

/// The sending half of a connection, under its lock.
#[cold]
pub(crate) fn source_of(conn: &Conn, row: &Row, link: ShmLink, half: usize) -> Result<(), Broken> {
    let (words, segment) = (&row.source.words, link.segment());
    // The gate may be in the dead user's hand, and shows the peer nothing half done until all is in order.
    send::gated(conn, link.half(half), conn.side(), || {
        let sent = || conn::number_of(conn).and_then(|fd| carrier::sent(fd).ok());
        source(words, segment, half, sent)
    })
    .unwrap_or_else(|| Err(poison(words)))
}

/// The receiving half of a connection, under its lock.
#[cold]
pub(crate) fn sink_of(conn: &Conn, row: &Row, segment: Segment, half: usize) -> Result<(), Broken> {
    let words = &row.sink.words;
    let read = || conn::number_of(conn).and_then(|fd| carrier::consumed(fd).ok());
    let sink = sink(words, segment, half, read)?;
    row.ack.store(sink.ack(u16::MAX).to_word(), Ordering::Release);
    open_gate(segment.half(half), conn.side());
    Ok(())
}

/// Gives the receiving half's gate back if the dead user had it: each end takes a half's gate only under its
/// own lock of that half.
pub(crate) fn open_gate(lines: &HalfLines, side: usize) {
    if lines.log.gate.load(Ordering::Acquire) == side as u32 + 1 {
        finish_lane(lines);
        lines.log.gate.store(0, Ordering::Release);
    }
}

fn poison(words: &[AtomicU64]) -> Broken {
    if let Some(cursor) = words.first() {
        put(cursor, POISON);
    }
    Broken
}

/// The lane that the log ends on: a user that died while it wrote an entry may have changed the
/// word for it already. With the gate.
fn finish_lane(lines: &HalfLines) {
    let written = lines.producer.switches.load(Ordering::Acquire);
    let last = (written != 0).then(|| lines.log.entry(written.wrapping_sub(1))).flatten();
    let to = last.map_or(0, |entry| entry.to.load(Ordering::Relaxed));
    lines.log.lane.store(to, Ordering::Relaxed);
}

/// Puts the sending half's words in order; `sent` asks the kernel how many bytes it took.
pub(crate) fn source(
    words: &[AtomicU64],
    segment: Segment,
    half: usize,
    sent: impl FnOnce() -> Option<u64>,
) -> Result<(), Broken> {
    rebuild_source(words, segment, half, sent).map_err(|Broken| poison(words))
}

fn rebuild_source(
    words: &[AtomicU64],
    segment: Segment,
    half: usize,
    sent: impl FnOnce() -> Option<u64>,
) -> Result<(), Broken> {
    let lines = segment.half(half);
    let load = |at: usize| Ok(words.get(at).ok_or(Broken)?.load(Ordering::Relaxed));
    let (stored, head, bits) = (load(0)?, load(1)?, load(words::BITS)?);
    if stored & MISALIGNED != 0 {
        return Err(Broken);
    }
    let mut engine = Source::from_words(&lane::load_engine(words)?).map_err(|_| Broken)?;
    let mut walk = ShmRx::new(segment, half, stored, stored).onlooker();
    if let Some(found) = walk.poll_receive().map_err(|_| Broken)? {
        replay(&mut engine, &message(&walk, found)?, load(words::SOURCE_BASE)?)?;
    }
    // One message at a time is published before it is written down.
    if walk.poll_receive() != Ok(None) {
        return Err(Broken);
    }
    let (tail, _) = walk.cursors();
    // The dead user looked at the consumer's head for this message, and had not written that down either.
    let seen = head;
    let head = lines.consumer.head.load(Ordering::Acquire);
    if head & MISALIGNED != 0
        || head.wrapping_sub(seen).cast_signed() < 0
        || tail.wrapping_sub(head) > u64::from(segment.ring_bytes())
    {
        return Err(Broken);
    }

    let mut lane = if bits & SDP_BIT != 0 { Lane::Sdp } else { Lane::Kernel };
    let mut switches = bits as u32;
    let written = lines.producer.switches.load(Ordering::Acquire);
    if written.wrapping_sub(switches) > LOG_ENTRIES as u32 {
        return Err(Broken);
    }
    let mut from = stored;
    while switches != written {
        let entry = lines.log.entry(switches).ok_or(Broken)?;
        let to = match entry.to.load(Ordering::Relaxed) {
            0 => Lane::Kernel,
            1 => Lane::Sdp,
            _ => return Err(Broken),
        };
        let ring = entry.ring.load(Ordering::Relaxed);
        if to == lane || ring & MISALIGNED != 0 || ring.wrapping_sub(from) > tail.wrapping_sub(from)
        {
            return Err(Broken);
        }
        (lane, from) = (to, ring);
        switches = switches.wrapping_add(1);
    }
    if tail != from && switches != bits as u32 && lane == Lane::Kernel {
        return Err(Broken); // nothing is published behind the end of a section
    }

    let mut carrier_sent = load(2)?;
    if lane == Lane::Sdp {
        // It may have rung the carrier without counting.
        carrier_sent = sent().ok_or(Broken)?;
        lines.log.carrier_sent.store(carrier_sent, Ordering::Release);
    }
    lines.log.lane.store(u32::from(lane == Lane::Sdp), Ordering::Relaxed);
    let tx = ShmTx::new(segment, half, tail, head);
    SourceState { lane, switches, carrier_sent, tx, engine }.store(words);
    Ok(())
}

/// The dead user published this message; `base`: the stream position before it.
fn replay(engine: &mut Source, found: &Message, base: u64) -> Result<(), Broken> {
    if !is_ours(found) {
        return Err(Broken);
    }
    let mseq = found.header.mseq;
    let before = mseq.wrapping_sub(1);
    if engine.last_mseq() != mseq && engine.last_mseq() != before {
        return Err(Broken);
    }
    if engine.has_ended() && found.body == Body::DisConn {
        // The word that says so was stored, so this is the message that said so.
        engine.recover_at(mseq, base);
        return Ok(());
    }
    if engine.has_ended() && found.payload_len() != 0 {
        return Err(Broken);
    }
    engine.recover_at(before, base);
    engine.replay(found).map_err(|_| Broken)
}

/// Whether the library sends such messages on this fabric.
fn is_ours(found: &Message) -> bool {
    is_stream(found) || matches!(found.body, Body::SendSm | Body::ChRcvBufAck { .. })
}

/// Whether the message is one that makes the stream: payload, or its end.
fn is_stream(found: &Message) -> bool {
    found.body == Body::DisConn || found.body == Body::Data && found.payload_len() != 0
}

fn message(walk: &ShmRx, found: Received) -> Result<Message, Broken> {
    receive::headers(walk, found).map_err(|_| Broken)
}

/// Puts the receiving half's words in order; `read` asks the kernel how many bytes were read. The engine as
/// it is now.
pub(crate) fn sink(
    words: &[AtomicU64],
    segment: Segment,
    half: usize,
    read: impl FnOnce() -> Option<u64>,
) -> Result<Sink, Broken> {
    rebuild_sink(words, segment, half, read).map_err(|Broken| poison(words))
}

fn rebuild_sink(
    words: &[AtomicU64],
    segment: Segment,
    half: usize,
    read: impl FnOnce() -> Option<u64>,
) -> Result<Sink, Broken> {
    let lines = segment.half(half);
    let word = |at: usize| words.get(at).ok_or(Broken);
    let load = |at: usize| Ok(word(at)?.load(Ordering::Relaxed));
    let size = u64::from(segment.ring_bytes());
    let (stored, current) = (load(0)?, load(words::CURRENT)?);
    let (len, offset) = words::message_in(current);
    let taken = u64::from(words::head_in(current).wrapping_sub(stored as u32));
    let head = stored.wrapping_add(taken);
    let published = lines.consumer.head.load(Ordering::Relaxed);
    if load(words::HANDING)? != 0
        || (stored | head) & MISALIGNED != 0
        || taken > size
        || offset > len
        // Published bytes were stored before.
        || published > stored
        || stored.wrapping_sub(published) > size
    {
        return Err(Broken);
    }

    let engine = Sink::from_words(&lane::load_engine(words)?).map_err(|_| Broken)?;
    let engine = retake(engine, segment, half, (stored, head, len), load(words::SINK_BASE)?)?;

    let bits = load(words::BITS)?;
    let followed = lines.consumer.followed.load(Ordering::Acquire);
    let written = lines.producer.switches.load(Ordering::Acquire);
    let since = followed.wrapping_sub(bits as u32);
    if since > FOLLOWED_MAX || written.wrapping_sub(followed) > LOG_ENTRIES as u32 {
        return Err(Broken);
    }
    // Each switch that was followed went to the other lane.
    let lane = if since.is_multiple_of(2) { bits & SDP_BIT } else { !bits & SDP_BIT };
    let is_trusted = lines.consumer.trusts_itself.load(Ordering::Relaxed) != 0;
    let counted = if is_trusted { COUNTED_BIT } else { bits & COUNTED_BIT };
    if lane | counted != 0 {
        // Bytes that the dead user took off the carrier are gone, as with TCP: all of them count.
        put(word(2)?, read().ok_or(Broken)?);
    }
    put(word(words::BITS)?, u64::from(followed) | lane | counted);

    let [gates, sequence, position, spare] = engine.to_words();
    for (at, value) in [(2, position), (0, gates), (3, spare), (1, sequence)] {
        put(word(words::ENGINE + at)?, value);
    }
    put(word(0)?, head);
    put(word(words::SEEN_TAIL)?, head);
    put(word(words::PUBLISHED)?, head);
    words::step();
    lines.consumer.head.store(head, Ordering::Release);
    // No thread reads from the kernel while this one holds the lock.
    lines.consumer.kernel_reading.store(0, Ordering::SeqCst);
    Ok(engine)
}

/// What the engine's words should be at `head`, where a message of `len` bytes was read in part (0:
/// none). They were right at `stored`, or are right already; `base` is the stream position from
/// there.
fn retake(
    engine: Sink,
    segment: Segment,
    half: usize,
    (stored, head, len): (u64, u64, u32),
    base: u64,
) -> Result<Sink, Broken> {
    let known = engine.last_mseq();
    let mut walk = ShmRx::new(segment, half, stored, stored).onlooker();
    walk.set_limit(head);
    let mut seen = None;
    let mut payload = 0u64;
    let mut has_ended = false;
    let mut take = |walk: &ShmRx, found: Received| {
        let message = message(walk, found)?;
        let mseq = message.header.mseq;
        let is_next = seen.is_none_or(|before: u32| before.wrapping_add(1) == mseq);
        let is_later = mseq.wrapping_sub(known).cast_signed() > 0;
        // The stored words have what an earlier message of another kind changed. Of a later one
        // it cannot be known whether its answer is pending, or was sent.
        if !is_next || is_later && !is_stream(&message) {
            return Err(Broken);
        }
        if is_later {
            payload = payload.wrapping_add(u64::from(message.payload_len()));
        }
        has_ended |= message.body == Body::DisConn;
        if seen.is_none() && known.wrapping_add(1).wrapping_sub(mseq).cast_signed() < 0 {
            return Err(Broken); // one is missing in between
        }
        seen = Some(mseq);
        Ok(())
    };
    while let Some(found) = walk.poll_receive().map_err(|_| Broken)? {
        take(&walk, found)?;
        walk.release(found);
    }
    if walk.cursors().0 != head {
        return Err(Broken);
    }
    if len != 0 {
        walk.set_limit(u64::MAX);
        let found = walk.poll_receive().map_err(|_| Broken)?.ok_or(Broken)?;
        if found.token != head || found.len != len {
            return Err(Broken);
        }
        take(&walk, found)?;
    }
    let Some(last) = seen else { return Ok(engine) };
    let mut engine = engine;
    if known != last {
        if last.wrapping_sub(known).cast_signed() < 0 {
            return Err(Broken);
        }
        engine.recover_at(last, base.wrapping_add(payload));
    }
    if has_ended && !engine.has_ended() {
        engine.recover_end();
    }
    Ok(engine)
}

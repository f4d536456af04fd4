//! The two halves' private state, and the rules for changing lanes.
//!
//! State is a handful of words in family memory, loaded under the half's lock, checked, worked on as
//! plain values and stored back. Nothing here is a reference into shared memory.
//!
//! # The log
//! A switch is an entry in the half's log: *from carrier position c and ring cursor r on, the bytes are
//! on lane x*. The producer writes entries in order; the consumer follows them in order. The consumer
//! may write the entry that leaves the SDP lane for the producer (L10), while it holds the gate.

use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
pub(crate) use sdp_fabric_shm::link::{Broken, Lane, Switch};
use sdp_fabric_shm::{
    endpoint::{ShmRx, ShmTx},
    link::{ShmHalf, ShmLink, Trust, TxSaved, What},
};
use sdp_proto::{Sink, Source};
use sdp_rdma::fabric::Received;
use sdp_sys::errno::Errno;

use crate::{
    conn::{
        Conn, Half, carrier,
        words::{self, SDP_BIT, put, set},
    },
    datapath::fast,
    wake::arming::{note_consumed, wait_mode},
};

/// Sending half.
pub(crate) struct SourceState {
    pub(crate) lane: Lane,
    /// Log entries that we know of.
    pub(crate) switches: u32,
    /// Bytes the kernel has taken from us, valid while on the SDP lane.
    pub(crate) carrier_sent: u64,
    pub(crate) tx: ShmTx,
    pub(crate) engine: Source,
}

pub(crate) const COUNTED_BIT: u64 = 1 << 33;

impl SourceState {
    /// State of a fresh half.
    pub(crate) fn initialise(words: &[AtomicU64], engine: &Source) {
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        store_engine(words, &engine.to_words());
    }

    /// Loads and checks.
    #[inline]
    pub(crate) fn load(words: &[AtomicU64], link: ShmLink, half: usize) -> Result<Self, Broken> {
        let [tail, head, sent, bits] = load_first(words)?;
        let origin = words.get(words::ORIGIN).ok_or(Broken)?.load(Ordering::Relaxed);
        let tx = link.open_tx(half, TxSaved { position: tail, freed: head, origin })?;
        let engine = Source::from_words(&load_engine(words)?).map_err(|_| Broken)?;
        if let Some(base) = words.get(words::SOURCE_BASE) {
            put(base, engine.position());
        }
        Ok(Self {
            lane: if bits & SDP_BIT != 0 { Lane::Sdp } else { Lane::Kernel },
            switches: bits as u32,
            carrier_sent: sent,
            tx,
            engine,
        })
    }

    /// Stores back: after each message that was published, before the next one is. The order is a
    /// next owner's ([`crate::conn::words`]).
    #[inline]
    pub(crate) fn store(&self, words: &[AtomicU64]) {
        let (tail, head) = self.tx.cursors();
        let lane = if self.lane == Lane::Sdp { SDP_BIT } else { 0 };
        let Some(words) = words.first_chunk::<{ words::HALF_WORDS }>() else { return };
        let before = |engine: &[AtomicU64; Source::WORDS]| {
            put(&words[words::SEEN], head);
            set(&words[words::ORIGIN], self.tx.origin());
            set(&words[words::SENT], self.carrier_sent);
            set(&words[words::BITS], u64::from(self.switches) | lane);
            for (word, value) in engine.iter().zip(self.engine.to_words()) {
                set(word, value);
            }
        };
        words::finish_source(words, before, tail);
        put(&words[words::SOURCE_BASE], self.engine.position());
    }

    /// Follows an entry that the consumer wrote for us (L10). The gate is held. True when it did.
    #[inline]
    pub(crate) fn adopt(&mut self, half: ShmHalf<'_>) -> Result<bool, Broken> {
        let (tail, _) = self.tx.cursors();
        if !half.accept(self.switches, self.lane, self.carrier_sent, tail)? {
            return Ok(false);
        }
        self.lane = Lane::Kernel;
        self.switches = self.switches.wrapping_add(1);
        Ok(true)
    }

    /// Writes the entry that enters the SDP lane, unless the consumer has ended that for good
    /// (L10). The gate is held: the consumer takes its trust back before it takes the gate, so that
    /// either it finds the section and ends it, or we find that there is no trust any more. A
    /// reading from before this end held the gate proves nothing.
    #[must_use]
    pub(crate) fn enter(&mut self, half: ShmHalf<'_>) -> bool {
        let is_trusted = half.trust().is_of_payload();
        if is_trusted {
            self.switch(half, Lane::Sdp);
        }
        is_trusted
    }

    /// Writes the next entry. The gate is held.
    pub(crate) fn switch(&mut self, half: ShmHalf<'_>, to: Lane) {
        let (tail, _) = self.tx.cursors();
        let switch = Switch { carrier: self.carrier_sent, fabric: tail, to };
        half.write(self.switches, switch, words::step);
        self.lane = to;
        self.switches = self.switches.wrapping_add(1);
    }

    /// Publishes how many bytes the kernel has taken (wake bytes included). The gate is held.
    pub(crate) fn publish_sent(&self, half: ShmHalf<'_>) {
        half.count_sent(self.carrier_sent);
    }
}

/// Consumer: whether wake bytes were counted that it has not read.
#[inline]
pub(crate) fn has_counted_wake_bytes(carrier_read: u64, half: ShmHalf<'_>) -> bool {
    half.sent() != carrier_read
}

/// Whether the consumer says that all its sleepers have armed, and that it has read the `sent`
/// carrier bytes that lie before the switch (O10). With some of them on their way a wake byte must
/// come behind them: the arm is answered, or a connection taken off a ready list, before the switch
/// can be followed.
#[inline]
pub(crate) fn do_sleepers_arm(half: ShmHalf<'_>, sent: u64) -> bool {
    half.trust() == Trust::ReadsAndArms && half.read() == sent
}

/// Receiving half.
#[derive(Clone, Copy)]
pub(crate) struct SinkState {
    pub(crate) lane: Lane,
    /// Log entries followed.
    pub(crate) followed: u32,
    /// Bytes read from the kernel: valid on the SDP lane, and everywhere once `is_counted`.
    pub(crate) carrier_read: u64,
    /// Every byte read from the kernel is counted, because all readers come through the library.
    /// Counting has to begin before the first switch to the SDP lane: the kernel's own count is
    /// wrong by one where a connection ended in a way that does not show whether its FIN was
    /// counted.
    pub(crate) is_counted: bool,
    /// The message at the head of the ring that has been read in part: its length in bytes, and the
    /// part delivered. Length 0: none.
    pub(crate) current_len: u32,
    pub(crate) current_offset: u32,
    pub(crate) rx: ShmRx,
    pub(crate) engine: Sink,
}

impl SinkState {
    /// State of a fresh half.
    pub(crate) fn initialise(words: &[AtomicU64], engine: &Sink) {
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        store_engine(words, &engine.to_words());
    }

    /// Loads and checks.
    #[inline]
    pub(crate) fn load(words: &[AtomicU64], link: ShmLink, half: usize) -> Result<Self, Broken> {
        let [head, current, read, bits] = load_first(words)?;
        let (current_len, current_offset) = words::message_in(current);
        if words::head_in(current) != head as u32 || current_offset > current_len {
            return Err(Broken);
        }
        // The receive queue publishes the room that it frees when the state is stored.
        let rx = link.open_rx(half, head, current_len)?;
        fast::forget_seen_tail(words, link.segment().half(half));
        let engine = Sink::from_words(&load_engine(words)?).map_err(|_| Broken)?;
        if let Some(base) = words.get(words::SINK_BASE) {
            put(base, engine.position());
        }
        Ok(Self {
            lane: if bits & SDP_BIT != 0 { Lane::Sdp } else { Lane::Kernel },
            followed: bits as u32,
            carrier_read: read,
            is_counted: bits & COUNTED_BIT != 0,
            current_len,
            current_offset,
            rx,
            engine,
        })
    }

    /// Stores back, and then publishes what was freed: when a message is done with, before the next one is
    /// looked at. The order is a next owner's ([`crate::conn::words`]).
    #[inline]
    pub(crate) fn store(&self, words: &[AtomicU64]) {
        let (_, head) = self.rx.cursors();
        let lane = if self.lane == Lane::Sdp { SDP_BIT } else { 0 };
        let counted = if self.is_counted { COUNTED_BIT } else { 0 };
        let Some(words) = words.first_chunk::<{ words::HALF_WORDS }>() else { return };
        let [bits, sequence, position, spare] = self.engine.to_words();
        let current = words::current(self.current_len, self.current_offset, head);
        let progress = words::Progress { current, position, sequence, head };
        words::finish_sink(words, &progress, |engine| {
            put(&words[words::READ], self.carrier_read);
            set(&words[words::BITS], u64::from(self.followed) | lane | counted);
            set(&engine[Sink::BITS], bits);
            set(&engine[Sink::SPARE], spare);
        });
        put(&words[words::SINK_BASE], position);
        set(&words[words::SEEN_TAIL], head);
        if words[words::PUBLISHED].load(Ordering::Relaxed) != head {
            put(&words[words::PUBLISHED], head);
            words::step();
            self.rx.publish();
        }
    }

    /// Begins to count the bytes read from the kernel. The caller excludes readers that bypass the
    /// library from here on. `false` when the position cannot be known any more.
    pub(crate) fn begin_counting(&mut self, fd: c_int) -> bool {
        if self.is_counted || self.lane == Lane::Sdp {
            return true;
        }
        let Ok(read) = carrier::consumed_while_open(fd) else { return false };
        self.carrier_read = read;
        self.is_counted = true;
        true
    }

    /// Bytes that were read from the kernel so far.
    #[inline(never)]
    pub(crate) fn consumed(&self, fd: c_int) -> Result<u64, Errno> {
        if self.is_counted || self.lane == Lane::Sdp {
            return Ok(self.carrier_read);
        }
        carrier::consumed(fd)
    }

    /// Takes wake bytes off the carrier, never more than were counted (L5); how many.
    pub(crate) fn consume_wake_bytes(&mut self, fd: c_int, half: ShmHalf<'_>) -> u64 {
        let wake_bytes = half.sent().wrapping_sub(self.carrier_read);
        if wake_bytes == 0 || wake_bytes > i64::MAX as u64 {
            return 0;
        }
        let consumed = carrier::consume(fd, wake_bytes);
        self.carrier_read += consumed;
        consumed
    }

    /// The partly read message.
    #[inline]
    pub(crate) fn current(&self) -> Option<Received> {
        (self.current_len != 0).then(|| self.rx.current(self.current_len))
    }

    /// The next log entry that has not been followed yet, checked.
    #[inline]
    pub(crate) fn pending(&self, half: ShmHalf<'_>) -> Result<Option<Switch>, Broken> {
        if half.written() == self.followed {
            return Ok(None);
        }
        self.read_entry(half)
    }

    #[cold]
    #[inline(never)]
    fn read_entry(&self, half: ShmHalf<'_>) -> Result<Option<Switch>, Broken> {
        let (_, head) = self.rx.cursors();
        half.next(self.followed, self.lane, head)
    }

    /// Follows the pending entry. The caller has stored how far it read the ring, or it is
    /// [`Self::leave_ring`].
    pub(crate) fn follow(&mut self, half: ShmHalf<'_>, to: Lane) {
        self.lane = to;
        self.followed = self.followed.wrapping_add(1);
        words::step();
        half.follow(self.followed);
        words::step();
    }

    /// Follows the pending entry that ends a section of the ring, in a call that may have read that
    /// section's last messages just now: they are written down first. A next owner takes the number
    /// of entries from the segment, where it is stored at once, but where the ring has been read to
    /// from these words. With messages missing there it would find them behind the next entry, a
    /// second time and out of order.
    #[cold]
    pub(crate) fn leave_ring(&mut self, words: &[AtomicU64], half: ShmHalf<'_>) {
        self.store(words);
        self.follow(half, Lane::Kernel);
    }
}

#[inline]
fn load_first(words: &[AtomicU64]) -> Result<[u64; 4], Broken> {
    let Some([a, b, c, d]) = words.first_chunk() else { return Err(Broken) };
    Ok([a, b, c, d].map(|w| w.load(Ordering::Relaxed)))
}

#[inline]
pub(crate) fn load_engine<const N: usize>(words: &[AtomicU64]) -> Result<[u64; N], Broken> {
    let words = words.get(words::ENGINE..words::ENGINE + N).ok_or(Broken)?;
    let mut values = [0; N];
    for (value, word) in values.iter_mut().zip(words) {
        *value = word.load(Ordering::Relaxed);
    }
    Ok(values)
}

#[inline]
fn store_engine<const N: usize>(words: &[AtomicU64], values: &[u64; N]) {
    if let Some(words) = words.get(words::ENGINE..words::ENGINE + N) {
        for (word, value) in words.iter().zip(values) {
            set(word, *value);
        }
    }
}

/// Takes wake bytes off the carrier, before the ring is looked at; how many. The sender of a wake
/// byte disarmed the half, and an epoll set with the connection is not woken by it any more: the
/// kernel drops an edge whose bytes are gone. So this arms the half again, and a message that comes
/// after the look signals anew.
pub(crate) fn consume_wake_bytes(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    half: ShmHalf<'_>,
) -> u64 {
    let consumed = sink.consume_wake_bytes(fd, half);
    if consumed > 0 {
        if conn.is_waited_for_elsewhere(Half::Receive) {
            half.arm(What::Bytes, wait_mode(conn));
        }
        note_consumed(conn);
    }
    consumed
}

#[cfg(test)]
mod model;

//! A model of lane switching (L1–L11): the functions of `lane`, the arm word and the ring are the real
//! ones, on real memory; the carrier, the order in which `send` and `receive` call them, and the
//! interleaving of the two ends are the model's.
//!
//! One half: a producer that sends numbered bytes, one a call, and changes lanes whenever it may and
//! likes; a consumer that reads one byte or many at a time, sleeps on the carrier when there is nothing,
//! and may at any moment end the producer's section for good (L10), with or without handing over what is
//! unread. A step is what one end does between two looks at what the other can change. Promises: every
//! byte is delivered once and in order, no bell is delivered, no byte is eaten as a bell, nothing that
//! an end finds in the log is impossible, and nobody sleeps while there is something to read.
//!
//! [`Twin`] names the rules that are broken on purpose; each must be noticed.

use core::{cell::Cell, ptr::NonNull, sync::atomic::Ordering};
use std::{format, string::String, vec, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};
use sdp_proto::{SinkConfig, SourceConfig};
use sdp_rdma::{
    fabric::{Gather, ReceiveQueue, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_shm::{
    arm::{self, Mode},
    layout::segment_bytes,
};

use super::*;

const RING: u32 = 64 * 1024;
const BELL: u8 = 0;
const PRODUCER: u32 = 1;
const CONSUMER: u32 = 2;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// L1: enters the SDP lane although an earlier entry has not been followed.
    EarlyEntry,
    /// L1: does not look again, with the gate, whether the consumer still trusts itself.
    EntersUnasked,
    /// L2: leaves without asking whether the consumer is in an unbounded read.
    LeavesAtOnce,
    /// L2: the consumer announces its read only after it looked at the log.
    LateAnnouncement,
    /// L2, L4: the consumer takes its announcement back before it looks again.
    EarlyRetraction,
    /// L3: reads on with an entry pending.
    Unbounded,
    /// L4: does not look again.
    LooksOnce,
    /// L5: throws away whatever is on the carrier.
    EatsEverything,
    /// L5: a bell is counted whether the kernel took it or not.
    CountsRefused,
    /// L10: the consumer writes the producer's entry without the gate.
    NoGate,
    /// L10: a bell is sent without looking whether the consumer has ended the section.
    RingsAnyway,
    /// L10: kernel sends do not take the gate, as if nothing could be handed over.
    SendsPastTheGate,
    /// L10: what the consumer wrote is not adopted by ring sends.
    NeverAdopts,
    /// Section 5: the first message on the lane rings only if somebody armed.
    SilentEntry,
    /// O1: sleeps without looking again.
    SleepsBlindly,
    /// O2: clears the arm word, then rings only if the consumer did not move.
    NeverRings,
}

/// How a consumer reads that left the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    /// Through the library, and may leave.
    Library,
    /// Through the library, after its section was ended.
    Left,
    /// By system calls of its own, after a hand-over.
    Unaware,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum P {
    Idle,
    Trusted,
    Followed,
    Enter,
    Ring { first: bool },
    Check { first: bool },
    Bells { first: bool, armed: Option<Armed> },
    Counted { armed: Option<Armed> },
    Disarm { armed: Option<Armed> },
    MayLeave,
    Reading,
    Leave,
    Kernel,
}

/// What `arm::check` saw, kept as the word so that it can be part of a state.
type Armed = u32;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum C {
    Idle,
    Top,
    Look,
    Announce,
    Bounded(Entry),
    Read,
    Second {
        got: Vec<u8>,
        retracted: bool,
    },
    Retract(After),
    More,
    Eat,
    Eat2(u64),
    SdpLook,
    SdpRing(Option<Entry>),
    Carrier,
    Carrier2,
    Nothing,
    Arm,
    LookAgain,
    Sleep,
    Pin,
    Gate {
        push: bool,
    },
    End {
        push: bool,
        unlocked: bool,
    },
    Settle {
        push: bool,
    },
    /// The limit of what is handed over.
    Push(u64),
    Release,
}

/// Where a kernel read goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum After {
    Got,
    Switched,
    Failed,
    Bounded(Entry),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    carrier: u64,
    ring: u64,
    to_sdp: bool,
}

impl From<Switch> for Entry {
    fn from(s: Switch) -> Self {
        Self { carrier: s.carrier, ring: s.ring, to_sdp: s.to == Lane::Sdp }
    }
}

/// One moment: the segment's words, both ends' private state, and the carrier.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    // Shared.
    words: Vec<u64>,
    ring: Vec<u64>,
    pinned: bool,
    // The kernel's.
    carrier: Vec<u8>,
    taken: u64,
    // Producer.
    p: P,
    sent: u8,
    p_sdp: bool,
    switches: u32,
    carrier_sent: u64,
    p_tail: u64,
    p_head: u64,
    // Consumer.
    c: C,
    reader: Reader,
    delivered: u8,
    c_sdp: bool,
    followed: u32,
    carrier_read: u64,
    scan: u64,
    head: u64,
    room: u8,
    total: u8,
    look_carrier: bool,
}

/// The model: real memory that a step is run on.
struct Lanes {
    twin: Twin,
    bytes: u8,
    switches: u32,
    leaves: bool,
    hands_over: bool,
    sleeps_plainly: bool,
    segment: Segment,
}

struct Nothing;

impl Gather for Nothing {
    fn len(&self) -> usize {
        0
    }

    fn copy_to(&mut self, _: usize, _: &[Cell<u8>]) {}
}

/// A state being worked on: private copies loaded, the segment's words restored.
struct At<'a> {
    m: &'a Lanes,
    s: S,
    lines: &'a HalfLines,
}

impl Lanes {
    fn new(twin: Twin, bytes: u8, switches: u32) -> Self {
        let layout = std::alloc::Layout::from_size_align(segment_bytes(RING), 4096).unwrap();
        // SAFETY: non-zero size; leaked, so it outlives every copy.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        // SAFETY: just allocated with the size and alignment asked for; RING is a ring size.
        let segment = unsafe { Segment::new(NonNull::new(base).unwrap(), RING) };
        Self {
            twin,
            bytes,
            switches,
            leaves: false,
            hands_over: false,
            sleeps_plainly: false,
            segment,
        }
    }

    fn leaving(mut self, hands_over: bool) -> Self {
        self.leaves = true;
        self.hands_over = hands_over;
        self
    }

    /// On the kernel lane the consumer sleeps in a plain system call, without having armed anything.
    fn sleeping_plainly(mut self) -> Self {
        self.sleeps_plainly = true;
        self
    }

    fn at(&self, s: &S) -> At<'_> {
        let at = At { m: self, s: s.clone(), lines: self.segment.half(0) };
        at.restore();
        at
    }
}

impl At<'_> {
    fn atoms<R>(&self, mut each: impl FnMut(usize, &mut dyn FnMut(Option<u64>) -> u64) -> R) {
        let l = self.lines;
        let mut n = 0;
        macro_rules! word {
            ($place:expr, $int:ty) => {
                each(n, &mut |value: Option<u64>| {
                    if let Some(value) = value {
                        $place.store(value as $int, Ordering::Relaxed);
                    }
                    u64::from($place.load(Ordering::Relaxed))
                });
                n += 1;
            };
        }
        word!(l.producer.tail, u64);
        word!(l.producer.switches, u32);
        word!(l.log.gate, u32);
        word!(l.log.lane, u32);
        word!(l.log.carrier_sent, u64);
        word!(l.consumer.head, u64);
        word!(l.consumer.followed, u32);
        word!(l.consumer.kernel_reading, u32);
        word!(l.consumer.trusts_itself, u32);
        word!(l.receive_arm.word, u32);
        for entry in &l.log.entries {
            word!(entry.carrier, u64);
            word!(entry.ring, u64);
            word!(entry.to, u32);
        }
        let _ = n;
    }

    fn ring_word(&self, n: usize) -> &AtomicU64 {
        // SAFETY: the model writes far fewer records of 16 bytes than the ring has room for.
        unsafe { &*self.m.segment.ring(0).as_ptr().cast::<AtomicU64>().add(n) }
    }

    fn restore(&self) {
        self.atoms(|n, word| {
            word(Some(self.s.words[n]));
        });
        for (n, value) in self.s.ring.iter().enumerate() {
            self.ring_word(n).store(*value, Ordering::Relaxed);
        }
    }

    fn done(mut self) -> Result<S, String> {
        let mut words = vec![0; self.s.words.len()];
        self.atoms(|n, word| words[n] = word(None));
        // Entries that were followed do not tell two moments apart.
        for n in 0..LOG_ENTRIES as u32 {
            let written = words[1] as u32;
            let is_pending = (self.s.followed.min(self.s.switches)..written)
                .any(|e| e as usize % LOG_ENTRIES == n as usize);
            if !is_pending {
                let at = 10 + 3 * n as usize;
                words[at..at + 3].fill(0);
            }
        }
        // Nor do sequence numbers of the arm word, but for whether the producer has seen this one.
        let (old, new) = (words[9], words[9] & 3 | 5 << 2);
        words[9] = new;
        if let P::Bells { armed, .. } | P::Counted { armed } | P::Disarm { armed } = &mut self.s.p
            && let Some(seen) = armed
        {
            *seen = if u64::from(*seen) == old { new as u32 } else { *seen & 3 | 1 << 2 };
        }
        self.s.words = words;
        for n in 0..self.s.ring.len() {
            self.s.ring[n] = self.ring_word(n).load(Ordering::Relaxed);
        }
        Ok(self.s)
    }

    fn source(&self) -> SourceState {
        let s = &self.s;
        SourceState {
            lane: if s.p_sdp { Lane::Sdp } else { Lane::Kernel },
            switches: s.switches,
            carrier_sent: s.carrier_sent,
            tx: ShmTx::new(self.m.segment, 0, s.p_tail, s.p_head),
            engine: Source::new(&SourceConfig::implicit(1024)),
        }
    }

    fn put_source(&mut self, source: &SourceState) {
        self.s.p_sdp = source.lane == Lane::Sdp;
        self.s.switches = source.switches;
        self.s.carrier_sent = source.carrier_sent;
        (self.s.p_tail, self.s.p_head) = source.tx.cursors();
    }

    fn sink(&self) -> SinkState {
        let s = &self.s;
        SinkState {
            lane: if s.c_sdp { Lane::Sdp } else { Lane::Kernel },
            followed: s.followed,
            carrier_read: s.carrier_read,
            is_counted: true,
            current_len: 0,
            current_offset: 0,
            rx: ShmRx::new(self.m.segment, 0, s.scan, s.head),
            engine: Sink::new(&SinkConfig::implicit(1024)),
        }
    }

    fn put_sink(&mut self, sink: &SinkState) {
        self.s.c_sdp = sink.lane == Lane::Sdp;
        self.s.followed = sink.followed;
        self.s.carrier_read = sink.carrier_read;
        (self.s.scan, self.s.head) = sink.rx.cursors();
    }

    fn gate_is_free(&self) -> bool {
        self.lines.log.gate.load(Ordering::Relaxed) == 0
    }

    fn gate(&self, holder: u32) {
        self.lines.log.gate.store(holder, Ordering::Relaxed);
    }

    // ---- the carrier ----

    fn carrier_push(&mut self, byte: u8) {
        self.s.carrier.push(byte);
        self.s.taken += 1;
    }

    fn carrier_read(&mut self, most: usize) -> Vec<u8> {
        let n = most.min(self.s.carrier.len());
        self.s.carrier.drain(..n).collect()
    }

    /// Throws away at most `n` bytes; how many.
    fn eat(&mut self, n: u64) -> Result<u64, String> {
        let eaten = self.carrier_read(usize::try_from(n).unwrap_or(usize::MAX));
        match eaten.iter().find(|byte| **byte != BELL) {
            Some(byte) => Err(format!("byte {byte} was eaten as a bell")),
            None => Ok(eaten.len() as u64),
        }
    }

    fn deliver(&mut self, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes {
            self.s.delivered += 1;
            if *byte != self.s.delivered {
                return Err(format!("byte {} came as {byte} (0 is a bell)", self.s.delivered));
            }
        }
        Ok(())
    }

    // ---- the producer ----

    fn produce(mut self) -> Option<Result<S, String>> {
        let broken = |Broken| "the producer finds the log broken".to_owned();
        let needs_gate = match self.s.p {
            P::Kernel => self.m.twin != Twin::SendsPastTheGate,
            P::Enter | P::Ring { .. } | P::Leave => true,
            P::Bells { first, armed } => {
                let late =
                    first && self.lines.consumer.followed.load(Ordering::SeqCst) != self.s.switches;
                if !late && armed.is_none() {
                    self.s.p = P::Idle;
                    return Some(self.done());
                }
                true
            }
            _ => false,
        };
        if needs_gate && !self.gate_is_free() {
            return None;
        }
        let twin = self.m.twin;
        match self.s.p.clone() {
            P::Idle => return None, // its choices are made in `steps`
            P::Trusted => {
                let trusts = self.lines.consumer.trusts_itself.load(Ordering::SeqCst) != 0;
                self.s.p = if trusts { P::Followed } else { P::Kernel };
            }
            P::Followed => {
                let followed = self.lines.consumer.followed.load(Ordering::SeqCst);
                let may = followed == self.s.switches || twin == Twin::EarlyEntry;
                self.s.p = if may && !self.s.pinned { P::Enter } else { P::Kernel };
            }
            P::Enter => {
                let mut source = self.source();
                source.carrier_sent = self.s.taken;
                let has_entered = if twin == Twin::EntersUnasked {
                    source.switch(self.lines, Lane::Sdp);
                    true
                } else {
                    source.enter(self.lines)
                };
                self.put_source(&source);
                self.s.p = if has_entered { P::Ring { first: true } } else { P::Kernel };
            }
            P::Ring { first } => {
                let mut source = self.source();
                let adopted = twin != Twin::NeverAdopts
                    && match source.adopt(self.lines).map_err(broken) {
                        Ok(adopted) => adopted,
                        Err(e) => return Some(Err(e)),
                    };
                if adopted {
                    self.s.p = P::Kernel;
                } else {
                    let next = self.s.sent + 1;
                    let options = SendOptions::default();
                    let posted = source.tx.post_send(WorkId(0), &[next], &mut Nothing, options);
                    if posted.is_err() {
                        return Some(Err(format!("post: {posted:?}")));
                    }
                    source.tx.publish();
                    self.s.sent = next;
                    self.s.p = P::Check { first };
                }
                self.put_source(&source);
            }
            P::Check { first } => {
                let word = self.lines.receive_arm.word.load(Ordering::Relaxed);
                let armed = arm::check(&self.lines.receive_arm.word).map(|_| word);
                let armed = armed.filter(|_| twin != Twin::NeverRings);
                self.s.p = P::Bells { first: first && twin != Twin::SilentEntry, armed };
            }
            P::Bells { armed, .. } => {
                // Under the gate: the section may have been ended by the consumer.
                let written = self.lines.producer.switches.load(Ordering::Acquire);
                if written == self.s.switches || twin == Twin::RingsAnyway {
                    self.carrier_push(BELL);
                    self.gate(PRODUCER);
                    self.s.p = P::Counted { armed };
                } else {
                    self.s.p = P::Disarm { armed };
                }
            }
            P::Counted { armed } => {
                self.count();
                // Without a gate nobody else's hold is given back.
                self.gate(0);
                self.s.p = P::Disarm { armed };
            }
            P::Disarm { armed } => {
                if let Some(word) = armed {
                    disarm(self.lines, word);
                }
                self.s.p = P::Idle;
            }
            P::MayLeave => {
                let followed = self.lines.consumer.followed.load(Ordering::SeqCst);
                let may = followed == self.s.switches || twin == Twin::LeavesAtOnce;
                self.s.p = if may { P::Leave } else { P::Reading };
            }
            P::Reading => {
                let reading = self.lines.consumer.kernel_reading.load(Ordering::SeqCst);
                // The two looks are those of `may_leave`; it must agree with them here.
                if reading == 0 && !may_leave(self.lines, self.s.switches) {
                    return Some(Err("may_leave disagrees".to_owned()));
                }
                self.s.p = if reading == 0 { P::Leave } else { P::Ring { first: false } };
            }
            P::Leave => {
                let mut source = self.source();
                match source.adopt(self.lines).map_err(broken) {
                    Ok(true) => {}
                    Ok(false) => source.switch(self.lines, Lane::Kernel),
                    Err(e) => return Some(Err(e)),
                }
                self.put_source(&source);
                self.s.p = P::Kernel;
            }
            P::Kernel => {
                let next = self.s.sent + 1;
                self.carrier_push(next);
                self.s.sent = next;
                self.s.p = P::Idle;
            }
        }
        Some(self.done())
    }

    /// The kernel takes no bell, because the carrier is full: possible only where bytes are unread.
    fn refuses(mut self) -> Option<Result<S, String>> {
        let P::Bells { first, armed } = self.s.p else { return None };
        let late = first && self.lines.consumer.followed.load(Ordering::SeqCst) != self.s.switches;
        let rings = (late || armed.is_some())
            && self.gate_is_free()
            && self.lines.producer.switches.load(Ordering::Acquire) == self.s.switches;
        if !rings || self.s.carrier.is_empty() {
            return None;
        }
        if self.m.twin == Twin::CountsRefused {
            self.count();
        }
        self.s.p = P::Disarm { armed };
        Some(self.done())
    }

    fn count(&mut self) {
        let mut source = self.source();
        source.carrier_sent += 1;
        source.publish_sent(self.lines);
        self.put_source(&source);
    }

    // ---- the consumer ----

    fn consume(mut self) -> Option<Result<S, String>> {
        let result = self.consume_step();
        match result {
            None => None,
            Some(Ok(())) => Some(self.done()),
            Some(Err(e)) => Some(Err(e)),
        }
    }

    fn pending(&self) -> Result<Option<Entry>, String> {
        let found = self.sink().pending(self.lines);
        Ok(found.map_err(|Broken| "the consumer finds the log broken".to_owned())?.map(Entry::from))
    }

    fn follow(&mut self, to: Lane) {
        let mut sink = self.sink();
        sink.follow(self.lines, to);
        self.put_sink(&sink);
    }

    /// The end of an attempt, as `receive` and `step` see it.
    fn ends(&mut self, with_nothing: bool) {
        let sleeps = if self.m.sleeps_plainly && !self.s.c_sdp { C::Sleep } else { C::Arm };
        let s = &mut self.s;
        s.c = if !with_nothing || s.total > 0 {
            (s.room, s.total, s.look_carrier) = (0, 0, false);
            C::Idle
        } else if s.look_carrier {
            sleeps
        } else {
            s.look_carrier = true;
            C::Top
        };
    }

    fn took(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.deliver(bytes)?;
        self.s.total += bytes.len() as u8;
        self.s.room -= bytes.len() as u8;
        Ok(())
    }

    fn consume_step(&mut self) -> Option<Result<(), String>> {
        let twin = self.m.twin;
        match self.s.c.clone() {
            C::Idle if self.s.reader == Reader::Unaware => {
                let bytes = self.carrier_read(1);
                if bytes.is_empty() {
                    return None;
                }
                return Some(self.deliver(&bytes));
            }
            C::Idle => return None,
            C::Sleep if self.s.carrier.is_empty() => return None,
            C::Gate { .. } if twin != Twin::NoGate && !self.gate_is_free() => return None,
            _ => {}
        }
        Some(self.consume_now(twin))
    }

    fn consume_now(&mut self, twin: Twin) -> Result<(), String> {
        self.s.c = match self.s.c.clone() {
            C::Idle => C::Idle,
            C::Top if self.s.c_sdp => {
                if self.s.look_carrier {
                    C::Eat
                } else {
                    C::SdpLook
                }
            }
            C::Top => {
                if twin != Twin::LateAnnouncement {
                    SinkState::kernel_reading(self.lines, true);
                }
                C::Look
            }
            C::Look => match self.pending()? {
                Some(entry) => C::Retract(After::Bounded(entry)),
                None if twin == Twin::LateAnnouncement => C::Announce,
                None => C::Read,
            },
            C::Announce => {
                SinkState::kernel_reading(self.lines, true);
                C::Read
            }
            C::Bounded(entry) => {
                let before = entry.carrier.wrapping_sub(self.s.carrier_read);
                if before == 0 || before > i64::MAX as u64 {
                    self.follow(Lane::Sdp);
                    C::Top
                } else {
                    let room = u64::from(self.s.room);
                    let cap = if twin == Twin::Unbounded { room } else { room.min(before) };
                    let bytes = self.carrier_read(cap as usize);
                    self.s.carrier_read += bytes.len() as u64;
                    self.took(&bytes)?;
                    return self.after_kernel_read(if bytes.is_empty() {
                        After::Failed
                    } else {
                        After::Got
                    });
                }
            }
            C::Read => {
                let got = self.carrier_read(self.s.room.into());
                self.s.carrier_read += got.len() as u64;
                C::Second { got, retracted: false }
            }
            C::Second { got, retracted: false } if twin == Twin::EarlyRetraction => {
                SinkState::kernel_reading(self.lines, false);
                C::Second { got, retracted: true }
            }
            C::Second { got, .. } => {
                let entry = self.pending()?.filter(|_| twin != Twin::LooksOnce);
                let after = match entry {
                    None if got.is_empty() => After::Failed,
                    None => {
                        self.took(&got)?;
                        After::Got
                    }
                    Some(_) if got.is_empty() => After::Switched,
                    Some(entry) => {
                        let behind = self.s.carrier_read.wrapping_sub(entry.carrier);
                        let behind = if behind > i64::MAX as u64 { 0 } else { behind };
                        let n = got.len() - (behind as usize).min(got.len());
                        if self.s.carrier_read >= entry.carrier {
                            self.follow(Lane::Sdp);
                        }
                        self.took(&got[..n])?;
                        if n == 0 { After::Switched } else { After::Got }
                    }
                };
                C::Retract(after)
            }
            C::Retract(after) => {
                SinkState::kernel_reading(self.lines, false);
                return self.after_kernel_read(after);
            }
            C::More => match self.pending()? {
                Some(_) => C::Top,
                None => {
                    self.ends(false);
                    return Ok(());
                }
            },
            C::Eat => {
                let announced = self.lines.log.carrier_sent.load(Ordering::Acquire);
                C::Eat2(announced.wrapping_sub(self.s.carrier_read))
            }
            C::Eat2(bells) => {
                self.eat_bells(bells)?;
                C::SdpLook
            }
            C::SdpLook => C::SdpRing(self.pending()?),
            C::SdpRing(switch) => return self.ring_read(switch),
            C::Carrier => {
                let announced = self.lines.log.carrier_sent.load(Ordering::Acquire);
                if self.eat_bells(announced.wrapping_sub(self.s.carrier_read))? > 0 {
                    C::Top
                } else {
                    C::Carrier2
                }
            }
            C::Carrier2 => {
                let sink = self.sink();
                if crate::receive::has_news(&sink, self.lines) { C::Top } else { C::Nothing }
            }
            C::Nothing => {
                let announced = self.lines.log.carrier_sent.load(Ordering::Acquire);
                if !self.s.carrier.is_empty() && announced != self.s.carrier_read {
                    C::Top
                } else {
                    self.ends(true);
                    return Ok(());
                }
            }
            C::Arm => {
                arm::arm(&self.lines.receive_arm.word, Mode::Carrier);
                if twin == Twin::SleepsBlindly { C::Sleep } else { C::LookAgain }
            }
            C::LookAgain => {
                let is_news = self.lines.producer.tail.load(Ordering::Acquire) != self.s.head
                    || self.lines.producer.switches.load(Ordering::Acquire) != self.s.followed;
                if is_news { C::Top } else { C::Sleep }
            }
            C::Sleep => C::Top, // the carrier is readable
            C::Pin => {
                self.s.pinned = true;
                self.lines.consumer.trusts_itself.store(0, Ordering::SeqCst);
                C::Gate { push: self.m.hands_over }
            }
            C::Gate { push } => {
                let unlocked = twin == Twin::NoGate;
                if !unlocked {
                    self.gate(CONSUMER);
                }
                C::End { push, unlocked }
            }
            C::End { push, .. } => {
                switch_for_producer(self.lines);
                C::Settle { push }
            }
            C::Settle { push } => {
                self.settle()?;
                self.s.reader = Reader::Left;
                if push { self.begin_to_hand_over()? } else { C::Release }
            }
            C::Push(limit) => self.hand_over_one(limit)?,
            C::Release => {
                if twin != Twin::NoGate {
                    self.gate(0);
                }
                C::Idle
            }
        };
        Ok(())
    }

    fn after_kernel_read(&mut self, after: After) -> Result<(), String> {
        self.s.c = match after {
            After::Bounded(entry) => C::Bounded(entry),
            After::Switched => C::Top,
            After::Got if self.s.room > 0 => C::More,
            After::Got => {
                self.ends(false);
                return Ok(());
            }
            After::Failed => {
                self.ends(true);
                return Ok(());
            }
        };
        Ok(())
    }

    /// L5: no more than were announced.
    fn eat_bells(&mut self, bells: u64) -> Result<u64, String> {
        let bells = if self.m.twin == Twin::EatsEverything { u64::MAX >> 1 } else { bells };
        if bells > i64::MAX as u64 {
            return Ok(0);
        }
        let eaten = self.eat(bells)?;
        self.s.carrier_read += eaten;
        Ok(eaten)
    }

    fn ring_read(&mut self, switch: Option<Entry>) -> Result<(), String> {
        let mut sink = self.sink();
        sink.rx.set_limit(switch.map_or(u64::MAX, |s| s.ring));
        let record = sink.rx.poll_receive().map_err(|e| format!("ring: {e:?}"))?;
        if let Some(message) = record {
            let mut byte = [0u8];
            sink.rx.copy_header(message, &mut byte);
            sink.rx.release(message);
            self.put_sink(&sink);
            self.took(&byte)?;
            if self.s.room == 0 {
                self.ends(false);
            } else {
                self.s.c = C::SdpRing(switch);
            }
            return Ok(());
        }
        if let Some(entry) = switch {
            let bells = entry.carrier.wrapping_sub(self.s.carrier_read);
            if bells > i64::MAX as u64 {
                return Err("more bells eaten than there were".to_owned());
            }
            let eaten = self.eat(bells)?;
            self.s.carrier_read += eaten;
            if eaten == bells {
                self.follow(Lane::Kernel);
                self.s.c = C::Top;
            } else {
                self.ends(true);
            }
        } else if self.s.total > 0 || !self.s.look_carrier {
            self.ends(true);
        } else {
            self.s.c = C::Carrier;
        }
        Ok(())
    }

    /// As `receive::settle`: follows what can be followed without delivering anything.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..LOG_ENTRIES {
            let Some(entry) = self.pending()? else { break };
            if entry.to_sdp {
                if self.s.carrier_read != entry.carrier {
                    break;
                }
                self.follow(Lane::Sdp);
            } else {
                let bells = entry.carrier.wrapping_sub(self.s.carrier_read);
                if self.s.head != entry.ring || bells > i64::MAX as u64 {
                    break;
                }
                let eaten = self.eat(bells)?;
                self.s.carrier_read += eaten;
                if eaten != bells {
                    break;
                }
                self.follow(Lane::Kernel);
            }
        }
        Ok(())
    }

    /// As `handover::hand_over`, where the ring has all that is unread; otherwise nothing changes.
    fn begin_to_hand_over(&mut self) -> Result<C, String> {
        match self.pending()? {
            None if !self.s.c_sdp => {
                self.s.reader = Reader::Unaware;
                Ok(C::Release)
            }
            Some(entry) if !entry.to_sdp && self.s.taken == entry.carrier => {
                let bells = entry.carrier - self.s.carrier_read;
                self.s.carrier_read += self.eat(bells)?;
                Ok(C::Push(entry.ring))
            }
            _ => Ok(C::Release),
        }
    }

    /// One message is sent again through the producer's socket.
    fn hand_over_one(&mut self, limit: u64) -> Result<C, String> {
        let mut sink = self.sink();
        sink.rx.set_limit(limit);
        if let Some(message) = sink.rx.poll_receive().map_err(|e| format!("ring: {e:?}"))? {
            let mut byte = [0u8];
            sink.rx.copy_header(message, &mut byte);
            sink.rx.release(message);
            self.carrier_push(byte[0]);
            self.put_sink(&sink);
            return Ok(C::Push(limit));
        }
        self.put_sink(&sink);
        self.follow(Lane::Kernel);
        self.s.reader = Reader::Unaware;
        Ok(C::Release)
    }
}

/// W5 with what was seen: `arm::Seen` is not to be had from a word, so the word is put back in its place.
fn disarm(lines: &HalfLines, seen: Armed) {
    let word = &lines.receive_arm.word;
    let now = word.load(Ordering::Relaxed);
    if now == seen
        && let Some((_, seen)) = arm::check(word)
    {
        arm::disarm(word, seen);
    }
}

impl Model for Lanes {
    type State = S;

    fn start(&self) -> S {
        let mut words = vec![0; 10 + 3 * LOG_ENTRIES];
        words[8] = 1; // the consumer trusts itself
        S {
            words,
            ring: vec![0; 2 * usize::from(self.bytes)],
            pinned: false,
            carrier: Vec::new(),
            taken: 0,
            p: P::Idle,
            sent: 0,
            p_sdp: false,
            switches: 0,
            carrier_sent: 0,
            p_tail: 0,
            p_head: 0,
            c: C::Idle,
            reader: Reader::Library,
            delivered: 0,
            c_sdp: false,
            followed: 0,
            carrier_read: 0,
            scan: 0,
            head: 0,
            room: 0,
            total: 0,
            look_carrier: false,
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        if s.p == P::Idle && s.sent < self.bytes {
            let choices: &[(&str, P)] = match (s.p_sdp, s.switches < self.switches) {
                (true, true) => &[("send", P::Ring { first: false }), ("leave, send", P::MayLeave)],
                (true, false) => &[("send", P::Ring { first: false })],
                (false, true) => &[("send", P::Kernel), ("promote, send", P::Trusted)],
                (false, false) => &[("send", P::Kernel)],
            };
            for (name, next) in choices {
                // A pinned half leaves first, whatever the budget.
                let next = if s.p_sdp && s.pinned { P::MayLeave } else { next.clone() };
                to.push((name, Ok(S { p: next, ..s.clone() })));
            }
        } else if let Some(next) = self.at(s).produce() {
            to.push((producer_step(&s.p), next));
            if let Some(next) = self.at(s).refuses() {
                to.push(("producer: the kernel takes no bell", next));
            }
        }
        if s.c == C::Idle && s.reader != Reader::Unaware {
            for (name, room) in [("receive 1", 1), ("receive all", self.bytes + 2)] {
                let state = S { c: C::Top, room, total: 0, look_carrier: false, ..s.clone() };
                to.push((name, Ok(state)));
            }
            if self.leaves && s.reader == Reader::Library {
                to.push(("end the section", Ok(S { c: C::Pin, ..s.clone() })));
            }
        } else if let Some(next) = self.at(s).consume() {
            to.push((consumer_step(&s.c), next));
        }
    }

    fn check(&self, _: &S) -> Result<(), String> {
        Ok(()) // everything that can break is noticed in the step that breaks it
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        if s.p == P::Idle && s.sent == self.bytes && s.delivered == self.bytes {
            Ok(())
        } else {
            Err(format!("everybody rests with {} sent, {} delivered", s.sent, s.delivered))
        }
    }
}

fn producer_step(p: &P) -> &'static str {
    match p {
        P::Idle => "producer: done",
        P::Trusted => "producer: does the consumer trust itself?",
        P::Followed => "producer: was every entry followed?",
        P::Enter => "producer: writes entry -> SDP",
        P::Ring { .. } => "producer: sends on the ring",
        P::Check { .. } => "producer: looks at the arm word",
        P::Bells { .. } => "producer: rings the carrier, or need not",
        P::Counted { .. } => "producer: counts the bell",
        P::Disarm { .. } => "producer: disarms",
        P::MayLeave => "producer: was the last entry followed?",
        P::Reading => "producer: is there an unbounded read?",
        P::Leave => "producer: writes entry -> kernel, or adopts",
        P::Kernel => "producer: sends on the carrier",
    }
}

fn consumer_step(c: &C) -> &'static str {
    match c {
        C::Idle => "consumer: reads, unaware",
        C::Top => "consumer: begins",
        C::Look => "consumer: looks at the log",
        C::Announce => "consumer: announces late",
        C::Bounded(_) => "consumer: bounded read, or follows -> SDP",
        C::Read => "consumer: unbounded read",
        C::Second { .. } => "consumer: looks again",
        C::Retract(_) => "consumer: takes the announcement back",
        C::More => "consumer: is there more?",
        C::Eat => "consumer: how many bells?",
        C::Eat2(_) => "consumer: eats bells",
        C::SdpLook => "consumer: looks at the log, on the SDP lane",
        C::SdpRing(_) => "consumer: reads the ring, or follows -> kernel",
        C::Carrier => "consumer: looks at the carrier",
        C::Carrier2 => "consumer: has it news?",
        C::Nothing => "consumer: bells on their way?",
        C::Arm => "consumer: arms",
        C::LookAgain => "consumer: looks once more",
        C::Sleep => "consumer: wakes",
        C::Pin => "consumer: pins its half",
        C::Gate { .. } => "consumer: takes the gate",
        C::End { .. } => "consumer: writes the producer's entry",
        C::Settle { .. } => "consumer: settles",
        C::Push(_) => "consumer: sends a message again",
        C::Release => "consumer: gives the gate back",
    }
}

/// Bytes and switches of the faithful models; states that they may have.
fn bounds() -> (u8, u32, usize) {
    match size() {
        Size::Unit => (2, 2, 400_000),
        Size::Ci => (3, 3, 3_000_000),
        Size::Long => (4, 4, 60_000_000),
    }
}

#[test]
fn bytes_come_once_and_in_order() {
    let (bytes, switches, limit) = bounds();
    let model = || Lanes::new(Twin::Faithful, bytes, switches);
    holds("lanes", &model(), limit);
    holds("lanes, plain sleeps", &model().sleeping_plainly(), limit);
}

#[test]
fn a_consumer_may_end_the_section() {
    let (bytes, switches, limit) = bounds();
    let model = || Lanes::new(Twin::Faithful, bytes, switches);
    holds("lanes, ended by the consumer", &model().leaving(false), limit);
    holds("lanes, handed over", &model().leaving(true), limit);
}

#[test]
fn every_rule_is_needed() {
    let limit = 3_000_000;
    for twin in [
        Twin::LeavesAtOnce,
        Twin::LateAnnouncement,
        Twin::Unbounded,
        Twin::LooksOnce,
        Twin::EatsEverything,
        Twin::EarlyEntry,
        Twin::CountsRefused,
        Twin::SleepsBlindly,
        Twin::NeverRings,
    ] {
        fails(&format!("lanes, {twin:?}"), &Lanes::new(twin, 4, 3), limit);
    }
    let silent = Lanes::new(Twin::SilentEntry, 3, 2).sleeping_plainly();
    fails("lanes, SilentEntry", &silent, limit);
    for twin in [
        Twin::EntersUnasked,
        Twin::NoGate,
        Twin::RingsAnyway,
        Twin::NeverAdopts,
        Twin::SendsPastTheGate,
    ] {
        fails(&format!("lanes, {twin:?}"), &Lanes::new(twin, 3, 2).leaving(true), limit);
    }
}

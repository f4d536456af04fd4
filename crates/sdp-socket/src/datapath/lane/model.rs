//! A model of lane switching (L1–L11): the functions of `lane`, the arm word and the ring are the real
//! ones, on real memory; the carrier, the order in which `send` and `receive` call them, and the
//! interleaving of the two ends are the model's.
//!
//! One half: a producer that sends numbered bytes, one a call, and may change lanes at any moment
//! that the rules allow; a consumer that reads one byte or many at a time, sleeps on the carrier
//! when there is nothing, and may at any moment end the producer's section for good (L10), with or
//! without handing over unread bytes. A step is the work of one end between two looks at words that
//! the other can change. Promises: every byte is delivered once and in order, no wake byte is
//! delivered, no byte is consumed as a wake byte, no end finds an impossible entry in the log, and
//! no thread sleeps while there is something to read.
//!
//! Either end's process may be killed while it has its half's lock, and be replaced by a family
//! member ([`crate::datapath::takeover`]): then bytes read from the ring but not stored as read may
//! be read once more, and bytes taken off the carrier are gone.
//!
//! [`Twin`] names the rules that are broken on purpose; each must be noticed.

use core::{cell::Cell, sync::atomic::Ordering};
use std::{format, string::String, vec, vec::Vec};

use sdp_fabric_shm::endpoint::{ShmRx, ShmTx};
use sdp_model::{Model, Size, Step, fails, holds, size};
use sdp_proto::{Ack, SinkConfig, SourceConfig, wire::Message};
use sdp_rdma::{
    fabric::{Gather, ReceiveQueue, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_shm::{
    arm::{self, Mode},
    layout::{ARMS, Half as HalfLines, LOG_ENTRIES, Segment, TRUSTS, segment_bytes},
};

use super::*;

mod consumer;
mod early;
mod producer;

use consumer::consumer_step;
use early::Getter;
use producer::producer_step;

const RING: u32 = 64 * 1024;
const WAKE_BYTE: u8 = 0;
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
    /// L5: throws away all bytes on the carrier.
    ConsumesEverything,
    /// L5: a wake byte is counted whether the kernel took it or not.
    CountsRefused,
    /// L9: a read of zero bytes is the end, whatever the log says.
    ZeroIsTheEnd,
    /// E1: looks for news before it looks for the end, not after.
    EndAfterNews,
    /// E1: waits until a wake byte is counted, though its producer is dead.
    WaitsForTheDead,
    /// L10: takes the producer's count as it is, though it was killed before it counted.
    TrustsTheCount,
    /// L10: the consumer writes the producer's entry without the gate.
    NoGate,
    /// L10: a wake byte is sent without looking whether the consumer has ended the section.
    RingsAnyway,
    /// L10: kernel sends do not take the gate, as if nothing could be handed over.
    SendsPastTheGate,
    /// L10: ring sends do not accept the consumer's entry.
    NeverAdopts,
    /// Section 5: the first message on the lane rings only if a sleeper armed.
    SilentEntry,
    /// O1: sleeps without looking again.
    SleepsBlindly,
    /// O10: says that all sleepers arm before the connection has lanes.
    SaysSoFirst,
    /// O10: a thread that is about to wait looks for lanes before it counts itself.
    LooksFirst,
    /// O10: a thread that waits for a connection without lanes does not count itself.
    WaitsUncounted,
    /// Section 7: a next owner takes the words as they are stored.
    TakesTheWords,
    /// Section 7: a next owner does not ask the kernel how many bytes it took.
    CountsByTheWords,
    /// Section 7: a next owner does not ask the kernel how many bytes were read.
    ReadsByTheWords,
    /// Section 7: a next owner does not wake the reader for messages that it finds published.
    WakesNobody,
    /// Section 7: room is given back before it is written down that the message was read.
    FreesFirst,
    /// Section 7: a switch is followed before the ring's last message is written down as read.
    FollowsFirst,
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
    Ring {
        first: bool,
    },
    /// Published, not written down.
    Published {
        first: bool,
    },
    Check {
        first: bool,
    },
    WakeBytes {
        first: bool,
        armed: Option<Armed>,
    },
    Counted {
        armed: Option<Armed>,
    },
    Disarm {
        armed: Option<Armed>,
    },
    MayLeave,
    Reading,
    Leave,
    Kernel,
    Closed,
    /// Killed with the lock.
    TakenOver,
}

/// What `arm::check` read, kept as the word so that it can be part of a state.
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
        over: bool,
        retracted: bool,
    },
    Retract(After),
    More,
    Consume,
    Consume2(u64),
    SdpLook,
    SdpRing(Option<Entry>),
    /// Copied, not written down.
    Copied(Option<Entry>),
    Carrier,
    Peek {
        news: Option<bool>,
    },
    News(Peeked),
    Nothing(Peeked),
    Uncounted,
    /// About to wait for a connection that had no lanes.
    Early,
    LookForLanes,
    /// Asleep, with nothing to arm.
    EarlySleep,
    Arm,
    LookAgain,
    Sleep,
    WantKernel,
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
    /// The position up to which bytes are handed over.
    Push(u64),
    Release,
    /// The end of the stream was reported.
    Ended,
    /// Killed with the lock.
    TakenOver,
}

/// What a peek at the carrier finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Peeked {
    Over,
    Byte,
    Empty,
}

/// Where a kernel read goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum After {
    Got,
    Switched,
    Failed,
    Ended,
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
        Self { carrier: s.carrier, ring: s.fabric, to_sdp: s.to == Lane::Sdp }
    }
}

/// One moment: the segment's words, both ends' private state, and the carrier.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    // Shared.
    words: Vec<u64>,
    ring: Vec<u64>,
    wants_kernel: bool,
    // The kernel's.
    carrier: Vec<u8>,
    taken: u64,
    fin: bool,
    // Producer.
    p: P,
    sent: u8,
    p_sdp: bool,
    switches: u32,
    carrier_sent: u64,
    p_tail: u64,
    p_head: u64,
    p_mseq: u32,
    /// The words in family memory, where a user may be killed and replaced.
    p_words: Vec<u64>,
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
    c_mseq: u32,
    c_words: Vec<u64>,
    /// `delivered` when the words were stored.
    c_stored: u8,
    /// A next owner may read on from behind this byte.
    floor: Option<u8>,
    /// Deaths that may still be.
    kills: u8,
    /// The consumer's end has lanes, as its threads see it.
    has_lanes: bool,
    /// Its threads that wait although they saw none.
    early: u8,
    getter: Getter,
}

/// The model: real memory that a step is run on.
struct Lanes {
    twin: Twin,
    bytes: u8,
    switches: u32,
    leaves: bool,
    hands_over: bool,
    sleeps_unarmed: bool,
    arms: bool,
    is_candidate: bool,
    closes: bool,
    dies: bool,
    kills_producer: bool,
    kills_consumer: bool,
    segment: Segment,
}

/// A message's payload.
struct Byte(u8);

impl Gather for Byte {
    fn len(&self) -> usize {
        1
    }

    fn copy_to(&mut self, _: usize, to: &[Cell<u8>]) {
        to.iter().for_each(|cell| cell.set(self.0));
    }
}

/// Ring words of such a message.
const RECORD_WORDS: usize = sdp_shm::ring::record_bytes(HEADER + 1) / 8;
const HEADER: usize = sdp_proto::wire::HEADER_LEN;

/// Words of a half in family memory.
struct Words(Vec<AtomicU64>);

impl Words {
    fn new(values: &[u64]) -> Self {
        Self(values.iter().map(|value| AtomicU64::new(*value)).collect())
    }

    fn values(&self) -> Vec<u64> {
        self.0.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

/// A state being worked on: private copies loaded, the segment's words restored.
struct At<'a> {
    m: &'a Lanes,
    s: S,
    /// The half's words as they are, and by the seam.
    lines: &'a HalfLines,
    half: ShmHalf<'a>,
}

impl Lanes {
    fn new(twin: Twin, bytes: u8, switches: u32) -> Self {
        // SAFETY: zeros of this size, aligned to a page; leaked, so that they outlive every copy; RING is a ring size.
        let segment = unsafe { Segment::new(crate::leaked(segment_bytes(RING)), RING) };
        Self {
            twin,
            bytes,
            switches,
            leaves: false,
            hands_over: false,
            sleeps_unarmed: false,
            arms: false,
            is_candidate: false,
            closes: false,
            dies: false,
            kills_producer: false,
            kills_consumer: false,
            segment,
        }
    }

    fn leaving(mut self, hands_over: bool) -> Self {
        self.leaves = true;
        self.hands_over = hands_over;
        self
    }

    /// On the kernel lane the consumer sleeps in a system call of its own, without having armed
    /// anything.
    fn sleeping_unarmed(mut self) -> Self {
        self.sleeps_unarmed = true;
        self
    }

    /// The consumer says that all its sleepers arm.
    fn arming(mut self) -> Self {
        self.arms = true;
        self
    }

    /// The consumer's end has no lanes yet: another thread of its process gets them.
    fn candidate(mut self) -> Self {
        self.is_candidate = true;
        self
    }

    /// The producer closes the connection when it has sent everything.
    fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// The producer may be killed anywhere, also with the gate in its hands.
    fn dying(mut self) -> Self {
        self.dies = true;
        self
    }

    /// The producer's process may be killed with its half's lock, and is succeeded.
    fn takeover_of_producer(mut self) -> Self {
        self.kills_producer = true;
        self
    }

    /// The consumer's process may be killed with its half's lock, and is succeeded.
    fn takeover_of_consumer(mut self) -> Self {
        self.kills_consumer = true;
        self
    }

    fn at(&self, s: &S) -> At<'_> {
        let lines = self.segment.half(0);
        let half = ShmHalf::new(lines, RING);
        let at = At { m: self, s: s.clone(), lines, half };
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
        word!(l.consumer.read, u64);
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
            let stored = self.s.p_words.get(3).map_or(u32::MAX, |bits| *bits as u32);
            let is_pending = (self.s.followed.min(self.s.switches).min(stored)..written)
                .any(|e| e as usize % LOG_ENTRIES == n as usize);
            if !is_pending {
                let at = 10 + 3 * n as usize;
                words[at..at + 3].fill(0);
            }
        }
        // Nor do sequence numbers of the arm word, but for whether the producer has seen this one.
        let (old, new) = (words[9], words[9] & 3 | 5 << 2);
        words[9] = new;
        if let P::WakeBytes { armed, .. } | P::Counted { armed } | P::Disarm { armed } =
            &mut self.s.p
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
            engine: {
                let mut engine = Source::new(&SourceConfig::implicit(1024));
                engine.recover_at(s.p_mseq, s.p_mseq.into());
                engine
            },
        }
    }

    fn put_source(&mut self, source: &SourceState) {
        self.s.p_sdp = source.lane == Lane::Sdp;
        self.s.switches = source.switches;
        self.s.carrier_sent = source.carrier_sent;
        (self.s.p_tail, self.s.p_head) = source.tx.cursors();
        self.s.p_mseq = source.engine.last_mseq();
    }

    /// Stores the sending half's words, as at the end of a section and behind each message.
    fn store_source(&mut self) {
        if self.m.kills_producer {
            let words = Words::new(&self.s.p_words);
            let source = self.source();
            source.store(&words.0);
            self.s.p_words = words.values();
        }
    }

    /// The same of the receiving half.
    fn store_sink(&mut self) {
        if self.m.kills_consumer {
            let words = Words::new(&self.s.c_words);
            self.sink().store(&words.0);
            self.s.c_words = words.values();
            self.s.c_stored = self.s.delivered;
        }
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
            engine: {
                let mut engine = Sink::new(&SinkConfig::implicit(1024));
                engine.recover_at(s.c_mseq, s.c_mseq.into());
                engine
            },
        }
    }

    fn put_sink(&mut self, sink: &SinkState) {
        self.s.c_sdp = sink.lane == Lane::Sdp;
        self.s.followed = sink.followed;
        self.s.carrier_read = sink.carrier_read;
        (self.s.scan, self.s.head) = sink.rx.cursors();
        self.s.c_mseq = sink.engine.last_mseq();
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
    fn take_wake_bytes(&mut self, n: u64) -> Result<u64, String> {
        let consumed = self.carrier_read(usize::try_from(n).unwrap_or(usize::MAX));
        match consumed.iter().find(|byte| **byte != WAKE_BYTE) {
            Some(byte) => Err(format!("byte {byte} was consumed as a wake byte")),
            None => Ok(consumed.len() as u64),
        }
    }

    fn deliver(&mut self, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes {
            // Once after a death: bytes that were not stored as read.
            match self.s.floor.take() {
                Some(floor) if floor < *byte && *byte <= self.s.delivered => {
                    self.s.delivered = *byte;
                }
                _ => self.s.delivered += 1,
            }
            if *byte != self.s.delivered {
                return Err(format!("byte {} came as {byte} (0 is a wake byte)", self.s.delivered));
            }
        }
        Ok(())
    }
}

/// Words of a new half, where they are needed.
fn fresh(is_needed: bool, initialise: impl FnOnce(&[AtomicU64])) -> Vec<u64> {
    let words = Words::new(&[0; sdp_shm::family::HALF_WORDS]);
    initialise(&words.0);
    if is_needed { words.values() } else { Vec::new() }
}

impl P {
    fn has_lock(&self) -> bool {
        !matches!(self, Self::Idle | Self::Closed | Self::TakenOver)
    }
}

impl C {
    fn has_lock(&self) -> bool {
        !matches!(
            self,
            Self::Idle
                | Self::Early
                | Self::LookForLanes
                | Self::EarlySleep
                | Self::Arm
                | Self::LookAgain
                | Self::Sleep
                | Self::Ended
                | Self::TakenOver
        )
    }
}

impl Model for Lanes {
    type State = S;

    fn start(&self) -> S {
        let mut words = vec![0; 10 + 3 * LOG_ENTRIES + 1];
        words[8] = match (self.is_candidate, self.arms) {
            (true, _) => 0,
            (false, true) => ARMS.into(),
            (false, false) => TRUSTS.into(),
        };
        S {
            words,
            ring: vec![0; RECORD_WORDS * usize::from(self.bytes)],
            wants_kernel: false,
            carrier: Vec::new(),
            taken: 0,
            fin: false,
            p: P::Idle,
            sent: 0,
            p_sdp: false,
            switches: 0,
            carrier_sent: 0,
            p_tail: 0,
            p_head: 0,
            p_mseq: 0,
            p_words: fresh(self.kills_producer, |words| {
                SourceState::initialise(words, &Source::new(&SourceConfig::implicit(1024)));
            }),
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
            c_mseq: 0,
            c_words: fresh(self.kills_consumer, |words| {
                SinkState::initialise(words, &Sink::new(&SinkConfig::implicit(1024)));
                // As it is since the consumer trusts itself.
                words[words::BITS].store(COUNTED_BIT, Ordering::Relaxed);
            }),
            c_stored: 0,
            floor: None,
            kills: 1,
            has_lanes: !self.is_candidate,
            early: 0,
            getter: Getter::start(self),
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
                // A half that must fall back leaves first, whatever budget is left.
                let next = if s.p_sdp && s.wants_kernel { P::MayLeave } else { next.clone() };
                to.push((name, Ok(S { p: next, ..s.clone() })));
            }
        } else if let Some(next) = self.at(s).produce() {
            to.push((producer_step(&s.p), next));
            if let Some(next) = self.at(s).refuses() {
                to.push(("producer: the kernel takes no wake byte", next));
            }
        }
        if let Some(next) = self.get_lanes(s) {
            to.push(("consumer: another thread gets lanes", Ok(next)));
        }
        if self.dies && s.p != P::Closed {
            to.push(("producer: killed", Ok(S { p: P::Closed, fin: true, ..s.clone() })));
        }
        if self.kills_producer && s.kills > 0 && s.p.has_lock() {
            let next = S { p: P::TakenOver, kills: s.kills - 1, ..s.clone() };
            to.push(("producer: killed with the lock", Ok(next)));
        }
        if self.kills_consumer && s.kills > 0 && s.c.has_lock() {
            to.push(("consumer: killed with the lock", Ok(self.at(s).consumer_dies())));
        }
        if s.c == C::Idle && s.reader != Reader::Unaware {
            for (name, room) in [("receive 1", 1), ("receive all", self.bytes + 2)] {
                let state = S { c: C::Top, room, total: 0, look_carrier: false, ..s.clone() };
                to.push((name, Ok(state)));
            }
            if self.leaves && s.reader == Reader::Library {
                to.push(("end the section", Ok(S { c: C::WantKernel, ..s.clone() })));
            }
        } else if let Some(next) = self.at(s).consume() {
            to.push((consumer_step(&s.c), next));
        }
    }

    fn check(&self, _: &S) -> Result<(), String> {
        Ok(()) // everything that can break is noticed in the step that breaks it
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        if matches!(s.p, P::Idle | P::Closed)
            && (s.sent == self.bytes || self.dies && s.fin)
            && s.delivered == s.sent
            && (!s.fin || matches!(s.c, C::Ended | C::Idle))
        {
            Ok(())
        } else {
            Err(format!("everybody rests with {} sent, {} delivered", s.sent, s.delivered))
        }
    }
}

/// Bytes and switches of the faithful models; states that they may have.
fn bounds() -> (u8, u32, usize) {
    match size() {
        Size::Unit => (2, 2, 400_000),
        Size::Ci => (4, 4, 3_000_000),
        Size::Long => (6, 6, 60_000_000),
    }
}

#[test]
fn bytes_come_once_and_in_order() {
    let (bytes, switches, limit) = bounds();
    let model = || Lanes::new(Twin::Faithful, bytes, switches);
    holds("lanes", &model(), limit);
    holds("lanes, closed", &model().closing(), limit);
    holds("lanes, killed", &model().dying(), limit);
    holds("lanes, sleeps that arm nothing", &model().sleeping_unarmed(), limit);
}

#[test]
fn a_consumer_may_end_the_section() {
    let (bytes, switches, limit) = bounds();
    let model = || Lanes::new(Twin::Faithful, bytes, switches);
    holds("lanes, ended by the consumer", &model().leaving(false), limit);
    holds("lanes, handed over", &model().leaving(true), limit);
    holds("lanes, ended by the consumer, killed", &model().leaving(false).dying(), limit);
    holds("lanes, handed over, killed", &model().leaving(true).dying(), limit);
    holds("lanes, handed over, closed", &model().leaving(true).closing(), limit);
}

/// The same where a user may be killed and replaced, which has many more states.
fn takeover_bounds() -> (u8, u32, usize) {
    match size() {
        Size::Unit => (2, 1, 400_000),
        Size::Ci => (3, 3, 3_000_000),
        Size::Long => (4, 4, 60_000_000),
    }
}

#[test]
fn a_relative_goes_on() {
    let (bytes, switches, limit) = takeover_bounds();
    let model = || Lanes::new(Twin::Faithful, bytes, switches);
    holds("lanes, producer succeeded", &model().takeover_of_producer(), limit);
    holds("lanes, consumer succeeded", &model().takeover_of_consumer(), limit);
    let ended = model().leaving(false);
    holds("lanes, ended by the consumer, producer succeeded", &ended.takeover_of_producer(), limit);
    let ended = model().leaving(false);
    holds("lanes, ended by the consumer, consumer succeeded", &ended.takeover_of_consumer(), limit);
}

#[test]
fn a_next_owner_needs_every_rule() {
    let limit = 3_000_000;
    let model = |twin| Lanes::new(twin, 3, 2);
    for twin in [Twin::TakesTheWords, Twin::CountsByTheWords, Twin::WakesNobody] {
        fails(&format!("lanes, producer, {twin:?}"), &model(twin).takeover_of_producer(), limit);
    }
    let words = [Twin::TakesTheWords, Twin::ReadsByTheWords];
    for twin in words.into_iter().chain([Twin::FreesFirst, Twin::FollowsFirst]) {
        fails(&format!("lanes, consumer, {twin:?}"), &model(twin).takeover_of_consumer(), limit);
    }
}

/// L4 says more than is needed: the read is over when the consumer looks again, and a next section that
/// begins then is not swallowed any more.
#[test]
fn the_announcement_may_end_before_the_second_look() {
    let (bytes, switches, limit) = bounds();
    holds("lanes, early retraction", &Lanes::new(Twin::EarlyRetraction, bytes, switches), limit);
}

#[test]
fn every_rule_is_needed() {
    let limit = 3_000_000;
    for twin in [
        Twin::LeavesAtOnce,
        Twin::LateAnnouncement,
        Twin::Unbounded,
        Twin::LooksOnce,
        Twin::ConsumesEverything,
        Twin::EarlyEntry,
        Twin::CountsRefused,
        Twin::SleepsBlindly,
        Twin::NeverRings,
    ] {
        fails(&format!("lanes, {twin:?}"), &Lanes::new(twin, 3, 3), limit);
    }
    let end = Lanes::new(Twin::ZeroIsTheEnd, 3, 2).dying();
    fails("lanes, ZeroIsTheEnd", &end, limit);
    let end = Lanes::new(Twin::WaitsForTheDead, 2, 2).dying();
    fails("lanes, WaitsForTheDead", &end, limit);
    let end = Lanes::new(Twin::TrustsTheCount, 2, 2).leaving(false).dying();
    fails("lanes, TrustsTheCount", &end, limit);
    let end = Lanes::new(Twin::EndAfterNews, 3, 2).closing();
    fails("lanes, EndAfterNews", &end, limit);
    let silent = Lanes::new(Twin::SilentEntry, 3, 2).sleeping_unarmed();
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

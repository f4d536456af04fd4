//! Runs one script of calls on two connections: one goes the fast path wherever that accepts, the
//! other never does. After each call everything that both keep must be the same: the private words
//! of both halves, the segment with its rings, what the other half reads, the flags, and how many
//! wake bytes were sent.
//!
//! Only these may differ:
//! * the stream positions from before a message, which are made new before they are used;
//! * the tail that the reader has seen, and what it has freed but not published, while there is
//!   one. Both forget theirs before the next send, as each call of the slow path does; so they see
//!   the same room;
//! * when, and on which CPU.

use std::{
    io::Read,
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
};

use super::*;
use crate::{
    conn::iovec::Buffers,
    datapath::receive::{Wish, ring_read, with_sink_of},
};

const CALLS: u32 = 800;
const SEEDS: u64 = 3;

/// Enough for scripts, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }
}

/// A connection with a real carrier, so that rings can be counted.
struct Twin {
    world: World,
    is_fast: bool,
    carriers: [TcpStream; 2],
    rings: usize,
    /// The last send looked at the reader's head all the same: this thread was kept from its CPU.
    has_looked: bool,
    /// Calls that the fast path accepted: sends, receives.
    accepted: [u32; 2],
}

impl Twin {
    fn new(is_fast: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        reader.set_nonblocking(true).unwrap();
        let world = World::new();
        for (carrier, used) in [(&sender, &world.tx), (&reader, &world.rx)] {
            let fd = carrier.as_raw_fd();
            crate::process::note_descriptor(fd);
            table::put(fd, Entry::Conn(used.conn.index())).unwrap();
        }
        Self {
            world,
            is_fast,
            carriers: [sender, reader],
            rings: 0,
            has_looked: false,
            accepted: [0; 2],
        }
    }

    fn held(&self, half: Half) -> ConnGuard {
        let carrier = &self.carriers[if half == Half::Send { 0 } else { 1 }];
        ConnGuard::new(carrier.as_raw_fd(), half).expect("in the table")
    }

    fn buffers(at: *const u8, len: usize, body: impl FnOnce(&mut Buffers)) {
        let one = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
        // SAFETY: vector and bytes outlive the call, by the callers' borrows.
        body(&mut unsafe { Buffers::new(&raw const one, 1) }.expect("one"));
    }

    /// How many of the bytes went.
    fn send(&mut self, bytes: &[u8]) -> usize {
        let InUse { conn, row, segment, .. } = self.world.tx;
        let link = ShmLink::new(segment, 0);
        let fd = self.carriers[0].as_raw_fd();
        // Keeps the sender from looking whether the reader lives.
        let now = sdp_sys::time::ticks();
        conn.looked.store(now, Ordering::Relaxed);
        if self.is_fast && bytes.len() <= LONGEST {
            let copy = |to: &[Cell<u8>]| {
                for (cell, byte) in to.iter().zip(bytes) {
                    cell.set(*byte);
                }
            };
            let before = self.snapshot();
            if push(&self.world.tx, fd, 0, bytes.len(), copy) {
                self.accepted[0] += 1;
                self.has_looked = conn.looked.load(Ordering::Relaxed) != now;
                return bytes.len();
            }
            // The sender's own view of the room may be newer.
            assert_eq!(before.but_seen_head(), self.snapshot().but_seen_head(), "refused");
        }
        let mut sent = 0;
        let held = self.held(Half::Send);
        Self::buffers(bytes.as_ptr(), bytes.len(), |buffers| {
            let mut source = self.world.sending();
            if source.lane == Lane::Sdp {
                send::ring_send(&held, &mut source, row, link, link.half(0), buffers, false);
            }
            source.store(self.world.source());
            sent = bytes.len() - buffers.left();
        });
        sent
    }

    /// Receives at most `wanted` bytes.
    fn receive(&mut self, wanted: usize) -> Vec<u8> {
        let mut got = Vec::new();
        if self.is_fast {
            let before = self.snapshot();
            match pull(&self.world.rx, wanted, |from| Into(&mut got).accept(from)) {
                Some(Received::Done(_)) => {
                    self.accepted[1] += 1;
                    return got;
                }
                Some(Received::Partly(_)) => self.accepted[1] += 1,
                Some(Received::Empty | Received::Later) | None => {
                    assert!(got.is_empty());
                    assert_eq!(before, self.snapshot(), "refused");
                }
            }
        }
        let InUse { conn, row, segment, .. } = self.world.rx;
        let link = ShmLink::new(segment, 1);
        let held = self.held(Half::Receive);
        let mut rest = std::vec![0; wanted - got.len()];
        let mut n = 0;
        Self::buffers(rest.as_ptr(), rest.len(), |buffers| {
            let read = |sink: &mut SinkState, row: &_, _, half: ShmHalf<'_>| {
                let switch = sink.pending(half).expect("sound");
                sink.rx.set_limit(switch.map_or(u64::MAX, |switch| switch.fabric));
                if sink.lane != Lane::Sdp {
                    return Ok(0);
                }
                ring_read(&held, sink, row, half, buffers, Wish { flags: 0 })
            };
            n = with_sink_of(conn, link, row, read).expect("sound");
        });
        rest.truncate(n);
        got.extend(rest);
        got
    }

    fn forget_seen_tail(&self) {
        forget_seen_tail(self.world.sink(), self.world.lines());
    }

    fn arm(&self, mode: Option<arm::Mode>, for_room: bool) {
        if let Some(mode) = mode {
            arm::arm(&self.world.lines().receive_arm.word, mode);
        }
        if for_room {
            arm::arm(&self.world.lines().space_arm.word, arm::Mode::Doorbell);
        }
    }

    fn count_rings(&mut self) -> usize {
        let mut bytes = [0; 16];
        while let Ok(n @ 1..) = self.carriers[1].read(&mut bytes) {
            self.rings += n;
        }
        self.rings
    }

    fn snapshot(&self) -> Snapshot {
        let all = |words: &[AtomicU64]| words.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        let (mut source, mut sink): (Vec<u64>, Vec<u64>) =
            (all(self.world.source()), all(self.world.sink()));
        source[SOURCE_BASE] = 0;
        sink[words::SINK_BASE] = 0;
        sink[ORIGIN] = 0;
        let segment = self.world.tx.segment;
        let base = segment.base().as_ptr();
        // SAFETY: mapped for its whole length; this thread alone uses it.
        let mut bytes = unsafe { core::slice::from_raw_parts(base, segment_bytes(RING)) }.to_vec();
        let mut clear = |at: *const u8, len: usize| {
            let at = at.addr() - base.addr();
            bytes[at..at + len].fill(0);
        };
        for side in 0..2 {
            clear((&raw const segment.end(side).cpu).cast(), 4);
        }
        clear((&raw const self.world.lines().receive_arm.rung_at).cast(), 8);
        let row = self.world.rx.row;
        Snapshot {
            source,
            sink,
            segment: bytes,
            exchanged: [row.ack.load(Ordering::Relaxed), row.credit.load(Ordering::Relaxed)],
            flags: [&self.world.tx, &self.world.rx].map(|u| u.conn.flags.load(Ordering::Relaxed)),
        }
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        for carrier in &self.carriers {
            table::clear(carrier.as_raw_fd());
        }
    }
}

#[derive(Clone, PartialEq)]
struct Snapshot {
    source: Vec<u64>,
    sink: Vec<u64>,
    segment: Vec<u8>,
    exchanged: [u64; 2],
    flags: [conn::Flags; 2],
}

/// Not the whole segment.
impl core::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { source, sink, exchanged, flags, .. } = self;
        write!(f, "{source:x?}\n{sink:x?}\n{exchanged:x?} {flags:x?}")
    }
}

impl Snapshot {
    fn has_seen_tail(&self) -> bool {
        self.sink[words::SEEN_TAIL] != self.sink[words::HEAD]
    }

    fn but_seen_head(mut self) -> Self {
        self.source[1] = 0;
        self
    }

    /// Without the tail that the reader has seen, and the room that it has not published yet.
    fn without_seen_tail(mut self, world: &World) -> Self {
        self.sink[words::SEEN_TAIL] = 0;
        self.sink[words::PUBLISHED] = 0;
        let head: *const u8 = (&raw const world.lines().consumer.head).cast();
        let at = head.addr() - world.tx.segment.base().as_ptr().addr();
        self.segment[at..at + 8].fill(0);
        self
    }
}

fn compare(fast: &mut Twin, slow: &mut Twin, what: &str) {
    assert_eq!(fast.count_rings(), slow.count_rings(), "{what}");
    let (mut a, mut b) = (fast.snapshot(), slow.snapshot());
    assert!(!b.has_seen_tail());
    if a.has_seen_tail() {
        (a, b) = (a.without_seen_tail(&fast.world), b.without_seen_tail(&slow.world));
    }
    if let Some(at) = a.segment.iter().zip(&b.segment).position(|(a, b)| a != b) {
        panic!("{what}: segment differs at {at:#x}\n{a:?}\n{b:?}");
    }
    assert_eq!(a, b, "{what}");
}

/// Sends and reads on both, flips both to the kernel lane and back.
fn play(seed: u64, fast: &mut Twin, slow: &mut Twin) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    fast.world.clear();
    slow.world.clear();
    let (mut sent, mut got) = (0, 0);
    for call in 0..CALLS {
        let what;
        match random.below(20) {
            0..9 => {
                let len = match random.below(8) {
                    0 => 1 + random.below(4 * LONGEST),
                    1 => 1 + random.below(LONGEST),
                    2 => 900 + random.below(300),
                    _ => 1 + random.below(300),
                };
                let mode = [None, None, Some(arm::Mode::Doorbell), Some(arm::Mode::Carrier)];
                let (mode, for_room) = (mode[random.below(4)], random.below(4) == 0);
                what = std::format!("seed {seed}, call {call}: send of {len}, {mode:?}");
                let bytes: Vec<u8> = (sent..sent + len as u64).map(byte).collect();
                let send = |twin: &mut Twin| {
                    twin.forget_seen_tail();
                    twin.arm(mode, for_room);
                    twin.send(&bytes)
                };
                fast.has_looked = false;
                let by_fast = send(fast);
                if fast.has_looked {
                    let mut source = slow.world.sending();
                    source.tx.refresh().expect("sound");
                    source.store(slow.world.source());
                }
                let done = [by_fast, send(slow)];
                assert_eq!(done[0], done[1], "{what}");
                sent += done[0] as u64;
            }
            9..19 => {
                let wanted = match random.below(6) {
                    0 => 1 + random.below(2 * LONGEST),
                    1 => 1 + random.below(8),
                    _ => 1 + random.below(600),
                };
                what = std::format!("seed {seed}, call {call}: receive of {wanted}");
                let read = [&mut *fast, &mut *slow].map(|twin| twin.receive(wanted));
                assert_eq!(read[0], read[1], "{what}");
                for found in &read[0] {
                    assert_eq!(*found, byte(got), "{what}");
                    got += 1;
                }
            }
            _ => {
                what = std::format!("seed {seed}, call {call}: flip");
                for twin in [&mut *fast, &mut *slow] {
                    let is_on_sdp = twin.world.sending().lane == Lane::Sdp;
                    if is_on_sdp {
                        twin.world.leave();
                    } else {
                        // The reader follows when it has read all that was sent before.
                        while !twin.receive(LONGEST).is_empty() {}
                        twin.world.follow();
                        twin.world.enter();
                        twin.world.follow();
                    }
                }
                if fast.world.sending().lane == Lane::Sdp {
                    got = sent;
                }
            }
        }
        compare(fast, slow, &what);
    }
    assert!(got > 30_000, "{got}");
}

#[test]
fn both_ways_leave_the_same_behind() {
    let (mut fast, mut slow) = (Twin::new(true), Twin::new(false));
    for seed in 1..=SEEDS {
        play(seed, &mut fast, &mut slow);
    }
    assert!(fast.accepted.iter().all(|n| *n > 300), "{:?}", fast.accepted);
    assert!(fast.rings > 50, "{}", fast.rings);
    assert_eq!(slow.accepted, [0; 2]);
}

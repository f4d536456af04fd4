//! Two connections joined by queues, a clock that only tests move, and small deterministic random
//! numbers.

#![allow(dead_code, reason = "each test file uses a part of the harness")]

use sdp_proto::{
    Credits, Violation,
    connection::{
        end::{Connection, Input, LATE_DOUBLINGS_MAX, LATE_PASSIVE_MS},
        setup::Local,
        state::State,
    },
    wire::{Body, HEADER_LEN, Header, Hello, HelloAck, Message},
};
use std::collections::VecDeque;

/// Xorshift with a multiplier: enough for schedules, and the same everywhere.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to `bound` - 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The byte at a position of the stream of an end, so that a lost or doubled byte shows.
fn stream_byte(side: usize, position: u64) -> u8 {
    let mixed = (position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mixed as u8 ^ (side as u8).wrapping_mul(0x5a)
}

/// One end, its program and its receive queue.
pub struct End {
    pub connection: Connection,
    side: usize,
    explicit: bool,
    /// Receive buffers posted and empty.
    free: u16,
    /// Messages that hold a buffer and were not handled.
    arrived: VecDeque<Vec<u8>>,
    /// Payload handled but not read by the program; each entry holds a buffer.
    unread: VecDeque<Vec<u8>>,
    /// Messages in flight to this end.
    wire: VecDeque<Vec<u8>>,
    pub written: u64,
    pub read: u64,
    pub is_at_end: bool,
    pub is_down: bool,
    /// Messages this end has sent that carried nothing.
    pub empty_sent: u64,
    pub sent: u64,
    /// Violation that this end has found.
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
}

impl End {
    fn posted(&self) -> u16 {
        if self.explicit { self.free + self.arrived.len() as u16 } else { u16::MAX }
    }

    pub fn state(&self) -> State {
        self.connection.state()
    }

    pub fn unread(&self) -> usize {
        self.unread.len()
    }

    /// The program writes.
    pub fn write(&mut self, len: u64) {
        self.connection.write(len).unwrap();
        self.written += len;
    }

    /// The program reads one message's payload, if there is any.
    pub fn read_one(&mut self) -> bool {
        let Some(payload) = self.unread.pop_front() else { return false };
        for byte in payload {
            assert_eq!(
                byte,
                stream_byte(1 - self.side, self.read),
                "stream broken at {}",
                self.read
            );
            self.read += 1;
        }
        self.free += u16::from(self.explicit);
        true
    }

    /// Handles the next message that has arrived.
    pub fn handle_one(&mut self) -> bool {
        let Some(bytes) = self.arrived.pop_front() else { return false };
        match self.connection.handle_message(&bytes, bytes.len() as u32) {
            Ok(Input::Deliver(payload)) => {
                let from = payload.offset as usize;
                self.unread.push_back(bytes[from..from + payload.len as usize].to_vec());
                return true;
            }
            Ok(Input::EndOfStream) => self.is_at_end = true,
            Ok(_) => {}
            Err(violation) => self.violation = Some(violation),
        }
        // Nothing of the message is needed any more: its buffer is posted again at once, which
        // keeps control messages moving while the program does not read.
        self.free += u16::from(self.explicit);
        true
    }
}

/// Late credit updates that a story waits for in a row: more than it takes for either end to get
/// on, fewer than for ever.
const LATE_ROUNDS: u32 = 6;

/// Two ends and the messages between them.
pub struct Pair {
    pub ends: [End; 2],
    pub now_ms: u64,
    /// Most bytes in flight per direction where credits are implicit.
    window: usize,
}

pub struct Options {
    pub explicit: bool,
    pub bufs: u16,
    pub receive_size: u32,
    pub window: usize,
}

impl Options {
    pub fn explicit(bufs: u16) -> Self {
        Self { explicit: true, bufs, receive_size: 116, window: usize::MAX }
    }

    pub fn implicit() -> Self {
        Self { explicit: false, bufs: u16::MAX, receive_size: 1040, window: 8192 }
    }

    pub fn local(&self) -> Local {
        Local {
            credits: if self.explicit { Credits::Explicit } else { Credits::Implicit },
            bufs: self.bufs,
            receive_size: self.receive_size,
            lane_messages: false,
            zcopy: false,
            ring: None,
        }
    }
}

impl Pair {
    /// Two established ends, set up through real set-up bytes.
    pub fn new(options: &Options) -> Self {
        let mut pair = Self::connecting(options);
        pair.ends[1].connection.handle_ready().unwrap();
        pair
    }

    /// The active end is established, the passive one is not yet ready.
    pub fn connecting(options: &Options) -> Self {
        let (mut active, hello) = Connection::connect(options.local(), None);
        let hello = Hello::parse(hello.encode().as_slice()).unwrap();
        let (passive, ack) = Connection::accept(options.local(), &hello);
        active.handle_hello_ack(&HelloAck::parse(&ack.encode()).unwrap()).unwrap();
        let end = |side, connection| End {
            connection,
            side,
            explicit: options.explicit,
            free: options.bufs,
            arrived: VecDeque::new(),
            unread: VecDeque::new(),
            wire: VecDeque::new(),
            written: 0,
            read: 0,
            is_at_end: false,
            is_down: false,
            empty_sent: 0,
            sent: 0,
            violation: None,
            trace: Vec::new(),
        };
        Self { ends: [end(0, active), end(1, passive)], now_ms: 0, window: options.window }
    }

    /// Posts one message of an end, if it has one and there is room.
    pub fn transmit(&mut self, side: usize) -> bool {
        let posted = self.ends[side].posted();
        let Some(message) = self.ends[side].connection.poll_transmit(posted, self.now_ms) else {
            return false;
        };
        let on_the_way: usize = self.ends[1 - side].wire.iter().map(Vec::len).sum();
        if on_the_way + message.message().header.len as usize > self.window {
            // The fabric is full: as if it had never been asked for.
            return false;
        }
        let mut bytes = message.header().to_vec();
        let start = self.ends[side].connection.source().position();
        let payload = u64::from(message.payload_len());
        bytes.extend((start..start + payload).map(|at| stream_byte(side, at)));
        let end = &mut self.ends[side];
        end.connection.handle_posted(&message);
        end.sent += 1;
        end.empty_sent +=
            u64::from(message.message().body == Body::Data && message.message().header.len == 16);
        end.trace.push(format!("{} @{}", message.message(), self.now_ms));
        let mseq = end.connection.source().last_mseq();
        end.connection.handle_delivered(mseq, self.now_ms);
        self.ends[1 - side].wire.push_back(bytes);
        true
    }

    /// Brings one message to an end's receive queue.
    pub fn arrive(&mut self, side: usize) -> bool {
        let end = &mut self.ends[side];
        if end.is_down {
            end.wire.clear();
        }
        let Some(bytes) = end.wire.pop_front() else { return false };
        if end.explicit {
            assert_ne!(end.free, 0, "a message without a receive buffer for it");
            end.free -= 1;
        }
        end.arrived.push_back(bytes);
        true
    }

    /// Takes a queue pair down if its end wants it; the other end sees that behind the messages
    /// sent.
    pub fn disconnect(&mut self, side: usize) -> bool {
        if !self.ends[side].connection.poll_disconnect() {
            return false;
        }
        self.ends[side].is_down = true;
        self.ends[side].connection.handle_expired();
        true
    }

    fn notice_disconnection(&mut self, side: usize) -> bool {
        let peer_is_down = self.ends[1 - side].is_down;
        let end = &mut self.ends[side];
        if !peer_is_down || end.is_down || !end.wire.is_empty() || !end.arrived.is_empty() {
            return false;
        }
        end.is_down = true;
        end.connection.handle_disconnected();
        end.connection.poll_disconnect();
        end.connection.handle_expired();
        true
    }

    /// One step of everything for one end but reading; whether anything happened.
    pub fn step(&mut self, side: usize) -> bool {
        let mut moved = self.transmit(side);
        moved |= self.arrive(side);
        moved |= self.ends[side].handle_one();
        moved |= self.disconnect(side);
        moved |= self.notice_disconnection(side);
        moved
    }

    /// Lets everything happen that can; programs read.
    pub fn drive(&mut self) {
        self.drive_bounded(100_000, true);
    }

    /// Lets everything happen that can; programs do not read.
    pub fn drive_unread(&mut self) {
        self.drive_bounded(100_000, false);
    }

    fn drive_bounded(&mut self, bound: u32, reads: bool) {
        let mut quiet = 0;
        let mut read = self.ends[0].read + self.ends[1].read;
        for _ in 0..bound {
            let mut moved = false;
            for side in 0..2 {
                moved |= self.step(side);
                moved |= reads && self.ends[side].read_one();
            }
            if self.ends[0].read + self.ends[1].read != read {
                read = self.ends[0].read + self.ends[1].read;
                quiet = 0;
            }
            if moved {
                continue;
            }
            // Nothing happens until time passes; the story has to expire waits that are longer than
            // those of late credit updates.
            let until = self.now_ms + (LATE_PASSIVE_MS << LATE_DOUBLINGS_MAX);
            let deadlines = self.ends.iter().filter_map(|end| end.connection.poll_timeout());
            match deadlines.filter(|at| *at <= until).min() {
                Some(at) if quiet < LATE_ROUNDS => {
                    quiet += 1;
                    self.now_ms = at.max(self.now_ms);
                    for end in &mut self.ends {
                        end.connection.handle_timeout(self.now_ms);
                    }
                }
                _ => return,
            }
        }
        panic!("still moving after {bound} rounds: updates that answer updates?");
    }

    /// Moves the clock to the next deadline of an end and lets it expire.
    pub fn expire(&mut self, side: usize) {
        let deadline = self.ends[side].connection.poll_timeout().expect("a deadline");
        self.now_ms = self.now_ms.max(deadline);
        self.ends[side].connection.handle_timeout(self.now_ms);
    }

    /// Puts bytes in front of an end as if its peer had sent them.
    pub fn inject(&mut self, side: usize, bytes: Vec<u8>) {
        self.ends[side].wire.push_back(bytes);
    }

    pub fn assert_streams_complete(&self) {
        for side in 0..2 {
            assert_eq!(self.ends[side].read, self.ends[1 - side].written, "stream to {side}");
        }
    }
}

/// A message of a peer, with payload bytes of no meaning behind the headers.
pub fn raw(body: Body, payload: u32, mseq: u32, mseq_ack: u32, bufs: u16) -> Message {
    let len = body.header_len() + payload;
    let flags = Default::default();
    Message { header: Header { mid: body.mid(), flags, bufs, len, mseq, mseq_ack }, body }
}

pub fn bytes_of(message: &Message) -> Vec<u8> {
    let mut bytes = message.encode().as_slice().to_vec();
    bytes.resize(message.header.len as usize, 0xee);
    assert!(bytes.len() >= HEADER_LEN);
    bytes
}

/// Compares with a file in `tests/snapshots`, or writes it when `SDP_BLESS` is set.
pub fn assert_snapshot(name: &str, committed: &str, rendered: &str) {
    if std::env::var_os("SDP_BLESS").is_some() {
        let path = format!("{}/tests/snapshots/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, rendered).unwrap();
        return;
    }
    assert_eq!(committed, rendered, "{name} changed; set SDP_BLESS=1 if it was meant to");
}

/// The first byte of the stream that an end sends.
pub fn first_byte_of(side: usize) -> u8 {
    stream_byte(side, 0)
}

//! Messages whose bytes follow from a number, so that a receiver can check them without a copy.

use core::cell::Cell;
use std::collections::VecDeque;

use sdp_rdma::{
    fabric::{Gather, PostError, ReceiveQueue, Received, Scatter, SendOptions, SendQueue},
    work::WorkId,
};

use crate::harness::{Harness, receive, settle, until};

/// Header of an ordinary message in these tests, as of a Data message of the protocol.
pub const HEADER_LEN: usize = 16;
/// Longest header in these tests: base header and the longest advertisement.
pub const HEADER_LEN_MAX: usize = 48;

/// Random choices of a test: SplitMix64, the same for a seed for ever.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub const fn below(&mut self, bound: usize) -> usize {
        ((self.next_u64() as u128 * bound as u128) >> 64) as usize
    }

    /// Whether something with a chance of one in `n` happens.
    pub const fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A message: its number decides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Decides the bytes; different in each message of a test.
    pub number: u64,
    /// Bytes posted as header.
    pub header_len: usize,
    /// Bytes posted as payload.
    pub payload_len: usize,
}

impl Message {
    /// An ordinary header and this much payload.
    pub const fn new(number: u64, payload_len: usize) -> Self {
        Self { number, header_len: HEADER_LEN, payload_len }
    }

    /// Any header, any payload up to `max` bytes in all; the edges are likely.
    pub fn random(random: &mut Random, number: u64, max: usize) -> Self {
        let header_len = HEADER_LEN + 16 * random.below(1 + (HEADER_LEN_MAX - HEADER_LEN) / 16);
        let header_len = header_len.min(max);
        let longest = max - header_len;
        let payload_len = match random.below(8) {
            0 => 0,
            1 => longest,
            2 => longest - random.below(longest.min(20) + 1),
            3 => random.below(longest + 1),
            _ => random.below(longest.min(700) + 1),
        };
        Self { number, header_len, payload_len }
    }

    /// Length in all.
    pub const fn len(&self) -> usize {
        self.header_len + self.payload_len
    }

    /// Whether it has no bytes at all.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Byte `index` of it.
    pub const fn byte(&self, index: usize) -> u8 {
        self.word(index / 8)[index % 8]
    }

    const fn word(&self, index: usize) -> [u8; 8] {
        mix(self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64)).to_le_bytes()
    }

    /// Bytes `from .. from + len` of it.
    pub fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let words = from / 8..(from + len).div_ceil(8);
        let mut bytes: Vec<u8> = words.flat_map(|index| self.word(index)).collect();
        bytes.drain(..from % 8);
        bytes.truncate(len);
        bytes
    }

    /// Posts it.
    pub fn post(&self, tx: &mut impl SendQueue, options: SendOptions) -> Result<(), PostError> {
        let header = self.bytes(0, self.header_len);
        tx.post_send(WorkId(self.number), &header, &mut Payload(self), options)
    }

    /// Checks that a received message is this one: length, header, all bytes.
    pub fn check(&self, rx: &impl ReceiveQueue, received: Received) {
        assert_eq!(received.len as usize, self.len(), "length of {self:?}");
        let mut header = [0; HEADER_LEN_MAX];
        let copied = rx.copy_header(received, &mut header);
        assert_eq!(copied, self.len().min(HEADER_LEN_MAX), "header copy of {self:?}");
        assert_eq!(header[..copied], self.bytes(0, copied), "header of {self:?}");
        self.check_part(rx, received, 0, self.len());
    }

    /// Checks the bytes of a part.
    pub fn check_part(&self, rx: &impl ReceiveQueue, received: Received, from: usize, len: usize) {
        let mut sink = Collector::new(len);
        rx.copy_out(received, from as u32, len as u32, &mut sink);
        assert_eq!(sink.bytes.len(), len, "bytes {from}+{len} of {self:?}");
        // No `assert_eq`: thousands of bytes in a failure are of no use.
        let expected = self.bytes(from, len);
        if expected != sink.bytes {
            let wrong = expected.iter().zip(&sink.bytes).position(|(a, b)| a != b);
            panic!("bytes {from}+{len} of {self:?}: first wrong one {wrong:?}");
        }
    }
}

/// The payload of a message.
struct Payload<'a>(&'a Message);

impl Gather for Payload<'_> {
    fn len(&self) -> usize {
        self.0.payload_len
    }

    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        let end = offset.checked_add(dst.len());
        assert!(
            end.is_some_and(|end| end <= self.0.payload_len),
            "the fabric asks for {offset}+{} of {}",
            dst.len(),
            self.0.payload_len
        );
        let bytes = self.0.bytes(self.0.header_len + offset, dst.len());
        for (cell, byte) in dst.iter().zip(bytes) {
            cell.set(byte);
        }
    }
}

/// Collects bytes; panics when offered more than its room.
#[derive(Debug)]
pub struct Collector {
    /// The bytes that came.
    pub bytes: Vec<u8>,
    room: usize,
}

impl Collector {
    /// With room for `room` bytes.
    pub const fn new(room: usize) -> Self {
        Self { bytes: Vec::new(), room }
    }
}

impl Scatter for Collector {
    fn room(&self) -> usize {
        self.room - self.bytes.len()
    }

    fn accept(&mut self, src: &[Cell<u8>]) {
        assert!(src.len() <= self.room(), "{} bytes offered, room for {}", src.len(), self.room());
        self.bytes.extend(src.iter().map(Cell::get));
    }
}

/// Asks for a completion.
pub const SIGNALLED: SendOptions =
    SendOptions { signalled: true, solicited: false, control: false };
/// Ordinary data.
pub const DATA: SendOptions = SendOptions { signalled: false, solicited: false, control: false };
/// May use the reserve.
pub const CONTROL: SendOptions = SendOptions { signalled: false, solicited: false, control: true };

/// Sends messages in one direction, receiving whenever there is no room, and checks each and that
/// no other comes.
pub fn transfer<H: Harness>(
    harness: &mut H,
    tx: &mut H::Tx,
    rx: &mut H::Rx,
    messages: impl IntoIterator<Item = Message>,
) {
    let mut under_way = VecDeque::new();
    for message in messages {
        until(harness, "room for a message", || {
            match message.post(tx, DATA) {
                Ok(()) => return Some(()),
                Err(PostError::Full) => {}
                Err(error) => panic!("post of {message:?}: {error:?}"),
            }
            receive_all(rx, &mut under_way);
            None
        });
        under_way.push_back(message);
    }
    until(harness, "the last message", || {
        receive_all(rx, &mut under_way);
        under_way.is_empty().then_some(())
    });
    settle(harness);
    assert_eq!(rx.poll_receive(), Ok(None), "a message that nobody sent");
}

/// Receives, checks and releases all messages that are there.
fn receive_all(rx: &mut impl ReceiveQueue, under_way: &mut VecDeque<Message>) {
    while let Some(received) = rx.poll_receive().expect("the connection lives") {
        let message = under_way.pop_front().expect("a message that nobody sent");
        message.check(rx, received);
        rx.release(received);
    }
}

/// Messages that [`fill`] posts at most: no fabric's window is that large.
pub const FILL_MAX: usize = 1 << 20;

/// Posts equal messages until the fabric has no room, letting it work meanwhile; how many were
/// posted.
pub fn fill<H: Harness>(
    harness: &mut H,
    tx: &mut H::Tx,
    first_number: u64,
    payload_len: usize,
) -> Vec<Message> {
    let mut posted = Vec::new();
    while posted.len() < FILL_MAX {
        let message = Message::new(first_number + posted.len() as u64, payload_len);
        match message.post(tx, DATA) {
            Ok(()) => posted.push(message),
            Err(PostError::Full) => {
                // Room may be on its way: a window counts as full that stays full when all has come
                // to rest.
                settle(harness);
                match message.post(tx, DATA) {
                    Ok(()) => posted.push(message),
                    Err(PostError::Full) => return posted,
                    Err(error) => panic!("post of {message:?}: {error:?}"),
                }
            }
            Err(error) => panic!("post of {message:?}: {error:?}"),
        }
    }
    panic!("{FILL_MAX} messages posted and the queue is not full");
}

/// Receives these messages and nothing else, releasing each at once.
pub fn drain<H: Harness>(harness: &mut H, rx: &mut H::Rx, messages: &[Message]) {
    for message in messages {
        let received = receive(harness, rx);
        message.check(rx, received);
        rx.release(received);
    }
    settle(harness);
    assert_eq!(rx.poll_receive(), Ok(None), "a message that nobody sent");
}

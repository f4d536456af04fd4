//! Follows the two rings of a connection by their cursors, from outside.
//!
//! A record is intact in a copy if its header was what it had to be (kind, length, and the number of
//! its message, which each message has for itself) and is still there *after* the copy: a producer
//! overwrites records in their order and writes each one's header first, so what stands behind an
//! intact header was not overwritten either. If it was, everything up to the consumer's cursor is
//! given up, and counted. For the rules of the ring see `sdp_shm::ring`.
//!
//! Messages of both directions come in an order that both ends could have seen: a message says the
//! number of the last message from the other end, and comes behind that.

use std::collections::VecDeque;
use std::mem::{offset_of, size_of};

use sdp_proto::wire::Message;
use sdp_shm::layout::{
    CONTROL_BYTES, ConsumerLine, Control as Layout, EndLine, Half as HalfLayout, LOG_ENTRIES,
    LogEntry, LogLine, ProducerLine,
};
use sdp_shm::ring::{ALIGN, KIND_MESSAGE, KIND_PAD, RECORD_HEADER, record_bytes};
use sdp_stats::Endpoint;

use super::memory::Segment;
use super::pcapng::Frame;

/// Bytes of a control page that are looked at.
const CONTROL: usize = offset_of!(Layout, halves) + 2 * size_of::<HalfLayout>();
/// Bytes of a ring that are copied at once.
const CHUNK: u64 = 256 << 10;
/// Bytes of a message that are looked at for its header.
const PREFIX: usize = 40;
/// Bytes of a record before its payload: its header, and the base header.
const OVERHEAD: u64 = RECORD_HEADER as u64 + 16;
/// Bytes of a record by which it is known again: its header and the message's base header.
const MARK: usize = RECORD_HEADER + 16;
/// Rounds of one look.
const ROUNDS: usize = 4;

/// A copy of a control page.
pub(super) struct Control([u8; CONTROL]);

impl Control {
    /// Copies it.
    pub(super) fn read(segment: &Segment) -> Option<Self> {
        let mut bytes = [0; CONTROL];
        segment.read(0, &mut bytes).then_some(Self(bytes))
    }

    fn u32(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    /// First word of a segment.
    pub(super) fn magic(&self) -> u32 {
        self.u32(offset_of!(Layout, magic))
    }

    /// Version of the layout.
    pub(super) fn version(&self) -> u32 {
        self.u32(offset_of!(Layout, version))
    }

    /// Bytes of each ring.
    pub(super) fn ring_bytes(&self) -> u32 {
        self.u32(offset_of!(Layout, ring_bytes))
    }

    /// Whether the end on a side is attached, has not closed, and uses this descriptor.
    pub(super) fn uses(&self, side: usize, descriptor: u32) -> bool {
        let end =
            |field| self.u32(offset_of!(Layout, ends) + (side & 1) * size_of::<EndLine>() + field);
        end(offset_of!(EndLine, attached)) == 1
            && end(offset_of!(EndLine, intent)) == 0
            && end(offset_of!(EndLine, descriptor)) == descriptor.wrapping_add(1)
    }

    fn half(half: usize, field: usize) -> usize {
        offset_of!(Layout, halves) + (half & 1) * size_of::<HalfLayout>() + field
    }

    fn cursors(&self, half: usize) -> Cursors {
        let producer = Self::half(half, offset_of!(HalfLayout, producer));
        let consumer = Self::half(half, offset_of!(HalfLayout, consumer));
        Cursors {
            tail: self.u64(producer + offset_of!(ProducerLine, tail)),
            origin: self.u64(producer + offset_of!(ProducerLine, origin)),
            head: self.u64(consumer + offset_of!(ConsumerLine, head)),
        }
    }

    fn switches(&self, half: usize) -> u32 {
        self.u32(Self::half(
            half,
            offset_of!(HalfLayout, producer) + offset_of!(ProducerLine, switches),
        ))
    }

    /// Entry `number` of the lane log.
    fn switch(&self, half: usize, number: u32) -> Switch {
        let place = number as usize % LOG_ENTRIES;
        let log = offset_of!(HalfLayout, log) + offset_of!(LogLine, entries);
        let entry = Self::half(half, log + place * size_of::<LogEntry>());
        Switch {
            carrier: self.u64(entry + offset_of!(LogEntry, carrier)),
            ring: self.u64(entry + offset_of!(LogEntry, ring)),
            is_to_sdp: self.u32(entry + offset_of!(LogEntry, to)) == 1,
        }
    }
}

const _: () = assert!(CONTROL <= CONTROL_BYTES);

struct Switch {
    carrier: u64,
    ring: u64,
    is_to_sdp: bool,
}

/// The cursors of a half, as they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursors {
    tail: u64,
    origin: u64,
    head: u64,
}

impl Cursors {
    /// Whether a ring of `size` bytes may have them. If not they were forged, or both ends moved while
    /// they were copied: the next look tells.
    fn are_right(&self, size: u64) -> bool {
        let is_aligned = |at: u64| at.is_multiple_of(ALIGN as u64);
        [self.tail, self.origin, self.head].into_iter().all(is_aligned)
            && self.origin <= self.head
            && self.head <= self.tail
            && self.tail - self.head <= size
            && self.tail < 1 << 62
    }
}

/// What a capture has not seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Messages that were overwritten before they were read.
    pub(super) messages: u64,
    /// Their bytes of payload, at most.
    pub(super) bytes: u64,
    /// Bytes that went by the carrier between two stretches on the lane.
    pub(super) carrier: u64,
}

impl Lost {
    /// Adds another's.
    pub(super) fn add(&mut self, other: Self) {
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.carrier = self.carrier.saturating_add(other.carrier);
    }
}

/// A connection that was found.
#[derive(Debug)]
pub(super) struct Found {
    /// Its segment, as long as two rings and a control page.
    pub(super) segment: Segment,
    /// Bytes of each ring.
    pub(super) ring_bytes: u32,
    /// By side.
    pub(super) ends: [Endpoint; 2],
}

/// A message that was read, with payload or without.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    number: u32,
    acknowledges: u32,
    /// Payload bytes of its direction before it.
    position: u64,
    payload: Vec<u8>,
}

/// One direction.
#[derive(Debug, Default)]
struct Half {
    /// Where it is read next.
    at: u64,
    /// Count at which index 0 is, for what is read next.
    origin: u64,
    has_begun: bool,
    /// Number of the last message that was read; `None`: the next one's is not known.
    number: Option<u32>,
    /// Number of the last message that was handed out.
    shown: u32,
    /// The last known number, where the next one's is not, and ring bytes that were given up since.
    given_up: Option<(Option<u32>, u64)>,
    /// Payload bytes before what is read next, those on the carrier included.
    position: u64,
    /// Payload bytes of what was handed out, likewise.
    sent: u64,
    /// Switches that were looked at.
    switches: u32,
    /// Carrier bytes at the last switch to it.
    carrier: u64,
    /// Stretches on the carrier: ring cursor, bytes.
    stretches: VecDeque<(u64, u64)>,
    lost: Lost,
    /// Read, and not handed out.
    messages: VecDeque<Read>,
}

/// Why a look at a half ended early.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// Nobody can read the segment any more, or it is another connection's, or it was forged.
    Over,
    /// What was copied was overwritten meanwhile.
    Overwritten,
}

/// A connection that is followed.
#[derive(Debug)]
pub(super) struct Connection {
    of: Found,
    halves: [Half; 2],
    is_over: bool,
}

impl Connection {
    /// Follows a connection from the oldest message that its rings surely have.
    pub(super) fn new(of: Found) -> Self {
        Self { of, halves: Default::default(), is_over: false }
    }

    /// What was lost of it so far.
    pub(super) fn lost(&self) -> Lost {
        let mut lost = Lost::default();
        for half in &self.halves {
            lost.add(half.lost);
            // How many they were, the next message would say.
            if let Some((_, bytes)) = half.given_up {
                lost.add(Lost { messages: 1, bytes, carrier: 0 });
            }
        }
        lost
    }

    /// Reads what is new and hands it out in order. Whether there was anything.
    pub(super) fn read(&mut self, now_ns: impl Fn() -> u64, put: &mut impl FnMut(Frame)) -> bool {
        let mut is_news = false;
        for _ in 0..ROUNDS {
            if self.is_over || !self.fetch() {
                break;
            }
            is_news = true;
            self.hand_out(now_ns(), put);
        }
        is_news
    }

    /// Reads both rings. Whether there was anything.
    fn fetch(&mut self) -> bool {
        let Some(control) = Control::read(&self.of.segment) else {
            self.is_over = true;
            return false;
        };
        let mut is_news = false;
        for (place, half) in self.halves.iter_mut().enumerate() {
            match half.fetch(&self.of, place, &control) {
                Ok(news) => is_news |= news,
                Err(Stop::Overwritten) => {
                    is_news = true;
                    let now = Control::read(&self.of.segment).map(|c| c.cursors(place));
                    self.is_over |= !now.is_some_and(|now| half.give_up(now, &self.of));
                }
                Err(Stop::Over) => self.is_over = true,
            }
        }
        is_news
    }

    /// Hands out all messages that were read.
    fn hand_out(&mut self, time_ns: u64, put: &mut impl FnMut(Frame)) {
        let is_behind = |a: u32, b: u32| (a.wrapping_sub(b) as i32) > 0;
        loop {
            let [one, two] = &mut self.halves;
            // A message comes behind the acknowledged one, if that is here.
            let waits = |half: &Half, other: &Half| {
                half.messages.front().is_none_or(|message| {
                    is_behind(message.acknowledges, other.shown)
                        && other
                            .messages
                            .front()
                            .is_some_and(|before| !is_behind(before.number, message.acknowledges))
                })
            };
            let side = match (waits(one, two), waits(two, one)) {
                (false, _) => 0,
                (true, false) => 1,
                // Neither has any, or both wait for each other, which is forged.
                (true, true) => usize::from(one.messages.is_empty()),
            };
            let (half, other) = if side == 0 { (one, two) } else { (two, one) };
            let Some(message) = half.messages.pop_front() else { return };
            half.shown = message.number;
            if message.payload.is_empty() {
                continue;
            }
            half.sent = message.position.wrapping_add(message.payload.len() as u64);
            let ends = self.of.ends;
            put(Frame {
                time_ns,
                from: ends[side],
                to: ends[1 - side],
                // Position 0 is the number after a SYN's.
                sequence: (message.position as u32).wrapping_add(1),
                acknowledges: (other.sent as u32).wrapping_add(1),
                payload: message.payload,
            });
        }
    }
}

/// Where in a ring a count is.
const fn index(at: u64, origin: u64, size: u64) -> u64 {
    at.wrapping_sub(origin) & (size - 1)
}

/// Copies bytes of a ring, which may wrap.
fn copy(of: &Found, half: usize, index: u64, into: &mut [u8]) -> bool {
    let size = u64::from(of.ring_bytes);
    let start = CONTROL_BYTES as u64 + (half as u64 & 1) * size;
    let first = usize::try_from(size.saturating_sub(index)).unwrap_or(usize::MAX).min(into.len());
    let (front, back) = into.split_at_mut(first);
    of.segment.read(start + index, front)
        && (back.is_empty() || back.len() as u64 <= size && of.segment.read(start, back))
}

/// A record's header.
fn record(bytes: &[u8]) -> Option<(u32, u32)> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?);
    Some((length, u32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?)))
}

impl Half {
    /// Reads what is new. Whether there was anything.
    fn fetch(&mut self, of: &Found, half: usize, control: &Control) -> Result<bool, Stop> {
        let (now, size) = (control.cursors(half), u64::from(of.ring_bytes));
        if !now.are_right(size) {
            return Ok(false);
        }
        if now.tail < self.at {
            return Err(Stop::Over);
        }
        if !self.has_begun {
            self.begin(now, size);
        }
        self.note_switches(half, control);
        let mut is_news = false;
        // Twice if the ring has begun again at its first byte since the last look.
        while self.at < now.tail {
            is_news = true;
            let end = if now.origin > self.at { now.origin } else { now.tail };
            if now.origin <= self.at {
                self.origin = now.origin;
            }
            if end - self.at > size {
                return Err(Stop::Overwritten);
            }
            let end = end.min(self.at + CHUNK);
            self.fetch_part(of, half, end, now.tail)?;
            if end == self.at + CHUNK {
                break;
            }
        }
        Ok(is_news)
    }

    /// Begins at the oldest record that is known to be one.
    fn begin(&mut self, now: Cursors, size: u64) {
        self.has_begun = true;
        let is_whole = now.tail - now.origin <= size;
        self.at = if is_whole { now.origin } else { now.head };
        self.origin = now.origin;
        self.number = (self.at == 0).then_some(0);
    }

    /// Notes stretches of the stream that went by the carrier.
    fn note_switches(&mut self, half: usize, control: &Control) {
        let all = control.switches(half);
        let new = all.wrapping_sub(self.switches);
        if new as usize > LOG_ENTRIES {
            self.switches = all.wrapping_sub(LOG_ENTRIES as u32);
        }
        while self.switches != all {
            let switch = control.switch(half, self.switches);
            if switch.is_to_sdp && self.stretches.len() < 2 * LOG_ENTRIES {
                let bytes = switch.carrier.saturating_sub(self.carrier);
                self.stretches.push_back((switch.ring, bytes));
            } else {
                self.carrier = switch.carrier;
            }
            self.switches = self.switches.wrapping_add(1);
        }
    }

    /// Reads whole records from where it is up to `end`; records may go on up to `tail`.
    fn fetch_part(&mut self, of: &Found, half: usize, end: u64, tail: u64) -> Result<(), Stop> {
        let size = u64::from(of.ring_bytes);
        let len = usize::try_from(end - self.at).map_err(|_| Stop::Over)?;
        let (start, mut bytes) = (index(self.at, self.origin, size), vec![0; len]);
        if !copy(of, half, start, &mut bytes) {
            return Err(Stop::Over);
        }
        let mut mark = [0; MARK];
        let mark = mark.get_mut(..len.min(MARK)).unwrap_or_default();
        if !copy(of, half, start, mark) {
            return Err(Stop::Over);
        }
        if !bytes.starts_with(mark) {
            return Err(Stop::Overwritten);
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (length, kind) = record(rest).ok_or(Stop::Overwritten)?;
            let whole = record_bytes(length as usize) as u64;
            if whole > tail - self.at || whole > size {
                return Err(Stop::Overwritten);
            }
            let Some(body) = rest.get(RECORD_HEADER..RECORD_HEADER + length as usize) else {
                // Only a part of it was copied: the next look has it.
                let is_cut = end < tail && rest.len() < bytes.len();
                return if is_cut { Ok(()) } else { Err(Stop::Overwritten) };
            };
            match kind {
                KIND_MESSAGE => self.take(body).ok_or(Stop::Overwritten)?,
                KIND_PAD => {}
                _ => return Err(Stop::Overwritten),
            }
            self.at += whole;
            rest = rest.get(whole as usize..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Takes a message. `None`: it is none, or not the next one.
    fn take(&mut self, body: &[u8]) -> Option<()> {
        let total = u32::try_from(body.len()).ok()?;
        let first = body.get(..body.len().min(PREFIX))?;
        let message = Message::parse(first, total).ok()?;
        let number = message.header.mseq;
        match (self.number, self.given_up) {
            (Some(last), _) => (number == last.wrapping_add(1)).then_some(())?,
            (None, Some((Some(last), ring_bytes))) => {
                let messages = number.wrapping_sub(last).wrapping_sub(1);
                let bytes = ring_bytes.checked_sub(OVERHEAD.checked_mul(messages.into())?)?;
                let bytes = if messages == 0 { 0 } else { bytes };
                self.lost.add(Lost { messages: messages.into(), bytes, carrier: 0 });
                self.position = self.position.wrapping_add(bytes);
            }
            (None, _) => {}
        }
        self.given_up = None;
        self.number = Some(number);
        while let Some((_, bytes)) = self.stretches.pop_front_if(|(ring, _)| *ring <= self.at) {
            // Before the first stretch on the lane there was none to be in between.
            if self.position > 0 || self.shown > 0 {
                self.lost.carrier = self.lost.carrier.saturating_add(bytes);
            }
            self.position = self.position.wrapping_add(bytes);
        }
        let payload = match message.payload() {
            None => Vec::new(),
            Some(payload) => {
                let (from, len) = (payload.offset as usize, payload.len as usize);
                body.get(from..from.checked_add(len)?)?.to_vec()
            }
        };
        let position = self.position;
        self.position = position.wrapping_add(payload.len() as u64);
        let acknowledges = message.header.mseq_ack;
        self.messages.push_back(Read { number, acknowledges, position, payload });
        Some(())
    }

    /// Goes on where the consumer is, or the producer. False if the ring is another connection's.
    fn give_up(&mut self, now: Cursors, of: &Found) -> bool {
        if !now.are_right(u64::from(of.ring_bytes)) {
            return true;
        }
        if now.tail < self.at {
            return false;
        }
        let to = if now.head > self.at { now.head } else { now.tail };
        let bytes = to - self.at;
        self.given_up = Some(match self.given_up {
            Some((last, before)) => (last, before.saturating_add(bytes)),
            None => (self.number, bytes),
        });
        self.number = None;
        self.at = to;
        self.origin = now.origin;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const RING: u32 = 64 * 1024;

    /// A segment in a file, and how far its halves were written.
    struct Written {
        file: File,
        tails: [u64; 2],
        numbers: [u32; 2],
    }

    impl Written {
        fn new(name: &str) -> (Self, Connection) {
            let path = std::env::temp_dir().join(format!("capture-{}-{name}", std::process::id()));
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
                .unwrap();
            std::fs::remove_file(&path).unwrap();
            let len = CONTROL_BYTES as u64 + 2 * u64::from(RING);
            file.set_len(len).unwrap();
            let segment = Segment::of_file(file.try_clone().unwrap(), len);
            let ends = [Endpoint::v4([127, 0, 0, 1], 1), Endpoint::v4([127, 0, 0, 1], 2)];
            let of = Found { segment, ring_bytes: RING, ends };
            (Self { file, tails: [0; 2], numbers: [0; 2] }, Connection::new(of))
        }

        fn word(&self, half: usize, field: usize, value: u64) {
            let at = Control::half(half, field) as u64;
            self.file.write_all_at(&value.to_ne_bytes(), at).unwrap();
        }

        fn publish(&self, half: usize, head: u64) {
            self.word(half, offset_of!(HalfLayout, producer), self.tails[half]);
            self.word(half, offset_of!(HalfLayout, consumer), head);
        }

        /// One message, which may wrap, published and taken.
        fn send(&mut self, half: usize, acknowledges: u32, payload: &[u8]) {
            self.numbers[half] += 1;
            let total = 16 + payload.len() as u32;
            let mut bytes = Vec::from(total.to_ne_bytes());
            bytes.extend(KIND_MESSAGE.to_ne_bytes());
            bytes.extend([0xff, 0, 0xff, 0xff]);
            bytes.extend(total.to_be_bytes());
            bytes.extend(self.numbers[half].to_be_bytes());
            bytes.extend(acknowledges.to_be_bytes());
            bytes.extend(payload);
            let start = CONTROL_BYTES as u64 + half as u64 * u64::from(RING);
            for (i, byte) in bytes.iter().enumerate() {
                let at = start + (self.tails[half] + i as u64) % u64::from(RING);
                self.file.write_all_at(&[*byte], at).unwrap();
            }
            self.tails[half] += record_bytes(total as usize) as u64;
            self.publish(half, self.tails[half]);
        }
    }

    fn all(connection: &mut Connection) -> Vec<Frame> {
        let mut out = Vec::new();
        connection.read(|| 7, &mut |frame| out.push(frame));
        out
    }

    #[test]
    fn messages_come_in_the_order_of_their_acknowledgements() {
        let (mut written, mut connection) = Written::new("order");
        // The second side asks, the first answers: what is written first is not what was sent first.
        written.send(0, 1, b"answer one");
        written.send(0, 2, b"answer two");
        written.send(1, 0, b"question one");
        written.send(1, 1, b"question two");
        let frames = all(&mut connection);
        let payload: Vec<_> = frames.iter().map(|f| f.payload.as_slice()).collect();
        let turns: [&[u8]; 4] = [b"question one", b"answer one", b"question two", b"answer two"];
        assert_eq!(payload, turns);
        assert_eq!(frames.iter().map(|f| f.from.port).collect::<Vec<_>>(), [2, 1, 2, 1]);
        let numbers: Vec<_> = frames.iter().map(|f| (f.sequence, f.acknowledges)).collect();
        assert_eq!(numbers, [(1, 1), (1, 13), (13, 11), (11, 25)]);
        assert_eq!((all(&mut connection), connection.lost()), (vec![], Lost::default()));
    }

    #[test]
    fn what_was_overwritten_is_counted() {
        let (mut written, mut connection) = Written::new("lost");
        written.send(0, 0, b"seen");
        assert_eq!(all(&mut connection).len(), 1);
        for _ in 0..200 {
            written.send(0, 0, &[1; 1000]);
        }
        assert_eq!(all(&mut connection), vec![]);
        assert!(connection.lost().bytes >= 200_000, "not known how many yet");
        written.send(0, 0, b"behind");
        let frames = all(&mut connection);
        assert_eq!(frames.iter().map(|f| &f.payload[..]).collect::<Vec<_>>(), [b"behind"]);
        let lost = connection.lost();
        assert_eq!(lost.messages, 200);
        assert!((200_000..=200 * 1015).contains(&lost.bytes), "{lost:?}");
        assert_eq!(u64::from(frames[0].sequence), 5 + lost.bytes);
    }

    #[test]
    fn any_words_can_be_read() {
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 33
        };
        for round in 0..60 {
            let (mut written, mut connection) = Written::new(&format!("any-{round}"));
            for step in 0..40 {
                written.send(step % 2, random() as u32, &vec![2; random() as usize % 900]);
                for _ in 0..random() % 3 {
                    let at = random() % (CONTROL_BYTES as u64 + 2000);
                    let values = [random(), u64::MAX, 0, random() & 0xfff0, 1 << 61];
                    let value = values[random() as usize % values.len()];
                    let at = if random().is_multiple_of(2) {
                        at
                    } else {
                        Control::half(step % 2, 0) as u64
                    };
                    written.file.write_all_at(&value.to_ne_bytes(), at).unwrap();
                }
                let bytes: usize = all(&mut connection).iter().map(|f| f.payload.len()).sum();
                assert!(bytes <= ROUNDS * 2 * RING as usize);
            }
        }
    }
}

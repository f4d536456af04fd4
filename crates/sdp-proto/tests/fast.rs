//! The fast path of the engine against the slow one: the same words and the same header, for any
//! state.
//!
//! From each sound state the test tries all patterns within two flipped bits, in the fast path's
//! input, and a million others of a fixed seed. Where [`Source::fast_data`] or [`Sink::fast_take`]
//! accepts, unpacking, the slow method and packing must give the same result. Where the state is
//! simple by the layout's own words (implicit credits, no gate, no mark) it must accept.

#[allow(unreachable_pub, reason = "shared by test crates")]
mod common;

use common::{Random, raw};
use sdp_proto::{
    Ack, Credits, FastHeader, Hold, Mode, Outgoing, Sink, SinkAction, SinkConfig, Source,
    SourceConfig,
    wire::{
        Body, Flags, HEADER_LEN, Header, LaneSwitch, Message, Mid, ModeChange, SrcAvail, Words,
        hello::RECEIVE_SIZE_MIN,
    },
};
use sdp_rdma::key::{RemoteSlice, Rkey};

const HEADER: u32 = HEADER_LEN as u32;
const SIZE: u32 = 16 * 1024 + 56;
const RANDOM_PATTERNS: u32 = 1_000_000;

/// The layout of word 0, said once more: explicit credits, gates, marks and spare bits.
const SOURCE_SPECIAL: u64 = 0xffff_fff9;
const SINK_SPECIAL: u64 = 0xfff1;
const MODE: u64 = 0b110;
/// Fields of the sending half that its fast path does not look at.
const MAX_ADVERTS: u64 = 0xffff << 32;
const RECEIVE_SIZE: u64 = 0xffff_ffff << 32;

fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

// The sending half.

type SourceWords = [u64; Source::FAST_WORDS];

fn sources() -> Vec<Source> {
    let ack = Ack::implicit(0);
    let fresh = |size| Source::new(&SourceConfig::implicit(size));
    let then = |mut source: Source, build: &dyn Fn(&Source) -> Result<Outgoing, Hold>| {
        let message = build(&source).expect("may be sent");
        source.commit(&message);
        source
    };
    let base = fresh(SIZE);
    let buffer = RemoteSlice { addr: 0x4000, len: 100_000, rkey: Rkey(9) };
    let mut wrapping = base;
    wrapping.recover_at(u32::MAX, u64::MAX - 3);
    let mut found: Vec<Source> =
        [RECEIVE_SIZE_MIN, 1016, 1 << 31, u32::MAX].into_iter().map(fresh).collect();
    found.extend([
        base,
        wrapping,
        then(base, &|s| s.next_data(Ack::implicit(77), 1000)),
        then(base, &|s| s.change_mode(ack, Mode::Buffered)),
        then(base, &|s| s.advertise(ack, buffer, 10)),
        then(base, &|s| s.request_resize(ack, 2 * SIZE)),
        then(base, &|s| s.suspend(ack, 7)),
        then(base, &|s| s.disconnect(ack)),
        then(then(base, &|s| s.disconnect(ack)), &|s| s.abort(ack)),
        Source::new(&SourceConfig {
            credits: Credits::Explicit,
            peer_bufs: 20,
            bufs: 20,
            ..SourceConfig::implicit(SIZE)
        }),
    ]);
    found
}

fn seen_of(source: &Source) -> SourceWords {
    *source.to_words().first_chunk().expect("longer")
}

/// The packed state with these first words, its other words and the fields that are not looked at sound.
fn mended(words: SourceWords) -> [u64; Source::WORDS] {
    let mut all = [0; Source::WORDS];
    all[..Source::FAST_WORDS].copy_from_slice(&words);
    if all[Source::BITS] & MAX_ADVERTS == 0 {
        all[Source::BITS] |= 1 << 32;
    }
    if high(all[Source::SIZES]) < RECEIVE_SIZE_MIN {
        all[Source::SIZES] |= RECEIVE_SIZE;
    }
    all
}

/// How often something was accepted: a test that compares nothing is none.
#[derive(Default)]
struct Seen {
    accepted: u64,
    refused: u64,
}

fn check_source(words: SourceWords, ack: Ack, payload: u32, seen: &mut Seen) {
    let fast = Source::fast_data(words, ack, payload);
    let bits = words[Source::BITS];
    let limit = low(words[Source::SIZES]);
    let is_simple = bits & SOURCE_SPECIAL == 0 && bits & MODE != MODE;
    let fits = limit >= RECEIVE_SIZE_MIN && (1..=limit - HEADER).contains(&payload);
    let context = || format!("{words:x?}, {ack:?}, {payload}");
    assert_eq!(fast.is_some(), is_simple && fits, "{}", context());
    let Some(sent) = fast else {
        seen.refused += 1;
        return;
    };
    seen.accepted += 1;
    let mut expected = mended(words);
    let Ok(mut source) = Source::from_words(&expected) else { panic!("corrupt: {}", context()) };
    let Ok(message) = source.next_data(ack, payload) else { panic!("held: {}", context()) };
    assert_eq!(message.payload_len(), payload, "{}", context());
    assert_eq!(message.header(), Words(sent.header).to_bytes(), "{}", context());
    source.commit(&message);
    expected[Source::SEQUENCE] = sent.sequence;
    expected[Source::SENT_ACK] = sent.sent_ack;
    expected[Source::POSITION] = sent.position;
    assert_eq!(source.to_words(), expected, "{}", context());
}

fn payloads(words: &SourceWords) -> [u32; 5] {
    let most = low(words[Source::SIZES]).wrapping_sub(HEADER);
    [0, 1, most, most.wrapping_add(1), u32::MAX]
}

#[test]
fn sending_is_the_same_within_two_flipped_bits() {
    let mut seen = Seen::default();
    let ack = Ack { bufs: 0x1234, mseq_ack: 0x89ab_cdef, empty: 0x5678 };
    for source in sources() {
        let base = seen_of(&source);
        let bits = 64 * base.len();
        for first in 0..bits {
            for second in first..bits {
                let mut words = base;
                words[first / 64] ^= 1 << (first % 64);
                if second != first {
                    words[second / 64] ^= 1 << (second % 64);
                }
                let payload = payloads(&words)[(first + second) % 5];
                check_source(words, ack, payload, &mut seen);
                check_source(words, ack, 100, &mut seen);
            }
        }
        for payload in payloads(&base) {
            check_source(base, ack, payload, &mut seen);
        }
    }
    assert!(seen.accepted > 100_000 && seen.refused > 100_000);
}

#[test]
fn sending_is_the_same_at_random() {
    let mut random = Random::new(24);
    let sources = sources();
    let mut seen = Seen::default();
    for _ in 0..RANDOM_PATTERNS {
        let mut words = seen_of(&sources[random.below(sources.len() as u64) as usize]);
        for (at, word) in words.iter_mut().enumerate() {
            *word = match random.below(4) {
                0 => random.next(),
                1 => *word ^ (1 << random.below(64)),
                // Only bits that may have any value.
                2 if at == Source::BITS => *word ^ (random.next() & !(0xffff_ffff)),
                2 => random.next() & random.next(),
                _ => *word,
            };
        }
        let ack = Ack::from_word(random.next());
        let most = low(words[Source::SIZES]);
        let payload = match random.below(3) {
            0 => random.next() as u32,
            1 => payloads(&words)[random.below(5) as usize],
            _ => random.below(u64::from(most) + 1) as u32,
        };
        check_source(words, ack, payload, &mut seen);
    }
    assert!(seen.accepted > 50_000 && seen.refused > 50_000);
}

// The receiving half.

type SinkWords = [u64; Sink::FAST_WORDS];

fn sinks() -> Vec<Sink> {
    let fresh = |size| Sink::new(&SinkConfig::implicit(size));
    let after = |bodies: &[(Body, u32)]| {
        let mut sink = Sink::new(&SinkConfig { lane_messages: true, ..SinkConfig::implicit(SIZE) });
        for (n, (body, payload)) in (1..).zip(bodies) {
            sink.handle(&raw(*body, *payload, n, 0, u16::MAX)).expect("legal");
        }
        sink
    };
    let mode = |mode| Body::ModeChange(ModeChange { for_source: false, mode });
    let advert = SrcAvail { buffer: RemoteSlice { addr: 0x4000, len: 100_000, rkey: Rkey(9) } };
    let lane = sdp_proto::wire::Lane::Carrier;
    let switch = LaneSwitch { lane, sequence: 0, carrier_position: 0, stream_position: 0 };
    let mut wrapping = fresh(SIZE);
    wrapping.recover_at(u32::MAX, u64::MAX - 3);
    let mut found: Vec<Sink> =
        [RECEIVE_SIZE_MIN, 1016, SIZE, 1 << 31, u32::MAX].into_iter().map(fresh).collect();
    found.extend([
        wrapping,
        after(&[(Body::Data, 1000), (Body::Data, 0)]),
        after(&[(Body::LaneSwitch(switch), 0)]),
        after(&[(mode(Mode::Buffered), 0)]),
        after(&[(mode(Mode::Pipelined), 0)]),
        after(&[(Body::SrcAvail(advert), 10)]),
        after(&[(Body::SuspComm { service: 0x0001_0007 }, 0)]),
        after(&[(Body::DisConn, 0)]),
        after(&[(Body::DisConn, 0), (Body::AbortConn, 0)]),
        Sink::new(&SinkConfig { credits: Credits::Explicit, ..SinkConfig::implicit(SIZE) }),
    ]);
    found
}

/// The next message for a sink: Data of `len` bytes in all.
fn data_for(words: &SinkWords, len: u32) -> FastHeader {
    let mseq = low(words[Sink::SEQUENCE]).wrapping_add(1);
    let flags = Flags::NONE;
    let header = Header { mid: Mid::Data, flags, bufs: 9, len, mseq, mseq_ack: 0x1234_5678 };
    Words::from_bytes(header.encode()).0
}

fn check_sink(words: SinkWords, header: FastHeader, len: u32, seen: &mut Seen) {
    let fast = Sink::fast_take(words, header, len);
    let mut all = [0; Sink::WORDS];
    all[..Sink::FAST_WORDS].copy_from_slice(&words);
    let bytes = Words(header).to_bytes();
    let context = || format!("{words:x?}, {bytes:x?}, {len}");
    let unpacked = Sink::from_words(&all);
    let delivered = unpacked.ok().and_then(|mut sink| {
        let message = Message::parse(&bytes, len).ok()?;
        match sink.handle(&message) {
            Ok(SinkAction::Deliver(payload)) => Some((sink, message, payload)),
            _ => None,
        }
    });
    let is_simple = words[Sink::BITS] & SINK_SPECIAL == 0;
    let is_bare_data = |message: &Message| message.header.flags == Flags::NONE;
    let is_wanted = is_simple && delivered.is_some_and(|(_, message, _)| is_bare_data(&message));
    assert_eq!(fast.is_some(), is_wanted, "{}", context());
    let (Some(taken), Some((sink, message, payload))) = (fast, delivered) else {
        seen.refused += 1;
        return;
    };
    seen.accepted += 1;
    assert_eq!(message.body, Body::Data, "{}", context());
    assert_eq!((payload.offset, payload.len), (HEADER, taken.payload), "{}", context());
    all[Sink::SEQUENCE] = taken.sequence;
    all[Sink::POSITION] = taken.position;
    assert_eq!(sink.to_words(), all, "{}", context());
    assert_eq!(sink.ack(7), taken.ack, "{}", context());
}

fn first_words(sink: &Sink) -> SinkWords {
    *sink.to_words().first_chunk().expect("longer")
}

#[test]
fn receiving_is_the_same_within_two_flipped_bits() {
    let mut seen = Seen::default();
    for sink in sinks() {
        let base = first_words(&sink);
        let limit = high(base[Sink::BITS]);
        for len in [HEADER + 1, limit] {
            let header = data_for(&base, len);
            // Words of the state, words of the header, the length.
            const BITS: usize = 64 * (Sink::FAST_WORDS + 2) + 32;
            let check = |first: usize, second: usize, seen: &mut Seen| {
                let mut all = [base[0], base[1], base[2], header[0], header[1], u64::from(len)];
                all[first / 64] ^= 1 << (first % 64);
                if second != first {
                    all[second / 64] ^= 1 << (second % 64);
                }
                let [a, b, c, h0, h1, len] = all;
                check_sink([a, b, c], [h0, h1], len as u32, seen);
            };
            for first in 0..BITS {
                for second in first..BITS {
                    check(first, second, &mut seen);
                }
            }
            check_sink(base, header, len, &mut seen);
        }
        for len in [0, HEADER - 1, HEADER, limit.wrapping_add(1)] {
            check_sink(base, data_for(&base, len), len, &mut seen);
        }
    }
    assert!(seen.accepted > 50_000 && seen.refused > 50_000);
}

#[test]
fn receiving_is_the_same_at_random() {
    let mut random = Random::new(42);
    let sinks = sinks();
    let mut seen = Seen::default();
    for _ in 0..RANDOM_PATTERNS {
        let mut words = first_words(&sinks[random.below(sinks.len() as u64) as usize]);
        for word in &mut words {
            *word = match random.below(5) {
                0 => random.next(),
                1 => *word ^ (1 << random.below(64)),
                2 => random.next() & 0xffff_ffff,
                _ => *word,
            };
        }
        let limit = high(words[Sink::BITS]);
        let len = match random.below(3) {
            0 => random.next() as u32,
            1 => limit.wrapping_add(random.below(3) as u32).wrapping_sub(1),
            _ => random.below(u64::from(limit) + 1) as u32,
        };
        let mut header = data_for(&words, len);
        match random.below(4) {
            0 => header = [random.next(), random.next()],
            // Fields that may have any value: buffers, unknown flags, acknowledgement.
            1 => header[0] ^= random.next() & 0xffff_f800,
            2 => header[1] ^= random.next() << 32,
            _ => {}
        }
        check_sink(words, header, len, &mut seen);
    }
    assert!(seen.accepted > 50_000 && seen.refused > 50_000);
}

/// A message in pieces is read as one in hand is, and its payload is where both say.
#[test]
fn reading_by_looks_is_parsing() {
    let mut random = Random::new(7);
    let mut parsed = 0;
    for n in 0..200_000u32 {
        let mut bytes = random.bytes(64);
        let len = 12 + random.below(52) as u32;
        bytes[0] = random.below(0x80) as u8;
        if random.below(3) == 0 {
            bytes[0] = Mid::Data.byte();
        }
        if random.below(8) != 0 {
            bytes[1] = 0;
            bytes[4..8].copy_from_slice(&len.to_be_bytes());
        }
        let mut looks = 0;
        let found = Message::read(len, |to| {
            looks += 1;
            let n = to.len().min(len as usize);
            to[..n].copy_from_slice(&bytes[..n]);
            n
        });
        let whole = Message::parse(&bytes[..len as usize], len);
        assert_eq!(found, whole, "{n}");
        assert!(looks == 1 || looks == 2 && bytes[0] != Mid::Data.byte());
        let Ok(message) = found else { continue };
        parsed += 1;
        let is_stream = !matches!(message.body, Body::Experimental { .. });
        let rest = len - message.body.header_len();
        match message.payload() {
            Some(payload) => {
                assert!(is_stream && message.body.may_carry_payload());
                assert_eq!((payload.offset, payload.len), (message.body.header_len(), rest));
            }
            None => assert!(rest == 0 || !is_stream),
        }
    }
    assert!(parsed > 20_000, "{parsed}");
}

#[test]
fn plain_data_is_that_of_the_slow_path() {
    let mut seen = Seen::default();
    let few = |peer_bufs| SourceConfig {
        credits: Credits::Explicit,
        peer_bufs,
        bufs: 20,
        ..SourceConfig::implicit(SIZE)
    };
    let explicit = (0..8).map(|bufs| Source::new(&few(bufs)));
    for source in sources().into_iter().chain(explicit) {
        for ack in [Ack::implicit(5), Ack { bufs: 3, mseq_ack: 9, empty: 2 }] {
            for payload in [0, 1, SIZE - HEADER, SIZE - HEADER + 1, u32::MAX] {
                let Some(header) = source.plain_data(ack, payload) else {
                    seen.refused += 1;
                    continue;
                };
                seen.accepted += 1;
                let message = source.next_data(ack, payload).expect("may be sent");
                assert_eq!(message.message().header, header);
                assert_eq!(message.header(), header.encode());
                let (mut one, mut other) = (source, source);
                one.commit(&message);
                other.commit_plain(ack, &header);
                assert_eq!(one, other);
            }
        }
    }
    // Credit alone decides: as often as the slow path would have sent the same.
    let may = |bufs| Source::new(&few(bufs)).next_data(Ack::implicit(0), 1).is_ok();
    for bufs in 0..8 {
        let plain = Source::new(&few(bufs)).plain_data(Ack::implicit(0), 1);
        assert_eq!(plain.is_some(), may(bufs), "{bufs}");
    }
    assert!(seen.accepted > 20 && seen.refused > 20);
}

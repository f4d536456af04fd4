//! The commonest message, a plain Data message, done on the packed state.
//!
//! For callers that keep [`Source`] and [`Sink`] as words and move many small messages: nearly all of
//! them are Data messages of a connection in which nothing special is going on, and unpacking,
//! checking and packing all of the state would cost more than the message. What is not plain is
//! refused, never judged: the caller unpacks the state and takes the ordinary way, which knows the
//! rule that was broken, if one was.

use super::{
    sink::Sink,
    source::Source,
    words::{Ack, high, low, pack},
};
use crate::wire::{Flags, HEADER, Mid, hello::RECEIVE_SIZE_MIN};

/// A plain message's header: its 16 bytes as two little-endian words, whatever the host's order is. So
/// it stays in registers on its way between ring and engine.
pub type PlainHeader = [u64; 2];

const _: () = assert!(size_of::<PlainHeader>() == crate::wire::HEADER_LEN);

/// Low 16 bits of the first word: message identifier, and the flags that are looked at.
const KIND: u64 = 0x07ff;
const DATA: u64 = Mid::Data.byte() as u64;

const _: () = assert!(Flags::from_byte(0xff).byte() as u64 == KIND >> 8);

/// Bits of the first word of either half: credits are explicit.
const EXPLICIT: u64 = 1;
/// The mode; both bits together are no mode.
const MODE: u64 = 0b110;
/// Sending half: bits that are never set, and all gates and marks.
const SOURCE_SPECIAL: u64 = 0xffff_fff8;
/// Receiving half: bits that are never set, and all gates.
const SINK_SPECIAL: u64 = 0xfff0;

/// What a plain message changes in a packed [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The message's header.
    pub header: PlainHeader,
    /// Words 1 and 2 of the state from now on.
    pub words: [u64; 2],
    /// Word 4 of the state from now on.
    pub position: u64,
}

impl Source {
    /// A Data message of `payload` bytes, for the source whose words 0 to 4 are given: what
    /// [`Source::next_data`] and [`Source::commit`] would do. Store the new words once the fabric has the
    /// message. `None`: not plain; unpack the state and see.
    #[inline(always)]
    pub const fn plain(words: [u64; 5], ack: Ack, payload: u32) -> Option<Sent> {
        let [bits, sequence, _, sizes, position] = words;
        let limit = low(sizes);
        if bits & (EXPLICIT | SOURCE_SPECIAL) != 0
            || bits & MODE == MODE
            || payload == 0
            || limit < RECEIVE_SIZE_MIN
            || payload > limit.wrapping_sub(HEADER)
        {
            return None;
        }
        let mseq = low(sequence).wrapping_add(1);
        let len = HEADER.wrapping_add(payload).swap_bytes() as u64;
        let bufs = ack.bufs.swap_bytes() as u64;
        Some(Sent {
            header: [
                DATA | bufs << 16 | len << 32,
                pack(mseq.swap_bytes(), ack.mseq_ack.swap_bytes()),
            ],
            words: [pack(mseq, high(sequence)), ack.to_word()],
            position: position.wrapping_add(payload as u64),
        })
    }
}

/// What a plain message changes in a packed [`Sink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Payload bytes behind the header, at least 1.
    pub payload: u32,
    /// Words 1 and 2 of the state from now on.
    pub words: [u64; 2],
    /// What our headers say from now on.
    pub ack: Ack,
}

impl Sink {
    /// Whether [`Sink::plain`] may be asked at all, by word 0 of the state.
    #[inline(always)]
    pub const fn is_plain(bits: u64) -> bool {
        bits & (EXPLICIT | SINK_SPECIAL) == 0 && bits & MODE != MODE
    }

    /// A Data message of `len` bytes that begins with `header`, for the sink whose words 0 to 2 are
    /// given: what parsing and [`Sink::handle`] would do. `None`: not plain; unpack the state and see.
    #[inline(always)]
    pub const fn plain(words: [u64; 3], header: PlainHeader, len: u32) -> Option<Taken> {
        let [bits, sequence, position] = words;
        let [first, second] = header;
        let mseq = low(sequence).wrapping_add(1);
        let limit = high(bits);
        if !Self::is_plain(bits)
            || limit < RECEIVE_SIZE_MIN
            || first & KIND != DATA
            || len <= HEADER
            || len > limit
            || high(first).swap_bytes() != len
            || low(second).swap_bytes() != mseq
            || high(sequence) != 0
        {
            return None;
        }
        let payload = len.wrapping_sub(HEADER);
        Some(Taken {
            payload,
            words: [pack(mseq, 0), position.wrapping_add(payload as u64)],
            ack: Ack::implicit(mseq),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SinkAction, SinkConfig, SourceConfig, wire::Message};

    const SIZE: u32 = 16 * 1024 + 56;

    fn first<const N: usize>(words: &[u64]) -> [u64; N] {
        *words.first_chunk().expect("enough words")
    }

    fn bytes(header: PlainHeader) -> [u8; 16] {
        let [first, second] = header;
        (u128::from(second) << 64 | u128::from(first)).to_le_bytes()
    }

    fn words_of(header: [u8; 16]) -> PlainHeader {
        let n = u128::from_le_bytes(header);
        [n as u64, (n >> 64) as u64]
    }

    fn after(mut words: [u64; Source::WORDS], sent: Sent) -> [u64; Source::WORDS] {
        words[1..3].copy_from_slice(&sent.words);
        words[4] = sent.position;
        words
    }

    #[test]
    fn plain_messages_are_those_of_the_ordinary_way() {
        let mut source = Source::new(&SourceConfig::implicit(SIZE));
        let mut sink = Sink::new(&SinkConfig::implicit(SIZE));
        for n in 1..200u32 {
            let (ack, payload) = (Ack::implicit(n * 3), n * 71);
            let message = source.next_data(ack, payload).expect("may be sent");
            let sent = Source::plain(first(&source.to_words()), ack, payload).expect("is plain");
            assert_eq!(message.header(), bytes(sent.header));
            let words = after(source.to_words(), sent);
            source.commit(&message);
            assert_eq!(source.to_words(), words);

            let len = HEADER + payload;
            let taken = Sink::plain(first(&sink.to_words()), sent.header, len).expect("is plain");
            let mut words = sink.to_words();
            words[1..3].copy_from_slice(&taken.words);
            let parsed = Message::parse(&bytes(sent.header), len).expect("well-formed");
            let SinkAction::Deliver(found) = sink.handle(&parsed).expect("legal") else {
                panic!("a Data message is delivered");
            };
            assert_eq!((found.offset, found.len), (HEADER, taken.payload));
            assert_eq!(sink.to_words(), words);
            assert_eq!(sink.ack(u16::MAX), taken.ack);
        }
    }

    #[test]
    fn whatever_is_special_is_refused() {
        let source = Source::new(&SourceConfig::implicit(SIZE));
        let words = first(&source.to_words());
        let ack = Ack::implicit(0);
        assert!(Source::plain(words, ack, 1).is_some());
        assert!(Source::plain(words, ack, SIZE - HEADER).is_some());
        assert!(Source::plain(words, ack, 0).is_none());
        assert!(Source::plain(words, ack, SIZE - HEADER + 1).is_none());
        for bit in [0, 3, 7, 8, 9, 10, 11, 15, 16, 17, 19, 22, 23, 24, 31] {
            let mut other = words;
            other[0] ^= 1 << bit;
            assert!(Source::plain(other, ack, 1).is_none(), "bit {bit}");
        }
        let mut ended = source;
        ended.commit(&ended.disconnect(ack).expect("may end"));
        assert!(Source::plain(first(&ended.to_words()), ack, 1).is_none());
    }

    #[test]
    fn a_peer_that_breaks_a_rule_is_left_to_the_ordinary_way() {
        let sink = Sink::new(&SinkConfig::implicit(SIZE));
        let words = first(&sink.to_words());
        let source = Source::new(&SourceConfig::implicit(SIZE));
        let good = source.next_data(Ack::implicit(0), 100).expect("may be sent");
        let bytes: [u8; 16] = good.header().try_into().expect("16 bytes");
        let good = words_of(bytes);
        assert!(Sink::plain(words, good, 116).is_some());
        assert!(Sink::plain(words, good, 117).is_none(), "length of the record");
        assert!(Sink::plain(words, good, 16).is_none(), "no payload");
        for byte in [0, 1, 4, 7, 8, 11] {
            let mut bad = bytes;
            bad[byte] ^= 1;
            assert!(Sink::plain(words, words_of(bad), 116).is_none(), "byte {byte}");
        }
        for bit in [0, 4, 7, 8, 9, 10, 11, 15] {
            let mut other = words;
            other[0] ^= 1 << bit;
            assert!(Sink::plain(other, good, 116).is_none(), "bit {bit}");
        }
        let mut later = sink;
        later.recover_at(7, 0);
        assert!(Sink::plain(first(&later.to_words()), good, 116).is_none(), "gap");
    }
}

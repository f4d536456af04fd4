//! The fast path: the commonest message, Data without flags, done on the packed state.
//!
//! For callers that keep [`Source`] and [`Sink`] as words and move many small messages: nearly all
//! of them are Data messages of a connection in which nothing special is going on, and unpacking,
//! checking and packing all of the state would cost more than the message. A message of another
//! kind is refused, never judged: the caller unpacks the state and takes the slow path, which knows
//! the rule that was broken, if one was.
//!
//! The place of a field, and its change by a message, are defined once: headers by
//! [`crate::wire::Words`], the state's words by the constants of [`Source`] and [`Sink`] and the
//! helpers of [`super::words`]. The tests compare both ways, for every state within two flipped
//! bits of a sound one: the fast path does the same as the slow path. Fields that are not used here
//! are not checked here either: the next ordinary call finds a family member's scribbles in them.

use super::{
    sink::{self, Sink},
    source::{Source, store},
    words::{Ack, advance, bits, high, low, next, pack},
};
use crate::wire::{Flags, HEADER, Header, Mid, Words, hello::RECEIVE_SIZE_MIN};

/// The header of a fast message: [`Words`], as a fabric moves them. So it stays in registers on its
/// way between ring and engine.
pub type FastHeader = [u64; 2];

/// The changes that a fast message makes in a packed [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The message's header.
    pub header: FastHeader,
    /// [`Source::SEQUENCE`] of the state from now on.
    pub sequence: u64,
    /// [`Source::SENT_ACK`] of the state from now on.
    pub sent_ack: u64,
    /// [`Source::POSITION`] of the state from now on.
    pub position: u64,
}

impl Source {
    /// Words of the packed form that the fast path looks at, from the first on.
    pub const FAST_WORDS: usize = Self::POSITION + 1;

    /// A Data message of `payload` bytes, for the source whose first words are given: the result of
    /// [`Source::next_data`] and [`Source::commit`]. Store the new words once the fabric
    /// has the message. `None`: not for the fast path; unpack the state and see.
    #[inline(always)]
    pub const fn fast_data(words: [u64; Self::FAST_WORDS], ack: Ack, payload: u32) -> Option<Sent> {
        let limit = low(words[Self::SIZES]);
        if !bits::are_plain(words[Self::BITS], store::SPECIAL)
            || payload == 0
            || limit < RECEIVE_SIZE_MIN
            || payload > limit.wrapping_sub(HEADER)
        {
            return None;
        }
        let sequence = words[Self::SEQUENCE];
        let mseq = next(low(sequence));
        let Words(header) = Words::new(&Header {
            mid: Mid::Data,
            flags: Flags::NONE,
            bufs: ack.bufs,
            len: HEADER.wrapping_add(payload),
            mseq,
            mseq_ack: ack.mseq_ack,
        });
        Some(Sent {
            header,
            sequence: pack(mseq, high(sequence)),
            sent_ack: ack.to_word(),
            position: advance(words[Self::POSITION], payload),
        })
    }
}

/// The changes that a fast message makes in a packed [`Sink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Payload bytes behind the header, at least 1.
    pub payload: u32,
    /// [`Sink::SEQUENCE`] of the state from now on.
    pub sequence: u64,
    /// [`Sink::POSITION`] of the state from now on.
    pub position: u64,
    /// The acknowledgement of our headers from now on.
    pub ack: Ack,
}

impl Sink {
    /// Words of the packed form that the fast path looks at, from the first on.
    pub const FAST_WORDS: usize = Self::POSITION + 1;

    /// Whether [`Sink::fast_take`] may be asked at all, by [`Sink::BITS`] of the state.
    #[inline(always)]
    pub const fn may_be_fast(bits: u64) -> bool {
        bits::are_plain(bits, sink::SPARE | bits::GATES)
    }

    /// A Data message of `len` bytes that begins with `header`, for the sink whose first words are
    /// given: the result of parsing and [`Sink::handle`]. `None`: not for the fast path; unpack the
    /// state and see.
    #[inline(always)]
    pub const fn fast_take(
        words: [u64; Self::FAST_WORDS],
        header: FastHeader,
        len: u32,
    ) -> Option<Taken> {
        let (bits, sequence) = (words[Self::BITS], words[Self::SEQUENCE]);
        let header = Words(header);
        let mseq = next(low(sequence));
        let limit = high(bits);
        if !Self::may_be_fast(bits)
            || limit < RECEIVE_SIZE_MIN
            || !header.is_bare_data()
            || len <= HEADER
            || len > limit
            || header.len() != len
            || header.mseq() != mseq
            || high(sequence) != 0
        {
            return None;
        }
        let payload = len.wrapping_sub(HEADER);
        Some(Taken {
            payload,
            sequence: pack(mseq, 0),
            position: advance(words[Self::POSITION], payload),
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

    fn bytes(header: FastHeader) -> [u8; 16] {
        Words(header).to_bytes()
    }

    fn words_of(header: [u8; 16]) -> FastHeader {
        Words::from_bytes(header).0
    }

    fn after(mut words: [u64; Source::WORDS], sent: Sent) -> [u64; Source::WORDS] {
        words[Source::SEQUENCE] = sent.sequence;
        words[Source::SENT_ACK] = sent.sent_ack;
        words[Source::POSITION] = sent.position;
        words
    }

    #[test]
    fn fast_messages_are_those_of_the_slow_path() {
        let mut source = Source::new(&SourceConfig::implicit(SIZE));
        let mut sink = Sink::new(&SinkConfig::implicit(SIZE));
        for n in 1..200u32 {
            let (ack, payload) = (Ack::implicit(n * 3), n * 71);
            let message = source.next_data(ack, payload).expect("may be sent");
            let sent = Source::fast_data(first(&source.to_words()), ack, payload).expect("is fast");
            assert_eq!(message.header(), bytes(sent.header));
            let words = after(source.to_words(), sent);
            source.commit(&message);
            assert_eq!(source.to_words(), words);

            let len = HEADER + payload;
            let taken =
                Sink::fast_take(first(&sink.to_words()), sent.header, len).expect("is fast");
            let mut words = sink.to_words();
            words[Sink::SEQUENCE] = taken.sequence;
            words[Sink::POSITION] = taken.position;
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
        assert!(Source::fast_data(words, ack, 1).is_some());
        assert!(Source::fast_data(words, ack, SIZE - HEADER).is_some());
        assert!(Source::fast_data(words, ack, 0).is_none());
        assert!(Source::fast_data(words, ack, SIZE - HEADER + 1).is_none());
        for bit in [0, 3, 7, 8, 9, 10, 11, 15, 16, 17, 19, 22, 23, 24, 31] {
            let mut other = words;
            other[0] ^= 1 << bit;
            assert!(Source::fast_data(other, ack, 1).is_none(), "bit {bit}");
        }
        let mut ended = source;
        ended.commit(&ended.disconnect(ack).expect("may end"));
        assert!(Source::fast_data(first(&ended.to_words()), ack, 1).is_none());
    }

    #[test]
    fn a_peer_that_breaks_a_rule_is_left_to_the_slow_path() {
        let sink = Sink::new(&SinkConfig::implicit(SIZE));
        let words = first(&sink.to_words());
        let source = Source::new(&SourceConfig::implicit(SIZE));
        let good = source.next_data(Ack::implicit(0), 100).expect("may be sent");
        let bytes: [u8; 16] = good.header().try_into().expect("16 bytes");
        let good = words_of(bytes);
        assert!(Sink::fast_take(words, good, 116).is_some());
        assert!(Sink::fast_take(words, good, 117).is_none(), "length of the record");
        assert!(Sink::fast_take(words, good, 16).is_none(), "no payload");
        for byte in [0, 1, 4, 7, 8, 11] {
            let mut bad = bytes;
            bad[byte] ^= 1;
            assert!(Sink::fast_take(words, words_of(bad), 116).is_none(), "byte {byte}");
        }
        for bit in [0, 4, 7, 8, 9, 10, 11, 15] {
            let mut other = words;
            other[0] ^= 1 << bit;
            assert!(Sink::fast_take(other, good, 116).is_none(), "bit {bit}");
        }
        let mut later = sink;
        later.recover_at(7, 0);
        assert!(Sink::fast_take(first(&later.to_words()), good, 116).is_none(), "gap");
    }
}

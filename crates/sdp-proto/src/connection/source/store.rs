//! The source's state as words, and its recovery after the death of a holder.

use super::*;
use crate::connection::words::{Corrupt, bits, high, low, pack};

/// In word 0 of the packed state: bits that are never set.
const SPARE: u64 = 0xff00_00f8;
const MARKS_SHIFT: u32 = 16;
const ADVERTS_SHIFT: u32 = 32;
const BUFS_SHIFT: u32 = 48;
/// In word 0 of the packed state: all that is unset by the fast path.
pub(in crate::connection) const SPECIAL: u64 = SPARE | bits::GATES | 0xff << MARKS_SHIFT;

impl Source {
    /// Returns to a recovery point after the death of a holder; follow with [`Self::replay`] for
    /// the messages in the ring behind it.
    pub const fn recover_at(&mut self, last_mseq: u32, position: u64) {
        self.last_mseq = last_mseq;
        self.position = position;
    }

    /// Takes note of a message that a dead holder had sent, found behind the recovery point.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] when it is not the next one.
    pub fn replay(&mut self, found: &Message) -> Result<(), Corrupt> {
        if found.header.mseq != next(self.last_mseq) {
            return Err(Corrupt { word: 1 });
        }
        self.last_mseq = found.header.mseq;
        self.position = advance(self.position, found.payload_len());
        self.note_sent(found, found.payload_len());
        Ok(())
    }

    /// Packs the state.
    #[inline]
    pub const fn to_words(&self) -> [u64; Self::WORDS] {
        let bits = bits::of(self.credits, self.mode, self.gates)
            | ((self.marks as u64) << MARKS_SHIFT)
            | ((self.peer_max_adverts as u64) << ADVERTS_SHIFT)
            | ((self.peer_bufs as u64) << BUFS_SHIFT);
        let mut words = [0; Self::WORDS];
        words[Self::BITS] = bits;
        words[Self::SEQUENCE] = pack(self.last_mseq, self.acked);
        words[Self::SENT_ACK] = self.sent_ack.to_word();
        words[Self::SIZES] = pack(self.peer_receive_size, self.receive_size);
        words[Self::POSITION] = self.position;
        words[5] = pack(self.advert_mseq, self.advert_left);
        words[6] = pack(self.mode_mseq, self.resize);
        words[7] = self.resize_from as u64;
        words
    }

    /// Unpacks and checks the state.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] names the first word that cannot be.
    #[inline]
    pub fn from_words(words: &[u64; Self::WORDS]) -> Result<Self, Corrupt> {
        let [.., advert, requests, from, spare] = *words;
        let (bits, sequence) = (words[Self::BITS], words[Self::SEQUENCE]);
        let sizes = words[Self::SIZES];
        let Some((credits, mode, gates)) = bits::read(bits) else {
            return Err(Corrupt { word: 0 });
        };
        let source = Self {
            credits,
            mode,
            gates,
            marks: (bits >> MARKS_SHIFT) as u8,
            peer_max_adverts: (bits >> ADVERTS_SHIFT) as u16,
            peer_bufs: (bits >> BUFS_SHIFT) as u16,
            last_mseq: low(sequence),
            acked: high(sequence),
            sent_ack: Ack::from_word(words[Self::SENT_ACK]),
            peer_receive_size: low(sizes),
            receive_size: high(sizes),
            position: words[Self::POSITION],
            advert_mseq: low(advert),
            advert_left: high(advert),
            mode_mseq: low(requests),
            resize: high(requests),
            resize_from: low(from),
        };
        if bits & SPARE != 0
            || source.marks & !MARKS != 0
            || source.gates & !GATES != 0
            || source.peer_max_adverts == 0
        {
            return Err(Corrupt { word: 0 });
        }
        if credits == Credits::Explicit
            && source.last_mseq.wrapping_sub(source.acked) > u32::from(u16::MAX)
        {
            return Err(Corrupt { word: 1 });
        }
        if source.peer_receive_size < RECEIVE_SIZE_MIN || source.receive_size < RECEIVE_SIZE_MIN {
            return Err(Corrupt { word: 3 });
        }
        let has_advert = source.gates & ADVERT != 0;
        let has_rest = source.marks & REST != 0;
        if (has_advert && has_rest)
            || (has_advert || has_rest) != (source.advert_left != 0)
            || (!has_advert && (source.advert_mseq != 0 || source.marks & CANCELLING != 0))
        {
            return Err(Corrupt { word: 5 });
        }
        if (source.marks & MODE_UNACKED == 0 && source.mode_mseq != 0)
            || (source.marks & RESIZE_ASKED != 0) != (source.resize != 0)
        {
            return Err(Corrupt { word: 6 });
        }
        if (source.resize == 0) != (source.resize_from == 0) || high(from) != 0 {
            return Err(Corrupt { word: 7 });
        }
        if spare != 0 {
            return Err(Corrupt { word: 8 });
        }
        Ok(source)
    }
}

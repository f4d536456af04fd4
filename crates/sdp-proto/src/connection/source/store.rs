//! The source's state as words, and its recovery after the death of a holder.

use super::*;
use crate::connection::words::{Corrupt, high, low, pack};

impl Source {
    /// Returns to a recovery point after the death of a holder; follow with [`Self::replay`] for
    /// what stands in the ring behind it.
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
        if found.header.mseq != self.last_mseq.wrapping_add(1) {
            return Err(Corrupt { word: 1 });
        }
        self.last_mseq = found.header.mseq;
        self.position = self.position.wrapping_add(u64::from(found.payload_len()));
        self.note_sent(found, found.payload_len());
        Ok(())
    }

    /// Packs the state.
    #[inline]
    pub const fn to_words(&self) -> [u64; Self::WORDS] {
        let bits = self.credits.to_bits()
            | ((self.mode as u64) << 1)
            | ((self.gates as u64) << 8)
            | ((self.marks as u64) << 16)
            | ((self.peer_max_adverts as u64) << 32)
            | ((self.peer_bufs as u64) << 48);
        [
            bits,
            pack(self.last_mseq, self.acked),
            self.told.to_word(),
            pack(self.peer_receive_size, self.receive_size),
            self.position,
            pack(self.advert_mseq, self.advert_left),
            pack(self.mode_mseq, self.resize),
            self.resize_from as u64,
            0,
        ]
    }

    /// Unpacks and checks the state.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] names the first word that cannot be.
    #[inline]
    pub fn from_words(words: &[u64; Self::WORDS]) -> Result<Self, Corrupt> {
        let [bits, sequence, told, sizes, position, advert, requests, from, spare] = *words;
        let (Some(credits), Some(mode)) =
            (Credits::from_bits(bits & 1), Mode::from_bits((bits >> 1) & 3))
        else {
            return Err(Corrupt { word: 0 });
        };
        let source = Self {
            credits,
            mode,
            gates: (bits >> 8) as u8,
            marks: (bits >> 16) as u8,
            peer_max_adverts: (bits >> 32) as u16,
            peer_bufs: (bits >> 48) as u16,
            last_mseq: low(sequence),
            acked: high(sequence),
            told: Ack::from_word(told),
            peer_receive_size: low(sizes),
            receive_size: high(sizes),
            position,
            advert_mseq: low(advert),
            advert_left: high(advert),
            mode_mseq: low(requests),
            resize: high(requests),
            resize_from: low(from),
        };
        if bits & 0xff00_00f8 != 0
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

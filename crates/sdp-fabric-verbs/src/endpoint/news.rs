//! Which connections have news for who waits for them, and which connection a message is for: at a
//! cost that does not grow with the number of connections.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::{budget::CONNECTIONS_MAX, endpoint::Core};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = CONNECTIONS_MAX.div_ceil(BITS);
/// Queue pairs whose numbers have equal low bits share a hint.
const HINTS: usize = 2 * CONNECTIONS_MAX;

/// Since the last time that somebody asked.
#[derive(Debug)]
pub(crate) struct News {
    /// A bit for each place to which a message has come.
    words: [AtomicU64; WORDS],
    /// Something else may have changed anywhere.
    anywhere: AtomicBool,
    /// By the low bits of a queue pair's number: the place that it had last.
    hints: [AtomicU8; HINTS],
}

impl News {
    pub(super) const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            anywhere: AtomicBool::new(false),
            hints: [const { AtomicU8::new(0) }; HINTS],
        }
    }

    /// A message has come to this place: behind its count.
    #[inline]
    pub(super) fn note(&self, index: usize) {
        if let Some(word) = self.words.get(index / BITS) {
            word.fetch_or(1 << (index % BITS), Ordering::Release);
        }
    }

    /// Places have failed.
    pub(super) fn note_all(&self) {
        self.anywhere.store(true, Ordering::Release);
    }

    /// The places that have news, or may have.
    fn take(&self) -> impl Iterator<Item = usize> {
        let all =
            self.anywhere.load(Ordering::Relaxed) && self.anywhere.swap(false, Ordering::AcqRel);
        self.words.iter().enumerate().flat_map(move |(at, word)| {
            let some = word.load(Ordering::Relaxed) != 0;
            let taken = if some { word.swap(0, Ordering::AcqRel) } else { 0 };
            let mut left = if all { u64::MAX } else { taken };
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize);
                left &= left.wrapping_sub(1);
                bit.map(|bit| at * BITS + bit)
            })
        })
    }
}

impl Core {
    /// The places of connections to which messages have come since the last call, or that may have
    /// failed. Call it behind [`Core::drain`]. Fast.
    pub fn take_news(&self) -> impl Iterator<Item = usize> {
        self.news.take()
    }

    /// The place of the connection that has this queue pair.
    pub(super) fn by_number(&self, number: u32) -> Option<usize> {
        let is_its = |index: usize| {
            self.conn(index).is_some_and(|conn| conn.number.load(Ordering::Acquire) == number)
        };
        let hint = self.news.hints.get(number as usize % HINTS)?;
        let known = usize::from(hint.load(Ordering::Relaxed));
        if is_its(known) {
            return Some(known);
        }
        let found = (0..self.conns.len()).find(|index| is_its(*index))?;
        hint.store(found as u8, Ordering::Relaxed);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(news: &News) -> Vec<usize> {
        news.take().collect()
    }

    #[test]
    fn places_with_news_are_told_once() {
        let news = News::new();
        assert_eq!(taken(&news), []);
        for index in [0, 63, 64, 127, 64] {
            news.note(index);
        }
        assert_eq!(taken(&news), [0, 63, 64, 127]);
        assert_eq!(taken(&news), []);
        news.note(CONNECTIONS_MAX);
        assert_eq!(taken(&news), [], "no place");
    }

    #[test]
    fn all_are_told_of_a_failure() {
        let news = News::new();
        news.note(5);
        news.note_all();
        assert_eq!(taken(&news), (0..CONNECTIONS_MAX).collect::<Vec<_>>());
        assert_eq!(taken(&news), []);
    }
}

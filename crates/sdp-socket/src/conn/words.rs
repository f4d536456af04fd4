//! A half's private state as words of family memory: the meaning of each word, and the order of the
//! stores.
//!
//! Used by the holder of the half's lock ([`crate::datapath::lane`], [`crate::datapath::fast`]);
//! [`crate::datapath::takeover`] relies on the order where that holder was killed before it had
//! stored everything. The order stands here once, in [`finish_source`] and [`finish_sink`]; the
//! fast path and the slow path go through both. Nothing is decided here: functions that load the
//! words check them. Layout: `docs/spec/shm.md`, section 5.
//!
//! A kill comes between two instructions, and the next owner, which hears of it from the kernel,
//! sees all that the instructions before it stored. So order here is the compiler's matter: no
//! fence, no locked instruction.
//!
//! # Sending half
//! A message that is published in the segment is sent. The private words follow, and the tail is
//! the last of them: while it lags behind the published one, the others may be old or new, but for
//! [`SOURCE_BASE`], which holds the stream position from before the message.
//!
//! # Receiving half
//! One word, [`CURRENT`], says how far the half has been read, the head's low bits included; it is
//! stored first. The message number follows the stream position, the head comes last; only then is
//! the room given to the producer. Until then all messages behind the old head are in the ring, for
//! the next owner to read again what the other words should be. [`SINK_BASE`] is the stream
//! position from before.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use sdp_proto::{Sink, Source};
pub(crate) use sdp_shm::family::HALF_WORDS;

/// Sending half: ring bytes published.
pub(crate) const TAIL: usize = 0;
/// Sending half: the consumer's head as last seen, and bytes that the kernel has taken.
pub(crate) const SEEN: usize = 1;
pub(crate) const SENT: usize = 2;
/// Receiving half: bytes read from the kernel.
pub(crate) const READ: usize = 2;
/// Either half: lane and log entries.
pub(crate) const BITS: usize = 3;
/// In that word: on the SDP lane.
pub(crate) const SDP_BIT: u64 = 1 << 32;
/// Either half: the first word of the engine's state.
pub(crate) const ENGINE: usize = 4;
/// Receiving half: ring bytes freed.
pub(crate) const HEAD: usize = 0;
/// Receiving half: how far it has been read ([`current`]).
pub(crate) const CURRENT: usize = 1;
/// Receiving half: the seen tail ([`crate::datapath::fast`]), and the head as published.
pub(crate) const SEEN_TAIL: usize = 8;
pub(crate) const PUBLISHED: usize = 9;
/// Receiving half: stream position before the message that is being taken.
pub(crate) const SINK_BASE: usize = 10;
/// Receiving half: not 0 while its unread bytes are handed over, or moved into another connection.
pub(crate) const HANDING: usize = 11;
/// Sending half: stream position before the message that is being sent.
pub(crate) const SOURCE_BASE: usize = 13;
/// Sending half: the ring's origin. Receiving half: the origin as seen with the tail, right for as
/// long as that is ahead of the head.
pub(crate) const ORIGIN: usize = 14;
/// Sending half: the key of the tokens, two words ([`crate::datapath::token`]).
pub(crate) const TOKEN_KEY: usize = 15;

const _: () = assert!(TOKEN_KEY + 2 <= HALF_WORDS);
const _: () = assert!(ENGINE + Source::WORDS <= SOURCE_BASE && ENGINE + Sink::WORDS <= SEEN_TAIL);

/// Whether a half's stored words say that it is on the SDP lane. Without the lock: for tools.
pub(crate) fn is_on_sdp(words: &[AtomicU64]) -> bool {
    words.get(BITS).is_some_and(|word| word.load(Ordering::Relaxed) & SDP_BIT != 0)
}

/// A half's words, of which there are [`HALF_WORDS`].
pub(crate) type HalfWords = [AtomicU64; HALF_WORDS];

/// Stores a word behind those that were stored before.
#[inline(always)]
pub(crate) fn put(word: &AtomicU64, value: u64) {
    step();
    compiler_fence(Ordering::Release);
    word.store(value, Ordering::Relaxed);
}

/// Stores a word whose place among its neighbours does not matter.
#[inline(always)]
pub(crate) fn set(word: &AtomicU64, value: u64) {
    step();
    word.store(value, Ordering::Relaxed);
}

/// Stores the changes that a published message makes to the sending half's words: `before` stores
/// all but the tail, which is the last.
#[inline(always)]
pub(crate) fn finish_source(
    words: &HalfWords,
    before: impl FnOnce(&[AtomicU64; Source::WORDS]),
    tail: u64,
) {
    if let Some(engine) = words[ENGINE..].first_chunk() {
        before(engine);
    }
    put(&words[TAIL], tail);
}

/// The changes that reading makes to the receiving half's words.
pub(crate) struct Progress {
    /// [`CURRENT`].
    pub(crate) current: u64,
    /// The engine's [`Sink::POSITION`].
    pub(crate) position: u64,
    /// The engine's [`Sink::SEQUENCE`].
    pub(crate) sequence: u64,
    /// Ring bytes freed.
    pub(crate) head: u64,
}

/// Stores how far the receiving half has been read; `between` stores words that have no place of
/// their own in the order. Freed room may be published behind this.
#[inline(always)]
pub(crate) fn finish_sink(
    words: &HalfWords,
    progress: &Progress,
    between: impl FnOnce(&[AtomicU64; Sink::WORDS]),
) {
    put(&words[CURRENT], progress.current);
    if let Some(engine) = words[ENGINE..].first_chunk() {
        between(engine);
        put(&engine[Sink::POSITION], progress.position);
        put(&engine[Sink::SEQUENCE], progress.sequence);
    }
    put(&words[HEAD], progress.head);
}

/// [`CURRENT`]: the message at `head` that was read in part, its length and the part delivered (0, 0: none),
/// and the low half of the head. Messages are shorter than 64 KiB.
#[inline(always)]
pub(crate) const fn current(len: u32, offset: u32, head: u64) -> u64 {
    (len & 0xffff) as u64 | ((offset & 0xffff) as u64) << 16 | (head as u32 as u64) << 32
}

/// Length and delivered part of the message in [`CURRENT`].
#[inline(always)]
pub(crate) const fn message_in(current: u64) -> (u32, u32) {
    (current as u32 & 0xffff, current as u32 >> 16)
}

/// The low half of the head in [`CURRENT`].
#[inline(always)]
pub(crate) const fn head_in(current: u64) -> u32 {
    (current >> 32) as u32
}

const _: () = assert!(sdp_fabric_shm::endpoint::MESSAGE_MAX <= 0xffff);

/// A place where a test may kill the caller; nothing in the product.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    fuse::burn();
}

#[cfg(test)]
pub(crate) mod fuse {
    //! Ends a thread's work after so many steps, as if its process had been killed there.

    use std::{
        cell::Cell,
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    };

    std::thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed;

    pub(crate) fn burn() {
        match LEFT.get() {
            None => {}
            Some(0) => {
                LEFT.set(None);
                resume_unwind(Box::new(Killed)); // without a word from the panic hook
            }
            Some(left) => LEFT.set(Some(left - 1)),
        }
    }

    /// Runs `work`, killed after `steps` steps. True: it was done before.
    pub(crate) fn killed_after(steps: u32, work: impl FnOnce()) -> bool {
        LEFT.set(Some(steps));
        let result = catch_unwind(AssertUnwindSafe(work));
        LEFT.set(None);
        match result {
            Ok(()) => true,
            Err(cause) if cause.is::<Killed>() => false,
            Err(cause) => resume_unwind(cause),
        }
    }
}

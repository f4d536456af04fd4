//! Which thread has the send turn of a connection.
//!
//! Taken by `datapath/send.rs`, and given back by `wake/call_guard.rs` where a thread is torn out
//! of a call.
//!
//! A blocking send that has sent a part of its message and waits releases the half's lock; other
//! threads that send wait until it is done, so that no other bytes come between. The send turn is a
//! word of the connection: the thread that has it, and the one that is next. Sends take it, their
//! [`crate::wake::call_guard::CallGuard`] gives it back, and [`crate::datapath::wait::for_turn`]
//! waits for it.
//!
//! It is one word, and no second word says the same: of two threads that end a send turn at the
//! same time (its owner, and a thread whose wait for it timed out) the slower one must not change
//! the one of the next thread.
//!
//! It refuses send turns between processes that share a connection, and for senders that do not
//! block.

use core::sync::atomic::{AtomicU64, Ordering};

/// The thread that has the send turn, from its word.
const fn holder_in(word: u64) -> u32 {
    word as u32
}

/// The thread that has it next.
const fn next_in(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn turn_word(holder: u32, next: u32) -> u64 {
    (next as u64) << 32 | holder as u64
}

/// The send turn of one connection: id of the thread that has it, 0 none; in the upper half the id
/// of the one that is next, 0 no thread waits.
#[derive(Debug)]
pub(crate) struct SendTurn(AtomicU64);

impl SendTurn {
    /// Frees the send turn. For a connection that nothing else uses.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether a thread is in the middle of a send. Under the half's lock.
    #[inline(always)]
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// The calling thread's send is about to wait with a part of it sent. Called under the half's
    /// lock, by a thread for which [`SendTurn::of_another`] has found no other one.
    pub(crate) fn take(&self, thread: u32) {
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
            let next = next_in(word);
            Some(turn_word(thread, if next == thread { 0 } else { next }))
        });
    }

    /// The calling thread waits for the send turn: the thread that ends one hands it on. Only one
    /// thread is next, and the others ask again when it is done.
    pub(crate) fn want(&self, thread: u32) {
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
            let holder = holder_in(word);
            (holder != 0 && holder != thread && next_in(word) == 0)
                .then(|| turn_word(holder, thread))
        });
    }

    /// The thread that is in the middle of a send, if that is another one than `thread`.
    #[inline]
    pub(crate) fn of_another(&self, thread: impl FnOnce() -> u32) -> Option<u32> {
        let holder = holder_in(self.0.load(Ordering::Relaxed));
        (holder != 0 && holder != thread()).then_some(holder)
    }

    /// `thread` ends its send turn, and the next one gets it: otherwise a thread that sends again
    /// and again would find the lock free long before the one that it woke. False if it had none,
    /// or has lost it.
    pub(crate) fn end(&self, thread: u32) -> bool {
        thread != 0
            && self
                .0
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
                    (holder_in(word) == thread).then(|| turn_word(next_in(word), 0))
                })
                .is_ok()
    }

    /// `thread` is not the next one any more: after this no thread can hand it the send turn.
    fn want_no_more(&self, thread: u32) {
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
            (next_in(word) == thread).then(|| turn_word(holder_in(word), 0))
        });
    }

    /// `thread` neither has the send turn any more nor waits for it. As [`SendTurn::end`].
    pub(crate) fn give_up(&self, thread: u32) -> bool {
        self.want_no_more(thread);
        self.end(thread)
    }
}

#[cfg(test)]
mod model;

//! Whose turn it is to send on a connection.
//!
//! A blocking send that has sent a part of its message and waits lets the half's lock go; other threads
//! that send wait until it is done, so that nobody's bytes come between. The turn is a word of the
//! connection: who has it, and who is next. Sends take it, their [`crate::stay::Stay`] gives it back, and
//! [`crate::wait::for_turn`] waits for it.
//!
//! What it refuses: turns between processes that share a connection, and for senders that do not block.

use core::sync::atomic::Ordering;

use crate::conn::{Conn, flag};

/// Who has the turn, of a connection's turn word.
const fn holder_in(word: u64) -> u32 {
    word as u32
}

/// Who has it next.
const fn next_in(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn turn_word(holder: u32, next: u32) -> u64 {
    (next as u64) << 32 | holder as u64
}

impl Conn {
    /// The calling thread's send is about to wait with a part of it sent. Under the half's lock, by whom
    /// [`Conn::turn_of`] hinders not.
    pub(crate) fn take_turn(&self, thread: u32) {
        let _ = self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let next = next_in(word);
            Some(turn_word(thread, if next == thread { 0 } else { next }))
        });
        self.set(flag::TURN);
    }

    /// The calling thread waits for its turn: whoever ends one hands it on. Only one thread is next, and
    /// the others ask again when it is done.
    pub(crate) fn want_turn(&self, thread: u32) {
        let _ = self.turn.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
            let holder = holder_in(word);
            (holder != 0 && holder != thread && next_in(word) == 0)
                .then(|| turn_word(holder, thread))
        });
    }

    /// The thread that is in the middle of a send, if that is another one than `thread`.
    #[inline]
    pub(crate) fn turn_of(&self, thread: impl FnOnce() -> u32) -> Option<u32> {
        if !self.has(flag::TURN) {
            return None;
        }
        let holder = holder_in(self.turn.load(Ordering::Relaxed));
        (holder != 0 && holder != thread()).then_some(holder)
    }

    /// The turn of `thread` is over, and is the next one's. False if it had none, or has lost it.
    pub(crate) fn end_turn(&self, thread: u32) -> bool {
        if thread == 0 || holder_in(self.turn.load(Ordering::SeqCst)) != thread {
            return false;
        }
        // The flag first: the next one whose turn it is writes the word before it sets the flag.
        self.flags.fetch_and(!flag::TURN, Ordering::SeqCst);
        let ended = self.turn.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            (holder_in(word) == thread).then(|| turn_word(next_in(word), 0))
        });
        // Without the hand-over a thread that sends again and again would find the lock free long before
        // the one that it woke.
        if ended.is_ok_and(|word| next_in(word) != 0) {
            self.set(flag::TURN);
        }
        ended.is_ok()
    }

    /// `thread` neither has the turn any more nor waits for it. As [`Conn::end_turn`].
    pub(crate) fn give_up_turn(&self, thread: u32) -> bool {
        // First: after this nobody can hand it the turn.
        let _ = self.turn.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
            (next_in(word) == thread).then(|| turn_word(holder_in(word), 0))
        });
        self.end_turn(thread)
    }
}

//! Keeps a connection past the close of its numbers, for calls that sleep on it.
//!
//! A call that is about to sleep holds the connection ([`crate::wake::call_guard`]). A thread that
//! closes a number of it meanwhile leaves a hidden duplicate, which the calls go on with. The
//! number of calls that hold it and the duplicate that they have stand in one word, so that one
//! thread takes the duplicate away, at the moment in which no call holds the connection. Where the
//! program's last number went while calls held, the same word says that the thread which takes the
//! duplicate away also ends the connection.
//!
//! It refuses to find a number where the process has none left. Such calls see a closed descriptor.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sdp_sys::errno::Errno;

use super::{CONNS, Conn, Half, RETAINED, TRACED, get};
use crate::process::{self, table};

/// In a retainer's upper half: something is kept, but the number is not ours any more.
const LOST: u32 = 1;
/// In a retainer's upper half, beside the kept number: the thread that takes the number ends the
/// connection.
const ENDS: u32 = 1 << 31;

/// How many calls hold a connection, and in the upper half the number kept for them: 0 none,
/// [`LOST`], else the hidden number + 2; with [`ENDS`].
#[derive(Debug)]
pub(super) struct Retainer(AtomicU64);

const fn calls_in(word: u64) -> u32 {
    word as u32
}

const fn kept_in(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn word(calls: u32, kept: u32) -> u64 {
    (kept as u64) << 32 | calls as u64
}

/// The number that was kept, for the thread that took it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kept(u32);

impl Kept {
    /// The hidden number; none when the program has taken that for something else.
    pub(crate) const fn number(self) -> Option<i32> {
        match (self.0 & !ENDS).checked_sub(2) {
            Some(raw) => Some(raw as i32),
            None => None,
        }
    }

    /// Whether the caller has to end the connection.
    pub(crate) const fn ends(self) -> bool {
        self.0 & ENDS != 0
    }
}

const ORDER: (Ordering, Ordering) = (Ordering::SeqCst, Ordering::SeqCst);

impl Retainer {
    /// A word of no connection's, for models.
    #[cfg(test)]
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// No call holds, no number is kept. For a connection that nothing else uses; whether a number
    /// was kept.
    pub(super) fn reset(&self) -> bool {
        kept_in(self.0.swap(0, Ordering::SeqCst)) != 0
    }

    /// A call is about to sleep.
    pub(super) fn hold(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn is_held(&self) -> bool {
        calls_in(self.0.load(Ordering::SeqCst)) != 0
    }

    /// Whether calls hold, or something is kept.
    pub(super) fn is_in_use(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    pub(super) fn kept(&self) -> Option<Kept> {
        let kept = kept_in(self.0.load(Ordering::SeqCst));
        (kept != 0).then_some(Kept(kept))
    }

    /// Keeps `raw`, unless something is kept by now.
    pub(super) fn keep(&self, raw: i32) -> bool {
        let keep = |now| (kept_in(now) == 0).then(|| word(calls_in(now), raw as u32 + 2));
        self.0.fetch_update(ORDER.0, ORDER.1, keep).is_ok()
    }

    /// Puts `to` (none: nothing) in the place of `from`, if that is kept.
    pub(super) fn replace(&self, from: i32, to: Option<i32>) -> bool {
        let fresh = to.map_or(LOST, |to| to as u32 + 2);
        let replace = |now| {
            let ends = kept_in(now) & ENDS;
            (kept_in(now) == (from as u32 + 2) | ends).then(|| word(calls_in(now), fresh | ends))
        };
        self.0.fetch_update(ORDER.0, ORDER.1, replace).is_ok()
    }

    /// Takes away the kept number, after which the caller ends the connection. False: nothing is
    /// kept.
    pub(super) fn put_end_off(&self) -> bool {
        let put_off = |now| (kept_in(now) != 0).then(|| word(calls_in(now), kept_in(now) | ENDS));
        self.0.fetch_update(ORDER.0, ORDER.1, put_off).is_ok()
    }

    /// As [`Retainer::put_end_off`] where no number is kept, and only the caller keeps one: `raw`.
    pub(super) fn put_end_off_with(&self, raw: i32) {
        self.0.fetch_or(word(0, (raw as u32 + 2) | ENDS), Ordering::SeqCst);
    }

    /// A call holds no more. True: it was the last one, and something is kept.
    pub(super) fn leave(&self) -> bool {
        // Checked: a fork in a handler of the call has forgotten it in the child.
        let leave = |now| calls_in(now).checked_sub(1).map(|calls| word(calls, kept_in(now)));
        let left = self.0.fetch_update(ORDER.0, ORDER.1, leave);
        left.is_ok_and(|before| calls_in(before) == 1 && kept_in(before) != 0)
    }

    /// Takes away the kept number, if no call holds the connection. For one caller only.
    pub(super) fn take(&self) -> Option<Kept> {
        let take = |now| (calls_in(now) == 0 && kept_in(now) != 0).then_some(0);
        self.0.fetch_update(ORDER.0, ORDER.1, take).ok().map(|before| Kept(kept_in(before)))
    }
}

/// Connections that only calls hold open.
#[unsafe(link_section = ".bss.hot")]
static KEPT_ONES: AtomicU32 = AtomicU32::new(0);
/// Hidden duplicates that are kept for calls.
static KEPT_NUMBERS: AtomicU32 = AtomicU32::new(0);

/// In a fork child: each connection that only calls of the parent held open.
pub(crate) fn each_kept(mut each: impl FnMut(&'static Conn)) {
    if KEPT_ONES.load(Ordering::Relaxed) == 0 {
        return;
    }
    for index in 0..CONNS {
        if let Some(conn) = get(index as u32)
            && conn.state.load(Ordering::Relaxed) == RETAINED
        {
            KEPT_ONES.fetch_sub(1, Ordering::Relaxed);
            each(conn);
        }
    }
}

/// Before the process exits: each connection that only calls hold open, and the number kept for it.
pub(crate) fn each_kept_number(mut each: impl FnMut(&'static Conn, i32)) {
    if KEPT_ONES.load(Ordering::SeqCst) == 0 {
        return;
    }
    for conn in (0..CONNS).filter_map(|index| get(index as u32)) {
        if conn.state.load(Ordering::SeqCst) != RETAINED {
            continue;
        }
        conn.acquire(Half::Receive);
        if conn.state.load(Ordering::SeqCst) == RETAINED
            && let Some(fd) = conn.kept()
        {
            each(conn, fd);
        }
        conn.release(Half::Receive);
    }
}

/// A hidden descriptor is another one now (none: gone): calls go on with that.
pub(crate) fn move_kept(from: i32, to: impl FnOnce() -> Option<i32>) {
    if KEPT_NUMBERS.load(Ordering::SeqCst) == 0 {
        return;
    }
    let retainer = (0..CONNS)
        .filter_map(|index| get(index as u32))
        .find(|conn| conn.retainer.kept().and_then(Kept::number) == Some(from));
    if let Some(conn) = retainer {
        let to = to();
        if !conn.retainer.replace(from, to) {
            to.into_iter().for_each(process::close_hidden); // the last call has left
        }
    }
}

impl Conn {
    /// Keeps an error for the next call.
    pub(crate) fn set_pending_error(&self, error: Errno) {
        let traced = self.pending_error.load(Ordering::Relaxed) & TRACED;
        self.pending_error.store(error.0.unsigned_abs() | traced, Ordering::Relaxed);
    }

    /// The error that waits to be reported.
    #[inline]
    pub(crate) fn pending_error(&self) -> Option<Errno> {
        let pending = self.pending_error.load(Ordering::Relaxed) & !TRACED;
        (pending != 0).then_some(Errno(pending as i32))
    }

    /// Whether an error waits to be reported, or messages are traced: nothing for the fast path.
    #[inline]
    pub(crate) fn is_peculiar(&self) -> bool {
        self.pending_error.load(Ordering::Relaxed) != 0
    }

    /// Takes over whether messages are traced; in calls of the slow path.
    #[inline]
    pub(crate) fn note_traced(&self) {
        let was_traced = self.pending_error.load(Ordering::Relaxed) & TRACED != 0;
        match process::tunables().traces_data() {
            true if !was_traced => self.pending_error.fetch_or(TRACED, Ordering::Relaxed),
            false if was_traced => self.pending_error.fetch_and(!TRACED, Ordering::Relaxed),
            _ => return,
        };
    }

    /// Whether an error waits to be reported.
    #[inline]
    pub(crate) fn has_pending_error(&self) -> bool {
        self.pending_error().is_some()
    }

    /// A call is about to sleep.
    pub(crate) fn hold(&self) {
        self.retainer.hold();
    }

    /// Whether calls hold the connection.
    pub(crate) fn is_held(&self) -> bool {
        self.retainer.is_held()
    }

    /// Whether calls hold the connection, or something is kept for them.
    pub(crate) fn is_kept(&self) -> bool {
        self.retainer.is_in_use()
    }

    /// Such a call has ended. True: it was the last one, and something is kept ([`Conn::take_kept`]).
    pub(crate) fn leave(&self) -> bool {
        self.retainer.leave()
    }

    /// The descriptor that was kept for calls.
    pub(crate) fn kept(&self) -> Option<i32> {
        let raw = self.retainer.kept()?.number()?;
        // Not if the program has used the number since.
        (table::entry(raw) == Some(table::Entry::Hidden)).then_some(raw)
    }

    /// Keeps a duplicate of `fd` for the calls that hold the connection, if none is kept yet: the
    /// number is about to be closed.
    pub(crate) fn keep(&self, fd: i32) {
        if self.retainer.kept().is_some() {
            return;
        }
        let Some(raw) = process::hidden_duplicate(fd) else { return };
        KEPT_NUMBERS.fetch_add(1, Ordering::SeqCst);
        if !self.retainer.keep(raw) {
            KEPT_NUMBERS.fetch_sub(1, Ordering::SeqCst);
            process::close_hidden(raw);
        }
    }

    /// Takes away the kept number, if no call holds the connection: the caller closes it, and
    /// [ends](Kept::ends) the connection if that was put off.
    pub(crate) fn take_kept(&self) -> Option<Kept> {
        let kept = self.retainer.take()?;
        KEPT_NUMBERS.fetch_sub(1, Ordering::SeqCst);
        if kept.ends() {
            KEPT_ONES.fetch_sub(1, Ordering::SeqCst);
        }
        Some(kept)
    }

    /// In a fork child: hidden descriptors are the parent's, and so are the calls.
    pub(super) fn forget_kept(&self) {
        if self.retainer.reset() {
            KEPT_NUMBERS.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// `fd`, the last number of the program's, is gone from the table. True: the caller ends the
    /// connection; false: the thread that takes the kept number away does, and the caller tries
    /// that too. The caller uses it.
    pub(crate) fn ends_now(&self, fd: i32) -> bool {
        if !self.is_kept() {
            return true; // a call that comes now finds it closed
        }
        // First: a walk that starts from a doorbell bit or from an exit looks at the state.
        self.state.store(RETAINED, Ordering::SeqCst);
        KEPT_ONES.fetch_add(1, Ordering::SeqCst);
        if self.retainer.put_end_off() {
            return false;
        }
        // The last call took it away before the end was put off, and another one may be about to
        // sleep. No other thread has a number to keep.
        let Some(raw) = process::hidden_duplicate(fd) else {
            KEPT_ONES.fetch_sub(1, Ordering::SeqCst);
            return true; // nor have we: the calls find it closed
        };
        KEPT_NUMBERS.fetch_add(1, Ordering::SeqCst);
        self.retainer.put_end_off_with(raw);
        false
    }
}

#[cfg(test)]
mod model;

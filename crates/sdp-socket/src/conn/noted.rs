//! The one registration in an epoll set that is noted with its connection, while the mirror of the sets need not know it.
//!
//! Words only: [`crate::wake::interest::noted`] says when a note is made, moved to the mirror and dropped.

use core::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// The registration that is noted with a connection. Changes under the epoll lock.
pub(crate) struct Noted {
    /// The set's (`Set::serial` in [`crate::wake::interest`]); 0: nothing is noted.
    pub(crate) serial: AtomicU64,
    pub(crate) data: AtomicU64,
    pub(crate) events: AtomicU32,
    pub(crate) number: AtomicI32,
}

impl Noted {
    /// Nothing is noted any more, or yet.
    pub(crate) fn reset(&self) {
        self.serial.store(0, Relaxed);
    }

    /// Whether nothing is noted. The mirror has the notes that were moved there.
    pub(crate) fn is_empty(&self) -> bool {
        self.serial.load(Acquire) == 0
    }
}

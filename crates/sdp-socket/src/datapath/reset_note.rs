//! A note that a send call has taken the kernel's error of a reset.
//!
//! Called by [`super::send`] and [`super::receive`].
//!
//! The kernel tells of a reset once. A sender who gets the word may tell the program something else, or, if it rang a
//! wake byte, nothing; a reader who meets the end of the kernel lane afterwards asks here.

use core::sync::atomic::Ordering;

use sdp_shm::family::Row;
use sdp_sys::time::monotonic_ns;

use crate::conn::{Conn, flag, row_flag};

/// The kernel has told us. What the peer had sent through the kernel may be cut off,
/// of which a reader on the kernel lane has to learn.
pub(crate) fn note(row: &Row) {
    row.flags.fetch_or(row_flag::RESET_TAKEN, Ordering::SeqCst);
}

/// Whether a sender took it. It holds the half's lock from before it is told until it has said
/// so, and is waited for: but not by taking the lock, whose owner may have been stopped, and for a moment only, because
/// this is asked by calls that need not wait.
pub(crate) fn is_noted(conn: &Conn) -> bool {
    const PATIENCE_NS: u64 = 10_000_000;
    const SLEEP_NS: i64 = 100_000;
    let Some(row) = conn.row() else { return false };
    let has_taken = || row.flags.load(Ordering::SeqCst) & row_flag::RESET_TAKEN != 0;
    let is_at_it = || row.source.lock.load(Ordering::SeqCst) != 0 && !has_taken();
    if is_at_it() && !conn.has(flag::SENDER_STUCK) {
        let end = monotonic_ns() + PATIENCE_NS;
        while is_at_it() {
            if monotonic_ns() >= end {
                conn.set(flag::SENDER_STUCK);
                break;
            }
            sdp_sys::time::sleep(SLEEP_NS);
        }
    }
    has_taken()
}

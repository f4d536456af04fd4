//! A note that a send call has taken the kernel's error of a reset.
//!
//! Called by [`super::send`] and [`super::receive`].
//!
//! The kernel reports a reset once. A send that gets the report may return another error to the
//! program, or nothing if it sent a wake byte; a receive that finds the end of the kernel lane
//! afterwards asks here.

use core::sync::atomic::Ordering;

use sdp_shm::family::Row;
use sdp_sys::time::monotonic_ns;

use crate::conn::{Conn, Holders, RowFlag};

/// The kernel has reported a reset to a send. It may have cut off bytes that the peer had sent
/// through the kernel, and a reader on the kernel lane has to learn of that.
pub(crate) fn note(row: &Row) {
    row.flags.insert(RowFlag::ResetTaken, Ordering::SeqCst);
}

/// Whether a sender took it. A send holds the half's lock from before it gets the report until it
/// has noted it, and this waits for it: not by taking the lock, whose owner may have been stopped,
/// and for a moment only, because calls that need not wait ask this.
pub(crate) fn is_noted(conn: &Conn) -> bool {
    const TIMEOUT_NS: u64 = 10_000_000;
    const SLEEP_NS: i64 = 100_000;
    let Some(row) = conn.row() else { return false };
    let has_taken = || row.flags.load(Ordering::SeqCst).has(RowFlag::ResetTaken);
    let is_at_it = || row.source.lock.load(Ordering::SeqCst) != 0 && !has_taken();
    if is_at_it() && !conn.has(Holders::SenderStuck) {
        let end = monotonic_ns() + TIMEOUT_NS;
        while is_at_it() {
            if monotonic_ns() >= end {
                conn.set(Holders::SenderStuck);
                break;
            }
            sdp_sys::time::sleep(SLEEP_NS);
        }
    }
    has_taken()
}

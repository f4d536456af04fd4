//! The bytes and messages that a call has moved, in the counters that tools read.

use sdp_shm::family::Row;
use sdp_stats::{Counter, Direction, Lane, Verdict};

use crate::conn::{Conn, publish};

/// Bytes that were received.
pub(crate) fn received(conn: &Conn, row: &Row, lane: Lane, n: usize) {
    publish::ensure_row(conn);
    let Some((page, id)) = publish::of_row(conn) else { return };
    page.moved(id, Direction::Receive, lane, n as u64);
    if lane == Lane::Sdp {
        publish::count_sdp(conn, page, Verdict::at(&row.reason));
    }
}

/// Bytes of the ring, and so many messages that were read to their end.
#[inline(always)]
pub(crate) fn received_by_ring(conn: &Conn, row: &Row, n: usize, messages: u64) {
    publish::ensure_row(conn);
    let Some((page, id)) = publish::of_row(conn) else { return };
    page.moved(id, Direction::Receive, Lane::Sdp, n as u64);
    page.add(id, Direction::Receive, Counter::BCopy, messages);
    publish::count_sdp(conn, page, Verdict::at(&row.reason));
}

/// So many messages were read to their end.
#[inline]
pub(crate) fn messages_received(conn: &Conn, messages: u64) {
    if messages != 0
        && let Some((page, id)) = publish::of_row(conn)
    {
        page.add(id, Direction::Receive, Counter::BCopy, messages);
    }
}

/// Bytes that were sent by the carrier.
pub(crate) fn sent_by_kernel(conn: &Conn, n: usize) {
    publish::ensure_row(conn);
    let Some((page, id)) = publish::of_row(conn) else { return };
    page.moved(id, Direction::Send, Lane::Kernel, n as u64);
}

/// A message of `n` bytes is in the ring. The connection has a row of statistics.
#[inline(always)]
pub(crate) fn sent_by_ring(conn: &Conn, row: &Row, n: usize) {
    let Some((page, id)) = publish::of_row(conn) else { return };
    page.moved(id, Direction::Send, Lane::Sdp, n as u64);
    page.sent_messages(id, n as u32, 1);
    publish::count_sdp(conn, page, Verdict::at(&row.reason));
}

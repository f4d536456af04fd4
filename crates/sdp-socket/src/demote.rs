//! Getting off the SDP lane: because the program is about to do something that only the kernel can
//! carry, because a relative uses the connection too, or because the peer broke the protocol.

use core::sync::atomic::Ordering;

use sdp_shm::{family::Row, layout::Half as HalfLines};
use sdp_stats::{Direction, Reason};
use sdp_sys::{errno::Errno, sys, time::monotonic_ns};

use crate::{
    carrier,
    conn::{Conn, Stage, flag},
    lane::{self, SinkState},
    process, receive, send,
};

/// How long a writer that does not know of us is held back until the consumer lets the half leave its lane,
/// and how often that is looked at.
const CATCH_UP_NS: u64 = 2_000_000_000;
const CATCH_UP_NAP_NS: i64 = 200_000;

/// The connection is lost: every call answers ECONNRESET from here on, and the peer sees the end of
/// the carrier.
pub(crate) fn reset(conn: &Conn) {
    if conn.has(flag::HOSTILE) {
        return;
    }
    conn.set(flag::HOSTILE);
    conn.pin_to_kernel(Reason::ProtocolViolation);
    conn.note_reason(Reason::ProtocolViolation);
    for direction in [Direction::Send, Direction::Receive] {
        process::half_demoted(conn, direction, Reason::ProtocolViolation);
    }
    if let Some(fd) = crate::table::number_of(conn) {
        carrier::reset_on_close(fd);
        // SAFETY: no pointers.
        let _ = unsafe { sys!(libc::SYS_shutdown, fd, libc::SHUT_RDWR) };
    }
}

/// Moves a connection to the kernel lane in both directions, for good. Answers with the bytes that
/// are left unread in the inbound ring: calls of the library still deliver them first.
///
/// For readers that go on through the library. Where a reader follows that does not know of us, see
/// [`crate::handover::leave`].
pub(crate) fn leave(conn: &Conn, fd: i32, reason: Reason) -> u64 {
    if !begin(conn, reason) {
        return 0;
    }
    leave_outbound(conn, reason);
    leave_inbound(conn, |sink, _, lines| receive::settle(fd, sink, lines)).unwrap_or(0)
}

/// Pins the connection and gives up a meeting. True when it is attached: both halves must leave.
pub(crate) fn begin(conn: &Conn, reason: Reason) -> bool {
    conn.pin_to_kernel(reason);
    if call_off(conn) {
        conn.note_reason(reason);
        return false;
    }
    conn.stage() == Stage::Attached
}

/// Gives up a meeting, or the hope for one. False when there is none, also because another thread has
/// attached the connection meanwhile.
pub(crate) fn call_off(conn: &Conn) -> bool {
    if !matches!(conn.stage(), Stage::Young | Stage::Meeting) {
        return false;
    }
    conn.abandon_meeting();
    conn.change_stage(Stage::Young, Stage::Kernel)
        || conn.change_stage(Stage::Meeting, Stage::Kernel)
}

/// The sending half: local and immediate, unless the consumer must catch up first (L2). False then: later
/// sends of the library try again.
fn leave_outbound(conn: &Conn, reason: Reason) -> bool {
    send::with_source(conn, |source, _, _, lines| Ok(send::leave_sdp(conn, source, lines, reason)))
        .unwrap_or(true)
}

/// The sending half, for writers that do not come through the library: what they put on the carrier before
/// the switch would be lost among bells. Waits for the consumer, which may have been preempted, for a bounded
/// time. False: it did not move on.
pub(crate) fn leave_outbound_for_kernel(conn: &Conn, reason: Reason) -> bool {
    let end = monotonic_ns() + CATCH_UP_NS;
    while !leave_outbound(conn, reason) {
        if monotonic_ns() >= end {
            return false;
        }
        let nap = libc::timespec { tv_sec: 0, tv_nsec: CATCH_UP_NAP_NS };
        // SAFETY: the time outlives the call; what is left of it is not asked for.
        let _ = unsafe { sys!(libc::SYS_nanosleep, &raw const nap, 0) };
    }
    true
}

/// The receiving half: tells the producer, and ends its section where the ring ends now (L10). `rest`
/// runs before the gate is given back: until then the producer sends nothing, on no lane. Counted as
/// demoted when it has followed, which unread ring bytes delay.
pub(crate) fn leave_inbound<R>(
    conn: &Conn,
    rest: impl FnOnce(&mut SinkState, &Row, &HalfLines) -> R,
) -> Result<R, Errno> {
    let side = conn.side();
    receive::with_sink(conn, |sink, row, segment, lines| {
        segment.end(side).pinned.store(1, Ordering::SeqCst);
        lines.consumer.trusts_itself.store(0, Ordering::SeqCst);
        let ended = send::gated(conn, lines, side, || {
            let queued = crate::table::number_of(conn).and_then(|fd| carrier::queued(fd).ok());
            lane::switch_for_producer(lines, sink.carrier_read.wrapping_add(queued.unwrap_or(0)));
            rest(sink, row, lines)
        });
        let Some(ended) = ended else {
            reset(conn);
            return Err(Errno::ECONNRESET);
        };
        Ok(ended)
    })
}

/// Whether another process than this one uses the lanes of this end. Such a connection continues on
/// the kernel lane (reason `shared`), unless the other user is gone.
pub(crate) fn is_used_by_another(conn: &Conn) -> bool {
    let Some(row) = conn.row() else { return false };
    let user = row.user.load(Ordering::Acquire);
    if user == process::pid() || user == 0 {
        return false;
    }
    let Some((index, (family, slot))) = conn.row_index().zip(process::family()) else {
        return true;
    };
    if family.is_held_by_others(slot, index) {
        return true;
    }
    // Sole holder now: the lanes are ours. Bells went to the other process: none for us.
    row.user.store(process::pid(), Ordering::Release);
    conn.flags.fetch_and(!flag::PEER_HAS_BELL, Ordering::SeqCst);
    false
}

/// A connection that several processes really use goes on on the kernel lane.
pub(crate) fn share(conn: &Conn, fd: i32) {
    if !conn.has(flag::PINNED) {
        leave(conn, fd, Reason::Shared);
    }
}

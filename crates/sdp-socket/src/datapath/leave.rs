//! Both halves of an attached connection leave the SDP lane.
//!
//! Called by `migration`, which says when and for how long, and by [`crate::datapath::proof`] for
//! an end that turned out to be another connection's. It does not decide that a connection leaves,
//! nor where unread bytes go.

use sdp_fabric_shm::link::{Intent, ShmHalf, Trust};
use sdp_shm::family::Row;
use sdp_stats::Reason;
use sdp_sys::{errno::Errno, time::monotonic_ns};

use crate::{
    conn::{Conn, carrier, words},
    datapath::{lane::SinkState, receive, reset::reset, send},
};

/// Both halves leave their lanes, if that is possible now. Answers with the bytes that are left unread in the inbound
/// ring. The connection is attached, and falls back.
pub(crate) fn both(conn: &Conn, fd: i32, reason: Reason) -> u64 {
    outbound(conn, reason);
    inbound(conn, fd, |sink, _, half| receive::follow_pending(conn, fd, sink, half)).unwrap_or(0)
}

/// How long a writer that does not know of us is held back until the consumer lets the half leave its lane,
/// and how often that is looked at.
const CATCH_UP_NS: u64 = 2_000_000_000;

const CATCH_UP_SLEEP_NS: i64 = 200_000;

/// The sending half: local and immediate, unless the consumer must catch up first (L2). False then: later
/// sends of the library try again.
fn outbound(conn: &Conn, reason: Reason) -> bool {
    send::with_source(conn, |source, _, _, half| Ok(send::leave_sdp(conn, source, half, reason)))
        .unwrap_or(true)
}

/// The sending half, for writers that do not come through the library: bytes that they put on the
/// carrier before the switch would be lost among wake bytes. Waits for the consumer, which may have
/// been preempted, for a bounded time. False: it did not move on.
pub(crate) fn outbound_for_kernel(conn: &Conn, reason: Reason) -> bool {
    let end = monotonic_ns() + CATCH_UP_NS;
    while !outbound(conn, reason) {
        if monotonic_ns() >= end {
            return false;
        }
        sdp_sys::time::sleep(CATCH_UP_SLEEP_NS);
    }
    true
}

/// The receiving half: asks the producer to leave, and ends its section where the ring ends now
/// (L10). `rest` runs before the gate is given back: until then the producer sends nothing, on no
/// lane. Counted as demoted when it has followed, which unread ring bytes delay.
pub(crate) fn inbound<R>(
    conn: &Conn,
    fd: i32,
    rest: impl FnOnce(&mut SinkState, &Row, ShmHalf<'_>) -> R,
) -> Result<R, Errno> {
    let side = conn.side();
    receive::with_sink(conn, |sink, row, link, half| {
        link.own().intend(Intent::Carrier);
        half.declare(Trust::No);
        let ended = send::gated_at(conn, Some(fd), half, side, || {
            let queued = carrier::queued(fd).unwrap_or(0);
            let _ = half.end_section(sink.carrier_read.wrapping_add(queued), words::step);
            rest(sink, row, half)
        });
        let Some(ended) = ended else {
            reset(conn);
            return Err(Errno::ECONNRESET);
        };
        Ok(ended)
    })
}

//! Dropping lanes that the other end has left, so that the connection can earn new ones (R3).
//!
//! Called by `api` after each call on a lane.
//!
//! The process at the other end may have passed the connection on, or executed another program with
//! it: it has put its end on the kernel lane for good ([`Intent::PassedOn`]), and the process that
//! has the connection there now shares no memory with us. Once both directions have drained into
//! the kernel lane, the segment means nothing any more. It is put aside, still mapped (a thread
//! that polls may look at it), and the connection is a candidate again.

use core::sync::atomic::Ordering;

use sdp_fabric_shm::link::{Intent, ShmLink};
use sdp_sys::section;

use crate::{
    conn::{Conn, ConnGuard, Holders, Limits, Mask, Stage},
    datapath::{lane::Lane, receive, send},
    process,
    wake::interest,
};

/// Calls between two attempts.
const TRY_EVERY: u32 = 32;

/// After a call that went through the library.
#[inline]
pub(crate) fn after_call(conn: &ConnGuard) {
    if conn.link().is_some_and(has_peer_left) {
        consider(conn);
    }
}

fn has_peer_left(link: ShmLink) -> bool {
    link.peer().intent() == Intent::PassedOn
}

#[cold]
fn consider(conn: &ConnGuard) {
    let ours = (Limits::Fallback | Limits::PeerGone | Limits::Hostile | Limits::Shut)
        .with(Holders::Uncertain);
    let tick = conn.ticks.fetch_add(1, Ordering::Relaxed);
    if !tick.is_multiple_of(TRY_EVERY) || conn.has(ours) || conn.stage() != Stage::Attached {
        return;
    }
    let _section = section::Guard::enter();
    let (Some(row), Some((family, slot))) = (conn.row_index(), process::family()) else { return };
    if family.is_held_by_others(slot, row) || !is_drained(conn) {
        return;
    }
    // No call enters the library's lanes from here on; calls that are in there are counted.
    if !conn.change_stage(Stage::Attached, Stage::Kernel) {
        return;
    }
    if !conn.put_segment_aside(|| interest::room_granted(conn)) {
        conn.change_stage(Stage::Kernel, Stage::Attached);
        return;
    }
    conn.ticks.store(0, Ordering::Relaxed);
    conn.change_stage(Stage::Kernel, Stage::Candidate);
}

/// Whether both directions are on the kernel lane with every switch followed.
fn is_drained(conn: &Conn) -> bool {
    let sent = send::with_source(conn, |source, _, _, half| {
        let known = source.switches == half.written();
        let followed = half.followed() == source.switches;
        Ok(source.lane == Lane::Kernel && known && followed)
    });
    let read = receive::with_sink(conn, |sink, _, _, half| {
        let pending = sink.pending(half).ok().flatten();
        Ok(sink.lane == Lane::Kernel && pending.is_none() && sink.current_len == 0)
    });
    sent.unwrap_or(false) && read.unwrap_or(false)
}

#[cfg(test)]
mod model;

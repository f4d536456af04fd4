//! The view that tools have of a connection to another host: bytes by lane, switches, credits.
//!
//! Called by [`super`] with each message, under the half's lock.

use core::sync::atomic::Ordering;

use sdp_stats::{Counter, Direction, Fabric, Lane as StatsLane, Reason, Verdict};

use crate::conn::{self, Conn, Half, carrier, publish};

/// The sending half may have changed its lane.
pub(super) fn note_lane(
    conn: &Conn,
    was_on_sdp: bool,
    is_on_sdp: bool,
    shared: &sdp_remote::Shared,
) {
    match (was_on_sdp, is_on_sdp) {
        (false, true) => publish::half_promoted_by(conn, Direction::Send, Fabric::Verbs),
        (true, false) => note_demotion(conn, Direction::Send, is_lost(shared)),
        _ => {}
    }
}

/// The lane of a receiving half that tools see.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Tcp,
    QueuePair,
    /// The queue pair, which was lost: no payload has come by the carrier since.
    LostQueuePair,
}

/// The receiving half may have changed its lane, in any call. It is off the queue pair when payload comes by the carrier
/// (`has_read_carrier`): a stream that ends goes there, too, and neither lost its lane nor wanted credit.
pub(super) fn note_arrival(
    conn: &Conn,
    shown: &mut Shown,
    is_on_sdp: bool,
    has_read_carrier: bool,
    shared: &sdp_remote::Shared,
) {
    if is_on_sdp {
        if *shown == Shown::Tcp {
            publish::half_promoted_by(conn, Direction::Receive, Fabric::Verbs);
        }
        *shown = Shown::QueuePair;
    } else if *shown != Shown::Tcp {
        let is_lost = is_lost(shared) || *shown == Shown::LostQueuePair;
        if has_read_carrier {
            note_demotion(conn, Direction::Receive, is_lost);
            *shown = Shown::Tcp;
        } else if is_lost {
            *shown = Shown::LostQueuePair;
        }
    }
}

fn note_demotion(conn: &Conn, direction: Direction, is_lost: bool) {
    let reason = if is_lost { Reason::LaneLost } else { Reason::Credit };
    // A peer that has ended its stream and then its queue pair has gone: nothing is lost.
    if reason == Reason::Credit || !conn::number_of(conn).is_none_or(carrier::is_over) {
        publish::half_demoted(conn, direction, reason);
    }
}

/// The queue pair is dead, or was destroyed: a half may hear of it by a marker that comes later.
fn is_lost(shared: &sdp_remote::Shared) -> bool {
    shared.is_link_dead() || !shared.has_link()
}

/// Bytes that a half has moved by a lane.
pub(super) fn count(conn: &Conn, direction: Direction, lane: StatsLane, n: usize) {
    if n == 0 {
        return;
    }
    let half = if direction == Direction::Send { Half::Send } else { Half::Receive };
    conn.bytes[half as usize].fetch_add(n as u64, Ordering::Relaxed);
    publish::ensure_row(conn);
    let Some((page, id)) = publish::of_row(conn) else { return };
    page.moved(id, direction, lane, n as u64);
    if lane == StatsLane::Sdp
        && let Some(row) = conn.row()
    {
        page.count_sdp(Verdict::at(&row.reason), Fabric::Verbs);
    }
}

/// So many messages were posted, with `bytes` payload together, or taken.
pub(super) fn count_messages(conn: &Conn, direction: Direction, messages: u64, bytes: usize) {
    let Some((page, id)) = publish::of_row(conn).filter(|_| messages != 0) else { return };
    match direction {
        Direction::Send => {
            let size = (bytes as u64).checked_div(messages).unwrap_or(0);
            page.sent_messages(id, size as u32, messages);
        }
        Direction::Receive => page.add(id, direction, Counter::BCopy, messages),
    }
}

/// The view that tools have of a half's credits.
pub(super) fn show_credits(conn: &Conn, direction: Direction, credits: u32) {
    if let Some((page, id)) = publish::of_row(conn) {
        page.show_credits(id, direction, credits);
    }
}

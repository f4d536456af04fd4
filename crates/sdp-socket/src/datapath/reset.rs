//! A connection that is lost: every call answers ECONNRESET from here on.
//!
//! Called wherever a lane turns out to be broken: by this room, and by `migration/handover.rs`.
//!
//! Called where a peer has broken a rule, a lock is overdue, or bytes cannot be handed over.

use sdp_fabric_shm::link::ResetNote;
use sdp_stats::{Direction, Reason, trace::Kind};

use crate::conn::{self, Conn, Limits, carrier, publish};

/// The connection is lost: every call answers ECONNRESET from here on, and so does the carrier, at
/// this end to all that read it without the library, and at the other.
pub(crate) fn reset(conn: &Conn) {
    if conn.has(Limits::Hostile) {
        return;
    }
    conn.set(Limits::Hostile);
    conn.fall_back(Reason::ProtocolViolation);
    conn.note_reason(Reason::ProtocolViolation);
    publish::record(conn, Kind::Reset, None, Some(Reason::ProtocolViolation), None);
    for direction in [Direction::Send, Direction::Receive] {
        publish::half_demoted(conn, direction, Reason::ProtocolViolation);
    }
    if let Some(fd) = conn::number_of(conn) {
        if let Some(link) = conn.link() {
            link.own().note_reset(ResetNote::Resets);
        }
        carrier::abort(fd);
    }
}

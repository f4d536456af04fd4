//! Which family members may use this end of a connection, by family memory.
//!
//! Called by every room that is about to change or trust something which a family member may
//! change, too. Nothing here changes a lane.

use core::sync::atomic::Ordering;

use crate::{
    conn::{Conn, Holders, Limits, Mask, Waiters},
    process,
};

/// Whether another process than this one uses the lanes of this end ([`crate::migration::demote::join`]), unless that is gone.
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
    // Sole holder now: the lanes are ours. Doorbells went to the other process: none for us.
    row.user.store(process::pid(), Ordering::Release);
    conn.flags.remove(Waiters::PeerHasDoorbell.with(Holders::ForkedDuringCall), Ordering::SeqCst);
    false
}

/// Whether a family member may have the connection open, by family memory, without asking the
/// kernel.
pub(crate) fn may_family_hold(conn: &Conn) -> bool {
    process::has_family()
        && conn
            .row_index()
            .zip(process::family())
            .is_none_or(|(row, (family, slot))| family.may_be_held_by_others(slot, row))
}

/// Whether its calls or bytes are enough for a lane.
pub(crate) fn has_earned(conn: &Conn) -> bool {
    let tunables = process::tunables();
    let (calls, bytes) = (tunables.promote_calls(), tunables.promote_bytes());
    conn.calls.iter().any(|n| n.load(Ordering::Relaxed) >= calls)
        || conn.bytes.iter().any(|n| n.load(Ordering::Relaxed) >= bytes)
}

/// Whether no family member has a descriptor of the connection.
pub(crate) fn is_sole_holder(conn: &Conn) -> bool {
    let (Some(row), Some((family, slot))) = (conn.row_index(), process::family()) else {
        return false;
    };
    !conn.has(Limits::Fallback.with(Holders::Uncertain)) && !family.is_held_by_others(slot, row)
}

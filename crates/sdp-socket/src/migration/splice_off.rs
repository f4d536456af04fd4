//! A connection that the kernel is to move bytes of by itself (`splice`, `sendfile` into a pipe) leaves its lanes.
//!
//! Called by `api` before `sendfile` and `splice`.

use sdp_stats::Reason;

use crate::{
    conn::{ConnGuard, Half, Holders, Limits, Mask, Stage},
    datapath::leave,
    migration::{demote, handover},
};

/// `splice` with a connection at one end: the kernel can only move carrier bytes, so the connection
/// leaves its lanes; where the kernel is to read, ring bytes that are still unread are handed over
/// first. False: it would read past unread bytes, or write among wake bytes.
pub(crate) fn prepare(conn: &ConnGuard, half: Half) -> bool {
    match conn.stage() {
        // The kernel can only move carrier bytes, and would miss or break markers.
        Stage::Remote | Stage::Guarded => return false,
        Stage::Attached | Stage::Meeting | Stage::Candidate => {}
        // Or it would be a candidate again while the kernel is at it.
        Stage::Kernel if conn.has(Limits::Unmet.with(Holders::Adopted)) => {
            conn.fall_back(Reason::Splice);
            return true;
        }
        _ => return true,
    }
    match half {
        Half::Receive => handover::leave(conn, conn.fd(), Reason::Splice),
        Half::Send => {
            demote::leave(conn, conn.fd(), Reason::Splice);
            conn.stage() != Stage::Attached || leave::outbound_for_kernel(conn, Reason::Splice)
        }
    }
}

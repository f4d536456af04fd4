//! Getting off the SDP lane: because the program is about to do something that only the kernel can
//! carry, because a family member uses the connection too, or because the peer broke the protocol.
//!
//! Called by `api`, `lifecycle` and `readiness`, and by the other files here.

use core::sync::atomic::{Ordering, fence};

use sdp_stats::Reason;

use crate::{
    conn::{Conn, Holders, Limits, RowFlag, Stage, sharing::is_used_by_another},
    datapath::leave,
    hosts, process,
};

/// Moves a connection to the kernel lane in both directions, for good. Answers with the bytes that
/// are left unread in the inbound ring: calls of the library still deliver them first.
///
/// For readers that go on through the library. Where a reader follows that does not know of us, see
/// [`crate::migration::handover::leave`].
#[inline(never)]
pub(crate) fn leave(conn: &Conn, fd: i32, reason: Reason) -> u64 {
    if !begin(conn, reason) {
        return 0;
    }
    leave::both(conn, fd, reason)
}

/// Makes the connection stay on TCP and gives up a meeting. True when it is attached: both halves
/// must leave.
pub(crate) fn begin(conn: &Conn, reason: Reason) -> bool {
    conn.fall_back(reason);
    if hosts::has(conn) {
        hosts::let_go(conn, reason);
        return false;
    }
    if call_off(conn) {
        conn.note_reason(reason);
        return false;
    }
    conn.stage() == Stage::Attached
}

/// Gives up a meeting, or the hope for one. False when there is none, also because another thread has
/// attached the connection meanwhile.
pub(crate) fn call_off(conn: &Conn) -> bool {
    if !matches!(conn.stage(), Stage::Candidate | Stage::Meeting) {
        return false;
    }
    if !process::is_ours() {
        // A meeting's descriptors are the parent's to close: its next step sees that the connection
        // falls back.
        conn.change_stage(Stage::Candidate, Stage::Kernel);
        return conn.stage() != Stage::Attached;
    }
    // The stage first: a step that another thread is at does not attach any more.
    let is_off = conn.change_stage(Stage::Candidate, Stage::Kernel)
        || conn.change_stage(Stage::Meeting, Stage::Kernel);
    if is_off {
        // Pairs with `promote::step`: where that thread has the lock, it looks at the stage behind it, and abandons.
        fence(Ordering::SeqCst);
        conn.abandon_meeting(Stage::Kernel);
    }
    is_off
}

/// Before a data call on the lanes. Where another process uses them (R5), from now on both do, in turn, under
/// the halves' locks.
#[inline]
pub(crate) fn join(conn: &Conn, fd: i32) {
    let is_joined = conn.row().is_none_or(|row| {
        let user = row.user.load(Ordering::Acquire);
        user == process::pid()
            || user == 0
            || row.flags.load(Ordering::Acquire).has(RowFlag::Several)
    });
    if !is_joined && is_used_by_another(conn) {
        share(conn, fd);
    }
}

/// Not where a thread waits for the connection in epoll sets, which are armed once for many waits
/// and cannot know that a family member was woken in their place: it goes on on the kernel lane.
#[cold]
fn share(conn: &Conn, fd: i32) {
    let Some(row) = conn.row() else { return };
    if conn.has(Limits::Fallback) {
        return;
    }
    let is_in_set = || row.flags.load(Ordering::SeqCst).has(RowFlag::InSet);
    if !conn.has(Holders::Uncertain | Holders::ForkedDuringCall) && !is_in_set() {
        row.flags.insert(RowFlag::Several, Ordering::SeqCst);
        if !is_in_set() {
            return;
        }
    }
    leave(conn, fd, Reason::Shared);
}

/// The connection is in an epoll set now: no longer one whose lanes several processes use.
pub(crate) fn entered_set(conn: &Conn, fd: i32) {
    let Some(row) = conn.row() else { return };
    if !row.flags.load(Ordering::Relaxed).has(RowFlag::InSet) {
        row.flags.insert(RowFlag::InSet, Ordering::SeqCst);
    }
    if conn.is_used_by_several() && !conn.has(Limits::Fallback) {
        leave(conn, fd, Reason::Shared);
    }
}

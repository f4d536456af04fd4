//! Getting off the SDP lane: because the program is about to do something that only the kernel can
//! carry, because a relative uses the connection too, or because the peer broke the protocol.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use sdp_link::{EndWords, Intent, Link, ResetNote, SwitchLog, Trust};
use sdp_shm::{
    family::Row,
    lock::{self, Acquired},
};
use sdp_stats::{Direction, Reason};
use sdp_sys::{errno::Errno, time::monotonic_ns};

use crate::{
    conn::{self, Conn, Stage, carrier, flag, link::AnyHalf, publish, row_flag, words},
    datapath::{lane::SinkState, receive, send, wait},
    hosts, process,
};

/// How long a writer that does not know of us is held back until the consumer lets the half leave its lane,
/// and how often that is looked at.
const CATCH_UP_NS: u64 = 2_000_000_000;
const CATCH_UP_NAP_NS: i64 = 200_000;
/// The shortest sleep on a connection that relatives use as well.
const SHARED_SLEEP_NS: u64 = 1_000_000;
/// One sleep on a connection that relatives hold, and have not used so far: they may begin to.
const LONELY_SLEEP_NS: u64 = 1_000_000_000;

/// The connection is lost: every call answers ECONNRESET from here on, and so does the carrier, at this end to whoever reads
/// it without the library, and at the other.
pub(crate) fn reset(conn: &Conn) {
    if conn.has(flag::HOSTILE) {
        return;
    }
    conn.set(flag::HOSTILE);
    conn.pin_to_kernel(Reason::ProtocolViolation);
    conn.note_reason(Reason::ProtocolViolation);
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

/// Takes the lock of a half. True: its last owner died inside. The connection is lost when a living one keeps it.
///
/// # Errors
/// ECONNRESET.
#[inline]
pub(crate) fn enter(conn: &Conn, word: &AtomicU32) -> Result<bool, Errno> {
    if lock::try_lock(word, process::pid()) { Ok(false) } else { enter_contended(conn, word) }
}

#[cold]
fn enter_contended(conn: &Conn, word: &AtomicU32) -> Result<bool, Errno> {
    if conn.has(flag::OVERDUE) {
        return Err(Errno::ECONNRESET); // waited for once
    }
    match lock::lock(word, process::pid()) {
        Acquired::Clean => Ok(false),
        Acquired::TakenOver => Ok(true),
        // It stays its owner's, who may be in the middle of something.
        Acquired::Overdue => {
            conn.set(flag::OVERDUE);
            reset(conn);
            Err(Errno::ECONNRESET)
        }
    }
}

/// Looks at a half's lock that is taken, before [`try_enter`] without patience gives up.
const LOOKS: u32 = 200;
/// How long [`try_enter`] with patience waits: once, until a dead owner is asked for.
const TURN_NS: u64 = 5_000_000;

/// [`enter`] for one who can come back later. `None`: not now. Only with `patience` does it sleep, and succeed a dead owner.
pub(crate) fn try_enter(word: &AtomicU32, patience: bool) -> Option<bool> {
    if patience {
        return match lock::lock_within(word, process::pid(), TURN_NS) {
            Acquired::Clean => Some(false),
            Acquired::TakenOver => Some(true),
            Acquired::Overdue => None,
        };
    }
    for _ in 0..LOOKS {
        if lock::try_lock(word, process::pid()) {
            return Some(false);
        }
        core::hint::spin_loop();
    }
    None
}

/// Moves a connection to the kernel lane in both directions, for good. Answers with the bytes that
/// are left unread in the inbound ring: calls of the library still deliver them first.
///
/// For readers that go on through the library. Where a reader follows that does not know of us, see
/// [`crate::migration::handover::leave`].
pub(crate) fn leave(conn: &Conn, fd: i32, reason: Reason) -> u64 {
    if !begin(conn, reason) {
        return 0;
    }
    leave_outbound(conn, reason);
    leave_inbound(conn, fd, |sink, _, half| receive::settle(fd, sink, half)).unwrap_or(0)
}

/// Pins the connection and gives up a meeting. True when it is attached: both halves must leave.
pub(crate) fn begin(conn: &Conn, reason: Reason) -> bool {
    conn.pin_to_kernel(reason);
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
    if !matches!(conn.stage(), Stage::Young | Stage::Meeting) {
        return false;
    }
    if !process::is_ours() {
        // A meeting's descriptors are the parent's to close: its next step sees that the connection is pinned.
        conn.change_stage(Stage::Young, Stage::Kernel);
        return conn.stage() != Stage::Attached;
    }
    // The stage first: a step that another thread is at does not attach any more.
    let is_off = conn.change_stage(Stage::Young, Stage::Kernel)
        || conn.change_stage(Stage::Meeting, Stage::Kernel);
    if is_off {
        // Pairs with `promote::step`: where that thread has the lock, it looks at the stage behind it, and abandons.
        fence(Ordering::SeqCst);
        conn.abandon_meeting(Stage::Kernel);
    }
    is_off
}

/// The sending half: local and immediate, unless the consumer must catch up first (L2). False then: later
/// sends of the library try again.
fn leave_outbound(conn: &Conn, reason: Reason) -> bool {
    send::with_source(conn, |source, _, _, half| Ok(send::leave_sdp(conn, source, half, reason)))
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
        sdp_sys::time::nap(CATCH_UP_NAP_NS);
    }
    true
}

/// The receiving half: tells the producer, and ends its section where the ring ends now (L10). `rest`
/// runs before the gate is given back: until then the producer sends nothing, on no lane. Counted as
/// demoted when it has followed, which unread ring bytes delay.
pub(crate) fn leave_inbound<R>(
    conn: &Conn,
    fd: i32,
    rest: impl FnOnce(&mut SinkState, &Row, AnyHalf<'_>) -> R,
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

/// Whether another process than this one uses the lanes of this end ([`join`]), unless that is gone.
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
    conn.flags.fetch_and(!(flag::PEER_HAS_BELL | flag::RELATIVE_INSIDE), Ordering::SeqCst);
    false
}

/// Before a data call on the lanes. Where another process uses them (R5), from now on both do, in turn, under
/// the halves' locks.
#[inline]
pub(crate) fn join(conn: &Conn, fd: i32) {
    let is_joined = conn.row().is_none_or(|row| {
        let user = row.user.load(Ordering::Acquire);
        user == process::pid()
            || user == 0
            || row.flags.load(Ordering::Acquire) & row_flag::SEVERAL != 0
    });
    if !is_joined && is_used_by_another(conn) {
        share(conn, fd);
    }
}

/// Not where somebody waits for the connection in epoll sets, which are armed once for many waits and cannot know
/// that a relative was woken in their place: it goes on on the kernel lane.
#[cold]
fn share(conn: &Conn, fd: i32) {
    let Some(row) = conn.row() else { return };
    if conn.has(flag::PINNED) {
        return;
    }
    let is_in_set = || row.flags.load(Ordering::SeqCst) & row_flag::IN_SET != 0;
    if !conn.has(flag::UNCERTAIN | flag::RELATIVE_INSIDE) && !is_in_set() {
        row.flags.fetch_or(row_flag::SEVERAL, Ordering::SeqCst);
        if !is_in_set() {
            return;
        }
    }
    leave(conn, fd, Reason::Shared);
}

/// The connection is in an epoll set now: no longer one whose lanes several processes use.
pub(crate) fn entered_set(conn: &Conn, fd: i32) {
    let Some(row) = conn.row() else { return };
    if row.flags.load(Ordering::Relaxed) & row_flag::IN_SET == 0 {
        row.flags.fetch_or(row_flag::IN_SET, Ordering::SeqCst);
    }
    if conn.is_used_by_several() && !conn.has(flag::PINNED) {
        leave(conn, fd, Reason::Shared);
    }
}

/// Whether a relative may have the connection open, as far as family memory tells, without asking the kernel.
pub(crate) fn may_relatives_hold(conn: &Conn) -> bool {
    process::has_relatives()
        && conn
            .row_index()
            .zip(process::family())
            .is_none_or(|(row, (family, slot))| family.may_be_held_by_others(slot, row))
}

/// How long a call may sleep on this connection before it looks again, because a relative that uses it too may
/// take the bell that was to wake the call (O4). `None`: there is no such relative. `wakes`: how often in a row it has
/// woken up with nothing moving: who sleeps beside a busy relative looks again soon, in case that is at work on what it
/// got while more comes.
pub(crate) fn nap_beside_relatives(conn: &Conn, wakes: u32) -> Option<u64> {
    if !process::has_relatives() {
        return None;
    }
    let (row, (family, slot)) = conn.row_index().zip(process::family())?;
    // Asked of the kernel only by who has slept for nothing.
    let is_held = family.may_be_held_by_others(slot, row)
        && (wakes == 0 || family.is_held_by_others(slot, row));
    if !is_held {
        if conn.is_used_by_several() && !is_used_by_another(conn) {
            conn.row()?.flags.fetch_and(!row_flag::SEVERAL, Ordering::SeqCst);
        }
        return None;
    }
    Some(match conn.is_used_by_several() {
        true => (SHARED_SLEEP_NS << wakes.min(16)).min(wait::BOUNDED_SLEEP_NS),
        false => LONELY_SLEEP_NS,
    })
}

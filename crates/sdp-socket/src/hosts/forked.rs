//! A guarded stream that a fork has copied, and which process goes on with it.
//!
//! The queue pair stays the parent's. The state of both halves is private memory, of which a child
//! has a copy as it was at the fork. So only one of them may go on with it: the first that uses the
//! connection.
//!
//! * **The parent** goes on as before. A child that uses the connection later asks for it; the parent hands it back to
//!   TCP in its next call on it ([`super::hand_back`]), or when it closes it.
//! * **A child** ends the queue pair for the stream, by the marker DEAD, and hands it back to TCP.
//!   Messages unread in receive buffers are the same memory in both processes; the parent does not
//!   touch them meanwhile. Where the other end does not answer, a
//!   relay takes the carrier's place in this child, and the stream is lost to all other processes.
//!
//! A peer that has not proven itself cannot be asked: it may not even know that it was met, when the
//! queue pair died before the answer came. Then the child goes on by the carrier, and looks for the
//! PROOF, for which it hands the stream back. When it has gone the parent goes on in the same way.
//!
//! From then on the connection is plain in all processes. They agree by a word in the connection's row of family memory:
//! a state, and the number of the fork. A copy of an earlier fork is stale: it may only ask. The decision is [`step::step`].

#[cfg(test)]
mod model;
mod step;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;
use sdp_fabric_verbs::endpoint::RingRx;
use sdp_rdma::fabric::{QpError, ReceiveQueue, Received, Scatter};
use sdp_remote::Outbound;
use sdp_shm::family::Row;
use sdp_stats::Reason;
use sdp_sys::{fd, time::monotonic_ns, tls};

use super::{
    ending, is_guarded, leaving,
    pair::{self, Pair, Receiving, Sending},
    zcopy,
};
use crate::{
    conn::{self, Conn, Holders, Limits, carrier},
    process,
};

pub(super) use step::Use;
use step::{
    ASKED, Answer, COPY_HAS_IT, COPY_LEAVES, LOST, OWNER_HAS_IT, PLAIN, UNCLAIMED, Who, fork_of,
    word,
};

/// How long one waits for another process, and how long apart it looks.
const PATIENCE_NS: u64 = 12_000_000_000;
const SLEEP_NS: i64 = 500_000;
/// How long apart a process that sleeps looks whether another one wants the stream with which it goes on.
const ASKED_NS: u64 = 50_000_000;
/// When the kernel is asked next whether processes that have streams of this one live.
static ASKS_KERNEL_NS: AtomicU64 = AtomicU64::new(0);
/// When this process has claimed a stream last, in monotonic nanoseconds; 0: never.
static CLAIMED_NS: AtomicU64 = AtomicU64::new(0);
/// Room for markers, in bytes.
const MARKERS: u64 = 1024;
/// How long behind a fork a close gives the child to use the connection first.
const CHILD_NS: u64 = 100_000_000;

/// Before each use of a guarded connection: claims it for this process, if a fork has copied it. A call may wait for
/// another process, or hand the stream back. False: not now, or, where `what` is a call, never: it answers
/// ECONNRESET.
#[inline]
pub(super) fn claim(conn: &Conn, pair: &Pair, what: Use) -> bool {
    !pair.is_forked.load(Ordering::Relaxed) || pair.is_plain() || claim_of_fork(conn, pair, what)
}

#[cold]
fn claim_of_fork(conn: &Conn, pair: &Pair, what: Use) -> bool {
    let may_wait = what.may_wait();
    if conn.has(Limits::Hostile) {
        return false;
    }
    let Some(row) = conn.row() else { return lost(conn) };
    let end = match pair.leave_by.load(Ordering::Relaxed) {
        0 => monotonic_ns() + PATIENCE_NS,
        // As long as those that are handed back with it.
        asked => asked + PATIENCE_NS - leaving::LEAVE_NS,
    };
    loop {
        // Before the word, which a fork of another thread changes first: a claim as of an earlier
        // fork is none.
        let fork = pair.fork.load(Ordering::Acquire);
        let seen = row.claim.load(Ordering::Acquire);
        let who = Who {
            is_copy: pair.is_copy(),
            is_claimed: pair.is_claimed(),
            is_current: fork_of(seen) == fork,
        };
        let (to, answer) = step::step(seen, who, what);
        let is_mine = answer != Answer::MineIfLeft || is_left(conn, pair);
        let change = || row.claim.compare_exchange(seen, to, Ordering::AcqRel, Ordering::Relaxed);
        match answer {
            _ if !is_mine || to != seen && change().is_err() => {}
            Answer::Plain => {
                // By another process. The rest of the queue pair goes with the next slow step.
                pair.become_plain();
                return true;
            }
            Answer::Lost => return lost(conn),
            Answer::Mine | Answer::MineIfLeft => {
                pair.claimed_at(fork);
                if to != seen && !who.is_copy && answer == Answer::Mine {
                    CLAIMED_NS.store(monotonic_ns(), Ordering::Relaxed);
                }
                return true;
            }
            Answer::MineAsked => {
                pair.claimed_at(fork);
                let fd = conn::number_of(conn).filter(|_| may_wait);
                let is_leaving = pair.is_leaving.load(Ordering::Acquire);
                return !fd.is_some_and(|fd| is_leaving || may_hand(conn, pair, fd))
                    || leave_for_all(conn, pair, row, fd);
            }
            Answer::HandBack => {
                pair.claimed_at(fork);
                return leave_for_all(conn, pair, row, conn::number_of(conn));
            }
            Answer::Later => {}
        }
        if !may_wait {
            return false;
        }
        if monotonic_ns() >= end {
            return lost(conn);
        }
        sdp_sys::time::sleep(SLEEP_NS);
    }
}

/// Whether a copy that went on by the carrier has gone, and left the stream to this process, which has the queue pair: as
/// far as can be known the peer has never met, so that only payload is on the carrier.
#[cold]
#[inline(never)]
fn is_left(conn: &Conn, pair: &Pair) -> bool {
    let (Some(row), Some((family, slot))) = (conn.row_index(), process::family()) else {
        return false;
    };
    if conn.has(Holders::Uncertain) || family.is_held_by_others(slot, row) {
        return false;
    }
    let is_read = |Receiving { inbound, .. }: &mut Receiving| {
        inbound.as_ref().is_some_and(|inbound| !inbound.is_on_sdp() && inbound.may_destroy())
    };
    let forgoes = |Sending { outbound, .. }: &mut Sending, _: &mut [u8]| {
        outbound.as_mut().is_some_and(Outbound::forgo_proof)
    };
    let is_left =
        pair.receiving(conn, is_read) == Some(true) && pair.sending(conn, forgoes) == Some(true);
    if is_left {
        pair.attempt_no_more();
    }
    is_left
}

/// Hands the stream back to TCP for all processes that have the connection. True also where a copy
/// goes on with it until that can be done.
fn leave_for_all(conn: &Conn, pair: &Pair, row: &Row, fd: Option<c_int>) -> bool {
    if fd.is_some_and(|fd| stays(conn, pair, row, fd)) {
        return true;
    }
    let leave = |fd| leaving::hand_back_ours(conn, pair, fd, Reason::Shared, false, true);
    let is_out = fd.is_some_and(|fd| leave(fd) == leaving::Handed::Back);
    set(row, if is_out { PLAIN } else { LOST });
    is_out
}

/// Whether the stream of a copy that is this process's to hand cannot be handed back yet: it goes on by the carrier.
#[cold]
#[inline(never)]
fn stays(conn: &Conn, pair: &Pair, row: &Row, fd: c_int) -> bool {
    // A peer that has ended its stream, with bytes unread, cannot take them back. Where all is on the carrier it need not.
    let may_leave = || leaving::copy_may_leave(conn, pair, fd);
    let is_unread = || carrier::is_over(fd) && carrier::queued(fd).is_ok_and(|unread| unread > 0);
    let is_whole = || is_unread() && leaving::is_on_carrier(conn, pair);
    // One that has ended its own direction meanwhile can ask for nothing more.
    let has_ended = || {
        row.claim.load(Ordering::Acquire) as u32 == COPY_HAS_IT
            && pair.is_claimed()
            && carrier::has_sent_end(fd)
    };
    if !pair.is_copy() || may_leave() && !is_whole() && !has_ended() {
        return false;
    }
    set(row, COPY_HAS_IT);
    true
}

/// Before a call on a fork's copy: whether it is to be handed back first. False: that cannot be done, or not yet.
#[cold]
fn leaves_first(conn: &Conn, pair: &Pair) -> bool {
    let (Some(row), Some(fd)) = (conn.row(), conn::number_of(conn)) else { return true };
    claim(conn, pair, Use::Leave) && !pair.is_plain() && !stays(conn, pair, row, fd)
}

/// Whether a fork made this process a copy of a guarded stream.
pub(crate) fn is_copy(conn: &Conn) -> bool {
    is_guarded(conn) && pair::of(conn).is_some_and(|(_, pair)| pair.is_copy())
}

/// [`is_copy`], of a stream that may have to be handed back; or a relay for the stream is being made.
pub(crate) fn is_unsettled(conn: &Conn) -> bool {
    let is_unsettled =
        |pair: &Pair| pair.is_copy() && !pair.is_plain() || pair.is_relayed.load(Ordering::Acquire);
    is_guarded(conn)
        && !conn.has(Limits::Hostile)
        && pair::of(conn).is_some_and(|(_, pair)| is_unsettled(pair))
}

/// Whether the next call on a copy hands it back first. May wait for another process that does.
pub(crate) fn is_to_hand(conn: &Conn) -> bool {
    is_copy(conn)
        && is_unsettled(conn)
        && pair::of(conn).is_some_and(|(_, pair)| leaves_first(conn, pair))
}

/// The right to hand a fork's copy back, which one thread has at a time.
pub(crate) struct HandBackPermit(Option<&'static Pair>);

impl HandBackPermit {
    /// `None`: another thread has it, or makes a relay, and the caller should not use the connection meanwhile: a relay
    /// takes the place of one that no other thread uses.
    pub(crate) fn take(conn: &Conn) -> Option<Self> {
        let (_, pair) = pair::of(conn)?;
        if pair.is_relayed.load(Ordering::Acquire) {
            return None;
        }
        let own = tls::thread_id() as u32;
        match pair.handing.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Some(Self(Some(pair))),
            // In a handler of the program, which has interrupted that.
            Err(holder) => (holder == own).then_some(Self(None)),
        }
    }
}

impl Drop for HandBackPermit {
    fn drop(&mut self) {
        if let Some(pair) = self.0 {
            pair.handing.store(0, Ordering::Release);
        }
    }
}

/// Changes the state, whatever forks do to the word meanwhile.
fn set(row: &Row, state: u32) {
    let change = |seen| Some(word(fork_of(seen), state));
    let _ = row.claim.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
}

/// To this process alone.
fn lost(conn: &Conn) -> bool {
    conn.set(Limits::Hostile);
    false
}

/// This process is about to close its last descriptor. True: others may go on with the connection, which has been seen
/// to; the kernel's close is all that is left.
pub(super) fn closes_for_others(conn: &Conn, fd: c_int) -> bool {
    let Some((_, pair)) = pair::of(conn) else { return false };
    if !pair.is_forked.load(Ordering::Relaxed) {
        return false;
    }
    if pair.is_copy() || pair.is_plain() {
        return true;
    }
    let Some(row) = conn.row() else { return false };
    if matches!(row.claim.load(Ordering::Acquire) as u32, PLAIN | LOST | COPY_HAS_IT) {
        return true;
    }
    let (Some(index), Some((family, slot))) = (conn.row_index(), process::family()) else {
        return false;
    };
    if !conn.has(Holders::Uncertain) && !family.is_held_by_others(slot, index) {
        return false;
    }
    // A child that uses it does better: where the other end does not answer, a relay can be had.
    let forked = FORKED_NS.load(Ordering::Relaxed);
    let state = || row.claim.load(Ordering::Acquire) as u32;
    while match state() {
        UNCLAIMED => monotonic_ns() < forked + CHILD_NS,
        COPY_LEAVES => monotonic_ns() < forked + PATIENCE_NS,
        _ => false,
    } {
        sdp_sys::time::sleep(SLEEP_NS);
    }
    if state() == COPY_HAS_IT {
        return true;
    }
    // A copy that is being handed back lies in this process's receive buffers until that is done. Without the right to it
    // another process goes on with the carrier, or its relay.
    if !claim(conn, pair, Use::Call) {
        return true;
    }
    if pair.is_plain() {
        return true;
    }
    // An end that has ended its stream cannot answer, and need not where nothing of it is unread. Else no process goes on
    // with this one.
    let is_read = || !carrier::is_dead(fd) && matches!(super::look(conn), Some(super::Found::End));
    if carrier::is_over(fd) && !is_read() {
        let is_whole = super::finish(conn, fd, true);
        tell(conn, pair, false);
        return is_whole;
    }
    leave_for_all(conn, pair, row, Some(fd))
}

/// Whether a stream that another process wants can be handed back now. An end that has ended its own stream can ask for
/// nothing, and one whose peer has ended, with bytes unread, has no answer to expect: it reads them first.
fn may_hand(conn: &Conn, pair: &Pair, fd: c_int) -> bool {
    let is_unread = || !matches!(super::look(conn), Some(super::Found::End));
    let is_over = carrier::is_over(fd);
    leaving::may_leave(conn, pair)
        && (!is_over && !carrier::has_sent_end(fd) || is_over && !is_unread())
}

/// How long a thread of the process that goes on with a stream may sleep before it looks whether another one wants it: that
/// has no means to wake it. `None`: no other process has it, or those need not ask.
pub(super) fn sleep_bound(conn: &Conn, pair: &Pair) -> Option<u64> {
    if !pair.is_forked.load(Ordering::Relaxed) || pair.is_copy() || pair.is_plain() {
        return None;
    }
    let state = conn.row()?.claim.load(Ordering::Acquire) as u32;
    let (row, (family, slot)) = conn.row_index().zip(process::family())?;
    if !matches!(state, OWNER_HAS_IT | ASKED) || !family.may_be_held_by_others(slot, row) {
        return None;
    }
    // Those that were killed may count, until the kernel is asked.
    let now = monotonic_ns();
    let is_time = now >= ASKS_KERNEL_NS.load(Ordering::Relaxed);
    if is_time {
        ASKS_KERNEL_NS.store(now + 20 * ASKED_NS, Ordering::Relaxed);
    }
    (!is_time || family.is_held_by_others(slot, row)).then_some(ASKED_NS)
}

/// How long a wait for several descriptors may sleep that has asked [`super::between_waits`] before it has looked at what it
/// waits for, which claims streams.
pub(crate) fn wait_bound(due: Option<u64>) -> Option<u64> {
    let claimed = CLAIMED_NS.load(Ordering::Relaxed);
    let has_claimed = claimed != 0 && monotonic_ns() < claimed + ASKED_NS;
    due.into_iter().chain(has_claimed.then_some(ASKED_NS)).min()
}

/// The program has read the end of the stream, and may call no more: a stream that another process has, too, is handed back
/// now, where that takes no time: the other end has ended it, and need not answer.
#[cold]
pub(super) fn hand_back_at_end(conn: &Conn, pair: &Pair) {
    let has_room = |fd| {
        let unsent = leaving::unacknowledged(conn, pair).unwrap_or(u64::MAX);
        let room = carrier::send_memory(fd) / 2;
        fd::unsent(fd) == Ok(0) && unsent < room.saturating_sub(MARKERS)
    };
    if sleep_bound(conn, pair).is_some()
        && !pair.is_shut.load(Ordering::Acquire)
        && claim(conn, pair, Use::Look)
        && pair.is_claimed()
        && let Some(fd) = conn::number_of(conn)
        && carrier::is_over(fd)
        && may_hand(conn, pair, fd)
        && has_room(fd)
        && let Some(row) = conn.row()
    {
        leave_for_all(conn, pair, row, Some(fd));
    }
}

/// Beside a wait for several descriptors: hands the stream back if another process wants it, by a step that does not wait.
pub(super) fn hand_back_if_asked(conn: &Conn, pair: &Pair) {
    if !pair.is_forked.load(Ordering::Relaxed) || pair.is_copy() || pair.is_plain() {
        return;
    }
    let (Some(row), Some(fd)) = (conn.row(), conn::number_of(conn)) else { return };
    match row.claim.load(Ordering::Acquire) as u32 {
        ASKED if pair.is_leaving.load(Ordering::Acquire) => {
            if let Some(is_out) = leaving::step(conn, pair, fd) {
                set(row, if is_out { PLAIN } else { LOST });
            }
        }
        ASKED if may_hand(conn, pair, fd) => {
            if carrier::is_over(fd) {
                claim(conn, pair, Use::Call);
            } else {
                leaving::ask_number(fd);
            }
        }
        // The process that goes on with it cannot tell the other end to send to it.
        LOST => {
            if let Some((number, _)) = pair::of(conn).filter(|_| pair.queue().is_some()) {
                ending::cut(number, pair);
            }
        }
        _ => {}
    }
}

/// The stream was handed back for another reason: tells the other process that has the connection.
pub(super) fn tell(conn: &Conn, pair: &Pair, is_out: bool) {
    if pair.is_forked.load(Ordering::Relaxed)
        && let Some(row) = conn.row()
    {
        set(row, if is_out { PLAIN } else { LOST });
    }
}

/// This process has copies of guarded streams.
static HAS_COPIES: AtomicBool = AtomicBool::new(false);

/// Whether there may be copies that are not handed back. A load.
#[inline]
pub(crate) fn has_copies() -> bool {
    HAS_COPIES.load(Ordering::Relaxed)
}

/// When this process has forked last, in nanoseconds.
static FORKED_NS: AtomicU64 = AtomicU64::new(0);

/// Before a fork: no thread is in the middle of a half, and the copies have no owner.
pub(super) fn prepare() {
    FORKED_NS.store(monotonic_ns(), Ordering::Relaxed);
    for (_, pair) in pair::all() {
        // Where that fails, the lock of the half does.
        let _ = zcopy::await_end(pair);
        if !pair.lock_both() {
            continue;
        }
        pair.is_held.store(true, Ordering::Release);
        let Some(conn) = pair.conn().filter(|conn| is_guarded(conn)) else { continue };
        if pair.is_copy() || pair.is_plain() {
            continue;
        }
        let Some(row) = conn.row() else { continue };
        let fork = pair.fork.load(Ordering::Relaxed).wrapping_add(1);
        pair.is_forked.store(true, Ordering::Relaxed);
        // A thread that is leaving goes on with that.
        let is_leaving = pair.is_leaving.load(Ordering::Acquire);
        let next = |seen: u64| Some(step::at_fork(seen, fork, is_leaving));
        let _ = row.claim.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        // Behind the word: a thread that reads this number sees the word of this fork.
        pair.fork.store(fork, Ordering::Release);
        if is_leaving {
            pair.claimed_at(fork);
        }
    }
}

/// After it, in the parent.
pub(super) fn parent() {
    pair::all()
        .filter(|(_, pair)| pair.is_held.swap(false, Ordering::AcqRel))
        .for_each(|(_, pair)| pair.unlock_both());
}

/// After it, in the child. Copies of halves that another thread may have been in the middle of are
/// worth nothing.
pub(super) fn child() {
    for (_, pair) in pair::all() {
        let was_held = pair.is_held.swap(false, Ordering::AcqRel);
        pair.handing.store(0, Ordering::Relaxed);
        pair.is_relayed.store(false, Ordering::Relaxed);
        if ending::forget_later(pair) {
            pair.unlock_both();
            continue;
        }
        let Some(conn) = pair.conn() else { continue };
        if is_guarded(conn) {
            if !was_held {
                lost(conn);
            }
            // SAFETY: this is the only thread of a process that has just begun.
            unsafe { pair.become_copy() };
            HAS_COPIES.store(true, Ordering::Relaxed);
        } else {
            pair.release();
        }
        pair.unlock_both();
    }
}

/// Receive buffers of the parent, of which a child reads the messages that it had taken by the
/// fork.
pub(super) struct Copied<'a>(pub(super) &'a RingRx);

impl ReceiveQueue for Copied<'_> {
    fn posted(&self) -> u16 {
        0
    }

    fn poll_receive(&mut self) -> Result<Option<Received>, QpError> {
        Ok(None)
    }

    fn copy_header(&self, _: Received, _: &mut [u8]) -> usize {
        0
    }

    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter) {
        self.0.copy_out(message, offset, len, sink);
    }

    fn release(&mut self, _: Received) {}
}

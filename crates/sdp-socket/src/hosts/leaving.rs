//! Out of the guard: the stream is handed back to the carrier for a reader that knows the kernel's
//! stream alone (G8), at this end or at the other.

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_fabric_verbs::endpoint::{RingRx, RingTx};
use sdp_remote::{
    Inbound, LeaveError, Leaving, Outbound, ReceiveContext, RecvError, SendError, Wait,
};
use sdp_stats::{Direction, Fabric, Reason, trace::Kind};
use sdp_sys::{
    errno::Errno,
    fd,
    memory::Zeros,
    section,
    time::{self, monotonic_ns},
};

use super::{
    Found, IN_USE,
    carrier_io::Socket,
    ending,
    forked::{self, Copied, Use},
    is_guarded, let_go, look,
    pair::{self, Pair, Receiving, Sending},
    reset_for, tend,
};
use crate::{
    conn::{self, Conn, ConnGuard, Half, Limits, carrier, publish},
    process::table::{self, Entry},
};

/// How long an end that leaves waits for the other end, and how long apart it looks.
pub(super) const LEAVE_NS: u64 = 10_000_000_000;
/// The same where a relay may take the carrier's place.
const RELAY_NS: u64 = 2_000_000_000;
const LEAVE_SLEEP_NS: u64 = 1_000_000;
/// The longest sleep of one that waits for bytes that are on their way back.
const BYTES_SLEEP_NS: i64 = 100_000_000;

/// Whether a connection that had met is plain TCP again, for good (G8).
pub(super) fn is_plain(conn: &Conn) -> bool {
    pair::of(conn).is_some_and(|(_, pair)| pair.is_plain())
}

/// How the stream of a guarded connection was handed back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handed {
    /// The carrier is plain TCP, with all that is unread.
    Back,
    /// It is lost, and was reset.
    Lost,
    /// The other end has not answered, or cannot: [`super::Reader::new`], or once more without a relay.
    Unanswered,
}

/// Before a reader that knows the kernel's stream alone gets the connection: it becomes plain TCP,
/// with all unread bytes (G8). Waits 10 s at most; 2 s where a relay may take the carrier's place.
/// `goes_on`: this process reads on. Slow.
pub(crate) fn hand_back(
    conn: &Conn,
    fd: c_int,
    reason: Reason,
    may_relay: bool,
    goes_on: bool,
) -> Handed {
    conn.fall_back(reason);
    if let_go(conn, reason) {
        return Handed::Back;
    }
    if conn.has(Limits::Hostile) {
        return Handed::Lost;
    }
    let Some((_, pair)) = pair::of(conn) else { return Handed::Lost };
    if !forked::claim(conn, pair, Use::Leave) {
        return Handed::Lost;
    }
    if is_plain(conn) {
        return Handed::Back;
    }
    publish::record(conn, Kind::HandOver, None, Some(reason), Some(Fabric::Verbs));
    let handed = hand_back_ours(conn, pair, fd, reason, may_relay, goes_on);
    if handed != Handed::Unanswered {
        forked::tell(conn, pair, handed == Handed::Back);
    }
    handed
}

/// Before several connections are handed back, one after the other: the other end of each that `goes` names is asked, so
/// that all are waited for at the same time. [`hand_back`] follows for each. Slow.
pub(crate) fn ask_all(goes: impl Fn(&Conn, c_int) -> bool) {
    if !IN_USE.load(Ordering::Relaxed) {
        return;
    }
    table::walk(|fd, entry| {
        if matches!(entry, Entry::Conn(_)) {
            ask_if(fd, &goes);
        }
    });
}

/// The same for one number, which is about to be passed on.
pub(crate) fn ask_number(fd: c_int) {
    ask_if(fd, |_, _| true);
}

fn ask_if(fd: c_int, goes: impl Fn(&Conn, c_int) -> bool) {
    let _section = section::Guard::enter();
    if let Some(conn) = ConnGuard::new(fd, Half::Receive)
        && is_guarded(&conn)
        && goes(&conn, fd)
    {
        ask(&conn, fd);
    }
}

/// One that cannot be asked at once is asked while others are waited for. All have the same time.
fn ask(conn: &Conn, fd: c_int) {
    let Some((number, pair)) = pair::of(conn) else { return };
    let now = monotonic_ns();
    if pair.leave_by.load(Ordering::Relaxed) <= now {
        pair.leave_by.store(now + LEAVE_NS, Ordering::Relaxed);
    }
    if conn.has(Limits::Hostile)
        || pair.is_leaving.load(Ordering::Acquire)
        // Perhaps nothing of a stream that has ended is unread: then nothing is asked.
        || carrier::is_over(fd)
        || !forked::claim(conn, pair, Use::Ask)
        || pair.is_plain()
        || !may_leave(conn, pair)
        || mark_leaving(conn, pair) != Some(true)
    {
        return;
    }
    if !pair.is_copy() {
        ending::stop_sending(number, pair);
    } else if lose_link(conn, pair).is_none() {
        return;
    }
    let _ = continue_leaving(conn, pair, fd);
}

/// Those are asked that could not be before.
fn ask_others() {
    let now = monotonic_ns();
    for (_, pair) in pair::all() {
        if pair.leave_by.load(Ordering::Relaxed) > now
            && !pair.is_leaving.load(Ordering::Acquire)
            && let Some(conn) = pair.conn()
            && let Some(fd) = conn::number_of(conn)
        {
            look(conn);
            tend(conn, pair);
            ask_if(fd, |_, _| true);
        }
    }
}

/// In a fork's copy: the queue pair is the parent's, and dead for this stream.
fn lose_link(conn: &Conn, pair: &Pair) -> Option<()> {
    let dies = |sending: &mut Sending, _: &mut [u8]| {
        let outbound = sending.outbound.as_mut()?;
        outbound.link_died(&pair.shared);
        Some(())
    };
    pair.sending(conn, dies).flatten()
}

/// From here on a fork leaves it as it is: under a lock. False: there was a fork since it was claimed.
fn mark_leaving(conn: &Conn, pair: &Pair) -> Option<bool> {
    pair.receiving(conn, |_| {
        let is_ours = pair.is_claimed();
        pair.is_leaving.store(is_ours, Ordering::Release);
        is_ours
    })
}

/// [`hand_back`] of a guarded stream that is this process's to hand.
pub(super) fn hand_back_ours(
    conn: &Conn,
    pair: &Pair,
    fd: c_int,
    reason: Reason,
    may_relay: bool,
    goes_on: bool,
) -> Handed {
    let asked = match pair.leave_by.swap(0, Ordering::Relaxed) {
        0 => monotonic_ns(),
        end => end - LEAVE_NS,
    };
    let end = asked + if may_relay { RELAY_NS } else { LEAVE_NS };
    loop {
        match mark_leaving(conn, pair) {
            Some(true) => break,
            // There was a fork since it was claimed. Not as a call, which would hand it back.
            Some(false) if forked::claim(conn, pair, Use::Look) => {}
            // The child of that fork is handing its copy back.
            Some(false) if !conn.has(Limits::Hostile) && monotonic_ns() < end => {
                time::sleep(LEAVE_SLEEP_NS as i64);
            }
            _ => return Handed::Lost,
        }
    }
    if pair.is_plain() {
        pair.is_leaving.store(false, Ordering::Release);
        return Handed::Back;
    }
    // One that has ended its stream could not answer: where bytes of it are unread it is not asked. Nor does an end ask that
    // has ended its own.
    let is_unread = || carrier::is_over(fd) && matches!(look(conn), Some(Found::Bytes(_)));
    let cannot_answer = may_relay && (carrier::has_sent_end(fd) || is_unread());
    let handed = if pair.is_copy() {
        match lose_link(conn, pair) {
            Some(()) if cannot_answer => Handed::Unanswered,
            Some(()) if await_proof_to_copy(conn, pair, fd, end) => {
                leave_guard(conn, pair, fd, end)
            }
            Some(()) => Handed::Unanswered,
            None => Handed::Lost,
        }
    } else {
        let is_known = cannot_answer || await_proof(conn, pair, end);
        if let Some((number, _)) = pair::of(conn).filter(|_| is_known || may_relay) {
            ending::stop_sending(number, pair);
        }
        let handed = if is_known && !cannot_answer {
            leave_guard(conn, pair, fd, end)
        } else {
            Handed::Unanswered
        };
        if let (Handed::Unanswered, Some((number, _))) = (handed, pair::of(conn)) {
            ending::cut(number, pair);
        }
        handed
    };
    if may_relay && handed == Handed::Unanswered {
        return handed; // still leaving
    }
    // Not for an image or a stranger: several connections may be handed to it, one after the other.
    if goes_on && handed == Handed::Back {
        await_bytes(conn, pair, fd, end);
    }
    if has_left(conn, pair, handed == Handed::Back, reason) { Handed::Back } else { Handed::Lost }
}

/// The way out has come to its end: the carrier is plain, or the connection is reset. Returns which.
fn has_left(conn: &Conn, pair: &Pair, is_out: bool, reason: Reason) -> bool {
    pair.is_leaving.store(false, Ordering::Release);
    if !is_out {
        reset_for(conn, Reason::HandoverStuck);
        return false;
    }
    if !pair.is_copy()
        && let Some((number, _)) = pair::of(conn)
    {
        ending::drop_link(number, pair);
    }
    note_plain(conn, reason);
    true
}

/// The next step of a stream that was asked early ([`ask_number`]) and is handed back beside waits. `Some`: it is over, and
/// whether the carrier is plain now. Never waits.
pub(super) fn step(conn: &Conn, pair: &Pair, fd: c_int) -> Option<bool> {
    let end = pair.leave_by.load(Ordering::Relaxed);
    if end == 0 {
        return None; // a call is at it
    }
    let is_out = match continue_leaving(conn, pair, fd) {
        Some(Ok(Leaving::Done)) => true,
        Some(Ok(Leaving::Waits(_))) if monotonic_ns() < end => return None,
        _ => false,
    };
    if pair.leave_by.compare_exchange(end, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return None;
    }
    if is_out {
        pair.become_plain();
    }
    Some(has_left(conn, pair, is_out, Reason::Shared))
}

/// A relay has taken the carrier's place, for this process alone.
pub(crate) fn note_relayed(conn: &Conn) {
    if let Some((_, pair)) = pair::of(conn) {
        forked::tell(conn, pair, false);
    }
    note_plain(conn, Reason::HandoverStuck);
}

/// Its stream is plain from here on.
fn note_plain(conn: &Conn, reason: Reason) {
    conn.note_reason(reason);
    for direction in [Direction::Send, Direction::Receive] {
        publish::half_demoted(conn, direction, reason);
    }
}

/// In the middle of the first meeting the peer may not know of markers: its end is awaited. True: there may be some.
fn await_proof(conn: &Conn, pair: &Pair, end: u64) -> bool {
    loop {
        look(conn);
        tend(conn, pair);
        if may_leave(conn, pair) {
            return true;
        }
        if monotonic_ns() >= end {
            return false;
        }
        ask_others();
        // Not by poll: unread payload may be there all the time.
        time::sleep(LEAVE_SLEEP_NS as i64);
    }
}

/// In a fork's copy, which has no queue pair to tend.
fn await_proof_to_copy(conn: &Conn, pair: &Pair, fd: c_int, end: u64) -> bool {
    while !copy_may_leave(conn, pair, fd) {
        if monotonic_ns() >= end {
            return false;
        }
        ask_others();
        time::sleep(LEAVE_SLEEP_NS as i64);
    }
    true
}

/// Whether the peer of a fork's copy is known to read markers. Its PROOF is looked for, and answered.
#[cold]
#[inline(never)]
pub(super) fn copy_may_leave(conn: &Conn, pair: &Pair, fd: c_int) -> bool {
    if !may_leave(conn, pair) && lose_link(conn, pair).is_some() {
        pair.receiving(conn, |Receiving { inbound, .. }| {
            pair.sending(conn, |Sending { outbound, .. }, ring| {
                let (inbound, outbound) = (inbound.as_mut()?, outbound.as_mut()?);
                let mut socket = Socket::new(conn, fd);
                let mut io = pair.context(None, &mut socket, ring);
                let mut receiving =
                    ReceiveContext { rx: None, carrier: &mut *io.carrier, shared: io.shared };
                // What either finds wrong the call finds, too.
                let _ = inbound.look::<RingRx, _>(&mut receiving);
                let _ = outbound.flush(&mut io);
                Some(())
            })
        });
    }
    may_leave(conn, pair)
}

/// Whether nothing of a fork's copy is on the queue pair: both directions go on by the carrier.
pub(super) fn is_on_carrier(conn: &Conn, pair: &Pair) -> bool {
    let is_read = |Receiving { inbound, .. }: &mut Receiving| {
        inbound.as_ref().is_some_and(Inbound::may_destroy)
    };
    lose_link(conn, pair).is_some()
        && pair.receiving(conn, is_read) == Some(true)
        && is_all_sent(conn, pair)
}

/// Whether the other end has all that was sent, or the kernel has it.
fn is_all_sent(conn: &Conn, pair: &Pair) -> bool {
    unacknowledged(conn, pair) == Some(0)
}

/// Bytes that the other end has not acknowledged, and that the kernel does not have.
pub(super) fn unacknowledged(conn: &Conn, pair: &Pair) -> Option<u64> {
    let count = |Sending { outbound, .. }: &mut Sending, _: &mut [u8]| {
        outbound.as_ref().map(|outbound| outbound.unacknowledged())
    };
    pair.sending(conn, count).flatten()
}

pub(super) fn may_leave(conn: &Conn, pair: &Pair) -> bool {
    let knows = |sending: &mut Sending, _: &mut [u8]| {
        sending.outbound.as_ref().is_some_and(|outbound| outbound.may_leave())
    };
    pair.sending(conn, knows) == Some(true)
}

/// The next steps out of the guard, as far as they go now. `None`: it is not this connection's any more.
fn continue_leaving(conn: &Conn, pair: &Pair, fd: c_int) -> Option<Result<Leaving, LeaveError>> {
    pair.receiving(conn, |Receiving { inbound, rx, copied, .. }| {
        let inbound = inbound.as_mut()?;
        if !leave_kept_alone(conn, pair)? {
            return Some(Err(LeaveError::Unable));
        }
        loop {
            let steps = pair.sending(conn, |Sending { outbound, .. }, ring| {
                if pair.is_plain() {
                    return Some(Ok(Leaving::Done));
                }
                let outbound = outbound.as_mut()?;
                let mut socket = Socket::new(conn, fd);
                let mut io = pair.context(None, &mut socket, ring);
                Some(match copied {
                    Some(rx) => {
                        sdp_remote::leave(outbound, inbound, Some(&mut Copied(rx)), &mut io)
                    }
                    None => sdp_remote::leave(outbound, inbound, rx.as_mut(), &mut io),
                })
            })??;
            if !is_full(steps) || !lengthen(conn, pair, inbound) {
                return Some(steps);
            }
        }
    })
    .flatten()
}

/// Before bytes that go back are put into the ring: from the kept bytes of a queue pair a device may still send messages,
/// which the other end takes until it has read KERNEL (G6, G8). So the ring is another one from here on. False: there is no
/// memory.
fn leave_kept_alone(conn: &Conn, pair: &Pair) -> Option<bool> {
    pair.sending(conn, |Sending { longer, .. }, ring| {
        if pair.is_copy() || pair.queue().is_none() || !pair.is_registered(ring) {
            return true;
        }
        let Some(mut room) = Zeros::private(ring.len()) else { return false };
        room.iter_mut().zip(ring.iter()).for_each(|(to, from)| *to = *from);
        *longer = Some(room);
        true
    })
}

/// Whether bytes that go back have no room in the ring.
pub(super) fn is_full(steps: Result<Leaving, LeaveError>) -> bool {
    steps == Err(LeaveError::Receive(RecvError::Carrier(libc::ENOBUFS)))
}

/// A longer ring for bytes that go back to the other end, or come back from it. False: there is none to be had, or more is
/// unread than may go back. Under the receiving half's lock.
#[cold]
#[inline(never)]
pub(super) fn lengthen(conn: &Conn, pair: &Pair, inbound: &Inbound) -> bool {
    let lengthened = pair.sending(conn, |Sending { outbound, longer, .. }, ring| {
        let (len, end) = sdp_remote::longer_ring(outbound.as_ref()?, inbound, ring.len())?;
        let mut room = Zeros::private(len)?;
        sdp_remote::copy_ring(ring, &mut room, end);
        *longer = Some(room);
        Some(())
    });
    lengthened.flatten().is_some()
}

/// LEAVE, until both halves are raw.
fn leave_guard(conn: &Conn, pair: &Pair, fd: c_int, end: u64) -> Handed {
    let mut was_ready = false;
    loop {
        match continue_leaving(conn, pair, fd) {
            Some(Ok(Leaving::Done)) => {
                pair.become_plain();
                return Handed::Back;
            }
            Some(Ok(Leaving::Waits(wait))) if monotonic_ns() < end => {
                let events = match wait {
                    Wait::Carrier => libc::POLLOUT,
                    Wait::Return => libc::POLLIN,
                    Wait::Unsegmented | Wait::Credit { .. } => 0,
                };
                ask_others();
                // A part of a marker may be there, which poll would report again and again.
                if was_ready {
                    time::sleep(LEAVE_SLEEP_NS as i64);
                } else {
                    was_ready = fd::poll_one(fd, events, Some(LEAVE_SLEEP_NS as i64)) != Ok(0);
                }
            }
            // The end of the stream, or more than can go back: a relay has room for it, and finds out.
            Some(
                Ok(Leaving::Waits(_))
                | Err(LeaveError::Receive(RecvError::Cut { .. } | RecvError::Carrier(libc::ENOBUFS))),
            ) => return Handed::Unanswered,
            // The peer has gone. What it had sent is on the carrier and in receive buffers.
            Some(Err(LeaveError::Send(SendError::Carrier(_)))) => {
                let is_read = |Receiving { inbound, .. }: &mut Receiving| {
                    inbound.as_ref().is_some_and(Inbound::is_plain)
                };
                if pair.receiving(conn, is_read) != Some(true) {
                    return Handed::Unanswered;
                }
                pair.become_plain();
                return Handed::Back;
            }
            _ => return Handed::Lost,
        }
    }
}

/// Bytes that were unread are on their way back. A call that does not wait is to find the first of them: FIONREAD or an edge
/// may have announced them. Until `end`, and 2 s, at most.
fn await_bytes(conn: &Conn, pair: &Pair, fd: c_int, end: u64) {
    let gives = |Sending { outbound, .. }: &mut Sending, _: &mut [u8]| {
        outbound.as_ref().is_some_and(Outbound::has_given_back)
    };
    if pair.sending(conn, gives) != Some(true) {
        return;
    }
    let end = end.min(monotonic_ns() + RELAY_NS);
    while matches!(fd::poll_one(fd, libc::POLLIN, Some(BYTES_SLEEP_NS)), Ok(0) | Err(Errno::EINTR))
        && monotonic_ns() < end
    {}
}

/// A moment of waiting for the peer, or for another thread that leaves. False: it was long enough,
/// or the peer has gone.
#[cold]
pub(super) fn await_return(conn: &Conn, pair: &Pair, fd: c_int, until: &mut Option<u64>) -> bool {
    let now = monotonic_ns();
    if now >= *until.get_or_insert(now + LEAVE_NS) {
        return false;
    }
    let was_held = is_held(conn, pair);
    if is_return_lost(conn, pair, fd) {
        return false;
    }
    if !was_held || is_held(conn, pair) {
        // Not by poll where payload is unread, which it would report again and again.
        let _ = fd::poll_one(fd, return_event(fd), Some(LEAVE_SLEEP_NS as i64));
    }
    true
}

/// The event that may bring the RETURN that a sender waits for: none where payload is unread, and one looks again after a
/// moment.
pub(super) fn return_event(fd: c_int) -> i16 {
    let is_unread = carrier::queued(fd).is_ok_and(|unread| unread > 0);
    if is_unread { 0 } else { libc::POLLIN }
}

/// Whether the peer has gone without the RETURN that it has to send. Looks for it.
pub(super) fn is_return_lost(conn: &Conn, pair: &Pair, fd: c_int) -> bool {
    // First: all that the peer has sent is here, then. What one look cannot see it may stand behind.
    let is_seen = || carrier::queued(fd).is_ok_and(|unread| unread <= pair::RING as u64);
    let has_all = carrier::is_over(fd) && (carrier::is_dead(fd) || is_seen());
    look(conn);
    let is_held = |Receiving { inbound, rx, .. }: &mut Receiving| {
        let inbound = inbound.as_mut()?;
        let mut socket = Socket::new(conn, fd);
        let shared = &pair.shared;
        let mut io = ReceiveContext { rx: rx.as_mut(), carrier: &mut socket, shared };
        pair.sending(conn, |sending, ring| foresee(pair, sending, inbound, &mut io, ring))?
    };
    has_all && pair.receiving(conn, is_held).flatten() == Some(true)
}

/// Whether the sending half waits for the peer's RETURN.
pub(super) fn is_held(conn: &Conn, pair: &Pair) -> bool {
    let is_held = |sending: &mut Sending, _: &mut [u8]| {
        sending.outbound.as_ref().is_some_and(|outbound| outbound.is_held())
    };
    pair.sending(conn, is_held) == Some(true)
}

/// The peer leaves: its request to the sending half is answered as far as the kernel takes it.
#[cold]
pub(super) fn answer_leave(conn: &Conn, pair: &Pair) {
    let Some(fd) = conn::number_of(conn) else { return };
    pair.try_sending(conn, |Sending { outbound, .. }, ring| {
        let is_due =
            |half: &&mut Outbound| half.is_due(None::<&RingTx>, &pair.shared) && !pair.is_plain();
        let Some(outbound) = outbound.as_mut().filter(is_due) else {
            return;
        };
        let mut socket = Socket::new(conn, fd);
        let mut io = pair.context(None, &mut socket, ring);
        // The next call writes the rest.
        let _ = outbound.flush(&mut io);
    });
}

/// Sees the RETURN for which the sending half waits, where it stands behind payload that the program has not read: under
/// the receiving half's lock.
#[cold]
pub(super) fn foresee_return(
    conn: &Conn,
    pair: &Pair,
    inbound: &mut Inbound,
    io: &mut ReceiveContext<'_, RingRx, Socket<'_>>,
) {
    pair.try_sending(conn, |sending, ring| foresee(pair, sending, inbound, io, ring));
}

/// The step of both, under both halves' locks. Whether the sending half still waits; `None`: it has nothing to wait for.
fn foresee(
    pair: &Pair,
    sending: &mut Sending,
    inbound: &mut Inbound,
    io: &mut ReceiveContext<'_, RingRx, Socket<'_>>,
    ring: &mut [u8],
) -> Option<bool> {
    let outbound = sending.outbound.as_mut().filter(|_| !pair.is_plain())?;
    // What it finds wrong the next call finds, too.
    let _ = sdp_remote::foresee_return(outbound, inbound, io, ring);
    Some(outbound.is_held())
}

/// Takes the bytes that the peer gave back, so that they can be sent again: under the receiving
/// half's lock. `Ok`: look again. Where there is no memory for them the connection is reset: they would stay before the
/// rest of the stream, and the carrier readable.
pub(super) fn take_return(
    conn: &Conn,
    pair: &Pair,
    inbound: &mut Inbound,
    fd: c_int,
) -> Result<(), RecvError> {
    const LOST: Result<(), RecvError> = Err(RecvError::Carrier(libc::ECONNRESET));
    loop {
        let taken = pair.sending(conn, |Sending { outbound, .. }, ring| {
            let mut socket = Socket::new(conn, fd);
            let outbound = outbound.as_mut()?;
            Some(sdp_remote::take_return(outbound, inbound, &mut socket, &pair.shared, ring))
        });
        match taken.flatten() {
            Some(Err(RecvError::Carrier(libc::ENOBUFS))) => {
                if !lengthen(conn, pair, inbound) {
                    reset_for(conn, Reason::HandoverStuck);
                    return LOST;
                }
            }
            taken => return taken.unwrap_or(LOST),
        }
    }
}

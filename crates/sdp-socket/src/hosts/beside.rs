//! Work for a connection that is done beside calls on it, and beside waits for several descriptors.

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_remote::{Carried, SendError, Speech, Wait};
use sdp_shm::early;
use sdp_sys::time::monotonic_ns;

use super::{
    IN_USE,
    carrier_io::Socket,
    device, ending, forked,
    forked::{Use, is_copy},
    gather, is_guarded, look, pace, pair,
    pair::{Pair, Sending},
    reset,
    show::note_lane,
};
use crate::{
    conn::{self, Conn, ConnGuard, Half, Waiters, carrier},
    datapath::wait,
    process,
};

/// Between two looks of a call: messages that are due to the other end are sent, attempts go on.
/// When to come again at the latest, in monotonic nanoseconds. Slow.
pub(super) fn look_around(conn: &Conn) -> Option<u64> {
    let (number, pair) = pair::of(conn)?;
    let fd = conn::number_of(conn)?;
    if pair.is_plain() {
        if !pair.is_copy() && pair.queue().is_some() && device::may_be_slow() {
            ending::drop_link(number, pair);
        }
        return None;
    }
    // One that goes on by the carrier has its parent's place at the device.
    if is_copy(conn) {
        return None;
    }
    if !pair.shared.is_up() || pair.shared.is_link_dead() || !crate::wake::strangers::has_device() {
        device::approach(conn, number, pair, fd);
    }
    // A connection that has not met has nothing to send beside.
    if !is_guarded(conn) {
        let next = pace::next_try(pair).filter(|_| device::may_be_slow());
        // Another thread may be at the device.
        return next.map(|at| at.max(monotonic_ns() + wait::MORE_SLEEP_NS));
    }
    tend_beside(conn, pair)
}

/// [`tend`], beside a call or a wait of the program.
///
/// A peer that has closed answers anything on the carrier with a reset, which would take its last
/// bytes, or its end, away from a reader. Behind the end of a queue pair, and behind a FIN that comes
/// before it is proven, it hears nothing more until the program has read the end, or calls to send or
/// to close, or the peer is known to stay (G10).
fn tend_beside(conn: &Conn, pair: &Pair) -> Option<u64> {
    if !pair.shared.is_up() || pair.shared.is_link_dead() {
        // Before a PROOF or DEAD is written: has the peer parted?
        device::progress_if_ready();
    }
    // Another thread may be at the manager's events, and the peer's end be known to the kernel alone.
    let is_over = || conn::number_of(conn).is_some_and(carrier::is_over);
    let has_parted = pair.shared.is_link_dead() || !pair.shared.has_link();
    let may_have_closed = has_parted || !pair.shared.is_up() && is_over();
    if !may_have_closed || pair.has_ended.load(Ordering::Acquire) {
        return tend(conn, pair);
    }
    // DEAD of a peer that stays may stand on the carrier, which a program that does not read leaves there.
    look(conn);
    match may_speak(conn, pair)? {
        Speech::Free => tend(conn, pair),
        Speech::Quiet => None,
        Speech::QuietUntil(at) => Some(at),
    }
}

/// Whether this end may write to the carrier by itself, behind the end of its queue pair.
fn may_speak(conn: &Conn, pair: &Pair) -> Option<Speech> {
    let fd = conn::number_of(conn)?;
    let carried = match carrier::queued(fd) {
        _ if carrier::is_over(fd) => Carried::End,
        Ok(1..) => Carried::Bytes,
        _ => Carried::Nothing,
    };
    let judged = pair.sending_for(conn, Use::Tend, |Sending { outbound, tx, .. }, ring| {
        let outbound = outbound.as_mut().filter(|_| !pair.is_plain())?;
        let was_on_sdp = outbound.is_on_sdp();
        let mut socket = Socket::new(conn, fd);
        let mut io = pair.context(tx.as_mut(), &mut socket, ring);
        let learnt = outbound.tend_quietly(&mut io);
        note_lane(conn, was_on_sdp, outbound.is_on_sdp(), &pair.shared);
        Some(learnt.map(|()| outbound.may_speak(&pair.shared, carried, monotonic_ns())))
    })??;
    if judged.is_err() {
        reset(conn);
    }
    judged.ok()
}

pub(super) fn tend(conn: &Conn, pair: &Pair) -> Option<u64> {
    if pair.is_plain() {
        return None;
    }
    // The peer's PROOF stands on the carrier, which a program that only sends never reads.
    if pair.shared.has_link() && !pair.shared.is_up() {
        look(conn);
    }
    let is_ready = are_sleepers_armed(conn);
    let next = pair.sending_for(conn, Use::Tend, |Sending { outbound, tx, .. }, ring| {
        let outbound = outbound.as_mut().filter(|_| !pair.is_plain())?;
        let fd = conn::number_of(conn)?;
        if is_ready {
            outbound.invite();
        }
        let was_on_sdp = outbound.is_on_sdp();
        let mut socket = Socket::new(conn, fd);
        let mut io = pair.context(tx.as_mut(), &mut socket, ring);
        let next = outbound.tend(&mut io);
        note_lane(conn, was_on_sdp, outbound.is_on_sdp(), &pair.shared);
        Some(next)
    })??;
    match next {
        Ok(at) => at,
        Err(SendError::Wait(_)) => Some(monotonic_ns() + wait::MORE_SLEEP_NS),
        Err(SendError::Carrier(_)) => None, // the program is told in its next call
        Err(SendError::Broken(_)) => {
            reset(conn);
            None
        }
    }
}

/// Before a wait for several descriptors sleeps, and after it: messages that are due for each
/// connection are sent, and the connection manager's events are handled; `has_met` as in
/// [`take_new`]. After how many nanoseconds at the latest it is to be called again. Slow.
pub(crate) fn between_waits(has_met: impl Fn(&Conn)) -> Option<u64> {
    if !IN_USE.load(Ordering::Relaxed) || !device::may_be_slow() {
        return None;
    }
    device::progress_if_ready();
    let mut next: Option<u64> = None;
    for (_, pair) in pair::all() {
        let is_ours = |conn: &&Conn| is_guarded(conn) || pace::next_try(pair).is_some();
        let Some(conn) = pair.conn().filter(is_ours) else { continue };
        if conn.acquire_live(Half::Send) {
            next = next.into_iter().chain(step_beside(conn, pair)).min();
            conn.release(Half::Send);
        }
    }
    device::take_new(has_met);
    next.map(|at| at.saturating_sub(monotonic_ns()).max(1_000_000))
}

/// One connection's part of [`between_waits`]: when it is due again at the latest.
fn step_beside(conn: &Conn, pair: &Pair) -> Option<u64> {
    if !is_guarded(conn) {
        return look_around(conn);
    }
    forked::hand_back_if_asked(conn, pair);
    gather(conn);
    let asked = forked::sleep_bound(conn, pair).map(|ns| monotonic_ns() + ns);
    tend_beside(conn, pair).into_iter().chain(asked).min()
}

/// Whether no thread can be asleep on the carrier alone.
fn are_sleepers_armed(conn: &Conn) -> bool {
    early::is_nobody_asleep(
        conn.flags.word(),
        Waiters::Early.bit(),
        &process::fork_page::FORK_PAGE.busy.early,
    )
}

/// How long a call sleeps at most that is to look again at `at`, both in nanoseconds.
pub(super) fn sleep_until(at: u64) -> u64 {
    at.saturating_sub(monotonic_ns()).max(wait::MORE_SLEEP_NS)
}

/// What wakes a sender beside the queue pair: events of the carrier, and nanoseconds until it looks
/// again. `next`: when its connection is to be looked after again; `returns`: events that a RETURN makes.
pub(super) fn event_of(
    conn: &ConnGuard,
    pair: &Pair,
    blocked: Wait,
    next: Option<u64>,
    returns: impl FnOnce() -> i16,
) -> (i16, Option<u64>) {
    let (events, bound) = match blocked {
        Wait::Carrier => (libc::POLLOUT, None),
        Wait::Unsegmented => (0, Some(wait::MORE_SLEEP_NS)),
        Wait::Credit { until } => credit_event(conn.fd(), pair, until),
        Wait::Return => match returns() {
            0 => (0, Some(wait::MORE_SLEEP_NS)),
            event => (event, None),
        },
    };
    // The carrier's own event tells what waits for room there.
    let next = next.filter(|_| blocked != Wait::Carrier).map(sleep_until);
    (events, [bound, forked::sleep_bound(conn, pair), next].into_iter().flatten().min())
}

/// Of a sender that waits for room, a proof or an invitation: the other end's FIN, once, and time. A
/// proof comes by the carrier, whose bytes before it are the program's, so no event tells of it.
fn credit_event(fd: c_int, pair: &Pair, until: u64) -> (i16, Option<u64>) {
    let events = if carrier::is_over(fd) { 0 } else { libc::POLLRDHUP };
    let left = until.saturating_sub(monotonic_ns());
    let most = if pair.shared.is_up() { u64::MAX } else { wait::MORE_SLEEP_NS };
    (events, Some(left.min(most)))
}

/// A sender that waits, or gets EAGAIN, found no room in the ring.
pub(super) fn count_full(conn: &Conn, pair: &Pair, blocked: Wait) {
    if matches!(blocked, Wait::Credit { .. }) && pair.shared.is_up() {
        wait::count_full(conn);
    }
}

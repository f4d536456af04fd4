//! How one call sleeps until the other side moves, and how sleepers are woken.
//!
//! Called by [`super::receive`] and [`super::send`]; `readiness` uses how long a sleep may be.
//!
//! Nothing is locked and no critical section is open while a thread sleeps: signals and
//! cancellation reach it in libc's own `ppoll`. The [`CallGuard`] of a thread that does not come
//! back from there gives back what it had in use.

use core::{
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
};

use libc::{pollfd, timespec};
use sdp_fabric_shm::link::{How, Lane, ShmHalf, ShmLink, What};
use sdp_stats::{Counter, Direction, RowId};
use sdp_sys::{
    pid::is_single_threaded,
    section::{self, Mark},
    time::monotonic_ns,
    tls,
};

use crate::{
    conn::{
        self, Conn, ConnGuard, Half, Limits, RowFlag, Waiters, alive, carrier, publish,
        sharing::is_used_by_another,
    },
    datapath::{lane::SourceState, reclaim},
    process::{self, libc_calls, page},
    wake::{call_guard::CallGuard, doorbell, spin, strangers::Doorbells, wait_set::WaitSet},
};

/// Sleeps that another process's death or haste could make endless are bounded by this, so that it
/// costs time, not the connection.
pub(crate) const BOUNDED_SLEEP_NS: u64 = 100_000_000;
/// One sleep of a call that waits for more than there is.
pub(crate) const MORE_SLEEP_NS: u64 = 1_000_000;
/// Threads that may sleep on the process's eventfd, which wakes all of them at each signal,
/// whatever they wait for.
const DOORBELL_SLEEPERS_MAX: u32 = 4;
/// Threads that may sleep there while their connections are busy. A spurious wake-up costs less than a byte on the
/// carrier for each message. Further ones sleep on wake bytes, which are theirs alone.
const BUSY_SLEEPERS_MAX: u32 = 16;
/// From so many wake-ups for nothing in a row a connection is idle.
const IDLE_WAKES: u32 = 16;
/// How long [`throttle_retry`] takes: the caller has looked for some ten microseconds before.
const HELD_UP_NS: i64 = 1_000_000;
/// Between two of them.
const HELD_UP_APART_NS: u64 = 250_000;
/// When the next one may be, in nanoseconds.
static NEXT_HELD_UP_NS: AtomicU64 = AtomicU64::new(0);
/// Rounds of [`briefly`].
const BRIEF_ROUNDS: u32 = 2000;

/// Why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Something may have happened.
    Look,
    /// The deadline passed.
    TimedOut,
    /// A signal handler ran, and the call does not restart.
    Interrupted,
    /// The descriptor was closed or re-used before the call slept, or before it was restarted.
    Closed,
}

/// Whether a handler ran since `mark`. A call that is restarted begins anew, and so does `mark`.
pub(crate) fn was_interrupted(mark: &mut Mark) -> bool {
    match mark.interrupted() {
        section::Interrupted::No => false,
        section::Interrupted::Restart => {
            *mark = section::mark();
            true
        }
        section::Interrupted::Return => true, // the next sleep tells
    }
}

/// Waits a few microseconds for something that the other side does at once unless it was preempted.
pub(crate) fn briefly(mut done: impl FnMut() -> bool) -> bool {
    for i in 0..BRIEF_ROUNDS {
        if done() {
            return true;
        }
        core::hint::spin_loop();
        if i % 128 == 127 {
            sdp_sys::time::yield_now();
        }
    }
    false
}

fn news(conn: &Conn) -> Option<(ShmLink, u64, u32)> {
    let link = conn.link()?;
    let row = conn.row()?;
    // Written under the sink's lock by this process; a stale value only causes another look.
    let head = row.sink.words.first()?.load(Ordering::Relaxed);
    let followed = row.sink.words.get(3)?.load(Ordering::Relaxed) as u32;
    Some((link, head, followed))
}

/// Looks at the ring for a moment. True when there is something. `by_fast_path`:
/// [`crate::datapath::fast`] will take the message that comes.
pub(crate) fn spin_for_bytes(conn: &ConnGuard, guard: Pin<&CallGuard>, by_fast_path: bool) -> bool {
    let Some((link, head, followed)) = news(conn) else { return false };
    let half = link.half(conn.half_index(Half::Receive));
    if half.lane() == Lane::Kernel {
        return false; // on the kernel lane only the kernel knows
    }
    conn.one_way.fetch_add(1, Ordering::Relaxed);
    link.own().note_cpu(spin::this_cpu());
    let peer_cpu = link.peer().cpu();
    let published = || half.position(What::Bytes).wrapping_sub(head);
    let success = (by_fast_path && spin::gather(conn, guard, peer_cpu, published))
        || spin::spin(conn, guard, peer_cpu, || is_news(half, head, followed));
    if success {
        count(conn, Direction::Receive, Counter::Spun);
    }
    success
}

/// The reader of a stream leaves it alone for a moment, if the call may wait.
pub(crate) fn leave_alone(conn: &ConnGuard, guard: Pin<&CallGuard>, waits: bool) {
    let peer_cpu = conn.link().map_or(0, |link| link.peer().cpu());
    spin::leave_alone(conn, guard, peer_cpu, waits);
}

#[inline]
fn is_news(half: ShmHalf<'_>, head: u64, followed: u32) -> bool {
    half.position(What::Bytes) != head || half.written() != followed
}

/// How this thread wants to be woken for `conn`.
fn mode(conn: &Conn, is_busy: bool) -> How {
    let most = if is_busy { BUSY_SLEEPERS_MAX } else { DOORBELL_SLEEPERS_MAX };
    // A thread that waits where no doorbell reaches would not be woken by this arm.
    if conn.has(Waiters::PeerHasDoorbell)
        && !conn.has(Waiters::ByCarrier)
        && doorbell::pages().is_some_and(|doorbell| doorbell.sleepers() < most)
    {
        How::Doorbell
    } else {
        How::Carrier
    }
}

/// Sleeps until bytes, a lane switch or the end of the connection.
pub(crate) fn for_bytes(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    until: Option<u64>,
    mark: Mark,
) -> Woken {
    let Some((link, head, followed)) = news(conn) else { return Woken::Look };
    let bound = reclaim::before_sleep();
    let half = link.half(conn.half_index(Half::Receive));
    // Also on the kernel lane: the wake byte of a lane switch may be consumed by a thread that
    // polls.
    let mode = mode(conn, conn.idle_wakes.load(Ordering::Relaxed) < IDLE_WAKES);
    let (wait_set, doorbell) = take_wait_set(guard, mode, Beside::All);
    let mode = if wait_set.exists() { How::Doorbell } else { How::Carrier };
    half.arm(What::Bytes, mode);
    if is_news(half, head, followed) {
        wake_up(guard, doorbell, &wait_set);
        return Woken::Look;
    }
    count(conn, Direction::Receive, Counter::Slept);
    let asleep = monotonic_ns();
    // A wake byte is one byte: where another thread of ours waits for the same connection, it may
    // consume the one that was meant to wake this one, and the kernel then lets a poller sleep on.
    let may_be_robbed = conn.is_waited_for_elsewhere(Half::Receive)
        || mode == How::Carrier
            && (conn.has(Waiters::Seen) || doorbell::event_fd() < 0 && !is_single_threaded());
    let bound = if may_be_robbed { Some(BOUNDED_SLEEP_NS) } else { bound };
    let beside = sleep_beside_family(conn, conn.idle_wakes.load(Ordering::Relaxed));
    let bound = bound.into_iter().chain(beside).min();
    let events = libc::POLLIN | libc::POLLRDHUP;
    let mut woken = sleep(conn, guard, events, &wait_set, until, bound, mark);
    let is_for_nothing = woken != Woken::Look || !is_news(half, head, followed);
    let has_moved = beside.is_some() && news(conn).is_some_and(|(_, now, _)| now != head);
    let was_for_nothing = if has_moved {
        conn.idle_wakes.store(0, Ordering::Relaxed); // a family member took it
        false
    } else if is_for_nothing {
        conn.idle_wakes.fetch_add(1, Ordering::Relaxed) != 0
    } else {
        conn.idle_wakes.store(0, Ordering::Relaxed);
        let now = monotonic_ns();
        spin::learn_from_sleep(conn, now - asleep);
        alive::moved(conn, now);
        false
    };
    let yields = was_for_nothing && woken == Woken::Look;
    if woken == Woken::TimedOut && bound.is_some() && until.is_none_or(|u| monotonic_ns() < u) {
        woken = Woken::Look;
    }
    wake_up(guard, doorbell, &wait_set);
    if yields {
        yield_to_sender();
    }
    woken
}

/// This thread was woken for nothing again: perhaps by a wake byte on the carrier whose sender was
/// preempted before it counted it (L5), by this very wake-up. The kernel calls the carrier readable
/// until then, and this thread would keep the CPU that the sender needs until its time slice ends.
pub(crate) fn yield_to_sender() {
    process::beside_calls(|| {
        sdp_sys::time::yield_now();
    });
}

/// Sleeps until the carrier has `events`, another thread or the device rings, or `bound`
/// nanoseconds have passed: for a connection to another host; and whether it was something else
/// than the carrier. `beside`: whether the device rings for messages. `look`: whether there is
/// something by now, asked when a thread that rings from here on finds a sleeper.
pub(crate) fn beside_queue_pair(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    beside: Beside,
    (events, bound): (i16, Option<u64>),
    until: Option<u64>,
    mark: Mark,
    look: impl FnOnce() -> bool,
) -> (Woken, bool) {
    let (wait_set, doorbell) = take_wait_set(guard, How::Doorbell, beside);
    if look() {
        wake_up(guard, doorbell, &wait_set);
        return (Woken::Look, true);
    }
    count(conn, Direction::Receive, Counter::Slept);
    let (woken, has_rung) = sleep_beside(conn, guard, events, wait_set.raw(), until, bound, mark);
    if has_rung {
        wait_set.clear();
    }
    wake_up(guard, doorbell, &wait_set);
    match woken {
        Woken::TimedOut if until.is_none_or(|u| monotonic_ns() < u) => (Woken::Look, true),
        // Without a set there is nothing that tells.
        other => (other, has_rung || !wait_set.exists()),
    }
}

/// Who is to wake a sleeper, beside its carrier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    /// Messages at the RDMA devices, too.
    All,
    /// Threads and the connection manager: its connection has no queue pair that messages could come by. They wake
    /// it all the same where another sleeper wants them.
    Threads,
}

/// What a call sleeps on beside its carrier: a wait set, and the doorbell among whose sleepers it
/// counts itself, if it wants to be woken by that and there are any.
fn take_wait_set(
    guard: Pin<&CallGuard>,
    mode: How,
    beside: Beside,
) -> (WaitSet, Option<Doorbells>) {
    guard.begin();
    if mode != How::Doorbell {
        return (WaitSet::NONE, None);
    }
    let _section = section::Guard::enter();
    let wait_set = WaitSet::take();
    let doorbell = wait_set.doorbells();
    count_asleep(guard, doorbell, &wait_set, beside);
    (wait_set, doorbell)
}

/// Counts the calling thread among the sleepers of the process's doorbell, in one critical section
/// with the steps before it.
pub(crate) fn fall_asleep(guard: Pin<&CallGuard>, doorbell: Option<Doorbells>, set: &WaitSet) {
    count_asleep(guard, doorbell, set, Beside::All);
}

fn count_asleep(
    guard: Pin<&CallGuard>,
    doorbell: Option<Doorbells>,
    set: &WaitSet,
    beside: Beside,
) {
    match (doorbell, beside) {
        (Some(doorbell), Beside::All) => doorbell.fall_asleep(),
        (Some(doorbell), Beside::Threads) => doorbell.fall_asleep_beside_threads(),
        (None, _) => {}
    }
    guard.sleeps(doorbell.is_some(), set);
}

/// And no more.
pub(crate) fn wake_up(guard: Pin<&CallGuard>, doorbell: Option<Doorbells>, set: &WaitSet) {
    let _section = section::Guard::enter();
    guard.sleeps(false, set);
    if let Some(doorbell) = doorbell
        && set.is_current()
    {
        doorbell.wake_up();
    }
}

/// Whether the consumer can ring for room.
pub(crate) fn can_be_rung_for_room(conn: &Conn) -> bool {
    conn.has(Waiters::PeerHasDoorbell) && doorbell::event_fd() >= 0
}

/// Sleeps until the consumer has freed a quarter of the ring, or the connection ends.
pub(crate) fn for_room(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    until: Option<u64>,
    mark: Mark,
) -> Woken {
    let Some(link) = conn.link() else { return Woken::Look };
    let half = link.half(conn.half_index(Half::Send));
    let Some(row) = conn.row() else { return Woken::Look };
    let tail = row.source.words.first().map_or(0, |w| w.load(Ordering::Relaxed));
    let most = half.size() - half.size() / 4;
    let has_room = || {
        tail.wrapping_sub(half.position(What::Space)) <= most
            || !link.peer().is_open() && may_leave(half)
    };
    let peer_cpu = link.peer().cpu();
    if !spin::needs_this_cpu(peer_cpu) && spin::pause_for(1_000, &mut { has_room }) {
        return Woken::Look;
    }
    // A connection whose sender waits for room is busy.
    let mode = mode(conn, true);
    // Without an eventfd no peer can wake a thread that waits for room: a carrier byte would be
    // data for the peer to send, which it may not do for this end. A sender that cannot leave the
    // lane either, or has too many threads asleep beside it, looks again every millisecond.
    let (wait_set, doorbell) = take_wait_set(guard, mode, Beside::All);
    if doorbell.is_some() {
        half.arm(What::Space, How::Doorbell);
        if has_room() {
            wake_up(guard, doorbell, &wait_set);
            return Woken::Look;
        }
    }
    count(conn, Direction::Send, Counter::Slept);
    count_full(conn);
    let bound = if doorbell.is_some() { BOUNDED_SLEEP_NS } else { 1_000_000 };
    // An end that is known would wake this sleep at once, and the next one.
    let events = if conn.has(Limits::PeerGone) { 0 } else { libc::POLLRDHUP };
    let woken = sleep(conn, guard, events, &wait_set, until, Some(bound), mark);
    wake_up(guard, doorbell, &wait_set);
    match woken {
        Woken::TimedOut if until.is_none_or(|u| monotonic_ns() < u) => {
            if crate::conn::carrier::is_over(conn.fd()) {
                conn.set(Limits::PeerGone);
            }
            Woken::Look
        }
        Woken::Look => {
            if crate::conn::carrier::is_over(conn.fd()) {
                conn.set(Limits::PeerGone);
            }
            Woken::Look
        }
        other => other,
    }
}

/// What a sender that waits for the send turn knows of the thread that has it.
#[derive(PartialEq)]
pub(crate) struct Rival {
    thread: u32,
    /// How far this end's bytes have come, in the ring and on the carrier.
    tail: u64,
    sent: u64,
}

impl Rival {
    fn now(conn: &ConnGuard, thread: u32) -> Self {
        let tail = conn
            .link()
            .map_or(0, |link| link.half(conn.half_index(Half::Send)).position(What::Bytes));
        Self { thread, tail, sent: crate::conn::carrier::sent(conn.fd()).unwrap_or(0) }
    }
}

/// Sleeps until the thread that is in the middle of a message is done with it. A thread that does
/// not go on although it could (a handler that never returns, no CPU) loses it. `rival`: the
/// state that earlier waits of the call saw, and since when: wake-ups for other connections do not
/// begin the timeout anew.
pub(crate) fn for_turn(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    until: Option<u64>,
    mark: Mark,
    rival: &mut Option<(Rival, u64)>,
) -> Woken {
    let thread = tls::thread_id() as u32;
    let holder = || conn.turn.of_another(|| thread);
    let Some(before) = holder() else { return Woken::Look };
    // The send turn has no effect here, and the kernel would let no thread sleep.
    let over = libc::POLLHUP | libc::POLLERR;
    if crate::conn::carrier::readiness(conn.fd(), 0) & over != 0 {
        conn.turn.end(before);
        return Woken::Look;
    }
    let seen = Rival::now(conn, before);
    let since = match rival {
        Some((known, since)) if *known == seen => *since,
        _ => {
            let since = monotonic_ns();
            *rival = Some((seen, since));
            since
        }
    };
    guard.has_turn();
    conn.turn.want(thread);
    let (wait_set, doorbell) = take_wait_set(guard, How::Doorbell, Beside::All);
    let bound = if doorbell.is_some() { BOUNDED_SLEEP_NS } else { MORE_SLEEP_NS };
    let woken = match holder() {
        Some(_) => {
            count(conn, Direction::Send, Counter::Slept);
            sleep(conn, guard, 0, &wait_set, until, Some(bound), mark)
        }
        None => Woken::Look,
    };
    wake_up(guard, doorbell, &wait_set);
    match woken {
        Woken::TimedOut if until.is_none_or(|u| monotonic_ns() < u) => {}
        Woken::Look => {}
        other => return other,
    }
    let could_go_on = || {
        sender_may_go_on(conn)
            && crate::conn::carrier::readiness(conn.fd(), libc::POLLOUT) & libc::POLLOUT != 0
    };
    if monotonic_ns().saturating_sub(since) >= BOUNDED_SLEEP_NS
        && holder() == Some(before)
        && rival.as_ref().is_some_and(|(known, _)| *known == Rival::now(conn, before))
        && could_go_on()
        && conn.turn.end(before)
    {
        doorbell::signal_self(conn.index()); // it may be another one's now
    }
    Woken::Look
}

/// Ring bytes that must be free before a waiter for room is worth waking.
fn is_roomy(half: ShmHalf<'_>) -> bool {
    half.free() >= half.size() / 4
}

/// Asks the consumer to ring when a quarter of the ring is free. True when it is free already.
pub(crate) fn arm_for_room(half: ShmHalf<'_>) -> bool {
    half.arm(What::Space, How::Doorbell);
    is_roomy(half)
}

/// Whether a sender that got EAGAIN may go on: room in the ring, or off the SDP lane. A sender that
/// must leave the lane while its reader does not let it go (L2) would only get EAGAIN again, as
/// often as it asks.
#[inline(never)]
pub(crate) fn sender_may_go_on(conn: &Conn) -> bool {
    let Some(link) = conn.link() else { return true };
    let half = link.half(conn.half_index(Half::Send));
    let must_leave = || !link.peer().is_open() || conn.has(Limits::PeerGone | Limits::Fallback);
    half.lane() == Lane::Kernel
        || conn.has(Limits::Hostile)
        || is_roomy(half)
        || must_leave() && (may_leave(half) || is_reader_dead(conn))
}

/// Whether the reader lets the half leave the SDP lane now, by what the segment says (L2).
fn may_leave(half: ShmHalf<'_>) -> bool {
    half.may_leave(half.written())
}

/// Whether the reader's kernel has answered that no process reads any more: then the sender leaves
/// the lane without it. A reader that was killed in the middle of following a switch would keep
/// this end on the lane for ever; FIN alone proves nothing.
pub(crate) fn is_reader_dead(conn: &Conn) -> bool {
    conn.has(Limits::PeerGone)
        && conn::number_of(conn).is_some_and(|fd| carrier::tcp_state(fd) == carrier::TCP_CLOSE)
}

/// A sender that can neither use the ring nor leave it, and whose waits the library does not see,
/// is about to get EAGAIN beside a carrier that says "writable". It would come back at once: this
/// delays it for a moment. The program's loop may serve other descriptors, so that it is not
/// delayed for each such connection: a minimum time passes between two delays.
#[cold]
pub(crate) fn throttle_retry() {
    if monotonic_ns() < NEXT_HELD_UP_NS.load(Ordering::Relaxed) {
        return;
    }
    process::beside_calls(|| {
        sdp_sys::time::sleep(HELD_UP_NS);
    });
    NEXT_HELD_UP_NS.store(monotonic_ns() + HELD_UP_APART_NS, Ordering::Relaxed);
}

/// When a call of this half that begins to wait now ends by its time limit; 0: at once. `None`:
/// never.
#[cold]
#[inline(never)]
pub(crate) fn deadline(conn: &Conn, fd: i32, half: Half) -> Option<u64> {
    let option = match half {
        Half::Receive => libc::SO_RCVTIMEO,
        Half::Send => libc::SO_SNDTIMEO,
    };
    match carrier::timeout_ns(fd, option) {
        // The kernel reports a negative limit like none.
        None => conn.historic.is_at_once(half).then_some(0),
        Some(limit) => Some(monotonic_ns().saturating_add(limit)),
    }
}

/// Whether the half is on the SDP lane and its ring has nearly no room.
pub(crate) fn is_full(conn: &Conn) -> bool {
    let Some(link) = conn.link() else { return false };
    let half = link.half(conn.half_index(Half::Send));
    half.lane() == Lane::Sdp && half.free() < half.size() / 8
}

/// As [`sender_may_go_on`]; arms the half when not.
pub(crate) fn sender_may_go_on_or_arm(conn: &Conn) -> bool {
    if sender_may_go_on(conn) {
        return true;
    }
    if let Some(link) = conn.link() {
        link.half(conn.half_index(Half::Send)).arm(What::Space, How::Doorbell);
    }
    sender_may_go_on(conn)
}

/// A non-blocking sender found the ring full. A reader on another CPU frees a piece in about the
/// time that a system call takes, which is shorter than sending the piece through the kernel.
pub(crate) fn briefly_for_room(link: ShmLink, half: ShmHalf<'_>, source: &mut SourceState) -> bool {
    let peer_cpu = link.peer().cpu();
    if spin::needs_this_cpu(peer_cpu) {
        return false;
    }
    let (_, seen) = source.tx.cursors();
    let mut moved = || half.position(What::Space) != seen;
    spin::pause_for(BRIEF_ROOM_NS, &mut moved) && source.tx.refresh().is_ok()
}

/// Longest pause of a non-blocking sender.
const BRIEF_ROOM_NS: u64 = 5_000;

/// Sleeps until the carrier is writable.
pub(crate) fn for_carrier_room(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    until: Option<u64>,
    mark: Mark,
) -> Woken {
    for_carrier_room_or(conn, guard, -1, until, mark)
}

/// Sleeps until the carrier is writable or `other` (−1 none) is readable.
pub(crate) fn for_carrier_room_or(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    other: i32,
    until: Option<u64>,
    mark: Mark,
) -> Woken {
    count(conn, Direction::Send, Counter::Slept);
    sleep_beside(conn, guard, libc::POLLOUT, other, until, None, mark).0
}

/// Sleeps a moment, or until the connection ends: for a call that waits for more than there is, which
/// no wake-up announces.
pub(crate) fn for_more(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    until: Option<u64>,
    mark: Mark,
) -> Woken {
    match sleep(conn, guard, 0, &WaitSet::NONE, until, Some(MORE_SLEEP_NS), mark) {
        Woken::TimedOut if until.is_none_or(|u| monotonic_ns() < u) => Woken::Look,
        other => other,
    }
}

/// libc's `ppoll` on the carrier and the call's wait set: the one place where a call blocks. `until` is
/// the program's limit; `bound` nanoseconds is ours, and says nothing about restarting.
fn sleep(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    events: i16,
    wait_set: &WaitSet,
    until: Option<u64>,
    bound: Option<u64>,
    mark: Mark,
) -> Woken {
    let (woken, has_rung) = sleep_beside(conn, guard, events, wait_set.raw(), until, bound, mark);
    if has_rung {
        wait_set.clear();
    }
    woken
}

/// [`sleep`] beside any descriptor (−1 none); whether that one was ready.
fn sleep_beside(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    events: i16,
    other: i32,
    until: Option<u64>,
    bound: Option<u64>,
    mark: Mark,
) -> (Woken, bool) {
    // Asked for once: one that is gone a moment later is no reason to sleep on none.
    let Some(fd) = guard.hold(conn) else { return (Woken::Closed, false) };
    let mut fds =
        [pollfd { fd, events, revents: 0 }, pollfd { fd: other, events: libc::POLLIN, revents: 0 }];
    let timeout = match until {
        None => None,
        Some(until) => {
            let now = monotonic_ns();
            if now >= until {
                return (Woken::TimedOut, false);
            }
            Some(until - now)
        }
    };
    let timeout = match (timeout, bound) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let timeout = timeout.map(to_timespec);
    // A handler that was put off while the call looked around counts as interrupting it.
    if mark.interrupted_without_restart() {
        return (Woken::Interrupted, false);
    }
    guard.is_asleep(true);
    let n = libc_calls::ppoll_any(&mut fds, timeout.as_ref(), libc_calls::Mask::NONE);
    guard.is_asleep(false);
    if process::is_retired() {
        return (Woken::Closed, false); // the call is the kernel's now, and nothing of ours is
    }
    let is_other_ready = fds[1].revents != 0;
    if conn.open_fd().is_none() {
        return (Woken::Closed, is_other_ready);
    }
    let woken = match n {
        Ok(0) => Woken::TimedOut,
        Ok(_) => Woken::Look,
        Err(_) => {
            // With a timeout set on the socket the kernel never restarts.
            let restarts = match mark.interrupted() {
                section::Interrupted::Return => false,
                _ => until.is_none(),
            };
            match restarts {
                false => Woken::Interrupted,
                // The kernel looks up the number of a call that it restarts.
                true if !conn.is_current() => Woken::Closed,
                true => Woken::Look,
            }
        }
    };
    (woken, is_other_ready)
}

/// Nanoseconds as the kernel wants them.
pub(crate) fn to_timespec(ns: u64) -> timespec {
    timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// Whether a head that moves from one ring cursor to another enters another eighth of the ring: then a
/// producer may have to be woken. Not at every record, because that takes a fence. A producer waits only
/// while less than a quarter is free, so on the way from there to an empty ring one of these looks sees it.
#[inline]
pub(crate) const fn crosses_eighth(ring_bytes: u64, from: u64, to: u64) -> bool {
    (from ^ to) & !(ring_bytes / 8).wrapping_sub(1) != 0
}

/// After the head was published at `head`, in another eighth of the ring than before: wakes a producer
/// that waits for room, once a quarter is free.
pub(crate) fn room_freed(conn: &Conn, half: ShmHalf<'_>, head: u64) {
    let size = half.size();
    if half.position(What::Bytes).wrapping_sub(head) > size - size / 4 {
        return;
    }
    if let Some(armed) = half.armed(What::Space) {
        conn.signal_peer();
        half.disarm(What::Space, armed);
    }
    if head & (size - 1) < size / 8 {
        alive::moved(conn, monotonic_ns()); // once in the ring's round
    }
}

/// Counts a wait for several connections at once, among the process's totals: it is none of theirs alone.
pub(crate) fn count_shared(counter: Counter) {
    if let Some(page) = page::current() {
        page.add(RowId::NONE, Direction::Receive, counter, 1);
    }
}

/// Counts for a connection's direction.
pub(crate) fn count(conn: &Conn, direction: Direction, counter: Counter) {
    if let Some((page, row)) = publish::of_row(conn) {
        page.add(row, direction, counter, 1);
    }
}

/// A sender finds no room in the ring.
pub(crate) fn count_full(conn: &Conn) {
    if let Some((page, row)) = publish::of_row(conn) {
        page.was_full(row);
    }
}

/// The shortest sleep on a connection that family members use as well.
const SHARED_SLEEP_NS: u64 = 1_000_000;

/// One sleep on a connection that family members hold, and have not used so far: they may begin to.
const LONELY_SLEEP_NS: u64 = 1_000_000_000;

/// How long a call may sleep on this connection before it looks again, because a family member that
/// uses it too may take the wake-up that was meant for the call (O4). `None`: there is no such
/// family member. `wakes`: how often in a row the call has woken up with nothing moving: a call
/// beside a busy family member looks again soon, in case that member works on what it received
/// while more comes.
pub(crate) fn sleep_beside_family(conn: &Conn, wakes: u32) -> Option<u64> {
    if !process::has_family() {
        return None;
    }
    let (row, (family, slot)) = conn.row_index().zip(process::family())?;
    // Only a call that has slept for nothing asks the kernel.
    let is_held = family.may_be_held_by_others(slot, row)
        && (wakes == 0 || family.is_held_by_others(slot, row));
    if !is_held {
        if conn.is_used_by_several() && !is_used_by_another(conn) {
            conn.row()?.flags.remove(RowFlag::Several, Ordering::SeqCst);
        }
        return None;
    }
    Some(match conn.is_used_by_several() {
        true => (SHARED_SLEEP_NS << wakes.min(16)).min(BOUNDED_SLEEP_NS),
        false => LONELY_SLEEP_NS,
    })
}

#[cfg(test)]
mod model;

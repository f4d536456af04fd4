//! Pauses of calls on a connection whose ends are still meeting, which let the other end catch up.
//!
//! Called by [`crate::migration::promote`] after calls that moved bytes, and asked by large sends
//! ([`crate::api::bulk`]). For a bounded time per connection ([`PAUSE_NS`]), a call waits until the
//! other end has taken its step. This is the only place where a call waits for the other end of a
//! meeting. It refuses to do so for small traffic, for calls that nearly are over, and for peers of
//! a kind that did not answer before.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::pollfd;
use sdp_sys::{fd, section, time::monotonic_ns};

use crate::{
    conn::{Conn, Half, Stage, carrier},
    datapath::send::{self, FIRST_PIECE as PIECE},
    migration::promote,
    process,
};

/// Longest that all calls of a connection together pause for the other end …
const PAUSE_NS: u32 = 100_000;
/// … with one nanosecond more for so many bytes that the same call is still to send: little beside
/// the time that they take on the kernel lane …
const PAUSE_BYTES_PER_NS: u64 = 10;
/// … up to this.
const PAUSE_BULK_NS: u32 = 400_000;
/// The same as long as no pause of this process was in vain: with a nanosecond for each byte that
/// is to be sent or was sent before, or for a sender that the program lets block. A reader may be
/// about to get a CPU, which takes a time slice where others want it too, and nothing that is sent
/// before reaches it sooner.
const PAUSE_MAX_NS: u32 = 3_000_000;
/// Long pauses of senders that do not block take this part of a process's time at most.
const LONG_EVERY: u64 = 8;
/// Shortest pause that is worth a system call.
const PAUSE_MIN_NS: u32 = 10_000;
/// Between two looks at a connection that the other end has not accepted.
const SLEEP_NS: u64 = 30_000;
/// A reader with nothing to read pauses no longer than this: perhaps its sender is done.
const READER_PAUSE_NS: u32 = 50_000;
/// Calls since the meeting began after which a sender of smaller pieces counts as a stream.
const STREAM_CALLS: u32 = 3;
/// Sends of a connection that give the CPU away while the meeting goes on.
const YIELDS: u32 = 64;
/// How long they may take in all, beyond the limit of pauses: on a busy machine one alone takes as
/// long as the scheduler's slices of others are.
const YIELDED_NS: u32 = 2_000_000;
/// Doublings of the distance between pauses to which no peer answered.
const BACKOFF_MAX: u32 = 10;

/// When a sender that does not block may pause for long again, in nanoseconds: an event loop with
/// many fresh connections serves others meanwhile.
static NEXT_LONG_NS: AtomicU64 = AtomicU64::new(0);
/// Pauses in a row that were for nothing, and pauses that were asked for meanwhile.
static UNANSWERED: AtomicU32 = AtomicU32::new(0);
static ASKED: AtomicU32 = AtomicU32::new(0);

/// The descriptor that shows the other end's next step; −1 none.
pub(crate) fn expects(conn: &Conn) -> i32 {
    if conn.stage() != Stage::Meeting {
        return -1;
    }
    let _section = section::Guard::enter();
    conn.try_meeting(|meeting| meeting.expects()).unwrap_or(-1)
}

/// After a call that moved bytes of `half` while the ends were meeting; `more` bytes of the same
/// call are still to be sent. Pauses where that saves more than it costs.
pub(crate) fn let_catch_up(conn: &Conn, number: i32, half: Half, more: usize) {
    let bulk = process::tunables().promote_bytes();
    let moved = conn.bytes[half as usize].load(Ordering::Relaxed);
    let ticks = conn.ticks.load(Ordering::Relaxed);
    let most = match half {
        Half::Send if moved < bulk + PIECE as u64 => 0,
        Half::Send if more < PIECE && ticks < STREAM_CALLS => 0,
        Half::Send => pause_limit(number, moved, more),
        Half::Receive if moved < bulk || !is_joining(conn) => 0,
        Half::Receive if carrier::queued(number).unwrap_or(0) < PIECE as u64 => READER_PAUSE_NS,
        Half::Receive => PAUSE_NS,
    };
    let paused = conn.paused_ns.load(Ordering::Relaxed);
    let left = most.saturating_sub(paused);
    if left >= PAUSE_MIN_NS {
        return pause(conn, number, half, left);
    }
    if half == Half::Send && most != 0 && ticks < YIELDS && paused < most.saturating_add(YIELDED_NS)
    {
        // The other thread that wants this CPU may be the reader. Or not: then a yield may take as
        // long as the scheduler's slices are, and it was the last one.
        let begun = monotonic_ns();
        sdp_sys::time::yield_now();
        let passed = u32::try_from(monotonic_ns().saturating_sub(begun)).unwrap_or(u32::MAX);
        conn.paused_ns.store(paused.saturating_add(passed), Ordering::Relaxed);
        promote::advance(conn, number);
    }
}

/// A meeting has succeeded: the processes that this one talks to have the library.
pub(crate) fn met() {
    UNANSWERED.store(0, Ordering::Relaxed);
}

/// How long a sender's calls may pause in all (see [`PAUSE_NS`], [`PAUSE_BULK_NS`],
/// [`PAUSE_MAX_NS`]), when they have moved `moved` bytes, `more` before the end of one of them.
fn pause_limit(number: i32, moved: u64, more: usize) -> u32 {
    let has_faith = UNANSWERED.load(Ordering::Relaxed) == 0;
    if has_faith && !fd::is_nonblocking(number) {
        return PAUSE_MAX_NS;
    }
    let (extra, most) = if has_faith && monotonic_ns() >= NEXT_LONG_NS.load(Ordering::Relaxed) {
        (moved.saturating_add(more as u64), PAUSE_MAX_NS)
    } else {
        (more as u64 / PAUSE_BYTES_PER_NS, PAUSE_BULK_NS)
    };
    let extra = u32::try_from(extra).unwrap_or(u32::MAX);
    PAUSE_NS.saturating_add(extra).min(most)
}

/// Whether this end waits for the other end's answer: then that end has the library.
fn is_joining(conn: &Conn) -> bool {
    let _section = section::Guard::enter();
    conn.try_meeting(|meeting| meeting.is_joining()) == Some(true)
}

/// Waits for the other end's next step, and then for its reader to be ready.
#[cold]
fn pause(conn: &Conn, number: i32, half: Half, left: u32) {
    let unanswered = UNANSWERED.load(Ordering::Relaxed);
    if unanswered != 0 {
        let asked = ASKED.fetch_add(1, Ordering::Relaxed);
        if !asked.is_multiple_of(1 << unanswered.min(BACKOFF_MAX)) {
            return;
        }
    }
    let begun = monotonic_ns();
    let passed = || monotonic_ns().saturating_sub(begun);
    let left = u64::from(left);
    let mut has_waited = false;
    while conn.stage() == Stage::Meeting {
        let meeting = expects(conn);
        let mut rest = left.saturating_sub(passed());
        if rest < u64::from(PAUSE_MIN_NS) {
            break;
        }
        if meeting < 0 {
            rest = rest.min(SLEEP_NS); // nobody has accepted the connection yet
        }
        has_waited = true;
        let mut fds = [pollfd { fd: meeting, events: libc::POLLIN, revents: 0 }];
        let ready = fd::poll(&mut fds, Some(rest as i64));
        if ready.is_err() || (ready == Ok(0) && meeting >= 0) {
            break; // a signal, or time is up
        }
        promote::advance(conn, number);
    }
    let mut is_answered = !has_waited;
    if conn.stage() == Stage::Attached {
        is_answered = true;
        if half == Half::Send {
            while passed() < left && !send::is_trusted(conn) {
                sdp_sys::time::yield_now();
            }
            is_answered = send::is_trusted(conn);
        }
    }
    if !is_answered {
        UNANSWERED.fetch_add(1, Ordering::Relaxed);
    }
    let passed = passed();
    if passed > u64::from(PAUSE_BULK_NS) {
        let next = monotonic_ns().saturating_add(passed.saturating_mul(LONG_EVERY));
        NEXT_LONG_NS.store(next, Ordering::Relaxed);
    }
    let passed = passed.min(u64::from(PAUSE_MAX_NS)) as u32;
    conn.paused_ns.fetch_add(passed, Ordering::Relaxed);
}

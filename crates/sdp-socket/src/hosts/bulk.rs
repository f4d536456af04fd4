//! Bulk while the ends on two hosts meet (R12).
//!
//! A sender fills the kernel's buffers, megabytes, within the time that a meeting takes, and all of
//! that goes by TCP. So the first bytes go in pieces, with steps of the meeting between them, and a
//! sender that has more waits for the other end, for a bounded time ([`LONGEST_NS`]). Peers that did
//! not come cost a process ever fewer of these waits.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sdp_sys::{fd, time::monotonic_ns};

use super::{
    beside::look_around,
    device, gather, pace,
    pair::{self, Pair, Sending},
};
use crate::{
    conn::{Conn, Half, Stage, carrier},
    process,
};

/// Bytes that the kernel is given at once.
const PIECE: usize = 64 * 1024;
/// So many of a stream go in pieces.
const FIRST_BYTES: u64 = 1 << 20;
/// All waits of a connection take so long at most, or so many round trips, or as often the time in
/// which this process has opened its device: the other end may be at the same. A meeting takes some
/// six round trips. For each connection that is about to meet: they do it one after the other.
const LONGEST_NS: u64 = 3_000_000;
const ROUND_TRIPS: u64 = 20;
const OPENINGS: u64 = 2;
/// Of a sender that does not block, where another one has waited a moment ago.
const SHORTEST_NS: u64 = 100_000;
/// The same for a sender that the program lets block, where the other end has answered, so that it
/// comes for certain.
const ANSWERED_NS: u64 = 50_000_000;
/// Waits of senders that do not block take this part of a process's time at most.
const EVERY: u64 = 8;
/// Calls before this one after which a sender of whole calls counts as a stream.
const STREAM_CALLS: u32 = 1;
/// Between two looks while nothing is heard.
const LOOK_NS: i64 = 50_000;
/// Doublings of the distance between waits to which no peer came.
const BACKOFF_MOST: u32 = 10;

/// Waits in a row that were for nothing, and those that were wished for meanwhile.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);
static WISHED: AtomicU32 = AtomicU32::new(0);
/// When a sender that does not block may wait again, in nanoseconds.
static NEXT_NS: AtomicU64 = AtomicU64::new(0);

/// How many bytes a send gives the kernel at once, on a connection that has no queue pair.
pub(super) fn piece(conn: &Conn) -> usize {
    let moved = conn.bytes[Half::Send as usize].load(Ordering::Relaxed);
    let may_meet = conn.stage() == Stage::Remote && moved < FIRST_BYTES;
    if may_meet { PIECE } else { usize::MAX }
}

/// After a call has sent bytes by TCP, `more` of which are left: waits for the other end, where a
/// meeting is under way and there is enough to send. `fd`: the connection's; `flags`: the call's.
#[inline]
pub(super) fn let_catch_up(conn: &Conn, pair: &Pair, (fd, flags): (i32, i32), more: usize) {
    let moved = conn.bytes[Half::Send as usize].load(Ordering::Relaxed);
    let is_stream =
        more != 0 || conn.calls[Half::Send as usize].load(Ordering::Relaxed) >= STREAM_CALLS;
    let has_earned = moved >= process::tunables().promote_bytes();
    if is_stream && has_earned && moved < FIRST_BYTES && is_under_way(pair) {
        wait(conn, pair, (fd, flags));
    }
}

/// Whether an attempt is under way or soon to come, or a queue pair is there that does not carry
/// payload yet.
fn is_under_way(pair: &Pair) -> bool {
    match pair.shared.has_link() {
        true => !pair.shared.is_link_dead(),
        false => {
            pair.is_out.load(Ordering::Relaxed)
                || pace::next_try(pair).is_some()
                || device::is_busy() && pace::is_step_due(pair, monotonic_ns())
        }
    }
}

/// Whether the next send goes by the queue pair.
fn is_ready(conn: &Conn, pair: &Pair) -> bool {
    let may_go = |Sending { outbound, .. }: &mut Sending, _: &mut [u8]| {
        outbound.as_ref().is_some_and(|outbound| outbound.goes_by_sdp(&pair.shared))
    };
    pair.sending(conn, may_go) == Some(true)
}

#[cold]
fn wait(conn: &Conn, pair: &Pair, (fd, flags): (i32, i32)) {
    let paused = u64::from(conn.paused_ns.load(Ordering::Relaxed));
    let begun = monotonic_ns();
    let blocks = flags & libc::MSG_DONTWAIT == 0 && !fd::is_nonblocking(fd);
    if paused >= ANSWERED_NS || !device::may_be_slow() || is_ready(conn, pair) {
        return;
    }
    let round_trips = ROUND_TRIPS * carrier::round_trip_ns(fd);
    let may_take_long = blocks || begun >= NEXT_NS.load(Ordering::Relaxed);
    let most = || match may_take_long {
        true if device::is_opening() || blocks && pair.shared.has_link() => ANSWERED_NS,
        true => {
            let one = round_trips.max(OPENINGS * device::opening_ns()).max(LONGEST_NS);
            let is_about_to = |other: &Pair| {
                other.conn().is_some() && !other.shared.is_up() && is_under_way(other)
            };
            let meet = pair::all().filter(|(_, other)| is_about_to(other)).count();
            one.saturating_mul(meet as u64).clamp(LONGEST_NS, ANSWERED_NS)
        }
        false => SHORTEST_NS,
    };
    let in_vain = IN_VAIN.load(Ordering::Relaxed);
    if in_vain != 0 {
        let wished = WISHED.fetch_add(1, Ordering::Relaxed);
        if !wished.is_multiple_of(1 << in_vain.min(BACKOFF_MOST)) {
            return;
        }
    }
    let passed = || monotonic_ns().saturating_sub(begun);
    let mut has_come = false;
    while paused + passed() < most() && is_under_way(pair) {
        device::progress();
        look_around(conn);
        // The peer's invitation comes by the queue pair.
        device::drain();
        gather(conn);
        has_come = is_ready(conn, pair);
        if has_come || device::wait_for_event(LOOK_NS).is_err() {
            break;
        }
    }
    let passed = passed();
    let all = u32::try_from(paused + passed).unwrap_or(u32::MAX);
    conn.paused_ns.store(all, Ordering::Relaxed);
    if !blocks && passed > SHORTEST_NS {
        NEXT_NS.fetch_max(monotonic_ns() + EVERY * passed, Ordering::Relaxed);
    }
    if has_come {
        IN_VAIN.store(0, Ordering::Relaxed);
    } else if !pair.shared.has_link() {
        // One that has answered comes, if later.
        IN_VAIN.store(in_vain.saturating_add(1), Ordering::Relaxed);
    }
}

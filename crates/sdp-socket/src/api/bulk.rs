//! Bulk on a connection whose ends are still meeting: large sends in pieces, and the pauses that let the
//! other end catch up.
//!
//! A sender fills the kernel's buffers, megabytes, within the time in which a reader wakes up, and all of
//! that is on the wrong lane. So a large send of a connection that may still be promoted is made here,
//! piece by piece, and what is left of it moves to the SDP lane as soon as that exists; the program sees
//! one call. Between pieces the meeting goes on, and for a bounded time per connection ([`PAUSE_NS`]), a
//! call waits until the other end has taken its step. This is the only place where a call waits for the
//! other end of a meeting. It refuses to do so for small traffic, for calls that nearly are over, and for
//! peers of a kind that did not answer before.

use core::{
    pin::pin,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use libc::{c_int, pollfd};
use sdp_sys::{errno::Errno, fd, section, sys, time::monotonic_ns};

use crate::{
    api::calls::{self, Road, Ticket},
    conn::{self, Conn, Half, Stage, carrier, iovec::Buffers},
    datapath::{send, splice, wait},
    migration::promote,
    process::{self, table::Pinned},
    wake::stay::Stay,
};

/// Bytes of one piece, and what counts as bulk.
pub(crate) const PIECE: usize = 64 * 1024;
/// Longest that all calls of a connection together pause for the other end …
const PAUSE_NS: u32 = 100_000;
/// … with one nanosecond more for so many bytes that the same call is still to send: little beside the
/// time that they take on the kernel lane …
const PAUSE_BYTES_PER_NS: u64 = 10;
/// … up to this.
const PAUSE_BULK_NS: u32 = 400_000;
/// The same as long as no pause of this process was in vain: with a nanosecond for each byte that is to be sent
/// or was sent before, or for a sender that the program lets block. A reader may be about to get a CPU, which
/// takes a time slice where others want it too, and nothing that is sent before reaches it sooner.
const PAUSE_MAX_NS: u32 = 3_000_000;
/// Long pauses of senders that do not block take this part of a process's time at most.
const LONG_EVERY: u64 = 8;
/// Shortest pause that is worth a system call.
const PAUSE_MIN_NS: u32 = 10_000;
/// Between two looks at a connection that the other end has not accepted.
const NAP_NS: u64 = 30_000;
/// A reader with nothing to read pauses no longer than this: perhaps its sender is done.
const READER_PAUSE_NS: u32 = 50_000;
/// Calls since the meeting began after which a sender of smaller pieces counts as a stream.
const STREAM_CALLS: u32 = 3;
/// Sends of a connection that give the CPU away while the meeting goes on.
const YIELDS: u32 = 64;
/// How long they may take in all, beyond what pauses may: on a machine with much to do one alone takes as long as the
/// scheduler's slices of others are.
const YIELDED_NS: u32 = 2_000_000;
/// Doublings of the distance between pauses that nobody answered.
const BACKOFF_MAX: u32 = 10;
/// Times that one sleeping send wakes up for the meeting's sake.
const WAKES: u32 = 8;
/// Flags of a send that can be made in pieces.
const PLAIN_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;

/// When a sender that does not block may pause for long again, in nanoseconds: an event loop with many fresh
/// connections serves others meanwhile.
static NEXT_LONG_NS: AtomicU64 = AtomicU64::new(0);
/// Pauses in a row that were for nothing, and pauses that were asked for meanwhile.
static UNANSWERED: AtomicU32 = AtomicU32::new(0);
static ASKED: AtomicU32 = AtomicU32::new(0);

/// Whether a call with these flags is for [`send`] or [`sendfile`] if it is to send more than [`PIECE`].
#[inline]
pub(crate) fn concerns(ticket: &Ticket, flags: c_int) -> bool {
    flags & !PLAIN_FLAGS == 0
        && conn::get(ticket.conn())
            .is_some_and(|conn| matches!(conn.stage(), Stage::Young | Stage::Meeting))
        && !process::is_retired()
}

/// A large send on a connection that is not attached yet.
pub(crate) fn send(first: Ticket, buffers: &mut Buffers, flags: c_int) -> Result<usize, Errno> {
    let mut mark = section::mark();
    let number = first.number();
    let held = hold(&first);
    let wanted = buffers.left();
    let mut ticket = first;
    let mut deadline: Option<Option<u64>> = None;
    let mut wakes = 0;
    loop {
        if wanted != buffers.left() && carrier::has_error(number) {
            // Left for the next call, as the kernel leaves it: taken from it here it would be lost.
            calls::finish(ticket, 0, flags);
            return Ok(wanted - buffers.left());
        }
        let sent = carrier::send(number, buffers, PIECE, flags);
        let moved = *sent.as_ref().unwrap_or(&0);
        buffers.advance(moved);
        calls::finish_more(ticket, moved as isize, flags, buffers.left());
        let done = wanted - buffers.left();
        let partial = |e| if done > 0 { Ok(done) } else { Err(e) };
        match sent {
            Ok(_) if buffers.left() == 0 => return Ok(done),
            Ok(_) => {}
            Err(Errno::EPIPE) if done == 0 => {
                return Err(send::raise_pipe(Some(number), flags));
            }
            Err(Errno::EAGAIN) => {
                if flags & libc::MSG_DONTWAIT != 0 || fd::is_nonblocking(number) {
                    return partial(Errno::EAGAIN);
                }
                let until = *deadline.get_or_insert_with(|| {
                    carrier::timeout_ns(number, libc::SO_SNDTIMEO).map(|ns| monotonic_ns() + ns)
                });
                let Some(conn) = Pinned::new(number, Half::Send) else {
                    return partial(Errno::EBADF);
                };
                let stay = pin!(Stay::on(&conn));
                let stay = stay.as_ref();
                let meeting = if wakes < WAKES { expects(&conn) } else { -1 };
                wakes += 1;
                match wait::for_carrier_room_or(&conn, stay, meeting, until, mark) {
                    wait::Woken::Look if wait::was_interrupted(&mut mark) && done > 0 => {
                        return Ok(done);
                    }
                    // Closed meanwhile, the number may be another connection's.
                    wait::Woken::Look if !conn.is_current() => {}
                    wait::Woken::Look => promote::advance(&conn, number),
                    wait::Woken::TimedOut => return partial(Errno::EAGAIN),
                    wait::Woken::Interrupted => return partial(Errno::EINTR),
                    wait::Woken::Closed => return partial(Errno::EBADF),
                }
            }
            Err(e) => return partial(e),
        }
        ticket = match go_on(held.as_ref(), number) {
            Road::Kernel(ticket) => ticket,
            Road::Library(conn) if done == 0 => return send::send(&conn, buffers, flags),
            Road::Library(conn) => {
                // A call that has sent something raises no signal, and keeps what is to be told.
                let rest = send::send(&conn, buffers, flags | libc::MSG_NOSIGNAL);
                if let Err(e) = rest
                    && !matches!(e, Errno::EPIPE | Errno::EAGAIN | Errno::EINTR | Errno::EBADF)
                {
                    conn.owe(e);
                }
                return Ok(done + rest.unwrap_or(0));
            }
            Road::Pass => return partial(Errno::EBADF),
        };
    }
}

/// A large `sendfile` on a connection that is not attached yet.
///
/// # Safety
/// `offset` is null or readable and writable.
pub(crate) unsafe fn sendfile(
    first: Ticket,
    input: c_int,
    offset: *mut i64,
    count: usize,
) -> Result<usize, Errno> {
    let number = first.number();
    let held = hold(&first);
    let mut ticket = first;
    let mut done = 0;
    loop {
        let want = (count - done).min(PIECE);
        // SAFETY: the caller's offset.
        let sent = unsafe { sys!(libc::SYS_sendfile, number, input, offset, want) };
        let moved = *sent.as_ref().unwrap_or(&0);
        done += moved;
        calls::finish_more(ticket, moved as isize, 0, count - done);
        match sent {
            Ok(n) if n == want && done < count => {}
            Ok(_) => return Ok(done),
            Err(e) => return if done > 0 { Ok(done) } else { Err(e) },
        }
        ticket = match go_on(held.as_ref(), number) {
            Road::Kernel(ticket) => ticket,
            Road::Library(conn) => {
                // SAFETY: the caller's offset.
                let rest =
                    unsafe { splice::sendfile(&conn, input, offset, count - done, send::send) };
                // What is the kernel's to send from is sent by the next call: the program sees a short one.
                return Ok(done + rest.and_then(Result::ok).unwrap_or(0));
            }
            Road::Pass => return Ok(done),
        };
    }
}

/// Keeps the ticket's connection from being replaced by another one under the same number and slot.
/// `None`: that has happened already.
fn hold(first: &Ticket) -> Option<Pinned> {
    Pinned::new(first.number(), Half::Send).filter(|conn| conn.index() == first.conn())
}

/// The way of the next piece. [`Road::Pass`] when the number was closed between two pieces, and perhaps
/// names another connection by now: the kernel would go on with the one that the call began on.
fn go_on(held: Option<&Pinned>, number: c_int) -> Road {
    let is_same = |index| held.is_some_and(|conn| conn.index() == index);
    match calls::road(number, Half::Send) {
        Road::Kernel(ticket) if !is_same(ticket.conn()) => {
            calls::finish(ticket, 0, 0);
            Road::Pass
        }
        Road::Library(conn) if !is_same(conn.index()) => Road::Pass,
        road => road,
    }
}

/// The descriptor that tells of the other end's next step; −1 none.
fn expects(conn: &Conn) -> i32 {
    if conn.stage() != Stage::Meeting {
        return -1;
    }
    let _section = section::Guard::enter();
    conn.try_meeting(|meeting| meeting.expects()).unwrap_or(-1)
}

/// After a call that moved bytes of `half` while the ends were meeting; `more` bytes of the same call
/// are still to be sent. Pauses where that saves more than it costs.
pub(crate) fn let_catch_up(conn: &Conn, number: c_int, half: Half, more: usize) {
    let bulk = process::tunables().promote_bytes();
    let moved = conn.bytes[half as usize].load(Ordering::Relaxed);
    let ticks = conn.ticks.load(Ordering::Relaxed);
    let most = match half {
        Half::Send if moved < bulk + PIECE as u64 => 0,
        Half::Send if more < PIECE && ticks < STREAM_CALLS => 0,
        Half::Send => patience(number, moved, more),
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
        // Whoever else wants this CPU may be the reader. Or not: then a yield may take as long as the scheduler's
        // slices are, and it was the last one.
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

/// How long a sender's calls may pause in all (see [`PAUSE_NS`], [`PAUSE_BULK_NS`], [`PAUSE_MAX_NS`]), when they have
/// moved `moved` bytes, `more` before the end of one of them.
fn patience(number: c_int, moved: u64, more: usize) -> u32 {
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
fn pause(conn: &Conn, number: c_int, half: Half, left: u32) {
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
            rest = rest.min(NAP_NS); // nobody has accepted the connection yet
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

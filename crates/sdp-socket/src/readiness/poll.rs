//! Whether a connection has something to read: for one connection (epoll asks), and for `poll` and
//! `select`.

use core::pin::pin;

use libc::{c_int, fd_set, pollfd, sigset_t};
use sdp_fabric_shm::link::{How, Lane, ShmHalf, What};
use sdp_shm::early;
use sdp_stats::{Counter, Reason};
use sdp_sys::{errno::Errno, pid::is_single_threaded, section, time::monotonic_ns};

use crate::{
    conn::{self, Conn, ConnGuard, Half, Limits, Stage, Waiters, alive, carrier},
    datapath::{
        lane::{SinkState, consume_wake_bytes},
        receive, reclaim, splice, wait,
    },
    hosts,
    lifecycle::elsewhere,
    migration::{across::marks, handover},
    process::{
        self,
        fork_page::FORK_PAGE,
        libc_calls::{self, FdSet, Mask},
        scratch::{self, Scratch},
        table::{self, Entry},
    },
    wake::{
        arming::{View, inbound, view, wait_mode},
        call_guard::CallGuard,
        doorbell, interest, spin,
        wait_set::WaitSet,
    },
};

/// Descriptors in one `poll` whose copy, with one entry more, fits on the stack.
const STACK_FDS: usize = 128;
const READ_KIND: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITE_KIND: i16 = libc::POLLOUT | libc::POLLWRNORM;
const OVER: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Whether a receive call would find something: in the ring at a glance, behind a lane switch by
/// following it.
fn is_readable(conn: &Conn, half: ShmHalf<'_>) -> bool {
    let Some(view) = view(conn, half) else { return false };
    view.has_bytes()
        || ends_in_silence(conn, &view)
        || (view.has_switch()
            // Never by the number that it was made with: that may name another socket by now.
            && conn::number_of(conn).is_some_and(|fd| verify(conn, fd).readable))
}

/// Whether the stream has ended, of which the kernel does not tell: the network has dropped the FIN.
fn ends_in_silence(conn: &Conn, view: &View) -> bool {
    view.has_ended && conn::number_of(conn).is_some_and(|fd| !carrier::is_over(fd))
}

/// Whether a receive call on a connection with lanes would find something, without asking the kernel where there is a ring.
fn has_bytes_now(conn: &Conn) -> bool {
    if hosts::is_guarded(conn) {
        return !matches!(hosts::look(conn), Some(hosts::Found::Nothing));
    }
    inbound(conn).is_some_and(|(link, half)| is_readable(conn, link.half(half)))
}

/// Ring cursor that changes with every event. Following a switch counts as an event, too: the bytes
/// behind it were in the ring before, but could not be read while bytes before it were on their
/// way.
pub(crate) fn cursor(conn: &Conn) -> u64 {
    if hosts::is_guarded(conn) {
        return match hosts::look(conn) {
            Some(hosts::Found::Bytes(at)) => at << 1 | 1,
            _ => 0,
        };
    }
    inbound(conn).and_then(|(link, half)| view(conn, link.half(half))).map_or(0, |v| {
        let turns = u64::from(v.switches).wrapping_add(u64::from(v.followed) << 10);
        v.tail.wrapping_add(turns << 40) | 1
    })
}

/// The result of [`look_or_arm`].
#[derive(Clone, Copy)]
pub(crate) enum Look {
    /// Something, by this cursor.
    Readable(u64),
    /// Nothing; the half is armed.
    Empty,
    /// A switch, behind which another thread is at work: to be looked at later.
    Busy,
}

impl Look {
    /// The cursor of what there is to read. `None`: nothing, as far as is known.
    pub(crate) fn cursor(self) -> Option<u64> {
        match self {
            Self::Readable(cursor) => Some(cursor),
            Self::Empty | Self::Busy => None,
        }
    }
}

/// Bytes that are left to read, as `TCP_INQ` counts them: the end of the stream is one more.
pub(crate) fn unread(conn: &ConnGuard) -> i32 {
    let bytes = match hosts::is_guarded(conn) {
        true => hosts::readable_bytes(conn),
        false => splice::readable_bytes(conn).ok(),
    };
    let all = bytes.unwrap_or(0) + u64::from(carrier::is_over(conn.fd()));
    all.min(i32::MAX as u64) as i32
}

/// Whether a receive call would find something. Never waits.
pub(crate) fn look(conn: &Conn) -> Look {
    if hosts::is_guarded(conn) {
        return match hosts::look(conn) {
            Some(hosts::Found::Nothing) => Look::Empty,
            Some(hosts::Found::Bytes(at)) => Look::Readable(at << 1 | 1),
            Some(hosts::Found::End) => Look::Readable(0),
            None => Look::Busy,
        };
    }
    match inbound(conn) {
        Some((link, half)) => glance(conn, link.half(half)),
        None => Look::Empty,
    }
}

/// Whether a receive call would find something; otherwise the half is armed and looked at once
/// more. Never waits.
pub(crate) fn look_or_arm(conn: &Conn) -> Look {
    match look(conn) {
        Look::Empty if !hosts::is_guarded(conn) => {}
        other => return other,
    }
    let Some((link, half)) = inbound(conn) else { return Look::Empty };
    let half = link.half(half);
    half.arm(What::Bytes, wait_mode(conn));
    glance(conn, half)
}

/// As [`is_readable`], without waiting.
fn glance(conn: &Conn, half: ShmHalf<'_>) -> Look {
    let Some(view) = view(conn, half) else { return Look::Empty };
    if view.has_bytes() || ends_in_silence(conn, &view) {
        return Look::Readable(cursor(conn));
    }
    match conn::number_of(conn).filter(|_| view.has_switch()).map(|fd| try_verify(conn, fd)) {
        None => Look::Empty,
        Some(None) => Look::Busy,
        Some(Some(verified)) if verified.readable => Look::Readable(cursor(conn)),
        Some(Some(_)) => Look::Empty,
    }
}

/// Whether bytes come by the ring, or are about to.
pub(crate) fn is_receiving_on_lane(conn: &Conn) -> bool {
    hosts::is_guarded(conn)
        || conn.has_lanes()
            && inbound(conn)
                .and_then(|(link, half)| view(conn, link.half(half)))
                .is_some_and(|view| view.on_sdp || view.has_switch())
}

/// Whether there is nothing in the ring at a glance, nor a switch.
pub(crate) fn seems_empty(conn: &Conn) -> bool {
    if !conn.has_lanes() || !conn.acquire_live(Half::Receive) {
        return true;
    }
    if hosts::is_guarded(conn) {
        let is_empty = !has_bytes_now(conn);
        conn.release(Half::Receive);
        return is_empty;
    }
    let view = inbound(conn).and_then(|(link, half)| view(conn, link.half(half)));
    conn.release(Half::Receive);
    view.is_none_or(|view| !view.has_bytes() && !view.has_switch())
}

/// The state behind a kernel event that says "readable".
pub(crate) struct Verified {
    pub(crate) readable: bool,
    /// The ring's cursor shows nothing of it: kernel lane, end of stream, error.
    pub(crate) is_kernels: bool,
    pub(crate) cursor: Option<u64>,
}

/// Verifies a "readable" of the kernel (R9 b): follows lane switches, consumes wake bytes, then
/// looks at ring, log and carrier. The half is left armed when there is nothing.
pub(crate) fn verify(conn: &Conn, fd: c_int) -> Verified {
    verdict(conn, receive::with_sink(conn, |sink, _, _, half| verify_sink(conn, fd, sink, half)))
}

/// [`verify`] that never waits: under the epoll lock, for which others wait. `None`: another thread
/// is at work on the half, and may be for long.
pub(crate) fn try_verify(conn: &Conn, fd: c_int) -> Option<Verified> {
    if hosts::is_guarded(conn) {
        return verify_both(conn);
    }
    let verified =
        receive::try_sink(conn, false, |sink, _, _, half| verify_sink(conn, fd, sink, half))?;
    Some(verdict(conn, verified))
}

/// [`verify`] of a connection to another host.
fn verify_both(conn: &Conn) -> Option<Verified> {
    let found = hosts::look(conn)?;
    let cursor = if let hosts::Found::Bytes(at) = found { Some(at << 1 | 1) } else { None };
    Some(Verified { readable: !matches!(found, hosts::Found::Nothing), is_kernels: true, cursor })
}

/// Waits a moment for the user of the half; takes over from one that died. False: one is
/// still at it.
#[cold]
pub(crate) fn await_turn(conn: &Conn) -> bool {
    if hosts::is_guarded(conn) {
        return true;
    }
    if !conn.acquire_live(Half::Receive) {
        return true;
    }
    let is_free = receive::try_sink(conn, true, |_, _, _, _| Ok(())).is_some();
    conn.release(Half::Receive);
    is_free
}

/// Whether there is something to read, and whether the kernel alone says so.
fn verify_sink(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    half: ShmHalf<'_>,
) -> Result<(bool, bool), Errno> {
    receive::follow_pending(conn, fd, sink, half);
    if sink.lane == Lane::Sdp {
        consume_wake_bytes(conn, fd, sink, half);
    }
    let pending = sink.pending(half).ok().flatten();
    let on_carrier = || carrier::readiness(fd, libc::POLLIN) & (READ_KIND | OVER) != 0;
    let mut is_over = false;
    let readable = match (sink.lane, pending) {
        (Lane::Sdp, _) if sink.current_len != 0 || receive::ring_has_news(sink, half) => true,
        // A byte on the carrier is a wake byte, perhaps one that is not counted yet, or it lies
        // behind a switch whose wake bytes are still on their way: only an end can be read.
        (Lane::Sdp, _) => {
            is_over = sink.engine.has_ended() || carrier::is_over(fd);
            is_over
        }
        (Lane::Kernel, _) if sink.engine.has_ended() => true,
        (Lane::Kernel, Some(switch)) => {
            sink.consumed(fd).is_ok_and(|consumed| consumed < switch.carrier) && on_carrier()
        }
        (Lane::Kernel, None) => on_carrier(),
    };
    Ok((readable, is_over || sink.lane == Lane::Kernel))
}

fn verdict(conn: &Conn, verified: Result<(bool, bool), Errno>) -> Verified {
    let Ok((readable, is_kernels)) = verified else {
        // A broken connection is readable: the receive call says why.
        return Verified { readable: true, is_kernels: true, cursor: None };
    };
    if !readable
        && !is_kernels
        && let Some((link, half)) = inbound(conn)
    {
        // The producer that sent the wake byte disarmed the half.
        let half = link.half(half);
        half.arm(What::Bytes, wait_mode(conn));
        // A switch whose wake bytes are still on their way cannot be read; they wake this thread by
        // the carrier.
        let readable = view(conn, half).is_some_and(|v| v.has_bytes());
        return Verified { readable, is_kernels, cursor: Some(cursor(conn)) };
    }
    Verified { readable, is_kernels, cursor: Some(cursor(conn)) }
}

fn attached(fd: c_int) -> Option<&'static Conn> {
    if fd < 0 {
        return None;
    }
    let Some(Entry::Conn(index)) = table::entry(fd) else { return None };
    let conn = conn::get(index)?;
    if !conn.has(Waiters::Seen) {
        conn.set(Waiters::Seen);
    }
    (conn.has_lanes()).then_some(conn)
}

/// Whether the library makes a wait for this descriptor: it is on a lane, or markers may come to stand on its carrier while
/// the wait lasts, which are nothing to read; or it is a set with something on a lane.
fn concerns(fd: c_int) -> bool {
    attached(fd).is_some()
        || match table::entry(fd) {
            Some(Entry::Conn(index)) => {
                conn::get(index).is_some_and(|conn| conn.stage() == Stage::Remote)
            }
            Some(Entry::Set(index)) => interest::may_seem_readable(index),
            _ => false,
        }
}

/// The outcome of a wait for many descriptors.
#[derive(Debug)]
pub(crate) enum Waited {
    /// Nothing in it is on a lane: it is the kernel's.
    Pass,
    /// The same, and something in it may come onto one meanwhile: [`Early::over`] is to be called when it is over.
    PassEarly,
    /// It has been made.
    Done(Result<usize, Errno>),
}

/// The calling thread is counted as one that waits for connections which have no lanes yet (O10).
pub(crate) struct Early(bool);

impl Early {
    /// Counts the thread if `is_early`: its connections have been marked ([`watch`]). Connections
    /// with lanes have to be looked at after this.
    fn begin(is_early: bool) -> Self {
        if is_early {
            early::fall_asleep(&FORK_PAGE.busy.early);
        }
        Self(is_early)
    }

    /// The wait is the kernel's: the thread that makes it ends it, too.
    fn pass(self) -> Waited {
        let is_early = self.0;
        core::mem::forget(self);
        if is_early { Waited::PassEarly } else { Waited::Pass }
    }

    /// A wait that was answered with [`Waited::PassEarly`] is over.
    pub(crate) fn over() {
        early::wake_up(&FORK_PAGE.busy.early);
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if self.0 {
            Self::over();
        }
    }
}

/// `fd` is about to be waited for. A connection that may get lanes is marked as waited for early, and the answer is
/// true; a set learns that it is watched from outside.
fn watch(fd: c_int) -> bool {
    let index = match table::entry(fd) {
        Some(Entry::Conn(index)) => index,
        Some(Entry::Set(index)) => {
            interest::watched(index);
            return false;
        }
        _ => return false,
    };
    let Some(conn) = conn::get(index) else { return false };
    let is_early =
        matches!(conn.stage(), Stage::Fresh | Stage::Candidate | Stage::Meeting | Stage::Remote);
    if is_early {
        early::mark(conn.flags.word(), Waiters::Early.bit());
    }
    is_early
}

/// `poll`.
///
/// # Safety
/// `fds` is readable and writable for `count` entries; `mask` is null or a signal set.
pub(crate) unsafe fn poll(
    fds: *mut pollfd,
    count: usize,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Waited {
    if count == 0 || fds.is_null() || process::is_retired() {
        return Waited::Pass;
    }
    // SAFETY: the program's array and its mask, until the call returns.
    let (fds, mask) = unsafe { (core::slice::from_raw_parts_mut(fds, count), Mask::new(mask)) };
    if elsewhere::polls(fds) {
        return Waited::Pass;
    }
    let mut is_early = false;
    for entry in fds.iter() {
        handover::claim_copy(entry.fd);
        is_early |= watch(entry.fd);
    }
    let early = Early::begin(is_early && timeout_ns != Some(0));
    if !fds.iter().fold(false, |any, entry| any | concerns(entry.fd)) {
        return early.pass();
    }
    let waited = poll_here(fds, timeout_ns, mask, libc_calls::ppoll);
    waited.map_or_else(|| early.pass(), Waited::Done)
}

/// The kernel's wait: [`libc_calls::ppoll`], or [`libc_calls::ppoll_any`].
type KernelPoll = fn(&mut [pollfd], Option<&libc::timespec>, Mask) -> Result<usize, Errno>;

/// [`poll`] with something in it that is on a lane. `None`: the process entered a sandbox meanwhile, and the wait
/// begins anew.
fn poll_here(
    fds: &mut [pollfd],
    timeout_ns: Option<u64>,
    mask: Mask,
    kernel_poll: KernelPoll,
) -> Option<Result<usize, Errno>> {
    let count = fds.len();
    // No memory to hide "writable" from the kernel in a copy, or no way to be woken for room: the
    // sender tries again.
    let is_long = (STACK_FDS..scratch::ENTRIES).contains(&count);
    let mut scratch = if is_long { Scratch::take() } else { None };
    let is_copied = count < STACK_FDS || scratch.is_some();
    let hides = is_copied && (timeout_ns == Some(0) || doorbell::event_fd() >= 0);
    if !hides {
        for conn in fds.iter().filter_map(|entry| attached(entry.fd)) {
            interest::room_granted(conn);
        }
    }
    let until = timeout_ns.map(|ns| monotonic_ns().saturating_add(ns));
    let (mut has_spun, mut has_slept) = (timeout_ns == Some(0), false);
    let mut has_asked = false;
    // An array of as many entries as the process may have descriptors, all of them used: the kernel takes none of ours.
    let mut is_full = false;
    let mut sleeps = 0;
    loop {
        if process::is_retired() {
            // Another thread entered a sandbox while this one slept: the wait is the kernel's, and begins
            // anew, because the program's own call is the one that the sandbox allows.
            return None;
        }
        let due = hosts::between_waits(interest::attached);
        let mut ready = ring_ready(fds, hides, true);
        // "Writable" the kernel mostly has already: a look at rings would be in vain, and teach the wrong thing.
        let asks_first = ready == 0
            && !core::mem::replace(&mut has_asked, true)
            && fds.iter().any(|entry| wants_room_of_kernel(entry, hides));
        if ready == 0 && !has_spun && !asks_first {
            has_spun = true;
            if let Some(conn) = fds.iter().find_map(|entry| attached(entry.fd)) {
                // The first connection learns for the whole array.
                let budget = spin::budget(conn);
                if budget != 0 {
                    let is_ready = || {
                        // A look at a guarded carrier is a system call: only after a completion.
                        let are_guarded_looked_at = hosts::drain();
                        ring_ready(fds, hides, are_guarded_looked_at) > 0
                    };
                    if let Some(success) = spin::shared_pause(conn.peer_cpu(), budget, is_ready) {
                        spin::learn(conn, success);
                        if success {
                            wait::count_shared(Counter::Spun);
                        }
                        ready = ring_ready(fds, hides, true);
                    }
                }
            }
        }
        let bound = if ready > 0 { None } else { reclaim::before_sleep() };
        let left = until.map(|u| u.saturating_sub(monotonic_ns()));
        let must_not_sleep = ready > 0 || left == Some(0) || asks_first;
        let asleep = if must_not_sleep { 0 } else { monotonic_ns() };
        // O8: a thread that waits for room looks again now and then, should the reader die before
        // it rings.
        let bound = if fds.iter().any(|entry| waits_for_room(entry, hides).is_some()) {
            Some(wait::BOUNDED_SLEEP_NS)
        } else {
            bound
        };
        let bound = shorter(shorter(left, hosts::wait_bound(due)), bound);
        let left_now = if must_not_sleep { Some(0) } else { bound };
        // The kernel lets no signal in where something is ready already.
        let mask = if ready > 0 { Mask::NONE } else { mask };
        let how = Wait { hides, is_full, kernel_poll };
        let polled = sleep(fds, left_now, mask, how, sleeps, scratch.as_mut());
        if polled == Err(Errno::EINVAL) && !core::mem::replace(&mut is_full, true) {
            continue;
        }
        sleeps = sleeps.saturating_add(u32::from(!must_not_sleep));
        let has_slept_well = !must_not_sleep && polled.is_ok_and(|ready| ready > 0);
        if has_slept_well && let Some(conn) = fds.iter().find_map(|entry| attached(entry.fd)) {
            spin::learn_from_sleep(conn, monotonic_ns() - asleep);
        }
        if let Err(e) = polled {
            return Some(Err(e));
        }
        let (mut total, mut pass) = (0, alive::Pass::default());
        for entry in fds.iter_mut() {
            if let Some(conn) = attached(entry.fd)
                && conn.acquire_live(Half::Receive)
            {
                correct(conn, entry, hides);
                if has_slept_well && entry.revents & READ_KIND != 0 {
                    pass.moved(conn);
                }
                interest::wake_bytes_consumed(conn);
                conn.release(Half::Receive);
            } else if entry.revents & READ_KIND != 0
                && let Some(Entry::Set(set)) = table::entry(entry.fd)
                && !super::epoll::has_events(entry.fd, set)
            {
                entry.revents &= !READ_KIND;
            }
            total += usize::from(entry.revents != 0);
        }
        // Nothing, although a ring had something: another thread took it, or entered a sandbox.
        if total > 0 || left == Some(0) {
            return Some(Ok(total));
        }
        if !asks_first && core::mem::replace(&mut has_slept, true) {
            wait::yield_to_sender();
        }
    }
}

/// The shorter of two limits.
pub(crate) fn shorter(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// Whether the ring decides about "writable" of this entry: a sender got EAGAIN, or would get it
/// now, or would block.
fn waits_for_room(entry: &pollfd, hides: bool) -> Option<&'static Conn> {
    if entry.events & WRITE_KIND == 0 {
        return None;
    }
    attached(entry.fd).filter(|conn| {
        // Another thread may close it meanwhile.
        if !conn.acquire_live(Half::Send) {
            return false;
        }
        let waits = conn.has(Waiters::WantRoom)
            || (hides && interest::can_be_rung(conn) && !super::sender_may_go_on(conn));
        conn.release(Half::Send);
        waits
    })
}

/// Whether "writable" of this entry is asked for, and the kernel's to say.
fn wants_room_of_kernel(entry: &pollfd, hides: bool) -> bool {
    entry.events & WRITE_KIND != 0
        && attached(entry.fd).is_some()
        && waits_for_room(entry, hides).is_none()
}

/// A set that is polled itself must be seen by the kernel's eyes.
fn wants_bytes(entry: &pollfd) -> bool {
    entry.events & READ_KIND != 0
}

/// How many entries have something in their ring, or, if those `are_guarded_looked_at`, from another host.
fn ring_ready(fds: &[pollfd], hides: bool, are_guarded_looked_at: bool) -> usize {
    fds.iter()
        .filter(|entry| {
            if let Some(conn) = waits_for_room(entry, hides)
                && conn.acquire_live(Half::Send)
            {
                let roomy = super::sender_may_go_on_or_arm(conn);
                conn.release(Half::Send);
                if roomy {
                    return true;
                }
            }
            wants_bytes(entry)
                && attached(entry.fd).is_some_and(|conn| {
                    let is_skipped = !are_guarded_looked_at && hosts::is_guarded(conn);
                    if is_skipped || !conn.acquire_live(Half::Receive) {
                        return false;
                    }
                    let ready = has_bytes_now(conn);
                    interest::wake_bytes_consumed(conn);
                    conn.release(Half::Receive);
                    ready
                })
        })
        .count()
}

/// How one wait is made.
#[derive(Clone, Copy)]
struct Wait {
    hides: bool,
    is_full: bool,
    kernel_poll: KernelPoll,
}

/// Arms each half that can be armed, looks again, and polls the kernel; returns how many entries
/// the kernel reports as ready. `sleeps`: sleeps of the same call before.
#[inline(never)]
fn sleep(
    fds: &mut [pollfd],
    left: Option<u64>,
    mask: Mask,
    Wait { hides, is_full, kernel_poll }: Wait,
    sleeps: u32,
    scratch: Option<&mut Scratch>,
) -> Result<usize, Errno> {
    let guard = pin!(CallGuard::on_several());
    let guard = guard.as_ref();
    let mut wait_set = WaitSet::NONE;
    let mut doorbell = None;
    let mut left = left;
    if left != Some(0) {
        guard.begin();
        let _section = section::Guard::enter();
        if hides && !is_full {
            wait_set = WaitSet::take();
        }
        if wait_set.exists() {
            doorbell = wait_set.doorbells();
        } else if fds.iter().any(|entry| waits_for_room(entry, hides).is_some()) {
            left = shorter(left, Some(wait::MORE_SLEEP_NS)); // nobody can wake us for room
        }
        wait::fall_asleep(guard, doorbell, &wait_set);
        for entry in fds.iter().filter(|e| wants_bytes(e)) {
            if let Some(conn) = attached(entry.fd)
                && conn.acquire_live(Half::Receive)
            {
                if let Some((link, half)) = inbound(conn) {
                    if !conn.has(Waiters::Polled) {
                        conn.set(Waiters::Polled); // before it is armed: the thread that consumes its wake byte sees this
                    }
                    let half = link.half(half);
                    let mode = if wait_set.exists() { wait_mode(conn) } else { How::Carrier };
                    half.arm(What::Bytes, mode);
                    if mode == How::Carrier && !is_single_threaded() {
                        // A thread that reads may take the wake byte that is to wake this wait.
                        left = shorter(left, Some(wait::BOUNDED_SLEEP_NS));
                    }
                }
                // O4: family members may take the wake byte that is to wake this wait.
                left = shorter(left, wait::sleep_beside_family(conn, sleeps));
                conn.release(Half::Receive);
            }
        }
        if ring_ready(fds, hides, true) > 0 {
            left = Some(0);
        } else {
            wait::count_shared(Counter::Slept);
        }
    }
    let timeout = left.map(wait::to_timespec);
    let result = if hides {
        // An entry that the program does not use takes ours: there may be as many as the process may have descriptors.
        let n = fds.len();
        let unused =
            if wait_set.exists() { fds.iter().position(|entry| entry.fd < 0) } else { None };
        let (at, len) = unused.map_or((n, n + usize::from(wait_set.exists())), |at| (at, n));
        let mut short = [pollfd { fd: -1, events: 0, revents: 0 }; STACK_FDS];
        let copy = scratch.map_or(&mut short[..], Scratch::entries);
        for (to, from) in copy.iter_mut().zip(fds.iter()) {
            *to = *from;
            if let Some(conn) = waits_for_room(from, hides) {
                // R10: the carrier would say yes for ever. A reader that goes away frees no room; that it has
                // gone it says for ever, too.
                let knows_end = conn.has(Limits::PeerGone) || hosts::is_guarded(conn);
                let end = if knows_end { 0 } else { libc::POLLRDHUP };
                to.events = (to.events & !WRITE_KIND) | end;
            }
        }
        if let Some(ours) = copy.get_mut(at) {
            *ours = pollfd { fd: wait_set.raw(), events: libc::POLLIN, revents: 0 };
        }
        let polled = match copy.get_mut(..len) {
            Some(all) => kernel_poll(all, timeout.as_ref(), mask),
            None => Err(Errno::EINVAL),
        };
        if let Some(ours) = copy.get_mut(at)
            && core::mem::take(&mut ours.revents) != 0
        {
            wait_set.clear();
        }
        for (to, from) in fds.iter_mut().zip(copy.iter()) {
            to.revents = from.revents;
        }
        polled
    } else {
        kernel_poll(fds, timeout.as_ref(), mask)
    };
    if doorbell.is_some() {
        wait::wake_up(guard, doorbell, &wait_set);
    }
    result
}

/// Makes an entry's result the one that the program must see.
fn correct(conn: &Conn, entry: &mut pollfd, hides: bool) {
    if entry.revents & libc::POLLERR != 0 && marks::is_gone(entry.fd) {
        entry.revents &= !libc::POLLERR;
    }
    if waits_for_room(entry, hides).is_some() {
        let is_over = entry.revents & (libc::POLLRDHUP | OVER) != 0;
        let is_news = is_over && !conn.has(Limits::PeerGone) && !hosts::is_guarded(conn);
        if is_news {
            conn.set(Limits::PeerGone); // E4: the carrier takes what is sent from here on
        }
        if is_news || super::sender_may_go_on_or_arm(conn) {
            interest::room_granted(conn);
            entry.revents |= entry.events & WRITE_KIND;
        } else {
            entry.revents &= !WRITE_KIND;
        }
    }
    entry.revents &= entry.events | OVER;
    if conn.has_pending_error() && hosts::is_guarded(conn) {
        entry.revents |= libc::POLLERR; // the library has taken it from the kernel
    }
    if !wants_bytes(entry) {
        return;
    }
    let is_guarded = hosts::is_guarded(conn);
    let is_there = if is_guarded { hosts::finds(conn) } else { has_bytes_now(conn) };
    if is_there {
        entry.revents |= entry.events & READ_KIND;
    } else if is_guarded {
        let is_over = entry.revents & (OVER | libc::POLLRDHUP) != 0;
        entry.revents &= if is_over { !0 } else { !READ_KIND };
    } else if entry.revents & READ_KIND != 0 && entry.revents & (OVER | libc::POLLRDHUP) == 0 {
        let verified = verify(conn, entry.fd);
        if !verified.readable {
            entry.revents &= !READ_KIND;
        }
    }
}

/// Entries of one `select` that are looked at together; the rest of a sparse set is empty anyway.
const SELECT_MAX: usize = 1024;
/// As many of them as fit on the stack; few programs have more.
const SELECT_FEW: usize = 64;
const NO_ENTRY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// Highest descriptor number that is looked for in a set: no process has more.
pub(crate) const SELECT_BITS: usize = 1 << 20;

/// `select`.
///
/// # Safety
/// The sets are null or readable and writable for `count` bits; `mask` is null or a signal set.
pub(crate) unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Waited {
    let bits = usize::try_from(count).unwrap_or(0);
    // SAFETY: the program's sets and its mask, until the call returns.
    let (sets, mask) =
        unsafe { ([read, write, except].map(|set| FdSet::new(set, bits)), Mask::new(mask)) };
    if elsewhere::selects(count, sets) {
        return Waited::Pass;
    }
    let [read, write, except] = sets;
    let Ok(count) = usize::try_from(count) else { return Waited::Pass };
    if count > SELECT_BITS || process::is_retired() {
        return Waited::Pass;
    }
    let mut few = [NO_ENTRY; SELECT_FEW];
    let mut many: Option<Scratch> = None;
    let mut used = 0;
    let mut is_early = false;
    let mut overflows = false;
    for fd in 0..count {
        let mut events = 0;
        for (set, event) in [(read, libc::POLLIN), (write, libc::POLLOUT), (except, libc::POLLPRI)]
        {
            if set.has(fd) {
                events |= event;
            }
        }
        if events != 0 {
            handover::claim_copy(fd as c_int);
            is_early |= watch(fd as c_int);
            if used == SELECT_FEW && many.is_none() {
                many = Scratch::take();
                let room = many.as_mut().map_or(&mut [][..], Scratch::entries);
                room.iter_mut().zip(few).for_each(|(to, from)| *to = from);
            }
            let fds = many.as_mut().map_or(&mut few[..], Scratch::entries);
            match fds.get_mut(used).filter(|_| used < SELECT_MAX) {
                Some(entry) => {
                    *entry = pollfd { fd: fd as c_int, events, revents: 0 };
                    used += 1;
                }
                None => overflows = true,
            }
        }
    }
    let early = Early::begin(is_early && timeout_ns != Some(0));
    if overflows {
        // More than we can look at together: these connections are the kernel's from now on.
        for fd in (0..count).filter(|fd| read.has(*fd) || write.has(*fd)) {
            if let Some(conn) = attached(fd as c_int)
                && conn.acquire_live(Half::Receive)
            {
                handover::leave(conn, fd as c_int, Reason::Limit);
                conn.release(Half::Receive);
            }
        }
        return early.pass();
    }
    let fds = many.as_mut().map_or(&mut few[..], Scratch::entries);
    let fds = fds.get_mut(..used).unwrap_or(&mut []);
    if !fds.iter().fold(false, |any, entry| any | concerns(entry.fd)) {
        return early.pass();
    }
    let polled = match poll_here(fds, timeout_ns, mask, libc_calls::ppoll_any) {
        None => return early.pass(),
        Some(Err(e)) => return Waited::Done(Err(e)),
        Some(Ok(_)) => fds,
    };
    let fds = &*polled;
    if fds.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Waited::Done(Err(Errno::EBADF));
    }
    let mut total = 0;
    for entry in fds {
        let shown = [
            (read, libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
            (write, libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
            (except, libc::POLLPRI, libc::POLLPRI),
        ];
        for (set, asked, means) in shown {
            if entry.events & asked == 0 {
                continue;
            }
            if entry.revents & means != 0 {
                total += 1;
            } else {
                set.clear(entry.fd as usize);
            }
        }
    }
    Waited::Done(Ok(total))
}

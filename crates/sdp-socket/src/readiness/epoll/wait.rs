//! `epoll_wait` on a set of ours: rings first, the kernel beside them, one event of both.

use core::{mem::MaybeUninit, sync::atomic::Ordering};

use libc::{c_int, epoll_event, sigset_t};
use sdp_stats::Counter;
use sdp_sys::{errno::Errno, pid::is_single_threaded, sys, time::monotonic_ns};

use super::{
    copies, end, inherited,
    once::{disable_in_kernel, enable_in_kernel},
    order::{BATCH, Bits, Output, Room, collect_bits, take_bits},
    pause::{MERGE_AFTER_NS, plan_spin, spin_on_doorbell},
    room::{all_of, note_end, writable_too},
};
use crate::{
    conn::{self, Conn, Half, Stage, Waiters, carrier, sharing},
    datapath::{reclaim::before_sleep, wait},
    hosts,
    process::{
        self,
        libc_calls::{self, Mask},
        table::{self, Entry},
    },
    readiness::{self, Look, shorter},
    wake::{
        arming, doorbell,
        interest::{
            self, ALWAYS, ET, EXCLUSIVE, End, IN, IN_KIND, ONESHOT, OUT, RDHUP, foreign,
            mirror::{ANY_BY_CARRIER, Mirror, NONE, REGISTRATIONS, Registration, Set, with},
            signal_own_sets, stale, tell_of_consumed,
        },
        strangers::Doorbells,
        wait_set,
    },
};

/// Kernel events are reported before ring events at least once in so many waits, and each [`MERGE_AFTER_NS`].
const MERGE_EVERY: u32 = 8;
/// Of so many wake-ups by the doorbell one is verified as if it had come from the anchor's carrier.
const VERIFY_EVERY: u8 = 16;
/// How often the kernel is asked at most within one look, where all it had were wake bytes.
const ASKS: usize = 8;
/// Shorter waits of sets without a lane are the kernel's alone: one that misses a lane is late by no more.
const PASSED_BELOW_NS: u64 = 1_000_000;

/// `epoll_wait` on a set of ours. `None`: pass the call on.
///
/// # Safety
/// `events` is writable for `max` events; `mask` is null or a signal set.
pub(crate) unsafe fn wait(
    set_fd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, Errno>> {
    let Some(Entry::Set(set)) = table::entry(set_fd) else { return None };
    if max <= 0 || events.is_null() || process::is_retired() {
        return None;
    }
    inherited::share(set);
    // One that meets during the wait may have a marker on its carrier, which is nothing to read.
    let passed_below_ns = if hosts::may_meet() { 0 } else { PASSED_BELOW_NS };
    hosts::take_new(interest::attached);
    // Nothing in it is on a lane, and the call is over before a lane could be missed.
    if timeout_ns.is_some_and(|ns| ns < passed_below_ns)
        && with(|m| !concerns_us(m, set) && m.set(set).is_none_or(|s| !s.has_oneshots))?
    {
        return None;
    }
    // SAFETY: the program's room for `max` events and its mask, until the call returns.
    let (room, mask) = unsafe { (Room::new(events, max as usize), Mask::new(mask)) };
    let done = wait_on(set_fd, set, room, timeout_ns, mask);
    if !ANY_BY_CARRIER.load(Ordering::Relaxed) {
        return done;
    }
    let left = with(|m| m.set(set).filter(|s| s.by_carrier).map(|s| s.ready_first != NONE))?;
    match left {
        // A thread that waits for the set itself must see that there is more.
        Some(true) => signal_own_sets(),
        // A producer was preempted between a wake byte on the carrier and its count: until it runs
        // again, the kernel calls the set readable, and a thread that waits for the set comes back
        // at once.
        Some(false) if timeout_ns == Some(0) && matches!(done, Some(Ok(0))) => {
            sdp_sys::time::yield_now();
        }
        _ => {}
    }
    done
}

/// [`wait`] on a set whose members may come to be on a lane at any time, by another thread's hand: every
/// sleeper is counted, whatever is in the set when it falls asleep.
fn wait_on(
    set_fd: c_int,
    set: u32,
    room: Room<'_>,
    timeout_ns: Option<u64>,
    mask: Mask,
) -> Option<Result<usize, Errno>> {
    // The clock is read only where the time is used.
    let until = timeout_ns.map(|ns| match ns {
        0 => 0,
        _ => monotonic_ns().saturating_add(ns),
    });
    let still = || {
        until.map(|until| match until {
            0 => 0,
            _ => until.saturating_sub(monotonic_ns()),
        })
    };
    let mut out = Output::new(room);
    let (mut has_spun, mut has_slept, mut has_awaited) = (false, false, false);
    loop {
        if process::is_retired() {
            // Another thread entered a sandbox while this one slept: the wait is the kernel's, and begins
            // anew, because the program's own call is the one that the sandbox allows.
            return None;
        }
        let due = hosts::between_waits(interest::attached);
        collect_bits(set);
        let mut is_late = false;
        let collected = with(|m| {
            if !concerns_us(m, set) {
                return None;
            }
            if m.set(set).is_some_and(|s| s.has_room_waiters) {
                m.recheck_room_in_time(set, monotonic_ns());
            }
            let s = m.set(set)?;
            let is_mixed = s.by_kernel != 0;
            let is_rings_turn = core::mem::take(&mut s.is_rings_turn);
            if s.ready_first != NONE && !is_rings_turn && is_kernels_turn(s) {
                return Some(Collected::KernelFirst);
            }
            // The kernel has a place for each connection of its, however much is in the rings.
            let places = match s.ready_first {
                NONE => 0,
                _ if is_rings_turn || !is_mixed => 0,
                _ => (s.by_kernel as usize).min(out.max.div_ceil(2)),
            };
            if places == out.max {
                return Some(Collected::KernelFirst);
            }
            out.max -= places;
            collect(m, set, &mut out);
            out.max += places;
            if out.used > 0 && out.used < out.max && doorbell::pages().is_some_and(Doorbells::any) {
                // It was signalled while this was verified: the next wait would report it a round
                // too late.
                is_late = true;
            }
            Some(if is_mixed { Collected::Mixed } else { Collected::Rings })
        })?;
        if is_late && collect_bits(set) {
            with(|m| collect(m, set, &mut out));
        }
        let Some(mut collected) = collected else {
            let left = still();
            let due = hosts::wait_bound(due);
            let bound =
                if left == Some(0) { left } else { shorter(left, shorter(due, before_sleep())) };
            match kernel_only(set_fd, set, &mut out, milliseconds(bound), mask) {
                Err(e) => return Some(Err(e)),
                Ok(true) if out.used == 0 && bound != left => continue,
                Ok(true) => return Some(Ok(out.used)),
                Ok(false) if left == Some(0) => return Some(Ok(out.used)),
                Ok(false) if is_closed(set_fd, set) => return Some(Err(Errno::EBADF)),
                Ok(false) => continue,
            }
        };
        if collected == Collected::KernelFirst {
            ask_kernel(set_fd, set, &mut out, Mask::NONE).ok();
            collected = Collected::Rings;
            with(|m| {
                if let Some(s) = m.set(set) {
                    s.is_rings_turn = out.used > 0;
                }
                if out.used == 0 {
                    collect(m, set, &mut out);
                } else {
                    wake_another(m, set);
                }
            });
        }
        if out.used > 0 {
            if collected == Collected::Mixed && out.used < out.max {
                let rings = out.used;
                ask_kernel(set_fd, set, &mut out, Mask::NONE).ok();
                let holds = with(|m| m.set(set).is_some_and(|s| s.held_rings)) == Some(true);
                if !(holds && with(|m| out.withdraw(m, rings)) == Some(true)) {
                    out.bring_forward(rings);
                }
            }
            return Some(Ok(out.used));
        }
        let left = still();
        if let Some(conn) = take_busy(set)
            && (left != Some(0) || !core::mem::replace(&mut has_awaited, true))
        {
            // Not under the lock for which all sets wait.
            if !readiness::await_turn(conn) {
                // It may be long, or for ever, until the lock is free: the kernel's events for
                // other connections must not wait for that.
                let asked = ask_kernel(set_fd, set, &mut out, Mask::NONE);
                if out.used > 0 || asked.is_err() {
                    return Some(asked.map(|()| out.used));
                }
            }
            continue;
        }
        if left == Some(0) {
            return Some(ask_kernel(set_fd, set, &mut out, mask).map(|()| out.used));
        }
        if !has_spun {
            has_spun = true;
            // A thread that goes to sleep at once asks the kernel then.
            if let Some(plan) = plan_spin(set) {
                // The kernel's events must not wait for a spin, which cannot see them.
                if plan.asks_first {
                    let asked = ask_kernel(set_fd, set, &mut out, Mask::NONE);
                    if out.used > 0 || asked.is_err() {
                        return Some(asked.map(|()| out.used));
                    }
                }
                if plan.budget != 0 && spin_on_doorbell(set, &plan) {
                    continue;
                }
            }
        }
        let is_bounded = with(|m| m.set(set).is_some_and(|s| s.has_room_waiters)) == Some(true);
        // Another thread may take a wake byte on the carrier that is to wake this one, and then no
        // peer can.
        let may_be_robbed = doorbell::event_fd() < 0 && !is_single_threaded();
        let bound = before_sleep();
        let bound = if is_bounded || may_be_robbed { Some(wait::BOUNDED_SLEEP_NS) } else { bound };
        let bound = shorter(shorter(left, hosts::wait_bound(due)), bound);
        let result = kernel_events(set_fd, set, &mut out, milliseconds(bound), mask);
        if is_bounded && out.used == 0 {
            with(|m| m.recheck_room(set));
        }
        match result {
            Err(e) => return Some(Err(e)),
            Ok(_) if out.used > 0 => return Some(Ok(out.used)),
            Ok(_) => {}
        }
        if is_closed(set_fd, set) {
            return Some(Err(Errno::EBADF));
        }
        if core::mem::replace(&mut has_slept, true) {
            wait::yield_to_sender();
        }
    }
}

/// Whether the set's number was closed, or names something else now.
fn is_closed(set_fd: c_int, set: u32) -> bool {
    table::entry(set_fd) != Some(Entry::Set(set)) && !process::is_retired()
}

/// Whether anything in the set is on a lane.
fn concerns_us(m: &mut Mirror, set: u32) -> bool {
    let Some(s) = m.set(set) else { return false };
    if s.is_inherited {
        // Halves were armed for the parent: everything is looked at once.
        s.is_inherited = false;
        m.each_member(set, Mirror::push_ready);
    }
    let Some(s) = m.set(set) else { return false };
    if s.anchor == NONE && s.has_lane {
        m.reanchor(set);
    }
    m.set(set).is_some_and(|s| s.has_lane)
}

/// The kernel's wait, into the program's own array, while nothing of the set is on a lane. False: nothing
/// to report yet; look again.
#[inline(never)]
fn kernel_only(
    set_fd: c_int,
    set: u32,
    out: &mut Output<'_>,
    timeout_ms: c_int,
    mask: Mask,
) -> Result<bool, Errno> {
    let sleeper = if timeout_ms == 0 { None } else { Sleeper::new(set) };
    // Looked at again only now: a thread that attaches one from here on finds a sleeper.
    if sleeper.is_some() && with(|m| concerns_us(m, set)) == Some(true) {
        if let Some(sleeper) = sleeper {
            with(|m| sleeper.wake(m, false));
        }
        return Ok(false);
    }
    let since = stale::latest();
    let got = out.events.wait(set_fd, timeout_ms, mask);
    if let Some(sleeper) = sleeper {
        with(|m| sleeper.wake(m, got.is_ok_and(|n| n > 0)));
    }
    let got = got?;
    if got == 0 {
        return Ok(timeout_ms >= 0);
    }
    // What the kernel reports of one that has met during the wait may be a marker alone.
    hosts::take_new(interest::attached);
    let kept = with(|m| {
        // More than a batch is passed on nearly as it is: at worst a connection with nothing but a
        // wake byte.
        let is_doubtful =
            || (0..got).any(|i| foreign::may_be_a_family_member_s(&out.events.get(i)));
        if (concerns_us(m, set) || is_doubtful()) && got <= BATCH {
            return None;
        }
        // Lanes that came and went meanwhile may have left something.
        let has_changed = stale::latest() != since;
        let has_oneshots = m.set(set).is_some_and(|s| s.has_oneshots);
        if !has_changed && !has_oneshots {
            return Some(got);
        }
        let mut kept = 0;
        for i in 0..got {
            let event = out.events.get(i);
            if has_changed && m.is_late(set, &event, since) && !m.is_taken(set, event.u64) {
                continue;
            }
            if has_oneshots {
                disable(m, set, event.u64);
            }
            out.events.put(kept, event);
            kept += 1;
        }
        Some(kept)
    });
    if kept != Some(None) {
        out.used = kept.flatten().unwrap_or(got);
        return Ok(out.used > 0);
    }
    // Something came onto a lane meanwhile: its events are verified like any other.
    let mut batch = [epoll_event { events: 0, u64: 0 }; BATCH];
    for (i, event) in batch.iter_mut().take(got).enumerate() {
        *event = out.events.get(i);
    }
    with(|m| {
        for event in batch.iter().take(got) {
            translate(m, set, event, since, out);
        }
        // Entries that were reported are on the list, and not armed.
        wake_another(m, set);
    });
    Ok(out.used > 0)
}

/// The kernel has reported these ONESHOT registrations, and disabled them.
fn disable(m: &mut Mirror, set: u32, data: u64) {
    let mut at = m.first_like(set, data);
    while let Some(reg) = m.registrations.get_mut(at as usize) {
        if reg.is_used && reg.set == set && reg.data == data && reg.events & ONESHOT != 0 {
            reg.is_disabled = true;
        }
        at = reg.next_hash;
    }
}

/// Rounded up, as the kernel does.
pub(super) fn milliseconds(left: Option<u64>) -> c_int {
    match left {
        None => -1,
        Some(ns) => ns.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int,
    }
}

/// The next step of a wait after its look at the rings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Collected {
    /// The rings' events are all, if there are any.
    Rings,
    /// The kernel's come before them: one of its connections may have sent first.
    Mixed,
    /// The kernel's events come first. Nothing was looked at.
    KernelFirst,
}

/// Whether a wait that has events of rings reports the kernel's first, and those alone: now and
/// then, and always when the kernel was not asked for a while. A new connection must be accepted
/// before an event is reported that its client sent later on a lane, or its first bytes come too
/// late.
fn is_kernels_turn(s: &mut Set) -> bool {
    let now = monotonic_ns();
    s.waits = s.waits.wrapping_add(1);
    let is_due =
        s.waits.is_multiple_of(MERGE_EVERY) || now.saturating_sub(s.merged_ns) > MERGE_AFTER_NS;
    if is_due {
        s.merged_ns = now;
    }
    is_due
}

/// Another sleeper looks at the entries that are still on the ready list when a thread leaves: the
/// kernel chain-wakes, too.
fn wake_another(m: &mut Mirror, set: u32) {
    if m.set(set).is_some_and(|s| s.ready_first != NONE && s.sleepers > 0) {
        signal_own_sets();
    }
}

/// Turns the ready list into events.
fn collect(m: &mut Mirror, set: u32, out: &mut Output<'_>) {
    let Some(s) = m.set(set) else { return };
    let last = s.ready_last;
    if s.ready_first == NONE {
        return;
    }
    // One pass over the entries that are on the list now; those that stay ready are appended behind
    // `last`.
    for _ in 0..REGISTRATIONS {
        if out.used >= out.max {
            break; // more, where several registrations have one event's data
        }
        let Some(at) = m.pop_ready(set) else { break };
        verify(m, at, out);
        if at == last {
            break;
        }
    }
    wake_another(m, set);
}

/// A connection that is to be verified later.
fn note_busy(m: &mut Mirror, at: u32, reg: &Registration) {
    m.push_ready(at);
    if let Some(set) = m.set(reg.set) {
        set.busy = reg.conn + 1;
    }
}

fn take_busy(set: u32) -> Option<&'static Conn> {
    let busy = with(|m| m.set(set).map_or(0, |s| core::mem::take(&mut s.busy)))?;
    busy.checked_sub(1).and_then(conn::get)
}

/// Looks at one ready registration: an event, armed and off the list, or still on it.
fn verify(m: &mut Mirror, at: u32, out: &mut Output<'_>) {
    let Some(reg) = m.reg(at).map(|r| *r) else { return };
    if reg.is_disabled || reg.events & (IN_KIND | OUT) == 0 {
        return;
    }
    let Some(conn) = conn::get(reg.conn) else { return };
    if reg.is_unjudged {
        if let Some(reg) = m.reg(at) {
            reg.is_unjudged = false;
        }
        let events = reg.events & IN_KIND;
        let pass = match conn.stage() {
            Stage::Attached | Stage::Guarded => verify_kernel(m, at, &reg, events),
            // It has dropped its lanes meanwhile, and the kernel does not report the edge again.
            _ => confirmed(&reg, events),
        };
        if pass != 0 {
            out.push(pass, reg.data, at);
        }
        return;
    }
    if !conn.has_lanes() || !conn.acquire_live(Half::Receive) {
        return;
    }
    let is_edge = reg.events & ET != 0;
    let mut events = 0;
    if reg.events & OUT != 0
        && conn.has(Waiters::WantRoom)
        && readiness::sender_may_go_on_or_arm(conn)
    {
        m.grant_room(conn, at);
        events |= OUT;
    }
    if reg.is_stripped && !conn.has(Waiters::WantRoom) {
        m.strip(at, false);
    }
    let readable = match reg.events & IN_KIND {
        0 => None,
        _ => match readiness::look_or_arm(conn) {
            Look::Readable(cursor) => Some(cursor),
            Look::Empty => None,
            Look::Busy => {
                note_busy(m, at, &reg);
                None
            }
        },
    };
    if conn.has(Waiters::Consumed) {
        tell_of_consumed(conn, Some(m)); // the other sets
    }
    if reg.is_kernels && arming::stays_on_lane(conn) {
        m.set_kernels(at, false);
    }
    if let Some(cursor) = readable {
        if !(is_edge && reg.reported == cursor) {
            events |= (reg.events & IN_KIND) | writable_too(conn, &reg);
            if let Some(reg) = m.reg(at) {
                reg.reported = cursor;
            }
        }
        if !is_edge {
            m.push_ready(at);
        } else {
            arming::arm(conn);
            if readiness::cursor(conn) != cursor {
                m.push_ready(at);
            }
        }
    }
    if events != 0 {
        events |= end::beside(m, at, &reg, conn);
        out.push(events, reg.data, at);
        if reg.events & ONESHOT != 0 {
            if let Some(reg) = m.reg(at) {
                reg.is_disabled = true;
            }
            disable_in_kernel(m, &reg);
        }
    }
    conn.release(Half::Receive);
}

/// [`kernel_events`] without sleeping. Where there was room for a few only and all were wake bytes,
/// which the kernel reports one after the other, it is asked on: what the program waits for is
/// behind them.
fn ask_kernel(set_fd: c_int, set: u32, out: &mut Output<'_>, mask: Mask) -> Result<(), Errno> {
    let (used, room) = (out.used, out.max - out.used);
    for _ in 0..ASKS {
        let got = kernel_events(set_fd, set, out, 0, mask)?;
        if got < room || out.used > used {
            break;
        }
    }
    Ok(())
}

/// Fetches kernel events and passes on those for the program; returns how many there were.
fn kernel_events(
    set_fd: c_int,
    set: u32,
    out: &mut Output<'_>,
    timeout_ms: c_int,
    mask: Mask,
) -> Result<usize, Errno> {
    // Not cleared: that would cost as much as all the rest of a wait.
    let mut batch = [const { MaybeUninit::<epoll_event>::uninit() }; BATCH];
    let first = batch.as_mut_ptr().cast::<epoll_event>();
    let want = (out.max - out.used).min(BATCH);
    let sleeper = if timeout_ms == 0 { None } else { Sleeper::new(set) };
    // Looked at again only now: a thread that rings from here on finds a sleeper.
    let timeout_ms = if sleeper.as_ref().is_some_and(|s| s.has_news) { 0 } else { timeout_ms };
    if timeout_ms != 0 {
        wait::count_shared(Counter::Slept);
    }
    let since = stale::latest();
    let got = if timeout_ms == 0 && mask.is_none() {
        // SAFETY: the batch is writable for `want` events; does not block.
        unsafe { sys!(libc::SYS_epoll_pwait, set_fd, first, want, 0, 0, 8) }
    } else {
        // SAFETY: the batch is writable for `want` events.
        unsafe { libc_calls::epoll_pwait(set_fd, first, want as c_int, timeout_ms, mask) }
    };
    let by_event = got.is_ok_and(|n| n > 0);
    let others_sleep = with(|m| {
        if let Some(s) = m.set(set) {
            s.wants_writable = false; // it has been asked for
        }
        // Counted as awake before anything is looked at: for news that this thread finds, no peer
        // need signal.
        if let Some(sleeper) = sleeper {
            sleeper.wake(m, by_event);
        }
        let bits = match doorbell::pages().filter(|doorbell| by_event && doorbell.any()) {
            Some(doorbell) => take_bits(m, doorbell),
            None => Bits::default(),
        };
        let got = got.unwrap_or(0);
        // SAFETY: the kernel wrote the first `got` events.
        let reported = || batch.iter().take(got).map(|event| unsafe { event.assume_init() });
        let holds = got > 0 && holds_rings(m, set, reported());
        let mut is_collected = false;
        for (i, event) in reported().enumerate() {
            if !(bits.any && is_the_doorbell(m, set, &event)) {
                translate(m, set, &event, since, out);
            } else if holds {
                // The bits are on the ready list.
            } else if timeout_ms != 0 && !core::mem::replace(&mut is_collected, true) {
                // A thread that slept had armed everything: each signal came between the kernel's
                // other events.
                let places = got - 1 - i;
                out.max -= places;
                collect(m, set, out);
                out.max += places;
            }
        }
        out.end_of_kernels = out.used;
        if is_collected {
            wake_another(m, set);
        } else if by_event && out.used < out.max && !(holds && out.used > 0) {
            collect(m, set, out);
        } else if by_event {
            // Entries that were reported are on the list, and not armed.
            wake_another(m, set);
        }
        bits.wake_others()
    });
    if others_sleep == Some(true) {
        signal_own_sets();
    }
    got
}

/// Whether a wait keeps the rings' events for the next one, because the kernel reports a listener.
/// Once in a row.
///
/// A client may have sent on a connection that waits to be accepted before it sent the bytes that
/// are in rings. The program must accept it and ask once more to hear of it.
fn holds_rings(m: &mut Mirror, set: u32, reported: impl Iterator<Item = epoll_event>) -> bool {
    let Some(s) = m.set(set) else { return false };
    let has_held = core::mem::take(&mut s.held_rings);
    if has_held || !s.has_lane {
        return false;
    }
    let holds = { reported }.any(|event| m.is_of_listener(set, event.u64));
    if let Some(s) = m.set(set) {
        s.held_rings = holds;
        s.is_rings_turn |= holds;
    }
    holds
}

/// Whether a kernel event may be taken for the hidden eventfd's without asking its anchor's carrier
/// (R9 b): the doorbell has just rung. Where it was the carrier's after all, the kernel, which is
/// level-triggered, reports it to the next wait; and not every time is it taken for the other.
fn is_the_doorbell(m: &mut Mirror, set: u32, event: &epoll_event) -> bool {
    let (events, data) = (event.events, event.u64);
    let Some(s) = m.set(set) else { return false };
    if events != IN || s.hidden != Some(data) {
        return false;
    }
    let anchor = s.anchor;
    s.unverified = (s.unverified + 1) % VERIFY_EVERY;
    if s.unverified == 0 {
        return false;
    }
    let Some(is_level) = m.reg(anchor).map(|r| r.data == data && r.events & (ET | ONESHOT) == 0)
    else {
        return false;
    };
    // Others may have the same data: their events cannot be told from this one's.
    is_level && m.is_alone(set, data)
}

/// A thread that sleeps on a set, as the doorbell page and the set know it.
struct Sleeper {
    set: u32,
    doorbell: Option<Doorbells>,
    /// Which of the process's doorbells that is.
    generation: u32,
    since: u64,
    /// Something was there when it had been counted as a sleeper.
    has_news: bool,
}

impl Sleeper {
    /// `None`: the set is gone.
    fn new(set: u32) -> Option<Self> {
        let generation = wait_set::generation();
        // Under the lock, so that a doorbell page that is being made counts each sleeper once.
        let (doorbell, has_news) = with(|m| {
            let doorbell = doorbell::pages();
            if m.set(set)?.is_silent {
                m.unsilence(set);
            }
            let s = m.set(set)?;
            s.sleepers += 1;
            match doorbell {
                Some(doorbell) => doorbell.fall_asleep(),
                None => s.sleepers_without_doorbell += 1,
            }
            Some((doorbell, s.ready_first != NONE || doorbell.is_some_and(Doorbells::any)))
        })??;
        Some(Self { set, doorbell, generation, since: monotonic_ns(), has_news })
    }

    /// Under the lock.
    fn wake(self, m: &mut Mirror, by_event: bool) {
        let now = monotonic_ns();
        // In a fork child the page of the parent's doorbell is unmapped, and no thread sleeps. In
        // that case the thread has been counted in pages that were made while it slept.
        let doorbell = doorbell::pages().filter(|_| self.generation == wait_set::generation());
        let Some(s) = m.set(self.set) else {
            // Closed meanwhile: pages made since then do not count it, and would lack another sleeper.
            return self
                .doorbell
                .filter(|_| doorbell.is_some())
                .into_iter()
                .for_each(Doorbells::wake_up);
        };
        s.sleepers = s.sleepers.saturating_sub(1);
        match doorbell {
            // It fell asleep without a doorbell, and has not been counted in one since.
            _ if self.doorbell.is_none() && s.sleepers_without_doorbell > 0 => {
                s.sleepers_without_doorbell -= 1
            }
            Some(doorbell) => doorbell.wake_up(),
            None => {}
        }
        s.merged_ns = now;
        if by_event {
            let slept = now.saturating_sub(self.since);
            s.spin.slept(slept);
            m.spin().slept(slept);
        }
    }
}

/// One kernel event (R9) of a wait that began when [`stale::latest`] was `since`: passes it on,
/// changed where a wake byte was taken for data.
fn translate(m: &mut Mirror, set: u32, event: &epoll_event, since: u64, out: &mut Output<'_>) {
    let data = event.u64;
    let is_late = m.is_late(set, event, since) || foreign::may_be_foul(m, set, event);
    let mut matches = 0;
    let mut at = m.first_like(set, data);
    while let Some(reg) = m.registrations.get(at as usize).copied() {
        if reg.is_used && reg.set == set && reg.data == data {
            matches += 1;
            let events = if is_late || foreign::may_be_a_family_member_s(event) {
                confirmed(&reg, event.events)
            } else {
                event.events
            };
            let pass = verify_kernel(m, at, &reg, events);
            if pass != 0 {
                out.push(pass, data, at);
            }
        }
        at = reg.next_hash;
    }
    // Not ours: as the kernel says. An event under data that a connection had belongs to no
    // connection (`stale`).
    if matches == 0 && !is_late {
        out.push(event.events, data, NONE);
    }
}

/// For an event that may be another's: only the events that the carrier shows too, and "readable"
/// of a connection with a lane, which is verified anyway.
fn confirmed(reg: &Registration, events: u32) -> u32 {
    if table::entry(reg.fd) != Some(Entry::Conn(reg.conn)) {
        return events; // the number is another's by now
    }
    let is_attached = conn::get(reg.conn).is_some_and(|conn| conn.has_lanes());
    let verified = if is_attached { IN_KIND } else { 0 };
    let now = carrier::readiness(reg.fd, events as i16) as u16;
    events & (reg.events | ALWAYS) & (verified | u32::from(now))
}

/// Which bits of a kernel event are for the program.
fn verify_kernel(m: &mut Mirror, at: u32, reg: &Registration, events: u32) -> u32 {
    if reg.events & ONESHOT == 0 {
        return verify_enabled(m, at, reg, events);
    }
    // We have reported it, or another thread has: nothing more until the program enables it again,
    // which makes the kernel look again. A family member that has the connection may have the set
    // as well, and have done that: where nothing comes by a ring the kernel says then whether it is
    // enabled.
    let is_kernels =
        |conn: &Conn| sharing::may_family_hold(conn) && !readiness::is_receiving_on_lane(conn);
    if reg.is_disabled && !conn::get(reg.conn).is_some_and(is_kernels) {
        return 0;
    }
    let pass = verify_enabled(m, at, reg, events);
    if pass == 0 {
        // Nothing for the program, but the kernel has disabled the registration.
        enable_in_kernel(m, reg);
        return 0;
    }
    if let Some(reg) = m.reg(at) {
        reg.is_disabled = true;
    }
    if m.set(reg.set).is_some_and(|s| s.anchor == at) {
        // The event may have been the hidden eventfd's, which disables nothing.
        disable_in_kernel(m, reg);
    }
    pass
}

/// Notes the cursor of what a kernel event reports. True: an edge has reported it before. The end
/// behind bytes that nobody has read is new all the same: a peer that is killed or exits says
/// nothing in its ring, and the kernel says this once.
fn is_old_edge(m: &mut Mirror, at: u32, conn: &Conn, cursor: u64, is_kernels: bool) -> bool {
    let Some(reg) = m.reg(at) else { return false };
    let before = core::mem::replace(&mut reg.reported, cursor);
    if reg.events & ET == 0 || before != cursor {
        return false;
    }
    if is_kernels || end::is_last_in_ring(conn) {
        return end::is_last_in_ring(conn);
    }
    let is_end = reg.end == End::Open
        && table::entry(reg.fd) == Some(Entry::Conn(reg.conn))
        && carrier::is_over(reg.fd);
    if is_end {
        reg.end = End::Known;
    }
    !is_end
}

fn verify_enabled(m: &mut Mirror, at: u32, reg: &Registration, events: u32) -> u32 {
    let events = copies::without(reg, events);
    let Some(conn) = conn::get(reg.conn) else { return events };
    if !conn.has_lanes() || !conn.acquire_live(Half::Receive) {
        m.set_kernels(at, conn.stage() != Stage::Listener);
        // Between two lives it may be the anchor still.
        let is_anchor = m.set(reg.set).is_some_and(|s| s.hidden == Some(reg.data));
        return if events == IN && is_anchor { confirmed(reg, events) } else { events };
    }
    let mut pass = events;
    if events & OUT != 0 && conn.has(Waiters::WantRoom) {
        // This may be the only event that the reader's end makes, which frees no room: an edge that is
        // kept from the program does not come again.
        if readiness::sender_may_go_on_or_arm(conn) || note_end(conn, reg.conn, reg.fd) {
            m.grant_room(conn, at);
        } else {
            pass &= !OUT;
        }
    } else if events & OUT != 0
        && reg.events & (ET | ONESHOT | EXCLUSIVE) == 0
        && wait::is_full(conn)
        && interest::may_wait_for_room(m, conn)
    {
        // A sender would block, or get EAGAIN: as if it had.
        conn.set(Waiters::WantRoom);
        if readiness::sender_may_go_on_or_arm(conn) {
            m.grant_room(conn, at);
        } else {
            m.strip(at, true);
            m.push_ready(at);
            if let Some(set) = m.set(reg.set) {
                set.has_room_waiters = true;
            }
            pass &= !OUT;
        }
    }
    let over = ALWAYS | RDHUP;
    if events & IN_KIND != 0 && events & over == 0 {
        if reg.events & ET != 0 && hosts::is_guarded(conn) {
            hosts::expect_carrier(conn);
        }
        let verified = readiness::try_verify(conn, reg.fd);
        if conn.has(Waiters::Consumed) {
            tell_of_consumed(conn, Some(m));
        }
        m.set_kernels(at, !arming::stays_on_lane(conn));
        let Some(verified) = verified else {
            // The kernel reports a level again, and everything for ONESHOT, which is enabled anew.
            note_busy(m, at, reg);
            let is_edge = reg.events & (ET | ONESHOT) == ET;
            if let Some(reg) = m.reg(at).filter(|_| is_edge) {
                reg.is_unjudged = true;
            }
            conn.release(Half::Receive);
            return pass & !IN_KIND & (reg.events | ALWAYS);
        };
        if !verified.readable {
            // A wake byte, the hidden eventfd under this data, or bytes that another thread took
            // meanwhile. Nothing is lost: a later message makes a new event.
            pass &= !IN_KIND;
        } else if let Some(cursor) = verified.cursor {
            if is_old_edge(m, at, conn, cursor, verified.is_kernels) {
                pass &= !IN_KIND;
            }
            // Looked at again by the next wait, which arms it when all has been taken.
            m.push_ready(at);
        }
    } else if events & over != 0 && end::is_told(m, at, conn, events) {
        conn.release(Half::Receive);
        return 0;
    }
    pass = all_of(m, at, reg, conn, pass, || readiness::look(conn).cursor());
    if events & libc::EPOLLHUP as u32 != 0 && conn.has_pending_error() && hosts::is_guarded(conn) {
        pass |= libc::EPOLLERR as u32; // the library has taken it from the kernel
    }
    conn.release(Half::Receive);
    pass & (reg.events | ALWAYS)
}

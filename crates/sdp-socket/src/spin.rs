//! How long a receiver looks at the ring before it sleeps.
//!
//! A wake-up costs two orders of magnitude more than a cache line, so looking a little longer wins when
//! the peer answers soon; it loses everything when the peer needs this CPU, and is wasted on idle
//! connections. So: never pause when the peer last ran on this CPU (offer it instead), never pause
//! when the traffic is a stream (sleeping batches), learn from each outcome, and let no more threads
//! of a process pause at once than it has other CPUs.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sdp_sys::{sys, time::monotonic_ns};

use crate::{conn::Conn, process};

/// First budget of a connection.
pub(crate) const INITIAL_NS: u32 = 10_000;
/// Budget after a success that found it at zero.
const RESTART_NS: u32 = 1_000;
/// Ceiling unless `recv_poll` sets another.
const CEILING_NS: u32 = 20_000;
/// Failures in a row after which the budget is zero.
const FAILURES_TO_REST: u32 = 3;
/// A resting connection tries again once in so many waits.
const PROBE_EVERY: u32 = 16;
/// Receive waits without a send in between from which the traffic is a stream.
const STREAM_WAITS: u64 = 8;
/// Pause of a stream.
const STREAM_NS: u64 = 1_000;
/// Longest time given to the peer on a shared CPU by yielding.
const YIELD_NS: u64 = 20_000;
/// A single yield that takes this long means that somebody else wanted the CPU.
const YIELD_LOST_NS: u64 = 500_000;
const YIELD_OFF_MIN_NS: u64 = 10_000_000;
const YIELD_OFF_MAX_NS: u64 = 1_000_000_000;

static SPINNERS: AtomicU32 = AtomicU32::new(0);
static YIELDS_OFF_UNTIL: AtomicU64 = AtomicU64::new(0);
static YIELDS_OFF_FOR: AtomicU64 = AtomicU64::new(YIELD_OFF_MIN_NS);

/// CPU on which the calling thread runs, plus one; 0 unknown.
#[inline]
pub(crate) fn this_cpu() -> u32 {
    // SAFETY: reads the thread's rseq area or the vDSO; not interposed.
    let cpu = unsafe { libc::sched_getcpu() };
    (cpu + 1).max(0) as u32
}

/// What a wait may spend before it sleeps.
#[derive(Clone, Copy)]
enum Plan {
    Sleep,
    Pause(u64),
    Yield(u64),
}

fn ceiling_ns() -> u32 {
    match process::tunables().receive_poll_us() {
        None => CEILING_NS,
        Some(us) => us.saturating_mul(1000),
    }
}

fn plan(conn: &Conn, peer_cpu: u32) -> Plan {
    let ceiling = ceiling_ns();
    if ceiling == 0 {
        return Plan::Sleep;
    }
    let cpus = process::usable_cpus();
    if cpus <= 1 || (peer_cpu != 0 && peer_cpu == this_cpu()) {
        let now = monotonic_ns();
        return if now < YIELDS_OFF_UNTIL.load(Ordering::Relaxed) {
            Plan::Sleep
        } else {
            Plan::Yield(now)
        };
    }
    if conn.one_way.load(Ordering::Relaxed) >= STREAM_WAITS {
        return Plan::Pause(STREAM_NS.min(u64::from(ceiling)));
    }
    let budget = conn.spin_ns.load(Ordering::Relaxed).min(ceiling);
    if budget != 0 {
        return Plan::Pause(u64::from(budget));
    }
    if conn.spin_failures.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY) {
        return Plan::Pause(u64::from(ceiling / 2));
    }
    Plan::Sleep
}

fn learn(conn: &Conn, success: bool) {
    let budget = conn.spin_ns.load(Ordering::Relaxed);
    if success {
        let next = budget.saturating_mul(2).clamp(RESTART_NS, ceiling_ns().max(RESTART_NS));
        conn.spin_ns.store(next, Ordering::Relaxed);
        conn.spin_failures.store(0, Ordering::Relaxed);
        return;
    }
    let failures = conn.spin_failures.fetch_add(1, Ordering::Relaxed) + 1;
    let next = if failures >= FAILURES_TO_REST { 0 } else { budget / 2 };
    conn.spin_ns.store(next, Ordering::Relaxed);
}

/// A sleep that was answered this soon was mostly the other side's own wake-up.
const ANSWERED_SOON_NS: u64 = 80_000;

/// After a sleep of `slept_ns`. Two ends that both sleep answer each other too late for any short spin
/// to succeed, for ever; what tells them from an idle connection is that the answer came about one
/// wake-up later. Then both are better off looking again.
pub(crate) fn learn_from_sleep(conn: &Conn, slept_ns: u64) {
    if slept_ns < ANSWERED_SOON_NS {
        conn.spin_ns.store(ceiling_ns(), Ordering::Relaxed);
        conn.spin_failures.store(0, Ordering::Relaxed);
    }
}

/// The same for a set that waits for many connections: its next budget.
pub(crate) fn budget_after_sleep(slept_ns: u64, budget: u64) -> u64 {
    if slept_ns < ANSWERED_SOON_NS { u64::from(ceiling_ns()) } else { budget }
}

/// Looks until `ready` or until it is not worth it. True when ready.
pub(crate) fn spin(conn: &Conn, peer_cpu: u32, mut ready: impl FnMut() -> bool) -> bool {
    match plan(conn, peer_cpu) {
        Plan::Sleep => false,
        Plan::Yield(started) => yield_for(started, ready),
        Plan::Pause(budget) => {
            let others = SPINNERS.fetch_add(1, Ordering::Relaxed);
            let allowed = others + 1 < process::usable_cpus().max(2);
            let success = allowed && pause_for(budget, &mut ready);
            SPINNERS.fetch_sub(1, Ordering::Relaxed);
            if allowed {
                learn(conn, success);
            }
            success
        }
    }
}

/// Pauses for somebody who waits for several connections, if the process may have one more spinner.
pub(crate) fn shared_pause(budget: u64, mut ready: impl FnMut() -> bool) -> bool {
    let others = SPINNERS.fetch_add(1, Ordering::Relaxed);
    let success = others + 1 < process::usable_cpus().max(2) && pause_for(budget, &mut ready);
    SPINNERS.fetch_sub(1, Ordering::Relaxed);
    success
}

/// Pauses at most `budget` nanoseconds. True when ready.
pub(crate) fn pause_for(budget: u64, ready: &mut impl FnMut() -> bool) -> bool {
    // The first looks cost no clock reading: answers often come within a few cache lines' time.
    for _ in 0..16 {
        if ready() {
            return true;
        }
        core::hint::spin_loop();
    }
    let end = monotonic_ns() + budget;
    loop {
        for _ in 0..16 {
            if ready() {
                return true;
            }
            core::hint::spin_loop();
        }
        if monotonic_ns() >= end {
            return ready();
        }
    }
}

/// Gives the CPU to whoever wants it, as long as that comes back soon.
fn yield_for(started: u64, mut ready: impl FnMut() -> bool) -> bool {
    let mut before = started;
    loop {
        if ready() {
            return true;
        }
        // SAFETY: no arguments.
        let _ = unsafe { sys!(libc::SYS_sched_yield) };
        let now = monotonic_ns();
        if now - before > YIELD_LOST_NS {
            let off = YIELDS_OFF_FOR.load(Ordering::Relaxed);
            YIELDS_OFF_UNTIL.store(now + off, Ordering::Relaxed);
            YIELDS_OFF_FOR.store((off * 2).min(YIELD_OFF_MAX_NS), Ordering::Relaxed);
            return ready();
        }
        if now - started > YIELD_NS {
            return ready();
        }
        before = now;
    }
}

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
const INITIAL_NS: u32 = 10_000;
/// Budget after a success that found it at zero.
const RESTART_NS: u32 = 1_000;
/// Ceiling unless `recv_poll` sets another.
const CEILING_NS: u32 = 20_000;
/// Failures in a row after which the budget is zero.
const FAILURES_TO_REST: u16 = 3;
/// Who rests tries again once in so many waits.
const PROBE_EVERY: u16 = 16;
/// A sleep that was answered this soon was mostly the other side's own wake-up.
const ANSWERED_SOON_NS: u64 = 80_000;
/// A probe that outlasts that wake-up.
const LONG_PROBE_NS: u64 = 120_000;
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

/// What a waiter has learnt about how soon it is answered.
///
/// The budget doubles with a success and halves with a failure; after three failures it rests at zero
/// and is tried again once in sixteen waits. Two ends that both sleep would answer each other one
/// wake-up too late for any short spin, for ever: when sleeps are answered that soon, the probe is long
/// enough to catch the other side awake, and from then on short spins succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Learnt {
    budget_ns: u32,
    failures: u16,
    answered_soon: bool,
}

impl Learnt {
    /// Before the first wait.
    pub(crate) const NEW: Self = Self { budget_ns: INITIAL_NS, failures: 0, answered_soon: false };

    /// Packed, for an atomic word.
    pub(crate) const fn to_word(self) -> u64 {
        self.budget_ns as u64 | (self.failures as u64) << 32 | (self.answered_soon as u64) << 48
    }

    /// Unpacked; every word is a legal value.
    pub(crate) const fn from_word(word: u64) -> Self {
        Self {
            budget_ns: word as u32,
            failures: (word >> 32) as u16,
            answered_soon: word >> 48 != 0,
        }
    }

    /// Nanoseconds that the next spin may take; 0: sleep at once.
    pub(crate) fn next(&mut self) -> u64 {
        let (ceiling, may_probe_long) = ceiling_ns();
        let budget = self.budget_ns.min(ceiling);
        if budget != 0 || ceiling == 0 {
            return u64::from(budget);
        }
        self.failures = self.failures.wrapping_add(1);
        if !self.failures.is_multiple_of(PROBE_EVERY) {
            0
        } else if self.answered_soon && may_probe_long {
            LONG_PROBE_NS
        } else {
            u64::from(ceiling / 2)
        }
    }

    /// How a spin ended.
    pub(crate) fn spun(&mut self, success: bool) {
        let ceiling = ceiling_ns().0.max(RESTART_NS);
        if success {
            self.budget_ns = if self.answered_soon {
                ceiling
            } else {
                self.budget_ns.saturating_mul(2).clamp(RESTART_NS, ceiling)
            };
            self.failures = 0;
            return;
        }
        self.failures = self.failures.wrapping_add(1);
        let rests = self.failures >= FAILURES_TO_REST || self.budget_ns == 0;
        self.budget_ns = if rests { 0 } else { self.budget_ns / 2 };
    }

    /// How long a sleep took that something ended.
    pub(crate) fn slept(&mut self, ns: u64) {
        self.answered_soon = ns < ANSWERED_SOON_NS;
    }
}

/// Upper bound of a spin in nanoseconds, and whether a probe may exceed it (not when the user set it).
fn ceiling_ns() -> (u32, bool) {
    match process::tunables().receive_poll_us() {
        None => (CEILING_NS, true),
        Some(us) => (us.saturating_mul(1000), false),
    }
}

fn plan(conn: &Conn, peer_cpu: u32) -> Plan {
    let (ceiling, _) = ceiling_ns();
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
    match update(conn, Learnt::next) {
        0 => Plan::Sleep,
        budget => Plan::Pause(budget),
    }
}

/// Changes what a connection has learnt. Two threads that wait for one connection may lose one another's
/// lesson, which costs nothing.
fn update<R>(conn: &Conn, body: impl FnOnce(&mut Learnt) -> R) -> R {
    let mut learnt = Learnt::from_word(conn.spin.load(Ordering::Relaxed));
    let result = body(&mut learnt);
    conn.spin.store(learnt.to_word(), Ordering::Relaxed);
    result
}

/// After a sleep that something ended.
pub(crate) fn learn_from_sleep(conn: &Conn, slept_ns: u64) {
    update(conn, |learnt| learnt.slept(slept_ns));
}

/// Budget of a spin for several connections, by what this one has learnt.
pub(crate) fn budget(conn: &Conn) -> u64 {
    update(conn, Learnt::next)
}

/// How a spin for several connections ended for this one.
pub(crate) fn learn(conn: &Conn, success: bool) {
    update(conn, |learnt| learnt.spun(success));
}

/// Looks until `ready` or until it is not worth it. True when ready.
pub(crate) fn spin(conn: &Conn, peer_cpu: u32, mut ready: impl FnMut() -> bool) -> bool {
    match plan(conn, peer_cpu) {
        Plan::Sleep => false,
        Plan::Yield(started) => yield_for(started, YIELD_NS, &mut ready),
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

/// Pauses for somebody who waits for several connections, if the process may have one more spinner. With
/// one CPU it is offered instead: who is waited for may need it.
pub(crate) fn shared_pause(budget: u64, mut ready: impl FnMut() -> bool) -> bool {
    if process::usable_cpus() <= 1 {
        let now = monotonic_ns();
        return now >= YIELDS_OFF_UNTIL.load(Ordering::Relaxed)
            && yield_for(now, budget, &mut ready);
    }
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
fn yield_for(started: u64, budget: u64, ready: &mut impl FnMut() -> bool) -> bool {
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
        if now - started > budget {
            return ready();
        }
        before = now;
    }
}

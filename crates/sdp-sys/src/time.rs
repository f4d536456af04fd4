//! Clocks, and giving time away.

use crate::{kernel, libcs};

/// Lets others have this CPU, if they want it.
#[inline]
pub fn yield_now() {
    let _ = kernel::sched_yield();
}

/// Lets others have this CPU in turn number `turn`, from 0, of a wait for another thread: the first
/// turns yield, the others sleep for [`BACK_OFF_NS`]. Threads that only yield can keep the CPUs
/// from whom they wait for: Linux 6.18 was seen to run several of them for minutes, and nobody else.
#[cold]
#[inline(never)]
pub fn back_off(turn: u32) {
    if turn < BACK_OFF_YIELDS {
        yield_now();
    } else {
        sleep(BACK_OFF_NS);
    }
}

/// Waits for another thread in turns of [`back_off`], until `is_over`.
pub fn back_off_until(mut is_over: impl FnMut() -> bool) {
    let mut turn = 0u32;
    while !is_over() {
        back_off(turn);
        turn = turn.saturating_add(1);
    }
}

/// How many turns of [`back_off`] yield.
pub const BACK_OFF_YIELDS: u32 = 16;

/// How long the other turns of [`back_off`] sleep, in nanoseconds.
pub const BACK_OFF_NS: i64 = 50_000;

/// Sleeps for `ns` nanoseconds, less than a second. A signal ends it early.
#[inline]
pub fn sleep(ns: i64) {
    debug_assert!((0..1_000_000_000).contains(&ns));
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    let _ = kernel::nanosleep(&time);
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
///
/// Uses the C library's own `clock_gettime`, which reads the vDSO (about 20 ns), not the
/// function that another library may put in its place.
#[inline]
pub fn monotonic_ns() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of `CLOCK_BOOTTIME`, the clock of `/proc`'s start times: it runs on while the machine
/// sleeps.
pub fn boottime_ns() -> u64 {
    now_ns(libc::CLOCK_BOOTTIME)
}

/// Milliseconds of `CLOCK_MONOTONIC_COARSE`, which is late by a tick of the kernel, at most ten milliseconds, and
/// costs a fourth of the exact one.
#[inline]
pub fn coarse_ms() -> u64 {
    coarse_ns() / 1_000_000
}

/// The same in nanoseconds.
#[inline]
pub fn coarse_ns() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC_COARSE)
}

/// Nanoseconds since 1970 (`CLOCK_REALTIME`).
pub fn unix_ns() -> u64 {
    now_ns(libc::CLOCK_REALTIME)
}

/// Seconds since 1970 (`CLOCK_REALTIME`).
pub fn unix_s() -> u64 {
    unix_ns() / 1_000_000_000
}

#[inline(always)]
fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is valid for writing; the clocks that are asked for always exist.
    unsafe { libcs::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// A counter that is cheaper to read than any clock and never goes back on one CPU: for "has some time
/// passed", where a factor of ten does not matter. [`TICKS_PER_MS`] is its order of magnitude.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every 64-bit x86 has the instruction; processes that are forbidden it by prctl(PR_SET_TSC)
    // could not read the vDSO's clock either.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    monotonic_ns()
}

/// Ticks in about a millisecond.
pub const TICKS_PER_MS: u64 = if cfg!(target_arch = "x86_64") { 2_500_000 } else { 1_000_000 };

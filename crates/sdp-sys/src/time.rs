//! Clocks.

/// Nanoseconds of `CLOCK_MONOTONIC`.
///
/// Uses libc's `clock_gettime`, which reads the vDSO (about 20 ns) and is not interposed.
#[inline]
pub fn monotonic_ns() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of `CLOCK_BOOTTIME`, the clock of `/proc`'s start times: it runs on while the machine
/// sleeps.
pub fn boottime_ns() -> u64 {
    now_ns(libc::CLOCK_BOOTTIME)
}

/// Seconds since 1970 (`CLOCK_REALTIME`).
pub fn unix_s() -> u64 {
    now_ns(libc::CLOCK_REALTIME) / 1_000_000_000
}

#[inline(always)]
fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is valid for writing; the clocks that are asked for always exist.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

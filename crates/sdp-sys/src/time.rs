//! Clocks.

/// Nanoseconds of `CLOCK_MONOTONIC`.
///
/// Uses libc's `clock_gettime`, which reads the vDSO (about 20 ns) and is not interposed.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The same clock as of the kernel's last tick, 1 to 10 ms ago: no counter is read (about 5 ns).
#[inline]
pub fn coarse_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is valid for writing; both clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

//! Whether the program began under a seccomp filter.
//!
//! Service managers and containers install filters that a program does not know of. Some end the
//! process for a call that is not on their list, and the list cannot be asked for. Calls that few
//! programs make (those that reach into another process) are not made under one. Where the program
//! itself installs a filter, the library is out of business before.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::procfs;

/// True unless `/proc` says that there is no filter. Asked once in a process: before it leaves a root
/// with `/proc`.
pub fn is_there() -> bool {
    const UNKNOWN: u32 = 0;
    const YES: u32 = 1;
    const NO: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);
    if KNOWN.load(Ordering::Relaxed) == UNKNOWN {
        let is_free = procfs::has_lines(c"/proc/thread-self/status", &[b"Seccomp:\t0"]) == Ok(true);
        KNOWN.store(if is_free { NO } else { YES }, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed) != NO
}

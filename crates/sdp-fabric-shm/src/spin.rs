//! The word by which threads of one process take turns at a table.
//!
//! Used by the single objects of a process: its peers, the pool of segments, the open sock_diag
//! socket. Holders run with signals deferred and make a few system calls at most, so a wait is
//! short. It refuses to be shared between processes: a process that dies with it leaves it locked,
//! and a fork child puts its own copy right.

use core::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
};

/// Looks at the word before the processor is given away.
const SPINS: u32 = 64;

/// The word. It protects nothing by itself: its owner does, which gives it back.
pub(crate) struct SpinLock(AtomicU32);

impl SpinLock {
    /// Free.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes it if it is free.
    pub(crate) fn try_acquire(&self) -> bool {
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits until it is free, and takes it.
    #[inline(never)]
    pub(crate) fn acquire(&self) {
        let mut spins = 0;
        while !self.try_acquire() {
            spins = u32::saturating_add(spins, 1);
            if spins < SPINS {
                hint::spin_loop();
            } else {
                sdp_sys::time::back_off(spins - SPINS);
            }
        }
    }

    /// Gives it back. For the thread that has it, or in a fork child whose parent's thread had it.
    pub(crate) fn release(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether a thread has it, at this moment.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

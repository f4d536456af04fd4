//! Whether anybody is at work on connections, or has a row in some family's memory: asked before the process
//! gives up what they use. Changes nothing.

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_sys::count::Way;

use super::{CONNS, Conn, KEPT, LIVE, get};

/// Whether a thread is in the middle of a call on any connection, and neither asleep there nor in the kernel.
pub(crate) fn is_any_worked_on() -> bool {
    (0..CONNS).filter_map(|index| get(index as u32)).any(Conn::is_worked_on)
}

/// Whether a connection of this process has its row in the family memory at `base`.
pub(crate) fn has_rows_in(base: *mut u8) -> bool {
    (0..CONNS).filter_map(|index| get(index as u32)).any(|conn| {
        conn.family.load(Ordering::SeqCst) == base && conn.row.load(Ordering::Relaxed) != 0
    })
}

impl Conn {
    /// A call goes to sleep, or has woken up.
    pub(crate) fn sleeps(&self, yes: bool) {
        if yes {
            Way::now().add(&self.asleep, 1);
        } else {
            let _ = Way::now().sub(&self.asleep, 1);
        }
    }

    /// Whether a call is in the middle of something of ours: neither asleep nor the kernel's.
    fn is_worked_on(&self) -> bool {
        let sum = |words: &[AtomicU32]| -> u64 {
            words.iter().map(|word| u64::from(word.load(Ordering::SeqCst))).sum()
        };
        let idle = || sum(&self.raw) + u64::from(self.asleep.load(Ordering::SeqCst));
        // Whoever goes to sleep or into the kernel is pinned before. One that comes back and leaves between the looks
        // must not hide one that is at work: the fewer of those before and after.
        let before = idle();
        let pins = sum(&self.pins);
        matches!(self.state.load(Ordering::SeqCst), LIVE | KEPT) && pins > before.min(idle())
    }
}

//! Whether a thread is at work on connections, or a connection has a row in family memory: asked
//! before the process gives up memory that these use. Changes nothing.

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use sdp_shm::family::FAMILY_BYTES;
use sdp_sys::count::Counting;

use crate::process;

use super::{CONNS, Conn, LIVE, RETAINED, get};

/// Whether a thread is in the middle of a call on any connection, and neither asleep there nor in the kernel.
pub(crate) fn is_any_worked_on() -> bool {
    (0..CONNS).filter_map(|index| get(index as u32)).any(Conn::is_worked_on)
}

/// Whether a connection of this process has its row in the family memory at `base`.
fn has_rows_in(base: *mut u8) -> bool {
    (0..CONNS).filter_map(|index| get(index as u32)).any(|conn| {
        conn.family.load(Ordering::SeqCst) == base && conn.row.load(Ordering::Relaxed) != 0
    })
}

/// Family memory of a trust domain that the process has left. `is_unused`: no connection has a row
/// in it, and there is no other thread; it is unmapped. Else private zeros take its place once no
/// connection has a row in it, because a thread may have looked up its address just before; a row
/// that it then opens there is its own.
pub(crate) fn give_up_family(base: NonNull<u8>, is_unused: bool) {
    if is_unused || !has_rows_in(base.as_ptr()) {
        // SAFETY: mapped in this length, by this process or its parent, and left by this one; its
        // words are atomics, and zeros are a family without members.
        unsafe { process::give_up(base, FAMILY_BYTES, is_unused) };
    }
}

/// A connection with a row in an earlier family has ended.
pub(super) fn row_of_old_family_freed(base: *mut u8) {
    if let Some(base) = NonNull::new(base)
        && !process::is_retired()
    {
        give_up_family(base, false);
    }
}

impl Conn {
    /// A call goes to sleep, or has woken up.
    pub(crate) fn sleeps(&self, yes: bool) {
        if yes {
            Counting::now().add(&self.asleep, 1);
        } else {
            let _ = Counting::now().sub(&self.asleep, 1);
        }
    }

    /// Whether a call is in the middle of something of ours: neither asleep nor the kernel's.
    fn is_worked_on(&self) -> bool {
        let sum = |words: &[AtomicU32]| -> u64 {
            words.iter().map(|word| u64::from(word.load(Ordering::SeqCst))).sum()
        };
        let idle = || sum(&self.raw) + u64::from(self.asleep.load(Ordering::SeqCst));
        // A call acquires the connection before it counts as idle. The smaller of two idle counts
        // is taken, before and after the users: a call that returns in between would hide one at
        // work.
        let before = idle();
        let users = sum(&self.users);
        matches!(self.state.load(Ordering::SeqCst), LIVE | RETAINED) && users > before.min(idle())
    }
}

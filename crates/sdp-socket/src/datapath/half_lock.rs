//! The lock of a half.
//!
//! Called before a half's state is loaded ([`crate::datapath::send::with_source`],
//! [`crate::datapath::receive::with_sink`]). A family member that died with the lock is replaced;
//! one that lives and keeps it costs the connection.

use core::sync::atomic::AtomicU32;

use sdp_shm::lock::{self, Acquired};
use sdp_sys::errno::Errno;

use crate::{
    conn::{Conn, Holders},
    datapath::reset::reset,
    process,
};

/// Takes the lock of a half. True: its last owner died inside. The connection is lost when a living one keeps it.
///
/// # Errors
/// ECONNRESET.
#[inline]
pub(crate) fn enter(conn: &Conn, word: &AtomicU32) -> Result<bool, Errno> {
    if lock::try_lock(word, process::pid()) { Ok(false) } else { enter_contended(conn, word) }
}

#[cold]
fn enter_contended(conn: &Conn, word: &AtomicU32) -> Result<bool, Errno> {
    if conn.has(Holders::Overdue) {
        return Err(Errno::ECONNRESET); // waited for once
    }
    match lock::lock(word, process::pid()) {
        Acquired::Clean => Ok(false),
        Acquired::TakenOver => Ok(true),
        // The lock stays with its owner, which may be in the middle of an operation.
        Acquired::Overdue => {
            conn.set(Holders::Overdue);
            reset(conn);
            Err(Errno::ECONNRESET)
        }
    }
}

/// How often [`try_enter`] looks at a half's lock that is taken, before it gives up.
const LOOKS: u32 = 200;

/// How long [`try_enter`] waits, where it may, before it asks once whether the owner is dead.
const TIMEOUT_NS: u64 = 5_000_000;

/// [`enter`] for a caller that can come back later. `None`: not now. It sleeps, and takes over from
/// a dead owner, only where it `may_wait`.
pub(crate) fn try_enter(word: &AtomicU32, may_wait: bool) -> Option<bool> {
    if may_wait {
        return match lock::lock_within(word, process::pid(), TIMEOUT_NS) {
            Acquired::Clean => Some(false),
            Acquired::TakenOver => Some(true),
            Acquired::Overdue => None,
        };
    }
    for _ in 0..LOOKS {
        if lock::try_lock(word, process::pid()) {
            return Some(false);
        }
        core::hint::spin_loop();
    }
    None
}

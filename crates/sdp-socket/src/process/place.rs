//! The directory in which connections between network namespaces meet, and whether it is there.
//!
//! Asked by `lifecycle` for listeners, by `migration` for connections whose other end is in no table
//! of this network namespace. Where there is no directory nothing of such meetings is done, and the
//! kernel is asked for one at most once a second, by processes that listen or have connections to
//! other hosts that have earned a lane.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sdp_fabric_shm::across;
use sdp_sys::time::monotonic_ns;

/// What is known of the directory.
#[unsafe(link_section = ".bss.hot")]
static STATE: AtomicU32 = AtomicU32::new(NOT_ASKED);
const NOT_ASKED: u32 = 0;
const THERE: u32 = 1;
const MISSING: u32 = 2;
/// When the kernel was asked last.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
/// How long its answer holds.
const HOLDS_NS: u64 = 1_000_000_000;

/// The setting; empty: none.
pub(crate) fn set(path: &[u8]) {
    let (before, len) = across::directory();
    if before.get(..len) != Some(path) {
        across::set_directory(path);
        STATE.store(NOT_ASKED, Ordering::Relaxed);
    }
}

/// Whether there was a usable directory when the kernel was asked last. One load.
#[inline]
pub(crate) fn is_known() -> bool {
    STATE.load(Ordering::Relaxed) == THERE
}

/// The same; asks if nobody has yet.
pub(crate) fn is_there() -> bool {
    match STATE.load(Ordering::Relaxed) {
        NOT_ASKED => look(),
        known => known == THERE,
    }
}

/// The same; asks unless the answer is fresh: it may have been mounted since.
#[cold]
pub(crate) fn look() -> bool {
    let now = monotonic_ns();
    let state = STATE.load(Ordering::Relaxed);
    let is_fresh = now.saturating_sub(LOOKED_NS.load(Ordering::Relaxed)) < HOLDS_NS;
    if state != NOT_ASKED && is_fresh {
        return state == THERE;
    }
    LOOKED_NS.store(now, Ordering::Relaxed);
    let is_usable = across::is_usable();
    STATE.store(if is_usable { THERE } else { MISSING }, Ordering::Relaxed);
    is_usable
}

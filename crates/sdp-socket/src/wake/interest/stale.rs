//! Stale data: data that registrations had (R9 c).
//!
//! A thread that has got the kernel's events comes for the lock when it gets a CPU. Meanwhile
//! others may have removed a registration, closed its connection or given it other data. The stale
//! data that the thread holds may be that of a former anchor, and the event the hidden eventfd's.
//! Or the library has reported a ring's event to another thread, which with ONESHOT is the only one
//! to know, and may have freed the memory that the data point to. So it is dropped: if it was for
//! the program, the kernel reports it again under the present data. Where another registration has
//! the data since, the event is only believed as far as that one's socket confirms it.
//!
//! The latest some thousand are remembered, until another registration has the same data:
//! descriptors' numbers and pointers come again. An event under data that was forgotten is passed
//! on as the kernel reports it. So is an error of a connection with ONESHOT that comes to a wait
//! which begins while its last number is being closed.

use core::sync::atomic::{AtomicU64, Ordering};

use libc::epoll_event;

use super::{ALWAYS, IN, mirror::SETS};
use crate::process::fork_page::FORK_PAGE;

/// Places by hash, a cache line each.
const PLACES: usize = 2048;
/// Remembered in each.
const DEPTH: usize = 4;
/// In [`Stale::which`], above the set: [`Owner::Once`].
const ONCE: u64 = SETS as u64;
/// The change's unit there.
const CHANGE: u64 = 2 * ONCE;

/// Number of the latest change that made data stale. Changes under the lock.
static LATEST: &AtomicU64 = &FORK_PAGE.lock.epoll_changes;

/// Number of the latest change, for [`StaleData::may_bring`].
#[inline(always)]
pub(crate) fn latest() -> u64 {
    LATEST.load(Ordering::Acquire)
}

/// The earlier owner of stale data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The hidden eventfd's.
    Doorbell,
    /// A registration's with ONESHOT.
    Once,
}

/// All that is remembered, of all sets. Zeros: nothing.
#[repr(C, align(64))]
pub(crate) struct StaleData([[Stale; DEPTH]; PLACES]);

#[derive(Clone, Copy)]
struct Stale {
    data: u64,
    /// The number of the change, whether they were a registration's with ONESHOT, and the set; 0: nothing is remembered here.
    which: u64,
}

const _: () = assert!(size_of::<[Stale; DEPTH]>() == 64 && SETS.is_power_of_two());

impl Stale {
    fn is_of(self, set: u32, data: u64) -> bool {
        self.data == data && self.which % ONCE == u64::from(set)
    }
}

impl StaleData {
    fn like(&mut self, set: u32, data: u64) -> Option<&mut [Stale; DEPTH]> {
        self.0.get_mut(mixed(set, data) as usize % PLACES)
    }

    /// These data are not the owner's any more, and the kernel knows: a wait that sees the new number cannot bring them.
    /// Where there is one thread nothing is remembered: only a signal handler could change something during a wait.
    pub(crate) fn note(&mut self, set: u32, data: u64, owner: Owner) {
        if sdp_sys::pid::is_single_threaded() {
            return;
        }
        let change = LATEST.fetch_add(1, Ordering::Release) + 1;
        let Some(place) = self.like(set, data) else { return };
        // Their place, a free one, or the oldest's.
        let own = place.iter().position(|stale| stale.is_of(set, data));
        let at = own.or_else(|| place.iter().position(|stale| stale.which == 0)).unwrap_or(0);
        let mut once = if owner == Owner::Once { ONCE } else { 0 };
        if let Some(tail) = place.get_mut(at..)
            && let Some(stale) = tail.first()
        {
            once |= if own.is_some() { stale.which & ONCE } else { 0 };
            tail.rotate_left(1);
        }
        if let Some(last) = place.last_mut() {
            *last = Stale { data, which: change * CHANGE + once + u64::from(set) };
        }
    }

    /// Something that is not in the mirror is about to have these data, also if a registration had
    /// them before.
    pub(crate) fn forget(&mut self, set: u32, data: u64) {
        if latest() != 0
            && let Some(place) = self.like(set, data)
        {
            place.iter_mut().filter(|stale| stale.is_of(set, data)).for_each(|f| f.which = 0);
        }
    }

    /// Whether this may be of a former owner, from a wait of the kernel's that began when [`latest`] was `since`.
    pub(crate) fn may_bring(&mut self, set: u32, event: &epoll_event, since: u64) -> bool {
        let (bits, data) = (event.events, event.u64);
        latest() != since
            && self.like(set, data).is_some_and(|place| {
                place.iter().any(|stale| {
                    stale.is_of(set, data)
                        && stale.which / CHANGE > since
                        // Beside it, a foreign doorbell reports whatever its holder likes.
                        && (bits & !ALWAYS == IN || stale.which & ONCE != 0)
                })
            })
    }
}

/// A hash of data in a set. Data that differ in their highest bits alone are not spread; descriptors, pointers and counters
/// are.
pub(crate) fn mixed(set: u32, data: u64) -> u64 {
    (data ^ u64::from(set).rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48
}

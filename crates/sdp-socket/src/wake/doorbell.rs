//! The process's own doorbell: an eventfd that peers write, and the page of bits that says for which connections.
//!
//! Made once, when the first connection meets its other end. Called by threads that sleep
//! ([`crate::wake::wait_set`], sets in [`crate::wake::interest`]), by those that must wake threads
//! of this process, and by `lifecycle` where a fork or a change of trust takes it away. Foreign
//! doorbells (those for other users): [`crate::wake::strangers`].

use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering},
};

use sdp_fabric_shm::segment;
use sdp_shm::doorbell::Doorbell;
use sdp_sys::{fd, hidden, section, stat};

use crate::{
    process::{self, fork_page::FORK_PAGE},
    wake::{
        interest,
        strangers::{self, Doorbells},
    },
};

static DOORBELL: &AtomicPtr<u8> = &FORK_PAGE.doorbell;

#[unsafe(link_section = ".data.hot")]
static BELL_FD: AtomicI32 = AtomicI32::new(-1);

#[unsafe(link_section = ".data.hot")]
static BELL_PAGE_FD: AtomicI32 = AtomicI32::new(-1);

/// With a soft limit below this there are no hidden descriptors beside the statistics page.
const LIMIT_FOR_BELLS: i32 = 128;

/// This process's doorbell pages, once made.
#[inline]
pub(crate) fn pages() -> Option<Doorbells> {
    own_page().map(|own| Doorbells::new(own, strangers::count()))
}

/// The doorbell page for the processes of our own user, once made.
#[inline]
pub(crate) fn own_page() -> Option<Doorbell> {
    let base = NonNull::new(DOORBELL.load(Ordering::Acquire))?;
    // SAFETY: a mapped page of the right size that stays until the process forks or retires.
    Some(unsafe { Doorbell::new(base) })
}

/// The eventfd and the page's file, made on first use; −1 where there is none.
pub(crate) fn files() -> (i32, i32) {
    if DOORBELL.load(Ordering::Acquire).is_null() {
        make_doorbell();
    }
    if DOORBELL.load(Ordering::Acquire).is_null() {
        return (-1, -1);
    }
    (BELL_FD.load(Ordering::Acquire), BELL_PAGE_FD.load(Ordering::Acquire))
}

/// The hidden eventfd, −1 when there is none.
pub(crate) fn event_fd() -> i32 {
    BELL_FD.load(Ordering::SeqCst) // behind `InUse::begin`
}

/// A thread is making the doorbell.
static MAKING: &AtomicU32 = &FORK_PAGE.making;

/// How often a thread looks whether another one has made the doorbell.
const LOOKS_AT_MAKER: u32 = 400;

/// Once only: peers keep the first one that they receive, and none would signal a second.
fn make_doorbell() {
    if process::soft_limit() < LIMIT_FOR_BELLS {
        return;
    }
    as_maker(|| {
        if DOORBELL.load(Ordering::Acquire).is_null() {
            make_doorbell_here();
        }
    });
}

/// Calls `make` in one thread at a time.
pub(crate) fn as_maker(make: impl FnOnce()) {
    let mut looks = 0;
    while MAKING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        looks += 1;
        if looks == LOOKS_AT_MAKER {
            return;
        }
        sdp_sys::time::back_off(looks);
    }
    make();
    MAKING.store(0, Ordering::Release);
}

/// [`make_doorbell`], by the one thread that may.
fn make_doorbell_here() {
    let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
    let event = fd::eventfd(flags);
    if let (Ok(event), Ok(page)) = (event, segment::create_doorbell_page()) {
        match segment::map_doorbell_page(page.raw()).map(process::Fresh::from) {
            Ok(mapped) => {
                let (event, page) = (process::hide(event), process::hide(page.into_raw()));
                if event >= 0 && page >= 0 {
                    BELL_FD.store(event, Ordering::Release);
                    BELL_PAGE_FD.store(page, Ordering::Release);
                    DOORBELL.store(mapped.keep().as_ptr(), Ordering::Release);
                    interest::doorbell_made();
                } else {
                    [event, page].into_iter().for_each(process::close_hidden);
                }
            }
            Err(_) => fd::close(event),
        }
    } else if let Ok(event) = event {
        fd::close(event);
    }
}

/// Rings this process's own doorbell for one of its connections.
pub(crate) fn signal_self(slot: u32) {
    if pages().is_some_and(|doorbell| doorbell.ring(slot)) {
        ring_all();
    }
}

/// Wakes the threads that sleep on this process's doorbell.
pub(crate) fn ring_all() {
    let _section = section::Guard::enter();
    let _in_use = hidden::InUse::begin();
    let event = event_fd();
    // A vfork child may have a file of its own there; of such files only an eventfd accepts the
    // eight bytes.
    let is_doorbell =
        || process::is_ours() || stat::at_hand(event).is_ok_and(|stat| stat.is_anonymous());
    if event >= 0 && is_doorbell() {
        let _ = fd::ring(event);
    }
}

/// Descriptors of the eventfd and of the page's file, −1 none.
pub(crate) fn numbers() -> [&'static AtomicI32; 2] {
    [&BELL_FD, &BELL_PAGE_FD]
}

/// In a fork child: the thread that was making the doorbell does not exist here.
pub(crate) fn forget_maker() {
    if MAKING.load(Ordering::Relaxed) != 0 {
        MAKING.store(0, Ordering::Relaxed);
    }
}

/// In a fork child: the parent's descriptors have been closed.
pub(crate) fn forget_numbers() {
    for cell in numbers() {
        if cell.load(Ordering::Relaxed) >= 0 {
            cell.store(-1, Ordering::Release);
        }
    }
}

/// In a fork child: the parent's page is unmapped.
pub(crate) fn unmap_page() {
    give_up_page(DOORBELL, true);
}

/// The doorbell page that `word` names cannot be found any more. `is_unused`: nor can another
/// thread be in the middle of a look at it.
pub(super) fn give_up_page(word: &AtomicPtr<u8>, is_unused: bool) {
    if let Some(base) = NonNull::new(word.swap(null_mut(), Ordering::AcqRel)) {
        // SAFETY: a mapping of this length that only its word named; its words are atomics, for
        // which zeros are values. Unused in a fork child only, which has no other thread.
        unsafe { process::give_up(base, segment::DOORBELL_PAGE_BYTES, is_unused) };
    }
}

/// The process leaves its trust domain: both descriptors are closed.
pub(crate) fn close_numbers() {
    for cell in numbers() {
        process::unhide(cell);
    }
}

/// The process leaves its trust domain: private zeros take the page's place.
pub(crate) fn zero_page() {
    give_up_page(DOORBELL, false);
}

//! Wait sets: a sleeping call's private edge view of the process's eventfd.
//!
//! Each is an epoll descriptor that sees every ring of the bell once, so that threads cannot steal each
//! other's. A call takes one for the length of its sleep and gives it back; a bounded pool keeps those
//! that are not in use, so that their number follows the sleepers, not the threads that ever slept.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use sdp_sys::{fd, hidden::InUse, section, sys};

use crate::{
    process,
    table::{self, Entry},
};

/// Sets that are kept while nobody sleeps on them; those beyond are closed.
const KEPT: usize = 64;

/// Descriptor + 1; 0 none.
static POOL: [AtomicI32; KEPT] = [const { AtomicI32::new(0) }; KEPT];
/// There was a set in [`POOL`] once, in this process.
static KEEPS: &AtomicBool = &crate::hot::PAGE.keeps_sets;
/// Counts the process's bells: a set of an earlier one is not kept.
static BELLS: &AtomicU32 = &crate::hot::PAGE.bells;

/// A set in use by the calling thread, or none. Goes back to the pool when dropped.
pub(crate) struct WaitSet {
    raw: i32,
    bells: u32,
}

impl WaitSet {
    /// No set: the call sleeps on the carrier alone.
    pub(crate) const NONE: Self = Self { raw: -1, bells: 0 };

    /// A set without old rings in it. To be had before anything is armed. [`WaitSet::NONE`] when the
    /// process has no bell, or no descriptor can be had.
    pub(crate) fn take() -> Self {
        let bells = BELLS.load(Ordering::Acquire);
        if process::bell_fd() < 0 {
            return Self::NONE;
        }
        for place in &POOL {
            if place.load(Ordering::Relaxed) != 0 {
                let held = place.swap(0, Ordering::AcqRel);
                if held != 0 {
                    let set = Self { raw: held - 1, bells };
                    // A ring that was another sleeper's would only wake this one for nothing. Where nobody
                    // else sleeps nobody rings.
                    if process::bell().is_none_or(|bell| bell.sleepers() != 0) {
                        set.clear();
                    }
                    return set;
                }
            }
        }
        let set = Self { raw: create(), bells };
        set.clear();
        set
    }

    /// Descriptor and bell, for [`WaitSet::from_parts`].
    pub(crate) fn parts(&self) -> (i32, u32) {
        (self.raw, self.bells)
    }

    /// What a thread that does not come back had in use. −1: none.
    pub(crate) fn from_parts(raw: i32, bells: u32) -> Self {
        Self { raw, bells }
    }

    /// Whether it belongs to the bell that the process has now. A fork child that comes back from a handler
    /// has another one, and the page of its parent's is unmapped.
    pub(crate) fn is_current(&self) -> bool {
        self.bells == generation()
    }

    /// The descriptor, −1 none.
    pub(crate) fn raw(&self) -> i32 {
        self.raw
    }

    /// Whether there is a set.
    pub(crate) fn exists(&self) -> bool {
        self.raw >= 0
    }

    /// Takes the rings off that have come so far.
    pub(crate) fn clear(&self) {
        let _section = section::Guard::enter();
        let _in_use = InUse::begin();
        // The program may have put something else there while we slept.
        if table::entry(self.raw) != Some(Entry::Hidden) || process::is_retired() {
            return;
        }
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: one writable event; no wait, no mask.
        let _ = unsafe { sys!(libc::SYS_epoll_pwait, self.raw, &raw mut event, 1, 0, 0, 8) };
    }
}

/// Which of its bells the process has now.
pub(crate) fn generation() -> u32 {
    BELLS.load(Ordering::Acquire)
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        // A number that is not hidden any more was taken over by the program while we slept.
        if self.raw < 0 || table::entry(self.raw) != Some(Entry::Hidden) || process::is_retired() {
            return;
        }
        if self.bells == BELLS.load(Ordering::Acquire) {
            if !KEEPS.load(Ordering::Relaxed) {
                KEEPS.store(true, Ordering::SeqCst); // before there is one
            }
            for place in &POOL {
                if place
                    .compare_exchange(0, self.raw + 1, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    return;
                }
            }
        }
        close(self.raw);
    }
}

fn create() -> i32 {
    let _section = section::Guard::enter();
    let _in_use = InUse::begin();
    let event = process::bell_fd();
    // SAFETY: no pointers.
    let Ok(set) = (unsafe { sys!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) }) else {
        return -1;
    };
    let set = process::hide(set as i32);
    if set < 0 {
        return -1;
    }
    let mut interest = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: the event structure is readable.
    let added =
        unsafe { sys!(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, event, &raw mut interest) };
    if added.is_err() {
        close(set);
        return -1;
    }
    set
}

fn close(raw: i32) {
    let _section = section::Guard::enter();
    table::clear(raw);
    fd::close(raw);
}

/// The program is about to overwrite a hidden descriptor: if it is a set in the pool, it goes.
pub(crate) fn lose(raw: i32) {
    for place in &POOL {
        if place.load(Ordering::Relaxed) == raw + 1 {
            let _ = place.compare_exchange(raw + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The process's bell goes, or has gone: sets of it are closed, now or when they are given back. In a
/// fork child, where hidden descriptors are closed already, they are only forgotten.
pub(crate) fn drop_all(forked: bool) {
    BELLS.fetch_add(1, Ordering::AcqRel);
    if !KEEPS.load(Ordering::SeqCst) {
        return; // most processes: a child would look at each place
    }
    for place in &POOL {
        if place.load(Ordering::Relaxed) == 0 {
            continue; // without a write, which in a fork child copies the page
        }
        let held = place.swap(0, Ordering::AcqRel);
        if held != 0 && !forked {
            close(held - 1);
        }
    }
    if forked {
        KEEPS.store(false, Ordering::Relaxed);
    }
}

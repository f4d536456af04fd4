//! Wait sets: a sleeping call's private edge view of the process's eventfd and doorbells.
//!
//! Called by `datapath/wait.rs` and `readiness/poll.rs` before a sleep.
//!
//! Each is an epoll descriptor that sees every ring of the doorbell once, so that threads cannot
//! steal each other's. A call takes one for the length of its sleep and gives it back; a bounded
//! pool keeps those that are not in use, so that their number follows the sleepers, not the threads
//! that ever slept.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use sdp_sys::{
    fd,
    hidden::InUse,
    kernel::{self, zeroed},
    section,
};

use crate::{
    process::{
        self,
        table::{self, Entry},
    },
    wake::{
        doorbell,
        strangers::{self, Doorbells},
    },
};

/// Sets that are kept while no thread sleeps on them; those beyond are closed.
const KEPT: usize = 64;

/// Low bits of a place of the pool: descriptor + 1; 0 none. Those above: [`WaitSet::strangers`].
const NUMBER: i32 = (1 << 24) - 1;
const _: () = assert!(strangers::USERS < 128);

static POOL: [AtomicI32; KEPT] = [const { AtomicI32::new(0) }; KEPT];
/// There was a set in [`POOL`] once, in this process.
static KEEPS: &AtomicBool = &crate::process::fork_page::FORK_PAGE.keeps_sets;
/// Counts the process's doorbells: a set of an earlier one is not kept.
static DOORBELLS: &AtomicU32 = &crate::process::fork_page::FORK_PAGE.doorbells;

/// A set in use by the calling thread, or none. Goes back to the pool when dropped.
pub(crate) struct WaitSet {
    raw: i32,
    doorbells: u32,
    /// Doorbells that are in it, of the first users with one.
    strangers: u32,
}

/// Number of low bits that count foreign doorbells in the word that [`WaitSet::parts`] returns for
/// the doorbells.
const STRANGERS_BITS: u32 = 5;
const _: () = assert!(strangers::USERS < 1 << STRANGERS_BITS);

impl WaitSet {
    /// No set: the call sleeps on the carrier alone.
    pub(crate) const NONE: Self = Self { raw: -1, doorbells: 0, strangers: 0 };

    /// A set without old rings in it. To be had before anything is armed. [`WaitSet::NONE`] when the
    /// process has no doorbell, or no descriptor can be had.
    pub(crate) fn take() -> Self {
        let doorbells = DOORBELLS.load(Ordering::Acquire);
        if doorbell::event_fd() < 0 {
            return Self::NONE;
        }
        for place in &POOL {
            if place.load(Ordering::Relaxed) != 0 {
                let held = place.swap(0, Ordering::AcqRel);
                if held != 0 {
                    let (raw, strangers) = ((held & NUMBER) - 1, (held >> 24) as u32);
                    let set = Self { raw, doorbells, strangers };
                    // A signal that was meant for another sleeper would only wake this one for
                    // nothing. Where no other thread sleeps, no peer signals.
                    if doorbell::pages().is_none_or(|doorbell| doorbell.sleepers() != 0) {
                        set.clear();
                    }
                    return set.complete();
                }
            }
        }
        let set = Self { raw: create(), doorbells, strangers: 0 };
        set.clear();
        set.complete()
    }

    /// Puts doorbells in that have been made since. A thread that makes one signals the eventfd
    /// then, which wakes the threads that have looked here before. Where one cannot be put in,
    /// there is no set.
    fn complete(mut self) -> Self {
        while self.raw >= 0 && self.strangers < strangers::count() {
            let _section = section::Guard::enter();
            let _in_use = InUse::begin();
            if table::entry(self.raw) != Some(Entry::Hidden) {
                return Self::NONE; // the program's by now
            }
            let door = strangers::descriptors(self.strangers + 1).last();
            if !door.is_some_and(|door| watch(self.raw, door)) {
                close(core::mem::replace(&mut self.raw, -1));
                return Self::NONE;
            }
            self.strangers += 1;
        }
        self
    }

    /// The pages in which a thread that sleeps here is counted; none where there is no set.
    pub(crate) fn doorbells(&self) -> Option<Doorbells> {
        self.exists().then(doorbell::pages)?.map(|doorbells| doorbells.of(self.strangers))
    }

    /// Descriptor and doorbell, for [`WaitSet::from_parts`].
    pub(crate) fn parts(&self) -> (i32, u32) {
        (self.raw, self.doorbells << STRANGERS_BITS | self.strangers)
    }

    /// The wait set and doorbells of a thread that does not come back. −1: none.
    pub(crate) fn from_parts(raw: i32, doorbells: u32) -> Self {
        let strangers = doorbells & ((1 << STRANGERS_BITS) - 1);
        Self { raw, doorbells: doorbells >> STRANGERS_BITS, strangers }
    }

    /// Whether it belongs to the doorbell that the process has now. A fork child that comes back
    /// from a handler has another one, and the page of its parent's is unmapped.
    pub(crate) fn is_current(&self) -> bool {
        self.doorbells << STRANGERS_BITS == generation() << STRANGERS_BITS
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
        let _ = kernel::epoll_wait(self.raw, &mut [zeroed()], 0);
    }
}

/// Which of its doorbells the process has now.
pub(crate) fn generation() -> u32 {
    DOORBELLS.load(Ordering::Acquire)
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        // A number that is not hidden any more was taken over by the program while we slept.
        if self.raw < 0 || table::entry(self.raw) != Some(Entry::Hidden) || process::is_retired() {
            return;
        }
        if self.is_current() && self.raw < NUMBER {
            let kept = (self.strangers as i32) << 24 | (self.raw + 1);
            if !KEEPS.load(Ordering::Relaxed) {
                KEEPS.store(true, Ordering::SeqCst); // before there is one
            }
            for place in &POOL {
                if place.compare_exchange(0, kept, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
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
    let event = doorbell::event_fd();
    let Ok(set) = kernel::epoll_create1(libc::EPOLL_CLOEXEC) else {
        return -1;
    };
    let set = process::hide(set as i32);
    if set < 0 {
        return -1;
    }
    if !watch(set, event) {
        close(set);
        return -1;
    }
    set
}

/// Puts the eventfd or a foreign doorbell into a set. False: the kernel has no room for that.
fn watch(set: i32, doorbell: i32) -> bool {
    let interest = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, doorbell, &interest).is_ok()
}

fn close(raw: i32) {
    let _section = section::Guard::enter();
    table::clear(raw);
    fd::close(raw);
}

/// The program is about to overwrite a hidden descriptor: if it is a set in the pool, it goes.
pub(crate) fn lose(raw: i32) {
    for place in &POOL {
        let held = place.load(Ordering::Relaxed);
        if held & NUMBER == raw + 1 {
            let _ = place.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The process's doorbell goes, or has gone: sets of it are closed, now or when they are given
/// back. In a fork child, where hidden descriptors are closed already, they are only forgotten.
pub(crate) fn drop_all(forked: bool) {
    DOORBELLS.fetch_add(1, Ordering::AcqRel);
    if !KEEPS.load(Ordering::SeqCst) {
        return; // most processes: a child would look at each place
    }
    for place in &POOL {
        if place.load(Ordering::Relaxed) == 0 {
            continue; // without a write, which in a fork child copies the page
        }
        let held = place.swap(0, Ordering::AcqRel);
        if held != 0 && !forked {
            close((held & NUMBER) - 1);
        }
    }
    if forked {
        KEEPS.store(false, Ordering::Relaxed);
    }
}

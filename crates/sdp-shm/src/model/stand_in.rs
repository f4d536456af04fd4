//! The types that `sync` exports when the models are built: loom's atomics, with a switch that
//! weakens one place of the real code at a time.
//!
//! Every call of an atomic operation is a *site*: file, line and operation. A run notes the sites
//! that it passes and the orderings that could be taken away from each ([`Loss`]); [`super::twins`]
//! runs the model again for each of them, weakened, and expects it to fail. All of it is local to
//! the calling system thread: loom runs the threads of a model on one.

use core::sync::atomic::Ordering;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    panic::Location,
    rc::Rc,
};

use loom::{
    cell::UnsafeCell,
    sync::{Condvar, Mutex, atomic as loomed},
    thread,
};

use crate::{layout::Segment, ring::ALIGN};

/// This is a build of the models: sizes are small.
pub(crate) const MODELLED: bool = true;

/// The ordering or operation that a weakened twin lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// The ordering (relaxed instead), or the whole fence.
    Ordering,
    /// Atomicity: a read-modify-write becomes a load and a plain store that always succeeds.
    Atomicity,
}

/// One call of an atomic operation in the real code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    pub(super) file: &'static str,
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) operation: &'static str,
}

thread_local! {
    static SEEN: RefCell<BTreeSet<(Site, Loss)>> = const { RefCell::new(BTreeSet::new()) };
    static WEAKENED: Cell<Option<(Site, Loss)>> = const { Cell::new(None) };
    /// By thread of the model: effects that it still has before it is killed.
    static LIVES: RefCell<Vec<(thread::ThreadId, u32)>> = const { RefCell::new(Vec::new()) };
    static RING: RefCell<Rc<Vec<UnsafeCell<()>>>> = RefCell::new(Rc::new(Vec::new()));
    static KERNEL: RefCell<Option<Rc<Kernel>>> = const { RefCell::new(None) };
}

/// The sites seen so far by this system thread.
pub(super) fn seen() -> BTreeSet<(Site, Loss)> {
    SEEN.with_borrow(Clone::clone)
}

/// From now on this site lacks that; `None`: the real code.
pub(super) fn weaken(twin: Option<(Site, Loss)>) {
    WEAKENED.set(twin);
}

#[track_caller]
fn lacks(operation: &'static str, loss: Loss) -> bool {
    let at = Location::caller();
    let site = Site { file: at.file(), line: at.line(), column: at.column(), operation };
    match WEAKENED.get() {
        Some(twin) => twin == (site, loss),
        None => {
            SEEN.with_borrow_mut(|seen| seen.insert((site, loss)));
            false
        }
    }
}

/// The calling thread of the model is killed after so many more stores and read-modify-writes: it runs
/// on to its end, but as a ghost that changes nothing.
pub(super) fn dies_after(effects: u32) {
    LIVES.with_borrow_mut(|lives| lives.push((thread::current().id(), effects)));
}

/// Whether the calling thread has been killed.
pub(super) fn is_ghost() -> bool {
    let me = thread::current().id();
    LIVES.with_borrow(|lives| lives.contains(&(me, 0)))
}

/// The calling thread is about to change something. False: it is dead, and does not.
fn lives() -> bool {
    if LIVES.with_borrow(Vec::is_empty) {
        return true;
    }
    let me = thread::current().id();
    LIVES.with_borrow_mut(|lives| match lives.iter_mut().find(|life| life.0 == me) {
        None => true,
        Some((_, left)) if *left > 0 => {
            *left -= 1;
            true
        }
        Some(_) => false,
    })
}

/// The ordering to use at the caller's site.
#[track_caller]
fn ordering(operation: &'static str, wanted: Ordering) -> Ordering {
    if wanted != Ordering::Relaxed && lacks(operation, Loss::Ordering) {
        Ordering::Relaxed
    } else {
        wanted
    }
}

/// A fence, unless it is the one that the twin lacks.
#[track_caller]
pub(crate) fn fence(wanted: Ordering) {
    if !lacks("fence", Loss::Ordering) {
        loomed::fence(wanted);
    }
}

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        /// Loom's atomic of the same name.
        #[derive(Debug, Default)]
        pub struct $name(loomed::$name);

        #[allow(dead_code, reason = "not every width needs every operation")]
        impl $name {
            pub(crate) fn new(value: $int) -> Self {
                Self(loomed::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $int {
                self.0.load(ordering("load", order))
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $int, order: Ordering) {
                let order = ordering("store", order);
                if lives() {
                    self.0.store(value, order);
                }
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $int, order: Ordering) -> $int {
                let order = ordering("swap", order);
                if !lives() {
                    return self.0.load(Ordering::Relaxed);
                }
                if lacks("swap", Loss::Atomicity) {
                    return self.torn(|_| value);
                }
                self.0.swap(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                let order = ordering("add", order);
                if !lives() {
                    return self.0.load(Ordering::Relaxed);
                }
                if lacks("add", Loss::Atomicity) {
                    return self.torn(|old| old.wrapping_add(value));
                }
                self.0.fetch_add(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                let order = ordering("or", order);
                if !lives() {
                    return self.0.load(Ordering::Relaxed);
                }
                if lacks("or", Loss::Atomicity) {
                    return self.torn(|old| old | value);
                }
                self.0.fetch_or(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut change: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                let set = ordering("update", set);
                if !lives() {
                    return Ok(self.0.load(Ordering::Relaxed));
                }
                if lacks("update", Loss::Atomicity) {
                    return Ok(self.torn(|old| change(old).unwrap_or(old)));
                }
                self.0.fetch_update(set, fetch, change)
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                from: $int,
                to: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                let success = ordering("exchange", success);
                if !lives() {
                    return Ok(from);
                }
                if lacks("exchange", Loss::Atomicity) {
                    // Looked before, stored now, with any change in between overwritten.
                    let now = self.0.load(Ordering::Relaxed);
                    if now != from {
                        return Err(now);
                    }
                    self.0.store(to, Ordering::Relaxed);
                    return Ok(from);
                }
                self.0.compare_exchange(from, to, success, failure)
            }

            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                from: $int,
                to: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(from, to, success, failure)
            }

            fn torn(&self, change: impl FnOnce($int) -> $int) -> $int {
                let old = self.0.load(Ordering::Relaxed);
                self.0.store(change(old), Ordering::Relaxed);
                old
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

/// A new execution of a model begins: no process is dead, the ring of `bytes` bytes is untouched.
pub(super) fn begin(bytes: usize) {
    LIVES.set(Vec::new());
    RING.set(Rc::new((0..bytes / ALIGN).map(|_| UnsafeCell::new(())).collect()));
    KERNEL.set(Some(Rc::new(Kernel { dead: Mutex::new(0), changed: Condvar::new() })));
}

/// The kernel's knowledge: dead processes, and the sleepers on the one lock word of a model.
struct Kernel {
    /// One bit per process id.
    dead: Mutex<u32>,
    changed: Condvar,
}

fn kernel() -> Rc<Kernel> {
    KERNEL.with_borrow(|kernel| kernel.clone().expect("the model called `begin`"))
}

/// Process `pid` (below 32) has ended.
pub(super) fn die(pid: u32) {
    let kernel = kernel();
    *kernel.dead.lock().expect("no poison") |= 1 << pid;
    kernel.changed.notify_all();
}

/// The answer of `pidfd_open`.
pub(crate) fn is_dead(pid: i32) -> bool {
    *kernel().dead.lock().expect("no poison") & 1 << pid != 0
}

/// No process is stopped in a model.
pub(crate) fn is_stopped(_: i32) -> bool {
    false
}

/// A sleep on the model's lock word. It times out when a process has died, and otherwise never: a wake-up
/// that is lost is a deadlock here, though it would cost a few milliseconds in truth.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, _ns: i64) -> bool {
    let kernel = kernel();
    let dead = kernel.dead.lock().expect("no poison");
    let owner_is_dead = |dead: u32| dead & 1 << (seen & 31) != 0;
    if word.0.load(Ordering::SeqCst) != seen || owner_is_dead(*dead) {
        return false;
    }
    let dead = kernel.changed.wait(dead).expect("no poison");
    !owner_is_dead(*dead)
}

/// Wakes one sleeper.
pub(crate) fn futex_wake(_: &AtomicU32) {
    let kernel = kernel();
    let dead = kernel.dead.lock().expect("no poison");
    if !is_ghost() {
        kernel.changed.notify_one();
    }
    drop(dead);
}

fn touch(at: usize, len: usize, how: impl Fn(&UnsafeCell<()>)) {
    let ring = RING.with_borrow(Rc::clone);
    if len != 0 {
        ring[at / ALIGN..=(at + len - 1) / ALIGN].iter().for_each(how);
    }
}

/// Loom objects when another thread may be reading or writing these ring bytes at this moment.
pub(crate) fn ring_write(_: Segment, at: usize, len: usize) {
    if !is_ghost() {
        touch(at, len, |cell| cell.with_mut(|_| ()));
    }
}

/// Loom objects when another thread may be writing these ring bytes at this moment.
pub(crate) fn ring_read(_: Segment, at: usize, len: usize) {
    touch(at, len, |cell| cell.with(|_| ()));
}

//! Pointer-free locks for family memory.
//!
//! A lock is one word: the owner's process id, and a bit that says that a thread sleeps. It is
//! taken by compare-and-swap (about 10 ns) and survives its owner: a waiter that has slept a while
//! asks the kernel whether the owner lives and otherwise takes over; the caller learns of it and
//! repairs what the dead owner may have left half done. An owner that lives and does not come to an
//! end costs a bounded time: a process that can write the word can write any value, and must not
//! stop its family members for ever.
//!
//! Owners are processes, not threads: threads of one process exclude each other (the word is not
//! zero), a thread never dies alone inside (critical sections are neither cancellable nor interrupted
//! by handlers), and a fork child sees a word owned by its parent, which is the truth.

use core::sync::atomic::{Ordering, compiler_fence};

use crate::sync::{AtomicU32, MODELLED, futex_wait, futex_wake, is_dead, is_stopped};

const WAITERS: u32 = 1 << 31;
/// Rounds of spinning before the first sleep.
const SPIN_ROUNDS: u32 = if MODELLED { 1 } else { 200 };
/// Length of one sleep; after each the owner's life is checked.
const SLEEP_NS: i64 = 5_000_000;
/// How long one owner may stay inside, ns. None does for longer than hand-overs wait.
pub const TIMEOUT_NS: u64 = 20_000_000_000;

/// How a lock was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// The last owner released it.
    Clean,
    /// The last owner died inside.
    TakenOver,
    /// Not at all: its owner lives, and keeps it.
    Overdue,
}

/// Takes the lock in the name of process `pid` (positive).
#[inline]
pub fn lock(word: &AtomicU32, pid: u32) -> Acquired {
    lock_within(word, pid, TIMEOUT_NS)
}

/// [`lock`] that waits so long for one and the same owner, ns.
#[inline]
pub fn lock_within(word: &AtomicU32, pid: u32, timeout_ns: u64) -> Acquired {
    match word.compare_exchange(0, pid, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Acquired::Clean,
        Err(_) => contended(word, pid, timeout_ns),
    }
}

/// Takes the lock if it is free.
#[inline]
pub fn try_lock(word: &AtomicU32, pid: u32) -> bool {
    word.compare_exchange(0, pid, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// [`try_lock`] for a caller without rivals: the only thread of a process that shares the word with
/// no other. No locked instruction.
#[inline(always)]
pub fn try_lock_alone(word: &AtomicU32, pid: u32) -> bool {
    if word.load(Ordering::Relaxed) != 0 {
        return false; // taken further up in this thread's own stack, or by a damaged word
    }
    word.store(pid, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    true
}

/// Releases a lock that [`try_lock_alone`] took.
#[inline(always)]
pub fn unlock_alone(word: &AtomicU32) {
    word.store(0, Ordering::Release);
}

/// Whether a process has the lock.
pub fn is_owned_by(word: &AtomicU32, pid: u32) -> bool {
    word.load(Ordering::Relaxed) & !WAITERS == pid
}

/// Releases the lock.
#[inline]
pub fn unlock(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & WAITERS != 0 {
        futex_wake(word);
    }
}

#[cold]
fn contended(word: &AtomicU32, pid: u32, timeout_ns: u64) -> Acquired {
    for _ in 0..SPIN_ROUNDS {
        if word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, pid, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Acquired::Clean;
        }
        core::hint::spin_loop();
    }
    let (mut sleeps_left, mut last) = (timeout_ns / SLEEP_NS as u64, 0);
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen == 0 {
            // Others may still sleep: keep the bit, at the price of one needless wake.
            if word.compare_exchange(0, pid | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Acquired::Clean;
            }
            continue;
        }
        let armed = seen | WAITERS;
        if seen != armed
            && word.compare_exchange(seen, armed, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            continue;
        }
        let woken = futex_wait(word, armed, SLEEP_NS);
        let owner = armed & !WAITERS;
        if woken || owner != last {
            (sleeps_left, last) = (timeout_ns / SLEEP_NS as u64, owner);
        }
        if woken {
            continue;
        }
        if owner != pid
            && is_dead(owner as i32)
            && word
                .compare_exchange(armed, pid | WAITERS, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            return Acquired::TakenOver;
        }
        sleeps_left = sleeps_left.saturating_sub(1);
        // A model's time does not pass, and a process that was stopped inside has time until it
        // goes on, but waiters that can come back later do not wait for that.
        let waits_for_stopped = || timeout_ns >= TIMEOUT_NS && is_stopped(owner as i32);
        if sleeps_left == 0 && !MODELLED && !waits_for_stopped() {
            return Acquired::Overdue;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn excludes_threads() {
        let word = Arc::new(AtomicU32::new(0));
        let inside = Arc::new(AtomicU32::new(0));
        let total = Arc::new(AtomicU32::new(0));
        let pid = std::process::id();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (word, inside, total) = (word.clone(), inside.clone(), total.clone());
                thread::spawn(move || {
                    for _ in 0..if cfg!(miri) { 5 } else { 2000 } {
                        assert_eq!(lock(&word, pid), Acquired::Clean);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        let n = total.load(Ordering::Relaxed);
                        total.store(n + 1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        unlock(&word);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(total.load(Ordering::Relaxed), if cfg!(miri) { 20 } else { 8000 });
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    #[cfg(not(miri))]
    fn a_living_owner_is_waited_for_only_so_long() {
        let word = AtomicU32::new(1);
        let me = std::process::id();
        assert_eq!(lock_within(&word, me, 10 * SLEEP_NS as u64), Acquired::Overdue);
        assert_eq!(word.load(Ordering::Relaxed), 1 | WAITERS, "it is still its owner's");
        // Its own name as well.
        word.store(me, Ordering::Relaxed);
        assert_eq!(lock_within(&word, me, 10 * SLEEP_NS as u64), Acquired::Overdue);
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts processes")]
    fn a_stopped_owner_is_not_waited_for_by_who_comes_back() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let word = AtomicU32::new(child.id());
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) }, 0);
        while !is_stopped(child.id() as i32) {
            thread::yield_now();
        }
        assert_eq!(lock_within(&word, std::process::id(), 10 * SLEEP_NS as u64), Acquired::Overdue);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts processes")]
    fn a_dead_owner_is_replaced() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let word = AtomicU32::new(dead);
        assert_eq!(lock(&word, std::process::id()), Acquired::TakenOver);
        unlock(&word);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}

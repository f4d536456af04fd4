//! Locks of family memory: one owner at a time, and a dead one is replaced exactly once.

use std::sync::Arc;

use loom::{cell::UnsafeCell, thread};

use super::{Loss, Spared, stand_in, twins};
use crate::{
    lock::{self, Acquired},
    sync::AtomicU32,
};

struct World {
    word: AtomicU32,
    /// The data under the lock; loom objects to two users at once.
    inside: UnsafeCell<u32>,
}

impl World {
    fn new() -> Arc<Self> {
        stand_in::begin(0);
        Arc::new(Self { word: AtomicU32::new(0), inside: UnsafeCell::new(0) })
    }

    fn work(&self) {
        // SAFETY: under the lock; loom checks that.
        self.inside.with_mut(|value| unsafe { *value += 1 });
    }
}

// SAFETY: `inside` is used under the lock only, which the model checks.
unsafe impl Sync for World {}
// SAFETY: its words are plain numbers, which belong to no thread.
unsafe impl Send for World {}

fn process(world: &Arc<World>, pid: u32) -> thread::JoinHandle<u32> {
    let world = world.clone();
    thread::spawn(move || {
        let how = lock::lock(&world.word, pid);
        world.work();
        lock::unlock(&world.word);
        u32::from(how == Acquired::TakenOver)
    })
}

#[test]
fn one_owner_at_a_time() {
    twins("lock", 4, &[("lock.rs", "")], &[], || {
        let world = World::new();
        let other = process(&world, 1);
        assert_eq!(lock::lock(&world.word, 2), Acquired::Clean);
        world.work();
        lock::unlock(&world.word);
        assert_eq!(other.join().expect("done"), 0);
        world.inside.with(|value| {
            // SAFETY: the other thread is gone.
            assert_eq!(unsafe { *value }, 2);
        });
    });
}

#[test]
fn a_dead_owner_is_replaced_once() {
    let spared: [Spared; 1] = [(
        "lock.rs",
        ".compare_exchange(armed, pid | WAITERS",
        Loss::Ordering,
        "who knows from the kernel that a process is dead sees what it wrote",
    )];
    let takeover = [("lock.rs", ".compare_exchange(armed, pid | WAITERS")];
    twins("lock, dead owner", 2, &takeover, &spared, || {
        let world = World::new();
        // Process 3 dies inside.
        assert_eq!(lock::lock(&world.word, 3), Acquired::Clean);
        let dying = {
            let world = world.clone();
            thread::spawn(move || {
                world.work();
                stand_in::die(3);
            })
        };
        let other = process(&world, 1);
        let taken = u32::from(lock::lock(&world.word, 2) == Acquired::TakenOver);
        world.work();
        lock::unlock(&world.word);
        dying.join().expect("dead");
        assert_eq!(taken + other.join().expect("done"), 1, "one next owner");
    });
}

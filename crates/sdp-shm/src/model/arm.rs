//! Arm words (O1–O3): a publisher wakes a sleeper that armed.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU32 as Word, Ordering},
    thread,
};

use super::{Loss, Remembered, fails, twins};
use crate::{
    arm::{self, Mode},
    sync::AtomicU32,
};

struct World {
    word: AtomicU32,
    /// Stands for the ring's tail.
    published: Word,
    doorbell: Remembered,
}

impl World {
    fn new() -> Arc<Self> {
        super::stand_in::begin(0);
        Arc::new(Self {
            word: AtomicU32::new(0),
            published: Word::new(0),
            doorbell: Remembered::new(),
        })
    }

    fn publish(&self, n: u32) {
        self.published.store(n, Ordering::Release);
        if let Some((_, seen)) = arm::check(&self.word) {
            self.doorbell.ring();
            arm::disarm(&self.word, seen);
        }
    }

    /// As a receive call waits: arm, look again, sleep.
    fn wait_for(&self, n: u32) {
        while self.published.load(Ordering::Acquire) < n {
            arm::arm(&self.word, Mode::Doorbell);
            if self.published.load(Ordering::Acquire) >= n {
                return;
            }
            self.doorbell.sleep();
        }
    }
}

#[test]
fn a_sleeper_hears_every_publication() {
    let spared = [
        ("arm.rs", "match word.compare_exchange_weak(", Loss::Ordering, "the fence S2 orders it"),
        (
            "arm.rs",
            "word.compare_exchange(",
            Loss::Ordering,
            "what it hands over is in the doorbell",
        ),
    ];
    twins("arm", 3, &[("arm.rs", "")], &spared, || {
        let world = World::new();
        let waker = {
            let world = world.clone();
            thread::spawn(move || {
                world.publish(1);
                world.publish(2);
            })
        };
        world.wait_for(1);
        world.wait_for(2);
        waker.join().expect("woken");
    });
}

/// Where a waker is killed.
#[derive(Debug, Clone, Copy)]
enum Death {
    BeforeRinging,
    BetweenTheTwo,
}

/// O2: a waker dies, and the next writer (not the same thread) publishes too.
fn dying_waker(death: Death, rings_first: bool) {
    let world = World::new();
    let waker = {
        let world = world.clone();
        thread::spawn(move || {
            world.published.store(1, Ordering::Release);
            if let Some((_, seen)) = arm::check(&world.word)
                && matches!(death, Death::BetweenTheTwo)
            {
                if rings_first {
                    world.doorbell.ring();
                } else {
                    arm::disarm(&world.word, seen);
                }
            }
            // Killed.
        })
    };
    let next = {
        let world = world.clone();
        thread::spawn(move || {
            waker.join().expect("gone");
            world.publish(2);
        })
    };
    world.wait_for(2);
    next.join().expect("done");
}

#[test]
fn a_waker_that_dies_leaves_the_word_armed() {
    super::holds("arm, killed before W4", || dying_waker(Death::BeforeRinging, true));
    super::holds("arm, killed between W4 and W5", || dying_waker(Death::BetweenTheTwo, true));
    fails("arm, W5 before W4", || dying_waker(Death::BetweenTheTwo, false));
}

#[test]
fn looking_before_arming_is_too_early() {
    fails("arm, S3 before S1", || {
        let world = World::new();
        let waker = {
            let world = world.clone();
            thread::spawn(move || world.publish(1))
        };
        if world.published.load(Ordering::Acquire) < 1 {
            arm::arm(&world.word, Mode::Doorbell);
            world.doorbell.sleep();
        }
        waker.join().expect("woken");
    });
}

/// O6: two sleepers of different kinds share the word; each kind of wake-up reaches its own kind
/// only.
fn two_kinds(reaches_all: bool) {
    let world = World::new();
    let carrier = Arc::new(Remembered::new());
    let waker = {
        let (world, carrier) = (world.clone(), carrier.clone());
        thread::spawn(move || {
            world.published.store(1, Ordering::Release);
            if let Some((mode, seen)) = arm::check(&world.word) {
                if mode == Mode::Carrier && reaches_all {
                    // A byte on the socket: both poll it.
                    carrier.ring();
                    world.doorbell.ring();
                } else if mode == Mode::Carrier {
                    carrier.ring();
                } else {
                    world.doorbell.ring();
                }
                arm::disarm(&world.word, seen);
            }
        })
    };
    let by_doorbell = {
        let world = world.clone();
        thread::spawn(move || world.wait_for(1))
    };
    arm::arm(&world.word, Mode::Carrier);
    if world.published.load(Ordering::Acquire) < 1 {
        carrier.sleep();
    }
    waker.join().expect("done");
    by_doorbell.join().expect("woken");
}

#[test]
fn two_modes_reach_both_sleepers() {
    super::holds("arm, two modes", || two_kinds(true));
    fails("arm, two modes, a carrier that wakes only its own", || two_kinds(false));
}

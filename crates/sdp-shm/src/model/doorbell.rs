//! Doorbell page: no bit is lost, no thread sleeps over one, and a peer that is killed while it
//! signals spoils no other peer's signals.

use std::{ptr::NonNull, sync::Arc};

use loom::{
    sync::atomic::{AtomicU64 as Word, Ordering},
    thread,
};

use super::{Loss, Remembered, Spared, holds, stand_in, twins};
use crate::doorbell::{Doorbell, DoorbellPage};

struct World {
    page: Box<DoorbellPage>,
    event: Remembered,
    /// The bytes that each slot's connection has published, one bit each.
    published: Word,
}

impl World {
    fn new() -> Arc<Self> {
        stand_in::begin(0);
        let page = Box::new(DoorbellPage::for_model());
        Arc::new(Self { page, event: Remembered::new(), published: Word::new(0) })
    }

    fn doorbell(&self) -> Doorbell {
        // SAFETY: the page lives as long as the world, which every thread of a model holds. Its
        // size is the model's, and so is that of every access.
        unsafe { Doorbell::new(NonNull::from(&*self.page).cast()) }
    }

    fn ring(&self, slot: u32) {
        self.published.fetch_or(1 << (slot & 63), Ordering::Relaxed);
        if self.doorbell().ring(slot) {
            self.event.ring();
        }
    }

    /// As an event loop waits: until all of `wanted` have come.
    fn wait_for(&self, wanted: &[u32]) {
        let doorbell = self.doorbell();
        let mut missing = wanted.to_vec();
        loop {
            doorbell.take(|slot| {
                missing.retain(|wanted| *wanted != slot);
                let published = self.published.load(Ordering::Relaxed);
                assert!(published & 1 << (slot & 63) != 0, "rung, and nothing there");
            });
            if missing.is_empty() {
                return;
            }
            doorbell.fall_asleep();
            if !doorbell.any() {
                self.event.sleep();
            }
            doorbell.wake_up();
        }
    }
}

fn producer(world: &Arc<World>, slots: &'static [u32]) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || slots.iter().for_each(|slot| world.ring(*slot)))
}

const IN_ORDER: &str = "loom performs read-modify-writes in program order";
const FENCED: &str = "the fence behind it orders it";
const ONE_OWNER: &str = "one thread sleeps here; see the model with two";

/// Weaknesses that no model of the page can notice.
const SPARED: [Spared; 5] = [
    ("doorbell.rs", "summary.fetch_or(bit", Loss::Ordering, IN_ORDER),
    ("doorbell.rs", "let words = summary.swap(0", Loss::Ordering, IN_ORDER),
    ("doorbell.rs", "self.page().sleepers.fetch_add(", Loss::Ordering, FENCED),
    ("doorbell.rs", "self.page().sleepers.fetch_add(", Loss::Atomicity, ONE_OWNER),
    ("doorbell.rs", ".fetch_update(", Loss::Atomicity, ONE_OWNER),
];

#[test]
fn the_owner_hears_every_bit() {
    // Slots 3 and 5 share a word; 67 has another one, under the same summary.
    twins("doorbell page", 2, &[("doorbell.rs", "")], &SPARED, || {
        let world = World::new();
        let one = producer(&world, &[3]);
        let other = producer(&world, &[5, 67]);
        world.wait_for(&[3, 5, 67]);
        one.join().expect("done");
        other.join().expect("done");
    });
}

#[test]
fn every_sleeper_is_counted() {
    let counts = [("doorbell.rs", "self.page().sleepers"), ("doorbell.rs", ".fetch_update(")];
    twins("doorbell page, two sleepers", 3, &counts, &SPARED[2..3], || {
        let world = World::new();
        let early = {
            let world = world.clone();
            // Wakes by itself: a timeout.
            thread::spawn(move || {
                world.doorbell().fall_asleep();
                world.doorbell().wake_up();
            })
        };
        let ringing = producer(&world, &[3]);
        world.wait_for(&[3]);
        early.join().expect("awake");
        ringing.join().expect("done");
        assert_eq!(world.doorbell().sleepers(), 0);
    });
}

#[test]
fn a_peer_that_is_killed_while_it_rings_silences_nobody_else() {
    for effects in 0..3 {
        holds(&format!("doorbell page, killed after {effects} steps"), move || {
            let world = World::new();
            let dying = {
                let world = world.clone();
                thread::spawn(move || {
                    stand_in::dies_after(effects);
                    world.ring(3);
                })
            };
            let other = producer(&world, &[5]);
            world.wait_for(&[5]);
            dying.join().expect("dead");
            other.join().expect("done");
        });
    }
}

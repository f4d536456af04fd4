//! Early sleepers (O10): no thread sleeps unarmed at an end that has said that all its sleepers
//! arm.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU32 as Word, Ordering},
    thread,
};

use super::{Loss, fails, twins};
use crate::{early, sync::AtomicU32};

const BIT: u32 = 1;

/// Which rule is broken by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    None,
    /// Z1 after Z3.
    SaysSoBeforeLanes,
    /// Y3 before Y1.
    LooksBeforeItCounts,
    /// Y1 without the count.
    NeverCounts,
}

struct World {
    flags: AtomicU32,
    count: AtomicU32,
    /// Whether the connection has lanes.
    has_lanes: Word,
    says_so: Word,
    is_asleep: Word,
}

/// A thread that waits, on a connection that gets lanes.
fn sleeper_and_lanes(broken: Broken) {
    super::stand_in::begin(0);
    let world = Arc::new(World {
        flags: AtomicU32::new(0),
        count: AtomicU32::new(0),
        has_lanes: Word::new(0),
        says_so: Word::new(0),
        is_asleep: Word::new(0),
    });
    let sleeper = {
        let world = world.clone();
        thread::spawn(move || {
            let has_lanes = || world.has_lanes.load(Ordering::Acquire) != 0;
            let was_early = broken == Broken::LooksBeforeItCounts && !has_lanes();
            early::mark(&world.flags, BIT);
            if broken != Broken::NeverCounts {
                early::fall_asleep(&world.count);
            }
            // With lanes it arms, and O1 holds.
            if was_early || !has_lanes() {
                world.is_asleep.store(1, Ordering::SeqCst);
                // It would miss that: no peer signals to it.
                if world.says_so.load(Ordering::SeqCst) == 1 {
                    panic!("asleep, and nobody will ring");
                }
                world.is_asleep.store(0, Ordering::SeqCst);
            }
            if broken != Broken::NeverCounts {
                early::wake_up(&world.count);
            }
        })
    };
    if broken != Broken::SaysSoBeforeLanes {
        world.has_lanes.store(1, Ordering::Release);
    }
    if early::is_nobody_asleep(&world.flags, BIT, &world.count) {
        assert_eq!(world.is_asleep.load(Ordering::SeqCst), 0, "asleep, and nobody will ring");
        world.says_so.store(1, Ordering::SeqCst);
    }
    world.has_lanes.store(1, Ordering::Release);
    sleeper.join().expect("comes back");
}

#[test]
fn who_is_not_seen_looks_and_arms() {
    let spared = [
        ("early.rs", "flags.fetch_or(", Loss::Atomicity, "nobody sets another flag here"),
        ("early.rs", "count.fetch_add(1, ", Loss::Atomicity, "a single sleeper"),
        ("early.rs", "count.fetch_add(1u32", Loss::Atomicity, "a single sleeper"),
    ];
    twins("early", 3, &[("early.rs", "")], &spared, || sleeper_and_lanes(Broken::None));
}

#[test]
fn the_order_of_both_sides_matters() {
    for broken in [Broken::SaysSoBeforeLanes, Broken::LooksBeforeItCounts, Broken::NeverCounts] {
        fails(&format!("early, {broken:?}"), move || sleeper_and_lanes(broken));
    }
}

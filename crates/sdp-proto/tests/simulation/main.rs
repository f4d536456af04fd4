//! The SDP engine over the simulated fabric: one program reads the bytes that the other writes.
//!
//! Each seed chooses geometry, latency, faults, programs and sizes. A SEND that finds no receive
//! buffer ends the connection at once, so that an engine that overdraws its credits by one message
//! is caught. Bytes are compared as they are read. When nothing moves any more, everything must be
//! over: a connection that hangs fails the test like one that loses a byte.
//!
//! `SDP_ENGINE_SEEDS=n` tells n stories of each kind instead of [`SEEDS`]; `SDP_ENGINE_SEED=n` only
//! that one.

#![allow(unreachable_pub, reason = "a test is a crate of its own: nothing is public beyond it")]

mod end;
mod story;

use end::Outcome;
use story::{Kind, Story};

/// Stories of each kind.
const SEEDS: u64 = 150;

/// Tells the stories of a kind; their ends, with the seed in front of each failure.
fn tell(kind: Kind) -> Vec<[Outcome; 2]> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let (first, count) = match number("SDP_ENGINE_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("SDP_ENGINE_SEEDS").unwrap_or(SEEDS)),
    };
    (first..first + count)
        .map(|seed| {
            println!("{kind:?} with SDP_ENGINE_SEED={seed}");
            Story::new(kind, seed).tell()
        })
        .collect()
}

/// How many of the stories ended so.
fn share(outcomes: &[[Outcome; 2]], is_so: impl Fn(&[Outcome; 2]) -> bool) -> String {
    format!("{} of {}", outcomes.iter().filter(|ends| is_so(ends)).count(), outcomes.len())
}

/// A story of one seed proves nothing about how often something happens.
fn is_single(outcomes: &[[Outcome; 2]]) -> bool {
    outcomes.len() < 20
}

#[test]
fn all_bytes_arrive_and_both_ends_close() {
    for kind in [Kind::Quiet, Kind::Slow] {
        let outcomes = tell(kind);
        // `tell` has compared the bytes; no story here may have ended another way.
        assert!(outcomes.iter().flatten().all(|end| *end == Outcome::Complete), "{outcomes:?}");
    }
}

/// A program that reads nothing before it has written everything, against one that always reads:
/// TCP carries that, so must we.
#[test]
fn a_writer_that_does_not_read_is_not_stopped() {
    let outcomes = tell(Kind::WriteFirst);
    assert!(outcomes.iter().flatten().all(|end| *end == Outcome::Complete), "{outcomes:?}");
}

/// A killed program's peer reads a prefix of the stream, then learns of the end; or had it all.
#[test]
fn a_killed_end_resets_the_other() {
    let outcomes = tell(Kind::Kill);
    assert!(outcomes.iter().all(|[_, killed]| *killed == Outcome::Killed));
    let reset = outcomes.iter().filter(|[survivor, _]| *survivor == Outcome::Reset).count();
    println!("reset: {}", share(&outcomes, |ends| ends[0] == Outcome::Reset));
    assert!(is_single(&outcomes) || reset * 3 > outcomes.len(), "{reset} resets");
}

/// One program gives up in the middle: it never sees a clean end, its peer reads a prefix.
#[test]
fn an_abort_resets_the_other() {
    let outcomes = tell(Kind::Abort);
    let reset = outcomes.iter().filter(|[other, _]| *other == Outcome::Reset).count();
    assert!(outcomes.iter().all(|[_, own]| *own != Outcome::Reset), "{outcomes:?}");
    assert!(is_single(&outcomes) || reset * 3 > outcomes.len(), "{reset} resets");
}

/// Connections break and devices fail at random moments.
#[test]
fn broken_connections_end_on_both_sides() {
    let outcomes = tell(Kind::Break);
    let count = |outcome| outcomes.iter().flatten().filter(|end| **end == outcome).count();
    let (complete, reset) = (count(Outcome::Complete), count(Outcome::Reset));
    assert!(is_single(&outcomes) || (reset > 20 && complete > 20), "{complete}, {reset} reset");
}

/// The same seed tells the same story, engine and programs included.
#[test]
fn stories_repeat() {
    for kind in [Kind::Slow, Kind::Break, Kind::Kill] {
        for seed in 0..5 {
            let hash = || {
                let story = Story::new(kind, seed);
                let world = story.world();
                let outcome = story.tell();
                (world.trace_hash(), world.now_ns(), outcome)
            };
            assert_eq!(hash(), hash(), "{kind:?} {seed}");
        }
    }
}

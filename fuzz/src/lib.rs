//! Drivers that feed hostile input to what strangers can write: messages on the wire, the rule file,
//! the shared ring, and headers of RPC-over-RDMA. Used by this crate's tests (a few seconds each, part of every test run) and by
//! `sdp-fuzz TARGET SECONDS` (as long as one likes). They check properties; they do not measure
//! coverage, and they need nothing but a stable compiler.
//!
//! Every round draws all its choices from `seed` and the round's number, so a failure names the one
//! round that shows it: `SDP_FUZZ_SEED=… SDP_FUZZ_ROUND=… sdp-fuzz TARGET`.

pub mod random;
pub mod ring;
pub mod rpcrdma;
pub mod rules;
pub mod wire;

use std::{
    env,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use random::Random;

/// Seconds that a target runs unless `SDP_FUZZ_SECONDS` says otherwise.
pub const DEFAULT_SECONDS: u64 = 3;
/// Rounds that a target makes at least, whatever the clock says: the same on every machine.
pub const ROUNDS_MIN: u64 = 200;
/// Rounds between two looks at the clock.
const CLOCK_EVERY: u64 = 16;

/// A target: its name, and one round.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// What the command line and failures call it.
    pub name: &'static str,
    /// One round with its own generator; panics when a property does not hold.
    pub round: fn(&mut Random),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "wire", round: wire::round },
    Target { name: "rules", round: rules::round },
    Target { name: "ring", round: ring::round },
    Target { name: "hostile-ring", round: ring::hostile_round },
    Target { name: "rpcrdma", round: rpcrdma::round },
];

static ROUND: AtomicU64 = AtomicU64::new(0);

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// The seed in force: `SDP_FUZZ_SEED`, or always the same.
pub fn seed() -> u64 {
    number("SDP_FUZZ_SEED").unwrap_or(20_260_101)
}

/// The time in force: `SDP_FUZZ_SECONDS`, or [`DEFAULT_SECONDS`].
pub fn seconds() -> u64 {
    number("SDP_FUZZ_SECONDS").unwrap_or(DEFAULT_SECONDS)
}

/// Runs rounds for `seconds`, at least [`ROUNDS_MIN`]; how many were run.
///
/// # Panics
/// When a property does not hold; seed and round are printed.
pub fn run(target: &Target, seconds: u64, seed: u64) -> u64 {
    if let Some(round) = number("SDP_FUZZ_ROUND") {
        (target.round)(&mut Random::of_round(seed, round));
        return 1;
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    // Printed however the round ends, also when a panic aborts.
    let reporter = Reporter { name: target.name, seed };
    let mut round = 0;
    while round < ROUNDS_MIN || !round.is_multiple_of(CLOCK_EVERY) || Instant::now() < end {
        ROUND.store(round, Ordering::Relaxed);
        (target.round)(&mut Random::of_round(seed, round));
        round += 1;
    }
    core::mem::forget(reporter);
    round
}

/// Says which round failed when it is dropped by a panic.
struct Reporter {
    name: &'static str,
    seed: u64,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        eprintln!(
            "SDP_FUZZ_SEED={} SDP_FUZZ_ROUND={} sdp-fuzz {}",
            self.seed,
            ROUND.load(Ordering::Relaxed),
            self.name
        );
    }
}

/// For a driver whose panics abort: says which round it was.
pub fn report_aborts(name: &'static str, seed: u64) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        drop(Reporter { name, seed });
    }));
}

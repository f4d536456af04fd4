//! Models of the shared-memory protocols, and the shared-memory crates under Miri.
//!
//! Both are cargo tests that need another build than the ordinary one: loom's atomics in place of the
//! processor's, optimisation for what explores many states, an interpreter for Miri. The test ladder
//! calls them as suites and reads libtest's lines. They refuse to pass for nothing: what cannot run here
//! says so in a line of its own, which the ladder counts as a skip.

use crate::install::{has_miri, nightly_cargo};
use crate::process::{cargo, run, target_dir};

/// Crates with explicit-state models, beside the checker itself.
const EXPLICIT: &[&str] = &["sdp-model", "sdp-socket", "sdp-fabric-shm"];

/// What Miri runs: arguments of `cargo miri test`, and how many schedules of each. It takes a thousand
/// times as long as the processor, so tests that fill rings and tables are left out.
const INTERPRETED: &[(&[&str], u32)] = &[
    (&["-p", "sdp-shm", "--lib", "--", "arm::", "bell::", "lock::", "forged", "limit", "a_pad"], 1),
    (&["-p", "sdp-shm", "--test", "threads"], 3),
    (&["-p", "sdp-fabric-shm", "--lib", "--", "--skip", "model"], 1),
];

/// Every model, in a bounded size or (`--long`) as far as is useful.
pub(crate) fn check_all(args: &[String]) -> Result<(), String> {
    let long = match args {
        [] => false,
        [only] if only == "--long" => true,
        _ => return Err(format!("models: unexpected arguments: {}", args.join(" "))),
    };
    let mut loom = cargo();
    loom.args(["test", "--profile", "model", "-p", "sdp-shm", "--lib", "--target-dir"]);
    loom.arg(target_dir().join("loom")).args(["model::", "--", "--show-output"]);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    loom.env("RUSTFLAGS", format!("{flags} --cfg loom")).env("RUST_BACKTRACE", "0");
    if long {
        loom.env("SDP_MODELS_LONG", "1");
    }
    let mut explicit = cargo();
    explicit.args(["test", "--profile", "model", "--lib"]);
    explicit.args(EXPLICIT.iter().flat_map(|name| ["-p", name]));
    explicit.args(["--", "--show-output"]).env("SDP_MODELS", if long { "long" } else { "ci" });
    // Both, whatever the first one says.
    let ended = [run(&mut loom), run(&mut explicit)];
    ended.into_iter().collect()
}

/// Shared memory under Miri: undefined behaviour, data races, and a weak memory of its own.
pub(crate) fn interpret() -> Result<(), String> {
    if !has_miri() {
        println!("test miri ... ignored, the nightly toolchain with its component miri is missing");
        return Ok(());
    }
    let mut ended = Vec::new();
    for (arguments, schedules) in INTERPRETED {
        // One after the other: Miri's own way of running many mixes up their lines, which the ladder reads.
        for seed in 0..*schedules {
            let mut miri = nightly_cargo();
            miri.args(["miri", "test", "--target-dir"]);
            miri.arg(target_dir().join("miri")).args(*arguments);
            let flags = format!("-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-seed={seed}");
            ended.push(run(miri.env("MIRIFLAGS", flags)));
        }
    }
    ended.into_iter().collect()
}

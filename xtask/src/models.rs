//! Models of the shared-memory protocols, and the shared-memory crates under Miri.
//!
//! Both are cargo tests that need another build than the ordinary one: loom's atomics in place of the
//! processor's, optimisation for what explores many states, an interpreter for Miri. The test ladder
//! calls them as suites and reads libtest's lines. They refuse to pass for nothing: what cannot run here
//! says so in a line of its own, which the ladder counts as a skip.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::install::{has_miri, nightly_cargo};
use crate::process::{cargo, run, target_dir};

/// Crates with explicit-state models, beside the checker itself.
const EXPLICIT: &[&str] = &["sdp-model", "sdp-socket", "sdp-fabric-shm", "sdp-guard"];

/// What Miri runs: arguments of `cargo miri test`, and how many schedules of each. It takes a thousand
/// times as long as the processor, so tests that fill rings and tables are left out.
const INTERPRETED: &[(&[&str], u32)] = &[
    (
        &[
            "-p",
            "sdp-shm",
            "--lib",
            "--",
            "arm::",
            "doorbell::",
            "lock::",
            "forged",
            "limit",
            "a_pad",
        ],
        1,
    ),
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
    let runs: Vec<(&[&str], u32)> = INTERPRETED
        .iter()
        .flat_map(|(arguments, schedules)| (0..*schedules).map(|seed| (*arguments, seed)))
        .collect();
    // Two at a time, each on one processor. What they print is kept apart: the ladder reads lines.
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((arguments, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let done = interpret_one(arguments, *seed);
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push(done);
                }
            });
        }
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

/// One run of Miri under one schedule; prints what it printed.
fn interpret_one(arguments: &[&str], seed: u32) -> Result<(), String> {
    let mut miri = nightly_cargo();
    miri.args(["miri", "test", "--target-dir"]).arg(target_dir().join("miri")).args(arguments);
    miri.env(
        "MIRIFLAGS",
        format!("-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-seed={seed}"),
    );
    let done = miri.output().map_err(|e| format!("miri: {e}"))?;
    let texts = [&done.stderr, &done.stdout].map(|bytes| String::from_utf8_lossy(bytes));
    print!("{}{}", texts[0], texts[1]);
    if done.status.success() { Ok(()) } else { Err(format!("miri failed: {}", done.status)) }
}

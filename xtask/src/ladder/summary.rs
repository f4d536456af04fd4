//! What the ladder prints at its end: a row for each suite, the slowest tests, skips, unstable
//! tests and failures, and the closing line.

use super::again::{UNSTABLE_LIMIT, Verdict, failures};
use super::left::LIST;
use super::play::Player;
use super::results::{Failure, Results, Time};
use super::skips::AllowedSkips;
use super::suites::{Extent, Suite};
use super::{Judged, Outcome};

/// Tests that are named with their times.
const SLOWEST: usize = 10;

/// Prints everything; an error if anything failed.
pub(super) fn print(
    outcomes: &[Outcome],
    judged: &[Judged],
    allowed: &AllowedSkips,
    is_strict: bool,
) -> Result<(), String> {
    print_suites(outcomes);
    print_slowest(outcomes);
    let unlisted = print_skips(outcomes, allowed, is_strict);
    print_unstable(judged);
    let verdicts: Vec<(Failure, Verdict)> =
        judged.iter().map(|one| (one.failure.clone(), one.verdict.clone())).collect();
    let mut failed: Vec<String> =
        failures(&verdicts).iter().map(|(failure, verdict)| described(failure, verdict)).collect();
    failed.extend(unlisted);
    if !failed.is_empty() {
        println!("\nfailed:");
        for name in &failed {
            println!("  {name}");
        }
    }
    // What is tolerated has passed: three times, by itself.
    let tolerated = judged.len() - failures(&verdicts).len();
    let passed: usize = outcomes.iter().map(|outcome| outcome.results.passed).sum();
    let skipped: usize = outcomes.iter().map(|outcome| outcome.results.skipped.len()).sum();
    println!("\n{} passed, {} failed, {skipped} skipped", passed + tolerated, failed.len());
    if failed.is_empty() { Ok(()) } else { Err("test: the ladder failed".to_owned()) }
}

/// Prints what was not played: suites, and tests of those that were.
pub(super) fn print_left(outcomes: &[Outcome], unplayed: &[&Suite], player: &Player) {
    let names = |from: Extent| {
        let of_extent = unplayed.iter().filter(|suite| suite.from == from);
        of_extent.map(|suite| suite.name).collect::<Vec<_>>().join(", ")
    };
    let (to_gate, to_whole) = (names(Extent::Gate), names(Extent::Whole));
    println!();
    if !to_gate.is_empty() {
        println!("left to `cargo xtask test`: {to_gate}");
    }
    if !to_whole.is_empty() {
        println!("left to `cargo xtask test --whole`: {to_whole}");
    }
    let counts = |count: fn(&Results) -> usize| {
        let counted = outcomes.iter().map(|o| (o.name, count(&o.results))).filter(|o| o.1 > 0);
        counted.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut of_suites = counts(|results| results.to_whole.len());
    if !player.skips().is_empty() && outcomes.iter().any(|outcome| outcome.name == "unit") {
        let separator = if of_suites.is_empty() { "" } else { ", " };
        of_suites += &format!("{separator}unit {}", player.skips().len());
    }
    if !of_suites.is_empty() {
        println!("left to `cargo xtask test --whole`, tests ({LIST}): {of_suites}");
    }
    let left_out = counts(|results| results.left_out.len());
    if !left_out.is_empty() {
        println!("left out of every ladder, tests (tests/left-out.txt): {left_out}");
    }
    println!("new seeds and drawn tests are left to `cargo xtask soak`");
}

fn described(failure: &Failure, verdict: &Verdict) -> String {
    let why = match verdict {
        Verdict::Unstable => format!("more than {UNSTABLE_LIMIT} tests are unstable"),
        Verdict::FailedAgain(number) => format!("again in attempt {number} by itself"),
        Verdict::Untried(reason) => (*reason).to_owned(),
    };
    format!("{} ({why})", failure.name)
}

fn print_suites(outcomes: &[Outcome]) {
    println!(
        "\n{:<20} {:>7} {:>7} {:>8} {:>9} {:>9}",
        "suite", "passed", "failed", "skipped", "seconds", "cpu"
    );
    let row = |name: &str, [passed, failed, skipped]: [usize; 3], seconds: f64, processor: f64| {
        println!("{name:<20} {passed:>7} {failed:>7} {skipped:>8} {seconds:>9.1} {processor:>9.1}");
    };
    let counts = |r: &Results| [r.passed, r.failed.len(), r.skipped.len()];
    let mut all = ([0; 3], 0.0, 0.0);
    for Outcome { name, results, took, processor, .. } in outcomes {
        let seconds = took.as_secs_f64();
        row(name, counts(results), seconds, *processor);
        for (sum, count) in all.0.iter_mut().zip(counts(results)) {
            *sum += count;
        }
        all = (all.0, all.1 + seconds, all.2 + processor);
    }
    row("all", all.0, all.1, all.2);
}

fn print_slowest(outcomes: &[Outcome]) {
    let mut times: Vec<&Time> = outcomes.iter().flat_map(|o| &o.results.times).collect();
    times.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    if !times.is_empty() {
        println!("\nslowest, seconds and processor seconds:");
    }
    for Time { name, seconds, processor } in times.iter().take(SLOWEST) {
        println!("  {seconds:>7.1} {processor:>7.1}  {name}");
    }
}

/// Prints the skips; those that are failures here.
fn print_skips(outcomes: &[Outcome], allowed: &AllowedSkips, is_strict: bool) -> Vec<String> {
    let skipped = || outcomes.iter().flat_map(|outcome| &outcome.results.skipped);
    if skipped().next().is_some() {
        println!("\nskipped:");
    }
    let mut failed = Vec::new();
    for (name, reason) in skipped() {
        let is_listed = allowed.reason(name, reason).is_some();
        println!("  {name}: {reason} [{}]", if is_listed { "allowed" } else { "NOT LISTED" });
        if is_strict && !is_listed {
            failed.push(format!("{name} (skipped: {reason})"));
        }
    }
    failed
}

fn print_unstable(judged: &[Judged]) {
    let unstable: Vec<&Judged> =
        judged.iter().filter(|one| one.verdict == Verdict::Unstable).collect();
    if unstable.is_empty() {
        return;
    }
    println!("\n{} unstable (failed in its suite, passed three times by itself):", unstable.len());
    for one in unstable {
        println!("  {}\n    {}", one.failure.name, one.log.display());
    }
}

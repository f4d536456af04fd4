//! The ladder of tests: every suite of the repository, from formatting to real programs.
//!
//! A suite is a row of the table in [`suites`]. Each is run by itself with its output kept in
//! `target/ladder/NAME.log`. A suite that ran no test at all has failed, a suite that could not run
//! is a skip with a reason, and a skip is never silent: all are listed at the end, and with
//! `--strict` those that `tests/allowed-skips.txt` does not name are failures. A test that failed is
//! run again by itself when all suites are over (see [`again`]).
//!
//! A run has an [`Extent`]: the gate is what protects bytes, calls, tools and packages, one play of
//! each kind; the whole ladder plays the rest, too. Each names what it leaves out ([`left`]). No
//! suite fails because it is slow: one bound ends the whole run, and names what it did not begin.

mod again;
mod left;
mod play;
mod results;
mod skips;
mod suites;
mod summary;
mod turns;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{output_of, root, target_dir};
use again::Verdict;
pub(crate) use play::Player;
#[cfg(test)]
pub(crate) use results::Of;
pub(crate) use results::{Failure, Results};
use skips::AllowedSkips;
pub(crate) use suites::Extent;
use suites::{SUITES, Suite};

/// Lines of a failed suite's log that are shown.
const LOG_TAIL: usize = 80;

/// The rotation unless another one is asked for: the same tests on every commit.
pub(crate) const FIXED_ROTATION: &str = "0";

/// Seconds after which a run is ended that does not say how long it may take. The gate is meant to
/// need less than half of its bound on two slow cores, the whole ladder about an hour.
const GATE_BOUND_S: u64 = 2700;
const WHOLE_BOUND_S: u64 = 10_800;

/// What the user asked for.
#[derive(Debug, Default)]
pub(crate) struct Options {
    extent: Extent,
    strict: bool,
    list: bool,
    dry_run: bool,
    rotate: bool,
    within_s: Option<u64>,
    only: Vec<String>,
}

impl Options {
    /// Reads the arguments of `cargo xtask test`.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = args.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--quick" => options.extent = Extent::Quick,
                "--whole" => options.extent = Extent::Whole,
                "--strict" => options.strict = true,
                "--list" => options.list = true,
                "--dry-run" => options.dry_run = true,
                "--rotate" => options.rotate = true,
                "--within" => {
                    let seconds = rest.next().and_then(|seconds| seconds.parse().ok());
                    options.within_s = Some(seconds.ok_or("--within needs a number of seconds")?);
                }
                "--only" => {
                    let name = rest.next().ok_or("--only needs the name of a suite")?;
                    options.only.push(name.clone());
                }
                other => return Err(format!("test: unexpected argument: {other}")),
            }
        }
        Ok(options)
    }

    fn selects(&self, suite: &Suite) -> bool {
        if self.only.is_empty() {
            suite.from <= self.extent
        } else {
            self.only.iter().any(|name| suite.name.starts_with(name.as_str()))
        }
    }

    /// Whether what is missing is installed first.
    fn installs(&self) -> bool {
        self.extent != Extent::Quick && self.only.is_empty()
    }

    fn bound_s(&self) -> u64 {
        let usual = if self.extent == Extent::Whole { WHOLE_BOUND_S } else { GATE_BOUND_S };
        self.within_s.unwrap_or(usual)
    }
}

/// What became of one suite.
struct Outcome {
    name: &'static str,
    results: Results,
    took: Duration,
    /// Seconds of the processors.
    processor: f64,
    log: PathBuf,
}

/// What became of one failure.
struct Judged {
    failure: Failure,
    verdict: Verdict,
    /// The log of its suite.
    log: PathBuf,
}

/// The end of the time that a whole run has.
#[derive(Debug, Clone, Copy)]
struct Deadline(Instant);

impl Deadline {
    fn after(seconds: u64) -> Self {
        Self(Instant::now() + Duration::from_secs(seconds))
    }

    /// Whole seconds that are left.
    fn left_s(self) -> u64 {
        self.0.saturating_duration_since(Instant::now()).as_secs()
    }
}

/// Runs the selected suites and prints the closing table; an error if anything failed.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let selected: Vec<&Suite> = SUITES.iter().filter(|suite| options.selects(suite)).collect();
    if selected.is_empty() {
        return Err("test: no suite has such a name; --list shows all".to_owned());
    }
    if options.list {
        for suite in &selected {
            println!("{:<20} {:<6} {}", suite.name, suite.from.mark(), suite.about);
        }
        return Ok(());
    }
    let is_whole = options.extent == Extent::Whole;
    if options.dry_run {
        return if options.installs() { crate::install::show(is_whole) } else { Ok(()) };
    }
    let (begun, deadline) = (Instant::now(), Deadline::after(options.bound_s()));
    let needs_library = selected.iter().any(|suite| suite.needs_library());
    std::thread::scope(|scope| {
        // The one waits for the network, the other for the processors.
        let _ =
            options.installs().then(|| scope.spawn(move || crate::install::for_ladder(is_whole)));
        if needs_library { crate::artifacts::build() } else { Ok(()) }
    })?;
    let allowed = AllowedSkips::read()?;
    let logs = target_dir().join("ladder");
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let rotation = rotation(options.rotate);
    println!("rotation {rotation}");
    let player = Player::new(&rotation, options.extent)?;
    let outcomes = turns::play(&selected, &player, &logs, deadline);
    let judged = judge_all(&selected, &outcomes, &player, &logs, deadline);
    let unplayed: Vec<&Suite> =
        SUITES.iter().filter(|suite| options.only.is_empty() && !options.selects(suite)).collect();
    summary::print_left(&outcomes, &unplayed, &player);
    println!("\nthe run took {:.0} s", begun.elapsed().as_secs_f64());
    summary::print(&outcomes, &judged, &allowed, options.strict)
}

/// Runs again what failed and may be; in their order, what became of all failures.
fn judge_all(
    suites: &[&Suite],
    outcomes: &[Outcome],
    player: &Player,
    logs: &Path,
    deadline: Deadline,
) -> Vec<Judged> {
    let count = outcomes.iter().map(|outcome| outcome.results.failed.len()).sum();
    let mut judged = Vec::new();
    for (suite, outcome) in suites.iter().zip(outcomes) {
        for failure in &outcome.results.failed {
            let number = judged.len() + 1;
            let untried = again::why_untried(failure.of, suite.runs_tests_alone(), count);
            let verdict = untried.map_or_else(
                || try_again(suite, failure, player, logs, number, deadline),
                Verdict::Untried,
            );
            judged.push(Judged { failure: failure.clone(), verdict, log: outcome.log.clone() });
        }
    }
    judged
}

/// Three attempts of one test by itself.
fn try_again(
    suite: &Suite,
    failure: &Failure,
    player: &Player,
    logs: &Path,
    number: usize,
    deadline: Deadline,
) -> Verdict {
    if deadline.left_s() < again::LEAST_S {
        return Verdict::Untried("no time is left for second attempts");
    }
    again::judge(|attempt| {
        print!("again, {attempt} of {}: {} ... ", again::ATTEMPTS, failure.name);
        flush();
        let log = logs.join(format!("again-{number}-{attempt}.log"));
        let limit_s = deadline.left_s().max(1);
        let played = player.alone(suite, failure, &log, limit_s);
        let has_passed = matches!(
            &played,
            Some(Ok((results, end))) if again::has_passed(results, *end)
        );
        println!("{}", if has_passed { "ok" } else { "FAILED" });
        if !has_passed {
            show_end(&log);
        }
        has_passed
    })
}

fn flush() {
    let _ = std::io::stdout().flush();
}

/// By what the part that is played of what is too long for every run is chosen: what was asked for,
/// else a fixed number, else (`--rotate`) one that changes with the library's sources as they were
/// committed.
fn rotation(is_drawn: bool) -> String {
    let asked = std::env::var("SDP_TEST_ROTATION").ok().filter(|asked| !asked.is_empty());
    asked.unwrap_or_else(|| if is_drawn { drawn() } else { FIXED_ROTATION.to_owned() })
}

fn drawn() -> String {
    let mut git = Command::new("git");
    let tree = output_of(git.args(["rev-parse", "HEAD:crates"]).current_dir(root()));
    tree.map_or(1, |tree| seed_of(&tree)).to_string()
}

/// A seed from the name of a tree of git's: its first eight digits.
fn seed_of(tree: &str) -> u32 {
    tree.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(1)
}

fn show_failure(outcome: &Outcome) {
    for failure in &outcome.results.failed {
        println!("    FAILED {}", failure.name);
    }
    show_end(&outcome.log);
}

fn show_end(log: &Path) {
    let Ok(bytes) = std::fs::read(log) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    println!("    ---- end of {}", log.display());
    for line in &lines[lines.len().saturating_sub(LOG_TAIL)..] {
        println!("    | {line}");
    }
}

/// Test files that no suite runs: a test that is not in the table would never be missed.
pub(crate) fn unlisted_tests() -> Result<Vec<String>, String> {
    let listed: BTreeSet<&str> = SUITES.iter().flat_map(Suite::paths).collect();
    let mut findings = Vec::new();
    for name in crate::tidy::files()? {
        let text = name.to_string_lossy();
        let file = name.file_name().unwrap_or_default().to_string_lossy();
        let is_test = text.starts_with("tests/") && file.starts_with("test_");
        let is_listed = name.ancestors().any(|a| listed.contains(a.to_string_lossy().as_ref()));
        if is_test && file.ends_with(".py") && !is_listed {
            findings.push(format!("{text} is in no suite"));
        }
    }
    for path in listed {
        if !root().join(path).exists() {
            findings.push(format!("suite names {path}, which does not exist"));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        Options::parse(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_select_suites() {
        let quick = parse(&["--quick", "--strict"]).expect("valid");
        assert!(quick.strict && SUITES.iter().any(|s| !quick.selects(s)));
        let (gate, whole) = (parse(&[]).expect("valid"), parse(&["--whole"]).expect("valid"));
        assert!(SUITES.iter().all(|s| whole.selects(s) && (gate.selects(s) || !quick.selects(s))));
        assert!(SUITES.iter().any(|s| gate.selects(s) && !quick.selects(s)));
        assert!(gate.installs() && !quick.installs() && gate.bound_s() < whole.bound_s());
        let only = parse(&["--only", "unit"]).expect("valid");
        assert!(SUITES.iter().all(|s| only.selects(s) == s.name.starts_with("unit")));
        assert!(parse(&["--only"]).is_err());
        assert!(parse(&["--what"]).is_err());
        assert_eq!(parse(&["--within", "1800"]).expect("valid").within_s, Some(1800));
        assert!(parse(&["--within"]).is_err() && parse(&["--within", "soon"]).is_err());
    }

    #[test]
    fn the_time_of_the_whole_run_bounds_each_suite() {
        assert_eq!(Deadline::after(0).left_s(), 0);
        assert!((3590..=3600).contains(&Deadline::after(3600).left_s()));
    }

    #[test]
    fn a_tree_s_name_is_a_seed() {
        assert_eq!(seed_of("0000001fa0c9e4"), 31);
        assert_eq!((seed_of(""), seed_of("fatal: not a tree")), (1, 1));
    }

    #[test]
    fn suites_have_names_of_their_own() {
        let names: BTreeSet<&str> = SUITES.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), SUITES.len());
    }
}

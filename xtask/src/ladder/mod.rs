//! The ladder of tests: every suite of the repository, from formatting to real programs.
//!
//! A suite is a row of the table in [`suites`]. Each is run by itself with a bound on its time and
//! its output kept in `target/ladder/NAME.log`. A suite that ran no test at all has failed, a suite
//! that could not run is a skip with a reason, and a skip is never silent: all are listed at the
//! end, and with `--strict` those that `tests/allowed-skips.txt` does not name are failures.

mod results;
mod skips;
mod suites;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{cargo, is_present, output_of, root, run_bounded, target_dir};
use results::Results;
use skips::AllowedSkips;
use suites::{Kind, SUITES, Suite};

/// Lines of a failed suite's log that are shown.
const LOG_TAIL: usize = 80;

/// What the user asked for.
#[derive(Debug, Default)]
pub(crate) struct Options {
    quick: bool,
    strict: bool,
    list: bool,
    only: Vec<String>,
}

impl Options {
    /// Reads the arguments of `cargo xtask test`.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = args.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--strict" => options.strict = true,
                "--list" => options.list = true,
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
            suite.quick || !self.quick
        } else {
            self.only.iter().any(|name| suite.name.starts_with(name.as_str()))
        }
    }
}

/// What became of one suite.
struct Outcome {
    name: &'static str,
    results: Results,
    took: Duration,
    log: PathBuf,
}

/// Runs the selected suites and prints the closing table; an error if anything failed.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let selected: Vec<&Suite> = SUITES.iter().filter(|suite| options.selects(suite)).collect();
    if selected.is_empty() {
        return Err("test: no suite has such a name; --list shows all".to_owned());
    }
    if options.list {
        for suite in &selected {
            let mark = if suite.quick { "quick" } else { "" };
            println!("{:<20} {:<6} {}", suite.name, mark, suite.about);
        }
        return Ok(());
    }
    if selected.iter().any(|suite| suite.needs_library()) {
        crate::artifacts::build()?;
    }
    let allowed = AllowedSkips::read()?;
    let logs = target_dir().join("ladder");
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let python = python_with_pytest();
    let rotation = rotation();
    println!("rotation seed {rotation}");
    let mut outcomes = Vec::new();
    for (index, suite) in selected.iter().enumerate() {
        print!("[{}/{}] {} ... ", index + 1, selected.len(), suite.name);
        let _ = std::io::stdout().flush();
        let outcome = run_suite(suite, options, &logs, python.as_deref(), &rotation);
        println!("{} in {:.1} s", outcome.results.line(), outcome.took.as_secs_f64());
        if !outcome.results.failed.is_empty() {
            show_failure(&outcome);
        }
        outcomes.push(outcome);
    }
    summary(&outcomes, &allowed, options.strict)
}

fn run_suite(
    suite: &Suite,
    options: &Options,
    logs: &Path,
    python: Option<&str>,
    rotation: &str,
) -> Outcome {
    let begun = Instant::now();
    let log = logs.join(format!("{}.log", suite.name));
    let results = match attempt(suite, options, &log, python, rotation) {
        Ok(results) => results,
        Err(message) => Results::failure(suite.name, &message),
    };
    Outcome { name: suite.name, results, took: begun.elapsed(), log }
}

fn attempt(
    suite: &Suite,
    options: &Options,
    log: &Path,
    python: Option<&str>,
    rotation: &str,
) -> Result<Results, String> {
    let missing: Vec<&str> = suite.programs.iter().copied().filter(|p| !is_present(p)).collect();
    if !missing.is_empty() {
        let reason = format!("not installed: {}", missing.join(", "));
        return Ok(Results::skip(suite.name, &reason));
    }
    let record = log.with_extension("results");
    let _ = std::fs::remove_file(&record);
    let _ = std::fs::remove_file(log.with_extension("shares"));
    let mut command = match suite.kind {
        Kind::Cargo(args) => {
            let mut command = cargo();
            command.args(args);
            command
        }
        Kind::Checks(name) | Kind::Tests(name) => {
            let this = std::env::current_exe().map_err(|e| format!("own executable: {e}"))?;
            let mut command = Command::new(this);
            command.arg(name);
            command
        }
        Kind::Pytest(path) => {
            let Some(python) = python else {
                return Ok(Results::skip(suite.name, "not installed: pytest"));
            };
            let mut command = Command::new(python);
            command.args(["-m", "pytest", "-p", "no:cacheprovider", "-v", path]);
            if options.quick {
                command.args(["-m", "quick"]);
            }
            command.env("SDP_TEST_RESULTS", &record).env("SDP_TEST_TARGET", target_dir());
            command.env("SDP_TEST_SHARES", log.with_extension("shares"));
            command.env("SDP_TEST_ROTATION", rotation);
            command
        }
    };
    command.current_dir(root());
    let end = run_bounded(&command, Duration::from_secs(suite.limit_s), log)?;
    let text = |path: &Path| std::fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned());
    let output = text(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let mut results = match suite.kind {
        Kind::Cargo(_) | Kind::Tests(_) => Results::from_cargo(&output),
        Kind::Checks(_) => Results::from_checks(&output),
        Kind::Pytest(_) => Results::from_record(&text(&record).unwrap_or_default()),
    };
    results.close(suite.name, end, suite.limit_s);
    Ok(results)
}

/// The seed by which what is too long for every run takes turns: what was asked for, else a number that
/// changes with the library's sources as they were committed, else 1. `tests/support/foreign.py` finds
/// the same one for a suite that is run by itself.
fn rotation() -> String {
    let asked = std::env::var("SDP_TEST_ROTATION").ok().filter(|asked| !asked.is_empty());
    asked.unwrap_or_else(|| {
        let tree =
            output_of(Command::new("git").args(["rev-parse", "HEAD:crates"]).current_dir(root()));
        tree.map_or(1, |tree| seed_of(&tree)).to_string()
    })
}

/// A seed from the name of a tree of git's: its first eight digits.
fn seed_of(tree: &str) -> u32 {
    tree.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(1)
}

fn show_failure(outcome: &Outcome) {
    for name in &outcome.results.failed {
        println!("    FAILED {name}");
    }
    let Ok(bytes) = std::fs::read(&outcome.log) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    println!("    ---- end of {}", outcome.log.display());
    for line in &lines[lines.len().saturating_sub(LOG_TAIL)..] {
        println!("    | {line}");
    }
}

fn summary(outcomes: &[Outcome], allowed: &AllowedSkips, strict: bool) -> Result<(), String> {
    println!("\n{:<20} {:>7} {:>7} {:>8} {:>9}", "suite", "passed", "failed", "skipped", "seconds");
    for outcome in outcomes {
        let Results { passed, failed, skipped } = &outcome.results;
        println!(
            "{:<20} {passed:>7} {:>7} {:>8} {:>9.1}",
            outcome.name,
            failed.len(),
            skipped.len(),
            outcome.took.as_secs_f64()
        );
    }
    let passed: usize = outcomes.iter().map(|o| o.results.passed).sum();
    let skipped = || outcomes.iter().flat_map(|o| &o.results.skipped);
    let mut failed: Vec<String> = outcomes.iter().flat_map(|o| o.results.failed.clone()).collect();
    if skipped().next().is_some() {
        println!("\nskipped:");
    }
    for (name, reason) in skipped() {
        let listed = allowed.reason(name);
        let mark = if listed.is_some() { "allowed" } else { "NOT LISTED" };
        println!("  {name}: {reason} [{mark}]");
        if strict && listed.is_none() {
            failed.push(format!("{name} (skipped: {reason})"));
        }
    }
    if !failed.is_empty() {
        println!("\nfailed:");
        for name in &failed {
            println!("  {name}");
        }
    }
    println!("\n{passed} passed, {} failed, {} skipped", failed.len(), skipped().count());
    if failed.is_empty() { Ok(()) } else { Err("test: the ladder failed".to_owned()) }
}

/// The first Python that has pytest: the one in the path, else the distribution's.
fn python_with_pytest() -> Option<String> {
    let candidates = ["python3", "/usr/bin/python3"];
    let works =
        |python: &&str| output_of(Command::new(python).args(["-m", "pytest", "--version"])).is_ok();
    candidates.iter().find(|python| works(python)).map(|python| (*python).to_owned())
}

/// Test files that no suite runs: a test that is not in the table would never be missed.
pub(crate) fn unlisted_tests() -> Result<Vec<String>, String> {
    let listed: BTreeSet<&str> = SUITES
        .iter()
        .filter_map(|suite| if let Kind::Pytest(path) = suite.kind { Some(path) } else { None })
        .collect();
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
        let only = parse(&["--only", "unit"]).expect("valid");
        assert!(SUITES.iter().all(|s| only.selects(s) == s.name.starts_with("unit")));
        assert!(parse(&["--only"]).is_err());
        assert!(parse(&["--what"]).is_err());
    }

    #[test]
    fn a_tree_s_name_is_a_seed() {
        assert_eq!(seed_of("0000001fa0c9e4"), 31);
        assert_eq!((seed_of(""), seed_of("fatal: not a tree")), (1, 1));
    }

    #[test]
    fn suites_have_names_of_their_own_and_bounds() {
        let names: BTreeSet<&str> = SUITES.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), SUITES.len());
        assert!(SUITES.iter().all(|s| (10..=1200).contains(&s.limit_s)));
    }
}

//! Running a suite, or one test of it by itself, within a bound, and reading what it says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::left;
use super::results::{Failure, Results};
use super::suites::{Extent, Kind, Suite};
use crate::process::{End, cargo, is_present, output_of, root, run_bounded, target_dir};

/// What a part of a suite has shown, how it ended, and its log.
pub(super) type Part = (Results, End, PathBuf);

/// The marker of tests that want to be alone, as tests write it.
const LONELY: &str = "mark.alone";

/// What all suites of a run have in common.
#[derive(Debug)]
pub(crate) struct Player {
    /// The Python that has pytest, if there is one.
    python: Option<String>,
    /// The rotation: which part of what takes turns is played.
    rotation: String,
    /// How much is played.
    extent: Extent,
    /// Parts of the names of cargo's tests that are skipped.
    skips: Vec<String>,
}

impl Player {
    /// Looks for pytest, and for what such a run leaves out.
    pub(crate) fn new(rotation: &str, extent: Extent) -> Result<Self, String> {
        let skips = if extent == Extent::Whole { Vec::new() } else { left::of_cargo()? };
        Ok(Self { python: python_with_pytest(), rotation: rotation.to_owned(), extent, skips })
    }

    /// Parts of the names of cargo's tests that are skipped.
    pub(super) fn skips(&self) -> &[String] {
        &self.skips
    }

    /// Runs a suite.
    pub(super) fn suite(
        &self,
        suite: &Suite,
        log: &Path,
        limit_s: u64,
    ) -> Result<(Results, End), String> {
        if let Some(results) = self.missing(suite) {
            return Ok((results, End::Success));
        }
        let played = match suite.kind {
            Kind::Cargo(args) => {
                let mut command = cargo();
                command.args(args);
                for name in &self.skips {
                    command.args(["--skip", name]);
                }
                run_cargo(command, log, limit_s)
            }
            Kind::Checks(name) => {
                let (output, end) = run_for_output(own(name)?, log, limit_s)?;
                Ok((Results::from_checks(&output), end))
            }
            Kind::Tests(name) => run_cargo(own(name)?, log, limit_s),
            Kind::Pytest(_) | Kind::Parts(..) => {
                self.pytest(&self.chosen(suite), &[], log, limit_s)
            }
        };
        let (mut results, end) = played?;
        results.close(suite.name, end);
        Ok((results, end))
    }

    /// Runs one test of a suite by itself; nothing if that cannot be done.
    pub(super) fn alone(
        &self,
        suite: &Suite,
        test: &Failure,
        log: &Path,
        limit_s: u64,
    ) -> Option<Result<(Results, End), String>> {
        match suite.kind {
            Kind::Cargo(args) => {
                let mut command = cargo();
                command.args(args).args(["--exact", &test.name]);
                Some(run_cargo(command, log, limit_s))
            }
            Kind::Pytest(_) | Kind::Parts(..) => {
                Some(self.pytest(&[&test.name], &[], log, limit_s))
            }
            Kind::Checks(_) | Kind::Tests(_) => None,
        }
    }

    /// Arguments of pytest for a suite.
    fn chosen(&self, suite: &Suite) -> Vec<&'static str> {
        let marker: &[&str] = if self.extent == Extent::Quick { &["-m", "quick"] } else { &[] };
        suite.paths().chain(marker.iter().copied()).collect()
    }

    /// Runs one part of a suite's tests, or (`alone`) those that want to be alone; with its log.
    pub(super) fn part(
        &self,
        suite: &Suite,
        (part, number): (&str, u32),
        logs: &Path,
        limit_s: u64,
    ) -> Result<Part, String> {
        let log = logs.join(format!("{}-{number}.log", suite.name));
        if let Some(results) = self.missing(suite) {
            return Ok((results, End::Success, log));
        }
        let only = [("SDP_TEST_PART", part.to_owned())];
        let (mut results, end) = self.pytest(&self.chosen(suite), &only, &log, limit_s)?;
        results.close_part(suite.name, end);
        Ok((results, end, log))
    }

    /// Whether tests of a suite want to be alone.
    pub(super) fn has_lonely_tests(&self, suite: &Suite) -> Result<bool, String> {
        if self.missing(suite).is_some() {
            return Ok(false);
        }
        for name in crate::tidy::files()? {
            let is_of_suite = suite.paths().any(|path| name.starts_with(path));
            if is_of_suite && crate::tidy::text_of(&name)?.is_some_and(|t| t.contains(LONELY)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The skip of a suite that cannot be played here.
    fn missing(&self, suite: &Suite) -> Option<Results> {
        let absent = |program: &&str| !is_present(program);
        let mut missing: Vec<&str> = suite.programs.iter().copied().filter(absent).collect();
        if self.python.is_none() && suite.paths().next().is_some() {
            missing.push("pytest");
        }
        let reason = format!("not installed: {}", missing.join(", "));
        (!missing.is_empty()).then(|| Results::skip(suite.name, &reason))
    }

    /// Runs pytest with these arguments and variables; its record lies beside the log.
    pub(crate) fn pytest(
        &self,
        arguments: &[&str],
        variables: &[(&str, String)],
        log: &Path,
        limit_s: u64,
    ) -> Result<(Results, End), String> {
        let Some(python) = &self.python else {
            return Ok((Results::skip("pytest", "not installed: pytest"), End::Success));
        };
        let (record, shares) = (log.with_extension("results"), log.with_extension("shares"));
        for stale in [&record, &shares] {
            let _ = std::fs::remove_file(stale);
        }
        let mut command = Command::new(python);
        command.args(["-m", "pytest", "-p", "no:cacheprovider", "-v"]).args(arguments);
        command.env("SDP_TEST_RESULTS", &record).env("SDP_TEST_TARGET", target_dir());
        command.env("SDP_TEST_SHARES", shares).env("SDP_TEST_ROTATION", &self.rotation);
        if self.extent != Extent::Whole {
            command.env("SDP_TEST_GATE", "1");
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let (_, end) = run_for_output(command, log, limit_s)?;
        Ok((Results::from_record(&read(&record).unwrap_or_default()), end))
    }
}

/// Puts the parts of a suite together: results, and one log, record and list of shares.
pub(super) fn together(
    suite: &Suite,
    parts: Vec<Result<Part, String>>,
    log: &Path,
) -> Result<Results, String> {
    let mut whole = Results::default();
    let mut played = Vec::new();
    for part in parts {
        match part {
            Ok(part) => played.push(part),
            Err(message) => whole.add(Results::failure(suite.name, &message)),
        }
    }
    // The end of the log is shown: let it be that of a part that failed.
    played.sort_by_key(|(_, end, _)| *end != End::Success);
    for kind in ["log", "results", "shares"] {
        let of_part = |log: &Path| std::fs::read(log.with_extension(kind)).unwrap_or_default();
        let text: Vec<u8> = played.iter().flat_map(|(_, _, log)| of_part(log)).collect();
        let into = log.with_extension(kind);
        std::fs::write(&into, text).map_err(|e| format!("{}: {e}", into.display()))?;
    }
    for (results, ..) in played {
        whole.add(results);
    }
    whole.close(suite.name, if whole.failed.is_empty() { End::Success } else { End::Failure });
    Ok(whole)
}

/// This program with another command.
fn own(name: &str) -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|e| format!("own executable: {e}"))?;
    let mut command = Command::new(this);
    command.arg(name);
    Ok(command)
}

fn run_cargo(command: Command, log: &Path, limit_s: u64) -> Result<(Results, End), String> {
    let (output, end) = run_for_output(command, log, limit_s)?;
    Ok((Results::from_cargo(&output), end))
}

fn run_for_output(mut command: Command, log: &Path, limit_s: u64) -> Result<(String, End), String> {
    command.current_dir(root());
    let end = run_bounded(&command, Duration::from_secs(limit_s), log)?;
    Ok((read(log)?, end))
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first Python that has pytest: the one in the path, else the distribution's.
fn python_with_pytest() -> Option<String> {
    let candidates = ["python3", "/usr/bin/python3"];
    let works =
        |python: &&str| output_of(Command::new(python).args(["-m", "pytest", "--version"])).is_ok();
    candidates.iter().find(|python| works(python)).map(|python| (*python).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::suites::SUITES;

    #[test]
    fn parts_that_were_not_begun_do_not_hide_the_others() {
        let suite = SUITES.iter().find(|suite| suite.parts() > 1).expect("one has parts");
        let folder = std::env::temp_dir().join(format!("xtask-parts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (log, first) = (folder.join("s.log"), folder.join("s-1.log"));
        std::fs::write(&first, "first\n").expect("written");
        let part = |passed| (Results { passed, ..Results::default() }, End::Success, first.clone());
        let whole = together(suite, vec![Ok(part(3)), Err("not begun".to_owned())], &log);
        let whole = whole.expect("written");
        assert_eq!((whole.passed, whole.failed.len()), (3, 1));
        assert!(whole.failed[0].name.ends_with("not begun"));
        assert_eq!(read(&log), Ok("first\n".to_owned()));
        let none = together(suite, vec![Ok(part(0)), Ok(part(0))], &log).expect("written");
        assert!(none.failed[0].name.ends_with("ran no test"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

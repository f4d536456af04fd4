//! Running a suite, or one test of it by itself, within a bound, and reading what it says.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::left;
use super::results::{Failure, Results};
use super::suites::{Extent, Kind, Suite};
use crate::process::{End, cargo, is_present, output_of, root, run_bounded, target_dir};

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
        let absent = |program: &&str| !is_present(program);
        let missing: Vec<&str> = suite.programs.iter().copied().filter(absent).collect();
        if !missing.is_empty() {
            let reason = format!("not installed: {}", missing.join(", "));
            return Ok((Results::skip(suite.name, &reason), End::Success));
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
            Kind::Pytest(_) | Kind::Parts(..) if self.python.is_none() => {
                Ok((Results::skip(suite.name, "not installed: pytest"), End::Success))
            }
            Kind::Pytest(path) => self.pytest(&self.chosen(path), &[], log, limit_s),
            Kind::Parts(path, parts) => {
                self.parts(suite.name, &self.chosen(path), parts, log, limit_s)
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

    /// Arguments of pytest for a path.
    fn chosen<'a>(&self, path: &'a str) -> Vec<&'a str> {
        if self.extent == Extent::Quick { vec![path, "-m", "quick"] } else { vec![path] }
    }

    /// Runs the parts of a suite's tests side by side, then those that want to be alone.
    fn parts(
        &self,
        name: &str,
        arguments: &[&str],
        parts: u32,
        log: &Path,
        limit_s: u64,
    ) -> Result<(Results, End), String> {
        let begun = Instant::now();
        let part = |part: &str, number: u32| {
            let log = log.with_file_name(format!("{name}-{number}.log"));
            let limit_s = limit_s.saturating_sub(begun.elapsed().as_secs()).max(1);
            let only = [("SDP_TEST_PART", part.to_owned())];
            let (mut results, end) = self.pytest(arguments, &only, &log, limit_s)?;
            results.close_part(name, end);
            Ok::<_, String>((results, end, log))
        };
        let part = &part;
        let mut played: Vec<_> = std::thread::scope(|scope| {
            let begin = |number| scope.spawn(move || part(&format!("{number}/{parts}"), number));
            let begun: Vec<_> = (1..=parts).map(begin).collect();
            let ended = begun.into_iter().map(|thread| thread.join());
            ended
                .map(|end| end.unwrap_or_else(|_| Err("a thread ended badly".to_owned())))
                .collect()
        });
        played.push(part("alone", parts + 1));
        let mut parts = played.into_iter().collect::<Result<Vec<_>, _>>()?;
        // The end of the log is shown: let it be that of a part that failed.
        parts.sort_by_key(|(_, end, _)| *end != End::Success);
        for kind in ["log", "results", "shares"] {
            let of_part = |log: &Path| std::fs::read(log.with_extension(kind)).unwrap_or_default();
            let text: Vec<u8> = parts.iter().flat_map(|(_, _, log)| of_part(log)).collect();
            let into = log.with_extension(kind);
            std::fs::write(&into, text).map_err(|e| format!("{}: {e}", into.display()))?;
        }
        let (mut whole, mut end) = (Results::default(), End::Success);
        for (results, ended, _) in parts {
            whole.add(results);
            // At its bound a part has said so itself.
            end = if ended == End::Success { end } else { End::Failure };
        }
        Ok((whole, end))
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

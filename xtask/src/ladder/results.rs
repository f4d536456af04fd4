//! What a suite's output says: how many tests passed, which failed, which were skipped and why.

use crate::process::End;

/// The tests of one suite.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Results {
    /// Number of tests that passed.
    pub(super) passed: usize,
    /// Names of tests that failed, or of the suite itself.
    pub(super) failed: Vec<String>,
    /// Names and reasons.
    pub(super) skipped: Vec<(String, String)>,
}

impl Results {
    /// The suite as a whole failed.
    pub(super) fn failure(suite: &str, message: &str) -> Self {
        Self { failed: vec![format!("{suite}: {message}")], ..Self::default() }
    }

    /// The suite as a whole was skipped.
    pub(super) fn skip(suite: &str, reason: &str) -> Self {
        Self { skipped: vec![(suite.to_owned(), reason.to_owned())], ..Self::default() }
    }

    /// Reads what `cargo test` prints: `test NAME ... ok`, `FAILED` or `ignored, REASON`.
    pub(super) fn from_cargo(output: &str) -> Self {
        let mut results = Self::default();
        for line in output.lines().filter_map(|line| line.strip_prefix("test ")) {
            let Some((name, outcome)) = line.rsplit_once(" ... ") else { continue };
            match outcome.split([',', ' ']).next() {
                Some("ok") => results.passed += 1,
                Some("ignored") => {
                    let reason = outcome.strip_prefix("ignored, ").unwrap_or("ignored");
                    results.skipped.push((name.to_owned(), reason.to_owned()));
                }
                _ => results.failed.push(name.to_owned()),
            }
        }
        results
    }

    /// Reads the closing lines of `xtask tidy` and `xtask abi`.
    pub(super) fn from_checks(output: &str) -> Self {
        let mut results = Self::default();
        for line in output.lines().filter_map(|line| line.strip_prefix("check ")) {
            match line.rsplit_once(": ") {
                Some((_, "ok")) => results.passed += 1,
                Some((name, "FAILED")) => results.failed.push(name.to_owned()),
                _ => {}
            }
        }
        results
    }

    /// Reads the record that `tests/conftest.py` writes: outcome, name and reason, separated by
    /// tabs.
    pub(super) fn from_record(record: &str) -> Self {
        let mut results = Self::default();
        for line in record.lines() {
            let mut fields = line.splitn(3, '\t');
            let outcome = fields.next().unwrap_or_default();
            let name = fields.next().unwrap_or_default().to_owned();
            match outcome {
                "passed" => results.passed += 1,
                "skipped" => {
                    results.skipped.push((name, fields.next().unwrap_or("no reason").to_owned()));
                }
                _ => results.failed.push(name),
            }
        }
        results
    }

    /// Adds what only the end of the suite's process tells.
    pub(super) fn close(&mut self, suite: &str, end: End, limit_s: u64) {
        match end {
            End::TimedOut => self.failed.push(format!("{suite}: not done after {limit_s} s")),
            End::Failure if self.failed.is_empty() => {
                self.failed.push(format!("{suite}: did not end well"));
            }
            End::Success if !self.failed.is_empty() => {
                self.failed.push(format!("{suite}: claims success in spite of failures"));
            }
            _ if self.passed == 0 && self.failed.is_empty() && self.skipped.is_empty() => {
                self.failed.push(format!("{suite}: ran no test"));
            }
            _ => {}
        }
    }

    /// One line for the progress display.
    pub(super) fn line(&self) -> String {
        let verdict = if self.failed.is_empty() { "ok" } else { "FAILED" };
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        format!("{verdict}: {} passed, {failed} failed, {skipped} skipped", self.passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cargo() {
        let output = "running 4 tests\ntest a::b ... ok\ntest c ... FAILED\n\
                      test d ... ignored, needs a device\ntest e - should panic ... ok\n\
                      test result: FAILED. 2 passed; 1 failed\n";
        let results = Results::from_cargo(output);
        assert_eq!((results.passed, results.failed.as_slice()), (2, &["c".to_owned()][..]));
        assert_eq!(results.skipped, [("d".to_owned(), "needs a device".to_owned())]);
    }

    #[test]
    fn reads_checks_and_records() {
        let checks = Results::from_checks("words: x\ncheck words: FAILED\ncheck length: ok\n");
        assert_eq!((checks.passed, checks.failed.len()), (1, 1));
        let record = Results::from_record("passed\ta\t\nskipped\tb\tno node\nfailed\tc\t\n");
        assert_eq!((record.passed, record.failed.len(), record.skipped.len()), (1, 1, 1));
    }

    #[test]
    fn nothing_run_is_a_failure() {
        let mut results = Results::default();
        results.close("s", End::Success, 10);
        assert_eq!(results.failed, ["s: ran no test"]);
        let mut results = Results { passed: 3, ..Results::default() };
        results.close("s", End::TimedOut, 10);
        assert_eq!(results.failed, ["s: not done after 10 s"]);
        let mut results = Results { passed: 3, ..Results::default() };
        results.close("s", End::Failure, 10);
        assert_eq!(results.failed.len(), 1);
    }
}

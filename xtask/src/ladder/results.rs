//! What a suite's output says: how many tests passed, which failed, which were skipped and why.

use std::collections::BTreeSet;

use crate::process::End;

/// Words in names of cargo's tests that are about bytes or about hostile memory. Of end-to-end
/// tests the record says it.
const ABOUT_BYTES: [&str; 5] = ["byte", "damaged", "forge", "garbage", "hostile"];

/// The tests of one suite.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Results {
    /// Number of tests that passed.
    pub(crate) passed: usize,
    /// Tests that failed, or the suite itself.
    pub(crate) failed: Vec<Failure>,
    /// Names and reasons.
    pub(crate) skipped: Vec<(String, String)>,
    /// What each test took, where that is known.
    pub(crate) times: Vec<Time>,
    /// End-to-end tests that are left to `--whole`.
    pub(crate) to_whole: BTreeSet<String>,
    /// End-to-end tests that every ladder leaves out.
    pub(crate) left_out: BTreeSet<String>,
}

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The test's name, by which it can be run again; of a suite's own failure a sentence.
    pub(crate) name: String,
    /// What it is the failure of.
    pub(crate) of: Of,
}

/// What failed, which decides about a second attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// A test that can be run by itself.
    Test,
    /// A test about bytes: one failure is enough.
    Bytes,
    /// A suite as a whole, or a check that has no test of its own.
    Whole,
}

/// How long one test took.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Time {
    /// The test's name.
    pub(crate) name: String,
    /// Seconds by the clock.
    pub(crate) seconds: f64,
    /// Seconds of the processors, of the test and of what it started and waited for.
    pub(crate) processor: f64,
}

impl Failure {
    /// A suite's own failure.
    pub(crate) fn whole(suite: &str, message: &str) -> Self {
        Self { name: format!("{suite}: {message}"), of: Of::Whole }
    }
}

impl Results {
    /// The suite as a whole failed.
    pub(crate) fn failure(suite: &str, message: &str) -> Self {
        Self { failed: vec![Failure::whole(suite, message)], ..Self::default() }
    }

    /// The suite as a whole was skipped.
    pub(crate) fn skip(suite: &str, reason: &str) -> Self {
        Self { skipped: vec![(suite.to_owned(), reason.to_owned())], ..Self::default() }
    }

    /// Reads what `cargo test` prints: `test NAME ... ok`, `FAILED` or `ignored, REASON`. Lines that a
    /// test's threads write to standard error may stand before the outcome.
    pub(crate) fn from_cargo(output: &str) -> Self {
        let mut results = Self::default();
        let mut lines = output.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((name, outcome)) =
                line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
            else {
                continue;
            };
            let is_outcome =
                |line: &str| ["ok", "FAILED", "ignored"].iter().any(|word| line.starts_with(word));
            let mut outcome = outcome;
            while !is_outcome(outcome)
                && let Some(next) = lines.next_if(|next| !next.starts_with("test "))
            {
                outcome = next;
            }
            match outcome.split([',', ' ']).next() {
                Some("ok") => results.passed += 1,
                Some("ignored") => {
                    let reason = outcome.strip_prefix("ignored, ").unwrap_or("ignored");
                    results.skipped.push((name.to_owned(), reason.to_owned()));
                }
                _ => {
                    let name = name.strip_suffix(" - should panic").unwrap_or(name).to_owned();
                    let is_about_bytes = ABOUT_BYTES.iter().any(|word| name.contains(word));
                    let of = if is_about_bytes { Of::Bytes } else { Of::Test };
                    results.failed.push(Failure { name, of });
                }
            }
        }
        results
    }

    /// Reads the closing lines of `xtask tidy` and `xtask abi`.
    pub(crate) fn from_checks(output: &str) -> Self {
        let mut results = Self::default();
        for line in output.lines().filter_map(|line| line.strip_prefix("check ")) {
            match line.rsplit_once(": ") {
                Some((_, "ok")) => results.passed += 1,
                Some((name, "FAILED")) => {
                    results.failed.push(Failure { name: name.to_owned(), of: Of::Whole });
                }
                _ => {}
            }
        }
        results
    }

    /// Reads the record that `tests/conftest.py` writes: a line `begun` with the name, then one
    /// with outcome, name, seconds, processor seconds, mark and reason; separated by tabs. A test
    /// that has begun and has no outcome ended its session, or was ended with it. A line `to-whole`
    /// or `left-out` names a test that is not played.
    pub(crate) fn from_record(record: &str) -> Self {
        let mut results = Self::default();
        let mut begun = None;
        for line in record.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let field = |at: usize| fields.get(at).copied().unwrap_or_default();
            let name = field(1).to_owned();
            match field(0) {
                "begun" => begun = Some(name.clone()),
                "to-whole" => _ = results.to_whole.insert(name.clone()),
                "left-out" => _ = results.left_out.insert(name.clone()),
                _ => begun = None,
            }
            if matches!(field(0), "begun" | "to-whole" | "left-out") {
                continue;
            }
            let number = |at| field(at).parse().unwrap_or(0.0);
            results.times.push(Time {
                name: name.clone(),
                seconds: number(2),
                processor: number(3),
            });
            match field(0) {
                "passed" => results.passed += 1,
                "skipped" => results.skipped.push((name, field(5).to_owned())),
                _ => {
                    let of = if field(4) == "integrity" { Of::Bytes } else { Of::Test };
                    results.failed.push(Failure { name, of });
                }
            }
        }
        if let Some(name) = begun {
            results.failed.push(Failure::whole(&name, "begun and never over"));
        }
        results
    }

    /// Adds what only the end of the suite's process tells.
    pub(crate) fn close(&mut self, suite: &str, end: End) {
        self.close_part(suite, end);
        if self.passed == 0 && self.failed.is_empty() && self.skipped.is_empty() {
            self.failed.push(Failure::whole(suite, "ran no test"));
        }
    }

    /// The same of a part of a suite, in which there may be no test.
    pub(crate) fn close_part(&mut self, suite: &str, end: End) {
        let message = match end {
            End::TimedOut => "not done when the time was over",
            End::Failure if self.failed.is_empty() => "did not end well",
            End::Success if !self.failed.is_empty() => "claims success in spite of failures",
            _ => return,
        };
        self.failed.push(Failure::whole(suite, message));
    }

    /// Adds another part of the same suite.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        // Each part of a suite that cannot be played says so.
        self.skipped.extend(other.skipped);
        self.skipped.dedup();
        self.times.extend(other.times);
        self.to_whole.extend(other.to_whole);
        self.left_out.extend(other.left_out);
    }

    /// One line for the progress display.
    pub(crate) fn line(&self) -> String {
        let verdict = if self.failed.is_empty() { "ok" } else { "FAILED" };
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        format!("{verdict}: {} passed, {failed} failed, {skipped} skipped", self.passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(results: &Results) -> Vec<(&str, Of)> {
        results.failed.iter().map(|failure| (failure.name.as_str(), failure.of)).collect()
    }

    #[test]
    fn reads_cargo() {
        let output = "running 5 tests\ntest a::b ... ok\ntest c ... FAILED\n\
                      test d ... ignored, needs a device\ntest e - should panic ... ok\n\
                      test f - should panic ... FAILED\ntest forged_joins ... FAILED\n\
                      test g ... somebody: ended\nok\ntest h ... somebody: ended\nFAILED\n\
                      test i ... somebody: ended\ntest j ... ok\n\
                      test result: FAILED. 2 passed; 3 failed\n";
        let results = Results::from_cargo(output);
        assert_eq!(results.passed, 4);
        let expected = [("c", Of::Test), ("f", Of::Test), ("forged_joins", Of::Bytes)];
        let behind_others = [("h", Of::Test), ("i", Of::Test)];
        assert_eq!(failed(&results), [&expected[..], &behind_others[..]].concat());
        assert_eq!(results.skipped, [("d".to_owned(), "needs a device".to_owned())]);
    }

    #[test]
    fn reads_checks() {
        let checks = Results::from_checks("words: x\ncheck words: FAILED\ncheck length: ok\n");
        assert_eq!((checks.passed, failed(&checks)), (1, vec![("words", Of::Whole)]));
    }

    #[test]
    fn reads_records() {
        let record = "to-whole\tx\nleft-out\ty\nbegun\ta\npassed\ta\t1.50\t0.25\t\t\nbegun\tb\nskipped\tb\t0\t0\t\tno node\n\
                      begun\tc\nfailed\tc\t2.00\t0.10\t\t\nbegun\td\nfailed\td\t1\t1\tintegrity\t\n";
        let results = Results::from_record(record);
        assert_eq!((results.passed, results.skipped.len()), (1, 1));
        assert!(results.to_whole.iter().eq(["x"]) && results.left_out.iter().eq(["y"]));
        assert_eq!(results.skipped[0].1, "no node");
        assert_eq!(failed(&results), [("c", Of::Test), ("d", Of::Bytes)]);
        let first = Time { name: "a".to_owned(), seconds: 1.5, processor: 0.25 };
        assert_eq!((results.times.len(), &results.times[0]), (4, &first));
    }

    #[test]
    fn a_test_that_ends_its_session_has_failed() {
        let results = Results::from_record("begun\ta\npassed\ta\t1\t1\t\t\nbegun\tb\n");
        assert_eq!(failed(&results), [("b: begun and never over", Of::Whole)]);
    }

    #[test]
    fn nothing_run_is_a_failure() {
        let closed = |mut results: Results, end| {
            results.close("s", end);
            results.failed
        };
        let some = || Results { passed: 3, ..Results::default() };
        assert_eq!(closed(Results::default(), End::Success), [Failure::whole("s", "ran no test")]);
        assert_eq!(
            closed(some(), End::TimedOut),
            [Failure::whole("s", "not done when the time was over")]
        );
        assert_eq!(closed(some(), End::Failure), [Failure::whole("s", "did not end well")]);
        assert_eq!(closed(some(), End::Success), []);
    }

    #[test]
    fn a_part_may_be_empty_but_not_end_badly() {
        let mut whole = Results { passed: 3, ..Results::default() };
        let mut parts = [Results::default(), Results::default()];
        parts[0].close_part("s", End::Success);
        parts[1].close_part("s", End::Failure);
        parts.into_iter().for_each(|part| whole.add(part));
        assert_eq!((whole.passed, failed(&whole)), (3, vec![("s: did not end well", Of::Whole)]));
    }
}

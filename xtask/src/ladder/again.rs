//! Second attempts: a test that failed is run three times more by itself when all suites are over.
//!
//! If it passes each time it is *unstable*: the summary names it, with its log, and counts it. More
//! than [`UNSTABLE_LIMIT`] of them fail the run, and so does a test that fails once more. A test
//! about bytes has no second attempt, for a byte that is lost now and then is lost; nor has what
//! cannot be run by itself: a check, a model, a suite that did not end.

use super::results::{Failure, Of, Results};
use crate::process::End;

/// How often a test that failed must pass by itself.
pub(crate) const ATTEMPTS: usize = 3;
/// Seconds that must be left of the whole run for second attempts of a test.
pub(crate) const LEAST_S: u64 = 30;
/// So many unstable tests a run may have.
pub(crate) const UNSTABLE_LIMIT: usize = 2;
/// With more failures than this something else is wrong, and nothing is tried again.
pub(crate) const TRIED_LIMIT: usize = 8;

/// What became of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It passed every attempt.
    Unstable,
    /// It failed once more, in the attempt with this number.
    FailedAgain(usize),
    /// There was no second attempt, for this reason.
    Untried(&'static str),
}

/// Why a failure has no second attempt; `None` if it has.
pub(crate) fn why_untried(of: Of, may_run_alone: bool, failures: usize) -> Option<&'static str> {
    match of {
        Of::Bytes => Some("about bytes: no second attempt"),
        Of::Whole => Some("cannot be run by itself"),
        Of::Test if !may_run_alone => Some("cannot be run by itself"),
        Of::Test if failures > TRIED_LIMIT => Some("too many failures for second attempts"),
        Of::Test => None,
    }
}

/// Runs attempts until one fails or all have passed; `attempt` has the number of each.
pub(crate) fn judge(mut attempt: impl FnMut(usize) -> bool) -> Verdict {
    match (1..=ATTEMPTS).find(|number| !attempt(*number)) {
        Some(number) => Verdict::FailedAgain(number),
        None => Verdict::Unstable,
    }
}

/// Whether one attempt counts as passed: it ended well, and what ran was the test, which passed.
pub(crate) fn has_passed(results: &Results, end: End) -> bool {
    end == End::Success && results.passed > 0 && results.failed.is_empty()
}

/// The failures that fail the run: all that are not unstable, and those too if they are too many.
pub(crate) fn failures(judged: &[(Failure, Verdict)]) -> Vec<&(Failure, Verdict)> {
    let unstable = judged.iter().filter(|(_, verdict)| *verdict == Verdict::Unstable).count();
    let is_tolerated =
        |verdict: &Verdict| *verdict == Verdict::Unstable && unstable <= UNSTABLE_LIMIT;
    judged.iter().filter(|(_, verdict)| !is_tolerated(verdict)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(verdicts: &[Verdict]) -> Vec<(Failure, Verdict)> {
        let failure = |at: usize| Failure { name: format!("t{at}"), of: Of::Test };
        verdicts.iter().enumerate().map(|(at, verdict)| (failure(at), verdict.clone())).collect()
    }

    fn of_attempts(outcomes: &[bool]) -> (Verdict, usize) {
        let mut made = 0;
        let verdict = judge(|number| {
            made += 1;
            assert_eq!(number, made);
            outcomes[number - 1]
        });
        (verdict, made)
    }

    #[test]
    fn three_that_pass_are_unstable_and_one_that_fails_is_enough() {
        assert_eq!(of_attempts(&[true, true, true]), (Verdict::Unstable, 3));
        assert_eq!(of_attempts(&[true, true, false]), (Verdict::FailedAgain(3), 3));
        assert_eq!(of_attempts(&[true, false, true]), (Verdict::FailedAgain(2), 2));
        assert_eq!(of_attempts(&[false, true, true]), (Verdict::FailedAgain(1), 1));
    }

    #[test]
    fn two_unstable_tests_pass_and_three_do_not() {
        let unstable = |count| judged(&vec![Verdict::Unstable; count]);
        assert!(failures(&[]).is_empty());
        assert!(failures(&unstable(1)).is_empty());
        assert!(failures(&unstable(2)).is_empty());
        assert_eq!(failures(&unstable(3)).len(), 3);
    }

    #[test]
    fn a_failure_beside_an_unstable_test_fails_the_run() {
        for verdict in [Verdict::FailedAgain(3), Verdict::Untried("about bytes")] {
            let all = judged(&[Verdict::Unstable, verdict.clone()]);
            assert_eq!(failures(&all), [&all[1]]);
        }
    }

    #[test]
    fn bytes_and_wholes_are_not_tried_again() {
        assert!(why_untried(Of::Bytes, true, 1).is_some());
        assert!(why_untried(Of::Whole, true, 1).is_some());
        assert!(why_untried(Of::Test, false, 1).is_some());
        assert!(why_untried(Of::Test, true, TRIED_LIMIT + 1).is_some());
        assert!(why_untried(Of::Test, true, TRIED_LIMIT).is_none());
    }

    #[test]
    fn an_attempt_passes_only_if_the_test_ran() {
        let ran = |passed| Results { passed, ..Results::default() };
        assert!(has_passed(&ran(1), End::Success));
        assert!(!has_passed(&ran(0), End::Success));
        assert!(!has_passed(&ran(1), End::Failure));
        assert!(!has_passed(&ran(1), End::TimedOut));
        let skipped = Results::skip("s", "no reason");
        assert!(!has_passed(&skipped, End::Success));
        let mut failed = ran(1);
        failed.failed.push(Failure::whole("s", "did not end well"));
        assert!(!has_passed(&failed, End::Success));
    }
}

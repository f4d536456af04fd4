//! The order in which the suites of a run are played.
//!
//! What computes without a pause, and what looks at all of the machine, is played by itself. The
//! parts of all other suites sleep most of their time and take turns in a few threads, so that the
//! processors are busy; those that take longest are begun first. Tests with the marker `alone`
//! come last, with nothing beside them.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::play::{Part, Player, together};
use super::results::Results;
use super::suites::Suite;
use super::{Deadline, Outcome, flush, show_failure};
use crate::process::processor_seconds;

/// Parts that are played at the same time, for each processor.
const PER_PROCESSOR: usize = 2;

/// A suite of which parts are played beside others.
struct Beside<'a> {
    suite: &'a Suite,
    parts: Vec<Result<Part, String>>,
    begun: Option<Instant>,
    took: Duration,
}

/// Plays the suites; what became of each, in their order.
pub(super) fn play(
    selected: &[&Suite],
    player: &Player,
    logs: &Path,
    deadline: Deadline,
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let count = selected.len();
    let mut tell = |outcome: Outcome| {
        let seconds = outcome.took.as_secs_f64();
        let (name, line) = (outcome.name, outcome.results.line());
        println!("[{}/{count}] {name} ... {line} in {seconds:.1} s", outcomes.len() + 1);
        if !outcome.results.failed.is_empty() {
            show_failure(&outcome);
        }
        flush();
        outcomes.push(outcome);
    };
    for suite in selected.iter().filter(|suite| suite.parts() == 0) {
        tell(by_itself(suite, player, logs, deadline));
    }
    let beside = selected.iter().filter(|suite| suite.parts() > 0);
    // The table has the cheapest first.
    let beside: Vec<_> = beside.rev().map(|suite| Mutex::new(Beside::new(suite))).collect();
    play_beside(&beside, player, logs, deadline, &Mutex::new(&mut tell));
    outcomes.sort_by_key(|outcome| selected.iter().position(|suite| suite.name == outcome.name));
    outcomes
}

fn by_itself(suite: &Suite, player: &Player, logs: &Path, deadline: Deadline) -> Outcome {
    let (begun, processor) = (Instant::now(), processor_seconds());
    let log = logs.join(format!("{}.log", suite.name));
    // What is shown after a failure is of this run.
    let _ = std::fs::remove_file(&log);
    let results = match deadline.left_s() {
        0 => Results::failure(suite.name, NOT_BEGUN),
        limit_s => match player.suite(suite, &log, limit_s) {
            Ok((results, _)) => results,
            Err(message) => Results::failure(suite.name, &message),
        },
    };
    let processor = processor_seconds() - processor;
    Outcome { name: suite.name, results, took: begun.elapsed(), processor, log }
}

/// What is said of a suite, or a part of one, that came too late.
const NOT_BEGUN: &str = "not begun: the time of the whole run is over";

/// Plays all parts, as many at a time as is good, then what wants to be alone.
fn play_beside(
    suites: &[Mutex<Beside<'_>>],
    player: &Player,
    logs: &Path,
    deadline: Deadline,
    tell: &Mutex<&mut (dyn FnMut(Outcome) + Send)>,
) {
    let tasks: Vec<(usize, u32)> = (0..suites.len())
        .flat_map(|at| (1..=locked(&suites[at]).suite.parts()).map(move |part| (at, part)))
        .collect();
    let next = Mutex::new(tasks.iter());
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..(PER_PROCESSOR * processors).min(tasks.len()) {
            scope.spawn(|| {
                // The lock is free again before the part is played.
                let take = || locked(&next).next().copied();
                while let Some((at, number)) = take() {
                    let (suite, parts) = locked(&suites[at]).begin();
                    let part = format!("{number}/{parts}");
                    let played = play_part(suite, (&part, number), player, logs, deadline);
                    let mut played_suite = locked(&suites[at]);
                    played_suite.end(played);
                    if played_suite.parts.len() == parts as usize && !lonely(suite, player) {
                        locked(tell)(played_suite.outcome(logs));
                    }
                }
            });
        }
    });
    for suite in suites {
        let mut played = locked(suite);
        if lonely(played.suite, player) {
            let alone = ("alone", played.suite.parts() + 1);
            let part = play_part(played.suite, alone, player, logs, deadline);
            played.parts.push(part);
            locked(tell)(played.outcome(logs));
        }
    }
}

fn lonely(suite: &Suite, player: &Player) -> bool {
    // What cannot be read is asked of pytest.
    player.has_lonely_tests(suite).unwrap_or(true)
}

fn play_part(
    suite: &Suite,
    part: (&str, u32),
    player: &Player,
    logs: &Path,
    deadline: Deadline,
) -> Result<Part, String> {
    match deadline.left_s() {
        0 => Err(format!("{NOT_BEGUN} (part {})", part.0)),
        limit_s => player.part(suite, part, logs, limit_s),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<'a> Beside<'a> {
    fn new(suite: &'a Suite) -> Self {
        Self { suite, parts: Vec::new(), begun: None, took: Duration::ZERO }
    }

    /// A part is about to be played: of this suite, and how many it has.
    fn begin(&mut self) -> (&'a Suite, u32) {
        self.begun.get_or_insert_with(Instant::now);
        (self.suite, self.suite.parts())
    }

    fn end(&mut self, part: Result<Part, String>) {
        self.parts.push(part);
        self.took = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    }

    /// All parts have been played.
    fn outcome(&mut self, logs: &Path) -> Outcome {
        let log = logs.join(format!("{}.log", self.suite.name));
        let results = together(self.suite, std::mem::take(&mut self.parts), &log)
            .unwrap_or_else(|message| Results::failure(self.suite.name, &message));
        let processor = results.times.iter().map(|time| time.processor).sum();
        Outcome { name: self.suite.name, results, took: self.took, processor, log }
    }
}

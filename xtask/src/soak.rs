//! Long runs: what the ladder plays with fixed seeds, with new ones, for as long as one likes.
//!
//! Kinds of tests take turns of about a minute. Their seeds are made from the minute at which the
//! run begins, unless a number is asked for, and go up: no two runs play the same. What was found
//! is in `target/soak.md`, which is written anew after each turn: rows as they are in
//! `docs/long-runs.md`, and how to play each failure again.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::artifacts;
use crate::ladder::{Extent, FIXED_ROTATION, Player, Results};
use crate::process::{output_of, root, target_dir};

/// Minutes of a run that does not say how long it is.
const MINUTES: u64 = 60;
/// When 2026 began, from which minutes are counted. (A seed of flips has 32 bits.)
const EPOCH_S: u64 = 1_767_225_600;
/// Seconds after which a turn has failed.
const TURN_LIMIT_S: u64 = 900;

/// One kind of tests.
#[derive(Debug)]
struct Kind {
    what: &'static str,
    /// Arguments of pytest.
    arguments: &'static [&'static str],
    /// Variables of the tests; `{seed}` is a turn's first seed, `{count}` how many it has.
    variables: &'static [(&'static str, &'static str)],
    /// Seeds of a turn.
    count: u64,
}

const KINDS: &[Kind] = &[
    Kind {
        what: "byte-stream oracle, normal and with lanes that flip",
        arguments: &["tests/oracle"],
        variables: &[
            ("ORACLE_FIRST", "{seed}"),
            ("ORACLE_SEEDS", "{count}"),
            ("ORACLE_BYTES", "300000"),
        ],
        count: 1000,
    },
    Kind {
        what: "chaos",
        arguments: &["tests/chaos"],
        variables: &[
            ("SDP_TEST_SEED", "{seed}"),
            ("CHAOS_ROUNDS", "{count}"),
            ("CHAOS_CONNECTS", "2000"),
        ],
        count: 40,
    },
    Kind {
        what: "faults, random cases",
        arguments: &[
            "tests/faults",
            "-k",
            "under_load or lost_segments or outlives or forged or relative",
        ],
        variables: &[("FAULT_FIRST", "{seed}"), ("FAULT_SEEDS", "{count}"), (DRAW, "40 {seed}")],
        count: 12,
    },
    Kind {
        what: "chaos with lanes that flip",
        arguments: &["tests/chaos", "-k", "rounds"],
        variables: &[
            ("CHAOS_WORLDS", "flip"),
            ("SDP_TEST_SEED", "{seed}"),
            ("CHAOS_ROUNDS", "{count}"),
        ],
        count: 40,
    },
    Kind {
        what: "faults, drawn",
        arguments: &["tests/faults"],
        variables: &[("SDP_TEST_SEED", "{seed}"), (DRAW, "60 {seed}")],
        count: 1,
    },
    Kind {
        what: "lanes that flip: real programs, calls, faults, runtimes",
        arguments: &["tests/apps", "tests/abi", "tests/faults", "tests/runtimes", "-k", "flip"],
        variables: &[("SDP_TEST_SEED", "{seed}"), (DRAW, "60 {seed}")],
        count: 1,
    },
    Kind {
        what: "CPython's own tests, drawn",
        arguments: &["tests/cpython"],
        variables: &[
            ("SDP_TEST_ROTATION", "{seed}"),
            ("SDP_TEST_SEED", "{seed}"),
            (DRAW, "6 {seed}"),
        ],
        count: 1,
    },
    Kind {
        what: "third-party suites, drawn",
        arguments: &["tests/thirdparty"],
        variables: &[
            ("SDP_TEST_ROTATION", "{seed}"),
            ("SDP_TEST_SEED", "{seed}"),
            (DRAW, "12 {seed}"),
        ],
        count: 1,
    },
];

/// The variable that chooses among the tests of a turn. A failure is played again by its name,
/// without it.
const DRAW: &str = "SDP_TEST_DRAW";

impl Kind {
    /// The variables of seeds from `seed` on.
    fn variables_of(&self, seed: u64, count: u64) -> Vec<(&'static str, String)> {
        let filled = |text: &str| {
            text.replace("{seed}", &seed.to_string()).replace("{count}", &count.to_string())
        };
        self.variables.iter().map(|(name, text)| (*name, filled(text))).collect()
    }

    /// The command that plays these seeds; a draw's variable as it was.
    fn command(&self, seed: u64, count: u64) -> String {
        let quoted = self.arguments.iter().map(|word| shell_word(word)).collect::<Vec<_>>();
        command_line(&self.variables_of(seed, count), &quoted.join(" "))
    }
}

/// What the turns of one kind have shown so far.
#[derive(Debug)]
struct Tale {
    kind: &'static Kind,
    first: u64,
    next: u64,
    turns: u64,
    passed: usize,
    skipped: usize,
    failures: Vec<Found>,
}

/// One failure.
#[derive(Debug)]
struct Found {
    /// The test, or what the turn said of itself.
    name: String,
    /// How to play it again.
    again: String,
    log: PathBuf,
}

impl Tale {
    /// Before the first turn of the run with this number, of which no seed is another run's.
    fn new(kind: &'static Kind, number: u64) -> Self {
        let first = number * kind.count;
        Self { kind, first, next: first, turns: 0, passed: 0, skipped: 0, failures: Vec::new() }
    }

    /// Adds what a turn has shown.
    fn add(&mut self, results: &Results, log: &Path) {
        self.passed += results.passed;
        self.skipped += results.skipped.len();
        let seed = self.next;
        for failure in &results.failed {
            let again = if failure.name.contains("::") {
                let mut variables = self.kind.variables_of(seed, self.kind.count);
                variables.retain(|(name, _)| *name != DRAW);
                // What the test's name is, or where its session ended.
                let name = failure.name.split(": begun").next().unwrap_or_default();
                command_line(&variables, &shell_word(name))
            } else {
                self.kind.command(seed, self.kind.count)
            };
            let log = log.to_owned();
            self.failures.push(Found { name: failure.name.clone(), again, log });
        }
        self.turns += 1;
        self.next += self.kind.count;
    }

    /// A row of `docs/long-runs.md`.
    fn row(&self, sources: &str) -> String {
        let played = self.next - self.first;
        let seeds = match played {
            1 => format!("seed {}", self.first),
            _ => format!("seeds {} to {}", self.first, self.next - 1),
        };
        // Where each turn draws by its own seed there is no one command for all; the first one
        // shows how.
        let command = if self.kind.variables.iter().any(|(_, text)| text.contains("{count}")) {
            self.kind.command(self.first, played)
        } else {
            self.kind.command(self.first, 1)
        };
        let parts =
            if self.turns == 1 { String::new() } else { format!(" in {} turns", self.turns) };
        let result = match self.failures.len() {
            0 => "no failure".to_owned(),
            number => format!("{number} failed (below)"),
        };
        let passed = self.passed;
        let what = self.kind.what;
        format!(
            "| {what} | `{command}` | {seeds}{parts}: {passed} tests passed | {result} | `{sources}` |"
        )
    }
}

/// Plays turns until the time is over; an error if anything failed.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (minutes, number) = parse(args)?;
    artifacts::build()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let number = number.unwrap_or_else(|| (now.saturating_sub(EPOCH_S) / 60).max(1));
    let logs = target_dir().join("soak");
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let report = target_dir().join("soak.md");
    let sources = sources();
    let player = Player::new(FIXED_ROTATION, Extent::Whole)?;
    let end = Instant::now() + Duration::from_secs(minutes * 60);
    let mut tales: Vec<Tale> = KINDS.iter().map(|kind| Tale::new(kind, number)).collect();
    println!("soak: {minutes} minutes number {number}; what is found is in {}", report.display());
    let mut turns = 0;
    while Instant::now() < end {
        let at = turns % tales.len();
        let tale = &mut tales[at];
        turns += 1;
        let log = logs.join(format!("{turns}.log"));
        let variables = tale.kind.variables_of(tale.next, tale.kind.count);
        let begun = Instant::now();
        let played = player.pytest(tale.kind.arguments, &variables, &log, TURN_LIMIT_S);
        let mut results = match played {
            Ok((mut results, end)) => {
                results.close(tale.kind.what, end);
                results
            }
            Err(message) => Results::failure(tale.kind.what, &message),
        };
        results.times.clear();
        let seconds = begun.elapsed().as_secs_f64();
        println!("{}, seed {}: {} in {seconds:.1} s", tale.kind.what, tale.next, results.line());
        tale.add(&results, &log);
        if results.failed.is_empty() {
            let _ = std::fs::remove_file(&log);
        }
        let text = written(&tales, &sources, minutes, number);
        std::fs::write(&report, text).map_err(|e| format!("{}: {e}", report.display()))?;
    }
    let failures: usize = tales.iter().map(|tale| tale.failures.len()).sum();
    println!("soak: {turns} turns, {failures} failures: {}", report.display());
    if failures == 0 { Ok(()) } else { Err(format!("soak: {failures} failures")) }
}

fn parse(args: &[String]) -> Result<(u64, Option<u64>), String> {
    let (mut minutes, mut number) = (MINUTES, None);
    let mut rest = args.iter();
    while let Some(argument) = rest.next() {
        if argument == "--seed" {
            let asked = rest.next().and_then(|asked| asked.parse().ok());
            number = Some(asked.ok_or("soak: --seed needs a number")?);
        } else {
            minutes = argument.parse().map_err(|_| format!("soak: unexpected: {argument}"))?;
        }
    }
    Ok((minutes, number))
}

/// What the sources of the library are called.
fn sources() -> String {
    let git =
        |arguments: &[&str]| output_of(Command::new("git").args(arguments).current_dir(root()));
    let tree = git(&["rev-parse", "HEAD:crates"]).unwrap_or_default();
    let changes = git(&["status", "--porcelain", "crates"]).unwrap_or_default();
    let mark = if changes.trim().is_empty() { "" } else { " with changes" };
    format!("{}{mark}", tree.trim())
}

/// The whole report.
fn written(tales: &[Tale], sources: &str, minutes: u64, number: u64) -> String {
    let mut text = format!("# A soak of {minutes} minutes, number {number}\n\n");
    text += "| what | command | played | result | hash of `crates` |\n|---|---|---|---|---|\n";
    for tale in tales.iter().filter(|tale| tale.turns > 0) {
        let _ = writeln!(text, "{}", tale.row(sources));
    }
    for found in tales.iter().flat_map(|tale| &tale.failures) {
        let Found { name, again, log } = found;
        let _ = write!(text, "\n* {name}\n  again: `{again}`\n  log: {}\n", log.display());
    }
    text
}

fn command_line(variables: &[(&str, String)], arguments: &str) -> String {
    let mut words: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={}", shell_word(value))).collect();
    words.push(format!("python3 -m pytest {arguments}"));
    words.join(" ")
}

/// A word as a shell needs it.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,".contains(c);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::{Failure, Of};

    fn tale_with(failures: &[&str]) -> Tale {
        let mut tale = Tale::new(&KINDS[0], 9);
        let failed =
            failures.iter().map(|name| Failure { name: (*name).to_owned(), of: Of::Bytes });
        let results = Results { passed: 4, failed: failed.collect(), ..Results::default() };
        tale.add(&Results { passed: 4, ..Results::default() }, Path::new("1.log"));
        tale.add(&results, Path::new("2.log"));
        tale
    }

    #[test]
    fn turns_of_one_kind_are_one_row() {
        let row = tale_with(&[]).row("abc");
        assert!(row.contains("ORACLE_FIRST=9000 ORACLE_SEEDS=2000 ORACLE_BYTES=300000"), "{row}");
        assert!(
            row.contains("seeds 9000 to 10999 in 2 turns: 8 tests passed | no failure | `abc` |")
        );
    }

    #[test]
    fn a_failure_is_told_with_its_turn_s_seeds() {
        let tale =
            tale_with(&["tests/oracle/test_oracle.py::test_stream[10000-10099]", "it: died"]);
        assert!(tale.row("abc").contains("| 2 failed (below) |"));
        let text = written(&[tale], "abc", 5, 1000);
        let again = "ORACLE_FIRST=10000 ORACLE_SEEDS=1000 ORACLE_BYTES=300000 python3 -m pytest \
                     'tests/oracle/test_oracle.py::test_stream[10000-10099]'";
        assert!(text.contains(again), "{text}");
        assert!(text.contains("pytest tests/oracle`\n  log: 2.log"), "{text}");
    }

    #[test]
    fn a_failure_is_played_without_its_draw() {
        let drawn = KINDS.iter().find(|kind| kind.what == "faults, drawn").expect("there");
        let mut tale = Tale::new(drawn, 7);
        let mut results = Results::default();
        let name = "tests/faults/test_x.py::test_y".to_owned();
        results.failed.push(Failure { name, of: Of::Test });
        tale.add(&results, Path::new("1.log"));
        let again = "SDP_TEST_SEED=7 python3 -m pytest tests/faults/test_x.py::test_y";
        assert_eq!(tale.failures[0].again, again);
        assert!(tale.row("abc").contains("SDP_TEST_DRAW='60 7'"));
    }

    #[test]
    fn every_path_is_there() {
        for word in KINDS.iter().flat_map(|kind| kind.arguments) {
            assert!(!word.starts_with("tests/") || root().join(word).exists(), "{word}");
        }
    }

    #[test]
    fn reads_its_arguments() {
        let parsed =
            |words: &[&str]| parse(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert_eq!(parsed(&[]), Ok((MINUTES, None)));
        assert_eq!(parsed(&["5", "--seed", "9"]), Ok((5, Some(9))));
        assert!(parsed(&["soon"]).is_err() && parsed(&["--seed"]).is_err());
    }
}

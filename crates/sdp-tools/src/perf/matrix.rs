//! Tables of paired comparisons: `sdp perf matrix` and `sdp perf without`.
//!
//! Each line is a comparison that could come out near one, so each is made of at least 200 alternating
//! pairs of rounds of at most 20 ms: the median of the pairs' ratios, with its 95 % interval. The time
//! that a table takes is bounded: lines × (`--seconds` + start and warm-up, less than a second).

use clap::Args;
use serde::Serialize;

use super::peer::{Kind, Side};
use super::{MIN_PAIRS, Outcome, Pin, Plan, measure, show};
use crate::Failure;

/// Options of a table.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Measuring time of each line
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// Only lines whose title contains this
    #[arg(long, value_name = "WORDS")]
    pub only: Option<String>,
    /// Users of both processes
    #[command(flatten)]
    pub users: super::users::Options,
    /// Set a tunable for the SDP pairs; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// One line of a table.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    kind: Kind,
    size: usize,
    connections: usize,
    gap_us: u64,
    pin: Pin,
    hogs: usize,
    without: Option<Side>,
}

/// A table.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    cases: &'static [Case],
    /// Ratio that each line must reach.
    wanted: f64,
}

/// Lower end of an interval that is good enough if the interval reaches the wanted ratio.
const LOW_ENOUGH: f64 = 0.85;
/// Pause from which on a request must not cost more CPU time than over TCP.
const CPU_MATTERS_FROM_US: u64 = 500;

const fn case(kind: Kind, size: usize, connections: usize, pin: Pin, hogs: usize) -> Case {
    Case { kind, size, connections, gap_us: 0, pin, hogs, without: None }
}

const fn gap(size: usize, gap_us: u64) -> Case {
    Case { gap_us, ..case(Kind::Latency, size, 1, Pin::Two, 0) }
}

const fn without(kind: Kind, size: usize, side: Side) -> Case {
    Case { without: Some(side), ..case(kind, size, 1, Pin::Two, 0) }
}

const fn three(connections: usize, pin: Pin, hogs: usize) -> [Case; 3] {
    [
        case(Kind::Latency, 64, connections, pin, hogs),
        case(Kind::Rate, 64, connections, pin, hogs),
        case(Kind::Stream, 16_384, connections, pin, hogs),
    ]
}

/// Two CPUs; one; eight connections on all; hogs beside each; wherever the scheduler likes.
const PLACES: [[Case; 3]; 8] = [
    three(1, Pin::Two, 0),
    three(1, Pin::One, 0),
    three(8, Pin::None, 0),
    three(1, Pin::Two, 2),
    three(1, Pin::One, 1),
    three(8, Pin::None, 2),
    three(1, Pin::None, 0),
    three(1, Pin::None, 2),
];

/// Where spinning or yielding could lose to a kernel that sleeps.
pub const WAITING: Table = Table {
    cases: &{
        let mut all = [gap(64, 100); 30];
        let mut i = 0;
        while i < 24 {
            all[i] = PLACES[i / 3][i % 3];
            i += 1;
        }
        all[25] = gap(64, 500);
        all[26] = gap(64, 2000);
        all[27] = gap(16_384, 500);
        all[28] = case(Kind::Latency, 16_384, 1, Pin::Two, 0);
        all[29] = case(Kind::Latency, 65_536, 1, Pin::Two, 0);
        all
    },
    wanted: 0.95,
};

/// Connections that stay on TCP because one end has no library.
pub const WITHOUT: Table = Table {
    cases: &[
        without(Kind::Latency, 64, Side::Server),
        without(Kind::Latency, 64, Side::Client),
        without(Kind::Stream, 16_384, Side::Server),
        without(Kind::Stream, 16_384, Side::Client),
    ],
    wanted: 0.97,
};

/// How a line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval is above one.
    Won,
    /// The interval reaches the wanted ratio.
    Drawn,
    /// It does not, or a request with a long pause costs more CPU time than over TCP.
    Lost,
}

impl Verdict {
    /// Of one line.
    pub fn of(outcome: &Outcome, wanted: f64) -> Self {
        let ratio = &outcome.ratio;
        let is_dear = outcome.test.gap_us >= CPU_MATTERS_FROM_US && outcome.cpu_ratio > 1.0;
        if is_dear || ratio.high < wanted || ratio.low < LOW_ENOUGH {
            Self::Lost
        } else if ratio.low > 1.0 {
            Self::Won
        } else {
            Self::Drawn
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Drawn => "drawn",
            Self::Lost => "LOST",
        }
    }
}

/// A line with its verdict.
#[derive(Debug, Clone, Serialize)]
struct Line {
    #[serde(flatten)]
    outcome: Outcome,
    verdict: Verdict,
}

impl Case {
    fn plan(&self, options: &Options) -> Result<Plan, Failure> {
        let common = super::Common {
            size: Some(self.size),
            rounds: Some(MIN_PAIRS),
            connections: self.connections,
            epoll: false,
            gap_us: self.gap_us,
            concurrent: self.connections > 1,
            hogs: self.hogs,
            without: self.without,
            pin: self.pin,
            seconds: options.seconds,
            users: options.users,
            paired: true,
            set: options.set.clone(),
            peer: None,
            against: super::Against::Tcp,
            json: options.json,
        };
        Plan::new(self.kind, &common)
    }
}

/// Runs a table.
///
/// # Errors
/// See [`measure`]; figures measured before have been printed.
pub fn main(options: &Options, table: &Table) -> Result<(), Failure> {
    if !options.json {
        crate::say!("{}   verdict", show::head());
    }
    let mut lines = Vec::new();
    for case in table.cases {
        let plan = case.plan(options)?;
        if options.only.as_ref().is_some_and(|words| !plan.title().contains(words)) {
            continue;
        }
        let outcome = measure(&plan)?;
        let verdict = Verdict::of(&outcome, table.wanted);
        if !options.json {
            crate::say!("{}   {}", show::row(&outcome), verdict.word());
        }
        lines.push(Line { outcome, verdict });
    }
    if options.json {
        let json = serde_json::to_string_pretty(&lines);
        crate::say!("{}", json.map_err(|e| Failure::new("the results have no JSON form", e))?);
        return Ok(());
    }
    let count = |verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    crate::say!(
        "{} won, {} drawn, {} lost (wanted: {} of TCP, by the 95 % interval of {MIN_PAIRS} pairs)",
        count(Verdict::Won),
        count(Verdict::Drawn),
        count(Verdict::Lost),
        table.wanted
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_can_be_planned_and_no_two_are_the_same() {
        let options = Options {
            seconds: 4.0,
            only: None,
            users: super::super::users::Options::default(),
            set: Vec::new(),
            json: false,
        };
        for table in [&WAITING, &WITHOUT] {
            let mut titles: Vec<String> =
                table.cases.iter().map(|case| case.plan(&options).unwrap().title()).collect();
            let all = titles.len();
            titles.sort();
            titles.dedup();
            assert_eq!(titles.len(), all);
        }
        assert_eq!((WAITING.cases.len(), WITHOUT.cases.len()), (30, 4));
    }
}

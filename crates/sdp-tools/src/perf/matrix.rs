//! `sdp perf matrix`: the tests of the README's table, one line each.

use clap::Args;

use super::peer::Kind;
use super::{Pin, Plan, measure, show};
use crate::Failure;

/// Options of the matrix.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Measuring time of each test
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Rounds of each transport in each test
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// Set a tunable for the SDP pairs; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// kind, size, connections, epoll, gap, pinning
type Case = (Kind, usize, usize, bool, u64, Pin);

const CASES: [Case; 16] = [
    (Kind::Latency, 64, 1, false, 0, Pin::Two),
    (Kind::Latency, 64, 1, false, 0, Pin::One),
    (Kind::Latency, 64, 1, false, 0, Pin::None),
    (Kind::Latency, 64, 1, true, 0, Pin::Two),
    (Kind::Latency, 16_384, 1, false, 0, Pin::Two),
    (Kind::Latency, 65_536, 1, false, 0, Pin::Two),
    (Kind::Latency, 1 << 20, 1, false, 0, Pin::Two),
    (Kind::Latency, 64, 1, false, 500, Pin::Two),
    (Kind::Latency, 64, 100, true, 0, Pin::Two),
    (Kind::Rate, 64, 1, false, 0, Pin::Two),
    (Kind::Stream, 16_384, 1, false, 0, Pin::Two),
    (Kind::Stream, 16_384, 1, false, 0, Pin::One),
    (Kind::Stream, 16_384, 8, false, 0, Pin::None),
    (Kind::Stream, 65_536, 1, false, 0, Pin::Two),
    (Kind::Stream, 1 << 20, 1, false, 0, Pin::Two),
    (Kind::Connect, 1, 1, false, 0, Pin::Two),
];

/// Runs all tests.
///
/// # Errors
/// See [`measure`]; what was measured before has been printed.
pub fn main(options: &Options) -> Result<(), Failure> {
    if !options.json {
        println!("{}", show::head());
    }
    let mut outcomes = Vec::new();
    for (kind, size, connections, epoll, gap_us, pin) in CASES {
        let common = super::Common {
            size: Some(size),
            rounds: Some(options.rounds),
            connections,
            epoll,
            gap_us,
            pin,
            seconds: options.seconds,
            paired: false,
            set: options.set.clone(),
            json: options.json,
        };
        let outcome = measure(&Plan::new(kind, &common)?)?;
        if !options.json {
            println!("{}", show::row(&outcome));
        }
        outcomes.push(outcome);
    }
    if options.json {
        let json = serde_json::to_string_pretty(&outcomes);
        println!("{}", json.map_err(|e| Failure::new("the results have no JSON form", e))?);
    }
    Ok(())
}

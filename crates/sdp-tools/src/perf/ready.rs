//! `sdp perf ready`: the cost of one request to a server that holds many other connections.
//!
//! A server with one epoll set over N connections, a client that sends a request on one of them at
//! a time, chosen at random, and waits for the answer. All pairs, of every N and of both
//! transports, exist at the same time and their rounds alternate, so that N can be compared as
//! fairly as the transports. The figure is the CPU time of the server process per request, as the
//! scheduler counts it: a client's wait includes its own wake-up, which is no concern of this test.
//! The ends' counters show how many of them were on the SDP lane.

use std::fmt::Write as _;

use clap::Args;
use serde::Serialize;

use super::pair::{Pair, Setting};
use super::stats::{Ratio, Spread};
use super::{Pin, SCHEMA, Transport, foreign_share, machine_ticks, ready_peer, show::figure};
use crate::Failure;
use crate::collect::Collector;
use crate::report::Report;
use crate::run::Environment;
use crate::sys::{self, Ended};

/// Descriptors that a process needs beside its connections: its own, and the library's while many
/// connections meet at once.
const SPARE_DESCRIPTORS: u64 = 600;
/// Most connections of one pair: ephemeral ports, and rows of the library's memory.
const MAX_CONNECTIONS: usize = 16_000;

/// Options of the test.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Connections of the server, one case for each number
    #[arg(long, value_delimiter = ',', default_value = "10,1000,10000")]
    pub connections: Vec<usize>,
    /// Pause before each request, µs, one case for each
    #[arg(long, value_delimiter = ',', default_value = "0,200")]
    pub gap_us: Vec<u64>,
    /// Rounds of each case and transport
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Length of a round, milliseconds
    #[arg(long, default_value_t = 60)]
    pub round_ms: u64,
    /// Which CPUs the two processes of a pair may use
    #[arg(long, value_enum, default_value_t = Pin::Two)]
    pub pin: Pin,
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

/// One number of connections with one pause.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Case {
    pub connections: usize,
    pub gap_us: u64,
    /// CPU time of the server per request, µs.
    pub tcp_us: Spread,
    pub sdp_us: Spread,
    /// SDP's part of TCP's, of alternating rounds.
    pub ratio: Ratio,
    /// The cost of a request to the server here, as a part of its cost with the fewest connections
    /// and the same pause, of alternating rounds.
    pub tcp_growth: Ratio,
    pub sdp_growth: Ratio,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Outcome {
    pub schema: u32,
    pub version: &'static str,
    pub cases: Vec<Case>,
    /// Numbers of connections that could not be had, and why.
    pub left_out: Vec<String>,
    /// Connection ends with payload on SDP, of all of the SDP pairs.
    pub ends_on_sdp: (i64, i64),
    pub sdp_share: Option<f64>,
    /// Share of all CPU time that other processes used meanwhile.
    pub foreign_cpu: f64,
}

/// Orders that a number answers.
fn order(pair: &mut Pair, order: &str) -> Result<u64, Failure> {
    pair.client.order(order)?;
    let answer = pair.client.answer()?;
    answer.parse().map_err(|e| Failure::new("a measuring process answers nonsense", e))
}

/// CPU time of the server per request, ns; and of both processes together.
fn round(pair: &mut Pair, gap_us: u64, nanos: u64, seed: u64) -> Result<(f64, u64), Failure> {
    let before = (pair.server.cpu_ns()?, pair.client.cpu_ns()?);
    let ops = order(pair, &format!("random {nanos} {gap_us} {seed}"))?;
    let server = pair.server.cpu_ns()?.saturating_sub(before.0);
    let client = pair.client.cpu_ns()?.saturating_sub(before.1);
    Ok((server as f64 / ops.max(1) as f64, server + client))
}

/// Splits numbers of connections into those that this process' limits allow, and reasons.
fn possible(wanted: &[usize], limit: u64) -> (Vec<usize>, Vec<String>) {
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let (fit, not): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|n| *n as u64 + SPARE_DESCRIPTORS <= limit);
    let why = |n: usize| {
        let needed = n as u64 + SPARE_DESCRIPTORS;
        format!("{n} connections need {needed} descriptors in each process; the limit is {limit}")
    };
    (fit, not.into_iter().map(why).collect())
}

/// Runs the test.
///
/// # Errors
/// An option is out of range, the library is missing, a process failed.
pub fn main(options: &Options) -> Result<(), Failure> {
    let bad = |what: &str| Err(Failure(what.to_string()));
    if options.connections.iter().any(|n| !(1..=MAX_CONNECTIONS).contains(n)) {
        return bad("--connections: from 1 to 16000");
    }
    if !(1..=10_000).contains(&options.rounds) || !(1..=10_000).contains(&options.round_ms) {
        return bad("--rounds and --round-ms: from 1 to 10000");
    }
    let outcome = measure(options)?;
    if options.json {
        let json = serde_json::to_string_pretty(&outcome);
        crate::say!("{}", json.map_err(|e| Failure::new("the result has no JSON form", e))?);
    } else {
        crate::print(&text(&outcome, options));
    }
    Ok(())
}

fn measure(options: &Options) -> Result<Outcome, Failure> {
    let (numbers, left_out) = possible(&options.connections, sys::raise_descriptor_limit());
    if numbers.is_empty() {
        return Err(Failure(left_out.join("; ")));
    }
    let env = Environment::for_measuring(&options.set)?;
    let collector =
        Collector::start(false).map_err(|e| Failure::new("cannot listen for counters", e))?;
    let address = collector.address().to_string();
    let mut pairs = Vec::new();
    for number in &numbers {
        for transport in [Transport::Tcp, Transport::Sdp] {
            let words = ["--connections".to_string(), number.to_string()];
            let setting = Setting::of(transport, &env, &address).between(options.users.users);
            let mut pair = Pair::start("perf-ready-peer", &words, options.pin, |_| setting)?;
            pair.client.expect("ready")?;
            // Earns the lane, connection by connection; for TCP it fills the same caches.
            order(&mut pair, &format!("each {}", ready_peer::ROUND_TRIPS_TO_EARN))?;
            pairs.push(pair);
        }
    }
    let count = numbers.len() * options.gap_us.len();
    // By case: of each round, TCP's and SDP's.
    let mut cells = vec![Vec::<[f64; 2]>::new(); count];
    let (ticks, mut ours) = (machine_ticks(), 0);
    // The first round counts for nothing.
    for round in 0..=options.rounds {
        for (g, gap) in options.gap_us.iter().enumerate() {
            for n in 0..numbers.len() {
                // The first transport changes, so that neither gains by the other's traces.
                let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
                let mut cell = [0.0; 2];
                for which in order {
                    let Some(pair) = pairs.get_mut(n * 2 + which) else { continue };
                    let (figure, cpu) =
                        self::round(pair, *gap, options.round_ms * 1_000_000, round as u64)?;
                    cell[which] = figure;
                    ours += cpu;
                }
                if round > 0
                    && let Some(cells) = cells.get_mut(g * numbers.len() + n)
                {
                    cells.push(cell);
                }
            }
        }
    }
    let foreign_cpu = foreign_share(ticks, ours);
    pairs.into_iter().try_for_each(Pair::end)?;
    let nobody = Ended { how: Ok(0), user_s: 0.0, system_s: 0.0 };
    let report = Report::new(Vec::new(), &nobody, 0.0, &collector.finish());
    Ok(Outcome {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        cases: cases(options, &numbers, &cells),
        left_out,
        ends_on_sdp: (report.connections.sdp, report.connections.seen),
        sdp_share: report.sdp_share(),
        foreign_cpu,
    })
}

/// The figures of each case; `cells` has of each round TCP's and SDP's.
fn cases(options: &Options, numbers: &[usize], cells: &[Vec<[f64; 2]>]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (g, gap_us) in options.gap_us.iter().enumerate() {
        let Some(fewest) = cells.get(g * numbers.len()) else { continue };
        for (n, connections) in numbers.iter().enumerate() {
            let Some(cells) = cells.get(g * numbers.len() + n) else { continue };
            let us = |which: usize| {
                Spread::of(&cells.iter().map(|c| c[which] / 1e3).collect::<Vec<_>>())
            };
            let growth = |which: usize| {
                let pairs = cells.iter().zip(fewest).map(|(c, f)| c[which] / f[which]);
                Ratio::of_pairs(&pairs.collect::<Vec<_>>())
            };
            cases.push(Case {
                connections: *connections,
                gap_us: *gap_us,
                tcp_us: us(0),
                sdp_us: us(1),
                ratio: Ratio::of_pairs(&cells.iter().map(|c| c[1] / c[0]).collect::<Vec<_>>()),
                tcp_growth: growth(0),
                sdp_growth: growth(1),
            });
        }
    }
    cases
}

fn text(o: &Outcome, options: &Options) -> String {
    let mut text = String::new();
    let mut line = |s: String| {
        let _ = writeln!(text, "{s}");
    };
    line(format!(
        "CPU time of the server per request on one of its connections, us, {} rounds of {} ms",
        options.rounds, options.round_ms
    ));
    line(format!(
        "{:>12}{:>9}{:>24}{:>24}{:>24}{:>24}{:>24}",
        "connections", "pause us", "TCP", "SDP", "SDP / TCP", "TCP, of fewest", "SDP, of fewest"
    ));
    let spread =
        |s: &Spread| format!("{} [{} - {}]", figure(s.median), figure(s.min), figure(s.max));
    let ratio =
        |r: &Ratio| format!("{} [{} - {}]", figure(r.median), figure(r.low), figure(r.high));
    for c in &o.cases {
        line(format!(
            "{:>12}{:>9}{:>24}{:>24}{:>24}{:>24}{:>24}",
            c.connections,
            c.gap_us,
            spread(&c.tcp_us),
            spread(&c.sdp_us),
            ratio(&c.ratio),
            ratio(&c.tcp_growth),
            ratio(&c.sdp_growth)
        ));
    }
    for why in &o.left_out {
        line(format!("left out: {why}"));
    }
    let share = o.sdp_share.unwrap_or(0.0) * 100.0;
    line(format!(
        "{} of {} ends were on SDP; {share:.2} % of the SDP pairs' bytes went over it",
        o.ends_on_sdp.0, o.ends_on_sdp.1
    ));
    line(format!("other processes used {:.0} % of the CPUs meanwhile", o.foreign_cpu * 100.0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_limit_does_not_allow_is_named() {
        let (fit, not) = possible(&[1000, 10, 1000, 10_000], 2000);
        assert_eq!(fit, [10, 1000]);
        assert_eq!(not.len(), 1);
        assert!(not[0].starts_with("10000 connections need 10600 descriptors"), "{}", not[0]);
        assert_eq!(possible(&[10_000], 10_600).0, [10_000]);
    }
}

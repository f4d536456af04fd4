//! `sdp perf idle`: the cost of many quiet connections, in memory, descriptors and CPU time.
//!
//! The same two processes run once without and once with the library. Memory is the proportional
//! set size of both together (`smaps_rollup`), which counts a shared page once, plus their page
//! tables; the difference to TCP is the library's. The kernel's own memory for the TCP connection
//! is the same in both runs and in neither figure; its memory for the library's mappings (about 2
//! KiB per connection) is visible only in the whole machine's slab, which others change too. Pages
//! are exact; CPU time is the scheduler's sum for each process.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::pair::{Pair, Setting};
use super::{Pin, SCHEMA, Transport, show::figure};
use crate::Failure;
use crate::collect::Collector;
use crate::report::Report;
use crate::run::Environment;
use crate::sys::Ended;

/// Small round trips on each connection, one connection after the other.
const SMALL_CALLS: usize = 64;
/// How often memory is looked at while it is being given back.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pages per bulky connection that may stay: those on which its rings stood still.
const STAYING_KIB: f64 = 8.0;

/// Options of the test.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Connections
    #[arg(long, default_value_t = 1000)]
    pub connections: usize,
    /// Of them, how many carry bulk after the first measurement
    #[arg(long, default_value_t = 64)]
    pub bulk: usize,
    /// Bytes of that bulk, each way, MiB
    #[arg(long, default_value_t = 4)]
    pub bulk_mib: usize,
    /// Length of each silence in which CPU time is measured, seconds
    #[arg(long, default_value_t = 5.0)]
    pub silence: f64,
    /// The tunable `give_back` for this run, seconds
    #[arg(long, default_value_t = 4)]
    pub give_back: u32,
    /// Users of both processes
    #[command(flatten)]
    pub users: super::users::Options,
    /// Set another tunable for the SDP pair; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Both processes of one run, at one moment.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Held {
    /// Proportional set size, KiB.
    pub pss_kib: f64,
    /// Of that, shared memory and memory files.
    pub shared_kib: f64,
    /// Page tables, KiB.
    pub tables_kib: f64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Slab of the whole machine, KiB.
    pub slab_kib: f64,
}

/// One run.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(missing_docs)]
pub struct Run {
    pub after_small: Held,
    /// CPU time of both processes over the silence after small messages, in percent of one CPU.
    pub small_cpu_percent: f64,
    pub after_bulk: Held,
    pub after_silence: Held,
    /// Seconds until memory was back at the size that small messages need, SDP only.
    pub given_back_after_s: Option<f64>,
    /// CPU time over the silence after that.
    pub bulk_cpu_percent: f64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Outcome {
    pub schema: u32,
    pub version: &'static str,
    pub connections: usize,
    pub bulky: usize,
    pub tcp: Run,
    pub sdp: Run,
    /// Memory of both processes and their page tables beyond TCP's, per connection, KiB.
    pub small_kib_per_connection: f64,
    /// The same after bulk and silence.
    pub silent_kib_per_connection: f64,
    /// Share of the payload bytes that went over SDP.
    pub sdp_share: Option<f64>,
    /// Connection ends with payload on SDP, of all.
    pub ends_on_sdp: (i64, i64),
}

fn start(options: &Options, setting: Setting<'_>) -> Result<Pair, Failure> {
    let words = ["--connections".to_string(), options.connections.to_string()];
    let mut pair = Pair::start("perf-idle-peer", &words, Pin::None, |_| setting)?;
    await_word(&mut pair, "ready")?;
    Ok(pair)
}

fn await_word(pair: &mut Pair, word: &str) -> Result<(), Failure> {
    pair.server.expect(word)?;
    pair.client.expect(word)
}

fn do_both(pair: &mut Pair, order: &str) -> Result<(), Failure> {
    pair.server.order(order)?;
    pair.client.order(order)?;
    await_word(pair, "done")
}

fn held(pair: &Pair) -> Result<Held, Failure> {
    let mut held = Held { slab_kib: field("/proc/meminfo", "Slab")?, ..Held::default() };
    for pid in [pair.server.id(), pair.client.id()] {
        let rollup = format!("/proc/{pid}/smaps_rollup");
        held.pss_kib += field(&rollup, "Pss")?;
        held.shared_kib += field(&rollup, "Pss_Shmem")?;
        held.tables_kib += field(&format!("/proc/{pid}/status"), "VmPTE")?;
        held.descriptors += std::fs::read_dir(format!("/proc/{pid}/fd"))
            .map_err(|e| Failure::new("/proc", e))?
            .count();
    }
    Ok(held)
}

/// CPU time of both over a silence, in percent of one CPU.
fn cpu_of_silence(pair: &Pair, seconds: f64) -> Result<f64, Failure> {
    // The processes' work after their last answer is not silence yet.
    std::thread::sleep(Duration::from_millis(200));
    let (before, started) = (pair.cpu_ns()?, Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let spent = pair.cpu_ns()?.saturating_sub(before);
    Ok(spent as f64 / started.elapsed().as_nanos() as f64 * 100.0)
}

/// A field of a `/proc` file with lines `name: number kB`; 0 where the kernel does not have it.
fn field(path: &str, name: &str) -> Result<f64, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::new(path, e))?;
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?.strip_prefix(':')?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Ok(text.lines().find_map(value).unwrap_or(0.0))
}

fn run(
    options: &Options,
    transport: Transport,
    env: &Environment,
    report_to: &str,
) -> Result<Run, Failure> {
    let mut pair =
        start(options, Setting::of(transport, env, report_to).between(options.users.users))?;
    do_both(&mut pair, &format!("small {SMALL_CALLS}"))?;
    let after_small = held(&pair)?;
    let small_cpu_percent = cpu_of_silence(&pair, options.silence)?;
    do_both(&mut pair, &format!("bulk {} {}", options.bulk, options.bulk_mib << 20))?;
    let after_bulk = held(&pair)?;
    let started = Instant::now();
    let wait = Duration::from_secs(u64::from(options.give_back) * 2 + 5);
    let enough = after_small.shared_kib + options.bulk as f64 * STAYING_KIB;
    let mut given_back_after_s = None;
    while transport == Transport::Sdp && started.elapsed() < wait {
        if held(&pair)?.shared_kib <= enough {
            given_back_after_s = Some(started.elapsed().as_secs_f64());
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let bulk_cpu_percent = cpu_of_silence(&pair, options.silence)?;
    let after_silence = held(&pair)?;
    // The connections go on, however much was given back.
    do_both(&mut pair, &format!("small {SMALL_CALLS}"))?;
    pair.end()?;
    Ok(Run {
        after_small,
        small_cpu_percent,
        after_bulk,
        after_silence,
        given_back_after_s,
        bulk_cpu_percent,
    })
}

/// Runs the test.
///
/// # Errors
/// An option is out of range, the library is missing, a process failed.
pub fn main(options: &Options) -> Result<(), Failure> {
    let bad = |what: &str| Err(Failure(what.to_string()));
    if !(1..=4000).contains(&options.connections) || options.bulk > options.connections {
        return bad("--connections: from 1 to 4000, and --bulk at most as many");
    }
    if !(options.silence > 0.0 && options.silence <= 600.0) || options.bulk_mib > 1024 {
        return bad("--silence: more than 0, at most 600 s; --bulk-mib: at most 1024");
    }
    let mut settings = vec![format!("give_back={}", options.give_back)];
    settings.extend(options.set.iter().cloned());
    let env = Environment::for_measuring(&settings)?;
    let collector =
        Collector::start(false).map_err(|e| Failure::new("cannot listen for counters", e))?;
    // One after the other: two pairs at once would share pages of files, and each would look smaller.
    let address = collector.address().to_string();
    let tcp = run(options, Transport::Tcp, &env, &address)?;
    let sdp = run(options, Transport::Sdp, &env, &address)?;
    let nobody = Ended { how: Ok(0), user_s: 0.0, system_s: 0.0 };
    let report = Report::new(Vec::new(), &nobody, 0.0, &collector.finish());
    let beyond = |sdp: &Held, tcp: &Held| {
        let more = sdp.pss_kib + sdp.tables_kib - tcp.pss_kib - tcp.tables_kib;
        more / options.connections as f64
    };
    let outcome = Outcome {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        connections: options.connections,
        bulky: options.bulk,
        small_kib_per_connection: beyond(&sdp.after_small, &tcp.after_small),
        silent_kib_per_connection: beyond(&sdp.after_silence, &tcp.after_silence),
        tcp,
        sdp,
        sdp_share: report.sdp_share(),
        ends_on_sdp: (report.connections.sdp, report.connections.seen),
    };
    if options.json {
        let json = serde_json::to_string_pretty(&outcome);
        crate::say!("{}", json.map_err(|e| Failure::new("the result has no JSON form", e))?);
    } else {
        crate::print(&text(&outcome, options));
    }
    Ok(())
}

fn text(o: &Outcome, options: &Options) -> String {
    let mut text = String::new();
    let mut line = |s: String| {
        let _ = writeln!(text, "{s}");
    };
    line(format!(
        "{} idle connections between two processes, both processes together",
        o.connections
    ));
    line(format!("{:<34}{:>12}{:>12}{:>16}", "", "TCP", "SDP", "per connection"));
    let count = o.connections as f64;
    let mut kib = |what: &str, tcp: f64, sdp: f64| {
        let each = figure((sdp - tcp) / count);
        line(format!("{what:<34}{:>8} KiB{:>8} KiB{each:>12} KiB", figure(tcp), figure(sdp)));
    };
    for (when, tcp, sdp) in [
        ("small messages", &o.tcp.after_small, &o.sdp.after_small),
        ("bulk", &o.tcp.after_bulk, &o.sdp.after_bulk),
        ("bulk and silence", &o.tcp.after_silence, &o.sdp.after_silence),
    ] {
        kib(&format!("after {when}: memory"), tcp.pss_kib, sdp.pss_kib);
        kib("  of that shared", tcp.shared_kib, sdp.shared_kib);
        kib("  page tables", tcp.tables_kib, sdp.tables_kib);
    }
    let (tcp, sdp) = (&o.tcp.after_small, &o.sdp.after_small);
    line(format!("{:<34}{:>12}{:>12}", "descriptors", tcp.descriptors, sdp.descriptors));
    for (what, tcp, sdp) in [
        ("CPU after small messages", o.tcp.small_cpu_percent, o.sdp.small_cpu_percent),
        ("CPU after bulk", o.tcp.bulk_cpu_percent, o.sdp.bulk_cpu_percent),
    ] {
        line(format!("{what:<34}{tcp:>10.4} %{sdp:>10.4} %"));
    }
    line(format!(
        "beyond TCP: {} KiB per connection after small messages, {} KiB after bulk on {} and silence",
        figure(o.small_kib_per_connection),
        figure(o.silent_kib_per_connection),
        o.bulky
    ));
    line(match o.sdp.given_back_after_s {
        Some(s) => {
            format!("given back after {} s (give_back = {} s)", figure(s), options.give_back)
        }
        None => format!("not given back (give_back = {} s)", options.give_back),
    });
    let share = o.sdp_share.unwrap_or(0.0) * 100.0;
    line(format!(
        "{share:.2} % of the SDP pair's bytes went over SDP; {} of {} ends used it",
        o.ends_on_sdp.0, o.ends_on_sdp.1
    ));
    text
}

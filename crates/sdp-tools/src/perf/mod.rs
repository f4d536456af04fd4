//! `sdp perf`: the same program over TCP and over SDP, side by side, on this host or between two ([`between`]).
//!
//! Two pairs of processes run the same code ([`peer`]); one pair has the library, the other has
//! nothing preloaded at all. Their rounds alternate within one run, so that other load on the
//! machine affects both. Which lane the bytes took is not assumed but read from the counters that
//! the processes hand in. Where one end has no library and TCP is compared with TCP, there are more
//! pairs of each kind. Figures are medians over rounds with their range; times never decide
//! anything.

pub mod between;
pub mod hog;
pub mod idle;
pub mod idle_peer;
pub mod matrix;
pub mod pair;
pub mod peer;
pub mod promote;
pub mod ready;
pub mod ready_peer;
pub mod report;
pub mod serve;
pub mod show;
pub mod stats;
pub mod talk;
pub mod users;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::Failure;
use crate::collect::Collector;
use crate::report::Report;
use crate::run::Environment;
use crate::sys::Ended;
use pair::{Pair, Setting};
use peer::{Kind, Order, Round};
use stats::{Compared, Ratio, Spread};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// Pairs that a paired comparison needs at least.
pub const MIN_PAIRS: usize = 200;
/// Longest round of a paired comparison.
const MAX_PAIRED_NS: u64 = 20_000_000;
/// Pairs of processes of each kind in a paired comparison of TCP with TCP, where one end has no library: two streams may
/// differ by a third for as long as they last.
const PROCESS_PAIRS: usize = 16;
/// Rounds of each transport before the first one that counts.
const WARM_UP_ROUNDS: usize = 4;
/// Length of such a round.
const WARM_UP_NS: u64 = 25_000_000;

/// Which CPUs the two processes of a pair may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pin {
    /// One CPU for each of the two processes.
    Two,
    /// One CPU for both.
    One,
    /// Wherever the scheduler puts them.
    None,
}

impl Pin {
    /// CPUs of process `number`, of those allowed; none: wherever.
    fn cpus(self, allowed: &[usize], number: usize) -> Vec<usize> {
        match (self, allowed) {
            (Self::None, _) | (_, []) => Vec::new(),
            (Self::One, [first, ..]) => vec![*first],
            (Self::Two, all) => all.get(number % all.len()).copied().into_iter().collect(),
        }
    }

    /// The word on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Two => "two",
            Self::One => "one",
            Self::None => "none",
        }
    }
}

/// What SDP is compared with: the transport of the pair without the library.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Against {
    /// TCP.
    #[default]
    Tcp,
    /// Stream sockets of AF_UNIX.
    Unix,
}

impl Against {
    /// As tables name it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "unix",
        }
    }
}

/// Options that all tests share.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Bytes of a message (default: 64 for latency and rate, 16384 for stream)
    #[arg(long)]
    pub size: Option<usize>,
    /// Rounds of each transport (default 9; 200 with --paired)
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Connections at the same time
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Non-blocking sockets and epoll on both sides
    #[arg(long)]
    pub epoll: bool,
    /// Pause before each round trip, µs (latency only)
    #[arg(long, default_value_t = 0)]
    pub gap_us: u64,
    /// Round trips on all connections at the same time, a thread each (latency only)
    #[arg(long)]
    pub concurrent: bool,
    /// Other processes that use as much CPU time as they get, on the same CPUs
    #[arg(long, default_value_t = 0)]
    pub hogs: usize,
    /// Which process of the SDP pair has no library
    #[arg(long, value_enum)]
    pub without: Option<peer::Side>,
    /// Which CPUs the two processes may use
    #[arg(long, value_enum, default_value_t = Pin::Two)]
    pub pin: Pin,
    /// Measuring time of both transports together
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// Many short alternating pairs: median ratio with its 95 % interval
    #[arg(long)]
    pub paired: bool,
    /// Measure with this machine, where `sdp perf serve` runs (latency, stream and rate only)
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with_all = ["hogs", "without", "pin", "users"])]
    pub peer: Option<String>,
    /// Compare SDP with TCP, or with what programs use instead: Unix sockets
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["peer", "without"])]
    pub against: Against,
    /// Users of both processes
    #[command(flatten)]
    pub users: users::Options,
    /// Set a tunable for the SDP pair; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `sdp perf …`
#[derive(Debug, Clone, Subcommand)]
pub enum Test {
    /// Round trips of one message
    Latency(Common),
    /// Bytes one way
    #[command(visible_alias = "bandwidth")]
    Stream(Common),
    /// Small messages one way
    Rate(Common),
    /// Connect, one byte each way, close
    Connect(Common),
    /// Writes to /dev/null: what the library costs a call that is none of its business
    Call(Common),
    /// Who waits how, and where: every case in which looking instead of sleeping could lose to TCP
    Matrix(matrix::Options),
    /// One end without the library, against neither with it
    Without(matrix::Options),
    /// Many quiet connections: memory, descriptors, CPU time
    Idle(idle::Options),
    /// One request among many quiet connections: CPU time of the server
    Ready(ready::Options),
    /// What getting a lane costs a connection: CPU time of both ends
    Promote(promote::Options),
    /// Latency, stream and rate between this machine and one where `sdp perf serve` runs
    Between(between::Options),
    /// Latency, streams and short connections on this machine, as one page of HTML with plots
    Report(report::Options),
    /// Be the other machine of a measurement, for whoever asks
    Serve(serve::Options),
}

/// One test with all its parameters.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Plan {
    pub kind: Kind,
    pub size: usize,
    pub connections: usize,
    pub epoll: bool,
    pub gap_us: u64,
    pub concurrent: bool,
    pub hogs: usize,
    pub without: Option<peer::Side>,
    pub pin: Pin,
    pub rounds: usize,
    pub paired: bool,
    pub seconds: f64,
    pub against: Against,
    pub users: Option<users::Users>,
    #[serde(skip)]
    pub set: Vec<String>,
}

impl Plan {
    /// From the options.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn new(kind: Kind, common: &Common) -> Result<Self, Failure> {
        let usual_size = match kind {
            Kind::Latency | Kind::Rate => 64,
            Kind::Stream => 16_384,
            Kind::Connect | Kind::Call => 1,
        };
        let plan = Self {
            kind,
            size: common.size.unwrap_or(usual_size),
            connections: common.connections,
            epoll: common.epoll,
            gap_us: common.gap_us,
            concurrent: common.concurrent,
            hogs: common.hogs,
            without: common.without,
            pin: if common.peer.is_some() { Pin::None } else { common.pin },
            rounds: common.rounds.unwrap_or(if common.paired { MIN_PAIRS } else { 9 }),
            paired: common.paired,
            seconds: common.seconds,
            against: common.against,
            users: common.users.users,
            set: common.set.clone(),
        };
        let bad = |what: &str| Err(Failure(what.to_string()));
        if !(1..=1 << 28).contains(&plan.size) {
            return bad("--size: from 1 to 268435456 bytes");
        }
        if !(1..=4000).contains(&plan.connections) {
            return bad("--connections: from 1 to 4000");
        }
        if plan.hogs > 64 {
            return bad("--hogs: at most 64");
        }
        if !(1..=100_000).contains(&plan.rounds) {
            return bad("--rounds: from 1 to 100000");
        }
        if plan.paired && plan.rounds < MIN_PAIRS {
            return bad("--paired: a comparison takes at least 200 pairs");
        }
        if !(plan.seconds > 0.0 && plan.seconds <= 3600.0) {
            return bad("--seconds: more than 0, at most 3600");
        }
        Ok(plan)
    }

    /// Length of one round of one transport.
    fn round_ns(&self) -> u64 {
        let nanos = (self.seconds * 1e9 / (2.0 * self.rounds as f64)) as u64;
        let nanos = nanos.max(100_000);
        if self.paired { nanos.min(MAX_PAIRED_NS) } else { nanos }
    }

    /// Pairs of processes of each kind.
    const fn process_pairs(&self) -> usize {
        if self.paired && self.without.is_some() { PROCESS_PAIRS } else { 1 }
    }

    /// Which pair of processes of each kind plays a round (TCP's, SDP's), and whether TCP's comes
    /// first. The pair that another one meets changes each time it plays. The first pair changes
    /// from round to round, but for every 2 × [`Self::process_pairs`]th: otherwise a pair of
    /// processes would always come first.
    const fn turn(&self, round: usize) -> (usize, usize, bool) {
        let pairs = self.process_pairs();
        let is_tcp_first = (round + round / (2 * pairs)).is_multiple_of(2);
        (round % pairs, (round + round / pairs) % pairs, is_tcp_first)
    }

    const fn is_one_way(&self) -> bool {
        matches!(self.kind, Kind::Stream | Kind::Rate)
    }

    /// The test in a few words.
    pub fn title(&self) -> String {
        let what = match self.kind {
            Kind::Latency => format!("latency, {} B round trips", self.size),
            Kind::Stream => format!("stream, {} B writes", self.size),
            Kind::Rate => format!("rate, {} B messages", self.size),
            Kind::Connect => "connect, 1 byte each way, close".to_string(),
            Kind::Call => format!("call, {} B to /dev/null", self.size),
        };
        let mut title = what;
        if self.connections > 1 {
            title += &format!(", {} connections", self.connections);
        }
        if self.epoll {
            title += ", epoll";
        }
        if self.gap_us > 0 {
            title += &format!(", {} µs gaps", self.gap_us);
        }
        match self.hogs {
            0 => {}
            1 => title += ", 1 hog",
            hogs => title += &format!(", {hogs} hogs"),
        }
        match self.without {
            None => {}
            Some(peer::Side::Server) => title += ", server without",
            Some(peer::Side::Client) => title += ", client without",
        }
        if let Some(users) = &self.users {
            title += &format!(", {}", users.title());
        }
        title
            + match self.pin {
                Pin::Two => ", two CPUs",
                Pin::One => ", one CPU",
                Pin::None => ", unpinned",
            }
    }
}

/// Which pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Nothing preloaded.
    Tcp,
    /// With the library.
    Sdp,
}

/// The result of one transport.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// µs per round trip or connection (median operation of a round), GB/s or million messages/s.
    pub value: Spread,
    /// µs, latency and connect only.
    pub p99_us: Option<Spread>,
    /// The same.
    pub p999_us: Option<Spread>,
    /// CPU of both processes: µs per operation, for streams s per GB.
    pub cpu: Spread,
}

/// The result of one test.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Version of the JSON form.
    pub schema: u32,
    /// Version of the tool.
    pub version: &'static str,
    /// The test that was run.
    pub test: Plan,
    /// Unit of `value`.
    pub unit: &'static str,
    /// Unit of `cpu`.
    pub cpu_unit: &'static str,
    /// Plain TCP, or what `test.against` says.
    pub tcp: Side,
    /// With the library.
    pub sdp: Side,
    /// How many times better SDP is (above 1: faster), from alternating pairs.
    pub ratio: Ratio,
    /// CPU of SDP over CPU of TCP (below 1: cheaper), of the medians.
    pub cpu_ratio: f64,
    /// Share of the SDP pair's payload bytes that went over SDP, warm-up included.
    pub sdp_share: Option<f64>,
    /// Reasons of the SDP pair's connections that stayed on TCP.
    pub reasons: std::collections::BTreeMap<String, i64>,
    /// Share of all CPU time that other processes used meanwhile, on this machine.
    pub foreign_cpu: f64,
    /// Of a measurement between machines only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<between::Ends>,
}

/// The command line of the processes of a pair.
fn words(plan: &Plan, transport: Transport) -> Vec<String> {
    let is_unix = plan.against == Against::Unix && transport == Transport::Tcp;
    let mut words = peer_words(&talk::Wanted::of(plan));
    words.extend(["--gap-us".to_string(), plan.gap_us.to_string()]);
    words.extend(plan.concurrent.then(|| "--concurrent".to_string()));
    words.extend(is_unix.then(|| "--unix".to_string()));
    words
}

/// Those of them that concern a server, too.
fn peer_words(wanted: &talk::Wanted) -> Vec<String> {
    let mut words = vec!["--kind".to_string(), wanted.kind.word()];
    for (name, value) in [("--size", wanted.size), ("--connections", wanted.connections)] {
        words.extend([name.to_string(), value.to_string()]);
    }
    words.extend(wanted.epoll.then(|| "--epoll".to_string()));
    words
}

fn start(plan: &Plan, transport: Transport, setting: Setting<'_>) -> Result<Pair, Failure> {
    let without = Setting::default().between(plan.users);
    let setting = setting.between(plan.users);
    let setting = |side| if plan.without == Some(side) { without } else { setting };
    let words = words(plan, transport);
    let mut pair = Pair::start("perf-peer", &words, plan.pin, setting)?;
    pair.client.expect("ready")?;
    Ok(pair)
}

/// One round; its CPU time is that of both processes.
fn round(pair: &mut Pair, order: Order) -> Result<Round, Failure> {
    let before = pair.server.cpu_ns()?;
    let mut round = play(&mut pair.client, order)?;
    round.cpu_ns += pair.server.cpu_ns()?.saturating_sub(before);
    Ok(round)
}

/// One round of a client; its CPU time is its own.
fn play(client: &mut pair::Process, order: Order) -> Result<Round, Failure> {
    let broken = |e| Failure::new("a measuring process failed", e);
    client.order(&serde_json::to_string(&order).map_err(broken)?)?;
    serde_json::from_str(&client.answer()?).map_err(broken)
}

/// Starts all pairs of one transport, promotes and fills caches.
fn start_all(
    plan: &Plan,
    transport: Transport,
    setting: Setting<'_>,
) -> Result<Vec<Pair>, Failure> {
    let mut pairs = Vec::new();
    for _ in 0..plan.process_pairs() {
        let mut pair = start(plan, transport, setting)?;
        for _ in 0..WARM_UP_ROUNDS {
            round(&mut pair, Order { nanos: WARM_UP_NS })?;
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// CPU time of the whole machine, in ticks: busy, all.
fn machine_ticks() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|w| w.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// Share of all CPU time since `before` that was not ours.
fn foreign_share(before: (u64, u64), ours_ns: u64) -> f64 {
    const TICK_NS: f64 = 1e7;
    let after = machine_ticks();
    let all = after.1.saturating_sub(before.1) as f64;
    let busy = after.0.saturating_sub(before.0) as f64;
    if all <= 0.0 {
        return 0.0;
    }
    ((busy - ours_ns as f64 / TICK_NS) / all).clamp(0.0, 1.0)
}

/// Runs one test.
///
/// # Errors
/// The library is missing, a process failed, or the bytes that arrived were not those that were
/// sent.
pub fn measure(plan: &Plan) -> Result<Outcome, Failure> {
    let env = Environment::for_measuring(&plan.set)?;
    let collector =
        Collector::start(false).map_err(|e| Failure::new("cannot listen for counters", e))?;
    let address = collector.address().to_string();
    let all = |transport| start_all(plan, transport, Setting::of(transport, &env, &address));
    let (mut tcp, mut sdp) = (all(Transport::Tcp)?, all(Transport::Sdp)?);
    let hogs = hog::start(plan.hogs, plan.pin)?;

    let ticks = machine_ticks();
    let mut rounds: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    for number in 0..plan.rounds {
        // The first transport changes, so that neither gains by the other's traces.
        let (of_tcp, of_sdp, is_tcp_first) = plan.turn(number);
        for which in if is_tcp_first { [0, 1] } else { [1, 0] } {
            let pair = if which == 0 { &mut tcp[of_tcp] } else { &mut sdp[of_sdp] };
            rounds[which].push(round(pair, Order { nanos: plan.round_ns() })?);
        }
    }
    let ours: u64 = rounds.iter().flatten().map(|r| r.cpu_ns).sum::<u64>() + hogs.cpu_ns();
    drop(hogs);
    let foreign_cpu = foreign_share(ticks, ours);
    for pair in tcp.into_iter().chain(sdp) {
        pair.end()?;
    }
    let collected = collector.finish();
    let nobody = Ended { how: Ok(0), user_s: 0.0, system_s: 0.0 };
    let report = Report::new(Vec::new(), &nobody, 0.0, &collected);

    Ok(Outcome { foreign_cpu, ..outcome(plan, rounds, report) })
}

/// The result of the rounds of both transports together, and the report of the one with the
/// library.
fn outcome(plan: &Plan, [tcp, sdp]: [Vec<Round>; 2], report: Report) -> Outcome {
    let compared = |(number, (t, s)): (usize, (&Round, &Round))| {
        let (tcp, sdp, _) = plan.turn(number);
        Compared { ratio: better(plan, t, s), tcp, sdp }
    };
    let compared: Vec<Compared> = tcp.iter().zip(&sdp).enumerate().map(compared).collect();
    let (tcp, sdp) = (side(plan, &tcp), side(plan, &sdp));
    Outcome {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        test: plan.clone(),
        unit: unit(plan.kind),
        cpu_unit: if plan.kind == Kind::Stream { "s/GB" } else { "us/op" },
        ratio: Ratio::of_compared(&compared),
        cpu_ratio: if tcp.cpu.median > 0.0 { sdp.cpu.median / tcp.cpu.median } else { 0.0 },
        tcp,
        sdp,
        sdp_share: report.sdp_share(),
        reasons: report.reasons,
        foreign_cpu: 0.0,
        ends: None,
    }
}

const fn unit(kind: Kind) -> &'static str {
    match kind {
        Kind::Latency | Kind::Connect | Kind::Call => "us",
        Kind::Stream => "GB/s",
        Kind::Rate => "Mmsg/s",
    }
}

/// The figure of a round in the test's unit.
fn value(plan: &Plan, round: &Round) -> f64 {
    let wall = round.wall_ns.max(1) as f64;
    match plan.kind {
        // Threads that get the CPU one after the other: only the number of round trips that they
        // make together matters.
        Kind::Latency if plan.concurrent => {
            wall * plan.connections as f64 / 1e3 / round.ops.max(1) as f64
        }
        Kind::Call => wall / 1e3 / round.ops.max(1) as f64,
        Kind::Latency | Kind::Connect => f64::from(round.p50_ns) / 1e3,
        Kind::Stream => round.bytes as f64 / wall,
        Kind::Rate => round.ops as f64 * 1e3 / wall,
    }
}

/// How many times better the second round is.
fn better(plan: &Plan, tcp: &Round, sdp: &Round) -> f64 {
    let (tcp, sdp) = (value(plan, tcp), value(plan, sdp));
    let (above, below) = if plan.is_one_way() { (sdp, tcp) } else { (tcp, sdp) };
    if below > 0.0 { above / below } else { 0.0 }
}

fn side(plan: &Plan, rounds: &[Round]) -> Side {
    let all = |f: &dyn Fn(&Round) -> f64| Spread::of(&rounds.iter().map(f).collect::<Vec<_>>());
    let cpu = |r: &Round| match plan.kind {
        // ns per byte are s per GB.
        Kind::Stream => r.cpu_ns as f64 / r.bytes.max(1) as f64,
        _ => r.cpu_ns as f64 / 1e3 / r.ops.max(1) as f64,
    };
    let has_tail = matches!(plan.kind, Kind::Latency | Kind::Connect);
    let tail = |of: fn(&Round) -> u32| has_tail.then(|| all(&|r| f64::from(of(r)) / 1e3));
    Side {
        value: all(&|r| value(plan, r)),
        p99_us: tail(|r| r.p99_ns),
        p999_us: tail(|r| r.p999_ns),
        cpu: all(&cpu),
    }
}

/// Runs the sub-command; the result is the exit status.
///
/// # Errors
/// See [`measure`].
pub fn main(test: &Test) -> Result<(), Failure> {
    let (kind, common) = match test {
        Test::Latency(common) => (Kind::Latency, common),
        Test::Stream(common) => (Kind::Stream, common),
        Test::Rate(common) => (Kind::Rate, common),
        Test::Connect(common) => (Kind::Connect, common),
        Test::Call(common) => (Kind::Call, common),
        Test::Matrix(options) => return matrix::main(options, &matrix::WAITING),
        Test::Without(options) => return matrix::main(options, &matrix::WITHOUT),
        Test::Idle(options) => return idle::main(options),
        Test::Ready(options) => return ready::main(options),
        Test::Promote(options) => return promote::main(options),
        Test::Between(options) => return between::main(options),
        Test::Report(options) => return report::main(options),
        Test::Serve(options) => return serve::main(options),
    };
    let plan = Plan::new(kind, common)?;
    let outcome = match &common.peer {
        Some(peer) => between::measure(&plan, peer)?,
        None => measure(&plan)?,
    };
    if common.json {
        let json = serde_json::to_string_pretty(&outcome);
        crate::say!("{}", json.map_err(|e| Failure::new("the result has no JSON form", e))?);
    } else {
        crate::print(&show::one(&outcome));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn common() -> Common {
        Common {
            size: None,
            rounds: None,
            connections: 1,
            epoll: false,
            gap_us: 0,
            concurrent: false,
            hogs: 0,
            without: None,
            pin: Pin::Two,
            seconds: 4.0,
            paired: false,
            users: users::Options::default(),
            against: Against::Tcp,
            set: Vec::new(),
            peer: None,
            json: false,
        }
    }

    #[test]
    fn plans_are_checked() {
        let plan = Plan::new(Kind::Latency, &common()).unwrap();
        assert_eq!((plan.size, plan.rounds), (64, 9));
        assert_eq!(Plan::new(Kind::Stream, &common()).unwrap().size, 16_384);
        let paired = Common { paired: true, ..common() };
        let plan = Plan::new(Kind::Rate, &paired).unwrap();
        assert_eq!(plan.rounds, MIN_PAIRS);
        assert!(plan.round_ns() <= MAX_PAIRED_NS);
        assert_eq!((plan.process_pairs(), plan.turn(8)), (1, (0, 0, true)));
        let without = Common { without: Some(peer::Side::Server), ..paired };
        let plan = Plan::new(Kind::Stream, &without).unwrap();
        let turns: Vec<_> = (0..plan.rounds).map(|round| plan.turn(round)).collect();
        let met: BTreeSet<_> = turns.iter().map(|(tcp, sdp, _)| (tcp, sdp)).collect();
        assert_eq!((plan.process_pairs(), met.len()), (PROCESS_PAIRS, MIN_PAIRS));
        assert_eq!(turns.iter().filter(|turn| turn.2).count(), MIN_PAIRS / 2);
        for bad in [
            Common { size: Some(0), ..common() },
            Common { connections: 0, ..common() },
            Common { rounds: Some(0), ..common() },
            Common { rounds: Some(199), paired: true, ..common() },
            Common { seconds: 0.0, ..common() },
            Common { seconds: f64::NAN, ..common() },
        ] {
            assert!(Plan::new(Kind::Latency, &bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn better_means_faster_whatever_the_unit() {
        let slow = Round { ops: 10, bytes: 1000, wall_ns: 2000, p50_ns: 200, ..Round::default() };
        let fast = Round { wall_ns: 1000, p50_ns: 100, ..slow };
        for kind in [Kind::Latency, Kind::Stream, Kind::Rate, Kind::Connect] {
            let plan = Plan::new(kind, &common()).unwrap();
            assert_eq!(better(&plan, &slow, &fast), 2.0, "{kind:?}");
            assert_eq!(better(&plan, &fast, &fast), 1.0);
        }
    }

    #[test]
    fn cpu_is_per_operation_or_per_gigabyte() {
        let round = Round { ops: 4, bytes: 1000, wall_ns: 1, cpu_ns: 8000, ..Round::default() };
        let plan = Plan::new(Kind::Stream, &common()).unwrap();
        assert_eq!(side(&plan, &[round]).cpu.median, 8.0);
        let plan = Plan::new(Kind::Latency, &common()).unwrap();
        assert_eq!(side(&plan, &[round]).cpu.median, 2.0);
    }
}

//! `sdp perf … --peer` and `sdp perf between`: this machine and one where `sdp perf serve` runs.
//!
//! As on one host there are two pairs of processes, one pair with the library, whose rounds
//! alternate; the servers are the other machine's. The counters of both ends show which fabric
//! carried the bytes. Without RDMA both pairs are on TCP, and the output says so.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::pair::{Process, Setting};
use super::peer::{Kind, Order, Round, Side};
use super::stats::Spread;
use super::talk::{
    Answer, Counted, Each, Hello, PORT, PROTOCOL, Request, TIMEOUT, Talk, Wanted, printable,
};
use super::{Common, Outcome, Plan, Transport, serve, show};
use crate::Failure;
use crate::collect::Collector;
use crate::ping;
use crate::report::Report;
use crate::run::Environment;
use crate::sys::Ended;

/// Length of a round of warm-up: two machines need longer to meet than two processes.
const WARM_UP_NS: u64 = 150_000_000;
/// Longest round: the other machine waits a little longer for a word.
const MAX_ROUND_NS: u64 = 60_000_000_000;
/// How long the other machine may take to start, and to end, the serving processes.
const WORK: Duration = Duration::from_secs(40);

/// Options of `sdp perf between`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The machine where `sdp perf serve` runs
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub peer: String,
    /// Rounds of each transport and test
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// Connections at the same time
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Measuring time of both transports together, of each test
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// Set a tunable for the SDP process; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// CPU time for a byte of payload, ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PerByte {
    /// This end's.
    pub here: f64,
    /// The other end's.
    pub there: f64,
}

/// The facts about both machines.
#[derive(Debug, Clone, Serialize)]
pub struct Ends {
    /// The other machine.
    pub peer: String,
    /// Its release.
    pub peer_version: String,
    /// `verbs`, `shm`, or none: every byte of the pair with the library went by TCP.
    pub fabric: Option<&'static str>,
    /// CPU time, by transport: median over rounds.
    pub cpu_ns_per_byte: Each<PerByte>,
    /// The library's counts at this end.
    pub here: Counted,
    /// The library's counts at the other end.
    pub there: Counted,
}

impl Ends {
    /// The fabric that carried bytes, where both ends report one.
    fn fabric(here: &Counted, there: &Counted) -> Option<&'static str> {
        if here.sdp_bytes == 0 || there.sdp_bytes == 0 {
            return None;
        }
        match (here.verbs.min(there.verbs) > 0, here.shm.min(there.shm) > 0) {
            (true, _) => Some("verbs"),
            (false, true) => Some("shm"),
            (false, false) => None,
        }
    }
}

/// The machine that serves.
struct Server {
    talk: Talk,
    at: SocketAddr,
    version: String,
}

impl Server {
    fn reach(at: SocketAddr) -> Result<Self, Failure> {
        let start = format!("start there: sdp perf serve {}", at.ip());
        let stream = TcpStream::connect_timeout(&at, TIMEOUT).map_err(|e| match e.kind() {
            ErrorKind::ConnectionRefused => {
                Failure(format!("nobody listens at port {} of {}; {start}", at.port(), at.ip()))
            }
            _ => Failure(format!("{at} does not answer ({e}); {start}")),
        })?;
        let talk = Talk::new(stream).map_err(|e| Failure::new(at, e))?;
        let mut server = Self { talk, at, version: String::new() };
        match server.ask(&Request::Hello(Hello::own()), TIMEOUT)? {
            Answer::Hello(Hello { protocol: PROTOCOL, version }) => {
                server.version = printable(&version);
                Ok(server)
            }
            Answer::Hello(Hello { protocol, version }) => Err(Failure(format!(
                "{at} has sdp {} and speaks version {protocol} of this measurement, this end version {PROTOCOL}: use the \
                 same release at both ends",
                printable(&version)
            ))),
            _ => Err(server.nonsense()),
        }
    }

    fn nonsense(&self) -> Failure {
        Failure(format!("what answers at {} is no sdp perf serve", self.at))
    }

    fn ask(&mut self, what: &Request, limit: Duration) -> Result<Answer, Failure> {
        let at = self.at;
        // A refusal may come before it says anything: its words are read all the same.
        let said = self.talk.say(what);
        match self.talk.hear(limit) {
            Ok(Answer::Refused(why)) => {
                Err(Failure(format!("{at} does not measure: {}", printable(&why))))
            }
            Ok(answer) => Ok(answer),
            Err(e) => Err(match (said, e.kind()) {
                (Err(e), _) => Failure::new(at, e),
                (_, ErrorKind::InvalidData) => self.nonsense(),
                (_, ErrorKind::UnexpectedEof) => Failure(format!("{at} ended the measurement")),
                (_, ErrorKind::TimedOut) => Failure(format!("{at} is silent")),
                _ => Failure::new(at, e),
            }),
        }
    }

    fn ports(&mut self, wanted: Wanted) -> Result<Each<u16>, Failure> {
        match self.ask(&Request::Start(wanted), WORK)? {
            Answer::Ports(ports) => Ok(ports),
            _ => Err(self.nonsense()),
        }
    }

    fn cpu_ns(&mut self) -> Result<Each<u64>, Failure> {
        match self.ask(&Request::Cpu, TIMEOUT)? {
            Answer::Cpu(cpu) => Ok(cpu),
            _ => Err(self.nonsense()),
        }
    }

    fn end(&mut self) -> Result<Counted, Failure> {
        match self.ask(&Request::End, WORK)? {
            Answer::End(counted) => Ok(counted.printable()),
            _ => Err(self.nonsense()),
        }
    }
}

/// One process here and the one that serves it there.
struct Pair {
    client: Process,
    is_sdp: bool,
    /// CPU time of each round, here and there.
    cpu: Vec<(u64, u64)>,
    rounds: Vec<Round>,
}

impl Pair {
    fn start(
        server: &Server,
        (port, is_sdp): (u16, bool),
        plan: &Plan,
        setting: Setting<'_>,
    ) -> Result<Self, Failure> {
        let mut words = super::words(plan, Transport::Sdp);
        words.extend(["--at".into(), server.at.to_string()]);
        let whom = (Side::Client, port);
        let mut client = Process::start("perf-peer", whom, &words, plan.pin, setting)?;
        client.expect("ready")?;
        Ok(Self { client, is_sdp, cpu: Vec::new(), rounds: Vec::new() })
    }

    fn of(&self, each: Each<u64>) -> u64 {
        if self.is_sdp { each.sdp } else { each.tcp }
    }

    fn play(&mut self, server: &mut Server, nanos: u64) -> Result<(), Failure> {
        let before = self.of(server.cpu_ns()?);
        let mut round = super::play(&mut self.client, Order { nanos })?;
        let there = self.of(server.cpu_ns()?).saturating_sub(before);
        self.cpu.push((round.cpu_ns, there));
        round.cpu_ns = round.cpu_ns.saturating_add(there);
        self.rounds.push(round);
        Ok(())
    }

    fn per_byte(&self) -> PerByte {
        let median = |which: fn(&(u64, u64)) -> u64| {
            let each = self.cpu.iter().zip(&self.rounds);
            let each = each.map(|(cpu, round)| which(cpu) as f64 / round.bytes.max(1) as f64);
            Spread::of(&each.collect::<Vec<_>>()).median
        };
        PerByte { here: median(|cpu| cpu.0), there: median(|cpu| cpu.1) }
    }
}

/// Runs one test with another machine.
///
/// # Errors
/// The peer does not answer, or is another release; the library is missing, a process failed, or
/// the bytes that arrived were not those that were sent.
pub fn measure(plan: &Plan, peer: &str) -> Result<Outcome, Failure> {
    let wanted = Wanted::of(plan);
    if let Some(why) = wanted.fault() {
        return Err(Failure(why));
    }
    if plan.round_ns() > MAX_ROUND_NS {
        return Err(Failure(
            "rounds are longer than a minute: more --rounds, or fewer --seconds".into(),
        ));
    }
    let env = Environment::for_measuring(&serve::settings(&plan.set))?;
    let mut server = Server::reach(ping::endpoint_or(peer, PORT)?)?;
    let ports = server.ports(wanted)?;
    let collector =
        Collector::start(false).map_err(|e| Failure::new("cannot listen for counters", e))?;
    let address = collector.address().to_string();
    let of = |transport| Setting::of(transport, &env, &address);
    let mut tcp = Pair::start(&server, (ports.tcp, false), plan, of(Transport::Tcp))?;
    let mut sdp = Pair::start(&server, (ports.sdp, true), plan, of(Transport::Sdp))?;
    for pair in [&mut tcp, &mut sdp] {
        for _ in 0..super::WARM_UP_ROUNDS {
            pair.play(&mut server, WARM_UP_NS)?;
        }
        pair.cpu.clear();
        pair.rounds.clear();
    }
    let ticks = super::machine_ticks();
    for number in 0..plan.rounds {
        let (_, _, is_tcp_first) = plan.turn(number);
        let (first, second) =
            if is_tcp_first { (&mut tcp, &mut sdp) } else { (&mut sdp, &mut tcp) };
        first.play(&mut server, plan.round_ns())?;
        second.play(&mut server, plan.round_ns())?;
    }
    let ours = [&tcp, &sdp].into_iter().flat_map(|pair| &pair.cpu).map(|cpu| cpu.0).sum();
    let foreign_cpu = super::foreign_share(ticks, ours);
    tcp.client.end()?;
    sdp.client.end()?;
    let there = server.end()?;
    let nobody = Ended { how: Ok(0), user_s: 0.0, system_s: 0.0 };
    let report = Report::new(Vec::new(), &nobody, 0.0, &collector.finish());
    let here = Counted::of(&report);
    let ends = Ends {
        peer: server.at.to_string(),
        peer_version: server.version,
        fabric: Ends::fabric(&here, &there),
        cpu_ns_per_byte: Each { tcp: tcp.per_byte(), sdp: sdp.per_byte() },
        here,
        there,
    };
    Ok(Outcome {
        foreign_cpu,
        ends: Some(ends),
        ..super::outcome(plan, [tcp.rounds, sdp.rounds], report)
    })
}

/// Runs latency, stream and rate in turn.
///
/// # Errors
/// See [`measure`]; figures measured before have been printed.
pub fn main(options: &Options) -> Result<(), Failure> {
    let mut outcomes = Vec::new();
    for kind in [Kind::Latency, Kind::Stream, Kind::Rate] {
        let common = Common {
            size: None,
            rounds: Some(options.rounds),
            connections: options.connections,
            epoll: false,
            gap_us: 0,
            concurrent: false,
            hogs: 0,
            without: None,
            pin: super::Pin::None,
            seconds: options.seconds,
            paired: false,
            users: super::users::Options::default(),
            set: options.set.clone(),
            against: super::Against::Tcp,
            peer: Some(options.peer.clone()),
            json: options.json,
        };
        let outcome = measure(&Plan::new(kind, &common)?, &options.peer)?;
        if !options.json {
            let gap = if outcomes.is_empty() { "" } else { "\n" };
            crate::print(&format!("{gap}{}", show::one(&outcome)));
        }
        outcomes.push(outcome);
    }
    if options.json {
        let json = serde_json::to_string_pretty(&outcomes);
        let json = json.map_err(|e| Failure::new("the results have no JSON form", e))?;
        crate::print(&format!("{json}\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_is_named_only_where_both_ends_counted_it() {
        let tcp = Counted::default();
        let verbs = Counted { sdp_bytes: 1, verbs: 1, ..Counted::default() };
        let shm = Counted { sdp_bytes: 1, shm: 1, ..Counted::default() };
        let met = Counted { verbs: 1, ..Counted::default() };
        assert_eq!(Ends::fabric(&verbs, &verbs), Some("verbs"));
        assert_eq!(Ends::fabric(&shm, &shm), Some("shm"));
        for (here, there) in
            [(&tcp, &tcp), (&verbs, &tcp), (&tcp, &verbs), (&verbs, &met), (&verbs, &shm)]
        {
            assert_eq!(Ends::fabric(here, there), None, "{here:?} {there:?}");
        }
    }
}

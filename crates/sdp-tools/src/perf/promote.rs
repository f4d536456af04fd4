//! `sdp perf promote`: the CPU time that getting a lane costs a connection, both ends together.
//!
//! Two pairs of processes with the library run the same short connections, one after the other:
//! connect, a few small round trips, close. In one pair every connection begins its meeting at its
//! first call, in the other the rules say TCP. No process spins, so that a round trip costs about
//! the same on both lanes, and the remaining difference is the meeting: finding the other end, the
//! segment, its pages, and taking it down again.

use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use clap::Args;
use serde::Serialize;

use super::pair::{Pair, Setting};
use super::peer::Side;
use super::stats::Spread;
use super::{Pin, SCHEMA, foreign_share, machine_ticks, show::figure};
use crate::Failure;
use crate::collect::Collector;
use crate::report::Report;
use crate::run::Environment;
use crate::sys::Ended;

/// Bytes of a message.
const SIZE: usize = 64;
/// First byte on a connection that ends the server.
const QUIT: u8 = b'q';
/// Connections that one run may open: their ports wait for a minute.
const MAX_CONNECTIONS: usize = 12_000;

/// Options of the test.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Connections in a round
    #[arg(long, default_value_t = 100)]
    pub connections: usize,
    /// Round trips on each
    #[arg(long, default_value_t = 4)]
    pub trips: usize,
    /// Rounds of each pair
    #[arg(long, default_value_t = 25)]
    pub rounds: usize,
    /// Which CPUs the two processes of a pair may use
    #[arg(long, value_enum, default_value_t = Pin::One)]
    pub pin: Pin,
    /// Users of both processes
    #[command(flatten)]
    pub users: super::users::Options,
    /// Set another tunable for both pairs; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The result. CPU times are of both ends of a connection together, µs.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Outcome {
    pub schema: u32,
    pub version: &'static str,
    pub tcp_us: Spread,
    pub sdp_us: Spread,
    /// The time that the lane adds, of alternating rounds.
    pub added_us: Spread,
    /// Connection ends that had payload on SDP, of all of the pair that may.
    pub ends_on_sdp: (i64, i64),
    /// Share of all CPU time that other processes used meanwhile.
    pub foreign_cpu: f64,
}

/// Options of one process.
#[derive(Debug, Clone, Args)]
pub struct PeerOptions {
    /// Which process
    pub side: Side,
    /// Where the server listens (client only)
    #[arg(long, default_value_t = 0)]
    pub port: u16,
}

/// Runs one process until its stdin ends (client), or it is ordered to end (server).
///
/// # Errors
/// A socket call failed, or an order makes no sense.
pub fn peer(options: &PeerOptions) -> io::Result<()> {
    match options.side {
        Side::Server => serve(),
        Side::Client => drive(options.port),
    }
}

fn tell(what: impl std::fmt::Display) -> io::Result<()> {
    println!("{what}");
    io::stdout().flush()
}

fn serve() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    tell(listener.local_addr()?.port())?;
    loop {
        let mut conn = listener.accept()?.0;
        conn.set_nodelay(true)?;
        let mut message = [0; SIZE];
        // The client closes first: its port is the one that waits.
        while conn.read_exact(&mut message).is_ok() {
            if message.first() == Some(&QUIT) {
                return Ok(());
            }
            conn.write_all(&message)?;
        }
    }
}

fn drive(port: u16) -> io::Result<()> {
    let connect = || -> io::Result<TcpStream> {
        let conn = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        conn.set_nodelay(true)?;
        Ok(conn)
    };
    let mut message = [0; SIZE];
    for line in io::stdin().lock().lines() {
        let line = line?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "an order that makes no sense");
        let (count, trips) = line.split_once(' ').ok_or_else(bad)?;
        let (count, trips) = (count.parse::<usize>(), trips.parse::<usize>());
        let (Ok(count), Ok(trips)) = (count, trips) else { return Err(bad()) };
        for _ in 0..count {
            let mut conn = connect()?;
            for _ in 0..trips {
                conn.write_all(&message)?;
                conn.read_exact(&mut message)?;
            }
        }
        tell("done")?;
    }
    message[0] = QUIT;
    connect()?.write_all(&message)
}

/// CPU time of both processes per connection, ns; and all of it.
fn round(pair: &mut Pair, connections: usize, trips: usize) -> Result<(f64, u64), Failure> {
    let before = pair.cpu_ns()?;
    pair.client.order(&format!("{connections} {trips}"))?;
    pair.client.expect("done")?;
    let spent = pair.cpu_ns()?.saturating_sub(before);
    Ok((spent as f64 / connections as f64, spent))
}

/// Runs the test.
///
/// # Errors
/// An option is out of range, the library is missing, a process failed.
pub fn main(options: &Options) -> Result<(), Failure> {
    let all = options.connections.saturating_mul(2).saturating_mul(options.rounds + 1);
    if options.connections == 0 || options.rounds == 0 || all > MAX_CONNECTIONS {
        return Err(Failure(format!(
            "--connections and --rounds: at least 1, and together at most {MAX_CONNECTIONS} connections"
        )));
    }
    if !(1..=1000).contains(&options.trips) {
        return Err(Failure("--trips: from 1 to 1000".into()));
    }
    let outcome = measure(options)?;
    if options.json {
        let json = serde_json::to_string_pretty(&outcome);
        crate::say!("{}", json.map_err(|e| Failure::new("the result has no JSON form", e))?);
        return Ok(());
    }
    let spread =
        |s: &Spread| format!("{} [{} - {}]", figure(s.median), figure(s.min), figure(s.max));
    crate::say!(
        "CPU time of both ends per connection of {} small round trips, us; {} rounds of {} connections",
        options.trips,
        options.rounds,
        options.connections
    );
    crate::say!("{:<28}{:>28}", "rules say TCP", spread(&outcome.tcp_us));
    crate::say!("{:<28}{:>28}", "promoted at once", spread(&outcome.sdp_us));
    crate::say!("{:<28}{:>28}", "added by the promotion", spread(&outcome.added_us));
    crate::say!(
        "{} of {} ends were on SDP; other processes used {:.0} % of the CPUs meanwhile",
        outcome.ends_on_sdp.0,
        outcome.ends_on_sdp.1,
        outcome.foreign_cpu * 100.0
    );
    Ok(())
}

fn measure(options: &Options) -> Result<Outcome, Failure> {
    let mut settings: Vec<String> = ["recv_poll=0", "promote_calls=0"].map(String::from).to_vec();
    settings.extend(options.set.iter().cloned());
    let env = Environment::for_measuring(&settings)?;
    let collector =
        Collector::start(false).map_err(|e| Failure::new("cannot listen for counters", e))?;
    let address = collector.address().to_string();
    let tcp_rules = "use tcp server * *:*\nuse tcp client * *:*";
    let start = |rules, report_to| {
        let setting =
            Setting { env: Some(&env), rules: Some(rules), report_to, users: options.users.users };
        Pair::start("perf-promote-peer", &[], options.pin, |_| setting)
    };
    let mut pairs = [start(tcp_rules, None)?, start("", Some(&address))?];
    let (ticks, mut ours) = (machine_ticks(), 0);
    let mut cells = Vec::new();
    // The first round counts for nothing.
    for round in 0..=options.rounds {
        let mut cell = [0.0; 2];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let (each, spent) = self::round(&mut pairs[which], options.connections, options.trips)?;
            cell[which] = each / 1e3;
            ours += spent;
        }
        if round > 0 {
            cells.push(cell);
        }
    }
    let foreign_cpu = foreign_share(ticks, ours);
    pairs.into_iter().try_for_each(Pair::end)?;
    let nobody = Ended { how: Ok(0), user_s: 0.0, system_s: 0.0 };
    let report = Report::new(Vec::new(), &nobody, 0.0, &collector.finish());
    let of = |f: &dyn Fn(&[f64; 2]) -> f64| Spread::of(&cells.iter().map(f).collect::<Vec<_>>());
    Ok(Outcome {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        tcp_us: of(&|c| c[0]),
        sdp_us: of(&|c| c[1]),
        added_us: of(&|c| c[1] - c[0]),
        ends_on_sdp: (report.connections.sdp, report.connections.seen),
        foreign_cpu,
    })
}

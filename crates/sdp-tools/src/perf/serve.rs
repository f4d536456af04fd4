//! `sdp perf serve`: the other machine of a measurement.
//!
//! Every host that reaches the port may have latency, stream and rate measured, one at a time
//! ([`super::talk`]), and nothing else. For each measurement two processes serve, one with the
//! library and one without, at ports of their own and for the asking address only. The processes of
//! a measurement end with it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use super::pair::{Process, Setting};
use super::peer::Side;
use super::talk::{self, Answer, Counted, Each, Hello, PROTOCOL, Request, TIMEOUT, Talk, Wanted};
use super::{Pin, Transport};
use crate::Failure;
use crate::collect::Collector;
use crate::ping;
use crate::report::Report;
use crate::run::Environment;
use crate::sys::Ended;

/// Longest silence of a client: a round of it is shorter.
const MAX_SILENCE: Duration = Duration::from_secs(90);
/// Longest measurement.
const MAX_SESSION: Duration = Duration::from_secs(2 * 3600);
/// Pause after no connection could be taken.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// The tunable without which nothing leaves TCP between machines.
const FABRICS: &str = "fabrics=shm,verbs";

/// Options of `sdp perf serve`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Where it is asked (default: every address, port 7798)
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub at: Option<String>,
    /// Set a tunable for the SDP process; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// The tunables of both ends: RDMA, unless something else is asked for.
pub fn settings(given: &[String]) -> Vec<String> {
    std::iter::once(FABRICS.to_string()).chain(given.iter().cloned()).collect()
}

fn listen(at: Option<&str>) -> Result<TcpListener, Failure> {
    let places = match at {
        Some(at) => vec![ping::endpoint_or(at, talk::PORT)?],
        // Both families, or the older one where there is no other.
        None => [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()]
            .map(|any: IpAddr| SocketAddr::new(any, talk::PORT))
            .to_vec(),
    };
    TcpListener::bind(places.as_slice())
        .map_err(|e| Failure::new(format_args!("cannot listen at port {}", places[0].port()), e))
}

/// Serves until the user ends it.
///
/// # Errors
/// The library is missing, or the port is taken.
pub fn main(options: &Options) -> Result<(), Failure> {
    let env = Arc::new(Environment::for_measuring(&settings(&options.set))?);
    let listener = listen(options.at.as_deref())?;
    let at = listener.local_addr().map_err(|e| Failure::new("my own address", e))?;
    crate::print(&format!("measuring with whoever asks at {at}; end with ^C\n"));
    let is_busy = Arc::new(AtomicBool::new(false));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(RETRY_PAUSE);
            continue;
        };
        if is_busy.swap(true, Ordering::AcqRel) {
            refuse(stream, "another measurement runs there");
            continue;
        }
        let free = Free(Arc::clone(&is_busy));
        let env = Arc::clone(&env);
        // Without a thread the closure goes, and its `free` with it.
        let _ = std::thread::Builder::new().name("session".into()).spawn(move || {
            let who = stream.peer_addr();
            if let (Err(why), Ok(who)) = (session(stream, &env, free), who) {
                crate::print(&format!("{who}: {}\n", super::talk::printable(&why.to_string())));
            }
        });
    }
}

/// The next measurement may begin when this one's goes. It goes before the last word is said: who
/// has heard that may ask for the next one at once.
struct Free(Arc<AtomicBool>);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn refuse(stream: TcpStream, why: &str) {
    // So short an answer needs no room that a new connection does not have.
    if stream.set_nonblocking(true).is_ok()
        && let Ok(mut talk) = Talk::new(stream)
    {
        let _ = talk.say(&Answer::Refused(why.into()));
    }
}

/// The serving processes.
struct Serving {
    tcp: Process,
    sdp: Process,
    collector: Collector,
}

impl Serving {
    fn start(
        wanted: &Wanted,
        (at, from): (SocketAddr, IpAddr),
        env: &Environment,
    ) -> Result<(Self, Each<u16>), Failure> {
        let mut words = super::peer_words(wanted);
        words.extend(["--at".into(), at.to_string(), "--from".into(), from.to_string()]);
        let collector =
            Collector::start(false).map_err(|e| Failure::new("cannot listen for counters", e))?;
        let address = collector.address().to_string();
        let start = |transport| {
            let setting = Setting::of(transport, env, &address);
            Process::start("perf-peer", (Side::Server, 0), &words, Pin::None, setting)
        };
        let (mut tcp, mut sdp) = (start(Transport::Tcp)?, start(Transport::Sdp)?);
        let ports = Each { tcp: tcp.port()?, sdp: sdp.port()? };
        Ok((Self { tcp, sdp, collector }, ports))
    }

    fn cpu_ns(&self) -> Result<Each<u64>, Failure> {
        Ok(Each { tcp: self.tcp.cpu_ns()?, sdp: self.sdp.cpu_ns()? })
    }

    /// The counts, once the other end's processes have ended and these with them.
    fn end(mut self) -> Counted {
        for process in [&mut self.tcp, &mut self.sdp] {
            process.ends_within(TIMEOUT);
        }
        drop((self.tcp, self.sdp));
        let nobody = Ended { how: Ok(0), user_s: 0.0, system_s: 0.0 };
        Counted::of(&Report::new(Vec::new(), &nobody, 0.0, &self.collector.finish()))
    }
}

/// A client, from hello to end.
fn session(stream: TcpStream, env: &Environment, free: Free) -> io::Result<()> {
    let canonical = |at: SocketAddr| match at.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), 0),
        IpAddr::V6(_) => at,
    };
    let from = canonical(stream.peer_addr()?);
    let at = canonical(stream.local_addr()?);
    let mut talk = Talk::new(stream)?;
    let Request::Hello(hello) = talk.hear(TIMEOUT)? else {
        return Err(io::Error::other("began without a hello"));
    };
    talk.say(&Answer::Hello(Hello::own()))?;
    if hello.protocol != PROTOCOL {
        return Err(io::Error::other("speaks another version of this measurement"));
    }
    let until = Instant::now() + MAX_SESSION;
    let mut serving: Option<Serving> = None;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let request = talk.hear(MAX_SILENCE.min(left))?;
        let answer = match (request, serving.as_ref()) {
            (Request::Start(wanted), None) => match wanted.fault() {
                Some(why) => Err(Failure(why)),
                None => {
                    crate::print(&format!("{from}: {}, {} B\n", wanted.kind.word(), wanted.size));
                    Serving::start(&wanted, (at, from.ip()), env).map(|(started, ports)| {
                        serving = Some(started);
                        Answer::Ports(ports)
                    })
                }
            },
            (Request::Cpu, Some(serving)) => serving.cpu_ns().map(Answer::Cpu),
            (Request::End, Some(_)) => {
                let counted = serving.take().map(Serving::end).unwrap_or_default();
                drop(free);
                return talk.say(&Answer::End(counted));
            }
            _ => Err(Failure("that was not its turn".into())),
        };
        match answer {
            Ok(answer) => talk.say(&answer)?,
            Err(why) => {
                drop((serving, free));
                talk.say(&Answer::Refused(why.0.clone()))?;
                return Err(io::Error::other(why));
            }
        }
    }
}

//! The two processes of a measurement: plain sockets of the standard library, nothing else.
//!
//! `sdp perf` starts this module for each pair twice, as server and as client, some pairs without
//! and some with the library; the code is the same. The client gets the order for a round over
//! stdin and answers with one JSON line; between rounds both processes sleep in the kernel.
//!
//! Buffers are written before they are sent and read after they arrive, as programs do: re-used,
//! untouched buffers flatter every transport, and zero copy most of all.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::stats::percentile;
use crate::sys::{self, Epoll};

/// The measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Round trips of one message.
    Latency,
    /// Bytes one way, big messages.
    Stream,
    /// Messages one way, small messages.
    Rate,
    /// Connect, one byte each way, close.
    Connect,
    /// Writes to a descriptor that is no socket.
    Call,
}

impl Kind {
    /// The word on the command line.
    pub fn word(self) -> String {
        self.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
    }
}

/// Which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Accepts.
    Server,
    /// Connects and measures.
    Client,
}

/// Where both are on one host.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Connections of others that one process closes before it gives up.
const MAX_STRANGERS: usize = 1000;

/// Options of one process.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Which process
    pub side: Side,
    /// What is measured
    #[arg(long)]
    pub kind: Kind,
    /// Bytes of a message
    #[arg(long)]
    pub size: usize,
    /// Connections
    #[arg(long)]
    pub connections: usize,
    /// Non-blocking sockets and epoll
    #[arg(long)]
    pub epoll: bool,
    /// Pause before each round trip, µs
    #[arg(long, default_value_t = 0)]
    pub gap_us: u64,
    /// Round trips on all connections at the same time, a thread each
    #[arg(long)]
    pub concurrent: bool,
    /// Where the server listens (client only)
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// The server's address; its port is `port`
    #[arg(long, default_value_t = LOOPBACK)]
    pub at: SocketAddr,
    /// Sockets of AF_UNIX instead of TCP: an abstract name with the port in it
    #[arg(long)]
    pub unix: bool,
    /// Whose connections are served (server only); others are closed
    #[arg(long)]
    pub from: Option<IpAddr>,
}

/// Orders to a client, one JSON line each.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Order {
    /// Run for this long.
    pub nanos: u64,
}

/// The result of one round, one JSON line each.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Round {
    /// Round trips, messages or connections.
    pub ops: u64,
    /// Payload bytes, one direction.
    pub bytes: u64,
    /// Wall time.
    pub wall_ns: u64,
    /// CPU time of the client.
    pub cpu_ns: u64,
    /// Half of the operations took at most this (latency and connect).
    pub p50_ns: u32,
    /// 99 of 100 operations took at most this.
    pub p99_ns: u32,
    /// 999 of 1000 operations took at most this.
    #[serde(default)]
    pub p999_ns: u32,
}

/// Samples kept per round; a longer round keeps its first ones.
const MAX_SAMPLES: usize = 1 << 20;
/// Connections that one round may open: ports stay in TIME_WAIT for a minute.
const MAX_CONNECTS: u64 = 700;
/// The same for a short round, of which there are hundreds.
const MAX_CONNECTS_SHORT: u64 = 60;
/// Longest short round.
const SHORT_NS: u64 = 25_000_000;
/// Calls between two looks at the clock.
const CALL_BATCH: u64 = 256;
/// First byte on a connection that ends the server of [`Kind::Connect`].
const QUIT: u8 = b'q';

/// Runs one process until its orders end.
///
/// # Errors
/// A socket call failed, or the bytes that arrived are not those that were sent.
pub fn main(options: &Options) -> io::Result<()> {
    match options.side {
        Side::Server => serve(options),
        Side::Client => drive(options),
    }
}

// ---- a connection ----------------------------------------------------------------------------

/// One connection, blocking or with an epoll set of its own for each direction.
struct Conn {
    /// Of AF_UNIX too: the calls are the same.
    stream: TcpStream,
    is_unix: bool,
    waits: Option<(Epoll, Epoll)>,
    ready: Vec<u64>,
}

impl Conn {
    fn new(stream: TcpStream, options: &Options) -> io::Result<Self> {
        let is_unix = options.unix;
        if !is_unix {
            // As programs that wait for answers do.
            stream.set_nodelay(true)?;
        }
        let mut waits = None;
        if options.epoll {
            stream.set_nonblocking(true)?;
            let (readable, writable) = (Epoll::new()?, Epoll::new()?);
            readable.add(stream.as_fd(), 0, false)?;
            writable.add(stream.as_fd(), 0, true)?;
            waits = Some((readable, writable));
        }
        Ok(Self { stream, is_unix, waits, ready: Vec::new() })
    }

    /// Whether small messages leave at once; those of AF_UNIX always do.
    fn set_nodelay(&self, at_once: bool) -> io::Result<()> {
        if self.is_unix { Ok(()) } else { self.stream.set_nodelay(at_once) }
    }

    /// Fills `buf`; `false` at the end of the stream before its first byte.
    fn receive(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < buf.len() {
            match (&self.stream).read(&mut buf[done..]) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(false)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn receive_all(&mut self, buf: &mut [u8]) -> io::Result<()> {
        if self.receive(buf)? { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    fn send(&mut self, mut buf: &[u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match (&self.stream).write(buf) {
                Ok(n) => buf = &buf[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(true)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn wait(&mut self, writable: bool) -> io::Result<()> {
        match &self.waits {
            Some((_, set)) if writable => set.wait(&mut self.ready),
            Some((set, _)) => set.wait(&mut self.ready),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

/// Writes every byte of a message: `number` in each word.
fn fill(message: &mut [u8], number: u64) {
    for word in message.chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_ne_bytes());
    }
}

/// Reads every byte of a message.
fn sum(message: &[u8]) -> u64 {
    let word = |w: &[u8]| u64::from_ne_bytes(w.try_into().unwrap_or_default());
    message.chunks_exact(8).fold(0u64, |sum, w| sum.wrapping_add(word(w)))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}

// ---- server ----------------------------------------------------------------------------------

/// The server's address with this port.
fn at(options: &Options, port: u16) -> SocketAddr {
    let mut at = options.at;
    at.set_port(port);
    at
}

/// The name of a socket of AF_UNIX with this number.
fn name_of(port: u16) -> io::Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("sdp-perf-{port}"))
}

/// Where the server listens.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, u16),
}

impl Listener {
    fn new(options: &Options) -> io::Result<Self> {
        if !options.unix {
            return Ok(Self::Tcp(TcpListener::bind(at(options, 0))?));
        }
        let first = std::process::id() as u16;
        for port in (0..=u16::MAX).map(|n| first.wrapping_add(n)) {
            match UnixListener::bind_addr(&name_of(port)?) {
                Ok(listener) => return Ok(Self::Unix(listener, port)),
                Err(e) if e.kind() == ErrorKind::AddrInUse => {}
                Err(e) => return Err(e),
            }
        }
        Err(ErrorKind::AddrInUse.into())
    }

    fn port(&self) -> io::Result<u16> {
        match self {
            Self::Tcp(listener) => Ok(listener.local_addr()?.port()),
            Self::Unix(_, port) => Ok(*port),
        }
    }

    /// The next connection of the expected client.
    fn accept(&self, from: Option<IpAddr>) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(listener) => expected(listener, from),
            Self::Unix(listener, _) => Ok(OwnedFd::from(listener.accept()?.0).into()),
        }
    }
}

/// A connection to the server.
fn connected(options: &Options) -> io::Result<TcpStream> {
    if options.unix {
        return Ok(OwnedFd::from(UnixStream::connect_addr(&name_of(options.port)?)?).into());
    }
    TcpStream::connect(at(options, options.port))
}

/// The next connection of the expected client.
fn expected(listener: &TcpListener, from: Option<IpAddr>) -> io::Result<TcpStream> {
    for _ in 0..MAX_STRANGERS {
        let (stream, who) = listener.accept()?;
        if from.is_none_or(|from| who.ip().to_canonical() == from.to_canonical()) {
            return Ok(stream);
        }
    }
    Err(wrong("too many connections of others"))
}

fn serve(options: &Options) -> io::Result<()> {
    let listener = Listener::new(options)?;
    println!("{}", listener.port()?);
    io::stdout().flush()?;
    if options.kind == Kind::Connect {
        return serve_connects(&listener, options);
    }
    let accept = || Conn::new(listener.accept(options.from)?, options);
    let mut conns: Vec<Conn> =
        (0..options.connections).map(|_| accept()).collect::<Result<_, _>>()?;
    if options.epoll && options.kind == Kind::Latency {
        return echo_all(&mut conns, options);
    }
    let serve_one = |conn: &mut Conn| match options.kind {
        Kind::Latency | Kind::Call => echo(conn, options.size),
        _ => swallow(conn, options.size),
    };
    if let [only] = conns.as_mut_slice() {
        return serve_one(only);
    }
    in_threads(&mut conns, |_, conn| serve_one(conn)).map(drop)
}

/// One thread per connection; the first error wins.
fn in_threads<T: Send>(
    conns: &mut [Conn],
    work: impl Fn(usize, &mut Conn) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let start = |(i, conn)| {
            scope.spawn({
                let work = &work;
                move || work(i, conn)
            })
        };
        let threads: Vec<_> = conns.iter_mut().enumerate().map(start).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(wrong("a thread died"))))
            .collect()
    })
}

fn echo(conn: &mut Conn, size: usize) -> io::Result<()> {
    let mut message = vec![0; size];
    while conn.receive(&mut message)? {
        let number = sum(&message);
        fill(&mut message, number);
        conn.send(&message)?;
    }
    Ok(())
}

/// One thread, one epoll set over all connections, as event-driven servers are built.
fn echo_all(conns: &mut [Conn], options: &Options) -> io::Result<()> {
    let set = Epoll::new()?;
    for (i, conn) in conns.iter().enumerate() {
        set.add(conn.stream.as_fd(), i as u64, false)?;
    }
    let mut message = vec![0; options.size];
    let mut open = conns.len();
    let mut ready = Vec::new();
    while open > 0 {
        set.wait(&mut ready)?;
        for i in &ready {
            let Some(conn) = conns.get_mut(*i as usize) else { continue };
            if conn.receive(&mut message)? {
                let number = sum(&message);
                fill(&mut message, number);
                conn.send(&message)?;
            } else {
                set.remove(conn.stream.as_fd())?;
                open -= 1;
            }
        }
    }
    Ok(())
}

/// First byte of the last message of a one-way round; of the others it is 0.
const LAST: u8 = 1;

/// Reads rounds of messages; answers each round with the sum of all its words.
fn swallow(conn: &mut Conn, size: usize) -> io::Result<()> {
    let mut message = vec![0; size];
    let mut total = 0u64;
    while conn.receive(&mut message)? {
        let is_last = message.first() == Some(&LAST);
        if let Some(first) = message.first_mut() {
            *first = 0;
        }
        total = total.wrapping_add(sum(&message));
        if is_last {
            conn.send(&total.to_ne_bytes())?;
            total = 0;
        }
    }
    Ok(())
}

fn serve_connects(listener: &Listener, options: &Options) -> io::Result<()> {
    loop {
        let mut conn = Conn::new(listener.accept(None)?, options)?;
        let mut byte = [0; 1];
        conn.receive_all(&mut byte)?;
        if byte == [QUIT] {
            return Ok(());
        }
        conn.send(&byte)?;
        // The client closes first: its port is the one that waits.
        conn.receive(&mut byte)?;
    }
}

// ---- client ----------------------------------------------------------------------------------

fn drive(options: &Options) -> io::Result<()> {
    sys::exact_sleeps();
    let connect = || Conn::new(connected(options)?, options);
    let count = if options.kind == Kind::Connect { 0 } else { options.connections };
    let mut conns: Vec<Conn> = (0..count).map(|_| connect()).collect::<Result<_, _>>()?;
    println!("ready");
    io::stdout().flush()?;
    let mut samples: Vec<u32> = Vec::with_capacity(MAX_SAMPLES);
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).map_err(|e| wrong(&e.to_string()))?;
        samples.clear();
        let cpu = sys::own_cpu_ns();
        let started = Instant::now();
        let (ops, bytes) = match options.kind {
            Kind::Latency if options.concurrent => {
                let each = |_, conn: &mut Conn| {
                    let mut own = Vec::new();
                    let (ops, bytes) =
                        round_trips(std::slice::from_mut(conn), options, order, &mut own)?;
                    Ok((ops, bytes, own))
                };
                let mut sum = (0, 0);
                for (ops, bytes, own) in in_threads(&mut conns, each)? {
                    sum = (sum.0 + ops, sum.1 + bytes);
                    samples.extend(own.into_iter().take(MAX_SAMPLES - samples.len()));
                }
                sum
            }
            Kind::Latency => round_trips(&mut conns, options, order, &mut samples)?,
            Kind::Call => calls(order, options.size)?,
            Kind::Connect => connects(&connect, order, &mut samples)?,
            Kind::Stream | Kind::Rate => one_way(&mut conns, options, order)?,
        };
        let wall = started.elapsed();
        let cpu_ns = sys::own_cpu_ns().saturating_sub(cpu);
        let round = Round {
            ops,
            bytes,
            wall_ns: wall.as_nanos() as u64,
            cpu_ns,
            p50_ns: percentile(&mut samples, 0.5),
            p99_ns: percentile(&mut samples, 0.99),
            p999_ns: percentile(&mut samples, 0.999),
        };
        println!("{}", serde_json::to_string(&round).map_err(|e| wrong(&e.to_string()))?);
        io::stdout().flush()?;
    }
    if options.kind == Kind::Connect {
        connect()?.send(&[QUIT])?;
    }
    Ok(())
}

fn sample(samples: &mut Vec<u32>, since: Instant, now: Instant) {
    if samples.len() < MAX_SAMPLES {
        let nanos = now.duration_since(since).as_nanos();
        samples.push(u32::try_from(nanos).unwrap_or(u32::MAX));
    }
}

/// Round trips over the connections in turn, for the time ordered.
fn round_trips(
    conns: &mut [Conn],
    options: &Options,
    order: Order,
    samples: &mut Vec<u32>,
) -> io::Result<(u64, u64)> {
    let mut message = vec![0; options.size];
    let words = (options.size / 8) as u64;
    let gap = Duration::from_micros(options.gap_us);
    let limit = Duration::from_nanos(order.nanos);
    let count = conns.len().max(1);
    let started = Instant::now();
    let mut begin = started;
    let mut ops = 0u64;
    loop {
        let turn = (ops % count as u64) as usize;
        let conn = conns.get_mut(turn).ok_or_else(|| wrong("no connection"))?;
        if !gap.is_zero() {
            std::thread::sleep(gap);
            begin = Instant::now();
        }
        fill(&mut message, ops);
        conn.send(&message)?;
        conn.receive_all(&mut message)?;
        // The answer's words are each the sum of ours.
        let expected = ops.wrapping_mul(words).wrapping_mul(words);
        if sum(&message) != expected {
            return Err(wrong("an answer differs from what was sent"));
        }
        let now = Instant::now();
        sample(samples, begin, now);
        begin = now;
        ops += 1;
        if now.duration_since(started) >= limit {
            return Ok((ops, ops * options.size as u64));
        }
    }
}

/// Messages of up to this many bytes do not look at the clock each time: it would cost as much as
/// sending them.
const SMALL: usize = 1024;
/// How many of them are sent between two looks.
const SMALL_BATCH: u64 = 16;

/// Messages in one direction for the time ordered, then the answer that all have been read; one
/// thread per connection.
fn one_way(conns: &mut [Conn], options: &Options, order: Order) -> io::Result<(u64, u64)> {
    let one = |conn: &mut Conn| one_way_on(conn, options.size, Duration::from_nanos(order.nanos));
    let ops = match conns {
        [only] => one(only)?,
        _ => in_threads(conns, |_, conn| one(conn))?.iter().sum(),
    };
    Ok((ops, ops * options.size as u64))
}

fn one_way_on(conn: &mut Conn, size: usize, limit: Duration) -> io::Result<u64> {
    let words = (size / 8) as u64;
    let batch = if size <= SMALL { SMALL_BATCH } else { 1 };
    let mut message = vec![0; size];
    let mut expected = 0u64;
    let mut count = 0u64;
    let mut left = batch;
    // TCP may gather small messages while they stream, as it does by default. Before waiting for the
    // answer the rest is pushed out: otherwise it would lie there until a delayed acknowledgement,
    // and the round would measure that timer.
    conn.set_nodelay(false)?;
    let started = Instant::now();
    loop {
        // Counted down, not divided: a division would be a good part of a small message's time.
        left -= 1;
        let mut is_last = false;
        if left == 0 {
            left = batch;
            is_last = started.elapsed() >= limit;
        }
        // The first byte (the number's lowest) is the mark.
        let number = (count << 8).to_le();
        fill(&mut message, number);
        if let (true, Some(first)) = (is_last, message.first_mut()) {
            *first = LAST;
        }
        expected = expected.wrapping_add(number.wrapping_mul(words));
        count += 1;
        if is_last {
            conn.set_nodelay(true)?;
        }
        conn.send(&message)?;
        if is_last {
            break;
        }
    }
    let mut answer = [0; 8];
    conn.receive_all(&mut answer)?;
    if u64::from_ne_bytes(answer) != expected {
        return Err(wrong("what was read differs from what was sent"));
    }
    Ok(count)
}

fn connects(
    connect: &dyn Fn() -> io::Result<Conn>,
    order: Order,
    samples: &mut Vec<u32>,
) -> io::Result<(u64, u64)> {
    let limit = Duration::from_nanos(order.nanos);
    let most = if order.nanos <= SHORT_NS { MAX_CONNECTS_SHORT } else { MAX_CONNECTS };
    let started = Instant::now();
    let mut begin = started;
    let mut ops = 0;
    loop {
        let mut conn = connect()?;
        let mut byte = [b'x'];
        conn.send(&byte)?;
        conn.receive_all(&mut byte)?;
        drop(conn);
        let now = Instant::now();
        sample(samples, begin, now);
        begin = now;
        ops += 1;
        if now.duration_since(started) >= limit || ops >= most {
            return Ok((ops, ops));
        }
    }
}

/// Writes to a descriptor that the library has nothing to do with.
fn calls(order: Order, size: usize) -> io::Result<(u64, u64)> {
    let mut nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    let message = vec![0; size];
    let limit = Duration::from_nanos(order.nanos);
    let started = Instant::now();
    let mut ops = 0;
    loop {
        for _ in 0..CALL_BATCH {
            if nowhere.write(&message)? != size {
                return Err(wrong("a short write"));
            }
        }
        ops += CALL_BATCH;
        if started.elapsed() >= limit {
            return Ok((ops, ops * size as u64));
        }
    }
}

//! The two processes of `sdp perf ready`: an event-driven server that answers, a client that asks on one
//! connection at a time.
//!
//! Plain non-blocking (server) and blocking (client) sockets of the standard library: the same code runs
//! with and without the library. The server has one level-triggered epoll set for all connections and its
//! stdin, at whose end it ends; the client gets its orders over stdin and answers each with a number.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::Args;

use super::peer::Side;
use super::stats::Pcg;
use crate::sys::{self, Epoll};

/// Bytes of a request and of an answer.
const SIZE: usize = 64;
/// Round trips on a connection after which both ends have met: twice the calls that earn the lane.
pub const ROUND_TRIPS_TO_EARN: usize = 40;
/// Requests between two looks at the clock when there is no pause.
const BATCH: u64 = 16;

/// Options of one process.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Which process
    pub side: Side,
    /// Connections
    #[arg(long)]
    pub connections: usize,
    /// Where the server listens (client only)
    #[arg(long, default_value_t = 0)]
    pub port: u16,
}

/// Runs one process until its stdin ends.
///
/// # Errors
/// A socket call failed, an order makes no sense, or an answer is not the bytes that were sent.
pub fn main(options: &Options) -> io::Result<()> {
    sys::raise_descriptor_limit();
    match options.side {
        Side::Server => serve(options.connections),
        Side::Client => drive(options),
    }
}

fn tell(what: impl std::fmt::Display) -> io::Result<()> {
    println!("{what}");
    io::stdout().flush()
}

fn serve(connections: usize) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    tell(listener.local_addr()?.port())?;
    let set = Epoll::new()?;
    let stdin = io::stdin().lock();
    set.add(stdin.as_fd(), u64::MAX, false)?;
    let mut conns = Vec::with_capacity(connections);
    for number in 0..connections {
        let conn = listener.accept()?.0;
        conn.set_nodelay(true)?;
        conn.set_nonblocking(true)?;
        set.add(conn.as_fd(), number as u64, false)?;
        conns.push(conn);
    }
    let mut ready = Vec::new();
    let mut message = [0; SIZE];
    loop {
        set.wait(&mut ready)?;
        for number in &ready {
            // Nothing is ever written to the server's stdin: it is ready when it ends.
            let Some(mut conn) = conns.get(*number as usize) else { return Ok(()) };
            match conn.read(&mut message) {
                Ok(0) => set.remove(conn.as_fd())?,
                // Small messages on loopback arrive whole, and their answers find room.
                Ok(SIZE) => conn.write_all(&message)?,
                Ok(_) => return Err(ErrorKind::InvalidData.into()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn drive(options: &Options) -> io::Result<()> {
    sys::exact_sleeps();
    // One after the other, so that no backlog overflows.
    let connect = |_| -> io::Result<TcpStream> {
        let conn = TcpStream::connect((Ipv4Addr::LOCALHOST, options.port))?;
        conn.set_nodelay(true)?;
        Ok(conn)
    };
    let conns: Vec<TcpStream> = (0..options.connections).map(connect).collect::<Result<_, _>>()?;
    tell("ready")?;
    let mut requests = 0;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> io::Result<u64> {
            let bad = || io::Error::new(ErrorKind::InvalidData, "an order that makes no sense");
            words.get(at).and_then(|word| word.parse().ok()).ok_or_else(bad)
        };
        match words.first() {
            Some(&"each") => {
                let trips = number(1)?;
                for conn in &conns {
                    (0..trips).try_for_each(|_| ask(conn, &mut requests))?;
                }
                tell(trips)?;
            }
            Some(&"random") => {
                let (length, gap) = (number(1)?, number(2)?);
                let (length, gap) = (Duration::from_nanos(length), Duration::from_micros(gap));
                tell(ask_at_random(&conns, length, gap, number(3)?, &mut requests)?)?;
            }
            _ => return Err(io::Error::new(ErrorKind::InvalidData, "an unknown order")),
        }
    }
    Ok(())
}

/// One request and its answer.
fn ask(mut conn: &TcpStream, requests: &mut u64) -> io::Result<()> {
    let mut message = [0; SIZE];
    for word in message.chunks_exact_mut(8) {
        word.copy_from_slice(&requests.to_ne_bytes());
    }
    let sent = message;
    *requests += 1;
    conn.write_all(&sent)?;
    conn.read_exact(&mut message)?;
    if message == sent { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Requests on connections drawn at random, for as long as ordered; how many.
fn ask_at_random(
    conns: &[TcpStream],
    length: Duration,
    gap: Duration,
    seed: u64,
    requests: &mut u64,
) -> io::Result<u64> {
    let mut random = Pcg::new(seed);
    let started = Instant::now();
    for count in 1u64.. {
        if !gap.is_zero() {
            std::thread::sleep(gap);
        }
        if let Some(conn) = conns.get(random.below(conns.len())) {
            ask(conn, requests)?;
        }
        let looks = !gap.is_zero() || count.is_multiple_of(BATCH);
        if looks && started.elapsed() >= length {
            return Ok(count);
        }
    }
    Ok(0)
}

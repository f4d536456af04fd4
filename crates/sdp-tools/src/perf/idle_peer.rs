//! The two processes of `sdp perf idle`: many connections, worked on one after the other, then silence.
//!
//! Like [`super::peer`], plain sockets of the standard library: the same code runs with and without the
//! library. Each order comes over stdin and is answered with a line. Between orders both processes
//! sleep as event-driven programs do: in one epoll set over all connections and the pipe.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use clap::Args;

use super::peer::Side;
use crate::sys::{self, Epoll};

/// Bytes of a small message.
const SMALL: usize = 64;
/// Bytes of one write of bulk.
const CHUNK: usize = 64 * 1024;

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
/// A socket call failed, or an order makes no sense.
pub fn main(options: &Options) -> io::Result<()> {
    sys::raise_descriptor_limit();
    let conns: Vec<TcpStream> = match options.side {
        Side::Server => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            tell(&listener.local_addr()?.port().to_string())?;
            (0..options.connections).map(|_| Ok(listener.accept()?.0)).collect::<io::Result<_>>()?
        }
        Side::Client => {
            // One after the other, so that no backlog overflows.
            let connect = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, options.port));
            (0..options.connections).map(connect).collect::<Result<_, _>>()?
        }
    };
    let waits = Epoll::new()?;
    let stdin = io::stdin().lock();
    waits.add(stdin.as_fd(), u64::MAX, false)?;
    for (i, conn) in conns.iter().enumerate() {
        conn.set_nodelay(true)?;
        waits.add(conn.as_fd(), i as u64, false)?;
    }
    tell("ready")?;
    obey(options.side, &conns, &waits, stdin)
}

fn tell(what: &str) -> io::Result<()> {
    println!("{what}");
    io::stdout().flush()
}

fn obey(
    side: Side,
    conns: &[TcpStream],
    waits: &Epoll,
    mut orders: impl BufRead,
) -> io::Result<()> {
    let mut ready = Vec::new();
    loop {
        waits.wait(&mut ready)?;
        // A connection may be ready first: the other process had its order before us, or has ended.
        let mut line = String::new();
        if orders.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> io::Result<usize> {
            let bad = || io::Error::new(ErrorKind::InvalidData, "an order that makes no sense");
            words.get(at).and_then(|word| word.parse().ok()).ok_or_else(bad)
        };
        let is_client = side == Side::Client;
        match words.first() {
            Some(&"small") => {
                let calls = number(1)?;
                conns.iter().try_for_each(|conn| small(conn, calls, is_client))?;
            }
            Some(&"bulk") => {
                let (some, bytes) = (number(1)?, number(2)?);
                conns.iter().take(some).try_for_each(|conn| bulk(conn, bytes, is_client))?;
            }
            _ => return Err(io::Error::new(ErrorKind::InvalidData, "an unknown order")),
        }
        tell("done")?;
    }
}

/// Round trips of one small message.
fn small(mut conn: &TcpStream, calls: usize, is_client: bool) -> io::Result<()> {
    let mut message = [0x5a; SMALL];
    for _ in 0..calls {
        if is_client {
            conn.write_all(&message)?;
            conn.read_exact(&mut message)?;
        } else {
            conn.read_exact(&mut message)?;
            conn.write_all(&message)?;
        }
    }
    Ok(())
}

/// `bytes` one way, then the other.
fn bulk(conn: &TcpStream, bytes: usize, is_client: bool) -> io::Result<()> {
    let mut chunk = vec![0xa5; CHUNK];
    for sends in [is_client, !is_client] {
        let (mut from, mut to) = (conn, conn);
        let mut left = bytes;
        while left > 0 {
            let piece = chunk.get_mut(..left.min(CHUNK)).unwrap_or_default();
            if sends {
                to.write_all(piece)?;
            } else {
                from.read_exact(piece)?;
            }
            left -= piece.len();
        }
    }
    Ok(())
}

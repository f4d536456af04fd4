//! The messages of the two ends of a measurement between machines, beside the measured traffic.
//!
//! One plain TCP connection, lines of JSON: the end that asks sends hello and the test that it
//! wants, asks for CPU time and reports the end; the other one answers each line with one. Nothing
//! else can be asked for. Both ends take the other for hostile: a line has a length and a time, the
//! code that uses numbers checks them, words are made printable.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Plan;
use super::peer::Kind;
use crate::report::Report;

/// The port of `sdp perf serve`, unless another one is named.
pub const PORT: u16 = 7798;
/// Version of these messages, and of those that the measuring processes exchange.
pub const PROTOCOL: u32 = 1;
/// How long a line may take that needs no work.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest line.
const MAX_LINE: usize = 16_384;
/// Bytes in buffers of the processes that serve one measurement.
const MAX_BUFFERS: usize = 256 << 20;
/// Connections of one measurement.
const MAX_CONNECTIONS: usize = 1000;
/// Characters of a word of the other end's that are shown, and words.
const MAX_WORD: usize = 160;
const MAX_WORDS: usize = 64;

/// The request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// First of all.
    Hello(Hello),
    /// Once: start serving.
    Start(Wanted),
    /// The CPU time of the serving processes.
    Cpu,
    /// The client's processes have ended.
    End,
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// To a hello.
    Hello(Hello),
    /// Where they listen.
    Ports(Each<u16>),
    /// ns.
    Cpu(Each<u64>),
    /// Their counts.
    End(Counted),
    /// Why not.
    Refused(String),
}

/// The speaker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The release.
    pub version: String,
}

impl Hello {
    /// This end's.
    pub fn own() -> Self {
        Self { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_string() }
    }
}

/// One of each transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Each<T> {
    /// Without the library.
    pub tcp: T,
    /// With it.
    pub sdp: T,
}

/// The test to be served.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Wanted {
    pub kind: Kind,
    pub size: usize,
    pub connections: usize,
    pub epoll: bool,
}

impl Wanted {
    /// The needs of a plan.
    pub const fn of(plan: &Plan) -> Self {
        let Plan { kind, size, connections, epoll, .. } = *plan;
        Self { kind, size, connections, epoll }
    }

    /// Why it is not served.
    pub fn fault(&self) -> Option<String> {
        let Self { kind, size, connections, epoll: _ } = *self;
        if !matches!(kind, Kind::Latency | Kind::Stream | Kind::Rate) {
            return Some("between machines there are latency, stream and rate".into());
        }
        if size == 0 || !(1..=MAX_CONNECTIONS).contains(&connections) {
            return Some(format!("a size from 1, connections from 1 to {MAX_CONNECTIONS}"));
        }
        match size.checked_mul(connections) {
            Some(bytes) if bytes <= MAX_BUFFERS => None,
            _ => Some(format!("size times connections is more than {MAX_BUFFERS} bytes")),
        }
    }
}

/// The library's counts at one end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Payload over SDP, both ways.
    pub sdp_bytes: u64,
    /// Payload over TCP, both ways.
    pub tcp_bytes: u64,
    /// Connections over shared memory.
    pub shm: i64,
    /// Connections over queue pairs.
    pub verbs: i64,
    /// Why connections never left TCP.
    pub reasons: BTreeMap<String, i64>,
}

impl Counted {
    /// The counts of a report.
    pub fn of(report: &Report) -> Self {
        let bytes = &report.bytes;
        Self {
            sdp_bytes: bytes.sdp_sent.saturating_add(bytes.sdp_received),
            tcp_bytes: bytes.tcp_sent.saturating_add(bytes.tcp_received),
            shm: report.fabrics.shm,
            verbs: report.fabrics.verbs,
            reasons: report.reasons.clone(),
        }
    }

    /// The other end's words, fit to be shown.
    #[must_use]
    pub fn printable(mut self) -> Self {
        let reasons = std::mem::take(&mut self.reasons).into_iter().take(MAX_WORDS);
        self.reasons = reasons.map(|(word, n)| (printable(&word), n)).collect();
        self
    }
}

/// A word of the other end's without what could drive a terminal, and not longer than a line or two.
pub fn printable(word: &str) -> String {
    let fit = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    word.chars().take(MAX_WORD).map(fit).collect()
}

/// One end of the connection.
#[derive(Debug)]
pub struct Talk {
    stream: TcpStream,
    pending: Vec<u8>,
}

impl Talk {
    /// Of a connection.
    ///
    /// # Errors
    /// It takes no options.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, pending: Vec::new() })
    }

    /// Says one line.
    ///
    /// # Errors
    /// The other end does not take it.
    pub fn say(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_string(what)?;
        line.push('\n');
        self.stream.write_all(line.as_bytes())
    }

    /// Hears one line.
    ///
    /// # Errors
    /// It does not come in time, is too long, or says nothing that is known here.
    pub fn hear<T: DeserializeOwned>(&mut self, limit: Duration) -> io::Result<T> {
        let until = Instant::now() + limit;
        let end = loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.pending.len() >= MAX_LINE {
                return Err(io::Error::new(ErrorKind::InvalidData, "a line without an end"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut some = [0; 1024];
            match self.stream.read(&mut some) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.pending.extend_from_slice(&some[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return Err(ErrorKind::TimedOut.into());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        };
        let line: Vec<u8> = self.pending.drain(..=end).collect();
        serde_json::from_slice(&line).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn both() -> (TcpStream, Talk) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (there, Talk::new(listener.accept().unwrap().0).unwrap())
    }

    #[test]
    fn what_is_said_is_heard_however_it_comes() {
        let (mut there, mut here) = both();
        let wanted = Wanted { kind: Kind::Rate, size: 64, connections: 2, epoll: true };
        let text = serde_json::to_string(&Request::Start(wanted)).unwrap() + "\n\"cpu\"\n";
        for byte in text.bytes() {
            there.write_all(&[byte]).unwrap();
        }
        let heard: Request = here.hear(TIMEOUT).unwrap();
        assert!(matches!(heard, Request::Start(heard) if heard == wanted));
        assert!(matches!(here.hear(TIMEOUT).unwrap(), Request::Cpu));
    }

    #[test]
    fn lines_end_are_known_and_come_in_time() {
        let kind = |bytes: &[u8], limit| {
            let (mut there, mut here) = both();
            there.write_all(bytes).unwrap();
            let heard: io::Result<Request> = here.hear(limit);
            heard.map(drop).unwrap_err().kind()
        };
        let deep = [[b'['; 9000].as_slice(), b"\n"].concat();
        for bad in
            [b"SSH-2.0\n".as_slice(), b"\n", b"{\"start\":{\"kind\":\"sh\"}}\n", b"\xff\n", &deep]
        {
            assert_eq!(kind(bad, TIMEOUT), ErrorKind::InvalidData, "{bad:?}");
        }
        assert_eq!(kind(&vec![b'x'; MAX_LINE + 2000], TIMEOUT), ErrorKind::InvalidData);
        assert_eq!(kind(b"\"cpu\"", Duration::from_millis(20)), ErrorKind::TimedOut);
        let (there, mut here) = both();
        drop(there);
        let heard: io::Result<Request> = here.hear(TIMEOUT);
        assert_eq!(heard.map(drop).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn only_what_is_measured_is_served_and_within_bounds() {
        let good = Wanted { kind: Kind::Stream, size: 1 << 20, connections: 256, epoll: false };
        assert_eq!(good.fault(), None);
        for bad in [
            Wanted { kind: Kind::Connect, ..good },
            Wanted { kind: Kind::Call, ..good },
            Wanted { size: 0, ..good },
            Wanted { connections: 0, ..good },
            Wanted { connections: 1001, size: 1, ..good },
            Wanted { connections: 257, ..good },
            Wanted { size: usize::MAX, ..good },
        ] {
            assert!(bad.fault().is_some(), "{bad:?}");
        }
    }

    #[test]
    fn foreign_words_cannot_drive_a_terminal() {
        assert_eq!(printable("a\x1b[2J\u{202e}b c"), "a?[2J?b c");
        let many = (0..1000).map(|n| (format!("{n}\n"), n)).collect();
        let counted = Counted { reasons: many, ..Counted::default() }.printable();
        assert_eq!(counted.reasons.len(), MAX_WORDS);
        assert!(counted.reasons.keys().all(|word| word.ends_with('?')));
    }
}

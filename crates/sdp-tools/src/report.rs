//! The report of `sdp run`: JSON for scripts, a table for people.

use std::collections::BTreeMap;
use std::fmt;

use sdp_stats::reader::{DevicePort, MessagesView, ReasonCode, Sums};
use sdp_stats::{Counter, Direction};
use serde::{Deserialize, Serialize};

use crate::collect::Collected;
use crate::sys::Ended;

/// Version of the JSON form. Members may be added; their meaning never changes within one version.
pub const SCHEMA: u32 = 1;

/// The result of one run. Field names are the JSON form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Report {
    pub schema: u32,
    pub version: String,
    pub command: Vec<String>,
    pub exit: Exit,
    pub wall_s: f64,
    pub user_s: f64,
    pub system_s: f64,
    /// Processes that handed in counters.
    pub processes: u64,
    pub connections: Connections,
    pub bytes: Bytes,
    pub transfers: Transfers,
    pub messages: Messages,
    pub fabrics: Fabrics,
    /// Connection ends that met by RDMA devices.
    pub devices: Vec<MetBy>,
    pub switches: Switches,
    pub waits: Waits,
    /// Why connection ends never moved a byte over SDP; reasons that occurred only.
    pub reasons: BTreeMap<String, i64>,
    /// Why halves were demoted; reasons that occurred only.
    pub demotions: BTreeMap<String, u64>,
    /// Connections that were refused because rules want SDP or nothing, by reason. They are not among those seen.
    pub refused: BTreeMap<String, u64>,
    /// Pages that could not be handed in or taken.
    pub unreported: u64,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    /// Exit code.
    Code(i32),
    /// Ended by this signal.
    Signal(i32),
}

/// Ends of established connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Connections {
    pub seen: i64,
    pub sdp: i64,
    pub tcp: i64,
}

/// Payload bytes that the program's calls moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Bytes {
    pub sdp_sent: u64,
    pub sdp_received: u64,
    pub tcp_sent: u64,
    pub tcp_received: u64,
}

/// Transfers by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Transfers {
    pub bcopy: u64,
    pub read_zcopy: u64,
    pub write_zcopy: u64,
    pub zcopy_bytes: u64,
}

/// Messages that were sent over SDP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// By size.
    pub sizes: Vec<Size>,
    /// Times that a sender found no room.
    pub ring_full: u64,
}

/// So many messages of a payload of up to `to` bytes, and more than the class before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Size {
    pub to: Option<u32>,
    pub count: u64,
}

impl Messages {
    /// As counted.
    pub fn of(view: &MessagesView) -> Self {
        let classes = view.sizes.iter().zip(MessagesView::bounds());
        Self {
            sizes: classes.map(|(count, to)| Size { to, count: *count }).collect(),
            ring_full: view.full,
        }
    }

    /// The sizes that there are, in words.
    pub fn by_size(&self) -> String {
        let mut words = Vec::new();
        let mut above = 0;
        for Size { to, count } in &self.sizes {
            if *count != 0 {
                let class = to.map_or(format!("above {above}"), |to| format!("to {to}"));
                words.push(format!("{class} B: {count}"));
            }
            above = to.unwrap_or(above);
        }
        words.join(", ")
    }
}

/// SDP connection ends by fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Fabrics {
    pub shm: i64,
    pub verbs: i64,
}

/// Connection ends that met by a port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MetBy {
    pub name: String,
    pub port: u8,
    pub ends: u64,
}

impl MetBy {
    /// Out of sums.
    pub fn all(sums: &Sums) -> Vec<Self> {
        let one = |(at, ends): (&DevicePort, &u64)| Self {
            name: at.name.clone(),
            port: at.port,
            ends: *ends,
        };
        sums.devices.iter().map(one).collect()
    }
}

/// Changes of lane, by half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Switches {
    pub promoted: u64,
    pub demoted: u64,
}

/// How waits ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Waits {
    pub spun: u64,
    pub slept: u64,
}

impl Report {
    /// From the collected pages.
    pub fn new(command: Vec<String>, ended: &Ended, wall_s: f64, collected: &Collected) -> Self {
        let sums = &collected.sums;
        let both = |counter| sums.both(counter);
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_string(),
            command,
            exit: match ended.how {
                Ok(code) => Exit::Code(code),
                Err(signal) => Exit::Signal(signal),
            },
            wall_s,
            user_s: ended.user_s,
            system_s: ended.system_s,
            processes: collected.processes,
            connections: Connections {
                seen: sums.seen,
                sdp: sums.sdp,
                tcp: sums.seen.wrapping_sub(sums.sdp),
            },
            bytes: Bytes::of(sums),
            transfers: Transfers {
                bcopy: sums.messages.sent(),
                read_zcopy: both(Counter::ReadZCopy),
                write_zcopy: both(Counter::WriteZCopy),
                zcopy_bytes: both(Counter::ZCopyBytes),
            },
            messages: Messages::of(&sums.messages),
            fabrics: Fabrics { shm: sums.fabrics[0], verbs: sums.fabrics[1] },
            devices: MetBy::all(sums),
            switches: Switches { promoted: sums.promoted, demoted: sums.demoted },
            waits: Waits { spun: both(Counter::Spun), slept: both(Counter::Slept) },
            reasons: words(&sums.reasons),
            demotions: words(&sums.demotions),
            refused: words(&sums.refused),
            unreported: sums.unreported.wrapping_add(collected.refused),
        }
    }

    /// Share of payload bytes that went over SDP, 0 to 1; `None` without bytes.
    pub fn sdp_share(&self) -> Option<f64> {
        let Bytes { sdp_sent, sdp_received, tcp_sent, tcp_received } = self.bytes;
        let sdp = sdp_sent as f64 + sdp_received as f64;
        let all = sdp + tcp_sent as f64 + tcp_received as f64;
        (all > 0.0).then(|| sdp / all)
    }
}

impl Bytes {
    /// Out of sums.
    pub fn of(sums: &Sums) -> Self {
        Self {
            sdp_sent: sums.counter(Direction::Send, Counter::SdpBytes),
            sdp_received: sums.counter(Direction::Receive, Counter::SdpBytes),
            tcp_sent: sums.counter(Direction::Send, Counter::TcpBytes),
            tcp_received: sums.counter(Direction::Receive, Counter::TcpBytes),
        }
    }
}

/// Non-zero entries by their word.
pub fn words<N: Copy + PartialEq + Default>(by_code: &[N]) -> BTreeMap<String, N> {
    let named = |(code, n): (usize, &N)| (ReasonCode(code as u32).to_string(), *n);
    by_code.iter().enumerate().filter(|(_, n)| **n != N::default()).map(named).collect()
}

/// Bytes for people: three significant digits and a binary unit.
pub fn human_bytes(n: u64) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        return format!("{n} B");
    }
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {}", UNITS[unit])
}

impl fmt::Display for Report {
    /// The table of `--summary`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections: c, bytes: b, transfers: t, waits: w, switches: s, .. } = self;
        let ended = match self.exit {
            Exit::Code(code) => format!("exit code {code}"),
            Exit::Signal(signal) => format!("signal {signal}"),
        };
        let command = self.command.first().map_or("", String::as_str);
        writeln!(
            f,
            "sdp run: {command}: {ended}, {:.3} s wall, {:.3} s user, {:.3} s system",
            self.wall_s, self.user_s, self.system_s
        )?;
        if self.processes == 0 {
            writeln!(
                f,
                "  no process handed in counters: it used no stream connection, or the library"
            )?;
            writeln!(f, "  was not loaded into it (static, set-id or not a glibc program)")?;
            return Ok(());
        }
        writeln!(f, "  processes    {}", self.processes)?;
        writeln!(
            f,
            "  connections  {} seen, {} SDP (shm {}, verbs {}), {} TCP",
            c.seen, c.sdp, self.fabrics.shm, self.fabrics.verbs, c.tcp
        )?;
        for MetBy { name, port, ends } in &self.devices {
            writeln!(f, "  RDMA device  {name} port {port}: ends that met {ends}")?;
        }
        let line = |sent, received| {
            format!("{} sent, {} received", human_bytes(sent), human_bytes(received))
        };
        writeln!(f, "  bytes SDP    {}", line(b.sdp_sent, b.sdp_received))?;
        writeln!(f, "  bytes TCP    {}", line(b.tcp_sent, b.tcp_received))?;
        if let Some(share) = self.sdp_share() {
            writeln!(f, "  SDP share    {:.2} % of all payload bytes", share * 100.0)?;
        }
        writeln!(
            f,
            "  transfers    {} BCopy, {} Read ZCopy, {} Write ZCopy ({} zero copy)",
            t.bcopy,
            t.read_zcopy,
            t.write_zcopy,
            human_bytes(t.zcopy_bytes)
        )?;
        let messages = self.messages.by_size();
        if !messages.is_empty() {
            writeln!(f, "  messages     {messages}")?;
            writeln!(f, "  ring full    {} times", self.messages.ring_full)?;
        }
        writeln!(f, "  switches     {} promoted, {} demoted (halves)", s.promoted, s.demoted)?;
        writeln!(f, "  waits        {} spun, {} slept", w.spun, w.slept)?;
        for (title, list) in [
            ("TCP because", join(&self.reasons)),
            ("demotions", join(&self.demotions)),
            ("refused", join(&self.refused)),
        ] {
            if !list.is_empty() {
                writeln!(f, "  {title:<12} {list}")?;
            }
        }
        if self.unreported > 0 {
            writeln!(f, "  unreported   {} pages", self.unreported)?;
        }
        Ok(())
    }
}

fn join<N: fmt::Display>(list: &BTreeMap<String, N>) -> String {
    let one = |(word, n): (&String, &N)| format!("{word} {n}");
    list.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected() -> Collected {
        let mut c = Collected { processes: 2, ..Collected::default() };
        c.sums.seen = 51;
        c.sums.sdp = 50;
        c.sums.fabrics[0] = 50;
        c.sums.reasons[0] = 1;
        c.sums.demotions[4] = 3;
        c.sums.demoted = 3;
        c.sums.counters[0][0] = 4096;
        c.sums.counters[1][1] = 4096;
        c.sums.messages.sizes[1] = 32;
        c.sums.messages.full = 2;
        c.sums.devices.insert(DevicePort { name: "rxe0".into(), port: 1 }, 4);
        c
    }

    fn ended(how: Result<i32, i32>) -> Ended {
        Ended { how, user_s: 1.5, system_s: 0.25 }
    }

    #[test]
    fn json_form_is_the_documented_one() {
        let report = Report::new(vec!["x".into()], &ended(Ok(0)), 4.5, &collected());
        let json = serde_json::to_value(&report).unwrap();
        let expected = serde_json::json!({
            "schema": 1, "version": env!("CARGO_PKG_VERSION"), "command": ["x"],
            "exit": {"code": 0}, "wall_s": 4.5, "user_s": 1.5, "system_s": 0.25,
            "processes": 2,
            "connections": {"seen": 51, "sdp": 50, "tcp": 1},
            "bytes": {"sdp_sent": 4096, "sdp_received": 0, "tcp_sent": 0, "tcp_received": 4096},
            "transfers": {"bcopy": 32, "read_zcopy": 0, "write_zcopy": 0, "zcopy_bytes": 0},
            "messages": {
                "sizes": [
                    {"to": 64, "count": 0}, {"to": 256, "count": 32}, {"to": 1024, "count": 0},
                    {"to": 4096, "count": 0}, {"to": 16384, "count": 0}, {"to": 65536, "count": 0},
                    {"to": null, "count": 0}
                ],
                "ring_full": 2
            },
            "fabrics": {"shm": 50, "verbs": 0},
            "devices": [{"name": "rxe0", "port": 1, "ends": 4}],
            "switches": {"promoted": 0, "demoted": 3},
            "waits": {"spun": 0, "slept": 0},
            "reasons": {"too-young": 1},
            "demotions": {"shared": 3},
            "refused": {},
            "unreported": 0
        });
        assert_eq!(json, expected);
        let killed = Report::new(vec!["x".into()], &ended(Err(9)), 4.5, &collected());
        assert_eq!(serde_json::to_value(killed.exit).unwrap(), serde_json::json!({"signal": 9}));
        assert_eq!(report.sdp_share(), Some(0.5));
    }

    #[test]
    fn the_table_names_what_happened() {
        let text = Report::new(vec!["x".into()], &ended(Err(9)), 4.5, &collected()).to_string();
        assert!(text.contains("signal 9"), "{text}");
        assert!(text.contains("TCP because  too-young 1"), "{text}");
        assert!(text.contains("50.00 %"), "{text}");
        assert!(text.contains("RDMA device  rxe0 port 1: ends that met 4"), "{text}");
        let none = Report::new(vec!["x".into()], &ended(Ok(0)), 0.0, &Collected::default());
        assert!(none.to_string().contains("no process handed in counters"));
        assert_eq!(none.sdp_share(), None);
    }

    #[test]
    fn bytes_for_people() {
        for (n, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1 << 20, "1.00 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(human_bytes(n), text);
        }
    }
}

//! `sdp stat --reset` and `--since-reset`: counters since a moment that the user chose.
//!
//! Nothing is reset in a process, whose counters others read too. The tool remembers the values, in
//! a file of this user's, and subtracts them from the present ones.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sdp_stats::reader::{HalfCounters, MessagesView, RowView, Sums};
use serde::{Deserialize, Serialize};

use crate::procs::Process;
use crate::{Failure, sys, trace};

/// The file, in the folder that recorders are kept in.
const NAME: &str = "reset.json";
/// Version of the file.
const FORM: u32 = 1;
/// A file that is longer is not read.
const LONGEST: u64 = 256 << 20;

/// The counts at the moment of the reset.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reset {
    form: u32,
    /// `CLOCK_BOOTTIME` nanoseconds.
    at_ns: u64,
    processes: Vec<Counted>,
}

/// Of a process. Its number may be another's later, the moment of its first connection tells them apart.
#[derive(Debug, Serialize, Deserialize)]
struct Counted {
    pid: u32,
    born_ns: u64,
    sums: SumsThen,
    rows: Vec<RowThen>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SumsThen {
    seen: i64,
    sdp: i64,
    fabrics: Vec<i64>,
    switches: [u64; 2],
    rowless: u64,
    counters: [HalfCounters; 2],
    reasons: Vec<i64>,
    demotions: Vec<u64>,
    refused: Vec<u64>,
    messages: MessagesThen,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct MessagesThen {
    sizes: [u64; sdp_stats::page::SIZES],
    full: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct RowThen {
    carrier: u64,
    fd: i32,
    counters: [HalfCounters; 2],
    switches: [[u32; 2]; 2],
    messages: MessagesThen,
    peer_full: Option<u64>,
}

impl From<&MessagesView> for MessagesThen {
    fn from(now: &MessagesView) -> Self {
        Self { sizes: now.sizes, full: now.full }
    }
}

impl MessagesThen {
    fn until(self, now: &mut MessagesView) {
        *now = now.since(&MessagesView { sizes: self.sizes, full: self.full });
    }
}

impl From<&Sums> for SumsThen {
    fn from(now: &Sums) -> Self {
        Self {
            seen: now.seen,
            sdp: now.sdp,
            fabrics: now.fabrics.to_vec(),
            switches: [now.promoted, now.demoted],
            rowless: now.rowless,
            counters: now.counters,
            reasons: now.reasons.to_vec(),
            demotions: now.demotions.to_vec(),
            refused: now.refused.to_vec(),
            messages: MessagesThen::from(&now.messages),
        }
    }
}

impl From<&RowView> for RowThen {
    fn from(now: &RowView) -> Self {
        Self {
            carrier: now.carrier,
            fd: now.fd,
            counters: now.counters,
            switches: now.halves.map(|half| [half.promoted, half.demoted]),
            messages: MessagesThen::from(&now.messages),
            peer_full: now.peer_full,
        }
    }
}

fn take_counters(now: &mut [HalfCounters; 2], then: &[HalfCounters; 2]) {
    for (now, then) in now.iter_mut().flatten().zip(then.iter().flatten()) {
        *now = now.wrapping_sub(*then);
    }
}

fn take_signed(now: &mut [i64], then: &[i64]) {
    now.iter_mut().zip(then).for_each(|(now, then)| *now = now.wrapping_sub(*then));
}

fn take(now: &mut [u64], then: &[u64]) {
    now.iter_mut().zip(then).for_each(|(now, then)| *now = now.wrapping_sub(*then));
}

impl SumsThen {
    fn until(&self, now: &mut Sums) {
        now.seen = now.seen.wrapping_sub(self.seen);
        now.sdp = now.sdp.wrapping_sub(self.sdp);
        now.promoted = now.promoted.wrapping_sub(self.switches[0]);
        now.demoted = now.demoted.wrapping_sub(self.switches[1]);
        now.rowless = now.rowless.wrapping_sub(self.rowless);
        take_signed(&mut now.fabrics, &self.fabrics);
        take_counters(&mut now.counters, &self.counters);
        take_signed(&mut now.reasons, &self.reasons);
        take(&mut now.demotions, &self.demotions);
        take(&mut now.refused, &self.refused);
        self.messages.until(&mut now.messages);
    }
}

impl RowThen {
    fn until(&self, now: &mut RowView) {
        take_counters(&mut now.counters, &self.counters);
        for (half, [promoted, demoted]) in now.halves.iter_mut().zip(self.switches) {
            half.promoted = half.promoted.wrapping_sub(promoted);
            half.demoted = half.demoted.wrapping_sub(demoted);
        }
        self.messages.until(&mut now.messages);
        now.peer_full = now.peer_full.map(|n| n.wrapping_sub(self.peer_full.unwrap_or(0)));
    }
}

impl Reset {
    /// The present counts.
    fn now(processes: &[Process]) -> Self {
        let one = |process: &Process| Counted {
            pid: process.pid,
            born_ns: process.view.born_ns,
            sums: SumsThen::from(&process.view.sums),
            rows: process.view.rows.iter().map(RowThen::from).collect(),
        };
        let processes = processes.iter().map(one).collect();
        Self { form: FORM, at_ns: sys::boottime_ns(), processes }
    }

    /// Subtracts the counts at that moment from the present ones. Processes and connections that
    /// were not there then keep what they have.
    pub fn until(&self, processes: &mut [Process]) {
        for process in processes {
            let view = &mut process.view;
            let is_it = |then: &&Counted| (then.pid, then.born_ns) == (process.pid, view.born_ns);
            let Some(then) = self.processes.iter().find(is_it) else { continue };
            then.sums.until(&mut view.sums);
            for row in &mut view.rows {
                let is_it = |then: &&RowThen| (then.carrier, then.fd) == (row.carrier, row.fd);
                if let Some(then) = then.rows.iter().find(is_it) {
                    then.until(row);
                }
            }
        }
    }

    /// Seconds since then.
    pub fn age_s(&self) -> f64 {
        sys::boottime_ns().saturating_sub(self.at_ns) as f64 / 1e9
    }

    /// The values remembered last.
    ///
    /// # Errors
    /// Nothing was, or it cannot be read.
    pub fn load() -> Result<Self, Failure> {
        let path = trace::folder_for("--since-reset", None)?.join(NAME);
        let what = || format!("--since-reset: {}", path.display());
        let mut open = File::options();
        open.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = open.open(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Failure("--since-reset: nothing is remembered; begin with: sdp stat --reset".into())
            }
            _ => Failure::new(what(), e),
        })?;
        let is_usable = file.metadata().is_ok_and(|m| m.is_file() && m.len() <= LONGEST);
        if !is_usable {
            return Err(Failure::new(what(), "no file of this command's"));
        }
        let found: Self = serde_json::from_reader(std::io::BufReader::new(file))
            .map_err(|e| Failure::new(what(), e))?;
        let is_known = found.form == FORM && found.at_ns <= sys::boottime_ns();
        is_known.then_some(found).ok_or_else(|| {
            Failure::new(what(), "of another version, or of before the machine was started")
        })
    }
}

/// Remembers what is counted now.
///
/// # Errors
/// It cannot be written.
pub fn remember(processes: &[Process]) -> Result<(), Failure> {
    let folder = trace::folder_for("--reset", None)?;
    write(&folder, &Reset::now(processes)).map_err(|e| Failure::new("--reset", e))
}

/// The file takes its place when it is whole.
fn write(folder: &Path, reset: &Reset) -> std::io::Result<()> {
    let beside = folder.join(format!("{NAME}.{}", std::process::id()));
    let _ = fs::remove_file(&beside);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = serde_json::to_vec(reset).map_err(std::io::Error::other);
    let placed = written
        .and_then(|bytes| file.write_all(&bytes))
        .and_then(|()| fs::rename(&beside, folder.join(NAME)));
    if placed.is_err() {
        let _ = fs::remove_file(&beside);
    }
    placed
}

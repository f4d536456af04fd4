//! `sdp stat`: the processes that have the library, and their connections.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use clap::Args;
use sdp_stats::reader::{
    DevicePort, DeviceView, HalfView, MessagesView, PeerView, ProcessView, ReasonCode, RowView,
};
use sdp_stats::{Counter, Direction, Role, Rules};
use serde::Serialize;

use crate::asking::{self, InForce};
use crate::doctor::wrapped;
use crate::procs::{self, Process};
use crate::report::{self, Bytes, Size, human_bytes, words};
use crate::{Failure, devices, names, since, sys, trace};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Options of `sdp stat`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only this process
    #[arg(long)]
    pub pid: Option<u32>,
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print counters in the text format of Prometheus
    #[arg(long)]
    pub prometheus: bool,
    /// Show the last events of a process's connections instead: of a running process, one that `sdp run --trace`
    /// has kept, or a file: a kept page, a core dump
    #[arg(long, value_name = "PID|FILE", conflicts_with_all = ["pid", "prometheus"])]
    pub trace: Option<String>,
    /// Remember the counters of all processes as they are now, for --since-reset
    #[arg(long, conflicts_with_all = ["pid", "json", "prometheus", "trace", "since_reset"])]
    pub reset: bool,
    /// Show what was counted since `sdp stat --reset`, instead of since the start
    #[arg(long, conflicts_with_all = ["prometheus", "trace"])]
    pub since_reset: bool,
}

/// The JSON form of one direction of a connection.
#[derive(Debug, Serialize)]
struct Half {
    lane: &'static str,
    fabric: &'static str,
    mode: &'static str,
    reason: Option<String>,
    sdp_bytes: u64,
    tcp_bytes: u64,
    queued: u32,
    credits: u32,
    threshold: u32,
    promoted: u32,
    demoted: u32,
}

/// The JSON form of a queue pair.
#[derive(Debug, Serialize)]
struct QueuePair {
    number: u32,
    peer_number: u32,
    /// Receive buffers of this end that it has announced to the other one.
    own_credits: u32,
    /// Messages that the other end has buffers for.
    peer_credits: u32,
}

fn queue_pair(row: &RowView) -> Option<QueuePair> {
    let [send, receive] = &row.halves;
    (send.queue_pair != 0).then_some(QueuePair {
        number: send.queue_pair,
        peer_number: receive.queue_pair,
        own_credits: receive.credits,
        peer_credits: send.credits,
    })
}

/// The JSON form of a port of an RDMA device by which connections of a process have met.
#[derive(Debug, Serialize)]
struct DevicePortForm<'a> {
    port: u8,
    /// Connection ends that met by it.
    ends: u64,
    #[serde(flatten)]
    device: DeviceForm<'a>,
}

/// The JSON form of the port by which a connection has met.
#[derive(Debug, Serialize)]
struct MetBy {
    name: String,
    port: u8,
}

/// The JSON form of an RDMA device.
#[derive(Debug, Serialize)]
struct DeviceForm<'a> {
    name: &'a str,
    /// How often a queue pair sends a message again that is not answered.
    retries: u8,
    /// How often it sends a message again that found no receive buffer; `None`: for ever.
    rnr_retries: Option<u8>,
    /// The counts of both by the device's ports, by the driver's names, for all processes.
    counted: BTreeMap<String, u64>,
}

fn device(view: &DeviceView) -> DeviceForm<'_> {
    let DeviceView { at: DevicePort { name, .. }, retries, rnr_retries, .. } = view;
    DeviceForm {
        name,
        retries: *retries,
        rnr_retries: (*rnr_retries != devices::FOR_EVER).then_some(*rnr_retries),
        counted: devices::retries_of(Path::new("/"), name),
    }
}

fn device_port(view: &DeviceView) -> DevicePortForm<'_> {
    DevicePortForm { port: view.at.port, ends: view.ends, device: device(view) }
}

/// A device and its counts, in a line.
fn device_note(view: &DeviceView) -> String {
    let device = device(view);
    let rnr = device.rnr_retries.map_or("for ever".to_string(), |n| format!("{n} times"));
    let counted: Vec<_> = device.counted.iter().map(|(name, n)| format!(", {name} {n}")).collect();
    let (at, ends, retries) = (&view.at, view.ends, device.retries);
    let text = format!(
        "{at}: ends that met {ends}, sends again {retries} times without an answer, {rnr} without a receive buffer"
    );
    format!("RDMA device {text}{}", counted.concat())
}

/// The JSON form of a connection.
#[derive(Debug, Serialize)]
struct Connection {
    fd: i32,
    role: &'static str,
    local: String,
    remote: String,
    state: &'static str,
    carrier: u64,
    inode: u32,
    send: Half,
    receive: Half,
    messages: Messages,
    /// Between hosts.
    queue_pair: Option<QueuePair>,
    /// By which port it met last, also when its queue pair has gone since.
    device: Option<MetBy>,
    /// The other end, where its process is of this machine and its page may be read.
    peer: Option<Peer>,
}

/// The JSON form of the other end of a connection.
#[derive(Debug, Serialize)]
struct Peer {
    pid: u32,
    program: String,
    uid: u32,
    /// Why it is not on SDP, by its own account.
    send_reason: Option<String>,
    receive_reason: Option<String>,
}

fn peer(view: &PeerView) -> Peer {
    let [send_reason, receive_reason] =
        view.reasons.map(|reason| reason.map(|code| ReasonCode(code).to_string()));
    let PeerView { pid, program, uid, .. } = view.clone();
    Peer { pid, program, uid, send_reason, receive_reason }
}

/// What the other end says of a connection that is not on SDP both ways, in a line.
pub(crate) fn peer_note(row: &RowView) -> Option<String> {
    let is_tcp = |half: &HalfView| !half.is_sdp() && half.reason.is_some();
    let view = row.peer.as_ref().filter(|_| row.halves.iter().any(is_tcp))?;
    let mut said: Vec<String> =
        view.reasons.iter().flatten().map(|code| ReasonCode(*code).to_string()).collect();
    said.dedup();
    let said = if said.is_empty() { "no reason".to_string() } else { said.join(", ") };
    let PeerView { pid, program, uid, .. } = view;
    Some(format!("the other end, process {pid} ({program}, uid {uid}), says: {said}"))
}

/// The JSON form of the messages of a connection, or of a process.
#[derive(Debug, Serialize)]
struct Messages {
    sent: u64,
    received: u64,
    /// Messages both ways: the smaller number.
    requests: u64,
    /// Those sent, by size.
    sizes: Vec<Size>,
    ring_full: Full,
}

/// How often a sender found no room: this end's, and the other's, where a process of this machine tells.
#[derive(Debug, Serialize)]
struct Full {
    own: u64,
    peer: Option<u64>,
}

impl Messages {
    fn of_row(row: &RowView) -> Self {
        let received = row.counter(Direction::Receive, Counter::BCopy);
        Self::new(&row.messages, received, row.requests(), row.peer_full)
    }

    fn of_process(view: &ProcessView) -> Self {
        let peers: Vec<u64> = view.rows.iter().filter_map(|row| row.peer_full).collect();
        let peer = (!peers.is_empty()).then(|| peers.iter().fold(0, |n, m| m.wrapping_add(n)));
        let received = view.sums.counter(Direction::Receive, Counter::BCopy);
        Self::new(&view.sums.messages, received, view.sums.requests(), peer)
    }

    fn new(sent: &MessagesView, received: u64, requests: u64, peer: Option<u64>) -> Self {
        let report::Messages { sizes, ring_full: own } = report::Messages::of(sent);
        Self { sent: sent.sent(), received, requests, sizes, ring_full: Full { own, peer } }
    }

    /// In a line; nothing without messages.
    fn note(&self) -> Option<String> {
        let Self { sent, received, requests, ring_full: Full { own, peer }, sizes } = self;
        if *sent == 0 && *received == 0 {
            return None;
        }
        let sizes = report::Messages { sizes: sizes.clone(), ring_full: 0 }.by_size();
        let sizes = if sizes.is_empty() { sizes } else { format!(" ({sizes})") };
        let peer = peer.map_or(String::new(), |n| format!(", peer's {n}"));
        Some(format!(
            "messages: {sent} sent{sizes}, {received} received, {requests} requests; ring full: own {own}{peer}"
        ))
    }
}

/// The JSON form of the rules that a process goes by.
#[derive(Debug, Serialize)]
struct RulesForm {
    state: &'static str,
    count: u32,
    errors: u32,
    changes: u32,
    since_s: u64,
}

/// The state of the rule file.
const fn rule_state(rules: &Rules) -> &'static str {
    match rules.state {
        0 => "no-file",
        1 => "in-force",
        2 => "errors",
        3 => "unreadable",
        4 => "out-of-sight",
        _ => "unknown",
    }
}

/// Why the file that is there is not in force, if so.
fn rules_note(rules: &Rules) -> Option<String> {
    let why = match rule_state(rules) {
        "errors" => format!("has changed and has {} errors (sdp config check)", rules.errors),
        "unreadable" => "cannot be read any more".to_string(),
        "out-of-sight" => "is not looked at in another root directory".to_string(),
        _ => return None,
    };
    Some(format!("the rule file {why}: the former {} rules hold", rules.rules))
}

/// The settings that are not the default, with their sources; nothing while all are.
fn tunables_note(view: &ProcessView) -> Option<String> {
    let mut set = asking::in_force(&view.tuned);
    set.retain(|one| one.origin != "default");
    let one = |one: &InForce| {
        format!(
            "{} {} ({}{})",
            one.key,
            one.value,
            one.origin,
            crate::tune::scope_note(one.key, &one.value)
        )
    };
    let all: Vec<_> = set.iter().map(one).collect();
    (!all.is_empty()).then(|| format!("tunables: {}", all.join(", ")))
}

/// The JSON form of a process.
#[derive(Debug, Serialize)]
struct ProcessForm<'a> {
    pid: u32,
    program: &'a str,
    uid: u32,
    version: &'a str,
    /// Seconds since its first stream connection.
    age_s: f64,
    rules: RulesForm,
    tunables: Vec<InForce>,
    seen: i64,
    sdp: i64,
    tcp: i64,
    bytes: Bytes,
    reasons: BTreeMap<String, i64>,
    demotions: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    rowless: u64,
    messages: Messages,
    /// The first of `devices`.
    device: Option<DeviceForm<'a>>,
    devices: Vec<DevicePortForm<'a>>,
    connections: Vec<Connection>,
}

fn lane(half: &HalfView) -> &'static str {
    if half.is_sdp() { "sdp" } else { "tcp" }
}

fn half(row: &RowView, direction: Direction) -> Half {
    let half = &row.halves[direction as usize];
    Half {
        lane: lane(half),
        fabric: names::fabric(half.fabric),
        mode: names::mode(half.mode),
        reason: half.reason.map(|code| ReasonCode(code).to_string()),
        sdp_bytes: row.counter(direction, Counter::SdpBytes),
        tcp_bytes: row.counter(direction, Counter::TcpBytes),
        queued: half.queued,
        credits: half.credits,
        threshold: half.threshold,
        promoted: half.promoted,
        demoted: half.demoted,
    }
}

fn connection(row: &RowView) -> Connection {
    Connection {
        fd: row.fd,
        role: names::role(row.role),
        local: names::end(&row.local),
        remote: names::end(&row.remote),
        state: names::state(row.state),
        carrier: row.carrier,
        inode: row.inode,
        send: half(row, Direction::Send),
        receive: half(row, Direction::Receive),
        messages: Messages::of_row(row),
        queue_pair: queue_pair(row),
        device: row.device.clone().map(|DevicePort { name, port }| MetBy { name, port }),
        peer: row.peer.as_ref().map(peer),
    }
}

/// Seconds since the process made its page: at its first stream connection.
fn age_s(view: &ProcessView) -> f64 {
    crate::sys::boottime_ns().saturating_sub(view.born_ns) as f64 / 1e9
}

fn form(process: &Process) -> ProcessForm<'_> {
    let view = &process.view;
    let sums = &view.sums;
    ProcessForm {
        pid: process.pid,
        program: &view.program,
        uid: process.uid,
        version: &view.version,
        age_s: age_s(view),
        rules: RulesForm {
            state: rule_state(&view.rules),
            count: view.rules.rules,
            errors: view.rules.errors,
            changes: view.rules.changes,
            since_s: view.rules.since_s,
        },
        tunables: asking::in_force(&view.tuned),
        seen: sums.seen,
        sdp: sums.sdp,
        tcp: sums.seen.wrapping_sub(sums.sdp),
        bytes: Bytes::of(sums),
        reasons: words(&sums.reasons),
        demotions: words(&sums.demotions),
        refused: words(&sums.refused),
        rowless: sums.rowless,
        messages: Messages::of_process(view),
        device: view.devices.first().map(device),
        devices: view.devices.iter().map(device_port).collect(),
        connections: view.rows.iter().map(connection).collect(),
    }
}

fn json(processes: &[Process], since_s: Option<f64>) -> Result<String, Failure> {
    let form = serde_json::json!({
        "schema": SCHEMA,
        "since_reset_s": since_s,
        "processes": processes.iter().map(form).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&form);
    text.map(|t| t + "\n").map_err(|e| Failure::new("no JSON form", e))
}

/// `shm/buffered` or why not.
fn way(half: &HalfView) -> String {
    if half.is_sdp() {
        return format!("{}/{}", names::fabric(half.fabric), names::mode(half.mode));
    }
    match half.reason {
        Some(code) => format!("tcp:{}", ReasonCode(code)),
        None => "tcp".to_string(),
    }
}

/// The queue pair of a connection, in a line.
fn queue_pair_note(row: &RowView) -> Option<String> {
    let fd = row.fd;
    let Some(queue_pair) = queue_pair(row) else {
        let device = row.device.as_ref()?;
        return Some(format!("fd {fd}: no queue pair now, the last one was of {device}"));
    };
    let QueuePair { number, peer_number, own_credits, peer_credits } = queue_pair;
    let device = row.device.as_ref().map_or(String::new(), |device| format!(" of {device}"));
    Some(format!(
        "fd {fd}: queue pair {number} to {peer_number}{device}, credits {own_credits} own, {peer_credits} peer's"
    ))
}

/// Columns that the table needs.
const TABLE: usize = 176;

/// A connection in lines of its own, for a narrow terminal.
fn block(row: &RowView, width: usize) -> String {
    let mut out = String::new();
    if row.role == Role::Listener as u8 {
        let at = format!("fd {} LISTEN {} {}", row.fd, names::end(&row.local), way(&row.halves[0]));
        let _ = writeln!(out, "  {}", wrapped(&at, 4, width));
        return out;
    }
    let ends = format!(
        "fd {} {} {} to {}",
        row.fd,
        names::state(row.state),
        names::end(&row.local),
        names::end(&row.remote)
    );
    let _ = writeln!(out, "  {}", wrapped(&ends, 4, width));
    for (direction, word) in [(Direction::Send, "out"), (Direction::Receive, "in ")] {
        let half = &row.halves[direction as usize];
        let moved = row
            .counter(direction, Counter::SdpBytes)
            .wrapping_add(row.counter(direction, Counter::TcpBytes));
        let line = format!(
            "{word} {}: {}, {} queued, {} credits, threshold {}",
            way(half),
            human_bytes(moved),
            half.queued,
            half.credits,
            half.threshold
        );
        let _ = writeln!(out, "    {}", wrapped(&line, 6, width));
    }
    let notes = [peer_note(row), Messages::of_row(row).note(), queue_pair_note(row)];
    for note in notes.into_iter().flatten() {
        let _ = writeln!(out, "    {}", wrapped(&note, 6, width));
    }
    out
}

fn text(processes: &[Process], since_s: Option<f64>, width: usize) -> String {
    let mut out = String::new();
    if let Some(since_s) = since_s {
        let line =
            format!("since the reset {since_s:.0} s ago; queued, credits and ways are of now");
        let _ = writeln!(out, "{}", wrapped(&line, 2, width));
    }
    for process in processes {
        heading(&mut out, process, width);
        if width < TABLE {
            out.extend(process.view.rows.iter().map(|row| block(row, width)));
            continue;
        }
        if !process.view.rows.is_empty() {
            table(&mut out, &process.view.rows);
        }
    }
    out
}

/// What a process has moved in all, and notes about it.
fn heading(out: &mut String, process: &Process, width: usize) {
    let sums = &process.view.sums;
    let bytes = Bytes::of(sums);
    let line = format!(
        "{} {} (uid {}, library {}, {:.0} s): {} seen, {} SDP; SDP {} sent, {} received; TCP {} sent, {} received",
        process.pid,
        process.view.program,
        process.uid,
        process.view.version,
        age_s(&process.view),
        sums.seen,
        sums.sdp,
        human_bytes(bytes.sdp_sent),
        human_bytes(bytes.sdp_received),
        human_bytes(bytes.tcp_sent),
        human_bytes(bytes.tcp_received),
    );
    let _ = writeln!(out, "{}", wrapped(&line, 2, width));
    if let Some(note) = rules_note(&process.view.rules) {
        let _ = writeln!(out, "  {}", wrapped(&note, 4, width));
    }
    if let Some(note) = tunables_note(&process.view) {
        let _ = writeln!(out, "  {}", wrapped(&note, 4, width));
    }
    let messages = Messages::of_process(&process.view).note();
    let devices = process.view.devices.iter().map(device_note);
    for note in devices.chain(messages) {
        let _ = writeln!(out, "  {}", wrapped(&note, 4, width));
    }
}

/// A table of connections, with notes under connections that have some.
fn table(out: &mut String, rows: &[RowView]) {
    let _ = writeln!(
        out,
        "  {:>5} {:<22} {:<22} {:<11} {:<24} {:>10} {:>8} {:<24} {:>10} {:>8} {:>7} {:>9}",
        "fd",
        "local",
        "remote",
        "state",
        "sending by",
        "sent",
        "queued",
        "receiving by",
        "received",
        "queued",
        "credits",
        "threshold"
    );
    for row in rows {
        let moved =
            |d| row.counter(d, Counter::SdpBytes).wrapping_add(row.counter(d, Counter::TcpBytes));
        let [send, receive] = &row.halves;
        let _ = writeln!(
            out,
            "  {:>5} {:<22} {:<22} {:<11} {:<24} {:>10} {:>8} {:<24} {:>10} {:>8} {:>7} {:>9}",
            row.fd,
            names::end(&row.local),
            names::end(&row.remote),
            names::state(row.state),
            way(send),
            human_bytes(moved(Direction::Send)),
            send.queued,
            way(receive),
            human_bytes(moved(Direction::Receive)),
            receive.queued,
            send.credits,
            send.threshold,
        );
        let notes = [peer_note(row), Messages::of_row(row).note(), queue_pair_note(row)];
        for note in notes.into_iter().flatten() {
            let _ = writeln!(out, "        {note}");
        }
    }
}

/// Said where no process is shown.
fn nothing() -> String {
    format!("no process with the library has a stream connection{}\n", others_note())
}

/// That there may be more than this user is shown; empty for root.
pub(crate) fn others_note() -> &'static str {
    if sys::own_uid() == 0 { "" } else { "; other users' processes are shown to root only" }
}

/// Why there is nothing to say of a process.
pub(crate) fn why_no_page(pid: u32) -> String {
    let why = if std::path::Path::new("/proc").join(pid.to_string()).exists() {
        "no counters: not started with the library, no stream connection yet, or another user's"
    } else {
        "no such process"
    };
    format!("process {pid}: {why}")
}

/// Runs the sub-command.
///
/// # Errors
/// `--pid` names a process without a page, or one that may not be looked at.
pub fn main(options: &Options) -> Result<(), Failure> {
    if let Some(of) = &options.trace {
        return trace::main(of, options.json);
    }
    if options.reset {
        return since::remember(&procs::find(None));
    }
    let reset = options.since_reset.then(since::Reset::load).transpose()?;
    let mut processes = procs::find(options.pid);
    if let (Some(pid), []) = (options.pid, processes.as_slice()) {
        return Err(Failure(why_no_page(pid)));
    }
    let since_s = reset.as_ref().map(since::Reset::age_s);
    if let Some(reset) = &reset {
        reset.until(&mut processes);
    }
    let out = if options.json {
        json(&processes, since_s)?
    } else if options.prometheus {
        crate::scrape::of_processes(&processes)
    } else {
        let nothing = if processes.is_empty() { nothing() } else { String::new() };
        text(&processes, since_s, sys::table_width()) + &nothing
    };
    crate::print(&out);
    Ok(())
}

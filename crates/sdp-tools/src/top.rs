//! `sdp top`: connections and processes by the bytes that they move each second.
//!
//! Two looks at the published pages give rates; nothing is asked of the processes. On a terminal it
//! is a screen with keys, elsewhere a table, or a line of JSON, for each interval. Columns that do
//! not fit the width are left out one by one, down to twenty columns.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use sdp_stats::reader::{ReasonCode, RowView};
use sdp_stats::{Counter, Direction, Role};
use serde::Serialize;

use crate::procs::{self, Process};
use crate::terminal::{self, Input, Key, Terminal};
use crate::{Failure, names, sys};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// The key by which the list is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Bytes each second, both ways
    Rate,
    /// Bytes sent each second
    Sent,
    /// Bytes received each second
    Received,
    /// Bytes that wait to be read
    Queued,
    /// Process id
    Pid,
}

/// Which connections are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lanes {
    /// All
    All,
    /// With an SDP lane
    Sdp,
    /// Without
    Tcp,
}

/// Options of `sdp top`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only this process
    #[arg(long)]
    pub pid: Option<u32>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Sort by this
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Order::Rate)]
    pub sort: Order,
    /// List connections that have an SDP lane, those that have none, or all
    #[arg(long, value_enum, value_name = "LANES", default_value_t = Lanes::All)]
    pub lanes: Lanes,
    /// A line for each process instead of each connection
    #[arg(long)]
    pub processes: bool,
    /// Print one table, and end
    #[arg(long, conflicts_with = "batch")]
    pub once: bool,
    /// Print so many tables; 0: until interrupted
    #[arg(long, value_name = "COUNT")]
    pub batch: Option<u64>,
    /// Print JSON, a line for each table
    #[arg(long)]
    pub json: bool,
}

/// One line: a connection, or all of a process. Field names are the JSON form.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Line {
    pub pid: u32,
    pub program: String,
    /// Empty for a process.
    pub local: String,
    pub remote: String,
    /// `sdp`, `tcp`, `sdp>` or `<sdp` for one direction only; of a process, how many of how many.
    pub lane: String,
    pub sent_per_s: f64,
    pub received_per_s: f64,
    pub queued: u64,
    /// Why a direction is not on SDP; empty if both are.
    pub reason: String,
}

/// The result of one look. Field names are the JSON form.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Look {
    pub schema: u32,
    pub interval_s: f64,
    pub processes: usize,
    /// Open connection ends, with a lane and without.
    pub sdp: usize,
    pub tcp: usize,
    /// Connections that were refused so far because rules want SDP or nothing.
    pub refused: u64,
    pub sdp_bytes_per_s: f64,
    pub tcp_bytes_per_s: f64,
    pub lines: Vec<Line>,
}

/// Bytes of a row: by SDP and by TCP, sent and received.
type Bytes = [[u64; 2]; 2];

fn bytes_of(row: &RowView) -> Bytes {
    [Counter::SdpBytes, Counter::TcpBytes]
        .map(|c| [Direction::Send, Direction::Receive].map(|d| row.counter(d, c)))
}

/// Which connection a row is of, from one look to the next.
type Identity = (u32, u64, i32);

/// Remembers the last look.
#[derive(Debug, Default)]
pub struct Watch {
    before: HashMap<Identity, Bytes>,
    at: Option<Instant>,
}

impl Watch {
    /// The present connections, with rates since the last look.
    pub fn look(&mut self, options: &Options) -> Look {
        let now = Instant::now();
        let interval_s = self.at.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.compare(&procs::find(options.pid), options, interval_s)
    }

    fn compare(&mut self, processes: &[Process], options: &Options, interval_s: f64) -> Look {
        let mut look = Look {
            schema: SCHEMA,
            interval_s,
            processes: processes.len(),
            sdp: 0,
            tcp: 0,
            refused: 0,
            sdp_bytes_per_s: 0.0,
            tcp_bytes_per_s: 0.0,
            lines: Vec::new(),
        };
        let mut now = HashMap::new();
        let rate = |n: u64| if interval_s > 0.0 { n as f64 / interval_s } else { 0.0 };
        for process in processes {
            let mut all = blank(process);
            let refused = process.view.sums.refused.iter();
            look.refused = refused.fold(look.refused, |sum, n| sum.wrapping_add(*n));
            let (mut with, mut open) = (0, 0);
            for row in &process.view.rows {
                if row.role == Role::Listener as u8 {
                    continue;
                }
                let identity = (process.pid, row.carrier, row.fd);
                let bytes = bytes_of(row);
                let before = self.before.get(&identity).copied().unwrap_or(match interval_s {
                    // The first look has no rates.
                    0.0 => bytes,
                    _ => [[0; 2]; 2],
                });
                now.insert(identity, bytes);
                let moved = |lane: usize, way: usize| {
                    rate(bytes[lane][way].saturating_sub(before[lane][way]))
                };
                look.sdp_bytes_per_s += moved(0, 0) + moved(0, 1);
                look.tcp_bytes_per_s += moved(1, 0) + moved(1, 1);
                let is_sdp = row.has_live_lane();
                open += 1;
                with += usize::from(is_sdp);
                let line = Line {
                    sent_per_s: moved(0, 0) + moved(1, 0),
                    received_per_s: moved(0, 1) + moved(1, 1),
                    ..of_row(process, row)
                };
                all.sent_per_s += line.sent_per_s;
                all.received_per_s += line.received_per_s;
                all.queued = all.queued.saturating_add(line.queued);
                let is_wanted = match options.lanes {
                    Lanes::All => true,
                    Lanes::Sdp => is_sdp,
                    Lanes::Tcp => !is_sdp,
                };
                if is_wanted && !options.processes {
                    look.lines.push(line);
                }
            }
            look.sdp += with;
            look.tcp += open - with;
            if options.processes {
                all.lane = format!("{with}/{open}");
                look.lines.push(all);
            }
        }
        self.before = now;
        sort(&mut look.lines, options.sort);
        look
    }
}

fn blank(process: &Process) -> Line {
    Line {
        pid: process.pid,
        program: process.view.program.clone(),
        local: String::new(),
        remote: String::new(),
        lane: String::new(),
        sent_per_s: 0.0,
        received_per_s: 0.0,
        queued: 0,
        reason: String::new(),
    }
}

fn of_row(process: &Process, row: &RowView) -> Line {
    let [send, receive] = &row.halves;
    let lane = match (send.is_sdp(), receive.is_sdp()) {
        (true, true) => "sdp",
        (true, false) => "sdp>",
        (false, true) => "<sdp",
        (false, false) => "tcp",
    };
    let of = |half: &sdp_stats::reader::HalfView| half.reason.filter(|_| !half.is_sdp());
    let reason = of(send).or_else(|| of(receive));
    Line {
        local: names::end(&row.local),
        remote: names::end(&row.remote),
        lane: lane.to_string(),
        queued: u64::from(send.queued) + u64::from(receive.queued),
        reason: reason.map(|code| ReasonCode(code).to_string()).unwrap_or_default(),
        ..blank(process)
    }
}

fn sort(lines: &mut [Line], order: Order) {
    let key = |line: &Line| match order {
        Order::Rate => line.sent_per_s + line.received_per_s,
        Order::Sent => line.sent_per_s,
        Order::Received => line.received_per_s,
        Order::Queued => line.queued as f64,
        Order::Pid => -f64::from(line.pid),
    };
    // Among equals the order stays from one look to the next.
    lines.sort_by(|a, b| {
        let by_key = key(b).total_cmp(&key(a));
        by_key.then_with(|| (a.pid, &a.local, &a.remote).cmp(&(b.pid, &b.local, &b.remote)))
    });
}

/// Bytes each second in five columns: `0`, `999`, `1.2k`, `340M`.
fn rate(per_s: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let mut value = per_s;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0}"),
        _ if value < 9.95 => format!("{value:.1}{}", UNITS[unit]),
        _ => format!("{value:.0}{}", UNITS[unit]),
    }
}

/// What is in a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Number,
    Text,
    /// Address and port.
    End,
}

/// A column: its head, its width, how wide it may become, the least width of the table in which it has a place.
struct Column {
    head: &'static str,
    width: usize,
    most: usize,
    from: usize,
    cell: Cell,
    value: fn(&Line) -> String,
}

const fn column(
    head: &'static str,
    (width, most, from): (usize, usize, usize),
    cell: Cell,
    value: fn(&Line) -> String,
) -> Column {
    Column { head, width, most, from, cell, value }
}

/// An IPv6 address in brackets, and a port.
const END_MOST: usize = 47;

const COLUMNS: [Column; 9] = [
    column("PID", (7, 7, 40), Cell::Number, |l| l.pid.to_string()),
    column("PROGRAM", (9, 20, 0), Cell::Text, |l| l.program.clone()),
    column("LANE", (5, 9, 30), Cell::Text, |l| l.lane.clone()),
    column("SENT/S", (7, 7, 0), Cell::Number, |l| rate(l.sent_per_s)),
    column("RECV/S", (7, 7, 24), Cell::Number, |l| rate(l.received_per_s)),
    column("QUEUE", (6, 6, 70), Cell::Number, |l| rate(l.queued as f64)),
    column("LOCAL", (21, END_MOST, 100), Cell::End, |l| l.local.clone()),
    column("REMOTE", (21, END_MOST, 66), Cell::End, |l| l.remote.clone()),
    column("REASON", (16, 20, 74), Cell::Text, |l| l.reason.clone()),
];

/// Text in so many columns: the end is cut off, of an end's address the middle; the rest is filled.
fn fit(text: &str, width: usize, cell: Cell) -> String {
    let len = text.chars().count();
    let port = text.rfind(':').map_or("", |at| &text[at..]);
    let cut: String = match cell {
        Cell::End if len > width && port.len() + 2 < width => {
            let kept = width - port.len() - 1;
            text.chars().take(kept).chain(['…']).chain(port.chars()).collect()
        }
        _ => text.chars().take(width).collect(),
    };
    if cell == Cell::Number { format!("{cut:>width$}") } else { format!("{cut:<width$}") }
}

/// The columns that fit, and their widths: where there is room to spare, as wide as their values are.
fn columns(width: usize, lines: &[Line]) -> Vec<(&'static Column, usize)> {
    let mut used = 0;
    let mut chosen = Vec::new();
    for column in &COLUMNS {
        let needs = column.width + usize::from(!chosen.is_empty());
        if column.from <= width && (used + needs <= width || column.head == "REASON") {
            used += needs;
            chosen.push((column, column.width));
        }
    }
    let mut spare = width.saturating_sub(used);
    for (column, wide) in &mut chosen {
        let longest = lines.iter().map(|l| (column.value)(l).chars().count()).max().unwrap_or(0);
        let more = longest.min(column.most).saturating_sub(*wide).min(spare);
        *wide += more;
        spare -= more;
    }
    chosen
}

/// Whether the list is sorted by a column.
fn is_key(head: &str, order: Order) -> bool {
    match order {
        Order::Rate => matches!(head, "SENT/S" | "RECV/S"),
        Order::Sent => head == "SENT/S",
        Order::Received => head == "RECV/S",
        Order::Queued => head == "QUEUE",
        Order::Pid => head == "PID",
    }
}

fn head_of(width: usize, columns: &[(&Column, usize)], order: Order) -> String {
    let cell = |(column, wide): &(&Column, usize)| {
        let mark = if is_key(column.head, order) { "▼" } else { "" };
        fit(&format!("{}{mark}", column.head), *wide, column.cell)
    };
    let cells: Vec<_> = columns.iter().map(cell).collect();
    fit(&cells.join(" "), width, Cell::Text).trim_end().to_string()
}

fn line_of(line: &Line, width: usize, columns: &[(&Column, usize)]) -> String {
    let cells: Vec<_> = columns.iter().map(|(c, w)| fit(&(c.value)(line), *w, c.cell)).collect();
    fit(&cells.join(" "), width, Cell::Text).trim_end().to_string()
}

/// The sums above the table, in as many lines as the width makes of them.
fn sums(look: &Look, width: usize) -> Vec<String> {
    let mut parts = vec![
        format!("{} processes", look.processes),
        format!("{} SDP", look.sdp),
        format!("{} TCP", look.tcp),
        format!("SDP {}B/s", rate(look.sdp_bytes_per_s)),
        format!("TCP {}B/s", rate(look.tcp_bytes_per_s)),
    ];
    if look.refused > 0 {
        parts.insert(3, format!("{} refused", look.refused));
    }
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(last) if last.len() + 2 + part.len() <= width => {
                let _ = write!(last, "  {part}");
            }
            _ => lines.push(fit(&part, part.len().min(width), Cell::Text)),
        }
    }
    lines
}

fn table(look: &Look, width: usize, order: Order) -> String {
    let columns = columns(width, &look.lines);
    let mut out = sums(look, width).join("\n") + "\n" + &head_of(width, &columns, order) + "\n";
    for line in &look.lines {
        out += &line_of(line, width, &columns);
        out.push('\n');
    }
    out
}

/// What the keys do, and what the columns are.
const HELP: [&str; 16] = [
    "q         end",
    "space     hold the screen, or let it go on",
    "v         processes, or connections",
    "l         all, with an SDP lane, without one",
    "r s d w p sort by rate, sent, received, queue, pid",
    "arrows    up and down the list; page up and down",
    "? or h    this page, or the list",
    "",
    "LANE      sdp: both directions; sdp> and <sdp: only sending, only",
    "          receiving; tcp: neither; of a process: how many of how many",
    "SENT/S    bytes sent each second",
    "RECV/S    bytes received each second",
    "QUEUE     bytes that wait to be read, in both directions",
    "REASON    why a direction is not on SDP: docs/reason-codes.md, man 7 sdp",
    "",
    "More of a connection, and the other end's reason: sdp stat",
];

// ---- the screen --------------------------------------------------------------------------------

/// The state that the keys have changed.
struct Screen {
    options: Options,
    first: usize,
    is_paused: bool,
    is_help: bool,
}

impl Screen {
    /// The lines of the screen, as many as there are.
    fn draw(&self, look: &Look, columns: usize, rows: usize) -> String {
        let mut lines = sums(look, columns);
        // On a small screen the list comes first.
        lines.truncate((rows / 4).max(1));
        if self.is_paused
            && let Some(first) = lines.first_mut()
        {
            *first = fit(&format!("PAUSED  {first}"), columns, Cell::Text).trim_end().to_string();
        }
        let room = rows.saturating_sub(lines.len() + 2);
        let first = self.first.min(look.lines.len().saturating_sub(room));
        let end = look.lines.len().min(first + room);
        let shown = &look.lines[first..end];
        let table = self::columns(columns, shown);
        let head = head_of(columns, &table, self.options.sort);
        lines.push(format!("\x1b[7m{}\x1b[0m", fit(&head, columns, Cell::Text)));
        if self.is_help {
            let help = HELP.iter().map(|l| fit(l, columns, Cell::Text).trim_end().to_string());
            lines.extend(help.take(room));
        } else {
            lines.extend(shown.iter().map(|l| line_of(l, columns, &table)));
        }
        lines.truncate(rows.saturating_sub(1));
        lines.resize(rows.saturating_sub(1), String::new());
        lines.push(self.keys(columns));
        // Each line is cleared behind its text: no flicker, and nothing of the last picture stays.
        let mut out = String::from("\x1b[H");
        out += &lines.join("\x1b[K\r\n");
        out += "\x1b[K\x1b[J";
        out
    }

    /// The keys, as many as have room.
    fn keys(&self, width: usize) -> String {
        let lanes = match self.options.lanes {
            Lanes::All => "l all",
            Lanes::Sdp => "l sdp",
            Lanes::Tcp => "l tcp",
        };
        let view = if self.options.processes { "v conns" } else { "v procs" };
        let pause = if self.is_paused { "space go" } else { "space hold" };
        let sorts = ["r rate", "s sent", "d recv", "w wait", "p pid"];
        let mut out = String::new();
        for key in ["q end", "? help", pause, view, lanes].into_iter().chain(sorts) {
            let gap = if out.is_empty() { "" } else { "  " };
            if out.len() + gap.len() + key.len() <= width {
                out = out + gap + key;
            }
        }
        out
    }

    /// False: the end.
    fn press(&mut self, key: Key) -> bool {
        const PAGE: usize = 10;
        match key {
            Key::Char('q' | 'Q') => return false,
            Key::Char('v') => self.options.processes = !self.options.processes,
            Key::Char('l') => {
                self.options.lanes = match self.options.lanes {
                    Lanes::All => Lanes::Sdp,
                    Lanes::Sdp => Lanes::Tcp,
                    Lanes::Tcp => Lanes::All,
                };
            }
            Key::Char('r') => self.options.sort = Order::Rate,
            Key::Char('s') => self.options.sort = Order::Sent,
            Key::Char('d') => self.options.sort = Order::Received,
            Key::Char('w') => self.options.sort = Order::Queued,
            Key::Char('p') => self.options.sort = Order::Pid,
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Char('?' | 'h') => self.is_help = !self.is_help,
            Key::Up => self.first = self.first.saturating_sub(1),
            Key::Down => self.first = self.first.saturating_add(1),
            Key::PageUp => self.first = self.first.saturating_sub(PAGE),
            Key::PageDown => self.first = self.first.saturating_add(PAGE),
            Key::Char(_) | Key::Other => {}
        }
        true
    }
}

fn run_screen(options: &Options) -> io::Result<()> {
    let terminal = Terminal::take()?;
    let mut screen =
        Screen { options: options.clone(), first: 0, is_paused: false, is_help: false };
    let mut watch = Watch::default();
    let mut look = watch.look(&screen.options);
    let interval = Duration::from_secs_f64(options.interval);
    let mut next = Instant::now() + interval.min(Duration::from_millis(300));
    loop {
        let (columns, rows) = sys::terminal_size().unwrap_or((80, 24));
        let picture = screen.draw(&look, columns, rows.max(2));
        let mut out = io::stdout().lock();
        out.write_all(picture.as_bytes()).and_then(|()| out.flush())?;
        drop(out);
        match terminal.wait(next.saturating_duration_since(Instant::now())) {
            Input::End => return Ok(()),
            Input::Key(key) => {
                if !screen.press(key) {
                    return Ok(());
                }
                let is_other_list = matches!(key, Key::Char('v' | 'l'));
                sort(&mut look.lines, screen.options.sort);
                screen.first = screen.first.min(look.lines.len().saturating_sub(1));
                if is_other_list && !screen.is_paused {
                    next = Instant::now();
                }
            }
            Input::Resized => {}
            Input::Nothing => {
                next = Instant::now() + interval;
                if !screen.is_paused {
                    look = watch.look(&screen.options);
                }
            }
        }
    }
}

/// Runs the sub-command.
///
/// # Errors
/// The interval makes no sense, or the terminal cannot be used.
pub fn main(options: &Options) -> Result<(), Failure> {
    if !(0.05..=86_400.0).contains(&options.interval) {
        return Err(Failure("--interval takes 0.05 to 86400 seconds".into()));
    }
    let is_batch = options.once || options.batch.is_some() || options.json;
    if !is_batch && terminal::is_terminal() {
        return run_screen(options).map_err(|e| Failure::new("terminal", e));
    }
    let count = options.batch.unwrap_or(1);
    let mut watch = Watch::default();
    watch.look(options);
    let mut done = 0;
    loop {
        std::thread::sleep(Duration::from_secs_f64(options.interval));
        let look = watch.look(options);
        let text = match options.json {
            true => {
                let text = serde_json::to_string(&look);
                text.map_err(|e| Failure::new("no JSON form", e))? + "\n"
            }
            false => {
                let gap = if done > 0 { "\n" } else { "" };
                format!("{gap}{}", table(&look, sys::terminal_width(), options.sort))
            }
        };
        done += 1;
        if crate::try_print(&text).is_err() || done == count {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pid: u32, sent: f64) -> Line {
        Line {
            pid,
            program: "a-long-name-of-a-program".into(),
            local: "[1234:5678:9abc:def0:1234:5678:9abc:def0]:65535".into(),
            remote: "255.255.255.255:65535".into(),
            lane: "sdp".into(),
            sent_per_s: sent,
            received_per_s: 1e300,
            queued: u64::MAX,
            reason: "peer-not-listening".into(),
        }
    }

    fn look() -> Look {
        Look {
            schema: SCHEMA,
            interval_s: 1.0,
            processes: 2,
            sdp: 3,
            tcp: 10_000,
            refused: 0,
            sdp_bytes_per_s: 1.25e9,
            tcp_bytes_per_s: 0.0,
            lines: (0..10_000).map(|n| line(n, f64::from(n))).collect(),
        }
    }

    fn options() -> Options {
        Options {
            pid: None,
            interval: 1.0,
            sort: Order::Rate,
            lanes: Lanes::All,
            processes: false,
            once: false,
            batch: None,
            json: false,
        }
    }

    #[test]
    fn every_line_fits_every_width() {
        let mut look = look();
        look.lines.truncate(3);
        for width in 20..200 {
            let text = table(&look, width, Order::Rate);
            let widest = text.lines().map(|l| l.chars().count()).max();
            assert!(widest <= Some(width), "{width}: {widest:?}");
        }
        let head = |width| head_of(width, &columns(width, &[]), Order::Pid);
        assert!(head(80).contains("REMOTE") && head(80).contains("REASON"));
        assert_eq!(head(20), "PROGRAM    SENT/S");
    }

    #[test]
    fn a_cut_address_keeps_its_port_and_a_wide_screen_shows_it_whole() {
        let look = Look { lines: vec![line(1, 1.0)], ..look() };
        let text = |width| table(&look, width, Order::Sent);
        assert!(
            !text(120).contains("def0]:65535") && text(120).contains("…:65535"),
            "{}",
            text(120)
        );
        assert!(
            text(180).contains("[1234:5678:9abc:def0:1234:5678:9abc:def0]:65535"),
            "{}",
            text(180)
        );
        assert!(text(180).contains("a-long-name-of-a-pro") && text(120).contains("SENT/S▼"));
    }

    #[test]
    fn a_held_screen_says_so_and_the_keys_fit_eighty_columns() {
        let mut screen = Screen { options: options(), first: 0, is_paused: false, is_help: false };
        for key in ["q end", "? help", "space hold", "v procs", "l all", "r rate", "p pid"] {
            assert!(screen.keys(80).contains(key), "{key}: {}", screen.keys(80));
        }
        assert!(!screen.draw(&look(), 80, 24).contains("PAUSED"));
        assert!(screen.press(Key::Char(' ')) && screen.press(Key::Char('?')));
        for (columns, rows) in [(80, 24), (20, 5)] {
            let picture = screen.draw(&look(), columns, rows);
            assert!(picture.contains("PAUSED"), "{picture}");
            assert_eq!(picture.matches("\r\n").count(), rows - 1);
        }
        assert!(screen.draw(&look(), 80, 24).contains("sort by rate"));
    }

    #[test]
    fn the_screen_has_as_many_lines_as_the_terminal() {
        let look = look();
        let mut screen =
            Screen { options: options(), first: usize::MAX, is_paused: false, is_help: false };
        for (columns, rows) in [(80, 24), (20, 5), (20, 2), (200, 60)] {
            let picture = screen.draw(&look, columns, rows);
            assert_eq!(picture.matches("\r\n").count(), rows - 1, "{columns} × {rows}");
            assert!(picture.contains("q end"), "{columns} × {rows}: keys are shown");
        }
        assert!(!screen.press(Key::Char('q')));
        assert!(screen.press(Key::Char('v')) && screen.options.processes);
        assert!(screen.press(Key::Char('l')) && screen.options.lanes == Lanes::Sdp);
        assert!(screen.press(Key::Up) && screen.first == usize::MAX - 1);
    }

    #[test]
    fn rates_are_short() {
        let all = [
            (0.0, "0"),
            (999.0, "999"),
            (1000.0, "1.0k"),
            (9_960.0, "10k"),
            (999_600.0, "1.0M"),
            (2.5e9, "2.5G"),
        ];
        for (value, text) in all {
            assert_eq!(rate(value), text);
        }
    }

    #[test]
    fn the_order_is_the_one_asked_for() {
        let mut lines = vec![line(2, 5.0), line(1, 7.0)];
        sort(&mut lines, Order::Sent);
        assert_eq!(lines[0].pid, 1);
        lines[0].pid = 3;
        sort(&mut lines, Order::Pid);
        assert_eq!(lines[0].pid, 2);
    }
}

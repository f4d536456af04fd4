//! The log that a `log` statement asks for: the library's decisions, in the historic libsdp's
//! words.
//!
//! Used where a socket is given its rule, where a half changes lanes and where the settings are
//! read. Nothing is written unless a `log` statement (of the rule file, or `sdp run --log`) or
//! `sdp_debug_level` or `sdp_data_debug_level` ([`trace`]) asks for it: a library in a foreign process does not speak
//! unasked. A line never waits: bytes that the destination does not take at once are lost, and so
//! are lines beyond [`LINES_MAX`] in a second. Nothing here uses an allocator, libc's clock tables
//! or libc's stdio.

mod sink;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sdp_config::{Config, LogDestination, Match, Place, Role, Severity, Source, Verdict};
use sdp_proto::wire::Header;
use sdp_stats::{Direction, Reason, RuleState};

use crate::process::{self, settings};

/// How urgent a line is; it is written when this is at least the statement's `min-level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Level {
    /// Rules that were tried.
    Tried = 3,
    /// The result of a lookup.
    Found = 4,
    /// A line per listener, connection and change of lane.
    Summary = 7,
    /// Something was read otherwise than it was written.
    Warning = 8,
    /// Something was not read at all.
    Error = 9,
}

/// Least level that is written; 0 no log.
static LEAST: AtomicU32 = AtomicU32::new(0);
/// The same, as the `log` statement has it.
static ASKED_FOR: AtomicU32 = AtomicU32::new(0);
/// Lines in a second of a process; more are left out, and counted.
const LINES_MAX: u32 = 1000;
/// The second that lines are counted for.
static SECOND: AtomicU64 = AtomicU64::new(0);
/// Lines in that second, those that were left out, too.
static LINES: AtomicU32 = AtomicU32::new(0);

/// Whether a line of this level is written.
#[inline]
pub(crate) fn wants(level: Level) -> bool {
    let least = LEAST.load(Ordering::Relaxed);
    least != 0 && level as u32 >= least
}

/// Bytes of a line; the rest of a longer one is cut off.
const LINE_MAX: usize = 512;

/// A line in the making.
pub(crate) struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; LINE_MAX], len: 0 }
    }

    fn byte(&mut self, byte: u8) {
        // The last byte is the newline's.
        if let Some(to) = self.bytes.get_mut(..LINE_MAX - 1).and_then(|b| b.get_mut(self.len)) {
            *to = byte;
            self.len = self.len.wrapping_add(1);
        }
    }

    /// Appends text; control characters become `?`.
    pub(crate) fn text(&mut self, text: &[u8]) -> &mut Self {
        for byte in text {
            self.byte(if *byte < 0x20 || *byte == 0x7f { b'?' } else { *byte });
        }
        self
    }

    /// Appends a decimal number.
    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        self.digits(number, 10, 1)
    }

    fn digits(&mut self, number: u64, base: u64, least: usize) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut rest = number;
        let mut used = 0usize;
        for digit in digits.iter_mut().rev() {
            let value = (rest % base) as u8;
            *digit = if value < 10 { b'0' + value } else { b'a' + (value - 10) };
            rest /= base;
            used = used.wrapping_add(1);
            if rest == 0 && used >= least {
                break;
            }
        }
        let from = digits.len().wrapping_sub(used);
        self.text(digits.get(from..).unwrap_or(&[]))
    }

    /// Appends an address, IPv4 if it is v4-mapped.
    pub(crate) fn address(&mut self, address: [u8; 16]) -> &mut Self {
        if let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] = address {
            for (i, part) in [a, b, c, d].into_iter().enumerate() {
                if i != 0 {
                    self.byte(b'.');
                }
                self.number(part.into());
            }
            return self;
        }
        for (i, [high, low]) in address.as_chunks::<2>().0.iter().enumerate() {
            if i != 0 {
                self.byte(b':');
            }
            self.digits(u64::from(*high) << 8 | u64::from(*low), 16, 1);
        }
        self
    }

    fn place(&mut self, place: Place) -> &mut Self {
        self.text(match place.source {
            Source::Front => b"rules in front",
            Source::File => settings::file_name(),
        });
        self.text(b":").number(place.line.into())
    }

    /// The bytes so far.
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// The file that descriptor 2 names when the process begins: a program may put another one there.
pub(crate) fn remember_stderr(identity: sdp_sys::stat::Identity) {
    sink::remember_stderr(identity);
}

/// Takes the log settings over; by the loader of the settings, before anything is logged.
pub(crate) fn start(config: &Config) {
    if !config.asks_for_log() {
        return;
    }
    let log = config.log();
    match log.destination {
        LogDestination::Stderr => sink::to_stderr(),
        LogDestination::Syslog => sink::to_syslog(),
        LogDestination::File(name) => sink::to_file(config.text(name)),
    }
    ASKED_FOR.store(log.min_level.into(), Ordering::Relaxed);
    LEAST.store(log.min_level.into(), Ordering::Release);
}

/// Takes `sdp_debug_level` over, which may be changed while the process runs: 0 leaves the log to
/// its statement; 1 has a line per connection and change of lane, 2 also the results of lookups, 3
/// and more the rules tried. `has_data`: each message is a line, too ([`message`]). Without a
/// statement they go to the system log.
pub(crate) fn trace(debug_level: u32, has_data: bool) {
    let asked_for = ASKED_FOR.load(Ordering::Relaxed);
    let traced = match debug_level {
        0 => 0,
        1 => Level::Summary as u32,
        2 => Level::Found as u32,
        _ => Level::Tried as u32,
    };
    let least = match (asked_for, traced) {
        (0, level) | (level, 0) => level,
        (one, other) => one.min(other),
    };
    if asked_for == 0 && (traced != 0 || has_data) {
        sink::to_syslog();
    }
    LEAST.store(least, Ordering::Release);
}

/// Counts a line. How many were left out in the second before; `None`: this one is left out, too, and where `most` is less
/// than that of all lines it is not counted.
fn admitted(now_s: u64, most: u32) -> Option<u32> {
    let mut left_out = 0;
    if SECOND.load(Ordering::Relaxed) != now_s && SECOND.swap(now_s, Ordering::Relaxed) != now_s {
        left_out = LINES.swap(0, Ordering::Relaxed).saturating_sub(LINES_MAX);
    }
    if most < LINES_MAX && LINES.load(Ordering::Relaxed) >= most {
        return None;
    }
    (LINES.fetch_add(1, Ordering::Relaxed) < LINES_MAX).then_some(left_out)
}

/// Writes one line.
#[cold]
pub(crate) fn write(level: Level, body: impl FnOnce(&mut Line)) {
    if wants(level) {
        let mut body = Some(body);
        add(LINES_MAX, &mut |line| _ = body.take().map(|body| body(line)));
    }
}

/// Writes one line, whatever the level: one that a tunable asked for. Without a statement it goes to
/// the system log.
#[cold]
pub(crate) fn write_always(body: impl FnOnce(&mut Line)) {
    sink::to_syslog_unless_set();
    let mut body = Some(body);
    add(LINES_MAX, &mut |line| _ = body.take().map(|body| body(line)));
}

/// Writes one line, unless there were `most` in this second. One copy for all kinds of lines.
#[cold]
#[inline(never)]
fn add(most: u32, body: &mut dyn FnMut(&mut Line)) {
    if process::is_retired() {
        return;
    }
    let Some(left_out) = admitted(sdp_sys::time::coarse_ms() / 1000, most) else { return };
    let mut line = Line::new();
    if left_out != 0 {
        line.text(b"LOG: lines that were left out: ").number(left_out.into());
        sink::write(settings::program(), line.bytes());
        line = Line::new();
    }
    body(&mut line);
    sink::write(settings::program(), line.bytes());
}

/// Variables of the environment that cannot have their values.
pub(crate) fn variables(bad: impl Iterator<Item = &'static str>) {
    for variable in bad {
        write(Level::Error, |line| {
            line.text(b"CONFIG: ").text(variable.as_bytes()).text(b" cannot have this value");
        });
    }
}

/// Other rules are in force: the file has changed.
pub(crate) fn rules_changed(rules: u32) {
    write(Level::Warning, |line| {
        line.text(b"CONFIG: ").text(settings::file_name()).text(b" has changed: ");
        line.number(rules.into()).text(b" rules in force");
    });
}

/// The file has changed, and the former rules hold.
pub(crate) fn rules_kept(state: RuleState, errors: u32) {
    write(Level::Error, |line| {
        line.text(b"CONFIG: ").text(settings::file_name());
        match state {
            RuleState::Broken => line.text(b" has changed, errors: ").number(errors.into()),
            RuleState::OutOfSight => line.text(b" is in another root directory"),
            _ => line.text(b" cannot be read any more"),
        };
        line.text(b": the former rules hold");
    });
}

/// The errors found in the rules.
pub(crate) fn settings(config: &Config) {
    for diagnostic in config.diagnostics() {
        let (level, kind): (_, &[u8]) = match diagnostic.severity() {
            Severity::Error => (Level::Error, b": error: "),
            Severity::Warning => (Level::Warning, b": warning: "),
        };
        write(level, |line| {
            line.text(b"CONFIG: ").place(diagnostic.place);
            line.text(b":").number(diagnostic.place.column.into()).text(kind);
            line.text(diagnostic.problem.message().as_bytes());
        });
    }
}

/// The rule file that was named could not be used.
pub(crate) fn no_file(path: &[u8]) {
    write(Level::Error, |line| {
        line.text(b"CONFIG: ").text(path).text(b" cannot be read: both for everything");
    });
}

/// A lookup and the steps to its result.
pub(crate) fn lookup(config: &Config, role: Role, address: [u8; 16], port: u16, verdict: &Verdict) {
    if !wants(Level::Found) {
        return;
    }
    if wants(Level::Tried) {
        for (number, rule) in config.rules().iter().enumerate() {
            let result = config.judge(rule, role, settings::program(), address, port);
            let why: &[u8] = match result {
                Match::Role => continue,
                Match::Yes => b" POSITIVE",
                Match::Program => b" NEGATIVE by program",
                Match::Port => b" NEGATIVE by port range",
                Match::Address => b" NEGATIVE by address",
            };
            write(Level::Tried, |line| {
                line.text(b"MATCH: ").place(rule.place).text(why);
            });
            if verdict.rule == Some(number) {
                break;
            }
        }
    }
    write(Level::Found, |line| {
        let what: &[u8] = match role {
            Role::Server => b"MATCH LISTEN: ",
            Role::Client => b"MATCH CONNECT: ",
        };
        line.text(what).address(address).text(b" port ").number(port.into());
        line.text(b" => ").text(verdict.family.word().as_bytes());
        match verdict.place {
            Some(place) => line.text(b" by ").place(place),
            None => line.text(b" by no rule"),
        };
    });
}

/// A socket listens.
pub(crate) fn listening(fd: i32, is_tcp: bool, address: [u8; 16], port: u16) {
    write(Level::Summary, |line| {
        line.text(b"LISTEN: fd:").number(fd.max(0) as u64).text(b" listening on ");
        line.text(if is_tcp { b"TCP" } else { b"SDP and TCP" });
        line.text(b" bound to:").address(address).text(b" port:").number(port.into());
    });
}

/// A connection was made, or begun. Every one begins on TCP.
pub(crate) fn connected(fd: i32, address: [u8; 16], port: u16) {
    write(Level::Summary, |line| {
        line.text(b"CONNECT: connected TCP fd:").number(fd.max(0) as u64);
        line.text(b" to:").address(address).text(b" port ").number(port.into());
    });
}

/// A connection that the rules, or the program (`is_asked_for`), want on SDP or not at all was not made.
pub(crate) fn refused(
    fd: i32,
    address: [u8; 16],
    port: u16,
    is_asked_for: bool,
    reason: Reason,
    errno: i32,
) {
    write(Level::Summary, |line| {
        line.text(b"CONNECT: refused fd:").number(fd.max(0) as u64);
        line.text(b" to:").address(address).text(b" port ").number(port.into());
        let why: &[u8] = if is_asked_for { b" by AF_INET_SDP" } else { b" by use sdp" };
        line.text(why).text(b", no SDP there: ").text(reason.word().as_bytes());
        line.text(b", errno ").number(errno.max(0) as u64);
    });
}

/// A connection was accepted by a listener that the rules, or the program (`is_asked_for`), want to take SDP clients only,
/// and turned away.
pub(crate) fn turned_away(
    listener: i32,
    address: [u8; 16],
    port: u16,
    is_asked_for: bool,
    reason: Reason,
) {
    write(Level::Summary, |line| {
        line.text(b"ACCEPT: refused on fd:").number(listener.max(0) as u64);
        line.text(b" from:").address(address).text(b" port ").number(port.into());
        let why: &[u8] = if is_asked_for { b" by AF_INET_SDP" } else { b" by use sdp" };
        line.text(why).text(b", no SDP there: ").text(reason.word().as_bytes());
    });
}

/// A connection was accepted.
pub(crate) fn accepted(fd: i32) {
    write(Level::Summary, |line| {
        line.text(b"ACCEPT: accepting on TCP fd:<").number(fd.max(0) as u64).text(b">");
    });
}

/// A half went to another lane; `None`: the SDP lane.
pub(crate) fn moved(fd: i32, direction: Direction, reason: Option<Reason>) {
    write(Level::Summary, |line| {
        line.text(b"LANE: fd:").number(fd.max(0) as u64);
        line.text(if direction == Direction::Send { b" sending on " } else { b" receiving on " });
        match reason {
            None => line.text(b"SDP"),
            Some(reason) => line.text(b"TCP: ").text(reason.word().as_bytes()),
        };
    });
}

/// A message of the engine was sent or received, by the SDP lane: `sdp_data_debug_level`. They take half of the lines of a
/// second at most.
pub(crate) fn message(fd: i32, is_sent: bool, header: &Header) {
    add(LINES_MAX / 2, &mut |line| {
        line.text(b"DATA: fd:").number(fd.max(0) as u64);
        line.text(if is_sent { b" TX mid:0x" } else { b" RX mid:0x" });
        line.digits(header.mid.byte().into(), 16, 2);
        for (name, value) in [
            (&b" flags:"[..], header.flags.byte().into()),
            (b" bufs:", header.bufs.into()),
            (b" len:", header.len),
            (b" mseq:", header.mseq),
            (b" mseq_ack:", header.mseq_ack),
        ] {
            line.text(name).number(value.into());
        }
    });
}

/// A connection stays on TCP.
pub(crate) fn stays(fd: i32, reason: Reason) {
    write(Level::Summary, |line| {
        line.text(b"LANE: fd:").number(fd.max(0) as u64).text(b" stays on TCP: ");
        line.text(reason.word().as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(body: impl FnOnce(&mut Line) -> &mut Line) -> String {
        let mut line = Line::new();
        body(&mut line);
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    #[test]
    fn lines_are_made_of_text_numbers_and_addresses() {
        let mut v4 = [0; 16];
        v4[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(made(|l| l.address(v4).text(b" x").number(0)), "192.0.2.7 x0");
        let mut v6 = [0; 16];
        v6[0] = 0xfe;
        v6[1] = 0x80;
        v6[15] = 1;
        assert_eq!(made(|l| l.address(v6)), "fe80:0:0:0:0:0:0:1");
        assert_eq!(made(|l| l.number(u64::MAX)), u64::MAX.to_string());
        assert_eq!(made(|l| l.text(b"a\x1b[2Jb\n")), "a?[2Jb?");
        assert_eq!(made(|l| l.text(&[b'x'; 1000])).len(), LINE_MAX - 1);
    }

    #[test]
    fn lines_beyond_a_thousand_in_a_second_are_counted() {
        let admitted_of =
            |second, n, most| (0..n).filter_map(|_| admitted(second, most)).collect::<Vec<_>>();
        assert_eq!(admitted_of(7, LINES_MAX + 30, LINES_MAX).len(), LINES_MAX as usize);
        assert_eq!(admitted_of(8, 2, LINES_MAX), [30, 0]);
        assert_eq!(admitted_of(9, 1, LINES_MAX), [0]);
        // Those that may have a part leave the rest to others, and are not counted beyond it.
        assert_eq!(admitted_of(10, 50, 20).len(), 20);
        assert_eq!(admitted_of(10, LINES_MAX, LINES_MAX).len(), LINES_MAX as usize - 20);
        assert_eq!(admitted_of(11, 1, LINES_MAX), [20]);
    }

    #[test]
    fn nothing_is_wanted_unless_asked_for() {
        let mut config = Box::new(Config::new());
        config.load_text(b"", b"use both client * *:*\n");
        start(&config);
        assert!(!wants(Level::Error));
    }
}

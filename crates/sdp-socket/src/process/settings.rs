//! Rules and tunables: read at the first connection from environment and rule file, and again when the file
//! has changed.
//!
//! Used by all code that asks for a verdict or a tunable. Never waits: only a regular file is read,
//! and a file that cannot be read means `both` for everything.

mod rules;
mod tune;

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

use sdp_config::{
    Family, Role, Tunables,
    tunables::{
        ExitReport, FabricName, IoUring, KEYS, Key, MeetingTrust, RecvPoll, ZcopyThreshold,
    },
};
use sdp_sys::section;

use crate::process::{log, page, place};
pub(crate) use rules::generation;
pub(crate) use tune::attend;

/// Longest program name that rules are matched against.
const NAME_MAX: usize = 64;
/// Longest path in `LIBSDP_CONFIG_FILE`.
const PATH_MAX: usize = 4096;
/// Longest `SDP_RULES`.
const RULES_MAX: usize = 16 * 1024;
/// Environment entries looked at.
const ENVIRONMENT_MAX: usize = 65_536;
/// Rule file when the environment names none.
const DEFAULT_FILE: &[u8] = b"/etc/libsdp.conf\0";

/// The constructor's copy of a part of the environment: the program may change that later.
struct Captured {
    tunables: UnsafeCell<Tunables>,
    /// Which of [`KEYS`] the environment set, a bit each.
    chosen: AtomicU32,
    /// Which of [`KEYS`] had a value in the environment that they cannot have.
    bad: AtomicU32,
    /// Whether `LIBSDP_CONFIG_FILE` was set.
    has_path: AtomicU32,
    /// Whether `SIMPLE_LIBSDP` or `ALWAYS_USE_SDP` was set.
    is_simple: AtomicU32,
}

// SAFETY: written by the constructor ([`STATE`] NOTHING, one thread); read only afterwards.
unsafe impl Sync for Captured {}

static CAPTURED: Captured = Captured {
    tunables: UnsafeCell::new(Tunables::DEFAULT),
    chosen: AtomicU32::new(0),
    bad: AtomicU32::new(0),
    has_path: AtomicU32::new(0),
    is_simple: AtomicU32::new(0),
};

/// Texts that were captured with it. By themselves, because they are zeros at first, which the library's file
/// need not hold.
struct Texts {
    name: UnsafeCell<([u8; NAME_MAX], usize)>,
    path: UnsafeCell<([u8; PATH_MAX], usize)>,
    rules: UnsafeCell<([u8; RULES_MAX], usize)>,
    report: UnsafeCell<([u8; 512], usize)>,
}

// SAFETY: written by the constructor alone, before there is a second thread; only read afterwards.
unsafe impl Sync for Texts {}

static TEXTS: Texts = Texts {
    name: UnsafeCell::new(([0; NAME_MAX], 0)),
    path: UnsafeCell::new(([0; PATH_MAX], 0)),
    rules: UnsafeCell::new(([0; RULES_MAX], 0)),
    report: UnsafeCell::new(([0; 512], 0)),
};

/// [`NOTHING`], [`CAPTURED_ONLY`], [`LOADING`], [`LOADED`].
#[unsafe(link_section = ".bss.hot")]
static STATE: AtomicU32 = AtomicU32::new(NOTHING);

const NOTHING: u32 = 0;
const CAPTURED_ONLY: u32 = 1;
const LOADING: u32 = 2;
const LOADED: u32 = 3;

/// Looks at settings that another thread is reading, each followed by giving the processor away.
const LOADING_LOOKS: u32 = 1 << 20;

/// Looks at settings that another thread is at, before a new page says nothing of them.
const PUBLISH_LOOKS: u32 = 1000;

fn copy<const N: usize>(cell: &UnsafeCell<([u8; N], usize)>, from: &[u8]) {
    let len = from.len().min(N - 1); // keeps a NUL behind the text
    // SAFETY: called by the constructor only, before other threads can read.
    let to = unsafe { &mut *cell.get() };
    to.0 = [0; N];
    if let (Some(to), Some(from)) = (to.0.get_mut(..len), from.get(..len)) {
        to.copy_from_slice(from);
    }
    to.1 = len;
}

fn text<const N: usize>(cell: &UnsafeCell<([u8; N], usize)>) -> &[u8] {
    let text = text_and_nul(cell);
    text.strip_suffix(&[0]).unwrap_or(text)
}

/// The same with the NUL behind it.
fn text_and_nul<const N: usize>(cell: &UnsafeCell<([u8; N], usize)>) -> &[u8] {
    // SAFETY: not written any more once other threads can read (see `Captured`).
    let held = unsafe { &*cell.get() };
    held.0.get(..=held.1).unwrap_or(&[])
}

/// Copies a C string's bytes up to `max`.
///
/// # Safety
/// `at` is null or a NUL-terminated string that lives as long as the process.
unsafe fn c_bytes(at: *const u8, max: usize) -> &'static [u8] {
    if at.is_null() {
        return &[];
    }
    let mut len = 0;
    // SAFETY: by the contract, bytes up to and including the NUL are readable.
    unsafe {
        while len < max && *at.add(len) != 0 {
            len += 1;
        }
        core::slice::from_raw_parts(at, len)
    }
}

/// The constructor's part: copies the variables that will be needed.
///
/// # Safety
/// As for [`crate::api::calls::constructed`].
pub(crate) unsafe fn capture(argc: i32, argv: *const *const u8, envp: *const *const u8) {
    if argc > 0 && !argv.is_null() {
        // SAFETY: argc > 0: argv[0] exists.
        let whole = unsafe { c_bytes(*argv, PATH_MAX) };
        let short = whole.rsplit(|b| *b == b'/').next().unwrap_or(whole);
        copy(&TEXTS.name, short);
    }
    let secure = sdp_sys::kernel::auxiliary(libc::AT_SECURE) != 0;
    if !envp.is_null() && !secure {
        for i in 0..ENVIRONMENT_MAX {
            // SAFETY: envp is null-terminated, and the walk stops there.
            let entry = unsafe {
                let at = *envp.add(i);
                if at.is_null() {
                    break;
                }
                c_bytes(at, RULES_MAX + 64)
            };
            capture_entry(entry);
        }
    }
    STATE.store(CAPTURED_ONLY, Ordering::Release);
}

/// The bit of the first tunable that `is` names, 0 none.
fn bit(is: impl Fn(&Key) -> bool) -> u32 {
    KEYS.iter().position(is).map_or(0, |i| 1 << i)
}

fn capture_entry(entry: &[u8]) {
    if let Some(path) = entry.strip_prefix(b"LIBSDP_CONFIG_FILE=") {
        CAPTURED.has_path.store(1, Ordering::Relaxed);
        copy(&TEXTS.path, path);
    } else if let Some(rules) = entry.strip_prefix(b"SDP_RULES=") {
        copy(&TEXTS.rules, rules);
    } else if let Some(report) = entry.strip_prefix(b"SDP_REPORT=")
        && report.contains(&b';')
    {
        copy(&TEXTS.report, report);
    } else if entry.starts_with(b"SIMPLE_LIBSDP=") || entry.starts_with(b"ALWAYS_USE_SDP=") {
        CAPTURED.is_simple.store(1, Ordering::Relaxed);
    } else if entry.starts_with(b"SDP_") {
        // Kept apart from the file's options, which the environment overrides; a bad value leaves
        // the previous one (the tools tell the user; the library, if it was asked for a log).
        // SAFETY: constructor, see `Captured`.
        let done = unsafe { &mut *CAPTURED.tunables.get() }.set_from_env(entry);
        if let Some(done) = done {
            let name = entry.split(|b| *b == b'=').next().unwrap_or(entry);
            let set = if done.is_ok() { &CAPTURED.chosen } else { &CAPTURED.bad };
            set.fetch_or(bit(|key| key.env.as_bytes() == name), Ordering::Relaxed);
        }
    }
}

/// Where to hand in the statistics page: the value of `SDP_REPORT` that `sdp run` sets, or nothing.
pub(crate) fn report() -> &'static [u8] {
    text(&TEXTS.report)
}

/// Short name of the program.
pub(crate) fn program() -> &'static [u8] {
    text(&TEXTS.name)
}

/// Reads the rule file and puts the values in force. Once per process image; a thread that comes while
/// another is at it waits for it, within bounds: the defaults hold if that takes absurdly long.
pub(crate) fn load() {
    if STATE.load(Ordering::Acquire) == LOADED {
        return;
    }
    // A handler that interrupted the loading must not wait for it.
    let _section = section::Guard::enter();
    for _ in 0..LOADING_LOOKS {
        match STATE.load(Ordering::Acquire) {
            LOADED => return,
            LOADING => {
                sdp_sys::time::yield_now();
            }
            before => {
                let order = (Ordering::Acquire, Ordering::Relaxed);
                if STATE.compare_exchange(before, LOADING, order.0, order.1).is_ok() {
                    return load_once();
                }
            }
        }
    }
}

/// In a fork child: a thread of the parent that was loading does not exist here.
pub(crate) fn become_child() {
    rules::become_child();
    if STATE.load(Ordering::Relaxed) != LOADING {
        return; // not even an exchange that fails: it would copy the page
    }
    let _ = STATE.compare_exchange(LOADING, CAPTURED_ONLY, Ordering::AcqRel, Ordering::Relaxed);
}

/// The texts that the rules are made of.
fn texts() -> rules::Texts {
    let is_simple = CAPTURED.is_simple.load(Ordering::Relaxed) != 0;
    let path: &[u8] = if is_simple {
        &[] // the historic simple mode reads no file
    } else if CAPTURED.has_path.load(Ordering::Relaxed) != 0 {
        text_and_nul(&TEXTS.path)
    } else {
        DEFAULT_FILE
    };
    rules::Texts { path, front: text(&TEXTS.rules), program: program(), is_simple }
}

fn load_once() {
    let texts = texts();
    // A child of a fork that ran into another thread's load loads again.
    let is_read = rules::load(texts);
    rules::with_table(log::start);
    // The default file need not be there, and `/dev/null` is a way to ask for none.
    let path = texts.path;
    let is_named = ![&b"\0"[..], DEFAULT_FILE, b"/dev/null\0", b""].contains(&path);
    if is_named && !is_read {
        log::no_file(path.strip_suffix(&[0]).unwrap_or(path));
    }
    let bad = CAPTURED.bad.load(Ordering::Relaxed);
    let is_bad = |(i, _): &(usize, &Key)| bad & 1 << *i != 0;
    log::variables(KEYS.iter().enumerate().filter(is_bad).map(|(_, key)| key.env));
    rules::with_table(log::settings);
    take_over();
    STATE.store(LOADED, Ordering::Release);
}

/// Puts the settings that the rules in force have beside their verdicts where hot paths read them.
fn take_over() {
    let (file, kinds) = rules::summary();
    TUNED.tells_clients_apart.store(kinds.tells_clients_apart.into(), Ordering::Relaxed);
    TUNED.has_strict_servers.store(kinds.has_strict_servers.into(), Ordering::Relaxed);
    TUNED.fill(&Sources::with(&file));
    // A borrower counts in another process's page, which describes that process.
    if !page::is_borrower() {
        show();
    }
}

/// Shows tools the tunables in force, on the process's own page. For the loader, and a thread that
/// is alone at the settings.
fn show() {
    if let Some(page) = page::current() {
        let file = rules::summary().0;
        let sources = Sources::with(&file);
        page.show_tunables(&tune::text(|key| sources.of(key)));
    }
}

/// Shows tools rules and tunables, on a page that has just been made.
pub(crate) fn publish() {
    rules::publish();
    for _ in 0..PUBLISH_LOOKS {
        if rules::alone(show) {
            return;
        }
        sdp_sys::time::yield_now();
    }
}

/// The sources of tunables, the last first: a request while the process runs, environment, rules.
struct Sources<'a> {
    asked: (Tunables, u32),
    environment: (&'a Tunables, u32),
    file: &'a Tunables,
}

impl<'a> Sources<'a> {
    /// Requests and environment, which come before the file. As [`tune::asked`].
    fn with(file: &'a Tunables) -> Self {
        // SAFETY: not written any more.
        let environment = unsafe { &*CAPTURED.tunables.get() };
        Self {
            asked: tune::asked(),
            environment: (environment, CAPTURED.chosen.load(Ordering::Relaxed)),
            file,
        }
    }

    /// The source that decides about a tunable, with the word for it that tools show. Each but the
    /// file may also ask for "the default", so that the value alone does not show its source.
    fn of(&self, key: &Key) -> (&Tunables, &'static [u8]) {
        let bit = bit(|known| known.name == key.name);
        if self.asked.1 & bit != 0 {
            (&self.asked.0, b"tune")
        } else if self.environment.1 & bit != 0 {
            (self.environment.0, b"environment")
        } else if self.file.is_default(key) {
            (self.file, b"default")
        } else {
            (self.file, b"rules")
        }
    }

    /// The same by name; the file's if there is no such tunable.
    fn by_name(&self, name: &str) -> &Tunables {
        KEYS.iter().find(|key| key.name == name).map_or(self.file, |key| self.of(key).0)
    }
}

/// Before a socket listens, connects or is accepted: looks at the rule file if that was not done
/// for a while, and applies what it says by now; applies the requests that [`attend`] finds, too.
#[inline]
pub(crate) fn refresh() {
    if rules::is_due() {
        refresh_now();
    }
    attend();
}

#[cold]
fn refresh_now() {
    rules::alone(|| rules::look(texts(), take_over));
}

/// Whether a socket of this role and address may get an SDP lane.
#[unsafe(link_section = ".text.open")]
pub(crate) fn family(role: Role, address: [u8; 16], port: u16) -> Family {
    rules::verdict(role, address, port, |config, verdict| {
        log::lookup(config, role, address, port, verdict);
    })
}

/// [`family`], without a line in the log: it is asked for again when the connection is made.
pub(crate) fn family_unlogged(role: Role, address: [u8; 16], port: u16) -> Family {
    rules::verdict(role, address, port, |_, _| {})
}

/// Whether some client gets SDP or nothing, or TCP. One load.
#[inline]
pub(crate) fn tells_clients_apart() -> bool {
    TUNED.tells_clients_apart.load(Ordering::Relaxed) != 0
}

/// Whether some server takes SDP clients only. One load.
#[inline]
pub(crate) fn has_strict_servers() -> bool {
    TUNED.has_strict_servers.load(Ordering::Relaxed) != 0
}

/// Path of the rule file, for log lines.
pub(crate) fn file_name() -> &'static [u8] {
    if CAPTURED.has_path.load(Ordering::Relaxed) != 0 {
        text(&TEXTS.path)
    } else {
        DEFAULT_FILE.strip_suffix(&[0]).unwrap_or(DEFAULT_FILE)
    }
}

/// Tunables in a form that hot paths read with one load.
pub(crate) struct Tuned {
    promote_calls: AtomicU32,
    promote_bytes: AtomicU32,
    /// Microseconds + 1; 0 adaptive.
    receive_poll: AtomicU32,
    zcopy_from: AtomicU32,
    ring_bytes: AtomicU32,
    flip_seed: AtomicU32,
    /// A call's bytes are to be sent by the slow path.
    bars_fast_path: AtomicU32,
    traces_data: AtomicU32,
    flip_state: AtomicU32,
    has_shm: AtomicU32,
    has_verbs: AtomicU32,
    give_back_s: AtomicU32,
    keeps_segments: AtomicU32,
    proves_meetings: AtomicU32,
    /// 0 as the program needs it, 1 deny, 2 allow.
    io_uring: AtomicU32,
    /// 0 off, 1 auto, 2 always.
    report: AtomicU32,
    tells_clients_apart: AtomicU32,
    has_strict_servers: AtomicU32,
}

#[unsafe(link_section = ".data.hot")]
static TUNED: Tuned = Tuned {
    promote_calls: AtomicU32::new(16),
    promote_bytes: AtomicU32::new(65_536),
    receive_poll: AtomicU32::new(0),
    zcopy_from: AtomicU32::new(0),
    ring_bytes: AtomicU32::new(1_048_576),
    flip_seed: AtomicU32::new(0),
    bars_fast_path: AtomicU32::new(0),
    traces_data: AtomicU32::new(0),
    flip_state: AtomicU32::new(0),
    has_shm: AtomicU32::new(1),
    has_verbs: AtomicU32::new(1),
    give_back_s: AtomicU32::new(60),
    keeps_segments: AtomicU32::new(1),
    proves_meetings: AtomicU32::new(0),
    io_uring: AtomicU32::new(0),
    report: AtomicU32::new(0),
    tells_clients_apart: AtomicU32::new(0),
    has_strict_servers: AtomicU32::new(0),
};

/// The values in force.
#[inline]
pub(crate) fn tunables() -> &'static Tuned {
    &TUNED
}

impl Tuned {
    /// Puts the values in force.
    fn fill(&self, sources: &Sources<'_>) {
        let from = |name: &str| sources.by_name(name);
        let calls = from("promote_calls").promote_calls;
        let bytes = from("promote_bytes").promote_bytes;
        let ring = from("ring_bytes").ring_bytes;
        let flip = from("test_lane_flip").test_lane_flip;
        let fabrics = from("fabrics").fabrics;
        self.give_back_s.store(from("give_back").give_back, Ordering::Relaxed);
        self.keeps_segments.store(from("keep_segments").keep_segments, Ordering::Relaxed);
        self.promote_calls.store(calls, Ordering::Relaxed);
        self.promote_bytes.store(bytes, Ordering::Relaxed);
        self.ring_bytes.store(ring, Ordering::Relaxed);
        if self.flip_seed.swap(flip, Ordering::Relaxed) != flip {
            self.flip_state.store(flip, Ordering::Relaxed);
        }
        self.has_shm.store(u32::from(fabrics.has(FabricName::Shm)), Ordering::Relaxed);
        self.has_verbs.store(u32::from(fabrics.has(FabricName::Verbs)), Ordering::Relaxed);
        place::set(from("rendezvous_dir").rendezvous_dir.as_bytes());
        let proves = from("rendezvous_trust").rendezvous_trust == MeetingTrust::Proof;
        self.proves_meetings.store(u32::from(proves), Ordering::Relaxed);
        let uring = match from("io_uring").io_uring {
            IoUring::Auto => 0,
            IoUring::Deny => 1,
            IoUring::Allow => 2,
        };
        self.io_uring.store(uring, Ordering::Relaxed);
        let report = match from("report").report {
            ExitReport::Off => 0,
            ExitReport::Auto => 1,
            ExitReport::Always => 2,
        };
        self.report.store(report, Ordering::Relaxed);
        let poll = match from("recv_poll").recv_poll {
            RecvPoll::Adaptive => 0,
            RecvPoll::AtMost(us) => us.saturating_add(1),
        };
        self.receive_poll.store(poll, Ordering::Relaxed);
        let zcopy = match from("sdp_zcopy_thresh").zcopy_thresh {
            ZcopyThreshold::Bytes(bytes) => bytes,
            // Nothing is learnt yet.
            ZcopyThreshold::Learnt | ZcopyThreshold::Never => 0,
        };
        self.zcopy_from.store(zcopy, Ordering::Relaxed);
        let data = from("sdp_data_debug_level").data_debug_level;
        log::trace(from("sdp_debug_level").debug_level, data != 0);
        self.traces_data.store(data, Ordering::Relaxed);
        self.bars_fast_path.store(flip | data, Ordering::Relaxed);
    }

    /// Whether ends that meet in a directory await a token before payload.
    pub(crate) fn proves_meetings(&self) -> bool {
        self.proves_meetings.load(Ordering::Relaxed) != 0
    }

    /// When the process logs a line about its connections at its exit.
    pub(crate) fn report(&self) -> ExitReport {
        match self.report.load(Ordering::Relaxed) {
            0 => ExitReport::Off,
            1 => ExitReport::Auto,
            _ => ExitReport::Always,
        }
    }

    /// Successful calls of a half that earn it an SDP lane.
    #[inline]
    pub(crate) fn promote_calls(&self) -> u32 {
        self.promote_calls.load(Ordering::Relaxed)
    }

    /// Bytes of a half that earn it an SDP lane.
    #[inline]
    pub(crate) fn promote_bytes(&self) -> u64 {
        u64::from(self.promote_bytes.load(Ordering::Relaxed))
    }

    /// Upper bound of a receive spin in microseconds; `None` adaptive.
    #[inline]
    pub(crate) fn receive_poll_us(&self) -> Option<u32> {
        self.receive_poll.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Ring size per direction.
    pub(crate) fn ring_bytes(&self) -> u32 {
        self.ring_bytes.load(Ordering::Relaxed)
    }

    /// Whether the shared-memory fabric may be used.
    pub(crate) fn has_shm(&self) -> bool {
        self.has_shm.load(Ordering::Relaxed) != 0
    }

    /// Whether the fabric between hosts may be used.
    pub(crate) fn has_verbs(&self) -> bool {
        self.has_verbs.load(Ordering::Relaxed) != 0
    }

    /// From how many bytes on a blocking send to another host advertises its buffer; `None`: never.
    pub(crate) fn zcopy_from(&self) -> Option<u32> {
        Some(self.zcopy_from.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
    }

    /// Silence in seconds after which touched pages are given back; 0 never.
    pub(crate) fn give_back_s(&self) -> u32 {
        self.give_back_s.load(Ordering::Relaxed)
    }

    /// Whether segments of connections that have ended are used again.
    pub(crate) fn keeps_segments(&self) -> bool {
        self.keeps_segments.load(Ordering::Relaxed) != 0
    }

    /// The answer to a program that asks for io_uring.
    pub(crate) fn io_uring(&self) -> IoUring {
        match self.io_uring.load(Ordering::Relaxed) {
            1 => IoUring::Deny,
            2 => IoUring::Allow,
            _ => IoUring::Auto,
        }
    }

    /// Seed of the lane flips; 0 off.
    #[inline]
    pub(crate) fn lane_flip(&self) -> u32 {
        self.flip_seed.load(Ordering::Relaxed)
    }

    /// Whether no call sends by the fast path: lanes are flipped, or messages traced.
    #[inline]
    pub(crate) fn bars_fast_path(&self) -> bool {
        self.bars_fast_path.load(Ordering::Relaxed) != 0
    }

    /// Whether each message is a line of the log.
    #[inline]
    pub(crate) fn traces_data(&self) -> bool {
        self.traces_data.load(Ordering::Relaxed) != 0
    }

    /// Next pseudo-random number of the lane flips.
    pub(crate) fn next_flip(&self) -> u32 {
        let mut x = self.flip_state.load(Ordering::Relaxed).max(1);
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        self.flip_state.store(x, Ordering::Relaxed);
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_also_with_the_default() {
        let mut file = Tunables::DEFAULT;
        file.set(b"promote_calls", b"7").unwrap();
        file.set(b"ring_bytes", b"65536").unwrap();
        file.set(b"io_uring", b"deny").unwrap();
        let tuned = &TUNED;
        let sources = |chosen, asked| Sources {
            asked,
            environment: (&Tunables::DEFAULT, chosen),
            file: &file,
        };
        let nothing = (Tunables::DEFAULT, 0);
        tuned.fill(&sources(0, nothing));
        assert_eq!(tuned.promote_calls(), 7);
        assert_eq!(tuned.io_uring(), IoUring::Deny);
        let chosen = bit(|key| key.env == "SDP_PROMOTE_CALLS");
        assert_ne!(chosen, 0);
        tuned.fill(&sources(chosen, nothing));
        assert_eq!(tuned.promote_calls(), Tunables::DEFAULT.promote_calls);
        assert_eq!(tuned.ring_bytes(), 65_536, "not said by the environment");
        let mut asked = Tunables::DEFAULT;
        asked.set(b"promote_calls", b"3").unwrap();
        tuned.fill(&sources(chosen, (asked, chosen)));
        assert_eq!(tuned.promote_calls(), 3, "asked for while the process runs");
    }

    #[test]
    fn every_tunable_in_use_has_a_key() {
        for name in [
            "promote_calls",
            "promote_bytes",
            "ring_bytes",
            "test_lane_flip",
            "fabrics",
            "recv_poll",
            "sdp_zcopy_thresh",
            "give_back",
            "keep_segments",
            "rendezvous_dir",
            "rendezvous_trust",
            "io_uring",
            "report",
            "sdp_debug_level",
            "sdp_data_debug_level",
        ] {
            assert_ne!(bit(|key| key.name == name), 0, "{name}");
        }
    }
}

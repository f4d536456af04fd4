//! The reading side, used by tools: takes a copy of a page word by word, believes nothing in it,
//! then computes on the copy. A page is written by another process, possibly a hostile one: any
//! content gives some [`ProcessView`] or a [`PageError`], never a panic and never a large allocation.

use std::collections::BTreeMap;
use std::fmt;

use crate::page::{
    COUNTERS, DEVICE_LEN, DEVICES, DeviceWords, HEADER_SIZE, Header, LAYOUT, MAGIC, Messages,
    PROGRAM_LEN, Page, ROWS, Row, RowHalf, RuleWords, SIZE, SIZES, Totals,
};
use crate::reason::{MAX_REASONS, Reason};
use crate::rules::Rules;
use crate::trace::{EVENT_WORDS, EVENTS, EventView, Trace, parse_events};
use crate::tune::{MORE_LEN, TEXT_LEN, TuneWords, Tuned};
use crate::writer::{Counter, Direction, Endpoint, ROW_OPEN};

pub use crate::map::{MapError, Mapping};

/// Words from the start of a page to its first row.
pub const HEADER_WORDS: usize = HEADER_SIZE / 8;
/// Words of a row.
pub const ROW_WORDS: usize = size_of::<Row>() / 8;

/// Why a copy is no page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageError {
    /// Shorter than a header.
    Short,
    /// Not a page, or one that is not initialised yet.
    Magic,
    /// A page of a version with another layout.
    Layout(u32),
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("too short for a page of counters"),
            Self::Magic => f.write_str("not a page of counters"),
            Self::Layout(n) => write!(f, "layout {n} of another version (this is {LAYOUT})"),
        }
    }
}

impl std::error::Error for PageError {}

/// A reason code as read: known or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasonCode(pub u32);

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Reason::from_code(self.0) {
            Some(reason) => f.write_str(reason.word()),
            None => write!(f, "reason-{}", self.0),
        }
    }
}

/// Counters of one half.
pub type HalfCounters = [u64; COUNTERS];

/// One open connection end or listener.
#[derive(Debug, Clone)]
pub struct RowView {
    /// Descriptor number in its process.
    pub fd: i32,
    /// Identity of the carrier end.
    pub carrier: u64,
    /// Inode of the carrier socket (32 bits).
    pub inode: u32,
    /// Local end.
    pub local: Endpoint,
    /// Remote end.
    pub remote: Endpoint,
    /// TCP state number.
    pub state: u8,
    /// Number of [`crate::Role`].
    pub role: u8,
    /// AF_INET6 socket.
    pub is_v6: bool,
    /// Another process used the connection's SDP lanes before: counters are not its whole story.
    pub is_adopted: bool,
    /// Sent, received.
    pub counters: [HalfCounters; 2],
    /// Sent, received.
    pub halves: [HalfView; 2],
    /// Messages sent over SDP.
    pub messages: MessagesView,
    /// The port of a device by which it met its other end last.
    pub device: Option<DevicePort>,
    /// The same of the other end, where a page of this machine shows it; readers of one page do not know it.
    pub peer_full: Option<u64>,
    /// The other end, where a page of this machine shows it; readers of one page do not know it.
    pub peer: Option<PeerView>,
}

/// The other end of a connection, by the page of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerView {
    /// Its process.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// Sending, receiving: why it is not on SDP, by its own account.
    pub reasons: [Option<u32>; 2],
}

/// Messages that were sent over SDP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessagesView {
    /// By class of size: see [`SIZES`].
    pub sizes: [u64; SIZES],
    /// Times that a sender found no room.
    pub full: u64,
}

impl MessagesView {
    /// All sizes.
    pub fn sent(&self) -> u64 {
        self.sizes.iter().fold(0, |sum, n| sum.wrapping_add(*n))
    }

    /// The largest payload of each class, in bytes; the last has none.
    pub fn bounds() -> [Option<u32>; SIZES] {
        std::array::from_fn(|class| (class + 1 < SIZES).then(|| 64 << (2 * class)))
    }

    /// Adds another one's. Wraps.
    pub fn add(&mut self, other: &Self) {
        for (a, b) in self.sizes.iter_mut().zip(other.sizes) {
            *a = a.wrapping_add(b);
        }
        self.full = self.full.wrapping_add(other.full);
    }

    /// The difference since another one. Wraps.
    #[must_use]
    pub fn since(&self, other: &Self) -> Self {
        Self {
            sizes: std::array::from_fn(|class| self.sizes[class].wrapping_sub(other.sizes[class])),
            full: self.full.wrapping_sub(other.full),
        }
    }
}

/// Values that change rarely in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HalfView {
    /// Number of [`crate::Lane`].
    pub lane: u8,
    /// Number of [`crate::Fabric`], 0 = none.
    pub fabric: u8,
    /// Number of [`crate::Mode`].
    pub mode: u8,
    /// Why the kernel lane.
    pub reason: Option<u32>,
    /// Times promoted.
    pub promoted: u32,
    /// Times demoted.
    pub demoted: u32,
    /// Credits left.
    pub credits: u32,
    /// Zero-copy threshold, bytes.
    pub threshold: u32,
    /// Bytes in the ring.
    pub queued: u32,
    /// Number of the queue pair, 0 = none: this end's with the sending half, the other end's with the receiving one.
    pub queue_pair: u32,
}

impl HalfView {
    /// Whether payload goes over SDP now.
    pub const fn is_sdp(&self) -> bool {
        self.lane == 1
    }
}

impl RowView {
    /// One counter.
    pub fn counter(&self, direction: Direction, counter: Counter) -> u64 {
        self.counters[direction as usize][counter as usize]
    }

    /// Messages that went both ways over SDP: the smaller number of those sent and those received. Of an end that asks,
    /// or answers, in one message each, these are its requests.
    pub fn requests(&self) -> u64 {
        self.messages.sent().min(self.counter(Direction::Receive, Counter::BCopy))
    }

    /// Whether either half is on an SDP lane.
    pub fn has_live_lane(&self) -> bool {
        self.halves.iter().any(HalfView::is_sdp)
    }
}

/// One process's page.
#[derive(Debug, Clone)]
pub struct ProcessView {
    /// Process id as the process sees it.
    pub pid: u32,
    /// Parent's.
    pub ppid: u32,
    /// Real user id.
    pub uid: u32,
    /// `CLOCK_BOOTTIME` nanoseconds when the page was made: at the first stream connection.
    pub born_ns: u64,
    /// Left in an orderly way.
    pub has_exited: bool,
    /// Counters of fork children may be in here too, or may be yet.
    pub is_shared: bool,
    /// How many of them there are or were that never had a page of their own.
    pub borrowers: u64,
    /// Short name of the program; anything but printable ASCII is replaced by `?`.
    pub program: String,
    /// Version of the library, likewise.
    pub version: String,
    /// Its rules.
    pub rules: Rules,
    /// Its tunables.
    pub tuned: Tuned,
    /// RDMA devices by which its connections have met, each port by itself.
    pub devices: Vec<DeviceView>,
    /// Totals and open rows.
    pub sums: Sums,
    /// Open rows.
    pub rows: Vec<RowView>,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePort {
    /// The device's name; anything but printable ASCII is replaced by `?`.
    pub name: String,
    /// The port's number.
    pub port: u8,
}

impl fmt::Display for DevicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.name, self.port)
    }
}

/// A port of a process's RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// Which.
    pub at: DevicePort,
    /// Connection ends that met by it.
    pub ends: u64,
    /// How often a queue pair sends a message again that is not answered.
    pub retries: u8,
    /// How often it sends a message again that found no receive buffer; 7: for ever.
    pub rnr_retries: u8,
}

/// Sums over pages.
#[derive(Debug, Clone)]
pub struct Sums {
    /// Connection ends seen.
    pub seen: i64,
    /// Of these, those that moved bytes on an SDP lane.
    pub sdp: i64,
    /// By fabric: shm, verbs.
    pub fabrics: [i64; 2],
    /// Halves promoted.
    pub promoted: u64,
    /// Halves demoted.
    pub demoted: u64,
    /// Pages that could not be handed in.
    pub unreported: u64,
    /// Connection ends without a row.
    pub rowless: u64,
    /// Sent, received.
    pub counters: [HalfCounters; 2],
    /// By reason code.
    pub reasons: [i64; MAX_REASONS],
    /// By reason code.
    pub demotions: [u64; MAX_REASONS],
    /// Connections that rules refused, by reason code. They are not among those seen.
    pub refused: [u64; MAX_REASONS],
    /// Messages sent over SDP.
    pub messages: MessagesView,
    /// Connection ends that met by RDMA devices, by port. At most [`NAMED`] of them.
    pub devices: BTreeMap<DevicePort, u64>,
}

/// Ports of devices in sums; a host has fewer.
const NAMED: usize = 256;

impl Default for Sums {
    fn default() -> Self {
        Self {
            seen: 0,
            sdp: 0,
            fabrics: [0; 2],
            promoted: 0,
            demoted: 0,
            unreported: 0,
            rowless: 0,
            counters: [[0; COUNTERS]; 2],
            reasons: [0; MAX_REASONS],
            demotions: [0; MAX_REASONS],
            refused: [0; MAX_REASONS],
            messages: MessagesView::default(),
            devices: BTreeMap::new(),
        }
    }
}

impl Sums {
    /// Adds another page's. Wraps: hostile figures give wrong sums, nothing worse.
    pub fn add(&mut self, other: &Self) {
        self.seen = self.seen.wrapping_add(other.seen);
        self.sdp = self.sdp.wrapping_add(other.sdp);
        self.promoted = self.promoted.wrapping_add(other.promoted);
        self.demoted = self.demoted.wrapping_add(other.demoted);
        self.unreported = self.unreported.wrapping_add(other.unreported);
        self.rowless = self.rowless.wrapping_add(other.rowless);
        for (a, b) in self.fabrics.iter_mut().zip(other.fabrics) {
            *a = a.wrapping_add(b);
        }
        for (a, b) in self.reasons.iter_mut().zip(other.reasons) {
            *a = a.wrapping_add(b);
        }
        for (a, b) in self.demotions.iter_mut().zip(other.demotions) {
            *a = a.wrapping_add(b);
        }
        for (a, b) in self.refused.iter_mut().zip(other.refused) {
            *a = a.wrapping_add(b);
        }
        self.add_counters(&other.counters);
        self.messages.add(&other.messages);
        self.add_devices(other.devices.iter().map(|(at, ends)| (at.clone(), *ends)));
    }

    fn add_devices(&mut self, others: impl Iterator<Item = (DevicePort, u64)>) {
        for (at, ends) in others {
            // Pages of a hostile process may name any number of them.
            if self.devices.len() < NAMED || self.devices.contains_key(&at) {
                let sum = self.devices.entry(at).or_default();
                *sum = sum.wrapping_add(ends);
            }
        }
    }

    fn add_counters(&mut self, counters: &[HalfCounters; 2]) {
        for (a, b) in self.counters.iter_mut().flatten().zip(counters.iter().flatten()) {
            *a = a.wrapping_add(*b);
        }
    }

    /// One counter.
    pub fn counter(&self, direction: Direction, counter: Counter) -> u64 {
        self.counters[direction as usize][counter as usize]
    }

    /// Messages that went both ways over SDP, as far as sums tell: see [`RowView::requests`].
    pub fn requests(&self) -> u64 {
        self.messages.sent().min(self.counter(Direction::Receive, Counter::BCopy))
    }

    /// One counter, both halves.
    pub fn both(&self, counter: Counter) -> u64 {
        self.counter(Direction::Send, counter)
            .wrapping_add(self.counter(Direction::Receive, counter))
    }
}

/// Loads from a copy by byte offset; 0 beyond its end.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [u64]);

impl Words<'_> {
    fn u64(self, at: usize) -> u64 {
        self.0.get(at / 8).copied().unwrap_or(0)
    }

    fn i64(self, at: usize) -> i64 {
        self.u64(at).cast_signed()
    }

    fn u32(self, at: usize) -> u32 {
        let bytes = self.u64(at).to_ne_bytes();
        let half = if at % 8 == 4 { &bytes[4..] } else { &bytes[..4] };
        u32::from_ne_bytes([half[0], half[1], half[2], half[3]])
    }

    fn text(self, at: usize, len: usize) -> String {
        let bytes = (at / 8..(at + len) / 8).flat_map(|i| self.u64(i * 8).to_ne_bytes());
        let printable = |b: u8| if (0x20..0x7f).contains(&b) { char::from(b) } else { '?' };
        bytes.take_while(|b| *b != 0).map(printable).collect()
    }
}

macro_rules! header {
    ($field:ident) => {
        core::mem::offset_of!(Page, header) + core::mem::offset_of!(Header, $field)
    };
}
macro_rules! totals {
    ($field:ident) => {
        core::mem::offset_of!(Page, totals) + core::mem::offset_of!(Totals, $field)
    };
}
macro_rules! row {
    ($field:ident) => {
        core::mem::offset_of!(Row, $field)
    };
}
macro_rules! half {
    ($field:ident) => {
        core::mem::offset_of!(RowHalf, $field)
    };
}

/// How many rows a reader looks at, given a copy of the header: at most [`ROWS`].
pub fn rows_used(header: &[u64]) -> usize {
    (Words(header).u32(header!(rows_used)) as usize).min(ROWS)
}

/// Interprets a copy of a page (or of its first part).
///
/// # Errors
/// The copy is no page of this layout.
pub fn parse(words: &[u64]) -> Result<ProcessView, PageError> {
    let w = Words(words);
    if words.len() < HEADER_WORDS {
        return Err(PageError::Short);
    }
    if w.u64(header!(magic)) != MAGIC {
        return Err(PageError::Magic);
    }
    let layout = w.u32(header!(layout));
    let sizes = (w.u32(header!(header_size)) as usize, w.u32(header!(row_size)) as usize);
    if layout != LAYOUT || sizes != (HEADER_SIZE, size_of::<Row>()) {
        return Err(PageError::Layout(layout));
    }
    let mut sums = parse_totals(w);
    let places: [_; DEVICES] = std::array::from_fn(|at| parse_device(w, at));
    let rows: Vec<_> = words[HEADER_WORDS..]
        .chunks_exact(ROW_WORDS)
        .take(rows_used(words))
        .filter_map(|row| parse_row(Words(row), &places))
        .collect();
    for row in &rows {
        sums.add_counters(&row.counters);
        sums.messages.add(&row.messages);
    }
    let devices: Vec<_> = places.into_iter().flatten().collect();
    sums.add_devices(devices.iter().map(|device| (device.at.clone(), device.ends)));
    Ok(ProcessView {
        pid: w.u32(header!(pid)),
        ppid: w.u32(header!(ppid)),
        uid: w.u32(header!(uid)),
        born_ns: w.u64(header!(born_ns)),
        has_exited: w.u32(header!(exited)) == 1,
        is_shared: w.u32(header!(flags)) & crate::writer::SHARED != 0,
        borrowers: w.i64(header!(borrowers)).max(0).cast_unsigned(),
        program: w.text(header!(program), PROGRAM_LEN),
        version: w.text(header!(version), 32),
        rules: parse_rules(w),
        tuned: parse_tuned(w),
        devices,
        sums,
        rows,
    })
}

fn parse_rules(w: Words<'_>) -> Rules {
    let at = |field: usize| header!(rules) + field;
    Rules {
        state: w.u32(at(core::mem::offset_of!(RuleWords, state))),
        rules: w.u32(at(core::mem::offset_of!(RuleWords, rules))),
        errors: w.u32(at(core::mem::offset_of!(RuleWords, errors))),
        changes: w.u32(at(core::mem::offset_of!(RuleWords, changes))),
        since_s: w.u64(at(core::mem::offset_of!(RuleWords, since_s))),
        judged_s: w.u64(at(core::mem::offset_of!(RuleWords, judged_s))),
    }
}

fn parse_device(w: Words<'_>, place: usize) -> Option<DeviceView> {
    let start = core::mem::offset_of!(Page, devices) + place * size_of::<DeviceWords>();
    let at = |field: usize| start + field;
    let name = w.text(at(core::mem::offset_of!(DeviceWords, name)), DEVICE_LEN);
    let port = w.u32(at(core::mem::offset_of!(DeviceWords, port))) as u8;
    let retries = w.u32(at(core::mem::offset_of!(DeviceWords, retries)));
    let [retries, rnr_retries, ..] = retries.to_le_bytes();
    let ends = w.u64(at(core::mem::offset_of!(DeviceWords, ends)));
    let is_there = !name.is_empty() && port != 0;
    is_there.then_some(DeviceView { at: DevicePort { name, port }, ends, retries, rnr_retries })
}

fn parse_tuned(w: Words<'_>) -> Tuned {
    let at = |field: usize| core::mem::offset_of!(Page, tune) + field;
    let text = |field: usize| w.text(at(field), TEXT_LEN);
    let mut in_force = Tuned::settings(&text(core::mem::offset_of!(TuneWords, in_force)));
    in_force.extend(Tuned::settings(&w.text(core::mem::offset_of!(Page, tune_more), MORE_LEN)));
    Tuned {
        asked: w.u32(at(core::mem::offset_of!(TuneWords, asked))),
        taken: w.u32(at(core::mem::offset_of!(TuneWords, taken))),
        refused: w.u32(at(core::mem::offset_of!(TuneWords, refused))),
        request: text(core::mem::offset_of!(TuneWords, request)),
        in_force,
    }
}

fn parse_totals(w: Words<'_>) -> Sums {
    let counter = |half: usize, i: usize| w.u64(totals!(counters) + (half * COUNTERS + i) * 8);
    Sums {
        seen: w.i64(totals!(seen)),
        sdp: w.i64(totals!(sdp)),
        fabrics: std::array::from_fn(|i| w.i64(totals!(fabrics) + i * 8)),
        promoted: w.u64(totals!(promoted)),
        demoted: w.u64(totals!(demoted)),
        unreported: w.u64(totals!(unreported)),
        rowless: w.u64(totals!(rowless)),
        counters: std::array::from_fn(|half| std::array::from_fn(|i| counter(half, i))),
        reasons: std::array::from_fn(|i| w.i64(totals!(reasons) + i * 8)),
        demotions: std::array::from_fn(|i| w.u64(totals!(demotions) + i * 8)),
        refused: std::array::from_fn(|i| w.u64(core::mem::offset_of!(Page, refused) + i * 8)),
        messages: parse_messages(w, totals!(messages)),
        devices: BTreeMap::new(),
    }
}

fn parse_messages(w: Words<'_>, at: usize) -> MessagesView {
    let size = |class: usize| w.u64(at + core::mem::offset_of!(Messages, sizes) + class * 8);
    MessagesView {
        sizes: std::array::from_fn(size),
        full: w.u64(at + core::mem::offset_of!(Messages, full)),
    }
}

fn parse_row(w: Words<'_>, devices: &[Option<DeviceView>; DEVICES]) -> Option<RowView> {
    if w.u32(row!(state)) & 0xffff != ROW_OPEN {
        return None;
    }
    let ports = w.u32(row!(ports));
    let kind = w.u32(row!(kind));
    let endpoint = |at: usize, port: u32| {
        Endpoint::from_words(w.u64(at), w.u64(at + 8), (port & 0xffff) as u16)
    };
    let device = (kind >> 24).checked_sub(1).and_then(|at| devices.get(at as usize)?.as_ref());
    let counter = |half: usize, i: usize| w.u64(row!(counters) + (half * COUNTERS + i) * 8);
    let half = |i: usize| {
        let at = row!(slow) + i * size_of::<RowHalf>();
        let lane = w.u32(at + half!(lane)).to_le_bytes();
        HalfView {
            lane: lane[0],
            fabric: lane[1],
            mode: lane[2],
            reason: w.u32(at + half!(reason)).checked_sub(1),
            promoted: w.u32(at + half!(promoted)),
            demoted: w.u32(at + half!(demoted)),
            credits: w.u32(at + half!(credits)),
            threshold: w.u32(at + half!(threshold)),
            queued: w.u32(at + half!(queued)),
            queue_pair: w.u32(at + half!(queue_pair)),
        }
    };
    Some(RowView {
        fd: w.u32(row!(fd)).cast_signed(),
        carrier: w.u64(row!(carrier)),
        inode: w.u32(row!(inode)),
        local: endpoint(row!(local), ports >> 16),
        remote: endpoint(row!(remote), ports),
        state: kind as u8,
        role: (kind >> 8) as u8,
        is_v6: kind & 1 << 16 != 0,
        is_adopted: kind & 1 << 17 != 0,
        counters: std::array::from_fn(|h| std::array::from_fn(|i| counter(h, i))),
        halves: std::array::from_fn(half),
        messages: parse_messages(w, row!(messages)),
        device: device.map(|device| device.at.clone()),
        peer_full: None,
        peer: None,
    })
}

/// Copies the used part of a page from a file, without mapping it (a file of a hostile process may
/// shrink at any time).
///
/// # Errors
/// Reading failed. A file that ends early gives a short copy, which [`parse`] judges.
pub fn read_file(file: &std::fs::File) -> std::io::Result<Vec<u64>> {
    read_page_at(file, 0)
}

/// [`read_file`] of a page that begins somewhere in a file, as in a core dump.
///
/// # Errors
/// Reading failed.
pub fn read_page_at(file: &std::fs::File, start: u64) -> std::io::Result<Vec<u64>> {
    let mut words = read_words(file, HEADER_WORDS, start)?;
    // A file that only looks like the beginning of a page costs no more than that.
    let is_page = words.len() == HEADER_WORDS && Words(&words).u32(header!(layout)) == LAYOUT;
    if is_page {
        let rows = rows_used(&words);
        words.extend(read_words(file, rows * ROW_WORDS, start + HEADER_SIZE as u64)?);
    }
    Ok(words)
}

/// Words from a place of a file on; fewer where it ends.
fn read_words(file: &std::fs::File, words: usize, at: u64) -> std::io::Result<Vec<u64>> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0u8; words * 8];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
    Ok(bytes[..done].chunks_exact(8).map(word).collect())
}

/// The recorder of a page that begins at `start` of a file. It is read twice: an event that is being written meanwhile is
/// left out.
///
/// # Errors
/// Reading failed.
pub fn read_trace_at(file: &std::fs::File, start: u64) -> std::io::Result<Vec<EventView>> {
    let at = start + (SIZE - size_of::<Trace>()) as u64;
    let read = || read_words(file, EVENTS * EVENT_WORDS, at);
    let (first, second) = (read()?, read()?);
    Ok(parse_events(&first, &second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{ConnState, Device, Fabric, Identity, Lane, Mode, NewRow, Role, Verdict};
    use core::sync::atomic::AtomicU32;

    fn filled() -> Vec<u64> {
        let page = crate::map::zeroed_page();
        page.init(&Identity {
            pid: 42,
            ppid: 41,
            uid: 1000,
            now_ns: 5,
            program: b"redis\x1bserver",
            version: b"0.1.0",
        });
        let word = AtomicU32::new(0);
        page.count_seen(Verdict::at(&word), Reason::TooYoung);
        let row = NewRow {
            carrier: 99,
            inode: 1 << 33 | 7,
            fd: 5,
            local: Endpoint::v4([127, 0, 0, 1], 6379),
            remote: Endpoint::v6([9; 16], 40_000),
            is_v6: true,
            is_adopted: true,
            role: Role::Client,
            state: ConnState::Established,
        };
        let gone = page.open_row(&row);
        let id = page.open_row(&row);
        page.moved(gone, Direction::Send, Lane::Kernel, 3);
        page.close_row(gone);
        page.promoted(id, Direction::Send, Fabric::Shm);
        page.show_mode(id, Direction::Send, Mode::Combined);
        page.promoted(id, Direction::Receive, Fabric::Shm);
        page.demoted(id, Direction::Receive, Reason::Shared);
        page.show_flow(id, Direction::Receive, 1, 2, 3);
        page.moved(id, Direction::Send, Lane::Sdp, 1000);
        page.count_sdp(Verdict::at(&word), Fabric::Shm);
        page.show_state(id, ConnState::CloseWait);
        page.show_fd(id, 6);
        let device = |name, port| Device { name, port, retries: 6, rnr_retries: 7 };
        for (name, port) in [(&b"rxe\x1b0"[..], 2), (b"rxe1\0\0", 1), (b"rxe1", 1), (b"rxe1", 1)] {
            page.show_device(id, &device(name, port));
        }
        page.show_queue_pair(id, 17, 18);
        page.show_credits(id, Direction::Send, 12);
        crate::map::words_of(&page)
    }

    #[test]
    fn what_is_written_is_read() {
        let view = parse(&filled()).unwrap();
        assert_eq!((view.pid, view.ppid, view.uid), (42, 41, 1000));
        assert_eq!(view.program, "redis?server");
        assert_eq!(view.version, "0.1.0");
        assert_eq!((view.sums.seen, view.sums.sdp, view.sums.fabrics), (1, 1, [1, 0]));
        assert_eq!(view.sums.reasons.iter().sum::<i64>(), 0);
        assert_eq!(view.sums.counter(Direction::Send, Counter::SdpBytes), 1000);
        assert_eq!(view.sums.counter(Direction::Send, Counter::TcpBytes), 3);
        assert_eq!(view.sums.both(Counter::TcpBytes), 3);
        assert_eq!(view.rows.len(), 1);
        let row = &view.rows[0];
        assert_eq!((row.fd, row.carrier, row.inode), (6, 99, 7));
        assert_eq!(row.local, Endpoint::v4([127, 0, 0, 1], 6379));
        assert_eq!(row.remote, Endpoint::v6([9; 16], 40_000));
        assert_eq!((row.state, row.role, row.is_v6), (8, 1, true));
        assert!(row.is_adopted);
        assert_eq!(view.born_ns, 5);
        assert!(row.halves[0].is_sdp() && row.has_live_lane());
        assert_eq!((row.halves[0].fabric, row.halves[0].mode), (1, 2));
        assert_eq!(row.halves[1].reason, Some(u32::from(Reason::Shared.code())));
        assert_eq!(row.halves[1].queued, 3);
        assert_eq!(row.halves.map(|half| half.queue_pair), [17, 18]);
        assert_eq!(row.halves.map(|half| half.credits), [12, 1]);
        let device = |name: &str, port, ends| DeviceView {
            at: DevicePort { name: name.into(), port },
            ends,
            retries: 6,
            rnr_retries: 7,
        };
        assert_eq!(view.devices, [device("rxe?0", 2, 1), device("rxe1", 1, 1)]);
        assert_eq!(row.device.as_ref().map(ToString::to_string).as_deref(), Some("rxe1 port 1"));
        assert_eq!(view.sums.devices.values().sum::<u64>(), 2);
        assert_eq!(ReasonCode(4).to_string(), "shared");
        assert_eq!(ReasonCode(63).to_string(), "reason-63");
    }

    #[test]
    fn other_layouts_and_rubbish_are_refused() {
        let good = filled();
        assert_eq!(parse(&[]).unwrap_err(), PageError::Short);
        assert_eq!(parse(&good[..HEADER_WORDS - 1]).unwrap_err(), PageError::Short);
        assert!(parse(&good[..HEADER_WORDS]).unwrap().rows.is_empty());
        let mut other = good.clone();
        other[0] ^= 1;
        assert_eq!(parse(&other).unwrap_err(), PageError::Magic);
        let mut other = good.clone();
        other[1] = 2;
        assert_eq!(parse(&other).unwrap_err(), PageError::Layout(2));
    }

    #[test]
    fn more_devices_than_places() {
        let page = crate::map::zeroed_page();
        page.init(&Identity { pid: 1, ppid: 1, uid: 0, now_ns: 0, program: b"", version: b"" });
        let row = NewRow {
            carrier: 1,
            inode: 0,
            fd: 5,
            local: Endpoint::NONE,
            remote: Endpoint::NONE,
            is_v6: false,
            is_adopted: false,
            role: Role::Client,
            state: ConnState::Established,
        };
        let id = page.open_row(&row);
        let long = [b'x'; 2 * DEVICE_LEN];
        let show = |name: &[u8], port| {
            page.show_device(id, &Device { name, port, retries: 0, rnr_retries: 0 });
            let view = parse(&crate::map::words_of(&page)).unwrap();
            (view.devices.len(), view.rows[0].device.clone().map(|at| (at.name.len(), at.port)))
        };
        assert_eq!(show(&long, 1), (1, Some((DEVICE_LEN - 1, 1))));
        for port in 2..=DEVICES as u8 {
            assert_eq!(show(&long, port), (port.into(), Some((DEVICE_LEN - 1, port))));
        }
        // No place is left; one that has a place is found.
        assert_eq!(show(b"another", 1), (DEVICES, None));
        assert_eq!(show(&long, 3), (DEVICES, Some((DEVICE_LEN - 1, 3))));
        page.show_queue_pair(id, 0, 0);
        page.close_row(id);
        assert_eq!(page.open_row(&row), id);
        assert_eq!(parse(&crate::map::words_of(&page)).unwrap().rows[0].device, None);
    }

    #[test]
    fn hostile_content_never_panics() {
        let good = filled();
        let mut seed = 1u64;
        let mut next = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 20
        };
        for round in 0..3000 {
            let mut words = good.clone();
            for _ in 0..next() % 64 {
                let len = words.len();
                // Keep the two words that would end the parse at once.
                let at = 2 + next() as usize % (len.min(HEADER_WORDS + 4 * ROW_WORDS) - 2);
                words[at] = match next() % 4 {
                    0 => u64::MAX,
                    1 => 0,
                    2 => 1 << 63,
                    _ => next().wrapping_mul(next()),
                };
            }
            words.truncate(HEADER_WORDS + next() as usize % (words.len() - HEADER_WORDS));
            if let Ok(view) = parse(&words) {
                assert!(view.rows.len() <= ROWS, "round {round}");
                let mut sums = view.sums.clone();
                sums.add(&view.sums);
                assert!(view.program.len() <= PROGRAM_LEN && view.program.is_ascii());
            }
        }
    }
}

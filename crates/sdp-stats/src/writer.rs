//! The writing side, used inside `libsdp.so`.
//!
//! Two kinds of counters. *Row counters* belong to one half of one connection end in one process;
//! their writer holds that half's lock, so a relaxed load and store is enough (about 1 ns, no locked
//! instruction). Bytes on the kernel lane are the exception: they are added, because calls there hold
//! no lock. *Totals* are shared by all threads and are changed with `fetch_add`; they are only
//! touched when a connection opens, changes lane or closes.
//!
//! Connection ends are counted through a [`Verdict`], one word per carrier end that all its holders
//! share: the process that sees the connection first counts it, every later change moves the one
//! count. So `sdp + tcp == seen` and `sum(reasons) == tcp` hold over the pages of a run at any
//! quiet moment, also when processes are killed, without reading each connection's history.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::page::{
    COUNTERS, DEVICE_LEN, HEADER_SIZE, LAYOUT, MAGIC, PROGRAM_LEN, Page, ROWS, Row, RowHalf, SIZES,
};
use crate::reason::{MAX_REASONS, Reason};

/// Attempts to take a row from, or give it back to, the free list before the row is done without
/// (or left unused): another thread interfered each time.
const ALLOCATION_ATTEMPTS: usize = 64;

/// Direction of a half, from the program's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Direction {
    /// Bytes that the program sends.
    Send = 0,
    /// Bytes that the program receives.
    Receive = 1,
}

/// A counter that each half has. Bytes are payload bytes that the program's calls moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Bytes on an SDP lane.
    SdpBytes = 0,
    /// Bytes on the kernel lane.
    TcpBytes = 1,
    /// Messages by buffer copy, counted by the data sink (receiving half) only: those that are sent are counted by their
    /// size.
    BCopy = 2,
    /// Transfers by Read ZCopy, counted by the data source only.
    ReadZCopy = 3,
    /// Transfers by Write ZCopy, counted by the data source only.
    WriteZCopy = 4,
    /// Bytes moved by either zero copy, counted by the data source only; also in `SdpBytes`.
    ZCopyBytes = 5,
    /// Waits that ended while spinning.
    Spun = 6,
    /// Waits that slept in the kernel.
    Slept = 7,
}

/// Bit of the header's flags.
pub(crate) const SHARED: u32 = 1;

const _: () = assert!(Counter::Slept as usize + 1 == COUNTERS);

/// The lane of a half's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Lane {
    /// The TCP socket itself.
    Kernel = 0,
    /// An SDP lane.
    Sdp = 1,
}

/// How an SDP lane reaches the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fabric {
    /// Shared memory on one host.
    Shm = 1,
    /// RDMA through verbs.
    Verbs = 2,
}

/// Flow-control mode of a half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Not known, or no SDP lane.
    None = 0,
    /// Buffered.
    Buffered = 1,
    /// Combined.
    Combined = 2,
    /// Pipelined.
    Pipelined = 3,
}

/// State as sockets users know it; numbers as in `/proc/net/tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum ConnState {
    Established = 1,
    SynSent = 2,
    SynRecv = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    Close = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
}

/// How the process came to the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// By `connect`.
    Client = 1,
    /// By `accept`.
    Server = 2,
    /// By `listen`: the row is a listener.
    Listener = 3,
    /// By fork, exec or SCM_RIGHTS.
    Inherited = 4,
}

/// One address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Endpoint {
    /// Address in network order; IPv4 as v4-mapped (`::ffff:a.b.c.d`).
    pub addr: [u8; 16],
    /// Port, host order.
    pub port: u16,
}

impl Endpoint {
    /// From an IPv4 address.
    pub const fn v4(a: [u8; 4], port: u16) -> Self {
        let addr = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]];
        Self { addr, port }
    }

    /// From an IPv6 address.
    pub const fn v6(addr: [u8; 16], port: u16) -> Self {
        Self { addr, port }
    }

    /// Not known, or no end at all.
    pub const NONE: Self = Self { addr: [0; 16], port: 0 };

    fn words(&self) -> [u64; 2] {
        let n = u128::from_le_bytes(self.addr);
        [n as u64, (n >> 64) as u64]
    }

    /// Back from the two words of a row.
    #[cfg(feature = "reader")]
    pub(crate) fn from_words(low: u64, high: u64, port: u16) -> Self {
        Self { addr: (u128::from(high) << 64 | u128::from(low)).to_le_bytes(), port }
    }
}

/// The identity of the process, for [`Page::init`].
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// Process id in its own pid namespace.
    pub pid: u32,
    /// Parent's.
    pub ppid: u32,
    /// Real user id.
    pub uid: u32,
    /// `CLOCK_BOOTTIME` nanoseconds.
    pub now_ns: u64,
    /// Short name (against which rules are matched); cut after [`PROGRAM_LEN`] bytes.
    pub program: &'a [u8],
    /// Version of the library; cut after 32 bytes.
    pub version: &'a [u8],
}

/// The content of a new row.
#[derive(Debug, Clone, Copy)]
pub struct NewRow {
    /// Cookie of the carrier socket (`SO_COOKIE`).
    pub carrier: u64,
    /// Inode of the carrier socket; 0: readers find it by the descriptor.
    pub inode: u64,
    /// Descriptor number.
    pub fd: i32,
    /// Local end; all zero when not known yet, as the remote end.
    pub local: Endpoint,
    /// Remote end; all zero for a listener.
    pub remote: Endpoint,
    /// Whether the socket is an AF_INET6 one.
    pub is_v6: bool,
    /// Whether another process used the connection's SDP lanes before: the row's counters are not the
    /// whole story of the connection.
    pub is_adopted: bool,
    /// How the process came to it.
    pub role: Role,
    /// State to begin with.
    pub state: ConnState,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    /// The device's name, zero padded or not; cut after [`DEVICE_LEN`] bytes.
    pub name: &'a [u8],
    /// The port's number, from 1.
    pub port: u8,
    /// How often its queue pairs send again what is not answered.
    pub retries: u8,
    /// How often they send again what found no receive buffer; 7: for ever.
    pub rnr_retries: u8,
}

/// Names an open row of this process's page; [`RowId::NONE`] counts into the totals only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct RowId(u32);

impl RowId {
    /// No row: counters go to the totals directly (with locked instructions).
    pub const NONE: Self = Self(u32::MAX);

    /// The raw number, for storing in a table.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// From [`RowId::raw`]; a number that is no row behaves as [`RowId::NONE`].
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// How one carrier end is counted: a view of one word, zero when new, that all holders of the end
/// share (family memory). 0 = not counted, 1 = SDP, 2 + code = kernel lane with that reason. Any
/// other value in the word is harmless: it is counted nowhere.
#[derive(Debug, Clone, Copy)]
pub struct Verdict<'a>(&'a AtomicU32);

const VERDICT_NEW: u32 = 0;
const VERDICT_SDP: u32 = 1;
const VERDICT_TCP: u32 = 2;

impl<'a> Verdict<'a> {
    /// The verdict kept in `word`.
    pub const fn at(word: &'a AtomicU32) -> Self {
        Self(word)
    }

    /// Raw value of an end that moved payload on an SDP lane.
    pub const SDP: u32 = VERDICT_SDP;

    /// Raw value of an end that has not, because of `reason`.
    pub const fn kernel(reason: Reason) -> u32 {
        VERDICT_TCP + reason.code() as u32
    }

    /// Whether a raw value says that the end was counted.
    pub fn is_counted(raw: u32) -> bool {
        raw == VERDICT_SDP
            || raw.checked_sub(VERDICT_TCP).is_some_and(|code| (code as usize) < MAX_REASONS)
    }

    /// The word's value, to go on with elsewhere.
    pub fn raw(self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Goes on from a verdict that was counted elsewhere, which is not counted again. Without
    /// effect for a value that is no verdict.
    pub fn resume(self, raw: u32) {
        if Self::is_counted(raw) {
            self.0.store(raw, Relaxed);
        }
    }

    /// Forgets everything, for a slot that is used again.
    pub fn reset(self) {
        self.0.store(VERDICT_NEW, Relaxed);
    }

    /// Why the end is on the kernel lane, if it is counted so.
    pub fn reason(self) -> Option<Reason> {
        Reason::from_code(self.0.load(Relaxed).checked_sub(VERDICT_TCP)?)
    }

    /// Whether a byte was moved on an SDP lane.
    #[inline]
    pub fn is_sdp(self) -> bool {
        self.0.load(Relaxed) == VERDICT_SDP
    }
}

/// `add` for a counter with a single writer at a time: no locked instruction.
#[inline(always)]
fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The class of a message's size: [`crate::page::SIZES`].
#[inline(always)]
const fn size_class(bytes: u32) -> usize {
    let bits = u32::BITS - (bytes.wrapping_sub(1) | 63).leading_zeros();
    let class = (bits - 5) / 2;
    if class < SIZES as u32 { class as usize } else { SIZES - 1 }
}

fn store_ends(row: &Row, local: Endpoint, remote: Endpoint) {
    for (words, end) in [(&row.local, local), (&row.remote, remote)] {
        for (word, value) in words.iter().zip(end.words()) {
            word.store(value, Relaxed);
        }
    }
    row.ports.store(u32::from(local.port) << 16 | u32::from(remote.port), Relaxed);
}

fn is_sdp(half: &RowHalf) -> bool {
    half.lane.load(Relaxed) & 0xff == Lane::Sdp as u32
}

fn store_text(words: &[AtomicU64], text: &[u8]) {
    for (i, word) in words.iter().enumerate() {
        let mut bytes = [0u8; 8];
        for (j, b) in bytes.iter_mut().enumerate() {
            *b = text.get(i * 8 + j).copied().unwrap_or(0);
        }
        word.store(u64::from_ne_bytes(bytes), Relaxed);
    }
}

impl Page {
    /// Makes a fresh (all-zero) memfd a page. Once per page, before any other thread sees it.
    pub fn init(&self, who: &Identity<'_>) {
        let h = &self.header;
        h.layout.store(LAYOUT, Relaxed);
        h.header_size.store(HEADER_SIZE as u32, Relaxed);
        h.row_size.store(size_of::<Row>() as u32, Relaxed);
        h.rows.store(ROWS as u32, Relaxed);
        h.pid.store(who.pid, Relaxed);
        h.ppid.store(who.ppid, Relaxed);
        h.uid.store(who.uid, Relaxed);
        h.born_ns.store(who.now_ns, Relaxed);
        store_text(&h.program, who.program.get(..PROGRAM_LEN - 1).unwrap_or(who.program));
        store_text(&h.version, who.version.get(..31).unwrap_or(who.version));
        // Pairs with the reader's acquire load: a reader that sees the magic sees the sizes.
        h.magic.store(MAGIC, Release);
    }

    /// The process is about to end in an orderly way.
    pub fn mark_exited(&self) {
        self.header.exited.store(1, Relaxed);
    }

    /// From here on fork children may count here, also when the process has ended.
    pub fn expect_borrowers(&self) {
        if self.header.flags.load(Relaxed) & SHARED == 0 {
            self.header.flags.fetch_or(SHARED, Relaxed);
        }
    }

    /// `n` more fork children count here, or fewer: they have pages of their own.
    pub fn count_borrower(&self, n: i64) {
        self.header.borrowers.fetch_add(n, Relaxed);
    }

    /// A child of this process could not hand in its page.
    pub fn count_unreported(&self) {
        self.totals.unreported.fetch_add(1, Relaxed);
    }

    /// A connection was refused, at either end, because the rules want SDP or nothing.
    pub fn count_refused(&self, reason: Reason) {
        if let Some(n) = self.refused.get(reason as usize) {
            n.fetch_add(1, Relaxed);
        }
    }

    /// Connection ends seen, and those of them that moved payload on an SDP lane.
    pub fn ends(&self) -> (u64, u64) {
        let of = |n: &core::sync::atomic::AtomicI64| n.load(Relaxed).max(0) as u64;
        (of(&self.totals.seen), of(&self.totals.sdp))
    }

    /// For one reason: ends that never moved payload on an SDP lane, halves that left it, and
    /// connections that were refused.
    pub fn times(&self, reason: Reason) -> [u64; 3] {
        let at = reason as usize;
        let ends = self.totals.reasons.get(at).map_or(0, |n| n.load(Relaxed));
        let of = |n: Option<&AtomicU64>| n.map_or(0, |n| n.load(Relaxed));
        [ends.max(0) as u64, of(self.totals.demotions.get(at)), of(self.refused.get(at))]
    }

    // ---- connection ends -------------------------------------------------------------------

    /// A connection end was established (after `connect` or `accept`): counts it once per carrier. True
    /// when it was not counted before.
    pub fn count_seen(&self, verdict: Verdict<'_>, reason: Reason) -> bool {
        let new = VERDICT_TCP + u32::from(reason.code());
        let is_new = verdict.0.compare_exchange(VERDICT_NEW, new, Relaxed, Relaxed).is_ok();
        if is_new {
            self.count_end(new, 1); // whoever changed the word since has taken away what is added here
        }
        is_new
    }

    /// An end that was counted in `inherited` is counted here from now on.
    pub fn adopt_end(&self, inherited: &Self, verdict: Verdict<'_>) {
        // Read once: a family member may change it meanwhile, and the count taken from one page
        // must be added to the other.
        let counted = verdict.raw();
        inherited.count_end(counted, -1);
        self.count_end(counted, 1);
    }

    /// `n` more ends that have been seen, with the reason that the raw verdict gives, if any.
    fn count_end(&self, verdict: u32, n: i64) {
        self.totals.seen.fetch_add(n, Relaxed);
        if verdict >= VERDICT_TCP {
            self.add_reason(verdict, n);
        }
    }

    /// The reason for which the carrier end has not moved an SDP byte changed. Without effect once
    /// it has, or when it was never counted.
    pub fn count_reason(&self, verdict: Verdict<'_>, reason: Reason) {
        let new = VERDICT_TCP + u32::from(reason.code());
        let change = |old| (old >= VERDICT_TCP && old != new).then_some(new);
        if let Ok(old) = verdict.0.fetch_update(Relaxed, Relaxed, change) {
            self.add_reason(old, -1);
            self.add_reason(new, 1);
        }
    }

    /// The carrier end moved payload on an SDP lane. Cheap when it did so before: one load.
    #[inline]
    pub fn count_sdp(&self, verdict: Verdict<'_>, fabric: Fabric) {
        if !verdict.is_sdp() {
            self.count_first_sdp(verdict, fabric);
        }
    }

    #[cold]
    fn count_first_sdp(&self, verdict: Verdict<'_>, fabric: Fabric) {
        match verdict.0.swap(VERDICT_SDP, Relaxed) {
            VERDICT_SDP => return,
            VERDICT_NEW => {
                self.totals.seen.fetch_add(1, Relaxed);
            }
            old => self.add_reason(old, -1),
        }
        self.totals.sdp.fetch_add(1, Relaxed);
        if let Some(n) = self.totals.fabrics.get(fabric as usize - 1) {
            n.fetch_add(1, Relaxed);
        }
    }

    fn add_reason(&self, verdict: u32, n: i64) {
        if let Some(counter) = self.totals.reasons.get((verdict - VERDICT_TCP) as usize) {
            counter.fetch_add(n, Relaxed);
        }
    }

    // ---- rows ------------------------------------------------------------------------------

    /// Opens a row. [`RowId::NONE`] when the table is full: everything then counts in the totals.
    pub fn open_row(&self, new: &NewRow) -> RowId {
        let Some((id, row)) = self.allocate() else {
            self.totals.rowless.fetch_add(1, Relaxed);
            return RowId::NONE;
        };
        row.carrier.store(new.carrier, Relaxed);
        row.inode.store(new.inode as u32, Relaxed);
        row.fd.store(new.fd, Relaxed);
        store_ends(row, new.local, new.remote);
        let flags = u32::from(new.is_v6) | u32::from(new.is_adopted) << 1;
        let kind = new.state as u32 | (new.role as u32) << 8 | flags << 16;
        row.kind.store(kind, Relaxed);
        // Release: a reader that sees the row open sees its identity.
        row.state.store(row.state.load(Relaxed) & !0xffff | ROW_OPEN, Release);
        id
    }

    /// Closes a row: its counters are folded into the totals. The caller holds both halves' locks
    /// or is otherwise the only user. Without effect for [`RowId::NONE`].
    #[unsafe(link_section = ".text.open")]
    pub fn close_row(&self, id: RowId) {
        let Some(row) = self.row(id) else { return };
        let state = row.state.load(Relaxed);
        if state & 0xffff != ROW_OPEN {
            return;
        }
        // Out of readers' sight first, so that nothing is counted twice for long.
        row.state.store(state.wrapping_add(1 << 16) & !0xffff | ROW_BUSY, Release);
        for (from, to) in row.counters.iter().zip(&self.totals.counters) {
            for (from, to) in from.iter().zip(to) {
                let n = from.load(Relaxed);
                if n != 0 {
                    to.fetch_add(n, Relaxed);
                    from.store(0, Relaxed);
                }
            }
        }
        let from = row.messages.sizes.iter().chain([&row.messages.full]);
        let to = self.totals.messages.sizes.iter().chain([&self.totals.messages.full]);
        for (from, to) in from.zip(to) {
            let n = from.load(Relaxed);
            if n != 0 {
                to.fetch_add(n, Relaxed);
                from.store(0, Relaxed);
            }
        }
        for half in &row.slow {
            for word in [
                &half.lane,
                &half.reason,
                &half.promoted,
                &half.demoted,
                &half.credits,
                &half.threshold,
                &half.queued,
                &half.queue_pair,
            ] {
                word.store(0, Relaxed);
            }
        }
        self.release(id, row);
    }

    /// Adds to a counter of a half. The caller holds that half's lock.
    #[inline(always)]
    pub fn add(&self, id: RowId, direction: Direction, counter: Counter, n: u64) {
        match self.rows.get(id.0 as usize) {
            Some(row) => bump(&row.counters[direction as usize][counter as usize], n),
            None => {
                self.totals.counters[direction as usize][counter as usize].fetch_add(n, Relaxed);
            }
        }
    }

    /// Payload bytes that one call moved on the kernel lane. `alone`: no other thread can be at the page, nor
    /// a signal handler; then there is no locked instruction.
    #[inline(always)]
    pub fn moved_kernel(&self, id: RowId, direction: Direction, bytes: u64, alone: bool) {
        let counters = match self.rows.get(id.0 as usize) {
            Some(row) => &row.counters,
            None => &self.totals.counters,
        };
        let counter = &counters[direction as usize][Counter::TcpBytes as usize];
        // The totals may be another process's, too.
        if alone && id != RowId::NONE {
            bump(counter, bytes);
        } else {
            counter.fetch_add(bytes, Relaxed);
        }
    }

    /// A row that was just opened takes over `bytes` on the kernel lane that were counted in the totals.
    pub fn adopt_bytes(&self, id: RowId, direction: Direction, bytes: u64) {
        if bytes != 0 && id != RowId::NONE {
            self.give_bytes(direction, bytes);
            self.moved_kernel(id, direction, bytes, false);
        }
    }

    /// `bytes` on the kernel lane that were counted in the totals are counted elsewhere.
    pub fn give_bytes(&self, direction: Direction, bytes: u64) {
        let counter = &self.totals.counters[direction as usize][Counter::TcpBytes as usize];
        counter.fetch_sub(bytes, Relaxed);
    }

    /// Payload bytes that one call moved. On an SDP lane the caller holds that half's lock; calls on
    /// the kernel lane, which cost a system call anyway, may run side by side.
    #[inline(always)]
    pub fn moved(&self, id: RowId, direction: Direction, lane: Lane, bytes: u64) {
        match lane {
            Lane::Sdp => self.add(id, direction, Counter::SdpBytes, bytes),
            Lane::Kernel => self.moved_kernel(id, direction, bytes, false),
        }
    }

    /// `n` messages of `bytes` payload each were sent over SDP. The caller holds the sending half's lock.
    #[inline(always)]
    pub fn sent_messages(&self, id: RowId, bytes: u32, n: u64) {
        let class = size_class(bytes);
        match self.rows.get(id.0 as usize) {
            Some(row) => row.messages.sizes.get(class).into_iter().for_each(|size| bump(size, n)),
            None => self.totals.messages.sizes.get(class).into_iter().for_each(|size| {
                size.fetch_add(n, Relaxed);
            }),
        }
    }

    /// A sender found no room.
    #[cold]
    pub fn was_full(&self, id: RowId) {
        let messages = self.row(id).map_or(&self.totals.messages, |row| &row.messages);
        messages.full.fetch_add(1, Relaxed);
    }

    /// A half was promoted to an SDP lane. Without effect, and false, on a row whose half is on one already.
    pub fn promoted(&self, id: RowId, direction: Direction, fabric: Fabric) -> bool {
        if let Some(half) = self.half(id, direction) {
            if is_sdp(half) {
                return false;
            }
            half.promoted.fetch_add(1, Relaxed);
            self.show_lane(id, direction, fabric);
        }
        self.totals.promoted.fetch_add(1, Relaxed);
        true
    }

    /// A half was demoted to the kernel lane. On a row whose half is not on an SDP lane only the
    /// reason changes; that is false.
    pub fn demoted(&self, id: RowId, direction: Direction, reason: Reason) -> bool {
        if let Some(half) = self.half(id, direction) {
            let was_sdp = is_sdp(half);
            half.lane.store(Lane::Kernel as u32, Relaxed);
            half.credits.store(0, Relaxed);
            self.show_reason(id, direction, reason);
            if !was_sdp {
                return false;
            }
            half.demoted.fetch_add(1, Relaxed);
        }
        if direction == Direction::Send && matches!(reason, Reason::RingFull | Reason::Credit) {
            self.was_full(id);
        }
        self.totals.demoted.fetch_add(1, Relaxed);
        if let Some(n) = self.totals.demotions.get(reason as usize) {
            n.fetch_add(1, Relaxed);
        }
        true
    }

    /// The half is on an SDP lane, to which another process promoted it: shown, not counted.
    pub fn show_lane(&self, id: RowId, direction: Direction, fabric: Fabric) {
        if let Some(half) = self.half(id, direction) {
            half.lane.store(
                Lane::Sdp as u32 | (fabric as u32) << 8 | (Mode::Buffered as u32) << 16,
                Relaxed,
            );
            if fabric == Fabric::Shm {
                // Implicit: as many messages may be sent as fit into the ring (protocol credits
                // never run out).
                half.credits.store(u16::MAX.into(), Relaxed);
            }
            half.reason.store(0, Relaxed);
        }
    }

    /// Why the half is on the kernel lane, as `sdp stat` shows it; of no effect while it is not.
    pub fn show_reason(&self, id: RowId, direction: Direction, reason: Reason) {
        if let Some(half) = self.half(id, direction)
            && !is_sdp(half)
        {
            half.reason.store(u32::from(reason.code()) + 1, Relaxed);
        }
    }

    /// The addresses of the row's connection, learnt after it was opened.
    pub fn show_ends(&self, id: RowId, local: Endpoint, remote: Endpoint) {
        if let Some(row) = self.row(id) {
            store_ends(row, local, remote);
        }
    }

    /// Flow-control mode of a half that is on an SDP lane.
    pub fn show_mode(&self, id: RowId, direction: Direction, mode: Mode) {
        if let Some(half) = self.half(id, direction) {
            half.lane.store(half.lane.load(Relaxed) & 0xffff | (mode as u32) << 16, Relaxed);
        }
    }

    /// Credits, zero-copy threshold (bytes) and bytes queued of a half. A gauge: whenever convenient.
    #[inline]
    pub fn show_flow(
        &self,
        id: RowId,
        direction: Direction,
        credits: u32,
        threshold: u32,
        queued: u32,
    ) {
        if let Some(half) = self.half(id, direction) {
            half.credits.store(credits, Relaxed);
            half.threshold.store(threshold, Relaxed);
            half.queued.store(queued, Relaxed);
        }
    }

    /// Credits of a half. A gauge.
    #[inline]
    pub fn show_credits(&self, id: RowId, direction: Direction, credits: u32) {
        if let Some(half) = self.half(id, direction) {
            half.credits.store(credits, Relaxed);
        }
    }

    /// The numbers of a connection's queue pair, at this end and at the other; both 0: it has none any more.
    pub fn show_queue_pair(&self, id: RowId, own: u32, peer: u32) {
        for (direction, number) in [(Direction::Send, own), (Direction::Receive, peer)] {
            if let Some(half) = self.half(id, direction) {
                half.queue_pair.store(number, Relaxed);
            }
        }
    }

    /// The connection has met by this device. It keeps the name until it meets by another. By one thread at a time.
    pub fn show_device(&self, id: RowId, device: &Device<'_>) {
        let place = self.device_place(device);
        let mut was = None;
        if let Some(row) = self.row(id) {
            let kind = row.kind.load(Relaxed);
            was = usize::try_from(kind >> 24).ok().and_then(|at| at.checked_sub(1));
            let at = place.map_or(0, |at| at as u32 + 1);
            row.kind.store(kind & 0x00ff_ffff | at << 24, Relaxed);
        }
        if let Some(words) = place.filter(|_| was != place).and_then(|at| self.devices.get(at)) {
            words.ends.fetch_add(1, Relaxed);
        }
    }

    /// The place of the device in the table, which it gets if there is one left.
    fn device_place(&self, device: &Device<'_>) -> Option<usize> {
        let mut name = [const { AtomicU64::new(0) }; DEVICE_LEN / 8];
        let bytes = device.name.get(..DEVICE_LEN - 1).unwrap_or(device.name);
        store_text(&name, bytes);
        let retries = u32::from(device.retries) | u32::from(device.rnr_retries) << 8;
        self.devices.iter().position(|words| {
            if words.port.load(Relaxed) == 0 {
                for (to, from) in words.name.iter().zip(&mut name) {
                    to.store(*from.get_mut(), Relaxed);
                }
                words.retries.store(retries, Relaxed);
                // Release: a reader that sees the port sees the name.
                words.port.store(device.port.into(), Release);
            }
            let is_same = |(a, b): (&AtomicU64, &AtomicU64)| a.load(Relaxed) == b.load(Relaxed);
            words.port.load(Relaxed) == device.port.into()
                && words.name.iter().zip(&name).all(is_same)
        })
    }

    /// The state that tools show.
    pub fn show_state(&self, id: RowId, state: ConnState) {
        if let Some(row) = self.row(id) {
            row.kind.store(row.kind.load(Relaxed) & !0xff | state as u32, Relaxed);
        }
    }

    /// The descriptor number changed (the program closed one of several).
    pub fn show_fd(&self, id: RowId, fd: i32) {
        if let Some(row) = self.row(id) {
            row.fd.store(fd, Relaxed);
        }
    }

    fn row(&self, id: RowId) -> Option<&Row> {
        self.rows.get(id.0 as usize)
    }

    fn half(&self, id: RowId, direction: Direction) -> Option<&RowHalf> {
        self.row(id).and_then(|row| row.slow.get(direction as usize))
    }

    /// A free row, marked as being written. Lock-free, bounded.
    fn allocate(&self) -> Option<(RowId, &Row)> {
        let h = &self.header;
        for _ in 0..ALLOCATION_ATTEMPTS {
            // Acquire pairs with `release`: the row's `next` is seen as it was when pushed.
            let free = h.free.load(Acquire);
            let index = (free as u32).wrapping_sub(1);
            let Some(row) = self.rows.get(index as usize) else { break };
            // The tag changes with every push and pop, so a stale `next` cannot be installed.
            let new = tagged(free, row.next.load(Relaxed));
            if h.free.compare_exchange(free, new, AcqRel, Relaxed).is_ok() {
                row.state.store(row.state.load(Relaxed) & !0xffff | ROW_BUSY, Relaxed);
                return Some((RowId(index), row));
            }
        }
        let next = |n: u32| ((n as usize) < ROWS).then_some(n.wrapping_add(1));
        let index = h.rows_used.fetch_update(Relaxed, Relaxed, next).ok()?;
        let row = self.rows.get(index as usize)?;
        row.state.store(ROW_BUSY, Relaxed);
        Some((RowId(index), row))
    }

    fn release(&self, id: RowId, row: &Row) {
        row.state.store(row.state.load(Relaxed) & !0xffff | ROW_FREE, Release);
        let free = &self.header.free;
        for _ in 0..ALLOCATION_ATTEMPTS {
            let old = free.load(Relaxed);
            row.next.store(old as u32, Relaxed);
            // Release pairs with the acquire in `allocate`.
            if free.compare_exchange(old, tagged(old, id.0 + 1), AcqRel, Relaxed).is_ok() {
                return;
            }
        }
        // Lost 64 races in a row: the row stays unused until the process ends.
    }
}

/// The lower half of a row's state word.
pub(crate) const ROW_FREE: u32 = 0;
pub(crate) const ROW_BUSY: u32 = 1;
pub(crate) const ROW_OPEN: u32 = 2;

fn tagged(old: u64, index_plus_one: u32) -> u64 {
    ((old >> 32).wrapping_add(1) << 32) | u64::from(index_plus_one)
}

#[cfg(test)]
mod tests;

//! The layout of a page: header, totals, rows.
//!
//! Used by the library (which writes) and by tools (which read a copy word by word). Everything is
//! an atomic, so that a `&Page` may exist while other processes read, and every bit pattern is a
//! valid page. The layout refuses references, enums and lengths that a reader would have to trust.
//!
//! ```text
//! 0     Header   who writes: pid, start, program name, layout sizes
//! 512   Totals   counters of the whole process; closed rows are folded into them
//!       TuneWords what tools ask for, and the tunables in force: the one part that tools write
//!       refused   connections that rules refused, by reason
//!       devices   RDMA devices by which connections have met
//!       more      of the tunables in force
//! 4096  Row[4096] one per open connection end or listener, 256 B each
//!       Trace     the last events of connections
//! ```
//!
//! Sums, not snapshots: a reader adds totals and open rows; a row that is being folded at that
//! moment may be counted twice or not at all, once. Reports are made when the processes are quiet.

use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

use crate::reason::MAX_REASONS;
use crate::trace::Trace;
use crate::tune::{MORE_LEN, TuneWords};

/// `"sdpstats"` read as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sdpstats");
/// Version of the layout; a reader refuses others.
pub const LAYOUT: u32 = 4;
/// Bytes from the start of a page to its first row.
pub const HEADER_SIZE: usize = 4096;
/// Rows of a page: connection ends beyond this are counted in the totals only.
pub const ROWS: usize = 4096;
/// Bytes of a page, which is also the size of the memfd.
pub const SIZE: usize = HEADER_SIZE + ROWS * size_of::<Row>() + size_of::<Trace>();
/// Bytes of a program name kept, zero padded.
pub const PROGRAM_LEN: usize = 64;
/// Bytes of a device's name kept, zero padded.
pub const DEVICE_LEN: usize = 32;
/// Ports of devices that a page names: connections that met by a further one have no name for theirs.
pub const DEVICES: usize = 8;
/// Name of the memfd; `/proc/PID/fd/N` reads `/memfd:sdp-stats (deleted)`.
pub const MEMFD_NAME: &core::ffi::CStr = c"sdp-stats";

/// The process that writes the page.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`]; stored last when a page is made.
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: AtomicU32,
    /// [`HEADER_SIZE`].
    pub header_size: AtomicU32,
    /// Bytes per row.
    pub row_size: AtomicU32,
    /// [`ROWS`].
    pub rows: AtomicU32,
    /// Process id as the process itself sees it.
    pub pid: AtomicU32,
    /// Parent's process id when the page was made.
    pub ppid: AtomicU32,
    /// Real user id.
    pub uid: AtomicU32,
    /// Rows that were ever used: readers need not look further.
    pub rows_used: AtomicU32,
    /// `CLOCK_BOOTTIME` nanoseconds when the page was made.
    pub born_ns: AtomicU64,
    /// 1 once the process left in an orderly way.
    pub exited: AtomicU32,
    /// Bit 0: others may count here too: fork children without a page of their own.
    pub flags: AtomicU32,
    /// Short name of the program, zero padded.
    pub program: [AtomicU64; PROGRAM_LEN / 8],
    /// Version of the library, zero padded text.
    pub version: [AtomicU64; 4],
    /// Free list of rows: tag in the upper half, row number + 1 in the lower (0 = empty).
    pub free: AtomicU64,
    /// Fork children, living or not, that have counted here and never had a page of their own.
    pub borrowers: AtomicI64,
    /// The rules in force.
    pub rules: RuleWords,
    reserved: [AtomicU64; 39],
}

/// A port of an RDMA device by which connections of the process have met, also when it has gone since.
#[derive(Debug)]
#[repr(C)]
pub struct DeviceWords {
    /// The device's name, zero padded.
    pub name: [AtomicU64; DEVICE_LEN / 8],
    /// How often its queue pairs send something again: without an answer in bits 0–7, for want of a receive buffer
    /// in 8–15.
    pub retries: AtomicU32,
    /// The port's number, from 1; stored last, 0: nothing is here.
    pub port: AtomicU32,
    /// Connection ends that met by it. One that meets by it again is not counted again.
    pub ends: AtomicU64,
}

/// The rules of the process, as [`crate::Rules`].
#[derive(Debug)]
#[repr(C)]
pub struct RuleWords {
    /// [`crate::RuleState`]; stored last.
    pub state: AtomicU32,
    /// Rules in force.
    pub rules: AtomicU32,
    /// Errors in a file that is not in force.
    pub errors: AtomicU32,
    /// Times that other rules came into force.
    pub changes: AtomicU32,
    /// When the rules in force were read, in seconds since 1970.
    pub since_s: AtomicU64,
    /// When the file was judged last, likewise.
    pub judged_s: AtomicU64,
}

/// Counters of the process that are not in an open row.
#[repr(C)]
pub struct Totals {
    /// Sums of closed rows, by half (0 = sent, 1 = received), then by [`crate::Counter`].
    pub counters: [[AtomicU64; COUNTERS]; 2],
    /// Connection ends seen (established), each counted by the process that saw it first.
    pub seen: AtomicI64,
    /// Connection ends that moved at least one payload byte on an SDP lane.
    pub sdp: AtomicI64,
    /// Connection ends by fabric of their first SDP byte: shared memory, verbs.
    pub fabrics: [AtomicI64; 2],
    /// Halves promoted to an SDP lane.
    pub promoted: AtomicU64,
    /// Halves demoted to the kernel lane.
    pub demoted: AtomicU64,
    /// Pages of children that could not be handed in.
    pub unreported: AtomicU64,
    /// Connection ends that found no free row.
    pub rowless: AtomicU64,
    /// Sums of closed rows.
    pub messages: Messages,
    /// Connection ends that never moved a byte on an SDP lane, by reason code. One process may
    /// count down an end that another counted up: only the sum over a run's pages is never
    /// negative.
    pub reasons: [AtomicI64; MAX_REASONS],
    /// Demotions by reason code.
    pub demotions: [AtomicU64; MAX_REASONS],
}

/// Number of counters per half; see [`crate::Counter`].
pub const COUNTERS: usize = 8;

/// Number of classes of message sizes. The first has messages of up to 64 bytes, each further one those of up to four
/// times as many, the last all others.
pub const SIZES: usize = 7;

/// Messages that were sent over SDP, and the waits that held them up.
#[repr(C)]
pub struct Messages {
    /// By class of their size, payload only.
    pub sizes: [AtomicU64; SIZES],
    /// Times that a sender found no room: the other end had not read.
    pub full: AtomicU64,
}

/// One open connection end (or listener) of the process.
#[repr(C, align(64))]
pub struct Row {
    /// Generation in the upper 16 bits, 0 = free, 1 = being written, 2 = open in the lower.
    pub state: AtomicU32,
    /// Descriptor number by which the process knows it.
    pub fd: AtomicI32,
    /// Identity of the carrier end: the socket's cookie. Equal in all processes that hold it.
    pub carrier: AtomicU64,
    /// Local address, 16 bytes in network order, IPv4 as v4-mapped.
    pub local: [AtomicU64; 2],
    /// Remote address, likewise.
    pub remote: [AtomicU64; 2],
    /// Local port in the upper 16 bits, remote port in the lower.
    pub ports: AtomicU32,
    /// TCP state number in bits 0–7 (as of the row's opening: the kernel's tables have it now), role in
    /// 8–15, bit 16 IPv6 socket, bit 17 adopted; in bits 24–31 the place of its device in the table + 1, 0 = none.
    pub kind: AtomicU32,
    /// Next free row + 1 while the row is free.
    pub next: AtomicU32,
    /// Inode of the carrier socket, lower 32 bits.
    pub inode: AtomicU32,
    /// Counters by half, then by [`crate::Counter`]: each half has its own cache line.
    pub counters: [[AtomicU64; COUNTERS]; 2],
    /// Words that change rarely, by half.
    pub slow: [RowHalf; 2],
    /// Written by the sending half.
    pub messages: Messages,
}

/// The slowly changing part of one direction of a row.
#[repr(C)]
pub struct RowHalf {
    /// Lane in bits 0–7, fabric in 8–15, mode in 16–23.
    pub lane: AtomicU32,
    /// Reason code + 1 for the kernel lane, 0 = none.
    pub reason: AtomicU32,
    /// Times promoted.
    pub promoted: AtomicU32,
    /// Times demoted.
    pub demoted: AtomicU32,
    /// Credits left (`Bufs` minus the messages in flight). Between hosts: with the sending half the
    /// messages that the other end has buffers for, with the receiving one those that this end has
    /// announced.
    pub credits: AtomicU32,
    /// Zero-copy threshold in force, bytes; 0 = never.
    pub threshold: AtomicU32,
    /// Bytes on the SDP lane not yet read, where the writer knows. On shared memory it does not:
    /// readers take the difference of the two ends' counts.
    pub queued: AtomicU32,
    /// Number of the queue pair, 0 = none: this end's with the sending half, the other end's with the receiving one.
    pub queue_pair: AtomicU32,
}

const PAD_SIZE: usize = HEADER_SIZE
    - size_of::<Header>()
    - size_of::<Totals>()
    - size_of::<TuneWords>()
    - MAX_REASONS * 8
    - DEVICES * size_of::<DeviceWords>()
    - MORE_LEN;

/// A page: the content of one `sdp-stats` memfd.
#[repr(C, align(64))]
pub struct Page {
    pub(crate) header: Header,
    pub(crate) totals: Totals,
    pub(crate) tune: TuneWords,
    /// Connections that were refused because the rules want SDP or nothing, by reason code.
    pub(crate) refused: [AtomicU64; MAX_REASONS],
    pub(crate) devices: [DeviceWords; DEVICES],
    /// The second part of [`TuneWords::in_force`].
    pub(crate) tune_more: [AtomicU64; MORE_LEN / 8],
    pad: [AtomicU64; PAD_SIZE / 8],
    pub(crate) rows: [Row; ROWS],
    pub(crate) trace: Trace,
}

const _: () = assert!(size_of::<Header>() == 512);
const _: () = assert!(core::mem::offset_of!(Page, totals) == 512);
const _: () = assert!(core::mem::offset_of!(Page, rows) == HEADER_SIZE);
const _: () = assert!(size_of::<Row>() == 320 && core::mem::offset_of!(Row, counters) == 64);
const _: () = assert!(core::mem::offset_of!(Row, slow) == 192);
const _: () = assert!(core::mem::offset_of!(Row, messages) == 256);
const _: () = assert!(size_of::<Page>() == SIZE && SIZE.is_multiple_of(4096));

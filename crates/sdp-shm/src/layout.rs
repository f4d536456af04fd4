//! The peer segment: one control page and two rings, one per direction.
//!
//! ```text
//! 0        control page   magic, two end lines, two halves
//! 4096     ring of half 0 (side 0 sends)     ring_bytes, a power of two
//! 4096+r   ring of half 1 (side 1 sends)     ring_bytes
//! ```
//!
//! *Side* 0 is the end with the lower (address, port). *Half* `h` carries the bytes that side `h`
//! sends. Control lines and the start of ring 0 are neighbours so that a quiet connection touches
//! three pages.
//!
//! # Who may touch what
//! Both ends can write everything; by agreement the producer writes the producer line, the consumer
//! writes the consumer line, and the holder of the half's gate writes the log. Nothing an end reads
//! here is believed: cursors are validated against private copies, log entries are range-checked.

use core::{
    mem::{offset_of, size_of},
    ptr::NonNull,
    sync::atomic::AtomicU8,
};

use crate::sync::{AtomicU32, AtomicU64, MODELLED};

/// Bytes of the control page.
pub const CONTROL_BYTES: usize = if MODELLED { 16 * 1024 } else { 4096 };
/// First word of a segment.
pub const MAGIC: u32 = 0x5344_5053;
/// Layout version, changed with every change of the layout; also part of the rendezvous name.
pub const VERSION: u32 = 3;
/// Smallest ring.
pub const RING_BYTES_MIN: u32 = 64 * 1024;
/// Largest ring.
pub const RING_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// Entries of the lane log; a power of two. Each switch waits until the one before it is
/// acknowledged or provably needs no acknowledgement, so two would do; eight keeps history for
/// debugging.
pub const LOG_ENTRIES: usize = 8;

/// Whether a ring size is acceptable.
pub const fn is_ring_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= RING_BYTES_MIN && bytes <= RING_BYTES_MAX
}

/// Total size of a segment with rings of `ring_bytes`.
pub const fn segment_bytes(ring_bytes: u32) -> usize {
    CONTROL_BYTES + 2 * ring_bytes as usize
}

/// [`EndLine::intent`] of an end whose last descriptor is being closed. Written under the gate of
/// its inbound half: a producer that holds the gate and does not see it rings before the close.
pub const CLOSED: u32 = 2;

/// [`EndLine::intent`] of an end that has put everything unread back into the kernel's stream and
/// never uses the segment again: the other end may forget it. Written under the lock of its
/// outbound half, so that no holder of this end is about to change lanes; or by an end that was
/// never attached, and never will be ([`EndLine::disown`]).
pub const PASSED_ON: u32 = 3;

/// [`EndLine::reset`]: the end is a reset.
pub const RESETS: u32 = 1;
/// [`EndLine::reset`]: the kernel closes the end in a moment, without another word of ours.
pub const LEAVES: u32 = 2;

/// Written by its end when it has mapped the segment.
#[repr(C, align(128))]
#[derive(Default)]
pub struct EndLine {
    /// 1 once this end is attached.
    pub attached: AtomicU32,
    /// CPU on which this end last ran, plus one; 0 unknown. A hint for spinning.
    pub cpu: AtomicU32,
    /// Not 0: this end wants its inbound half on the kernel lane, for good. [`CLOSED`]: because no
    /// process reads it any more; [`PASSED_ON`]: because a process that does not know the segment
    /// may.
    pub intent: AtomicU32,
    /// Number of the carrier in the process that uses this end, plus one. A hint, verified by its
    /// user.
    pub descriptor: AtomicU32,
    /// [`RESETS`] once this end resets the carrier on purpose, or was cut off: no wake byte caused
    /// the reset. [`LEAVES`] when its process is about to become an image that closes it.
    pub reset: AtomicU32,
    /// 1 once this end has written beyond the first page of its ring.
    pub touched: AtomicU32,
}

impl EndLine {
    /// This end gives up a segment that the other one may have attached to, without having attached
    /// itself: an end that is alone with a segment finds out by this, and forgets it. Before the
    /// mapping goes.
    pub fn disown(&self) {
        use core::sync::atomic::Ordering::SeqCst;
        self.intent.store(PASSED_ON, SeqCst);
    }
}

/// Written by the producer of a half.
#[repr(C, align(128))]
#[derive(Default)]
pub struct ProducerLine {
    /// Count of ring bytes published.
    pub tail: AtomicU64,
    /// Count of ring bytes at which index 0 of the ring is. Changes while the ring is empty only.
    pub origin: AtomicU64,
    /// Number of log entries written.
    pub switches: AtomicU32,
}

/// One lane switch: from carrier position `carrier` and ring cursor `ring` on, lane `to`.
#[repr(C)]
#[derive(Default)]
pub struct LogEntry {
    /// Carrier bytes (data and wake bytes) before the switch.
    pub carrier: AtomicU64,
    /// Ring cursor at the switch.
    pub ring: AtomicU64,
    /// 0 kernel lane, 1 SDP lane.
    pub to: AtomicU32,
    reserved: AtomicU32,
}

/// Written by the holder of the gate.
#[repr(C, align(128))]
#[derive(Default)]
pub struct LogLine {
    /// Held (side + 1) while lane, log, tail or `carrier_sent` change.
    pub gate: AtomicU32,
    /// Lane of the producer: 0 kernel, 1 SDP.
    pub lane: AtomicU32,
    /// Bytes the producer's kernel has accepted, wake bytes included.
    pub carrier_sent: AtomicU64,
    /// The last switches, by number modulo [`LOG_ENTRIES`].
    pub entries: [LogEntry; LOG_ENTRIES],
}

impl LogLine {
    /// The place of log entry `number`.
    #[inline]
    pub fn entry(&self, number: u32) -> Option<&LogEntry> {
        self.entries.get(number as usize % LOG_ENTRIES)
    }
}

/// [`ConsumerLine::trusts_itself`]: the consumer reads only through the library.
pub const TRUSTS: u32 = 1;
/// [`ConsumerLine::trusts_itself`]: and whoever sleeps on the carrier at its end has armed, or will not sleep
/// before it has. The first message on the ring needs no wake byte on the carrier then.
pub const ARMS: u32 = 2;
/// [`ConsumerLine::trusts_itself`]: the consumer takes a token from the carrier, and no payload from
/// the ring.
pub const TAKES_TOKENS: u32 = 3;

/// Written by the consumer of a half.
#[repr(C, align(128))]
#[derive(Default)]
pub struct ConsumerLine {
    /// Count of ring bytes freed.
    pub head: AtomicU64,
    /// Bytes that were read from the carrier, wake bytes included, once they are counted (from when
    /// `trusts_itself` is not 0).
    pub read: AtomicU64,
    /// Number of log entries followed.
    pub followed: AtomicU32,
    /// 1 while a kernel read without upper bound is in progress.
    pub kernel_reading: AtomicU32,
    /// [`TAKES_TOKENS`], and [`TRUSTS`] or [`ARMS`] once the consumer reads only through the library, else 0.
    pub trusts_itself: AtomicU32,
    /// MSeq of the last message taken.
    pub mseq_ack: AtomicU32,
}

/// An arm word: see [`crate::arm`].
#[repr(C, align(128))]
#[derive(Default)]
pub struct ArmLine {
    /// sequence << 2 | mode.
    pub word: AtomicU32,
    /// When the waker last signalled by the doorbell page, in ticks of the processor's clock; 0
    /// unknown. A hint for the order in which connections are reported ready.
    pub rung_at: AtomicU64,
}

/// One direction's control lines.
#[repr(C)]
#[derive(Default)]
pub struct Half {
    /// See [`ProducerLine`].
    pub producer: ProducerLine,
    /// See [`LogLine`].
    pub log: LogLine,
    /// See [`ConsumerLine`].
    pub consumer: ConsumerLine,
    /// The consumer waits for bytes.
    pub receive_arm: ArmLine,
    /// The producer waits for room.
    pub space_arm: ArmLine,
}

/// The control page.
#[repr(C)]
#[derive(Default)]
pub struct Control {
    /// [`MAGIC`], written last by the creator.
    pub magic: AtomicU32,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Ring size in bytes.
    pub ring_bytes: AtomicU32,
    /// By side.
    pub ends: [EndLine; 2],
    /// By the side that sends.
    pub halves: [Half; 2],
}

const _: () = assert!(size_of::<Control>() <= CONTROL_BYTES);
const _: () = assert!(MODELLED || size_of::<LogLine>() == 256);
const _: () = assert!(MODELLED || size_of::<Half>() == 128 * 6);

/// A change that moves a field has to move it in three more places: docs/spec/shm.md (section 2),
/// the versions (here and that of the rendezvous), and tests/faults/programs/forging.py, whose
/// forgeries would miss their aim, and pass.
const _: () = {
    const fn is_at(is: usize, documented: usize) -> bool {
        MODELLED || is == documented
    }
    assert!(is_at(offset_of!(Control, ends), 128) && is_at(size_of::<EndLine>(), 128));
    assert!(is_at(offset_of!(EndLine, intent), 8));
    assert!(is_at(offset_of!(Control, halves), 384));

    let producer = offset_of!(Half, producer);
    assert!(is_at(producer + offset_of!(ProducerLine, tail), 0));
    assert!(is_at(producer + offset_of!(ProducerLine, origin), 8));
    assert!(is_at(producer + offset_of!(ProducerLine, switches), 16));

    let log = offset_of!(Half, log);
    assert!(is_at(log + offset_of!(LogLine, gate), 128));
    assert!(is_at(log + offset_of!(LogLine, lane), 132));
    assert!(is_at(log + offset_of!(LogLine, carrier_sent), 136));
    assert!(is_at(log + offset_of!(LogLine, entries), 144) && is_at(size_of::<LogEntry>(), 24));

    let consumer = offset_of!(Half, consumer);
    assert!(is_at(consumer + offset_of!(ConsumerLine, head), 384));
    assert!(is_at(consumer + offset_of!(ConsumerLine, read), 392));
    assert!(is_at(consumer + offset_of!(ConsumerLine, followed), 400));
    assert!(is_at(consumer + offset_of!(ConsumerLine, kernel_reading), 404));
    assert!(is_at(consumer + offset_of!(ConsumerLine, trusts_itself), 408));
    assert!(is_at(consumer + offset_of!(ConsumerLine, mseq_ack), 412));

    assert!(is_at(offset_of!(Half, receive_arm), 512));
    assert!(is_at(offset_of!(ArmLine, rung_at), 8));
    assert!(is_at(offset_of!(Half, space_arm), 640));
};

/// A mapped segment: base address and ring size, both private copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    base: NonNull<u8>,
    ring_bytes: u32,
}

// SAFETY: the segment is shared memory made of atomics and raw bytes, made for access from several
// threads. Lifetime is the constructor's contract.
unsafe impl Send for Segment {}
// SAFETY: its lines are atomics; ring bytes are raw memory without a reference to it, so that
// access at once mixes bytes up and does no more.
unsafe impl Sync for Segment {}

impl Segment {
    /// Describes a mapping of [`segment_bytes`]`(ring_bytes)` bytes at `base`.
    ///
    /// # Safety
    /// The mapping is readable, writable, page aligned, at least that long, stays mapped for as long
    /// as any copy of the value is used, and cannot shrink (sealed). `ring_bytes` satisfies
    /// [`is_ring_size`].
    pub const unsafe fn new(base: NonNull<u8>, ring_bytes: u32) -> Self {
        Self { base, ring_bytes }
    }

    /// First byte of the mapping.
    pub const fn base(self) -> NonNull<u8> {
        self.base
    }

    /// Ring size in bytes, a power of two.
    pub const fn ring_bytes(self) -> u32 {
        self.ring_bytes
    }

    /// The control page.
    #[inline]
    pub fn control(&self) -> &Control {
        // SAFETY: `new`'s contract: the mapping is long enough, aligned and outlives `self`'s use; the
        // struct consists of atomics only, so writes by the peer are no aliasing violation.
        unsafe { self.base.cast::<Control>().as_ref() }
    }

    /// A half's control lines; `half` is taken modulo 2.
    #[inline]
    pub fn half(&self, half: usize) -> &Half {
        let control = self.control();
        if half & 1 == 0 { &control.halves[0] } else { &control.halves[1] }
    }

    /// An end's line; `side` is taken modulo 2.
    #[inline]
    pub fn end(&self, side: usize) -> &EndLine {
        let control = self.control();
        if side & 1 == 0 { &control.ends[0] } else { &control.ends[1] }
    }

    /// First byte of a half's ring.
    #[inline]
    pub fn ring(&self, half: usize) -> NonNull<AtomicU8> {
        let offset = CONTROL_BYTES + (half & 1) * self.ring_bytes as usize;
        // SAFETY: within the mapping by `new`'s contract.
        unsafe { self.base.add(offset).cast() }
    }

    /// Writes the constant part of a fresh (zero) control page.
    pub fn initialise(&self) {
        use core::sync::atomic::Ordering::{Relaxed, Release};
        let control = self.control();
        control.version.store(VERSION, Relaxed);
        control.ring_bytes.store(self.ring_bytes, Relaxed);
        control.magic.store(MAGIC, Release);
    }
}

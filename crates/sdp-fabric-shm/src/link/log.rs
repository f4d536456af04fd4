//! The switch log of a half, in a segment.

use core::sync::atomic::{Ordering, fence};

use sdp_shm::layout::{ARMS, LOG_ENTRIES, TAKES_TOKENS, TRUSTS};

use super::{Broken, MISALIGNED, ShmHalf, What};

/// Most entries that have been written and not followed: a reader of the log takes no more
/// steps.
pub const PENDING_MAX: usize = 8;

/// The lane of a half's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Through the carrier.
    Kernel,
    /// Through the ring.
    Sdp,
}

/// A log entry: from these two positions on the bytes are on lane `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Carrier position at which it takes effect: bytes of the program and wake bytes.
    pub carrier: u64,
    /// Ring position at which it takes effect, in the unit of [`ShmHalf::position`].
    pub fabric: u64,
    /// The lane from there on.
    pub to: Lane,
}

/// The holder of a gate, as it stands in the segment: the side plus one, or any value of a hostile
/// peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(pub u32);

impl Holder {
    /// The holder that an end of side `side` is.
    pub const fn of(side: usize) -> Self {
        Self(side as u32 + 1)
    }
}

/// A consumer's statement about the readers at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// A process may read the carrier past the library.
    No,
    /// All reads go through the library.
    Reads,
    /// The same, and every thread that sleeps on the carrier has armed, or will before it sleeps:
    /// the first message in the ring needs no wake byte.
    ReadsAndArms,
    /// All reads go through the library, and a token in the carrier disturbs no sleeper; payload must
    /// not come by the ring.
    TakesTokens,
}

impl Trust {
    /// Whether payload may come by the ring.
    pub const fn is_of_payload(self) -> bool {
        matches!(self, Self::Reads | Self::ReadsAndArms)
    }
}

/// The outcome of a consumer's wish to end the producer's section ([`ShmHalf::end_section`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The entry is in the log.
    Written,
    /// The producer was on the kernel lane.
    NotOnLane,
}

const _: () = assert!(LOG_ENTRIES == PENDING_MAX);

const fn word_of(lane: Lane) -> u32 {
    match lane {
        Lane::Kernel => 0,
        Lane::Sdp => 1,
    }
}

/// The log of one half (L1 to L10).
///
/// # Who writes
/// The producer writes entries in order; the consumer follows them in order. The consumer may write
/// the entry that leaves the SDP lane for the producer (L10). Lane, entries and carrier count change
/// under the *gate*, which each end takes only while it holds its own lock of the half.
///
/// # Ordering
/// A process that sees the number of entries grow sees the entry. [`ShmHalf::write`] and
/// [`ShmHalf::announce_unbounded_read`] are totally ordered with [`ShmHalf::written`] and
/// [`ShmHalf::may_leave`]: of a producer that leaves and a consumer that begins a read without
/// bound, one sees the other (L2, L4).
impl ShmHalf<'_> {
    /// Either end: takes the gate if neither end holds it.
    ///
    /// # Errors
    /// The error is the holder. [`Holder::of`] the caller's own side: a process of this end died
    /// inside.
    #[inline]
    pub fn try_gate(self, side: usize) -> Result<(), Holder> {
        let mine = Holder::of(side).0;
        let gate = &self.lines.log.gate;
        gate.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed)
            .map(|_| ())
            .map_err(Holder)
    }

    /// Either end: takes the gate from a dead holder. False when that does not hold it any more.
    pub fn take_gate_over(self, from: Holder, side: usize) -> bool {
        let mine = Holder::of(side).0;
        let gate = &self.lines.log.gate;
        gate.compare_exchange(from.0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Either end: the holder of the gate, without ordering.
    pub fn gate_holder(self) -> Option<Holder> {
        Some(self.lines.log.gate.load(Ordering::Relaxed)).filter(|held| *held != 0).map(Holder)
    }

    /// Its holder: gives the gate back.
    #[inline]
    pub fn open_gate(self) {
        self.lines.log.gate.store(0, Ordering::Release);
    }

    /// Either end: entries in the log, of either end.
    #[inline]
    pub fn written(self) -> u32 {
        self.lines.producer.switches.load(Ordering::SeqCst)
    }

    /// The lane that the log ends on. Without the gate a glance.
    #[inline]
    pub fn lane(self) -> Lane {
        match self.lines.log.lane.load(Ordering::Acquire) {
            0 => Lane::Kernel,
            _ => Lane::Sdp,
        }
    }

    /// The holder of the gate: writes entry number `at` and publishes it. `step` is called between
    /// two stores, where a test may end the caller as if its process had been killed.
    pub fn write(self, at: u32, switch: Switch, step: impl Fn()) {
        if let Some(slot) = self.lines.log.entry(at) {
            slot.carrier.store(switch.carrier, Ordering::Relaxed);
            slot.ring.store(switch.fabric, Ordering::Relaxed);
            slot.to.store(word_of(switch.to), Ordering::Relaxed);
        }
        step();
        self.lines.log.carrier_sent.store(switch.carrier, Ordering::Relaxed);
        step();
        self.lines.log.lane.store(word_of(switch.to), Ordering::Relaxed);
        step();
        // Release: a process that sees the number sees the entry. SeqCst: ordered against
        // `kernel_reading` (L2, L4).
        self.lines.producer.switches.store(at.wrapping_add(1), Ordering::SeqCst);
    }

    /// The producer, with the gate: whether the consumer has written the entry after `known` ones
    /// for it (L10).
    ///
    /// # Errors
    /// There is an entry that a consumer may not write: not this one alone, not from `lane` = SDP
    /// to kernel, or not at the carrier position `carrier` and the fabric position `fabric`.
    #[inline]
    pub fn accept(self, known: u32, lane: Lane, carrier: u64, fabric: u64) -> Result<bool, Broken> {
        let now = self.lines.producer.switches.load(Ordering::Acquire);
        if now == known {
            return Ok(false);
        }
        let written = self.lines.log.entry(known).ok_or(Broken)?;
        if now != known.wrapping_add(1)
            || lane != Lane::Sdp
            || written.to.load(Ordering::Relaxed) != 0
            || written.carrier.load(Ordering::Relaxed) != carrier
            || written.ring.load(Ordering::Relaxed) != fabric
        {
            return Err(Broken);
        }
        Ok(true)
    }

    /// The consumer, with the gate: ends the producer's SDP section for it where it ends now (L10).
    /// `received`: carrier bytes that have come in all, wake bytes included. `step` as for
    /// [`ShmHalf::write`].
    pub fn end_section(self, received: u64, step: impl Fn()) -> Ended {
        if self.lane() == Lane::Kernel {
            return Ended::NotOnLane;
        }
        let at = self.lines.producer.switches.load(Ordering::Acquire);
        let counted = self.sent();
        // Wake bytes are sent and counted under the gate, which is ours: a byte that is not counted is
        // the last of a producer that was killed in between.
        let carrier = if received == counted.wrapping_add(1) { received } else { counted };
        let fabric = self.position(What::Bytes);
        self.write(at, Switch { carrier, fabric, to: Lane::Kernel }, step);
        Ended::Written
    }

    /// The consumer: the next entry after `followed` ones, if there is one.
    ///
    /// # Errors
    /// It is impossible for a consumer that is on `lane` and has freed the fabric's bytes up to
    /// `freed`.
    #[inline]
    pub fn next(self, followed: u32, lane: Lane, freed: u64) -> Result<Option<Switch>, Broken> {
        let written = self.written();
        if written == followed {
            return Ok(None);
        }
        if written.wrapping_sub(followed) > LOG_ENTRIES as u32 {
            return Err(Broken);
        }
        let slot = self.lines.log.entry(followed).ok_or(Broken)?;
        let to = match slot.to.load(Ordering::Relaxed) {
            0 => Lane::Kernel,
            1 => Lane::Sdp,
            _ => return Err(Broken),
        };
        let fabric = slot.ring.load(Ordering::Relaxed);
        if to == lane || fabric < freed || fabric & MISALIGNED != 0 {
            return Err(Broken);
        }
        Ok(Some(Switch { carrier: slot.carrier.load(Ordering::Relaxed), fabric, to }))
    }

    /// The consumer: has followed so many entries.
    #[inline]
    pub fn follow(self, followed: u32) {
        self.lines.consumer.followed.store(followed, Ordering::SeqCst);
    }

    /// The producer: entries that the consumer has followed.
    #[inline]
    pub fn followed(self) -> u32 {
        self.lines.consumer.followed.load(Ordering::SeqCst)
    }

    /// The consumer: a read of the carrier without bound begins or ends (L2, L4).
    #[inline]
    pub fn announce_unbounded_read(self, begins: bool) {
        self.lines.consumer.kernel_reading.store(u32::from(begins), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The producer: whether it may leave the SDP lane (L2): all of its `switches` entries were
    /// followed, or no read without bound is in progress.
    #[inline]
    pub fn may_leave(self, switches: u32) -> bool {
        self.followed() == switches
            || self.lines.consumer.kernel_reading.load(Ordering::SeqCst) == 0
    }

    /// Either end: carrier bytes counted, wake bytes included.
    #[inline]
    pub fn sent(self) -> u64 {
        self.lines.log.carrier_sent.load(Ordering::Acquire)
    }

    /// The producer, with the gate: has put so many bytes on the carrier, wake bytes included.
    #[inline]
    pub fn count_sent(self, bytes: u64) {
        self.lines.log.carrier_sent.store(bytes, Ordering::Release);
    }

    /// The producer: the consumer's statement about its readers.
    #[inline]
    pub fn trust(self) -> Trust {
        match self.lines.consumer.trusts_itself.load(Ordering::SeqCst) {
            0 => Trust::No,
            ARMS => Trust::ReadsAndArms,
            TAKES_TOKENS => Trust::TakesTokens,
            _ => Trust::Reads,
        }
    }

    /// The consumer: says so.
    #[inline]
    pub fn declare(self, trust: Trust) {
        let word = match trust {
            Trust::No => 0,
            Trust::Reads => TRUSTS,
            Trust::ReadsAndArms => ARMS,
            Trust::TakesTokens => TAKES_TOKENS,
        };
        self.lines.consumer.trusts_itself.store(word, Ordering::SeqCst);
    }

    /// The producer: carrier bytes that the consumer has read, once it counts them (from its
    /// declaration on).
    #[inline]
    pub fn read(self) -> u64 {
        self.lines.consumer.read.load(Ordering::Acquire)
    }

    /// The consumer: has read so many.
    #[inline]
    pub fn count_read(self, bytes: u64) {
        self.lines.consumer.read.store(bytes, Ordering::Release);
    }
}

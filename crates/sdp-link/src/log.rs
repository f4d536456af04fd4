//! The switch log of a half.

use crate::Broken;

/// Most entries that have been written and not followed: one that follows the log takes no more
/// steps.
pub const PENDING_MAX: usize = 8;

/// The lane of a half's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Through the carrier.
    Kernel,
    /// Through the fabric.
    Sdp,
}

/// A log entry: from these two positions on the bytes are on lane `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Carrier position at which it takes effect: bytes of the program and wake bytes.
    pub carrier: u64,
    /// Position on the fabric at which it takes effect, in the unit of
    /// [`crate::Wakeups::position`].
    pub fabric: u64,
    /// The lane from there on.
    pub to: Lane,
}

/// The holder of a gate, as the fabric writes it: the side plus one, or any value of a hostile
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
    /// the first message on the fabric needs no wake byte.
    ReadsAndArms,
}

/// The outcome of a consumer's wish to end the producer's section ([`SwitchLog::end_section`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The entry is in the log.
    Written,
    /// Only the producer writes here. It sees this end's intent ([`crate::EndWords::intent`],
    /// [`SwitchLog::trust`]) and writes the entry itself when it runs.
    Asked,
    /// The producer was on the kernel lane.
    NotOnLane,
}

/// The log of one half (L1 to L10).
///
/// # Who writes
/// The producer writes entries in order; the consumer follows them in order. The consumer may write
/// the entry that leaves the SDP lane for the producer, where the fabric lets it (L10). Lane,
/// entries and carrier count change under the *gate*, which each end takes only while it holds its
/// own lock of the half. A fabric whose logs have one writer each grants the gate always.
///
/// # Ordering
/// A process that sees the number of entries grow sees the entry. [`SwitchLog::write`] and
/// [`SwitchLog::announce_unbounded_read`] are totally ordered with [`SwitchLog::written`] and
/// [`SwitchLog::may_leave`]: of a producer that leaves and a consumer that begins a read without
/// bound, one sees the other (L2, L4).
pub trait SwitchLog: Copy {
    /// Either end: takes the gate if neither end holds it.
    ///
    /// # Errors
    /// The error is the holder. [`Holder::of`] the caller's own side: a process of this end died
    /// inside.
    fn try_gate(self, side: usize) -> Result<(), Holder>;
    /// Either end: takes the gate from a dead holder. False when that does not hold it any more.
    fn take_gate_over(self, from: Holder, side: usize) -> bool;
    /// Either end: the holder of the gate, without ordering.
    fn gate_holder(self) -> Option<Holder>;
    /// Its holder: gives the gate back.
    fn open_gate(self);

    /// Either end: entries in the log, of either end.
    fn written(self) -> u32;
    /// The lane that the log ends on. Without the gate a glance.
    fn lane(self) -> Lane;
    /// The holder of the gate: writes entry number `at` and publishes it. `step` is called between
    /// two stores, where a test may end the caller as if its process had been killed.
    fn write(self, at: u32, switch: Switch, step: impl Fn());
    /// The producer, with the gate: whether the consumer has written the entry after `known` ones
    /// for it (L10).
    ///
    /// # Errors
    /// There is an entry that a consumer may not write: not this one alone, not from `lane` = SDP
    /// to kernel, or not at the carrier position `carrier` and the fabric position `fabric`.
    fn accept(self, known: u32, lane: Lane, carrier: u64, fabric: u64) -> Result<bool, Broken>;
    /// The consumer, with the gate: ends the producer's SDP section for it where it ends now (L10).
    /// `received`: carrier bytes that have come in all, wake bytes included. `step` as for
    /// [`SwitchLog::write`].
    fn end_section(self, received: u64, step: impl Fn()) -> Ended;

    /// The consumer: the next entry after `followed` ones, if there is one.
    ///
    /// # Errors
    /// It is impossible for a consumer that is on `lane` and has freed the fabric's bytes up to
    /// `freed`.
    fn next(self, followed: u32, lane: Lane, freed: u64) -> Result<Option<Switch>, Broken>;
    /// The consumer: has followed so many entries.
    fn follow(self, followed: u32);
    /// The producer: entries that the consumer has followed.
    fn followed(self) -> u32;
    /// The consumer: a read of the carrier without bound begins or ends (L2, L4).
    fn announce_unbounded_read(self, begins: bool);
    /// The producer: whether it may leave the SDP lane (L2): all of its `switches` entries were
    /// followed, or no read without bound is in progress.
    fn may_leave(self, switches: u32) -> bool;

    /// Either end: carrier bytes counted, wake bytes included.
    fn sent(self) -> u64;
    /// The producer, with the gate: has put so many bytes on the carrier, wake bytes included.
    fn count_sent(self, bytes: u64);

    /// The producer: the consumer's statement about its readers.
    fn trust(self) -> Trust;
    /// The consumer: says so.
    fn declare(self, trust: Trust);
    /// The producer: carrier bytes that the consumer has read, once it counts them (from its
    /// declaration on).
    fn read(self) -> u64;
    /// The consumer: has read so many.
    fn count_read(self, bytes: u64);
}

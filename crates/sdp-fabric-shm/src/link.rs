//! One end of a connection on a segment: the traits of `sdp-link` over the control lines.
//!
//! Everything that the library reads or writes in a segment's control page after set-up goes
//! through here, but for two that need the lines as they are: the fast path and the takeover by a
//! killed process.

use core::sync::atomic::{Ordering, fence};

use sdp_link::{
    Armed, Broken, EndWords, Ended, Holder, How, Intent, Lane, Link, PENDING_MAX, ResetNote,
    RxCursor, Switch, SwitchLog, Trust, TxCursor, TxSaved, Wakeups, What,
};
use sdp_rdma::fabric::{QpError, Received};
use sdp_shm::{
    arm::{self, Seen},
    layout::{
        ARMS, ArmLine, CLOSED, EndLine, Half, LEAVES, LOG_ENTRIES, PASSED_ON, RESETS, Segment,
        TRUSTS,
    },
    ring::{ALIGN, Record, record_bytes},
};

use crate::endpoint::{ShmRx, ShmTx};

const _: () = assert!(LOG_ENTRIES == PENDING_MAX);

/// Bits that no cursor has.
const MISALIGNED: u64 = ALIGN as u64 - 1;

/// [`EndLine::intent`] of an end that wants the kernel lane, without more.
const CARRIER: u32 = 1;

/// One end of an attached connection.
#[derive(Clone, Copy, Debug)]
pub struct ShmLink {
    segment: Segment,
    side: usize,
}

impl ShmLink {
    /// This end is side `side` (modulo 2) of the segment.
    #[inline(always)]
    pub const fn new(segment: Segment, side: usize) -> Self {
        Self { segment, side: side & 1 }
    }

    /// The segment.
    #[inline(always)]
    pub const fn segment(&self) -> Segment {
        self.segment
    }
}

impl Link for ShmLink {
    type Tx = ShmTx;
    type Rx = ShmRx;
    type Half<'a> = ShmHalf<'a>;
    type End<'a> = ShmEnd<'a>;

    #[inline(always)]
    fn open_tx(&self, half: usize, saved: TxSaved) -> Result<ShmTx, Broken> {
        let TxSaved { position, freed, private } = saved;
        let ring_bytes = u64::from(self.segment.ring_bytes());
        if (position | freed) & MISALIGNED != 0 || position.wrapping_sub(freed) > ring_bytes {
            return Err(Broken);
        }
        Ok(ShmTx::resume(self.segment, half, position, freed, private))
    }

    #[inline(always)]
    fn open_rx(&self, half: usize, freed: u64, current: u32) -> Result<ShmRx, Broken> {
        let scan = match current {
            0 => freed,
            len => Record { start: freed, len }.end(),
        };
        let ring_bytes = u64::from(self.segment.ring_bytes());
        if freed & MISALIGNED != 0 || scan.wrapping_sub(freed) > ring_bytes {
            return Err(Broken);
        }
        Ok(ShmRx::new(self.segment, half, scan, freed).onlooker())
    }

    #[inline(always)]
    fn half(&self, half: usize) -> ShmHalf<'_> {
        ShmHalf::new(self.segment.half(half), self.segment.ring_bytes())
    }

    #[inline(always)]
    fn own(&self) -> ShmEnd<'_> {
        ShmEnd(self.segment.end(self.side))
    }

    #[inline(always)]
    fn peer(&self) -> ShmEnd<'_> {
        ShmEnd(self.segment.end(self.side ^ 1))
    }
}

impl TxCursor for ShmTx {
    #[inline(always)]
    fn cursors(&self) -> (u64, u64) {
        Self::cursors(self)
    }

    #[inline(always)]
    fn private(&self) -> u64 {
        self.origin()
    }

    #[inline(always)]
    fn publish(&self) {
        Self::publish(self);
    }

    #[inline(always)]
    fn refresh(&mut self) -> Result<(), QpError> {
        Self::refresh(self)
    }

    #[inline(always)]
    fn footprint(&self, len: usize) -> u64 {
        record_bytes(len) as u64
    }
}

impl RxCursor for ShmRx {
    #[inline(always)]
    fn cursors(&self) -> (u64, u64) {
        Self::cursors(self)
    }

    #[inline(always)]
    fn set_limit(&mut self, limit: u64) {
        Self::set_limit(self, limit);
    }

    #[inline(always)]
    fn current(&self, len: u32) -> Received {
        self.resume(Self::cursors(self).1, len)
    }

    #[inline(always)]
    fn onlooker(&self) -> Self {
        Self::onlooker(self)
    }

    #[inline(always)]
    fn publish(&self) {
        Self::publish(self);
    }
}

/// A half's control lines.
#[derive(Clone, Copy)]
pub struct ShmHalf<'a> {
    lines: &'a Half,
    ring_bytes: u32,
}

impl<'a> ShmHalf<'a> {
    /// Of a segment whose rings have `ring_bytes`.
    #[inline(always)]
    pub const fn new(lines: &'a Half, ring_bytes: u32) -> Self {
        Self { lines, ring_bytes }
    }

    #[inline(always)]
    const fn arm_line(self, what: What) -> &'a ArmLine {
        match what {
            What::Bytes => &self.lines.receive_arm,
            What::Space => &self.lines.space_arm,
        }
    }
}

const fn word_of(lane: Lane) -> u32 {
    match lane {
        Lane::Kernel => 0,
        Lane::Sdp => 1,
    }
}

impl SwitchLog for ShmHalf<'_> {
    #[inline]
    fn try_gate(self, side: usize) -> Result<(), Holder> {
        let mine = Holder::of(side).0;
        let gate = &self.lines.log.gate;
        gate.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed)
            .map(|_| ())
            .map_err(Holder)
    }

    fn take_gate_over(self, from: Holder, side: usize) -> bool {
        let mine = Holder::of(side).0;
        let gate = &self.lines.log.gate;
        gate.compare_exchange(from.0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn gate_holder(self) -> Option<Holder> {
        Some(self.lines.log.gate.load(Ordering::Relaxed)).filter(|held| *held != 0).map(Holder)
    }

    #[inline]
    fn open_gate(self) {
        self.lines.log.gate.store(0, Ordering::Release);
    }

    #[inline]
    fn written(self) -> u32 {
        self.lines.producer.switches.load(Ordering::SeqCst)
    }

    #[inline]
    fn lane(self) -> Lane {
        match self.lines.log.lane.load(Ordering::Acquire) {
            0 => Lane::Kernel,
            _ => Lane::Sdp,
        }
    }

    fn write(self, at: u32, switch: Switch, step: impl Fn()) {
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

    #[inline]
    fn accept(self, known: u32, lane: Lane, carrier: u64, fabric: u64) -> Result<bool, Broken> {
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

    fn end_section(self, received: u64, step: impl Fn()) -> Ended {
        if self.lane() == Lane::Kernel {
            return Ended::NotOnLane;
        }
        let at = self.lines.producer.switches.load(Ordering::Acquire);
        let counted = self.sent();
        // Wake bytes are sent and counted under the gate, which is ours: one that is not counted is
        // the last of a producer that was killed in between.
        let carrier = if received == counted.wrapping_add(1) { received } else { counted };
        let fabric = self.position(What::Bytes);
        self.write(at, Switch { carrier, fabric, to: Lane::Kernel }, step);
        Ended::Written
    }

    #[inline]
    fn next(self, followed: u32, lane: Lane, freed: u64) -> Result<Option<Switch>, Broken> {
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

    #[inline]
    fn follow(self, followed: u32) {
        self.lines.consumer.followed.store(followed, Ordering::SeqCst);
    }

    #[inline]
    fn followed(self) -> u32 {
        self.lines.consumer.followed.load(Ordering::SeqCst)
    }

    #[inline]
    fn announce_unbounded_read(self, begins: bool) {
        self.lines.consumer.kernel_reading.store(u32::from(begins), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn may_leave(self, switches: u32) -> bool {
        self.followed() == switches
            || self.lines.consumer.kernel_reading.load(Ordering::SeqCst) == 0
    }

    #[inline]
    fn sent(self) -> u64 {
        self.lines.log.carrier_sent.load(Ordering::Acquire)
    }

    #[inline]
    fn count_sent(self, bytes: u64) {
        self.lines.log.carrier_sent.store(bytes, Ordering::Release);
    }

    #[inline]
    fn trust(self) -> Trust {
        match self.lines.consumer.trusts_itself.load(Ordering::SeqCst) {
            0 => Trust::No,
            ARMS => Trust::ReadsAndArms,
            _ => Trust::Reads,
        }
    }

    #[inline]
    fn declare(self, trust: Trust) {
        let word = match trust {
            Trust::No => 0,
            Trust::Reads => TRUSTS,
            Trust::ReadsAndArms => ARMS,
        };
        self.lines.consumer.trusts_itself.store(word, Ordering::SeqCst);
    }

    #[inline]
    fn read(self) -> u64 {
        self.lines.consumer.read.load(Ordering::Acquire)
    }

    #[inline]
    fn count_read(self, bytes: u64) {
        self.lines.consumer.read.store(bytes, Ordering::Release);
    }
}

impl Wakeups for ShmHalf<'_> {
    #[inline]
    fn position(self, what: What) -> u64 {
        match what {
            What::Bytes => self.lines.producer.tail.load(Ordering::Acquire),
            What::Space => self.lines.consumer.head.load(Ordering::Acquire),
        }
    }

    #[inline]
    fn size(self) -> u64 {
        u64::from(self.ring_bytes)
    }

    #[inline]
    fn arm(self, what: What, how: How) {
        let mode = match how {
            How::Carrier => arm::Mode::Carrier,
            How::Doorbell => arm::Mode::Doorbell,
        };
        arm::arm(&self.arm_line(what).word, mode);
    }

    #[inline]
    fn armed(self, what: What) -> Option<Armed> {
        arm::check(&self.arm_line(what).word).map(armed)
    }

    #[inline]
    fn disarm(self, what: What, armed: Armed) {
        arm::disarm(&self.arm_line(what).word, Seen::of(armed.mark));
    }

    #[inline]
    fn note_signal(self, ticks: u64) {
        self.lines.receive_arm.rung_at.store(ticks, Ordering::Relaxed);
    }

    #[inline]
    fn signalled_at(self) -> u64 {
        self.lines.receive_arm.rung_at.load(Ordering::Relaxed)
    }
}

/// The result of a look at an arm word, in the terms of the seam.
#[inline(always)]
pub const fn armed((mode, seen): (arm::Mode, Seen)) -> Armed {
    let how = match mode {
        arm::Mode::Doorbell => How::Doorbell,
        arm::Mode::Carrier => How::Carrier,
    };
    Armed { how, mark: seen.word() }
}

/// An end's line.
#[derive(Clone, Copy)]
pub struct ShmEnd<'a>(&'a EndLine);

impl EndWords for ShmEnd<'_> {
    #[inline]
    fn is_attached(self) -> bool {
        self.0.attached.load(Ordering::Acquire) != 0
    }

    fn attach(self) {
        self.0.attached.store(1, Ordering::Release);
    }

    #[inline]
    fn intent(self) -> Intent {
        match self.0.intent.load(Ordering::SeqCst) {
            0 => Intent::Open,
            CLOSED => Intent::Closed,
            PASSED_ON => Intent::PassedOn,
            _ => Intent::Carrier,
        }
    }

    #[inline]
    fn is_open(self) -> bool {
        self.0.intent.load(Ordering::SeqCst) == 0
    }

    fn intend(self, intent: Intent) {
        let word = match intent {
            Intent::Open => 0,
            Intent::Carrier => CARRIER,
            Intent::Closed => CLOSED,
            Intent::PassedOn => PASSED_ON,
        };
        self.0.intent.store(word, Ordering::SeqCst);
    }

    fn close(self) -> bool {
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        let before = self.0.intent.compare_exchange(0, CLOSED, order.0, order.1);
        matches!(before, Ok(_) | Err(CLOSED))
    }

    fn reset_note(self) -> ResetNote {
        match self.0.reset.load(Ordering::SeqCst) {
            0 => ResetNote::None,
            LEAVES => ResetNote::Leaves,
            _ => ResetNote::Resets,
        }
    }

    fn note_reset(self, note: ResetNote) {
        let word = match note {
            ResetNote::None => 0,
            ResetNote::Resets => RESETS,
            ResetNote::Leaves => LEAVES,
        };
        self.0.reset.store(word, Ordering::SeqCst);
    }

    fn note_leaving(self) {
        let _ = self.0.reset.compare_exchange(0, LEAVES, Ordering::SeqCst, Ordering::Relaxed);
    }

    #[inline]
    fn cpu(self) -> u32 {
        self.0.cpu.load(Ordering::Relaxed)
    }

    #[inline]
    fn note_cpu(self, cpu: u32) {
        if self.cpu() != cpu {
            self.0.cpu.store(cpu, Ordering::Relaxed);
        }
    }

    fn socket(self) -> u32 {
        self.0.descriptor.load(Ordering::Relaxed)
    }

    fn note_socket(self, number_plus_one: u32) {
        self.0.descriptor.store(number_plus_one, Ordering::Relaxed);
    }
}

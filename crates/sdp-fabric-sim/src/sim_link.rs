//! A link between two ends in one thread, with explicit credits.
//!
//! It differs from shared memory where a fabric between hosts does: a message takes a whole receive
//! buffer whatever its size, the producer's gate is always open because each log has one writer,
//! and a consumer cannot end the producer's section, only ask for it. It has no latency and no
//! faults: those are [`crate::world`]'s.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sdp_link::{
    Armed, Broken, EndWords, Ended, Holder, How, Intent, Lane, Link, PENDING_MAX, ResetNote,
    RxCursor, Switch, SwitchLog, Trust, TxCursor, TxSaved, Wakeups, What,
};
use sdp_rdma::{
    fabric::{Gather, PostError, QpError, ReceiveQueue, Received, Scatter, SendOptions, SendQueue},
    key::{LocalSlice, RemoteSlice},
    work::{Completion, Opcode, Status, WorkId},
};

/// Receive buffers of a half.
pub const BUFFERS: u64 = 16;
/// Bytes of a receive buffer; the longest message.
pub const BUFFER_BYTES: u64 = 4096;
/// Buffers that only control messages may use.
const RESERVED: u64 = 2;
/// Longest header.
const HEADER_MAX: usize = 48;

/// The state that two ends share.
#[derive(Debug, Default)]
pub struct SimLane {
    halves: [HalfState; 2],
    ends: [EndState; 2],
}

#[derive(Debug, Default)]
struct HalfState {
    /// By the position at which they begin; those behind `published` cannot be read.
    messages: RefCell<BTreeMap<u64, Vec<u8>>>,
    published: Cell<u64>,
    freed: Cell<u64>,
    /// The last entries; the number of the first one is `written` minus their count.
    entries: RefCell<VecDeque<Switch>>,
    written: Cell<u32>,
    followed: Cell<u32>,
    reading: Cell<bool>,
    sent: Cell<u64>,
    read: Cell<u64>,
    trust: Cell<Option<Trust>>,
    arms: [Cell<(u32, Option<How>)>; 2],
    signalled_at: Cell<u64>,
}

#[derive(Debug, Default)]
struct EndState {
    is_attached: Cell<bool>,
    intent: Cell<Option<Intent>>,
    note: Cell<Option<ResetNote>>,
    cpu: Cell<u32>,
    socket: Cell<u32>,
}

impl SimLane {
    /// Nothing sent, nothing said.
    pub fn new() -> Self {
        Self::default()
    }

    /// The end of side `side` (modulo 2).
    pub const fn end(&self, side: usize) -> SimLink<'_> {
        SimLink { lane: self, side: side & 1 }
    }

    fn half(&self, half: usize) -> &HalfState {
        let [first, second] = &self.halves;
        if half & 1 == 0 { first } else { second }
    }

    fn end_state(&self, side: usize) -> &EndState {
        let [first, second] = &self.ends;
        if side & 1 == 0 { first } else { second }
    }
}

/// One end.
#[derive(Debug, Clone, Copy)]
pub struct SimLink<'w> {
    lane: &'w SimLane,
    side: usize,
}

/// One half.
#[derive(Debug, Clone, Copy)]
pub struct SimHalf<'w>(&'w HalfState);

/// The words of an end.
#[derive(Debug, Clone, Copy)]
pub struct SimEnd<'w>(&'w EndState);

/// The producer's end of a half.
#[derive(Debug)]
pub struct SimLinkTx<'w> {
    half: &'w HalfState,
    position: u64,
    freed: u64,
    completed: VecDeque<Completion>,
}

/// The consumer's end of a half.
#[derive(Debug, Clone)]
pub struct SimLinkRx<'w> {
    half: &'w HalfState,
    scan: u64,
    freed: u64,
    limit: u64,
    released: BTreeSet<u64>,
}

impl<'w> Link for SimLink<'w> {
    type Tx = SimLinkTx<'w>;
    type Rx = SimLinkRx<'w>;
    type Half<'a>
        = SimHalf<'w>
    where
        Self: 'a;
    type End<'a>
        = SimEnd<'w>
    where
        Self: 'a;

    fn open_tx(&self, half: usize, saved: TxSaved) -> Result<Self::Tx, Broken> {
        let TxSaved { position, freed, .. } = saved;
        let is_sound = (position | freed).is_multiple_of(BUFFER_BYTES)
            && position.wrapping_sub(freed) <= BUFFERS * BUFFER_BYTES;
        let half = self.lane.half(half);
        let tx = SimLinkTx { half, position, freed, completed: VecDeque::new() };
        if is_sound { Ok(tx) } else { Err(Broken) }
    }

    fn open_rx(&self, half: usize, freed: u64, current: u32) -> Result<Self::Rx, Broken> {
        if !freed.is_multiple_of(BUFFER_BYTES) || u64::from(current) > BUFFER_BYTES {
            return Err(Broken);
        }
        let scan = if current == 0 { freed } else { freed.wrapping_add(BUFFER_BYTES) };
        let half = self.lane.half(half);
        Ok(SimLinkRx { half, scan, freed, limit: u64::MAX, released: BTreeSet::new() })
    }

    fn half(&self, half: usize) -> SimHalf<'w> {
        SimHalf(self.lane.half(half))
    }

    fn own(&self) -> SimEnd<'w> {
        SimEnd(self.lane.end_state(self.side))
    }

    fn peer(&self) -> SimEnd<'w> {
        SimEnd(self.lane.end_state(self.side ^ 1))
    }
}

impl SendQueue for SimLinkTx<'_> {
    fn max_message(&self) -> usize {
        BUFFER_BYTES as usize
    }

    fn room(&self) -> usize {
        let used = self.position.wrapping_sub(self.freed) / BUFFER_BYTES;
        if used + RESERVED < BUFFERS { BUFFER_BYTES as usize - 16 } else { 0 }
    }

    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let len = header.len() + payload.len();
        if header.len() > HEADER_MAX || len > self.max_message() {
            return Err(PostError::TooLong);
        }
        let used = self.position.wrapping_sub(self.freed) / BUFFER_BYTES;
        let most = if options.control { BUFFERS } else { BUFFERS - RESERVED };
        if used >= most {
            return Err(PostError::Full);
        }
        let mut bytes = header.to_vec();
        let cells = vec![Cell::new(0u8); payload.len()];
        payload.copy_to(0, &cells);
        bytes.extend(cells.iter().map(Cell::get));
        self.half.messages.borrow_mut().insert(self.position, bytes);
        self.position = self.position.wrapping_add(BUFFER_BYTES);
        if options.signalled {
            let done = Completion { id, opcode: Opcode::Send, status: Status::Success };
            self.completed.push_back(done);
        }
        Ok(())
    }

    fn post_read(&mut self, _: WorkId, _: LocalSlice, _: RemoteSlice) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn post_write(&mut self, _: WorkId, _: LocalSlice, _: RemoteSlice) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }
}

impl TxCursor for SimLinkTx<'_> {
    fn cursors(&self) -> (u64, u64) {
        (self.position, self.freed)
    }

    fn private(&self) -> u64 {
        0
    }

    fn publish(&self) {
        self.half.published.set(self.position);
    }

    fn refresh(&mut self) -> Result<(), QpError> {
        self.freed = self.half.freed.get();
        Ok(())
    }

    fn footprint(&self, _: usize) -> u64 {
        BUFFER_BYTES
    }
}

impl ReceiveQueue for SimLinkRx<'_> {
    fn posted(&self) -> u16 {
        (BUFFERS - self.scan.wrapping_sub(self.freed) / BUFFER_BYTES) as u16
    }

    fn poll_receive(&mut self) -> Result<Option<Received>, QpError> {
        if self.scan >= self.half.published.get() || self.scan >= self.limit {
            return Ok(None);
        }
        let messages = self.half.messages.borrow();
        let message = messages.get(&self.scan).ok_or(QpError::Framing)?;
        let found = Received { token: self.scan, len: message.len() as u32 };
        self.scan = self.scan.wrapping_add(BUFFER_BYTES);
        Ok(Some(found))
    }

    fn copy_header(&self, message: Received, dst: &mut [u8]) -> usize {
        let messages = self.half.messages.borrow();
        let Some(bytes) = messages.get(&message.token) else { return 0 };
        let len = bytes.len().min(dst.len());
        dst[..len].copy_from_slice(&bytes[..len]);
        len
    }

    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter) {
        let messages = self.half.messages.borrow();
        let Some(bytes) = messages.get(&message.token) else { return };
        let part: Vec<_> = bytes.iter().skip(offset as usize).take(len as usize).collect();
        let cells: Vec<_> = part.into_iter().map(|byte| Cell::new(*byte)).collect();
        sink.accept(&cells);
    }

    fn release(&mut self, message: Received) {
        self.released.insert(message.token);
        while self.released.remove(&self.freed) {
            self.freed = self.freed.wrapping_add(BUFFER_BYTES);
        }
    }
}

impl RxCursor for SimLinkRx<'_> {
    fn cursors(&self) -> (u64, u64) {
        (self.scan, self.freed)
    }

    fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    fn current(&self, len: u32) -> Received {
        Received { token: self.freed, len }
    }

    fn onlooker(&self) -> Self {
        self.clone()
    }

    fn publish(&self) {
        self.half.freed.set(self.freed);
        let kept = self.half.messages.borrow_mut().split_off(&self.freed);
        *self.half.messages.borrow_mut() = kept;
    }
}

impl HalfState {
    /// Entry number `number`.
    fn entry(&self, number: u32) -> Option<Switch> {
        let entries = self.entries.borrow();
        let back = self.written.get().wrapping_sub(number) as usize;
        entries.len().checked_sub(back).and_then(|at| entries.get(at)).copied()
    }
}

impl SwitchLog for SimHalf<'_> {
    fn try_gate(self, _: usize) -> Result<(), Holder> {
        Ok(())
    }

    fn take_gate_over(self, _: Holder, _: usize) -> bool {
        false
    }

    fn gate_holder(self) -> Option<Holder> {
        None
    }

    fn open_gate(self) {}

    fn written(self) -> u32 {
        self.0.written.get()
    }

    fn lane(self) -> Lane {
        self.0.entries.borrow().back().map_or(Lane::Kernel, |last| last.to)
    }

    fn write(self, at: u32, switch: Switch, step: impl Fn()) {
        let mut entries = self.0.entries.borrow_mut();
        entries.push_back(switch);
        if entries.len() > PENDING_MAX {
            entries.pop_front();
        }
        step();
        self.0.sent.set(switch.carrier);
        step();
        self.0.written.set(at.wrapping_add(1));
    }

    fn accept(self, known: u32, _: Lane, _: u64, _: u64) -> Result<bool, Broken> {
        // No other end writes here.
        if self.0.written.get() == known { Ok(false) } else { Err(Broken) }
    }

    fn end_section(self, _: u64, _: impl Fn()) -> Ended {
        match self.lane() {
            Lane::Kernel => Ended::NotOnLane,
            Lane::Sdp => Ended::Asked,
        }
    }

    fn next(self, followed: u32, lane: Lane, freed: u64) -> Result<Option<Switch>, Broken> {
        if self.0.written.get() == followed {
            return Ok(None);
        }
        let found = self.0.entry(followed).ok_or(Broken)?;
        let is_sound = found.to != lane && found.fabric >= freed;
        if is_sound { Ok(Some(found)) } else { Err(Broken) }
    }

    fn follow(self, followed: u32) {
        self.0.followed.set(followed);
    }

    fn followed(self) -> u32 {
        self.0.followed.get()
    }

    fn announce_unbounded_read(self, begins: bool) {
        self.0.reading.set(begins);
    }

    fn may_leave(self, switches: u32) -> bool {
        self.0.followed.get() == switches || !self.0.reading.get()
    }

    fn sent(self) -> u64 {
        self.0.sent.get()
    }

    fn count_sent(self, bytes: u64) {
        self.0.sent.set(bytes);
    }

    fn trust(self) -> Trust {
        self.0.trust.get().unwrap_or(Trust::No)
    }

    fn declare(self, trust: Trust) {
        self.0.trust.set(Some(trust));
    }

    fn read(self) -> u64 {
        self.0.read.get()
    }

    fn count_read(self, bytes: u64) {
        self.0.read.set(bytes);
    }
}

impl SimHalf<'_> {
    const fn arm_word(&self, what: What) -> &Cell<(u32, Option<How>)> {
        let [bytes, space] = &self.0.arms;
        match what {
            What::Bytes => bytes,
            What::Space => space,
        }
    }
}

impl Wakeups for SimHalf<'_> {
    fn position(self, what: What) -> u64 {
        match what {
            What::Bytes => self.0.published.get(),
            What::Space => self.0.freed.get(),
        }
    }

    fn size(self) -> u64 {
        BUFFERS * BUFFER_BYTES
    }

    fn arm(self, what: What, how: How) {
        let word = self.arm_word(what);
        let (mark, before) = word.get();
        let how = if before.is_some_and(|before| before != how) { How::Carrier } else { how };
        word.set((mark.wrapping_add(1), Some(how)));
    }

    fn armed(self, what: What) -> Option<Armed> {
        let (mark, how) = self.arm_word(what).get();
        how.map(|how| Armed { how, mark })
    }

    fn disarm(self, what: What, armed: Armed) {
        let word = self.arm_word(what);
        if word.get().0 == armed.mark {
            word.set((armed.mark, None));
        }
    }

    fn note_signal(self, ticks: u64) {
        self.0.signalled_at.set(ticks);
    }

    fn signalled_at(self) -> u64 {
        self.0.signalled_at.get()
    }
}

impl EndWords for SimEnd<'_> {
    fn is_attached(self) -> bool {
        self.0.is_attached.get()
    }

    fn attach(self) {
        self.0.is_attached.set(true);
    }

    fn intent(self) -> Intent {
        self.0.intent.get().unwrap_or(Intent::Open)
    }

    fn intend(self, intent: Intent) {
        self.0.intent.set(Some(intent));
    }

    fn close(self) -> bool {
        if self.is_open() {
            self.intend(Intent::Closed);
        }
        self.intent() == Intent::Closed
    }

    fn reset_note(self) -> ResetNote {
        self.0.note.get().unwrap_or(ResetNote::None)
    }

    fn note_reset(self, note: ResetNote) {
        self.0.note.set(Some(note));
    }

    fn note_leaving(self) {
        if self.reset_note() == ResetNote::None {
            self.note_reset(ResetNote::Leaves);
        }
    }

    fn cpu(self) -> u32 {
        self.0.cpu.get()
    }

    fn note_cpu(self, cpu: u32) {
        self.0.cpu.set(cpu);
    }

    fn socket(self) -> u32 {
        self.0.socket.get()
    }

    fn note_socket(self, number_plus_one: u32) {
        self.0.socket.set(number_plus_one);
    }
}

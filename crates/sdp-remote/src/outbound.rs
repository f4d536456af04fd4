//! The sending half: which road new bytes take, which are kept, how it goes on when the queue pair
//! dies.

use sdp_guard::{
    marker::{MARKER_LEN, Seal},
    parting::Silence,
    producer::{Lane, Link, Producer},
};
use sdp_proto::{
    Ack, Hold, Outgoing, SourceConfig, ZcopySource,
    wire::{Lane as WireLane, LaneRequest, LaneSwitch},
};
use sdp_rdma::{
    fabric::{Gather, PostError, SendOptions, SendQueue},
    work::WorkId,
};

use crate::ring::{Nothing, Pieces, fill_ring, ring_pieces};
use crate::{Agreement, Carrier, CarrierError, PayloadCarrier, Reason, Role, Shared};

mod carrier;
mod credit_wait;
mod due;
mod lend;
mod quiet;
mod spill;
mod steady;
mod watch;

use credit_wait::CreditWait;
use spill::Spill;

/// Messages with payload that can be posted and not acknowledged.
pub const KEPT_MAX: usize = 32;
/// So long posted work may be without completion.
const SILENT_NS: u64 = 600_000_000;
/// So long messages may be posted without a completion.
const UNWATCHED_NS: u64 = 50_000_000;
/// Every how many messages one asks for a completion. Those behind the last one are watched by a probe, if the peer
/// does not answer.
const SIGNAL_EVERY: u32 = 8;
/// Largest piece of a backlog.
const PIECE_MAX: u64 = 64 * 1024;
/// Spec 4.4: how long a late update waits, at the active and at the passive end; and how often that doubles.
const LATE_NS: [u64; 2] = [10_000_000, 15_000_000];
const LATE_DOUBLES: u32 = 6;

/// Bytes of payload that end a record before a marker: few, so that a kernel that has room takes them all.
const RECORD_MOST: usize = 1024;
/// Markers about the meeting and the other half that are to be written.
const SAY_PROOF: u8 = 1 << 0;
const SAY_DEAD: u8 = 1 << 1;

/// The parts with which a call on the sending half works.
#[derive(Debug)]
pub struct SendContext<'a, T, C> {
    /// The queue pair's sending half, while there is one.
    pub tx: Option<&'a mut T>,
    /// The TCP socket.
    pub carrier: &'a mut C,
    /// Where bytes are kept that were posted and not acknowledged. Always the same memory for one connection, at
    /// least one message long; 128 KiB are usual.
    pub ring: &'a mut [u8],
    /// The mailbox.
    pub shared: &'a Shared,
    /// Monotonic time in nanoseconds.
    pub now: u64,
}

/// The event for which a sender has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Room in the kernel's send buffer (`POLLOUT`).
    Carrier,
    /// The kernel must put its bytes into segments: look again after a millisecond. Not of
    /// [`Outbound::send`], whose payload can end the record.
    Unsegmented,
    /// Credit, acknowledgement or completion: the completion channel wakes; call again at this time in any
    /// case, and the bytes go by the carrier.
    Credit {
        /// Monotonic nanoseconds.
        until: u64,
    },
    /// The peer leaves the library: its RETURN on the carrier ends this (`POLLIN`).
    Return,
}

/// Why nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// Not now.
    Wait(Wait),
    /// The carrier's error number; the stream is over.
    Carrier(i32),
    /// The peer broke a rule: reset the connection.
    Broken(Reason),
}

/// How far the meeting is, for this half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No queue pair, or one that ended before it was proven.
    None,
    /// A proof is still to be written or read.
    Proving,
    /// Proven both ways.
    Up,
}

/// How far this end is on its way out of the library (G8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// It stays.
    No,
    /// LEAVE is to be written.
    Ask,
    /// RAW alone: the peer has ended its stream, and expects no answer.
    Alone,
    /// The inbound half waits for the peer's RAW.
    Waits,
    /// RAW, if it was not written in answer to the peer's LEAVE, and RETURN are to be written.
    Gives {
        /// Where the program stands.
        stream: u64,
        /// Bytes behind it, which lie in the ring.
        len: u32,
    },
    /// The bytes that follow RETURN.
    Bytes {
        /// Stream position of the next.
        at: u64,
        /// How many are left.
        left: u32,
    },
    /// All is written: bytes that follow are raw.
    Gone,
}

/// A marker of which the kernel has taken a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Partial {
    bytes: [u8; MARKER_LEN],
    sent: usize,
    /// Of this half, KERNEL or RAW; else about the meeting or the other half.
    is_own: bool,
}

/// The sending half of one connection.
#[derive(Debug)]
pub struct Outbound {
    producer: Producer<KEPT_MAX>,
    source: ZcopySource,
    seal: Seal,
    /// Of the last meeting whose proofs both ends have read.
    proven: Option<Seal>,
    role: Role,
    stage: Stage,
    meeting: u32,
    /// The peer's buffers at the beginning: half of them is enough to go (back) to SDP.
    peer_bufs: u16,
    /// Markers to write: `SAY_…`.
    says: u8,
    silence: Silence,
    /// The connection is about to end: nothing is said of its queue pair any more.
    closes: bool,
    /// The kernel has all, and the end of the stream follows: LEAVE gets no answer any more.
    has_finished: bool,
    /// Our PROOF of this meeting was written.
    is_proof_written: bool,
    partial: Option<Partial>,
    leave: Leave,
    /// With RETURN go bytes.
    gives_back: bool,
    /// LEAVE has had no answer, and this end reads on.
    reads_on: bool,
    /// The peer leaves: RAW is to be written, and nothing before its RETURN.
    must_hold: bool,
    /// The kernel's bytes end with the end of a record: a marker may follow.
    is_clean: bool,
    /// Payload stays on the kernel lane.
    is_kept_off: bool,
    is_inviting: bool,
    is_invite_sent: bool,
    wait: CreditWait,
    spill: Spill,
    /// Messages posted since one asked for a completion, and the oldest that has asked: its number and time.
    silent: u32,
    signalled: Option<(u32, u64)>,
    /// The youngest that has asked.
    last_signalled: u32,
    /// The youngest of all.
    last: u32,
    /// The peer's credit as of the last look at the mailbox.
    learnt: u64,
    /// When the last message was posted, and late updates in a row.
    last_post: u64,
    lates: u32,
    /// Memory of the program is advertised, and how much of it the peer has read.
    is_lent: bool,
    lent_read: usize,
    /// How the READ of a receive call has ended.
    fetched: Option<bool>,
    counts: Counts,
}

/// The work of a sending half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages with payload posted.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Empty ones posted.
    pub updates: u64,
    /// Times payload went to the kernel lane for lack of credit.
    pub spills: u64,
    /// Times it went there because the queue pair was dead.
    pub resumes: u64,
    /// Switches onto SDP.
    pub switches: u64,
}

const fn carrier_error(error: CarrierError) -> SendError {
    match error {
        CarrierError::WouldBlock => SendError::Wait(Wait::Carrier),
        CarrierError::Failed(errno) => SendError::Carrier(errno),
    }
}

impl Outbound {
    /// At the first meeting; `position`: bytes that the kernel has taken from the program so far.
    pub const fn new(position: u64) -> Self {
        Self {
            producer: Producer::new(position),
            source: ZcopySource::new(&SourceConfig::implicit(4096), false),
            seal: Seal { token: [0; 16], key: [0; 16] },
            proven: None,
            role: Role::Acceptor,
            stage: Stage::None,
            meeting: 0,
            peer_bufs: 0,
            says: 0,
            silence: Silence::new(),
            closes: false,
            has_finished: false,
            is_proof_written: false,
            partial: None,
            leave: Leave::No,
            gives_back: false,
            reads_on: false,
            must_hold: false,
            is_clean: false,
            is_kept_off: false,
            is_inviting: false,
            is_invite_sent: false,
            wait: CreditWait::new(),
            spill: Spill::none(),
            silent: 0,
            signalled: None,
            last_signalled: 0,
            last: 0,
            learnt: 0,
            last_post: 0,
            lates: 0,
            is_lent: false,
            lent_read: 0,
            fetched: None,
            counts: Counts {
                messages: 0,
                bytes: 0,
                updates: 0,
                spills: 0,
                resumes: 0,
                switches: 0,
            },
        }
    }

    pub(crate) fn begin(&mut self, met: &Agreement) {
        let (source, _) = met.local.zcopy_halves(&met.remote);
        self.source = source;
        (self.is_lent, self.lent_read, self.fetched) = (false, 0, None);
        (self.seal, self.role, self.meeting) = (met.own, met.role, met.number);
        self.peer_bufs = met.remote.bufs;
        self.stage = Stage::Proving;
        self.says = if met.role == Role::Acceptor { SAY_PROOF } else { 0 };
        self.is_proof_written = false;
        self.silence.end();
        (self.is_inviting, self.is_invite_sent) = (false, false);
        self.wait.begin();
        (self.silent, self.signalled) = (0, None);
        self.spill = Spill::none();
        self.spill.allow(self.counts.messages);
        (self.learnt, self.lates) = (0, 0);
        (self.last_signalled, self.last) = (0, 0);
    }

    pub(crate) fn link_destroyed(&mut self) {
        self.producer.link_died();
        self.producer.link_destroyed();
        // A PROOF that is not written yet will be: the peer forgets the seals of earlier attempts with it.
        self.stage = Stage::None;
        self.signalled = None;
        self.free();
    }

    /// Its work.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Messages that the peer has buffers for, as far as is known.
    pub const fn credits(&self) -> u32 {
        self.source.plain().available()
    }

    /// True if an attempt to meet may begin, as far as this half goes: on the kernel lane, nothing to write, no
    /// queue pair.
    pub fn may_meet(&self, shared: &Shared) -> bool {
        self.producer.lane() == Lane::Kernel
            && self.stage == Stage::None
            && !self.has_backlog()
            && !shared.has_link()
            && !shared.peer_leaves()
            && self.leave == Leave::No
    }

    /// True if the peer is known to read markers, so that this end may leave.
    pub const fn may_leave(&self) -> bool {
        self.proven.is_some()
    }

    /// True if nothing but the program's bytes will be written to the carrier, and no message is
    /// due.
    pub fn is_plain(&self) -> bool {
        self.producer.lane() == Lane::Raw && !self.has_backlog() && !self.is_leaving()
    }

    /// True if this direction may end: all is written, and no answer of the peer is due to which
    /// this end would have to react.
    pub fn may_end(&self) -> bool {
        !self.is_leaving() && !self.is_held() && !self.has_backlog()
    }

    /// True from [`Outbound::leave`] on until all is written.
    pub(crate) const fn is_leaving(&self) -> bool {
        !matches!(self.leave, Leave::No | Leave::Gone)
    }

    /// This end leaves: writes the messages that are due, then LEAVE. No queue pair is there any
    /// more.
    pub(crate) fn leave(&mut self) {
        self.to_kernel();
        if self.leave == Leave::No && matches!(self.producer.lane(), Lane::Kernel) {
            self.leave = Leave::Ask;
        }
    }

    /// The same towards a peer that has ended its stream, of which nothing is unread.
    pub(crate) fn leave_alone(&mut self) {
        self.leave();
        if self.leave == Leave::Ask {
            self.leave = Leave::Alone;
        }
    }

    /// True if LEAVE was written, and the inbound half is to take the bytes before RAW.
    pub const fn has_asked(&self) -> bool {
        matches!(self.leave, Leave::Waits)
    }

    /// This end reads on, and its writer goes on meanwhile. LEAVE that is not written yet will not be.
    pub(crate) fn read_on(&mut self) {
        self.reads_on = true;
        if matches!(self.leave, Leave::Ask) {
            self.leave = Leave::No;
        }
    }

    /// RETURN is due: `len` bytes from `stream` on lie in the ring, by their positions in the inbound stream.
    pub(crate) const fn give_back(&mut self, stream: u64, len: u32) {
        self.leave = Leave::Gives { stream, len };
        self.gives_back = len != 0;
    }

    /// True if this end has left, and the peer sends it bytes again that were unread.
    pub const fn has_given_back(&self) -> bool {
        matches!(self.leave, Leave::Gone) && self.gives_back
    }

    /// How long a ring a RETURN of `len` bytes from `stream` on takes, with the bytes that are kept behind them.
    pub(crate) fn room_for_return(&self, stream: u64, len: u32) -> Result<usize, Reason> {
        self.producer.may_return(stream, len).map_err(Reason::Producer)?;
        Ok(self.producer.stream().saturating_sub(stream) as usize)
    }

    /// The peer's RETURN was read, and its bytes lie in the ring.
    pub(crate) fn returned(&mut self, stream: u64, len: u32) -> Result<(), Reason> {
        self.producer.returned(stream, len).map(|_| ()).map_err(Reason::Producer)
    }

    /// True if RAW was written, and the peer's RETURN is awaited: the bytes that it brings are
    /// still to be sent.
    pub fn is_held(&self) -> bool {
        self.producer.lane() == Lane::Held
    }

    /// True if the queue pair is proven and not known to be dead.
    pub fn is_up(&self, shared: &Shared) -> bool {
        self.stage == Stage::Up && !shared.is_link_dead()
    }

    /// True if payload goes by the queue pair now.
    pub fn is_on_sdp(&self) -> bool {
        self.producer.lane() == Lane::Sdp
    }

    /// Bytes accepted from the program so far.
    pub const fn stream(&self) -> u64 {
        self.producer.stream()
    }

    /// All sleepers of this end are armed for the queue pair, and all its readers go through the
    /// library: the peer may send by SDP. Holds until the queue pair ends; [`Outbound::tend`]
    /// announces it when it is up.
    pub const fn invite(&mut self) {
        self.is_inviting = true;
    }

    /// Takes bytes of `payload` from byte `from` on, sends them by the road that is right now, and
    /// returns how many it took, at least 1 (0 only if there are none). First writes messages that
    /// are due from before. Never waits.
    ///
    /// # Errors
    /// Nothing was taken.
    pub fn send<T: SendQueue, G: Gather, C: PayloadCarrier<G>>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut G,
        from: usize,
    ) -> Result<usize, SendError> {
        self.catch_up(io)?;
        match self.flush_to_carrier(io) {
            // No marker may be written where a record is not at its end, and payload can end it.
            Err(SendError::Wait(Wait::Unsegmented))
                if payload.len() > from && !self.is_leaving() =>
            {
                return self.send_by_carrier(io, payload, from, RECORD_MOST);
            }
            // Nothing that this call has ends it.
            Err(SendError::Wait(Wait::Unsegmented)) => return Err(SendError::Wait(Wait::Return)),
            flushed => flushed?,
        }
        if payload.len() <= from {
            return Ok(0);
        }
        if self.is_leaving() && !(self.reads_on && self.has_asked()) {
            return Err(SendError::Wait(Wait::Return));
        }
        if self.producer.lane() == Lane::Kernel && self.may_switch(io) {
            if !self.is_clean {
                // Bytes that follow by the carrier, once the queue pair is lost, begin with a
                // marker.
                return self.send_by_carrier(io, payload, from, RECORD_MOST);
            }
            self.switch(io)?;
        }
        if self.producer.lane() == Lane::Sdp {
            let posted = self.post_payload(io, payload, from)?;
            if posted != 0 {
                return Ok(posted);
            }
            // The queue pair died, or there was no credit for too long.
            self.flush_to_carrier(io)?;
        }
        let most = self.spill_room(io)?;
        self.send_by_carrier(io, payload, from, most)
    }

    /// Gives the kernel at most `most` bytes of `payload` from byte `from` on, and the end of a record behind them if it
    /// takes them all.
    fn send_by_carrier<T, G: Gather, C: PayloadCarrier<G>>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut G,
        from: usize,
        most: usize,
    ) -> Result<usize, SendError> {
        if self.producer.may_write().is_err() {
            return Err(SendError::Wait(Wait::Return));
        }
        let left = payload.len().saturating_sub(from).min(most);
        let sent = io.carrier.send_payload(payload, from, most).map_err(carrier_error)?.min(left);
        self.is_clean = sent == left;
        self.producer.wrote(sent as u32);
        self.spill.took(sent);
        Ok(sent)
    }

    /// Writes messages that are due to the carrier: proofs, markers, and the bytes of a resume.
    /// `Ok`: nothing is left.
    ///
    /// # Errors
    /// The event that it waits for, or the end.
    pub fn flush<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        self.catch_up(io)?;
        self.flush_to_carrier(io)
    }

    /// Everything that is due and is not payload: completions, acknowledgements, the death of the
    /// queue pair, pending control messages, credit updates, [`Outbound::flush`]. After each
    /// receive call, before each sleep, and when the completion channel woke a thread. The time at
    /// which to call again, if there is one.
    ///
    /// # Errors
    /// As [`Outbound::flush`]; [`SendError::Wait`] means that the rest is still due.
    pub fn tend<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<Option<u64>, SendError> {
        let was_alive = io.shared.has_link() && !io.shared.is_link_dead();
        self.catch_up(io)?;
        let last = self.last;
        self.post_control(io);
        if self.last != last {
            self.catch_up(io)?;
        }
        if was_alive && io.shared.is_link_dead() {
            // The peer may have closed: whether anything may be written now is to be asked first.
            return Ok(Some(io.now));
        }
        self.flush_to_carrier(io)?;
        let watched = self.signalled.map(|(_, since)| since.saturating_add(SILENT_NS));
        let unwatched = || self.is_unwatched().then_some(self.last_post + UNWATCHED_NS);
        let watch = watched.or_else(unwatched);
        let ack = io.shared.ack();
        let is_late = self.stage == Stage::Up
            && self.producer.link() == Link::Up
            && self.source.plain().late_update(ack).is_ok();
        let late = is_late.then(|| self.late_at());
        Ok([watch, late, self.starves_until(io)].into_iter().flatten().min())
    }

    /// Payload goes to the kernel from here on: messages that are not acknowledged are written
    /// there again. For shutdown, close and all that SDP cannot do. Then [`Outbound::flush`].
    pub fn to_kernel(&mut self) {
        self.is_kept_off = true;
        self.resume();
    }

    /// Lets [`Outbound::send`] go back to SDP after [`Outbound::to_kernel`].
    pub const fn allow_sdp(&mut self) {
        self.is_kept_off = false;
    }

    /// The queue pair is dead: messages that are not acknowledged will be written to the carrier.
    pub fn link_died(&mut self, shared: &Shared) {
        shared.link_died();
        if self.producer.link() != Link::Up || self.is_lent {
            return;
        }
        self.producer.link_died();
        self.signalled = None;
        // The peer may not know; if it does, it reads over this. Behind RAW nothing is said.
        if !matches!(self.producer.lane(), Lane::Held | Lane::Raw) {
            self.says |= SAY_DEAD;
        }
        if self.producer.lane() == Lane::Sdp {
            self.counts.resumes += 1;
            self.resume();
        }
    }

    /// Posted work has not completed for 600 ms: the queue pair is taken for dead. Part of [`Outbound::tend`]; true if
    /// it was so.
    pub fn watch(&mut self, shared: &Shared, now: u64) -> bool {
        let is_silent =
            self.signalled.is_some_and(|(_, since)| now.saturating_sub(since) >= SILENT_NS);
        if is_silent {
            self.link_died(shared);
        }
        is_silent
    }

    /// Bytes of the program that are not acknowledged and not in the kernel: with them and the kernel's own number,
    /// `SIOCOUTQ`.
    pub fn unacknowledged(&self) -> u64 {
        match (self.producer.lane(), self.producer.backlog()) {
            (_, Some(backlog)) => backlog.to.saturating_sub(backlog.from),
            (Lane::Sdp, None) => self.producer.stream() - self.producer.unacknowledged_from(),
            _ => 0,
        }
    }

    /// Learns the events since the last call.
    fn catch_up<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        if io.shared.is_broken() {
            return Err(SendError::Broken(Reason::Told));
        }
        self.prove(io.shared);
        if let Some(tx) = io.tx.as_deref_mut() {
            // The device reports no others; the next post also reports a failure.
            if self.signalled.is_some() {
                self.take_completions(tx, io.shared);
            }
            self.learn(tx, io.shared)?;
        }
        self.watch(io.shared, io.now);
        if let Some(tx) = io.tx.as_deref_mut()
            && self.is_unwatched()
            && io.now.saturating_sub(self.last_post) >= UNWATCHED_NS
        {
            self.probe(tx, io.shared, io.now);
        }
        if io.shared.is_link_dead() {
            self.link_died(io.shared);
        }
        self.leave_unsaid(io.shared);
        if self.must_answer(io.shared) && !self.is_lent {
            (self.must_hold, self.is_kept_off) = (true, true);
        }
        self.free();
        Ok(())
    }

    /// Proofs: the acceptor speaks first, the connector when it has heard that.
    fn prove(&mut self, shared: &Shared) {
        // Also of an attempt that has come to nothing meanwhile.
        let may_prove = self.stage == Stage::Proving
            || (self.stage == Stage::None && self.producer.lane() == Lane::Kernel);
        if self.meeting == 0 || !may_prove || !shared.is_proven(self.meeting) {
            return;
        }
        if !self.is_proof_written {
            self.says |= SAY_PROOF;
            return;
        }
        // Whatever became of the queue pair, both ends know markers now.
        self.proven = Some(self.seal);
        // `may_meet` has seen to it that this half is on the kernel lane and keeps nothing.
        if self.stage == Stage::Proving && self.producer.met().is_ok() {
            self.stage = Stage::Up;
            shared.up();
        }
    }

    #[inline]
    fn learn(&mut self, tx: &mut impl SendQueue, shared: &Shared) -> Result<(), SendError> {
        if self.stage != Stage::Up {
            return Ok(());
        }
        let word = shared.credit();
        if word == self.learnt {
            return Ok(());
        }
        self.learnt = word;
        let Some(peer) = Shared::peer_credit(word) else { return Ok(()) };
        let learnt = self.source.learn(peer).map_err(Reason::Message);
        let learnt = learnt
            .and_then(|()| self.producer.acknowledge(peer.mseq_ack).map_err(Reason::Producer));
        if let Err(reason) = learnt {
            shared.broke();
            return Err(SendError::Broken(reason));
        }
        tx.allow(peer.mseq_ack.wrapping_add(u32::from(peer.bufs)));
        Ok(())
    }

    #[inline]
    fn free(&mut self) {
        self.producer.free();
    }

    fn resume(&mut self) {
        // Where the stream goes on is known when nothing is advertised any more.
        if !self.is_lent && self.producer.resume().is_ok() {
            self.wait.stop();
            self.wait.leave(self.producer.carrier());
            self.spill.left_sdp(self.counts.messages);
        }
    }

    /// True if payload goes by the queue pair, or the next [`Outbound::send`] will let it.
    pub fn goes_by_sdp(&self, shared: &Shared) -> bool {
        self.is_on_sdp() || self.producer.lane() == Lane::Kernel && self.has_credit(shared)
    }

    /// Whether the half may go (back) to the queue pair: there is credit, and room for bytes, which the
    /// peer makes when its program reads.
    fn may_switch<T: SendQueue, C>(&self, io: &SendContext<'_, T, C>) -> bool {
        let has_room = |tx: &T| tx.room() >= self.usual_room(io, tx);
        self.has_credit(io.shared) && io.tx.as_deref().is_some_and(has_room)
    }

    fn has_credit(&self, shared: &Shared) -> bool {
        !self.is_kept_off
            && self.is_up(shared)
            && shared.is_invited()
            && self.producer.link() == Link::Up
            && !self.producer.is_read_by_device()
            && self.source.plain().available() >= self.least_credit()
    }

    /// Posts a switch; if the queue pair has no room for it the half stays where it is.
    fn switch<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        let Some(tx) = io.tx.as_deref_mut() else { return Ok(()) };
        let mut after = self.producer.clone();
        let Ok(switch) = after.switch_to_sdp() else { return Ok(()) };
        let message = LaneSwitch {
            lane: WireLane::Sdp,
            sequence: switch.sequence,
            carrier_position: switch.carrier,
            stream_position: switch.stream,
        };
        let Ok(outgoing) = self.source.switch_lane(io.shared.ack(), message) else { return Ok(()) };
        // Not solicited: payload that is follows at once.
        let posted = self.post(tx, &outgoing, &mut Nothing, false, io.now);
        match posted {
            Ok(()) => {
                io.carrier.trace(true, &outgoing.message().header);
                after.posted_control(outgoing.message().header.mseq);
                self.producer = after;
                self.wait.come();
                self.counts.switches += 1;
            }
            Err(PostError::Failed(_)) => self.link_died(io.shared),
            Err(_) => {}
        }
        Ok(())
    }

    /// Posts one message and takes note of it.
    fn post(
        &mut self,
        tx: &mut impl SendQueue,
        outgoing: &Outgoing,
        payload: &mut impl Gather,
        is_solicited: bool,
        now: u64,
    ) -> Result<(), PostError> {
        let mseq = outgoing.message().header.mseq;
        let signalled = self.silent + 1 >= SIGNAL_EVERY;
        let options = SendOptions {
            signalled,
            solicited: is_solicited || outgoing.is_solicited(),
            control: outgoing.is_control(),
        };
        tx.post_send(WorkId(u64::from(mseq)), outgoing.header(), payload, options)?;
        self.source.commit(outgoing);
        self.silent = if signalled { 0 } else { self.silent + 1 };
        self.last_post = now;
        self.last = mseq;
        if signalled {
            self.last_signalled = mseq;
            self.signalled.get_or_insert((mseq, now));
        }
        Ok(())
    }

    /// Largest payload of a message, apart from credit and room.
    #[inline]
    fn longest(&self, tx: &impl SendQueue) -> usize {
        let message = tx.max_message().saturating_sub(sdp_proto::wire::HEADER_LEN);
        message.min(self.source.plain().max_payload() as usize)
    }

    /// Largest payload of a message that could be posted now, apart from the queue pair's own room.
    fn room<T: SendQueue, C>(&self, io: &SendContext<'_, T, C>) -> usize {
        let Some(tx) = io.tx.as_deref() else { return 0 };
        if self.producer.may_post().is_err() || self.source.next_data(io.shared.ack(), 1).is_err() {
            return 0;
        }
        let kept = self.producer.stream().saturating_sub(self.producer.unacknowledged_from());
        let room = io.ring.len().saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX));
        room.min(self.longest(tx))
    }

    /// Posts as many messages as there is credit for. 0: the half is on the kernel lane now.
    fn post_payload<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut impl Gather,
        from: usize,
    ) -> Result<usize, SendError> {
        let (mut at, mut most) = (from, usize::MAX);
        while at < payload.len() {
            let len = self.room(io).min(payload.len() - at).min(most);
            let Some(tx) = io.tx.as_deref_mut().filter(|_| len != 0) else { break };
            let Ok(outgoing) = self.source.next_data(io.shared.ack(), len as u32) else { break };
            let len = outgoing.payload_len() as usize;
            let stream = self.producer.stream();
            fill_ring(io.ring, stream, payload, at, len);
            let mut pieces = Pieces(ring_pieces(io.ring, stream, len));
            match self.post(tx, &outgoing, &mut pieces, true, io.now) {
                Ok(()) => io.carrier.trace(true, &outgoing.message().header),
                Err(PostError::Failed(_)) => {
                    self.link_died(io.shared);
                    break;
                }
                Err(_) => {
                    most = self.told_room(io);
                    if len > most {
                        continue;
                    }
                    break;
                }
            }
            if self.producer.posted(outgoing.message().header.mseq, len as u32).is_err() {
                // Cannot be: `room` has asked.
                self.link_died(io.shared);
                break;
            }
            at += len;
            self.counts.messages += 1;
            self.counts.bytes += len as u64;
            self.lates = 0;
            self.wait.end();
        }
        let posted = at - from;
        if posted == 0 && self.producer.lane() == Lane::Sdp {
            self.starve(io)?;
        }
        Ok(posted)
    }

    /// Posts the invitation, answers and credit updates, as far as there is credit and room.
    fn post_control<T: SendQueue, C: Carrier>(&mut self, io: &mut SendContext<'_, T, C>) {
        if !self.is_up(io.shared) || self.producer.link() != Link::Up {
            return;
        }
        let Some(tx) = io.tx.as_deref_mut() else { return };
        let shared = io.shared;
        if self.is_inviting && !self.is_invite_sent {
            let request = LaneRequest { lane: WireLane::Sdp, sequence: shared.followed() };
            let Ok(outgoing) = self.source.request_lane(shared.ack(), request) else { return };
            if !self.post_empty(tx, &outgoing, io.carrier, (shared, io.now)) {
                return;
            }
            self.is_invite_sent = true;
        }
        if shared.must_ack() && !self.acknowledge(io) {
            return;
        }
        let Some(tx) = io.tx.as_deref_mut() else { return };
        loop {
            let ack: Ack = shared.ack();
            let (outgoing, is_late) =
                match self.source.next_control(ack, shared.exchange().pending()) {
                    Ok(outgoing) => (outgoing, false),
                    Err(Hold::NothingToSend) if tx.owes_room() => {
                        let Ok(outgoing) = self.source.plain().room_update(ack) else { return };
                        (outgoing, false)
                    }
                    Err(Hold::NothingToSend) if io.now >= self.late_at() => {
                        let Ok(outgoing) = self.source.plain().late_update(ack) else { return };
                        (outgoing, true)
                    }
                    Err(_) => return,
                };
            let mut post = || self.post_empty(tx, &outgoing, io.carrier, (shared, io.now));
            if !shared.exchange().settle(&outgoing, &mut post) {
                return;
            }
            self.lates = if is_late { self.lates + 1 } else { self.lates };
            if outgoing.settles().is_nothing() {
                self.counts.updates += 1;
            }
        }
    }

    fn post_empty(
        &mut self,
        tx: &mut impl SendQueue,
        outgoing: &Outgoing,
        carrier: &impl Carrier,
        (shared, now): (&Shared, u64),
    ) -> bool {
        match self.post(tx, outgoing, &mut Nothing, true, now) {
            Ok(()) => {
                carrier.trace(true, &outgoing.message().header);
                self.producer.posted_control(outgoing.message().header.mseq);
                true
            }
            Err(PostError::Failed(_)) => {
                self.link_died(shared);
                false
            }
            Err(_) => false,
        }
    }
}

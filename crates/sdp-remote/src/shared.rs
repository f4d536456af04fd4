//! The mailbox between the two halves of a connection: facts that one has learnt and the other must
//! know.
//!
//! All of it is atomic and small; nothing in it is a lock. Each field names its writer.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sdp_guard::{consumer, marker::BadMarker, parting::Known, producer};
use sdp_proto::{Ack, Exchange, PeerCredit, SourceInput, Violation};

use sdp_rdma::{key::RemoteSlice, work::WorkId};

use crate::Agreement;

/// Names the READ of a receive call; a connection has one at a time.
pub const FETCH: WorkId = WorkId(1 << 41);

/// How far an advertisement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Bytes that the peer has read and reported.
    pub read: usize,
    /// Nothing is advertised any more. What was not read is due ([`Outbound::end_lent`]).
    pub is_over: bool,
}

/// Where a READ belongs: its bytes are the next ones of the stream as long as that is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// What to READ.
    pub from: RemoteSlice,
    pub(crate) section: u32,
    pub(crate) stream: u64,
}

/// Why a connection must be reset: the peer broke a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A message that breaks the protocol.
    Message(Violation),
    /// Bytes on the carrier that begin like a marker and are none.
    Marker(BadMarker),
    /// A marker or a message out of its place.
    Consumer(consumer::Broken),
    /// An acknowledgement or a RETURN of bytes that were never sent.
    Producer(producer::Broken),
    /// The peer has aborted.
    Aborted,
    /// Bytes that are due are not kept: cannot be.
    Lost,
    /// The half that found it has reported it already.
    Told,
}

/// The queue pair is dead, whichever half found out.
const LINK_DEAD: u32 = 1 << 0;
/// The peer's LEAVE was read: answer RAW and hold.
const PEER_LEAVES: u32 = 1 << 2;
/// The peer broke a rule: reset.
const BROKEN: u32 = 1 << 3;
/// The peer invites us onto SDP.
const INVITED: u32 = 1 << 4;
/// There is a queue pair, proven or not.
const LINK: u32 = 1 << 5;
/// It is proven in both directions.
const UP: u32 = 1 << 6;
/// The peer has ended the queue pair, and knows that it is dead.
const PARTED: u32 = 1 << 7;
/// The peer has said behind its end that it goes on.
const STAYS: u32 = 1 << 8;
/// The peer is to be told at once what this end has taken: it leaves its queue pair alone until then.
const MUST_ACK: u32 = 1 << 9;
/// Both ends may advertise memory.
const ZCOPY: u32 = 1 << 10;
/// What a meeting leaves behind for the next one.
const KEPT: u32 = BROKEN | PEER_LEAVES;

/// The state that both halves of one connection share.
#[derive(Debug)]
pub struct Shared {
    flags: AtomicU32,
    /// Number of the present meeting.
    meeting: AtomicU32,
    /// Number of the meeting whose PROOF was read. Written by the inbound half.
    proof: AtomicU32,
    /// Last switch that the consumer followed. Written by the inbound half.
    followed: AtomicU32,
    /// The acknowledgement in our headers, as [`Ack::to_word`]. Written by the inbound half.
    ack: AtomicU64,
    /// The credit in the peer's last header, and how many were taken. Written by the inbound half.
    credit: AtomicU64,
    /// Control messages to send, as [`PendingControl::to_word`].
    pending: AtomicU64,
    /// The peer's answers to advertisements. Written by the inbound half, taken by the outbound one.
    answers: Answers,
}

/// Answers that are not taken yet; an advertisement has fewer, and all are taken before the next.
const ANSWERS: usize = 32;
/// In place of a number of bytes: SendSm.
const SEND_SM: u32 = 0;

/// Answers to advertisements, oldest first: the acknowledgement of the message, and the bytes that
/// it reports.
#[derive(Debug)]
struct Answers {
    words: [AtomicU64; ANSWERS],
    added: AtomicU32,
    taken: AtomicU32,
}

impl Answers {
    const fn new() -> Self {
        let (added, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { words: [const { AtomicU64::new(0) }; ANSWERS], added, taken }
    }

    fn clear(&self) {
        self.taken.store(self.added.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    /// Of a connection that has not met.
    pub const fn new() -> Self {
        Self {
            flags: AtomicU32::new(0),
            meeting: AtomicU32::new(0),
            proof: AtomicU32::new(0),
            followed: AtomicU32::new(0),
            ack: AtomicU64::new(0),
            credit: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            answers: Answers::new(),
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
    }

    /// True if there is a queue pair, dead or alive, proven or not.
    pub fn has_link(&self) -> bool {
        self.has(LINK)
    }

    /// True if the queue pair is proven in both directions; payload may go by it if it is not dead.
    pub fn is_up(&self) -> bool {
        self.has(UP)
    }

    /// True if payload may go by the queue pair both ways, and neither end has asked for anything
    /// that is not done yet.
    #[inline]
    pub fn is_steady(&self) -> bool {
        const LOOKED_AT: u32 = LINK | UP | LINK_DEAD | PEER_LEAVES | BROKEN | MUST_ACK | ZCOPY;
        self.flags.load(Ordering::Acquire) & LOOKED_AT == LINK | UP
            && self.pending.load(Ordering::Acquire) == 0
    }

    /// True if the queue pair is known to be dead.
    pub fn is_link_dead(&self) -> bool {
        self.has(LINK_DEAD)
    }

    /// The queue pair is dead: by the connection manager's word, by time, or by a half's. Any
    /// thread.
    pub fn link_died(&self) {
        self.set(LINK_DEAD);
    }

    /// The peer has ended the queue pair, by the connection manager's word. Any thread.
    pub fn peer_parted(&self) {
        self.set(LINK_DEAD | PARTED);
    }

    /// What is known of the peer behind the queue pair's end (G10).
    pub(crate) fn known(&self) -> Known {
        Known { has_parted: self.has(PARTED), stays: self.has(STAYS) }
    }

    /// True if the peer broke a rule: the connection is to be reset.
    pub fn is_broken(&self) -> bool {
        self.has(BROKEN)
    }

    /// True if the peer's LEAVE waits for an answer.
    pub fn peer_leaves(&self) -> bool {
        self.has(PEER_LEAVES)
    }

    /// Receive buffers that our last header announced.
    pub fn promised(&self) -> u32 {
        self.ack().bufs.into()
    }

    pub(crate) fn begin(&self, met: &Agreement) {
        self.meeting.store(met.number, Ordering::Relaxed);
        self.credit.store(0, Ordering::Relaxed);
        self.pending.store(0, Ordering::Relaxed);
        self.set_ack(Ack { bufs: met.local.bufs, mseq_ack: 0, empty: 0 });
        let kept = self.flags.load(Ordering::Relaxed) & KEPT;
        let zcopy = if met.has_zcopy() { ZCOPY } else { 0 };
        self.answers.clear();
        self.flags.store(kept | LINK | zcopy, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        let kept = self.flags.load(Ordering::Relaxed) & (KEPT | PARTED | STAYS);
        self.flags.store(kept, Ordering::Release);
    }
}

/// In `credit`: something was learnt.
const LEARNT: u64 = 1 << 48;

impl Shared {
    pub(crate) fn up(&self) {
        self.set(UP);
    }

    pub(crate) fn broke(&self) {
        self.set(BROKEN);
    }

    pub(crate) fn peer_asks_to_leave(&self) {
        self.set(PEER_LEAVES | STAYS);
    }

    pub(crate) fn peer_stays(&self) {
        self.set(STAYS);
    }

    /// A section of the queue pair is over: the peer goes back to it when it knows what became of its
    /// last messages.
    pub(crate) fn wish_ack(&self) {
        self.set(MUST_ACK);
    }

    pub(crate) fn must_ack(&self) -> bool {
        self.has(MUST_ACK)
    }

    pub(crate) fn ack_goes(&self) {
        self.flags.fetch_and(!MUST_ACK, Ordering::AcqRel);
    }

    pub(crate) fn is_invited(&self) -> bool {
        self.has(INVITED)
    }

    pub(crate) fn invite(&self, is_wanted: bool) {
        if is_wanted {
            self.set(INVITED);
        } else {
            self.flags.fetch_and(!INVITED, Ordering::AcqRel);
        }
    }

    /// Whether the peer's PROOF of this meeting was read.
    pub(crate) fn is_proven(&self, meeting: u32) -> bool {
        self.proof.load(Ordering::Acquire) == meeting
    }

    pub(crate) fn prove(&self, meeting: u32) {
        self.proof.store(meeting, Ordering::Release);
    }

    /// Number of the present meeting.
    pub(crate) fn meeting(&self) -> u32 {
        self.meeting.load(Ordering::Relaxed)
    }

    pub(crate) fn followed(&self) -> u32 {
        self.followed.load(Ordering::Relaxed)
    }

    pub(crate) fn follow(&self, sequence: u32) {
        self.followed.store(sequence, Ordering::Relaxed);
    }

    pub(crate) fn ack(&self) -> Ack {
        Ack::from_word(self.ack.load(Ordering::Acquire))
    }

    pub(crate) fn set_ack(&self, ack: Ack) {
        self.ack.store(ack.to_word(), Ordering::Release);
    }

    pub(crate) fn credit(&self) -> u64 {
        self.credit.load(Ordering::Acquire)
    }

    /// As the engine sees it.
    pub(crate) fn exchange(&self) -> &dyn Exchange {
        self
    }

    /// True if both ends may advertise memory, by their set-up messages.
    pub fn has_zcopy(&self) -> bool {
        self.has(ZCOPY)
    }

    /// The peer's answer to an advertisement. Under the inbound half's lock, behind its credit.
    pub(crate) fn add_answer(&self, input: &SourceInput, mseq_ack: u32) -> Result<(), Violation> {
        let bytes = match *input {
            SourceInput::SendSm { .. } => SEND_SM,
            SourceInput::RdmaRdCompl { bytes, .. } if bytes != 0 => bytes,
            // Neither is there anything else that this end has asked for.
            _ => return sdp_proto::judge_unasked(input),
        };
        let added = self.answers.added.load(Ordering::Relaxed);
        let waiting = added.wrapping_sub(self.answers.taken.load(Ordering::Acquire));
        let place = self.answers.words.get(added as usize % ANSWERS);
        let Some(place) = place.filter(|_| (waiting as usize) < ANSWERS) else {
            return Err(Violation::ReadComplUnasked { bytes });
        };
        place.store(u64::from(mseq_ack) << 32 | u64::from(bytes), Ordering::Relaxed);
        self.answers.added.store(added.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// The next answer, and what its message acknowledged. Under the outbound half's lock.
    pub(crate) fn next_answer(&self) -> Option<(SourceInput, u32)> {
        let taken = self.answers.taken.load(Ordering::Relaxed);
        if taken == self.answers.added.load(Ordering::Acquire) {
            return None;
        }
        let word = self.answers.words.get(taken as usize % ANSWERS)?.load(Ordering::Relaxed);
        self.answers.taken.store(taken.wrapping_add(1), Ordering::Release);
        let mseq_ack = (word >> 32) as u32;
        let input = match word as u32 {
            SEND_SM => SourceInput::SendSm { mseq_ack },
            bytes => SourceInput::RdmaRdCompl { bytes, wants_pipelined: false },
        };
        Some((input, mseq_ack))
    }

    pub(crate) fn peer_credit(word: u64) -> Option<PeerCredit> {
        (word & LEARNT != 0)
            .then_some(PeerCredit { bufs: (word >> 32) as u16, mseq_ack: word as u32 })
    }
}

impl Exchange for Shared {
    fn set_credit(&self, peer: PeerCredit) {
        let word = LEARNT | u64::from(peer.bufs) << 32 | u64::from(peer.mseq_ack);
        self.credit.store(word, Ordering::Release);
    }

    fn pending_word(&self) -> u64 {
        self.pending.load(Ordering::Acquire)
    }

    fn replace_pending_word(&self, from: u64, to: u64) -> Result<(), u64> {
        let orders = (Ordering::AcqRel, Ordering::Acquire);
        self.pending.compare_exchange(from, to, orders.0, orders.1).map(|_| ())
    }
}

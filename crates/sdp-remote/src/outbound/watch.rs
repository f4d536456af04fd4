//! The sending half's knowledge of its posted messages: completions, and probes behind messages
//! that ask for none. And its waits for credit.

use sdp_guard::producer::{Lane, Link};
use sdp_rdma::{
    fabric::{PostError, SendQueue},
    key::{Lkey, LocalSlice, RemoteSlice, Rkey},
    work::{Status, WorkId},
};

use super::{
    LATE_DOUBLES, LATE_NS, Outbound, SendContext, SendError, Stage, UNWATCHED_NS, Wait,
    credit_wait::Heard,
};
use crate::{
    Carrier, Role,
    shared::{FETCH, Shared},
};

/// Between two looks for the other end's proof, of a sender that waits for it.
const PROOF_LOOK_NS: u64 = 2_000_000;

/// Names the request that asks whether the road is there still.
const PROBE: WorkId = WorkId(1 << 40);

impl Outbound {
    /// Credit without which the half does not go (back) to the queue pair: a switch costs one, and two
    /// are never payload's.
    pub(super) fn least_credit(&self) -> u32 {
        4.max(u32::from(self.peer_bufs) / 2)
    }

    /// No credit: for how long may that go on? `Ok`: no longer; the half is on the kernel lane now.
    pub(super) fn starve<T: SendQueue, C: Carrier>(
        &mut self,
        io: &SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        if let Some(until) = self.waits_until(io) {
            return Err(SendError::Wait(Wait::Credit { until }));
        }
        self.wait.give_up();
        self.counts.spills += 1;
        self.spill.allow(self.counts.messages);
        self.resume();
        Ok(())
    }

    /// Whether the half is on the kernel lane for lack of room alone, or because the other end's proof
    /// or invitation is to come, and what it may send is used up. A proof lies behind what the carrier
    /// has taken before: the more that is, the later the other end reads it.
    pub(super) fn is_spill_used_up(&self, shared: &Shared) -> bool {
        self.spill.left() == Some(0)
            && self.producer.lane() == Lane::Kernel
            && self.stage != Stage::None
            && !self.is_kept_off
            && !shared.is_link_dead()
    }

    /// How many bytes may go by the carrier now.
    pub(super) fn spill_room<T: SendQueue, C: Carrier>(
        &mut self,
        io: &SendContext<'_, T, C>,
    ) -> Result<usize, SendError> {
        if self.is_spill_used_up(io.shared) {
            if let Some(until) = self.waits_until(io) {
                return Err(SendError::Wait(Wait::Credit { until }));
            }
            self.wait.give_up();
            self.spill.allow(self.counts.messages);
        }
        // Where all is used up and no wait is due, the half is not on the kernel lane for that.
        let left = self.spill.left().filter(|left| *left != 0);
        Ok(left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX)))
    }

    /// Until when a sender without credit waits for it; `None`: no longer.
    pub(super) fn waits_until<T: SendQueue, C: Carrier>(
        &mut self,
        io: &SendContext<'_, T, C>,
    ) -> Option<u64> {
        self.wait.until(self.heard(io), io.now, || io.carrier.allowed())
    }

    fn heard<T: SendQueue, C: Carrier>(&self, io: &SendContext<'_, T, C>) -> Heard {
        let tx = io.tx.as_deref();
        // Credit is news to a half that is short of it; the other end acknowledges updates as well.
        let is_short = self.source.plain().available() < self.least_credit();
        let learnt = if is_short { self.learnt } else { 0 };
        let told = (learnt, tx.map_or(0, SendQueue::progress));
        let came = tx.map_or((0, 0), SendQueue::unread);
        // Before the proofs nothing comes by the queue pair.
        let is_up = self.is_up(io.shared);
        Heard {
            // Nothing else is news of an invitation.
            told: if io.shared.is_invited() { told } else { (0, 0) },
            came: if is_up { came } else { (u32::from(io.carrier.is_unread()), 0) },
            carried: self.producer.carrier(),
        }
    }

    /// When a sender that waits for credit is to be told that it waits no longer, if that is to come.
    pub(super) fn starves_until<T: SendQueue, C: Carrier>(
        &self,
        io: &SendContext<'_, T, C>,
    ) -> Option<u64> {
        let waits = self.producer.lane() == Lane::Sdp || self.is_spill_used_up(io.shared);
        if !waits || !self.wait.is_on() {
            return None;
        }
        let until = self.wait.ends_at(self.heard(io)).filter(|until| io.now < *until)?;
        // A proof comes by the carrier, behind bytes of which the sender is not told.
        let most = if self.is_up(io.shared) { u64::MAX } else { io.now + PROOF_LOOK_NS };
        Some(until.min(most))
    }

    /// Whether a sender that was told [`Wait::Credit`] is to call [`Outbound::send`] again: there is room for a
    /// longest message by the queue pair, or its bytes go by the carrier, or it gets an error. Writes nothing to
    /// the carrier.
    pub fn may_go_on<T: SendQueue, C: Carrier>(&mut self, io: &mut SendContext<'_, T, C>) -> bool {
        if self.catch_up(io).is_err() {
            return true;
        }
        if self.producer.lane() != Lane::Sdp {
            let waits = self.is_spill_used_up(io.shared) && !self.may_switch(io);
            return !waits || self.waits_until(io).is_none();
        }
        let Some(tx) = io.tx.as_deref() else { return true };
        self.room(io).min(tx.room()) >= self.usual_room(io, tx) || self.waits_until(io).is_none()
    }

    /// The room of which a sender is told: a longest message, or a quarter of what can be kept.
    pub(super) fn usual_room<T: SendQueue, C>(&self, io: &SendContext<'_, T, C>, tx: &T) -> usize {
        self.longest(tx).min(io.ring.len() / 4)
    }

    /// [`Self::usual_room`]: with as much a waiting sender is called again, and it goes.
    #[cold]
    pub(super) fn told_room<T: SendQueue, C>(&self, io: &SendContext<'_, T, C>) -> usize {
        io.tx.as_deref().map_or(0, |tx| self.usual_room(io, tx))
    }

    /// When a late update is due.
    pub(super) const fn late_at(&self) -> u64 {
        let [active, passive] = LATE_NS;
        let wait = match self.role {
            Role::Acceptor => active,
            Role::Connector => passive,
        };
        let doubles = if self.lates < LATE_DOUBLES { self.lates } else { LATE_DOUBLES };
        self.last_post.saturating_add(wait << doubles)
    }

    /// True if time is to tell that the last messages are lost: [`Outbound::tend`] is to be called again.
    pub fn must_watch(&self) -> bool {
        self.signalled.is_some() || self.is_unwatched()
    }

    /// Messages were posted behind the last one that asks for a completion, and the peer has not acknowledged them: if
    /// they are lost, nothing tells.
    pub(super) fn is_unwatched(&self) -> bool {
        self.signalled.is_none()
            && self.silent > 0
            && self.stage == Stage::Up
            && self.producer.link() == Link::Up
            && self.producer.is_read_by_device()
    }

    /// A request of no bytes behind them (spec 5.7): it needs neither credit nor a buffer, and ends when all before it have.
    pub(super) fn probe(&mut self, tx: &mut impl SendQueue, shared: &Shared, now: u64) {
        let local = LocalSlice { addr: 0, len: 0, lkey: Lkey(0) };
        let remote = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
        match tx.post_write(PROBE, local, remote) {
            // A thread that comes late gives it as long as one that comes in time.
            Ok(()) => {
                let since = now.saturating_sub(UNWATCHED_NS);
                (self.silent, self.signalled) = (0, Some((self.last_signalled, since)));
            }
            Err(PostError::Failed(_)) => self.link_died(shared),
            // Later.
            Err(_) => self.last_post = now,
        }
    }

    /// Takes the device's completions of posted messages.
    pub(super) fn take_completions(&mut self, tx: &mut impl SendQueue, shared: &Shared) {
        while let Some(completion) = tx.poll_completion() {
            if completion.id == FETCH {
                self.fetched = Some(completion.status == Status::Success);
            }
            if completion.status != Status::Success {
                self.link_died(shared);
                continue;
            }
            if completion.id == FETCH {
                continue;
            }
            if completion.id == PROBE {
                match &mut self.signalled {
                    Some((of, _)) if *of == self.last_signalled => self.signalled = None,
                    // Messages posted behind it are awaited still.
                    Some((_, since)) => *since = self.last_post,
                    None => {}
                }
                continue;
            }
            let mseq = completion.id.0 as u32;
            if mseq == self.last_signalled {
                self.signalled = None;
            } else if let Some((oldest, since)) = &mut self.signalled {
                // The next one that is awaited was posted at an unknown time behind this one.
                (*oldest, *since) = (mseq.wrapping_add(1), self.last_post);
            }
        }
    }
}

//! Behind the end of a queue pair, and before that of the connection: what is not written to the
//! carrier, because the peer may have closed, or this end is about to (G10).

use sdp_guard::{
    parting::{Carried, Speech},
    producer::{Lane, Link},
};
use sdp_proto::Hold;
use sdp_rdma::fabric::SendQueue;

use super::{Leave, Outbound, SAY_DEAD, SAY_PROOF, SendContext, SendError};
use crate::{Carrier, Shared};

impl Outbound {
    /// Whether this end may write to the carrier by itself, behind its queue pair's end: else
    /// [`Outbound::tend_quietly`] takes the place of [`Outbound::tend`]. What the program sends may
    /// always go.
    pub fn may_speak(&mut self, shared: &Shared, carried: Carried, now: u64) -> Speech {
        let is_due = self.is_due_behind(shared);
        self.silence.judge(shared.known(), carried, is_due, now)
    }

    /// Whether the peer would miss something if nothing were written.
    fn is_due_behind(&self, shared: &Shared) -> bool {
        let leaves = !matches!(self.leave, Leave::No | Leave::Gone);
        let may_say_dead = self.producer.link() == Link::Up && !shared.known().has_parted;
        let has_bytes = match (self.producer.lane(), self.producer.backlog()) {
            (_, Some(backlog)) => backlog.from < backlog.to,
            (Lane::Sdp, None) => self.producer.has_unacknowledged(),
            _ => false,
        };
        let has_markers = self.says != 0 || self.partial.is_some() || self.must_hold || leaves;
        has_markers || may_say_dead || has_bytes || self.must_answer(shared)
    }

    /// Learns the events since the last call, and writes nothing to the carrier.
    ///
    /// # Errors
    /// [`SendError::Broken`] only.
    pub fn tend_quietly<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        self.catch_up(io)
    }

    /// The connection is about to be closed: the peer could answer what this end would say of its
    /// queue pair, and the kernel of a program that has closed answers that with a reset.
    pub const fn close(&mut self) {
        self.closes = true;
    }

    /// The end of this direction: payload that is not acknowledged goes to the kernel, and the peer is told what
    /// this end has taken, so that it need not send that again. `Ok`: nothing is left.
    ///
    /// # Errors
    /// As [`Outbound::flush`].
    pub fn finish<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        self.catch_up(io)?;
        self.acknowledge(io);
        self.to_kernel();
        self.flush(io)?;
        self.has_finished = !self.is_held();
        Ok(())
    }

    /// Tells the peer what this end has taken, if it does not know that. False: not now.
    pub(super) fn acknowledge<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> bool {
        if !self.is_up(io.shared) || self.producer.link() != Link::Up {
            return false;
        }
        let Some(tx) = io.tx.as_deref_mut() else { return false };
        // Before the word is read: what is taken behind it is to be told anew.
        io.shared.ack_goes();
        let is_told = match self.source.plain().last_acknowledgement(io.shared.ack()) {
            Ok(update) => self.post_empty(tx, &update, io.carrier, (io.shared, io.now)),
            Err(why) => why == Hold::NothingToSend,
        };
        if !is_told {
            io.shared.wish_ack();
        }
        is_told
    }

    /// True if the peer may write something of the queue pair to the carrier at any moment: in the
    /// middle of a meeting, and where the queue pair has died without a word of the peer.
    pub fn may_be_spoken_to(&self, shared: &Shared) -> bool {
        let is_dead = !shared.has_link() || shared.is_link_dead();
        self.meeting != 0 && !shared.known().has_parted && (is_dead || !shared.is_up())
    }

    /// Forgets what need not be said: a peer that has ended the queue pair knows that it is dead.
    pub(super) fn leave_unsaid(&mut self, shared: &Shared) {
        if self.says & SAY_DEAD != 0 && (self.closes || shared.known().has_parted) {
            self.says &= !SAY_DEAD;
        }
        if self.closes {
            self.says &= !SAY_PROOF;
        }
    }
}

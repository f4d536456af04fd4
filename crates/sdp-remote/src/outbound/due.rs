//! The work that the sending half has still to do: asked before a call returns, before it sleeps,
//! and by callers that look whether it must be woken. Nothing here has side effects.

use sdp_guard::producer::{Lane, Link};

use super::{Leave, Outbound, Stage};
use sdp_rdma::fabric::SendQueue;

use crate::Shared;

impl Outbound {
    /// Cheap and without side effects: true if [`Outbound::tend`] has something to do now, apart from time.
    pub fn is_due(&self, tx: Option<&impl SendQueue>, shared: &Shared) -> bool {
        if self.must_answer(shared) || self.has_backlog() {
            return true;
        }
        if self.stage == Stage::None {
            return false;
        }
        let has_died = shared.is_link_dead() && self.producer.link() == Link::Up;
        let has_proof = self.stage == Stage::Proving && shared.is_proven(self.meeting);
        if has_died || has_proof || shared.credit() != self.learnt {
            return true;
        }
        if !self.is_up(shared) {
            return false;
        }
        let has_control =
            self.source.next_control(shared.ack(), shared.exchange().pending()).is_ok();
        has_control
            || (shared.must_ack() && self.source.plain().last_acknowledgement(shared.ack()).is_ok())
            || (tx.is_some_and(SendQueue::owes_room)
                && self.source.plain().room_update(shared.ack()).is_ok())
            || (self.is_inviting && !self.is_invite_sent)
    }

    /// True if bytes, markers or proofs wait for room in the kernel.
    pub fn has_backlog(&self) -> bool {
        let leaves = !matches!(self.leave, Leave::No | Leave::Waits | Leave::Gone);
        let has_markers = self.says != 0 || self.partial.is_some() || self.must_hold || leaves;
        has_markers || self.producer.backlog().is_some()
    }

    /// Whether the peer's LEAVE has had no answer.
    pub(crate) fn must_answer(&self, shared: &Shared) -> bool {
        shared.peer_leaves()
            && !self.must_hold
            && !self.has_finished
            && matches!(self.producer.lane(), Lane::Kernel | Lane::Sdp)
    }
}

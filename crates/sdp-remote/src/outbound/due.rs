//! The work that the sending half has still to do: asked before a call returns, before it sleeps,
//! and by callers that look whether it must be woken. Nothing here has side effects.

use sdp_guard::producer::{Lane, Link};

use sdp_proto::Hold;

use super::{Leave, Outbound, Stage};
use crate::Shared;

impl Outbound {
    /// Cheap and without side effects: true if [`Outbound::tend`] has something to do now, apart from time.
    pub fn is_due(&self, shared: &Shared) -> bool {
        let has_learnt = self.stage != Stage::None && shared.credit() != self.learnt;
        has_learnt || self.owes(shared)
    }

    /// True while payload may go by the queue pair both ways and this half owes nothing: a call
    /// that has moved payload may leave [`Outbound::tend`] to the next one that waits. The next
    /// send learns the peer's acknowledgements.
    pub fn is_settled(&self, shared: &Shared) -> bool {
        self.is_up(shared)
            && self.is_invite_told
            && !self.owes(shared)
            && !self.is_held_by_old_credit(shared)
    }

    /// Whether credit that was not learnt yet may be what an update waits for.
    fn is_held_by_old_credit(&self, shared: &Shared) -> bool {
        let held = || self.source.next_control(shared.ack(), shared.owed()).err();
        shared.credit() != self.learnt && held().is_some_and(|hold| hold != Hold::NothingToSend)
    }

    /// Whether anything is to be written or posted.
    fn owes(&self, shared: &Shared) -> bool {
        if self.must_answer(shared) || self.has_backlog() {
            return true;
        }
        let has_died = shared.is_link_dead() && self.producer.link() == Link::Up;
        let has_proof = self.stage == Stage::Proving && shared.is_proven(self.meeting);
        if self.stage != Stage::None && (has_died || has_proof) {
            return true;
        }
        if !self.is_up(shared) {
            return false;
        }
        let has_control = self.source.next_control(shared.ack(), shared.owed()).is_ok();
        has_control || (self.is_inviting && !self.is_invite_told)
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
            && matches!(self.producer.lane(), Lane::Kernel | Lane::Sdp)
    }
}

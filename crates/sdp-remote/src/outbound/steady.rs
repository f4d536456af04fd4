//! The commonest send: nothing but payload is to be posted.
//!
//! [`Outbound::send`] does the same, and everything else. What is done here changes no decision of
//! its; it asks less often.

use sdp_guard::producer::Producer;
use sdp_rdma::{
    fabric::{Gather, SendOptions, SendQueue},
    work::WorkId,
};

use super::{KEPT_MAX, Leave, Outbound, SIGNAL_EVERY, SILENT_NS, SendContext, Stage, UNWATCHED_NS};
use crate::{
    Shared,
    ring::{Pieces, fill_ring, ring_pieces},
};

/// So many messages behind one that asks for its completion that is looked for.
const COMPLETES_BEHIND: u32 = SIGNAL_EVERY / 2;

impl Outbound {
    /// True while payload goes by the queue pair, and nothing else is to be sent by either road: as
    /// [`Outbound::is_settled`], apart from the peer's credits.
    #[inline]
    pub fn is_steady(&self, shared: &Shared) -> bool {
        shared.is_steady()
            && self.stage == Stage::Up
            && self.is_invite_sent
            && !self.has_backlog()
            && self.leave == Leave::No
            && self.producer.is_steady()
    }

    /// True while payload may go by the queue pair both ways, no answer of this half is pending, and
    /// the peer need not be told of its credits now: a call that has moved payload may leave
    /// [`Outbound::tend`] to the next one that waits. The next send learns the peer's
    /// acknowledgements. Also of a half that has sent nothing by the queue pair.
    #[inline]
    pub fn is_settled(&self, tx: Option<&impl SendQueue>, shared: &Shared) -> bool {
        shared.is_steady()
            && self.stage == Stage::Up
            && self.is_invite_sent
            && !self.has_backlog()
            && !self.source.plain().owes_update(shared.ack())
            && !tx.is_some_and(SendQueue::owes_room)
    }

    /// Posts the bytes of `payload`, where nothing but that is to be done. How many; 0: none, and
    /// [`Outbound::send`] is to be called, as for the bytes that are left.
    #[inline]
    pub fn send_steadily<T: SendQueue, C>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut impl Gather,
    ) -> usize {
        let Some(tx) = io.tx.as_deref_mut() else { return 0 };
        let shared = io.shared;
        if !self.is_steady(shared) {
            return 0;
        }
        if let Some((_, since)) = self.signalled {
            let silent_ns = io.now.saturating_sub(since);
            if self.silent >= COMPLETES_BEHIND || silent_ns >= SILENT_NS / 2 {
                self.take_completions(tx, shared);
            }
            if silent_ns >= SILENT_NS && self.signalled.is_some() {
                return 0;
            }
        }
        if shared.credit() != self.learnt {
            if self.learn(tx, shared).is_err() {
                return 0;
            }
            self.free();
        }
        // Time alone has made something due: a probe, or the peer's acknowledgement was not taken.
        if self.is_unwatched() && io.now.saturating_sub(self.last_post) >= UNWATCHED_NS {
            return 0;
        }
        let ack = shared.ack();
        let longest = self.longest(tx);
        let wanted = payload.len();
        let mut at = 0;
        while at < wanted {
            let stream = self.producer.stream();
            let len = (wanted - at).min(longest).min(room(&self.producer, io.ring.len()));
            let header = self.source.plain_mut().plain_data(ack, len as u32);
            let Some(header) = header.filter(|_| self.producer.may_post().is_ok()) else { break };
            fill_ring(io.ring, stream, payload, at, len);
            let mut pieces = Pieces(ring_pieces(io.ring, stream, len));
            let signalled = self.silent + 1 >= SIGNAL_EVERY;
            let options = SendOptions { signalled, solicited: true, control: false };
            let id = WorkId(u64::from(header.mseq));
            let bytes = header.encode();
            let posted = match at + len < wanted {
                true => tx.post_send_before(id, &bytes, &mut pieces, options),
                false => tx.post_send(id, &bytes, &mut pieces, options),
            };
            // The next call finds the reason.
            if posted.is_err() {
                break;
            }
            self.source.plain_mut().commit_plain(ack, &header);
            let _ = self.producer.posted(header.mseq, len as u32); // `may_post` has said so
            self.last = header.mseq;
            self.silent += 1;
            if signalled {
                (self.silent, self.last_signalled) = (0, header.mseq);
                self.signalled.get_or_insert((header.mseq, io.now));
            }
            at += len;
            self.counts.messages += 1;
        }
        if at < wanted {
            tx.flush();
        }
        if at != 0 {
            self.last_post = io.now;
            self.counts.bytes += at as u64;
            self.lates = 0;
            self.wait.end();
        }
        at
    }
}

/// Bytes that may still be kept.
#[inline]
fn room(producer: &Producer<KEPT_MAX>, ring: usize) -> usize {
    let kept = producer.stream().saturating_sub(producer.unacknowledged_from());
    ring.saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX))
}

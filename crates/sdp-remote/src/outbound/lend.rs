//! Read ZCopy, at the sender: memory of the program that is advertised to the peer (spec 7).
//!
//! No more is advertised than could go as Data at once: it fits into what may be kept, and into the
//! peer's ring. So an advertisement can be taken back at any moment without waiting, and what the
//! peer has perhaps read already follows as Data; its sink skips that.

use sdp_guard::producer::{Lane, Link};
use sdp_proto::Hold;
use sdp_rdma::{
    fabric::{Gather, PostError, SendQueue},
    key::RemoteSlice,
};

use super::{KEPT_MAX, Leave, Outbound, SendContext, SendError, Stage};
use crate::{
    Carrier, Lent, Reason, Shared,
    ring::{Pieces, fill_ring, ring_pieces},
};

/// Messages that are left free for control beside an advertisement and its rest.
const MESSAGES: u32 = 8;
/// Bytes of the peer's ring that are left free for them.
const CONTROL_BYTES: usize = 2048;
/// Bytes of a record that are not payload, at most.
const RECORD_BYTES: usize = 64;

impl Outbound {
    /// True while memory of the program is advertised: the half stays where it is until
    /// [`Outbound::end_lent`].
    #[inline]
    pub const fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// How many bytes may be advertised now; 0: none.
    #[cold]
    #[inline(never)]
    pub fn lend_room<T: SendQueue, C: Carrier>(&mut self, io: &mut SendContext<'_, T, C>) -> usize {
        let may_lend = io.shared.has_zcopy()
            && !self.is_lent
            && self.catch_up(io).is_ok()
            && self.hear(io).is_ok()
            && self.stage == Stage::Up
            && self.producer.lane() == Lane::Sdp
            && self.producer.link() == Link::Up
            && !io.shared.is_link_dead()
            && !io.shared.peer_leaves()
            && !self.is_kept_off
            && self.leave == Leave::No
            && !self.has_backlog();
        let Some(tx) = io.tx.as_deref().filter(|_| may_lend) else { return 0 };
        let longest = self.longest(tx);
        let slots = KEPT_MAX.saturating_sub(self.producer.kept()).saturating_sub(2);
        let credit = self.source.plain().available().saturating_sub(MESSAGES) as usize;
        let messages = slots.min(credit);
        let records = messages.saturating_mul(RECORD_BYTES).saturating_add(CONTROL_BYTES);
        let ring = tx.room_for_all().saturating_sub(records);
        let kept = self.producer.stream().saturating_sub(self.producer.unacknowledged_from());
        let kept = io.ring.len().saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX));
        messages.saturating_mul(longest).min(ring).min(kept)
    }

    /// Advertises `buffer`: the bytes of `payload` from byte `from` on, of which the first `inline`
    /// go with the message. It is registered, and at most [`Outbound::lend_room`] long. False:
    /// nothing was done.
    #[cold]
    #[inline(never)]
    pub fn lend<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut impl Gather,
        (from, inline): (usize, u32),
        buffer: RemoteSlice,
    ) -> bool {
        if self.lend_room(io) < buffer.len as usize {
            return false;
        }
        let Some(tx) = io.tx.as_deref_mut() else { return false };
        let Ok(outgoing) = self.source.advertise(io.shared.ack(), buffer, inline) else {
            return false;
        };
        let stream = self.producer.stream();
        fill_ring(io.ring, stream, payload, from, inline as usize);
        let mut pieces = Pieces(ring_pieces(io.ring, stream, inline as usize));
        match self.post(tx, &outgoing, &mut pieces, true, io.now) {
            Ok(()) => io.carrier.trace(true, &outgoing.message().header),
            Err(PostError::Failed(_)) => {
                self.link_died(io.shared);
                return false;
            }
            Err(_) => return false,
        }
        if self.producer.posted(outgoing.message().header.mseq, inline).is_err() {
            // Cannot be: `lend_room` has asked.
            self.link_died(io.shared);
            return false;
        }
        self.counts.messages += 1;
        self.counts.bytes += u64::from(inline);
        (self.is_lent, self.lent_read) = (true, 0);
        true
    }

    /// Takes the peer's answers.
    ///
    /// # Errors
    /// [`SendError::Broken`] only.
    #[cold]
    #[inline(never)]
    pub fn look_lent<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<Lent, SendError> {
        self.catch_up(io)?;
        self.hear(io)?;
        let is_gone = io.shared.is_link_dead() || io.shared.peer_leaves() || self.is_kept_off;
        let is_over = !self.source.is_advertised() || is_gone;
        Ok(Lent { read: self.lent_read, is_over })
    }

    /// Ends an advertisement, whatever the peer does. `left` bytes of `payload` from byte `from` on
    /// were not reported: they are sent as Data, or kept for the carrier where the queue pair is
    /// dead. Its memory may be read until its registration ends.
    #[cold]
    #[inline(never)]
    pub fn end_lent<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut impl Gather,
        (from, left): (usize, usize),
    ) {
        // A queue pair that dies meanwhile is not left before all that was advertised is kept.
        let is_dead = io.shared.is_link_dead();
        let posted = if is_dead { 0 } else { self.take_back(io, payload, (from, left)) };
        if posted >= left && !io.shared.is_link_dead() {
            self.is_lent = false;
            return;
        }
        let rest = left.saturating_sub(posted);
        if rest != 0 {
            let stream = self.producer.stream();
            fill_ring(io.ring, stream, payload, from.saturating_add(posted), rest);
            if self.producer.keep(rest as u32).is_err() {
                io.shared.broke();
            }
        }
        self.is_lent = false;
        self.link_died(io.shared);
    }

    /// Withdraws what is advertised, and posts the rest as Data. How many of its bytes.
    fn take_back<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut impl Gather,
        (from, left): (usize, usize),
    ) -> usize {
        let Some(tx) = io.tx.as_deref_mut() else { return 0 };
        let shared = io.shared;
        if self.source.is_advertised() {
            for withdraws in [false, true] {
                let made = match withdraws {
                    false => self.source.cancel(shared.ack()),
                    true => self.source.withdraw(shared.ack()),
                };
                let is_posted = match made {
                    Ok(outgoing) => self.post_empty(tx, &outgoing, io.carrier, (shared, io.now)),
                    Err(why) => why == Hold::Cancelling,
                };
                if !is_posted {
                    return 0;
                }
            }
        }
        let mut at = 0;
        while at < left {
            let want = (left - at).min(self.longest(tx));
            let Ok(outgoing) = self.source.next_data(shared.ack(), want as u32) else { break };
            let len = outgoing.payload_len() as usize;
            let stream = self.producer.stream();
            fill_ring(io.ring, stream, payload, from + at, len);
            let mut pieces = Pieces(ring_pieces(io.ring, stream, len));
            if self.post(tx, &outgoing, &mut pieces, true, io.now).is_err() {
                break;
            }
            io.carrier.trace(true, &outgoing.message().header);
            if self.producer.posted(outgoing.message().header.mseq, len as u32).is_err() {
                break;
            }
            at += len;
            self.counts.messages += 1;
            self.counts.bytes += len as u64;
        }
        at
    }

    /// Judges the answers to advertisements that have come.
    #[cold]
    #[inline(never)]
    fn hear<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        while let Some((input, mseq_ack)) = io.shared.next_answer() {
            // Behind the answer: its header was learnt before it.
            if let Some(tx) = io.tx.as_deref_mut() {
                self.learn(tx, io.shared)?;
            }
            match self.source.handle(&input, mseq_ack) {
                Ok(sdp_proto::SourceEvent::Read { bytes, .. }) => {
                    self.producer.read_by_peer(bytes);
                    self.lent_read += bytes as usize;
                }
                Ok(_) => {}
                Err(violation) => {
                    io.shared.broke();
                    return Err(SendError::Broken(Reason::Message(violation)));
                }
            }
        }
        Ok(())
    }

    /// A READ of the peer's memory that [`SendQueue::post_read`] has posted under
    /// [`crate::FETCH`]: how it ended, once.
    #[cold]
    #[inline(never)]
    pub fn take_fetched<T: SendQueue>(&mut self, tx: &mut T, shared: &Shared) -> Option<bool> {
        self.take_completions(tx, shared);
        self.fetched.take()
    }
}

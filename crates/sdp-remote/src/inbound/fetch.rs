//! Read ZCopy, at the receiver: memory that the peer advertises is READ into the program's (spec 7).

use sdp_proto::TakenMessage;
use sdp_rdma::fabric::ReceiveQueue;

use super::{Inbound, ReceiveContext, RecvError};
use crate::{Carrier, Fetch, Reason, Shared};

impl Inbound {
    /// True if what the peer advertises is next in the stream.
    pub fn is_offered(&self, shared: &Shared) -> bool {
        shared.has_zcopy()
            && !shared.is_link_dead()
            && self.consumer.is_on_sdp()
            && self.consumer.is_guarded()
            && !self.consumer.is_ending()
            && self.inbox.head().is_none()
            && self.sink.is_offered()
    }

    /// What the peer advertises is not READ: it comes as Data.
    #[cold]
    #[inline(never)]
    pub fn refuse(&mut self, shared: &Shared) {
        self.sink.refuse();
        self.answer(shared);
    }

    /// The next READ, of at most `most` bytes, if one may begin; all messages that have come are
    /// taken before. Once it is posted: [`Inbound::fetching`].
    ///
    /// # Errors
    /// [`RecvError::Broken`] only.
    #[cold]
    #[inline(never)]
    pub fn next_fetch<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        most: u32,
    ) -> Result<Option<Fetch>, RecvError> {
        let Some(rx) = io.rx.as_deref_mut() else { return Ok(None) };
        self.gather(rx, &*io.carrier, io.shared)?;
        if !self.is_offered(io.shared) || self.sink.flying() != 0 {
            return Ok(None);
        }
        let (section, stream) = (self.consumer.sequence(), self.consumer.taken());
        Ok(self.sink.next_read(most).map(|from| Fetch { from, section, stream }))
    }

    /// Its READ is posted.
    pub fn fetching(&mut self, fetch: &Fetch) {
        self.sink.read_posted(fetch.from.len);
    }

    /// Its READ has ended. True: its bytes are the next ones of the stream, and count as delivered.
    /// False: they come again.
    #[cold]
    #[inline(never)]
    pub fn fetched<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        fetch: &Fetch,
        is_there: bool,
    ) -> bool {
        // A queue pair that has failed takes its advertisements with it; and where another thread hands
        // the stream back, these bytes go back too.
        if !is_there || io.shared.is_link_dead() {
            return false;
        }
        let len = fetch.from.len;
        let is_next = self.consumer.is_on_sdp()
            && (self.consumer.sequence(), self.consumer.taken()) == (fetch.section, fetch.stream);
        if !self.sink.read_done(len) {
            return false;
        }
        if !is_next || self.arrival.data(len).is_err() {
            // Counted by one and not by the other: this queue pair cannot go on.
            io.shared.link_died();
            return false;
        }
        self.consumer.took(len);
        self.counts.fetched += u64::from(len);
        self.sink.report();
        self.answer(io.shared);
        if let Some(rx) = io.rx.as_deref_mut() {
            io.shared.set_ack(self.sink.ack(rx.posted()));
        }
        true
    }

    /// Answers to advertisements that are due become pending.
    #[cold]
    #[inline(never)]
    pub(super) fn answer(&mut self, shared: &Shared) {
        if let Some(more) = self.sink.next_answer(shared.exchange().pending()) {
            // One at a time: there is room for it.
            let _ = shared.exchange().add_pending(more);
        }
    }

    /// Takes a message of a peer that may advertise.
    #[cold]
    #[inline(never)]
    pub(super) fn take_offers(
        &mut self,
        message: &sdp_proto::wire::Message,
        shared: &Shared,
    ) -> Result<TakenMessage, Reason> {
        let taken = sdp_proto::take_zcopy(&mut self.sink, message, shared);
        let (taken, input) = taken.map_err(Reason::Message)?;
        if let Some(input) = input {
            shared.add_answer(&input, message.header.mseq_ack).map_err(Reason::Message)?;
        }
        self.answer(shared);
        Ok(taken)
    }
}

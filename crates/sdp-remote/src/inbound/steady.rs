//! The commonest receive: the stream is on the queue pair, and the next messages are payload.
//!
//! [`Inbound::recv`] does the same, and everything else. What is done here changes no decision of
//! its; a message that fits into the program's buffers does not go by way of the inbox.

use sdp_guard::consumer::Head;
use sdp_proto::{
    Exchange, SinkAction,
    wire::{Body, Flags, HEADER_LEN, Header, Message, Mid},
};
use sdp_rdma::fabric::{ReceiveQueue, Received, Scatter};

use super::{Entry, Inbound, ReceiveContext, RecvError};
use crate::{Carrier, Reason};

impl Inbound {
    /// Gives `sink` the bytes that have come by the queue pair and are next. How many; 0:
    /// [`Inbound::recv`] is to be called.
    ///
    /// # Errors
    /// [`RecvError::Broken`] only, and nothing was delivered.
    #[inline]
    pub fn recv_steadily<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        sink: &mut impl Scatter,
    ) -> Result<usize, RecvError> {
        if !io.shared.is_steady() || !self.is_carrier_left_alone() || self.returned.is_some() {
            return Ok(0);
        }
        let (mut got, mut has_polled) = (0, false);
        while sink.room() != 0 {
            let given = match self.inbox.head() {
                Some(entry) => self
                    .consumer
                    .next_in_section(entry.head())
                    .map(|_| self.deliver(io, sink))
                    .filter(|given| *given != 0),
                None => match self.pass_on(io, sink, !core::mem::replace(&mut has_polled, true)) {
                    // The next call reports it.
                    Err(_) if got != 0 => break,
                    given => given?,
                },
            };
            let Some(given) = given else { break };
            got += given;
        }
        Ok(got)
    }

    /// Takes the next message off the queue pair, and gives it to `sink` if it is payload that fits.
    /// How many bytes; 0: it lies in the inbox, or had none. `None`: there is none, or it was no Data.
    #[inline]
    fn pass_on<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        sink: &mut impl Scatter,
        is_first: bool,
    ) -> Result<Option<usize>, RecvError> {
        let rx = io.rx.as_deref_mut().filter(|_| !self.is_drained);
        let Some(rx) = rx else { return Ok(None) };
        // An error comes again.
        let next = if is_first { rx.poll_receive() } else { Ok(rx.poll_another()) };
        let Ok(Some(message)) = next else { return Ok(None) };
        let taken = self.take_plain(rx, message, &*io.carrier, io.shared, sink);
        taken.or_else(|reason| self.give_up(io.shared, reason).map(|()| None))
    }

    #[inline]
    fn take_plain<R: ReceiveQueue, C: Carrier>(
        &mut self,
        rx: &mut R,
        message: Received,
        carrier: &C,
        shared: &crate::Shared,
        sink: &mut impl Scatter,
    ) -> Result<Option<usize>, Reason> {
        let mut bytes = [0; HEADER_LEN];
        let copied = rx.copy_header(message, &mut bytes);
        let first = bytes.get(..copied).unwrap_or_default();
        let header = Header::parse(first, message.len).map_err(Reason::Message)?;
        let is_plain = header.mid == Mid::Data && header.flags == Flags::NONE;
        if !is_plain || header.len as usize == HEADER_LEN {
            self.take_message(rx, message, carrier, shared)?;
            shared.set_ack(self.sink.plain().ack(rx.posted()));
            // A word about credit; all else may have changed more.
            return Ok(is_plain.then_some(0));
        }
        carrier.trace(false, &header);
        let taken = self.sink.plain_mut().handle(&Message { header, body: Body::Data });
        let SinkAction::Deliver(payload) = taken.map_err(Reason::Message)? else { return Ok(None) };
        shared.set_credit(header.credit());
        let head = self.arrival.data(payload.len).map_err(Reason::Consumer)?;
        let Head::Data { section, stream, len } = head else { return Ok(None) };
        self.counts.messages += 1;
        if self.consumer.next_in_section(head).is_some() && sink.room() >= len as usize {
            rx.copy_out(message, payload.offset, len, sink);
            self.consumer.took(len);
            self.counts.bytes += u64::from(len);
            rx.release(message);
            shared.set_ack(self.sink.plain().ack(rx.posted()));
            return Ok(Some(len as usize));
        }
        let offset = payload.offset;
        self.inbox.push(Entry::Data { section, stream, len, offset, message });
        shared.set_ack(self.sink.plain().ack(rx.posted()));
        Ok(Some(0))
    }
}

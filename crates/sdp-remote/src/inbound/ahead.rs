//! How much a reader could take, by both roads: for a program that waits until enough is there.

use sdp_guard::{
    consumer::{Consumer, Next},
    marker::{Kind, MARKER_LEN, Marker},
    scan,
};
use sdp_rdma::fabric::ReceiveQueue;

use super::{Inbound, ReceiveContext};
use crate::Carrier;

impl Inbound {
    /// Payload bytes that calls of [`Inbound::recv`] would deliver now, one after the other: those of the inbox, and those
    /// among the carrier's first bytes, of which `scratch` takes as many as it has room for. Nothing is taken, but
    /// messages from the queue pair into the inbox.
    pub fn readable<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        scratch: &mut [u8],
    ) -> u64 {
        let (consumer, _) = self.walk(io, scratch);
        consumer.taken().saturating_sub(self.consumer.taken())
    }

    /// The peer's RETURN, if it stands behind bytes that the program has not read and brings none: the position that it
    /// names, once. It is taken when the program comes to it. `scratch` as in [`Inbound::readable`].
    pub(crate) fn foresee_return<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        scratch: &mut [u8],
    ) -> Option<u64> {
        let (_, marker) = self.walk(io, scratch);
        let marker = marker.filter(|marker| marker.follows == 0)?;
        self.foreseen_return = Some(marker.stream);
        self.foreseen_return
    }

    /// Goes on in thought, as far as the bytes reach: where that leads, and the RETURN that ends it.
    fn walk<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        scratch: &mut [u8],
    ) -> (Consumer, Option<Marker>) {
        let mut returned = None;
        if self.returned.is_some() || self.consumer.is_leaving() {
            return (self.consumer.clone(), returned);
        }
        if let Some(rx) = io.rx.as_deref_mut() {
            // The call that takes a message reports an error in it.
            let _ = self.gather(rx, &*io.carrier, io.shared);
        }
        let peeked = io.carrier.peek(scratch).unwrap_or(0);
        let mut rest = scratch.get(..peeked).unwrap_or_default();
        let mut consumer = self.consumer.clone();
        let mut inbox = self.inbox.iter().peekable();
        loop {
            match consumer.next(inbox.peek().map(|entry| entry.head())) {
                Ok(Next::Take(len)) => {
                    consumer.took(len);
                    inbox.next();
                }
                Ok(Next::Void | Next::Followed) => _ = inbox.next(),
                Ok(Next::Carrier(limit)) => {
                    let room = rest.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
                    let payload = match consumer.is_raw() {
                        true => room,
                        false => self.scan(rest, room),
                    };
                    let taken = if payload != 0 {
                        consumer.read(payload as u64).is_ok().then_some(payload)
                    } else {
                        let marker = self.marker_at(rest, consumer.carrier());
                        // One that may not be there is judged when it is taken.
                        let may_be = |marker: &Marker| consumer.clone().marker(*marker).is_ok();
                        returned = marker.filter(|marker| marker.kind == Kind::Return);
                        returned = returned.filter(may_be);
                        let marker = marker.filter(|marker| marker.kind != Kind::Return);
                        marker.and_then(|marker| consumer.marker(marker).ok()).map(|()| MARKER_LEN)
                    };
                    let Some(behind) = taken.and_then(|taken| rest.get(taken..)) else { break };
                    rest = behind;
                }
                Ok(Next::Return) | Err(_) => break,
            }
        }
        (consumer, returned)
    }

    /// Bytes of payload before the first marker, at most `room`.
    fn scan(&self, bytes: &[u8], mut room: usize) -> usize {
        for (_, seal) in self.seals.iter().flatten() {
            room = scan::look(bytes, room, &[*seal]).payload;
        }
        room
    }

    fn marker_at(&self, bytes: &[u8], place: u64) -> Option<Marker> {
        let bytes = bytes.first_chunk::<MARKER_LEN>()?;
        let mut seals = self.seals.iter().flatten();
        seals.find_map(|(_, seal)| Marker::parse(bytes, seal, place).ok())
    }
}

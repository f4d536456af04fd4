//! The receiving half: the inbox, the guarded reading of the carrier, and which of them is next.

use core::cell::Cell;

use sdp_guard::{
    consumer::{Arrival, Broken, Consumer, Head, Next},
    marker::{Kind, MARKER_LEN, Marker, Seal},
    producer::Switch,
    scan::{self, LOOK_AHEAD},
};
use sdp_proto::{
    Payload, SinkConfig, TakenMessage, ZcopySink,
    wire::{Lane as WireLane, LaneSwitch, Message, PREFIX_MAX},
};
use sdp_rdma::fabric::{ReceiveQueue, Received, Scatter};

use crate::{Agreement, Carrier, CarrierError, Outbound, Reason, Shared};

mod ahead;
mod fetch;
mod into;
mod steady;

use into::{Probe, RingSink};

/// Messages in an inbox. Further messages stay with the fabric, unacknowledged.
const INBOX: usize = 64;
/// Meetings whose markers may still come on the carrier. One more attempt that came to nothing, and no new one is made.
const SEALS: usize = 4;
/// The ring has no room for bytes that go back: ENOBUFS.
pub(crate) const FULL: i32 = 105;
/// Payload that one look at the carrier can show.
const LOOK: usize = 4096;

/// The parts with which a call on the receiving half works.
#[derive(Debug)]
pub struct ReceiveContext<'a, R, C> {
    /// The queue pair's receiving half, while there is one.
    pub rx: Option<&'a mut R>,
    /// The TCP socket.
    pub carrier: &'a mut C,
    /// The mailbox.
    pub shared: &'a Shared,
}

/// Why nothing was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvError {
    /// Nothing is there; the carrier (`POLLIN`) or the completion channel wakes.
    WouldBlock,
    /// The carrier has ended while the stream was on SDP: the peer died, and a tail may be missing. While the queue pair
    /// is not known to be dead, messages may still arrive: wait for its end, at most a second. Then it is a
    /// reset.
    Cut {
        /// The queue pair is dead and everything that had arrived was delivered.
        is_final: bool,
    },
    /// The carrier's error number.
    Carrier(i32),
    /// The peer broke a rule: reset the connection.
    Broken(Reason),
}

/// The result for a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readable {
    /// Nothing now.
    Nothing,
    /// At least so many bytes, at least 1.
    Bytes(u64),
    /// The end of the stream, an error, or a cut: ask [`Inbound::recv`].
    End,
}

/// A judged message that waits for the reader.
#[derive(Debug, Clone, Copy)]
enum Entry {
    Switch(Switch),
    Data {
        section: u32,
        /// Of the first unread byte.
        stream: u64,
        /// Unread bytes, and where in the message they begin.
        len: u32,
        offset: u32,
        message: Received,
    },
}

impl Entry {
    const fn head(&self) -> Head {
        match *self {
            Self::Switch(switch) => Head::Switch(switch),
            Self::Data { section, stream, len, .. } => Head::Data { section, stream, len },
        }
    }
}

/// Messages in order of arrival.
#[derive(Debug)]
struct Inbox {
    entries: [Option<Entry>; INBOX],
    first: usize,
    len: usize,
}

impl Inbox {
    const fn new() -> Self {
        Self { entries: [None; INBOX], first: 0, len: 0 }
    }

    const fn is_full(&self) -> bool {
        self.len >= INBOX
    }

    fn head(&self) -> Option<Entry> {
        self.entries.get(self.first).copied().flatten()
    }

    fn head_mut(&mut self) -> Option<&mut Entry> {
        self.entries.get_mut(self.first).and_then(Option::as_mut)
    }

    fn push(&mut self, entry: Entry) {
        let at = (self.first + self.len) % INBOX;
        if let Some(place) = self.entries.get_mut(at).filter(|_| self.len < INBOX) {
            *place = Some(entry);
            self.len += 1;
        }
    }

    fn pop(&mut self) {
        if let Some(place) = self.entries.get_mut(self.first)
            && place.take().is_some()
        {
            self.first = (self.first + 1) % INBOX;
            self.len -= 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = Entry> {
        let (before, from) = self.entries.split_at_checked(self.first).unwrap_or_default();
        from.iter().chain(before).map_while(|entry| *entry)
    }
}

/// The result of one look at the carrier.
enum Seen {
    /// So many bytes of payload are first.
    Payload(usize),
    /// A marker is first, whole; it was taken and judged.
    Marker,
    /// Nothing, or a marker's beginning.
    Nothing,
    /// The peer has ended its stream.
    End,
}

/// The receiving half of one connection.
#[derive(Debug)]
pub struct Inbound {
    consumer: Consumer,
    arrival: Arrival,
    sink: ZcopySink,
    inbox: Inbox,
    /// Of meetings whose markers may come, oldest first.
    seals: [Option<(u32, Seal)>; SEALS],
    meeting: u32,
    /// Nothing more will come off the queue pair.
    is_drained: bool,
    /// The peer has said on the queue pair that its stream is over.
    has_disconnected: bool,
    /// The peer's RETURN, of which bytes are still to be taken off the carrier.
    returned: Option<Returned>,
    /// The position of a RETURN that counts already, and is still to be taken off the carrier.
    foreseen_return: Option<u64>,
    /// The peer has ended its stream, and all of it was delivered: only the end is left on the carrier.
    is_over: bool,
    /// The carrier is said to have something, and has not been found empty since.
    is_carrier_due: bool,
    counts: InboundCounts,
}

/// A RETURN that was read: bytes of the other direction, which come next on the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Returned {
    /// Stream position of the first.
    stream: u64,
    /// How many.
    len: u32,
    /// How many of them were taken.
    taken: u32,
}

/// The work of a receiving half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InboundCounts {
    /// Messages with payload taken off the queue pair.
    pub messages: u64,
    /// Bytes delivered that came by the queue pair.
    pub bytes: u64,
    /// Bytes delivered that were READ.
    pub fetched: u64,
    /// Bytes delivered that came by the carrier.
    pub carrier_bytes: u64,
    /// Markers read.
    pub markers: u64,
    /// Bytes of the carrier thrown away: they were here already.
    pub skipped: u64,
    /// Messages thrown away: they were late.
    pub voided: u64,
}

const fn carrier_error(error: CarrierError) -> RecvError {
    match error {
        CarrierError::WouldBlock => RecvError::WouldBlock,
        CarrierError::Failed(errno) => RecvError::Carrier(errno),
    }
}

fn break_off(shared: &Shared, reason: Reason) -> RecvError {
    shared.broke();
    RecvError::Broken(reason)
}

impl Inbound {
    /// At the first meeting; `position`: bytes that the program has read from the kernel so far.
    pub const fn new(position: u64) -> Self {
        Self {
            consumer: Consumer::new(position),
            arrival: Arrival::new(),
            sink: ZcopySink::new(&SinkConfig::implicit(4096), 1, false),
            inbox: Inbox::new(),
            seals: [None; SEALS],
            meeting: 0,
            is_drained: false,
            has_disconnected: false,
            returned: None,
            foreseen_return: None,
            is_over: false,
            is_carrier_due: false,
            counts: InboundCounts {
                messages: 0,
                bytes: 0,
                fetched: 0,
                carrier_bytes: 0,
                markers: 0,
                skipped: 0,
                voided: 0,
            },
        }
    }

    pub(crate) fn begin(&mut self, met: &Agreement) {
        let (_, sink) = met.local.zcopy_halves(&met.remote);
        (self.sink, self.arrival) = (sink, Arrival::new());
        self.meeting = met.number;
        (self.is_drained, self.has_disconnected) = (false, false);
        if let Some(place) = self.seals.iter_mut().find(|place| place.is_none()) {
            *place = Some((met.number, met.peer));
        }
    }

    pub(crate) fn link_destroyed(&mut self) {
        while self.inbox.head().is_some() {
            self.inbox.pop();
        }
        self.is_drained = true;
    }

    /// The kernel may not say again that there is something to read: calls go on to the carrier, until it is found empty.
    pub const fn expect_carrier(&mut self) {
        self.is_carrier_due = true;
    }

    /// True if the stream is on SDP, and nothing is known to be on the carrier.
    pub const fn is_carrier_left_alone(&self) -> bool {
        self.consumer.is_on_sdp() && !self.is_carrier_due
    }

    /// Its work.
    pub const fn counts(&self) -> InboundCounts {
        self.counts
    }

    /// True if an attempt to meet may begin, as far as this half goes: on the kernel lane, no queue pair, and not too many
    /// attempts that came to nothing.
    pub fn may_meet(&self, shared: &Shared) -> bool {
        !shared.has_link()
            && !self.consumer.is_on_sdp()
            && self.consumer.is_guarded()
            && self.seals.iter().any(Option::is_none)
    }

    /// True if the dead queue pair's halves may be dropped: nothing of the program's lies in its buffers.
    pub fn may_destroy(&self) -> bool {
        !self.inbox.iter().any(|entry| matches!(entry, Entry::Data { .. }))
    }

    /// True if everything that is still to come is the program's, on the carrier.
    pub fn is_plain(&self) -> bool {
        self.is_over
            || self.consumer.is_raw()
                && !self.consumer.owes_return()
                && self.inbox.head().is_none()
                && self.returned.is_none()
    }

    /// Looks whether the peer has ended its stream and all of it was delivered. Then there is
    /// nothing to give back, and no peer that could answer.
    pub(crate) fn is_over<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
    ) -> bool {
        if !self.is_over && self.consumer.is_guarded() {
            self.is_over = matches!(self.step(io, &mut Probe, true, false), Ok(0));
        }
        self.is_over
    }

    /// True if the peer's RETURN was read: [`crate::take_return`] goes on.
    pub const fn has_return(&self) -> bool {
        self.returned.is_some()
    }

    /// Takes the unread bytes, up to the peer's RAW, into `ring` by its stream position. `Some`:
    /// that is done; position and number of the bytes. `None`: more must come on the carrier.
    pub(crate) fn collect<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        ring: &mut [u8],
    ) -> Result<Option<(u64, u32)>, RecvError> {
        self.consumer.leave();
        loop {
            let size = ring.len() as u64;
            let room = size.saturating_sub(self.consumer.undelivered()) as usize;
            if room == 0 {
                return Err(RecvError::Carrier(FULL));
            }
            let mut sink = RingSink { at: self.consumer.taken(), room, ring };
            match self.step(io, &mut sink, false, false) {
                Ok(0) => return Err(RecvError::Cut { is_final: true }),
                Ok(_) => {}
                Err(RecvError::WouldBlock) if self.consumer.is_return_due() => {
                    let due = self.consumer.make_return();
                    return Ok(due.map(|(stream, len)| (stream, len as u32)));
                }
                Err(RecvError::WouldBlock) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// This end leaves, and its peer has not answered: from here on [`Inbound::recv`] delivers again. Position and number of
    /// bytes that [`crate::leave`] has taken into the ring: the caller delivers them first.
    pub(crate) fn read_on(&mut self, has_asked: bool) -> (u64, usize) {
        if has_asked {
            // The kernel may have taken a part of LEAVE only.
            self.consumer.leave();
        }
        let taken = self.consumer.undelivered();
        self.consumer.read_on();
        (self.consumer.taken().saturating_sub(taken), taken as usize)
    }

    /// The position for a RETURN that gives nothing back, once the peer's RAW was read.
    pub(crate) fn make_return(&mut self) -> Option<u64> {
        let is_due = self.consumer.is_return_due() && self.inbox.head().is_none();
        let due = is_due.then(|| self.consumer.make_return())?;
        due.map(|(stream, _)| stream)
    }

    /// How long a ring the RETURN that was read needs. `None`: there is none, or it is not true.
    pub(crate) fn room_for_return(&self, outbound: &Outbound) -> Option<usize> {
        let due = self.returned.filter(|_| !outbound.is_leaving())?;
        outbound.room_for_return(due.stream, due.len).ok()
    }

    /// Takes the bytes behind a RETURN off the carrier into the ring of the sending half. `Ok`: all are there.
    pub(crate) fn take_return<C: Carrier>(
        &mut self,
        outbound: &mut Outbound,
        carrier: &mut C,
        shared: &Shared,
        ring: &mut [u8],
    ) -> Result<(), RecvError> {
        let Some(mut due) = self.returned else { return Ok(()) };
        if outbound.is_leaving() {
            // The ring still has the bytes that this end gives back itself.
            return Err(RecvError::WouldBlock);
        }
        let needed = outbound.room_for_return(due.stream, due.len);
        if needed.map_err(|reason| break_off(shared, reason))? > ring.len() {
            return Err(RecvError::Carrier(FULL));
        }
        while due.taken < due.len {
            let mut bytes = [0; LOOK];
            let most = bytes.len().min((due.len - due.taken) as usize);
            let peeked = carrier.peek(bytes.get_mut(..most).unwrap_or_default());
            let peeked = peeked.map_err(carrier_error)?.min(most);
            let Some(seen) = bytes.get_mut(..peeked).filter(|seen| !seen.is_empty()) else {
                return Err(RecvError::Cut { is_final: true });
            };
            let at = due.stream.wrapping_add(u64::from(due.taken));
            let mut sink = RingSink { at, room: peeked, ring };
            sink.accept(Cell::from_mut(seen).as_slice_of_cells());
            discard(carrier, peeked)?;
            self.consumer.read_returned(peeked as u32);
            due.taken += peeked as u32;
            self.returned = Some(due);
        }
        self.returned = None;
        outbound.returned(due.stream, due.len).map_err(|reason| break_off(shared, reason))
    }

    /// Bytes of the stream that were delivered.
    pub const fn stream(&self) -> u64 {
        self.consumer.taken()
    }

    /// True if payload comes by the queue pair now.
    pub const fn is_on_sdp(&self) -> bool {
        self.consumer.is_on_sdp()
    }

    /// Takes messages that have arrived off the queue pair into the inbox, and updates the mailbox.
    /// Afterwards [`crate::Outbound::is_due`] says whether something is to be answered.
    ///
    /// # Errors
    /// [`RecvError::Broken`] only.
    pub fn gather<R: ReceiveQueue>(
        &mut self,
        rx: &mut R,
        carrier: &impl Carrier,
        shared: &Shared,
    ) -> Result<(), RecvError> {
        // Before its PROOF no process on the queue pair is believed.
        if self.is_drained || self.meeting == 0 || !shared.is_proven(self.meeting) {
            return Ok(());
        }
        let mut has_some = false;
        while !self.inbox.is_full() {
            let next = if has_some { Ok(rx.poll_another()) } else { rx.poll_receive() };
            match next {
                Ok(Some(message)) => {
                    has_some = true;
                    if let Err(reason) = self.take_message(rx, message, carrier, shared) {
                        self.give_up(shared, reason)?;
                        break;
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    self.is_drained = true;
                    shared.link_died();
                    break;
                }
            }
        }
        if shared.has_zcopy() {
            self.answer(shared);
        }
        if has_some {
            shared.set_ack(self.sink.ack(rx.posted()));
        }
        Ok(())
    }

    /// A message that cannot be taken. One that is not what is due ends the queue pair alone: it may
    /// be the device's fault, and the carrier has what was not acknowledged.
    #[cold]
    fn give_up(&mut self, shared: &Shared, reason: Reason) -> Result<(), RecvError> {
        match reason {
            Reason::Message(violation) if violation.is_no_message() => {
                self.is_drained = true;
                shared.link_died();
                Ok(())
            }
            _ => Err(break_off(shared, reason)),
        }
    }

    fn take_message<R: ReceiveQueue>(
        &mut self,
        rx: &mut R,
        message: Received,
        carrier: &impl Carrier,
        shared: &Shared,
    ) -> Result<(), Reason> {
        let mut bytes = [0; PREFIX_MAX];
        let copied = rx.copy_header(message, &mut bytes);
        let first = bytes.get(..copied).unwrap_or_default();
        let parsed = Message::parse(first, message.len).map_err(Reason::Message)?;
        carrier.trace(false, &parsed.header);
        let taken = match shared.has_zcopy() {
            true => self.take_offers(&parsed, shared)?,
            false => {
                sdp_proto::take(self.sink.plain_mut(), &parsed, shared).map_err(Reason::Message)?
            }
        };
        match taken {
            TakenMessage::Deliver(payload) => return self.keep(message, payload),
            TakenMessage::EndOfStream => self.has_disconnected = true,
            TakenMessage::Reset => return Err(Reason::Aborted),
            // To whole connections a suspension is the end of the queue pair.
            TakenMessage::Suspend => shared.link_died(),
            TakenMessage::LaneSwitch(switch) => self.keep_switch(switch)?,
            TakenMessage::LaneRequest(request) => shared.invite(request.lane == WireLane::Sdp),
            TakenMessage::Nothing => {}
        }
        rx.release(message);
        Ok(())
    }

    fn keep(&mut self, message: Received, payload: Payload) -> Result<(), Reason> {
        let head = self.arrival.data(payload.len).map_err(Reason::Consumer)?;
        if let Head::Data { section, stream, len } = head {
            let offset = payload.offset;
            self.inbox.push(Entry::Data { section, stream, len, offset, message });
            self.counts.messages += 1;
        }
        Ok(())
    }

    fn keep_switch(&mut self, switch: LaneSwitch) -> Result<(), Reason> {
        if switch.lane != WireLane::Sdp {
            return Err(Reason::Consumer(Broken::Sequence));
        }
        let switch = Switch {
            sequence: switch.sequence,
            carrier: switch.carrier_position,
            stream: switch.stream_position,
        };
        self.arrival.switch(switch).map_err(Reason::Consumer)?;
        self.inbox.push(Entry::Switch(switch));
        Ok(())
    }

    /// Gives the program's `sink` the next bytes of the stream, by whichever road they came. How
    /// many bytes; 0: the peer has ended its stream (or the sink has no room). With `is_peek`
    /// everything stays where it is, and only the bytes of one look are given. Never waits.
    ///
    /// # Errors
    /// Nothing was delivered.
    pub fn recv<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        sink: &mut impl Scatter,
        is_peek: bool,
    ) -> Result<usize, RecvError> {
        if self.consumer.is_leaving() {
            return Err(RecvError::WouldBlock);
        }
        let mut got = 0;
        while sink.room() != 0 {
            match self.step(io, sink, is_peek, got != 0) {
                Ok(0) => break,
                Ok(len) => got += len,
                Err(_) if got != 0 => break,
                Err(error) => return Err(error),
            }
            if is_peek {
                break;
            }
        }
        Ok(got)
    }

    /// Takes messages that have arrived and the markers that are next, and returns the state for a
    /// reader.
    ///
    /// # Errors
    /// [`RecvError::Broken`] only.
    pub fn look<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
    ) -> Result<Readable, RecvError> {
        if self.consumer.is_leaving() {
            return Ok(Readable::Nothing);
        }
        let mut probe = Probe;
        match self.step(io, &mut probe, true, false) {
            Ok(0) => Ok(Readable::End),
            Ok(len) => Ok(Readable::Bytes((len as u64).max(self.available()))),
            Err(RecvError::WouldBlock | RecvError::Cut { is_final: false }) => {
                Ok(Readable::Nothing)
            }
            Err(RecvError::Broken(reason)) => Err(RecvError::Broken(reason)),
            Err(RecvError::Cut { .. } | RecvError::Carrier(_)) => Ok(Readable::End),
        }
    }

    /// Payload bytes in the inbox that come next, without looking at the carrier. 0 says nothing: ask [`Inbound::look`].
    pub fn available(&self) -> u64 {
        if !self.consumer.is_on_sdp() {
            return 0;
        }
        let section = self.consumer.sequence();
        let next = self.inbox.iter().map_while(|entry| match entry {
            Entry::Data { section: of, len, .. } if of == section => Some(u64::from(len)),
            _ => None,
        });
        next.sum()
    }

    /// Delivers the next bytes that are together. 0: the end. With `is_enough` this does not look
    /// at the carrier, a system call, while the stream is on SDP and no caller has reported bytes
    /// on the carrier.
    fn step<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        sink: &mut impl Scatter,
        is_peek: bool,
        is_enough: bool,
    ) -> Result<usize, RecvError> {
        loop {
            if self.returned.is_some() {
                return Err(RecvError::WouldBlock);
            }
            if let Some(rx) = io.rx.as_deref_mut() {
                self.gather(rx, &*io.carrier, io.shared)?;
            }
            if io.shared.is_broken() {
                return Err(RecvError::Broken(Reason::Told));
            }
            let head = self.inbox.head();
            let next = self.consumer.next(head.map(|entry| entry.head()));
            let next = next.map_err(|broken| break_off(io.shared, Reason::Consumer(broken)))?;
            match next {
                Next::Take(_) if is_peek => return Ok(self.show(io, sink)),
                Next::Take(_) => return Ok(self.deliver(io, sink)),
                Next::Void => {
                    self.counts.voided += 1;
                    io.shared.wish_ack();
                    self.drop_head(io);
                }
                Next::Followed => {
                    io.shared.follow(self.consumer.sequence());
                    self.drop_head(io);
                }
                Next::Carrier(_) if is_enough && self.is_carrier_left_alone() => {
                    return Err(RecvError::WouldBlock);
                }
                Next::Carrier(limit) => {
                    if let Some(len) = self.read_carrier(io, limit, sink, is_peek)? {
                        return Ok(len);
                    }
                }
                Next::Return => return Err(RecvError::WouldBlock),
            }
        }
    }

    /// Gives bytes of the inbox's head, and as many as there are room for; they are gone.
    fn deliver<R: ReceiveQueue, C>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        sink: &mut impl Scatter,
    ) -> usize {
        let room = u32::try_from(sink.room()).unwrap_or(u32::MAX);
        let (Some(Entry::Data { stream, len, offset, message, .. }), Some(rx)) =
            (self.inbox.head_mut(), io.rx.as_deref_mut())
        else {
            return 0;
        };
        let given = room.min(*len);
        rx.copy_out(*message, *offset, given, sink);
        *stream += u64::from(given);
        *offset += given;
        *len -= given;
        let is_empty = *len == 0;
        self.consumer.took(given);
        self.counts.bytes += u64::from(given);
        if is_empty {
            self.drop_head(io);
        }
        given as usize
    }

    /// Gives bytes of the inbox as they are next, and leaves them there.
    fn show<R: ReceiveQueue, C>(
        &self,
        io: &mut ReceiveContext<'_, R, C>,
        sink: &mut impl Scatter,
    ) -> usize {
        let Some(rx) = io.rx.as_deref_mut() else { return 0 };
        let section = self.consumer.sequence();
        let mut given = 0;
        for entry in self.inbox.iter() {
            let Entry::Data { section: of, len, offset, message, .. } = entry else { break };
            let room = u32::try_from(sink.room()).unwrap_or(u32::MAX);
            if of != section || room == 0 {
                break;
            }
            rx.copy_out(message, offset, len.min(room), sink);
            given += len.min(room) as usize;
        }
        given
    }

    fn drop_head<R: ReceiveQueue, C>(&mut self, io: &mut ReceiveContext<'_, R, C>) {
        if let (Some(Entry::Data { message, .. }), Some(rx)) =
            (self.inbox.head(), io.rx.as_deref_mut())
        {
            rx.release(message);
            io.shared.set_ack(self.sink.ack(rx.posted()));
        }
        self.inbox.pop();
    }

    /// Reads the carrier once. `Some`: so many bytes went to the program, 0 at the end of the stream; `None`: a marker or
    /// bytes that were here already.
    fn read_carrier<R, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        limit: u64,
        sink: &mut impl Scatter,
        is_peek: bool,
    ) -> Result<Option<usize>, RecvError> {
        let skip = self.consumer.to_skip();
        let room = if skip != 0 { skip } else { sink.room() as u64 };
        let room = room.min(limit).min(LOOK as u64) as usize;
        let mut bytes = [0; LOOK + LOOK_AHEAD];
        match self.look_at_carrier(io, &mut bytes, room)? {
            Seen::Nothing => Err(RecvError::WouldBlock),
            Seen::Marker => Ok(None),
            Seen::End => self.at_the_end(io.shared),
            Seen::Payload(len) if skip != 0 => {
                self.take_from_carrier(io, len)?;
                self.counts.skipped += len as u64;
                Ok(None)
            }
            Seen::Payload(len) => {
                let Some(shown) = bytes.get_mut(..len) else { return Ok(None) };
                sink.accept(Cell::from_mut(shown).as_slice_of_cells());
                if !is_peek {
                    self.take_from_carrier(io, len)?;
                    self.counts.carrier_bytes += len as u64;
                }
                Ok(Some(len))
            }
        }
    }

    fn take_from_carrier<R, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        len: usize,
    ) -> Result<(), RecvError> {
        discard(io.carrier, len)?;
        let read = self.consumer.read(len as u64);
        read.map_err(|broken| break_off(io.shared, Reason::Consumer(broken)))?;
        Ok(())
    }

    /// A carrier that was found empty is not due any more.
    const fn note_empty(&mut self, error: CarrierError) -> RecvError {
        self.is_carrier_due &= !matches!(error, CarrierError::WouldBlock);
        carrier_error(error)
    }

    /// Looks at the kernel's bytes; `room`: bytes of payload that may be taken. A marker in front
    /// is taken and judged.
    fn look_at_carrier<R, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        bytes: &mut [u8; LOOK + LOOK_AHEAD],
        room: usize,
    ) -> Result<Seen, RecvError> {
        let ahead = room.saturating_add(LOOK_AHEAD);
        let into = bytes.get_mut(..ahead).unwrap_or_default();
        let peeked = io.carrier.peek(into).map_err(|error| self.note_empty(error))?;
        let seen = into.get(..peeked).unwrap_or_default();
        if seen.is_empty() {
            return Ok(Seen::End);
        }
        if self.consumer.is_raw() {
            return Ok(Seen::Payload(seen.len().min(room)));
        }
        let mut seals = [Seal { token: [0; 16], key: [0; 16] }; SEALS];
        let mut count = 0;
        for (to, (_, seal)) in seals.iter_mut().zip(self.seals.iter().flatten()) {
            *to = *seal;
            count += 1;
        }
        let known = seals.get(..count).unwrap_or_default();
        let found = scan::look(seen, room, known);
        if found.payload != 0 {
            if found.marker {
                self.foresee(io.shared, seen, found.payload);
            }
            return Ok(Seen::Payload(found.payload));
        }
        if found.marker {
            return self.take_marker(io);
        }
        // No room for payload, and no marker: a token's first bytes may be all that is here.
        let begins = |seal: &Seal| seal.token.get(..seen.len()).is_some_and(|t| t == seen);
        if known.iter().any(begins) {
            return Ok(Seen::Nothing);
        }
        Err(break_off(io.shared, Reason::Consumer(Broken::Payload)))
    }

    /// A PROOF behind payload that the program has not read shows as much as one in front: a program that only sends
    /// would never come to it. It is judged again when it is taken.
    fn foresee(&self, shared: &Shared, seen: &[u8], at: usize) {
        let of_this = |place: &&(u32, Seal)| place.0 == self.meeting;
        let bytes = seen.get(at..).and_then(<[u8]>::first_chunk::<MARKER_LEN>);
        let (Some(bytes), Some((_, seal))) = (bytes, self.seals.iter().flatten().find(of_this))
        else {
            return;
        };
        let place = self.consumer.carrier().saturating_add(at as u64);
        if !shared.is_proven(self.meeting)
            && Marker::parse(bytes, seal, place).is_ok_and(|marker| marker.kind == Kind::Proof)
        {
            shared.prove(self.meeting);
        }
    }

    fn take_marker<R, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
    ) -> Result<Seen, RecvError> {
        let mut bytes = [0; MARKER_LEN];
        let peeked = io.carrier.peek(&mut bytes).map_err(|error| self.note_empty(error))?;
        if peeked == 0 {
            return Ok(Seen::End);
        }
        if peeked < MARKER_LEN {
            // The kernel at the other end took it as a whole, or will: the rest is certain to come.
            return Ok(Seen::Nothing);
        }
        let place = self.consumer.carrier();
        let is_of = |(_, seal): &(u32, Seal)| bytes.starts_with(&seal.token);
        let Some((meeting, seal)) = self.seals.iter().flatten().copied().find(is_of) else {
            return Ok(Seen::Nothing);
        };
        let marker = Marker::parse(&bytes, &seal, place)
            .map_err(|bad| break_off(io.shared, Reason::Marker(bad)))?;
        discard(io.carrier, MARKER_LEN)?;
        let judged = self.consumer.marker(marker);
        judged.map_err(|broken| break_off(io.shared, Reason::Consumer(broken)))?;
        self.counts.markers += 1;
        // Markers of meetings before it stand before it.
        for place in &mut self.seals {
            *place = place.filter(|(number, _)| *number >= meeting);
        }
        match marker.kind {
            Kind::Proof => io.shared.prove(meeting),
            Kind::Dead if meeting == io.shared.meeting() => {
                io.shared.peer_stays();
                if io.shared.has_link() {
                    io.shared.link_died();
                }
            }
            Kind::Leave => io.shared.peer_asks_to_leave(),
            Kind::Return if marker.follows == 0 && self.foreseen_return == Some(marker.stream) => {
                self.foreseen_return = None;
            }
            Kind::Return => {
                self.returned =
                    Some(Returned { stream: marker.stream, len: marker.follows, taken: 0 });
            }
            Kind::Kernel => io.shared.wish_ack(),
            Kind::Dead | Kind::Raw => {}
        }
        Ok(Seen::Marker)
    }

    /// The carrier has ended: is that the end of the stream?
    fn at_the_end(&mut self, shared: &Shared) -> Result<Option<usize>, RecvError> {
        let is_whole = !self.consumer.is_on_sdp() && self.consumer.to_skip() == 0;
        if (is_whole && self.inbox.head().is_none()) || self.has_disconnected {
            return Ok(Some(0));
        }
        Err(RecvError::Cut { is_final: self.is_drained || !shared.has_link() })
    }
}

fn discard(carrier: &mut impl Carrier, len: usize) -> Result<(), RecvError> {
    let mut left = len;
    while left != 0 {
        let gone = carrier.discard(left).map_err(carrier_error)?;
        if gone == 0 {
            // Another thread reads this socket.
            return Err(RecvError::WouldBlock);
        }
        left = left.saturating_sub(gone);
    }
    Ok(())
}

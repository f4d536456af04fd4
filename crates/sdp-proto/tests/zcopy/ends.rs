//! Two ends joined by two queues. Bytes are known by their place in the stream: memory that a source
//! advertises has the position of its first byte for an address, and each message carries the position
//! of its payload. So a byte that is lost, invented or repeated is seen where it is delivered.

use std::collections::VecDeque;

use sdp_proto::{
    Credits, Hold, Mode, Outgoing, PendingControl, SinkAction, SourceEvent, Violation, ZcopySink,
    ZcopySource,
    connection::setup::{Local, Remote},
    wire::{Body, Message, Payload},
};
use sdp_rdma::key::{RemoteSlice, Rkey};

/// Longest message.
pub const RECEIVE: u32 = 116;
/// Longest payload of a Data message.
pub const PAYLOAD: u32 = RECEIVE - 16;
/// Receive buffers.
pub const BUFS: u16 = 8;

/// A message on its way, and the place of its payload in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    pub message: Message,
    pub at: u64,
}

/// Why a pair cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The other end would reset the connection.
    Violation(Violation),
    /// The device refused: the memory was taken back. Both queue pairs end.
    ReadRefused,
}

#[derive(Debug, Clone)]
pub struct End {
    pub source: ZcopySource,
    pub sink: ZcopySink,
    pub pending: PendingControl,
    /// Keys that the peer may use.
    pub live: Vec<u32>,
    /// Of those, SrcAvails, oldest first; and SinkAvails.
    pub advertised: VecDeque<u32>,
    pub lent: VecDeque<u32>,
    /// Keys of memory that was taken back before the peer had answered.
    pub taken_back: Vec<u32>,
    /// READs under way.
    pub reads: VecDeque<RemoteSlice>,
    /// Bytes delivered to this end's program.
    pub got: u64,
    pub has_ended: bool,
    pub events: Vec<SourceEvent>,
    /// Messages on the wire to it whose headers it has learnt.
    learnt: usize,
    next_key: u32,
}

#[derive(Debug, Clone)]
pub struct Pair {
    pub ends: [End; 2],
    /// Messages to each end.
    pub wires: [VecDeque<Packet>; 2],
    /// What happened, for whoever looks for the reason of a failure.
    pub log: Vec<String>,
}

pub fn halves(credits: Credits) -> (ZcopySource, ZcopySink) {
    let local = Local {
        credits,
        bufs: BUFS,
        receive_size: RECEIVE,
        lane_messages: true,
        zcopy: true,
        ring: None,
    };
    local.zcopy_halves(&Remote::from(&local.zcopy_hello(None)))
}

impl Pair {
    pub fn new(credits: Credits) -> Self {
        let end = |side: u32| {
            let (source, sink) = halves(credits);
            End {
                source,
                sink,
                pending: PendingControl::NOTHING,
                live: Vec::new(),
                advertised: VecDeque::new(),
                lent: VecDeque::new(),
                taken_back: Vec::new(),
                reads: VecDeque::new(),
                got: 0,
                has_ended: false,
                events: Vec::new(),
                learnt: 0,
                next_key: side << 16,
            }
        };
        Self { ends: [end(1), end(2)], wires: [VecDeque::new(), VecDeque::new()], log: Vec::new() }
    }

    /// Posts what `make` answers for end `side`.
    pub fn post(
        &mut self,
        side: usize,
        make: impl FnOnce(&ZcopySource, sdp_proto::Ack) -> Result<Outgoing, Hold>,
    ) -> Result<Message, Hold> {
        let end = &mut self.ends[side];
        let outgoing = make(&end.source, end.sink.ack(BUFS))?;
        let message = *outgoing.message();
        let parsed = Message::parse(outgoing.header(), message.header.len).expect("well-formed");
        assert_eq!(parsed, message);
        let at = end.source.plain().position();
        end.source.commit(&outgoing);
        end.pending = end.pending.without(outgoing.settles());
        self.log.push(format!("{side} posts {message}"));
        self.wires[1 - side].push_back(Packet { message, at });
        Ok(message)
    }

    pub fn data(&mut self, side: usize, want: u32) -> Result<Message, Hold> {
        self.post(side, |source, ack| source.next_data(ack, want))
    }

    /// Advertises the next `len` bytes of the stream.
    pub fn advertise(&mut self, side: usize, len: u32, inline: u32) -> Result<Message, Hold> {
        let end = &mut self.ends[side];
        let key = end.next_key + 1;
        let buffer = RemoteSlice { addr: end.source.end_position(), len, rkey: Rkey(key) };
        let message = self.post(side, |source, ack| source.advertise(ack, buffer, inline))?;
        let end = &mut self.ends[side];
        end.next_key = key;
        end.live.push(key);
        end.advertised.push_back(key);
        Ok(message)
    }

    pub fn cancel(&mut self, side: usize) -> Result<Message, Hold> {
        self.post(side, ZcopySource::cancel)
    }

    /// Ends the registrations, then says so.
    pub fn withdraw(&mut self, side: usize) -> Result<Message, Hold> {
        let mut after = self.clone();
        let end = &mut after.ends[side];
        for key in end.advertised.drain(..) {
            end.live.retain(|live| *live != key);
            end.taken_back.push(key);
        }
        let message = after.post(side, ZcopySource::withdraw)?;
        *self = after;
        Ok(message)
    }

    pub fn lend(&mut self, side: usize, len: u32) -> Result<Message, Hold> {
        let end = &mut self.ends[side];
        let key = end.next_key + 1;
        let avail = end.sink.lend(RemoteSlice { addr: 0, len, rkey: Rkey(key) }, end.pending)?;
        let posted = self.post(side, |source, ack| source.lend(ack, avail));
        let end = &mut self.ends[side];
        match posted {
            Ok(message) => {
                end.next_key = key;
                end.live.push(key);
                end.lent.push_back(key);
                Ok(message)
            }
            Err(hold) => {
                end.sink.unlend();
                Err(hold)
            }
        }
    }

    pub fn recall(&mut self, side: usize) -> Result<bool, Hold> {
        let before = self.ends[side].sink;
        if !self.ends[side].sink.recall() {
            return Ok(false);
        }
        let posted = self.post(side, ZcopySource::recall);
        if posted.is_err() {
            self.ends[side].sink = before;
        }
        posted.map(|_| true)
    }

    /// Writes into the peer's oldest buffer, and says so.
    pub fn write(&mut self, side: usize, most: u32) -> Result<Message, Hold> {
        let buffer = self.ends[side].source.sink_buffer().ok_or(Hold::NoAdvert)?;
        let bytes = most.min(buffer.len);
        let message = self.post(side, |source, ack| source.written(ack, bytes))?;
        let is_live = self.ends[1 - side].live.contains(&buffer.rkey.0);
        assert!(is_live, "a WRITE into memory that was given back");
        Ok(message)
    }

    pub fn change_mode(&mut self, side: usize, mode: Mode) -> Result<Message, Hold> {
        self.post(side, |source, ack| source.change_mode(ack, mode))
    }

    /// Posts the pending control message, or a credit update that is due.
    pub fn control(&mut self, side: usize) -> Result<Message, Hold> {
        self.collect_answers(side);
        let pending = self.ends[side].pending;
        let sent = self.post(side, |source, ack| source.next_control(ack, pending));
        self.collect_answers(side);
        sent
    }

    pub fn disconnect(&mut self, side: usize) -> Result<Message, Hold> {
        self.post(side, ZcopySource::disconnect)
    }

    fn collect_answers(&mut self, side: usize) {
        let end = &mut self.ends[side];
        if let Some(answer) = end.sink.next_answer(end.pending) {
            self.log.push(format!("{side} answers {answer:?}"));
            end.pending = end.pending.add(answer).expect("one at a time");
        }
    }

    /// Learns the headers of all messages to an end, before it takes them.
    pub fn learn_all(&mut self, side: usize) {
        let end = &mut self.ends[side];
        for packet in self.wires[side].iter().skip(end.learnt) {
            end.source.learn(packet.message.header.credit()).expect("legal");
        }
        end.learnt = self.wires[side].len();
    }

    /// Takes the next message at an end; whether there was one.
    pub fn take(&mut self, side: usize) -> Result<bool, Stop> {
        let Some(packet) = self.wires[side].pop_front() else { return Ok(false) };
        let message = packet.message;
        self.log.push(format!("{side} takes {message}"));
        let end = &mut self.ends[side];
        if end.learnt == 0 {
            end.source.learn(message.header.credit()).map_err(Stop::Violation)?;
        }
        end.learnt = end.learnt.saturating_sub(1);
        let action = end.sink.handle(&message).map_err(Stop::Violation)?;
        match action {
            SinkAction::Deliver(payload) => end.deliver(packet, payload),
            SinkAction::Advertised(payload) => {
                if let Some(payload) = payload {
                    end.deliver(packet, payload);
                }
            }
            SinkAction::ForSource(input) => end.tell(input, message.header.mseq_ack)?,
            SinkAction::DeliverForSource(payload, input) => {
                end.tell(input, message.header.mseq_ack)?;
                end.deliver(packet, payload);
            }
            SinkAction::Answer(pending) => {
                end.pending = end.pending.add(pending).map_err(Stop::Violation)?;
            }
            SinkAction::Cancelled => {
                if let Some(rest) = end.pending.without_send_sm() {
                    end.pending = rest;
                    end.sink.owe_send_sm();
                }
            }
            SinkAction::Withdrawn => end.pending = end.pending.without_answers(),
            SinkAction::Written { bytes } => end.count(packet.at, bytes),
            SinkAction::EndOfStream => end.has_ended = true,
            SinkAction::Recalled | SinkAction::Nothing | SinkAction::ModeChanged(_) => {}
            action => panic!("{action:?} was not agreed upon"),
        }
        while end.lent.len() > end.sink.lent() {
            let key = end.lent.pop_front();
            end.live.retain(|live| Some(*live) != key);
        }
        assert_eq!(end.got, end.sink.plain().position(), "{message}");
        self.collect_answers(side);
        Ok(true)
    }

    /// Starts a READ; whether there is one to start.
    pub fn begin_read(&mut self, side: usize, most: u32) -> bool {
        let end = &mut self.ends[side];
        let Some(slice) = end.sink.next_read(most) else { return false };
        self.log.push(format!("{side} reads {slice:?}"));
        end.sink.read_posted(slice.len);
        end.reads.push_back(slice);
        true
    }

    /// Ends the oldest READ; whether there was one.
    pub fn end_read(&mut self, side: usize) -> Result<bool, Stop> {
        let Some(slice) = self.ends[side].reads.pop_front() else { return Ok(false) };
        let peer = &self.ends[1 - side];
        if !peer.live.contains(&slice.rkey.0) {
            let is_expected = peer.taken_back.contains(&slice.rkey.0);
            assert!(is_expected, "a READ of memory that was given back");
            return Err(Stop::ReadRefused);
        }
        self.log.push(format!("{side} has read {slice:?}"));
        let end = &mut self.ends[side];
        if end.sink.read_done(slice.len) {
            end.count(slice.addr, slice.len);
        }
        self.collect_answers(side);
        Ok(true)
    }

    /// Takes messages and sends answers until nothing moves.
    pub fn settle(&mut self) -> Result<(), Stop> {
        loop {
            let mut moved = false;
            for side in [0, 1] {
                moved |= self.take(side)?;
                moved |= self.control(side).is_ok();
            }
            if !moved {
                return Ok(());
            }
        }
    }

    pub fn last_event(&self, side: usize) -> SourceEvent {
        *self.ends[side].events.last().expect("an event")
    }
}

impl End {
    fn deliver(&mut self, packet: Packet, payload: Payload) {
        let known = payload.offset - packet.message.body.header_len();
        self.count(packet.at + u64::from(known), payload.len);
    }

    fn count(&mut self, at: u64, len: u32) {
        assert_eq!(at, self.got, "not the next bytes of the stream");
        self.got += u64::from(len);
    }

    fn tell(&mut self, input: sdp_proto::SourceInput, mseq_ack: u32) -> Result<(), Stop> {
        let event = self.source.handle(&input, mseq_ack).map_err(Stop::Violation)?;
        self.events.push(event);
        let free = match event {
            SourceEvent::Read { finished: true, .. } | SourceEvent::SendRest { .. } => 1,
            SourceEvent::Cancelled { .. } | SourceEvent::Overridden { .. } => usize::MAX,
            SourceEvent::BuffersDropped => {
                let answer = PendingControl::SINK_CANCEL_ACK;
                self.pending = self.pending.add(answer).map_err(Stop::Violation)?;
                0
            }
            _ => 0,
        };
        for key in self.advertised.drain(..free.min(self.advertised.len())) {
            self.live.retain(|live| *live != key);
        }
        Ok(())
    }
}

/// An answer of a peer that is not ours.
pub fn forged(pair: &Pair, side: usize, body: Body, payload: u32) -> Packet {
    let mut message = crate::common::raw(body, payload, 0, 0, BUFS);
    message.header.mseq = pair.ends[side].sink.plain().last_mseq().wrapping_add(1);
    message.header.mseq_ack = pair.ends[side].source.plain().last_mseq();
    Packet { message, at: pair.ends[side].got }
}

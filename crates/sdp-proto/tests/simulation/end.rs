//! One end: a program, the engine, a queue pair, and the driver that joins them.

use core::cell::Cell;
use std::collections::VecDeque;

use sdp_fabric_sim::{SimFabric, SimId, SimRx, SimTx};
use sdp_fabric_tests::message::{Collector, Message, Random};
use sdp_proto::{
    connection::{
        end::{Connection, Failure, Input},
        state::State,
    },
    wire::{Body, PREFIX_MAX},
};
use sdp_rdma::{
    fabric::{Fabric, Gather, PostError, QpError, ReceiveQueue, Received, SendOptions, SendQueue},
    work::{Status, WorkId},
};

/// How an end's story ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Both streams complete, closed by the handshake.
    Complete,
    /// The peer had ended its stream and was gone before we had ended ours: reads saw the end of
    /// the stream, sends fail (spec 5.4, CLOSE_WAIT).
    Cut,
    /// The peer was gone before its stream had ended.
    Reset,
    /// Gave up itself.
    Aborted,
    /// Its node died.
    Killed,
}

/// A program's actions.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Number of its stream: decides the bytes.
    pub stream: u64,
    /// Bytes it writes before it shuts down.
    pub to_write: u64,
    /// Most bytes of one write or read.
    pub piece_max: usize,
    /// Reads or writes once in so many turns.
    pub laziness: usize,
    /// Reads nothing before it has written and sent everything.
    pub writes_first: bool,
}

/// A message that the program has not read to its end. Control messages wait here, too, where the
/// order of release is that of arrival.
struct Unread {
    received: Received,
    offset: u32,
    left: u32,
}

pub struct End {
    pub connection: Connection,
    pub program: Program,
    pub fabric: SimFabric,
    pub id: SimId,
    pub tx: SimTx,
    pub rx: SimRx,
    pub written: u64,
    pub read: u64,
    pub is_at_end: bool,
    pub has_aborted: bool,
    is_down: bool,
    is_failure_known: bool,
    unread: VecDeque<Unread>,
    /// Receive buffers at the start.
    buffers: u16,
}

impl End {
    pub fn new(
        connection: Connection,
        program: Program,
        (fabric, id): (&mut SimFabric, SimId),
    ) -> Self {
        let (tx, rx) = fabric.take_queues(id).expect("queues");
        Self {
            connection,
            program,
            fabric: fabric.clone(),
            id,
            buffers: rx.posted(),
            tx,
            rx,
            written: 0,
            read: 0,
            is_at_end: false,
            has_aborted: false,
            is_down: false,
            is_failure_known: false,
            unread: VecDeque::new(),
        }
    }

    /// Takes all steps that are possible; whether anything moved. `is_eager`: the program does not
    /// idle.
    pub fn turn(
        &mut self,
        random: &mut Random,
        is_eager: bool,
        peer: &Program,
        now_ms: u64,
    ) -> bool {
        let mut moved = self.receive();
        if is_eager || random.one_in(self.program.laziness) {
            moved |= self.write(random, now_ms);
        }
        if is_eager || random.one_in(self.program.laziness) {
            moved |= self.read(random, peer);
        }
        moved |= self.complete(now_ms);
        moved |= self.transmit(random, now_ms);
        moved |= self.disconnect();
        moved
    }

    /// When the engine wants to be called without anything else happening.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.connection.poll_timeout()
    }

    pub fn abort(&mut self) {
        self.connection.abort();
        self.has_aborted = true;
    }

    /// Checks that the story is over for this end, and says how.
    pub fn outcome(&self, peer: &Program) -> Outcome {
        assert_eq!(self.connection.state(), State::Closed, "{:?} hangs", self.program);
        assert!(self.unread.is_empty(), "unread messages are left");
        assert_eq!(self.rx.posted(), self.buffers, "receive buffers are lost");
        if self.is_at_end {
            assert_eq!(self.read, peer.to_write, "the stream ended early");
        }
        match self.connection.failure() {
            None => {
                assert!(self.is_at_end, "a clean end without the end of the stream");
                if self.connection.source().has_ended() {
                    assert_eq!(self.connection.source().position(), self.program.to_write);
                    Outcome::Complete
                } else {
                    assert!(self.connection.clone().write(1).is_err());
                    Outcome::Cut
                }
            }
            Some(Failure::Aborted) if self.has_aborted => Outcome::Aborted,
            Some(Failure::Reset) => Outcome::Reset,
            Some(failure) => panic!("{failure:?} of {:?}", self.program),
        }
    }

    fn write(&mut self, random: &mut Random, now_ms: u64) -> bool {
        if !self.connection.state().may_send() {
            return false;
        }
        let left = self.program.to_write - self.written;
        if left == 0 {
            return self.connection.shutdown(now_ms).is_ok();
        }
        // A socket buffer of a few pieces: a program does not run ahead without bounds.
        if self.connection.queued() > 4 * self.program.piece_max as u64 {
            return false;
        }
        let len = left.min(1 + random.below(self.program.piece_max) as u64);
        self.connection.write(len).expect("a connection that may send");
        self.written += len;
        true
    }

    fn read(&mut self, random: &mut Random, peer: &Program) -> bool {
        let is_sending = self.connection.source().position() < self.program.to_write;
        if self.program.writes_first && is_sending && self.connection.failure().is_none() {
            return false;
        }
        let Some(first) = self.unread.front_mut() else { return false };
        let len = first.left.min(1 + random.below(self.program.piece_max) as u32);
        let mut sink = Collector::new(len as usize);
        self.rx.copy_out(first.received, first.offset, len, &mut sink);
        let expected = Message::new(peer.stream, 0).bytes(self.read as usize, len as usize);
        assert!(sink.bytes == expected, "wrong bytes in {len} from {} on", self.read);
        first.offset += len;
        first.left -= len;
        self.read += u64::from(len);
        assert!(self.read <= peer.to_write, "more bytes than were written");
        self.release_read();
        true
    }

    /// Gives back the buffers whose bytes were read.
    fn release_read(&mut self) {
        while let Some(done) = self.unread.pop_front_if(|unread| unread.left == 0) {
            self.rx.release(done.received);
        }
    }

    fn receive(&mut self) -> bool {
        let mut moved = false;
        loop {
            let received = match self.rx.poll_receive() {
                Ok(Some(received)) => received,
                Ok(None) => return moved,
                Err(error) => return self.receive_error(error) || moved,
            };
            moved = true;
            let mut prefix = [0; PREFIX_MAX];
            let len = self.rx.copy_header(received, &mut prefix);
            let input = self.connection.handle_message(&prefix[..len], received.len);
            let mut unread = Unread { received, offset: 0, left: 0 };
            match input.unwrap_or_else(|violation| panic!("{violation:?}")) {
                Input::Deliver(payload) => {
                    unread.offset = payload.offset;
                    unread.left = payload.len;
                }
                Input::EndOfStream => self.is_at_end = true,
                Input::Release | Input::Failed => {}
                input => panic!("{input:?} was not agreed upon"),
            }
            if unread.left == 0 && self.fabric.has_explicit_credits() {
                // The buffer goes back at once: control never waits for the program (spec 4.5).
                self.rx.release(received);
            } else {
                self.unread.push_back(unread);
                self.release_read();
            }
        }
    }

    /// The queue pair failed, and everything that had arrived is handled.
    fn receive_error(&mut self, error: QpError) -> bool {
        assert_ne!(error, QpError::Framing, "the simulated fabric breaks no framing");
        if core::mem::replace(&mut self.is_failure_known, true) {
            return false;
        }
        if !self.is_down {
            self.is_down = true;
            self.connection.handle_disconnected();
            self.connection.poll_disconnect();
            self.connection.handle_expired();
        }
        true
    }

    fn complete(&mut self, now_ms: u64) -> bool {
        let mut moved = false;
        while let Some(done) = self.tx.poll_completion() {
            moved = true;
            if done.status == Status::Success {
                self.connection.handle_delivered(done.id.0 as u32, now_ms);
            }
        }
        moved
    }

    fn transmit(&mut self, random: &mut Random, now_ms: u64) -> bool {
        self.connection.handle_timeout(now_ms);
        let mut moved = false;
        while let Some(message) = self.connection.poll_transmit(self.rx.posted(), now_ms) {
            let is_last_word = matches!(message.message().body, Body::DisConn | Body::AbortConn);
            let options = SendOptions {
                signalled: is_last_word || random.one_in(8),
                solicited: message.is_solicited(),
                control: message.is_control(),
            };
            let mut payload = Stream {
                stream: self.program.stream,
                from: self.connection.source().position(),
                len: message.payload_len(),
            };
            let id = WorkId(u64::from(message.message().header.mseq));
            match self.tx.post_send(id, message.header(), &mut payload, options) {
                Ok(()) => self.connection.handle_posted(&message),
                Err(PostError::Full | PostError::Failed(_)) => break,
                Err(error) => panic!("{error:?} of {:?}", message.message()),
            }
            moved = true;
        }
        moved
    }

    fn disconnect(&mut self) -> bool {
        if !self.connection.poll_disconnect() {
            return false;
        }
        self.is_down = true;
        self.fabric.disconnect(self.id);
        self.connection.handle_expired();
        true
    }
}

/// A part of a program's stream.
struct Stream {
    stream: u64,
    from: u64,
    len: u32,
}

impl Gather for Stream {
    fn len(&self) -> usize {
        self.len as usize
    }

    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        let from = self.from as usize + offset;
        for (cell, byte) in dst.iter().zip(Message::new(self.stream, 0).bytes(from, dst.len())) {
            cell.set(byte);
        }
    }
}

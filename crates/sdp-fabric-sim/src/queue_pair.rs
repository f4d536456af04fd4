//! Queue pairs: requests posted, in flight, completed, arrived; and the two halves that users hold.
//!
//! [`SimTx`] and [`SimRx`] are names; the state lives in the world. The payload is taken from and
//! handed to the user outside the world's lock and in two pieces, as a ring that wraps would.
//!
//! *Posting.* A request waits in posting order until it arrives at the peer, runs there, and its
//! completion travels back. *Explicit credits:* an arriving SEND takes a receive buffer; with none
//! posted it waits or fails ([`crate::RnrRetry`]). *Implicit credits:* a SEND needs room in a byte
//! window, as the sender last heard of it.

use core::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use sdp_rdma::{
    cm::PrivateData,
    fabric::{
        Gather, PostError, QpError, RELEASED_AHEAD_MAX, ReceiveQueue, Received, Scatter,
        SendOptions, SendQueue,
    },
    key::{LocalSlice, RemoteSlice},
    work::{Completion, Opcode, Status, WorkId},
};

use crate::{
    cm::SimService,
    trace::{FNV_START, fnv},
    world::{Credits, State, World},
};

/// Work requests that only control messages may use, out of the send queue.
pub const CONTROL_REQUESTS: usize = 4;
/// Window bytes that only control messages may use (implicit credits).
pub const CONTROL_BYTES: u64 = 1024;
/// Header that [`SendQueue::room`] allows for.
const HEADER_LEN: usize = 16;
/// Framing of a message in the byte window: 8 bytes, rounded up to 16.
const FRAME_LEN: u64 = 8;
const FRAME_ALIGN: u64 = 16;

/// Bytes of the window that a message takes.
pub const fn window_bytes(len: usize) -> u64 {
    (FRAME_LEN + len as u64).next_multiple_of(FRAME_ALIGN)
}

/// Life of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Asked to connect, no answer yet.
    Connecting,
    /// Made for a request that the listener has not answered.
    Requested,
    /// Both ends agreed.
    Ready,
    /// For ever.
    Failed(QpError),
}

#[derive(Debug)]
pub(crate) enum Work {
    Send { bytes: Vec<u8>, hash: u64 },
    Read { local: LocalSlice, remote: RemoteSlice },
    Write { local: LocalSlice, remote: RemoteSlice },
}

impl Work {
    pub(crate) const fn opcode(&self) -> Opcode {
        match self {
            Self::Send { .. } => Opcode::Send,
            Self::Read { .. } => Opcode::Read,
            Self::Write { .. } => Opcode::Write,
        }
    }
}

/// Posted, not yet run at the peer.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: WorkId,
    pub(crate) work: Work,
    pub(crate) is_signalled: bool,
    pub(crate) arrive_at_ns: u64,
    /// First arrival at a link that is down.
    pub(crate) stuck_since_ns: Option<u64>,
    /// Refusals because no receive buffer was posted.
    pub(crate) refusals: u32,
}

/// Run at the peer, completion in flight.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) status: Status,
    pub(crate) is_signalled: bool,
    pub(crate) ripe_at_ns: u64,
    /// Where READ bytes go, and the bytes.
    pub(crate) fetched: Option<(LocalSlice, Vec<u8>)>,
    /// The error of the queue pair when `status` is no success.
    pub(crate) error: QpError,
}

#[derive(Debug, Default)]
pub(crate) struct SendSide {
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) running: VecDeque<Running>,
    pub(crate) completed: VecDeque<Completion>,
    /// Window bytes ever posted, and ever known to be free again.
    pub(crate) posted_bytes: u64,
    pub(crate) freed_bytes: u64,
    /// (time, `freed_bytes` from then on), not yet heard.
    pub(crate) window_updates: VecDeque<(u64, u64)>,
    /// No later message may arrive, no later request complete, before these.
    pub(crate) last_arrival_ns: u64,
    pub(crate) last_completion_ns: u64,
    /// Times of the earliest events in flight.
    pub(crate) arrive_event_ns: Option<u64>,
    pub(crate) complete_event_ns: Option<u64>,
    pub(crate) window_event_ns: Option<u64>,
    /// The oldest request waits for the peer to post a buffer; its release wakes us.
    pub(crate) is_receiver_not_ready: bool,
    /// A request failed; nothing later runs.
    pub(crate) is_stopped: bool,
}

impl SendSide {
    /// Entries of the send queue in use: a request holds its place until its completion is polled,
    /// because the completion needs one.
    pub(crate) fn depth(&self) -> usize {
        self.waiting.len() + self.running.len() + self.completed.len()
    }
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hash: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ReceiveSide {
    /// Not reported yet, in order of arrival.
    pub(crate) arrived: VecDeque<Message>,
    /// Reported and not released, by token.
    pub(crate) borrowed: BTreeMap<u64, Message>,
    /// Messages ever reported: the next token.
    pub(crate) reported: u64,
    /// Implicit credits: window bytes of messages released ahead of an older one, by token.
    pub(crate) ahead: BTreeMap<u64, u64>,
    /// Implicit credits: the oldest token not released, and window bytes ever freed before it.
    pub(crate) freed_to: u64,
    pub(crate) freed_bytes: u64,
}

impl ReceiveSide {
    /// Messages that hold a receive buffer.
    pub(crate) fn held(&self) -> usize {
        self.arrived.len() + self.borrowed.len()
    }
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) node: u32,
    pub(crate) peer: Option<u32>,
    pub(crate) phase: Phase,
    pub(crate) was_ready: bool,
    pub(crate) is_taken: bool,
    pub(crate) service: SimService,
    /// Of the request (active side) or of the reply (passive side).
    pub(crate) data: PrivateData,
    pub(crate) send: SendSide,
    pub(crate) receive: ReceiveSide,
}

impl QueuePair {
    pub(crate) fn new(node: u32, phase: Phase, service: SimService, data: PrivateData) -> Self {
        Self {
            node,
            peer: None,
            phase,
            was_ready: false,
            is_taken: false,
            service,
            data,
            send: SendSide::default(),
            receive: ReceiveSide::default(),
        }
    }
}

/// Sending half of a simulated queue pair.
#[derive(Debug)]
pub struct SimTx {
    pub(crate) world: World,
    pub(crate) number: u32,
}

impl SimTx {
    fn post_one_sided(&mut self, id: WorkId, work: Work) -> Result<(), PostError> {
        let mut state = self.world.state();
        state.may_post(self.number, None, false)?;
        state.post(self.number, id, work, true)
    }
}

impl SendQueue for SimTx {
    fn max_message(&self) -> usize {
        self.world.state().options.credits.message_bytes()
    }

    fn room(&self) -> usize {
        self.world.state().room(self.number).saturating_sub(HEADER_LEN)
    }

    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let len = header.len().saturating_add(payload.len());
        self.world.state().may_post(self.number, Some(len), options.control)?;
        let mut bytes = vec![0; len];
        let (head, tail) = bytes.split_at_mut(header.len());
        head.copy_from_slice(header);
        let cells = Cell::from_mut(tail).as_slice_of_cells();
        let (first, second) = cells.split_at(cells.len() / 3);
        if !first.is_empty() {
            payload.copy_to(0, first);
        }
        if !second.is_empty() {
            payload.copy_to(first.len(), second);
        }
        let hash = fnv(FNV_START, &bytes);
        self.world.state().post(self.number, id, Work::Send { bytes, hash }, options.signalled)
    }

    fn post_read(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.post_one_sided(id, Work::Read { local, remote })
    }

    fn post_write(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.post_one_sided(id, Work::Write { local, remote })
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        let mut state = self.world.state();
        let completion = state.queue_pair_mut(self.number).send.completed.pop_front()?;
        let number = self.number;
        state.log(format_args!("qp{number} completed {} {:?}", completion.id.0, completion.status));
        Some(completion)
    }
}

/// Receiving half of a simulated queue pair.
#[derive(Debug)]
pub struct SimRx {
    pub(crate) world: World,
    pub(crate) number: u32,
}

impl ReceiveQueue for SimRx {
    fn posted(&self) -> u16 {
        let state = self.world.state();
        match state.options.credits {
            Credits::Implicit { .. } => u16::MAX,
            Credits::Explicit { buffers, .. } => {
                let borrowed = state.queue_pair(self.number).receive.borrowed.len();
                buffers.saturating_sub(borrowed as u16)
            }
        }
    }

    fn poll_receive(&mut self) -> Result<Option<Received>, QpError> {
        let mut state = self.world.state();
        let queue_pair = state.queue_pair_mut(self.number);
        let receive = &mut queue_pair.receive;
        let Some(message) = receive.arrived.pop_front() else {
            return match queue_pair.phase {
                Phase::Failed(error) => Err(error),
                _ => Ok(None),
            };
        };
        let token = receive.reported;
        let received = Received { token, len: message.bytes.len() as u32 };
        receive.reported += 1;
        receive.borrowed.insert(token, message);
        state.log(format_args!("qp{} received {token} len {}", self.number, received.len));
        Ok(Some(received))
    }

    fn copy_header(&self, message: Received, dst: &mut [u8]) -> usize {
        let state = self.world.state();
        let bytes = state.borrowed(self.number, message);
        let len = bytes.len().min(dst.len());
        dst[..len].copy_from_slice(&bytes[..len]);
        len
    }

    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter) {
        let mut piece = {
            let state = self.world.state();
            let bytes = state.borrowed(self.number, message);
            let from = offset as usize;
            let range = bytes.get(from..from.saturating_add(len as usize));
            let Some(range) = range else {
                panic!("copy of {len} bytes from {offset} of a message of {}", bytes.len());
            };
            range.to_vec()
        };
        let cells = Cell::from_mut(piece.as_mut_slice()).as_slice_of_cells();
        let (first, second) = cells.split_at(cells.len() / 3);
        for cells in [first, second] {
            if !cells.is_empty() {
                sink.accept(cells);
            }
        }
    }

    fn release(&mut self, message: Received) {
        self.world.state().release(self.number, message);
    }
}

impl State {
    /// The bytes of a message that was reported and not released.
    fn borrowed(&self, number: u32, message: Received) -> &[u8] {
        match self.queue_pair(number).receive.borrowed.get(&message.token) {
            Some(found) => &found.bytes,
            None => panic!("use of message {} of qp{number}, which is not borrowed", message.token),
        }
    }

    /// Message bytes that data could carry now.
    fn room(&self, number: u32) -> usize {
        let send = &self.queue_pair(number).send;
        if send.depth() + CONTROL_REQUESTS >= self.options.send_depth {
            return 0;
        }
        let longest = self.options.credits.message_bytes();
        match self.options.credits {
            Credits::Explicit { .. } => longest,
            Credits::Implicit { window_bytes, .. } => {
                let free = window_bytes - (send.posted_bytes - send.freed_bytes);
                let framed = free.saturating_sub(CONTROL_BYTES) / FRAME_ALIGN * FRAME_ALIGN;
                longest.min(framed.saturating_sub(FRAME_LEN) as usize)
            }
        }
    }

    /// Whether a request may be posted; `len` of a SEND.
    fn may_post(&self, number: u32, len: Option<usize>, is_control: bool) -> Result<(), PostError> {
        let queue_pair = self.queue_pair(number);
        if let Phase::Failed(error) = queue_pair.phase {
            return Err(PostError::Failed(error));
        }
        if len.is_some_and(|len| len > self.options.credits.message_bytes()) {
            return Err(PostError::TooLong);
        }
        let send = &queue_pair.send;
        let kept = if is_control { 0 } else { CONTROL_REQUESTS };
        if send.depth() + kept >= self.options.send_depth {
            return Err(PostError::Full);
        }
        if let (Credits::Implicit { window_bytes: window, .. }, Some(len)) =
            (self.options.credits, len)
        {
            let kept = if is_control { 0 } else { CONTROL_BYTES };
            let used = send.posted_bytes - send.freed_bytes;
            if used + window_bytes(len) + kept > window {
                return Err(PostError::Full);
            }
        }
        Ok(())
    }

    /// Queues a request that [`State::may_post`] allowed.
    fn post(
        &mut self,
        number: u32,
        id: WorkId,
        work: Work,
        is_signalled: bool,
    ) -> Result<(), PostError> {
        // The payload was taken outside the lock: the connection may have ended meanwhile.
        if let Phase::Failed(error) = self.queue_pair(number).phase {
            return Err(PostError::Failed(error));
        }
        let fault = self.options.faults.fail_queue_pair;
        if self.destructive(fault) {
            self.log(format_args!("qp{number} fault: device error"));
            self.fail(number, QpError::Fatal, true);
            return Err(PostError::Failed(QpError::Fatal));
        }
        let carried = match &work {
            Work::Send { bytes, hash } => {
                self.log(format_args!(
                    "qp{number} post {} send len {} hash {hash:016x}",
                    id.0,
                    bytes.len()
                ));
                let used = window_bytes(bytes.len());
                self.queue_pair_mut(number).send.posted_bytes += used;
                bytes.len() as u64
            }
            Work::Write { local, remote } => {
                self.log(format_args!(
                    "qp{number} post {} write {:x}+{} to {:x}+{}",
                    id.0, local.addr, local.len, remote.addr, remote.len
                ));
                u64::from(local.len)
            }
            Work::Read { local, remote } => {
                self.log(format_args!(
                    "qp{number} post {} read {:x}+{} from {:x}+{}",
                    id.0, local.addr, local.len, remote.addr, remote.len
                ));
                0
            }
        };
        let arrive_at_ns = self.arrival_ns(number, carried);
        self.queue_pair_mut(number).send.waiting.push_back(Waiting {
            id,
            work,
            is_signalled,
            arrive_at_ns,
            stuck_since_ns: None,
            refusals: 0,
        });
        self.schedule_arrival(number);
        Ok(())
    }

    /// Ends a borrow. A receive buffer is posted again at once; window bytes are free when every
    /// older message is released too.
    fn release(&mut self, number: u32, message: Received) {
        let credits = self.options.credits;
        let receive = &mut self.queue_pair_mut(number).receive;
        let Some(done) = receive.borrowed.remove(&message.token) else {
            panic!("release of message {} of qp{number}, which is not borrowed", message.token);
        };
        assert_eq!(fnv(FNV_START, &done.bytes), done.hash, "a borrowed message changed");
        if let Credits::Implicit { .. } = credits {
            receive.ahead.insert(message.token, window_bytes(done.bytes.len()));
            while let Some(bytes) = receive.ahead.remove(&receive.freed_to) {
                receive.freed_to += 1;
                receive.freed_bytes += bytes;
            }
        }
        let ahead = receive.ahead.len();
        assert!(
            ahead <= RELEASED_AHEAD_MAX,
            "{ahead} messages of qp{number} released ahead of an older one"
        );
        self.log(format_args!("qp{number} release {} ahead {ahead}", message.token));
        self.announce_room(number);
    }
}

//! A whole end of a connection, driven from one place.
//!
//! Used by the simulator and by tests. It never sees payload: the caller keeps a queue of bytes to
//! send and copies what is delivered. It has no clock: times are milliseconds since any fixed
//! moment, given by the caller, and never go back.

use super::{
    pending::PendingControl,
    setup::{Local, Remote},
    sink::{Sink, SinkAction},
    source::{Hold, Outgoing, Source},
    state::{Event, Invalid, State},
};
use crate::{
    Violation,
    wire::{
        Body, HEADER_LEN, Hello, HelloAck, LaneRequest, LaneSwitch, Message, Payload, hello::Names,
    },
};

/// How long the handshake at the end of a connection may take.
pub const FIN_TIMEOUT_MS: u64 = 60_000;
/// How long an end in LastAck waits for the peer to disconnect before it does so itself.
pub const LAST_ACK_GRACE_MS: u64 = 1_000;

/// How long the active end waits before a late credit update (spec 4.4). Doubles with each one in a
/// row, [`LATE_DOUBLINGS_MAX`] times.
pub const LATE_ACTIVE_MS: u64 = 10;
/// How long the passive end waits. No doubling of one is a doubling of the other, so that two ends
/// do not speak at the same time for ever.
pub const LATE_PASSIVE_MS: u64 = 15;
/// Bound of the doubling: at most 0.96 s.
pub const LATE_DOUBLINGS_MAX: u8 = 6;

/// Why a connection ended other than by the handshake (spec 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The peer refused, did not answer, or answered wrongly.
    Refused,
    /// The peer reset the connection, or its queue pair failed before its stream ended.
    Reset,
    /// The peer broke a rule.
    Violation(Violation),
    /// The handshake at the end took too long.
    TimedOut,
    /// We reset the connection.
    Aborted,
}

/// Why bytes cannot be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteError {
    /// The connection is not set up yet.
    NotConnected,
    /// Our stream has ended, or the connection is over.
    Broken,
}

/// What the caller has to do with a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Release it.
    Release,
    /// Give this payload to the program, then release it.
    Deliver(Payload),
    /// Release it; the peer's stream is complete.
    EndOfStream,
    /// Release it; the peer's payload changes lanes here.
    LaneSwitch(LaneSwitch),
    /// Release it; the peer asks our payload to change lanes.
    LaneRequest(LaneRequest),
    /// Release it; the connection is over, see [`Connection::failure`].
    Failed,
}

/// One end of a connection.
///
/// Its methods are of four kinds.
///
/// * *Getters* show its state and change nothing.
/// * *Commands* are the program's wishes: [`write`](Self::write), [`shutdown`](Self::shutdown),
///   [`close`](Self::close), [`abort`](Self::abort).
/// * *`handle_*`* bring it events: set-up messages, messages, deliveries, disconnection, time.
/// * *`poll_*`* ask for the next thing to do.
///
/// After any number of commands and `handle_*` calls, drain the outputs in this order, each until
/// it has no more to say:
///
/// 1. [`poll_transmit`](Self::poll_transmit): a message to post. When the fabric has it, call
///    [`handle_posted`](Self::handle_posted); when the fabric is full, drop it and poll again later.
///    When the fabric reports its completion (at once, if posting is all there is to it), call
///    [`handle_delivered`](Self::handle_delivered).
/// 2. [`poll_disconnect`](Self::poll_disconnect): take the queue pair down. When it is down, call
///    [`handle_expired`](Self::handle_expired).
/// 3. [`poll_timeout`](Self::poll_timeout): when to call
///    [`handle_timeout`](Self::handle_timeout) next, if nothing else happens.
///
/// Messages that arrive are given to [`handle_message`](Self::handle_message) in order; `posted` is
/// always the number of receive buffers posted, those holding messages not handled yet included.
#[derive(Debug, Clone)]
pub struct Connection {
    local: Local,
    state: State,
    source: Source,
    sink: Sink,
    pending: PendingControl,
    /// Bytes to send that are in no message yet.
    queued: u64,
    failure: Option<Failure>,
    /// When [`Event::Timeout`] is due.
    deadline_ms: Option<u64>,
    /// When a late credit update goes out.
    late_ms: Option<u64>,
    /// Late credit updates sent since anything else was.
    late_in_row: u8,
    /// The message whose delivery ends our part: DisConn, or AbortConn after it.
    last_word: Option<u32>,
    is_abort_wanted: bool,
    is_disconnect_wanted: bool,
    /// The program wants no more payload.
    is_closed: bool,
    is_passive: bool,
}

impl Connection {
    /// The active end, and the Hello to send.
    pub fn connect(local: Local, names: Option<Names>) -> (Self, Hello) {
        let hello = local.hello(names);
        (Self::new(local, State::SynSent, &Remote::from(&hello)), hello)
    }

    /// The passive end for a good Hello, and the HelloAck to send.
    pub fn accept(local: Local, hello: &Hello) -> (Self, HelloAck) {
        (Self::new(local, State::SynReceived, &Remote::from(hello)), local.hello_ack())
    }

    fn new(local: Local, state: State, remote: &Remote) -> Self {
        let (source, sink) = local.halves(remote);
        Self {
            local,
            state,
            source,
            sink,
            pending: PendingControl::NOTHING,
            queued: 0,
            failure: None,
            deadline_ms: None,
            late_ms: None,
            late_in_row: 0,
            last_word: None,
            is_abort_wanted: false,
            is_disconnect_wanted: false,
            is_closed: false,
            is_passive: state == State::SynReceived,
        }
    }

    // Getters.

    /// Where the connection is in its life.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Why the connection ended, if not by the handshake.
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// The sending half.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// The receiving half.
    pub const fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Bytes queued and in no message yet.
    pub const fn queued(&self) -> u64 {
        self.queued
    }

    // Commands.

    /// Queues `len` bytes behind those queued before.
    ///
    /// # Errors
    ///
    /// [`WriteError`] when they can never be sent.
    pub fn write(&mut self, len: u64) -> Result<(), WriteError> {
        match self.state {
            State::Closed if self.failure.is_none() => Err(WriteError::NotConnected),
            State::Listen | State::SynSent => Err(WriteError::NotConnected),
            state if state.may_send() => {
                self.queued = self.queued.saturating_add(len);
                Ok(())
            }
            _ => Err(WriteError::Broken),
        }
    }

    /// Ends our stream behind the queued bytes.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when it is ending already or was never open.
    pub fn shutdown(&mut self, now_ms: u64) -> Result<(), Invalid> {
        self.enter(Event::Shutdown)?;
        if self.state.is_connected() {
            self.deadline_ms = Some(now_ms.saturating_add(FIN_TIMEOUT_MS));
        } else {
            self.is_disconnect_wanted = true;
        }
        Ok(())
    }

    /// Gives the connection up (spec 5.5): gracefully, or by a reset when the program leaves bytes unread.
    /// Payload that arrives afterwards resets it, too. Closing twice changes nothing.
    pub fn close(&mut self, has_unread: bool, now_ms: u64) {
        self.is_closed = true;
        if has_unread {
            self.abort();
        } else if self.state.after(Event::Shutdown).is_ok() {
            // Cannot fail: it was just tried.
            let _ = self.shutdown(now_ms);
        }
    }

    /// Resets the connection. When it is over already, nothing happens.
    pub fn abort(&mut self) {
        // AbortConn exists only behind DisConn; before that, disconnecting says it (spec 5.3).
        let has_word = self.state.is_connected() && self.source.has_ended();
        self.fail(Failure::Aborted, Event::Abort);
        if has_word {
            self.is_abort_wanted = true;
            self.is_disconnect_wanted = false;
        }
    }

    // Input.

    /// The peer accepted.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when we did not ask.
    pub fn handle_hello_ack(&mut self, ack: &HelloAck) -> Result<(), Invalid> {
        self.enter(Event::Reply)?;
        (self.source, self.sink) = self.local.halves(&Remote::from(ack));
        Ok(())
    }

    /// The peer refused, did not answer, or the answer was wrong.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when the connection is set up already.
    pub fn handle_refused(&mut self) -> Result<(), Invalid> {
        self.state.after(Event::Refused)?;
        self.fail(Failure::Refused, Event::Refused);
        Ok(())
    }

    /// The peer said that it is ready. Its first message says so too.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when the connection is set up already.
    pub fn handle_ready(&mut self) -> Result<(), Invalid> {
        self.enter(Event::Ready)
    }

    /// A message of `total_len` bytes arrived, of which `first_bytes` are the beginning.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke; the connection has been reset.
    pub fn handle_message(
        &mut self,
        first_bytes: &[u8],
        total_len: u32,
    ) -> Result<Input, Violation> {
        if !self.state.is_connected() {
            return Ok(Input::Release);
        }
        self.try_message(first_bytes, total_len).inspect_err(|violation| {
            self.fail(Failure::Violation(*violation), Event::Abort);
        })
    }

    fn try_message(&mut self, first_bytes: &[u8], total_len: u32) -> Result<Input, Violation> {
        let message = Message::parse(first_bytes, total_len)?;
        if self.state == State::SynReceived {
            self.state = State::Established;
        }
        self.source.learn(message.header.credit())?;
        Ok(match self.sink.handle(&message)? {
            SinkAction::Nothing | SinkAction::ModeChanged(_) => Input::Release,
            SinkAction::Deliver(payload) => self.deliver(payload),
            SinkAction::Advertised(payload) => {
                payload.map_or(Input::Release, |payload| self.deliver(payload))
            }
            SinkAction::Withdrawn => {
                self.pending = self.pending.without_answers();
                Input::Release
            }
            SinkAction::Written { .. } | SinkAction::Recalled | SinkAction::Cancelled => {
                Input::Release
            }
            SinkAction::DeliverAndAnswer(payload, pending) => {
                self.pending = self.pending.add(pending)?;
                self.deliver(payload)
            }
            SinkAction::Answer(pending) => {
                self.pending = self.pending.add(pending)?;
                Input::Release
            }
            SinkAction::ForSource(input) => {
                self.source.handle(&input)?;
                Input::Release
            }
            SinkAction::DeliverForSource(payload, input) => {
                self.source.handle(&input)?;
                self.deliver(payload)
            }
            SinkAction::EndOfStream => {
                self.advance(Event::DisConnReceived);
                self.disconnect_when_over();
                Input::EndOfStream
            }
            // Reconnecting elsewhere is not offered: a suspension ends the connection (spec 5.6).
            SinkAction::Reset | SinkAction::Suspend { .. } => {
                self.fail(Failure::Reset, Event::AbortReceived);
                Input::Failed
            }
            SinkAction::LaneSwitch(switch) => Input::LaneSwitch(switch),
            SinkAction::LaneRequest(request) => Input::LaneRequest(request),
        })
    }

    fn deliver(&mut self, payload: Payload) -> Input {
        if self.is_closed {
            // The program will not read it, and the peer must not believe that it did.
            self.abort();
            return Input::Failed;
        }
        Input::Deliver(payload)
    }

    /// The fabric has taken the message.
    pub fn handle_posted(&mut self, message: &Outgoing) {
        self.source.commit(message);
        self.pending = self.pending.without(message.settles());
        self.queued = self.queued.saturating_sub(u64::from(message.payload_len()));
        if self.late_ms.take().is_some() && message.message().header.len == HEADER_LEN as u32 {
            self.late_in_row = (self.late_in_row + 1).min(LATE_DOUBLINGS_MAX);
        } else {
            self.late_in_row = 0;
        }
        match message.message().body {
            Body::DisConn => self.last_word = Some(self.source.last_mseq()),
            Body::AbortConn => {
                self.is_abort_wanted = false;
                self.last_word = Some(self.source.last_mseq());
            }
            _ => {}
        }
    }

    /// The fabric has delivered all messages up to number `mseq`.
    pub fn handle_delivered(&mut self, mseq: u32, now_ms: u64) {
        let Some(last_word) = self.last_word else { return };
        if (mseq.wrapping_sub(last_word) as i32) < 0 {
            return;
        }
        self.last_word = None;
        if self.state == State::Closed {
            self.is_disconnect_wanted = true;
            return;
        }
        self.advance(Event::DisConnSent);
        if self.state == State::LastAck {
            let grace = now_ms.saturating_add(LAST_ACK_GRACE_MS);
            self.deadline_ms = Some(self.deadline_ms.map_or(grace, |fin| fin.min(grace)));
        }
        self.disconnect_when_over();
    }

    /// The peer disconnected, or the queue pair failed.
    pub fn handle_disconnected(&mut self) {
        let is_graceful = self.sink.has_ended();
        match self.state {
            State::Closed | State::Listen => {}
            State::SynSent => self.fail(Failure::Refused, Event::Disconnected),
            _ if is_graceful => {
                self.advance(Event::Disconnected);
                self.disconnect_when_over();
            }
            _ => self.fail(Failure::Reset, Event::Disconnected),
        }
    }

    /// Time has passed. Poll for messages afterwards: a late credit update may be due.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        let Some(deadline) = self.deadline_ms else { return };
        if now_ms < deadline {
            return;
        }
        self.deadline_ms = None;
        if self.state == State::LastAck && self.source.has_ended() && self.last_word.is_none() {
            // Both streams are complete; only the peer's disconnection is missing.
            self.advance(Event::Timeout);
            self.disconnect_when_over();
        } else {
            self.fail(Failure::TimedOut, Event::Timeout);
        }
    }

    /// The queue pair is gone.
    pub fn handle_expired(&mut self) {
        self.advance(Event::Expired);
    }

    // Output.

    /// The next message to post, with `posted` receive buffers posted now.
    pub fn poll_transmit(&mut self, posted: u16, now_ms: u64) -> Option<Outgoing> {
        let ack = self.sink.ack(posted);
        if self.is_abort_wanted {
            let message = self.source.abort(ack).ok();
            if message.is_none() {
                // No credit for a farewell.
                self.is_abort_wanted = false;
                self.is_disconnect_wanted = true;
            }
            return message;
        }
        if !self.state.is_connected() || self.state == State::SynReceived {
            // No update is due any more: its time, once past, would wake the caller for ever.
            self.late_ms = None;
            return None;
        }
        if !self.pending.is_nothing() {
            return self.source.next_control(ack, self.pending).ok();
        }
        // Payload before a credit update: its header says the same.
        let data = if self.queued == 0 {
            Err(Hold::NothingToSend)
        } else {
            self.source.next_data(ack, u32::try_from(self.queued).unwrap_or(u32::MAX))
        };
        if let Ok(message) = data {
            return Some(message);
        }
        if let Ok(update) = self.source.credit_update(ack) {
            return Some(update);
        }
        if self.queued == 0
            && !self.state.may_send()
            && !self.source.has_ended()
            && let Ok(message) = self.source.disconnect(ack)
        {
            return Some(message);
        }
        let Ok(update) = self.source.late_update(ack) else {
            self.late_ms = None;
            return None;
        };
        let first = if self.is_passive { LATE_PASSIVE_MS } else { LATE_ACTIVE_MS };
        let due_ms = *self.late_ms.get_or_insert(now_ms.saturating_add(first << self.late_in_row));
        (now_ms >= due_ms).then_some(update)
    }

    /// Whether to take the queue pair down now; says so once.
    pub fn poll_disconnect(&mut self) -> bool {
        core::mem::take(&mut self.is_disconnect_wanted)
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<u64> {
        match (self.deadline_ms, self.late_ms) {
            (Some(fin), Some(late)) => Some(fin.min(late)),
            (fin, late) => fin.or(late),
        }
    }

    fn enter(&mut self, event: Event) -> Result<(), Invalid> {
        self.state = self.state.after(event)?;
        Ok(())
    }

    /// Takes a transition that may have become pointless because the connection is over already.
    fn advance(&mut self, event: Event) {
        if let Ok(state) = self.state.after(event) {
            self.state = state;
        }
    }

    fn disconnect_when_over(&mut self) {
        if self.state == State::TimeWait {
            self.deadline_ms = None;
            self.is_disconnect_wanted = true;
        }
    }

    /// Ends the connection at once. The first failure is the one that is reported.
    fn fail(&mut self, failure: Failure, event: Event) {
        let Ok(state) = self.state.after(event) else { return };
        self.state = state;
        self.failure = self.failure.or(Some(failure));
        self.queued = 0;
        self.pending = PendingControl::NOTHING;
        self.deadline_ms = None;
        self.late_ms = None;
        self.last_word = None;
        self.is_disconnect_wanted = true;
    }
}

//! Every schedule of one half whose source takes its advertisements back alone.
//!
//! The source sends units 0, 1, 2 … in calls of three: by an advertisement with one unit inside, or as
//! Data. At any moment it may cancel, end the registration and say Withdrawn. The sink takes messages
//! in order, READs unit by unit, reports, or refuses. The queue pair may die at any moment, and does
//! when a READ meets memory that is gone; then the source goes on by the carrier from the position that
//! is acknowledged, and the sink skips what it has. States and rules are the engine's own.
//!
//! `SDP_MODELS=long`: two calls, a million states.

use sdp_model::{Explored, Model, Step, Verdict, explore};
use sdp_proto::{
    Ack, Credits, Hold, Outgoing, PendingControl, Sink, SinkAction, Source, SourceConfig,
    ZcopySink, ZcopySource,
    wire::{Body, Message},
};
use sdp_rdma::key::{RemoteSlice, Rkey};

use crate::ends::{Packet, RECEIVE, halves};

/// Units of a call, one of them inline.
const CALL: u64 = 3;
/// Messages with payload that are not acknowledged.
const KEPT: usize = 3;
const STATES: usize = 3_000_000;

/// The rule that is left out: each must be found wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    /// All rules hold.
    Nothing,
    /// Withdrawn says where the sink is, not where the source is.
    Position,
    /// Answers that are late count.
    Voiding,
    /// Answers that are pending when Withdrawn comes are sent.
    TakingBack,
    /// The program has its memory back, and the peer can read it still.
    Deregistration,
    /// Bytes that were read and not reported are not skipped on the carrier.
    Skipping,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    source: ZcopySource,
    sink: ZcopySink,
    pending: PendingControl,
    /// The acknowledgement that the sender of answers has read.
    poster: Option<Ack>,
    back: Source,
    back_sink: Sink,
    told: u32,
    to_sink: Vec<Packet>,
    to_source: Vec<Message>,
    /// First units of memory that the peer can read; and of memory that the program has back.
    live: Vec<u64>,
    ended: Vec<u64>,
    /// A READ under way: its unit, its memory, and whether that was there when it began.
    read: Option<(u64, u32, bool)>,
    got: u64,
    /// Messages that are not acknowledged, and their units.
    kept: Vec<(u32, u64)>,
    is_dead: bool,
    carrier: Option<u64>,
}

struct Half {
    calls: u64,
    without: Without,
}

impl State {
    fn post(&mut self, made: Result<Outgoing, Hold>) -> Option<Message> {
        let outgoing = made.ok()?;
        let at = self.source.plain().position();
        self.source.commit(&outgoing);
        let message = *outgoing.message();
        if message.payload_len() != 0 {
            self.kept.push((message.header.mseq, at));
        }
        self.to_sink.push(Packet { message, at });
        Some(message)
    }

    fn reply(&mut self, outgoing: &Outgoing) {
        self.back.commit(outgoing);
        self.told = outgoing.message().header.mseq_ack;
        if !self.is_dead {
            self.to_source.push(*outgoing.message());
        }
    }

    fn deliver(&mut self, unit: u64) -> Result<(), String> {
        if unit != self.got {
            return Err(format!("unit {unit} delivered, {} was due", self.got));
        }
        self.got += 1;
        Ok(())
    }

    fn collect(&mut self) {
        if let Some(answer) = self.sink.next_answer(self.pending) {
            self.pending = self.pending.add(answer).expect("one at a time");
        }
    }

    /// The call that advertised from `unit` on has ended.
    fn end_memory(&mut self, without: Without) {
        let live = std::mem::take(&mut self.live);
        self.ended.extend(&live);
        if without == Without::Deregistration {
            self.live = live;
        }
    }

    fn take_reply(&mut self, without: Without) -> Result<(), String> {
        let message = self.to_source.remove(0);
        let broken = |violation| format!("{violation}");
        self.source.learn(message.header.credit()).map_err(broken)?;
        let acked = self.source.plain().acked();
        self.kept.retain(|(mseq, _)| mseq.wrapping_sub(acked) as i32 > 0);
        let action = self.back_sink.handle(&message).map_err(broken)?;
        if let SinkAction::ForSource(input) = action {
            let late = without == Without::Voiding;
            let last = self.source.plain().last_mseq();
            let mseq_ack = if late { last } else { message.header.mseq_ack };
            self.source.handle(&input, mseq_ack).map_err(broken)?;
            if !self.source.is_advertised() && !self.live.is_empty() {
                self.live.clear();
            }
        }
        Ok(())
    }

    fn take(&mut self, without: Without) -> Result<(), String> {
        let mut packet = self.to_sink.remove(0);
        if let (Body::Withdrawn { .. }, Without::Position) = (packet.message.body, without) {
            let position = self.sink.plain().position();
            packet.message.body = Body::Withdrawn { position };
        }
        let action = self.sink.handle(&packet.message).map_err(|broken| broken.to_string())?;
        match action {
            SinkAction::Deliver(_) | SinkAction::Advertised(Some(_)) => self.deliver(packet.at)?,
            SinkAction::Cancelled => {
                if let Some(rest) = self.pending.without_send_sm() {
                    self.pending = rest;
                    self.sink.owe_send_sm();
                }
            }
            SinkAction::Withdrawn if without != Without::TakingBack => {
                self.pending = self.pending.without_answers();
            }
            _ => {}
        }
        self.collect();
        Ok(())
    }
}

impl Half {
    fn total(&self) -> u64 {
        self.calls * CALL
    }

    fn source_steps(&self, state: &State, to: &mut Vec<Step<State>>) {
        let position = state.source.plain().position();
        let ack = Ack::implicit(0);
        let mut post = |name, made: Result<Outgoing, Hold>, prepare: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            prepare(&mut next);
            if next.post(made).is_some() {
                to.push((name, Ok(next)));
            }
        };
        if state.kept.len() < KEPT && position < self.total() {
            post("Data", state.source.next_data(ack, 1), &|_| {});
            if position.is_multiple_of(CALL) {
                let slice = RemoteSlice { addr: position, len: CALL as u32, rkey: Rkey(1) };
                let made = state.source.advertise(ack, slice, 1);
                post("SrcAvail", made, &|next| next.live.push(position));
            }
        }
        post("SrcAvailCancel", state.source.cancel(ack), &|_| {});
        post("Withdrawn", state.source.withdraw(ack), &|next| next.end_memory(self.without));
    }

    fn sink_steps(&self, state: &State, to: &mut Vec<Step<State>>) {
        let mut go = |name, step: &dyn Fn(&mut State) -> Result<bool, String>| {
            let mut next = state.clone();
            match step(&mut next) {
                Ok(true) => to.push((name, Ok(next))),
                Ok(false) => {}
                Err(what) => to.push((name, Err(what))),
            }
        };
        let is_alive = state.carrier.is_none();
        if !state.to_sink.is_empty() && is_alive {
            go("the sink takes", &|next| next.take(self.without).map(|()| true));
        }
        if state.read.is_none() && is_alive && !state.is_dead {
            go("READ begins", &|next| {
                let Some(slice) = next.sink.next_read(1) else { return Ok(false) };
                next.sink.read_posted(1);
                let base = slice.addr - slice.addr % CALL;
                next.read = Some((slice.addr, base as u32, next.live.contains(&base)));
                Ok(true)
            });
            go("it refuses", &|next| {
                let before = next.clone();
                next.sink.refuse();
                next.collect();
                Ok(*next != before)
            });
        }
        if let Some((unit, base, is_there)) = state.read {
            go("READ ends", &|next| {
                next.read = None;
                let base = u64::from(base);
                if next.is_dead || !is_there || !next.live.contains(&base) {
                    next.is_dead = true;
                    return Ok(true);
                }
                if next.ended.contains(&base) {
                    return Err("READ of memory that was given back".to_owned());
                }
                if next.sink.read_done(1) {
                    next.deliver(unit)?;
                }
                next.sink.report();
                next.collect();
                Ok(true)
            });
        }
        if is_alive && !state.is_dead && state.to_source.len() < 2 {
            self.answer_steps(state, to);
        }
    }

    /// The sender of answers reads the acknowledgement first, and takes what is pending then.
    fn answer_steps(&self, state: &State, to: &mut Vec<Step<State>>) {
        let mut next = state.clone();
        match state.poster {
            None if !state.pending.is_nothing() => {
                next.poster = Some(state.sink.ack(0));
                to.push(("it reads the acknowledgement", Ok(next)));
            }
            None if state.sink.ack(0).mseq_ack != state.told => {
                let update = state.back.room_update(state.sink.ack(0)).expect("implicit credits");
                next.reply(&update);
                to.push(("acknowledgement", Ok(next)));
            }
            None => {}
            Some(ack) => {
                next.poster = None;
                if let Ok(answer) = state.back.next_control(ack, state.pending) {
                    next.pending = state.pending.without(answer.settles());
                    next.reply(&answer);
                    next.collect();
                }
                to.push(("answer", Ok(next)));
            }
        }
    }

    fn death_steps(&self, state: &State, to: &mut Vec<Step<State>>) {
        if !state.is_dead {
            to.push(("the queue pair dies", Ok(State { is_dead: true, ..state.clone() })));
            return;
        }
        if state.carrier.is_none() {
            if !state.to_sink.is_empty() {
                let mut next = state.clone();
                next.to_sink.pop();
                to.push(("the last message never arrived", Ok(next)));
            }
            for replies in 0..=state.to_source.len() {
                let mut next = state.clone();
                let taken = (0..replies).try_for_each(|_| next.take_reply(self.without));
                let first = next.kept.first().map_or(u64::MAX, |(_, unit)| *unit);
                next.carrier = Some(first.min(next.source.plain().position()));
                next.to_source.clear();
                next.live.clear();
                to.push(("resume", taken.map(|()| next)));
            }
            return;
        }
        if state.read.is_some() {
            return;
        }
        let mut next = state.clone();
        let acked = state.source.plain().acked();
        // What is acknowledged is in the inbox, and taken before the marker is followed.
        let is_acked = |packet: &Packet| packet.message.header.mseq.wrapping_sub(acked) as i32 <= 0;
        if state.to_sink.first().is_some_and(is_acked) {
            let taken = next.take(self.without);
            to.push(("the inbox", taken.map(|()| next)));
            return;
        }
        let Some(unit) = state.carrier.filter(|unit| *unit < self.total()) else { return };
        next.to_sink.clear();
        next.carrier = Some(unit + 1);
        let is_known = unit < state.got && self.without != Without::Skipping;
        let carried = if is_known { Ok(()) } else { next.deliver(unit) };
        to.push(("the carrier", carried.map(|()| next)));
    }
}

impl Model for Half {
    type State = State;

    fn start(&self) -> State {
        let (source, sink) = halves(Credits::Implicit);
        let config = SourceConfig::implicit(RECEIVE);
        let (_, back_sink) = halves(Credits::Implicit);
        State {
            source,
            sink,
            pending: PendingControl::NOTHING,
            poster: None,
            back: Source::new(&config),
            back_sink: *back_sink.plain(),
            told: 0,
            to_sink: Vec::new(),
            to_source: Vec::new(),
            live: Vec::new(),
            ended: Vec::new(),
            read: None,
            got: 0,
            kept: Vec::new(),
            is_dead: false,
            carrier: None,
        }
    }

    fn steps(&self, state: &State, to: &mut Vec<Step<State>>) {
        if !state.is_dead {
            self.source_steps(state, to);
            if !state.to_source.is_empty() {
                let mut next = state.clone();
                let taken = next.take_reply(self.without);
                to.push(("the source takes", taken.map(|()| next)));
            }
        }
        self.sink_steps(state, to);
        if state.got < self.total() || state.is_dead {
            self.death_steps(state, to);
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if state.got > self.total() { Err("more than was sent".to_owned()) } else { Ok(()) }
    }

    fn may_rest(&self, state: &State) -> Result<(), String> {
        if state.got == self.total() { Ok(()) } else { Err(format!("stuck at {}", state.got)) }
    }
}

fn verdict(calls: u64, without: Without) -> Verdict {
    explore(&Half { calls, without }, STATES)
}

#[test]
fn every_schedule_delivers_each_byte_once() {
    let is_long = std::env::var_os("SDP_MODELS").is_some_and(|size| size == "long");
    match verdict(if is_long { 2 } else { 1 }, Without::Nothing) {
        Verdict::Holds(Explored { states, depth, .. }) => {
            println!("{states} states, {depth} deep");
            assert!(states > 2_000, "{states} states");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_rule_that_is_left_out_is_found() {
    use Without::{Deregistration, Position, Skipping, TakingBack, Voiding};
    for without in [Position, Voiding, TakingBack, Deregistration, Skipping] {
        match verdict(2, without) {
            Verdict::Fails(violation, _) => {
                println!("{without:?}: {} steps", violation.way.len());
            }
            other => panic!("{without:?}: {other:?}"),
        }
    }
}

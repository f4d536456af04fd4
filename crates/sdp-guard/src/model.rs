//! All schedules of one half: two lanes without a common order, a queue pair that may die at any
//! moment unseen, a consumer that may leave or fold. The producer and the consumer are the real
//! ones; a unit of payload is one byte, whose value is its stream position.

use sdp_model::{Model, Size, Step, fails, holds, size};

use crate::{
    consumer::{Arrival, Consumer, Head, Next},
    marker::Marker,
    producer::{Lane, Link, Piece, Producer, Switch},
};

const WINDOW: usize = 3;

/// The rules that are broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    NoGuard,
    ResumeAtPosted,
    DeviceAcknowledges,
    NoSkip,
    NoHold,
    LateAcknowledgement,
    ReturnBeforeInbox,
    FoldAcknowledges,
    ReturnsDelivered,
    ReturnsWhereItAsked,
    ReturnsAtOnce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Stays,
    Leaves,
    /// Leaves, and may read on before the answer has come.
    ReadsOn,
    Folds,
}

#[derive(Debug, Clone, Copy)]
struct Half {
    wrong: Wrong,
    ending: Ending,
    units: u64,
    switches: u32,
    meetings: u32,
    window: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    Switch(Switch),
    Data(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Item {
    Payload(u64),
    Marker(Marker),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Word {
    Leave,
    Dead,
    Return(u64, Vec<u64>),
}

#[derive(Debug, Clone, Hash)]
struct State {
    producer: Producer<WINDOW>,
    /// The bytes that are kept, each at its stream position, as far as there is room.
    ring: [Option<u64>; WINDOW],
    mseq: u32,
    switches: u32,
    returned: Vec<u64>,
    meetings: u32,
    alive: bool,
    wire: Vec<(u32, Message)>,
    acks: Vec<u32>,
    arrival: Arrival,
    received: u32,
    inbox: Vec<(Head, u64)>,
    carrier: Vec<Item>,
    consumer: Consumer,
    delivered: u64,
    unread: Vec<u64>,
    to_producer: Vec<Word>,
    asked: bool,
    /// Where it asked, of an end that reads on.
    reads_on_from: Option<u64>,
    returned_all: bool,
    folded: bool,
}

type Result<T = ()> = std::result::Result<T, String>;

fn text<E: std::fmt::Debug>(error: E) -> String {
    format!("{error:?}")
}

impl State {
    fn free(&mut self) {
        self.producer.free();
        // What is not kept may be written over at any time.
        let from = self.producer.unacknowledged_from();
        self.ring.iter_mut().for_each(|kept| *kept = kept.filter(|unit| *unit >= from));
    }

    fn deliver(&mut self, unit: u64) -> Result {
        if self.consumer.is_leaving() {
            self.unread.push(unit);
            return Ok(());
        }
        if unit != self.delivered {
            return Err(format!("unit {unit} delivered, {} was due", self.delivered));
        }
        self.delivered += 1;
        Ok(())
    }

    fn post(&mut self, message: Message) {
        if self.alive {
            self.wire.push((self.mseq, message));
        }
    }

    fn write_marker(&mut self, marker: Marker) {
        self.carrier.push(Item::Marker(marker));
        self.producer.wrote_marker();
    }

    fn write_piece(&mut self) -> Result {
        match self.producer.next_piece().ok_or("nothing kept of what is unacknowledged")? {
            Piece::Marker(marker) => self.write_marker(marker),
            Piece::Returned { .. } => {
                let unit = self.returned.remove(0);
                self.carrier.push(Item::Payload(unit));
                self.producer.wrote_backlog(1);
            }
            Piece::Kept { stream, .. } => {
                let is_it = |kept: &&Option<u64>| **kept == Some(stream);
                let unit = self.ring.iter().find(is_it).copied().flatten();
                let unit = unit.ok_or("bytes were forgotten")?;
                self.carrier.push(Item::Payload(unit));
                self.producer.wrote_backlog(1);
            }
        }
        self.free();
        Ok(())
    }

    fn arrives(&mut self) -> Result {
        let (mseq, message) = self.wire.remove(0);
        if self.folded {
            // The owner drops it, and says nothing.
            return Ok(());
        }
        let entry = match message {
            Message::Switch(switch) => (self.arrival.switch(switch).map_err(text)?, 0),
            Message::Data(unit) => (self.arrival.data(1).map_err(text)?, unit),
        };
        self.inbox.push(entry);
        self.received = mseq;
        Ok(())
    }
}

impl Half {
    fn producer_steps(&self, s: &State, add: &mut dyn FnMut(&'static str, Act<'_>)) {
        let p = &s.producer;
        let more = p.stream() < self.units;
        if p.backlog().is_some() {
            add("writes backlog", &|s| s.write_piece());
        }
        if p.may_write().is_ok() && more {
            add("payload on the carrier", &|s| {
                s.carrier.push(Item::Payload(s.producer.stream()));
                s.producer.wrote(1);
                Ok(())
            });
        }
        let may_switch = p.lane() == Lane::Kernel && p.link() == Link::Up && p.backlog().is_none();
        if may_switch && s.switches + 2 <= self.switches {
            add("LaneSwitch", &|s| {
                let switch = s.producer.switch_to_sdp().map_err(text)?;
                s.mseq += 1;
                s.switches += 2;
                s.post(Message::Switch(switch));
                s.producer.posted_control(s.mseq);
                Ok(())
            });
        }
        let has_room = p.stream() - p.unacknowledged_from() < self.window as u64;
        if p.may_post().is_ok() && has_room && more {
            add("payload by SDP", &|s| {
                let unit = s.producer.stream();
                s.mseq += 1;
                s.ring[unit as usize % self.window] = Some(unit);
                s.post(Message::Data(unit));
                s.producer.posted(s.mseq, 1).map_err(text)
            });
        }
        if p.lane() == Lane::Sdp {
            add("resumes", &|s| {
                if self.wrong == Wrong::ResumeAtPosted {
                    s.producer.acknowledge(s.mseq).map_err(text)?;
                }
                s.producer.resume().map(|_| s.free()).map_err(text)
            });
        }
        if p.link() == Link::Up && !s.alive {
            add("learns of the death", &|s| {
                s.producer.link_died();
                Ok(())
            });
        }
        self.producer_reads(s, add);
    }

    /// The producer reads what the consumer has said.
    fn producer_reads(&self, s: &State, add: &mut dyn FnMut(&'static str, Act<'_>)) {
        let p = &s.producer;
        match s.to_producer.first() {
            Some(Word::Dead) => add("reads DEAD", &|s| {
                s.to_producer.remove(0);
                s.producer.link_died();
                Ok(())
            }),
            Some(Word::Leave) if p.backlog().is_none() => add("reads LEAVE", &|s| {
                s.to_producer.remove(0);
                if self.wrong == Wrong::NoHold {
                    if s.producer.lane() == Lane::Sdp {
                        s.producer.resume().map_err(text)?;
                        while s.producer.backlog().is_some() {
                            s.write_piece()?;
                        }
                    }
                    let raw = s.producer.go_raw().map_err(text)?;
                    s.write_marker(raw);
                    return Ok(());
                }
                let raw = s.producer.hold().map_err(text)?;
                s.write_marker(raw);
                Ok(())
            }),
            Some(Word::Return(..)) => add("reads RETURN", &|s| {
                let Word::Return(from, units) = s.to_producer.remove(0) else { return Ok(()) };
                if self.wrong == Wrong::NoHold {
                    s.carrier.extend(units.into_iter().map(Item::Payload));
                    return Ok(());
                }
                let len = units.len() as u32;
                s.producer.returned(from, len).map_err(text)?;
                s.returned = units;
                s.free();
                Ok(())
            }),
            _ => {}
        }
    }

    fn link_steps(&self, s: &State, add: &mut dyn FnMut(&'static str, Act<'_>)) {
        let p = &s.producer;
        if !s.alive {
            let ready = p.lane() == Lane::Kernel && p.link() != Link::Up && p.backlog().is_none();
            if ready && s.meetings < self.meetings && !s.asked && !s.folded {
                add("meets", &|s| {
                    s.producer.link_destroyed();
                    s.free();
                    s.producer.met().map_err(text)?;
                    s.meetings += 1;
                    (s.alive, s.mseq, s.received, s.arrival) = (true, 0, 0, Arrival::default());
                    Ok(())
                });
            }
            return;
        }
        add("dies", &|s| {
            s.alive = false;
            s.wire.clear();
            s.acks.clear();
            Ok(())
        });
        if let Some((mseq, _)) = s.wire.first().copied() {
            add("arrives", &State::arrives);
            if self.wrong == Wrong::DeviceAcknowledges {
                add("acknowledged by the device, which fails", &|s| {
                    s.producer.acknowledge(mseq).map_err(text)?;
                    s.free();
                    s.alive = false;
                    s.wire.clear();
                    s.acks.clear();
                    Ok(())
                });
            }
            if self.wrong == Wrong::FoldAcknowledges && s.folded {
                add("arrives, dropped, acknowledged", &|s| {
                    s.wire.remove(0);
                    s.producer.acknowledge(mseq).map_err(text)
                });
            }
        }
        let may = (!s.returned_all || self.wrong == Wrong::LateAcknowledgement) && !s.folded;
        if s.received != 0 && s.acks.is_empty() && may {
            add("acknowledges", &|s| {
                s.acks.push(s.received);
                Ok(())
            });
        }
        if !s.acks.is_empty() {
            add("acknowledgement arrives", &|s| {
                let mseq = s.acks.remove(0);
                s.producer.acknowledge(mseq).map_err(text)?;
                s.free();
                Ok(())
            });
        }
    }

    fn make_return(&self, s: &mut State) -> Result {
        let (mut from, len) = s.consumer.make_return().ok_or("RETURN cannot be made")?;
        let mut units = std::mem::take(&mut s.unread);
        if units.len() as u64 != len {
            return Err("RETURN's length is wrong".to_owned());
        }
        match (self.wrong, s.reads_on_from) {
            // It was delivered.
            (Wrong::ReturnsDelivered, Some(asked)) => {
                (units, from) = ((asked..from).collect(), asked);
            }
            (Wrong::ReturnsWhereItAsked, Some(asked)) => from = asked,
            _ => {}
        }
        s.to_producer.push(Word::Return(from, units));
        s.inbox.clear();
        s.returned_all = true;
        Ok(())
    }

    fn consume(&self, s: &mut State) -> Result {
        match s.consumer.next(s.inbox.first().map(|(head, _)| *head)).map_err(text)? {
            Next::Take(_) if self.wrong == Wrong::ReturnBeforeInbox && s.consumer.is_raw() => {
                self.make_return(s)
            }
            Next::Take(_) => {
                let (_, unit) = s.inbox.remove(0);
                s.deliver(unit)?;
                s.consumer.took(1);
                Ok(())
            }
            Next::Void | Next::Followed => {
                s.inbox.remove(0);
                Ok(())
            }
            Next::Return => self.make_return(s),
            Next::Carrier(_) => {
                if s.carrier.is_empty() {
                    return Ok(());
                }
                match s.carrier.remove(0) {
                    Item::Payload(unit) => {
                        let skip = s.consumer.read(1).map_err(text)?.skip;
                        if skip == 0 || self.wrong == Wrong::NoSkip {
                            s.deliver(unit)
                        } else {
                            Ok(())
                        }
                    }
                    Item::Marker(_) if s.consumer.is_raw() => {
                        Err("marker to a reader that knows nothing".to_owned())
                    }
                    Item::Marker(marker) => {
                        if self.wrong == Wrong::NoGuard && !s.consumer.is_on_sdp() {
                            return Err("marker delivered as payload".to_owned());
                        }
                        if marker.carrier != s.consumer.carrier() {
                            return Err("the marker says another place".to_owned());
                        }
                        s.consumer.marker(marker).map_err(text)
                    }
                }
            }
        }
    }

    fn consumer_steps(&self, s: &State, add: &mut dyn FnMut(&'static str, Act<'_>)) {
        let mut seen = s.consumer.clone();
        let nothing =
            matches!(seen.next(s.inbox.first().map(|(head, _)| *head)), Ok(Next::Carrier(_)));
        if !(nothing && s.carrier.is_empty()) {
            add("consumes", &|s| self.consume(s));
        }
        if self.ending == Ending::ReadsOn && s.consumer.is_leaving() && !s.consumer.is_return_due()
        {
            add("reads on", &|s| {
                s.reads_on_from = Some(s.consumer.taken() - s.consumer.undelivered());
                s.consumer.read_on();
                // Nothing comes off the queue pair any more: it is dead, and its messages lie in
                // the inbox.
                for unit in std::mem::take(&mut s.unread) {
                    s.deliver(unit)?;
                }
                if self.wrong == Wrong::ReturnsAtOnce {
                    s.to_producer.push(Word::Return(s.consumer.taken(), Vec::new()));
                    s.returned_all = true;
                }
                Ok(())
            });
        }
        if s.meetings != 0 && !s.asked && !s.folded {
            match self.ending {
                Ending::Stays => {}
                Ending::Leaves | Ending::ReadsOn => add("LEAVE", &|s| {
                    s.consumer.leave();
                    s.asked = true;
                    s.to_producer.push(Word::Leave);
                    Ok(())
                }),
                Ending::Folds => add("folds", &|s| {
                    s.folded = true;
                    s.acks.clear();
                    s.to_producer.push(Word::Dead);
                    Ok(())
                }),
            }
        }
    }
}

type Act<'a> = &'a dyn Fn(&mut State) -> Result;

impl Model for Half {
    type State = State;

    fn start(&self) -> State {
        State {
            producer: Producer::new(0),
            ring: [None; WINDOW],
            mseq: 0,
            switches: 0,
            returned: Vec::new(),
            meetings: 0,
            alive: false,
            wire: Vec::new(),
            acks: Vec::new(),
            arrival: Arrival::default(),
            received: 0,
            inbox: Vec::new(),
            carrier: Vec::new(),
            consumer: Consumer::new(0),
            delivered: 0,
            unread: Vec::new(),
            to_producer: Vec::new(),
            asked: false,
            reads_on_from: None,
            returned_all: false,
            folded: false,
        }
    }

    fn steps(&self, state: &State, to: &mut Vec<Step<State>>) {
        let mut add = |name, act: Act<'_>| {
            let mut next = state.clone();
            to.push((name, act(&mut next).map(|()| next)));
        };
        self.producer_steps(state, &mut add);
        self.link_steps(state, &mut add);
        self.consumer_steps(state, &mut add);
    }

    fn check(&self, _: &State) -> Result {
        Ok(())
    }

    fn may_rest(&self, state: &State) -> Result {
        if state.delivered == self.units {
            return Ok(());
        }
        Err(format!("stuck at {} of {}", state.delivered, self.units))
    }
}

const LIMIT: usize = 6_000_000;

fn half(wrong: Wrong, ending: Ending) -> Half {
    let (units, switches, meetings, window) = match (size(), ending) {
        (Size::Unit, Ending::ReadsOn) => (2, 4, 1, 1),
        (Size::Unit, _) => (2, 4, 2, 1),
        (Size::Ci, Ending::ReadsOn) => (2, 4, 2, 1),
        (Size::Long, Ending::ReadsOn) => (3, 4, 1, 2),
        (Size::Ci, _) => (3, 4, 2, 2),
        (Size::Long, Ending::Stays) => (4, 4, 2, 3),
        (Size::Long, _) => (3, 4, 2, 3),
    };
    Half { wrong, ending, units, switches, meetings, window }
}

#[test]
fn a_half_delivers_each_byte_once() {
    holds("guard", &half(Wrong::Nothing, Ending::Stays), LIMIT);
}

#[test]
fn a_consumer_may_leave() {
    holds("guard, leaving", &half(Wrong::Nothing, Ending::Leaves), LIMIT);
}

#[test]
fn a_consumer_that_leaves_may_read_on() {
    holds("guard, reading on", &half(Wrong::Nothing, Ending::ReadsOn), LIMIT);
}

#[test]
fn a_child_may_fold() {
    holds("guard, folding", &half(Wrong::Nothing, Ending::Folds), LIMIT);
}

#[test]
fn wrong_halves_are_noticed() {
    let wrongs = [
        (Wrong::NoGuard, Ending::Stays),
        (Wrong::ResumeAtPosted, Ending::Stays),
        (Wrong::DeviceAcknowledges, Ending::Stays),
        (Wrong::NoSkip, Ending::Stays),
        (Wrong::NoHold, Ending::Leaves),
        (Wrong::LateAcknowledgement, Ending::Leaves),
        (Wrong::ReturnBeforeInbox, Ending::Leaves),
        (Wrong::FoldAcknowledges, Ending::Folds),
        (Wrong::ReturnsDelivered, Ending::ReadsOn),
        (Wrong::ReturnsWhereItAsked, Ending::ReadsOn),
        (Wrong::ReturnsAtOnce, Ending::ReadsOn),
    ];
    for (wrong, ending) in wrongs {
        fails(&format!("guard, {wrong:?}"), &half(wrong, ending), LIMIT);
    }
}

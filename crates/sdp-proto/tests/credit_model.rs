//! Every schedule of two ends with few buffers: none is stuck, none talks for ever.
//!
//! The model is the engine itself: a state is both ends' packed words, the messages in flight, and
//! the bytes that the programs have not read. From the first state all states that any order of
//! steps can reach are visited; where no step is left, everything must have been delivered.

use sdp_proto::{
    Credits, Outgoing, PeerCredit, PendingControl, Sink, SinkAction, Source,
    connection::setup::{Local, Remote},
    wire::Message,
};
use std::collections::{HashSet, VecDeque};

#[derive(Clone, PartialEq, Eq, Hash)]
struct End {
    source: [u64; Source::WORDS],
    sink: [u64; Sink::WORDS],
    /// Receive buffers that hold nothing.
    free: u16,
    /// Messages to this end, headers only, with the payload's length.
    wire: VecDeque<(Vec<u8>, u32)>,
    /// How many of the messages in flight hold a buffer already.
    arrived: u16,
    unread: u16,
    to_write: u32,
    to_read: u32,
    /// Control messages that the end has to send, at any time.
    to_answer: u32,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    ends: [End; 2],
    /// Whether the programs read. If not, payload may wait for ever, but control must not.
    has_readers: bool,
}

/// The programs' actions.
#[derive(Debug, Clone, Copy)]
struct Plan {
    bufs: u16,
    writes: [u32; 2],
    answers: [u32; 2],
    has_readers: bool,
}

const PAYLOAD: u32 = 21;

impl World {
    fn new(plan: &Plan) -> Self {
        let bufs = plan.bufs;
        let receive_size = 16 + PAYLOAD;
        let local = Local {
            credits: Credits::Explicit,
            bufs,
            receive_size,
            lane_messages: false,
            zcopy: false,
            ring: None,
        };
        let remote =
            Remote { bufs, receive_size, max_adverts: 1, lane_messages: false, ring: None };
        let end = |side: usize| {
            let (source, sink) = local.halves(&remote);
            End {
                source: source.to_words(),
                sink: sink.to_words(),
                free: bufs,
                wire: VecDeque::new(),
                arrived: 0,
                unread: 0,
                to_write: plan.writes[side],
                to_read: plan.writes[1 - side],
                to_answer: plan.answers[side],
            }
        };
        Self { ends: [end(0), end(1)], has_readers: plan.has_readers }
    }

    /// Everything that an end may send now: programs write and answer when they like.
    fn outgoing(&self, side: usize) -> [Option<Outgoing>; 3] {
        let end = &self.ends[side];
        let source = Source::from_words(&end.source).unwrap();
        let sink = Sink::from_words(&end.sink).unwrap();
        let ack = sink.ack(end.free + end.arrived);
        let pending =
            if end.to_answer == 0 { PendingControl::NOTHING } else { PendingControl::SEND_SM };
        let want = if end.to_write == 0 { 0 } else { PAYLOAD };
        let answer = source.next_control(ack, pending).ok().filter(|_| end.to_answer != 0);
        [answer, source.next_data(ack, want).ok(), source.credit_update(ack).ok()]
    }

    /// The message that an end sends after a while without events.
    fn late(&self, side: usize) -> Option<Outgoing> {
        let end = &self.ends[side];
        let source = Source::from_words(&end.source).unwrap();
        let sink = Sink::from_words(&end.sink).unwrap();
        source.late_update(sink.ack(end.free + end.arrived)).ok()
    }

    fn transmit(&self, side: usize, message: Option<Outgoing>) -> Option<Self> {
        let message = message?;
        let mut next = self.clone();
        let mut source = Source::from_words(&next.ends[side].source).unwrap();
        source.commit(&message);
        next.ends[side].source = source.to_words();
        if message.payload_len() != 0 {
            next.ends[side].to_write -= 1;
        }
        if !message.settles().is_nothing() {
            next.ends[side].to_answer -= 1;
        }
        next.ends[1 - side].wire.push_back((message.header().to_vec(), message.payload_len()));
        Some(next)
    }

    fn arrive(&self, side: usize) -> Option<Self> {
        let end = &self.ends[side];
        if usize::from(end.arrived) == end.wire.len() {
            return None;
        }
        assert_ne!(end.free, 0, "a message without a receive buffer for it");
        let mut next = self.clone();
        next.ends[side].free -= 1;
        next.ends[side].arrived += 1;
        Some(next)
    }

    fn handle(&self, side: usize) -> Option<Self> {
        if self.ends[side].arrived == 0 {
            return None;
        }
        let mut next = self.clone();
        let end = &mut next.ends[side];
        let (header, payload) = end.wire.pop_front().unwrap();
        let message = Message::parse(&header, 16 + payload).unwrap();
        let mut source = Source::from_words(&end.source).unwrap();
        let mut sink = Sink::from_words(&end.sink).unwrap();
        let credit: PeerCredit = message.header.credit();
        source.learn(credit).unwrap();
        end.arrived -= 1;
        match sink.handle(&message).unwrap() {
            SinkAction::Deliver(_) => end.unread += 1,
            SinkAction::Nothing | SinkAction::ForSource(_) => end.free += 1,
            other => panic!("{other:?}"),
        }
        end.source = source.to_words();
        end.sink = sink.to_words();
        Some(next)
    }

    fn read(&self, side: usize) -> Option<Self> {
        if self.ends[side].unread == 0 || !self.has_readers {
            return None;
        }
        let mut next = self.clone();
        let end = &mut next.ends[side];
        end.unread -= 1;
        end.to_read -= 1;
        end.free += 1;
        Some(next)
    }
}

/// Late updates that an explored schedule may contain.
const LATE_MAX: u32 = 3;
/// Late updates one after the other after which a waiting end must have got on.
const LATE_ROUNDS: u32 = 6;
/// More messages than any schedule of so few payloads needs: beyond it, ends talk for ever.
const MESSAGES_MAX: u32 = 40;

impl World {
    fn steps(&self, side: usize) -> Vec<(Self, String)> {
        let mut steps = Vec::new();
        for message in self.outgoing(side).into_iter().flatten() {
            let next = self.transmit(side, Some(message)).unwrap();
            steps.push((next, format!("{side} sends {}", message.message())));
        }
        let others = [
            (self.arrive(side), "gets"),
            (self.handle(side), "handles"),
            (self.read(side), "reads"),
        ];
        for (next, what) in others {
            steps.extend(next.map(|next| (next, format!("{side} {what}"))));
        }
        steps
    }

    fn is_complete(&self) -> bool {
        self.ends.iter().all(|end| {
            let has_payload = end.to_write != 0 || end.to_read != 0;
            end.to_answer == 0 && !(self.has_readers && has_payload)
        })
    }

    /// Lets everything happen that needs no time.
    fn settle(mut self) -> Self {
        let mut bound = 1000;
        while let Some((next, _)) = (0..2).find_map(|side| self.steps(side).into_iter().next()) {
            self = next;
            bound -= 1;
            assert_ne!(bound, 0, "no end to updates");
        }
        self
    }

    /// Whether late updates alone, the first by `side`, bring everything through.
    fn completes_from(&self, side: usize) -> bool {
        let mut world = self.clone();
        for round in 0..LATE_ROUNDS as usize {
            if world.is_complete() {
                return true;
            }
            let turn = (side + round) % 2;
            if let Some(next) = world.transmit(turn, world.late(turn)) {
                world = next.settle();
            }
        }
        world.is_complete()
    }
}

/// A state, the one it was reached from, by which step, and the late updates on the way.
struct Visit {
    world: World,
    from: usize,
    what: String,
    lates: u32,
}

/// How a state was reached, for the message of a failure.
fn story(visits: &[Visit], mut at: usize) -> String {
    let mut steps = Vec::new();
    while at != 0 {
        steps.push(visits[at].what.clone());
        at = visits[at].from;
    }
    steps.reverse();
    steps.join("\n")
}

/// Visits everything; the number of states and the highest sequence number seen.
fn explore(plan: &Plan) -> (usize, u32) {
    let first = World::new(plan);
    let mut seen = HashSet::from([first.clone()]);
    let mut visits = vec![Visit { world: first, from: 0, what: String::new(), lates: 0 }];
    let mut highest = 0;
    let mut at = 0;
    while at < visits.len() {
        let (world, lates) = (visits[at].world.clone(), visits[at].lates);
        let mut nexts = Vec::new();
        for side in 0..2 {
            let mseq = Source::from_words(&world.ends[side].source).unwrap().last_mseq();
            highest = highest.max(mseq);
            assert!(mseq <= MESSAGES_MAX, "{plan:?}: no end to updates\n{}", story(&visits, at));
            nexts.extend(world.steps(side).into_iter().map(|(next, what)| (next, what, lates)));
        }
        if nexts.is_empty() {
            for side in 0..2 {
                assert!(
                    world.completes_from(side),
                    "{plan:?}: somebody waits for ever\n{}",
                    story(&visits, at)
                );
                if lates < LATE_MAX
                    && let Some(next) = world.transmit(side, world.late(side))
                {
                    nexts.push((next, format!("{side} sends late"), lates + 1));
                }
            }
        }
        for (world, what, lates) in nexts {
            if seen.insert(world.clone()) {
                visits.push(Visit { world, from: at, what, lates });
            }
        }
        at += 1;
    }
    (seen.len(), highest)
}

fn explore_all(bufs: u16, has_readers: bool, cases: &[([u32; 2], [u32; 2])]) {
    for (writes, answers) in cases {
        let plan = Plan { bufs, writes: *writes, answers: *answers, has_readers };
        let (states, highest) = explore(&plan);
        println!("{plan:?}: {states} states, messages up to {highest}");
        assert!(highest > 0);
    }
}

#[test]
fn three_buffers_are_enough_in_every_schedule() {
    let writes = [[1, 0], [3, 0], [1, 1], [2, 1], [2, 2]];
    explore_all(3, true, &writes.map(|writes| (writes, [0, 0])));
}

#[test]
fn four_and_five_buffers_too() {
    for bufs in [4, 5] {
        explore_all(bufs, true, &[([4, 0], [0, 0]), ([2, 2], [0, 0])]);
    }
}

#[test]
fn control_never_waits_for_a_program_that_does_not_read() {
    for bufs in [3, 4] {
        let cases = [([1, 1], [1, 0]), ([1, 1], [1, 1]), ([2, 2], [1, 1]), ([2, 0], [2, 1])];
        explore_all(bufs, false, &cases);
    }
}

#[test]
fn control_beside_payload_blocks_nothing() {
    explore_all(3, true, &[([1, 1], [1, 1]), ([2, 1], [1, 1]), ([1, 0], [2, 2])]);
    explore_all(4, true, &[([1, 1], [1, 1])]);
}

//! A story: two ends in a world of their own, chosen by kind and seed.

use sdp_fabric_sim::{
    Credits, FaultOptions, Ratio, RnrRetry, SimFabric, SimId, World, WorldOptions,
    queue_pair::{CONTROL_BYTES, CONTROL_REQUESTS, window_bytes},
};
use sdp_fabric_tests::message::Random;
use sdp_proto::{
    connection::{end::Connection, setup::Local},
    wire::{Hello, HelloAck, hello::HELLO_ACK_LEN},
};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric},
};

use crate::end::{End, Outcome, Program};

/// Rounds of one story: many times the number that the longest takes. A bound for programs and
/// engines that move for ever.
const ROUNDS_MAX: usize = 1_000_000;
/// Times in a row that only the engine's own deadlines move anything.
const DEADLINES_MAX: usize = 1000;

/// The connection's fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Quiet,
    /// Everything is late.
    Slow,
    /// The active end does not read before it has sent everything.
    WriteFirst,
    /// The passive end's node dies.
    Kill,
    /// The passive end gives up.
    Abort,
    /// The fabric fails at random.
    Break,
}

/// Two ends, not yet told.
pub struct Story {
    kind: Kind,
    world: World,
    random: Random,
    ends: [End; 2],
}

impl Story {
    pub fn new(kind: Kind, seed: u64) -> Self {
        let mut random = Random::new(seed ^ ((kind as u64) << 32));
        let options = options(kind, &mut random);
        let world = World::new(random.next_u64(), options);
        let payload_max = local(&options).receive_size - 16;
        let [active, passive] = [1, 2].map(|stream| program(stream, payload_max, &mut random));
        let active = Program { writes_first: kind == Kind::WriteFirst, ..active };
        let ends = connect(&world, &local(&options), [active, passive]);
        Self { kind, world, random, ends }
    }

    pub fn world(&self) -> World {
        self.world.clone()
    }

    /// Tells the story to its end.
    pub fn tell(mut self) -> [Outcome; 2] {
        let mut moment = self.moment();
        let mut is_eager = false;
        let mut deadlines = 0;
        for round in 0..ROUNDS_MAX {
            if moment.take_if(|at| round >= *at).is_some() {
                self.strike();
            }
            if self.round(is_eager) {
                deadlines = 0;
                is_eager = false;
            } else if !is_eager {
                // Before time passes, programs that idle by chance may act.
                is_eager = true;
            } else if self.world.step() {
                deadlines = 0;
            } else if self.wait() {
                deadlines += 1;
                let ends = &self.ends;
                assert!(
                    deadlines < DEADLINES_MAX,
                    "only deadlines move:\n{}{:?}\n{:?}",
                    self.world.trace(),
                    ends[0].connection,
                    ends[1].connection
                );
            } else if moment.is_none() {
                return self.outcomes();
            } else {
                // All was over before the moment came.
                moment = Some(round);
            }
        }
        panic!("no end within {ROUNDS_MAX} rounds:\n{}", self.world.trace());
    }

    /// The round in which the kind's event happens. Some before anything is sent, some after all is
    /// over, most in between.
    fn moment(&mut self) -> Option<usize> {
        match self.kind {
            Kind::Kill | Kind::Abort => {
                let bound = 1 << self.random.below(10);
                Some(self.random.below(bound))
            }
            Kind::Quiet | Kind::Slow | Kind::WriteFirst | Kind::Break => None,
        }
    }

    fn strike(&mut self) {
        let passive = &mut self.ends[1];
        match self.kind {
            Kind::Kill => self.world.kill(passive.fabric.node()),
            _ => passive.abort(),
        }
    }

    /// One step of each living end and some steps of the world; whether anything moved.
    fn round(&mut self, is_eager: bool) -> bool {
        let now_ms = self.world.now_ns() / 1_000_000;
        let programs = [self.ends[0].program, self.ends[1].program];
        let mut moved = false;
        let first = self.random.below(2);
        for side in [first, 1 - first] {
            let end = &mut self.ends[side];
            if self.world.is_alive(end.fabric.node()) {
                moved |= end.turn(&mut self.random, is_eager, &programs[1 - side], now_ms);
                while end.fabric.poll_cm().is_some() {}
            }
        }
        // Sometimes nothing happens between two turns, sometimes much.
        for _ in 0..self.random.below(6) {
            moved |= self.world.step();
        }
        moved
    }

    /// Nothing moves by itself: goes to the next deadline of an engine. `false`: there is none.
    fn wait(&mut self) -> bool {
        let alive = self.ends.iter().filter(|end| self.world.is_alive(end.fabric.node()));
        let Some(deadline_ms) = alive.filter_map(End::deadline_ms).min() else { return false };
        let wait_ns = (deadline_ms * 1_000_000).saturating_sub(self.world.now_ns());
        self.world.run_for(wait_ns);
        true
    }

    fn outcomes(&self) -> [Outcome; 2] {
        let outcome = |side: usize| {
            let end = &self.ends[side];
            if !self.world.is_alive(end.fabric.node()) {
                return Outcome::Killed;
            }
            end.outcome(&self.ends[1 - side].program)
        };
        [outcome(0), outcome(1)]
    }
}

/// Geometry and faults.
fn options(kind: Kind, random: &mut Random) -> WorldOptions {
    // 37 is the least that the protocol allows: base header, longest extended header, one byte.
    let sizes = [37, 64, 116, 1000, 4096, 16_384 + 56];
    let message_bytes = sizes[random.below(sizes.len())];
    let credits = if random.one_in(3) {
        let least = window_bytes(message_bytes as usize) + CONTROL_BYTES;
        let window_bytes = least + random.below(16 * 1024) as u64;
        Credits::Implicit { window_bytes, message_bytes }
    } else {
        let spread = if random.one_in(2) { 3 } else { 60 };
        let buffers = 3 + random.below(spread) as u16;
        Credits::Explicit { buffers, buffer_bytes: message_bytes, rnr: RnrRetry::Times(0) }
    };
    let is_slow = kind == Kind::Slow || (kind != Kind::Quiet && random.one_in(2));
    let mut faults = if is_slow { FaultOptions::SLOW } else { FaultOptions::NONE };
    if kind == Kind::Break {
        faults.drop_connection = Ratio::per_million(5_000);
        faults.fail_queue_pair = Ratio::per_million(5_000);
        faults.destructive_max = 1;
    }
    let send_depth = CONTROL_REQUESTS + 1 + random.below(60);
    WorldOptions { credits, send_depth, faults, trace_lines: 200, ..WorldOptions::default() }
}

/// An end's parameters of the fabric for its peer.
fn local(options: &WorldOptions) -> Local {
    match options.credits {
        Credits::Implicit { message_bytes, .. } => Local::implicit(message_bytes),
        Credits::Explicit { buffers, buffer_bytes, .. } => Local {
            credits: sdp_proto::Credits::Explicit,
            bufs: buffers,
            receive_size: buffer_bytes,
            lane_messages: false,
            zcopy: false,
            ring: None,
        },
    }
}

/// Sizes that mean some hundred messages at most, so that hundreds of seeds take seconds.
fn program(stream: u64, payload_max: u32, random: &mut Random) -> Program {
    let most = (payload_max as usize * 300).min(100_000);
    let to_write = if random.one_in(8) { 0 } else { random.below(most + 1) as u64 };
    let piece_max = match random.below(3) {
        0 => 1 + random.below(50),
        1 => 1 + random.below(2 * payload_max as usize),
        _ => 1 + random.below(10_000),
    };
    // Tiny pieces of a long stream would be a long story and no better one.
    let piece_max = piece_max.max(to_write as usize / 500);
    let laziness = 1 + random.below(6);
    Program { stream, to_write, piece_max, laziness, writes_first: false }
}

/// Connects through the fabric's own set-up, Hello and HelloAck in its private data.
fn connect(world: &World, local: &Local, programs: [Program; 2]) -> [End; 2] {
    let (mut client, mut server) = (world.node(), world.node());
    server.listen(server.service(1)).expect("a listener");
    let (mut active, hello) = Connection::connect(*local, None);
    let data = PrivateData::new(hello.encode().as_slice()).expect("fits");
    let active_id = client.connect(server.service(1), data).expect("a connect");
    let (passive_id, data) = await_request(world, &mut server);
    let hello = Hello::parse(data.as_slice()).expect("a good Hello");
    let (mut passive, ack) = Connection::accept(*local, &hello);
    let data = PrivateData::new(&ack.encode()).expect("fits");
    server.accept(passive_id, data).expect("an acceptance");
    // Messages that the accepting side posts from now on arrive behind its reply.
    passive.handle_ready().expect("a new connection");
    let data = await_established(world, &mut client);
    assert_eq!(data.as_slice().len(), HELLO_ACK_LEN);
    let ack = HelloAck::parse(data.as_slice()).expect("a good HelloAck");
    active.handle_hello_ack(&ack).expect("an answer that was asked for");
    let [first, second] = programs;
    [
        End::new(active, first, (&mut client, active_id)),
        End::new(passive, second, (&mut server, passive_id)),
    ]
}

fn await_request(world: &World, server: &mut SimFabric) -> (SimId, PrivateData) {
    loop {
        match server.poll_cm() {
            Some(CmEvent::Request(id, data)) => return (id, data),
            Some(event) => panic!("{event:?}"),
            None => assert!(world.step(), "no request"),
        }
    }
}

fn await_established(world: &World, client: &mut SimFabric) -> PrivateData {
    loop {
        match client.poll_cm() {
            Some(CmEvent::Established(_, data)) => return data,
            Some(event) => panic!("{event:?}"),
            None => assert!(world.step(), "not established"),
        }
    }
}

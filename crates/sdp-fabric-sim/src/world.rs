//! The world: nodes, time, and what a test may do to them.
//!
//! A [`World`] is a handle; clones name the same world. Time moves by [`World::step`] (to the next
//! event) or [`World::run_for`]; calls on nodes and queue pairs take no time. Options are fixed when
//! the world is made.

use core::fmt::{self, Arguments, Display};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sdp_rdma::fabric::{CmEvent, QpError};

use crate::{
    checker,
    cm::{SimFabric, SimId},
    fault::FaultOptions,
    link::{Link, LinkOptions},
    memory::Memory,
    queue_pair::{CONTROL_BYTES, CONTROL_REQUESTS, Phase, QueuePair, window_bytes},
    rng::Random,
    schedule::{Event, Schedule},
    trace::Trace,
};

/// Nodes in a world.
pub const NODES_MAX: usize = 64;
/// Queue pairs ever made in a world (they are not used again); more connects are refused as busy.
pub const QUEUE_PAIRS_MAX: usize = 4096;
/// Connection events waiting at a node: a queue pair has at most three in its life.
pub const CM_EVENTS_MAX: usize = 3 * QUEUE_PAIRS_MAX;
/// Events that [`World::run`] handles before it declares that the world does not come to rest.
pub const RUN_EVENTS_MAX: u64 = 10_000_000;

/// The fate of a SEND that finds no receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RnrRetry {
    /// It waits, as with the retry count that devices take as "infinite".
    Forever,
    /// It is tried again so many times, then the sender's queue pair fails. 0 proves that a protocol
    /// keeps to its credits.
    Times(u32),
}

/// How a receiver's room is accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credits {
    /// Each message takes one receive buffer.
    Explicit {
        /// Receive buffers of a queue pair; a released message's buffer is posted again.
        buffers: u16,
        /// Bytes of one; a longer message fails the connection if it gets past the sender's own
        /// limit, which is the same.
        buffer_bytes: u32,
        /// For a SEND that finds none.
        rnr: RnrRetry,
    },
    /// Messages share a byte window that the sender watches.
    Implicit {
        /// Bytes of the window.
        window_bytes: u64,
        /// Longest message; with its framing and the control reserve it must fit the window.
        message_bytes: u32,
    },
}

impl Credits {
    pub(crate) const fn message_bytes(self) -> usize {
        match self {
            Self::Explicit { buffer_bytes, .. } => buffer_bytes as usize,
            Self::Implicit { message_bytes, .. } => message_bytes as usize,
        }
    }
}

/// Options of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldOptions {
    /// Receive side accounting, for all queue pairs.
    pub credits: Credits,
    /// Work requests of a queue pair, from post to polled completion, of which
    /// [`crate::queue_pair::CONTROL_REQUESTS`] are kept for control messages.
    pub send_depth: usize,
    /// Every link that has no options of its own.
    pub link: LinkOptions,
    /// Faults that happen by themselves.
    pub faults: FaultOptions,
    /// Unanswered requests of one listener.
    pub backlog: u16,
    /// After which an unanswered connect is unreachable; `None` waits for ever, but a dead or cut
    /// off node is noticed at once.
    pub connect_timeout_ns: Option<u64>,
    /// For which a request waits at a link that is down.
    pub transport_timeout_ns: u64,
    /// Between two tries of a SEND that finds no receive buffer.
    pub rnr_timer_ns: u64,
    /// Trace lines kept; 0 switches the trace off.
    pub trace_lines: usize,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            credits: Credits::Explicit { buffers: 32, buffer_bytes: 8192, rnr: RnrRetry::Forever },
            send_depth: 64,
            link: LinkOptions::default(),
            faults: FaultOptions::NONE,
            backlog: 16,
            connect_timeout_ns: Some(1_000_000_000),
            transport_timeout_ns: 100_000_000,
            rnr_timer_ns: 10_000,
            trace_lines: 10_000,
        }
    }
}

/// Names a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

impl Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A handle to a simulated world.
#[derive(Debug, Clone)]
pub struct World(Arc<Mutex<State>>);

impl World {
    /// A world without nodes at time 0.
    ///
    /// # Panics
    /// Options with which no fabric could keep its contract: a send queue or window without room
    /// for one data message besides the control reserve, no receive buffer, no backlog.
    pub fn new(seed: u64, options: WorldOptions) -> Self {
        check_options(&options);
        let mut trace = Trace::new(options.trace_lines);
        trace.line(0, format_args!("seed {seed}"));
        Self(Arc::new(Mutex::new(State {
            options,
            schedule: Schedule::default(),
            random: Random::new(seed),
            trace,
            nodes: Vec::new(),
            links: BTreeMap::new(),
            queue_pairs: Vec::new(),
            destroyed: 0,
            keys_made: 0,
        })))
    }

    /// Adds a node.
    ///
    /// # Panics
    /// Beyond [`NODES_MAX`].
    pub fn node(&self) -> SimFabric {
        let mut state = self.state();
        assert!(state.nodes.len() < NODES_MAX, "more than {NODES_MAX} nodes");
        let node = NodeId(state.nodes.len() as u32);
        state.nodes.push(Node {
            is_alive: true,
            listeners: BTreeMap::new(),
            cm_events: VecDeque::new(),
            memory: Memory::new(node.0),
        });
        SimFabric { world: self.clone(), node }
    }

    /// Virtual time in nanoseconds since the world was made.
    pub fn now_ns(&self) -> u64 {
        self.state().now_ns()
    }

    /// When the next event is due, if one waits.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.state().schedule.next_at_ns()
    }

    /// Moves to the next event and handles it; `false` if none waits.
    pub fn step(&self) -> bool {
        self.state().step(u64::MAX)
    }

    /// Handles every event of the next `duration_ns` and moves the clock by that much.
    pub fn run_for(&self, duration_ns: u64) {
        let mut state = self.state();
        let until_ns = state.now_ns().saturating_add(duration_ns);
        while state.step(until_ns) {}
        state.schedule.move_to(until_ns);
    }

    /// Handles events until none waits.
    ///
    /// # Panics
    /// After [`RUN_EVENTS_MAX`].
    pub fn run(&self) {
        let mut state = self.state();
        for _ in 0..RUN_EVENTS_MAX {
            if !state.step(u64::MAX) {
                return;
            }
        }
        panic!("the world does not come to rest:\n{}", state.trace.tail(50));
    }

    /// Kills a node: its queue pairs are gone without a word, its peers learn of it after the link's
    /// `death_notice`.
    pub fn kill(&self, node: NodeId) {
        self.state().kill(node.0);
    }

    /// Whether a node lives.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.state().node_mut(node).is_alive
    }

    /// Fails one end of a connection as if its device had; the other end learns of it later.
    pub fn fail_queue_pair(&self, id: SimId) {
        self.state().fail(id.0, QpError::Fatal, true);
    }

    /// Sets the properties of the link between two nodes.
    pub fn set_link(&self, a: NodeId, b: NodeId, options: LinkOptions) {
        self.state().link_mut(a.0, b.0).options = options;
    }

    /// Cuts (`false`) or mends the link between two nodes. Requests wait at a cut link for
    /// `transport_timeout_ns`; requests on their way to complete still complete.
    pub fn set_link_up(&self, a: NodeId, b: NodeId, is_up: bool) {
        let mut state = self.state();
        state.log(format_args!("link {a}-{b} up: {is_up}"));
        state.link_mut(a.0, b.0).is_up = is_up;
        if is_up {
            state.retry_stuck(a.0, b.0);
        }
    }

    /// The trace, one line for each call and event (the last [`WorldOptions::trace_lines`]).
    pub fn trace(&self) -> String {
        self.state().trace.text()
    }

    /// Hash of the whole trace, lines not kept included.
    pub fn trace_hash(&self) -> u64 {
        self.state().trace.hash()
    }

    /// Lines of the whole trace, those not kept included.
    pub fn trace_count(&self) -> u64 {
        self.state().trace.count()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a failed test; it must not hide the output of other tests.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_options(options: &WorldOptions) {
    assert!(options.backlog > 0, "backlog is 0");
    let depth = options.send_depth;
    assert!(
        depth > CONTROL_REQUESTS,
        "send_depth is {depth}, control alone has {CONTROL_REQUESTS}"
    );
    match options.credits {
        Credits::Explicit { buffers, .. } => assert!(buffers > 0, "no receive buffer"),
        Credits::Implicit { window_bytes: window, message_bytes } => {
            let least = window_bytes(message_bytes as usize) + CONTROL_BYTES;
            assert!(window >= least, "a window of {window} is less than {least}");
        }
    }
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) unanswered: u16,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) is_alive: bool,
    pub(crate) listeners: BTreeMap<u16, Listener>,
    pub(crate) cm_events: VecDeque<CmEvent<SimId>>,
    pub(crate) memory: Memory,
}

/// Everything there is.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) options: WorldOptions,
    pub(crate) schedule: Schedule,
    pub(crate) random: Random,
    pub(crate) trace: Trace,
    pub(crate) nodes: Vec<Node>,
    links: BTreeMap<(u32, u32), Link>,
    pub(crate) queue_pairs: Vec<QueuePair>,
    /// Destructive faults that have happened.
    pub(crate) destroyed: u32,
    keys_made: u32,
}

impl State {
    pub(crate) const fn now_ns(&self) -> u64 {
        self.schedule.now_ns()
    }

    pub(crate) fn log(&mut self, text: Arguments<'_>) {
        self.trace.line(self.schedule.now_ns(), text);
    }

    pub(crate) fn has_node(&self, node: NodeId) -> bool {
        (node.0 as usize) < self.nodes.len()
    }

    pub(crate) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }

    pub(crate) fn queue_pair(&self, number: u32) -> &QueuePair {
        &self.queue_pairs[number as usize]
    }

    pub(crate) fn queue_pair_mut(&mut self, number: u32) -> &mut QueuePair {
        &mut self.queue_pairs[number as usize]
    }

    /// Node at the other end; a queue pair without one talks to itself.
    pub(crate) fn peer_node(&self, number: u32) -> u32 {
        let queue_pair = self.queue_pair(number);
        queue_pair.peer.map_or(queue_pair.node, |peer| self.queue_pair(peer).node)
    }

    pub(crate) fn link_mut(&mut self, a: u32, b: u32) -> &mut Link {
        let options = self.options.link;
        self.links.entry((a.min(b), a.max(b))).or_insert_with(|| Link::new(options))
    }

    /// Two keys never handed out before: an odd factor maps counts to distinct numbers that do not
    /// look like counts, so that a key made up by adding one is not in use.
    pub(crate) fn new_keys(&mut self) -> [u32; 2] {
        core::array::from_fn(|_| {
            self.keys_made += 1;
            self.keys_made.wrapping_mul(0x9e37_79b1)
        })
    }

    fn step(&mut self, limit_ns: u64) -> bool {
        let Some(event) = self.schedule.take(limit_ns) else { return false };
        match event {
            Event::Arrive(number) => self.handle_arrive(number),
            Event::Complete(number) => self.handle_complete(number),
            Event::Window(number) => self.handle_window(number),
            Event::Request(number) => self.handle_request(number),
            Event::Reply(number) => self.handle_reply(number),
            Event::Refused(number, reject) => self.handle_refused(number, reject),
            Event::ConnectTimeout(number) => self.handle_connect_timeout(number),
            Event::PeerGone(number) => self.handle_peer_gone(number),
        }
        if let Err(broken) = checker::check(self, event.queue_pair()) {
            panic!(
                "the simulated fabric is wrong: {broken} after {event:?}\n{}",
                self.trace.tail(50)
            );
        }
        true
    }

    pub(crate) fn kill(&mut self, node: u32) {
        if !core::mem::replace(&mut self.nodes[node as usize].is_alive, false) {
            return;
        }
        self.log(format_args!("n{node} dies"));
        self.nodes[node as usize].listeners.clear();
        self.nodes[node as usize].cm_events.clear();
        for number in 0..self.queue_pairs.len() as u32 {
            if self.queue_pair(number).node != node {
                continue;
            }
            let queue_pair = self.queue_pair_mut(number);
            let phase = core::mem::replace(&mut queue_pair.phase, Phase::Failed(QpError::Fatal));
            queue_pair.send = Default::default();
            let Some(peer) = queue_pair.peer else { continue };
            let peer_node = self.queue_pair(peer).node;
            let notice = self.link_mut(node, peer_node).options.death_notice;
            let at_ns = self.now_ns() + self.random.span(notice);
            match phase {
                // A connecting peer learns by its time limit, or here if it has none.
                Phase::Requested if self.options.connect_timeout_ns.is_none() => {
                    self.schedule.add(at_ns, Event::ConnectTimeout(peer));
                }
                Phase::Connecting | Phase::Ready => {
                    self.schedule.add(at_ns, Event::PeerGone(peer));
                }
                Phase::Requested | Phase::Failed(_) => {}
            }
        }
    }

    /// The link is up again: requests that wait there go on.
    fn retry_stuck(&mut self, a: u32, b: u32) {
        let now_ns = self.now_ns();
        for number in 0..self.queue_pairs.len() as u32 {
            let ends = (self.queue_pair(number).node, self.peer_node(number));
            if ends != (a, b) && ends != (b, a) {
                continue;
            }
            let send = &mut self.queue_pair_mut(number).send;
            if let Some(front) = send.waiting.front_mut()
                && front.stuck_since_ns.take().is_some()
            {
                front.arrive_at_ns = now_ns;
                self.schedule_arrival(number);
            }
        }
    }
}

//! The connection manager: listen, connect, accept, and a node's view of the world.
//!
//! [`SimFabric`] is one node's fabric instance. Requests, replies and refusals take link time; a
//! reply never arrives after a message that the accepting side posted behind it. A request counts
//! against the listener's backlog until it is answered or withdrawn.

use sdp_rdma::{
    cm::{PrivateData, REQUEST_DATA_MAX, Reject},
    fabric::{CmEvent, Fabric, MemoryRegion, PostError, QpError},
    key::Access,
};

use crate::{
    queue_pair::{Phase, QueuePair, SimRx, SimTx},
    schedule::Event,
    world::{CM_EVENTS_MAX, Credits, Listener, NodeId, QUEUE_PAIRS_MAX, State, World},
};

/// Names a queue pair in the whole world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimId(pub(crate) u32);

/// Names a service: a node and a port there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimService {
    /// Where the listener is.
    pub node: NodeId,
    /// Its number there.
    pub port: u16,
}

/// A node's fabric instance.
///
/// Calls on a killed node do nothing: posts and set-up fail, nothing is reported. A handle to another
/// node's connection is treated as unknown.
#[derive(Debug, Clone)]
pub struct SimFabric {
    pub(crate) world: World,
    pub(crate) node: NodeId,
}

impl SimFabric {
    /// Which node this is.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The service at `port` of this node.
    pub const fn service(&self, port: u16) -> SimService {
        SimService { node: self.node, port }
    }

    /// Allocates zeroed simulated memory; `None` beyond [`crate::memory::MEMORY_BYTES_MAX`].
    pub fn allocate(&self, len: u64) -> Option<u64> {
        self.world.state().node_mut(self.node).memory.allocate(len)
    }

    /// Writes simulated memory of this node; `false` if the range is not allocated.
    pub fn store(&self, addr: u64, bytes: &[u8]) -> bool {
        let mut state = self.world.state();
        let target = state.node_mut(self.node).memory.bytes(addr, bytes.len() as u64);
        target.map(|target| target.copy_from_slice(bytes)).is_some()
    }

    /// Reads simulated memory of this node; `false` if the range is not allocated.
    pub fn load(&self, addr: u64, bytes: &mut [u8]) -> bool {
        let mut state = self.world.state();
        let source = state.node_mut(self.node).memory.bytes(addr, bytes.len() as u64);
        source.map(|source| bytes.copy_from_slice(source)).is_some()
    }
}

impl Fabric for SimFabric {
    type Id = SimId;
    type Service = SimService;
    type Tx = SimTx;
    type Rx = SimRx;

    fn has_explicit_credits(&self) -> bool {
        matches!(self.world.state().options.credits, Credits::Explicit { .. })
    }

    fn listen(&mut self, service: SimService) -> Result<(), Reject> {
        let mut state = self.world.state();
        let node = state.node_mut(self.node);
        if service.node != self.node || !node.is_alive {
            return Err(Reject::InvalidService);
        }
        if node.listeners.contains_key(&service.port) {
            return Err(Reject::Busy);
        }
        node.listeners.insert(service.port, Listener { unanswered: 0 });
        state.log(format_args!("{} listen {}", self.node, service.port));
        Ok(())
    }

    fn unlisten(&mut self, service: SimService) {
        let mut state = self.world.state();
        if service.node == self.node
            && state.node_mut(self.node).listeners.remove(&service.port).is_some()
        {
            state.log(format_args!("{} unlisten {}", self.node, service.port));
        }
    }

    fn service_of(&mut self, id: SimId) -> Option<SimService> {
        let state = self.world.state();
        (state.phase_of(self.node, id)? == Phase::Requested).then(|| state.queue_pair(id.0).service)
    }

    fn connect(&mut self, service: SimService, data: PrivateData) -> Result<SimId, Reject> {
        if data.as_slice().len() > REQUEST_DATA_MAX {
            return Err(Reject::PrivateDataTooLong);
        }
        let mut state = self.world.state();
        if !state.node_mut(self.node).is_alive || !state.has_node(service.node) {
            return Err(Reject::InvalidService);
        }
        let queue_pair = QueuePair::new(self.node.0, Phase::Connecting, service, data);
        let number = state.add_queue_pair(queue_pair).ok_or(Reject::Busy)?;
        state.log(format_args!("{} connect qp{number} to {service:?}", self.node));
        let now_ns = state.now_ns();
        let at_ns = state.crossing_ns(self.node.0, service.node.0, REQUEST_DATA_MAX as u64);
        state.schedule.add(at_ns, Event::Request(number));
        if let Some(timeout_ns) = state.options.connect_timeout_ns {
            state.schedule.add(now_ns + timeout_ns, Event::ConnectTimeout(number));
        }
        Ok(SimId(number))
    }

    fn accept(&mut self, id: SimId, data: PrivateData) -> Result<(), Reject> {
        let mut state = self.world.state();
        if state.phase_of(self.node, id) != Some(Phase::Requested) {
            return Err(Reject::Stale);
        }
        state.answered(id.0);
        let number = id.0;
        let queue_pair = state.queue_pair_mut(number);
        queue_pair.phase = Phase::Ready;
        queue_pair.was_ready = true;
        queue_pair.data = data;
        let Some(active) = queue_pair.peer else { return Err(Reject::Stale) };
        state.log(format_args!("{} accept qp{number}", self.node));
        let at_ns = state.arrival_ns(number, data.as_slice().len() as u64);
        state.schedule.add(at_ns, Event::Reply(active));
        Ok(())
    }

    fn reject(&mut self, id: SimId, code: u8) {
        let mut state = self.world.state();
        if state.phase_of(self.node, id) == Some(Phase::Requested) {
            state.refuse(id.0, Reject::Consumer(code));
        }
    }

    fn poll_cm(&mut self) -> Option<CmEvent<SimId>> {
        let mut state = self.world.state();
        let event = state.node_mut(self.node).cm_events.pop_front()?;
        state.log(format_args!("{} event {}", self.node, Named(&event)));
        Some(event)
    }

    fn take_queues(&mut self, id: SimId) -> Option<(SimTx, SimRx)> {
        let mut state = self.world.state();
        state.phase_of(self.node, id)?;
        let queue_pair = state.queue_pair_mut(id.0);
        if !queue_pair.was_ready || core::mem::replace(&mut queue_pair.is_taken, true) {
            return None;
        }
        let tx = SimTx { world: self.world.clone(), number: id.0 };
        Some((tx, SimRx { world: self.world.clone(), number: id.0 }))
    }

    fn disconnect(&mut self, id: SimId) {
        let mut state = self.world.state();
        let Some(phase) = state.phase_of(self.node, id) else { return };
        state.log(format_args!("{} disconnect qp{}", self.node, id.0));
        match phase {
            Phase::Connecting => state.abandon(id.0),
            Phase::Requested => state.refuse(id.0, Reject::Consumer(0)),
            Phase::Ready => state.fail(id.0, QpError::Disconnected, false),
            Phase::Failed(_) => {}
        }
    }

    fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<MemoryRegion, PostError> {
        let mut state = self.world.state();
        let keys = state.new_keys();
        let region = state.node_mut(self.node).memory.register(addr, len, access, keys)?;
        state.log(format_args!("{} register {addr:x}+{len} rkey {:x}", self.node, region.rkey.0));
        Ok(region)
    }

    fn deregister(&mut self, region: MemoryRegion) {
        let mut state = self.world.state();
        let was_known = state.node_mut(self.node).memory.deregister(region);
        assert!(was_known, "deregistration of {region:?}, which is not registered");
        state.log(format_args!("{} deregister rkey {:x}", self.node, region.rkey.0));
    }
}

/// An event without its private data, which would fill the trace.
struct Named<'a>(&'a CmEvent<SimId>);

impl core::fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            CmEvent::Request(id, data) => {
                write!(f, "request qp{} data {}", id.0, data.as_slice().len())
            }
            CmEvent::Established(id, data) => {
                write!(f, "established qp{} data {}", id.0, data.as_slice().len())
            }
            CmEvent::Rejected(id, reject) => write!(f, "rejected qp{} {reject:?}", id.0),
            CmEvent::Unreachable(id) => write!(f, "unreachable qp{}", id.0),
            CmEvent::Disconnected(id) => write!(f, "disconnected qp{}", id.0),
        }
    }
}

impl State {
    /// The phase of a connection of this node, if there is one of that name and the node lives.
    fn phase_of(&self, node: NodeId, id: SimId) -> Option<Phase> {
        let queue_pair = self.queue_pairs.get(id.0 as usize)?;
        let is_own = queue_pair.node == node.0 && self.nodes[node.0 as usize].is_alive;
        is_own.then_some(queue_pair.phase)
    }

    /// `None` at [`QUEUE_PAIRS_MAX`].
    fn add_queue_pair(&mut self, queue_pair: QueuePair) -> Option<u32> {
        if self.queue_pairs.len() >= QUEUE_PAIRS_MAX {
            return None;
        }
        self.queue_pairs.push(queue_pair);
        Some(self.queue_pairs.len() as u32 - 1)
    }

    pub(crate) fn push_cm_event(&mut self, node: u32, event: CmEvent<SimId>) {
        let events = &mut self.nodes[node as usize].cm_events;
        assert!(events.len() < CM_EVENTS_MAX, "more than {CM_EVENTS_MAX} connection events");
        events.push_back(event);
    }

    /// [`Event::Request`]: the listener hears of it, or a refusal sets out.
    pub(crate) fn handle_request(&mut self, active: u32) {
        let queue_pair = self.queue_pair(active);
        if queue_pair.phase != Phase::Connecting {
            return;
        }
        let (from, service, data) = (queue_pair.node, queue_pair.service, queue_pair.data);
        let to = service.node.0;
        let backlog = self.options.backlog;
        let is_reachable = self.link_mut(from, to).is_up && self.nodes[to as usize].is_alive;
        if !is_reachable {
            // The other node does not answer. Without a time limit the request would hang for ever.
            if self.options.connect_timeout_ns.is_none() {
                self.handle_connect_timeout(active);
            }
            return;
        }
        let listener = self.nodes[to as usize].listeners.get_mut(&service.port);
        let refusal = match listener {
            None => Some(Reject::InvalidService),
            Some(listener) if listener.unanswered >= backlog => Some(Reject::Busy),
            Some(_) => None,
        };
        let passive = match refusal {
            Some(_) => None,
            None => self.add_queue_pair(QueuePair::new(to, Phase::Requested, service, data)),
        };
        let Some(passive) = passive else {
            let at_ns = self.crossing_ns(to, from, 0);
            let refusal = refusal.unwrap_or(Reject::Busy);
            self.schedule.add(at_ns, Event::Refused(active, refusal));
            return;
        };
        if let Some(listener) = self.nodes[to as usize].listeners.get_mut(&service.port) {
            listener.unanswered += 1;
        }
        self.queue_pair_mut(passive).peer = Some(active);
        self.queue_pair_mut(active).peer = Some(passive);
        self.log(format_args!("qp{active} requests qp{passive}"));
        self.push_cm_event(to, CmEvent::Request(SimId(passive), data));
    }

    /// [`Event::Reply`].
    pub(crate) fn handle_reply(&mut self, active: u32) {
        let Some(passive) = self.queue_pair(active).peer else { return };
        if self.queue_pair(active).phase != Phase::Connecting {
            // We gave up meanwhile: the accepting side must not keep half a connection.
            self.fail(passive, QpError::Disconnected, true);
            return;
        }
        let data = self.queue_pair(passive).data;
        let queue_pair = self.queue_pair_mut(active);
        queue_pair.phase = Phase::Ready;
        queue_pair.was_ready = true;
        let node = queue_pair.node;
        self.push_cm_event(node, CmEvent::Established(SimId(active), data));
        if self.queue_pair(passive).phase != Phase::Ready {
            // The acceptor disconnected before its reply got here, and its notice may have too.
            self.schedule.add(self.now_ns(), Event::PeerGone(active));
        }
    }

    /// [`Event::Refused`].
    pub(crate) fn handle_refused(&mut self, active: u32, reject: Reject) {
        if self.queue_pair(active).phase == Phase::Connecting {
            self.queue_pair_mut(active).phase = Phase::Failed(QpError::Disconnected);
            let node = self.queue_pair(active).node;
            self.push_cm_event(node, CmEvent::Rejected(SimId(active), reject));
        }
    }

    /// [`Event::ConnectTimeout`].
    pub(crate) fn handle_connect_timeout(&mut self, active: u32) {
        if self.queue_pair(active).phase == Phase::Connecting {
            self.abandon(active);
            let node = self.queue_pair(active).node;
            self.push_cm_event(node, CmEvent::Unreachable(SimId(active)));
        }
    }

    /// Ends an attempt to connect; the listener, if it has heard of it, will hear of that.
    fn abandon(&mut self, active: u32) {
        let queue_pair = self.queue_pair_mut(active);
        queue_pair.phase = Phase::Failed(QpError::Disconnected);
        if let Some(passive) = queue_pair.peer {
            let (node, peer_node) = (queue_pair.node, self.queue_pair(passive).node);
            let at_ns = self.crossing_ns(node, peer_node, 0);
            self.schedule.add(at_ns, Event::PeerGone(passive));
        }
    }

    /// Sends a refusal for an unanswered request.
    fn refuse(&mut self, passive: u32, reject: Reject) {
        self.withdraw(passive);
        self.log(format_args!("qp{passive} refused: {reject:?}"));
        let queue_pair = self.queue_pair(passive);
        let Some(active) = queue_pair.peer else { return };
        let (node, peer_node) = (queue_pair.node, self.queue_pair(active).node);
        let at_ns = self.crossing_ns(node, peer_node, 0);
        self.schedule.add(at_ns, Event::Refused(active, reject));
    }

    /// A request that will not be accepted any more.
    pub(crate) fn withdraw(&mut self, passive: u32) {
        self.answered(passive);
        self.queue_pair_mut(passive).phase = Phase::Failed(QpError::Disconnected);
    }

    /// Gives a request's place in the backlog back.
    fn answered(&mut self, passive: u32) {
        let queue_pair = self.queue_pair(passive);
        let (node, port) = (queue_pair.node as usize, queue_pair.service.port);
        if let Some(listener) = self.nodes[node].listeners.get_mut(&port) {
            listener.unanswered -= 1;
        }
    }
}

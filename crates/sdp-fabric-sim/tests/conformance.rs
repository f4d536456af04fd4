//! The conformance suite on the simulated fabric: explicit and implicit credits, quiet and slow.

use sdp_fabric_sim::{
    Credits, FaultOptions, NodeId, RnrRetry, SimFabric, SimId, SimRx, SimTx, World, WorldOptions,
};
use sdp_fabric_tests::{End, Fabrics, Feature, Harness, Pair, Side, conformance};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, MemoryRegion, PostError},
    key::Access,
};

const BACKLOG: u16 = 5;

/// Explicit credits with retries that never end, as a device with the retry count "infinite".
const EXPLICIT: WorldOptions = WorldOptions {
    credits: Credits::Explicit { buffers: 20, buffer_bytes: 4000, rnr: RnrRetry::Forever },
    send_depth: 48,
    link: sdp_fabric_sim::LinkOptions {
        latency: sdp_fabric_sim::Span::new(1_000, 3_000),
        ns_per_kib: 100,
        death_notice: sdp_fabric_sim::Span::new(1_000, 1_000_000),
    },
    faults: FaultOptions::NONE,
    backlog: BACKLOG,
    // The suite lets time pass until nothing more happens; a limit would always be reached.
    connect_timeout_ns: None,
    transport_timeout_ns: 100_000_000,
    rnr_timer_ns: 10_000,
    trace_lines: 50,
};

const IMPLICIT: WorldOptions = WorldOptions {
    credits: Credits::Implicit { window_bytes: 64 * 1024, message_bytes: 16 * 1024 + 56 },
    ..EXPLICIT
};

/// The fewest buffers the protocol allows, and few requests.
const NARROW: WorldOptions = WorldOptions {
    credits: Credits::Explicit { buffers: 3, buffer_bytes: 4000, rnr: RnrRetry::Forever },
    send_depth: 16,
    ..EXPLICIT
};

const SLOW_FAULTS: FaultOptions = FaultOptions {
    receiver_not_ready: sdp_fabric_sim::Ratio::per_million(20_000),
    ..FaultOptions::SLOW
};

conformance!(explicit, SimHarness<0>, skipped = 1);
conformance!(implicit, SimHarness<1>, skipped = 2);
conformance!(explicit_slow, SimHarness<2>, skipped = 1);
conformance!(implicit_slow, SimHarness<3>, skipped = 2);
conformance!(narrow, SimHarness<4>, skipped = 1);

const OPTIONS: [WorldOptions; 5] = [
    EXPLICIT,
    IMPLICIT,
    WorldOptions { faults: SLOW_FAULTS, ..EXPLICIT },
    WorldOptions { faults: SLOW_FAULTS, ..IMPLICIT },
    NARROW,
];

struct SimHarness<const OPTION: usize> {
    world: World,
    a: SimFabric,
    b: SimFabric,
    /// Of the pair made last.
    ids: Option<(SimId, SimId)>,
    ports: u16,
}

impl<const OPTION: usize> SimHarness<OPTION> {
    fn fabric(&mut self, side: Side) -> &mut SimFabric {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    fn node(&self, side: Side) -> NodeId {
        match side {
            Side::A => self.a.node(),
            Side::B => self.b.node(),
        }
    }
}

impl<const OPTION: usize> Harness for SimHarness<OPTION> {
    type Tx = SimTx;
    type Rx = SimRx;
    type Fabric = SimFabric;

    fn new(seed: u64) -> Self {
        let world = World::new(seed, OPTIONS[OPTION]);
        let (a, b) = (world.node(), world.node());
        Self { world, a, b, ids: None, ports: 0 }
    }

    fn missing(&self, feature: Feature) -> Option<&'static str> {
        match feature {
            Feature::NoOneSided => Some("one-sided work is supported"),
            Feature::ExplicitCredits if !self.a.has_explicit_credits() => {
                Some("credits are implicit")
            }
            _ => None,
        }
    }

    fn pair(&mut self) -> Pair<SimTx, SimRx> {
        let none = PrivateData::new(&[]).expect("fits");
        self.ports += 1;
        let service = self.b.service(self.ports);
        self.b.listen(service).expect("a free service");
        let active = self.a.connect(service, none).expect("a connect");
        let passive = loop {
            match self.b.poll_cm() {
                Some(CmEvent::Request(id, _)) => break id,
                Some(_) => {}
                None => assert!(self.world.step(), "no request"),
            }
        };
        self.b.accept(passive, none).expect("an acceptance");
        loop {
            match self.a.poll_cm() {
                Some(CmEvent::Established(id, _)) if id == active => break,
                Some(_) => {}
                None => assert!(self.world.step(), "not established"),
            }
        }
        self.ids = Some((active, passive));
        let (tx, rx) = self.a.take_queues(active).expect("queues");
        let a = End { tx, rx };
        let (tx, rx) = self.b.take_queues(passive).expect("queues");
        Pair { a, b: End { tx, rx } }
    }

    fn advance(&mut self) -> bool {
        self.world.step()
    }

    fn disconnect(&mut self, side: Side) {
        let (active, passive) = self.ids.expect("a pair");
        match side {
            Side::A => self.a.disconnect(active),
            Side::B => self.b.disconnect(passive),
        }
    }

    fn kill(&mut self, side: Side) {
        self.world.kill(self.node(side));
    }

    fn allocate(&mut self, side: Side, len: usize) -> u64 {
        self.fabric(side).allocate(len as u64).expect("memory")
    }

    fn store(&mut self, side: Side, addr: u64, bytes: &[u8]) {
        assert!(self.fabric(side).store(addr, bytes));
    }

    fn load(&mut self, side: Side, addr: u64, bytes: &mut [u8]) {
        assert!(self.fabric(side).load(addr, bytes));
    }

    fn register(
        &mut self,
        side: Side,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, PostError> {
        self.fabric(side).register(addr, len, access)
    }

    fn deregister(&mut self, side: Side, region: MemoryRegion) {
        self.fabric(side).deregister(region);
    }

    fn fabrics(&mut self) -> Fabrics<SimFabric> {
        let services = [self.b.service(60_001), self.b.service(60_002)];
        let (client, server) = (self.a.clone(), self.b.clone());
        Fabrics { client, server, services, backlog: usize::from(BACKLOG) }
    }
}

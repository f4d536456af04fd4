//! The parts that a fabric's test file provides, and how tests wait.
//!
//! A fabric that has only queue pair halves so far (no [`Fabric`] of its own) uses [`NoFabric`] and
//! says that [`Feature::SetUp`] is missing. One harness is made for each test.

use core::{convert::Infallible, marker::PhantomData};

use sdp_rdma::{
    cm::{PrivateData, REQUEST_DATA_MAX, Reject},
    fabric::{CmEvent, Fabric, MemoryRegion, PostError, ReceiveQueue, Received, SendQueue},
    key::Access,
};

/// Steps of [`Harness::advance`] that a test waits for one condition.
pub const WAIT_STEPS_MAX: usize = 200_000;

/// Features that not every fabric has, or not where the tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// READ and WRITE of the peer's memory.
    OneSided,
    /// The opposite, for the test that unsupported work is refused.
    NoOneSided,
    /// `Bufs` counts receive buffers.
    ExplicitCredits,
    /// Local keys and ranges are checked.
    LocalKeys,
    /// Remote keys, ranges and rights are checked.
    RemoteKeys,
    /// [`Harness::fabrics`]: connections are made by the fabric itself.
    SetUp,
    /// [`Harness::disconnect`].
    Disconnect,
    /// [`Harness::kill`].
    PeerDeath,
}

/// An end of the pair under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that connected, where that matters.
    A,
    /// The other.
    B,
}

/// The two halves of one end.
#[derive(Debug)]
pub struct End<Tx, Rx> {
    /// Sends.
    pub tx: Tx,
    /// Receives.
    pub rx: Rx,
}

/// A connected pair.
#[derive(Debug)]
pub struct Pair<Tx, Rx> {
    /// Side A.
    pub a: End<Tx, Rx>,
    /// Side B.
    pub b: End<Tx, Rx>,
}

/// Two fabric instances that can reach each other.
#[derive(Debug)]
pub struct Fabrics<F: Fabric> {
    /// Connects.
    pub client: F,
    /// Listens.
    pub server: F,
    /// Two free services of `server`.
    pub services: [F::Service; 2],
    /// Unanswered requests that a listener keeps; more are refused as busy.
    pub backlog: usize,
}

/// A fabric under test.
///
/// Methods with a body here are only called where the feature they belong to is not missing.
pub trait Harness {
    /// Sending half.
    type Tx: SendQueue + Send;
    /// Receiving half.
    type Rx: ReceiveQueue + Send;
    /// The fabric, or [`NoFabric`].
    type Fabric: Fabric<Tx = Self::Tx, Rx = Self::Rx>;

    /// A fresh fabric. `seed` is for its own random choices, if it has any.
    fn new(seed: u64) -> Self;

    /// Why a feature is missing; `None`: it is there.
    fn missing(&self, feature: Feature) -> Option<&'static str>;

    /// Most private data of a request, in bytes.
    fn request_data_max(&self) -> usize {
        REQUEST_DATA_MAX
    }

    /// Whether private data arrives in a field of fixed length, with zeros behind it.
    fn pads_private_data(&self) -> bool {
        false
    }

    /// A new connected pair. The other methods mean the pair made last.
    fn pair(&mut self) -> Pair<Self::Tx, Self::Rx>;

    /// Lets the fabric work. `false`: nothing more will happen unless the test does something. A
    /// fabric where that cannot be known says so after a quiet time.
    fn advance(&mut self) -> bool;

    /// Disconnects one side.
    fn disconnect(&mut self, side: Side) {
        unreachable!("disconnect of {side:?}, which is missing");
    }

    /// Ends a side as the death of its process would.
    fn kill(&mut self, side: Side) {
        unreachable!("kill of {side:?}, which is missing");
    }

    /// Allocates zeroed memory that can be registered.
    fn allocate(&mut self, side: Side, len: usize) -> u64 {
        unreachable!("{len} bytes for {side:?} without one-sided work");
    }

    /// Writes allocated memory.
    fn store(&mut self, side: Side, addr: u64, bytes: &[u8]) {
        unreachable!("store of {} bytes at {addr:x} of {side:?}", bytes.len());
    }

    /// Reads allocated memory.
    fn load(&mut self, side: Side, addr: u64, bytes: &mut [u8]) {
        unreachable!("load of {} bytes at {addr:x} of {side:?}", bytes.len());
    }

    /// Registers allocated memory.
    fn register(
        &mut self,
        side: Side,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, PostError> {
        unreachable!("registration of {addr:x}+{len} of {side:?} for {access:?}");
    }

    /// Ends a registration.
    fn deregister(&mut self, side: Side, region: MemoryRegion) {
        unreachable!("deregistration of {region:?} of {side:?}");
    }

    /// Two instances.
    fn fabrics(&mut self) -> Fabrics<Self::Fabric> {
        unreachable!("fabrics, which are missing");
    }
}

/// Lets the fabric work until nothing more happens.
pub fn settle<H: Harness>(harness: &mut H) {
    for _ in 0..WAIT_STEPS_MAX {
        if !harness.advance() {
            return;
        }
    }
    panic!("the fabric does not come to rest within {WAIT_STEPS_MAX} steps");
}

/// Times in a row that a fabric may say that nothing more will happen before a test believes it: the
/// condition itself (a release, a poll) may have started something.
const IDLE_MAX: usize = 3;

/// Lets the fabric work until `condition` gives a value. A condition that takes messages takes all
/// there are.
pub fn until<H: Harness, T>(
    harness: &mut H,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let mut idle = 0;
    for _ in 0..WAIT_STEPS_MAX {
        if let Some(value) = condition() {
            return value;
        }
        idle = if harness.advance() { 0 } else { idle + 1 };
        assert!(idle <= IDLE_MAX, "{what}: nothing more will happen");
    }
    panic!("{what}: not within {WAIT_STEPS_MAX} steps");
}

/// Waits for the next message.
pub fn receive<H: Harness>(harness: &mut H, rx: &mut H::Rx) -> Received {
    until(harness, "a message", || rx.poll_receive().expect("the connection lives"))
}

/// Waits for the next connection event.
pub fn cm_event<H: Harness>(
    harness: &mut H,
    fabric: &mut H::Fabric,
) -> CmEvent<<H::Fabric as Fabric>::Id> {
    until(harness, "a connection event", || fabric.poll_cm())
}

/// Stands in where a fabric is not there yet: cannot be made, so that none of its methods is ever
/// called.
#[derive(Debug)]
pub enum NoFabric<Tx, Rx> {
    /// Never.
    Never(Infallible, PhantomData<(Tx, Rx)>),
}

impl<Tx, Rx> NoFabric<Tx, Rx> {
    const fn never(&self) -> ! {
        match self {
            Self::Never(never, _) => match *never {},
        }
    }
}

impl<Tx: SendQueue, Rx: ReceiveQueue> Fabric for NoFabric<Tx, Rx> {
    type Id = ();
    type Service = ();
    type Tx = Tx;
    type Rx = Rx;

    fn has_explicit_credits(&self) -> bool {
        self.never()
    }
    fn listen(&mut self, (): ()) -> Result<(), Reject> {
        self.never()
    }
    fn connect(&mut self, (): (), _: PrivateData) -> Result<(), Reject> {
        self.never()
    }
    fn accept(&mut self, (): (), _: PrivateData) -> Result<(), Reject> {
        self.never()
    }
    fn reject(&mut self, (): (), _: u8) {
        self.never()
    }
    fn poll_cm(&mut self) -> Option<CmEvent<()>> {
        self.never()
    }
    fn take_queues(&mut self, (): ()) -> Option<(Tx, Rx)> {
        self.never()
    }
    fn disconnect(&mut self, (): ()) {
        self.never()
    }
    fn register(&mut self, _: u64, _: u64, _: Access) -> Result<MemoryRegion, PostError> {
        self.never()
    }
    fn deregister(&mut self, _: MemoryRegion) {
        self.never()
    }
}

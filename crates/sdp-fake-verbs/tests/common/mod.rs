//! Two fabrics of one process on the network of the stand-in.

#![allow(dead_code)]

pub(crate) mod ends;

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU16, Ordering},
};

use sdp_fabric_tests::{End, Fabrics, Feature, Harness, Pair, Side};
use sdp_fabric_verbs::{
    Address, Error,
    budget::CONNECTIONS_MAX,
    cm::REQUEST_DATA,
    endpoint::{Core, VerbsRx, VerbsTx},
    fabric::{Id, Options, VerbsFabric},
    pool::Shared,
};
use sdp_fake_verbs::Network;
use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric, Gather, MemoryRegion, PostError, SendOptions, SendQueue},
    key::{Access, LocalSlice, RemoteSlice},
    work::{Completion, WorkId},
};

pub(crate) const BACKLOG: usize = 5;
pub(crate) const PROMISE: u32 = 16;
/// Steps within which a connection is there.
const STEPS: usize = 100;

pub(crate) fn network() -> Network {
    Network::private().expect("memory for a network")
}

pub(crate) fn address(port: u16) -> Address {
    Address::v4([10, 9, 0, 1], port)
}

/// A port that no other test has.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn options() -> Options {
    // The limit of the process that runs the tests does not matter.
    Options { promise: PROMISE, backlog: BACKLOG, memory: Some(8 << 20), ..Options::default() }
}

/// A fabric that test and harness share.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    fabric: Arc<Mutex<VerbsFabric>>,
    /// Of the fabric at the other end.
    other: Option<Shared<Core>>,
}

impl Handle {
    pub(crate) fn open(options: &Options) -> Result<Self, Error> {
        network();
        let fabric = VerbsFabric::open(&address(0), options)?;
        Ok(Self { fabric: Arc::new(Mutex::new(fabric)), other: None })
    }

    pub(crate) fn get(&self) -> MutexGuard<'_, VerbsFabric> {
        self.fabric.lock().expect("no test goes on after a panic")
    }
}

impl Fabric for Handle {
    type Id = Id;
    type Service = Address;
    type Tx = CreditedTx;
    type Rx = VerbsRx;

    fn has_explicit_credits(&self) -> bool {
        self.get().has_explicit_credits()
    }
    fn listen(&mut self, service: Address) -> Result<(), Reject> {
        self.get().listen(service)
    }
    fn unlisten(&mut self, service: Address) {
        self.get().unlisten(service);
    }
    fn connect(&mut self, service: Address, data: PrivateData) -> Result<Id, Reject> {
        self.get().connect(service, data)
    }
    fn accept(&mut self, id: Id, data: PrivateData) -> Result<(), Reject> {
        self.get().accept(id, data)
    }
    fn reject(&mut self, id: Id, code: u8) {
        self.get().reject(id, code);
    }
    fn poll_cm(&mut self) -> Option<CmEvent<Id>> {
        self.get().poll_cm()
    }
    fn take_queues(&mut self, id: Id) -> Option<(CreditedTx, VerbsRx)> {
        let (tx, rx) = self.get().take_queues(id)?;
        let (mine, other) = (self.get().core(), self.other.clone());
        Some((CreditedTx { tx, index: id.index(), mine, other }, rx))
    }
    fn disconnect(&mut self, id: Id) {
        self.get().disconnect(id);
    }
    fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<MemoryRegion, PostError> {
        self.get().register(addr, len, access)
    }
    fn deregister(&mut self, region: MemoryRegion) {
        self.get().deregister(region);
    }
}

/// A sending half that learns of credits as the protocol would tell it: promised and released.
#[derive(Debug)]
pub(crate) struct CreditedTx {
    tx: VerbsTx,
    index: usize,
    mine: Shared<Core>,
    other: Option<Shared<Core>>,
}

impl CreditedTx {
    /// Does from here on as if everything were promised.
    pub(crate) fn exceed(&mut self) {
        self.other = None;
        self.mine.allow(self.index, self.mine.counts(self.index).map_or(0, |c| c.sent + 1000));
    }

    fn learn(&self) {
        let Some((other, mine)) = self.other.as_ref().zip(self.mine.counts(self.index)) else {
            return;
        };
        let places = (0..CONNECTIONS_MAX).filter_map(|index| other.counts(index));
        if let Some(peer) = places.into_iter().find(|c| c.number == mine.peer_number) {
            self.mine.allow(self.index, PROMISE.wrapping_add(peer.released));
        }
    }
}

impl SendQueue for CreditedTx {
    fn max_message(&self) -> usize {
        self.tx.max_message()
    }
    fn room(&self) -> usize {
        self.learn();
        self.tx.room()
    }
    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.learn();
        self.tx.post_send(id, header, payload, options)
    }
    fn post_read(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.tx.post_read(id, local, remote)
    }
    fn post_write(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.tx.post_write(id, local, remote)
    }
    fn poll_completion(&mut self) -> Option<Completion> {
        self.tx.poll_completion()
    }
}

/// Two fabrics on the stand-in.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) a: Handle,
    pub(crate) b: Handle,
    ids: Option<(Id, Id)>,
}

impl Device {
    fn fabric(&self, side: Side) -> &Handle {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

impl Harness for Device {
    type Tx = CreditedTx;
    type Rx = VerbsRx;
    type Fabric = Handle;

    fn new(_: u64) -> Self {
        let open = || Handle::open(&options()).expect("a fabric");
        let (mut a, mut b) = (open(), open());
        (a.other, b.other) = (Some(b.get().core()), Some(a.get().core()));
        Self { a, b, ids: None }
    }

    fn missing(&self, feature: Feature) -> Option<&'static str> {
        (feature == Feature::NoOneSided).then_some("one-sided work is supported")
    }

    fn request_data_max(&self) -> usize {
        REQUEST_DATA
    }

    fn pads_private_data(&self) -> bool {
        true
    }

    fn pair(&mut self) -> Pair<CreditedTx, VerbsRx> {
        let none = PrivateData::new(&[]).expect("fits");
        let service = address(free_port());
        self.b.listen(service).expect("a free service");
        let active = self.a.connect(service, none).expect("a connect");
        let (mut passive, mut is_there) = (None, false);
        for _ in 0..STEPS {
            if let Some(CmEvent::Request(id, _)) = self.b.poll_cm() {
                self.b.accept(id, none).expect("an acceptance");
                passive = Some(id);
            }
            match self.a.poll_cm() {
                Some(CmEvent::Established(id, _)) if id == active => is_there = true,
                Some(CmEvent::Rejected(..) | CmEvent::Unreachable(_)) => panic!("no connection"),
                _ => {}
            }
            if is_there && passive.is_some() {
                break;
            }
        }
        self.b.unlisten(service);
        assert!(is_there, "no connection");
        let passive = passive.expect("a request");
        self.ids = Some((active, passive));
        let (tx, rx) = self.a.take_queues(active).expect("queues");
        let a = End { tx, rx };
        let (tx, rx) = self.b.take_queues(passive).expect("queues");
        Pair { a, b: End { tx, rx } }
    }

    fn advance(&mut self) -> bool {
        // What a call does is done when it returns.
        self.a.get().progress() | self.b.get().progress()
    }

    fn disconnect(&mut self, side: Side) {
        let (active, passive) = self.ids.expect("a pair");
        match side {
            Side::A => self.a.disconnect(active),
            Side::B => self.b.disconnect(passive),
        }
    }

    fn kill(&mut self, side: Side) {
        self.fabric(side).get().abandon();
    }

    fn allocate(&mut self, _: Side, len: usize) -> u64 {
        vec![0u8; len].leak().as_mut_ptr() as u64
    }

    fn store(&mut self, _: Side, addr: u64, bytes: &[u8]) {
        // SAFETY: memory of `allocate`, and the test stays within it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    }

    fn load(&mut self, _: Side, addr: u64, bytes: &mut [u8]) {
        // SAFETY: memory of `allocate`, of which the test reads no more than it asked for.
        unsafe {
            core::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len())
        };
    }

    fn register(
        &mut self,
        side: Side,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, PostError> {
        self.fabric(side).clone().register(addr, len, access)
    }

    fn deregister(&mut self, side: Side, region: MemoryRegion) {
        self.fabric(side).clone().deregister(region);
    }

    fn fabrics(&mut self) -> Fabrics<Handle> {
        let services = [address(free_port()), address(free_port())];
        Fabrics { client: self.a.clone(), server: self.b.clone(), services, backlog: BACKLOG }
    }
}

/// Bytes to send.
#[derive(Debug)]
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl Gather for Text<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn copy_to(&mut self, offset: usize, dst: &[core::cell::Cell<u8>]) {
        for (cell, byte) in dst.iter().zip(&self.0[offset..]) {
            cell.set(*byte);
        }
    }
}

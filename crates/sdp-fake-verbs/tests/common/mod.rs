//! Two fabrics of one process on the network of the stand-in.

#![allow(dead_code)]

pub(crate) mod ends;
#[path = "../../../sdp-fabric-verbs/tests/common/handle.rs"]
mod handle;

pub(crate) use handle::{CreditedTx, Handle};

use std::sync::atomic::{AtomicU16, Ordering};

use sdp_fabric_tests::{End, Fabrics, Feature, Harness, Pair, Side};
use sdp_fabric_verbs::{
    Address,
    cm::REQUEST_DATA,
    endpoint::VerbsRx,
    fabric::{Id, Options},
};
use sdp_fake_verbs::Network;
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, Gather, MemoryRegion, PostError},
    key::Access,
};

pub(crate) const BACKLOG: usize = 5;
pub(crate) const PROMISE: u32 = 16;
/// Steps within which a connection is there.
const STEPS: usize = 100;

/// Whether the devices have no shared receive queues: in the tests `own_…`.
pub(crate) const HAS_OWN_RECEIVES: bool =
    matches!(module_path!().as_bytes(), [b'o', b'w', b'n', b'_', ..]);

pub(crate) fn network() -> Network {
    let network = Network::private().expect("memory for a network");
    network.set_shared_receives(0, !HAS_OWN_RECEIVES);
    network
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
        network();
        let open = || Handle::open(&address(0), &options()).expect("a fabric");
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
        // The effect of a call is complete when it returns.
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

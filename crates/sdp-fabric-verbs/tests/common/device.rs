//! Two fabrics of one process, for the conformance suite. `sdp-fake-verbs` uses this file, too.
//!
//! The module above says what differs between a device and a stand-in: `open` makes a fabric,
//! `free_service` names an address at which nobody listens, `advance` lets things happen, and
//! `Timeout` waits for connection management, within a bound.

#![allow(dead_code)]

use sdp_fabric_tests::{End, Fabrics, Feature, Harness, Pair, Side};
use sdp_fabric_verbs::{cm::REQUEST_DATA, endpoint::VerbsRx, fabric::Id};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, Gather, MemoryRegion, PostError},
    key::Access,
};

use super::{BACKLOG, CreditedTx, Handle, Timeout, advance, free_service, open};

/// Two fabrics.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) a: Handle,
    pub(crate) b: Handle,
    ids: Option<(Id, Id)>,
    /// Connection management may be in progress at any time.
    pub(crate) is_restless: bool,
}

impl Device {
    fn fabric(&self, side: Side) -> &Handle {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    pub(crate) fn step(&self) -> bool {
        let (mut a, mut b) = (self.a.get(), self.b.get());
        a.progress() | b.progress()
    }
}

impl Harness for Device {
    type Tx = CreditedTx;
    type Rx = VerbsRx;
    type Fabric = Handle;

    fn new(_: u64) -> Self {
        let (mut a, mut b) = (open(), open());
        (a.other, b.other) = (Some(b.get().core()), Some(a.get().core()));
        Self { a, b, ids: None, is_restless: false }
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
        let service = free_service();
        self.b.listen(service).expect("a free service");
        let active = self.a.connect(service, none).expect("a connect");
        let (mut passive, mut is_there) = (None, false);
        let mut timeout = Timeout::begin();
        while passive.is_none() || !is_there {
            if let Some(CmEvent::Request(id, _)) = self.b.poll_cm() {
                self.b.accept(id, none).expect("an acceptance");
                passive = Some(id);
            }
            match self.a.poll_cm() {
                Some(CmEvent::Established(id, _)) if id == active => is_there = true,
                Some(CmEvent::Rejected(..) | CmEvent::Unreachable(_)) => panic!("no connection"),
                _ => timeout.wait(),
            }
        }
        self.b.unlisten(service);
        let passive = passive.expect("was waited for");
        self.ids = Some((active, passive));
        let (tx, rx) = self.a.take_queues(active).expect("queues");
        let a = End { tx, rx };
        let (tx, rx) = self.b.take_queues(passive).expect("queues");
        Pair { a, b: End { tx, rx } }
    }

    fn advance(&mut self) -> bool {
        advance(self)
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
        self.is_restless = true;
        let services = [free_service(), free_service()];
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

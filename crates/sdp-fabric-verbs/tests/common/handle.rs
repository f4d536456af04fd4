//! A fabric that tests and the conformance suite's harness share, and that learns credits as the
//! protocol would announce them. `sdp-fake-verbs` uses this file, too. `PROMISE` of the module
//! above is the number of messages promised to each connection.

#![allow(dead_code)]

use std::sync::{Arc, Mutex, MutexGuard};

use sdp_fabric_verbs::{
    Address, Error,
    budget::CONNECTIONS_MAX,
    endpoint::{Core, VerbsRx, VerbsTx},
    fabric::{Id, Options, VerbsFabric},
    pool::Shared,
};
use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric, Gather, MemoryRegion, PostError, SendOptions, SendQueue},
    key::{Access, LocalSlice, RemoteSlice},
    work::{Completion, WorkId},
};

/// A fabric that test and harness share.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    fabric: Arc<Mutex<VerbsFabric>>,
    /// Of the fabric at the other end.
    pub(crate) other: Option<Shared<Core>>,
}

impl Handle {
    /// The fabric of the device that has this address.
    pub(crate) fn open(address: &Address, options: &Options) -> Result<Self, Error> {
        let fabric = VerbsFabric::open(address, options)?;
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

/// A sending half that learns of credits as the protocol would announce them: promised and
/// released.
#[derive(Debug)]
pub(crate) struct CreditedTx {
    tx: VerbsTx,
    index: usize,
    mine: Shared<Core>,
    /// The other end's, where it is another fabric.
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
            self.mine.allow(self.index, super::PROMISE.wrapping_add(peer.released));
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
    fn post_send_before(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.learn();
        self.tx.post_send_before(id, header, payload, options)
    }
    fn flush(&mut self) {
        self.tx.flush();
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

//! Two fabrics of one process whose connections have rings, for the conformance suite.

use std::{
    cell::Cell,
    sync::{Arc, Mutex, MutexGuard},
};

use sdp_fabric_tests::{End, Fabrics, Feature, Harness, Pair, Side};
use sdp_fabric_verbs::{
    Address,
    budget::{CONNECTIONS_MAX, RING_MESSAGES},
    cm::REQUEST_DATA,
    endpoint::{Core, RingRx, RingTx},
    fabric::{Id, RingFabric},
    pool::Shared,
};
use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{
        CmEvent, Fabric, Gather, MemoryRegion, PeerRing, PostError, QpError, ReceiveQueue,
        Received, Scatter, SendOptions, SendQueue,
    },
    key::{Access, LocalSlice, RemoteSlice, Rkey},
    work::{Completion, WorkId},
};

use super::{BACKLOG, Timeout, address, free_service, network, options};

/// Bytes of a connection's kept memory.
pub(crate) const KEPT: usize = 128 << 10;

/// Memory to send from, which stays for ever.
pub(crate) fn kept() -> (u64, usize) {
    (vec![0u8; KEPT].leak().as_mut_ptr() as u64, KEPT)
}

/// A fabric that test and harness share. Private data goes through unchanged: the ring's key is
/// told by the harness.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    fabric: Arc<Mutex<RingFabric>>,
    other: Option<(Shared<Core>, Offers)>,
    offers: Offers,
}

/// Of each connection: its kept memory, and its ring.
type Offers = Arc<Mutex<Vec<(Id, (u64, usize), PeerRing)>>>;

impl Handle {
    pub(crate) fn open() -> Self {
        network();
        let fabric = RingFabric::open(&address(0), &options()).expect("a fabric");
        let offers = Arc::new(Mutex::new(Vec::new()));
        Self { fabric: Arc::new(Mutex::new(fabric)), other: None, offers }
    }

    pub(crate) fn get(&self) -> MutexGuard<'_, RingFabric> {
        self.fabric.lock().expect("no test goes on after a panic")
    }

    fn offered(&self, id: Id, at: u64, offer: sdp_fabric_verbs::fabric::Offer) {
        let ring = PeerRing { log2: offer.log2, key: Rkey(offer.key) };
        self.offers.lock().expect("as above").push((id, (at, offer.kept), ring));
    }

    fn ring(&self, id: Id) -> Option<((u64, usize), PeerRing)> {
        let offers = self.offers.lock().expect("as above");
        offers.iter().rev().find(|(of, ..)| *of == id).map(|(_, at, ring)| (*at, *ring))
    }
}

impl Fabric for Handle {
    type Id = Id;
    type Service = Address;
    type Tx = KeptTx;
    type Rx = BytesRx;

    fn has_explicit_credits(&self) -> bool {
        false
    }
    fn listen(&mut self, service: Address) -> Result<(), Reject> {
        self.get().listen(service)
    }
    fn unlisten(&mut self, service: Address) {
        self.get().unlisten(service);
    }
    fn connect(&mut self, service: Address, data: PrivateData) -> Result<Id, Reject> {
        let kept = kept();
        // SAFETY: memory that stays.
        let offer = unsafe { self.get().offer(kept) }.map_err(|_| Reject::Busy)?;
        let id = self.get().connect(service, data)?;
        self.offered(id, kept.0, offer);
        Ok(id)
    }
    fn accept(&mut self, id: Id, data: PrivateData) -> Result<(), Reject> {
        let kept = kept();
        // SAFETY: memory that stays.
        if let Ok(offer) = unsafe { self.get().offer_to(id, kept) } {
            self.offered(id, kept.0, offer);
        }
        self.get().accept(id, data)
    }
    fn reject(&mut self, id: Id, code: u8) {
        self.get().reject(id, code);
    }
    fn poll_cm(&mut self) -> Option<CmEvent<Id>> {
        self.get().poll_cm()
    }
    fn take_queues(&mut self, id: Id) -> Option<(KeptTx, BytesRx)> {
        let (tx, rx) = self.get().take_queues(id)?;
        let (mine, other) = (self.get().core(), self.other.clone());
        let kept = self.ring(id).expect("a ring").0;
        let mut tx = KeptTx { tx, index: id.index(), kept, at: 0, mine, other };
        tx.reach_peer();
        Some((tx, BytesRx(rx)))
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

/// A sending half whose payload comes from its kept bytes, and that learns both credits as messages
/// of the peer would tell them.
#[derive(Debug)]
pub(crate) struct KeptTx {
    tx: RingTx,
    index: usize,
    kept: (u64, usize),
    at: usize,
    mine: Shared<Core>,
    other: Option<(Shared<Core>, Offers)>,
}

/// Bytes as they lie in the kept memory.
struct Kept([&'static [u8]; 2]);

impl Gather for Kept {
    fn len(&self) -> usize {
        self.0[0].len() + self.0[1].len()
    }
    fn kept(&self) -> Option<[&[u8]; 2]> {
        Some(self.0)
    }
    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        let bytes = self.0[0].iter().chain(self.0[1]).skip(offset);
        dst.iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
    }
}

impl KeptTx {
    fn learn(&self) {
        self.mine.drain();
        let (Some(index), Some((other, _)), Some(mine)) =
            (self.peer(), self.other.as_ref(), self.mine.counts(self.index))
        else {
            return;
        };
        let Some((before, now)) = other.counts(index).zip(other.counts(index)) else { return };
        self.mine.allow(self.index, RING_MESSAGES.wrapping_add(now.reported));
        // A message under way says less.
        if now.sent == mine.arrived {
            self.mine.learn_freed(self.index, before.freed);
        }
    }

    /// Knows nothing of the peer's credits, and does as if everything were promised.
    pub(crate) fn exceed(&mut self) {
        self.other = None;
        self.mine.allow(self.index, 100_000);
    }

    /// As [`KeptTx::exceed`], for bytes: the peer seems to have freed all that was written.
    pub(crate) fn exceed_room(&mut self, written: u32) {
        self.exceed();
        self.mine.learn_freed(self.index, written);
    }

    /// The peer hears that so much was freed.
    pub(crate) fn pretend_freed(&self, freed: u32) {
        self.mine.pretend_freed(self.index, freed);
    }

    /// The place of the other end's, of which we know the queue pair.
    fn peer(&self) -> Option<usize> {
        let ((other, _), mine) = self.other.as_ref().zip(self.mine.counts(self.index))?;
        let is_its = |index: &usize| {
            other.counts(*index).is_some_and(|peer| peer.number == mine.peer_number)
        };
        (0..CONNECTIONS_MAX).find(is_its)
    }

    /// Learns the peer's ring, as the set-up messages would tell it.
    fn reach_peer(&mut self) {
        if let Some((_, offers)) = self.other.as_ref() {
            let offers = offers.lock().expect("no test goes on after a panic");
            // An end that has not heard of its acceptance has asked last.
            let is_its = |id: Id| self.peer().is_none_or(|index| id.index() == index);
            if let Some((.., ring)) = offers.iter().rev().find(|(id, ..)| is_its(*id)) {
                self.tx.reach(*ring);
            }
        }
    }
}

impl SendQueue for KeptTx {
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
        if self.tx.max_message() == 0 {
            self.reach_peer();
        }
        self.learn();
        let (len, (at, size)) = (payload.len(), self.kept);
        if len > size {
            return self.tx.post_send(id, header, payload, options);
        }
        // SAFETY: the memory of `kept`, which stays; the stand-in has copied what was posted.
        let memory = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, size) };
        let first = len.min(size - self.at);
        payload.copy_to(0, Cell::from_mut(&mut memory[self.at..][..first]).as_slice_of_cells());
        payload.copy_to(first, Cell::from_mut(&mut memory[..len - first]).as_slice_of_cells());
        // SAFETY: memory that stays, of that length; the reference that wrote it is not used any more.
        let memory = unsafe { core::slice::from_raw_parts(at as *const u8, size) };
        let mut kept = Kept([&memory[self.at..][..first], &memory[..len - first]]);
        let posted = self.tx.post_send(id, header, &mut kept, options);
        if posted.is_ok() {
            self.at = (self.at + len) % size;
        }
        posted
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
    fn reach(&mut self, ring: PeerRing) {
        self.tx.reach(ring);
    }
    fn poll_completion(&mut self) -> Option<Completion> {
        self.tx.poll_completion()
    }
}

/// A receiving half in whose words bytes are the only credit.
#[derive(Debug)]
pub(crate) struct BytesRx(pub(crate) RingRx);

impl ReceiveQueue for BytesRx {
    fn posted(&self) -> u16 {
        assert_eq!(u32::from(self.0.posted()), RING_MESSAGES);
        u16::MAX
    }
    fn poll_receive(&mut self) -> Result<Option<Received>, QpError> {
        self.0.poll_receive()
    }
    fn poll_another(&mut self) -> Option<Received> {
        self.0.poll_another()
    }
    fn copy_header(&self, message: Received, dst: &mut [u8]) -> usize {
        self.0.copy_header(message, dst)
    }
    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter) {
        self.0.copy_out(message, offset, len, sink);
    }
    fn release(&mut self, message: Received) {
        self.0.release(message);
    }
}

/// Two fabrics.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) a: Handle,
    pub(crate) b: Handle,
    pub(crate) ids: Option<(Id, Id)>,
    /// Registered memory, oldest first.
    regions: Vec<(Side, Id, MemoryRegion)>,
}

impl Rings {
    fn fabric(&self, side: Side) -> &Handle {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    fn id(&self, side: Side) -> Id {
        let (active, passive) = self.ids.expect("a pair");
        match side {
            Side::A => active,
            Side::B => passive,
        }
    }

    /// The ring of a side.
    pub(crate) fn ring_of(&self, side: Side) -> PeerRing {
        let (active, passive) = self.ids.expect("a pair");
        let ring = match side {
            Side::A => self.a.ring(active),
            Side::B => self.b.ring(passive),
        };
        ring.expect("a ring").1
    }
}

impl Harness for Rings {
    type Tx = KeptTx;
    type Rx = BytesRx;
    type Fabric = Handle;

    fn new(_: u64) -> Self {
        let (mut a, mut b) = (Handle::open(), Handle::open());
        a.other = Some((b.get().core(), b.offers.clone()));
        b.other = Some((a.get().core(), a.offers.clone()));
        Self { a, b, ids: None, regions: Vec::new() }
    }

    fn missing(&self, feature: Feature) -> Option<&'static str> {
        match feature {
            Feature::NoOneSided => Some("one-sided work is supported"),
            Feature::ExplicitCredits => Some("a byte that is kept keeps those behind it"),
            _ => None,
        }
    }

    fn request_data_max(&self) -> usize {
        REQUEST_DATA
    }

    fn pads_private_data(&self) -> bool {
        true
    }

    fn pair(&mut self) -> Pair<KeptTx, BytesRx> {
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
        let (mut a, mut b) = (self.a.get(), self.b.get());
        a.progress() | b.progress()
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
            core::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn register(
        &mut self,
        side: Side,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, PostError> {
        if self.ids.is_none() {
            // Memory of another connection, whose domain is not the next pair's.
            core::mem::forget(self.pair());
        }
        let id = self.id(side);
        let fabric = self.fabric(side).clone();
        // SAFETY: memory that stays, which is read and written as raw bytes.
        let register = || unsafe { fabric.get().register_for(id, addr, len, access) };
        let region = match register() {
            Err(PostError::Full) => {
                // The suite does not end the registrations of earlier rounds.
                let oldest = self.regions.iter().position(|of| (of.0, of.1) == (side, id));
                let (.., oldest) = self.regions.remove(oldest.expect("a region of this pair"));
                fabric.get().deregister_for(id, oldest);
                register()
            }
            done => done,
        };
        if let Ok(region) = region {
            self.regions.push((side, id, region));
        }
        region
    }

    fn deregister(&mut self, side: Side, region: MemoryRegion) {
        let id = self.id(side);
        self.fabric(side).get().deregister_for(id, region);
    }

    fn fabrics(&mut self) -> Fabrics<Handle> {
        let services = [free_service(), free_service()];
        Fabrics { client: self.a.clone(), server: self.b.clone(), services, backlog: BACKLOG }
    }
}

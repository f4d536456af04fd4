//! Connections whose messages are written into rings: their memory, and the fabric that makes them.
//!
//! A connection has a protection domain of its own. In it are its queue pair, with receives of its
//! own, and its regions: the ring, the bytes that are kept by the caller, and places for headers. Its
//! peer has a right in the ring, and in what is advertised to it ([`RingFabric::register_for`]). So a
//! key that a peer guesses opens nothing that is not meant for it.

use core::ops::{Deref, DerefMut};

use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric, MemoryRegion, PostError},
    key::{Access, Lkey, Rkey},
};

use super::{Id, Options, Stage, TAKEN, VerbsFabric, mapped};
use crate::{
    Address, Error,
    abi::verbs as abi,
    budget::{Budget, DEPTH, INLINE, RING_RECEIVES, RingBudget},
    device::{Context, Cq, Domain, Mr, Pd, Qp},
    endpoint::{Parts, RingRx, RingTx},
    pool::Region,
};

/// Regions of one connection that are advertised, or READ into, at a time.
const ADVERTISED: usize = 4;
/// Bytes of a page.
const PAGE: usize = 4096;

/// This end's side of a ring, for its peer and for its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The ring is 2 to the power of this bytes long.
    pub log2: u8,
    /// The key for the peer.
    pub key: u32,
    /// Bytes of the kept memory that may be sent from, from its beginning on.
    pub kept: usize,
}

impl Offer {
    /// The longest message that the peer may send.
    pub const fn longest(&self) -> u32 {
        crate::endpoint::longest(1 << self.log2)
    }
}

/// The memory of a connection. Fields end in this order: regions before memory and domain.
#[derive(Debug)]
pub(super) struct Lane {
    /// What is advertised to the peer, and what its memory is READ into.
    advertised: [Option<Mr>; ADVERTISED],
    ring: Mr,
    headers: Mr,
    kept: Mr,
    /// The ring, then a page for headers.
    memory: Region<[u8; PAGE]>,
    size: u32,
    kept_at: (u64, u32),
    pd: Pd,
}

impl Lane {
    /// # Safety
    /// `kept` stays mapped for as long as this lives.
    unsafe fn new(context: &Context, size: u32, kept: (u64, u32)) -> Result<Self, Error> {
        let pd = Domain::new(context)?;
        let pages = size as usize / PAGE;
        let memory = mapped(pages + 1, |_| [0u8; PAGE])?;
        let at = memory.as_ptr() as u64;
        let rights = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE;
        // SAFETY: the region outlives the registrations, which go before it; the ring is read as
        // memory that the peer may write at any time. The rest is the caller's promise.
        let (ring, headers, kept_mr) = unsafe {
            let ring = Mr::from_zero(&pd, at, size as usize, rights)?;
            let headers = Mr::new(&pd, at + u64::from(size), PAGE, 0)?;
            (ring, headers, Mr::new(&pd, kept.0, kept.1 as usize, 0)?)
        };
        let advertised = [const { None }; ADVERTISED];
        Ok(Self { advertised, ring, headers, kept: kept_mr, memory, size, kept_at: kept, pd })
    }

    pub(super) fn make_qp(&self, cq: &Cq) -> Result<Qp, Error> {
        let pieces = crate::endpoint::PIECES as u32;
        // One more for the last request; a record that crosses the end takes two.
        Qp::new(&self.pd, cq, None, RING_RECEIVES, (DEPTH + 1, pieces), INLINE)
    }

    fn pinned(&self) -> usize {
        RingBudget::pinned(self.size, self.kept_at.1)
    }

    /// # Safety
    /// As [`RingFabric::register_for`].
    unsafe fn register(
        &mut self,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, PostError> {
        let place = self.advertised.iter_mut().find(|place| place.is_none());
        let place = place.ok_or(PostError::Full)?;
        let bytes = usize::try_from(len).map_err(|_| PostError::Unsupported)?;
        // Memory that the peer READs need not be writable.
        let mut rights = if access.remote_read { abi::ACCESS_REMOTE_READ } else { 0 };
        if access.remote_write || !access.remote_read {
            rights |= abi::ACCESS_LOCAL_WRITE;
        }
        if access.remote_write {
            rights |= abi::ACCESS_REMOTE_WRITE;
        }
        // SAFETY: the caller's.
        let made = unsafe { Mr::new(&self.pd, addr, bytes, rights) };
        let mr = made.map_err(|error| match error {
            Error::MemLock => PostError::Full,
            _ => PostError::Unsupported,
        })?;
        let (lkey, rkey) = (Lkey(mr.lkey()), Rkey(mr.rkey()));
        *place = Some(mr);
        Ok(MemoryRegion { addr, len, lkey, rkey })
    }

    fn deregister(&mut self, region: MemoryRegion) {
        let is_it = |mr: &Mr| mr.lkey() == region.lkey.0 && mr.rkey() == region.rkey.0;
        for place in &mut self.advertised {
            if place.as_ref().is_some_and(is_it) {
                *place = None;
            }
        }
    }

    fn parts(&self) -> Parts {
        let at = self.memory.as_ptr() as u64;
        Parts {
            ring: (at, self.size),
            headers: (at + u64::from(self.size), self.headers.lkey()),
            kept: (self.kept_at.0, self.kept_at.1, self.kept.lkey()),
        }
    }

    fn offer(&self) -> Offer {
        let log2 = self.size.trailing_zeros() as u8;
        Offer { log2, key: self.ring.rkey(), kept: self.kept_at.1 as usize }
    }
}

/// The pools of a fabric with rings: none but for what is made with each connection.
pub(super) fn budget(limit: u64, connections: usize) -> Result<(Budget, RingBudget), Error> {
    let rings = RingBudget::within(limit, connections)?;
    let budget = Budget { receives: 0, sends: 1, connections: rings.connections };
    Ok((budget, rings))
}

/// Receives of all connections.
pub(super) const fn receives(budget: &Budget) -> usize {
    budget.connections * RING_RECEIVES as usize
}

impl VerbsFabric {
    /// Sizes of the ring and the kept bytes of one more connection.
    pub(super) fn ring_sizes(&mut self) -> Option<(u32, u32)> {
        let rings = self.rings?;
        let slow = self.slow();
        let slots = slow.slots.iter().filter(|slot| slot.stage != Stage::Free);
        let lanes = slots.map(|slot| slot.lane.as_ref().map_or(0, Lane::pinned));
        let (used, pinned) = lanes.fold((0, 0), |(used, all), one| (used + 1, all + one));
        rings.sizes(used, pinned)
    }

    pub(super) fn give_lane(&mut self, id: Id, lane: Lane) {
        self.core.place(id.index()).rings.set(&lane.parts());
        if let Some(slot) = self.slot(id) {
            slot.lane = Some(lane);
        }
    }

    /// # Safety
    /// As [`RingFabric::offer`].
    unsafe fn make_lane(&mut self, kept: (u64, usize), has_place: bool) -> Result<Lane, Error> {
        let rings = self.rings.ok_or(Error::Full)?;
        let slow = self.slow();
        let slots = slow.slots.iter().filter(|slot| slot.stage != Stage::Free);
        let lanes = slots.map(|slot| slot.lane.as_ref().map_or(0, Lane::pinned));
        let (used, pinned) = lanes.fold((0, 0), |(used, all), one| (used + 1, all + one));
        // A record that has a place already is not one more.
        let used = if has_place { used - 1 } else { used };
        let (size, room) = rings.sizes(used, pinned).ok_or(Error::Full)?;
        let room = room.min(u32::try_from(kept.1).unwrap_or(u32::MAX));
        // SAFETY: the caller's.
        unsafe { Lane::new(&self.context, size, (kept.0, room)) }
    }
}

/// RDMA on the device that has one address of this host, with messages that are written into rings.
#[derive(Debug)]
pub struct RingFabric(VerbsFabric);

impl Deref for RingFabric {
    type Target = VerbsFabric;

    fn deref(&self) -> &VerbsFabric {
        &self.0
    }
}

impl DerefMut for RingFabric {
    fn deref_mut(&mut self) -> &mut VerbsFabric {
        &mut self.0
    }
}

impl RingFabric {
    /// As [`VerbsFabric::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(address: &Address, options: &Options) -> Result<Self, Error> {
        VerbsFabric::open(address, &Options { has_rings: true, ..*options }).map(Self)
    }

    /// Makes a ring for the connection that is asked for next ([`Fabric::connect`]). `kept`: address
    /// and length of the memory that its messages are sent from; how much of it may be is in the
    /// answer. Slow.
    ///
    /// # Errors
    /// No memory may be pinned, or there are as many connections as may be.
    ///
    /// # Safety
    /// That memory stays mapped until the fabric has gone.
    pub unsafe fn offer(&mut self, kept: (u64, usize)) -> Result<Offer, Error> {
        self.slow().offered = None;
        // SAFETY: the caller's.
        let lane = unsafe { self.make_lane(kept, false) }?;
        let offer = lane.offer();
        self.slow().offered = Some(lane);
        Ok(offer)
    }

    /// The same for a request that is to be accepted. Slow.
    ///
    /// # Errors
    /// As [`RingFabric::offer`]; [`Error::Full`], too, if the request is not there any more.
    ///
    /// # Safety
    /// As [`RingFabric::offer`].
    pub unsafe fn offer_to(&mut self, id: Id, kept: (u64, usize)) -> Result<Offer, Error> {
        let slot = self.slot(id).filter(|slot| slot.stage == Stage::Asked).ok_or(Error::Full)?;
        if slot.qp.is_some() {
            return Err(Error::Full);
        }
        slot.lane = None;
        // SAFETY: the caller's.
        let lane = unsafe { self.make_lane(kept, true) }?;
        let offer = lane.offer();
        self.give_lane(id, lane);
        Ok(offer)
    }

    /// Registers memory in the domain of a connection: to be READ or written by its peer, or to READ
    /// that peer's into. Slow.
    ///
    /// # Errors
    /// [`PostError::Full`]: the connection has as many regions as may be, or no memory may be pinned;
    /// [`PostError::Unsupported`]: the range is not the caller's, or the connection has gone.
    ///
    /// # Safety
    /// The memory stays mapped until [`RingFabric::deregister_for`], or until the connection has gone;
    /// nothing relies on its content while the peer, or a READ, may write there.
    pub unsafe fn register_for(
        &mut self,
        id: Id,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, PostError> {
        let slot = self.slot(id).filter(|slot| slot.qp.is_some());
        let lane = slot.and_then(|slot| slot.lane.as_mut()).ok_or(PostError::Unsupported)?;
        // SAFETY: the caller's.
        unsafe { lane.register(addr, len, access) }
    }

    /// Ends a registration of [`RingFabric::register_for`]: the peer's keys are invalid from here on, and
    /// a READ of it ends both queue pairs. Slow.
    pub fn deregister_for(&mut self, id: Id, region: MemoryRegion) {
        if let Some(lane) = self.slot(id).and_then(|slot| slot.lane.as_mut()) {
            lane.deregister(region);
        }
    }

    /// In a forked child: as [`VerbsFabric::forsake`].
    pub fn forsake(self) {
        self.0.forsake();
    }
}

impl Fabric for RingFabric {
    type Id = Id;
    type Service = Address;
    type Tx = RingTx;
    type Rx = RingRx;

    fn has_explicit_credits(&self) -> bool {
        true
    }
    fn listen(&mut self, service: Address) -> Result<(), Reject> {
        self.0.listen(service)
    }
    fn unlisten(&mut self, service: Address) {
        self.0.unlisten(service);
    }
    fn service_of(&mut self, id: Id) -> Option<Address> {
        self.0.service_of(id)
    }
    fn connect(&mut self, service: Address, data: PrivateData) -> Result<Id, Reject> {
        if self.0.slow().offered.is_none() {
            return Err(Reject::Busy);
        }
        self.0.connect(service, data)
    }
    fn accept(&mut self, id: Id, data: PrivateData) -> Result<(), Reject> {
        self.0.accept(id, data)
    }
    fn reject(&mut self, id: Id, code: u8) {
        self.0.reject(id, code);
    }
    fn poll_cm(&mut self) -> Option<CmEvent<Id>> {
        self.0.poll_cm()
    }
    fn take_queues(&mut self, id: Id) -> Option<(RingTx, RingRx)> {
        let index = self.0.take_halves(id)?;
        let core = self.0.core();
        Some((RingTx::new(core.clone(), index), RingRx::new(core, index)))
    }
    fn disconnect(&mut self, id: Id) {
        self.0.disconnect(id);
    }
    fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<MemoryRegion, PostError> {
        self.0.register(addr, len, access)
    }
    fn deregister(&mut self, region: MemoryRegion) {
        self.0.deregister(region);
    }
}

impl VerbsFabric {
    /// The two halves of a place are the caller's from here on, once.
    pub(super) fn take_halves(&mut self, id: Id) -> Option<usize> {
        let slot = self.slot(id)?;
        if !matches!(slot.stage, Stage::Accepted | Stage::Connected) {
            return None;
        }
        let conn = self.core.place(id.index());
        if conn.halves.load(core::sync::atomic::Ordering::Relaxed) & TAKEN != 0 {
            return None;
        }
        conn.halves.store(TAKEN | 3, core::sync::atomic::Ordering::Release);
        Some(id.index())
    }
}

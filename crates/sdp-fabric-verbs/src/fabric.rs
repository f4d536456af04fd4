//! Connections: set-up, end, registered memory. Everything here is slow, and never waits.
//!
//! [`VerbsFabric::progress`] handles the events of the connection manager and the device and takes
//! the steps that follow; a thread that sleeps watches [`VerbsFabric::descriptors`]. Private data
//! of requests and replies travels as it is, in fields of fixed length: the other side sees zeros
//! behind shorter ones.

mod burial;
mod events;
mod goodbye;
mod ring;

use core::sync::atomic::{AtomicU16, Ordering};

use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric, MemoryRegion, PostError, QpError},
    key::{Access, Lkey, Rkey},
};
use sdp_sys::Errno;

use crate::{
    Address, Error,
    abi::{cm as cm_abi, verbs as abi},
    budget::{self, BUFFER, Budget, DEPTH, INLINE, RESERVE, RING_MESSAGES, RingBudget},
    cm::{CmChannel, CmId, Event, Manager, REPLY_DATA, REQUEST_DATA, Reads, Times},
    device::{self, Channel, Context, Domain, Mr, Pd, Qp, Queue},
    endpoint::{Conn, Core, Counts, INBOX, Receives, VerbsRx, VerbsTx},
    numbers::Numbers,
    pool::{Region, Shared},
    status::{BY_CONSUMER, refusal},
};

use goodbye::Goodbyes;
use ring::Lane;
pub use ring::{Offer, RingFabric};

/// Listeners of a fabric.
pub const LISTENERS_MAX: usize = budget::CONNECTIONS_MAX;
/// Registrations of a fabric.
pub const REGIONS_MAX: usize = 256;
/// Events that wait for [`Fabric::poll_cm`]: each place has at most two.
const EVENTS_MAX: usize = 512;
/// How long the kernel looks for an address and a road.
const RESOLVE_MS: u32 = 1000;
/// The soft limit of descriptors below which the program would miss those that are moved out of its sight.
const DESCRIPTORS_LEAST: u64 = 256;
/// In a `uid`: a listener's; the rest is its place.
const IS_LISTENER: u64 = 1 << 32;
/// The `uid` of an id that only reports the device's events: of a listener that has no place.
const WATCH: u64 = u64::MAX;

/// How a fabric is to be.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most connections.
    pub connections: usize,
    /// Receive buffers promised to each connection at most.
    pub promise: u32,
    /// Requests that wait for an answer, in all.
    pub backlog: usize,
    /// Least number of the descriptors that are kept open.
    pub floor: i32,
    /// Time-outs and retries.
    pub times: Times,
    /// Bytes that may be pinned; `None`: the limit of this process.
    pub memory: Option<u64>,
    /// One receive queue for all connections, if the device has such queues.
    pub shared_receives: bool,
    /// Messages are written into rings ([`RingFabric`]).
    pub has_rings: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: budget::CONNECTIONS_MAX,
            promise: 4,
            backlog: 16,
            floor: 128,
            times: Times::USUAL,
            memory: None,
            shared_receives: true,
            has_rings: false,
        }
    }
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    /// Ours: address, road, answer.
    Asking,
    /// Theirs, unanswered.
    Asked,
    /// Accepted by us; the other side has not confirmed.
    Accepted,
    /// Both ways.
    Connected,
    /// In the error state, until it is not used any more.
    Ending,
}

/// A connection's place, as slow steps see it.
#[derive(Debug)]
pub(crate) struct Slot {
    stage: Stage,
    /// Distinguishes connections that had the same place.
    generation: u32,
    /// Before the queue pair in the order of ends: the peer hears of it first.
    id: Option<CmId>,
    qp: Option<Qp>,
    /// Behind its queue pair in the order of ends.
    lane: Option<Lane>,
    data: Option<PrivateData>,
    /// Theirs: the listener that they asked.
    service: Option<Address>,
    /// As the queue pair was told: no more than the other side offered.
    reads: Reads,
    /// The end was reported, or is not to be reported.
    is_reported: bool,
}

#[derive(Debug)]
struct Registered {
    mr: Mr,
    rkey: u32,
}

/// The objects that only slow steps use.
#[derive(Debug)]
pub struct Slow {
    slots: Region<Slot>,
    listeners: Region<Option<(CmId, Address)>>,
    regions: Region<Option<Registered>>,
    /// Of the next connection that is asked for.
    offered: Option<Lane>,
    events: Region<Option<CmEvent<Id>>>,
    first_event: usize,
    event_count: usize,
    /// Bound to the device's address for as long as it is open. The kernel tells the owners of such
    /// ids that the device is going, and some drivers report it nowhere else: without connections
    /// this process would never learn of it, and the kernel would wait for it.
    watch: Option<CmId>,
    goodbyes: Goodbyes,
    /// Dropped behind everything that came of it.
    manager: Option<CmChannel>,
    pd: Pd,
}

/// Names a connection: its place and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id {
    index: u16,
    generation: u32,
}

impl Id {
    /// The place, for [`VerbsFabric::counts`].
    pub const fn index(self) -> usize {
        self.index as usize
    }

    const fn uid(self) -> u64 {
        // Never 0, and never a listener's: bit 32 stays clear.
        1 + self.index as u64 + ((self.generation as u64 & 0x7fff_ffff) << 33)
    }

    const fn of(uid: u64) -> Self {
        Self { index: (uid as u32).wrapping_sub(1) as u16, generation: (uid >> 33) as u32 }
    }
}

/// RDMA on the device that has one address of this host.
#[derive(Debug)]
pub struct VerbsFabric {
    core: Shared<Core>,
    context: Context,
    channel: device::CompChannel,
    address: Address,
    port: u8,
    options: Options,
    budget: Budget,
    rings: Option<RingBudget>,
    is_lost: bool,
}

fn mapped<T>(count: usize, make: impl FnMut(usize) -> T) -> Result<Region<T>, Error> {
    Region::new(count, make).map_err(|errno| Error::of("mmap", errno))
}

impl VerbsFabric {
    /// Opens the device that has `address` (its port does not matter), with pools of its own.
    ///
    /// # Errors
    /// [`Error::NoDevice`] at the cost of one failed `open` where the host has no connection manager; the others
    /// are as they say.
    pub fn open(address: &Address, options: &Options) -> Result<Self, Error> {
        let manager = Manager::open(options.floor)?;
        if budget::soft_limit(libc::RLIMIT_NOFILE as i32).unwrap_or(0) < DESCRIPTORS_LEAST {
            return Err(Error::Descriptors);
        }
        let limit = budget::limit();
        if limit < budget::LEAST_LIMIT {
            return Err(Error::MemLock);
        }
        let limit = options.memory.unwrap_or(limit);
        let (budget, rings) = match options.has_rings {
            true => ring::budget(limit, options.connections).map(|(b, r)| (b, Some(r)))?,
            false => (Budget::within(limit, options.connections)?, None),
        };
        let watch = CmId::watching(&manager, WATCH)?;
        watch.bind(&address.with_port(0))?;
        let (guid, port) = watch.device()?;
        let context = device::open(guid, options.floor)?;
        let pd = Domain::new(&context)?;
        let channel = Channel::new(&context, options.floor)?;
        let receives = if rings.is_some() { ring::receives(&budget) } else { budget.receives };
        let cq = Queue::new(&channel, receives + budget.connections * (DEPTH as usize + 1))?;
        let is_shared = options.shared_receives && rings.is_none();
        let receive_queue = Receives::new(&pd, budget.receives, is_shared)?;
        let memory = mapped(budget.receives + budget.sends, |_| [0u8; BUFFER])?;
        let bytes = memory.len() * BUFFER;
        // SAFETY: the region outlives the registration: both go with the core, in that order.
        let mr = unsafe { Mr::new(&pd, memory.as_ptr() as u64, bytes, abi::ACCESS_LOCAL_WRITE) }?;
        let slow = Slow {
            slots: mapped(budget.connections, |_| Slot {
                stage: Stage::Free,
                generation: 0,
                id: None,
                qp: None,
                lane: None,
                data: None,
                service: None,
                reads: Reads { ours: 0, theirs: 0 },
                is_reported: false,
            })?,
            listeners: mapped(LISTENERS_MAX, |_| None)?,
            regions: mapped(REGIONS_MAX, |_| None)?,
            offered: None,
            events: mapped(EVENTS_MAX, |_| None)?,
            first_event: 0,
            event_count: 0,
            watch: Some(watch),
            goodbyes: Goodbyes::new(mapped(budget.connections, |_| None)?),
            manager: Some(manager),
            pd,
        };
        let conns = mapped(budget.connections, |_| Conn::new())?;
        let owners = mapped(budget.receives, |_| AtomicU16::new(0))?;
        let core = Core::new(slow, conns, cq, receive_queue, mr, memory, budget.receives, owners);
        let core = Shared::new(core).map_err(|errno| Error::of("mmap", errno))?;
        core.fill();
        let promise = options.promise.clamp(1, INBOX as u32 - RESERVE);
        let options = Options { promise, ..*options };
        let address = *address;
        let is_lost = false;
        Ok(Self { core, context, channel, address, port, options, budget, rings, is_lost })
    }

    /// The sizes that the pools are enough for.
    pub const fn budget(&self) -> Budget {
        self.budget
    }

    /// The descriptors that this keeps open: device, its events, completion channel, connection
    /// manager. A thread that sleeps watches the last three.
    pub fn descriptors(&mut self) -> [i32; 4] {
        self.numbers().all()
    }

    /// The same, for threads that have not the fabric. They go before it does.
    pub fn numbers(&mut self) -> Numbers {
        let manager = self.slow().manager.clone();
        Numbers::new(self.core.clone(), self.context.clone(), self.channel.clone(), manager)
    }

    /// The channel becomes readable with the next completion; with `solicited_only`, with the next message that
    /// its sender wants noticed, or failure. Look again ([`Core::drain`]) between this and sleeping. Fast.
    ///
    /// # Errors
    /// The provider's.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        self.core.cq.arm(solicited_only)
    }

    /// Takes the channel's events; whether there were any.
    pub fn take_wakeups(&self) -> bool {
        self.core.cq.take_wakeups()
    }

    /// The data path's side, for threads that poll, arm and count without the fabric.
    pub fn core(&self) -> Shared<Core> {
        self.core.clone()
    }

    /// Receive buffers that the next connection is promised; `None`: there are as many as may be. It holds until the next
    /// connection begins or is asked for, or one ends. Slow.
    pub fn promise(&mut self) -> Option<u32> {
        if self.rings.is_some() {
            return self.ring_sizes().map(|_| RING_MESSAGES);
        }
        let promised = self.core.conns.iter().map(|conn| conn.promised.load(Ordering::Relaxed));
        let each = promised.filter(|promised| *promised != 0).map(|n| (n + RESERVE) as usize);
        let (used, committed) = each.fold((0, 0), |(used, all), n| (used + 1, all + n));
        self.budget.promise(used, committed, self.options.promise)
    }

    /// Receive buffers that a connection was promised, from its request on.
    pub fn promised(&self, id: Id) -> u32 {
        self.core.place(id.index()).promised.load(Ordering::Relaxed)
    }

    /// The address of who asked for a connection, or has one; `None`: not known. Slow.
    pub fn peer(&mut self, id: Id) -> Option<Address> {
        self.slot(id)?.id.as_ref()?.peer().ok().flatten()
    }

    /// A place's counts, for credits.
    pub fn counts(&self, index: usize) -> Option<Counts> {
        self.core.counts(index)
    }

    /// The peer of a place has room for so many messages in all.
    pub fn allow(&self, index: usize, messages: u32) {
        self.core.allow(index, messages);
    }

    /// Ends like a process that is killed: the kernel tells the peers. For tests.
    pub fn abandon(&mut self) {
        let slow = self.slow();
        for slot in slow.slots.as_mut() {
            slot.id = None;
        }
        slow.goodbyes.forget();
        (slow.watch, slow.manager) = (None, None);
        for conn in self.core.conns.iter() {
            conn.fail(QpError::Disconnected);
        }
        self.core.wants_step();
    }

    #[allow(clippy::mut_from_ref)]
    const fn slow_of(core: &Core) -> &mut Slow {
        // SAFETY: only the fabric's own methods come here, each with the only reference to the only
        // fabric of this core, and none keeps its reference over a call of another.
        unsafe { &mut *core.slow.get() }
    }

    fn slow(&mut self) -> &mut Slow {
        Self::slow_of(&self.core)
    }

    fn tell(&mut self, event: CmEvent<Id>) {
        let slow = self.slow();
        if slow.event_count < EVENTS_MAX {
            let at = (slow.first_event + slow.event_count) % EVENTS_MAX;
            if let Some(place) = slow.events.as_mut().get_mut(at) {
                *place = Some(event);
            }
            slow.event_count += 1;
        }
    }

    fn take_place(&mut self, stage: Stage) -> Option<Id> {
        if self.is_lost {
            return None;
        }
        let promise = self.promise()?;
        let slots = self.slow().slots.as_mut();
        let index = slots.iter().position(|slot| slot.stage == Stage::Free)?;
        let slot = slots.get_mut(index)?;
        slot.stage = stage;
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        (slot.data, slot.service, slot.is_reported) = (None, None, false);
        let id = Id { index: index as u16, generation: slot.generation };
        self.core.place(index).begin(promise);
        let lane = self.slow().offered.take_if(|_| stage == Stage::Asking);
        if let Some(lane) = lane {
            self.give_lane(id, lane);
        }
        Some(id)
    }

    fn slot(&mut self, id: Id) -> Option<&mut Slot> {
        let slot = self.slow().slots.as_mut().get_mut(id.index())?;
        (slot.stage != Stage::Free && slot.generation == id.generation).then_some(slot)
    }

    /// Makes the queue pair of a place and brings it to INIT.
    fn make_qp(&mut self, id: Id) -> Result<u32, Error> {
        let core = self.core.clone();
        let has_rings = self.rings.is_some();
        let qp = match self.slot(id).and_then(|slot| slot.lane.as_ref()) {
            Some(lane) => lane.make_qp(&core.cq)?,
            // No right of a peer's is in the domain of all.
            None if has_rings => return Err(Error::Full),
            None => {
                let pd = self.slow().pd.clone();
                let (shared, own) = (core.receive_queue.shared(), core.share(id.index()));
                Qp::new(&pd, &core.cq, shared, own, (DEPTH + 1, 1), INLINE)?
            }
        };
        let times = self.options.times;
        let slot = self.slot(id).ok_or(Error::Full)?;
        let cm_id = slot.id.as_ref().ok_or(Error::NoDevice)?;
        let (mut attributes, mask) = cm_id.attributes(abi::QPS_INIT, &times)?;
        attributes.qp_access_flags |=
            (abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE | abi::ACCESS_LOCAL_WRITE) as u32;
        qp.modify(&attributes, mask)?;
        let (number, raw) = (qp.number(), qp.raw());
        slot.qp = Some(qp);
        core.stock(id.index(), raw)?;
        Ok(number)
    }

    /// To RTR and RTS, with our own times; the data path may begin.
    fn start_qp(&mut self, id: Id, peer_number: u32) -> Result<(), Error> {
        let times = self.options.times;
        let slot = self.slot(id).ok_or(Error::Full)?;
        let (Some(cm_id), Some(qp)) = (slot.id.as_ref(), slot.qp.as_ref()) else {
            return Err(Error::NoDevice);
        };
        // The kernel has what the other side offered, which may be more than this one takes.
        let (mut attributes, mask) = cm_id.attributes(abi::QPS_RTR, &times)?;
        let theirs = attributes.max_dest_rd_atomic.min(times.reads);
        attributes.max_dest_rd_atomic = theirs;
        qp.modify(&attributes, mask | abi::QP_MIN_RNR_TIMER)?;
        let (mut attributes, mask) = cm_id.attributes(abi::QPS_RTS, &times)?;
        let ours = attributes.max_rd_atomic.min(times.reads);
        attributes.max_rd_atomic = ours;
        let times_mask = abi::QP_TIMEOUT | abi::QP_RETRY_CNT | abi::QP_RNR_RETRY;
        qp.modify(&attributes, mask | times_mask)?;
        let (number, raw) = (qp.number(), qp.raw());
        slot.reads = Reads { ours, theirs };
        let conn = self.core.place(id.index());
        conn.peer_number.store(peer_number, Ordering::Relaxed);
        conn.qp.store(raw.as_ptr(), Ordering::Release);
        conn.number.store(number, Ordering::Release);
        Ok(())
    }

    /// Makes the queue pair with which a request will be accepted: [`Fabric::accept`] allocates
    /// nothing then.
    ///
    /// # Errors
    /// As [`Fabric::accept`].
    pub fn prepare(&mut self, id: Id) -> Result<(), Reject> {
        if self.slot(id).is_none_or(|slot| slot.stage != Stage::Asked) {
            return Err(Reject::Stale);
        }
        if self.slot(id).is_some_and(|slot| slot.qp.is_some()) {
            return Ok(());
        }
        let peer_number = self.core.place(id.index()).peer_number.load(Ordering::Relaxed);
        let made = self.make_qp(id).and_then(|_| self.start_qp(id, peer_number));
        made.map_err(|error| {
            self.forget(id);
            if error == Error::MemLock { Reject::Busy } else { Reject::Stale }
        })
    }

    /// Forgets a place whose connection was never made.
    fn forget(&mut self, id: Id) {
        let index = id.index();
        let ended = self.slot(id).and_then(|slot| {
            // One without a queue pair has nothing to say, unless it was asked.
            let has_spoken = slot.qp.is_some() || slot.stage == Stage::Asked;
            slot.id.take().filter(|_| has_spoken)
        });
        self.slow().goodbyes.end(ended);
        if let Some(slot) = self.slot(id) {
            (slot.qp, slot.lane, slot.stage) = (None, None, Stage::Free);
        }
        let conn = self.core.place(index);
        conn.number.store(0, Ordering::Release);
        conn.qp.store(core::ptr::null_mut(), Ordering::Release);
        self.core.clear(index);
    }

    /// Begins the end of a connection: no work any more, work in flight is flushed, the peer is
    /// told. Frees no memory: the queue pair is destroyed later ([`VerbsFabric::bury`]).
    fn end(&mut self, id: Id, why: QpError) {
        let must_be_quiet = self.must_be_quiet();
        let core = self.core.clone();
        core.place(id.index()).fail(why);
        let Some(slot) = self.slot(id) else { return };
        match slot.stage {
            Stage::Connected | Stage::Accepted => {}
            Stage::Ending | Stage::Free => return,
            Stage::Asking | Stage::Asked if slot.qp.is_none() => return self.forget(id),
            Stage::Asking | Stage::Asked => {
                // It was never ready to send or receive: nothing is under way.
                slot.stage = Stage::Ending;
                let ended = slot.id.take();
                self.slow().goodbyes.end(ended);
                core.place(id.index()).is_drained.store(true, Ordering::Release);
                return core.wants_step();
            }
        }
        let is_unconfirmed = slot.stage == Stage::Accepted;
        slot.stage = Stage::Ending;
        // Messages that have arrived are taken before the queue pair goes.
        core.drain();
        if let Some(qp) = &slot.qp {
            let raw = qp.fail().is_ok().then(|| qp.raw());
            core.close_posts(id.index(), raw);
        }
        if let Some(cm_id) = &slot.id {
            if is_unconfirmed {
                let _ = cm_id.establish();
            }
            if !must_be_quiet {
                let _ = cm_id.disconnect();
            }
        }
        core.wants_step();
    }

    fn tell_end(&mut self, id: Id) {
        let Some(slot) = self.slot(id) else { return };
        if !core::mem::replace(&mut slot.is_reported, true) {
            self.tell(CmEvent::Disconnected(id));
        }
    }

    /// Does all that can be done now; whether there was something to do. Call it when a descriptor
    /// is readable, and when [`VerbsFabric::is_due`].
    pub fn progress(&mut self) -> bool {
        let mut had_some = self.core.drain();
        while let Some(event) = self.next_event() {
            had_some = true;
            self.handle(&event);
        }
        had_some |= self.hear();
        if self.core.is_broken.load(Ordering::Acquire) && !self.is_lost {
            had_some = true;
            self.lose();
        }
        if self.core.is_due.swap(false, Ordering::AcqRel) {
            self.slow().goodbyes.say();
            had_some |= self.look_after_all();
        }
        had_some
    }

    /// Whether [`VerbsFabric::progress`] has something to do that no descriptor reports.
    pub fn is_due(&self) -> bool {
        self.core.is_due.load(Ordering::Acquire)
    }

    /// Whether the device is gone or going: no connection can be made any more. Drop the fabric, and the halves, soon: the
    /// kernel may wait for that.
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The device's name, `rxe0` for example, as bytes.
    pub fn device_name(&self) -> &[u8] {
        self.context.name()
    }

    /// The number of its port that has the address, from 1.
    pub const fn device_port(&self) -> u8 {
        self.port
    }

    /// In a forked child: the parent's objects stay the parent's. Closes this process's descriptors of them, and
    /// forgets the rest.
    pub fn forsake(mut self) {
        for number in self.descriptors() {
            if number >= 0 {
                sdp_sys::fd::close(number);
            }
        }
        core::mem::forget(self);
    }

    fn lose(&mut self) {
        self.is_lost = true;
        let is_broken = self.core.is_broken.load(Ordering::Acquire);
        for conn in self.core.conns.iter() {
            conn.fail(QpError::Fatal);
            if is_broken {
                // No completion will report it.
                conn.is_drained.store(true, Ordering::Release);
            }
        }
        self.core.wants_step();
    }

    fn next_event(&mut self) -> Option<Event> {
        self.slow().manager.as_ref()?.event().ok().flatten()
    }

    fn at(&mut self, index: usize) -> Option<(Id, Stage)> {
        let slot = self.slow().slots.get(index)?;
        Some((Id { index: index as u16, generation: slot.generation }, slot.stage))
    }

    fn handle(&mut self, event: &Event) {
        if event.kind() == cm_abi::EVENT_CONNECT_REQUEST {
            return self.request(event);
        }
        if event.kind() == cm_abi::EVENT_DEVICE_REMOVAL {
            self.lose();
        }
        if event.uid() & IS_LISTENER != 0 {
            if event.kind() == cm_abi::EVENT_DEVICE_REMOVAL
                && let Some(listener) =
                    self.slow().listeners.as_mut().get_mut(event.uid() as u32 as usize)
            {
                *listener = None;
            }
            return;
        }
        let id = Id::of(event.uid());
        let Some(stage) = self.slot(id).map(|slot| slot.stage) else { return };
        match (event.kind(), stage) {
            (cm_abi::EVENT_ADDR_RESOLVED, Stage::Asking) => {
                let resolved = self
                    .slot(id)
                    .and_then(|slot| slot.id.as_ref())
                    .map(|cm_id| cm_id.resolve_route(RESOLVE_MS));
                if !matches!(resolved, Some(Ok(()))) {
                    self.give_up(id, CmEvent::Unreachable(id));
                }
            }
            (cm_abi::EVENT_ROUTE_RESOLVED, Stage::Asking) if self.ask(id).is_err() => {
                self.give_up(id, CmEvent::Unreachable(id));
            }
            (cm_abi::EVENT_CONNECT_RESPONSE, Stage::Asking) => self.answered(id, event),
            (cm_abi::EVENT_REJECTED, Stage::Asking) => {
                self.give_up(id, CmEvent::Rejected(id, refusal(event)));
            }
            (
                cm_abi::EVENT_ADDR_ERROR
                | cm_abi::EVENT_ROUTE_ERROR
                | cm_abi::EVENT_CONNECT_ERROR
                | cm_abi::EVENT_UNREACHABLE
                | cm_abi::EVENT_DEVICE_REMOVAL,
                Stage::Asking,
            ) => self.give_up(id, CmEvent::Unreachable(id)),
            (cm_abi::EVENT_ESTABLISHED, Stage::Accepted) => {
                if let Some(slot) = self.slot(id) {
                    slot.stage = Stage::Connected;
                }
            }
            (
                cm_abi::EVENT_DISCONNECTED
                | cm_abi::EVENT_REJECTED
                | cm_abi::EVENT_CONNECT_ERROR
                | cm_abi::EVENT_UNREACHABLE
                | cm_abi::EVENT_DEVICE_REMOVAL,
                Stage::Accepted | Stage::Connected,
            ) => {
                self.end(id, QpError::Disconnected);
                self.tell_end(id);
            }
            _ => {}
        }
    }

    fn give_up(&mut self, id: Id, event: CmEvent<Id>) {
        self.forget(id);
        self.tell(event);
    }

    /// The road is known: asks.
    fn ask(&mut self, id: Id) -> Result<(), Error> {
        if self.must_be_quiet_still() {
            return Err(Error::NoDevice);
        }
        let number = self.make_qp(id)?;
        let times = self.options.times;
        let slot = self.slot(id).ok_or(Error::Full)?;
        let data = slot.data.ok_or(Error::Full)?;
        let cm_id = slot.id.as_ref().ok_or(Error::NoDevice)?;
        cm_id.connect(number, data.as_slice(), &times)
    }

    fn answered(&mut self, id: Id, event: &Event) {
        let data = PrivateData::new(
            event.private_data().get(..REPLY_DATA).unwrap_or(event.private_data()),
        );
        if self.must_be_quiet_still() {
            return self.give_up(id, CmEvent::Unreachable(id));
        }
        let started = self.start_qp(id, event.peer_qp());
        let confirmed = started.and_then(|()| {
            let slot = self.slot(id).ok_or(Error::Full)?;
            slot.id.as_ref().ok_or(Error::NoDevice)?.confirm(id.uid())
        });
        match (confirmed, data) {
            (Ok(()), Some(data)) => {
                if let Some(slot) = self.slot(id) {
                    slot.stage = Stage::Connected;
                }
                self.tell(CmEvent::Established(id, data));
            }
            _ => self.give_up(id, CmEvent::Unreachable(id)),
        }
    }

    fn request(&mut self, event: &Event) {
        let Some(manager) = self.slow().manager.clone() else { return };
        let Some(cm_id) = event.request(&manager) else { return };
        let waiting = self.slow().slots.iter().filter(|slot| slot.stage == Stage::Asked).count();
        let data = PrivateData::new(event.private_data());
        let data = data.filter(|_| waiting < self.options.backlog);
        let Some((data, id)) = data.and_then(|data| Some((data, self.take_place(Stage::Asked)?)))
        else {
            if !self.must_be_quiet_still() {
                let _ = cm_id.reject(&[]);
            }
            return self.slow().goodbyes.end(Some(cm_id));
        };
        self.core.place(id.index()).peer_number.store(event.peer_qp(), Ordering::Relaxed);
        let listener = self.slow().listeners.get(event.uid() as u32 as usize);
        let service = listener.and_then(|listener| listener.as_ref().map(|(_, at)| *at));
        if let Some(slot) = self.slot(id) {
            (slot.id, slot.service) = (Some(cm_id), service);
        }
        self.tell(CmEvent::Request(id, data));
    }
}

impl Fabric for VerbsFabric {
    type Id = Id;
    type Service = Address;
    type Tx = VerbsTx;
    type Rx = VerbsRx;

    fn has_explicit_credits(&self) -> bool {
        true
    }

    fn listen(&mut self, service: Address) -> Result<(), Reject> {
        let backlog = self.options.backlog as u32;
        let slow = self.slow();
        let manager = slow.manager.as_ref().ok_or(Reject::InvalidService)?;
        let listeners = &slow.listeners;
        let place = listeners.iter().position(Option::is_none).ok_or(Reject::Busy)?;
        let listening = CmId::new(manager, IS_LISTENER | place as u64).and_then(|id| {
            id.bind(&service)?;
            // More than are kept: those beyond are refused with a reason, not dropped.
            id.listen(backlog + 64)?;
            Ok(id)
        });
        match listening {
            Ok(id) => {
                if let Some(listener) = slow.listeners.as_mut().get_mut(place) {
                    *listener = Some((id, service));
                }
                Ok(())
            }
            Err(Error::Os(_, Errno::EADDRINUSE)) => Err(Reject::Busy),
            Err(_) => Err(Reject::InvalidService),
        }
    }

    fn unlisten(&mut self, service: Address) {
        let is_its = |listener: &&mut Option<(CmId, Address)>| {
            listener.as_ref().is_some_and(|(_, at)| *at == service)
        };
        self.hear();
        let slow = self.slow();
        if let Some(listener) = slow.listeners.as_mut().iter_mut().find(is_its) {
            // The requests that wait there are refused.
            slow.goodbyes.end(listener.take().map(|(id, _)| id));
        }
    }

    fn service_of(&mut self, id: Id) -> Option<Address> {
        let slot = self.slot(id)?;
        slot.service.filter(|_| slot.stage == Stage::Asked)
    }

    fn connect(&mut self, service: Address, data: PrivateData) -> Result<Id, Reject> {
        if data.as_slice().len() > REQUEST_DATA {
            return Err(Reject::PrivateDataTooLong);
        }
        let from = self.address.with_port(0);
        let manager = self.slow().manager.clone().ok_or(Reject::InvalidService)?;
        let id = self.take_place(Stage::Asking).ok_or(Reject::Busy)?;
        let asking = CmId::new(&manager, id.uid()).and_then(|cm_id| {
            cm_id.resolve_address(&from, &service, RESOLVE_MS)?;
            Ok(cm_id)
        });
        match (asking, self.slot(id)) {
            (Ok(cm_id), Some(slot)) => {
                (slot.id, slot.data) = (Some(cm_id), Some(data));
                Ok(id)
            }
            _ => {
                self.forget(id);
                Err(Reject::InvalidService)
            }
        }
    }

    fn accept(&mut self, id: Id, data: PrivateData) -> Result<(), Reject> {
        if data.as_slice().len() > REPLY_DATA {
            return Err(Reject::PrivateDataTooLong);
        }
        if self.must_be_quiet_still() {
            self.end(id, QpError::Disconnected);
            return Err(Reject::Stale);
        }
        self.prepare(id)?;
        let times = self.options.times;
        let number = self.core.place(id.index()).number.load(Ordering::Relaxed);
        let accepted = self.slot(id).ok_or(Error::Full).and_then(|slot| {
            let cm_id = slot.id.as_ref().ok_or(Error::NoDevice)?;
            cm_id.accept(id.uid(), number, data.as_slice(), &times, slot.reads)?;
            slot.stage = Stage::Accepted;
            Ok(())
        });
        accepted.map_err(|_| {
            // Not at once: the caller may hold a lock, and this is no more than a place that ends.
            self.end(id, QpError::Disconnected);
            Reject::Stale
        })
    }

    fn reject(&mut self, id: Id, code: u8) {
        let Some(slot) = self.slot(id) else { return };
        if slot.stage != Stage::Asked {
            return;
        }
        if !self.must_be_quiet_still()
            && let Some(cm_id) = self.slot(id).and_then(|slot| slot.id.take())
        {
            let _ = cm_id.reject(&[BY_CONSUMER, code]);
        }
        self.forget(id);
    }

    fn poll_cm(&mut self) -> Option<CmEvent<Id>> {
        self.progress();
        let slow = self.slow();
        if slow.event_count == 0 {
            return None;
        }
        let at = slow.first_event;
        slow.first_event = (at + 1) % EVENTS_MAX;
        slow.event_count -= 1;
        slow.events.as_mut().get_mut(at)?.take()
    }

    fn take_queues(&mut self, id: Id) -> Option<(VerbsTx, VerbsRx)> {
        let index = self.take_halves(id)?;
        let core = self.core.clone();
        Some((VerbsTx::new(core.clone(), index), VerbsRx::new(core, index)))
    }

    fn disconnect(&mut self, id: Id) {
        if let Some(slot) = self.slot(id) {
            slot.is_reported = true;
        }
        self.end(id, QpError::Disconnected);
    }

    fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<MemoryRegion, PostError> {
        let slow = self.slow();
        let place = slow.regions.iter().position(Option::is_none).ok_or(PostError::Full)?;
        let mut rights = abi::ACCESS_LOCAL_WRITE;
        if access.remote_read {
            rights |= abi::ACCESS_REMOTE_READ;
        }
        if access.remote_write {
            rights |= abi::ACCESS_REMOTE_WRITE;
        }
        let bytes = usize::try_from(len).map_err(|_| PostError::Unsupported)?;
        // SAFETY: the caller ends the registration before the memory goes (the trait's contract), and lets the peer in.
        let mr =
            unsafe { Mr::new(&slow.pd, addr, bytes, rights) }.map_err(|error| match error {
                Error::MemLock => PostError::Full,
                _ => PostError::Unsupported,
            })?;
        let (lkey, rkey) = (mr.lkey(), mr.rkey());
        if let Some(region) = slow.regions.as_mut().get_mut(place) {
            *region = Some(Registered { mr, rkey });
        }
        Ok(MemoryRegion { addr, len, lkey: Lkey(lkey), rkey: Rkey(rkey) })
    }

    fn deregister(&mut self, region: MemoryRegion) {
        let is_it = |place: &&mut Option<Registered>| {
            place.as_ref().is_some_and(|r| r.rkey == region.rkey.0 && r.mr.lkey() == region.lkey.0)
        };
        if let Some(registered) = self.slow().regions.as_mut().iter_mut().find(is_it) {
            *registered = None;
        }
    }
}

/// In [`Conn::halves`]: they were taken once.
const TAKEN: u8 = 4;

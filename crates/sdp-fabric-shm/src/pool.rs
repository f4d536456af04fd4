//! Segments that two processes use again: a small pool, and the *offer slot* on which they meet the
//! next time.
//!
//! When a connection ends, both ends may keep its segment mapped instead of giving it back. As soon
//! as both have declared that, no connection has it, and its control page has room for an offer
//! slot: the end that made the next connection between the two processes writes its offer there,
//! the end that accepted the connection takes the offer, and both have a segment whose pages are
//! there already. No descriptor travels, no thread waits, and a step that finds nothing makes no
//! system call.
//!
//! It refuses to decide which process may be believed: an offer and its answer are hostile words,
//! and the caller proves them by the kernel ([`crate::identity::examine`],
//! [`crate::peer::PeerTable::holds`]) before it goes on, unless they are of a process that can read
//! our memory anyway ([`Pool::could_read_us`]). Only processes of the same user come here
//! ([`crate::rendezvous::PeerInfo::trusted`]). No other process may have a segment mapped that
//! comes back: [`Pool::clear`], before and after a fork, sees to it.
//!
//! ```text
//! offer slot, from byte 2048 of the control page; life: how many connections had the segment before
//! claim      life * 4 + 0 nobody, 1 + place: offered by it, 3: taken
//! places[2]  released (life + 1), gone, descriptor, slot, name (36 bytes, as in the rendezvous), and from byte 56
//!            on where its secret is and what it read of the other one's
//! ```
//!
//! A *place* is the side that a process had in the segment's first connection, and stays with it.
//! [`record`] has the offer slot of one segment.

mod record;

use core::{
    cell::UnsafeCell,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use sdp_sys::{
    memfd,
    secret::{self, Secret, UNREADABLE},
};

use record::{Record, State};

use crate::{
    identity::{Addr, Tuple},
    name::Name,
    peer::{PeerId, PeerTable},
    segment,
    spin::SpinLock,
};

/// Segments that the pool of a process knows, used ones included: each one not in use keeps three touched pages.
pub const POOL_MAX: usize = 16;
/// Of them with one peer process, not in use.
pub const IDLE_PER_PEER: usize = 4;
/// Where the offer slot is in the control page.
pub const OFFER_OFFSET: usize = 2048;
/// Words of a name without its prefix.
const NAME_WORDS: usize = 9;
const PREFIX_LEN: usize = crate::name::NAME_LEN - 4 * NAME_WORDS;
const TAKEN: u32 = 3;

/// A connection's segment that may come back.
#[derive(Debug, Clone, Copy)]
pub struct KeptSegment {
    /// Its first byte; mapped by the caller, which goes on to use it.
    pub base: NonNull<u8>,
    /// Bytes per ring.
    pub ring_bytes: u32,
    /// The peer process; the caller is a user of it.
    pub peer: PeerId,
    /// Its process id, as the kernel reported it.
    pub pid: i32,
    /// Our side.
    pub side: u8,
    /// The terms in the peer's message at the meeting; they hold for later connections too.
    pub terms: u64,
    /// Where the program connected to; `None`: it accepted.
    pub remote: Option<Addr>,
    /// The connection that has it.
    pub owner: u32,
}

/// The other end's word about a connection. Hostile.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Its descriptor of the carrier.
    pub descriptor: u32,
    /// Its place in its doorbell page.
    pub slot: u32,
    /// Where its secret is.
    secret_at: u64,
    /// The secret that it claims to be ours.
    claimed: u64,
    /// Whether this process has answered with the secret that it read from the other one.
    has_answered: bool,
    life: u32,
    /// The segment, and the peer process.
    pub kept: KeptSegment,
    index: usize,
}

impl Offer {
    /// Names the segment in the pool.
    pub const fn lease(&self) -> u32 {
        self.index as u32 + 1
    }
}

/// The outcome of an offer.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// The other end has not taken it yet.
    Waiting,
    /// The other end has taken it, and uses the segment.
    Taken(Offer),
    /// The other end will not take it.
    Lost,
}

/// The segment used last with the process that the program met at the remote address of `tuple`.
fn newest_for(records: &Records, tuple: &Tuple) -> Option<usize> {
    let fits = |r: &&Record| r.kept.remote == Some(tuple.remote) && r.is_free() && r.is_claimed(0);
    let newest = records.places().iter().enumerate().filter_map(|(index, record)| {
        let record = record.as_ref().filter(fits)?;
        Some((record.clock, index))
    });
    newest.max().map(|(_, index)| index)
}

/// The name's words of a connection; equal from both ends.
fn words(tuple: &Tuple) -> [u32; NAME_WORDS] {
    let name = Name::new(tuple);
    let mut words = [0; NAME_WORDS];
    let bytes = name.as_bytes().get(PREFIX_LEN..).unwrap_or(&[]);
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    words
}

/// The pool; one `static` per process. All functions must be called with signals deferred.
pub struct Pool {
    lock: SpinLock,
    /// Records that no connection uses: before anything else is looked at.
    idle: AtomicU32,
    /// Counts the events that make segments useless that were kept before; 0: none ever was.
    /// Written under the lock.
    generation: AtomicU64,
    records: UnsafeCell<Records>,
    clock: AtomicU32,
}

// SAFETY: `records` is reached only through `with`, which holds the lock. The mappings belong to the process.
unsafe impl Sync for Pool {}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

struct Records {
    list: [Option<Record>; POOL_MAX],
    /// Places below this one may have one.
    high: usize,
    /// A number that only a process that can read our memory can know; drawn when the first segment
    /// is kept, or the first after a fork.
    secret: Option<Secret>,
}

impl Records {
    const EMPTY: Self = Self { list: [const { None }; POOL_MAX], high: 0, secret: None };

    fn places(&self) -> &[Option<Record>] {
        self.list.get(..self.high).unwrap_or(&self.list)
    }

    fn places_mut(&mut self) -> &mut [Option<Record>] {
        let high = self.high.min(POOL_MAX);
        self.list.get_mut(..high).unwrap_or(&mut [])
    }

    fn iter(&self) -> impl Iterator<Item = &Record> {
        self.places().iter().flatten()
    }

    /// A place for one more, and its number: the first empty one, or that of the longest idle.
    fn vacancy(&mut self) -> Option<(usize, &mut Option<Record>)> {
        let oldest = || {
            let idle = self.places().iter().enumerate().filter_map(|(index, record)| {
                let record = record.as_ref().filter(|r| r.state == State::Idle)?;
                Some((record.clock, index))
            });
            idle.min().map(|(_, index)| index)
        };
        let index = self.list.iter().position(Option::is_none).or_else(oldest)?;
        self.high = self.high.max(index + 1);
        self.list.get_mut(index).map(|place| (index, place))
    }

    /// Forgets empty places at the end. How many segments wait.
    fn forget_empty_places(&mut self) -> u32 {
        while self.places().last().is_some_and(Option::is_none) {
            self.high -= 1;
        }
        self.iter().filter(|record| record.is_waiting()).count() as u32
    }
}

impl Pool {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            lock: SpinLock::new(),
            idle: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            records: UnsafeCell::new(Records::EMPTY),
            clock: AtomicU32::new(0),
        }
    }

    /// Whether no segment waits for another connection, or for the answer to an offer.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.idle.load(Ordering::Relaxed) == 0
    }

    fn with<R>(&self, body: impl FnOnce(&mut Records) -> R) -> R {
        self.lock.acquire();
        // SAFETY: the lock is held, and this is the only reference.
        let records = unsafe { &mut *self.records.get() };
        let result = body(records);
        self.idle.store(records.forget_empty_places(), Ordering::Relaxed);
        self.lock.release();
        result
    }

    /// Notes a segment that a connection has just got. Returns its lease; `None`: no room, it will not come back.
    #[cold]
    pub fn keep(&self, peers: &PeerTable, kept: KeptSegment) -> Option<u32> {
        self.drop_dead(peers);
        let mut fresh =
            if self.with(|records| records.secret.is_some()) { None } else { Secret::draw() };
        self.with(|records| {
            if records.secret.is_none() {
                records.secret = fresh.take();
            }
            let secret_at = records.secret.as_ref().map_or(0, Secret::place);
            let (index, place) = records.vacancy()?;
            if let Some(old) = place.take() {
                discard(peers, &old);
            }
            let generation = self.generation.load(Ordering::Relaxed).max(1);
            self.generation.store(generation, Ordering::Release);
            let end = kept.side;
            let record = Record { kept, state: State::Used, life: 0, clock: 0, generation, end };
            record.own().secret_at.store(secret_at, Ordering::Relaxed);
            *place = Some(record);
            Some(index as u32 + 1)
        })
    }

    /// The connection `owner`, which had the segment, has ended. True: mapping and user of the peer
    /// are the pool's from here on. False: they are the caller's, which ends them. Always without
    /// `keep`, if the pool was cleared since, or if the peer process has ended: this asks the
    /// kernel, unless the peer has released the segment already. Records of other ended processes:
    /// as [`Pool::drop_dead`].
    #[cold]
    pub fn ended(&self, peers: &PeerTable, lease: u32, owner: u32, keep: bool) -> bool {
        let mut strangers = Strangers::NONE;
        let is_wanted = self.with(|records| {
            let record = index_of(records, lease, owner, State::Used)
                .and_then(|index| records.places().get(index)?.as_ref());
            let Some(record) = record else { return false };
            let is_current = record.generation == self.generation.load(Ordering::Relaxed);
            if is_current {
                let peer = record.kept.peer;
                let is_wanted = keep && !record.is_gone();
                strangers.add_idle(records, is_wanted.then_some(peer));
                if is_wanted && !record.is_let_go() {
                    strangers.add(peer);
                }
            }
            is_current && keep
        });
        strangers.retain_dead(peers);
        self.with(|records| {
            drop_gone(records, peers);
            strangers.drop_from(records, peers);
            let Some(index) = index_of(records, lease, owner, State::Used) else { return false };
            let Some(record) = records.places().get(index).copied().flatten() else { return false };
            // Between the two looks other threads may have forked.
            let is_kept = is_wanted
                && record.generation == self.generation.load(Ordering::Relaxed)
                && !record.is_gone()
                && !strangers.has(record.kept.peer);
            let is_idle_with =
                |r: &&Record| r.state == State::Idle && r.kept.peer == record.kept.peer;
            if is_kept && records.iter().filter(is_idle_with).count() >= IDLE_PER_PEER {
                evict(records, peers, record.kept.peer);
            }
            let Some(place) = records.places_mut().get_mut(index) else { return false };
            if !is_kept {
                record.say_gone();
                *place = None;
                return false;
            }
            let clock = self.clock.fetch_add(1, Ordering::Relaxed);
            *place = Some(Record { state: State::Idle, clock, ..record });
            // The connection touches its segment here for the last time.
            record.own().released.store(record.life.wrapping_add(1), Ordering::Release);
            true
        })
    }

    /// Offers a segment to the process that the program last met at the address to which `tuple` is connected. The
    /// lease; `None`: there is none to offer.
    #[cold]
    pub fn offer(
        &self,
        peers: &PeerTable,
        tuple: &Tuple,
        owner: u32,
        descriptor: i32,
        slot: u32,
    ) -> Option<u32> {
        self.with(|records| {
            drop_gone(records, peers);
            let index = newest_for(records, tuple)?;
            let record = records.places_mut().get_mut(index)?.as_mut()?;
            record.say(descriptor, slot);
            for (to, from) in record.own().name.iter().zip(words(tuple)) {
                to.store(from, Ordering::Relaxed);
            }
            let (from, to) = (record.claim(0), record.claim(1 + record.place() as u32));
            let claim = &record.offer_slot().claim;
            claim.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).ok()?;
            record.state = State::Offered;
            record.kept.owner = owner;
            record.end = tuple.side().unwrap_or(0);
            Some(index as u32 + 1)
        })
    }

    /// The offer that [`Pool::offer`] would make: for [`Pool::tell`], so that it is believed early.
    #[cold]
    pub fn candidate(&self, tuple: &Tuple) -> Option<Offer> {
        self.with(|records| {
            let index = newest_for(records, tuple)?;
            records.places().get(index)?.as_ref().map(|record| record.as_offer(index))
        })
    }

    /// Whether an offer has been taken.
    #[cold]
    pub fn answer(&self, lease: u32, owner: u32) -> Answer {
        self.with(|records| {
            let Some(index) = index_of(records, lease, owner, State::Offered) else {
                return Answer::Lost;
            };
            match records.places().get(index).and_then(Option::as_ref) {
                Some(record) if record.is_claimed(TAKEN) => Answer::Taken(record.as_offer(index)),
                Some(record) if record.is_gone() => Answer::Lost,
                Some(_) => Answer::Waiting,
                None => Answer::Lost,
            }
        })
    }

    /// Whether the other process has shown the number that only a reader of our memory can know.
    /// Nothing can be kept from it, so that it gains nothing by a lie. Costs a system call.
    pub fn could_read_us(&self, offer: &Offer) -> bool {
        let is_ours =
            |records: &mut Records| records.secret.as_ref().is_some_and(|s| s.is(offer.claimed));
        self.with(is_ours) && secret::is_dumpable()
    }

    /// Reads the other process's secret and shows it that, if it has named the place, once for each
    /// segment. It may be believed from then on. Some system calls, the first time.
    pub fn tell(&self, peers: &PeerTable, offer: &Offer) {
        if offer.has_answered || offer.secret_at == 0 {
            return;
        }
        let peer = offer.kept.peer;
        let word = if peers.is_near(peer) {
            secret::read(offer.kept.pid, offer.secret_at)
        } else {
            UNREADABLE
        };
        // Its id was not another process's by then. (Its memory may be: hence the mark.)
        if !peers.lives(peer) {
            return;
        }
        self.with(|records| {
            if let Some(Some(record)) = records.places().get(offer.index)
                && (record.kept.base, record.kept.peer) == (offer.kept.base, peer)
                && record.life == offer.life
            {
                record.own().answer.store(word, Ordering::Release);
            }
        });
    }

    /// After [`Answer::Taken`], and proof: the segment is the connection's.
    #[cold]
    pub fn confirm(&self, lease: u32, owner: u32) -> bool {
        self.with(|records| {
            let Some(index) = index_of(records, lease, owner, State::Offered) else { return false };
            let Some(Some(record)) = records.places_mut().get_mut(index) else { return false };
            record.life = record.life.wrapping_add(1);
            record.state = State::Used;
            record.generation = self.generation.load(Ordering::Relaxed);
            let free = record.claim(0);
            record.offer_slot().claim.store(free, Ordering::Release);
            true
        })
    }

    /// Ends an offer, and gives its segment up. False: the other end has taken it meanwhile, and everything is as it
    /// was. Never with `for_good`.
    #[cold]
    pub fn withdraw(&self, peers: &PeerTable, lease: u32, owner: u32, for_good: bool) -> bool {
        self.with(|records| {
            let Some(index) = index_of(records, lease, owner, State::Offered) else { return true };
            let Some(place) = records.places_mut().get_mut(index) else { return true };
            let Some(record) = place.as_ref() else { return true };
            // Anything else that it may say instead is no word of the protocol.
            if !record.take_back() && record.is_claimed(TAKEN) {
                if !for_good {
                    return false;
                }
                record.disown();
            }
            if let Some(old) = place.take() {
                discard(peers, &old);
            }
            true
        })
    }

    /// A process took an offer and is not the other end: it is not offered anything any more.
    #[cold]
    pub fn distrust(&self, peer: PeerId) {
        self.with(|records| {
            let places = records.places_mut().iter_mut().flatten();
            for record in places.filter(|r| r.kept.peer == peer) {
                record.kept.remote = None;
            }
        });
    }

    /// An offer of the other end for the connection `tuple`.
    #[cold]
    pub fn look(&self, tuple: &Tuple) -> Option<Offer> {
        self.with(|records| {
            let index = find(records, &words(tuple))?;
            records.places().get(index)?.as_ref().map(|record| record.as_offer(index))
        })
    }

    /// After proof: takes the offer that [`Pool::look`] found. False: it is not there any more.
    #[cold]
    pub fn take(
        &self,
        tuple: &Tuple,
        offer: &Offer,
        owner: u32,
        descriptor: i32,
        slot: u32,
    ) -> bool {
        self.with(|records| {
            let Some(record) = still_offered(records, tuple, offer) else { return false };
            record.wipe();
            record.say(descriptor, slot);
            record.seal(owner, self.generation.load(Ordering::Relaxed))
        })
    }

    /// The proof of an offer failed: the segment is given up.
    #[cold]
    pub fn refuse(&self, peers: &PeerTable, offer: &Offer) {
        self.with(|records| {
            if let Some(place) = records.places_mut().get_mut(offer.index)
                && place.is_some_and(|r| r.state == State::Idle && r.kept.base == offer.kept.base)
                && let Some(old) = place.take()
            {
                discard(peers, &old);
            }
        });
    }

    /// Whether a process that has connected to us before may offer something. Segments that the
    /// other end has given up are given up here, too.
    #[cold]
    pub fn may_be_offered(&self, peers: &PeerTable) -> bool {
        !self.is_empty()
            && self.with(|records| {
                drop_gone(records, peers);
                let was_accepted = |r: &Record| r.is_free() && r.kept.remote.is_none();
                records.iter().any(was_accepted)
            })
    }

    /// Gives up segments that wait for another connection with a process that has ended, or that
    /// has given them up. Costs nothing without any; one system call for each process that is
    /// waited for, while no thread waits for the pool.
    #[cold]
    pub fn drop_dead(&self, peers: &PeerTable) {
        if self.is_empty() {
            return;
        }
        let mut strangers = Strangers::NONE;
        self.with(|records| {
            drop_gone(records, peers);
            strangers.add_idle(records, None);
        });
        strangers.retain_dead(peers);
        if !strangers.is_empty() {
            self.with(|records| strangers.drop_from(records, peers));
        }
    }

    /// Gives up all segments that are not in use, open offers too, and keeps those in use from
    /// coming back. Before a fork, and in the parent after it, since other threads go on meanwhile;
    /// and when the process leaves its trust domain.
    #[inline]
    pub fn clear(&self, peers: &PeerTable) {
        // Else nothing was kept before, and the page stays shared with a child.
        if self.generation.load(Ordering::Acquire) != 0 {
            self.give_up_waiting(peers);
        }
    }

    #[cold]
    fn give_up_waiting(&self, peers: &PeerTable) {
        let old = self.with(|records| {
            let next = self.generation.load(Ordering::Relaxed).wrapping_add(1).max(1);
            self.generation.store(next, Ordering::Relaxed);
            for place in records.places_mut() {
                if let Some(used) = place {
                    // Its connection may be used by a child that may read less than we.
                    used.own().answer.store(0, Ordering::Relaxed);
                }
                if let Some(old) = place.take_if(|record| record.is_waiting()) {
                    // A process that has taken it just now is alone with it.
                    if old.state == State::Offered && !old.take_back() {
                        old.disown();
                    }
                    discard(peers, &old);
                }
            }
            records.secret.take()
        });
        drop(old); // unmapped when nobody waits for the lock
    }

    /// The process is about to end: the other ends give up the segments that they share with it.
    #[inline]
    pub fn leave(&self) {
        if self.generation.load(Ordering::Acquire) != 0 {
            self.say_gone();
        }
    }

    #[cold]
    fn say_gone(&self) {
        self.with(|records| records.iter().for_each(Record::say_gone));
    }

    /// In a fork child: nothing of the parent's is used again. Segments that the parent had left
    /// idle are unmapped without a word to the other end.
    #[inline]
    pub fn become_child(&self) {
        if self.generation.load(Ordering::Relaxed) != 0 || self.lock.is_taken() {
            self.forget_parent();
        }
    }

    #[cold]
    fn forget_parent(&self) {
        // SAFETY: the only thread of the child. Of this a thread of the parent can have left only all or nothing.
        drop(unsafe { (*self.records.get()).secret.take() });
        if self.idle.load(Ordering::Relaxed) != 0 && !self.lock.is_taken() {
            self.with(|records| {
                for old in records.iter().filter(|r| r.is_waiting()) {
                    unmap(old);
                }
            });
        }
        // SAFETY: the only thread of the child. A thread of the parent that was at it may have left anything.
        let is_used = self.lock.is_taken()
            || unsafe { (*self.records.get()).list.iter().any(Option::is_some) };
        if is_used {
            // SAFETY: the only thread of the child, so no other one has them; records have no
            // destructor.
            unsafe { self.records.get().write(Records::EMPTY) };
            self.idle.store(0, Ordering::Relaxed);
            self.lock.release();
        }
    }
}

/// The record of a lease, if it still is `owner`'s and in that state.
#[cold]
fn index_of(records: &Records, lease: u32, owner: u32, state: State) -> Option<usize> {
    let index = lease.checked_sub(1)? as usize;
    let record = records.places().get(index)?.as_ref();
    record.filter(|record| record.is_of(owner, state)).map(|_| index)
}

/// A segment in which the other end offers a connection.
#[cold]
fn find(records: &Records, wanted: &[u32; NAME_WORDS]) -> Option<usize> {
    let offers = |record: &Option<Record>| record.as_ref().is_some_and(|r| r.offers(wanted));
    records.places().iter().position(offers)
}

/// The segment that was met, if the same is offered in it as then.
#[cold]
fn still_offered<'a>(
    records: &'a mut Records,
    tuple: &Tuple,
    offer: &Offer,
) -> Option<&'a mut Record> {
    if find(records, &words(tuple)) != Some(offer.index) {
        return None;
    }
    let record = records.places_mut().get_mut(offer.index)?.as_mut()?;
    let descriptor = record.other().descriptor.load(Ordering::Relaxed);
    (record.kept.base == offer.kept.base && descriptor == offer.descriptor).then_some(record)
}

/// Gives up segments that the other end has given up.
#[cold]
fn drop_gone(records: &mut Records, peers: &PeerTable) {
    for place in records.places_mut() {
        if let Some(old) = place.take_if(|record| record.state == State::Idle && record.is_gone()) {
            discard(peers, &old);
        }
    }
}

/// Processes of which it is not known whether they live; then, those that do not. The kernel is asked without the
/// pool's lock: a thread that waits for it spins.
struct Strangers {
    list: [Option<PeerId>; POOL_MAX],
    used: usize,
}

impl Strangers {
    const NONE: Self = Self { list: [None; POOL_MAX], used: 0 };

    fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn has(&self, peer: PeerId) -> bool {
        self.list.iter().take(self.used).any(|known| *known == Some(peer))
    }

    /// There are as many places as records.
    fn add(&mut self, peer: PeerId) {
        if !self.has(peer)
            && let Some(place) = self.list.get_mut(self.used)
        {
            *place = Some(peer);
            self.used += 1;
        }
    }

    /// Those with which something is idle, but for one.
    fn add_idle(&mut self, records: &Records, but: Option<PeerId>) {
        for record in records.iter().filter(|record| record.state == State::Idle) {
            if Some(record.kept.peer) != but {
                self.add(record.kept.peer);
            }
        }
    }

    /// Asks about each once.
    fn retain_dead(&mut self, peers: &PeerTable) {
        let asked = self.used;
        self.used = 0;
        for index in 0..asked {
            if let Some(peer) = self.list.get_mut(index).and_then(Option::take)
                && !peers.lives(peer)
                && let Some(place) = self.list.get_mut(self.used)
            {
                *place = Some(peer);
                self.used += 1;
            }
        }
    }

    fn drop_from(&self, records: &mut Records, peers: &PeerTable) {
        if self.is_empty() {
            return;
        }
        for place in records.places_mut() {
            let is_dead = |r: &mut Record| r.state == State::Idle && self.has(r.kept.peer);
            if let Some(old) = place.take_if(is_dead) {
                discard(peers, &old);
            }
        }
    }
}

/// Gives up the oldest idle segment shared with a process.
#[cold]
fn evict(records: &mut Records, peers: &PeerTable, peer: PeerId) {
    let idle = records.places().iter().enumerate().filter_map(|(index, record)| {
        let record = record.as_ref()?;
        (record.state == State::Idle && record.kept.peer == peer).then_some((record.clock, index))
    });
    if let Some((_, index)) = idle.min()
        && let Some(place) = records.places_mut().get_mut(index)
        && let Some(old) = place.take()
    {
        discard(peers, &old);
    }
}

#[cold]
fn discard(peers: &PeerTable, record: &Record) {
    record.say_gone();
    unmap(record);
    // SAFETY: connections take the page's address from the table when they attach; this user never did.
    unsafe { peers.release(record.kept.peer) };
}

#[cold]
fn unmap(record: &Record) {
    if let Some(len) = segment::segment_len(record.kept.ring_bytes) {
        // SAFETY: the pool's own mapping, not in use, of a segment with rings of that size.
        unsafe { memfd::unmap(record.kept.base, len) };
    }
}

#[cfg(test)]
mod model;

//! The mirror: sets, registrations of tracked sockets, ready lists, and the hidden eventfd's anchor.
//!
//! Used by the calls and by the wait, under one lock. It looks into no ring: the thread that puts a
//! registration on a ready list or takes it off says why.

use core::{
    mem::offset_of,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
};

use libc::epoll_event;
use sdp_sys::{kernel, section, tls};

use super::{
    ET, End, IN, ONESHOT, OUT,
    stale::{self, Owner, StaleData},
};
use crate::{
    conn::{self, Conn, Half, Stage, Waiters},
    process::{
        self,
        fork_page::{FORK_PAGE, PAGE_BYTES},
        table::{self, Entry},
    },
    wake::{arming, doorbell, spin},
};

/// Epoll sets that one process can have mirrored; those beyond keep their connections on the kernel
/// lane (they are never marked as waited for).
pub(crate) const SETS: usize = 4096;
/// Mirrored registrations.
pub(crate) const REGISTRATIONS: usize = 65_536;
/// Where on its page the first registration is to lie: behind some sets.
const FIRST_AT: usize = 1024;
/// Bytes in front of all that let it lie there.
const LEAD: usize = (PAGE_BYTES + FIRST_AT
    - (SETS * size_of::<Set>() + size_of::<Counts>()) % PAGE_BYTES)
    % PAGE_BYTES;
/// Hash chains at the beginning.
const CHAINS: u32 = 16;

pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) set: u32,
    pub(crate) conn: u32,
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The registration where the hash chain of this place's number begins, plus one; 0 nowhere. No property of the
    /// registration: there are as many chains as registrations, more or less, and so they need no memory apart.
    chain: u32,
    /// Chains: by (set, data), by connection, by ready list; also the free list through `next_hash`.
    pub(crate) next_hash: u32,
    pub(crate) next_conn: u32,
    pub(crate) next_ready: u32,
    /// The neighbours in the list of the set's members.
    pub(crate) next_member: u32,
    pub(crate) last_member: u32,
    pub(crate) is_used: bool,
    pub(crate) is_ready: bool,
    /// ONESHOT has fired.
    pub(crate) is_disabled: bool,
    /// EPOLLOUT was taken out of the kernel's registration while the ring is full.
    pub(crate) is_stripped: bool,
    /// Of a connection whose bytes, as far as is known, come by the kernel: in [`Set::by_kernel`].
    pub(crate) is_kernels: bool,
    /// Edge: an event of the kernel's has not been verified, because another thread was at work on the connection.
    pub(crate) is_unjudged: bool,
    pub(crate) end: End,
    /// Edge: the ring cursor last reported.
    pub(crate) reported: u64,
}

pub(crate) struct Set {
    /// Of all sets that there ever were only this one's; in its lowest bits the place.
    pub(crate) serial: u64,
    pub(crate) epfd: i32,
    pub(crate) refs: u32,
    pub(crate) is_used: bool,
    pub(crate) ready_first: u32,
    pub(crate) ready_last: u32,
    /// Registration under whose data the hidden eventfd is in the set.
    pub(crate) anchor: u32,
    /// The hidden eventfd is in the kernel's set, under this data (also while `anchor` is none).
    pub(crate) hidden: Option<u64>,
    pub(crate) doors: super::foreign::Doors,
    /// Threads asleep on the set …
    pub(crate) sleepers: u32,
    /// … of them those that fell asleep before there was a doorbell page, uncounted in it.
    pub(crate) sleepers_without_doorbell: u32,
    pub(crate) members: u32,
    pub(crate) first_member: u32,
    /// A thread waits where we do not see it (the set is in another set, or is polled), or the
    /// hidden eventfd cannot be in the set: members arm on the carrier, which the kernel passes on.
    pub(crate) by_carrier: bool,
    /// Inherited by fork: nothing was armed for this process yet.
    pub(crate) is_inherited: bool,
    /// A member has come onto a lane; until none is left.
    pub(crate) has_lane: bool,
    /// One ever has.
    pub(crate) had_lane: bool,
    /// Connections whose bytes come by the kernel, as far as the library knows ([`super::order`]).
    pub(crate) by_kernel: u32,
    /// A connection, plus one, that could not be verified because another thread was at work on it; 0 none.
    pub(crate) busy: u32,
    /// The last wait reported the kernel's events, and those alone: the rings' are next.
    pub(crate) is_rings_turn: bool,
    /// The kernel's last events had one of a listener: those of rings are kept for the next wait.
    pub(crate) held_rings: bool,
    /// Registrations that are noted with their connections ([`super::noted`]).
    pub(crate) noted: u32,
    /// The kernel refused the hidden eventfd.
    pub(crate) is_deaf: bool,
    /// Doorbells are in the kernel's set, but do not make it readable ([`Mirror::silence`]).
    pub(crate) is_silent: bool,
    /// Another set of ours is, or was, in it.
    pub(crate) has_nested: bool,
    /// A registration with ONESHOT has been seen.
    pub(crate) has_oneshots: bool,
    pub(crate) waits: u32,
    /// Wake-ups by the doorbell since one was verified as if it were the anchor's own event.
    pub(crate) unverified: u8,
    pub(crate) merged_ns: u64,
    /// "Writable" was asked for since: the kernel mostly has that already.
    pub(crate) wants_writable: bool,
    pub(crate) spin: spin::Learnt,
    /// A sender of the set got EAGAIN: sleeps are bounded (O8).
    pub(crate) has_room_waiters: bool,
    /// When those senders were last looked at.
    pub(crate) room_checked_ns: u64,
}

/// The mirror. Sets, the last one first, end where registrations begin, and both begin in the middle of a page: a process
/// with a set and a few connections, as servers fork one for each connection, has all of them there.
#[repr(C)]
pub(crate) struct Mirror {
    lead: [u8; LEAD],
    /// The last one first ([`Mirror::set`]).
    sets: [Set; SETS],
    counts: Counts,
    pub(crate) registrations: [Registration; REGISTRATIONS],
    pub(crate) stale_data: StaleData,
}

const _: () = assert!(offset_of!(Mirror, registrations) % PAGE_BYTES == FIRST_AT);
const _: () = assert!(size_of::<Registration>() == 64);

/// Numbers of sets, registrations and notes.
#[repr(C, align(64))]
struct Counts {
    /// The common record of the waits of all sets. A program with a set for each connection waits
    /// too rarely on each of them for a set to have a useful record of its own.
    spin: spin::Learnt,
    /// Sets that there ever were.
    serials: u64,
    /// Places of sets ever used.
    sets: u32,
    /// Registrations ever used.
    used: u32,
    /// First one of those that are not used any more.
    free: u32,
    /// Hash chains: a power of two.
    chains: u32,
}

/// The members of some set have been asked to arm on the carrier. Changes under the lock.
pub(crate) static ANY_BY_CARRIER: AtomicBool = AtomicBool::new(false);

pub(crate) static LOCK: &AtomicU32 = &FORK_PAGE.lock.epoll_lock;
/// Thread that holds the lock across a fork: libc runs the program's `pthread_atfork` handlers meanwhile,
/// which may use sets.
pub(crate) static FORKING: &AtomicU32 = &FORK_PAGE.lock.epoll_forking;
static MIRROR: &AtomicPtr<u8> = &FORK_PAGE.epoll.mirror;

pub(crate) fn lock() {
    let mut spins = 0u32;
    while LOCK.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        spins = spins.wrapping_add(1);
        // Behind a filter the library makes no system calls: a thread that woke up there comes for
        // the lock once again.
        if spins.is_multiple_of(64) && !process::is_retired() {
            sdp_sys::time::back_off(spins / 64);
        }
        core::hint::spin_loop();
    }
}

pub(crate) fn unlock() {
    LOCK.store(0, Ordering::Release);
}

/// The mirror under its lock, inside a critical section.
pub(crate) struct Locked {
    mirror: NonNull<Mirror>,
    /// The thread has the lock across a fork, and keeps it.
    is_kept: bool,
    _section: section::Guard,
}

impl Deref for Locked {
    type Target = Mirror;
    #[inline(always)]
    fn deref(&self) -> &Mirror {
        // SAFETY: the mapping is never unmapped and the lock is ours.
        unsafe { self.mirror.as_ref() }
    }
}

impl DerefMut for Locked {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Mirror {
        // SAFETY: the mapping is never unmapped, and the lock is held; its holder makes no second
        // one of these.
        unsafe { self.mirror.as_mut() }
    }
}

impl Drop for Locked {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_kept {
            unlock();
        }
    }
}

/// Locks the mirror. `None` when there is none.
#[inline(always)]
pub(crate) fn locked() -> Option<Locked> {
    let mirror = NonNull::new(MIRROR.load(Ordering::Acquire))?.cast::<Mirror>();
    let section = section::Guard::enter();
    let held = FORKING.load(Ordering::Acquire);
    let is_kept = held != 0 && held == tls::thread_id() as u32;
    if !is_kept {
        lock();
    }
    Some(Locked { mirror, is_kept, _section: section })
}

/// Runs `body` on the mirror under its lock, inside a critical section. `None` when there is none.
pub(crate) fn with<R>(body: impl FnOnce(&mut Mirror) -> R) -> Option<R> {
    Some(body(&mut *locked()?))
}

pub(crate) fn make_mirror() -> bool {
    if !MIRROR.load(Ordering::Acquire).is_null() {
        return true;
    }
    let Some(fresh) = new_mirror() else { return false };
    fresh.publish(MIRROR);
    true
}

/// An empty mirror, unless there is no memory.
fn new_mirror() -> Option<process::Fresh> {
    let fresh = process::Fresh::private(size_of::<Mirror>())?;
    let at = fresh.base().cast::<Mirror>();
    // SAFETY: zeroed memory of the right size, seen by no other thread: plain integers and
    // booleans, for which zero is valid. The links whose "none" is not zero are set here.
    unsafe {
        (&raw mut (*at.as_ptr()).counts).write(Counts {
            spin: spin::Learnt::NEW,
            serials: 0,
            sets: 0,
            used: 0,
            free: NONE,
            chains: CHAINS,
        });
    }
    Some(fresh)
}

impl Mirror {
    pub(crate) fn set(&mut self, index: u32) -> Option<&mut Set> {
        self.set_place(index as usize).filter(|s| s.is_used)
    }

    fn set_place(&mut self, index: usize) -> Option<&mut Set> {
        self.sets.get_mut((SETS - 1).checked_sub(index)?)
    }

    /// All sets.
    pub(crate) fn each_set(&mut self) -> impl Iterator<Item = &mut Set> {
        let ever = self.counts.sets as usize;
        self.sets.iter_mut().rev().take(ever).filter(|s| s.is_used)
    }

    /// Numbers of places in which there may be a set.
    pub(crate) fn set_numbers(&self) -> core::ops::Range<u32> {
        0..self.counts.sets
    }

    /// The common record of the waits of all sets.
    pub(crate) fn spin(&mut self) -> &mut spin::Learnt {
        &mut self.counts.spin
    }

    pub(crate) fn reg(&mut self, index: u32) -> Option<&mut Registration> {
        self.registrations.get_mut(index as usize).filter(|r| r.is_used)
    }

    pub(crate) fn open_set(&mut self, epfd: i32) -> Option<u32> {
        // Places behind those that were ever used hold zeros: free.
        let ever = self.counts.sets as usize;
        let index = self.sets.iter().rev().take(ever + 1).position(|s| !s.is_used)?;
        self.counts.sets = self.counts.sets.max(index as u32 + 1);
        self.counts.serials += 1;
        *self.set_place(index)? = Set {
            serial: self.counts.serials * SETS as u64 + index as u64,
            epfd,
            refs: 1,
            is_used: true,
            ready_first: NONE,
            ready_last: NONE,
            anchor: NONE,
            hidden: None,
            doors: super::foreign::Doors::default(),
            sleepers: 0,
            sleepers_without_doorbell: 0,
            members: 0,
            first_member: NONE,
            by_carrier: false,
            is_inherited: false,
            has_lane: false,
            had_lane: false,
            by_kernel: 0,
            busy: 0,
            is_rings_turn: false,
            held_rings: false,
            noted: 0,
            is_deaf: false,
            is_silent: false,
            has_nested: false,
            has_oneshots: false,
            waits: 0,
            unverified: 0,
            merged_ns: 0,
            wants_writable: false,
            spin: spin::Learnt::NEW,
            has_room_waiters: false,
            room_checked_ns: 0,
        };
        Some(index as u32)
    }

    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let counts = &mut self.counts;
        if counts.free != NONE {
            let index = counts.free;
            counts.free = self.registrations.get(index as usize)?.next_hash;
            return Some(index);
        }
        if counts.used as usize >= REGISTRATIONS {
            return None;
        }
        counts.used += 1;
        if counts.used > counts.chains {
            self.double_chains();
        }
        Some(self.counts.used - 1)
    }

    /// Number of the chain for registrations with this data in this set.
    fn chain_of(&self, set: u32, data: u64) -> usize {
        stale::mixed(set, data) as usize & (self.counts.chains as usize - 1)
    }

    /// The first registration of such a chain ([`NONE`]: it is empty).
    pub(crate) fn first_like(&self, set: u32, data: u64) -> u32 {
        let chain = self.chain_of(set, data);
        self.registrations.get(chain).map_or(NONE, |place| place.chain.wrapping_sub(1))
    }

    /// Puts a registration, whose set and data are known, first on its chain.
    fn hash(&mut self, index: u32) {
        let Some((set, data)) = self.registrations.get(index as usize).map(|r| (r.set, r.data))
        else {
            return;
        };
        let next = self.first_like(set, data);
        if let Some(reg) = self.registrations.get_mut(index as usize) {
            reg.next_hash = next;
        }
        let chain = self.chain_of(set, data);
        if let Some(place) = self.registrations.get_mut(chain) {
            place.chain = index.wrapping_add(1);
        }
    }

    /// Spreads the registrations over twice as many chains. Next time there are twice as many
    /// registrations, so that on average each is moved twice at most. A fork child whose parent had
    /// just filled its chains doubles them for itself.
    #[cold]
    fn double_chains(&mut self) {
        // The new ones have never been used.
        let before = self.counts.chains as usize;
        self.registrations.iter_mut().take(before).for_each(|place| place.chain = 0);
        self.counts.chains *= 2;
        for index in 0..self.counts.used {
            if self.reg(index).is_some() {
                self.hash(index);
            }
        }
    }

    /// The registration of number `fd` of this connection in this set.
    pub(crate) fn find(&self, set: u32, conn: &Conn, fd: i32) -> Option<u32> {
        let mut all = self.registrations_of(conn);
        all.find(|(_, reg)| reg.set == set && reg.fd == fd).map(|(at, _)| at)
    }

    pub(crate) fn add(
        &mut self,
        set: u32,
        conn: &Conn,
        fd: i32,
        events: u32,
        data: u64,
    ) -> Option<u32> {
        let Some(index) = self.allocate() else {
            self.stale_data.forget(set, data); // it stays a stranger
            return None;
        };
        let head = first_of(conn);
        let place = self.registrations.get_mut(index as usize)?;
        *place = Registration {
            set,
            conn: conn.index(),
            fd,
            events,
            data,
            chain: place.chain,
            next_hash: NONE,
            next_conn: head,
            next_ready: NONE,
            next_member: NONE,
            last_member: NONE,
            is_used: true,
            is_ready: false,
            is_disabled: false,
            is_stripped: false,
            is_kernels: false,
            is_unjudged: false,
            end: End::Open,
            reported: 0,
        };
        self.set_kernels(index, conn.stage() != Stage::Listener);
        self.hash(index);
        conn.registrations.store(index.wrapping_add(1), Ordering::Relaxed);
        self.join(set, index);
        Some(index)
    }

    /// Puts a registration on its set's member list.
    fn join(&mut self, set: u32, index: u32) {
        let Some(s) = self.set(set) else { return };
        let by_carrier = s.by_carrier;
        s.members += 1;
        let next = s.first_member;
        s.first_member = index;
        if let Some(next) = self.registrations.get_mut(next as usize) {
            next.last_member = index;
        }
        if let Some(reg) = self.registrations.get_mut(index as usize) {
            reg.next_member = next;
            if by_carrier && let Some(conn) = conn::get(reg.conn) {
                conn.set(Waiters::ByCarrier);
            }
        }
    }

    /// Takes a registration off its set's member list.
    fn part(&mut self, index: u32) {
        let Some(reg) = self.registrations.get(index as usize).copied() else { return };
        if let Some(next) = self.registrations.get_mut(reg.next_member as usize) {
            next.last_member = reg.last_member;
        }
        if let Some(last) = self.registrations.get_mut(reg.last_member as usize) {
            last.next_member = reg.next_member;
        }
        if let Some(set) = self.set(reg.set) {
            set.members = set.members.saturating_sub(1);
            if set.first_member == index {
                set.first_member = reg.next_member;
            }
        }
    }

    /// The registrations of a connection.
    pub(crate) fn registrations_of(
        &self,
        conn: &Conn,
    ) -> impl Iterator<Item = (u32, &Registration)> {
        let reg = |at: u32| Some((at, self.registrations.get(at as usize).filter(|r| r.is_used)?));
        core::iter::successors(reg(first_of(conn)), move |(_, last)| reg(last.next_conn))
            .take(REGISTRATIONS)
    }

    /// Calls `each` with the registrations of a connection, index and content. It may remove the
    /// one that it got.
    pub(crate) fn each_registration(
        &mut self,
        conn: &Conn,
        mut each: impl FnMut(&mut Self, u32, Registration),
    ) {
        let mut at = first_of(conn);
        while let Some(reg) = self.registrations.get(at as usize).copied().filter(|r| r.is_used) {
            each(self, at, reg);
            at = reg.next_conn;
        }
    }

    /// Calls `each` with the registrations of a set.
    pub(crate) fn each_member(&mut self, set: u32, mut each: impl FnMut(&mut Self, u32)) {
        let Some(mut at) = self.set(set).map(|s| s.first_member) else { return };
        while let Some(next) = self.registrations.get(at as usize).map(|r| r.next_member) {
            each(self, at);
            at = next;
        }
    }

    pub(crate) fn unhash(&mut self, index: u32) {
        let Some(reg) = self.registrations.get(index as usize).copied() else { return };
        let mut at = self.first_like(reg.set, reg.data);
        if at == index {
            let chain = self.chain_of(reg.set, reg.data);
            if let Some(place) = self.registrations.get_mut(chain) {
                place.chain = reg.next_hash.wrapping_add(1);
            }
            return;
        }
        while let Some(other) = self.registrations.get_mut(at as usize) {
            if other.next_hash == index {
                other.next_hash = reg.next_hash;
                return;
            }
            at = other.next_hash;
        }
    }

    /// Whether one registration of the set at most has this data.
    pub(crate) fn is_alone(&self, set: u32, data: u64) -> bool {
        let mut matches = 0;
        let mut at = self.first_like(set, data);
        while let Some(reg) = self.registrations.get(at as usize) {
            matches += u32::from(reg.is_used && reg.set == set && reg.data == data);
            at = reg.next_hash;
        }
        matches <= 1
    }

    /// A registration, of which the kernel knows already, has other data.
    pub(crate) fn rehash(&mut self, index: u32, data: u64) {
        self.unhash(index);
        let Some(reg) = self.registrations.get_mut(index as usize) else { return };
        let before = *reg;
        reg.data = data;
        self.hash(index);
        self.leave_data(index, &before);
    }

    /// The old content of this registration is not under its data any more.
    fn leave_data(&mut self, index: u32, before: &Registration) {
        let Some(set) = self.set(before.set) else { return };
        let had_lane = set.had_lane;
        if set.anchor == index {
            self.lose_anchor(before.set);
        }
        // As long as all bytes came by the kernel, the kernel reported it once.
        if had_lane && before.events & ONESHOT != 0 {
            self.stale_data.note(before.set, before.data, Owner::Once);
        }
    }

    /// Whether an event of a kernel wait that began when [`stale::latest`] was `since` may belong
    /// to an earlier owner of its data (R9 c).
    pub(crate) fn is_late(&mut self, set: u32, event: &epoll_event, since: u64) -> bool {
        let Some(s) = self.set(set) else { return false };
        // The hidden eventfd may wait for its next anchor.
        let is_doorbell = event.events == IN && s.hidden == Some(event.u64) && s.anchor == NONE;
        // A candidate's data may not be in the mirror, beside others that were.
        is_doorbell || s.noted == 0 && self.stale_data.may_bring(set, event, since)
    }

    /// Whether a registration has this data.
    pub(crate) fn is_taken(&self, set: u32, data: u64) -> bool {
        let mut at = self.first_like(set, data);
        while let Some(reg) = self.registrations.get(at as usize) {
            if reg.is_used && reg.set == set && reg.data == data {
                return true;
            }
            at = reg.next_hash;
        }
        false
    }

    pub(crate) fn remove(&mut self, index: u32) {
        let Some(reg) = self.registrations.get(index as usize).copied() else { return };
        if !reg.is_used {
            return;
        }
        self.unhash(index);
        if let Some(conn) = conn::get(reg.conn) {
            let head = first_of(conn);
            if head == index {
                conn.registrations.store(reg.next_conn.wrapping_add(1), Ordering::Relaxed);
            } else {
                let mut at = head;
                while let Some(other) = self.registrations.get_mut(at as usize) {
                    if other.next_conn == index {
                        other.next_conn = reg.next_conn;
                        break;
                    }
                    at = other.next_conn;
                }
            }
        }
        self.unready(index);
        self.set_kernels(index, false);
        self.part(index);
        if let Some(slot) = self.registrations.get_mut(index as usize) {
            slot.is_used = false;
            slot.next_hash = self.counts.free;
            self.counts.free = index;
        }
        self.leave_data(index, &reg);
    }

    pub(crate) fn push_ready(&mut self, index: u32) {
        let Some(reg) = self.reg(index) else { return };
        if reg.is_ready {
            return;
        }
        reg.is_ready = true;
        reg.next_ready = NONE;
        let number = reg.set;
        let Some(set) = self.set(number) else { return };
        let (last, is_silent) = (set.ready_last, set.is_silent);
        set.ready_last = index;
        if last == NONE {
            set.ready_first = index;
        } else if let Some(last) = self.registrations.get_mut(last as usize) {
            last.next_ready = index;
        }
        if is_silent {
            self.unsilence(number);
        }
    }

    pub(crate) fn pop_ready(&mut self, set: u32) -> Option<u32> {
        let first = self.set(set)?.ready_first;
        let reg = self.registrations.get_mut(first as usize)?;
        reg.is_ready = false;
        let next = reg.next_ready;
        let set = self.set(set)?;
        set.ready_first = next;
        if next == NONE {
            set.ready_last = NONE;
        }
        Some(first)
    }

    pub(crate) fn unready(&mut self, index: u32) {
        let Some(reg) = self.registrations.get(index as usize).copied() else { return };
        if !reg.is_ready {
            return;
        }
        let mut kept = (NONE, NONE);
        let Some(mut at) = self.set(reg.set).map(|s| s.ready_first) else { return };
        // Rebuild without it: removal of a ready registration is rare.
        while at != NONE {
            let Some(other) = self.registrations.get_mut(at as usize) else { break };
            let next = other.next_ready;
            if at == index {
                other.is_ready = false;
            } else {
                other.next_ready = NONE;
                if kept.0 == NONE {
                    kept.0 = at;
                } else if let Some(last) = self.registrations.get_mut(kept.1 as usize) {
                    last.next_ready = at;
                }
                kept.1 = at;
            }
            at = next;
        }
        if let Some(set) = self.set(reg.set) {
            (set.ready_first, set.ready_last) = kept;
        }
    }

    /// All registrations of a connection become ready to be looked at. True when a thread may sleep
    /// on one of their sets.
    pub(crate) fn ready_conn(&mut self, conn: &Conn) -> bool {
        let mut others_sleep = false;
        self.each_registration(conn, |m, at, reg| {
            m.push_ready(at);
            others_sleep |= m.set(reg.set).is_some_and(|s| s.sleepers > 0 || s.by_carrier);
        });
        others_sleep
    }

    /// Takes EPOLLOUT out of the kernel's registration, or puts it back (then the kernel also
    /// reports it to any thread that waits).
    pub(crate) fn strip(&mut self, at: u32, strip: bool) {
        let Some(reg) = self.reg(at).map(|r| *r) else { return };
        if reg.is_disabled {
            return; // the program enables it anew, and would not have it enabled before
        }
        if table::entry(reg.fd) != Some(Entry::Conn(reg.conn)) {
            return; // the number is another socket's by now, which may be in the set as well
        }
        let Some(epfd) = self.set(reg.set).map(|s| s.epfd) else { return };
        let events = if strip { reg.events & !OUT } else { reg.events };
        let interest = epoll_event { events, u64: reg.data };
        let done = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, reg.fd, &interest);
        if done.is_ok()
            && let Some(reg) = self.reg(at)
        {
            reg.is_stripped = strip;
        }
    }

    /// The wish for room of a connection's sender is granted, or in vain. All that asked for
    /// "writable" get it, in each set that the connection is in: the caller reports it for the
    /// registration `reported` ([`NONE`]: none), the kernel for the others, from which it was held
    /// back, level or edge.
    pub(crate) fn grant_room(&mut self, conn: &Conn, reported: u32) {
        conn.flags.remove(Waiters::WantRoom, Ordering::SeqCst);
        self.each_registration(conn, |m, at, reg| {
            let gets_room = reg.is_stripped || reg.events & (ET | ONESHOT) == ET;
            if at != reported && reg.events & OUT != 0 && gets_room {
                m.strip(at, false);
            }
        });
    }

    /// The anchor of a set is gone. A program with one thread cannot wait before it calls us again, so the
    /// eventfd stays where it is until then; with several it leaves the set now, because a wait that we
    /// do not see must not get data that the program has deleted (R9 a).
    pub(crate) fn lose_anchor(&mut self, set_index: u32) {
        let Some(set) = self.set(set_index) else { return };
        set.anchor = NONE;
        if !sdp_sys::pid::is_single_threaded() {
            self.reanchor(set_index);
        }
    }

    /// Sees to it that the hidden eventfd is in the set under the data of a living registration of an
    /// attached connection, and out of it when there is none.
    pub(crate) fn reanchor(&mut self, set_index: u32) {
        let event = doorbell::event_fd();
        let Some(set) = self.set(set_index) else { return };
        let (epfd, hidden, first) = (set.epfd, set.hidden, set.first_member);
        if set.anchor != NONE || set.is_deaf || event < 0 {
            return;
        }
        let is_candidate = |r: &Registration| {
            r.is_used && r.set == set_index && conn::get(r.conn).is_some_and(|c| c.has_lanes())
        };
        // One that has the data already costs nothing.
        let kept = hidden.and_then(|data| {
            let mut at = self.first_like(set_index, data);
            while let Some(reg) = self.registrations.get(at as usize) {
                if is_candidate(reg) && reg.data == data {
                    return Some(at);
                }
                at = reg.next_hash;
            }
            None
        });
        let anchor = kept.or_else(|| {
            let mut at = first;
            while let Some(reg) = self.registrations.get(at as usize) {
                if is_candidate(reg) {
                    return Some(at);
                }
                at = reg.next_member;
            }
            None
        });
        let data = anchor.and_then(|h| self.registrations.get(h as usize)).map(|r| r.data);
        if data.is_none()
            && let Some(set) = self.set(set_index)
        {
            set.has_lane = false;
        }
        let op = match (hidden, data) {
            (None, None) => return,
            (Some(old), Some(new)) if old == new => 0,
            (None, Some(_)) => libc::EPOLL_CTL_ADD,
            (Some(_), Some(_)) => libc::EPOLL_CTL_MOD,
            (Some(_), None) => libc::EPOLL_CTL_DEL,
        };
        let interest = epoll_event { events: IN | ET, u64: data.unwrap_or(0) };
        let done = op == 0 || kernel::epoll_ctl(epfd, op, event, &interest).is_ok();
        if let Some(set) = self.set(set_index) {
            set.hidden = if done { data } else { None };
            set.anchor = if done { anchor.unwrap_or(NONE) } else { NONE };
            set.is_silent &= op == 0;
        }
        if op != 0
            && let Some(before) = hidden
        {
            self.stale_data.note(set_index, before, Owner::Doorbell);
        }
        self.follow_anchor(set_index);
        if !done && data.is_some() {
            if let Some(set) = self.set(set_index) {
                set.is_deaf = true;
            }
            self.use_carrier(set_index);
        }
    }

    /// Keeps doorbells from making a set readable for threads that wait for the set itself: an edge that came before the program
    /// had taken everything stays with the kernel until somebody waits on the set. Members wake by the carrier, entries of
    /// the ready list and sleepers on the set end it ([`Mirror::unsilence`]). Does nothing while there are any of these.
    pub(crate) fn silence(&mut self, set_index: u32) {
        let Some(set) = self.set(set_index) else { return };
        if !set.by_carrier || set.is_silent || set.sleepers > 0 || set.ready_first != NONE {
            return;
        }
        set.is_silent = true;
        if !self.change_doorbells(set_index, ET) {
            self.unsilence(set_index);
        }
    }

    /// Ends [`Mirror::silence`]. The kernel calls the set readable at once, and wakes threads that wait for it.
    #[cold]
    pub(crate) fn unsilence(&mut self, set_index: u32) {
        let Some(set) = self.set(set_index) else { return };
        set.is_silent = false;
        self.change_doorbells(set_index, IN | ET);
    }

    /// From now on the kernel reports all doorbells in a set as `events`. False: not all of them.
    fn change_doorbells(&mut self, set_index: u32, events: u32) -> bool {
        let Some(set) = self.set(set_index) else { return false };
        let Some(data) = set.hidden else { return set.doors.is_empty() };
        let interest = epoll_event { events, u64: data };
        let event = doorbell::event_fd();
        let done = kernel::epoll_ctl(set.epfd, libc::EPOLL_CTL_MOD, event, &interest).is_ok();
        self.change_doors(set_index, events) && done
    }

    /// Takes the hidden eventfd, which `event` names, out of the set. True: it was there.
    pub(crate) fn unhide(&mut self, set_index: u32, event: i32) -> bool {
        let Some(set) = self.set(set_index) else { return false };
        let Some(before) = set.hidden.take() else { return false };
        (set.anchor, set.is_silent) = (NONE, false);
        let unused = epoll_event { events: 0, u64: 0 };
        // Others hold duplicates, so that closing alone would leave it there.
        let _ = kernel::epoll_ctl(set.epfd, libc::EPOLL_CTL_DEL, event, &unused);
        self.stale_data.note(set_index, before, Owner::Doorbell);
        self.follow_anchor(set_index);
        true
    }

    /// From now on the set's members arm on the carrier; members that armed otherwise arm again.
    pub(crate) fn use_carrier(&mut self, set_index: u32) {
        let Some(set) = self.set(set_index) else { return };
        if set.by_carrier {
            return;
        }
        set.by_carrier = true;
        ANY_BY_CARRIER.store(true, Ordering::Relaxed);
        self.each_member(set_index, |m, at| {
            let Some(conn) = m.reg(at).and_then(|r| conn::get(r.conn)) else { return };
            conn.set(Waiters::ByCarrier);
            if conn.has_lanes() {
                arm(conn);
                m.push_ready(at);
            }
        });
    }
}

/// The first registration of a connection ([`NONE`]: it has none).
fn first_of(conn: &Conn) -> u32 {
    conn.registrations.load(Ordering::Relaxed).wrapping_sub(1)
}

/// Arms the receiving half of a connection that is on a lane.
pub(crate) fn arm(conn: &Conn) {
    if conn.has_lanes() && conn.acquire_live(Half::Receive) {
        arming::arm(conn);
        conn.release(Half::Receive);
    }
}

#[cfg(test)]
mod tests;

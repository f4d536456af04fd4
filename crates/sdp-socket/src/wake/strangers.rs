//! How processes of other users wake this one: a foreign doorbell, with a page of bits, for each
//! such user.
//!
//! Called by `migration/promote.rs` when processes of two users meet, and by threads that sleep.
//!
//! Only processes of the same user may have the eventfd and the doorbell page of a process: with
//! them one can clear the bits of all its connections, and stop or flood its wake-ups. A process of
//! another user gets a doorbell and a page that belong to that user: a [`doorbell`], which it can
//! only signal, and a doorbell page whose bits count for connections to that user's processes only.
//! A user's misuse of its own doorbell does not affect others. Two users, two doorbells; a thousand
//! processes of one user, one doorbell.
//!
//! # Sleepers
//! A thread that goes to sleep counts itself in each page whose doorbell its wait set has. A
//! doorbell that is made while a thread sleeps is put into the epoll sets, and their sleepers are
//! counted in its page, under the epoll lock; sleepers with a wait set of their own are woken by
//! the eventfd, and come back with it.
//!
//! # Full doorbells
//! A signal that finds the foreign doorbell full wakes no thread, so it must not be full when a
//! thread goes to sleep: each byte written from then on makes a new edge. Producers count their
//! signals in the page before they write; a thread that has counted itself as a sleeper, and has
//! not looked yet, reads the bytes out when there are many. A user whose processes write more than
//! they count harms its own connections only.

use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::{
        AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    },
};

use sdp_fabric_shm::{party::Party, rendezvous::ForeignDoorbell, segment};
use sdp_shm::doorbell::{DOORBELL_SLOTS, Doorbell, Slots};
use sdp_sys::{
    doorbell,
    hidden::InUse,
    stat::{self, Identity},
};

use crate::{
    conn::Conn,
    process,
    wake::{
        doorbell::{as_maker, give_up_page, own_page},
        interest,
    },
};

/// Other users, and processes of users without a name here, that a process has doorbells for; those
/// beyond are woken by wake bytes. A container may have any number of such processes: they leave
/// places to users.
const PARTIES: usize = 16;
const PROCESSES: usize = PARTIES / 2;
/// One more is a device's.
pub(crate) const USERS: usize = PARTIES + 1;
/// Rings after which a doorbell is emptied. The smallest holds more (128, with the kernel's least
/// send buffer), and each of its bytes was written for a sleeper.
const DRAIN_AFTER: u32 = 48;
/// How often a thread looks whether another one has emptied the same doorbell.
const LOOKS_AT_DRAINER: u32 = 100;

/// The doorbell and page of one user, or of another party. Its place never changes; it goes with the process's own
/// doorbell.
struct Place {
    party: AtomicU64,
    /// Hidden descriptors, −1 none: the end that is waited on, …
    waits: AtomicI32,
    /// … the end that is handed out, and which socket that is, …
    rings: AtomicI32,
    id: [AtomicU64; 2],
    /// … and the page's file.
    file: AtomicI32,
    page: AtomicPtr<u8>,
    /// The page's count of rings when the doorbell was emptied last.
    drained: AtomicU32,
    is_drained: AtomicBool,
    /// It has descriptors in it, and is not emptied any more.
    is_foul: AtomicBool,
}

impl Place {
    const fn new() -> Self {
        Self {
            party: AtomicU64::new(0),
            waits: AtomicI32::new(-1),
            rings: AtomicI32::new(-1),
            id: [const { AtomicU64::new(0) }; 2],
            file: AtomicI32::new(-1),
            page: AtomicPtr::new(null_mut()),
            drained: AtomicU32::new(0),
            is_drained: AtomicBool::new(false),
            is_foul: AtomicBool::new(false),
        }
    }

    fn doorbell(&self) -> Option<Doorbell> {
        let base = NonNull::new(self.page.load(Ordering::Acquire))?;
        // SAFETY: a mapped page of the right size that stays until the process forks.
        Some(unsafe { Doorbell::new(base) })
    }

    fn cells(&self) -> [&AtomicI32; 3] {
        [&self.waits, &self.rings, &self.file]
    }

    /// Reads the written bytes out, if there are many: before the caller's look at the page, and
    /// its sleep.
    #[inline]
    fn drain(&self, doorbell: Doorbell) {
        let rings = doorbell.rings();
        if rings.wrapping_sub(self.drained.load(Ordering::Acquire)) >= DRAIN_AFTER {
            self.drain_now(doorbell);
        }
    }

    #[cold]
    fn drain_now(&self, doorbell: Doorbell) {
        let mut looks = 0;
        while self.is_drained.swap(true, Ordering::Acquire) {
            // By another thread: this one may sleep when it has been emptied.
            looks += 1;
            if looks == LOOKS_AT_DRAINER {
                return;
            }
            sdp_sys::time::back_off(looks);
        }
        let _in_use = InUse::begin();
        let rings = doorbell.rings(); // first: what is counted from here on may be written later
        let is_due = rings.wrapping_sub(self.drained.load(Ordering::Relaxed)) >= DRAIN_AFTER;
        let waits = self.waits.load(Ordering::SeqCst);
        if is_due && waits >= 0 && !self.is_foul.load(Ordering::Relaxed) && !process::is_retired() {
            if !doorbell::drain(waits) {
                self.is_foul.store(true, Ordering::Relaxed);
            }
            self.drained.store(rings, Ordering::Release);
        }
        self.is_drained.store(false, Ordering::Release);
    }
}

static PLACES: [Place; USERS] = [const { Place::new() }; USERS];
/// Places in use. Grows only, until the process's doorbell goes. Not on the page that each fork
/// child reads.
#[unsafe(link_section = ".bss.hot")]
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Which user's processes each connection leads to, in private memory that is there with the first
/// doorbell.
struct Ownership {
    /// Connections to each user's processes: only bits for these are believed. Bits for other
    /// connections are not looked at.
    slots: [Slots; USERS],
    /// For each connection whose peer is of another user with a doorbell: the place, plus one.
    owners: [AtomicU8; DOORBELL_SLOTS as usize],
}

static OWNERSHIP: AtomicPtr<Ownership> = AtomicPtr::new(null_mut());

fn ownership() -> Option<&'static Ownership> {
    // SAFETY: null, or a mapping of that size that is never given back; atomics, for which zeros are valid.
    unsafe { OWNERSHIP.load(Ordering::Acquire).as_ref() }
}

/// A descriptor that wakes sleepers and has no page of bits: an RDMA device, whose events become
/// bits of the process's own page.
pub(crate) struct Device {
    /// Called before a sleep: events from here on make the descriptor readable.
    pub(crate) arm: fn(),
    /// Takes the events that have come, and sets bits.
    pub(crate) drain: fn(),
}

/// In a device's place: no party.
const NOBODY: u64 = u64::MAX;
/// There is a device.
#[unsafe(link_section = ".bss.hot")]
static HAS_DEVICE: AtomicBool = AtomicBool::new(false);
static DEVICE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The device's functions, once it has been added.
#[inline]
fn device() -> Option<Device> {
    if !HAS_DEVICE.load(Ordering::Acquire) {
        return None;
    }
    let [arm, drain] = [&DEVICE[0], &DEVICE[1]].map(|word| word.load(Ordering::Relaxed));
    // SAFETY: stored by `add_device` from functions of this type, before the flag.
    unsafe {
        Some(Device {
            arm: core::mem::transmute::<usize, fn()>(arm),
            drain: core::mem::transmute::<usize, fn()>(drain),
        })
    }
}

/// Whether sleepers wait for a device.
pub(crate) fn has_device() -> bool {
    HAS_DEVICE.load(Ordering::Acquire)
}

/// Sleepers wait on `descriptor`, too, from here on. The process has a doorbell. Not under the
/// epoll lock. False: there is no place for it.
pub(crate) fn add_device(descriptor: i32, device: Device) -> bool {
    as_maker(|| {
        if HAS_DEVICE.load(Ordering::Acquire) {
            return;
        }
        let Some(place) = PLACES.get(count() as usize) else { return };
        if ownership().is_none() {
            let Some(fresh) = process::map_private(size_of::<Ownership>()) else { return };
            OWNERSHIP.store(fresh.as_ptr().cast(), Ordering::Release);
        }
        place.party.store(NOBODY, Ordering::Relaxed);
        place.waits.store(descriptor, Ordering::Release);
        DEVICE[0].store(device.arm as usize, Ordering::Relaxed);
        DEVICE[1].store(device.drain as usize, Ordering::Relaxed);
        HAS_DEVICE.store(true, Ordering::Release);
        interest::foreign_doorbell_made(|_| {
            COUNT.fetch_add(1, Ordering::SeqCst);
        });
    });
    has_device()
}

/// The descriptor that was added with [`add_device`], by its number now.
pub(crate) fn device_descriptor() -> Option<i32> {
    let mut all = PLACES.iter().take(count() as usize);
    let place = all.find(|place| place.party.load(Ordering::Relaxed) == NOBODY);
    place.filter(|_| has_device()).map(|place| place.waits.load(Ordering::Acquire))
}

/// Doorbells so far.
#[inline]
pub(crate) fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// The descriptors to wait on of the first `count` doorbells.
pub(crate) fn descriptors(count: u32) -> impl Iterator<Item = i32> {
    PLACES.iter().take(count as usize).map(|place| place.waits.load(Ordering::Acquire))
}

/// The process's doorbell pages: its own, and those of the first so many other users.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doorbells {
    own: Doorbell,
    strangers: u32,
}

impl Doorbells {
    pub(crate) fn new(own: Doorbell, strangers: u32) -> Self {
        Self { own, strangers }
    }

    /// Without the pages beyond those.
    pub(crate) fn of(self, strangers: u32) -> Self {
        Self { strangers: strangers.min(self.strangers), ..self }
    }

    #[inline]
    fn pages(self) -> impl Iterator<Item = (&'static Slots, &'static Place, Doorbell)> {
        // Without doorbells nothing of them is touched.
        let all = if self.strangers == 0 { None } else { ownership() };
        let slots = all.into_iter().flat_map(|all| &all.slots);
        let places = slots.zip(&PLACES).take(self.strangers as usize);
        places
            .filter_map(|(slots, place)| place.doorbell().map(|doorbell| (slots, place, doorbell)))
    }

    /// Sets a connection's bit in the process's own page. True: the eventfd must be written, too.
    pub(crate) fn ring(self, slot: u32) -> bool {
        self.own.ring(slot)
    }

    /// Announces a sleeper. Look at the bits again before sleeping.
    #[inline]
    pub(crate) fn fall_asleep(self) {
        self.fall_asleep_beside_threads();
        if let Some(device) = device() {
            (device.arm)();
            // The events of another sleeper's arm may be taken by now.
            (device.drain)();
        }
    }

    /// The same for a sleeper that no message at a device is for.
    #[inline]
    pub(crate) fn fall_asleep_beside_threads(self) {
        self.own.fall_asleep();
        for (_, place, doorbell) in self.pages() {
            doorbell.fall_asleep();
            place.drain(doorbell);
        }
    }

    /// One sleeper less.
    #[inline]
    pub(crate) fn wake_up(self) {
        self.own.wake_up();
        self.pages().for_each(|(_, _, doorbell)| doorbell.wake_up());
    }

    /// Threads now asleep.
    #[inline]
    pub(crate) fn sleepers(self) -> u32 {
        self.own.sleepers()
    }

    /// Whether any bit is set.
    #[inline]
    pub(crate) fn any(self) -> bool {
        if let Some(device) = device() {
            (device.drain)();
        }
        self.own.any() || self.pages().any(|(slots, _, doorbell)| doorbell.any_of(slots))
    }

    /// Takes all bits and calls `each` with every connection that one may speak of.
    #[inline]
    pub(crate) fn take(self, mut each: impl FnMut(u32)) {
        self.own.take(&mut each);
        self.pages().for_each(|(slots, _, doorbell)| doorbell.take_of(slots, &mut each));
    }
}

/// The doorbell for a party, made on first use. Not under the epoll lock.
pub(crate) fn doorbell_for(party: Party) -> Option<ForeignDoorbell> {
    own_page()?;
    let party = party.to_word();
    let known = || {
        PLACES.iter().take(count() as usize).position(|p| p.party.load(Ordering::Relaxed) == party)
    };
    let at = known().or_else(|| {
        as_maker(|| {
            if known().is_none() {
                make(party);
            }
        });
        known()
    })?;
    let place = PLACES.get(at)?;
    let [dev, ino] = [&place.id[0], &place.id[1]].map(|word| word.load(Ordering::Relaxed));
    Some(ForeignDoorbell {
        fd: place.rings.load(Ordering::Acquire),
        id: Identity { dev, ino },
        page_fd: place.file.load(Ordering::Acquire),
    })
}

/// Whether another party gets a doorbell, beside those that have one.
fn has_place(party: u64, others: impl Iterator<Item = u64>) -> bool {
    let (mut parties, mut processes) = (0, 0);
    for other in others.filter(|other| *other != NOBODY) {
        parties += 1;
        processes += usize::from(Party::is_process(other));
    }
    parties < PARTIES && (processes < PROCESSES || !Party::is_process(party))
}

/// By the one thread that may.
fn make(party: u64) {
    let others = PLACES.iter().take(count() as usize);
    if !has_place(party, others.map(|place| place.party.load(Ordering::Relaxed))) {
        return;
    }
    let Some(place) = PLACES.get(count() as usize) else { return };
    if ownership().is_none() {
        let Some(fresh) = process::map_private(size_of::<Ownership>()) else { return };
        OWNERSHIP.store(fresh.as_ptr().cast(), Ordering::Release);
    }
    let (Ok((waits, rings)), Ok(file)) = (doorbell::create(), segment::create_doorbell_page())
    else {
        return;
    };
    let page = segment::map_doorbell_page(file.raw()).map(process::Fresh::from);
    let (Ok(id), Ok(page)) = (stat::stat(rings.raw()), page) else { return };
    let hidden = [waits, rings, file].map(|fd| process::hide(fd.into_raw()));
    if hidden.iter().any(|raw| *raw < 0) {
        hidden.into_iter().filter(|raw| *raw >= 0).for_each(process::close_hidden);
        return;
    }
    for (cell, raw) in place.cells().into_iter().zip(hidden) {
        cell.store(raw, Ordering::Release);
    }
    place.party.store(party, Ordering::Relaxed);
    place.id[0].store(id.id.dev, Ordering::Relaxed);
    place.id[1].store(id.id.ino, Ordering::Relaxed);
    place.drained.store(0, Ordering::Relaxed);
    place.is_foul.store(false, Ordering::Relaxed);
    place.page.store(page.keep().as_ptr(), Ordering::Release);
    let doorbell = place.doorbell();
    interest::foreign_doorbell_made(|sleepers| {
        // Threads asleep in the sets now will take back their count in all pages.
        for _ in 0..sleepers {
            doorbell.into_iter().for_each(Doorbell::fall_asleep);
        }
        COUNT.fetch_add(1, Ordering::SeqCst);
    });
}

/// A connection has met: the bits of a party's page, or (`None`) of the process's own page,
/// concern it.
pub(crate) fn note_peer(conn: &Conn, party: Option<Party>) {
    let place = party.map(Party::to_word).and_then(|party| {
        PLACES.iter().take(count() as usize).position(|p| p.party.load(Ordering::Relaxed) == party)
    });
    let Some(all) = ownership() else { return };
    let Some(owner) = all.owners.get(conn.index() as usize) else { return };
    let place = place.map_or(0, |at| at as u8 + 1);
    let before = owner.load(Ordering::Relaxed);
    if before == place {
        return;
    }
    let slots = |place: u8| all.slots.get(usize::from(place).wrapping_sub(1));
    slots(before).into_iter().for_each(|slots| slots.remove(conn.index()));
    slots(place).into_iter().for_each(|slots| slots.add(conn.index()));
    owner.store(place, Ordering::Relaxed);
}

/// The program is about to overwrite a hidden descriptor: one of a doorbell moves.
pub(crate) fn lose(from: i32, another: impl Fn() -> Option<i32>) {
    for (at, place) in PLACES.iter().take(count() as usize).enumerate() {
        for cell in place.cells() {
            if cell.load(Ordering::Acquire) == from {
                cell.store(another().unwrap_or(-1), Ordering::SeqCst);
                if core::ptr::eq(cell, &raw const place.waits) {
                    interest::foreign_doorbell_moved(at, from);
                }
            }
        }
    }
}

/// They go, with the process's own doorbell. `unhide` closes a hidden descriptor; `forked`: in a
/// fork child, which closes them, and where no other thread uses the pages.
pub(crate) fn drop_all(forked: bool, unhide: impl Fn(&AtomicI32)) {
    let n = count();
    if n == 0 {
        return;
    }
    COUNT.store(0, Ordering::SeqCst);
    HAS_DEVICE.store(false, Ordering::Release);
    let Some(all) = ownership() else { return };
    for owner in &all.owners {
        if owner.load(Ordering::Relaxed) != 0 {
            owner.store(0, Ordering::Relaxed);
        }
    }
    for (place, slots) in PLACES.iter().zip(&all.slots).take(n as usize) {
        slots.clear();
        for cell in place.cells() {
            if forked {
                cell.store(-1, Ordering::Release);
            } else {
                unhide(cell);
            }
        }
        place.is_drained.store(false, Ordering::Relaxed);
        give_up_page(&place.page, forked);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn processes_leave_places_to_users_and_all_leave_one_to_the_device() {
        let process = |number: u64| 1 << 63 | number;
        assert!(Party::is_process(process(1)));
        let mut all: Vec<u64> = Vec::new();
        for number in 0..100 {
            if has_place(process(number), all.iter().copied()) {
                all.push(process(number));
            }
        }
        assert_eq!(all.len(), PROCESSES);
        all.push(NOBODY);
        for user in 0..100 {
            if has_place(Party::of_user(user).to_word(), all.iter().copied()) {
                all.push(Party::of_user(user).to_word());
            }
        }
        assert_eq!(all.len(), PARTIES + 1);
        all.retain(|party| *party != NOBODY);
        assert!(all.len() < USERS, "the device's");
    }
}

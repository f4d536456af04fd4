//! The RDMA devices of the process: a place for each local address that a connection has wanted one for, with the device
//! that has the address, or why there is none and when it is looked for again.
//!
//! The holder of the device's lock ([`super::device`]) changes places; other threads read of an open device what
//! does not change.

use core::{
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering},
};

use sdp_fabric_shm::identity::Tuple;
use sdp_fabric_verbs::{
    budget::CONNECTIONS_MAX, endpoint::Core, fabric::RingFabric, numbers::Numbers,
    pool::Shared as Owned,
};
use sdp_remote::Host;
use sdp_stats::{Reason, page::DEVICE_LEN};
use sdp_sys::{section, time::monotonic_ns};

use super::{
    pace::{REOPEN_NS, RETRY_MOST_NS},
    pair::{self, PAIRS, Pair},
};

/// Addresses that are remembered, and devices that can be open at once.
const PLACES: usize = 8;
const OPEN_MOST: u32 = 4;
/// How long an address that is no device's is taken for one, at first and at most.
const NO_DEVICE_NS: u64 = 60_000_000_000;
const NO_DEVICE_MOST_NS: u64 = 3_600_000_000_000;

/// Nobody's.
const FREE: u32 = 0;
/// The device is open.
const OPEN: u32 = 1;
/// There is none: connections of this address are TCP.
const REFUSED: u32 = 2;
/// There was one, and it may come back at any time: connections wait.
const GONE: u32 = 3;

pub(super) struct Device {
    pub(super) host: Host<RingFabric, PAIRS>,
    pub(super) core: Owned<Core>,
    pub(super) numbers: Numbers,
    /// Its name, zero padded, and its port's number.
    pub(super) name: [u8; DEVICE_LEN],
    pub(super) port: u8,
}

pub(super) struct Place {
    state: AtomicU32,
    /// Code of the reason of a refusal.
    why: AtomicU32,
    /// Its address and interface.
    own: [AtomicU64; 2],
    interface: AtomicU32,
    /// How often there was none, one time after the other, and when one may be looked for again, in nanoseconds.
    looks: AtomicU32,
    again_ns: AtomicU64,
    device: AtomicPtr<Device>,
    /// The completion queue tells its channel.
    pub(super) is_armed: AtomicBool,
    /// Fast steps in progress.
    fast: AtomicU32,
    /// By the places of the device's connections: the number of the pair + 1 that had it last.
    pairs: [AtomicU16; CONNECTIONS_MAX],
}

static TABLE: [Place; PLACES] = [const {
    Place {
        state: AtomicU32::new(FREE),
        why: AtomicU32::new(0),
        own: [const { AtomicU64::new(0) }; 2],
        interface: AtomicU32::new(0),
        looks: AtomicU32::new(0),
        again_ns: AtomicU64::new(0),
        device: AtomicPtr::new(null_mut()),
        is_armed: AtomicBool::new(false),
        fast: AtomicU32::new(0),
        pairs: [const { AtomicU16::new(0) }; CONNECTIONS_MAX],
    }
}; PLACES];
/// A bit for each place with an open device.
static OPEN_ONES: AtomicU32 = AtomicU32::new(0);
/// An address was refused once.
static HAS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether there is a device. A load.
#[inline]
pub(super) fn is_any_open() -> bool {
    OPEN_ONES.load(Ordering::Acquire) != 0
}

/// The places with an open device.
#[inline]
pub(super) fn open_ones() -> impl Iterator<Item = usize> {
    let mut left = OPEN_ONES.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        let at = (left != 0).then(|| left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        at
    })
}

pub(super) fn get(at: usize) -> Option<&'static Place> {
    TABLE.get(at)
}

/// The pair of number `number` has the connection at this place of the device.
pub(super) fn set_pair_at(at: usize, index: usize, number: u32) {
    if let Some(word) = get(at).and_then(|place| place.pairs.get(index)) {
        word.store(number as u16 + 1, Ordering::Release);
    }
}

/// The pair that has the connection at this place of the device. Loads.
pub(super) fn pair_at(at: usize, index: usize) -> Option<&'static Pair> {
    let number = get(at)?.pairs.get(index)?.load(Ordering::Acquire).checked_sub(1)?;
    pair::get(u32::from(number)).filter(|pair| pair.queue() == Some((at, index)))
}

fn words(tuple: &Tuple) -> ([u64; 2], u32) {
    let bits = u128::from_ne_bytes(*tuple.local.bytes());
    ([bits as u64, (bits >> 64) as u64], tuple.interface)
}

/// The place of the connection's own address.
fn find(tuple: &Tuple) -> Option<usize> {
    let (own, interface) = words(tuple);
    TABLE.iter().position(|place| {
        place.state.load(Ordering::Acquire) != FREE
            && place.own.iter().zip(own).all(|(word, own)| word.load(Ordering::Relaxed) == own)
            && place.interface.load(Ordering::Relaxed) == interface
    })
}

/// The same, or a place that becomes it: the one among those without a device that is looked at next. By the holder of the
/// lock. `None`: so many devices are open.
pub(super) fn find_or_take(tuple: &Tuple) -> Option<usize> {
    if let Some(at) = find(tuple) {
        return Some(at);
    }
    if OPEN_ONES.load(Ordering::Relaxed).count_ones() >= OPEN_MOST {
        return None;
    }
    let unused = TABLE.iter().enumerate().filter(|(_, place)| !place.is_open());
    let (at, place) =
        unused.min_by_key(|(_, place)| match place.state.load(Ordering::Relaxed) {
            FREE => 0,
            _ => place.again_ns.load(Ordering::Relaxed),
        })?;
    let (own, interface) = words(tuple);
    place.state.store(FREE, Ordering::Release);
    place.own.iter().zip(own).for_each(|(word, own)| word.store(own, Ordering::Relaxed));
    place.interface.store(interface, Ordering::Relaxed);
    place.again_ns.store(0, Ordering::Relaxed);
    place.looks.store(0, Ordering::Relaxed);
    Some(at)
}

/// Why a connection of this address has no queue pair now, if it is known.
pub(super) fn refusal(tuple: &Tuple) -> Option<Reason> {
    let place = find(tuple).and_then(get)?;
    place.refusal().filter(|_| !place.is_due())
}

/// Whether [`refusal`] may say something. A load.
#[inline]
pub(super) fn has_refused() -> bool {
    HAS_REFUSED.load(Ordering::Relaxed)
}

impl Place {
    pub(super) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Whether a device may be looked for.
    pub(super) fn is_due(&self) -> bool {
        monotonic_ns() >= self.again_ns()
    }

    pub(super) fn again_ns(&self) -> u64 {
        self.again_ns.load(Ordering::Relaxed)
    }

    /// Why connections of its address are TCP.
    pub(super) fn refusal(&self) -> Option<Reason> {
        (self.state.load(Ordering::Acquire) == REFUSED)
            .then(|| Reason::from_code(self.why.load(Ordering::Relaxed)))
            .flatten()
    }

    /// There is no device.
    pub(super) fn refuse(&self, why: Reason) {
        let was_there = self.state.load(Ordering::Relaxed) == GONE;
        // What is short now may not be so later; a device seldom comes.
        let (first, most) = match why {
            Reason::NoDevice if !was_there => (NO_DEVICE_NS, NO_DEVICE_MOST_NS),
            _ => (REOPEN_NS, RETRY_MOST_NS),
        };
        let doubles = self.looks.fetch_add(1, Ordering::Relaxed).min(20);
        self.again_ns.store(monotonic_ns() + (first << doubles).min(most), Ordering::Relaxed);
        if !was_there {
            self.why.store(u32::from(why.code()), Ordering::Relaxed);
            self.state.store(REFUSED, Ordering::Release);
            HAS_REFUSED.store(true, Ordering::Relaxed);
        }
    }

    /// Place `at` has this device from here on.
    pub(super) fn opened(&self, at: usize, device: *mut Device) {
        self.looks.store(0, Ordering::Relaxed);
        self.again_ns.store(0, Ordering::Relaxed);
        self.is_armed.store(false, Ordering::Relaxed);
        self.device.store(device, Ordering::SeqCst);
        self.state.store(OPEN, Ordering::Release);
        OPEN_ONES.fetch_or(1 << at, Ordering::Release);
    }

    /// The device of place `at` is lost, and the caller's from here on: no fast step is in progress.
    pub(super) fn lost(&self, at: usize) -> *mut Device {
        OPEN_ONES.fetch_and(!(1 << at), Ordering::Release);
        let device = self.device.swap(null_mut(), Ordering::SeqCst);
        self.again_ns.store(monotonic_ns() + REOPEN_NS, Ordering::Relaxed);
        self.state.store(GONE, Ordering::Release);
        sdp_sys::time::back_off_until(|| self.fast.load(Ordering::SeqCst) == 0);
        device
    }

    /// The open device, for the holder of the device's lock.
    pub(super) fn device(&self) -> *mut Device {
        self.device.load(Ordering::Acquire)
    }
}

/// Runs a fast step, during which the device is not closed.
pub(super) fn with_core<R>(at: usize, step: impl FnOnce(&Core) -> R) -> Option<R> {
    with_names(at, |core, _, _| step(core))
}

/// [`with_core`], with the device's name and port.
pub(super) fn with_names<R>(at: usize, step: impl FnOnce(&Core, &[u8], u8) -> R) -> Option<R> {
    with(at, |device| step(&device.core, &device.name, device.port))
}

/// [`with_core`], with the numbers of its descriptors.
pub(super) fn with_numbers<R>(at: usize, step: impl FnOnce(&Numbers) -> R) -> Option<R> {
    with(at, |device| step(&device.numbers))
}

/// `step` leaves `host` alone.
fn with<R>(at: usize, step: impl FnOnce(&Device) -> R) -> Option<R> {
    let place = get(at)?;
    if place.device.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let _section = section::Guard::enter();
    place.fast.fetch_add(1, Ordering::SeqCst);
    // SAFETY: a mapping that is never given back; its content stays until no fast step is in
    // progress, and a thread that closes it has taken the pointer away before it looks. What is
    // used, all but `host`, is not changed after it was opened.
    let device = unsafe { place.device.load(Ordering::SeqCst).as_ref() };
    let done = device.map(step);
    place.fast.fetch_sub(1, Ordering::SeqCst);
    done
}

/// In a fork child: the devices are the parent's.
#[cold]
pub(super) fn forget() {
    for place in TABLE.iter().filter(|place| place.is_open()) {
        place.device.store(null_mut(), Ordering::Release);
        place.state.store(FREE, Ordering::Release);
    }
    TABLE.iter().for_each(|place| place.fast.store(0, Ordering::Release));
    OPEN_ONES.store(0, Ordering::Release);
}

//! The network's memory. All zeros is an empty network; processes that share it agree on nothing else.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

use sdp_fabric_verbs::abi::{cm, verbs};
use sdp_sys::{Errno, sys};

use crate::{
    local::Path,
    step::{Fault, Step},
};

pub(crate) const DEVICES: usize = 8;
pub(crate) const MANAGERS: usize = 32;
pub(crate) const EVENTS: usize = 256;
pub(crate) const IDS: usize = 512;
pub(crate) const CONTEXTS: usize = 32;
pub(crate) const TROUBLES: usize = 64;
pub(crate) const CQS: usize = 32;
pub(crate) const COMPLETIONS: usize = 16384;
pub(crate) const SRQS: usize = 32;
pub(crate) const BUFFERS: usize = 1024;
pub(crate) const QPS: usize = 512;
pub(crate) const PENDING: usize = 64;
pub(crate) const REGION_BITS: u32 = 10;
pub(crate) const REGIONS: usize = 1 << REGION_BITS;
pub(crate) const OTHERS: usize = 512;
pub(crate) const MESSAGES: usize = 8192;
pub(crate) const MESSAGE: usize = 4096;

/// An address of either family, IPv4 as IPv6 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Place {
    pub(crate) ip: [u8; 16],
    pub(crate) port: u16,
}

/// A device by its first port, or another port of one.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) ip: [u8; 16],
    pub(crate) is_present: bool,
    /// Of another port: the device's number + 1, and the port's less 1.
    pub(crate) of: u8,
    pub(crate) behind: u8,
    pub(crate) is_iwarp: bool,
    /// It has no shared receive queues.
    pub(crate) has_own_receives: bool,
    /// No message of the connection manager leaves it.
    pub(crate) is_down: bool,
    /// No such message reaches it any more: one was sent while it was down.
    pub(crate) is_deaf: bool,
}

#[repr(C)]
pub(crate) struct Manager {
    /// 0: free.
    pub(crate) pid: u32,
    pub(crate) fd: i32,
    pub(crate) doorbell: u32,
    pub(crate) events: Ring<cm::EventResp, EVENTS>,
}

/// How far an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    Free,
    New,
    Bound,
    Listening,
    AddressKnown,
    RouteKnown,
    /// It has asked.
    Asking,
    /// It was asked.
    Asked,
    /// It has accepted.
    Accepted,
    /// It was accepted.
    Answered,
    Connected,
    Ended,
}

#[repr(C)]
pub(crate) struct Id {
    pub(crate) stage: Stage,
    pub(crate) manager: u16,
    /// Place of the peer's + 1; 0: none.
    pub(crate) peer: u16,
    /// Number of the device + 1; 0: none.
    pub(crate) device: u8,
    /// Of the device, from 1.
    pub(crate) device_port: u8,
    /// Port space: ports of one are not those of another.
    pub(crate) space: u16,
    pub(crate) uid: u64,
    pub(crate) local: Place,
    pub(crate) remote: Place,
    pub(crate) qp: u32,
    pub(crate) peer_qp: u32,
}

/// An open device: its asynchronous events.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) pid: u32,
    pub(crate) fd: i32,
    pub(crate) doorbell: u32,
    pub(crate) device: u8,
    pub(crate) troubles: Ring<Trouble, TROUBLES>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Trouble {
    pub(crate) kind: i32,
    /// Number of the queue pair; 0: none.
    pub(crate) qp: u32,
    /// Number of the port, from 1; 0: none.
    pub(crate) port: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Done {
    pub(crate) wc: verbs::Wc,
    /// Slot of the message + 1; 0: none.
    pub(crate) message: u32,
    /// The receive queue; [`NO_QUEUE`]: the end of a send.
    pub(crate) queue: u16,
    /// For the message.
    pub(crate) buffer: Buffer,
}

/// No receive queue.
pub(crate) const NO_QUEUE: u16 = u16::MAX;

#[repr(C)]
pub(crate) struct Cq {
    pub(crate) pid: u32,
    /// 0 not, 1 for solicited ones, 2 for all.
    pub(crate) armed: u8,
    /// Most completions in it; one more breaks it.
    pub(crate) room: u32,
    pub(crate) is_broken: bool,
    pub(crate) fd: i32,
    pub(crate) doorbell: u32,
    pub(crate) done: Ring<Done, COMPLETIONS>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) wr_id: u64,
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

impl Buffer {
    pub(crate) const NONE: Self = Self { wr_id: 0, addr: 0, length: 0, lkey: 0 };
}

/// A message that found no buffer.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Stalled {
    pub(crate) done: Done,
    pub(crate) is_solicited: bool,
    /// The queue pair that sent it and whose request waits.
    pub(crate) from: u32,
}

/// A receive queue.
#[repr(C)]
pub(crate) struct Receives {
    /// Of a shared one.
    pub(crate) pid: u32,
    /// Receives that were posted and whose completions were not taken, and how many may be.
    pub(crate) posted: u32,
    pub(crate) room: u32,
    pub(crate) buffers: Ring<Buffer, BUFFERS>,
    /// Messages that found no buffer.
    pub(crate) stalled: Ring<Stalled, BUFFERS>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Pending {
    pub(crate) wr_id: u64,
    pub(crate) is_signalled: bool,
}

#[repr(C)]
pub(crate) struct Qp {
    pub(crate) pid: u32,
    pub(crate) number: u32,
    pub(crate) state: i32,
    pub(crate) cq: u16,
    /// The receive queue: a shared one, or its own behind them.
    pub(crate) queue: u16,
    pub(crate) context: u16,
    /// The device's port, from 1; 0: not said yet.
    pub(crate) port: u8,
    pub(crate) dest: u32,
    pub(crate) generation: u32,
    /// The structure in its process.
    pub(crate) local: u64,
    /// Requests that have neither succeeded nor failed.
    pub(crate) pending: Ring<Pending, PENDING>,
    /// Of the pending ones, those whose messages wait for buffers.
    pub(crate) stalled: u32,
    /// A request was lost: those behind it do not arrive either, until it fails.
    pub(crate) is_cut: bool,
    /// Number of its protection domain, and how many pieces a request may have.
    pub(crate) domain: u16,
    pub(crate) pieces: u8,
    /// Bytes of WRITEs to it that are not in its process's memory yet: the first slot + 1, and the
    /// last.
    pub(crate) written: u32,
    pub(crate) last_written: u32,
    /// Messages that came before it was ready to receive: their sender tries again until it is.
    pub(crate) early: Ring<Stalled, PENDING>,
}

#[repr(C)]
pub(crate) struct Region {
    pub(crate) pid: u32,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Its first address in the words of the peer.
    pub(crate) iova: u64,
    pub(crate) access: i32,
    /// Number of its protection domain.
    pub(crate) domain: u16,
}

/// A slot's place in a message, or among the bytes of a WRITE.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Link {
    /// The next slot + 1; 0: none.
    pub(crate) next: u32,
    pub(crate) len: u32,
    /// Where the bytes go; 0: into the receive buffer.
    pub(crate) addr: u64,
    /// The key to the region there.
    pub(crate) key: u32,
}

/// Objects of which nothing but their being there matters.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Pd,
    Channel,
}

#[repr(C)]
pub(crate) struct Other {
    pub(crate) pid: u32,
    pub(crate) kind: Kind,
}

#[repr(C)]
pub(crate) struct Body {
    /// Of the doorbells; none: they have no names.
    pub(crate) folder: Path,
    /// The name of the last doorbell.
    pub(crate) last_doorbell: u32,
    pub(crate) devices: [Device; DEVICES],
    pub(crate) managers: [Manager; MANAGERS],
    pub(crate) ids: [Id; IDS],
    pub(crate) contexts: [Context; CONTEXTS],
    pub(crate) cqs: [Cq; CQS],
    /// Shared ones, then each queue pair's own.
    pub(crate) receives: [Receives; SRQS + QPS],
    pub(crate) qps: [Qp; QPS],
    pub(crate) regions: [Region; REGIONS],
    pub(crate) others: [Other; OTHERS],
    /// [`crate::Road`].
    pub(crate) road: u8,
    pub(crate) next_key: u32,
    pub(crate) next_port: u16,
    pub(crate) next_qp: u32,
    pub(crate) is_taken: [bool; MESSAGES],
    pub(crate) next_message: usize,
    pub(crate) links: [Link; MESSAGES],
    pub(crate) totals: Totals,
    pub(crate) messages: [[u8; MESSAGE]; MESSAGES],
}

/// The work of all processes since the network was made.
#[repr(C)]
pub(crate) struct Totals {
    /// Calls of each step.
    pub(crate) calls: [u64; Step::ALL.len()],
    /// Requests that ask for a completion.
    pub(crate) signalled: u64,
    /// Lists of requests that were posted, each with one doorbell.
    pub(crate) doorbells: u64,
    /// Requests whose bytes the post copied.
    pub(crate) inline: u64,
    /// Completions that were taken.
    pub(crate) completions: u64,
    /// Events of completion channels.
    pub(crate) wakeups: u64,
}

/// The steps that fail in this process.
struct Faults(UnsafeCell<[Fault; Step::ALL.len()]>);

// SAFETY: touched under the network's lock alone.
unsafe impl Sync for Faults {}

static FAULTS: Faults = Faults(UnsafeCell::new([Fault::NONE; Step::ALL.len()]));

/// Sets a failure without a network.
///
/// # Safety
/// No other thread uses the faults.
pub(crate) unsafe fn set_fault(step: Step, nth: u32, count: u32, number: i32) {
    // SAFETY: the caller's.
    if let Some(fault) = unsafe { &mut *FAULTS.0.get() }.get_mut(step as usize) {
        fault.set(nth, count, number);
    }
}

impl Body {
    /// The region with this key.
    pub(crate) fn region(&self, key: u32) -> Option<&Region> {
        let region = self.regions.get(key as usize % REGIONS)?;
        (region.pid != 0 && region.key == key).then_some(region)
    }

    /// A step's calls and failures, in this process.
    pub(crate) fn fault(&mut self, step: Step) -> Option<&mut Fault> {
        // SAFETY: a thread that has the body has the lock, and the reference goes with it.
        unsafe { &mut *FAULTS.0.get() }.get_mut(step as usize)
    }

    pub(crate) fn step(&mut self, step: Step) -> Result<(), Errno> {
        self.count(step);
        self.fault(step).map_or(Ok(()), Fault::check)
    }

    fn count(&mut self, step: Step) {
        if let Some(calls) = self.totals.calls.get_mut(step as usize) {
            *calls += 1;
        }
    }

    pub(crate) fn event_fault(&mut self, step: Step) -> Option<i32> {
        self.count(step);
        self.fault(step).and_then(Fault::take)
    }
}

/// A queue of fixed size.
#[repr(C)]
pub(crate) struct Ring<T, const N: usize> {
    first: usize,
    count: usize,
    items: [T; N],
}

impl<T: Copy, const N: usize> Ring<T, N> {
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn push(&mut self, item: T) -> bool {
        if self.count >= N {
            return false;
        }
        if let Some(place) = self.items.get_mut((self.first + self.count) % N) {
            *place = item;
        }
        self.count += 1;
        true
    }

    pub(crate) fn peek(&self) -> Option<&T> {
        (self.count > 0).then(|| self.items.get(self.first))?
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = *self.peek()?;
        self.first = (self.first + 1) % N;
        self.count -= 1;
        Some(item)
    }

    pub(crate) const fn clear(&mut self) {
        (self.first, self.count) = (0, 0);
    }

    /// Keeps those for which `keep` holds, in their order.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for _ in 0..self.count {
            if let Some(item) = self.pop()
                && keep(&item)
            {
                self.push(item);
            }
        }
    }
}

/// The mapping.
#[repr(C)]
pub(crate) struct State {
    /// Process that holds the lock; 0: none.
    lock: AtomicU32,
    body: UnsafeCell<Body>,
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("State")
    }
}

// SAFETY: the body is touched under the lock alone.
unsafe impl Sync for State {}

pub(crate) fn own_pid() -> u32 {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_getpid) }.unwrap_or(0) as u32
}

/// Whether a process runs: one that its parent has not waited for does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    // SAFETY: no pointers.
    let Ok(fd) = (unsafe { sys!(libc::SYS_pidfd_open, pid, 0) }) else { return false };
    let fd = sdp_sys::OwnedFd::new(fd as i32);
    sdp_sys::fd::readiness(fd.raw(), libc::POLLIN) == 0
}

struct Unlock<'a>(&'a AtomicU32);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl State {
    /// Runs `body` under the lock. A process that died with it has left it to the next one.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut Body) -> R) -> R {
        let own = own_pid();
        let _section = sdp_sys::section::Guard::enter();
        let mut looks = 0u32;
        while let Err(holder) =
            self.lock.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
        {
            sdp_sys::time::back_off(looks);
            looks = looks.saturating_add(1);
            if looks.is_multiple_of(100) && holder != 0 && holder != own && !is_alive(holder) {
                let _ = self.lock.compare_exchange(holder, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        let _unlock = Unlock(&self.lock);
        // SAFETY: the lock is ours.
        body(unsafe { &mut *self.body.get() })
    }
}

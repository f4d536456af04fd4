//! Where receive buffers wait for messages: one queue for all connections, or one for each where
//! the device has no shared ones.
//!
//! Either way a connection has as many buffers as its peer may use, all from one pool. With a
//! shared queue all buffers are in it, and a peer that takes more than its share is failed. A queue
//! of its own has that share from the beginning to the end of its queue pair. What the device makes
//! of the rest when a queue pair ends does not matter: the buffers are free when the queue pair is
//! gone.

use core::sync::atomic::Ordering;

use sdp_rdma::fabric::QpError;
use sdp_sys::Errno;

use super::Core;
use crate::{
    Error,
    abi::verbs as abi,
    budget::{self, BUFFER, Budget, CONNECTIONS_MAX, RESERVE},
    device::{self, Domain, Pd, RawQp, SharedReceives, Srq},
    fabric::Options,
    work_id,
};

/// In [`Core::owners`]: no connection's.
const FREE: u16 = 0;
/// Beside the connection: the buffer was posted to the connection's own queue.
const WAITS: u16 = 1 << 15;

/// In [`Core::owners`]: the buffer has a message of this connection.
pub(super) const fn holder(index: usize) -> u16 {
    index as u16 + 1
}

/// The receive queues of a fabric.
#[derive(Debug)]
pub enum Receives {
    /// One for all.
    Shared(Srq),
    /// One for each queue pair.
    Own,
}

impl Receives {
    /// A queue of `entries` for all, where the device has one that long; `is_shared` false: it is
    /// not asked.
    ///
    /// # Errors
    /// The library's.
    pub fn new(domain: &Pd, entries: usize, is_shared: bool) -> Result<Self, Error> {
        if !is_shared {
            return Ok(Self::Own);
        }
        match SharedReceives::new(domain, entries) {
            Ok(queue) => Ok(Self::Shared(queue)),
            // No such call, or its limits are too low.
            Err(Error::Os(_, Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))) => {
                Ok(Self::Own)
            }
            Err(error) => Err(error),
        }
    }

    /// The queue of all.
    pub const fn shared(&self) -> Option<&Srq> {
        match self {
            Self::Shared(queue) => Some(queue),
            Self::Own => None,
        }
    }
}

/// Whether all connections of a process share a receive queue on the device of this node GUID: asked
/// as a fabric of this process asks, and given back. Slow, for tools.
///
/// # Errors
/// Why the device cannot be used, or the library's.
pub fn are_shared(node_guid: u64) -> Result<bool, Error> {
    let entries = Budget::within(budget::limit(), CONNECTIONS_MAX)?.receives;
    let context = device::open(node_guid, Options::default().floor)?;
    Ok(Receives::new(&Domain::new(&context)?, entries, true)?.shared().is_some())
}

impl Core {
    /// Posts the buffers of a queue for all.
    pub(crate) fn fill(&self) {
        (0..self.receives).for_each(|buffer| self.put_back(buffer));
    }

    /// Messages that the peer of a place may send at once: the entries of a queue of its own.
    pub(crate) fn share(&self, index: usize) -> u32 {
        self.place(index).promised.load(Ordering::Relaxed) + RESERVE
    }

    /// Gives a fresh queue pair the buffers of its own queue. A slow step.
    ///
    /// # Errors
    /// The provider's.
    pub(crate) fn stock(&self, index: usize, qp: RawQp) -> Result<(), Error> {
        if self.place(index).rings.is_there() {
            return self.stock_ring(index, qp);
        }
        if self.receive_queue.shared().is_some() {
            return Ok(());
        }
        // The completion queue has room for one completion of each buffer.
        self.drain();
        // Other threads free buffers meanwhile, and take none.
        let is_taken = |buffer: &usize| self.passes(*buffer, FREE, holder(index) | WAITS);
        let mut buffers = (0..self.receives).filter(is_taken);
        for _ in 0..self.share(index) {
            let buffer = buffers.next().ok_or(Error::Full)?;
            self.post_own(index, buffer, qp)?;
        }
        Ok(())
    }

    /// A buffer goes from one owner to the next; whether it was the first one's. In one step: what
    /// is nobody's for a moment is another thread's for good.
    fn passes(&self, buffer: usize, from: u16, to: u16) -> bool {
        let Some(owner) = self.owners.get(buffer) else { return false };
        owner.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The buffer's owner says that it waits there.
    fn post_own(&self, index: usize, buffer: usize, qp: RawQp) -> Result<(), Error> {
        let id = self.place(index).owner(index).receive(buffer);
        // SAFETY: the caller's queue pair lives; a buffer of the region, which outlives it, and
        // which is this queue's alone until the queue pair is gone.
        unsafe { qp.post_receive(id, self.piece(buffer, BUFFER)) }
    }

    /// The place of a completed receive's connection. The number of a queue pair that is gone may be
    /// another's: a queue of its own names the connection.
    pub(super) fn receiver(&self, wc: &abi::Wc) -> Option<usize> {
        let index = self.by_number(wc.qp_num)?;
        let generation = self.place(index).generation.load(Ordering::Relaxed);
        let is_its = work_id::place_of(wc.wr_id) == index && work_id::is_of(wc.wr_id, generation);
        (self.receive_queue.shared().is_some() || is_its).then_some(index)
    }

    /// The message of a completion is nobody's: its queue pair has failed, or is gone.
    pub(super) fn put_back(&self, buffer: usize) {
        // A queue pair's own has no use for it any more.
        let Some(queue) = self.receive_queue.shared() else { return };
        // SAFETY: a buffer of the region, which outlives the queue's use of it (its registration
        // goes before it, and the queue before that); nothing else uses it: it is free.
        let posted = unsafe { queue.post(work_id::receive(buffer), self.piece(buffer, BUFFER)) };
        if posted.is_err() {
            self.break_down(); // somebody was promised it
        }
    }

    /// A message was read: its buffer waits for another. Whether the connection had it.
    pub(super) fn release(&self, index: usize, buffer: usize) -> bool {
        if let Receives::Own = self.receive_queue {
            return self.release_own(index, buffer);
        }
        let is_its = self.passes(buffer, holder(index), FREE);
        if is_its {
            self.put_back(buffer);
        }
        is_its
    }

    fn release_own(&self, index: usize, buffer: usize) -> bool {
        let conn = self.place(index);
        // SAFETY: the pointer of a queue pair that lives while the caller's half does, or null.
        let qp = unsafe { RawQp::of(conn.qp.load(Ordering::Acquire)) };
        let Some(qp) = qp.filter(|_| conn.error().is_none()) else {
            return self.passes(buffer, holder(index), FREE);
        };
        let is_its = self.passes(buffer, holder(index), holder(index) | WAITS);
        if is_its && self.post_own(index, buffer, qp).is_err() && conn.fail(QpError::Fatal) {
            self.wants_step(); // its peer was promised it
        }
        is_its
    }

    /// Gives back all receive buffers of a connection: its queue pair and its halves are gone.
    pub(super) fn release_all(&self, index: usize) {
        for (buffer, owner) in self.owners.iter().enumerate() {
            if owner.load(Ordering::Relaxed) & !WAITS == holder(index) {
                owner.store(FREE, Ordering::Release);
                self.put_back(buffer);
            }
        }
    }
}

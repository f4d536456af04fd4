//! What both halves of a connection, the drain and the slow steps share.
//!
//! [`Conn`] is a place in the fabric's table: the queue pair, its state, the inbox of messages that
//! the drain fills, and the ring of requests that the sending half fills. Every field is atomic, or
//! written by one of them alone.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use sdp_rdma::fabric::QpError;

use super::{ALIVE, INBOX, ring::Rings};
use crate::{abi::verbs as abi, budget::DEPTH, entry::Entry, work_id::Owner};

/// The fields of a connection that both halves, the drain and the slow steps use.
#[derive(Debug)]
pub struct Conn {
    /// The queue pair while halves may post; null before and after.
    pub(crate) qp: AtomicPtr<abi::Qp>,
    /// Its number; 0: none.
    pub(crate) number: AtomicU32,
    /// The peer's.
    pub(crate) peer_number: AtomicU32,
    /// Distinguishes the connections that had the place.
    pub(super) generation: AtomicU32,
    /// [`ALIVE`], or why not ([`error_code`]).
    pub(super) error: AtomicU8,
    /// No post happens any more: set under `posting`.
    pub(crate) is_closed: AtomicBool,
    /// All that was posted has completed.
    pub(crate) is_drained: AtomicBool,
    /// Halves that are taken: 1 send, 2 receive.
    pub(crate) halves: AtomicU8,
    /// Turn to post.
    pub(super) posting: AtomicBool,
    /// Requests posted, and those known to have ended; both wrap.
    pub(super) posted: AtomicU32,
    pub(super) done: AtomicU32,
    /// Behind the last request that completes by itself.
    pub(super) signalled: AtomicU32,
    pub(super) entries: [Entry; DEPTH as usize],
    /// Messages that may be posted in all; wraps. Stored by the caller, which knows the peer's
    /// credits.
    pub(super) allowed: AtomicU32,
    /// SENDs posted in all; wraps.
    pub(super) sent: AtomicU32,
    /// Messages: buffer and length. `arrived` is the drain's, `reported` the receiver's.
    pub(super) inbox: [AtomicU64; INBOX],
    pub(super) arrived: AtomicU32,
    pub(super) reported: AtomicU32,
    /// Messages released; wraps.
    pub(super) released: AtomicU32,
    /// Buffers promised to the peer, without the reserve; 0: the place is free.
    pub(crate) promised: AtomicU32,
    /// Where messages are written into rings.
    pub(crate) rings: Rings,
}

impl Conn {
    pub(crate) fn new() -> Self {
        Self {
            qp: AtomicPtr::new(core::ptr::null_mut()),
            number: AtomicU32::new(0),
            peer_number: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            error: AtomicU8::new(ALIVE),
            is_closed: AtomicBool::new(false),
            is_drained: AtomicBool::new(false),
            halves: AtomicU8::new(0),
            posting: AtomicBool::new(false),
            posted: AtomicU32::new(0),
            done: AtomicU32::new(0),
            signalled: AtomicU32::new(0),
            entries: core::array::from_fn(|_| Entry::new()),
            allowed: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            inbox: core::array::from_fn(|_| AtomicU64::new(0)),
            arrived: AtomicU32::new(0),
            reported: AtomicU32::new(0),
            released: AtomicU32::new(0),
            promised: AtomicU32::new(0),
            rings: Rings::new(),
        }
    }

    /// For a new connection in this place, before any other thread can see it.
    pub(crate) fn begin(&self, promised: u32) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.error.store(ALIVE, Ordering::Relaxed);
        for word in [&self.posted, &self.done, &self.sent, &self.arrived, &self.reported] {
            word.store(0, Ordering::Relaxed);
        }
        self.signalled.store(0, Ordering::Relaxed);
        self.released.store(0, Ordering::Relaxed);
        self.rings.begin();
        self.promised.store(promised, Ordering::Relaxed);
        self.allowed.store(promised, Ordering::Relaxed);
        self.halves.store(0, Ordering::Relaxed);
        self.is_closed.store(false, Ordering::Relaxed);
        self.is_drained.store(false, Ordering::Release);
    }

    /// Why it has failed, if it has.
    pub(crate) fn error(&self) -> Option<QpError> {
        match self.error.load(Ordering::Acquire) {
            ALIVE => None,
            1 => Some(QpError::Disconnected),
            2 => Some(QpError::Framing),
            _ => Some(QpError::Fatal),
        }
    }

    /// Fails it; the first reason stays. Whether this was the first.
    pub(crate) fn fail(&self, why: QpError) -> bool {
        let code = match why {
            QpError::Disconnected => 1,
            QpError::Framing => 2,
            QpError::Fatal => 3,
        };
        let set = self.error.compare_exchange(ALIVE, code, Ordering::AcqRel, Ordering::Acquire);
        set.is_ok()
    }

    pub(super) fn owner(&self, index: usize) -> Owner {
        Owner::new(index, self.generation.load(Ordering::Relaxed))
    }

    pub(super) fn take_turn(&self) {
        while self.posting.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
    }

    pub(super) fn end_turn(&self) {
        self.posting.store(false, Ordering::Release);
    }

    pub(super) fn entry(&self, number: u32) -> &Entry {
        &self.entries[(number % DEPTH) as usize]
    }

    pub(super) fn is_behind(of: u32, than: u32) -> bool {
        (of.wrapping_sub(than) as i32) < 0
    }
}

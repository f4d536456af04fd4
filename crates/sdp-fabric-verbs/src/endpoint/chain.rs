//! Messages that the device is given together: one doorbell for all of them.
//!
//! A message that its caller lets wait ([`SendQueue::post_send_before`]) lies in its send buffer, and
//! is not posted before the next one, or [`SendQueue::flush`]. Until then nobody else knows of it.
//! From then on all of them are posted requests, whether the device has taken them or not: one that
//! refuses some of them has failed the queue pair, whose last request ends them all; those that were
//! refused are flushed then.
//!
//! [`SendQueue::post_send_before`]: sdp_rdma::fabric::SendQueue::post_send_before
//! [`SendQueue::flush`]: sdp_rdma::fabric::SendQueue::flush

use core::sync::atomic::Ordering;

use sdp_rdma::{
    fabric::{PostError, QpError},
    work::WorkId,
};

use super::{Core, SIGNAL_EVERY, VerbsTx, conn::Conn};
use crate::{
    abi::verbs as abi,
    device::RawQp,
    entry::{ASKED, Entry, KIND_SHIFT, NO_PLACE},
    status::status_code,
};

/// Most messages that wait.
pub(super) const CHAIN: usize = 7;

/// A request that is about to be posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) id: WorkId,
    pub(super) kind: u32,
    /// Its send buffer, or [`NO_PLACE`].
    pub(super) place: u32,
    pub(super) is_asked: bool,
}

/// A message that waits in its send buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) len: u32,
    pub(super) flags: u32,
}

/// Those that wait, oldest first.
#[derive(Debug)]
pub(super) struct Chain {
    places: [Option<Waiting>; CHAIN],
    len: usize,
}

impl Chain {
    pub(super) const fn new() -> Self {
        Self { places: [None; CHAIN], len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == CHAIN
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        if let Some(place) = self.places.get_mut(self.len) {
            *place = Some(waiting);
            self.len += 1;
        }
    }

    fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.places.iter().take(self.len).flatten()
    }
}

/// Takes note of a request before the device has it.
pub(super) fn note(entry: &Entry, request: &Request) {
    entry.id.store(request.id.0, Ordering::Relaxed);
    entry.status.store(0, Ordering::Relaxed);
    let asked = if request.is_asked { ASKED } else { 0 };
    entry.info.store(request.place | asked | request.kind << KIND_SHIFT, Ordering::Relaxed);
}

impl VerbsTx {
    /// Posts those that wait, and behind them `last`, whose piece is its own.
    ///
    /// # Errors
    /// Nothing is posted any more; those that waited are gone, and `last` is the caller's.
    pub(super) fn post_chain(
        &mut self,
        last: Option<(Request, &mut abi::SendWr, abi::Sge)>,
    ) -> Result<(), PostError> {
        let core = &*self.core;
        let conn = core.place(self.index);
        let chain = core::mem::replace(&mut self.chain, Chain::new());
        conn.take_turn();
        let Some(qp) = usable(conn) else {
            conn.end_turn();
            chain.all().for_each(|one| core.places.give_back(one.request.place as usize));
            return Err(PostError::Failed(conn.error().unwrap_or(QpError::Disconnected)));
        };
        let first = conn.posted.load(Ordering::Relaxed);
        let mut number = first;
        let mut requests: [_; CHAIN] =
            core::array::from_fn(|_| abi::SendWr::new(0, abi::WR_SEND, 0));
        let mut pieces = [abi::Sge::default(); CHAIN];
        let fence = if self.read.is_some() { abi::SEND_FENCE } else { 0 };
        let are_scarce = core.places.are_scarce();
        let mut signalled = None;
        let mut begin = |request: &Request, wr: &mut abi::SendWr, silent: &mut u32| {
            note(conn.entry(number), request);
            wr.wr_id = self.owner.request(number);
            wr.send_flags |= fence;
            number = number.wrapping_add(1);
            *silent += 1;
            if request.is_asked || *silent >= SIGNAL_EVERY || are_scarce {
                wr.send_flags |= abi::SEND_SIGNALED;
                (*silent, signalled) = (0, Some(number));
            }
        };
        let mut silent = self.silent;
        // From the last one on, because each names the next.
        let mut links = (core::ptr::null_mut(), core::ptr::null_mut());
        for ((one, wr), piece) in chain.all().zip(&mut requests).zip(&mut pieces) {
            begin(&one.request, wr, &mut silent);
            wr.send_flags |= one.flags;
            *piece = core.piece(core.receives + one.request.place as usize, one.len as usize);
            (wr.sg_list, wr.num_sge) = (piece, 1);
            link(&mut links, wr);
        }
        let mut own = abi::Sge::default();
        if let Some((request, wr, piece)) = last {
            begin(&request, wr, &mut silent);
            own = piece;
            (wr.sg_list, wr.num_sge) = (&raw mut own, 1);
            link(&mut links, wr);
        }
        self.silent = silent;
        conn.posted.store(number, Ordering::Release);
        if let Some(behind) = signalled {
            conn.signalled.store(behind, Ordering::Relaxed);
        }
        // SAFETY: the queue pair lives while this half does; the requests and their pieces are on
        // this stack, and copied by the post; a send buffer is its request's until that has ended.
        let posted = unsafe { qp.post_all(links.0) };
        let _ = own;
        if let Err(refused) = posted {
            // No completion tells of those from the refused one on; one that the device does not
            // name may be any.
            let waiting = requests.iter().take(chain.len());
            let place = waiting.zip(0..).find(|(wr, _)| core::ptr::eq(*wr, refused));
            let is_last = refused == links.1.cast_const();
            let before = match place {
                Some((_, before)) => before,
                None if is_last => chain.len() as u32,
                None => 0,
            };
            let mut at = first.wrapping_add(before);
            while at != number {
                let flushed = status_code(abi::WC_WR_FLUSH_ERR);
                conn.entry(at).status.store(flushed, Ordering::Relaxed);
                at = at.wrapping_add(1);
            }
        }
        conn.end_turn();
        if posted.is_err() && conn.fail(QpError::Fatal) {
            core.wants_step();
        }
        Ok(())
    }
}

/// Adds a request behind the last one of a list.
fn link(list: &mut (*mut abi::SendWr, *mut abi::SendWr), request: &mut abi::SendWr) {
    let at = &raw mut *request;
    if list.0.is_null() {
        list.0 = at;
    } else {
        // SAFETY: a request on the caller's stack that was added before; nothing else is at it.
        unsafe { (*list.1).next = at };
    }
    list.1 = at;
}

/// A send buffer is free again when its completion was seen: where buffers are scarce, each is
/// asked for.
pub(super) fn is_scarce(core: &Core, request: &Request) -> bool {
    request.place != NO_PLACE && core.places.are_scarce()
}

/// The queue pair, if requests may be posted to it. With the turn to post.
pub(super) fn usable(conn: &Conn) -> Option<RawQp> {
    let qp = conn.qp.load(Ordering::Acquire);
    if conn.is_closed.load(Ordering::Relaxed) || conn.error().is_some() {
        return None;
    }
    // SAFETY: the pointer of a queue pair that lives while the caller's half does, or null.
    unsafe { RawQp::of(qp) }
}

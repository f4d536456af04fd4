//! The data path: requests, messages, completions.

use sdp_fabric_verbs::abi::verbs as abi;
use sdp_sys::{Errno, sys};

use crate::{
    local,
    network::Road,
    state::{
        Body, Buffer, Done, Link, MESSAGE, NO_QUEUE, Pending, Qp, Receives, Region, SRQS, Stalled,
        Trouble, own_pid,
    },
    step::Step,
};

/// Pieces that a request may have.
const PIECES: usize = 4;

/// The pieces of a request.
#[derive(Clone, Copy)]
struct Pieces {
    list: [abi::Sge; PIECES],
    count: usize,
}

impl Pieces {
    fn all(&self) -> &[abi::Sge] {
        self.list.get(..self.count).unwrap_or(&[])
    }

    fn len(&self) -> usize {
        self.all().iter().map(|piece| piece.length as usize).sum()
    }
}

fn is_of(qp: &Qp, number: u32) -> bool {
    qp.pid != 0 && qp.number == number
}

fn find(body: &Body, number: u32) -> Option<usize> {
    // As it is made of the place.
    let index = number.checked_sub(1)? as usize & 0xfff;
    body.qps.get(index).is_some_and(|qp| is_of(qp, number)).then_some(index)
}

/// Puts a completion into a queue, and wakes a thread that armed it.
fn complete(body: &mut Body, cq: usize, done: Done, is_solicited: bool) {
    let Some(cq) = body.cqs.get_mut(cq) else { return };
    cq.is_broken |= cq.done.len() >= cq.room as usize || !cq.done.push(done);
    let is_failed = done.wc.status != abi::WC_SUCCESS;
    if cq.armed == 2 || (cq.armed == 1 && (is_solicited || is_failed)) {
        cq.armed = 0;
        body.totals.wakeups += 1;
        local::ring(&body.folder, cq.doorbell, cq.pid, cq.fd);
    }
}

fn end_of_send(qp: u32, wr_id: u64, status: i32) -> Done {
    let mut wc = abi::Wc::default();
    (wc.wr_id, wc.status, wc.qp_num) = (wr_id, status, qp);
    Done { wc, message: 0, queue: NO_QUEUE, buffer: Buffer::NONE }
}

/// Queues an asynchronous event for a context.
pub(crate) fn tell_trouble(body: &mut Body, context: usize, trouble: Trouble) {
    if let Some(context) = body.contexts.get_mut(context)
        && context.pid != 0
        && context.troubles.push(trouble)
    {
        local::ring(&body.folder, context.doorbell, context.pid, context.fd);
    }
}

/// To the error state: waiting requests are flushed, the first one with `status`.
pub(crate) fn fail(body: &mut Body, index: usize, status: i32) {
    let Some(qp) = body.qps.get_mut(index) else { return };
    if qp.pid == 0 || matches!(qp.state, abi::QPS_ERR | abi::QPS_RESET) {
        return;
    }
    qp.state = abi::QPS_ERR;
    qp.stalled = 0;
    let number = qp.number;
    let mut status = status;
    while let Some(Pending { wr_id, .. }) = body.qps.get_mut(index).and_then(|qp| qp.pending.pop())
    {
        let Some((cq, number)) = body.qps.get(index).map(|qp| (qp.cq, qp.number)) else { return };
        complete(body, usize::from(cq), end_of_send(number, wr_id, status), false);
        status = abi::WC_WR_FLUSH_ERR;
    }
    flush_own(body, index);
    leave_waiting(body, number);
}

/// The buffers of a queue pair's own receive queue come back, and messages that wait for one go.
fn flush_own(body: &mut Body, index: usize) {
    let Some(queue) = body.qps.get(index).map(|qp| qp.queue) else { return };
    if usize::from(queue) < SRQS {
        return;
    }
    while let Some(buffer) = queue_of(body, queue).and_then(|queue| queue.buffers.pop()) {
        flush_receive(body, index, buffer);
    }
    while let Some(stalled) = queue_of(body, queue).and_then(|queue| queue.stalled.pop()) {
        release(body, stalled.done.message);
    }
}

fn flush_receive(body: &mut Body, index: usize, buffer: Buffer) {
    let Some(qp) = body.qps.get(index) else { return };
    let (cq, queue) = (usize::from(qp.cq), qp.queue);
    let done = Done { queue, ..end_of_send(qp.number, buffer.wr_id, abi::WC_WR_FLUSH_ERR) };
    complete(body, cq, done, false);
}

fn queue_of(body: &mut Body, queue: u16) -> Option<&mut Receives> {
    body.receives.get_mut(usize::from(queue))
}

/// A queue pair that tries to reach one that is gone gives up.
fn leave_waiting(body: &mut Body, number: u32) {
    for index in 0..body.qps.len() {
        let waits = |qp: &Qp| qp.pid != 0 && qp.dest == number && qp.stalled > 0;
        if body.qps.get(index).is_some_and(waits) {
            fail(body, index, abi::WC_RETRY_EXC_ERR);
        }
    }
}

/// To the error state without a request to blame: an event tells the owner.
pub(crate) fn break_pair(body: &mut Body, index: usize, kind: i32) {
    fail(body, index, abi::WC_WR_FLUSH_ERR);
    if let Some((context, qp)) = body.qps.get(index).map(|qp| (qp.context, qp.number)) {
        tell_trouble(body, usize::from(context), Trouble { kind, qp, port: 0 });
    }
}

/// All of a context.
pub(crate) fn fail_all(body: &mut Body, context: usize) {
    for index in 0..body.qps.len() {
        if body.qps.get(index).is_some_and(|qp| usize::from(qp.context) == context) {
            fail(body, index, abi::WC_WR_FLUSH_ERR);
        }
    }
}

/// A process is dead: its objects are gone.
pub(crate) fn bury(body: &mut Body, pid: u32) {
    body.qps.iter_mut().filter(|qp| qp.pid == pid).for_each(|qp| qp.pid = 0);
    body.cqs.iter_mut().filter(|cq| cq.pid == pid).for_each(|cq| cq.pid = 0);
    let shared = body.receives.iter_mut().take(SRQS);
    shared.filter(|queue| queue.pid == pid).for_each(|queue| queue.pid = 0);
    body.regions.iter_mut().filter(|region| region.pid == pid).for_each(|region| region.pid = 0);
    body.contexts.iter_mut().filter(|context| context.pid == pid).for_each(|c| c.pid = 0);
    body.others.iter_mut().filter(|other| other.pid == pid).for_each(|other| other.pid = 0);
}

/// Where the bytes of a piece are, if this process may name them; `domain`: those of one protection
/// domain.
fn local(body: &Body, sge: &abi::Sge, wanted: i32, domain: Option<u16>) -> Option<u64> {
    let range = (sge.addr, u64::from(sge.length));
    find_range(body, own_pid(), sge.lkey, range, wanted, domain)
}

/// The address of a range of a region in its process.
fn find_range(
    body: &Body,
    pid: u32,
    key: u32,
    (addr, len): (u64, u64),
    wanted: i32,
    domain: Option<u16>,
) -> Option<u64> {
    let region = body.region(key).filter(|region| region.pid == pid)?;
    let from = addr.checked_sub(region.iova)?;
    let is_inside = from.checked_add(len).is_some_and(|end| end <= region.len);
    let is_allowed =
        region.access & wanted == wanted && domain.is_none_or(|domain| domain == region.domain);
    (is_inside && is_allowed).then(|| region.addr + from)
}

/// The next step of a request.
enum Outcome {
    /// It has succeeded.
    Done,
    /// It waits, for ever unless the queue pair fails.
    Waits,
    /// It has failed.
    Failed(i32),
}

/// Posts one request.
///
/// # Safety
/// The pieces that it names are valid as the caller's provider demands.
pub(crate) unsafe fn post_send(
    body: &mut Body,
    index: usize,
    request: &abi::SendWr,
    inline: u32,
) -> Result<(), Errno> {
    body.step(Step::PostSend)?;
    body.totals.signalled += u64::from(request.send_flags & abi::SEND_SIGNALED != 0);
    body.totals.inline += u64::from(request.send_flags & abi::SEND_INLINE != 0);
    let qp = body.qps.get(index).ok_or(Errno::EINVAL)?;
    let (number, cq, state) = (qp.number, usize::from(qp.cq), qp.state);
    let is_signalled = request.send_flags & abi::SEND_SIGNALED != 0;
    if state == abi::QPS_ERR {
        complete(body, cq, end_of_send(number, request.wr_id, abi::WC_WR_FLUSH_ERR), false);
        return Ok(());
    }
    let count = usize::try_from(request.num_sge).map_err(|_| Errno::EINVAL)?;
    if state != abi::QPS_RTS || count > usize::from(qp.pieces).min(PIECES) {
        return Err(Errno::EINVAL);
    }
    let mut pieces = Pieces { list: [abi::Sge::default(); PIECES], count };
    if !request.sg_list.is_null() {
        for (at, piece) in pieces.list.iter_mut().take(count).enumerate() {
            // SAFETY: the caller's: this number of pieces.
            *piece = unsafe { request.sg_list.add(at).read() };
        }
    }
    if request.send_flags & abi::SEND_INLINE != 0 && pieces.len() > inline as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's.
    let outcome = unsafe { run(body, index, request, pieces) };
    let outcome = match outcome {
        Outcome::Done => match body.event_fault(Step::SendCompletion) {
            Some(status) => Outcome::Failed(status),
            None if body.road == Road::Mute as u8 => Outcome::Waits,
            None => Outcome::Done,
        },
        outcome => outcome,
    };
    let request = Pending { wr_id: request.wr_id, is_signalled };
    let qp = body.qps.get_mut(index).ok_or(Errno::EINVAL)?;
    if !qp.pending.push(request) {
        return Err(Errno::ENOMEM);
    }
    match outcome {
        // A later answer has answered for all before it.
        Outcome::Done => succeed(body, index),
        Outcome::Waits => {}
        Outcome::Failed(status) => fail(body, index, status),
    }
    Ok(())
}

fn succeed(body: &mut Body, index: usize) {
    while let Some(request) = body.qps.get_mut(index).and_then(|qp| qp.pending.pop()) {
        tell_success(body, index, request);
    }
}

fn tell_success(body: &mut Body, index: usize, request: Pending) {
    let Some((cq, number)) = body.qps.get(index).map(|qp| (qp.cq, qp.number)) else { return };
    if request.is_signalled {
        let done = end_of_send(number, request.wr_id, abi::WC_SUCCESS);
        complete(body, usize::from(cq), done, false);
    }
}

/// # Safety
/// As [`post_send`].
unsafe fn run(body: &mut Body, index: usize, request: &abi::SendWr, mut pieces: Pieces) -> Outcome {
    let Some(qp) = body.qps.get(index) else { return Outcome::Failed(abi::WC_LOC_QP_OP_ERR) };
    let (number, dest, domain) = (qp.number, qp.dest, qp.domain);
    let is_inline = request.send_flags & abi::SEND_INLINE != 0;
    let access = if request.opcode == abi::WR_RDMA_READ { abi::ACCESS_LOCAL_WRITE } else { 0 };
    if !is_inline {
        for piece in pieces.list.iter_mut().take(pieces.count) {
            let Some(at) = local(body, piece, access, Some(domain)) else {
                return Outcome::Failed(abi::WC_LOC_PROT_ERR);
            };
            piece.addr = at;
        }
    }
    let is_cut = body.road == Road::Cut as u8;
    if let Some(qp) = body.qps.get_mut(index) {
        qp.is_cut |= is_cut;
        if qp.is_cut {
            return Outcome::Waits;
        }
    }
    let may_be_early = request.opcode != abi::WR_RDMA_READ;
    let is_up = |qp: &Qp| match qp.state {
        abi::QPS_RTR | abi::QPS_RTS => qp.dest == number,
        state => state == abi::QPS_INIT && may_be_early,
    };
    let peer = find(body, dest).filter(|peer| body.qps.get(*peer).is_some_and(is_up));
    let Some(peer) = peer else { return Outcome::Failed(abi::WC_RETRY_EXC_ERR) };
    let is_solicited = request.send_flags & abi::SEND_SOLICITED != 0;
    if request.opcode == abi::WR_SEND {
        if pieces.len() > MESSAGE {
            return Outcome::Failed(abi::WC_LOC_LEN_ERR);
        }
        // SAFETY: the caller's.
        let stored = unsafe { store(body, &pieces, (0, 0)) };
        let Some(stored) = stored else { return Outcome::Failed(abi::WC_RNR_RETRY_EXC_ERR) };
        return send(body, index, peer, (stored, pieces.len()), None, is_solicited);
    }
    // SAFETY: the caller's, and the pieces have been found.
    unsafe { run_one_sided(body, index, peer, request, &pieces) }
}

/// A READ or a WRITE on the queue pair of `peer`.
///
/// # Safety
/// That of [`post_send`], of pieces that have been found.
unsafe fn run_one_sided(
    body: &mut Body,
    index: usize,
    peer: usize,
    request: &abi::SendWr,
    pieces: &Pieces,
) -> Outcome {
    let is_solicited = request.send_flags & abi::SEND_SOLICITED != 0;
    let pid = body.qps.get(peer).map_or(0, |qp| qp.pid);
    let is_written = request.opcode != abi::WR_RDMA_READ;
    let has_immediate = request.opcode == abi::WR_RDMA_WRITE_WITH_IMM;
    let is_here = pid == own_pid() && !has_immediate;
    if is_here && body.qps.get(index).is_some_and(|qp| qp.stalled > 0) {
        // It would have to wait for those before it: no test needs that.
        return Outcome::Failed(abi::WC_LOC_QP_OP_ERR);
    }
    let right = if is_written { abi::ACCESS_REMOTE_WRITE } else { abi::ACCESS_REMOTE_READ };
    let mut far = 0;
    if pieces.len() != 0 {
        let range = (request.remote_addr, pieces.len() as u64);
        let domain = body.qps.get(peer).map(|qp| qp.domain);
        let Some(at) = find_range(body, pid, request.rkey, range, right, domain) else {
            break_pair(body, peer, abi::ASYNC_QP_ACCESS_ERR);
            return Outcome::Failed(abi::WC_REM_ACCESS_ERR);
        };
        far = at;
    }
    if !is_here && is_written {
        if pieces.len() == 0 && !has_immediate {
            return Outcome::Done;
        }
        // SAFETY: the caller's.
        let stored = unsafe { store(body, pieces, (far, request.rkey)) };
        let Some(stored) = stored else { return Outcome::Failed(abi::WC_RNR_RETRY_EXC_ERR) };
        if has_immediate {
            let immediate = Some(request.imm_data);
            return send(body, index, peer, (stored, pieces.len()), immediate, is_solicited);
        }
        note_written(body, peer, stored);
        return Outcome::Done;
    }
    if !is_here {
        // SAFETY: the pieces are registered for it, and memory of this process.
        return unsafe { read_from(pid, far, pieces) };
    }
    let mut at = far as *mut u8;
    for piece in pieces.all() {
        let (near, len) = (piece.addr as *mut u8, piece.length as usize);
        // SAFETY: both are registered, and memory of this process.
        unsafe {
            if is_written {
                core::ptr::copy(near, at, len)
            } else {
                core::ptr::copy(at, near, len)
            };
            at = at.add(len);
        }
    }
    Outcome::Done
}

/// READs memory of another process, which its user has registered there and cannot end meanwhile.
///
/// # Safety
/// The pieces are valid, and may be written to.
unsafe fn read_from(pid: u32, far: u64, pieces: &Pieces) -> Outcome {
    let mut at = far;
    for piece in pieces.all() {
        let (mut to, mut left) = (piece.addr, piece.length as usize);
        while left != 0 {
            let near = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: left };
            let from = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: left };
            // SAFETY: the caller's for the first; what the other address means is that process's affair.
            let got = unsafe {
                sys!(libc::SYS_process_vm_readv, pid, &raw const near, 1, &raw const from, 1, 0)
            };
            let got = match got {
                Ok(got @ 1..) => got,
                // Nobody answers for a dead process.
                Err(Errno(libc::ESRCH)) => return Outcome::Failed(abi::WC_RETRY_EXC_ERR),
                _ => return Outcome::Failed(abi::WC_REM_OP_ERR),
            };
            (to, at, left) = (to + got as u64, at + got as u64, left.saturating_sub(got));
        }
    }
    Outcome::Done
}

/// Takes a slot. Its number + 1.
fn take_slot(body: &mut Body) -> Option<u32> {
    let slots = body.is_taken.len();
    let mut steps = 0..slots;
    let slot = steps
        .by_ref()
        .map(|step| (body.next_message + step) % slots)
        .find(|slot| body.is_taken.get(*slot) == Some(&false))?;
    body.next_message = slot + 1;
    *body.is_taken.get_mut(slot)? = true;
    *body.links.get_mut(slot)? = Link { next: 0, len: 0, addr: 0, key: 0 };
    Some(slot as u32 + 1)
}

fn link(body: &mut Body, slot: u32) -> Option<&mut Link> {
    body.links.get_mut((slot as usize).checked_sub(1)?)
}

/// Copies the bytes of a request into slots, for this address of the peer's process, or its receive
/// buffer. The first one.
///
/// # Safety
/// The pieces are valid.
unsafe fn store(body: &mut Body, pieces: &Pieces, (addr, key): (u64, u32)) -> Option<u32> {
    let first = take_slot(body)?;
    let (mut slot, mut used) = (first, 0);
    (link(body, slot)?.addr, link(body, slot)?.key) = (addr, key);
    for piece in pieces.all() {
        let mut from = piece.addr;
        let mut left = piece.length as usize;
        while left != 0 {
            if used == MESSAGE {
                let Some(next) = take_slot(body) else {
                    release(body, first);
                    return None;
                };
                let before = link(body, slot)?;
                before.next = next;
                let at = before.addr + MESSAGE as u64;
                (slot, used) = (next, 0);
                (link(body, slot)?.addr, link(body, slot)?.key) = (at, key);
            }
            let len = left.min(MESSAGE - used);
            let to = body.messages.get_mut(slot as usize - 1)?.get_mut(used..used + len)?;
            // SAFETY: the caller's; within the slot.
            unsafe { core::ptr::copy(from as *const u8, to.as_mut_ptr(), len) };
            (from, left, used) = (from + len as u64, left - len, used + len);
            link(body, slot)?.len = used as u32;
        }
    }
    Some(first)
}

/// Bytes of a WRITE wait until the peer's process takes a completion.
fn note_written(body: &mut Body, peer: usize, first: u32) {
    let mut last = first;
    while let Some(next) = link(body, last).map(|link| link.next).filter(|next| *next != 0) {
        last = next;
    }
    let Some(qp) = body.qps.get_mut(peer) else { return };
    let before = core::mem::replace(&mut qp.last_written, last);
    if qp.written == 0 {
        qp.written = first;
    } else if let Some(link) = link(body, before) {
        link.next = first;
    }
}

/// A message that lies in slots from `stored` on comes to the peer.
fn send(
    body: &mut Body,
    index: usize,
    peer: usize,
    (stored, len): (u32, usize),
    immediate: Option<u32>,
    is_solicited: bool,
) -> Outcome {
    let from = body.qps.get(index).map_or(0, |qp| qp.number);
    // Behind the bytes that were written before it.
    let mut first = stored;
    if let Some(qp) = body.qps.get_mut(peer).filter(|qp| qp.written != 0 && immediate.is_some()) {
        let last = qp.last_written;
        first = core::mem::replace(&mut qp.written, 0);
        if let Some(link) = link(body, last) {
            link.next = stored;
        }
    }
    let status = body.event_fault(Step::ReceiveCompletion).unwrap_or(abi::WC_SUCCESS);
    let Some((number, cq, queue)) =
        body.qps.get(peer).map(|qp| (qp.number, usize::from(qp.cq), qp.queue))
    else {
        return Outcome::Failed(abi::WC_REM_OP_ERR);
    };
    let mut wc = abi::Wc::default();
    (wc.status, wc.opcode, wc.byte_len, wc.qp_num) = (status, abi::WC_RECV, len as u32, number);
    if let Some(immediate) = immediate {
        (wc.opcode, wc.imm_data) = (abi::WC_RECV_RDMA_WITH_IMM, immediate);
        wc.wc_flags = abi::WC_WITH_IMM;
    }
    let done = Done { wc, message: first, queue, buffer: Buffer::NONE };
    let message = Stalled { done, is_solicited, from };
    let is_behind = body.qps.get(index).is_some_and(|qp| qp.stalled > 0);
    let has_come = match body.qps.get_mut(peer) {
        Some(qp) if qp.state == abi::QPS_INIT => {
            qp.early.push(message);
            false
        }
        _ => arrive(body, cq, message, is_behind),
    };
    if !has_come {
        if let Some(qp) = body.qps.get_mut(index) {
            qp.stalled += 1;
        }
        return Outcome::Waits;
    }
    if status != abi::WC_SUCCESS {
        fail(body, peer, abi::WC_WR_FLUSH_ERR);
        return Outcome::Failed(abi::WC_REM_OP_ERR);
    }
    Outcome::Done
}

/// A message takes a buffer (true), or waits for one, as those before it do.
fn arrive(body: &mut Body, cq: usize, message: Stalled, is_behind: bool) -> bool {
    let Some(receives) = queue_of(body, message.done.queue) else { return true };
    let buffer = if is_behind { None } else { receives.buffers.pop() };
    let Some(buffer) = buffer else {
        receives.stalled.push(message);
        return false;
    };
    land(body, cq, message, buffer);
    true
}

fn land(body: &mut Body, cq: usize, message: Stalled, buffer: Buffer) {
    let mut done = message.done;
    (done.wc.wr_id, done.buffer) = (buffer.wr_id, buffer);
    complete(body, cq, done, message.is_solicited);
}

/// A message that has waited has come: its sender's first request has succeeded.
fn answer(body: &mut Body, from: u32) {
    let Some(index) = find(body, from) else { return };
    let Some(qp) = body.qps.get_mut(index).filter(|qp| qp.stalled > 0) else { return };
    qp.stalled -= 1;
    if let Some(request) = qp.pending.pop() {
        tell_success(body, index, request);
    }
}

/// The queue pair can receive: earlier messages have come.
pub(crate) fn take_early(body: &mut Body, index: usize) {
    while let Some(message) = body.qps.get_mut(index).and_then(|qp| qp.early.pop()) {
        let cq = body.qps.get(index).map_or(0, |qp| usize::from(qp.cq));
        if arrive(body, cq, message, false) {
            answer(body, message.from);
        }
    }
}

/// Posts a receive buffer to a queue pair's own queue.
pub(crate) fn post_own_receive(body: &mut Body, index: usize, buffer: Buffer) -> Result<(), Errno> {
    let qp = body.qps.get(index).ok_or(Errno::EINVAL)?;
    let (queue, state) = (usize::from(qp.queue), qp.state);
    if queue < SRQS || state == abi::QPS_RESET {
        return Err(Errno::EINVAL);
    }
    post_receive(body, queue, buffer)?;
    if state == abi::QPS_ERR {
        flush_own(body, index);
    }
    Ok(())
}

/// Posts a receive buffer; a message that found none gets it.
pub(crate) fn post_receive(body: &mut Body, queue: usize, buffer: Buffer) -> Result<(), Errno> {
    body.step(Step::PostReceive)?;
    let piece = abi::Sge { addr: buffer.addr, length: buffer.length, lkey: buffer.lkey };
    // Without a buffer it is for WRITEs with immediate data.
    let is_valid = buffer.lkey == 0 && buffer.length == 0
        || local(body, &piece, abi::ACCESS_LOCAL_WRITE, None).is_some();
    if !is_valid {
        return Err(Errno(libc::EFAULT));
    }
    let receives = body.receives.get_mut(queue).ok_or(Errno::EINVAL)?;
    if receives.posted >= receives.room || !receives.buffers.push(buffer) {
        return Err(Errno::ENOMEM);
    }
    receives.posted += 1;
    while let Some(stalled) = body.receives.get_mut(queue).and_then(|queue| queue.stalled.pop()) {
        let is_up = |qp: &Qp| matches!(qp.state, abi::QPS_RTR | abi::QPS_RTS);
        let qp = find(body, stalled.done.wc.qp_num).and_then(|index| body.qps.get(index));
        let Some(cq) = qp.filter(|qp| is_up(qp)).map(|qp| usize::from(qp.cq)) else {
            release(body, stalled.done.message);
            continue;
        };
        let Some(buffer) = body.receives.get_mut(queue).and_then(|queue| queue.buffers.pop())
        else {
            return Ok(());
        };
        land(body, cq, stalled, buffer);
        answer(body, stalled.from);
        break;
    }
    Ok(())
}

/// Gives slots back, from this one on.
fn release(body: &mut Body, message: u32) {
    let mut next = message;
    while let Some(slot) = (next as usize).checked_sub(1) {
        let Some(taken) = body.is_taken.get_mut(slot) else { return };
        *taken = false;
        next = body.links.get(slot).map_or(0, |link| link.next);
    }
}

/// Takes a completion, and puts its message where it belongs in the caller's process.
pub(crate) fn take(body: &mut Body, cq: usize) -> Option<abi::Wc> {
    let done = body.cqs.get_mut(cq)?.done.pop()?;
    let (mut wc, buffer) = (done.wc, done.buffer);
    if let Some(receives) = queue_of(body, done.queue) {
        receives.posted = receives.posted.saturating_sub(1);
    }
    if done.message == 0 {
        return Some(wc);
    }
    if wc.opcode == abi::WC_RECV && wc.byte_len > buffer.length {
        wc.status = abi::WC_LOC_LEN_ERR;
    }
    let mut next = done.message;
    while let Some(slot) = (next as usize).checked_sub(1) {
        let (Some(link), Some(message)) = (body.links.get(slot), body.messages.get(slot)) else {
            break;
        };
        let to = match link.addr {
            0 => buffer.addr,
            addr => addr,
        };
        let len = if link.addr == 0 { link.len.min(buffer.length) } else { link.len };
        if len != 0 && is_registered(body, link) {
            // SAFETY: a buffer that the caller's process registered and posted, where nothing else
            // uses it until its completion was taken; or bytes of a region that it has registered
            // for the peer's WRITEs.
            unsafe {
                core::ptr::copy_nonoverlapping(message.as_ptr(), to as *mut u8, len as usize);
            }
        }
        next = link.next;
    }
    release(body, done.message);
    Some(wc)
}

/// Whether the region to which the bytes were written is still there. Without one: a receive buffer.
fn is_registered(body: &Body, link: &Link) -> bool {
    let is_its = |region: &Region| {
        let end = link.addr + u64::from(link.len);
        region.pid == own_pid() && link.addr >= region.addr && end <= region.addr + region.len
    };
    link.addr == 0 || body.region(link.key).is_some_and(is_its)
}

/// Forgets a queue pair that goes in other queues. Its own completions stay in their queue, as some
/// drivers leave them: a thread that takes them finds a queue pair that is gone.
pub(crate) fn forget(body: &mut Body, index: usize) {
    fail(body, index, abi::WC_WR_FLUSH_ERR);
    while let Some(early) = body.qps.get_mut(index).and_then(|qp| qp.early.pop()) {
        release(body, early.done.message);
    }
    if let Some(qp) = body.qps.get_mut(index) {
        let (number, written) = (qp.number, core::mem::replace(&mut qp.written, 0));
        qp.pid = 0;
        qp.pending.clear();
        release(body, written);
        leave_waiting(body, number);
    }
}

/// Throws away messages that were not taken; whether there were any.
pub(crate) fn discard(body: &mut Body, cq: usize) -> bool {
    let Some(done) = body.cqs.get_mut(cq).and_then(|cq| cq.done.pop()) else { return false };
    release(body, done.message);
    true
}

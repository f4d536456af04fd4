//! The data path: requests, messages, completions.

use sdp_fabric_verbs::abi::verbs as abi;
use sdp_sys::Errno;

use crate::{
    local,
    network::Road,
    state::{
        Body, Buffer, Done, MESSAGE, NO_QUEUE, Pending, Qp, Receives, SRQS, Stalled, Trouble,
        own_pid,
    },
    step::Step,
};

const WC_RECV: i32 = 128;

fn is_of(qp: &Qp, number: u32) -> bool {
    qp.pid != 0 && qp.number == number
}

fn find(body: &Body, number: u32) -> Option<usize> {
    body.qps.iter().position(|qp| is_of(qp, number))
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

/// The bytes of a request, if this process may name them.
fn check(body: &Body, sge: &abi::Sge, wanted: i32) -> bool {
    is_allowed(body, own_pid(), sge.lkey, (sge.addr, u64::from(sge.length)), wanted)
}

fn is_allowed(body: &Body, pid: u32, key: u32, (addr, len): (u64, u64), wanted: i32) -> bool {
    let Some(region) = body.regions.iter().find(|r| r.pid == pid && r.key == key) else {
        return false;
    };
    let is_inside = addr >= region.addr
        && addr.checked_add(len).is_some_and(|end| end <= region.addr + region.len);
    is_inside && region.access & wanted == wanted
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
    if state != abi::QPS_RTS || request.num_sge > 1 || request.num_sge < 0 {
        return Err(Errno::EINVAL);
    }
    let piece = if request.num_sge == 1 && !request.sg_list.is_null() {
        // SAFETY: the caller's: one piece.
        Some(unsafe { request.sg_list.read() })
    } else {
        None
    };
    if request.send_flags & abi::SEND_INLINE != 0
        && piece.as_ref().is_some_and(|piece| piece.length > inline)
    {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's.
    let outcome = unsafe { run(body, index, request, piece) };
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
unsafe fn run(
    body: &mut Body,
    index: usize,
    request: &abi::SendWr,
    piece: Option<abi::Sge>,
) -> Outcome {
    let Some(qp) = body.qps.get(index) else { return Outcome::Failed(abi::WC_LOC_QP_OP_ERR) };
    let (number, dest) = (qp.number, qp.dest);
    let is_inline = request.send_flags & abi::SEND_INLINE != 0;
    let local = if request.opcode == abi::WR_RDMA_READ { abi::ACCESS_LOCAL_WRITE } else { 0 };
    if let Some(piece) = &piece
        && !is_inline
        && !check(body, piece, local)
    {
        return Outcome::Failed(abi::WC_LOC_PROT_ERR);
    }
    let is_cut = body.road == Road::Cut as u8;
    if let Some(qp) = body.qps.get_mut(index) {
        qp.is_cut |= is_cut;
        if qp.is_cut {
            return Outcome::Waits;
        }
    }
    let is_up = |qp: &Qp| match qp.state {
        abi::QPS_RTR | abi::QPS_RTS => qp.dest == number,
        state => state == abi::QPS_INIT && request.opcode == abi::WR_SEND,
    };
    let peer = find(body, dest).filter(|peer| body.qps.get(*peer).is_some_and(is_up));
    let Some(peer) = peer else { return Outcome::Failed(abi::WC_RETRY_EXC_ERR) };
    if request.opcode == abi::WR_SEND {
        let is_solicited = request.send_flags & abi::SEND_SOLICITED != 0;
        // SAFETY: the caller's.
        return unsafe { send(body, index, peer, piece, is_solicited) };
    }
    if body.qps.get(index).is_some_and(|qp| qp.stalled > 0) {
        // It would have to wait for those before it: no test needs that.
        return Outcome::Failed(abi::WC_LOC_QP_OP_ERR);
    }
    let Some(piece) = piece else { return Outcome::Done };
    let far = (request.remote_addr, u64::from(piece.length));
    let right = match request.opcode {
        abi::WR_RDMA_READ => abi::ACCESS_REMOTE_READ,
        _ => abi::ACCESS_REMOTE_WRITE,
    };
    let pid = body.qps.get(peer).map_or(0, |qp| qp.pid);
    if pid != own_pid() {
        return Outcome::Failed(abi::WC_REM_OP_ERR);
    }
    if !is_allowed(body, pid, request.rkey, far, right) {
        break_pair(body, peer, abi::ASYNC_QP_ACCESS_ERR);
        return Outcome::Failed(abi::WC_REM_ACCESS_ERR);
    }
    let (near, far, len) = (piece.addr as *mut u8, far.0 as *mut u8, piece.length as usize);
    // SAFETY: both are registered, and memory of this process.
    unsafe {
        match request.opcode {
            abi::WR_RDMA_READ => core::ptr::copy(far, near, len),
            _ => core::ptr::copy(near, far, len),
        }
    }
    Outcome::Done
}

/// # Safety
/// The piece is valid.
unsafe fn send(
    body: &mut Body,
    index: usize,
    peer: usize,
    piece: Option<abi::Sge>,
    is_solicited: bool,
) -> Outcome {
    let len = piece.as_ref().map_or(0, |piece| piece.length as usize);
    let from = body.qps.get(index).map_or(0, |qp| qp.number);
    if len > MESSAGE {
        return Outcome::Failed(abi::WC_LOC_LEN_ERR);
    }
    let slots = body.is_taken.len();
    let free = (0..slots)
        .map(|step| (body.next_message + step) % slots)
        .find(|slot| body.is_taken.get(*slot) == Some(&false));
    let Some(slot) = free else { return Outcome::Failed(abi::WC_RNR_RETRY_EXC_ERR) };
    body.next_message = slot + 1;
    if let Some(taken) = body.is_taken.get_mut(slot) {
        *taken = true;
    }
    if let (Some(piece), Some(message)) = (piece, body.messages.get_mut(slot)) {
        // SAFETY: the caller's; no longer than the slot.
        unsafe { core::ptr::copy(piece.addr as *const u8, message.as_mut_ptr(), len) };
    }
    let status = body.event_fault(Step::ReceiveCompletion).unwrap_or(abi::WC_SUCCESS);
    let Some((number, cq, queue)) =
        body.qps.get(peer).map(|qp| (qp.number, usize::from(qp.cq), qp.queue))
    else {
        return Outcome::Failed(abi::WC_REM_OP_ERR);
    };
    let mut wc = abi::Wc::default();
    (wc.status, wc.opcode, wc.byte_len, wc.qp_num) = (status, WC_RECV, len as u32, number);
    let done = Done { wc, message: slot as u32 + 1, queue, buffer: Buffer::NONE };
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
    if !check(body, &piece, abi::ACCESS_LOCAL_WRITE) {
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

fn release(body: &mut Body, message: u32) {
    let slot = (message as usize).wrapping_sub(1);
    if let Some(taken) = body.is_taken.get_mut(slot) {
        *taken = false;
    }
}

/// Takes a completion, and puts its message into a receive buffer of the caller's.
pub(crate) fn take(body: &mut Body, cq: usize) -> Option<abi::Wc> {
    let done = body.cqs.get_mut(cq)?.done.pop()?;
    let (wc, buffer) = (done.wc, done.buffer);
    if let Some(receives) = queue_of(body, done.queue) {
        receives.posted = receives.posted.saturating_sub(1);
    }
    if done.message == 0 {
        return Some(wc);
    }
    let len = (wc.byte_len.min(buffer.length)) as usize;
    if let Some(message) = body.messages.get(done.message as usize - 1) {
        // SAFETY: a buffer that the caller's process registered and posted; nothing else uses it
        // until its completion was taken.
        unsafe { core::ptr::copy_nonoverlapping(message.as_ptr(), buffer.addr as *mut u8, len) };
    }
    release(body, done.message);
    Some(wc)
}

/// Forgets a queue pair that goes in other queues. Its own completions stay in their queue, as some
/// drivers leave them: a thread that takes them finds a queue pair that is gone.
pub(crate) fn forget(body: &mut Body, index: usize) {
    fail(body, index, abi::WC_WR_FLUSH_ERR);
    while let Some(early) = body.qps.get_mut(index).and_then(|qp| qp.early.pop()) {
        release(body, early.done.message);
    }
    if let Some(qp) = body.qps.get_mut(index) {
        let number = qp.number;
        qp.pid = 0;
        qp.pending.clear();
        leave_waiting(body, number);
    }
}

/// Throws away messages that were not taken; whether there were any.
pub(crate) fn discard(body: &mut Body, cq: usize) -> bool {
    let Some(done) = body.cqs.get_mut(cq).and_then(|cq| cq.done.pop()) else { return false };
    release(body, done.message);
    true
}

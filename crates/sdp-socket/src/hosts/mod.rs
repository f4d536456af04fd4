//! Connections to other hosts: a queue pair beside a carrier that is guarded.
//!
//! Owns the process's state of such connections ([`pair`]) and its RDMA device ([`device`]). Called
//! where a connection begins and ends (`lifecycle`), by each call on one (`api`, `datapath`), and
//! where readiness is judged (`readiness`). Rules with a G are those of `docs/spec/guard.md`; the
//! code that follows them is `sdp-remote`.
//!
//! # Life
//! Where the rules allow this fabric, a connection whose other end is on another host is [`Stage::Remote`] before its
//! first byte: all calls on it come here, and are the kernel's but for their count. When it has
//! earned it, the ends meet; from then on it is [`Stage::Guarded`]: markers may stand among the bytes of the
//! carrier, and only this room can read it.
//!
//! It leaves the guard for a reader that knows nothing of markers ([`leaving`], [`reader`]), and
//! where a fork made copies of it ([`forked`]): the carrier is plain TCP then, for good.

use core::{
    cell::Cell,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::c_int;
use sdp_rdma::fabric::Gather;
use sdp_remote::{Prefix, ReceiveContext, RecvError, Role, SendError, Wait};
use sdp_shm::early;
use sdp_stats::{Direction, Lane as StatsLane, Reason, trace::Kind};
use sdp_sys::{errno::Errno, fd, section, sys, time::monotonic_ns};

use crate::{
    conn::{
        self, Conn, ConnGuard, Half, Limits, Origin, Stage, Waiters, carrier,
        iovec::{Buffers, Landing},
        publish,
    },
    datapath::{receive::Wish, send::raise_pipe, wait, wait::Beside},
    process,
    wake::{call_guard::CallGuard, doorbell, spin::learn_from_sleep},
};

mod awake;
mod beside;
mod bulk;
mod carrier_io;
mod device;
mod ending;
pub(crate) mod fast;
mod forked;
mod leaving;
mod look;
mod numbers;
mod pace;
mod pair;
mod places;
mod reach;
mod reader;
mod refusal;
mod show;
pub(crate) mod unmet;
mod watch;
mod zcopy;

use awake::{Road, receive_or_pause};
pub(crate) use beside::between_waits;
use beside::{look_around, tend};
use carrier_io::{NOT_ASKED, Socket, Vector, keep_error};
pub(crate) use ending::{
    closed_by_exec, closing, exiting, is_guarded_at_its_end, is_under_way, keep, settle,
};
pub(crate) use forked::{
    HandBackPermit, has_copies, is_copy, is_to_hand, is_unsettled, wait_bound,
};
use forked::{Use, claim};
pub(crate) use leaving::{Handed, ask_all, ask_number, hand_back, note_relayed};
use leaving::{await_return, is_held, is_plain, is_return_lost, return_event, take_return};
pub(crate) use look::{Found, drain, expect_carrier, finds, look, may_send, readable_bytes};
use look::{has_messages, is_cut_for_good, spin};
pub(crate) use numbers::move_off;
use pair::{Pair, Receiving, Sending};
pub(crate) use reach::{consider, is_loopback, unreachable};
pub(crate) use reader::{MakingRelay, Next, Reader};
use refusal::Refusal;
use show::{count, count_messages, note_arrival, note_lane, show_credits};

/// Bytes of each direction that are kept for the proof (G9).
const PREFIX: usize = 240;
const CUT_SLEEP_NS: u64 = 10_000_000;
/// How long a close waits for the kernel to take messages that are not acknowledged.
const CLOSE_NS: u64 = 2_000_000_000;

/// There is, or was, a connection to another host. Not on the page that each fork child reads.
#[unsafe(link_section = ".bss.hot")]
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether a connection's calls are this room's.
#[inline]
pub(crate) fn has(conn: &Conn) -> bool {
    matches!(conn.stage(), Stage::Remote | Stage::Guarded)
}

/// Whether readiness of a connection is this room's to judge.
#[inline]
pub(crate) fn is_guarded(conn: &Conn) -> bool {
    conn.stage() == Stage::Guarded
}

fn role(conn: &Conn) -> Role {
    if conn.has(Origin::Accepted) { Role::Acceptor } else { Role::Connector }
}

/// The peer broke a rule: every call returns ECONNRESET from here on, and the other end is told.
fn reset(conn: &Conn) {
    reset_for(conn, Reason::ProtocolViolation);
}

fn reset_for(conn: &Conn, reason: Reason) {
    if conn.has(Limits::Hostile) {
        return;
    }
    conn.set(Limits::Hostile);
    conn.fall_back(reason);
    conn.note_reason(reason);
    publish::record(conn, Kind::Reset, None, Some(reason), None);
    if let Some(fd) = conn::number_of(conn) {
        carrier::abort(fd);
    }
}

/// The connection is to be plain TCP from here on, if it has not met or is plain already. False: its carrier is guarded.
pub(crate) fn let_go(conn: &Conn, reason: Reason) -> bool {
    if conn.change_stage(Stage::Remote, Stage::Kernel) {
        conn.note_reason(reason);
        end(conn);
    }
    !is_guarded(conn) || is_plain(conn)
}

/// Before another `connect` on a socket whose last one failed: it is not this room's yet.
pub(crate) fn start_over(conn: &Conn) {
    if conn.change_stage(Stage::Remote, Stage::Candidate) {
        end(conn);
    }
}

/// A call that uses a number of the connection does so under the lock of a half: before this, or
/// never more.
pub(crate) fn await_users(conn: &Conn) {
    if let Some((_, pair)) = pair::of(conn) {
        pair.receiving(conn, |_| ());
        pair.sending(conn, |_, _| ());
    }
}

/// The process's doorbells have gone, with a change of privilege.
pub(crate) fn doorbells_gone() {
    device::doorbells_gone();
}

/// The program reads no more.
pub(crate) fn shut_read(conn: &Conn) {
    if let Some((_, pair)) = pair::of(conn) {
        pair.is_shut.store(true, Ordering::Release);
        doorbell::signal_self(conn.index());
    }
}

/// A send call.
pub(crate) fn send(conn: &ConnGuard, buffers: &mut Buffers, flags: c_int) -> Result<usize, Errno> {
    send_behind(conn, buffers, flags, 0, section::mark())
}

/// A send call that began at `mark`, of whose bytes `done` were sent, and which was counted if some
/// were.
fn send_behind(
    conn: &ConnGuard,
    buffers: &mut Buffers,
    flags: c_int,
    mut done: usize,
    mut mark: section::Mark,
) -> Result<usize, Errno> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        // Neither has a place in a message: from here on the kernel does all of it.
        let is_urgent = flags & libc::MSG_OOB != 0;
        let reason = if is_urgent { Reason::UrgentData } else { Reason::ZeroCopyOption };
        return match hand_back(conn, conn.fd(), reason, false, true) {
            Handed::Back => kernel_call(conn, buffers, flags, Half::Send),
            _ => Err(Errno::ECONNRESET),
        };
    }
    let guard = pin!(CallGuard::on(conn));
    let guard = guard.as_ref();
    let (vector, wanted) = (*buffers, buffers.left());
    buffers.advance(done);
    let is_whole = done == 0;
    let mut deadline: Option<Option<u64>> = None;
    let mut held_until = None;
    let mut refusal = Refusal::NotYet;
    loop {
        if conn.has(Limits::Hostile) {
            return if done > 0 { Ok(done) } else { Err(Errno::ECONNRESET) };
        }
        if done == 0 && (conn.has_pending_error() || conn.has(Limits::ResetReported)) {
            return Err(report_error(conn).unwrap_or_else(|| raise_pipe(conn.open_fd(), flags)));
        }
        let Some((number, pair)) = place(conn) else {
            return rest_by_kernel(conn, buffers, flags, Half::Send, done);
        };
        if !claim(conn, pair, Use::Call) {
            continue; // lost
        }
        // Asked when it matters: that is a system call.
        let may_wait = || flags & libc::MSG_DONTWAIT == 0 && !fd::is_nonblocking(conn.fd());
        let lent = lend(conn, (number, pair), (buffers, vector, done), may_wait, mark);
        let sent = lent.unwrap_or_else(|_| {
            let may_wait = || refusal != Refusal::ByCarrier || may_wait();
            send_once(conn, pair, vector, done, flags, may_wait)
        });
        let next = if sent.is_err() || !is_settled(conn, pair) { look_around(conn) } else { None };
        let blocked = match sent {
            Ok(n) => {
                watch::sent(conn, pair);
                done += n;
                refusal.is_over(conn);
                bulk::let_catch_up(conn, pair, (conn.fd(), flags), wanted - done);
                if n == wanted {
                    pair.is_full.store(false, Ordering::Relaxed);
                }
                buffers.advance(n);
                conn.one_way.store(0, Ordering::Relaxed);
                if done >= wanted || is_interrupted(pair, &mut mark) {
                    let calls = u32::from(is_whole);
                    conn.calls[Half::Send as usize].fetch_add(calls, Ordering::Relaxed);
                    return Ok(done);
                }
                continue;
            }
            Err(SendError::Wait(wait)) => wait,
            Err(_) if done > 0 => return Ok(done),
            Err(SendError::Carrier(errno)) => {
                return Err(match (report_error(conn), errno) {
                    (Some(pending), _) => pending,
                    (None, libc::EPIPE) => raise_pipe(conn.open_fd(), flags),
                    (None, _) => Errno(errno),
                });
            }
            Err(SendError::Broken(_)) => {
                reset(conn);
                return Err(Errno::ECONNRESET);
            }
        };
        let partial = |e| if done > 0 { Ok(done) } else { Err(e) };
        if !may_wait() {
            if matches!(blocked, Wait::Credit { .. }) && refusal.is_looked_again(conn) {
                continue;
            }
            // No event could tell the program of the RETURN that ends this, and it is on its way.
            if blocked == Wait::Return && await_return(conn, pair, conn.fd(), &mut held_until) {
                continue;
            }
            beside::count_full(conn, pair, blocked);
            return partial(Errno::EAGAIN);
        }
        let until = *deadline.get_or_insert_with(|| wait::deadline(conn, conn.fd(), Half::Send));
        if until == Some(0) {
            return partial(Errno::EAGAIN);
        }
        beside::count_full(conn, pair, blocked);
        let sleep = beside::event_of(conn, pair, blocked, next, || return_event(conn.fd()));
        let has_credit = || {
            device::drain();
            // What was taken beside the call before it asked counts, too.
            matches!(blocked, Wait::Credit { .. }) && (gather(conn) || look::may_send(conn))
        };
        let (woken, has_rung) =
            wait::beside_queue_pair(conn, guard, Beside::All, sleep, until, mark, has_credit);
        match woken {
            wait::Woken::Look if wait::was_interrupted(&mut mark) && done > 0 => return Ok(done),
            wait::Woken::Look => {
                device::heard(has_rung);
                gather(conn);
                if blocked == Wait::Return && is_return_lost(conn, pair, conn.fd()) {
                    return partial(Errno::ECONNRESET);
                }
            }
            wait::Woken::TimedOut => return partial(Errno::EAGAIN),
            wait::Woken::Interrupted => return partial(Errno::EINTR),
            wait::Woken::Closed => return partial(Errno::EBADF),
        }
    }
}

/// [`zcopy::send`], of a call that began at `mark`.
fn lend(
    conn: &ConnGuard,
    place: (u32, &Pair),
    bytes: (&Buffers, Buffers, usize),
    may_wait: impl Fn() -> bool,
    mut mark: section::Mark,
) -> Result<Result<usize, SendError>, zcopy::Not> {
    let until = || match is_interrupted(place.1, &mut mark) || !may_wait() {
        true => Some(0),
        false => wait::deadline(conn, conn.fd(), Half::Send),
    };
    zcopy::send(conn, place, bytes, until)
}

/// Whether a handler has run since `mark`: a call that may advertise ends then, as if it had slept.
fn is_interrupted(pair: &Pair, mark: &mut section::Mark) -> bool {
    pair.shared.has_zcopy() && wait::was_interrupted(mark)
}

/// The connection's place. In a fork child that got a connection before its first byte it is made now.
fn place(conn: &Conn) -> Option<(u32, &'static Pair)> {
    if let Some(found) = pair::of(conn) {
        return Some(found);
    }
    if conn.stage() != Stage::Remote || conn.remote.load(Ordering::Acquire) != 0 {
        return None;
    }
    let _section = section::Guard::enter();
    if pair::take(conn, role(conn)).is_none() {
        conn.change_stage(Stage::Remote, Stage::Kernel);
    }
    pair::of(conn)
}

/// Another thread has let the connection go meanwhile: the call is the kernel's, which does all the waiting.
#[cold]
fn by_kernel(
    conn: &ConnGuard,
    buffers: &mut Buffers,
    flags: c_int,
    half: Half,
) -> Result<usize, Errno> {
    if has(conn) {
        return Err(Errno::EBADF); // or it was closed
    }
    kernel_call(conn, buffers, flags, half)
}

/// [`by_kernel`] for the rest of a call after `done` bytes, which a call that waits does whole.
fn rest_by_kernel(
    conn: &ConnGuard,
    buffers: &mut Buffers,
    flags: c_int,
    half: Half,
    done: usize,
) -> Result<usize, Errno> {
    match by_kernel(conn, buffers, flags, half) {
        Ok(n) => Ok(done + n),
        Err(_) if done > 0 => Ok(done),
        error => error,
    }
}

fn kernel_call(
    conn: &ConnGuard,
    buffers: &mut Buffers,
    flags: c_int,
    half: Half,
) -> Result<usize, Errno> {
    let mut parts = [const { libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 } }; 64];
    let used = buffers.fill(usize::MAX, &mut parts);
    let mut message: libc::msghdr = sdp_sys::kernel::zeroed();
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), used);
    let (call, direction) = match half {
        Half::Send => (libc::SYS_sendmsg, Direction::Send),
        Half::Receive => (libc::SYS_recvmsg, Direction::Receive),
    };
    // SAFETY: the message and its vector outlive the call; the elements are the program's own.
    let moved = unsafe { sys!(call, conn.fd(), &raw mut message, flags) }?;
    if flags & libc::MSG_PEEK == 0 || half == Half::Send {
        count(conn, direction, StatsLane::Kernel, moved);
    }
    Ok(moved)
}

/// Keeps the first of `len` bytes that the carrier took or gave, from byte `from` of the call on
/// (G9). They stand at `at` in the stream; bytes that are known already were peeked at.
fn keep_first(prefix: &mut Prefix, at: u64, vector: Buffers, from: usize, len: usize) {
    let Some(known) = (prefix.len() as u64).checked_sub(at) else { return };
    let (known, mut first) = (known as usize, [0u8; PREFIX]);
    if let Some(room) = first.get_mut(..len.saturating_sub(known).min(PREFIX)) {
        let cells = Cell::from_mut(&mut *room).as_slice_of_cells();
        Vector(vector).copy_to(from + known, cells);
        prefix.add(room);
    }
}

/// Learns those of the first bytes that the program has not read: a program that only sends never reads them, and the peer
/// names what it has sent. Before the first meeting, when nothing but payload is on the carrier.
fn peek_first(conn: &Conn, receiving: &mut Receiving) {
    let Receiving { prefix, moved, inbound, .. } = receiving;
    let Some(known) = (prefix.len() as u64).checked_sub(*moved) else { return };
    if inbound.is_some() || prefix.len() >= PREFIX {
        return;
    }
    let Some(fd) = conn::number_of(conn) else { return };
    let mut first = [0u8; PREFIX];
    match fd::receive(fd, &mut first, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(got) => prefix.add(first.get(known as usize..got).unwrap_or_default()),
        Err(Errno::EAGAIN) => {}
        Err(Errno(errno)) => keep_error(conn, errno),
    }
}

/// Sends all that can be sent now, from byte `from` of the call on.
fn send_once(
    conn: &ConnGuard,
    pair: &Pair,
    vector: Buffers,
    from: usize,
    flags: c_int,
    may_wait: impl Fn() -> bool,
) -> Result<usize, SendError> {
    take_arrived(conn, pair);
    pair.sending_for(conn, Use::Call, |sending, ring| {
        let Sending { prefix, moved, outbound, tx, .. } = sending;
        let guarded = outbound.as_mut().filter(|_| !pair.is_plain());
        let Some(outbound) = guarded else {
            let mut walk = vector;
            walk.advance(from);
            let sent = carrier::send(conn.fd(), &walk, bulk::piece(conn), flags);
            let n = sent.map_err(|e| match e {
                Errno::EAGAIN => SendError::Wait(Wait::Carrier),
                Errno(number) => {
                    keep_error(conn, number);
                    SendError::Carrier(number)
                }
            })?;
            if *moved < PREFIX as u64 {
                keep_first(prefix, *moved, vector, from, n);
            }
            *moved += n as u64;
            count(conn, Direction::Send, StatsLane::Kernel, n);
            return Ok(n);
        };
        let mut socket = Socket::new(conn, conn.fd());
        let mut payload = Vector(vector);
        let (before, was_on_sdp) = (outbound.counts(), outbound.is_on_sdp());
        let mut io = pair.context(tx.as_mut(), &mut socket, ring);
        let mut sent = outbound.send(&mut io, &mut payload, from);
        if matches!(sent, Err(SendError::Wait(Wait::Credit { .. }))) && !may_wait() {
            // No event could tell the program when there is credit: these bytes go by the carrier,
            // and not back before.
            outbound.to_kernel();
            sent = outbound.send(&mut io, &mut payload, from);
            outbound.allow_sdp();
        }
        let by_sdp = (outbound.counts().bytes - before.bytes) as usize;
        note_lane(conn, was_on_sdp, outbound.is_on_sdp(), &pair.shared);
        if by_sdp != 0 {
            count(conn, Direction::Send, StatsLane::Sdp, by_sdp);
            let messages = outbound.counts().messages - before.messages;
            count_messages(conn, Direction::Send, messages, by_sdp);
            show_credits(conn, Direction::Send, outbound.credits());
        }
        if let Ok(n) = sent {
            count(conn, Direction::Send, StatsLane::Kernel, n.saturating_sub(by_sdp));
        }
        sent
    })
    .unwrap_or(Err(SendError::Carrier(libc::ECONNRESET)))
}

/// A receive call.
pub(crate) fn receive(conn: &ConnGuard, buffers: &mut Buffers, wish: Wish) -> Result<usize, Errno> {
    receive_behind(conn, buffers, wish.flags, section::mark(), false)
}

/// A receive call that began at `mark`. `is_empty`: it has asked both roads, and found nothing.
fn receive_behind(
    conn: &ConnGuard,
    buffers: &mut Buffers,
    flags: c_int,
    mut mark: section::Mark,
    mut is_empty: bool,
) -> Result<usize, Errno> {
    let wanted = buffers.left();
    let guard = pin!(CallGuard::on(conn));
    let guard = guard.as_ref();
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut deadline: Option<Option<u64>> = None;
    let mut is_cut = false;
    let mut has_spun = false;
    let mut got = 0;
    loop {
        if conn.has(Limits::Hostile) {
            return if got > 0 { Ok(got) } else { Err(Errno::ECONNRESET) };
        }
        let Some((number, pair)) = place(conn) else {
            return rest_by_kernel(conn, buffers, flags, Half::Receive, got);
        };
        if !claim(conn, pair, Use::Call) {
            continue; // lost
        }
        let received = match core::mem::take(&mut is_empty) {
            true => Err(RecvError::WouldBlock),
            false => receive_or_pause(conn, pair, guard, buffers, flags, &mut has_spun),
        };
        let received = zcopy::receive(conn, (number, pair), buffers, flags, received);
        let is_settled = received.is_ok() && is_settled(conn, pair);
        let bound = if is_settled { None } else { look_around(conn) };
        let mut bound = bound.map(beside::sleep_until);
        // Bytes that have arrived come before an error.
        let received = match (received, conn.pending_error()) {
            (Ok(0) | Err(RecvError::WouldBlock | RecvError::Cut { .. }), Some(pending)) => {
                Err(RecvError::Carrier(pending.0))
            }
            (Err(RecvError::Cut { .. }), None) if conn.has(Limits::ResetReported) => Ok(0),
            (received, _) => received,
        };
        match received {
            Ok(0) => {
                if wanted != 0 && !peeks {
                    forked::hand_back_at_end(conn, pair);
                }
                return Ok(got);
            }
            Ok(n) => {
                got += n;
                has_spun = false;
                if flags & libc::MSG_WAITALL == 0 || got >= wanted || peeks {
                    conn.calls[Half::Receive as usize].fetch_add(1, Ordering::Relaxed);
                    return Ok(got);
                }
                continue;
            }
            Err(RecvError::WouldBlock) => {}
            Err(RecvError::Cut { is_final: false }) => {
                is_cut = true;
                bound = Some(CUT_SLEEP_NS);
            }
            Err(_) if got > 0 => return Ok(got),
            Err(RecvError::Cut { .. }) => {
                conn.set(Limits::ResetReported | Limits::PeerGone);
                return Err(Errno::ECONNRESET);
            }
            Err(RecvError::Carrier(errno)) => {
                return Err(report_error(conn).unwrap_or(Errno(errno)));
            }
            Err(RecvError::Broken(_)) => {
                reset(conn);
                return Err(Errno::ECONNRESET);
            }
        }
        if flags & libc::MSG_DONTWAIT != 0 || fd::is_nonblocking(conn.fd()) {
            pair.is_waited_for.store(false, Ordering::Relaxed);
            return if got > 0 { Ok(got) } else { Err(Errno::EAGAIN) };
        }
        pair.is_waited_for.store(true, Ordering::Relaxed);
        let until = *deadline.get_or_insert_with(|| wait::deadline(conn, conn.fd(), Half::Receive));
        if until == Some(0) {
            return if got > 0 { Ok(got) } else { Err(Errno::EAGAIN) };
        }
        // Once for each time that something came: a look may find no payload.
        if !is_cut && !core::mem::replace(&mut has_spun, true) && spin(conn, pair, guard) {
            continue;
        }
        // A carrier that has ended wakes at once: then only time and the queue pair count.
        let events = if is_cut { 0 } else { libc::POLLIN };
        // Only the carrier wakes a thread that sleeps on a connection that has not met.
        let early = Early::begin(conn);
        let bound = bound.into_iter().chain(forked::sleep_bound(conn, pair)).min();
        let bound = pair.watch.sleep(bound);
        let beside = if early.0 { Beside::Threads } else { Beside::All };
        let look = || {
            device::drain();
            // One that has met since is woken by messages, too, and by no thread that saw it sleep.
            early.0 && is_guarded(conn) || has_messages(conn) || watch::must_stay_awake(conn, pair)
        };
        let asleep = monotonic_ns();
        let (woken, has_rung) =
            wait::beside_queue_pair(conn, guard, beside, (events, bound), until, mark, look);
        pair.watch.wake();
        drop(early);
        match woken {
            wait::Woken::Look if wait::was_interrupted(&mut mark) && got > 0 => return Ok(got),
            wait::Woken::Look => {
                learn_from_sleep(conn, monotonic_ns() - asleep);
                device::heard(has_rung);
            }
            wait::Woken::TimedOut => return if got > 0 { Ok(got) } else { Err(Errno::EAGAIN) },
            wait::Woken::Interrupted => return if got > 0 { Ok(got) } else { Err(Errno::EINTR) },
            wait::Woken::Closed => return if got > 0 { Ok(got) } else { Err(Errno::EBADF) },
        }
    }
}

/// A thread that sleeps on a connection which has not met (O10).
struct Early(bool);

impl Early {
    fn begin(conn: &Conn) -> Self {
        let is_early = !is_guarded(conn);
        if is_early {
            early::mark(conn.flags.word(), Waiters::Early.bit());
            early::fall_asleep(&process::fork_page::FORK_PAGE.busy.early);
        }
        Self(is_early)
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if self.0 {
            early::wake_up(&process::fork_page::FORK_PAGE.busy.early);
        }
    }
}

/// Receives the bytes that are there now.
fn receive_once(
    conn: &ConnGuard,
    buffers: &mut Buffers,
    flags: c_int,
    road: Road,
) -> Result<usize, RecvError> {
    let Some((_, pair)) = pair::of(conn) else { return Err(RecvError::Carrier(libc::EBADF)) };
    let (peeks, discard) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_TRUNC != 0);
    pair.receiving_for(conn, Use::Call, |receiving| {
        let Receiving { prefix, moved, inbound, rx, cut_ns, shown, .. } = receiving;
        let guarded = inbound.as_mut().filter(|inbound| !pair.is_plain() && !inbound.is_plain());
        let Some(inbound) = guarded else {
            let got = carrier::receive(conn.fd(), buffers, usize::MAX, flags);
            let n = got.map_err(|e| match e {
                Errno::EAGAIN => RecvError::WouldBlock,
                Errno(number) => {
                    keep_error(conn, number);
                    RecvError::Carrier(number)
                }
            })?;
            if peeks {
                return Ok(n);
            }
            if *moved < PREFIX as u64 && !discard {
                keep_first(prefix, *moved, *buffers, 0, n);
            }
            *moved += n as u64;
            buffers.advance(n);
            count(conn, Direction::Receive, StatsLane::Kernel, n);
            return Ok(n);
        };
        let before = inbound.counts();
        if pair.is_carrier_due.load(Ordering::Relaxed) {
            pair.is_carrier_due.store(false, Ordering::Relaxed);
            inbound.expect_carrier();
        }
        let is_asked = road == Road::Both || !inbound.is_carrier_left_alone();
        let mut socket = Socket::new(conn, if is_asked { conn.fd() } else { NOT_ASKED });
        let mut io = ReceiveContext { rx: rx.as_mut(), carrier: &mut socket, shared: &pair.shared };
        let mut seen = *buffers;
        let landing = if peeks { &mut seen } else { &mut *buffers };
        let mut landing = Landing { buffers: landing, discard };
        let mut got = inbound.recv(&mut io, &mut landing, peeks);
        if matches!(got, Err(RecvError::WouldBlock)) && inbound.has_return() {
            got = take_return(conn, pair, inbound, conn.fd())
                .and_then(|()| inbound.recv(&mut io, &mut landing, peeks));
        }
        let got = match got {
            Err(RecvError::WouldBlock | RecvError::Cut { .. })
                if pair.is_shut.load(Ordering::Acquire) =>
            {
                Ok(0)
            }
            Err(RecvError::Cut { is_final: false }) => {
                Err(RecvError::Cut { is_final: is_cut_for_good(cut_ns) })
            }
            got => got,
        };
        if !peeks && matches!(got, Ok(0)) {
            pair.has_ended.store(true, Ordering::Release);
        }
        let after = inbound.counts();
        let has_read_carrier = after.carrier_bytes != before.carrier_bytes;
        note_arrival(conn, shown, inbound.is_on_sdp(), has_read_carrier, &pair.shared);
        count_messages(conn, Direction::Receive, after.messages - before.messages, 0);
        if !peeks {
            let by_sdp = (after.bytes - before.bytes) as usize;
            let by_carrier = (after.carrier_bytes - before.carrier_bytes) as usize;
            count(conn, Direction::Receive, StatsLane::Sdp, by_sdp);
            count(conn, Direction::Receive, StatsLane::Kernel, by_carrier);
            if by_sdp != 0 {
                show_credits(conn, Direction::Receive, pair.shared.promised());
            }
        }
        got
    })
    .unwrap_or(Err(RecvError::Carrier(libc::ECONNRESET)))
}

/// Takes messages that have arrived off the queue pair. True: the peer broke a rule.
fn take_arrived(conn: &Conn, pair: &Pair) -> bool {
    let takes = |receiving: &mut Receiving| take_messages(conn, pair, receiving);
    let is_broken = pair.receiving_for(conn, Use::Tend, takes) == Some(true);
    if is_broken {
        reset(conn);
    }
    is_broken
}

/// [`take_arrived`] under the lock of the receiving half.
fn take_messages(conn: &Conn, pair: &Pair, receiving: &mut Receiving) -> bool {
    match (&mut receiving.inbound, &mut receiving.rx) {
        (Some(inbound), Some(rx)) if !pair.is_plain() => {
            inbound.gather(rx, &Socket::new(conn, NOT_ASKED), &pair.shared).is_err()
        }
        _ => false,
    }
}

/// [`take_arrived`]; whether a sender may find credit now.
fn gather(conn: &Conn) -> bool {
    let Some((_, pair)) = pair::of(conn) else { return false };
    if pair.is_plain() || !is_guarded(conn) {
        return false;
    }
    if take_arrived(conn, pair) {
        return true;
    }
    pair.sending(conn, |Sending { outbound, tx, .. }, _| {
        outbound.as_ref().is_some_and(|outbound| outbound.is_due(tx.as_ref(), &pair.shared))
    })
    .unwrap_or(false)
}

/// Whether a call that has moved payload may leave [`look_around`] to a later one.
fn is_settled(conn: &Conn, pair: &Pair) -> bool {
    pair.shared.is_up()
        && !pair.is_plain()
        && crate::wake::strangers::has_device()
        && pair.sending(conn, |Sending { outbound, tx, .. }, _| {
            let is_settled =
                |half: &sdp_remote::Outbound| half.is_settled(tx.as_ref(), &pair.shared);
            outbound.as_ref().is_some_and(is_settled)
        }) == Some(true)
}

/// The pending error, which the program gets now.
fn report_error(conn: &Conn) -> Option<Errno> {
    let pending = conn.take_pending_error()?;
    conn.note_reported(pending);
    Some(pending)
}

/// Calls `each` with the connections that have met since the last time: threads that wait for them
/// are to look at both roads from now on.
#[inline]
pub(crate) fn take_new(each: impl Fn(&Conn)) {
    device::take_new(each);
}

/// Whether a connection may meet its end on another host at any moment. A load where there is no such host.
#[inline]
pub(crate) fn may_meet() -> bool {
    let is_remote = |pair: &Pair| pair.conn().is_some_and(|conn| conn.stage() == Stage::Remote);
    IN_USE.load(Ordering::Relaxed) && pair::all().any(|(_, pair)| is_remote(pair))
}

/// Before the kernel ends the sending side, or closes the carrier: messages that are not
/// acknowledged are given to it. False: that was not possible, and the end would come before the
/// rest of the stream. `closes`: nobody will read the carrier.
pub(crate) fn finish(conn: &Conn, fd: c_int, closes: bool) -> bool {
    let Some((_, pair)) = pair::of(conn) else { return true };
    if !is_guarded(conn) || conn.has(Limits::Hostile) || is_plain(conn) {
        return true;
    }
    // LEAVE that has come is answered first: of a stream that has ended the peer could give nothing back.
    look(conn);
    let end = monotonic_ns() + CLOSE_NS;
    let mut held_until = None;
    let mut is_widened = false;
    loop {
        // What the peer has acknowledged is not sent again.
        device::drain();
        take_arrived(conn, pair);
        let flushed = pair.sending_for(conn, Use::Call, |Sending { outbound, tx, .. }, ring| {
            if pair.is_plain() {
                return Some(Ok(()));
            }
            let outbound = outbound.as_mut()?;
            if closes {
                outbound.close();
            }
            let mut socket = Socket::new(conn, fd);
            let mut io = pair.context(tx.as_mut(), &mut socket, ring);
            // The end of a direction, by the carrier: it does not count as a demotion.
            Some(outbound.finish(&mut io))
        });
        match flushed.flatten() {
            // The kernel's part of a close does not wait for a reader, and this one not for long.
            Some(Err(SendError::Wait(Wait::Carrier)))
                if closes && !core::mem::replace(&mut is_widened, true) =>
            {
                carrier::widen(fd, pair::RING);
            }
            Some(Err(SendError::Wait(wait))) if monotonic_ns() < end => {
                let events = if wait == Wait::Carrier { libc::POLLOUT } else { 0 };
                let mut fds = [libc::pollfd { fd, events, revents: 0 }];
                let _ = fd::poll(&mut fds, Some(1_000_000));
            }
            // The bytes that the peer gives back have to be sent again first.
            Some(Ok(())) if is_held(conn, pair) => {
                if !await_return(conn, pair, fd, &mut held_until) {
                    return false;
                }
            }
            Some(Ok(())) => return true,
            // The carrier is over: no end is announced.
            Some(Err(SendError::Carrier(_))) => return true,
            Some(Err(_)) | None => return false,
        }
    }
}

/// The connection has no descriptor any more.
#[inline(always)]
pub(crate) fn end(conn: &Conn) {
    if conn.remote.load(Ordering::Acquire) != 0 {
        leave(conn);
    }
}

#[cold]
fn leave(conn: &Conn) {
    if let Some((number, pair)) = pair::of(conn) {
        conn.remote.store(0, Ordering::Release);
        ending::end(conn, number, pair);
    }
}

/// In a fork child: a connection that has moved a byte and not met is plain TCP here.
#[inline(always)]
pub(crate) fn fork_child(conn: &Conn) {
    if has(conn) {
        part(conn);
    }
}

#[cold]
fn part(conn: &Conn) {
    if conn.stage() == Stage::Remote {
        conn.remote.store(0, Ordering::Relaxed);
        // The moved bytes are not in the proof of a place that is new.
        if conn.bytes.iter().any(|n| n.load(Ordering::Relaxed) != 0) {
            conn.change_stage(Stage::Remote, Stage::Kernel);
        }
    }
}

/// In a fork child, behind [`fork_child`] for each connection.
#[inline(always)]
pub(crate) fn forget_device() {
    // Without a write where there is nothing, which in a child copies the page.
    if IN_USE.load(Ordering::Relaxed) {
        device::forget();
        forked::child();
    }
}

/// Before a fork: no half is in the middle of something, and both processes may go on with it ([`forked`]).
#[inline(always)]
pub(crate) fn fork_prepare() {
    if IN_USE.load(Ordering::Relaxed) {
        forked::prepare();
    }
}

/// After a fork, in the parent.
#[inline(always)]
pub(crate) fn fork_parent() {
    if IN_USE.load(Ordering::Relaxed) {
        forked::parent();
    }
}

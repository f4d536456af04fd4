//! One send call: bytes onto whichever lane the half is on, in stream order.
//!
//! Called by `api`, and by `migration` and `lifecycle` where a connection leaves its lane or is
//! shut down.

use core::{
    pin::{Pin, pin},
    sync::atomic::Ordering,
};

use libc::c_int;
use sdp_fabric_shm::link::{Armed, How, Intent, ResetNote, ShmHalf, ShmLink, Trust, What};
use sdp_proto::Ack;
use sdp_rdma::{
    fabric::{PostError, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_shm::{family::Row, lock, ring::HEADER_MAX};
use sdp_stats::{Direction, Reason};
use sdp_sys::{
    errno::Errno,
    fd, section, signal,
    time::{TICKS_PER_MS, ticks},
    tls,
};

use crate::{
    conn::{
        self, Conn, ConnGuard, Half, Holders, Limits, Mask, Signalled, Stage, Waiters, carrier,
        iovec::{Buffers, Payload},
        publish,
    },
    datapath::{
        count,
        exchange::RowExchange,
        fault, half_lock,
        lane::{self, Broken, Lane, SourceState},
        proof,
        reset::reset,
        reset_note, takeover,
        token::{self, Sent},
        wait,
    },
    process,
    wake::{call_guard::CallGuard, doorbell, spin},
};

mod answer;
mod gate;

pub(crate) use answer::{answer, post_control};
pub(crate) use gate::{GATE_TIMEOUT_NS, gated, gated_at, has_peer_closed, take_gate};

/// Payload of one message of a long send: the reader starts while the writer still copies.
const PIECE: usize = 16 * 1024;
/// Most that one look at the lane before its first use sends on the carrier, and a piece of a large send before that.
pub(crate) const FIRST_PIECE: usize = 64 * 1024;
/// A sender whose reader does not move looks at the carrier this often.
const LOOK_EVERY_TICKS: u64 = TICKS_PER_MS;

/// No ring can do what these flags ask for.
const KERNELS_OWN: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY;

/// How one attempt under the lock ended.
enum Attempt {
    /// Everything is gone.
    Done,
    /// The kernel lane is full: wait until the carrier is writable.
    CarrierFull,
    /// The ring is full: wait for room.
    RingFull,
    /// Another thread is in the middle of a message: wait until it is done.
    NotOurTurn,
    /// Only the kernel can send this, and the half cannot leave its lane now (L2): wait until it can.
    NotOnLane,
    /// The ring is full: the caller asks, outside the lock, whether it may return EAGAIN to the
    /// program (L11).
    AskWaiters,
    /// The ring is full, and the library sees how the program waits for room (R10).
    Again,
    /// The call ends with this error (if nothing was sent).
    Failed(Errno),
}

/// What a call waits for.
enum Blocked {
    Ring,
    Carrier,
    SendTurn,
    Lane,
}

/// A send call on a connection, its bytes and flags: [`send`], or that of another kind of connection.
pub(crate) type Send = fn(&ConnGuard, &mut Buffers, c_int) -> Result<usize, Errno>;

/// A send call on an attached connection.
pub(crate) fn send(conn: &ConnGuard, buffers: &mut Buffers, flags: c_int) -> Result<usize, Errno> {
    let mut mark = section::mark();
    let guard = pin!(CallGuard::on(conn));
    let guard = guard.as_ref();
    let wanted = buffers.left();
    let mut deadline: Option<Option<u64>> = None;
    let mut rival = None;
    let mut can_wait = None;
    loop {
        let ended = inside(conn, |source, row, link, half| {
            Ok(attempt(conn, guard, source, row, link, half, buffers, flags, can_wait))
        })?;
        if proof::is_wanted(conn) {
            proof::leave_if_refuted(conn, conn.fd());
        }
        let done = wanted - buffers.left();
        let partial = |e| if done > 0 { Ok(done) } else { Err(e) };
        let blocked = match ended {
            Attempt::Done => {
                conn.calls[Half::Send as usize].fetch_add(1, Ordering::Relaxed);
                conn.one_way.store(0, Ordering::Relaxed);
                return Ok(done);
            }
            Attempt::Failed(Errno::EPIPE) => {
                if done == 0 {
                    if let Some(e) = conn.take_pending_error() {
                        return Err(e); // an error of the socket comes before its end
                    }
                    return Err(raise_pipe(conn.open_fd(), flags));
                }
                return Ok(done);
            }
            Attempt::Failed(e) => {
                if done > 0 {
                    // The kernel keeps an error while a call has bytes to return; here the kernel
                    // has already reported it to the library.
                    conn.set_pending_error(e);
                }
                return partial(e);
            }
            Attempt::AskWaiters => {
                can_wait = Some(crate::wake::interest::can_wait_for_room(conn));
                continue;
            }
            Attempt::Again => {
                crate::wake::interest::sender_waits(conn);
                return partial(Errno::EAGAIN);
            }
            Attempt::CarrierFull => Blocked::Carrier,
            Attempt::RingFull => Blocked::Ring,
            Attempt::NotOurTurn => Blocked::SendTurn,
            Attempt::NotOnLane => Blocked::Lane,
        };
        if flags & libc::MSG_DONTWAIT != 0 || fd::is_nonblocking(conn.fd()) {
            if matches!(blocked, Blocked::Ring | Blocked::Lane) {
                crate::wake::interest::sender_comes_back(conn);
                if !conn.has(Limits::Hostile) {
                    wait::throttle_retry();
                }
            }
            return partial(Errno::EAGAIN);
        }
        let until = *deadline.get_or_insert_with(|| wait::deadline(conn, conn.fd(), Half::Send));
        if until == Some(0) {
            return partial(Errno::EAGAIN);
        }
        let woken = match blocked {
            Blocked::Ring => wait::for_room(conn, guard, until, mark),
            Blocked::Carrier => wait::for_carrier_room(conn, guard, until, mark),
            Blocked::SendTurn => wait::for_turn(conn, guard, until, mark, &mut rival),
            Blocked::Lane => wait::for_more(conn, guard, until, mark), // no wake-up announces it
        };
        match woken {
            // Only a call that has done nothing yet is restarted.
            wait::Woken::Look if wait::was_interrupted(&mut mark) && done > 0 => return Ok(done),
            wait::Woken::Look => {}
            wait::Woken::TimedOut => return partial(Errno::EAGAIN),
            wait::Woken::Interrupted => return partial(Errno::EINTR),
            wait::Woken::Closed => return partial(Errno::EBADF),
        }
    }
}

/// EPIPE comes with a signal (E4): raised at this thread, once per call of the program, and only when nothing else was
/// sent. Nothing is sent for it: the carrier may still be open, because another thread is in the middle of a `shutdown`,
/// and the number may name another connection by now.
pub(crate) fn raise_pipe(fd: Option<c_int>, flags: c_int) -> Errno {
    if flags & libc::MSG_NOSIGNAL == 0
        && signal::raise_pipe().is_err()
        && let Some(fd) = fd
        && carrier::is_stream(fd)
    {
        // A filter forbids both. Of a stream that has ended the kernel raises the signal for a send of nothing, too.
        let _ = sdp_sys::kernel::send(fd, &[], libc::MSG_DONTWAIT);
    }
    Errno::EPIPE
}

/// Runs `body` on the sending half's state under its lock, inside a critical section. A send call has
/// a copy of that code for itself ([`inside`]); there is one for everything else.
#[inline]
pub(crate) fn with_source<R>(
    conn: &Conn,
    body: impl FnOnce(&mut SourceState, &Row, ShmLink, ShmHalf<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let (mut body, mut result) = (Some(body), None);
    with_source_for(conn, &mut |source, row, link, half| {
        result = body.take().map(|body| body(source, row, link, half));
    })?;
    result.unwrap_or(Err(Errno::ECONNRESET))
}

type Body<'a> = dyn FnMut(&mut SourceState, &Row, ShmLink, ShmHalf<'_>) + 'a;

#[inline(never)]
fn with_source_for(conn: &Conn, body: &mut Body<'_>) -> Result<(), Errno> {
    inside(conn, |source, row, link, half| {
        body(source, row, link, half);
        Ok(())
    })
}

#[inline]
fn inside<R>(
    conn: &Conn,
    body: impl FnOnce(&mut SourceState, &Row, ShmLink, ShmHalf<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let (Some(link), Some(row)) = (conn.link(), conn.row()) else {
        return Err(Errno::ECONNRESET);
    };
    let index = conn.half_index(Half::Send);
    let half = link.half(index);
    let _section = section::Guard::enter();
    let taken_over = half_lock::enter(conn, &row.source.lock)?;
    if taken_over && (token::is_owed(row) || takeover::source_of(conn, row, link, index).is_err()) {
        lock::unlock(&row.source.lock);
        reset(conn);
        return Err(Errno::ECONNRESET);
    }
    let result = match SourceState::load(&row.source.words, link, index) {
        Ok(mut state) => {
            if taken_over
                && state.lane == Lane::Sdp
                && let Some(fd) = conn::number_of(conn)
            {
                // It may have published without waking the reader.
                wake_sleepers(conn, fd, &mut state, half, true);
            }
            let before = section::set_copying(fault::mark_of(conn, Half::Send));
            let result = body(&mut state, row, link, half);
            section::set_copying(before);
            state.store(&row.source.words);
            result
        }
        Err(Broken) => {
            reset(conn);
            Err(Errno::ECONNRESET)
        }
    };
    lock::unlock(&row.source.lock);
    result
}

#[allow(clippy::too_many_arguments)]
fn attempt(
    conn: &ConnGuard,
    guard: Pin<&CallGuard>,
    source: &mut SourceState,
    row: &Row,
    link: ShmLink,
    half: ShmHalf<'_>,
    buffers: &mut Buffers,
    flags: c_int,
    can_wait: Option<bool>,
) -> Attempt {
    if conn.has(Limits::Hostile) {
        return Attempt::Failed(Errno::ECONNRESET);
    }
    // The end was perhaps a family member's to send, before its kernel call.
    if conn.has(Limits::Shut) || source.lane == Lane::Sdp && source.engine.has_ended() {
        // An error of the socket comes before its end, as in the kernel.
        let error = conn.open_fd().filter(|fd| carrier::has_error(*fd));
        let error = error.and_then(carrier::take_error).inspect(|e| conn.note_reported(*e));
        return Attempt::Failed(error.unwrap_or(Errno::EPIPE));
    }
    let is_blocking = || flags & libc::MSG_DONTWAIT == 0 && !fd::is_nonblocking(conn.fd());
    if conn.turn.of_another(|| tls::thread_id() as u32).is_some() && is_blocking() {
        return Attempt::NotOurTurn;
    }
    // The lock is released in the middle of a message: the send turn keeps the bytes of other
    // threads out of it. The call guard has it before the section ends, which may deliver a
    // signal whose handler never comes back.
    let wait_with = |buffers: &Buffers, why| {
        if !buffers.is_whole() && is_blocking() {
            guard.has_turn();
            conn.turn.take(tls::thread_id() as u32);
        }
        why
    };
    conn.note_traced();
    if process::tunables().lane_flip() != 0 {
        flip(conn, source, half);
    }
    let mut first_on_lane = false;
    loop {
        if source.lane == Lane::Kernel {
            if token::is_missing(row)
                && let Some(ended) = exchange_tokens(conn, source, row, link, half)
            {
                return wait_with(buffers, ended); // at an error the guard gives the turn back
            }
            if may_promote(conn, source, link, half, flags)
                && enter_sdp(conn, source, half).is_some()
            {
                first_on_lane = true;
            } else {
                match kernel_send(conn, source, row, half, buffers, flags) {
                    Some(Attempt::CarrierFull) => {
                        return wait_with(buffers, Attempt::CarrierFull);
                    }
                    Some(attempt) => return attempt,
                    None => continue,
                }
            }
        }
        watch_peer(conn, source, half);
        // A peer that closed with bytes unread has reset the carrier: the kernel says so. One that
        // was killed sent FIN, and it cannot be known whether our bytes came before or after it:
        // EPIPE.
        if must_leave(conn, link, flags)
            && leave_sdp(conn, source, half, reason_to_leave(conn, flags))
        {
            continue;
        }
        if flags & KERNELS_OWN != 0 {
            return wait_with(buffers, Attempt::NotOnLane);
        }
        match ring_send(conn, source, row, link, half, buffers, first_on_lane) {
            RingSend::Done => return Attempt::Done,
            RingSend::Left => {
                publish::half_demoted(conn, Direction::Send, reason_to_leave(conn, flags));
                continue;
            }
            RingSend::Broken => {
                reset(conn);
                return Attempt::Failed(Errno::ECONNRESET);
            }
            RingSend::Full => {
                let blocking = is_blocking();
                // No peer could signal that there is room: the kernel wakes threads that wait for
                // room on the carrier.
                let may_wait = blocking && wait::can_be_rung_for_room(conn);
                if !may_wait && wait::briefly_for_room(link, half, source) {
                    continue;
                }
                // R10: where the library sees how the program waits, "writable" can mean the ring.
                // Otherwise the sender goes on on the carrier, whose readiness every poller
                // understands.
                if !blocking && can_wait.is_none() {
                    return Attempt::AskWaiters;
                }
                if !blocking && can_wait == Some(true) {
                    conn.set(Waiters::WantRoom);
                    let is_roomy = wait::arm_for_room(half);
                    // A reader that has gone frees no room, and its end may have been reported
                    // before: a sender that gets EAGAIN now would not hear of it again. Events from
                    // here on are verified with the wish for room set.
                    if !is_roomy && !conn.has(Limits::PeerGone) && carrier::is_over(conn.fd()) {
                        conn.set(Limits::PeerGone);
                        continue;
                    }
                    if !is_roomy {
                        return Attempt::Again;
                    }
                    if source.tx.refresh().is_ok() {
                        continue;
                    }
                }
                if may_wait || !leave_sdp(conn, source, half, Reason::RingFull) {
                    return wait_with(buffers, Attempt::RingFull);
                }
            }
        }
    }
}

/// L13, before payload goes by the carrier. `None`: it may.
#[cold]
fn exchange_tokens(
    conn: &ConnGuard,
    source: &mut SourceState,
    row: &Row,
    link: ShmLink,
    half: ShmHalf<'_>,
) -> Option<Attempt> {
    token::look(conn, row);
    match token::send(conn, source, row, link, half, false) {
        Sent::Whatever => None,
        Sent::Full => Some(Attempt::CarrierFull),
        Sent::Failed(error) => Some(Attempt::Failed(error)),
    }
}

/// Whether the consumer of what this end sends is ready for the SDP lane.
pub(crate) fn is_trusted(conn: &Conn) -> bool {
    conn.link().is_some_and(|link| link.half(conn.half_index(Half::Send)).trust().is_of_payload())
}

/// L1: whether the half may move to the SDP lane now.
fn may_promote(
    conn: &ConnGuard,
    source: &SourceState,
    link: ShmLink,
    half: ShmHalf<'_>,
    flags: c_int,
) -> bool {
    let calls = Half::Send as usize;
    let tunables = process::tunables();
    flags & KERNELS_OWN == 0
        && may_enter(conn, source, link, half)
        && (conn.calls[calls].load(Ordering::Relaxed) >= tunables.promote_calls()
            || conn.bytes[calls].load(Ordering::Relaxed) >= tunables.promote_bytes())
}

/// L1 without what the half must have earned.
fn may_enter(conn: &ConnGuard, source: &SourceState, link: ShmLink, half: ShmHalf<'_>) -> bool {
    !conn.row().is_none_or(token::is_missing)
        && half.trust().is_of_payload()
        && may_switch(conn, source, link, half)
}

/// The same without the tokens (L13).
pub(super) fn may_switch(
    conn: &ConnGuard,
    source: &SourceState,
    link: ShmLink,
    half: ShmHalf<'_>,
) -> bool {
    !conn.has((Limits::Fallback | Limits::PeerGone).with(Holders::ForkedDuringCall))
        && half.trust() != Trust::No
        && half.followed() == source.switches
        && link.peer().is_open()
        // A family member that shares this end may have passed the connection on.
        && link.own().is_open()
        && link.peer().is_attached()
        && conn.raw[Half::Send as usize].load(Ordering::SeqCst) == 0
        && !proof::is_wanted(conn)
        && conn.stage() == Stage::Attached
}

fn enter_sdp(conn: &ConnGuard, source: &mut SourceState, half: ShmHalf<'_>) -> Option<()> {
    let sent = carrier::sent(conn.fd()).ok()?;
    if source.switches == 0 && half.read() > sent {
        proof::refute(conn); // it has read what we never sent
        return None;
    }
    source.carrier_sent = sent;
    if !gated(conn, half, conn.side(), || source.enter(half))? {
        return None;
    }
    publish::half_promoted(conn, Direction::Send);
    Some(())
}

fn must_leave(conn: &ConnGuard, link: ShmLink, flags: c_int) -> bool {
    flags & KERNELS_OWN != 0
        || conn.has(Limits::Fallback | Limits::PeerGone)
        || !link.peer().is_open()
        || !link.own().is_open()
}

fn reason_to_leave(conn: &Conn, flags: c_int) -> Reason {
    if conn.has(Limits::PeerGone) {
        Reason::PeerGone
    } else if flags & libc::MSG_OOB != 0 {
        Reason::UrgentData
    } else {
        // Without a reason of our own, the peer wants the kernel lane at its end.
        conn.fallback_reason().unwrap_or(Reason::PeerSwitched)
    }
}

/// L2: writes the entry that leaves the SDP lane. False when that must wait for the consumer.
///
/// E4: behind the peer's FIN, which may be half a close, a wake byte asks its kernel first where
/// bytes are left in the ring, or no reader follows: the program's next send on the carrier meets
/// the answer, as it would over TCP.
pub(crate) fn leave_sdp(
    conn: &Conn,
    source: &mut SourceState,
    half: ShmHalf<'_>,
    reason: Reason,
) -> bool {
    if source.lane != Lane::Sdp {
        return true;
    }
    let may_leave = wait::briefly(|| half.may_leave(source.switches));
    if !(may_leave && source.tx.refresh().is_ok() && is_all_read(source))
        && let Some(fd) = conn::number_of(conn)
        && (conn.has(Limits::PeerGone) || carrier::is_over(fd))
    {
        conn.set(Limits::PeerGone);
        probe_carrier(conn, fd, source, half);
    }
    if !may_leave && !wait::is_reader_dead(conn) {
        return false;
    }
    let left = gated(conn, half, conn.side(), || match source.adopt(half) {
        Ok(true) => Some(()),
        Ok(false) => {
            source.switch(half, Lane::Kernel);
            Some(())
        }
        Err(Broken) => None,
    });
    match left {
        Some(Some(())) => {
            publish::half_demoted(conn, Direction::Send, reason);
            // Threads that wait for room in the ring: the connection is writable by the carrier
            // now.
            if conn.has(Waiters::WantRoom) {
                doorbell::signal_self(conn.index());
            }
            true
        }
        _ => {
            reset(conn);
            false
        }
    }
}

/// Sends on the carrier. `None`: there is more, and the half may have earned the SDP lane meanwhile.
fn kernel_send(
    conn: &ConnGuard,
    source: &mut SourceState,
    row: &Row,
    half: ShmHalf<'_>,
    buffers: &mut Buffers,
    flags: c_int,
) -> Option<Attempt> {
    // L6: carrier bytes of an attached connection move only under the half's lock, so that a switch
    // never overtakes them; and under the gate, so that they never overtake a hand-over by the consumer.
    if buffers.left() == 0 {
        return Some(Attempt::Done);
    }
    // Before the first switch the consumer is about to make it possible: look after each piece.
    let is_first_section = source.switches == 0 || conn.is_across() && source.switches == 2;
    let cap = if is_first_section { FIRST_PIECE } else { usize::MAX };
    loop {
        let is_wanted = proof::is_wanted(conn);
        let edge = if is_wanted { proof::before_send(conn, conn.fd()) } else { None };
        let sent = gated(conn, half, conn.side(), || carrier::send(conn.fd(), buffers, cap, flags));
        let Some(sent) = sent else {
            reset(conn);
            return Some(Attempt::Failed(Errno::ECONNRESET));
        };
        match sent {
            Ok(n) => {
                if let Some(edge) = edge {
                    proof::after_send(conn, conn.fd(), edge);
                }
                buffers.advance(n);
                count::sent_by_kernel(conn, n);
                if buffers.left() == 0 {
                    return Some(Attempt::Done);
                }
                if is_first_section {
                    return None;
                }
            }
            Err(Errno::EAGAIN) => return Some(Attempt::CarrierFull),
            Err(Errno::ECONNRESET) if only_wake_bytes_were_unread(conn, source, half) => {
                reset_note::note(row);
                return Some(Attempt::Failed(Errno::EPIPE));
            }
            Err(e) => {
                conn.note_reported(e);
                return Some(Attempt::Failed(e));
            }
        }
    }
}

/// E3 for senders: the carrier was reset although the peer had read all that the program sent, so the
/// cause was wake bytes; over TCP the peer's end had been a FIN.
fn only_wake_bytes_were_unread(
    conn: &ConnGuard,
    source: &mut SourceState,
    half: ShmHalf<'_>,
) -> bool {
    source.switches != 0
        && source.tx.refresh().is_ok()
        && is_all_read(source)
        && carrier::sent(conn.fd()) == Ok(source.carrier_sent)
        && is_reset_of_wake_bytes(conn, source, half)
}

pub(super) enum RingSend {
    Done,
    Full,
    /// The peer took the half off the lane, or it left by itself.
    Left,
    Broken,
}

pub(super) fn ring_send(
    conn: &ConnGuard,
    source: &mut SourceState,
    row: &Row,
    link: ShmLink,
    half: ShmHalf<'_>,
    buffers: &mut Buffers,
    mut first_on_lane: bool,
) -> RingSend {
    link.own().note_cpu(spin::this_cpu());
    if RowExchange(row).has_pending()
        && let Err(ended) = answer::flush(conn, source, row, half, &mut first_on_lane)
    {
        return ended;
    }
    let (tail_before, _) = source.tx.cursors();
    let ack = Ack::from_word(row.ack.load(Ordering::Acquire));
    let mut moved = 0;
    // What fits into one message becomes visible at once, as over TCP. The reader of more copies
    // while this one copies on.
    let whole = source.tx.max_message().saturating_sub(HEADER_MAX);
    let piece = if buffers.left() <= whole { whole } else { PIECE };
    let ended = loop {
        let want = buffers.left().min(piece);
        if want == 0 {
            break RingSend::Done;
        }
        if moved > 0 {
            // A next owner looks for one message that was not written down, not for more. (Behind
            // the last one the caller does it.)
            source.store(&row.source.words);
        }
        let Ok(message) = source.engine.next_data(ack, want as u32) else {
            break RingSend::Broken;
        };
        let mut piece = message.payload_len() as usize;
        let posted = gated(conn, half, conn.side(), || match source.adopt(half) {
            Ok(true) => Err(RingSend::Left),
            Err(Broken) => Err(RingSend::Broken),
            Ok(false) => {
                let mut message = message;
                // A large send takes the room that there is, rather than waiting for a whole piece.
                let room = source.tx.room();
                if room < piece && source.tx.refresh().is_err() {
                    return Err(RingSend::Broken);
                }
                let room = source.tx.room();
                if room < piece {
                    if room < 4096.min(piece) {
                        return Err(RingSend::Full);
                    }
                    piece = room;
                    match source.engine.next_data(ack, piece as u32) {
                        Ok(shorter) => message = shorter,
                        Err(_) => return Err(RingSend::Broken),
                    }
                }
                let mut payload = Payload::new(buffers, piece);
                let options = SendOptions::default();
                match source.tx.post_send(WorkId(0), message.header(), &mut payload, options) {
                    Ok(()) => {
                        source.engine.commit(&message);
                        source.tx.publish();
                        publish::message(conn, true, &message.message().header);
                        Ok(())
                    }
                    Err(PostError::Full) => Err(RingSend::Full),
                    Err(_) => Err(RingSend::Broken),
                }
            }
        });
        match posted {
            None => break RingSend::Broken,
            Some(Err(ended)) => break ended,
            Some(Ok(())) => {
                moved += piece;
                publish::ensure_row(conn);
                count::sent_by_ring(conn, row, piece);
                wake_sleepers(conn, conn.fd(), source, half, first_on_lane);
                first_on_lane = false;
            }
        }
    };
    if moved > 0 {
        if !matches!(ended, RingSend::Done) {
            source.store(&row.source.words); // the call may go on, with more messages
        }
        let index = |at: u64| at.wrapping_sub(source.tx.origin());
        let (before, after) = (index(tail_before), index(source.tx.cursors().0));
        crate::datapath::reclaim::sent(conn, half.size() as u32, before, after, moved);
    }
    ended
}

/// After a message that went past the slow path: wakes the consumer, which sleeps and has asked for
/// it with this arm.
#[inline(always)]
pub(crate) fn ring_sleeper(conn: &Conn, fd: c_int, row: &Row, link: ShmLink, armed: Armed) {
    let half = link.half(conn.half_index(Half::Send));
    if armed.how == How::Doorbell {
        half.note_signal(ticks());
        let signalled = conn.signal_peer();
        if signalled != Signalled::NoDoorbell {
            spin::reached(conn, signalled == Signalled::Asleep);
            half.disarm(What::Bytes, armed);
            return;
        }
    }
    ring_sleeper_by_carrier(conn, fd, row, link);
}

/// The same for a sleeper that only the carrier can wake: that takes this half's state, which
/// counts the wake bytes.
#[cold]
fn ring_sleeper_by_carrier(conn: &Conn, fd: c_int, row: &Row, link: ShmLink) {
    let index = conn.half_index(Half::Send);
    match SourceState::load(&row.source.words, link, index) {
        Ok(mut source) => {
            wake_sleepers(conn, fd, &mut source, link.half(index), false);
            source.store(&row.source.words);
        }
        Err(Broken) => reset(conn),
    }
}

/// Wakes the consumer if it sleeps. The first message on the lane sends a wake byte, because the
/// consumer may sleep on the carrier without having armed, unless it says that none of its threads
/// does (O10).
#[inline]
fn wake_sleepers(conn: &Conn, fd: c_int, source: &mut SourceState, half: ShmHalf<'_>, first: bool) {
    let armed = half.armed(What::Bytes);
    let mut by_carrier = first
        && half.followed() != source.switches
        && !lane::do_sleepers_arm(half, source.carrier_sent);
    match armed {
        // A sleeper that armed must be rung as it asked: another thread may consume the carrier's byte.
        Some(Armed { how, .. }) => {
            half.note_signal(ticks());
            let signalled =
                if how == How::Doorbell { conn.signal_peer() } else { Signalled::NoDoorbell };
            by_carrier |= signalled == Signalled::NoDoorbell;
            spin::reached(conn, signalled != Signalled::Awake);
        }
        None => spin::reached(conn, false),
    }
    if by_carrier {
        ring_carrier(conn, fd, source, half);
    }
    if let Some(armed) = armed {
        half.disarm(What::Bytes, armed);
    }
}

/// Puts a wake byte on the carrier, unless the peer has closed its end.
#[cold]
#[inline(never)]
fn ring_carrier(conn: &Conn, fd: c_int, source: &mut SourceState, half: ShmHalf<'_>) {
    // L5: counted only after the kernel took it. L10: the count changes under the gate.
    let _ = gated(conn, half, conn.side(), || {
        if !has_peer_closed(conn) {
            ring_gated(conn, fd, source, half);
        }
    });
}

/// The same to find out whether the peer's kernel answers with a reset. One that has come already is left
/// for the program: a wake byte would take its error.
fn probe_carrier(conn: &Conn, fd: c_int, source: &mut SourceState, half: ShmHalf<'_>) {
    if carrier::tcp_state(fd) == carrier::TCP_CLOSE {
        return;
    }
    let _ = gated(conn, half, conn.side(), || ring_gated(conn, fd, source, half));
}

fn ring_gated(conn: &Conn, fd: c_int, source: &mut SourceState, half: ShmHalf<'_>) {
    if source.switches != half.written() {
        return;
    }
    match (carrier::ring(fd), conn.row()) {
        (Ok(1), _) => {
            source.carrier_sent += 1;
            source.publish_sent(half);
        }
        (Err(error), Some(row))
            if conn::is_end(error) && carrier::tcp_state(fd) == carrier::TCP_CLOSE =>
        {
            reset_note::note(row);
        }
        _ => {}
    }
}

/// E4: a sender asks the carrier, once per millisecond, whether it was ended from outside, and if its reader has left
/// bytes unread and not moved since the last look, whether that still lives; if not, the half leaves its lane
/// ([`leave_sdp`]).
#[inline]
fn watch_peer(conn: &ConnGuard, source: &SourceState, half: ShmHalf<'_>) {
    if source.lane != Lane::Sdp {
        return;
    }
    let (tail, seen) = source.tx.cursors();
    // The consumer's line is not touched before time has passed: that would cost more than the rest.
    let Some(now) = is_time_to_watch(conn) else { return };
    conn.looked.store(now, Ordering::Relaxed);
    let head = half.position(What::Space);
    let looked = conn.looked_head.swap(head, Ordering::Relaxed);
    let moves = head == tail || head != looked && head != seen;
    if if moves { carrier::is_dead(conn.fd()) } else { carrier::is_over(conn.fd()) } {
        conn.set(Limits::PeerGone);
    }
}

/// Now, if the last look ([`watch_peer`]) is long ago.
#[inline]
pub(crate) fn is_time_to_watch(conn: &Conn) -> Option<u64> {
    let now = ticks();
    let since = now.wrapping_sub(conn.looked.load(Ordering::Relaxed));
    (since >= LOOK_EVERY_TICKS).then_some(now)
}

/// E2: FIN has been seen. With bytes of ours unread in the ring, one wake byte asks the peer's
/// kernel: true when it answered with a reset, which the caller reports now; the kernel must not
/// report it again.
pub(crate) fn probe_peer(conn: &ConnGuard) -> bool {
    if conn.has(Limits::ResetReported) {
        return false;
    }
    with_source(conn, |source, _, _, half| {
        if source.lane != Lane::Sdp || source.tx.refresh().is_err() || is_all_read(source) {
            return Ok(false);
        }
        leave_sdp(conn, source, half, Reason::PeerGone);
        let is_reset = carrier::tcp_state(conn.fd()) == carrier::TCP_CLOSE;
        if is_reset {
            conn.set(Limits::ResetReported);
            carrier::take_error(conn.fd());
        }
        Ok(is_reset)
    })
    .unwrap_or(false)
}

/// E3: whether the peer had read all that we sent over the ring, and the reset that came can be
/// that of wake bytes.
pub(crate) fn everything_was_read(conn: &ConnGuard) -> bool {
    with_source(conn, |source, _, _, half| {
        Ok(source.lane == Lane::Sdp
            && source.tx.refresh().is_ok()
            && is_all_read(source)
            && is_reset_of_wake_bytes(conn, source, half))
    })
    .unwrap_or(false)
}

/// How long a killed process may need from the close of its sockets to its end.
const TEARDOWN_MS: u32 = 100;

/// E3: whether the peer's end closed the socket, which wake bytes that it had not read made a
/// reset. It has said that it does, or it was killed beside such a wake byte; a socket that is
/// ended while its process lives is cut off.
#[cold]
fn is_reset_of_wake_bytes(conn: &Conn, source: &SourceState, half: ShmHalf<'_>) -> bool {
    let Some(link) = conn.link() else { return false };
    let end = link.peer();
    match end.reset_note() {
        ResetNote::None => {}
        ResetNote::Leaves => return true,
        ResetNote::Resets => return false,
    }
    if end.intent() == Intent::Closed {
        return true;
    }
    half.read() != source.carrier_sent && conn.has_peer_ended(TEARDOWN_MS)
}

/// Whether the ring holds no payload that the peer has not taken: nothing, or our DisConn alone, with the padding
/// before it, which a peer that closes need not have looked at. (One message of payload more is a record more.)
fn is_all_read(source: &SourceState) -> bool {
    let disconnect = source.tx.footprint(sdp_proto::wire::HEADER_LEN);
    let (tail, head) = source.tx.cursors();
    tail == head || source.engine.has_ended() && tail.wrapping_sub(head) < 2 * disconnect
}

/// Whether the peer says that it reset the connection on purpose.
pub(crate) fn has_reset(conn: &Conn) -> bool {
    conn.link().is_some_and(|link| link.peer().reset_note() == ResetNote::Resets)
}

/// `test_lane_flip`: changes lanes at pseudo-random calls.
#[cold]
fn flip(conn: &ConnGuard, source: &mut SourceState, half: ShmHalf<'_>) {
    if source.lane == Lane::Sdp && process::tunables().next_flip().is_multiple_of(2) {
        leave_sdp(conn, source, half, Reason::TestFlip);
    }
}

//! One receive call: bytes from whichever lane they are on, in stream order.
//!
//! Called by `api`, and by `migration` and `lifecycle` where a connection leaves its lane or ends
//! with bytes unread.

use libc::c_int;
use sdp_fabric_shm::link::{PENDING_MAX, ShmHalf, ShmLink, Trust, What};
use sdp_proto::{TakenMessage, take as take_message, wire::Message};
use sdp_rdma::fabric::{ReceiveQueue, Received};
use sdp_shm::{early, family::Row, lock};
use sdp_stats::{Direction, Lane as StatsLane, Reason};
use sdp_sys::{errno::Errno, fd, section};

use core::{pin::pin, sync::atomic::Ordering};

use crate::{
    conn::{
        Conn, ConnGuard, Half, Holders, Limits, Mask, Stage, Waiters, carrier,
        iovec::{Buffers, Landing},
        publish, sharing,
    },
    datapath::{
        count,
        exchange::RowExchange,
        fast, fault, half_lock,
        lane::{self, Broken, Lane, SinkState},
        proof,
        reset::reset,
        reset_note, send, takeover, token, wait,
    },
    process::{self, fork_page::FORK_PAGE},
    wake::{arming::arm_for_others, call_guard::CallGuard, interest, spin},
};

mod by_carrier;
mod peek;

use by_carrier::{KernelRead, kernel_read};
pub(crate) use peek::{consume_before, headers, next_payload, payload_ahead};
use peek::{onlooker, peek_behind_carrier, peek_behind_ring, peek_ring};

/// Lane switches followed and wake bytes consumed in one attempt before giving up on a restless
/// peer.
const SWITCHES_PER_CALL: u32 = 64;

/// What a receive call asks for beside bytes.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// The program's flags.
    pub(crate) flags: c_int,
}

impl Wish {
    fn peeks(self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    fn discards(self) -> bool {
        self.flags & libc::MSG_TRUNC != 0
    }

    fn waits_for_all(self) -> bool {
        self.flags & libc::MSG_WAITALL != 0
    }
}

/// How far an attempt looks when the ring is empty.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// At the ring and the log only.
    Ring,
    /// At the carrier too: wake bytes, FIN, errors.
    Carrier,
}

/// A receive call on a connection: [`receive`], or that of another kind of connection.
pub(crate) type Receive = fn(&ConnGuard, &mut Buffers, Wish) -> Result<usize, Errno>;

/// A receive call on an attached connection.
pub(crate) fn receive(conn: &ConnGuard, buffers: &mut Buffers, wish: Wish) -> Result<usize, Errno> {
    let mut mark = section::mark();
    let wanted = buffers.left();
    if wanted == 0 {
        return Ok(0);
    }
    let guard = pin!(CallGuard::on(conn));
    let guard = guard.as_ref();
    if let Some(e) = conn.take_pending_error() {
        return Err(e);
    }
    let mut got = 0;
    let mut deadline: Option<Option<u64>> = None;
    let mut look = Look::Ring;
    let mut is_over = false;
    let is_simple = fast::is_simple(wish.flags);
    loop {
        let simple = if is_simple && look == Look::Ring { buffers.only() } else { None };
        // SAFETY: the program's buffer, valid by `Buffers::new`'s contract.
        let by_fast_path =
            simple.and_then(|(to, len)| unsafe { fast::receive(conn.fd(), to, len) });
        let attempted = match by_fast_path {
            Some(fast::Received::Done(n)) => return Ok(n),
            Some(fast::Received::Partly(n)) => {
                buffers.advance(n);
                return Ok(n + rest(conn, buffers, wish));
            }
            Some(fast::Received::Empty) => Err(Errno::EAGAIN),
            Some(fast::Received::Later) => {
                let waits = wish.flags & libc::MSG_DONTWAIT == 0 && !fd::is_nonblocking(conn.fd());
                wait::leave_alone(conn, guard, waits);
                continue;
            }
            None => attempt(conn, buffers, wish, look, got > 0),
        };
        match attempted {
            Ok(0) => return Ok(got),
            Ok(n) if wish.peeks() => {
                // Each attempt sees the same bytes again, and those that came since.
                got = n;
                let blocking =
                    wish.flags & libc::MSG_DONTWAIT == 0 && !fd::is_nonblocking(conn.fd());
                if !wish.waits_for_all() || got >= wanted || is_over || !blocking {
                    return Ok(got);
                }
                is_over = carrier::is_over(conn.fd());
                if is_over {
                    continue; // what came before the end has come by now
                }
                let until =
                    *deadline.get_or_insert_with(|| wait::deadline(conn, conn.fd(), Half::Receive));
                if wait::for_more(conn, guard, until, mark) != wait::Woken::Look
                    || wait::was_interrupted(&mut mark)
                {
                    return Ok(got);
                }
            }
            Ok(n) => {
                got += n;
                if !wish.waits_for_all() || got == wanted {
                    return Ok(got);
                }
                continue;
            }
            Err(e) if e != Errno::EAGAIN => {
                if got == 0 {
                    return Err(e);
                }
                // The kernel keeps an error while a call has bytes to return; here the kernel has
                // already reported it to the library.
                conn.set_pending_error(e);
                return Ok(got);
            }
            Err(e) => {
                if look == Look::Ring {
                    // Nothing in the ring. The peer may answer within a moment; only then ask the
                    // kernel, which a sleep does in the same call.
                    let blocking =
                        wish.flags & libc::MSG_DONTWAIT == 0 && !fd::is_nonblocking(conn.fd());
                    if !blocking {
                        deadline = Some(Some(0));
                        look = Look::Carrier;
                        continue;
                    }
                    if wait::spin_for_bytes(conn, guard, simple.is_some()) {
                        continue;
                    }
                }
                let until =
                    *deadline.get_or_insert_with(|| wait::deadline(conn, conn.fd(), Half::Receive));
                if until == Some(0) && core::mem::replace(&mut look, Look::Carrier) == Look::Ring {
                    continue;
                }
                if until == Some(0) {
                    return if got > 0 { Ok(got) } else { Err(e) };
                }
                match wait::for_bytes(conn, guard, until, mark) {
                    // Only a call that has done nothing yet is restarted.
                    wait::Woken::Look if wait::was_interrupted(&mut mark) && got > 0 => {
                        return Ok(got);
                    }
                    wait::Woken::Look => {}
                    wait::Woken::TimedOut => {
                        return if got > 0 { Ok(got) } else { Err(Errno::EAGAIN) };
                    }
                    wait::Woken::Interrupted => {
                        return if got > 0 { Ok(got) } else { Err(Errno::EINTR) };
                    }
                    wait::Woken::Closed => {
                        return if got > 0 { Ok(got) } else { Err(Errno::EBADF) };
                    }
                }
                look = Look::Carrier;
            }
        }
    }
}

/// A receive call for no bytes. As long as there is nothing to receive it fails or waits like any
/// other; but whatever ends the wait, the kernel returns 0 then, and reports an error at the next
/// call.
#[cold]
pub(crate) fn receive_none(conn: &ConnGuard, flags: c_int, by: Receive) -> Result<usize, Errno> {
    let look = |flags| {
        let mut byte = 0u8;
        let one = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: vector and byte outlive the call.
        let buffers = unsafe { Buffers::new(&raw const one, 1) };
        buffers.map_or(Ok(0), |mut one| by(conn, &mut one, Wish { flags }))
    };
    let waits = flags & libc::MSG_DONTWAIT == 0 && !fd::is_nonblocking(conn.fd());
    match look(libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(_) => return Ok(0),
        Err(Errno::EAGAIN) if waits => {}
        Err(e) => return Err(e),
    }
    match look(libc::MSG_PEEK) {
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
        Err(Errno::EBADF) => Err(Errno::EBADF),
        Err(e) => {
            conn.set_pending_error(e);
            Ok(0)
        }
    }
}

/// L7: adds the bytes that are there already to those that the call has; returns how many.
fn rest(conn: &ConnGuard, buffers: &mut Buffers, wish: Wish) -> usize {
    match attempt(conn, buffers, wish, Look::Ring, true) {
        Ok(n) => n,
        Err(Errno::EAGAIN) => 0,
        Err(e) => {
            conn.set_pending_error(e);
            0
        }
    }
}

/// As [`rest`], for a call that does not hold the connection: one that names another by now, or
/// none, has no rest.
#[cold]
pub(crate) fn rest_of(fd: c_int, buffers: &mut Buffers) -> usize {
    match ConnGuard::new(fd, Half::Receive) {
        Some(conn) if conn.stage() == Stage::Attached => rest(&conn, buffers, Wish { flags: 0 }),
        _ => 0,
    }
}

/// Runs `body` on the receiving half's state under its lock, inside a critical section.
pub(crate) fn with_sink<R>(
    conn: &Conn,
    body: impl FnOnce(&mut SinkState, &Row, ShmLink, ShmHalf<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    match (conn.link(), conn.row()) {
        (Some(link), Some(row)) => with_sink_of(conn, link, row, body),
        _ => Err(Errno::ECONNRESET),
    }
}

/// [`with_sink`] of a connection with this link and this row.
pub(crate) fn with_sink_of<R>(
    conn: &Conn,
    link: ShmLink,
    row: &Row,
    body: impl FnOnce(&mut SinkState, &Row, ShmLink, ShmHalf<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let _section = section::Guard::enter();
    let taken_over = half_lock::enter(conn, &row.sink.lock)?;
    inside(conn, link, row, taken_over, body)
}

/// [`with_sink`] for a caller that can come back later. `None`: another thread or process has the
/// lock, and may keep it for long (a hand-over waits for the kernel). `may_wait`: waits for a
/// bounded time, and takes over from a dead owner.
pub(crate) fn try_sink<R>(
    conn: &Conn,
    may_wait: bool,
    body: impl FnOnce(&mut SinkState, &Row, ShmLink, ShmHalf<'_>) -> Result<R, Errno>,
) -> Option<Result<R, Errno>> {
    let (Some(link), Some(row)) = (conn.link(), conn.row()) else {
        return Some(Err(Errno::ECONNRESET));
    };
    let _section = section::Guard::enter();
    let taken_over = half_lock::try_enter(&row.sink.lock, may_wait)?;
    Some(inside(conn, link, row, taken_over, body))
}

/// Under the lock, which it gives back.
#[inline]
fn inside<R>(
    conn: &Conn,
    link: ShmLink,
    row: &Row,
    taken_over: bool,
    body: impl FnOnce(&mut SinkState, &Row, ShmLink, ShmHalf<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let index = conn.half_index(Half::Receive);
    spin::look_again(conn); // the seen tail is forgotten below, whatever is unread
    if taken_over && takeover::sink_of(conn, row, link.segment(), index).is_err() {
        lock::unlock(&row.sink.lock);
        reset(conn);
        return Err(Errno::ECONNRESET);
    }
    let result = match SinkState::load(&row.sink.words, link, index) {
        Ok(mut state) => {
            let half = link.half(index);
            let (lane, mut followed) = (state.lane, state.followed);
            let was_awaited = token::is_awaited(row);
            let (read, (_, before)) = (state.carrier_read, state.rx.cursors());
            if taken_over {
                // It may have freed room without waking the sender that waits for it.
                wait::room_freed(conn, half, before);
            }
            let copying = section::set_copying(fault::mark_of(conn, Half::Receive));
            let result = body(&mut state, row, link, half);
            section::set_copying(copying);
            state.store(&row.sink.words);
            takeover::handed(&row.sink.words);
            if state.carrier_read != read {
                half.count_read(state.carrier_read);
            }
            if was_awaited && !token::is_awaited(row) {
                followed = followed.wrapping_add(2); // the token's section, which says nothing
            }
            if state.followed != followed {
                count_switches(conn, lane, state.followed.wrapping_sub(followed));
            }
            // For any cause that freed room, padding without a message included.
            let (_, head) = state.rx.cursors();
            if wait::crosses_eighth(half.size(), before, head) {
                wait::room_freed(conn, half, head);
            }
            result
        }
        Err(Broken) => {
            reset(conn);
            Err(Errno::ECONNRESET)
        }
    };
    lock::unlock(&row.sink.lock);
    result
}

/// The half followed `n` switches, beginning on `lane`.
#[cold]
fn count_switches(conn: &Conn, lane: Lane, n: u32) {
    let mut lane = lane;
    for _ in 0..n.min(SWITCHES_PER_CALL) {
        match lane {
            Lane::Kernel => publish::half_promoted(conn, Direction::Receive),
            Lane::Sdp => {
                let reason = conn.fallback_reason().unwrap_or(Reason::PeerSwitched);
                publish::half_demoted(conn, Direction::Receive, reason);
            }
        }
        lane = if lane == Lane::Sdp { Lane::Kernel } else { Lane::Sdp };
    }
}

/// `is_going_on`: the call has bytes already.
fn attempt(
    conn: &ConnGuard,
    buffers: &mut Buffers,
    wish: Wish,
    look: Look,
    is_going_on: bool,
) -> Result<usize, Errno> {
    if conn.has(Limits::Hostile) {
        return Err(Errno::ECONNRESET);
    }
    conn.note_traced();
    let result = with_sink(conn, |sink, row, _, half| {
        if is_going_on && sink.lane == Lane::Kernel && carrier::is_at_mark(conn.fd()) {
            return Ok(0);
        }
        let result = step(conn, sink, row, half, buffers, wish, (look, is_going_on));
        let arms = conn.has(Waiters::ByCarrier) && sink.lane == Lane::Sdp;
        let is_more = || sink.current_len != 0 || ring_has_news(sink, half);
        arms.then(|| arm_for_others(conn, is_more, half));
        result
    });
    interest::wake_bytes_consumed(conn);
    if conn.row().is_some_and(|row| RowExchange(row).has_pending()) {
        send::answer(conn);
    }
    if result != Ok(0) && conn.row().is_some_and(token::is_missing) {
        token::speak(conn);
    }
    if !wish.peeks() && result.is_ok_and(|n| n > 0) {
        conn.calls[Half::Receive as usize].fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// Whether this process reads the connection only through the library, so that the peer may use the
/// ring: the library has seen enough calls, no thread reads a candidate inside the kernel, and the
/// program asks only the library for readiness, if it asks at all.
pub(crate) fn declare_trust(conn: &Conn, fd: c_int, sink: &mut SinkState, half: ShmHalf<'_>) {
    if half.trust().is_of_payload() {
        return;
    }
    let calls = Half::Receive as usize;
    let tunables = process::tunables();
    let is_blocking = !fd::is_nonblocking(fd);
    let earned = (conn.calls[calls].load(Ordering::Relaxed) >= tunables.promote_calls()
        || conn.bytes[calls].load(Ordering::Relaxed) >= tunables.promote_bytes())
        && (conn.has(Waiters::Seen) || is_blocking);
    // Tokens come in both directions, also where the program uses one (L13).
    let takes_token = !earned
        && half.trust() == Trust::No
        && conn.row().is_some_and(token::is_missing)
        && (!is_blocking || do_sleepers_arm(conn));
    if (earned || takes_token)
        && conn.raw[calls].load(Ordering::SeqCst) == 0
        && !conn.has(Limits::Fallback.with(Holders::ForkedDuringCall))
        && proof::may_trust(conn)
        && sink.begin_counting(fd)
    {
        half.count_read(sink.carrier_read);
        half.declare(match do_sleepers_arm(conn) {
            _ if takes_token => Trust::TakesTokens,
            true => Trust::ReadsAndArms,
            false => Trust::Reads,
        });
    }
}

/// O10: whether no thread can be asleep on the carrier without having armed. The connection is
/// attached, so that each thread which goes to sleep from here on arms. The library counts readers
/// inside the kernel (the caller has looked), and epoll sets have looked at the connection when it
/// was attached; only waits that began before are left, here or, where others have or had the
/// socket, anywhere.
fn do_sleepers_arm(conn: &Conn) -> bool {
    let by_others =
        Holders::Adopted | Holders::Passed | Holders::Uncertain | Holders::ForkedDuringCall;
    // The connection was on TCP for a while: a thread that began to wait then did not mark it.
    let others = by_others.with(Limits::Unmet);
    conn.stage() == Stage::Attached
        && early::is_nobody_asleep(conn.flags.word(), Waiters::Early.bit(), &FORK_PAGE.busy.early)
        && !conn.has(others)
        && !conn.has_segment_aside()
        && !sharing::may_family_hold(conn)
}

fn step(
    conn: &ConnGuard,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
    buffers: &mut Buffers,
    wish: Wish,
    (look, is_going_on): (Look, bool),
) -> Result<usize, Errno> {
    let broken = |Broken| {
        reset(conn);
        Errno::ECONNRESET
    };
    declare_trust(conn, conn.fd(), sink, half);
    let mut total = 0;
    for _ in 0..SWITCHES_PER_CALL {
        if sink.lane == Lane::Kernel {
            match kernel_read(conn, sink, row, half, buffers, wish).map_err(broken)? {
                KernelRead::Switched => continue,
                KernelRead::Got(0) => {
                    let is_cut = total == 0 && is_end_without_fin(conn, sink);
                    return if is_cut { report_reset(conn) } else { Ok(total) };
                }
                KernelRead::Got(n) if wish.peeks() => {
                    let more = peek_behind_carrier(conn, sink, half, buffers, n, wish);
                    return more.map(|more| n + more).map_err(broken);
                }
                KernelRead::Got(n) => {
                    if proof::is_heard(conn) {
                        proof::after_receive(conn, conn.fd());
                    }
                    count::received(conn, row, StatsLane::Kernel, n);
                    total += n;
                    // L7: a short read must mean that there is nothing more in any lane.
                    if buffers.left() == 0 {
                        return Ok(total);
                    }
                    if sink.pending(half).map_err(broken)?.is_none() {
                        return Ok(total);
                    }
                    continue;
                }
                // Behind a DisConn no payload comes on either lane, though its FIN may be lost.
                KernelRead::Failed(Errno::EAGAIN) if total > 0 || sink.engine.has_ended() => {
                    return Ok(total);
                }
                KernelRead::Failed(e) => {
                    conn.note_reported(e);
                    if total == 0 {
                        return Err(e);
                    }
                    conn.set_pending_error(e);
                    return Ok(total);
                }
            }
        }
        if look == Look::Carrier {
            // Wake bytes are consumed before anything else is read: with one unread, the kernel sends RST for a killed
            // process instead of FIN.
            lane::consume_wake_bytes(conn, conn.fd(), sink, half);
        }
        let switch = sink.pending(half).map_err(broken)?;
        sink.rx.set_limit(switch.map_or(u64::MAX, |s| s.fabric));
        let got = ring_read(conn, sink, row, half, buffers, wish)?;
        if got > 0 && wish.peeks() {
            return Ok(got + peek_behind_ring(conn, sink, switch, buffers, got, wish));
        }
        if got > 0 {
            count::received(conn, row, StatsLane::Sdp, got);
            total += got;
            if buffers.left() == 0 {
                return Ok(total);
            }
        }
        if let Some(switch) = switch {
            // The ring is drained up to the switch; wake bytes before it are consumed, then the
            // carrier goes on.
            let wake_bytes = switch.carrier.wrapping_sub(sink.carrier_read);
            if wake_bytes > i64::MAX as u64 {
                return Err(broken(Broken));
            }
            let consumed = carrier::consume(conn.fd(), wake_bytes);
            sink.carrier_read += consumed;
            if consumed == wake_bytes {
                sink.leave_ring(&row.sink.words, half);
                if (is_going_on || total > 0) && carrier::is_at_mark(conn.fd()) {
                    // A receive call never passes the urgent mark once it has bytes.
                    return Ok(total);
                }
                continue;
            }
            // The wake bytes are announced but not here yet (or the connection broke).
            if total > 0 {
                return Ok(total);
            }
            return match carrier::peek(conn.fd()).inspect_err(|e| conn.note_reported(*e)) {
                // A FIN comes behind all wake bytes. Without them it was a reset, whose error the
                // thread that consumed wake bytes may have taken; what the peer sent after the
                // switch is lost. While the connection stands, it is the program that reads no more
                // (SHUT_RD).
                Ok(0) if carrier::tcp_state(conn.fd()) != carrier::TCP_CLOSE => Ok(0),
                Ok(0) => report_reset(conn),
                Ok(_) | Err(Errno::EAGAIN) if sink.engine.has_ended() => Ok(0),
                Ok(_) => Err(Errno::EAGAIN),
                Err(e) => Err(e),
            };
        }
        if total > 0 {
            return Ok(total);
        }
        if sink.engine.has_ended() {
            return Ok(0);
        }
        if look == Look::Ring {
            return Err(Errno::EAGAIN);
        }
        match look_at_carrier(conn, sink, half)? {
            Found::Again => {}
            Found::Nothing => return Err(Errno::EAGAIN),
            Found::End => return Ok(0),
        }
    }
    Err(Errno::EAGAIN)
}

/// The kernel lane has ended, and no FIN is among the bytes that came: it was a reset. The kernel
/// reports a reset once; wake bytes that were sent or consumed, or a send that returned EPIPE
/// instead (E3), may have taken the report. Bytes that the peer had handed to its kernel may be
/// missing, so this is no end of stream.
fn is_end_without_fin(conn: &ConnGuard, sink: &SinkState) -> bool {
    let is_reported = conn.has(Limits::ResetReported);
    let Some(came) = carrier::ended_at(conn.fd()).filter(|_| !is_reported) else { return false };
    if sink.is_counted { came == sink.carrier_read } else { reset_note::is_noted(conn) }
}

/// The reset that a program has to learn of: once, then it is an end of stream.
fn report_reset(conn: &Conn) -> Result<usize, Errno> {
    if conn.has(Limits::ResetReported) {
        return Ok(0);
    }
    conn.set(Limits::ResetReported | Limits::PeerGone);
    Err(Errno::ECONNRESET)
}

/// Reads messages from the ring until the buffers are full or the ring is empty, up to its limit.
pub(super) fn ring_read(
    conn: &ConnGuard,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
    buffers: &mut Buffers,
    wish: Wish,
) -> Result<usize, Errno> {
    let mut walk = *buffers;
    let (mut got, mut messages) = (0, 0);
    let (_, mut looked) = sink.rx.cursors();
    if wish.peeks() {
        return Ok(match next_message(conn, sink, row)? {
            Some(_) => peek_ring(&mut onlooker(sink), walk, wish),
            None => 0,
        });
    }
    let mut is_written_down = true;
    while walk.left() > 0 {
        let Some(message) = next_message(conn, sink, row)? else { break };
        if !is_written_down {
            // The last one's room is the producer's while this one is copied. (Behind the last of all the
            // caller does it.)
            is_written_down = true;
            sink.store(&row.sink.words);
            // Padding before the message counts too: it can be most of the ring.
            let (_, head) = sink.rx.cursors();
            if wait::crosses_eighth(half.size(), looked, head) {
                looked = head;
                wait::room_freed(conn, half, head);
            }
        }
        let rest = sink.current_len - sink.current_offset;
        let n = walk.left().min(rest as usize) as u32;
        let mut landing = Landing { buffers: &mut walk, discard: wish.discards() };
        sink.rx.copy_out(message, sink.current_offset, n, &mut landing);
        got += n as usize;
        sink.current_offset += n;
        if sink.current_offset == sink.current_len {
            sink.current_len = 0;
            sink.current_offset = 0;
            sink.rx.release(message);
            is_written_down = false;
            messages += 1;
        }
    }
    *buffers = walk;
    count::messages_received(conn, messages);
    Ok(got)
}

/// The message at the head of the ring, with its header taken: messages without payload are dealt
/// with on the way.
#[inline]
fn next_message(conn: &Conn, sink: &mut SinkState, row: &Row) -> Result<Option<Received>, Errno> {
    if let Some(message) = sink.current() {
        return Ok(Some(message));
    }
    loop {
        match sink.rx.poll_receive() {
            Ok(Some(message)) => {
                if accept(conn, sink, row, message)? {
                    return Ok(Some(message));
                }
                sink.store(&row.sink.words);
            }
            Ok(None) => return Ok(None),
            Err(_) => {
                reset(conn);
                return Err(Errno::ECONNRESET);
            }
        }
    }
}

/// Takes a message's header: true when its payload is now the current message.
#[inline]
pub(crate) fn accept(
    conn: &Conn,
    sink: &mut SinkState,
    row: &Row,
    message: Received,
) -> Result<bool, Errno> {
    let parsed = Message::read(message.len, |first| sink.rx.copy_header(message, first));
    let taken = parsed
        .as_ref()
        .map_err(|e| *e)
        .and_then(|parsed| take_message(&mut sink.engine, parsed, &RowExchange(row)));
    if let Ok(parsed) = &parsed {
        publish::message(conn, false, &parsed.header);
    }
    let ack = sink.engine.ack(u16::MAX);
    row.ack.store(ack.to_word(), Ordering::Release);
    match taken {
        Ok(TakenMessage::Deliver(payload)) => {
            sink.current_len = message.len;
            sink.current_offset = payload.offset;
            Ok(true)
        }
        Ok(other @ (TakenMessage::Nothing | TakenMessage::EndOfStream | TakenMessage::Suspend)) => {
            if other == TakenMessage::Suspend {
                // Payload goes on by the carrier; whatever follows here breaks the protocol.
                conn.fall_back(Reason::PeerSwitched);
            }
            sink.rx.release(message);
            Ok(false)
        }
        // AbortConn, or a broken rule. Lane messages are not negotiated here.
        Ok(_) | Err(_) => {
            reset(conn);
            Err(Errno::ECONNRESET)
        }
    }
}

enum Found {
    /// Something changed: look again.
    Again,
    Nothing,
    End,
}

/// The ring is empty: consumes wake bytes, then asks the kernel for FIN and errors (E1 to E3, L5).
fn look_at_carrier(
    conn: &ConnGuard,
    sink: &mut SinkState,
    half: ShmHalf<'_>,
) -> Result<Found, Errno> {
    if lane::consume_wake_bytes(conn, conn.fd(), sink, half) > 0 {
        return Ok(Found::Again);
    }
    let seen = match carrier::peek(conn.fd()) {
        // A FIN comes behind all wake bytes: without them it was a reset, and the look for them has
        // taken its error.
        Ok(0)
            if !conn.has(Limits::ResetReported)
                && lane::has_counted_wake_bytes(sink.carrier_read, half)
                && carrier::tcp_state(conn.fd()) == carrier::TCP_CLOSE =>
        {
            Err(Errno::ECONNRESET)
        }
        seen => seen,
    };
    if has_news(sink, half) {
        return Ok(Found::Again);
    }
    match seen {
        Ok(0) => {
            conn.set(Limits::PeerGone);
            // E2: with bytes of ours unread, was it a close (TCP would have reset) or a half close?
            // One wake byte answers that: the kernel of a closed peer answers RST.
            if send::probe_peer(conn) {
                return Err(Errno::ECONNRESET);
            }
            Ok(Found::End)
        }
        Ok(_) => {
            let is_counted = lane::has_counted_wake_bytes(sink.carrier_read, half);
            if is_counted || !carrier::is_over(conn.fd()) {
                return Ok(if is_counted { Found::Again } else { Found::Nothing });
            }
            // The peer's end has come, so all that it sent is here. A wake byte that is not counted
            // now is that of a process killed between sending and counting it, and hides the end
            // behind it.
            if !has_news(sink, half) && !lane::has_counted_wake_bytes(sink.carrier_read, half) {
                sink.carrier_read += carrier::consume(conn.fd(), 1);
            }
            Ok(Found::Again)
        }
        Err(Errno::EAGAIN) => Ok(Found::Nothing),
        Err(Errno::ECONNRESET) => {
            conn.set(Limits::PeerGone);
            // E3: a reset that only unread wake bytes can have caused is an ordinary end.
            if send::everything_was_read(conn) {
                Ok(Found::End)
            } else {
                conn.set(Limits::ResetReported);
                Err(Errno::ECONNRESET)
            }
        }
        Err(e) => Err(e).inspect_err(|e| conn.note_reported(*e)),
    }
}

/// Whether the ring or the log has something new for this half.
pub(crate) fn has_news(sink: &SinkState, half: ShmHalf<'_>) -> bool {
    let (scan, _) = sink.rx.cursors();
    half.position(What::Bytes) != scan || half.written() != sink.followed
}

/// Whether the ring holds messages that were not taken, whatever lane the half is on.
pub(crate) fn ring_has_news(sink: &SinkState, half: ShmHalf<'_>) -> bool {
    let (scan, _) = sink.rx.cursors();
    half.position(What::Bytes) != scan
}

/// Follows the log as far as that is possible without delivering bytes; how many ring bytes (headers
/// included) are in the way.
pub(crate) fn follow_pending(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    half: ShmHalf<'_>,
) -> u64 {
    for _ in 0..PENDING_MAX {
        let Ok(Some(switch)) = sink.pending(half) else { break };
        match switch.to {
            Lane::Sdp => {
                let Ok(consumed) = sink.consumed(fd) else { break };
                if consumed != switch.carrier {
                    break; // carrier bytes come first, then the ring
                }
                sink.carrier_read = consumed;
                if let Some(row) = conn.row().filter(|row| token::is_awaited(row)) {
                    if !matches!(token::take(conn, fd, sink, row, half), Ok(true)) {
                        break;
                    }
                    continue;
                }
                sink.follow(half, Lane::Sdp);
            }
            Lane::Kernel => {
                let (_, head) = sink.rx.cursors();
                if head != switch.fabric || sink.current_len != 0 {
                    break;
                }
                let wake_bytes = switch.carrier.wrapping_sub(sink.carrier_read);
                if wake_bytes > i64::MAX as u64 {
                    break;
                }
                sink.carrier_read += carrier::consume(fd, wake_bytes);
                if sink.carrier_read != switch.carrier {
                    break;
                }
                sink.follow(half, Lane::Kernel);
            }
        }
    }
    let (_, head) = sink.rx.cursors();
    half.position(What::Bytes).wrapping_sub(head)
}

//! Ring bytes that a program without the library is about to need: they go back into the kernel's
//! stream.
//!
//! Called by [`super::demote`] and [`super::incompatible`], and by `lifecycle` where another
//! process goes on with a connection.
//!
//! After a connection left the SDP lane, its inbound ring may still hold bytes. Our own receive calls
//! deliver them first; stdio, an executed image or a process that gets the descriptor would miss them.
//! Where the peer's socket can be had (`pidfd_getfd`, its inode proven by the kernel's own tables) the
//! bytes are sent once more, through that socket, and arrive in ours in stream order.
//!
//! # Order
//! The half's gate is held from the switch to the end of the push. The producer accepts switches
//! and sends on the carrier only under the gate, so that nothing newer gets in between, and the
//! number of bytes that the kernel has taken from the peer's socket is fixed meanwhile.
//!
//! * Usually the ring holds the oldest unread bytes and the carrier nothing. Then the push is all
//!   or nothing: if the kernel does not take everything within [`PATIENCE_NS`], the bytes that it
//!   took are read back and thrown away, and the ring still has them all.
//! * Where unread carrier bytes lie before or behind the ring's, everything that is unread is collected
//!   in memory and sent again in order, if the peer's send queue has memory for it. If the kernel does
//!   not take it all the same, the connection is reset: an error that the program sees, instead of
//!   bytes out of order.
//!
//! Without the peer's socket, or without memory there, nothing is pushed. Where the process goes on
//! itself, the bytes stay readable through the library (reason `handover-stuck`); where the next
//! reader has no way to them, a relay ([`crate::migration::relay`]) replaces the carrier.
//!
//! Where that is not possible either, the next reader must not take the kernel's end of the stream
//! for its end: an image gets an error in the connection's place ([`cut_off`]); any other caller's
//! call fails, and nothing has been passed on.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_fabric_shm::identity;
use sdp_fabric_shm::link::{Intent, PENDING_MAX, ResetNote, ShmHalf, What};
use sdp_rdma::fabric::{ReceiveQueue, Received, Scatter};
use sdp_shm::family::Row;
use sdp_stats::{Fabric, Reason, trace::Kind};
use sdp_sys::{OwnedFd, fd, filter, memory::Zeros, sys, time::monotonic_ns};

use crate::{
    conn::{Conn, ConnGuard, Half, Holders, Limits, RowFlag, carrier, publish},
    datapath::{
        lane::{Lane, SinkState, Switch},
        leave, receive,
        reset::reset,
        token,
    },
    hosts::{self, Handed},
    migration::{
        demote,
        relay::{self, Relay},
    },
    process,
};

/// How long one hand-over waits in all for the kernel to take or to deliver bytes. The producer stands
/// still meanwhile, and waits longer than that.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How long a thread waits at most for another one that hands a fork's copy back, and how long apart it looks.
const PERMIT_NS: u64 = 15_000_000_000;
const PERMIT_SLEEP_NS: i64 = 500_000;
/// Such sleeps in which that one waits for others to let go of the connection.
const ALONE_LOOKS: u32 = 100;
/// How long it may take to get back bytes that were pushed in vain: without them the connection is
/// lost.
const ROLL_BACK_NS: u64 = 2_000_000_000;
const _: () = assert!(PATIENCE_NS + ROLL_BACK_NS < crate::datapath::send::GATE_TIMEOUT_NS);
/// A hand-over may hold a half's lock twice without a pause that others could use.
const _: () = assert!(
    2 * (crate::datapath::send::GATE_TIMEOUT_NS + PATIENCE_NS + ROLL_BACK_NS)
        < sdp_shm::lock::TIMEOUT_NS
);
/// One wait for the carrier.
const SLEEP_NS: i64 = 10_000_000;
/// Most unread bytes that are collected in memory.
const COLLECT_MAX: u64 = 64 << 20;

/// How a hand-over ended.
enum Outcome {
    /// Everything unread is in the kernel's stream.
    Done,
    /// Nothing has changed: the ring still has its bytes.
    Stuck,
    /// Bytes were taken out that can be put nowhere.
    Lost,
}

/// The process that reads a connection next, by the kernel's stream alone.
#[derive(Clone, Copy)]
pub(crate) enum NextReader {
    /// No new one: this process, through libc.
    Ourselves,
    /// This process, by a call that does not look at the connection again: its number may come to
    /// name something else.
    Call,
    /// This process, through libc: a fork gave it a copy of a stream to another host. Where the other
    /// end does not answer, no other copy goes on.
    Copy,
    /// Another process, or libc for good.
    Stranger,
    /// The image that this process is about to become, by this number. It need not come to that.
    Image(c_int),
}

impl NextReader {
    /// This process goes on with the connection.
    const fn is_this_process(self) -> bool {
        matches!(self, Self::Ourselves | Self::Call | Self::Copy)
    }
}

/// [`leave_to`] ourselves.
pub(crate) fn leave(conn: &Conn, fd: c_int, reason: Reason) -> bool {
    leave_to(conn, fd, reason, NextReader::Ourselves)
}

/// Before a wait for `fd`, which is a use of it: a stream to another host of which a fork gave this process a copy becomes
/// plain TCP, or its number a relay's. Until then nobody can say whether there is something to read. A load where there
/// is no such stream. Slow.
#[inline]
pub(crate) fn claim_copy(fd: c_int) {
    if hosts::has_copies() {
        claim(fd);
    }
}

#[cold]
fn claim(fd: c_int) {
    if process::is_ours()
        && let Some(conn) = ConnGuard::new(fd, Half::Receive)
    {
        let _ = settle_copy(conn);
    }
}

/// Before a use of a stream to another host: of a fork's copy it becomes plain TCP, or its number a relay's. One thread of
/// the process sees to that. The others wait, and do not use the connection meanwhile: a relay takes the place of one that
/// no other thread uses. `None`: the number names something else now. Slow, where there is something to do.
pub(crate) fn settle_copy(mut held: ConnGuard) -> Option<ConnGuard> {
    let (fd, half) = (held.fd(), held.half());
    let end = monotonic_ns() + PERMIT_NS;
    while hosts::is_unsettled(&held) {
        let permit = hosts::HandBackPermit::take(&held);
        if permit.is_some() || monotonic_ns() >= end {
            if hosts::is_to_hand(&held) {
                leave_to(&held, fd, Reason::Shared, NextReader::Copy);
            }
            drop(permit);
            return held.is_current().then_some(held);
        }
        drop(held);
        sdp_sys::time::sleep(PERMIT_SLEEP_NS);
        held = ConnGuard::new(fd, half)?;
    }
    Some(held)
}

/// Moves a connection to the kernel lane for good, for a reader that knows only the kernel's
/// stream. True when that stream has all unread bytes, and takes the next bytes sent.
pub(crate) fn leave_to(conn: &Conn, fd: c_int, reason: Reason, next: NextReader) -> bool {
    if hosts::has(conn) {
        if hand_back(conn, fd, reason, next) {
            return true;
        }
        if matches!(next, NextReader::Image(_)) {
            reset(conn);
        }
        return next.is_this_process();
    }
    if conn.link().is_some() {
        publish::record(conn, Kind::HandOver, None, Some(reason), Some(Fabric::Shm));
    }
    let is_whole = leave_whole(conn, fd, reason, next);
    if !is_whole && let NextReader::Image(number) = next {
        cut_off(conn, fd, number);
    }
    is_whole
}

/// [`leave_to`] of a connection to another host. False: it was reset.
fn hand_back(conn: &Conn, fd: c_int, reason: Reason, next: NextReader) -> bool {
    // Threads that wait for a copy to be handed back look at the connection now and then.
    let looks = if matches!(next, NextReader::Copy) { ALONE_LOOKS } else { 1 };
    let may_relay = is_replaceable(conn, next)
        && (0..looks).any(|look| {
            if look > 0 {
                sdp_sys::time::sleep(PERMIT_SLEEP_NS);
            }
            may_be_replaced(conn, next)
        });
    let goes_on = next.is_this_process();
    let leave = |may_relay| hosts::hand_back(conn, fd, reason, may_relay, goes_on);
    match leave(may_relay) {
        Handed::Unanswered => {
            // Where no relay is to be had the other end has the rest of its time.
            relay::guarded(conn, fd).unwrap_or_else(|| leave(false) == Handed::Back)
        }
        handed => handed == Handed::Back,
    }
}

/// The connection that an image is to have cannot be handed over: it finds a connection that was
/// reset. So does the other end, unless another process goes on with this one.
pub(crate) fn cut_off(conn: &Conn, fd: c_int, number: c_int) {
    if is_ours_alone(conn) {
        if let Some(link) = conn.link() {
            link.own().note_reset(ResetNote::Resets);
        }
        carrier::reset_on_close(fd); // by the image, which has no number of it any more
    }
    if !relay::give_error(conn, fd, number) {
        reset(conn);
    }
}

fn leave_whole(conn: &Conn, fd: c_int, reason: Reason, next: NextReader) -> bool {
    if !demote::begin(conn, reason) {
        return true;
    }
    let sends_through_kernel = leave::outbound_for_kernel(conn, reason);
    let outcome = leave::inbound(conn, fd, |sink, row, half| {
        let outcome = hand_over(conn, fd, sink, row, half);
        if let Outcome::Lost = outcome {
            // Before lock and gate are given back: no thread of this process reads or sends behind
            // the missing bytes.
            reset(conn);
        }
        (outcome, ahead(fd, sink, half).filter(|room| *room <= COLLECT_MAX))
    });
    // A sender that waits for room in the ring finds the carrier now.
    conn.signal_peer();
    match outcome {
        Ok((Outcome::Done, _)) => {
            if !sends_through_kernel {
                conn.note_reason(Reason::HandoverStuck);
                if !matches!(next, NextReader::Ourselves | NextReader::Call) {
                    return false; // what a stranger sends would be taken for wake bytes
                }
            }
            if matches!(reason, Reason::Exec | Reason::Passed | Reason::StandardDescriptor) {
                offer_new_life(conn);
            }
            true
        }
        Ok((Outcome::Stuck, room)) => {
            let is_gone = is_peer_gone(conn, fd);
            conn.note_reason(if is_gone { Reason::Orphaned } else { Reason::HandoverStuck });
            match next {
                _ if conn.has(Limits::Hostile) => false,
                NextReader::Ourselves | NextReader::Call => false,
                _ if may_be_replaced(conn, next) => {
                    room.is_some_and(|room| relay(conn, fd, room as usize))
                }
                NextReader::Image(number) => is_gone && give_copy(conn, fd, number),
                _ => false,
            }
        }
        Ok((Outcome::Lost, _)) | Err(_) => false,
    }
}

/// Whether a relay may take the carrier's place: no other thread or process uses it meanwhile.
fn may_be_replaced(conn: &Conn, next: NextReader) -> bool {
    // Threads end with the image, if it is replaced.
    is_replaceable(conn, next) && (matches!(next, NextReader::Image(_)) || conn.users() <= 1)
}

/// The same, whatever other threads do at this moment.
fn is_replaceable(conn: &Conn, next: NextReader) -> bool {
    let is_in_a_set = || conn.registrations.load(Ordering::SeqCst) != 0;
    match next {
        NextReader::Ourselves => false,
        NextReader::Copy => is_in_sight(conn) && !is_in_a_set(),
        NextReader::Stranger => is_ours_alone(conn) && !is_in_a_set(),
        // Another thread may come to use the connection at any moment, and one that sleeps in a poll
        // is no user.
        NextReader::Call => {
            sdp_sys::pid::is_single_threaded() && is_ours_alone(conn) && !is_in_a_set()
        }
        NextReader::Image(_) => is_ours_alone(conn),
    }
}

/// Whether no other process has the carrier.
fn is_ours_alone(conn: &Conn) -> bool {
    let is_sole = match (conn.row_index(), process::family()) {
        (Some(row), Some((family, slot))) => !family.is_held_by_others(slot, row),
        _ => false,
    };
    is_sole && is_in_sight(conn) && process::is_ours()
}

/// Whether every process that has the carrier uses the library.
fn is_in_sight(conn: &Conn) -> bool {
    let is_out_of_sight =
        conn.row().is_none_or(|row| row.flags.load(Ordering::SeqCst).has(RowFlag::OutOfSight));
    !is_out_of_sight && !conn.has(Holders::Uncertain | Holders::Passed)
}

/// A private connection takes the carrier's place, with the bytes unread in the ring. False: not to
/// be had.
fn relay(conn: &Conn, fd: c_int, room: usize) -> bool {
    let Some(mut relay) = Relay::new(fd, room) else { return false };
    let end = monotonic_ns() + PATIENCE_NS;
    let gathered = leave::inbound(conn, fd, |sink, row, half| {
        crate::datapath::takeover::handing(&row.sink.words);
        let is_whole = take_out(conn, fd, sink, row, half, &mut relay.unread, None, end);
        if !is_whole {
            reset(conn); // likewise
        }
        is_whole
    });
    let is_done = gathered == Ok(true) && relay.replace(conn);
    if !is_done {
        reset(conn);
    }
    is_done
}

/// The other end is gone, and another process has this one too: a private connection with a copy of
/// all that is unread takes the place of the image's number. The others read on as if there were no
/// image.
fn give_copy(conn: &Conn, fd: c_int, number: c_int) -> bool {
    let copied = leave::inbound(conn, fd, |sink, row, half| {
        // Nothing of a ring is a program's before the token was right (L13).
        let is_pending = !matches!(sink.pending(half), Ok(None));
        if is_pending && token::is_awaited(row) { None } else { copy_out(fd, sink, half) }
    });
    match copied {
        Ok(Some(copy)) => relay::give_copy(conn, fd, number, &copy, ends_in_reset(conn, fd)),
        _ => false,
    }
}

/// Whether the end that follows is a reset.
fn ends_in_reset(conn: &Conn, fd: c_int) -> bool {
    carrier::readiness(fd, 0) & libc::POLLERR != 0 || crate::datapath::send::has_reset(conn)
}

/// Everything unread, in stream order; it stays where it is. `None`: no memory, or not everything has come.
fn copy_out(fd: c_int, sink: &SinkState, half: ShmHalf<'_>) -> Option<Heap> {
    if !carrier::is_over(fd) {
        return None; // who is gone left bytes behind that the kernel is still sending
    }
    let queued = carrier::queued(fd).ok().filter(|queued| *queued <= COLLECT_MAX)? as usize;
    let mut on_carrier = Heap::shared(queued)?;
    on_carrier.peek(fd, queued)?;
    let mut copy = Heap::shared(queued + half.size() as usize)?;
    let first = sink.consumed(fd).ok()?;
    let mut at = first;
    let mut walk = *sink;
    walk.rx = sink.rx.onlooker();
    for _ in 0..=PENDING_MAX {
        let pending = walk.pending(half).ok()?;
        match (walk.lane, pending) {
            (Lane::Kernel, pending) => {
                let from = usize::try_from(at.checked_sub(first)?).ok()?;
                let rest = on_carrier.bytes().get(from..)?;
                let Some(switch) = pending else {
                    return copy.append(rest).then_some(copy);
                };
                let len = usize::try_from(switch.carrier.checked_sub(at)?).ok()?;
                if !copy.append(rest.get(..len)?) {
                    return None;
                }
            }
            (Lane::Sdp, Some(switch)) => {
                walk.rx.set_limit(switch.fabric);
                while let Some((message, offset)) = receive::next_payload(&mut walk) {
                    let len = message.len.checked_sub(offset)?;
                    walk.rx.copy_out(message, offset, len, &mut copy);
                    if copy.overflowed {
                        return None;
                    }
                }
                let (_, head) = walk.rx.cursors();
                if head != switch.fabric {
                    return None; // broken, or a message that ends elsewhere
                }
            }
            (Lane::Sdp, None) => return None,
        }
        let switch = pending?;
        at = switch.carrier;
        walk.carrier_read = at;
        walk.lane = switch.to;
        walk.followed = walk.followed.wrapping_add(1);
    }
    None
}

/// Whether no process has the other end open any more.
fn is_peer_gone(conn: &Conn, fd: c_int) -> bool {
    let Some(tuple) = conn.name(fd) else { return false };
    match identity::diag(&tuple.reversed()) {
        Ok(None) => true,
        Ok(Some(peer)) => peer.inode == 0 && peer.state != TCP_ESTABLISHED,
        Err(_) => false,
    }
}

const TCP_ESTABLISHED: u8 = 1;

/// At most how many bytes lie before the last switch that was not followed yet.
fn ahead(fd: c_int, sink: &SinkState, half: ShmHalf<'_>) -> Option<u64> {
    let consumed = sink.consumed(fd).ok()?;
    let mut walk = *sink;
    let mut last = consumed;
    for _ in 0..=PENDING_MAX {
        let Some(switch) = walk.pending(half).ok()? else { break };
        last = switch.carrier;
        walk.lane = switch.to;
        walk.followed = walk.followed.wrapping_add(1);
    }
    let ring = half.size();
    (walk.lane == Lane::Kernel).then_some(last.checked_sub(consumed)?.checked_add(ring)?)
}

/// The next process with the connection may earn lanes of its own
/// ([`crate::migration::repromote`]).
fn offer_new_life(conn: &Conn) {
    let _ = crate::datapath::send::with_source(conn, |source, _, link, _| {
        if source.lane == Lane::Kernel {
            link.own().intend(Intent::PassedOn);
        }
        Ok(())
    });
}

/// Most bytes that [`push`] gives the kernel with one call: of a longer one it takes more than its buffer holds, which comes
/// back slowly where the receive buffer is small.
const PUSHED: usize = 16 * 1024;

/// Under the sink's lock and the half's gate.
fn hand_over(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
) -> Outcome {
    let end = monotonic_ns() + PATIENCE_NS;
    receive::follow_pending(conn, fd, sink, half);
    let switch = match sink.pending(half) {
        Ok(None) if sink.lane == Lane::Kernel => return Outcome::Done,
        Ok(Some(switch)) => switch,
        _ => return Outcome::Stuck,
    };
    let Some(peer) = peer_socket(conn, fd) else { return Outcome::Stuck };
    let Ok(sent) = carrier::sent(peer.raw()) else { return Outcome::Stuck };
    crate::datapath::takeover::handing(&row.sink.words);
    if switch.to == Lane::Kernel && sent == switch.carrier {
        push(conn, fd, sink, row, half, switch, &peer, end)
    } else {
        collect(conn, fd, sink, row, half, sent, &peer, end)
    }
}

/// The ring has all that is unread: wake bytes are consumed, then its bytes are sent through the
/// peer's socket.
#[allow(clippy::too_many_arguments, reason = "one call, from where all of it is at hand")]
fn push(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
    switch: Switch,
    peer: &OwnedFd,
    end: u64,
) -> Outcome {
    if !consume_wake_bytes(fd, sink, switch, end) {
        return Outcome::Stuck;
    }
    sink.rx.set_limit(switch.fabric);
    // A walk that frees nothing: until all of it has been sent, all of it stays in the ring.
    let mut walk = *sink;
    walk.rx = sink.rx.onlooker();
    let mut pushed = 0;
    let mut all = true;
    while let Some((message, offset)) = receive::next_payload(&mut walk) {
        let mut offset = offset;
        while all && offset < message.len {
            let piece = walk.rx.piece(message, offset);
            let piece = piece.get(..PUSHED.min(piece.len())).unwrap_or(piece);
            let n = send(peer, piece, end);
            offset = offset.saturating_add(n as u32);
            pushed += n as u64;
            all = n == piece.len();
        }
        if !all {
            break;
        }
    }
    if !all {
        // The way back has a timeout of its own: bytes that the peer's kernel still holds come as
        // soon as there is room.
        let end = monotonic_ns().saturating_add(ROLL_BACK_NS);
        return if consume(fd, pushed, end) == pushed { Outcome::Stuck } else { Outcome::Lost };
    }
    if !take_messages(conn, sink, row, |_, _, _| true) {
        return Outcome::Lost;
    }
    sink.follow(half, Lane::Kernel);
    Outcome::Done
}

/// Takes everything unread, in stream order, into memory, and sends it through the peer's socket.
/// `sent`: all that the kernel has taken from there.
#[allow(clippy::too_many_arguments, reason = "one call, from where all of it is at hand")]
fn collect(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
    sent: u64,
    peer: &OwnedFd,
    end: u64,
) -> Outcome {
    let consumed = sink.consumed(fd).ok();
    let room = consumed.and_then(|c| sent.checked_sub(c)).map(|unread| unread + half.size());
    let Some(room) = room.filter(|room| *room <= COLLECT_MAX) else { return Outcome::Stuck };
    // The carrier's bytes fit in there again; the ring's bytes come on top, with the kernel's
    // overhead. Once bytes have been taken out there is no way back, so this is asked before.
    let (_, head) = sink.rx.cursors();
    let ringed = half.position(What::Bytes).wrapping_sub(head);
    if carrier::send_memory(peer.raw()) < ringed.saturating_mul(2) {
        return Outcome::Stuck;
    }
    let Some(mut heap) = Heap::new(room as usize) else { return Outcome::Stuck };
    if take_out(conn, fd, sink, row, half, &mut heap, Some(sent), end) && heap.send(peer, end) {
        Outcome::Done
    } else {
        Outcome::Lost
    }
}

/// Follows the lanes as far as they are written, and takes everything on the way. `sent`: all that
/// the kernel has taken at the other end, if the bytes on the kernel lane in the end are to be
/// taken too. False: bytes are lost.
#[allow(clippy::too_many_arguments, reason = "one call, from where all of it is at hand")]
fn take_out(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
    heap: &mut Heap,
    sent: Option<u64>,
    end: u64,
) -> bool {
    for _ in 0..=PENDING_MAX {
        let Ok(pending) = sink.pending(half) else { return false };
        match (sink.lane, pending) {
            (Lane::Kernel, pending) => {
                let Some(upto) = pending.map(|switch| switch.carrier).or(sent) else { return true };
                let Ok(consumed) = sink.consumed(fd) else { return false };
                let Some(wanted) = upto.checked_sub(consumed) else { return false };
                if !heap.read(fd, wanted, end) {
                    return false;
                }
                if pending.is_none() {
                    return true;
                }
                sink.carrier_read = upto;
                if token::is_awaited(row) {
                    if !matches!(token::take(conn, fd, sink, row, half), Ok(true)) {
                        return false;
                    }
                    continue;
                }
                sink.follow(half, Lane::Sdp);
            }
            (Lane::Sdp, Some(switch)) => {
                sink.rx.set_limit(switch.fabric);
                let taken = take_messages(conn, sink, row, |sink, message, offset| {
                    sink.rx.copy_out(message, offset, message.len - offset, heap);
                    !heap.overflowed
                });
                if !taken || !consume_wake_bytes(fd, sink, switch, end) {
                    return false;
                }
                sink.follow(half, Lane::Kernel);
            }
            (Lane::Sdp, None) => return false,
        }
    }
    false
}

/// Takes all messages up to the limit out of the ring; `each` gets payload and may say no.
#[inline(never)]
fn take_messages(
    conn: &Conn,
    sink: &mut SinkState,
    row: &Row,
    mut each: impl FnMut(&SinkState, Received, u32) -> bool,
) -> bool {
    loop {
        let message = match sink.current() {
            Some(message) => message,
            None => match sink.rx.poll_receive() {
                Ok(Some(message)) => match receive::accept(conn, sink, row, message) {
                    Ok(true) => message,
                    Ok(false) => continue,
                    Err(_) => return false,
                },
                Ok(None) => return true,
                Err(_) => return false,
            },
        };
        if !each(sink, message, sink.current_offset) {
            return false;
        }
        sink.current_len = 0;
        sink.current_offset = 0;
        sink.rx.release(message);
    }
}

/// Takes the wake bytes before a switch to the kernel lane; waits for those that are still on their
/// way.
fn consume_wake_bytes(fd: c_int, sink: &mut SinkState, switch: Switch, end: u64) -> bool {
    let wake_bytes = switch.carrier.wrapping_sub(sink.carrier_read);
    if wake_bytes > i64::MAX as u64 {
        return false;
    }
    let consumed = consume(fd, wake_bytes, end);
    sink.carrier_read = sink.carrier_read.wrapping_add(consumed);
    consumed == wake_bytes
}

/// Takes `n` bytes off the carrier and throws them away; how many, until `end`.
fn consume(fd: c_int, n: u64, end: u64) -> u64 {
    let mut consumed = carrier::consume(fd, n);
    while consumed < n && wait(fd, libc::POLLIN, end) {
        consumed += carrier::consume(fd, n - consumed);
    }
    consumed
}

/// Sends through the peer's socket; how many bytes the kernel took until `end`.
fn send(peer: &OwnedFd, bytes: &[Cell<u8>], end: u64) -> usize {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: borrowed for the call; the kernel only reads them, and the peer may write them
        // meanwhile.
        let sent =
            unsafe { sys!(libc::SYS_sendto, peer.raw(), rest.as_ptr(), rest.len(), flags, 0, 0) };
        match sent {
            Ok(n) if n > 0 => done += n,
            Err(sdp_sys::errno::Errno::EAGAIN) if wait(peer.raw(), libc::POLLOUT, end) => {}
            _ => break,
        }
    }
    done
}

/// Waits a little for a descriptor. False when there is no time left, or nothing to wait for.
fn wait(fd: c_int, events: i16, end: u64) -> bool {
    if monotonic_ns() >= end {
        return false;
    }
    // A handler that interrupts it is ours.
    let ready = fd::poll_one(fd, events, Some(SLEEP_NS)).unwrap_or(0);
    ready & (libc::POLLERR | libc::POLLHUP) == 0
}

/// Memory for the bytes of one [`take_out`].
pub(crate) struct Heap {
    memory: Zeros,
    used: usize,
    overflowed: bool,
}

impl Heap {
    pub(crate) fn new(size: usize) -> Option<Self> {
        Some(Self { memory: Zeros::private(size)?, used: 0, overflowed: false })
    }

    /// Memory that a forked process sees, too.
    pub(crate) fn shared(size: usize) -> Option<Self> {
        // SAFETY: the forked process, a relay, reads as many bytes as it is told, after this one
        // has stopped writing.
        Some(Self { memory: unsafe { Zeros::shared(size) }?, used: 0, overflowed: false })
    }

    /// The first bytes, written by another process.
    pub(crate) fn first(&self, count: u64) -> &[u8] {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.memory.len());
        self.memory.get(..count).unwrap_or(&[])
    }

    /// The free part.
    pub(crate) fn free(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.used..).unwrap_or(&mut [])
    }

    /// Reads `n` bytes of the carrier. False when they did not come until `end`, or do not fit.
    fn read(&mut self, fd: c_int, n: u64, end: u64) -> bool {
        let mut left = match usize::try_from(n) {
            Ok(n) if n <= self.room() => n,
            _ => return false,
        };
        while left > 0 {
            let to = self.free().get_mut(..left).unwrap_or(&mut []);
            match fd::receive(fd, to, libc::MSG_DONTWAIT) {
                Ok(n) if n > 0 => {
                    self.used += n;
                    left -= n;
                }
                Err(sdp_sys::errno::Errno::EAGAIN) if wait(fd, libc::POLLIN, end) => {}
                _ => return false,
            }
        }
        true
    }

    /// The first `n` bytes that wait on the carrier, which keeps them. `None`: they are not there.
    fn peek(&mut self, fd: c_int, n: usize) -> Option<()> {
        if self.used != 0 {
            return None;
        }
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let got = fd::receive(fd, self.memory.get_mut(..n)?, flags);
        if n > 0 && got != Ok(n) {
            return None;
        }
        self.used = n;
        Some(())
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(to) = self.free().get_mut(..bytes.len()) else { return false };
        to.copy_from_slice(bytes);
        self.used += bytes.len();
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(..self.used).unwrap_or(&[])
    }

    fn send(&mut self, peer: &OwnedFd, end: u64) -> bool {
        let bytes = self.memory.get_mut(..self.used).unwrap_or(&mut []);
        send(peer, Cell::from_mut(bytes).as_slice_of_cells(), end) == self.used
    }

    fn room(&self) -> usize {
        self.memory.len() - self.used
    }
}

/// Copies ring bytes. By itself: it is long where it is put in line.
#[inline(never)]
fn copy(from: &[Cell<u8>], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.get();
    }
}

impl Scatter for Heap {
    fn room(&self) -> usize {
        Self::room(self)
    }

    fn accept(&mut self, src: &[Cell<u8>]) {
        let Some(to) = self.free().get_mut(..src.len()) else {
            self.overflowed = true;
            return;
        };
        copy(src, to);
        self.used += src.len();
    }
}

/// The other end's socket, if this process may have it and it is provably that. Under a filter this
/// does not ask: the filters of service managers refuse `pidfd_getfd`, or kill for it.
fn peer_socket(conn: &Conn, fd: i32) -> Option<OwnedFd> {
    if filter::is_there() {
        return None;
    }
    let number = conn.link()?.peer().socket().checked_sub(1)?;
    let socket = conn.peer_descriptor(number)?;
    let tuple = conn.name(fd)?;
    let peer = identity::diag(&tuple.reversed()).ok()??;
    (peer.inode != 0 && fd::inode(socket.raw()).ok()? == peer.inode).then_some(socket)
}

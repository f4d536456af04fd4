//! The state that a reader or writer of a connection to another host would find: for readiness, and
//! for requests that ask.

use core::{pin::Pin, sync::atomic::Ordering};

use libc::c_int;
use sdp_remote::{Readable, ReceiveContext, RecvError};
use sdp_stats::{Counter, Direction};
use sdp_sys::time::monotonic_ns;

use super::{
    carrier_io::{NOT_ASKED, Socket},
    device,
    forked::{Use, claim},
    leaving::{answer_leave, foresee_return, take_return},
    pair::{self, Pair, Receiving, Sending},
    places,
    show::{note_arrival, note_lane},
    take_messages, zcopy,
};
use crate::{
    conn::{self, Conn, ConnGuard, Half, Limits, carrier},
    datapath::wait,
    process,
    wake::{call_guard::CallGuard, doorbell, spin},
};

/// How long a reader waits for the end of a queue pair whose carrier has ended.
const CUT_NS: u64 = 1_000_000_000;
/// Bytes of the carrier that FIONREAD counts at most, and without a mapping.
const COUNTED_MOST: u64 = 8 << 20;
const COUNTED_FEW: usize = 4096;
/// How often, and how long apart, one looks whether another thread has done with the receiving half.
const BUSY_LOOKS: u32 = 1000;
const BUSY_SLEEP_NS: i64 = 100_000;

/// Whether messages are there that were not taken.
pub(super) fn has_messages(conn: &Conn) -> bool {
    let is_offered = |(_, pair)| zcopy::is_offered(conn, pair);
    !matches!(look_for(conn, false), Some(Found::Nothing)) || pair::of(conn).is_some_and(is_offered)
}

/// The result for a reader.
pub(crate) enum Found {
    /// Nothing now.
    Nothing,
    /// Bytes, and where the last of them stands in the stream.
    Bytes(u64),
    /// The end of the stream, or an error.
    End,
}

/// Looks at both roads; markers that are next are taken. `None`: another thread is at it; never
/// waits.
pub(crate) fn look(conn: &Conn) -> Option<Found> {
    look_for(conn, true)
}

/// [`look`]. `refuses`: nobody is about to READ what the peer advertises.
fn look_for(conn: &Conn, refuses: bool) -> Option<Found> {
    let Some((_, pair)) = pair::of(conn) else { return Some(Found::End) };
    if pair.is_dead() {
        return Some(Found::End);
    }
    if !claim(conn, pair, Use::Look) {
        // It is lost, or in a copy: a call finds out. Or another process is handing it back.
        let asks = conn.has(Limits::Hostile) || pair.is_copy();
        return Some(if asks { Found::End } else { Found::Nothing });
    }
    if pair.is_plain() {
        return Some(conn::number_of(conn).map_or(Found::End, |fd| look_plainly(conn, fd)));
    }
    let found = pair.try_receiving(conn, |receiving| {
        let Receiving { inbound, rx, cut_ns, shown, .. } = receiving;
        // It has not met: only the kernel's word counts.
        let (Some(inbound), Some(fd)) = (inbound.as_mut(), conn::number_of(conn)) else {
            return Found::Nothing;
        };
        if pair.is_plain() {
            return look_plainly(conn, fd);
        }
        let mut socket = Socket::new(conn, fd);
        let mut io = ReceiveContext { rx: rx.as_mut(), carrier: &mut socket, shared: &pair.shared };
        let mut found = inbound.look(&mut io);
        if inbound.has_return() {
            match take_return(conn, pair, inbound, fd) {
                Ok(()) => found = inbound.look(&mut io),
                Err(RecvError::WouldBlock) => {}
                Err(lost) => found = Err(lost),
            }
        }
        note_arrival(conn, shown, inbound.is_on_sdp(), false, &pair.shared);
        if refuses && inbound.is_offered(&pair.shared) {
            inbound.refuse(&pair.shared);
        }
        if pair.shared.peer_leaves() && matches!(found, Ok(Readable::Bytes(_))) {
            foresee_return(conn, pair, inbound, &mut io);
        }
        match found {
            Ok(Readable::Bytes(n)) => Found::Bytes(inbound.stream().wrapping_add(n)),
            Ok(Readable::End) | Err(_) => Found::End,
            Ok(Readable::Nothing) if pair.is_shut.load(Ordering::Acquire) => Found::End,
            Ok(Readable::Nothing)
                if inbound.is_on_sdp() && carrier::is_over(fd) && is_cut_for_good(cut_ns) =>
            {
                Found::End
            }
            Ok(Readable::Nothing) => Found::Nothing,
        }
    });
    if pair.shared.peer_leaves() {
        // A thread that looks may be about to sleep, and the peer waits for RAW, or for the bytes
        // that it gave back.
        answer_leave(conn, pair);
    }
    // The place may have gone meanwhile.
    if found.is_none() && pair::of(conn).is_none() { Some(Found::End) } else { found }
}

/// Whether a sender that got EAGAIN for lack of room would get something away now, or is to be told
/// of an end. Never waits: what another thread is at counts as an event.
pub(crate) fn may_send(conn: &Conn) -> bool {
    let Some((_, pair)) = pair::of(conn) else { return true };
    if pair.is_dead() || pair.is_plain() || !claim(conn, pair, Use::Look) {
        return true;
    }
    // The peer's words of room come as messages.
    let takes = |receiving: &mut Receiving| take_messages(conn, pair, receiving);
    if pair.try_receiving(conn, takes) != Some(false) {
        return true; // another thread has the half, or the peer broke a rule
    }
    let may_go_on = |Sending { outbound, tx, .. }: &mut Sending, ring: &mut [u8]| {
        let Some(outbound) = outbound else { return true };
        let was_on_sdp = outbound.is_on_sdp();
        let mut socket = Socket::new(conn, NOT_ASKED);
        let mut io = pair.context(tx.as_mut(), &mut socket, ring);
        let may_go_on = outbound.may_go_on(&mut io);
        note_lane(conn, was_on_sdp, outbound.is_on_sdp(), &pair.shared);
        may_go_on
    };
    pair.try_sending(conn, may_go_on).unwrap_or(true)
}

/// Whether a reader would find something. Another thread that is at it may be taking just that: its end is awaited, for a
/// moment at most.
pub(crate) fn finds(conn: &Conn) -> bool {
    for _ in 0..BUSY_LOOKS {
        if let Some(found) = look(conn) {
            return !matches!(found, Found::Nothing);
        }
        sdp_sys::time::sleep(BUSY_SLEEP_NS);
    }
    true
}

/// Polls the completion queue for a moment before a sleep, as long as the adaptive budget allows (`recv_poll` bounds it).
/// True when a message of the connection has arrived.
pub(super) fn spin(conn: &ConnGuard, pair: &Pair, guard: Pin<&CallGuard>) -> bool {
    let is_on_sdp = |receiving: &mut Receiving| {
        receiving.inbound.as_ref().is_some_and(|inbound| inbound.is_on_sdp())
    };
    if pair.receiving(conn, is_on_sdp) != Some(true) {
        return false;
    }
    conn.one_way.fetch_add(1, Ordering::Relaxed);
    // The peer runs on another host, never on this CPU.
    let success = spin::spin(conn, guard, 0, || device::has_news(pair));
    if success {
        wait::count(conn, Direction::Receive, Counter::Spun);
    }
    success
}

/// Takes the completions of the queue pairs, and sets the bits of the connections that have news:
/// for a spin that watches those. True when something had completed. Fast; a load where there is no
/// device.
#[inline]
pub(crate) fn drain() -> bool {
    places::is_any_open() && device::drain()
}

/// The kernel's state of a carrier that is plain TCP.
fn look_plainly(conn: &Conn, fd: c_int) -> Found {
    let read = conn.bytes[Half::Receive as usize].load(Ordering::Relaxed);
    match carrier::queued(fd) {
        Ok(n) if n > 0 => Found::Bytes(read.wrapping_add(n)),
        _ if carrier::is_over(fd) => Found::End,
        _ => Found::Nothing,
    }
}

/// The kernel has reported to an edge-triggered wait that there is something to read, and will not
/// report it again: the next receive call looks at the carrier even where it finds payload on the
/// queue pair. A program takes a call that gives less than it has room for as a sign that nothing
/// is left.
pub(crate) fn expect_carrier(conn: &Conn) {
    if let Some((_, pair)) = pair::of(conn) {
        pair.is_carrier_due.store(true, Ordering::Relaxed);
    }
}

/// Payload bytes that receive calls would find, for FIONREAD: by both roads, and no marker among
/// them. `None`: the kernel's bytes are all. A program that reads so many and then waits for an
/// edge does not miss bytes that came meanwhile: the next wait looks here again.
pub(crate) fn readable_bytes(conn: &Conn) -> Option<u64> {
    let (_, pair) = pair::of(conn)?;
    if !claim(conn, pair, Use::Call) || pair.is_plain() {
        return None;
    }
    let fd = conn::number_of(conn)?;
    // A marker is never cut off: it is whole in the kernel.
    let in_kernel = carrier::queued(fd).map_or(0, |n| n.min(COUNTED_MOST)) as usize;
    let mut few = [0; COUNTED_FEW];
    let mut many;
    let scratch = if in_kernel <= few.len() {
        &mut few[..]
    } else {
        many = process::Fresh::private(in_kernel);
        many.as_mut().map_or(&mut few[..], |many| many.bytes())
    };
    let count = pair.receiving_for(conn, Use::Call, |Receiving { inbound, rx, .. }| {
        let inbound = inbound.as_mut().filter(|inbound| !inbound.is_plain())?;
        let mut socket = Socket::new(conn, fd);
        let mut io = ReceiveContext { rx: rx.as_mut(), carrier: &mut socket, shared: &pair.shared };
        Some(inbound.readable(&mut io, scratch))
    })??;
    doorbell::signal_self(conn.index());
    Some(count)
}

/// A carrier has ended while the stream was on SDP: whether the missing messages will not come any
/// more.
pub(super) fn is_cut_for_good(since_ns: &mut u64) -> bool {
    let now = monotonic_ns();
    if *since_ns == 0 {
        *since_ns = now;
    }
    now.saturating_sub(*since_ns) > CUT_NS
}

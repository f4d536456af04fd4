//! Looks at the stream without taking bytes: MSG_PEEK, and how many bytes lie ahead.

use sdp_fabric_shm::{endpoint::ShmRx, link::ShmHalf};
use sdp_proto::{Violation, wire::Message};
use sdp_rdma::fabric::{ReceiveQueue, Received};

use super::Wish;
use crate::{
    conn::{
        ConnGuard, carrier,
        iovec::{Buffers, Landing},
    },
    datapath::{
        lane::{Broken, Lane, SinkState, Switch},
        token,
    },
    wake::arming,
};

/// A copy of the state that may walk on without changing anything.
pub(super) fn onlooker(sink: &SinkState) -> SinkState {
    let mut walk = *sink;
    walk.rx = sink.rx.onlooker();
    walk
}

/// Copies payload out of the ring, up to its limit, for MSG_PEEK.
pub(super) fn peek_ring(walk: &mut SinkState, mut buffers: Buffers, wish: Wish) -> usize {
    let mut got = 0;
    while buffers.left() > 0 {
        let Some((message, offset)) = next_payload(walk) else { break };
        let n = buffers.left().min(message.len.saturating_sub(offset) as usize) as u32;
        let mut landing = Landing { buffers: &mut buffers, discard: wish.discards() };
        walk.rx.copy_out(message, offset, n, &mut landing);
        got += n as usize;
    }
    got
}

/// MSG_PEEK saw `seen` carrier bytes: those in the ring, if it comes next. A program that peeks until it
/// sees enough must get there without reading.
pub(super) fn peek_behind_carrier(
    conn: &ConnGuard,
    sink: &SinkState,
    half: ShmHalf<'_>,
    buffers: &Buffers,
    seen: usize,
    wish: Wish,
) -> Result<usize, Broken> {
    if conn.row().is_some_and(token::is_awaited) {
        return Ok(0);
    }
    let Some(switch) = sink.pending(half)? else { return Ok(0) };
    let Ok(consumed) = sink.consumed(conn.fd()) else { return Ok(0) };
    if buffers.left() <= seen || consumed.wrapping_add(seen as u64) != switch.carrier {
        return Ok(0);
    }
    let mut walk = onlooker(sink);
    walk.lane = Lane::Sdp;
    walk.followed = walk.followed.wrapping_add(1);
    walk.rx.set_limit(walk.pending(half)?.map_or(u64::MAX, |next| next.fabric));
    let mut rest = *buffers;
    rest.advance(seen);
    Ok(peek_ring(&mut walk, rest, wish))
}

/// MSG_PEEK saw `seen` ring bytes: those on the carrier, if the ring ends there. The wake bytes
/// before them are taken off; beyond the next switch nothing is seen.
pub(super) fn peek_behind_ring(
    conn: &ConnGuard,
    sink: &mut SinkState,
    switch: Option<Switch>,
    buffers: &Buffers,
    seen: usize,
    wish: Wish,
) -> usize {
    let Some(switch) = switch else { return 0 };
    if buffers.left() <= seen {
        return 0;
    }
    // No receive call passes the urgent mark once it has bytes.
    if !consume_before(conn, sink, switch) || carrier::is_at_mark(conn.fd()) {
        return 0;
    }
    let mut rest = *buffers;
    rest.advance(seen);
    let flags = wish.flags & (libc::MSG_PEEK | libc::MSG_TRUNC);
    carrier::receive(conn.fd(), &rest, usize::MAX, flags).unwrap_or(0)
}

/// Consumes the wake bytes that lie on the carrier before a switch. False: some are not there yet.
pub(crate) fn consume_before(conn: &ConnGuard, sink: &mut SinkState, switch: Switch) -> bool {
    let wake_bytes = switch.carrier.wrapping_sub(sink.carrier_read);
    if wake_bytes > i64::MAX as u64 {
        return false;
    }
    let consumed = carrier::consume(conn.fd(), wake_bytes);
    sink.carrier_read += consumed;
    if consumed != 0 {
        arming::note_consumed(conn);
    }
    consumed == wake_bytes
}

/// A message's headers, for calls that only look. One copy of this code, because none of them is in
/// a hurry.
#[inline(never)]
pub(crate) fn headers(rx: &ShmRx, message: Received) -> Result<Message, Violation> {
    Message::read(message.len, |first| rx.copy_header(message, first))
}

/// The next message with payload and where that begins or goes on, for a copy of the state that only
/// looks ([`ShmRx::onlooker`]). Nothing is seen behind a message that makes no
/// sense: the call that takes that one finds the connection broken.
pub(crate) fn next_payload(walk: &mut SinkState) -> Option<(Received, u32)> {
    if let Some(message) = walk.current() {
        let offset = walk.current_offset;
        walk.current_len = 0;
        walk.current_offset = 0;
        walk.rx.release(message);
        return Some((message, offset));
    }
    while let Ok(Some(message)) = walk.rx.poll_receive() {
        let found = headers(&walk.rx, message).ok()?;
        walk.rx.release(message);
        if let Some(payload) = found.payload() {
            return Some((message, payload.offset));
        }
    }
    None
}

/// Payload bytes in the ring up to its limit, the rest of the current message included. For a copy of
/// the state: moves its cursors.
pub(crate) fn payload_ahead(walk: &mut SinkState) -> u64 {
    *walk = onlooker(walk);
    let mut total = 0;
    while let Some((message, offset)) = next_payload(walk) {
        total += u64::from(message.len.saturating_sub(offset));
    }
    total
}

//! Reads from the carrier while a half is on the kernel lane.

use sdp_fabric_shm::link::ShmHalf;
use sdp_shm::family::Row;
use sdp_sys::errno::Errno;

use super::Wish;
use crate::{
    conn::{ConnGuard, carrier, iovec::Buffers},
    datapath::{
        lane::{Broken, Lane, SinkState},
        token,
    },
};

pub(super) enum KernelRead {
    Got(usize),
    Switched,
    Failed(Errno),
}

/// Reads from the carrier while the half is on the kernel lane (L2, L3, L4, L9).
pub(super) fn kernel_read(
    conn: &ConnGuard,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
    buffers: &mut Buffers,
    wish: Wish,
) -> Result<KernelRead, Broken> {
    if token::is_awaited(row) {
        return read_before_token(conn, sink, row, half, buffers, wish);
    }
    let flags = wish.flags & !libc::MSG_WAITALL;
    half.announce_unbounded_read(true);
    if let Some(switch) = sink.pending(half)? {
        half.announce_unbounded_read(false);
        let Ok(consumed) = sink.consumed(conn.fd()) else {
            return Ok(KernelRead::Failed(Errno::EAGAIN));
        };
        let before = switch.carrier.wrapping_sub(consumed);
        if before == 0 || before > i64::MAX as u64 {
            sink.carrier_read = consumed;
            sink.follow(half, Lane::Sdp);
            return Ok(KernelRead::Switched);
        }
        return Ok(bounded_read(conn, sink, buffers, wish, before));
    }
    let result = carrier::receive(conn.fd(), buffers, usize::MAX, flags);
    if let Ok(n) = result {
        took(sink, n, wish);
    }
    let switch = match sink.pending(half) {
        Ok(switch) => switch,
        Err(broken) => {
            half.announce_unbounded_read(false);
            return Err(broken);
        }
    };
    let done = match (result, switch) {
        (Ok(0), Some(_)) => KernelRead::Switched, // L9: not the end, there is a switch before it
        (Ok(n), Some(switch)) => {
            // L4: wake bytes lie behind the switch; cut them from the end of the bytes read.
            match sink.consumed(conn.fd()) {
                Ok(consumed) => {
                    let read_to = if wish.peeks() { consumed + n as u64 } else { consumed };
                    let behind = read_to.wrapping_sub(switch.carrier);
                    let behind = if behind > i64::MAX as u64 { 0 } else { behind.min(n as u64) };
                    if read_to >= switch.carrier && !wish.peeks() {
                        sink.carrier_read = read_to;
                        sink.follow(half, Lane::Sdp);
                    }
                    let n = n - behind as usize;
                    take(buffers, n, wish);
                    if n == 0 && !wish.peeks() {
                        KernelRead::Switched
                    } else if n == 0 {
                        KernelRead::Failed(Errno::EAGAIN)
                    } else {
                        KernelRead::Got(n)
                    }
                }
                Err(_) => {
                    take(buffers, n, wish);
                    KernelRead::Got(n)
                }
            }
        }
        (Ok(n), None) => {
            take(buffers, n, wish);
            KernelRead::Got(n)
        }
        (Err(Errno::EAGAIN), Some(_)) => KernelRead::Switched,
        (Err(e), _) => KernelRead::Failed(e),
    };
    half.announce_unbounded_read(false);
    Ok(done)
}

/// L3: reads at most so many bytes.
fn bounded_read(
    conn: &ConnGuard,
    sink: &mut SinkState,
    buffers: &mut Buffers,
    wish: Wish,
    most: u64,
) -> KernelRead {
    let cap = usize::try_from(most).unwrap_or(usize::MAX);
    let flags = wish.flags & !libc::MSG_WAITALL;
    match carrier::receive(conn.fd(), buffers, cap, flags) {
        Ok(n) => {
            took(sink, n, wish);
            take(buffers, n, wish);
            KernelRead::Got(n)
        }
        Err(e) => KernelRead::Failed(e),
    }
}

/// L13: reads from the carrier while the incoming token is to come. What lies there before the log is
/// looked at was sent before any entry that the log does not show yet.
#[cold]
fn read_before_token(
    conn: &ConnGuard,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
    buffers: &mut Buffers,
    wish: Wish,
) -> Result<KernelRead, Broken> {
    let fd = conn.fd();
    let queued = carrier::queued(fd).unwrap_or(0);
    if let Some(switch) = sink.pending(half)? {
        let Ok(consumed) = sink.consumed(fd) else {
            return Ok(KernelRead::Failed(Errno::EAGAIN));
        };
        let before = switch.carrier.wrapping_sub(consumed);
        if before > i64::MAX as u64 {
            return Err(Broken);
        }
        if before != 0 {
            return Ok(bounded_read(conn, sink, buffers, wish, before));
        }
        sink.carrier_read = consumed;
        // Asked before the look: a token that comes meanwhile has payload and the end behind it.
        let is_over = carrier::is_over(fd);
        return Ok(match token::take(conn, fd, sink, row, half)? {
            true => KernelRead::Switched,
            false if is_over => KernelRead::Got(0),
            false => KernelRead::Failed(Errno::EAGAIN),
        });
    }
    if queued != 0 {
        return Ok(bounded_read(conn, sink, buffers, wish, queued));
    }
    Ok(match carrier::peek(fd) {
        Ok(0) => KernelRead::Got(0),
        Ok(_) => KernelRead::Switched, // it has just come
        Err(e) => KernelRead::Failed(e),
    })
}

/// Counts the bytes that a read took off the carrier.
fn took(sink: &mut SinkState, n: usize, wish: Wish) {
    if !wish.peeks() {
        sink.carrier_read = sink.carrier_read.wrapping_add(n as u64);
    }
}

fn take(buffers: &mut Buffers, n: usize, wish: Wish) {
    if !wish.peeks() {
        buffers.advance(n);
    }
}

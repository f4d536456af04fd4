//! A receive call while both ends are awake: messages without system calls.

use core::{pin::Pin, sync::atomic::Ordering};

use libc::c_int;
use sdp_remote::RecvError;

use super::{look::spin, pair::Pair, receive_once};
use crate::{
    conn::{ConnGuard, iovec::Buffers},
    wake::call_guard::CallGuard,
};

/// Receives the bytes that are there now. While the stream is on the queue pair and calls wait for
/// it, this first waits a moment for a message without a system call, and only then asks the
/// kernel.
pub(super) fn receive_or_pause(
    conn: &ConnGuard,
    pair: &Pair,
    guard: Pin<&CallGuard>,
    buffers: &mut Buffers,
    flags: c_int,
    has_spun: &mut bool,
) -> Result<usize, RecvError> {
    let may_pause = flags & libc::MSG_DONTWAIT == 0
        && pair.is_waited_for.load(Ordering::Relaxed)
        && !*has_spun
        && pair.shared.is_up();
    if may_pause {
        let received = receive_once(conn, buffers, flags, Road::QueuePair);
        if !matches!(received, Err(RecvError::WouldBlock)) {
            return received;
        }
        *has_spun = true;
        spin(conn, pair, guard);
    }
    receive_once(conn, buffers, flags, Road::Both)
}

/// Where a receive call looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Road {
    /// At messages alone, if payload comes by them.
    QueuePair,
    /// And at the carrier.
    Both,
}

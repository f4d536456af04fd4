//! The commonest send and the commonest receive on a connection that has not met: one buffer, which the kernel takes or fills
//! at once.
//!
//! Called by `api` before [`super::send`] and [`super::receive`], which do the same and everything else. While a step towards
//! a queue pair is due, or a look for what the connection manager has to tell, calls are left to them: between these times
//! a call costs little more than one on a connection that is TCP for good.
//!
//! The kernel is called under the lock of the half: a meeting takes both, and counts on the bytes before it.

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_remote::Prefix;
use sdp_stats::Direction;
use sdp_sys::{count::Counting, errno::Errno, section, sys};

use super::{
    PREFIX, Receiving, Sending,
    carrier_io::keep_error,
    fast::{InUse, send_rest},
    keep_first, pace, receive_behind,
};
use crate::conn::{Conn, Half, Stage, iovec::Buffers, publish};

/// The connection that `fd` names, if nothing is due but its bytes. In a section.
#[inline(always)]
fn get(fd: c_int, half: Half) -> Option<InUse> {
    InUse::get(fd, half, Stage::Remote).filter(|used| pace::is_quiet(used.pair))
}

/// Sends bytes by the kernel, and what it does not take at once by [`super::send`], which waits. How many; `None`: nothing
/// was done.
///
/// # Safety
/// `from` is readable for `len` bytes (the program's own promise).
#[inline(never)]
pub(crate) unsafe fn send(fd: c_int, from: *const u8, len: usize, flags: c_int) -> Option<usize> {
    if len == 0 || from.is_null() {
        return None;
    }
    // Handlers that the section puts off interrupt the rest of the call.
    let mark = section::mark();
    let (sent, rest) = {
        let _section = section::Guard::enter();
        let used = &get(fd, Half::Send)?;
        let InUse { conn, pair, .. } = used;
        if pair.is_full.load(Ordering::Relaxed) {
            return None;
        }
        let by_kernel = |sending: &mut Sending, _: &mut [u8]| {
            let Sending { prefix, moved, outbound, .. } = sending;
            if outbound.is_some() {
                return None;
            }
            let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the caller's; no address is passed.
            let sent = unsafe { sys!(libc::SYS_sendto, fd, from, len, flags, 0, 0) };
            let n = of_kernel(conn, sent)?;
            note(prefix, moved, (from, n));
            Some(n)
        };
        let sent = pair.sending_quickly(conn, by_kernel)?;
        if sent != Some(len) {
            // A program that sends as much as there is room for: its next calls would come here for nothing.
            pair.is_full.store(true, Ordering::Relaxed);
        }
        let sent = sent?;
        count(conn, Half::Send, sent);
        conn.one_way.store(0, Ordering::Relaxed);
        (sent, if sent == len { None } else { used.hold(fd, Half::Send) })
    };
    match rest {
        Some(rest) => Some(send_rest(&rest, from, (sent, len), flags, mark)),
        None => Some(sent),
    }
}

/// Receives the bytes that the kernel has; where it has none, the rest of the call is [`super::receive`]'s, which does not ask
/// it again. `None`: nothing was done.
///
/// # Safety
/// `to` is writable for `len` bytes (the program's own promise).
#[inline(never)]
pub(crate) unsafe fn receive(
    fd: c_int,
    to: *mut u8,
    len: usize,
    flags: c_int,
) -> Option<Result<usize, Errno>> {
    if len == 0 || to.is_null() {
        return None;
    }
    let mark = section::mark();
    let held = {
        let _section = section::Guard::enter();
        let used = &get(fd, Half::Receive)?;
        let InUse { conn, pair, .. } = used;
        let by_kernel = |receiving: &mut Receiving| {
            let Receiving { prefix, moved, inbound, .. } = receiving;
            if inbound.is_some() {
                return None;
            }
            let flags = flags | libc::MSG_DONTWAIT;
            // SAFETY: the caller's; no address is asked for.
            let got = unsafe { sys!(libc::SYS_recvfrom, fd, to, len, flags, 0, 0) };
            if got == Err(Errno::EAGAIN) {
                return Some(None);
            }
            // The end of the stream comes again, as an error does.
            let n = of_kernel(conn, got).filter(|n| *n != 0)?;
            note(prefix, moved, (to, n));
            Some(Some(n))
        };
        if let Some(got) = pair.receiving_quickly(conn, by_kernel)?? {
            count(conn, Half::Receive, got);
            return Some(Ok(got));
        }
        used.hold(fd, Half::Receive)?
    };
    let whole = libc::iovec { iov_base: to.cast(), iov_len: len };
    // SAFETY: the program's buffer, as one element that lives on this stack.
    let mut whole = unsafe { Buffers::new(&raw const whole, 1) }?;
    Some(receive_behind(&held, &mut whole, flags, mark, true))
}

/// What the kernel has moved. `None`: nothing now, or an error, which comes again.
fn of_kernel(conn: &Conn, result: Result<usize, Errno>) -> Option<usize> {
    if let Err(error) = result
        && error != Errno::EAGAIN
    {
        keep_error(conn, error.0);
    }
    result.ok()
}

/// The kernel has moved the first `n` of a call's bytes.
#[inline(always)]
fn note(prefix: &mut Prefix, moved: &mut u64, (at, n): (*const u8, usize)) {
    if *moved < PREFIX as u64 {
        note_first(prefix, *moved, (at, n));
    }
    *moved += n as u64;
}

#[cold]
fn note_first(prefix: &mut Prefix, moved: u64, (at, n): (*const u8, usize)) {
    let whole = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: n };
    // SAFETY: of the program's buffer, as one element that lives on this stack.
    if let Some(whole) = unsafe { Buffers::new(&raw const whole, 1) } {
        keep_first(prefix, moved, whole, 0, n);
    }
}

/// A call has moved bytes.
#[inline(always)]
fn count(conn: &Conn, half: Half, bytes: usize) {
    let counting = Counting::now();
    counting.add(&conn.calls[half as usize], 1);
    counting.add_wide(&conn.bytes[half as usize], bytes as u64);
    let Some((page, row)) = publish::of_row(conn) else { return };
    let direction = if half == Half::Send { Direction::Send } else { Direction::Receive };
    page.moved_kernel(row, direction, bytes as u64, counting.is_single());
}

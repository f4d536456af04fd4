//! Large sends of a connection whose ends are still meeting, in pieces.
//!
//! Called by [`crate::api::calls`] for a `send` or a `sendfile` of more than a piece.
//!
//! A sender fills the kernel's buffers, megabytes, within the time in which a reader wakes up, and
//! all of that is on the wrong lane. So the library sends a large buffer of a connection that may
//! still be promoted piece by piece, and the rest of it moves to the SDP lane as soon as that
//! exists; the program sees one call. Between pieces the meeting goes on, with pauses that let the
//! other end catch up ([`crate::migration::pause`]).

use core::pin::pin;

use libc::c_int;
use sdp_sys::{errno::Errno, fd, section, sys};

use crate::{
    api::calls::{self, Route, Ticket},
    conn::{self, ConnGuard, Half, Stage, carrier, iovec::Buffers},
    datapath::{send, splice, wait},
    migration::{across, pause, promote, splice_off},
    process::{self, place},
    wake::call_guard::CallGuard,
};

/// Bytes of one piece, and the smallest send that counts as bulk.
pub(crate) const PIECE: usize = send::FIRST_PIECE;
/// Times that one sleeping send wakes up for the meeting's sake.
const WAKES: u32 = 8;
/// Flags of a send that can be made in pieces.
const PLAIN_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;

/// Whether a call with these flags is for [`send`] or [`sendfile`] if it is to send more than
/// [`PIECE`].
#[inline]
pub(crate) fn concerns(ticket: &Ticket, flags: c_int) -> bool {
    flags & !PLAIN_FLAGS == 0
        && conn::get(ticket.conn())
            .is_some_and(|conn| matches!(conn.stage(), Stage::Candidate | Stage::Meeting))
        && !process::is_retired()
}

/// Whether the kernel is to show the packet of a connection's next send ([`across`]). One load where
/// there is no directory.
#[inline]
pub(crate) fn is_marked(index: u32) -> bool {
    place::is_known() && is_next_marked(index)
}

#[cold]
#[inline(never)]
fn is_next_marked(index: u32) -> bool {
    conn::get(index).is_some_and(across::wants_mark)
}

/// A large send on a connection that is not attached yet, or is marked.
pub(crate) fn send(first: Ticket, buffers: &mut Buffers, flags: c_int) -> Result<usize, Errno> {
    let mut mark = section::mark();
    let number = first.number();
    let held = hold(&first);
    let wanted = buffers.left();
    let mut ticket = first;
    let mut deadline: Option<Option<u64>> = None;
    let mut wakes = 0;
    loop {
        if wanted != buffers.left() && carrier::has_error(number) {
            // Left for the next call, as the kernel leaves it: taken from it here it would be lost.
            calls::finish(ticket, 0, flags);
            return Ok(wanted - buffers.left());
        }
        let marked = held.as_ref().and_then(|conn| across::send_marked(conn, buffers, flags));
        let sent = marked.unwrap_or_else(|| carrier::send(number, buffers, PIECE, flags));
        let moved = *sent.as_ref().unwrap_or(&0);
        buffers.advance(moved);
        calls::finish_more(ticket, moved as isize, flags, buffers.left());
        let done = wanted - buffers.left();
        let partial = |e| if done > 0 { Ok(done) } else { Err(e) };
        match sent {
            Ok(_) if buffers.left() == 0 => return Ok(done),
            Ok(_) => {}
            Err(Errno::EPIPE) if done == 0 => {
                return Err(send::raise_pipe(Some(number), flags));
            }
            Err(Errno::EAGAIN) => {
                if flags & libc::MSG_DONTWAIT != 0 || fd::is_nonblocking(number) {
                    return partial(Errno::EAGAIN);
                }
                let Some(conn) = ConnGuard::new(number, Half::Send) else {
                    return partial(Errno::EBADF);
                };
                let until =
                    *deadline.get_or_insert_with(|| wait::deadline(&conn, number, Half::Send));
                if until == Some(0) {
                    return partial(Errno::EAGAIN);
                }
                let guard = pin!(CallGuard::on(&conn));
                let guard = guard.as_ref();
                let meeting = if wakes < WAKES { pause::expects(&conn) } else { -1 };
                wakes += 1;
                match wait::for_carrier_room_or(&conn, guard, meeting, until, mark) {
                    wait::Woken::Look if wait::was_interrupted(&mut mark) && done > 0 => {
                        return Ok(done);
                    }
                    // Closed meanwhile, the number may be another connection's.
                    wait::Woken::Look if !conn.is_current() => {}
                    wait::Woken::Look => promote::advance(&conn, number),
                    wait::Woken::TimedOut => return partial(Errno::EAGAIN),
                    wait::Woken::Interrupted => return partial(Errno::EINTR),
                    wait::Woken::Closed => return partial(Errno::EBADF),
                }
            }
            Err(e) => return partial(e),
        }
        ticket = match go_on(held.as_ref(), number) {
            Route::Kernel(ticket) => ticket,
            Route::Library(conn) if done == 0 => return send::send(&conn, buffers, flags),
            Route::Library(conn) => {
                // A call that has sent something raises no signal, and keeps an error for the next
                // call.
                let rest = send::send(&conn, buffers, flags | libc::MSG_NOSIGNAL);
                if let Err(e) = rest
                    && !matches!(e, Errno::EPIPE | Errno::EAGAIN | Errno::EINTR | Errno::EBADF)
                {
                    conn.set_pending_error(e);
                }
                return Ok(done + rest.unwrap_or(0));
            }
            Route::Pass => return partial(Errno::EBADF),
        };
    }
}

/// A large `sendfile` on a connection that is not attached yet.
///
/// # Safety
/// `offset` is null or readable and writable.
pub(crate) unsafe fn sendfile(
    first: Ticket,
    input: c_int,
    offset: *mut i64,
    count: usize,
) -> Result<usize, Errno> {
    let number = first.number();
    let held = hold(&first);
    let mut ticket = first;
    let mut done = 0;
    loop {
        let want = (count - done).min(PIECE);
        // SAFETY: the caller's offset.
        let sent = unsafe { sys!(libc::SYS_sendfile, number, input, offset, want) };
        let moved = *sent.as_ref().unwrap_or(&0);
        done += moved;
        calls::finish_more(ticket, moved as isize, 0, count - done);
        match sent {
            Ok(n) if n == want && done < count => {}
            Ok(_) => return Ok(done),
            Err(e) => return if done > 0 { Ok(done) } else { Err(e) },
        }
        ticket = match go_on(held.as_ref(), number) {
            Route::Kernel(ticket) => ticket,
            Route::Library(conn) => {
                // SAFETY: the caller's offset.
                let rest = unsafe {
                    splice::sendfile(
                        &conn,
                        input,
                        offset,
                        count - done,
                        send::send,
                        splice_off::prepare,
                    )
                };
                // The next call sends what only the kernel can send: the program sees a short one.
                return Ok(done + rest.and_then(Result::ok).unwrap_or(0));
            }
            Route::Pass => return Ok(done),
        };
    }
}

/// Keeps the ticket's connection from being replaced by another one under the same number and slot.
/// `None`: that has happened already.
fn hold(first: &Ticket) -> Option<ConnGuard> {
    ConnGuard::new(first.number(), Half::Send).filter(|conn| conn.index() == first.conn())
}

/// The route of the next piece. [`Route::Pass`] when the number was closed between two pieces, and
/// perhaps names another connection by now: the kernel would go on with the one that the call began
/// on.
fn go_on(held: Option<&ConnGuard>, number: c_int) -> Route {
    let is_same = |index| held.is_some_and(|conn| conn.index() == index);
    match calls::route(number, Half::Send) {
        Route::Kernel(ticket) if !is_same(ticket.conn()) => {
            calls::finish(ticket, 0, 0);
            Route::Pass
        }
        Route::Library(conn) if !is_same(conn.index()) => Route::Pass,
        route => route,
    }
}

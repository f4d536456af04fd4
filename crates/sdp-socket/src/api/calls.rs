//! The functions that the hooks call: one per kind of call.
//!
//! Every function may be called for any descriptor, also one that is not ours, before the library's
//! constructor ran, from a signal handler and in a vfork child; it answers [`Call::Pass`] whenever
//! the program's call should simply be made. No function changes `errno`.
//!
//! # Safety
//! Functions with pointer arguments are `unsafe`: the pointers are the program's own, with the
//! validity that the corresponding libc call demands.

use core::sync::atomic::Ordering;

use libc::{c_int, epoll_event, iovec, msghdr, pollfd, sigset_t, sockaddr, socklen_t, timespec};
use sdp_stats::{Direction, Reason, RowId};
use sdp_sys::{count::Counting, errno::Errno, section, tls};

use crate::{
    api::bulk,
    conn::{
        self, ConnGuard, Half, Stage, carrier,
        iovec::{IOV_MAX, Vector},
        options::{self, Verdict, flags, requests::SIOCATMARK},
        publish,
    },
    datapath::{
        header::{self, Header},
        receive::{self, Wish},
        send, splice,
    },
    hosts,
    lifecycle::{self, elsewhere, exec, reconnect, strict},
    migration::{
        across, demote,
        handover::{self, NextReader},
        incompatible, promote, repromote, splice_off,
    },
    process::{
        self,
        table::{self, Entry},
    },
    readiness::{self, Early, Waited, epoll},
    wake::interest,
};

mod explicit;
mod marks;
mod processes;
mod settings;
mod single;

pub use explicit::{InetAddress, asked, bound, inet_address, is_historic, made};

pub use marks::{SelectSets, may_have_copies, settle_epoll, settle_poll};
pub use single::{recv_one, send_one};

pub use settings::{getsockopt, setsockopt, vector_flags};

pub use processes::{
    IoUring, Leave, children_elsewhere, constructed, executing, exiting, fork_child, fork_parent,
    fork_prepare, io_uring, is_forking, leaving, networks_differ, spawning, stand_aside,
    stays_after_all,
};

pub use crate::{
    conn::options::option_read,
    datapath::fault::{LetGo, let_go},
    migration::incompatible::{Incompatible, fall_back},
};

/// What a hook is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Make the program's call unchanged.
    Pass,
    /// Make the program's call unchanged, then report its result with [`finish`].
    Counted(Ticket),
    /// Make the program's wait unchanged, then say that it is over with [`early_wait_over`].
    EarlyWait,
    /// The call has been made: result, or negated error number.
    Done(isize),
}

/// Remembers a call on the kernel lane between [`Call::Counted`] and [`finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    conn: u32,
    fd: c_int,
    receive: bool,
    seen: u32,
}

impl Ticket {
    /// The connection's slot.
    pub(crate) fn conn(&self) -> u32 {
        self.conn
    }

    /// The descriptor.
    pub(crate) fn number(&self) -> c_int {
        self.fd
    }
}

fn done(result: Result<usize, Errno>) -> Call {
    match result {
        Ok(n) => Call::Done(n as isize),
        Err(e) => Call::Done(-(e.0 as isize)),
    }
}

/// [`done`] of a call that may have slept. When another thread took the process into a sandbox meanwhile,
/// the table is empty, and the call finds its descriptor missing: it is the kernel's then, like any
/// later one, unless it has moved something.
fn done_unless_retired(result: Result<usize, Errno>) -> Call {
    match result {
        Err(Errno::EBADF) if process::is_retired() => Call::Pass,
        result => done(result),
    }
}

/// `None`: for ever.
///
/// # Safety
/// Null, or the program's, until the call returns.
unsafe fn timeout_ns(timeout: *const timespec) -> Option<u64> {
    // SAFETY: the caller's.
    let timeout = unsafe { timeout.as_ref() }?;
    let seconds = u64::try_from(timeout.tv_sec).unwrap_or(0);
    let ns = u64::try_from(timeout.tv_nsec).unwrap_or(0);
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}

/// Whether the descriptor is more than a pass-through: a table load, nothing else.
#[inline(always)]
pub fn is_tracked(fd: c_int) -> bool {
    table::is_tracked(fd)
}

/// Whether the process has anything to lose: a tracked descriptor, a hidden one or family memory, now
/// or ever. While false, the hooks of poll, exec and changes of identity do nothing of their own. A
/// load, nothing else; never false while a descriptor is tracked.
#[inline(always)]
pub fn involved() -> bool {
    process::highest_descriptor() >= 0
}

/// Entries of a `poll` from which the limit of descriptors is asked for: it is hardly ever lower.
const POLL_FEW: usize = 256;

/// Whether a descriptor in the array is more than a pass-through. A load for each, none while the process has
/// nothing to lose.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn concerns(fds: *const pollfd, count: usize) -> bool {
    if !involved() || fds.is_null() || process::is_retired() {
        return false;
    }
    if count > POLL_FEW && count > process::soft_limit() as usize {
        return false; // EINVAL, by the kernel, which does not look at the array
    }
    // SAFETY: the program's array.
    (0..count).any(|i| is_tracked(unsafe { (*fds.add(i)).fd }))
}

fn seen() -> u32 {
    tls::slot(tls::Slot::Seen).load(Ordering::Relaxed) as u32
}

/// Which lane a data call goes to.
pub(crate) enum Route {
    /// Not ours.
    Pass,
    /// On the kernel lane, counted.
    Kernel(Ticket),
    /// Attached: through the library.
    Library(ConnGuard),
}

#[unsafe(link_section = ".text.hot")]
pub(crate) fn route(fd: c_int, half: Half) -> Route {
    if elsewhere::moves(fd, half) {
        return Route::Pass;
    }
    let Some(held) = ConnGuard::new(fd, half) else {
        table::await_close(fd);
        return Route::Pass;
    };
    match held.stage() {
        Stage::Fresh | Stage::Listener => Route::Pass,
        Stage::Attached => attached_route(held),
        Stage::Remote | Stage::Guarded => remote_route(held),
        Stage::Kernel | Stage::Candidate | Stage::Meeting => {
            // Before the stage is looked at again: a thread that attaches it meanwhile sees the
            // count, or this look sees the stage.
            let counting = Counting::now();
            counting.add(&held.raw[half as usize], 1);
            if held.stage() == Stage::Attached {
                counting.sub(&held.raw[half as usize], 1);
                return attached_route(held);
            }
            let ticket =
                Ticket { conn: held.index(), fd, receive: half == Half::Receive, seen: seen() };
            core::mem::forget(held); // until `finish`
            Route::Kernel(ticket)
        }
    }
}

fn attached_route(held: ConnGuard) -> Route {
    demote::join(&held, held.fd());
    Route::Library(held)
}

/// Of a stream to another host. One that a fork has copied, and that no call here has used, becomes
/// plain TCP first, or its number a relay's. Not beside the code that fork children run.
#[inline(never)]
fn remote_route(held: ConnGuard) -> Route {
    lifecycle::see(&held, held.fd());
    match hosts::is_unsettled(&held) {
        true => handover::settle_copy(held).map_or(Route::Pass, Route::Library),
        false => Route::Library(held),
    }
}

/// `recv`, `recvfrom` (with no address wanted, or on a connected stream), and `read` of a byte or more.
///
/// # Safety
/// See the module.
#[unsafe(link_section = ".text.hot")]
pub unsafe fn recv(fd: c_int, iov: *const iovec, count: usize, flags: c_int) -> Call {
    match route(fd, Half::Receive) {
        Route::Pass => Call::Pass,
        Route::Kernel(ticket) => Call::Counted(ticket),
        Route::Library(conn)
            if flags & libc::MSG_PEEK != 0 && header::is_kernels(&conn, Half::Receive) =>
        {
            by_kernel(conn, Half::Receive)
        }
        Route::Library(conn) => {
            // SAFETY: the caller's.
            recv_here(&conn, unsafe { Vector::new(iov, count) }, flags, None)
        }
    }
}

/// `readv` and its kin: as [`recv`], but a call for no bytes is over at once.
///
/// # Safety
/// See the module.
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: usize, flags: c_int) -> Call {
    match route(fd, Half::Receive) {
        Route::Pass => Call::Pass,
        Route::Kernel(ticket) => Call::Counted(ticket),
        Route::Library(conn) => {
            // SAFETY: the caller's.
            recv_here(&conn, unsafe { Vector::new(iov, count) }, flags, Some(0))
        }
    }
}

/// The program's call, made unchanged.
#[cold]
fn by_kernel(conn: ConnGuard, half: Half) -> Call {
    Counting::now().add(&conn.raw[half as usize], 1);
    let receive = half == Half::Receive;
    let ticket = Ticket { conn: conn.index(), fd: conn.fd(), receive, seen: seen() };
    core::mem::forget(conn); // until `finish`
    Call::Counted(ticket)
}

/// Control data of a message may have the kernel put something on the error queue for the program.
fn end_marks_by_control(fd: c_int, header: Option<Header>) {
    if header::has_control(header) && across::marks::may_be() {
        across::marks::end(fd);
    }
}

/// [`recv`] on an attached connection. `none`: the answer to a call for no bytes, if it does not wait.
fn recv_here(conn: &ConnGuard, vector: Vector, flags: c_int, none: Option<usize>) -> Call {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Call::Pass;
    }
    if vector.is_missing() {
        return Call::Pass; // EFAULT, by the kernel
    }
    let Some(mut buffers) = vector.buffers() else {
        return done(Err(Errno::EINVAL));
    };
    if flags & libc::MSG_TRUNC == 0 && buffers.has_null() {
        return done(Err(Errno::EFAULT));
    }
    let by = if hosts::has(conn) { hosts::receive } else { receive::receive };
    let result = match none {
        Some(none) if buffers.left() == 0 => Ok(none),
        None if buffers.left() == 0 => receive::receive_none(conn, flags, by),
        _ => by(conn, &mut buffers, Wish { flags }),
    };
    hosts::take_new(interest::attached);
    repromote::after_call(conn);
    done_unless_retired(result)
}

/// `recvmsg`: also sets `msg_namelen`, `msg_controllen` and `msg_flags`.
///
/// # Safety
/// See the module.
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Call {
    // SAFETY: the caller's.
    let Some(header) = (unsafe { Header::new(msg) }) else { return Call::Pass };
    let conn = match route(fd, Half::Receive) {
        Route::Pass => return Call::Pass,
        Route::Kernel(ticket) => return Call::Counted(ticket), // the header is the kernel's to read
        Route::Library(conn) => conn,
    };
    let control = header.control_len();
    if flags & flags::MSG_CMSG_COMPAT != 0 {
        return Call::Pass; // EINVAL, by the kernel
    }
    if header.elements() > IOV_MAX {
        return done(Err(Errno(libc::EMSGSIZE)));
    }
    if control != 0 && options::has_stamps(conn.fd()) {
        incompatible::leave(fd, Reason::UnsuitableSocket, Some(NextReader::Ourselves));
    }
    if (control != 0 || flags & libc::MSG_PEEK != 0) && header::is_kernels(&conn, Half::Receive) {
        return by_kernel(conn, Half::Receive);
    }
    let call = recv_here(&conn, header.vector(), flags, None);
    if let Call::Done(n) = call
        && n >= 0
    {
        // SAFETY: the program's header.
        unsafe {
            if !(*msg).msg_name.is_null() {
                (*msg).msg_namelen = 0;
            }
            (*msg).msg_controllen = 0;
            (*msg).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        }
        if control != 0 && options::tells_unread(conn.fd()) {
            header.tell_unread(control, readiness::unread(&conn));
        }
    }
    call
}

/// `recvmmsg`. `Done`: on a lane, where the hook makes one [`recvmsg`] after the other.
pub fn recvmmsg(fd: c_int) -> Call {
    match route(fd, Half::Receive) {
        Route::Pass => Call::Pass,
        Route::Kernel(ticket) => Call::Counted(ticket),
        Route::Library(_) => Call::Done(0),
    }
}

/// The error that ended a `recvmmsg` behind its first message is the next call's, as the kernel keeps it.
pub fn keep_error(fd: c_int, error: c_int) {
    if error != libc::EAGAIN
        && let Some(conn) = ConnGuard::new(fd, Half::Receive)
    {
        conn.set_pending_error(Errno(error));
    }
}

/// `send`, `write`, `writev`, `sendto`.
///
/// # Safety
/// See the module.
#[unsafe(link_section = ".text.hot")]
pub unsafe fn send(fd: c_int, iov: *const iovec, count: usize, flags: c_int) -> Call {
    // SAFETY: the caller's.
    let vector = unsafe { Vector::new(iov, count) };
    send_with(fd, flags, None, || vector)
}

/// Before a send of more bytes than any object has, of which the kernel takes what it can read, if it makes the call at all
/// (`write` it does not make): it goes behind all that was sent, by the kernel.
#[cold]
#[inline(never)]
pub fn sends_beyond_memory(fd: c_int) {
    if !elsewhere::is(fd)
        && let Some(conn) = ConnGuard::new(fd, Half::Send)
    {
        demote::leave(&conn, fd, Reason::UnsuitableSocket);
    }
}

/// [`send`] of a vector that is looked for only where it is needed: what the kernel sends, the kernel reads.
/// `header`: of a message.
#[inline]
fn send_with(
    fd: c_int,
    flags: c_int,
    header: Option<Header>,
    vector: impl FnOnce() -> Vector,
) -> Call {
    // Candidates too: an urgent byte counts as sent, but not as read.
    if let Some(why) = flags::leaving_send(flags)
        && !elsewhere::is(fd)
        && let Some(conn) = ConnGuard::new(fd, Half::Send)
    {
        demote::leave(&conn, fd, why);
    }
    if flags & libc::MSG_FASTOPEN != 0 {
        return Call::Pass; // a connect: EISCONN, by the kernel
    }
    match route(fd, Half::Send) {
        Route::Pass => Call::Pass,
        Route::Kernel(ticket) => {
            end_marks_by_control(fd, header);
            if !bulk::concerns(&ticket, flags) {
                return Call::Counted(ticket);
            }
            let vector = vector();
            if vector.is_null() || header::has_control(header) {
                return Call::Counted(ticket);
            }
            match vector.buffers() {
                Some(mut buffers)
                    if buffers.left() > bulk::PIECE
                        || buffers.left() != 0 && bulk::is_marked(ticket.conn()) =>
                {
                    done_unless_retired(bulk::send(ticket, &mut buffers, flags))
                }
                _ => Call::Counted(ticket),
            }
        }
        Route::Library(conn) => {
            let vector = vector();
            end_marks_by_control(fd, header);
            if header::has_control(header) && header::is_kernels(&conn, Half::Send) {
                return by_kernel(conn, Half::Send);
            }
            if let Some(e) = header::refused(fd, header, flags) {
                conn.note_reported(e);
                return done(Err(e));
            }
            if vector.is_missing() {
                return Call::Pass; // EFAULT, by the kernel
            }
            let Some(mut buffers) = vector.buffers() else {
                return done(Err(Errno::EINVAL));
            };
            if buffers.left() == 0 {
                return Call::Pass;
            }
            if buffers.has_null() {
                return done(Err(Errno::EFAULT));
            }
            let result = sender(&conn)(&conn, &mut buffers, flags);
            hosts::take_new(interest::attached);
            repromote::after_call(&conn);
            done_unless_retired(result)
        }
    }
}

/// `sendmsg` on any descriptor: descriptors passed with SCM_RIGHTS leave their lanes first. Call it
/// for an untracked descriptor only when the message has control data.
///
/// # Safety
/// See the module.
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Call {
    // SAFETY: the caller's.
    let Some(header) = (unsafe { Header::new(msg) }) else { return Call::Pass };
    if !is_tracked(fd) {
        let mut is_whole = true;
        header::each_right(header, |passed| {
            if !elsewhere::is(passed) {
                hosts::ask_number(passed);
            }
        });
        header::each_right(header, |passed| {
            if elsewhere::is(passed) {
                return;
            }
            if let Some(Entry::Set(set)) = table::entry(passed) {
                interest::watched(set); // who gets it waits where we do not see it
            }
            let _section = section::Guard::enter();
            if let Some(conn) = ConnGuard::new(passed, Half::Receive)
                && conn.stage() != Stage::Listener
                && conn.stage() != Stage::Fresh
            {
                if !handover::leave_to(&conn, passed, Reason::Passed, NextReader::Stranger) {
                    is_whole = false;
                    return;
                }
                // Another connection may be in its place.
                if table::entry(passed) == Some(Entry::Conn(conn.index())) {
                    crate::lifecycle::adopt::passed_on(&conn, passed);
                }
            }
        });
        // The process that gets the descriptor would miss the unread bytes, and take the kernel's
        // end of the stream for its end.
        return if is_whole { Call::Pass } else { done(Err(Errno(libc::ETOOMANYREFS))) };
    }
    send_with(fd, flags, Some(header), || header.vector())
}

/// Reports the result of a call that was answered with [`Call::Counted`] (result or −1).
pub fn finish(ticket: Ticket, result: isize, flags: c_int) {
    finish_more(ticket, result, flags, 0);
}

/// [`finish`] for a piece of a call that has `more` bytes to send.
#[unsafe(link_section = ".text.hot")]
pub(crate) fn finish_more(ticket: Ticket, result: isize, flags: c_int, more: usize) {
    let Some(conn) = conn::get(ticket.conn) else { return };
    let half = if ticket.receive { Half::Receive } else { Half::Send };
    // No handler of the program breaks into the counting.
    let _section = section::Guard::enter();
    let counting = Counting::now();
    counting.sub(&conn.raw[half as usize], 1);
    // Another preloaded library that makes the call by `syscall` has had it counted there.
    let is_counted = seen() != ticket.seen;
    if result > 0 && flags & libc::MSG_PEEK == 0 && !is_counted && !process::is_retired() {
        lifecycle::see(conn, ticket.fd);
        promote::count_call(conn, half, result as usize, counting);
        if let Some((page, row)) = publish::of_row(conn) {
            let direction = if ticket.receive { Direction::Receive } else { Direction::Send };
            if row == RowId::NONE {
                conn.add_unattributed(half, result as u64);
            }
            page.moved_kernel(row, direction, result as u64, counting.is_single());
        }
        promote::after_call(conn, ticket.fd, half, result as usize, more);
    }
    conn.release(half);
}

/// After a successful `recvmsg` that is not ours and carried control data: numbers that arrived with
/// SCM_RIGHTS are new descriptors; connected TCP sockets among them are counted from here on.
///
/// # Safety
/// See the module.
pub unsafe fn received_descriptors(through: c_int, msg: *const msghdr) {
    // SAFETY: the caller's.
    if let Some(header) = unsafe { Header::new(msg) } {
        header::each_right(header, |fd| crate::lifecycle::adopt::received(through, fd));
    }
}

/// `sendfile` with a tracked descriptor at either end. Into a pipe the kernel also sends from a socket.
///
/// # Safety
/// See the module.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> Call {
    if !elsewhere::is(input)
        && let Some(conn) = ConnGuard::new(input, Half::Receive)
        && splice::is_pipe(out)
    {
        prepare_splice(&conn, Half::Receive);
    }
    match route(out, Half::Send) {
        Route::Pass => Call::Pass,
        Route::Kernel(ticket) if count > bulk::PIECE && bulk::concerns(&ticket, 0) => {
            // SAFETY: the caller's.
            done_unless_retired(unsafe { bulk::sendfile(ticket, input, offset, count) })
        }
        Route::Kernel(ticket) => Call::Counted(ticket),
        Route::Library(conn) => {
            // SAFETY: the caller's.
            match unsafe {
                splice::sendfile(&conn, input, offset, count, sender(&conn), splice_off::prepare)
            } {
                Some(result) => done_unless_retired(result),
                None => Call::Pass,
            }
        }
    }
}

/// The function that sends on this connection: between hosts, or on this host.
fn sender(conn: &ConnGuard) -> send::Send {
    if hosts::has(conn) { hosts::send } else { send::send }
}

/// Before the kernel moves bytes from or to a connection by itself. False: it cannot.
fn prepare_splice(conn: &ConnGuard, half: Half) -> bool {
    if hosts::has(conn) && !hosts::let_go(conn, Reason::Splice) {
        return false;
    }
    splice_off::prepare(conn, half)
}

/// `splice`, with a tracked descriptor at either end.
///
/// # Safety
/// See the module.
pub unsafe fn splice(
    input: c_int,
    _off_in: *mut i64,
    output: c_int,
    _off_out: *mut i64,
    _len: usize,
    _flags: u32,
) -> Call {
    for (fd, half) in [(input, Half::Receive), (output, Half::Send)] {
        if !elsewhere::is(fd)
            && let Some(conn) = ConnGuard::new(fd, half)
            && !prepare_splice(&conn, half)
        {
            return done(Err(Errno::EINVAL)); // as where a file cannot be spliced: programs copy then
        }
    }
    Call::Pass
}

/// `shutdown`.
///
/// Of a sending side on the SDP lane the kernel's part is made here: the peer may answer DisConn with a reset
/// before our kernel call gets there, which then finds the carrier closed. Over TCP there is no moment between
/// the two, and the call succeeds.
pub fn shutdown(fd: c_int, how: c_int) -> Call {
    if elsewhere::is(fd) {
        return Call::Pass;
    }
    if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
        return Call::Pass; // EINVAL
    }
    let Some(conn) = ConnGuard::new(fd, Half::Send) else { return Call::Pass };
    if hosts::is_guarded(&conn) {
        if how != libc::SHUT_RD && !hosts::finish(&conn, fd, false) {
            carrier::abort(fd); // never a clean end of a stream that has more
        }
        if how != libc::SHUT_WR {
            hosts::shut_read(&conn);
        }
        return Call::Pass;
    }
    if conn.stage() != Stage::Attached || !matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        return Call::Pass;
    }
    // The kernel reports that the connection was reset before the call.
    if carrier::tcp_state(fd) == carrier::TCP_CLOSE {
        return Call::Pass;
    }
    let has_said_so = lifecycle::disconnect(&conn, conn.fd());
    conn.set(conn::Limits::Shut);
    if !has_said_so {
        return Call::Pass;
    }
    let result = match sdp_sys::fd::shutdown(fd, how) {
        Err(Errno(libc::ENOTCONN)) => Call::Done(0),
        result => done(result),
    };
    lifecycle::tell_of_end(&conn);
    result
}

/// `ioctl` (FIONREAD, FIOASYNC … on tracked descriptors). SIOCOUTQ is the kernel's: bytes in a ring, or on a queue pair,
/// have reached the other end, as bytes that its kernel has acknowledged.
///
/// # Safety
/// See the module.
pub unsafe fn ioctl(fd: c_int, request: libc::c_ulong, arg: usize) -> Call {
    if request == libc::FIONCLEX {
        exec::inheritable(fd);
    }
    // Those two a child asks for on behalf of its image.
    if matches!(request, libc::FIOCLEX | libc::FIONCLEX) || elsewhere::is(fd) {
        return Call::Pass;
    }
    if let Verdict::Leaves(leaving) = options::ioctl(request) {
        incompatible::leave_for(fd, &leaving);
        return Call::Pass;
    }
    let Some(conn) = ConnGuard::new(fd, Half::Receive) else { return Call::Pass };
    if !matches!(conn.stage(), Stage::Attached | Stage::Guarded) {
        return Call::Pass;
    }
    let request = request & 0xffff_ffff; // as the kernel reads it
    let store = |n: u64| {
        if arg == 0 {
            return done(Err(Errno::EFAULT));
        }
        // SAFETY: the ioctl's contract: `arg` points to an int.
        unsafe { (arg as *mut c_int).write_unaligned(n.min(c_int::MAX as u64) as c_int) };
        Call::Done(0)
    };
    if hosts::is_guarded(&conn) {
        return match request {
            libc::FIONREAD => hosts::readable_bytes(&conn).map_or(Call::Pass, store),
            _ => Call::Pass,
        };
    }
    match request {
        libc::FIONREAD => match splice::readable_bytes(&conn) {
            Ok(n) => store(n),
            Err(_) => Call::Pass,
        },
        // The kernel knows nothing of ring bytes in front of the mark.
        SIOCATMARK if splice::is_before_mark(&conn) => store(0),
        _ => Call::Pass,
    }
}

/// After a successful `socket`.
#[unsafe(link_section = ".text.open")]
pub fn opened(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    lifecycle::opened(fd, domain, kind, protocol);
}
/// After a successful `listen`: the server rules are consulted.
pub fn listening(fd: c_int) {
    lifecycle::listening(fd);
}
/// Before `connect`: whether it disconnects a connection of ours, which has left its lanes then.
/// [`disconnected`] follows the call.
pub fn disconnecting(fd: c_int, addr: *const sockaddr, len: socklen_t) -> bool {
    is_tracked(fd) && reconnect::before(fd, addr, len)
}
/// After the `connect` of which [`disconnecting`] said so.
pub fn disconnected(fd: c_int, has_succeeded: bool) {
    reconnect::after(fd, has_succeeded);
}
pub use strict::{may_turn_away, refusing, turns_away};
/// After `connect` that succeeded or answered EINPROGRESS: the client rules are consulted.
///
/// # Safety
/// See the module.
#[unsafe(link_section = ".text.open")]
pub unsafe fn connected(fd: c_int, addr: *const sockaddr, len: socklen_t) {
    // SAFETY: the caller's.
    unsafe { lifecycle::connected(fd, addr, len) };
}
/// Before `accept`/`accept4`: the value to give to [`accepted`] (fork generation).
pub fn accepting(listener: c_int) -> u32 {
    lifecycle::accepting(listener)
}
/// After a successful `accept`/`accept4`.
#[unsafe(link_section = ".text.open")]
pub fn accepted(listener: c_int, fd: c_int, generation: u32) {
    lifecycle::accepted(listener, fd, generation);
}
/// Before `close`: flush, DisConn, forget. `Done(-EBADF)` for a descriptor that we hide.
pub fn closing(fd: c_int) -> Call {
    let is_hidden = lifecycle::begin_close(fd);
    hosts::settle();
    if is_hidden { done(Err(Errno::EBADF)) } else { Call::Pass }
}
/// After the `close`, or after another call that closes a number before the number names something
/// else.
#[inline(always)]
pub fn closed(fd: c_int) {
    table::end_close(fd);
}
/// `close_range` and `closefrom` (with `last` = `u32::MAX`). `Done` when it was carried out here,
/// around our hidden descriptors.
pub fn closing_range(first: u32, last: u32, flags: c_int) -> Call {
    let result = lifecycle::closing_range(first, last, flags);
    hosts::settle();
    result.map_or(Call::Pass, Call::Done)
}
/// After a successful `dup`, `F_DUPFD`: `new` names the same as `old`.
pub fn duplicated(old: c_int, new: c_int) {
    lifecycle::duplicated(old, new);
}
/// Before `dup2`/`dup3` onto `new`: the file that `new` names is closed; a hidden descriptor moves
/// away. After the call: [`closed`].
pub fn replacing(new: c_int) {
    lifecycle::replacing(new);
}
/// A number that the kernel just returned for something that is not a socket: forget a stale entry.
/// A table load when there is none.
#[inline(always)]
pub fn new_descriptor(fd: c_int) {
    if is_tracked(fd) {
        process::forget(fd);
    }
}
/// Before `fcntl` on a tracked descriptor, any command: `Done(-EBADF)` for one that we hide. A
/// successful duplication is reported with [`duplicated`], anything else with [`controlled`].
pub fn controlling(fd: c_int, command: c_int, arg: usize) -> Call {
    if table::entry(fd) == Some(Entry::Hidden) && process::is_ours() {
        return done(Err(Errno::EBADF));
    }
    if let Verdict::Leaves(leaving) = options::fcntl(command, arg) {
        incompatible::leave_for(fd, &leaving);
    }
    Call::Pass
}

/// After a successful `fcntl` that is neither duplication nor locking (F_SETFL, F_SETFD, F_SETOWN…).
/// Flags are asked of the kernel where they matter; whether images are to get the number is remembered.
pub fn controlled(fd: c_int, command: c_int, arg: usize) {
    if command == libc::F_SETFD && arg as c_int & libc::FD_CLOEXEC == 0 {
        exec::inheritable(fd);
    }
}

/// `poll`, `ppoll`: `timeout` null for ever. `Pass` when no descriptor in the set is on a lane.
///
/// # Safety
/// See the module.
pub unsafe fn poll(
    fds: *mut pollfd,
    count: usize,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Call {
    // SAFETY: the caller's.
    waited(unsafe { readiness::poll(fds, count, timeout_ns(timeout), mask) })
}

fn waited(waited: Waited) -> Call {
    match waited {
        Waited::Pass => Call::Pass,
        Waited::PassEarly => Call::EarlyWait,
        Waited::Done(result) => done(result),
    }
}

/// After a wait that was answered with [`Call::EarlyWait`], whatever its result. One that never
/// comes back leaves the process with an early sleeper, which costs wake bytes, not wake-ups.
pub fn early_wait_over() {
    Early::over();
}

/// `select`, `pselect`; leaves the remaining time to the hook.
///
/// # Safety
/// See the module.
pub unsafe fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Call {
    // SAFETY: the caller's.
    waited(unsafe { readiness::select(count, read, write, except, timeout_ns(timeout), mask) })
}

/// After a successful `epoll_create`.
#[unsafe(link_section = ".text.open")]
pub fn epoll_created(set: c_int) {
    epoll::created(set);
}
/// `epoll_ctl`.
///
/// # Safety
/// See the module.
pub unsafe fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Call {
    if elsewhere::is(fd) {
        return Call::Pass;
    }
    // SAFETY: the caller's.
    unsafe { epoll::control(set, op, fd, event) }.map_or(Call::Pass, done)
}
/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`: `timeout` null for ever.
///
/// # Safety
/// See the module.
pub unsafe fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Call {
    if elsewhere::waits_for_all() {
        return Call::Pass;
    }
    // SAFETY: the caller's.
    unsafe { epoll::wait(set, events, max, timeout_ns(timeout), mask) }.map_or(Call::Pass, done)
}

/// Words of the hooks, on the page that a fork child writes anyway.
pub fn hooks() -> &'static crate::process::fork_page::Hooks {
    &crate::process::fork_page::FORK_PAGE.hooks
}

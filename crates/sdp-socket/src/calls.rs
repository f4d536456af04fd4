//! What the hooks ask: one function per kind of call.
//!
//! Every function may be called for any descriptor, also one that is not ours, before the library's
//! constructor ran, from a signal handler and in a vfork child; it answers [`Call::Pass`] whenever
//! the program's call should simply be made. No function changes `errno`.
//!
//! # Safety
//! Functions with pointer arguments are `unsafe`: the pointers are the program's own, with the
//! validity that the corresponding libc call demands.

use libc::{c_int, epoll_event, iovec, msghdr, pollfd, sigset_t, sockaddr, socklen_t, timespec};
use sdp_stats::{Direction, Reason, RowId};
use sdp_sys::{count::Way, errno::Errno, section};

use crate::{
    bulk, carrier,
    conn::{self, Half, Stage},
    demote, epoll, exec,
    handover::{self, Heir},
    inherit,
    iovec::Buffers,
    lifecycle, page, pin, plain, process, promote,
    readiness::{self, Early, Waited},
    receive::{self, Wish},
    renew, send, settings, splice,
    table::{self, Entry, Pinned},
};

pub use crate::pin::{Pin, pin};

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

fn timeout_ns(timeout: *const timespec) -> Option<u64> {
    if timeout.is_null() {
        return None;
    }
    // SAFETY: the program's own timeout, valid by the libc call's contract.
    let timeout = unsafe { *timeout };
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

/// What stands between a data call and its lane.
pub(crate) enum Road {
    /// Not ours.
    Pass,
    /// On the kernel lane, counted.
    Kernel(Ticket),
    /// Attached: through the library.
    Library(Pinned),
}

#[unsafe(link_section = ".text.hot")]
pub(crate) fn road(fd: c_int, half: Half) -> Road {
    let Some(pinned) = Pinned::new(fd, half) else {
        table::await_close(fd);
        return Road::Pass;
    };
    match pinned.stage() {
        Stage::Fresh | Stage::Listener => Road::Pass,
        Stage::Attached => attached_road(pinned),
        Stage::Kernel | Stage::Young | Stage::Meeting => {
            // In order, before the stage is looked at again: whoever attaches meanwhile either sees the
            // count or is seen (the half is not promoted while somebody is in the kernel).
            let way = Way::now();
            way.add(&pinned.raw[half as usize], 1);
            if pinned.stage() == Stage::Attached {
                way.sub(&pinned.raw[half as usize], 1);
                return attached_road(pinned);
            }
            let ticket = Ticket { conn: pinned.index(), fd, receive: half == Half::Receive };
            core::mem::forget(pinned); // until `finish`
            Road::Kernel(ticket)
        }
    }
}

fn attached_road(pinned: Pinned) -> Road {
    demote::join(&pinned, pinned.fd());
    Road::Library(pinned)
}

/// `recv`, `recvfrom` (with no address wanted, or on a connected stream), and `read` of a byte or more.
///
/// # Safety
/// See the module.
#[unsafe(link_section = ".text.hot")]
pub unsafe fn recv(fd: c_int, iov: *const iovec, count: usize, flags: c_int) -> Call {
    match road(fd, Half::Receive) {
        Road::Pass => Call::Pass,
        Road::Kernel(ticket) => Call::Counted(ticket),
        // SAFETY: the caller's.
        Road::Library(conn) => unsafe { recv_here(&conn, iov, count, flags, None) },
    }
}

/// `readv` and its kin: as [`recv`], but a call for no bytes is over at once.
///
/// # Safety
/// See the module.
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: usize, flags: c_int) -> Call {
    match road(fd, Half::Receive) {
        Road::Pass => Call::Pass,
        Road::Kernel(ticket) => Call::Counted(ticket),
        // SAFETY: the caller's.
        Road::Library(conn) => unsafe { recv_here(&conn, iov, count, flags, Some(0)) },
    }
}

/// [`recv`] on an attached connection. `none`: the answer to a call for no bytes, if it does not wait.
unsafe fn recv_here(
    conn: &Pinned,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    none: Option<usize>,
) -> Call {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Call::Pass;
    }
    if iov.is_null() && count != 0 {
        return Call::Pass; // EFAULT, by the kernel
    }
    // SAFETY: the program's vector, valid for the call.
    let Some(mut buffers) = (unsafe { Buffers::new(iov, count) }) else {
        return done(Err(Errno::EINVAL));
    };
    if flags & libc::MSG_TRUNC == 0 && buffers.has_null() {
        return done(Err(Errno::EFAULT));
    }
    let result = match none {
        Some(none) if buffers.left() == 0 => Ok(none),
        None if buffers.left() == 0 => receive::receive_none(conn, flags),
        _ => receive::receive(conn, &mut buffers, Wish { flags }),
    };
    renew::after_call(conn);
    done_unless_retired(result)
}

/// `recv` and `read` into one buffer: the common way first.
///
/// # Safety
/// See the module.
#[inline]
#[unsafe(link_section = ".text.hot")]
pub unsafe fn recv_one(fd: c_int, iov: &iovec, flags: c_int) -> Call {
    if plain::is_simple(flags) && plain::may_apply(fd) {
        let (to, len) = (iov.iov_base.cast::<u8>(), iov.iov_len);
        // SAFETY: the program's buffer.
        match unsafe { plain::receive(fd, to, len) } {
            Some(plain::Received::Done(n)) => return Call::Done(n as isize),
            Some(plain::Received::Partly(n)) => {
                // SAFETY: n bytes of the buffer are used.
                let rest = iovec { iov_base: unsafe { to.add(n) }.cast(), iov_len: len - n };
                // SAFETY: the rest of the program's buffer.
                let buffers = unsafe { Buffers::new(&raw const rest, 1) };
                let more = buffers.map_or(0, |mut rest| receive::rest_of(fd, &mut rest));
                return Call::Done((n + more) as isize);
            }
            Some(plain::Received::Empty | plain::Received::Later) | None => {}
        }
    }
    // SAFETY: the caller's.
    unsafe { recv(fd, iov, 1, flags) }
}

/// `recvmsg`: also sets `msg_namelen`, `msg_controllen` and `msg_flags`.
///
/// # Safety
/// See the module.
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Call {
    if msg.is_null() {
        return Call::Pass;
    }
    let conn = match road(fd, Half::Receive) {
        Road::Pass => return Call::Pass,
        Road::Kernel(ticket) => return Call::Counted(ticket), // the header is the kernel's to read
        Road::Library(conn) => conn,
    };
    // SAFETY: the program's header and its own vector.
    let call = unsafe { recv_here(&conn, (*msg).msg_iov, (*msg).msg_iovlen, flags, None) };
    if let Call::Done(n) = call
        && n >= 0
    {
        // SAFETY: the program's header.
        unsafe {
            (*msg).msg_namelen = 0;
            (*msg).msg_controllen = 0;
            (*msg).msg_flags = 0;
        }
    }
    call
}

/// `send`, `write`, `writev`, `sendto`.
///
/// # Safety
/// See the module.
#[unsafe(link_section = ".text.hot")]
pub unsafe fn send(fd: c_int, iov: *const iovec, count: usize, flags: c_int) -> Call {
    // SAFETY: the caller's.
    unsafe { send_with(fd, flags, || Vector { iov, count, has_control: false }) }
}

/// What a send is to send.
struct Vector {
    iov: *const iovec,
    count: usize,
    /// With control data: the kernel's as long as there is no lane.
    has_control: bool,
}

/// [`send`] of a vector that is looked for only where it is needed: what the kernel sends, the kernel reads.
///
/// # Safety
/// See the module, for the vector.
#[inline]
unsafe fn send_with(fd: c_int, flags: c_int, vector: impl FnOnce() -> Vector) -> Call {
    // Young connections too: an urgent byte counts as sent, but not as read.
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0
        && let Some(conn) = Pinned::new(fd, Half::Send)
    {
        let is_urgent = flags & libc::MSG_OOB != 0;
        let why = if is_urgent { Reason::UrgentData } else { Reason::ZeroCopyOption };
        demote::leave(&conn, fd, why);
    }
    match road(fd, Half::Send) {
        Road::Pass => Call::Pass,
        Road::Kernel(ticket) => {
            if !bulk::concerns(&ticket, flags) {
                return Call::Counted(ticket);
            }
            let Vector { iov, count, has_control } = vector();
            if iov.is_null() || has_control {
                return Call::Counted(ticket);
            }
            // SAFETY: the program's vector, valid for the call.
            match unsafe { Buffers::new(iov, count) } {
                Some(mut buffers) if buffers.left() > bulk::PIECE => {
                    done_unless_retired(bulk::send(ticket, &mut buffers, flags))
                }
                _ => Call::Counted(ticket),
            }
        }
        Road::Library(conn) => {
            let Vector { iov, count, .. } = vector();
            if iov.is_null() && count != 0 {
                return Call::Pass; // EFAULT, by the kernel
            }
            // SAFETY: the program's vector, valid for the call.
            let Some(mut buffers) = (unsafe { Buffers::new(iov, count) }) else {
                return done(Err(Errno::EINVAL));
            };
            if buffers.left() == 0 {
                return Call::Pass;
            }
            if buffers.has_null() {
                return done(Err(Errno::EFAULT));
            }
            let result = send::send(&conn, &mut buffers, flags);
            renew::after_call(&conn);
            done_unless_retired(result)
        }
    }
}

/// `send` and `write` from one buffer: the common way first.
///
/// # Safety
/// See the module.
#[inline]
pub unsafe fn send_one(fd: c_int, iov: &iovec, flags: c_int) -> Call {
    if plain::is_simple(flags) && plain::may_apply(fd) {
        // SAFETY: the program's buffer.
        let sent = unsafe { plain::send(fd, iov.iov_base.cast(), iov.iov_len) };
        if sent {
            return Call::Done(iov.iov_len as isize);
        }
    }
    // SAFETY: the caller's.
    unsafe { send(fd, iov, 1, flags) }
}

/// `sendmsg` on any descriptor: descriptors passed with SCM_RIGHTS leave their lanes first. Call it
/// for an untracked descriptor only when the message has control data.
///
/// # Safety
/// See the module.
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Call {
    if msg.is_null() {
        return Call::Pass;
    }
    if !is_tracked(fd) {
        // SAFETY: the program's header.
        unsafe {
            each_right(msg, |passed| {
                if let Some(Entry::Set(set)) = table::entry(passed) {
                    epoll::watched(set); // who gets it waits where we do not see it
                }
                let _section = section::Guard::enter();
                if let Some(conn) = Pinned::new(passed, Half::Receive)
                    && conn.stage() != Stage::Listener
                    && conn.stage() != Stage::Fresh
                {
                    handover::leave_to(&conn, passed, Reason::Passed, Heir::Stranger);
                    // Another connection may be in its place.
                    if table::entry(passed) == Some(Entry::Conn(conn.index())) {
                        crate::adopt::passed_on(&conn, passed);
                    }
                }
            });
        }
        return Call::Pass;
    }
    let vector = || {
        // SAFETY: the program's header.
        let (iov, count, control) =
            unsafe { ((*msg).msg_iov, (*msg).msg_iovlen, (*msg).msg_controllen) };
        Vector { iov, count, has_control: control != 0 }
    };
    // SAFETY: the header's own vector.
    unsafe { send_with(fd, flags, vector) }
}

/// Calls `each` with every descriptor in the message's SCM_RIGHTS.
///
/// # Safety
/// `msg` is a valid header whose control data is readable.
unsafe fn each_right(msg: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: the caller's header; the macros stay within msg_controllen.
    unsafe {
        if (*msg).msg_control.is_null() {
            return;
        }
        let mut at = libc::CMSG_FIRSTHDR(msg);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*at).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(at).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    each(data.add(i).read_unaligned());
                }
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
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
    let way = Way::now();
    way.sub(&conn.raw[half as usize], 1);
    if result > 0 && flags & libc::MSG_PEEK == 0 && !process::is_retired() {
        lifecycle::see(conn, ticket.fd);
        promote::count_call(conn, half, result as usize, way);
        if let Some((page, row)) = page::of_row(conn) {
            let direction = if ticket.receive { Direction::Receive } else { Direction::Send };
            if row == RowId::NONE {
                conn.add_rowless(half, result as u64);
            }
            page.moved_kernel(row, direction, result as u64, way.is_single());
        }
        promote::after_call(conn, ticket.fd, half, result as usize, more);
    }
    conn.unpin(half);
}

/// After a successful `recvmsg` that is not ours and carried control data: numbers that arrived with
/// SCM_RIGHTS are new descriptors; connected TCP sockets among them are counted from here on.
///
/// # Safety
/// See the module.
pub unsafe fn received_descriptors(through: c_int, msg: *const msghdr) {
    // SAFETY: the caller's.
    unsafe { each_right(msg, |fd| crate::adopt::received(through, fd)) };
}

/// `sendfile` to `out`.
///
/// # Safety
/// See the module.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> Call {
    match road(out, Half::Send) {
        Road::Pass => Call::Pass,
        Road::Kernel(ticket) if count > bulk::PIECE && bulk::concerns(&ticket, 0) => {
            // SAFETY: the caller's.
            done_unless_retired(unsafe { bulk::sendfile(ticket, input, offset, count) })
        }
        Road::Kernel(ticket) => Call::Counted(ticket),
        Road::Library(conn) => {
            // SAFETY: the caller's.
            done_unless_retired(unsafe { splice::sendfile(&conn, input, offset, count) })
        }
    }
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
        if let Some(conn) = Pinned::new(fd, half) {
            splice::prepare_splice(&conn, half);
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
    let Some(conn) = Pinned::new(fd, Half::Send) else { return Call::Pass };
    if conn.stage() != Stage::Attached || !matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        return Call::Pass;
    }
    // What was reset before the call is the kernel's to say.
    let was_open = carrier::tcp_state(fd) != carrier::TCP_CLOSE;
    let has_said_so = lifecycle::disconnect(&conn, conn.fd());
    conn.set(conn::flag::SHUT);
    if !was_open || !has_said_so {
        return Call::Pass;
    }
    // SAFETY: no pointers; the program's own call.
    match unsafe { sdp_sys::sys!(libc::SYS_shutdown, fd, how) } {
        Err(Errno(libc::ENOTCONN)) => Call::Done(0),
        result => done(result),
    }
}

/// `ioctl` (FIONREAD, SIOCOUTQ, FIOASYNC … on tracked descriptors).
///
/// # Safety
/// See the module.
pub unsafe fn ioctl(fd: c_int, request: libc::c_ulong, arg: usize) -> Call {
    if request == libc::FIONCLEX {
        exec::inheritable(fd);
    }
    let Some(conn) = Pinned::new(fd, Half::Receive) else { return Call::Pass };
    if conn.stage() != Stage::Attached {
        return Call::Pass;
    }
    let store = |n: u64| {
        if arg == 0 {
            return done(Err(Errno::EFAULT));
        }
        // SAFETY: the ioctl's contract: `arg` points to an int.
        unsafe { (arg as *mut c_int).write_unaligned(n.min(c_int::MAX as u64) as c_int) };
        Call::Done(0)
    };
    match request {
        libc::FIONREAD => match splice::readable_bytes(&conn) {
            Ok(n) => store(n),
            Err(_) => Call::Pass,
        },
        libc::TIOCOUTQ => {
            let mut kernel: c_int = 0;
            // SAFETY: a writable int.
            let asked =
                unsafe { sdp_sys::sys!(libc::SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut kernel) };
            match asked {
                Ok(_) => store(kernel.max(0) as u64 + splice::unsent_bytes(&conn)),
                Err(e) => done(Err(e)),
            }
        }
        // The kernel knows nothing of ring bytes in front of the mark.
        SIOCATMARK if splice::has_ring_bytes(&conn) => store(0),
        FIOASYNC | FIOSETOWN | SIOCSPGRP => {
            demote::leave(&conn, fd, Reason::SignalDriven);
            Call::Pass
        }
        _ => Call::Pass,
    }
}

const FIOASYNC: libc::c_ulong = 0x5452;
const FIOSETOWN: libc::c_ulong = 0x8901;
const SIOCSPGRP: libc::c_ulong = 0x8902;
const SIOCATMARK: libc::c_ulong = 0x8905;

/// `setsockopt`: options that the SDP lane cannot keep pin the connection to the kernel lane first.
///
/// # Safety
/// See the module.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const libc::c_void,
    len: socklen_t,
) -> Call {
    let why = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => Reason::UrgentData,
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => Reason::ZeroCopyOption,
        (
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING | libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF,
        ) => Reason::UnsuitableSocket,
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
            let wanted = if value.is_null() || (len as usize) < size_of::<c_int>() {
                1
            } else {
                // SAFETY: the call's contract: readable for `len` bytes.
                unsafe { value.cast::<c_int>().read_unaligned() }
            };
            if wanted <= 1 {
                return Call::Pass;
            }
            Reason::LowWatermark
        }
        (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR) => Reason::UnsuitableSocket,
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE | libc::SO_BINDTOIFINDEX) => {
            if let Some(conn) = Pinned::new(fd, Half::Receive) {
                conn.set(conn::flag::BOUND);
            }
            return Call::Pass;
        }
        _ => return Call::Pass,
    };
    // With these it is the kernel that makes sense of the bytes, or counts them for `poll`; with the
    // others, our own receive calls go on to deliver what is left in the ring.
    let heir = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR)
        | (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => Some(Heir::Ourselves),
        _ => None,
    };
    pin::leave(fd, why, heir);
    Call::Pass
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
    if lifecycle::begin_close(fd) { done(Err(Errno::EBADF)) } else { Call::Pass }
}
/// After the `close`, or what closes a number before it names something else.
#[inline(always)]
pub fn closed(fd: c_int) {
    table::end_close(fd);
}
/// `close_range` and `closefrom` (with `last` = `u32::MAX`). `Done` when it was carried out here,
/// around our hidden descriptors.
pub fn closing_range(first: u32, last: u32, flags: c_int) -> Call {
    lifecycle::closing_range(first, last, flags).map_or(Call::Pass, Call::Done)
}
/// After a successful `dup`, `F_DUPFD`: `new` names what `old` names.
pub fn duplicated(old: c_int, new: c_int) {
    lifecycle::duplicated(old, new);
}
/// Before `dup2`/`dup3` onto `new`: what `new` names is closed; a hidden descriptor moves away. After the call: [`closed`].
pub fn replacing(new: c_int) {
    lifecycle::replacing(new);
}
/// A number that the kernel just returned for something that is not a socket: forget a stale entry.
/// A table load when there is none.
#[inline(always)]
pub fn new_descriptor(fd: c_int) {
    if is_tracked(fd) {
        lifecycle::forget(fd);
    }
}
/// Before `fcntl` on a tracked descriptor, any command: `Done(-EBADF)` for one that we hide. A
/// successful duplication is reported with [`duplicated`], anything else with [`controlled`].
pub fn controlling(fd: c_int, command: c_int, arg: usize) -> Call {
    if table::entry(fd) == Some(Entry::Hidden) {
        return done(Err(Errno::EBADF));
    }
    let signal_driven = match command {
        libc::F_SETFL => arg as c_int & libc::O_ASYNC != 0,
        F_SETSIG | libc::F_SETOWN | F_SETOWN_EX => true,
        _ => false,
    };
    if signal_driven {
        pin(fd, Pin::SignalDriven);
    }
    Call::Pass
}

/// Of `fcntl`, which the libc crate does not have for every C library.
pub(crate) const F_SETSIG: c_int = 10;
pub(crate) const F_SETOWN_EX: c_int = 15;

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

/// After a wait that was answered with [`Call::EarlyWait`], whatever it came to. One that never comes back leaves
/// the process with an early sleeper, which costs bells, not wake-ups.
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
    // SAFETY: the caller's.
    unsafe { epoll::wait(set, events, max, timeout_ns(timeout), mask) }.map_or(Call::Pass, done)
}

/// Words of the hooks, on the page that a fork child writes anyway.
pub fn hooks() -> &'static crate::hot::Hooks {
    &crate::hot::PAGE.hooks
}

/// Before `fork` (not vfork): takes the locks that must not be copied in a locked state.
#[unsafe(link_section = ".text.hot.parent")]
pub fn fork_prepare() {
    inherit::fork_prepare();
}
/// After `fork` in the parent; `child` is −1 when it failed.
#[unsafe(link_section = ".text.hot.parent")]
pub fn fork_parent(child: c_int) {
    inherit::fork_parent(child);
}
/// After `fork` in the child, process `pid` if the caller has asked.
#[unsafe(link_section = ".text.hot")]
pub fn fork_child(pid: Option<c_int>) {
    inherit::fork_child(pid);
}
/// Before any `exec`: connections that the new image is to have leave their lanes. Nothing is torn down: exec may
/// fail.
pub fn executing() {
    exec::executing();
}
/// Before `posix_spawn`, likewise.
pub fn spawning() {
    exec::spawning();
}
/// Before a seccomp filter is installed, and before any change of privilege or root: leave all lanes;
/// for good only for the filter.
pub fn leaving(why: Leave) {
    match why {
        Leave::Sandbox => inherit::leaving(Reason::Sandbox, true),
        Leave::Privilege => inherit::leaving(Reason::Privilege, false),
        Leave::Namespace => inherit::leaving(Reason::Namespace, false),
    }
}

/// Whether children of this process are born into another process namespace from here on; whether they were
/// before.
pub fn children_elsewhere(yes: bool) -> bool {
    process::set_children_elsewhere(yes)
}

/// A thread of this process enters another network namespace: sockets are asked where they are from here on.
pub fn networks_differ() {
    process::note_networks();
}

/// The filter was not installed, and there was nothing to leave before.
pub fn stays_after_all() {
    process::come_back();
}

/// Why the process leaves all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// A seccomp filter is about to be installed.
    Sandbox,
    /// Real or saved ids, groups, capabilities, root directory or user namespace change.
    Privilege,
    /// The network namespace changes.
    Namespace,
}
/// Before the process exits in an orderly way (`exit`, `_exit`, `quick_exit`).
#[unsafe(link_section = ".text.hot")]
pub fn exiting() {
    inherit::exiting();
}
/// What a program gets that asks for io_uring, whose use of descriptors no hook sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoUring {
    /// `ENOSYS` for programs that are known to fall back to what the hooks see, else passed on.
    Auto,
    /// `ENOSYS` for all.
    Deny,
    /// Passed on.
    Allow,
}

/// The tunable `io_uring`. Reads the rule file if that has not happened yet.
pub fn io_uring() -> IoUring {
    use sdp_config::tunables::IoUring as Setting;
    settings::load();
    match process::tunables().io_uring() {
        Setting::Auto => IoUring::Auto,
        Setting::Deny => IoUring::Deny,
        Setting::Allow => IoUring::Allow,
    }
}

/// The library's constructor: remembers the process, reads tunables from `envp`.
///
/// # Safety
/// `argv` and `envp` are the null-terminated vectors that the loader hands to constructors.
pub unsafe fn constructed(argc: c_int, argv: *const *const u8, envp: *const *const u8) {
    process::remember();
    // SAFETY: the loader calls this once, in one thread; no other place names these words.
    let _ = unsafe { sdp_sys::tls::keep_sections(&crate::hot::PAGE.sections) };
    // SAFETY: the caller's.
    unsafe { settings::capture(argc, argv, envp) };
    crate::adopt::begin();
}

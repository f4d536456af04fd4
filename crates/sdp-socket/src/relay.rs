//! The last way of a hand-over (X14): a connection of our own in the place of the carrier.
//!
//! Where bytes unread in a ring cannot be put back into the carrier's stream (the peer's socket is refused to
//! us, or its end has closed), somebody who knows only the kernel's stream would miss them. Then the
//! program's numbers are made to name one end of a private connection over loopback, whose other end
//! delivers the unread bytes first. If the peer has gone and the kernel takes all that is left, that is all.
//! Else a forked process, in nobody's way, goes on pumping between that end and the carrier, both ways,
//! until both have ended.
//!
//! This is the one exception to the rule that the program's descriptor is its kernel socket for ever: names
//! that the kernel tells are those of the private connection, and registrations with epoll are gone. It
//! refuses where relatives hold the connection too: they go on with the carrier.

use core::{mem::size_of, ops::Range, ptr::null};

use libc::{c_int, sockaddr_in, socklen_t};
use sdp_stats::Reason;
use sdp_sys::{Errno, OwnedFd, fd, sys};

use crate::{
    carrier,
    conn::Conn,
    lifecycle,
    table::{self, Entry},
};

/// Strangers that come to the private listener before our own connection does.
const STRANGERS_MAX: u32 = 16;
/// Bytes on their way in one direction.
const BUFFER: usize = 64 * 1024;
/// Descriptors closed one by one where the kernel knows no `close_range`.
const CLOSED_BY_HAND: c_int = 4096;

/// A private connection.
pub(crate) struct Pair {
    /// For the program.
    ours: OwnedFd,
    /// For what it is to read; never blocks.
    other: OwnedFd,
}

impl Pair {
    /// Connects to ourselves over loopback. `None`: not to be had here.
    pub(crate) fn new() -> Option<Self> {
        let listener = socket()?;
        // SAFETY: all zeros is a valid address structure.
        let mut address: sockaddr_in = unsafe { core::mem::zeroed() };
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
        let len = size_of::<sockaddr_in>();
        // SAFETY: the address outlives the calls.
        unsafe {
            sys!(libc::SYS_bind, listener.raw(), &raw const address, len).ok()?;
            sys!(libc::SYS_listen, listener.raw(), 1).ok()?;
        }
        let address = name(libc::SYS_getsockname, listener.raw())?;
        let ours = socket()?;
        // SAFETY: as above.
        unsafe { sys!(libc::SYS_connect, ours.raw(), &raw const address, len) }.ok()?;
        let own = name(libc::SYS_getsockname, ours.raw())?;
        for _ in 0..STRANGERS_MAX {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: null pointers: the address is asked for below. It has come, or a stranger has.
            let accepted = unsafe { sys!(libc::SYS_accept4, listener.raw(), 0, 0, flags) };
            let other = OwnedFd::new(accepted.ok()? as c_int);
            let peer = name(libc::SYS_getpeername, other.raw())?;
            if (peer.sin_port, peer.sin_addr.s_addr) == (own.sin_port, own.sin_addr.s_addr) {
                return Some(Self { ours, other });
            }
        }
        None
    }

    /// Puts the program's end in the place of the carrier, and `unread` in front of what the carrier still
    /// brings. False: bytes are lost. In a section, with nobody else inside the connection's lanes.
    pub(crate) fn replace(self, conn: &Conn, fd: c_int, unread: &[u8], is_peer_gone: bool) -> bool {
        let Self { ours, other } = self;
        copy_options(fd, ours.raw());
        let rest = unread.get(send(other.raw(), unread)..).unwrap_or(&[]);
        let is_all = rest.is_empty() && is_peer_gone && forward_all(fd, other.raw());
        if !is_all && !start_process(fd, other.raw(), rest) {
            return false;
        }
        conn.note_reason(if is_all { Reason::Orphaned } else { Reason::HandoverStuck });
        crate::process::tell_heirs(conn, ours.raw());
        let index = conn.index();
        // The connection may be gone with its last number.
        table::walk(|number, entry| {
            if entry == Entry::Conn(index) {
                put(ours.raw(), number);
                lifecycle::forget(number);
            }
        });
        true
    }
}

fn socket() -> Option<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let made = unsafe { sys!(libc::SYS_socket, libc::AF_INET, kind, 0) };
    made.ok().map(|fd| OwnedFd::new(fd as c_int))
}

fn name(call: libc::c_long, fd: c_int) -> Option<sockaddr_in> {
    // SAFETY: all zeros is a valid address structure.
    let mut address: sockaddr_in = unsafe { core::mem::zeroed() };
    let mut len = size_of::<sockaddr_in>() as socklen_t;
    // SAFETY: address and length outlive the call.
    unsafe { sys!(call, fd, &raw mut address, &raw mut len) }.ok()?;
    Some(address)
}

/// Flags and options that a program would notice.
fn copy_options(from: c_int, to: c_int) {
    // SAFETY: no pointers.
    if let Ok(flags) = unsafe { sys!(libc::SYS_fcntl, from, libc::F_GETFL) } {
        // SAFETY: as above.
        let _ = unsafe { sys!(libc::SYS_fcntl, to, libc::F_SETFL, flags) };
    }
    let options = [
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        (libc::SOL_SOCKET, libc::SO_LINGER),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    ];
    for (level, option) in options {
        let mut value = [0u8; 16];
        let mut len = value.len() as socklen_t;
        // SAFETY: value and length outlive the calls, which write and read at most `len` bytes.
        let _ = unsafe {
            let (at, length) = (value.as_mut_ptr(), &raw mut len);
            sys!(libc::SYS_getsockopt, from, level, option, at, length)
                .and_then(|_| sys!(libc::SYS_setsockopt, to, level, option, value.as_ptr(), len))
        };
    }
}

/// Makes `number` name what `fd` names, and keeps whether it is closed by exec.
fn put(fd: c_int, number: c_int) {
    // SAFETY: no pointers.
    let flags = unsafe { sys!(libc::SYS_fcntl, number, libc::F_GETFD) }.unwrap_or(0) as c_int;
    let cloexec = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: as above.
    let _ = unsafe { sys!(libc::SYS_dup3, fd, number, cloexec) };
}

/// How many bytes the kernel takes now.
fn send(to: c_int, bytes: &[u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match send_once(to, rest) {
            Ok(n) => done += n,
            Err(_) => break,
        }
    }
    done
}

fn send_once(to: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes outlive the call.
    unsafe { sys!(libc::SYS_sendto, to, bytes.as_ptr(), bytes.len(), flags, null::<u8>(), 0) }
}

fn receive(from: c_int, to: &mut [u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the buffer is writable for its length.
    unsafe { sys!(libc::SYS_recvfrom, from, to.as_mut_ptr(), to.len(), flags, 0, 0) }
}

/// Sends what a carrier whose peer has gone still holds, and its end. False: something is left to do.
fn forward_all(carrier: c_int, to: c_int) -> bool {
    let mut buffer = [0u8; 4096];
    loop {
        match receive(carrier, &mut buffer) {
            Ok(0) => {
                // SAFETY: no pointers.
                return unsafe { sys!(libc::SYS_shutdown, to, libc::SHUT_WR) }.is_ok();
            }
            Ok(n) if send(to, buffer.get(..n).unwrap_or(&[])) == n => {}
            // What was taken and not sent is lost: the reader must not take it for an end.
            Ok(_) | Err(Errno::ECONNRESET) => {
                carrier::reset_on_close(to);
                return true;
            }
            Err(_) => return false,
        }
    }
}

/// Starts the process that pumps. Nobody waits for it: it is the child of a child that has ended.
fn start_process(carrier: c_int, other: c_int, first: &[u8]) -> bool {
    // SAFETY: a copy of this process without threads, which makes system calls and nothing else.
    let child = unsafe { sys!(libc::SYS_clone, 0, 0, 0, 0, 0) };
    match child {
        Ok(0) => {
            // SAFETY: as above.
            let pump = unsafe { sys!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if pump == Ok(0) {
                pump_until_both_end(carrier, other, first);
            }
            exit(if pump.is_ok() { 0 } else { 1 })
        }
        Ok(pid) => {
            let mut status: c_int = 0;
            loop {
                // SAFETY: the status outlives the call.
                let waited = unsafe {
                    sys!(libc::SYS_wait4, pid, &raw mut status, libc::__WCLONE, null::<u8>())
                };
                if waited != Err(Errno::EINTR) {
                    return waited.is_ok() && status == 0;
                }
            }
        }
        Err(_) => false,
    }
}

fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: no pointers; does not return.
        let _ = unsafe { sys!(libc::SYS_exit_group, code) };
    }
}

/// One direction of the pump.
struct Flow<'a> {
    from: c_int,
    to: c_int,
    /// Goes before what `from` brings.
    first: &'a [u8],
    buffer: [u8; BUFFER],
    /// What of the buffer is still to be sent.
    held: Range<usize>,
    /// `from` has ended, and `to` knows it.
    is_done: bool,
}

impl<'a> Flow<'a> {
    fn new(from: c_int, to: c_int, first: &'a [u8]) -> Self {
        Self { from, to, first, buffer: [0; BUFFER], held: 0..0, is_done: false }
    }

    /// What is still to be sent.
    fn rest(&self) -> &[u8] {
        if self.first.is_empty() {
            self.buffer.get(self.held.clone()).unwrap_or(&[])
        } else {
            self.first
        }
    }

    /// What this direction waits for at descriptor `fd`.
    fn wish(&self, fd: c_int) -> i16 {
        let sends = !self.rest().is_empty();
        match self.is_done {
            false if sends && fd == self.to => libc::POLLOUT,
            false if !sends && fd == self.from => libc::POLLIN,
            _ => 0,
        }
    }

    /// Moves what can be moved now. An error: the connection is broken.
    fn step(&mut self) -> Result<(), Errno> {
        if self.is_done {
            return Ok(());
        }
        if self.rest().is_empty() {
            match receive(self.from, &mut self.buffer) {
                Ok(0) => {
                    self.is_done = true;
                    // SAFETY: no pointers.
                    let _ = unsafe { sys!(libc::SYS_shutdown, self.to, libc::SHUT_WR) };
                    return Ok(());
                }
                Ok(n) => self.held = 0..n,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let rest = self.rest();
        let sent = match send_once(self.to, rest) {
            Ok(n) => n,
            Err(Errno::EAGAIN) => return Ok(()),
            Err(e) => return Err(e),
        };
        if self.first.is_empty() {
            self.held.start += sent;
        } else {
            self.first = self.first.get(sent..).unwrap_or(&[]);
        }
        Ok(())
    }
}

/// The relay process. `carrier` and `other` are all that it keeps of its parent's.
fn pump_until_both_end(carrier: c_int, other: c_int, first: &[u8]) -> ! {
    let all = u64::MAX;
    // SAFETY: the mask outlives the call; the texts end with NUL.
    unsafe {
        let _ = sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, 0, 8);
        let _ = sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"sdp-relay".as_ptr());
        let _ = sys!(libc::SYS_chdir, c"/".as_ptr());
    }
    let Ok((carrier, other)) = keep_only(carrier, other) else { exit(1) };
    let mut flows = [Flow::new(carrier, other, first), Flow::new(other, carrier, &[])];
    while flows.iter().any(|flow| !flow.is_done) {
        let mut polls = [carrier, other].map(|fd| {
            let events = flows.iter().fold(0, |events, flow| events | flow.wish(fd));
            // One that nothing is asked of may have hung up, which poll would tell again and again.
            libc::pollfd { fd: if events == 0 { -1 } else { fd }, events, revents: 0 }
        });
        // SAFETY: the entries outlive the call.
        let _ =
            unsafe { sys!(libc::SYS_ppoll, polls.as_mut_ptr(), 2, null::<u8>(), null::<u8>(), 8) };
        if flows.iter_mut().any(|flow| flow.step().is_err()) {
            // Whoever is left shall not take it for an end.
            carrier::reset_on_close(carrier);
            carrier::reset_on_close(other);
            break;
        }
    }
    exit(0)
}

/// Closes every other descriptor; the numbers that the two have then.
fn keep_only(carrier: c_int, other: c_int) -> Result<(c_int, c_int), Errno> {
    // First out of the way of 0 and 1.
    // SAFETY: no pointers.
    let (carrier, other) = unsafe {
        (
            sys!(libc::SYS_fcntl, carrier, libc::F_DUPFD, 2)? as c_int,
            sys!(libc::SYS_fcntl, other, libc::F_DUPFD, 2)? as c_int,
        )
    };
    for (from, to) in [(carrier, 0), (other, 1)] {
        // SAFETY: as above.
        unsafe { sys!(libc::SYS_dup3, from, to, 0)? };
    }
    // SAFETY: as above.
    if unsafe { sys!(libc::SYS_close_range, 2, u32::MAX, 0) }.is_err() {
        (2..CLOSED_BY_HAND).for_each(fd::close);
    }
    Ok((0, 1))
}

//! The last way of a hand-over (R7): a relay between a private connection, which the program's
//! descriptor names from then on, and the carrier.
//!
//! Called by [`super::handover`] alone.
//!
//! Where bytes unread in a ring cannot be put back into the carrier's stream (the peer's socket is
//! refused to us, or its end has closed), a reader that knows only the kernel's stream would miss
//! them. Then the program's numbers are made to name one end of a private connection over loopback.
//! A forked process, which hinders no other one, sends the unread bytes into its other end, and
//! goes on copying between that and the carrier, both ways, until both have ended.
//!
//! Everything that can fail is made before the first byte is taken out of the ring
//! ([`Relay::new`]): the connection, memory for the bytes, and the process, which gets a word when
//! they are there ([`Relay::replace`]). Should it be killed, both connections are reset: no reader
//! takes that for an end.
//!
//! Where another process has the carrier as well (a parent that starts a program with it), nothing
//! may be taken out of the ring. If the peer is gone, the image's numbers get a private connection
//! with a copy of all unread bytes, and its end; a process that reads the carrier through the
//! library does so as if there were no image ([`give_copy`]).
//!
//! So it is with a connection to another host whose other end does not answer an end that leaves
//! ([`guarded`]): there the process reads and writes the carrier with the halves of the library,
//! until no marker comes any more ([`Reader`]).
//!
//! This is the one exception to the rule that the program's descriptor is its kernel socket for
//! ever: the kernel returns the addresses of the private connection. It refuses where another
//! thread of this process could use the connection meanwhile, and where the program waits for it by
//! epoll.

use core::{
    mem::size_of,
    ops::Range,
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};

use libc::{c_int, sockaddr_in};
use sdp_sys::{
    Errno, OwnedFd, fd,
    kernel::{self, End, owned, zeroed},
    memory::{self, Zeros},
    section, sys,
    time::monotonic_ns,
};

use crate::{
    conn::{Conn, carrier, publish},
    datapath::reset::reset,
    hosts::{self, MakingRelay, Next, Reader},
    migration::handover::Heap,
    process::{
        self,
        table::{self, Entry},
    },
};

/// Strangers that come to the private listener before our own connection does.
const STRANGERS_MAX: u32 = 16;
/// How long loopback may take to connect.
const PATIENCE_NS: u64 = 500_000_000;
/// Bytes in flight in one direction.
const BUFFER: usize = 64 * 1024;
/// How often, and how long apart, it is asked whether bytes have come over loopback.
const ACK_LOOKS: u32 = 20;
const ACK_SLEEP_NS: i64 = 1_000_000;
/// How long apart in the end, where the receiver takes its time.
const DELIVERY_SLEEP_NS: i64 = 500_000_000;
/// The longest sleep of a relay where poll reports bytes that cannot be moved.
const SLEEP_MAX_NS: i64 = 100_000_000;
/// Signals that a relay blocks also when it sleeps: those that its own calls cause (SIGPIPE).
const ASLEEP: u64 = 1 << (libc::SIGPIPE - 1);
/// How long a relay moves nothing before a signal may end it; less than a second.
const QUIET_NS: i64 = 999_999_999;
/// After how many seconds of silence a relay asks the kernel whether the program's end is still there.
const KEEPALIVE_S: c_int = 60;
/// Descriptors closed one by one where the kernel knows no `close_range`.
const CLOSED_BY_HAND: c_int = 4096;
/// The last relays that are this process's children, where it is one that orphans come to: 0, or a process.
static CHILDREN: [AtomicI32; 32] = [const { AtomicI32::new(0) }; 32];
static NEXT_CHILD: AtomicU32 = AtomicU32::new(0);

/// A relay that waits for the bytes to deliver.
pub(crate) struct Relay {
    /// The program's end of the private connection.
    ours: OwnedFd,
    /// Tells the process how many bytes there are; if it is closed without that, the process ends.
    word: OwnedFd,
    /// The unread bytes; shared with the process.
    pub(crate) unread: Heap,
}

impl Relay {
    /// For the connection `carrier` with at most `room` unread bytes. `None`: not to be had here.
    pub(crate) fn new(carrier: c_int, room: usize) -> Option<Self> {
        let (ours, other) = pair()?;
        copy_options(carrier, ours.raw());
        let unread = Heap::shared(room)?;
        let mut buffers = Buffers::new()?;
        let mut ends: [c_int; 2] = [-1; 2];
        kernel::pipe2(&mut ends, libc::O_CLOEXEC).ok()?;
        let [told, word] = ends.map(OwnedFd::new);
        let fds = [carrier, other.raw(), told.raw()];
        let kept = [range(unread.first(u64::MAX)), range(&buffers.0), 0..0, 0..0, 0..0];
        let mut pump = || pump_when_told(fds, &unread, &mut buffers);
        let child = start_process(kept, &mut pump)?;
        child.goes_on().then_some(Self { ours, word, unread })
    }

    /// Puts the program's end in the place of the carrier. False: the bytes are lost. The caller
    /// has the connection falling back, in a section, with no other thread inside its lanes.
    pub(crate) fn replace(self, conn: &Conn) -> bool {
        let count = (self.unread.bytes().len() as u64).to_ne_bytes();
        if fd::write(self.word.raw(), &count) != Ok(count.len()) {
            return false;
        }
        put_everywhere(conn, &self.ours);
        true
    }
}

/// In the place of a connection to another host that does not answer an end that leaves: the relay
/// reads and writes the guarded carrier until it does. `None`: no relay is possible, and nothing
/// has changed. False: the connection was reset.
pub(crate) fn guarded(conn: &Conn, carrier: c_int) -> Option<bool> {
    let (ours, other) = pair()?;
    copy_options(carrier, ours.raw());
    if carrier::has_sent_end(carrier) {
        let _ = fd::shutdown(ours.raw(), libc::SHUT_WR);
    }
    let mut unread = Zeros::private(Reader::ROOM)?;
    let mut buffers = Buffers::new()?;
    let fds = [carrier, other.raw()];
    let _making = MakingRelay::begin(conn);
    let child = Reader::new(conn, carrier, &mut unread).and_then(|(reader, len)| {
        let [conn, pair, ring] = reader.memory();
        let kept = [conn, pair, ring, range(&unread), range(&buffers.0)];
        let unread = unread.get(..len)?;
        let mut pump = || pump_guarded(fds, unread, &mut buffers, reader);
        reader.copied(|| start_process(kept, &mut pump))
    });
    let is_started = child.is_some_and(Child::goes_on);
    if is_started {
        hosts::note_relayed(conn);
        put_everywhere(conn, &ours);
    } else {
        reset(conn);
    }
    Some(is_started)
}

/// All numbers of a connection name `fd`, and are the kernel's.
fn put_everywhere(conn: &Conn, fd: &OwnedFd) {
    publish::tag_for_next_owner(conn, fd.raw());
    let index = conn.index();
    table::walk(|number, entry| {
        if entry == Entry::Conn(index) {
            put(fd.raw(), number);
            process::forget(number);
        }
    });
}

/// A private connection with all of `copy` and then the end, or a reset, takes the place of those numbers of `carrier`
/// that a new image gets: `number`, and in a process with a table of its own all that stay open. False: not to be had.
pub(crate) fn give_copy(
    conn: &Conn,
    carrier: c_int,
    number: c_int,
    copy: &Heap,
    is_reset: bool,
) -> bool {
    let Some((ours, other)) = pair() else { return false };
    copy_options(carrier, ours.raw());
    let mut rest = copy.bytes();
    while let Ok(sent) = send_once(other.raw(), rest)
        && sent > 0
    {
        rest = rest.get(sent..).unwrap_or(&[]);
    }
    // For bytes that have not come over yet a process must keep a socket.
    let has_come = rest.is_empty() && has_come_over(other.raw());
    if has_come {
        carrier::set_reset_on_close(other.raw(), is_reset);
    } else {
        let kept = [range(rest), 0..0, 0..0, 0..0, 0..0];
        let mut deliver = || deliver_until_it_ends(other.raw(), rest, is_reset);
        if !start_process(kept, &mut deliver).is_some_and(Child::goes_on) {
            return false;
        }
    }
    publish::tag_for_next_owner(conn, ours.raw());
    put_for_image(conn, ours.raw(), number);
    true
}

/// Makes those numbers of a connection that a new image gets name `fd`.
fn put_for_image(conn: &Conn, fd: c_int, number: c_int) {
    put(fd, number);
    if process::is_ours() {
        let index = conn.index();
        table::walk(|other, entry| {
            if entry == Entry::Conn(index) && fd::stays_open(other) {
                put(fd, other);
                process::forget(other);
            }
        });
    }
}

/// As [`give_copy`], with a stream that gives ECONNRESET to the first read or write, and has ended
/// then: it needs no network, which may be forbidden here.
pub(crate) fn give_error(conn: &Conn, carrier: c_int, number: c_int) -> bool {
    let Some(ours) = broken() else { return false };
    copy_options(carrier, ours.raw());
    put_for_image(conn, ours.raw(), number);
    true
}

/// A stream whose other end was closed with a byte unread.
fn broken() -> Option<OwnedFd> {
    let mut ends: [c_int; 2] = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    kernel::socketpair(libc::AF_UNIX, kind, &mut ends).ok()?;
    let [ours, other] = ends.map(OwnedFd::new);
    let sent = send_once(ours.raw(), b"?");
    drop(other);
    (sent == Ok(1)).then_some(ours)
}

/// Whether all that was sent is in the receiver's queue. Over loopback that takes a moment at most.
fn has_come_over(fd: c_int) -> bool {
    (0..ACK_LOOKS).any(|look| {
        if look > 0 {
            sdp_sys::time::sleep(ACK_SLEEP_NS);
        }
        fd::unsent(fd) == Ok(0)
    })
}

/// A connection to ourselves over loopback: the program's end, and the other, which never blocks.
fn pair() -> Option<(OwnedFd, OwnedFd)> {
    let end = monotonic_ns().saturating_add(PATIENCE_NS);
    let listener = socket()?;
    let mut address: sockaddr_in = zeroed();
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
    let len = size_of::<sockaddr_in>();
    kernel::bind(listener.raw(), &address, len).ok()?;
    kernel::listen(listener.raw(), STRANGERS_MAX as c_int).ok()?;
    let address = name(End::Local, listener.raw())?;
    let ours = socket()?;
    match kernel::connect(ours.raw(), &address, len) {
        Ok(_) => {}
        Err(Errno(libc::EINPROGRESS)) if wait(ours.raw(), libc::POLLOUT, end) => {}
        Err(_) => return None,
    }
    let own = name(End::Local, ours.raw())?;
    for _ in 0..STRANGERS_MAX {
        if !wait(listener.raw(), libc::POLLIN, end) {
            return None;
        }
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let other = owned(kernel::accept4(listener.raw(), flags)).ok()?;
        let peer = name(End::Remote, other.raw())?;
        if (peer.sin_port, peer.sin_addr.s_addr) == (own.sin_port, own.sin_addr.s_addr) {
            // The kernel forgets an end that was closed, and the other end of it hears of that when it asks.
            for (level, option, value) in [
                (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_S),
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            ] {
                let _ = fd::setsockopt_int(other.raw(), level, option, value);
            }
            return Some((ours, other));
        }
    }
    None
}

/// Waits for a descriptor until `end`. False when there is no time left.
fn wait(fd: c_int, events: i16, end: u64) -> bool {
    let left = end.saturating_sub(monotonic_ns());
    // A handler that interrupts it is ours.
    fd::poll_one(fd, events, Some(left.min(999_999_999) as i64))
        .is_ok_and(|ready| ready != 0 && ready & (libc::POLLERR | libc::POLLHUP) == 0)
}

fn socket() -> Option<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    fd::socket(libc::AF_INET, kind).ok()
}

fn name(end: End, fd: c_int) -> Option<sockaddr_in> {
    let mut address: sockaddr_in = zeroed();
    kernel::name_of(fd, end, &mut address).ok()?;
    Some(address)
}

/// Flags and options that a program would notice.
fn copy_options(from: c_int, to: c_int) {
    // Owner and signal first: O_ASYNC among the flags uses them.
    let mut owner = [0u32; 2];
    let _ = kernel::owner(from, &mut owner).and_then(|_| kernel::set_owner(to, &owner));
    let _ = kernel::owners_signal(from).and_then(|signal| kernel::set_owners_signal(to, signal));
    if let Ok(flags) = fd::status_flags(from) {
        let _ = fd::set_status_flags(to, flags);
    }
    let options = [
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        (libc::SOL_SOCKET, libc::SO_LINGER),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (libc::IPPROTO_TCP, libc::TCP_CORK),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
        // This sets a priority of its own.
        (libc::IPPROTO_IP, libc::IP_TOS),
        (libc::SOL_SOCKET, libc::SO_PRIORITY),
    ];
    for (level, option) in options {
        let mut value = [0u8; 16];
        let told = kernel::getsockopt(from, level, option, &mut value);
        let value = told.ok().and_then(|len| value.get(..len));
        let _ = value.map(|value| kernel::setsockopt_bytes(to, level, option, value));
    }
}

/// Makes `number` name the same as `fd`, and keeps whether exec closes it.
fn put(fd: c_int, number: c_int) {
    let flags = fd::descriptor_flags(number).unwrap_or(0);
    let cloexec = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    let _ = fd::duplicate_to(fd, number, cloexec);
}

fn send_once(to: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    fd::send(to, bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

fn receive(from: c_int, to: &mut [u8]) -> Result<usize, Errno> {
    fd::receive(from, to, libc::MSG_DONTWAIT)
}

/// Memory for both directions: the caller's stack may be a small one.
struct Buffers(Zeros);

impl Buffers {
    fn new() -> Option<Self> {
        Zeros::private(2 * BUFFER).map(Self)
    }

    fn split(&mut self) -> [&mut [u8]; 2] {
        let (one, other) = self.0.split_at_mut_checked(BUFFER).unwrap_or_default();
        [one, other]
    }
}

/// Where bytes lie.
fn range(bytes: &[u8]) -> Range<usize> {
    let at = bytes.as_ptr().addr();
    at..at + bytes.len()
}

/// The result of [`start_process`].
struct Child {
    pid: i32,
    /// It is the relay itself.
    is_relay: bool,
}

/// Starts a process that does `work` and ends. No process waits for it: it is the child of a child
/// that has ended. Where this process adopts orphans, it is a child that no wait finds: it sends no
/// signal when it ends. Of this process's memory it keeps `kept`. [`Child::goes_on`] follows.
fn start_process(kept: [Range<usize>; 5], work: &mut dyn FnMut()) -> Option<Child> {
    // No handler of the program runs in the copy.
    let _section = section::Guard::enter();
    let is_relay = gets_orphans();
    if is_relay {
        reap();
    }
    // SAFETY: a copy of this process without threads, which makes system calls and nothing else.
    let child = unsafe { sys!(libc::SYS_clone, 0, 0, 0, 0, 0) }.ok()?;
    if child == 0 {
        let worker = if is_relay {
            Ok(0)
        } else {
            // SAFETY: no thread or memory is shared: a copy that makes system calls and nothing
            // else.
            unsafe { sys!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
        };
        if worker == Ok(0) {
            be_nobodys_child();
            // SAFETY: the only thread of a copy, of which it uses this function's stack and the
            // ranges that the caller names.
            unsafe { memory::keep_only(kept) };
            work();
        }
        exit(if worker.is_ok() { 0 } else { 1 })
    }
    Some(Child { pid: child as i32, is_relay })
}

impl Child {
    /// Whether the relay is there.
    fn goes_on(self) -> bool {
        if self.is_relay {
            let place = NEXT_CHILD.fetch_add(1, Ordering::Relaxed) as usize % CHILDREN.len();
            if let Some(child) = CHILDREN.get(place) {
                child.store(self.pid, Ordering::Relaxed);
            }
            return true;
        }
        let mut status: c_int = 0;
        loop {
            let waited = kernel::wait4(self.pid, &mut status, libc::__WCLONE);
            if waited != Err(Errno::EINTR) {
                return waited.is_ok() && status == 0;
            }
        }
    }
}

/// Whether orphans among this process's descendants become its children.
fn gets_orphans() -> bool {
    let mut answer = 0;
    kernel::getpid() == Ok(1) || kernel::child_subreaper(&mut answer).is_ok() && answer != 0
}

/// Children that were relays and have ended are gone.
fn reap() {
    for child in &CHILDREN {
        let pid = child.load(Ordering::Relaxed);
        let options = libc::__WCLONE | libc::WNOHANG;
        if pid != 0 && kernel::wait4(pid, &mut 0, options) != Ok(0) {
            child.store(0, Ordering::Relaxed);
        }
    }
}

fn exit(code: c_int) -> ! {
    sdp_sys::pid::exit(code)
}

/// A process that goes on by itself, whatever becomes of those that it came from. Signals have
/// their default effect when it sleeps in [`sleep_for`].
fn be_nobodys_child() {
    let _ = kernel::set_signal_mask(libc::SIG_SETMASK, &u64::MAX);
    for signal in 1..=64 {
        let _ = kernel::default_action(signal, &[0; 4]);
    }
    let _ = kernel::name_thread(c"sdp-relay");
    let _ = kernel::setsid();
    let _ = kernel::chdir(c"/");
}

/// The process that [`give_copy`] leaves behind where not everything fits into the kernel.
fn deliver_until_it_ends(other: c_int, mut rest: &[u8], is_reset: bool) {
    carrier::set_reset_on_close(other, true); // should this process end before all is delivered
    let Ok([other]) = keep_only([other]) else { return };
    while !rest.is_empty() {
        match send_once(other, rest) {
            Ok(sent) => rest = rest.get(sent..).unwrap_or(&[]),
            Err(Errno::EAGAIN) => sleep(other, libc::POLLOUT),
            Err(_) => return,
        }
    }
    if is_reset {
        await_delivery(other);
        return;
    }
    let _ = fd::shutdown(other, libc::SHUT_WR);
    // Until it is closed, or bytes come that are never received: a reset, as where the peer is
    // gone.
    sleep(other, libc::POLLIN);
    let mut byte = [0];
    if receive(other, &mut byte) == Ok(0) {
        carrier::set_reset_on_close(other, false);
    }
}

/// A reset goes behind the last byte, unless no reader wants that any more.
fn await_delivery(other: c_int) {
    let mut sleep_ns = ACK_SLEEP_NS;
    let _ = kernel::set_signal_mask(libc::SIG_SETMASK, &ASLEEP);
    while fd::unsent(other) != Ok(0) && carrier::readiness(other, 0) & libc::POLLHUP == 0 {
        sdp_sys::time::sleep(sleep_ns);
        sleep_ns = (sleep_ns * 2).min(DELIVERY_SLEEP_NS);
    }
}

/// Waits for a descriptor, however long it takes.
fn sleep(fd: c_int, events: i16) {
    sleep_for(&mut [libc::pollfd { fd, events, revents: 0 }]);
}

/// Waits for descriptors, however long it takes. A signal may end the process when nothing has come
/// for a while: so bytes in flight arrive.
fn sleep_for(polls: &mut [libc::pollfd]) {
    if fd::poll(polls, Some(QUIET_NS)) == Ok(0) {
        let _ = kernel::poll_with_mask(polls, &ASLEEP);
    }
}

/// One direction of the pump.
struct Flow<'a> {
    from: c_int,
    to: c_int,
    /// Goes before the bytes that `from` brings.
    first: &'a [u8],
    buffer: &'a mut [u8],
    /// The part of the buffer that is still to be sent.
    held: Range<usize>,
    /// `from` has ended.
    has_ended: bool,
    /// … and `to` knows it.
    is_done: bool,
    /// `to` takes nothing before its other end has answered.
    is_held_up: bool,
    /// It takes nothing any more, or nothing comes any more without an end.
    is_broken: bool,
}

impl<'a> Flow<'a> {
    fn new(from: c_int, to: c_int, first: &'a [u8], buffer: &'a mut [u8]) -> Self {
        let [has_ended, is_done, is_held_up, is_broken] = [false; 4];
        Self { from, to, first, buffer, held: 0..0, has_ended, is_done, is_held_up, is_broken }
    }

    /// The bytes still to be sent.
    fn rest(&self) -> &[u8] {
        if self.first.is_empty() {
            self.buffer.get(self.held.clone()).unwrap_or(&[])
        } else {
            self.first
        }
    }

    /// The events for which this direction waits at descriptor `fd`.
    fn wish(&self, fd: c_int) -> i16 {
        let sends = !self.rest().is_empty();
        match self.is_done || self.is_broken {
            false if sends && fd == self.to && !self.is_held_up => libc::POLLOUT,
            false if !sends && fd == self.from && !self.has_ended => libc::POLLIN,
            _ => 0,
        }
    }

    /// Moves all bytes that it can now; whether it moved some. `from` and `to`: which of both ends
    /// is guarded.
    fn move_bytes(
        &mut self,
        from: Option<&Reader<'_>>,
        to: Option<&Reader<'_>>,
        may_end: bool,
    ) -> bool {
        if self.is_done || self.is_broken {
            return false;
        }
        let moved = self.try_to_move(from, to, may_end);
        self.is_broken = moved.is_err();
        moved.unwrap_or(false)
    }

    /// An error: it is broken.
    fn try_to_move(
        &mut self,
        from: Option<&Reader<'_>>,
        to: Option<&Reader<'_>>,
        may_end: bool,
    ) -> Result<bool, Errno> {
        if self.rest().is_empty() && !self.has_ended {
            let got = match from {
                Some(reader) => reader.receive(self.buffer),
                None => receive(self.from, self.buffer),
            };
            match got {
                Ok(0) => self.has_ended = true,
                Ok(n) => self.held = 0..n,
                Err(Errno::EAGAIN) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        let rest = self.rest();
        if rest.is_empty() {
            self.is_done = may_end;
            if may_end {
                let _ = fd::shutdown(self.to, libc::SHUT_WR);
            }
            return Ok(may_end);
        }
        let sent = match to {
            Some(writer) => writer.send(rest),
            None => send_once(self.to, rest),
        };
        let sent = match sent {
            Ok(n) => n,
            Err(Errno::EAGAIN) => return Ok(false),
            Err(e) => return Err(e),
        };
        if self.first.is_empty() {
            self.held.start += sent;
        } else {
            self.first = self.first.get(sent..).unwrap_or(&[]);
        }
        Ok(true)
    }
}

/// The relay process of [`Relay::new`].
fn pump_when_told(fds: [c_int; 3], unread: &Heap, buffers: &mut Buffers) {
    let Ok([carrier, other, told]) = keep_only(fds) else { exit(1) };
    let mut count = [0u8; 8];
    if fd::read(told, &mut count) != Ok(count.len()) {
        exit(1); // called off
    }
    pump_until_both_end(carrier, other, unread.first(u64::from_ne_bytes(count)), buffers, None);
}

/// That of [`guarded`].
fn pump_guarded(fds: [c_int; 2], unread: &[u8], buffers: &mut Buffers, mut reader: Reader<'_>) {
    let Ok([carrier, other]) = keep_only(fds) else { exit(1) };
    reader.begin_as_copy(carrier);
    pump_until_both_end(carrier, other, unread, buffers, Some(reader));
}

fn pump_until_both_end(
    carrier: c_int,
    other: c_int,
    first: &[u8],
    buffers: &mut Buffers,
    mut guard: Option<Reader<'_>>,
) {
    // An end that was not announced is a reset, also when this process is killed.
    carrier::set_reset_on_close(carrier, true);
    carrier::set_reset_on_close(other, true);
    let [inward, outward] = buffers.split();
    let mut inward = Flow::new(carrier, other, first, inward);
    let mut outward = Flow::new(other, carrier, &[], outward);
    let (mut has_moved, mut may_end, mut sleep_ns) = (true, true, 0);
    let (mut is_held, mut is_over) = (false, [false; 2]);
    while !(inward.is_done && outward.is_done) {
        let mut wanted = 0;
        match guard.as_ref().map(Reader::write_due) {
            None => {}
            Some(Some(Next::Plain)) => {
                (guard, may_end) = (None, true);
                (is_held, outward.is_held_up) = (false, false);
            }
            Some(Some(Next::Guarded { may_end: may, is_held: held, may_send, events })) => {
                // A program that has ended its stream does not answer any more.
                (may_end, wanted) = (may || inward.is_done, events);
                (is_held, outward.is_held_up) = (held, !may_send);
            }
            // Bytes that have come are delivered all the same.
            Some(None) => outward.is_broken = true,
        }
        let has_failed = outward.is_broken;
        // A part of a marker may be there, which poll would report again and again.
        if has_moved {
            sleep_ns = 0;
        } else {
            sdp_sys::time::sleep(sleep_ns);
            sleep_ns = (sleep_ns * 2).clamp(ACK_SLEEP_NS, SLEEP_MAX_NS);
        }
        let mut polls = [(carrier, wanted), (other, 0)].map(|(fd, own)| {
            let events = own | inward.wish(fd) | outward.wish(fd);
            libc::pollfd { fd, events, revents: 0 }
        });
        for (poll, is_over) in polls.iter_mut().zip(is_over) {
            if is_over && poll.events == 0 {
                poll.fd = -1; // poll would tell that again and again
            }
        }
        let is_failing = has_failed && inward.rest().is_empty();
        if is_failing || outward.has_ended && may_end && !outward.is_done {
            let _ = fd::poll(&mut polls, Some(0));
        } else {
            sleep_for(&mut polls);
        }
        for (is_over, poll) in is_over.iter_mut().zip(&polls) {
            *is_over |= poll.revents & libc::POLLHUP != 0;
        }
        let guard = guard.as_ref();
        has_moved = inward.move_bytes(guard, None, true);
        has_moved |= outward.move_bytes(None, guard, may_end);
        let [is_carrier_over, is_other_over] = is_over;
        // The announcement of a program that has ended its stream and gone is still to be sent.
        let is_gone = is_other_over && (!outward.has_ended || outward.is_done);
        let brings_nothing = inward.is_broken || !has_moved && (is_gone || is_failing);
        let takes_nothing = outward.is_broken || is_held || is_carrier_over;
        let is_lost = if inward.is_done { takes_nothing } else { brings_nothing };
        if is_lost && !(inward.is_done && outward.is_done) {
            // The kernel forgets a carrier whose program has gone after the end of its stream.
            carrier::set_reset_on_close(carrier, inward.is_broken || !outward.is_done);
            fd::close(carrier);
            await_delivery(other);
            exit(1);
        }
    }
    carrier::set_reset_on_close(carrier, false);
    carrier::set_reset_on_close(other, false);
}

/// Closes every other descriptor; the numbers that these have then.
fn keep_only<const N: usize>(fds: [c_int; N]) -> Result<[c_int; N], Errno> {
    let count = N as c_int;
    let mut high = [0; N];
    for (high, fd) in high.iter_mut().zip(fds) {
        // First out of the way of the numbers that they are to have.
        *high = fd::duplicate_above(fd, count, true)?;
    }
    let mut kept = [0; N];
    for ((high, kept), number) in high.into_iter().zip(&mut kept).zip(0..) {
        fd::duplicate_to(high, number, 0)?;
        *kept = number;
    }
    if fd::close_from(count).is_err() {
        (count..CLOSED_BY_HAND).for_each(fd::close);
    }
    Ok(kept)
}

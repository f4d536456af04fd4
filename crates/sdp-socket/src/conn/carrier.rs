//! The kernel's state of a carrier, and the wake bytes that the library puts on it.
//!
//! Every room above calls it for state of a connection that only the kernel has.
//!
//! Every call here is non-blocking and goes straight to the kernel.
//!
//! # Counters
//! Total handed to the kernel = `bytes_sent − bytes_retrans + notsent_bytes`: one atomic snapshot,
//! exact. Total consumed = `bytes_received − FIONREAD` is two calls, so it is repeated until
//! `bytes_received` is stable; a FIN that has arrived is counted by the kernel as one byte. The kernel looks at the
//! state before it takes the lock under which it reads the counters: a FIN that comes in between is counted, and the
//! state says that none has come. So a state is believed about counters that were asked for before it.

use libc::{c_int, iovec, msghdr};
use sdp_sys::{
    errno::Errno,
    fd,
    kernel::{self, zeroed},
    marked, sys,
};

use crate::{conn::iovec::Buffers, process::Handed};

/// Takes copies of marked packets, which are no error, off a socket that shows one; there is nothing
/// here before a send was marked.
pub(crate) static TAKES_COPIES: Handed<fn(c_int) -> bool> = Handed::none();

/// Bytes of `struct tcp_info` that we read.
const INFO_BYTES: usize = 232;
const INFO_STATE: usize = 0;
const INFO_RTT_US: usize = 68;
const INFO_BYTES_ACKED: usize = 120;
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_NOTSENT_BYTES: usize = 144;
const INFO_MIN_RTT: usize = 148;
const INFO_BYTES_SENT: usize = 200;
const INFO_BYTES_RETRANS: usize = 208;
const INFO_SND_WND: usize = 228;
/// Elements of one system call; longer vectors take several.
const IOV: usize = 64;
/// Repetitions until `bytes_received` must have been stable once.
const STABLE_TRIES: usize = 64;

/// States in which the peer's FIN has been counted in `bytes_received`.
const FIN_COUNTED: [u8; 4] = [6, 8, 9, 11]; // TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING
/// States in which nothing but payload was counted: ESTABLISHED, FIN_WAIT1, FIN_WAIT2.
const OPEN: [u8; 3] = [1, 4, 5];
/// TCP_ESTABLISHED: neither end has begun to close.
pub(crate) const ESTABLISHED: u8 = 1;
/// This end has sent its FIN.
pub(crate) const FIN_WAIT1: u8 = 4;
/// … and it was acknowledged.
pub(crate) const FIN_WAIT2: u8 = 5;
/// The other end's FIN has come.
pub(crate) const CLOSE_WAIT: u8 = 8;
/// TCP_CLOSE: reset, or never connected.
pub(crate) const TCP_CLOSE: u8 = 7;

struct Info([u8; INFO_BYTES]);

impl Info {
    fn get(fd: c_int) -> Result<Self, Errno> {
        let mut info = Self([0; INFO_BYTES]);
        kernel::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info.0)?;
        Ok(info)
    }

    fn u64(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }

    fn state(&self) -> u8 {
        self.0.get(INFO_STATE).copied().unwrap_or(0)
    }
}

/// State of the TCP connection, as in `/proc/net/tcp`.
pub(crate) fn tcp_state(fd: c_int) -> u8 {
    Info::get(fd).map_or(TCP_CLOSE, |info| info.state())
}

/// Whether this end has ended its stream, or the connection is over: nothing more can be sent.
pub(crate) fn has_sent_end(fd: c_int) -> bool {
    !matches!(tcp_state(fd), ESTABLISHED | CLOSE_WAIT)
}

/// Bytes that the kernel has taken from this end so far.
pub(crate) fn sent(fd: c_int) -> Result<u64, Errno> {
    let info = Info::get(fd)?;
    Ok(info
        .u64(INFO_BYTES_SENT)
        .wrapping_sub(info.u64(INFO_BYTES_RETRANS))
        .wrapping_add(u64::from(info.u32(INFO_NOTSENT_BYTES))))
}

/// Bytes that this end has sent and received, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    /// State of the TCP connection.
    pub(crate) state: u8,
    /// Bytes that the kernel has taken.
    pub(crate) sent: u64,
    /// Of them, those that went on the wire.
    pub(crate) transmitted: u64,
    /// Of those, those that the other end has acknowledged, and perhaps a SYN.
    pub(crate) acked: u64,
    /// Bytes that came, read or not; a FIN counts as one.
    pub(crate) received: u64,
    /// The shortest round trip so far, in microseconds.
    pub(crate) round_trip_us: u32,
}

/// See [`Moved`].
pub(crate) fn moved(fd: c_int) -> Result<Moved, Errno> {
    let info = Info::get(fd)?;
    let transmitted = info.u64(INFO_BYTES_SENT).wrapping_sub(info.u64(INFO_BYTES_RETRANS));
    Ok(Moved {
        state: info.state(),
        sent: transmitted.wrapping_add(u64::from(info.u32(INFO_NOTSENT_BYTES))),
        transmitted,
        acked: info.u64(INFO_BYTES_ACKED),
        received: info.u64(INFO_BYTES_RECEIVED),
        round_trip_us: info.u32(INFO_MIN_RTT),
    })
}

/// How many bytes the peer has allowed this end to send so far: it allows more when its program reads,
/// and for a while as bytes come. 0: not known.
pub(crate) fn allowed(fd: c_int) -> u64 {
    let of = |info: Info| info.u64(INFO_BYTES_ACKED) + u64::from(info.u32(INFO_SND_WND));
    Info::get(fd).map_or(0, of)
}

/// Bytes waiting in the receive queue.
pub(crate) fn queued(fd: c_int) -> Result<u64, Errno> {
    Ok(fd::received(fd)?.max(0) as u64)
}

/// Of a connection that is over: how many bytes came in all, a FIN among them counted as one.
pub(crate) fn ended_at(fd: c_int) -> Option<u64> {
    let info = Info::get(fd).ok()?;
    (info.state() == TCP_CLOSE).then(|| info.u64(INFO_BYTES_RECEIVED))
}

/// Bytes that this end has read from the kernel so far. The caller excludes other readers.
pub(crate) fn consumed(fd: c_int) -> Result<u64, Errno> {
    consumed_in(fd).map(|(consumed, _)| consumed)
}

/// [`consumed`], and the state of the connection when it was so.
fn consumed_in(fd: c_int) -> Result<(u64, u8), Errno> {
    let mut before = Info::get(fd)?;
    for _ in 0..STABLE_TRIES {
        let queued = queued(fd)?;
        let after = Info::get(fd)?;
        let received = after.u64(INFO_BYTES_RECEIVED);
        if received == before.u64(INFO_BYTES_RECEIVED) && after.state() == before.state() {
            // A socket that sent its own FIN before the peer's came is handed to TIME_WAIT and shows
            // CLOSE; so does one that was reset, whose error is still there.
            let closed_cleanly =
                after.state() == TCP_CLOSE && readiness(fd, libc::POLLIN) & libc::POLLERR == 0;
            let fin = u64::from(closed_cleanly || FIN_COUNTED.contains(&after.state()));
            return Ok((received.wrapping_sub(fin).wrapping_sub(queued), after.state()));
        }
        before = after;
    }
    Err(Errno::EAGAIN)
}

/// [`consumed`], and only while the peer's end has not come: from then on the answer may be wrong by
/// one, where a reset came and its error was taken.
pub(crate) fn consumed_while_open(fd: c_int) -> Result<u64, Errno> {
    // Bytes that come after the count have not been read: the position is still right.
    let (consumed, state) = consumed_in(fd)?;
    if OPEN.contains(&state) { Ok(consumed) } else { Err(Errno::ECONNRESET) }
}

/// Receives at most `cap` bytes into the buffers, without using them up, never blocking.
pub(crate) fn receive(
    fd: c_int,
    buffers: &Buffers,
    cap: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let flags = (flags & !libc::MSG_WAITALL) | libc::MSG_DONTWAIT;
    if let Some((to, len)) = buffers.only() {
        // SAFETY: the program's own buffer; no address is asked for.
        return unsafe { sys!(libc::SYS_recvfrom, fd, to, len.min(cap), flags, 0, 0) };
    }
    let mut iov = [const { iovec { iov_base: core::ptr::null_mut(), iov_len: 0 } }; IOV];
    let used = buffers.fill(cap, &mut iov);
    let mut msg: msghdr = zeroed();
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = used;
    // SAFETY: msg and its vector outlive the call; the elements are the program's own.
    unsafe { sys!(libc::SYS_recvmsg, fd, &raw mut msg, flags) }
}

/// Sends at most `cap` bytes from the buffers, without using them up, never blocking. Never raises SIGPIPE: whether a call
/// of the program ends in EPIPE is known only to its caller.
pub(crate) fn send(fd: c_int, buffers: &Buffers, cap: usize, flags: c_int) -> Result<usize, Errno> {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let Some((from, len)) = buffers.only() {
        // SAFETY: the program's own buffer; no address is passed.
        return unsafe { sys!(libc::SYS_sendto, fd, from, len.min(cap), flags, 0, 0) };
    }
    let mut iov = [const { iovec { iov_base: core::ptr::null_mut(), iov_len: 0 } }; IOV];
    let used = buffers.fill(cap, &mut iov);
    let mut msg: msghdr = zeroed();
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = used;
    // SAFETY: msg and its vector outlive the call; the elements are the program's own.
    unsafe { sys!(libc::SYS_sendmsg, fd, &raw const msg, flags) }
}

/// The same, marked: the kernel shows the packet ([`marked`]).
pub(crate) fn send_marked(
    fd: c_int,
    buffers: &Buffers,
    cap: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let mut iov = [const { iovec { iov_base: core::ptr::null_mut(), iov_len: 0 } }; IOV];
    let used = buffers.fill(cap, &mut iov);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the elements are the program's own.
    unsafe { marked::send(fd, iov.as_mut_ptr(), used, flags) }
}

/// Memory that a socket's send queue may still take, in bytes as the kernel accounts them (payload
/// and overhead); 0 when it cannot be known.
pub(crate) fn send_memory(fd: c_int) -> u64 {
    let mut info = [0u32; MEMINFO_WORDS];
    let got = kernel::getsockopt(fd, libc::SOL_SOCKET, SO_MEMINFO, &mut info);
    if got.is_ok_and(|len| len < size_of_val(&info)) || got.is_err() {
        return 0;
    }
    let [_, _, _, limit, _, queued] = info;
    u64::from(limit.saturating_sub(queued))
}

/// Asks for the kernel's `SK_MEMINFO_*` words, of which the first six are read.
const SO_MEMINFO: c_int = 55;
const MEMINFO_WORDS: usize = 6;

/// Puts one wake byte on the carrier. The caller may count the byte only if the kernel took it; a
/// pending error is reported here, and nowhere else.
pub(crate) fn ring(fd: c_int) -> Result<usize, Errno> {
    fd::send(fd, &[0], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// More wake bytes than ever lie unread: each needs an arm. A peer that counts more, and goes on
/// sending them, does not keep a call, or a close, busy for ever.
const WAKE_BYTES_AT_ONCE: u64 = 1 << 20;

/// Takes at most `n` bytes off the carrier, nor more than [`WAKE_BYTES_AT_ONCE`], and throws them
/// away; how many.
pub(crate) fn consume(fd: c_int, n: u64) -> u64 {
    let n = n.min(WAKE_BYTES_AT_ONCE);
    let mut scratch = [0u8; 256];
    let mut consumed = 0;
    while consumed < n {
        let want = (n - consumed).min(scratch.len() as u64) as usize;
        let chunk = scratch.get_mut(..want).unwrap_or(&mut []);
        match fd::receive(fd, chunk, libc::MSG_DONTWAIT) {
            Ok(got) if got > 0 => consumed += got as u64,
            _ => break,
        }
    }
    consumed
}

/// Looks at the receive queue: `Ok(0)` FIN, `Ok(1)` there is a byte, EAGAIN nothing, other errors as
/// the kernel reports them.
pub(crate) fn peek(fd: c_int) -> Result<usize, Errno> {
    fd::receive(fd, &mut [0], libc::MSG_DONTWAIT | libc::MSG_PEEK)
}

/// Readiness of the carrier now.
pub(crate) fn readiness(fd: c_int, events: i16) -> i16 {
    let seen = fd::readiness(fd, events);
    if seen & libc::POLLERR == 0 { seen } else { without_copies(fd, events, seen) }
}

/// What is seen once copies of marked packets are gone, which show as an error.
#[cold]
#[inline(never)]
fn without_copies(fd: c_int, events: i16, seen: i16) -> i16 {
    let is_gone = TAKES_COPIES.get().is_some_and(|takes| takes(fd));
    if is_gone { fd::readiness(fd, events) } else { seen }
}

/// Whether the next byte of the carrier is the urgent one, or follows it.
#[cold]
pub(crate) fn is_at_mark(fd: c_int) -> bool {
    fd::is_at_mark(fd)
}

/// Whether the peer's FIN, or an error, has arrived.
pub(crate) fn is_over(fd: c_int) -> bool {
    let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    readiness(fd, libc::POLLRDHUP) & over != 0
}

/// Whether the connection has ended both ways, or an error is pending: not by a FIN of the peer's
/// alone.
pub(crate) fn is_dead(fd: c_int) -> bool {
    readiness(fd, 0) & (libc::POLLHUP | libc::POLLERR) != 0
}

/// [`is_dead`], or a copy of a marked packet shows as an error.
pub(crate) fn may_be_dead(fd: c_int) -> bool {
    fd::readiness(fd, 0) & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Whether an error is pending, without taking it.
pub(crate) fn has_error(fd: c_int) -> bool {
    readiness(fd, 0) & libc::POLLERR != 0
}

/// Takes the carrier's pending error, which the library reports to the program in another way.
pub(crate) fn take_error(fd: c_int) -> Option<Errno> {
    let error = sdp_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
    (error != 0).then_some(Errno(error))
}

/// Whether a descriptor is a stream socket: then sending nothing sends nothing.
pub(crate) fn is_stream(fd: c_int) -> bool {
    sdp_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM)
}

/// A socket timeout in nanoseconds (`SO_RCVTIMEO`, `SO_SNDTIMEO`); `None` for ever, as far as the
/// kernel reports it. Asked of the kernel each time a call is about to sleep: the option belongs to
/// the socket, not to us.
pub(crate) fn timeout_ns(fd: c_int, option: c_int) -> Option<u64> {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let got = kernel::getsockopt(fd, libc::SOL_SOCKET, option, &mut value);
    let ns = (value.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(value.tv_usec as u64 * 1000);
    (got.is_ok() && ns != 0).then_some(ns)
}

/// Whether the next close sends a reset, because the program asked for it (`SO_LINGER` {1, 0}).
pub(crate) fn will_reset(fd: c_int) -> bool {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let got = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger);
    got.is_ok() && linger.l_onoff != 0 && linger.l_linger == 0
}

/// Makes the kernel transmit the bytes that it keeps back for a fuller segment: a reset would throw
/// them away. Over TCP the peer's answers carry the acknowledgement that lets a last small write
/// go; here they went through the ring, and the kernel may wait for nothing but the acknowledgement
/// of a wake byte. For a socket that is about to be closed: the option (`TCP_NODELAY`) stays set.
pub(crate) fn flush(fd: c_int) {
    let _ = fd::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

/// Whether the other end has not acknowledged all that this one has sent, or its FIN.
pub(crate) fn is_under_way(fd: c_int) -> bool {
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    moved(fd).is_ok_and(|moved| match moved.state {
        FIN_WAIT1 | LAST_ACK | CLOSING => true,
        ESTABLISHED | CLOSE_WAIT => moved.acked < moved.sent,
        _ => false,
    })
}

/// The kernel's estimate of a round trip.
pub(crate) fn round_trip_ns(fd: c_int) -> u64 {
    Info::get(fd).map_or(0, |info| u64::from(info.u32(INFO_RTT_US)) * 1000)
}

/// Room for `more` bytes in the send buffer of a socket that is about to be closed, as far as this process may have it: a
/// close does not wait for a reader.
pub(crate) fn widen(fd: c_int, more: usize) {
    /// Beyond this a process without rights gets less than the kernel gives by itself.
    const UNPRIVILEGED: c_int = 212_992;
    let Ok(size) = fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF) else { return };
    // The kernel doubles what it is given, and says what it has.
    let wanted = (size / 2).saturating_add(c_int::try_from(more).unwrap_or(c_int::MAX));
    let forced = fd::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, wanted);
    if forced.is_err() && size / 2 < UNPRIVILEGED {
        let _ = fd::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted);
    }
}

/// Resets the connection now: both ends hear of it, and the peer sees no orderly end.
pub(crate) fn abort(fd: c_int) {
    reset_on_close(fd);
    let mut nowhere: libc::sockaddr = zeroed();
    nowhere.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    // The kernel forgets the other end, resets it, and keeps ECONNRESET for this one.
    if kernel::connect(fd, &nowhere, size_of::<libc::sockaddr>()).is_err() {
        let _ = fd::shutdown(fd, libc::SHUT_RDWR);
    }
}

/// Makes the next close send a reset instead of a FIN.
pub(crate) fn reset_on_close(fd: c_int) {
    set_reset_on_close(fd, true);
}

/// Whether closing the carrier resets it, or ends it in the background.
pub(crate) fn set_reset_on_close(fd: c_int, yes: bool) {
    let linger = libc::linger { l_onoff: yes.into(), l_linger: 0 };
    let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// Whether the kernel says by this error that a connection has ended, other than by a FIN.
pub(crate) fn is_end(error: Errno) -> bool {
    const ENDS: [i32; 6] = [
        libc::ECONNRESET,
        libc::ETIMEDOUT,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::ECONNREFUSED,
        libc::ECONNABORTED,
    ];
    ENDS.contains(&error.0)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Shutdown, TcpListener, TcpStream},
        os::fd::AsRawFd,
        thread,
    };

    use super::*;

    /// Connections that end while the position is asked for again and again. With two processors,
    /// one in two was counted wrongly.
    const ENDS: usize = 200;

    #[test]
    fn an_end_that_comes_is_no_byte_that_was_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for _ in 0..ENDS {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            // An end that has said its last is closed by the other's, and shows nothing but counters then.
            client.shutdown(Shutdown::Write).unwrap();
            server.write_all(b"x").unwrap();
            client.read_exact(&mut [0]).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| server.shutdown(Shutdown::Write).unwrap());
                while let Ok(read) = consumed_while_open(client.as_raw_fd()) {
                    assert_eq!(read, 1);
                }
            });
            assert_eq!(consumed(client.as_raw_fd()), Ok(1));
            assert_eq!(ended_at(client.as_raw_fd()), Some(2));
        }
    }

    #[test]
    fn what_was_kept_back_comes_before_the_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let fd = client.as_raw_fd();
        // Nagle's rule keeps bytes back depending on the moment; a cork does so always.
        fd::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
        client.write_all(b"last words").unwrap();
        assert_eq!(queued(server.as_raw_fd()), Ok(0));
        flush(fd);
        reset_on_close(fd);
        drop(client);
        let mut bytes = Vec::new();
        let end = server.read_to_end(&mut bytes).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        assert_eq!(bytes, b"last words");
    }
}

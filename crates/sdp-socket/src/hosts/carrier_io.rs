//! The TCP socket of a connection between hosts, as [`sdp_remote`] wants it: calls that never wait.

use core::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

use libc::{c_int, iovec, msghdr};
use sdp_rdma::fabric::Gather;
use sdp_remote::{Carrier, CarrierError, PayloadCarrier};
use sdp_sys::{errno::Errno, fd, kernel, sys};

use crate::conn::{
    carrier,
    iovec::{Buffers, Payload},
};

/// The program's descriptor, or [`NOT_ASKED`].
pub(super) struct Socket(pub(super) c_int);

/// In the place of a descriptor whose kernel is not asked: it has nothing.
pub(super) const NOT_ASKED: c_int = -1;

/// Interruption cannot happen to a call that does not wait; it is tried again like a full buffer.
fn told<T>(result: Result<T, Errno>) -> Result<T, CarrierError> {
    result.map_err(|error| match error {
        Errno::EAGAIN | Errno::EINTR => CarrierError::WouldBlock,
        Errno(number) => CarrierError::Failed(number),
    })
}

impl Carrier for Socket {
    fn send(&mut self, pieces: [&[u8]; 2]) -> Result<usize, CarrierError> {
        let mut parts = pieces.map(|piece| iovec {
            iov_base: piece.as_ptr().cast_mut().cast(),
            iov_len: piece.len(),
        });
        let mut message: msghdr = sdp_sys::kernel::zeroed();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        let flags = libc::MSG_EOR | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message and the slices that it names outlive the call.
        told(unsafe { sys!(libc::SYS_sendmsg, self.0, &raw const message, flags) })
    }

    fn peek(&mut self, into: &mut [u8]) -> Result<usize, CarrierError> {
        if self.0 == NOT_ASKED {
            return Err(CarrierError::WouldBlock);
        }
        told(fd::receive(self.0, into, libc::MSG_PEEK | libc::MSG_DONTWAIT))
    }

    fn discard(&mut self, len: usize) -> Result<usize, CarrierError> {
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: with MSG_TRUNC a TCP socket writes nothing.
        told(unsafe { sys!(libc::SYS_recvfrom, self.0, 0, len, flags, 0, 0) })
    }

    fn unsent(&mut self) -> Result<usize, CarrierError> {
        let mut count: c_int = 0;
        told(kernel::unsegmented_bytes(self.0, &mut count))?;
        if count != 0 && carrier::tcp_state(self.0) == carrier::TCP_CLOSE {
            // It will never be sent: the connection was reset.
            return Err(CarrierError::Failed(libc::EPIPE));
        }
        Ok(usize::try_from(count).unwrap_or(0))
    }
}

/// How a program that does not block hears that a marker can be written: that waits until the kernel has put all it has into
/// segments, which is no edge of `POLLOUT`. Meanwhile the carrier counts as writable only when nothing is unsent.
#[derive(Debug)]
pub(super) struct UntilSent {
    /// The program's `TCP_NOTSENT_LOWAT` + 1, while ours is in its place; 0: it is not.
    saved: AtomicU64,
}

impl UntilSent {
    /// The kernel tells when nothing is unsent. True: so it is now.
    pub(super) fn begin(&self, fd: c_int) -> bool {
        if self.saved.load(Ordering::Relaxed) == 0 {
            let option = fd::getsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
            let Ok(value) = option else { return false };
            self.saved.store(u64::from(value.cast_unsigned()) + 1, Ordering::Relaxed);
            let _ = fd::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 1);
        }
        // Who is told "not writable" by the kernel is told the edge.
        carrier::readiness(fd, libc::POLLOUT) != 0
    }

    /// The program's own setting is in force again.
    #[inline]
    pub(super) fn end(&self, fd: c_int) {
        if self.saved.load(Ordering::Relaxed) != 0 {
            let value = self.saved.swap(0, Ordering::Relaxed).saturating_sub(1) as u32;
            let value = value.cast_signed();
            let _ = fd::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value);
        }
    }

    /// Of a new connection.
    pub(super) fn reset(&self) {
        self.saved.store(0, Ordering::Relaxed);
    }
}

/// What a call of the program is to send, seen from its beginning.
pub(super) struct Vector(pub(super) Buffers);

impl Gather for Vector {
    fn len(&self) -> usize {
        self.0.left()
    }

    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        let mut walk = self.0;
        walk.advance(offset);
        Payload::new(&mut walk, dst.len()).copy_to(0, dst);
    }
}

impl PayloadCarrier<Vector> for Socket {
    fn send_payload(&mut self, payload: &mut Vector, from: usize) -> Result<usize, CarrierError> {
        let mut walk = payload.0;
        walk.advance(from);
        told(carrier::send(self.0, &walk, usize::MAX, libc::MSG_EOR))
    }
}

/// Whether an address is one of this host's: then a socket can be bound to it.
pub(super) fn is_of_this_host(ip: &[u8; 16]) -> bool {
    let mut storage = [0u8; 28];
    let is_v4 = ip.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let (family, from, bytes) = match is_v4 {
        true => (libc::AF_INET, 4, ip.get(12..).unwrap_or_default()),
        false => (libc::AF_INET6, 8, &ip[..]),
    };
    let family_bytes = (family as u16).to_ne_bytes();
    for (to, byte) in storage.iter_mut().zip(family_bytes) {
        *to = byte;
    }
    for (to, byte) in storage.iter_mut().skip(from).zip(bytes) {
        *to = *byte;
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let Ok(probe) = kernel::owned(kernel::socket(family, kind, 0)) else { return true };
    let bound = kernel::bind(probe.raw(), &storage, if is_v4 { 16 } else { 28 });
    // What is neither (a link-local address without its interface) stays with the other fabrics.
    bound != Err(Errno(libc::EADDRNOTAVAIL))
}

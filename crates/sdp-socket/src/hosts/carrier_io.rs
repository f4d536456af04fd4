//! The TCP socket of a connection between hosts, as [`sdp_remote`] wants it: calls that never wait.

use core::cell::Cell;

use libc::{c_int, iovec, msghdr};
use sdp_proto::wire::Header;
use sdp_rdma::fabric::Gather;
use sdp_remote::{Carrier, CarrierError, PayloadCarrier};
use sdp_sys::{errno::Errno, fd, kernel, sys};

use crate::conn::{
    self, Conn, carrier,
    iovec::{Buffers, Payload},
    publish,
};

/// In the place of a descriptor whose kernel is not asked: it has nothing.
pub(super) const NOT_ASKED: c_int = -1;

/// The library's own messages on the carrier take no more bytes: a proof, an invitation, and a record's head.
const UNREAD: u64 = 4096;

/// The carrier of a connection. A kernel reports an error of its socket once, to whichever call
/// asks first; the program is to get it from a call of its own. So an error that these calls get is
/// kept as the connection's pending error, and comes again until the program has got it.
pub(super) struct Socket<'a> {
    /// The program's descriptor, or [`NOT_ASKED`].
    fd: c_int,
    conn: &'a Conn,
}

impl<'a> Socket<'a> {
    pub(super) const fn new(conn: &'a Conn, fd: c_int) -> Self {
        Self { fd, conn }
    }

    /// Interruption cannot happen to a call that does not wait; it is tried again like a full buffer.
    fn heard<T>(&self, result: Result<T, Errno>) -> Result<T, CarrierError> {
        match result {
            Ok(done) => return Ok(done),
            Err(Errno::EAGAIN | Errno::EINTR) => return Err(CarrierError::WouldBlock),
            Err(error) => keep_error(self.conn, error.0),
        }
        // Once a socket has reported its error, further calls report less.
        let error = self.conn.pending_error().or(result.err()).unwrap_or(Errno::EPIPE);
        Err(CarrierError::Failed(error.0))
    }
}

impl Carrier for Socket<'_> {
    fn allowed(&self) -> u64 {
        // Also where the kernel is not asked for bytes.
        conn::number_of(self.conn).map_or(0, carrier::allowed)
    }

    fn is_unread(&self) -> bool {
        let unread = |fd| carrier::queued(fd).unwrap_or(0);
        conn::number_of(self.conn).map_or(0, unread) > UNREAD
    }

    #[inline]
    fn trace(&self, is_sent: bool, header: &Header) {
        publish::message(self.conn, is_sent, header);
    }

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
        self.heard(unsafe { sys!(libc::SYS_sendmsg, self.fd, &raw const message, flags) })
    }

    fn peek(&mut self, into: &mut [u8]) -> Result<usize, CarrierError> {
        if self.fd == NOT_ASKED {
            return Err(CarrierError::WouldBlock);
        }
        let peeked = fd::receive(self.fd, into, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        match (peeked, self.conn.pending_error()) {
            (Ok(0), Some(Errno(number))) => Err(CarrierError::Failed(number)),
            (peeked, _) => self.heard(peeked),
        }
    }

    fn discard(&mut self, len: usize) -> Result<usize, CarrierError> {
        self.heard(kernel::discard(self.fd, len, libc::MSG_DONTWAIT))
    }

    fn unsent(&mut self) -> Result<usize, CarrierError> {
        let mut count: c_int = 0;
        self.heard(kernel::unsegmented_bytes(self.fd, &mut count))?;
        if count != 0 && carrier::tcp_state(self.fd) == carrier::TCP_CLOSE {
            // It will never be sent: the connection was reset.
            return self.heard(Err(Errno::EPIPE));
        }
        Ok(usize::try_from(count).unwrap_or(0))
    }
}

/// Keeps the end of a connection that the carrier has reported, which the kernel reports once, for
/// the program's next call. All other errors are the call's own, or come again.
pub(super) fn keep_error(conn: &Conn, errno: i32) {
    if carrier::is_end(Errno(errno)) {
        conn.set_pending_error(Errno(errno));
    }
}

/// The program's bytes to send, from their beginning.
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

impl PayloadCarrier<Vector> for Socket<'_> {
    fn send_payload(
        &mut self,
        payload: &mut Vector,
        from: usize,
        most: usize,
    ) -> Result<usize, CarrierError> {
        let mut walk = payload.0;
        walk.advance(from);
        self.heard(carrier::send(self.fd, &walk, most, libc::MSG_EOR))
    }
}

/// Whether an address is one of this host's: then a socket can be bound to it. `interface`: of a link-local address.
pub(super) fn is_of_this_host(ip: &[u8; 16], interface: u32) -> bool {
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
    let scope = interface.to_ne_bytes();
    for (to, byte) in storage.iter_mut().skip(from).zip(bytes.iter().chain(&scope)) {
        *to = *byte;
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let Ok(probe) = kernel::owned(kernel::socket(family, kind, 0)) else { return true };
    let bound = kernel::bind(probe.raw(), &storage, if is_v4 { 16 } else { 28 });
    // A link-local address whose interface is not known stays with the other fabrics.
    bound != Err(Errno(libc::EADDRNOTAVAIL))
}

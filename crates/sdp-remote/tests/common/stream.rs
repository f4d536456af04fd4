//! The tools with which both ends of a connection are tested, on any queue pairs: random numbers, a
//! stream whose bytes are known by their position, and a real TCP socket. `sdp-fake-verbs` uses
//! this file, too.

use std::{cell::Cell, net::TcpStream, os::fd::AsRawFd};

use sdp_rdma::fabric::{Gather, Scatter};
use sdp_remote::{Carrier, CarrierError, PayloadCarrier};

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// The byte at a position of a stream: payload is known by where it stands.
pub(crate) fn byte_at(stream: u8, position: u64) -> u8 {
    let mixed = position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (mixed as u8) ^ stream
}

/// A real TCP socket.
pub(crate) struct Tcp(pub(crate) TcpStream);

fn answer(result: isize) -> Result<usize, CarrierError> {
    if result >= 0 {
        return Ok(result as usize);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Err(CarrierError::WouldBlock),
        errno => Err(CarrierError::Failed(errno.unwrap_or(0))),
    }
}

impl Carrier for Tcp {
    fn send(&mut self, pieces: [&[u8]; 2]) -> Result<usize, CarrierError> {
        let mut parts = pieces.map(|piece| libc::iovec {
            iov_base: piece.as_ptr().cast_mut().cast(),
            iov_len: piece.len(),
        });
        // SAFETY: all zeros is a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
        let flags = libc::MSG_EOR | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message names two slices that live.
        answer(unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags) })
    }

    fn peek(&mut self, into: &mut [u8]) -> Result<usize, CarrierError> {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let fd = self.0.as_raw_fd();
        // SAFETY: a slice for writing.
        answer(unsafe { libc::recv(fd, into.as_mut_ptr().cast(), into.len(), flags) })
    }

    fn discard(&mut self, len: usize) -> Result<usize, CarrierError> {
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: with MSG_TRUNC a TCP socket writes nothing.
        answer(unsafe { libc::recv(self.0.as_raw_fd(), std::ptr::null_mut(), len, flags) })
    }

    fn unsent(&mut self) -> Result<usize, CarrierError> {
        const SIOCOUTQNSD: libc::c_ulong = 0x894b;
        let mut count = 0_i32;
        // SAFETY: one int for writing.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCOUTQNSD, &raw mut count) };
        answer(done as isize).map(|_| count as usize)
    }
}

/// The next bytes of a stream.
pub(crate) struct Text {
    pub(crate) stream: u8,
    pub(crate) position: u64,
    pub(crate) len: usize,
}

impl Gather for Text {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        assert!(offset + dst.len() <= self.len, "asked beyond the payload");
        for (n, cell) in dst.iter().enumerate() {
            cell.set(byte_at(self.stream, self.position + (offset + n) as u64));
        }
    }
}

impl PayloadCarrier<Text> for Tcp {
    fn send_payload(
        &mut self,
        payload: &mut Text,
        from: usize,
        most: usize,
    ) -> Result<usize, CarrierError> {
        let position = payload.position + from as u64;
        let bytes: Vec<u8> = (0..(payload.len - from).min(most) as u64)
            .map(|n| byte_at(payload.stream, position + n))
            .collect();
        self.send([&bytes, &[]])
    }
}

/// Checks every byte it is given.
pub(crate) struct Check {
    pub(crate) stream: u8,
    pub(crate) position: u64,
    pub(crate) room: usize,
}

impl Scatter for Check {
    fn room(&self) -> usize {
        self.room
    }

    fn accept(&mut self, src: &[Cell<u8>]) {
        assert!(src.len() <= self.room, "more than there is room for");
        for cell in src {
            let due = byte_at(self.stream, self.position);
            assert_eq!(cell.get(), due, "stream {} at {}", self.stream, self.position);
            self.position += 1;
        }
        self.room -= src.len();
    }
}

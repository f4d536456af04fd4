//! A guarded stream that goes on in a relay: its end leaves, and the other end has not answered ([`super::leaving`]).
//!
//! Made by the process that hands it over ([`Reader::new`]), used by the relay process, which is a copy of it
//! ([`crate::migration::relay`]): the queue pair has gone, and all of its messages were taken, so a copy of both halves is
//! enough to read and write the carrier, until markers come no more.

use core::sync::atomic::Ordering;

use libc::{c_int, iovec};
use sdp_fabric_verbs::endpoint::VerbsRx;
use sdp_remote::{Leaving, ReceiveContext, RecvError, SendError, Wait};
use sdp_sys::{errno::Errno, fd, time::monotonic_ns};

use super::{
    carrier_io::{Socket, Vector},
    device,
    pair::{self, Pair, Receiving, Sending},
};
use crate::conn::{
    Conn, carrier,
    iovec::{Buffers, Landing},
};

/// How long the rest of what stands before messages of the queue pair may take to come, and how long apart one looks.
const PATIENCE_NS: u64 = 2_000_000_000;
const LOOK_NS: i64 = 1_000_000;
/// What lies in receive buffers of one queue pair, at most.
const INBOX_BYTES: usize = 128 * 1024;

/// Both halves of a stream that leaves and reads on.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    conn: &'a Conn,
    pair: &'static Pair,
    fd: c_int,
}

/// What [`Reader::tend`] has found.
pub(crate) enum Next {
    /// No marker comes any more: the carrier is the kernel's stream.
    Plain,
    /// There may be some.
    Guarded {
        /// This end's direction may end: nothing is owed, and no answer is due.
        may_end: bool,
        /// What is waited for on the carrier beside what is to be received: POLLOUT or 0. `None`: a moment.
        events: Option<i16>,
    },
}

impl<'a> Reader<'a> {
    /// Memory that [`Reader::new`] may need.
    pub(crate) fn room(fd: c_int) -> usize {
        let queued = carrier::queued(fd).unwrap_or(0) as usize;
        pair::RING + INBOX_BYTES + queued
    }

    /// Of a connection that is being handed back and has had no answer: what was taken and not delivered goes to `unread`,
    /// with all that lies in receive buffers. So many bytes. `None`: it did not come about, and the connection is lost.
    pub(crate) fn new(conn: &'a Conn, fd: c_int, unread: &mut [u8]) -> Option<(Self, usize)> {
        let (number, pair) = pair::of(conn)?;
        let reader = Self { conn, pair, fd };
        let mut len = pair.receiving(conn, |Receiving { inbound, .. }| {
            pair.sending(conn, |Sending { outbound, .. }, ring| {
                let (at, len) = sdp_remote::read_on(outbound.as_mut()?, inbound.as_mut()?);
                copy_ring(ring, at, unread.get_mut(..len)?);
                Some(len)
            })
        })???;
        let end = monotonic_ns() + PATIENCE_NS;
        while reader.has_messages() {
            match reader.receive(unread.get_mut(len..)?) {
                Ok(got @ 1..) => len += got,
                Err(Errno::EAGAIN) if monotonic_ns() < end => {
                    let _ = fd::poll_one(fd, libc::POLLIN, Some(LOOK_NS));
                }
                _ => return None,
            }
        }
        if !pair.is_copy() {
            device::drop_link(number, pair);
        }
        Some((reader, len))
    }

    /// Whether bytes of the stream lie in receive buffers.
    fn has_messages(&self) -> bool {
        let has = |Receiving { inbound, .. }: &mut Receiving| {
            inbound.as_ref().is_some_and(|inbound| !inbound.may_destroy())
        };
        self.pair.receiving(self.conn, has) == Some(true)
    }

    /// Runs `start`, which makes a copy of this process, while no other thread is in the middle of a half.
    pub(crate) fn copied(&self, start: impl FnOnce() -> bool) -> bool {
        if !self.pair.lock_both() {
            return false;
        }
        let is_started = start();
        self.pair.unlock_both();
        if is_started {
            // Whoever still calls here finds the program's new socket, which is the kernel's alone.
            self.pair.become_plain();
            self.pair.is_leaving.store(false, Ordering::Release);
        }
        is_started
    }

    /// In the copy, once, before anything else.
    pub(crate) fn begin(&mut self, fd: c_int) {
        self.pair.unlock_both();
        self.fd = fd;
    }

    /// What comes next. 0: the end of the stream. EAGAIN: nothing now.
    pub(crate) fn receive(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let part = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: one element, and what it names is the caller's until this returns.
        let mut buffers = unsafe { Buffers::new(&part, 1) }.ok_or(Errno::EINVAL)?;
        let mut landing = Landing { buffers: &mut buffers, discard: false };
        let got = self.pair.receiving(self.conn, |Receiving { inbound, rx, .. }| {
            let mut socket = Socket::new(self.conn, self.fd);
            let shared = &self.pair.shared;
            let rx: Option<&mut VerbsRx> = rx.as_mut();
            let mut io = ReceiveContext { rx, carrier: &mut socket, shared };
            Some(inbound.as_mut()?.recv(&mut io, &mut landing, false))
        });
        match got.flatten() {
            Some(Ok(got)) => Ok(got),
            Some(Err(RecvError::WouldBlock)) => Err(Errno::EAGAIN),
            _ => Err(Errno::ECONNRESET),
        }
    }

    /// Sends what can be sent now; at least one byte. EAGAIN: the carrier is full. EBUSY: an answer is due.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one element, and what it names outlives the call, which only reads.
        let buffers = unsafe { Buffers::new(&part, 1) }.ok_or(Errno::EINVAL)?;
        let sent = self.pair.sending(self.conn, |Sending { outbound, .. }, ring| {
            let mut socket = Socket::new(self.conn, self.fd);
            let mut io = self.pair.context(None, &mut socket, ring);
            Some(outbound.as_mut()?.send(&mut io, &mut Vector(buffers), 0))
        });
        match sent.flatten() {
            Some(Ok(sent)) => Ok(sent),
            Some(Err(SendError::Wait(Wait::Carrier))) => Err(Errno::EAGAIN),
            Some(Err(SendError::Wait(_))) => Err(Errno(libc::EBUSY)),
            _ => Err(Errno::ECONNRESET),
        }
    }

    /// After each of these calls: what is owed to the other end is written. `None`: the connection is to be reset.
    pub(crate) fn tend(&self) -> Option<Next> {
        let tended = self.pair.receiving(self.conn, |Receiving { inbound, .. }| {
            self.pair.sending(self.conn, |Sending { outbound, .. }, ring| {
                let (inbound, outbound) = (inbound.as_mut()?, outbound.as_mut()?);
                let mut socket = Socket::new(self.conn, self.fd);
                let mut io = self.pair.context(None, &mut socket, ring);
                let leaving = sdp_remote::tend_reader(outbound, inbound, &mut io).ok()?;
                Some((leaving, outbound.may_end()))
            })
        });
        let (leaving, may_end) = tended.flatten().flatten()?;
        Some(match leaving {
            Leaving::Done => Next::Plain,
            Leaving::Waits(Wait::Carrier) => Next::Guarded { may_end, events: Some(libc::POLLOUT) },
            Leaving::Waits(Wait::Return) => Next::Guarded { may_end, events: Some(0) },
            Leaving::Waits(_) => Next::Guarded { may_end, events: None },
        })
    }
}

/// Bytes of the ring, by their position in the stream.
fn copy_ring(ring: &[u8], at: u64, to: &mut [u8]) {
    let mut positions = at..;
    for byte in to {
        let place = positions.next().unwrap_or(0) % ring.len().max(1) as u64;
        *byte = ring.get(place as usize).copied().unwrap_or(0);
    }
}

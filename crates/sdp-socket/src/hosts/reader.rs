//! A guarded stream that goes on in a relay: its end leaves, and the other end has not answered ([`super::leaving`]).
//!
//! Made by the process that hands it over ([`Reader::new`]), used by the relay process, which is a copy of it
//! ([`crate::migration::relay`]): the queue pair has gone, and all of its messages were taken, so a copy of both halves is
//! enough to read and write the carrier, until markers come no more.

use core::{ops::Range, ptr::from_ref, sync::atomic::Ordering};

use libc::{c_int, iovec};
use sdp_remote::{Leaving, Outbound, ReceiveContext, RecvError, SendError, Wait};
use sdp_sys::{
    errno::Errno,
    fd,
    memory::Zeros,
    section,
    time::{monotonic_ns, sleep},
};

use super::{
    carrier_io::{Socket, Vector},
    ending,
    forked::Copied,
    leaving::{self, is_full, lengthen},
    pair::{self, Pair, Receiving, Sending},
};
use crate::conn::{
    Conn, carrier,
    iovec::{Buffers, Landing},
};

/// How long apart it looks whether the rest of the bytes before messages of the queue pair has
/// come.
const LOOK_NS: i64 = 1_000_000;
/// So many bytes are sent before the other end has answered, at most: when it has, and its program only sends, it must
/// find RETURN among its kernel's unread bytes.
const UNANSWERED_MAX: u64 = 32 * 1024;
/// Memory for unread bytes grows by as much, and not beyond the second: that is as much as the
/// other end's kernel may have, too.
const PIECE: usize = 256 * 1024;
const UNREAD_MAX: usize = 64 << 20;

/// While a relay is being made that goes on with a stream, until all numbers are the relay's: calls on the connection
/// wait.
pub(crate) struct MakingRelay(Option<&'static Pair>);

impl MakingRelay {
    pub(crate) fn begin(conn: &Conn) -> Self {
        let pair = pair::of(conn).map(|(_, pair)| pair);
        if let Some(pair) = pair {
            pair.is_relayed.store(true, Ordering::Release);
        }
        Self(pair)
    }
}

impl Drop for MakingRelay {
    fn drop(&mut self) {
        if let Some(pair) = self.0 {
            pair.is_relayed.store(false, Ordering::Release);
        }
    }
}

/// Both halves of a stream that leaves and reads on.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    conn: &'a Conn,
    pair: &'static Pair,
    fd: c_int,
    /// Up to this position of the stream bytes may be sent before the other end has answered.
    unanswered_to: u64,
    /// This end has ended its stream: no message can be sent.
    is_mute: bool,
}

/// The result of [`Reader::write_due`].
pub(crate) enum Next {
    /// No marker comes any more: the carrier is the kernel's stream.
    Plain,
    /// There may be some.
    Guarded {
        /// This end's direction may end: no message is due, and no answer.
        may_end: bool,
        /// The other end has to send its RETURN before this one may send.
        is_held: bool,
        /// [`Reader::send`] takes bytes when the carrier has room.
        may_send: bool,
        /// The events to wait for on the carrier beside bytes to receive: POLLOUT or 0.
        events: i16,
    },
}

impl<'a> Reader<'a> {
    /// Memory that [`Reader::new`] needs at first.
    pub(crate) const ROOM: usize = pair::RING;

    /// Of a connection that is being handed back and has had no answer: bytes that were taken and
    /// not delivered go to `unread`, with all that lie in receive buffers. So many bytes. `None`:
    /// it did not come about, and the connection is lost.
    pub(crate) fn new(conn: &'a Conn, fd: c_int, unread: &mut Zeros) -> Option<(Self, usize)> {
        let (number, pair) = pair::of(conn)?;
        let is_mute = carrier::has_sent_end(fd);
        let mut reader = Self { conn, pair, fd, unanswered_to: 0, is_mute };
        let mut len = pair.receiving(conn, |Receiving { inbound, .. }| {
            pair.sending(conn, |Sending { outbound, .. }, ring| {
                let outbound = outbound.as_mut()?;
                let (at, len) = sdp_remote::read_on(outbound, inbound.as_mut()?);
                reader.unanswered_to = outbound.stream().saturating_add(UNANSWERED_MAX);
                if len > unread.len() && !unread.grow(len) {
                    return None;
                }
                copy_ring(ring, at, unread.get_mut(..len)?);
                Some(len)
            })
        })???;
        let end = monotonic_ns() + leaving::LEAVE_NS;
        while reader.has_messages() {
            if unread.len() == len && (len >= UNREAD_MAX || !unread.grow(len + PIECE)) {
                return None;
            }
            match reader.receive(unread.get_mut(len..)?) {
                Ok(got @ 1..) => len += got,
                // Not by poll, which reports a part of a marker again and again.
                Err(Errno::EAGAIN) if monotonic_ns() < end => sleep(LOOK_NS),
                _ => return None,
            }
        }
        if !pair.is_copy() {
            ending::drop_link(number, pair);
        }
        Some((reader, len))
    }

    /// Its parts of this process's memory.
    pub(crate) fn memory(&self) -> [Range<usize>; 3] {
        let (conn, pair) = (from_ref(self.conn).addr(), from_ref(self.pair).addr());
        let ring = self.pair.sending(self.conn, |_, ring| {
            let ring = ring.as_ptr_range();
            ring.start.addr()..ring.end.addr()
        });
        let ring = ring.unwrap_or_default();
        [conn..conn + size_of::<Conn>(), pair..pair + size_of::<Pair>(), ring]
    }

    /// Whether bytes of the stream lie in receive buffers.
    fn has_messages(&self) -> bool {
        let has = |Receiving { inbound, .. }: &mut Receiving| {
            inbound.as_ref().is_some_and(|inbound| !inbound.may_destroy())
        };
        self.pair.receiving(self.conn, has) == Some(true)
    }

    /// Runs `start`, which makes a copy of this process, while no other thread is in the middle of a half. `None`: it has
    /// made none.
    pub(crate) fn copied<T>(&self, start: impl FnOnce() -> Option<T>) -> Option<T> {
        let _section = section::Guard::enter();
        if !self.pair.lock_both() {
            return None;
        }
        let copy = start();
        if copy.is_some() {
            // A call that still comes here finds the program's new socket, which is the kernel's
            // alone.
            self.pair.become_plain();
            self.pair.is_leaving.store(false, Ordering::Release);
        }
        self.pair.unlock_both();
        copy
    }

    /// In the copy, once, before anything else.
    pub(crate) fn begin_as_copy(&mut self, fd: c_int) {
        self.pair.unlock_both();
        self.fd = fd;
    }

    /// The next bytes. 0: the end of the stream. EAGAIN: nothing now.
    pub(crate) fn receive(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let part = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: one element, and the memory that it names is the caller's until this returns.
        let mut buffers = unsafe { Buffers::new(&part, 1) }.ok_or(Errno::EINVAL)?;
        let mut landing = Landing { buffers: &mut buffers, discard: false };
        let got = self.pair.receiving(self.conn, |Receiving { inbound, rx, copied, .. }| {
            let inbound = inbound.as_mut()?;
            let carrier = &mut Socket::new(self.conn, self.fd);
            let shared = &self.pair.shared;
            Some(match copied {
                // Of a fork's copy the messages lie in the parent's receive buffers.
                Some(rx) => {
                    let mut io = ReceiveContext { rx: Some(&mut Copied(rx)), carrier, shared };
                    inbound.recv(&mut io, &mut landing, false)
                }
                None => {
                    let mut io = ReceiveContext { rx: rx.as_mut(), carrier, shared };
                    inbound.recv(&mut io, &mut landing, false)
                }
            })
        });
        match got.flatten() {
            Some(Ok(got)) => Ok(got),
            Some(Err(RecvError::WouldBlock)) => Err(Errno::EAGAIN),
            _ => Err(Errno::ECONNRESET),
        }
    }

    /// Sends all that can be sent now; at least one byte. EAGAIN: not now.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let allowed = self.pair.sending(self.conn, |Sending { outbound, .. }, _| {
            outbound.as_ref().map_or(0, |outbound| self.allowed(outbound))
        });
        let bytes = bytes.get(..allowed.unwrap_or(0)).unwrap_or(bytes);
        if bytes.is_empty() {
            return Err(Errno::EAGAIN);
        }
        let part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one element, and the memory that it names outlives the call, which only reads.
        let buffers = unsafe { Buffers::new(&part, 1) }.ok_or(Errno::EINVAL)?;
        let sent = self.pair.sending(self.conn, |Sending { outbound, .. }, ring| {
            let mut socket = Socket::new(self.conn, self.fd);
            let mut io = self.pair.context(None, &mut socket, ring);
            Some(outbound.as_mut()?.send(&mut io, &mut Vector(buffers), 0))
        });
        match sent.flatten() {
            Some(Ok(sent)) => Ok(sent),
            Some(Err(SendError::Wait(_))) => Err(Errno::EAGAIN),
            _ => Err(Errno::ECONNRESET),
        }
    }

    /// How many bytes may be sent before the other end answers. One that has ended its stream does not.
    fn allowed(&self, outbound: &Outbound) -> usize {
        let is_bound = outbound.has_asked() && !carrier::is_over(self.fd);
        let left = self.unanswered_to.saturating_sub(outbound.stream());
        if is_bound { left as usize } else { usize::MAX }
    }

    /// After each of these calls: writes the messages that are due to the other end. `None`: the
    /// connection is to be reset.
    pub(crate) fn write_due(&self) -> Option<Next> {
        if self.is_mute {
            let (is_held, may_send) = (false, false);
            return Some(Next::Guarded { may_end: true, is_held, may_send, events: 0 });
        }
        let written = self.pair.receiving(self.conn, |Receiving { inbound, .. }| {
            let inbound = inbound.as_mut()?;
            loop {
                let written =
                    self.pair.sending(self.conn, |Sending { outbound, .. }, ring| {
                        let outbound = outbound.as_mut()?;
                        let mut socket = Socket::new(self.conn, self.fd);
                        let mut io = self.pair.context(None, &mut socket, ring);
                        let leaving = sdp_remote::tend_reader(outbound, inbound, &mut io);
                        let is_held = outbound.is_held();
                        let may_send = !is_held && self.allowed(outbound) != 0;
                        Some((leaving, (outbound.may_end(), is_held, may_send)))
                    })??;
                if !is_full(written.0) || !lengthen(self.conn, self.pair, inbound) {
                    return Some((written.0.ok()?, written.1));
                }
            }
        });
        let (leaving, (may_end, is_held, may_send)) = written.flatten()?;
        // Then the carrier counts as writable when the kernel has sent everything. 0: as for every socket.
        if matches!(leaving, Leaving::Waits(Wait::Unsegmented) | Leaving::Done) {
            let lowat = c_int::from(leaving != Leaving::Done);
            let option = libc::TCP_NOTSENT_LOWAT;
            let _ = fd::setsockopt_int(self.fd, libc::IPPROTO_TCP, option, lowat);
        }
        Some(match leaving {
            Leaving::Done => Next::Plain,
            Leaving::Waits(wait) => {
                let events = if wait == Wait::Return { 0 } else { libc::POLLOUT };
                Next::Guarded { may_end, is_held, may_send, events }
            }
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

//! Read ZCopy between hosts: a blocking send advertises the program's buffer, a blocking receive
//! READs it into its own (spec 7, [decision 0084](../../../../docs/decisions/0084-read-zcopy.md)).
//!
//! Both run in one section: handlers of signals wait until the buffer is the program's alone again,
//! and neither cancellation nor a jump out of a handler comes between. So nothing here waits long: a
//! sender takes back what is not read in time, or when a signal waits, or another call wants the
//! half; a READ ends by itself, or with its queue pair.
//!
//! Registrations are made and ended under the device's lock, and no half's.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use sdp_fabric_verbs::endpoint::RingTx;
use sdp_rdma::{
    fabric::{MemoryRegion, SendQueue},
    key::{Access, LocalSlice, RemoteSlice},
};
use sdp_remote::{
    FETCH, Fetch, Inbound, Lent, Outbound, ReceiveContext, RecvError, SendContext, SendError,
};
use sdp_stats::{Counter, Direction, Lane as StatsLane};
use sdp_sys::{fd, section, time::monotonic_ns};

use super::{
    carrier_io::{NOT_ASKED, Socket, Vector},
    device::{self, DeviceLock},
    gather, note_lane,
    pair::{Pair, Receiving, Sending},
    show::{count, count_messages},
};
use crate::{
    conn::{Conn, ConnGuard, Limits, iovec::Buffers, publish},
    process,
};

/// Least room of a receive that READs, and least length of an advertisement.
const LEAST: usize = 16 * 1024;
/// Longest advertisement.
const MOST: usize = 1 << 20;
const PAGE: usize = 4096;
/// How long an advertisement waits to be picked up, and from then on for the next report.
const UNREAD_NS: u64 = 20_000_000;
const PICKED_UP_NS: u64 = 200_000_000;
/// Two that were not picked up put the connection off this way for so long, and twice that the next
/// time.
const OFF_NS: u64 = 1_000_000_000;
const OFF_DOUBLES: u32 = 6;
/// READs that may fail before a peer that goes on to advertise is refused.
const REFUSED_MOST: u32 = 3;
/// How long apart one looks, behind a few looks at once.
const LOOK_NS: i64 = 50_000;
const LOOKS: u32 = 200;
/// How long a READ may take at most; a queue pair that is silent for longer is dead.
const READ_NS: u64 = 2_000_000_000;

/// What a connection knows of its advertisements.
pub(super) struct State {
    /// A call has advertised the program's memory.
    lent: AtomicBool,
    /// Another call wants the sending half.
    recall: AtomicBool,
    /// When a call may advertise next, in nanoseconds.
    lend_ns: AtomicU64,
    /// Advertisements in a row that were not read.
    unread: AtomicU32,
    /// READs that have failed.
    refused: AtomicU32,
}

impl State {
    /// Of a new connection.
    pub(super) fn begin(&self) {
        self.lent.store(false, Ordering::Relaxed);
        self.lend_ns.store(0, Ordering::Relaxed);
        self.unread.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
    }

    /// Whether memory is advertised.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::SeqCst)
    }
}

/// From how many bytes on a send advertises; `None`: never.
fn threshold() -> Option<usize> {
    process::tunables().zcopy_from().map(|bytes| bytes as usize)
}

/// The buffer at which a call is.
fn buffer(buffers: &Buffers) -> Option<(u64, usize)> {
    let mut first = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }];
    let used = buffers.fill(usize::MAX, &mut first);
    let [libc::iovec { iov_base, iov_len }] = first;
    (used == 1 && !iov_base.is_null()).then_some((iov_base as u64, iov_len))
}

/// A look, and time between looks.
struct Pace(u32);

impl Pace {
    fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        match self.0 {
            ..LOOKS if self.0.is_multiple_of(16) => sdp_sys::time::yield_now(),
            ..LOOKS => core::hint::spin_loop(),
            _ => sdp_sys::time::sleep(LOOK_NS),
        }
        device::drain();
    }
}

/// The right to make slow steps, when its holder gives it back.
fn lock() -> DeviceLock {
    let mut pace = Pace(0);
    loop {
        if let Some(lock) = DeviceLock::take() {
            return lock;
        }
        pace.wait();
    }
}

/// The program's memory, registered for one call. Ends by [`Registered::end`], in that call.
struct Registered {
    number: u32,
    at: usize,
    region: MemoryRegion,
}

impl Registered {
    /// `None`: it cannot be, or another thread is at the device.
    ///
    /// # Safety
    /// The memory is the program's for this call, which does not return before the end of the
    /// registration.
    unsafe fn new(
        number: u32,
        pair: &Pair,
        (addr, len): (u64, usize),
        access: Access,
    ) -> Option<Self> {
        let at = pair.queue()?.0;
        let mut lock = DeviceLock::take()?;
        let host = &mut device::device(&mut lock, at)?.host;
        let id = host.id_of(number)?;
        // SAFETY: the caller's.
        let made = unsafe { host.fabric().register_for(id, addr, len as u64, access) };
        made.ok().map(|region| Self { number, at, region })
    }

    /// From here on no device uses it.
    fn end(self) {
        let mut lock = lock();
        if let Some(device) = device::device(&mut lock, self.at)
            && let Some(id) = device.host.id_of(self.number)
        {
            device.host.fabric().deregister_for(id, self.region);
        }
        // A queue pair that is gone has taken its registrations with it.
    }
}

/// Whether a send of this connection that may wait, with `left` bytes to send, may advertise now.
fn may_lend(pair: &Pair, left: usize) -> bool {
    pair.shared.has_zcopy()
        && threshold().is_some_and(|threshold| left >= threshold.max(2 * LEAST))
        && device::may_be_slow()
        && monotonic_ns() >= pair.zcopy.lend_ns.load(Ordering::Relaxed)
}

/// Why a send call does not advertise: it goes on otherwise.
#[derive(Debug)]
pub(super) struct Not;

/// A send call advertises the buffer at which it is, byte `from` of the call
/// `vector`, where that is to be done. How many bytes were sent. `until`: when a call that may wait is over;
/// another one's is over already.
///
/// # Errors
/// Nothing was done.
pub(super) fn send(
    conn: &ConnGuard,
    place: (u32, &Pair),
    (buffers, vector, from): (&Buffers, Buffers, usize),
    until: impl FnOnce() -> Option<u64>,
) -> Result<Result<usize, SendError>, Not> {
    if !may_lend(place.1, buffers.left()) {
        return Err(Not);
    }
    let until = until();
    match buffer(buffers) {
        Some(at) if at.1 >= 2 * LEAST && until != Some(0) => {
            match lend(conn, place, at, (vector, from), until) {
                Ok(0) => Err(Not),
                lent => Ok(lent),
            }
        }
        _ => Err(Not),
    }
}

type Io<'a, 'conn> = SendContext<'a, RingTx, Socket<'conn>>;

/// Runs `body` on the sending half of this call, and counts what it has sent.
fn with<R>(
    conn: &ConnGuard,
    pair: &Pair,
    body: impl FnOnce(&mut Outbound, &mut Io<'_, '_>) -> R,
) -> Option<R> {
    pair.sending(conn, |Sending { outbound, tx, .. }, ring| {
        let outbound = outbound.as_mut().filter(|_| !pair.is_plain())?;
        let (before, was_on_sdp) = (outbound.counts(), outbound.is_on_sdp());
        let mut socket = Socket::new(conn, conn.fd());
        let mut io = pair.context(tx.as_mut(), &mut socket, ring);
        let done = body(outbound, &mut io);
        let after = outbound.counts();
        let bytes = (after.bytes - before.bytes) as usize;
        note_lane(conn, was_on_sdp, outbound.is_on_sdp(), &pair.shared);
        count(conn, Direction::Send, StatsLane::Sdp, bytes);
        count_messages(conn, Direction::Send, after.messages - before.messages, bytes);
        Some(done)
    })?
}

#[cold]
#[inline(never)]
fn lend(
    conn: &ConnGuard,
    (number, pair): (u32, &Pair),
    (addr, len): (u64, usize),
    (vector, from): (Buffers, usize),
    until: Option<u64>,
) -> Result<usize, SendError> {
    let _section = section::Guard::enter();
    gather(conn);
    let is_offered = |receiving: &mut Receiving| {
        receiving.inbound.as_ref().is_some_and(|inbound| inbound.is_offered(&pair.shared))
    };
    if section::is_signal_waiting() || pair.receiving(conn, is_offered) != Some(false) {
        return Ok(0);
    }
    let room = with(conn, pair, |outbound, io| outbound.lend_room(io)).unwrap_or(0);
    let len = len.min(room).min(MOST);
    if len < 2 * LEAST {
        return Ok(0);
    }
    let readable = Access { remote_read: true, remote_write: false };
    // SAFETY: the buffer of this call, which ends the registration before it returns.
    let registered = unsafe { Registered::new(number, pair, (addr, len), readable) };
    let Some(registered) = registered else { return Ok(0) };
    // The first bytes go with the message, up to the end of their page.
    let inline = PAGE - (addr as usize & (PAGE - 1));
    let slice = RemoteSlice { addr, len: len as u32, rkey: registered.region.rkey };
    let mut payload = Vector(vector);
    pair.zcopy.recall.store(false, Ordering::SeqCst);
    pair.zcopy.lent.store(true, Ordering::SeqCst);
    let is_lent = with(conn, pair, |outbound, io| {
        outbound.lend(io, &mut payload, (from, inline as u32), slice)
    });
    if is_lent != Some(true) {
        pair.zcopy.lent.store(false, Ordering::SeqCst);
        registered.end();
        return Ok(0);
    }
    await_reads(conn, pair, len - inline, until);
    let ended = with(conn, pair, |outbound, io| {
        // Reports may have come since.
        let seen = outbound.look_lent(io);
        let sent = inline + seen.map_or(0, |seen| seen.read).min(len - inline);
        outbound.end_lent(io, &mut payload, (from + sent, len - sent));
        (sent - inline, seen)
    });
    pair.zcopy.lent.store(false, Ordering::SeqCst);
    registered.end();
    let Some((read, seen)) = ended else { return Err(SendError::Carrier(libc::ECONNRESET)) };
    note_picked_up(pair, read != 0);
    count(conn, Direction::Send, StatsLane::Sdp, read);
    if let Some((page, id)) = publish::of_row(conn).filter(|_| read != 0) {
        page.add(id, Direction::Send, Counter::ReadZCopy, 1);
        page.add(id, Direction::Send, Counter::ZCopyBytes, read as u64);
    }
    seen.map(|_| len)
}

/// Until the peer has read `whole` bytes, or has answered otherwise, or it is waited for no longer.
#[cold]
#[inline(never)]
fn await_reads(conn: &ConnGuard, pair: &Pair, whole: usize, until: Option<u64>) {
    let (mut pace, mut read, mut since) = (Pace(0), 0, monotonic_ns());
    loop {
        if device::has_news(pair) {
            gather(conn);
        }
        match with(conn, pair, |outbound, io| outbound.look_lent(io)) {
            Some(Ok(Lent { is_over: false, read: now })) if now < whole => {
                if now != read {
                    (pace, read, since) = (Pace(0), now, monotonic_ns());
                }
            }
            _ => return,
        }
        let now = monotonic_ns();
        let limit = if read == 0 { UNREAD_NS } else { PICKED_UP_NS };
        let is_late = now.saturating_sub(since) >= limit || until.is_some_and(|u| now >= u);
        let is_wanted = pair.zcopy.recall.load(Ordering::SeqCst)
            || section::is_signal_waiting()
            || conn.has(Limits::Hostile)
            || conn.has_pending_error();
        if is_late || is_wanted {
            return;
        }
        pace.wait();
    }
}

/// An advertisement was picked up, or not.
fn note_picked_up(pair: &Pair, is_picked_up: bool) {
    if is_picked_up {
        pair.zcopy.unread.store(0, Ordering::Relaxed);
        return;
    }
    let unread = pair.zcopy.unread.fetch_add(1, Ordering::Relaxed) + 1;
    if unread.is_multiple_of(2) {
        let doubles = (unread / 2 - 1).min(OFF_DOUBLES);
        pair.zcopy.lend_ns.store(monotonic_ns() + (OFF_NS << doubles), Ordering::Relaxed);
    }
}

/// Before another call uses the sending half: memory that is advertised is taken back. False: that
/// was not possible, since a handler has interrupted the call that advertises, where signals are not
/// put off.
#[cold]
#[inline(never)]
pub(super) fn await_end(pair: &Pair) -> bool {
    let end = monotonic_ns() + READ_NS;
    while pair.zcopy.is_lent() {
        if monotonic_ns() >= end {
            return false;
        }
        pair.zcopy.recall.store(true, Ordering::SeqCst);
        sdp_sys::time::sleep(LOOK_NS);
    }
    true
}

/// What a receive call has found, `found`; where that is nothing, the bytes that the peer
/// advertises, if the call may wait for them. Else they are refused, and come as Data.
#[cold]
#[inline(never)]
pub(super) fn receive(
    conn: &ConnGuard,
    place: (u32, &Pair),
    buffers: &mut Buffers,
    flags: c_int,
    found: Result<usize, RecvError>,
) -> Result<usize, RecvError> {
    let pair = place.1;
    if found != Err(RecvError::WouldBlock) || !pair.shared.has_zcopy() || !is_offered(conn, pair) {
        return found;
    }
    let is_plain = flags & (libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT) == 0
        && device::may_be_slow()
        && !fd::is_nonblocking(conn.fd());
    let is_trusted = pair.zcopy.refused.load(Ordering::Relaxed) < REFUSED_MOST;
    let room = buffer(buffers).filter(|(_, len)| is_plain && is_trusted && *len >= LEAST);
    match room.map_or(Ok(0), |room| fetch(conn, place, room)) {
        Ok(0) => {
            refuse(conn, pair);
            found
        }
        Ok(n) => {
            buffers.advance(n);
            Ok(n)
        }
        error => error,
    }
}

/// Whether the peer advertises what is next in the stream.
#[cold]
#[inline(never)]
pub(super) fn is_offered(conn: &Conn, pair: &Pair) -> bool {
    let is_offered = |Receiving { inbound, .. }: &mut Receiving| {
        inbound.as_ref().is_some_and(|inbound| inbound.is_offered(&pair.shared))
    };
    pair.shared.has_zcopy() && pair.receiving(conn, is_offered) == Some(true)
}

fn refuse(conn: &Conn, pair: &Pair) {
    pair.receiving(conn, |Receiving { inbound, .. }| {
        if let Some(inbound) = inbound {
            inbound.refuse(&pair.shared);
        }
    });
}

/// READs what is advertised into the program's buffer. How many bytes; 0: none.
#[cold]
#[inline(never)]
fn fetch(
    conn: &ConnGuard,
    (number, pair): (u32, &Pair),
    (addr, len): (u64, usize),
) -> Result<usize, RecvError> {
    let _section = section::Guard::enter();
    let len = len.min(MOST);
    // SAFETY: the buffer of this call, which ends the registration before it returns.
    let registered = unsafe { Registered::new(number, pair, (addr, len), Access::default()) };
    let Some(registered) = registered else { return Ok(0) };
    let begun = pair.receiving(conn, |receiving| {
        let (fetch, inbound) = next_fetch(conn, pair, receiving, len)?;
        let local = LocalSlice { addr, len: fetch.from.len, lkey: registered.region.lkey };
        let is_posted = pair.sending(conn, |Sending { tx, .. }, _| {
            tx.as_mut().is_some_and(|tx| tx.post_read(FETCH, local, fetch.from).is_ok())
        });
        (is_posted == Some(true)).then(|| inbound.fetching(&fetch))?;
        Some(fetch)
    });
    let Some(fetch) = begun.flatten() else {
        registered.end();
        return Ok(0);
    };
    let is_there = await_fetched(conn, pair);
    registered.end();
    let is_next = pair.receiving(conn, |Receiving { inbound, rx, .. }| {
        let inbound = inbound.as_mut()?;
        let mut socket = Socket::new(conn, NOT_ASKED);
        let mut io = ReceiveContext { rx: rx.as_mut(), carrier: &mut socket, shared: &pair.shared };
        Some(inbound.fetched(&mut io, &fetch, is_there))
    });
    if !is_there {
        pair.zcopy.refused.fetch_add(1, Ordering::Relaxed);
    }
    if is_next.flatten() != Some(true) {
        return Err(RecvError::WouldBlock);
    }
    let read = fetch.from.len as usize;
    count(conn, Direction::Receive, StatsLane::Sdp, read);
    Ok(read)
}

fn next_fetch<'a>(
    conn: &ConnGuard,
    pair: &Pair,
    receiving: &'a mut Receiving,
    len: usize,
) -> Option<(Fetch, &'a mut Inbound)> {
    let Receiving { inbound, rx, .. } = receiving;
    let inbound = inbound.as_mut()?;
    let mut socket = Socket::new(conn, NOT_ASKED);
    let mut io = ReceiveContext { rx: rx.as_mut(), carrier: &mut socket, shared: &pair.shared };
    // A broken rule is found again by the call.
    let fetch = inbound.next_fetch(&mut io, len as u32).ok()??;
    Some((fetch, inbound))
}

/// Until the READ has ended; whether its bytes are there.
#[cold]
#[inline(never)]
fn await_fetched(conn: &ConnGuard, pair: &Pair) -> bool {
    let (mut pace, end) = (Pace(0), monotonic_ns() + READ_NS);
    loop {
        let ended = pair.sending(conn, |Sending { outbound, tx, .. }, _| {
            let (Some(outbound), Some(tx)) = (outbound, tx) else { return Some(false) };
            outbound.take_fetched(tx, &pair.shared)
        });
        match ended {
            Some(None) if monotonic_ns() < end => pace.wait(),
            Some(Some(is_there)) => return is_there,
            _ => {
                pair.shared.link_died();
                return false;
            }
        }
    }
}

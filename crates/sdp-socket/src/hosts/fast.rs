//! The commonest send and the commonest receive on a queue pair: one buffer, and nothing else to do.
//!
//! Called by `api` before [`super::send`] and [`super::receive`], which do the same and everything
//! else. Whatever is not that simple is refused here before anything has changed, and left to them;
//! nothing is decided here. A fork that has copied the connection, a relay, a queue pair that has
//! ended, a peer that leaves, an error that is due, messages that are traced: all of that is theirs.

use core::{cell::Cell, sync::atomic::Ordering};

use libc::c_int;
use sdp_rdma::fabric::{Gather, Scatter};
use sdp_remote::{ReceiveContext, SendContext};
use sdp_stats::{Counter, Direction, Fabric, Lane as StatsLane, Verdict};
use sdp_sys::{count::Counting, pid, section, time::coarse_ns};

use super::{
    Receiving, Sending,
    carrier_io::{NOT_ASKED, Socket},
    device, look_around, note_lane,
    pair::{self, Pair},
    show::Shown,
    watch,
};
use crate::{
    conn::{self, Conn, ConnGuard, Counted, Half, Limits, Stage, iovec::Buffers, publish},
    process::{
        self,
        table::{self, Entry},
    },
    wake::strangers,
};

/// Longest send; a longer one waits more often than not.
const LONGEST: usize = 1 << 20;

/// A connection to another host, for the length of one section.
pub(super) struct InUse {
    pub(super) conn: &'static Conn,
    pub(super) pair: &'static Pair,
    /// Keeps it alive; none where only this thread could end it, which is in a section.
    _held: Option<ConnGuard>,
}

impl InUse {
    /// The connection that `fd` names, if it is at this stage, and its calls need nothing but their bytes. In a section.
    #[inline(always)]
    pub(super) fn get(fd: c_int, half: Half, stage: Stage) -> Option<Self> {
        let Some(Entry::Conn(index)) = table::entry(fd) else { return None };
        // The number may be another's: `crate::lifecycle::elsewhere`.
        if pid::may_be_borrowed() {
            return None;
        }
        let conn = conn::get(index)?;
        let held = match pid::is_single_threaded() {
            true => None,
            false => Some(ConnGuard::new(fd, half)?),
        };
        let conn = held.as_ref().map_or(conn, ConnGuard::conn);
        let flags = conn.flags.load(Ordering::Relaxed);
        if conn.stage() != stage
            || !flags.has_all(Counted::Established | Counted::HasRow)
            || flags.has(Limits::Hostile | Limits::ResetReported)
            || conn.is_peculiar()
            || device::has_new()
            || (stage == Stage::Guarded && !strangers::has_device())
            || process::tunables().bars_fast_path()
        {
            return None;
        }
        let (_, pair) = pair::of(conn)?;
        Some(Self { conn, pair, _held: held })
    }

    /// The connection for the rest of the call, which lasts longer than the section: the number may be another
    /// connection's by then.
    #[inline(always)]
    pub(super) fn hold(&self, fd: c_int, half: Half) -> Option<ConnGuard> {
        ConnGuard::new(fd, half).filter(|held| core::ptr::eq(held.conn(), self.conn))
    }
}

/// The program's buffer to send from.
struct Source {
    from: *const u8,
    len: usize,
}

impl Gather for Source {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        let len = dst.len().min(self.len.saturating_sub(offset));
        // SAFETY: within the program's buffer and within `dst`, which is no memory of the program's.
        unsafe {
            let from = self.from.add(offset.min(self.len));
            core::ptr::copy_nonoverlapping(from, dst.as_ptr().cast_mut().cast(), len);
        }
    }
}

/// The program's buffer to receive into.
struct Sink {
    to: *mut u8,
    room: usize,
}

impl Scatter for Sink {
    #[inline(always)]
    fn room(&self) -> usize {
        self.room
    }

    #[inline(always)]
    fn accept(&mut self, src: &[Cell<u8>]) {
        let len = src.len().min(self.room);
        // SAFETY: within the program's buffer and within `src`, which is no memory of the program's. A
        // peer that scribbles meanwhile changes bytes, nothing else.
        unsafe {
            core::ptr::copy_nonoverlapping(src.as_ptr().cast(), self.to, len);
            self.to = self.to.add(len);
        }
        self.room -= len;
    }
}

/// Sends bytes as messages, and what is left of them by [`super::send`], which waits. How many;
/// `None`: nothing was done.
///
/// # Safety
/// `from` is readable for `len` bytes (the program's own promise).
#[inline(never)]
pub(crate) unsafe fn send(fd: c_int, from: *const u8, len: usize, flags: c_int) -> Option<usize> {
    if len == 0 || len > LONGEST || from.is_null() {
        return None;
    }
    // Handlers that the section puts off interrupt the rest of the call.
    let mark = section::mark();
    let (sent, rest) = {
        let _section = section::Guard::enter();
        let used = &InUse::get(fd, Half::Send, Stage::Guarded)?;
        let InUse { conn, pair, .. } = used;
        let posts = |sending: &mut Sending, ring: &mut [u8]| {
            let Sending { outbound, tx, .. } = sending;
            let outbound = outbound.as_mut()?;
            let (before, was_on_sdp) = (outbound.counts().messages, outbound.is_on_sdp());
            let mut carrier = Socket::new(conn, NOT_ASKED);
            let (shared, now) = (&pair.shared, coarse_ns());
            let mut io = SendContext { tx: tx.as_mut(), carrier: &mut carrier, ring, shared, now };
            let sent = outbound.send_steadily(&mut io, &mut Source { from, len });
            // A completion may have told that the queue pair is gone.
            note_lane(conn, was_on_sdp, outbound.is_on_sdp(), shared);
            let messages = outbound.counts().messages - before;
            let sent = Some(sent).filter(|n| *n != 0)?;
            count_moved(conn, Direction::Send, (sent, messages), outbound.credits());
            Some(sent)
        };
        let sent = pair.sending_quickly(conn, posts)??;
        watch::sent(conn, pair);
        conn.one_way.store(0, Ordering::Relaxed);
        (sent, if sent == len { None } else { used.hold(fd, Half::Send) })
    };
    match rest {
        Some(rest) => Some(send_rest(&rest, from, (sent, len), flags, mark)),
        None => Some(sent),
    }
}

/// The bytes of a send behind those that were sent; how many there are then.
#[cold]
pub(super) fn send_rest(
    conn: &ConnGuard,
    from: *const u8,
    (sent, len): (usize, usize),
    flags: c_int,
    mark: section::Mark,
) -> usize {
    let whole = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    // SAFETY: the program's buffer, as one element that lives on this stack.
    let buffers = unsafe { Buffers::new(&raw const whole, 1) };
    buffers.map_or(sent, |mut whole| {
        super::send_behind(conn, &mut whole, flags, sent, mark).unwrap_or(sent)
    })
}

/// Receives the bytes that have come by the queue pair and are next. How many; `None`: nothing was
/// done.
///
/// # Safety
/// `to` is writable for `len` bytes (the program's own promise).
#[inline(never)]
pub(crate) unsafe fn receive(fd: c_int, to: *mut u8, len: usize) -> Option<usize> {
    if len == 0 || to.is_null() {
        return None;
    }
    let (got, is_settled) = {
        let _section = section::Guard::enter();
        let InUse { conn, pair, .. } = &InUse::get(fd, Half::Receive, Stage::Guarded)?;
        if pair.is_carrier_due.load(Ordering::Relaxed) {
            return None;
        }
        let takes = |receiving: &mut Receiving| {
            let Receiving { inbound, rx, shown, .. } = receiving;
            let inbound = inbound.as_mut().filter(|_| *shown == Shown::QueuePair)?;
            let before = inbound.counts().messages;
            let mut carrier = Socket::new(conn, NOT_ASKED);
            let (rx, shared) = (rx.as_mut(), &pair.shared);
            let mut io = ReceiveContext { rx, carrier: &mut carrier, shared };
            // An error comes again.
            let got = inbound.recv_steadily(&mut io, &mut Sink { to, room: len }).ok()?;
            let messages = inbound.counts().messages - before;
            let got = Some(got).filter(|n| *n != 0)?;
            count_moved(conn, Direction::Receive, (got, messages), shared.promised());
            Some(got)
        };
        let got = pair.receiving_quickly(conn, takes)??;
        let is_settled = |sending: &mut Sending, _: &mut [u8]| {
            let outbound = sending.outbound.as_ref();
            outbound.is_some_and(|outbound| outbound.is_settled(sending.tx.as_ref(), &pair.shared))
        };
        (got, pair.sending_quickly(conn, is_settled) == Some(true))
    };
    if !is_settled && let Some(conn) = ConnGuard::new(fd, Half::Receive) {
        look_around(&conn);
    }
    Some(got)
}

/// A call has moved bytes, as so many messages.
#[inline(always)]
fn count_moved(conn: &Conn, direction: Direction, (bytes, messages): (usize, u64), credits: u32) {
    let counting = Counting::now();
    let half = if direction == Direction::Send { Half::Send } else { Half::Receive };
    counting.add(&conn.calls[half as usize], 1);
    counting.add_wide(&conn.bytes[half as usize], bytes as u64);
    let Some((page, id)) = publish::of_row(conn) else { return };
    page.moved(id, direction, StatsLane::Sdp, bytes as u64);
    match direction {
        Direction::Send => {
            let each = if messages == 1 { bytes } else { bytes / messages.max(1) as usize };
            page.sent_messages(id, each as u32, messages);
        }
        Direction::Receive => page.add(id, direction, Counter::BCopy, messages),
    }
    page.show_credits(id, direction, credits);
    if let Some(row) = conn.row() {
        page.count_sdp(Verdict::at(&row.reason), Fabric::Verbs);
    }
}

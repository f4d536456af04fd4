//! A half at a glance, without its lock, and how a thread that waits for it arms it.
//!
//! Called by waits for many connections (`poll`, `select`, `epoll`), and by the registrations of
//! epoll sets ([`crate::wake::interest`]). It reads words that both ends write, follows no switch
//! and moves no byte.

use core::sync::atomic::Ordering;

use sdp_fabric_shm::link::{How, Lane, ShmHalf, ShmLink, What};
use sdp_proto::Sink;

use crate::{
    conn::{Conn, Half, Waiters},
    wake::doorbell,
};

pub(crate) struct View {
    pub(crate) tail: u64,
    pub(crate) head: u64,
    pub(crate) switches: u32,
    pub(crate) followed: u32,
    pub(crate) on_sdp: bool,
    /// The end of the stream has been read off the ring.
    pub(crate) has_ended: bool,
}

/// The link, and which half of it is received.
pub(crate) fn inbound(conn: &Conn) -> Option<(ShmLink, usize)> {
    Some((conn.link()?, conn.half_index(Half::Receive)))
}

/// The receiving half at a glance, without its lock. A stale value only causes another look.
pub(crate) fn view(conn: &Conn, half: ShmHalf<'_>) -> Option<View> {
    let sink = &conn.row()?.sink.words;
    let head = sink.first()?.load(Ordering::Relaxed);
    let bits = sink.get(3)?.load(Ordering::Relaxed);
    let engine = sink.get(4 + Sink::BITS)?.load(Ordering::Relaxed);
    Some(View {
        tail: half.position(What::Bytes),
        head,
        switches: half.written(),
        followed: bits as u32,
        on_sdp: bits & (1 << 32) != 0,
        has_ended: Sink::is_end_in(engine),
    })
}

/// Of the receiving half: everything in the ring before this was taken.
pub(crate) fn head(conn: &Conn) -> Option<u64> {
    Some(conn.row()?.sink.words.first()?.load(Ordering::Relaxed))
}

impl View {
    /// A message is in the ring: a receive call would act on it without asking the kernel.
    pub(crate) fn has_bytes(&self) -> bool {
        self.on_sdp && self.tail != self.head
    }

    /// The lane changes, and the reader has not followed yet.
    pub(crate) fn has_switch(&self) -> bool {
        self.switches != self.followed
    }
}

/// Whether bytes come by the ring, and no switch is in sight.
pub(crate) fn stays_on_lane(conn: &Conn) -> bool {
    inbound(conn)
        .and_then(|(link, half)| view(conn, link.half(half)))
        .is_some_and(|view| view.on_sdp && !view.has_switch())
}

/// When the other end last signalled a message of its own ([`sdp_sys::time::ticks`]); 0 unknown.
/// The other end wrote it, and it serves only to order events.
pub(crate) fn rung_at(conn: &Conn) -> u64 {
    if !conn.has_lanes() || !conn.acquire_live(Half::Receive) {
        return 0;
    }
    let at = inbound(conn).map_or(0, |(link, half)| link.half(half).signalled_at());
    conn.release(Half::Receive);
    at
}

/// Arms the receiving half.
pub(crate) fn arm(conn: &Conn) {
    if let Some((link, half)) = inbound(conn) {
        link.half(half).arm(What::Bytes, wait_mode(conn));
    }
}

/// After a receive on a connection for which a thread may wait where no doorbell reaches, and that need not look at the ring
/// before it does: this call arms for it. `has_news`: a message has come, which woke nobody.
#[cold]
pub(crate) fn arm_for_others(conn: &Conn, has_news: impl Fn() -> bool, half: ShmHalf<'_>) {
    half.arm(What::Bytes, wait_mode(conn));
    if has_news() {
        conn.set(Waiters::Consumed);
    }
}

/// Wake bytes were consumed. If other threads may wait for them, the caller wakes these
/// ([`crate::wake::interest::wake_bytes_consumed`]), outside the half's lock.
#[cold]
#[inline(never)]
pub(crate) fn note_consumed(conn: &Conn) {
    if conn.has(Waiters::Polled) || conn.is_waited_for_elsewhere(Half::Receive) {
        conn.set(Waiters::Consumed);
    }
}

/// For waits that cover many connections, any number of sleepers may share the doorbell: its page
/// says which connection has news.
pub(crate) fn wait_mode(conn: &Conn) -> How {
    if conn.has(Waiters::PeerHasDoorbell)
        && !conn.has(Waiters::ByCarrier)
        && doorbell::pages().is_some()
    {
        How::Doorbell
    } else {
        How::Carrier
    }
}

/// Whether the sending half's ring has room. `None`: it is not on the SDP lane, and the kernel is to
/// say.
pub(crate) fn room_in_ring(conn: &Conn) -> Option<bool> {
    let link = conn.link()?;
    let half = link.half(conn.half_index(Half::Send));
    (half.lane() == Lane::Sdp).then(|| half.free() >= half.size() / 8)
}

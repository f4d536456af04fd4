//! A connection as this process sees it: one slot of a fixed arena.
//!
//! Everything here is private to the process (copied by fork, never shared): the mapped segment,
//! the peer process, the number of calls seen. Family members share the connection's row of family
//! memory; both ends share the segment.
//!
//! # Life of a slot
//! FREE → LIVE (first descriptor) → CLOSING (last descriptor gone) → FREE (last call on it gone).
//! The thread that makes the last step tears the slot down. Where calls hold the connection when
//! the last descriptor goes ([`retain`]), LIVE → RETAINED, and the last of them makes the step to
//! CLOSING.

use core::{
    cell::UnsafeCell,
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use sdp_fabric_shm::{identity::Tuple, link::ShmLink, peer::PeerId, rendezvous::Rendezvous};
use sdp_shm::{
    doorbell::{DOORBELL_SLOTS, Doorbell},
    family::{Family, Row},
    layout::Segment,
};
use sdp_stats::{Reason, RowId};
use sdp_sys::{count::Counting, errno::Errno, section};

use crate::{
    conn::{
        alive, carrier,
        flags::{FlagWord, Flags, Holders, Limits, Mask, OfConn, Origin, Pages, RowFlag, Waiters},
        historic::Historic,
        life,
        noted::Noted,
        pool, publish,
        send_turn::SendTurn,
    },
    process::{self, fork_page},
};

mod laned;
mod quiet;
mod retain;

pub(crate) use laned::Laned;
pub(crate) use quiet::{give_up_family, is_any_worked_on};
use retain::Retainer;
pub(crate) use retain::{each_kept, each_kept_number, move_kept};

/// Connections that one process can have on its mind at once; those beyond are plain TCP. Equal to the
/// number of doorbell slots: a connection's index is its slot.
pub(crate) const CONNS: usize = DOORBELL_SLOTS as usize;
/// In the word of the pending error: the connection's messages are traced, so that the fast path has
/// one word to look at for both.
const TRACED: u32 = 1 << 31;
/// Segments that one connection can have had in this process: it is not worth more.
const LIVES: usize = 4;

/// The value of [`Conn::spin`] before the first wait: nanoseconds that this may look for bytes.
pub(crate) const NOTHING_LEARNT: u64 = 10_000;

/// A half, from the program's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// Bytes that the program receives.
    Receive = 0,
    /// Bytes that the program sends.
    Send = 1,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Stage {
    /// A stream socket that is not connected.
    Fresh = 0,
    /// A listener.
    Listener = 1,
    /// Connected, and TCP for good.
    Kernel = 2,
    /// Connected, may earn an SDP lane.
    Candidate = 3,
    /// Meeting the other end.
    Meeting = 4,
    /// Has a segment.
    Attached = 5,
    /// Connected to another host, and may earn a queue pair ([`crate::hosts`]).
    Remote = 6,
    /// Has met another host: markers may stand among the bytes of its carrier.
    Guarded = 7,
}

impl Stage {
    fn from_u32(n: u32) -> Self {
        match n {
            1 => Self::Listener,
            2 => Self::Kernel,
            3 => Self::Candidate,
            4 => Self::Meeting,
            5 => Self::Attached,
            6 => Self::Remote,
            7 => Self::Guarded,
            _ => Self::Fresh,
        }
    }
}

const FREE: u32 = 0;
const LIVE: u32 = 1;
const CLOSING: u32 = 2;
const TEARING: u32 = 3;
/// No descriptor of the program's is left, calls that sleep still hold it.
const RETAINED: u32 = 4;

/// A connection slot.
#[repr(C, align(128))]
pub(crate) struct Conn {
    // ---- all that calls on a candidate touch: two lines of the cache
    state: AtomicU32,
    refs: AtomicU32,
    users: [AtomicU32; 2],
    stage: AtomicU32,
    pub(crate) flags: FlagWord,
    /// Calls inside the kernel without a lock, by half: no lane switch meanwhile.
    pub(crate) raw: [AtomicU32; 2],
    /// Successful calls by half.
    pub(crate) calls: [AtomicU32; 2],
    /// Bytes by half while a candidate.
    pub(crate) bytes: [AtomicU64; 2],
    /// Family row + 1; 0: none.
    row: AtomicU32,
    stats: AtomicU32,
    /// The family memory that the row is in: not the process's any more after a change of privilege.
    family: AtomicPtr<u8>,
    /// Calls that sleep, or have slept, and hold the connection, and the descriptor kept for them.
    retainer: Retainer,
    /// The descriptor that the connection was made with: a hint for tools.
    pub(crate) fd: AtomicI32,
    /// Number that is about to be closed, plus one; 0 none.
    closing: AtomicI32,
    /// First registration in an epoll set + 1 (guarded by the epoll lock).
    pub(crate) registrations: AtomicU32,
    /// Calls since the meeting began.
    pub(crate) ticks: AtomicU32,
    segment: AtomicPtr<u8>,
    /// Its registration, while that is in no mirror.
    pub(crate) noted: Noted,
    // ---- used by each call on a lane
    ring_bytes: AtomicU32,
    /// This end's side.
    pub(crate) side: AtomicU32,
    /// The thread whose send has its message on the way.
    pub(crate) turn: SendTurn,
    /// When the meeting began, in nanoseconds; once attached, the last time a sender looked whether its
    /// reader lives, in ticks, and the consumer's head then.
    pub(crate) looked: AtomicU64,
    pub(crate) looked_head: AtomicU64,
    /// Waits for bytes since the program last sent: a stream does not spin.
    pub(crate) one_way: AtomicU64,
    /// Until when the reader of a stream leaves it alone, in ticks ([`crate::wake::spin::leave_alone`]); 0: it does not.
    pub(crate) left_alone: AtomicU64,
    /// The result of earlier waits ([`crate::wake::spin::Learnt`]).
    pub(crate) spin: AtomicU64,
    /// Wake-ups for nothing since the last for something.
    pub(crate) idle_wakes: AtomicU32,
    /// 1: the peer slept, and had to be woken, for bytes sent since the last wait.
    pub(crate) peer_slept: AtomicU32,
    /// Calls that sleep right now.
    asleep: AtomicU32,
    /// An error number that the kernel reported while a call had bytes to return; 0 none. The next
    /// call reports it, as if the kernel still held it. With [`TRACED`].
    pending_error: AtomicU32,
    // ---- the rest
    /// The peer process; written before `segment`, never after.
    peer: AtomicU64,
    /// Its doorbell page; null: no doorbell, use the carrier.
    peer_page: AtomicPtr<u8>,
    /// Our bit in the peer's doorbell page.
    peer_slot: AtomicU32,
    /// The peer process's id as the kernel reported it at the meeting; 0 unknown.
    pub(crate) peer_pid: AtomicU32,
    /// Segments of lanes that the other end left, and the sizes of their rings in bytes.
    aside: [(AtomicPtr<u8>, AtomicU32); LIVES - 1],
    /// The process that passed an adopted connection on; 0 unknown.
    pub(crate) giver: AtomicU32,
    /// Addresses; written under the meeting's lock before `Origin::Named` is set.
    tuple: UnsafeCell<Tuple>,
    /// Bytes by half that are counted in the page's totals, for want of a row.
    unattributed: [AtomicU64; 2],
    /// Names the segment in the process's pool ([`crate::migration::reuse`]), offered or in use; 0 none.
    pub(crate) lease: AtomicU32,
    /// Calls that waited for a meeting there.
    pub(crate) pool_ticks: AtomicU32,
    /// Nanoseconds that calls have paused for the other end of the meeting.
    pub(crate) paused_ns: AtomicU32,
    /// Lock of `meeting`: 0 free.
    meeting_lock: AtomicU32,
    meeting: UnsafeCell<Rendezvous>,
    /// Of a listener: which rules gave it its verdict ([`crate::lifecycle`]).
    pub(crate) rules: AtomicU32,
    /// Its place among the connections to other hosts + 1; 0 none.
    pub(crate) remote: AtomicU32,
    /// Times that the connection was refused lanes.
    pub(crate) refusals: AtomicU32,
    /// Code of the reason of the first `fall_back`, plus one; 0 none.
    fallback_reason: AtomicU32,
    /// What has to be proven before a byte may leave the carrier ([`crate::datapath::proof`]); 0
    /// nothing.
    pub(crate) proof: AtomicU32,
    /// Bytes that the other socket had received when both agreed last, lower half. Where no
    /// counters are compared, the connector's first number ([`Self::first_number`]).
    pub(crate) agreed: AtomicU32,
    /// How often the bytes received were those that the other socket had sent, and looks in vain
    /// ([`crate::datapath::proof`]).
    pub(crate) heard: AtomicU32,
    /// Bytes that had come then, lower half. Or the acceptor's first number.
    pub(crate) heard_at: AtomicU32,
    /// What is known of a meeting across network namespaces ([`crate::migration::across`]).
    pub(crate) across: AtomicU32,
    /// Its properties as a historic SDP socket.
    pub(crate) historic: Historic,
    next_free: AtomicU32,
    /// When bytes on its lanes were noticed last, and whether the library asks for probes ([`alive`]); 0 never.
    pub(crate) probed: AtomicU32,
}

const _: () = assert!(core::mem::offset_of!(Conn, ring_bytes) <= 128);
const _: () = assert!(
    size_of::<Conn>() == fork_page::CONN_BYTES
        && align_of::<Conn>() == align_of::<fork_page::Place>()
);

// SAFETY: everything is atomic but `meeting`, which is only touched by the holder of `meeting_lock`,
// and `tuple`, which is written under it before a flag says that it may be read.
unsafe impl Sync for Conn {}

/// The slots behind the first ones, which are in [`fork_page`]: made when those do not suffice. Indices count from the
/// first slot of all, so that the arena's own first places stay empty, which costs nothing.
static ARENA: &AtomicPtr<u8> = &fork_page::FORK_PAGE.arena;
/// Lowest slot that may be free.
static HINT: &AtomicU32 = &fork_page::FORK_PAGE.busy.hint;

/// The slot with this index, if there is one.
#[inline]
pub(crate) fn get(index: u32) -> Option<&'static Conn> {
    if let Some(place) = fork_page::FORK_PAGE.conns.get(index as usize) {
        // SAFETY: memory of the size and alignment of a slot (asserted below), which is used as nothing else; an all-zero
        // slot is a valid value (zero atomics; its cells are written before they are read).
        return Some(unsafe { &*place.at().cast::<Conn>() });
    }
    let base = ARENA.load(Ordering::Acquire);
    if base.is_null() || index as usize >= CONNS {
        return None;
    }
    // SAFETY: the arena is a mapping of CONNS slots that is never unmapped; an all-zero slot is a
    // valid value (zero atomics; the meeting cell is written before it is read).
    Some(unsafe { &*base.cast::<Conn>().add(index as usize) })
}

/// A fresh slot with one reference, and its index. `None`: all in use, or no memory.
pub(crate) fn create(stage: Stage) -> Option<(u32, &'static Conn)> {
    let index = take_free().or_else(|| if make_arena() { take_free() } else { None })?;
    HINT.store(index as u32 + 1, Ordering::Relaxed);
    let conn = get(index as u32)?;
    conn.reset(stage);
    conn.state.store(LIVE, Ordering::Release);
    Some((index as u32, conn))
}

/// A free slot, which is the caller's now.
#[unsafe(link_section = ".text.open")]
fn take_free() -> Option<usize> {
    let there = if ARENA.load(Ordering::Acquire).is_null() { fork_page::CONNS } else { CONNS };
    let hint = (HINT.load(Ordering::Relaxed) as usize).min(there);
    (hint..there).chain(0..hint).find(|i| {
        get(*i as u32).is_some_and(|c| {
            c.state.load(Ordering::Relaxed) == FREE
                && c.state
                    .compare_exchange(FREE, TEARING, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        })
    })
}

/// Makes the arena, unless another thread was faster. False when there is no memory.
#[cold]
fn make_arena() -> bool {
    if !ARENA.load(Ordering::Acquire).is_null() {
        return true;
    }
    let Some(fresh) = process::Fresh::private(CONNS * size_of::<Conn>()) else { return false };
    fresh.publish(ARENA);
    true
}

/// The result of signalling a peer by its doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signalled {
    /// No thread sleeps there: the bit in its page is enough.
    Awake,
    /// A thread slept there, and was woken.
    Asleep,
    /// It has given us none: use the carrier.
    NoDoorbell,
}

impl Conn {
    fn reset(&self, stage: Stage) {
        for word in [
            self.flags.word(),
            &self.row,
            &self.ring_bytes,
            &self.side,
            &self.peer_slot,
            &self.peer_pid,
            &self.giver,
            &self.ticks,
            &self.paused_ns,
            &self.probed,
            &self.lease,
            &self.pool_ticks,
            &self.meeting_lock,
            &self.registrations,
            &self.rules,
            &self.remote,
            &self.refusals,
            &self.pending_error,
            &self.fallback_reason,
            &self.proof,
            &self.agreed,
            &self.heard,
            &self.heard_at,
            &self.across,
            &self.peer_slept,
            &self.idle_wakes,
            &self.asleep,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for pair in [&self.calls, &self.raw] {
            pair.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        for word in self.bytes.iter().chain(&self.unattributed) {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.looked, &self.looked_head, &self.one_way, &self.left_alone] {
            word.store(0, Ordering::Relaxed);
        }
        self.turn.reset();
        self.spin.store(NOTHING_LEARNT, Ordering::Relaxed);
        self.stats.store(RowId::NONE.raw(), Ordering::Relaxed);
        self.segment.store(null_mut(), Ordering::Relaxed);
        self.family.store(null_mut(), Ordering::Relaxed);
        // SAFETY: the slot is TEARING: nothing else touches it. `write`, not assignment: a slot
        // that was never used holds zeros, not a value to be dropped.
        unsafe { self.meeting.get().write(Rendezvous::new()) };
        self.peer.store(0, Ordering::Relaxed);
        self.historic.reset();
        self.retainer.reset();
        self.noted.reset();
        self.peer_page.store(null_mut(), Ordering::Relaxed);
        self.stage.store(stage as u32, Ordering::Relaxed);
        self.refs.store(1, Ordering::Relaxed);
    }

    /// Index of the slot, also the connection's doorbell slot.
    pub(crate) fn index(&self) -> u32 {
        let mut offset =
            (&raw const *self as usize).wrapping_sub(fork_page::FORK_PAGE.conns.as_ptr() as usize);
        if offset >= fork_page::CONNS * size_of::<Self>() {
            let base = ARENA.load(Ordering::Relaxed) as usize;
            offset = (&raw const *self as usize).wrapping_sub(base);
        }
        (offset / size_of::<Self>()) as u32
    }

    #[inline]
    pub(crate) fn stage(&self) -> Stage {
        Stage::from_u32(self.stage.load(Ordering::Acquire))
    }

    /// Whether the library reports its readiness, because it has or had a lane beside the carrier.
    #[inline]
    pub(crate) fn has_lanes(&self) -> bool {
        matches!(self.stage(), Stage::Attached | Stage::Guarded)
    }

    /// Whether it has lanes, or may come to have some.
    pub(crate) fn may_have_lanes(&self) -> bool {
        use Stage::{Attached, Candidate, Guarded, Meeting, Remote};
        matches!(self.stage(), Candidate | Meeting | Attached | Remote | Guarded)
    }

    #[inline]
    pub(crate) fn set_stage(&self, stage: Stage) {
        self.check_change(|flags| ((self.stage(), flags), (stage, flags)));
        self.stage.store(stage as u32, Ordering::Release);
    }

    /// Where the connection is in its life.
    #[cfg(test)]
    pub(crate) fn phase(&self) -> life::Phase {
        life::phase(self.stage(), self.flags.load(Ordering::SeqCst))
    }

    /// In a debug build: holds a change that this thread makes against the table. `change`: stage and flags before
    /// it and after it, where the flags are as given.
    #[inline(always)]
    fn check_change(&self, change: impl FnOnce(Flags) -> ((Stage, Flags), (Stage, Flags))) {
        if cfg!(debug_assertions) {
            let (before, after) = change(self.flags.load(Ordering::SeqCst));
            life::check_change(before, after);
        }
    }

    /// Moves from one stage to another, if it is still there.
    pub(crate) fn change_stage(&self, from: Stage, to: Stage) -> bool {
        // Before: another thread goes on from here.
        self.check_change(|flags| {
            let is_there = self.stage() == from;
            ((from, flags), (if is_there { to } else { from }, flags))
        });
        self.change_stage_unjudged(from, to)
    }

    #[inline(always)]
    pub(super) fn change_stage_unjudged(&self, from: Stage, to: Stage) -> bool {
        self.stage
            .compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    pub(crate) fn has(&self, mask: impl Mask<OfConn>) -> bool {
        self.flags.load(Ordering::Relaxed).has(mask)
    }

    #[inline]
    pub(crate) fn set(&self, mask: impl Mask<OfConn>) {
        self.check_change(|flags| {
            let stage = self.stage();
            ((stage, flags), (stage, flags.and(mask.mask())))
        });
        self.flags.insert(mask, Ordering::SeqCst);
    }

    /// Takes flags back.
    #[inline]
    pub(crate) fn clear(&self, mask: impl Mask<OfConn>) {
        self.check_change(|flags| {
            let stage = self.stage();
            ((stage, flags), (stage, flags.without(mask.mask())))
        });
        self.flags.remove(mask, Ordering::SeqCst);
    }

    /// Side of this end: 0 or 1.
    #[inline]
    pub(crate) fn side(&self) -> usize {
        (self.side.load(Ordering::Relaxed) & 1) as usize
    }

    /// The half of the segment that carries this direction.
    #[inline]
    pub(crate) fn half_index(&self, half: Half) -> usize {
        match half {
            Half::Send => self.side(),
            Half::Receive => self.side() ^ 1,
        }
    }

    /// The mapped segment, once attached.
    #[inline]
    pub(crate) fn segment(&self) -> Option<Segment> {
        let base = NonNull::new(self.segment.load(Ordering::Acquire))?;
        // SAFETY: set from a verified mapping by `attach`; unmapped only when the slot is torn down,
        // which waits for all its users.
        Some(unsafe { Segment::new(base, self.ring_bytes.load(Ordering::Relaxed)) })
    }

    /// This end's view of the segment, once attached.
    #[inline(always)]
    pub(crate) fn link(&self) -> Option<ShmLink> {
        Some(ShmLink::new(self.segment()?, self.side()))
    }

    /// Installs the segment. While there is none, under the meeting's lock. False when the meeting was called
    /// off meanwhile: the segment goes with the connection, and is not used.
    pub(crate) fn attach(&self, segment: Segment, side: u8, peer: Option<(PeerId, u32)>) -> bool {
        self.side.store(u32::from(side), Ordering::Relaxed);
        if let Some((id, slot)) = peer {
            self.peer.store(id.to_word(), Ordering::Relaxed);
            self.peer_slot.store(slot, Ordering::Relaxed);
            let page = process::peers().doorbell_page(id).map_or(null_mut(), NonNull::as_ptr);
            self.peer_page.store(page, Ordering::Relaxed);
        }
        self.note_traced();
        self.ring_bytes.store(segment.ring_bytes(), Ordering::Relaxed);
        self.segment.store(segment.base().as_ptr(), Ordering::Release);
        self.change_stage(Stage::Meeting, Stage::Attached)
    }

    /// Wakes the peer's sleepers for this connection through its doorbell page and eventfd.
    #[inline(never)]
    pub(crate) fn signal_peer(&self) -> Signalled {
        let Some(page) = NonNull::new(self.peer_page.load(Ordering::Acquire)) else {
            return Signalled::NoDoorbell;
        };
        // SAFETY: the page is mapped for as long as we are a user of the peer's entry.
        let doorbell = unsafe { Doorbell::new(page) };
        if !doorbell.ring(self.peer_slot.load(Ordering::Relaxed)) {
            return Signalled::Awake;
        }
        match PeerId::from_word(self.peer.load(Ordering::Relaxed)) {
            Some(id) if process::peers().ring(id) => Signalled::Asleep,
            _ => Signalled::NoDoorbell,
        }
    }

    /// CPU on which the peer last used the connection, plus one; 0 unknown. A hint.
    pub(crate) fn peer_cpu(&self) -> u32 {
        if !self.acquire_live(Half::Receive) {
            return 0;
        }
        let cpu = self.link().map_or(0, |link| link.peer().cpu());
        self.release(Half::Receive);
        cpu
    }

    /// Learns the addresses, once. Two system calls.
    pub(crate) fn name(&self, fd: i32) -> Option<Tuple> {
        if !self.has(Origin::Named) {
            let tuple = Tuple::of(fd).ok()?;
            // A meeting that another thread is busy with: the next call keeps the answer.
            self.try_meeting(|_| {
                if !self.has(Origin::Named) {
                    // SAFETY: under the meeting's lock, before `Origin::Named`.
                    unsafe { *self.tuple.get() = tuple };
                    self.set(Origin::Named);
                }
            });
            return Some(tuple);
        }
        self.known_name()
    }

    /// The addresses, if they have been learnt.
    pub(crate) fn known_name(&self) -> Option<Tuple> {
        // SAFETY: `Origin::Named`: not written any more.
        self.has(Origin::Named).then(|| unsafe { *self.tuple.get() })
    }

    /// Row index in the process's family memory.
    #[inline]
    pub(crate) fn row_index(&self) -> Option<u32> {
        let is_current = self.family.load(Ordering::Relaxed) == process::family_base();
        self.row.load(Ordering::Relaxed).checked_sub(1).filter(|_| is_current)
    }

    /// Gives the connection a row of the process's family memory, or none.
    pub(crate) fn set_row(&self, row: Option<u32>) {
        self.family.store(process::family_base(), Ordering::Relaxed);
        self.row.store(row.map_or(0, |r| r + 1), Ordering::Relaxed);
    }

    /// The row in family memory, also that of an earlier family.
    #[inline]
    pub(crate) fn row(&self) -> Option<&'static Row> {
        let index = self.row.load(Ordering::Relaxed).checked_sub(1)?;
        let base = NonNull::new(self.family.load(Ordering::Relaxed))?;
        // SAFETY: set by `set_row` to mapped family memory, which stays mapped while a connection has a
        // row in it.
        unsafe { Family::resume(base) }.static_row(index)
    }

    /// Gives the segment, the peer and the row back before the connection ends, when it is on the
    /// kernel lane for good and no call is in progress but that of the caller, which uses it once.
    /// For processes with a single thread. False when it must wait for the end.
    pub(crate) fn drop_lanes(&self) -> bool {
        if self.users() > 1 || self.stage() != Stage::Kernel {
            return false;
        }
        self.unmap();
        self.set_row(None);
        true
    }

    /// Forgets segment and peer while the connection lives on, if no call is in progress but that
    /// of the caller, which uses it once. The segment stays mapped until the end. False when it
    /// cannot be. The stage is not `Attached` any more. `given_up` runs when it is certain.
    pub(crate) fn put_segment_aside(&self, given_up: impl FnOnce()) -> bool {
        // Flags about the segment, or about the processes that share it.
        let spent = (Waiters::PeerHasDoorbell | Waiters::WantRoom).with(Pages::ALL);
        let is_used = || self.users() > 1;
        let base = self.segment.load(Ordering::Acquire);
        let Some((place, bytes)) =
            self.aside.iter().find(|(place, _)| place.load(Ordering::Relaxed).is_null())
        else {
            return false;
        };
        // A call that began before must find the segment.
        if is_used() {
            return false;
        }
        self.segment.store(null_mut(), Ordering::SeqCst);
        // A call that began since may have found it, and would use it with the state of the next
        // one.
        if is_used() {
            self.segment.store(base, Ordering::Release);
            return false;
        }
        let _ = pool::ended(self); // not kept: the stage is not `Attached`
        given_up();
        bytes.store(self.ring_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        place.store(base, Ordering::Release);
        self.leave_peer();
        self.flags.remove(spent, Ordering::SeqCst);
        self.pool_ticks.store(0, Ordering::Relaxed);
        for word in &self.calls {
            word.store(0, Ordering::Relaxed);
        }
        for word in &self.bytes {
            word.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Unmaps the segments and leaves the peer. Nothing else uses them.
    #[unsafe(link_section = ".text.hot")]
    fn unmap(&self) {
        let unmap = |base, bytes: &AtomicU32| {
            let len = sdp_shm::layout::segment_bytes(bytes.load(Ordering::Relaxed));
            // SAFETY: a segment that was mapped for this connection, taken out of its word; nothing
            // else uses it.
            unsafe { process::unmap(base, len) };
        };
        for (place, bytes) in &self.aside {
            if place.load(Ordering::Relaxed).is_null() {
                break; // they are filled in order
            }
            if let Some(base) = NonNull::new(place.swap(null_mut(), Ordering::AcqRel)) {
                unmap(base, bytes);
            }
        }
        if self.segment.load(Ordering::Relaxed).is_null() {
            return;
        }
        if pool::ended(self) {
            self.segment.store(null_mut(), Ordering::Release);
            self.peer_page.store(null_mut(), Ordering::Release);
            self.peer.store(0, Ordering::Relaxed); // its user is the pool's
            return;
        }
        let base = self.segment.swap(null_mut(), Ordering::AcqRel);
        if let Some(base) = NonNull::new(base) {
            unmap(base, &self.ring_bytes);
        }
        self.leave_peer();
    }

    /// Whether an earlier segment was put aside: a thread that slept on that one has armed a word
    /// at which no producer looks any more.
    pub(crate) fn has_segment_aside(&self) -> bool {
        self.aside.first().is_some_and(|(place, _)| !place.load(Ordering::SeqCst).is_null())
    }

    fn leave_peer(&self) {
        self.peer_page.store(null_mut(), Ordering::Release);
        if let Some(id) = PeerId::from_word(self.peer.swap(0, Ordering::Relaxed)) {
            // SAFETY: the page's address was forgotten above.
            unsafe { process::peers().release(id) };
        }
    }

    /// Bytes of a half were counted in the totals, for want of a row.
    pub(crate) fn add_unattributed(&self, half: Half, bytes: u64) {
        self.unattributed[half as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn unattributed(&self, half: Half) -> u64 {
        self.unattributed[half as usize].load(Ordering::Relaxed)
    }

    /// They are in a row from here on, or another process's.
    pub(crate) fn take_unattributed(&self, half: Half) -> u64 {
        self.unattributed[half as usize].swap(0, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn stats_row(&self) -> RowId {
        // The next read is which page the number belongs to ([`crate::process::page`]).
        RowId::from_raw(self.stats.load(Ordering::Acquire))
    }

    pub(crate) fn set_stats_row(&self, id: RowId) {
        self.stats.store(id.raw(), Ordering::Release);
    }

    /// Why the connection is on the kernel lane, for the statistics.
    pub(crate) fn note_reason(&self, reason: Reason) {
        publish::note_reason(self, reason);
    }

    /// Never on the SDP lane again, because of `reason`, unless there was a reason already.
    pub(crate) fn fall_back(&self, reason: Reason) {
        let code = u32::from(reason.code()) + 1;
        let _ =
            self.fallback_reason.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
        self.set(Limits::Fallback);
        alive::withdraw(self);
    }

    /// Why [`Conn::fall_back`] was called first.
    pub(crate) fn fallback_reason(&self) -> Option<Reason> {
        Reason::from_code(self.fallback_reason.load(Ordering::Relaxed).checked_sub(1)?)
    }

    /// The kernel has reported `error` to the program: it reports the end of a connection only
    /// once, whatever ended it. The kernel answers all that is sent from here on, too.
    pub(crate) fn note_reported(&self, error: Errno) {
        if carrier::is_end(error) {
            self.set(Limits::ResetReported | Limits::PeerGone);
        }
    }

    /// Takes the error that the next call of the program reports.
    #[inline]
    pub(crate) fn take_pending_error(&self) -> Option<Errno> {
        self.pending_error()?;
        let pending = self.pending_error.fetch_and(TRACED, Ordering::Relaxed) & !TRACED;
        (pending != 0).then_some(Errno(pending as i32))
    }

    /// Runs `body` on the meeting, unless another thread is at it.
    pub(crate) fn try_meeting<R>(&self, body: impl FnOnce(&mut Rendezvous) -> R) -> Option<R> {
        self.meeting_lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: the lock word is ours.
        let result = body(unsafe { &mut *self.meeting.get() });
        self.meeting_lock.store(0, Ordering::Release);
        Some(result)
    }

    /// Gives up a meeting in progress, by name or by an offer slot, and moves to `to`, under one
    /// lock: otherwise another thread would begin anew in between. False: another thread is at it,
    /// and nothing has changed.
    pub(crate) fn abandon_meeting(&self, to: Stage) -> bool {
        self.try_meeting(|meeting| {
            meeting.abandon();
            pool::call_off(self);
            self.change_stage(Stage::Meeting, to);
        })
        .is_some()
    }

    /// Calls that are in the middle of using it.
    pub(crate) fn users(&self) -> u32 {
        self.users.iter().fold(0, |sum, users| sum.wrapping_add(users.load(Ordering::SeqCst)))
    }

    #[inline]
    pub(crate) fn acquire(&self, half: Half) {
        Counting::now().add(&self.users[half as usize], 1);
    }

    #[inline]
    pub(crate) fn release(&self, half: Half) {
        if self.users[half as usize].load(Ordering::Relaxed) == 0 {
            return; // of a call of the parent's, in whose handler this process was forked
        }
        if Counting::now().sub(&self.users[half as usize], 1) == 1
            && self.state.load(Ordering::SeqCst) == CLOSING
        {
            self.tear_down_if_unused();
        }
    }

    /// Whether a call of this process is on the connection.
    pub(crate) fn is_in_use(&self) -> bool {
        self.users.iter().any(|users| users.load(Ordering::SeqCst) != 0)
    }

    /// Whether several processes use the lanes of this end.
    #[inline]
    pub(crate) fn is_used_by_several(&self) -> bool {
        self.row().is_some_and(|row| row.flags.load(Ordering::Acquire).has(RowFlag::Several))
    }

    /// Whether another thread of this process may wait for the same half: it is in a call, or the
    /// connection is in an epoll set. The caller uses it.
    pub(crate) fn is_waited_for_elsewhere(&self, half: Half) -> bool {
        self.is_used_by_another_call(half) || self.registrations.load(Ordering::Relaxed) != 0
    }

    /// Whether another thread of this process is in a call on the half. The caller uses it.
    pub(crate) fn is_used_by_another_call(&self, half: Half) -> bool {
        self.users[half as usize].load(Ordering::Relaxed) > 1
    }

    /// In a fork child: the parent's other threads do not exist here.
    pub(crate) fn forget_threads(&self) {
        // One that sleeps on the carrier alone cannot be woken to sleep for a shorter time.
        let mut inside = self.raw.iter().chain([&self.asleep]);
        if inside.any(|calls| calls.load(Ordering::Relaxed) != 0) {
            self.set(Holders::ForkedDuringCall);
        }
        for word in self.users.iter().chain(&self.raw) {
            word.store(0, Ordering::Relaxed);
        }
        self.asleep.store(0, Ordering::Relaxed);
        self.turn.reset();
        alive::forget_threads(self);
        self.forget_kept();
        if self.meeting_lock.load(Ordering::Relaxed) != 0 {
            // Another thread of the parent was in the middle of a step: the state that it left is
            // not to be trusted, not even its descriptors, which exec or exit closes. SAFETY: the
            // only thread of the child; `write`, so that nothing half done is dropped.
            unsafe { self.meeting.get().write(Rendezvous::new()) };
            self.meeting_lock.store(0, Ordering::Relaxed);
        }
    }

    /// Acquires by index, for walks that start from a doorbell bit. False when the slot is not in
    /// use.
    pub(crate) fn acquire_live(&self, half: Half) -> bool {
        self.acquire(half);
        if self.state.load(Ordering::SeqCst) == LIVE {
            return true;
        }
        self.release(half);
        false
    }

    /// One more descriptor names the connection. False when the last one has just been closed.
    pub(crate) fn reference(&self) -> bool {
        self.refs
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n != 0).then_some(n + 1))
            .is_ok()
    }

    /// Notes that `fd`, which the table does not know any more, is about to be closed, unless another thread closes
    /// another number of the connection right now. True: noted, until [`Conn::forget_closing`].
    pub(crate) fn note_closing(&self, fd: i32) -> bool {
        self.closing.compare_exchange(0, fd + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// For the thread whose number was noted.
    pub(crate) fn forget_closing(&self) {
        self.closing.store(0, Ordering::SeqCst);
    }

    /// The number that a thread is about to close.
    pub(crate) fn closing(&self) -> Option<i32> {
        self.closing.load(Ordering::SeqCst).checked_sub(1).filter(|fd| *fd >= 0)
    }

    /// One descriptor less. True for exactly one caller: the connection has none any more, and the
    /// caller ends it ([`Conn::closed`]).
    pub(crate) fn unreference(&self) -> bool {
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The last descriptor is gone from the table, and the steps before an end are done: the slot
    /// is freed as soon as no call uses it.
    pub(crate) fn closed(&self) {
        self.state.store(CLOSING, Ordering::SeqCst);
        self.tear_down_if_unused();
    }

    #[unsafe(link_section = ".text.hot")]
    fn tear_down_if_unused(&self) {
        if self.users.iter().any(|p| p.load(Ordering::SeqCst) != 0)
            || self
                .state
                .compare_exchange(CLOSING, TEARING, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        // A handler that came in between would wait for a lock of this thread's.
        let _section = section::Guard::enter();
        self.abandon_meeting(Stage::Kernel);
        self.unmap();
        // Not before: a call that began before the close may be looking for bytes, and takes the row's locks.
        if let (Some(row), Some((family, slot))) = (self.row_index(), process::family()) {
            family.let_go(slot, row);
        }
        publish::close_stats_row(self);
        let index = self.index();
        self.row.store(0, Ordering::Relaxed);
        let family = self.family.swap(null_mut(), Ordering::SeqCst);
        self.state.store(FREE, Ordering::Release);
        if !family.is_null() && family != process::family_base() {
            quiet::row_of_old_family_freed(family);
        }
        if HINT.load(Ordering::Relaxed) > index {
            HINT.fetch_min(index, Ordering::Relaxed);
        }
    }
}

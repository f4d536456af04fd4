//! The process's state of its connections to other hosts: one place of a fixed arena for each.
//!
//! A place is private to the process. Each half of it has a lock of its own, taken inside a section and kept for
//! a moment; where both are wanted, the receiving half's comes first.

use core::{
    cell::UnsafeCell,
    mem::{ManuallyDrop, forget},
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use sdp_fabric_shm::identity::Tuple;
use sdp_fabric_verbs::endpoint::{RingRx, RingTx};
use sdp_remote::{Identity, Inbound, Meeting, Outbound, Prefix, Role, SendContext, Shared};
use sdp_sys::{memory::Zeros, section, time::monotonic_ns};

use super::{
    carrier_io::Socket,
    forked::{self, Use},
    show::Shown,
    watch::Watch,
    zcopy,
};
use crate::{
    conn::{Conn, Half},
    process,
};

/// Connections to other hosts that one process can have on its mind; those beyond are plain TCP.
pub(super) const PAIRS: usize = 128;
/// An owner while the place comes or goes.
const NOBODY: u32 = u32::MAX;
/// How often a thread looks again for a half's lock that another one has, and how long it waits beyond
/// that. A handler for a fault may have left the lock for good.
const LOOKS: u32 = 200;
/// The same for a caller that can come back later.
const FEW_LOOKS: u32 = 100;
const LATE_NS: u64 = 5_000_000_000;
const LATE_SLEEP_NS: i64 = 1_000_000;
/// How long a call waits at most for a relay that is being made, and how long apart it looks.
const RELAY_NS: u64 = 12_000_000_000;
const RELAY_SLEEP_NS: i64 = 500_000;
/// The low half of [`Pair::endpoint`].
const LOW: usize = 0xffff;
/// Bytes posted and not acknowledged that a connection can have.
pub(super) const RING: usize = 128 * 1024;

/// The receiving half.
pub(super) struct Receiving {
    /// The first bytes that came by the carrier.
    pub(super) prefix: Prefix,
    /// Bytes that the program has read before the first meeting.
    pub(super) moved: u64,
    /// From the first meeting on.
    pub(super) inbound: Option<Inbound>,
    /// The queue pair's half.
    pub(super) rx: Option<RingRx>,
    /// The parent's, in a fork child: for reading messages that had arrived ([`super::forked`]).
    pub(super) copied: Option<ManuallyDrop<RingRx>>,
    /// Since when the carrier has ended while the stream was on SDP, in nanoseconds; 0: it has not.
    pub(super) cut_ns: u64,
    pub(super) shown: Shown,
}

/// The sending half.
pub(super) struct Sending {
    /// The first bytes that the carrier took.
    pub(super) prefix: Prefix,
    /// Bytes that the program has sent before the first meeting.
    pub(super) moved: u64,
    /// From the first meeting on.
    pub(super) outbound: Option<Outbound>,
    /// The queue pair's half.
    pub(super) tx: Option<RingTx>,
    /// In the place of the ring, while more goes back to the other end, or comes back from it, than that has room for.
    pub(super) longer: Option<Zeros>,
}

/// Attempts to meet. Under the device's lock.
pub(super) struct Attempt {
    /// How far this one is, and the place of its device.
    pub(super) meeting: Meeting,
    pub(super) place: usize,
    /// Bytes of the connection's ring that the queue pair that is asked for can send from.
    pub(super) kept: usize,
    /// How many came to nothing since the last meeting, and whether the other end's library answered one.
    pub(super) tries: u32,
    pub(super) has_answered: bool,
    /// When the ends met last, in nanoseconds, and how many queue pairs have been lost soon after that, one after the other.
    pub(super) met_ns: u64,
    pub(super) losses: u32,
}

/// One connection to another host.
pub(super) struct Pair {
    /// Slot of the connection + 1; 0: the place is free. Changed under both locks.
    owner: AtomicU32,
    locks: [AtomicU32; 2],
    /// The words that the halves exchange.
    pub(super) shared: Shared,
    /// When the next attempt to meet may begin, in nanoseconds ([`super::pace`]).
    pub(super) next_ns: AtomicU64,
    /// When an end that waits to be asked says that nobody is there, in nanoseconds; 0: it does not.
    pub(super) in_vain_ns: AtomicU64,
    /// The next attempt is one of the first few: a thread that sleeps comes back for it.
    pub(super) is_soon: AtomicBool,
    /// A request is in flight, or a listener waits for one. Changed under the device's lock.
    pub(super) is_out: AtomicBool,
    /// Place of the queue pair in the fabric + 1, in the low half, and the device's; 0 none.
    endpoint: AtomicU32,
    /// Messages that had arrived when threads were last signalled.
    pub(super) signalled: AtomicU32,
    /// It has met, and epoll sets do not know yet.
    pub(super) is_new: AtomicBool,
    /// The carrier is plain TCP, for good.
    is_plain: AtomicBool,
    /// A thread is at handing the stream back.
    pub(super) is_leaving: AtomicBool,
    /// A relay is about to go on with the stream: calls wait until it does, or the stream is lost.
    pub(super) is_relayed: AtomicBool,
    /// The thread that hands a fork's copy back, by its id; 0: none does.
    pub(super) handing: AtomicU32,
    /// The other end was asked early: how long it is waited for, in monotonic nanoseconds; 0: it
    /// was not.
    pub(super) leave_by: AtomicU64,
    /// Since it met, the process has forked, or it is the child.
    pub(super) is_forked: AtomicBool,
    /// The fork that made this copy, or the last one of the process that has the queue pair.
    pub(super) fork: AtomicU32,
    /// The fork after which this process has claimed it: as `fork`, or others may go on with the connection.
    claimed: AtomicU32,
    is_copy: AtomicBool,
    /// The program reads no more (SHUT_RD).
    pub(super) is_shut: AtomicBool,
    /// The program has read the end of the stream.
    pub(super) has_ended: AtomicBool,
    /// Notices a message that is lost.
    pub(super) watch: Watch,
    /// The kernel reported to a wait that the carrier has bytes; no receive call has looked yet.
    pub(super) is_carrier_due: AtomicBool,
    /// A receive call that found nothing was one that waits: the next one is taken for one, until it asks the kernel.
    pub(super) is_waited_for: AtomicBool,
    /// The kernel did not take a send whole: the next ones begin where they can wait ([`super::unmet`]). A hint.
    pub(super) is_full: AtomicBool,
    /// Advertised memory ([`super::zcopy`]).
    pub(super) zcopy: zcopy::State,
    /// Steps of its end that were put off ([`super::ending`]).
    pub(super) later: AtomicU32,
    /// A thread left a lock for good.
    is_dead: AtomicBool,
    /// Both locks are held for a fork.
    pub(super) is_held: AtomicBool,
    receiving: UnsafeCell<Receiving>,
    sending: UnsafeCell<Sending>,
    attempt: UnsafeCell<Attempt>,
    /// Bytes of the ring that are used: as many as its queue pair can send from.
    kept: AtomicU32,
    ring: UnsafeCell<[u8; RING]>,
}

// SAFETY: fields that are not atomic are used under the lock of their half, or the device's.
unsafe impl Sync for Pair {}

static ARENA: AtomicPtr<Pair> = AtomicPtr::new(null_mut());
/// Behind the highest place that was ever used.
static TOP: AtomicU32 = AtomicU32::new(0);

/// The place with this number, while it is in use.
pub(super) fn get(number: u32) -> Option<&'static Pair> {
    let base = ARENA.load(Ordering::Acquire);
    if base.is_null() || number as usize >= PAIRS {
        return None;
    }
    // SAFETY: a mapping of so many places that is never given back; an owned one was written before.
    let pair = unsafe { &*base.add(number as usize) };
    (!matches!(pair.owner.load(Ordering::Acquire), 0 | NOBODY)).then_some(pair)
}

/// All places in use, with their numbers.
pub(super) fn all() -> impl Iterator<Item = (u32, &'static Pair)> {
    (0..TOP.load(Ordering::Acquire)).filter_map(|number| get(number).map(|pair| (number, pair)))
}

/// The connection's place.
pub(super) fn of(conn: &Conn) -> Option<(u32, &'static Pair)> {
    let number = conn.remote.load(Ordering::Acquire).checked_sub(1)?;
    let pair = get(number)?;
    (pair.owner.load(Ordering::Relaxed) == conn.index() + 1).then_some((number, pair))
}

/// A place for a connection that has moved nothing yet. `None`: all are in use, or no memory.
pub(super) fn take(conn: &Conn, role: Role) -> Option<&'static Pair> {
    let mut base = ARENA.load(Ordering::Acquire);
    if base.is_null() {
        let len = PAIRS * size_of::<Pair>();
        base = process::Fresh::private(len)?.publish(&ARENA);
    }
    for number in 0..PAIRS {
        // SAFETY: within the mapping; all zeros is a free place.
        let pair = unsafe { &*base.add(number) };
        let owner = conn.index() + 1;
        if pair.owner.load(Ordering::Relaxed) != 0
            || pair.owner.compare_exchange(0, NOBODY, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            continue;
        }
        let _section = section::Guard::enter();
        // A call on the connection that was here before may still look.
        let (Some(first), Some(second)) = (pair.lock(Half::Receive), pair.lock(Half::Send)) else {
            pair.owner.store(0, Ordering::Release);
            continue;
        };
        let receiving = Receiving {
            prefix: Prefix::new(),
            moved: 0,
            inbound: None,
            rx: None,
            copied: None,
            cut_ns: 0,
            shown: Shown::Tcp,
        };
        let sending =
            Sending { prefix: Prefix::new(), moved: 0, outbound: None, tx: None, longer: None };
        let attempt = Attempt {
            meeting: Meeting::new(role),
            place: 0,
            kept: 0,
            tries: 0,
            has_answered: false,
            met_ns: 0,
            losses: 0,
        };
        // SAFETY: both locks are ours, and the place is not in use. `write`: the value that was
        // there before was dropped, or never was.
        unsafe {
            pair.receiving.get().write(receiving);
            pair.sending.get().write(sending);
            pair.attempt.get().write(attempt);
            (&raw const pair.shared).cast_mut().write(Shared::new());
        }
        pair.next_ns.store(0, Ordering::Relaxed);
        pair.is_soon.store(false, Ordering::Relaxed);
        pair.is_out.store(false, Ordering::Relaxed);
        pair.endpoint.store(0, Ordering::Relaxed);
        pair.signalled.store(0, Ordering::Relaxed);
        pair.is_new.store(false, Ordering::Relaxed);
        let flags =
            [&pair.is_plain, &pair.is_leaving, &pair.is_relayed, &pair.is_forked, &pair.is_copy];
        for flag in flags {
            flag.store(false, Ordering::Relaxed);
        }
        pair.kept.store(RING as u32, Ordering::Relaxed);
        pair.handing.store(0, Ordering::Relaxed);
        pair.later.store(0, Ordering::Relaxed);
        pair.leave_by.store(0, Ordering::Relaxed);
        pair.fork.store(0, Ordering::Relaxed);
        pair.claimed.store(0, Ordering::Relaxed);
        for flag in [&pair.is_shut, &pair.has_ended, &pair.is_waited_for, &pair.is_full] {
            flag.store(false, Ordering::Relaxed);
        }
        pair.watch.begin();
        pair.is_carrier_due.store(false, Ordering::Relaxed);
        pair.zcopy.begin();
        TOP.fetch_max(number as u32 + 1, Ordering::Release);
        pair.owner.store(owner, Ordering::Release);
        drop((first, second));
        conn.remote.store(number as u32 + 1, Ordering::Release);
        return Some(pair);
    }
    None
}

/// A half's lock, held.
struct Locked<'a>(&'a AtomicU32);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Pair {
    fn lock_if_free(&self, half: Half) -> Option<Locked<'_>> {
        let word = if half == Half::Receive { &self.locks[0] } else { &self.locks[1] };
        let taken = word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Locked(word))
    }

    /// `None`: its holder does not come back.
    fn lock(&self, half: Half) -> Option<Locked<'_>> {
        if self.is_dead.load(Ordering::Relaxed) {
            return None;
        }
        for turn in 0..LOOKS {
            if let Some(locked) = self.lock_if_free(half) {
                return Some(locked);
            }
            sdp_sys::time::back_off(turn);
        }
        let end = monotonic_ns() + LATE_NS;
        while monotonic_ns() < end {
            if let Some(locked) = self.lock_if_free(half) {
                return Some(locked);
            }
            sdp_sys::time::sleep(LATE_SLEEP_NS);
        }
        self.is_dead.store(true, Ordering::Relaxed);
        None
    }

    /// The half's lock of a claimed connection, for a caller that can come back later.
    fn try_lock_claimed(&self, half: Half) -> Option<Locked<'_>> {
        let locked = (0..FEW_LOOKS).find_map(|_| self.lock_if_free(half));
        locked.filter(|_| self.is_claimed())
    }

    /// Runs `body` under the lock of the receiving half. `None`: the place is not the connection's any more.
    fn with_receiving<R>(
        &self,
        conn: &Conn,
        _locked: Locked<'_>,
        body: impl FnOnce(&mut Receiving) -> R,
    ) -> Option<R> {
        // SAFETY: the lock of the half is the caller's, which gives it to us.
        self.is_of(conn).then(|| body(unsafe { &mut *self.receiving.get() }))
    }

    /// The same for the sending half and its ring.
    fn with_sending<R>(
        &self,
        conn: &Conn,
        _locked: Locked<'_>,
        body: impl FnOnce(&mut Sending, &mut [u8]) -> R,
    ) -> Option<R> {
        // SAFETY: the lock of the half is the caller's, which gives it to us.
        let (sending, ring) = unsafe { (&mut *self.sending.get(), &mut *self.ring.get()) };
        if !self.is_of(conn) {
            return None;
        }
        let ring = ring.get_mut(..self.kept.load(Ordering::Relaxed) as usize)?;
        let mut longer = sending.longer.take();
        let done = body(sending, longer.as_deref_mut().unwrap_or(ring));
        // Not in a place that `body` has given up, or of a stream that others go on with: nothing would end the mapping.
        if let Some(longer) = longer
            && self.is_of(conn)
            && !self.is_plain()
        {
            keep_longer(sending, longer);
        }
        Some(done)
    }

    /// Whether nothing but this process's calls uses the connection, and all that is to be known of
    /// it is in its halves. Under a half's lock.
    #[inline]
    fn is_undisturbed(&self) -> bool {
        let is_any = |flags: [&AtomicBool; 3]| flags.iter().any(|f| f.load(Ordering::Acquire));
        !is_any([&self.is_forked, &self.is_plain, &self.is_relayed])
    }

    /// Runs `body` on the receiving half of a connection that is undisturbed. `None`: it is not, or
    /// another thread is at the half. In a section.
    #[inline]
    pub(super) fn receiving_quickly<R>(
        &self,
        conn: &Conn,
        body: impl FnOnce(&mut Receiving) -> R,
    ) -> Option<R> {
        let locked = self.lock_if_free(Half::Receive)?;
        if self.is_undisturbed() { self.with_receiving(conn, locked, body) } else { None }
    }

    /// As [`Pair::receiving_quickly`], on the sending half and its ring.
    #[inline]
    pub(super) fn sending_quickly<R>(
        &self,
        conn: &Conn,
        body: impl FnOnce(&mut Sending, &mut [u8]) -> R,
    ) -> Option<R> {
        let locked = self.lock_if_free(Half::Send)?;
        if self.is_undisturbed() { self.with_sending(conn, locked, body) } else { None }
    }

    /// Whether `ring` is the one from which the queue pair's device sends.
    pub(super) fn is_registered(&self, ring: &[u8]) -> bool {
        core::ptr::eq(ring.as_ptr(), self.ring.get().cast::<u8>())
    }

    /// Takes both locks and keeps them until [`Pair::unlock_both`]. False: a thread left one for good.
    pub(super) fn lock_both(&self) -> bool {
        let (Some(first), Some(second)) = (self.lock(Half::Receive), self.lock(Half::Send)) else {
            return false;
        };
        forget((first, second));
        true
    }

    /// Gives both locks back.
    pub(super) fn unlock_both(&self) {
        self.locks.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Address and length of the memory that its queue pairs send from. It is never given back.
    pub(super) fn memory(&self) -> (u64, usize) {
        (self.ring.get() as u64, RING)
    }

    /// The ring has this number of bytes from here on. Under both locks, and nothing is kept.
    pub(super) fn keep(&self, bytes: usize) {
        self.kept.store(bytes.min(RING) as u32, Ordering::Relaxed);
    }

    /// Whether the carrier is plain TCP, for good.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain.load(Ordering::Acquire)
    }

    /// From here on it is.
    pub(super) fn become_plain(&self) {
        self.is_plain.store(true, Ordering::Release);
    }

    /// The parts with which a call on the sending half works. Its lock is the caller's.
    pub(super) fn context<'a, 'conn>(
        &'a self,
        tx: Option<&'a mut RingTx>,
        carrier: &'a mut Socket<'conn>,
        ring: &'a mut [u8],
    ) -> SendContext<'a, RingTx, Socket<'conn>> {
        SendContext { tx, carrier, ring, shared: &self.shared, now: monotonic_ns() }
    }

    /// This process goes on with the connection, as of fork number `fork`: a later fork ends that.
    pub(super) fn claimed_at(&self, fork: u32) {
        self.claimed.store(fork, Ordering::Release);
    }

    /// Whether this process goes on with it, or it is plain. Under a half's lock, which a fork takes, that does not change.
    pub(super) fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire) == self.fork.load(Ordering::Relaxed) || self.is_plain()
    }

    /// The half's lock, of a connection that this process has claimed for `what`. `None`: that is
    /// not possible.
    fn lock_claimed(&self, conn: &Conn, half: Half, what: Use) -> Option<Locked<'_>> {
        let mut end = None;
        loop {
            if !forked::claim(conn, self, what) {
                return None;
            }
            let locked = self.lock(half)?;
            if half == Half::Send && what == Use::Call && self.zcopy.is_lent() {
                drop(locked);
                if !zcopy::await_end(self) {
                    return None;
                }
                continue;
            }
            if what == Use::Call && self.is_relayed.load(Ordering::Acquire) {
                // The relay has a copy of both halves, and the carrier. Its maker wants these locks.
                drop(locked);
                if monotonic_ns() >= *end.get_or_insert_with(|| monotonic_ns() + RELAY_NS) {
                    return None;
                }
                sdp_sys::time::sleep(RELAY_SLEEP_NS);
                continue;
            }
            if self.is_claimed() {
                return Some(locked);
            }
            // There was a fork meanwhile.
        }
    }

    /// As [`Pair::receiving`], of a connection that is claimed for `what`.
    pub(super) fn receiving_for<R>(
        &self,
        conn: &Conn,
        what: Use,
        body: impl FnOnce(&mut Receiving) -> R,
    ) -> Option<R> {
        let _section = section::Guard::enter();
        self.with_receiving(conn, self.lock_claimed(conn, Half::Receive, what)?, body)
    }

    /// As [`Pair::sending`], of a connection that is claimed for `what`.
    pub(super) fn sending_for<R>(
        &self,
        conn: &Conn,
        what: Use,
        body: impl FnOnce(&mut Sending, &mut [u8]) -> R,
    ) -> Option<R> {
        let _section = section::Guard::enter();
        self.with_sending(conn, self.lock_claimed(conn, Half::Send, what)?, body)
    }

    /// As [`Pair::sending`] of a claimed connection, for a caller that can come back later.
    pub(super) fn try_sending<R>(
        &self,
        conn: &Conn,
        body: impl FnOnce(&mut Sending, &mut [u8]) -> R,
    ) -> Option<R> {
        let _section = section::Guard::enter();
        self.with_sending(conn, self.try_lock_claimed(Half::Send)?, body)
    }

    /// Whether the queue pair is the parent's.
    pub(super) fn is_copy(&self) -> bool {
        self.is_copy.load(Ordering::Relaxed)
    }

    /// In a fork child: the queue pair stays the parent's.
    ///
    /// # Safety
    /// No other thread uses the place.
    pub(super) unsafe fn become_copy(&self) {
        // SAFETY: the caller's.
        let (receiving, sending) =
            unsafe { (&mut *self.receiving.get(), &mut *self.sending.get()) };
        if let Some(rx) = receiving.rx.take() {
            receiving.copied = Some(ManuallyDrop::new(rx));
        }
        forget(sending.tx.take());
        self.attempt_no_more();
        self.endpoint.store(0, Ordering::Relaxed);
        self.is_new.store(false, Ordering::Relaxed);
        let fork = self.fork.load(Ordering::Relaxed);
        if self.claimed.load(Ordering::Relaxed) == fork {
            self.claimed.store(fork.wrapping_sub(1), Ordering::Relaxed);
        }
        self.is_copy.store(true, Ordering::Relaxed);
        self.is_forked.store(true, Ordering::Relaxed);
    }

    /// The receiving half, for a caller that can come back later. `None`: another thread is at it,
    /// or as [`Pair::receiving`].
    pub(super) fn try_receiving<R>(
        &self,
        conn: &Conn,
        body: impl FnOnce(&mut Receiving) -> R,
    ) -> Option<R> {
        let _section = section::Guard::enter();
        self.with_receiving(conn, self.try_lock_claimed(Half::Receive)?, body)
    }

    /// Whether a thread left a lock for good: the connection is lost.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    fn is_of(&self, conn: &Conn) -> bool {
        self.owner.load(Ordering::Acquire) == conn.index() + 1
    }

    /// Runs `body` on the receiving half, inside a section. `None`: the place is not the connection's any more, or a thread
    /// left the lock for good.
    pub(super) fn receiving<R>(
        &self,
        conn: &Conn,
        body: impl FnOnce(&mut Receiving) -> R,
    ) -> Option<R> {
        let _section = section::Guard::enter();
        self.with_receiving(conn, self.lock(Half::Receive)?, body)
    }

    /// Runs `body` on the sending half and its ring, as [`Pair::receiving`] does.
    pub(super) fn sending<R>(
        &self,
        conn: &Conn,
        body: impl FnOnce(&mut Sending, &mut [u8]) -> R,
    ) -> Option<R> {
        let _section = section::Guard::enter();
        self.with_sending(conn, self.lock(Half::Send)?, body)
    }

    /// Attempts to meet.
    ///
    /// # Safety
    /// The caller has the device's lock.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn attempt(&self) -> &mut Attempt {
        // SAFETY: the caller's.
        unsafe { &mut *self.attempt.get() }
    }

    /// The place of its device, and that of the queue pair there.
    #[inline]
    pub(super) fn queue(&self) -> Option<(usize, usize)> {
        let both = self.endpoint.load(Ordering::Acquire) as usize;
        let index = (both & LOW).checked_sub(1)?;
        Some((both >> LOW.count_ones(), index))
    }

    pub(super) fn set_queue(&self, queue: Option<(usize, usize)>) {
        let both = queue.map_or(0, |(at, index)| at << LOW.count_ones() | (index + 1) & LOW);
        self.endpoint.store(both as u32, Ordering::Release);
    }

    /// No attempt is in progress, and none begins any more.
    pub(super) fn attempt_no_more(&self) {
        self.next_ns.store(u64::MAX, Ordering::Relaxed);
        self.is_soon.store(false, Ordering::Relaxed);
        self.is_out.store(false, Ordering::Relaxed);
    }

    /// Slot of the connection.
    pub(super) fn conn(&self) -> Option<&'static Conn> {
        let owner = self.owner.load(Ordering::Acquire);
        crate::conn::get(owner.checked_sub(1).filter(|_| owner != NOBODY)?)
    }

    /// Whether no other thread is at a half, or about to have done with it.
    pub(super) fn is_free(&self) -> bool {
        (0..FEW_LOOKS).any(|_| self.locks.iter().all(|word| word.load(Ordering::Acquire) == 0))
    }

    /// The place cannot be found any more; the halves of its queue pair. [`Pair::release`] follows.
    pub(super) fn retire(&self, conn: &Conn) -> Option<(Option<RingTx>, Option<RingRx>)> {
        self.receiving(conn, |receiving| {
            self.sending(conn, |sending, _| {
                self.owner.store(NOBODY, Ordering::Release);
                (sending.tx.take(), receiving.rx.take())
            })
        })?
    }

    /// A thread left a lock for good: the place is not used again.
    pub(super) fn abandon(&self) {
        self.owner.store(NOBODY, Ordering::Release);
    }

    /// The place is free: nothing of its queue pair is left.
    pub(super) fn release(&self) {
        self.owner.store(0, Ordering::Release);
    }
}

/// The longer ring of a half stays as long as bytes may lie there, if there is none that is longer still.
#[cold]
#[inline(never)]
fn keep_longer(sending: &mut Sending, longer: Zeros) {
    if !sending.outbound.as_ref().is_none_or(Outbound::is_plain) && sending.longer.is_none() {
        sending.longer = Some(longer);
    }
}

/// The facts about one carrier that both ends know.
pub(super) fn identity<'a>(
    role: Role,
    tuple: &Tuple,
    receiving: &'a Receiving,
    sending: &'a Sending,
) -> Identity<'a> {
    let (from_acceptor, from_connector, acceptor_port, connector_port) = match role {
        Role::Acceptor => {
            (&sending.prefix, &receiving.prefix, tuple.local.port(), tuple.remote.port())
        }
        Role::Connector => {
            (&receiving.prefix, &sending.prefix, tuple.remote.port(), tuple.local.port())
        }
    };
    let is_ipv6 = tuple.local.family() == sdp_fabric_shm::identity::Family::V6;
    Identity { from_acceptor, from_connector, acceptor_port, connector_port, is_ipv6, key: &[] }
}

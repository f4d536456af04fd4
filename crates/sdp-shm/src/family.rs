//! Family memory: the state of connections that processes related by fork share.
//!
//! One anonymous shared mapping per trust domain, made before the first connection, inherited by
//! fork, gone at exec, and unmapped when privileges change. (It has no descriptor, so nothing is left
//! that could be mapped again.)
//!
//! # Layout
//! Bitmaps, [`ROWS`] connection rows, the first one last, a header, [`PROCESSES`] process slots. A
//! row describes one end of a connection. A process has a bitmap over the rows: *this process holds
//! a descriptor of that connection*. Its first word is in the slot, so that the words that a small
//! family uses lie together: a process that is forked for one connection touches them all with one
//! page fault, and one that has a few connections at a time has their rows, the header and its slot
//! on one page. It lies at the end, because a mapping that the kernel places ends where others
//! begin, with which it shares a page of the kernel's tables. Pages are touched as they are used.
//!
//! # Who may touch what
//! The header lock guards allocation of slots and the bitmap copy of a fork. A process clears and sets
//! bits only in its own slot. A row's halves are guarded by the row's own locks ([`crate::lock`]).
//!
//! # When a process dies
//! Its slot still names its pid. A process that finds the slot's bit in its way asks the kernel,
//! and empties the slot of a dead process. Rows that only dead processes held are found when no
//! other is left ([`Family::open_row`]). (A process killed between taking a row and setting its
//! bit, a few instructions, takes that row with it.) A fork reserves the child's slot, with a copy
//! of the parent's bits, before the child exists; until the child's id is filled in the slot counts
//! as alive.

use core::{
    mem::size_of,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

use sdp_sys::{
    flag_kind,
    flags::{AtomicFlags, Flags},
    pid::is_dead,
};

use crate::lock;

/// Connections (ends) that a family can have at once; those beyond stay on the kernel lane.
pub const ROWS: usize = 16_384;
/// Living processes of one family; connections held across a fork beyond stay on the kernel lane.
pub const PROCESSES: usize = 1024;
/// 64-bit words of private state per half.
pub const HALF_WORDS: usize = 20;
const BITMAP_WORDS: usize = ROWS / 64;

/// Row states, in the low bits of a row's state word: free, being opened (no process has its bit
/// yet), in use. The bits above count the row's uses, so that a process that frees a row frees the
/// use that it saw.
const FREE: u32 = 0;
const OPENING: u32 = 1;
const LIVE: u32 = 2;
const STATE_MASK: u32 = 3;
const USE_ONE: u32 = 4;
/// With all rows taken, one failing search in so many looks for rows that only the dead hold.
const SWEEP_EVERY: u32 = 64;
/// How long a family member may be in the middle of a fork, which takes longer the more memory it
/// has, ns.
const FORK_PATIENCE_NS: u64 = 60_000_000_000;
/// Slot states beside a pid: free, and reserved for a child that does not exist yet.
const SLOT_FREE: u32 = 0;
const SLOT_RESERVED: u32 = u32::MAX;

/// One half's private state: a lock and plain words, loaded and validated under the lock.
#[repr(C, align(64))]
pub struct HalfSlot {
    /// Guards the words and this end's use of the half's ring. See [`crate::lock`].
    pub lock: AtomicU32,
    pad: AtomicU32,
    /// Meaning is the socket layer's.
    pub words: [AtomicU64; HALF_WORDS],
}

/// One end of one connection.
#[repr(C, align(128))]
pub struct Row {
    /// State and count of uses.
    state: AtomicU32,
    pad0: AtomicU32,
    /// Process that uses the SDP lanes of this end; 0 none.
    pub user: AtomicU32,
    /// What the socket layer has to know of the end in each process.
    pub flags: AtomicFlags<RowFlag>,
    /// Reason code, the socket layer's.
    pub reason: AtomicU32,
    /// Which tokens are to come before payload moves to the lanes; the socket layer's.
    pub token: AtomicU32,
    /// Unique name of this end of the connection within the family.
    pub carrier_id: AtomicU64,
    /// The acknowledgement for headers that this end sends, about what it received (receiving half
    /// to sending half).
    pub ack: AtomicU64,
    /// The credit in the peer's headers (receiving half to sending half).
    pub credit: AtomicU64,
    /// Control messages that the receiving half has to send (receiving half to sending half).
    pub pending: AtomicU64,
    /// The process that a stream on a queue pair belongs to, after a fork; the socket layer's. 0
    /// before one.
    pub claim: AtomicU64,
    /// Sending half.
    pub source: HalfSlot,
    /// Receiving half.
    pub sink: HalfSlot,
}

flag_kind! {
    /// Flags of a row. Other bits in its word, which a family member may have written, mean
    /// nothing.
    pub enum RowFlag in RowFlag {
        /// A holder left the family and kept its descriptor, or passed one to a stranger: the
        /// library does not know any more which processes hold the connection.
        OutOfSight = 0,
        /// Several processes use the lanes of this end (R5).
        Several = 1,
        /// A process of the family has, or had, the connection in an epoll set.
        InSet = 2,
        /// A send consumed the kernel's ECONNRESET without reporting it. The next receive must
        /// report it. No FIN has come, unless one crossed ours on its way.
        ResetTaken = 3,
    }
}

const _: () = assert!(size_of::<HalfSlot>() == 192);
const _: () = assert!(size_of::<Row>() == 512);

/// A process. The rest of its bitmap is elsewhere ([`Memory::rest`]).
#[repr(C)]
struct ProcessSlot {
    pid: AtomicU32,
    /// 1: about to become another image, which keeps nothing that is held here, or one already.
    executes: AtomicU32,
    /// Bits of the first rows, which are all that most processes use.
    first: AtomicU64,
}

#[repr(C, align(128))]
struct Header {
    lock: AtomicU32,
    /// Rows ever used: scans stop here.
    rows: AtomicU32,
    /// Slots ever used.
    processes: AtomicU32,
    /// Where the next search for a free row begins.
    row_hint: AtomicU32,
    next_carrier: AtomicU64,
    nonce: AtomicU64,
    /// Searches that found no row since a sweep last helped.
    misses: AtomicU32,
    pad: AtomicU32,
}

/// All of it; whole pages, so that the end of the mapping is the end of this.
#[repr(C, align(4096))]
struct Memory {
    /// Lets the rows end in the middle of a page.
    lead: [AtomicU64; LEAD / 8],
    /// Words of each process's bitmap behind the first.
    rest: [[AtomicU64; BITMAP_WORDS - 1]; PROCESSES],
    /// The last one first ([`Memory::row`]).
    rows: [Row; ROWS],
    header: Header,
    processes: [ProcessSlot; PROCESSES],
}

/// Bytes before all: half a page.
const LEAD: usize = 2048;

impl Memory {
    /// The row with this index.
    #[inline(always)]
    fn row(&self, index: usize) -> Option<&Row> {
        self.rows.get((ROWS - 1).wrapping_sub(index))
    }

    /// The rows from the first one of a word of the bitmaps on.
    fn rows_of_word(&self, word: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().rev().skip(word.saturating_mul(64))
    }
}

/// Bytes at the end, which is best aligned to a multiple of them: the kernel maps as many around a
/// page that is read for the first time, and a family that is small has everything there.
pub const FAMILY_WINDOW: usize = 64 * 1024;

const _: () = assert!(size_of::<ProcessSlot>() == 16);
const _: () = assert!(core::mem::offset_of!(Memory, header) % 4096 == LEAD);
const _: () = assert!(
    size_of::<Memory>() - core::mem::offset_of!(Memory, header) + 64 * size_of::<Row>()
        <= FAMILY_WINDOW
);

/// Bytes to map for [`Family::new`].
pub const FAMILY_BYTES: usize = size_of::<Memory>();

/// Index of a process slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u32);

/// Mapped family memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family(NonNull<Memory>);

// SAFETY: the memory consists of atomics.
unsafe impl Send for Family {}
// SAFETY: the memory consists of atomics, which any threads may use at once.
unsafe impl Sync for Family {}

impl Family {
    /// Describes a zeroed shared mapping of [`FAMILY_BYTES`]; `nonce` makes carrier names of different
    /// families differ.
    ///
    /// # Safety
    /// The mapping is readable, writable, page aligned and stays mapped for as long as any copy of the
    /// value is used; only family members by fork can write it.
    pub unsafe fn new(base: NonNull<u8>, nonce: u64) -> Self {
        let family = Self(base.cast());
        family.memory().header.nonce.store(nonce, Ordering::Relaxed);
        family
    }

    /// The same memory again, from its address.
    ///
    /// # Safety
    /// `base` is [`Family::base`] of a family that is still mapped, for as long as the value is used.
    #[inline]
    pub const unsafe fn resume(base: NonNull<u8>) -> Self {
        Self(base.cast())
    }

    /// First byte of the mapping.
    pub fn base(self) -> NonNull<u8> {
        self.0.cast()
    }

    fn memory(&self) -> &Memory {
        // SAFETY: `new`'s contract; atomics only.
        unsafe { self.0.as_ref() }
    }

    /// The row with this index.
    #[inline]
    pub fn row(&self, index: u32) -> Option<&Row> {
        self.memory().row(index as usize)
    }

    /// [`Family::row`] for a caller that keeps the mapping for as long as it uses rows.
    #[inline]
    pub fn static_row(self, index: u32) -> Option<&'static Row> {
        // SAFETY: `resume`'s and `new`'s contract.
        unsafe { self.0.as_ref() }.row(index as usize)
    }

    fn slot(&self, slot: Slot) -> Option<&ProcessSlot> {
        self.memory().processes.get(slot.0 as usize)
    }

    /// Looks at the memory before it is written: a page that is read for the first time in a process brings those
    /// around it along.
    pub fn look(&self) {
        core::hint::black_box(self.memory().header.processes.load(Ordering::Relaxed));
    }

    /// A word of a slot's bitmap.
    fn holds(&self, slot: usize, word: usize) -> Option<&AtomicU64> {
        match word.checked_sub(1) {
            None => self.memory().processes.get(slot).map(|slot| &slot.first),
            Some(word) => self.memory().rest.get(slot)?.get(word),
        }
    }

    /// Words of a bitmap in which there can be a bit.
    fn words_used(&self) -> usize {
        (self.memory().header.rows.load(Ordering::Acquire) as usize).min(ROWS).div_ceil(64)
    }

    /// Takes a slot for the process `pid`.
    pub fn join(&self, pid: u32) -> Option<Slot> {
        self.locked(pid, || self.free_slot(pid))
    }

    /// Takes the lock of the tables; in the end also from a family member that lives and keeps it.
    fn lock_table(&self, pid: u32) {
        let word = &self.memory().header.lock;
        if lock::lock_within(word, pid, FORK_PATIENCE_NS) == lock::Acquired::Overdue {
            word.store(pid, Ordering::Relaxed);
        }
    }

    fn locked<R>(&self, pid: u32, body: impl FnOnce() -> R) -> R {
        // A dead owner leaves at worst a reserved slot or row that is not used: nothing to repair.
        self.lock_table(pid);
        let result = body();
        lock::unlock(&self.memory().header.lock);
        result
    }

    fn free_slot(&self, pid: u32) -> Option<Slot> {
        let memory = self.memory();
        let used = memory.header.processes.load(Ordering::Relaxed);
        let mut found = None;
        for (i, slot) in memory.processes.iter().enumerate().take(used as usize) {
            // Acquire: sees the rows that there were when the slot was given back, and so the bits
            // that have to be cleared.
            if slot.pid.load(Ordering::Acquire) == SLOT_FREE {
                found = Some(i);
                break;
            }
        }
        if found.is_none() && (used as usize) < PROCESSES {
            found = Some(used as usize);
        }
        if found.is_none() {
            // Full: look for the dead. Rare, and worth the system calls.
            found = memory.processes.iter().position(|slot| {
                let owner = slot.pid.load(Ordering::Relaxed);
                owner != SLOT_RESERVED && is_dead(owner as i32)
            });
        }
        let index = found?;
        let slot = memory.processes.get(index)?;
        for word in (0..self.words_used()).filter_map(|word| self.holds(index, word)) {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
        slot.executes.store(0, Ordering::Relaxed);
        slot.pid.store(pid, Ordering::Release);
        if index as u32 >= used {
            memory.header.processes.store(index as u32 + 1, Ordering::Release);
        }
        Some(Slot(index as u32))
    }

    /// Before a fork: reserves the child's slot with a copy of the parent's bits. Keeps the table lock
    /// until [`Family::forked`], so that no family member sees the copy and the truth differ.
    pub fn fork(&self, parent: Slot, pid: u32) -> Option<Slot> {
        self.lock_table(pid);
        let child = self.free_slot(SLOT_RESERVED)?;
        for word in 0..self.words_used() {
            if let (Some(from), Some(to)) =
                (self.holds(parent.0 as usize, word), self.holds(child.0 as usize, word))
            {
                let bits = from.load(Ordering::Relaxed);
                if bits != 0 {
                    to.store(bits, Ordering::Relaxed);
                }
            }
        }
        Some(child)
    }

    /// After a fork, in the parent: fills in the child's id (or gives the slot back when `child_pid`
    /// is not positive) and releases the table lock. Also to be called when [`Family::fork`] found no
    /// slot.
    pub fn forked(&self, child: Option<Slot>, child_pid: i32) {
        if let Some(slot) = child.and_then(|child| self.slot(child)) {
            if child_pid > 0 {
                // The child may have been faster.
                let _ = slot.pid.compare_exchange(
                    SLOT_RESERVED,
                    child_pid as u32,
                    Ordering::Release,
                    Ordering::Relaxed,
                );
            } else {
                slot.pid.store(SLOT_FREE, Ordering::Release);
            }
        }
        lock::unlock(&self.memory().header.lock);
    }

    /// After a fork, in the child: claims the slot that the parent reserved.
    pub fn claim(&self, child: Slot, pid: u32) {
        if let Some(slot) = self.slot(child) {
            slot.pid.store(pid, Ordering::Release);
        }
    }

    /// A row for a new connection, held by `slot`, the slot of process `pid`. `None`: all in use.
    #[unsafe(link_section = ".text.open")]
    pub fn open_row(&self, slot: Slot, pid: u32) -> Option<u32> {
        let memory = self.memory();
        let used = memory.header.rows.load(Ordering::Relaxed) as usize;
        let hint = memory.header.row_hint.load(Ordering::Relaxed) as usize;
        // Reuse low rows first (few pages, short bitmaps), but do not search for long.
        let index = (hint..used)
            .chain(0..hint.min(used))
            .take(64)
            .find(|i| self.take_row(*i))
            .or_else(|| self.fresh_row())
            .or_else(|| (0..ROWS).find(|i| self.take_row(*i)))
            .or_else(|| self.sweep(pid).then(|| (0..ROWS).find(|i| self.take_row(*i))).flatten())?;
        memory.header.row_hint.store(index as u32 + 1, Ordering::Relaxed);
        let row = memory.row(index)?;
        row.user.store(0, Ordering::Relaxed);
        row.claim.store(0, Ordering::Relaxed);
        row.flags.store(Flags::NONE, Ordering::Relaxed);
        row.reason.store(0, Ordering::Relaxed);
        for word in [&row.ack, &row.credit, &row.pending] {
            word.store(0, Ordering::Relaxed);
        }
        let serial = memory.header.next_carrier.fetch_add(1, Ordering::Relaxed);
        let nonce = memory.header.nonce.load(Ordering::Relaxed);
        row.carrier_id.store(nonce.wrapping_add(serial).max(1), Ordering::Relaxed);
        for half in [&row.source, &row.sink] {
            half.lock.store(0, Ordering::Relaxed);
        }
        // The bit first: any process may take a row in use that none holds.
        self.hold(slot, index as u32);
        row.state.fetch_add(LIVE - OPENING, Ordering::SeqCst);
        Some(index as u32)
    }

    fn take_row(&self, index: usize) -> bool {
        self.memory().row(index).is_some_and(|row| {
            let seen = row.state.load(Ordering::Relaxed);
            seen & STATE_MASK == FREE
                && row
                    .state
                    .compare_exchange(
                        seen,
                        seen.wrapping_add(USE_ONE) | OPENING,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    )
                    .is_ok()
        })
    }

    /// Frees the use of the row that `seen` shows. False when another process has done so (and may
    /// have opened the row again).
    fn free_row(&self, row: u32, seen: u32) -> bool {
        seen & STATE_MASK == LIVE
            && self.memory().row(row as usize).is_some_and(|row| {
                row.state
                    .compare_exchange(seen, seen & !STATE_MASK, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            })
    }

    /// Frees rows that only dead processes held. True when there were any. Does nothing while a fork
    /// is in progress (its holder may be the caller), and most of the times when it did not help last.
    fn sweep(&self, pid: u32) -> bool {
        let header = &self.memory().header;
        if !header.misses.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_EVERY)
            || !lock::try_lock(&header.lock, pid)
        {
            return false;
        }
        self.empty_dead_slots();
        let mut freed = false;
        for word in 0..BITMAP_WORDS {
            freed |= self.free_unheld(word);
        }
        if freed {
            header.misses.store(0, Ordering::Relaxed);
        }
        lock::unlock(&header.lock);
        freed
    }

    /// Frees the rows in a word of the bitmaps that no process holds. True when there were any.
    fn free_unheld(&self, word: usize) -> bool {
        let mut seen = [0u32; 64];
        let mut candidates = 0u64;
        let first = word * 64;
        let rows = self.memory().rows_of_word(word);
        for ((i, state), row) in seen.iter_mut().enumerate().zip(rows) {
            // The state before the bits: a use that begins later is another use.
            *state = row.state.load(Ordering::SeqCst);
            if *state & STATE_MASK == LIVE {
                candidates |= 1 << i;
            }
        }
        if candidates == 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        let unheld = candidates & !self.held(None, word, candidates, counts_unless_free);
        let mut freed = false;
        for (i, state) in seen.iter().enumerate() {
            if unheld & 1 << i != 0 {
                freed |= self.free_row((first + i) as u32, *state);
            }
        }
        freed
    }

    fn fresh_row(&self) -> Option<usize> {
        let rows = &self.memory().header.rows;
        loop {
            let used = rows.load(Ordering::Relaxed);
            if used as usize >= ROWS {
                return None;
            }
            if rows.compare_exchange(used, used + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                && self.take_row(used as usize)
            {
                return Some(used as usize);
            }
        }
    }

    fn bit(&self, slot: Slot, row: u32) -> Option<(&AtomicU64, u64)> {
        let word = self.holds(slot.0 as usize, row as usize / 64)?;
        Some((word, 1 << (row % 64)))
    }

    /// This process holds a descriptor of `row`.
    pub fn hold(&self, slot: Slot, row: u32) {
        if let Some((word, bit)) = self.bit(slot, row) {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// This process holds no descriptor of `row` any more. True when no process of the family does,
    /// dead holders included: the row is free and the caller was the last.
    #[unsafe(link_section = ".text.hot")]
    pub fn let_go(&self, slot: Slot, row: u32) -> bool {
        // While the bit is set the row cannot be freed: this is the use that ends.
        let seen = self.row(row).map_or(FREE, |row| row.state.load(Ordering::SeqCst));
        if let Some((word, bit)) = self.bit(slot, row)
            && word.fetch_and(!bit, Ordering::SeqCst) & bit == 0
        {
            return false; // not held: not ours to give back
        }
        fence(Ordering::SeqCst);
        // Two last holders may race here; the swap decides which one was last. It does not ask
        // whether other holders live: a server that forks for each connection would pay for it each
        // time, and rows that only dead processes hold are found when rows run out
        // ([`Family::sweep`]).
        let others = self.held(Some(slot), row as usize / 64, 1 << (row % 64), counts_unless_free);
        others == 0 && self.free_row(row, seen)
    }

    /// Whether a living family member other than `slot` holds a descriptor of `row`. Empties the
    /// slots of dead processes that it meets.
    pub fn is_held_by_others(&self, slot: Slot, row: u32) -> bool {
        self.held(Some(slot), row as usize / 64, 1 << (row % 64), |other| {
            !is_emptied_if_dead(other)
        }) != 0
    }

    /// As [`Family::is_held_by_others`], without asking the kernel: a family member that was killed
    /// may count. One that has executed an image which keeps nothing does not.
    pub fn may_be_held_by_others(&self, slot: Slot, row: u32) -> bool {
        self.held(Some(slot), row as usize / 64, 1 << (row % 64), |other| {
            counts_unless_free(other) && other.executes.load(Ordering::Acquire) == 0
        }) != 0
    }

    /// Which of the rows that `wanted` names in a word of the bitmaps are held by family members
    /// other than `except` that `counts`.
    fn held(
        &self,
        except: Option<Slot>,
        word: usize,
        wanted: u64,
        counts: impl Fn(&ProcessSlot) -> bool,
    ) -> u64 {
        let memory = self.memory();
        let used = memory.header.processes.load(Ordering::Acquire) as usize;
        let mut found = 0;
        for (i, other) in memory.processes.iter().enumerate().take(used) {
            let Some(holds) = self.holds(i, word) else { continue };
            let bits = holds.load(Ordering::SeqCst) & wanted & !found;
            if bits == 0 || except.is_some_and(|slot| i == slot.0 as usize) {
                continue;
            }
            if counts(other) {
                found |= bits;
            }
            if found == wanted {
                break;
            }
        }
        found
    }

    /// Before the process becomes another image, which keeps some of the connections that the slot
    /// holds, or none.
    pub fn executing(&self, slot: Slot, keeps_any: bool) {
        if let Some(slot) = self.slot(slot) {
            slot.executes.store(u32::from(!keeps_any), Ordering::Release);
        }
    }

    /// Takes `row` from the family members other than `slot`, the slot of process `pid`, that have
    /// become other images ([`Family::executing`]). Their bits alone do not show whether they still
    /// hold it, so this asks `has_let_go`, with the family member's process id, whether it has no
    /// descriptor of the row any more. Under the table's lock, so that no slot changes hands in
    /// between.
    pub fn forget_executed(
        &self,
        slot: Slot,
        row: u32,
        pid: u32,
        mut has_let_go: impl FnMut(u32) -> bool,
    ) {
        let (word, bit) = (row as usize / 64, 1 << (row % 64));
        self.locked(pid, || {
            let memory = self.memory();
            let used = memory.header.processes.load(Ordering::Acquire) as usize;
            for (i, other) in memory.processes.iter().enumerate().take(used) {
                let Some(holds) = self.holds(i, word) else { continue };
                if i == slot.0 as usize
                    || other.executes.load(Ordering::Acquire) == 0
                    || holds.load(Ordering::SeqCst) & bit == 0
                {
                    continue;
                }
                let pid = other.pid.load(Ordering::Acquire);
                if pid != SLOT_FREE && pid != SLOT_RESERVED && has_let_go(pid) {
                    holds.fetch_and(!bit, Ordering::SeqCst);
                }
            }
        });
    }

    fn empty_dead_slots(&self) {
        let used = self.memory().header.processes.load(Ordering::Acquire) as usize;
        for slot in self.memory().processes.iter().take(used) {
            is_emptied_if_dead(slot);
        }
    }

    /// Before the process leaves the family or ends in an orderly way: it holds nothing any more.
    #[unsafe(link_section = ".text.hot")]
    pub fn leave(&self, slot: Slot) {
        let Some(mine) = self.slot(slot) else { return };
        for word in 0..self.words_used() {
            let Some(holds) = self.holds(slot.0 as usize, word) else { break };
            // As in `let_go`: the uses are noted, then the bits go, then others are asked.
            let bits = holds.load(Ordering::SeqCst);
            if bits != 0 {
                self.let_go_word(slot, word, holds, bits);
            }
        }
        mine.pid.store(SLOT_FREE, Ordering::Release);
    }

    fn let_go_word(&self, slot: Slot, word: usize, holds: &AtomicU64, bits: u64) {
        let mut seen = [0u32; 64];
        let first = word * 64;
        for (state, row) in seen.iter_mut().zip(self.memory().rows_of_word(word)) {
            *state = row.state.load(Ordering::SeqCst);
        }
        let bits = holds.fetch_and(!bits, Ordering::SeqCst) & bits;
        fence(Ordering::SeqCst);
        let unheld = bits & !self.held(Some(slot), word, bits, counts_unless_free);
        for (i, state) in seen.iter().enumerate() {
            if unheld & 1 << i != 0 {
                self.free_row((first + i) as u32, *state);
            }
        }
    }
}

/// Whether a slot belongs to a process, dead or alive.
fn counts_unless_free(slot: &ProcessSlot) -> bool {
    slot.pid.load(Ordering::Acquire) != SLOT_FREE
}

/// Whether a slot belongs to no living process; empties that of a dead one.
fn is_emptied_if_dead(slot: &ProcessSlot) -> bool {
    let pid = slot.pid.load(Ordering::Acquire);
    if pid == SLOT_FREE {
        return true;
    }
    if pid == SLOT_RESERVED || !is_dead(pid as i32) {
        return false;
    }
    // Bits of a free slot do not count; the process that takes it clears them.
    let _ = slot.pid.compare_exchange(pid, SLOT_FREE, Ordering::AcqRel, Ordering::Relaxed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family() -> Family {
        // SAFETY: a fresh anonymous mapping, never unmapped.
        unsafe {
            let base = libc::mmap(
                core::ptr::null_mut(),
                FAMILY_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            Family::new(NonNull::new(base.cast()).unwrap(), 1 << 32)
        }
    }

    #[test]
    fn who_executed_is_asked_what_it_kept() {
        let family = family();
        let me = std::process::id();
        let parent = family.join(me).unwrap();
        let row = family.open_row(parent, me).unwrap();
        let child = family.fork(parent, me).unwrap();
        family.forked(Some(child), me as i32);
        family.claim(child, me);
        // A family member with the same image is believed.
        family.forget_executed(parent, row, me, |_| panic!("asked"));
        assert!(family.is_held_by_others(parent, row));
        family.executing(child, true);
        family.forget_executed(parent, row, me, |_| panic!("asked"));
        family.executing(child, false);
        family.forget_executed(parent, row, me, |_| false);
        assert!(family.is_held_by_others(parent, row));
        let mut asked = 0;
        family.forget_executed(parent, row, me, |pid| {
            asked = pid;
            true
        });
        assert_eq!(asked, me);
        assert!(!family.is_held_by_others(parent, row));
        // The slot's next user is a new process.
        family.leave(child);
        let next = family.fork(parent, me).unwrap();
        family.forked(Some(next), me as i32);
        family.claim(next, me);
        family.forget_executed(parent, row, me, |_| panic!("asked"));
        assert!(family.is_held_by_others(parent, row));
    }

    fn dead_pid() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        pid
    }

    #[test]
    fn accept_fork_close_makes_the_child_sole_holder() {
        let f = family();
        let pid = std::process::id();
        let parent = f.join(pid).unwrap();
        let row = f.open_row(parent, pid).unwrap();
        assert!(!f.is_held_by_others(parent, row));
        let child = f.fork(parent, pid);
        f.forked(child, 1); // process 1 always lives
        let child = child.unwrap();
        assert!(f.is_held_by_others(parent, row));
        assert!(f.is_held_by_others(child, row));
        assert!(!f.let_go(parent, row), "the child still holds it");
        assert!(!f.is_held_by_others(child, row));
        assert!(f.let_go(child, row), "last");
    }

    #[test]
    fn a_reserved_slot_counts_until_fork_fails() {
        let f = family();
        let pid = std::process::id();
        let parent = f.join(pid).unwrap();
        let row = f.open_row(parent, pid).unwrap();
        let child = f.fork(parent, pid);
        assert!(f.is_held_by_others(parent, row));
        f.forked(child, -1);
        assert!(!f.is_held_by_others(parent, row));
    }

    #[test]
    fn the_dead_hold_nothing_and_their_slots_are_reused() {
        let f = family();
        let pid = std::process::id();
        let parent = f.join(pid).unwrap();
        let row = f.open_row(parent, pid).unwrap();
        let child = f.fork(parent, pid);
        f.forked(child, dead_pid() as i32);
        assert!(!f.is_held_by_others(parent, row));
        assert_eq!(f.join(pid), child, "emptied");
        assert!(!f.is_held_by_others(parent, row), "cleared at reuse");
    }

    #[test]
    fn rows_are_reused_and_named_apart() {
        let f = family();
        let slot = f.join(std::process::id()).unwrap();
        let mut names = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let row = f.open_row(slot, std::process::id()).unwrap();
            assert!(names.insert(f.row(row).unwrap().carrier_id.load(Ordering::Relaxed)));
            assert!(f.let_go(slot, row));
        }
        assert!(f.memory().header.rows.load(Ordering::Relaxed) < 100);
    }

    #[test]
    fn a_full_family_says_so() {
        let f = family();
        let slot = f.join(std::process::id()).unwrap();
        for _ in 0..ROWS {
            assert!(f.open_row(slot, std::process::id()).is_some());
        }
        assert_eq!(f.open_row(slot, std::process::id()), None);
        assert!(f.let_go(slot, 77));
        assert!(!f.let_go(slot, 77), "given back once");
        assert_eq!(f.open_row(slot, std::process::id()), Some(77));
    }

    #[test]
    fn who_leaves_last_frees_the_rows() {
        let f = family();
        let pid = std::process::id();
        let parent = f.join(pid).unwrap();
        // Accept, fork, close in the parent, orderly end of the child: more often than there are rows.
        for _ in 0..ROWS + 10 {
            let row = f.open_row(parent, pid).unwrap();
            let child = f.fork(parent, pid);
            f.forked(child, pid as i32);
            assert!(!f.let_go(parent, row));
            f.leave(child.unwrap());
        }
        assert!(f.memory().header.rows.load(Ordering::Relaxed) < 100);
    }

    #[test]
    fn leaving_keeps_what_others_hold() {
        let f = family();
        let pid = std::process::id();
        let parent = f.join(pid).unwrap();
        let row = f.open_row(parent, pid).unwrap();
        let child = f.fork(parent, pid);
        f.forked(child, pid as i32);
        f.leave(child.unwrap());
        assert!(f.let_go(parent, row), "not freed by the child");
    }

    #[test]
    fn rows_of_the_killed_are_swept_when_no_other_is_left() {
        let f = family();
        let pid = std::process::id();
        let parent = f.join(pid).unwrap();
        let first = f.open_row(parent, pid).unwrap();
        let rows: Vec<_> = (1..ROWS).map(|_| f.open_row(parent, pid).unwrap()).collect();
        let child = f.fork(parent, pid);
        f.forked(child, dead_pid() as i32);
        for row in &rows {
            // As when the parent closed while the child lived.
            let (word, bit) = f.bit(parent, *row).unwrap();
            word.fetch_and(!bit, Ordering::SeqCst);
        }
        for _ in &rows {
            assert_ne!(f.open_row(parent, pid).unwrap(), first, "held by the living");
        }
        assert_eq!(f.open_row(parent, pid), None);
    }

    #[test]
    fn a_row_that_was_opened_again_is_not_freed() {
        let f = family();
        let pid = std::process::id();
        let slot = f.join(pid).unwrap();
        let row = f.open_row(slot, pid).unwrap();
        let seen = f.row(row).unwrap().state.load(Ordering::Relaxed);
        assert!(f.let_go(slot, row));
        while f.open_row(slot, pid) != Some(row) {}
        assert!(!f.free_row(row, seen), "another use");
    }
}

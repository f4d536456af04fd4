//! The single objects of a process: identity, family memory, doorbell, hidden descriptors.
//!
//! Nothing exists until the first connection: a program that never opens one pays nothing. Everything
//! is made under the start lock, inside a critical section, with raw system calls.

use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use sdp_fabric_shm::peer::{Numbers, PeerTable};
use sdp_shm::family::{FAMILY_BYTES, FAMILY_WINDOW, Family, Slot};
use sdp_sys::{fd, hidden, kernel, loader as sys_loader, pid as sys_pid, section};

use super::mapping::Fresh;

use crate::process::{
    fork_page::FORK_PAGE,
    handed::Handed,
    page,
    settings::{self, Tuned},
    table::{self, Entry},
};

/// End of the numbers among which hidden descriptors start, with their room before it. No higher, because each fork copies the
/// kernel's table up to the highest number in use, and each exit goes through it.
const HIDDEN_CEILING: i32 = 256;
/// Room below the ceiling (or the limit) for hidden descriptors.
const HIDDEN_ROOM: i32 = 64;
/// Multiple of bytes to which the statistics page is mapped, and room before it: a write past the
/// loader's data shall hit nothing.
const PLACE: usize = 4096;
/// Number from which the statistics page's descriptor is looked for. The kernel keeps the table of a process that uses
/// no number beyond 63 in the process itself; each fork of one that does allocates a table, and each exit frees one.
/// A process whose connections never leave TCP hides nothing else.
const PAGE_MIN: i32 = 60;

static PID: &AtomicU32 = &FORK_PAGE.pid;
static NONCE: &AtomicU64 = &FORK_PAGE.nonce;
static FAMILY: &AtomicPtr<u8> = &FORK_PAGE.family;
static SLOT: &AtomicU32 = &FORK_PAGE.slot;
static STARTED: &AtomicU32 = &FORK_PAGE.started;
static CPUS: AtomicU32 = AtomicU32::new(0);
#[unsafe(link_section = ".data.hot")]
static TOP: AtomicI32 = AtomicI32::new(-1);
/// The process left all lanes: it makes no system call of its own any more.
static RETIRED: &AtomicBool = &FORK_PAGE.retired;
/// Counts forks; odd while one is in progress.
static FORKS: &AtomicU32 = &FORK_PAGE.forks;

static PEERS: PeerTable = PeerTable::new();

/// The peer processes that we know.
pub(crate) fn peers() -> &'static PeerTable {
    &PEERS
}

/// Before the first peer is known, and not when the process starts: each fork would copy the table's pages.
pub(crate) fn hide_peers() {
    PEERS.keep_numbers(Numbers { hide: keep_hidden, unhide: table::unhide });
}

/// This process's id as of its last fork.
#[inline]
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Remembers the process, whose id is `pid` (constructor).
pub(crate) fn remember(pid: i32) {
    PID.store(pid as u32, Ordering::Relaxed);
}

/// Whether the caller runs in the process that the tables describe, and not in a vfork child that
/// merely shares its memory. For paths that change tables.
pub(crate) fn is_ours() -> bool {
    RETIRED.load(Ordering::Relaxed) || !sys_pid::is_borrowed(pid())
}

/// Whether the library is out of business here.
#[inline]
pub(crate) fn is_retired() -> bool {
    // As strong as the counts that `await_others` reads: one of the two sees the other.
    RETIRED.load(Ordering::SeqCst)
}

/// Nothing of ours happens in this process any more.
pub(crate) fn retire() {
    RETIRED.store(true, Ordering::SeqCst);
}

/// Makes a system call of ours where no call holds a connection, unless the process has retired.
/// Short: [`sdp_sys::threads`] does not count it.
pub(crate) fn beside_calls(call: impl FnOnce()) {
    let _section = section::Guard::enter();
    if !is_retired() {
        call();
    }
}

/// Undoes [`retire`]: the filter was not installed.
pub(crate) fn come_back() {
    RETIRED.store(false, Ordering::SeqCst);
}

/// The values in force.
#[inline]
pub(crate) fn tunables() -> &'static Tuned {
    settings::tunables()
}

/// Forks so far; odd while one is in progress.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::SeqCst)
}

pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// Children are born into another process namespace: ids mean something else there.
static CHILDREN_ELSEWHERE: &AtomicBool = &FORK_PAGE.children_elsewhere;

/// Returns the value before.
pub(crate) fn set_children_elsewhere(yes: bool) -> bool {
    CHILDREN_ELSEWHERE.swap(yes, Ordering::SeqCst)
}

pub(crate) fn are_children_elsewhere() -> bool {
    CHILDREN_ELSEWHERE.load(Ordering::SeqCst)
}

/// Whether threads of the process may have been in more than one network namespace.
static HAS_NETWORKS: &AtomicBool = &FORK_PAGE.has_networks;

pub(crate) fn note_networks() {
    HAS_NETWORKS.store(true, Ordering::SeqCst);
}

pub(crate) fn has_networks() -> bool {
    HAS_NETWORKS.load(Ordering::Relaxed)
}

/// Whether the process may share family memory with family members: it forked, or was forked.
#[inline(always)]
pub(crate) fn has_family() -> bool {
    FORKS.load(Ordering::Relaxed) != 0
}

/// Random identity of this process, drawn when it is first asked for; never 0.
pub(crate) fn nonce() -> u64 {
    if NONCE.load(Ordering::Relaxed) == 0 {
        draw_nonce();
    }
    NONCE.load(Ordering::Relaxed)
}

/// The next one that is asked for is another.
pub(crate) fn forget_nonce() {
    NONCE.store(0, Ordering::Relaxed);
}

#[cold]
fn draw_nonce() {
    let mut drawn = [0u64];
    let got = kernel::getrandom(&mut drawn, libc::GRND_NONBLOCK);
    let [mut value] = drawn;
    if got != Ok(8) {
        value = sdp_sys::time::monotonic_ns().rotate_left(20) ^ u64::from(pid());
    }
    let drawn = (value & 0x7fff_ffff_ffff_ffff).max(1);
    // Another thread may have been faster.
    let _ = NONCE.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
}

/// CPUs that this process may run on, as of its start.
#[inline]
pub(crate) fn usable_cpus() -> u32 {
    CPUS.load(Ordering::Relaxed).max(1)
}

fn count_cpus() {
    let mut mask = [0u64; 128];
    let cpus = match kernel::sched_getaffinity(0, &mut mask) {
        Ok(_) => mask.iter().map(|w| w.count_ones()).sum(),
        Err(_) => 1,
    };
    CPUS.store(cpus, Ordering::Relaxed);
}

/// Notes that a descriptor number is in the table.
pub(crate) fn note_descriptor(fd: i32) {
    if TOP.load(Ordering::Relaxed) < fd {
        TOP.fetch_max(fd, Ordering::Relaxed);
    }
}

/// Highest descriptor number that was ever in the table.
pub(crate) fn highest_descriptor() -> i32 {
    TOP.load(Ordering::Relaxed)
}

/// Descriptors that the process may have open, as far as the table reaches.
pub(crate) fn soft_limit() -> i32 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let got = kernel::limit(libc::RLIMIT_NOFILE, &mut limit);
    if got.is_err() { 0 } else { limit.rlim_cur.min(1 << 20) as i32 }
}

/// Number from which hidden descriptors start.
pub(crate) fn hidden_min() -> i32 {
    hidden_range().0
}

/// Number from which hidden descriptors start, and how many offers of a meeting may be open at a time:
/// half of the numbers from there on, because a meeting takes two for a moment. One system call.
pub(crate) fn hidden_range() -> (i32, u32) {
    let limit = soft_limit();
    let min = (limit.min(HIDDEN_CEILING) - HIDDEN_ROOM).max(3);
    (min, (limit.saturating_sub(min).max(0) / 2) as u32)
}

/// A descriptor beside the statistics page's was hidden, in this process.
static HIDES: &AtomicBool = &FORK_PAGE.hides;

/// Notes that a descriptor is one of ours. False: that cannot be noted, and it is closed: the program would find it.
fn keep_hidden(raw: i32) -> bool {
    let is_noted = note_hidden(raw);
    if !is_noted {
        fd::close(raw);
    }
    is_noted
}

/// Moves a descriptor of ours out of the program's way and out of its sight. −1: it had to be closed.
pub(crate) fn hide(raw: i32) -> i32 {
    let moved = fd::move_up(raw, hidden_min());
    if keep_hidden(moved) { moved } else { -1 }
}

/// [`hide`] for the descriptor of the statistics page.
pub(crate) fn hide_page(raw: i32) -> i32 {
    let moved = fd::move_up(raw, hidden_min().min(PAGE_MIN));
    if put_hidden(moved) {
        return moved;
    }
    fd::close(moved);
    -1
}

/// A number that hides something of ours by now. False: that cannot be noted.
pub(crate) fn note_hidden(raw: i32) -> bool {
    if !HIDES.load(Ordering::Relaxed) {
        HIDES.store(true, Ordering::SeqCst); // first: a fork that finds the number finds this
    }
    put_hidden(raw)
}

fn put_hidden(raw: i32) -> bool {
    note_descriptor(raw);
    let before = table::put(raw, Entry::Hidden);
    if let Ok(Some(stale)) = before {
        evict(stale); // closed behind our back
    }
    before.is_ok()
}

/// A number that hides nothing of ours any more, if it still does for the table.
pub(crate) fn forget_hidden(raw: i32) {
    table::unhide(raw);
}

/// A hidden duplicate of `raw`; none when no number is left.
pub(crate) fn hidden_duplicate(raw: i32) -> Option<i32> {
    let fresh = fd::duplicate_above(raw, hidden_min(), false).ok()?;
    keep_hidden(fresh).then_some(fresh)
}

/// [`hidden_duplicate`] with a higher number.
pub(crate) fn hidden_duplicate_above(raw: i32) -> Option<i32> {
    let min = hidden_min().max(raw + 1);
    let fresh = fd::duplicate_above(raw, min, false).ok()?;
    keep_hidden(fresh).then_some(fresh)
}

/// Closes a descriptor that [`hidden_duplicate`] made, unless the program has used its number since.
pub(crate) fn close_hidden(raw: i32) {
    // In one step: the program may be about to put a file of its own there.
    if !is_retired() && table::unhide(raw) {
        fd::close(raw);
    }
}

/// Closes a hidden descriptor.
pub(crate) fn unhide(cell: &AtomicI32) {
    let raw = cell.swap(-1, Ordering::SeqCst);
    if raw >= 0 && table::unhide(raw) {
        hidden::await_unused(); // of other threads that ring
        fd::close(raw);
    }
}

/// Maps family memory. Each fork child touches the end of it, for which the kernel makes a page of
/// page tables in the child, unless one is there that it copied for private memory: the first
/// threads' memory, below which the kernel places later mappings.
fn map_family() -> Option<NonNull<u8>> {
    if kernel::auxiliary(libc::AT_PAGESZ) != sdp_shm::ring::PAGE as usize {
        return Fresh::shared(FAMILY_BYTES).map(Fresh::keep); // what is cut off are pages of this size
    }
    let whole = FAMILY_BYTES + FAMILY_WINDOW;
    let fresh = Fresh::shared(whole)?;
    let first = fresh.base().as_ptr() as usize;
    let end = (first + whole) & !(FAMILY_WINDOW - 1);
    fresh.keep_part(end - FAMILY_BYTES - first, FAMILY_BYTES)
}

/// Where a statistics page is best mapped; 0: anywhere. Each fork child touches its beginning:
/// behind the loader, for whose private data the kernel has copied a page of page tables.
pub(crate) fn place_of_page() -> usize {
    sys_loader::end().map_or(0, |end| end.next_multiple_of(PLACE) + PLACE)
}

/// Makes the objects that the first connection needs, unless they are there. False when the process
/// has none (no memory, retired).
#[inline]
pub(crate) fn start() -> bool {
    if STARTED.load(Ordering::Acquire) == 2 { !is_retired() } else { begin() }
}

#[cold]
fn begin() -> bool {
    match STARTED.load(Ordering::Acquire) {
        2 => return !is_retired(),
        _ if is_retired() => return false,
        _ => {}
    }
    let _section = section::Guard::enter();
    let mut turn = 0u32;
    while let Err(now) = STARTED.compare_exchange(0, 1, Ordering::Acquire, Ordering::Acquire) {
        if now == 2 {
            return true;
        }
        // The other thread reads a file and maps memory; it may need this CPU for that.
        sdp_sys::time::back_off(turn);
        turn = turn.saturating_add(1);
    }
    if pid() == 0 {
        remember(sys_pid::current());
    }
    crate::process::libc_calls::first_connection();
    count_cpus();
    if sys_pid::has_children_elsewhere() {
        let _ = set_children_elsewhere(true); // the image before this one saw to that
    }
    settings::load();
    if FAMILY.load(Ordering::Acquire).is_null()
        && let Some(base) = map_family()
    {
        // SAFETY: a fresh zeroed mapping, unmapped only when the process leaves its family, after
        // which nothing of it is used.
        let family = unsafe { Family::new(base, nonce() & !0xffff_ffff) };
        if let Some(slot) = family.join(pid()) {
            SLOT.store(slot.0 + 1, Ordering::Release);
            FAMILY.store(base.as_ptr(), Ordering::Release);
        }
    }
    page::start();
    STARTED.store(2, Ordering::Release);
    true
}

/// Family memory and this process's slot in it.
#[inline]
pub(crate) fn family() -> Option<(Family, Slot)> {
    let family = mapped_family()?;
    let slot = SLOT.load(Ordering::Acquire).checked_sub(1)?;
    Some((family, Slot(slot)))
}

#[inline]
fn mapped_family() -> Option<Family> {
    let base = NonNull::new(FAMILY.load(Ordering::Acquire))?;
    // SAFETY: the mapping that `start` made, which lasts as long as the process has a family.
    Some(unsafe { Family::resume(base) })
}

/// Where the process's family memory is mapped, null before there is any.
#[inline]
pub(crate) fn family_base() -> *mut u8 {
    FAMILY.load(Ordering::Acquire)
}

pub(crate) fn set_slot(slot: Option<Slot>) {
    SLOT.store(slot.map_or(0, |s| s.0 + 1), Ordering::Release);
}

/// In a fork child for which no slot was reserved: the slot that it knows is its parent's. True when
/// there is a family at all.
pub(crate) fn rejoin_family() -> bool {
    let Some(family) = mapped_family() else {
        SLOT.store(0, Ordering::Release);
        return false;
    };
    set_slot(family.join(pid()));
    true
}

/// Before the process ends, or leaves all lanes: gives back family memory that family members could
/// wait for.
pub(crate) fn leave_family() {
    if let Some((family, slot)) = family() {
        family.leave(slot);
        SLOT.store(0, Ordering::Release);
    }
}

/// In a fork child, process `pid` (asked for if `None`): identity, and whether anything was made.
pub(crate) fn begin_anew(pid: Option<i32>) {
    PID.store(pid.unwrap_or_else(sys_pid::current) as u32, Ordering::Relaxed);
    forget_nonce();
    // Threads that were in the middle of it do not exist here: the next one that needs it begins
    // anew. A word that has its value already is not written: each page that is written costs a
    // copy.
    if STARTED.load(Ordering::Relaxed) == 1 {
        STARTED.store(0, Ordering::Relaxed);
    }
}

/// In a fork child: hidden descriptors were inherited; the parent's are no use here.
pub(crate) fn close_inherited() {
    // Without a number the statistics page may be about to get one.
    if HIDES.load(Ordering::Relaxed) || page::NUMBER.load(Ordering::Relaxed) < 0 {
        HIDES.store(false, Ordering::Relaxed);
        table::walk(|fd, entry| {
            let is_page = fd == page::NUMBER.load(Ordering::Relaxed);
            // The peers are the child's, too.
            if entry == Entry::Hidden && !is_page && !PEERS.has_number(fd) {
                table::clear(fd);
                fd::close(fd);
            }
        });
    }
}

/// The process has no family any more; where that was mapped.
pub(crate) fn take_family() -> Option<NonNull<u8>> {
    NonNull::new(FAMILY.swap(null_mut(), Ordering::AcqRel))
}

/// The objects that the first connection needs are to be made anew.
pub(crate) fn forget_start() {
    let _ = STARTED.compare_exchange(2, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// The function to call with an entry of the table that its number names no more: `lifecycle` hands
/// it in.
pub(crate) static EVICTED: Handed<fn(Entry)> = Handed::none();

/// A number that names something else now leaves this behind.
fn evict(stale: Entry) {
    if let Some(evicted) = EVICTED.get() {
        evicted(stale);
    }
}

/// A number that names something else now.
#[unsafe(link_section = ".text.open")]
pub(crate) fn forget(fd: i32) {
    if table::is_tracked(fd) && is_ours() {
        let _section = section::Guard::enter();
        if let Some(stale) = table::clear(fd) {
            evict(stale);
        }
    }
}

//! The process's statistics page: making it, handing it in, and which process's page is in force
//! after a fork.
//!
//! Used by [`crate::process`] and by all code that counts. A fork child is a *borrower* at first:
//! it goes on counting in the page of the process that forked it, without rows of its own, because
//! most children of servers that fork for each connection are gone after a few calls, and a page
//! costs more than those. It gets its own page once it has used connections for a while, uses an
//! SDP lane, listens, or is about to change its privileges. [`crate::conn::publish`] decides what
//! a page holds.
//!
//! **Order.** A row number belongs to one page. A thread that counts must read the number before it reads
//! which page is in force ([`crate::conn::publish::of_row`]): a number of the own page is stored
//! after that page is.

use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use sdp_stats::{Identity, Page};
use sdp_sys::{errno::Errno, fd, memfd, pid as sys_pid, section, unix};

use crate::process::{self, fork_page, settings, table};

/// Calls on connections after which a fork child is worth a page of its own: as many as make a half of a
/// connection worth a lane.
const BORROWER_CALLS: u32 = 16;

static PAGE: &AtomicPtr<u8> = &fork_page::FORK_PAGE.page;
/// The page's hidden descriptor. A borrower keeps the inherited page: tools find the page there
/// when the lender has ended.
#[unsafe(link_section = ".data.hot")]
pub(crate) static NUMBER: AtomicI32 = AtomicI32::new(-1);
/// Inode of the page behind it.
static INODE: &AtomicU64 = &fork_page::FORK_PAGE.inode;
/// The page of others that the process counts in as a borrower. Once it is not the one in force any
/// more it is to be given up, in a process with several threads later: one of them may be in the
/// middle of it.
static INHERITED: &AtomicPtr<u8> = &fork_page::FORK_PAGE.inherited;
static REPORT_PENDING: &AtomicBool = &fork_page::FORK_PAGE.report_pending;
/// 0: the page is our own, or there is none. Else calls that a borrower still has, and [`LEFT`].
static BORROWER: &AtomicU32 = &fork_page::FORK_PAGE.borrower;
/// This borrower is not counted among the page's borrowers, because it was about to execute another
/// program.
const LEFT: u32 = 1 << 31;
/// A thread is about to make the own page.
static MOVING: &AtomicBool = &fork_page::FORK_PAGE.moving;
/// Looks at another thread's move, each followed by giving the processor away.
const MOVE_LOOKS: u32 = 10_000;

/// The statistics page, once made.
#[inline]
pub(crate) fn current() -> Option<&'static Page> {
    // SAFETY: a mapping of SIZE bytes. It is taken away from a process only while that has one thread
    // ([`forget_host`]), which is then not in the middle of using it.
    unsafe { Page::from_ptr(PAGE.load(Ordering::Acquire), sdp_stats::SIZE) }
}

/// Makes the page, unless there is one.
pub(crate) fn start() {
    if PAGE.load(Ordering::Acquire).is_null() {
        make();
    }
}

fn make() {
    let Ok(file) = memfd::create_sealed(sdp_stats::page::MEMFD_NAME, sdp_stats::SIZE as u64) else {
        return;
    };
    let Ok(base) = memfd::map_at(file.raw(), sdp_stats::SIZE, process::place_of_page()) else {
        return;
    };
    // SAFETY: just mapped with that length; atomics only from here on.
    let Some(page) = (unsafe { Page::from_ptr(base.as_ptr(), sdp_stats::SIZE) }) else { return };
    let (ppid, uid) = (sdp_sys::pid::parent(), sdp_sys::pid::user());
    page.init(&Identity {
        pid: process::pid(),
        ppid,
        uid,
        now_ns: sdp_sys::time::boottime_ns(),
        program: settings::program(),
        version: env!("CARGO_PKG_VERSION").as_bytes(),
    });
    close_number();
    INODE.store(fd::inode(file.raw()).unwrap_or(0), Ordering::Relaxed);
    NUMBER.store(process::hide_page(file.into_raw()), Ordering::Release);
    PAGE.store(base.as_ptr(), Ordering::Release);
    settings::publish();
    REPORT_PENDING.store(!settings::report().is_empty(), Ordering::Release);
    hand_in();
}

/// Closes the page's descriptor, unless the program did so by a system call that the library did
/// not see, and has another file there by now.
pub(crate) fn close_number() {
    let raw = NUMBER.swap(-1, Ordering::AcqRel);
    // In one step: the program may have got the number for a file of its own.
    if raw >= 0 && table::unhide(raw) && fd::inode(raw) == Ok(INODE.load(Ordering::Relaxed)) {
        fd::close(raw);
    }
}

/// Gives `sdp run` a duplicate of the page; tried again at later connections while its queue is full.
#[inline]
pub(crate) fn hand_in() {
    if REPORT_PENDING.load(Ordering::Relaxed) {
        try_to_hand_in();
    }
}

#[cold]
fn try_to_hand_in() {
    let mut parts = settings::report().splitn(3, |b| *b == b';');
    let (name, path, token) = (parts.next(), parts.next(), parts.next());
    let number = NUMBER.load(Ordering::Acquire);
    let send = |address: Option<&[u8]>, is_abstract: bool| -> Result<(), Errno> {
        let address = address.filter(|a| !a.is_empty()).ok_or(Errno::EINVAL)?;
        let socket = unix::socket()?;
        if is_abstract {
            unix::connect(socket.raw(), address)?;
        } else {
            unix::connect_path(socket.raw(), address)?;
        }
        unix::send(socket.raw(), token.unwrap_or(&[]), &[number])
    };
    let result = send(name, true).or_else(|e| match e {
        Errno::EAGAIN | Errno(libc::ETOOMANYREFS) => Err(e),
        _ => send(path, false),
    });
    if !matches!(result, Err(Errno::EAGAIN | Errno(libc::ETOOMANYREFS))) {
        REPORT_PENDING.store(false, Ordering::Relaxed);
    }
}

// ---- borrowers ----------------------------------------------------------------------------------

/// Before a fork, or before a sandbox after which forks go unseen: others may count here.
pub(crate) fn expect_borrowers() {
    if let Some(page) = current() {
        page.expect_borrowers();
    }
}

/// In a fork child: it counts in its parent's page from here on.
pub(crate) fn become_borrower() {
    MOVING.store(false, Ordering::Relaxed);
    REPORT_PENDING.store(false, Ordering::Relaxed);
    forget_host();
    INHERITED.store(PAGE.load(Ordering::Acquire), Ordering::Release);
    if let Some(page) = current() {
        page.expect_borrowers(); // the parent may have got this page just before the fork, or have prepared nothing
        page.count_borrower(1);
        BORROWER.store(BORROWER_CALLS, Ordering::Release);
    }
}

/// Whether the process counts in another's page.
pub(crate) fn is_borrower() -> bool {
    BORROWER.load(Ordering::Acquire) != 0
}

/// Moves the counts that this process made in another page for its connections to the page in
/// force. The caller does it: this room knows no connections. Always
/// [`crate::conn::publish::take_along`].
pub(crate) type TakeAlong = fn(&Page);

/// Whether the page is this process's own. A borrower's call on a connection counts towards that;
/// `at_once`: it is worth one now.
pub(crate) fn is_own(at_once: bool, take_along: TakeAlong) -> bool {
    BORROWER.load(Ordering::Acquire) == 0 || leaves_soon(at_once, take_along)
}

#[cold]
#[unsafe(link_section = ".text.hot")]
fn leaves_soon(at_once: bool, take_along: TakeAlong) -> bool {
    let count = |borrower: u32| (borrower & !LEFT).checked_sub(1).filter(|left| *left != 0);
    match BORROWER.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) {
        Ok(before) if !at_once => {
            // The other program was not executed, it seems.
            if before & LEFT != 0
                && let Some(page) = current()
            {
                page.count_borrower(1);
            }
            false
        }
        _ => own(take_along),
    }
}

/// A borrower gets its own page. False when it cannot, or while another thread is at it.
pub(crate) fn own(take_along: TakeAlong) -> bool {
    let borrower = BORROWER.load(Ordering::Acquire);
    if borrower == 0 {
        return true;
    }
    let _section = section::Guard::enter();
    if process::is_retired() || MOVING.swap(true, Ordering::AcqRel) {
        return false;
    }
    if BORROWER.load(Ordering::Acquire) == 0 {
        MOVING.store(false, Ordering::Release);
        return true; // another thread was at it between the two looks
    }
    let former = PAGE.load(Ordering::Acquire);
    make();
    let moved = PAGE.load(Ordering::Acquire) != former;
    if moved {
        let is_counted = BORROWER.swap(0, Ordering::AcqRel) & LEFT == 0;
        // SAFETY: a page of the whole size stays mapped until `forget_host`, which comes behind
        // this.
        if let Some(inherited) = unsafe { Page::from_ptr(former, sdp_stats::SIZE) } {
            inherited.count_borrower(-i64::from(is_counted));
            take_along(inherited);
        }
        if sys_pid::is_single_threaded() {
            forget_host();
        }
    } else {
        // No memory, no descriptor: later, perhaps.
        let again = |borrower: u32| Some(borrower & LEFT | BORROWER_CALLS);
        let _ = BORROWER.fetch_update(Ordering::AcqRel, Ordering::Acquire, again);
    }
    MOVING.store(false, Ordering::Release);
    moved
}

/// Gives up the page of another process in which this one counted once, if it is not the one in
/// force. Only while no other thread can be in the middle of counting there, or where its counts
/// may be lost.
fn forget_host() {
    let inherited = INHERITED.load(Ordering::Acquire);
    if inherited == PAGE.load(Ordering::Acquire)
        || INHERITED.swap(null_mut(), Ordering::AcqRel) != inherited
    {
        return;
    }
    let Some(base) = NonNull::new(inherited) else { return };
    // SAFETY: mapped in this length when the process got the page; words of a page are atomics, for
    // which zeros are values, and only a thread that is alone knows that no other one is at them.
    unsafe { process::give_up(base, sdp_stats::SIZE, sys_pid::is_single_threaded()) };
}

/// Before the process changes its rights: a page of those that it leaves is not for it. `for_good`: it will
/// not make one later either.
pub(crate) fn leave_host(for_good: bool, take_along: TakeAlong) {
    let _section = section::Guard::enter();
    // Another thread's move is a few system calls, in a section too: this waits until the page that
    // it leaves can be given up.
    for _ in 0..MOVE_LOOKS {
        if !MOVING.load(Ordering::Acquire) {
            break;
        }
        sdp_sys::time::yield_now();
    }
    let borrower = if own(take_along) { 0 } else { BORROWER.swap(0, Ordering::AcqRel) };
    if borrower != 0 {
        // No memory or no descriptor for a page of its own: the process counts nothing any more, or
        // nothing before the next connection, and the page in force counts the process.
        if !for_good
            && borrower & LEFT == 0
            && let Some(page) = current()
        {
            page.count_borrower(-1);
        }
        close_number();
        PAGE.store(null_mut(), Ordering::Release);
    }
    forget_host();
}

/// Before the process executes another program, which has a page of its own.
pub(crate) fn executing() {
    let leave = |borrower: u32| (borrower != 0 && borrower & LEFT == 0).then_some(borrower | LEFT);
    if BORROWER.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave).is_ok()
        && let Some(page) = current()
    {
        page.count_borrower(-1);
    }
}

/// The process ends in an orderly way.
pub(crate) fn exiting() {
    if BORROWER.load(Ordering::Acquire) == 0
        && let Some(page) = current()
    {
        page.mark_exited();
    }
}

//! epoll sets: the kernel stays the sleeping truth, rings are looked at first.
//!
//! The kernel's registrations are the program's own, with the program's own data. Beside them we keep a
//! mirror of the registrations of tracked stream sockets, keyed by (set, socket, number), so that
//!
//! * a producer's bell (a bit in our bell page) finds the registrations that it concerns,
//! * a kernel event can be judged: was it a bell byte, or something for the program?
//!
//! A set that contains a connection on a lane also contains the process's hidden eventfd, edge-triggered
//! and never read, under the data of one such registration (its *host*), so that a wait that we do not
//! see gets nothing that is not the program's.
//!
//! # Ready list
//! A registration with something in its ring is on its set's ready list: put there by a bell bit, taken
//! off when a wait finds its ring empty and has armed it again. A wait therefore costs what is ready,
//! not what is registered.
//!
//! # Locking
//! One lock for all sets of the process (in-process, spinning; held for nanoseconds to microseconds,
//! never across a sleep or a fork).

use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

use libc::{c_int, epoll_event, sigset_t};
use sdp_shm::bell::Bell;
use sdp_sys::{errno::Errno, section, sys, time::monotonic_ns, tls};

use crate::{
    conn::{self, Conn, Half, Stage, flag},
    host, process, readiness, spin,
    table::{self, Entry},
    wait,
};

/// Epoll sets that one process can have mirrored; those beyond keep their connections on the kernel
/// lane (they are never marked as waited for).
const SETS: usize = 4096;
/// Mirrored registrations.
const REGISTRATIONS: usize = 65_536;
const BUCKETS: usize = 16_384;
/// Kernel events are fetched beside ring events at least once in so many waits …
const MERGE_EVERY: u32 = 8;
/// … and whenever so much time has passed.
const MERGE_AFTER_NS: u64 = 50_000;
/// Most events handled in one go.
const BATCH: usize = 256;
/// Spin of a set that has been answering quickly.
const SPIN_CEILING_NS: u64 = 20_000;

const NONE: u32 = u32::MAX;
const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Events that pass whatever the ring says.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const IN_KIND: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

#[derive(Clone, Copy)]
struct Registration {
    set: u32,
    conn: u32,
    fd: i32,
    events: u32,
    data: u64,
    /// Chains: by (set, data), by connection, by ready list; also the free list through `next_hash`.
    next_hash: u32,
    next_conn: u32,
    next_ready: u32,
    is_used: bool,
    is_ready: bool,
    /// ONESHOT has fired.
    is_disabled: bool,
    /// EPOLLOUT was taken out of the kernel's registration while the ring is full.
    is_stripped: bool,
    /// Edge: the ring cursor last reported.
    reported: u64,
}

struct Set {
    epfd: i32,
    refs: u32,
    is_used: bool,
    ready_first: u32,
    ready_last: u32,
    /// Registration under whose data the hidden eventfd is in the set.
    host: u32,
    /// The hidden eventfd is in the kernel's set, under this data (also while `host` is none).
    hidden: Option<u64>,
    sleepers: u32,
    members: u32,
    waits: u32,
    merged_ns: u64,
    spin_ns: u64,
}

struct Mirror {
    sets: [Set; SETS],
    registrations: [Registration; REGISTRATIONS],
    buckets: [u32; BUCKETS],
    free: u32,
    used: u32,
}

static LOCK: AtomicU32 = AtomicU32::new(0);
/// Thread that holds the lock across a fork: libc runs the program's `pthread_atfork` handlers meanwhile,
/// which may use sets.
static FORKING: AtomicU32 = AtomicU32::new(0);
static MIRROR: AtomicPtr<Mirror> = AtomicPtr::new(null_mut());

fn lock() {
    let mut spins = 0u32;
    while LOCK.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        spins += 1;
        if spins % 64 == 0 {
            // SAFETY: no arguments.
            let _ = unsafe { sys!(libc::SYS_sched_yield) };
        }
        core::hint::spin_loop();
    }
}

fn unlock() {
    LOCK.store(0, Ordering::Release);
}

/// Runs `body` on the mirror under its lock, inside a critical section. `None` when there is none.
fn with<R>(body: impl FnOnce(&mut Mirror) -> R) -> Option<R> {
    let mirror = MIRROR.load(Ordering::Acquire);
    if mirror.is_null() {
        return None;
    }
    let _section = section::Guard::enter();
    let held = FORKING.load(Ordering::Acquire);
    let is_mine = held != 0 && held == tls::thread_id() as u32;
    if !is_mine {
        lock();
    }
    // SAFETY: the mapping is never unmapped and the lock is ours (no `body` runs another one); the
    // reference ends with `body`.
    let result = body(unsafe { &mut *mirror });
    if !is_mine {
        unlock();
    }
    Some(result)
}

fn make_mirror() -> bool {
    if !MIRROR.load(Ordering::Acquire).is_null() {
        return true;
    }
    let Some(fresh) = process::map_private(size_of::<Mirror>()) else { return false };
    let fresh = fresh.cast::<Mirror>();
    // SAFETY: zeroed memory of the right size, seen by nobody else: plain integers and booleans, for
    // which zero is valid. The links whose "none" is not zero are set here.
    unsafe {
        (&raw mut (*fresh.as_ptr()).buckets).write([NONE; BUCKETS]);
        (&raw mut (*fresh.as_ptr()).free).write(NONE);
    }
    let made =
        MIRROR.compare_exchange(null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    if made.is_err() {
        process::unmap(fresh.cast(), size_of::<Mirror>());
    }
    true
}

fn bucket(set: u32, data: u64) -> usize {
    let mixed = (data ^ u64::from(set).rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 48) as usize % BUCKETS
}

impl Mirror {
    fn set(&mut self, index: u32) -> Option<&mut Set> {
        self.sets.get_mut(index as usize).filter(|s| s.is_used)
    }

    fn reg(&mut self, index: u32) -> Option<&mut Registration> {
        self.registrations.get_mut(index as usize).filter(|r| r.is_used)
    }

    fn open_set(&mut self, epfd: i32) -> Option<u32> {
        let index = self.sets.iter().position(|s| !s.is_used)?;
        *self.sets.get_mut(index)? = Set {
            epfd,
            refs: 1,
            is_used: true,
            ready_first: NONE,
            ready_last: NONE,
            host: NONE,
            hidden: None,
            sleepers: 0,
            members: 0,
            waits: 0,
            merged_ns: 0,
            spin_ns: u64::from(spin::INITIAL_NS),
        };
        Some(index as u32)
    }

    fn allocate(&mut self) -> Option<u32> {
        if self.free != NONE {
            let index = self.free;
            self.free = self.registrations.get(index as usize)?.next_hash;
            return Some(index);
        }
        if (self.used as usize) < REGISTRATIONS {
            self.used += 1;
            return Some(self.used - 1);
        }
        None
    }

    /// The registration of number `fd` of this connection in this set.
    fn find(&self, set: u32, conn: &Conn, fd: i32) -> Option<u32> {
        let mut at = conn.registrations.load(Ordering::Relaxed).wrapping_sub(1);
        for _ in 0..REGISTRATIONS {
            let reg = self.registrations.get(at as usize)?;
            if reg.set == set && reg.fd == fd {
                return Some(at);
            }
            at = reg.next_conn;
        }
        None
    }

    fn add(&mut self, set: u32, conn: &Conn, fd: i32, events: u32, data: u64) -> Option<u32> {
        let index = self.allocate()?;
        let bucket = bucket(set, data);
        let head = conn.registrations.load(Ordering::Relaxed).wrapping_sub(1);
        *self.registrations.get_mut(index as usize)? = Registration {
            set,
            conn: conn.index(),
            fd,
            events,
            data,
            next_hash: *self.buckets.get(bucket)?,
            next_conn: head,
            next_ready: NONE,
            is_used: true,
            is_ready: false,
            is_disabled: false,
            is_stripped: false,
            reported: 0,
        };
        *self.buckets.get_mut(bucket)? = index;
        conn.registrations.store(index.wrapping_add(1), Ordering::Relaxed);
        if let Some(s) = self.set(set) {
            s.members += 1;
        }
        Some(index)
    }

    fn unhash(&mut self, index: u32) {
        let Some(reg) = self.registrations.get(index as usize).copied() else { return };
        let bucket = bucket(reg.set, reg.data);
        let Some(mut at) = self.buckets.get(bucket).copied() else { return };
        if at == index {
            if let Some(head) = self.buckets.get_mut(bucket) {
                *head = reg.next_hash;
            }
            return;
        }
        while let Some(other) = self.registrations.get_mut(at as usize) {
            if other.next_hash == index {
                other.next_hash = reg.next_hash;
                return;
            }
            at = other.next_hash;
        }
    }

    fn rehash(&mut self, index: u32, data: u64) {
        self.unhash(index);
        let Some(reg) = self.registrations.get_mut(index as usize) else { return };
        reg.data = data;
        let bucket = bucket(reg.set, data);
        if let Some(head) = self.buckets.get_mut(bucket) {
            reg.next_hash = *head;
            *head = index;
        }
    }

    fn remove(&mut self, index: u32) {
        let Some(reg) = self.registrations.get(index as usize).copied() else { return };
        if !reg.is_used {
            return;
        }
        self.unhash(index);
        if let Some(conn) = conn::get(reg.conn) {
            let head = conn.registrations.load(Ordering::Relaxed).wrapping_sub(1);
            if head == index {
                conn.registrations.store(reg.next_conn.wrapping_add(1), Ordering::Relaxed);
            } else {
                let mut at = head;
                while let Some(other) = self.registrations.get_mut(at as usize) {
                    if other.next_conn == index {
                        other.next_conn = reg.next_conn;
                        break;
                    }
                    at = other.next_conn;
                }
            }
        }
        self.unready(index);
        if let Some(slot) = self.registrations.get_mut(index as usize) {
            slot.is_used = false;
            slot.next_hash = self.free;
            self.free = index;
        }
        let mut lost_host = false;
        if let Some(set) = self.set(reg.set) {
            set.members = set.members.saturating_sub(1);
            lost_host = set.host == index;
        }
        if lost_host {
            self.lose_host(reg.set);
        }
    }

    fn push_ready(&mut self, index: u32) {
        let Some(reg) = self.reg(index) else { return };
        if reg.is_ready {
            return;
        }
        reg.is_ready = true;
        reg.next_ready = NONE;
        let set = reg.set;
        let Some(set) = self.set(set) else { return };
        let last = set.ready_last;
        set.ready_last = index;
        if last == NONE {
            set.ready_first = index;
        } else if let Some(last) = self.registrations.get_mut(last as usize) {
            last.next_ready = index;
        }
    }

    fn pop_ready(&mut self, set: u32) -> Option<u32> {
        let first = self.set(set)?.ready_first;
        let reg = self.registrations.get_mut(first as usize)?;
        reg.is_ready = false;
        let next = reg.next_ready;
        let set = self.set(set)?;
        set.ready_first = next;
        if next == NONE {
            set.ready_last = NONE;
        }
        Some(first)
    }

    fn unready(&mut self, index: u32) {
        let Some(reg) = self.registrations.get(index as usize).copied() else { return };
        if !reg.is_ready {
            return;
        }
        let mut kept = (NONE, NONE);
        let Some(mut at) = self.set(reg.set).map(|s| s.ready_first) else { return };
        // Rebuild without it: removal of a ready registration is rare.
        while at != NONE {
            let Some(other) = self.registrations.get_mut(at as usize) else { break };
            let next = other.next_ready;
            if at == index {
                other.is_ready = false;
            } else {
                other.next_ready = NONE;
                if kept.0 == NONE {
                    kept.0 = at;
                } else if let Some(last) = self.registrations.get_mut(kept.1 as usize) {
                    last.next_ready = at;
                }
                kept.1 = at;
            }
            at = next;
        }
        if let Some(set) = self.set(reg.set) {
            (set.ready_first, set.ready_last) = kept;
        }
    }

    /// All registrations of a connection become ready to be looked at.
    fn ready_conn(&mut self, conn: &Conn) -> bool {
        let mut at = conn.registrations.load(Ordering::Relaxed).wrapping_sub(1);
        let mut others_sleep = false;
        while let Some(reg) = self.registrations.get(at as usize).copied() {
            if !reg.is_used {
                break;
            }
            self.push_ready(at);
            others_sleep |= self.set(reg.set).is_some_and(|s| s.sleepers > 0);
            at = reg.next_conn;
        }
        others_sleep
    }

    /// Takes EPOLLOUT out of the kernel's registration, or puts it back (which also makes the kernel
    /// report it to anybody who waits).
    fn strip(&mut self, at: u32, strip: bool) {
        let Some(reg) = self.reg(at).map(|r| *r) else { return };
        let Some(epfd) = self.set(reg.set).map(|s| s.epfd) else { return };
        let events = if strip { reg.events & !OUT } else { reg.events };
        let mut interest = epoll_event { events, u64: reg.data };
        // SAFETY: the event structure is readable.
        let done = unsafe {
            sys!(libc::SYS_epoll_ctl, epfd, libc::EPOLL_CTL_MOD, reg.fd, &raw mut interest)
        };
        if done.is_ok()
            && let Some(reg) = self.reg(at)
        {
            reg.is_stripped = strip;
        }
    }

    /// The host of a set is gone. A program with one thread cannot wait before it calls us again, so the
    /// eventfd stays where it is until then; with several it leaves the set now, because a wait that we
    /// do not see must not get data that the program has deleted (X16 a).
    fn lose_host(&mut self, set_index: u32) {
        let Some(set) = self.set(set_index) else { return };
        set.host = NONE;
        if !is_single_threaded() {
            self.rehost(set_index);
        }
    }

    /// Sees to it that the hidden eventfd is in the set under the data of a living registration of an
    /// attached connection, and out of it when there is none.
    fn rehost(&mut self, set_index: u32) {
        let event = process::bell_fd();
        let Some(set) = self.set(set_index) else { return };
        let (epfd, hidden) = (set.epfd, set.hidden);
        if set.host != NONE || event < 0 {
            return;
        }
        let candidate = |r: &Registration| {
            r.is_used
                && r.set == set_index
                && conn::get(r.conn).is_some_and(|c| c.stage() == Stage::Attached)
        };
        // One that has the data already costs nothing.
        let kept = hidden.and_then(|data| {
            let mut at = self.buckets.get(bucket(set_index, data)).copied()?;
            while let Some(reg) = self.registrations.get(at as usize) {
                if candidate(reg) && reg.data == data {
                    return Some(at as usize);
                }
                at = reg.next_hash;
            }
            None
        });
        let host =
            kept.or_else(|| self.registrations.iter().take(self.used as usize).position(candidate));
        let data = host.and_then(|h| self.registrations.get(h)).map(|r| r.data);
        let op = match (hidden, data) {
            (None, None) => return,
            (Some(old), Some(new)) if old == new => 0,
            (None, Some(_)) => libc::EPOLL_CTL_ADD,
            (Some(_), Some(_)) => libc::EPOLL_CTL_MOD,
            (Some(_), None) => libc::EPOLL_CTL_DEL,
        };
        let mut interest = epoll_event { events: IN | ET, u64: data.unwrap_or(0) };
        let done = op == 0
            // SAFETY: the event structure is readable.
            || unsafe { sys!(libc::SYS_epoll_ctl, epfd, op, event, &raw mut interest) }.is_ok();
        if let Some(set) = self.set(set_index) {
            set.hidden = if done { data } else { None };
            set.host = if done { host.map_or(NONE, |h| h as u32) } else { NONE };
        }
    }
}

unsafe extern "C" {
    /// libc's own knowledge of whether the process ever had a second thread.
    static __libc_single_threaded: core::ffi::c_char;
}

pub(crate) fn is_single_threaded() -> bool {
    // SAFETY: a byte of libc that only libc writes; read like any other flag.
    unsafe { (&raw const __libc_single_threaded).read_volatile() != 0 }
}

// ---- what the other modules tell -------------------------------------------------------------

/// After `epoll_create`.
pub(crate) fn created(epfd: i32) {
    if process::is_retired() || !process::is_ours() || !make_mirror() {
        return crate::lifecycle::forget(epfd);
    }
    crate::lifecycle::forget(epfd);
    let index = with(|m| m.open_set(epfd)).flatten();
    if let Some(index) = index {
        process::note_descriptor(epfd);
        table::replace(epfd, Some(Entry::Set(index)));
    }
}

/// One more number names the set.
pub(crate) fn duplicated(index: u32) {
    with(|m| {
        if let Some(set) = m.set(index) {
            set.refs += 1;
        }
    });
}

/// One number less names the set.
pub(crate) fn closed(index: u32) {
    with(|m| {
        let Some(set) = m.set(index) else { return };
        set.refs -= 1;
        if set.refs > 0 {
            return;
        }
        if set.members > 0 {
            for i in 0..m.used {
                if m.registrations.get(i as usize).is_some_and(|r| r.is_used && r.set == index) {
                    if let Some(set) = m.set(index) {
                        // The kernel's set goes with its last number.
                        (set.host, set.hidden) = (NONE, None);
                    }
                    m.remove(i);
                }
            }
        }
        if let Some(set) = m.set(index) {
            set.is_used = false;
        }
    });
}

/// The connection's last number in this process is about to be closed.
pub(crate) fn forget_conn(conn: &Conn) {
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    with(|m| {
        while let Some(at) = conn.registrations.load(Ordering::Relaxed).checked_sub(1) {
            m.remove(at);
        }
    });
}

/// One of several numbers of a connection is closed. The kernel keeps its registration until the
/// socket itself goes, and so do we.
pub(crate) fn forget_number(_conn: &Conn, _fd: i32) {}

/// The connection has got a segment: its sets need the hidden eventfd, and a first look arms it.
pub(crate) fn attached(conn: &Conn) {
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    with(|m| {
        let mut at = conn.registrations.load(Ordering::Relaxed).wrapping_sub(1);
        while let Some(reg) = m.registrations.get(at as usize).copied() {
            m.push_ready(at);
            at = reg.next_conn;
        }
    });
}

/// The hidden eventfd has another number now.
pub(crate) fn bell_moved() {
    with(|m| {
        for i in 0..SETS as u32 {
            if m.set(i).is_some_and(|s| s.hidden.is_some()) {
                if let Some(set) = m.set(i) {
                    (set.host, set.hidden) = (NONE, None);
                }
                m.rehost(i);
            }
        }
    });
}

/// The hidden eventfd is about to be closed for good. Others hold duplicates, so that closing alone would
/// leave it in the sets.
pub(crate) fn bell_leaves() {
    let event = process::bell_fd();
    with(|m| {
        for set in m.sets.iter_mut().filter(|s| s.is_used && s.hidden.is_some()) {
            (set.host, set.hidden) = (NONE, None);
            let mut unused = epoll_event { events: 0, u64: 0 };
            // SAFETY: the event structure is readable.
            let _ = unsafe {
                sys!(libc::SYS_epoll_ctl, set.epfd, libc::EPOLL_CTL_DEL, event, &raw mut unused)
            };
        }
    });
}

/// X18: whether a non-blocking sender of this connection can be told EAGAIN when the ring is full: it
/// waits where we see it, in sets whose registrations we understand, and can be rung.
pub(crate) fn may_ask_for_patience(conn: &Conn) -> bool {
    if !conn.has(flag::WAITED) || !conn.has(flag::PEER_HAS_BELL) || process::bell().is_none() {
        return false;
    }
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return true; // waits with poll or select
    }
    with(|m| {
        let mut at = conn.registrations.load(Ordering::Relaxed).wrapping_sub(1);
        while let Some(reg) = m.registrations.get(at as usize) {
            if reg.events & (ONESHOT | EXCLUSIVE) != 0 {
                return false;
            }
            at = reg.next_conn;
        }
        true
    })
    .unwrap_or(false)
}

/// A sender was told EAGAIN: level-triggered registrations must not see the carrier's "writable" until
/// there is room in the ring.
pub(crate) fn sender_waits(conn: &Conn) {
    if conn.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    with(|m| {
        let mut at = conn.registrations.load(Ordering::Relaxed).wrapping_sub(1);
        while let Some(reg) = m.registrations.get(at as usize).copied() {
            if reg.events & OUT != 0 && reg.events & ET == 0 && !reg.is_stripped {
                m.strip(at, true);
            }
            // Room that came meanwhile is found by the next wait.
            m.push_ready(at);
            at = reg.next_conn;
        }
    });
}

/// Before a fork: nobody is in the middle of a change.
pub(crate) fn fork_prepare() {
    lock();
    FORKING.store(tls::thread_id() as u32, Ordering::Release);
}

/// After a fork, in the parent.
pub(crate) fn fork_parent() {
    FORKING.store(0, Ordering::Release);
    unlock();
}

/// After a fork, in the child: sets are shared with the parent by the kernel, the hidden eventfd in them
/// is the parent's.
pub(crate) fn fork_child() {
    FORKING.store(0, Ordering::Release);
    unlock();
    with(|m| {
        for set in m.sets.iter_mut().filter(|s| s.is_used) {
            (set.host, set.hidden) = (NONE, None);
            set.sleepers = 0;
        }
    });
}

// ---- epoll_ctl -------------------------------------------------------------------------------

/// `epoll_ctl` on a set of ours. `None`: pass the call on.
///
/// # Safety
/// `event` is null or a readable event.
pub(crate) unsafe fn control(
    set_fd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<Result<usize, Errno>> {
    let Some(Entry::Set(set)) = table::entry(set_fd) else { return None };
    if !process::is_ours() {
        return None;
    }
    let conn = match table::entry(fd) {
        Some(Entry::Conn(index)) => conn::get(index)?,
        Some(Entry::Hidden) => return Some(Err(Errno::EBADF)),
        _ => return None,
    };
    if event.is_null() && op != libc::EPOLL_CTL_DEL {
        return None;
    }
    let wanted = if event.is_null() {
        epoll_event { events: 0, u64: 0 }
    } else {
        // SAFETY: the caller's; epoll_event is packed, so an unaligned read.
        unsafe { event.read_unaligned() }
    };
    // While the ring is full, "writable" is not the carrier's to say.
    let strips = wanted.events & OUT != 0
        && wanted.events & (ET | ONESHOT | EXCLUSIVE) == 0
        && conn.has(flag::WANTS_ROOM)
        && !wait::sender_may_go_on(conn);
    with(|m| {
        let mut passed =
            epoll_event { events: wanted.events & !if strips { OUT } else { 0 }, ..wanted };
        let event = if event.is_null() { event } else { &raw mut passed };
        // SAFETY: null or our copy of the caller's event.
        let done = unsafe { sys!(libc::SYS_epoll_ctl, set_fd, op, fd, event) };
        if done.is_err() {
            return done;
        }
        let known = m.find(set, conn, fd);
        let (events, data) = (wanted.events, wanted.u64);
        match (op, known) {
            (libc::EPOLL_CTL_DEL, Some(at)) => m.remove(at),
            (libc::EPOLL_CTL_DEL, None) => {}
            (_, Some(at)) => {
                if m.registrations.get(at as usize).is_some_and(|r| r.data != data) {
                    m.rehash(at, data);
                    if m.set(set).is_some_and(|s| s.host == at) {
                        m.lose_host(set);
                    }
                }
                if let Some(reg) = m.reg(at) {
                    reg.events = events;
                    reg.is_disabled = false;
                    reg.is_stripped = strips;
                    reg.reported = 0;
                }
                m.push_ready(at);
            }
            (_, None) => {
                let added = m.add(set, conn, fd, events, data);
                match added {
                    Some(at) => {
                        if let Some(reg) = m.reg(at) {
                            reg.is_stripped = strips;
                        }
                        m.push_ready(at);
                    }
                    // No room: whoever waits here cannot be woken by a bell.
                    None => conn.set(flag::PINNED),
                }
            }
        }
        if events & EXCLUSIVE != 0 {
            conn.set(flag::PINNED);
        }
        conn.set(flag::WAITED);
        done
    })
}

// ---- epoll_wait ------------------------------------------------------------------------------

/// What a wait fills.
struct Output {
    events: *mut epoll_event,
    max: usize,
    used: usize,
    /// Registration of each of the first events, so that ring and kernel make one event of one.
    from: [u32; BATCH],
}

impl Output {
    /// Reports events of a registration ([`NONE`]: not one of ours).
    fn push(&mut self, events: u32, data: u64, from: u32) {
        if from != NONE
            && let Some(at) = self.from.iter().take(self.used).position(|f| *f == from)
        {
            // SAFETY: at < used events were written below.
            let mut held = unsafe { self.events.add(at).read_unaligned() };
            held.events |= events;
            // SAFETY: as above.
            unsafe { self.events.add(at).write_unaligned(held) };
            return;
        }
        if self.used < self.max {
            // SAFETY: used < max writable events; packed, so an unaligned write.
            unsafe {
                self.events.add(self.used).write_unaligned(epoll_event { events, u64: data });
            }
            if let Some(slot) = self.from.get_mut(self.used) {
                *slot = from;
            }
            self.used += 1;
        }
    }
}

/// `epoll_wait` on a set of ours. `None`: pass the call on.
///
/// # Safety
/// `events` is writable for `max` events; `mask` is null or a signal set.
pub(crate) unsafe fn wait(
    set_fd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, Errno>> {
    let Some(Entry::Set(set)) = table::entry(set_fd) else { return None };
    // Nothing of this set is on a lane: the kernel's call, unchanged. (A set with connections that
    // are still young has no host.)
    if max <= 0 || events.is_null() || process::is_retired() || !with(|m| concerns_us(m, set))? {
        return None;
    }
    let start = if timeout_ns == Some(0) { 0 } else { monotonic_ns() };
    let until = timeout_ns.map(|ns| start.saturating_add(ns));
    // Events beyond the batch could not be told apart; a program that asks for more gets them next time.
    let max = (max as usize).min(BATCH);
    let mut out = Output { events, max, used: 0, from: [NONE; BATCH] };
    let mut has_spun = false;
    loop {
        collect_bits();
        let merge = with(|m| collect(m, set, &mut out))?;
        if out.used > 0 {
            if merge && out.used < out.max {
                // SAFETY: as the caller's.
                unsafe { kernel_events(set_fd, set, &mut out, 0, core::ptr::null()) }.ok();
            }
            return Some(Ok(out.used));
        }
        let now = if timeout_ns == Some(0) { 0 } else { monotonic_ns() };
        let left = until.map(|u| u.saturating_sub(now));
        if left == Some(0) {
            // SAFETY: as the caller's.
            return Some(
                unsafe { kernel_events(set_fd, set, &mut out, 0, mask) }.map(|()| out.used),
            );
        }
        if !has_spun {
            has_spun = true;
            if spin_on_bell(set) {
                continue;
            }
        }
        let timeout_ms = milliseconds(left);
        // SAFETY: as the caller's.
        let result = unsafe { kernel_events(set_fd, set, &mut out, timeout_ms, mask) };
        match result {
            Err(e) => return Some(Err(e)),
            Ok(()) if out.used > 0 => return Some(Ok(out.used)),
            Ok(()) => {}
        }
        if table::entry(set_fd) != Some(Entry::Set(set)) {
            return Some(Err(Errno::EBADF));
        }
    }
}

/// Whether anything in the set is on a lane.
fn concerns_us(m: &mut Mirror, set: u32) -> bool {
    if m.set(set).is_some_and(|s| s.host != NONE) {
        return true;
    }
    if m.set(set).is_some_and(|s| s.hidden.is_some()) || has_attached(m, set) {
        m.rehost(set);
    }
    m.set(set).is_some_and(|s| s.host != NONE) || has_attached(m, set)
}

fn has_attached(m: &mut Mirror, set: u32) -> bool {
    let Some(mut at) = m.set(set).map(|s| s.ready_first) else { return false };
    while let Some(reg) = m.registrations.get(at as usize) {
        if conn::get(reg.conn).is_some_and(|c| c.stage() == Stage::Attached) {
            return true;
        }
        at = reg.next_ready;
    }
    false
}

/// Rounded up, as the kernel does.
fn milliseconds(left: Option<u64>) -> c_int {
    match left {
        None => -1,
        Some(ns) => ns.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int,
    }
}

/// Moves the bell page's bits to the ready lists of the sets that they concern.
fn collect_bits() {
    let Some(bell) = process::bell() else { return };
    if !bell.any() {
        return;
    }
    let others_sleep = with(|m| {
        let mut others = false;
        bell.take(|slot| {
            if let Some(conn) = conn::get(slot) {
                others |= m.ready_conn(conn);
            }
        });
        others
    });
    if others_sleep == Some(true) {
        ring_myself();
    }
}

fn ring_myself() {
    let one = 1u64;
    let event = process::bell_fd();
    if event >= 0 {
        // SAFETY: eight readable bytes.
        let _ = unsafe { sys!(libc::SYS_write, event, &raw const one, 8) };
    }
}

/// Turns the ready list into events. True: kernel events are due as well.
fn collect(m: &mut Mirror, set: u32, out: &mut Output) -> bool {
    let Some(s) = m.set(set) else { return true };
    let last = s.ready_last;
    if s.ready_first == NONE {
        return true;
    }
    // One pass over what is on the list now; what stays ready is appended behind `last`.
    for _ in 0..REGISTRATIONS {
        if out.used == out.max {
            break;
        }
        let Some(at) = m.pop_ready(set) else { break };
        judge(m, at, out);
        if at == last {
            break;
        }
    }
    let leftover = m.set(set).is_some_and(|s| s.ready_first != NONE && s.sleepers > 0);
    if leftover {
        ring_myself(); // the kernel chain-wakes too
    }
    let now = monotonic_ns();
    let Some(s) = m.set(set) else { return true };
    s.waits = s.waits.wrapping_add(1);
    let merge =
        s.waits.is_multiple_of(MERGE_EVERY) || now.saturating_sub(s.merged_ns) > MERGE_AFTER_NS;
    if merge {
        s.merged_ns = now;
    }
    merge
}

/// Looks at one ready registration: an event, armed and off the list, or still on it.
fn judge(m: &mut Mirror, at: u32, out: &mut Output) {
    let Some(reg) = m.reg(at).map(|r| *r) else { return };
    if reg.is_disabled || reg.events & (IN_KIND | OUT) == 0 {
        return;
    }
    let Some(conn) = conn::get(reg.conn) else { return };
    if conn.stage() != Stage::Attached || !conn.pin_live(Half::Receive) {
        return;
    }
    let is_edge = reg.events & ET != 0;
    let mut events = 0;
    if reg.events & OUT != 0 && conn.has(flag::WANTS_ROOM) && wait::sender_may_go_on_or_arm(conn) {
        conn.flags.fetch_and(!flag::WANTS_ROOM, Ordering::SeqCst);
        events |= OUT;
    }
    if reg.is_stripped && !conn.has(flag::WANTS_ROOM) {
        m.strip(at, false);
    }
    if reg.events & IN_KIND != 0
        && let Some(cursor) = readiness::readable_or_arm(conn)
    {
        if !(is_edge && reg.reported == cursor) {
            // The carrier is nearly always writable; a full one is the kernel's to report.
            let writable = reg.events & OUT != 0 && !is_edge && readiness::has_room(conn);
            events |= (reg.events & IN_KIND) | if writable { OUT } else { 0 };
            if let Some(reg) = m.reg(at) {
                reg.reported = cursor;
            }
        }
        if !is_edge {
            m.push_ready(at);
        } else {
            readiness::arm(conn);
            if readiness::cursor(conn) != cursor {
                m.push_ready(at);
            }
        }
    }
    if events != 0 {
        out.push(events, reg.data, at);
        if reg.events & ONESHOT != 0 {
            if let Some(reg) = m.reg(at) {
                reg.is_disabled = true;
            }
            disable_in_kernel(m, &reg);
        }
    }
    conn.unpin(Half::Receive);
}

/// The kernel disables a ONESHOT registration when it reports it; one that we reported must be disabled
/// there too.
fn disable_in_kernel(m: &mut Mirror, reg: &Registration) {
    let Some(epfd) = m.set(reg.set).map(|s| s.epfd) else { return };
    let mut interest = epoll_event { events: reg.events & (ET | ONESHOT), u64: reg.data };
    // SAFETY: the event structure is readable.
    let _ =
        unsafe { sys!(libc::SYS_epoll_ctl, epfd, libc::EPOLL_CTL_MOD, reg.fd, &raw mut interest) };
}

/// Fetches kernel events and passes on what is the program's.
///
/// # Safety
/// As for [`wait`].
unsafe fn kernel_events(
    set_fd: c_int,
    set: u32,
    out: &mut Output,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> Result<(), Errno> {
    let mut batch = [epoll_event { events: 0, u64: 0 }; BATCH];
    let want = (out.max - out.used).min(BATCH);
    let sleeper = if timeout_ms == 0 { None } else { Sleeper::new(set) };
    // Looked at again only now: whoever rings from here on finds a sleeper.
    let timeout_ms = if sleeper.as_ref().is_some_and(Sleeper::has_news) { 0 } else { timeout_ms };
    let got = if timeout_ms == 0 && mask.is_null() {
        // SAFETY: the batch is writable for `want` events; does not block.
        unsafe { sys!(libc::SYS_epoll_pwait, set_fd, batch.as_mut_ptr(), want, 0, 0, 8) }
    } else {
        // SAFETY: as above.
        unsafe { host::epoll_pwait(set_fd, batch.as_mut_ptr(), want as c_int, timeout_ms, mask) }
    };
    // Awake before anything is looked at: what this thread finds it need not be rung for.
    if let Some(sleeper) = sleeper {
        sleeper.wake(got.is_ok_and(|n| n > 0));
    }
    let got = got?;
    if got == 0 {
        return Ok(());
    }
    collect_bits();
    with(|m| {
        for event in batch.iter().take(got) {
            translate(m, set, event.events, event.u64, out);
        }
        if out.used < out.max {
            collect(m, set, out);
        }
    });
    Ok(())
}

/// A thread that sleeps on a set, as the bell page and the set know it.
struct Sleeper {
    set: u32,
    bell: Bell,
    since: u64,
}

impl Sleeper {
    fn new(set: u32) -> Option<Self> {
        let bell = process::bell()?;
        bell.fall_asleep();
        with(|m| m.set(set).map(|s| s.sleepers += 1));
        Some(Self { set, bell, since: monotonic_ns() })
    }

    fn has_news(&self) -> bool {
        self.bell.any()
            || with(|m| m.set(self.set).is_some_and(|s| s.ready_first != NONE)) == Some(true)
    }

    fn wake(self, by_event: bool) {
        self.bell.wake_up();
        let slept = monotonic_ns() - self.since;
        with(|m| {
            m.set(self.set).map(|s| {
                s.sleepers = s.sleepers.saturating_sub(1);
                if by_event {
                    s.spin_ns = spin::budget_after_sleep(slept, s.spin_ns);
                }
            })
        });
    }
}

/// One kernel event (X16): passes it on, changed where a bell was taken for data.
fn translate(m: &mut Mirror, set: u32, events: u32, data: u64, out: &mut Output) {
    let mut matches = 0;
    let mut at = m.buckets.get(bucket(set, data)).copied().unwrap_or(NONE);
    while let Some(reg) = m.registrations.get(at as usize).copied() {
        if reg.is_used && reg.set == set && reg.data == data {
            matches += 1;
            let pass = judge_kernel(m, at, &reg, events);
            if pass != 0 {
                out.push(pass, data, at);
            }
        }
        at = reg.next_hash;
    }
    if matches == 0 {
        // Not ours, or just deleted: as the kernel says.
        out.push(events, data, NONE);
    }
}

/// Which bits of a kernel event are for the program.
fn judge_kernel(m: &mut Mirror, at: u32, reg: &Registration, events: u32) -> u32 {
    let Some(conn) = conn::get(reg.conn) else { return events };
    if conn.stage() != Stage::Attached || !conn.pin_live(Half::Receive) {
        return events;
    }
    let mut pass = events;
    if events & OUT != 0 && conn.has(flag::WANTS_ROOM) {
        if wait::sender_may_go_on_or_arm(conn) {
            conn.flags.fetch_and(!flag::WANTS_ROOM, Ordering::SeqCst);
        } else {
            pass &= !OUT;
        }
    }
    let over = ALWAYS | libc::EPOLLRDHUP as u32;
    if events & IN_KIND != 0 && events & over == 0 {
        let truth = readiness::judge(conn, reg.fd);
        if !truth.readable {
            // A bell, the hidden eventfd under this data, or bytes that another thread took meanwhile.
            // Nothing is lost: what comes later makes a new event.
            pass &= !IN_KIND;
        } else if let Some(cursor) = truth.cursor {
            let is_edge = reg.events & ET != 0;
            if let Some(reg) = m.reg(at) {
                if is_edge && reg.reported == cursor && !truth.on_kernel_lane {
                    pass &= !IN_KIND;
                }
                reg.reported = cursor;
            }
            if !is_edge {
                m.push_ready(at);
            }
        }
    }
    conn.unpin(Half::Receive);
    pass & (reg.events | ALWAYS)
}

/// Looks at the bell page for a moment before sleeping. True: look again.
fn spin_on_bell(set: u32) -> bool {
    let Some(bell) = process::bell() else { return false };
    let ceiling = match process::tunables().receive_poll_us() {
        None => SPIN_CEILING_NS,
        Some(us) => u64::from(us) * 1000,
    };
    let budget = with(|m| m.set(set).map_or(0, |s| s.spin_ns)).unwrap_or(0).min(ceiling);
    if budget == 0 || process::usable_cpus() <= 1 {
        // Try again now and then: a busy moment teaches more than an idle hour.
        let retry = with(|m| {
            m.set(set).is_some_and(|s| {
                s.waits = s.waits.wrapping_add(1);
                s.waits.is_multiple_of(16)
            })
        });
        if ceiling != 0 && retry == Some(true) && process::usable_cpus() > 1 {
            with(|m| m.set(set).map(|s| s.spin_ns = ceiling / 4));
        }
        return false;
    }
    let success = spin::shared_pause(budget, || bell.any());
    with(|m| {
        m.set(set).map(|s| {
            s.spin_ns = if success {
                (s.spin_ns * 2).clamp(1000, ceiling.max(1000))
            } else {
                s.spin_ns / 2
            };
            if !success && s.spin_ns < 300 {
                s.spin_ns = 0;
            }
        })
    });
    success
}

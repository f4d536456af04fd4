//! The peer processes of this process: one eventfd or foreign doorbell and one mapped doorbell page
//! for each.
//!
//! Every rendezvous brings duplicates of the other process's eventfd and doorbell page. The table
//! keeps the first of each and counts their users, so that a thousand connections to one process
//! hold one descriptor and one mapping. A process is identified by the kernel's word (pid, user)
//! *and* the nonce that it claims: a pid alone is reused by fork and exec, and a nonce alone could
//! be another process's. The table is private to our process; a fork child inherits a working copy.
//!
//! Slow path only: attach, release, and ringing a sleeper. All functions must be called with
//! signals deferred (a handler that came back here would wait for the interrupted holder).

use core::{
    cell::UnsafeCell,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU32, Ordering, fence},
};

use sdp_shm::doorbell::Doorbell;
use sdp_sys::{
    Errno, Hidden, OwnedFd, doorbell, fd,
    hidden::InUse,
    pid as sys_pid,
    procfs::{self, Kind},
    tls,
};

use crate::{
    identity::PeerSocket,
    party,
    refusal::Refusal,
    rendezvous::PeerInfo,
    segment::{self, Mapped},
    spin::SpinLock,
};

/// Peer processes that one process can know at a time.
pub const MAX_PEERS: usize = 1024;

/// Of them those of other users, and those of any one of these: each may cost a descriptor.
const MAX_STRANGERS: usize = 512;
const MAX_OF_A_STRANGER: usize = 256;
/// Processes with an id here of which a descriptor is kept: of those beyond the id has to do.
const MAX_LIVES: usize = 64;

/// Names an entry of the table. Copies do not count as users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerId {
    index: u16,
    /// Distinguishes successive users of one place.
    generation: u32,
}

impl PeerId {
    /// As one word, which is not 0.
    pub const fn to_word(self) -> u64 {
        1 << 63 | (self.index as u64) << 32 | self.generation as u64
    }

    /// The opposite of [`Self::to_word`]; 0: none.
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self { index: (word >> 32) as u16, generation: word as u32 })
    }
}

/// No process has this id.
const NOBODY: i32 = -1;

/// The identity of a process, by the kernel and by its own word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    pid: i32,
    uid: u32,
    nonce: u64,
    /// The kernel's number of the process, where it gave a descriptor of it and numbers processes; else 0. Ids of
    /// processes in other namespaces are all 0.
    number: u64,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    users: u32,
    generation: u32,
    doorbell: Option<Hidden>,
    /// It is another user's process: signals go to a foreign doorbell.
    is_door: bool,
    page: Option<Mapped>,
    /// The directory of its descriptors.
    files: Option<Hidden>,
    /// A pidfd of it, if it is another user's, has no id here or was met across network namespaces: readable when it
    /// has ended.
    life: Option<Hidden>,
}

impl Entry {
    const EMPTY: Self = Self {
        key: Key { pid: 0, uid: 0, nonce: 0, number: 0 },
        users: 0,
        generation: 0,
        doorbell: None,
        is_door: false,
        page: None,
        files: None,
        life: None,
    };

    /// Its descriptors.
    const fn descriptors(&mut self) -> [&mut Option<Hidden>; 3] {
        [&mut self.doorbell, &mut self.files, &mut self.life]
    }
}

/// A peer's eventfd, or its foreign doorbell for our user; `None` when it is something else.
fn adopt(file: OwnedFd, is_door: bool) -> Option<Hidden> {
    // The meeting has checked a foreign doorbell already.
    let is_good = is_door || procfs::kind(file.raw()) == Ok(Kind::EventFd);
    is_good.then(|| Hidden::new(file, 0).ok())?
}

/// A table was locked once, in this process or before a fork of it: before that, no peer is known.
/// Beside the other words that each fork child reads, not beside the lock, whose page it then need
/// not look at.
#[unsafe(link_section = ".bss.hot")]
static IS_USED: AtomicBool = AtomicBool::new(false);

/// How a process keeps its program off the numbers in its table.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    /// A number is the library's from here on. False: that cannot be had, and it is closed.
    pub hide: fn(i32) -> bool,
    /// It is not any more, if it was: then true, and it is to be closed.
    pub unhide: fn(i32) -> bool,
}

/// Gives up a file that cannot be found any more.
fn give_up(file: Option<Hidden>, numbers: Option<Numbers>) {
    let Some(file) = file else { return };
    match numbers {
        // The program has used the number since.
        Some(numbers) if !(numbers.unhide)(file.raw()) => core::mem::forget(file),
        _ => drop(file),
    }
}

/// The table; one `static` per process.
pub struct PeerTable {
    lock: SpinLock,
    /// Thread that holds the lock across a fork, 0 none: libc runs the program's `pthread_atfork`
    /// handlers meanwhile, which may use connections.
    forking: AtomicU32,
    entries: UnsafeCell<Entries>,
}

struct Entries {
    list: [Entry; MAX_PEERS],
    /// Places below this one have been used.
    high: usize,
    numbers: Option<Numbers>,
}

// SAFETY: `entries` is reached only through a Guard, which holds the lock.
unsafe impl Sync for PeerTable {}

/// The locked table.
pub struct Guard<'a> {
    table: &'a PeerTable,
    /// The thread holds the lock over a fork, and keeps it.
    is_nested: bool,
}

impl Guard<'_> {
    fn entries(&mut self) -> &mut Entries {
        // SAFETY: the lock is held, and `&mut self` makes this the only reference.
        unsafe { &mut *self.table.entries.get() }
    }

    fn entry(&mut self, id: PeerId) -> Option<&mut Entry> {
        let entry = self.entries().list.get_mut(usize::from(id.index))?;
        (entry.users > 0 && entry.generation == id.generation).then_some(entry)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.is_nested {
            self.table.lock.release();
        }
    }
}

impl Default for PeerTable {
    fn default() -> Self {
        Self::new()
    }
}

impl PeerTable {
    /// An empty table.
    pub const fn new() -> Self {
        let list = [const { Entry::EMPTY }; MAX_PEERS];
        Self {
            lock: SpinLock::new(),
            forking: AtomicU32::new(0),
            entries: UnsafeCell::new(Entries { list, high: 0, numbers: None }),
        }
    }

    /// From now on these hooks keep the program from the table's numbers.
    pub fn keep_numbers(&self, numbers: Numbers) {
        self.lock().entries().numbers = Some(numbers);
    }

    /// Locks the table. Its holders are threads of this process that run with signals deferred and
    /// make a few system calls at most, so the wait is short.
    pub fn lock(&self) -> Guard<'_> {
        let forking = self.forking.load(Ordering::Acquire);
        if forking != 0 && forking == tls::thread_id() as u32 {
            return Guard { table: self, is_nested: true };
        }
        self.acquire();
        Guard { table: self, is_nested: false }
    }

    /// Before a fork: takes the lock, so that parent and child both get a whole table. The calling
    /// thread can use the table meanwhile.
    pub fn fork_prepare(&self) {
        if !IS_USED.load(Ordering::Relaxed) && sys_pid::is_single_threaded() {
            return; // nobody can be at it, and its pages stay shared with the child
        }
        self.acquire();
        self.forking.store(tls::thread_id() as u32, Ordering::Release);
    }

    /// After a fork, in the parent and in the child: each gives its own copy of the lock back.
    pub fn forked(&self, in_child: bool) {
        if !IS_USED.load(Ordering::Relaxed) {
            return;
        }
        if self.forking.load(Ordering::Relaxed) == 0 {
            // It was not needed. A thread that a handler of the fork started may have it nevertheless, which
            // does not exist in the child.
            if in_child && self.lock.is_taken() {
                self.lock.release();
            }
            return;
        }
        self.forking.store(0, Ordering::Release);
        self.lock.release();
    }

    fn acquire(&self) {
        if !IS_USED.load(Ordering::Relaxed) {
            IS_USED.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst); // a fork child that sees the lock taken sees this
        }
        self.lock.acquire();
    }

    /// Adds a user of a peer process, which gets an entry if it has none. Descriptors that are not
    /// needed are closed.
    ///
    /// # Errors
    /// [`Refusal::NoMemory`]: the table is full, or the doorbell page cannot be mapped;
    /// [`Refusal::NoDescriptors`]: enough processes of other users are in it, or of this one.
    pub fn attach(&self, mut info: PeerInfo) -> Result<PeerId, Refusal> {
        // Closing is left to the end of `info`, after the lock: the last close of a descriptor from
        // elsewhere may take time.
        let number = info.life.as_ref().and_then(|life| party::number_of(life.raw())).unwrap_or(0);
        let key = Key { pid: info.pid, uid: info.uid, nonce: info.nonce, number };
        // Once per peer, whatever the answer, and not under the lock.
        let process = info.process.take().filter(|_| !self.knows(key));
        let files = process.as_ref().and_then(procfs::descriptors_of);
        let mut guard = self.lock();
        let entries = guard.entries();
        let used = entries.list.get(..entries.high).unwrap_or(&[]);
        let known = used.iter().position(|entry| entry.users > 0 && entry.key == key);
        let doors = |of: fn(u32, u32) -> bool| {
            let is_one =
                |entry: &&Entry| entry.users > 0 && entry.is_door && of(entry.key.uid, key.uid);
            used.iter().filter(is_one).count()
        };
        let is_one_too_many = || {
            doors(|_, _| true) >= MAX_STRANGERS || doors(|one, two| one == two) >= MAX_OF_A_STRANGER
        };
        let lives = used.iter().filter(|entry| entry.users > 0 && entry.life.is_some()).count();
        let keeps_life = info.pid == 0 || lives < MAX_LIVES;
        let index = match known {
            Some(index) => index,
            None if !info.trusted && is_one_too_many() => return Err(Refusal::NoDescriptors),
            None => used
                .iter()
                .position(|entry| entry.users == 0)
                .or((entries.high < MAX_PEERS).then_some(entries.high))
                .ok_or(Refusal::NoMemory)?,
        };
        let entry = entries.list.get_mut(index).ok_or(Refusal::NoMemory)?;
        let lacks_page = entry.users == 0 || entry.page.is_none();
        if lacks_page && let Some(file) = &info.doorbell_page {
            entry.page = Some(segment::map_doorbell_page(file.raw())?);
        }
        let mut fresh = [None; 3];
        if entry.users == 0 || entry.doorbell.is_none() {
            entry.is_door = !info.trusted;
            entry.doorbell =
                info.doorbell.take().and_then(|doorbell| adopt(doorbell, !info.trusted));
            fresh[0] = entry.doorbell.as_ref().map(Hidden::raw);
        }
        if let Some(files) = files
            && let Some(min) = entry.doorbell.as_ref().map(Hidden::raw)
        {
            entry.files = Hidden::new(files, min).ok();
            fresh[1] = entry.files.as_ref().map(Hidden::raw);
        }
        if entry.life.is_none() && keeps_life {
            entry.life = info.life.take().and_then(|life| Hidden::new(life, 0).ok());
            fresh[2] = entry.life.as_ref().map(Hidden::raw);
        }
        entry.key = key;
        entry.users = entry.users.saturating_add(1);
        let id = PeerId { index: index as u16, generation: entry.generation };
        entries.high = entries.high.max(index + 1);
        let numbers = entries.numbers;
        drop(guard);
        // Not under the lock: the number may have named a connection before, which gives its peer
        // up.
        if let Some(numbers) = numbers {
            for fd in fresh.into_iter().flatten().filter(|fd| !(numbers.hide)(*fd)) {
                self.lose(id, fd);
            }
        }
        Ok(id)
    }

    /// A number of an entry is the program's by now.
    fn lose(&self, id: PeerId, fd: i32) {
        let mut guard = self.lock();
        let Some(entry) = guard.entry(id) else { return };
        for file in entry.descriptors() {
            if let Some(lost) = file.take_if(|file| file.raw() == fd) {
                core::mem::forget(lost);
            }
        }
    }

    fn knows(&self, key: Key) -> bool {
        let mut guard = self.lock();
        let entries = guard.entries();
        let used = entries.list.get(..entries.high).unwrap_or(&[]);
        used.iter().any(|entry| entry.users > 0 && entry.key == key)
    }

    /// This process's user has changed: a process that gave its doorbell and page to the former one
    /// gives others to this one, and finds nothing in those. So no process that comes is taken for
    /// one that is known.
    pub fn forget_names(&self) {
        if !IS_USED.load(Ordering::Relaxed) {
            return;
        }
        self.lock().entries().list.iter_mut().for_each(|entry| entry.key.pid = NOBODY);
    }

    /// Adds a user to an entry that has one; `false` for an id out of date.
    pub fn retain(&self, id: PeerId) -> bool {
        self.lock().entry(id).map(|entry| entry.users = entry.users.saturating_add(1)).is_some()
    }

    /// Takes a user away; with the last one the eventfd is closed and the page unmapped.
    ///
    /// # Safety
    /// The user that goes does not use the page's address any more.
    pub unsafe fn release(&self, id: PeerId) {
        let mut guard = self.lock();
        let Some(entry) = guard.entry(id) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        entry.generation = entry.generation.wrapping_add(1);
        let page = entry.page.take();
        let descriptors = entry.descriptors().map(Option::take);
        let numbers = guard.entries().numbers;
        drop(guard);
        descriptors.into_iter().for_each(|descriptor| give_up(descriptor, numbers));
        if let Some(page) = page {
            // SAFETY: its users promised not to use it any more, and the entry no longer names it.
            unsafe { page.unmap() };
        }
    }

    /// Users of an entry, for tools and tests; 0 for an id out of date.
    pub fn users(&self, id: PeerId) -> u32 {
        self.lock().entry(id).map_or(0, |entry| entry.users)
    }

    /// The peer's doorbell page, of [`segment::DOORBELL_PAGE_BYTES`]; valid while the caller is a
    /// user. Its content is shared with other processes of the same user.
    pub fn doorbell_page(&self, id: PeerId) -> Option<NonNull<u8>> {
        self.lock().entry(id)?.page.as_ref().map(Mapped::base)
    }

    /// The peer's eventfd number, if it granted one. Prefer [`PeerTable::ring`].
    pub fn doorbell(&self, id: PeerId) -> Option<i32> {
        self.lock().entry(id)?.doorbell.as_ref().map(Hidden::raw)
    }

    /// Rings a peer process. `false`: it has no doorbell here (none granted, or the program closed
    /// our number), or a foreign doorbell that is full: ring by the carrier. The caller must be a
    /// user of the entry.
    pub fn ring(&self, id: PeerId) -> bool {
        // Until it is written to, another thread that gives the number to the program waits.
        let _in_use = InUse::begin();
        let mut guard = self.lock();
        let Some(entry) = guard.entry(id) else { return false };
        // A number that is not ours any more must not get our eight bytes. A vfork child has closed
        // its own numbers, not ours.
        if entry.doorbell.as_ref().is_some_and(|doorbell| !doorbell.is_ours()) {
            if !sdp_sys::pid::may_be_borrowed() {
                let lost = entry.doorbell.take();
                let numbers = guard.entries().numbers;
                if let (Some(lost), Some(numbers)) = (lost, numbers) {
                    (numbers.unhide)(lost.raw());
                }
            }
            return false;
        }
        let Some(doorbell) = entry.doorbell.as_ref().map(Hidden::raw) else { return false };
        if entry.is_door {
            if let Some(page) = &entry.page {
                // SAFETY: of this size, and mapped: the caller is a user.
                unsafe { Doorbell::new(page.base()) }.count_ring();
            }
            drop(guard);
            return doorbell::ring(doorbell);
        }
        drop(guard);
        // Full: it is readable as it is.
        matches!(sdp_sys::fd::ring(doorbell), Ok(8) | Err(Errno::EAGAIN))
    }

    /// The number `from` is about to be the program's: the table's descriptor there moves to
    /// another number above it, or is closed. The number itself stays open.
    pub fn move_off(&self, from: i32) {
        let mut guard = self.lock();
        let entries = guard.entries();
        let numbers = entries.numbers;
        let used = entries.list.get_mut(..entries.high).unwrap_or(&mut []);
        let found = used.iter_mut().enumerate().find_map(|(index, entry)| {
            let generation = entry.generation;
            let mut files = entry.descriptors().into_iter();
            let file = files.find(|file| file.as_ref().is_some_and(|file| file.raw() == from))?;
            Some((PeerId { index: index as u16, generation }, file))
        });
        let Some((id, file)) = found else { return };
        let fresh = file.as_mut().and_then(|file| file.renumber(from + 1).ok());
        if fresh.is_none() {
            core::mem::forget(file.take());
        }
        drop(guard);
        if let (Some(fresh), Some(numbers)) = (fresh, numbers)
            && !(numbers.hide)(fresh)
        {
            self.lose(id, fresh);
        }
    }

    /// Whether a number is one of the table's.
    pub fn has_number(&self, fd: i32) -> bool {
        let mut guard = self.lock();
        let entries = guard.entries();
        let used = entries.list.get(..entries.high).unwrap_or(&[]);
        let mut files =
            used.iter().flat_map(|entry| [&entry.doorbell, &entry.files, &entry.life]).flatten();
        files.any(|file| file.raw() == fd)
    }

    /// Whether this process can ask which descriptors a peer process holds.
    pub fn can_tell(&self, id: PeerId) -> bool {
        self.lock().entry(id).is_some_and(|entry| entry.files.is_some())
    }

    /// Whether a peer process, if it is of our user, could end or stop this one: it is in our namespace of processes.
    pub fn is_near(&self, id: PeerId) -> bool {
        let mut guard = self.lock();
        let files = guard.entry(id).and_then(|entry| entry.files.as_ref());
        files.is_some_and(|files| files.is_ours() && procfs::is_in_our_namespace(files.raw()))
    }

    /// Whether a peer process has not begun to end, by the kernel's word; costs one `fstat` of the
    /// directory of its descriptors. An exiting process has given up its descriptors before the
    /// first of them is closed for good, so the answer is right for a caller that has seen the end
    /// of its last connection. True for a process about which nothing can be asked.
    pub fn lives(&self, id: PeerId) -> bool {
        let mut guard = self.lock();
        let Some(entry) = guard.entry(id) else { return false };
        // Its size is how many there are (since 6.2); one of a process that has been reaped has no answer.
        entry.files.as_ref().is_none_or(|files| files.stat().is_some_and(|stat| stat.size != 0))
    }

    /// Whether a peer process has ended, by the descriptor that its meeting brought; in whatever
    /// namespace it is. `None`: there is none. `within_ms`: how long it may take, for a process that
    /// is being torn down.
    pub fn has_ended(&self, id: PeerId, within_ms: u32) -> Option<bool> {
        let _in_use = InUse::begin();
        let life = self.lock().entry(id)?.life.as_ref().filter(|life| life.is_ours())?.raw();
        Some(sys_pid::ends_within(life, within_ms))
    }

    /// Its descriptor `number`, by the descriptor of the process that its meeting brought, if we may have it. `None`:
    /// there is none.
    pub fn descriptor_of(&self, id: PeerId, number: u32) -> Option<Result<OwnedFd, Errno>> {
        let _in_use = InUse::begin();
        let life = self.lock().entry(id)?.life.as_ref().filter(|life| life.is_ours())?.raw();
        Some(sys_pid::descriptor_in(life, number))
    }

    /// Whether a peer process holds that socket as its descriptor `number`, by the kernel's word, and the socket is of
    /// the user that the process had when it was met.
    pub fn holds(&self, id: PeerId, number: u32, socket: &PeerSocket) -> bool {
        let mut guard = self.lock();
        let Some(entry) = guard.entry(id).filter(|entry| entry.key.uid == socket.uid) else {
            return false;
        };
        let Some(files) = entry.files.as_ref().map(Hidden::raw) else { return false };
        // Nothing is written there, so that it need not be known what else it is: to deceive this,
        // the program would have to put a directory of its own at the number unseen, with a link of
        // that name in it with a content that only the kernel makes.
        fd::is_path(files) && procfs::held_by(files, number) == Ok(Kind::Socket(socket.inode))
    }

    /// Calls `f` with every eventfd number in the table. `f` must not use the table.
    pub fn for_each_descriptor(&self, mut f: impl FnMut(i32)) {
        let mut guard = self.lock();
        for entry in &guard.entries().list {
            let files = [&entry.doorbell, &entry.files, &entry.life];
            files.into_iter().flatten().for_each(|file| f(file.raw()));
        }
    }
}

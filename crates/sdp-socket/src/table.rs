//! The descriptor table: what each number is to us, and keeping what it names alive.
//!
//! Private to the process, copied by fork. One word per descriptor, zero for everything that is not
//! ours, read without a lock by every hook. Connections live in a fixed arena that is never unmapped,
//! so a stale index is harmless: a call first *pins* the connection's half, then looks at the table
//! word again; a close first clears the word, then looks at the pins. One of the two sees the other.

use core::{
    mem::size_of,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

use crate::{
    conn::{self, Conn, Half, flag},
    hot,
};

/// Descriptors at and above this number are never ours.
pub(crate) const DESCRIPTORS: usize = 1 << 20;

/// Places of the first descriptors.
static NEAR: &[AtomicU32; hot::DESCRIPTORS] = &hot::PAGE.table;
/// Places of all others, as an array of [`DESCRIPTORS`] whose first ones are not used: made when the first of
/// them is, then never unmapped.
static FAR: &AtomicPtr<AtomicU32> = &hot::PAGE.far_table;

const KIND_SHIFT: u32 = 28;
const KIND_CONN: u32 = 1;
const KIND_SET: u32 = 2;
const KIND_HIDDEN: u32 = 3;

/// What a descriptor is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A stream socket, by index in the connection arena.
    Conn(u32),
    /// An epoll set, by index in the set arena.
    Set(u32),
    /// One of our own, which the program must not see.
    Hidden,
}

impl Entry {
    fn encode(self) -> u32 {
        match self {
            Self::Conn(index) => KIND_CONN << KIND_SHIFT | index,
            Self::Set(index) => KIND_SET << KIND_SHIFT | index,
            Self::Hidden => KIND_HIDDEN << KIND_SHIFT,
        }
    }

    fn decode(word: u32) -> Option<Self> {
        let index = word & ((1 << KIND_SHIFT) - 1);
        match word >> KIND_SHIFT {
            KIND_CONN => Some(Self::Conn(index)),
            KIND_SET => Some(Self::Set(index)),
            KIND_HIDDEN => Some(Self::Hidden),
            _ => None,
        }
    }
}

#[inline(always)]
fn word(fd: i32) -> Option<&'static AtomicU32> {
    NEAR.get(fd as usize).or_else(|| far(fd))
}

#[inline(never)]
fn far(fd: i32) -> Option<&'static AtomicU32> {
    far_here(fd)
}

/// [`far`] without a call, for which a hook would have to save what its caller gave it.
#[inline(always)]
fn far_here(fd: i32) -> Option<&'static AtomicU32> {
    let base = FAR.load(Ordering::Acquire);
    if base.is_null() || fd as usize >= DESCRIPTORS {
        return None; // negative numbers are the highest
    }
    // SAFETY: a mapping of DESCRIPTORS zero words that is never unmapped; the number was checked.
    Some(unsafe { &*base.add(fd as usize) })
}

/// [`word`], for something that shall stand there. `None`: the number is out of reach, or there is no memory.
fn place(fd: i32) -> Option<&'static AtomicU32> {
    if let Some(word) = word(fd) {
        return Some(word);
    }
    if fd as usize >= DESCRIPTORS {
        return None;
    }
    let bytes = DESCRIPTORS * size_of::<AtomicU32>();
    let fresh = crate::process::map_private(bytes)?;
    let made = FAR.compare_exchange(
        null_mut(),
        fresh.as_ptr().cast(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    if made.is_err() {
        crate::process::unmap(fresh, bytes);
    }
    far(fd)
}

/// Whether the descriptor is more than a pass-through.
#[inline(always)]
pub(crate) fn is_tracked(fd: i32) -> bool {
    // Relaxed: a program that uses a descriptor got its number by some synchronisation of its own.
    let word = NEAR.get(fd as usize).or_else(|| far_here(fd));
    word.is_some_and(|w| w.load(Ordering::Relaxed) != 0)
}

/// What the descriptor is to us.
#[inline]
pub(crate) fn entry(fd: i32) -> Option<Entry> {
    Entry::decode(word(fd)?.load(Ordering::Acquire))
}

/// Makes `fd` name `entry` (or nothing); what it named before.
pub(crate) fn replace(fd: i32, entry: Option<Entry>) -> Option<Entry> {
    let word = if entry.is_some() { place(fd)? } else { word(fd)? };
    Entry::decode(word.swap(entry.map_or(0, Entry::encode), Ordering::SeqCst))
}

/// Highest descriptor that can be ours, for walks over the table.
pub(crate) fn walk(mut each: impl FnMut(i32, Entry)) {
    let top = crate::process::highest_descriptor();
    for fd in 0..=top {
        let Some(word) = word(fd) else { break }; // the far ones are not there yet
        if let Some(entry) = Entry::decode(word.load(Ordering::Acquire)) {
            each(fd, entry);
        }
    }
}

/// A descriptor that names the connection now. Walks the table when the number that it was made with
/// is gone: for rare uses.
pub(crate) fn number_of(conn: &Conn) -> Option<i32> {
    let wanted = Some(Entry::Conn(conn.index()));
    let hint = conn.fd.load(Ordering::Relaxed);
    if entry(hint) == wanted {
        return Some(hint);
    }
    if let Some(kept) = conn.kept() {
        return Some(kept);
    }
    let mut found = None;
    walk(|fd, entry| {
        if Some(entry) == wanted {
            found = Some(fd);
        }
    });
    found.or_else(|| conn.has(flag::CLOSING).then(|| conn.fd.load(Ordering::Relaxed)))
}

/// A connection in use by the calling thread: it is not freed, nor its segment unmapped, while this
/// lives. Not held across anything that may cancel the thread except in [`crate::wait`], which says
/// why that is harmless.
pub(crate) struct Pinned {
    conn: &'static Conn,
    fd: i32,
    entry: u32,
    half: Half,
}

impl Pinned {
    /// Pins the connection that `fd` names, for a call on `half`.
    #[inline]
    pub(crate) fn new(fd: i32, half: Half) -> Option<Self> {
        let word = word(fd)?;
        let entry = word.load(Ordering::Acquire);
        let Some(Entry::Conn(index)) = Entry::decode(entry) else { return None };
        let conn = conn::get(index)?;
        conn.pin(half);
        // Pairs with `replace` and the look at the pins in `Conn::unreferenced`.
        if word.load(Ordering::SeqCst) == entry {
            Some(Self { conn, fd, entry, half })
        } else {
            conn.unpin(half);
            None
        }
    }

    /// The connection.
    #[inline]
    pub(crate) fn conn(&self) -> &'static Conn {
        self.conn
    }

    /// The half that the call is on.
    #[inline]
    pub(crate) fn half(&self) -> Half {
        self.half
    }

    /// The descriptor that the call was made on; when that was closed meanwhile, the one that was kept for
    /// the call, −1 without one: the number is somebody else's by now. Good for one system call: under the
    /// half's lock the number stays what it is.
    #[inline]
    pub(crate) fn fd(&self) -> i32 {
        self.open_fd().unwrap_or(-1)
    }

    /// [`Pinned::fd`], if it names the connection.
    #[inline]
    pub(crate) fn open_fd(&self) -> Option<i32> {
        if self.is_current() { Some(self.fd) } else { self.conn.kept() }
    }

    /// Whether the descriptor still names the connection: to be asked after every sleep, before the
    /// number is used again.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        word(self.fd).is_some_and(|w| w.load(Ordering::SeqCst) == self.entry)
    }
}

impl core::ops::Deref for Pinned {
    type Target = Conn;
    #[inline]
    fn deref(&self) -> &Conn {
        self.conn
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        self.conn.unpin(self.half);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Stage;

    /// Who closes the last number of a connection may have to ask the kernel about it, in a dead relative's place.
    #[test]
    fn a_number_that_is_being_closed_still_leads_to_the_carrier() {
        let (_, conn) = conn::create(Stage::Kernel).unwrap();
        let unused = 1_000_000;
        conn.fd.store(unused, Ordering::Relaxed);
        assert_eq!(number_of(conn), None);
        conn.set(flag::CLOSING);
        assert_eq!(number_of(conn), Some(unused));
    }
}

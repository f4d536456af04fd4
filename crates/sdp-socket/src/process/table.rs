//! The descriptor table: the library's meaning of each number.
//!
//! Private to the process, copied by fork. One word per descriptor, zero for everything that is not
//! ours, read without a lock by every hook. Connections live in a fixed arena that is never
//! unmapped, so a stale index is harmless: a call first *acquires* the connection's half, then
//! looks at the table word again; a close first clears the word, then looks at the users. One of
//! the two sees the other.

use core::{
    mem::size_of,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use sdp_sys::time::monotonic_ns;

use crate::process::fork_page;

/// Descriptors at and above this number are never ours.
pub(crate) const DESCRIPTORS: usize = 1 << 20;

/// Places of the first descriptors.
static NEAR: &[AtomicU32; fork_page::DESCRIPTORS] = &fork_page::FORK_PAGE.table;
/// Places of all others, as an array of [`DESCRIPTORS`] whose first ones are not used: made when the first of
/// them is, then never unmapped.
static FAR: &AtomicPtr<AtomicU32> = &fork_page::FORK_PAGE.far_table;

/// Near places in which something stood once, a bit each, never cleared: a walk looks at those alone. A fork walks
/// several times, and most hidden descriptors are at the far end.
static USED: &[AtomicU64; fork_page::DESCRIPTORS / BITS] = &fork_page::FORK_PAGE.used;
/// Places of a word of [`USED`].
const BITS: usize = u64::BITS as usize;

const KIND_SHIFT: u32 = 28;
const KIND_CONN: u32 = 1;
const KIND_SET: u32 = 2;
const KIND_HIDDEN: u32 = 3;
/// Named a connection whose close is in progress: names nothing, but is not the kernel's yet.
const CLOSING: u32 = 4 << KIND_SHIFT;
/// How long a call waits for another thread that is in the middle of a close, and how long each
/// short sleep is.
const CLOSE_TIMEOUT_NS: u64 = 50_000_000;
const CLOSE_SLEEP_NS: i64 = 100_000;
/// Whether [`CLOSING`] stands anywhere, perhaps: since the last fork it has.
#[unsafe(link_section = ".bss.hot")]
static HAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The library's meaning of a descriptor.
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

    pub(crate) fn decode(word: u32) -> Option<Self> {
        let index = word & ((1 << KIND_SHIFT) - 1);
        match word >> KIND_SHIFT {
            KIND_CONN => Some(Self::Conn(index)),
            KIND_SET => Some(Self::Set(index)),
            KIND_HIDDEN => Some(Self::Hidden),
            _ => None,
        }
    }
}

/// The word of a number: the entry that it names, zero for none.
#[inline(always)]
pub(crate) fn word(fd: i32) -> Option<&'static AtomicU32> {
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
    crate::process::Fresh::private(bytes)?.publish(FAR);
    far(fd)
}

/// Whether the descriptor is more than a pass-through.
#[inline(always)]
pub(crate) fn is_tracked(fd: i32) -> bool {
    // Relaxed: a program that uses a descriptor got its number by some synchronisation of its own.
    let word = NEAR.get(fd as usize).or_else(|| far_here(fd));
    word.is_some_and(|w| w.load(Ordering::Relaxed) != 0)
}

/// The entry of a descriptor.
#[inline]
pub(crate) fn entry(fd: i32) -> Option<Entry> {
    Entry::decode(word(fd)?.load(Ordering::Acquire))
}

/// There is no place for the number: it is out of reach, or there is no memory. It stays a stranger's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoPlace;

/// Makes `fd` name `entry`; returns the entry before.
#[unsafe(link_section = ".text.open")]
pub(crate) fn put(fd: i32, entry: Entry) -> Result<Option<Entry>, NoPlace> {
    let word = place(fd).ok_or(NoPlace)?;
    note_used(fd);
    Ok(Entry::decode(word.swap(entry.encode(), Ordering::SeqCst)))
}

/// Makes `fd` name nothing; returns the entry before.
pub(crate) fn clear(fd: i32) -> Option<Entry> {
    Entry::decode(word(fd)?.swap(0, Ordering::SeqCst))
}

/// As [`clear`], until [`end_close`]: calls of other threads on the number, which still leads to
/// the carrier, wait for that ([`await_close`]). Bytes that they sent would go behind the end that
/// the peer has seen.
#[inline(never)]
pub(crate) fn begin_close(fd: i32) -> Option<Entry> {
    if !HAS_CLOSED.load(Ordering::Relaxed) {
        HAS_CLOSED.store(true, Ordering::SeqCst);
    }
    Entry::decode(word(fd)?.swap(CLOSING, Ordering::SeqCst))
}

/// The kernel has closed the number; it may name something new by now.
#[inline(always)]
pub(crate) fn end_close(fd: i32) {
    if let Some(word) = word(fd)
        && word.load(Ordering::Relaxed) == CLOSING
        && crate::process::is_ours()
    {
        let _ = word.compare_exchange(CLOSING, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Before a call on a number that names nothing is passed on.
#[inline]
pub(crate) fn await_close(fd: i32) {
    if word(fd).is_some_and(|word| word.load(Ordering::Relaxed) == CLOSING) {
        await_close_here(fd);
    }
}

/// Bounded: the thread that closes may be this one, interrupted by a handler, or have been cancelled.
#[cold]
fn await_close_here(fd: i32) {
    let until = monotonic_ns().saturating_add(CLOSE_TIMEOUT_NS);
    while monotonic_ns() < until {
        sdp_sys::time::sleep(CLOSE_SLEEP_NS);
        if word(fd).is_none_or(|word| word.load(Ordering::Acquire) != CLOSING) {
            return;
        }
    }
    end_close(fd);
}

/// In a fork child: no thread goes on with closes that other threads of the parent were in the
/// middle of.
#[inline(always)]
pub(crate) fn forget_closes() {
    // Read first: a page that is not written is not copied for the child.
    if HAS_CLOSED.load(Ordering::SeqCst) {
        forget_closes_here();
    }
}

#[cold]
#[inline(never)]
fn forget_closes_here() {
    HAS_CLOSED.store(false, Ordering::SeqCst);
    (0..=crate::process::highest_descriptor()).for_each(end_close);
}

/// Makes `fd` name nothing if it hides something of ours. False: it does not, the program has used the number since.
pub(crate) fn unhide(fd: i32) -> bool {
    let hidden = Entry::Hidden.encode();
    word(fd).is_some_and(|word| {
        word.compare_exchange(hidden, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })
}

/// Something is about to stand in the place of `fd`: walks that shall see it look there.
#[inline(always)]
fn note_used(fd: i32) {
    let bit = 1 << (fd as usize % BITS);
    if let Some(used) = USED.get(fd as usize / BITS)
        && used.load(Ordering::SeqCst) & bit == 0
    {
        used.fetch_or(bit, Ordering::SeqCst);
    }
}

/// Everything that stands in the table, in the order of the numbers. In line, because a fork child's
/// exit runs it, whose code lies together.
#[inline(always)]
pub(crate) fn walk(mut each: impl FnMut(i32, Entry)) {
    let mut next = 0;
    while let Some((fd, entry)) = first_from(next) {
        each(fd, entry);
        next = fd + 1;
    }
}

/// The first descriptor from `fd` on that has an entry, and the entry.
#[unsafe(link_section = ".text.hot")]
fn first_from(fd: i32) -> Option<(i32, Entry)> {
    let mut next = fd as usize;
    while let Some(used) = USED.get(next / BITS) {
        let ahead = used.load(Ordering::SeqCst) >> (next % BITS);
        if ahead == 0 {
            next = (next / BITS + 1) * BITS;
            continue;
        }
        next += ahead.trailing_zeros() as usize;
        if let Some(entry) = Entry::decode(NEAR.get(next)?.load(Ordering::Acquire)) {
            return Some((next as i32, entry));
        }
        next += 1;
    }
    let top = crate::process::highest_descriptor();
    (next as i32..=top).find_map(|fd| Some((fd, entry(fd)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_walk_meets_what_stands_there_in_order() {
        // Numbers and entries that no other test of this process uses.
        let ours = [201, 202, 254, 255, 256, 257, 4000].map(|fd| (fd, Entry::Set(fd as u32)));
        let walked = || {
            let mut walked = Vec::new();
            walk(|fd, entry| walked.push((fd, entry)));
            walked.retain(|(_, entry)| ours.iter().any(|(_, own)| own == entry));
            walked
        };
        assert!(walked().is_empty());
        for (fd, entry) in ours {
            crate::process::note_descriptor(fd);
            assert_eq!(put(fd, entry), Ok(None));
        }
        assert_eq!(walked(), ours);
        for (fd, entry) in ours {
            assert_eq!(clear(fd), Some(entry));
        }
        assert!(walked().is_empty());
    }

    #[test]
    fn a_walk_may_change_what_it_meets() {
        let ours = [211, 212, 5000];
        for fd in ours {
            crate::process::note_descriptor(fd);
            assert_eq!(put(fd, Entry::Set(fd as u32)), Ok(None));
        }
        walk(|fd, entry| {
            if ours.contains(&fd) && entry == Entry::Set(fd as u32) {
                clear(fd);
            }
        });
        assert!(ours.iter().all(|fd| !is_tracked(*fd)));
    }
}

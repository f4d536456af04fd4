//! From a descriptor to its connection and back: the guard that a call holds, and a connection's
//! numbers.
//!
//! Called by every room above. A call that has a [`ConnGuard`] may use the connection until it
//! drops it: a call first *acquires* the connection's half, then looks at the table word again; a
//! close first clears the word, then looks at the users. One of the two sees the other.

use core::sync::atomic::Ordering;

use libc::c_int;

use crate::{
    conn::{self, Conn, Half, Origin},
    process::table::{Entry, entry, walk, word},
};

/// A descriptor that names the connection's carrier now. Walks the table when the number that it
/// was made with is gone: for rare uses.
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
    found.or_else(|| conn.closing())
}

/// In a vfork child: whether a number of the table, which is the parent's, still names the
/// connection here. Of one without a name, which has no lanes, that is taken for granted.
pub(crate) fn is_named(conn: &Conn, fd: c_int) -> bool {
    !conn.has(Origin::Named) || conn.name(fd).is_some_and(|name| name.is_of(fd))
}

/// A connection in use by the calling thread: it is not freed, nor its segment unmapped, while this
/// lives. Not held across anything that may cancel the thread except in [`crate::datapath::wait`],
/// which says why that is harmless.
pub(crate) struct ConnGuard {
    conn: &'static Conn,
    fd: i32,
    entry: u32,
    half: Half,
}

impl ConnGuard {
    /// Acquires the connection that `fd` names, for a call on `half`.
    #[inline]
    pub(crate) fn new(fd: i32, half: Half) -> Option<Self> {
        let word = word(fd)?;
        let entry = word.load(Ordering::Acquire);
        let Some(Entry::Conn(index)) = Entry::decode(entry) else { return None };
        let conn = conn::get(index)?;
        conn.acquire(half);
        // Pairs with `clear`, `put` and the look at the users in `Conn::unreferenced`.
        if word.load(Ordering::SeqCst) == entry {
            Some(Self { conn, fd, entry, half })
        } else {
            conn.release(half);
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

    /// The descriptor that the call was made on; when that was closed meanwhile, the one that was
    /// kept for the call, −1 without one: the number names something else by now. Good for one
    /// system call: under the half's lock the number stays what it is.
    #[inline]
    pub(crate) fn fd(&self) -> i32 {
        self.open_fd().unwrap_or(-1)
    }

    /// [`ConnGuard::fd`], if it names the connection.
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

impl core::ops::Deref for ConnGuard {
    type Target = Conn;
    #[inline]
    fn deref(&self) -> &Conn {
        self.conn
    }
}

impl Drop for ConnGuard {
    #[inline]
    fn drop(&mut self) {
        self.conn.release(self.half);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Stage;

    /// A thread that closes the last number of a connection may have to ask the kernel about it, in
    /// a dead family member's place.
    #[test]
    fn a_number_that_is_being_closed_still_leads_to_the_carrier() {
        let (_, conn) = conn::create(Stage::Kernel).unwrap();
        let unused = 1_000_000;
        assert_eq!(number_of(conn), None);
        assert!(conn.note_closing(unused));
        assert_eq!(number_of(conn), Some(unused));
        assert!(!conn.note_closing(unused + 1), "another thread closes another number");
        conn.forget_closing();
        assert_eq!(number_of(conn), None);
    }
}

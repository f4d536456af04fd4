//! Which other processes may have a connection's socket open, by the kernel's word: asked before a
//! connection may earn lanes.
//!
//! Called by [`crate::migration::promote`]. Family memory's word on family members:
//! [`crate::conn::sharing`].

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_sys::{
    fd,
    holders::{Held, Search},
};

use crate::{
    conn::{Conn, RowFlag},
    migration::arrived::ANYBODY,
    process::{
        self, socket_tags,
        table::{self, Entry},
    },
};

/// Whether a process has no descriptor of the connection.
#[cold]
pub(crate) fn has_let_go(fd: c_int, pid: i32) -> bool {
    fd::inode(fd).is_ok_and(|inode| Search::new(inode).process(pid) == Held::No)
}

/// Whether a process outside the family may still use a connection: an ancestor of the process, or
/// the process that passed it on; for one that a family member took out of the family's sight, any
/// process. Asked when the connection has earned a meeting.
#[cold]
pub(crate) fn is_held_outside(conn: &Conn, fd: c_int) -> bool {
    let (Ok(inode), Some(row)) = (fd::inode(fd), conn.row()) else { return true };
    // Asked also where all processes are: a descriptor on its way in a message is in no process's
    // table.
    if socket_tags::is_announced(fd) {
        return true;
    }
    let mut search = Search::new(inode);
    // By a number that is not in the table: it came more than once, or lies beyond the range that
    // is searched.
    if search.here(|number| table::entry(number) == Some(Entry::Conn(conn.index()))) != Held::No {
        return true;
    }
    // Cleared first: a family member that leaves from now on sets it again, and the thread that
    // attaches looks again.
    let flags = row.flags.remove(RowFlag::OutOfSight, Ordering::SeqCst);
    if flags.has(RowFlag::OutOfSight) {
        let is_held = search.everybody() != Held::No;
        if is_held {
            row.flags.insert(RowFlag::OutOfSight, Ordering::SeqCst);
        }
        return is_held;
    }
    if search.ancestors() != Held::No {
        return true;
    }
    let giver = conn.giver.load(Ordering::Relaxed);
    giver != 0
        && giver != ANYBODY
        && giver != process::pid()
        && search.process(giver as i32) != Held::No
}

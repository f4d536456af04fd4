//! New images: which connections they are meant to get, and how those leave their lanes before.
//!
//! Called by `api` around `execve`.
//!
//! A new image may be one without the library, so the connections that it gets have to be on the
//! kernel lane, with all unread bytes. Descriptors that merely leak into a helper are left alone,
//! or every `system("true")` would demote a server's clients. The program's calls show which
//! descriptors are meant for an image: the standard ones, those whose FD_CLOEXEC was cleared, and
//! those that a child duplicated.
//!
//! A child of `vfork` executes on its parent's memory, with descriptors of its own, and the table
//! never records its changes to them. The connections that it prepares for its image leave their
//! lanes there and then ([`crate::migration::incompatible`]).

use libc::c_int;
use sdp_stats::Reason;
use sdp_sys::{fd, section};

use crate::{
    conn::{Conn, ConnGuard, Half, Holders, Stage, publish, sharing},
    hosts,
    lifecycle::{self, adopt, inherit},
    migration::{
        handover::{self, NextReader},
        incompatible::{self, Incompatible},
        promote,
    },
    process::{
        self, page,
        table::{self, Entry},
    },
};

/// The program took FD_CLOEXEC off a number. A call that sets it concerns no other number of the
/// connection.
pub(crate) fn inheritable(fd: c_int) {
    if !process::is_ours() {
        incompatible::fall_back(fd, Incompatible::ForImage(fd));
        return;
    }
    let _section = section::Guard::enter();
    if let Some(conn) = ConnGuard::new(fd, Half::Receive) {
        conn.set(Holders::ForImages);
    }
}

/// Before exec: connections that the new image is to have leave their lanes.
pub(crate) fn executing() {
    if process::is_retired() || process::family().is_none() && page::current().is_none() {
        return;
    }
    if !process::is_ours() {
        return executing_beside_parent();
    }
    let _section = section::Guard::enter();
    page::executing();
    // The new image knows nothing of it, and the peers would go on believing that a process keeps
    // their half.
    crate::conn::pool::clear();
    ask_first(is_inherited_on_purpose);
    let mut grace_ns = 0;
    table::walk(|fd, entry| {
        if let Entry::Conn(index) = entry {
            crate::conn::get(index).into_iter().for_each(promote::withdraw);
        }
        if let Some(conn) = held(fd, entry)
            && (fd < adopt::LOOKED_AT || has_lanes(&conn))
        {
            if !fd::stays_open(fd) && hosts::is_guarded_at_its_end(&conn) {
                grace_ns = hosts::closed_by_exec(&conn, fd).max(grace_ns);
                return;
            }
            if !fd::stays_open(fd) {
                return lifecycle::leaves_by_exec(&conn);
            }
            if !is_inherited_on_purpose(&conn, fd) {
                return;
            }
            if has_lanes(&conn) {
                handover::leave_to(&conn, fd, Reason::Exec, NextReader::Image(fd));
            }
            // Another connection may be in its place.
            if table::entry(fd) == Some(entry) {
                publish::tag_for_next_owner(&conn, fd);
            }
        }
    });
    if grace_ns != 0 {
        hosts::keep(grace_ns, &|| inherit::is_any_under_way(|fd| !fd::stays_open(fd)));
    }
    // The new image may pass the connections that it keeps on to children of its own, which could
    // not be found.
    let mut keeps_any = false;
    table::walk(|fd, entry| keeps_any |= matches!(entry, Entry::Conn(_)) && fd::stays_open(fd));
    if let Some((family, slot)) = process::family() {
        family.executing(slot, keeps_any);
    }
}

/// In a vfork child: the connections that the parent meant for images before.
fn executing_beside_parent() {
    table::walk(|fd, entry| {
        if let Entry::Conn(index) = entry
            && crate::conn::get(index).is_some_and(|conn| is_meant_for_images(conn, fd))
            && fd::stays_open(fd)
        {
            incompatible::fall_back(fd, Incompatible::ForImage(fd));
        }
    });
}

/// Before `posix_spawn`: libc makes its child, which no hook sees. False: the child would have a
/// connection whose unread bytes it would miss.
pub(crate) fn spawning() -> bool {
    if process::is_retired() || !process::is_ours() {
        return true;
    }
    let mut is_whole = true;
    let _section = section::Guard::enter();
    ask_first(is_meant_for_images);
    table::walk(|fd, entry| {
        if let Some(conn) = held(fd, entry)
            && has_lanes(&conn)
            && is_meant_for_images(&conn, fd)
            && fd::stays_open(fd)
        {
            // The number is this process's, too, which goes on with it.
            is_whole &= handover::leave_to(&conn, fd, Reason::Exec, NextReader::Stranger);
            if table::entry(fd) == Some(entry) {
                publish::tag_for_next_owner(&conn, fd);
            }
        }
    });
    is_whole
}

/// Of those that `goes` names and an image gets: other hosts are asked all at once, and then waited for in turn.
fn ask_first(goes: impl Fn(&Conn, c_int) -> bool) {
    hosts::ask_all(|conn, fd| fd::stays_open(fd) && goes(conn, fd));
}

/// The connection of an entry of the table.
fn held(fd: c_int, entry: Entry) -> Option<ConnGuard> {
    matches!(entry, Entry::Conn(_))
        .then(|| ConnGuard::new(fd, Half::Receive))?
        .filter(|conn| !matches!(conn.stage(), Stage::Fresh | Stage::Listener))
}

fn has_lanes(conn: &Conn) -> bool {
    matches!(conn.stage(), Stage::Attached | Stage::Meeting | Stage::Remote | Stage::Guarded)
}

/// The program's calls on it show that.
fn is_meant_for_images(conn: &Conn, fd: i32) -> bool {
    (0..=2).contains(&fd) || conn.has(Holders::ForImages)
}

/// In a process that forked: not descriptors that it inherited and left as they were.
fn is_inherited_on_purpose(conn: &Conn, fd: i32) -> bool {
    if hosts::is_copy(conn) {
        return is_meant_for_images(conn, fd);
    }
    process::forks() == 0
        || is_meant_for_images(conn, fd)
        || conn.is_used_by_several()
        || !sharing::is_used_by_another(conn)
}

//! New images: which connections they are meant to get, and how those leave their lanes before.
//!
//! A new image may be one without the library, so what it gets has to be on the kernel lane, with all that is
//! unread. Descriptors that merely leak into a helper are left alone, or every `system("true")` would demote
//! a server's clients. What is meant for an image shows in the descriptor: it is one of the standard ones, the
//! program took FD_CLOEXEC off it, or a child made it so when it was a child already.
//!
//! A child of `vfork` executes on its parent's memory, with descriptors of its own: what it puts onto other
//! numbers the table never learns. Nothing of the parent's is changed there but the lanes of what the image gets.

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_stats::Reason;
use sdp_sys::{
    OwnedFd,
    errno::Errno,
    fd,
    procfs::{self, Kind},
    section, sys,
};

use crate::{
    adopt,
    conn::{self, Conn, Half, Stage, flag},
    demote,
    handover::{self, Heir},
    page, process, splice,
    table::{self, Entry, Pinned},
};

/// The program said whether images are to get a number (FD_CLOEXEC taken off, or set).
pub(crate) fn inheritable(fd: c_int, yes: bool) {
    let _section = section::Guard::enter();
    if process::is_ours()
        && let Some(conn) = Pinned::new(fd, Half::Receive)
    {
        if yes {
            conn.set(flag::FOR_IMAGES);
        } else {
            conn.flags.fetch_and(!flag::FOR_IMAGES, Ordering::SeqCst);
        }
    }
}

/// Before exec: connections that the new image is to have leave their lanes. `may_start`: whether it looks as if
/// the image could be started.
pub(crate) fn executing(may_start: &dyn Fn() -> bool) {
    if process::is_retired() || process::family().is_none() && page::current().is_none() {
        return;
    }
    let _section = section::Guard::enter();
    let heir = Heir::Image { may_start };
    if !process::is_ours() {
        return executing_beside_parent(heir);
    }
    page::executing();
    // The new image knows nothing of it, and the peers would go on believing that somebody keeps their half.
    crate::pooled::clear();
    push_all(heir, |fd| stays_open(fd) && is_inherited_on_purpose(fd));
    // What the new image keeps it may pass on to children of its own, whom nobody could find.
    let mut keeps_any = false;
    table::walk(|fd, entry| keeps_any |= matches!(entry, Entry::Conn(_)) && stays_open(fd));
    if let Some((family, slot)) = process::family() {
        family.executing(slot, keeps_any);
    }
}

/// Before `posix_spawn`: its child is libc's, and does what no hook sees.
pub(crate) fn spawning() {
    if process::is_retired() || !process::is_ours() {
        return;
    }
    let _section = section::Guard::enter();
    push_all(Heir::Stranger, |fd| {
        table::conn(fd).is_some_and(|conn| conn.has(flag::FOR_IMAGES)) && stays_open(fd)
    });
}

/// Hands over every connection that the process holds and `wanted` names.
fn push_all(heir: Heir<'_>, mut wanted: impl FnMut(i32) -> bool) {
    table::walk(|fd, entry| {
        if matches!(entry, Entry::Conn(_))
            && let Some(conn) = Pinned::new(fd, Half::Receive)
            && !matches!(conn.stage(), Stage::Fresh | Stage::Listener)
            && (fd < adopt::LOOKED_AT || matches!(conn.stage(), Stage::Attached | Stage::Meeting))
            && wanted(fd)
        {
            if matches!(conn.stage(), Stage::Attached | Stage::Meeting) {
                handover::leave_to(&conn, fd, Reason::Exec, heir);
            }
            // Another connection may be in its place.
            if table::entry(fd) == Some(entry) {
                process::tell_heirs(&conn, fd);
            }
        }
    });
}

/// A vfork child is about to execute something.
fn executing_beside_parent(heir: Heir<'_>) {
    let mut parent = Parent(None);
    table::walk(|number, entry| {
        if let Entry::Conn(index) = entry
            && let Some(conn) = conn::get(index)
            && matches!(conn.stage(), Stage::Young | Stage::Meeting | Stage::Attached)
            && let Some(pinned) = Pinned::new(number, Half::Receive)
            && let Some(number) = number_for_image(&pinned, number, &mut parent)
        {
            handover::leave_to(&pinned, number, Reason::Exec, heir);
        }
    });
}

/// The number by which a vfork child gives a connection to its image, which its parent has as `number`. In the child
/// that may name anything.
fn number_for_image(conn: &Pinned, number: c_int, parent: &mut Parent) -> Option<c_int> {
    let stays = stays_open(number);
    // It was handed over when the child put it onto another number. What could not be put back waits here.
    let waits = || {
        conn.has(flag::PINNED) && conn.stage() == Stage::Attached && splice::has_ring_bytes(conn)
    };
    if !stays && !waits() {
        return None;
    }
    let Some(files) = parent.files() else {
        return (stays && conn.has(flag::FOR_IMAGES) && is_named(conn, number)).then_some(number);
    };
    let Ok(Kind::Socket(inode)) = procfs::held_by(files.raw(), number as u32) else { return None };
    if stays && fd::inode(number) == Ok(inode) {
        let closes = || procfs::closes_at_exec(files.raw(), number as u32) == Ok(true);
        if conn.has(flag::FOR_IMAGES) || closes() {
            return Some(number);
        }
    }
    if !waits() {
        return None;
    }
    let mut found = None;
    each_for_image(inode, |other| {
        if found.is_none() && is_left(Some(files), other) == Some(false) {
            found = Some(other);
        }
    });
    found
}

/// In a vfork child: whether a number of the table, which is the parent's, is the same socket here.
pub(crate) fn is_as_in_parent(conn: &Conn, number: c_int) -> bool {
    let Some(files) = parent_files() else { return is_named(conn, number) };
    let Ok(inode) = fd::inode(number) else { return false };
    procfs::held_by(files.raw(), number as u32) == Ok(Kind::Socket(inode))
}

/// Whether a number has the connection's addresses.
fn is_named(conn: &Conn, number: c_int) -> bool {
    conn.name(number).is_some_and(|name| name.is_of(number))
}

/// What the parent has open, looked up when it is asked for.
struct Parent(Option<Option<OwnedFd>>);

impl Parent {
    fn files(&mut self) -> Option<&OwnedFd> {
        self.0.get_or_insert_with(parent_files).as_ref()
    }
}

/// The numbers of a socket that a new image of the process gets, as far as anybody would look for connections.
pub(crate) fn each_for_image(inode: u64, mut each: impl FnMut(c_int)) {
    let top = process::highest_descriptor().max(adopt::LOOKED_AT - 1);
    for number in 0..=top {
        if stays_open(number) && fd::inode(number) == Ok(inode) {
            each(number);
        }
    }
}

/// Whether a new image will have the descriptor.
fn stays_open(fd: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFD) }
        .is_ok_and(|flags| flags as i32 & libc::FD_CLOEXEC == 0)
}

/// In a process that forked: not what it got and left as it was.
fn is_inherited_on_purpose(fd: i32) -> bool {
    if process::forks() == 0 || (0..=2).contains(&fd) {
        return true;
    }
    table::conn(fd).is_some_and(|conn| {
        conn.has(flag::FOR_IMAGES)
            || conn.is_used_by_several()
            || !demote::is_used_by_another(conn)
            || conn.stage() == Stage::Attached && is_left(parent_files().as_ref(), fd) != Some(true)
    })
}

/// Whether a child made this number for its new image: the parent goes on with the connection, and has no such
/// number to give away, or would not. False where that cannot be found out.
pub(crate) fn is_made_for_image(conn: &Conn, fd: c_int) -> bool {
    stays_open(fd)
        && (conn.has(flag::FOR_IMAGES) || is_left(parent_files().as_ref(), fd) == Some(false))
}

/// What the parent has open. `None`: it has ended, or cannot be looked at.
fn parent_files() -> Option<OwnedFd> {
    let parent = process::forked_from();
    // SAFETY: no arguments.
    if parent == 0 || unsafe { sys!(libc::SYS_getppid) } != Ok(parent as usize) {
        return None;
    }
    // SAFETY: no pointers.
    let parent = unsafe { sys!(libc::SYS_pidfd_open, parent, 0) }.ok()?;
    procfs::descriptors_of(&OwnedFd::new(parent as i32))
}

/// Whether a number is the same socket in the parent, and open to whatever that executes: nobody meant it for the
/// images of the child in particular.
fn is_left(parent: Option<&OwnedFd>, fd: c_int) -> Option<bool> {
    let (parent, number) = (parent?.raw(), u32::try_from(fd).ok()?);
    let inode = fd::inode(fd).ok()?;
    match procfs::held_by(parent, number) {
        Ok(Kind::Socket(same)) if same == inode => {
            procfs::closes_at_exec(parent, number).ok().map(|closes| !closes)
        }
        Ok(_) | Err(Errno::ENOENT) => Some(false),
        Err(_) => None,
    }
}

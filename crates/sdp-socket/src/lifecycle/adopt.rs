//! Connections that another process began, and that came to this one by exec or SCM_RIGHTS (R3).
//!
//! Called by `api` when descriptors arrive, and by [`super::exec`] and [`super::inherit`].
//!
//! No segment travels. Such a connection starts over: on the kernel lane, counted; once it has
//! earned an SDP lane here, and no other process has its socket open, it meets the other end
//! afresh. On a standard descriptor it stays on the kernel lane, because stdio and shells use those
//! numbers without asking; a program that moves it to another number (sshd does) frees it.

use core::sync::atomic::{Ordering, fence};

use libc::c_int;
use sdp_sys::{
    fd, section,
    stat::{self, Identity},
    unix,
};

use crate::{
    conn::{Conn, ConnGuard, Flags, Half, Holders, Mask, Origin, RowFlag, Stage, address, publish},
    lifecycle,
    process::{
        self, log,
        socket_tags::{self, Whose},
        table::{self},
    },
};

/// Descriptors that are looked at when the process begins: the standard ones and some behind them.
pub(crate) const LOOKED_AT: c_int = 67;

/// When the process begins: connections that it has from the image before (inetd, sshd, a shell, a
/// service manager), or that leaked. Following those that the program never uses costs nothing.
/// Most programs have three numbers open, and each exec pays for this: one system call finds the
/// open numbers, and each of those costs one.
pub(crate) fn begin() {
    let mut adopted: [Option<Identity>; LOOKED_AT as usize] = [None; LOOKED_AT as usize];
    let are_open = fd::which_are_open::<{ LOOKED_AT as usize }>();
    for fd in 0..LOOKED_AT {
        let is_open = are_open.is_none_or(|open| open.get(fd as usize) == Some(&true));
        if !is_open || fd > 2 && table::entry(fd).is_some() {
            continue;
        }
        let Ok(stat) = stat::stat(fd) else { continue };
        if fd == 2 {
            log::remember_stderr(stat.id);
        }
        if !stat.is_socket() {
            continue;
        }
        if let Some(first) = adopted.iter().position(|known| *known == Some(stat.id)) {
            lifecycle::duplicated(first as c_int, fd);
        } else if adopt(fd, 0)
            && let Some(place) = adopted.get_mut(fd as usize)
        {
            *place = Some(stat.id);
        }
    }
}

/// A number that arrived with SCM_RIGHTS over the Unix socket `through`.
pub(crate) fn received(through: c_int, fd: c_int) {
    process::forget(fd);
    crate::migration::unseen::received(fd);
    let giver = unix::peer_credentials(through).map_or(0, |peer| peer.pid);
    if adopt(fd, giver)
        && giver <= 0
        && let Some(conn) = ConnGuard::new(fd, Half::Receive)
    {
        conn.set(Holders::Uncertain); // out of another process namespace: it cannot be looked at
    }
}

/// Follows a connection that another process began. `giver`: a process that may still have it open;
/// 0: only ancestors may. False when `fd` is no connected TCP socket.
fn adopt(fd: c_int, giver: i32) -> bool {
    if process::is_retired()
        || !process::is_ours()
        || fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP)
    {
        return false;
    }
    if address::remote_address(fd).is_none() {
        return false; // a listener, or not connected yet
    }
    let _section = section::Guard::enter();
    let family = if is_v6(fd) { Origin::V6.flags() } else { Flags::NONE };
    let flags = Holders::Adopted.with(family);
    let Some(conn) = lifecycle::install(fd, Stage::Kernel, flags) else { return false };
    conn.giver.store(giver.max(0) as u32, Ordering::Relaxed);
    true
}

/// This process passes a connection on, and it or its family members may go on using it: this tells
/// the process that gets it, and the family members.
pub(crate) fn passed_on(conn: &Conn, fd: c_int) {
    conn.set(Holders::Passed);
    if let Some(row) = conn.row() {
        row.flags.insert(RowFlag::OutOfSight, Ordering::SeqCst);
    }
    // Pairs with the fence in `inherit::prepare_connections`: a fork sees the flag, or we see the fork.
    fence(Ordering::SeqCst);
    let is_shared = match (conn.row_index(), process::family()) {
        (Some(row), Some((family, slot))) => {
            !process::forks().is_multiple_of(2)
                || conn.has(Holders::Uncertain)
                || family.is_held_by_others(slot, row)
        }
        _ => process::has_family(),
    };
    socket_tags::announce(fd, if is_shared { Whose::OpenSocket } else { Whose::Process });
    publish::tag_for_next_owner(conn, fd);
}

/// Before a fork of a process that has passed the connection on: its child holds it too, for longer
/// perhaps than this process.
pub(crate) fn before_fork(conn: &Conn, fd: c_int) {
    if conn.has(Holders::Passed) {
        socket_tags::announce(fd, Whose::OpenSocket);
    }
}

fn is_v6(fd: c_int) -> bool {
    fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6)
}

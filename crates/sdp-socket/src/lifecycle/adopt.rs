//! Connections that somebody else began, and that came to this process by exec or SCM_RIGHTS (R3).
//!
//! No segment travels. Such a connection starts over: on the kernel lane, counted, and once it has earned
//! it here, and nobody else has its socket open, it meets the other end afresh. On a standard descriptor
//! it stays on the kernel lane, because stdio and shells use those numbers without asking; a program that
//! moves it to another number (sshd does) frees it.

use core::sync::atomic::{Ordering, fence};

use libc::c_int;
use sdp_config::{Family, Role};
use sdp_stats::Reason;
use sdp_sys::{
    fd,
    holders::{Held, Search},
    section,
    stat::{self, Identity},
    unix,
};

use crate::{
    conn::{Conn, Half, Pinned, Stage, address, flag, publish, row_flag},
    lifecycle,
    process::{
        self, log,
        marks::{self, Whose},
        page, settings,
        table::{self, Entry},
    },
};

/// [`Conn::giver`] of a connection that processes out of sight may hold.
const ANYBODY: u32 = u32::MAX;
/// Calls between two looks whether an adopted connection has left the standard descriptors.
const LOOK_EVERY: u32 = 16;
/// Refusals after which the distance between two looks does not grow any more.
const REFUSALS_MAX: u32 = 9;
/// Descriptors that are looked at when the process begins: the standard ones and some behind them.
pub(crate) const LOOKED_AT: c_int = 67;

/// When the process begins: connections that it was given by the image before (inetd, sshd, a shell, a
/// service manager), or that leaked. Following those that nobody uses costs nothing. Most programs have three numbers
/// open, and each exec pays for this: one system call tells which are, and each of those costs one.
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
    lifecycle::forget(fd);
    crate::migration::unseen::received(fd);
    let giver = unix::peer_credentials(through).map_or(0, |peer| peer.pid);
    if adopt(fd, giver)
        && giver <= 0
        && let Some(conn) = Pinned::new(fd, Half::Receive)
    {
        conn.set(flag::UNCERTAIN); // out of another process namespace: it cannot be looked at
    }
}

/// Follows a connection that somebody else began. `giver`: a process that may still have it open; 0:
/// only ancestors may. False when `fd` is no connected TCP socket.
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
    let flags = flag::ADOPTED | if is_v6(fd) { flag::V6 } else { 0 };
    let Some(conn) = lifecycle::install(fd, Stage::Kernel, flags) else { return false };
    conn.giver.store(giver.max(0) as u32, Ordering::Relaxed);
    true
}

/// This process passes a connection on and may go on using it, or its relatives may: who gets it is told,
/// and relatives are.
pub(crate) fn passed_on(conn: &Conn, fd: c_int) {
    conn.set(flag::PASSED);
    if let Some(row) = conn.row() {
        row.flags.fetch_or(row_flag::OUT_OF_SIGHT, Ordering::SeqCst);
    }
    // Pairs with the fence in `inherit::prepare_connections`: a fork sees the flag, or we see the fork.
    fence(Ordering::SeqCst);
    let is_shared = match (conn.row_index(), process::family()) {
        (Some(row), Some((family, slot))) => {
            !process::forks().is_multiple_of(2)
                || conn.has(flag::UNCERTAIN)
                || family.is_held_by_others(slot, row)
        }
        _ => process::has_relatives(),
    };
    marks::announce(fd, if is_shared { Whose::OpenSocket } else { Whose::Process });
    publish::tell_heirs(conn, fd);
}

/// Before a fork of a process that has passed the connection on: its child holds it too, for longer
/// perhaps than this process.
pub(crate) fn before_fork(conn: &Conn, fd: c_int) {
    if conn.has(flag::PASSED) {
        marks::announce(fd, Whose::OpenSocket);
    }
}

/// Who began it is not known: a rule for either side keeps it on TCP.
fn is_tcp_by_rule(fd: c_int) -> bool {
    [(Role::Client, address::remote_address(fd)), (Role::Server, address::local_address(fd))]
        .into_iter()
        .any(|(role, end)| {
            end.is_none_or(|(address, port)| settings::family(role, address, port) == Family::Tcp)
        })
}

fn is_v6(fd: c_int) -> bool {
    fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6)
}

/// The first call on an adopted connection. Counted as an end by whoever saw it begin, or else here.
pub(crate) fn see_first(conn: &Conn, fd: c_int) {
    process::start();
    publish::ensure_row(conn);
    if conn.flags.fetch_or(flag::SEEN, Ordering::SeqCst) & flag::SEEN != 0 {
        return;
    }
    page::hand_in();
    let reason = if is_on_standard(conn) { Reason::StandardDescriptor } else { Reason::Inherited };
    publish::count_heir(conn, fd, conn.pin_reason().unwrap_or(reason));
    reconsider(conn, fd);
}

/// After a call on an adopted connection that is on the kernel lane: lets it begin to earn better as
/// soon as no standard descriptor names it.
#[cold]
pub(crate) fn after_call(conn: &Conn, fd: c_int) {
    let tick = conn.ticks.fetch_add(1, Ordering::Relaxed);
    // After each refusal four times as long: whoever else has it open is dear to find out.
    let failed = conn.refusals.load(Ordering::Relaxed).min(REFUSALS_MAX);
    if tick.is_multiple_of(LOOK_EVERY << (2 * failed)) && (tick != 0 || failed == 0) {
        reconsider(conn, fd);
    }
}

/// Whether a process has no descriptor of the connection.
#[cold]
pub(crate) fn has_let_go(fd: c_int, pid: i32) -> bool {
    fd::inode(fd).is_ok_and(|inode| Search::new(inode).process(pid) == Held::No)
}

/// The process leaves its trust domain, with its family memory, while the connection is not on a lane: in
/// the next family it is a connection that came from elsewhere and that any old relative may hold.
pub(crate) fn start_over(conn: &Conn, fd: c_int) {
    publish::tell_heirs(conn, fd);
    conn.set_row(None);
    conn.giver.store(ANYBODY, Ordering::Relaxed);
    conn.set(flag::ADOPTED);
}

fn reconsider(conn: &Conn, fd: c_int) {
    if conn.has(flag::PINNED) || is_on_standard(conn) || !process::start() {
        return;
    }
    if conn.row_index().is_none() {
        if is_tcp_by_rule(fd) {
            conn.set(flag::RULE_TCP);
            conn.note_reason(Reason::RuleTcp);
            return conn.pin_to_kernel(Reason::RuleTcp);
        }
        let row = process::family().and_then(|(f, slot)| f.open_row(slot, process::pid()));
        if row.is_none() {
            return conn.pin_to_kernel(Reason::NoMemory);
        }
        conn.set_row(row);
        publish::resume_count(conn, fd);
        if conn.giver.load(Ordering::Relaxed) == ANYBODY
            && let Some(row) = conn.row()
        {
            row.flags.fetch_or(row_flag::OUT_OF_SIGHT, Ordering::SeqCst);
        }
    }
    conn.change_stage(Stage::Kernel, Stage::Young);
}

fn is_on_standard(conn: &Conn) -> bool {
    (0..=2).any(|fd| table::entry(fd) == Some(Entry::Conn(conn.index())))
}

/// Whether somebody outside the family may still use a connection: an ancestor of the process, or who
/// gave it to us; for one that a relative took out of the family's sight, anybody. Asked when the
/// connection has earned a meeting.
#[cold]
pub(crate) fn is_held_outside(conn: &Conn, fd: c_int) -> bool {
    let (Ok(inode), Some(row)) = (fd::inode(fd), conn.row()) else { return true };
    // Asked also where everybody is: a descriptor on its way in a message is in nobody's table.
    if marks::is_announced(fd) {
        return true;
    }
    let mut search = Search::new(inode);
    // By a number of which we know nothing: it came more than once, or lies beyond what is looked at.
    if search.here(|number| table::entry(number) == Some(Entry::Conn(conn.index()))) != Held::No {
        return true;
    }
    // Cleared first: a relative that leaves from now on sets it again, and whoever attaches looks again.
    let flags = row.flags.fetch_and(!row_flag::OUT_OF_SIGHT, Ordering::SeqCst);
    if flags & row_flag::OUT_OF_SIGHT != 0 {
        let is_held = search.everybody() != Held::No;
        if is_held {
            row.flags.fetch_or(row_flag::OUT_OF_SIGHT, Ordering::SeqCst);
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

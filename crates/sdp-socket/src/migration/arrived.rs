//! A connection that came from elsewhere, by exec, SCM_RIGHTS or activation: when it may earn lanes here (R3).
//!
//! Called by [`super::promote`], [`super::holders`] and `lifecycle`.
//!
//! Called at its first call, at calls while it is on the kernel lane, and where the process changes its privileges. How
//! it comes to this process: [`crate::lifecycle::adopt`].

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_config::{Family, Role};
use sdp_stats::Reason;

use crate::{
    conn::{Conn, Counted, Holders, Limits, RowFlag, Stage, address, publish},
    process::{
        self, page, settings,
        table::{self, Entry},
    },
};

/// [`Conn::giver`] of a connection that processes out of sight may hold.
pub(super) const ANYBODY: u32 = u32::MAX;

/// Calls between two looks whether an adopted connection has left the standard descriptors.
const LOOK_EVERY: u32 = 16;

/// Refusals after which the distance between two looks does not grow any more.
const REFUSALS_MAX: u32 = 9;

/// It is not known which end began it: a rule for either side keeps it on TCP.
fn is_tcp_by_rule(fd: c_int) -> bool {
    [(Role::Client, address::remote_address(fd)), (Role::Server, address::local_address(fd))]
        .into_iter()
        .any(|(role, end)| {
            end.is_none_or(|(address, port)| settings::family(role, address, port) == Family::Tcp)
        })
}

/// The first call on an adopted connection. The process that saw it begin counts it as an end; if
/// none did, this one does.
pub(crate) fn see_first(conn: &Conn, fd: c_int) {
    process::start();
    publish::ensure_row(conn);
    if conn.flags.insert(Counted::Established, Ordering::SeqCst).has(Counted::Established) {
        return;
    }
    page::hand_in();
    let reason = if is_on_standard(conn) { Reason::StandardDescriptor } else { Reason::Inherited };
    publish::count_next_reader(conn, fd, conn.fallback_reason().unwrap_or(reason));
    reconsider(conn, fd);
}

/// After a call on an adopted connection that is on the kernel lane: lets it begin to earn better as
/// soon as no standard descriptor names it.
#[cold]
pub(crate) fn after_call(conn: &Conn, fd: c_int) {
    let tick = conn.ticks.fetch_add(1, Ordering::Relaxed);
    // After each refusal four times as long: finding out which other process has it open is
    // expensive.
    let failed = conn.refusals.load(Ordering::Relaxed).min(REFUSALS_MAX);
    if tick.is_multiple_of(LOOK_EVERY << (2 * failed)) && (tick != 0 || failed == 0) {
        reconsider(conn, fd);
    }
}

/// The process leaves its trust domain, with its family memory, while the connection is not on a
/// lane: in the next family it is a connection that came from elsewhere and that any old family
/// member may hold.
pub(crate) fn start_over(conn: &Conn, fd: c_int) {
    publish::tag_for_next_owner(conn, fd);
    conn.set_row(None);
    conn.giver.store(ANYBODY, Ordering::Relaxed);
    conn.set(Holders::Adopted);
}

fn reconsider(conn: &Conn, fd: c_int) {
    if conn.has(Limits::Fallback) || is_on_standard(conn) || !process::start() {
        return;
    }
    if conn.row_index().is_none() {
        if is_tcp_by_rule(fd) {
            conn.set(Limits::RuleTcp);
            conn.note_reason(Reason::RuleTcp);
            return conn.fall_back(Reason::RuleTcp);
        }
        let row = process::family().and_then(|(f, slot)| f.open_row(slot, process::pid()));
        if row.is_none() {
            return conn.fall_back(Reason::NoMemory);
        }
        conn.set_row(row);
        publish::resume_count(conn, fd);
        if conn.giver.load(Ordering::Relaxed) == ANYBODY
            && let Some(row) = conn.row()
        {
            row.flags.insert(RowFlag::OutOfSight, Ordering::SeqCst);
        }
    }
    conn.change_stage(Stage::Kernel, Stage::Candidate);
}

fn is_on_standard(conn: &Conn) -> bool {
    (0..=2).any(|fd| table::entry(fd) == Some(Entry::Conn(conn.index())))
}

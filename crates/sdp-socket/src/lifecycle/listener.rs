//! The verdict for a listener's connections: that of the server rules, asked for at `listen` and
//! again when other rules are in force.
//!
//! Called by [`super`]. A connection has the verdict that its listener has when it is accepted, so that a rule
//! file that has changed holds for servers that have listened all along.

use core::sync::atomic::Ordering;

use libc::c_int;
use sdp_config::{Family, Role};

use crate::{
    conn::{Conn, Limits, Stage, address::local_address},
    lifecycle::{explicit, strict},
    process::settings,
};

/// Asks the rules with the socket's local address; answers with that.
pub(crate) fn decide(conn: &Conn, fd: c_int) -> ([u8; 16], u16) {
    // First: rules that come into force meanwhile are asked next time.
    let rules = settings::generation().wrapping_add(1);
    let end = local_address(fd).unwrap_or(([0; 16], 0));
    if conn.historic.is_explicit() {
        strict::explicit_listens();
    }
    let was_judged = conn.rules.swap(rules, Ordering::AcqRel) != 0;
    if explicit::family(conn, Role::Server, end.0, end.1) == Family::Tcp {
        conn.set(Limits::RuleTcp);
        if was_judged {
            strict::unmark(fd);
        }
    } else {
        if was_judged {
            conn.flags.remove(Limits::RuleTcp, Ordering::SeqCst);
        }
        strict::mark(fd);
    }
    end
}

/// Before a connection gets its listener's verdict: looks whether other rules are in force.
#[inline]
pub(crate) fn bring_up_to_date(conn: &Conn, fd: c_int) {
    if conn.stage() == Stage::Listener {
        settings::refresh();
        if conn.rules.load(Ordering::Acquire) != settings::generation().wrapping_add(1) {
            judge_again(conn, fd);
        }
    }
}

#[cold]
fn judge_again(conn: &Conn, fd: c_int) {
    let _section = sdp_sys::section::Guard::enter();
    decide(conn, fd);
}

//! Senders that wait in a set for room. They are looked at now and then, in case their reader is
//! gone.

use crate::{
    conn::{self, Conn, Limits, Waiters, carrier},
    datapath::wait,
    hosts,
    process::table::{self, Entry},
    wake::{
        arming,
        interest::{
            IN_KIND, OUT,
            mirror::{Mirror, NONE, Registration},
        },
    },
};

impl Mirror {
    /// [`Self::recheck_room`], if that has not been done for as long as a sleep would be bounded. Waits that
    /// never sleep, because their time is up at once or other connections always have something, come to
    /// see a reader's death by this alone.
    pub(super) fn recheck_room_in_time(&mut self, set: u32, now: u64) {
        let is_due = self
            .set(set)
            .is_some_and(|s| now.saturating_sub(s.room_checked_ns) >= wait::BOUNDED_SLEEP_NS);
        if is_due {
            if let Some(set) = self.set(set) {
                set.room_checked_ns = now;
            }
            self.recheck_room(set);
        }
    }

    /// Looks again at senders that wait for room. A reader that has gone frees none (O8): this asks
    /// the kernel about it, as the program may have read the end of the stream already.
    pub(super) fn recheck_room(&mut self, set: u32) {
        let mut any = false;
        self.each_member(set, |m, at| {
            let waiter = m
                .reg(at)
                .and_then(|r| Some((conn::get(r.conn)?, r.conn, r.fd)))
                .filter(|(conn, ..)| conn.has(Waiters::WantRoom));
            if let Some((conn, index, fd)) = waiter {
                any = true;
                if note_end(conn, index, fd) {
                    m.grant_room(conn, NONE);
                }
                m.push_ready(at);
            }
        });
        if let Some(set) = self.set(set) {
            set.has_room_waiters = any;
        }
    }
}

/// A sender waits for room: notes if its reader has gone, which frees none. `fd` is the number that it was
/// registered by; the table is walked only where that names something else by now. True: it has gone, and that is
/// news, which the sender must find out about (it asks the reader's kernel).
pub(super) fn note_end(conn: &Conn, index: u32, fd: i32) -> bool {
    // Between hosts the end of the queue pair tells, or time.
    if conn.has(Limits::PeerGone) || hosts::is_guarded(conn) {
        return false;
    }
    let fd =
        if table::entry(fd) == Some(Entry::Conn(index)) { Some(fd) } else { conn::number_of(conn) };
    let is_over = fd.is_some_and(carrier::is_over);
    if is_over {
        conn.set(Limits::PeerGone);
    }
    is_over
}

/// [`OUT`], if a registration that is reported for its bytes wants it and a send would go on: like
/// the kernel, a wait reports all that holds in one event, edge-triggered or not.
pub(super) fn writable_too(conn: &Conn, reg: &Registration) -> u32 {
    if reg.events & OUT == 0 || conn.has(Waiters::WantRoom) {
        return 0;
    }
    let is_writable = match arming::room_in_ring(conn) {
        Some(has_room) => has_room,
        None => {
            table::entry(reg.fd) == Some(Entry::Conn(reg.conn))
                && carrier::readiness(reg.fd, libc::POLLOUT) & libc::POLLOUT != 0
        }
    };
    if is_writable { OUT } else { 0 }
}

/// The events of a registration that the kernel reports, and what holds beside them: room beside
/// the hidden eventfd's event, which says IN alone; bytes in the ring (`unread`: their cursor), of
/// which the kernel does not know.
pub(super) fn all_of(
    m: &mut Mirror,
    at: u32,
    reg: &Registration,
    conn: &Conn,
    pass: u32,
    unread: impl FnOnce() -> Option<u64>,
) -> u32 {
    if pass & IN_KIND != 0 && pass & OUT == 0 {
        return pass | writable_too(conn, reg);
    }
    if pass & OUT != 0
        && pass & IN_KIND == 0
        && reg.events & IN_KIND != 0
        && let Some(cursor) = unread()
    {
        if let Some(reg) = m.reg(at) {
            reg.reported = cursor;
        }
        m.push_ready(at);
        return pass | reg.events & IN_KIND;
    }
    pass
}

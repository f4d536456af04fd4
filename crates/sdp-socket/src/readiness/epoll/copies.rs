//! Events that show the copy of a marked packet as an error ([`crate::migration::across::marks`]).
//!
//! An event does not say whose it is. So only that of a connection with marked sends is changed, by
//! the data under which the set has it, and the error of any other descriptor stays. A registration
//! that the kernel disabled for nothing is enabled again.

use core::sync::atomic::Ordering::Relaxed;

use libc::{c_int, epoll_event};

use super::once::enable_in_kernel;
use crate::{
    migration::across::marks,
    process::table::{self, Entry},
    wake::interest::{
        ALWAYS, ONESHOT, RDHUP,
        mirror::{Mirror, Registration, with},
    },
};

const ERR: u32 = libc::EPOLLERR as u32;

/// Whether these events may show a copy. A connection that has an error of its own has ended, too.
fn may_show(events: u32) -> bool {
    events & (ALWAYS | RDHUP) == ERR && marks::may_be()
}

/// The events of a registration without an error that is a copy.
pub(super) fn without(reg: &Registration, events: u32) -> u32 {
    let is_copy = may_show(events) && marks::was_copy(reg.fd, reg.conn);
    if is_copy { events & !ERR } else { events }
}

/// The events of a wait on a set without those that show a copy alone; how many are left.
#[cold]
pub(crate) fn settle(set_fd: c_int, events: &mut [epoll_event]) -> usize {
    let Some(Entry::Set(set)) = table::entry(set_fd) else { return events.len() };
    let mut left = 0;
    for at in 0..events.len() {
        let Some(mut event) = events.get(at).copied() else { break };
        let data = event.u64;
        if may_show(event.events) {
            let is_all = event.events == ERR;
            if with(|m| is_copy(m, set, data, is_all)) == Some(true) {
                event.events &= !ERR;
            }
        }
        if event.events != 0
            && let Some(to) = events.get_mut(left)
        {
            *to = event;
            left += 1;
        }
    }
    left
}

/// Whether an error under this data is a copy, which is gone now. `is_all`: nothing else was
/// reported with it.
fn is_copy(m: &mut Mirror, set: u32, data: u64, is_all: bool) -> bool {
    let mut is_copy = false;
    let mut at = m.first_like(set, data);
    while let Some(reg) = m.registrations.get(at as usize).copied() {
        if reg.is_used && reg.set == set && reg.data == data && marks::was_copy(reg.fd, reg.conn) {
            is_copy = true;
            if is_all && reg.events & ONESHOT != 0 {
                if let Some(reg) = m.reg(at) {
                    reg.is_disabled = false;
                }
                enable_in_kernel(m, &reg);
            }
        }
        at = reg.next_hash;
    }
    is_copy || is_noted_one(m, set, data)
}

/// The same for a registration that is noted with its connection.
fn is_noted_one(m: &mut Mirror, set: u32, data: u64) -> bool {
    let Some(serial) = m.set(set).filter(|set| set.noted != 0).map(|set| set.serial) else {
        return false;
    };
    let has_it = |conn: &crate::conn::Conn| {
        conn.noted.serial.load(Relaxed) == serial && conn.noted.data.load(Relaxed) == data
    };
    marks::find(has_it)
        .is_some_and(|conn| marks::was_copy(conn.noted.number.load(Relaxed), conn.index()))
}

//! Sets that a fork child has from its parent, which may wait on them, too.

use core::sync::atomic::Ordering;

use crate::{
    conn::{ConnGuard, Half},
    migration::demote,
    wake::interest::{HAS_INHERITED, mirror::with},
};

/// Before a wait on a set.
#[inline]
pub(super) fn share(set: u32) {
    if HAS_INHERITED.load(Ordering::Relaxed) {
        share_now(set);
    }
}

/// A fork child waits on a set that it has from its parent. From here on the kernel may wake either
/// process for the other's doorbell: connections that were in the set then, and that both still
/// have, leave their lanes.
#[cold]
fn share_now(set: u32) {
    let first = with(|m| {
        let is_left = m.each_set().any(|set| set.is_inherited && set.has_lane);
        HAS_INHERITED.store(is_left, Ordering::Relaxed);
        m.set(set).filter(|set| set.is_inherited).map(|set| set.first_member)
    });
    let mut next = first.flatten();
    while let Some(at) = next {
        let reg = with(|m| m.reg(at).filter(|reg| reg.set == set).map(|reg| *reg)).flatten();
        next = reg.map(|reg| reg.next_member);
        // Not under the lock for which all sets wait.
        if let Some(conn) = reg.and_then(|reg| ConnGuard::new(reg.fd, Half::Receive))
            && conn.has_lanes()
        {
            demote::join(&conn, conn.fd());
        }
    }
}

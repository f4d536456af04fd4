//! The objects that the process gives up, and in which order: in a fork child, before a change of
//! privilege, before a filter, and where the program takes the number of a hidden descriptor.
//!
//! Called by [`crate::lifecycle::inherit`] and [`crate::lifecycle::replacing`]. Each room gives up its own; the order
//! stands here. Connections have left their lanes before.

use core::sync::atomic::Ordering;

use sdp_sys::{hidden, pid as sys_pid};

use crate::{
    conn::{self, pool},
    datapath::{reclaim, send},
    hosts,
    process::{
        self, page, scratch, settings,
        table::{self, Entry},
    },
    wake::{doorbell, interest, spin, strangers, wait_set},
};

/// In a fork child, process `pid` (asked for if `None`): objects that belonged to the parent alone
/// are made anew on demand.
pub(crate) fn become_child(pid: Option<i32>) {
    process::begin_anew(pid);
    doorbell::forget_maker();
    spin::forget_threads();
    hidden::forget_users();
    scratch::forget_threads();
    settings::become_child();
    wait_set::drop_all(true);
    reclaim::forget();
    pool::become_child();
    table::forget_closes();
    process::close_inherited();
    doorbell::forget_numbers();
    page::become_borrower();
    strangers::drop_all(true, process::unhide);
    doorbell::unmap_page();
}

/// The parts of the old trust domain that cannot be given up yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StillUsed {
    /// Connections that family members may hold too: they must go on to see that we do.
    pub(crate) held: bool,
    /// Connections whose rows are still in use.
    pub(crate) used: bool,
}

/// Before a change of privilege, after all lanes have been left: doorbell, family and nonce belong
/// to the old trust domain. The next connection makes new ones, under new descriptors. The
/// statistics page stays: only this process and the tools trust it.
pub(crate) fn change_trust(still_used: StillUsed) {
    interest::doorbell_leaves();
    pool::clear();
    doorbell::close_numbers();
    wait_set::drop_all(false);
    strangers::drop_all(false, process::unhide);
    process::peers().forget_names();
    doorbell::zero_page();
    if still_used.held {
        // Our bits stay until the process ends.
        process::set_slot(None);
    } else {
        process::leave_family();
    }
    if let Some(base) = process::take_family() {
        conn::give_up_family(base, !still_used.used && sys_pid::is_single_threaded());
    }
    process::forget_nonce();
    pool::clear(); // of threads that went on meanwhile
    process::forget_start();
}

/// Leaves nothing of ours behind that an unprivileged continuation could use (R1).
pub(crate) fn drop_everything() {
    pool::clear();
    wait_set::drop_all(false);
    doorbell::close_numbers();
    strangers::drop_all(false, process::unhide);
    page::close_number();
    doorbell::zero_page();
    process::leave_family();
    if let Some(base) = process::take_family() {
        conn::give_up_family(base, sys_pid::is_single_threaded());
    }
}

/// Longest wait for other threads to come out of the library (the longest that one of them may be in there waits
/// for a gate), and how often it is looked at.
const OTHERS_NS: u64 = send::GATE_TIMEOUT_NS + 1_000_000_000;

const OTHERS_SLEEP_NS: i64 = 50_000;

/// After [`process::retire`], before the filter: other threads that are in the middle of a call on a connection go on
/// until they sleep, are in the kernel or have left, so that none makes a system call of ours under the filter.
/// Bounded: the caller may itself have interrupted such a call.
pub(crate) fn await_others() {
    if sys_pid::is_single_threaded() {
        return;
    }
    let deadline = sdp_sys::time::monotonic_ns() + OTHERS_NS;
    while conn::is_any_worked_on() && sdp_sys::time::monotonic_ns() < deadline {
        sdp_sys::time::sleep(OTHERS_SLEEP_NS);
    }
    // A thread between its last look whether the process is retired and a sleep, or in a call that
    // concerns no connection, is not counted.
    sdp_sys::threads::await_others(deadline);
}

/// Looks for a socket that another thread has in hand.
const LOSE_TRIES: u32 = 10_000;

/// A hidden descriptor was about to be overwritten by the program: it moves.
pub(crate) fn move_hidden(from: i32) {
    conn::move_kept(from, || process::hidden_duplicate(from));
    let [event, page_file] = doorbell::numbers();
    for cell in [event, page_file, &page::NUMBER] {
        if cell.load(Ordering::Acquire) == from {
            // The number is the program's in a moment: without another one there is none.
            cell.store(process::hidden_duplicate_above(from).unwrap_or(-1), Ordering::SeqCst);
            if core::ptr::eq(cell, event) {
                interest::doorbell_moved(from);
            }
        }
    }
    strangers::lose(from, || process::hidden_duplicate_above(from));
    hosts::move_off(from);
    wait_set::lose(from);
    process::peers().move_off(from);
    // The socket that is asked may be in another thread's hands, for one answer of the kernel.
    for _ in 0..LOSE_TRIES {
        if pool::lose(from) || table::entry(from) != Some(Entry::Hidden) {
            break;
        }
        sdp_sys::time::yield_now();
    }
    table::unhide(from);
    hidden::await_unused();
}

#[cfg(test)]
mod tests {
    use sdp_sys::fd;

    use super::*;

    #[test]
    fn a_hidden_descriptor_that_cannot_move_is_forgotten() {
        // The highest number there is: nothing is above it.
        let last = process::soft_limit() - 1;
        let event = fd::eventfd(libc::EFD_CLOEXEC).unwrap();
        fd::duplicate_to(event, last, libc::O_CLOEXEC).unwrap();
        fd::close(event);
        process::note_descriptor(last);
        assert_eq!(table::put(last, Entry::Hidden), Ok(None));
        doorbell::numbers()[1].store(last, Ordering::Release);
        move_hidden(last);
        // The program's file is there next: nothing of ours may be sent to it.
        assert_eq!(doorbell::numbers()[1].load(Ordering::Acquire), -1);
        assert_eq!(table::entry(last), None);
        fd::close(last);
    }
}

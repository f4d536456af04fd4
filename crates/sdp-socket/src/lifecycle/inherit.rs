//! Processes that come and go: fork, sandboxes, changes of privilege, exit. For exec see [`crate::lifecycle::exec`].
//!
//! Called by `api` around fork and before the process ends.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use sdp_shm::family::Slot;
use sdp_stats::{Reason, Verdict};
use sdp_sys::{section, time::monotonic_ns, tls};

use crate::{
    conn::{
        self, Conn, ConnGuard, Counted, Half, Holders, Mask, RowFlag, Stage, Waiters, carrier,
        publish,
    },
    datapath::{lane::Lane, splice},
    hosts,
    lifecycle::{
        elsewhere,
        trust::{self, StillUsed},
    },
    migration::{
        demote,
        handover::{self, NextReader},
        promote,
    },
    process::{
        self,
        fork_page::FORK_PAGE,
        page,
        table::{self, Entry},
    },
    wake::doorbell,
};

/// The slot reserved for the child, + 1; 0 none. One fork at a time per process: the family's table
/// lock is held from prepare to parent/child.
static RESERVED: &AtomicU32 = &FORK_PAGE.reserved;
/// Whether `fork_prepare` did anything.
static PREPARED: &AtomicU32 = &FORK_PAGE.prepared;

/// Held by the thread that forks, by its id, from prepare to parent/child: forks of several threads
/// come one after the other.
static FORKING: &AtomicU32 = &FORK_PAGE.preparing;
/// Forks within that one: by handlers of `pthread_atfork`. They are not prepared.
static NESTED: &AtomicU32 = &FORK_PAGE.nested;
/// Looks at a meeting that another thread is busy with, each followed by a yield of the processor.
/// Its steps do not block; one that is not over by then is begun anew in the child.
const MEETING_LOOKS: u32 = 10_000;

/// A meeting in progress would go on in two processes. Forks are counted already, so that no other
/// thread takes a step after this. Connections that were passed on get one more holder.
fn prepare_connections() {
    fence(Ordering::SeqCst);
    table::walk(|fd, entry| {
        let Entry::Conn(index) = entry else { return };
        let Some(conn) = conn::get(index) else { return };
        crate::lifecycle::adopt::before_fork(conn, fd);
        if conn.stage() == Stage::Candidate
            && conn.row().and_then(|row| Verdict::at(&row.reason).reason()) == Some(Reason::NotSole)
        {
            // Its holders change now; helpers that execute something release it in a moment.
            conn.ticks.store(promote::SOON, Ordering::Relaxed);
        }
        let is_over = (0..MEETING_LOOKS).any(|_| {
            if conn.stage() != Stage::Meeting {
                return true;
            }
            let is_abandoned = conn.abandon_meeting(Stage::Candidate);
            if is_abandoned {
                conn.ticks.store(promote::SOON, Ordering::Relaxed);
            } else {
                sdp_sys::time::yield_now();
            }
            is_abandoned
        });
        if !is_over {
            // The child may have the descriptor as well that the thread in there receives.
            conn.set(Holders::Uncertain);
        }
    });
}

/// Whether the calling thread is in the middle of a fork that was prepared, as the parent or the child.
pub(crate) fn is_forking() -> bool {
    let forking = FORKING.load(Ordering::Relaxed);
    forking != 0 && forking == tls::thread_id() as u32 && PREPARED.load(Ordering::Relaxed) != 0
}

/// Before `fork`.
pub(crate) fn fork_prepare() {
    if process::is_retired() {
        return;
    }
    if !process::is_ours() {
        return elsewhere::before_fork();
    }
    if is_forking() {
        // No record shows what the inner child holds.
        NESTED.fetch_add(1, Ordering::Relaxed);
        return mark_uncertain();
    }
    if process::are_children_elsewhere() {
        // Locks and slots of family memory name processes by ids, and the child's are of another namespace:
        // it shares none with us.
        leaving(Reason::Namespace, false);
    }
    section::enter();
    let thread = tls::thread_id() as u32;
    sdp_sys::time::back_off_until(|| {
        FORKING.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
    });
    // The other end's answer that came in the meantime would be thrown away.
    table::walk(|fd, entry| {
        if let Entry::Conn(index) = entry
            && conn::get(index).is_some_and(|conn| conn.stage() == Stage::Meeting)
            && let Some(conn) = ConnGuard::new(fd, Half::Receive)
        {
            promote::advance(&conn, fd);
        }
    });
    page::expect_borrowers();
    process::count_fork();
    // Before the locks: a step of a meeting may want them.
    prepare_connections();
    crate::conn::pool::clear();
    hosts::fork_prepare();
    crate::wake::interest::fork_prepare();
    if let Some((family, slot)) = process::family() {
        let child = family.fork(slot, process::pid());
        RESERVED.store(child.map_or(0, |s| s.0 + 1), Ordering::Relaxed);
        PREPARED.store(2, Ordering::Relaxed);
    } else {
        PREPARED.store(1, Ordering::Relaxed);
    }
    process::peers().fork_prepare();
}

/// After `fork` in the parent.
pub(crate) fn fork_parent(child: i32) {
    if sdp_sys::pid::end_borrowed_fork() {
        return;
    }
    if NESTED.load(Ordering::Relaxed) != 0 && is_forking() {
        NESTED.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let prepared = PREPARED.swap(0, Ordering::Relaxed);
    if prepared != 0 {
        process::peers().forked(false);
    }
    match prepared {
        0 => return,
        2 => {
            // The child also has the segments that other threads have put there since the fork was
            // prepared.
            crate::conn::pool::clear();
            if let Some((family, _)) = process::family() {
                let reserved = RESERVED.swap(0, Ordering::Relaxed).checked_sub(1).map(Slot);
                if reserved.is_none() && child > 0 {
                    // The child's holdings are not recorded: nothing that it holds may be promoted.
                    mark_uncertain();
                }
                family.forked(reserved, child);
                if child > 0 && !sdp_sys::pid::is_single_threaded() {
                    wake_sleepers();
                }
            }
        }
        _ => {}
    }
    process::count_fork();
    hosts::fork_parent();
    crate::wake::interest::fork_parent();
    FORKING.store(0, Ordering::Release);
    section::leave();
}

/// Threads that sleep on connections which the child holds too go to sleep anew, as beside a family
/// member that may take their wake-ups ([`wait::sleep_beside_family`]).
fn wake_sleepers() {
    table::walk(|_, entry| {
        if let Entry::Conn(index) = entry
            && conn::get(index).is_some_and(|conn| conn.stage() == Stage::Attached)
        {
            doorbell::signal_self(index);
        }
    });
}

fn mark_uncertain() {
    table::walk(|_, entry| {
        if let Entry::Conn(index) = entry
            && let Some(conn) = conn::get(index)
        {
            conn.set(Holders::Uncertain);
        }
    });
}

/// After `fork` in the child, process `pid`; the kernel is asked if that is `None`.
pub(crate) fn fork_child(pid: Option<i32>) {
    if sdp_sys::pid::end_borrowed_fork() {
        return elsewhere::forked();
    }
    let prepared = PREPARED.swap(0, Ordering::Relaxed);
    if prepared != 0 || !process::is_retired() {
        process::peers().forked(true);
    }
    if process::is_retired() {
        return;
    }
    trust::become_child(pid);
    let is_nested = NESTED.load(Ordering::Relaxed) != 0;
    if is_nested {
        NESTED.store(0, Ordering::Relaxed);
    }
    if prepared == 2
        && let Some((family, _)) = process::family()
    {
        family.look();
        let slot = RESERVED.swap(0, Ordering::Relaxed).checked_sub(1).map(Slot);
        let slot = slot.filter(|_| !is_nested); // that of the child of the fork around it
        if let Some(slot) = slot {
            family.claim(slot, process::pid());
        } else {
            mark_uncertain();
        }
        process::set_slot(slot);
    } else if process::rejoin_family() {
        // A fork without a preparation, or one that ran into the start of the library.
        mark_uncertain();
    }
    table::walk(|_, entry| {
        if let Entry::Conn(index) = entry
            && let Some(conn) = conn::get(index)
        {
            // Rows and doorbells are the parent's; descriptors that the parent opened count for it.
            let parents = (Counted::HasRow | Counted::RowHasEnds | Counted::Here)
                .with(Waiters::PeerHasDoorbell);
            conn.flags.remove(parents, Ordering::SeqCst);
            conn.set_stats_row(sdp_stats::RowId::NONE);
            for half in [Half::Receive, Half::Send] {
                conn.take_unattributed(half);
            }
            conn.forget_threads();
            hosts::fork_child(conn);
            if conn.stage() == Stage::Meeting {
                // The fork did not wait for its end: the copies go, and not a word to the other end.
                conn.try_meeting(sdp_fabric_shm::rendezvous::Rendezvous::abandon_in_child);
                conn.change_stage(Stage::Meeting, Stage::Candidate);
            }
        }
    });
    hosts::forget_device();
    crate::lifecycle::forget_kept();
    if prepared != 0 {
        crate::wake::interest::fork_child();
    }
    if process::are_children_elsewhere() {
        // The library cannot find out what the parent still holds: it has no id here.
        let _ = process::set_children_elsewhere(false);
        mark_uncertain();
    }
    FORKING.store(0, Ordering::Release);
    if prepared != 0 {
        process::count_fork();
        section::leave();
    }
}

/// Before a sandbox (`for_good`, as in [`parting`]) or a change of privilege: the process leaves
/// all lanes. Connections that it has stay on the kernel lane; after a change of privilege it makes
/// family and doorbell anew for later ones.
///
/// The memory shared with the old trust domain is unmapped unless another thread may be in the
/// middle of using it (the process has others, or a handler interrupted a sleeping call), or bytes
/// are unread in a ring that cannot be pushed into the carrier. Then it stays mapped until the
/// connection is closed, family memory until the last such connection is (after a sandbox, which
/// allows no system call of ours, until the process ends); nothing new refers to it.
///
/// True: all that has been done is that the process is retired.
pub(crate) fn leaving(reason: Reason, for_good: bool) -> bool {
    if process::is_retired() || !process::is_ours() {
        return false;
    }
    if process::highest_descriptor() < 0 {
        // Nothing to leave. But its first socket, at which the library makes the objects that it
        // needs, may come after the filter.
        if for_good {
            section::set_deferring(false);
            process::retire();
        }
        return for_good;
    }
    let _section = section::Guard::enter();
    page::leave_host(for_good, publish::take_along);
    if for_good {
        page::expect_borrowers(); // forks go unseen from here on
    }
    let mut still_used = StillUsed { held: false, used: false };
    hosts::ask_all(|_, _| true);
    table::walk(|fd, entry| {
        if matches!(entry, Entry::Conn(_))
            && let Some(conn) = ConnGuard::new(fd, Half::Receive)
        {
            leave_trust(&conn, fd, reason, for_good, &mut still_used);
        }
    });
    if for_good {
        section::set_deferring(false);
        process::retire();
        table::walk(|fd, entry| {
            if matches!(entry, Entry::Conn(_) | Entry::Set(_)) {
                table::clear(fd);
            }
        });
        trust::await_others();
        trust::drop_everything();
    } else {
        trust::change_trust(still_used);
        hosts::doorbells_gone();
    }
    false
}

/// A thread is in the middle of [`parting`].
static PARTING: AtomicBool = AtomicBool::new(false);
/// How long another one waits for it, and how often it looks.
const PARTING_NS: u64 = 10_000_000_000;
const PARTING_SLEEP_NS: i64 = 100_000;

/// Before one table cannot say any more what a number names, because a child gets descriptors of
/// its own, or shares this process's: the process leaves all lanes for good. One thread after the
/// other: each takes copies of the open connections.
pub(crate) fn parting() {
    let end = monotonic_ns().saturating_add(PARTING_NS);
    while PARTING.swap(true, Ordering::Acquire) {
        if monotonic_ns() >= end {
            break; // its thread is gone, by a fork
        }
        sdp_sys::time::sleep(PARTING_SLEEP_NS);
    }
    leaving(Reason::Shared, true);
    PARTING.store(false, Ordering::Release);
}

fn leave_trust(
    conn: &ConnGuard,
    fd: i32,
    reason: Reason,
    for_good: bool,
    still_used: &mut StillUsed,
) {
    still_used.held |= conn.row_index().is_some();
    if reason == Reason::Shared {
        return leave_to_kernel(conn, fd);
    }
    let goes_out_of_sight = || {
        if let Some(row) = conn.row() {
            row.flags.insert(RowFlag::OutOfSight, Ordering::SeqCst);
        }
    };
    if !for_good {
        goes_out_of_sight();
    }
    publish::tag_for_next_owner(conn, fd);
    if !for_good && demote::call_off(conn) {
        conn.note_reason(reason);
        crate::migration::arrived::start_over(conn, fd);
    } else if conn.may_have_lanes() {
        // A process that retires reads on without the library, like a stranger.
        let next = if for_good { NextReader::Stranger } else { NextReader::Ourselves };
        let handed_over = handover::leave_to(conn, fd, reason, next);
        if for_good && !handed_over {
            handover::cut_off(conn, fd, fd);
        }
        // A process that retires asks the kernel alone, which had been asked to hold "writable"
        // back.
        crate::wake::interest::room_granted(conn);
        if conn.stage() == Stage::Attached {
            conn.flags.remove(Waiters::PeerHasDoorbell, Ordering::SeqCst);
            if handed_over && sends_through_kernel(conn) {
                conn.set_stage(Stage::Kernel);
            }
        }
    }
    if for_good {
        goes_out_of_sight(); // not before: a relay takes the place of what is this process's alone
    }
    let gone = sdp_sys::pid::is_single_threaded() && conn.drop_lanes();
    still_used.used |= !gone && conn.row_index().is_some();
}

/// [`leave_trust`] where all that follows is calls past the library, of this process.
fn leave_to_kernel(conn: &ConnGuard, fd: i32) {
    publish::tag_for_next_owner(conn, fd);
    if conn.may_have_lanes() {
        let is_waited_for = conn.users() > 1 || conn.registrations.load(Ordering::SeqCst) != 0;
        let next = if is_waited_for { NextReader::Stranger } else { NextReader::Image(fd) };
        let handed_over = handover::leave_to(conn, fd, Reason::Shared, next);
        crate::wake::interest::room_granted(conn);
        if !handed_over && splice::has_ring_bytes(conn) {
            // Not a clean end where bytes are missing: an error.
            carrier::abort(fd);
        }
    }
}

fn sends_through_kernel(conn: &Conn) -> bool {
    crate::datapath::send::with_source(conn, |source, _, _, _| Ok(source.lane == Lane::Kernel))
        .unwrap_or(false)
}

/// Whether a connection to another host that is about to be closed has something in its carrier, of the numbers of
/// which `are_closed`. The queue pair has ended.
#[cold]
#[inline(never)]
pub(super) fn is_any_under_way(are_closed: fn(i32) -> bool) -> bool {
    let mut is_any = false;
    table::walk(|fd, entry| {
        if matches!(entry, Entry::Conn(_))
            && are_closed(fd)
            && let Some(conn) = ConnGuard::new(fd, Half::Receive)
        {
            is_any |= hosts::is_under_way(&conn, fd);
        }
    });
    is_any
}

/// Before an orderly exit, which closes everything: as before a close, unread wake bytes must not
/// turn the kernel's FIN into a reset (E5), and unread bytes must (R11).
pub(crate) fn exiting() {
    if !process::is_retired() && process::is_ours() {
        crate::process::exit_report::exiting();
    }
    if process::is_retired() || process::family().is_none() || !process::is_ours() {
        return;
    }
    let _section = section::Guard::enter();
    let mut grace_ns = 0;
    table::walk(|fd, entry| {
        if matches!(entry, Entry::Conn(_))
            && let Some(conn) = ConnGuard::new(fd, Half::Receive)
        {
            match conn.stage() {
                // No DisConn: other threads may still send, and the kernel's FIN follows in a moment.
                Stage::Attached => {
                    crate::lifecycle::finish_stream(&conn, fd);
                }
                _ if hosts::is_guarded_at_its_end(&conn) => {
                    grace_ns = hosts::exiting(&conn, fd).max(grace_ns);
                }
                _ => {
                    crate::migration::promote::ended(&conn);
                    crate::migration::promote::withdraw(&conn);
                }
            }
        }
    });
    if grace_ns != 0 {
        hosts::keep(grace_ns, &|| is_any_under_way(|_| true));
    }
    crate::conn::each_kept_number(|conn, fd| {
        if conn.stage() == Stage::Attached {
            crate::lifecycle::finish_stream(conn, fd);
        }
    });
    page::exiting();
    crate::conn::pool::leave();
    process::leave_family();
}

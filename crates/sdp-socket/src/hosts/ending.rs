//! The end of a connection's queue pair, listener and attempts: when the stream leaves the queue pair for good, and when
//! the connection is closed.
//!
//! That takes the device's lock, whose holder may be in the memory allocator. A handler of the program may have
//! interrupted that very allocator, in the thread that has it: it waits for no lock there and frees no memory, but notes
//! what is to be done ([`Pair::later`]). The next slow step does it ([`catch_up`], [`settle`]).

use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use sdp_sys::{fd, section};

use super::{
    Found,
    device::{DeviceLock, device, drain_one, may_be_slow, with_both},
    finish, forked, is_guarded, is_plain, look,
    pair::{self, Pair, Sending},
    places,
};
use crate::{
    conn::{Conn, Half, Limits, Stage, carrier, publish},
    process,
};

/// Between two looks whether the device's lock is free; and how many a handler takes.
const LOCK_SLEEP_NS: i64 = 100_000;
const LOCK_LOOKS: u32 = 100;
/// How often, and how long apart, a close looks whether the device has given back the work in
/// flight.
const FLUSH_LOOKS: u32 = 10;
const FLUSH_SLEEP_NS: i64 = 100_000;
/// How long a close in the middle of a meeting keeps the carrier, beside four round trips, and at most; how long apart it
/// looks.
const GRACE_NS: u64 = 10_000_000;
const GRACE_MOST_NS: u64 = 200_000_000;
const GRACE_SLEEP_NS: u64 = 500_000;
/// Of [`Pair::later`]: nothing more is sent by the queue pair; it ends; so do its halves; so does
/// the connection.
const STOP: u32 = 1;
const CUT: u32 = 2;
const DROP: u32 = 4;
const END: u32 = 8;

/// A connection has ended where its queue pair could not be destroyed, or something is to be done
/// later.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// The device's lock, when others have had it: their steps are short. `None`: not in this handler.
fn lock() -> Option<DeviceLock> {
    let mut looks = 0;
    loop {
        let lock = DeviceLock::take();
        if lock.is_some() {
            return lock;
        }
        looks += 1;
        if looks > LOCK_LOOKS && section::in_handler() {
            return None;
        }
        sdp_sys::time::sleep(LOCK_SLEEP_NS);
    }
}

fn put_off(pair: &Pair, what: u32) {
    pair.later.fetch_or(what, Ordering::AcqRel);
    HAS_ENDED.store(true, Ordering::Release);
}

/// Whether a connection that is about to be closed is guarded. If it has not met, it does not meet
/// any more: behind a request that another thread accepted, the peer would write PROOF to a program
/// that has closed (G10).
#[inline(always)]
pub(crate) fn is_guarded_at_its_end(conn: &Conn) -> bool {
    if conn.stage() == Stage::Remote {
        conn.change_stage(Stage::Remote, Stage::Kernel);
    }
    is_guarded(conn)
}

/// The last descriptor is about to be closed: does the same as a close over TCP.
#[inline(always)]
pub(crate) fn closing(conn: &Conn, fd: c_int) {
    if is_guarded_at_its_end(conn) && close(conn, fd) {
        end_stream(conn, fd);
    }
}

/// The process is about to end, and with it the connection; other threads may still send until then. For how many
/// nanoseconds the carrier is to be kept, which [`keep`] does for all at once.
pub(crate) fn exiting(conn: &Conn, fd: c_int) -> u64 {
    if close(conn, fd) { part(conn, fd) } else { 0 }
}

/// The new image does not get the connection: messages that are not acknowledged go to the kernel,
/// whose close follows. In a fork child that is no use of the connection, which its parent goes on
/// with.
///
/// Returns what [`exiting`] does.
pub(crate) fn closed_by_exec(conn: &Conn, fd: c_int) -> u64 {
    let ends = !forked::closes_for_others(conn, fd) && finish(conn, fd, true);
    if ends { part(conn, fd) } else { 0 }
}

/// Before the kernel's close. False: it is all that is left to be done.
#[cold]
fn close(conn: &Conn, fd: c_int) -> bool {
    if forked::closes_for_others(conn, fd) || is_plain(conn) {
        return false;
    }
    if !finish(conn, fd, true) {
        carrier::reset_on_close(fd);
        return false;
    }
    // With bytes of the program unread TCP answers with a reset.
    if matches!(look(conn), Some(Found::Bytes(_))) {
        carrier::flush(fd);
        carrier::reset_on_close(fd);
        return false;
    }
    !conn.has(Limits::Hostile)
}

/// The end of the stream comes before that of the queue pair, to which the peer would answer on the carrier: the kernel
/// resets a connection whose program has closed when bytes come, and the peer could not read the end.
#[cold]
fn end_stream(conn: &Conn, fd: c_int) {
    if !carrier::will_reset(fd) {
        let _ = fd::shutdown(fd, libc::SHUT_WR);
        look(conn);
        keep(part(conn, fd), &|| is_under_way(conn, fd));
    }
}

/// In the middle of a meeting, or where the queue pair has died by itself, the peer may be about to write a marker, which
/// the kernel of a program that has closed answers with a reset, and throws away what it has not sent (G10). So the queue
/// pair ends first, and the carrier is kept for as long as the news of that takes, or until all is acknowledged. What has
/// come by then is read.
///
/// For how many nanoseconds the carrier is to be kept: 0 elsewhere.
#[cold]
fn part(conn: &Conn, fd: c_int) -> u64 {
    let Some((number, pair)) = pair::of(conn) else { return 0 };
    let may_be_spoken_to = |sending: &mut Sending, _: &mut [u8]| {
        sending.outbound.as_ref().is_some_and(|half| half.may_be_spoken_to(&pair.shared))
    };
    if !is_guarded(conn) || pair.is_copy() || pair.sending(conn, may_be_spoken_to) != Some(true) {
        return 0;
    }
    cut(number, pair);
    (GRACE_NS + 4 * carrier::round_trip_ns(fd)).min(GRACE_MOST_NS)
}

/// Keeps carriers for so many nanoseconds, or until nothing `is_under_way`.
#[cold]
#[inline(never)]
pub(crate) fn keep(grace_ns: u64, is_under_way: &dyn Fn() -> bool) {
    for _ in 0..grace_ns / GRACE_SLEEP_NS {
        if !is_under_way() {
            break;
        }
        sdp_sys::time::sleep(GRACE_SLEEP_NS as i64);
    }
}

/// Reads what has come by the carrier of a connection whose queue pair has ended. Whether the peer's kernel has to
/// acknowledge something.
#[cold]
pub(crate) fn is_under_way(conn: &Conn, fd: c_int) -> bool {
    let has_parted = |pair: &Pair| !pair.shared.has_link() || pair.shared.is_link_dead();
    if !is_guarded(conn) || pair::of(conn).is_none_or(|(_, pair)| !has_parted(pair)) {
        return false;
    }
    look(conn);
    carrier::is_under_way(fd)
}

/// The connection leaves the library: nothing more is sent by its queue pair, and no other one comes. It receives until
/// [`cut`]: a peer that sent before it could know may make no call for long. Slow.
pub(super) fn stop_sending(number: u32, pair: &Pair) {
    match lock() {
        Some(mut lock) => stop(&mut lock, number, pair),
        None => {
            stop_here(pair);
            put_off(pair, STOP);
        }
    }
}

fn stop_here(pair: &Pair) {
    if pair.shared.has_link() {
        pair.shared.link_died();
    }
    pair.attempt_no_more();
}

fn stop(lock: &mut DeviceLock, number: u32, pair: &Pair) {
    for at in places::open_ones() {
        if let Some(device) = device(lock, at) {
            device.host.unlisten(number);
        }
    }
    // SAFETY: the device's lock is the caller's.
    unsafe { pair.attempt() }.meeting.give_up();
    stop_here(pair);
}

/// [`stop_sending`], and the queue pair ends. Messages that have arrived can still be read. Slow.
pub(super) fn cut(number: u32, pair: &Pair) {
    match lock() {
        Some(mut lock) => cut_with(&mut lock, number, pair),
        None => {
            stop_here(pair);
            put_off(pair, CUT);
        }
    }
}

fn cut_with(lock: &mut DeviceLock, number: u32, pair: &Pair) {
    stop(lock, number, pair);
    for at in places::open_ones() {
        if let Some(device) = device(lock, at) {
            device.host.forget(number);
        }
    }
}

/// The device's objects of a connection that is plain are ended, with the messages that no call
/// here reads any more. Slow.
pub(super) fn drop_link(number: u32, pair: &Pair) {
    match lock() {
        Some(mut lock) => drop_with(&mut lock, number, pair),
        None => put_off(pair, DROP),
    }
}

fn drop_with(lock: &mut DeviceLock, number: u32, pair: &Pair) {
    cut_with(lock, number, pair);
    let halves = with_both(pair, |conn, receiving, sending| {
        pair.set_queue(None);
        publish::parted(conn);
        let halves = (receiving.rx.take(), sending.tx.take());
        if let (Some(inbound), Some(outbound)) = (&mut receiving.inbound, &mut sending.outbound) {
            sdp_remote::end(outbound, inbound, &pair.shared);
        }
        Some(halves)
    });
    drop(halves);
}

/// The connection ends: its queue pair, listener and attempts go. Slow.
pub(super) fn end(conn: &Conn, number: u32, pair: &Pair) {
    // With the device's lock we are in a section of our own.
    let may_be_slow = may_be_slow();
    // A queue pair without its number would never be destroyed.
    let lock = lock().filter(|_| !section::in_handler() || pair.is_free());
    let Some(mut lock) = lock else {
        // The slot is not used again before that is done.
        conn.acquire(Half::Send);
        return put_off(pair, END);
    };
    end_with(&mut lock, conn, number, pair);
    // Destroying a queue pair frees memory.
    match may_be_slow {
        true => destroy_ended(&mut lock),
        false => HAS_ENDED.store(true, Ordering::Release),
    }
}

fn end_with(lock: &mut DeviceLock, conn: &Conn, number: u32, pair: &Pair) {
    let halves = pair.retire(conn);
    pair.set_queue(None);
    let Some(halves) = halves else { return pair.abandon() };
    drop(halves);
    for at in places::open_ones() {
        let Some(device) = device(lock, at) else { continue };
        device.host.unlisten(number);
        device.host.forget(number);
    }
    pair.release();
}

/// Queue pairs of connections that have ended are destroyed, once what was under way has come back.
fn destroy_ended(lock: &mut DeviceLock) {
    for at in places::open_ones() {
        let Some(device) = device(lock, at) else { continue };
        for _ in 0..FLUSH_LOOKS {
            drain_one(at);
            if device.host.fabric().bury() {
                break;
            }
            sdp_sys::time::sleep(FLUSH_SLEEP_NS);
        }
    }
}

/// Whether [`catch_up`] has something to do. A load.
#[inline]
pub(super) fn is_due() -> bool {
    HAS_ENDED.load(Ordering::Acquire)
}

/// Does what was put off. Slow.
pub(super) fn catch_up(lock: &mut DeviceLock) {
    if !HAS_ENDED.swap(false, Ordering::AcqRel) {
        return;
    }
    for (number, pair) in pair::all() {
        let what = pair.later.swap(0, Ordering::AcqRel);
        let Some(conn) = pair.conn().filter(|_| what != 0) else { continue };
        if what & END != 0 {
            end_with(lock, conn, number, pair);
            conn.release(Half::Send);
        } else if what & DROP != 0 {
            drop_with(lock, number, pair);
        } else if what & CUT != 0 {
            cut_with(lock, number, pair);
        } else {
            stop(lock, number, pair);
        }
    }
    destroy_ended(lock);
}

/// Behind a close, which may have been the program's last call on a connection: it ended where nothing slow may be done.
/// Slow; a load where there is no connection to another host.
#[inline(always)]
pub(crate) fn settle() {
    if super::IN_USE.load(Ordering::Relaxed) {
        settle_ended();
    }
}

#[cold]
fn settle_ended() {
    // Not in a child on its parent's memory.
    if is_due()
        && may_be_slow()
        && process::is_ours()
        && let Some(mut lock) = lock()
    {
        catch_up(&mut lock);
    }
}

/// In a fork child, of each place: it does nothing that the parent has put off. True: the place is
/// of a connection that has ended.
pub(super) fn forget_later(pair: &Pair) -> bool {
    if pair.later.swap(0, Ordering::Relaxed) & END == 0 {
        return false;
    }
    if let Some(conn) = pair.conn() {
        // Its users, and its row of the page, are the parent's. It may live on, as TCP.
        conn.forget_threads();
        conn.set_stats_row(sdp_stats::RowId::NONE);
        conn.acquire(Half::Send);
        conn.release(Half::Send);
    }
    pair.release();
    true
}

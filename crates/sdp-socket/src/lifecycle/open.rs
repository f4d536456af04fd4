//! Descriptors that come and go: socket, connect, accept, dup, close.

use core::sync::atomic::Ordering;

use libc::{c_int, sockaddr, socklen_t};
use sdp_config::{Family, Role};
use sdp_fabric_shm::link::{Armed, How, ResetNote, What};
use sdp_proto::Ack;
use sdp_stats::Reason;
use sdp_sys::{fd, kernel, pid, section};

use crate::{
    conn::{
        self, Conn, ConnGuard, Counted, Flags, Half, Holders, Limits, Mask, Origin, Signalled,
        Stage,
        address::{ADDRESS_MAX, interface_of, parse_address},
        carrier, options, publish, sharing,
    },
    datapath::{lane::Lane, receive, send},
    hosts,
    lifecycle::{explicit, listener as rules_of, trust},
    process::{
        self, log, page, settings, socket_tags,
        table::{self, Entry, NoPlace},
    },
    wake::{call_guard, doorbell},
};

/// Puts a connection into the table; the number's entry before is dropped.
#[unsafe(link_section = ".text.open")]
pub(crate) fn install(fd: i32, stage: Stage, flags: Flags) -> Option<&'static Conn> {
    hand_in();
    let (index, conn) = conn::create(stage)?;
    conn.fd.store(fd, Ordering::Relaxed);
    conn.flags.store(flags, Ordering::Relaxed);
    process::note_descriptor(fd);
    match table::put(fd, Entry::Conn(index)) {
        Ok(stale) => {
            if let Some(stale) = stale {
                release(stale);
            }
            Some(conn)
        }
        Err(NoPlace) => {
            release(Entry::Conn(index)); // nobody would ever close it
            None
        }
    }
}

/// Hands in the functions that lower rooms call when a number or a call leaves something behind.
pub(crate) fn hand_in() {
    static EVICTED: fn(Entry) = release;
    static LAST_LEFT: fn(&Conn) = left;
    process::EVICTED.set(&EVICTED);
    call_guard::LAST_LEFT.set(&LAST_LEFT);
}

/// A number does not name this entry of the table any more: it names something else now.
pub(crate) fn release(entry: Entry) {
    match entry {
        Entry::Conn(index) => {
            if let Some(conn) = conn::get(index)
                && conn.unreference()
            {
                end(conn);
            }
        }
        Entry::Set(index) => crate::wake::interest::closed(index),
        Entry::Hidden => {}
    }
}

/// No descriptor of this process names the connection any more; called by the thread that took the
/// last one away.
#[unsafe(link_section = ".text.hot")]
fn end(conn: &Conn) {
    hosts::end(conn);
    crate::migration::promote::ended(conn);
    crate::wake::interest::forget_conn(conn);
    conn.closed();
}

/// After `socket`.
pub(crate) fn opened(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_tcp = (domain == libc::AF_INET || domain == libc::AF_INET6)
        && kind == libc::SOCK_STREAM
        && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if !is_tcp || process::is_retired() || !process::is_ours() {
        return process::forget(fd);
    }
    let _section = section::Guard::enter();
    let v6 = if domain == libc::AF_INET6 { Origin::V6.flags() } else { Flags::NONE };
    if install(fd, Stage::Fresh, v6).is_none() {
        process::forget(fd);
    }
}

/// After `listen`: server rules are consulted with the local address.
pub(crate) fn listening(fd: c_int) {
    let Some(Entry::Conn(index)) = table::entry(fd) else { return };
    let Some(conn) = conn::get(index) else { return };
    if !process::is_ours() || !process::start() {
        return;
    }
    let _section = section::Guard::enter();
    conn.set_stage(Stage::Listener);
    crate::wake::interest::listens(conn);
    settings::refresh();
    let (address, port) = rules_of::decide(conn, fd);
    if !conn.has(Limits::RuleTcp) {
        crate::migration::across::listens(fd, &address);
    }
    if log::wants(log::Level::Summary) {
        log::listening(fd, conn.has(Limits::RuleTcp), address, port);
    }
    publish::ensure_listener_row(conn);
}

/// After `connect` succeeded or began.
///
/// # Safety
/// `addr` is readable for `len` bytes, as `connect` demands.
pub(crate) unsafe fn connected(fd: c_int, addr: *const sockaddr, len: socklen_t) {
    let Some(Entry::Conn(index)) = table::entry(fd) else { return };
    let Some(conn) = conn::get(index) else { return };
    let is_first = conn.stage() == Stage::Fresh;
    if !(is_first || may_be_another(conn)) || !process::is_ours() || !process::start() {
        return;
    }
    let _section = section::Guard::enter();
    let mut bytes = [0u8; ADDRESS_MAX];
    let n = (len as usize).min(ADDRESS_MAX);
    if !addr.is_null() {
        // SAFETY: n <= len readable bytes; n <= ADDRESS_MAX.
        unsafe { core::ptr::copy_nonoverlapping(addr.cast::<u8>(), bytes.as_mut_ptr(), n) };
    }
    let Some((address, port)) = parse_address(&bytes) else { return };
    let verdict = explicit::family(conn, Role::Client, address, port);
    let remote = Some((address, interface_of(&bytes)));
    if !is_first {
        hosts::start_over(conn);
        correct(conn, verdict == Family::Tcp);
        return hosts::consider(conn, fd, remote);
    }
    if log::wants(log::Level::Summary) {
        log::connected(fd, address, port);
    }
    establish(conn, fd, verdict == Family::Tcp, process::forks());
    crate::migration::across::connects(&address);
    hosts::consider(conn, fd, remote);
}

/// Whether a connection that is being made may have another address than when it began: an attempt
/// that failed leaves the socket to the next one.
pub(crate) fn may_be_another(conn: &Conn) -> bool {
    let made =
        Counted::Established.with(Holders::Adopted).with(Origin::Accepted).with(Limits::Fallback);
    matches!(conn.stage(), Stage::Candidate | Stage::Kernel | Stage::Remote) && !conn.has(made)
}

/// The rules are asked again, for the address of the last attempt.
fn correct(conn: &Conn, rule_tcp: bool) {
    if rule_tcp == conn.has(Limits::RuleTcp) {
        return;
    }
    if rule_tcp {
        conn.set(Limits::RuleTcp);
        conn.change_stage(Stage::Candidate, Stage::Kernel);
    } else {
        conn.flags.remove(Limits::RuleTcp, Ordering::SeqCst);
        if conn.row_index().is_some() {
            conn.change_stage(Stage::Kernel, Stage::Candidate);
        }
    }
}

/// Before `accept`.
pub(crate) fn accepting(_listener: c_int) -> u32 {
    process::forks()
}

/// After `accept`.
pub(crate) fn accepted(listener: c_int, fd: c_int, generation: u32) {
    if process::is_retired() || !process::is_ours() {
        return process::forget(fd);
    }
    let inherited = match table::entry(listener) {
        Some(Entry::Conn(index)) => conn::get(index).map_or(Flags::NONE, |conn| {
            publish::show_listener(conn);
            rules_of::bring_up_to_date(conn, listener);
            inherited(conn)
        }),
        _ => match adopt_listener(listener) {
            Some(inherited) => inherited,
            None => return process::forget(fd),
        },
    };
    let rule_tcp = inherited.has(Limits::RuleTcp);
    if !process::start() {
        return process::forget(fd);
    }
    let _section = section::Guard::enter();
    let flags = Origin::Accepted.with(inherited.within(Origin::MayBeElsewhere.flags()));
    let Some(conn) = install(fd, Stage::Fresh, flags) else { return process::forget(fd) };
    if let Some(Entry::Conn(index)) = table::entry(listener)
        && let Some(listener) = conn::get(index)
    {
        conn.historic.inherit_limits(listener.historic.word());
    }
    establish(conn, fd, rule_tcp, generation);
    if inherited.has(Limits::Fallback)
        && let Some(reason) = options::in_the_way(fd)
    {
        conn.fall_back(reason);
    }
    hosts::consider(conn, fd, None);
    see(conn, fd);
    if log::wants(log::Level::Summary) {
        log::accepted(fd);
    }
}

/// The properties that connections have from their listener.
fn inherited(listener: &Conn) -> Flags {
    let what = (Limits::RuleTcp | Limits::Fallback).with(Origin::MayBeElsewhere);
    listener.flags.load(Ordering::Relaxed).within(what)
}

/// A listener that came by exec or activation: the properties that its connections have from it.
/// `None`: not a TCP listener.
fn adopt_listener(fd: c_int) -> Option<Flags> {
    if fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL).ok()? != libc::IPPROTO_TCP {
        return None;
    }
    {
        let _section = section::Guard::enter();
        install(fd, Stage::Listener, Origin::MayBeElsewhere.flags())?;
    }
    listening(fd);
    match table::entry(fd) {
        Some(Entry::Conn(index)) => conn::get(index).map(inherited),
        _ => Some(Origin::MayBeElsewhere.flags()),
    }
}

/// A connection exists from here on (or is being made).
fn establish(conn: &Conn, fd: c_int, rule_tcp: bool, generation: u32) {
    conn.fd.store(fd, Ordering::Relaxed);
    let row = process::family().and_then(|(family, slot)| family.open_row(slot, process::pid()));
    conn.set_row(row);
    let forks = process::forks();
    if generation != forks || !forks.is_multiple_of(2) {
        conn.set(Holders::Uncertain);
    }
    conn.set_stage(if rule_tcp || row.is_none() { Stage::Kernel } else { Stage::Candidate });
    if rule_tcp {
        conn.set(Limits::RuleTcp);
    }
    publish::ensure_row(conn);
}

/// Counts an established connection, once, and sees to it that tools can see it.
#[inline]
pub(crate) fn see(conn: &Conn, fd: c_int) {
    if !conn.flags.load(Ordering::Relaxed).has_all(Counted::Established | Counted::HasRow) {
        see_first(conn, fd);
    }
}

#[cold]
#[unsafe(link_section = ".text.hot")]
fn see_first(conn: &Conn, fd: c_int) {
    if conn.has(Holders::Adopted) {
        return crate::migration::arrived::see_first(conn, fd);
    }
    publish::ensure_row(conn);
    if conn.flags.insert(Counted::Established, Ordering::SeqCst).has(Counted::Established) {
        return;
    }
    page::hand_in();
    if conn.has(Holders::Passed) && socket_tags::counted_as(fd).is_some() {
        return; // by who got it
    }
    publish::count_seen(conn, publish::first_reason(conn));
}

/// Before the kernel closes a number; [`table::end_close`] follows that. True: the descriptor is one that we hide.
#[unsafe(link_section = ".text.hot")]
pub(crate) fn begin_close(fd: c_int) -> bool {
    match table::entry(fd) {
        Some(Entry::Hidden) => return process::is_ours(),
        None => return false,
        _ => {}
    }
    if process::is_ours() {
        let _section = section::Guard::enter();
        // The thread that clears the word closes this number, the one that takes the last reference
        // away ends the connection: each once, also when several threads close at a time.
        keep_for_calls(fd);
        // Without other threads no call can come to the number meanwhile.
        let is_alone = pid::is_single_threaded();
        match if is_alone { table::clear(fd) } else { table::begin_close(fd) } {
            Some(Entry::Conn(index)) => {
                if let Some(conn) = conn::get(index) {
                    closed_number(conn, fd);
                }
            }
            Some(other) => release(other),
            None => {}
        }
    }
    false
}

/// Calls that sleep on the connection which `fd` names go on when the number is closed.
fn keep_for_calls(fd: c_int) {
    if let Some(Entry::Conn(index)) = table::entry(fd)
        && let Some(conn) = conn::get(index)
        && conn.is_held()
    {
        conn.keep(fd);
    }
}

/// The number is in the table no more, and about to be closed.
fn closed_number(conn: &Conn, fd: c_int) {
    // A thread that has to ask the kernel from here on, because a family member died in a call,
    // asks it by this number.
    let is_noted = conn.note_closing(fd);
    if conn.is_held() {
        conn.keep(fd); // for one that fell asleep meanwhile
    }
    let is_kept = conn.is_kept();
    if is_kept || conn.is_in_use() {
        await_users(conn);
    }
    if is_kept {
        // One that sleeps on a number which means something else by now looks again.
        doorbell::signal_self(conn.index());
    }
    // Another thread may end the connection as soon as the reference is gone.
    conn.acquire(Half::Send);
    let was_last = conn.unreference();
    if was_last && conn.ends_now(fd) {
        last_close(conn, fd);
        end(conn);
    } else if was_last || is_kept {
        left(conn);
    }
    if is_noted {
        conn.forget_closing();
    }
    conn.release(Half::Send);
}

/// Perhaps no call holds the connection any more for which a number was kept at a close. The caller
/// uses it.
pub(crate) fn left(conn: &Conn) {
    let Some(kept) = conn.take_kept() else { return };
    if kept.ends() {
        if let Some(fd) = kept.number() {
            last_close(conn, fd);
        }
        end(conn);
    }
    if let Some(fd) = kept.number() {
        await_users(conn);
        process::close_hidden(fd);
    }
}

/// A thread that uses a number which the table or the retainer has forgotten does so under a half's
/// lock: before this, or never more.
fn await_users(conn: &Conn) {
    let _ = receive::with_sink(conn, |_, _, _, _| Ok(()));
    let _ = send::with_source(conn, |_, _, _, _| Ok(()));
    hosts::await_users(conn);
}

/// In a fork child: a connection that only calls of the parent hold open is not the child's.
pub(crate) fn forget_kept() {
    conn::each_kept(|conn| {
        conn.forget_threads();
        end(conn);
    });
}

/// This process is about to close its last descriptor of a connection, which is in the table no more.
#[inline(always)]
fn last_close(conn: &Conn, fd: c_int) {
    hosts::closing(conn, fd);
    let was_broken = conn.has(Limits::Hostile);
    if finish_stream(conn, fd) {
        end_stream(conn, fd);
    }
    if !was_broken && conn.has(Limits::Hostile) {
        carrier::reset_on_close(fd); // found only now, when no number leads to the carrier
    }
}

/// Makes the kernel's close of the carrier look as a close over TCP: a reset with bytes of the
/// program unread or when the program asked for one, else FIN. True when this process is the last
/// user and FIN it is.
#[unsafe(link_section = ".text.hot.long")]
pub(crate) fn finish_stream(conn: &Conn, fd: c_int) -> bool {
    if conn.stage() != Stage::Attached
        || conn.has(Limits::Hostile)
        || sharing::is_used_by_another(conn)
    {
        return false;
    }
    let is_sole = match (conn.row_index(), process::family()) {
        (Some(row), Some((family, slot))) => !family.is_held_by_others(slot, row),
        _ => false,
    };
    if !is_sole {
        return false;
    }
    if is_cut_off(conn, fd)
        && let Some(link) = conn.link()
    {
        // Before the end says that it is closed, which the peer takes for a goodbye.
        link.own().note_reset(ResetNote::Resets);
        return false;
    }
    // R11: with bytes of the program unread TCP answers with a reset; without, E5: wake bytes that
    // were never consumed must not turn our FIN into one.
    let (in_ring, on_carrier) = receive::with_sink(conn, |sink, _, link, half| {
        // No process reads the ring any more: the kernel refuses the peer's bytes from here on.
        // Under the gate, so that every wake byte has come by now, or is never sent. An end that
        // has left the lanes before gets no wake bytes, and another process may have the connection
        // now.
        let is_ours = send::gated_at(conn, Some(fd), half, conn.side(), || link.own().close());
        let is_ours = is_ours == Some(true);
        if is_ours {
            // A switch that no call has followed yet: the bytes behind it are the program's, or
            // wake bytes.
            receive::follow_pending(conn, fd, sink, half);
        }
        let is_pending = sink.pending(half).is_ok_and(|switch| switch.is_some());
        let is_queued = || is_ours && carrier::queued(fd).is_ok_and(|n| n > 0);
        if sink.lane == Lane::Kernel {
            return Ok((false, is_queued()));
        }
        let mut walk = *sink;
        if receive::payload_ahead(&mut walk) > 0 {
            return Ok((true, false));
        }
        sink.consume_wake_bytes(fd, half);
        Ok((false, is_pending && is_queued()))
    })
    .unwrap_or_default();
    let is_asked = carrier::will_reset(fd);
    let resets = in_ring || on_carrier || is_asked;
    if resets && let Some(link) = conn.link() {
        link.own().note_reset(ResetNote::Resets);
    }
    // The kernel itself looks at unread bytes on the carrier when the last number is closed; a
    // process that got one unseen may have read them by then.
    if in_ring || is_asked {
        carrier::flush(fd);
        carrier::reset_on_close(fd);
    }
    !resets
}

/// Whether the carrier has ended although this end has said nothing of the kind: reset by the peer, timed out, or ended
/// from outside.
fn is_cut_off(conn: &Conn, fd: c_int) -> bool {
    carrier::tcp_state(fd) == carrier::TCP_CLOSE
        && !conn.has(Limits::Shut)
        && !send::with_source(conn, |source, _, _, _| Ok(source.engine.has_ended()))
            .unwrap_or(false)
}

/// Before the process becomes an image that does not have the connection: the kernel closes it, and
/// the library cannot consume the wake bytes that are there by then.
pub(crate) fn leaves_by_exec(conn: &Conn) {
    let is_sole = match (conn.row_index(), process::family()) {
        (Some(row), Some((family, slot))) => !family.is_held_by_others(slot, row),
        _ => false,
    };
    if conn.stage() == Stage::Attached
        && is_sole
        && !sharing::is_used_by_another(conn)
        && let Some(link) = conn.link()
    {
        link.own().note_leaving();
    }
}

/// Sends DisConn behind all data, if the sending half is on the SDP lane (R11), and wakes the reader
/// for it through the carrier's own FIN. True when this call has sent it.
pub(crate) fn disconnect(conn: &Conn, fd: c_int) -> bool {
    let sent = send::with_source(conn, |source, row, _, half| {
        if source.lane != Lane::Sdp {
            return Ok(false);
        }
        let ack = Ack::from_word(row.ack.load(Ordering::Acquire));
        let Ok(message) = source.engine.disconnect(ack) else { return Ok(false) };
        let has_sent = send::gated_at(conn, Some(fd), half, conn.side(), || {
            source.adopt(half) == Ok(false) && send::post_control(conn, source, &message).is_ok()
        });
        Ok(has_sent == Some(true))
    });
    sent == Ok(true)
}

/// [`disconnect`] where the kernel is about to close the carrier: a reader that sleeps is told here, behind the FIN.
pub(crate) fn end_stream(conn: &Conn, fd: c_int) {
    if disconnect(conn, fd) && sleeper(conn).is_some() {
        let _ = sdp_sys::fd::shutdown(fd, libc::SHUT_WR);
        tell_of_end(conn);
    }
}

/// The peer's thread or set that sleeps until the doorbell rings for bytes.
fn sleeper(conn: &Conn) -> Option<Armed> {
    let half = conn.link()?;
    let half = half.half(conn.half_index(Half::Send));
    half.armed(What::Bytes).filter(|armed| armed.how == How::Doorbell)
}

/// Behind a DisConn and the kernel's FIN: a sleeper is rung as for bytes, since the network may have dropped the FIN.
/// Not before that, or it would find an end of which its kernel does not know yet.
#[cold]
pub(crate) fn tell_of_end(conn: &Conn) {
    let (Some(link), Some(armed)) = (conn.link(), sleeper(conn)) else { return };
    let half = link.half(conn.half_index(Half::Send));
    half.note_signal(sdp_sys::time::ticks());
    if conn.signal_peer() != Signalled::NoDoorbell {
        half.disarm(What::Bytes, armed);
    }
}

/// `close_range` around the library's hidden descriptors. `None`: the range has none of them.
pub(crate) fn closing_range(first: u32, last: u32, flags: c_int) -> Option<isize> {
    if !process::is_ours() || first > last {
        return None;
    }
    let cloexec = flags & 4 != 0; // CLOSE_RANGE_CLOEXEC
    let mut from = first;
    let mut touched = false;
    let mut closes = false;
    let top = process::highest_descriptor();
    let mut result = 0;
    for fd in first..=last.min(top.max(0) as u32) {
        match table::entry(fd as i32) {
            None => {}
            Some(Entry::Hidden) => {
                touched = true;
                if from < fd {
                    result = close_range(from, fd - 1, flags);
                }
                from = fd + 1;
            }
            Some(_) if !cloexec => {
                closes = true;
                begin_close(fd as i32);
            }
            Some(_) => {}
        }
    }
    if !touched && !closes {
        return None;
    }
    if from <= last {
        result = close_range(from, last, flags);
    }
    if closes {
        (first..=last.min(top.max(0) as u32)).for_each(|fd| table::end_close(fd as i32));
        // Where the kernel has no such call the hook closes the numbers by other calls.
        if !touched && result == -(libc::ENOSYS as isize) {
            return None;
        }
    }
    Some(result)
}

fn close_range(first: u32, last: u32, flags: c_int) -> isize {
    match kernel::close_range(first, last, flags) {
        Ok(n) => n as isize,
        Err(e) => -(e.0 as isize),
    }
}

/// After `dup`: `new` names the same as `old`.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if !(table::is_tracked(old) || table::is_tracked(new)) || !process::is_ours() {
        return;
    }
    let _section = section::Guard::enter();
    let entry = match table::entry(old) {
        Some(Entry::Conn(index)) => {
            conn::get(index).is_some_and(Conn::reference).then_some(Entry::Conn(index))
        }
        Some(Entry::Set(index)) => {
            crate::wake::interest::duplicated(index);
            Some(Entry::Set(index))
        }
        _ => None,
    };
    process::note_descriptor(new);
    let stale = match entry {
        Some(entry) => table::put(new, entry).unwrap_or_else(|NoPlace| {
            // Calls on the new number go past the library, and must not meet lanes.
            if let Entry::Set(index) = entry {
                crate::wake::interest::watched(index);
            } else if let Some(conn) = ConnGuard::new(old, Half::Receive) {
                crate::migration::handover::leave(&conn, old, Reason::NoMemory);
            }
            Some(entry)
        }),
        None => table::clear(new),
    };
    if let Some(stale) = stale {
        release(stale);
    }
    if process::forks() != 0
        && let Some(conn) = ConnGuard::new(new, Half::Receive)
        && sharing::is_used_by_another(&conn)
    {
        conn.set(Holders::ForImages); // of its parent's, by a child
    }
    if (0..=2).contains(&new)
        && let Some(conn) = ConnGuard::new(new, Half::Receive)
        && !(conn.has(Holders::Adopted) && conn.stage() == Stage::Kernel)
    {
        // stdio, shells and the programs that they start use these numbers without calls that a
        // hook sees.
        let next = crate::migration::handover::NextReader::Stranger;
        crate::migration::handover::leave_to(&conn, new, Reason::StandardDescriptor, next);
    }
}

/// Before `dup2` onto `new`; [`table::end_close`] follows it.
pub(crate) fn replacing(new: c_int) {
    match table::entry(new) {
        Some(Entry::Hidden) if process::is_ours() => trust::move_hidden(new),
        // Of a number beyond the limit, which was lowered since, nothing is closed: EBADF.
        Some(_) if !(1..=new).contains(&process::soft_limit()) => {
            begin_close(new);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_reach_takes_no_slot_along() {
        // More often than there are slots: each must come back.
        for _ in 0..conn::CONNS + 1 {
            assert!(install(table::DESCRIPTORS as c_int, Stage::Fresh, Flags::NONE).is_none());
        }
        let (_, conn) = conn::create(Stage::Fresh).expect("a slot is free");
        assert!(conn.unreference());
        end(conn);
    }
}

//! This process's connections in the statistics page: rows, lanes, reasons.
//!
//! Called by every room above whenever something is counted, and by [`super::slot`] when a
//! connection ends.
//!
//! Used wherever a connection appears, changes lane or is refused one. Rows are opened without a
//! system call; readers take from the kernel's own tables whatever those have (state, addresses of
//! candidates). Nothing here decides anything.

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_fabric_shm::identity::{Addr, Tuple};
use sdp_proto::wire::Header;
use sdp_stats::{
    Device, Direction, Endpoint, Fabric, NewRow, Page, Reason, Role, RowId, Verdict,
    trace::{Event, Kind},
};
use sdp_sys::fd;

use crate::{
    conn::{
        Conn, Counted, Half, Holders, Limits, Origin, Stage, address::local_address, get,
        number_of, words,
    },
    process::{
        self, log, page, socket_tags,
        table::{self, Entry},
        trace,
    },
};

/// A message was posted on the SDP lane, or taken off it: a line of the log, if data is traced.
#[inline]
pub(crate) fn message(conn: &Conn, is_sent: bool, header: &Header) {
    if process::tunables().traces_data() {
        trace_message(conn, is_sent, header);
    }
}

#[cold]
#[inline(never)]
fn trace_message(conn: &Conn, is_sent: bool, header: &Header) {
    log::message(number_of(conn).unwrap_or(-1), is_sent, header);
}

/// Where to count for a connection.
#[inline]
pub(crate) fn of_row(conn: &Conn) -> Option<(&'static Page, RowId)> {
    let row = conn.stats_row();
    Some((page::current()?, row))
}

/// Gives the connection a row in the statistics page, if it has none in this process's page.
#[inline]
pub(crate) fn ensure_row(conn: &Conn) {
    if !conn.has(Counted::HasRow) {
        open_stats_row(conn);
    }
}

#[cold]
#[unsafe(link_section = ".text.hot")]
fn open_stats_row(conn: &Conn) {
    if !page::is_own(conn.segment().is_some(), take_along) {
        return; // a borrower counts in the totals of the inherited page
    }
    let Some(page) = page::current() else { return };
    if conn.flags.insert(Counted::HasRow, Ordering::SeqCst).has(Counted::HasRow) {
        return;
    }
    // Without a system call: most connections are short. The addresses of the row follow when they
    // are needed anyway ([`name_row`]); until then readers find it by the descriptor.
    let (local, remote) = conn.known_name().map_or((Endpoint::NONE, Endpoint::NONE), ends);
    let words = conn.row();
    let lanes = conn.segment().and(words).map_or([false; 2], |row| {
        [words::is_on_sdp(&row.source.words), words::is_on_sdp(&row.sink.words)]
    });
    let id = page.open_row(&NewRow {
        carrier: words.map_or(0, |row| row.carrier_id.load(Ordering::Relaxed)),
        inode: 0,
        fd: conn.fd.load(Ordering::Relaxed),
        local,
        remote,
        is_v6: conn.has(Origin::V6),
        is_adopted: conn.segment().is_some(),
        role: if conn.has(Holders::Adopted) {
            Role::Inherited
        } else if conn.has(Origin::Accepted) {
            Role::Server
        } else {
            Role::Client
        },
        state: sdp_stats::ConnState::Established,
    });
    for (direction, half) in [(Direction::Send, Half::Send), (Direction::Receive, Half::Receive)] {
        page.adopt_bytes(id, direction, conn.take_unattributed(half));
    }
    let counted = words.and_then(|row| Verdict::at(&row.reason).reason());
    let reason = counted.or_else(|| conn.fallback_reason());
    for (direction, on_sdp) in [Direction::Send, Direction::Receive].into_iter().zip(lanes) {
        if on_sdp {
            page.show_lane(id, direction, Fabric::Shm);
        } else if let Some(reason) = reason {
            page.show_reason(id, direction, reason);
        }
    }
    conn.set_stats_row(id);
}

fn ends(tuple: Tuple) -> (Endpoint, Endpoint) {
    let end = |addr: &Addr| Endpoint { addr: *addr.bytes(), port: addr.port() };
    (end(&tuple.local), end(&tuple.remote))
}

/// Shows the connection's addresses, once they have been asked for. By them readers find its inode.
pub(crate) fn name_row(conn: &Conn, tuple: Tuple) {
    if conn.flags.insert(Counted::RowHasEnds, Ordering::Relaxed).has(Counted::RowHasEnds) {
        return;
    }
    let (local, remote) = ends(tuple);
    if let Some((page, row)) = of_row(conn) {
        page.show_ends(row, local, remote);
    }
}

/// Gives a listener a row, if it has none in this process's page.
#[inline]
pub(crate) fn ensure_listener_row(conn: &Conn) {
    if !conn.has(Counted::HasRow) {
        open_listener_row(conn);
    }
}

#[cold]
fn open_listener_row(conn: &Conn) {
    page::own(take_along);
    let Some(page) = page::current() else { return };
    if conn.flags.insert(Counted::HasRow, Ordering::SeqCst).has(Counted::HasRow) {
        return;
    }
    let fd = conn.fd.load(Ordering::Relaxed);
    // A listener's remote end cannot be asked for, so that this is not a connection's name.
    let (addr, port) = local_address(fd).unwrap_or(([0; 16], 0));
    let id = page.open_row(&NewRow {
        carrier: 0,
        inode: fd::inode(fd).unwrap_or(0),
        fd,
        local: Endpoint { addr, port },
        remote: match addr.first_chunk::<12>() {
            Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]) => Endpoint::v4([0; 4], 0),
            _ => Endpoint::NONE,
        },
        is_v6: conn.has(Origin::V6),
        is_adopted: false,
        role: Role::Listener,
        state: sdp_stats::ConnState::Listen,
    });
    if conn.has(Limits::RuleTcp) {
        for direction in [Direction::Send, Direction::Receive] {
            page.show_reason(id, direction, Reason::RuleTcp);
        }
    }
    conn.set_stats_row(id);
}

/// Records an event of the connection for tools that look from outside.
pub(crate) fn record(
    conn: &Conn,
    kind: Kind,
    direction: Option<Direction>,
    reason: Option<Reason>,
    fabric: Option<Fabric>,
) {
    let ends = conn.known_name().map(ends);
    let ports = ends.map_or((0, 0), |(local, remote)| (local.port, remote.port));
    let fd = conn.fd.load(Ordering::Relaxed);
    trace::record(Event { kind, direction, reason, fabric, fd, ports, now_ns: 0 });
}

/// The connection has met its other end, by queue pairs of these numbers, this end's and the other's. By the holder of the
/// device's lock.
#[cold]
pub(crate) fn met(conn: &Conn, (own, peer): (u32, u32), device: &Device<'_>) {
    page::own(take_along);
    ensure_row(conn);
    if let Some((page, row)) = of_row(conn) {
        page.show_device(row, device);
        page.show_queue_pair(row, own, peer);
    }
    record(conn, Kind::Met, None, None, Some(Fabric::Verbs));
}

/// The connection's queue pair has gone.
#[cold]
pub(crate) fn parted(conn: &Conn) {
    if let Some((page, row)) = of_row(conn) {
        page.show_queue_pair(row, 0, 0);
    }
}

/// A half has moved to the SDP lane.
pub(crate) fn half_promoted(conn: &Conn, direction: Direction) {
    half_promoted_by(conn, direction, Fabric::Shm);
}

/// [`half_promoted`], on this fabric.
#[cold]
pub(crate) fn half_promoted_by(conn: &Conn, direction: Direction, fabric: Fabric) {
    page::own(take_along);
    ensure_row(conn);
    if let Some((page, row)) = of_row(conn)
        && page.promoted(row, direction, fabric)
    {
        record(conn, Kind::Promoted, Some(direction), None, Some(fabric));
    }
    log::moved(conn.fd.load(Ordering::Relaxed), direction, None);
}

/// A half has left the SDP lane.
#[cold]
pub(crate) fn half_demoted(conn: &Conn, direction: Direction, reason: Reason) {
    ensure_row(conn);
    if let Some((page, row)) = of_row(conn)
        && page.demoted(row, direction, reason)
    {
        record(conn, Kind::Demoted, Some(direction), Some(reason), None);
    }
    log::moved(conn.fd.load(Ordering::Relaxed), direction, Some(reason));
}

/// Folds the connection's row into the totals.
pub(crate) fn close_stats_row(conn: &Conn) {
    if conn.has(Counted::HasRow)
        && let Some(page) = page::current()
    {
        page.close_row(conn.stats_row()); // rows are the own page's
    }
}

/// Counts a connection end once per carrier.
#[unsafe(link_section = ".text.open")]
pub(crate) fn count_seen(conn: &Conn, reason: Reason) {
    let Some(page) = page::current() else { return };
    if let Some(row) = conn.row() {
        if page.count_seen(Verdict::at(&row.reason), reason) {
            conn.set(Counted::Here);
        }
    } else {
        let word = AtomicU32::new(0);
        page.count_seen(Verdict::at(&word), reason);
    }
    show_reason(conn, reason);
}

fn show_reason(conn: &Conn, reason: Reason) {
    let Some((page, row)) = of_row(conn) else { return };
    for direction in [Direction::Send, Direction::Receive] {
        page.show_reason(row, direction, reason);
    }
}

/// A payload byte was moved on an SDP lane.
#[inline]
pub(crate) fn count_sdp(conn: &Conn, page: &Page, verdict: Verdict<'_>) {
    if !verdict.is_sdp() {
        count_first_sdp(conn, page, verdict);
    }
}

#[cold]
fn count_first_sdp(conn: &Conn, page: &Page, verdict: Verdict<'_>) {
    let fd = number_of(conn).filter(|_| conn.has(Holders::Adopted | Holders::Passed));
    if let Some(fd) = fd
        && socket_tags::counted_as(fd) == Some(Verdict::SDP)
    {
        return verdict.resume(Verdict::SDP); // in one of its other lives
    }
    page.count_sdp(verdict, Fabric::Shm);
    if let Some(fd) = fd {
        socket_tags::count_as(fd, Verdict::SDP);
    }
}

/// Tags the socket with how this end was counted, so that the next process (exec, SCM_RIGHTS) does not count it again.
pub(crate) fn tag_for_next_owner(conn: &Conn, fd: i32) {
    if !conn.has(Counted::Established) || page::current().is_none() {
        return;
    }
    let verdict = match conn.row() {
        Some(row) => Verdict::at(&row.reason).raw(),
        None if conn.has(Holders::Adopted) || socket_tags::counted_as(fd).is_some() => return, // told already
        None => Verdict::kernel(first_reason(conn)),
    };
    if Verdict::is_counted(verdict) {
        socket_tags::count_as(fd, verdict);
    }
}

/// Counts an end that came from elsewhere, unless an earlier process of it did.
pub(crate) fn count_next_reader(conn: &Conn, fd: i32, reason: Reason) {
    if page::current().is_some() && socket_tags::counted_as(fd).is_none() {
        count_seen(conn, reason);
        socket_tags::count_as(fd, Verdict::kernel(reason));
    } else {
        note_reason(conn, reason);
    }
}

/// A connection that came from elsewhere has a row now: the bytes counted before are added to it.
pub(crate) fn resume_count(conn: &Conn, fd: i32) {
    if let Some(row) = conn.row()
        && let Some(verdict) = socket_tags::counted_as(fd)
    {
        Verdict::at(&row.reason).resume(verdict);
    }
}

/// Why a connection is on the kernel lane.
pub(crate) fn note_reason(conn: &Conn, reason: Reason) {
    let Some(page) = page::current() else { return };
    if let Some(row) = conn.row() {
        let verdict = Verdict::at(&row.reason);
        if verdict.reason().is_some_and(|before| before != reason) {
            record(conn, Kind::Fallback, None, Some(reason), None);
            log::stays(conn.fd.load(Ordering::Relaxed), reason);
        }
        let fd = number_of(conn).filter(|_| conn.has(Holders::Adopted | Holders::Passed));
        // In another of its lives it may have been counted otherwise since.
        if let Some(counted) = fd.and_then(socket_tags::counted_as) {
            verdict.resume(counted);
        }
        page.count_reason(verdict, reason);
        if let Some(fd) = fd.filter(|_| Verdict::is_counted(verdict.raw())) {
            socket_tags::count_as(fd, verdict.raw());
        }
    }
    show_reason(conn, reason);
}

/// Why a connection begins on the kernel lane.
pub(crate) fn first_reason(conn: &Conn) -> Reason {
    if conn.has(Limits::RuleTcp) {
        Reason::RuleTcp
    } else if let Some(reason) = conn.fallback_reason() {
        reason // an option that was set before the first byte
    } else if conn.row_index().is_none() {
        Reason::NoMemory
    } else {
        Reason::TooYoung
    }
}

/// In a process that got a listener by fork: tools are to see it here too.
#[inline]
pub(crate) fn show_listener(conn: &Conn) {
    if conn.stage() == Stage::Listener {
        ensure_listener_row(conn);
    }
}

/// Moves the bytes that this process has counted in `inherited` for its connections to the page in
/// force.
pub(crate) fn take_along(inherited: &Page) {
    table::walk(|fd, entry| {
        let Entry::Conn(index) = entry else { return };
        let (Some(conn), Some(page)) = (get(index), page::current()) else { return };
        if number_of(conn) != Some(fd) {
            return; // one of several numbers
        }
        if conn.has(Counted::Here)
            && let Some(row) = conn.row()
        {
            page.adopt_end(inherited, Verdict::at(&row.reason));
        }
        for (direction, half) in
            [(Direction::Send, Half::Send), (Direction::Receive, Half::Receive)]
        {
            let bytes = conn.unattributed(half);
            if bytes != 0 {
                inherited.give_bytes(direction, bytes);
                page.moved_kernel(RowId::NONE, direction, bytes, false);
            }
        }
    });
}

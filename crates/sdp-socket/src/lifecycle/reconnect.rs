//! A socket that becomes another connection: `connect` with AF_UNSPEC disconnects it, and it may
//! connect or listen again.
//!
//! Called by `api` around `connect`.
//!
//! The kernel sends a reset to the other end, drops the bytes that the program has not read, and
//! keeps nothing of the connection. So does the library: the connection leaves its lanes before the
//! call, the bytes that wait in the ring are dropped after it, and every number of the process that
//! names the socket gets a slot as if it had just been made. Where others have the socket too, or
//! epoll sets know it by the old slot, the next connection stays TCP (`reconnected`).

use libc::{c_int, sockaddr, socklen_t};
use sdp_fabric_shm::link::ResetNote;
use sdp_stats::Reason;
use sdp_sys::{memory, section};

use core::sync::atomic::Ordering;

use crate::{
    conn::{
        self, Conn, ConnGuard, Half, Holders, Mask, Origin, Stage, Waiters, iovec::Buffers, sharing,
    },
    datapath::receive::{self, Wish},
    lifecycle,
    migration::{demote, handover::NextReader, incompatible},
    process::{
        self,
        table::{self, Entry},
    },
};

/// Bytes that are dropped at a time.
const DROP: usize = 1024;
/// More drops than a ring has room for.
const DROPS: usize = 1 << 20;

/// Whether an address is the one that disconnects. One that cannot be read, or is too long, is none: the kernel refuses it.
fn is_disconnect(addr: *const sockaddr, len: socklen_t) -> bool {
    const FAMILY: usize = size_of::<libc::sa_family_t>();
    (FAMILY..=size_of::<libc::sockaddr_storage>()).contains(&(len as usize))
        && memory::is_readable(addr.cast(), FAMILY)
        // SAFETY: two readable bytes.
        && c_int::from(unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() })
            == libc::AF_UNSPEC
}

/// Whether the socket is a connection, or is becoming one.
fn is_connection(conn: &Conn) -> bool {
    !matches!(conn.stage(), Stage::Fresh | Stage::Listener)
}

/// Before a `connect`: whether it disconnects; [`after`] then gets its result.
pub(crate) fn before(fd: c_int, addr: *const sockaddr, len: socklen_t) -> bool {
    let Some(Entry::Conn(index)) = table::entry(fd) else { return false };
    if !conn::get(index).is_some_and(is_connection) || !is_disconnect(addr, len) {
        return false;
    }
    if !process::is_ours() {
        incompatible::leave(fd, Reason::Reconnected, Some(NextReader::Ourselves));
        return false;
    }
    let _section = section::Guard::enter();
    let Some(conn) = ConnGuard::new(fd, Half::Send) else { return false };
    if !is_connection(&conn) {
        return false;
    }
    // The other end sees a reset that is meant (E3), whatever bytes its ring still has.
    note_reset(&conn, ResetNote::Resets);
    demote::leave(&conn, fd, Reason::Reconnected);
    true
}

fn note_reset(conn: &Conn, note: ResetNote) {
    if let Some(link) = conn.link() {
        link.own().note_reset(note);
    }
}

/// After it.
pub(crate) fn after(fd: c_int, is_disconnected: bool) {
    let Some(conn) = ConnGuard::new(fd, Half::Receive) else { return };
    if !is_disconnected {
        return note_reset(&conn, ResetNote::None); // a connection still, on the kernel lane
    }
    // Bytes that family members would find before those of the next connection.
    if conn.stage() == Stage::Attached && sharing::may_family_hold(&conn) {
        drop_unread(&conn);
    }
    let _section = section::Guard::enter();
    renumber(&conn);
}

fn drop_unread(conn: &ConnGuard) {
    let mut scratch = [0u8; DROP];
    for _ in 0..DROPS {
        let iov = libc::iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: DROP };
        // SAFETY: our own buffer.
        let Some(mut buffers) = (unsafe { Buffers::new(&raw const iov, 1) }) else { return };
        match receive::receive(conn, &mut buffers, Wish { flags: libc::MSG_DONTWAIT }) {
            Ok(n) if n > 0 => {}
            _ => return,
        }
    }
}

/// Whether the next connection of the socket may earn lanes: only if the numbers in the table are
/// its only users.
fn is_ours_alone(conn: &Conn) -> bool {
    let others = Holders::Adopted | Holders::Passed | Holders::Uncertain | Holders::ForImages;
    let is_held = conn
        .row_index()
        .zip(process::family())
        .is_none_or(|(row, (family, slot))| family.is_held_by_others(slot, row));
    !is_held && !conn.has(others) && !crate::wake::interest::knows(conn)
}

/// All numbers of the old connection name a fresh socket from here on.
fn renumber(old: &Conn) {
    let kept = (Origin::V6 | Origin::Bound | Origin::MayBeElsewhere).with(Waiters::Seen);
    let is_alone = is_ours_alone(old);
    let stage = if is_alone { Stage::Fresh } else { Stage::Kernel };
    let Some((index, fresh)) = conn::create(stage) else { return };
    fresh.fd.store(old.fd.load(Ordering::Relaxed), Ordering::Relaxed);
    fresh.flags.store(old.flags.load(Ordering::Relaxed).within(kept), Ordering::Relaxed);
    fresh.historic.copy(&old.historic);
    if !is_alone {
        fresh.fall_back(Reason::Reconnected);
    }
    table::walk(|fd, entry| {
        if entry == Entry::Conn(old.index())
            && fresh.reference()
            && let Ok(Some(stale)) = table::put(fd, Entry::Conn(index))
        {
            lifecycle::release(stale);
        }
    });
    lifecycle::release(Entry::Conn(index)); // the walk's own
}

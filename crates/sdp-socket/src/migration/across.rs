//! Ends in different network namespaces: when a connection is worth a name in the directory, and how
//! this end learns the first numbers of the stream, which are that name and its proof.
//!
//! Called by `promote` when the kernel's tables of this network namespace do not know the other end,
//! by `api` for sends whose packet the kernel is to show, and by `lifecycle` for listeners. The
//! meeting itself is [`sdp_fabric_shm::across`]'s. Where there is no directory
//! ([`crate::process::place`]) nothing of this is done.
//!
//! | | who learns it |
//! |---|---|
//! | the connector's number | the connector by a marked send; the acceptor from the SYN that its listener saved, or by a marked send |
//! | the acceptor's number | both by a marked send |
//!
//! A send is marked only while nothing is unsent or unacknowledged: then its packet goes out at
//! once, and its copy is there when the call returns. The first send of a connection is marked,
//! because the others of a stream find the queue full; later ones until the numbers are known.

use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use sdp_fabric_shm::{
    across::{Across, Numbers},
    identity::Addr,
};
use sdp_stats::Reason;
use sdp_sys::{Errno, fd, marked, time::monotonic_ns};

use crate::{
    conn::{
        Conn, ConnGuard, Holders, Origin, Stage,
        carrier::{self, Moved},
        iovec::Buffers,
    },
    hosts,
    process::place,
};

/// In the word of a connection: the other end is elsewhere; the numbers that are known.
const IS_ACROSS: u32 = Conn::IS_ACROSS;
const KNOWN: [u32; 2] = [2, 4];
/// No send is marked: the program uses the error queue, or marks show nothing.
const UNMARKED: u32 = 8;
/// The first send has been made, or looked at.
const HAS_BEGUN: u32 = 16;
/// A copy has not come yet.
const IS_LATE: u32 = 32;
/// The listener's SYN was asked for.
const HAS_ASKED: u32 = 64;
/// A send was marked, and the error queue is not the program's.
const IS_MARKED: u32 = 128;
/// A copy lay on the error queue longer than the call that had marked its packet.
const HAD_COPIES: u32 = 1 << 31;
/// How many marks showed nothing.
const TRIES_SHIFT: u32 = 8;
const TRIES_MOST: u32 = 4;
/// Most bytes of a marked send: fewer than a connection may send at first.
const MARKED_MAX: usize = 8192;
/// A longer round trip leads to another host.
const ROUND_TRIP_US: u32 = 1000;
/// Flags of a send that may be marked.
const PLAIN_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// A socket listens at this address: the SYNs of its connections are kept where they are needed.
pub(crate) fn listens(fd: c_int, address: &[u8; 16]) {
    if !hosts::is_loopback(address) && place::look() {
        marked::save_syns(fd);
    }
}

/// A connection to this address is made: whether there is a directory is asked once.
pub(crate) fn connects(address: &[u8; 16]) {
    if !hosts::is_loopback(address) {
        place::is_there();
    }
}

/// The kernel's tables here do not know the other end, or addresses do not name it. True: it is to
/// be met in the directory.
#[cold]
pub(crate) fn begins(conn: &Conn, fd: c_int) -> bool {
    // Which end began a connection that came from elsewhere is not known.
    if conn.has(Holders::Adopted) || !place::look() {
        return false;
    }
    let is_near = carrier::moved(fd).is_ok_and(|moved| moved.round_trip_us <= ROUND_TRIP_US);
    if !is_near || remote(conn, fd).is_none_or(|remote| !vain::allows(&remote)) {
        return false;
    }
    conn.proof.store(0, Ordering::Relaxed);
    conn.across.fetch_or(IS_ACROSS, Ordering::Relaxed);
    true
}

fn remote(conn: &Conn, fd: c_int) -> Option<Addr> {
    conn.name(fd).map(|tuple| tuple.remote)
}

/// Whether meetings with the other end's address have come to nothing too often, lately.
pub(crate) fn is_vain(conn: &Conn, fd: c_int) -> bool {
    conn.is_across() && remote(conn, fd).is_none_or(|remote| !vain::allows(&remote))
}

/// A meeting came to nothing; why.
#[cold]
pub(crate) fn ended(conn: &Conn, fd: c_int) -> Reason {
    if let Some(remote) = remote(conn, fd) {
        vain::note(&remote);
    }
    let word = conn.across.load(Ordering::Relaxed);
    if word & KNOWN[0] == 0 { Reason::NoProof } else { Reason::PeerNotListening }
}

/// The ends have met.
pub(crate) fn met(conn: &Conn, fd: c_int) {
    if let Some(remote) = remote(conn, fd) {
        vain::forget(&remote);
    }
}

fn is_connector(conn: &Conn) -> bool {
    !conn.has(Origin::Accepted)
}

fn learn(conn: &Conn, which: usize, number: u32) {
    let Some(flag) = KNOWN.get(which) else { return };
    conn.first_number(which).store(number, Ordering::Relaxed);
    conn.across.fetch_or(*flag, Ordering::Release);
}

/// What takes the place of addresses in a step of the meeting. `None`: the name is not known yet.
#[cold]
pub(crate) fn values(conn: &Conn, fd: c_int) -> Option<Across> {
    let is_connector = is_connector(conn);
    take_late(conn, fd);
    let mut word = conn.across.load(Ordering::Acquire);
    if !is_connector && word & (KNOWN[0] | HAS_ASKED) == 0 {
        conn.across.fetch_or(HAS_ASKED, Ordering::Relaxed);
        if let Some(number) = marked::saved_syn(fd) {
            learn(conn, 0, number);
        }
        word = conn.across.load(Ordering::Acquire);
    }
    if word & KNOWN[0] == 0 {
        return None;
    }
    let number = |which| conn.first_number(which).load(Ordering::Relaxed);
    let acceptor = (word & KNOWN[1] != 0).then(|| number(1));
    let numbers = Numbers { connector: number(0), acceptor };
    // What the acceptor has sent brings its number: both ends have it then, or will.
    let moved = carrier::moved(fd).ok()?;
    let has_sent = if is_connector { moved.received != 0 } else { moved.sent != 0 };
    Some(Across { numbers, least: if has_sent { 2 } else { 1 }, is_connector })
}

/// Whether the next send is to be marked.
#[inline]
pub(crate) fn wants_mark(conn: &Conn) -> bool {
    let word = conn.across.load(Ordering::Relaxed);
    match conn.stage() {
        Stage::Candidate => word & (HAS_BEGUN | UNMARKED) == 0 && place::is_known(),
        Stage::Meeting => {
            let both = KNOWN[0] | KNOWN[1];
            word & (IS_ACROSS | UNMARKED) == IS_ACROSS && word & both != both
        }
        _ => false,
    }
}

/// Sends the first of the buffers' bytes, marked, without using them up, never blocking. `None`:
/// nothing was done, because this send is not to be marked.
#[cold]
pub(crate) fn send_marked(
    conn: &ConnGuard,
    buffers: &Buffers,
    flags: c_int,
) -> Option<Result<usize, Errno>> {
    if !wants_mark(conn) || flags & !PLAIN_FLAGS != 0 || buffers.left() == 0 {
        return None;
    }
    let fd = conn.fd();
    let word = conn.across.fetch_or(HAS_BEGUN, Ordering::Relaxed);
    if word & IS_LATE != 0 {
        take_late(conn, fd);
    }
    let before = carrier::moved(fd).ok()?;
    if !may_mark(conn, fd, word, &before) {
        return None;
    }
    if !marks::note(conn) {
        return None;
    }
    let sent = carrier::send_marked(fd, buffers, MARKED_MAX, flags);
    if let Ok(n) = sent {
        look(conn, fd, &before, n as u64);
    }
    Some(sent)
}

/// Whether a mark shows a packet at once, and disturbs nobody.
fn may_mark(conn: &Conn, fd: c_int, word: u32, before: &Moved) -> bool {
    let is_quiet = before.state == carrier::ESTABLISHED
        && before.sent == before.transmitted
        && before.acked >= before.transmitted;
    let is_near = before.round_trip_us <= ROUND_TRIP_US;
    // A first send asks for the address: all others go to an end that is elsewhere.
    let is_first = word & HAS_BEGUN == 0 && word & IS_ACROSS == 0;
    let may_lead_across = || {
        let remote = remote(conn, fd);
        remote.is_some_and(|remote| !hosts::is_loopback(remote.bytes()) && vain::allows(&remote))
    };
    if !is_quiet || !is_near || is_first && !may_lead_across() {
        return false;
    }
    let is_used = uses_error_queue(conn, fd);
    if is_used {
        conn.across.fetch_or(UNMARKED, Ordering::Relaxed);
    }
    !is_used
}

/// Whether the program takes messages of its own off the error queue: by an option of the
/// connection, or of its listener. Those that are set later end the marks ([`marks::end`]).
fn uses_error_queue(conn: &Conn, fd: c_int) -> bool {
    let is_on = |level, name| fd::getsockopt_int(fd, level, name).is_ok_and(|on| on != 0);
    is_on(libc::IPPROTO_IP, libc::IP_RECVERR)
        || conn.has(Origin::V6) && is_on(libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        || is_on(libc::SOL_SOCKET, libc::SO_ZEROCOPY)
        || is_on(libc::SOL_SOCKET, libc::SO_TIMESTAMPING)
}

/// Learns what the packet of a send of `n` bytes shows. `before`: the counters before it.
fn look(conn: &Conn, fd: c_int, before: &Moved, n: u64) {
    if !marks::is_marked(conn) {
        return; // the program has begun to use the error queue meanwhile
    }
    let copy = match marked::take(fd) {
        Ok(copy) => copy,
        Err(Errno::EAGAIN) => {
            conn.across.fetch_or(IS_LATE, Ordering::Relaxed);
            None
        }
        Err(_) => None,
    };
    let Some(copy) = copy else {
        let word = conn.across.fetch_add(1 << TRIES_SHIFT, Ordering::Relaxed);
        if word >> TRIES_SHIFT >= TRIES_MOST {
            conn.across.fetch_or(UNMARKED, Ordering::Relaxed);
        }
        return;
    };
    let Ok(after) = carrier::moved(fd) else { return };
    if after.sent != before.sent + n {
        return; // another thread has sent, too
    }
    let own = copy.sequence.wrapping_add(copy.payload).wrapping_sub(after.sent as u32 + 1);
    let [own_place, other_place] = if is_connector(conn) { [0, 1] } else { [1, 0] };
    learn(conn, own_place, own);
    if after.received == before.received {
        let other = copy.acknowledged.wrapping_sub(after.received as u32 + 1);
        learn(conn, other_place, other);
    }
}

/// A copy that came late says nothing any more, but the socket shows an error while it is there.
fn take_late(conn: &Conn, fd: c_int) {
    if conn.across.load(Ordering::Relaxed) & IS_LATE != 0 && marked::take(fd).is_ok() {
        conn.across.fetch_and(!IS_LATE, Ordering::Relaxed);
    }
}

/// Copies of marked packets that lie on a socket's error queue longer than the call that marked them.
///
/// A copy that comes late, because the kernel kept the packet back or sent it once more, says nothing
/// that is wanted. But the socket shows an error while it lies there, which is none: whoever finds one
/// takes the copies away, and looks again. No send of a program that uses the error queue is marked
/// ([`super`]); from the call on by which it begins to, the queue is the program's ([`end`]).
pub(crate) mod marks {
    use core::sync::atomic::{AtomicBool, Ordering};

    use libc::c_int;
    use sdp_sys::{fd, marked};

    use super::{HAD_COPIES, IS_MARKED, UNMARKED};
    use crate::{
        conn::{CONNS, Conn, carrier, get},
        process::table::{self, Entry},
    };

    /// A send was marked in this process, or in a parent.
    #[unsafe(link_section = ".bss.hot")]
    static ANY: AtomicBool = AtomicBool::new(false);
    /// Copies that are taken off one socket at a time.
    const MOST: usize = 64;

    /// Whether there may be any. One load.
    #[inline]
    pub(crate) fn may_be() -> bool {
        ANY.load(Ordering::Relaxed)
    }

    /// A send of the connection is about to be marked. False: it must not be.
    pub(crate) fn note(conn: &Conn) -> bool {
        let before = conn.across.fetch_or(IS_MARKED, Ordering::Relaxed);
        if before & UNMARKED != 0 {
            conn.across.fetch_and(!IS_MARKED, Ordering::Relaxed);
            return false;
        }
        if !may_be() {
            static TAKES: fn(c_int) -> bool = take_of;
            carrier::TAKES_COPIES.set(&TAKES);
            ANY.store(true, Ordering::Relaxed);
        }
        true
    }

    /// The program is about to use the error queue of this socket: no send is marked any more, and
    /// what comes to the queue from here on is the program's.
    #[cold]
    pub(crate) fn end(fd: c_int) {
        let Some(conn) = by_number(fd) else { return };
        let before = conn.across.fetch_or(UNMARKED, Ordering::Relaxed);
        if before & IS_MARKED != 0 && before & UNMARKED == 0 {
            take(conn, fd);
        }
        conn.across.fetch_and(!IS_MARKED, Ordering::Relaxed);
    }

    fn take(conn: &Conn, fd: c_int) -> bool {
        let is_there = (0..MOST).take_while(|_| marked::take(fd).is_ok()).count() != 0;
        if is_there {
            conn.across.fetch_or(HAD_COPIES, Ordering::Relaxed);
        }
        is_there
    }

    pub(crate) fn is_marked(conn: &Conn) -> bool {
        conn.across.load(Ordering::Relaxed) & IS_MARKED != 0
    }

    /// Takes the copies off a socket that shows an error. Whether there were any.
    #[cold]
    pub(crate) fn take_of(fd: c_int) -> bool {
        may_be() && by_number(fd).is_some_and(|conn| is_marked(conn) && take(conn, fd))
    }

    /// Whether an error that a wait has reported for this socket was a copy, which is gone now: this
    /// call took it, or another thread's has.
    #[cold]
    pub(crate) fn is_gone(fd: c_int) -> bool {
        let Some(conn) = by_number(fd).filter(|conn| is_marked(conn)) else { return false };
        let is_taken = take(conn, fd) || conn.across.load(Ordering::Relaxed) & HAD_COPIES != 0;
        is_taken && fd::readiness(fd, 0) & libc::POLLERR == 0
    }

    /// Whether the library says by itself what holds of this socket: its bytes may lie in a ring.
    #[cold]
    pub(crate) fn has_lanes(fd: c_int) -> bool {
        by_number(fd).is_some_and(Conn::has_lanes)
    }

    /// [`is_gone`] for a number that named the connection when it was registered.
    #[cold]
    pub(crate) fn was_copy(fd: c_int, conn: u32) -> bool {
        table::entry(fd) == Some(Entry::Conn(conn)) && is_gone(fd)
    }

    /// The first connection with marked sends that is wanted.
    #[cold]
    pub(crate) fn find(is_wanted: impl Fn(&Conn) -> bool) -> Option<&'static Conn> {
        let all = (0..CONNS as u32).map_while(get);
        { all }.find(|conn| conn.is_live() && is_marked(conn) && is_wanted(conn))
    }

    fn by_number(fd: c_int) -> Option<&'static Conn> {
        match table::entry(fd)? {
            Entry::Conn(index) => get(index),
            _ => None,
        }
    }
}

/// Addresses at which nobody came to meet.
mod vain {
    use super::{Addr, AtomicU64, Ordering, monotonic_ns};

    /// After so many meetings in a row that came to nothing …
    const MOST: u64 = 3;
    /// … none is begun for so long, twice as long after each that follows …
    const PAUSE_S: u64 = 60;
    /// … up to this.
    const PAUSE_MAX_S: u64 = 3600;
    const PLACES: usize = 256;
    const COUNT_SHIFT: u32 = 32;
    const TAG_SHIFT: u32 = 40;
    const TIME: u64 = u32::MAX as u64;
    const COUNT_MAX: u64 = 0xff;

    /// By address: when the last one was, in seconds, how many there were, a part of the hash.
    static TABLE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

    fn hash(address: &Addr) -> (usize, u64) {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in address.bytes() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        (hash as usize % PLACES, hash >> TAG_SHIFT << TAG_SHIFT)
    }

    fn now_s() -> u64 {
        monotonic_ns() / 1_000_000_000
    }

    /// How often, and when last.
    fn of(address: &Addr) -> Option<(&'static AtomicU64, u64, u64)> {
        let (place, tag) = hash(address);
        let place = TABLE.get(place)?;
        let word = place.load(Ordering::Relaxed);
        let is_its = word >> TAG_SHIFT << TAG_SHIFT == tag;
        let count = if is_its { word >> COUNT_SHIFT & COUNT_MAX } else { 0 };
        Some((place, count, word & TIME))
    }

    /// Whether another meeting may be begun.
    pub(super) fn allows(address: &Addr) -> bool {
        of(address).is_none_or(|(_, count, last)| {
            let doublings = count.saturating_sub(MOST).min(8);
            count < MOST || now_s() >= last + (PAUSE_S << doublings).min(PAUSE_MAX_S)
        })
    }

    /// One came to nothing.
    pub(super) fn note(address: &Addr) {
        let (_, tag) = hash(address);
        if let Some((place, count, _)) = of(address) {
            let count = (count + 1).min(COUNT_MAX);
            place.store(tag | count << COUNT_SHIFT | now_s() & TIME, Ordering::Relaxed);
        }
    }

    /// One succeeded.
    pub(super) fn forget(address: &Addr) {
        if let Some((place, count, _)) = of(address)
            && count != 0
        {
            place.store(0, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn three_in_a_row_are_enough() {
            let (one, other) = (Addr::v4([10, 1, 2, 3], 80), Addr::v4([10, 1, 2, 4], 80));
            for _ in 0..MOST {
                assert!(allows(&one));
                note(&one);
            }
            assert!(!allows(&one) && allows(&other));
            assert!(!allows(&Addr::v4([10, 1, 2, 3], 81)), "whatever the port");
            forget(&one);
            assert!(allows(&one));
            note(&one);
            note(&one);
            assert!(allows(&one), "not in a row");
        }
    }
}

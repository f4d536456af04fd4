//! Whether the two ends of a segment hold one stream.
//!
//! Called by [`super::receive`] and [`super::send`] on the kernel lane, and by
//! `migration/promote.rs` when ends meet.
//!
//! The ends of a connection find each other by its addresses. Where addresses or ports are
//! translated, the same addresses can name another socket, although each end reports its own
//! truthfully. So the first bytes of a half go by the carrier, and this end asks the kernel where
//! they arrived: *the socket that we take for the other end had received as much as we had sent; we
//! send; now it has received that much more.* No process can forge the kernel's counters, the bytes
//! are the program's own, and their content plays no part: streams of equal bytes differ in their
//! moments. [`Witness`] decides; the caller brings the counters (here from sock_diag, between hosts
//! from the other host, under a key).
//!
//! Each sending half proves itself, and no end has to believe the other one. An end that shares its
//! segment with a user other than its own also takes nothing from the segment before one of two
//! things is proven: its sends have arrived, or, because it may have nothing to send, the bytes
//! that came by the carrier are those that the other socket had sent ([`after_receive`]).
//!
//! | | wanted |
//! |---|---|
//! | connection tracking says that the connection was made to another address | no lanes, reason `translated` |
//! | it knows the connection | [`TRACKED`] sends in a row, none of which may take long |
//! | it does not, the ends have met by name | one look that does not deny it |
//! | a send was in doubt | [`DOUBTED`] moments at which both agree |
//! | it does not know it, the processes have met before | nothing |
//! | a socket got bytes that we had not sent, or lacks some that were acknowledged | no lanes, `translated` |

use core::sync::atomic::Ordering;

use sdp_fabric_shm::{
    diag_client::Carrier,
    identity::{self, Translation},
};
use sdp_stats::Reason;
use sdp_sys::{netlink::Counters, time::monotonic_ns};

use crate::{
    conn::{
        Conn, Limits, Origin, Stage,
        carrier::{self, Moved},
    },
    datapath::leave,
    process,
};

/// Sends in a row where connection tracking knows the connection.
const TRACKED: u32 = 8;
/// Moments of agreement once one of them was in doubt.
const DOUBTED: u32 = 24;
/// After so many looks in vain no send looks any more.
const MOST_LOOKS: u32 = 250;
/// One that takes longer proves nothing where [`TRACKED`] are wanted: another process may have sent
/// as much meanwhile.
const LONG_NS: u64 = 200_000;
/// Longest pause before a send whose moment no other connection may guess.
const PAUSE_NS: u64 = 64_000;
/// Looks by which the bytes sent must have arrived.
const LOOKS: u32 = 4;
const LOOK_NS: u64 = 2_000;

/// The word of a connection: sends that are wanted, and that were seen.
const WANTED: u32 = 0xff;
const SEEN_SHIFT: u32 = 8;
const SEEN: u32 = 0xff << SEEN_SHIFT;
/// Looks in vain.
const LOOKED_SHIFT: u32 = 20;
const LOOKED: u32 = 0xff << LOOKED_SHIFT;
/// Connection tracking knows the connection.
const STRICT: u32 = 1 << 16;
/// The other end's process belongs to another user.
const STRANGER: u32 = 1 << 17;
/// The other end is not this stream's.
const REFUTED: u32 = 1 << 18;
/// It has left its lanes for that.
const LEFT: u32 = 1 << 19;

/// What both sockets' counters prove at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Witness {
    /// The other socket has received all that one has sent.
    Agrees(u64),
    /// Something is on its way, or both are at work.
    Unclear,
    /// The other socket has bytes that this end never sent, or lacks bytes that were acknowledged
    /// to this end.
    Denies,
}

impl Witness {
    /// `before` and `after`: our counters around the moment at which the other socket had
    /// received `received`.
    fn of(before: &Moved, received: u64, after: &Moved) -> Self {
        // The kernel of the end that sent the SYN counts it among what was acknowledged.
        let lacks = before.acked.saturating_sub(1) > received;
        if received > after.transmitted || lacks {
            Self::Denies
        } else if before.transmitted == after.sent && after.transmitted == received {
            Self::Agrees(received)
        } else {
            Self::Unclear
        }
    }

    /// `before` and `after`: bytes received just before and just after the moment at which the
    /// other socket had sent `transmitted`.
    const fn of_got(before: u64, transmitted: u64, after: u64) -> Self {
        if before > transmitted {
            Self::Denies
        } else if before == transmitted && after == transmitted {
            Self::Agrees(before)
        } else {
            Self::Unclear
        }
    }
}

/// Called when a meeting begins: what has to be proven because addresses may be translated. `None`:
/// they are no name of the connection; the reason is noted by the caller.
pub(crate) fn at_first(fd: i32, tuple: &identity::Tuple) -> Option<u32> {
    match identity::translation(fd, tuple) {
        Translation::Untracked => Some(0),
        Translation::Possible => Some(TRACKED | STRICT),
        Translation::Certain => None,
    }
}

/// The ends have met by name: what has to be proven before a byte moves to the lane. Where the
/// kernel tracks no connections, only stateless rules can translate them: then one look suffices.
/// False: that look denies that the two are ends of one stream.
pub(crate) fn met(conn: &Conn, fd: i32, is_own_user: bool) -> bool {
    let word = conn.proof.load(Ordering::Relaxed);
    conn.heard.store(0, Ordering::Relaxed); // of an earlier life, perhaps
    if word & WANTED == 0 {
        let seen = look(conn, fd);
        process::diag_client().close(); // it was opened for this, as a rule
        conn.proof.store(0, Ordering::Relaxed);
        return !matches!(seen, Some(Witness::Denies));
    }
    conn.proof.store(word | if is_own_user { 0 } else { STRANGER }, Ordering::Relaxed);
    true
}

/// Whether something is to be proven before the sending half may leave the kernel lane.
#[inline]
pub(crate) fn is_wanted(conn: &Conn) -> bool {
    conn.proof.load(Ordering::Relaxed) != 0
}

/// Whether bytes that the other end writes into the ring may be taken for the connection's.
pub(crate) fn may_trust(conn: &Conn) -> bool {
    let word = conn.proof.load(Ordering::Relaxed);
    let has_heard = || conn.heard.load(Ordering::Relaxed) & WANTED >= DOUBTED;
    word & REFUTED == 0 && (word & STRANGER == 0 || has_heard())
}

/// Whether [`after_receive`] is to look: the other end's process belongs to another user.
#[inline]
pub(crate) fn is_heard(conn: &Conn) -> bool {
    conn.proof.load(Ordering::Relaxed) & STRANGER != 0
}

/// After a read from the carrier, under the lock of the receiving half. It counts how often the
/// bytes received were all that the other socket has sent, each time another number. An end that
/// receives bytes which this socket did not send yet has them from another socket: for a false
/// proof another connection would have to be ahead of this one always, and equal so often.
#[cold]
pub(crate) fn after_receive(conn: &Conn, fd: i32) {
    let heard = conn.heard.load(Ordering::Relaxed);
    let (seen, looked) = (heard & WANTED, heard >> SEEN_SHIFT);
    let wanted = DOUBTED;
    if seen >= wanted || looked >= MOST_LOOKS || conn.has(Limits::Fallback) {
        return;
    }
    let (seen, looked) = match look_back(conn, fd) {
        Some(Witness::Agrees(received)) => {
            let now = received as u32;
            let is_news = conn.heard_at.swap(now, Ordering::Relaxed) != now;
            (seen + u32::from(is_news), looked)
        }
        Some(Witness::Unclear) | None => (seen, looked + 1),
        Some(Witness::Denies) => {
            // Nothing has been taken from it, and the sending half leaves with its next call.
            conn.fall_back(Reason::Translated);
            return conn.note_reason(Reason::Translated);
        }
    };
    conn.heard.store(seen | looked << SEEN_SHIFT, Ordering::Relaxed);
    if seen >= wanted && !is_wanted(conn) {
        process::diag_client().close();
    }
}

/// Whether the next send is to begin at a random moment: else another connection whose ends do
/// everything in step would send at the same moment, again and again. All of them in doubt, some at
/// first.
const fn begins_at_will(word: u32) -> bool {
    is_in_doubt(word) || ((word & SEEN) >> SEEN_SHIFT) % 4 == 1
}

/// A send was seen to arrive late, or not to go out at once: from then on it counts how often both
/// sockets agree, each time on another number. Two connections of which one is ever ahead of the
/// other deny each other on the way.
const fn is_in_doubt(word: u32) -> bool {
    word & WANTED == DOUBTED
}

/// A send that is about to be made on the carrier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    /// Bytes that the other socket had received, which are those that we had sent.
    received: Option<u64>,
    began: u64,
}

/// Before a send on the carrier. Under the lock of the sending half. `None`: there is nothing to be proven any more, of
/// a connection that has left its lanes for good, or was looked at too often.
#[cold]
pub(crate) fn before_send(conn: &Conn, fd: i32) -> Option<Edge> {
    let word = conn.proof.load(Ordering::Relaxed);
    if (word & LOOKED) >> LOOKED_SHIFT >= MOST_LOOKS || conn.has(Limits::Fallback) {
        return None;
    }
    if begins_at_will(word) {
        pause();
    }
    let began = monotonic_ns();
    let seen = look(conn, fd);
    let received = match seen {
        Some(Witness::Agrees(received)) => Some(received),
        Some(Witness::Unclear) | None => None,
        Some(Witness::Denies) => {
            refute(conn);
            None
        }
    };
    Some(Edge { received, began })
}

/// After it, if it sent something. Under the lock.
#[cold]
pub(crate) fn after_send(conn: &Conn, fd: i32, edge: Edge) {
    let word = conn.proof.load(Ordering::Relaxed);
    if word & REFUTED != 0 {
        return;
    }
    let wanted = word & WANTED;
    let kept = word & (STRICT | STRANGER);
    if is_in_doubt(word) {
        let looked = ((word & LOOKED) >> LOOKED_SHIFT)
            .saturating_add(u32::from(edge.received.is_none()))
            .min(MOST_LOOKS);
        let seen = ((word & SEEN) >> SEEN_SHIFT) + u32::from(is_news(conn, edge));
        let next = kept | wanted | seen << SEEN_SHIFT | looked << LOOKED_SHIFT;
        return conn.proof.store(if seen >= wanted { 0 } else { next }, Ordering::Relaxed);
    }
    let mut arrived = false;
    if let Some(before) = edge.received {
        for _ in 0..LOOKS {
            match look(conn, fd) {
                Some(Witness::Agrees(received)) => {
                    arrived = received > before;
                    break;
                }
                Some(Witness::Denies) => return refute(conn),
                Some(Witness::Unclear) => {
                    let until = monotonic_ns() + LOOK_NS;
                    while monotonic_ns() < until {
                        core::hint::spin_loop();
                    }
                }
                None => break,
            }
        }
    }
    let is_late = monotonic_ns().saturating_sub(edge.began) > LONG_NS;
    let seen = ((word & SEEN) >> SEEN_SHIFT) + 1;
    let next = match arrived && !is_late {
        true if seen >= wanted => 0,
        true => kept | wanted | seen << SEEN_SHIFT,
        false => kept | DOUBTED,
    };
    conn.proof.store(next, Ordering::Relaxed);
}

/// Whether both sockets agree, and did not at the same number before.
fn is_news(conn: &Conn, edge: Edge) -> bool {
    edge.received.is_some_and(|received| {
        let now = received as u32;
        conn.agreed.swap(now, Ordering::Relaxed) != now
    })
}

/// After a send call, outside the lock: an end that turned out to hold another stream leaves its
/// lanes.
#[cold]
pub(crate) fn leave_if_refuted(conn: &Conn, fd: i32) {
    let word = conn.proof.load(Ordering::Relaxed);
    if word & (REFUTED | LEFT) == REFUTED {
        conn.proof.fetch_or(LEFT, Ordering::Relaxed);
        // `refute` made it fall back; any other thread that makes it leave does no more than this.
        if conn.stage() == Stage::Attached {
            leave::both(conn, fd, Reason::Translated);
        }
    }
}

/// The other end holds another stream: nothing more goes to it, and [`leave_if_refuted`] takes the
/// connection off its lanes.
#[cold]
pub(crate) fn refute(conn: &Conn) {
    conn.proof.fetch_or(REFUTED, Ordering::Relaxed);
    conn.fall_back(Reason::Translated);
    conn.note_reason(Reason::Translated);
}

/// The counters of the other end's socket. `None`: the kernel does not report them.
fn moved_there(conn: &Conn, fd: i32) -> Option<Counters> {
    let tuple = conn.known_name()?;
    let may_be_elsewhere = conn.has(Origin::MayBeElsewhere) || process::has_networks();
    let question = Carrier { fd, tuple: &tuple, may_be_elsewhere };
    process::diag_client().moved(process::nonce(), process::hidden_min, &question)
}

/// Both sockets' counters of the bytes that we send. `None`: the kernel does not report the
/// other's.
fn look(conn: &Conn, fd: i32) -> Option<Witness> {
    let before = carrier::moved(fd).ok()?;
    let peer = moved_there(conn, fd)?;
    // Our end, once sent, is counted as a byte. The other one's is nothing to us: it may have closed
    // its half.
    let is_open = matches!(before.state, carrier::ESTABLISHED | carrier::CLOSE_WAIT)
        && matches!(peer.state, carrier::ESTABLISHED | carrier::FIN_WAIT1 | carrier::FIN_WAIT2);
    if !is_open {
        return Some(Witness::Unclear);
    }
    // Behind a full buffer two streams with slow readers stand at equal numbers for long.
    if before.transmitted == peer.received && before.sent == before.transmitted {
        return Some(Witness::Agrees(peer.received)); // nobody else sends: the half's lock is ours
    }
    let after = carrier::moved(fd).ok()?;
    Some(Witness::of(&before, peer.received, &after))
}

/// Both sockets' counters of the bytes that we receive. `None`: the kernel does not report the
/// other's.
fn look_back(conn: &Conn, fd: i32) -> Option<Witness> {
    let before = carrier::moved(fd).ok()?;
    let peer = moved_there(conn, fd)?;
    let after = carrier::moved(fd).ok()?;
    // The kernel counts the other end's FIN as a byte, once it has come; the sender's state shows
    // the FIN, and was asked later.
    Some(match peer.state {
        carrier::ESTABLISHED | carrier::CLOSE_WAIT => {
            Witness::of_got(before.received, peer.transmitted, after.received)
        }
        _ => Witness::Unclear,
    })
}

/// Lets pass a time that is not known before, on the processor.
fn pause() {
    let now = monotonic_ns();
    let drawn = (now ^ process::nonce()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let until = now + drawn % PAUSE_NS;
    while monotonic_ns() < until {
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Moved =
        Moved { state: 1, sent: 300, transmitted: 200, acked: 101, received: 0, round_trip_us: 9 };

    #[test]
    fn equal_counters_agree() {
        let rests = Moved { sent: 200, ..OURS };
        assert_eq!(Witness::of(&rests, 200, &rests), Witness::Agrees(200));
        assert_eq!(Witness::of(&OURS, 200, &OURS), Witness::Unclear, "something waits");
    }

    #[test]
    fn what_is_on_its_way_is_unclear() {
        let later = Moved { transmitted: 250, ..OURS };
        assert_eq!(Witness::of(&OURS, 200, &later), Witness::Unclear);
        assert_eq!(Witness::of(&OURS, 250, &later), Witness::Unclear);
        for received in 100..200 {
            assert_eq!(Witness::of(&OURS, received, &OURS), Witness::Unclear);
        }
    }

    #[test]
    fn what_nobody_sent_or_what_is_missing_denies() {
        assert_eq!(Witness::of(&OURS, 301, &OURS), Witness::Denies);
        assert_eq!(Witness::of(&OURS, 99, &OURS), Witness::Denies);
    }

    #[test]
    fn what_came_is_compared_with_what_was_sent() {
        assert_eq!(Witness::of_got(200, 200, 200), Witness::Agrees(200));
        assert_eq!(Witness::of_got(200, 200, 201), Witness::Unclear);
        assert_eq!(Witness::of_got(200, 201, 201), Witness::Unclear);
        assert_eq!(Witness::of_got(200, 199, 200), Witness::Denies);
    }

    #[test]
    fn every_state_fits_into_its_word() {
        for wanted in [TRACKED, DOUBTED] {
            assert!(wanted <= WANTED && (wanted << SEEN_SHIFT) & !SEEN == 0);
        }
    }
}

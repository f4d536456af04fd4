//! A token in the carrier before payload, where the ends have met in a directory.
//!
//! Called by [`super::send`] and [`super::receive`] on the kernel lane.
//!
//! Each half begins with an *empty section* of the ring: an entry → SDP at carrier position c, an entry
//! → kernel at c + 16, and between both the 16 bytes of the token ([`sdp_fabric_shm::token`]). No payload
//! enters a ring, and none is taken out of one, before the token of the incoming half was right. The end
//! that connected sends first, the other one when it has read a right token; where none comes, payload
//! goes on by the carrier. A wrong one resets the connection.
//!
//! Both entries are written before the first byte is sent: a producer that is killed in between leaves
//! bytes missing, and none that a program would get. That an entry → kernel may be written so early is
//! the consumer's doing: as long as it awaits a token, it reads from the carrier only what lay there
//! before it looked at the log, so never beyond an entry (L13).

use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use sdp_fabric_shm::{
    link::{ShmHalf, ShmLink, Trust},
    token::{TOKEN_LEN, TokenKey},
};
use sdp_shm::family::Row;
use sdp_sys::{errno::Errno, fd};

use crate::{
    conn::{Conn, ConnGuard, Limits, carrier, words},
    datapath::{
        lane::{Broken, Lane, SinkState, SourceState},
        receive,
        reset::reset,
        send::{self, gated},
    },
    wake::arming,
};

/// In a row's word: the incoming token has not come.
const AWAITED: u32 = 1;
/// The own one has not been sent …
const DUE: u32 = 2;
/// … or not all of its bytes, which both entries announce.
const OWED: u32 = 4;
const LEN: u64 = TOKEN_LEN as u64;
const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The ends have met: which tokens are to come. Before the segment is there.
pub(crate) fn begin(row: &Row, key: Option<TokenKey>) {
    let words = key.map_or([0; 2], TokenKey::to_words);
    let places = row.source.words.iter().skip(words::TOKEN_KEY);
    places.zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    row.token.store(if key.is_some() { AWAITED | DUE } else { 0 }, Ordering::Relaxed);
}

/// Whether one is still to come, or to be sent: nothing enters a ring.
#[inline]
pub(crate) fn is_missing(row: &Row) -> bool {
    row.token.load(Ordering::Acquire) != 0
}

/// Whether the incoming one is: nothing is taken out of a ring.
#[inline]
pub(crate) fn is_awaited(row: &Row) -> bool {
    row.token.load(Ordering::Acquire) & AWAITED != 0
}

/// Whether a process died while it sent its own: nobody knows how much of it.
pub(crate) fn is_owed(row: &Row) -> bool {
    has(&row.token, OWED)
}

fn has(word: &AtomicU32, bit: u32) -> bool {
    word.load(Ordering::Acquire) & bit != 0
}

fn key(row: &Row) -> TokenKey {
    let word = |at: usize| row.source.words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
    TokenKey::from_words([word(words::TOKEN_KEY), word(words::TOKEN_KEY + 1)])
}

/// Takes the incoming token, where the carrier was read up to the pending entry → SDP; its section is
/// followed with it. Under the lock of the receiving half. False: it has not come yet.
///
/// # Errors
/// It is wrong, or the section is not empty: the connection is reset.
#[cold]
pub(crate) fn take(
    conn: &Conn,
    fd: c_int,
    sink: &mut SinkState,
    row: &Row,
    half: ShmHalf<'_>,
) -> Result<bool, Broken> {
    let Some(begin) = sink.pending(half)? else { return Ok(false) };
    let mut bytes = [0; TOKEN_LEN];
    if fd::receive(fd, &mut bytes, libc::MSG_PEEK | libc::MSG_DONTWAIT) != Ok(TOKEN_LEN) {
        return Ok(false);
    }
    let mut walk = *sink;
    walk.lane = Lane::Sdp;
    walk.followed = walk.followed.wrapping_add(1);
    let (_, head) = sink.rx.cursors();
    let is_section = begin.to == Lane::Sdp
        && begin.fabric == head
        && walk.pending(half)?.is_some_and(|end| {
            end.carrier == begin.carrier.wrapping_add(LEN) && end.fabric == head
        });
    if !is_section || !key(row).is_token_of(1 - conn.side() as u8, &bytes) {
        reset(conn);
        return Err(Broken);
    }
    // First: a next owner takes what is left of the section for one with wake bytes.
    row.token.fetch_and(!AWAITED, Ordering::AcqRel);
    if carrier::consume(fd, LEN) != LEN {
        return Err(Broken);
    }
    arming::note_consumed(conn);
    sink.carrier_read = begin.carrier.wrapping_add(LEN);
    sink.follow(half, Lane::Sdp);
    sink.follow(half, Lane::Kernel);
    Ok(true)
}

/// How an attempt to send the own token ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is gone, or not to be sent now: what comes next may go by the carrier.
    Whatever,
    /// Nothing may go by the carrier before the rest of it has.
    Full,
    /// The connection is over.
    Failed(Errno),
}

/// Sends the own token, if it is due and its reader ready for it. Under the lock of the sending half,
/// which is on the kernel lane. `is_alone`: no payload comes behind it at once, so it must wake no sleeper
/// that does not look at the log.
#[cold]
pub(crate) fn send(
    conn: &ConnGuard,
    source: &mut SourceState,
    row: &Row,
    link: ShmLink,
    half: ShmHalf<'_>,
    is_alone: bool,
) -> Sent {
    let word = row.token.load(Ordering::Acquire);
    if word & OWED != 0 {
        return rest(conn, source, row, half);
    }
    let is_first = conn.side() == 0;
    let is_ready = word & DUE != 0
        && (is_first || word & AWAITED == 0)
        && (!is_alone || half.trust() != Trust::Reads)
        && !conn.has(Limits::Shut)
        && send::may_switch(conn, source, link, half)
        && carrier::readiness(conn.fd(), libc::POLLOUT) == libc::POLLOUT;
    if !is_ready {
        return Sent::Whatever;
    }
    let Ok(sent) = carrier::sent(conn.fd()) else { return Sent::Whatever };
    source.carrier_sent = sent;
    let token = key(row).of_side(conn.side() as u8);
    let is_written = gated(conn, half, conn.side(), || {
        if half.trust() == Trust::No || send::has_peer_closed(conn) {
            return false;
        }
        row.token.fetch_or(OWED, Ordering::AcqRel);
        source.switch(half, Lane::Sdp);
        source.carrier_sent = sent.wrapping_add(LEN);
        source.switch(half, Lane::Kernel);
        source.publish_sent(half);
        let _ = fd::send(conn.fd(), &token, FLAGS);
        true
    });
    match is_written {
        Some(true) => rest(conn, source, row, half),
        Some(false) => Sent::Whatever,
        None => {
            reset(conn);
            Sent::Failed(Errno::ECONNRESET)
        }
    }
}

/// Sends what the kernel did not take of the announced token.
fn rest(conn: &ConnGuard, source: &SourceState, row: &Row, half: ShmHalf<'_>) -> Sent {
    let token = key(row).of_side(conn.side() as u8);
    loop {
        let left = carrier::sent(conn.fd()).map(|sent| source.carrier_sent.wrapping_sub(sent));
        let bytes = match left {
            Ok(0) => {
                row.token.fetch_and(!(DUE | OWED), Ordering::AcqRel);
                return Sent::Whatever;
            }
            Ok(left @ 1..=LEN) => token.get(TOKEN_LEN - left as usize..).unwrap_or(&[]),
            Ok(_) => {
                reset(conn);
                return Sent::Failed(Errno::ECONNRESET);
            }
            Err(error) => return Sent::Failed(error),
        };
        match gated(conn, half, conn.side(), || fd::send(conn.fd(), bytes, FLAGS)) {
            Some(Ok(_)) => {}
            Some(Err(Errno::EAGAIN)) => return Sent::Full,
            Some(Err(error)) => {
                conn.note_reported(error);
                return Sent::Failed(error);
            }
            None => {
                reset(conn);
                return Sent::Failed(Errno::ECONNRESET);
            }
        }
    }
}

/// Before a send: whether the other end's token has come, which only a receive call looks for
/// otherwise. Under the lock of the sending half, so that of the receiving one is only tried (L11).
#[cold]
pub(crate) fn look(conn: &ConnGuard, row: &Row) {
    if !is_awaited(row) {
        return;
    }
    let fd = conn.fd();
    let _ = receive::try_sink(conn, false, |sink, _, _, half| {
        receive::follow_pending(conn, fd, sink, half);
        Ok(())
    });
}

/// After a receive: sends the own token, if that is possible without payload behind it.
#[cold]
pub(crate) fn speak(conn: &ConnGuard) {
    if conn.has(Limits::Hostile) || !conn.row().is_some_and(|row| has(&row.token, DUE)) {
        return;
    }
    let _ = send::with_source(conn, |source, row, link, half| {
        if source.lane == Lane::Kernel {
            send(conn, source, row, link, half, true);
        }
        Ok(())
    });
}

#[cfg(test)]
mod model;

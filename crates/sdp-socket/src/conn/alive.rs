//! Keeps a connection that is busy on its lanes known to what keeps state of connections.
//!
//! Called where a thread has slept until bytes came, and where the ring comes round; [`withdraw`] where the connection
//! leaves its lanes, and where the program looks at the options or sets them.
//!
//! A lane sends no packet, however busy it is. Connection tracking, NAT and balancers forget a connection without packets
//! after a time, and drop what comes later: the FIN of its end, and all bytes behind a lane switch. So the kernel is
//! asked for one keepalive probe a second, while bytes move on the lanes. A connection that is idle here is as
//! idle as over TCP.
//!
//! The kernel sends the probe by the clock of `SO_KEEPALIVE`, which goes on for one probe only, because the next one would
//! come [`NEVER_S`] later. A program that has set the option itself has its own probes.

use core::sync::atomic::{AtomicU64, Ordering};

use libc::{
    IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, c_int,
};
use sdp_sys::{fd, section, time::monotonic_ns};

use crate::conn::{self, Conn, Limits, Stage};

/// Seconds without a packet after which one is sent.
const IDLE_S: c_int = 1;
/// The longest time that the kernel takes between two probes.
const NEVER_S: c_int = 32_767;
/// The most probes without an answer that it takes.
const PATIENCE: c_int = 127;
/// In [`Conn::probed`]: the library's probes are on. The other bits are the clock, which is never 0.
const IS_ON: u32 = 1 << 31;
const IS_SET: u32 = 1 << 30;

/// What the options are where nothing has set them, as the first connection has them: idle time, interval and count, of 15,
/// 15 and 7 bits, and one more; 0 not known yet. A connection with others has what its program wants.
static USUAL: AtomicU64 = AtomicU64::new(0);

/// A clock that goes on by one in about a second.
fn now() -> u32 {
    (monotonic_ns() >> 30) as u32 & (IS_SET - 1) | IS_SET
}

/// Bytes have moved on the lanes.
#[inline]
pub(crate) fn moved(conn: &Conn) {
    let (now, before) = (now(), conn.probed.load(Ordering::Relaxed));
    if now != before & !IS_ON {
        is_due(conn, before, now);
    }
}

#[cold]
#[inline(never)]
fn is_due(conn: &Conn, before: u32, now: u32) {
    let note = |before, to| {
        conn.probed.compare_exchange(before, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    // A connection that is on its lanes for less than a second costs nothing.
    if !note(before, now | before & IS_ON)
        || before == 0
        || conn.stage() != Stage::Attached
        || conn.has(Limits::Fallback)
    {
        return;
    }
    let _section = section::Guard::enter();
    let Some(carrier) = conn::number_of(conn) else { return };
    if before & IS_ON == 0 && !(is_usual(carrier) && note(now, now | IS_ON) && begin(carrier)) {
        return;
    }
    // Sets the clock anew: the time is over already, if no packet came for so long.
    let _ = fd::setsockopt_int(carrier, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S);
}

/// Whether the program has set none of the options.
fn is_usual(carrier: c_int) -> bool {
    let asked = |level, name, most: c_int| {
        let value = fd::getsockopt_int(carrier, level, name).ok()?;
        (0..=most).contains(&value).then_some(value as u64)
    };
    let values = [
        asked(SOL_SOCKET, SO_KEEPALIVE, 0),
        asked(IPPROTO_TCP, TCP_KEEPIDLE, NEVER_S),
        asked(IPPROTO_TCP, TCP_KEEPINTVL, NEVER_S),
        asked(IPPROTO_TCP, TCP_KEEPCNT, PATIENCE),
    ];
    let [Some(_), Some(idle), Some(interval), Some(count)] = values else { return false };
    let found = 1 << 63 | count << 30 | interval << 15 | idle;
    let known = USUAL.compare_exchange(0, found, Ordering::Relaxed, Ordering::Relaxed);
    known.is_ok() || known == Err(found)
}

fn begin(carrier: c_int) -> bool {
    let _ = fd::setsockopt_int(carrier, IPPROTO_TCP, TCP_KEEPINTVL, NEVER_S);
    let _ = fd::setsockopt_int(carrier, IPPROTO_TCP, TCP_KEEPCNT, PATIENCE);
    fd::setsockopt_int(carrier, SOL_SOCKET, SO_KEEPALIVE, 1).is_ok()
}

/// The options are as the program left them.
#[inline]
pub(crate) fn withdraw(conn: &Conn) {
    if conn.probed.load(Ordering::Relaxed) & IS_ON != 0 {
        end(conn);
    }
}

#[cold]
#[inline(never)]
fn end(conn: &Conn) {
    let was_on = conn.probed.fetch_and(!IS_ON, Ordering::Relaxed) & IS_ON != 0;
    let Some(carrier) = conn::number_of(conn).filter(|_| was_on) else { return };
    let usual = USUAL.load(Ordering::Relaxed);
    let part = |at: u32, bits: u32| (usual >> at & ((1 << bits) - 1)) as c_int;
    let _ = fd::setsockopt_int(carrier, SOL_SOCKET, SO_KEEPALIVE, 0);
    for (name, value) in
        [(TCP_KEEPIDLE, part(0, 15)), (TCP_KEEPINTVL, part(15, 15)), (TCP_KEEPCNT, part(30, 7))]
    {
        let _ = fd::setsockopt_int(carrier, IPPROTO_TCP, name, value);
    }
}

/// Whether an option is one of those.
pub(crate) fn is_about(level: c_int, name: c_int) -> bool {
    matches!(
        (level, name),
        (SOL_SOCKET, SO_KEEPALIVE) | (IPPROTO_TCP, TCP_KEEPIDLE | TCP_KEEPINTVL | TCP_KEEPCNT)
    )
}

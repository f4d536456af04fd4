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
//! come [`NEVER_S`] later. A program that has set such an option itself has its own probes.
//!
//! The options are the socket's, which other processes may have, too. So probes begin only where no family member has the
//! connection, and each change is made only while the options are as this library sets them. Threads of one process change
//! them one at a time, never behind a call of the program that sets them.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use libc::{
    IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, c_int,
};
use sdp_sys::{
    fd, section,
    time::{monotonic_ns, yield_now},
};

use crate::conn::{self, Conn, Limits, Stage, sharing};

/// Seconds without a packet after which one is sent.
const IDLE_S: c_int = 1;
/// The longest time that the kernel takes between two probes.
const NEVER_S: c_int = 32_767;
/// The most probes without an answer that it takes.
const PATIENCE: c_int = 127;
/// In [`Conn::probed`]: the library's probes are on. Bits that are not named are the clock.
const IS_ON: u32 = 1 << 31;
/// The clock is never 0.
const IS_SET: u32 = 1 << 30;
/// A thread changes the options.
const IS_CHANGING: u32 = 1 << 29;
/// The program has set one of them: no probes of the library any more.
const IS_GIVEN_UP: u32 = 1 << 28;
const FLAGS: u32 = IS_ON | IS_CHANGING | IS_GIVEN_UP;
/// Clocks for which no probes begin after the program has looked at the options.
const LOOKED: u32 = 2;
/// Looks at a change that another thread makes; then a fork has left that thread behind.
const PATIENT_LOOKS: u32 = 10_000;

/// What the options are where nothing has set them, as the first connection has them: idle time, interval and count, of 15,
/// 15 and 7 bits, and one more; 0 not known yet. A connection with others has what its program wants.
static USUAL: AtomicU64 = AtomicU64::new(0);

/// A clock that goes on by one in about a second.
fn clock(now_ns: u64) -> u32 {
    (now_ns >> 30) as u32 & (IS_GIVEN_UP - 1) | IS_SET
}

/// Bytes have moved on the lanes, at a time in monotonic nanoseconds.
#[inline]
pub(crate) fn moved(conn: &Conn, now_ns: u64) {
    let (now, before) = (clock(now_ns), conn.probed.load(Relaxed));
    if now > before & !FLAGS && before & IS_GIVEN_UP == 0 {
        is_due(conn, before, now);
    }
}

/// The time for [`moved`] in a pass over several connections, which reads the clock once at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    now_ns: u64,
}

impl Pass {
    pub(crate) fn moved(&mut self, conn: &Conn) {
        if self.now_ns == 0 {
            self.now_ns = monotonic_ns();
        }
        moved(conn, self.now_ns);
    }
}

#[cold]
#[inline(never)]
fn is_due(conn: &Conn, before: u32, now: u32) {
    let note = |to| conn.probed.compare_exchange(before, to, Acquire, Relaxed).is_ok();
    // A connection that is on its lanes for less than a second costs nothing.
    if before == 0 || conn.stage() != Stage::Attached || conn.has(Limits::Fallback) {
        note(now | before & FLAGS);
        return;
    }
    let _section = section::Guard::enter();
    if before & IS_CHANGING != 0 || !note(now | before & IS_ON | IS_CHANGING) {
        return;
    }
    let mut is_on = before & IS_ON != 0;
    if let Some(carrier) = conn::number_of(conn) {
        is_on = match is_on {
            true => is_ours(carrier),
            false => !sharing::may_family_hold(conn) && is_usual(carrier) && begin(carrier),
        };
        if is_on {
            // Sets the kernel's clock anew: the time is over already, if no packet came for so long.
            let _ = fd::setsockopt_int(carrier, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S);
        }
    }
    // Flags that came meanwhile stay: the thread that set them waits for this change.
    let _ = conn.probed.fetch_update(Release, Relaxed, |word| {
        Some(word & !(IS_CHANGING | IS_ON) | if is_on { IS_ON } else { 0 })
    });
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
    let known = USUAL.compare_exchange(0, found, Relaxed, Relaxed);
    known.is_ok() || known == Err(found)
}

/// The options while the probes are on, in the order in which they are set.
const OURS: [(c_int, c_int, c_int); 4] = [
    (IPPROTO_TCP, TCP_KEEPINTVL, NEVER_S),
    (IPPROTO_TCP, TCP_KEEPCNT, PATIENCE),
    (SOL_SOCKET, SO_KEEPALIVE, 1),
    (IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S),
];

/// Whether the options are as [`begin`] left them: another process that has the socket may have set them.
#[inline(never)]
fn is_ours(carrier: c_int) -> bool {
    OURS.iter().all(|&(level, name, value)| fd::getsockopt_int(carrier, level, name) == Ok(value))
}

fn begin(carrier: c_int) -> bool {
    OURS.iter().all(|&(level, name, value)| fd::setsockopt_int(carrier, level, name, value).is_ok())
}

/// The options are as the program left them.
#[inline]
pub(crate) fn withdraw(conn: &Conn) {
    if conn.probed.load(Relaxed) & (IS_ON | IS_CHANGING) != 0 {
        end(conn, 0, None);
    }
}

/// In a fork child: no other thread changes the options any more.
pub(crate) fn forget_threads(conn: &Conn) {
    // Without a write, which copies the page, where there is none.
    if conn.probed.load(Relaxed) & IS_CHANGING != 0 {
        conn.probed.fetch_and(!IS_CHANGING, Relaxed);
    }
}

/// As [`withdraw`], because the program looks at the options, or sets them: then they stay its own.
#[cold]
#[inline(never)]
pub(crate) fn make_way(conn: &Conn, sets: bool) {
    // Until its call is over, that is.
    let later = clock(monotonic_ns()).wrapping_add(LOOKED);
    end(conn, if sets { IS_GIVEN_UP } else { 0 }, Some(later));
}

/// `later`: the clock from then on; with the same step, or another thread would begin probes in between.
#[cold]
#[inline(never)]
fn end(conn: &Conn, with: u32, later: Option<u32>) {
    let _section = section::Guard::enter();
    let mut looks = 0;
    let was_on = loop {
        let before = conn.probed.fetch_or(IS_CHANGING | with, Acquire);
        if before & IS_CHANGING == 0 || looks == PATIENT_LOOKS {
            break before & IS_ON != 0 || looks == PATIENT_LOOKS;
        }
        looks += 1;
        yield_now();
    };
    if was_on && let Some(carrier) = conn::number_of(conn).filter(|carrier| is_ours(*carrier)) {
        restore(carrier);
    }
    let _ = conn.probed.fetch_update(Release, Relaxed, |word| {
        let clock = later.unwrap_or(word & !FLAGS);
        Some(word & IS_GIVEN_UP | clock)
    });
}

fn restore(carrier: c_int) {
    let usual = USUAL.load(Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_waits_for_no_thread_of_its_parent() {
        let (_, conn) = conn::create(Stage::Fresh).expect("a slot is free");
        for flag in [0, IS_ON, IS_GIVEN_UP] {
            conn.probed.store(IS_SET | IS_CHANGING | flag | 5, Relaxed);
            conn.forget_threads();
            assert_eq!(conn.probed.load(Relaxed), IS_SET | flag | 5);
        }
    }

    #[test]
    fn who_looks_at_the_options_puts_the_next_probe_off() {
        let (_, conn) = conn::create(Stage::Fresh).expect("a slot is free");
        for (sets, flag) in [(false, 0), (true, IS_GIVEN_UP)] {
            let before = clock(monotonic_ns());
            conn.probed.store(before, Relaxed);
            make_way(conn, sets);
            let word = conn.probed.load(Relaxed);
            assert!(word & !FLAGS >= before + LOOKED, "{word:x}, {before:x}");
            assert_eq!(word & FLAGS, flag);
        }
    }
}

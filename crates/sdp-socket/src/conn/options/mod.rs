//! The effect on the lane of each option, request and flag that a program can give to a socket.
//!
//! One table for each kind. The calls ask it, `docs/spec/socket-options.md` is made from it, and a
//! test holds it complete against the kernel's headers (`tests/socket_options.rs`).
//!
//! An option that is not in the table is newer than the library. At the levels that decide what a
//! stream delivers and how it ends (`SOL_SOCKET`, `IPPROTO_TCP`) it takes the connection off the
//! lane, because its effect is unknown. At the levels of packets (`IPPROTO_IP`, `IPPROTO_IPV6`) and
//! at levels of other protocols it does not.

use libc::{c_int, c_void, socklen_t};
use sdp_stats::Reason;
use sdp_sys::{errno::Errno, fd, kernel, memory};

use crate::{
    conn::{ConnGuard, Half},
    process,
};

/// The effect on the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The library sees to it on the SDP lane.
    Works,
    /// The TCP socket's own, or nothing on a connection: the lane stays, the kernel answers.
    Unconcerned,
    /// The connection goes back to TCP for good, before the call.
    Leaves(Leaving),
}

/// How the lane is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Why, in reports.
    pub reason: Reason,
    /// For which values.
    pub when: When,
    /// Unread bytes of the ring are handed to the kernel, which is to interpret them, or to count
    /// them. Otherwise the library's receive calls go on to deliver the rest.
    pub hands_over: bool,
}

/// The values of an option that take a connection off its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Any.
    Always,
    /// All but 0, which turns the option off.
    Set,
    /// More than 1; a negative value means all that there may be.
    AboveOne,
    /// 0 and more: a negative value turns the option off.
    NotNegative,
    /// All but the greatest number, which means no limit.
    Limited,
}

impl When {
    fn holds(self, value: i32) -> bool {
        match self {
            Self::Always => true,
            Self::Set => value != 0,
            Self::AboveOne => !(0..=1).contains(&value),
            Self::NotNegative => value >= 0,
            Self::Limited => value != -1,
        }
    }
}

/// One row: names with their numbers, and what they have in common.
#[derive(Debug)]
pub struct Row {
    /// Each name and its number.
    pub names: &'static [(&'static str, u32)],
    /// The effect on the lane.
    pub verdict: Verdict,
    /// One sentence for the manual; empty where the verdict says all.
    pub note: &'static str,
}

/// A table for the manual, and its function for the calls, which needs no text.
macro_rules! table {
    ($(#[$meta:meta])* $table:ident $verdict_of:ident;
     $([$($name:ident $number:literal),+ $(,)?] $verdict:expr, $note:literal;)*) => {
        $(#[$meta])*
        pub const $table: &[Row] = &[$(Row {
            names: &[$((stringify!($name), $number)),+],
            verdict: $verdict,
            note: $note,
        },)*];

        #[allow(unreachable_patterns, reason = "several names may have one number")]
        #[allow(clippy::manual_range_patterns, reason = "the tables list what there is")]
        #[allow(dead_code, reason = "some tables are for the manual and the tests only")]
        pub(super) const fn $verdict_of(number: u32) -> Option<Verdict> {
            match number {
                $($($number)|+ => Some($verdict),)*
                _ => None,
            }
        }
    };
}

const WORKS: Verdict = Verdict::Works;
const KERNEL: Verdict = Verdict::Unconcerned;

const fn leaves(reason: Reason, when: When) -> Verdict {
    Verdict::Leaves(Leaving { reason, when, hands_over: false })
}

/// The same where the kernel goes on with the unread bytes.
const fn hands_over(reason: Reason, when: When) -> Verdict {
    Verdict::Leaves(Leaving { reason, when, hands_over: true })
}

/// For options that only the kernel can honour.
const UNSUITABLE: Reason = Reason::UnsuitableSocket;
/// The verdict on an option that is newer than the library.
const UNKNOWN: Verdict = hands_over(UNSUITABLE, When::Always);

pub mod flags;
pub mod historic;
pub mod ip;
pub mod requests;
pub mod socket;
pub mod tcp;

const fn named(number: c_int) -> u32 {
    number as u32
}

/// The effect on the lane of setting an option.
pub fn set(level: c_int, name: c_int) -> Verdict {
    match level {
        libc::SOL_SOCKET => socket::set(named(name)).unwrap_or(UNKNOWN),
        libc::IPPROTO_TCP => tcp::set(named(name)).unwrap_or(UNKNOWN),
        libc::IPPROTO_IP => ip::set(named(name)).unwrap_or(KERNEL),
        libc::IPPROTO_IPV6 => ip::set6(named(name)).unwrap_or(KERNEL),
        _ => KERNEL,
    }
}

/// The effect of asking for an option: one of them is a receive call.
pub fn get(level: c_int, name: c_int) -> Verdict {
    match (level, name) {
        (libc::IPPROTO_TCP, tcp::ZEROCOPY_RECEIVE) => hands_over(UNSUITABLE, When::Always),
        _ => KERNEL,
    }
}

/// After a `getsockopt` that succeeded: it has reported an error that the program asked for with
/// `SO_ERROR`, and no receive call reports it again. An error that the kernel has reported to the
/// library alone is returned in its place.
///
/// # Safety
/// The kernel has written to `value`, as many bytes as `len` says.
pub unsafe fn option_read(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *const socklen_t,
) {
    if (level, name) != (libc::SOL_SOCKET, libc::SO_ERROR) || !process::is_ours() {
        return;
    }
    // SAFETY: the caller's.
    if (unsafe { *len } as usize) < size_of::<c_int>() {
        return;
    }
    let Some(conn) = ConnGuard::new(fd, Half::Receive) else { return };
    // SAFETY: the kernel has written as many bytes, which the program has lent to this call.
    let value = unsafe { &mut *value.cast::<[u8; size_of::<c_int>()]>() };
    let mut error = c_int::from_ne_bytes(*value);
    if error == 0
        && let Some(pending) = conn.take_pending_error()
    {
        error = pending.0;
        *value = error.to_ne_bytes();
    }
    if error != 0 {
        conn.note_reported(Errno(error));
    }
}

/// The effect of an `ioctl`.
pub(crate) fn ioctl(request: libc::c_ulong) -> Verdict {
    // The kernel looks at 32 bits.
    requests::ioctl(request as u32).unwrap_or(KERNEL)
}

/// The effect of an `fcntl`.
pub(crate) fn fcntl(command: c_int, arg: usize) -> Verdict {
    match command {
        libc::F_SETFL if arg as c_int & libc::O_ASYNC == 0 => KERNEL,
        _ => requests::fcntl(named(command)).unwrap_or(KERNEL),
    }
}

impl Leaving {
    /// Whether a program's value is one of those that take the connection off. One that cannot be read counts as one:
    /// the kernel refuses it.
    pub(crate) fn holds_for(&self, value: *const c_void, len: socklen_t) -> bool {
        if self.when == When::Always {
            return true;
        }
        if (len as usize) < size_of::<i32>() {
            return false; // EINVAL, by the kernel
        }
        let is_long = self.when == When::Limited && len as usize >= size_of::<u64>();
        let needed = if is_long { size_of::<u64>() } else { size_of::<i32>() };
        if !memory::is_readable(value.cast(), needed) {
            return true;
        }
        if is_long {
            // SAFETY: eight readable bytes.
            return unsafe { value.cast::<u64>().read_unaligned() } != u64::MAX;
        }
        // SAFETY: four readable bytes.
        self.when.holds(unsafe { value.cast::<i32>().read_unaligned() })
    }
}

/// Options for which the kernel returns a number, and that take a connection off its lane for some
/// numbers.
const ASKED: &[(c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, socket::TIMESTAMPING_OLD),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, tcp::TX_DELAY),
];

/// The one with which calls would give wrong bytes on a lane.
const HIDDEN: &[(c_int, c_int)] = &[(libc::SOL_SOCKET, libc::SO_PEEK_OFF)];

/// Why a connection may not have a lane, although no hook saw anything against it: a system call of
/// the program's own may have set an option. It leaves out options that would do less harm than the
/// question costs both ends of a promotion.
pub(crate) fn hidden_in_the_way(fd: c_int) -> Option<Reason> {
    asked(fd, HIDDEN)
}

/// The same for a connection that came from elsewhere, or whose listener had an option set.
pub(crate) fn in_the_way(fd: c_int) -> Option<Reason> {
    if let Some(reason) = asked(fd, ASKED) {
        return Some(reason);
    }
    if has_filter(fd) || has_ulp(fd) {
        return Some(UNSUITABLE);
    }
    let flags = fd::status_flags(fd).unwrap_or(0);
    (flags & libc::O_ASYNC != 0).then_some(Reason::SignalDriven)
}

fn asked(fd: c_int, options: &[(c_int, c_int)]) -> Option<Reason> {
    for (level, name) in options {
        if let Verdict::Leaves(leaving) = set(*level, *name)
            && let Ok(value) = fd::getsockopt_int(fd, *level, *name)
            && is_set(leaving.when, value)
        {
            return Some(leaving.reason);
        }
    }
    None
}

/// Whether a value that the kernel returns is one of those. For an option that only takes effect
/// when it is turned on, the kernel returns 0 where it never was.
fn is_set(when: When, value: i32) -> bool {
    match when {
        When::Always => value > 0,
        when => when.holds(value),
    }
}

/// Whether the kernel adds the time to messages that a `recvmsg` with room for control data
/// receives.
#[cold]
pub(crate) fn has_stamps(fd: c_int) -> bool {
    use socket::{TIMESTAMP_NEW, TIMESTAMP_OLD, TIMESTAMPNS_NEW, TIMESTAMPNS_OLD};
    let is_on = |name| fd::getsockopt_int(fd, libc::SOL_SOCKET, name).is_ok_and(|on| on != 0);
    [TIMESTAMP_OLD, TIMESTAMPNS_OLD, TIMESTAMP_NEW, TIMESTAMPNS_NEW].into_iter().any(is_on)
}

/// Whether a `recvmsg` with room for control data is told how many bytes are left to read.
#[cold]
pub(crate) fn tells_unread(fd: c_int) -> bool {
    fd::getsockopt_int(fd, libc::IPPROTO_TCP, tcp::INQ).is_ok_and(|on| on != 0)
}

/// Asked for no room, the kernel returns how long the filter is; it does not show an attached
/// program.
fn has_filter(fd: c_int) -> bool {
    match kernel::getsockopt_len(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) {
        Ok(len) => len != 0,
        Err(e) => e.0 == libc::EACCES,
    }
}

fn has_ulp(fd: c_int) -> bool {
    let mut name = [0u8; 16];
    kernel::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name).is_ok_and(|len| len != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_a_value_is_asked_for() {
        let of = |level, rows: &'static [Row]| {
            rows.iter().flat_map(move |row| {
                row.names.iter().map(move |(name, number)| (level, *name, *number, row.verdict))
            })
        };
        let all = of(libc::SOL_SOCKET, socket::OPTIONS).chain(of(libc::IPPROTO_TCP, tcp::OPTIONS));
        for (level, name, number, verdict) in all {
            // One question covers both.
            let is_covered_by_another = name == "SO_TIMESTAMPING_NEW";
            if let Verdict::Leaves(leaving) = verdict
                && leaving.when != When::Always
                && !is_covered_by_another
            {
                assert!(ASKED.contains(&(level, number as c_int)), "{name}");
            }
        }
    }

    #[test]
    fn values_are_read_as_the_kernel_reads_them() {
        let holds = |when, value: &[u8]| {
            let leaving = Leaving { reason: UNSUITABLE, when, hands_over: false };
            let mut room = [0u8; 8];
            room[..value.len()].copy_from_slice(value);
            leaving.holds_for(room.as_ptr().cast(), value.len() as socklen_t)
        };
        for (when, off, on) in [
            (When::Set, 0, 1),
            (When::AboveOne, 1, 2),
            (When::NotNegative, -1, 0),
            (When::Limited, -1, 1000),
        ] {
            assert!(!holds(when, &i32::to_ne_bytes(off)), "{when:?} {off}");
            assert!(holds(when, &i32::to_ne_bytes(on)), "{when:?} {on}");
            assert!(!holds(when, &[9]), "too short for the kernel");
        }
        assert!(!holds(When::Limited, &u64::MAX.to_ne_bytes()));
        assert!(holds(When::Limited, &u64::from(u32::MAX).to_ne_bytes()));
        let set = Leaving { reason: UNSUITABLE, when: When::Set, hands_over: false };
        assert!(set.holds_for(core::ptr::without_provenance(8), 4));
    }
}

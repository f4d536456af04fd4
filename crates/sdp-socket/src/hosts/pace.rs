//! When the next step towards a queue pair is due. A call asks here before it takes the device's
//! lock: before its time it costs some loads and a look at the clock.
//!
//! Events of the connection manager wake threads that sleep. For a program that never sleeps calls
//! look, at distances that grow while nothing comes ([`is_look_due`]).

use core::sync::atomic::{AtomicU64, Ordering};

use sdp_remote::Role;
use sdp_sys::time::{coarse_ns, monotonic_ns};

use super::{
    pair::{Attempt, Pair},
    places,
};

/// Between two attempts, after the first few; and at most, where nothing shows that the other end has
/// the library.
pub(super) const RETRY_NS: u64 = 5_000_000;
pub(super) const RETRY_MOST_NS: u64 = 60_000_000_000;
/// At most, where the other end has answered: it has the library, and comes when it has earned it.
/// Or where no other end was asked.
const SOON_MOST_NS: u64 = 1_000_000_000;
/// Attempts before the distance grows beyond [`RETRY_NS`].
const EAGER_TRIES: u32 = 10;
/// Behind the first two attempts, twice that behind the next two, and so on. The other end listens as
/// soon as its calls have earned the lane and its device is open; a sender of bulk waits for that.
const FIRST_RETRY_NS: u64 = 250_000;
/// After a device or a queue pair was lost, before another one is looked for, at first.
pub(super) const REOPEN_NS: u64 = 1_000_000_000;
/// Between two looks of calls, after one that found something, and at most.
const LOOK_NS: u64 = 20_000;
const LOOK_MOST_NS: u64 = 100_000_000;
/// An end that has waited for so long to be asked says that nobody is there.
const IN_VAIN_NS: u64 = 1_000_000_000;
/// A distance of which a tick of the kernel is a part.
const RARE_NS: u64 = 40_000_000;

/// When a call is to look next, in nanoseconds, and how long after the look before. Hints: threads may race.
static NEXT_LOOK_NS: AtomicU64 = AtomicU64::new(0);
static DISTANCE_NS: AtomicU64 = AtomicU64::new(LOOK_NS);

/// Knowledge of the other end from an attempt that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// Nothing: no process was there.
    Nothing,
    /// Nothing: it was not asked, since this end could not.
    NotYet,
    /// It has the library, which refused.
    Library,
    /// It has another version of the library.
    OtherVersion,
}

/// Whether a call is to look for events of the connection manager.
#[inline]
pub(super) fn is_look_due(now: u64) -> bool {
    now >= NEXT_LOOK_NS.load(Ordering::Relaxed)
}

/// A thread has looked; `found`: there were events, or there are about to be.
pub(super) fn has_looked(found: bool) {
    let distance = match found {
        true => LOOK_NS,
        false => (DISTANCE_NS.load(Ordering::Relaxed) * 2).min(LOOK_MOST_NS),
    };
    DISTANCE_NS.store(distance, Ordering::Relaxed);
    NEXT_LOOK_NS.store(monotonic_ns() + distance, Ordering::Relaxed);
}

/// Whether the connection is to take a step towards a queue pair of its own. Loads.
#[inline]
pub(super) fn is_step_due(pair: &Pair, now: u64) -> bool {
    (!pair.is_out.load(Ordering::Relaxed) || pair.shared.is_link_dead())
        && now >= pair.next_ns.load(Ordering::Relaxed)
}

/// Whether a call on a connection that has not met has nothing to do but to move bytes: neither a step nor a look is due.
/// While looks are rare, by a clock that is late by a tick of the kernel.
#[inline]
pub(super) fn is_quiet(pair: &Pair) -> bool {
    let is_rare = DISTANCE_NS.load(Ordering::Relaxed) >= RARE_NS;
    let now = if is_rare { coarse_ns() } else { monotonic_ns() };
    !is_step_due(pair, now) && (!is_look_due(now) || !places::is_any_open())
}

/// When a thread that sleeps is to come back for one of the first attempts, in nanoseconds.
pub(super) fn next_try(pair: &Pair) -> Option<u64> {
    let is_soon = pair.is_soon.load(Ordering::Relaxed) && !pair.is_out.load(Ordering::Relaxed);
    is_soon.then(|| pair.next_ns.load(Ordering::Relaxed))
}

/// No step for so long.
pub(super) fn rest(pair: &Pair, ns: u64) {
    pair.is_soon.store(false, Ordering::Relaxed);
    pair.next_ns.store(monotonic_ns() + ns, Ordering::Relaxed);
}

/// An attempt came to nothing: the next one later. `attempt` is the pair's.
pub(super) fn put_off(pair: &Pair, attempt: &mut Attempt, shown: Shown) {
    attempt.meeting.give_up();
    pair.is_out.store(false, Ordering::Relaxed);
    attempt.tries = attempt.tries.saturating_add(1);
    attempt.has_answered |= shown == Shown::Library;
    let is_soon = attempt.has_answered || shown == Shown::NotYet;
    rest(
        pair,
        match shown {
            Shown::OtherVersion => RETRY_MOST_NS,
            _ => distance(attempt.tries, is_soon),
        },
    );
    let is_first = attempt.tries <= EAGER_TRIES && shown != Shown::OtherVersion;
    pair.is_soon.store(is_first, Ordering::Relaxed);
}

/// The other end was asked as often as one that comes a little later needs, and no library has answered.
pub(super) const fn is_nobody_there(attempt: &Attempt) -> bool {
    attempt.tries > EAGER_TRIES && !attempt.has_answered && attempt.met_ns == 0
}

/// An attempt has begun. A connector waits to be asked, in vain perhaps if its other end has not shown the library.
pub(super) fn has_begun(pair: &Pair, attempt: &Attempt) {
    let is_unknown = !attempt.has_answered && attempt.met_ns == 0;
    let until = if is_unknown && attempt.meeting.role() == Role::Connector {
        monotonic_ns() + IN_VAIN_NS
    } else {
        0
    };
    pair.in_vain_ns.store(until, Ordering::Relaxed);
}

/// Whether this end has waited in vain for the other one to ask. Once for each wait.
pub(super) fn has_listened_in_vain(pair: &Pair, now: u64) -> bool {
    let until = pair.in_vain_ns.load(Ordering::Relaxed);
    let is_late = until != 0 && now >= until && pair.is_out.load(Ordering::Relaxed);
    is_late && pair.in_vain_ns.swap(0, Ordering::Relaxed) != 0
}

/// To the next attempt, when so many have come to nothing.
fn distance(tries: u32, is_soon: bool) -> u64 {
    if tries <= EAGER_TRIES {
        return (FIRST_RETRY_NS << (tries.saturating_sub(1) / 2)).min(RETRY_NS);
    }
    let doubles = tries.saturating_sub(EAGER_TRIES).min(20);
    let most = if is_soon { SOON_MOST_NS } else { RETRY_MOST_NS };
    (RETRY_NS << doubles).min(most)
}

/// A queue pair was lost. A road that carries requests and no messages would cost a time-out at each attempt: they become
/// rare.
pub(super) fn put_off_after_loss(pair: &Pair, attempt: &mut Attempt) {
    let has_lasted = monotonic_ns().saturating_sub(attempt.met_ns) > RETRY_MOST_NS;
    attempt.losses = if has_lasted { 0 } else { attempt.losses.saturating_add(1) };
    // The road is gone; whether the other end still has one is to be seen.
    (attempt.tries, attempt.has_answered) = (0, false);
    let doubles = attempt.losses.saturating_sub(1).min(20);
    rest(pair, (REOPEN_NS << doubles).min(RETRY_MOST_NS));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_where_nobody_is() {
        let in_an_hour = |is_soon| {
            let mut at = 0;
            (1u32..).take_while(move |tries| {
                at += distance(*tries, is_soon);
                at < 60 * RETRY_MOST_NS
            })
        };
        let nobody = in_an_hour(false).count() as u32;
        assert!((EAGER_TRIES..EAGER_TRIES + 15 + 60).contains(&nobody), "{nobody}");
        // An end that comes late is met soon.
        assert!(in_an_hour(true).count() as u64 > 3500);
        assert!((1..10_000).all(|tries| distance(tries, true) <= SOON_MOST_NS));
    }
}

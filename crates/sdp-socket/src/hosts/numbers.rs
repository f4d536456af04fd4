//! A file of the program's is about to have the number of a device's descriptor: ours gets another.

use sdp_sys::{
    threads,
    time::{back_off_until, monotonic_ns},
};

use super::{
    device::{self, DeviceLock},
    places,
};
use crate::{process, wake::strangers};

/// How long a slow step is waited for, and how long threads that may still use the number.
const OTHERS_NS: u64 = 1_000_000_000;

/// Behind the same for doorbells.
pub(crate) fn move_off(from: i32) {
    device::events_moved(from, strangers::device_descriptor().unwrap_or(-1));
    let has_it = |at: &usize| {
        places::with_numbers(*at, |numbers| numbers.all().contains(&from)) == Some(true)
    };
    if !places::open_ones().any(|at| has_it(&at)) {
        return;
    }
    let lock = await_slow_step();
    for at in places::open_ones().filter(has_it) {
        let to = process::hidden_duplicate_above(from).unwrap_or(-1);
        let has_moved = places::with_numbers(at, |numbers| numbers.renumber(from, to));
        match has_moved {
            Some(true) if to < 0 => device::is_lost(at),
            Some(true) => {}
            // It was closed meanwhile.
            _ if to >= 0 => process::close_hidden(to),
            _ => {}
        }
    }
    drop(lock);
    // Steps, posts and looks that have read the number, which are not counted.
    threads::await_others(deadline());
}

fn deadline() -> u64 {
    monotonic_ns().saturating_add(OTHERS_NS)
}

/// Lets a slow step that another thread is at come to its end, and keeps others from beginning. `None`:
/// it may be waiting for what this thread holds, as in a handler that has interrupted an allocation.
/// The number changes all the same: in a moment it is the program's file.
fn await_slow_step() -> Option<DeviceLock> {
    let until = deadline();
    let mut lock = None;
    back_off_until(|| {
        lock = DeviceLock::take();
        lock.is_some() || monotonic_ns() >= until
    });
    lock
}

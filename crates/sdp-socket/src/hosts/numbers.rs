//! A file of the program's is about to have the number of a device's descriptor: ours gets another.

use sdp_sys::{
    threads,
    time::{monotonic_ns, yield_now},
};

use super::{
    device::{self, DeviceLock},
    places,
};
use crate::{process, wake::strangers};

/// How long other threads are waited for: those at a slow step, and those that may still use the number.
const OTHERS_NS: u64 = 1_000_000_000;

/// Behind the same for doorbells.
pub(crate) fn move_off(from: i32) {
    device::events_moved(from, strangers::device_descriptor().unwrap_or(-1));
    if !places::is_any_open() {
        return;
    }
    let deadline = monotonic_ns().saturating_add(OTHERS_NS);
    let mut lock = DeviceLock::take();
    while lock.is_none() && monotonic_ns() < deadline {
        yield_now();
        lock = DeviceLock::take();
    }
    let Some(mut lock) = lock else { return };
    let mut has_moved = false;
    for at in places::open_ones() {
        let Some(device) = device::device(&mut lock, at) else { continue };
        let fabric = device.host.fabric();
        if fabric.descriptors().contains(&from) {
            let to = process::hidden_duplicate_above(from).unwrap_or(-1);
            fabric.renumber(from, to);
            has_moved = true;
            if to < 0 {
                device::is_lost(at);
            }
        }
    }
    drop(lock);
    if has_moved {
        // Posts and looks are short, and not counted.
        threads::await_others(deadline);
    }
}

//! Whether the process's other threads have moved on.
//!
//! Used before a sandbox is entered, to let them come out of the library's short stretches of work,
//! which are not counted: a thread that sleeps in the kernel is out of them, and so is one that has
//! run for a while. It refuses to wait for ever, and to answer anything where there is no `/proc`.

use core::ffi::CStr;

use crate::{
    holders::{Held, each_entry},
    kernel::{self, owned},
    procfs,
    time::monotonic_ns,
};

/// Time on a CPU in which a thread comes out of any stretch of work that holds no connection.
const STRETCH_NS: u64 = 100_000;
/// How often a thread is looked at.
const SLEEP_NS: i64 = 50_000;
/// Longest path below a task's directory: ten digits, `/schedstat` and NUL.
const PATH_MAX: usize = 24;

/// Whether the process has threads beside the caller, by the kernel's word. True where it cannot be
/// found out.
pub fn has_others() -> bool {
    const SELF_AND_PARENT: u64 = 2; // links of a directory without any below it
    crate::stat::links(c"/proc/self/task").is_none_or(|links| links > SELF_AND_PARENT + 1)
}

/// Waits until every other thread has been seen asleep, or has run for a while since, or is gone; until
/// `deadline` (of [`monotonic_ns`]) at most.
pub fn await_others(deadline: u64) {
    let own = kernel::gettid().unwrap_or(0) as u64;
    let _ = each_entry(c"/proc/self/task", &mut |directory, name| {
        let digits = name.to_bytes();
        let Some(tid) = procfs::decimal(digits) else { return Held::No }; // . and ..
        if tid == own {
            return Held::No;
        }
        let mut ran = None;
        while monotonic_ns() < deadline && !has_moved_on(directory, digits, &mut ran) {
            crate::time::sleep(SLEEP_NS);
        }
        Held::No
    });
}

/// Whether a thread sleeps, is gone, or has run for a while since `ran` was filled in.
fn has_moved_on(directory: i32, tid: &[u8], ran: &mut Option<u64>) -> bool {
    let mut text = [0u8; 128];
    let state = read(directory, tid, b"/stat", &mut text).and_then(|text| {
        // The command's name stands in parentheses and may hold anything, parentheses too.
        text.get(text.iter().rposition(|byte| *byte == b')')? + 2)
    });
    if state != Some(&b'R') {
        return true;
    }
    let Some(now) = read(directory, tid, b"/schedstat", &mut text)
        .and_then(|text| procfs::decimal(text.split(|byte| *byte == b' ').next()?))
    else {
        return true; // a kernel that does not tell
    };
    now >= ran.get_or_insert(now).saturating_add(STRETCH_NS)
}

/// The beginning of a file of a task's directory.
fn read<'a>(directory: i32, tid: &[u8], name: &[u8], text: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = [0u8; PATH_MAX];
    // The last byte stays NUL.
    for (to, from) in path.iter_mut().take(PATH_MAX - 1).zip(tid.iter().chain(name)) {
        *to = *from;
    }
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let file = owned(kernel::openat(directory, path, flags, 0)).ok()?;
    let len = procfs::read(file.raw(), text).ok()?;
    text.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn sleepers_and_workers_are_not_waited_for_long() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let worker = std::thread::spawn(|| {
            while !STOP.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let (stop, sleeps) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || sleeps.recv().is_err());
        // Other tests' threads come and go; the test demands only that it ends before the deadline.
        let deadline = monotonic_ns() + 60_000_000_000;
        await_others(deadline);
        assert!(monotonic_ns() < deadline);
        STOP.store(true, Relaxed);
        drop(stop);
        worker.join().unwrap();
        assert!(sleeper.join().unwrap());
    }

    #[test]
    fn a_deadline_in_the_past_is_kept() {
        await_others(0);
    }
}

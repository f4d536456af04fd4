//! Processes that want the CPU that a measured pair needs: a loop that does nothing, for as long as the
//! test lasts. They are ended with it, and end by themselves when the tool dies.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Pin;
use super::pair::Guard;
use crate::Failure;
use crate::sys;

/// Running hogs; dropping ends them.
pub struct Hogs(Vec<Guard>);

impl Hogs {
    /// CPU time that they have used.
    pub fn cpu_ns(&self) -> u64 {
        self.0.iter().filter_map(|hog| sys::cpu_ns_of(hog.0.id()).ok()).sum()
    }
}

/// Starts `count` of them, on the CPUs of the pair.
///
/// # Errors
/// A process cannot be started.
pub fn start(count: usize, pin: Pin) -> Result<Hogs, Failure> {
    let allowed = sys::allowed_cpus();
    let one = |number| {
        let exe =
            std::env::current_exe().map_err(|e| Failure::new("cannot find my own file", e))?;
        let mut command = Command::new(exe);
        command.arg("perf-hog").stdin(Stdio::piped()).stdout(Stdio::null());
        let cpus = pin.cpus(&allowed, number);
        if !cpus.is_empty() {
            sys::before_exec(&mut command, move || sys::pin_to(&cpus));
        }
        command.spawn().map(Guard).map_err(|e| Failure::new("cannot start a process", e))
    };
    Ok(Hogs((0..count).map(one).collect::<Result<_, Failure>>()?))
}

/// The process: busy until its stdin ends.
///
/// # Errors
/// None.
pub fn main() -> io::Result<()> {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let mut end = [0; 1];
        let _ = io::stdin().read(&mut end);
        IS_OVER.store(true, Ordering::Relaxed);
    });
    while !IS_OVER.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    Ok(())
}

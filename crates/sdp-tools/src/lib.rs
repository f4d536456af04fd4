//! The parts of the commands `sdp` and `sdpnetstat`.
//!
//! Each sub-command is a module with its options, and one function that runs it. They only read
//! pages that processes publish and start programs with an environment; nothing here talks to the
//! library otherwise, so a tool of one version works beside processes of another.

pub mod asking;
pub mod capture;
pub mod collect;
pub mod convert;
pub mod describe;
pub mod devices;
pub mod diag;
pub mod doctor;
pub mod elf;
pub mod hints;
pub mod kernel;
pub mod names;
pub mod netstat;
pub mod nfs;
pub mod perf;
pub mod ping;
pub mod procs;
pub mod program;
pub mod report;
pub mod require;
pub mod rules;
pub mod run;
pub mod scrape;
pub mod service;
pub mod show;
pub mod since;
pub mod stat;
pub mod sys;
pub mod terminal;
pub mod top;
pub mod trace;
pub mod tune;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a sub-command failed, as one line for the user.
#[derive(Debug)]
pub struct Failure(pub String);

impl Failure {
    /// From the attempted action and the reason why it failed.
    pub fn new(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_numbers(&self.0))
    }
}

/// A text without the numbers that the standard library adds to the system's errors.
pub fn without_numbers(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let behind = &rest[at + MARK.len()..];
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        let is_number = digits > 0 && behind[digits..].starts_with(')');
        out += &rest[..at];
        if is_number {
            rest = &behind[digits + 1..];
        } else {
            out += MARK;
            rest = behind;
        }
    }
    out + rest
}

impl std::error::Error for Failure {}

/// Prints a line on stdout, as [`print`] does.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::print(&(format!($($argument)*) + "\n")) };
}

/// Whether some output could not be written.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Writes to stdout. A reader that has gone away (`| head`) is no error; anything else is said on stderr, and
/// [`status`] makes a failure of it.
pub fn print(text: &str) {
    let _ = try_print(text);
}

/// Writes a line to stderr, which may be a pipe that nobody reads any more.
pub fn warn(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes to stdout; for output that goes on until its reader has gone.
///
/// # Errors
/// It has gone, or cannot take it, which has been said.
pub fn try_print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let written = match sys::was_stdout_closed() {
        true => Err(std::io::Error::from_raw_os_error(libc::EBADF)),
        false => out.write_all(text.as_bytes()).and_then(|()| out.flush()),
    };
    if let Err(why) = &written
        && why.kind() != std::io::ErrorKind::BrokenPipe
        && !IS_LOST.swap(true, Ordering::Relaxed)
    {
        let why = without_numbers(&why.to_string());
        let _ = writeln!(std::io::stderr(), "standard output cannot be written: {why}");
    }
    written
}

/// The exit status of a command that would have ended with `status`: 1 for success if its output was lost.
pub fn status(status: i32) -> i32 {
    if status == 0 && IS_LOST.load(Ordering::Relaxed) { 1 } else { status }
}

/// A form as JSON text.
///
/// # Errors
/// It has none.
pub fn json(form: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(form);
    text.map(|t| t + "\n").map_err(|e| Failure::new("no JSON form", e))
}

//! The parts of the commands `sdp` and `sdpnetstat`.
//!
//! Each sub-command is a module with its options, and one function that runs it. They only read
//! pages that processes publish and start programs with an environment; nothing here talks to the
//! library otherwise, so a tool of one version works beside processes of another.

pub mod asking;
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
pub mod perf;
pub mod ping;
pub mod procs;
pub mod program;
pub mod report;
pub mod require;
pub mod rules;
pub mod run;
pub mod scrape;
pub mod show;
pub mod since;
pub mod stat;
pub mod sys;
pub mod terminal;
pub mod top;
pub mod trace;
pub mod tune;

use std::fmt;

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
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Writes to stdout; a reader that has gone away (`| head`) is no error.
pub fn print(text: &str) {
    let _ = try_print(text);
}

/// Writes to stdout; for output that goes on until its reader has gone.
///
/// # Errors
/// It has gone.
pub fn try_print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// A form as JSON text.
///
/// # Errors
/// It has none.
pub fn json(form: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(form);
    text.map(|t| t + "\n").map_err(|e| Failure::new("no JSON form", e))
}

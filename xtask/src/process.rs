//! Running other programs: output captured or passed through, a bound on the time of each.
//!
//! Everything in xtask that starts a program comes through here, so that nothing it starts can
//! outlive it (parent-death signal) or run without a limit (`timeout`).

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Exit status of `timeout` when the limit was reached; 137 when it had to kill.
const TIMED_OUT: [i32; 2] = [124, 137];

/// Seconds between the polite and the final signal at the limit.
const GRACE_S: u32 = 10;

/// The workspace's top directory: where the cargo that runs us has found xtask, else where xtask was
/// built. (Build products may have been copied along with a tree of sources.)
pub(crate) fn root() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(built, PathBuf::from);
    manifest.parent().unwrap_or(&manifest).to_owned()
}

/// Where build products are.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cargo that runs us, so that a toolchain override stays in force.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a program to its end with our own output streams; an error if it did not succeed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{}: {e}", name_of(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", name_of(command))) }
}

/// What a program wrote to its standard output; an error, with its messages, if it did not succeed.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let out =
        command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", name_of(command)))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        let messages = String::from_utf8_lossy(&out.stderr);
        Err(format!("{} failed: {}\n{messages}", name_of(command), out.status))
    }
}

/// True if `program` can be started at all (it is asked for its version).
pub(crate) fn is_present(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
            || Path::new("/usr/sbin").join(program).is_file()
    })
}

/// How a bounded program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Exit status 0 within the limit.
    Success,
    /// Any other exit status within the limit.
    Failure,
    /// The limit was reached and the program's process group was ended.
    TimedOut,
}

/// Runs a program with both output streams in `log` and ends its process group at `limit`.
///
/// `timeout` makes the process group; `setpriv` lets it die with us.
pub(crate) fn run_bounded(command: &Command, limit: Duration, log: &Path) -> Result<End, String> {
    let file = File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let twin = file.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
    let mut bounded = Command::new("setpriv");
    bounded.args(["--pdeathsig", "TERM", "timeout"]).arg(format!("--kill-after={GRACE_S}"));
    bounded.arg(limit.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(key, value),
            None => bounded.env_remove(key),
        };
    }
    bounded.current_dir(command.get_current_dir().unwrap_or(&root()));
    bounded.stdin(Stdio::null()).stdout(file).stderr(twin);
    let status = bounded.status().map_err(|e| format!("{}: {e}", name_of(&bounded)))?;
    Ok(end_of(status))
}

/// Seconds that programs which we ran to their end used of the processors, since we began.
pub(crate) fn processor_seconds() -> f64 {
    std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|stat| of_children(&stat))
        .unwrap_or(0.0)
}

/// The fields of ended children in a line of `/proc/PID/stat`, which counts hundredths.
fn of_children(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(13);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

fn end_of(status: ExitStatus) -> End {
    match status.code() {
        Some(0) => End::Success,
        Some(code) if TIMED_OUT.contains(&code) => End::TimedOut,
        _ => End::Failure,
    }
}

fn name_of(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(OsStr::to_string_lossy).map(|a| a.into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_time_of_children() {
        let stat = "17 (a) b) S 1 17 17 0 -1 4 5 6 7 8 20 10 150 50 20 0 1 0 99";
        assert_eq!(of_children(stat), Some(2.0));
        assert_eq!(of_children("17"), None);
    }
}

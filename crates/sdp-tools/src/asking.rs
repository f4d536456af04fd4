//! `sdp tune` at run time: asks running processes for other tunables, and waits for their answers.
//!
//! A request is written into a process's page. The page may belong to a process that is hostile to
//! the tool's user, root for example: the tool makes sure that the file it opened is a page before
//! it writes a byte to it, the bytes have fixed places, and it believes nothing in the page but
//! shows it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sdp_config::tunables::{KEYS, Key, Tunables};
use sdp_stats::reader::{ProcessView, parse, read_file};
use sdp_stats::tune::{END, Tuned, ask, taken};
use serde::Serialize;

use crate::procs::{self, Process};
use crate::sys;

/// How long answers are waited for.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks for answers.
const PAUSE: Duration = Duration::from_millis(10);
/// How long another tool at the same page is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// The value that takes a request back.
pub const DEFAULT: &str = "default";

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The process goes by it.
    Taken,
    /// The process has not looked yet: it does before it sleeps in a call on its connections, and when it makes one.
    Pending,
    /// The process has read it, and could not take all of it.
    Refused,
    /// It could not be asked.
    Failed,
}

/// A value that a process goes by.
#[derive(Debug, Clone, Serialize)]
pub struct InForce {
    /// Name of the tunable.
    pub key: &'static str,
    /// Its value, as the process says.
    pub value: String,
    /// The source: `default`, `rules`, `environment`, `tune`.
    pub origin: &'static str,
}

/// The sources of a tunable.
const ORIGINS: [&str; 4] = ["default", "rules", "environment", "tune"];

/// A process that was asked.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Its id.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Its outcome; nothing when nothing was asked for.
    pub outcome: Option<Outcome>,
    /// Why it failed.
    pub why: Option<String>,
    /// Its tunables, as far as was asked.
    pub tunables: Vec<InForce>,
}

/// The tunables that a process reports: those that are known here, with values that they can have.
pub fn in_force(tuned: &Tuned) -> Vec<InForce> {
    let known = |setting: &sdp_stats::tune::Setting| {
        let key = KEYS.iter().find(|key| key.name == setting.key)?;
        let mut values = Tunables::DEFAULT;
        values.set(key.name.as_bytes(), setting.value.as_bytes()).ok()?;
        let origin = ORIGINS.into_iter().find(|word| *word == setting.origin)?;
        Some(InForce { key: key.name, value: setting.value.clone(), origin })
    };
    tuned.in_force.iter().filter_map(known).collect()
}

/// A process in the middle of being asked.
struct Asked {
    process: Process,
    page: io::Result<File>,
    /// Number of the request.
    number: u32,
}

/// Opens a process's page for writing, if it is one: a link of `/proc` leads to the file that the
/// process has open at that moment, which may be a file of ours that it wants written to.
fn open(path: &Path) -> io::Result<(File, ProcessView)> {
    let not_a_page = || io::Error::other("its page is none");
    // Opening any file in this way has no effect on it.
    let found = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    let metadata = found.metadata()?;
    if !metadata.is_file() || metadata.len() != sdp_stats::SIZE as u64 {
        return Err(not_a_page());
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let page = File::options().read(true).write(true).open(again)?;
    let is_same = page.metadata()?.ino() == metadata.ino();
    // Only memory files can have these.
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    if !is_same || sys::seals(page.as_fd())? & needed != needed {
        return Err(not_a_page());
    }
    let view = parse(&read_file(&page)?).map_err(io::Error::other)?;
    Ok((page, view))
}

fn view(page: &File) -> io::Result<ProcessView> {
    parse(&read_file(page)?).map_err(io::Error::other)
}

/// The settings of an earlier request that are still to be taken, with the new settings behind
/// them: the last one holds.
fn text(tuned: &Tuned, settings: &[(&'static Key, String)]) -> String {
    let is_new = |name: &str| settings.iter().any(|(key, _)| key.name == name);
    let mut out = String::new();
    if tuned.asked != tuned.taken {
        for one in tuned.request.split(char::from(END)) {
            let Some((name, value)) = one.split_once(' ') else { continue };
            let mut values = Tunables::DEFAULT;
            let is_value =
                value == DEFAULT || values.set(name.as_bytes(), value.as_bytes()).is_ok();
            if KEYS.iter().any(|key| key.name == name) && is_value && !is_new(name) {
                out += &format!("{name} {value};");
            }
        }
    }
    for (key, value) in settings {
        out += &format!("{} {value};", key.name);
    }
    out
}

/// Leaves the request.
fn request(path: &Path, settings: &[(&'static Key, String)]) -> io::Result<(File, u32)> {
    let (page, _) = open(path)?;
    let until = Instant::now() + LOCK_TIMEOUT;
    while let Err(error) = page.try_lock() {
        match error {
            fs::TryLockError::Error(error) => return Err(error),
            fs::TryLockError::WouldBlock if Instant::now() >= until => {
                return Err(io::Error::other("somebody else keeps its page locked"));
            }
            fs::TryLockError::WouldBlock => sleep(PAUSE),
        }
    }
    let tuned = view(&page)?.tuned;
    if tuned.in_force.is_empty() {
        return Err(io::Error::other("its library takes no tunables at run time"));
    }
    let number = tuned.asked.max(tuned.taken).wrapping_add(1).max(1);
    ask(&page, number, &text(&tuned, settings))?;
    page.unlock()?;
    Ok((page, number))
}

/// Asks `processes` for `settings` and waits a while for their answers; without settings it only
/// shows the tunables in force. `shown`: of which tunables; nothing: of all.
pub fn run(
    processes: Vec<Process>,
    settings: &[(&'static Key, String)],
    shown: &[&'static str],
) -> Vec<Answer> {
    let is_shown = |one: &InForce| shown.is_empty() || shown.contains(&one.key);
    if settings.is_empty() {
        let answer = |process: Process| Answer {
            pid: process.pid,
            tunables: in_force(&process.view.tuned).into_iter().filter(is_shown).collect(),
            program: process.view.program,
            outcome: None,
            why: None,
        };
        return processes.into_iter().map(answer).collect();
    }
    let all: Vec<Asked> = processes
        .into_iter()
        .map(|process| match request(&process.page, settings) {
            Ok((page, number)) => Asked { process, page: Ok(page), number },
            Err(error) => Asked { process, page: Err(error), number: 0 },
        })
        .collect();
    let until = Instant::now() + TIMEOUT;
    let is_answered = |asked: &Asked| {
        let page = asked.page.as_ref().ok();
        page.is_none_or(|page| taken(page).is_ok_and(|taken| taken == asked.number))
    };
    while Instant::now() < until && !all.iter().all(|a| is_answered(a) || has_ended(a)) {
        sleep(PAUSE);
    }
    all.into_iter()
        .map(|asked| {
            let seen = asked.page.as_ref().map(view);
            let mut tunables = Vec::new();
            let (outcome, why) = match seen {
                Err(error) => (Outcome::Failed, Some(error.to_string())),
                Ok(Err(error)) => (Outcome::Failed, Some(error.to_string())),
                Ok(Ok(now)) => {
                    tunables = in_force(&now.tuned).into_iter().filter(is_shown).collect();
                    match (now.tuned.taken == asked.number, now.tuned.refused) {
                        (true, 0) => (Outcome::Taken, None),
                        (true, n) => (Outcome::Refused, Some(format!("{n} of the settings"))),
                        (false, _) if has_ended(&asked) => {
                            (Outcome::Failed, Some("it has ended".to_string()))
                        }
                        (false, _) => (Outcome::Pending, None),
                    }
                }
            };
            let Process { pid, view, .. } = asked.process;
            Answer { pid, program: view.program, outcome: Some(outcome), why, tunables }
        })
        .collect()
}

fn has_ended(asked: &Asked) -> bool {
    !sys::is_alive(asked.process.pid)
}

/// The processes to ask.
pub enum Whom {
    /// These processes.
    Processes(Vec<u32>),
    /// Those of this user.
    User(u32),
    /// All that may be asked.
    All,
}

/// The processes that are meant. Those of other users are seen by root only.
pub fn find(whom: &Whom) -> Vec<Process> {
    let mut processes = procs::find(None);
    processes.retain(|process| match whom {
        Whom::Processes(pids) => pids.contains(&process.pid),
        Whom::User(uid) => process.uid == *uid,
        Whom::All => true,
    });
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(of: &[(&str, &str)]) -> Vec<(&'static Key, String)> {
        let one = |(name, value): &(&str, &str)| {
            (KEYS.iter().find(|k| k.name == *name).unwrap(), (*value).to_string())
        };
        of.iter().map(one).collect()
    }

    #[test]
    fn what_was_not_taken_yet_stays_asked_for() {
        let mut tuned = Tuned {
            asked: 2,
            taken: 1,
            refused: 0,
            request: "recv_poll 5;promote_calls 3;rubbish;ring_bytes 1;\x1b[2J 1;".into(),
            in_force: Vec::new(),
        };
        let new = settings(&[("recv_poll", "7")]);
        assert_eq!(text(&tuned, &new), "promote_calls 3;recv_poll 7;");
        tuned.taken = 2;
        assert_eq!(text(&tuned, &new), "recv_poll 7;");
    }

    #[test]
    fn only_pages_are_written_to() {
        let path = std::env::temp_dir().join(format!("sdp-no-page-{}", std::process::id()));
        fs::write(&path, vec![0u8; sdp_stats::SIZE]).unwrap();
        assert!(open(&path).is_err(), "a file of the same size");
        fs::remove_file(&path).unwrap();
        assert!(open(Path::new("/dev/null")).is_err());
        assert!(open(Path::new("/")).is_err());
    }

    #[test]
    fn rubbish_that_is_said_to_be_in_force_is_left_out() {
        let one = |key: &str, value: &str| sdp_stats::tune::Setting {
            key: key.into(),
            value: value.into(),
            origin: "tune".into(),
        };
        let tuned = Tuned {
            in_force: vec![one("recv_poll", "x"), one("nothing", "1"), one("recv_poll", "3")],
            ..Tuned::default()
        };
        let shown = in_force(&tuned);
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0].value, "3");
    }
}

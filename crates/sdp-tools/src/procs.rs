//! Finds the pages of running processes in `/proc`.
//!
//! Each process with the library keeps its page open on some descriptor. Nothing is stopped, mapped
//! or written: the page is read like a file. Processes of other users are seen by root only, as the
//! kernel has it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use sdp_stats::reader::{ProcessView, parse, read_file};

/// Where a descriptor of a page points to.
const LINK: &str = "/memfd:sdp-stats (deleted)";

/// A process and its page.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its id in our pid namespace.
    pub pid: u32,
    /// Who it runs as.
    pub uid: u32,
    /// What it published.
    pub view: ProcessView,
}

/// Processes with a page, by pid; only `only` if given. A page that several processes hold (a child
/// that has not made its own yet) is listed with the one that made it.
pub fn find(only: Option<u32>) -> Vec<Process> {
    find_in(Path::new("/proc"), only)
}

fn find_in(proc: &Path, only: Option<u32>) -> Vec<Process> {
    let mut found: HashMap<u64, Process> = HashMap::new();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.filter(|pid| only.is_none_or(|only| only == *pid)) {
        let directory = proc.join(pid.to_string());
        let Ok(uid) = fs::metadata(&directory).map(|m| m.uid()) else { continue };
        let descriptors = fs::read_dir(directory.join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            let path = descriptor.path();
            if fs::read_link(&path).is_ok_and(|to| to == Path::new(LINK))
                && let Some((inode, view)) = read(&path)
            {
                let is_maker = view.pid == pid;
                let process = Process { pid, uid, view };
                if is_maker {
                    found.insert(inode, process);
                } else {
                    found.entry(inode).or_insert(process);
                }
            }
        }
    }
    let mut processes: Vec<_> = found.into_values().collect();
    processes.sort_by_key(|p| p.pid);
    processes
}

/// Reads one page; `None` when it is none, or of another version, or gone meanwhile.
fn read(path: &Path) -> Option<(u64, ProcessView)> {
    // Non-blocking: what the link named may have been replaced by something that blocks.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() != sdp_stats::SIZE as u64 {
        return None;
    }
    let words = read_file(&file).ok()?;
    Some((metadata.ino(), parse(&words).ok()?))
}

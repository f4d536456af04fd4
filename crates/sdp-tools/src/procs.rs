//! Finds the pages of running processes in `/proc`.
//!
//! Each process with the library keeps its page open on some descriptor. Nothing is stopped, mapped
//! or written: the page is read like a file. Processes of other users are seen by root only, as the
//! kernel has it.
//!
//! Data that the library could publish only at a cost are not in the page but found out here:
//! states and addresses are the carrier's, so the kernel's tables have them; the bytes in a ring
//! are those that one end has sent and the other has not yet received.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sdp_stats::reader::{HalfView, PeerView, ProcessView, parse, read_file};
use sdp_stats::{Counter, Direction, Endpoint, Role};

use crate::kernel::{self, Entry, Sockets};
use crate::names;

/// Where a descriptor of a page points to.
const LINK: &str = "/memfd:sdp-stats (deleted)";

/// A process and its page.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its id in our pid namespace.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Where its page is.
    pub page: PathBuf,
    /// Its published page.
    pub view: ProcessView,
}

/// Processes with a page, by pid; only `only` if given. A page that several processes hold (a child
/// that has not made its own yet) is listed with the one that made it.
pub fn find(only: Option<u32>) -> Vec<Process> {
    let proc = Path::new("/proc");
    // All of them: the queued bytes are the difference between two processes.
    let mut processes = find_in(proc);
    complete(proc, &mut processes);
    processes.retain(|p| only.is_none_or(|only| only == p.pid));
    processes
}

fn find_in(proc: &Path) -> Vec<Process> {
    let mut found: HashMap<u64, Process> = HashMap::new();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let directory = proc.join(pid.to_string());
        let Ok(uid) = fs::metadata(&directory).map(|m| m.uid()) else { continue };
        let descriptors = fs::read_dir(directory.join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            let path = descriptor.path();
            if fs::read_link(&path).is_ok_and(|to| to == Path::new(LINK))
                && let Some((inode, view)) = read(&path)
            {
                let is_maker = view.pid == pid;
                let process = Process { pid, uid, page: path, view };
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

/// The bytes that the processes which hold one connection end have moved over SDP.
#[derive(Debug, Default, Clone, Copy)]
struct Moved {
    sent: u64,
    received: u64,
    /// How often it found no room to send.
    full: u64,
    /// Some of it was counted in a page that is not there any more.
    is_partial: bool,
}

/// Adds data from the kernel's tables and the other ends' pages.
fn complete(proc: &Path, processes: &mut [Process]) {
    let mut spaces: HashMap<PathBuf, Sockets> = HashMap::new();
    let mut ends: HashMap<(PathBuf, Endpoint, Endpoint), Moved> = HashMap::new();
    let mut peers: HashMap<(PathBuf, Endpoint, Endpoint), PeerView> = HashMap::new();
    let mut carriers: Vec<Vec<Option<Entry>>> = Vec::new();
    let space_of = |pid: u32| fs::read_link(proc.join(pid.to_string()).join("ns/net"));
    for process in &mut *processes {
        let directory = proc.join(process.pid.to_string());
        let space = space_of(process.pid).unwrap_or_default();
        let sockets = spaces.entry(space.clone()).or_insert_with(|| Sockets::of(&directory));
        let mut found = Vec::new();
        for row in &mut process.view.rows {
            if row.inode == 0 {
                // By the addresses, if it shows them: its number may name something else by now.
                let known = sockets.of_ends(row.local, row.remote);
                row.inode = known.unwrap_or_else(|| kernel::inode_of(&directory, row.fd));
            }
            let entry = sockets.get(row.inode).copied();
            if let Some(entry) = entry {
                row.state = entry.state;
                if (row.local, row.remote) == (Endpoint::NONE, Endpoint::NONE) {
                    row.local = names::endpoint(entry.local);
                    row.remote = names::endpoint(entry.remote);
                }
            }
            found.push(entry);
            let moved = ends.entry((space.clone(), row.local, row.remote)).or_default();
            let sdp = |direction| row.counter(direction, Counter::SdpBytes);
            moved.sent = moved.sent.wrapping_add(sdp(Direction::Send));
            moved.received = moved.received.wrapping_add(sdp(Direction::Receive));
            moved.full = moved.full.wrapping_add(row.messages.full);
            moved.is_partial |= row.is_adopted;
            if row.role != Role::Listener as u8 {
                let why = |half: &HalfView| half.reason.filter(|_| !half.is_sdp());
                let peer = PeerView {
                    pid: process.pid,
                    program: process.view.program.clone(),
                    uid: process.uid,
                    reasons: [why(&row.halves[0]), why(&row.halves[1])],
                };
                peers.insert((space.clone(), row.local, row.remote), peer);
            }
        }
        carriers.push(found);
    }
    for (process, carriers) in processes.iter_mut().zip(carriers) {
        let space = space_of(process.pid).unwrap_or_default();
        for (row, entry) in process.view.rows.iter_mut().zip(carriers) {
            if row.role == Role::Listener as u8 {
                continue;
            }
            let end = |from, to| ends.get(&(space.clone(), from, to)).filter(|m| !m.is_partial);
            row.peer_full = end(row.remote, row.local).map(|peer| peer.full);
            row.peer = peers.get(&(space.clone(), row.remote, row.local)).cloned();
            let pair = end(row.local, row.remote).zip(end(row.remote, row.local));
            let queues = [
                (pair.map(|(own, peer)| own.sent.saturating_sub(peer.received)), true),
                (pair.map(|(own, peer)| peer.sent.saturating_sub(own.received)), false),
            ];
            for (half, (in_ring, is_send)) in row.halves.iter_mut().zip(queues) {
                let in_kernel = entry
                    .filter(|_| !half.is_sdp())
                    .map(|e| if is_send { e.send_queue } else { e.receive_queue });
                if in_ring.is_some() || in_kernel.is_some() {
                    let all = in_ring.unwrap_or(0).saturating_add(in_kernel.unwrap_or(0));
                    half.queued = u32::try_from(all).unwrap_or(u32::MAX);
                }
            }
        }
    }
}

/// Reads one page; `None` when it is none, or of another version, or gone meanwhile.
fn read(path: &Path) -> Option<(u64, ProcessView)> {
    // Non-blocking: another file that blocks may have taken the place of the one that the link
    // named.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() != sdp_stats::SIZE as u64 {
        return None;
    }
    let words = read_file(&file).ok()?;
    Some((metadata.ino(), parse(&words).ok()?))
}

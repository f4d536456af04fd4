//! Takes in the pages of the processes under `sdp run`.
//!
//! Each process that counts something connects to the name in `SDP_REPORT` and sends one packet:
//! the token, with its page's descriptor. The collector accepts at all times in a thread of its
//! own, maps the page and closes the descriptor; so a killed process loses nothing, and nothing
//! remains when `sdp run` ends. Every packet is checked (token, size, seals), and pages that cannot
//! be taken are counted. The collector sends nothing and refuses everything else.

use std::collections::HashSet;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sdp_stats::reader::{Mapping, ProcessView, Sums, parse};

use crate::sys::{self, LocalName};
use crate::trace;

/// Name of the environment variable that names the place where processes hand in their pages.
pub const VARIABLE: &str = "SDP_REPORT";
/// Connections that may be open without having sent their packet.
const MAX_PENDING: usize = 64;
/// How long one of them may take.
const PENDING_LIMIT: Duration = Duration::from_secs(1);
/// Pages kept mapped before those of ended processes are folded; doubles when all are alive.
const FIRST_FOLD: usize = 256;
/// Mappings kept at most: the kernel allows 65530 for everything.
const MAX_MAPPINGS: usize = 60_000;
/// Pause after accept or poll failed for want of descriptors or memory.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Between two looks whether a process has ended, where pages are kept.
const KEEP_LOOK: Duration = Duration::from_millis(250);
/// How long the last packets are waited for once the command has ended.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);

/// The collected pages.
#[derive(Debug, Clone, Default)]
pub struct Collected {
    /// Processes that handed in a page (one that executed another program has several), and fork children
    /// that counted in the page of another.
    pub processes: u64,
    /// Sums over their pages.
    pub sums: Sums,
    /// Packets and pages that could not be taken.
    pub refused: u64,
    /// Of which processes the recorder was kept, and where; a line for each.
    pub kept: Vec<String>,
}

/// The running collector.
pub struct Collector {
    address: String,
    /// Set before `wake` is closed, which ends the thread's sleep: the thread looks at no clock
    /// while nothing happens, and the end of a command waits for nothing.
    stop: Arc<AtomicBool>,
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<Collected>>,
    directory: Option<PathBuf>,
}

impl Collector {
    /// Starts listening; with `everywhere` also on a path, for processes in other network
    /// namespaces. Signals should be blocked before, so that the thread gets none.
    ///
    /// # Errors
    /// The abstract name could not be had.
    pub fn start(everywhere: bool) -> io::Result<Self> {
        Self::start_keeping(everywhere, None)
    }

    /// [`Collector::start`]; keeps the pages of processes that end without saying so in a folder.
    ///
    /// # Errors
    /// As there.
    pub fn start_keeping(everywhere: bool, keep: Option<PathBuf>) -> io::Result<Self> {
        let token = random_hex()?;
        let name = format!("sdp-run/{}/{}", std::process::id(), &random_hex()?[..16]);
        let mut listeners = vec![sys::seqpacket_listen(LocalName::Abstract(name.as_bytes()))?];
        let (mut directory, mut path) = (None, String::new());
        // Without a writable directory other namespaces go unreported, everything else works.
        if everywhere && let Ok(found) = listen_on_path() {
            directory = Some(found.0);
            path = found.1;
            listeners.push(found.2);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let address = format!("{name};{path};{token}");
        let state = State {
            token: token.into_bytes(),
            pages: Vec::new(),
            known: HashSet::new(),
            ids: HashSet::new(),
            fold_at: FIRST_FOLD,
            done: Collected::default(),
            keep,
            kept: HashSet::new(),
        };
        let (woken, wake) = io::pipe()?;
        let thread = std::thread::Builder::new().name("collect".into()).spawn({
            let stop = Arc::clone(&stop);
            move || state.serve(&listeners, &woken, &stop)
        })?;
        Ok(Self { address, stop, wake: Some(wake), thread: Some(thread), directory })
    }

    /// The value for [`VARIABLE`].
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Takes the pages that are still waiting, then adds everything up.
    pub fn finish(mut self) -> Collected {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Collected> {
        self.stop.store(true, Ordering::Release);
        self.wake = None;
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.end();
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    sys::random(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// A listener in a directory of our own. The directory may be entered by other users (a child may
/// have become one), the token keeps strangers out.
fn listen_on_path() -> io::Result<(PathBuf, String, OwnedFd)> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    remove_stale(&std::env::temp_dir());
    let directory = std::env::temp_dir().join(format!("sdp-run-{}", &random_hex()?[..16]));
    std::fs::DirBuilder::new().mode(0o711).create(&directory)?;
    let socket = directory.join("s");
    let listen = || {
        let path = socket
            .to_str()
            .filter(|p| !p.contains([';', '\n']))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let listener = sys::seqpacket_listen(LocalName::Path(path.as_bytes()))?;
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
        Ok((path.to_string(), listener))
    };
    match listen() {
        Ok((path, listener)) => Ok((directory, path, listener)),
        Err(e) => {
            let _ = std::fs::remove_dir_all(&directory);
            Err(e)
        }
    }
}

/// Removes what a killed `sdp run` of this user left: a folder whose socket nobody has.
fn remove_stale(folder: &Path) {
    use std::os::unix::fs::MetadataExt;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name
            .to_str()
            .and_then(|n| n.strip_prefix("sdp-run-"))
            .is_some_and(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let path = entry.path();
        let is_own = || {
            let found = std::fs::symlink_metadata(&path);
            found.is_ok_and(|m| m.is_dir() && m.uid() == sys::own_uid())
        };
        if is_ours && is_own() && sys::is_left(&path.join("s")) {
            // Nothing else is ever in it; another file keeps it.
            let _ = std::fs::remove_file(path.join("s"));
            let _ = std::fs::remove_dir(&path);
        }
    }
}

/// A process: its id as we see it (0 = unknown), and when it began, which exec leaves as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    pid: u32,
    began: Option<u64>,
}

impl Owner {
    fn of(pid: u32) -> Self {
        Self { pid, began: sys::start_time(pid) }
    }
}

struct State {
    token: Vec<u8>,
    /// Pages of processes not known to have ended.
    pages: Vec<(Owner, Mapping)>,
    /// Processes that have been counted, and their ids.
    known: HashSet<Owner>,
    ids: HashSet<u32>,
    fold_at: usize,
    done: Collected,
    /// Where pages are kept, and the processes whose pages have been.
    keep: Option<PathBuf>,
    kept: HashSet<Owner>,
}

impl State {
    fn serve(mut self, listeners: &[OwnedFd], woken: &PipeReader, stop: &AtomicBool) -> Collected {
        let mut pending: Vec<(OwnedFd, Instant)> = Vec::new();
        let mut drain_until: Option<Instant> = None;
        loop {
            // Before the look at the listeners: pages that came before the end are seen.
            let is_ending = stop.load(Ordering::Acquire);
            let mut fds: Vec<_> = pending.iter().map(|(fd, _)| fd.as_fd()).collect();
            if pending.len() < MAX_PENDING {
                fds.extend(listeners.iter().map(AsFd::as_fd));
            }
            let wait = match pending.is_empty() {
                _ if is_ending => Duration::ZERO,
                true if self.keep.is_some() => KEEP_LOOK,
                true => Duration::MAX,
                false => PENDING_LIMIT,
            };
            if !is_ending {
                fds.push(woken.as_fd());
            }
            let ready = sys::poll_readable(&fds, wait).unwrap_or_else(|_| {
                std::thread::sleep(RETRY_PAUSE);
                Vec::new()
            });
            let is_ready = |i: usize| ready.get(i).copied().unwrap_or(false);
            let any_ready = ready.iter().any(|r| *r);

            let now = Instant::now();
            let mut kept = Vec::new();
            for (i, (fd, since)) in pending.drain(..).enumerate() {
                if is_ready(i) {
                    self.take(&fd);
                } else if now.duration_since(since) < PENDING_LIMIT {
                    kept.push((fd, since));
                } else {
                    self.done.refused += 1;
                }
            }
            pending = kept;
            for listener in listeners {
                while pending.len() < MAX_PENDING {
                    match sys::accept(listener.as_fd()) {
                        Ok(Some(fd)) => pending.push((fd, now)),
                        Ok(None) => break,
                        Err(_) => {
                            // Out of descriptors or memory: the connection keeps waiting.
                            std::thread::sleep(RETRY_PAUSE);
                            break;
                        }
                    }
                }
            }
            self.keep_ended();
            if self.pages.len() >= self.fold_at {
                self.fold_ended();
            }
            if is_ending {
                let until = *drain_until.get_or_insert(now + DRAIN_LIMIT);
                let is_quiet = !any_ready && pending.is_empty();
                if is_quiet || now >= until {
                    break;
                }
                if !any_ready {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        self.keep_ended();
        for (owner, mapping) in std::mem::take(&mut self.pages) {
            self.fold(owner, &mapping);
        }
        self.done
    }

    /// Keeps the last page of each process that has ended without saying so.
    fn keep_ended(&mut self) {
        let Some(folder) = &self.keep else { return };
        let mut seen = HashSet::new();
        for (owner, mapping) in self.pages.iter().rev() {
            let is_last = seen.insert(*owner);
            // A process whose page was kept is not asked again: that takes system calls, on every
            // pass.
            let is_done = !is_last || owner.pid == 0 || self.kept.contains(owner);
            if is_done || !sys::has_ended(owner.pid) {
                continue;
            }
            self.kept.insert(*owner);
            let Some(view) = parse(&mapping.words()).ok().filter(|view| !view.has_exited) else {
                continue;
            };
            let what = match trace::keep(folder, owner.pid, mapping) {
                Ok(path) => format!("see sdp stat --trace {}", path.display()),
                Err(e) => format!("its last events could not be kept in {}: {e}", folder.display()),
            };
            let (pid, program) = (owner.pid, view.program);
            self.done.kept.push(format!("process {pid} ({program}) did not end in order: {what}"));
        }
    }

    /// One packet of a connection: token and descriptor, or nothing to do with us.
    fn take(&mut self, from: &OwnedFd) {
        let mut buf = [0u8; 128];
        let received = sys::receive_with_fds(from.as_fd(), &mut buf);
        let Ok((len, fds)) = received else {
            self.done.refused += 1;
            return;
        };
        let is_ours = buf[..len] == self.token[..];
        match fds.as_slice() {
            [page] if is_ours => match Mapping::new(page.as_fd()) {
                Ok(mapping) if self.pages.len() < MAX_MAPPINGS => {
                    self.pages.push((Owner::of(sys::peer_pid(from.as_fd())), mapping));
                }
                _ => self.done.refused += 1,
            },
            _ => self.done.refused += 1,
        }
    }

    fn fold_ended(&mut self) {
        for (owner, mapping) in std::mem::take(&mut self.pages) {
            // An unknown pid or one in use again counts as alive: the page just stays mapped.
            let may_count = owner.pid == 0 || sys::is_alive(owner.pid);
            if may_count || parse(&mapping.words()).is_ok_and(|view| view.is_shared) {
                self.pages.push((owner, mapping));
            } else {
                self.fold(owner, &mapping);
            }
        }
        self.fold_at = (self.pages.len() * 2).max(FIRST_FOLD);
    }

    /// Whether a page is a process's first. One that ends right after it has handed in a page may be gone before it can be
    /// asked when it began: it is the process of that number that is known, from before it executed something. (Or a later one
    /// with the same number, for which it is not worth keeping more.)
    fn meet(&mut self, owner: Owner) -> bool {
        let forgotten = Owner { began: None, ..owner };
        let is_known = match owner.began {
            _ if owner.pid == 0 => return true, // of another namespace: nothing tells them apart
            None => self.ids.contains(&owner.pid),
            Some(_) => self.known.remove(&forgotten),
        };
        self.ids.insert(owner.pid);
        self.known.insert(owner) && !is_known
    }

    fn fold(&mut self, owner: Owner, mapping: &Mapping) {
        match parse(&mapping.words()) {
            Ok(ProcessView { sums, borrowers, .. }) => {
                let is_new = self.meet(owner);
                self.done.processes =
                    self.done.processes.saturating_add(borrowers + u64::from(is_new));
                self.done.sums.add(&sums);
            }
            Err(_) => self.done.refused += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            token: Vec::new(),
            pages: Vec::new(),
            known: HashSet::new(),
            ids: HashSet::new(),
            fold_at: FIRST_FOLD,
            done: Collected::default(),
            keep: None,
            kept: HashSet::new(),
        }
    }

    #[test]
    fn folders_of_others_are_removed_when_left_and_else_not_disturbed() {
        let of = Collector::start(true).expect("collector");
        let folder = of.directory.clone().expect("directory");
        let socket = folder.join("s");
        remove_stale(&std::env::temp_dir());
        assert!(socket.exists(), "a collector that lives");
        assert_eq!(of.finish().refused, 0, "no connection was made to it");
        let (left, path, listener) = listen_on_path().expect("path");
        assert!(!sys::is_left(Path::new(&path)));
        drop(listener);
        remove_stale(&std::env::temp_dir());
        assert!(!left.exists());
    }

    #[test]
    fn a_process_is_counted_once_whatever_is_known_of_it() {
        let of = |pid, began| Owner { pid, began };
        let meets = |owners: &[Owner]| {
            let mut state = state();
            owners.iter().map(|owner| state.meet(*owner)).collect::<Vec<_>>()
        };
        assert_eq!(meets(&[of(7, Some(1)), of(7, Some(1)), of(8, Some(1))]), [true, false, true]);
        assert_eq!(meets(&[of(7, Some(1)), of(7, None)]), [true, false], "gone when it was asked");
        assert_eq!(meets(&[of(7, None), of(7, Some(1)), of(7, Some(1))]), [true, false, false]);
        assert_eq!(meets(&[of(7, None), of(7, None), of(8, None)]), [true, false, true]);
        assert_eq!(meets(&[of(7, Some(1)), of(7, Some(2))]), [true, true], "a number used again");
        assert_eq!(meets(&[of(0, None), of(0, None)]), [true, true]);
    }
}

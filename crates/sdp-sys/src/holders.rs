//! Whether an ancestor, or another known process, has a socket open too, as far as /proc shows.
//!
//! For connections that a process did not begin itself but got by exec or SCM_RIGHTS, and for those
//! that a family member took along into a sandbox: another process may still use them, with or
//! without this library. Nothing here is cheap (a link is read per descriptor of each process
//! asked); it is for decisions made once per connection.

use core::ffi::CStr;

use crate::{
    errno::Errno,
    kernel::{self, owned},
    pid,
    procfs::{self, Kind, Path, Piece},
};

/// Generations looked at. Those above are service managers and shells that keep nothing they started
/// something with.
const GENERATIONS: usize = 6;
/// Descriptors, or processes, looked at in all; a system with more is not worth the time.
const LINKS_MAX: u32 = 4096;
/// Bytes of directory entries fetched at a time.
const ENTRIES: usize = 1024;
/// Offsets in `struct linux_dirent64`.
const RECORD_LEN: usize = 16;
const NAME: usize = 19;

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// None of the processes has it open.
    No,
    /// One of them has.
    Yes,
    /// One could not be looked at: another user's, no /proc, or too many descriptors.
    Unknown,
}

/// A search for other holders of one socket.
pub struct Search {
    inode: u64,
    links: u32,
}

impl Search {
    /// Begins a search for the socket with this inode number.
    pub const fn new(inode: u64) -> Self {
        Self { inode, links: 0 }
    }

    /// Asks the ancestors of the calling process, the nearest first, as far as process 1, which is not
    /// asked: it inherits orphans, not their connections.
    pub fn ancestors(&mut self) -> Held {
        let mut pid = crate::pid::parent() as i32;
        for _ in 0..GENERATIONS {
            if pid <= 1 {
                break;
            }
            match self.process(pid) {
                Held::No => {}
                other => return other,
            }
            pid = parent_of(pid).unwrap_or(0);
        }
        Held::No
    }

    /// Asks every process but the calling one. As a user without privileges, [`Held::Unknown`] as
    /// soon as another user runs something, or where /proc does not show other users' processes
    /// (`hidepid`).
    pub fn everybody(&mut self) -> Held {
        let me = pid::current();
        let mut is_complete = false;
        let found = each_entry(c"/proc", &mut |_, name| {
            let pid = procfs::decimal(name.to_bytes());
            let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) else { return Held::No };
            if !self.count() {
                return Held::Unknown;
            }
            // Process 1 inherits orphans, not their connections, and is often out of bounds.
            is_complete |= pid == 1;
            if pid == me || pid == 1 { Held::No } else { self.process(pid) }
        });
        match found {
            Some(Held::No) if is_complete => Held::No,
            Some(Held::Yes) => Held::Yes,
            _ => Held::Unknown,
        }
    }

    /// Asks the calling process for other numbers of the socket than those that are `known`.
    pub fn here(&mut self, known: impl Fn(i32) -> bool) -> Held {
        let found = self.descriptors(c"/proc/self/fd", &|name| {
            let number = procfs::decimal(name.to_bytes());
            number.and_then(|n| i32::try_from(n).ok()).is_some_and(&known)
        });
        found.unwrap_or(Held::Unknown)
    }

    /// Asks one process. One that has ended holds nothing.
    pub fn process(&mut self, pid: i32) -> Held {
        let Some(path) = path_of(pid, b"/fd") else { return Held::Unknown };
        match self.descriptors(path.text(), &|_| false) {
            Some(found) => found,
            // A missing directory proves nothing where /proc is not mounted or hides others' processes.
            None if pid::is_dead(pid) => Held::No,
            None => Held::Unknown,
        }
    }

    /// Whether the socket is in a directory of descriptors under a name that is not `known`. `None`: there is
    /// no such directory.
    fn descriptors(&mut self, path: &CStr, known: &dyn Fn(&CStr) -> bool) -> Option<Held> {
        each_entry(path, &mut |directory, name| {
            if !self.count() {
                return Held::Unknown;
            }
            match self.is_link_ours(directory, name) {
                Ok(true) if !known(name) => Held::Yes,
                Ok(_) | Err(Errno::ENOENT | Errno::EINVAL) => Held::No,
                Err(_) => Held::Unknown,
            }
        })
    }

    /// Counts one more thing looked at. False: that is enough.
    fn count(&mut self) -> bool {
        self.links += 1;
        self.links <= LINKS_MAX
    }

    fn is_link_ours(&self, directory: i32, name: &CStr) -> Result<bool, Errno> {
        let mut link = [0u8; 64];
        let len = kernel::readlinkat(directory, name, &mut link)?;
        Ok(procfs::socket_inode(link.get(..len).unwrap_or(&[])) == Some(self.inode))
    }
}

/// Whether the calling process has an epoll set by a number that is not `known`.
pub fn has_set(known: impl Fn(i32) -> bool) -> Held {
    let mut left = LINKS_MAX;
    let found = each_entry(c"/proc/self/fd", &mut |directory, name| {
        left -= 1;
        if left == 0 {
            return Held::Unknown;
        }
        let number = procfs::decimal(name.to_bytes());
        let number = number.and_then(|n| i32::try_from(n).ok());
        let is_strange = number.is_some_and(|n| !known(n));
        let kind = procfs::kind_at(directory, name);
        if is_strange && kind == Ok(Kind::EpollSet) { Held::Yes } else { Held::No }
    });
    found.unwrap_or(Held::Unknown)
}

/// Calls `each` with every entry of a directory of /proc until it says something else than no. `None`: there
/// is no such directory.
pub(crate) fn each_entry(path: &CStr, each: &mut dyn FnMut(i32, &CStr) -> Held) -> Option<Held> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let opened = owned(kernel::openat(libc::AT_FDCWD, path, flags, 0));
    let directory = match opened {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return None,
        Err(_) => return Some(Held::Unknown),
    };
    let mut entries = [0u8; ENTRIES];
    loop {
        let used = match kernel::getdents(directory.raw(), &mut entries) {
            Ok(0) | Err(Errno::ENOENT | Errno::ESRCH) => return Some(Held::No),
            Ok(used) => used,
            Err(_) => return Some(Held::Unknown),
        };
        let mut rest = entries.get(..used).unwrap_or(&[]);
        while let Some((name, next)) = split_entry(rest) {
            rest = next;
            match each(directory.raw(), name) {
                Held::No => {}
                other => return Some(other),
            }
        }
    }
}

/// The first entry's name, and the bytes behind the entry.
fn split_entry(entries: &[u8]) -> Option<(&CStr, &[u8])> {
    let length: [u8; 2] = entries.get(RECORD_LEN..RECORD_LEN + 2)?.try_into().ok()?;
    let length = usize::from(u16::from_ne_bytes(length));
    let name = CStr::from_bytes_until_nul(entries.get(NAME..length)?).ok()?;
    Some((name, entries.get(length..)?))
}

fn parent_of(pid: i32) -> Option<i32> {
    let mut text = [0u8; STAT];
    let parent = stat_fields(pid, &mut text)?.nth(1)?;
    procfs::decimal(parent).and_then(|pid| i32::try_from(pid).ok())
}

/// The letter of a process's state.
pub(crate) fn state_of(pid: i32) -> Option<u8> {
    let mut text = [0u8; STAT];
    stat_fields(pid, &mut text)?.next()?.first().copied()
}

/// Whether a process is on its way out, by the kernel's word: its descriptors are being closed, or
/// are closed.
pub(crate) fn is_exiting(pid: i32) -> bool {
    const PF_EXITING: u64 = 4;
    const FLAGS: usize = 6; // behind the state
    let mut text = [0u8; STAT];
    stat_fields(pid, &mut text)
        .and_then(|mut fields| procfs::decimal(fields.nth(FLAGS)?))
        .is_some_and(|flags| flags & PF_EXITING != 0)
}

/// Bytes of a process's `stat` that are looked at.
const STAT: usize = 256;

/// The fields of a process's `stat` behind its name: state, parent and so on.
fn stat_fields(pid: i32, text: &mut [u8; STAT]) -> Option<impl Iterator<Item = &[u8]>> {
    let file = procfs::open(path_of(pid, b"/stat")?.text()).ok()?;
    let len = procfs::read(file.raw(), text).ok()?;
    // The command's name stands in parentheses and may hold anything, parentheses too.
    let text = text.get(..len)?;
    let after = text.get(text.iter().rposition(|byte| *byte == b')')? + 1..)?;
    Some(after.split(|byte| *byte == b' ').skip(1))
}

/// `/proc/<pid><rest>`.
fn path_of(pid: i32, rest: &[u8]) -> Option<Path> {
    let pid = u32::try_from(pid).ok()?;
    Some(Path::of(&[Piece::Text(b"/proc/"), Piece::Number(pid), Piece::Text(rest)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsRawFd,
        process::{Command, Stdio},
    };

    fn inode(socket: &impl AsRawFd) -> u64 {
        crate::fd::inode(socket.as_raw_fd()).unwrap()
    }

    #[test]
    fn a_process_with_the_socket_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let me = std::process::id() as i32;
        assert_eq!(Search::new(inode(&socket)).process(me), Held::Yes);
        let number = inode(&socket);
        drop(socket);
        assert_eq!(Search::new(number).process(me), Held::No);
    }

    #[test]
    fn a_second_number_of_the_socket_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (number, known) = (inode(&socket), socket.as_raw_fd());
        assert_eq!(Search::new(number).here(|fd| fd == known), Held::No);
        let other = socket.try_clone().unwrap();
        assert_eq!(Search::new(number).here(|fd| fd == known), Held::Yes);
        assert_eq!(
            Search::new(number).here(|fd| [known, other.as_raw_fd()].contains(&fd)),
            Held::No
        );
    }

    #[test]
    fn a_set_that_is_not_known_is_found() {
        let sets = [0; 2].map(|_| owned(kernel::epoll_create1(libc::EPOLL_CLOEXEC)).unwrap());
        assert_eq!(has_set(|fd| fd == sets[0].raw()), Held::Yes);
        assert_eq!(has_set(|_| true), Held::No);
    }

    #[test]
    fn a_child_that_inherited_a_socket_is_found_among_everybody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let number = inode(&socket);
        let mut child =
            Command::new("sleep").arg("20").stdin(socket_as_input(socket)).spawn().unwrap();
        // As a user without privileges, the search may come across other users' processes first.
        assert_ne!(Search::new(number).everybody(), Held::No);
        assert_eq!(Search::new(number).process(child.id() as i32), Held::Yes);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_ne!(Search::new(number).everybody(), Held::Yes);
    }

    fn socket_as_input(socket: TcpStream) -> Stdio {
        Stdio::from(std::os::fd::OwnedFd::from(socket))
    }

    #[test]
    fn an_ended_process_holds_nothing() {
        let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(Search::new(1).process(child.id() as i32), Held::No);
    }

    #[test]
    fn who_has_ended_was_on_the_way_out() {
        let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
        assert!(!is_exiting(std::process::id() as i32));
        while !crate::pid::has_ended_or_is_about_to(child.id() as i32) {
            std::thread::yield_now();
        }
        assert!(is_exiting(child.id() as i32)); // nobody has waited for it yet
        child.wait().unwrap();
    }

    #[test]
    fn ancestors_do_not_have_a_socket_made_here() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_ne!(Search::new(inode(&listener)).ancestors(), Held::Yes);
    }

    #[test]
    fn the_parent_of_a_child_is_this_process() {
        let mut child = Command::new("sleep").arg("5").spawn().unwrap();
        assert_eq!(parent_of(child.id() as i32), Some(std::process::id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn without_proc_nothing_is_known() {
        let empty = std::env::temp_dir().join(std::format!("sdp-holders-{}", std::process::id()));
        std::fs::create_dir(&empty).unwrap();
        let path = std::ffi::CString::new(empty.to_str().unwrap()).unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: in the child, which has one thread: system calls and memory of its own; _exit ends it.
            unsafe {
                let is_root = libc::chroot(path.as_ptr()) == 0;
                let mut search = Search::new(1);
                let answers = [search.ancestors(), search.everybody()];
                libc::_exit(if is_root { i32::from(answers != [Held::Unknown; 2]) } else { 0 });
            }
        }
        let mut status = 0;
        // SAFETY: the status outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        std::fs::remove_dir(&empty).unwrap();
        assert_eq!(status, 0);
    }

    #[test]
    fn too_many_links_are_unknown() {
        let mut search = Search { inode: 1, links: LINKS_MAX };
        assert_eq!(search.process(std::process::id() as i32), Held::Unknown);
    }

    #[test]
    fn a_cut_entry_ends_the_walk() {
        assert!(split_entry(&[0; 10]).is_none());
        let mut entry = [0u8; 24];
        entry[16] = 24;
        entry[19..22].copy_from_slice(b"17\0");
        let (name, rest) = split_entry(&entry).unwrap();
        assert_eq!(name, c"17");
        assert!(rest.is_empty());
        entry[16] = 200; // longer than what is there
        assert!(split_entry(&entry).is_none());
    }
}

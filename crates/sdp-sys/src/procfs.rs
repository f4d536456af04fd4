//! The few facts that only /proc has.
//!
//! Paths go through `/proc/thread-self`: `/proc/self` shows the descriptors of the thread-group
//! leader, which may have exited or have a table of its own.

use core::ffi::CStr;

use crate::{
    errno::Errno,
    filter,
    kernel::{self, owned},
    owned::OwnedFd,
};

/// Longest path built here, with its terminating NUL.
const PATH_MAX: usize = 48;
/// Longest link that is looked at.
const LINK_MAX: usize = 64;

/// A number in decimal.
struct Digits {
    digits: [u8; 10],
    used: usize,
}

impl Digits {
    fn new(number: u32) -> Self {
        let mut digits = [0u8; 10];
        let mut rest = number;
        let mut used = 0;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            used += 1;
            if rest == 0 {
                break;
            }
        }
        Self { digits, used }
    }

    /// One to ten digits, without leading zeros.
    fn text(&self) -> impl Iterator<Item = &u8> {
        self.digits.iter().skip(self.digits.len() - self.used)
    }
}

/// A piece of a path.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    Text(&'a [u8]),
    Number(u32),
}

/// A path below /proc, NUL-terminated; cut off where it is longer than its room.
pub(crate) struct Path([u8; PATH_MAX]);

impl Path {
    pub(crate) fn of(pieces: &[Piece<'_>]) -> Self {
        let mut path = [0u8; PATH_MAX];
        let (room, _) = path.split_at_mut(PATH_MAX - 1);
        let mut room = room.iter_mut();
        let mut put = |byte: &u8| {
            if let Some(to) = room.next() {
                *to = *byte;
            }
        };
        for piece in pieces {
            match piece {
                Piece::Text(text) => text.iter().for_each(&mut put),
                Piece::Number(number) => Digits::new(*number).text().for_each(&mut put),
            }
        }
        Self(path)
    }

    /// `/proc/thread-self/fd/<fd>`.
    fn of_descriptor(fd: i32) -> Result<Self, Errno> {
        let number = u32::try_from(fd).map_err(|_| Errno::EBADF)?;
        Ok(Self::of(&[Piece::Text(b"/proc/thread-self/fd/"), Piece::Number(number)]))
    }

    pub(crate) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

/// An O_PATH handle of the file of `fd`: shows which socket we hold, allows nothing with it, and
/// does not keep a connection open.
///
/// Without /proc (a changed root) `open_tree` makes one; few programs call it, so not where a filter
/// of system calls may end the process for it.
///
/// # Errors
/// EBADF for a negative number; ENOENT for a closed one or without /proc; EMFILE, ENFILE.
pub fn path_handle(fd: i32) -> Result<OwnedFd, Errno> {
    let opened = open_at(libc::AT_FDCWD, Path::of_descriptor(fd)?.text(), libc::O_PATH);
    const ITSELF: u32 = libc::AT_EMPTY_PATH as u32 | libc::OPEN_TREE_CLOEXEC;
    match opened {
        Err(Errno(libc::ENOENT | libc::ENOTDIR | libc::EACCES)) if !filter::is_there() => {
            owned(kernel::open_tree(fd, c"", ITSELF)).or(opened)
        }
        _ => opened,
    }
}

/// The kind of a descriptor's file, by the kernel's word, without asking the file itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A socket, with its inode number.
    Socket(u64),
    /// An eventfd.
    EventFd,
    /// An epoll set.
    EpollSet,
    /// Anything else.
    Other,
}

/// The kind of `fd`, from its link in /proc. Unlike `fstat` this never reaches a file system in
/// user space and cannot be forged by one: such names begin with a slash.
pub fn kind(fd: i32) -> Result<Kind, Errno> {
    kind_at(libc::AT_FDCWD, Path::of_descriptor(fd)?.text())
}

/// The kind of file that a link in /proc names. Asks for the permission to look, and the file's own
/// file system for nothing.
pub(crate) fn kind_at(directory: i32, path: &CStr) -> Result<Kind, Errno> {
    let mut buf = [0u8; LINK_MAX];
    let link = link_at(directory, path, &mut buf)?;
    if link == b"anon_inode:[eventfd]" {
        return Ok(Kind::EventFd);
    }
    if link == b"anon_inode:[eventpoll]" {
        return Ok(Kind::EpollSet);
    }
    Ok(socket_inode(link).map_or(Kind::Other, Kind::Socket))
}

/// The text of a link; as much of it as there is room for.
fn link_at<'a>(
    directory: i32,
    path: &CStr,
    buf: &'a mut [u8; LINK_MAX],
) -> Result<&'a [u8], Errno> {
    let len = kernel::readlinkat(directory, path, buf)?;
    Ok(buf.get(..len).unwrap_or(&[]))
}

/// Whether a process is in our own namespace of processes, by the directory of [`descriptors_of`].
pub fn is_in_our_namespace(directory: i32) -> bool {
    let (mut theirs, mut ours) = ([0; LINK_MAX], [0; LINK_MAX]);
    let theirs = link_at(directory, c"../ns/pid", &mut theirs);
    let ours = link_at(libc::AT_FDCWD, c"/proc/thread-self/ns/pid", &mut ours);
    matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
}

/// The directory of another process's descriptors, as an O_PATH handle that stays that process's
/// whatever becomes of its id. `None`: it has ended, we may not look into it, or /proc hides it.
pub fn descriptors_of(pidfd: &OwnedFd) -> Option<OwnedFd> {
    // The id that this /proc knows it by: ours may be of another namespace.
    let number = u32::try_from(pidfd.raw()).ok()?;
    let path = Path::of(&[Piece::Text(b"/proc/thread-self/fdinfo/"), Piece::Number(number)]);
    let mut text = [0u8; 256];
    let pid = field(libc::AT_FDCWD, &path, b"Pid:\t", &mut text).ok().and_then(decimal)?;
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0)?;
    let path = Path::of(&[Piece::Text(b"/proc/"), Piece::Number(pid), Piece::Text(b"/fd")]);
    let directory = open_at(libc::AT_FDCWD, path.text(), libc::O_PATH | libc::O_DIRECTORY).ok()?;
    // A process that may follow this link may follow those of the descriptors.
    kind_at(directory.raw(), c"../cwd").ok()?;
    // Still the process that the pidfd names: so it was when the directory was opened.
    (!crate::pid::has_ended(pidfd.raw())).then_some(directory)
}

/// The kind of descriptor `number` of a process, by the directory of [`descriptors_of`]: the
/// kernel's word, without the process's help, and without that of the file: it may be of a file
/// system that never answers.
///
/// # Errors
/// ENOENT: it has no such descriptor; ESRCH: it has ended; EACCES: we may not look any more.
pub fn held_by(directory: i32, number: u32) -> Result<Kind, Errno> {
    kind_at(directory, Path::of(&[Piece::Number(number)]).text())
}

/// The text behind `name` in the first line that begins with it, of a small file.
fn field<'a>(
    directory: i32,
    path: &Path,
    name: &[u8],
    text: &'a mut [u8],
) -> Result<&'a [u8], Errno> {
    let len = read(open_at(directory, path.text(), libc::O_RDONLY)?.raw(), text)?;
    let mut lines = text.get(..len).unwrap_or(&[]).split(|byte| *byte == b'\n');
    lines.find_map(|line| line.strip_prefix(name)).ok_or(Errno::EINVAL)
}

/// The inode number in a link of /proc that names a socket.
pub fn socket_inode(link: &[u8]) -> Option<u64> {
    decimal(link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?)
}

/// A decimal number of at most 20 digits, nothing else around it.
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Opens a file of /proc for reading.
pub fn open(path: &CStr) -> Result<OwnedFd, Errno> {
    open_at(libc::AT_FDCWD, path, libc::O_RDONLY)
}

/// With these flags, and closed by exec.
fn open_at(directory: i32, path: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    let flags = flags | libc::O_CLOEXEC;
    owned(kernel::openat(directory, path, flags, 0))
}

/// Reads into `buf`; the number of bytes, 0 at the end.
pub fn read(fd: i32, buf: &mut [u8]) -> Result<usize, Errno> {
    kernel::read(fd, buf)
}

/// Whether each of `lines` is a whole line of the first 2 KiB of a file of /proc.
pub fn has_lines(path: &CStr, lines: &[&[u8]]) -> Result<bool, Errno> {
    const LOOKED_AT: usize = 2048;
    let mut text = [0; LOOKED_AT];
    let file = open(path)?;
    let len = read(file.raw(), &mut text)?;
    let text = text.get(..len).unwrap_or(&[]);
    // Not the last one, which may be cut off.
    let whole = text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let there = text.get(..whole).unwrap_or(&[]);
    Ok(lines.iter().all(|line| there.split(|byte| *byte == b'\n').any(|one| one == *line)))
}

/// The kernel's record of this process's pages from the one with this number (address over its
/// size) on: a word each (bit 63: there, 62: swapped out). It has none of pages that were never
/// touched.
pub fn pages(first: usize, words: &mut [u64]) -> Result<(), Errno> {
    let (bytes, at) = (size_of_val(words), first * size_of::<u64>());
    let file = open(c"/proc/self/pagemap")?;
    let got = kernel::pread(file.raw(), words, at)?;
    if got == bytes { Ok(()) } else { Err(Errno::ENOENT) }
}

/// The first two numbers of the kernel's release, major and minor.
pub fn kernel() -> Option<(u32, u32)> {
    let mut release = [0; 32];
    let file = open(c"/proc/sys/kernel/osrelease").ok()?;
    let len = read(file.raw(), &mut release).ok()?;
    version(release.get(..len)?)
}

fn version(release: &[u8]) -> Option<(u32, u32)> {
    let number = |digits| u32::try_from(decimal(digits)?).ok();
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(number);
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::fd::AsRawFd};

    #[test]
    fn pages_are_there_when_they_were_touched() {
        const PAGE: usize = 4096;
        let (there, swapped) = (1 << 63, 1 << 62);
        let mut memory: Vec<u8> = Vec::with_capacity(16 * 1024 * PAGE); // too large for the heap: fresh
        let first = memory.as_ptr() as usize / PAGE + 8;
        let mut words = [0; 2];
        // SAFETY: no pointers.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if size != PAGE as libc::c_long || pages(first, &mut words).is_err() {
            return;
        }
        assert!(words.iter().all(|word| word & (there | swapped) == 0), "{words:x?}");
        memory.resize(10 * PAGE, 1);
        pages(first, &mut words).unwrap();
        assert!(words[0] & (there | swapped) != 0, "{words:x?}");
    }

    #[test]
    fn lines_are_whole() {
        let mut status = String::new();
        std::fs::File::open("/proc/self/status").unwrap().read_to_string(&mut status).unwrap();
        let line = |name| status.lines().find(|line| line.starts_with(name)).unwrap().as_bytes();
        let path = c"/proc/thread-self/status";
        let (seccomp, uid) = (line("Seccomp:"), line("Uid:"));
        assert_eq!(has_lines(path, &[seccomp]), Ok(true));
        assert_eq!(has_lines(path, &[seccomp, uid]), Ok(true), "in any order");
        assert_eq!(has_lines(path, &[b"Seccomp:"]), Ok(false));
        assert_eq!(has_lines(path, &[uid, b"Seccomp:"]), Ok(false));
        assert!(has_lines(c"/proc/none", &[b""]).is_err());
    }

    #[test]
    fn a_release_begins_with_two_numbers() {
        for (release, wanted) in [
            (&b"6.18.44\n"[..], Some((6, 18))),
            (b"6.12-rc1", Some((6, 12))),
            (b"6.9.0-13-amd64", Some((6, 9))),
            (b"10.0", Some((10, 0))),
            (b"6", None),
            (b"6.", None),
            (b"six.1", None),
            (b"99999999999.1", None),
            (b"", None),
        ] {
            assert_eq!(version(release), wanted, "{release:?}");
        }
        assert!(kernel().is_some_and(|kernel| kernel >= (2, 6)));
    }

    #[test]
    fn path_names_the_descriptor() {
        let path = Path::of_descriptor(i32::MAX).unwrap();
        assert_eq!(path.text(), c"/proc/thread-self/fd/2147483647");
        assert_eq!(Path::of_descriptor(0).unwrap().text(), c"/proc/thread-self/fd/0");
        assert_eq!(Path::of_descriptor(-1).err(), Some(Errno::EBADF));
    }

    #[test]
    fn a_path_ends_where_its_room_does() {
        let path = Path::of(&[Piece::Number(7), Piece::Text(&[b'x'; 3 * PATH_MAX])]);
        assert_eq!(path.text().count_bytes(), PATH_MAX - 1);
        assert!(path.text().to_bytes().starts_with(b"7xx"));
    }

    #[test]
    fn kinds_are_told_apart() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = crate::fd::inode(socket.as_raw_fd()).unwrap();
        assert_eq!(kind(socket.as_raw_fd()), Ok(Kind::Socket(inode)));
        let handle = path_handle(socket.as_raw_fd()).unwrap();
        assert_eq!(kind(handle.raw()), Ok(Kind::Socket(inode)));
        let eventfd = owned(kernel::eventfd2(0, libc::EFD_CLOEXEC)).unwrap();
        assert_eq!(kind(eventfd.raw()), Ok(Kind::EventFd));
        let set = owned(kernel::epoll_create1(libc::EPOLL_CLOEXEC)).unwrap();
        assert_eq!(kind(set.raw()), Ok(Kind::EpollSet));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(kind(file.as_raw_fd()), Ok(Kind::Other));
        assert_eq!(kind(-1), Err(Errno::EBADF));
        assert_eq!(kind(i32::MAX), Err(Errno::ENOENT));
    }

    #[test]
    fn decimal_takes_digits_only() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"18446744073709551616", b"+1", b"1 ", b"-1", b"0x1"] {
            assert_eq!(decimal(bad), None);
        }
    }
}

//! The file of a descriptor, as the kernel describes it.
//!
//! The library's own descriptors live in the program's number space: a raw `close` or `dup2` can
//! reach them. Code that comes back to a number after the program ran compares [`Identity`] first.

use crate::{
    errno::Errno,
    kernel::{self, zeroed},
};

/// Device and inode: two descriptors with equal identities name the same file (all eventfds and
/// other anonymous inodes look alike).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// The part of `fstat` that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Device and inode.
    pub id: Identity,
    /// Size in bytes.
    pub size: u64,
    /// Owner.
    pub uid: u32,
    /// When the inode changed last, in nanoseconds since 1970: also a change that leaves size and times as
    /// they were.
    pub changed_ns: u64,
    /// Type and permission bits.
    mode: u32,
}

impl Stat {
    /// Whether it is an anonymous inode (eventfd, epoll, timerfd, …): those alone have no type.
    pub const fn is_anonymous(&self) -> bool {
        self.mode & libc::S_IFMT == 0
    }

    /// Permission bits.
    pub const fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Whether it is a socket.
    pub const fn is_socket(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFSOCK
    }

    /// Whether it is a directory.
    pub const fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether it is a regular file: reading one never waits for another process.
    pub const fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// `fstat`. On a descriptor that a stranger passed it can take any time: a file system in user space
/// answers when it likes.
pub fn stat(fd: i32) -> Result<Stat, Errno> {
    read(|st| kernel::fstat(fd, st))
}

/// The same, from the kernel's own knowledge: asks no file system that would have to ask another
/// party. For numbers at which the program may have put any file.
pub fn at_hand(fd: i32) -> Result<Stat, Errno> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    read(|st| kernel::fstatat(fd, c"", st, flags))
}

/// The file of `path`, through links.
pub fn of_path(path: &core::ffi::CStr) -> Result<Stat, Errno> {
    read(|st| kernel::fstatat(libc::AT_FDCWD, path, st, 0))
}

/// Links of the file of `path`. `None`: no such file, or it cannot be asked.
pub fn links(path: &core::ffi::CStr) -> Option<u64> {
    let mut st: libc::stat = zeroed();
    kernel::fstatat(libc::AT_FDCWD, path, &mut st, 0).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "narrower on other processors")]
    Some(st.st_nlink as u64)
}

fn read(ask: impl FnOnce(&mut libc::stat) -> Result<usize, Errno>) -> Result<Stat, Errno> {
    let mut st: libc::stat = zeroed();
    ask(&mut st)?;
    Ok(Stat {
        id: Identity { dev: st.st_dev, ino: st.st_ino },
        size: st.st_size.max(0) as u64,
        uid: st.st_uid,
        changed_ns: (st.st_ctime.max(0) as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(st.st_ctime_nsec.max(0) as u64),
        mode: st.st_mode,
    })
}

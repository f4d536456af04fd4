//! A descriptor of the library's own that stays open while the program runs.
//!
//! The program may close its number with a raw system call, or put a file of its own there. So the
//! file is remembered besides the number, compared before every use, and only our own is closed.

use crate::{
    errno::Errno,
    fd,
    owned::OwnedFd,
    stat::{self, Identity, Stat},
};

/// A hidden descriptor; dropped, it is closed, if it still is ours.
#[derive(Debug)]
pub struct Hidden {
    fd: i32,
    id: Identity,
}

impl Hidden {
    /// Takes over `fd` and moves it to `min` or above ([`OwnedFd::move_up`]).
    pub fn new(fd: OwnedFd, min: i32) -> Result<Self, Errno> {
        let id = stat::stat(fd.raw())?.id;
        Ok(Self { fd: fd.move_up(min).into_raw(), id })
    }

    /// The number. Compare first: [`Hidden::is_ours`].
    pub const fn raw(&self) -> i32 {
        self.fd
    }

    /// Whether the number still names our file. Costs one fstat. (All eventfds have one inode, so
    /// another eventfd at our number goes unnoticed.) Never waits for a file system, whatever stands there.
    pub fn is_ours(&self) -> bool {
        self.stat().is_some()
    }

    /// What the kernel tells of our file; `None`: the number does not name it any more.
    pub fn stat(&self) -> Option<Stat> {
        stat::at_hand(self.fd).ok().filter(|stat| stat.id == self.id)
    }

    /// Moves the descriptor to `min` or above, unless it is there already or is not ours any more.
    pub fn move_up(&mut self, min: i32) {
        if self.fd < min && self.is_ours() {
            self.fd = fd::move_up(self.fd, min);
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let is_ours = match stat::at_hand(self.fd) {
            Ok(stat) => stat.id == self.id,
            // What cannot be asked what it is: a directory of `/proc` of a process that has been reaped, with a kernel
            // that counts what is in it (since 6.2). So was ours, then, as long as nobody else keeps such.
            Err(error) => error == Errno::ENOENT && fd::is_path(self.fd),
        };
        if is_ours {
            fd::close(self.fd);
        }
    }
}

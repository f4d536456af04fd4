//! A descriptor of the library's own that stays open while the program runs.
//!
//! The program may close its number with a raw system call, or put a file of its own there. So the
//! file is remembered besides the number, compared before every use, and only our own is closed.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::{
    errno::Errno,
    fd,
    owned::OwnedFd,
    pid,
    stat::{self, Identity, Stat},
    time::monotonic_ns,
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
    /// another eventfd at our number goes unnoticed.) Never waits for a file system, whatever file
    /// is there.
    pub fn is_ours(&self) -> bool {
        self.stat().is_some()
    }

    /// The kernel's description of our file; `None`: the number does not name it any more.
    pub fn stat(&self) -> Option<Stat> {
        stat::at_hand(self.fd).ok().filter(|stat| stat.id == self.id)
    }

    /// A second number for our file, at `min` or above, which this names from here on; it may need other numbers to be
    /// closed. The first one stays open.
    ///
    /// # Errors
    /// EBADF: the number does not name our file any more; EMFILE, EINVAL: there is none.
    pub fn renumber(&mut self, min: i32) -> Result<i32, Errno> {
        if !self.is_ours() {
            return Err(Errno::EBADF);
        }
        let fresh = crate::kernel::duplicate_cloexec(self.fd, min)?;
        self.fd = fresh as i32;
        Ok(self.fd)
    }

    /// Moves the descriptor to `min` or above, unless it is there already or is not ours any more.
    pub fn move_up(&mut self, min: i32) {
        if self.fd < min && self.is_ours() {
            self.fd = fd::move_up(self.fd, min);
        }
    }
}

/// Calls of this process that have read a hidden number, or are about to, and have not used it yet.
#[unsafe(link_section = ".bss.hot")]
static IN_USE: AtomicU32 = AtomicU32::new(0);
/// How long [`await_unused`] waits for a thread that gets no CPU.
const TIMEOUT_NS: u64 = 1_000_000_000;

/// A hidden number is being used: from before it is read until the system call that it is for has
/// begun. The thread that gives the number to the program waits for that ([`await_unused`]). For
/// short calls, with signals deferred.
#[derive(Debug)]
pub struct InUse {
    is_counted: bool,
}

impl InUse {
    /// Before the number is read.
    #[inline]
    pub fn begin() -> Self {
        // A single thread cannot give the number away meanwhile.
        let is_counted = !pid::is_single_threaded();
        if is_counted {
            IN_USE.fetch_add(1, Ordering::SeqCst);
        }
        Self { is_counted }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.is_counted {
            IN_USE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The program is about to get a hidden number, or it is about to be closed, and no thread can find
/// it any more: waits for those that found it before. For one that uses none itself.
#[cold]
pub fn await_unused() {
    let end = monotonic_ns().saturating_add(TIMEOUT_NS);
    crate::time::back_off_until(|| IN_USE.load(Ordering::SeqCst) == 0 || monotonic_ns() >= end);
}

/// In a fork child: the parent's other threads do not exist here.
pub fn forget_users() {
    if IN_USE.load(Ordering::Relaxed) != 0 {
        IN_USE.store(0, Ordering::Relaxed);
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let is_ours = match stat::at_hand(self.fd) {
            Ok(stat) => stat.id == self.id,
            // A file about which nothing can be asked: a directory of `/proc` of a process that has
            // been reaped, with a kernel that counts its entries (since 6.2). Ours was one, then,
            // as long as no other part of the process keeps such.
            Err(error) => error == Errno::ENOENT && fd::is_path(self.fd),
        };
        if is_ours {
            fd::close(self.fd);
        }
    }
}

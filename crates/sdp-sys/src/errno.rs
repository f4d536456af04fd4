//! Error numbers as values.

use core::fmt;

/// A positive Linux error number, as in `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(libc::EPERM);
    /// Interrupted by a signal.
    pub const EINTR: Self = Self(libc::EINTR);
    /// Bad descriptor.
    pub const EBADF: Self = Self(libc::EBADF);
    /// Would block.
    pub const EAGAIN: Self = Self(libc::EAGAIN);
    /// Bad argument.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// Bad address.
    pub const EFAULT: Self = Self(libc::EFAULT);
    /// Broken pipe.
    pub const EPIPE: Self = Self(libc::EPIPE);
    /// Connection reset by peer.
    pub const ECONNRESET: Self = Self(libc::ECONNRESET);
    /// Connection refused.
    pub const ECONNREFUSED: Self = Self(libc::ECONNREFUSED);
    /// Address in use.
    pub const EADDRINUSE: Self = Self(libc::EADDRINUSE);
    /// No such entry.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// No such process.
    pub const ESRCH: Self = Self(libc::ESRCH);
    /// Not supported by this kernel.
    pub const ENOSYS: Self = Self(libc::ENOSYS);
    /// Out of memory.
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    /// Timed out.
    pub const ETIMEDOUT: Self = Self(libc::ETIMEDOUT);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// Turns the kernel's return convention (−4095…−1 is an error) into a `Result`.
#[inline]
pub fn check(ret: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

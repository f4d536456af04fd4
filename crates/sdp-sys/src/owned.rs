//! A descriptor that closes itself.
//!
//! Used wherever a function can fail between making a descriptor and handing it over, so that no
//! way out of it leaks one. It refuses to be copied and knows nothing of the file that it names.

use crate::fd;

/// A descriptor owned by this value; dropped, it is closed.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnedFd(i32);

impl OwnedFd {
    /// Takes over descriptor number `fd`, which the caller must own and not use elsewhere.
    pub const fn new(fd: i32) -> Self {
        Self(fd)
    }

    /// The number; still owned by this value.
    pub const fn raw(&self) -> i32 {
        self.0
    }

    /// Gives the number away; closing it is the receiver's business.
    pub const fn into_raw(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }

    /// The same descriptor at the lowest free number at or above `min`; unchanged when it is there
    /// already, or when none is free ([`fd::move_up`]).
    pub fn move_up(self, min: i32) -> Self {
        if self.0 >= min {
            return self;
        }
        Self(fd::move_up(self.into_raw(), min))
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        fd::close(self.0);
    }
}

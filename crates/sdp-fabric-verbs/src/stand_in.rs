//! For tests: stand-ins for libibverbs and the connection manager.
//!
//! Only with the feature `stand-in`, which nothing that is shipped has: the build of `libsdp.so` does
//! not name it, and `xtask abi` looks whether the tests' connection manager is in it.

use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use sdp_sys::{Errno, OwnedFd};

use crate::library::Library;

/// The functions that are called in the place of the library and the device file.
#[derive(Debug)]
pub struct StandIn {
    /// In the place of libibverbs.
    pub library: Library,
    /// Opens a connection manager, its descriptor at this number or above.
    pub open: fn(i32) -> Result<OwnedFd, Errno>,
    /// In the place of a `write` to that descriptor.
    pub command: fn(i32, &[u8]) -> Result<(), Errno>,
    /// The first number of that descriptor becomes the second.
    pub renumber: fn(i32, i32),
    /// Before the descriptor is closed.
    pub close: fn(i32),
}

static INSTALLED: AtomicPtr<StandIn> = AtomicPtr::new(null_mut());

/// From here on it is used.
pub fn install(stand_in: &'static StandIn) {
    INSTALLED.store(core::ptr::from_ref(stand_in).cast_mut(), Ordering::Release);
}

/// The one in use.
pub(crate) fn installed() -> Option<&'static StandIn> {
    // SAFETY: null, or the pointer that `install` was given, which lives for ever and is not
    // changed.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }
}

//! Memory that this process maps for itself, and how it gives that back.
//!
//! Called by rooms that make a table, an arena or a page. A mapping that no other thread knows yet
//! is a [`Fresh`] and goes when that is dropped. Once its address is in a shared word, no type can
//! show that nothing uses it any more: [`unmap`] and [`give_up`] are unsafe, and their callers say
//! why.

use core::{
    mem::ManuallyDrop,
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicPtr, Ordering},
};

use sdp_fabric_shm::segment::Mapped;
use sdp_sys::{kernel, sys};

/// Zeroed private memory that lasts, touched lazily.
pub(crate) fn map_private(len: usize) -> Option<NonNull<u8>> {
    Fresh::private(len).map(Fresh::keep)
}

/// A mapping that no other thread knows. Unmapped when dropped.
pub(crate) struct Fresh {
    base: NonNull<u8>,
    len: usize,
}

impl Fresh {
    /// Zeroed private memory, touched lazily.
    pub(crate) fn private(len: usize) -> Option<Self> {
        Self::map(len, libc::MAP_PRIVATE)
    }

    /// Memory that forked processes share; pages that are not touched cost nothing. A core dump would have, and make, each of
    /// them: it is left out.
    pub(crate) fn shared(len: usize) -> Option<Self> {
        let fresh = Self::map(len, libc::MAP_SHARED)?;
        kernel::leave_out_of_dumps(fresh.base, len);
        Some(fresh)
    }

    fn map(len: usize, kind: i32) -> Option<Self> {
        let base = kernel::map_zeros(len, 0, kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        base.ok().map(|base| Self { base, len })
    }

    /// First byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// All of it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a mapping of that size for reading and writing, which no other thread knows.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// It lasts from here on, and all that get the address may use it.
    pub(crate) fn keep(self) -> NonNull<u8> {
        ManuallyDrop::new(self).base
    }

    /// Makes `word`, which names nothing yet, name this mapping. Another thread may have been
    /// faster: then that thread's memory stays, and this goes. Returns the memory that `word` names
    /// now.
    pub(crate) fn publish<T>(self, word: &AtomicPtr<T>) -> *mut T {
        let at = self.base.as_ptr().cast();
        match word.compare_exchange(null_mut(), at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => self.keep().as_ptr().cast(),
            Err(theirs) => theirs,
        }
    }

    /// Keeps `len` bytes from `from` on; the bytes before and behind are unmapped.
    pub(crate) fn keep_part(self, from: usize, len: usize) -> Option<NonNull<u8>> {
        let all = ManuallyDrop::new(self);
        let behind = all.len.checked_sub(from.checked_add(len)?)?;
        let at = |offset: usize| NonNull::new(all.base.as_ptr().wrapping_add(offset));
        let part = at(from)?;
        let parts = [(Some(all.base), from), (at(from + len), behind)];
        for (base, len) in parts.into_iter().filter(|(_, len)| *len != 0) {
            drop(base.map(|base| Self { base, len }));
        }
        Some(part)
    }
}

impl From<Mapped> for Fresh {
    /// A file's mapping, which has no destructor of its own.
    fn from(mapped: Mapped) -> Self {
        Self { base: mapped.base(), len: mapped.len() }
    }
}

impl Drop for Fresh {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a mapping, or pages of one, that no other thread knows.
        let _ = unsafe { sys!(libc::SYS_munmap, self.base.as_ptr(), self.len) };
    }
}

/// Gives a mapping back.
///
/// # Safety
/// `len` bytes at `at` are a mapping of this process's making, and nothing uses it any more.
#[inline]
pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    drop(Fresh { base: at, len });
}

/// Unmaps if `is_unused`. Else puts private zeros in the place of a mapping: a thread in the middle
/// of a look at it finds memory, though not the old one.
///
/// # Safety
/// `len` bytes at `at` are a mapping of this process's making. If `is_unused`, nothing uses it any
/// more; else zeros are values for all that may still use it.
pub(crate) unsafe fn give_up(at: NonNull<u8>, len: usize, is_unused: bool) {
    if is_unused {
        return drop(Fresh { base: at, len });
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's mapping, of this length, is replaced by one that can be used as it
    // could.
    let _ = unsafe { sys!(libc::SYS_mmap, at.as_ptr(), len, protection, flags, -1isize, 0) };
}

//! The only unsafe file: from memory of a mapping to `&Page`, and mappings for tools.

use crate::page::{Page, SIZE};

impl Page {
    /// The page at `ptr`, or `None` when `ptr` is null or misaligned, or `len` too short. The
    /// content need not be initialised by [`Page::init`] yet: every bit pattern is a valid page.
    ///
    /// # Safety
    /// `ptr` must be valid for reads and writes of `len` bytes for as long as `'a`, and all access
    /// to that memory, by anybody in this process, must be through atomics.
    pub unsafe fn from_ptr<'a>(ptr: *mut u8, len: usize) -> Option<&'a Self> {
        if ptr.is_null() || len < SIZE || !(ptr as usize).is_multiple_of(align_of::<Self>()) {
            return None;
        }
        // SAFETY: the caller vouches for the memory; alignment and length were checked; a page
        // consists of integers' atomics only, for which every bit pattern is valid.
        Some(unsafe { &*ptr.cast::<Self>() })
    }
}

/// A page on the heap, for tests.
#[cfg(test)]
pub(crate) fn zeroed_page() -> Box<Page> {
    // SAFETY: all-zero is a valid page (integers' atomics only).
    unsafe { Box::<Page>::new_zeroed().assume_init() }
}

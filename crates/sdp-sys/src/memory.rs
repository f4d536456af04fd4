//! Memory: whether a program's pointer leads anywhere, where the kernel would answer `EFAULT` and a read here would be a
//! fault; and mappings that end with the value that has them.

use core::{
    ops::{Deref, DerefMut, Range},
    ptr::{NonNull, from_ref},
};

use crate::{kernel, libcs, sys, tls};

/// A mapping of zeros of its own, page aligned; pages that are not touched cost nothing. It is for payload on its way, and
/// not in core dumps.
pub struct Zeros {
    at: NonNull<u8>,
    len: usize,
}

impl Zeros {
    /// At least one byte, which a forked process copies. `None`: there is no memory.
    pub fn private(len: usize) -> Option<Self> {
        Self::map(len, libc::MAP_PRIVATE)
    }

    /// At least one byte, which a forked process shares.
    ///
    /// # Safety
    /// While the bytes are borrowed no other process writes them.
    pub unsafe fn shared(len: usize) -> Option<Self> {
        Self::map(len, libc::MAP_SHARED)
    }

    fn map(len: usize, flags: i32) -> Option<Self> {
        let len = len.max(1);
        let at = kernel::map_zeros(len, 0, flags | libc::MAP_NORESERVE).ok()?;
        kernel::leave_out_of_dumps(at, len);
        Some(Self { at, len })
    }

    /// Makes it longer, of one that is private. False: there is no memory, and nothing has changed.
    pub fn grow(&mut self, len: usize) -> bool {
        // SAFETY: the value's own mapping, which nothing else borrows; the memory behind it goes
        // nowhere else.
        let moved = unsafe {
            sys!(libc::SYS_mremap, self.at.as_ptr(), self.len, len, libc::MREMAP_MAYMOVE)
        };
        let Some(at) = moved.ok().and_then(|at| NonNull::new(at as *mut u8)) else { return false };
        (self.at, self.len) = (at, len);
        true
    }
}

impl Deref for Zeros {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the value's own mapping of that many bytes, which nothing else writes (see
        // `shared`).
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Zeros {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the value's own mapping of that many bytes, which nothing else writes (see
        // `shared`).
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // SAFETY: the value's own mapping, which nothing borrows any more.
        let _ = unsafe { sys!(libc::SYS_munmap, self.at.as_ptr(), self.len) };
    }
}

/// A multiple of every kernel's pages.
const PAGES: usize = 64 * 1024;
/// How far from what is used of the C library and the loader the rest of them begins and ends.
const LIBRARY: usize = 16 << 20;
/// The same for the stack, for the kernel's own code beside the clocks, and for the thread's words, of which the program
/// may have many.
const STACK: usize = 256 * 1024;
const CLOCKS: usize = 256 * 1024;
const WORDS: usize = 4 << 20;

/// Of a copy of a process, gives back all memory but the libraries from the C library to the loader, the calling thread's,
/// and `kept`. What the kernel does not let go stays.
///
/// # Safety
/// Nothing else is used from here on, and no other thread is there.
pub unsafe fn keep_only(kept: [Range<usize>; 5]) {
    let here = 0u8;
    let around = |at: usize, len: usize| at.saturating_sub(len)..at.saturating_add(len);
    let loader = match kernel::auxiliary(libc::AT_BASE) {
        0 => kernel::auxiliary(libc::AT_PHDR),
        base => base,
    };
    let mut libraries = around(loader, LIBRARY);
    for at in [keep_only as *const () as usize, libc::memcpy as *const () as usize, libcs::place()]
    {
        let range = around(at, LIBRARY);
        libraries = libraries.start.min(range.start)..libraries.end.max(range.end);
    }
    let [one, two, three, four, five] = kept;
    let kept = [
        one,
        two,
        three,
        four,
        five,
        libraries,
        around(kernel::auxiliary(libc::AT_SYSINFO_EHDR), CLOCKS),
        around(from_ref(&here).addr(), STACK),
        around(from_ref(tls::block()).addr(), WORDS),
    ];
    let mut at = 0;
    loop {
        let mut next = usize::MAX..usize::MAX;
        for range in &kept {
            if range.end > at && range.start < next.start {
                next = range.clone();
            }
        }
        if next.end == usize::MAX {
            return; // above all of it is the rest of the first thread's stack
        }
        let end = next.start / PAGES * PAGES;
        if end > at {
            // SAFETY: the caller's; what the C library, the loader, the thread and the caller use lies elsewhere.
            let _ = unsafe { sys!(libc::SYS_munmap, at, end - at) };
        }
        at = next.end.saturating_add(PAGES - 1) / PAGES * PAGES;
    }
}

const BLOCK: usize = size_of::<u64>();

/// Whether `len` bytes, at most eight, can be read. Another thread may unmap them afterwards. Every filter of system calls
/// allows this one.
pub fn is_readable(from: *const u8, len: usize) -> bool {
    debug_assert!((1..=BLOCK).contains(&len));
    // Blocks that do not cross the end of a page, so that no byte but the wanted ones matters.
    let (first, last) = (from.addr(), from.addr().wrapping_add(len - 1));
    let block = |at: usize| at / BLOCK * BLOCK;
    kernel::is_readable(block(first))
        && (block(first) == block(last) || kernel::is_readable(block(last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::without_provenance;

    #[test]
    fn memory_that_grows_keeps_its_bytes() {
        let mut memory = Zeros::private(PAGES).unwrap();
        memory[PAGES - 1] = 7;
        assert!(memory.grow(100 * PAGES));
        assert_eq!((memory.len(), memory[PAGES - 1], memory[PAGES]), (100 * PAGES, 7, 0));
        memory[100 * PAGES - 1] = 8;
        assert!(!memory.grow(usize::MAX / 2));
        assert_eq!((memory.len(), memory[100 * PAGES - 1]), (100 * PAGES, 8));
    }

    #[test]
    fn what_is_mapped_is_readable() {
        const PAGE: usize = 4096;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a mapping of our own, whose second page must not be read.
        let page = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(core::ptr::null_mut(), 2 * PAGE, rights, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            at.cast::<u8>().cast_const()
        };
        assert!(is_readable(page, 8) && is_readable(page.wrapping_add(PAGE - 2), 2));
        assert!(is_readable(page.wrapping_add(PAGE - 1), 1));
        assert!(!is_readable(page.wrapping_add(PAGE - 1), 2));
        assert!(!is_readable(page.wrapping_add(PAGE), 1));
        for nowhere in [0, 1, 8, usize::MAX, usize::MAX - 7] {
            assert!(!is_readable(without_provenance(nowhere), 8), "{nowhere:#x}");
        }
        // SAFETY: our own mapping.
        unsafe { libc::munmap(page.cast_mut().cast(), 2 * PAGE) };
    }
}

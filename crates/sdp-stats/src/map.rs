//! The only unsafe file: from memory of a mapping to `&Page`, and read-only mappings for tools.

#![allow(unsafe_code)]

use crate::page::{Page, SIZE};

impl Page {
    /// The page at `ptr`, or `None` when `ptr` is null or misaligned, or `len` too short. The
    /// content need not be initialised by [`Page::init`] yet: every bit pattern is a valid page.
    ///
    /// # Safety
    /// `ptr` must be valid for reads and writes of `len` bytes for as long as `'a`, and all access
    /// to that memory, from anywhere in this process, must be through atomics.
    pub unsafe fn from_ptr<'a>(ptr: *mut u8, len: usize) -> Option<&'a Self> {
        if ptr.is_null() || len < SIZE || !(ptr as usize).is_multiple_of(align_of::<Self>()) {
            return None;
        }
        // SAFETY: the caller vouches for the memory; alignment and length were checked; a page
        // consists of integers' atomics only, for which every bit pattern is valid.
        Some(unsafe { &*ptr.cast::<Self>() })
    }
}

#[cfg(feature = "reader")]
mod reading {
    use std::fmt;
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::page::SIZE;
    use crate::reader::{HEADER_WORDS, ROW_WORDS, rows_used};
    use crate::trace::Trace;

    /// Why a descriptor was not mapped.
    #[derive(Debug)]
    pub enum MapError {
        /// Not the size of a page.
        Size(u64),
        /// Its size is not sealed: reading it could fault.
        NotSealed,
        /// A system call failed.
        Os(io::Error),
    }

    impl fmt::Display for MapError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Size(n) => write!(f, "{n} bytes, not the {SIZE} of a page of counters"),
                Self::NotSealed => f.write_str("the size of the page is not sealed"),
                Self::Os(e) => e.fmt(f),
            }
        }
    }

    impl std::error::Error for MapError {}

    /// A read-only mapping of another process's page. Survives that process and needs no
    /// descriptor.
    #[derive(Debug)]
    pub struct Mapping {
        base: *const AtomicU64,
    }

    // SAFETY: the mapping is only read, through atomics, and unmapped by its one owner.
    unsafe impl Send for Mapping {}

    impl Mapping {
        /// Maps the page behind `fd` after checking its size and that it cannot shrink.
        ///
        /// # Errors
        /// See [`MapError`].
        pub fn new(fd: BorrowedFd<'_>) -> Result<Self, MapError> {
            let os = || MapError::Os(io::Error::last_os_error());
            // SAFETY: stat is plain data; zero is valid.
            let mut st: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: `st` is valid for writing.
            if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut st) } != 0 {
                return Err(os());
            }
            // Seals first: with F_SEAL_SHRINK set the size can only have been, and stay, enough.
            // SAFETY: no pointers.
            let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
            if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
                return Err(MapError::NotSealed);
            }
            if st.st_size as u64 != SIZE as u64 {
                return Err(MapError::Size(st.st_size as u64));
            }
            // SAFETY: a fresh mapping chosen by the kernel.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    SIZE,
                    libc::PROT_READ,
                    libc::MAP_SHARED,
                    fd.as_raw_fd(),
                    0,
                )
            };
            if base == libc::MAP_FAILED {
                return Err(os());
            }
            Ok(Self { base: base.cast() })
        }

        fn word(&self, at: usize) -> u64 {
            assert!(at < SIZE / 8, "word {at} is outside the page");
            // SAFETY: inside the mapping (asserted), which is aligned to a page, lives as long as
            // `self` and cannot shrink (sealed); the load is atomic, as other processes write.
            unsafe { &*self.base.add(at) }.load(Ordering::Acquire)
        }

        /// Copies the used part of the page. Rows that change owner meanwhile are left out.
        pub fn words(&self) -> Vec<u64> {
            let mut words: Vec<u64> = (0..HEADER_WORDS).map(|at| self.word(at)).collect();
            // Rows beyond were never used; touching them would allocate their pages.
            let rows = rows_used(&words);
            words.reserve(rows * ROW_WORDS);
            for row in 0..rows {
                let at = HEADER_WORDS + row * ROW_WORDS;
                let state = self.word(at);
                words.extend((at..at + ROW_WORDS).map(|at| self.word(at)));
                if self.word(at) != state {
                    words[at] = 0;
                }
            }
            words
        }
    }

    impl Mapping {
        /// [`Mapping::words`], and the recorder behind the rows: each with its place in the page, in bytes.
        pub fn parts(&self) -> [(usize, Vec<u64>); 2] {
            let trace = SIZE - size_of::<Trace>();
            let recorder = (trace / 8..SIZE / 8).map(|at| self.word(at)).collect();
            [(0, self.words()), (trace, recorder)]
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: our own mapping of SIZE bytes; no reference into it outlives `self`.
            unsafe { libc::munmap(self.base.cast_mut().cast(), SIZE) };
        }
    }
}

#[cfg(feature = "reader")]
pub use reading::{MapError, Mapping};

/// A page on the heap, for tests.
#[cfg(test)]
pub(crate) fn zeroed_page() -> Box<Page> {
    // SAFETY: all-zero is a valid page (integers' atomics only).
    unsafe { Box::<Page>::new_zeroed().assume_init() }
}

/// A copy of a page on the heap, for tests.
#[cfg(all(test, feature = "reader"))]
pub(crate) fn words_of(page: &Page) -> Vec<u64> {
    let base = std::ptr::from_ref(page).cast::<u64>();
    // SAFETY: a page is SIZE bytes of initialised integers.
    (0..SIZE / 8).map(|at| unsafe { base.add(at).read() }).collect()
}

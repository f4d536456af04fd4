//! The library's own data as anonymous memory: one mapping less for each fork and exit.
//!
//! The loader maps initialised data from the library's file and puts the zeros behind it into anonymous memory, which
//! the kernel joins with whatever private memory lies next to that. A mapping of a file that was written costs each fork
//! and each end of a process some microseconds, whatever its size. So the socket layer has the data exchanged, before
//! the first connection, for anonymous memory with the same bytes, which the kernel joins with the zeros. A program
//! without connections pays nothing; a process with several threads is left as it is, and so is one on a machine for which
//! the few instructions that may not look at data were not written. So is one on a kernel that takes a mapping away before it
//! knows whether it has memory for the new one.

/// Exchanges what of the library's data is mapped from its file.
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn settle() {
    x86_64::settle();
}

/// Leaves it as it is.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) extern "C" fn settle() {}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::{arch::asm, ffi::CStr, mem::MaybeUninit, ptr, slice};

    use libc::{Elf64_Ehdr, Elf64_Phdr};
    use sdp_sys::{pid, sys};

    const PAGE: usize = 4096;
    /// Most pages that are exchanged: bits of a word that says which of them hold something.
    const PAGES_MAX: usize = 64;
    /// Most program headers that are looked at.
    const HEADERS_MAX: usize = 32;
    const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

    unsafe extern "C" {
        /// The library's ELF header, where it is mapped: from the linker.
        #[link_name = "__ehdr_start"]
        static HEADER: Elf64_Ehdr;
    }

    /// First page and number of pages that hold initialised data. `None`: the library was not linked as it should be.
    fn data() -> Option<(usize, usize)> {
        let base = &raw const HEADER;
        // SAFETY: the loader has mapped the header and what it says; both are only read.
        let headers = unsafe {
            let header = &*base;
            if usize::from(header.e_phentsize) != size_of::<Elf64_Phdr>() {
                return None;
            }
            let at = base.cast::<u8>().wrapping_add(header.e_phoff as usize).cast::<Elf64_Phdr>();
            slice::from_raw_parts(at, usize::from(header.e_phnum).min(HEADERS_MAX))
        };
        // With memory that is made read-only after relocation there would be two, and a hole to keep.
        let is_writable =
            |h: &&Elf64_Phdr| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W != 0;
        let mut writable = headers.iter().filter(is_writable);
        let (one, None) = (writable.next()?, writable.next()) else { return None };
        if headers.iter().any(|h| h.p_type == libc::PT_GNU_RELRO) {
            return None;
        }
        let start = base as usize + one.p_vaddr as usize;
        let end = (start + one.p_filesz as usize).next_multiple_of(PAGE);
        let first = start & !(PAGE - 1);
        Some((first, end.checked_sub(first)? / PAGE))
    }

    /// The first version of Linux that asks for all memory before it unmaps what a fixed mapping replaces, and does not ask for
    /// what the old mapping was charged with already.
    const KERNEL: (u32, u32) = (6, 12);

    /// Whether the kernel is that one or a later one.
    fn is_safe() -> bool {
        let mut names = MaybeUninit::<libc::utsname>::zeroed();
        // SAFETY: room for the answer.
        if unsafe { sys!(libc::SYS_uname, names.as_mut_ptr()) }.is_err() {
            return false;
        }
        // SAFETY: zeros are valid, and so is what the kernel wrote; strings in it are terminated.
        let release = unsafe { CStr::from_ptr((*names.as_ptr()).release.as_ptr()) };
        version(release.to_bytes()).is_some_and(|version| version >= KERNEL)
    }

    /// The first two numbers of a release.
    fn version(release: &[u8]) -> Option<(u32, u32)> {
        let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(number);
        Some((numbers.next()??, numbers.next()??))
    }

    fn number(digits: &[u8]) -> Option<u32> {
        str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Blocks all signals, or restores what was blocked before.
    fn block_signals(how: i32, set: u64) -> Result<u64, sdp_sys::errno::Errno> {
        let mut before = 0u64;
        // SAFETY: both sets have the eight bytes that the call is told.
        unsafe { sys!(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut before, 8)? };
        Ok(before)
    }

    pub(super) fn settle() {
        let Some((first, pages)) = data().filter(|(_, pages)| (1..=PAGES_MAX).contains(pages))
        else {
            return;
        };
        if !pid::is_single_threaded() || !is_safe() {
            return;
        }
        let bytes = pages * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let Ok(copy) = (unsafe { sys!(libc::SYS_mmap, 0, bytes, PROTECTION, PRIVATE, -1isize, 0) })
        else {
            return;
        };
        if let Ok(before) = block_signals(libc::SIG_BLOCK, u64::MAX) {
            // SAFETY: the library's data, of which nothing is written meanwhile: there is no other thread, signals are
            // blocked, and this one keeps what it changes in registers and on its stack.
            unsafe { exchange(first, copy, pages) };
            let _ = block_signals(libc::SIG_SETMASK, before);
        }
        // SAFETY: mapped above; nothing refers to it any more.
        let _ = unsafe { sys!(libc::SYS_munmap, copy, bytes) };
    }

    /// Puts anonymous memory with the same content into the place of `pages` pages from `first` on. `copy` has room
    /// for them. Where the kernel refuses, they stay as they were.
    ///
    /// # Safety
    /// The pages are readable and writable, and nobody writes them meanwhile.
    #[inline(never)]
    unsafe fn exchange(first: usize, copy: usize, pages: usize) {
        // SAFETY: by the contract, and there is room for them.
        unsafe {
            ptr::copy_nonoverlapping(first as *const u8, copy as *mut u8, pages * PAGE);
        }
        let mut filled = 0u64;
        for page in 0..pages {
            // SAFETY: within the copy; pages are aligned.
            let words =
                unsafe { slice::from_raw_parts((copy + page * PAGE) as *const u64, PAGE / 8) };
            // A page of zeros need not be there.
            filled |= u64::from(words.iter().any(|word| *word != 0)) << page;
        }
        // SAFETY: a fixed mapping over pages that are the library's own, whose content is put back before anything looks
        // at it: between the two are only the instructions here, which are in another segment.
        unsafe {
            asm!(
                "syscall",
                "cmp rax, rdi",
                "jne 5f",
                "mov rsi, r14",
                "2:",
                "shr r12, 1",
                "jnc 3f",
                "mov ecx, {page}",
                "rep movsb",
                "jmp 4f",
                "3:",
                "add rsi, {page}",
                "add rdi, {page}",
                "4:",
                "dec r13",
                "jnz 2b",
                "5:",
                page = const PAGE,
                inout("rax") libc::SYS_mmap => _,
                inout("rdi") first => _,
                inout("rsi") pages * PAGE => _,
                in("rdx") PROTECTION as usize,
                in("r10") (PRIVATE | libc::MAP_FIXED) as usize,
                in("r8") -1isize,
                in("r9") 0usize,
                inout("r12") filled => _,
                inout("r13") pages => _,
                in("r14") copy,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
    }
}

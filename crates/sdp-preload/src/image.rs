//! The library's own data as anonymous memory: one mapping less for each fork and exit.
//!
//! The loader maps initialised data from the library's file and puts the zeros behind it into
//! anonymous memory. A mapping that was written costs each fork and each end of a process some
//! microseconds, whatever its size. So the socket layer has data and zeros exchanged, before the
//! first connection, for anonymous memory with the same bytes, which the kernel joins with private
//! memory of the loader's that lies behind: the gap that the loader left there, because the library
//! begins at a multiple of 64 KiB (`build.rs`), is filled for that. A program without connections
//! pays nothing. Some processes are left as they are: one with several threads or locked memory,
//! one on a machine for which the few instructions that may not look at data were not written, and
//! one on a kernel that takes a mapping away before it knows whether there may be a new one.

/// Exchanges the parts of the library's data that are mapped from its file.
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn exchange() {
    x86_64::exchange();
}

/// Leaves it as it is.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) extern "C" fn exchange() {}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::{arch::asm, ptr, slice};

    use libc::{Elf64_Ehdr, Elf64_Phdr};
    use sdp_sys::{kernel, pid, procfs, sys};

    const PAGE: usize = 4096;
    /// Most pages that are exchanged: bits of a word that says which of them hold something.
    const PAGES_MAX: usize = 64;
    /// Most pages of the gap.
    const GAP_MAX: usize = 15;
    /// Most program headers that are looked at.
    const HEADERS_MAX: usize = 32;
    const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

    unsafe extern "C" {
        /// The library's ELF header, where it is mapped: from the linker.
        #[link_name = "__ehdr_start"]
        static HEADER: Elf64_Ehdr;
    }

    /// The place of the memory that the library writes, in pages.
    struct Data {
        /// Address of the first.
        first: usize,
        /// All of them.
        pages: usize,
        /// Those that come from the file; zeros are behind.
        of_file: usize,
    }

    /// `None`: the library was not linked as it should be.
    fn data() -> Option<Data> {
        let base = &raw const HEADER;
        // SAFETY: the loader has mapped the header and the segments that it lists; both are only
        // read.
        let headers = unsafe {
            let header = &*base;
            if usize::from(header.e_phentsize) != size_of::<Elf64_Phdr>() {
                return None;
            }
            let at = base.expose_provenance() + header.e_phoff as usize;
            let at = ptr::with_exposed_provenance::<Elf64_Phdr>(at);
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
        let first = start & !(PAGE - 1);
        let pages_to = |size: u64| Some((start + size as usize).checked_sub(first)?.div_ceil(PAGE));
        Some(Data { first, pages: pages_to(one.p_memsz)?, of_file: pages_to(one.p_filesz)? })
    }

    /// The first version of Linux that checks its limits, and the memory that it may promise,
    /// before it takes the old mapping away. After that only a few hundred bytes of the kernel's
    /// own may be missing.
    const KERNEL: (u32, u32) = (6, 12);
    /// Times that the new mapping is asked for, should even that be missing.
    const TRIES: usize = 16;

    /// Whether nothing but this thread is on the memory by the kernel's count, too (libc knows of its own threads), and none of
    /// it is locked: the new pages would not be.
    fn is_undisturbed() -> bool {
        const ALONE: &[u8] = b"Threads:\t1";
        const UNLOCKED: &[u8] = b"VmLck:\t       0 kB";
        procfs::has_lines(c"/proc/self/status", &[UNLOCKED, ALONE]) == Ok(true)
    }

    /// Blocks all signals, or restores the signals that were blocked before.
    fn block_signals(how: i32, set: u64) -> Result<u64, sdp_sys::errno::Errno> {
        let mut before = 0u64;
        kernel::exchange_signal_mask(how, &set, &mut before)?;
        Ok(before)
    }

    pub(super) fn exchange() {
        let Some(data) = data().filter(|data| (1..=PAGES_MAX).contains(&data.pages)) else {
            return;
        };
        if !pid::is_single_threaded() || procfs::kernel() < Some(KERNEL) {
            return;
        }
        // Before the look: a handler could begin a thread.
        let Ok(before) = block_signals(libc::SIG_BLOCK, u64::MAX) else { return };
        if is_undisturbed() {
            exchange_alone(&data);
        }
        let _ = block_signals(libc::SIG_SETMASK, before);
    }

    /// Runs while nothing can write the library's data.
    fn exchange_alone(data: &Data) {
        let bytes = data.pages * PAGE;
        let Ok(copy) = kernel::map_zeros(bytes, 0, PRIVATE) else { return };
        let copy = copy.as_ptr().expose_provenance();
        let gap = fill_gap(data.first + bytes);
        let looks = worth_a_look(data);
        // SAFETY: the library's own pages, of which nothing is written meanwhile: there is no other
        // thread, signals are blocked, and this thread keeps its changes in registers and on its
        // stack.
        unsafe { exchange_pages(data, copy, looks, gap) };
        // SAFETY: mapped above; nothing refers to it any more.
        let _ = unsafe { sys!(libc::SYS_munmap, copy, bytes) };
    }

    /// Pages that may hold something, a bit each: those of the file, and those of the others that
    /// were touched. To look at a page that was never touched costs more than to ask.
    fn worth_a_look(data: &Data) -> u64 {
        const THERE_OR_SWAPPED: u64 = 3 << 62;
        let mut words = [u64::MAX; PAGES_MAX];
        if let Some(zeros) = words.get_mut(data.of_file..data.pages)
            && procfs::pages(data.first / PAGE + data.of_file, zeros).is_err()
        {
            zeros.fill(u64::MAX);
        }
        let bits = words.iter().enumerate();
        bits.fold(0, |all, (page, word)| all | u64::from(word & THERE_OR_SWAPPED != 0) << page)
    }

    /// Maps the free pages from `end` on up to the next mapping, if that is not far; how many
    /// pages.
    fn fill_gap(end: usize) -> usize {
        const THERE: i32 = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // More than the gap is refused, so that the first that is not refused fills it.
        for pages in (1..=GAP_MAX).rev() {
            let bytes = pages * PAGE;
            match kernel::map_zeros(bytes, end, THERE) {
                Ok(at) if at.addr().get() == end => return pages,
                Ok(elsewhere) => {
                    // An emulator that takes the address for a wish.
                    // SAFETY: mapped just now.
                    let _ = unsafe { sys!(libc::SYS_munmap, elsewhere.as_ptr(), bytes) };
                }
                Err(error) if error.0 == libc::EEXIST => {}
                Err(_) => break,
            }
        }
        0
    }

    /// Puts anonymous memory with the same content into the place of the data. `copy` has room for
    /// it; `looks` says which pages are not known to hold zeros. The `gap` pages behind them, which
    /// hold nothing, are exchanged in one with them, so that the kernel joins all with the mapping
    /// that comes then. Where the kernel refuses, they stay as they were.
    ///
    /// # Safety
    /// The pages are readable and writable, and nothing writes them meanwhile.
    #[inline(never)]
    unsafe fn exchange_pages(data: &Data, copy: usize, looks: u64, gap: usize) {
        let (first, pages) = (data.first, data.pages);
        let mut filled = 0u64;
        for page in (0..pages).filter(|page| looks & 1 << page != 0) {
            let (from, to) = (first + page * PAGE, copy + page * PAGE);
            // SAFETY: by the contract; pages are aligned.
            let words = unsafe { slice::from_raw_parts(from as *const u64, PAGE / 8) };
            // A page of zeros need not be there.
            if words.iter().any(|word| *word != 0) {
                filled |= 1 << page;
                // Not by `memcpy`, which may be another preloaded library's, and may call us.
                // SAFETY: by the contract, and there is room for the page.
                unsafe {
                    asm!(
                        "rep movsb",
                        inout("rcx") PAGE => _,
                        inout("rsi") from => _,
                        inout("rdi") to => _,
                        options(nostack, preserves_flags),
                    );
                }
            }
        }
        // A mapping that is refused leaves everything as it was, or, when the kernel has not even
        // memory for itself, nothing: then this is tried again before anything looks there. SAFETY:
        // a fixed mapping over pages that are the library's own, whose content is put back before
        // anything looks at it: only the instructions here are between the two, and they are in
        // another segment.
        unsafe {
            asm!(
                "7:",
                "mov eax, {mmap}",
                "syscall",
                "cmp rax, rdi",
                "je 2f",
                "dec r15",
                "jnz 7b",
                "jmp 5f",
                "2:",
                "mov rsi, r14",
                "6:",
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
                "jnz 6b",
                "5:",
                page = const PAGE,
                mmap = const libc::SYS_mmap,
                out("rax") _,
                inout("rdi") first => _,
                inout("rsi") (pages + gap) * PAGE => _,
                in("rdx") PROTECTION as usize,
                in("r10") (PRIVATE | libc::MAP_FIXED) as usize,
                in("r8") -1isize,
                in("r9") 0usize,
                inout("r12") filled => _,
                inout("r13") pages => _,
                in("r14") copy,
                inout("r15") TRIES => _,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
    }
}

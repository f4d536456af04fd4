//! Where the program's dynamic loader lies.
//!
//! Used to place mappings near it. Reads the loader's own header in this process's memory, and nothing else: no file, no
//! names, no list of libraries.

/// The identification at the beginning of an ELF file.
const MAGIC: [u8; 4] = *b"\x7fELF";
/// Segments looked at; a loader has about five.
const SEGMENTS_MAX: usize = 16;
/// Bytes of the loader's first page, in which its header and the list of its segments must lie.
const FIRST_PAGE: usize = 4096;

/// The address behind the last byte of the loader's last segment. `None`: the process has none (a
/// static program, or the loader was started as the program), or its header is not as expected.
pub fn end() -> Option<usize> {
    let base = crate::kernel::auxiliary(libc::AT_BASE);
    if base == 0 || !base.is_multiple_of(FIRST_PAGE) {
        return None;
    }
    if !is_mapped(base) {
        return None; // a loader whose addresses do not begin at 0: it lies elsewhere
    }
    // SAFETY: the page can be read, by the kernel's word, and the loader is never unmapped while
    // the process lives.
    let header = unsafe { (base as *const libc::Elf64_Ehdr).read() };
    let (offset, count) = (header.e_phoff as usize, header.e_phnum as usize);
    let size = size_of::<libc::Elf64_Phdr>();
    if header.e_ident.get(..MAGIC.len()) != Some(&MAGIC)
        || header.e_phentsize as usize != size
        || !offset.is_multiple_of(align_of::<libc::Elf64_Phdr>())
        || count > SEGMENTS_MAX
        || offset.checked_add(count * size)? > FIRST_PAGE
    {
        return None;
    }
    let first = (base + offset) as *const libc::Elf64_Phdr;
    // SAFETY: within the first page, aligned; plain data that is never written.
    let segments = unsafe { core::slice::from_raw_parts(first, count) };
    let loaded = segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
    let last = loaded.map(|segment| segment.p_vaddr.saturating_add(segment.p_memsz)).max()?;
    base.checked_add(last as usize)
}

/// Whether there are eight bytes to be read: the kernel reads a signal mask there, for a change of the mask that it does
/// not know how to make.
fn is_mapped(at: usize) -> bool {
    crate::kernel::is_readable(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_not_read() {
        let here = 7u64;
        assert!(is_mapped(&raw const here as usize));
        assert!(!is_mapped(0) && !is_mapped(4096) && !is_mapped(usize::MAX - 7));
    }

    #[test]
    fn the_loader_ends_where_its_mappings_do() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let base = crate::kernel::auxiliary(libc::AT_BASE);
        let Some(end) = end() else {
            assert_eq!(base, 0, "a program with a loader");
            return;
        };
        let parse = |hex: &str| usize::from_str_radix(hex, 16).unwrap();
        let mut reached = base;
        for line in maps.lines() {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            if parse(from) == reached {
                reached = parse(to);
            }
            if reached >= end {
                break;
            }
        }
        assert_eq!(reached, end.next_multiple_of(4096));
    }
}

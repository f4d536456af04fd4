//! Looks names up in the libraries that are loaded behind this one, as the loader would for `RTLD_NEXT`.
//!
//! The constructor looks up more than a hundred names in each process that starts. `dlsym` takes
//! about 900 instructions for one, most of them for its lock, its error text and the hash of the
//! name; the hashes are known when this library is compiled, and a library that does not have the
//! name says so in a word of its filter. Whatever is unusual (a library without such a hash table,
//! very many of them, a name that libc chooses an implementation for) is left to `dlsym`.
//! Why: docs/decisions/0049.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::from_mut;

use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info, size_t};

/// Libraries between this one and libc.
const OBJECTS: usize = 24;
/// Libraries of the C library itself that are noted.
const OWN: usize = 4;
/// How the names of those libraries begin that have the loader's functions: the C library, other C
/// libraries, and where glibc had them, and clean-up functions, before version 2.34.
const OWN_NAMES: [&[u8]; 5] =
    [b"libc.so", b"libc.musl-", b"ld-musl-", b"libdl.so.", b"libpthread.so."];
/// Entries of a dynamic section, and of a chain of equal hashes, that are looked at.
const ENTRIES: usize = 4096;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_SONAME: u64 = 14;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
/// Type of a symbol that is a plain function.
const STT_FUNC: u8 = 2;
/// Bit of a version that is not the one for new programs.
const HIDDEN: u16 = 1 << 15;

/// A name's hash in a table of `DT_GNU_HASH`.
#[must_use]
pub const fn hash(name: &CStr) -> u32 {
    let bytes = name.to_bytes();
    let mut hash = 5381_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = hash.wrapping_mul(33).wrapping_add(bytes[at] as u32);
        at += 1;
    }
    hash
}

/// The segments of an object, as the loader describes it.
#[inline]
#[must_use]
pub fn segments(object: &dl_phdr_info) -> &[Elf64_Phdr] {
    if object.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: as many segments as the loader says, for as long as its description.
    unsafe { core::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) }
}

/// The tables of a library.
#[derive(Clone, Copy, Debug)]
struct Object {
    base: usize,
    hash: *const u32,
    /// The older table of hashes, which says how many symbols there are.
    old_hash: *const u32,
    symbols: *const Elf64_Sym,
    names: *const u8,
    versions: *const u16,
}

/// Whether a library is a part of the C library.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    None,
    Libc,
    Another,
}

/// The answer of a library.
enum Found {
    Function(*mut c_void),
    /// It does not have the name.
    Nothing,
    /// The loader knows what to do with it.
    Unusual,
}

impl Object {
    const NONE: Self = Self {
        base: 0,
        hash: core::ptr::null(),
        old_hash: core::ptr::null(),
        symbols: core::ptr::null(),
        names: core::ptr::null(),
        versions: core::ptr::null(),
    };

    /// The tables of an object as the loader describes it, and which part of the C library it is.
    ///
    /// # Safety
    /// The object is loaded and stays so.
    #[inline]
    unsafe fn of(object: &dl_phdr_info) -> (Self, Part) {
        let base = object.dlpi_addr as usize;
        let mut own = Self { base, ..Self::NONE };
        let mut soname = None;
        for segment in segments(object) {
            if segment.p_type != libc::PT_DYNAMIC {
                continue;
            }
            let entries = base.wrapping_add(segment.p_vaddr as usize) as *const [u64; 2];
            for at in 0..(segment.p_memsz as usize / size_of::<[u64; 2]>()).min(ENTRIES) {
                // SAFETY: within the segment, which is mapped.
                let [tag, value] = unsafe { *entries.add(at) };
                // The loader has added the base in place; some leave the addresses as they are.
                let value = value as usize;
                let address = if value < base { base.wrapping_add(value) } else { value };
                match tag {
                    DT_NULL => break,
                    DT_GNU_HASH => own.hash = address as *const u32,
                    DT_HASH => own.old_hash = address as *const u32,
                    DT_SYMTAB => own.symbols = address as *const Elf64_Sym,
                    DT_STRTAB => own.names = address as *const u8,
                    DT_VERSYM => own.versions = address as *const u16,
                    DT_SONAME => soname = Some(value),
                    _ => {}
                }
            }
        }
        let is_named = soname.is_some() && !own.names.is_null();
        let part = if !is_named && object.dlpi_name.is_null() {
            Part::None
        } else {
            // SAFETY: a name of the object's own table of names, or, of a library without a name of its own
            // (musl's), the loader's: of its file.
            let name = unsafe {
                match soname.filter(|_| is_named) {
                    Some(at) => CStr::from_ptr(own.names.add(at).cast()),
                    None => CStr::from_ptr(object.dlpi_name),
                }
            };
            let file = name.to_bytes().rsplit(|b| *b == b'/').next().unwrap_or(&[]);
            if name == c"libc.so.6" {
                Part::Libc
            } else if OWN_NAMES.iter().any(|begin| file.starts_with(begin)) {
                Part::Another
            } else {
                Part::None
            }
        };
        (own, part)
    }

    /// Looks a name up, whose hash this is.
    #[inline]
    fn find(&self, name: &CStr, hash: u32) -> Found {
        if self.hash.is_null() || self.symbols.is_null() || self.names.is_null() {
            return Found::Unusual;
        }
        // SAFETY: the object's hash table, as its link editor wrote it: four words, the filter, a
        // place for each bucket, and the chains. The symbol of each link is in the table of symbols,
        // its version and its name in theirs.
        unsafe {
            let [buckets, first, filters, shift] = *self.hash.cast::<[u32; 4]>();
            let filter = self.hash.add(4).cast::<u64>();
            let word = *filter.add((hash as usize / 64) & (filters as usize).wrapping_sub(1));
            let bits = 1_u64 << (hash % 64) | 1 << (hash.wrapping_shr(shift) % 64);
            if word & bits != bits || buckets == 0 {
                return Found::Nothing;
            }
            let bucket = filter.add(filters as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut at = *bucket.add((hash % buckets) as usize);
            if at < first {
                return Found::Nothing;
            }
            let last = at.saturating_add(ENTRIES as u32);
            while at < last {
                let link = *chain.add((at - first) as usize);
                if link | 1 == hash | 1 {
                    let symbol = &*self.symbols.add(at as usize);
                    let version =
                        if self.versions.is_null() { 1 } else { *self.versions.add(at as usize) };
                    let is_it = symbol.st_shndx != 0
                        && version & HIDDEN == 0
                        && CStr::from_ptr(self.names.add(symbol.st_name as usize).cast()) == name;
                    if is_it {
                        return match symbol.st_info & 15 {
                            STT_FUNC if version != 0 && symbol.st_value != 0 => Found::Function(
                                self.base.wrapping_add(symbol.st_value as usize) as *mut c_void,
                            ),
                            _ => Found::Unusual,
                        };
                    }
                }
                if link & 1 != 0 {
                    return Found::Nothing;
                }
                at += 1;
            }
        }
        Found::Unusual
    }
}

impl Object {
    /// Looks a name up among all symbols: in a library without a GNU hash table.
    #[cold]
    #[inline(never)]
    fn find_slowly(&self, name: &CStr) -> Option<*mut c_void> {
        let is_known = !self.old_hash.is_null() && !self.symbols.is_null() && !self.names.is_null();
        if !is_known || !self.hash.is_null() {
            return None;
        }
        // SAFETY: the object's tables, as its link editor wrote them: the number of buckets, and that of
        // symbols, each of which has a version and a name in theirs.
        unsafe {
            let [_, count] = *self.old_hash.cast::<[u32; 2]>();
            (0..count as usize).find_map(|at| {
                let symbol = &*self.symbols.add(at);
                let version = if self.versions.is_null() { 1 } else { *self.versions.add(at) };
                let is_it = symbol.st_shndx != 0
                    && symbol.st_info & 15 == STT_FUNC
                    && version & HIDDEN == 0
                    && CStr::from_ptr(self.names.add(symbol.st_name as usize).cast()) == name;
                is_it.then(|| self.base.wrapping_add(symbol.st_value as usize) as *mut c_void)
            })
        }
    }
}

/// The libraries behind this one, libc the last of them.
#[derive(Debug)]
pub struct Behind {
    objects: [Object; OBJECTS],
    count: usize,
    /// The C library's own, wherever they are.
    own: [Object; OWN],
    owned: usize,
    /// This library has been passed.
    is_behind: bool,
    /// libc has been found.
    is_whole: bool,
}

impl Behind {
    /// Asks the loader for them. Later libraries come and go: only those of the C library itself are
    /// sure to stay.
    #[inline]
    pub fn this() -> Self {
        let objects = [Object::NONE; OBJECTS];
        let own = [Object::NONE; OWN];
        let mut behind =
            Self { objects, count: 0, own, owned: 0, is_behind: false, is_whole: false };
        // SAFETY: the loader calls the function, in this thread, for each object in turn, with the pointer to `behind`.
        unsafe { libc::dl_iterate_phdr(Some(note), from_mut(&mut behind).cast()) };
        behind
    }

    /// The next definition of a name, whose hash this is. `None`: the loader is to say.
    #[inline]
    pub fn find(&self, name: &CStr, hash: u32) -> Option<*mut c_void> {
        if !self.is_whole {
            return None;
        }
        for object in self.objects.iter().take(self.count) {
            match object.find(name, hash) {
                Found::Function(at) => return Some(at),
                Found::Nothing => {}
                Found::Unusual => return None,
            }
        }
        None
    }

    /// The C library's own function of this name, whatever other library has one, too.
    pub fn own(&self, name: &CStr, hash: u32) -> Option<*mut c_void> {
        self.own.iter().take(self.owned).find_map(|object| match object.find(name, hash) {
            Found::Function(at) => Some(at),
            Found::Unusual => object.find_slowly(name),
            Found::Nothing => None,
        })
    }
}

/// Whether an address of this library's lies in the object.
#[inline]
fn is_this(object: &dl_phdr_info) -> bool {
    let own = note as *const () as usize;
    segments(object).iter().any(|segment| {
        let begin = object.dlpi_addr.wrapping_add(segment.p_vaddr) as usize;
        segment.p_type == libc::PT_LOAD
            && own.checked_sub(begin).is_some_and(|at| at < segment.p_memsz as usize)
    })
}

/// Notes an object.
#[unsafe(link_section = ".text.open.start")]
unsafe extern "C" fn note(object: *mut dl_phdr_info, _: size_t, behind: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object, and the caller's variable, for the length of the call.
    let (object, behind) = unsafe { (&*object, &mut *behind.cast::<Behind>()) };
    if !behind.is_behind && is_this(object) {
        behind.is_behind = true;
        return 0;
    }
    // SAFETY: what was loaded before this library's constructor stays.
    let (tables, part) = unsafe { Object::of(object) };
    if part != Part::None
        && let Some(place) = behind.own.get_mut(behind.owned)
    {
        *place = tables;
        behind.owned += 1;
    }
    if behind.is_behind
        && !behind.is_whole
        && let Some(place) = behind.objects.get_mut(behind.count)
    {
        *place = tables;
        behind.count += 1;
        behind.is_whole = part == Part::Libc;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with the older table of hashes alone.
    #[test]
    fn names_are_found_without_a_gnu_hash_table() {
        let names = b"\0open\0close\0gone\0";
        let symbol = |name, kind, place, at| Elf64_Sym {
            st_name: name,
            st_info: kind,
            st_other: 0,
            st_shndx: place,
            st_value: at,
            st_size: 0,
        };
        let symbols = [
            symbol(0, 0, 0, 0),
            symbol(1, STT_FUNC, 1, 16), // an older version
            symbol(1, STT_FUNC, 1, 32),
            symbol(6, 10, 1, 48),        // chosen when the program starts
            symbol(12, STT_FUNC, 0, 64), // defined elsewhere
        ];
        let versions = [0_u16, HIDDEN | 2, 3, 3, 3];
        let table = [1_u32, symbols.len() as u32];
        let object = Object {
            base: 4096,
            old_hash: table.as_ptr(),
            symbols: symbols.as_ptr(),
            names: names.as_ptr(),
            versions: versions.as_ptr(),
            ..Object::NONE
        };
        let mut behind = Behind::this();
        (behind.own[0], behind.owned) = (object, 1);
        let find = |name| behind.own(name, hash(name)).map(|at| at as usize);
        assert_eq!(find(c"open"), Some(4096 + 32));
        assert_eq!(find(c"close"), None);
        assert_eq!(find(c"gone"), None);
        assert_eq!(find(c"none"), None);
    }
}

//! Which libraries a program names that it is linked with, as the loader would read it. A file that
//! is no such program, or not of this machine's kind, names none.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
};

/// A sixty-four bit file whose words begin with their low bytes.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
/// Most program headers, and bytes of dynamic entries and of names, that are looked at.
const HEADERS_MAX: usize = 256;
const BYTES_MAX: u64 = 1 << 20;
const HEADER: usize = 56;
const ENTRY: usize = 16;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// The file of a command, looked for as `execvp` does.
pub fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|place| place.join(command)).find(|file| file.is_file())
}

/// The names of the libraries that `file` is linked with.
pub fn needed(file: &Path) -> Option<Vec<Vec<u8>>> {
    if !file.is_file() {
        return None; // a pipe would have to be waited for
    }
    let file = File::open(file).ok()?;
    let head = read(&file, 0, 64)?;
    if !head.starts_with(MAGIC) {
        return None;
    }
    let count = usize::from(u16::from_le_bytes(*head.get(56..)?.first_chunk()?));
    let table = read(&file, word(&head, 32)?, (count.min(HEADERS_MAX) * HEADER) as u64)?;
    let headers = || table.chunks_exact(HEADER);
    let is = |header: &&[u8], kind: u32| header.first_chunk() == Some(&kind.to_le_bytes());
    let dynamic = headers().find(|header| is(header, PT_DYNAMIC))?;
    let entries = read(&file, word(dynamic, 8)?, word(dynamic, 32)?)?;
    let entries: Vec<(u64, u64)> = entries
        .chunks_exact(ENTRY)
        .filter_map(|entry| Some((word(entry, 0)?, word(entry, 8)?)))
        .take_while(|(tag, _)| *tag != DT_NULL)
        .collect();
    let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let (names, size) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let at = headers().filter(|header| is(header, PT_LOAD)).find_map(|header| {
        let offset = names.checked_sub(word(header, 16)?)?;
        (offset < word(header, 32)?).then_some(word(header, 8)?.checked_add(offset)?)
    })?;
    let names = read(&file, at, size)?;
    let name = |(tag, at): &(u64, u64)| {
        let from = names.get(usize::try_from(*at).ok()?..)?;
        (*tag == DT_NEEDED).then(|| from.split(|byte| *byte == 0).next().map(<[u8]>::to_vec))?
    };
    Some(entries.iter().filter_map(name).collect())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read(file: &File, at: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len.min(BYTES_MAX)).ok()?];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

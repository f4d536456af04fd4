//! Whether a program's file lets a library be loaded into it.
//!
//! Reads the first bytes of the file and no more; a damaged file gives an answer or none, never a
//! panic.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::sys;

/// How a program finds its libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loading {
    /// With this loader.
    Loader(String),
    /// It has no loader: nothing can be preloaded.
    Static,
    /// It is no ELF file.
    Unknown,
}

/// A program's file.
#[derive(Debug)]
pub struct Program {
    /// The file that the kernel executes: of a script, its interpreter.
    pub path: PathBuf,
    /// How it is loaded.
    pub loading: Loading,
    /// A program of 32 bits, or of another machine.
    pub is_foreign: bool,
    /// Set-user-id or set-group-id.
    pub is_set_id: bool,
    /// Made by Go's compiler: it calls the kernel itself, however it is linked.
    pub is_go: bool,
    /// It has capabilities of its own.
    pub has_capabilities: bool,
    /// Started by us it changes its user, so that the loader ignores the libraries that we preload.
    pub changes_user: bool,
}

/// Scripts whose interpreter is a script, at most.
const MAX_SCRIPTS: usize = 4;
/// Longest name of a loader.
const MAX_NAME: usize = 4096;

/// Where the shell would find a command.
fn find(command: &Path) -> Option<PathBuf> {
    if command.as_os_str().as_bytes().contains(&b'/') {
        return command.exists().then(|| command.to_path_buf());
    }
    let path = std::env::var_os("PATH")?;
    let is_program = |p: &PathBuf| {
        p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|folder| folder.join(command)).find(is_program)
}

impl Program {
    /// The program that a command starts.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn of(command: &Path) -> Result<Self, Failure> {
        let mut path =
            find(command).ok_or_else(|| Failure::new(command.display(), "no such command"))?;
        for _ in 0..MAX_SCRIPTS {
            let failed = |e| Failure::new(path.display(), e);
            let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
            let mut file = file.map_err(failed)?;
            let mut start = [0; 256];
            let len = file.read(&mut start).map_err(failed)?;
            if let Some(next) = interpreter(&start[..len]) {
                path = next;
                continue;
            }
            let metadata = file.metadata().map_err(failed)?;
            let (loading, is_foreign) = loading(&file, &start[..len]);
            let is_go =
                !is_foreign && has_section(&file, &start[..len], GO_SECTION).unwrap_or(false);
            return Ok(Self {
                loading,
                is_foreign,
                is_go,
                is_set_id: metadata.mode() & 0o6000 != 0,
                changes_user: (metadata.mode() & 0o4000 != 0 && metadata.uid() != sys::own_uid())
                    || (metadata.mode() & 0o2000 != 0 && metadata.gid() != sys::own_gid()),
                has_capabilities: sys::has_capabilities(&path),
                path,
            });
        }
        Err(Failure::new(path.display(), "scripts of scripts of scripts"))
    }
}

/// The interpreter in a script's first line; for `env`, the program that it looks up.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
    let first = Path::new(std::ffi::OsStr::from_bytes(words.next()?)).to_path_buf();
    if first.file_name().is_some_and(|n| n == "env") {
        let word = words.find(|w| !w.starts_with(b"-") && !w.contains(&b'='))?;
        return find(Path::new(std::ffi::OsStr::from_bytes(word)));
    }
    Some(first)
}

fn loading(file: &File, start: &[u8]) -> (Loading, bool) {
    const CLASS_64: u8 = 2;
    const PROGRAM_HEADER: usize = 56;
    const INTERPRETER: u32 = 3;
    let native = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if !start.starts_with(b"\x7fELF") || start.len() < 64 {
        return (Loading::Unknown, false);
    }
    let half = |at: usize| u16::from_le_bytes([start[at], start[at + 1]]);
    if start[4] != CLASS_64 || half(18) != native {
        return (Loading::Unknown, true);
    }
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let headers = word(start, 32);
    for number in 0..u64::from(half(56)) {
        let mut header = [0; PROGRAM_HEADER];
        let at = headers.saturating_add(number * PROGRAM_HEADER as u64);
        if file.read_exact_at(&mut header, at).is_err() {
            break;
        }
        if u32::from_le_bytes([header[0], header[1], header[2], header[3]]) == INTERPRETER {
            let len = usize::try_from(word(&header, 32)).unwrap_or(0).min(MAX_NAME);
            let mut name = vec![0; len];
            if file.read_exact_at(&mut name, word(&header, 8)).is_err() {
                break;
            }
            name.retain(|b| *b != 0);
            return (Loading::Loader(String::from_utf8_lossy(&name).into_owned()), false);
        }
    }
    (Loading::Static, false)
}

/// The section in which Go's linker describes what a program was built from.
const GO_SECTION: &[u8] = b".go.buildinfo";

/// Whether an ELF file of this machine's kind has a section of that name; `None` if it is damaged.
fn has_section(file: &File, start: &[u8], wanted: &[u8]) -> Option<bool> {
    const HEADER: usize = 64;
    const MOST_NAMES: usize = 1 << 20;
    if !start.starts_with(b"\x7fELF\x02\x01") {
        return Some(false);
    }
    let half = |at: usize| Some(u16::from_le_bytes(*start.get(at..)?.first_chunk()?));
    let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let headers = word(start, 40)?;
    let header = |number: u16| {
        let mut bytes = [0; HEADER];
        let at = headers.checked_add(u64::from(number) * HEADER as u64)?;
        file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    };
    let of_names = header(half(62)?)?;
    let len = usize::try_from(word(&of_names, 32)?).ok()?.min(MOST_NAMES);
    let mut names = vec![0; len];
    file.read_exact_at(&mut names, word(&of_names, 24)?).ok()?;
    for number in 0..half(60)? {
        let at = u32::from_le_bytes(*header(number)?.first_chunk()?);
        let name = names.get(usize::try_from(at).ok()?..).unwrap_or_default();
        if name.strip_prefix(wanted).is_some_and(|rest| rest.first() == Some(&0)) {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_loader() {
        let own = Program::of(&std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(&own.loading, Loading::Loader(l) if l.contains("ld-linux")), "{own:?}");
        assert!(!own.is_set_id && !own.is_foreign);
        assert!(Program::of(Path::new("no-such-command-anywhere")).is_err());
    }

    #[test]
    fn scripts_lead_to_their_interpreter() {
        assert_eq!(interpreter(b"#!/bin/sh -e\nx"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#! /usr/bin/env -S sh\n"), find(Path::new("sh")));
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn damaged_files_do_no_harm() {
        let file = File::open("/dev/null").unwrap();
        let mut start = [0xff; 128];
        start[..4].copy_from_slice(b"\x7fELF");
        for class in [1, 2] {
            start[4] = class;
            assert!(loading(&file, &start).1, "of another machine");
        }
        start[18..20].copy_from_slice(&62u16.to_le_bytes());
        let _ = loading(&file, &start);
        start[5] = 1;
        for fill in [0xff, 0, 1] {
            start[40..].fill(fill);
            let _ = has_section(&file, &start, GO_SECTION);
            let _ = has_section(&std::fs::File::open("/bin/sh").unwrap(), &start, GO_SECTION);
        }
        assert_eq!(loading(&file, b"\x7fELF"), (Loading::Unknown, false));
    }
}

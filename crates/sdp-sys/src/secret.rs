//! A word of this process's memory that only who may read that memory can tell.
//!
//! Another process that tells it could have read everything else as well, and changed it: the kernel's rule for attaching
//! with a debugger, with whatever its security modules add, is what decides. So nothing can be kept from it, and it gains
//! nothing by a lie. Each process has one such word while it needs one, says where it is, and reads those of
//! others on request. It refuses all that under a seccomp filter, which may kill for a system call.

use core::{
    ffi::CStr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use crate::{errno::Errno, procfs, sys};

/// Stands before the word: nobody is made to tell what is elsewhere in a memory.
const MARK: u64 = u64::from_be_bytes(*b"SDP word");
/// Bytes of a status that are looked at.
const STATUS_BYTES: usize = 2048;

/// The word; where it is in memory, other processes read it.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Secret {
    mark: AtomicU64,
    word: AtomicU64,
}

impl Default for Secret {
    fn default() -> Self {
        Self::new()
    }
}

impl Secret {
    /// None yet.
    pub const fn new() -> Self {
        Self { mark: AtomicU64::new(0), word: AtomicU64::new(0) }
    }

    /// Where who may reads it; it is drawn now, if there is none. 0: there is none to be had.
    pub fn place(&self) -> u64 {
        if self.word.load(Ordering::Relaxed) == 0 && !self.draw() {
            return 0;
        }
        (&raw const *self) as u64
    }

    #[cold]
    fn draw(&self) -> bool {
        let mut drawn = 0u64;
        // SAFETY: eight writable bytes.
        let got = unsafe { sys!(libc::SYS_getrandom, &raw mut drawn, 8, libc::GRND_NONBLOCK) };
        if got != Ok(8) || !is_word(drawn) || is_filtered() {
            return false;
        }
        self.mark.store(MARK, Ordering::Relaxed);
        // Another thread may have been faster.
        let _ = self.word.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
        true
    }

    /// Whether `told` is the word, and the process is one whose memory others may read: it may have become one that
    /// hides it.
    pub fn is(&self, told: u64) -> bool {
        is_word(told) && self.word.load(Ordering::Relaxed) == told && is_dumpable()
    }

    /// The next one is another: what was told belongs to another process, or to an earlier state of this one.
    pub fn forget(&self) {
        // In a fork child a page that is not written is not copied.
        if self.word.load(Ordering::Relaxed) != 0 {
            self.word.store(0, Ordering::Relaxed);
        }
    }
}

/// Told instead of a word that cannot be read.
pub const UNREADABLE: u64 = u64::MAX;

const fn is_word(word: u64) -> bool {
    word != 0 && word != UNREADABLE
}

/// The word of process `pid` at `place`, which is the process's own claim; [`UNREADABLE`]: we may not read its memory, or
/// nothing of the kind is there. Waits for whatever the process has put there: only for one that could stop
/// us anyway.
pub fn read(pid: i32, place: u64) -> u64 {
    if is_filtered() {
        return UNREADABLE;
    }
    let mut found = [0u64; 2];
    let len = size_of_val(&found);
    let to = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: len };
    let from = libc::iovec { iov_base: place as *mut libc::c_void, iov_len: len };
    // SAFETY: 16 writable bytes; what the other address means is that process's affair.
    let got =
        unsafe { sys!(libc::SYS_process_vm_readv, pid, &raw const to, 1, &raw const from, 1, 0) };
    match found {
        [MARK, word] if got == Ok(len) && is_word(word) => word,
        _ => UNREADABLE,
    }
}

/// Whether this process's memory is its user's to read.
fn is_dumpable() -> bool {
    // SAFETY: no pointers.
    let dumpable = unsafe { sys!(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    dumpable == Ok(1)
}

/// Whether the program began under a seccomp filter, or that cannot be told. (Where it installs one, the library is
/// out of business before.) Asked once.
fn is_filtered() -> bool {
    const UNKNOWN: u32 = 0;
    const FREE: u32 = 1;
    const FILTERED: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);
    let known = match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let is_free = has_line(c"/proc/thread-self/status", b"Seccomp:\t0");
            let known = if is_free == Ok(true) { FREE } else { FILTERED };
            KNOWN.store(known, Ordering::Relaxed);
            known
        }
        known => known,
    };
    known != FREE
}

fn has_line(path: &CStr, line: &[u8]) -> Result<bool, Errno> {
    let mut text = [0; STATUS_BYTES];
    let file = procfs::open(path)?;
    let len = procfs::read(file.raw(), &mut text)?;
    let mut lines = text.get(..len).unwrap_or(&[]).split(|byte| *byte == b'\n');
    // Not the last one, which may be cut off.
    let has = lines.by_ref().any(|one| one == line);
    Ok(has && lines.next().is_some())
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::process::CommandExt, process::Command};

    use super::*;

    #[test]
    fn who_may_read_our_memory_tells_the_word() {
        let secret = Secret::new();
        assert!(!secret.is(0) && !secret.is(UNREADABLE));
        let place = secret.place();
        assert_ne!(place, 0);
        assert_eq!(secret.place(), place);
        let me = crate::pid::current();
        let told = read(me, place);
        assert!(secret.is(told));
        assert!(!secret.is(told ^ 1));
        secret.forget();
        assert!(!secret.is(told));
        assert_eq!(read(me, place), UNREADABLE, "none is there");
        assert_eq!(secret.place(), place);
        assert!(!secret.is(told), "another one");
    }

    #[test]
    fn only_words_are_told() {
        let other = [7u64, 0x1234_5678];
        let me = crate::pid::current();
        assert_eq!(read(me, other.as_ptr() as u64), UNREADABLE, "no mark");
        assert_eq!(read(me, 8), UNREADABLE, "no memory");
        assert_eq!(read(me, u64::MAX - 8), UNREADABLE);
        assert_eq!(read(i32::MAX, other.as_ptr() as u64), UNREADABLE, "no process");
        let marked = [MARK, UNREADABLE];
        assert_eq!(read(me, marked.as_ptr() as u64), UNREADABLE);
    }

    #[test]
    fn who_hides_its_memory_believes_nobody() {
        let secret = Secret::new();
        let told = read(crate::pid::current(), secret.place());
        let mut child = Command::new("sh");
        child.arg("-c").arg("exit 0");
        // In the child, which has a copy: what it finds is its exit status.
        // SAFETY: a system call, a load and an exit.
        unsafe {
            let secret = &raw const secret as usize;
            child.pre_exec(move || {
                let secret = &*(secret as *const Secret);
                let before = secret.is(told);
                let _ = sys!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
                libc::_exit(if before && !secret.is(told) { 7 } else { 1 });
            });
        }
        // An exec that never comes looks like one that did.
        assert_eq!(child.spawn().unwrap().wait().unwrap().code(), Some(7));
    }

    #[test]
    fn lines_are_whole() {
        let mut status = String::new();
        std::fs::File::open("/proc/self/status").unwrap().read_to_string(&mut status).unwrap();
        let line = status.lines().find(|line| line.starts_with("Seccomp:")).unwrap();
        let path = c"/proc/thread-self/status";
        assert_eq!(has_line(path, line.as_bytes()), Ok(true));
        assert_eq!(has_line(path, b"Seccomp:"), Ok(false));
        assert!(has_line(c"/proc/none", b"").is_err());
    }
}

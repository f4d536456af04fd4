//! A word of this process's memory that only a process that can read that memory can know.
//!
//! Another process that knows it could have read everything else as well, and changed it: the
//! kernel's rule for attaching with a debugger decides, with the additions of its security modules.
//! So nothing can be kept from it, and it gains nothing by a lie. Each process has one such word
//! while it needs one, says where it is, and reads those of others on request. It refuses all that
//! where a process that reads another one's memory may be punished for it.

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use crate::{errno::Errno, filter, kernel, procfs, sys};

/// Stands before the word: a process cannot be made to reveal other parts of a memory.
const MARK: u64 = u64::from_be_bytes(*b"SDP word");
/// Bytes of the word's own memory; the largest page there is.
const PAGE: usize = 64 * 1024;
/// Where that is: anywhere from here on within so many pages. Its place is known to every process;
/// so it lies far from everything else, and reveals no other address.
const FROM: u64 = 1 << 44;
const PLACES: u64 = 1 << 29;

/// The word, in memory of its own, which is empty in a fork child.
#[derive(Debug)]
pub struct Secret(NonNull<[AtomicU64; 2]>);

// SAFETY: the memory is the value's own, and holds atomics.
unsafe impl Send for Secret {}

impl Secret {
    /// A new one; `None`: there is none to be had. Some system calls.
    pub fn draw() -> Option<Self> {
        if !may_read() {
            return None;
        }
        let mut drawn = [0u64; 2];
        let len = size_of_val(&drawn);
        let got = kernel::getrandom(&mut drawn, libc::GRND_NONBLOCK);
        let [random, word] = drawn;
        if got != Ok(len) || !is_word(word) {
            return None;
        }
        let wanted = FROM + (random % PLACES) * PAGE as u64;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        let at = kernel::map_zeros(PAGE, wanted as usize, flags).ok()?;
        let secret = Self(at.cast());
        // SAFETY: the mapping just made.
        let wiped = unsafe { sys!(libc::SYS_madvise, at.as_ptr(), PAGE, libc::MADV_WIPEONFORK) };
        if secret.place() != wanted || wiped.is_err() {
            return None;
        }
        let [mark, place] = secret.words();
        mark.store(MARK, Ordering::Relaxed);
        place.store(word, Ordering::Relaxed);
        Some(secret)
    }

    fn words(&self) -> &[AtomicU64; 2] {
        // SAFETY: mapped as long as the value exists, page aligned; zeros are valid.
        unsafe { self.0.as_ref() }
    }

    /// Where a process that is allowed to reads it.
    pub fn place(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// Whether `claimed` is the word.
    pub fn is(&self, claimed: u64) -> bool {
        let [_, word] = self.words();
        is_word(claimed) && word.load(Ordering::Relaxed) == claimed
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // SAFETY: the value's own mapping, and nothing refers to it any more.
        let _ = unsafe { sys!(libc::SYS_munmap, self.0.as_ptr(), PAGE) };
    }
}

/// Returned in place of a word that cannot be read.
pub const UNREADABLE: u64 = u64::MAX;

const fn is_word(word: u64) -> bool {
    word != 0 && word != UNREADABLE
}

/// The word of process `pid` at `place`, which is the process's own claim; [`UNREADABLE`]: we may
/// not read its memory, or nothing of the kind is there. Waits for the memory that the process has
/// mapped there.
pub fn read(pid: i32, place: u64) -> u64 {
    if !may_read() {
        return UNREADABLE;
    }
    let mut found = [0u64; 2];
    let len = size_of_val(&found);
    let to = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: len };
    let from = libc::iovec { iov_base: place as *mut libc::c_void, iov_len: len };
    // SAFETY: 16 writable bytes; the meaning of the other address is that process's affair.
    let got =
        unsafe { sys!(libc::SYS_process_vm_readv, pid, &raw const to, 1, &raw const from, 1, 0) };
    match found {
        [MARK, word] if got == Ok(len) && is_word(word) => word,
        _ => UNREADABLE,
    }
}

/// Whether this process's memory is its user's to read.
pub fn is_dumpable() -> bool {
    kernel::dumpable() == Ok(1)
}

/// Whether reading others' memory is something that programs do here: the program did not begin under a seccomp filter
/// ([`filter`]), which may kill for it, and there is no Yama that keeps processes of one user from each other and notes
/// each attempt in the system's log. Asked once.
fn may_read() -> bool {
    const UNKNOWN: u32 = 0;
    const YES: u32 = 1;
    const NO: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);
    let known = match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let known = if !filter::is_there() && is_unguarded() { YES } else { NO };
            KNOWN.store(known, Ordering::Relaxed);
            known
        }
        known => known,
    };
    known == YES
}

fn is_unguarded() -> bool {
    let mut scope = [0; 4];
    match procfs::open(c"/proc/sys/kernel/yama/ptrace_scope") {
        Ok(file) => {
            procfs::read(file.raw(), &mut scope).is_ok_and(|n| scope.get(..n) == Some(b"0\n"))
        }
        Err(error) => error == Errno::ENOENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_read_our_memory_tells_the_word() {
        if !may_read() {
            assert!(Secret::draw().is_none());
            return;
        }
        let (secret, other) = (Secret::draw().unwrap(), Secret::draw().unwrap());
        assert!(!secret.is(0) && !secret.is(UNREADABLE));
        let (me, place) = (crate::pid::current(), secret.place());
        let claimed = read(me, place);
        assert!(secret.is(claimed));
        assert!(!secret.is(claimed ^ 1) && !other.is(claimed));
        drop(secret);
        assert_eq!(read(me, place), UNREADABLE, "nothing is there");
    }

    #[test]
    fn a_child_has_no_word() {
        let Some(secret) = Secret::draw() else { return };
        let claimed = read(crate::pid::current(), secret.place());
        // SAFETY: the child makes no call but a load and its exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no pointers.
            unsafe { libc::_exit(i32::from(secret.is(claimed))) };
        }
        let mut status = -1;
        // SAFETY: a child of ours, and a writable int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(secret.is(claimed));
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
}

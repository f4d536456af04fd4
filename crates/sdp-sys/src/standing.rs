//! Whether another process could attach to this one with a debugger.
//!
//! Who could may read and change whatever this process has, so that lying to it gains nothing. The answer is the
//! kernel's rule for `ptrace`, from what /proc shows of both processes, and errs on the side of "no": a
//! process that is confined in any way that shows counts as one that could not, whatever its confinement allows.

use core::ffi::CStr;

use crate::{errno::Errno, procfs, sys};

/// Bytes of a status that are looked at. All that is needed comes early, unless there are very many groups.
const STATUS_BYTES: usize = 2048;
/// Longest label of a security module that is compared.
const LABEL_BYTES: usize = 256;
/// Longest name of a namespace, as `user:[4026531837]`.
const LINK_BYTES: usize = 64;

/// Whether the process whose directory of descriptors `files` is ([`procfs::descriptors_of`]) could attach to this one:
/// the same users and groups, at least our capabilities, the same user and process namespaces and security label, not
/// confined by seccomp or `no_new_privs`; we can be dumped; and no rule of the system forbids equals to
/// attach (Yama). Costs some twenty system calls. False where anything cannot be told.
pub fn could_trace_us(files: i32) -> bool {
    is_dumpable()
        && are_equals_open()
        && are_same_links(files, c"../ns/user", c"/proc/thread-self/ns/user")
        && are_same_links(files, c"../ns/pid", c"/proc/thread-self/ns/pid")
        && are_same_labels(files)
        && is_above_us(files)
}

/// Whether this process's memory is its user's to read.
fn is_dumpable() -> bool {
    // SAFETY: no pointers.
    let dumpable = unsafe { sys!(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    dumpable == Ok(1)
}

/// Whether the system lets processes of one user attach to each other without being asked.
fn are_equals_open() -> bool {
    let mut scope = [0; 4];
    match procfs::open(c"/proc/sys/kernel/yama/ptrace_scope") {
        Ok(file) => {
            procfs::read(file.raw(), &mut scope).is_ok_and(|n| scope.get(..n) == Some(b"0\n"))
        }
        // No Yama, unless /proc hides all such files.
        Err(error) => error == Errno::ENOENT && procfs::open(c"/proc/sys/kernel/pid_max").is_ok(),
    }
}

fn are_same_links(files: i32, theirs: &CStr, ours: &CStr) -> bool {
    let (mut a, mut b) = ([0; LINK_BYTES], [0; LINK_BYTES]);
    let theirs = procfs::link_at(files, theirs, &mut a);
    let ours = procfs::link_at(libc::AT_FDCWD, ours, &mut b);
    matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
}

/// What a security module says of both. Without one nothing can be read, of either.
fn are_same_labels(files: i32) -> bool {
    let (mut a, mut b) = ([0; LABEL_BYTES], [0; LABEL_BYTES]);
    let theirs = text_at(files, c"../attr/current", &mut a);
    let ours = text_at(libc::AT_FDCWD, c"/proc/thread-self/attr/current", &mut b);
    // What fills the buffer may go on differently.
    let fits = |text: Option<&[u8]>| text.is_none_or(|text| text.len() < LABEL_BYTES);
    theirs == ours && fits(theirs)
}

fn text_at<'a>(directory: i32, path: &CStr, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = procfs::open_at(directory, path).ok()?;
    let len = procfs::read(file.raw(), buf).ok()?;
    buf.get(..len)
}

/// Whether the process has our users and groups and no less of capabilities, and is free of confinement.
fn is_above_us(files: i32) -> bool {
    let (mut a, mut b) = ([0; STATUS_BYTES], [0; STATUS_BYTES]);
    let theirs = text_at(files, c"../status", &mut a).and_then(Standing::of);
    let ours = text_at(libc::AT_FDCWD, c"/proc/thread-self/status", &mut b).and_then(Standing::of);
    matches!((theirs, ours), (Some(theirs), Some(ours)) if theirs.could_trace(&ours))
}

/// What a status says of the power of a process.
#[derive(Debug, PartialEq, Eq)]
struct Standing<'a> {
    /// Real, effective, saved, and that of file systems.
    users: &'a [u8],
    groups: &'a [u8],
    /// Permitted capabilities.
    permitted: u64,
    is_confined: bool,
}

impl<'a> Standing<'a> {
    fn of(status: &'a [u8]) -> Option<Self> {
        let field = |name: &[u8]| {
            let mut lines = status.split(|byte| *byte == b'\n');
            // The last line may be cut off: what follows is asked for as well.
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(b":\t"))
        };
        let is_zero = |name: &[u8]| field(name).map(|value| value == b"0");
        field(b"Cpus_allowed")?;
        Some(Self {
            users: field(b"Uid")?,
            groups: field(b"Gid")?,
            permitted: hexadecimal(field(b"CapPrm")?)?,
            is_confined: !(is_zero(b"NoNewPrivs")? && is_zero(b"Seccomp")?),
        })
    }

    fn could_trace(&self, other: &Self) -> bool {
        let is_one = |ids: &[u8]| {
            let mut ids = ids.split(|byte| *byte == b'\t');
            let first = ids.next();
            ids.all(|id| Some(id) == first)
        };
        self.users == other.users
            && self.groups == other.groups
            && is_one(other.users)
            && is_one(other.groups)
            && self.permitted & other.permitted == other.permitted
            && !self.is_confined
    }
}

/// A number of at most 16 hexadecimal digits, nothing else around it.
fn hexadecimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter()
        .try_fold(0u64, |sum, byte| Some(sum << 4 | u64::from(char::from(*byte).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsRawFd, unix::process::CommandExt},
        process::{Child, Command},
    };

    use super::*;
    use crate::owned::OwnedFd;

    const PLAIN: &[u8] =
        b"Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t8 \nCapPrm:\t00000000000000f0\n\
        NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\nCpus_allowed:\t3\n";

    fn with(from: &str, to: &str) -> Vec<u8> {
        let text = std::str::from_utf8(PLAIN).unwrap();
        assert!(text.contains(from));
        text.replace(from, to).into_bytes()
    }

    #[test]
    fn only_who_lacks_nothing_could_trace() {
        let plain = Standing::of(PLAIN).unwrap();
        let could = |text: &[u8]| Standing::of(text).is_some_and(|one| one.could_trace(&plain));
        assert!(could(PLAIN));
        assert!(could(&with("f0", "ff")), "more capabilities than ours");
        for (from, to) in [
            ("00f0", "0070"),
            ("Uid:\t7\t7\t7\t7", "Uid:\t9\t9\t9\t9"),
            ("Uid:\t7\t7", "Uid:\t7\t9"),
            ("Gid:\t8\t8", "Gid:\t9\t8"),
            ("Privs:\t0", "Privs:\t1"),
            ("Seccomp:\t0", "Seccomp:\t2"),
            ("CapPrm:\t0", "CapPrm:\tg"),
            ("Seccomp:\t0\n", ""),
            ("Cpus_allowed:\t3\n", ""),
        ] {
            assert!(!could(&with(from, to)), "{from} {to}");
        }
        // Nobody attaches to who has two users at a time.
        let split = with("Uid:\t7\t7\t7\t7", "Uid:\t7\t0\t7\t7");
        let split = Standing::of(&split).unwrap();
        assert!(!split.could_trace(&split));
    }

    #[test]
    fn numbers_are_hexadecimal() {
        assert_eq!(hexadecimal(b"000001ffffffffff"), Some(0x1ff_ffff_ffff));
        assert_eq!(hexadecimal(b"ffffffffffffffff"), Some(u64::MAX));
        for bad in [&b""[..], b"00000000000000000", b"0x1", b" 1", b"+1"] {
            assert_eq!(hexadecimal(bad), None);
        }
    }

    struct Waiting(Child);

    impl Waiting {
        fn new(setup: fn()) -> Self {
            let mut command = Command::new("sleep");
            command.arg("60");
            // SAFETY: what is set up are system calls.
            unsafe {
                command.pre_exec(move || {
                    setup();
                    Ok(())
                });
            }
            Self(command.spawn().unwrap())
        }

        fn could_trace_us(&self) -> bool {
            // SAFETY: no pointers.
            let pidfd = unsafe { sys!(libc::SYS_pidfd_open, self.0.id(), 0) }.unwrap();
            let files = procfs::descriptors_of(&OwnedFd::new(pidfd as i32)).unwrap();
            could_trace_us(files.raw())
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn renounce() {
        // SAFETY: no pointers.
        unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.unwrap();
    }

    #[test]
    fn a_child_could_and_a_confined_one_could_not() {
        let own = fs::read_to_string("/proc/self/status").unwrap();
        let is_free = own.contains("NoNewPrivs:\t0") && own.contains("Seccomp:\t0");
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        let is_open = scope.map_or(true, |scope| scope == "0\n");
        assert_eq!(Waiting::new(|| {}).could_trace_us(), is_free && is_open);
        assert!(!Waiting::new(renounce).could_trace_us());
        let directory = fs::File::open("/tmp").unwrap();
        assert!(!could_trace_us(directory.as_raw_fd()), "no directory of descriptors");
    }
}

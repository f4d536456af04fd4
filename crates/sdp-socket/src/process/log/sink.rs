//! Where log lines go: descriptor 2, the system log, or a file that only its owner can have prepared.
//!
//! A destination is opened for each line and closed again: a log serves an investigation, and a
//! descriptor that is kept would have to survive fork, exec and programs that close descriptors
//! that they do not know. Every call is made so that it cannot wait, and no line is ever written to
//! a connection.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

use sdp_sys::{
    OwnedFd,
    errno::Errno,
    fd, memfd, pid,
    stat::{self, Identity, Stat},
    sys,
    time::unix_s,
};

use super::Line;

/// Longest file name of a statement that is obeyed.
const NAME_MAX: usize = 255;
/// Priority of the records: facility user, severity notice.
const SYSLOG_PRIORITY: &[u8] = b"<13>";
const SYSLOG_SOCKET: &[u8] = b"/dev/log";

const STDERR: u32 = 1;
const SYSLOG: u32 = 2;
const FILE: u32 = 3;

static KIND: AtomicU32 = AtomicU32::new(0);

struct Target {
    /// The file's name in the statement; its path depends on the user of the moment.
    name: UnsafeCell<([u8; NAME_MAX + 1], usize)>,
    /// The file that descriptor 2 named when the process began.
    stderr: UnsafeCell<Option<Identity>>,
}

// SAFETY: written by the constructor and by the loader of the settings, both before KIND is set
// (release), read after (acquire).
unsafe impl Sync for Target {}

static TARGET: Target =
    Target { name: UnsafeCell::new(([0; NAME_MAX + 1], 0)), stderr: UnsafeCell::new(None) };

/// Remembers the file that descriptor 2 names when the process begins; for the constructor.
pub(super) fn remember_stderr(identity: Identity) {
    // SAFETY: before KIND, see `Target`.
    unsafe { *TARGET.stderr.get() = Some(identity) };
}

/// Descriptor 2.
pub(super) fn to_stderr() {
    KIND.store(STDERR, Ordering::Release);
}

/// The system log.
pub(super) fn to_syslog() {
    KIND.store(SYSLOG, Ordering::Release);
}

/// The system log, unless there is a destination.
pub(super) fn to_syslog_unless_set() {
    let _ = KIND.compare_exchange(0, SYSLOG, Ordering::AcqRel, Ordering::Relaxed);
}

/// A file. Root's are in `/var/log`; others' are named `log`, in a directory `NAME.<uid>` of their own,
/// which is in `/tmp` unless the name has a slash. A process that changes its user changes the file.
pub(super) fn to_file(name: &[u8]) {
    let mut whole = Path::new();
    whole.add(name);
    if path_of(name, effective_uid()).is_none() {
        return;
    }
    // SAFETY: before KIND, see `Target`.
    unsafe { *TARGET.name.get() = (whole.bytes, whole.len) };
    KIND.store(FILE, Ordering::Release);
}

/// Where the file named so is for a user; `None` if it has no name, or too long a one.
fn path_of(name: &[u8], uid: u32) -> Option<Path> {
    let base = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
    let mut path = Path::new();
    if uid == 0 {
        path.add(b"/var/log/").add(base);
    } else {
        if base.len() == name.len() {
            path.add(b"/tmp/");
        }
        path.add(name).add(b".").add_number(uid.into());
    }
    (!path.is_too_long && !base.is_empty()).then_some(path)
}

/// A path in the making, with a NUL behind it.
struct Path {
    bytes: [u8; NAME_MAX + 1],
    len: usize,
    is_too_long: bool,
}

impl Path {
    fn new() -> Self {
        Self { bytes: [0; NAME_MAX + 1], len: 0, is_too_long: false }
    }

    fn add(&mut self, text: &[u8]) -> &mut Self {
        for byte in text {
            match self.bytes.get_mut(..NAME_MAX).and_then(|b| b.get_mut(self.len)) {
                Some(to) => {
                    *to = *byte;
                    self.len = self.len.wrapping_add(1);
                }
                None => self.is_too_long = true,
            }
        }
        self
    }

    fn add_number(&mut self, number: u64) -> &mut Self {
        let mut line = Line::new();
        line.number(number);
        self.add(line.bytes())
    }
}

fn effective_uid() -> u32 {
    pid::effective_user().unwrap_or(0)
}

/// Writes a record: time, program, process and message.
pub(super) fn write(program: &[u8], message: &[u8]) {
    let mut line = Line::new();
    let kind = KIND.load(Ordering::Acquire);
    if kind == SYSLOG {
        line.text(SYSLOG_PRIORITY);
    } else {
        time(&mut line, unix_s());
        line.text(b" ");
    }
    line.text(program).text(b"[").number(pid::current().max(0) as u64).text(b"]");
    line.text(if kind == SYSLOG { b": libsdp " } else { b" libsdp " }).text(message);
    if kind != SYSLOG
        && let Some(end) = line.bytes.get_mut(line.len)
    {
        *end = b'\n';
        line.len = line.len.wrapping_add(1);
    }
    // A line that cannot be written is lost: there is no place to report it.
    let _ = match kind {
        STDERR => stderr(line.bytes()),
        SYSLOG => syslog(line.bytes()),
        FILE => file(line.bytes()),
        _ => Ok(()),
    };
}

/// Writes to `fd`, a file as `stat` describes it. A file that has reached the process's limit is
/// left alone: the kernel would end the program with SIGXFSZ for our line.
fn put(fd: i32, stat: &Stat, bytes: &[u8]) -> Result<(), Errno> {
    if stat.is_regular() && stat.size >= memfd::file_size_limit()? {
        return Err(Errno(libc::EFBIG));
    }
    fd::write(fd, bytes).map(drop)
}

/// Descriptor 2, unless the program made it something that must not get foreign text: a connection,
/// or another file than the one it began with.
fn stderr(bytes: &[u8]) -> Result<(), Errno> {
    let stat = stat::stat(2)?;
    // SAFETY: KIND is set: not written any more.
    let first = unsafe { *TARGET.stderr.get() };
    if stat.is_socket() || (stat.is_regular() && Some(stat.id) != first) {
        return Ok(());
    }
    let ready = fd::poll_one(2, libc::POLLOUT, Some(0))?;
    // A full pipe would make us wait; one without a reader would raise a signal.
    if ready & (libc::POLLOUT | libc::POLLERR) == libc::POLLOUT {
        put(2, &stat, bytes)?;
    }
    Ok(())
}

fn syslog(bytes: &[u8]) -> Result<(), Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let socket = fd::socket(libc::AF_UNIX, kind)?;
    sdp_sys::unix::connect_path(socket.raw(), SYSLOG_SOCKET)?;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    fd::send(socket.raw(), bytes, flags).map(drop)
}

fn open(directory: i32, path: *const u8, flags: i32) -> Result<OwnedFd, Errno> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: the callers' paths end with NUL.
    let fd = unsafe { sys!(libc::SYS_openat, directory, path, flags, 0o600)? };
    Ok(OwnedFd::new(fd as i32))
}

fn file(bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: KIND is set: not written any more.
    let (name, len) = unsafe { &*TARGET.name.get() };
    let uid = effective_uid();
    let path =
        path_of(name.get(..*len).unwrap_or_default(), uid).ok_or(Errno(libc::ENAMETOOLONG))?;
    let name = path.bytes.as_ptr();
    let append = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
    let file = if uid == 0 {
        open(libc::AT_FDCWD, name, append)?
    } else {
        // SAFETY: the path ends with NUL.
        let made = unsafe { sys!(libc::SYS_mkdirat, libc::AT_FDCWD, name, 0o700) };
        if !matches!(made, Ok(_) | Err(Errno(libc::EEXIST))) {
            return made.map(drop);
        }
        let directory = open(libc::AT_FDCWD, name, libc::O_RDONLY | libc::O_DIRECTORY)?;
        if !is_private(stat::stat(directory.raw())?) {
            return Err(Errno(libc::EACCES));
        }
        open(directory.raw(), c"log".as_ptr().cast(), append)?
    };
    let stat = stat::stat(file.raw())?;
    if !stat.is_regular() {
        return Err(Errno(libc::EACCES));
    }
    put(file.raw(), &stat, bytes)
}

/// Whether only this process's user can write to a directory, so that no other user can have put a
/// log file into it.
fn is_private(stat: Stat) -> bool {
    stat.uid == effective_uid() && stat.permissions() & 0o077 == 0
}

const DAYS: [&[u8]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8]; 12] = [
    b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec", b"Jan", b"Feb",
];

/// Seconds since 1970 as `Thu Nov 16 23:20:06 2017`, in UTC: the time zone is libc's to know.
fn time(line: &mut Line, seconds: u64) {
    let days = seconds / 86_400;
    let of_day = seconds % 86_400;
    // Years that begin in March, in eras of 400: a leap day is the last day of its year.
    let shifted = days.wrapping_add(719_468);
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = year_of_era + era * 400 + u64::from(month >= 10);
    line.text(DAYS.get((days % 7) as usize).unwrap_or(&DAYS[0])).text(b" ");
    line.text(MONTHS.get(month as usize).unwrap_or(&MONTHS[0])).text(b" ");
    if day < 10 {
        line.text(b" ");
    }
    line.number(day).text(b" ").digits(of_day / 3600, 10, 2).text(b":");
    line.digits(of_day / 60 % 60, 10, 2).text(b":").digits(of_day % 60, 10, 2);
    line.text(b" ").number(year);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ctimes() {
        for (seconds, text) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_399, "Mon Feb 28 23:59:59 2000"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (951_868_800, "Wed Mar  1 00:00:00 2000"),
            (1_510_874_406, "Thu Nov 16 23:20:06 2017"),
            (4_102_444_799, "Thu Dec 31 23:59:59 2099"),
        ] {
            let mut line = Line::new();
            time(&mut line, seconds);
            assert_eq!(line.bytes(), text.as_bytes());
        }
    }
}

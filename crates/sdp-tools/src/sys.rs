//! System calls that std does not offer. Unsafe code of the tools is here and in `terminal` only.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sdp_sys::{Errno, kernel, unix};

/// Whether the process began without standard output: std has put `/dev/null` there before `main`.
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look_at_stdout() {
    // SAFETY: it has no pointers; the number need not be open.
    let is_open = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } >= 0;
    STDOUT_CLOSED.store(!is_open, Ordering::Relaxed);
}

// SAFETY: the loader calls it once, with arguments that a function without parameters ignores; it allocates
// nothing and needs nothing of std.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = look_at_stdout;

/// Whether a regular file is the one that standard output goes to.
pub fn is_stdout(path: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let out = io::stdout();
    let Ok(out) = out.as_fd().try_clone_to_owned().map(std::fs::File::from) else { return false };
    let ids = |m: std::fs::Metadata| (m.is_file(), m.dev(), m.ino());
    match (out.metadata().map(ids), std::fs::metadata(path).map(ids)) {
        (Ok(out), Ok(file)) => out == file && file.0,
        _ => false,
    }
}

/// Whether the process began without standard output.
pub fn was_stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

fn check<T>(result: Result<T, Errno>) -> io::Result<T> {
    result.map_err(|Errno(number)| io::Error::from_raw_os_error(number))
}

fn owned(fd: sdp_sys::OwnedFd) -> OwnedFd {
    // SAFETY: the value before owned the number, and does not any more.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}

/// The descriptor that a call has made.
fn made(result: Result<usize, Errno>) -> io::Result<OwnedFd> {
    check(kernel::owned(result)).map(owned)
}

// ---- SEQPACKET sockets and descriptors over them ---------------------------------------------

/// A local address: an abstract name or a path.
#[derive(Debug, Clone, Copy)]
pub enum LocalName<'a> {
    /// Name in the network namespace's abstract table.
    Abstract(&'a [u8]),
    /// A file.
    Path(&'a [u8]),
}

fn local_address(name: LocalName<'_>) -> io::Result<(libc::sockaddr_un, usize)> {
    let mut addr: libc::sockaddr_un = kernel::zeroed();
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let (start, bytes) = match name {
        LocalName::Abstract(bytes) => (1, bytes),
        LocalName::Path(bytes) => (0, bytes),
    };
    let room = addr.sun_path.len() - 1 - start;
    if bytes.is_empty() || bytes.len() > room || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in addr.sun_path[start..].iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let zero = usize::from(start == 0);
    let len = size_of::<libc::sa_family_t>() + start + bytes.len() + zero;
    Ok((addr, len))
}

fn seqpacket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    made(kernel::socket(libc::AF_UNIX, kind, 0))
}

/// A non-blocking SEQPACKET listener.
pub fn seqpacket_listen(name: LocalName<'_>) -> io::Result<OwnedFd> {
    let fd = seqpacket(libc::SOCK_NONBLOCK)?;
    let (addr, len) = local_address(name)?;
    check(kernel::bind(fd.as_raw_fd(), &addr, len))?;
    check(kernel::listen(fd.as_raw_fd(), 4096))?;
    Ok(fd)
}

/// A blocking SEQPACKET connection.
pub fn seqpacket_connect(name: LocalName<'_>) -> io::Result<OwnedFd> {
    let fd = seqpacket(0)?;
    let (addr, len) = local_address(name)?;
    check(kernel::connect(fd.as_raw_fd(), &addr, len))?;
    Ok(fd)
}

/// Whether a stream or packet socket's file is there, and no process has the socket any more. Asked
/// with a socket of another kind, so that no connection is made: a process that has it sees nothing.
pub fn is_left(path: &std::path::Path) -> bool {
    let name = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    let ask = || {
        let fd = made(kernel::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let (addr, len) = local_address(LocalName::Path(name))?;
        check(kernel::connect(fd.as_raw_fd(), &addr, len))?;
        Ok::<_, io::Error>(())
    };
    // A socket of a living process answers EPROTOTYPE.
    ask().is_err_and(|e| e.raw_os_error() == Some(libc::ECONNREFUSED))
}

/// A non-blocking connection of a listener; `None` when none is waiting.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match check(unix::accept(listener.as_raw_fd())) {
        Ok(fd) => Ok(Some(owned(fd))),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Process id of the end that connected; 0 when it lives in a pid namespace that we cannot see.
pub fn peer_pid(fd: BorrowedFd<'_>) -> u32 {
    let credentials = unix::peer_credentials(fd.as_raw_fd());
    credentials.map_or(0, |credentials| credentials.pid.unsigned_abs())
}

/// Sends one packet with one descriptor.
pub fn send_with_fd(to: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    check(unix::send(to.as_raw_fd(), bytes, &[fd.as_raw_fd()]))
}

/// Receives one packet and the descriptors with it. `WouldBlock` when there is none yet.
pub fn receive_with_fds(from: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut packet = check(unix::receive(from.as_raw_fd(), buf))?;
    let all = 0..packet.descriptors();
    Ok((packet.len, all.filter_map(|at| packet.take(at)).map(owned).collect()))
}

/// Waits for news of descriptors; how many have some. A signal ends it early.
pub(crate) fn poll(set: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
    let tv_sec = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    let mut time = libc::timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() };
    check(kernel::poll(set, Some(&mut time)))
}

/// Waits until one of `fds` is readable; true for each that is. An interruption is a time-out.
pub fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let entry =
        |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut set: Vec<_> = fds.iter().map(entry).collect();
    match poll(&mut set, timeout) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(set.iter().map(|p| p.revents != 0).collect()),
    }
}

/// A memfd with its size sealed, as the library makes it for a page.
pub fn sealed_memfd(name: &std::ffi::CStr, size: u64) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let fd = made(kernel::memfd_create(name, flags))?;
    check(kernel::ftruncate(fd.as_raw_fd(), size))?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    check(kernel::add_seals(fd.as_raw_fd(), seals))?;
    Ok(fd)
}

/// The seals of a memory file.
///
/// # Errors
/// It is another kind of file.
pub fn seals(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    check(kernel::seals(fd.as_raw_fd())).map(|seals| seals as libc::c_int)
}

// ---- processes and signals -------------------------------------------------------------------

/// Whether a process id is in use.
pub fn is_alive(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    pid > 0 && matches!(kernel::kill(pid, 0), Ok(_) | Err(Errno::EPERM))
}

/// Whether a process runs no more, also one whose parent has not waited for it. One whose main
/// thread has ended by itself runs as long as another of its threads does.
pub fn has_ended(pid: u32) -> bool {
    if !is_alive(pid) {
        return true;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| tells_an_end(&stat))
}

/// Whether a line of `/proc/PID/stat` is that of an ended process: its main thread has ended, and
/// is the last one.
fn tells_an_end(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let mut fields = fields.split(' ');
    let has_main_ended = matches!(fields.next(), Some("Z" | "X"));
    // The third field is the state, the twentieth the number of threads.
    let threads = fields.nth(16).and_then(|threads| threads.parse::<u32>().ok());
    has_main_ended && threads.is_none_or(|threads| threads <= 1)
}

/// Signals that `sdp run` hands on.
pub const FORWARDED: [libc::c_int; 12] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Signal mask and disposition of SIGCHLD before [`block_forwarded`].
#[derive(Clone, Copy)]
pub struct SavedMask(libc::sigset_t, libc::sighandler_t);

fn forwarded_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; the calls only write it.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in FORWARDED {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        set
    }
}

/// Blocks the signals that [`wait_signal`] waits for, in this thread and those it starts.
pub fn block_forwarded() -> SavedMask {
    let set = forwarded_set();
    // SAFETY: old is valid for writing.
    unsafe {
        let mut old: libc::sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old);
        // Where SIGCHLD is ignored, children reap themselves and their end is not reported.
        SavedMask(old, libc::signal(libc::SIGCHLD, libc::SIG_DFL))
    }
}

/// Puts both back; async-signal-safe, for use between fork and exec.
pub fn restore_mask(mask: &SavedMask) {
    // SAFETY: set and disposition are those that the kernel gave us.
    unsafe {
        libc::signal(libc::SIGCHLD, mask.1);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut());
    }
}

/// Writes beyond RLIMIT_FSIZE fail from here on, instead of ending this process.
pub fn survive_file_size_limit() {
    // SAFETY: no handler of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Runs `action` in the child between fork and exec.
pub fn before_exec(
    command: &mut std::process::Command,
    action: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the callers' actions are async-signal-safe calls without allocation.
    unsafe { command.pre_exec(action) };
}

/// Between fork and exec: ends with the thread that has started it, unless it becomes another user.
pub fn end_with_parent() -> io::Result<()> {
    check(kernel::parents_death_signal(libc::SIGKILL)).map(drop)
}

/// Between fork and exec: another user, without other groups. False: not allowed; errno says why.
pub fn become_user(uid: u32, gid: u32) -> bool {
    // SAFETY: system calls on numbers; no group is read.
    unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(gid, gid, gid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    }
}

/// Number and group of a user with that name.
pub fn passwd_of_name(name: &std::ffi::CStr) -> Option<(u32, u32)> {
    // SAFETY: a terminated name; the entry is read at once, and no other code of the tool asks for
    // one.
    unsafe { libc::getpwnam(name.as_ptr()).as_ref() }.map(|user| (user.pw_uid, user.pw_gid))
}

/// The same of a user with that number.
pub fn passwd_of_number(uid: u32) -> Option<(u32, u32)> {
    // SAFETY: takes a number; the entry is read at once, and no other code of the tool asks for
    // one.
    unsafe { libc::getpwuid(uid).as_ref() }.map(|user| (user.pw_uid, user.pw_gid))
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Signal {
    /// Its number.
    pub number: libc::c_int,
    /// Sent by a process, not by a terminal or by the kernel.
    pub is_from_user: bool,
}

/// Waits for a signal that [`block_forwarded`] blocked.
pub fn wait_signal() -> Signal {
    let set = forwarded_set();
    loop {
        // SAFETY: siginfo_t is plain data.
        let mut info: libc::siginfo_t = unsafe { zeroed() };
        // SAFETY: both are valid.
        let number = unsafe { libc::sigwaitinfo(&raw const set, &raw mut info) };
        if number > 0 {
            return Signal { number, is_from_user: info.si_code <= 0 };
        }
    }
}

/// Sends a signal. Errors (the process just ended) have no consequence.
pub fn kill(pid: u32, signal: libc::c_int) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        let _ = kernel::kill(pid, signal);
    }
}

/// How a child ended, and the resources that it and its waited-for descendants used.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Exit code, or the signal that ended it.
    pub how: Result<i32, i32>,
    /// User seconds.
    pub user_s: f64,
    /// System seconds.
    pub system_s: f64,
}

fn seconds(t: libc::timeval) -> f64 {
    t.tv_sec as f64 + t.tv_usec as f64 / 1e6
}

/// Reaps `pid` if it has ended, without waiting.
pub fn reap(pid: u32) -> io::Result<Option<Ended>> {
    let mut status = 0;
    let mut usage: libc::rusage = kernel::zeroed();
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    if check(kernel::wait4_usage(pid, &mut status, libc::WNOHANG, &mut usage))? == 0 {
        return Ok(None);
    }
    let how = if libc::WIFSIGNALED(status) {
        Err(libc::WTERMSIG(status))
    } else {
        Ok(libc::WEXITSTATUS(status))
    };
    Ok(Some(Ended { how, user_s: seconds(usage.ru_utime), system_s: seconds(usage.ru_stime) }))
}

/// CPU seconds (user, system) of this process so far.
pub fn own_cpu() -> (f64, f64) {
    let mut usage: libc::rusage = kernel::zeroed();
    let _ = kernel::own_usage(&mut usage);
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

/// Real user id.
pub fn own_uid() -> u32 {
    sdp_sys::pid::user()
}

/// Real group id.
pub fn own_gid() -> u32 {
    kernel::getgid().unwrap_or(0) as u32 // never fails
}

/// When a process began, in ticks since boot; `None` when it has gone.
pub fn start_time(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Nanoseconds of `CLOCK_BOOTTIME`, the clock of pages.
pub fn boottime_ns() -> u64 {
    sdp_sys::time::boottime_ns()
}

/// Fills `buf` with random bytes.
pub fn random(buf: &mut [u8]) -> io::Result<()> {
    let n = check(kernel::random_bytes(buf, 0))?;
    if n == buf.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// A set of CPUs, as the kernel has it: a bit for each.
type CpuSet = [u64; size_of::<libc::cpu_set_t>() / 8];

/// CPUs this thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let mut set: CpuSet = [0; _];
    if kernel::sched_getaffinity(0, &mut set).is_err() {
        return Vec::new();
    }
    (0..set.len() * 64).filter(|cpu| set[cpu / 64] >> (cpu % 64) & 1 != 0).collect()
}

/// Restricts this process to `cpus`; async-signal-safe.
pub fn pin_to(cpus: &[usize]) -> io::Result<()> {
    let mut set: CpuSet = [0; _];
    for cpu in cpus {
        if let Some(word) = set.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    check(kernel::sched_setaffinity(0, &set)).map(drop)
}

/// CPU nanoseconds that a process of ours has used, all threads, to the nanosecond.
pub fn cpu_ns_of(pid: u32) -> io::Result<u64> {
    let mut clock: libc::clockid_t = 0;
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: clock is valid for writing.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    read_clock(clock)
}

/// CPU nanoseconds that this process has used.
pub fn own_cpu_ns() -> u64 {
    read_clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

fn read_clock(clock: libc::clockid_t) -> io::Result<u64> {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    check(kernel::clock(clock, &mut ts))?;
    Ok(ts.tv_sec.unsigned_abs() * 1_000_000_000 + ts.tv_nsec.unsigned_abs())
}

/// Makes this thread's sleeps as exact as the kernel can (the default rounds up by 50 µs).
pub fn exact_sleeps() {
    let _ = kernel::timer_slack(1);
}

/// A level-triggered epoll set of descriptors to read, with a number for each. By libc's functions: `sdp perf` measures what the
/// preloaded library makes of them, and a system call past it is not seen.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers. What it returns is new, and this process's alone.
        let fd = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        fd.map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// Adds `fd`, to be reported as `number` when it is readable (or writable).
    pub fn add(&self, fd: BorrowedFd<'_>, number: u64, writable: bool) -> io::Result<()> {
        let events = if writable { libc::EPOLLOUT } else { libc::EPOLLIN };
        self.change(
            libc::EPOLL_CTL_ADD,
            fd,
            libc::epoll_event { events: events as u32, u64: number },
        )
    }

    /// Removes `fd`.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // The event is not looked at.
        self.change(libc::EPOLL_CTL_DEL, fd, libc::epoll_event { events: 0, u64: 0 })
    }

    fn change(&self, op: i32, fd: BorrowedFd<'_>, mut event: libc::epoll_event) -> io::Result<()> {
        // SAFETY: the event is this call's.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits without limit; the numbers of ready descriptors go into `ready`.
    pub fn wait(&self, ready: &mut Vec<u64>) -> io::Result<()> {
        const MAX: usize = 64;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX];
        ready.clear();
        loop {
            // SAFETY: there is room for as many events.
            let n = unsafe {
                libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), MAX as libc::c_int, -1)
            };
            if let Ok(n) = usize::try_from(n) {
                ready.extend(events.iter().take(n).map(|e| e.u64));
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// As many descriptors as the hard limit allows; without effect where that cannot be. How many there
/// may be now; 0 where the kernel does not say.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit: libc::rlimit64 = kernel::zeroed();
    if kernel::limit(libc::RLIMIT_NOFILE, &mut limit).is_ok() {
        limit.rlim_cur = limit.rlim_max;
        let _ = kernel::set_limit(libc::RLIMIT_NOFILE, &limit);
        let _ = kernel::limit(libc::RLIMIT_NOFILE, &mut limit);
    }
    limit.rlim_cur
}

/// Whether a program's file has capabilities of its own.
pub fn has_capabilities(path: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    kernel::attribute_len(&path, c"security.capability").is_ok_and(|len| len > 0)
}

/// Version of the C library that this process runs with, as in `2.36`.
pub fn libc_version() -> String {
    // SAFETY: the library's own zero-terminated text, which is never changed.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    text.to_string_lossy().into_owned()
}

/// System calls that the library makes for a lane: their names, and the result of an attempt.
pub fn attempts() -> Vec<(&'static str, io::Result<()>)> {
    fn note(
        all: &mut Vec<(&'static str, io::Result<()>)>,
        name: &'static str,
        result: io::Result<OwnedFd>,
    ) -> Option<OwnedFd> {
        let (fd, done) = match result {
            Ok(fd) => (Some(fd), Ok(())),
            Err(e) => (None, Err(e)),
        };
        all.push((name, done));
        fd
    }
    let mut all = Vec::new();
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let memory = note(&mut all, "memfd_create", made(kernel::memfd_create(c"sdp", flags)));
    note(&mut all, "eventfd", made(kernel::eventfd2(0, libc::EFD_CLOEXEC)));
    let (kind, protocol) = (libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG);
    note(&mut all, "sock_diag", made(kernel::socket(libc::AF_NETLINK, kind, protocol)));
    let own = note(&mut all, "pidfd_open", made(kernel::pidfd_open(sdp_sys::pid::current())));
    if let (Some(own), Some(memory)) = (own, memory) {
        let fd = kernel::pidfd_getfd(own.as_raw_fd(), memory.as_raw_fd().cast_unsigned());
        note(&mut all, "pidfd_getfd", made(fd));
    }
    let (from, mut to) = ([7u8; 8], [0u8; 8]);
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    // SAFETY: both are valid for their length; the remote one, our own, is only read.
    let n = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    let read = if n == 8 { Ok(()) } else { Err(io::Error::last_os_error()) };
    all.push(("process_vm_readv", read));
    all
}

/// Columns and lines of the terminal that standard output goes to; `None` if it is none.
pub fn terminal_size() -> Option<(usize, usize)> {
    let mut size: libc::winsize = kernel::zeroed();
    let is_one = kernel::window_size(libc::STDOUT_FILENO, &mut size).is_ok();
    (is_one && size.ws_col > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

/// Columns that text may have: the terminal's, else those of `COLUMNS`, else 80.
pub fn terminal_width() -> usize {
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal_size().map(|(columns, _)| columns).or_else(named).unwrap_or(80).max(20)
}

/// Puts this thread into the network namespace that a file of `/proc` names.
pub fn enter_network(space: &std::fs::File) -> io::Result<()> {
    check(kernel::setns(space.as_raw_fd(), libc::CLONE_NEWNET)).map(drop)
}

/// Sends a query to sock_diag and gives each packet of the answer to `take`, until that says false.
pub fn sock_diag(
    request: &[u8],
    mut take: impl FnMut(&[u8]) -> io::Result<bool>,
) -> io::Result<()> {
    /// The kernel never fails to answer; a filter between might.
    static TIMEOUT: libc::timeval = libc::timeval { tv_sec: 5, tv_usec: 0 };
    let (kind, protocol) = (libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG);
    let socket = made(kernel::socket(libc::AF_NETLINK, kind, protocol))?;
    let fd = socket.as_raw_fd();
    check(kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &TIMEOUT))?;
    if check(kernel::send(fd, request, 0))? != request.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut packet = vec![0u8; 1 << 16];
    loop {
        let n = match kernel::receive(fd, &mut packet, 0) {
            Err(Errno::EINTR) => continue,
            got => check(got)?,
        };
        if n == 0 || !take(&packet[..n])? {
            return Ok(());
        }
    }
}

/// Columns that a table may have: those of the terminal, and any number where there is none, for programs
/// read lines.
pub fn table_width() -> usize {
    terminal_size().map_or(usize::MAX, |(columns, _)| columns.max(20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_with_its_last_thread() {
        let stat = |state: &str, threads: u32| {
            tells_an_end(&format!(
                "7 (a) b) {state} 1 7 7 0 -1 4 5 6 7 8 1 2 3 4 20 0 {threads} 0 9"
            ))
        };
        assert!(stat("Z", 1) && stat("X", 0));
        assert!(!stat("Z", 2) && !stat("S", 1) && !stat("R", 5));
        assert!(!tells_an_end("7"));
    }

    /// The kernel's own lines: a child whose main thread ends by itself, then whole.
    #[test]
    fn a_main_thread_that_ends_by_itself_is_no_end() {
        let program = "import ctypes, sys, threading, time\n\
            def rest():\n\
            \x20 while ') Z ' not in open('/proc/self/stat').read(): time.sleep(0.001)\n\
            \x20 print('alone', flush=True); sys.stdin.read()\n\
            threading.Thread(target=rest).start()\n\
            ctypes.CDLL(None).pthread_exit(None)\n";
        let mut child = std::process::Command::new("python3")
            .args(["-c", program])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 6];
        let out = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(out, &mut said).unwrap();
        assert_eq!(&said, b"alone\n");
        assert!(!has_ended(child.id()));
        // Not waited for: it stays a dead process until the end of the pipe has been seen.
        drop(child.stdin.take());
        let mut rest = Vec::new();
        std::io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut rest).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !has_ended(child.id()) {
            assert!(std::time::Instant::now() < until, "not seen as ended");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
    }
}

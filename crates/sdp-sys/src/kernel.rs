//! System calls that safe code may make: a table of their signatures.
//!
//! Called by the other modules here, which give results their types, and by rooms of the socket
//! layer. A row takes the arguments that the kernel asks for, so that no argument can make it touch
//! memory which the caller has not lent: an address is that of an argument borrowed for the call,
//! its length is that argument's own, and where the kernel writes, any bytes are a value. Calls
//! whose arguments are the program's own addresses, or that unmap memory, are not here: callers
//! that make one of those use [`crate::sys`] and say why they may.

use core::{
    ffi::CStr,
    ptr::{from_mut, from_ref},
};

use crate::{OwnedFd, errno::Errno, sys};

/// Types that the kernel may fill with any bytes, and that may be made of zeros or of bytes of any
/// origin.
///
/// # Safety
/// Each pattern of bits, zeros among them, is a value.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: integers, raw pointers, and arrays and C structures of them.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(
    i8,
    u8,
    u16,
    u32,
    u64,
    usize,
    i32,
    i64,
    libc::Dl_info,
    libc::cmsghdr,
    libc::epoll_event,
    libc::flock,
    libc::linger,
    libc::msghdr,
    libc::rlimit64,
    libc::rusage,
    libc::sockaddr,
    libc::sockaddr_in,
    libc::sockaddr_in6,
    libc::sockaddr_nl,
    libc::sockaddr_storage,
    libc::sockaddr_un,
    libc::stat,
    libc::statfs,
    libc::timespec,
    libc::timeval,
    libc::ucred,
    libc::winsize,
);

// SAFETY: an array is its elements, each of which may have any bits.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A value of zeros.
#[inline(always)]
pub const fn zeroed<T: Plain>() -> T {
    // SAFETY: zeros are a value of the type.
    unsafe { core::mem::zeroed() }
}

/// The value at the beginning of `bytes`. `None`: there are fewer.
#[inline]
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    let whole = bytes.get(..size_of::<T>())?;
    // SAFETY: as many bytes as the type has, and any are a value of it.
    Some(unsafe { whole.as_ptr().cast::<T>().read_unaligned() })
}

/// An address of any family as one of a certain family.
#[inline]
pub fn address<T: Plain>(any: &libc::sockaddr_storage) -> T {
    const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
    // SAFETY: within the longer value, whose type has no padding; any bits are a value.
    unsafe { from_ref(any).cast::<T>().read_unaligned() }
}

/// Rows `fn name(arguments) = CALL(words);`, each a safe function.
macro_rules! table {
    ($(
        $(#[$about:meta])*
        $name:ident$(<$value:ident>)?($($arg:ident: $type:ty),*) = $call:ident($($word:expr),*);
    )*) => {
        $(
            $(#[$about])*
            ///
            /// # Errors
            /// The kernel's.
            #[inline(always)]
            pub fn $name$(<$value: Plain>)?($($arg: $type),*) -> Result<usize, Errno> {
                // SAFETY: each address in the row below is that of an argument, which is borrowed and as long as the
                // row says; the kernel writes only through those that are `&mut`, whose types take any bytes.
                unsafe { sys!(libc::$call $(, $word)*) }
            }
        )*
    };
}

table! {
    /// Closes a number; errors have no consequence, it is gone either way.
    close(fd: i32) = SYS_close(fd);
    /// Closes the numbers from `first` to `last`.
    close_range(first: u32, last: u32, flags: i32) = SYS_close_range(first, last, flags);
    /// Makes `number` name the same as `fd`.
    dup3(fd: i32, number: i32, flags: i32) = SYS_dup3(fd, number, flags);
    /// Flags of the open file description.
    status_flags(fd: i32) = SYS_fcntl(fd, libc::F_GETFL, 0);
    /// Sets the flags of the open file description.
    set_status_flags(fd: i32, flags: i32) = SYS_fcntl(fd, libc::F_SETFL, flags);
    /// Flags of the number.
    descriptor_flags(fd: i32) = SYS_fcntl(fd, libc::F_GETFD, 0);
    /// Duplicates `fd` to the lowest free number from `min` on.
    duplicate(fd: i32, min: i32) = SYS_fcntl(fd, libc::F_DUPFD, min);
    /// The same, closed by exec.
    duplicate_cloexec(fd: i32, min: i32) = SYS_fcntl(fd, libc::F_DUPFD_CLOEXEC, min);
    /// The holder of a lock that is in the way of `lock`.
    blocking_lock(fd: i32, lock: &mut libc::flock) = SYS_fcntl(fd, libc::F_GETLK, from_mut(lock));
    /// Takes or returns a lock of the process's own.
    set_lock(fd: i32, lock: &libc::flock) = SYS_fcntl(fd, libc::F_SETLK, from_ref(lock));
    /// The same for a lock of the open file description.
    set_file_lock(fd: i32, lock: &libc::flock) = SYS_fcntl(fd, libc::F_OFD_SETLK, from_ref(lock));
    /// The receiver of a signal of readiness (`struct f_owner_ex`).
    owner(fd: i32, owner: &mut [u32; 2]) = SYS_fcntl(fd, F_GETOWN_EX, from_mut(owner));
    /// Sets that receiver.
    set_owner(fd: i32, owner: &[u32; 2]) = SYS_fcntl(fd, F_SETOWN_EX, from_ref(owner));
    /// Which signal it is.
    owners_signal(fd: i32) = SYS_fcntl(fd, F_GETSIG);
    /// Sets which it is.
    set_owners_signal(fd: i32, signal: usize) = SYS_fcntl(fd, F_SETSIG, signal);
    /// Seals of a memory file.
    seals(fd: i32) = SYS_fcntl(fd, libc::F_GET_SEALS);
    /// Adds seals to a memory file.
    add_seals(fd: i32, seals: i32) = SYS_fcntl(fd, libc::F_ADD_SEALS, seals);
    /// Makes a memory file.
    memfd_create(name: &CStr, flags: u32) = SYS_memfd_create(name.as_ptr(), flags);
    /// Sets a file's length.
    ftruncate(fd: i32, len: u64) = SYS_ftruncate(fd, len);
    /// Opens a file.
    openat(directory: i32, path: &CStr, flags: i32, mode: u32)
        = SYS_openat(directory, path.as_ptr(), flags, mode);
    /// Opens a place as O_PATH does; an empty path means the file of `fd` itself.
    open_tree(fd: i32, path: &CStr, flags: u32) = SYS_open_tree(fd, path.as_ptr(), flags);
    /// Makes a directory.
    mkdirat(directory: i32, path: &CStr, mode: u32) = SYS_mkdirat(directory, path.as_ptr(), mode);
    /// Gives a file another name.
    linkat(from: i32, path: &CStr, to: i32, new: &CStr, flags: i32)
        = SYS_linkat(from, path.as_ptr(), to, new.as_ptr(), flags);
    /// Moves a name.
    renameat2(from: i32, path: &CStr, to: i32, new: &CStr, flags: u32)
        = SYS_renameat2(from, path.as_ptr(), to, new.as_ptr(), flags);
    /// Takes a name away.
    unlinkat(directory: i32, path: &CStr, flags: i32) = SYS_unlinkat(directory, path.as_ptr(), flags);
    /// Sets permission bits.
    fchmodat(directory: i32, path: &CStr, mode: u32) = SYS_fchmodat(directory, path.as_ptr(), mode);
    /// The target of a symbolic link.
    readlinkat(directory: i32, path: &CStr, to: &mut [u8])
        = SYS_readlinkat(directory, path.as_ptr(), to.as_mut_ptr(), to.len());
    /// Entries of a directory.
    getdents(fd: i32, to: &mut [u8]) = SYS_getdents64(fd, to.as_mut_ptr(), to.len());
    /// The file of a descriptor.
    fstat(fd: i32, stat: &mut libc::stat) = SYS_fstat(fd, from_mut(stat));
    /// The file of a path.
    fstatat(directory: i32, path: &CStr, stat: &mut libc::stat, flags: i32)
        = SYS_newfstatat(directory, path.as_ptr(), from_mut(stat), flags);
    /// Reads once.
    read(fd: i32, to: &mut [u8]) = SYS_read(fd, to.as_mut_ptr(), to.len());
    /// Reads words at a place of a file.
    pread(fd: i32, to: &mut [u64], at: usize)
        = SYS_pread64(fd, to.as_mut_ptr(), size_of_val(to), at);
    /// Reads bytes at a place of a file.
    pread_bytes(fd: i32, to: &mut [u8], at: i64)
        = SYS_pread64(fd, to.as_mut_ptr(), to.len(), at);
    /// Moves the place at which a file is read.
    lseek(fd: i32, by: i64, from: i32) = SYS_lseek(fd, by, from);
    /// Properties of a file's file system.
    fstatfs(fd: i32, system: &mut libc::statfs) = SYS_fstatfs(fd, from_mut(system));
    /// Writes once.
    write(fd: i32, bytes: &[u8]) = SYS_write(fd, bytes.as_ptr(), bytes.len());
    /// A pipe's two ends.
    pipe2(ends: &mut [i32; 2], flags: i32) = SYS_pipe2(ends.as_mut_ptr(), flags);
    /// Moves bytes between a pipe and something else, at its own place.
    splice(from: i32, to: i32, len: usize, flags: u32) = SYS_splice(from, 0, to, 0, len, flags);
    /// A new eventfd.
    eventfd2(count: u32, flags: i32) = SYS_eventfd2(count, flags);
    /// A new epoll set.
    epoll_create1(flags: i32) = SYS_epoll_create1(flags);
    /// Changes an epoll set.
    epoll_ctl(set: i32, op: i32, fd: i32, interest: &libc::epoll_event)
        = SYS_epoll_ctl(set, op, fd, from_ref(interest));
    /// Events of an epoll set, with the signals that the thread lets through.
    epoll_wait(set: i32, events: &mut [libc::epoll_event], timeout_ms: i32)
        = SYS_epoll_pwait(set, events.as_mut_ptr(), events.len(), timeout_ms, 0, 8);
    /// Waits for descriptors, with the signals that the thread lets through; no time: for ever.
    poll(set: &mut [libc::pollfd], time: Option<&mut libc::timespec>)
        = SYS_ppoll(set.as_mut_ptr(), set.len(), time.map_or(core::ptr::null_mut(), from_mut), 0, 8);
    /// Waits for descriptors as long as it takes, with those signals blocked that `mask` has.
    poll_with_mask(set: &mut [libc::pollfd], mask: &u64)
        = SYS_ppoll(set.as_mut_ptr(), set.len(), 0, from_ref(mask), 8);
    /// A new socket.
    socket(family: i32, kind: i32, protocol: i32) = SYS_socket(family, kind, protocol);
    /// Two sockets that are connected to each other.
    socketpair(family: i32, kind: i32, ends: &mut [i32; 2])
        = SYS_socketpair(family, kind, 0, ends.as_mut_ptr());
    /// Binds a socket to an address of `len` bytes, at most the whole of `address`.
    bind<T>(fd: i32, address: &T, len: usize)
        = SYS_bind(fd, from_ref(address), len.min(size_of::<T>()));
    /// Connects a socket to an address, likewise.
    connect<T>(fd: i32, address: &T, len: usize)
        = SYS_connect(fd, from_ref(address), len.min(size_of::<T>()));
    /// Listens.
    listen(fd: i32, backlog: i32) = SYS_listen(fd, backlog);
    /// Accepts, without the other end's address.
    accept4(fd: i32, flags: i32) = SYS_accept4(fd, 0, 0, flags);
    /// Ends one direction or both.
    shutdown(fd: i32, how: i32) = SYS_shutdown(fd, how);
    /// Sends to the peer of the socket.
    send(fd: i32, bytes: &[u8], flags: i32)
        = SYS_sendto(fd, bytes.as_ptr(), bytes.len(), flags, 0, 0);
    /// Receives.
    receive(fd: i32, to: &mut [u8], flags: i32)
        = SYS_recvfrom(fd, to.as_mut_ptr(), to.len(), flags, 0, 0);
    /// Takes bytes off a TCP socket's stream without a copy of them.
    discard(fd: i32, len: usize, flags: i32)
        = SYS_recvfrom(fd, 0, len, flags | libc::MSG_TRUNC, 0, 0);
    /// Sets a socket option.
    setsockopt<T>(fd: i32, level: i32, name: i32, value: &T)
        = SYS_setsockopt(fd, level, name, from_ref(value), size_of::<T>());
    /// The same from bytes, of which there may be any number.
    setsockopt_bytes(fd: i32, level: i32, name: i32, value: &[u8])
        = SYS_setsockopt(fd, level, name, value.as_ptr(), value.len());
    /// `FIONREAD`.
    readable_bytes(fd: i32, bytes: &mut i32) = SYS_ioctl(fd, libc::FIONREAD, from_mut(bytes));
    /// `TIOCOUTQ`.
    unsent_bytes(fd: i32, bytes: &mut i32) = SYS_ioctl(fd, libc::TIOCOUTQ, from_mut(bytes));
    /// `SIOCOUTQNSD`: bytes that TCP has not put into a segment.
    unsegmented_bytes(fd: i32, bytes: &mut i32) = SYS_ioctl(fd, SIOCOUTQNSD, from_mut(bytes));
    /// `SIOCATMARK`.
    is_at_mark(fd: i32, answer: &mut i32) = SYS_ioctl(fd, SIOCATMARK, from_mut(answer));
    /// Lines and columns of a terminal (`TIOCGWINSZ`).
    window_size(fd: i32, size: &mut libc::winsize)
        = SYS_ioctl(fd, libc::TIOCGWINSZ, from_mut(size));
    /// The kind of a namespace (`NS_GET_NSTYPE`).
    namespace_kind(fd: i32) = SYS_ioctl(fd, NS_GET_NSTYPE);
    /// The calling process.
    getpid() = SYS_getpid();
    /// The calling thread.
    gettid() = SYS_gettid();
    /// The parent; never fails.
    getppid() = SYS_getppid();
    /// The real user.
    getuid() = SYS_getuid();
    /// The effective user.
    geteuid() = SYS_geteuid();
    /// The real group.
    getgid() = SYS_getgid();
    /// Groups of the process.
    getgroups(to: &mut [u32]) = SYS_getgroups(to.len(), to.as_mut_ptr());
    /// `PR_GET_DUMPABLE`.
    dumpable() = SYS_prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0);
    /// A descriptor of a process.
    pidfd_open(pid: i32) = SYS_pidfd_open(pid, 0);
    /// Duplicates a descriptor of another process.
    pidfd_getfd(process: i32, number: u32) = SYS_pidfd_getfd(process, number, 0);
    /// Waits for a child.
    wait4(pid: i32, status: &mut i32, options: i32) = SYS_wait4(pid, from_mut(status), options, 0);
    /// The same, and what the child used.
    wait4_usage(pid: i32, status: &mut i32, options: i32, usage: &mut libc::rusage)
        = SYS_wait4(pid, from_mut(status), options, from_mut(usage));
    /// What the calling process has used.
    own_usage(usage: &mut libc::rusage) = SYS_getrusage(libc::RUSAGE_SELF, from_mut(usage));
    /// `PR_GET_CHILD_SUBREAPER`.
    child_subreaper(answer: &mut i32) = SYS_prctl(libc::PR_GET_CHILD_SUBREAPER, from_mut(answer));
    /// Begins a session of its own.
    setsid() = SYS_setsid();
    /// Changes the current directory.
    chdir(path: &CStr) = SYS_chdir(path.as_ptr());
    /// Names the calling thread, by the first 15 bytes.
    name_thread(name: &CStr) = SYS_prctl(libc::PR_SET_NAME, name.as_ptr());
    /// Ends the process.
    exit_group(code: i32) = SYS_exit_group(code);
    /// Sends a signal to a thread.
    tgkill(pid: usize, tid: usize, signal: i32) = SYS_tgkill(pid, tid, signal);
    /// Sends a signal to a process; 0: none, only whether it may be sent.
    kill(pid: i32, signal: i32) = SYS_kill(pid, signal);
    /// Which signal the calling thread gets when the one ends that has made its process.
    parents_death_signal(signal: i32) = SYS_prctl(libc::PR_SET_PDEATHSIG, signal);
    /// How much later than asked for the calling thread's sleeps may end.
    timer_slack(ns: usize) = SYS_prctl(libc::PR_SET_TIMERSLACK, ns);
    /// Puts the calling thread into a namespace.
    setns(space: i32, kind: i32) = SYS_setns(space, kind);
    /// A clock, also one that the vDSO does not have.
    clock(clock: i32, time: &mut libc::timespec) = SYS_clock_gettime(clock, from_mut(time));
    /// Gives the processor away.
    sched_yield() = SYS_sched_yield();
    /// On which processors a process may run; 0: the calling thread.
    sched_getaffinity(pid: i32, mask: &mut [u64])
        = SYS_sched_getaffinity(pid, size_of_val(mask), mask.as_mut_ptr());
    /// Restricts a process to processors; 0: the calling thread.
    sched_setaffinity(pid: i32, mask: &[u64])
        = SYS_sched_setaffinity(pid, size_of_val(mask), mask.as_ptr());
    /// Sleeps.
    nanosleep(time: &libc::timespec) = SYS_nanosleep(from_ref(time), 0);
    /// A limit of the calling process.
    limit(resource: u32, limit: &mut libc::rlimit64) = SYS_prlimit64(0, resource, 0, from_mut(limit));
    /// Sets a limit of the calling process.
    set_limit(resource: u32, limit: &libc::rlimit64)
        = SYS_prlimit64(0, resource, from_ref(limit), 0);
    /// The length of an extended attribute.
    attribute_len(path: &CStr, name: &CStr) = SYS_getxattr(path.as_ptr(), name.as_ptr(), 0, 0);
    /// Random bytes.
    getrandom(to: &mut [u64], flags: u32) = SYS_getrandom(to.as_mut_ptr(), size_of_val(to), flags);
    /// The same, any number of them.
    random_bytes(to: &mut [u8], flags: u32) = SYS_getrandom(to.as_mut_ptr(), to.len(), flags);
    /// Gives a signal its default action: `action` is zeros, the kernel's structure.
    default_action(signal: i32, action: &[u64; 4]) = SYS_rt_sigaction(signal, from_ref(action), 0, 8);
    /// Sets the thread's mask of signals.
    set_signal_mask(how: i32, set: &u64) = SYS_rt_sigprocmask(how, from_ref(set), 0, 8);
    /// The same; returns the mask before.
    exchange_signal_mask(how: i32, set: &u64, before: &mut u64)
        = SYS_rt_sigprocmask(how, from_ref(set), from_mut(before), 8);
}

/// Of `fcntl`, which the libc crate does not have for every C library.
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
/// `SIOCOUTQNSD`
const SIOCOUTQNSD: libc::c_ulong = 0x894b;
/// `SIOCATMARK`
const SIOCATMARK: libc::c_ulong = 0x8905;
/// `NS_GET_NSTYPE`
const NS_GET_NSTYPE: libc::c_ulong = 0xb703;

/// Receives from a netlink socket; how many bytes, and the sender.
pub fn receive_from(
    fd: i32,
    to: &mut [u8],
    flags: i32,
) -> Result<(usize, libc::sockaddr_nl), Errno> {
    let mut from = zeroed::<libc::sockaddr_nl>();
    let mut len = size_of::<libc::sockaddr_nl>() as u32;
    let (at, room) = (to.as_mut_ptr(), to.len());
    let (address, length) = (&raw mut from, &raw mut len);
    // SAFETY: the buffer, the address and its length outlive the call, and have the lengths given.
    let got = unsafe { sys!(libc::SYS_recvfrom, fd, at, room, flags, address, length) }?;
    Ok((got, from))
}

/// A new descriptor that the caller owns.
pub fn owned(made: Result<usize, Errno>) -> Result<OwnedFd, Errno> {
    made.map(|fd| OwnedFd::new(fd as i32))
}

/// Which name of a socket.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// This end's.
    Local,
    /// The other end's.
    Remote,
}

/// The address of an end of a socket; how many bytes it has, which may be more than there was room for.
pub fn name_of<T: Plain>(fd: i32, end: End, to: &mut T) -> Result<usize, Errno> {
    let call = match end {
        End::Local => libc::SYS_getsockname,
        End::Remote => libc::SYS_getpeername,
    };
    let mut len = size_of::<T>() as u32;
    // SAFETY: the value is as long as the length says, which outlives the call, and takes any bytes.
    unsafe { sys!(call, fd, from_mut(to), &raw mut len) }?;
    Ok(len as usize)
}

/// A socket option, which begins as zeros: no option whose value the kernel reads first has an
/// address in it then. How many bytes the kernel has written.
pub fn getsockopt<T: Plain>(fd: i32, level: i32, name: i32, to: &mut T) -> Result<usize, Errno> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_GET_FILTER) {
        return Err(Errno(libc::EINVAL)); // its length is a number of instructions
    }
    *to = zeroed();
    let mut len = size_of::<T>() as u32;
    // SAFETY: the value is as long as the length says, which outlives the call, and takes any bytes.
    unsafe { sys!(libc::SYS_getsockopt, fd, level, name, from_mut(to), &raw mut len) }?;
    Ok(len as usize)
}

/// The length of a socket option, where the kernel reports it to callers without room for it.
pub fn getsockopt_len(fd: i32, level: i32, name: i32) -> Result<u32, Errno> {
    let mut len = 0u32;
    // SAFETY: the length outlives the call; there is no buffer, and room for none.
    unsafe { sys!(libc::SYS_getsockopt, fd, level, name, 0, &raw mut len) }?;
    Ok(len)
}

/// Zeros of `len` bytes, at `wanted` if nothing is there. Flags that would replace an existing
/// mapping are left out.
pub fn map_zeros(len: usize, wanted: usize, flags: i32) -> Result<core::ptr::NonNull<u8>, Errno> {
    const NO_FILE: i32 = -1;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = (flags | libc::MAP_ANONYMOUS) & !libc::MAP_FIXED;
    // SAFETY: a new mapping where the kernel finds nothing disturbs nothing.
    let at = unsafe { sys!(libc::SYS_mmap, wanted, len, access, flags, NO_FILE, 0) }?;
    core::ptr::NonNull::new(at as *mut u8).ok_or(Errno::ENOMEM)
}

/// Leaves `len` bytes at `at`, whole pages of this process, out of its core dumps: they hold payload, which the program may
/// have wiped since, and of TCP's buffers a dump has nothing. As far as the kernel does that.
pub fn leave_out_of_dumps(at: core::ptr::NonNull<u8>, len: usize) {
    // SAFETY: neither the content nor the rights of any page change.
    let _ = unsafe { sys!(libc::SYS_madvise, at.as_ptr(), len, libc::MADV_DONTDUMP) };
}

/// A value that the kernel gave the process when it began (`AT_…`); 0: nothing of that kind.
pub fn auxiliary(kind: libc::c_ulong) -> usize {
    crate::libcs::auxiliary(kind) as usize
}

/// Whether the kernel reads eight bytes at `at`: it reads a set of signals before the operation on
/// it, which is none here. Every filter of system calls allows this one. Another thread may unmap
/// the place afterwards.
pub fn is_readable(at: usize) -> bool {
    /// None of the changes that the call can make.
    const NO_CHANGE: i32 = -1;
    // SAFETY: the kernel answers EFAULT where it cannot read, else EINVAL; it writes nowhere.
    let read = unsafe { sys!(libc::SYS_rt_sigprocmask, NO_CHANGE, at, 0, 8) };
    at != 0 && read == Err(Errno::EINVAL)
}

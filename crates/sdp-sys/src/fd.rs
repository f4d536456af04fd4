//! Calls on descriptors, typed. Everything here goes straight to the kernel.

use crate::{
    OwnedFd,
    errno::Errno,
    kernel::{self, owned, zeroed},
};

/// Closes a descriptor of ours. Errors have no consequence (the number is gone either way).
pub fn close(fd: i32) {
    let _ = kernel::close(fd);
}

/// Closes all numbers from `first` on. Kernels before 5.9 cannot.
pub fn close_from(first: i32) -> Result<(), Errno> {
    kernel::close_range(first as u32, u32::MAX, 0).map(drop)
}

/// Moves a fresh descriptor to the lowest free number at or above `min`, with close-on-exec set, and
/// closes the old number. Falls back to the old number when none is free there.
pub fn move_up(fd: i32, min: i32) -> i32 {
    match duplicate_above(fd, min, false) {
        Ok(n) => {
            close(fd);
            n
        }
        Err(_) => fd,
    }
}

/// An integer socket option.
pub fn getsockopt_int(fd: i32, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = 0i32;
    kernel::getsockopt(fd, level, name, &mut value)?;
    Ok(value)
}

/// Cookie of the network namespace of a socket. Kernels before 5.14 report none.
pub fn netns_cookie(fd: i32) -> Result<u64, Errno> {
    /// `SO_NETNS_COOKIE`
    const NETNS_COOKIE: i32 = 71;
    let mut cookie = 0u64;
    kernel::getsockopt(fd, libc::SOL_SOCKET, NETNS_COOKIE, &mut cookie)?;
    Ok(cookie)
}

/// Inode number of the file behind a descriptor.
pub fn inode(fd: i32) -> Result<u64, Errno> {
    let mut st: libc::stat = zeroed();
    kernel::fstat(fd, &mut st)?;
    Ok(st.st_ino)
}

/// Whether the descriptor only names a place (`O_PATH`).
pub fn is_path(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_PATH != 0)
}

/// Whether the open file description has O_NONBLOCK set now. Asked of the kernel each time, because
/// another holder may have changed it.
pub fn is_nonblocking(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// Flags of the open file description (`O_…`), as the kernel has them now.
#[inline]
pub fn status_flags(fd: i32) -> Result<i32, Errno> {
    kernel::status_flags(fd).map(|flags| flags as i32)
}

/// Sets the flags of the open file description.
pub fn set_status_flags(fd: i32, flags: i32) -> Result<(), Errno> {
    kernel::set_status_flags(fd, flags).map(drop)
}

/// Flags of the number (`FD_…`). An error: the number names nothing.
#[inline]
pub fn descriptor_flags(fd: i32) -> Result<i32, Errno> {
    kernel::descriptor_flags(fd).map(|flags| flags as i32)
}

/// Whether exec leaves the number open. False for one that names nothing.
pub fn stays_open(fd: i32) -> bool {
    descriptor_flags(fd).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

/// Duplicates `fd` to the lowest free number at or above `min`.
pub fn duplicate_above(fd: i32, min: i32, is_kept_by_exec: bool) -> Result<i32, Errno> {
    let made = if is_kept_by_exec {
        kernel::duplicate(fd, min)
    } else {
        kernel::duplicate_cloexec(fd, min)
    };
    made.map(|fd| fd as i32)
}

/// Makes `number` name the same as `fd`, in place of its file before. `flags`: `O_CLOEXEC` or 0.
pub fn duplicate_to(fd: i32, number: i32, flags: i32) -> Result<(), Errno> {
    kernel::dup3(fd, number, flags).map(drop)
}

/// Reads once; how many bytes.
pub fn read(fd: i32, to: &mut [u8]) -> Result<usize, Errno> {
    kernel::read(fd, to)
}

/// Writes once; how many bytes.
#[inline]
pub fn write(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    kernel::write(fd, bytes)
}

/// Adds one to an eventfd, which wakes a thread that waits for it.
#[inline]
pub fn ring(event: i32) -> Result<usize, Errno> {
    write(event, &1u64.to_ne_bytes())
}

/// A new eventfd. `flags`: `EFD_…`.
pub fn eventfd(flags: i32) -> Result<i32, Errno> {
    kernel::eventfd2(0, flags).map(|fd| fd as i32)
}

/// Waits for descriptors for `timeout_ns` nanoseconds, less than a second (`None`: for ever), with the signals that
/// the thread lets through; how many have news. A signal ends it early (`EINTR`).
#[inline(never)]
pub fn poll(set: &mut [libc::pollfd], timeout_ns: Option<i64>) -> Result<usize, Errno> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: timeout_ns.unwrap_or(0) };
    let polled = kernel::poll(set, timeout_ns.map(|_| &mut time));
    if polled == Err(Errno::EINVAL) {
        // RLIMIT_NOFILE is lower than the entries are many: a moment, and a look.
        crate::time::sleep(timeout_ns.unwrap_or(MOMENT_NS).min(MOMENT_NS));
        set.iter_mut().for_each(|one| one.revents = readiness(one.fd, one.events));
        return Ok(set.iter().filter(|one| one.revents != 0).count());
    }
    polled
}

/// The longest sleep between two looks at descriptors that cannot be polled.
const MOMENT_NS: i64 = 1_000_000;

/// The events at one descriptor now; 0 where the kernel does not report them.
#[inline]
pub fn readiness(fd: i32, events: i16) -> i16 {
    let mut set = [libc::pollfd { fd, events, revents: 0 }];
    let asked = kernel::poll(&mut set, Some(&mut zeroed()));
    let [one] = set;
    match asked {
        Ok(_) => one.revents,
        Err(Errno::EINVAL) => stream_readiness(fd, events),
        Err(_) => 0,
    }
}

/// [`readiness`] of a TCP socket where the kernel polls nothing at all: a limit of no descriptors (RLIMIT_NOFILE 0).
#[cold]
fn stream_readiness(fd: i32, events: i16) -> i16 {
    /// States of a stream whose other end has ended it; 7: closed.
    const ENDED: [u8; 5] = [6, 7, 8, 9, 11];
    let mut state = 0u8;
    if fd < 0 || kernel::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state).is_err() {
        return 0;
    }
    let mut found = 0;
    if ENDED.contains(&state) {
        found |= libc::POLLRDHUP | libc::POLLIN | libc::POLLRDNORM;
    }
    let mut unread = 0;
    if kernel::readable_bytes(fd, &mut unread).is_ok() && unread > 0 {
        found |= libc::POLLIN | libc::POLLRDNORM;
    }
    found |= libc::POLLOUT | libc::POLLWRNORM; // who sends finds out
    found & events | if state == 7 { libc::POLLHUP } else { 0 }
}

/// The events at one descriptor: [`poll`] for one. 0: nothing in time.
#[inline(never)]
pub fn poll_one(fd: i32, events: i16, timeout_ns: Option<i64>) -> Result<i16, Errno> {
    let mut set = [libc::pollfd { fd, events, revents: 0 }];
    poll(&mut set, timeout_ns)?;
    let [one] = set;
    Ok(one.revents)
}

/// A new socket.
pub fn socket(family: i32, kind: i32) -> Result<OwnedFd, Errno> {
    owned(kernel::socket(family, kind, 0))
}

/// `shutdown`.
#[inline]
pub fn shutdown(fd: i32, how: i32) -> Result<usize, Errno> {
    kernel::shutdown(fd, how)
}

/// Sends once, to the peer of the socket; how many bytes.
#[inline]
pub fn send(fd: i32, bytes: &[u8], flags: i32) -> Result<usize, Errno> {
    kernel::send(fd, bytes, flags)
}

/// Receives once; how many bytes.
#[inline]
pub fn receive(fd: i32, to: &mut [u8], flags: i32) -> Result<usize, Errno> {
    kernel::receive(fd, to, flags)
}

/// Sets an integer socket option.
pub fn setsockopt_int(fd: i32, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    kernel::setsockopt(fd, level, name, &value).map(drop)
}

/// Bytes that can be received.
pub fn received(fd: i32) -> Result<i32, Errno> {
    let mut bytes = 0i32;
    kernel::readable_bytes(fd, &mut bytes)?;
    Ok(bytes)
}

/// Bytes that were sent and are not acknowledged; of a pair of sockets, not received.
pub fn unsent(fd: i32) -> Result<i32, Errno> {
    let mut bytes = 0i32;
    kernel::unsent_bytes(fd, &mut bytes)?;
    Ok(bytes)
}

/// `sockatmark`; false where the kernel does not say.
pub fn is_at_mark(fd: i32) -> bool {
    let mut answer = 0i32;
    kernel::is_at_mark(fd, &mut answer).is_ok() && answer != 0
}

/// Which of the first `N` numbers are open, by one system call. `None`: the kernel does not say (a filter, a limit of
/// descriptors below `N`).
pub fn which_are_open<const N: usize>() -> Option<[bool; N]> {
    let mut looked =
        core::array::from_fn::<_, N, _>(|i| libc::pollfd { fd: i as i32, events: 0, revents: 0 });
    kernel::poll(&mut looked, Some(&mut zeroed())).ok()?;
    Some(looked.map(|entry| entry.revents & libc::POLLNVAL == 0))
}

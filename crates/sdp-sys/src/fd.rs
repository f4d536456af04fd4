//! Calls on descriptors, typed. Everything here goes straight to the kernel.

use crate::{errno::Errno, sys};

/// Closes a descriptor of ours. Errors have no consequence (the number is gone either way).
pub fn close(fd: i32) {
    // SAFETY: no pointers; closing one of our own descriptors.
    let _ = unsafe { sys!(libc::SYS_close, fd) };
}

/// Moves a fresh descriptor to the lowest free number at or above `min`, with close-on-exec set, and
/// closes the old number. Falls back to the old number when none is free there.
pub fn move_up(fd: i32, min: i32) -> i32 {
    // SAFETY: no pointers.
    match unsafe { sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, min) } {
        Ok(n) => {
            close(fd);
            n as i32
        }
        Err(_) => fd,
    }
}

/// An integer socket option.
pub fn getsockopt_int(fd: i32, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = 0i32;
    let mut len = 4u32;
    // SAFETY: value and len outlive the call and have the sizes given.
    unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len)? };
    Ok(value)
}

/// Cookie of the network namespace of a socket. Kernels before 5.14 tell none.
pub fn netns_cookie(fd: i32) -> Result<u64, Errno> {
    /// `SO_NETNS_COOKIE`
    const NETNS_COOKIE: i32 = 71;
    let mut cookie = 0u64;
    let mut len = 8u32;
    let (level, out) = (libc::SOL_SOCKET, &raw mut cookie);
    // SAFETY: cookie and len outlive the call and have the sizes given.
    unsafe { sys!(libc::SYS_getsockopt, fd, level, NETNS_COOKIE, out, &raw mut len)? };
    Ok(cookie)
}

/// Inode number of the file behind a descriptor.
pub fn inode(fd: i32) -> Result<u64, Errno> {
    // SAFETY: stat is plain data; zero is a valid value.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: st is valid for writing.
    unsafe { sys!(libc::SYS_fstat, fd, &raw mut st)? };
    Ok(st.st_ino)
}

/// Whether the descriptor only names a place (`O_PATH`).
pub fn is_path(fd: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFL, 0) }
        .is_ok_and(|flags| flags as i32 & libc::O_PATH != 0)
}

/// Whether the open file description has O_NONBLOCK set now. Asked of the kernel each time, because
/// another holder may have changed it.
pub fn is_nonblocking(fd: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFL, 0) }
        .is_ok_and(|flags| flags as i32 & libc::O_NONBLOCK != 0)
}

/// Which of the first `N` numbers are open, by one system call. `None`: the kernel does not say (a filter, a limit of
/// descriptors below `N`).
pub fn which_are_open<const N: usize>() -> Option<[bool; N]> {
    let mut looked =
        core::array::from_fn::<_, N, _>(|i| libc::pollfd { fd: i as i32, events: 0, revents: 0 });
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: N entries and a time that outlive the call.
    unsafe { sys!(libc::SYS_ppoll, looked.as_mut_ptr(), N, &raw const zero, 0, 8) }.ok()?;
    Some(looked.map(|entry| entry.revents & libc::POLLNVAL == 0))
}

//! Descriptor numbers: closed, duplicated, controlled, and used again for something new.

use libc::{c_char, c_int, c_uint, clockid_t, mode_t, sigset_t};
use sdp_socket::calls::{self, Call, Incompatible};

use super::{privilege, process};
use crate::{direct, errno, real};

/// A number that the kernel returned for something that is no socket.
#[inline(always)]
fn fresh(fd: c_int) -> c_int {
    if fd >= 0 {
        calls::new_descriptor(fd);
    }
    fd
}

/// Two of them.
#[inline(always)]
unsafe fn fresh_pair(result: c_int, fds: *const c_int) -> c_int {
    if result == 0 {
        // SAFETY: the kernel filled the program's array of two.
        unsafe {
            calls::new_descriptor(*fds);
            calls::new_descriptor(*fds.add(1));
        }
    }
    result
}

/// `new` names the same as `old`, if the call succeeded.
#[inline(always)]
pub(super) fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && (calls::is_tracked(old) || calls::is_tracked(new)) {
        note_duplicate(old, new);
    }
    new
}

#[cold]
#[inline(never)]
fn note_duplicate(old: c_int, new: c_int) {
    if calls::is_tracked(old) && old != new {
        calls::duplicated(old, new);
        // Named by its old number: in a vfork child the table does not learn the new one.
        if process::is_borrowed() {
            calls::fall_back(old, Incompatible::ForImage(new));
        } else if new <= libc::STDERR_FILENO {
            // stdio or the next image uses a descriptor that becomes standard input or output.
            calls::fall_back(old, Incompatible::StandardDescriptor);
        }
    } else if old != new {
        calls::new_descriptor(new);
    }
}

/// Whether a descriptor is open: asked only before a tracked one is replaced, and not in a sandbox.
fn is_open(fd: c_int) -> bool {
    sdp_sys::fd::descriptor_flags(fd).is_ok()
}

/// `dup2` and `dup3` after the arguments have been found good: the file that `new` names is closed
/// first.
#[cold]
#[inline(never)]
pub(super) fn replace(old: c_int, new: c_int, real: impl Fn() -> c_int) -> c_int {
    if old == new || !(privilege::is_sandboxed() || is_open(old)) {
        return real();
    }
    calls::replacing(new);
    let result = duplicated(old, real());
    calls::closed(new); // if it failed
    result
}

/// Whether an `fcntl` command returns a new number.
#[inline(always)]
pub(super) fn duplicates(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// `fcntl` on a tracked descriptor, or one that duplicates any.
///
/// # Safety
/// `arg` is as the command demands.
#[cold]
#[inline(never)]
pub(super) unsafe fn control(
    fd: c_int,
    command: c_int,
    arg: usize,
    real: impl Fn() -> c_int,
) -> c_int {
    if !calls::is_tracked(fd) {
        return fresh(real());
    }
    if let Call::Done(result) = calls::controlling(fd, command, arg) {
        return errno::from_result(result) as c_int;
    }
    let result = real();
    if duplicates(command) {
        return duplicated(fd, result);
    }
    let locks = matches!(
        command,
        libc::F_GETLK
            | libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_OFD_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
    );
    if result >= 0 && !locks {
        calls::controlled(fd, command, arg);
    }
    result
}

/// Not named by the libc bindings of every C library.
const CLOSE_RANGE_UNSHARE: c_int = 2;

/// `close_range`.
#[inline]
pub(super) fn close_many(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    real: impl Fn() -> c_int,
) -> c_int {
    if first > last {
        return real(); // refused
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        privilege::before_own_descriptors();
    }
    if !calls::involved() {
        return real();
    }
    answer!(calls::closing_range(first, last, flags), real())
}

/// `close` of a tracked descriptor, beside the other code that a fork child runs.
#[cold]
#[inline(never)]
#[unsafe(link_section = ".text.hot")]
unsafe fn close_tracked(fd: c_int) -> c_int {
    // SAFETY: the program's own call.
    let result = unsafe { answer!(calls::closing(fd), direct::close(fd)) };
    calls::closed(fd);
    result
}

hooks! {
    #[unsafe(link_section = ".text.hot")]
    fn close(fd: c_int) -> c_int {
        if !calls::is_tracked(fd) {
            return real::close(fd);
        }
        close_tracked(fd)
    }

    fn __close(fd: c_int) -> c_int {
        if !calls::is_tracked(fd) {
            return real::close(fd);
        }
        close_tracked(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        close_many(first, last, flags, move || real::close_range(first, last, flags))
    }

    fn closefrom(first: c_int) {
        if calls::involved() {
            let from = c_uint::try_from(first).unwrap_or(0);
            if let Call::Done(_) = calls::closing_range(from, c_uint::MAX, 0) {
                return;
            }
        }
        real::closefrom(first);
    }

    fn dup(fd: c_int) -> c_int {
        duplicated(fd, real::dup(fd))
    }

    fn dup2(old: c_int, new: c_int) -> c_int {
        if !calls::is_tracked(old) && !calls::is_tracked(new) {
            return real::dup2(old, new);
        }
        replace(old, new, move || real::dup2(old, new))
    }

    fn __dup2(old: c_int, new: c_int) -> c_int {
        if !calls::is_tracked(old) && !calls::is_tracked(new) {
            return real::dup2(old, new);
        }
        replace(old, new, move || real::dup2(old, new))
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        let tracked = calls::is_tracked(old) || calls::is_tracked(new);
        if !tracked || flags & !libc::O_CLOEXEC != 0 {
            return real::dup3(old, new, flags);
        }
        replace(old, new, move || real::dup3(old, new, flags))
    }

    fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
        if !calls::is_tracked(fd) && !duplicates(command) {
            return real::fcntl(fd, command, arg);
        }
        control(fd, command, arg, move || real::fcntl(fd, command, arg))
    }

    fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int {
        if !calls::is_tracked(fd) && !duplicates(command) {
            return real::fcntl64(fd, command, arg);
        }
        control(fd, command, arg, move || real::fcntl64(fd, command, arg))
    }

    fn __fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
        if !calls::is_tracked(fd) && !duplicates(command) {
            return real::fcntl(fd, command, arg);
        }
        control(fd, command, arg, move || real::fcntl(fd, command, arg))
    }

    fn open(path: *const c_char, flags: c_int, mode: usize) -> c_int {
        fresh(real::open(path, flags, mode))
    }

    fn __open(path: *const c_char, flags: c_int, mode: usize) -> c_int {
        fresh(real::open(path, flags, mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: usize) -> c_int {
        fresh(real::open64(path, flags, mode))
    }

    fn __open64(path: *const c_char, flags: c_int, mode: usize) -> c_int {
        fresh(real::open64(path, flags, mode))
    }

    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: usize) -> c_int {
        fresh(real::openat(dir, path, flags, mode))
    }

    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: usize) -> c_int {
        fresh(real::openat64(dir, path, flags, mode))
    }

    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        fresh(real::__open_2(path, flags))
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        fresh(real::__open64_2(path, flags))
    }

    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        fresh(real::__openat_2(dir, path, flags))
    }

    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        fresh(real::__openat64_2(dir, path, flags))
    }

    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        fresh(real::creat(path, mode))
    }

    fn creat64(path: *const c_char, mode: mode_t) -> c_int {
        fresh(real::creat64(path, mode))
    }

    fn pipe(fds: *mut c_int) -> c_int {
        fresh_pair(real::pipe(fds), fds)
    }

    fn __pipe(fds: *mut c_int) -> c_int {
        fresh_pair(real::pipe(fds), fds)
    }

    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int {
        fresh_pair(real::pipe2(fds, flags), fds)
    }

    fn eventfd(count: c_uint, flags: c_int) -> c_int {
        fresh(real::eventfd(count, flags))
    }

    fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int {
        fresh(real::timerfd_create(clock, flags))
    }

    /// With a descriptor given, changes that one and returns it.
    #[unsafe(link_section = ".text.open")]
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
        fresh(real::signalfd(fd, mask, flags))
    }

    fn inotify_init() -> c_int {
        fresh(real::inotify_init())
    }

    fn inotify_init1(flags: c_int) -> c_int {
        fresh(real::inotify_init1(flags))
    }

    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
        fresh(real::memfd_create(name, flags))
    }
}

/// POSIX asynchronous I/O reads and writes in threads of libc, which no hook sees. False, and
/// `errno`: it would miss the unread bytes of a lane.
#[inline]
unsafe fn asynchronous(job: *const libc::aiocb) -> bool {
    // SAFETY: null or the program's job.
    let is_whole = unsafe { job.as_ref() }.is_none_or(|job| {
        !calls::is_tracked(job.aio_fildes) || calls::fall_back(job.aio_fildes, Incompatible::Aio)
    });
    if !is_whole {
        errno::set(libc::EAGAIN);
    }
    is_whole
}

unsafe fn list(jobs: *const *mut libc::aiocb, n: c_int) -> bool {
    // SAFETY: the program's list of n jobs, null entries are skipped.
    jobs.is_null()
        || (0..usize::try_from(n).unwrap_or(0)).all(|i| unsafe { asynchronous(*jobs.add(i)) })
}

hooks! {
    fn aio_read(job: *mut libc::aiocb) -> c_int {
        if asynchronous(job) { real::aio_read(job) } else { -1 }
    }

    fn aio_read64(job: *mut libc::aiocb) -> c_int {
        if asynchronous(job) { real::aio_read64(job) } else { -1 }
    }

    fn aio_write(job: *mut libc::aiocb) -> c_int {
        if asynchronous(job) { real::aio_write(job) } else { -1 }
    }

    fn aio_write64(job: *mut libc::aiocb) -> c_int {
        if asynchronous(job) { real::aio_write64(job) } else { -1 }
    }

    fn lio_listio(
        mode: c_int, jobs: *const *mut libc::aiocb, n: c_int, event: *mut libc::sigevent,
    ) -> c_int {
        if list(jobs, n) { real::lio_listio(mode, jobs, n, event) } else { -1 }
    }

    fn lio_listio64(
        mode: c_int, jobs: *const *mut libc::aiocb, n: c_int, event: *mut libc::sigevent,
    ) -> c_int {
        if list(jobs, n) { real::lio_listio64(mode, jobs, n, event) } else { -1 }
    }
}

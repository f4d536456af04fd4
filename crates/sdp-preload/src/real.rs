//! The next definition of each hooked name: libc's, or another preloaded library's in between.
//!
//! Each name is a function here with the name's own signature. It jumps through a pointer that at
//! first leads to a resolver: that looks the name up behind this library, stores the address, and
//! makes the call. So no "initialised?" test is on the path, and a call that comes before the
//! constructor (another library's constructor, a `malloc` that reads a file) works. The constructor
//! resolves all names ([`bind_all`]), because a look-up is not safe in a signal handler.
//!
//! A name that the C library does not have answers `ENOSYS`, as the kernel would.
//!
//! Variadic functions: the arguments after the semicolon are machine words. For integers and
//! pointers the x86-64 and AArch64 Linux conventions pass these for `...`; the call itself is made
//! through a variadic type, as C would make it.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{
    FILE, aiocb, c_char, c_int, c_long, c_uint, c_ulong, clockid_t, epoll_event, fd_set, gid_t,
    iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd, pthread_t, sigset_t, size_t,
    sockaddr, socklen_t, ssize_t, termios, timespec, timeval, uid_t, winsize,
};

use crate::errno;
use sdp_sys::libcs;
use sdp_sys::names::{self, Behind};

/// The result of a missing function; `errno` is `ENOSYS`.
trait Absent {
    fn absent() -> Self;
}
impl Absent for c_int {
    fn absent() -> Self {
        -1
    }
}
impl Absent for isize {
    fn absent() -> Self {
        -1
    }
}
impl Absent for c_long {
    fn absent() -> Self {
        -1
    }
}
impl<T> Absent for *mut T {
    fn absent() -> Self {
        core::ptr::null_mut()
    }
}
impl Absent for () {
    fn absent() -> Self {}
}

/// Looks `name` up behind this library, for the trampolines that keep a pointer of their own.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    unsafe extern "C" fn missing() -> c_long {
        errno::set(libc::ENOSYS);
        -1
    }
    look_up(name, missing as *const () as *mut c_void)
}

/// Looks `name` up behind this library.
#[cold]
fn look_up(name: &CStr, missing: *mut c_void) -> *mut c_void {
    // RTLD_NEXT is relative to this library, which calls the loader's own function.
    // SAFETY: one of the loader's constants.
    let found = unsafe { libcs::symbol(libc::RTLD_NEXT, name) };
    if found.is_null() { missing } else { found }
}

/// Looks `name` up behind this library, of which most names are found without the loader.
#[inline(never)]
#[unsafe(link_section = ".text.open.start")]
fn bind_one(
    behind: &Behind,
    name: &CStr,
    hash: u32,
    missing: *mut c_void,
    next: &AtomicPtr<c_void>,
) {
    let found = behind.find(name, hash).unwrap_or_else(|| look_up(name, missing));
    next.store(found, Ordering::Release);
}

macro_rules! next {
    // A list with a function that resolves all of it.
    (all = $all:ident; $(fn $name:ident($($a:ident: $t:ty),*) -> $r:ty $(, ...($($v:ident: $vt:ty),+))?;)*) => {
        next! { $(fn $name($($a: $t),*) -> $r $(, ...($($v: $vt),+))?;)* }

        /// Resolves every name of libc. Not those of other libraries: to look for a name in vain costs
        /// an allocation, for the text of `dlerror`.
        #[inline(never)]
        #[unsafe(link_section = ".text.open.start")]
        pub(crate) fn $all() {
            let behind = Behind::this();
            libcs::install(&behind);
            $({
                const HASH: u32 = names::hash($name::NAME);
                let missing = $name::missing as *const () as *mut c_void;
                bind_one(&behind, $name::NAME, HASH, missing, &$name::NEXT);
            })*
        }
    };
    ($(fn $name:ident($($a:ident: $t:ty),*) -> $r:ty $(, ...($($v:ident: $vt:ty),+))?;)*) => {
        $(
            #[allow(non_snake_case, reason = "the name is libc's")]
            pub(crate) mod $name {
                use super::*;
                /// Where the name leads at the moment.
                #[unsafe(link_section = ".data.hot")]
                pub(crate) static NEXT: AtomicPtr<c_void> =
                    AtomicPtr::new(resolve as *const () as *mut c_void);

                unsafe extern "C" fn resolve($($a: $t,)* $($($v: $vt),+)?) -> $r {
                    bind();
                    // SAFETY: bound to the real function now, or to `missing`; same arguments.
                    unsafe { super::$name($($a,)* $($($v),+)?) }
                }

                pub(super) unsafe extern "C" fn missing($(_: $t,)* $($(_: $vt),+)?) -> $r {
                    errno::set(libc::ENOSYS);
                    <$r as Absent>::absent()
                }

                pub(super) const NAME: &CStr = match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };

                pub(crate) fn bind() {
                    let next = look_up(NAME, missing as *const () as *mut c_void);
                    NEXT.store(next, Ordering::Release);
                }
            }

            /// The next definition of the name.
            ///
            /// # Safety
            /// As the libc function of this name.
            #[allow(non_snake_case, reason = "the name is libc's")]
            #[inline(always)]
            pub(crate) unsafe fn $name($($a: $t,)* $($($v: $vt),+)?) -> $r {
                let next = $name::NEXT.load(Ordering::Acquire);
                next!(@call next, ($($a: $t),*) -> $r $(, ($($v),+))?)
            }
        )*
    };
    (@call $next:ident, ($($a:ident: $t:ty),*) -> $r:ty) => {{
        // SAFETY: the pointer leads to a function of this signature (see the list).
        let next: unsafe extern "C" fn($($t),*) -> $r = unsafe { core::mem::transmute($next) };
        // SAFETY: the caller's promise.
        unsafe { next($($a),*) }
    }};
    (@call $next:ident, ($($a:ident: $t:ty),*) -> $r:ty, ($($v:ident),+)) => {{
        // SAFETY: the pointer leads to a variadic function with these fixed parameters (see the list).
        let next: unsafe extern "C" fn($($t,)* ...) -> $r = unsafe { core::mem::transmute($next) };
        // SAFETY: the caller's promise.
        unsafe { next($($a,)* $($v),+) }
    }};
}

next! {
    all = bind_all;

    // Receive.
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t;
    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr,
        len: *mut socklen_t
    ) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int, addr: *mut sockaddr,
        len: *mut socklen_t
    ) -> ssize_t;
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(
        fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int;
    // Send.
    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr,
        len: socklen_t
    ) -> ssize_t;
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int;
    // Bulk.
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t;
    fn splice(
        input: c_int, off_in: *mut i64, out: c_int, off_out: *mut i64, n: size_t, flags: c_uint
    ) -> ssize_t;
    fn preadv2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    // Wait.
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int;
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn __ppoll_chk(
        fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int;
    fn select(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    fn pselect(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    fn epoll_pwait2(
        set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    // Sockets.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int;
    fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> c_int;
    fn sockatmark(fd: c_int) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong) -> c_int, ...(arg: usize);
    // Descriptors.
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn dup(fd: c_int) -> c_int;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int) -> c_int, ...(arg: usize);
    fn fcntl64(fd: c_int, command: c_int) -> c_int, ...(arg: usize);
    fn open(path: *const c_char, flags: c_int) -> c_int, ...(mode: usize);
    fn open64(path: *const c_char, flags: c_int) -> c_int, ...(mode: usize);
    fn openat(dir: c_int, path: *const c_char, flags: c_int) -> c_int, ...(mode: usize);
    fn openat64(dir: c_int, path: *const c_char, flags: c_int) -> c_int, ...(mode: usize);
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn creat(path: *const c_char, mode: mode_t) -> c_int;
    fn creat64(path: *const c_char, mode: mode_t) -> c_int;
    fn pipe(fds: *mut c_int) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn eventfd(count: c_uint, flags: c_int) -> c_int;
    fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    // Stdio.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn fileno(file: *mut FILE) -> c_int;
    fn fflush(file: *mut FILE) -> c_int;
    fn fclose(file: *mut FILE) -> c_int;
    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    fn backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> ();
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(
        fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void
    ) -> c_int;
    fn dprintf(fd: c_int, format: *const c_char) -> c_int;
    fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char) -> c_int;
    // Processes.
    fn fork() -> pid_t;
    fn _Fork() -> pid_t;
    fn __register_atfork(
        prepare: *const c_void, parent: *const c_void, child: *const c_void, object: *mut c_void
    ) -> c_int;
    fn clone(
        child: *const c_void, stack: *mut c_void, flags: c_int, arg: *mut c_void
    ) -> c_int, ...(ptid: usize, tls: usize, ctid: usize);
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvpe(
        file: *const c_char, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execveat(
        dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char,
        flags: c_int
    ) -> c_int;
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char
    ) -> c_int;
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char
    ) -> c_int;
    fn posix_spawn_file_actions_adddup2(
        actions: *mut libc::posix_spawn_file_actions_t, old: c_int, new: c_int
    ) -> c_int;
    fn daemon(nochdir: c_int, noclose: c_int) -> c_int;
    fn login_tty(fd: c_int) -> c_int;
    fn pthread_cancel(thread: pthread_t) -> c_int;
    fn forkpty(
        master: *mut c_int, name: *mut c_char, term: *const termios, size: *const winsize
    ) -> pid_t;
    fn _exit(status: c_int) -> ();
    fn _Exit(status: c_int) -> ();
    fn quick_exit(status: c_int) -> ();
    // Privilege.
    fn setuid(uid: uid_t) -> c_int;
    fn setreuid(ruid: uid_t, euid: uid_t) -> c_int;
    fn setresuid(ruid: uid_t, euid: uid_t, suid: uid_t) -> c_int;
    fn setgid(gid: gid_t) -> c_int;
    fn setregid(rgid: gid_t, egid: gid_t) -> c_int;
    fn setresgid(rgid: gid_t, egid: gid_t, sgid: gid_t) -> c_int;
    fn setgroups(n: size_t, list: *const gid_t) -> c_int;
    fn initgroups(user: *const c_char, group: gid_t) -> c_int;
    fn capset(header: *mut c_void, data: *const c_void) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
    fn prctl(option: c_int) -> c_int, ...(a: usize, b: usize, c: usize, d: usize);
    // Signals.
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int;
    // Escape hatches.
    fn syscall(
        number: c_long
    ) -> c_long, ...(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize);
    // Asynchronous i/o.
    fn aio_read(job: *mut aiocb) -> c_int;
    fn aio_read64(job: *mut aiocb) -> c_int;
    fn aio_write(job: *mut aiocb) -> c_int;
    fn aio_write64(job: *mut aiocb) -> c_int;
    fn lio_listio(
        mode: c_int, jobs: *const *mut aiocb, n: c_int, event: *mut libc::sigevent
    ) -> c_int;
    fn lio_listio64(
        mode: c_int, jobs: *const *mut aiocb, n: c_int, event: *mut libc::sigevent
    ) -> c_int;
}

next! {
    // liburing.
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int;
    fn io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, params: *mut c_void, buf: *mut c_void, size: size_t
    ) -> c_int;
}

//! What the hooks ask: one function per kind of call.
//!
//! Every function may be called for any descriptor, also one that is not ours, before the library's
//! constructor ran, from a signal handler and in a vfork child; it answers [`Call::Pass`] whenever
//! the program's call should simply be made. No function changes `errno`.
//!
//! # Safety
//! Functions with pointer arguments are `unsafe`: the pointers are the program's own, with the
//! validity that the corresponding libc call demands.

use libc::{c_int, epoll_event, iovec, msghdr, pollfd, sigset_t, sockaddr, socklen_t, timespec};

/// What a hook is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Make the program's call unchanged.
    Pass,
    /// Make the program's call unchanged, then report its result with [`finish`].
    Counted(Ticket),
    /// The call has been made: result, or negated error number.
    Done(isize),
}

/// Remembers a call on the kernel lane between [`Call::Counted`] and [`finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    conn: u32,
    generation: u32,
    receive: bool,
}

/// Whether the descriptor is more than a pass-through: a table load, nothing else.
#[inline(always)]
pub fn is_tracked(_fd: c_int) -> bool {
    false
}

/// Whether the process has anything to lose: a tracked descriptor, a hidden one or family memory, now
/// or ever. While false, the hooks of poll, exec and changes of identity do nothing of their own. A
/// load, nothing else; never false while a descriptor is tracked.
#[inline(always)]
pub fn involved() -> bool {
    true
}

/// `recv`, `read`, `readv`, `recvfrom` (with no address wanted, or on a connected stream).
///
/// # Safety
/// See the module.
pub unsafe fn recv(_fd: c_int, _iov: *const iovec, _count: usize, _flags: c_int) -> Call {
    Call::Pass
}

/// `recvmsg`: also sets `msg_namelen`, `msg_controllen` and `msg_flags`.
///
/// # Safety
/// See the module.
pub unsafe fn recvmsg(_fd: c_int, _msg: *mut msghdr, _flags: c_int) -> Call {
    Call::Pass
}

/// `send`, `write`, `writev`, `sendto`.
///
/// # Safety
/// See the module.
pub unsafe fn send(_fd: c_int, _iov: *const iovec, _count: usize, _flags: c_int) -> Call {
    Call::Pass
}

/// `sendmsg` on any descriptor: descriptors passed with SCM_RIGHTS leave their lanes first. Call it
/// for an untracked descriptor only when the message has control data.
///
/// # Safety
/// See the module.
pub unsafe fn sendmsg(_fd: c_int, _msg: *const msghdr, _flags: c_int) -> Call {
    Call::Pass
}

/// Reports the result of a call that was answered with [`Call::Counted`] (result or −1).
pub fn finish(_ticket: Ticket, _result: isize, _flags: c_int) {}

/// After a successful `recvmsg` that is not ours and carried control data: numbers that arrived with
/// SCM_RIGHTS are new descriptors.
///
/// # Safety
/// See the module.
pub unsafe fn received_descriptors(_msg: *const msghdr) {}

/// `sendfile` to `out`.
///
/// # Safety
/// See the module.
pub unsafe fn sendfile(_out: c_int, _input: c_int, _offset: *mut i64, _count: usize) -> Call {
    Call::Pass
}

/// `splice`, with a tracked descriptor at either end.
///
/// # Safety
/// See the module.
pub unsafe fn splice(
    _input: c_int,
    _off_in: *mut i64,
    _output: c_int,
    _off_out: *mut i64,
    _len: usize,
    _flags: u32,
) -> Call {
    Call::Pass
}

/// `shutdown`.
pub fn shutdown(_fd: c_int, _how: c_int) -> Call {
    Call::Pass
}

/// `ioctl` (FIONREAD, SIOCOUTQ, SIOCATMARK, FIOASYNC … on tracked descriptors).
///
/// # Safety
/// See the module.
pub unsafe fn ioctl(_fd: c_int, _request: libc::c_ulong, _arg: usize) -> Call {
    Call::Pass
}

/// `setsockopt`: options that the SDP lane cannot keep pin the connection to the kernel lane first.
///
/// # Safety
/// See the module.
pub unsafe fn setsockopt(
    _fd: c_int,
    _level: c_int,
    _name: c_int,
    _value: *const libc::c_void,
    _len: socklen_t,
) -> Call {
    Call::Pass
}

/// Why a program's own use of a descriptor keeps it on the kernel lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// `fdopen`: stdio reads and writes behind our back.
    Stdio,
    /// Duplicated onto descriptor 0, 1 or 2.
    StandardDescriptor,
    /// POSIX asynchronous I/O.
    Aio,
    /// `F_SETOWN`, `F_SETSIG`, `O_ASYNC`, FIOASYNC.
    SignalDriven,
}

/// Moves a connection to the kernel lane for good.
pub fn pin(_fd: c_int, _why: Pin) {}

/// After a successful `socket`.
pub fn opened(_fd: c_int, _domain: c_int, _kind: c_int, _protocol: c_int) {}
/// After a successful `listen`: the server rules are consulted.
pub fn listening(_fd: c_int) {}
/// After `connect` that succeeded or answered EINPROGRESS: the client rules are consulted.
///
/// # Safety
/// See the module.
pub unsafe fn connected(_fd: c_int, _addr: *const sockaddr, _len: socklen_t) {}
/// Before `accept`/`accept4`: the value to give to [`accepted`] (fork generation).
pub fn accepting(_listener: c_int) -> u32 {
    0
}
/// After a successful `accept`/`accept4`.
pub fn accepted(_listener: c_int, _fd: c_int, _generation: u32) {}
/// Before `close`: flush, DisConn, forget. `Done(-EBADF)` for a descriptor that we hide.
pub fn closing(_fd: c_int) -> Call {
    Call::Pass
}
/// `close_range` and `closefrom` (with `last` = `u32::MAX`). `Done` when it was carried out here,
/// around our hidden descriptors.
pub fn closing_range(_first: u32, _last: u32, _flags: c_int) -> Call {
    Call::Pass
}
/// After a successful `dup`, `F_DUPFD`: `new` names what `old` names.
pub fn duplicated(_old: c_int, _new: c_int) {}
/// Before `dup2`/`dup3` onto `new`: what `new` names is closed; a hidden descriptor moves away.
pub fn replacing(_old: c_int, _new: c_int) {}
/// A number that the kernel just returned for something that is not a socket: forget a stale entry.
/// A table load when there is none.
#[inline(always)]
pub fn new_descriptor(_fd: c_int) {}
/// Before `fcntl` on a tracked descriptor, any command: `Done(-EBADF)` for one that we hide. A
/// successful duplication is reported with [`duplicated`], anything else with [`controlled`].
pub fn controlling(_fd: c_int, _command: c_int, _arg: usize) -> Call {
    Call::Pass
}
/// After a successful `fcntl` that is neither duplication nor locking (F_SETFL, F_SETFD, F_SETOWN…).
pub fn controlled(_fd: c_int, _command: c_int, _arg: usize) {}

/// `poll`, `ppoll`: `timeout` null for ever. `Pass` when no descriptor in the set is on a lane.
///
/// # Safety
/// See the module.
pub unsafe fn poll(
    _fds: *mut pollfd,
    _count: usize,
    _timeout: *const timespec,
    _mask: *const sigset_t,
) -> Call {
    Call::Pass
}

/// `select`, `pselect`; leaves the remaining time to the hook.
///
/// # Safety
/// See the module.
pub unsafe fn select(
    _count: c_int,
    _read: *mut libc::fd_set,
    _write: *mut libc::fd_set,
    _except: *mut libc::fd_set,
    _timeout: *const timespec,
    _mask: *const sigset_t,
) -> Call {
    Call::Pass
}

/// After a successful `epoll_create`.
pub fn epoll_created(_set: c_int) {}
/// `epoll_ctl`.
///
/// # Safety
/// See the module.
pub unsafe fn epoll_ctl(_set: c_int, _op: c_int, _fd: c_int, _event: *mut epoll_event) -> Call {
    Call::Pass
}
/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`: `timeout` null for ever.
///
/// # Safety
/// See the module.
pub unsafe fn epoll_wait(
    _set: c_int,
    _events: *mut epoll_event,
    _max: c_int,
    _timeout: *const timespec,
    _mask: *const sigset_t,
) -> Call {
    Call::Pass
}

/// Before `fork` (not vfork): takes the locks that must not be copied in a locked state.
pub fn fork_prepare() {}
/// After `fork` in the parent; `child` is −1 when it failed.
pub fn fork_parent(_child: c_int) {}
/// After `fork` in the child.
pub fn fork_child() {}
/// Before any `exec` in a process that is not a vfork child: connections that the new image will
/// hold leave their lanes. Nothing is torn down: exec may fail.
pub fn executing() {}
/// Before a seccomp filter is installed, and before any change of privilege or root: leave all lanes.
pub fn leaving(_why: Leave) {}
/// Why the process leaves all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// A seccomp filter is about to be installed.
    Sandbox,
    /// Real or saved ids, groups, capabilities, root directory or user namespace change.
    Privilege,
    /// The network namespace changes.
    Namespace,
}
/// Before the process exits in an orderly way (`exit`, `_exit`, `quick_exit`).
pub fn exiting() {}
/// The library's constructor: remembers the process, reads tunables from `envp`.
///
/// # Safety
/// `argv` and `envp` are the null-terminated vectors that the loader hands to constructors.
pub unsafe fn constructed(_argc: c_int, _argv: *const *const u8, _envp: *const *const u8) {}

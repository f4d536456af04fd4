//! Hooks of processes: fork, exec, changes of privilege, exit, the constructor.

use libc::c_int;
use sdp_stats::Reason;

use crate::{
    lifecycle::{exec, inherit},
    process::{self, settings},
};

/// Before `fork` (not vfork): takes the locks that must not be copied in a locked state.
#[unsafe(link_section = ".text.hot.parent")]
pub fn fork_prepare() {
    inherit::fork_prepare();
}

/// Whether the calling thread has prepared a fork that is not over: in a child, before [`fork_child`].
pub fn is_forking() -> bool {
    inherit::is_forking()
}

/// After `fork` in the parent; `child` is −1 when it failed.
#[unsafe(link_section = ".text.hot.parent")]
pub fn fork_parent(child: c_int) {
    inherit::fork_parent(child);
}

/// After `fork` in the child, process `pid` if the caller has asked.
#[unsafe(link_section = ".text.hot")]
pub fn fork_child(pid: Option<c_int>) {
    inherit::fork_child(pid);
}

/// Before any `exec`: connections that the new image is to have leave their lanes. Nothing is torn down: exec may
/// fail.
pub fn executing() {
    exec::executing();
}

/// Before `posix_spawn`, likewise. False: a connection cannot be handed over, and the call is to fail.
pub fn spawning() -> bool {
    exec::spawning()
}

/// Before a seccomp filter is installed, and before any change of privilege or root: leave all lanes;
/// for good only for the filter. True: there was nothing to leave, and [`stays_after_all`] takes it back.
pub fn leaving(why: Leave) -> bool {
    match why {
        Leave::Sandbox => inherit::leaving(Reason::Sandbox, true),
        Leave::Privilege => inherit::leaving(Reason::Privilege, false),
        Leave::Namespace => inherit::leaving(Reason::Namespace, false),
        Leave::Descriptors => {
            inherit::parting();
            false
        }
    }
}

/// Whether children of this process are born into another process namespace from here on; whether they were
/// before.
pub fn children_elsewhere(yes: bool) -> bool {
    process::set_children_elsewhere(yes)
}

/// A thread of this process enters another network namespace: sockets are asked where they are from here on.
pub fn networks_differ() {
    process::note_networks();
}

/// The filter was not installed, and [`leaving`] can be taken back.
pub fn stays_after_all() {
    process::come_back();
}

/// Why the process leaves all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// A seccomp filter is about to be installed.
    Sandbox,
    /// Real or saved ids, groups, capabilities, root directory or user namespace change.
    Privilege,
    /// The network namespace changes.
    Namespace,
    /// Threads, or other processes on this memory, are about to have descriptors of their own, so
    /// that one table cannot say what a number names; or another process is about to share these
    /// descriptors, whose changes the library does not see here. For good.
    Descriptors,
}

/// Before the process exits in an orderly way (`exit`, `_exit`, `quick_exit`).
#[unsafe(link_section = ".text.hot")]
pub fn exiting() {
    inherit::exiting();
}

/// The answer to a program that asks for io_uring, whose use of descriptors no hook sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoUring {
    /// `ENOSYS` for programs that are known to fall back to calls that the hooks see, else passed
    /// on.
    Auto,
    /// `ENOSYS` for all.
    Deny,
    /// Passed on.
    Allow,
}

/// The tunable `io_uring`. Reads the rule file if that has not happened yet.
pub fn io_uring() -> IoUring {
    use sdp_config::tunables::IoUring as Setting;
    settings::load();
    match process::tunables().io_uring() {
        Setting::Auto => IoUring::Auto,
        Setting::Deny => IoUring::Deny,
        Setting::Allow => IoUring::Allow,
    }
}

/// The library's constructor in a program of a C library that it is not made for: every call passes.
pub fn stand_aside(pid: i32) {
    process::remember(pid);
    process::retire();
}

/// The library's constructor: remembers the process, whose id is `pid`, reads tunables from `envp`.
///
/// # Safety
/// `argv` and `envp` are the null-terminated vectors that the loader hands to constructors.
pub unsafe fn constructed(pid: i32, argc: c_int, argv: *const *const u8, envp: *const *const u8) {
    process::remember(pid);
    crate::lifecycle::hand_in();
    // SAFETY: the loader calls this once, in one thread; no other place names these words.
    let _ = unsafe { sdp_sys::tls::keep_sections(&crate::process::fork_page::FORK_PAGE.sections) };
    // SAFETY: the caller's.
    unsafe { settings::capture(argc, argv, envp) };
    crate::lifecycle::adopt::begin();
}

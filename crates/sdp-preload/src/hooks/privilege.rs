//! Changes of identity and of the process's surroundings.
//!
//! A real change of privilege ends the trust among the family members of a process, so it leaves
//! all lanes before. Real means: saved or real ids, groups, permitted capabilities, root directory,
//! namespaces. Toggling the effective id and back is none, and a call that will fail changes
//! nothing; the hook finds out both by the kernel's rules before the call. When the guess is wrong
//! the cost is speed.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_char, c_int, gid_t, size_t, uid_t};
use sdp_socket::calls::{self, Leave};
use sdp_sys::{kernel, sys};

use super::process;
use crate::real;

/// Set once the process is entering a sandbox: from then on no hook makes a system call that the
/// program did not ask for.
fn sandboxed() -> &'static AtomicBool {
    &calls::hooks().is_sandboxed
}

pub(super) fn is_sandboxed() -> bool {
    sandboxed().load(Ordering::Relaxed)
}

/// Around the installation of a seccomp filter. `real` makes it and returns −1 when it failed.
pub(super) fn enter_sandbox<T: Copy + PartialEq>(failed: T, real: impl Fn() -> T) -> T {
    let may_be_borrowed = calls::involved() || sdp_sys::pid::may_be_borrowed();
    if is_sandboxed() || may_be_borrowed && process::is_borrowed() {
        return real();
    }
    let can_come_back = calls::leaving(Leave::Sandbox);
    sandboxed().store(true, Ordering::Relaxed);
    sdp_sys::section::set_deferring(false);
    let result = real();
    if result == failed {
        sandboxed().store(false, Ordering::Relaxed);
        sdp_sys::section::set_deferring(true);
        if can_come_back {
            calls::stays_after_all();
        }
    }
    result
}

/// Whether looking at the process's identity is allowed, and its state ours to change.
fn is_ours() -> bool {
    !is_sandboxed() && !process::is_borrowed()
}

/// [`is_ours`], and worth anything.
fn matters() -> bool {
    calls::involved() && is_ours()
}

const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SYS_CHROOT: u32 = 18;
const CAP_SYS_ADMIN: u32 = 21;
/// `_LINUX_CAPABILITY_VERSION_3`, and the older form with 32 capabilities.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
const CAPABILITY_VERSION_1: u32 = 0x1998_0330;

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The calling thread's capabilities: low and high 32.
fn capabilities() -> [CapabilityData; 2] {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: both are valid for writing and have the sizes that version 3 demands.
    let _ = unsafe { sys!(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    data
}

fn may(capability: u32) -> bool {
    capabilities()[0].effective & (1 << capability) != 0
}

/// Real, effective and saved id.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ids {
    real: u32,
    effective: u32,
    saved: u32,
}

/// "Leave it as it is" in the calls that take several ids.
const KEEP: u32 = u32::MAX;

impl Ids {
    fn current(call: libc::c_long) -> Option<Self> {
        let (mut real, mut effective, mut saved) = (0u32, 0u32, 0u32);
        // SAFETY: three words to write to.
        unsafe { sys!(call, &raw mut real, &raw mut effective, &raw mut saved) }.ok()?;
        Some(Self { real, effective, saved })
    }

    fn has(self, id: u32) -> bool {
        id == KEEP || id == self.real || id == self.effective || id == self.saved
    }

    /// After `setuid`, `setgid`: without the capability only the effective id changes.
    fn set(self, id: u32, capable: bool) -> Self {
        if capable { Self { real: id, effective: id, saved: id } } else { self }
    }

    /// After `setreuid`, `setregid`.
    fn set_two(self, real: u32, effective: u32, capable: bool) -> Self {
        let real_allowed = real == KEEP || real == self.real || real == self.effective;
        let allowed = capable || (real_allowed && self.has(effective));
        if !allowed {
            return self;
        }
        let new_effective = if effective == KEEP { self.effective } else { effective };
        let moves_saved = real != KEEP || (effective != KEEP && effective != self.real);
        Self {
            real: if real == KEEP { self.real } else { real },
            effective: new_effective,
            saved: if moves_saved { new_effective } else { self.saved },
        }
    }

    /// After `setresuid`, `setresgid`.
    fn set_three(self, real: u32, effective: u32, saved: u32, capable: bool) -> Self {
        let allowed = capable || (self.has(real) && self.has(effective) && self.has(saved));
        if !allowed {
            return self;
        }
        let keep = |new: u32, old: u32| if new == KEEP { old } else { new };
        Self {
            real: keep(real, self.real),
            effective: keep(effective, self.effective),
            saved: keep(saved, self.saved),
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    User,
    Group,
}

/// Leaves all lanes if the call will change real or saved ids.
fn before(kind: Kind, change: impl Fn(Ids, bool) -> Ids) {
    if !matters() {
        return;
    }
    let (call, capability) = match kind {
        Kind::User => (libc::SYS_getresuid, CAP_SETUID),
        Kind::Group => (libc::SYS_getresgid, CAP_SETGID),
    };
    let is_same = Ids::current(call).is_some_and(|now| {
        let then = change(now, may(capability));
        (then.real, then.saved) == (now.real, now.saved)
    });
    if !is_same {
        calls::leaving(Leave::Privilege);
    }
}

/// `setuid`, also when made as a raw system call.
pub(super) fn before_setuid(id: uid_t) {
    before(Kind::User, |ids, capable| ids.set(id, capable));
}
/// `setreuid`.
pub(super) fn before_setreuid(real: uid_t, effective: uid_t) {
    before(Kind::User, |ids, capable| ids.set_two(real, effective, capable));
}
/// `setresuid`.
pub(super) fn before_setresuid(real: uid_t, effective: uid_t, saved: uid_t) {
    before(Kind::User, |ids, capable| ids.set_three(real, effective, saved, capable));
}
/// `setgid`.
pub(super) fn before_setgid(id: gid_t) {
    before(Kind::Group, |ids, capable| ids.set(id, capable));
}
/// `setregid`.
pub(super) fn before_setregid(real: gid_t, effective: gid_t) {
    before(Kind::Group, |ids, capable| ids.set_two(real, effective, capable));
}
/// `setresgid`.
pub(super) fn before_setresgid(real: gid_t, effective: gid_t, saved: gid_t) {
    before(Kind::Group, |ids, capable| ids.set_three(real, effective, saved, capable));
}

/// Longest list of groups that is compared; a longer one counts as a change.
const GROUPS: usize = 64;

/// `setgroups`: setting the groups that are set already is no change.
///
/// # Safety
/// `list` has `n` entries.
pub(super) unsafe fn before_setgroups(n: size_t, list: *const gid_t) {
    if !matters() || !may(CAP_SETGID) {
        return;
    }
    let mut now = [0 as gid_t; GROUPS];
    let held = kernel::getgroups(&mut now);
    let same = held.is_ok_and(|held| held == n)
        && (n == 0 || !list.is_null())
        // SAFETY: n ≤ GROUPS entries, the caller's promise.
        && now.iter().take(n).enumerate().all(|(i, g)| unsafe { *list.add(i) } == *g);
    if !same {
        calls::leaving(Leave::Privilege);
    }
}

/// `capset`: only the permitted set counts.
///
/// # Safety
/// As for `capset`.
pub(super) unsafe fn before_capset(header: *const c_void, data: *const c_void) {
    if !matters() || header.is_null() || data.is_null() {
        return;
    }
    // SAFETY: the program's header.
    let version = unsafe { header.cast::<CapabilityHeader>().read_unaligned() }.version;
    let words = if version == CAPABILITY_VERSION_1 { 1 } else { 2 };
    let now = capabilities();
    let data = data.cast::<CapabilityData>();
    let same = now.iter().enumerate().all(|(i, now)| {
        let wanted = if i < words {
            // SAFETY: the version says how many entries there are.
            unsafe { data.add(i).read_unaligned() }.permitted
        } else {
            0
        };
        wanted == now.permitted
    });
    if !same {
        calls::leaving(Leave::Privilege);
    }
}

/// `chroot`.
pub(super) fn before_chroot() {
    // The new root may have no /proc to ask.
    sdp_sys::filter::is_there();
    if matters() && may(CAP_SYS_CHROOT) {
        calls::leaving(Leave::Privilege);
    }
}

/// Before the calling thread gets descriptors of its own, which one table cannot tell apart: the
/// process leaves its lanes for good. Nothing changes for a process with one thread.
pub(super) fn before_own_descriptors() {
    if !is_sandboxed()
        && !sdp_sys::pid::is_single_threaded()
        && !process::is_borrowed()
        && sdp_sys::threads::has_others()
    {
        calls::leaving(Leave::Descriptors);
    }
}

/// `unshare`.
pub(super) fn before_unshare(flags: c_int) {
    let may_move = || flags & libc::CLONE_NEWUSER != 0 || may(CAP_SYS_ADMIN);
    if flags & libc::CLONE_NEWPID != 0 && is_ours() && may_move() {
        calls::children_elsewhere(true);
    }
    if flags & libc::CLONE_NEWNET != 0 && is_ours() {
        calls::networks_differ();
    }
    if flags & libc::CLONE_FILES != 0 {
        before_own_descriptors();
    }
    if flags & (libc::CLONE_NEWUSER | libc::CLONE_NEWNET) == 0 || !matters() {
        return;
    }
    if flags & libc::CLONE_NEWUSER != 0 {
        calls::leaving(Leave::Privilege);
    } else if may(CAP_SYS_ADMIN) {
        calls::leaving(Leave::Namespace);
    }
}

/// `setns`: `kind` 0 takes any kind of namespace that the descriptor `fd` names.
pub(super) fn before_setns(fd: c_int, kind: c_int) {
    let named = || kernel::namespace_kind(fd);
    let is_process =
        || kind & libc::CLONE_NEWPID != 0 || named() == Ok(libc::CLONE_NEWPID as usize);
    // Also before the first socket: the namespace in which later children are born outlives it.
    if (kind == 0 || kind & libc::CLONE_NEWPID != 0)
        && is_ours()
        && may(CAP_SYS_ADMIN)
        && is_process()
    {
        calls::children_elsewhere(true);
    }
    if (kind == 0 || kind & libc::CLONE_NEWNET != 0) && is_ours() {
        calls::networks_differ();
    }
    let relevant = kind == 0 || kind & (libc::CLONE_NEWUSER | libc::CLONE_NEWNET) != 0;
    if !relevant || !matters() {
        return;
    }
    if kind == 0 || kind & libc::CLONE_NEWUSER != 0 {
        calls::leaving(Leave::Privilege);
    } else if may(CAP_SYS_ADMIN) {
        calls::leaving(Leave::Namespace);
    }
}

hooks! {
    fn setuid(uid: uid_t) -> c_int {
        before_setuid(uid);
        real::setuid(uid)
    }

    fn setreuid(ruid: uid_t, euid: uid_t) -> c_int {
        before_setreuid(ruid, euid);
        real::setreuid(ruid, euid)
    }

    fn setresuid(ruid: uid_t, euid: uid_t, suid: uid_t) -> c_int {
        before_setresuid(ruid, euid, suid);
        real::setresuid(ruid, euid, suid)
    }

    fn setgid(gid: gid_t) -> c_int {
        before_setgid(gid);
        real::setgid(gid)
    }

    fn setregid(rgid: gid_t, egid: gid_t) -> c_int {
        before_setregid(rgid, egid);
        real::setregid(rgid, egid)
    }

    fn setresgid(rgid: gid_t, egid: gid_t, sgid: gid_t) -> c_int {
        before_setresgid(rgid, egid, sgid);
        real::setresgid(rgid, egid, sgid)
    }

    fn setgroups(n: size_t, list: *const gid_t) -> c_int {
        before_setgroups(n, list);
        real::setgroups(n, list)
    }

    /// libc finds the groups and sets them inside; which ones is not known before.
    fn initgroups(user: *const c_char, group: gid_t) -> c_int {
        if matters() && may(CAP_SETGID) {
            calls::leaving(Leave::Privilege);
        }
        real::initgroups(user, group)
    }

    fn capset(header: *mut c_void, data: *const c_void) -> c_int {
        before_capset(header, data);
        real::capset(header, data)
    }

    fn chroot(path: *const c_char) -> c_int {
        before_chroot();
        real::chroot(path)
    }

    fn unshare(flags: c_int) -> c_int {
        before_unshare(flags);
        real::unshare(flags)
    }

    fn setns(fd: c_int, kind: c_int) -> c_int {
        before_setns(fd, kind);
        real::setns(fd, kind)
    }
}

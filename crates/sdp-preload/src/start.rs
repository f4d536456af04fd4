//! The library's constructor and destructor.
//!
//! Entered in `.init_array` and `.fini_array` by hand: libc hands the argument vectors to
//! constructors, and no run-time of a language comes along. The constructor resolves the real
//! functions and remembers the process; configuration and rules wait for the first socket.

use core::ffi::CStr;
use libc::{c_char, c_int};
use sdp_socket::{calls, libc_calls};
use sdp_sys::pid;

use crate::hooks::{bind_trampolines, drop_deepbind, ending, own};
use crate::{direct, errno, image, real};

/// Environment that the hooks themselves obey. An unusable value leaves the default.
const DLOPEN_DEEPBIND: &CStr = c"SDP_DLOPEN_DEEPBIND=";

/// Most environment entries that are looked at.
const ENTRIES: usize = 1 << 16;

/// The text behind `prefix` in `entry`, if it starts with it.
fn value<'a>(entry: &'a CStr, prefix: &CStr) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(prefix.to_bytes())
}

unsafe fn read_environment(envp: *const *const c_char) {
    if envp.is_null() {
        return;
    }
    for i in 0..ENTRIES {
        // SAFETY: the loader's vector, read up to its null.
        let entry = unsafe { *envp.add(i) };
        if entry.is_null() {
            return;
        }
        // SAFETY: entries are null-terminated strings.
        let entry = unsafe { CStr::from_ptr(entry) };
        if value(entry, DLOPEN_DEEPBIND) == Some(b"drop") {
            drop_deepbind();
        }
        #[cfg(feature = "fake-verbs")]
        sdp_fake_verbs::heed(entry);
    }
}

unsafe extern "C" fn ppoll(
    fds: *mut libc::pollfd,
    n: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { real::ppoll(fds, n, timeout, mask) }
}

unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { real::epoll_pwait(set, events, max, timeout, mask) }
}

unsafe extern "C" fn pselect(
    n: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { real::pselect(n, read, write, except, timeout, mask) }
}

unsafe extern "C" fn construct(
    argc: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) {
    let before = errno::get();
    let process = own();
    real::bind_all();
    bind_trampolines();
    if !pid::ask_libc() {
        // Another C library than glibc: structures have other forms, and its calls need not come by here.
        calls::stand_aside(process);
        return errno::set(before);
    }
    direct::install();
    libc_calls::install(ppoll, epoll_pwait, pselect, image::exchange);
    // SAFETY: the loader's vectors.
    unsafe {
        read_environment(envp);
        calls::constructed(process, argc, argv.cast(), envp.cast());
    }
    errno::set(before);
}

/// Runs after the program's exit handlers and destructors, when no more use of a socket is to come.
unsafe extern "C" fn destruct() {
    ending();
}

/// The loader calls it once, with the program's vectors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) =
    construct;

/// `exit` calls it last.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: unsafe extern "C" fn() = destruct;

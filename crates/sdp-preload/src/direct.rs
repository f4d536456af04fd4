//! The commonest calls made by ourselves, where libc would do nothing else.
//!
//! A fork child that answers one message and ends makes four calls of libc, and for these the
//! kernel maps pages of libc that the child needs for nothing else. In a process with a single
//! thread `read` and its like are the bare system call: libc looks for a cancellation only where
//! there could be another thread, or where the only one cancelled itself, which it notes as if
//! there were (and so does the hook of `pthread_cancel`). So the hooks here make the kernel's calls
//! for a connection themselves. Another preloaded library's function is called all the same: this
//! library must not leave out what that one does beside the call. Descriptors that are not tracked
//! go to libc, which takes fewer instructions than to ask first.

use core::{
    ffi::c_void,
    ops::Range,
    ptr::from_mut,
    sync::atomic::{AtomicU32, Ordering},
};
use libc::{c_int, dl_phdr_info, size_t, ssize_t};
use sdp_sys::{names, pid::is_single_threaded, sys};

use crate::{errno, real};

/// Which of the functions are libc's own: bits, by their places in the list below.
#[unsafe(link_section = ".bss.hot")]
static LIBCS: AtomicU32 = AtomicU32::new(0);

macro_rules! direct {
    ($($place:literal: fn $name:ident($($a:ident: $t:ty),*) -> $r:ty { $number:expr $(, $more:expr)* })*) => {
        $(
            /// As the function of this name in [`real`].
            ///
            /// # Safety
            /// As the libc function of this name.
            #[inline(always)]
            pub(crate) unsafe fn $name($($a: $t),*) -> $r {
                if LIBCS.load(Ordering::Relaxed) & 1 << $place == 0 || !is_single_threaded() {
                    // SAFETY: the caller's promise.
                    return unsafe { real::$name($($a),*) };
                }
                // SAFETY: the program's arguments, which the kernel checks.
                match unsafe { sys!($number, $($a),* $(, $more)*) } {
                    Ok(result) => result as $r,
                    Err(error) => errno::from_result(-(error.0 as isize)) as $r,
                }
            }
        )*

        /// Notes which functions are libc's. Once, after the pointers to them have been bound.
        pub(crate) fn install() {
            let libc = libc_segment();
            let mut found = 0;
            $(
                if libc.contains(&(real::$name::NEXT.load(Ordering::Acquire) as usize)) {
                    found |= 1 << $place;
                }
            )*
            LIBCS.store(found, Ordering::Relaxed);
        }
    };
}

direct! {
    0: fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t { libc::SYS_read }
    1: fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t { libc::SYS_write }
    2: fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t { libc::SYS_recvfrom, 0, 0 }
    3: fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t { libc::SYS_sendto, 0, 0 }
    4: fn close(fd: c_int) -> c_int { libc::SYS_close }
}

/// The addresses of libc's code; empty if it cannot be found.
fn libc_segment() -> Range<usize> {
    // A name of libc's that no library has a reason to interpose lies in libc's code.
    let mut search = Search { inside: real::find(c"gnu_get_libc_version") as usize, found: 0..0 };
    // SAFETY: the loader calls the function, in this thread, for each object in turn, with the pointer to `search`.
    unsafe { libc::dl_iterate_phdr(Some(look), from_mut(&mut search).cast()) };
    search.found
}

/// The segment with an address in it.
struct Search {
    inside: usize,
    found: Range<usize>,
}

/// Looks for it in `object`.
unsafe extern "C" fn look(object: *mut dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object, and the caller's variable, for the length of the call.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    for segment in names::segments(object) {
        let begin = object.dlpi_addr.wrapping_add(segment.p_vaddr) as usize;
        let addresses = begin..begin.saturating_add(segment.p_memsz as usize);
        if segment.p_type == libc::PT_LOAD
            && segment.p_flags & libc::PF_X != 0
            && addresses.contains(&search.inside)
        {
            search.found = addresses;
            return 1;
        }
    }
    0
}

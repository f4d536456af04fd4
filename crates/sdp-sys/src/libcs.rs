//! Functions of the C library that this library calls by their addresses, not by their names.
//!
//! Two reasons. A name belongs to the first library that has it: a program may run with a clock that
//! stands still (libfaketime), or with a `dlsym` that counts, and neither may decide how long a wait
//! of ours is. And a name that is linked has a version: glibc 2.34 gave many of them a new one, and
//! a loader that misses a version starts no program at all. So they are looked up in the tables of
//! the C library's own files ([`crate::names`]). Why: docs/decisions/0058.
//!
//! An address that was not found is null, and each function says what it does then. Functions that are
//! called often lead to a system call of our own until they are known.

use core::{
    ffi::{CStr, c_char, c_int, c_ulong, c_void},
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    kernel,
    names::{Behind, hash},
};

macro_rules! note {
    ($behind:ident, $name:ident, $address:ident) => {{
        const NAME: &CStr =
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
        const HASH: u32 = hash(NAME);
        if let Some(at) = $behind.own(NAME, HASH) {
            $address.store(at, Ordering::Release);
        }
    }};
}

macro_rules! own {
    ([$($always:ident: $place:ident, $fallback:ident, fn($($a:ident: $given:ty),*) -> $answer:ty;)*]
     $($(#[$meta:meta])* $name:ident: $address:ident, fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[unsafe(link_section = ".bss.hot")]
            static $address: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

            $(#[$meta])*
            #[inline(always)]
            pub(crate) fn $name() -> Option<unsafe extern "C" fn($($argument),*) $(-> $result)?> {
                let at = $address.load(Ordering::Relaxed);
                if at.is_null() {
                    return None;
                }
                // SAFETY: the C library's function of this name, whose signature is public.
                Some(unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(at)
                })
            }
        )*

        $(
            #[unsafe(link_section = ".data.hot")]
            static $place: AtomicPtr<c_void> = AtomicPtr::new($fallback as *mut c_void);

            #[inline(always)]
            pub(crate) unsafe fn $always($($a: $given),*) -> $answer {
                let at = $place.load(Ordering::Relaxed);
                // SAFETY: the C library's function of this name, whose signature is public, or the one in
                // its place.
                let call = unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($given),*) -> $answer>(at)
                };
                // SAFETY: the caller's.
                unsafe { call($($a),*) }
            }
        )*

        /// Notes the addresses. The constructor does, and a call that needs an address before.
        pub fn install(behind: &Behind) {
            $(note!(behind, $always, $place);)*
            $(note!(behind, $name, $address);)*
        }
    };
}

own! {
    [
        clock_gettime: CLOCK_GETTIME, read_clock, fn(clock: libc::clockid_t, to: *mut libc::timespec) -> c_int;
        sched_getcpu: SCHED_GETCPU, no_cpu, fn() -> c_int;
    ]
    getauxval: GETAUXVAL, fn(c_ulong) -> c_ulong;
    dlsym: DLSYM, fn(*mut c_void, *const c_char) -> *mut c_void;
    dladdr: DLADDR, fn(*const c_void, *mut libc::Dl_info) -> c_int;
    dlclose: DLCLOSE, fn(*mut c_void) -> c_int;
    dlerror: DLERROR, fn() -> *mut c_char;
    _pthread_cleanup_push: CLEANUP_PUSH, fn(*mut c_void, extern "C" fn(*mut c_void), *mut c_void);
    _pthread_cleanup_pop: CLEANUP_POP, fn(*mut c_void, c_int);
}

unsafe extern "C" fn read_clock(clock: libc::clockid_t, to: *mut libc::timespec) -> c_int {
    // SAFETY: the caller's time, writable.
    kernel::clock(clock, unsafe { &mut *to }).map_or(-1, |_| 0)
}

unsafe extern "C" fn no_cpu() -> c_int {
    -1
}

/// An address in the C library's file, or in this one before that is known.
pub(crate) fn place() -> usize {
    CLOCK_GETTIME.load(Ordering::Relaxed).addr()
}

/// [`install`], before the constructor ran: a call of another library's constructor.
#[cold]
fn look_for_all() {
    install(&Behind::this());
}

/// A name in the libraries that `handle` stands for (`RTLD_NEXT`: those behind this one); null where
/// there is none, or no `dlsym`. The program does not find that failure in its own `dlerror`.
///
/// # Safety
/// The handle is `dlopen`'s, or one of the loader's constants.
pub unsafe fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    if dlsym().is_none() {
        look_for_all();
    }
    let Some(look) = dlsym() else { return core::ptr::null_mut() };
    // SAFETY: the caller's handle and a null-terminated name.
    let found = unsafe { look(handle, name.as_ptr()) };
    if found.is_null()
        && let Some(forget) = dlerror()
    {
        // SAFETY: no arguments.
        unsafe { forget() };
    }
    found
}

/// A value that the kernel gave the process when it began; 0: none of that kind.
pub(crate) fn auxiliary(kind: c_ulong) -> c_ulong {
    if getauxval().is_none() {
        look_for_all();
    }
    // SAFETY: no preconditions.
    getauxval().map_or(0, |get| unsafe { get(kind) })
}

/// The object that an address lies in. `None`: none.
pub fn object_at(address: usize) -> Option<libc::Dl_info> {
    let mut object: libc::Dl_info = kernel::zeroed();
    // SAFETY: any address may be asked about; the structure is writable.
    (unsafe { dladdr()?(address as *const c_void, &raw mut object) } != 0).then_some(object)
}

/// Gives a handle back.
///
/// # Safety
/// `dlopen` returned it, and it is not used any more.
pub unsafe fn close(handle: *mut c_void) {
    if let Some(close) = dlclose() {
        // SAFETY: the caller's.
        unsafe { close(handle) };
    }
}

/// Has a function called when this frame is left by cancellation or by a jump. False: the C library
/// has no such function, and nothing is noted.
///
/// # Safety
/// `registration` has the room of `struct _pthread_cleanup_buffer`, stays where it is until it is
/// given to [`cleanup_pop`], and `routine` may be called with `argument` until then.
pub unsafe fn cleanup_push(
    registration: *mut c_void,
    routine: extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> bool {
    let Some(push) = _pthread_cleanup_push() else { return false };
    // SAFETY: the caller's.
    unsafe { push(registration, routine, argument) };
    true
}

/// Takes the last one of [`cleanup_push`] back.
///
/// # Safety
/// It was registered in this frame, and is the last one.
pub unsafe fn cleanup_pop(registration: *mut c_void) {
    if let Some(pop) = _pthread_cleanup_pop() {
        // SAFETY: the caller's.
        unsafe { pop(registration, 0) };
    }
}

/// CPU on which the calling thread runs; negative: unknown.
#[inline]
pub fn cpu() -> c_int {
    // SAFETY: no arguments: reads the thread's rseq area or the vDSO.
    unsafe { sched_getcpu() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_c_librarys() {
        look_for_all();
        let home = |at: *const c_void| object_at(at.addr()).unwrap().dli_fbase;
        let libc = home(libc::getpid as *const c_void);
        for at in [&CLOCK_GETTIME, &SCHED_GETCPU, &GETAUXVAL, &DLSYM, &CLEANUP_PUSH] {
            assert_eq!(home(at.load(Ordering::Relaxed)), libc);
        }
        // SAFETY: `RTLD_DEFAULT`.
        let nothing = unsafe { symbol(libc::RTLD_DEFAULT, c"a name that nothing has") };
        assert!(nothing.is_null());
        assert!(cpu() >= 0);
    }
}

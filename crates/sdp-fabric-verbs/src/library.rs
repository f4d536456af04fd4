//! libibverbs, opened at the first use.

use core::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int, c_void},
    mem::MaybeUninit,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    Error,
    abi::verbs::{
        AsyncEvent, CompChannel, Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpInitAttr, Srq,
        SrqInitAttr,
    },
};

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The library's functions that are used.
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl Library {
            /// Names of all functions, for tests.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            fn find(handle: *mut c_void) -> Option<Self> {
                Some(Self {
                    $($name: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(
                            concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                        // SAFETY: an open library.
                        let at = unsafe { sdp_sys::libcs::symbol(handle, NAME) };
                        if at.is_null() {
                            return None;
                        }
                        // SAFETY: the library exports it with this signature (its stable interface).
                        unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $answer)?>(at) }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device);
    ibv_get_device_guid: fn(*mut Device) -> u64;
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_is_fork_initialized: fn() -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_reg_mr_iova: fn(*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, u32);
    ibv_create_srq: fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    ibv_destroy_srq: fn(*mut Srq) -> c_int;
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut AsyncEvent);
    ibv_get_device_name: fn(*mut Device) -> *const c_char;
}

impl core::fmt::Debug for Library {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Library")
    }
}

const NEW: u32 = 0;
const OPENING: u32 = 1;
const OPEN: u32 = 2;
const MISSING: u32 = 3;

struct Once {
    state: AtomicU32,
    library: UnsafeCell<MaybeUninit<Library>>,
}

// SAFETY: `library` is written once, by the thread that made `state` OPENING, before it becomes
// OPEN.
unsafe impl Sync for Once {}

static ONCE: Once =
    Once { state: AtomicU32::new(NEW), library: UnsafeCell::new(MaybeUninit::uninit()) };

/// The library's name.
const NAME: &CStr = c"libibverbs.so.1";

/// The library, opened by the first call of the process. Slow: see the head of the crate.
///
/// # Errors
/// [`Error::NoDevice`]: it is not installed, or another thread is opening it just now (ask again).
pub fn library() -> Result<&'static Library, Error> {
    #[cfg(feature = "stand-in")]
    if let Some(stand_in) = crate::stand_in::installed() {
        return Ok(&stand_in.library);
    }
    match ONCE.state.compare_exchange(NEW, OPENING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: a name that ends with NUL. The handle is never closed: providers stay loaded.
            let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            let found = if handle.is_null() { None } else { Library::find(handle) };
            let state = match found {
                Some(library) => {
                    // SAFETY: this thread made the state OPENING; no thread reads before OPEN.
                    unsafe { (*ONCE.library.get()).write(library) };
                    OPEN
                }
                None => MISSING,
            };
            ONCE.state.store(state, Ordering::Release);
            if state == OPEN { opened() } else { Err(Error::NoDevice) }
        }
        Err(OPEN) => opened(),
        Err(_) => Err(Error::NoDevice),
    }
}

fn opened() -> Result<&'static Library, Error> {
    // SAFETY: OPEN was seen with Acquire, and no thread writes afterwards.
    Ok(unsafe { (*ONCE.library.get()).assume_init_ref() })
}

//! A process's own objects: structures that libibverbs hands out, and descriptors that become
//! readable.

use core::ptr::NonNull;

use sdp_fabric_verbs::abi::verbs as abi;
use sdp_sys::{Errno, fd, sys};

use crate::state::own_pid;

/// `struct ibv_device`.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) abi: abi::Device,
    pub(crate) index: usize,
}

/// `struct ibv_context`.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) abi: abi::Context,
    pub(crate) index: usize,
    pub(crate) device: Device,
}

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) abi: abi::Pd,
    pub(crate) index: usize,
    pub(crate) context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) abi: abi::Mr,
    pub(crate) index: usize,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) abi: abi::CompChannel,
    pub(crate) index: usize,
    pub(crate) cq: *mut Cq,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) abi: abi::Cq,
    pub(crate) index: usize,
    pub(crate) channel: *mut Channel,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) abi: abi::Srq,
    pub(crate) index: usize,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) abi: abi::Qp,
    pub(crate) index: usize,
    pub(crate) inline: u32,
}

/// Zeroed memory for a structure, in pages of its own.
pub(crate) fn make<T>() -> Result<NonNull<T>, Errno> {
    const NO_FILE: i32 = -1;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let at = unsafe { sys!(libc::SYS_mmap, 0, size_of::<T>(), access, flags, NO_FILE, 0) }?;
    NonNull::new(at as *mut T).ok_or(Errno::ENOMEM)
}

/// Gives the memory back.
///
/// # Safety
/// It came from [`make`], and nothing uses it any more.
pub(crate) unsafe fn end<T>(at: *mut T) {
    // SAFETY: the caller's promise.
    let _ = unsafe { sys!(libc::SYS_munmap, at, size_of::<T>()) };
}

/// A descriptor that is readable while bytes are in it, and that other processes can open by its number.
pub(crate) fn doorbell() -> Result<i32, Errno> {
    let mut ends = [-1i32; 2];
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: two places for numbers.
    unsafe { sys!(libc::SYS_pipe2, ends.as_mut_ptr(), flags) }?;
    let [first, second] = ends;
    // Opened for both directions, one number is enough.
    let doorbell = reopen(own_pid(), first, libc::O_RDWR);
    fd::close(first);
    fd::close(second);
    doorbell
}

fn reopen(pid: u32, number: i32, access: i32) -> Result<i32, Errno> {
    let mut path = Path { bytes: [0; 48], len: 0 };
    let _ = core::fmt::write(&mut path, format_args!("/proc/{pid}/fd/{number}\0"));
    let flags = access | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a path that ends with NUL.
    let opened = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.bytes.as_ptr(), flags, 0) };
    opened.map(|number| number as i32)
}

struct Path {
    bytes: [u8; 48],
    len: usize,
}

impl core::fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            *self.bytes.get_mut(self.len).ok_or(core::fmt::Error)? = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Rings a doorbell of any process.
pub(crate) fn ring(pid: u32, number: i32) {
    if pid == own_pid() {
        let _ = fd::write(number, b"!");
    } else if let Ok(opened) = reopen(pid, number, libc::O_WRONLY) {
        let _ = fd::write(opened, b"!");
        fd::close(opened);
    }
}

/// Takes one ring; whether there was one.
pub(crate) fn take_ring(number: i32) -> bool {
    fd::read(number, &mut [0]) == Ok(1)
}

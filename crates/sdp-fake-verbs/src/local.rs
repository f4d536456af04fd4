//! A process's own objects: structures that libibverbs hands out, and descriptors that become
//! readable.

use core::ptr::NonNull;

use sdp_fabric_verbs::abi::verbs as abi;
use sdp_sys::{Errno, OwnedFd, fd, sys};

use crate::state::{Body, own_pid};

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
    pub(crate) doorbell: u32,
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

/// Uses the program's allocator, as the real functions do. Before the lock of the network is taken: another thread may be
/// in the allocator for long.
pub(crate) fn allocate() {
    // SAFETY: no pointers go in; what comes out, perhaps nothing, is given back at once.
    unsafe { libc::free(core::hint::black_box(libc::malloc(48))) };
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

/// A descriptor that is readable while bytes are in it, and its name; 0: none. Processes of any user
/// can ring it by its name, those of the same user by its number.
pub(crate) fn doorbell(body: &mut Body) -> Result<(i32, u32), Errno> {
    if body.folder.is_empty() {
        return Ok((pipe()?, 0));
    }
    body.last_doorbell += 1;
    let name = body.last_doorbell;
    let path = body.folder.of(name)?;
    // SAFETY: a path that ends with NUL.
    unsafe { sys!(libc::SYS_mknodat, libc::AT_FDCWD, path.start(), libc::S_IFIFO | 0o600, 0) }?;
    // Opened for both directions, one number is enough.
    let doorbell = OwnedFd::new(path.open(libc::O_RDWR)?);
    // By itself: the process's mask takes modes away from what is made.
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_fchmod, doorbell.raw(), 0o666) }?;
    Ok((doorbell.into_raw(), name))
}

fn pipe() -> Result<i32, Errno> {
    let mut ends = [-1i32; 2];
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: two places for numbers.
    unsafe { sys!(libc::SYS_pipe2, ends.as_mut_ptr(), flags) }?;
    let [first, second] = ends;
    let doorbell = Path::of_number(own_pid(), first).and_then(|path| path.open(libc::O_RDWR));
    fd::close(first);
    fd::close(second);
    doorbell
}

/// A path, with the NUL behind it. All zeros is none.
#[repr(C)]
pub(crate) struct Path {
    bytes: [u8; 256],
    len: usize,
}

impl Path {
    const NONE: Self = Self { bytes: [0; 256], len: 0 };

    const fn is_empty(&self) -> bool {
        self.len == 0
    }

    const fn start(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn written(words: core::fmt::Arguments<'_>) -> Result<Self, Errno> {
        let mut path = Self::NONE;
        core::fmt::write(&mut path, words).map_err(|_| Errno(libc::ENAMETOOLONG))?;
        Ok(path)
    }

    fn text(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("")
    }

    /// The folder of a network's doorbells, made where it is not there: processes of any user have theirs in it.
    pub(crate) fn of_doorbells(network: &str) -> Result<Self, Errno> {
        let path = Self::written(format_args!("{network}.doorbells"))?;
        // SAFETY: a path that ends with NUL.
        if unsafe { sys!(libc::SYS_mkdirat, libc::AT_FDCWD, path.start(), 0o700) }.is_ok() {
            // SAFETY: the same path, which ends with NUL.
            unsafe { sys!(libc::SYS_fchmodat, libc::AT_FDCWD, path.start(), 0o777) }?;
        }
        Ok(path)
    }

    fn of(&self, name: u32) -> Result<Self, Errno> {
        Self::written(format_args!("{}/{name}", self.text()))
    }

    fn of_number(pid: u32, number: i32) -> Result<Self, Errno> {
        Self::written(format_args!("/proc/{pid}/fd/{number}"))
    }

    fn open(&self, access: i32) -> Result<i32, Errno> {
        let flags = access | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: a path that ends with NUL.
        let opened = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, self.start(), flags, 0) };
        opened.map(|number| number as i32)
    }
}

impl core::fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            // The last one stays: the NUL.
            let (_, room) = self.bytes.split_last_mut().ok_or(core::fmt::Error)?;
            *room.get_mut(self.len).ok_or(core::fmt::Error)? = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Rings a doorbell of any process: by its name, if it has one.
pub(crate) fn ring(folder: &Path, name: u32, pid: u32, number: i32) {
    if name == 0 && pid == own_pid() {
        let _ = fd::write(number, b"!");
        return;
    }
    let path = if name == 0 { Path::of_number(pid, number) } else { folder.of(name) };
    // For both directions: a process that ends now would leave a pipe without readers, and a write to that a SIGPIPE.
    if let Ok(opened) = path.and_then(|path| path.open(libc::O_RDWR)) {
        let _ = fd::write(opened, b"!");
        fd::close(opened);
    }
}

/// Takes one ring; whether there was one.
pub(crate) fn take_ring(number: i32) -> bool {
    fd::read(number, &mut [0]) == Ok(1)
}

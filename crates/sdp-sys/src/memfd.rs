//! Memory files: made, sealed, examined, mapped.
//!
//! Shared memory between processes that do not trust each other must be unable to shrink under a
//! reader (it would be killed by SIGBUS), so every memory file we make or accept carries the seals
//! of [`REQUIRED_SEALS`]. Nothing here touches the memory: pages appear when they are used.

use core::{ffi::CStr, ptr::NonNull};

use crate::{errno::Errno, kernel, owned::OwnedFd, sys};

/// Seals that fix a memory file's size for ever.
pub const REQUIRED_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Seals that a file which both ends write must not carry.
pub const FORBIDDEN_SEALS: i32 = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;

/// No execution, ever; implies that seals are allowed. Kernels before 6.3 do not know it.
const MFD_NOEXEC_SEAL: u32 = 8;

/// Makes a memory file of `size` bytes with [`REQUIRED_SEALS`], close-on-exec.
///
/// # Errors
/// EFBIG when RLIMIT_FSIZE is below `size` (asked first: the kernel would send SIGXFSZ to the
/// program); EMFILE, ENFILE, ENOMEM, ENOSYS, EPERM from the kernel.
pub fn create_sealed(name: &CStr, size: u64) -> Result<OwnedFd, Errno> {
    if file_size_limit()? < size {
        return Err(Errno(libc::EFBIG));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let fd = match create(name, libc::MFD_CLOEXEC | MFD_NOEXEC_SEAL) {
        Err(Errno::EINVAL) => create(name, flags)?,
        other => other?,
    };
    kernel::ftruncate(fd.raw(), size)?;
    kernel::add_seals(fd.raw(), REQUIRED_SEALS)?;
    Ok(fd)
}

fn create(name: &CStr, flags: u32) -> Result<OwnedFd, Errno> {
    kernel::owned(kernel::memfd_create(name, flags))
}

/// Soft RLIMIT_FSIZE in bytes: a process that writes there, or makes a file longer, gets SIGXFSZ.
///
/// # Errors
/// A sandbox forbids the question.
pub fn file_size_limit() -> Result<u64, Errno> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    kernel::limit(libc::RLIMIT_FSIZE, &mut limit)?;
    Ok(limit.rlim_cur)
}

/// The seals of a memory file; EINVAL when the descriptor names something else. Safe on any
/// descriptor: the kernel answers by itself.
pub fn seals(fd: i32) -> Result<i32, Errno> {
    kernel::seals(fd).map(|seals| seals as i32)
}

/// Maps the first `len` bytes, shared, readable and writable.
pub fn map(fd: i32, len: usize) -> Result<NonNull<u8>, Errno> {
    map_at(fd, len, 0)
}

/// [`map`], at the address `wanted` if nothing is there.
pub fn map_at(fd: i32, len: usize, wanted: usize) -> Result<NonNull<u8>, Errno> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping where the kernel finds nothing disturbs nothing.
    let addr = unsafe { sys!(libc::SYS_mmap, wanted, len, prot, flags, fd, 0)? };
    NonNull::new(addr as *mut u8).ok_or(Errno::ENOMEM)
}

/// Ends a mapping made by [`map`].
///
/// # Safety
/// `addr` and `len` are those of one mapping of ours that nothing uses any more.
pub unsafe fn unmap(addr: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { sys!(libc::SYS_munmap, addr.as_ptr(), len) };
}

/// Gives the pages of a part of a shared mapping of a memory file back to the kernel: all processes
/// that map the file read zeros there from then on. Needs no descriptor; a file with
/// [`FORBIDDEN_SEALS`] refuses.
///
/// # Errors
/// EINVAL when the mapping is locked in memory; EPERM, EACCES, ENOSYS.
///
/// # Safety
/// `addr` is page aligned, `len` a multiple of the page size within one mapping of [`map`], and the
/// bytes are not needed any more.
pub unsafe fn reclaim(addr: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the mapping stays.
    unsafe { sys!(libc::SYS_madvise, addr.as_ptr(), len, libc::MADV_REMOVE) }.map(drop)
}

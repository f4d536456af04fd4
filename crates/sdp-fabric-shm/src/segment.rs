//! Memory shared with a peer: the segment of a connection and the doorbell page of a process.
//!
//! Both are memory files of a fixed, sealed size. A file from elsewhere is mapped only after the
//! kernel has confirmed seals and size, so that touching it can never raise SIGBUS because it
//! shrank. Its *content* stays hostile for ever; nothing here reads it, and one word of it is written
//! ([`MappedSegment::disown`]).

use core::{ffi::CStr, ptr::NonNull};

use sdp_shm::layout::{Control, EndLine};
use sdp_sys::{
    OwnedFd, kernel,
    memfd::{self, FORBIDDEN_SEALS, REQUIRED_SEALS},
    stat,
};

use crate::refusal::Refusal;

/// Bytes in front of the two rings.
pub const HEADER_BYTES: usize = 4096;
/// Smallest ring, one direction.
pub const MIN_RING_BYTES: u32 = 4 << 10;
/// Largest ring, one direction.
pub const MAX_RING_BYTES: u32 = 16 << 20;
/// Size of a doorbell page file.
pub const DOORBELL_PAGE_BYTES: usize = 8192;

pub(crate) const SEGMENT_NAME: &CStr = c"sdp-conn";
const DOORBELL_PAGE_NAME: &CStr = c"sdp-bell";

/// Length of a segment with rings of `ring_bytes` each; `None` unless that is a power of two from
/// [`MIN_RING_BYTES`] to [`MAX_RING_BYTES`].
pub const fn segment_len(ring_bytes: u32) -> Option<usize> {
    if !ring_bytes.is_power_of_two() || ring_bytes < MIN_RING_BYTES || ring_bytes > MAX_RING_BYTES {
        return None;
    }
    Some(HEADER_BYTES + 2 * ring_bytes as usize)
}

/// A mapping shared with other processes. It has no destructor, because connections live in memory
/// that outlasts any scope: end it with [`Mapped::unmap`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a mapping lasts until it is unmapped"]
pub struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; access to its bytes is the users'
// business, which reach them through atomics.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(fd: i32, len: usize) -> Result<Self, Refusal> {
        let base = memfd::map(fd, len).map_err(Refusal::of_resource)?;
        Ok(Self { base, len })
    }

    /// First byte.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: the sizes are fixed.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends the mapping.
    ///
    /// # Safety
    /// Nothing points into it any more.
    pub unsafe fn unmap(self) {
        // SAFETY: base and len are those of one mapping; the caller promises that it is unused.
        unsafe { memfd::unmap(self.base, self.len) };
    }
}

/// The mapped segment of one connection.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a mapping lasts until it is unmapped"]
pub struct MappedSegment {
    map: Mapped,
    ring_bytes: u32,
}

impl MappedSegment {
    /// Makes a fresh segment: all zero, nothing touched yet. Returns its memory file too, for
    /// sending; close that afterwards, the mapping stays.
    ///
    /// # Errors
    /// [`Refusal::NoMemory`] (also for a ring size out of range and for a file size limit below
    /// the segment), [`Refusal::NoDescriptors`].
    pub fn create(ring_bytes: u32) -> Result<(Self, OwnedFd), Refusal> {
        let len = segment_len(ring_bytes).ok_or(Refusal::NoMemory)?;
        let fd = memfd::create_sealed(SEGMENT_NAME, len as u64).map_err(Refusal::of_resource)?;
        Ok((Self::map(fd.raw(), len, ring_bytes)?, fd))
    }

    /// Maps a segment that a peer made with rings of `ring_bytes`.
    ///
    /// # Errors
    /// [`Refusal::Untrusted`]: not such a file; [`Refusal::NoMemory`].
    pub fn from_peer(fd: i32, ring_bytes: u32) -> Result<Self, Refusal> {
        let len = segment_len(ring_bytes).ok_or(Refusal::Untrusted)?;
        verify(fd, len)?;
        Self::map(fd, len, ring_bytes)
    }

    /// Rings are not in core dumps.
    fn map(fd: i32, len: usize, ring_bytes: u32) -> Result<Self, Refusal> {
        let map = Mapped::new(fd, len)?;
        kernel::leave_out_of_dumps(map.base, len);
        Ok(Self { map, ring_bytes })
    }

    /// First byte of the segment's header.
    pub const fn base(&self) -> NonNull<u8> {
        self.map.base
    }

    /// Length in bytes: header and both rings.
    pub const fn len(&self) -> usize {
        self.map.len
    }

    /// Never: the sizes are fixed.
    pub const fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Size of each ring in bytes, a power of two.
    pub const fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// The end at `side` will not use the segment: see [`EndLine::disown`].
    pub fn disown(&self, side: u8) {
        // SAFETY: the whole header is mapped for as long as `self` is.
        unsafe { disown(self.map.base, side) };
    }

    /// Ends the mapping.
    ///
    /// # Safety
    /// Nothing points into it any more.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller's promise.
        unsafe { self.map.unmap() };
    }
}

/// The end at `side` of the segment at `base` will not use it: see [`EndLine::disown`].
///
/// # Safety
/// [`HEADER_BYTES`] are mapped at `base`, readable, writable and page aligned.
pub(crate) unsafe fn disown(base: NonNull<u8>, side: u8) {
    // SAFETY: the caller's promise; the header consists of atomics only.
    let [zero, one]: &[EndLine; 2] = unsafe { &base.cast::<Control>().as_ref().ends };
    if side & 1 == 0 { zero } else { one }.disown();
}

const _: () = assert!(size_of::<Control>() <= HEADER_BYTES);

/// Makes this process's doorbell page file: zero, sealed. Map it with [`map_doorbell_page`].
pub fn create_doorbell_page() -> Result<OwnedFd, Refusal> {
    memfd::create_sealed(DOORBELL_PAGE_NAME, DOORBELL_PAGE_BYTES as u64)
        .map_err(Refusal::of_resource)
}

/// Whether a file is a proper doorbell page; [`Refusal::Untrusted`] otherwise.
pub fn verify_doorbell_page(fd: i32) -> Result<(), Refusal> {
    verify(fd, DOORBELL_PAGE_BYTES)
}

/// Maps a doorbell page, our own or a peer's, after checking it.
pub fn map_doorbell_page(fd: i32) -> Result<Mapped, Refusal> {
    verify_doorbell_page(fd)?;
    Mapped::new(fd, DOORBELL_PAGE_BYTES)
}

/// Seals first: only a memory file has them, so the question for the size that follows is answered
/// by the kernel and not by a file system in user space.
fn verify(fd: i32, len: usize) -> Result<(), Refusal> {
    let seals = memfd::seals(fd).map_err(|_| Refusal::Untrusted)?;
    if seals & REQUIRED_SEALS != REQUIRED_SEALS || seals & FORBIDDEN_SEALS != 0 {
        return Err(Refusal::Untrusted);
    }
    let stat = stat::stat(fd).map_err(|_| Refusal::Untrusted)?;
    if stat.size == len as u64 { Ok(()) } else { Err(Refusal::Untrusted) }
}

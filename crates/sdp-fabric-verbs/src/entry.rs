//! The data path's record of a request between its post and its end.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// No send buffer: the bytes went inline, or there are none.
pub(crate) const NO_PLACE: u32 = 0xffff;

/// A request that was posted.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: AtomicU64,
    /// Send buffer (16 bits), then [`ASKED`], then the kind.
    pub(crate) info: AtomicU32,
    /// As [`crate::status::status_code`] writes it.
    pub(crate) status: AtomicU8,
}

impl Entry {
    pub(crate) const fn new() -> Self {
        let (id, status) = (AtomicU64::new(0), AtomicU8::new(0));
        Self { id, info: AtomicU32::new(NO_PLACE), status }
    }
}

/// In [`Entry::info`]: the poster wants to hear of it.
pub(crate) const ASKED: u32 = 1 << 16;
pub(crate) const KIND_SHIFT: u32 = 17;

//! The program's buffers as one range of bytes.
//!
//! Made by `api` of each call's arguments; walked by `datapath` and by [`super::carrier`].
//!
//! # Safety
//! The vectors come from the program's own call and point where the program says; the types here are
//! built by `unsafe` constructors whose contract is that of the libc call.

use core::cell::Cell;

use libc::iovec;
use sdp_rdma::fabric::{Gather, Scatter};

/// Most elements of one call (the kernel's IOV_MAX); more is EINVAL there and here, in calls with a message header
/// EMSGSIZE.
pub(crate) const IOV_MAX: usize = 1024;
/// Most bytes of one call: the kernel makes longer ones as if they were so long.
pub(crate) const MOST: usize = 0x7fff_f000;

/// One of the program's vectors, before the library looks at any part of it: the kernel checks
/// those that it reads.
#[derive(Clone, Copy)]
pub(crate) struct Vector {
    iov: *const iovec,
    count: usize,
}

impl Vector {
    /// # Safety
    /// `iov` is null or points to `count` elements, each valid until the call returns.
    #[inline]
    pub(crate) unsafe fn new(iov: *const iovec, count: usize) -> Self {
        Self { iov, count }
    }

    /// Whether it is nowhere.
    #[inline]
    pub(crate) fn is_null(self) -> bool {
        self.iov.is_null()
    }

    /// Whether it is nowhere and should be somewhere: EFAULT, by the kernel.
    #[inline]
    pub(crate) fn is_missing(self) -> bool {
        self.iov.is_null() && self.count != 0
    }

    /// Its bytes. `None`: the lengths are impossible (EINVAL), or it is missing.
    #[inline]
    pub(crate) fn buffers(self) -> Option<Buffers> {
        if self.is_missing() {
            return None;
        }
        // SAFETY: by the contract of `new`.
        unsafe { Buffers::new(self.iov, self.count) }
    }
}

/// A walk over an iovec array.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    iov: *const iovec,
    count: usize,
    /// Bytes of the first element already used.
    skip: usize,
    left: usize,
    total: usize,
}

impl Buffers {
    /// `None` when the lengths are impossible (EINVAL).
    ///
    /// # Safety
    /// `iov` points to `count` elements, each valid for the call, until the value is gone.
    pub(crate) unsafe fn new(iov: *const iovec, count: usize) -> Option<Self> {
        if count > IOV_MAX {
            return None;
        }
        let mut left = 0usize;
        let mut rest = Self { iov, count, skip: 0, left: 0, total: 0 };
        while let Some(element) = rest.first() {
            left = left.checked_add(element.iov_len).filter(|n| *n <= isize::MAX as usize)?;
            rest.step();
        }
        let left = left.min(MOST);
        Some(Self { iov, count, skip: 0, left, total: left })
    }

    /// The element that the walk is at. `None`: it has come to the end.
    #[inline(always)]
    fn first(&self) -> Option<iovec> {
        // SAFETY: `count` elements remain from `iov` on.
        (self.count > 0).then(|| unsafe { *self.iov })
    }

    /// Goes on to the next element.
    #[inline(always)]
    fn step(&mut self) {
        self.iov = self.iov.wrapping_add(1);
        self.count = self.count.saturating_sub(1);
        self.skip = 0;
    }

    /// The one buffer, if there is only one and it is untouched and not null.
    #[inline]
    pub(crate) fn only(&self) -> Option<(*mut u8, usize)> {
        if self.count != 1 || self.skip != 0 {
            return None;
        }
        let base = self.first()?.iov_base;
        (!base.is_null()).then_some((base.cast(), self.left))
    }

    /// Whether an element is a null pointer with a length: EFAULT in the kernel, a fault here.
    #[inline]
    pub(crate) fn has_null(&self) -> bool {
        let mut rest = *self;
        while let Some(element) = rest.first() {
            if element.iov_base.is_null() && element.iov_len != 0 {
                return true;
            }
            rest.step();
        }
        false
    }

    /// Bytes not yet used.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Whether none has been used yet.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.left == self.total
    }

    /// Uses up `n` bytes.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        self.each(n, |_, _| {});
    }

    /// Walks over the next `n` bytes in pieces, using them up.
    #[inline]
    fn each(&mut self, n: usize, mut piece: impl FnMut(*mut u8, usize)) {
        let mut n = n.min(self.left);
        self.left -= n;
        while n > 0
            && let Some(iovec { iov_base, iov_len }) = self.first()
        {
            let here = iov_len.saturating_sub(self.skip).min(n);
            if here > 0 {
                piece(iov_base.cast::<u8>().wrapping_add(self.skip), here);
            }
            n -= here;
            self.skip += here;
            if self.skip >= iov_len {
                self.step();
            }
        }
    }

    /// The next at most `cap` bytes as an iovec array for a system call; the number of elements.
    pub(crate) fn fill(&self, cap: usize, out: &mut [iovec]) -> usize {
        let mut walk = *self;
        let mut used = 0;
        let mut room = cap;
        while used < out.len() && room > 0 && walk.left > 0 {
            let mut piece = None;
            let take = walk.first_piece().min(room);
            walk.each(take, |base, len| piece = Some((base, len)));
            room -= take;
            if let (Some((base, len)), Some(slot)) = (piece, out.get_mut(used)) {
                *slot = iovec { iov_base: base.cast(), iov_len: len };
                used += 1;
            }
        }
        used
    }

    /// Bytes left in the first non-empty element.
    fn first_piece(&mut self) -> usize {
        while let Some(element) = self.first() {
            if element.iov_len > self.skip {
                return element.iov_len - self.skip;
            }
            self.step();
        }
        0
    }
}

/// The next `len` bytes of the program's buffers as a message payload.
pub(crate) struct Payload<'a> {
    buffers: &'a mut Buffers,
    len: usize,
}

impl<'a> Payload<'a> {
    /// At most `len` bytes.
    #[inline]
    pub(crate) fn new(buffers: &'a mut Buffers, len: usize) -> Self {
        let len = len.min(buffers.left());
        Self { buffers, len }
    }
}

impl Gather for Payload<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    /// The fabric asks in order, so the buffers are simply walked.
    #[inline]
    fn copy_to(&mut self, _offset: usize, dst: &[Cell<u8>]) {
        let mut to = dst.as_ptr().cast_mut().cast::<u8>();
        self.buffers.each(dst.len(), |from, len| {
            // SAFETY: `from` is the program's buffer, valid by `Buffers::new`'s contract; the pieces
            // add up to dst.len(), so `to` stays inside; ring and program memory do not overlap.
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, len);
                to = to.add(len);
            }
        });
    }
}

/// Receives into the program's buffers, or into nothing (MSG_TRUNC).
pub(crate) struct Landing<'a> {
    /// Where bytes go.
    pub(crate) buffers: &'a mut Buffers,
    /// Throw the bytes away instead of copying them.
    pub(crate) discard: bool,
}

impl Scatter for Landing<'_> {
    #[inline]
    fn room(&self) -> usize {
        self.buffers.left()
    }

    #[inline]
    fn accept(&mut self, src: &[Cell<u8>]) {
        if self.discard {
            self.buffers.advance(src.len());
            return;
        }
        let mut from = src.as_ptr().cast::<u8>();
        self.buffers.each(src.len(), |to, len| {
            // SAFETY: `to` is the program's buffer, valid by `Buffers::new`'s contract; the pieces add
            // up to at most src.len(). A peer that scribbles meanwhile changes bytes, nothing else.
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, len);
                from = from.add(len);
            }
        });
    }
}

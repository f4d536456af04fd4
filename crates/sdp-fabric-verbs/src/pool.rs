//! Memory without an allocator: mapped arrays, shared values, send buffers.

use core::{
    ops::Deref,
    ptr::NonNull,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
};

use sdp_sys::{Errno, kernel, sys};

/// Whether forked children share the memory, or have a copy.
#[derive(Clone, Copy)]
enum Family {
    Shared,
    Private,
}

fn map(len: usize, family: Family) -> Result<NonNull<u8>, Errno> {
    const NO_FILE: i32 = -1;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = match family {
        Family::Shared => libc::MAP_SHARED,
        Family::Private => libc::MAP_PRIVATE,
    };
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let at =
        unsafe { sys!(libc::SYS_mmap, 0, len, access, flags | libc::MAP_ANONYMOUS, NO_FILE, 0) }?;
    let at = NonNull::new(at as *mut u8).ok_or(Errno::ENOMEM)?;
    if matches!(family, Family::Shared) {
        kernel::leave_out_of_dumps(at, len); // buffers, which hold payload
    }
    Ok(at)
}

/// # Safety
/// `at` and `len` are those of a mapping of [`map`] that nothing uses any more.
unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { sys!(libc::SYS_munmap, at.as_ptr(), len) };
}

/// A fixed array in pages of its own. Shared mappings: a forked child sees the same memory.
#[derive(Debug)]
pub struct Region<T> {
    at: NonNull<T>,
    count: usize,
}

// SAFETY: it owns its elements, as a box does.
unsafe impl<T: Send> Send for Region<T> {}
// SAFETY: shared references to a region give shared references to the elements.
unsafe impl<T: Sync> Sync for Region<T> {}

impl<T> Region<T> {
    /// Maps `count` elements, each made by `make`.
    ///
    /// # Errors
    /// ENOMEM, and mmap's other errors.
    pub fn new(count: usize, mut make: impl FnMut(usize) -> T) -> Result<Self, Errno> {
        let len = size_of::<T>().checked_mul(count.max(1)).ok_or(Errno::ENOMEM)?;
        let at = map(len.max(1), Family::Shared)?.cast::<T>();
        for index in 0..count {
            // SAFETY: within the mapping, whose pages are aligned for every type here.
            unsafe { at.add(index).write(make(index)) };
        }
        Ok(Self { at, count })
    }

    /// Address of the first element.
    pub const fn as_ptr(&self) -> *mut T {
        self.at.as_ptr()
    }

    /// Exclusive access to the elements.
    pub const fn as_mut(&mut self) -> &mut [T] {
        // SAFETY: initialised in `new`; exclusive by `&mut self`.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.count) }
    }
}

impl<T> Deref for Region<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: initialised in `new`; only shared references are given out by this.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl<T> Drop for Region<T> {
    fn drop(&mut self) {
        for element in self.as_mut() {
            // SAFETY: each is dropped once; nothing uses it afterwards.
            unsafe { core::ptr::drop_in_place(element) };
        }
        let len = (size_of::<T>() * self.count.max(1)).max(1);
        // SAFETY: the mapping of `new`, and this value owned it.
        unsafe { unmap(self.at.cast(), len) };
    }
}

struct Counted<T> {
    users: AtomicUsize,
    value: T,
}

/// A value with several owners, in pages of its own; dropped with the last of them. Private mappings: a forked child counts
/// its own owners.
pub struct Shared<T>(NonNull<Counted<T>>);

// SAFETY: as `alloc::sync::Arc`, which this is but for the allocator.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: a reference leads to `&T` alone, which `T: Sync` allows; the count is atomic.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Maps pages for `value`.
    ///
    /// # Errors
    /// ENOMEM, and mmap's other errors; `value` is dropped then.
    pub fn new(value: T) -> Result<Self, Errno> {
        let at = map(size_of::<Counted<T>>(), Family::Private)?.cast::<Counted<T>>();
        // SAFETY: a fresh mapping, large enough and aligned to a page.
        unsafe { at.write(Counted { users: AtomicUsize::new(1), value }) };
        Ok(Self(at))
    }

    fn inner(&self) -> &Counted<T> {
        // SAFETY: mapped while there is an owner.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        self.inner().users.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.inner().users.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // SAFETY: the last owner: the value is dropped once, then its pages go.
        unsafe {
            core::ptr::drop_in_place(&raw mut (*self.0.as_ptr()).value);
            unmap(self.0.cast(), size_of::<Counted<T>>());
        }
    }
}

impl<T: core::fmt::Debug> core::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        (**self).fmt(f)
    }
}

/// Words of the map of free places.
const WORDS: usize = crate::budget::SENDS_MAX.div_ceil(64);

/// Which of up to [`crate::budget::SENDS_MAX`] places are taken; for any number of threads.
#[derive(Debug)]
pub struct Places {
    taken: [AtomicU64; WORDS],
}

impl Places {
    /// `count` free places.
    pub fn new(count: usize) -> Self {
        let word = |index: usize| match count.saturating_sub(index * 64) {
            64.. => 0,
            free => u64::MAX << free,
        };
        Self { taken: core::array::from_fn(|index| AtomicU64::new(word(index))) }
    }

    /// Takes a place.
    pub fn take(&self) -> Option<usize> {
        for (index, word) in self.taken.iter().enumerate() {
            let mut taken = word.load(Ordering::Relaxed);
            while taken != u64::MAX {
                let bit = taken.trailing_ones();
                let wanted = taken | 1 << bit;
                // Acquire: the work of the place's former user is done.
                match word.compare_exchange_weak(
                    taken,
                    wanted,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(index * 64 + bit as usize),
                    Err(now) => taken = now,
                }
            }
        }
        None
    }

    /// Gives a place back.
    pub fn give_back(&self, place: usize) {
        if let Some(word) = self.taken.get(place / 64) {
            word.fetch_and(!(1 << (place % 64)), Ordering::Release);
        }
    }

    /// Whether fewer than half of the most there can be are free.
    pub fn are_scarce(&self) -> bool {
        let taken = self.taken.iter().map(|word| word.load(Ordering::Relaxed).count_ones());
        taken.sum::<u32>() as usize > crate::budget::SENDS_MAX / 2
    }

    /// Whether a place is free now.
    pub fn has_free(&self) -> bool {
        self.taken.iter().any(|word| word.load(Ordering::Relaxed) != u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_once() {
        for count in [1, 63, 64, 65, 130, crate::budget::SENDS_MAX] {
            let places = Places::new(count);
            let taken: Vec<_> = core::iter::from_fn(|| places.take()).collect();
            assert_eq!(taken, (0..count).collect::<Vec<_>>());
            assert!(!places.has_free() && places.are_scarce());
            (0..count).for_each(|place| places.give_back(place));
            assert_eq!(places.are_scarce(), count <= crate::budget::SENDS_MAX / 2);
            (0..count).for_each(|_| _ = places.take());
            places.give_back(count / 2);
            assert_eq!((places.take(), places.take()), (Some(count / 2), None));
        }
    }

    #[test]
    fn a_shared_value_goes_with_its_last_owner() {
        let value = std::sync::Arc::new(());
        let first = Shared::new(value.clone()).unwrap();
        let second = first.clone();
        drop(first);
        assert_eq!(std::sync::Arc::strong_count(&second), 2);
        drop(second);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
        let region = Region::new(3, |_| value.clone()).unwrap();
        assert_eq!((region.len(), std::sync::Arc::strong_count(&value)), (3, 4));
        drop(region);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }
}

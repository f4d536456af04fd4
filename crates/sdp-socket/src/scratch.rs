//! Memory for the copy of an array that a `poll` works on, where it is too long for the stack.
//!
//! Used by `readiness`. A few places, mapped when they are first needed and kept: what a poll of thousands of
//! descriptors touches is a page or two. Whoever finds none free does without. A signal handler that leaves
//! a poll for good takes its place with it, and so do threads that a fork child does not have: then there is
//! one place less.

use core::{
    ptr::{NonNull, null_mut},
    slice,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

use libc::pollfd;

use crate::process;

/// Entries of one array.
pub(crate) const ENTRIES: usize = 65_536;
/// Polls of that kind at the same time.
const PLACES: usize = 16;

static MAPPED: [AtomicPtr<pollfd>; PLACES] = [const { AtomicPtr::new(null_mut()) }; PLACES];
/// Bit n: place n is in use.
static IN_USE: AtomicU32 = AtomicU32::new(0);

/// An array in use. Goes back when dropped.
pub(crate) struct Scratch {
    place: usize,
    at: NonNull<pollfd>,
}

impl Scratch {
    /// An array of [`ENTRIES`]; `None` when all are in use, or there is no memory.
    pub(crate) fn take() -> Option<Self> {
        for (place, mapped) in MAPPED.iter().enumerate() {
            let bit = 1 << place;
            if IN_USE.load(Ordering::Relaxed) & bit != 0
                || IN_USE.fetch_or(bit, Ordering::Acquire) & bit != 0
            {
                continue;
            }
            // Only who has the place writes it.
            let at = NonNull::new(mapped.load(Ordering::Relaxed)).or_else(|| {
                let fresh = process::map_private(ENTRIES * size_of::<pollfd>())?.cast();
                mapped.store(fresh.as_ptr(), Ordering::Relaxed);
                Some(fresh)
            });
            match at {
                Some(at) => return Some(Self { place, at }),
                None => {
                    IN_USE.fetch_and(!bit, Ordering::Release);
                    return None;
                }
            }
        }
        None
    }

    /// The entries; what is in them is left from earlier uses.
    pub(crate) fn entries(&mut self) -> &mut [pollfd] {
        // SAFETY: mapped for as long as the process lives, aligned to a page, plain integers for which
        // everything is valid; the place is this value's alone.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), ENTRIES) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        IN_USE.fetch_and(!(1 << self.place), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_by_one_at_a_time_and_again() {
        let mut held: std::vec::Vec<_> = core::iter::from_fn(Scratch::take).collect();
        assert_eq!(held.len(), PLACES);
        for (i, scratch) in held.iter_mut().enumerate() {
            let entries = scratch.entries();
            entries[ENTRIES - 1] = pollfd { fd: i as i32, events: 0, revents: 0 };
        }
        for (i, scratch) in held.iter_mut().enumerate() {
            assert_eq!(scratch.entries()[ENTRIES - 1].fd, i as i32);
        }
        held.pop();
        assert!(Scratch::take().is_some());
    }
}

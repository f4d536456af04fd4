//! Memory for arrays of a call that are too long for the stack: a thread may have a small one, and
//! a hook takes a few KiB of it at most.
//!
//! Used by `readiness` for arrays of `poll` and `select`, and by `splice` for pieces of files. It
//! has a few places, mapped when they are first needed and kept: a poll of thousands of descriptors
//! touches a page or two. A call that finds none free does without. A signal handler that leaves a
//! call for good takes its place with it: then there is one place less. In a fork child the places
//! of threads that it does not have are free.

use core::{
    hint::black_box,
    ptr::{NonNull, null_mut},
    slice,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
};

use libc::pollfd;
use sdp_sys::{kernel, tls};

use crate::process::{self, fork_page};

/// Entries of one array.
pub(crate) const ENTRIES: usize = 65_536;
/// Calls of that kind at the same time.
const PLACES: usize = 32;

static MAPPED: [AtomicPtr<pollfd>; PLACES] = [const { AtomicPtr::new(null_mut()) }; PLACES];
/// The thread that uses a place, by the address of its words, which a fork child's only thread has
/// too; 0 none.
static USERS: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];
/// A place was used once: until then a fork child has nothing to look at.
static IS_USED: &AtomicBool = &fork_page::FORK_PAGE.scratch;

/// The calling thread.
fn this_thread() -> usize {
    core::ptr::from_ref(tls::block()) as usize
}

/// In a fork child: the parent's other threads do not poll here. A poll of this thread's that a handler
/// interrupted, and which forked, may go on.
pub(crate) fn forget_threads() {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let own = this_thread();
    for user in &USERS {
        let is_gone = ![0, own].contains(&user.load(Ordering::Relaxed));
        if is_gone {
            user.store(0, Ordering::Relaxed);
        }
    }
}

/// An array in use. Goes back when dropped.
pub(crate) struct Scratch {
    user: &'static AtomicUsize,
    at: NonNull<pollfd>,
}

impl Scratch {
    /// An array of [`ENTRIES`]; `None` when all are in use, or there is no memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn take() -> Option<Self> {
        if !IS_USED.load(Ordering::Relaxed) {
            IS_USED.store(true, Ordering::Relaxed);
        }
        // Not known when this is compiled, or it would be a long piece of code for each place.
        for (mapped, user) in MAPPED.iter().zip(&USERS).take(black_box(PLACES)) {
            if user.load(Ordering::Relaxed) != 0
                || user
                    .compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            // Only the thread that has the place writes it.
            let at = NonNull::new(mapped.load(Ordering::Relaxed)).or_else(|| {
                let len = ENTRIES * size_of::<pollfd>();
                let fresh = process::map_private(len)?;
                kernel::leave_out_of_dumps(fresh, len); // pieces of files
                let fresh = fresh.cast();
                mapped.store(fresh.as_ptr(), Ordering::Relaxed);
                Some(fresh)
            });
            match at {
                Some(at) => return Some(Self { user, at }),
                None => {
                    user.store(0, Ordering::Release);
                    return None;
                }
            }
        }
        None
    }

    /// The entries; their content is left from earlier uses.
    pub(crate) fn entries(&mut self) -> &mut [pollfd] {
        // SAFETY: mapped for as long as the process lives, aligned to a page, plain integers for which
        // everything is valid; the place is this value's alone.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), ENTRIES) }
    }

    /// The same memory as bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let len = ENTRIES * size_of::<pollfd>();
        // SAFETY: the same ENTRIES entries, of plain integers, seen as bytes; the borrow keeps
        // them this caller's alone.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr().cast(), len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.user.store(0, Ordering::Release);
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

        // A thread that a fork child does not have: its places come back, this thread's do not.
        let theirs = held.pop().expect("all places were this thread's");
        drop(theirs);
        std::thread::spawn(|| core::mem::forget(Scratch::take().expect("two places are free")))
            .join()
            .unwrap();
        let last = Scratch::take().expect("one place is left");
        assert!(Scratch::take().is_none());
        forget_threads();
        let again = Scratch::take().expect("the thread's place is free again");
        assert!(held.iter().chain([&last]).all(|other| other.at != again.at));
        assert!(Scratch::take().is_none());
    }
}

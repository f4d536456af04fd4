//! Functions that a higher room hands in when the process begins, so that a lower one can call it.

use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

/// A value of a higher room's, or none yet.
pub(crate) struct Handed<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Handed<T> {
    /// Nothing yet.
    pub(crate) const fn none() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Hands it in. Nothing is written where it is there already.
    pub(crate) fn set(&self, value: &'static T) {
        if self.0.load(Ordering::Relaxed).is_null() {
            self.0.store((&raw const *value).cast_mut(), Ordering::Release);
        }
    }

    /// The value that was handed in.
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or made from a shared reference that lasts as long as the process; nothing
        // writes through it.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

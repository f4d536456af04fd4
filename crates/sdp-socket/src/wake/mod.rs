//! How threads are woken: doorbells, wait sets, spinning, and guards of calls that sleep.
//!
//! Called by every room above. It knows connections, but no bytes.

pub(crate) mod arming;
pub(crate) mod call_guard;
pub(crate) mod doorbell;
pub(crate) mod interest;
pub(crate) mod spin;
pub(crate) mod strangers;
pub(crate) mod wait_set;

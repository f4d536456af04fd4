//! The functions that the hooks call: a file for each family of calls.
//!
//! This room finds out which lane or room a call belongs to, and passes it on there. Nothing calls
//! up into it.

pub(crate) mod bulk;
pub mod calls;

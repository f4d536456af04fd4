//! What the hooks ask: a file for each family of calls.
//!
//! It finds out whose call it is and passes it on to the room that answers. Nothing calls up into it.

pub(crate) mod bulk;
pub mod calls;

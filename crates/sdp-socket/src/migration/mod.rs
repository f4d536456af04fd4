//! Changing lanes: getting a connection onto the SDP lane, and off it again.
//!
//! Called by `api`, `readiness` and `lifecycle` when a connection has earned a lane or must leave it.

pub(crate) mod across;
pub(crate) mod arrived;
pub(crate) mod demote;
pub(crate) mod handover;
mod holders;
pub(crate) mod incompatible;
pub(crate) mod pause;
pub(crate) mod promote;
pub(crate) mod relay;
pub(crate) mod repromote;
pub(crate) mod reuse;
pub(crate) mod splice_off;
pub(crate) mod unseen;

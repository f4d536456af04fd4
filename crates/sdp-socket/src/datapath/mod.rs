//! One call's bytes: send, receive, peek, transfer, and how one call sleeps.
//!
//! Called by `api`. [`fast`] is the fast path; [`lane`] has the state of a half under its lock.

pub(crate) mod count;
pub(crate) mod exchange;
pub(crate) mod fast;
pub(crate) mod fault;
pub(crate) mod half_lock;
pub(crate) mod header;
pub(crate) mod lane;
pub(crate) mod leave;
pub(crate) mod proof;
pub(crate) mod receive;
pub(crate) mod reclaim;
pub(crate) mod reset;
pub(crate) mod reset_note;
pub(crate) mod send;
pub(crate) mod splice;
pub(crate) mod takeover;
pub(crate) mod token;
pub(crate) mod wait;

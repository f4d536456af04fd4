//! Descriptors and processes that come and go: open, close, fork, exec, passing, leaving.
//!
//! Called by `api`. It calls the rooms below at each event, in an order that is fixed here.

pub(crate) mod adopt;
pub(crate) mod elsewhere;
pub(crate) mod exec;
pub(crate) mod explicit;
pub(crate) mod inherit;
mod listener;
mod open;
pub(crate) mod reconnect;
pub(crate) mod strict;
mod trust;

pub(crate) use open::*;

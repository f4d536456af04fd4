//! What a process has once: identity, settings, rules, descriptors, pages and the log.
//!
//! The lowest room: every other one may call it.

mod asker;
pub mod fork_page;
mod handed;
pub mod host;
mod identity;
pub(crate) mod log;
pub(crate) mod page;
pub(crate) mod scratch;
pub(crate) mod settings;
pub(crate) mod socket_tags;
pub(crate) mod table;
pub(crate) mod trace;

pub(crate) use asker::asker;
pub(crate) use handed::Handed;
pub(crate) use identity::*;

//! The single objects of a process: identity, settings, rules, descriptors, pages and the log.
//!
//! The lowest room: every other one may call it.

mod diag_client;
pub(crate) mod exit_report;
pub mod fork_page;
mod handed;
mod identity;
pub mod libc_calls;
pub(crate) mod log;
mod mapping;
pub(crate) mod page;
pub(crate) mod place;
pub(crate) mod scratch;
pub(crate) mod settings;
pub(crate) mod socket_tags;
pub(crate) mod table;
pub(crate) mod trace;

pub(crate) use diag_client::diag_client;
pub(crate) use handed::Handed;
pub(crate) use identity::*;
pub(crate) use mapping::{Fresh, give_up, map_private, unmap};

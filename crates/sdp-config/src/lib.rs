//! `libsdp.conf`: rules and tunables.
//!
//! The library loads the rule file of a process into a [`Config`], a fixed-size structure without
//! allocation, prepares it for its program and asks it at `listen` and `connect` which family a socket gets. `sdp explain` and
//! `sdp config check` use the same code, so that they cannot disagree with the library. The crate
//! reads no file, no environment and no clock, and refuses to stop a program: a bad line is a
//! [`Diagnostic`], everything else in the file stays in force.
//!
//! The language, its tolerance and its two dialects are described in `docs/spec/libsdp-conf.md`.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod addr;
mod config;
mod diag;
mod eval;
mod glob;
mod index;
mod line;
mod parse;
mod place;
mod rule;
pub mod tunables;

pub use addr::{AddressMatch, PortRange};
pub use config::{Config, LogDestination, LogSettings, MAX_DIAGNOSTICS, POOL_LEN};
pub use diag::{Diagnostic, Problem, Severity};
pub use eval::{Match, Verdict};
pub use glob::glob_match;
pub use place::{Place, Source};
pub use rule::{Dialect, Family, MAX_RULES, Role, Rule, Text};
pub use tunables::Tunables;

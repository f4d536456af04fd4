//! The page by which a process publishes the state of its connections, and from which tools read
//! it.
//!
//! Each process that uses the library owns one *page*: a sealed memfd named `sdp-stats` of a fixed,
//! versioned layout ([`page`]). The library writes counters into it through `&Page` ([`writer`]);
//! `sdp run`, `sdp stat` and `sdpnetstat` read it through `/proc` or through a descriptor that the
//! process hands in (module `reader`, feature `reader`). Tools write one part of it, a request for
//! other tunables ([`tune`]); no other change to a page changes what the library does.
//!
//! Writers are wait-free but for a bounded row allocation, use no allocator, make no system call and
//! never panic. Readers treat every word as hostile.

#![cfg_attr(not(any(test, feature = "reader")), no_std)]
#![deny(unsafe_code)]

pub mod map;
pub mod page;
pub mod reason;
mod rules;
pub mod trace;
pub mod tune;
pub mod writer;

#[cfg(feature = "reader")]
pub mod reader;

pub use page::{Page, RuleWords, SIZE};
pub use reason::Reason;
pub use rules::{RuleState, Rules};
pub use writer::{
    ConnState, Counter, Device, Direction, Endpoint, Fabric, Identity, Lane, Mode, NewRow, Role,
    RowId, Verdict,
};

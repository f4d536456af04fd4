//! The guarded carrier: how two hosts share one byte stream between a queue pair and a TCP
//! connection that have no common order, and lose nothing when the queue pair dies.
//!
//! Sans-IO: no clock, no descriptor, no allocator, no unsafe code. The socket layer feeds it
//! carrier bytes, completions and acknowledgements, and obeys its answers. Rules with a G in
//! comments are those of `docs/spec/guard.md`.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod consumer;
pub mod identity;
pub mod marker;
pub mod parting;
pub mod producer;
pub mod scan;

#[cfg(test)]
mod model;

//! Linux socket semantics on the carrier and the lanes.
//!
//! The hooks call [`calls`]; nothing here is an exported name.

#![cfg_attr(not(test), no_std)]

pub mod calls;
pub mod host;

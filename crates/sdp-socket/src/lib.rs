//! Linux socket semantics on the carrier and the lanes.

#![cfg_attr(not(test), no_std)]

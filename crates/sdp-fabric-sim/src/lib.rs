//! Deterministic simulated fabric.

#![cfg_attr(not(test), no_std)]

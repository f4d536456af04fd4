//! The SDP engine: wire formats and the sans-IO half-connections.

#![cfg_attr(not(test), no_std)]

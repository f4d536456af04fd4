//! libsdp.conf rules and tunables.

#![cfg_attr(not(test), no_std)]

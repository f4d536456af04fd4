//! Structures that live in memory shared between processes.

#![cfg_attr(not(test), no_std)]

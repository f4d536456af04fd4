//! What a process publishes and what tools read.

#![cfg_attr(not(test), no_std)]

//! The one-host fabric: shared rings and rendezvous.

#![cfg_attr(not(test), no_std)]

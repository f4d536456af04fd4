//! The one-host fabric: shared rings and rendezvous.

#![cfg_attr(not(test), no_std)]

pub mod identity;
pub mod name;
pub mod packet;
pub mod peer;
pub mod procnet;
pub mod refusal;
pub mod rendezvous;
pub mod segment;

//! The fabric between hosts: RDMA verbs and the kernel's connection manager.
//!
//! libibverbs is opened at the first use and never linked; this crate talks to the connection
//! manager directly, through `/dev/infiniband/rdma_cm` ([`cm`]). A host without either costs a
//! failed `open` and is reported as [`Error::NoDevice`]. The owned types of [`device`] keep alive
//! the objects that they depend on. [`fabric`] implements the fabric traits on them, with one
//! completion queue, one channel and one shared receive queue in a process, and memory from fixed
//! pools ([`pool`]).
//!
//! **Which thread may call a function.** *Fast* calls (posts, polls, arming; all of [`endpoint`])
//! allocate nothing and make system calls only where the device's provider does. Everything else is
//! *slow*: libibverbs allocates, opens files and takes locks there. Slow calls belong to a place
//! where the program itself could do so: not a signal handler, not a vfork child, with none of the
//! caller's locks held. No call waits for the peer.
//!
//! A fabric knows nothing of SDP.

#![cfg_attr(not(test), no_std)]

pub mod abi;
pub mod address;
pub mod budget;
pub mod cm;
pub mod device;
pub mod endpoint;
mod entry;
pub mod error;
pub mod fabric;
pub mod library;
pub mod numbers;
pub mod pool;
#[cfg(feature = "stand-in")]
pub mod stand_in;
mod status;
mod work_id;

pub use address::Address;
pub use error::Error;

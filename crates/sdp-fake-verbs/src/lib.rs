//! For tests: an RDMA provider and a connection manager that need neither a device nor a kernel's help.
//!
//! `sdp-fabric-verbs` with its feature `stand-in` calls them in the place of libibverbs and of
//! `/dev/infiniband/rdma_cm`: the same structures, the same commands as bytes, real descriptors
//! that become readable. The network is a piece of shared memory with a lock ([`Network`]): the
//! effect of a call is complete when it returns, so a test knows when nothing more will happen.
//! Processes that map the same file are hosts that reach each other.
//!
//! A test can let any step fail at any of its calls ([`Network::fail`]), lose, double and change
//! events, cut the road, take a device away, and count the objects that are still there
//! ([`Network::live`]).
//!
//! It lacks time: a dead peer is reported at once, where a device tries again for a while. A READ
//! of another process's memory is a system call, which the kernel allows between processes of one
//! user; bytes of a WRITE are there once that process has taken a completion.

#![cfg_attr(not(test), no_std)]

mod environment;
mod local;
mod manager;
mod network;
mod state;
mod step;
mod verbs;
mod work;

pub use environment::heed;
pub use network::{Live, Network, Road};
pub use step::Step;

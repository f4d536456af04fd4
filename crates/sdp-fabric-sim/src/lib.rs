//! Deterministic simulated fabric.
//!
//! Implements [`sdp_rdma::fabric::Fabric`] in one address space, without threads, clocks or devices:
//! a [`World`] holds every node, queue pair and memory region, and virtual time moves only when the
//! test says so. The engine's simulation tests and the conformance suite use it; it never enters the
//! preload library, so it may allocate and use std. It refuses to be fast, and it refuses to forgive:
//! a caller that releases a message twice or reads outside one gets a panic, because here that is
//! always a bug of the code under test.
//!
//! # Determinism
//! The same seed, options and calls give the same trace, byte for byte, for ever: the generator is
//! our own ([`rng`]), ties in time are broken by order of scheduling, and no map with a random order
//! is walked. Calls from several threads are allowed (each is one step under a lock), but then the
//! order of the calls, and so the trace, is the scheduler's.
//!
//! # Map
//! [`world`] nodes, time, kill and partition · [`queue_pair`] the two halves, arrival, completion ·
//! `transfer` the fate of a request · [`cm`] listen, connect, accept · [`memory`] simulated
//! addresses, regions, keys · [`link`] latency · [`fault`] faults, and how often they come ·
//! [`schedule`] events in virtual time · [`trace`] events as text · [`checker`] invariants.

#![forbid(unsafe_code)]

pub mod checker;
pub mod cm;
pub mod fault;
pub mod link;
pub mod memory;
pub mod queue_pair;
pub mod rng;
pub mod schedule;
pub mod trace;
mod transfer;
pub mod world;

pub use cm::{SimFabric, SimId, SimService};
pub use fault::{FaultOptions, Ratio};
pub use link::{LinkOptions, Span};
pub use queue_pair::{SimRx, SimTx};
pub use world::{Credits, NodeId, RnrRetry, World, WorldOptions};

//! RDMA vocabulary and the fabric traits.
//!
//! A *fabric* is a way to reach a peer: a reliable connected queue pair with two-sided messages
//! (SEND), one-sided READ and WRITE, registered memory, completions, and asynchronous connection
//! set-up with private data. A fabric knows nothing of SDP. The traits are shaped for verbs; the
//! shared-memory fabric and the simulator implement the same contract and run the same conformance
//! suite (`sdp-fabric-tests`).
//!
//! A queue pair splits into a [`fabric::SendQueue`] and a [`fabric::ReceiveQueue`], because the two
//! halves of a connection are driven by different threads that must not block each other.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod cm;
pub mod fabric;
pub mod key;
pub mod work;

//! The one-host fabric: shared rings and rendezvous.
//!
//! [`endpoint`] implements the queues of a fabric on a mapped segment, [`link`] the rest
//! of one end of a lane; the other modules bring two processes that hold the two ends of a TCP
//! connection to share one. A fabric knows nothing of SDP.

#![cfg_attr(not(test), no_std)]

pub mod across;
pub mod budget;
pub mod diag_client;
pub mod endpoint;
pub mod identity;
pub mod link;
pub mod name;
pub mod packet;
pub mod party;
pub mod peer;
pub mod pool;
pub mod refusal;
pub mod rendezvous;
pub mod segment;
mod spin;
pub mod token;

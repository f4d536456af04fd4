//! RPC-over-RDMA version 1 (RFC 8166, 8167, 8267, 8797), sans-IO.
//!
//! The crate sees transport headers and the first words of RPC messages, never payload: it says
//! which bytes go where, and its user moves them. No clock, no descriptor, no unsafe code, and no
//! allocation by a peer's word: every list has a fixed limit, which is checked before anything is
//! kept. A rule that a peer has broken names the section that states it ([`rule::Rule`]).
//!
//! * [`wire`]: transport headers, decoded and encoded.
//! * [`private_data`]: what two ends tell each other when they connect.
//! * [`rpc`]: record marks and the first words of RPC messages.
//! * [`results`]: where the data of a READ lies in a reply, the only knowledge of NFS here.
//! * [`responder`]: the server's side of a connection.
//! * [`requester`]: the client's side.
//! * [`bounds`]: how long a call's reply may be.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bounds;
pub mod private_data;
pub mod requester;
pub mod responder;
pub mod results;
pub mod rpc;
pub mod rule;
pub mod wire;

#[cfg(test)]
mod both;
#[cfg(test)]
mod vectors;

//! Connections whose messages are written into rings, on the stand-in: the conformance suite, and
//! what a peer can do that keeps to no rule.

mod common;

use common::rings::Rings;

sdp_fabric_tests::conformance!(rings, Rings, skipped = 11);

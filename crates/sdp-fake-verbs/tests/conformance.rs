//! The conformance suite over `sdp-fabric-verbs` on the stand-in: every rule without a device.

mod common;

use common::Device;

sdp_fabric_tests::conformance!(fake, Device, skipped = 1);

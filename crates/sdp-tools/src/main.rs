//! The `sdp` command.
fn main() {}

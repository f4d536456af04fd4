//! `sdpnetstat`.
fn main() {}

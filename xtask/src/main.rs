//! Build, demo, test and tidy.
fn main() {}

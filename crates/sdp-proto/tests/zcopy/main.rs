//! Zero copy: two ends that advertise, READ, WRITE, cancel and withdraw.

#![allow(unreachable_pub, reason = "a test is a crate of its own: nothing is public beyond it")]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod fuzz;
mod model;
mod simulation;
mod stories;
mod violations;

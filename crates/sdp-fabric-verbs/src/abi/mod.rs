//! Layouts of other people's interfaces, written by hand.
//!
//! Only parts that are stable and used: [`verbs`] is libibverbs' binary interface, [`cm`] that of
//! the kernel's `rdma_cm` device. `tests/layout.rs` compares both with the installed headers.

pub mod cm;
pub mod verbs;

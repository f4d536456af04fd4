//! The test `failures` once more, on devices without shared receive queues: each queue pair has its own.
//! `common` tells by this file's name which they are.

#[path = "failures.rs"]
mod failures;

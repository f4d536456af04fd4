//! Linux socket semantics on the carrier and the lanes.
//!
//! The program's descriptor is, for its whole life, the connected kernel TCP socket: the *carrier*.
//! Beside it runs an SDP connection, and each direction's bytes move between the two *lanes* at exact
//! stream positions. The hooks call [`calls`]; from there a call goes down one path:
//!
//! ```text
//! api                 whose descriptor is it? which room answers?
//!   ├─ readiness      the answer for many descriptors: poll, select, epoll
//!   ├─ lifecycle      descriptors and processes that come and go
//!   ├─ migration      getting onto the SDP lane, and off it again
//!   ├─ hosts          connections to other hosts
//!   ├─ datapath       one call's bytes, from whichever lane they are on, and how it sleeps
//!   ├─ wake           how threads are woken
//!   ├─ conn           one connection, and what the kernel knows of it
//!   └─ process        what a process has once
//! ```
//!
//! A room uses rooms below it; what does not yet stands in `xtask/src/tidy/rooms.txt`.
//!
//! Rules L1–L11 and E1–E5 cited in comments are those of `docs/spec/lanes.md`.

#![cfg_attr(not(test), no_std)]

mod api;
mod conn;
mod datapath;
mod hosts;
mod lifecycle;
mod migration;
mod process;
mod readiness;
mod wake;

pub use api::calls;
pub use conn::options;
pub use process::{fork_page, libc_calls};

/// Zeros of at least `len` bytes, aligned to a page, that are never given back.
#[cfg(test)]
pub(crate) fn leaked(len: usize) -> core::ptr::NonNull<u8> {
    process::map_private(len).expect("memory")
}

//! The Linux edge: system calls that never pass through an interposed name.
//!
//! Everything the library does on its own behalf (its hidden descriptors, its probes of a carrier,
//! its wake-ups) goes to the kernel through [`raw`], so that it can never re-enter the hooks, never
//! touches `errno` and never is a cancellation point. The preload crate makes calls that must be
//! cancellation points (a blocking wait on behalf of the program) through libc instead.
//!
//! The crate refuses policy: it knows no connection, no lane and no rule.

#![cfg_attr(not(test), no_std)]

pub mod cache;
pub mod count;
pub mod doorbell;
pub mod errno;
pub mod fd;
pub mod filter;
pub mod flags;
pub mod hidden;
pub mod holders;
pub mod kernel;
pub mod libcs;
pub mod loader;
pub mod marked;
pub mod memfd;
pub mod memory;
pub mod names;
pub mod netlink;
pub mod owned;
pub mod pid;
pub mod procfs;
pub mod raw;
pub mod secret;
pub mod section;
pub mod signal;
pub mod stat;
pub mod threads;
pub mod time;
pub mod tls;
pub mod unix;

pub use errno::Errno;
pub use hidden::Hidden;
pub use owned::OwnedFd;

//! Answers for many descriptors at once: `poll`, `select`, `epoll_ctl` and `epoll_wait`.
//!
//! Called by `api`. It asks the data path whether a connection has bytes or room.

pub(crate) mod epoll;
mod poll;

pub(crate) use poll::*;

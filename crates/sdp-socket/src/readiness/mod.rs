//! Answers for many descriptors at once: `poll`, `select`, `epoll_ctl` and `epoll_wait`.
//!
//! Called by `api`. It asks the data path whether a connection has bytes or room.

pub(crate) mod epoll;
mod poll;
mod room;

pub(crate) use poll::*;
pub(crate) use room::{sender_may_go_on, sender_may_go_on_or_arm};

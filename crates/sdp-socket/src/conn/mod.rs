//! One connection: its slot, its flags and counters, its carrier and its report.
//!
//! Called by every room but `process`. [`slot`] has the connection itself.

pub(crate) mod address;
pub(crate) mod alive;
pub(crate) mod carrier;
mod flags;
mod guard;
pub(crate) mod historic;
pub(crate) mod iovec;
pub(crate) mod life;
mod noted;
pub mod options;
pub(crate) mod pool;
pub(crate) mod publish;
pub(crate) mod send_turn;
pub(crate) mod sharing;
mod slot;
pub(crate) mod words;

pub(crate) use carrier::is_end;
pub(crate) use flags::{Counted, Flags, Holders, Limits, Mask, Origin, Pages, RowFlag, Waiters};
pub(crate) use guard::{ConnGuard, is_named, number_of};
pub(crate) use noted::Noted;
pub(crate) use slot::*;

//! The interface that the socket layer needs of a lane, on any fabric.
//!
//! A *link* is one end of the second road that a connection has beside its carrier (the TCP
//! socket). The shared-memory fabric implements these traits on a segment; a fabric between hosts
//! implements them on a queue pair and on messages between the two ends. Queues (which move
//! messages) are `sdp-rdma`'s; this crate has the rest:
//!
//! | trait | what it is for | rules in `docs/spec/lanes.md` |
//! |---|---|---|
//! | [`Link`] | hands out the others, by half and by end | |
//! | [`TxCursor`], [`RxCursor`] | a half's queue, with positions that outlive a call | |
//! | [`SwitchLog`] | which lane a half's bytes are on, from which position | L1 to L10 |
//! | [`Wakeups`] | how far a half has come, and how a sleeper is found | O1 to O10 |
//! | [`EndWords`] | what an end says of itself as a whole | E1 to E4, R5, R3 |
//!
//! Handles are `Copy`, own nothing and never block. The socket layer decides which threads sleep,
//! how long, and what a process does about a dead peer.
//!
//! # Halves and sides
//! Half `h` carries the bytes that side `h` sends. The *producer* of a half is the end that sends
//! on it, the *consumer* the other one. A method is the producer's or the consumer's; its first
//! line says so. Private state (how many log entries are known, how many carrier bytes were
//! counted) is the caller's and passed by value, under the caller's lock of the half.
//!
//! # Trust
//! The peer wrote every value that a method returns, and may be hostile. Numbers that could harm
//! the caller are checked here ([`SwitchLog::next`], [`SwitchLog::accept`]), and an impossible one
//! is [`Broken`]. Positions and hints are returned as they are: the caller compares them with its
//! own and believes nothing.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod cursor;
mod end;
mod log;
mod wakeups;

pub use cursor::{RxCursor, TxCursor, TxSaved};
pub use end::{EndWords, Intent, ResetNote};
pub use log::{Ended, Holder, Lane, PENDING_MAX, Switch, SwitchLog, Trust};
pub use wakeups::{Armed, How, Wakeups, What};

/// Stops a half for good: the peer, or a dead process of this end, left an impossible value. The
/// connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// One end of an attached connection.
pub trait Link: Copy {
    /// The producer's end of a half.
    type Tx: TxCursor;
    /// The consumer's end of a half.
    type Rx: RxCursor;
    /// One half, as either end sees it.
    type Half<'a>: SwitchLog + Wakeups
    where
        Self: 'a;
    /// The statements of one end about itself.
    type End<'a>: EndWords
    where
        Self: 'a;

    /// The producer's end of half `half`, under the caller's lock of it.
    ///
    /// # Errors
    /// No producer ever saved that.
    fn open_tx(&self, half: usize, saved: TxSaved) -> Result<Self::Tx, Broken>;
    /// The consumer's end of half `half`, under the caller's lock of it: it has released everything
    /// before `freed`, and read a part of the message of `current` bytes that begins there (0:
    /// none). The producer gets the bytes that it releases at [`RxCursor::publish`].
    ///
    /// # Errors
    /// No consumer ever was there.
    fn open_rx(&self, half: usize, freed: u64, current: u32) -> Result<Self::Rx, Broken>;
    /// The half that carries the bytes that side `half` sends; `half` is taken modulo 2.
    fn half(&self, half: usize) -> Self::Half<'_>;
    /// This end.
    fn own(&self) -> Self::End<'_>;
    /// The other end.
    fn peer(&self) -> Self::End<'_>;
}

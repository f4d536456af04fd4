//! The invariants of a world, checked after each event.
//!
//! The simulated fabric is the yardstick that the engine is measured with, so it measures itself:
//! bounds of every queue, bookkeeping of the window, order of times. A broken rule is a bug of this
//! crate, never of the code under test.

use core::fmt::{self, Display};

use crate::{
    queue_pair::{Phase, QueuePair},
    world::{Credits, State},
};

/// A rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// More requests than the send queue has places.
    SendQueueOverrun(usize),
    /// More messages arrived than receive buffers exist.
    ReceiveOverrun(usize),
    /// More bytes in flight or unread than the window has, or more freed than posted.
    Window { posted: u64, freed: u64 },
    /// Messages reported are not those borrowed, released ahead and freed.
    Reported { reported: u64, known: u64 },
    /// Arrivals or completions are not in order of time.
    Order,
    /// A failed queue pair still has requests in flight.
    NotFlushed,
}

impl Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SendQueueOverrun(depth) => write!(f, "{depth} requests in the send queue"),
            Self::ReceiveOverrun(count) => write!(f, "{count} messages arrived"),
            Self::Window { posted, freed } => write!(f, "window: {posted} posted, {freed} freed"),
            Self::Reported { reported, known } => {
                write!(f, "{reported} messages reported, {known} accounted for")
            }
            Self::Order => write!(f, "requests out of order"),
            Self::NotFlushed => write!(f, "requests under way on a failed queue pair"),
        }
    }
}

/// Checks a queue pair and its peer.
pub(crate) fn check(state: &State, number: u32) -> Result<(), Broken> {
    let queue_pair = state.queue_pair(number);
    check_one(state, queue_pair)?;
    match queue_pair.peer {
        Some(peer) => check_one(state, state.queue_pair(peer)),
        None => Ok(()),
    }
}

fn check_one(state: &State, queue_pair: &QueuePair) -> Result<(), Broken> {
    let (send, receive) = (&queue_pair.send, &queue_pair.receive);
    if send.depth() > state.options.send_depth {
        return Err(Broken::SendQueueOverrun(send.depth()));
    }
    let known = receive.freed_to + (receive.borrowed.len() + receive.ahead.len()) as u64;
    let is_implicit = matches!(state.options.credits, Credits::Implicit { .. });
    if is_implicit && known != receive.reported {
        return Err(Broken::Reported { reported: receive.reported, known });
    }
    match state.options.credits {
        Credits::Explicit { buffers, .. } => {
            if receive.held() > usize::from(buffers) {
                return Err(Broken::ReceiveOverrun(receive.held()));
            }
        }
        Credits::Implicit { window_bytes, .. } => {
            let (posted, freed) = (send.posted_bytes, send.freed_bytes);
            if freed > posted || posted - freed > window_bytes {
                return Err(Broken::Window { posted, freed });
            }
        }
    }
    let is_ripe_ordered = send.running.iter().is_sorted_by(|a, b| a.ripe_at_ns <= b.ripe_at_ns);
    let is_window_ordered = send.window_updates.iter().is_sorted();
    if !is_ripe_ordered || !is_window_ordered {
        return Err(Broken::Order);
    }
    let is_idle = send.waiting.is_empty() && send.running.is_empty();
    if matches!(queue_pair.phase, Phase::Failed(_)) && !is_idle {
        return Err(Broken::NotFlushed);
    }
    Ok(())
}

//! Faults: what goes wrong by itself, and how often.
//!
//! Probabilities are ratios per opportunity (one message, one completion). Faults that destroy (a
//! connection, a node) have a budget, so that a story can be made to survive long enough to be worth
//! telling; those that delay have none. Destruction at a chosen moment is asked of the world
//! ([`crate::World::kill`], [`crate::World::fail_queue_pair`]).

use crate::link::Span;

/// A probability in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ratio(u32);

impl Ratio {
    /// Never happens.
    pub const NEVER: Self = Self(0);

    /// `n` in a million; more than a million is always.
    pub const fn per_million(n: u32) -> Self {
        Self(if n > 1_000_000 { 1_000_000 } else { n })
    }

    /// In millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }
}

/// Which faults a world has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultOptions {
    /// On arrival of a message: the connection breaks, the message is lost, both ends fail.
    pub drop_connection: Ratio,
    /// On arrival of a message: the receiving node dies.
    pub kill_peer: Ratio,
    /// On posting: the poster's queue pair fails as if its device had.
    pub fail_queue_pair: Ratio,
    /// How many of the three above may happen in all.
    pub destructive_max: u32,
    /// On posting: this queue pair's direction is held up, so that others overtake it.
    pub overtake: Ratio,
    /// For how long.
    pub overtake_delay: Span,
    /// On posting: the whole link is held up.
    pub stall: Ratio,
    /// For how long.
    pub stall_delay: Span,
    /// On arrival: the receiver answers "not ready" although it has a buffer (explicit credits only).
    pub receiver_not_ready: Ratio,
    /// On completion: the poster learns late of a request that is long done.
    pub late_completion: Ratio,
    /// How late.
    pub completion_delay: Span,
}

impl FaultOptions {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        drop_connection: Ratio::NEVER,
        kill_peer: Ratio::NEVER,
        fail_queue_pair: Ratio::NEVER,
        destructive_max: 0,
        overtake: Ratio::NEVER,
        overtake_delay: Span::new(0, 0),
        stall: Ratio::NEVER,
        stall_delay: Span::new(0, 0),
        receiver_not_ready: Ratio::NEVER,
        late_completion: Ratio::NEVER,
        completion_delay: Span::new(0, 0),
    };

    /// Everything is late, nothing is lost.
    pub const SLOW: Self = Self {
        overtake: Ratio::per_million(50_000),
        overtake_delay: Span::new(1_000, 100_000),
        stall: Ratio::per_million(5_000),
        stall_delay: Span::new(10_000, 1_000_000),
        late_completion: Ratio::per_million(100_000),
        completion_delay: Span::new(1_000, 500_000),
        ..Self::NONE
    };
}

impl Default for FaultOptions {
    fn default() -> Self {
        Self::NONE
    }
}

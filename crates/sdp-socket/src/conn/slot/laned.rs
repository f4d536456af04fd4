//! Which fast path a connection's calls may take.

use core::sync::atomic::Ordering;

use super::{Conn, Stage};

/// A stage with a lane beside the carrier: those of the fast paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Laned {
    /// [`Stage::Attached`].
    Segment,
    /// [`Stage::Guarded`].
    QueuePair,
}

impl Conn {
    /// The lane that the connection has, if it has one.
    #[inline(always)]
    pub(crate) fn lane(&self) -> Option<Laned> {
        let stage = self.stage.load(Ordering::Acquire);
        if stage < Stage::Attached as u32 {
            return None;
        }
        match stage {
            stage if stage == Stage::Attached as u32 => Some(Laned::Segment),
            stage if stage == Stage::Guarded as u32 => Some(Laned::QueuePair),
            _ => None,
        }
    }
}

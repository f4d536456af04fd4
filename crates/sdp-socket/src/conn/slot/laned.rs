//! Which fast path a connection's calls may take.

use core::sync::atomic::Ordering;

use super::{Conn, Stage};

/// A stage with a fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Laned {
    /// [`Stage::Attached`].
    Segment,
    /// [`Stage::Guarded`].
    QueuePair,
    /// [`Stage::Remote`]: it may have a lane soon.
    Unmet,
}

impl Conn {
    /// The lane that the connection has, or may have soon, if it has one.
    #[inline(always)]
    pub(crate) fn lane(&self) -> Option<Laned> {
        let stage = self.stage.load(Ordering::Acquire);
        if stage < Stage::Attached as u32 {
            return None;
        }
        match stage {
            stage if stage == Stage::Attached as u32 => Some(Laned::Segment),
            stage if stage == Stage::Guarded as u32 => Some(Laned::QueuePair),
            stage if stage == Stage::Remote as u32 => Some(Laned::Unmet),
            _ => None,
        }
    }
}

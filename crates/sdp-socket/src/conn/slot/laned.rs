//! Which fast path a connection's calls may take, and what is known of the other end's process.

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_fabric_shm::peer::PeerId;
use sdp_sys::{OwnedFd, section};

use super::{Conn, LIVE, Stage};
use crate::process;

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

impl Conn {
    /// In [`Conn::across`]: the other end is not in this network namespace.
    pub(crate) const IS_ACROSS: u32 = 1;

    /// Whether the peer process has ended, by the kernel's word; false where that cannot be found
    /// out. `within_ms`: a process that is being torn down may take so long.
    pub(crate) fn has_peer_ended(&self, within_ms: u32) -> bool {
        let _section = section::Guard::enter();
        let id = PeerId::from_word(self.peer.load(Ordering::Relaxed));
        let known = id.and_then(|id| process::peers().has_ended(id, within_ms));
        known.unwrap_or_else(|| match within_ms {
            0 => self.peer_pid().is_some_and(sdp_sys::pid::is_dead),
            _ => self.peer_pid().is_some_and(sdp_sys::pid::has_ended_or_is_about_to),
        })
    }

    /// A descriptor of the peer process, if this one may have it.
    pub(crate) fn peer_descriptor(&self, number: u32) -> Option<OwnedFd> {
        let _section = section::Guard::enter();
        let id = PeerId::from_word(self.peer.load(Ordering::Relaxed));
        match id.and_then(|id| process::peers().descriptor_of(id, number)) {
            Some(found) => found.ok(),
            None => sdp_sys::pid::descriptor_of(self.peer_pid()?, number).ok(),
        }
    }

    /// The peer process's id, if known.
    pub(crate) fn peer_pid(&self) -> Option<i32> {
        let pid = self.peer_pid.load(Ordering::Relaxed);
        (pid != 0).then_some(pid as i32)
    }

    /// Where the first number of a half of the stream is kept: 0 that of the connector.
    pub(crate) const fn first_number(&self, which: usize) -> &AtomicU32 {
        if which == 0 { &self.agreed } else { &self.heard_at }
    }

    /// Whether the slot is a connection's that has a descriptor.
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LIVE
    }

    /// Whether the other end is to be met, or was, in the directory of [`crate::process::place`]: the
    /// kernel's tables here do not know it.
    #[inline]
    pub(crate) fn is_across(&self) -> bool {
        self.across.load(Ordering::Relaxed) & Self::IS_ACROSS != 0
    }
}

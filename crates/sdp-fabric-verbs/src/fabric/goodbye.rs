//! Ids of the connection manager that end while their port is down.
//!
//! The end of an id may send a message to the peer. Soft-RoCE of Linux 6.1 fails such a message
//! where the link is down. The kernel then puts the queue pair for these messages, which all
//! processes share, back into use for sending alone: no answer of any peer is received, and nobody
//! can connect, until the device is made anew. So an id that may have something to say is kept until
//! the port is up.

use crate::{cm::CmId, pool::Region};

/// The event that a port is up may be lost. A port that is said to be down for so long is up when
/// the kernel has a road to a peer, or a peer's request has come.
const OVERDUE_NS: u64 = 60_000_000_000;

/// The ids that wait for their port.
#[derive(Debug)]
pub(super) struct Goodbyes {
    /// When that was heard, in monotonic nanoseconds.
    down_since: Option<u64>,
    waiting: Region<Option<CmId>>,
}

impl Goodbyes {
    /// With room for ids in `waiting`.
    pub(super) const fn new(waiting: Region<Option<CmId>>) -> Self {
        Self { down_since: None, waiting }
    }

    /// Whether nothing may be said to peers now.
    pub(super) const fn must_wait(&self) -> bool {
        self.down_since.is_some()
    }

    /// Whether the port has been down for so long that a sign of the opposite counts.
    pub(super) fn is_overdue(&self, now: u64) -> bool {
        self.down_since.is_some_and(|since| now.saturating_sub(since) > OVERDUE_NS)
    }

    /// Ends the id: now, or when the port is up. Without room for it, now.
    pub(super) fn end(&mut self, id: Option<CmId>) {
        if self.must_wait()
            && let Some(place) = self.waiting.as_mut().iter_mut().find(|place| place.is_none())
        {
            *place = id;
        }
    }

    /// The port went down at this time, or is up.
    pub(super) fn port_is_down(&mut self, since: Option<u64>) {
        self.down_since = since;
    }

    /// Ends what has waited, if the port is up.
    pub(super) fn say(&mut self) {
        if !self.must_wait() {
            self.forget();
        }
    }

    /// Ends what has waited.
    pub(super) fn forget(&mut self) {
        self.waiting.as_mut().iter_mut().for_each(|place| *place = None);
    }
}

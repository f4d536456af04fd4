//! Ids of the connection manager that end while their port is down.
//!
//! The end of an id may send a message to the peer. Soft-RoCE of Linux 6.1 fails such a message
//! where the link is down. The kernel then puts the queue pair for these messages, which all
//! processes share, back into use for sending alone: no answer of any peer is received, and nobody
//! can connect, until the device is made anew. So an id that may have something to say is kept until
//! the port is up.

use crate::{cm::CmId, pool::Region};

/// The ids that wait for their port.
#[derive(Debug)]
pub(super) struct Goodbyes {
    is_down: bool,
    waiting: Region<Option<CmId>>,
}

impl Goodbyes {
    /// With room for ids in `waiting`.
    pub(super) const fn new(waiting: Region<Option<CmId>>) -> Self {
        Self { is_down: false, waiting }
    }

    /// Whether nothing may be said to peers now.
    pub(super) const fn must_wait(&self) -> bool {
        self.is_down
    }

    /// Ends the id: now, or when the port is up. Without room for it, now.
    pub(super) fn end(&mut self, id: Option<CmId>) {
        let room = self.waiting.as_mut().iter_mut().find(|place| place.is_none());
        if let (true, Some(place)) = (self.is_down, room) {
            *place = id;
        }
    }

    /// The port went down, or is up: then what waited for it ends.
    pub(super) fn port_is(&mut self, up: bool) {
        self.is_down = !up;
        if up {
            self.waiting.as_mut().iter_mut().for_each(|place| *place = None);
        }
    }
}

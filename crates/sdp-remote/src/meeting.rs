//! Private data: how two ends show each other that they hold the same carrier (G9).

use sdp_guard::{
    identity::{Asked, Carrier as Identity, Refused},
    marker::Seal,
};
use sdp_proto::{Local, Remote, Violation};
use sdp_rdma::cm::PrivateData;

/// Which end of the carrier this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It accepted the TCP connection, and calls.
    Acceptor,
    /// It connected, and listens at its own address and port.
    Connector,
}

/// Why an attempt ends. The connection stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeetingError {
    /// Not proven.
    Refused(Refused),
    /// The peer's Hello or HelloAck is not to be taken.
    Hello(Violation),
    /// An answer without a question, or the peer knows no lanes.
    Unexpected,
}

/// Two ends have found each other; their proofs are still to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    pub(crate) number: u32,
    pub(crate) role: Role,
    /// Of markers that this end writes.
    pub(crate) own: Seal,
    /// Of markers that it reads.
    pub(crate) peer: Seal,
    pub(crate) local: Local,
    pub(crate) remote: Remote,
}

impl Met {
    /// The meeting's number in the life of the connection, from 1.
    pub const fn number(&self) -> u32 {
        self.number
    }
}

/// A connection's attempts, one at a time. Plain memory.
#[derive(Debug)]
pub struct Meeting {
    role: Role,
    count: u32,
    asked: Option<(Asked, Local)>,
}

impl Meeting {
    /// Of a connection that has not met.
    pub const fn new(role: Role) -> Self {
        Self { role, count: 0, asked: None }
    }

    /// Which end this is.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The acceptor's request: private data for [`crate::Host::ask`]. `local` says how many receive buffers
    /// the queue pair will have, and of which size; `nonce` is random and used once.
    ///
    /// # Errors
    /// Nothing to prove with.
    pub fn ask(
        &mut self,
        identity: &Identity<'_>,
        local: &Local,
        nonce: [u8; 8],
    ) -> Result<PrivateData, MeetingError> {
        let _ = (identity, local, nonce);
        Err(MeetingError::Unexpected)
    }

    /// The connector judges a request and makes the reply: private data for [`crate::Host::accept`]. Many connections may
    /// be asked for at one address: try each until one does not refuse.
    ///
    /// # Errors
    /// It is not for this connection, or not to be taken: refuse it.
    pub fn answer(
        &mut self,
        identity: &Identity<'_>,
        local: &Local,
        request: &[u8],
        nonce: [u8; 8],
    ) -> Result<(PrivateData, Met), MeetingError> {
        let _ = (identity, local, request, nonce);
        Err(MeetingError::Unexpected)
    }

    /// The acceptor judges the reply to its request.
    ///
    /// # Errors
    /// Disconnect: whoever answered is not the peer.
    pub fn learn(&mut self, identity: &Identity<'_>, reply: &[u8]) -> Result<Met, MeetingError> {
        let _ = (identity, reply);
        Err(MeetingError::Unexpected)
    }

    /// The attempt came to nothing: refused, unreachable, late.
    pub fn give_up(&mut self) {
        self.asked = None;
    }
}

//! Private data: how two ends show each other that they hold the same carrier (G9).

use sdp_guard::{
    identity::{Asked, Carrier as Identity, HELLO_ACK_LEN, Refused, Seals},
    marker::Seal,
};
use sdp_proto::{Local, Remote, Violation};
use sdp_rdma::{cm::PrivateData, fabric::PeerRing, key::Rkey};

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
    /// One end has a ring for messages, the other none.
    Ring,
    /// An answer without a question, or the peer knows no lanes.
    Unexpected,
}

impl MeetingError {
    /// True if the peer speaks another version, of SDP or of the proof of identity.
    pub const fn is_other_version(&self) -> bool {
        match self {
            Self::Refused(refused) => matches!(refused, Refused::Version),
            Self::Hello(violation) => violation.is_other_version(),
            Self::Ring => true,
            Self::Unexpected => false,
        }
    }
}

/// Two ends have found each other; their proofs are still to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    pub(crate) number: u32,
    pub(crate) role: Role,
    /// Of markers that this end writes.
    pub(crate) own: Seal,
    /// Of markers that it reads.
    pub(crate) peer: Seal,
    pub(crate) local: Local,
    pub(crate) remote: Remote,
}

impl Agreement {
    /// The meeting's number in the life of the connection, from 1.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Whether both ends may advertise memory.
    pub(crate) const fn has_zcopy(&self) -> bool {
        self.local.zcopy && self.remote.max_adverts >= sdp_proto::ZCOPY_ADVERTS
    }

    /// The ring in which this end writes its messages.
    pub fn peer_ring(&self) -> Option<PeerRing> {
        self.remote.ring.map(|ring| PeerRing { log2: ring.log2, key: Rkey(ring.key) })
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
        if self.role != Role::Acceptor {
            return Err(MeetingError::Unexpected);
        }
        let hello = local.hello(None).encode();
        let hello = hello.as_slice().first_chunk().ok_or(MeetingError::Unexpected)?;
        let (data, asked) = identity.request(hello, nonce).map_err(MeetingError::Refused)?;
        self.asked = Some((asked, *local));
        PrivateData::new(&data).ok_or(MeetingError::Unexpected)
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
    ) -> Result<(PrivateData, Agreement), MeetingError> {
        if self.role != Role::Connector {
            return Err(MeetingError::Unexpected);
        }
        let asked = identity.judge_request(request).map_err(MeetingError::Refused)?;
        let remote = Remote::of_hello(request).map_err(MeetingError::Hello)?;
        let mut ack = [0; HELLO_ACK_LEN];
        let encoded = local.hello_ack().encode();
        ack.iter_mut().zip(encoded).for_each(|(to, from)| *to = from);
        // The rest of the reply is not the HelloAck's.
        if let Some([.., l0, l1, l2, l3]) = ack.first_chunk_mut::<8>() {
            [*l0, *l1, *l2, *l3] = (HELLO_ACK_LEN as u32).to_be_bytes();
        }
        let key = local.ring.map_or(0, |ring| ring.key).to_be_bytes();
        let (data, seals) =
            identity.reply(&ack, key, &asked, nonce).map_err(MeetingError::Refused)?;
        let data = PrivateData::new(&data).ok_or(MeetingError::Unexpected)?;
        Ok((data, self.met(&seals, *local, remote)?))
    }

    /// Whether a request is for this connection, and to be taken: for a connector that has to make a
    /// ring before it can [`Meeting::answer`].
    ///
    /// # Errors
    /// As there.
    pub fn judge(&self, identity: &Identity<'_>, request: &[u8]) -> Result<(), MeetingError> {
        if self.role != Role::Connector {
            return Err(MeetingError::Unexpected);
        }
        identity.judge_request(request).map_err(MeetingError::Refused)?;
        let remote = Remote::of_hello(request).map_err(MeetingError::Hello)?;
        if remote.ring.is_none() { Err(MeetingError::Ring) } else { Ok(()) }
    }

    /// The acceptor judges the reply to its request.
    ///
    /// # Errors
    /// Disconnect: the process that answered is not the peer.
    pub fn learn(
        &mut self,
        identity: &Identity<'_>,
        reply: &[u8],
    ) -> Result<Agreement, MeetingError> {
        let (asked, local) = self.asked.take().ok_or(MeetingError::Unexpected)?;
        let seals = identity.judge_reply(reply, &asked).map_err(MeetingError::Refused)?;
        let remote = Remote::of_hello_ack(reply).map_err(MeetingError::Hello)?;
        self.met(&seals, local, remote)
    }

    fn met(
        &mut self,
        seals: &Seals,
        local: Local,
        remote: Remote,
    ) -> Result<Agreement, MeetingError> {
        if !remote.lane_messages || !local.lane_messages {
            return Err(MeetingError::Unexpected);
        }
        if remote.ring.is_some() != local.ring.is_some() {
            return Err(MeetingError::Ring);
        }
        let number = self.count.checked_add(1).ok_or(MeetingError::Unexpected)?;
        self.count = number;
        let (own, peer) = match self.role {
            Role::Acceptor => (seals.from_acceptor, seals.from_connector),
            Role::Connector => (seals.from_connector, seals.from_acceptor),
        };
        Ok(Agreement { number, role: self.role, own, peer, local, remote })
    }

    /// The attempt came to nothing: refused, unreachable, late.
    pub fn give_up(&mut self) {
        self.asked = None;
    }
}

//! What comes with the packets of a meeting besides their bytes: how many descriptors, and of which
//! kind.

use sdp_sys::{
    OwnedFd, fd, stat,
    unix::{self, Packet},
};

use super::{Local, PeerInfo};
use crate::{refusal::Refusal, segment};

/// Whether as many descriptors came as the packet says.
pub(super) fn check_count(packet: &Packet, expected: usize) -> Result<(), Refusal> {
    if packet.control_truncated && packet.descriptors() < unix::MAX_FDS {
        return Err(Refusal::NoDescriptors);
    }
    let is_whole = !packet.control_truncated && packet.descriptors() == expected;
    if is_whole { Ok(()) } else { Err(Refusal::Untrusted) }
}

impl PeerInfo {
    /// What came with a packet, if it is of the right kind, with its descriptors out of the
    /// program's way.
    pub(super) fn checked(self, local: &Local<'_>) -> Result<Self, Refusal> {
        if let Some(fd) = &self.doorbell {
            let is_good = match self.trusted {
                true => is_doorbell(fd.raw()),
                false => self.party.has_made(fd.raw()),
            };
            if !is_good {
                return Err(Refusal::Untrusted);
            }
        }
        if let Some(fd) = &self.doorbell_page {
            segment::verify_doorbell_page(fd.raw())?;
        }
        let hide = |fd: Option<OwnedFd>| fd.map(|fd| fd.move_up(local.hidden_min));
        Ok(Self {
            doorbell: hide(self.doorbell),
            doorbell_page: hide(self.doorbell_page),
            life: hide(self.life),
            ..self
        })
    }
}

/// Whether a descriptor can be an eventfd that does not block its writer: not a file, pipe or socket
/// in any case. (Other anonymous inodes refuse the write; the peer table looks closer, once.)
pub(super) fn is_doorbell(fd: i32) -> bool {
    stat::stat(fd).is_ok_and(|stat| stat.is_anonymous()) && fd::is_nonblocking(fd)
}

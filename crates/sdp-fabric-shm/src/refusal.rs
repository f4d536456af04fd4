//! Why two ends of a connection did not get a shared segment.

use sdp_sys::Errno;

/// A cause; each has one reason word, the one that reports, logs and tools show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The other end's socket is closed, or its process does not take part.
    PeerNotListening,
    /// No socket of this host (or of this network namespace) is the other end.
    RemotePeer,
    /// Our own socket belongs to another user than the one we run as.
    UidDiffers,
    /// A user id that our user namespace does not map: it could be any user's.
    UidUnmapped,
    /// Neither sock_diag nor /proc can be asked.
    NoProc,
    /// The kernel has no memory or mapping for it, or a file size limit forbids it.
    NoMemory,
    /// The kernel gave no descriptor, for want of numbers.
    NoDescriptors,
    /// A call is refused: a filter that the program began under, a security module.
    Forbidden,
    /// Too many offers of this process are open. May be tried again.
    RendezvousBusy,
    /// The other end answered no, or kept breaking off.
    PeerRefused,
    /// The other end answered that it has no memory or descriptors for it. May be tried again.
    PeerLacksResources,
    /// The process that answered could not prove to be the other end, or broke the protocol.
    Untrusted,
    /// The other end speaks another version.
    Version,
    /// A connection to itself: one socket is both ends.
    SelfConnection,
    /// In the directory for ends in other network namespaces no name can be made or found.
    NoMeetingPlace,
}

impl Refusal {
    /// The reason word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::PeerNotListening => "peer-not-listening",
            Self::RemotePeer => "remote-peer",
            Self::UidDiffers => "uid-differs",
            Self::UidUnmapped => "uid-unmapped",
            Self::NoProc => "no-proc",
            Self::NoMemory => "no-memory",
            Self::NoDescriptors => "no-descriptors",
            Self::Forbidden => "sandbox",
            Self::RendezvousBusy => "rendezvous-busy",
            Self::PeerRefused | Self::PeerLacksResources => "peer-refused",
            Self::Untrusted => "untrusted",
            Self::Version => "version",
            Self::SelfConnection => "self-connection",
            Self::NoMeetingPlace => "no-meeting-place",
        }
    }

    /// Whether a later attempt on the same connection may end differently without anything having
    /// been repaired: resources only.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::NoMemory | Self::NoDescriptors | Self::RendezvousBusy | Self::PeerLacksResources
        )
    }

    /// Classifies an error of a call that makes a descriptor, a mapping or a memory file.
    pub(crate) const fn of_resource(error: Errno) -> Self {
        match error.0 {
            // EAGAIN: locked-memory limit of a program that locks all its pages; EFBIG: file size.
            libc::ENOMEM | libc::ENOBUFS | libc::ENOSPC | libc::EAGAIN | libc::EFBIG => {
                Self::NoMemory
            }
            libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EAFNOSUPPORT => Self::Forbidden,
            _ => Self::NoDescriptors,
        }
    }
}

//! One rule, as it is kept.

use crate::addr::{AddressMatch, PortRange};
use crate::place::Place;

/// Rules that are kept; further ones are a diagnostic. A line of a `match` statement may make two.
pub const MAX_RULES: usize = 2048;

/// The verdict of a rule for a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Family {
    /// SDP or nothing.
    Sdp,
    /// TCP only.
    Tcp,
    /// SDP where the peer can, else TCP.
    Both,
}

impl Family {
    /// The word in the rule file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Sdp => "sdp",
            Self::Tcp => "tcp",
            Self::Both => "both",
        }
    }
}

/// Which sockets a rule is for. The two roles are separate ordered lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Sockets that listen: the local address is compared.
    Server,
    /// Sockets that connect: the remote address is compared.
    Client,
}

impl Role {
    /// The word in the rule file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// The language a rule was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Dialect {
    /// `use …`
    Ofed,
    /// `match …`: names the sockets that get SDP; everything else stays TCP.
    Topspin,
}

/// A piece of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    pub(crate) at: u16,
    pub(crate) len: u16,
}

/// One rule for one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The language it was written in.
    pub dialect: Dialect,
    /// The verdict.
    pub family: Family,
    /// Which sockets.
    pub role: Role,
    /// Shell pattern for the program's short name; read it with
    /// [`Config::text`](crate::Config::text).
    pub program: Text,
    /// Which addresses.
    pub address: AddressMatch,
    /// Which ports.
    pub ports: PortRange,
    /// Where it was written.
    pub place: Place,
}

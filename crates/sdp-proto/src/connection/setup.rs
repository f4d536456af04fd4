//! From set-up messages to the two halves (spec 5.1).

use super::{
    owed::MAX_ADVERTS,
    sink::{Sink, SinkConfig},
    source::{Source, SourceConfig},
    words::Credits,
};
use crate::wire::{
    Hello, HelloAck,
    hello::{CAPABILITY_LANES, Names, VERSION},
};

/// This end's parameters of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// How the fabric counts receive buffers.
    pub credits: Credits,
    /// Receive buffers posted before the set-up message is sent; at least 3. Ignored where credits
    /// are implicit.
    pub bufs: u16,
    /// Size in bytes of each, header included; at least 37.
    pub receive_size: u32,
    /// Whether to offer lane switches by messages (spec 2.11).
    pub lane_messages: bool,
}

/// The parameters in the peer's set-up message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Receive buffers posted.
    pub bufs: u16,
    /// Size in bytes of each.
    pub receive_size: u32,
    /// Advertisements that it accepts.
    pub max_adverts: u8,
    /// Whether it offers lane switches by messages.
    pub lane_messages: bool,
}

impl Local {
    /// An end on a fabric with implicit credits.
    pub const fn implicit(receive_size: u32) -> Self {
        Self { credits: Credits::Implicit, bufs: u16::MAX, receive_size, lane_messages: false }
    }

    /// The Hello to connect with. The hint asks for buffers as large as our own.
    pub const fn hello(&self, names: Option<Names>) -> Hello {
        Hello {
            bufs: self.announced(),
            version: VERSION,
            max_adverts: MAX_ADVERTS,
            capabilities: self.capabilities(),
            desired_receive_size: self.receive_size,
            receive_size: self.receive_size,
            names,
        }
    }

    /// The HelloAck to accept with.
    pub const fn hello_ack(&self) -> HelloAck {
        HelloAck {
            bufs: self.announced(),
            version: VERSION,
            max_adverts: MAX_ADVERTS,
            capabilities: self.capabilities(),
            receive_size: self.receive_size,
        }
    }

    /// The two halves of this end, once the peer's set-up message is known.
    pub const fn halves(&self, remote: &Remote) -> (Source, Sink) {
        let source = Source::new(&SourceConfig {
            credits: self.credits,
            peer_bufs: remote.bufs,
            peer_receive_size: remote.receive_size,
            peer_max_adverts: remote.max_adverts as u16,
            bufs: self.announced(),
            receive_size: self.receive_size,
        });
        let sink = Sink::new(&SinkConfig {
            credits: self.credits,
            receive_size: self.receive_size,
            lane_messages: self.lane_messages && remote.lane_messages,
        });
        (source, sink)
    }

    const fn announced(&self) -> u16 {
        match self.credits {
            Credits::Implicit => u16::MAX,
            Credits::Explicit => self.bufs,
        }
    }

    const fn capabilities(&self) -> u8 {
        if self.lane_messages { CAPABILITY_LANES } else { 0 }
    }
}

impl From<&Hello> for Remote {
    fn from(hello: &Hello) -> Self {
        Self {
            bufs: hello.bufs,
            receive_size: hello.receive_size,
            max_adverts: hello.max_adverts,
            lane_messages: hello.capabilities & CAPABILITY_LANES != 0,
        }
    }
}

impl From<&HelloAck> for Remote {
    fn from(ack: &HelloAck) -> Self {
        Self {
            bufs: ack.bufs,
            receive_size: ack.receive_size,
            max_adverts: ack.max_adverts,
            lane_messages: ack.capabilities & CAPABILITY_LANES != 0,
        }
    }
}

//! From set-up messages to the two halves (spec 5.1).

use super::{
    pending::MAX_ADVERTS,
    sink::{Sink, SinkConfig},
    source::{Source, SourceConfig},
    words::Credits,
    zcopy::ZCOPY_ADVERTS,
};
use crate::{
    Violation,
    wire::{
        Hello, HelloAck,
        hello::{CAPABILITY_LANES, Names, Ring, VERSION},
    },
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
    /// Whether it READs what the peer advertises, and advertises itself (spec 3.4).
    pub zcopy: bool,
    /// The ring in which the peer is to write its messages (spec 2.12).
    pub ring: Option<Ring>,
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
    /// Its ring.
    pub ring: Option<Ring>,
}

impl Local {
    /// An end on a fabric with implicit credits.
    pub const fn implicit(receive_size: u32) -> Self {
        Self {
            credits: Credits::Implicit,
            bufs: u16::MAX,
            receive_size,
            lane_messages: false,
            zcopy: false,
            ring: None,
        }
    }

    /// The Hello to connect with. The hint asks for buffers as large as our own.
    pub const fn hello(&self, names: Option<Names>) -> Hello {
        Hello {
            bufs: self.announced(),
            version: VERSION,
            max_adverts: self.adverts(),
            capabilities: self.capabilities(),
            desired_receive_size: self.receive_size,
            receive_size: self.receive_size,
            names,
            ring: self.ring,
        }
    }

    /// The HelloAck to accept with.
    pub const fn hello_ack(&self) -> HelloAck {
        HelloAck {
            bufs: self.announced(),
            version: VERSION,
            max_adverts: self.adverts(),
            capabilities: self.capabilities(),
            receive_size: self.receive_size,
            ring: self.ring,
        }
    }

    /// The two halves of this end, once the peer's set-up message is known. Where credits are
    /// implicit there are no receive buffers: their number says nothing, and no message is longer
    /// than the fabric's, which is our own size.
    pub const fn halves(&self, remote: &Remote) -> (Source, Sink) {
        let (peer_bufs, peer_receive_size) = match self.credits {
            Credits::Explicit => (remote.bufs, remote.receive_size),
            Credits::Implicit if remote.receive_size < self.receive_size => {
                (u16::MAX, remote.receive_size)
            }
            Credits::Implicit => (u16::MAX, self.receive_size),
        };
        let source = Source::new(&SourceConfig {
            credits: self.credits,
            peer_bufs,
            peer_receive_size,
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

    const fn adverts(&self) -> u8 {
        if self.zcopy { ZCOPY_ADVERTS } else { MAX_ADVERTS }
    }

    const fn capabilities(&self) -> u8 {
        if self.lane_messages { CAPABILITY_LANES } else { 0 }
    }
}

impl Remote {
    /// Judges the private data of a request: the connecting end's Hello.
    ///
    /// # Errors
    ///
    /// The rule that it breaks ([`Violation::is_other_version`] says whether the peer speaks
    /// another version): refuse.
    pub fn of_hello(data: &[u8]) -> Result<Self, Violation> {
        Hello::parse(data).map(|hello| Self::from(&hello))
    }

    /// Judges the private data of a reply: the accepting end's HelloAck.
    ///
    /// # Errors
    ///
    /// As [`Self::of_hello`].
    pub fn of_hello_ack(data: &[u8]) -> Result<Self, Violation> {
        HelloAck::parse(data).map(|ack| Self::from(&ack))
    }

    /// Packs it, for an end that keeps it for a later connection with the same peer. A ring is of one
    /// connection alone.
    pub const fn to_word(self) -> u64 {
        (self.receive_size as u64)
            | ((self.bufs as u64) << BUFS_SHIFT)
            | ((self.max_adverts as u64) << ADVERTS_SHIFT)
            | ((self.lane_messages as u64) << LANES_SHIFT)
    }

    /// Unpacks what [`Self::to_word`] packed.
    pub const fn from_word(word: u64) -> Self {
        Self {
            bufs: (word >> BUFS_SHIFT) as u16,
            receive_size: word as u32,
            max_adverts: (word >> ADVERTS_SHIFT) as u8,
            lane_messages: word >> LANES_SHIFT != 0,
            ring: None,
        }
    }
}

const BUFS_SHIFT: u32 = 32;
const ADVERTS_SHIFT: u32 = 48;
const LANES_SHIFT: u32 = 56;

impl From<&Hello> for Remote {
    fn from(hello: &Hello) -> Self {
        Self {
            bufs: hello.bufs,
            receive_size: hello.receive_size,
            max_adverts: hello.max_adverts,
            lane_messages: hello.capabilities & CAPABILITY_LANES != 0,
            ring: hello.ring,
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
            ring: ack.ring,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 16_424;

    #[test]
    fn a_fabric_without_buffers_announces_the_most_and_believes_no_number() {
        let local = Local::implicit(SIZE);
        let hello = local.hello(None);
        assert_eq!((hello.bufs, hello.version, hello.max_adverts), (u16::MAX, 0x22, 1));
        assert_eq!((hello.capabilities, hello.desired_receive_size), (0, SIZE));
        assert_eq!(Remote::of_hello(hello.encode().as_slice()), Ok(Remote::from(&hello)));
        let ack = local.hello_ack();
        assert_eq!((ack.bufs, ack.version, ack.max_adverts), (u16::MAX, 0x22, 1));
        assert_eq!(Remote::of_hello_ack(&ack.encode()), Ok(Remote::from(&ack)));
        for (said, holds) in [(37, 37), (SIZE, SIZE), (u32::MAX, SIZE)] {
            for bufs in [3, u16::MAX] {
                let remote = Remote { bufs, receive_size: said, ..Remote::from(&ack) };
                let (source, sink) = local.halves(&remote);
                assert_eq!(
                    source,
                    Source::new(&SourceConfig {
                        peer_receive_size: holds,
                        ..SourceConfig::implicit(SIZE)
                    })
                );
                assert_eq!(sink, Sink::new(&SinkConfig::implicit(SIZE)));
            }
        }
    }

    #[test]
    fn what_is_kept_is_what_was_said() {
        for bufs in [3, 4096, u16::MAX] {
            for (receive_size, max_adverts) in [(37, 1), (u32::MAX, 255), (65_536, 2)] {
                for lane_messages in [false, true] {
                    let ring = None;
                    let said = Remote { bufs, receive_size, max_adverts, lane_messages, ring };
                    assert_eq!(Remote::from_word(said.to_word()), said);
                }
            }
        }
    }

    #[test]
    fn another_version_is_told_from_what_makes_no_sense() {
        let mut bytes = Local::implicit(SIZE).hello_ack().encode();
        bytes[16] = 0x11;
        let other = Remote::of_hello_ack(&bytes).expect_err("version 1.1");
        assert!(other.is_other_version());
        bytes[16] = 0x2f;
        assert!(Remote::of_hello_ack(&bytes).is_ok(), "a minor version ends nothing");
        bytes[19] = 0;
        let absurd = Remote::of_hello_ack(&bytes).expect_err("no advertisement at all");
        assert!(!absurd.is_other_version());
    }
}

//! The SDP engine: wire formats, the two half-connections and the life cycle of a connection.
//!
//! Used by the socket layer and by the simulator. The engine is sans-IO: it knows no clock, no
//! descriptor, no thread, no allocator and no atomic. It is given parsed headers and plain integers
//! and answers with encoded headers and commands; payload bytes never pass through it. It checks
//! every value of a peer; one that breaks a rule is a [`Violation`] that names the rule.
//!
//! `spec 2.3` in a comment means section 2.3 of `docs/spec/sdp.md`.
//!
//! # How a connection is driven
//!
//! An end has a [`Source`] (its sending half) and a [`Sink`] (its receiving half). Each is plain
//! `Copy` state under its own lock, so that a reader and a writer never wait for each other. The
//! facts that one half needs of the other travel by value in three small words: [`Ack`] (sink to
//! source: the acknowledgement for our headers), [`PeerCredit`] (sink to source: the credit in the
//! peer's headers) and [`PendingControl`] (sink to source: the control messages that we have to
//! send).
//!
//! Sending, under the source's lock:
//!
//! ```
//! # use sdp_proto::{Ack, Credits, Hold, Source, SourceConfig};
//! # let mut source = Source::new(&SourceConfig::implicit(65_536));
//! # let ack = Ack::implicit(0);
//! # let mut post = |_header: &[u8], _payload: u32| true;
//! match source.next_data(ack, 1000) {
//!     // Nothing has changed yet: when the fabric is full, drop `message` and try again later.
//!     Ok(message) => {
//!         if post(message.header(), message.payload_len()) {
//!             source.commit(&message);
//!         }
//!     }
//!     Err(Hold::NoCredit) => { /* wait for a message of the peer */ }
//!     Err(_) => {}
//! }
//! ```
//!
//! Receiving, under the sink's lock: [`wire::Message::parse`], then [`take`], which asks
//! [`Sink::handle`], leaves what is pending in the [`Exchange`] and judges what is the source's,
//! then do what the [`TakenMessage`] says. Where messages rest in a ring until they are read, a
//! [`Scan`] looks ahead for answers that the source waits for.
//!
//! Parsing looks at no more than the first 40 bytes of a message ([`wire::PREFIX_MAX`]); for Data, 16
//! do.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod connection;
mod violation;
pub mod wire;

pub use connection::{
    exchange::{Exchange, TakenMessage, judge_unasked, take, take_zcopy},
    fast::{FastHeader, Sent, Taken},
    mode::Mode,
    pending::{MAX_ADVERTS, PendingControl},
    scan::Scan,
    setup::{Local, Remote},
    sink::{Sink, SinkAction, SinkConfig, SourceInput},
    source::{Hold, Outgoing, Source, SourceConfig, SourceEvent},
    words::{Ack, Corrupt, Credits, PeerCredit},
    zcopy::{ZCOPY_ADVERTS, ZcopySink, ZcopySource},
};
pub use violation::Violation;
pub use wire::{Payload, Ring};

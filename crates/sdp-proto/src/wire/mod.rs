//! The bytes of the protocol: one type per message, strict parsing, encoding into fixed arrays.
//!
//! Used by the engine halves, by tests and by tools that print traffic. All fields are big-endian.
//! Parsing looks at a prefix of a message and its total length; it never sees payload, and it never
//! keeps a reference to what it parsed. A parsed value is well-formed, not yet legal: legality
//! depends on state and is the engine's.

pub mod advert;
mod bsdh;
mod control;
pub mod hello;
pub mod lane;
mod message;
mod mid;
mod pretty;

pub use advert::{ADVERT_MAX, SinkAvail, SrcAvail};
pub(crate) use bsdh::HEADER;
pub use bsdh::{Flags, HEADER_LEN, Header, Words};
pub use control::ModeChange;
pub use hello::{Hello, HelloAck, Ring};
pub use lane::{Lane, LaneRequest, LaneSwitch};
pub use message::{Body, Encoded, Message, PREFIX_MAX, Payload};
pub use mid::Mid;

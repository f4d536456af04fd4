//! One end of a connection: its two half-connections, its life cycle, and both together.
//!
//! [`crate::Source`] and [`crate::Sink`] are what a threaded user drives, each under its own lock.
//! [`end::Connection`] joins them with the life cycle for code that drives an end from one place:
//! the simulator, the tests, and programs that know only whole connections.

pub mod credit;
pub mod end;
pub mod exchange;
pub mod fast;
pub mod mode;
pub mod pending;
pub mod scan;
pub mod setup;
pub mod sink;
pub mod source;
pub mod state;
pub mod words;
pub mod zcopy;

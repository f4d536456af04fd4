//! The halves of an end that moves payload without a copy: all of spec 3 and 7.
//!
//! [`ZcopySource`] and [`ZcopySink`] are a [`super::source::Source`] and a [`super::sink::Sink`] with
//! what is advertised beside them. They are private to one process: nothing of them is packed into
//! words. Ends whose halves several processes share use the plain halves, which answer each SrcAvail
//! with SendSm, and are legal peers of these.
//!
//! Both know lengths, numbers and positions, and never touch memory: their user registers it, READs
//! and WRITEs, and says when that has ended. What is asked of the user is at each method; the order
//! of one read is:
//!
//! 1. [`ZcopySource::advertise`]; the peer's sink says [`super::sink::SinkAction::Advertised`].
//! 2. There [`ZcopySink::next_read`] and, once the READ is posted, [`ZcopySink::read_posted`]; when it
//!    has completed, [`ZcopySink::read_done`]; or [`ZcopySink::refuse`].
//! 3. [`ZcopySink::next_answer`] becomes pending as soon as nothing else is.
//! 4. [`ZcopySource::handle`] says what was read, what is to go as Data, and when memory is free.
//!
//! A source whose peer does not answer in time says [`ZcopySource::cancel`], ends the registration, and
//! then says [`ZcopySource::withdraw`]: it never depends on an answer (spec 7.8).

mod queue;
mod setup;
mod sink;
mod source;

pub use queue::ZCOPY_ADVERTS;
pub use sink::ZcopySink;
pub use source::ZcopySource;

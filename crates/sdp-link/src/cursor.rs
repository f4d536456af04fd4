//! The private positions of a half's two ends.
//!
//! A cursor is made for each call from a few numbers in family memory ([`crate::Link::open_tx`],
//! [`crate::Link::open_rx`]), works, and is read back ([`TxCursor::cursors`] …) by the caller,
//! which stores the numbers in an order on which the next owner, after a killed process, relies.
//! Nothing is visible to the other end before `publish`.

use sdp_rdma::fabric::{QpError, ReceiveQueue, Received, SendQueue};

/// The state that a producer keeps between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxSaved {
    /// End of the published bytes.
    pub position: u64,
    /// End of the bytes that the consumer had freed at the last look.
    pub freed: u64,
    /// The fabric's own.
    pub private: u64,
}

/// The producer's end.
pub trait TxCursor: SendQueue {
    /// End of the posted bytes, and of the bytes that the consumer has freed, as of the last look.
    fn cursors(&self) -> (u64, u64);
    /// The fabric's own number of [`TxSaved`].
    fn private(&self) -> u64;
    /// Makes everything posted visible to the consumer, in the order that [`crate::Wakeups::armed`]
    /// needs.
    fn publish(&self);
    /// Looks how far the consumer has freed.
    ///
    /// # Errors
    /// It is impossible.
    fn refresh(&mut self) -> Result<(), QpError>;
    /// Bytes of the fabric that a message of `len` bytes takes, without padding that may lie before
    /// it.
    fn footprint(&self, len: usize) -> u64;
}

/// The consumer's end.
pub trait RxCursor: ReceiveQueue {
    /// End of the reported bytes, and of the released ones.
    fn cursors(&self) -> (u64, u64);
    /// Reports no message that begins at or behind this position: the section ends there.
    fn set_limit(&mut self, limit: u64);
    /// The message of `len` bytes that begins where everything before was released: an earlier
    /// cursor reported it, and it was read in part.
    fn current(&self, len: u32) -> Received;
    /// A copy that releases nothing to the producer, however far it walks.
    #[must_use]
    fn onlooker(&self) -> Self
    where
        Self: Sized;
    /// Gives the released bytes to the producer, once the caller has stored that they were read.
    fn publish(&self);
}

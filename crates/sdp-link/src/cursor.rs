//! The private positions of a half's two ends.
//!
//! A cursor is made for each call from a few numbers in family memory ([`crate::Link::open_tx`],
//! [`crate::Link::open_rx`]), works, and is read back ([`TxCursor::cursors`] …) by the caller, who
//! stores the numbers in an order that the next owner, after a killed process, relies on. Nothing
//! is visible to the other end before `publish`.

use sdp_rdma::fabric::{QpError, ReceiveQueue, Received, SendQueue};

/// What a producer keeps between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxSaved {
    /// End of what was published.
    pub position: u64,
    /// End of what the consumer had freed when it was looked at last.
    pub freed: u64,
    /// The fabric's own.
    pub private: u64,
}

/// The producer's end.
pub trait TxCursor: SendQueue {
    /// End of what was posted, and of what the consumer has freed as far as it was looked at.
    fn cursors(&self) -> (u64, u64);
    /// The fabric's own number of [`TxSaved`].
    fn private(&self) -> u64;
    /// Makes everything posted visible to the consumer, with what [`crate::Wakeups::armed`] orders.
    fn publish(&self);
    /// Looks at what the consumer has freed.
    ///
    /// # Errors
    /// It is impossible.
    fn refresh(&mut self) -> Result<(), QpError>;
    /// Bytes of the fabric that a message of `len` bytes takes, without what may lie before it.
    fn footprint(&self, len: usize) -> u64;
}

/// The consumer's end.
pub trait RxCursor: ReceiveQueue {
    /// End of what was reported, and of what was released.
    fn cursors(&self) -> (u64, u64);
    /// Reports no message that begins at or behind this position: the section ends there.
    fn set_limit(&mut self, limit: u64);
    /// The message of `len` bytes that begins where everything before was released: an earlier
    /// cursor reported it, and it was read in part.
    fn current(&self, len: u32) -> Received;
    /// A copy that releases to nobody, whatever it passes.
    #[must_use]
    fn onlooker(&self) -> Self
    where
        Self: Sized;
    /// Makes what was released the producer's, once the caller has written down that it was read.
    fn publish(&self);
}

//! The words that the two halves of one end share, in the connection's row of family memory.
//!
//! Used by [`crate::datapath::receive`] where a message is taken, and by [`crate::datapath::send`]
//! where an answer is posted. The meaning of the words is the engine's ([`sdp_proto::Exchange`]).

use core::sync::atomic::Ordering;

use sdp_proto::{Exchange, PeerCredit};
use sdp_shm::family::Row;

/// The words of a connection, as the engine sees them.
pub(crate) struct RowExchange<'a>(pub(crate) &'a Row);

impl RowExchange<'_> {
    /// Whether an answer may be pending.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.pending_word() != 0
    }
}

impl Exchange for RowExchange<'_> {
    /// Credit is implicit on shared memory: there is nothing to keep.
    #[inline]
    fn set_credit(&self, _: PeerCredit) {}

    #[inline]
    fn pending_word(&self) -> u64 {
        self.0.pending.load(Ordering::Acquire)
    }

    fn replace_pending_word(&self, from: u64, to: u64) -> Result<(), u64> {
        let orders = (Ordering::AcqRel, Ordering::Acquire);
        self.0.pending.compare_exchange(from, to, orders.0, orders.1).map(|_| ())
    }
}

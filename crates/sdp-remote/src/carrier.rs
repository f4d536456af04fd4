//! The interface that this crate needs of the TCP socket.

use sdp_proto::wire::Header;
use sdp_rdma::fabric::Gather;

/// Why the carrier did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarrierError {
    /// It would have to wait.
    WouldBlock,
    /// The kernel's error number. Interruption is not one: try again. A kernel reports an error
    /// once; a carrier reports it in each call, until the program has got it.
    Failed(i32),
}

/// The kernel's TCP socket. No call waits, none raises a signal.
pub trait Carrier {
    /// Sends bytes of `pieces`, one behind the other, as one record (`MSG_EOR | MSG_DONTWAIT |
    /// MSG_NOSIGNAL`). How many the kernel took, at least 1.
    ///
    /// # Errors
    /// None were taken.
    fn send(&mut self, pieces: [&[u8]; 2]) -> Result<usize, CarrierError>;

    /// Copies the first bytes that the kernel has and leaves them there (`MSG_PEEK | MSG_DONTWAIT`). 0: the
    /// peer has ended its stream, and there is nothing before that.
    ///
    /// # Errors
    /// There is nothing.
    fn peek(&mut self, into: &mut [u8]) -> Result<usize, CarrierError>;

    /// Takes bytes away that a peek has shown (`MSG_DONTWAIT | MSG_TRUNC` needs no buffer). How many.
    ///
    /// # Errors
    /// None were taken.
    fn discard(&mut self, len: usize) -> Result<usize, CarrierError>;

    /// Bytes that the kernel took and has not put into a segment yet (`SIOCOUTQNSD`).
    ///
    /// # Errors
    /// The kernel's.
    fn unsent(&mut self) -> Result<usize, CarrierError>;

    /// How many bytes the peer's kernel has allowed this end to send so far. That grows while its program
    /// reads, and for a while as bytes come. 0: not known.
    fn allowed(&self) -> u64 {
        0
    }

    /// Whether more bytes have come than messages of the library's own take: this end's program reads
    /// them late, or not. False: not known.
    fn is_unread(&self) -> bool {
        false
    }

    /// A message was posted to the queue pair, or taken off it: for who traces data.
    fn trace(&self, _is_sent: bool, _header: &Header) {}
}

/// A carrier that takes the program's bytes where they are.
pub trait PayloadCarrier<G: Gather>: Carrier {
    /// Sends at most `most` bytes of `payload` from byte `from` on, as [`Carrier::send`] does. How many bytes the
    /// kernel took.
    ///
    /// # Errors
    /// None were taken.
    fn send_payload(
        &mut self,
        payload: &mut G,
        from: usize,
        most: usize,
    ) -> Result<usize, CarrierError>;
}

//! The receiving half: the inbox, the guarded reading of the carrier, and which of them is next.

use sdp_rdma::fabric::{ReceiveQueue, Scatter};

use crate::{Carrier, Met, Reason, Shared};

/// What a call on the receiving half works with.
#[derive(Debug)]
pub struct ReceiveContext<'a, R, C> {
    /// The queue pair's receiving half, while there is one.
    pub rx: Option<&'a mut R>,
    /// The TCP socket.
    pub carrier: &'a mut C,
    /// The mailbox.
    pub shared: &'a Shared,
}

/// Why nothing was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvError {
    /// Nothing is there; the carrier (`POLLIN`) or the completion channel wakes.
    WouldBlock,
    /// The carrier has ended while the stream was on SDP: the peer died, and a tail may be missing. While the queue pair
    /// is not known to be dead, messages may still arrive: wait for its end, at most a second. Then it is a
    /// reset.
    Cut {
        /// The queue pair is dead and everything that had arrived was delivered.
        is_final: bool,
    },
    /// The carrier's error number.
    Carrier(i32),
    /// The peer broke a rule: reset the connection.
    Broken(Reason),
}

/// What a reader would find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readable {
    /// Nothing now.
    Nothing,
    /// At least so many bytes, at least 1.
    Bytes(u64),
    /// The end of the stream, an error, or a cut: ask [`Inbound::recv`].
    End,
}

/// The receiving half of one connection.
#[derive(Debug)]
pub struct Inbound {
    position: u64,
}

impl Inbound {
    /// At the first meeting; `position`: bytes that the program has read from the kernel so far.
    pub const fn new(position: u64) -> Self {
        Self { position }
    }

    pub(crate) fn begin(&mut self, met: &Met, shared: &Shared) {
        let _ = (met, shared);
    }

    pub(crate) fn link_destroyed(&mut self) {}

    /// True if an attempt to meet may begin, as far as this half goes.
    pub fn may_meet(&self, shared: &Shared) -> bool {
        !shared.has_link()
    }

    /// True if the dead queue pair's halves may be dropped: nothing of the program's lies in its buffers.
    pub const fn may_destroy(&self) -> bool {
        true
    }

    /// Bytes of the stream that were delivered.
    pub const fn stream(&self) -> u64 {
        self.position
    }

    /// True if payload comes by the queue pair now.
    pub const fn is_on_sdp(&self) -> bool {
        false
    }

    /// Takes what has arrived off the queue pair into the inbox, and tells the mailbox. Afterwards [`crate::Outbound::is_due`]
    /// says whether something is to be answered.
    ///
    /// # Errors
    /// [`RecvError::Broken`] only.
    pub fn gather<R: ReceiveQueue>(
        &mut self,
        rx: &mut R,
        shared: &Shared,
    ) -> Result<(), RecvError> {
        let _ = (rx, shared);
        Ok(())
    }

    /// Gives the program's `sink` what is next in the stream, wherever it came. How many bytes; 0: the peer has
    /// ended its stream (or the sink has no room). With `is_peek` everything stays where it is. Never waits.
    ///
    /// # Errors
    /// Nothing was delivered.
    pub fn recv<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
        sink: &mut impl Scatter,
        is_peek: bool,
    ) -> Result<usize, RecvError> {
        let _ = (io, sink, is_peek);
        Err(RecvError::WouldBlock)
    }

    /// Takes what has arrived and the markers that are next, and says what a reader would find.
    ///
    /// # Errors
    /// [`RecvError::Broken`] only.
    pub fn look<R: ReceiveQueue, C: Carrier>(
        &mut self,
        io: &mut ReceiveContext<'_, R, C>,
    ) -> Result<Readable, RecvError> {
        let _ = io;
        Ok(Readable::Nothing)
    }

    /// Payload bytes in the inbox that come next, without looking at the carrier: for `FIONREAD`, and to see that there is
    /// something. 0 says nothing: ask [`Inbound::look`].
    pub fn available(&self) -> u64 {
        0
    }
}

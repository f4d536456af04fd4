//! The sending half: which road new bytes take, what is kept, how it goes on when the queue pair dies.

use sdp_rdma::fabric::{Gather, SendQueue};

use crate::{Carrier, Met, PayloadCarrier, Reason, Shared};

/// What a call on the sending half works with.
#[derive(Debug)]
pub struct SendContext<'a, T, C> {
    /// The queue pair's sending half, while there is one.
    pub tx: Option<&'a mut T>,
    /// The TCP socket.
    pub carrier: &'a mut C,
    /// Where bytes are kept that were posted and not acknowledged. Always the same memory for one connection, at
    /// least one message long; 128 KiB are usual.
    pub ring: &'a mut [u8],
    /// The mailbox.
    pub shared: &'a Shared,
    /// Monotonic time in nanoseconds.
    pub now: u64,
}

/// What a sender has to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Room in the kernel's send buffer (`POLLOUT`).
    Carrier,
    /// The kernel must put what it has into segments: look again after a millisecond.
    Segments,
    /// Credit, acknowledgement or completion: the completion channel wakes; call again at this time in any
    /// case, and the bytes go by the carrier.
    Credit {
        /// Monotonic nanoseconds.
        until: u64,
    },
    /// The peer leaves the library: what it returns on the carrier ends this (`POLLIN`).
    Return,
}

/// Why nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// Not now.
    Wait(Wait),
    /// The carrier's error number; the stream is over.
    Carrier(i32),
    /// The peer broke a rule: reset the connection.
    Broken(Reason),
}

/// The sending half of one connection.
#[derive(Debug)]
pub struct Outbound {
    position: u64,
}

impl Outbound {
    /// At the first meeting; `position`: bytes that the kernel has taken from the program so far.
    pub const fn new(position: u64) -> Self {
        Self { position }
    }

    pub(crate) fn begin(&mut self, met: &Met, shared: &Shared) {
        let _ = (met, shared);
    }

    pub(crate) fn link_destroyed(&mut self) {}

    /// True if an attempt to meet may begin, as far as this half goes: on the kernel lane, nothing to write, no
    /// queue pair.
    pub fn may_meet(&self, shared: &Shared) -> bool {
        !shared.has_link()
    }

    /// True if the queue pair is proven and not known to be dead.
    pub fn is_up(&self, shared: &Shared) -> bool {
        shared.is_up() && !shared.is_link_dead()
    }

    /// True if payload goes by the queue pair now.
    pub const fn is_on_sdp(&self) -> bool {
        false
    }

    /// Bytes accepted from the program so far.
    pub const fn stream(&self) -> u64 {
        self.position
    }

    /// All sleepers of this end are armed for the queue pair, and everybody reads through the library: the peer
    /// may send by SDP. Holds until the queue pair ends; told when it is up.
    pub fn invite(&mut self) {}

    /// Takes bytes of `payload` from byte `from` on, sends them by the road that is right now, and says how many it took,
    /// at least 1 (0 only if there are none). Writes first what is owed from before. Never waits.
    ///
    /// # Errors
    /// Nothing was taken.
    pub fn send<T: SendQueue, G: Gather, C: PayloadCarrier<G>>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
        payload: &mut G,
        from: usize,
    ) -> Result<usize, SendError> {
        let _ = (io, payload, from);
        Err(SendError::Wait(Wait::Carrier))
    }

    /// Writes what is owed to the carrier: proofs, markers, and the bytes of a resume. `Ok`: nothing is left.
    ///
    /// # Errors
    /// What it waits for, or the end.
    pub fn flush<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        let _ = io;
        Ok(())
    }

    /// Everything that is due and is not payload: completions, acknowledgements, the death of the queue pair, owed control
    /// messages, credit updates, [`Outbound::flush`]. After each receive call, before each sleep, and when the
    /// completion channel woke somebody. The time at which to call again, if there is one.
    ///
    /// # Errors
    /// As [`Outbound::flush`]; [`SendError::Wait`] means that the rest is still owed.
    pub fn tend<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<Option<u64>, SendError> {
        let _ = io;
        Ok(None)
    }

    /// Cheap and without side effects: true if [`Outbound::tend`] has something to do now, apart from time.
    pub fn is_due(&self, shared: &Shared) -> bool {
        let _ = shared;
        false
    }

    /// Payload goes to the kernel from here on: what is not acknowledged is written there again. For shutdown, close and
    /// whatever SDP cannot do. Then [`Outbound::flush`].
    pub fn to_kernel(&mut self, shared: &Shared) {
        let _ = shared;
    }

    /// Lets [`Outbound::send`] go back to SDP after [`Outbound::to_kernel`].
    pub fn allow_sdp(&mut self) {}

    /// The queue pair is dead: what is not acknowledged will be written to the carrier.
    pub fn link_died(&mut self, shared: &Shared) {
        shared.link_died();
    }

    /// Posted work has not completed for 300 ms: the queue pair is taken for dead. Part of [`Outbound::tend`]; true if
    /// it was so.
    pub fn watch<T: SendQueue>(&mut self, tx: &mut T, shared: &Shared, now: u64) -> bool {
        let _ = (tx, shared, now);
        false
    }

    /// True if [`Outbound::send`] would take at least one byte now; `Err`: what to wait for. Writes what is owed first.
    ///
    /// # Errors
    /// As [`Outbound::send`].
    pub fn is_writable<T: SendQueue, C: Carrier>(
        &mut self,
        io: &mut SendContext<'_, T, C>,
    ) -> Result<(), SendError> {
        let _ = io;
        Ok(())
    }

    /// Bytes of the program that are neither acknowledged nor in the kernel: with them and the kernel's own number,
    /// `SIOCOUTQ`.
    pub fn unacknowledged(&self) -> u64 {
        0
    }

    /// True if bytes, markers or proofs wait for room in the kernel.
    pub fn has_backlog(&self) -> bool {
        false
    }
}

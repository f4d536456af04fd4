//! The traits a fabric implements.
//!
//! Contract, checked by the conformance suite:
//!
//! * **Order.** Messages arrive in the order posted, each exactly once, whole, unchanged. The two
//!   directions of a connection do not wait for each other.
//! * **Back-pressure.** [`SendQueue::post_send`] answers [`PostError::Full`] when the queue or the
//!   peer's receive window has no room; posting again after the peer released messages and the
//!   completions were polled succeeds. Nothing is half sent. Data leaves a reserve that only
//!   [`SendOptions::control`] may use.
//! * **Completions.** One for each signalled SEND and each one-sided request, in the order posted,
//!   never dropped: no room for a completion is `Full` at the post. A request that failed completes
//!   whether it was signalled or not.
//! * **Borrowing.** A received message stays readable, at the same token, until it is released;
//!   messages are released in any order. Where credits are explicit, a release posts that buffer
//!   again at once, or control messages could not pass a program that does not read (spec 4.5).
//!   Where they are implicit, room returns in arrival order, and at most [`RELEASED_AHEAD_MAX`] are
//!   released ahead of an older one that is kept.
//! * **Errors are for ever.** After [`QpError`] the queue pair accepts no work; requests posted
//!   before and not done complete as [`crate::work::Status::Flushed`] (the one that found the peer
//!   gone may say [`crate::work::Status::RetryExceeded`]). Messages that had arrived before stay
//!   readable: [`ReceiveQueue::poll_receive`] reports them first and the error afterwards.
//! * **One-sided work** needs no receive buffer, is ordered before the SENDs posted after it, and
//!   fails without touching memory when key, range or right do not fit. Whether such a failure ends
//!   the queue pair is the fabric's choice.
//! * **Set-up.** Private data arrives unchanged; every connect ends in exactly one of `Established`,
//!   `Rejected`, `Unreachable`. The accepting side may take its queues as soon as it has accepted.
//!   `Disconnected` is reported to the side that did not ask for it, once.

use core::cell::Cell;

use crate::{
    cm::{PrivateData, Reject},
    key::{Access, Lkey, LocalSlice, RemoteSlice, Rkey},
    work::{Completion, WorkId},
};

/// Messages that may have been released while an older one is still borrowed, where credits are
/// implicit. Callers keep to it: a fabric has so many places to remember them, and no more.
pub const RELEASED_AHEAD_MAX: usize = 16;

/// Where a message's payload comes from: the program's buffers, seen as one byte range.
pub trait Gather {
    /// Total length in bytes.
    fn len(&self) -> usize;
    /// Whether there is nothing to send.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bytes where they lie, if the caller leaves them as they are until the peer has
    /// acknowledged the message: a fabric may send them from there, if it knows the memory.
    fn kept(&self) -> Option<[&[u8]; 2]> {
        None
    }
    /// Copies `dst.len()` bytes starting at `offset` into `dst`. The fabric asks only within `len`.
    ///
    /// `dst` is a slice of cells because it may be memory that another process can write: no
    /// ordinary reference may point there.
    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]);
}

/// Where a message's payload goes: the program's buffers, seen as one byte range.
pub trait Scatter {
    /// Room in bytes.
    fn room(&self) -> usize;
    /// Accepts the next bytes. The fabric offers at most `room` in total. `src` may change while it
    /// is read (see [`Gather::copy_to`]): take each byte once.
    fn accept(&mut self, src: &[Cell<u8>]);
}

/// Why a post was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostError {
    /// No room now; nothing was posted.
    Full,
    /// Longer than [`SendQueue::max_message`].
    TooLong,
    /// The queue pair is in the error state.
    Failed(QpError),
    /// This fabric cannot do it (one-sided work that the peer or the system refuses).
    Unsupported,
}

/// Why a queue pair is in the error state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpError {
    /// The peer disconnected or died.
    Disconnected,
    /// The peer broke the fabric's framing.
    Framing,
    /// The device or the simulated world failed the queue pair.
    Fatal,
}

/// How a message is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendOptions {
    /// Ask for a completion.
    pub signalled: bool,
    /// Solicited event: wake the peer even if it armed for solicited messages only.
    pub solicited: bool,
    /// May use the room that is reserved for control messages.
    pub control: bool,
}

/// The ring of a peer, in which messages are written: as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRing {
    /// Its length in bytes: 2 to the power of this.
    pub log2: u8,
    /// The key to its memory, whose addresses begin at 0.
    pub key: Rkey,
}

impl PeerRing {
    /// The lengths that there are.
    pub const LOG2: core::ops::RangeInclusive<u8> = 12..=22;
}

/// Sending half of a queue pair. One thread at a time.
pub trait SendQueue {
    /// Longest message (header and payload) in bytes.
    fn max_message(&self) -> usize;
    /// Payload bytes that a message with a 16-byte header could carry now without `Full`; a hint.
    fn room(&self) -> usize;
    /// Bytes that messages of any number could take together, headers included; a hint.
    fn room_for_all(&self) -> usize {
        self.room()
    }
    /// Posts one SEND of `header` followed by all of `payload`.
    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError>;
    /// As [`SendQueue::post_send`], by a caller that posts another message at once, or calls
    /// [`SendQueue::flush`]: the fabric may give the device several together.
    fn post_send_before(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.post_send(id, header, payload, options)
    }
    /// No other message follows [`SendQueue::post_send_before`]. A queue pair that fails meanwhile
    /// says so in the next post.
    fn flush(&mut self) {}
    /// Posts a one-sided READ of `remote` into `local`.
    fn post_read(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError>;
    /// Posts a one-sided WRITE of `local` into `remote`.
    fn post_write(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError>;
    /// The protocol's word where credits are explicit: since the connection began the peer has had
    /// room for so many messages in all ([`ReceiveQueue::posted`] there and the messages received
    /// by then); wraps. A fabric that needs no such word ignores it.
    fn allow(&mut self, messages: u32) {
        let _ = messages;
    }
    /// The peer's ring, where messages are written into one: told once, before the first message.
    fn reach(&mut self, ring: PeerRing) {
        let _ = ring;
    }
    /// Whether the peer must soon be told, by any message, that there is room again in the ring of
    /// this end.
    fn owes_room(&self) -> bool {
        false
    }
    /// Changes with each piece of news that the peer makes room.
    fn progress(&self) -> u32 {
        0
    }
    /// Messages of the other direction that this end has not read, and how many it has read since
    /// the connection began; wraps. Where the fabric counts them.
    fn unread(&self) -> (u32, u32) {
        (0, 0)
    }
    /// Next completion of a signalled or one-sided request.
    fn poll_completion(&mut self) -> Option<Completion>;
}

/// A received message: a token and its length, nothing borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Names the message until it is released.
    pub token: u64,
    /// Its length in bytes (header and payload).
    pub len: u32,
}

/// Receiving half of a queue pair. One thread at a time.
pub trait ReceiveQueue {
    /// Receive buffers now posted, as the protocol's `Bufs` wants it: those ever posted minus the
    /// messages reported so far; 65535 where credits are implicit.
    fn posted(&self) -> u16;
    /// The next message that has arrived and has not been reported, if any.
    fn poll_receive(&mut self) -> Result<Option<Received>, QpError>;
    /// One more, right behind a [`ReceiveQueue::poll_receive`] that found some: the device need not be
    /// asked again.
    fn poll_another(&mut self) -> Option<Received> {
        self.poll_receive().ok().flatten()
    }
    /// Copies the first bytes of a message into `dst`; the number copied.
    fn copy_header(&self, message: Received, dst: &mut [u8]) -> usize;
    /// Hands `len` bytes from `offset` on to `sink`. The range must lie within the message.
    fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter);
    /// Gives the message's buffer back.
    fn release(&mut self, message: Received);
}

/// A registered memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Start address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Key for local use.
    pub lkey: Lkey,
    /// Key for the peer.
    pub rkey: Rkey,
}

/// Progress of a connection, reported by [`Fabric::poll_cm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmEvent<Id> {
    /// A request for a listener, with its private data; answer with accept or reject.
    Request(Id, PrivateData),
    /// Our connect was accepted, with the reply's private data.
    Established(Id, PrivateData),
    /// Our connect was refused.
    Rejected(Id, Reject),
    /// Our connect timed out or no path exists.
    Unreachable(Id),
    /// The other side disconnected, or the queue pair failed.
    Disconnected(Id),
}

/// A fabric instance as one process sees it.
pub trait Fabric {
    /// Names a connection in set-up and afterwards.
    type Id: Copy + Eq + core::fmt::Debug;
    /// Names a listener's service (a port, a rendezvous name).
    type Service: Clone;
    /// The queue pair's sending half.
    type Tx: SendQueue;
    /// The queue pair's receiving half.
    type Rx: ReceiveQueue;

    /// Whether `Bufs` counts real buffers (`false`: the byte window is the back-pressure, and
    /// credits are implicit).
    fn has_explicit_credits(&self) -> bool;
    /// Starts listening on a service.
    fn listen(&mut self, service: Self::Service) -> Result<(), Reject>;
    /// Ends listening on a service. Requests that wait for an answer stay.
    fn unlisten(&mut self, service: Self::Service) {
        let _ = service;
    }
    /// The service to whose listener a request came that was reported and not answered; `None`: no such
    /// request, or this fabric does not know.
    fn service_of(&mut self, id: Self::Id) -> Option<Self::Service> {
        let _ = id;
        None
    }
    /// Starts connecting; progress comes from [`Fabric::poll_cm`]. `data` is at most
    /// [`crate::cm::REQUEST_DATA_MAX`] bytes.
    fn connect(&mut self, service: Self::Service, data: PrivateData) -> Result<Self::Id, Reject>;
    /// Accepts a request. [`Reject::Stale`] when it is no longer there.
    fn accept(&mut self, id: Self::Id, data: PrivateData) -> Result<(), Reject>;
    /// Refuses a request.
    fn reject(&mut self, id: Self::Id, code: u8);
    /// Next connection event.
    fn poll_cm(&mut self) -> Option<CmEvent<Self::Id>>;
    /// Takes the two halves of an established connection, once.
    fn take_queues(&mut self, id: Self::Id) -> Option<(Self::Tx, Self::Rx)>;
    /// Disconnects.
    fn disconnect(&mut self, id: Self::Id);
    /// Registers memory for one-sided work. [`PostError::Full`]: the table of regions is full;
    /// [`PostError::Unsupported`]: the range is not the caller's, or no one-sided work here.
    fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<MemoryRegion, PostError>;
    /// Ends a registration; keys are invalid from here on.
    fn deregister(&mut self, region: MemoryRegion);
}

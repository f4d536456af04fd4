//! One connection between hosts: its guarded carrier and its queue pair as one object.
//!
//! The socket layer calls it; everything it needs comes in by arguments: the carrier ([`Carrier`]),
//! the queue pair's halves (any [`sdp_rdma::fabric`]), the time, random numbers, memory. No clock,
//! no allocator, no descriptor, no unsafe code, nothing that waits. Every byte of the peer is
//! judged before it is used.
//!
//! # Parts
//! [`Meeting`] makes and judges the private data with which two ends find each other. [`Outbound`]
//! and [`Inbound`] are the two directions, each under a lock of the caller's; facts that one needs
//! of the other are in [`Shared`], which needs no lock. [`Host`] owns a process's fabric and says
//! which event belongs to which connection.
//!
//! # Order of use
//! 1. An attempt begins when [`Outbound::may_meet`] and [`Inbound::may_meet`] say so. The end that
//!    *accepted* the carrier asks ([`Meeting::ask`], [`Host::ask`]); the end that *connected* it listens at
//!    its own address ([`Host::listen`]) and answers ([`Meeting::answer`], [`Host::accept`]).
//! 2. With the [`Agreement`] that comes of it, and both locks, [`begin`]. From here on **all** reading and writing
//!    of the carrier goes through [`Inbound`] and [`Outbound`]. (From the first meeting on, for ever,
//!    unless a half is raw.)
//! 3. Proofs are written and read by the ordinary calls: [`Outbound::flush`] and [`Inbound::look`] do it
//!    too. Once both are through, the queue pair is up ([`Outbound::is_up`]).
//! 4. When all sleepers of this end are armed for the queue pair: [`Outbound::invite`]. The peer may then
//!    send by SDP.
//! 5. [`Outbound::send`], [`Inbound::recv`]; [`Outbound::tend`] after each receive call and before each sleep.
//! 6. A queue pair that is dead is [`Shared::is_link_dead`]. Its halves stay until [`Inbound::may_destroy`];
//!    then drop them and call [`end`]. A new attempt may follow.
//! 7. Close and shutdown: [`Outbound::to_kernel`], [`Outbound::flush`] until there is nothing left, then the
//!    kernel's own close or shutdown.
//!
//! 8. To hand the stream to a reader without the library: end the queue pair, then [`leave`] until
//!    it is [`Leaving::Done`]. The other end answers in its ordinary calls, and [`take_return`]
//!    when [`Inbound::has_return`].
//!
//! Rules with a G are those of `docs/spec/guard.md`, sections those of `docs/spec/sdp.md`.

#![no_std]
#![forbid(unsafe_code)]

use sdp_rdma::fabric::{ReceiveQueue, SendQueue};

mod carrier;
mod host;
mod inbound;
mod meeting;
mod outbound;
mod ring;
mod shared;

pub use carrier::{Carrier, CarrierError, PayloadCarrier};
pub use host::{Event, Host};
pub use inbound::{Inbound, InboundCounts, Readable, ReceiveContext, RecvError};
pub use meeting::{Agreement, Meeting, MeetingError, Role};
pub use outbound::{Counts, KEPT_MAX, Outbound, SendContext, SendError, Wait};
pub use ring::copy_ring;
pub use sdp_guard::identity::{Carrier as Identity, Prefix};
pub use sdp_guard::parting::{Carried, Speech};
pub use shared::{FETCH, Fetch, Lent, Reason, Shared};

/// A new queue pair: both halves begin with it. Both locks are held.
pub fn begin(outbound: &mut Outbound, inbound: &mut Inbound, shared: &Shared, met: &Agreement) {
    shared.begin(met);
    outbound.begin(met);
    inbound.begin(met);
}

/// The queue pair is drained and destroyed: no device reads or writes any more. Both locks are held.
pub fn end(outbound: &mut Outbound, inbound: &mut Inbound, shared: &Shared) {
    // The half may not have seen the end: messages that are not acknowledged go to the carrier.
    outbound.link_died(shared);
    outbound.link_destroyed();
    inbound.link_destroyed();
    shared.end();
}

/// How far an end is on its way out of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// All unread bytes are, or will be, in the kernel's stream; bytes that the program writes to
    /// the kernel's socket follow those that it has sent.
    Done,
    /// For room in the carrier (`POLLOUT`), or for the peer's answer on it (`POLLIN`), or, for segments, a
    /// millisecond.
    Waits(Wait),
}

/// Why an end cannot leave. The connection is to be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveError {
    /// The peer may not know of markers yet, or this end has begun to be raw with bytes still in its inbox.
    Unable,
    /// As from a send call.
    Send(SendError),
    /// As from a receive call; ENOBUFS: more is unread than the ring has room for ([`longer_ring`]).
    Receive(RecvError),
}

/// Takes the next steps out of the library (G8), for a reader and writer of the carrier that know nothing of
/// markers. The queue pair is dead, its messages are still in `receiving`'s reach, and both locks are held. Call it until
/// [`Leaving::Done`]; nothing else is sent or delivered meanwhile.
///
/// # Errors
/// It came to nothing.
pub fn leave<R, T, C>(
    outbound: &mut Outbound,
    inbound: &mut Inbound,
    mut rx: Option<&mut R>,
    io: &mut SendContext<'_, T, C>,
) -> Result<Leaving, LeaveError>
where
    R: ReceiveQueue,
    T: SendQueue,
    C: Carrier,
{
    if outbound.is_plain() && inbound.is_plain() {
        return Ok(Leaving::Done);
    }
    if outbound.is_plain() && !outbound.has_asked() {
        // RETURN was foreseen, and this end may say nothing more: what is unread before it cannot go back.
        return Err(LeaveError::Receive(RecvError::Cut { is_final: false }));
    }
    if !outbound.may_leave() {
        return Err(LeaveError::Unable);
    }
    if outbound.is_lent() {
        // Another thread is about to take it back: where the stream goes on is known then.
        return Ok(Leaving::Waits(Wait::Unsegmented));
    }
    let mut receiving =
        ReceiveContext { rx: rx.as_deref_mut(), carrier: &mut *io.carrier, shared: io.shared };
    let may_be_alone = !outbound.is_leaving() && !io.shared.peer_leaves();
    if may_be_alone && inbound.is_over(&mut receiving) {
        outbound.leave_alone();
    } else {
        outbound.leave();
    }
    loop {
        match outbound.flush(io) {
            Ok(()) => {}
            Err(SendError::Wait(wait)) => return Ok(Leaving::Waits(wait)),
            Err(error) => return Err(LeaveError::Send(error)),
        }
        if outbound.is_plain() && inbound.is_plain() {
            return Ok(Leaving::Done);
        }
        let shared = io.shared;
        let rx = rx.as_deref_mut();
        let mut receiving = ReceiveContext { rx, carrier: &mut *io.carrier, shared };
        if outbound.has_asked() {
            match inbound.collect(&mut receiving, io.ring).map_err(LeaveError::Receive)? {
                Some((stream, len)) => outbound.give_back(stream, len),
                None if outbound.must_answer(shared) => {}
                None => return Ok(Leaving::Waits(Wait::Return)),
            }
        } else if outbound.is_held() {
            // The peer leaves, too: this end is not out before it has the bytes that come back.
            match inbound.look(&mut receiving).map_err(LeaveError::Receive)? {
                Readable::Nothing if inbound.has_return() => {}
                Readable::Nothing => return Ok(Leaving::Waits(Wait::Return)),
                // Payload of a peer that reads on stands before its RETURN.
                Readable::Bytes(_) => {
                    return Err(LeaveError::Receive(RecvError::Cut { is_final: false }));
                }
                Readable::End => return Err(LeaveError::Unable),
            }
            let taken = inbound.take_return(outbound, io.carrier, shared, io.ring);
            match taken {
                Ok(()) => {}
                Err(RecvError::WouldBlock) => return Ok(Leaving::Waits(Wait::Return)),
                Err(error) => return Err(LeaveError::Receive(error)),
            }
        } else {
            return Err(LeaveError::Unable);
        }
    }
}

/// [`leave`], [`take_return`] or [`tend_reader`] have said ENOBUFS, of a ring of `len` bytes: how long another one is to be
/// at least, and the position of the stream for [`copy_ring`]. With that in its place the call is made again. `None`: more
/// is unread than may go back. Both locks are held.
pub fn longer_ring(outbound: &Outbound, inbound: &Inbound, len: usize) -> Option<(usize, u64)> {
    if inbound.has_return() {
        // The error may be the carrier's own, whose number says nothing of the ring.
        let needed = inbound.room_for_return(outbound).filter(|needed| *needed > len)?;
        return Some((needed, outbound.stream()));
    }
    let most = sdp_guard::marker::RETURN_MAX as usize;
    (len < most).then(|| ((len * 2).min(most), inbound.stream()))
}

/// An end that [`leave`]s goes on reading and writing in the library, because its peer does not
/// answer, or because more is unread than can go back. Bytes that were taken off both roads since
/// it asked stand in the ring from this position on, so many: they are delivered first. Then
/// [`Inbound::recv`] and [`Outbound::send`] go on, and [`tend_reader`]. No queue pair follows. Both
/// locks are held.
pub fn read_on(outbound: &mut Outbound, inbound: &mut Inbound) -> (u64, usize) {
    outbound.read_on();
    inbound.read_on(outbound.has_asked())
}

/// After each call of an end that reads on: writes the messages that are due, and RETURN when the
/// peer's RAW was read. From [`Leaving::Done`] on both directions are plain. Both locks are held.
///
/// # Errors
/// The connection is to be reset.
pub fn tend_reader<T, C>(
    outbound: &mut Outbound,
    inbound: &mut Inbound,
    io: &mut SendContext<'_, T, C>,
) -> Result<Leaving, LeaveError>
where
    T: SendQueue,
    C: Carrier,
{
    if inbound.has_return() {
        match inbound.take_return(outbound, io.carrier, io.shared, io.ring) {
            Ok(()) | Err(RecvError::WouldBlock) => {}
            Err(error) => return Err(LeaveError::Receive(error)),
        }
    }
    if outbound.has_asked()
        && let Some(stream) = inbound.make_return()
    {
        outbound.give_back(stream, 0);
    }
    match outbound.flush(io) {
        Ok(()) if outbound.is_plain() && inbound.is_plain() => Ok(Leaving::Done),
        Ok(()) => Ok(Leaving::Waits(Wait::Return)),
        Err(SendError::Wait(wait)) => Ok(Leaving::Waits(wait)),
        Err(error) => Err(LeaveError::Send(error)),
    }
}

/// The peer's RETURN was read ([`Inbound::has_return`]): its bytes are taken off the carrier, and written back to it by the
/// next [`Outbound::flush`]. Both locks are held; `ring` is the sending half's.
///
/// # Errors
/// [`RecvError::WouldBlock`]: they have not all come yet. ENOBUFS: as [`longer_ring`].
pub fn take_return<C: Carrier>(
    outbound: &mut Outbound,
    inbound: &mut Inbound,
    carrier: &mut C,
    shared: &Shared,
    ring: &mut [u8],
) -> Result<(), RecvError> {
    inbound.take_return(outbound, carrier, shared, ring)
}

/// The sending half waits for the peer's RETURN, behind payload that the program has not read: one that only sends would
/// never come to it. A RETURN without bytes, which is that of an end that reads on ([`read_on`]), counts from when it is
/// seen. Both locks are held; `ring` is the sending half's, which keeps nothing meanwhile if the peer is honest.
///
/// # Errors
/// [`RecvError::Broken`] only.
pub fn foresee_return<R: ReceiveQueue, C: Carrier>(
    outbound: &mut Outbound,
    inbound: &mut Inbound,
    io: &mut ReceiveContext<'_, R, C>,
    ring: &mut [u8],
) -> Result<(), RecvError> {
    if !outbound.is_held() || outbound.is_leaving() {
        return Ok(());
    }
    let Some(stream) = inbound.foresee_return(io, ring) else { return Ok(()) };
    outbound.returned(stream, 0).map_err(|reason| {
        io.shared.broke();
        RecvError::Broken(reason)
    })
}

//! One connection between hosts: its guarded carrier and its queue pair as one object.
//!
//! The socket layer calls it; everything it needs comes in by arguments: the carrier ([`Carrier`]), the
//! queue pair's halves (any [`sdp_rdma::fabric`]), the time, random numbers, memory. No clock, no
//! allocator, no descriptor, no unsafe code, nothing that waits. What the peer wrote is judged before it
//! is used.
//!
//! # Parts
//! [`Meeting`] makes and judges the private data with which two ends find each other. [`Outbound`] and
//! [`Inbound`] are the two directions, each under a lock of the caller's; what one has to know of the
//! other is in [`Shared`], which needs no lock. [`Host`] owns a process's fabric and says which event is
//! whose.
//!
//! # Order of use
//! 1. An attempt begins when [`Outbound::may_meet`] and [`Inbound::may_meet`] say so. The end that
//!    *accepted* the carrier asks ([`Meeting::ask`], [`Host::ask`]); the end that *connected* it listens at
//!    its own address ([`Host::listen`]) and answers ([`Meeting::answer`], [`Host::accept`]).
//! 2. With the [`Met`] that comes of it, and both locks, [`begin`]. From here on **all** reading and writing
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
//! Rules with a G are those of `docs/spec/guard.md`, sections those of `docs/spec/sdp.md`.

#![no_std]
#![forbid(unsafe_code)]

mod carrier;
mod host;
mod inbound;
mod meeting;
mod outbound;
mod shared;

pub use carrier::{Carrier, CarrierError, PayloadCarrier};
pub use host::{Event, Host};
pub use inbound::{Inbound, InboundCounts, Readable, ReceiveContext, RecvError};
pub use meeting::{Meeting, MeetingError, Met, Role};
pub use outbound::{Counts, KEPT_MAX, Outbound, SendContext, SendError, Wait, Writable};
pub use sdp_guard::identity::{Carrier as Identity, Prefix};
pub use shared::{Reason, Shared};

/// A new queue pair: both halves begin with it. Both locks are held.
pub fn begin(outbound: &mut Outbound, inbound: &mut Inbound, shared: &Shared, met: &Met) {
    shared.begin(met);
    outbound.begin(met);
    inbound.begin(met);
}

/// The queue pair is drained and destroyed: no device reads or writes any more. Both locks are held.
pub fn end(outbound: &mut Outbound, inbound: &mut Inbound, shared: &Shared) {
    // The half may not have heard of the end: what is not acknowledged goes to the carrier.
    outbound.link_died(shared);
    outbound.link_destroyed();
    inbound.link_destroyed();
    shared.end();
}

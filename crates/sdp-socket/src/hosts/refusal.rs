//! The answer to a sender that may not wait where there is no room (R10).

use sdp_sys::time::monotonic_ns;

use super::{device, gather};
use crate::{
    conn::{Conn, Waiters},
    wake::interest,
};

/// How long a sender that may not wait looks for credit.
const CREDIT_LOOK_NS: u64 = 20_000;

/// What a sender that may not wait gets where there is no room.
#[derive(PartialEq, Eq)]
pub(super) enum Refusal {
    /// It looks for room for a moment first.
    NotYet,
    /// EAGAIN: the library tells it of room (R10).
    Again,
    /// No event could tell it: its bytes go by the carrier.
    ByCarrier,
}

impl Refusal {
    /// Bytes were sent after all: nobody waits for room.
    pub(super) fn is_over(&mut self, conn: &Conn) {
        if core::mem::replace(self, Self::NotYet) == Self::Again {
            interest::room_granted(conn);
        }
    }

    /// The sender found no room: whether it looks again. If not, it gets EAGAIN.
    #[cold]
    pub(super) fn is_looked_again(&mut self, conn: &Conn) -> bool {
        if *self != Self::NotYet {
            interest::sender_waits(conn);
            return false;
        }
        look_for_credit(conn);
        // Not under the lock of a half (L11).
        *self = match interest::can_wait_for_room(conn) {
            true => Self::Again,
            false => Self::ByCarrier,
        };
        if *self == Self::Again {
            // Before the last look: a wait behind it looks for room again.
            conn.set(Waiters::WantRoom);
        }
        true
    }
}

/// Looks for credit for a moment, for a sender that may not wait.
#[cold]
fn look_for_credit(conn: &Conn) {
    let end = monotonic_ns() + CREDIT_LOOK_NS;
    while !gather(conn) && monotonic_ns() < end {
        device::drain();
    }
}

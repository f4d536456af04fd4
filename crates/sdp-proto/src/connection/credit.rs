//! When a message may be sent, and when the peer must be told of new buffers (spec 4.3, 4.4).
//!
//! Pure functions of a few integers, so that the rule that keeps two ends from waiting for each
//! other for ever stands in one place.

use super::{source::Hold, words::Ack};

/// Credits that payload leaves untouched, for control messages (spec 4.3).
pub const RESERVE: u32 = 2;

/// What a message needs credit for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Data with payload, and SrcAvail with or without.
    Payload,
    /// Everything else.
    Control,
}

/// Whether a message may go with `credits` left; `raises` says whether its header allows the peer
/// more than the last one did.
#[inline]
pub(super) const fn may_send(credits: u32, raises: bool, class: Class) -> Result<(), Hold> {
    match (credits, class) {
        (0, _) => Err(Hold::NoCredit),
        (1 | RESERVE, Class::Payload) => Err(Hold::Reserved),
        (1, Class::Control) if !raises => Err(Hold::MustRaise),
        _ => Ok(()),
    }
}

/// Whether the peer has to be told of its credits by a message of its own, `told` being what our
/// last message said.
pub(super) const fn is_update_due(ack: Ack, told: Ack) -> bool {
    let raise = ack.raise_over(told);
    if raise <= 0 {
        return false;
    }
    let left = ack.left_of(told);
    if left <= 1 {
        // The peer may be unable to send anything at all.
        return true;
    }
    // What only empty messages used up is not worth a message, or updates would answer updates.
    let empties = ack.empty.wrapping_sub(told.empty) as i32;
    if raise <= empties {
        return false;
    }
    // The peer cannot send payload; or it soon will not, and there is half as much again to offer.
    left <= RESERVE as i32 || 2 * ack.bufs as i32 >= left.saturating_mul(3).saturating_add(2)
}

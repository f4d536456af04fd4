//! When a message may be sent, and when the peer must learn of new buffers (spec 4.3, 4.4).
//!
//! Pure functions of a few integers, so that the rule that keeps two ends from waiting for each
//! other for ever stands in one place.

use super::{source::Hold, words::Ack};

/// Credits that payload leaves untouched, for control messages (spec 4.3).
pub const RESERVE: u32 = 2;

/// The reason for which a message needs credit.
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

/// Whether the peer has to learn of its credits by a message of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// No: it knows enough, or there is nothing new.
    No,
    /// Unless something else is sent for a while.
    Late,
    /// Now.
    Now,
}

/// Compares the credits that our last message `sent_ack` the peer with those that are true now.
///
/// An update uses up a buffer of the peer, so that the peer has credits to report, too. With few
/// buffers posted at both ends each update takes the other end to the reserve, and ends that answer
/// at once answer for ever; ends that do not answer leave each other in the reserve. So buffers
/// that only empty messages used up are reported late: slowly, an end that waits gets on.
pub(super) const fn update_due(ack: Ack, sent_ack: Ack) -> Due {
    let raise = ack.raise_over(sent_ack);
    if raise <= 0 {
        return Due::No;
    }
    let left = ack.left_of(sent_ack);
    let empties = ack.empty.wrapping_sub(sent_ack.empty) as i32;
    if left <= RESERVE as i32 {
        // The peer cannot send payload, or nothing at all.
        return if raise > empties {
            Due::Now
        } else if left < RESERVE as i32 || ack.bufs as u32 > RESERVE {
            Due::Late
        } else {
            Due::No
        };
    }
    // It soon will not be able to, and there is half as much again to offer.
    if raise > empties && 2 * ack.bufs as i32 >= left.saturating_mul(3).saturating_add(2) {
        Due::Now
    } else {
        Due::No
    }
}

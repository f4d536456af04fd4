//! A model of two processes that believe each other on an offer slot: do both attach the same
//! connection?
//!
//! All connections here are between the same two addresses, one after another; the client's end of
//! each is the offerer's or some other process's, the taker accepts them all. An end that was reset
//! without being read from looks like a living one to its process. An offer that is withdrawn costs
//! its offer slot: the next one is on another. The kernel's part: it has one place for the server's
//! end. For the client's end it has one as well, but for clients that are bound to a device: beside
//! those it makes another one, whose coming resets the end at the server's place. Resets come at
//! any time, at either end. Promise: when both ends of a segment are attached, their sockets are
//! the ends of one connection.

use std::{format, string::String, vec::Vec};

use sdp_model::{Model, Step, fails, holds};

/// Connections made in all.
const MOST: u8 = 3;
/// Offers made in all.
const OFFERS: u8 = 2;
/// Times that the taker comes in all.
const VISITS: u8 = 3;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// The taker does not look whether it is connected.
    TakerBelieves,
    /// It looks before it sees the offer.
    TakerLooksEarly,
    /// The offerer does not look when its offer was taken.
    OffererBelieves,
    /// It looks when it makes the offer.
    OffererLooksEarly,
    /// A second offer is made on the offer slot of the first.
    OffersAgain,
    /// A client that is bound to a device makes offers, and they are kept.
    OffersBound,
    /// The offerer looks whether it is bound when it makes the offer, and not again.
    BoundLater,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Offerer {
    Idle,
    /// Has an offer out, for its end of this connection.
    Waits(u8),
    Attached(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Taker {
    Idle,
    /// Is about to look at the offer slot, for its end of this connection.
    Comes(u8),
    /// Has seen an offer, the second number.
    Sees(u8, u8),
    /// Has looked at its own end since.
    Takes(u8, u8),
    Attached(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    /// Connections made; each one's number is its place in the order, from 1.
    made: u8,
    /// Bit of each connection whose client's end is the offerer's.
    offerers: u8,
    /// Bit of each connection whose client is bound to a device.
    bound: u8,
    /// Bit of each connection whose client is connected.
    clients: u8,
    /// The connection that has the server's place; 0 none.
    server: u8,
    is_offered: bool,
    is_taken: bool,
    offers: u8,
    visits: u8,
    offerer: Offerer,
    taker: Taker,
}

impl S {
    fn is_client_connected(&self, number: u8) -> bool {
        self.clients & 1 << number != 0
    }
}

struct Equals(Twin);

impl Equals {
    /// Whether the offer that is there is none that the taker saw.
    fn is_another(&self, s: &S, seen: u8) -> bool {
        seen != s.offers && self.0 != Twin::OffersAgain
    }

    fn offer(&self, s: &S, to: &mut Vec<Step<S>>) {
        match s.offerer {
            Offerer::Idle if s.offers < OFFERS && !s.is_offered && !s.is_taken => {
                for number in 1..=s.made {
                    let is_bound = s.bound & 1 << number != 0;
                    if s.offerers & 1 << number == 0
                        || is_bound && self.0 != Twin::OffersBound
                        || self.0 == Twin::OffererLooksEarly && !s.is_client_connected(number)
                    {
                        continue;
                    }
                    let offerer = Offerer::Waits(number);
                    let offers = s.offers + 1;
                    to.push(("offers", Ok(S { offerer, offers, is_offered: true, ..s.clone() })));
                }
            }
            Offerer::Waits(number) if s.is_taken => {
                let looks = !matches!(self.0, Twin::OffererBelieves | Twin::OffererLooksEarly);
                let is_bound = s.bound & 1 << number != 0
                    && !matches!(self.0, Twin::OffersBound | Twin::BoundLater);
                let is_proven = !looks || s.is_client_connected(number) && !is_bound;
                let offerer = if is_proven { Offerer::Attached(number) } else { Offerer::Idle };
                to.push(("sees the answer", Ok(S { offerer, ..s.clone() })));
            }
            Offerer::Waits(_) => {
                let offerer = Offerer::Idle;
                to.push(("withdraws", Ok(S { offerer, is_offered: false, ..s.clone() })));
            }
            Offerer::Idle | Offerer::Attached(_) => {}
        }
    }

    fn take(&self, s: &S, to: &mut Vec<Step<S>>) {
        let next = |taker| Ok(S { taker, ..s.clone() });
        let is_connected = |number| s.server == number;
        match s.taker {
            Taker::Idle if s.visits < VISITS => {
                for number in 1..=s.made {
                    if self.0 != Twin::TakerLooksEarly || is_connected(number) {
                        let (taker, visits) = (Taker::Comes(number), s.visits + 1);
                        to.push(("comes", Ok(S { taker, visits, ..s.clone() })));
                    }
                }
            }
            Taker::Comes(number) => {
                let taker = if s.is_offered { Taker::Sees(number, s.offers) } else { Taker::Idle };
                to.push(("looks at the offer slot", next(taker)));
            }
            Taker::Sees(number, offer) => {
                let looks = !matches!(self.0, Twin::TakerBelieves | Twin::TakerLooksEarly);
                let is_proven = !looks || is_connected(number);
                let taker = if is_proven { Taker::Takes(number, offer) } else { Taker::Idle };
                to.push(("looks at its end", next(taker)));
            }
            // The claim is compared and swapped: an offer that was withdrawn is not taken.
            Taker::Takes(_, offer) if !s.is_offered || self.is_another(s, offer) => {
                to.push(("is too late", next(Taker::Idle)));
            }
            Taker::Takes(number, _) => {
                let taker = Taker::Attached(number);
                let taken = S { taker, is_offered: false, is_taken: true, ..s.clone() };
                to.push(("takes", Ok(taken)));
            }
            Taker::Idle | Taker::Attached(_) => {}
        }
    }
}

impl Model for Equals {
    type State = S;

    fn start(&self) -> S {
        S {
            made: 0,
            offerers: 0,
            bound: 0,
            clients: 0,
            server: 0,
            is_offered: false,
            is_taken: false,
            offers: 0,
            visits: 0,
            offerer: Offerer::Idle,
            taker: Taker::Idle,
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        // Where no client is left, the end that is still at the server's place has to be reset
        // first.
        let has_room = s.clients & !s.bound == 0 && (s.server == 0 || s.clients != 0);
        if has_room && s.made < MOST {
            let made = s.made + 1;
            let clients = s.clients | 1 << made;
            let another = S { made, clients, server: made, ..s.clone() };
            let offerers = s.offerers | 1 << made;
            to.push(("the offerer connects", Ok(S { offerers, ..another.clone() })));
            to.push(("another process connects", Ok(another)));
        }
        for number in 1..=s.made {
            if s.is_client_connected(number) {
                let bound = s.bound | 1 << number;
                if bound != s.bound {
                    to.push(("a client is bound", Ok(S { bound, ..s.clone() })));
                }
                let clients = s.clients & !(1 << number);
                to.push(("a client is reset", Ok(S { clients, ..s.clone() })));
            }
        }
        if s.server != 0 {
            to.push(("the server's end is reset", Ok(S { server: 0, ..s.clone() })));
        }
        self.offer(s, to);
        self.take(s, to);
    }

    fn check(&self, s: &S) -> Result<(), String> {
        match (s.offerer, s.taker) {
            (Offerer::Attached(a), Taker::Attached(b)) if a != b => {
                Err("two connections share a segment".into())
            }
            _ => Ok(()),
        }
    }

    fn may_rest(&self, _: &S) -> Result<(), String> {
        Ok(())
    }
}

const LIMIT: usize = 1_000_000;

#[test]
fn two_connected_ends_are_of_one_connection() {
    holds("meeting of equals", &Equals(Twin::Faithful), LIMIT);
}

#[test]
fn every_rule_is_needed() {
    for twin in [
        Twin::TakerBelieves,
        Twin::TakerLooksEarly,
        Twin::OffererBelieves,
        Twin::OffererLooksEarly,
        Twin::OffersAgain,
        Twin::OffersBound,
        Twin::BoundLater,
    ] {
        fails(&format!("meeting of equals, {twin:?}"), &Equals(twin), LIMIT);
    }
}

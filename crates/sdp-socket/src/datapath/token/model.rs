//! A model of the tokens at the beginning of both halves of a connection whose ends have met in a
//! directory: sections of the log, what goes by the carrier, and what the programs get.
//!
//! Tokens are the real ones; log, carrier and rings are the model's, in units of one payload or one
//! token. A third process may stand between both ends: it passes the packets of the meeting on, has
//! the memory of both rings, and forges entries and payload, but cannot write into the carrier.
//! Promises: each program gets the other one's payload, in order; with a process in between no
//! payload enters a ring, and none is taken out of one; without one nothing is reset, no program gets
//! a token, and all payload arrives. Wake-ups are other models' (`datapath/wait/model.rs`, `sdp-shm`).

use std::{format, string::String, vec::Vec};

use sdp_fabric_shm::token::{TOKEN_LEN, TokenKey};
use sdp_model::{Model, Size, Step, fails, holds, size};
use sdp_sys::stat::Identity;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    Faithful,
    /// Payload enters a ring when the own token was sent.
    PayloadBeforeToken,
    /// Payload is taken out of a ring before the incoming token.
    TakesBeforeToken,
    /// The token names no process.
    TokenWithoutProcess,
    /// It is sent while a thread reads in the kernel, without the library.
    SentToSleepers,
    /// It is sent before its section is in the log.
    SentBeforeAnnounced,
    /// A consumer that awaits it reads what came after its look at the log.
    ReadsWithoutBound,
    /// The end that accepted does not wait for the other one's token before it sends payload.
    AnyTokenWillDo,
}

/// What the carrier holds: payload by its number, or a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    Payload(u8),
    Token,
}

/// A reader of a half, between its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    /// In the kernel, since before the ends met.
    Raw,
    Idle,
    /// So many items lay in the carrier.
    Counted(u8),
    /// The log had no entry.
    Looked,
}

/// Payload that the third process made.
const FORGED: u8 = 99;

/// One direction. The side that sends has its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Direction {
    carrier: Vec<Item>,
    ring: Vec<u8>,
    /// Entries: carrier position, and whether the ring comes next.
    log: Vec<(u8, bool)>,
    /// The producer: items sent by the carrier, payload sent, whether its lane is the ring.
    sent: u8,
    next: u8,
    on_ring: bool,
    is_due: bool,
    is_owed: bool,
    /// The consumer: items read, payload got, entries followed, lane.
    read: u8,
    got: u8,
    followed: u8,
    reads_ring: bool,
    is_awaited: bool,
    is_trusted: bool,
    reader: Reader,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    ways: [Direction; 2],
    is_reset: bool,
    has_forged: bool,
}

struct Tokens {
    twin: Twin,
    /// A third process has the memory.
    is_between: bool,
    payload: u8,
}

const NAMES: [[&str; 7]; 2] = [
    [
        "0 sends",
        "0 announces",
        "0 sends its token",
        "0 enters",
        "0 publishes",
        "0 reads",
        "0 trusts",
    ],
    [
        "1 sends",
        "1 announces",
        "1 sends its token",
        "1 enters",
        "1 publishes",
        "1 reads",
        "1 trusts",
    ],
];

impl Tokens {
    /// The token of side `sender`, as side `at` computes it.
    fn token(&self, at: usize, sender: usize) -> [u8; TOKEN_LEN] {
        const THIRD: u64 = 3;
        let mut processes = [1, 2];
        if self.is_between {
            processes[1 - at] = THIRD;
        }
        if self.twin == Twin::TokenWithoutProcess {
            processes = [0, 0];
        }
        let segment = Identity { dev: 0, ino: 1 };
        TokenKey::new([&[1; 16], &[2; 16]], segment, processes).of_side(sender as u8)
    }

    fn is_right(&self, sender: usize) -> bool {
        self.token(sender, sender) == self.token(1 - sender, sender)
    }

    /// A program gets an item.
    fn deliver(&self, way: &mut Direction, item: Item) -> Result<(), String> {
        match item {
            Item::Payload(FORGED) => Err("a program gets forged payload".into()),
            Item::Payload(n) if n == way.got => {
                way.got += 1;
                Ok(())
            }
            Item::Payload(n) => Err(format!("payload {n} comes out of order")),
            // A third process may say that the other end reads by the library.
            Item::Token if self.is_between => Ok(()),
            Item::Token => Err("a program gets a token".into()),
        }
    }

    fn deliver_all(&self, way: &mut Direction, most: usize) -> Result<(), String> {
        for _ in 0..most.min(way.carrier.len()) {
            way.read += 1;
            let item = way.carrier.remove(0);
            self.deliver(way, item)?;
        }
        Ok(())
    }

    fn produce(&self, s: &S, p: usize, to: &mut Vec<Step<S>>) {
        let incoming_awaited = s.ways[1 - p].is_awaited;
        let way = &s.ways[p];
        // Words of the other end in the memory, which a third process may write.
        let all_followed = usize::from(way.followed) == way.log.len() || self.is_between;
        let is_trusted = way.is_trusted || self.is_between;
        let change = |by: &dyn Fn(&mut Direction)| {
            let mut next = s.clone();
            by(&mut next.ways[p]);
            Ok(next)
        };
        let has_more = way.next < self.payload;
        if has_more && !way.on_ring && !way.is_owed {
            let send = |way: &mut Direction| {
                way.carrier.push(Item::Payload(way.next));
                way.sent += 1;
                way.next += 1;
            };
            to.push((NAMES[p][0], change(&send)));
        }
        let is_read_by_library = is_trusted || self.twin == Twin::SentToSleepers;
        let may_speak = p == 0 || !incoming_awaited;
        if way.is_due && !way.is_owed && may_speak && is_read_by_library && all_followed {
            let announce = |way: &mut Direction| {
                if self.twin == Twin::SentBeforeAnnounced {
                    way.carrier.push(Item::Token);
                } else {
                    way.log.extend([(way.sent, true), (way.sent + 1, false)]);
                }
                way.is_owed = true;
            };
            to.push((NAMES[p][1], change(&announce)));
        }
        if way.is_owed {
            let send = |way: &mut Direction| {
                if self.twin == Twin::SentBeforeAnnounced {
                    way.log.extend([(way.sent, true), (way.sent + 1, false)]);
                } else {
                    way.carrier.push(Item::Token);
                }
                way.sent += 1;
                (way.is_due, way.is_owed) = (false, false);
            };
            to.push((NAMES[p][2], change(&send)));
        }
        let is_proven = match self.twin {
            Twin::PayloadBeforeToken => true,
            Twin::AnyTokenWillDo => p == 1 || !incoming_awaited,
            _ => !incoming_awaited,
        };
        let is_spoken = !way.is_due || self.twin == Twin::AnyTokenWillDo && p == 1 && !way.is_owed;
        if has_more && !way.on_ring && is_spoken && is_proven && is_trusted && all_followed {
            let enter = |way: &mut Direction| {
                way.log.push((way.sent, true));
                way.on_ring = true;
            };
            to.push((NAMES[p][3], change(&enter)));
        }
        if has_more && way.on_ring {
            let publish = |way: &mut Direction| {
                way.ring.push(way.next);
                way.next += 1;
            };
            let published = change(&publish);
            let seen = "payload is in memory of a third process";
            to.push((NAMES[p][4], if self.is_between { Err(seen.into()) } else { published }));
        }
    }

    /// One step of the reader of the way that `p` sends on.
    fn read(&self, s: &S, p: usize) -> Option<Result<S, String>> {
        let mut next = s.clone();
        let way = &mut next.ways[p];
        let entry = way.log.get(usize::from(way.followed)).copied();
        if entry.is_some_and(|(at, _)| at < way.read) && way.reader != Reader::Raw {
            next.is_reset = true;
            return Some(Ok(next));
        }
        let done = match way.reader {
            Reader::Raw if way.carrier.is_empty() => return None,
            Reader::Raw => {
                way.reader = Reader::Idle;
                self.deliver_all(way, usize::MAX)
            }
            Reader::Idle if way.reads_ring => {
                let payload = (!way.ring.is_empty()).then(|| way.ring.remove(0))?;
                self.deliver(way, Item::Payload(payload))
            }
            Reader::Idle if !way.is_awaited => match entry {
                Some((at, true)) if at == way.read => {
                    way.followed += 1;
                    way.reads_ring = true;
                    Ok(())
                }
                Some((_, true)) if way.carrier.is_empty() => return None,
                Some((at, true)) => self.deliver_all(way, usize::from(at - way.read)),
                Some((_, false)) => Err("an entry to the kernel lane, on it".into()),
                None if way.carrier.is_empty() => return None,
                None => self.deliver_all(way, usize::MAX),
            },
            Reader::Idle => {
                if self.twin == Twin::TakesBeforeToken && !way.ring.is_empty() {
                    let payload = way.ring.remove(0);
                    self.deliver(way, Item::Payload(payload))
                } else if way.carrier.is_empty() {
                    return None;
                } else {
                    way.reader = Reader::Counted(way.carrier.len() as u8);
                    Ok(())
                }
            }
            Reader::Counted(count) => {
                way.reader = Reader::Idle;
                match entry {
                    Some((at, _)) if at > way.read => {
                        self.deliver_all(way, usize::from(at - way.read))
                    }
                    Some(_) => {
                        if let Some(first) = way.carrier.first() {
                            let is_right = *first == Item::Token && self.is_right(p);
                            let end = way.log.get(usize::from(way.followed) + 1);
                            if is_right && end == Some(&(way.read + 1, false)) {
                                way.carrier.remove(0);
                                way.read += 1;
                                way.followed += 2;
                                way.is_awaited = false;
                            } else {
                                next.is_reset = true;
                            }
                        }
                        Ok(())
                    }
                    None if self.twin == Twin::ReadsWithoutBound => {
                        way.reader = Reader::Looked;
                        Ok(())
                    }
                    None => self.deliver_all(way, usize::from(count)),
                }
            }
            Reader::Looked => {
                way.reader = Reader::Idle;
                self.deliver_all(way, usize::MAX)
            }
        };
        Some(done.map(|()| next))
    }
}

impl Model for Tokens {
    type State = S;

    fn start(&self) -> S {
        let way = Direction {
            carrier: Vec::new(),
            ring: Vec::new(),
            log: Vec::new(),
            sent: 0,
            next: 0,
            on_ring: false,
            is_due: true,
            is_owed: false,
            read: 0,
            got: 0,
            followed: 0,
            reads_ring: false,
            is_awaited: true,
            is_trusted: false,
            reader: Reader::Raw,
        };
        // Of one half a thread of the program reads in the kernel when the ends meet.
        let other = Direction { reader: Reader::Idle, ..way.clone() };
        S { ways: [way, other], is_reset: false, has_forged: false }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        if s.is_reset {
            return;
        }
        for p in 0..2 {
            self.produce(s, p, to);
            to.extend(self.read(s, p).map(|next| (NAMES[1 - p][5], next)));
            let way = &s.ways[p];
            if !way.is_trusted && way.reader != Reader::Raw {
                let mut next = s.clone();
                next.ways[p].is_trusted = true;
                to.push((NAMES[1 - p][6], Ok(next)));
            }
            if self.is_between && !s.has_forged {
                let mut next = S { has_forged: true, ..s.clone() };
                let way = &mut next.ways[p];
                way.ring.push(FORGED);
                way.log.push((way.read, true));
                to.push(("a third process forges", Ok(next)));
            }
        }
    }

    fn check(&self, s: &S) -> Result<(), String> {
        if s.is_reset && !self.is_between { Err("reset without a cause".into()) } else { Ok(()) }
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        let is_done = s.ways.iter().all(|way| way.got == self.payload);
        if self.is_between || is_done { Ok(()) } else { Err("payload does not arrive".into()) }
    }
}

const LIMIT: usize = 5_000_000;

#[test]
fn no_payload_moves_before_the_token() {
    let payload = if size() == Size::Unit { 2 } else { 3 };
    for is_between in [false, true] {
        let name = if is_between { "tokens, a process between" } else { "tokens" };
        holds(name, &Tokens { twin: Twin::Faithful, is_between, payload }, LIMIT);
    }
}

#[test]
fn every_rule_is_needed() {
    for (twin, is_between) in [
        (Twin::PayloadBeforeToken, true),
        (Twin::TakesBeforeToken, true),
        (Twin::TokenWithoutProcess, true),
        (Twin::AnyTokenWillDo, true),
        (Twin::SentToSleepers, false),
        (Twin::SentBeforeAnnounced, false),
        (Twin::ReadsWithoutBound, false),
    ] {
        fails(&format!("tokens, {twin:?}"), &Tokens { twin, is_between, payload: 2 }, LIMIT);
    }
}

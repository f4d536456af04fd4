//! A model of the tail that the consumer has seen: a producer that sends by the ring and by the
//! kernel, and a consumer that reads the ring by the fast path up to where it was published when it
//! last looked.
//!
//! Ring, kernel queue and switch log are the model's; the order of looks is that of `pull`. The
//! slow path, which follows entries, is one step: the lane model has it step by step. Promise:
//! every byte, once, in order.

use std::{collections::VecDeque, format, string::String, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// Looks for switches before it looks how far the ring is published.
    LooksForSwitchesFirst,
    /// Does not look for switches.
    LooksForNone,
    /// Takes the published tail as its seen tail after a call by the slow path.
    SeesByItself,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Consumer {
    Idle,
    /// Has seen the ring published up to here.
    SawTail(u8),
    /// Has seen no switch.
    SawNoSwitch,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    /// By position: which byte of the stream.
    ring: Vec<u8>,
    kernel: VecDeque<u8>,
    /// Switches, to the kernel lane and back by turns: positions in the ring, and of the kernel's bytes.
    entries: Vec<(u8, u8)>,
    sent: u8,
    /// On the kernel lane, sent and got.
    by_kernel: [u8; 2],
    got: u8,
    head: u8,
    seen_tail: u8,
    followed: u8,
    consumer: Consumer,
}

struct SeenTail {
    twin: Twin,
    bytes: u8,
    switches: u8,
}

impl SeenTail {
    /// A byte for the program.
    fn take(s: &mut S, byte: u8) -> Result<(), String> {
        if byte != s.got {
            return Err(format!("byte {byte} where {} belongs", s.got));
        }
        s.got += 1;
        Ok(())
    }

    fn produce(&self, s: &S, to: &mut Vec<Step<S>>) {
        if s.sent < self.bytes {
            let mut next = s.clone();
            if s.entries.len().is_multiple_of(2) {
                next.ring.push(s.sent);
            } else {
                next.kernel.push_back(s.sent);
                next.by_kernel[0] += 1;
            }
            next.sent += 1;
            to.push(("sends", Ok(next)));
        }
        if s.entries.len() < usize::from(self.switches) {
            let mut next = s.clone();
            next.entries.push((s.ring.len() as u8, s.by_kernel[0]));
            to.push(("switches", Ok(next)));
        }
    }

    /// The slow path: one byte, or one entry.
    fn follow(&self, before: &S) -> Option<Result<S, String>> {
        let mut s = before.clone();
        let pending = s.entries.get(usize::from(s.followed)).copied();
        let on_ring = s.followed.is_multiple_of(2);
        let is_reached = |(ring, kernel)| {
            if on_ring { ring == before.head } else { kernel == before.by_kernel[1] }
        };
        let byte = if pending.is_some_and(is_reached) {
            s.followed += 1;
            None
        } else if on_ring {
            let byte = s.ring.get(usize::from(s.head)).copied()?;
            s.head += 1;
            Some(byte)
        } else {
            s.by_kernel[1] += 1;
            Some(s.kernel.pop_front()?)
        };
        let opens = self.twin == Twin::SeesByItself;
        s.seen_tail = if opens { s.ring.len() as u8 } else { s.head };
        Some(match byte {
            Some(byte) => Self::take(&mut s, byte).map(|()| s),
            None => Ok(s),
        })
    }

    fn consume(&self, before: &S) -> Option<Result<S, String>> {
        let mut s = before.clone();
        let tail = s.ring.len() as u8;
        let is_quiet = s.entries.len() == usize::from(s.followed);
        if !s.followed.is_multiple_of(2) {
            return self.follow(before); // not on the ring: the fast path refuses
        }
        s.consumer = match s.consumer {
            Consumer::Idle if s.head < s.seen_tail => {
                let byte = s.ring[usize::from(s.head)];
                s.head += 1;
                return Some(Self::take(&mut s, byte).map(|()| s));
            }
            Consumer::Idle if self.twin == Twin::LooksForSwitchesFirst => {
                if !is_quiet {
                    return self.follow(before);
                }
                Consumer::SawNoSwitch
            }
            Consumer::Idle if tail == s.head && is_quiet => return None,
            Consumer::Idle => Consumer::SawTail(tail),
            Consumer::SawTail(tail) if is_quiet || self.twin == Twin::LooksForNone => {
                s.seen_tail = tail;
                Consumer::Idle
            }
            Consumer::SawTail(_) => {
                s.consumer = Consumer::Idle;
                return self.follow(&s);
            }
            Consumer::SawNoSwitch => {
                if tail == s.head && is_quiet {
                    return None;
                }
                s.seen_tail = tail;
                Consumer::Idle
            }
        };
        Some(Ok(s))
    }
}

impl Model for SeenTail {
    type State = S;

    fn start(&self) -> S {
        S {
            ring: Vec::new(),
            kernel: VecDeque::new(),
            entries: Vec::new(),
            sent: 0,
            by_kernel: [0; 2],
            got: 0,
            head: 0,
            seen_tail: 0,
            followed: 0,
            consumer: Consumer::Idle,
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        self.produce(s, to);
        to.extend(self.consume(s).map(|next| ("reads", next)));
        // A call that is not simple.
        if s.consumer == Consumer::Idle {
            to.extend(self.follow(s).map(|next| ("reads by the slow path", next)));
        }
    }

    fn check(&self, _: &S) -> Result<(), String> {
        Ok(())
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        let is_done = s.sent == self.bytes && s.got == s.sent;
        if is_done { Ok(()) } else { Err(format!("{} sent, {} read", s.sent, s.got)) }
    }
}

const LIMIT: usize = 5_000_000;

#[test]
fn a_seen_tail_ends_where_a_switch_is() {
    let (bytes, switches) = match size() {
        Size::Unit => (3, 2),
        Size::Ci => (6, 4),
        Size::Long => (8, 6),
    };
    let model = SeenTail { twin: Twin::Faithful, bytes, switches };
    holds(&format!("seen tail, {bytes} bytes, {switches} switches"), &model, LIMIT);
}

#[test]
fn every_rule_is_needed() {
    for twin in [Twin::LooksForSwitchesFirst, Twin::LooksForNone, Twin::SeesByItself] {
        fails(&format!("seen tail, {twin:?}"), &SeenTail { twin, bytes: 4, switches: 2 }, LIMIT);
    }
}

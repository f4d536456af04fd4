//! A model of blocking sends of several threads on one connection: `send::send` with
//! `wait::for_turn`, and what a [`CallGuard`](crate::wake::call_guard::CallGuard) gives back, also
//! of a thread that is cancelled or jumps out.
//!
//! The send turn is the real one; the half's lock, the wake-ups (each wakes every thread that
//! counts as asleep) and the order of calls are the model's. A wait for room ends by itself, one
//! for the send turn only by a doorbell: the model has no counterpart of the library's bound on the
//! sleep. Promises: no other bytes come into a message whose sender has the send turn and did not
//! lose it to a thread that had waited long enough; every thread is done in the end, and the send
//! turn is free.

use core::sync::atomic::{AtomicU64, Ordering};
use std::{format, println, string::String, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};

use super::SendTurn;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// A send that waits with a part of it sent does not take the send turn.
    TakesNoTurn,
    /// It takes the send turn when it has released the lock.
    TakesLate,
    /// A flag beside the word says whether there is a send turn; the thread that ends one clears
    /// it, and looks at the owner afterwards.
    HasAFlag,
    /// One that waits looks before it counts as asleep.
    LooksEarly,
    /// The end of a send turn wakes no thread.
    EndsSilently,
    /// A thread that never comes back gives its send turn up, but not its place.
    KeepsItsPlace,
    /// It gives its send turn up first, then its place.
    GivesThePlaceLast,
}

/// Where a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Begin,
    /// Has the lock, and is to look which thread has the send turn.
    Locked,
    /// It has the send turn, or that is free.
    Sends,
    /// A part is sent; has the lock.
    Takes,
    /// Without the lock: waits for room.
    Room,
    /// Another thread has the send turn: without the lock, `for_turn`.
    Asks,
    LooksEarly(u8),
    Counts(u8),
    Looks(u8),
    Sleeps(u8),
    /// Woken, or its wait for this one timed out.
    Wakes,
    Ends(u8),
    RingsFor,
    /// Leaves the call: gives up its place, its send turn, signals.
    Leaves,
    EndsOwn,
    EndedLate,
    Rings,
    Done,
    /// In the middle of `end` with a flag: read as the send turn of this one, the flag cleared, the
    /// word written (and handed on).
    Read(u8),
    Cleared(u8),
    HandsOn(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Thread {
    at: At,
    /// Parts of the message still to be sent, messages after it.
    parts: u8,
    messages: u8,
    /// Has sent a part of this message and not all, and another thread may have ended its send
    /// turn.
    lost: bool,
    /// Counts as asleep, and was rung for.
    counted: bool,
    rung: bool,
    /// May have something to give back.
    asked: bool,
    gone: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    word: u64,
    flag: bool,
    lock: Option<u8>,
    threads: Vec<Thread>,
    deaths: u8,
    timeouts: u8,
}

struct Sending {
    twin: Twin,
    messages: Vec<u8>,
    parts: u8,
    deaths: u8,
    timeouts: u8,
    turn: SendTurn,
}

/// A thread's id.
const fn id(n: usize) -> u32 {
    n as u32 + 1
}

impl Sending {
    fn new(twin: Twin, messages: &[u8], deaths: u8, timeouts: u8) -> Self {
        let turn = SendTurn(AtomicU64::new(0));
        Self { twin, messages: messages.to_vec(), parts: 2, deaths, timeouts, turn }
    }

    /// `SendTurn::of_another`, of the twin's turn.
    fn holder(&self, s: &S, n: usize) -> Option<u8> {
        if self.twin == Twin::HasAFlag && !s.flag {
            return None;
        }
        self.turn.of_another(|| id(n)).map(|holder| holder as u8)
    }

    fn ring(s: &mut S) {
        for thread in s.threads.iter_mut().filter(|thread| thread.counted) {
            thread.rung = true;
        }
    }

    /// Sends a part. `Err`: in the middle of another thread's message.
    fn send(s: &mut S, n: usize, all: u8) -> Result<(), String> {
        let torn = s.threads.iter().enumerate().find(|(m, other)| {
            let begun = other.parts != 0 && other.parts != all;
            *m != n && begun && !other.lost && !other.gone
        });
        if let Some((other, _)) = torn {
            return Err(format!("{} sends in the middle of a message of {}", n + 1, other + 1));
        }
        s.threads[n].parts -= 1;
        Ok(())
    }

    /// `whose` ends its send turn, as far as one atomic operation goes; where `n` goes on.
    fn end(&self, s: &mut S, whose: u8, timeouts: bool, then: [At; 2]) -> At {
        let thread = u32::from(whose);
        if self.twin == Twin::HasAFlag {
            let is_its = self.turn.0.load(Ordering::Relaxed) as u32 == thread;
            return if is_its { At::Read(whose) } else { then[1] };
        }
        let ended = self.turn.end(thread);
        if ended && timeouts {
            s.threads[whose as usize - 1].lost = true;
        }
        if ended { then[0] } else { then[1] }
    }

    /// Where `n` goes on when it has ended the send turn of `whose`, or not.
    fn after_end(&self, n: usize, whose: u8, ended: bool) -> At {
        match (u32::from(whose) == id(n), ended && self.twin != Twin::EndsSilently) {
            (true, true) => At::Rings,
            (true, false) => At::Done,
            (false, true) => At::RingsFor,
            (false, false) => At::Begin,
        }
    }

    fn step(&self, before: &S, n: usize) -> Option<Result<S, String>> {
        let mut s = before.clone();
        self.turn.0.store(s.word, Ordering::Relaxed);
        match self.send_step(&mut s, n)? {
            Ok(at) => s.threads[n].at = at,
            Err(what) => return Some(Err(what)),
        }
        s.word = self.turn.0.load(Ordering::Relaxed);
        Some(Ok(s))
    }

    /// A step of a send, up to its turn: it locks, sends, asks or sleeps.
    fn send_step(&self, s: &mut S, n: usize) -> Option<Result<At, String>> {
        let me = id(n);
        Some(Ok(match s.threads[n].at {
            At::Begin if s.lock.is_none() => {
                s.lock = Some(n as u8);
                At::Locked
            }
            At::Begin => return None,
            At::Locked if self.holder(s, n).is_some() => {
                s.lock = None;
                At::Asks
            }
            At::Locked => At::Sends,
            At::Sends => {
                if let Err(what) = Self::send(s, n, self.parts) {
                    return Some(Err(what));
                }
                if s.threads[n].parts != 0 {
                    s.threads[n].asked = true;
                    At::Takes
                } else {
                    s.lock = None;
                    At::Leaves
                }
            }
            At::Takes => {
                match self.twin {
                    Twin::TakesNoTurn => s.lock = None,
                    Twin::TakesLate if s.lock == Some(n as u8) => {
                        s.lock = None;
                        return Some(Ok(At::Takes));
                    }
                    _ => {
                        self.turn.take(me);
                        s.flag = true;
                        s.threads[n].lost = false;
                        if self.twin != Twin::TakesLate {
                            s.lock = None;
                        }
                    }
                }
                At::Room
            }
            At::Room => At::Begin,
            At::Asks => {
                s.threads[n].asked = true;
                self.turn.want(me);
                let holder = self.holder(s, n);
                match holder {
                    None => At::Begin,
                    Some(holder) if self.twin == Twin::LooksEarly => At::LooksEarly(holder),
                    Some(holder) => At::Counts(holder),
                }
            }
            At::LooksEarly(before) => {
                if self.holder(s, n).is_some() {
                    At::Counts(before)
                } else {
                    At::Begin
                }
            }
            At::Counts(before) => {
                s.threads[n].counted = true;
                s.threads[n].rung = false;
                if self.twin == Twin::LooksEarly { At::Sleeps(before) } else { At::Looks(before) }
            }
            At::Looks(before) => {
                if self.holder(s, n).is_some() {
                    At::Sleeps(before)
                } else {
                    At::Wakes
                }
            }
            At::Sleeps(_) if s.threads[n].rung => At::Wakes,
            At::Sleeps(_) => return None,
            _ => return self.end_step(s, n),
        }))
    }

    /// A step at the end of a message or of a turn.
    fn end_step(&self, s: &mut S, n: usize) -> Option<Result<At, String>> {
        let me = id(n);
        Some(Ok(match s.threads[n].at {
            At::Wakes => {
                s.threads[n].counted = false;
                At::Begin
            }
            At::Ends(whose) => self.end(s, whose, true, [At::RingsFor, At::Begin]),
            At::RingsFor => {
                Self::ring(s);
                At::Begin
            }
            At::Leaves => {
                s.threads[n].counted = false;
                if !s.threads[n].asked {
                    At::Done
                } else {
                    let keeps = s.threads[n].gone && self.twin == Twin::KeepsItsPlace;
                    if !keeps && self.twin != Twin::GivesThePlaceLast {
                        self.turn.want_no_more(me);
                    }
                    At::EndsOwn
                }
            }
            At::EndsOwn => {
                let whose = me as u8;
                let then = [self.after_end(n, whose, true), self.after_end(n, whose, false)];
                let at = self.end(s, whose, false, then);
                if self.twin == Twin::GivesThePlaceLast && at == At::Done {
                    At::EndedLate
                } else {
                    at
                }
            }
            At::EndedLate => {
                self.turn.want_no_more(me);
                At::Done
            }
            At::Rings => {
                Self::ring(s);
                At::Done
            }
            At::Done if s.threads[n].gone || s.threads[n].messages == 0 => return None,
            At::Done => {
                let thread = &mut s.threads[n];
                thread.messages -= 1;
                (thread.parts, thread.lost, thread.asked) = (self.parts, false, false);
                At::Begin
            }
            At::Read(whose) => {
                s.flag = false;
                s.threads[whose as usize - 1].lost |= u32::from(whose) != me;
                At::Cleared(whose)
            }
            At::Cleared(whose) => {
                let ended = self.turn.end(u32::from(whose));
                if ended && self.turn.is_taken() {
                    At::HandsOn(whose)
                } else {
                    self.after_end(n, whose, ended)
                }
            }
            At::HandsOn(whose) => {
                s.flag = true;
                self.after_end(n, whose, true)
            }
            _ => unreachable!("a step of another table"),
        }))
    }
}

impl Model for Sending {
    type State = S;

    fn start(&self) -> S {
        let thread = |messages: &u8| Thread {
            at: At::Begin,
            parts: self.parts,
            messages: messages - 1,
            lost: false,
            counted: false,
            rung: false,
            asked: false,
            gone: false,
        };
        let threads = self.messages.iter().map(thread).collect();
        S { word: 0, flag: false, lock: None, threads, deaths: 0, timeouts: 0 }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        let names = ["thread 1", "thread 2", "thread 3"];
        let gone = ["thread 1 is cancelled", "thread 2 is cancelled", "thread 3 is cancelled"];
        for n in 0..s.threads.len() {
            to.extend(self.step(s, n).map(|next| (names[n], next)));
            let at = s.threads[n].at;
            self.turn.0.store(s.word, Ordering::Relaxed);
            // Work under the lock, or in a critical section, ends first.
            let may_go = matches!(
                at,
                At::Begin | At::Room | At::Asks | At::Looks(_) | At::Sleeps(_) | At::Wakes
            );
            if may_go && s.deaths < self.deaths {
                let mut next = S { deaths: s.deaths + 1, ..s.clone() };
                next.threads[n].gone = true;
                next.threads[n].at = At::Leaves;
                to.push((gone[n], Ok(next)));
            }
            if let At::Sleeps(whose) = at
                && s.timeouts < self.timeouts
                && self.holder(s, n).is_some_and(|now| now == whose)
            {
                let mut next = S { timeouts: s.timeouts + 1, ..s.clone() };
                next.threads[n].counted = false;
                next.threads[n].at = At::Ends(whose);
                to.push(("times out", Ok(next)));
            }
        }
    }

    fn check(&self, _: &S) -> Result<(), String> {
        Ok(())
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        if let Some(n) = s.threads.iter().position(|thread| thread.at != At::Done) {
            return Err(format!("{} waits for ever", n + 1));
        }
        if s.word == 0 { Ok(()) } else { Err(format!("the send turn stays taken: {:x}", s.word)) }
    }
}

const LIMIT: usize = 20_000_000;

#[test]
fn no_message_is_torn_and_nobody_waits_for_ever() {
    let some: &[(&[u8], u8, u8)] = match size() {
        Size::Unit => &[(&[1, 1], 1, 1), (&[1, 1, 1], 0, 0)],
        Size::Ci => &[(&[2, 2], 2, 2), (&[1, 1, 1], 2, 1)],
        Size::Long => &[(&[3, 3], 2, 3), (&[2, 1, 1], 2, 2)],
    };
    for (messages, deaths, timeouts) in some {
        let model = Sending::new(Twin::Faithful, messages, *deaths, *timeouts);
        let name = format!("turns, messages {messages:?}, {deaths} cancelled, {timeouts} timeouts");
        holds(&name, &model, LIMIT);
    }
}

#[test]
fn every_rule_is_needed() {
    for twin in [Twin::TakesNoTurn, Twin::TakesLate, Twin::LooksEarly, Twin::EndsSilently] {
        fails(&format!("turns, {twin:?}"), &Sending::new(twin, &[1, 1], 0, 0), LIMIT);
    }
    let flag = fails("turns, HasAFlag", &Sending::new(Twin::HasAFlag, &[1, 1, 1], 0, 1), LIMIT);
    println!("  {}", flag.way.join(", "));
    for twin in [Twin::KeepsItsPlace, Twin::GivesThePlaceLast] {
        fails(&format!("turns, {twin:?}"), &Sending::new(twin, &[1, 1], 1, 0), LIMIT);
    }
}

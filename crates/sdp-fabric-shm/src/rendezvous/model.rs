//! A model of the meeting: two ends that take the steps of `rendezvous` one system call at a time, and
//! may be disturbed between any two of them by an exec (every socket of the meeting closes), by a fork
//! (the meeting is abandoned and begun anew), by an end that has waited for too long and gives up, or by one that wants for
//! something when the answer is there.
//!
//! Sockets, the abstract name and the segments are the model's; the real calls need a kernel.
//! Promises: two ends that are attached have the same segment, no byte goes into a ring whose
//! reader is not there, no end stays attached alone unless the other one has executed something at
//! that moment, and ends without a disturbance meet.

use std::{format, string::String, vec, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// Sends as soon as its own end is attached.
    AsksNobody,
    /// An exec that does not leave the lanes.
    ExecutesAtOnce,
    /// A name that is taken ends the meeting.
    GivesUpWhenTaken,
    /// An end that gives up does not look whether the other one has agreed, and leaves no word in
    /// the segment.
    GivesUpBlindly,
    /// An end that gives up looks, but does not leave a word in a segment that it does not use.
    DisownsNothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    Refused,
    Bound,
    Offering,
    Accepted(usize),
    Answered(usize),
    Connected(usize),
    Joining(usize, usize),
    Attached(usize),
    Given,
    Executed,
}

/// A connection to the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    from: usize,
    is_accepted: bool,
    /// Which of (caller, listener) have it open.
    open: [bool; 2],
    hello: Option<usize>,
    answered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Segment {
    /// By end: it says that it is attached, and reads through the library.
    attached: [bool; 2],
    /// By end: its packet is unread.
    unread: [bool; 2],
    /// By end: it will not use it.
    disowned: [bool; 2],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    /// The end that has the name, and whether it listens.
    name: Option<(usize, bool)>,
    calls: Vec<Call>,
    segments: Vec<Segment>,
    at: [At; 2],
    restarts: [u8; 2],
    sent: [bool; 2],
    disturbances: u8,
}

struct Meeting {
    twin: Twin,
    disturbances: u8,
}

const RESTARTS: u8 = 2;

impl S {
    /// Closes everything that `end` has of the meeting.
    fn abandon(&mut self, end: usize, twin: Twin) {
        // Of one that has answered `promote` sees to that, which finds that a fork has come in between.
        if let At::Joining(_, segment) | At::Answered(segment) = self.at[end]
            && !matches!(twin, Twin::GivesUpBlindly | Twin::DisownsNothing)
        {
            self.segments[segment].disowned[end] = true;
        }
        if self.name.is_some_and(|(owner, _)| owner == end) {
            self.name = None;
        }
        for call in &mut self.calls {
            call.open[usize::from(call.from != end)] = false;
        }
    }

    fn restart(&mut self, end: usize, to: At, twin: Twin) {
        self.restarts[end] += 1;
        if self.restarts[end] > RESTARTS {
            self.abandon(end, twin);
            self.at[end] = At::Given;
        } else {
            self.at[end] = to;
        }
    }

    fn attach(&mut self, end: usize, segment: usize) {
        self.at[end] = At::Attached(segment);
        self.abandon(end, Twin::Faithful);
        self.segments[segment].attached[end] = true;
    }
}

impl Meeting {
    fn step(&self, s: &S, end: usize) -> Option<(&'static str, S)> {
        let mut s = s.clone();
        let other = end ^ 1;
        let name = match s.at[end] {
            At::Idle => {
                if s.name.is_some_and(|(_, listens)| listens) {
                    s.calls.push(Call {
                        from: end,
                        is_accepted: false,
                        open: [true; 2],
                        hello: None,
                        answered: false,
                    });
                    s.at[end] = At::Connected(s.calls.len() - 1);
                } else {
                    s.at[end] = At::Refused;
                }
                "connects"
            }
            At::Refused => {
                s.at[end] = match s.name {
                    None => {
                        s.name = Some((end, false));
                        At::Bound
                    }
                    Some(_) if self.twin == Twin::GivesUpWhenTaken => At::Given,
                    Some(_) => At::Idle,
                };
                "binds"
            }
            At::Bound => {
                s.name = Some((end, true));
                s.at[end] = At::Offering;
                "listens"
            }
            At::Offering => {
                let waits = |c: &Call| c.from == other && !c.is_accepted && c.open[1];
                let call = s.calls.iter().position(waits)?;
                s.calls[call].is_accepted = true;
                s.at[end] = At::Accepted(call);
                "accepts"
            }
            At::Connected(call) => {
                if s.calls[call].open[1] {
                    s.segments.push(Segment::default());
                    let segment = s.segments.len() - 1;
                    s.calls[call].hello = Some(segment);
                    s.at[end] = At::Joining(call, segment);
                } else {
                    s.abandon(end, self.twin);
                    s.restart(end, At::Idle, self.twin);
                }
                "says hello"
            }
            _ => self.end_meeting(&mut s, end)?,
        };
        Some((name, s))
    }

    /// A step of an end that has a connection to the name, or is attached.
    fn end_meeting(&self, s: &mut S, end: usize) -> Option<&'static str> {
        let other = end ^ 1;
        Some(match s.at[end] {
            At::Accepted(call) => match (s.calls[call].hello, s.calls[call].open[0]) {
                (Some(segment), true) => {
                    s.calls[call].answered = true;
                    s.at[end] = At::Answered(segment);
                    "answers"
                }
                (None, true) => return None,
                (_, false) => {
                    s.calls[call].open[1] = false;
                    s.restart(end, At::Offering, self.twin);
                    "finds the caller gone"
                }
            },
            At::Answered(segment) => {
                s.attach(end, segment);
                "is attached"
            }
            At::Joining(call, segment) => {
                if s.calls[call].answered {
                    s.attach(end, segment);
                    "is answered"
                } else if !s.calls[call].open[1] {
                    s.abandon(end, self.twin);
                    s.restart(end, At::Idle, self.twin);
                    "finds the listener gone"
                } else {
                    return None;
                }
            }
            At::Attached(segment) => {
                let ring = &mut s.segments[segment];
                if ring.disowned[other] {
                    // Drained: an end that disowns a segment has never sent. A candidate again.
                    s.at[end] = At::Idle;
                    "finds itself alone"
                } else if ring.unread[other] {
                    ring.unread[other] = false;
                    "reads"
                } else if !s.sent[end] && (ring.attached[other] || self.twin == Twin::AsksNobody) {
                    ring.unread[end] = true;
                    s.sent[end] = true;
                    "sends"
                } else {
                    return None;
                }
            }
            _ => return None,
        })
    }

    fn disturb(&self, s: &S, end: usize, to: &mut Vec<Step<S>>) {
        let mut after = S { disturbances: s.disturbances + 1, ..s.clone() };
        if let At::Attached(segment) = s.at[end] {
            if self.twin != Twin::ExecutesAtOnce {
                // L10: trust is taken back, unread bytes are handed over.
                after.segments[segment].attached[end] = false;
                after.segments[segment].unread[end ^ 1] = false;
            }
        } else {
            after.abandon(end, self.twin);
            to.push(("forks", Ok(S { at: with(s.at, end, At::Idle), ..after.clone() })));
            if !matches!(s.at[end], At::Answered(_)) {
                to.push(self.give_up(s, end));
            }
        }
        after.at[end] = At::Executed;
        to.push(("executes another program", Ok(after)));
    }

    /// `end` has waited for too long. It takes the step that is there to be taken, and is over if there is none.
    fn give_up(&self, s: &S, end: usize) -> Step<S> {
        let disturbances = s.disturbances + 1;
        let looks = self.twin != Twin::GivesUpBlindly;
        let is_answered = |call: usize| s.calls[call].answered;
        match s.at[end] {
            At::Joining(call, _) if looks && is_answered(call) => {
                // It may still want for something.
                let mut after = S { disturbances, ..s.clone() };
                after.abandon(end, self.twin);
                after.at[end] = At::Given;
                ("cannot take the answer", Ok(after))
            }
            At::Accepted(call) if looks && s.calls[call].hello.is_some() => {
                let after = self.step(s, end).map_or_else(|| s.clone(), |(_, after)| after);
                ("answers at the last moment", Ok(S { disturbances, ..after }))
            }
            _ => {
                let mut after = S { disturbances, ..s.clone() };
                after.abandon(end, self.twin);
                after.at[end] = At::Given;
                ("gives up", Ok(after))
            }
        }
    }
}

fn with(mut at: [At; 2], end: usize, new: At) -> [At; 2] {
    at[end] = new;
    at
}

impl Model for Meeting {
    type State = S;

    fn start(&self) -> S {
        S {
            name: None,
            calls: vec![],
            segments: vec![],
            at: [At::Idle; 2],
            restarts: [0; 2],
            sent: [false; 2],
            disturbances: 0,
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        for end in 0..2 {
            if let Some((name, next)) = self.step(s, end) {
                to.push((name, Ok(next)));
            }
            let may = !matches!(s.at[end], At::Executed | At::Given);
            if may && s.disturbances < self.disturbances {
                self.disturb(s, end, to);
            }
        }
    }

    fn check(&self, s: &S) -> Result<(), String> {
        match s.at {
            [At::Attached(a), At::Attached(b)] if a != b => Err(format!("segments {a} and {b}")),
            _ => Ok(()),
        }
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        if s.segments.iter().any(|ring| ring.unread != [false; 2]) {
            return Err("bytes in a ring that nobody reads".to_owned());
        }
        for end in 0..2 {
            if let At::Attached(segment) = s.at[end]
                && !matches!(s.at[end ^ 1], At::Attached(other) if other == segment)
                && s.at[end ^ 1] != At::Executed
            {
                return Err(format!("end {end} is attached alone"));
            }
        }
        let met = matches!(s.at, [At::Attached(_), At::Attached(_)]) && s.sent == [true; 2];
        if met || s.disturbances > 0 { Ok(()) } else { Err("the ends did not meet".to_owned()) }
    }
}

const LIMIT: usize = 5_000_000;

#[test]
fn ends_meet_or_stay_on_tcp() {
    let disturbances = match size() {
        Size::Unit => 1,
        Size::Ci => 2,
        Size::Long => 4,
    };
    holds("rendezvous", &Meeting { twin: Twin::Faithful, disturbances: 0 }, LIMIT);
    holds("rendezvous, disturbed", &Meeting { twin: Twin::Faithful, disturbances }, LIMIT);
}

#[test]
fn every_rule_is_needed() {
    for twin in [Twin::AsksNobody, Twin::ExecutesAtOnce] {
        fails(&format!("rendezvous, {twin:?}"), &Meeting { twin, disturbances: 1 }, LIMIT);
    }
    let taken = Meeting { twin: Twin::GivesUpWhenTaken, disturbances: 0 };
    fails("rendezvous, GivesUpWhenTaken", &taken, LIMIT);
    for twin in [Twin::GivesUpBlindly, Twin::DisownsNothing] {
        fails(&format!("rendezvous, {twin:?}"), &Meeting { twin, disturbances: 1 }, LIMIT);
    }
}

//! A model of a thread that drops the lanes (`consider`, `Conn::put_segment_aside`) and then earns new ones,
//! while another thread makes calls, by the fast path and by the slow one.
//!
//! All of it is the model's, one atomic operation a step; both directions have drained before, which is
//! asked under the halves' locks. Promises: a call that finds the connection attached finds a segment, and
//! the words of the halves that it uses belong to the segment that it uses.

use std::{format, string::String, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};

use crate::conn::Stage;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// Does not look for other calls before it takes the segment away.
    LooksAfterwards,
    /// Does not look for them again when it has.
    LooksBefore,
    /// Takes the segment away and then leaves the stage in which others look for it.
    LeavesTheStageLate,
    /// A call asks for the stage before it acquires the connection, and does not ask again.
    AcquiresLate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Renewer {
    LeavesTheStage,
    Looks,
    TakesAway,
    LooksAgain,
    PutsBack,
    ReturnsToTheStage,
    PutsAside,
    IsYoung,
    Meets,
    WritesWords,
    Installs,
    Attaches,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Call {
    /// The fast path: asks for the stage, acquires, asks for the segment, uses it.
    AsksFast,
    AcquiresOnFastPath,
    TakesFast,
    UsesFast(u8),
    /// The slow path: acquires, asks for the stage and for the segment, uses it.
    Acquires,
    Asks,
    Takes,
    Uses(u8),
    Releases,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    stage: u32,
    /// Which segment is the connection's; 0 none.
    segment: u8,
    /// Which segment the words of the halves belong to.
    words: u8,
    users: u8,
    renewer: Renewer,
    calls: Vec<(Call, u8)>,
}

struct Renewal {
    twin: Twin,
    threads: usize,
    calls: u8,
}

fn change(s: &mut S, from: Stage, to: Stage) -> bool {
    let is_there = s.stage == from as u32;
    if is_there {
        s.stage = to as u32;
    }
    is_there
}

impl Renewal {
    fn repromote(&self, before: &S) -> Option<S> {
        let mut s = before.clone();
        let is_used = s.users > 1; // the renewer uses it itself
        s.renewer = match s.renewer {
            Renewer::LeavesTheStage => {
                if self.twin != Twin::LeavesTheStageLate {
                    change(&mut s, Stage::Attached, Stage::Kernel);
                }
                if self.twin == Twin::LooksAfterwards { Renewer::TakesAway } else { Renewer::Looks }
            }
            Renewer::Looks if is_used => Renewer::ReturnsToTheStage,
            Renewer::Looks => Renewer::TakesAway,
            Renewer::TakesAway => {
                s.segment = 0;
                if self.twin == Twin::LooksBefore {
                    Renewer::PutsAside
                } else {
                    Renewer::LooksAgain
                }
            }
            Renewer::LooksAgain if is_used => Renewer::PutsBack,
            Renewer::LooksAgain => Renewer::PutsAside,
            Renewer::PutsBack => {
                s.segment = 1;
                Renewer::ReturnsToTheStage
            }
            Renewer::ReturnsToTheStage => {
                change(&mut s, Stage::Kernel, Stage::Attached);
                Renewer::Done
            }
            Renewer::PutsAside => {
                change(&mut s, Stage::Attached, Stage::Kernel);
                Renewer::IsYoung
            }
            Renewer::IsYoung => {
                change(&mut s, Stage::Kernel, Stage::Candidate);
                Renewer::Meets
            }
            Renewer::Meets => {
                change(&mut s, Stage::Candidate, Stage::Meeting);
                Renewer::WritesWords
            }
            Renewer::WritesWords => {
                s.words = 2;
                Renewer::Installs
            }
            Renewer::Installs => {
                s.segment = 2;
                Renewer::Attaches
            }
            Renewer::Attaches => {
                change(&mut s, Stage::Meeting, Stage::Attached);
                s.users -= 1;
                Renewer::Done
            }
            Renewer::Done => return None,
        };
        Some(s)
    }

    fn call(&self, before: &S, n: usize) -> Option<Result<S, String>> {
        let mut s = before.clone();
        let is_attached = s.stage == Stage::Attached as u32;
        let (at, left) = s.calls[n];
        let (next, left) = match at {
            Call::AsksFast if is_attached => (Call::AcquiresOnFastPath, left),
            Call::AsksFast => (Call::Acquires, left),
            Call::AcquiresOnFastPath => {
                s.users += 1;
                (Call::TakesFast, left)
            }
            Call::TakesFast if s.segment == 0 => {
                s.users -= 1;
                (Call::Acquires, left)
            }
            Call::TakesFast => (Call::UsesFast(s.segment), left),
            Call::Acquires if self.twin == Twin::AcquiresLate => {
                if is_attached {
                    (Call::Asks, left)
                } else {
                    s.users += 1;
                    (Call::Releases, left)
                }
            }
            Call::Acquires => {
                s.users += 1;
                (Call::Asks, left)
            }
            Call::Asks if self.twin == Twin::AcquiresLate => {
                s.users += 1;
                (Call::Takes, left)
            }
            Call::Asks => (if is_attached { Call::Takes } else { Call::Releases }, left),
            Call::Takes if s.segment == 0 => {
                return Some(Err("an attached connection without a segment".into()));
            }
            Call::Takes => (Call::Uses(s.segment), left),
            Call::UsesFast(segment) | Call::Uses(segment) => {
                if s.words != segment {
                    let what = format!("segment {segment} with the words of {}", s.words);
                    return Some(Err(what));
                }
                (Call::Releases, left)
            }
            Call::Releases => {
                s.users -= 1;
                if left == 0 { (Call::Done, 0) } else { (Call::AsksFast, left - 1) }
            }
            Call::Done => return None,
        };
        s.calls[n] = (next, left);
        Some(Ok(s))
    }
}

impl Model for Renewal {
    type State = S;

    fn start(&self) -> S {
        S {
            stage: Stage::Attached as u32,
            segment: 1,
            words: 1,
            users: 1,
            renewer: Renewer::LeavesTheStage,
            calls: std::vec![(Call::AsksFast, self.calls - 1); self.threads],
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        to.extend(self.repromote(s).map(|next| ("renewer", Ok(next))));
        for (n, name) in ["call 1", "call 2"].into_iter().enumerate().take(self.threads) {
            to.extend(self.call(s, n).map(|next| (name, next)));
            if let (Call::AsksFast, left) = s.calls[n] {
                let mut next = s.clone();
                next.calls[n] = (Call::Acquires, left);
                to.push(("a call that is not simple", Ok(next)));
            }
        }
    }

    fn check(&self, _: &S) -> Result<(), String> {
        Ok(())
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        let is_whole = s.stage == Stage::Attached as u32 && s.segment == s.words;
        if is_whole { Ok(()) } else { Err("attached by halves".into()) }
    }
}

const LIMIT: usize = 1_000_000;

#[test]
fn lanes_are_dropped_under_nobody() {
    let (threads, calls) = match size() {
        Size::Unit => (1, 2),
        Size::Ci => (2, 2),
        Size::Long => (2, 4),
    };
    let model = Renewal { twin: Twin::Faithful, threads, calls };
    holds(&format!("renewal, {threads} threads of {calls} calls"), &model, LIMIT);
}

#[test]
fn every_rule_is_needed() {
    for twin in
        [Twin::LooksAfterwards, Twin::LooksBefore, Twin::LeavesTheStageLate, Twin::AcquiresLate]
    {
        fails(&format!("renewal, {twin:?}"), &Renewal { twin, threads: 1, calls: 1 }, LIMIT);
    }
}

//! A model of a fork while another thread takes steps of a meeting: `begin`, `tick_now` and `attach` against
//! `inherit::prepare_connections`.
//!
//! All of it is the model's, one atomic operation or system call a step; memory is sequential, for
//! which the code has its fences. The fork looks at a meeting until its step is over, which the
//! library bounds: the child forgets a step that is not over by then, but the parent may attach a
//! connection that its child holds too. Promises: no meeting goes on in two processes, and no
//! connection is attached when a child holds it.

use std::{format, string::String, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};

use crate::conn::Stage;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// A step looks for forks before it has the meeting's lock.
    LooksBeforeTheLock,
    /// It does not look for forks.
    LooksForNone,
    /// A fork counts itself after it has called meetings off.
    CountsLate,
    /// A fork passes by a meeting that another thread is busy with.
    PassesBy,
    /// A meeting that is over attaches without asking which processes hold the connection.
    AsksNobody,
    /// A fork abandons the meeting without the lock.
    AbandonsWithoutLock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Meeter {
    AsksForHolders,
    Begins,
    LooksEarly,
    Locks,
    Looks,
    Steps,
    AsksForHoldersAgain,
    Attaches,
    Unlocks,
    Fails,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Forker {
    Counts,
    LooksAtTheStage,
    Locks,
    Abandons,
    LeavesTheStage,
    CountsLate,
    RegistersTheChild,
    Forks,
    IsDone,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    stage: u32,
    is_locked: bool,
    forks: u8,
    /// Steps of the meeting so far: its sockets are open.
    progress: u8,
    child_holds: bool,
    meeter: Meeter,
    ticks: u8,
    forker: Forker,
    forks_left: u8,
}

struct Meeting {
    twin: Twin,
    ticks: u8,
    forks: u8,
}

/// Steps that a meeting takes.
const STEPS: u8 = 2;

impl Meeting {
    fn meet(&self, before: &S) -> Option<Result<S, String>> {
        let mut s = before.clone();
        let is_meeting = s.stage == Stage::Meeting as u32;
        let may_step = is_meeting && s.forks.is_multiple_of(2);
        s.meeter = match s.meeter {
            Meeter::AsksForHolders if s.ticks == 0 => Meeter::Done,
            Meeter::AsksForHolders if s.child_holds => Meeter::Done,
            Meeter::AsksForHolders => Meeter::Begins,
            Meeter::Begins => {
                if s.stage == Stage::Candidate as u32 {
                    s.stage = Stage::Meeting as u32;
                }
                Meeter::LooksEarly
            }
            Meeter::LooksEarly if s.ticks == 0 => Meeter::Done,
            Meeter::LooksEarly => {
                s.ticks -= 1;
                let goes = self.twin != Twin::LooksBeforeTheLock || may_step;
                match s.stage {
                    stage if stage == Stage::Candidate as u32 => Meeter::AsksForHolders,
                    _ if goes => Meeter::Locks,
                    _ => Meeter::LooksEarly,
                }
            }
            Meeter::Locks if s.is_locked => Meeter::LooksEarly,
            Meeter::Locks => {
                s.is_locked = true;
                Meeter::Looks
            }
            Meeter::Looks => {
                let goes = match self.twin {
                    Twin::LooksBeforeTheLock => true,
                    Twin::LooksForNone => is_meeting,
                    _ => may_step,
                };
                if goes { Meeter::Steps } else { Meeter::Unlocks }
            }
            Meeter::Steps => {
                s.progress += 1;
                if s.progress < STEPS {
                    Meeter::Unlocks
                } else if self.twin == Twin::AsksNobody {
                    Meeter::Attaches
                } else {
                    Meeter::AsksForHoldersAgain
                }
            }
            Meeter::AsksForHoldersAgain if s.child_holds => {
                s.progress = 0;
                Meeter::Fails
            }
            Meeter::AsksForHoldersAgain => Meeter::Attaches,
            Meeter::Attaches => {
                s.progress = 0;
                if s.child_holds {
                    return Some(Err("attached what a child holds too".into()));
                }
                if s.stage == Stage::Meeting as u32 {
                    s.stage = Stage::Attached as u32;
                }
                s.ticks = 0;
                Meeter::Unlocks
            }
            Meeter::Unlocks => {
                s.is_locked = false;
                Meeter::LooksEarly
            }
            Meeter::Fails => {
                if s.stage == Stage::Meeting as u32 {
                    s.stage = Stage::Candidate as u32;
                }
                Meeter::Unlocks
            }
            Meeter::Done => return None,
        };
        Some(Ok(s))
    }

    fn fork(&self, before: &S) -> Option<Result<S, String>> {
        let mut s = before.clone();
        let is_meeting = s.stage == Stage::Meeting as u32;
        s.forker = match s.forker {
            Forker::Counts => {
                s.forks += u8::from(self.twin != Twin::CountsLate);
                Forker::LooksAtTheStage
            }
            Forker::LooksAtTheStage if is_meeting => Forker::Locks,
            Forker::LooksAtTheStage => Forker::CountsLate,
            Forker::Locks if self.twin == Twin::AbandonsWithoutLock => Forker::Abandons,
            Forker::Locks if s.is_locked && self.twin == Twin::PassesBy => Forker::CountsLate,
            // Looks again when something has changed.
            Forker::Locks if s.is_locked => return None,
            Forker::Locks => {
                s.is_locked = true;
                Forker::Abandons
            }
            Forker::Abandons => {
                s.progress = 0;
                Forker::LeavesTheStage
            }
            Forker::LeavesTheStage => {
                if is_meeting {
                    s.stage = Stage::Candidate as u32;
                }
                if self.twin != Twin::AbandonsWithoutLock {
                    s.is_locked = false;
                }
                Forker::CountsLate
            }
            Forker::CountsLate => {
                s.forks += u8::from(self.twin == Twin::CountsLate);
                Forker::RegistersTheChild
            }
            Forker::RegistersTheChild => {
                s.child_holds = true;
                Forker::Forks
            }
            Forker::Forks => {
                if s.progress != 0 {
                    return Some(Err("a meeting goes on in two processes".into()));
                }
                Forker::IsDone
            }
            Forker::IsDone => {
                s.forks += 1;
                s.forks_left -= 1;
                if s.forks_left == 0 { Forker::Done } else { Forker::Counts }
            }
            Forker::Done => return None,
        };
        Some(Ok(s))
    }
}

impl Model for Meeting {
    type State = S;

    fn start(&self) -> S {
        S {
            stage: Stage::Candidate as u32,
            is_locked: false,
            forks: 0,
            progress: 0,
            child_holds: false,
            meeter: Meeter::AsksForHolders,
            ticks: self.ticks,
            forker: Forker::Counts,
            forks_left: self.forks,
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        to.extend(self.meet(s).map(|next| ("meets", next)));
        to.extend(self.fork(s).map(|next| ("forks", next)));
        if s.child_holds && s.forker == Forker::Done {
            // It ends, and the connection may be tried again.
            to.push(("the child ends", Ok(S { child_holds: false, ..s.clone() })));
        }
    }

    fn check(&self, _: &S) -> Result<(), String> {
        Ok(())
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        if s.is_locked || s.meeter != Meeter::Done || s.forker != Forker::Done {
            return Err("a thread waits for ever".into());
        }
        Ok(())
    }
}

const LIMIT: usize = 1_000_000;

#[test]
fn no_meeting_goes_on_in_two_processes() {
    let (ticks, forks) = match size() {
        Size::Unit => (4, 1),
        Size::Ci => (12, 3),
        Size::Long => (40, 8),
    };
    let model = Meeting { twin: Twin::Faithful, ticks, forks };
    holds(&format!("meeting, {ticks} calls, {forks} forks"), &model, LIMIT);
}

#[test]
fn every_rule_is_needed() {
    for twin in [
        Twin::LooksBeforeTheLock,
        Twin::LooksForNone,
        Twin::CountsLate,
        Twin::PassesBy,
        Twin::AsksNobody,
        Twin::AbandonsWithoutLock,
    ] {
        fails(&format!("meeting, {twin:?}"), &Meeting { twin, ticks: 8, forks: 1 }, LIMIT);
    }
}

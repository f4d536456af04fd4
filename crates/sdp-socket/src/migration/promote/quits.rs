//! A model of a meeting that one thread ends, by giving up or by calling it off, while another takes steps of it: `step`
//! against its own last one and against `demote::call_off`.
//!
//! All of it is the model's, one atomic operation or system call a step; memory is sequential, for
//! which the code has its fences. Promises: a connection that is on TCP for good has nothing of a
//! meeting open, by which the other end could still attach, and an earlier answer of the other end
//! is taken.

use std::{format, string::String, vec::Vec};

use sdp_model::{Model, Step, fails, holds};

use crate::conn::Stage;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// A thread that gives up changes the stage when the lock is free again.
    LeavesTheStageLater,
    /// A thread that gives up does not take the packets that are there.
    DoesNotLook,
    /// A thread that ends a meeting abandons first, and changes the stage then.
    AbandonsFirst,
    /// A thread that took a step does not look at the stage again when the lock is free.
    LooksNotAgain,
}

/// How the second thread ends the meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    GivesUp,
    CallsOff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Meeter {
    LooksEarly,
    Locks,
    Looks,
    Steps,
    Unlocks,
    LooksAgain,
    LocksAgain,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Quitter {
    LeavesTheStageFirst,
    Locks,
    Ends,
    Unlocks,
    LeavesTheStageLast,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    stage: u32,
    is_locked: bool,
    /// Sockets of the meeting are open.
    is_open: bool,
    /// The other end has answered, and is attached.
    is_answered: bool,
    /// It has the refusal.
    is_told: bool,
    meeter: Meeter,
    ticks: u8,
    quitter: Quitter,
}

struct Quits {
    twin: Twin,
    how: How,
    ticks: u8,
}

impl Quits {
    fn meet(&self, before: &S) -> Option<S> {
        let mut s = before.clone();
        let is_meeting = s.stage == Stage::Meeting as u32;
        s.meeter = match s.meeter {
            Meeter::LooksEarly if s.ticks == 0 || !is_meeting => Meeter::Done,
            Meeter::LooksEarly => {
                s.ticks -= 1;
                Meeter::Locks
            }
            Meeter::Locks if s.is_locked => Meeter::LooksEarly,
            Meeter::Locks => {
                s.is_locked = true;
                Meeter::Looks
            }
            Meeter::Looks if is_meeting => Meeter::Steps,
            Meeter::Looks => Meeter::Unlocks,
            Meeter::Steps => {
                s.take_step(false);
                Meeter::Unlocks
            }
            Meeter::Unlocks => {
                s.is_locked = false;
                if self.twin == Twin::LooksNotAgain {
                    Meeter::LooksEarly
                } else {
                    Meeter::LooksAgain
                }
            }
            Meeter::LooksAgain if s.stage == Stage::Kernel as u32 => Meeter::LocksAgain,
            Meeter::LooksAgain => Meeter::LooksEarly,
            Meeter::LocksAgain => {
                // One step: no other thread wants anything of it by now but to abandon it.
                if !s.is_locked {
                    s.abandon();
                }
                Meeter::Done
            }
            Meeter::Done => return None,
        };
        Some(s)
    }

    fn quit(&self, before: &S) -> Option<S> {
        let mut s = before.clone();
        let gives_up = self.how == How::GivesUp;
        s.quitter = match s.quitter {
            Quitter::LeavesTheStageFirst => {
                if !gives_up && self.twin != Twin::AbandonsFirst {
                    s.leave_stage();
                }
                Quitter::Locks
            }
            // It gives up at another call; a thread that ends a meeting cannot wait.
            Quitter::Locks if s.is_locked && gives_up => Quitter::Done,
            Quitter::Locks if s.is_locked => Quitter::LeavesTheStageLast,
            Quitter::Locks => {
                s.is_locked = true;
                Quitter::Ends
            }
            Quitter::Ends => {
                if gives_up && self.twin != Twin::DoesNotLook && s.stage == Stage::Meeting as u32 {
                    s.take_step(true);
                } else {
                    s.abandon();
                }
                if gives_up && self.twin != Twin::LeavesTheStageLater {
                    s.leave_stage();
                }
                Quitter::Unlocks
            }
            Quitter::Unlocks => {
                s.is_locked = false;
                Quitter::LeavesTheStageLast
            }
            Quitter::LeavesTheStageLast => {
                if matches!(self.twin, Twin::LeavesTheStageLater | Twin::AbandonsFirst) {
                    s.leave_stage();
                }
                Quitter::Done
            }
            Quitter::Done => return None,
        };
        Some(s)
    }
}

impl S {
    fn leave_stage(&mut self) {
        if self.stage == Stage::Meeting as u32 {
            self.stage = Stage::Kernel as u32;
        }
    }

    fn abandon(&mut self) {
        self.is_told |= self.is_open;
        self.is_open = false;
    }

    fn take_step(&mut self, is_last: bool) {
        if self.is_open && self.is_answered {
            if self.stage == Stage::Meeting as u32 {
                self.stage = Stage::Attached as u32;
            } else {
                self.is_told = true; // the stage was changed meanwhile
            }
            self.is_open = false;
        } else if is_last {
            self.abandon();
        } else {
            self.is_open = true;
        }
    }
}

impl Model for Quits {
    type State = S;

    fn start(&self) -> S {
        S {
            stage: Stage::Meeting as u32,
            is_locked: false,
            is_open: false,
            is_answered: false,
            is_told: false,
            meeter: Meeter::LooksEarly,
            ticks: self.ticks,
            quitter: Quitter::LeavesTheStageFirst,
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        to.extend(self.meet(s).map(|next| ("meets", Ok(next))));
        to.extend(self.quit(s).map(|next| ("ends it", Ok(next))));
        if s.is_open && !s.is_answered {
            to.push(("the other end answers", Ok(S { is_answered: true, ..s.clone() })));
        }
    }

    fn check(&self, s: &S) -> Result<(), String> {
        let is_over = s.quitter == Quitter::Done && s.meeter == Meeter::Done;
        if is_over && s.stage == Stage::Kernel as u32 {
            if s.is_open {
                return Err("on TCP for good, and open to the other end".into());
            }
            if s.is_answered && !s.is_told {
                return Err("the other end is attached alone".into());
            }
        }
        let quits = s.quitter == Quitter::Unlocks && self.how == How::GivesUp;
        if quits && s.is_answered && s.stage != Stage::Attached as u32 {
            return Err("gave up when the answer was there".into());
        }
        Ok(())
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        if s.is_locked || s.meeter != Meeter::Done || s.quitter != Quitter::Done {
            return Err("a thread waits for ever".into());
        }
        Ok(())
    }
}

const LIMIT: usize = 100_000;

#[test]
fn nothing_of_a_meeting_stays_open() {
    for how in [How::GivesUp, How::CallsOff] {
        let model = Quits { twin: Twin::Faithful, how, ticks: 4 };
        holds(&format!("end of a meeting, {how:?}"), &model, LIMIT);
    }
}

#[test]
fn every_rule_is_needed() {
    for (twin, how) in [
        (Twin::LeavesTheStageLater, How::GivesUp),
        (Twin::DoesNotLook, How::GivesUp),
        (Twin::AbandonsFirst, How::CallsOff),
        (Twin::LooksNotAgain, How::CallsOff),
    ] {
        fails(&format!("end of a meeting, {twin:?}"), &Quits { twin, how, ticks: 4 }, LIMIT);
    }
}

//! All schedules of two ends of which one closes, or both, with bytes in the carrier: at each moment
//! of a meeting, with markers in flight, behind a queue pair that has died by itself, of a process
//! that is killed. No byte that a kernel has taken is lost, and an end that stays is not left in
//! silence.

use sdp_model::{Model, Step, fails, holds};

use super::{Carried, Known, Silence, Speech};

/// Bytes that each end has to say before it closes.
const UNITS: u8 = 2;

/// The rules that are broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// DEAD is written as soon as the queue pair is dead.
    SpeaksAtOnce,
    /// A KERNEL marker, with which a stream also ends, is taken for a sign that the peer stays.
    BelievesKernel,
    /// An end that closes says DEAD.
    CloserSaysDead,
    /// The queue pair ends behind the kernel's close, in the middle of a meeting, too; an end that has
    /// said DEAD closes at once.
    NoGrace,
    /// What the connection manager has said is not asked for before a PROOF.
    ProvesUnasked,
    /// Bytes that were not read do not count: time alone does.
    CountsUnread,
    /// An end stays quiet for ever where the queue pair died by itself.
    NeverSpeaks,
    /// Behind the end of its queue pair an end reads what stands on the carrier in its program's calls only.
    NeverLooks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    Unit,
    Proof,
    Kernel,
    Dead,
    Fin,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct End {
    /// Payload that is left to send, and that was read.
    left: u8,
    read: u8,
    has_read_end: bool,
    /// Our PROOF is due, was written; the peer's was read.
    owes_proof: bool,
    has_proof: bool,
    /// Our queue pair: alive, or dead and how we know.
    is_dead: bool,
    known: Known,
    owes_dead: bool,
    owes_kernel: bool,
    silence: Silence,
    now: u64,
    has_ended: bool,
    /// It has said DEAD, and the peer has answered.
    has_said_dead: bool,
    is_answered: bool,
    /// The kernel's close has been made.
    is_closed: bool,
    was_killed: bool,
    /// The connection manager's word that the peer has parted: under way, and here.
    is_parted: bool,
    goodbye: bool,
}

#[derive(Debug, Clone, Hash)]
struct State {
    ends: [End; 2],
    /// By writer: in the kernels, in order.
    carriers: [Vec<Item>; 2],
    /// How many of them are in the reader's kernel.
    arrived: [usize; 2],
    /// The writer's kernel was reset with something in it.
    lost: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
struct Parting {
    wrong: Wrong,
    /// Which ends close; a process may be killed in place of that.
    closes: [bool; 2],
    /// Whose programs read.
    reads: [bool; 2],
    may_kill: bool,
    /// The queue pair may die by itself.
    may_die: bool,
    /// The meeting is over.
    is_proven: bool,
}

impl State {
    /// A marker of `end`, by itself: its kernel sends it, and the other one answers.
    fn write(&mut self, end: usize, item: Item) {
        let other = 1 - end;
        if self.ends[other].is_closed {
            // The kernel of a program that has closed resets, and drops what it has not sent. A program
            // that has closed, too, wants none of it.
            let unsent = self.carriers[other].get(self.arrived[other]..).unwrap_or_default();
            let is_lost = unsent.iter().any(|item| matches!(item, Item::Unit | Item::Fin));
            if is_lost && !self.ends[end].has_ended {
                self.lost = Some("bytes of an end that had closed");
            }
            return;
        }
        self.carriers[end].push(item);
    }

    fn part(&mut self, end: usize) {
        self.ends[end].is_dead = true;
        self.ends[1 - end].is_parted = true;
    }
}

/// What a step does.
type Act<'a> = &'a dyn Fn(&mut State);

impl Parting {
    fn judge(&self, s: &mut State, end: usize) -> Speech {
        let here = s.carriers[1 - end].get(..s.arrived[1 - end]).unwrap_or_default();
        let carried = if s.ends[end].has_read_end || here.contains(&Item::Fin) {
            Carried::End
        } else if here.is_empty() || self.wrong == Wrong::CountsUnread {
            Carried::Nothing
        } else {
            Carried::Bytes
        };
        let me = &mut s.ends[end];
        let is_due = me.owes_dead && !me.known.has_parted || me.owes_proof || me.owes_kernel;
        me.silence.judge(me.known, carried, is_due, me.now)
    }

    fn speak(&self, s: &mut State, end: usize) {
        let me = &mut s.ends[end];
        let says_dead = me.owes_dead && !me.known.has_parted;
        let says_proof = core::mem::take(&mut me.owes_proof);
        let says_kernel = core::mem::take(&mut me.owes_kernel);
        me.owes_dead = false;
        me.has_said_dead |= says_dead;
        me.has_proof |= says_proof;
        let said =
            [(says_proof, Item::Proof), (says_dead, Item::Dead), (says_kernel, Item::Kernel)];
        for (_, item) in said.into_iter().filter(|(is_said, _)| *is_said) {
            s.write(end, item);
        }
    }

    fn end_steps(&self, s: &State, end: usize, add: &mut dyn FnMut(&'static str, Act<'_>)) {
        let (me, other) = (&s.ends[end], 1 - end);
        if me.is_closed {
            return;
        }
        if me.left > 0 && !me.has_ended {
            add("sends", &|s| {
                s.ends[end].left -= 1;
                if !s.ends[other].is_closed {
                    s.carriers[end].push(Item::Unit);
                }
            });
        }
        if s.arrived[other] < s.carriers[other].len() {
            add("arrives", &|s| s.arrived[other] += 1);
        }
        // A marker that nothing of the program's stands before is read without its program.
        let is_marker = !matches!(s.carriers[other].first(), Some(Item::Unit | Item::Fin));
        let looks = is_marker && (!me.is_dead || self.wrong != Wrong::NeverLooks);
        if s.arrived[other] != 0 && (self.reads[end] || looks) {
            add("reads", &|s| {
                s.arrived[other] -= 1;
                let item = s.carriers[other].remove(0);
                let me = &mut s.ends[end];
                match item {
                    Item::Unit => me.read += 1,
                    Item::Fin => me.has_read_end = true,
                    Item::Proof => {
                        me.owes_proof = !me.has_proof;
                    }
                    Item::Kernel => {
                        me.is_answered = true;
                        me.known.stays |= self.wrong == Wrong::BelievesKernel;
                    }
                    Item::Dead => (me.known.stays, me.is_answered) = (true, true),
                }
            });
        }
        if me.is_parted {
            add("goodbye arrives", &|s| {
                (s.ends[end].is_parted, s.ends[end].goodbye) = (false, true);
            });
        }
        if me.goodbye {
            add("hears the connection manager", &|s| {
                let me = &mut s.ends[end];
                me.goodbye = false;
                if !me.is_dead {
                    (me.is_dead, me.owes_dead, me.owes_kernel) = (true, true, self.is_proven);
                }
                me.known.has_parted = true;
            });
        }
        self.marker_steps(s, end, add);
        self.close_steps(s, end, add);
        if self.may_kill && self.closes[end] && !me.has_ended && s.carriers[other].is_empty() {
            add("is killed", &|s| {
                if !s.ends[end].is_dead {
                    s.part(end);
                }
                s.carriers[end].push(Item::Fin);
                let me = &mut s.ends[end];
                (me.has_ended, me.is_closed, me.was_killed) = (true, true, true);
            });
        }
    }

    /// The markers of an end that are pending.
    fn marker_steps(&self, s: &State, end: usize, add: &mut dyn FnMut(&'static str, Act<'_>)) {
        let (me, other) = (&s.ends[end], 1 - end);
        // With a queue pair that is taken for alive PROOF goes at once; the manager is asked before.
        let is_asked = !me.goodbye || self.wrong == Wrong::ProvesUnasked;
        if me.owes_proof && !me.is_dead && is_asked {
            add("PROOF", &|s| {
                (s.ends[end].owes_proof, s.ends[end].has_proof) = (false, true);
                s.write(end, Item::Proof);
            });
        }
        let is_due = me.owes_dead && !me.known.has_parted || me.owes_proof || me.owes_kernel;
        if me.is_dead && is_due && !me.has_ended {
            let speech = match self.wrong {
                Wrong::SpeaksAtOnce => Speech::Free,
                _ => self.judge(&mut s.clone(), end),
            };
            match speech {
                Speech::Free => add("speaks", &|s| self.speak(s, end)),
                // What is under way comes in less time, if there is room for it; a close that crosses
                // these markers keeps the carrier for that long.
                Speech::QuietUntil(until)
                    if self.wrong != Wrong::NeverSpeaks
                        && !me.is_parted
                        && !me.goodbye
                        && (s.carriers[other].is_empty() || self.wrong == Wrong::CountsUnread) =>
                {
                    add("speaks behind a long silence", &|s| {
                        self.judge(s, end);
                        s.ends[end].now = until;
                        if self.judge(s, end) == Speech::Free {
                            self.speak(s, end);
                        }
                    });
                }
                _ => {}
            }
        }
    }

    /// An end ends its stream, its queue pair and its carrier.
    fn close_steps(&self, s: &State, end: usize, add: &mut dyn FnMut(&'static str, Act<'_>)) {
        let (me, other) = (&s.ends[end], 1 - end);
        if !self.closes[end] || me.left != 0 {
            return;
        }
        if !me.has_ended {
            add("ends its stream", &|s| {
                let me = &mut s.ends[end];
                me.has_ended = true;
                let says_dead = me.owes_dead && self.wrong == Wrong::CloserSaysDead;
                (me.owes_dead, me.owes_proof) = (false, false);
                for (is_said, item) in
                    [(says_dead, Item::Dead), (self.is_proven, Item::Kernel), (true, Item::Fin)]
                {
                    if is_said {
                        s.write(end, item);
                    }
                }
            });
        } else if !me.is_dead && !self.is_proven && self.wrong != Wrong::NoGrace {
            add("ends the queue pair", &|s| s.part(end));
        } else if self.is_proven || !s.ends[other].is_parted || self.wrong == Wrong::NoGrace {
            // With bytes unread it would be a reset, as over TCP.
            let is_read = s.carriers[other].iter().all(|item| !matches!(item, Item::Unit));
            let is_acknowledged = s.arrived[end] == s.carriers[end].len();
            let may_be_answered = me.has_said_dead && !me.is_answered && !is_acknowledged;
            if is_read && (!may_be_answered || self.wrong == Wrong::NoGrace) {
                add("closes", &|s| {
                    if !s.ends[end].is_dead {
                        s.part(end);
                    }
                    s.ends[end].is_closed = true;
                    s.carriers[other].clear();
                    s.arrived[other] = 0;
                });
            }
        }
    }
}

impl Model for Parting {
    type State = State;

    fn start(&self) -> State {
        let end = |owes_proof| End {
            left: UNITS,
            read: 0,
            has_read_end: false,
            owes_proof: owes_proof && !self.is_proven,
            has_proof: self.is_proven,
            is_dead: false,
            known: Known { has_parted: false, stays: false },
            owes_dead: false,
            owes_kernel: false,
            silence: Silence::new(),
            now: 0,
            has_ended: false,
            has_said_dead: false,
            is_answered: false,
            is_closed: false,
            was_killed: false,
            is_parted: false,
            goodbye: false,
        };
        // The acceptor of the carrier proves itself first.
        let mut ends = [end(true), end(false)];
        for (closes, end) in self.closes.iter().zip(&mut ends) {
            end.left = if *closes { UNITS } else { 0 };
        }
        State { ends, carriers: [Vec::new(), Vec::new()], arrived: [0; 2], lost: None }
    }

    fn steps(&self, s: &State, to: &mut Vec<Step<State>>) {
        let mut add = |name: &'static str, act: Act<'_>| {
            let mut after = s.clone();
            act(&mut after);
            let end = after.lost.map_or(Ok(()), |what| Err(what.to_owned()));
            to.push((name, end.map(|()| after)));
        };
        if self.may_die && self.is_proven {
            for end in 0..2 {
                if !s.ends[end].is_dead && !s.ends[end].is_closed {
                    add("the queue pair dies", &|s| {
                        let me = &mut s.ends[end];
                        (me.is_dead, me.owes_dead, me.owes_kernel) = (true, true, true);
                    });
                }
            }
        }
        for end in 0..2 {
            self.end_steps(s, end, &mut add);
        }
    }

    fn check(&self, _: &State) -> Result<(), String> {
        Ok(())
    }

    fn may_rest(&self, s: &State) -> Result<(), String> {
        for end in 0..2 {
            let (me, other) = (&s.ends[end], &s.ends[1 - end]);
            if me.is_closed {
                continue;
            }
            let has_all = me.read == UNITS && me.has_read_end;
            if self.reads[end] && other.is_closed && !other.was_killed && !has_all {
                return Err("the rest of a stream never came".to_owned());
            }
            if !other.is_closed && me.is_dead && me.owes_kernel && !other.has_ended {
                return Err("the peer waits for bytes that were on the queue pair".to_owned());
            }
        }
        Ok(())
    }
}

const LIMIT: usize = 2_000_000;

/// Which ends close.
const CLOSERS: [[bool; 2]; 4] = [[true, false], [false, true], [true, true], [false, false]];

fn of(wrong: Wrong, closes: [bool; 2], is_proven: bool, may_kill: bool, may_die: bool) -> Parting {
    Parting { wrong, closes, reads: [true; 2], may_kill, may_die, is_proven }
}

/// As [`of`], with programs that do not read, where the queue pair dies by itself.
fn unread(wrong: Wrong, closes: [bool; 2], reads: [bool; 2]) -> Parting {
    Parting { reads, ..of(wrong, closes, true, false, true) }
}

#[test]
fn no_byte_is_lost_at_a_close() {
    for closes in CLOSERS {
        for (may_kill, may_die) in [(false, false), (true, false), (false, true)] {
            holds("parting", &of(Wrong::Nothing, closes, true, may_kill, may_die), LIMIT);
        }
        holds("parting, in a meeting", &of(Wrong::Nothing, closes, false, false, false), LIMIT);
        for reads in [[true, false], [false, true], [false, false]] {
            holds("parting, unread", &unread(Wrong::Nothing, closes, reads), LIMIT);
        }
    }
}

#[test]
fn wrong_partings_are_noticed() {
    for (wrong, is_proven, may_die) in [
        (Wrong::SpeaksAtOnce, true, false),
        (Wrong::BelievesKernel, true, false),
        (Wrong::CloserSaysDead, true, true),
        (Wrong::NoGrace, false, false),
        (Wrong::ProvesUnasked, false, false),
        (Wrong::CountsUnread, true, true),
        (Wrong::NeverSpeaks, true, true),
    ] {
        let closes = [wrong != Wrong::NeverSpeaks, false];
        let model = of(wrong, closes, is_proven, false, may_die);
        fails(&format!("parting, wrong: {wrong:?}"), &model, LIMIT);
    }
    let model = unread(Wrong::NeverLooks, [false; 2], [true, false]);
    fails("parting, wrong: NeverLooks", &model, LIMIT);
}

//! A model of the processes that have one guarded stream: the real [`step`] and [`at_fork`], played
//! by a process with the queue pair, of which one thread forks while another one makes calls, and
//! by its two children.
//!
//! A process looks at the word, changes it, and uses the stream under a lock, which are three steps.
//! Processes are killed and close; a peer is silent, or has not proven itself. A wait ends for ever
//! where no process can make another step. Promises: a process uses the stream only where no other
//! one has used it since their copies parted; none loses it while no process that had claimed it
//! was killed and the peer answers (two exceptions are in `may_lose`); work beside calls claims nothing.

use std::{format, string::String, vec::Vec};

use sdp_model::{Model, Step, fails, holds};

use super::step::{
    ASKED, Answer, COPY_HAS_IT, COPY_LEAVES, LOST, OWNER_HAS_IT, PLAIN, UNCLAIMED, Use, Who,
    at_fork, fork_of, step, word,
};

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// The process with the queue pair goes on without a claim in the word.
    OwnerClaimsNothing,
    /// So does a copy.
    CopyClaimsNothing,
    /// A copy of an earlier fork claims.
    StaleCopyClaims,
    /// A copy goes on beside the process that has the stream.
    CopyGoesOn,
    /// A copy does not ask for the stream.
    AsksNobody,
    /// A stale copy does not ask for the stream.
    StaleAsksNobody,
    /// The process that has the stream does not hand it back.
    OwnerKeepsIt,
    /// The process with the queue pair does not wait for a copy that goes on.
    TakesBackEarly,
    /// It never takes the stream back.
    TakesBackNever,
    /// It goes on while a copy hands back.
    OwnerGoesOn,
    /// A copy goes on with the stream of another one.
    CopyOfAnother,
    /// A copy hands back the stream of another one.
    HandsBackAnothers,
    /// A copy does not go on with a stream that it claimed before its call.
    ForgetsItsClaim,
    /// A carrier that is plain is not noticed.
    PlainIsLater,
    /// Nor a stream that is lost.
    LostIsMine,
    /// Work beside calls claims.
    TendClaims,
    /// A look of a copy claims, and hands back.
    LookClaims,
    /// A claim counts for a fork that came after the look at the word.
    ClaimsLate,
    /// A fork counts before it changes the word.
    CountsFirst,
    /// A fork takes no notice of a thread that hands back.
    ForkUnclaims,
    /// A thread that is to hand back does not wait for the child of a fork that does.
    LeavesNoTime,
}

/// Where a process, or its thread that makes calls, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// Is to look at the word.
    Asks(Use),
    /// Has looked: the number of the last fork that it knew, and the word.
    Looked(Use, u32, u64),
    /// Has the answer *later* for this word.
    Waits(Use, u64),
    /// Goes on with the stream: takes a lock, and uses it.
    Locks(Use),
    /// Is to hand the stream back.
    Marks,
    /// Hands it back.
    Leaves,
    /// Has no descriptor of it any more, or was killed.
    Gone,
}

/// How the stream ended for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ended {
    No,
    Plain,
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    at: At,
    ended: Ended,
    is_copy: bool,
    fork: u32,
    claimed: u32,
    /// No other process has used the stream since the copies parted.
    is_fresh: bool,
    /// Has changed the word.
    has_changed: bool,
    was_killed: bool,
    calls: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    word: u64,
    all: Vec<Process>,
    forks: u8,
    kills: u8,
    /// The first half of a fork is done.
    forking: bool,
}

/// Whether it has claimed the stream since the last fork that it knows of.
const fn is_claimed(p: &Process) -> bool {
    p.claimed == p.fork
}

struct Forked {
    twin: Twin,
    /// Purposes of calls.
    uses: &'static [Use],
    /// Forks, and calls of each process.
    forks: u8,
    calls: u8,
    /// Calls of the process with the queue pair.
    owner_calls: u8,
    kills: u8,
    /// The process with the queue pair closes; else it sleeps in a call.
    closes: bool,
    is_silent: bool,
    is_unproven: bool,
}

impl Forked {
    /// [`step`], with the fault of the twin.
    fn decide(&self, seen: u64, mut who: Who, what: Use) -> (u64, Answer) {
        let state = seen as u32;
        let to = |state| word(fork_of(seen), state);
        let is_call = what == Use::Call;
        match (self.twin, state, who.is_copy) {
            (Twin::StaleCopyClaims, UNCLAIMED, true) => who.is_current = true,
            (Twin::StaleAsksNobody, UNCLAIMED, true) if !who.is_current => {
                return (seen, Answer::Later);
            }
            (Twin::CopyOfAnother, COPY_HAS_IT, true)
            | (Twin::HandsBackAnothers, COPY_LEAVES, true) => who.is_claimed = true,
            (Twin::ForgetsItsClaim, COPY_LEAVES | COPY_HAS_IT, true) => who.is_claimed = false,
            (Twin::CopyGoesOn, OWNER_HAS_IT | ASKED, true) if is_call => {
                return (seen, Answer::Mine);
            }
            (Twin::OwnerGoesOn, COPY_LEAVES, false) if is_call => return (seen, Answer::Mine),
            (Twin::AsksNobody, OWNER_HAS_IT, true) | (Twin::PlainIsLater, PLAIN, _) => {
                return (seen, Answer::Later);
            }
            (Twin::OwnerKeepsIt, ASKED, false) | (Twin::LostIsMine, LOST, _) => {
                return (seen, Answer::Mine);
            }
            (Twin::TakesBackNever, COPY_HAS_IT, false) => return (seen, Answer::Later),
            (Twin::TendClaims, UNCLAIMED, false) => return (to(OWNER_HAS_IT), Answer::Mine),
            (Twin::LookClaims, UNCLAIMED, true) if what == Use::Look => {
                return (seen, Answer::Mine);
            }
            _ => {}
        }
        let (to, answer) = step(seen, who, what);
        match (self.twin, state, who.is_copy, answer) {
            (Twin::OwnerClaimsNothing, UNCLAIMED, false, _)
            | (Twin::CopyClaimsNothing, UNCLAIMED, true, Answer::Mine | Answer::HandBack) => {
                (seen, answer)
            }
            (Twin::TakesBackEarly, _, _, Answer::MineIfLeft) => (to, Answer::Mine),
            _ => (to, answer),
        }
    }

    /// Whether every copy has gone.
    fn is_left(s: &S) -> bool {
        s.all.iter().skip(1).all(|p| p.at == At::Gone)
    }

    /// One look at the word, as of fork `fork`, and the change of it.
    fn look(&self, s: &mut S, n: usize, (what, fork, seen): (Use, u32, u64)) -> Answer {
        let p = &s.all[n];
        let who = Who {
            is_copy: p.is_copy,
            is_claimed: is_claimed(p),
            is_current: fork_of(seen) == fork,
        };
        let (to, answer) = self.decide(seen, who, what);
        if to != seen && s.word != seen || answer == Answer::MineIfLeft && !Self::is_left(s) {
            return Answer::Later;
        }
        s.word = if to == seen { s.word } else { to };
        let late = self.twin == Twin::ClaimsLate;
        let p = &mut s.all[n];
        p.has_changed |= to != seen;
        match answer {
            Answer::Plain => p.ended = Ended::Plain,
            Answer::Lost => p.ended = Ended::Lost,
            Answer::Later => {}
            _ => p.claimed = if late { p.fork } else { fork },
        }
        // What such a copy read and sent is on the carrier.
        p.is_fresh |= answer == Answer::MineIfLeft;
        answer
    }

    fn after_look(&self, s: &mut S, n: usize, look: (Use, u32, u64)) -> Result<(), String> {
        let before = s.word;
        let answer = self.look(s, n, look);
        let what = look.0;
        if what == Use::Tend && s.word != before {
            return Err(format!("{n}: work beside calls claims"));
        }
        s.all[n].at = match (answer, what) {
            (Answer::Plain | Answer::Lost, _) => At::Idle,
            (_, Use::Ask) => At::Asks(Use::Leave),
            (Answer::Later, Use::Call | Use::Leave) => At::Waits(what, look.2),
            (Answer::Later, _) => At::Idle,
            (Answer::HandBack, _) | (_, Use::Leave) => At::Marks,
            (Answer::MineAsked, Use::Call) if !self.is_unproven => At::Marks,
            _ => At::Locks(what),
        };
        Ok(())
    }

    /// A use of the stream, under a lock.
    fn touch(s: &mut S, n: usize) -> Result<(), String> {
        if !s.all[n].is_fresh {
            return Err(format!("{n} uses a stream that another process has used"));
        }
        for (other, p) in s.all.iter_mut().enumerate() {
            p.is_fresh = other == n;
        }
        Ok(())
    }

    /// The next step of a process in a call.
    fn go_on(&self, s: &mut S, n: usize) -> Result<(), String> {
        let p = &s.all[n];
        let is_claimed = is_claimed(p);
        match p.at {
            At::Asks(what) => s.all[n].at = At::Looked(what, p.fork, s.word),
            At::Waits(what, _) => s.all[n].at = At::Asks(what),
            At::Looked(what, fork, seen) => self.after_look(s, n, (what, fork, seen))?,
            At::Locks(what) if !is_claimed => s.all[n].at = At::Asks(what),
            At::Locks(_) => {
                Self::touch(s, n)?;
                s.all[n].at = At::Idle;
            }
            At::Marks if is_claimed => {
                Self::touch(s, n)?;
                s.all[n].at = At::Leaves;
            }
            At::Marks => match self.look(s, n, (Use::Look, s.all[n].fork, s.word)) {
                Answer::Later if self.twin == Twin::LeavesNoTime => s.all[n].ended = Ended::Lost,
                Answer::Plain | Answer::Lost => s.all[n].at = At::Idle,
                _ => {}
            },
            _ => {}
        }
        if s.all[n].ended != Ended::No {
            s.all[n].at = At::Idle;
        }
        Ok(())
    }

    /// The way out has come to its end.
    fn left(&self, s: &S, n: usize, stays: bool) -> Result<S, String> {
        let mut next = s.clone();
        Self::touch(&mut next, n)?;
        let (state, ended) = match (stays, self.is_silent) {
            (true, _) => (COPY_HAS_IT, Ended::No),
            (false, true) => (LOST, Ended::Lost),
            (false, false) => (PLAIN, Ended::Plain),
        };
        next.word = word(fork_of(s.word), state);
        next.all[n].at = At::Idle;
        next.all[n].ended = ended;
        Ok(next)
    }

    /// The first half of a fork, and the second one.
    fn fork(&self, s: &S) -> S {
        let mut next = s.clone();
        let is_leaving = s.all[0].at == At::Leaves;
        let number = s.all[0].fork + 1;
        let is_last = s.forking;
        if is_last != (self.twin == Twin::CountsFirst) {
            next.all[0].fork = number;
            if is_leaving {
                next.all[0].claimed = number;
            }
        } else {
            let is_told = is_leaving && self.twin != Twin::ForkUnclaims;
            let number = if is_last { s.all[0].fork } else { number };
            next.word = at_fork(s.word, number, is_told);
        }
        next.forking = !is_last;
        if is_last {
            next.forks -= 1;
            let mut child = next.all[0].clone();
            child.at = At::Idle;
            child.is_copy = true;
            child.calls = self.calls;
            child.has_changed = false;
            if is_claimed(&child) {
                child.claimed = child.fork.wrapping_sub(1);
            }
            next.all.push(child);
        }
        next
    }

    fn may_lose(&self, s: &S) -> bool {
        // Both exceptions are in docs/known-defects.md, section 2. A copy that went on by the carrier
        // has gone while yet another process has the stream.
        let is_passed = |p: &Process| self.is_unproven && p.is_copy && p.at == At::Gone;
        // The process with the queue pair was killed unclaimed: a copy of an earlier fork may only
        // ask, and then a copy of the last fork may not claim.
        let is_orphan = |p: &Process| p.was_killed && !p.is_copy;
        let had_it = |p: &Process| is_orphan(p) || p.has_changed && (p.was_killed || is_passed(p));
        self.is_silent || s.all.iter().any(had_it)
    }

    /// Whether the next step of this process can be made now.
    fn is_able(&self, s: &S, n: usize) -> bool {
        let is_locked = n == 0 && s.forking;
        match s.all[n].at {
            At::Locks(_) => !is_locked,
            At::Marks => {
                let is_another = s.word as u32 == COPY_LEAVES
                    || s.word as u32 == COPY_HAS_IT && !Self::is_left(s);
                let waits = is_another && self.twin != Twin::LeavesNoTime;
                !is_locked && (is_claimed(&s.all[n]) || !waits)
            }
            At::Waits(_, seen) => {
                let is_left = n == 0 && s.word as u32 == COPY_HAS_IT && Self::is_left(s);
                s.word != seen || is_left
            }
            At::Asks(_) | At::Looked(..) => true,
            At::Idle | At::Leaves | At::Gone => false,
        }
    }

    fn steps_of(&self, s: &S, n: usize, to: &mut Vec<Step<S>>) {
        let p = &s.all[n];
        let is_locked = n == 0 && s.forking;
        let with = |change: &dyn Fn(&mut Process)| {
            let mut next = s.clone();
            change(&mut next.all[n]);
            Ok(next)
        };
        if p.at != At::Gone && s.kills > 0 && !is_locked {
            let mut next = s.clone();
            next.kills -= 1;
            next.all[n].at = At::Gone;
            next.all[n].was_killed = true;
            to.push(("is killed", Ok(next)));
        }
        if self.is_able(s, n) {
            let mut next = s.clone();
            let done = self.go_on(&mut next, n);
            to.push(("goes on", done.map(|()| next)));
        }
        if p.at == At::Leaves {
            let stays = p.is_copy && self.is_unproven;
            if stays {
                to.push(("goes on by the carrier", self.left(s, n, true)));
            }
            to.push(("has left", self.left(s, n, false)));
        }
        if p.at != At::Idle {
            return;
        }
        if p.ended == Ended::No && p.calls > 0 {
            for what in self.uses {
                let call = |p: &mut Process| {
                    p.calls -= 1;
                    p.at = At::Asks(*what);
                };
                to.push(("calls", with(&call)));
            }
            if !p.is_copy {
                return;
            }
        }
        let others = s.all.iter().enumerate().any(|(m, p)| m != n && p.at != At::Gone);
        let needs_care = n == 0 && p.ended == Ended::No && others;
        let state = s.word as u32;
        if needs_care && !self.closes {
            if state == ASKED {
                to.push(("wakes", with(&|p| p.at = At::Asks(Use::Call))));
            } else if state == COPY_HAS_IT && Self::is_left(s) {
                to.push(("takes back", with(&|p| p.at = At::Asks(Use::Call))));
            }
        } else if needs_care && !matches!(state, 0 | PLAIN | LOST | COPY_HAS_IT) {
            if state != COPY_LEAVES {
                to.push(("hands back to close", with(&|p| p.at = At::Asks(Use::Leave))));
            }
        } else if !is_locked && s.forks == 0 {
            to.push(("closes", with(&|p| p.at = At::Gone)));
        }
    }
}

impl Model for Forked {
    type State = S;

    fn start(&self) -> S {
        let owner = Process {
            at: At::Idle,
            ended: Ended::No,
            is_copy: false,
            fork: 0,
            claimed: 0,
            is_fresh: true,
            has_changed: false,
            was_killed: false,
            calls: self.owner_calls,
        };
        S { word: 0, all: Vec::from([owner]), forks: self.forks, kills: self.kills, forking: false }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        let owner = &s.all[0];
        if s.all.len() == 1 && !s.forking {
            to.push(("forks", Ok(self.fork(s))));
            return;
        }
        if s.forking || s.forks > 0 && owner.at != At::Gone && owner.ended == Ended::No {
            to.push(("forks", Ok(self.fork(s))));
        }
        for n in 0..s.all.len() {
            self.steps_of(s, n, to);
        }
        if to.is_empty()
            && let Some(n) = s.all.iter().position(|p| matches!(p.at, At::Waits(..) | At::Marks))
        {
            let mut next = s.clone();
            next.all[n].at = At::Idle;
            next.all[n].ended = Ended::Lost;
            to.push(("waits in vain", Ok(next)));
        }
    }

    fn check(&self, s: &S) -> Result<(), String> {
        let lost = s.all.iter().position(|p| p.ended == Ended::Lost);
        match lost {
            Some(n) if !self.may_lose(s) => Err(format!("{n} loses the stream")),
            _ => Ok(()),
        }
    }

    fn may_rest(&self, _: &S) -> Result<(), String> {
        Ok(())
    }
}

const FAITHFUL: Forked = Forked {
    twin: Twin::Faithful,
    uses: &[Use::Call],
    forks: 2,
    calls: 1,
    owner_calls: 1,
    kills: 0,
    closes: true,
    is_silent: false,
    is_unproven: false,
};
const ALL_USES: &[Use] = &[Use::Call, Use::Look, Use::Ask, Use::Leave, Use::Tend];
/// One fork, with each use, twice.
const USES: Forked = Forked { uses: ALL_USES, forks: 1, calls: 2, ..FAITHFUL };
const SLEEPS: Forked = Forked { closes: false, ..FAITHFUL };
const POLLS: Forked = Forked { owner_calls: 0, ..SLEEPS };
const UNPROVEN: Forked = Forked { is_unproven: true, calls: 2, ..FAITHFUL };
const SILENT: Forked = Forked { is_silent: true, calls: 2, ..FAITHFUL };
const KILLED: Forked = Forked { kills: 1, calls: 2, ..FAITHFUL };
const LIMIT: usize = 3_000_000;

#[test]
fn one_process_goes_on() {
    let plays = [
        ("forked", FAITHFUL),
        ("forked, each use", USES),
        ("forked, asleep", SLEEPS),
        ("forked, in a wait for several", POLLS),
        ("forked, unproven", UNPROVEN),
        ("forked, silent", SILENT),
        ("forked, killed", KILLED),
    ];
    for (name, play) in plays {
        holds(name, &play, LIMIT);
    }
}

#[test]
fn a_weakened_arm_is_noticed() {
    let twins = [
        (Twin::OwnerClaimsNothing, FAITHFUL),
        (Twin::CopyClaimsNothing, FAITHFUL),
        (Twin::StaleCopyClaims, FAITHFUL),
        (Twin::CopyGoesOn, FAITHFUL),
        (Twin::AsksNobody, SLEEPS),
        (Twin::StaleAsksNobody, POLLS),
        (Twin::OwnerKeepsIt, SLEEPS),
        (Twin::TakesBackEarly, UNPROVEN),
        (Twin::TakesBackNever, UNPROVEN),
        (Twin::OwnerGoesOn, FAITHFUL),
        (Twin::CopyOfAnother, UNPROVEN),
        (Twin::HandsBackAnothers, FAITHFUL),
        (Twin::ForgetsItsClaim, USES),
        (Twin::PlainIsLater, FAITHFUL),
        (Twin::LostIsMine, SILENT),
        (Twin::TendClaims, USES),
        (Twin::LookClaims, USES),
        (Twin::ClaimsLate, FAITHFUL),
        (Twin::CountsFirst, FAITHFUL),
        (Twin::ForkUnclaims, FAITHFUL),
        (Twin::LeavesNoTime, FAITHFUL),
    ];
    for (twin, play) in twins {
        fails(&format!("forked, {twin:?}"), &Forked { twin, ..play }, LIMIT);
    }
}

//! A model of calls that sleep on a connection while its numbers are closed: `ConnGuard`,
//! `CallGuard::hold`, `lifecycle::closing` and `left`, and the tear-down of the slot.
//!
//! The word of holds and kept numbers is the real one; table, descriptors, users, the half's locks
//! and the order of calls are the model's, one atomic operation or system call a step. Promises:
//! the connection ends once, when the steps before an end were done with an open number; not while
//! a call sleeps that holds it; a call that was asleep when the close of its number began finds a
//! number when it wakes; under a half's lock a number is what it was, and the row is the
//! connection's; no thread uses a slot that was torn down; and the kept number is closed, once.

use core::sync::atomic::Ordering;
use std::{format, string::String, vec, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};

use super::{Kept, Retainer};

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// A close keeps nothing before the number leaves the table.
    KeepsLate,
    /// It does not look again after that for calls that have fallen asleep.
    KeepsOnce,
    /// A close does not wait for threads that use the number.
    ClosesAtOnce,
    /// Nor does the thread that closes the kept number.
    ClosesKeptAtOnce,
    /// The row is given back when the connection ends, not when the last user has released it.
    LetsGoEarly,
    /// It does not acquire the connection.
    WithoutGuard,
    /// A leaving call takes the kept number, looks whether a call holds the connection, and puts it
    /// back then.
    PutsBack,
    /// The last call to leave ends a connection whose end was put off, also if another thread has
    /// the kept number.
    EndsWithNothing,
    /// The put-off end is stored elsewhere than with the kept number.
    SaysSoElsewhere,
    /// A close that puts the end off relies on the number kept before.
    RefersToNothing,
    /// The thread that takes the kept number ends the connection, put off or not.
    EndsAnyway,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Life {
    Live,
    /// Of twins that put the end off by this.
    Kept,
    Closing,
    Torn,
}

/// Where a call or a close is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    // A call.
    Load,
    Acquires,
    LooksAgain,
    Locks,
    AsksTable,
    AsksKeeper,
    Uses(i32),
    Holds,
    HoldsAndAsksTable,
    HoldsAndAsksKeeper,
    Asleep,
    WokenAsksTable,
    WokenAsksKeeper,
    Leaves,
    // A close.
    Begins,
    /// Looks whether something is kept, duplicates, stores: before and after the number leaves the table, and
    /// when the end is put off.
    Keeps(u8),
    Duplicates(u8),
    Stores(u8, i32),
    Removes,
    LooksForHolders,
    LooksForUse,
    WaitsFor(u8, bool),
    AcquiresToo(bool),
    Unrefers(bool),
    LooksWhetherNow,
    PutsOff,
    PutsOffWith(i32),
    LooksWhatIsKept,
    MayEnd,
    ClosesNumber,
    // Both.
    Takes,
    TakesAtOnce,
    TakenLooks(Option<Kept>, bool),
    TakenMayEnd(Option<Kept>),
    FinishesStream(Option<Kept>, bool),
    Ends(Option<Kept>),
    LooksAtUsers(Option<Kept>),
    TearsDown(Option<Kept>),
    AwaitsUsers(Option<Kept>, u8),
    ClosesKept(Option<Kept>),
    Releases,
    ReleasedLooks,
    ReleasedLooksAtUsers,
    ReleasedTearsDown,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Thread {
    at: At,
    /// The number of the call, or that is closed.
    fd: usize,
    half: usize,
    holds: bool,
    promised: bool,
    sleeps: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    retainer: u64,
    life: Life,
    refs: u8,
    users: [u8; 2],
    locks: [bool; 2],
    /// By number: in the table, and open in the kernel.
    table: Vec<bool>,
    open: Vec<bool>,
    /// Hidden duplicates.
    hidden: Vec<bool>,
    finished: u8,
    ended: u8,
    threads: Vec<Thread>,
}

struct Closing {
    twin: Twin,
    /// The number of each call.
    calls: Vec<usize>,
    numbers: usize,
    sleeps: u8,
    retainer: Retainer,
}

/// Hidden numbers begin here.
const HIDDEN: i32 = 100;

impl Closing {
    fn new(twin: Twin, calls: &[usize], numbers: usize, sleeps: u8) -> Self {
        Self { twin, calls: calls.to_vec(), numbers, sleeps, retainer: Retainer::new() }
    }

    fn is_open(s: &S, fd: i32) -> bool {
        match usize::try_from(fd - HIDDEN) {
            Ok(hidden) => s.hidden[hidden],
            Err(_) => s.open[fd as usize],
        }
    }

    fn says_so_elsewhere(&self) -> bool {
        matches!(self.twin, Twin::SaysSoElsewhere | Twin::PutsBack | Twin::EndsWithNothing)
    }

    fn kept(&self) -> Option<i32> {
        self.retainer.kept().and_then(Kept::number)
    }

    fn close_hidden(s: &mut S, fd: i32) -> Result<(), String> {
        let open = &mut s.hidden[(fd - HIDDEN) as usize];
        if core::mem::replace(open, false) { Ok(()) } else { Err("closed twice".into()) }
    }

    /// After a keep.
    fn kept_at(place: u8) -> At {
        match place {
            0 => At::Removes,
            1 => At::LooksForUse,
            _ => At::LooksWhatIsKept,
        }
    }

    fn step(&self, before: &S, n: usize) -> Option<Result<S, String>> {
        let mut s = before.clone();
        self.retainer.0.store(s.retainer, Ordering::Relaxed);
        match self.call_step(&mut s, n)? {
            Ok(at) => s.threads[n].at = at,
            Err(what) => return Some(Err(format!("thread {}: {what}", n + 1))),
        }
        s.retainer = self.retainer.0.load(Ordering::Relaxed);
        Some(Ok(s))
    }

    /// A step of a call, from its look at the table until it lets go.
    fn call_step(&self, s: &mut S, n: usize) -> Option<Result<At, String>> {
        let Thread { at, fd, half, holds, promised, .. } = s.threads[n].clone();
        let failed = |what: &str| Some(Err(what.to_owned()));
        Some(Ok(match at {
            At::Load if s.table[fd] => At::Acquires,
            At::Load => At::Done,
            At::Acquires => {
                s.users[half] += 1;
                At::LooksAgain
            }
            At::LooksAgain if s.table[fd] => At::Locks,
            At::LooksAgain => At::Releases,
            At::Locks if s.locks[half] => return None,
            At::Locks if s.ended != 0 && self.twin == Twin::LetsGoEarly => {
                return failed("uses a row that is another connection's");
            }
            At::Locks => {
                s.locks[half] = true;
                At::AsksTable
            }
            At::AsksTable if s.table[fd] => At::Uses(fd as i32),
            At::AsksTable => At::AsksKeeper,
            At::AsksKeeper => match self.kept() {
                Some(raw) => At::Uses(raw),
                None if promised => return failed("a call that slept has no number to go on with"),
                None => {
                    s.locks[half] = false;
                    At::Leaves
                }
            },
            At::Uses(fd) => {
                if !Self::is_open(s, fd) {
                    return failed("the number means something else by now");
                }
                s.locks[half] = false;
                if s.threads[n].sleeps == 0 { At::Leaves } else { At::Holds }
            }
            At::Holds => {
                if !holds {
                    self.retainer.hold();
                    s.threads[n].holds = true;
                }
                At::HoldsAndAsksTable
            }
            At::HoldsAndAsksTable if s.table[fd] => At::Asleep,
            At::HoldsAndAsksTable => At::HoldsAndAsksKeeper,
            At::HoldsAndAsksKeeper if self.kept().is_some() => At::Asleep,
            At::HoldsAndAsksKeeper => At::Leaves,
            At::Asleep => {
                s.threads[n].sleeps -= 1;
                At::WokenAsksTable
            }
            At::WokenAsksTable if s.table[fd] => At::Locks,
            At::WokenAsksTable => At::WokenAsksKeeper,
            At::WokenAsksKeeper if self.kept().is_some() => At::Locks,
            At::WokenAsksKeeper if promised => return failed("a call that slept finds it closed"),
            At::WokenAsksKeeper => At::Leaves,
            At::Leaves => {
                s.threads[n].promised = false;
                s.threads[n].holds = false;
                let was_last = holds && self.retainer.leave();
                let tries = was_last || holds && self.twin == Twin::EndsWithNothing;
                if tries { At::Takes } else { At::Releases }
            }
            _ => return self.close_step(s, n),
        }))
    }

    /// A step of a close: it keeps a number for calls that sleep, and gives up its own.
    fn close_step(&self, s: &mut S, n: usize) -> Option<Result<At, String>> {
        let Thread { at, fd, .. } = s.threads[n].clone();
        let failed = |what: &str| Some(Err(what.to_owned()));
        Some(Ok(match at {
            At::Begins => {
                let asleep = |thread: &&mut Thread| {
                    thread.at == At::Asleep && thread.holds && thread.fd == fd
                };
                s.threads.iter_mut().filter(asleep).for_each(|thread| thread.promised = true);
                let keeps = self.retainer.is_held() && self.twin != Twin::KeepsLate;
                if keeps { At::Keeps(0) } else { At::Removes }
            }
            At::Keeps(place) if self.retainer.kept().is_some() => Self::kept_at(place),
            At::Keeps(place) => At::Duplicates(place),
            At::Duplicates(place) => {
                if !s.open[fd] {
                    return failed("keeps a number that is closed");
                }
                s.hidden.push(true);
                At::Stores(place, HIDDEN + s.hidden.len() as i32 - 1)
            }
            At::Stores(place, raw) => {
                if !self.retainer.keep(raw)
                    && let Err(what) = Self::close_hidden(s, raw)
                {
                    return failed(&what);
                }
                Self::kept_at(place)
            }
            At::Removes => {
                s.table[fd] = false;
                At::LooksForHolders
            }
            At::LooksForHolders => {
                let keeps = self.retainer.is_held() && self.twin != Twin::KeepsOnce;
                if keeps { At::Keeps(1) } else { At::LooksForUse }
            }
            At::LooksForUse => {
                let is_kept = self.retainer.is_in_use();
                let waits = is_kept || s.users != [0; 2];
                if waits && self.twin != Twin::ClosesAtOnce {
                    At::WaitsFor(0, is_kept)
                } else {
                    At::AcquiresToo(is_kept)
                }
            }
            At::WaitsFor(half, _) if s.locks[usize::from(half)] => return None,
            At::WaitsFor(0, is_kept) => At::WaitsFor(1, is_kept),
            At::WaitsFor(_, is_kept) => At::AcquiresToo(is_kept),
            At::AcquiresToo(is_kept) => {
                s.users[1] += u8::from(self.twin != Twin::WithoutGuard);
                At::Unrefers(is_kept)
            }
            At::Unrefers(is_kept) => {
                s.refs -= 1;
                match (s.refs, is_kept) {
                    (0, _) => At::LooksWhetherNow,
                    (_, true) => At::Takes,
                    (_, false) => At::Releases,
                }
            }
            At::LooksWhetherNow if !self.retainer.is_in_use() => At::FinishesStream(None, true),
            At::LooksWhetherNow => At::PutsOff,
            _ => return self.end_step(s, n),
        }))
    }

    /// A step behind the last close: when the connection ends, and in which thread.
    fn end_step(&self, s: &mut S, n: usize) -> Option<Result<At, String>> {
        let Thread { at, .. } = s.threads[n].clone();
        let failed = |what: &str| Some(Err(what.to_owned()));
        Some(Ok(match at {
            At::PutsOff if self.says_so_elsewhere() => {
                s.life = Life::Kept;
                At::Keeps(2)
            }
            At::PutsOff if self.retainer.put_end_off() || self.twin == Twin::RefersToNothing => {
                At::Takes
            }
            At::PutsOff => {
                s.hidden.push(true);
                At::PutsOffWith(HIDDEN + s.hidden.len() as i32 - 1)
            }
            At::PutsOffWith(raw) => {
                self.retainer.put_end_off_with(raw);
                At::Takes
            }
            At::LooksWhatIsKept if self.retainer.kept().is_some() => At::Takes,
            At::LooksWhatIsKept => At::MayEnd,
            At::MayEnd if s.life == Life::Kept => {
                s.life = Life::Live;
                At::FinishesStream(None, true)
            }
            At::MayEnd => At::Takes,
            At::Takes if self.twin == Twin::PutsBack => {
                if self.retainer.is_held() {
                    At::Releases
                } else {
                    At::TakesAtOnce
                }
            }
            At::TakesAtOnce => {
                let kept = self.retainer.kept();
                let calls = self.retainer.0.load(Ordering::Relaxed) & u64::from(u32::MAX);
                self.retainer.0.store(calls, Ordering::Relaxed);
                let ends = s.life == Life::Kept;
                if ends {
                    s.life = Life::Live;
                }
                At::TakenLooks(kept, ends)
            }
            At::TakenLooks(kept, ends) if self.retainer.is_held() => {
                if let Some(raw) = kept.and_then(Kept::number)
                    && !self.retainer.keep(raw)
                    && let Err(what) = Self::close_hidden(s, raw)
                {
                    return failed(&what);
                }
                if ends {
                    s.life = Life::Kept;
                }
                At::Takes
            }
            At::TakenLooks(kept, true) => At::FinishesStream(kept, false),
            At::TakenLooks(kept, false) => At::AwaitsUsers(kept, 0),
            At::Takes => match self.retainer.take() {
                Some(kept) => At::TakenMayEnd(Some(kept)),
                None if self.twin == Twin::EndsWithNothing && !self.retainer.is_held() => {
                    At::TakenMayEnd(None)
                }
                None => At::Releases,
            },
            At::TakenMayEnd(kept) => {
                let was_put_off = match self.says_so_elsewhere() {
                    true => s.life == Life::Kept,
                    false => kept.is_some_and(Kept::ends),
                };
                if was_put_off || self.twin == Twin::EndsAnyway {
                    s.life = Life::Live;
                    At::FinishesStream(kept, false)
                } else {
                    At::AwaitsUsers(kept, 0)
                }
            }
            _ => return self.tear_down_step(s, n),
        }))
    }

    /// A step of the thread that ends the connection, or releases it.
    fn tear_down_step(&self, s: &mut S, n: usize) -> Option<Result<At, String>> {
        let Thread { at, fd, half, .. } = s.threads[n].clone();
        let is_call = n < self.calls.len();
        let failed = |what: &str| Some(Err(what.to_owned()));
        Some(Ok(match at {
            At::FinishesStream(kept, own) => {
                let number = if own { Some(fd as i32) } else { kept.and_then(Kept::number) };
                match number {
                    Some(number) if !Self::is_open(s, number) => {
                        return failed("ends a connection with a number that is closed");
                    }
                    Some(_) => s.finished += 1,
                    None => {}
                }
                At::Ends(kept)
            }
            At::Ends(kept) => {
                s.ended += 1;
                if s.ended != 1 || s.finished != 1 {
                    return failed("ends it once more, or unsettled");
                }
                if s.refs != 0 {
                    return failed("ends it while it has numbers");
                }
                if s.threads.iter().any(|thread| thread.at == At::Asleep) {
                    return failed("ends it under a call that sleeps");
                }
                s.life = Life::Closing;
                At::LooksAtUsers(kept)
            }
            At::LooksAtUsers(kept) if s.users == [0; 2] => At::TearsDown(kept),
            At::LooksAtUsers(kept) => At::AwaitsUsers(kept, 0),
            At::TearsDown(kept) => {
                Self::tear_down(s);
                At::AwaitsUsers(kept, 0)
            }
            At::AwaitsUsers(kept, _) if kept.is_none() || self.twin == Twin::ClosesKeptAtOnce => {
                At::ClosesKept(kept)
            }
            At::AwaitsUsers(_, half) if s.locks[usize::from(half)] => return None,
            At::AwaitsUsers(kept, 0) => At::AwaitsUsers(kept, 1),
            At::AwaitsUsers(kept, _) => At::ClosesKept(kept),
            At::ClosesKept(kept) => {
                if let Some(raw) = kept.and_then(Kept::number)
                    && let Err(what) = Self::close_hidden(s, raw)
                {
                    return failed(&what);
                }
                At::Releases
            }
            At::Releases if !is_call && self.twin == Twin::WithoutGuard => At::ClosesNumber,
            At::Releases => {
                s.users[half] -= 1;
                match (s.users[half], is_call) {
                    (0, _) => At::ReleasedLooks,
                    (_, true) => At::Done,
                    (_, false) => At::ClosesNumber,
                }
            }
            At::ReleasedLooks if s.life == Life::Closing => At::ReleasedLooksAtUsers,
            At::ReleasedLooksAtUsers if s.users == [0; 2] => At::ReleasedTearsDown,
            At::ReleasedLooks | At::ReleasedLooksAtUsers | At::ReleasedTearsDown => {
                if at == At::ReleasedTearsDown {
                    Self::tear_down(s);
                }
                if is_call { At::Done } else { At::ClosesNumber }
            }
            At::ClosesNumber => {
                s.open[fd] = false;
                let sleeps = |t: &Thread| t.at == At::Asleep && t.fd == fd;
                if self.kept().is_none() && s.threads.iter().any(sleeps) {
                    return failed("leaves nothing to a call that sleeps");
                }
                At::Done
            }
            At::Done => return None,
            _ => unreachable!("a step of another table"),
        }))
    }

    fn tear_down(s: &mut S) {
        if s.life == Life::Closing {
            s.life = Life::Torn;
        }
    }
}

impl Model for Closing {
    type State = S;

    fn start(&self) -> S {
        let thread = |at, fd, half| Thread {
            at,
            fd,
            half,
            holds: false,
            promised: false,
            sleeps: self.sleeps,
        };
        let calls = self.calls.iter().enumerate().map(|(n, fd)| thread(At::Load, *fd, n % 2));
        let closes = (0..self.numbers).map(|fd| thread(At::Begins, fd, 1));
        S {
            retainer: 0,
            life: Life::Live,
            refs: self.numbers as u8,
            users: [0; 2],
            locks: [false; 2],
            table: vec![true; self.numbers],
            open: vec![true; self.numbers],
            hidden: vec![],
            finished: 0,
            ended: 0,
            threads: calls.chain(closes).collect(),
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        let names = ["thread 1", "thread 2", "thread 3", "thread 4"];
        for (n, name) in names.into_iter().enumerate().take(s.threads.len()) {
            to.extend(self.step(s, n).map(|next| (name, next)));
        }
    }

    fn check(&self, s: &S) -> Result<(), String> {
        let uses = |thread: &&Thread| {
            // A slot is never unmapped: looking at its words is harmless, going on from there is not.
            !matches!(
                thread.at,
                At::Load
                    | At::Acquires
                    | At::LooksAgain
                    | At::Begins
                    | At::AwaitsUsers(None, _)
                    | At::ClosesKept(_)
                    | At::TearsDown(_)
                    | At::Releases
                    | At::ReleasedLooks
                    | At::ReleasedLooksAtUsers
                    | At::ReleasedTearsDown
                    | At::ClosesNumber
                    | At::Done
            )
        };
        match s.threads.iter().find(uses) {
            Some(thread) if s.life == Life::Torn => {
                Err(format!("used after it was torn down, by {:?}", thread.at))
            }
            _ => Ok(()),
        }
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        let is_over = s.life == Life::Torn && s.ended == 1 && s.retainer == 0 && s.users == [0; 2];
        if !is_over || s.threads.iter().any(|thread| thread.at != At::Done) {
            return Err("the connection never ends".into());
        }
        if s.hidden.contains(&true) { Err("what was kept stays open".into()) } else { Ok(()) }
    }
}

const LIMIT: usize = 30_000_000;

#[test]
fn a_connection_ends_once_when_nobody_holds_it() {
    let some: &[(&[usize], usize, u8)] = match size() {
        Size::Unit => &[(&[0], 1, 1), (&[0], 2, 1)],
        Size::Ci => &[(&[0, 0], 1, 1), (&[0], 2, 2)],
        Size::Long => &[(&[0, 0], 1, 2), (&[0, 1], 2, 1)],
    };
    for (calls, numbers, sleeps) in some {
        let model = Closing::new(Twin::Faithful, calls, *numbers, *sleeps);
        let name = format!("kept, {} calls, {numbers} closes, {sleeps} sleeps", calls.len());
        holds(&name, &model, LIMIT);
    }
}

#[test]
fn every_rule_is_needed() {
    for twin in [Twin::KeepsLate, Twin::ClosesAtOnce, Twin::LetsGoEarly] {
        fails(&format!("kept, {twin:?}"), &Closing::new(twin, &[0], 1, 1), LIMIT);
    }
    for twin in [Twin::KeepsOnce, Twin::WithoutGuard, Twin::EndsAnyway] {
        fails(&format!("kept, {twin:?}"), &Closing::new(twin, &[0], 2, 1), LIMIT);
    }
    if size() == Size::Unit {
        return; // two calls are seconds of a debug build
    }
    for twin in [
        Twin::RefersToNothing,
        Twin::SaysSoElsewhere,
        Twin::PutsBack,
        Twin::EndsWithNothing,
        Twin::ClosesKeptAtOnce,
    ] {
        fails(&format!("kept, {twin:?}"), &Closing::new(twin, &[0, 0], 1, 1), LIMIT);
    }
}

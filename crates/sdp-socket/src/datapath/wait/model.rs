//! A model of sleeping in one process: calls that wait for one connection (`for_bytes`, each with a
//! wait set, for one connection or for two), and an event loop that waits for another by the
//! doorbell page, woken by one producer a connection.
//!
//! Arm words and doorbell page are the real ones, on real memory; the eventfd with its
//! edge-triggered wait sets and the order of calls are the model's. Promise: when every thread
//! rests, everything was read, and the count of sleepers is that of the threads asleep.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{format, string::String, vec::Vec};

use sdp_model::{Model, Size, Step, fails, holds, size};
use sdp_shm::{
    arm::{self, Mode},
    doorbell::{DOORBELL_BYTES, Doorbell},
};

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// A call takes old rings out of its wait set when it is armed already.
    ClearsLate,
    /// A call arms before it counts as a sleeper.
    ArmsUncounted,
    /// All calls of the process share one wait set.
    SharesTheSet,
    /// A call does not look again after it armed.
    LooksOnce,
    /// The event loop does not look at the bits after it counts as a sleeper.
    IgnoresBits,
    /// The event loop does not look at a connection again after it armed it.
    ArmsBlindly,
    /// The producer rings after it disarmed, and only if the half is armed then.
    DisarmsFirst,
}

/// A call that waits for one connection: `wait::for_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Call {
    Read,
    Take,
    Count,
    Arm,
    ClearLate,
    Look,
    Sleep,
    Wake,
}

/// An event loop on one connection: `epoll::wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Loop {
    Collect,
    Handle,
    Arm,
    LookAgain,
    Count,
    Bits,
    Sleep,
    Wake,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Producer {
    Idle,
    Check,
    Ring(u32),
    Event(u32),
    Disarm(u32),
}

/// Connection 0 is read by the calls, connection 1 by the event loop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    sleepers: u64,
    summary: u64,
    bits: u64,
    arms: [u32; 2],
    /// By connection: messages sent, and read.
    sent: [u8; 2],
    read: [u8; 2],
    producers: [Producer; 2],
    calls: Vec<Call>,
    /// Edges not yet seen: of each call's wait set, and of the event loop.
    edges: Vec<bool>,
    events: Loop,
    is_ready: bool,
}

struct Waiting {
    twin: Twin,
    calls: usize,
    /// Messages by connection.
    messages: [u8; 2],
    /// Call n waits for connection n, and there is no event loop.
    apart: bool,
    doorbell: Doorbell,
    arms: [AtomicU32; 2],
}

impl Waiting {
    fn new(twin: Twin, calls: usize, messages: [u8; 2]) -> Self {
        // SAFETY: zeros of this size, aligned to a page; leaked, so that they outlive every copy.
        let doorbell = unsafe { Doorbell::new(crate::leaked(DOORBELL_BYTES)) };
        let arms = [AtomicU32::new(0), AtomicU32::new(0)];
        Self { twin, calls, messages, apart: false, doorbell, arms }
    }

    fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Words of the doorbell page, by their places in `docs/spec/shm.md`.
    fn page(&self) -> [&AtomicU64; 3] {
        // SAFETY: offsets within the page, multiples of eight; it is never freed.
        [0, 128, 256].map(|at| unsafe { self.doorbell.base().add(at).cast::<AtomicU64>().as_ref() })
    }

    fn restore(&self, s: &S) {
        for (word, value) in self.page().iter().zip([s.sleepers, s.summary, s.bits]) {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in self.arms.iter().zip(s.arms) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn capture(&self, mut s: S) -> S {
        [s.sleepers, s.summary, s.bits] = self.page().map(|word| word.load(Ordering::Relaxed));
        for (c, word) in self.arms.iter().enumerate() {
            // Sequence numbers matter only where a producer remembers one.
            let (old, new) =
                (word.load(Ordering::Relaxed), word.load(Ordering::Relaxed) & 3 | 5 << 2);
            s.arms[c] = new;
            if let Producer::Ring(seen) | Producer::Event(seen) | Producer::Disarm(seen) =
                &mut s.producers[c]
            {
                *seen = if *seen == old { new } else { *seen & 3 | 1 << 2 };
            }
        }
        s
    }

    fn set_of(&self, call: usize) -> usize {
        if self.twin == Twin::SharesTheSet { 0 } else { call }
    }

    fn produce(&self, s: &S, c: usize) -> Option<S> {
        let mut s = s.clone();
        self.restore(&s);
        let disarm = |seen| {
            if let Some((_, now)) = arm::check(&self.arms[c])
                && self.arms[c].load(Ordering::Relaxed) == seen
            {
                arm::disarm(&self.arms[c], now);
            }
        };
        s.producers[c] = match s.producers[c] {
            Producer::Idle if s.sent[c] < self.messages[c] => {
                s.sent[c] += 1;
                Producer::Check
            }
            Producer::Idle => return None,
            Producer::Check => {
                let word = self.arms[c].load(Ordering::Relaxed);
                match arm::check(&self.arms[c]) {
                    None => Producer::Idle,
                    Some(_) if self.twin == Twin::DisarmsFirst => {
                        disarm(word);
                        Producer::Ring(word)
                    }
                    Some(_) => Producer::Ring(word),
                }
            }
            Producer::Ring(_)
                if self.twin == Twin::DisarmsFirst && !arm::is_armed(&self.arms[c]) =>
            {
                Producer::Idle
            }
            Producer::Ring(seen) => {
                if self.doorbell.ring(c as u32) {
                    Producer::Event(seen)
                } else {
                    Producer::Disarm(seen)
                }
            }
            Producer::Event(seen) => {
                s.edges.fill(true);
                Producer::Disarm(seen)
            }
            Producer::Disarm(seen) => {
                disarm(seen);
                Producer::Idle
            }
        };
        Some(self.capture(s))
    }

    fn call(&self, s: &S, n: usize) -> Option<S> {
        let mut s = s.clone();
        self.restore(&s);
        let set = self.set_of(n);
        let c = if self.apart { n } else { 0 };
        let has_news = s.sent[c] != s.read[c];
        s.calls[n] = match s.calls[n] {
            Call::Read if has_news => {
                s.read[c] += 1;
                Call::Read
            }
            Call::Read => Call::Take,
            Call::Take => {
                if self.twin != Twin::ClearsLate {
                    s.edges[set] = false;
                }
                if self.twin == Twin::ArmsUncounted { Call::Arm } else { Call::Count }
            }
            Call::Count => {
                self.doorbell.fall_asleep();
                if self.twin == Twin::ArmsUncounted { Call::Look } else { Call::Arm }
            }
            Call::Arm => {
                arm::arm(&self.arms[c], Mode::Doorbell);
                match self.twin {
                    Twin::ArmsUncounted => {
                        // Looks here, then counts: a message that comes in between signals to no
                        // thread.
                        if has_news { Call::Read } else { Call::Count }
                    }
                    Twin::LooksOnce => Call::Sleep,
                    Twin::ClearsLate => Call::ClearLate,
                    _ => Call::Look,
                }
            }
            Call::ClearLate if has_news => Call::Wake,
            Call::ClearLate => {
                s.edges[set] = false;
                Call::Sleep
            }
            Call::Look if self.twin == Twin::ArmsUncounted => Call::Sleep,
            Call::Look if has_news => Call::Wake,
            Call::Look => Call::Sleep,
            Call::Sleep if s.edges[set] => {
                s.edges[set] = false;
                Call::Wake
            }
            Call::Sleep => return None,
            Call::Wake => {
                self.doorbell.wake_up();
                Call::Read
            }
        };
        Some(self.capture(s))
    }

    fn event_loop(&self, s: &S) -> Option<S> {
        let mut s = s.clone();
        self.restore(&s);
        let edge = self.calls;
        let has_news = s.sent[1] != s.read[1];
        s.events = match s.events {
            Loop::Collect => {
                let mut is_ready = s.is_ready;
                // Bits of connections that calls wait for are not the set's.
                self.doorbell.take(|slot| is_ready |= slot == 1);
                s.is_ready = is_ready;
                if is_ready { Loop::Handle } else { Loop::Count }
            }
            Loop::Handle => {
                s.read[1] = s.sent[1]; // the program reads until EAGAIN
                Loop::Arm
            }
            Loop::Arm => {
                arm::arm(&self.arms[1], Mode::Doorbell);
                if self.twin == Twin::ArmsBlindly {
                    s.is_ready = false;
                    Loop::Count
                } else {
                    Loop::LookAgain
                }
            }
            Loop::LookAgain => {
                s.is_ready = has_news;
                if has_news { Loop::Collect } else { Loop::Count }
            }
            Loop::Count => {
                self.doorbell.fall_asleep();
                Loop::Bits
            }
            Loop::Bits if self.twin == Twin::IgnoresBits => Loop::Sleep,
            Loop::Bits => {
                if self.doorbell.any() {
                    Loop::Wake
                } else {
                    Loop::Sleep
                }
            }
            Loop::Sleep if s.edges[edge] => {
                s.edges[edge] = false;
                Loop::Wake
            }
            Loop::Sleep => return None,
            Loop::Wake => {
                self.doorbell.wake_up();
                Loop::Collect
            }
        };
        Some(self.capture(s))
    }
}

impl Model for Waiting {
    type State = S;

    fn start(&self) -> S {
        S {
            sleepers: 0,
            summary: 0,
            bits: 0,
            arms: [0; 2],
            sent: [0; 2],
            read: [0; 2],
            producers: [Producer::Idle; 2],
            calls: std::vec![Call::Read; self.calls],
            edges: std::vec![false; self.calls + 1],
            events: Loop::Collect,
            is_ready: true,
        }
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        for (c, name) in ["producer 0", "producer 1"].into_iter().enumerate() {
            to.extend(self.produce(s, c).map(|next| (name, Ok(next))));
        }
        for (n, name) in ["call 0", "call 1", "call 2"].into_iter().enumerate().take(self.calls) {
            to.extend(self.call(s, n).map(|next| (name, Ok(next))));
        }
        if !self.apart {
            to.extend(self.event_loop(s).map(|next| ("event loop", Ok(next))));
        }
    }

    fn check(&self, s: &S) -> Result<(), String> {
        let awake = |call: &&Call| {
            matches!(call, Call::Arm | Call::ClearLate | Call::Look | Call::Sleep | Call::Wake)
        };
        let mut counted = s.calls.iter().filter(awake).count() as u64;
        counted += u64::from(matches!(s.events, Loop::Bits | Loop::Sleep | Loop::Wake));
        if self.twin == Twin::ArmsUncounted || s.sleepers == counted {
            Ok(())
        } else {
            Err(format!("{} sleepers, counted {}", counted, s.sleepers))
        }
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        if s.sent == self.messages && s.read == s.sent {
            Ok(())
        } else {
            Err(format!("everybody sleeps with {:?} sent and {:?} read", s.sent, s.read))
        }
    }
}

const LIMIT: usize = 50_000_000;

#[test]
fn nobody_sleeps_over_news() {
    let some: &[(usize, [u8; 2])] = match size() {
        Size::Unit => &[(1, [1, 1])],
        Size::Ci => &[(1, [2, 2]), (2, [2, 0])],
        Size::Long => &[(1, [3, 3]), (2, [2, 2]), (3, [2, 0])],
    };
    for (calls, messages) in some {
        let model = Waiting::new(Twin::Faithful, *calls, *messages);
        holds(&format!("waits, {calls} calls"), &model, LIMIT);
    }
    let each = if size() == Size::Unit { 1 } else { 2 };
    let two = Waiting::new(Twin::Faithful, 2, [each, each]).apart();
    holds("waits, two calls of two connections", &two, LIMIT);
}

#[test]
fn every_rule_is_needed() {
    for twin in [Twin::ClearsLate, Twin::ArmsUncounted, Twin::LooksOnce, Twin::DisarmsFirst] {
        fails(&format!("waits, {twin:?}"), &Waiting::new(twin, 1, [2, 0]), LIMIT);
    }
    for twin in [Twin::IgnoresBits, Twin::ArmsBlindly] {
        fails(&format!("waits, {twin:?}"), &Waiting::new(twin, 0, [0, 2]), LIMIT);
    }
    let shared = Waiting::new(Twin::SharesTheSet, 2, [1, 1]).apart();
    fails("waits, SharesTheSet", &shared, LIMIT);
}

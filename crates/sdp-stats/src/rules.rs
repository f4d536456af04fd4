//! The rules of a process in its page.
//!
//! Written by the library when other rules come into force, or when a rule file that has changed does not;
//! shown by tools, for which any content is possible.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::page::{Page, RuleWords};

/// The state of the rule file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RuleState {
    /// There is no rule file.
    NoFile = 0,
    /// The file is in force.
    File = 1,
    /// It has changed and has errors: the former rules hold.
    Broken = 2,
    /// It cannot be read any more: the former rules hold.
    Unreadable = 3,
    /// The process has another root directory: the former rules hold for good.
    OutOfSight = 4,
}

/// The rules of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// Number of a [`RuleState`].
    pub state: u32,
    /// Rules in force, of the file and in front of it.
    pub rules: u32,
    /// Lines with errors in a file that is not in force.
    pub errors: u32,
    /// Times that other rules came into force since the process began.
    pub changes: u32,
    /// When the rules in force were read, in seconds since 1970; 0: there are none.
    pub since_s: u64,
    /// When the file was last found changed, likewise.
    pub judged_s: u64,
}

impl Rules {
    /// No rules, no file.
    pub const NONE: Self =
        Self { state: 0, rules: 0, errors: 0, changes: 0, since_s: 0, judged_s: 0 };
}

impl RuleWords {
    /// No rules, no file.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            rules: AtomicU32::new(0),
            errors: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            since_s: AtomicU64::new(0),
            judged_s: AtomicU64::new(0),
        }
    }

    /// Stores the words; one thread at a time.
    pub fn set(&self, rules: &Rules) {
        self.rules.store(rules.rules, Relaxed);
        self.errors.store(rules.errors, Relaxed);
        self.changes.store(rules.changes, Relaxed);
        self.since_s.store(rules.since_s, Relaxed);
        self.judged_s.store(rules.judged_s, Relaxed);
        self.state.store(rules.state, Release);
    }

    /// The words as they are.
    pub fn get(&self) -> Rules {
        Rules {
            state: self.state.load(Acquire),
            rules: self.rules.load(Relaxed),
            errors: self.errors.load(Relaxed),
            changes: self.changes.load(Relaxed),
            since_s: self.since_s.load(Relaxed),
            judged_s: self.judged_s.load(Relaxed),
        }
    }
}

impl Default for RuleWords {
    fn default() -> Self {
        Self::new()
    }
}

impl Page {
    /// The rules of the process.
    pub fn set_rules(&self, rules: &Rules) {
        self.header.rules.set(rules);
    }
}

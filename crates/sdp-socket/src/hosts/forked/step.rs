//! Who goes on with a guarded stream that forks have copied: the decision, as a pure function.
//!
//! All processes that have the stream share a word, a state and the number of the last fork.
//! [`step`] says what a process that is about to use the stream does to the word, and what follows
//! for the process. It has no clock, no lock and no side effect, so that the model beside it plays
//! what the product does.
//!
//! | state | the process with the queue pair | a copy |
//! |---|---|---|
//! | `UNCLAIMED` | claims: `OWNER_HAS_IT` | claims: `COPY_LEAVES`; a stale one: `ASKED` |
//! | `OWNER_HAS_IT` | goes on | asks: `ASKED` |
//! | `ASKED` | goes on, hands back where it can | waits |
//! | `COPY_LEAVES` | waits | who claimed hands back |
//! | `COPY_HAS_IT` | takes it back once the copy has gone | who claimed goes on |
//! | `PLAIN`, `LOST` | the carrier is plain; the stream is lost | the same |

/// No process has used the stream since the fork.
pub(in crate::hosts) const UNCLAIMED: u32 = 1;
/// The process that has the queue pair goes on with the stream.
pub(in crate::hosts) const OWNER_HAS_IT: u32 = 2;
/// A copy is being handed back.
pub(in crate::hosts) const COPY_LEAVES: u32 = 3;
/// As `OWNER_HAS_IT`, and another process wants the stream.
pub(in crate::hosts) const ASKED: u32 = 4;
/// The carrier is plain TCP.
pub(in crate::hosts) const PLAIN: u32 = 5;
/// The stream is lost.
pub(in crate::hosts) const LOST: u32 = 6;
/// A copy goes on with the stream, guarded and by the carrier alone: its peer may not know of
/// markers, or has ended its stream.
pub(in crate::hosts) const COPY_HAS_IT: u32 = 7;

/// The use that a caller is about to make of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(in crate::hosts) enum Use {
    /// A call of the program on it, which may wait.
    Call,
    /// To see whether there is something to read. Never waits.
    Look,
    /// To hand it back, with others. Never waits: a call follows.
    Ask,
    /// To hand it back, in this call, which may wait. A copy becomes the caller's to hand.
    Leave,
    /// Work beside calls. It is no use of the connection.
    Tend,
}

impl Use {
    /// Whether the caller may wait for another process.
    pub(super) const fn may_wait(self) -> bool {
        matches!(self, Self::Call | Self::Leave)
    }
}

/// The process that decides, at one look at the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Who {
    /// The queue pair is another process's.
    pub(super) is_copy: bool,
    /// The process has claimed the stream since the last fork that it knows of.
    pub(super) is_claimed: bool,
    /// The last fork that the process knows of is that of the word.
    pub(super) is_current: bool,
}

/// What follows for the process, once the word is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The carrier is plain: the process goes on with that.
    Plain,
    /// The process goes on with the stream.
    Mine,
    /// As [`Answer::Mine`], and another process wants the stream: a call hands it back if it can.
    MineAsked,
    /// As [`Answer::Mine`] if the copy that went on has gone; else [`Answer::Later`], and the word
    /// stays.
    MineIfLeft,
    /// The process has the stream and hands it back before the call.
    HandBack,
    /// Not now. A caller that may wait looks at the word again.
    Later,
    /// The stream is lost.
    Lost,
}

/// A word of a fork's number and a state.
pub(super) const fn word(fork: u32, state: u32) -> u64 {
    (fork as u64) << 32 | state as u64
}

/// The number of the last fork in a word.
pub(super) const fn fork_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// What a process does to the word before it uses the stream for `what`, and what follows. The
/// caller changes the word by one atomic step from `seen`, if it changes at all. If that fails the
/// answer is [`Answer::Later`].
pub(super) fn step(seen: u64, who: Who, what: Use) -> (u64, Answer) {
    let to = |state| word(fork_of(seen), state);
    let is_use = what != Use::Tend;
    // A claim of a copy makes the stream plain, which a look has no time for.
    let may_ask = what.may_wait() || what == Use::Ask;
    match (seen as u32, who.is_copy) {
        (PLAIN, _) => (seen, Answer::Plain),
        (LOST, _) => (seen, Answer::Lost),
        (OWNER_HAS_IT, false) => (seen, Answer::Mine),
        (ASKED, false) => (seen, Answer::MineAsked),
        (UNCLAIMED, false) if is_use => (to(OWNER_HAS_IT), Answer::Mine),
        (COPY_HAS_IT, false) if is_use => (to(OWNER_HAS_IT), Answer::MineIfLeft),
        (COPY_HAS_IT, true) if who.is_claimed && is_use => (seen, Answer::Mine),
        (UNCLAIMED, true) if may_ask && who.is_current => {
            (to(COPY_LEAVES), if what == Use::Call { Answer::HandBack } else { Answer::Mine })
        }
        // The process asked for it with others.
        (COPY_LEAVES, true) if what.may_wait() && who.is_claimed => {
            (seen, if what == Use::Leave { Answer::Mine } else { Answer::HandBack })
        }
        (UNCLAIMED | OWNER_HAS_IT, true) if may_ask => (to(ASKED), Answer::Later),
        _ => (seen, Answer::Later),
    }
}

/// The word at the fork number `fork`, which a process makes that has the queue pair. `is_leaving`:
/// a thread of the process is handing the stream back, and goes on with that.
pub(super) const fn at_fork(seen: u64, fork: u32, is_leaving: bool) -> u64 {
    let state = match seen as u32 {
        0 | UNCLAIMED | OWNER_HAS_IT if is_leaving => OWNER_HAS_IT,
        0 | UNCLAIMED | OWNER_HAS_IT => UNCLAIMED,
        other => other,
    };
    word(fork, state)
}

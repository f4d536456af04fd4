//! The states of a connection in this process, as data: event, state, next state, and which
//! function may cause it.
//!
//! The code keeps a connection's state as a [`Stage`] and bits of its flags. [`phase`] reads them
//! as one of the twelve phases here; where one of them changes, [`check_change`] compares the
//! change with [`TRANSITIONS`]. It costs nothing in a release build. `docs/spec/lifecycle.md` is
//! made from the table, and a test keeps the two equal.
//!
//! Properties that are no phase: how the program's end of a stream stands, which other processes
//! hold the connection, and where it came from (which decides where a refused one goes: the library
//! looks again at one that came from elsewhere).

use super::{
    flags::{Flags, Holders, Limits},
    slot::Stage,
};

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A stream socket that is not connected.
    New,
    /// A listener.
    Listening,
    /// Connected; may earn an SDP lane.
    Candidate,
    /// The ends are meeting.
    Meeting,
    /// Has a segment, and may use its lanes.
    Attached,
    /// Has a segment; its payload goes back to TCP for good.
    Leaving,
    /// Has a segment; a rule was broken, and every call answers ECONNRESET.
    Broken,
    /// Connected to another host; may earn a queue pair.
    Remote,
    /// Has met another host: markers may stand among the bytes of its carrier.
    Guarded,
    /// TCP for now: it came from elsewhere, and others may hold it.
    ParkedArrived,
    /// TCP for now: the other end did not come.
    ParkedUnmet,
    /// TCP for good.
    Tcp,
}

/// The events of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Listen,
    Established,
    Excluded,
    Corrected,
    StartsOver,
    Reconsidered,
    Earned,
    Refused,
    RefusedForNow,
    NobodyCame,
    TriedAgain,
    RetriesExhausted,
    ForkBegins,
    InChild,
    Attached,
    Leave,
    CalledOff,
    Broke,
    PeerPassedOn,
    LanesAside,
    StillInUse,
    LanesDropped,
    Ended,
    OtherHost,
    MetHost,
    StaysRemote,
    GuardBroke,
    GuardLost,
}

/// An event, the file and functions that cause it, its meaning, and all changes that it may make.
#[cfg_attr(not(test), expect(dead_code, reason = "the document's part of it"))]
pub(crate) struct Row {
    event: Event,
    by: By,
    what: &'static str,
    changes: &'static [(Phase, Phase)],
}

/// A file of `src`, and functions in it.
type By = (&'static str, &'static [&'static str]);

use Phase::{
    Attached, Broken, Candidate, Guarded, Leaving, Listening, Meeting, New, ParkedArrived,
    ParkedUnmet, Remote, Tcp,
};

/// The states in which a slot may begin, and the functions that begin it.
#[cfg(test)]
const BEGINNINGS: [(Phase, By, &str); 4] = [
    (New, ("lifecycle/open.rs", &["opened", "accepted"]), "a socket is made"),
    (
        Listening,
        ("lifecycle/open.rs", &["adopt_listener"]),
        "a listener came by exec or activation",
    ),
    (
        ParkedArrived,
        ("lifecycle/adopt.rs", &["adopt"]),
        "a connection came by exec, SCM_RIGHTS or activation",
    ),
    (Tcp, ("lifecycle/reconnect.rs", &["renumber"]), "a socket is used again that others hold"),
];

/// All transitions.
pub(crate) const TRANSITIONS: [Row; 28] = [
    Row {
        event: Event::Listen,
        by: ("lifecycle/open.rs", &["listening"]),
        what: "`listen`; not first where a `connect` failed before",
        changes: &[(New, Listening), (Candidate, Listening), (Tcp, Listening)],
    },
    Row {
        event: Event::Established,
        by: ("lifecycle/open.rs", &["establish"]),
        what: "connected or accepted; rules allow SDP, and there is a row for it",
        changes: &[(New, Candidate)],
    },
    Row {
        event: Event::Excluded,
        by: ("lifecycle/open.rs", &["establish"]),
        what: "the same where a rule says TCP, or there is no row",
        changes: &[(New, Tcp)],
    },
    Row {
        event: Event::Corrected,
        by: ("lifecycle/open.rs", &["correct"]),
        what: "another `connect` of the same socket: the rules decide again, for the new address",
        changes: &[(Candidate, Tcp), (Tcp, Candidate)],
    },
    Row {
        event: Event::StartsOver,
        by: ("migration/arrived.rs", &["start_over"]),
        what: "the process leaves its family: from here on the connection came from elsewhere",
        changes: &[(Tcp, ParkedArrived), (ParkedUnmet, ParkedArrived)],
    },
    Row {
        event: Event::Reconsidered,
        by: ("migration/arrived.rs", &["reconsider"]),
        what: "no rule and no standard descriptor keeps it on TCP any more",
        changes: &[(ParkedArrived, Candidate)],
    },
    Row {
        event: Event::Earned,
        by: ("migration/promote.rs", &["begin"]),
        what: "enough calls or bytes, one holder, no reason against a lane",
        changes: &[(Candidate, Meeting)],
    },
    Row {
        event: Event::Refused,
        by: ("migration/promote.rs", &["stay"]),
        what: "no lane is possible; the library looks again at a connection that came from elsewhere",
        changes: &[
            (Candidate, Tcp),
            (Meeting, Tcp),
            (Candidate, ParkedArrived),
            (Meeting, ParkedArrived),
        ],
    },
    Row {
        event: Event::RefusedForNow,
        by: ("migration/promote.rs", &["later"]),
        what: "the reason against a lane may pass",
        changes: &[(Meeting, Candidate)],
    },
    Row {
        event: Event::NobodyCame,
        by: ("migration/promote.rs", &["stay"]),
        what: "the other end did not come to the meeting in time",
        changes: &[(Candidate, ParkedUnmet), (Meeting, ParkedUnmet)],
    },
    Row {
        event: Event::TriedAgain,
        by: ("migration/promote.rs", &["again"]),
        what: "some time after the other end did not come",
        changes: &[(ParkedUnmet, Candidate)],
    },
    Row {
        event: Event::RetriesExhausted,
        by: ("migration/promote.rs", &["again", "stay"]),
        what: "the other end did not come too often, or there is another reason against a lane now",
        changes: &[(ParkedUnmet, Tcp)],
    },
    Row {
        event: Event::ForkBegins,
        by: ("lifecycle/inherit.rs", &["prepare_connections"]),
        what: "a meeting would go on in two processes",
        changes: &[(Meeting, Candidate)],
    },
    Row {
        event: Event::InChild,
        by: ("lifecycle/inherit.rs", &["fork_child"]),
        what: "the fork did not wait for the meeting's end",
        changes: &[(Meeting, Candidate)],
    },
    Row {
        event: Event::Attached,
        by: ("conn/slot.rs", &["attach"]),
        what: "the ends have met; a connection that is to leave by now leaves",
        changes: &[(Meeting, Attached), (Meeting, Leaving)],
    },
    Row {
        event: Event::Leave,
        by: ("conn/slot.rs", &["fall_back"]),
        what: "the program does something that no lane can carry, or a rule of the library requires it",
        changes: &[(Attached, Leaving), (ParkedArrived, Tcp), (ParkedUnmet, Tcp)],
    },
    Row {
        event: Event::CalledOff,
        by: ("migration/demote.rs", &["call_off"]),
        what: "the library gives up a meeting, or a later one",
        changes: &[
            (Candidate, Tcp),
            (Meeting, Tcp),
            (Candidate, ParkedArrived),
            (Meeting, ParkedArrived),
            (Candidate, ParkedUnmet),
            (Meeting, ParkedUnmet),
        ],
    },
    Row {
        event: Event::Broke,
        by: ("datapath/reset.rs", &["reset"]),
        what: "the peer broke a rule, or a lock is overdue",
        changes: &[(Attached, Broken), (Leaving, Broken)],
    },
    Row {
        event: Event::PeerPassedOn,
        by: ("migration/repromote.rs", &["consider"]),
        what: "the other end left its lanes for another process, and both directions are drained: no call enters them",
        changes: &[(Attached, Tcp), (Attached, ParkedArrived), (Attached, ParkedUnmet)],
    },
    Row {
        event: Event::LanesAside,
        by: ("migration/repromote.rs", &["consider"]),
        what: "behind that: no call was in there, and the connection may earn lanes again",
        changes: &[(Tcp, Candidate), (ParkedArrived, Candidate), (ParkedUnmet, Candidate)],
    },
    Row {
        event: Event::StillInUse,
        by: ("migration/repromote.rs", &["consider"]),
        what: "instead of that: a call was in there, and the events meanwhile count",
        changes: &[
            (Tcp, Attached),
            (ParkedArrived, Attached),
            (ParkedUnmet, Attached),
            (Tcp, Leaving),
            (Tcp, Broken),
        ],
    },
    Row {
        event: Event::LanesDropped,
        by: ("lifecycle/inherit.rs", &["leave_trust"]),
        what: "the process leaves its family, and everything is on the kernel lane",
        changes: &[(Leaving, Tcp), (Broken, Tcp)],
    },
    Row {
        event: Event::Ended,
        by: ("conn/slot.rs", &["tear_down_if_unused"]),
        what: "the last descriptor and the last call are gone in the middle of a meeting",
        changes: &[(Meeting, Tcp), (Meeting, ParkedArrived), (Meeting, ParkedUnmet)],
    },
    Row {
        event: Event::OtherHost,
        by: ("hosts/reach.rs", &["consider"]),
        what: "its other end is on another host, and the rules allow that fabric",
        changes: &[(Candidate, Remote)],
    },
    Row {
        event: Event::MetHost,
        by: ("hosts/device.rs", &["enter_guard", "answer"]),
        what: "both ends know the stream; or the meeting failed before the other end heard of it",
        changes: &[(Remote, Guarded), (Guarded, Remote)],
    },
    Row {
        event: Event::StaysRemote,
        by: ("hosts/mod.rs", &["let_go", "part", "start_over", "place"]),
        what: "no queue pair is possible, the program does something that only TCP can do, it is in a fork child, or connects anew",
        changes: &[(Remote, Tcp), (Remote, Candidate)],
    },
    Row {
        event: Event::GuardBroke,
        by: ("hosts/mod.rs", &["reset"]),
        what: "the peer broke a rule, or did not answer when the stream was to be handed back to TCP",
        changes: &[(Guarded, Broken)],
    },
    Row {
        event: Event::GuardLost,
        by: ("hosts/forked.rs", &["lost"]),
        what: "after a fork another process goes on with it, and does not hand it back",
        changes: &[(Guarded, Broken)],
    },
];

/// The phase that a stage and flags say.
///
/// A candidate that is never to leave TCP stays one, and does not earn; a meeting that is to be called off is one
/// until it is.
pub(crate) fn phase(stage: Stage, flags: Flags) -> Phase {
    match stage {
        Stage::Fresh => New,
        Stage::Listener => Listening,
        Stage::Candidate => Candidate,
        Stage::Meeting => Meeting,
        Stage::Remote => Remote,
        Stage::Attached | Stage::Guarded if flags.has(Limits::Hostile) => Broken,
        Stage::Guarded => Guarded,
        Stage::Attached if flags.has(Limits::Fallback) => Leaving,
        Stage::Attached => Attached,
        Stage::Kernel if flags.has(Limits::Fallback) => Tcp,
        Stage::Kernel if flags.has(Holders::Adopted) => ParkedArrived,
        Stage::Kernel if flags.has(Limits::Unmet) => ParkedUnmet,
        Stage::Kernel => Tcp,
    }
}

/// Whether something may lead from one phase to the other.
pub(crate) fn is_legal(from: Phase, to: Phase) -> bool {
    from == to || TRANSITIONS.iter().any(|row| row.changes.contains(&(from, to)))
}

/// Holds a change that was made against the table, in a debug build: `before` and `after` are the stage and flags
/// around this change alone, without what other threads change at the same time.
#[inline(always)]
pub(crate) fn check_change(before: (Stage, Flags), after: (Stage, Flags)) {
    if cfg!(debug_assertions) {
        let (from, to) = (phase(before.0, before.1), phase(after.0, after.1));
        assert!(is_legal(from, to), "from {from:?} to {to:?}: not in the table of conn/life.rs");
    }
}

#[cfg(test)]
mod tests;

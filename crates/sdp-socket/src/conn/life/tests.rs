//! The table against the code: its documentation, the functions that it names, and the changes that
//! real connections make.

use core::{fmt::Write, sync::atomic::Ordering};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    string::{String, ToString},
    vec::Vec,
};

use super::*;
use crate::conn::{self, Conn};

const PHASES: [Phase; 12] = [
    New,
    Listening,
    Candidate,
    Meeting,
    Attached,
    Leaving,
    Broken,
    Remote,
    Guarded,
    ParkedArrived,
    ParkedUnmet,
    Tcp,
];
const STAGES: [Stage; 8] = [
    Stage::Fresh,
    Stage::Listener,
    Stage::Kernel,
    Stage::Candidate,
    Stage::Meeting,
    Stage::Attached,
    Stage::Remote,
    Stage::Guarded,
];
const FLAGS: [Flags; 4] = [
    Limits::Fallback.flags(),
    Limits::Hostile.flags(),
    Limits::Unmet.flags(),
    Holders::Adopted.flags(),
];

/// Every change that a stage's or a flag's change can make.
fn each_state(mut body: impl FnMut(Stage, Flags)) {
    for stage in STAGES {
        for set in 0..1 << FLAGS.len() {
            let chosen = FLAGS.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0);
            body(stage, chosen.fold(Flags::NONE, |flags, (_, flag)| flags.and(*flag)));
        }
    }
}

const BEGIN: &str = "<!-- the table of crates/sdp-socket/src/conn/life.rs -->\n";
/// The changes as a drawing: an arrow for each pair of phases, with the events that cause it.
fn picture() -> String {
    let mut text = "\n```mermaid\nstateDiagram-v2\n".to_string();
    for (phase, ..) in BEGINNINGS {
        let _ = writeln!(text, "    [*] --> {phase:?}");
    }
    for from in PHASES {
        for to in PHASES {
            let rows = TRANSITIONS.iter().filter(|row| row.changes.contains(&(from, to)));
            let events: Vec<String> = rows.map(|row| std::format!("{:?}", row.event)).collect();
            if !events.is_empty() {
                let _ = writeln!(text, "    {from:?} --> {to:?}: {}", events.join(", "));
            }
        }
    }
    text.push_str("```\n");
    text
}

const END: &str = "<!-- end of the table -->\n";

fn table() -> String {
    let place = |(file, functions): By| {
        let names: Vec<String> = functions.iter().map(|name| std::format!("`{name}`")).collect();
        std::format!("`{file}`: {}", names.join(", "))
    };
    let mut text = BEGIN.to_string();
    text.push_str(&picture());
    text.push_str("\n| begins as | by | when |\n|---|---|---|\n");
    for (phase, by, what) in BEGINNINGS {
        let _ = writeln!(text, "| {phase:?} | {} | {what} |", place(by));
    }
    text.push_str("\n| event | from, to | by | what happens |\n|---|---|---|---|\n");
    for Row { event, by, what, changes } in TRANSITIONS {
        let mut arrows = Vec::new();
        for from in PHASES {
            let to = changes.iter().filter(|(f, _)| *f == from);
            let to: Vec<String> = to.map(|(_, to)| std::format!("{to:?}")).collect();
            if !to.is_empty() {
                arrows.push(std::format!("{from:?} → {}", to.join(" or ")));
            }
        }
        let _ = writeln!(text, "| {event:?} | {} | {} | {what} |", arrows.join("; "), place(by));
    }
    text.push('\n');
    text.push_str(END);
    text
}

/// With `SDP_BLESS=1` writes the table between the markers instead.
#[test]
fn the_documentation_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/lifecycle.md");
    let text = std::fs::read_to_string(path).expect("the document");
    let (head, rest) = text.split_once(BEGIN).expect("a beginning");
    let (_, tail) = rest.split_once(END).expect("an end");
    let wanted = std::format!("{head}{}{tail}", table());
    if std::env::var_os("SDP_BLESS").is_some() {
        std::fs::write(path, &wanted).expect("the file can be written");
    } else {
        assert!(text == wanted, "docs/spec/lifecycle.md differs from conn/life.rs; see its head");
    }
}

#[test]
fn who_is_named_exists() {
    let places = TRANSITIONS.iter().map(|row| row.by).chain(BEGINNINGS.iter().map(|row| row.1));
    for (file, functions) in places {
        let path = std::format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(&path).expect("a file of the crate");
        for function in functions {
            assert!(source.contains(&std::format!("fn {function}(")), "{file}: {function}");
        }
    }
}

/// A connection in this state, however it came there.
fn in_state(stage: Stage, flags: Flags) -> &'static Conn {
    let (_, conn) = conn::create(stage).expect("a slot");
    conn.flags.store(flags, Ordering::SeqCst);
    conn
}

fn free(conn: &Conn) {
    conn.flags.store(Limits::Fallback.flags(), Ordering::SeqCst);
    assert!(conn.unreference());
    // Not through a legal change: it may be anywhere.
    for stage in STAGES {
        let _ = conn.change_stage_unjudged(stage, Stage::Kernel);
    }
    conn.closed();
}

/// Each change of stage or flag in each state, made on a real connection: it happens if it is in the table, and else
/// it is refused and changes nothing.
#[test]
fn each_change_outside_the_table_is_refused() {
    let mut refused = Vec::new();
    let mut made = 0;
    let mut try_change = |stage, flags, to: (Stage, Flags), change: &dyn Fn(&Conn)| {
        let (from, to) = (phase(stage, flags), phase(to.0, to.1));
        if refused.contains(&(from, to)) {
            return; // it costs a panic
        }
        let conn = in_state(stage, flags);
        let is_done = catch_unwind(AssertUnwindSafe(|| change(conn))).is_ok();
        assert_eq!(is_done, is_legal(from, to), "{from:?} to {to:?}");
        assert_eq!(conn.phase(), if is_done { to } else { from });
        free(conn);
        if is_done {
            made += 1;
        } else {
            refused.push((from, to));
        }
    };
    each_state(|stage, flags| {
        for to in STAGES {
            try_change(stage, flags, (to, flags), &|conn| {
                assert!(conn.change_stage(stage, to));
            });
            try_change(stage, flags, (to, flags), &|conn| conn.set_stage(to));
        }
        for flag in FLAGS {
            try_change(stage, flags, (stage, flags.and(flag)), &|conn| conn.set(flag));
            try_change(stage, flags, (stage, flags.without(flag)), &|conn| conn.clear(flag));
        }
    });
    assert!(made > 300, "{made}");
    assert!(refused.len() > 30, "{}", refused.len());
}

/// Changes that must never be, stated apart from the table.
#[test]
fn some_ways_there_are_not() {
    for to in PHASES {
        assert!(to == Listening || !is_legal(Listening, to), "a listener stays one: {to:?}");
        assert!(to == New || !is_legal(to, New), "nothing is new again: {to:?}");
        let keeps_lanes = matches!(to, Broken | Tcp);
        assert!(keeps_lanes || !is_legal(Broken, to), "what is broken stays so: {to:?}");
        let may_follow = matches!(to, Leaving | Broken | Tcp);
        assert!(may_follow || !is_legal(Leaving, to), "who leaves does not come back: {to:?}");
        let may_attach = matches!(to, Meeting | Attached | ParkedArrived | ParkedUnmet | Tcp);
        assert!(may_attach || !is_legal(to, Attached), "lanes come of a meeting: {to:?}");
        assert!(matches!(to, Candidate | Meeting) || !is_legal(to, Meeting), "earned: {to:?}");
    }
}

#[test]
fn every_phase_is_reached_and_none_is_a_trap() {
    let mut reached: Vec<Phase> = BEGINNINGS.iter().map(|row| row.0).collect();
    for _ in PHASES {
        for (from, to) in TRANSITIONS.iter().flat_map(|row| row.changes) {
            if reached.contains(from) && !reached.contains(to) {
                reached.push(*to);
            }
        }
    }
    assert!(PHASES.iter().all(|phase| reached.contains(phase)));
    let ends = |phase| [Listening, Tcp].contains(&phase);
    for phase in PHASES {
        let leads_on =
            TRANSITIONS.iter().flat_map(|row| row.changes).any(|(from, _)| *from == phase);
        assert!(leads_on || ends(phase), "{phase:?}");
    }
}

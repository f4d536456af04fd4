//! The rooms that the socket layer is to have, and which of today's files would stand where.
//!
//! `plan.txt` has lines `PREFIX = ROOM`, of which the longest that begins a file's name counts, and
//! lines `FILE -> FILE`: uses that run up between the rooms of the plan. They wait to be cut; the
//! list may only become shorter.

use std::collections::BTreeMap;

use super::inner::{Uses, graph};
use super::{TOP, crates};

const PLAN: &str = include_str!("../plan.txt");

/// The rooms from the top down; each may use those below it.
const ROOMS: [&str; 10] = [
    "api",
    "readiness",
    "lifecycle",
    "migration",
    "call",
    "lanes",
    "devices",
    "wake",
    "conn",
    "process",
];

/// Files use files of their own room and of rooms below, but for the uses on the list.
pub(in crate::tidy) fn plan() -> Result<Vec<String>, String> {
    let name = TOP.trim_start_matches("crates/").trim_end_matches("/src");
    let sources = crates()?.remove(name).ok_or_else(|| format!("{TOP}: no sources"))?;
    let uses = graph(&sources);
    let (up, mut found) = upward(&uses, PLAN);
    println!(
        "plan: {} uses between files, {} of them up between rooms of the plan",
        uses.len(),
        up.len()
    );
    found.extend(findings(&up, PLAN));
    Ok(found)
}

/// The uses that run up, and files that stand nowhere.
fn upward(uses: &Uses, plan: &str) -> (Vec<String>, Vec<String>) {
    let places: BTreeMap<&str, &str> =
        lines(plan).filter_map(|line| line.split_once(" = ")).collect();
    let floor = |file: &str| {
        let prefixes = places.iter().filter(|(prefix, _)| file.starts_with(**prefix));
        let room = prefixes.max_by_key(|(prefix, _)| prefix.len())?.1;
        ROOMS.iter().position(|of| of == room)
    };
    let (mut up, mut found) = (Vec::new(), Vec::new());
    for (from, to) in uses {
        if from == "lib.rs" || to == "lib.rs" {
            continue;
        }
        match (floor(from), floor(to)) {
            (Some(above), Some(below)) if above <= below => {}
            (Some(_), Some(_)) => up.push(format!("{from} -> {to}")),
            (None, _) => found.push(format!("{TOP}/{from}: in no room of xtask/src/tidy/plan.txt")),
            (_, None) => found.push(format!("{TOP}/{to}: in no room of xtask/src/tidy/plan.txt")),
        }
    }
    found.dedup();
    (up, found)
}

/// What differs between the uses that run up and the list.
fn findings(up: &[String], plan: &str) -> Vec<String> {
    let known: Vec<&str> = lines(plan).filter(|line| line.contains(" -> ")).collect();
    let new = up.iter().filter(|arrow| !known.contains(&arrow.as_str()));
    let gone = known.iter().filter(|line| !up.iter().any(|arrow| arrow == *line));
    new.map(|arrow| format!("{arrow}: runs up between rooms of the plan"))
        .chain(gone.map(|line| format!("xtask/src/tidy/plan.txt: {line}: no longer there")))
        .collect()
}

fn lines(plan: &str) -> impl Iterator<Item = &str> {
    plan.lines().filter(|line| !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "api/ = api\ndatapath/ = lanes\ndatapath/wait = call\nconn/ = conn\n";

    fn uses(pairs: &[(&str, &str)]) -> Uses {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn the_longest_prefix_says_the_room() {
        let down = uses(&[("datapath/wait.rs", "datapath/send.rs"), ("api/x.rs", "conn/y.rs")]);
        assert_eq!(upward(&down, SMALL), (vec![], vec![]));
        let up = uses(&[("datapath/send.rs", "datapath/wait/model.rs")]);
        assert_eq!(upward(&up, SMALL).0, ["datapath/send.rs -> datapath/wait/model.rs"]);
    }

    #[test]
    fn a_new_use_a_stale_line_and_a_file_without_a_room_are_found() {
        let up = ["conn/y.rs -> api/x.rs".to_owned()];
        assert_eq!(findings(&up, SMALL).len(), 1);
        assert_eq!(findings(&up, &format!("{SMALL}{}\n", up[0])), [""; 0]);
        assert_eq!(findings(&[], &up[0]).len(), 1);
        assert_eq!(upward(&uses(&[("new/z.rs", "conn/y.rs")]), SMALL).1.len(), 1);
    }

    #[test]
    fn rooms_of_the_plan_are_known() {
        let rooms = lines(PLAN).filter_map(|line| line.split_once(" = "));
        for (prefix, room) in rooms {
            assert!(ROOMS.contains(&room), "{prefix}");
        }
    }
}

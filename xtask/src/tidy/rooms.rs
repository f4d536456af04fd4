//! Which room of the socket layer may use which.
//!
//! A *room* is a folder of `crates/sdp-socket/src`. A file may use its own room and the rooms that
//! [`ROOMS`] allows; code of tests is not counted. What breaks the rule today stands in
//! `rooms.txt`, one arrow a line. That list may only become shorter: an arrow that is not on it
//! is a finding, and so is a line that no arrow needs any more. So is a file in no room, and a
//! room without a file.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, text_of};

mod inner;
mod plan;
mod uses;

use inner::Uses;
pub(super) use plan::plan;
use uses::Arrow;

/// Where the rooms are.
const TOP: &str = "crates/sdp-socket/src";

/// The arrows that are known and wait to be cut.
const KNOWN: &str = include_str!("rooms.txt");

/// A bound on floors may be higher than their number by so many.
const FLOORS_SLACK: usize = 2;

/// Floors and circles of files that there may be in a room or a crate: `NAME FLOORS CIRCLES`.
const INNER: &str = include_str!("inner.txt");

/// Room, and the rooms that it may use, from the top of the house down.
const ROOMS: &[(&str, &[&str])] = &[
    (
        "api",
        &["readiness", "lifecycle", "migration", "hosts", "datapath", "wake", "conn", "process"],
    ),
    ("readiness", &["lifecycle", "migration", "hosts", "datapath", "wake", "conn", "process"]),
    ("lifecycle", &["migration", "hosts", "datapath", "wake", "conn", "process"]),
    ("migration", &["hosts", "datapath", "wake", "conn", "process"]),
    ("hosts", &["datapath", "wake", "conn", "process"]),
    ("datapath", &["wake", "conn", "process"]),
    ("wake", &["conn", "process"]),
    ("conn", &["process"]),
    ("process", &[]),
];

/// Rooms use only rooms below them, but for the arrows on the list.
pub(super) fn rooms() -> Result<Vec<String>, String> {
    let mut sources = Vec::new();
    for name in files()? {
        let Ok(inside) = name.strip_prefix(TOP) else { continue };
        if inside.extension().is_some_and(|e| e == "rs")
            && let Some(text) = text_of(&name)?
        {
            sources.push((inside.to_string_lossy().into_owned(), text));
        }
    }
    let arrows = uses::arrows(&sources, &names());
    let up: BTreeSet<&Arrow> = arrows.iter().filter(|arrow| !is_allowed(arrow)).collect();
    let pairs: BTreeSet<(&str, &str)> = arrows.iter().map(rooms_of).collect();
    let both_ways = pairs.iter().filter(|(from, to)| pairs.contains(&(*to, *from))).count() / 2;
    let (floors, cycles) = floors_and_cycles(&names(), &pairs);
    println!(
        "rooms: {} files, {} arrows between rooms, {} of them up; {} pairs of rooms, {} both ways",
        sources.len(),
        arrows.len(),
        up.len(),
        pairs.len(),
        both_ways
    );
    println!("rooms: {} rooms; floors: {floors}; cycles: {}", ROOMS.len(), cycles.len());
    for cycle in &cycles {
        println!("rooms: a cycle through {}", cycle.join(", "));
    }
    let mut found = findings(&up, KNOWN);
    found.extend(misplaced(&sources));
    Ok(found)
}

/// In each room of the socket layer, and in each other crate, the files stand on no more floors and
/// use each other in no more circles than `inner.txt` says.
pub(super) fn circles() -> Result<Vec<String>, String> {
    let mut counted = BTreeMap::new();
    let mut in_circles = 0;
    for (name, uses) in parts()? {
        let (floors, cycles) = floors_of(&uses);
        for cycle in &cycles {
            println!("circles: {name}: {}", cycle.join(", "));
        }
        println!("circles: {name}: {floors} floors, {} circles", cycles.len());
        in_circles += cycles.iter().map(Vec::len).sum::<usize>();
        counted.insert(name, (floors, cycles.len()));
    }
    let circles: usize = counted.values().map(|(_, circles)| circles).sum();
    println!("circles: {circles} circles of files, through {in_circles} files");
    Ok(inner_findings(&counted, INNER))
}

/// The uses inside each room of the socket layer, and inside each other crate.
fn parts() -> Result<BTreeMap<String, Uses>, String> {
    let mut found = BTreeMap::new();
    for (name, sources) in crates()? {
        let graph = inner::graph(&sources);
        if format!("crates/{name}/src") != TOP {
            found.insert(name, graph);
            continue;
        }
        for (room, _) in ROOMS {
            let is_in = |file: &str| file.split('/').next() == Some(room);
            let inside = graph.iter().filter(|(from, to)| is_in(from) && is_in(to));
            found.insert(format!("{name}/{room}"), inside.cloned().collect());
        }
    }
    Ok(found)
}

/// The sources of each crate, by its folder's name; names of files as seen from its `src`.
fn crates() -> Result<BTreeMap<String, Vec<(String, String)>>, String> {
    let mut found: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for name in files()? {
        let text = name.to_string_lossy();
        let Some((of, inside)) = text.strip_prefix("crates/").and_then(|t| t.split_once("/src/"))
        else {
            continue;
        };
        if inside.ends_with(".rs")
            && let Some(code) = text_of(&name)?
        {
            found.entry(of.to_owned()).or_default().push((inside.to_owned(), code));
        }
    }
    Ok(found)
}

/// Floors and circles of files that use each other.
fn floors_of(uses: &Uses) -> (usize, Vec<Vec<&str>>) {
    let files: BTreeSet<&str> = uses.iter().flat_map(|(a, b)| [a.as_str(), b.as_str()]).collect();
    let files: Vec<&str> = files.into_iter().collect();
    let pairs = uses.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    floors_and_cycles(&files, &pairs)
}

/// What differs between what was counted and what may be. A part that has no line may have as many
/// floors as it likes, and no circle.
fn inner_findings(counted: &BTreeMap<String, (usize, usize)>, known: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut bounds = BTreeMap::new();
    for line in known.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<usize> = words[1..].iter().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [floors, circles] => _ = bounds.insert(words[0], (floors, circles)),
            _ => found.push(format!("xtask/src/tidy/inner.txt: {line}: not `NAME FLOORS CIRCLES`")),
        }
    }
    for (name, (floors, circles)) in counted {
        let (most_floors, most_circles) = bounds.remove(name.as_str()).unwrap_or((usize::MAX, 0));
        if *floors > most_floors {
            found.push(format!("{name}: files on {floors} floors, at most {most_floors}"));
        }
        if *circles > most_circles {
            found.push(format!("{name}: {circles} circles of files, at most {most_circles}"));
        }
        // A floor less or two may be an accident.
        let has_fallen = *circles < most_circles
            || (most_floors < usize::MAX && *floors + FLOORS_SLACK < most_floors);
        if has_fallen {
            found.push(format!("xtask/src/tidy/inner.txt: {name}: now {floors} {circles}"));
        }
    }
    found.extend(
        bounds.keys().map(|name| format!("xtask/src/tidy/inner.txt: {name}: no such part")),
    );
    found
}

fn names() -> Vec<&'static str> {
    ROOMS.iter().map(|(room, _)| *room).collect()
}

/// What differs between the arrows that run up and the list of those that are known.
fn findings(up: &BTreeSet<&Arrow>, known: &str) -> Vec<String> {
    let known: BTreeSet<&str> = known.lines().filter(|l| !l.starts_with('#')).collect();
    let found: BTreeSet<String> = up.iter().map(|(from, to)| format!("{from} -> {to}")).collect();
    let new = found.iter().filter(|arrow| !known.contains(arrow.as_str()));
    let gone = known.iter().filter(|line| !line.is_empty() && !found.contains(**line));
    new.map(|arrow| format!("{arrow}: a room may use rooms below it only"))
        .chain(gone.map(|line| format!("xtask/src/tidy/rooms.txt: {line}: no longer there")))
        .collect()
}

/// Files that stand in no room, and rooms without a file.
fn misplaced(sources: &[(String, String)]) -> Vec<String> {
    let is_room = |place: &str| ROOMS.iter().any(|(room, _)| *room == place);
    let place = |name: &str| name.split_once('/').map_or("", |(room, _)| room).to_owned();
    let places: BTreeSet<String> = sources.iter().map(|(name, _)| place(name)).collect();
    let strays = sources
        .iter()
        .filter(|(name, _)| name != "lib.rs" && !is_room(&place(name)))
        .map(|(name, _)| format!("{TOP}/{name}: stands in no room of xtask/src/tidy/rooms.rs"));
    let empty = ROOMS
        .iter()
        .filter(|(room, _)| !places.contains(*room))
        .map(|(room, _)| format!("xtask/src/tidy/rooms.rs: {room}: there is no such folder"));
    strays.chain(empty).collect()
}

/// How many floors the house has, and the rooms that use each other in a circle. Rooms of one
/// circle count as one floor together: none of them stands above another.
fn floors_and_cycles<'a>(
    rooms: &[&'a str],
    pairs: &BTreeSet<(&'a str, &'a str)>,
) -> (usize, Vec<Vec<&'a str>>) {
    // Whatever each room reaches, itself only by a circle.
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = rooms
        .iter()
        .map(|room| (*room, pairs.iter().filter(|p| p.0 == *room).map(|p| p.1).collect()))
        .collect();
    for middle in rooms {
        let beyond = reach[middle].clone();
        for reached in reach.values_mut().filter(|reached| reached.contains(middle)) {
            reached.extend(&beyond);
        }
    }
    let together = |a: &str, b: &str| a == b || (reach[a].contains(b) && reach[b].contains(a));
    let mut groups: Vec<Vec<&str>> = Vec::new();
    for room in rooms {
        match groups.iter_mut().find(|group| together(group[0], room)) {
            Some(group) => group.push(room),
            None => groups.push(vec![room]),
        }
    }
    // A group that reaches fewer rooms besides its own stands lower: counted in this order, each
    // floor is known before it is asked for.
    groups.sort_by_key(|group| reach[group[0]].iter().filter(|r| !group.contains(r)).count());
    let mut floors: Vec<usize> = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        let below = (0..at).filter(|n| reach[group[0]].contains(groups[*n][0]));
        floors.push(1 + below.map(|n| floors[n]).max().unwrap_or(0));
    }
    let cycles = groups.into_iter().filter(|group| group.len() > 1).collect();
    (floors.into_iter().max().unwrap_or(0), cycles)
}

fn rooms_of(arrow: &Arrow) -> (&str, &str) {
    let from = arrow.0.split('/').next().unwrap_or_default();
    let to = arrow.1.split("::").next().unwrap_or_default();
    (from, to)
}

fn is_allowed(arrow: &Arrow) -> bool {
    let (from, to) = rooms_of(arrow);
    ROOMS.iter().any(|(room, below)| *room == from && below.contains(&to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_room_uses_rooms_below_it_only() {
        let table: BTreeMap<_, _> = ROOMS.iter().copied().collect();
        for (room, below) in &table {
            for used in *below {
                assert!(!table[used].contains(room), "{room} and {used} use each other");
            }
        }
    }

    #[test]
    fn a_wrong_arrow_and_a_stale_line_are_found() {
        let code = "use crate::{conn::{self, Conn}, migration::proof as p, wake::*};\n\
                    fn f() { crate::api::calls::go(); }\n";
        let arrows = uses::arrows(&[("datapath/send.rs".into(), code.into())], &names());
        let up: BTreeSet<&Arrow> = arrows.iter().filter(|a| !is_allowed(a)).collect();
        let known = "# a comment\ndatapath/send.rs -> migration::proof\nconn/slot.rs -> api::calls";
        assert_eq!(
            findings(&up, known),
            [
                "datapath/send.rs -> api::calls: a room may use rooms below it only",
                "xtask/src/tidy/rooms.txt: conn/slot.rs -> api::calls: no longer there",
            ]
        );
    }

    #[test]
    fn a_file_without_a_room_and_a_room_without_a_file_are_found() {
        let mut sources: Vec<(String, String)> =
            ROOMS.iter().map(|(room, _)| (format!("{room}/mod.rs"), String::new())).collect();
        sources.push(("lib.rs".into(), String::new()));
        assert_eq!(misplaced(&sources), Vec::<String>::new());
        sources.push(("extra/mod.rs".into(), String::new()));
        sources.push(("loose.rs".into(), String::new()));
        sources.retain(|(name, _)| name != "wake/mod.rs");
        assert_eq!(
            misplaced(&sources),
            [
                "crates/sdp-socket/src/extra/mod.rs: stands in no room of xtask/src/tidy/rooms.rs",
                "crates/sdp-socket/src/loose.rs: stands in no room of xtask/src/tidy/rooms.rs",
                "xtask/src/tidy/rooms.rs: wake: there is no such folder",
            ]
        );
    }

    #[test]
    fn a_new_circle_a_new_floor_and_a_stale_bound_are_found() {
        let uses = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Uses>()
        };
        let count = |pairs: &[(&str, &str)]| {
            let uses = uses(pairs);
            let (floors, cycles) = floors_of(&uses);
            BTreeMap::from([("c".to_owned(), (floors, cycles.len()))])
        };
        let straight = count(&[("a.rs", "b.rs"), ("b.rs", "c.rs")]);
        let circle = count(&[("a.rs", "b.rs"), ("b.rs", "a.rs")]);
        assert_eq!(inner_findings(&straight, "# why\nc 3 0\n"), [""; 0]);
        assert_eq!(inner_findings(&circle, "c 1 1\n"), [""; 0]);
        assert_eq!(inner_findings(&circle, "").len(), 1);
        assert_eq!(inner_findings(&circle, "c 1 0\n").len(), 1);
        assert_eq!(inner_findings(&straight, "c 2 0\n").len(), 1);
        assert_eq!(inner_findings(&straight, "c 3 1\n").len(), 1);
        assert_eq!(inner_findings(&straight, "c 5 0\n"), [""; 0]);
        assert_eq!(inner_findings(&straight, "c 6 0\n").len(), 1);
        assert_eq!(inner_findings(&straight, "c 3 0\nd 1 1\n").len(), 1);
        assert_eq!(inner_findings(&straight, "c 3\n").len(), 1);
    }

    #[test]
    fn floors_and_cycles_are_those_of_the_graph() {
        let rooms = ["a", "b", "c", "d"];
        let straight = BTreeSet::from([("a", "b"), ("b", "c"), ("a", "d")]);
        assert_eq!(floors_and_cycles(&rooms, &straight), (3, vec![]));
        let circle = BTreeSet::from([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]);
        assert_eq!(floors_and_cycles(&rooms, &circle), (3, vec![vec!["b", "c"]]));
        let all = BTreeSet::from([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]);
        assert_eq!(floors_and_cycles(&rooms, &all), (1, vec![vec!["a", "b", "c", "d"]]));
    }
}

//! Which room of the socket layer may use which.
//!
//! A *room* is a folder of `crates/sdp-socket/src`. A file may use its own room and the rooms that
//! [`ROOMS`] allows; code of tests is not counted. What breaks the rule today stands in
//! `rooms.txt`, one arrow a line. That list may only become shorter: an arrow that is not on it
//! is a finding, and so is a line that no arrow needs any more.

use std::collections::BTreeSet;
use std::path::Path;

use super::{files, lexer::code_only, text_of};

/// Where the rooms are.
const TOP: &str = "crates/sdp-socket/src";

/// The arrows that are known and wait to be cut.
const KNOWN: &str = include_str!("rooms.txt");

/// Room, and the rooms that it may use, from the top of the house down.
const ROOMS: &[(&str, &[&str])] = &[
    (
        "api",
        &["readiness", "lifecycle", "migration", "hosts", "datapath", "wake", "conn", "process"],
    ),
    ("readiness", &["migration", "hosts", "datapath", "wake", "conn", "process"]),
    ("lifecycle", &["migration", "hosts", "datapath", "wake", "conn", "process"]),
    ("migration", &["hosts", "datapath", "wake", "conn", "process"]),
    ("hosts", &["datapath", "wake", "conn", "process"]),
    ("datapath", &["wake", "conn", "process"]),
    ("wake", &["conn", "process"]),
    ("conn", &["process"]),
    ("process", &[]),
];

/// A use of another room: the file, and the room with the module or item that it names.
type Arrow = (String, String);

/// Rooms use only rooms below them, but for the arrows on the list.
pub(super) fn rooms() -> Result<Vec<String>, String> {
    let mut sources = Vec::new();
    for name in files()? {
        let Ok(inside) = name.strip_prefix(TOP) else { continue };
        if inside.extension().is_some_and(|e| e == "rs")
            && inside.components().count() > 1
            && let Some(text) = text_of(&name)?
        {
            sources.push((inside.to_string_lossy().into_owned(), text));
        }
    }
    let arrows = arrows(&sources);
    let up: BTreeSet<&Arrow> = arrows.iter().filter(|arrow| !is_allowed(arrow)).collect();
    let pairs: BTreeSet<(&str, &str)> = arrows.iter().map(rooms_of).collect();
    let pairs_up = pairs.iter().filter(|(from, to)| pairs.contains(&(*to, *from))).count() / 2;
    println!(
        "rooms: {} files, {} arrows between rooms, {} of them up; {} pairs of rooms, {} both ways",
        sources.len(),
        arrows.len(),
        up.len(),
        pairs.len(),
        pairs_up
    );
    Ok(findings(&up, KNOWN))
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

fn rooms_of(arrow: &Arrow) -> (&str, &str) {
    let from = arrow.0.split('/').next().unwrap_or_default();
    let to = arrow.1.split("::").next().unwrap_or_default();
    (from, to)
}

fn is_allowed(arrow: &Arrow) -> bool {
    let (from, to) = rooms_of(arrow);
    ROOMS.iter().any(|(room, below)| *room == from && below.contains(&to))
}

/// The uses of other rooms in these files, tests left out.
fn arrows(sources: &[(String, String)]) -> BTreeSet<Arrow> {
    let tests: BTreeSet<String> =
        sources.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let is_test = |name: &str| {
        tests.iter().any(|test| {
            name.strip_prefix(test.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    let mut arrows = BTreeSet::new();
    for (name, text) in sources.iter().filter(|(name, _)| !is_test(name)) {
        let code = code_only(text);
        let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let own = name.split('/').next().unwrap_or_default();
        for path in paths(code) {
            let mut parts = path.split("::");
            let (Some(room), item) = (parts.next(), parts.next().unwrap_or("self")) else {
                continue;
            };
            if room != own && ROOMS.iter().any(|(known, _)| *known == room) {
                arrows.insert((name.clone(), format!("{room}::{item}")));
            }
        }
    }
    arrows
}

/// Modules of a file that exist in tests only, as paths without `.rs`.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let path = Path::new(name);
    let dir = match path.file_stem().and_then(|s| s.to_str()) {
        Some("mod") | None => path.parent().unwrap_or(path).to_path_buf(),
        Some(stem) => path.with_file_name(stem),
    };
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            continue;
        }
        let next = lines.by_ref().map(str::trim).find(|line| !line.starts_with("#["));
        let module = next.and_then(|l| l.split("mod ").nth(1)).and_then(|l| l.strip_suffix(';'));
        if let Some(module) = module {
            found.push(format!("{}/{module}", dir.display()));
        }
    }
    found
}

/// Every path of the code that begins with `crate::`, without that, groups of `use` taken apart.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        take_tree(&code[at + "crate::".len()..], String::new(), &mut found);
    }
    found
}

/// One path or group from the beginning of `code`; what is left of the code.
fn take_tree<'a>(code: &'a str, prefix: String, found: &mut Vec<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            match rest.strip_prefix('}') {
                Some(rest) => return rest,
                None if rest.is_empty() => return rest,
                None => rest = take_tree(rest, prefix.clone(), found),
            }
        }
    }
    let end = code.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(code.len());
    if end == 0 {
        // `*` and the like: the path ends here.
        found.push(prefix);
        return code.get(1..).unwrap_or_default();
    }
    let path = if prefix.is_empty() {
        code[..end].to_owned()
    } else {
        format!("{prefix}::{}", &code[..end])
    };
    match code[end..].strip_prefix("::") {
        Some(rest) => take_tree(rest, path, found),
        None => {
            found.push(path);
            let rest = code[end..].trim_start();
            rest.strip_prefix("as ").map_or(rest, |rest| {
                rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn house(files: &[(&str, &str)]) -> BTreeSet<Arrow> {
        let owned: Vec<_> = files.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        arrows(&owned)
    }

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
        let arrows = house(&[("datapath/send.rs", code)]);
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
    fn tests_and_comments_are_left_out() {
        let slot = "// crate::api::calls\n#[cfg(test)]\nmod model;\nuse crate::process::table;\n\
                    #[cfg(test)]\nmod tests {\n use crate::api::calls;\n}\n";
        let arrows =
            house(&[("conn/slot.rs", slot), ("conn/slot/model.rs", "use crate::api::bulk;")]);
        assert_eq!(arrows.len(), 1, "{arrows:?}");
    }
}

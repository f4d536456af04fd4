//! Who uses what: the paths in the code of the socket layer, read as the compiler reads them.
//!
//! A path may begin with `crate::`, `$crate::` or `super::`, or with a room that the file has
//! imported. What one module re-exports from another counts as a use of the second. Code that
//! exists in tests only is left out. Called by the check of the rooms; knows no table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tidy::lexer::code_only;

/// A use of another room: the file, and the room with the module or item that it names.
pub(super) type Arrow = (String, String);

/// A path that the code names, from the top of the crate, and the name that it is bound to.
pub(super) type Named = (Vec<String>, String);

/// A source file without its tests.
pub(super) struct File<'a> {
    pub(super) name: &'a str,
    pub(super) code: String,
    /// Where it stands in the crate: `["conn", "slot"]`.
    pub(super) module: Vec<String>,
}

/// The files that do not exist in tests only.
pub(super) fn without_test_files(sources: &[(String, String)]) -> Vec<File<'_>> {
    let tests: BTreeSet<String> =
        sources.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let files = sources.iter().filter(|(name, _)| !is_test(name, &tests));
    files
        .map(|(name, text)| File {
            name,
            code: without_tests(&code_only(text)),
            module: module_of(name),
        })
        .collect()
}

/// The uses of other rooms in these files. `rooms`: the folders that are rooms.
pub(super) fn arrows(sources: &[(String, String)], rooms: &[&str]) -> BTreeSet<Arrow> {
    let files = without_test_files(sources);
    let offered: BTreeMap<String, Vec<String>> =
        files.iter().flat_map(|file| re_exports(file, rooms)).collect();

    let mut arrows = BTreeSet::new();
    for file in &files {
        let Some(own) = file.module.first().filter(|room| rooms.contains(&room.as_str())) else {
            continue;
        };
        let mut named = paths(&file.code, &file.module);
        let imported: Vec<(String, String)> = named
            .iter()
            .filter(|(path, _)| path.len() == 1)
            .map(|(path, bound)| (path[0].clone(), bound.clone()))
            .collect();
        for (room, bound) in imported {
            // `use crate::process; … process::note_reason()`: only what is passed on is new.
            for name in names_in(&file.code, &bound) {
                if offered.contains_key(&format!("{room}::{name}")) {
                    named.push((vec![room.clone(), name.clone()], name));
                }
            }
        }
        for (path, _) in named {
            let path = origin(path, &offered);
            let room = path.first().map_or("*", String::as_str);
            if room == own || !(room == "*" || rooms.contains(&room)) {
                continue;
            }
            let item = path.get(1).map_or("self", String::as_str);
            arrows.insert((file.name.to_owned(), format!("{room}::{item}")));
        }
    }
    arrows
}

/// Follows re-exports to the module that has the item.
fn origin(mut path: Vec<String>, offered: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    // Bounded: two modules that re-export each other's names would go round for ever.
    for _ in 0..4 {
        let known = (1..=path.len()).find_map(|n| Some((n, offered.get(&path[..n].join("::"))?)));
        let Some((n, target)) = known else { break };
        path = target.iter().chain(&path[n..]).cloned().collect();
    }
    path
}

/// What a file passes on of another room, under the names that others can write for it.
fn re_exports(file: &File<'_>, rooms: &[&str]) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for tree in public_uses(&file.code) {
        let mut named = paths(tree, &file.module);
        if file.module.is_empty() {
            // In `lib.rs` a path may begin with a room.
            let mut plain = Vec::new();
            take_tree(tree, &[], &mut plain);
            named.extend(plain);
        }
        for (path, bound) in named {
            let is_other = path.first() != file.module.first();
            if !is_other || !path.first().is_some_and(|room| rooms.contains(&room.as_str())) {
                continue;
            }
            let mut place = file.module.clone();
            place.push(bound.clone());
            found.push((place.join("::"), path.clone()));
            if let Some(room) = file.module.first() {
                // A room's `mod.rs` offers the names of its files as its own.
                found.push((format!("{room}::{bound}"), path));
            }
        }
    }
    found
}

/// What stands behind each `pub use`, of any extent.
pub(super) fn public_uses(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].trim_end();
        if before.ends_with("pub") || (before.ends_with(')') && is_pub_in(before)) {
            found.push(code[at + "use ".len()..].split(';').next().unwrap_or_default());
        }
    }
    found
}

/// The paths of a tree that begins with a module of this one, from the top of the crate.
pub(super) fn relative(tree: &str, module: &[String]) -> Vec<Named> {
    let mut found = Vec::new();
    take_tree(tree.trim_start().trim_start_matches("self::"), module, &mut found);
    found
}

/// Whether the code ends in `pub(…)`.
fn is_pub_in(code: &str) -> bool {
    code.rfind('(').is_some_and(|at| code[..at].ends_with("pub"))
}

/// The names that follow `module::` in the code.
pub(super) fn names_in(code: &str, module: &str) -> BTreeSet<String> {
    let start = format!("{module}::");
    code.match_indices(&start)
        .filter(|(at, _)| !code[..*at].ends_with(|c: char| is_word(c) || c == ':'))
        .map(|(at, _)| word_at(&code[at + start.len()..]).to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The module of a file: `conn/slot.rs` and `conn/slot/mod.rs` are `conn::slot`.
fn module_of(name: &str) -> Vec<String> {
    let mut module: Vec<String> =
        name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

fn is_test(name: &str, tests: &BTreeSet<String>) -> bool {
    tests.iter().any(|test| {
        name.strip_prefix(test.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    })
}

/// Modules of a file that exist in tests only, as paths without `.rs`.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let path = Path::new(name);
    let dir = match path.file_stem().and_then(|s| s.to_str()) {
        Some("mod" | "lib") | None => path.parent().unwrap_or(path).to_path_buf(),
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
            found.push(dir.join(module).to_string_lossy().into_owned());
        }
    }
    found
}

/// The code without the items that stand under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut left = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        left.push_str(&rest[..at]);
        rest = &rest[at + MARK.len()..];
        rest = &rest[item_end(rest)..];
    }
    left.push_str(rest);
    left
}

/// Where the item, field or statement at the beginning of `code` ends: behind its `;`, its `,` or
/// its block. Ends too early rather than too late, so that no use is overlooked.
fn item_end(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return at,
            },
            ';' | ',' if depth == 0 => return at + 1,
            '{' if depth == 0 => return block_end(code, at),
            '}' if depth == 0 => return at,
            _ => (),
        }
    }
    code.len()
}

/// Behind the brace that closes the one at `open`.
fn block_end(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return open + at + 1,
            '}' => depth -= 1,
            _ => (),
        }
    }
    code.len()
}

/// Every path of the code that begins with `crate::`, `$crate::` or `super::`, groups of `use`
/// taken apart.
pub(super) fn paths(code: &str, module: &[String]) -> Vec<Named> {
    let inline = inline_modules(code);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(is_word) {
            take_tree(&code[at + "crate::".len()..], &[], &mut found);
        }
    }
    for (at, _) in code.match_indices("super::") {
        let before = code[..at].strip_suffix("self::").unwrap_or(&code[..at]);
        if before.ends_with(|c: char| is_word(c) || c == ':') {
            continue;
        }
        let mut place = module.to_vec();
        let inside = inline.iter().filter(|(_, open, end)| (*open..*end).contains(&at));
        place.extend(inside.map(|(name, ..)| name.clone()));
        let mut rest = &code[at..];
        while let Some(next) = rest.strip_prefix("super::") {
            place.pop();
            rest = next;
        }
        take_tree(rest, &place, &mut found);
    }
    found
}

/// Modules that are written in the file itself: name, and where their blocks begin and end.
fn inline_modules(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("mod ") {
        let rest = &code[at + "mod ".len()..];
        let name = word_at(rest);
        let is_item = !code[..at].ends_with(is_word) && !name.is_empty();
        let open = code.len() - rest[name.len()..].trim_start().len();
        if is_item && code[open..].starts_with('{') {
            found.push((name.to_owned(), open, block_end(code, open)));
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word_at(code: &str) -> &str {
    &code[..code.find(|c| !is_word(c)).unwrap_or(code.len())]
}

/// One path or group from the beginning of `code`; what is left of the code. All of the crate's
/// top (`*`, or the top under another name) is a path of one part, `*`.
fn take_tree<'a>(code: &'a str, prefix: &[String], found: &mut Vec<Named>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            match rest.strip_prefix('}') {
                Some(rest) => return rest,
                None if rest.is_empty() => return rest,
                None => rest = take_tree(rest, prefix, found),
            }
        }
    }
    let word = word_at(code);
    let rest = &code[word.len()..];
    if word.is_empty() {
        let mut left = rest.chars();
        if left.next() == Some('*') {
            found.push((or_top(prefix.to_vec()), "*".to_owned()));
        }
        return left.as_str();
    }
    let mut path = prefix.to_vec();
    if word != "self" {
        path.push(word.to_owned());
    }
    if let Some(rest) = rest.strip_prefix("::") {
        return take_tree(rest, &path, found);
    }
    let path = or_top(path);
    let mut bound = path.last().cloned().unwrap_or_default();
    let mut rest = rest;
    if let Some(alias) = rest.trim_start().strip_prefix("as ") {
        bound = word_at(alias.trim_start()).to_owned();
        rest = &alias.trim_start()[bound.len()..];
    }
    found.push((path, bound));
    rest
}

fn or_top(path: Vec<String>) -> Vec<String> {
    if path.is_empty() { vec!["*".to_owned()] } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMS: &[&str] = &["api", "conn", "process"];

    fn house(files: &[(&str, &str)]) -> Vec<String> {
        let owned: Vec<_> = files.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        arrows(&owned, ROOMS).into_iter().map(|(from, to)| format!("{from} -> {to}")).collect()
    }

    #[test]
    fn uses_by_super_across_rooms_are_seen() {
        let slot = "use super::{life, super::api as never_written};\n\
                    fn f() { super::super::api::bulk::go(); super::life::step(); }\n\
                    mod inner { fn g() { super::super::life::step(); super::super::super::api::wait(); } }";
        assert_eq!(
            house(&[("conn/slot.rs", slot)]),
            ["conn/slot.rs -> api::bulk", "conn/slot.rs -> api::wait"]
        );
    }

    #[test]
    fn macros_and_globs_of_the_top_are_seen() {
        let code = "macro_rules! m { () => { $crate::api::calls::go() } }\nuse crate::*;\n";
        assert_eq!(
            house(&[("conn/slot.rs", code)]),
            ["conn/slot.rs -> *::self", "conn/slot.rs -> api::calls"]
        );
        let root = "use crate::{self as root, process};";
        assert_eq!(
            house(&[("conn/slot.rs", root)]),
            ["conn/slot.rs -> *::self", "conn/slot.rs -> process::self"]
        );
    }

    #[test]
    fn what_the_crate_offers_at_its_top_stands_in_a_room() {
        let files = [
            ("lib.rs", "mod api;\npub use api::{calls, options as o};\n"),
            ("conn/slot.rs", "fn f() { crate::calls::go(); crate::o::look(); }"),
            ("process/mod.rs", "use crate::calls::Plain;"),
        ];
        assert_eq!(
            house(&files),
            [
                "conn/slot.rs -> api::calls",
                "conn/slot.rs -> api::options",
                "process/mod.rs -> api::calls"
            ]
        );
    }

    #[test]
    fn a_re_export_does_not_hide_whose_item_it_is() {
        let files = [
            ("process/identity.rs", "pub(crate) use crate::conn::report::{note, name as naming};"),
            ("process/mod.rs", "mod identity;\npub(crate) use identity::*;"),
            ("api/calls.rs", "use crate::process;\nfn f() { process::note(); process::start(); }"),
            ("api/wait.rs", "use crate::process::{naming, identity};"),
        ];
        assert_eq!(
            house(&files),
            [
                "api/calls.rs -> conn::report",
                "api/calls.rs -> process::self",
                "api/wait.rs -> conn::report",
                "api/wait.rs -> process::identity",
                "process/identity.rs -> conn::report",
            ]
        );
    }

    #[test]
    fn tests_and_comments_are_left_out() {
        let slot = "// crate::api::calls\n#[cfg(test)]\nmod model;\nuse crate::process::table;\n\
                    struct S { #[cfg(test)] a: crate::api::A, b: crate::api::B }\n\
                    #[cfg(test)]\nfn t(x: [u8; 2]) { crate::api::calls::go() }\n\
                    fn g() { crate::api::bulk::go() }\n\
                    #[cfg(test)]\nmod tests {\n use crate::api::calls;\n}\n";
        let files = [("conn/slot.rs", slot), ("conn/slot/model.rs", "use crate::api::bulk;")];
        assert_eq!(
            house(&files),
            [
                "conn/slot.rs -> api::B",
                "conn/slot.rs -> api::bulk",
                "conn/slot.rs -> process::table"
            ]
        );
    }
}

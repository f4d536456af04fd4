//! Which file of a crate uses which, and what that shows: floors and circles of files.
//!
//! A use is a path from the top of the crate or from `super`, or the name of a module of one's own
//! with `::` behind it. A name that a module passes on (`pub(crate) use`) counts as a use of the file
//! that has it. Code that exists in tests only is left out.

use std::collections::{BTreeMap, BTreeSet};

use super::uses::{self, File, Named};

/// A use: who uses whom, by the names of their files.
pub(super) type Uses = BTreeSet<(String, String)>;

/// The uses between the files of one crate.
pub(super) fn graph(sources: &[(String, String)]) -> Uses {
    let files = uses::without_test_files(sources);
    let modules: BTreeMap<Vec<String>, &str> =
        files.iter().map(|file| (file.module.clone(), file.name)).collect();
    let passed_on: BTreeMap<Vec<String>, Vec<String>> =
        files.iter().flat_map(|file| passed_on(file, &modules)).collect();
    let mut found = Uses::new();
    for file in &files {
        for (path, _) in named(&file.code, file, &modules) {
            let Some(used) = file_of(path, &modules, &passed_on) else { continue };
            if used != file.name {
                found.insert((file.name.to_owned(), used.to_owned()));
            }
        }
    }
    found
}

/// Every path that a piece of a file names, from the top of the crate.
fn named(code: &str, file: &File<'_>, modules: &BTreeMap<Vec<String>, &str>) -> Vec<Named> {
    let mut found = uses::paths(code, &file.module);
    // `use crate::conn::slot; … slot::get()` and `mod slot; … slot::get()`.
    let imported = found.iter().filter(|(path, _)| modules.contains_key(path)).cloned();
    let mut bound: Vec<Named> = imported.collect();
    let own = modules
        .keys()
        .filter(|module| module.len() == file.module.len() + 1 && module.starts_with(&file.module));
    bound.extend(own.map(|module| (module.clone(), module.last().cloned().unwrap_or_default())));
    for (module, name) in bound {
        for item in uses::names_in(code, &name) {
            let mut path = module.clone();
            path.push(item.clone());
            found.push((path, item));
        }
    }
    found
}

/// What a file passes on of others, under its own path.
fn passed_on(
    file: &File<'_>,
    modules: &BTreeMap<Vec<String>, &str>,
) -> Vec<(Vec<String>, Vec<String>)> {
    let mut found = Vec::new();
    for tree in uses::public_uses(&file.code) {
        let mut offered = uses::paths(tree, &file.module);
        if offered.is_empty() {
            // `pub(crate) use slot::{get, put};`, of a module of its own.
            offered = uses::relative(tree, &file.module);
        }
        for (path, bound) in offered {
            let is_of_crate = (1..=path.len()).any(|n| modules.contains_key(&path[..n].to_vec()));
            if is_of_crate {
                let mut place = file.module.clone();
                place.push(bound);
                found.push((place, path));
            }
        }
    }
    found
}

/// The file that has what a path names; `None` if it is the top of the crate, or another crate.
fn file_of<'a>(
    mut path: Vec<String>,
    modules: &BTreeMap<Vec<String>, &'a str>,
    passed_on: &BTreeMap<Vec<String>, Vec<String>>,
) -> Option<&'a str> {
    // Bounded: two modules that pass on each other's names would go round for ever.
    for _ in 0..4 {
        let known = (1..=path.len()).find_map(|n| Some((n, passed_on.get(&path[..n])?)));
        let Some((n, target)) = known else { break };
        path = target.iter().chain(&path[n..]).cloned().collect();
    }
    (1..=path.len()).rev().find_map(|n| modules.get(&path[..n]).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_between_files_are_seen_through_what_is_passed_on() {
        let files = [
            ("lib.rs", "mod conn;\nmod api;\n"),
            (
                "conn/mod.rs",
                "mod slot;\nmod life;\npub(crate) use slot::{get, put as set};\nfn f() { life::step(); }",
            ),
            (
                "conn/slot.rs",
                "use super::life;\nfn g() { life::step(); }\n#[cfg(test)]\nmod tests { use crate::api::calls; }",
            ),
            ("conn/life.rs", "fn h() { super::slot::get(); }"),
            ("api/mod.rs", "mod calls;"),
            ("api/calls.rs", "use crate::conn;\nfn i() { conn::set(); crate::conn::Other; }"),
        ];
        let owned: Vec<_> = files.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        let found: Vec<String> = graph(&owned).iter().map(|(a, b)| format!("{a} -> {b}")).collect();
        assert_eq!(
            found,
            [
                "api/calls.rs -> conn/mod.rs",
                "api/calls.rs -> conn/slot.rs",
                "conn/life.rs -> conn/slot.rs",
                "conn/mod.rs -> conn/life.rs",
                "conn/slot.rs -> conn/life.rs",
            ]
        );
    }
}

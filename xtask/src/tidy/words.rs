//! Words and paths that must not stand in the repository.
//!
//! A reader shall not have to learn the earlier word for a thing that `docs/glossary.md` names.
//!
//! The project speaks of itself alone: a path of the machine it was written on, the address of a
//! package mirror or a ticket number means nothing to a reader elsewhere. The patterns are put
//! together from pieces so that this file does not find itself.

use super::{files, text_of};

/// Text that may not occur, and why. `#` stands for any digit.
fn patterns() -> Vec<(String, &'static str)> {
    let join = |parts: &[&str]| parts.concat();
    vec![
        (join(&["/", "work/"]), "a path of one machine"),
        (join(&["/", "root/"]), "a path of one machine"),
        (join(&["..", "/shared"]), "a path outside the repository"),
        (join(&["index.", "crates.io"]), "a registry host"),
        (join(&["static.", "crates.io"]), "a registry host"),
        (join(&["proxy.", "golang.org"]), "a registry host"),
        (join(&["registry.", "npmjs.org"]), "a registry host"),
        (join(&["pypi", ".org"]), "a registry host"),
        (join(&["deb.", "debian.org"]), "a registry host"),
        (join(&["issue ", "#"]), "a ticket number"),
        (join(&["issue #", "#"]), "a ticket number"),
    ]
}

/// Words that the glossary has replaced, and by what. They may stand in decision records, in the
/// change log and in the glossary itself, and as a part of a name that is joined by a hyphen or
/// stands in backticks: names of files and of tests.
const RETIRED: &[(&str, &str)] = &[
    ("Asker", "DiagClient"),
    ("No board", "no offer slot"),
    ("Patience", "timeout"),
    ("Pinned", "ConnGuard"),
    ("PINNED", "FALLBACK"),
    ("a board", "an offer slot"),
    ("a relative", "a family member"),
    ("bell", "doorbell, or wake byte"),
    ("bells", "doorbells, or wake bytes"),
    ("eaten", "consumed"),
    ("eats", "consumes"),
    ("heir", "next reader"),
    ("loan", "kept segment"),
    ("nap", "short sleep"),
    ("ordinary way", "slow path"),
    ("owe", "pending"),
    ("owed", "pending, or unacknowledged"),
    ("Owed", "PendingControl"),
    ("owes", "pending"),
    ("pin_reason", "fallback_reason"),
    ("plainly", "by the fast path"),
    ("patience", "timeout"),
    ("relatives", "family members"),
    ("succession", "takeover"),
    ("successor", "next owner"),
    ("the board", "the offer slot"),
    ("unpin", "release"),
    ("young", "candidate"),
];

/// Words that the glossary has replaced in one part of the sources, where elsewhere they are those
/// of the field: virtual machines are guests, a protocol has windows.
const RETIRED_IN: &[(&str, &str, &str)] = &[
    ("crates/sdp-socket/", "guest", "borrower"),
    ("crates/sdp-socket/", "window", "seen tail"),
    ("crates/sdp-socket/", "Turn", "SendTurn, SpinPermit or HandBackPermit"),
];

/// Whether retired words may stand in a file: where is history, and where nobody but tests reads.
fn may_be_old(name: &str) -> bool {
    let is_current =
        name.starts_with("crates/") || name.starts_with("docs/") || name == "README.md";
    !is_current || name.starts_with("docs/decisions/") || name == "docs/glossary.md"
}

/// Retired words in one line of a file, each with the word that replaced it.
fn retired<'a>(
    name: &'a str,
    line: &'a str,
) -> impl Iterator<Item = (&'static str, &'static str)> + 'a {
    let is_part = |c: char| c.is_alphanumeric() || "_-`".contains(c);
    let here = RETIRED_IN.iter().filter(move |(part, ..)| name.starts_with(part));
    let words = RETIRED.iter().copied().chain(here.map(|(_, word, new)| (*word, *new)));
    words.filter(move |(word, _)| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !before.is_some_and(is_part) && !after.is_some_and(is_part)
        })
    })
}

/// Every text file is free of the forbidden words, and those that are current of retired ones.
pub(super) fn check() -> Result<Vec<String>, String> {
    let patterns = patterns();
    let mut findings = Vec::new();
    for name in files()? {
        let Some(text) = text_of(&name)? else { continue };
        let path = name.to_string_lossy();
        let is_current = !may_be_old(&path);
        for (index, line) in text.lines().enumerate() {
            for (word, new) in is_current.then(|| retired(&path, line)).into_iter().flatten() {
                let place = format!("{}:{}", name.display(), index + 1);
                findings.push(format!("{place}: {word}: the word is now {new} (docs/glossary.md)"));
            }
            let line = line.to_ascii_lowercase();
            for (pattern, why) in &patterns {
                if contains(&line, pattern) {
                    let place = format!("{}:{}", name.display(), index + 1);
                    findings.push(format!("{place}: {why}: {pattern}"));
                }
            }
        }
    }
    Ok(findings)
}

/// True if `pattern` occurs in `line`; a final `#` matches a digit, and a pattern that begins a
/// path does not match in the middle of one.
fn contains(line: &str, pattern: &str) -> bool {
    let (stem, digit) = match pattern.strip_suffix('#') {
        Some(stem) => (stem, true),
        None => (pattern, false),
    };
    line.match_indices(stem).any(|(at, _)| {
        let next = line[at + stem.len()..].chars().next();
        let before = line[..at].chars().next_back();
        let starts_path = stem.starts_with('/');
        let is_inside =
            starts_path && before.is_some_and(|c| c.is_alphanumeric() || "_-./}$".contains(c));
        !is_inside && (!digit || next.is_some_and(|c| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_at_their_beginning_only() {
        let path = ["/", "work/"].concat();
        assert!(contains(&["see ", &path, "x"].concat(), &path));
        assert!(contains(&["'", &path, "x'"].concat(), &path));
        assert!(!contains(&["net", &path, "x"].concat(), &path));
        assert!(!contains(&["$TMP", &path].concat(), &path));
    }

    #[test]
    fn retired_words_are_whole_ones() {
        let words = |line| retired("docs/x.md", line).map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(words("a bell, and a nap"), ["bell", "nap"]);
        assert!(words("doorbell sdp-bell `bell` bell_page snap too-young").is_empty());
        assert_eq!(words("young, a relative"), ["a relative", "young"]);
        assert!(may_be_old("docs/decisions/0006-bell-page.md") && may_be_old("tests/x.py"));
        assert!(!may_be_old("docs/testing.md") && !may_be_old("crates/a/src/lib.rs"));
    }

    #[test]
    fn some_words_are_retired_in_a_part() {
        let words = |name| retired(name, "a guest").count();
        assert_eq!((words("crates/sdp-socket/src/a.rs"), words("docs/testing.md")), (1, 0));
    }

    #[test]
    fn tickets_need_a_digit() {
        let ticket = ["issue ", "#"].concat();
        assert!(contains(&["see issue", "12"].join(" "), &ticket));
        assert!(!contains("the issue is", &ticket));
    }
}

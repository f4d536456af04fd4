//! The protocol's page and the code: which normative statements are cited, and which are not.
//!
//! A statement is a sentence, a list's point or a row of a table of `docs/spec/sdp.md` in which a word
//! of [`NORMATIVE`] stands. It is cited if code names its section (`spec 4.3`, or a rule of
//! `Violation`), or listed if the table of section 10 names the section as not met. So the unit is the
//! section: a citation of one statement counts for all of its section.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tidy::{files, text_of};

/// The page.
const PAGE: &str = "docs/spec/sdp.md";
/// Words that make a sentence normative.
const NORMATIVE: &[&str] = &[
    "must",
    "never",
    "violation",
    "violations",
    "only",
    "not",
    "no",
    "nothing",
    "exactly",
    "least",
    "most",
    "refuses",
    "ignored",
];
/// Percentage of the normative statements that is cited or listed, at least.
const LEAST: usize = 95;

/// Sections by number, and the normative statements of each.
type Sections = BTreeMap<(u32, u32), Vec<String>>;

/// Prints the coverage, section by section.
pub(crate) fn coverage() -> Result<(), String> {
    let page = page()?;
    let sections = sections_of(&page);
    let (cited, findings) = citations(&page)?;
    let listed = listed(&page);
    let (mut all, mut covered) = (0, 0);
    for (section, statements) in &sections {
        let count = statements.len();
        let is_covered = cited.contains_key(section) || listed.contains(section);
        all += count;
        covered += if is_covered { count } else { 0 };
        let places = cited.get(section).map_or(0, BTreeSet::len);
        let how = match (places, listed.contains(section), count) {
            (0, true, _) => "not met (10)".to_owned(),
            (0, false, 0) => "nothing to cite".to_owned(),
            (0, false, _) => "NOT CITED".to_owned(),
            _ => format!("cited in {places} files"),
        };
        println!("{}.{}: {count} statements, {how}", section.0, section.1);
        for statement in statements.iter().filter(|_| !is_covered) {
            println!("    {statement}");
        }
    }
    println!("{covered} of {all} normative statements are cited, or listed as not met");
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        return Err(format!("cite: {} citations of no section", findings.len()));
    }
    shortfall(covered, all).map_or(Ok(()), |short| Err(format!("cite: {short}")))
}

/// Citations of sections that the page does not have, and whether too few statements are cited.
pub(crate) fn findings() -> Result<Vec<String>, String> {
    let page = page()?;
    let (cited, mut findings) = citations(&page)?;
    let listed = listed(&page);
    let is_covered = |section| cited.contains_key(section) || listed.contains(section);
    let (mut all, mut covered) = (0, 0);
    for (section, statements) in &sections_of(&page) {
        all += statements.len();
        covered += if is_covered(section) { statements.len() } else { 0 };
    }
    findings.extend(shortfall(covered, all).map(|short| format!("{PAGE}: {short}")));
    Ok(findings)
}

fn shortfall(covered: usize, all: usize) -> Option<String> {
    let is_short = covered * 100 < all * LEAST;
    is_short.then(|| format!("{covered} of {all} cited is less than {LEAST} of a hundred"))
}

fn page() -> Result<String, String> {
    text_of(Path::new(PAGE))?.ok_or_else(|| format!("{PAGE}: no text"))
}

/// The files that cite each section, and the citations that name none.
#[allow(clippy::type_complexity, reason = "used once")]
fn citations(page: &str) -> Result<(BTreeMap<(u32, u32), BTreeSet<String>>, Vec<String>), String> {
    let there = numbers(page);
    let (mut cited, mut findings) = (BTreeMap::<_, BTreeSet<String>>::new(), Vec::new());
    for name in files()? {
        if !name.starts_with("crates") || name.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let Some(text) = text_of(&name)? else { continue };
        let name = name.display().to_string();
        for (index, section) in cited_in(&text, name.ends_with("sdp-proto/src/violation.rs")) {
            if there.contains(&section) {
                cited.entry(section).or_default().insert(name.clone());
            } else {
                let (major, minor) = section;
                findings.push(format!("{name}:{}: no section {major}.{minor}", index + 1));
            }
        }
    }
    Ok((cited, findings))
}

/// The sections that a text cites, with the indices of their lines: behind the word `spec`, with
/// commas or `and` between them, also over the end of a line of a comment; in the table of rules also
/// a string of its own.
fn cited_in(text: &str, has_rules: bool) -> Vec<(usize, (u32, u32))> {
    let mut found = Vec::new();
    // The last word, if it was of a citation.
    let mut last: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let goes_on = |word: &str| is_spec(word) || word == "and" || word.ends_with(',');
        last = last.filter(|word| line.starts_with("//") && goes_on(word));
        let words = line.split_whitespace();
        for word in words.skip_while(|word| matches!(*word, "//" | "///" | "//!")) {
            let section = section(word).filter(|_| last.is_some());
            let is_part = section.is_some() || last.is_some() && word == "and";
            last = Some(word).filter(|word| is_part || is_spec(word));
            found.extend(section.map(|section| (index, section)));
        }
        if has_rules {
            let strings = line.split('"').skip(1).step_by(2);
            let rules = strings.filter(|text| !text.contains(' ')).filter_map(self::section);
            found.extend(rules.map(|section| (index, section)));
        }
    }
    found
}

fn is_spec(word: &str) -> bool {
    word.trim_start_matches(|c: char| !c.is_alphabetic()) == "spec"
}

/// `4.3` of `4.3`, `4.3)`, `4.3,`.
fn section(word: &str) -> Option<(u32, u32)> {
    let word = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let (major, minor) = word.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Numbers of the sections of two levels.
fn numbers(page: &str) -> BTreeSet<(u32, u32)> {
    let heads = page.lines().filter_map(|line| line.strip_prefix("### "));
    heads.filter_map(|head| section(head.split(' ').next()?)).collect()
}

/// Sections that section 10 lists as not met: its tables' first cells.
fn listed(page: &str) -> BTreeSet<(u32, u32)> {
    let Some((_, last)) = page.split_once("\n## 10 ") else { return BTreeSet::new() };
    let cells = last.lines().filter_map(|line| line.strip_prefix("| "));
    cells.filter_map(|line| section(line.split(' ').next()?)).collect()
}

fn sections_of(page: &str) -> Sections {
    let mut sections = Sections::new();
    let (mut current, mut text, mut is_code) = (None, String::new(), false);
    for line in page.lines().chain(["## end"]) {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if !line.starts_with('#') {
            if !is_code {
                text.push_str(line);
                text.push('\n');
            }
            continue;
        }
        if let Some(number) = current {
            sections.insert(number, statements_of(&text));
        }
        text.clear();
        let head = line.strip_prefix("### ").and_then(|head| head.split(' ').next());
        current = head.and_then(section);
    }
    sections
}

/// The normative ones of a section's sentences, points and rows.
fn statements_of(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        let is_new = line.is_empty() || line.starts_with(['|', '*', '-']) || begins_point(line);
        if is_new {
            parts.push(String::new());
        }
        for word in line.split_whitespace() {
            if let Some(part) = parts.last_mut() {
                part.push_str(word);
                part.push(' ');
            }
            if word.ends_with(['.', ';']) && !line.starts_with('|') {
                parts.push(String::new());
            }
        }
    }
    let is_normative = |part: &String| {
        let mut words = part.split(|c: char| !c.is_alphanumeric());
        words.any(|word| NORMATIVE.contains(&word.to_lowercase().as_str()))
    };
    parts.iter().filter(|part| is_normative(part)).map(|part| part.trim().to_owned()).collect()
}

/// `1. …`
fn begins_point(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# P\n\n## 4 Flow\n\n### 4.1 Counting\n\nThe first has 1. It must be so; a second\nfollows.\n\n\
        | a | never |\n| b | c |\n\n### 4.2 Other\n\nNothing\nelse.\n\n## 10 Not done\n\n| 4.2 | x |\n";

    #[test]
    fn statements_are_found_by_section() {
        let sections = sections_of(TEXT);
        let of = |section| sections.get(&section).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(of((4, 1)), ["It must be so;", "| a | never |"]);
        assert_eq!(of((4, 2)), ["Nothing else."]);
        assert_eq!(numbers(TEXT).into_iter().collect::<Vec<_>>(), [(4, 1), (4, 2)]);
        assert_eq!(listed(TEXT).into_iter().collect::<Vec<_>>(), [(4, 2)]);
    }

    #[test]
    fn citations_are_lists_behind_a_word() {
        let of = |text, has_rules| {
            cited_in(text, has_rules).into_iter().map(|(_, section)| section).collect::<Vec<_>>()
        };
        assert_eq!(of("/// Late (spec 4.3, 4.4 and 7.1).", false), [(4, 3), (4, 4), (7, 1)]);
        assert_eq!(of("see spec 3 and 7; version 2.2, inspec 1.1", false), []);
        assert_eq!(of("Name { a: u32 } \"2.11\" \"a 1.2\"", true), [(2, 11)]);
        assert_eq!(of("Name { a: u32 } \"2.11\" \"a\"", false), []);
    }

    #[test]
    fn citations_go_on_in_the_next_line_of_a_comment() {
        let broken =
            "    /// Late (spec\n    /// 4.3, 4.4 and\n    /// 7.1,\n    //! 7.2). No 9.9\n";
        let found = [(1, (4, 3)), (1, (4, 4)), (2, (7, 1)), (3, (7, 2))];
        assert_eq!(cited_in(broken, false), found);
        assert_eq!(cited_in("// spec\n4.3\n", false), []);
        assert_eq!(cited_in("// (spec 4.3).\n// 1.5 times\n", false), [(0, (4, 3))]);
    }

    #[test]
    fn too_few_citations_are_a_finding() {
        assert_eq!(shortfall(95, 100), None);
        assert!(shortfall(94, 100).is_some());
        assert_eq!(findings(), Ok(Vec::new()));
    }
}

//! What is to become less, counted: riddling comments and long cells of tables.
//!
//! `counts.txt` has how many there may be of each; the number may only fall. One that has fallen by
//! more than [`SLACK`] is to be written down.

use std::path::Path;

use super::{files, text_of};

/// How many there may be: `NAME NUMBER`.
const BOUNDS: &str = include_str!("counts.txt");

/// A bound may be higher than its count by so much, so that not each change has to lower it.
const SLACK: usize = 100;

/// Longest cell of a table, in characters; words in backticks and targets of links are not counted.
const MAX_CELL: usize = 60;

/// A thing that is counted: its name, what to write instead, and how many are in a line.
struct Counted {
    name: &'static str,
    instead: &'static str,
    is_in: fn(&str) -> bool,
}

/// What is counted in comments of Rust code.
const RIDDLES: [Counted; 3] = [
    Counted {
        name: "one-that",
        instead: "a comment with `one that`, `those that` or `who`: name the subject by its term",
        is_in: |text| {
            let text = text.to_ascii_lowercase();
            has(&text, "one that") || has(&text, "those that") || has(&text, "who")
        },
    },
    Counted {
        name: "the-same",
        instead: "a comment that begins with `The same`, `As [` or `It is`: say what it is",
        is_in: |text| ["The same", "As [", "It is"].iter().any(|start| text.starts_with(start)),
    },
    Counted {
        name: "so-many",
        instead: "a comment with `so many`: name the number by its term",
        is_in: |text| has(&text.to_ascii_lowercase(), "so many"),
    },
];

/// The name of the count of long cells.
const CELLS: &str = "long-cells";

/// The riddles in comments are not more than they were.
pub(super) fn riddles() -> Result<Vec<String>, String> {
    let mut counts = RIDDLES.map(|_| 0);
    let mut last = RIDDLES.map(|_| String::new());
    for name in files()?.iter().filter(|name| name.extension().is_some_and(|e| e == "rs")) {
        let Some(text) = text_of(name)? else { continue };
        for (number, comment) in comments(&text) {
            for (at, riddle) in RIDDLES.iter().enumerate().filter(|(_, r)| (r.is_in)(comment)) {
                counts[at] += 1;
                last[at] = format!("{}:{number}: {}", name.display(), riddle.instead);
            }
        }
    }
    let found = RIDDLES.iter().zip(counts).zip(last);
    Ok(found
        .filter_map(|((riddle, count), last)| judged(BOUNDS, riddle.name, count, &last))
        .collect())
}

/// The cells of tables that are too long are not more than they were.
pub(super) fn cells() -> Result<Vec<String>, String> {
    let (mut count, mut last) = (0, String::new());
    for name in files()?.iter().filter(|name| is_page(name)) {
        let Some(text) = text_of(name)? else { continue };
        for (number, length) in long_cells(&text) {
            count += 1;
            let place = format!("{}:{number}", name.display());
            last = format!("{place}: a cell of {length} characters, at most {MAX_CELL}");
        }
    }
    Ok(judged(BOUNDS, CELLS, count, &last).into_iter().collect())
}

/// Pages of the documentation; records of decisions stay as they were written.
fn is_page(name: &Path) -> bool {
    let is_markdown = name.extension().is_some_and(|e| e == "md");
    let is_page = name == Path::new("README.md") || name.starts_with("docs");
    is_markdown && is_page && !name.starts_with("docs/decisions")
}

/// What is wrong with a count; `last` is where the last one stands.
fn judged(bounds: &str, name: &str, count: usize, last: &str) -> Option<String> {
    let most = bounds.lines().find_map(|line| {
        let (of, number) = line.split_once(' ')?;
        if of == name { number.parse::<usize>().ok() } else { None }
    });
    let Some(most) = most else {
        return Some(format!("xtask/src/tidy/counts.txt: no line for {name}"));
    };
    println!("counts: {name}: {count}, at most {most}");
    if count > most {
        return Some(format!("{name}: {count}, at most {most}; the last of them: {last}"));
    }
    let is_stale = count + SLACK < most;
    is_stale.then(|| format!("xtask/src/tidy/counts.txt: {name} {most}: there are only {count}"))
}

/// The comments of a source file, with the numbers of their lines.
fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        Some((index + 1, comment.trim_start_matches(['/', '!']).trim()))
    })
}

/// Line and length of each cell that is too long.
fn long_cells(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || !line.starts_with('|') {
            continue;
        }
        let lengths = plain(line)
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().chars().count())
            .collect::<Vec<_>>();
        found.extend(lengths.into_iter().filter(|l| *l > MAX_CELL).map(|l| (index + 1, l)));
    }
    found
}

/// A row without what stands in backticks and without the targets of its links.
fn plain(row: &str) -> String {
    let outside: String = row.split('`').step_by(2).collect();
    let mut left = String::new();
    let mut rest = outside.as_str();
    while let Some(at) = rest.find("](") {
        left.push_str(&rest[..=at]);
        rest = rest[at..].find(')').map_or("", |end| &rest[at + end + 1..]);
    }
    left + rest
}

/// True if `text` has `words` with no letter on either side.
fn has(text: &str, words: &str) -> bool {
    super::lexer::has_word(text, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_riddle_is_counted() {
        let code = "/// Of one that sleeps.\n//! The same for who sleeps.\n    // So many bytes.\nlet one = that;\n\
                    /// Someone that; as many.\n";
        let counts = RIDDLES
            .map(|riddle| comments(code).filter(|(_, comment)| (riddle.is_in)(comment)).count());
        assert_eq!(counts, [2, 1, 1]);
    }

    #[test]
    fn one_more_is_found_and_so_is_a_bound_that_is_too_high() {
        let bounds = "# why\na 3\nb 190\n";
        assert_eq!(judged(bounds, "a", 3, ""), None);
        assert!(judged(bounds, "a", 4, "here").is_some_and(|found| found.ends_with("here")));
        assert!(judged(bounds, "b", 190 - SLACK, "").is_none());
        assert!(judged(bounds, "b", 190 - SLACK - 1, "").is_some());
        assert!(judged(bounds, "c", 0, "").is_some());
    }

    #[test]
    fn cells_are_measured_without_commands_and_targets() {
        let (long, short) = ("x".repeat(MAX_CELL + 1), "y".repeat(MAX_CELL));
        assert_eq!(long_cells(&format!("| a | {long} |")), [(1, MAX_CELL + 1)]);
        let fine =
            format!("| {short} | `{long}` z | [a]({long}) |\n```\n| {long} |\n```\n{long}\n");
        assert_eq!(long_cells(&fine), []);
    }

    #[test]
    fn every_count_has_a_bound() {
        let names = RIDDLES.iter().map(|riddle| riddle.name).chain([CELLS]);
        for name in names {
            assert!(BOUNDS.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
        }
    }
}

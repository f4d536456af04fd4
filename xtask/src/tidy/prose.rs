//! Prose is wrapped: no line of `README.md` or `docs/` is wider than 100 columns.
//!
//! Tables, code blocks and lines that are one long word (a link) are excepted, as they cannot be
//! wrapped. What a link of a page names within the repository is there. The map of the sources names functions as `file.rs::function`; each must exist.

use std::path::Path;

use super::{files, text_of};
use crate::process::root;

/// Widest line of prose, in characters.
const MAX_COLUMNS: usize = 100;

/// Every prose file is wrapped.
pub(super) fn wrapped() -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for name in files()? {
        if !is_prose(&name) {
            continue;
        }
        let Some(text) = text_of(&name)? else { continue };
        for (number, columns) in too_wide(&text) {
            findings.push(format!("{}:{number}: {columns} columns", name.display()));
        }
    }
    Ok(findings)
}

fn is_prose(name: &Path) -> bool {
    let is_markdown = name.extension().is_some_and(|ext| ext == "md");
    name == Path::new("README.md") || is_markdown && name.starts_with("docs")
}

/// Number and width of each line that is too wide.
fn too_wide(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        let line = line.trim_start();
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let can_be_wrapped = !is_code && !line.starts_with('|') && line.contains(' ');
        if columns > MAX_COLUMNS && can_be_wrapped {
            found.push((index + 1, columns));
        }
    }
    found
}

/// Each link to a file of the repository leads to one.
pub(super) fn links() -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for name in files()?.iter().filter(|name| name.extension().is_some_and(|ext| ext == "md")) {
        let Some(text) = text_of(name)? else { continue };
        let folder = root().join(name.parent().unwrap_or(Path::new("")));
        for (line, target) in targets(&text) {
            if !folder.join(target).exists() {
                findings.push(format!("{}:{line}: no file {target}", name.display()));
            }
        }
    }
    Ok(findings)
}

/// Line and file of each link that has no scheme. A link within the page names no file.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for link in line.split("](").skip(1) {
            let target = link.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                found.push((index + 1, target));
            }
        }
    }
    found
}

/// The page whose functions are looked up.
const MAP: &str = "docs/architecture.md";

/// Each `file.rs::function` of the map is a function of that file.
pub(super) fn named_functions() -> Result<Vec<String>, String> {
    let Some(map) = text_of(Path::new(MAP))? else { return Ok(vec![format!("{MAP}: no text")]) };
    let names = functions(&map);
    if names.is_empty() {
        return Ok(vec![format!("{MAP}: names no function")]);
    }
    let files = files()?;
    let mut findings = Vec::new();
    for (file, function) in names {
        let mut is_there = false;
        for name in files.iter().filter(|name| name.ends_with(file)) {
            is_there |= text_of(name)?.is_some_and(|text| defines(&text, function));
        }
        if !is_there {
            findings.push(format!("{MAP}: {file} has no function {function}"));
        }
    }
    Ok(findings)
}

/// File and function of each `file.rs::function` in backticks.
fn functions(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|quoted| {
            let at = quoted.find(".rs::")?;
            Some((&quoted[..at + 3], &quoted[at + 5..]))
        })
        .collect()
}

/// True if `text` defines a function of this name.
fn defines(text: &str, function: &str) -> bool {
    text.contains(&format!("fn {function}(")) || text.contains(&format!("fn {function}<"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_measured_and_tables_are_not() {
        let wide = "word ".repeat(30);
        assert_eq!(too_wide(&wide), [(1, 150)]);
        assert!(too_wide(&format!("| {wide}|")).is_empty());
        assert!(too_wide(&format!("```\n{wide}\n```")).is_empty());
        assert!(too_wide(&"x".repeat(150)).is_empty());
        assert_eq!(too_wide(&format!("```\n```\n{wide}")), [(3, 150)]);
    }

    #[test]
    fn links_are_found_by_their_files() {
        let text = "[a](b.md) and [c](../d.md#e)\n[f](#g), [h](https://i), [j](k/)";
        assert_eq!(targets(text), [(1, "b.md"), (1, "../d.md"), (2, "k/")]);
    }

    #[test]
    fn functions_are_found_by_file_and_name() {
        assert_eq!(functions("see `a/b.rs::go`, `c.rs` and `d::e`"), [("a/b.rs", "go")]);
        assert!(defines("pub fn go<T>(x: T)", "go"));
        assert!(defines("    fn go()", "go"));
        assert!(!defines("fn going()", "go"));
    }
}

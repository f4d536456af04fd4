//! Tidiness: everything about the sources that a machine can judge.
//!
//! Each check is a function that returns the list of its findings; an empty list is a pass. The
//! closing lines (`check NAME: ok`) are what the test ladder counts.

mod cites;
mod counts;
mod directions;
mod functions;
mod lexer;
mod prose;
mod results;
mod rooms;
mod source;
mod subjects;
mod words;

use std::path::PathBuf;
use std::process::Command;

use crate::process::{cargo, output_of, root, run};

/// Findings shown per check; the rest is only counted.
const MAX_SHOWN: usize = 40;

type Check = fn() -> Result<Vec<String>, String>;

const CHECKS: [(&str, Check); 22] = [
    ("format", format),
    ("directions", directions::directions),
    ("dependencies", directions::dependencies),
    ("rooms", rooms::rooms),
    ("plan", rooms::plan),
    ("circles", rooms::circles),
    ("words", words::check),
    ("length", source::length),
    ("functions", functions::length),
    ("riddles", counts::riddles),
    ("cells", counts::cells),
    ("subjects", subjects::subjects),
    ("prose", prose::wrapped),
    ("links", prose::links),
    ("map", prose::named_functions),
    ("results", results::recorded),
    ("rules", cites::rules),
    ("module-docs", source::module_docs),
    ("executable", source::executable),
    ("unsafe", source::unsafe_code),
    ("suites", crate::ladder::unlisted_tests),
    ("lints", lints),
];

/// Runs every check, or those that are named, and fails if one found something or could not run.
pub(crate) fn check(names: &[String]) -> Result<(), String> {
    if let Some(name) = names.iter().find(|name| !CHECKS.iter().any(|(known, _)| known == name)) {
        let known = CHECKS.map(|(known, _)| known).join(", ");
        return Err(format!("tidy: no such check: {name}; there are {known}"));
    }
    let chosen =
        CHECKS.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|n| n == name));
    report("tidy", chosen.map(|(name, check)| (*name, check())))
}

/// Prints the findings of each check and its closing line; an error if any check did not pass.
pub(crate) fn report<'a>(
    what: &str,
    checks: impl Iterator<Item = (&'a str, Result<Vec<String>, String>)>,
) -> Result<(), String> {
    let mut failed = Vec::new();
    for (name, outcome) in checks {
        let findings = outcome.unwrap_or_else(|e| vec![format!("could not run: {e}")]);
        for finding in findings.iter().take(MAX_SHOWN) {
            println!("{name}: {finding}");
        }
        if findings.len() > MAX_SHOWN {
            println!("{name}: and {} more", findings.len() - MAX_SHOWN);
        }
        let ok = findings.is_empty();
        println!("check {name}: {}", if ok { "ok" } else { "FAILED" });
        if !ok {
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("{what}: failed: {}", failed.join(", "))) }
}

/// The files that belong to the repository, relative to its top: what git tracks or would track.
pub(crate) fn files() -> Result<Vec<PathBuf>, String> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = output_of(&mut git)?;
    let names = listed.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(names.filter(|name| root().join(name).is_file()).collect())
}

/// The text of a repository file; `None` if it is not UTF-8.
pub(crate) fn text_of(name: &std::path::Path) -> Result<Option<String>, String> {
    let bytes = std::fs::read(root().join(name)).map_err(|e| format!("{}: {e}", name.display()))?;
    Ok(String::from_utf8(bytes).ok())
}

fn format() -> Result<Vec<String>, String> {
    Ok(run(cargo().args(["fmt", "--all", "--check"])).err().into_iter().collect())
}

/// Clippy over everything; the preload library by itself, as it is built (see `artifacts`).
fn lints() -> Result<Vec<String>, String> {
    let others = ["clippy", "--quiet", "--all-targets", "--", "--deny", "warnings"];
    let library = ["clippy", "--quiet", "--package", "sdp-preload", "--", "--deny", "warnings"];
    let runs = [run(cargo().args(others)), run(cargo().args(library))];
    Ok(runs.into_iter().filter_map(Result::err).collect())
}

//! Subjects of a change's commits: `room: verb object`, at most 72 characters, one thing each.
//!
//! The commits of a change are those that are ahead of the branch that it is made for, which
//! `SDP_TIDY_BASE` names (`.ci/run`: `origin/main`). Where it is not set, or there is no such branch,
//! nothing is checked. History is not judged.

use std::process::Command;

use crate::process::{output_of, root};

/// Longest subject, in characters.
const MAX_COLUMNS: usize = 72;

/// Variable that names the base of a change.
const BASE: &str = "SDP_TIDY_BASE";

/// The subjects of the commits of this change.
pub(super) fn subjects() -> Result<Vec<String>, String> {
    let asked = std::env::var(BASE).unwrap_or_default();
    let commit = format!("{asked}^{{commit}}");
    if asked.is_empty() || git(&["rev-parse", "--verify", "--quiet", &commit]).is_err() {
        println!("subjects: {BASE} names no branch to compare with");
        return Ok(Vec::new());
    }
    let listed = git(&["log", "--no-merges", "--format=%s", &format!("{asked}..HEAD")])?;
    println!("subjects: {} commits ahead of {asked}", listed.lines().count());
    Ok(listed.lines().filter_map(wrong).collect())
}

fn git(arguments: &[&str]) -> Result<String, String> {
    output_of(Command::new("git").args(arguments).current_dir(root()))
}

/// What is wrong with a subject.
fn wrong(subject: &str) -> Option<String> {
    let columns = subject.chars().count();
    let why = match subject.split_once(": ") {
        _ if columns > MAX_COLUMNS => format!("{columns} characters, at most {MAX_COLUMNS}"),
        None => "not `room: verb object`".to_owned(),
        Some((room, what)) if !is_room(room) || !is_object(what) => {
            "not `room: verb object`".to_owned()
        }
        Some((_, what)) if what.contains("; ") => "two things: make two commits".to_owned(),
        Some(_) => return None,
    };
    Some(format!("{subject}: {why}"))
}

/// Names of rooms, crates or folders, a few at most.
fn is_room(room: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/.".contains(c);
    let is_name = |name: &str| !name.is_empty() && name.chars().all(is_part);
    room.split(", ").all(is_name)
}

/// At least two words, of which the first is in small letters and no article.
fn is_object(what: &str) -> bool {
    let first = what.split(' ').next().unwrap_or_default();
    let is_small = first.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !first.is_empty();
    is_small
        && !["a", "an", "the", "who", "what"].contains(&first)
        && what.contains(' ')
        && !what.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_of_the_form_pass() {
        for fine in [
            "guard: send no marker after a close",
            "docs, tests: name the bound",
            "sdp-sys: drop it all",
        ] {
            assert_eq!(wrong(fine), None);
        }
    }

    #[test]
    fn each_fault_is_found() {
        let long = format!("guard: send {}", "x".repeat(MAX_COLUMNS));
        for fault in [
            long.as_str(),
            "send no marker",
            "Guard: send no marker",
            "guard: Send no marker",
            "guard: send",
            "guard: a marker is sent",
            "guard: send no marker; count them",
            "guard: send no marker.",
        ] {
            assert!(wrong(fault).is_some(), "{fault}");
        }
    }
}

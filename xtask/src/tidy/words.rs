//! Words and paths that must not stand in the repository.
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

/// Every text file is free of the forbidden words.
pub(super) fn check() -> Result<Vec<String>, String> {
    let patterns = patterns();
    let mut findings = Vec::new();
    for name in files()? {
        let Some(text) = text_of(&name)? else { continue };
        for (index, line) in text.lines().enumerate() {
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
    fn tickets_need_a_digit() {
        let ticket = ["issue ", "#"].concat();
        assert!(contains(&["see issue", "12"].join(" "), &ticket));
        assert!(!contains("the issue is", &ticket));
    }
}

//! The short list of skips that even `--strict` accepts.
//!
//! `tests/allowed-skips.txt`: one skip a line, `NAME -- REASON`; a name that ends in `*` covers all
//! that begin with it. With `NAME | TEXT -- REASON` only a skip that says TEXT is accepted. A line without a reason is
//! an error.

use crate::process::root;

/// The list.
#[derive(Debug, Default)]
pub(super) struct AllowedSkips {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    pattern: String,
    /// What the skip itself must say; empty: anything.
    said: String,
    reason: String,
}

impl AllowedSkips {
    /// Reads the repository's list.
    pub(super) fn read() -> Result<Self, String> {
        let path = root().join("tests/allowed-skips.txt");
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
            match line.split_once(" -- ").map(|(name, reason)| (name.trim(), reason.trim())) {
                Some((name, reason)) if !reason.is_empty() => {
                    let (pattern, said) = name.split_once(" | ").unwrap_or((name, ""));
                    let [pattern, said] = [pattern, said].map(|part| part.trim().to_owned());
                    entries.push(Entry { pattern, said, reason: reason.to_owned() });
                }
                _ => return Err(format!("no reason: {line}")),
            }
        }
        Ok(Self { entries })
    }

    /// Why a skip of `name`, which says `said`, is acceptable; `None` if it is not.
    pub(super) fn reason(&self, name: &str, said: &str) -> Option<&str> {
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(stem) => name.starts_with(stem),
            None => name == pattern,
        };
        let is_it = |entry: &&Entry| matches(&entry.pattern) && said.contains(&entry.said);
        self.entries.iter().find(is_it).map(|entry| entry.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_needs_a_reason() {
        let text = "# why\na::b -- slow\nverbs* -- no device\nm/* | no guests -- no kernel\n";
        let list = AllowedSkips::parse(text).expect("ok");
        assert_eq!(list.reason("a::b", "x"), Some("slow"));
        assert_eq!(list.reason("verbs::x", ""), Some("no device"));
        assert_eq!(list.reason("a::bc", "x"), None);
        assert_eq!(list.reason("m/x", "no guests: no QEMU"), Some("no kernel"));
        assert_eq!(list.reason("m/x", "not today"), None);
        assert!(AllowedSkips::parse("a::b\n").is_err());
    }
}

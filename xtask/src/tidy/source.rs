//! Checks of source files: length, module documentation, who may execute them, unsafe code.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::lexer::{code_only, has_word};
use super::{files, text_of};

/// Longest source file, in lines. A longer one has more than one purpose.
const MAX_LINES: usize = 900;

/// Crates that may contain unsafe code. `sdp-socket` and above it the hooks touch the program's
/// memory; `sdp-stats` and `sdp-tools` map pages; the others are the edge to the kernel.
const UNSAFE_CRATES: &[&str] = &[
    "crates/sdp-sys",
    "crates/sdp-shm",
    "crates/sdp-fabric-shm",
    "crates/sdp-fabric-verbs",
    // For tests: C's structures, and memory that processes share.
    "crates/sdp-fake-verbs",
    "crates/sdp-socket",
    "crates/sdp-preload",
    "crates/sdp-stats",
    "crates/sdp-tools",
    // Registered memory, and epoll by libc.
    "crates/sdp-nfs",
    // Only its tests: real sockets.
    "crates/sdp-remote/tests",
    // Maps memory for the shared ring, as its users do.
    "fuzz",
];

/// Lines above an unsafe block in which its `SAFETY:` comment must begin.
const SAFETY_REACH: usize = 14;

fn sources(extensions: &[&str]) -> Result<Vec<(PathBuf, String)>, String> {
    let mut out = Vec::new();
    for name in files()? {
        let extension = name.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if extensions.contains(&extension)
            && let Some(text) = text_of(&name)?
        {
            out.push((name, text));
        }
    }
    Ok(out)
}

/// No source file is longer than [`MAX_LINES`].
pub(super) fn length() -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for (name, text) in sources(&["rs", "py", "sh", "c", "js", "java", "go"])? {
        let lines = text.lines().count();
        if lines > MAX_LINES {
            findings.push(format!("{}: {lines} lines, at most {MAX_LINES}", name.display()));
        }
    }
    Ok(findings)
}

/// What begins with `#!` can be run by its name, as the documents do.
pub(super) fn executable() -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for name in files()? {
        let path = crate::process::root().join(&name);
        let mode = path.metadata().map_err(|e| format!("{}: {e}", name.display()))?.permissions();
        let is_script = text_of(&name)?.is_some_and(|text| text.starts_with("#!/"));
        if is_script && mode.mode() & 0o111 == 0 {
            findings.push(format!("{}: a script that may not be executed", name.display()));
        }
    }
    Ok(findings)
}

/// Every Rust file begins with a `//!` paragraph, every Python file with a docstring.
pub(super) fn module_docs() -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for (name, text) in sources(&["rs", "py"])? {
        let is_rust = name.extension().is_some_and(|e| e == "rs");
        let has_doc = if is_rust { begins_with_doc(&text) } else { begins_with_docstring(&text) };
        if !has_doc && !text.trim().is_empty() {
            findings.push(format!("{}: no module documentation", name.display()));
        }
    }
    Ok(findings)
}

fn begins_with_doc(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    first.is_some_and(|line| line.trim_start().starts_with("//! "))
}

fn begins_with_docstring(text: &str) -> bool {
    let mut lines = text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
    lines.next().is_some_and(|line| line.starts_with("\"\"\"") || line.starts_with("r\"\"\""))
}

/// Unsafe code only where it is allowed, and never without its reason.
pub(super) fn unsafe_code() -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    let mut blocks: BTreeMap<String, usize> = BTreeMap::new();
    for (name, text) in sources(&["rs"])? {
        let allowed = UNSAFE_CRATES.iter().any(|dir| name.starts_with(dir));
        findings.extend(unsafe_findings(&name, &text, allowed));
        *blocks.entry(crate_of(&name)).or_default() += blocks_in(&text);
    }
    let each = blocks.iter().filter(|(_, n)| **n > 0);
    let each: Vec<String> = each.map(|(name, n)| format!("{name} {n}")).collect();
    println!("unsafe: {} blocks: {}", blocks.values().sum::<usize>(), each.join(", "));
    Ok(findings)
}

/// The crate that a source file is part of; none for tests and what is no crate.
fn crate_of(name: &Path) -> String {
    let mut parts = name.iter().filter_map(|part| part.to_str());
    match (parts.next(), parts.next(), parts.next()) {
        (Some("crates"), Some(name), Some("src")) => name.to_owned(),
        _ => "tests".to_owned(),
    }
}

/// Blocks of unsafe code.
fn blocks_in(text: &str) -> usize {
    code_only(text).matches("unsafe {").count()
}

fn unsafe_findings(name: &Path, text: &str, allowed: bool) -> Vec<String> {
    let code = code_only(text);
    let raw: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in code.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe")) {
        let place = format!("{}:{}", name.display(), index + 1);
        if !allowed {
            findings.push(format!("{place}: unsafe code outside the allowed crates"));
            continue;
        }
        let above = &raw[index.saturating_sub(SAFETY_REACH)..=index.min(raw.len() - 1)];
        let says = |word: &str| above.iter().any(|line| line.contains(word));
        if is_declaration(line) {
            // An unsafe function or trait tells its callers instead (clippy: missing_safety_doc).
            continue;
        }
        if !says("SAFETY:") {
            findings.push(format!("{place}: unsafe without a SAFETY comment"));
        }
        if says(&["SAFETY: ", "as above"].concat()) {
            findings.push(format!("{place}: a SAFETY comment that only points at another one"));
        }
    }
    findings
}

/// `unsafe fn`, `unsafe extern`, `unsafe trait`, an attribute such as `#[unsafe(no_mangle)]`.
fn is_declaration(line: &str) -> bool {
    let after = line.split("unsafe").nth(1).unwrap_or_default().trim_start();
    ["fn", "extern", "trait", "("].iter().any(|next| after.starts_with(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str, allowed: bool) -> usize {
        unsafe_findings(Path::new("x.rs"), text, allowed).len()
    }

    #[test]
    fn unsafe_needs_a_reason_and_a_licence() {
        let bare = "fn f() {\n    unsafe { g() }\n}\n";
        let reasoned = "fn f() {\n    // SAFETY: g has no condition.\n    unsafe { g() }\n}\n";
        assert_eq!(count(bare, true), 1);
        assert_eq!(count(reasoned, true), 0);
        assert_eq!(count(reasoned, false), 1);
        assert_eq!(count(&reasoned.replace("g has no condition", "as above"), true), 1);
        assert_eq!(count("unsafe fn f() {}\n#[unsafe(no_mangle)]\n", true), 0);
        assert_eq!(count("// unsafe { }\nconst S: &str = \"unsafe { }\";\n", false), 0);
    }

    #[test]
    fn documentation_comes_first() {
        assert!(begins_with_doc("\n//! What this is.\n"));
        assert!(!begins_with_doc("use x;\n//! Late.\n"));
        assert!(begins_with_docstring("#!/usr/bin/python3\n\"\"\"What.\"\"\"\n"));
        assert!(!begins_with_docstring("import os\n"));
    }
}

//! `docs/reason-codes.md` is this table. With `SDP_BLESS=1` the test writes the file instead.

use std::{fmt::Write, path::Path};

use sdp_stats::Reason;

const HEAD: &str = "\
# Reason codes

Why a connection end is on the kernel lane, or went back to it. The same words appear in the report
of `sdp run` (`reasons`, `demotions`), in `sdp stat`, in the log and in the Prometheus counters.
Codes and words are stable: a new reason gets a new number, and readers show an unknown one as
`reason-NUMBER`.

In a report every connection end that never moved a payload byte over SDP has exactly one entry in
`reasons`; `demotions` counts each half that left an SDP lane.

This file is made from the table in `crates/sdp-stats/src/reason.rs`; a test keeps the two equal
(`SDP_BLESS=1 cargo test -p sdp-stats --test reason_codes` rewrites it).

| code | word | what happened | what you can do |
|---:|---|---|---|
";

#[test]
fn the_documentation_is_the_table() {
    let mut text = HEAD.to_string();
    for reason in Reason::ALL {
        let (code, word) = (reason.code(), reason.word());
        let _ = writeln!(text, "| {code} | `{word}` | {} | {} |", reason.what(), reason.advice());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reason-codes.md");
    if std::env::var_os("SDP_BLESS").is_some() {
        std::fs::write(path, &text).expect("the file can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "docs/reason-codes.md differs from the table; see its head");
}

/// All of a directory's sources.
fn sources(directory: &Path, text: &mut String) {
    for entry in std::fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn each_reason_is_told_by_somebody() {
    let mut text = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdp-socket/src"), &mut text);
    let is_given = |reason: &Reason| {
        let name = format!("Reason::{reason:?}");
        let mut places = text.match_indices(&name).map(|(at, _)| &text[at + name.len()..]);
        places.any(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
    };
    let idle: Vec<_> = Reason::ALL.iter().filter(|reason| !is_given(reason)).collect();
    assert!(idle.is_empty(), "{idle:?} are in the table, and nothing tells them");
}

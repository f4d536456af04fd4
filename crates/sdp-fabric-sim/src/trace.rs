//! Events, as text.
//!
//! One line per call and event, with virtual time and content hashes. The last lines are kept; the
//! hash covers all of them, so that two runs can be compared without keeping either.

use core::fmt::{Arguments, Write};
use std::collections::VecDeque;

/// Lines of a trace.
#[derive(Debug)]
pub(crate) struct Trace {
    lines: VecDeque<String>,
    kept_max: usize,
    count: u64,
    hash: u64,
}

impl Trace {
    /// Keeps the last `kept_max` lines; 0 switches the trace (and its hash) off.
    pub(crate) fn new(kept_max: usize) -> Self {
        Self { lines: VecDeque::new(), kept_max, count: 0, hash: FNV_START }
    }

    pub(crate) fn line(&mut self, now_ns: u64, text: Arguments<'_>) {
        if self.kept_max == 0 {
            return;
        }
        // The oldest line's memory is used again: a long story allocates nothing here.
        let mut line = if self.lines.len() >= self.kept_max {
            self.lines.pop_front().unwrap_or_default()
        } else {
            String::new()
        };
        line.clear();
        // Writing to a string cannot fail.
        let _ = write!(line, "{now_ns:>12} {text}");
        self.hash = fnv(fnv(self.hash, line.as_bytes()), b"\n");
        self.count += 1;
        self.lines.push_back(line);
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    pub(crate) fn tail(&self, lines: usize) -> String {
        let skipped = self.lines.len().saturating_sub(lines);
        self.lines.iter().skip(skipped).fold(String::new(), |text, line| text + line + "\n")
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }
}

pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, 64 bit, continued from `hash`.
pub(crate) fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published values of FNV-1a.
    #[test]
    fn hash_matches_the_reference() {
        assert_eq!(fnv(FNV_START, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(FNV_START, b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn keeps_the_last_lines_and_hashes_all() {
        let mut short = Trace::new(2);
        let mut long = Trace::new(10);
        for n in 0..5 {
            short.line(n, format_args!("line {n}"));
            long.line(n, format_args!("line {n}"));
        }
        assert_eq!(short.text().lines().count(), 2);
        assert!(short.text().ends_with("line 4\n"));
        assert_eq!(short.hash(), long.hash());
        assert_eq!(short.count(), 5);
        assert_eq!(long.tail(1), short.tail(1));
    }

    #[test]
    fn a_trace_that_is_off_keeps_nothing() {
        let mut trace = Trace::new(0);
        trace.line(1, format_args!("x"));
        assert_eq!((trace.text().as_str(), trace.count()), ("", 0));
    }
}

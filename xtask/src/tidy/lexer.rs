//! Rust source with comments and literals blanked out.
//!
//! The checks look for words such as `unsafe` in code only. This is not a parser: it knows
//! comments (nested), strings (raw, byte, C) and character literals, and nothing else.

/// Returns `source` with every comment and literal replaced by spaces; line breaks stay.
pub(crate) fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !is_word_before(bytes, at) => raw_end(bytes, at),
            b'b' | b'c' if !is_word_before(bytes, at) && bytes.get(at + 1) == Some(&b'r') => {
                let end = raw_end(bytes, at + 1);
                if end == at + 1 { at } else { end }
            }
            b'\'' => char_end(bytes, at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// True if `line` contains `word` with no letter, digit or underscore on either side.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !is_word(before) && !is_word(after)
    })
}

fn is_word_before(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// End of a raw string whose `r` is at `at`; `at` itself if it is none.
fn raw_end(bytes: &[u8], at: usize) -> usize {
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    if bytes.get(at + 1 + hashes) != Some(&b'"') {
        return at;
    }
    let mut closing = vec![b'"'];
    closing.resize(1 + hashes, b'#');
    let body = at + 2 + hashes;
    let found = bytes[body..].windows(closing.len()).position(|w| w == closing);
    found.map_or(bytes.len(), |n| body + n + closing.len())
}

/// End of a character literal at `at`; `at` itself for a lifetime.
fn char_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes[(at + 3).min(bytes.len())..].iter().position(|b| *b == b'\'');
        return close.map_or(at, |n| at + 3 + n + 1);
    }
    // A character of one to four bytes, then the quote.
    let close = bytes[at + 1..].iter().take(5).position(|b| *b == b'\'');
    match close {
        Some(n) if n >= 1 && std::str::from_utf8(&bytes[at + 1..at + 1 + n]).is_ok() => {
            let inner = std::str::from_utf8(&bytes[at + 1..at + 1 + n]).unwrap_or_default();
            if inner.chars().count() == 1 { at + n + 2 } else { at }
        }
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_left(source: &str) -> Vec<String> {
        code_only(source).split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn blanks_comments_and_literals() {
        let source =
            "a // unsafe\n/* x /* y */ z */ b \"un\\\"safe\" r#\"q\"w\"# c '\"' d b'\\'' e";
        let left = words_left(source);
        assert_eq!(left, ["a", "b", "c", "d", "b", "e"]);
    }

    #[test]
    fn keeps_lifetimes_and_lines() {
        let source = "fn f<'a>(x: &'a str) -> &'a str {\n x /* \n */ }";
        assert_eq!(code_only(source).lines().count(), 3);
        assert!(code_only(source).contains("&'a str"));
    }

    #[test]
    fn finds_whole_words_only() {
        assert!(has_word("let x = unsafe { y };", "unsafe"));
        assert!(!has_word("unsafe_code is_unsafe", "unsafe"));
    }
}

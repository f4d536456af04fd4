//! No function is longer than [`MAX_LINES`] lines. Those that are stand in `functions.txt`, each
//! with its length, and may only become shorter.

use std::collections::BTreeMap;
use std::path::Path;

use super::lexer::code_only;
use super::{files, text_of};

/// Longest function, in lines from its `fn` to its closing brace.
const MAX_LINES: usize = 80;

/// Longer functions that are known: `FILE::NAME LINES`.
const KNOWN: &str = include_str!("functions.txt");

/// Functions by file and name, with their lines; of several of one name the longest.
type Lengths = BTreeMap<String, usize>;

/// No function is too long, but for those on the list, which are not longer than it says.
pub(super) fn length() -> Result<Vec<String>, String> {
    let mut long = Lengths::new();
    let mut count = 0;
    for name in files()?.iter().filter(|name| name.extension().is_some_and(|e| e == "rs")) {
        let Some(text) = text_of(name)? else { continue };
        let lengths = lengths(name, &text);
        count += lengths.len();
        long.extend(lengths.into_iter().filter(|(_, lines)| *lines > MAX_LINES));
    }
    println!("functions: {count}, {} of them longer than {MAX_LINES} lines", long.len());
    let (found, stale) = findings(&long, KNOWN);
    println!("functions: {} lines of functions.txt can be less: {}", stale.len(), stale.join(", "));
    Ok(found)
}

/// What is wrong, and lines of the list that nothing needs any more.
fn findings(long: &Lengths, known: &str) -> (Vec<String>, Vec<String>) {
    let mut listed = Lengths::new();
    let mut found = Vec::new();
    for line in known.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.rsplit_once(' ').and_then(|(name, lines)| Some((name, lines.parse().ok()?))) {
            Some((name, lines)) => _ = listed.insert(name.to_owned(), lines),
            None => found.push(format!("xtask/src/tidy/functions.txt: {line}: no length")),
        }
    }
    for (name, lines) in long {
        let most = listed.get(name).copied().unwrap_or(MAX_LINES);
        if *lines > most {
            found.push(format!("{name}: {lines} lines, at most {most}: split it"));
        }
    }
    let stale = listed.iter().filter(|(name, lines)| long.get(*name).is_none_or(|l| l < lines));
    let stale = stale.map(|(name, lines)| format!("{name} {lines}")).collect();
    (found, stale)
}

/// The functions of a file that have a body.
fn lengths(file: &Path, text: &str) -> Lengths {
    let code = code_only(text);
    let mut found = Lengths::new();
    for (at, _) in code.match_indices("fn ") {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let rest = &code[at + "fn ".len()..];
        let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
        if code[..at].ends_with(is_word) || name.is_empty() {
            continue;
        }
        let Some(end) = body_end(&code[at..]) else { continue };
        let lines = code[at..at + end].matches('\n').count() + 1;
        let longest = found.entry(format!("{}::{name}", file.display())).or_default();
        *longest = lines.max(*longest);
    }
    found
}

/// Behind the closing brace of the function at the beginning; `None` if it has no body.
fn body_end(code: &str) -> Option<usize> {
    let (mut brackets, mut braces) = (0_usize, 0_usize);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            '{' => braces += 1,
            '}' if braces == 1 && brackets == 0 => return Some(at + 1),
            '}' => braces = braces.checked_sub(1)?,
            ';' if braces == 0 && brackets == 0 => return None,
            _ => (),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(lines: usize) -> String {
        format!("fn a(x: [u8; 2]) -> u8 {{\n{}}}\nfn b();\nfn c() {{}}\n", "x;\n".repeat(lines - 2))
    }

    #[test]
    fn functions_are_measured_to_their_closing_braces() {
        let of = lengths(Path::new("f.rs"), &long(9));
        let expected = [("f.rs::a".to_owned(), 9), ("f.rs::c".to_owned(), 1)];
        assert_eq!(of.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_function_that_is_too_long_and_one_that_grew_are_found() {
        let of = lengths(Path::new("f.rs"), &long(MAX_LINES + 1));
        let of = of.into_iter().filter(|(_, lines)| *lines > MAX_LINES).collect();
        assert_eq!(findings(&of, "").0.len(), 1);
        let exact = findings(&of, &format!("# why\nf.rs::a {}\n", MAX_LINES + 1));
        assert_eq!(exact, (vec![], vec![]));
        assert_eq!(findings(&of, &format!("f.rs::a {MAX_LINES}\n")).0.len(), 1);
    }

    #[test]
    fn a_stale_line_of_the_list_is_found() {
        assert_eq!(findings(&Lengths::new(), "f.rs::a 90\n").1.len(), 1);
        assert_eq!(findings(&Lengths::new(), "f.rs::a\n").0.len(), 1);
    }
}

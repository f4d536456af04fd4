//! Numbered rules: a rule that is cited is defined, and the definitions stand in order.
//!
//! A rule is defined by a paragraph that begins with `**L7 `. Its letter belongs to one page
//! ([`PAGES`]); within the page the numbers of a letter run from 1 upwards without a gap. Sources
//! and documents cite it as `L7`. Letters that no page owns are not looked at.

use std::path::Path;

use super::{files, text_of};

/// Page, and the letters of the rules that it defines.
const PAGES: &[(&str, &str)] = &[("docs/spec/lanes.md", "LEOR"), ("docs/spec/guard.md", "G")];

/// Endings of the files that cite rules.
const CITING: &[&str] = &["rs", "md", "txt", "ld"];

/// Each page defines its rules in order, and each rule that is cited is defined; so is each section of the
/// protocol's page, of whose statements enough are cited.
pub(super) fn rules() -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    let mut defined = Vec::new();
    for (page, letters) in PAGES {
        let Some(text) = text_of(Path::new(page))? else { return Err(format!("{page}: no text")) };
        for letter in letters.chars() {
            let numbers = definitions(&text, letter);
            findings.extend(disorder(page, letter, &numbers));
            defined.extend(numbers.into_iter().map(|number| (letter, number)));
        }
    }
    for name in files()? {
        if !name.extension().is_some_and(|e| CITING.iter().any(|citing| e == *citing)) {
            continue;
        }
        let Some(text) = text_of(&name)? else { continue };
        for (line, rule) in citations(&text) {
            let is_owned = PAGES.iter().any(|(_, letters)| letters.contains(rule.0));
            if is_owned && !defined.contains(&rule) {
                let (letter, number) = rule;
                findings.push(format!("{}:{line}: no rule {letter}{number}", name.display()));
            }
        }
    }
    findings.extend(crate::cite::findings()?);
    Ok(findings)
}

/// The numbers of the rules of one letter, in the order of the page.
fn definitions(page: &str, letter: char) -> Vec<u32> {
    let number = |line: &str| {
        let rule = line.strip_prefix("**")?.strip_prefix(letter)?;
        rule.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    page.lines().filter_map(number).collect()
}

/// What is wrong with these numbers of a letter.
fn disorder(page: &str, letter: char, numbers: &[u32]) -> Vec<String> {
    if numbers.is_empty() {
        return vec![format!("{page}: defines no rule {letter}")];
    }
    let expected = 1..;
    let wrong = numbers.iter().zip(expected).find(|(number, expected)| *number != expected);
    let say = |(number, expected): (&u32, u32)| {
        format!("{page}: {letter}{number} stands where {letter}{expected} should")
    };
    wrong.map(say).into_iter().collect()
}

/// Line, letter and number of each rule that a text cites: a capital letter and one or two digits
/// that stand by themselves.
fn citations(text: &str) -> Vec<(usize, (char, u32))> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let mut chars = word.chars();
            let Some(letter) = chars.next().filter(char::is_ascii_uppercase) else { continue };
            let digits = chars.as_str();
            if (1..=2).contains(&digits.len())
                && let Ok(number) = digits.parse()
            {
                found.push((index + 1, (letter, number)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_double_and_a_wrong_order_are_found() {
        let page = "**L1 One** is\n**L2 Two.**\n**L12 Far**\n**E1 Other**\n";
        assert_eq!(definitions(page, 'L'), [1, 2, 12]);
        let wrong = "p: L12 stands where L3 should";
        assert_eq!(disorder("p", 'L', &definitions(page, 'L')), [wrong]);
        assert_eq!(disorder("p", 'L', &[1, 1]), ["p: L1 stands where L2 should"]);
        assert_eq!(disorder("p", 'L', &[]), ["p: defines no rule L"]);
        assert!(disorder("p", 'L', &[1, 2, 3]).is_empty());
    }

    #[test]
    fn rules_are_cited_as_words_of_their_own() {
        let text = "as L1 says (O10, E2)\n//! HTML5, u8, E402, L2: not RULE_L3";
        let rules: Vec<_> = citations(text).into_iter().map(|(_, rule)| rule).collect();
        assert_eq!(rules, [('L', 1), ('O', 10), ('E', 2), ('L', 2)]);
    }
}

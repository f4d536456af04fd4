//! Shell patterns against program names, as `fnmatch` with no flags does it.

/// Longest pattern and name that are matched; longer ones do not match. Bounds the work (the
/// matcher is quadratic at worst).
const MAX_LEN: usize = 512;

/// Whether `name` matches the shell pattern `pattern`: `*`, `?`, `[set]` with ranges and `!` or `^`
/// for the complement, `\` before a literal. No special treatment of leading dots and slashes. An
/// unclosed `[` is literal.
pub fn glob_match(pattern: &[u8], name: &[u8]) -> bool {
    if pattern.len() > MAX_LEN || name.len() > MAX_LEN {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // Where to go on when the tail fails: behind the last star, one name byte further.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p.wrapping_add(1), n));
                p = p.wrapping_add(1);
                continue;
            }
            Some(_) => name.get(n).and_then(|byte| one(pattern, p, *byte)),
            None if n == name.len() => return true,
            None => None,
        };
        match (step, retry) {
            (Some(next), _) => {
                p = next;
                n = n.wrapping_add(1);
            }
            (None, Some((after_star, at))) if at < name.len() => {
                p = after_star;
                n = at.wrapping_add(1);
                retry = Some((after_star, n));
            }
            _ => return false,
        }
    }
}

/// Whether the pattern element at `p` (not a star) matches `byte`: the position behind it.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    let next = p.wrapping_add(1);
    match *pattern.get(p)? {
        b'?' => Some(next),
        b'\\' => match pattern.get(next) {
            Some(literal) => (*literal == byte).then_some(next.wrapping_add(1)),
            None => (byte == b'\\').then_some(next),
        },
        b'[' => match set(pattern, next, byte) {
            Some((matches, end)) => matches.then_some(end),
            None => (byte == b'[').then_some(next),
        },
        literal => (literal == byte).then_some(next),
    }
}

/// A bracket set that starts behind `[`: whether `byte` is in it, and the position behind `]`.
/// `None` when it is never closed.
fn set(pattern: &[u8], mut p: usize, byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(p)?, b'!' | b'^');
    if negated {
        p = p.wrapping_add(1);
    }
    let first = p;
    let mut found = false;
    loop {
        let mut low = *pattern.get(p)?;
        if low == b']' && p != first {
            return Some((found != negated, p.wrapping_add(1)));
        }
        if low == b'\\' {
            p = p.wrapping_add(1);
            low = *pattern.get(p)?;
        }
        p = p.wrapping_add(1);
        let mut high = low;
        if pattern.get(p) == Some(&b'-')
            && pattern.get(p.wrapping_add(1)).is_some_and(|b| *b != b']')
        {
            p = p.wrapping_add(1);
            high = *pattern.get(p)?;
            if high == b'\\' {
                p = p.wrapping_add(1);
                high = *pattern.get(p)?;
            }
            p = p.wrapping_add(1);
        }
        found |= (low..=high).contains(&byte);
    }
}

/// Whether every name that matches `narrow` certainly matches `wide`. May say no where it is yes.
pub(crate) fn covers(wide: &[u8], narrow: &[u8]) -> bool {
    let is_literal = !narrow.iter().any(|b| matches!(b, b'*' | b'?' | b'[' | b'\\'));
    wide == b"*" || wide == narrow || (is_literal && glob_match(wide, narrow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "java", true),
            ("db2*", "db2sysc", true),
            ("db2*", "sdb2", false),
            ("?tcp", "ttcp", true),
            ("?tcp", "tcp", false),
            ("tt[a-c]p", "ttcp", true),
            ("tt[!a-c]p", "ttcp", false),
            ("tt[^x]p", "ttcp", true),
            ("[]]", "]", true),
            ("[!]]", "]", false),
            ("[]a-]x", "-x", true),
            ("[a", "[a", true),
            ("[a", "a", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("[\\]]", "]", true),
            ("\\", "\\", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxcxxb", false),
            ("", "", true),
            ("", "x", false),
            ("-sh", "-sh", true),
            ("*.py", ".py", true),
            ("*/x", "a/x", true),
            ("a*", "a", true),
            ("**", "a", true),
        ] {
            assert_eq!(
                glob_match(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn long_input_is_bounded() {
        let name = [b'a'; 512];
        let pattern = "*a".repeat(255);
        assert!(glob_match(pattern.as_bytes(), &name));
        let mut no = pattern.into_bytes();
        no.push(b'b');
        assert!(!glob_match(&no, &name));
        assert!(!glob_match(b"*", &[b'a'; 513]));
    }

    #[test]
    fn coverage_is_never_claimed_wrongly() {
        assert!(covers(b"*", b"db2*"));
        assert!(covers(b"db2*", b"db2sysc"));
        assert!(covers(b"db2*", b"db2*"));
        assert!(!covers(b"db2sysc", b"db2*"));
        assert!(!covers(b"?", b"*"));
    }
}

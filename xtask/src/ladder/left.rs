//! What the gate leaves to `cargo xtask test --whole`: `tests/left-to-whole.txt`.
//!
//! A line is `NAME -- REASON`. Names of end-to-end tests are read by `tests/conftest.py`. A name
//! behind `unit ` is a part of the names of cargo's tests, which libtest is told to skip.

use crate::process::root;

/// The list, relative to the repository's top.
pub(super) const LIST: &str = "tests/left-to-whole.txt";

/// What a line about cargo's tests begins with.
const UNIT: &str = "unit ";

/// Parts of the names of cargo's tests that the gate skips.
pub(super) fn of_cargo() -> Result<Vec<String>, String> {
    let path = root().join(LIST);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text).map_err(|e| format!("{LIST}: {e}"))
}

fn parse(text: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (name, reason) = line.split_once(" -- ").unwrap_or((line, ""));
        if reason.trim().is_empty() {
            return Err(format!("no reason: {line}"));
        }
        names.extend(name.strip_prefix(UNIT).map(|name| name.trim().to_owned()));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_cargo_are_told_from_others() {
        let text = "# why\nunit long::play -- slow\ntests/a.py::test_b[*] -- the like is played\n";
        assert_eq!(parse(text), Ok(vec!["long::play".to_owned()]));
        assert!(parse("unit long::play\n").is_err() && parse("unit x -- \n").is_err());
    }

    #[test]
    fn each_line_about_cargos_tests_fits_one() {
        let mut texts = Vec::new();
        let mut folders = vec![root().join("crates"), root().join("xtask/src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                match path.extension() {
                    _ if path.is_dir() => folders.push(path),
                    Some(e) if e == "rs" => {
                        texts.push((path.clone(), std::fs::read_to_string(&path).unwrap()))
                    }
                    _ => {}
                }
            }
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        for name in of_cargo().unwrap() {
            // Functions, modules and files; a macro may make them of their names.
            let fits = name.split("::").filter(|part| !part.is_empty()).all(|part| {
                texts.iter().filter(|(path, _)| !path.ends_with("left.rs")).any(|(path, text)| {
                    path.file_stem().is_some_and(|stem| stem == part)
                        || text.split(|c| !is_name(c)).any(|word| word.contains(part))
                })
            });
            assert!(fits, "no test has {name} in its name");
        }
    }
}

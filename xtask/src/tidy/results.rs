//! The tables of results on the front page and in `docs/performance.md` say what the record says: each of their rows
//! is one of its section by users, with the same figures.

use std::path::Path;

use super::text_of;

const FRONTS: [(&str, &str); 2] =
    [("README.md", "## Measured"), ("docs/performance.md", "## Results by load")];
const RECORD: (&str, &str) = ("docs/measured/performance.md", "## 6 By users");
/// First cell of the tables that count.
const CASE: &str = "case";
/// Cells of a row: TCP, SDP, and the ratios of one user, two users, and root and a user.
const FIGURES: usize = 5;

/// A row's name and its figures.
type Row<'a> = (&'a str, Vec<&'a str>);

/// Each row of both pages is recorded.
pub(super) fn recorded() -> Result<Vec<String>, String> {
    let text = |name: &str| Ok::<_, String>(text_of(Path::new(name))?.unwrap_or_default());
    let record = text(RECORD.0)?;
    let mut findings = Vec::new();
    for front in FRONTS {
        findings.extend(differences(front, &text(front.0)?, &record));
    }
    Ok(findings)
}

fn differences((page, section): (&str, &str), front: &str, record: &str) -> Vec<String> {
    let (shown, recorded) = (rows(front, section), rows(record, RECORD.1));
    if shown.is_empty() {
        return vec![format!("{page}: no table of results in {section}")];
    }
    let mut findings = Vec::new();
    for (case, figures) in shown {
        match recorded.iter().find(|(of, _)| *of == case) {
            None => findings.push(format!("{}: no row {case}", RECORD.0)),
            Some((_, of_record)) if figures.len() != FIGURES || figures != *of_record => {
                let (here, there) = (figures.join(" | "), of_record.join(" | "));
                findings.push(format!("{page}: {case}: {here}, but {}: {there}", RECORD.0));
            }
            Some(_) => {}
        }
    }
    findings
}

/// The rows of a section's tables, with the last [`FIGURES`] cells of each.
fn rows<'a>(text: &'a str, section: &str) -> Vec<Row<'a>> {
    let of_section = text.lines().skip_while(|line| *line != section).skip(1);
    let lines = of_section.take_while(|line| !line.starts_with("## "));
    let mut found = Vec::new();
    let mut counts = false;
    for line in lines {
        let Some(inner) = line.strip_prefix('|').and_then(|rest| rest.strip_suffix('|')) else {
            counts = false;
            continue;
        };
        let mut cells = inner.split('|').map(str::trim);
        match cells.next() {
            Some(CASE) => counts = true,
            Some(name) if counts && !name.starts_with("---") => {
                let cells: Vec<_> = cells.map(figure).collect();
                let from = cells.len().saturating_sub(FIGURES);
                found.push((name, cells[from..].to_vec()));
            }
            _ => {}
        }
    }
    found
}

/// A cell without the interval, or range, and what stands behind it.
fn figure(cell: &str) -> &str {
    let end = [" [", " ("].iter().filter_map(|mark| cell.find(mark)).min();
    &cell[..end.unwrap_or(cell.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "## Measured\n\n| case | TCP | SDP | one | two | root |\n|---|---:|---:|---:|---:|---:|\n\
                         | a | 5 µs | 1 µs | 5.0 × | 4.9 × | |\n\nMissed.\n## Else\n| case | x |\n";

    fn record(row: &str) -> String {
        format!(
            "## 6 By users\n| | |\n|---|---|\n| a | no |\n\n| case | command | TCP | SDP | one | two | root |\n\
             |---|---|---:|---:|---:|---:|---:|\n{row}\n## 7\n| case | |\n| b | |\n"
        )
    }

    #[test]
    fn figures_are_compared_without_their_intervals() {
        let same = record("| a | `x` | 5 µs | 1 µs | 5.0 × [4–6], 0.1 | 4.9 × (4–5) | |");
        assert_eq!(differences(FRONTS[0], SHOWN, &same), Vec::<String>::new());
    }

    #[test]
    fn one_other_figure_and_a_row_that_is_not_there_are_found() {
        for row in [
            "| a | `x` | 5 µs | 1 µs | 5.1 × [4–6] | 4.9 × | |",
            "| a | `x` | 5 µs | 1 ms | 5.0 × [4–6] | 4.9 × | |",
            "| a | `x` | 5 µs | 1 µs | 5.0 × | 4.9 × | 2 × |",
            "| a | 5 µs | 1 µs | 5.0 × |",
            "| b | `x` | 5 µs | 1 µs | 5.0 × | 4.9 × | |",
        ] {
            assert_eq!(differences(FRONTS[0], SHOWN, &record(row)).len(), 1, "{row}");
        }
        assert_eq!(differences(FRONTS[0], "## Measured\nnone\n", &record("")).len(), 1);
    }
}

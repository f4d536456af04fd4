//! `docs/spec/libsdp-conf.md` names every tunable as it is and every diagnostic.

use sdp_config::tunables::KEYS;
use sdp_config::{Config, Problem, Severity};

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/libsdp-conf.md");
    std::fs::read_to_string(path).expect("the language is documented")
}

#[test]
fn every_tunable_is_listed_as_it_is() {
    let text = document();
    for k in &KEYS {
        let row = format!("| `{}` | `{}` | `{}` | {} |", k.name, k.env, k.default, k.range);
        assert!(text.contains(&row), "missing: {row}");
    }
    let rows = text.lines().filter(|l| l.contains("| `SDP_")).count();
    assert_eq!(rows, KEYS.len());
}

#[test]
fn every_diagnostic_is_listed() {
    let text = document();
    for problem in Problem::ALL {
        assert!(text.contains(&format!("`{}`", problem.code())), "missing: {}", problem.code());
    }
}

#[test]
fn every_example_is_read_without_a_diagnostic() {
    let text = document();
    let section = text.split("## 8. Examples").nth(1).expect("section 8");
    let examples = section.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next());
    let mut count = 0;
    for line in examples {
        let mut config = Box::new(Config::new());
        config.load_text(b"", format!("{line}\n").as_bytes());
        assert_eq!(config.diagnostics(), [], "{line}");
        count += 1;
    }
    assert_eq!(count, 9);
}

#[test]
fn errors_and_warnings_are_in_their_tables() {
    let text = document();
    let (warnings, errors) = text.split_once("Skipped, with an error:").expect("two tables");
    for problem in Problem::ALL {
        let part = if problem.severity() == Severity::Error { errors } else { warnings };
        assert!(part.contains(&format!("`{}`", problem.code())), "{}", problem.code());
    }
}

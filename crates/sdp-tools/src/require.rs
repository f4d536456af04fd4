//! `sdp run --require`: SDP or a failure, and the summary's lines on settings and reasons.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use sdp_stats::Reason;

use crate::program::{Loading, Program};
use crate::report::Report;
use crate::rules::{FILE_VARIABLE, Texts};
use crate::run::{Environment, RULES_VARIABLE};
use crate::{Failure, show};

/// Reasons that rules and tunables ask for: they are no failure.
const WANTED: [Reason; 2] = [Reason::RuleTcp, Reason::TooYoung];

/// Refuses a command that the library cannot be loaded into.
///
/// # Errors
/// It is one.
pub fn check_command(command: &Path) -> Result<(), Failure> {
    // A missing program is reported when it is started.
    let Ok(program) = Program::of(command) else { return Ok(()) };
    let why = match &program.loading {
        _ if program.is_foreign => "is of 32 bits or of another machine",
        _ if program.changes_user || program.has_capabilities => {
            "is set-id or has capabilities: the loader ignores what is preloaded"
        }
        _ if program.is_go => "is a Go program: it calls the kernel itself",
        Loading::Static => "is linked statically: nothing can be preloaded",
        Loading::Loader(loader) if loader.contains("ld-musl") => "uses musl",
        Loading::Loader(_) | Loading::Unknown => return Ok(()),
    };
    Err(Failure(format!("--require: {} {why}", program.path.display())))
}

/// Why a run has not met `--require`; one line each, empty if it has.
pub fn complaints(report: &Report) -> Vec<String> {
    let wanted = |word: &str| WANTED.iter().any(|reason| reason.word() == word);
    let mut lines: Vec<String> = report
        .reasons
        .iter()
        .filter(|(word, n)| **n > 0 && !wanted(word))
        .map(|(word, n)| format!("{n} on TCP: {word}{}", advice(word)))
        .collect();
    let by_rule = report.reasons.get(Reason::RuleTcp.word()).copied().unwrap_or(0);
    if report.connections.seen == 0 {
        lines.push("no connection was seen: it made none, or the library was not in it".into());
    } else if lines.is_empty() && report.connections.sdp == 0 && by_rule < report.connections.seen {
        let word = Reason::TooYoung.word();
        lines.push(format!("no connection came to SDP: {word}{}", advice(word)));
    }
    lines
}

/// `. The remedy.`, if there is one.
fn advice(word: &str) -> String {
    match Reason::from_word(word).map(Reason::advice) {
        Some(advice) if advice != "Nothing." => format!(". {advice}"),
        _ => String::new(),
    }
}

/// The rules of the library in the command: rules in front and the file's.
fn texts(env: &Environment) -> Option<Texts> {
    let of = |name: &str| {
        let own = env.set.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone());
        own.or_else(|| std::env::var_os(name))
    };
    let front = of(RULES_VARIABLE).unwrap_or_default();
    let front = std::os::unix::ffi::OsStringExt::into_vec(front);
    match of(FILE_VARIABLE) {
        Some(name) if name.is_empty() => Some(Texts::without_file(front)),
        Some(name) => Texts::load(front, Some(&PathBuf::from(name))).ok(),
        None => Texts::load(front, None).ok(),
    }
}

/// The end of a summary: settings that are not the default, and a remedy for each reason.
pub fn epilogue(report: &Report, env: &Environment, given: &[String]) -> String {
    let mut out = String::new();
    if let Some(texts) = texts(env) {
        let own = env.set.iter().cloned();
        let variables: Vec<(OsString, OsString)> = std::env::vars_os().chain(own).collect();
        let mut settings = Vec::new();
        if let Some(path) = &texts.path {
            settings.push(format!("rule file {}", path.display()));
        }
        let front = texts.config();
        let front = front.rules().iter().filter(|r| r.place.source == sdp_config::Source::Front);
        match front.count() {
            0 => {}
            n => {
                let rules = if n == 1 { "rule" } else { "rules" };
                settings.push(format!("{n} {rules} in front (--rule, --tcp, {RULES_VARIABLE})"));
            }
        }
        for tunable in show::tunables(&texts, variables.into_iter()) {
            if tunable.origin.kind == "default" {
                continue;
            }
            let is_given =
                given.iter().any(|g| g.split_once('=').is_some_and(|(k, _)| k == tunable.key));
            let origin = if is_given { "--set".to_string() } else { tunable.origin.to_string() };
            settings.push(format!("{}={} ({origin})", tunable.key, tunable.value));
        }
        for (nth, setting) in settings.iter().enumerate() {
            let head = if nth == 0 { "settings" } else { "" };
            let _ = writeln!(out, "  {head:<12} {setting}");
        }
    }
    let mut words: Vec<&String> = report.reasons.keys().chain(report.demotions.keys()).collect();
    words.sort();
    words.dedup();
    for (nth, word) in words.iter().enumerate() {
        let head = if nth == 0 { "what to do" } else { "" };
        let advice = Reason::from_word(word).map_or("", Reason::advice);
        let _ = writeln!(out, "  {head:<12} {word}: {advice}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::Collected;
    use crate::sys::Ended;

    fn report(sdp: i64, reasons: &[(Reason, i64)]) -> Report {
        let mut collected = Collected::default();
        collected.sums.sdp = sdp;
        collected.sums.seen = sdp + reasons.iter().map(|(_, n)| n).sum::<i64>();
        for (reason, n) in reasons {
            collected.sums.reasons[usize::from(reason.code())] = *n;
        }
        let ended = Ended { how: Ok(0), user_s: 0.0, system_s: 0.0 };
        Report::new(vec!["x".into()], &ended, 0.0, &collected)
    }

    #[test]
    fn what_rules_and_tunables_ask_for_is_no_failure() {
        assert!(complaints(&report(3, &[])).is_empty());
        assert!(complaints(&report(3, &[(Reason::TooYoung, 9), (Reason::RuleTcp, 2)])).is_empty());
        assert!(complaints(&report(0, &[(Reason::RuleTcp, 2)])).is_empty());
        assert_eq!(complaints(&report(0, &[(Reason::RuleTcp, 2), (Reason::TooYoung, 1)])).len(), 1);
        assert_eq!(complaints(&report(0, &[])).len(), 1);
        let all = complaints(&report(3, &[(Reason::PeerNotListening, 1), (Reason::Exec, 2)]));
        assert_eq!(all[0], "2 on TCP: exec");
        assert!(all[1].contains("Look at the other end"), "{all:?}");
    }

    #[test]
    fn commands_without_a_loader_are_refused() {
        assert!(check_command(&std::env::current_exe().unwrap()).is_ok());
        assert!(check_command(Path::new("no-such-command-anywhere")).is_ok());
    }
}

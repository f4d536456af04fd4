//! `sdp config show`: the settings in force here, and the source of each.
//!
//! Rules in the order in which they are tried, log settings and tunables, as a program that is
//! started in this environment would have them. The library's own crate reads the texts.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use sdp_config::tunables::{KEYS, Key, Tunables};
use sdp_config::{Config, LogDestination, Severity, Source};
use serde::Serialize;

use crate::Failure;
use crate::convert::{address, dialect, ports};
use crate::rules::Texts;
use crate::run::RULES_VARIABLE;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// `sdp config show …`
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The file (default: the one that programs would use)
    pub file: Option<PathBuf>,
}

/// Where something comes from. Field names are the JSON form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// `default`, `environment`, `file` or `front` (rules in front of the file's).
    pub kind: &'static str,
    /// The file, or the variable of the environment.
    pub name: Option<String>,
    /// The line in it, from 1.
    pub line: Option<u32>,
}

impl Origin {
    const DEFAULT: Self = Self { kind: "default", name: None, line: None };

    fn environment(variable: &str) -> Self {
        Self { kind: "environment", name: Some(variable.to_string()), line: None }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.kind, &self.name, self.line) {
            ("environment", Some(name), _) => write!(f, "environment: {name}"),
            (_, Some(name), Some(line)) => write!(f, "{name}:{line}"),
            (_, Some(name), None) => f.write_str(name),
            _ => f.write_str(self.kind),
        }
    }
}

#[derive(Debug, Serialize)]
struct RuleForm {
    role: &'static str,
    family: &'static str,
    program: String,
    address: String,
    ports: String,
    language: &'static str,
    origin: Origin,
}

#[derive(Debug, Serialize)]
struct LogForm {
    /// False: nothing is logged, because no statement asks for it.
    is_on: bool,
    min_level: u8,
    destination: String,
}

/// One tunable in force. Field names are the JSON form.
#[derive(Debug, Serialize)]
pub struct TunableForm {
    /// Name in the rule file.
    pub key: &'static str,
    /// The value in force.
    pub value: String,
    /// The value without any setting.
    pub default: &'static str,
    /// The source.
    pub origin: Origin,
}

#[derive(Debug, Serialize)]
struct Form {
    schema: u32,
    file: Option<String>,
    /// `SIMPLE_LIBSDP` is set: no file is read.
    is_simple: bool,
    rules: Vec<RuleForm>,
    /// The verdict for a socket that no rule matches.
    otherwise: &'static str,
    log: LogForm,
    tunables: Vec<TunableForm>,
    errors: usize,
    warnings: usize,
}

/// The tunable that a line sets, and its value; `None` for anything else, and for a value that
/// cannot be.
fn option(line: &[u8]) -> Option<(&'static Key, String)> {
    let mut config = Box::new(Config::new());
    config.load_text(line, b"");
    if config.diagnostics().iter().any(|d| d.severity() == Severity::Error) {
        return None;
    }
    let text = std::str::from_utf8(line).ok()?.trim_start();
    let rest = text.get(..6).filter(|w| w.eq_ignore_ascii_case("option")).map(|_| &text[6..])?;
    let (name, value) = rest.trim_start().split_once([' ', '\t'])?;
    let key = KEYS.iter().find(|k| k.name == name)?;
    Some((key, value.split('#').next().unwrap_or_default().trim().to_string()))
}

/// Every tunable with its value and origin: the environment's, else the file's, else the default.
pub fn tunables(
    texts: &Texts,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<TunableForm> {
    let default = |key: &'static Key| TunableForm {
        key: key.name,
        value: key.default.to_string(),
        default: key.default,
        origin: Origin::DEFAULT,
    };
    let mut all: Vec<TunableForm> = KEYS.iter().map(default).collect();
    let mut set = |key: &Key, value: String, origin: Origin| {
        if let Some(one) = all.iter_mut().find(|t| t.key == key.name) {
            (one.value, one.origin) = (value, origin);
        }
    };
    for (source, text) in [(Source::Front, &texts.front), (Source::File, &texts.file)] {
        for (at, line) in text.split(|b| *b == b'\n').enumerate() {
            if let Some((key, value)) = option(line.strip_suffix(b"\r").unwrap_or(line)) {
                set(key, value, origin(texts, source, at as u32 + 1));
            }
        }
    }
    for (name, value) in environment {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let entry = format!("{name}={value}");
        if let Some(Ok(())) = Tunables::DEFAULT.clone().set_from_env(entry.as_bytes())
            && let Some(key) = KEYS.iter().find(|k| k.env == name)
        {
            set(key, value.to_string(), Origin::environment(name));
        }
    }
    all
}

fn origin(texts: &Texts, source: Source, line: u32) -> Origin {
    let (kind, name) = match source {
        Source::Front => ("front", RULES_VARIABLE.to_string()),
        Source::File => ("file", texts.name(Source::File)),
    };
    Origin { kind, name: Some(name), line: Some(line) }
}

fn form(texts: &Texts, environment: impl Iterator<Item = (OsString, OsString)>) -> Form {
    let mut config = texts.config();
    config.check_reachability();
    let text = |t| String::from_utf8_lossy(config.text(t)).into_owned();
    let rules = config.rules().iter().map(|rule| RuleForm {
        role: rule.role.word(),
        family: rule.family.word(),
        program: text(rule.program),
        address: address(rule.address),
        ports: ports(rule.ports),
        language: dialect(rule.dialect),
        origin: origin(texts, rule.place.source, rule.place.line),
    });
    let count = |s| config.diagnostics().iter().filter(|d| d.severity() == s).count();
    Form {
        schema: SCHEMA,
        file: texts.path.as_ref().map(|p| p.display().to_string()),
        is_simple: texts.is_simple,
        rules: rules.collect(),
        otherwise: config.default_family().word(),
        log: LogForm {
            is_on: config.asks_for_log(),
            min_level: config.log().min_level,
            destination: match config.log().destination {
                LogDestination::Stderr => "stderr".to_string(),
                LogDestination::Syslog => "syslog".to_string(),
                LogDestination::File(name) => format!("file {}", text(name)),
            },
        },
        tunables: tunables(texts, environment),
        errors: count(Severity::Error),
        warnings: count(Severity::Warning),
    }
}

/// Without characters that could drive a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn text(form: &Form) -> String {
    let mut out = String::new();
    let _ = match (&form.file, form.is_simple) {
        (_, true) => writeln!(out, "rule file: none (SIMPLE_LIBSDP is set)"),
        (Some(file), _) => writeln!(out, "rule file: {file}"),
        (None, _) => writeln!(out, "rule file: none"),
    };
    if form.errors + form.warnings > 0 {
        let _ = writeln!(
            out,
            "           {} errors, {} warnings; see sdp config check",
            form.errors, form.warnings
        );
    }
    let _ = writeln!(out, "\nrules, of each role the first that matches:");
    for rule in &form.rules {
        let target = format!("{}:{}", rule.address, rule.ports);
        let _ = writeln!(
            out,
            "  {:<4} {:<6} {:<12} {:<24} {}",
            rule.family,
            rule.role,
            clean(&rule.program),
            target,
            rule.origin
        );
    }
    let _ = writeln!(out, "  {:<4} what no rule matches", form.otherwise);
    let log = &form.log;
    let _ = match log.is_on {
        true => writeln!(out, "\nlog: from level {} to {}", log.min_level, clean(&log.destination)),
        false => writeln!(out, "\nlog: none"),
    };
    let _ = writeln!(out, "\ntunables:");
    for tunable in &form.tunables {
        let _ =
            writeln!(out, "  {:<21} {:<12} {}", tunable.key, clean(&tunable.value), tunable.origin);
    }
    out
}

/// Runs the sub-command.
///
/// # Errors
/// The file cannot be read.
pub fn main(options: &Options) -> Result<(), Failure> {
    let front = std::env::var_os(RULES_VARIABLE).unwrap_or_default();
    let front = std::os::unix::ffi::OsStringExt::into_vec(front);
    let texts = Texts::load(front, options.file.as_deref())?;
    let form = form(&texts, std::env::vars_os());
    let out = match options.json {
        true => crate::json(&form)?,
        false => text(&form),
    };
    crate::print(&out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(front: &str, file: &str) -> Texts {
        Texts {
            front: front.into(),
            path: Some("/etc/x.conf".into()),
            file: file.into(),
            is_simple: false,
        }
    }

    #[test]
    fn everything_has_its_origin() {
        let texts = texts(
            "use tcp client * *:389\nlog min-level 7",
            "# head\noption recv_poll 700 # historic\nOPTION ring_bytes 65536\n\
             option promote_calls many\nmatch program db2*\n",
        );
        let environment = [("SDP_RECV_POLL", "5"), ("SDP_RING_BYTES", "7"), ("HOME", "/")];
        let form = form(&texts, environment.iter().map(|(k, v)| (k.into(), v.into())));
        let origins: Vec<_> = form.rules.iter().map(|r| r.origin.to_string()).collect();
        assert_eq!(origins, ["SDP_RULES:1", "/etc/x.conf:5", "/etc/x.conf:5"]);
        let of = |key: &str| {
            let one = form.tunables.iter().find(|t| t.key == key).unwrap();
            (one.value.clone(), one.origin.to_string())
        };
        assert_eq!(of("recv_poll"), ("5".into(), "environment: SDP_RECV_POLL".into()));
        assert_eq!(of("ring_bytes"), ("65536".into(), "/etc/x.conf:3".into()));
        assert_eq!(of("promote_calls"), ("16".into(), "default".into()));
        assert_eq!(form.otherwise, "tcp");
        assert_eq!((form.errors, form.log.is_on, form.log.min_level), (1, true, 7));
        let text = text(&form);
        assert!(text.contains("  sdp  client db2*         *:*"), "{text}");
    }
}

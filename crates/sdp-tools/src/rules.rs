//! `sdp config check` and `sdp explain`: the meaning of a rule file, in the library's own words.
//!
//! Both load the texts exactly as the library does and ask the same code, so that an explanation
//! cannot differ from behaviour.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sdp_config::tunables::{SetError, Tunables};
use sdp_config::{Config, Family, Match, Place, Role, Rule, Severity, Source};
use serde::Serialize;

use crate::Failure;
use crate::run::RULES_VARIABLE;

/// Version of the JSON form of an explanation.
pub const SCHEMA: u32 = 1;
/// Where the rule file is when nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/libsdp.conf";
/// Name of the environment variable that names another; empty: no rule file.
pub const FILE_VARIABLE: &str = "LIBSDP_CONFIG_FILE";

/// `sdp config …`
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Show every error and warning of a rule file, with place and hint; fails on errors
    Check {
        /// The file (default: the one that programs would use)
        file: Option<PathBuf>,
    },
    /// Show rules, log settings and tunables in force, and where each comes from
    Show(crate::show::Options),
    /// Write a rule file in the other of the two historic languages
    Convert(crate::convert::Options),
}

/// `sdp explain …`
#[derive(Debug, Clone, Args)]
pub struct ExplainOptions {
    /// The program listens on the address, instead of connecting to it
    #[arg(long)]
    pub server: bool,
    /// This rule file (default: the one that programs would use)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One more rule in front of the file's; repeatable
    #[arg(long, value_name = "RULE")]
    pub rule: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Short name of the program
    pub program: String,
    /// Address and port, as in 10.0.0.1:5432 or [::1]:5432
    #[arg(value_name = "ADDR:PORT")]
    pub address: String,
}

/// The texts that make a configuration.
#[derive(Debug)]
pub struct Texts {
    pub(crate) front: Vec<u8>,
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: Vec<u8>,
    pub(crate) is_simple: bool,
}

/// The rule file that programs started here would use.
fn usual_file() -> Option<PathBuf> {
    match std::env::var_os(FILE_VARIABLE) {
        Some(name) if name.is_empty() => None,
        Some(name) => Some(name.into()),
        None => Some(PathBuf::from(DEFAULT_FILE)).filter(|p| p.exists()),
    }
}

/// A rule file's content. Like the library, reads regular files only: a pipe would hang, in every
/// process that opens it.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    regular(path).and_then(|mut file| {
        let mut text = Vec::new();
        let end = file.read_to_end(&mut text);
        end.map(|_| text).map_err(|e| Failure::new(path.display(), e))
    })
}

/// Opens a rule file that the library would read too.
///
/// # Errors
/// It cannot be opened, or is not a regular file (`/dev/null` passes for an empty one).
pub fn regular(path: &Path) -> Result<File, Failure> {
    let failed = |e: std::io::Error| Failure::new(path.display(), e);
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(failed)?;
    let is_usable = file.metadata().map_err(failed)?.is_file() || path == Path::new("/dev/null");
    if is_usable { Ok(file) } else { Err(Failure::new(path.display(), "not a regular file")) }
}

impl Texts {
    /// Those in front, and those of `file` or of the usual one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load(front: Vec<u8>, file: Option<&Path>) -> Result<Self, Failure> {
        let is_simple = file.is_none()
            && ["SIMPLE_LIBSDP", "ALWAYS_USE_SDP"]
                .iter()
                .any(|name| std::env::var_os(name).is_some());
        let path = file.map(Path::to_path_buf).or_else(|| usual_file().filter(|_| !is_simple));
        let file = match &path {
            Some(path) => read(path)?,
            None => Vec::new(),
        };
        Ok(Self { front, path, file, is_simple })
    }

    /// Rules in front, and no file.
    pub fn without_file(front: Vec<u8>) -> Self {
        Self { front, path: None, file: Vec::new(), is_simple: false }
    }

    pub(crate) fn config(&self) -> Box<Config> {
        let mut config = Box::new(Config::new());
        config.load_text(&self.front, &self.file);
        if self.is_simple {
            config.set_simple();
        }
        config
    }

    /// The line of a place, without its end.
    fn line(&self, place: Place) -> String {
        let text = match place.source {
            Source::Front => &self.front,
            Source::File => &self.file,
        };
        let at = (place.line as usize).saturating_sub(1);
        let line = text.split(|b| *b == b'\n').nth(at).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Terminals must not be driven by a file's content.
        let clean = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
        String::from_utf8_lossy(line).chars().map(clean).collect()
    }

    /// `FILE` or `rules in front`.
    pub(crate) fn name(&self, source: Source) -> String {
        match (source, &self.path) {
            (Source::Front, _) => "rules in front".to_string(),
            (Source::File, Some(path)) => path.display().to_string(),
            (Source::File, None) => "no rule file".to_string(),
        }
    }
}

/// Why no rule file counts.
const SIMPLE: &str = "SIMPLE_LIBSDP is set: no rule file is read";

/// The meaning of `sdp` for servers; `what` has it.
fn strict_note(what: &str) -> String {
    format!(
        "note: {what}: clients that can have no SDP lane are reset when they are accepted; the report \
         and `sdp stat` count them with the reason. For both kinds of clients: use both server [strict-server]\n"
    )
}

/// The meaning of `sdp` for clients.
fn strict_client_note(what: &str) -> String {
    format!(
        "note: {what}: connect fails where no SDP lane can be had (ECONNREFUSED, ENETUNREACH); the report \
         and `sdp stat` count it with the reason. To go on over TCP: use both client [strict-client]\n"
    )
}

// ---- config check ------------------------------------------------------------------------------

/// Longest piece of a line that is shown.
const SHOWN: usize = 160;

/// Every diagnostic with its place; how many errors and warnings there are.
pub(crate) fn render(texts: &Texts, config: &Config) -> (String, usize, usize) {
    let mut out = String::new();
    let (mut errors, mut warnings) = (0, 0);
    for d in config.diagnostics() {
        let kind = match d.severity() {
            Severity::Error => {
                errors += 1;
                "error"
            }
            Severity::Warning => {
                warnings += 1;
                "warning"
            }
        };
        let Place { source, line, column, len } = d.place;
        let _ = writeln!(
            out,
            "{}:{line}:{column}: {kind}: {} [{}]",
            texts.name(source),
            d.problem.message(),
            d.problem.code()
        );
        let shown: String = texts.line(d.place).chars().take(SHOWN).collect();
        let at = usize::from(column).saturating_sub(1).min(SHOWN);
        // Tabs stay tabs, so that the mark stands under its place.
        let lead: String = shown
            .chars()
            .chain(std::iter::repeat(' '))
            .take(at)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let mark = "^".repeat(usize::from(len).clamp(1, SHOWN.saturating_sub(at).max(1)));
        let _ = writeln!(out, "  | {shown}\n  | {lead}{mark}\n  = {}", d.problem.help());
    }
    if config.dropped_diagnostics() > 0 {
        let _ = writeln!(out, "… and {} more", config.dropped_diagnostics());
    }
    (out, errors, warnings)
}

/// Runs `sdp config check`; the result is whether there are no errors.
///
/// # Errors
/// The file cannot be read.
pub fn check(file: Option<&Path>) -> Result<bool, Failure> {
    let texts = Texts::load(Vec::new(), file)?;
    let (environment, bad_values) = environment(std::env::vars_os());
    crate::print(&environment);
    let Some(path) = &texts.path else {
        crate::print(&match texts.is_simple {
            true => format!(
                "{SIMPLE}; sdp for everything\n{}{}",
                strict_note("sdp server"),
                strict_client_note("sdp client")
            ),
            false => "no rule file: both for everything\n".to_string(),
        });
        return Ok(bad_values == 0);
    };
    let mut config = texts.config();
    config.check_reachability();
    let (mut out, errors, warnings) = render(&texts, &config);
    let rules = config.rules().len();
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let _ = writeln!(
        out,
        "{}: {}, {}, {}; what no rule matches gets {}",
        path.display(),
        plural(rules, "rule"),
        plural(errors, "error"),
        plural(warnings, "warning"),
        config.default_family().word()
    );
    for (role, note) in
        [(Role::Server, strict_note as fn(&str) -> String), (Role::Client, strict_client_note)]
    {
        let is_strict = |r: &&Rule| r.family == Family::Sdp && r.role == role;
        let strict: Vec<_> = config.rules().iter().filter(is_strict).collect();
        if let Some(first) = strict.first() {
            let name = texts.name(first.place.source);
            let what =
                format!("{} (first {name}:{})", plural(strict.len(), "rule"), first.place.line);
            out += &note(&what);
        }
    }
    crate::print(&out);
    Ok(errors + bad_values == 0)
}

/// Variables of ours that are no tunables.
const OTHER_VARIABLES: [&str; 4] =
    [RULES_VARIABLE, crate::run::LIBRARY_VARIABLE, crate::collect::VARIABLE, "SDP_DLOPEN_DEEPBIND"];

/// Mistakes in tunables of the environment, which the library reports only if a log was asked for.
/// The number is that of values without effect.
fn environment(
    variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> (String, usize) {
    let (mut out, mut bad) = (String::new(), 0);
    for (name, value) in variables {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if !name.starts_with("SDP_") || OTHER_VARIABLES.contains(&&*name) {
            continue;
        }
        let entry = format!("{name}={value}");
        match Tunables::DEFAULT.clone().set_from_env(entry.as_bytes()) {
            Some(Ok(())) => {}
            Some(Err(SetError::BadValue(key))) => {
                bad += 1;
                let _ =
                    writeln!(out, "environment: error: {entry:?}: {} takes {}", name, key.range);
            }
            Some(Err(SetError::UnknownKey)) | None => {
                let _ = writeln!(out, "environment: warning: {name}: no tunable has this name");
            }
        }
    }
    (out, bad)
}

// ---- explain -----------------------------------------------------------------------------------

/// One rule that was looked at.
#[derive(Debug, Serialize)]
struct Step {
    file: String,
    line: u32,
    rule: String,
    result: &'static str,
}

/// The JSON form of an explanation.
#[derive(Debug, Serialize)]
struct Explanation {
    schema: u32,
    /// `sdp`, `tcp` or `both`.
    verdict: &'static str,
    /// The value as the library of this version uses it: `sdp`, `tcp` or `both`.
    effective: &'static str,
    /// File of the deciding rule; null when none decided or it came from the command line.
    file: Option<String>,
    line: Option<u32>,
    rule: Option<String>,
    /// Rules of the role in the order in which they were tried.
    trace: Vec<Step>,
}

const fn result_word(result: Match) -> &'static str {
    match result {
        Match::Yes => "matches",
        Match::Role => "other role",
        Match::Program => "other program",
        Match::Port => "other port",
        Match::Address => "other address",
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, Failure> {
    let bare_v6 = || {
        let (host, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(IpAddr::V6(host.parse().ok()?), port.parse().ok()?))
    };
    text.parse().ok().or_else(bare_v6).ok_or_else(|| {
        Failure::new(text, "not an address and port; write 10.0.0.1:5432 or [::1]:5432")
    })
}

fn explanation(texts: &Texts, program: &str, role: Role, address: SocketAddr) -> Explanation {
    let config = texts.config();
    let octets = match address.ip() {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    let verdict = config.evaluate(role, program.as_bytes(), octets, address.port());
    let mut trace = Vec::new();
    for (number, rule) in config.rules().iter().enumerate() {
        let result = config.judge(rule, role, program.as_bytes(), octets, address.port());
        if result != Match::Role {
            trace.push(Step {
                file: texts.name(rule.place.source),
                line: rule.place.line,
                rule: texts.line(rule.place).trim().to_string(),
                result: result_word(result),
            });
        }
        if verdict.rule == Some(number) {
            break;
        }
    }
    Explanation {
        schema: SCHEMA,
        verdict: verdict.family.word(),
        effective: verdict.family.word(),
        file: verdict.place.map(|p| texts.name(p.source)),
        line: verdict.place.map(|p| p.line),
        rule: verdict.place.map(|p| texts.line(p).trim().to_string()),
        trace,
    }
}

/// Runs `sdp explain`.
///
/// # Errors
/// The address or the file is unusable.
pub fn explain(options: &ExplainOptions) -> Result<(), Failure> {
    let address = parse_address(&options.address)?;
    let mut front = options.rule.join("\n");
    if let Some(outer) = std::env::var(RULES_VARIABLE).ok().filter(|v| !v.is_empty()) {
        front = if front.is_empty() { outer } else { front + "\n" + &outer };
    }
    let texts = Texts::load(front.into_bytes(), options.config.as_deref())?;
    let role = if options.server { Role::Server } else { Role::Client };
    let e = explanation(&texts, &options.program, role, address);
    if options.json {
        let json = serde_json::to_string_pretty(&e);
        crate::print(&(json.map_err(|e| Failure::new("no JSON form", e))? + "\n"));
        return Ok(());
    }
    let does = if options.server { "listening on" } else { "connecting to" };
    let mut out = format!("{} {does} {address}: {}\n", options.program, e.verdict);
    for step in &e.trace {
        let _ = writeln!(out, "  {}:{}: {:<14} {}", step.file, step.line, step.result, step.rule);
    }
    if e.rule.is_none() {
        let why = if texts.is_simple { SIMPLE } else { "no rule matches" };
        let _ = writeln!(out, "  {}: {why}", texts.name(Source::File));
    }
    if e.effective != Family::Tcp.word() && !address.ip().is_loopback() {
        let mut tunables = *texts.config().tunables();
        for (name, value) in std::env::vars_os() {
            let entry = format!("{}={}", name.to_string_lossy(), value.to_string_lossy());
            let _ = tunables.set_from_env(entry.as_bytes());
        }
        let prospect = crate::doctor::containers::prospect(&tunables);
        let _ =
            writeln!(out, "  where the other end is in another container of this host: {prospect}");
    }
    if e.effective == Family::Sdp.word() {
        out += &if options.server {
            strict_note("sdp server")
        } else {
            strict_client_note("sdp client")
        };
    }
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
    fn explanations_name_the_rule() {
        let texts = texts(
            "use tcp client * *:389",
            "# head\nuse sdp server * *:*\n  use sdp client java 10.0.0.0/8:*\n",
        );
        let at = |text: &str| parse_address(text).unwrap();
        let e = explanation(&texts, "java", Role::Client, at("10.1.2.3:1521"));
        assert_eq!((e.verdict, e.effective, e.line), ("sdp", "sdp", Some(3)));
        assert_eq!(e.file.as_deref(), Some("/etc/x.conf"));
        assert_eq!(e.rule.as_deref(), Some("use sdp client java 10.0.0.0/8:*"));
        assert_eq!(e.trace.len(), 2);
        assert_eq!(e.trace[0].result, "other port");
        assert_eq!(e.trace[1].result, "matches");
        let e = explanation(&texts, "java", Role::Client, at("[fe80::1]:1"));
        assert_eq!((e.verdict, e.line, e.trace.len()), ("both", None, 2));
        assert_eq!(e.trace[1].result, "other address");
        let e = explanation(&texts, "x", Role::Client, at("1.2.3.4:389"));
        assert_eq!((e.verdict, e.file.as_deref()), ("tcp", Some("rules in front")));
    }

    #[test]
    fn addresses_are_written_either_way() {
        assert!(parse_address("[::1]:80").is_ok());
        assert_eq!(parse_address("::1:80").unwrap(), parse_address("[::1]:80").unwrap());
        for bad in ["", "host:80", "10.0.0.1", "10.0.0.1:99999"] {
            assert!(parse_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_values_in_the_environment_are_told() {
        let entry = |name: &str, value: &str| (name.into(), value.into());
        let entries = [
            entry("SDP_RECV_POLL", "soon"),
            entry("SDP_RING_BYTES", "65536"),
            entry("SDP_POLL_RECV", "1"),
            entry("SDP_REPORT", "a;b;c"),
            entry("HOME", "/"),
        ];
        let (out, bad) = environment(entries.into_iter());
        assert_eq!((out.lines().count(), bad), (2, 1), "{out}");
        assert!(out.contains("SDP_RECV_POLL takes adaptive"), "{out}");
        assert!(out.contains("SDP_POLL_RECV: no tunable"), "{out}");
    }

    #[test]
    fn marks_stand_under_their_place() {
        let texts = texts("", "\tuse sdp client * *:70000\n\x1b[2J\n");
        let config = texts.config();
        let (out, errors, warnings) = render(&texts, &config);
        assert_eq!((errors, warnings), (2, 0));
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines[0], "/etc/x.conf:1:21: error: a port above 65535 [port-too-big]");
        assert_eq!(lines[1], "  | \tuse sdp client * *:70000");
        assert_eq!(lines[2], "  | \t                   ^^^^^");
        assert!(!out.contains('\x1b'));
    }
}

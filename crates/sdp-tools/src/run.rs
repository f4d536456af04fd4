//! `sdp run`: starts a program with the library in front.
//!
//! Stays the parent, hands signals on, and ends as the command ended (128 + N for signal N; 125 when
//! it failed itself, 126 when the command cannot be executed, 127 when it was not found). A report that cannot be
//! written once the command has ended is said on stderr, and changes nothing of that. It adds no
//! output of its own unless asked for a summary or a report, and leaves nothing behind.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use sdp_config::tunables::{SetError, Tunables};
use sdp_config::{Config, Severity};

use crate::Failure;
use crate::collect::{self, Collected, Collector};
use crate::elf;
use crate::report::Report;
use crate::sys::{self, Ended};
use crate::{require, scrape, trace};

/// Name of the environment variable with rules in front of the file's, one per line.
pub const RULES_VARIABLE: &str = "SDP_RULES";
/// Name of the environment variable that overrides where the library is.
pub const LIBRARY_VARIABLE: &str = "SDP_LIBRARY";
/// Bytes of rules in front of the file's that the library takes over.
const MAX_RULES_TEXT: usize = 16_384 - 1;
/// Name of the library's file.
const LIBRARY: &str = "libsdp.so";
/// Its name for the loader, by which packages install it.
pub const SONAME: &str = "libsdp.so.1";

/// Exit status when `--require` was not met: the command would not have the library, or ended well
/// but a connection that the rules want on SDP stayed on TCP.
pub const NOT_SDP: i32 = 123;
/// Exit status when `sdp run` itself failed.
pub const FAILED: i32 = 125;
/// Exit status when the command could not be executed.
pub const NOT_EXECUTABLE: i32 = 126;
/// Exit status when the command was not found.
pub const NOT_FOUND: i32 = 127;

/// Options of `sdp run`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Use this rule file instead of the usual search
    #[arg(long, value_name = "FILE", conflicts_with = "no_config")]
    pub config: Option<PathBuf>,
    /// Use no rule file: both for everything
    #[arg(long)]
    pub no_config: bool,
    /// One more rule in front of the file's, as in 'use sdp client * *:5432'; repeatable
    #[arg(long, value_name = "RULE")]
    pub rule: Vec<String>,
    /// Load the library, but let every rule answer tcp: the honest baseline
    #[arg(long)]
    pub tcp: bool,
    /// Set a tunable; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// At the end, print a table to stderr: connections, lanes, bytes, reasons
    #[arg(long)]
    pub summary: bool,
    /// At the end, write the same as JSON to a file, - for stdout
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Fail with status 123 unless the connections that the rules want on SDP came to it
    #[arg(long, conflicts_with = "tcp")]
    pub require: bool,
    /// At the end, write the counters to a file in the text format of Prometheus
    #[arg(long, value_name = "FILE")]
    pub prometheus_file: Option<PathBuf>,
    /// Keep the last events of processes that ended without saying so, for `sdp stat --trace`; in a folder that is
    /// that command's unless another one is given
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub trace: Option<Option<PathBuf>>,
    /// Log from this level (1 all to 9 errors) to stderr, syslog or a file
    #[arg(long, value_name = "LEVEL[:DEST]")]
    pub log: Option<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The environment of the command, made from the options.
#[derive(Debug, Default)]
pub struct Environment {
    /// Variables to set.
    pub set: Vec<(OsString, OsString)>,
}

impl Environment {
    /// From the options, checking everything that can be checked before the command runs.
    ///
    /// # Errors
    /// A rule, tunable, log setting or file that is unusable; the library is missing.
    pub fn new(options: &Options) -> Result<Self, Failure> {
        let mut env = Self::default();
        let library = find_library()?;
        env.put("LD_PRELOAD", preload(&library, std::env::var_os("LD_PRELOAD"))?);
        if let Some(value) = asan_options(options.command.first()) {
            env.put(ASAN_VARIABLE, value);
        }
        if let Some(rules) = rules(options)? {
            env.put(RULES_VARIABLE, rules.into());
        }
        if options.no_config {
            env.put("LIBSDP_CONFIG_FILE", OsString::new());
        } else if let Some(file) = &options.config {
            env.put("LIBSDP_CONFIG_FILE", readable(file)?.into_os_string());
        }
        for setting in &options.set {
            let (name, value) = tunable(setting)?;
            if name != crate::collect::VARIABLE {
                env.put(name, value.into());
            }
        }
        Ok(env)
    }

    /// For `sdp perf`: the library, no rule file, and these tunables.
    ///
    /// # Errors
    /// A tunable is unusable; the library is missing.
    pub fn for_measuring(settings: &[String]) -> Result<Self, Failure> {
        let mut env = Self::default();
        env.put("LD_PRELOAD", find_library()?.into_os_string());
        env.put("LIBSDP_CONFIG_FILE", OsString::new());
        for setting in settings {
            let (name, value) = tunable(setting)?;
            env.put(name, value.into());
        }
        Ok(env)
    }

    fn put(&mut self, name: &str, value: OsString) {
        self.set.push((name.into(), value));
    }
}

/// The library beside the executable, in a `lib*` directory next to its own, or where
/// `SDP_LIBRARY` says.
///
/// # Errors
/// There is none.
pub fn find_library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|v| !v.is_empty()) {
        return std::fs::canonicalize(&path).map_err(|e| {
            Failure::new(format_args!("{LIBRARY_VARIABLE}={}", Path::new(&path).display()), e)
        });
    }
    let exe = std::env::current_exe().map_err(|e| Failure::new("cannot find my own file", e))?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let mut places = vec![beside.to_path_buf()];
    let mut siblings = directories(beside.parent().unwrap_or(beside));
    siblings.retain(|p| p.file_name().is_some_and(|n| n.as_bytes().starts_with(b"lib")));
    for lib in siblings {
        // `lib/sdp`, `lib/x86_64-linux-gnu`, …
        let below = directories(&lib);
        places.push(lib);
        places.extend(below);
    }
    places.iter().map(|place| place.join(LIBRARY)).find(|path| path.is_file()).ok_or_else(|| {
        Failure(format!(
            "{LIBRARY} is neither in {} nor in a lib directory next to it; build it with \
             `cargo xtask build`, or set {LIBRARY_VARIABLE}",
            beside.display()
        ))
    })
}

fn directories(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.map(|e| e.path()).filter(|p| p.is_dir()).collect();
    found.sort();
    found
}

/// Beginnings of the names of libraries that have to be the first of all, and check it: they end
/// the program otherwise, or miss calls of libraries before them.
const FIRST: [&str; 9] = [
    "libasan.so",
    "libhwasan.so",
    "liblsan.so",
    "libtsan.so",
    "libclang_rt.asan",
    "libclang_rt.hwasan",
    "libclang_rt.lsan",
    "libclang_rt.msan",
    "libclang_rt.tsan",
];

/// Whether a library is the runtime of a sanitizer.
fn is_first(path: &[u8]) -> bool {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    FIRST.iter().any(|first| name.starts_with(first.as_bytes()))
}

/// The value of `LD_PRELOAD`: the library, then the libraries that were there. Before it those that
/// demand that.
fn preload(library: &Path, before: Option<OsString>) -> Result<OsString, Failure> {
    let name = library.as_os_str();
    // The loader splits at blanks and colons and knows no quoting.
    if name.as_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'\t' | b'\n')) {
        let why = "the loader cannot preload a path with blanks or colons";
        return Err(Failure::new(library.display(), why));
    }
    let before = before.unwrap_or_default();
    let others: Vec<&[u8]> = before
        .as_bytes()
        .split(|b| matches!(b, b' ' | b':'))
        .filter(|other| !other.is_empty() && *other != name.as_bytes())
        .collect();
    let (first, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|other| is_first(other));
    let all: Vec<_> = [first, vec![name.as_bytes()], others].concat();
    Ok(OsString::from_vec(all.join(&b':')))
}

/// Name of the variable with AddressSanitizer's options.
const ASAN_VARIABLE: &str = "ASAN_OPTIONS";

/// The value of `ASAN_OPTIONS` for a command that is linked with AddressSanitizer's shared runtime, which would not start
/// behind a preloaded library. `None`: nothing is to be said.
fn asan_options(command: Option<&OsString>) -> Option<OsString> {
    const OPTION: &str = "verify_asan_link_order";
    let file = elf::find(command?)?;
    let needed = elf::needed(&file)?;
    if !needed.iter().any(|name| is_first(name)) {
        return None;
    }
    let mut value = std::env::var_os(ASAN_VARIABLE).unwrap_or_default();
    if value.to_string_lossy().contains(OPTION) {
        return None;
    }
    if !value.is_empty() {
        value.push(":");
    }
    value.push(format!("{OPTION}=0"));
    Some(value)
}

fn rules(options: &Options) -> Result<Option<String>, Failure> {
    let mut lines: Vec<String> = Vec::new();
    if let Some(log) = &options.log {
        lines.push(log_statement(log)?);
    }
    if options.tcp {
        lines.push("use tcp server * *:*".into());
        lines.push("use tcp client * *:*".into());
    }
    // Its variable names the place where a collector takes pages in.
    for setting in &options.set {
        let (name, value) = tunable(setting)?;
        if name == crate::collect::VARIABLE {
            lines.push(format!("option report {value}"));
        }
    }
    for rule in &options.rule {
        if rule.contains('\n') {
            return Err(Failure::new(format_args!("--rule {rule:?}"), "one rule per option"));
        }
        check_rule(rule)?;
        lines.push(rule.clone());
    }
    if lines.is_empty() {
        return Ok(None); // an outer `sdp run`'s rules stay
    }
    // Under another `sdp run`: its rules come behind ours.
    if let Some(outer) = std::env::var(RULES_VARIABLE).ok().filter(|v| !v.is_empty()) {
        lines.push(outer);
    }
    let text = lines.join("\n");
    if text.len() > MAX_RULES_TEXT {
        return Err(Failure(format!("--rule: more than {MAX_RULES_TEXT} bytes; use --config")));
    }
    Ok(Some(text))
}

fn check_rule(rule: &str) -> Result<(), Failure> {
    let mut config = Box::new(Config::new());
    config.load_text(rule.as_bytes(), b"");
    match config.diagnostics().iter().find(|d| d.severity() == Severity::Error) {
        Some(d) => {
            let help = d.problem.help();
            let why = format_args!("column {}: {}; {help}", d.place.column, d.problem.message());
            Err(Failure::new(format_args!("--rule {rule:?}"), why))
        }
        None => Ok(()),
    }
}

/// `LEVEL[:DEST]` as a log statement.
fn log_statement(text: &str) -> Result<String, Failure> {
    let (level, destination) = text.split_once(':').unwrap_or((text, "stderr"));
    let destination = match destination {
        "stderr" | "syslog" => destination.to_string(),
        file => format!("file {}", file.strip_prefix("file:").unwrap_or(file)),
    };
    let statement = format!("log min-level {level} destination {destination}");
    let bad = |why: &str| Err(Failure::new(format_args!("--log {text:?}"), why));
    match level.parse::<u8>() {
        Ok(1..=9) => {}
        _ => return bad("the level is a number from 1 (all) to 9 (errors only)"),
    }
    if destination.trim_end() == "file"
        || destination[5.min(destination.len())..].contains(char::is_whitespace)
    {
        return bad("the destination is stderr, syslog or a file name without blanks");
    }
    Ok(statement)
}

/// `KEY=VALUE` as an environment entry.
pub(crate) fn tunable(setting: &str) -> Result<(&'static str, String), Failure> {
    let bad = |why: String| Failure::new(format_args!("--set {setting:?}"), why);
    let Some((key, value)) = setting.split_once('=') else {
        return Err(bad("write KEY=VALUE".into()));
    };
    match Tunables::DEFAULT.clone().set(key.as_bytes(), value.as_bytes()) {
        Ok(()) => {}
        Err(SetError::BadValue(key)) => {
            return Err(bad(format!("{} takes {}", key.name, key.range)));
        }
        Err(SetError::UnknownKey) => {
            let names: Vec<_> = sdp_config::tunables::KEYS.iter().map(|k| k.name).collect();
            return Err(bad(format!("no such tunable; there are {}", names.join(", "))));
        }
    }
    let known = sdp_config::tunables::KEYS.iter().find(|k| k.name == key);
    known.map(|k| (k.env, value.to_string())).ok_or_else(|| bad("no such tunable".into()))
}

/// An absolute path of a file that can be read now.
fn readable(file: &Path) -> Result<PathBuf, Failure> {
    let what = || format!("--config {}", file.display());
    crate::rules::regular(file).map_err(|Failure(why)| Failure(format!("--config {why}")))?;
    std::path::absolute(file).map_err(|e| Failure::new(what(), e))
}

/// Where the report goes; opened before the command starts, so that a bad path fails early.
enum Destination {
    Stdout,
    File(File, PathBuf),
}

impl Destination {
    fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file =
            file.map_err(|e| Failure::new(format_args!("--report {}", path.display()), e))?;
        Ok(Self::File(file, path.to_path_buf()))
    }

    fn write(self, report: &Report) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(report)
            .map_err(|e| Failure::new("the report has no JSON form", e))?;
        text.push('\n');
        let (result, name) = match self {
            Self::Stdout => (io::stdout().write_all(text.as_bytes()), "-".to_string()),
            Self::File(mut file, path) => (
                // A device or pipe has no length to cut.
                file.set_len(0).or(Ok(())).and_then(|()| file.write_all(text.as_bytes())),
                path.display().to_string(),
            ),
        };
        result.map_err(|e| Failure::new(format_args!("--report {name}"), e))
    }
}

/// Where the last scrape goes: into a file beside its place, which takes that place when it is
/// whole, as a collector of text files wants it.
struct Scrape {
    file: File,
    beside: PathBuf,
    path: PathBuf,
}

impl Scrape {
    fn failure(path: &Path, e: io::Error) -> Failure {
        Failure::new(format_args!("--prometheus-file {}", path.display()), e)
    }

    fn open(path: &Path) -> Result<Self, Failure> {
        let mut name = path.as_os_str().to_os_string();
        name.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(name);
        let file = File::options().write(true).create_new(true).open(&beside);
        let file = file.map_err(|e| Self::failure(path, e))?;
        Ok(Self { file, beside, path: path.to_path_buf() })
    }

    fn write(mut self, report: &Report) -> Result<(), Failure> {
        let text = scrape::of_report(report);
        let written = self.file.write_all(text.as_bytes());
        let placed = written.and_then(|()| std::fs::rename(&self.beside, &self.path));
        placed.map_err(|e| Self::failure(&self.path, e))
    }
}

impl Drop for Scrape {
    fn drop(&mut self) {
        // Gone already where it took its place.
        let _ = std::fs::remove_file(&self.beside);
    }
}

/// Why the command did not start.
#[derive(Debug)]
pub enum Start {
    /// 127.
    NotFound(io::Error),
    /// 126.
    NotExecutable(io::Error),
    /// 125.
    Failed(Failure),
}

/// Runs a command with `env` and a collector; returns how it ended and the collected pages.
///
/// # Errors
/// The command could not be started.
pub fn run_collected(
    command: &[OsString],
    env: &Environment,
    wanted: bool,
    keep: Option<PathBuf>,
) -> Result<(Ended, f64, Collected), Start> {
    let failed = |what: &str, e: io::Error| Start::Failed(Failure::new(what, e));
    // Before any thread exists: only this one takes the signals.
    let mask = sys::block_forwarded();
    let collector = wanted.then(|| Collector::start_keeping(true, keep)).transpose();
    let collector = collector.map_err(|e| failed("cannot listen for counters", e))?;
    let Some((program, arguments)) = command.split_first() else {
        return Err(Start::Failed(Failure("no command".into())));
    };
    let mut child = Command::new(program);
    child.args(arguments).envs(env.set.iter().map(|(k, v)| (k, v)));
    match &collector {
        Some(collector) => child.env(collect::VARIABLE, collector.address()),
        // An outer run's collector would count a run that was not asked for, so it stays.
        None => &mut child,
    };
    sys::before_exec(&mut child, move || {
        sys::restore_mask(&mask);
        Ok(())
    });
    let started = Instant::now();
    let child = child.spawn();
    let result = match child {
        Ok(child) => supervise(child.id()).map_err(|e| failed("cannot wait for the command", e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Start::NotFound(e)),
        Err(e) => Err(match e.raw_os_error() {
            Some(
                libc::EACCES
                | libc::ENOEXEC
                | libc::EISDIR
                | libc::ETXTBSY
                | libc::ELOOP
                | libc::ENOTDIR
                | libc::EPERM
                | libc::E2BIG
                | libc::ENAMETOOLONG,
            ) => Start::NotExecutable(e),
            _ => failed("cannot start the command", e),
        }),
    };
    let wall_s = started.elapsed().as_secs_f64();
    let collected = collector.map(Collector::finish).unwrap_or_default();
    sys::restore_mask(&mask);
    result.map(|ended| (ended, wall_s, collected))
}

/// Hands signals on until the child has ended.
fn supervise(pid: u32) -> io::Result<Ended> {
    loop {
        let signal = sys::wait_signal();
        if signal.number == libc::SIGCHLD {
            if let Some(ended) = sys::reap(pid)? {
                return Ok(ended);
            }
        } else {
            // A terminal sends its signals to the command as well.
            if signal.is_from_user {
                sys::kill(pid, signal.number);
            }
            if signal.number == libc::SIGTSTP {
                sys::kill(std::process::id(), libc::SIGSTOP);
            }
        }
    }
}

/// Runs the sub-command; the result is the exit status.
pub fn main(options: &Options) -> i32 {
    match start(options) {
        Ok(status) => status,
        Err(why) => {
            let command = options.command.first().map(|c| c.clone().into_vec()).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).into_owned();
            let (text, status) = match why {
                Start::NotFound(e) => (format!("{command}: {e}"), NOT_FOUND),
                Start::NotExecutable(e) => (format!("{command}: {e}"), NOT_EXECUTABLE),
                Start::Failed(failure) => (failure.to_string(), FAILED),
            };
            say(&text);
            status
        }
    }
}

/// On stderr, which may be closed or full.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "sdp run: {text}");
}

fn start(options: &Options) -> Result<i32, Start> {
    let env = Environment::new(options).map_err(Start::Failed)?;
    if options.trace == Some(None)
        && let Some(folder) = options.command.first().filter(|name| Path::new(name).is_dir())
    {
        let folder = folder.to_string_lossy();
        let why = format!("{folder} is a folder: to keep pages there write --trace={folder}");
        return Err(Start::Failed(Failure(why)));
    }
    if options.require
        && let Some(command) = options.command.first()
        && let Err(why) = require::check_command(Path::new(command))
    {
        eprintln!("sdp run: {why}");
        return Ok(NOT_SDP);
    }
    let destination = options.report.as_deref().map(Destination::open).transpose();
    let destination = destination.map_err(Start::Failed)?;
    let scrape = options.prometheus_file.as_deref().map(Scrape::open).transpose();
    let scrape = scrape.map_err(Start::Failed)?;
    let keep = options.trace.as_ref().map(|named| trace::folder(named.as_deref())).transpose();
    let keep = keep.map_err(Start::Failed)?;
    let wanted = options.summary
        || options.require
        || destination.is_some()
        || scrape.is_some()
        || keep.is_some();
    let (ended, wall_s, collected) = run_collected(&options.command, &env, wanted, keep)?;
    for kept in &collected.kept {
        say(kept);
    }
    let mut is_met = true;
    if wanted {
        sys::survive_file_size_limit();
        let text = |s: &OsString| String::from_utf8_lossy(s.as_bytes()).into_owned();
        let command = options.command.iter().map(text).collect();
        let report = Report::new(command, &ended, wall_s, &collected);
        if options.summary {
            // A closed stderr must not turn the command's result into ours.
            let epilogue = require::epilogue(&report, &env, &options.set);
            let _ = write!(io::stderr(), "{report}{epilogue}");
        }
        if let Some(Err(why)) = scrape.map(|scrape| scrape.write(&report)) {
            say(&why.to_string());
        }
        if options.require {
            let complaints = require::complaints(&report);
            for complaint in &complaints {
                let _ = writeln!(io::stderr(), "sdp run: --require: {complaint}");
            }
            is_met = complaints.is_empty();
        }
        if let Some(Err(why)) = destination.map(|destination| destination.write(&report)) {
            say(&why.to_string());
        }
    }
    Ok(match ended.how {
        Ok(0) if !is_met => NOT_SDP,
        Ok(code) => code,
        Err(signal) => 128 + signal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn preload_goes_in_front_once() {
        let library = Path::new("/opt/libsdp.so");
        let value = |before: &str| preload(library, Some(before.into())).unwrap();
        assert_eq!(preload(library, None).unwrap(), "/opt/libsdp.so");
        assert_eq!(value(""), "/opt/libsdp.so");
        assert_eq!(value("a.so b.so"), "/opt/libsdp.so:a.so:b.so");
        assert_eq!(value("a.so:/opt/libsdp.so"), "/opt/libsdp.so:a.so");
        assert!(preload(Path::new("/a b/libsdp.so"), None).is_err());
    }

    #[test]
    fn sanitizers_stay_in_front() {
        let library = Path::new("/opt/libsdp.so");
        let value = |before: &str| preload(library, Some(before.into())).unwrap();
        assert_eq!(value("libasan.so.8"), "libasan.so.8:/opt/libsdp.so");
        assert_eq!(
            value("a.so /usr/lib/libtsan.so:b.so"),
            "/usr/lib/libtsan.so:/opt/libsdp.so:a.so:b.so"
        );
        assert_eq!(
            value("/opt/libsdp.so:/x/libclang_rt.asan-x86_64.so"),
            "/x/libclang_rt.asan-x86_64.so:/opt/libsdp.so"
        );
        assert_eq!(value("/libasan.so/a.so"), "/opt/libsdp.so:/libasan.so/a.so");
    }

    #[test]
    fn a_program_says_what_it_is_linked_with() {
        let own = std::env::current_exe().unwrap();
        let needed = elf::needed(&own).expect("an ELF file");
        assert!(needed.iter().any(|name| name.starts_with(b"libc.so")), "{needed:?}");
        assert_eq!(elf::find(OsStr::new("/bin/sh")), Some("/bin/sh".into()));
        assert!(elf::find(OsStr::new("sh")).is_some_and(|path| path.ends_with("sh")));
        assert_eq!(elf::find(OsStr::new("no such command")), None);
        assert_eq!(elf::needed(Path::new("/etc/passwd")), None);
        assert_eq!(elf::needed(Path::new("/dev")), None);
    }

    #[test]
    fn log_levels_become_statements() {
        let statement = |s: &str| log_statement(s).map_err(|f| f.to_string());
        assert_eq!(statement("3").unwrap(), "log min-level 3 destination stderr");
        assert_eq!(statement("9:syslog").unwrap(), "log min-level 9 destination syslog");
        assert_eq!(statement("1:x.log").unwrap(), "log min-level 1 destination file x.log");
        for bad in ["", "0", "10", "x", "3:", "3:a b"] {
            assert!(statement(bad).is_err(), "{bad}");
        }
        let mut config = Box::new(Config::new());
        config.load_text(statement("1:x.log").unwrap().as_bytes(), b"");
        assert!(config.diagnostics().is_empty());
        assert_eq!(config.log().min_level, 1);
    }

    #[test]
    fn bad_rules_and_tunables_are_refused() {
        assert!(check_rule("use sdp client * *:5432").is_ok());
        assert!(check_rule("use sdp client java").is_ok());
        let why = check_rule("use sdp client * *:70000").unwrap_err().to_string();
        assert!(why.contains("column 20") && why.contains("above 65535"), "{why}");
        assert_eq!(tunable("recv_poll=700").unwrap(), ("SDP_RECV_POLL", "700".to_string()));
        assert_eq!(tunable("sdp_zcopy_thresh=0").unwrap().0, "SDP_ZCOPY_THRESH");
        for bad in ["recv_poll", "recv_poll=x", "nothing=1", "=1"] {
            assert!(tunable(bad).is_err(), "{bad}");
        }
    }
}

//! `sdp service`: the library in a unit of systemd.
//!
//! Reads unit files and drop-ins as systemd does, judges the settings that stop or slow lanes, and writes one drop-in of
//! its own. It asks no service manager, so it works on the files of an image too (`--sysroot`); what has to be run
//! afterwards is said.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sdp_config::tunables::Tunables;

use crate::doctor::{self, Finding, Grade};
use crate::program::{Loading, Program};
use crate::report::{Bytes, human_bytes, words};
use crate::{Failure, procs, run};

/// Where units are, below the root; a file of the same name in an earlier folder goes before.
const FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// Where the administrator's are.
const ADMINISTRATORS: &str = FOLDERS[0];
/// The name of our drop-in: behind a package's, before what an administrator names later.
const DROP_IN: &str = "50-sdp.conf";
/// The first line of a drop-in of ours.
const MARK: &str = "# Written by sdp service enable";
/// Longest unit file that is read, bytes.
const FILE_MAX: u64 = 1 << 20;
/// Open files below which a server with a few hundred lanes runs out.
const FEW_DESCRIPTORS: u64 = 1024;

/// `sdp service …`
#[derive(Debug, Clone, Subcommand)]
pub enum ServiceCommand {
    /// Write a drop-in that starts the unit with the library
    Enable(EnableOptions),
    /// Remove that drop-in
    Disable(UnitOptions),
    /// Show what the connections of the unit's processes use, and why not SDP
    Status(StatusOptions),
    /// Say which settings of the unit would stop or slow SDP; changes nothing
    Check(CheckOptions),
}

/// Options of `sdp service enable`.
#[derive(Debug, Clone, Args)]
pub struct EnableOptions {
    /// Print the drop-in, and write nothing
    #[arg(long)]
    pub print: bool,
    /// A tunable for the unit's programs; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub unit: UnitOptions,
}

/// Options of `sdp service check`.
#[derive(Debug, Clone, Args)]
pub struct CheckOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub unit: UnitOptions,
}

/// Options of `sdp service status`.
#[derive(Debug, Clone, Args)]
pub struct StatusOptions {
    /// The unit: redis-server, or redis-server.service
    pub unit: String,
}

/// Which unit.
#[derive(Debug, Clone, Args)]
pub struct UnitOptions {
    /// Units and libraries are below this folder: an image's
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub sysroot: PathBuf,
    /// The unit: redis-server, or redis-server.service
    pub unit: String,
}

/// The whole name of a unit.
fn name_of(unit: &str) -> Result<String, Failure> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if unit.is_empty() || !unit.chars().all(is_valid) || unit.starts_with('.') {
        return Err(Failure::new(format_args!("{unit:?}"), "no name of a unit"));
    }
    match unit.rsplit_once('.').map(|(_, kind)| kind) {
        Some("service") => Ok(unit.to_string()),
        Some("socket" | "target" | "timer" | "mount" | "path" | "slice" | "scope") => {
            Err(Failure::new(unit, "only services start programs: name the .service"))
        }
        _ => Ok(format!("{unit}.service")),
    }
}

/// A unit: the settings of its section `[Service]`, from all of its files.
#[derive(Debug)]
struct Unit {
    name: String,
    root: PathBuf,
    /// The unit's own file.
    file: PathBuf,
    /// By name, the values in the order of the files; an empty value has taken away those before it.
    settings: BTreeMap<String, Vec<String>>,
}

impl Unit {
    fn load(options: &UnitOptions) -> Result<Self, Failure> {
        let name = name_of(&options.unit)?;
        let root = options.sysroot.clone();
        // An instance without a file of its own has its template's.
        let template = name.split_once('@').map(|(template, _)| format!("{template}@.service"));
        let names: Vec<String> = [Some(name.clone()), template].into_iter().flatten().collect();
        let places = names.iter().flat_map(|n| FOLDERS.map(|folder| root.join(folder).join(n)));
        let file = places.into_iter().find(|path| path.exists());
        let file = file.ok_or_else(|| Failure::new(&name, "there is no such unit"))?;
        if fs::read_link(&file).is_ok_and(|to| to == Path::new("/dev/null")) {
            return Err(Failure::new(&name, "is masked"));
        }
        let mut unit = Self { name, root, file: file.clone(), settings: BTreeMap::new() };
        unit.read(&file)?;
        for path in unit.drop_ins(&names) {
            unit.read(&path)?;
        }
        Ok(unit)
    }

    /// The drop-ins of these names, in their order, without ours.
    fn drop_ins(&self, names: &[String]) -> Vec<PathBuf> {
        let mut found: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
        for folder in FOLDERS {
            for name in names {
                let folder = self.root.join(folder).join(format!("{name}.d"));
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    let is_conf = entry.path().extension().is_some_and(|e| e == "conf");
                    if is_conf && entry.file_name() != DROP_IN {
                        found.entry(entry.file_name()).or_insert(entry.path());
                    }
                }
            }
        }
        found.into_values().collect()
    }

    fn read(&mut self, path: &Path) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::new(path.display(), e);
        let found = fs::metadata(path).map_err(failed)?;
        if !found.is_file() || found.len() > FILE_MAX {
            // An empty name of a file, or /dev/null, takes a drop-in away.
            return Ok(());
        }
        let text = fs::read(path).map_err(failed)?;
        let text = String::from_utf8_lossy(&text).replace("\\\n", " ");
        let mut is_service = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[') {
                is_service = section.trim_end_matches(']') == "Service";
            } else if let Some((key, value)) = line.split_once('=').filter(|_| is_service) {
                let all = self.settings.entry(key.trim().to_string()).or_default();
                match value.trim() {
                    "" => all.clear(),
                    value => all.push(value.to_string()),
                }
            }
        }
        Ok(())
    }

    fn all(&self, key: &str) -> &[String] {
        self.settings.get(key).map_or(&[], Vec::as_slice)
    }

    fn last(&self, key: &str) -> Option<&str> {
        self.all(key).last().map(String::as_str)
    }

    fn is_on(&self, key: &str) -> bool {
        self.last(key).is_some_and(|v| !matches!(v, "no" | "false" | "off" | "0"))
    }

    fn drop_in(&self) -> PathBuf {
        self.root.join(ADMINISTRATORS).join(format!("{}.d", self.name)).join(DROP_IN)
    }

    /// Whether sockets of AF_UNIX are refused, which each meeting of two processes needs.
    fn lacks_unix(&self) -> bool {
        let mut allowed: Option<bool> = None; // whether AF_UNIX is
        for value in self.all("RestrictAddressFamilies") {
            let (listed, is_deny) = match value.strip_prefix('~') {
                Some(rest) => (rest, true),
                None => (value.as_str(), false),
            };
            if listed == "none" {
                allowed = Some(false);
                continue;
            }
            let names_it = listed.split_whitespace().any(|family| family == "AF_UNIX");
            allowed = match allowed {
                None => Some(names_it != is_deny),
                Some(_) if names_it => Some(!is_deny),
                before => before,
            };
        }
        allowed == Some(false)
    }

    /// What the unit's environment preloads without us.
    fn preloaded(&self) -> Option<String> {
        let words = self.all("Environment").iter().flat_map(|value| words_of(value));
        let last =
            words.filter_map(|w| w.strip_prefix("LD_PRELOAD=").map(str::to_string)).last()?;
        (!last.is_empty()).then_some(last)
    }

    /// The program that it starts.
    fn program(&self) -> Option<PathBuf> {
        let line = self.last("ExecStart")?;
        let word = words_of(line.trim_start_matches(['@', '-', ':', '+', '!', '|'])).next()?;
        word.starts_with('/').then(|| self.root.join(word.trim_start_matches('/')))
    }
}

/// The words of a value, as systemd takes them apart: white space between quotes is a part of a word,
/// and what a backslash stands before is itself.
fn words_of(value: &str) -> impl Iterator<Item = String> + '_ {
    let mut rest = value.chars();
    std::iter::from_fn(move || {
        let (mut word, mut quote) = (None::<String>, None);
        while let Some(c) = rest.next() {
            match c {
                c if c.is_whitespace() && quote.is_none() => match word {
                    Some(_) => break,
                    None => continue,
                },
                c if quote == Some(c) => quote = None,
                '"' | '\'' if quote.is_none() => {
                    word.get_or_insert_default();
                    quote = Some(c);
                }
                '\\' => word.get_or_insert_default().extend(rest.next()),
                c => word.get_or_insert_default().push(c),
            }
        }
        word
    })
}

// ---- check -------------------------------------------------------------------------------------

/// A limit of a unit: the soft value before a colon; `None`: unlimited or unset.
fn limit(value: Option<&str>) -> Option<u64> {
    let soft = value?.split(':').next()?.trim();
    let digits = soft.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &soft[digits.len()..] {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "" => 1,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// Adds findings: check, grade, what was found, advice.
fn adder(found: &mut Vec<Finding>) -> impl FnMut(&'static str, Grade, String, &str) {
    |check, grade, what, advice| {
        found.push(Finding { check, grade, what, advice: advice.to_string() });
    }
}

/// Everything in the unit that stops or slows lanes.
fn judge(unit: &Unit) -> Vec<Finding> {
    let mut found = Vec::new();
    let is = format!("{} is {}", unit.name, unit.file.display());
    adder(&mut found)("unit", Grade::Ok, is, "");
    for of in [isolation, calls, limits, surroundings, preload, program] {
        of(unit, &mut found);
    }
    found
}

/// The kernel version from which processes have numbers, by which users without a name here are told apart.
const NUMBERS_PROCESSES: (u32, u32) = (6, 9);

/// Whether this machine's kernel does.
fn numbers_processes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= NUMBERS_PROCESSES
}

/// Whom the processes of the unit can meet.
fn isolation(unit: &Unit, found: &mut Vec<Finding>) {
    let mut add = adder(found);
    if unit.lacks_unix() {
        let what = "RestrictAddressFamilies= has no AF_UNIX: the two processes of a connection cannot meet";
        add("families", Grade::Stop, what.into(), "sdp service enable adds it.");
    }
    if unit.is_on("PrivateUsers") && numbers_processes() {
        let what = "PrivateUsers= maps few users: lanes with clients of other users need Linux 6.9, \
                    as is here";
        add("users", Grade::Note, what.into(), "");
    } else if unit.is_on("PrivateUsers") {
        let what = "PrivateUsers= maps few users: with a client of another one there is no lane (uid-unmapped; \
                    the client says peer-not-listening)";
        let advice =
            "PrivateUsers=no in a drop-in (systemctl edit), if clients are of other users.";
        add("users", Grade::Stop, what.into(), advice);
    }
    if unit.is_on("PrivateNetwork") || unit.last("NetworkNamespacePath").is_some() {
        let what = "the unit has a network namespace of its own: lanes stay inside it";
        add("network", Grade::Note, what.into(), "");
    }
}

/// System calls that the unit refuses.
fn calls(unit: &Unit, found: &mut Vec<Finding>) {
    let mut add = adder(found);
    let filters = unit.all("SystemCallFilter");
    if !filters.is_empty() {
        let is_list = !filters[0].starts_with('~');
        let names = |call: &str| filters.iter().any(|f| f.split_whitespace().any(|w| w == call));
        let refused = names("~memfd_create") || names("~eventfd2");
        if refused {
            let what =
                "SystemCallFilter= refuses memfd_create or eventfd2: no lane can be made (sandbox)";
            add("calls", Grade::Stop, what.into(), "Allow both.");
        } else {
            let what = "SystemCallFilter= is set: each new lane costs more";
            add("calls", Grade::Note, what.into(), "");
        }
        if is_list && !names("pidfd_getfd") && !names("@debug") {
            let what = "SystemCallFilter= has no pidfd_getfd: some hand-overs need a relay process";
            add("calls", Grade::Note, what.into(), "");
        }
    }
}

/// Limits that are too low for lanes.
fn limits(unit: &Unit, found: &mut Vec<Finding>) {
    let mut add = adder(found);
    if let Some(most) = limit(unit.last("LimitNOFILE"))
        && most < FEW_DESCRIPTORS
    {
        let what = format!("LimitNOFILE= is {most}: each process takes a few for its lanes");
        add("descriptors", Grade::Slow, what, "LimitNOFILE=4096 or more.");
    }
    let needs = 2 * u64::from(Tunables::DEFAULT.ring_bytes) + (2 << 20);
    if let Some(most) = limit(unit.last("LimitFSIZE"))
        && most < needs
    {
        let what = format!("LimitFSIZE= is {most} bytes: no memory for lanes");
        add("file-size", Grade::Stop, what, "LimitFSIZE=infinity.");
    }
}

/// Where the unit's connections and its files come from.
fn surroundings(unit: &Unit, found: &mut Vec<Finding>) {
    let mut add = adder(found);
    if unit.last("StandardInput").is_some_and(|v| v == "socket") {
        let what = "StandardInput=socket: each connection is on descriptor 0 (standard-descriptor)";
        add("input", Grade::Stop, what.into(), "Nothing, unless the program can take LISTEN_FDS.");
    }
    for key in ["RootDirectory", "RootImage"] {
        if unit.last(key).is_some() {
            let what =
                format!("{key}= is set: the library has to be in that root, under the same name");
            add("root", Grade::Slow, what, "Install it there, or BindReadOnlyPaths= it.");
        }
    }
}

/// What takes the library away.
fn preload(unit: &Unit, found: &mut Vec<Finding>) {
    let mut add = adder(found);
    let unset = unit.all("UnsetEnvironment").iter();
    if unset.flat_map(|v| v.split_whitespace()).any(|v| v.split('=').next() == Some("LD_PRELOAD")) {
        let what = "UnsetEnvironment= takes LD_PRELOAD away";
        add("preload", Grade::Stop, what.into(), "UnsetEnvironment= (empty) in a drop-in.");
    }
    for named in unit.all("EnvironmentFile") {
        let path = unit.root.join(named.trim_start_matches('-').trim_start_matches('/'));
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.lines().any(|l| l.trim_start().starts_with("LD_PRELOAD=")) {
            let what = format!("{named} sets LD_PRELOAD, and has the last word");
            add("preload", Grade::Slow, what, "Name the library there instead.");
        }
    }
}

/// Where Debian's `pg_ctlcluster` has a server's variables: it gives it no others.
fn variables_of_cluster(unit: &Unit) -> Option<PathBuf> {
    let is_cluster = unit.program()?.file_name()? == "pg_ctlcluster";
    let instance = unit.name.strip_suffix(".service")?.split_once('@')?.1;
    let (version, cluster) = instance.split_once('-').filter(|_| is_cluster)?;
    // As systemd unescapes an instance: a dash of the name itself is written `\x2d`.
    let folder = cluster.replace('-', "/").replace("\\x2d", "-");
    Some(unit.root.join("etc/postgresql").join(version).join(folder).join("environment"))
}

/// Why the program cannot load the library.
fn program(unit: &Unit, found: &mut Vec<Finding>) {
    let mut add = adder(found);
    if let Some(file) = variables_of_cluster(unit) {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let sets = |line: &str| line.starts_with("LD_PRELOAD") && line.contains("libsdp.so");
        if !text.lines().map(str::trim_start).any(sets) {
            let shown = file.display();
            let what = format!("pg_ctlcluster gives the server the variables of {shown} alone");
            let advice = format!("Add the line LD_PRELOAD = '{}' to that file.", run::SONAME);
            add("preload", Grade::Stop, what, &advice);
        }
    }
    if let Some(program) = unit.program() {
        let shown = program.display();
        if program.ends_with("bin/true") && unit.is_on("RemainAfterExit") {
            let what = format!("{} starts nothing itself", unit.name);
            let advice = "Name the unit that does: postgresql@VERSION-CLUSTER, for PostgreSQL.";
            add("program", Grade::Stop, what, advice);
        }
        let why = match Program::of(&program) {
            Err(_) => None,
            Ok(p) if p.is_go => Some("is a Go program: it calls the kernel itself"),
            Ok(p) if p.is_foreign => Some("is of 32 bits or of another machine"),
            Ok(p) if p.is_set_id || p.has_capabilities => {
                Some("is set-id or has capabilities: the loader ignores LD_PRELOAD")
            }
            Ok(p) => match &p.loading {
                Loading::Static => Some("is linked statically: nothing can be preloaded"),
                Loading::Loader(loader) if loader.contains("ld-musl") => Some("uses musl"),
                Loading::Loader(_) | Loading::Unknown => None,
            },
        };
        if let Some(why) = why {
            add("program", Grade::Stop, format!("{shown} {why}"), "Nothing: it stays on TCP.");
        }
    }
}

/// Runs `sdp service check`; the result is whether nothing must be done.
///
/// # Errors
/// There is no such unit.
pub fn check(options: &CheckOptions) -> Result<bool, Failure> {
    let unit = Unit::load(&options.unit)?;
    doctor::show(&judge(&unit), options.json)
}

// ---- enable and disable ------------------------------------------------------------------------

/// The text of the drop-in.
fn text_of(unit: &Unit, library: &str, settings: &[String]) -> Result<String, Failure> {
    let name = &unit.name;
    let mut out = format!("{MARK}; remove with: sdp service disable {name}\n[Service]\n");
    let others = unit.preloaded().unwrap_or_default();
    let is_other = |word: &&str| !word.is_empty() && !word.contains("libsdp.so");
    let others = others.split([':', ' ', '\t']).filter(is_other);
    let all: Vec<&str> = [library].into_iter().chain(others).collect();
    let _ = writeln!(out, "Environment=LD_PRELOAD={}", all.join(":"));
    // Silent while all is well; a setting of the same name has the last word.
    let _ = writeln!(out, "Environment={}=auto", crate::collect::VARIABLE);
    for setting in settings {
        let (variable, value) = run::tunable(setting)?;
        let _ = writeln!(out, "Environment={variable}={value}");
    }
    if unit.lacks_unix() {
        out += "# Two processes meet at an abstract socket.\nRestrictAddressFamilies=AF_UNIX\n";
    }
    if unit.is_on("PrivateUsers") && !numbers_processes() {
        out += "# For lanes with clients of other users (it makes the unit see all user ids):\n#PrivateUsers=no\n";
    }
    Ok(out)
}

/// The library's name for a unit: an image's has none of this machine's paths.
fn library(root: &Path) -> Result<String, Failure> {
    let is_here = fs::canonicalize(root).is_ok_and(|root| root == Path::new("/"));
    if !is_here {
        return Ok(run::SONAME.into());
    }
    let found = run::find_library()?;
    let found = fs::canonicalize(&found).unwrap_or(found);
    let text = found.to_str().filter(|t| !t.contains([' ', ':', '%', '"', '\'', '\\']));
    text.map(String::from)
        .ok_or_else(|| Failure::new(found.display(), "a unit cannot name that path"))
}

/// Runs `sdp service enable`.
///
/// # Errors
/// There is no such unit, no library, or the drop-in cannot be written.
pub fn enable(options: &EnableOptions) -> Result<(), Failure> {
    let unit = Unit::load(&options.unit)?;
    let text = text_of(&unit, &library(&unit.root)?, &options.set)?;
    for finding in judge(&unit).iter().filter(|f| f.grade >= Grade::Slow && f.check != "families") {
        let advice = if finding.advice.is_empty() { "" } else { " → " };
        eprintln!("sdp service: {}: {}{advice}{}", unit.name, finding.what, finding.advice);
    }
    let file = unit.drop_in();
    if options.print {
        crate::print(&format!("# {}\n{text}", file.display()));
        return Ok(());
    }
    let failed = |e: std::io::Error| Failure::new(file.display(), e);
    let folder = file.parent().unwrap_or(&unit.root);
    let refused = |why: &str| Failure::new(file.display(), why);
    // Links of an image lead to this machine's files. What is there already says where it leads.
    let root = fs::canonicalize(&unit.root).map_err(failed)?;
    let there = folder.ancestors().find(|path| fs::symlink_metadata(path).is_ok());
    if !fs::canonicalize(there.unwrap_or(folder)).map_err(failed)?.starts_with(&root) {
        return Err(refused("a link leads out of the root"));
    }
    if let Ok(found) = fs::symlink_metadata(&file) {
        let is_ours =
            found.is_file() && fs::read_to_string(&file).map_err(failed)?.starts_with(MARK);
        if !is_ours {
            return Err(refused("was not written by sdp service enable"));
        }
    }
    fs::create_dir_all(folder).map_err(failed)?;
    crate::tune::replace(&file, &text).map_err(failed)?;
    crate::print(&format!("wrote {}\n{}", file.display(), to_run(&unit)));
    Ok(())
}

/// What makes a change take effect.
fn to_run(unit: &Unit) -> String {
    format!("to have it: systemctl daemon-reload && systemctl restart {}\n", unit.name)
}

/// Runs `sdp service disable`.
///
/// # Errors
/// The unit has no drop-in of ours, or it cannot be removed.
pub fn disable(options: &UnitOptions) -> Result<(), Failure> {
    let unit = Unit {
        name: name_of(&options.unit)?,
        root: options.sysroot.clone(),
        file: PathBuf::new(),
        settings: BTreeMap::new(),
    };
    let file = unit.drop_in();
    let failed = |e: std::io::Error| Failure::new(file.display(), e);
    let text = fs::read_to_string(&file).map_err(failed)?;
    if !text.starts_with(MARK) {
        return Err(Failure::new(file.display(), "was not written by sdp service enable"));
    }
    fs::remove_file(&file).map_err(failed)?;
    // Only if nothing else is in it.
    let _ = file.parent().map(fs::remove_dir);
    crate::print(&format!("removed {}\n{}", file.display(), to_run(&unit)));
    Ok(())
}

// ---- status ------------------------------------------------------------------------------------

/// Whether a process is in a unit's control group.
fn is_of(unit: &str, pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().any(|line| line.split('/').any(|part| part == unit))
}

/// Runs `sdp service status`.
///
/// # Errors
/// No process of the unit has the library and a connection.
pub fn status(options: &StatusOptions) -> Result<(), Failure> {
    let name = name_of(&options.unit)?;
    let mut processes = procs::find(None);
    processes.retain(|process| is_of(&name, process.pid));
    if processes.is_empty() {
        let why = format!(
            "no process of it has the library and a stream connection{}; is it started, and enabled (sdp service \
             enable {name})?",
            crate::stat::others_note()
        );
        return Err(Failure::new(name, why));
    }
    let (mut seen, mut sdp, mut by_sdp, mut by_tcp) = (0, 0, 0u64, 0u64);
    let mut reasons: BTreeMap<String, i64> = BTreeMap::new();
    for process in &processes {
        let sums = &process.view.sums;
        let bytes = Bytes::of(sums);
        seen += sums.seen;
        sdp += sums.sdp;
        by_sdp = by_sdp.wrapping_add(bytes.sdp_sent).wrapping_add(bytes.sdp_received);
        by_tcp = by_tcp.wrapping_add(bytes.tcp_sent).wrapping_add(bytes.tcp_received);
        for (word, count) in words(&sums.reasons) {
            *reasons.entry(word).or_default() += count;
        }
    }
    let share = by_sdp as f64 / (by_sdp as f64 + by_tcp as f64).max(1.0) * 100.0;
    let mut out = format!(
        "{name}: {} processes with the library; {seen} connections seen, {sdp} on SDP; {share:.1} % of {} by SDP\n",
        processes.len(),
        human_bytes(by_sdp.wrapping_add(by_tcp)),
    );
    for (word, count) in reasons {
        let advice = sdp_stats::Reason::from_word(&word).map_or("", sdp_stats::Reason::advice);
        let _ = writeln!(out, "  {count} on TCP: {word}. {advice}");
    }
    let notes = processes.iter().flat_map(|p| &p.view.rows).filter_map(crate::stat::peer_note);
    let mut notes: Vec<String> = notes.collect();
    notes.sort();
    notes.dedup();
    for note in notes {
        let _ = writeln!(out, "  {note}");
    }
    crate::print(&out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(text: &str) -> Unit {
        let folder =
            std::env::temp_dir().join(format!("sdp-unit-{}-{}", std::process::id(), text.len()));
        let file = folder.join(FOLDERS[3]).join("x.service");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        let unit = Unit::load(&UnitOptions { sysroot: folder.clone(), unit: "x".into() });
        fs::remove_dir_all(folder).unwrap();
        unit.unwrap()
    }

    #[test]
    fn families_are_added_up_as_systemd_does() {
        for (lines, lacks) in [
            ("", false),
            ("RestrictAddressFamilies=AF_INET AF_INET6\n", true),
            ("RestrictAddressFamilies=AF_INET\nRestrictAddressFamilies=AF_UNIX\n", false),
            ("RestrictAddressFamilies=AF_INET \\\n AF_UNIX\n", false),
            ("RestrictAddressFamilies=AF_INET\nRestrictAddressFamilies=\n", false),
            ("RestrictAddressFamilies=~AF_UNIX AF_INET\n", true),
            ("RestrictAddressFamilies=~AF_PACKET\n", false),
            ("RestrictAddressFamilies=none\n", true),
        ] {
            let text = format!("[Unit]\nRestrictAddressFamilies=none\n[Service]\n{lines}");
            assert_eq!(unit(&text).lacks_unix(), lacks, "{lines}");
        }
    }

    #[test]
    fn other_preloads_stay() {
        let unit = unit("[Service]\nEnvironment=\"A=1\" LD_PRELOAD=/x/jemalloc.so\n");
        let text = text_of(&unit, "/l/libsdp.so.1", &["recv_poll=0".into()]).unwrap();
        assert!(text.contains("Environment=LD_PRELOAD=/l/libsdp.so.1:/x/jemalloc.so\n"), "{text}");
        assert!(text.contains("Environment=SDP_RECV_POLL=0\n"), "{text}");
        assert!(text.contains("Environment=SDP_REPORT=auto\n"), "{text}");
        assert!(text_of(&unit, "x", &["nothing=1".into()]).is_err());
    }

    #[test]
    fn lists_of_preloads_are_read_whole() {
        for (value, others) in [
            ("\"LD_PRELOAD=/x/a.so /x/b.so\" B=2", "/x/a.so:/x/b.so"),
            ("LD_PRELOAD=\"/x/a.so /x/b.so\"", "/x/a.so:/x/b.so"),
            ("'LD_PRELOAD=/x/a.so:/x/b.so /l/libsdp.so.1'", "/x/a.so:/x/b.so"),
            ("\"A=LD_PRELOAD=/x/no.so\" LD_PRELOAD=/x/a.so", "/x/a.so"),
            ("\"A=1 LD_PRELOAD=/x/no.so\" 'LD_PRELOAD=/x/a.so'", "/x/a.so"),
        ] {
            let unit = unit(&format!("[Service]\nEnvironment={value}\n"));
            let text = text_of(&unit, "/l/libsdp.so.1", &[]).unwrap();
            let line = format!("Environment=LD_PRELOAD=/l/libsdp.so.1:{others}\n");
            assert!(text.contains(&line), "{value}: {text}");
        }
    }

    #[test]
    fn names_are_completed_and_checked() {
        assert_eq!(name_of("redis-server").unwrap(), "redis-server.service");
        assert_eq!(name_of("postgresql@15-main.service").unwrap(), "postgresql@15-main.service");
        for bad in ["", "../x", "a b", "x.socket", "a/b.service"] {
            assert!(name_of(bad).is_err(), "{bad}");
        }
        assert_eq!((limit(Some("64K:1M")), limit(Some("infinity"))), (Some(65536), None));
    }
}

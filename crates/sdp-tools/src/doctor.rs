//! `sdp doctor`: causes that would stop or slow SDP here, and a remedy for each.
//!
//! Looks at the machine, at the shell that it was started from (whose limits, namespaces and
//! filters the programs started there inherit), at a program that is to be started, and at
//! processes that run. It reads `/proc`, `/sys`, `/dev` and the rule file, tries the system calls
//! that a lane needs, and changes nothing. With `--sysroot` the files of another machine are
//! judged, and nothing is tried.

pub(crate) mod nfs;
mod rdma;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use clap::Args;
use sdp_config::tunables::{SetError, Tunables};
use sdp_config::{Family, Role, Severity as RuleSeverity};
use sdp_stats::Reason;
use sdp_stats::reader::ReasonCode;
use serde::Serialize;

use crate::program::{Loading, Program};
use crate::rules::{Texts, render};
use crate::{Failure, devices, ping, procs, run, show, stat, sys};

pub(crate) mod containers;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// The oldest C library that the library loads into.
const OLDEST_LIBC: (u32, u32) = (2, 34);
/// Open files below which a server with a few hundred lanes runs out.
const FEW_DESCRIPTORS: u64 = 1024;

/// Options of `sdp doctor`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Look at this running process too; repeatable: two are also compared with each other
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Ask this host by RDMA, where `sdp doctor --answer` runs
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Option<String>,
    /// Answer those who ask at this address of a device, and do nothing else
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with_all = ["pid", "peer", "json", "sysroot", "program"])]
    pub answer: Option<String>,
    /// Look at what NFS over RDMA needs, and at nothing else; ask this server by TCP [default: 127.0.0.1]
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["pid", "peer", "answer", "program"])]
    pub nfs: Option<Option<String>>,
    /// Judge /proc, /sys, /dev and /etc below this folder: a copy of another machine's
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub sysroot: PathBuf,
    /// A program that is to be started
    pub program: Option<PathBuf>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// Nothing need be done.
    Note,
    /// SDP works, at a price.
    Slow,
    /// There is no SDP.
    Stop,
}

impl Grade {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Slow => "slow",
            Self::Stop => "STOP",
        }
    }
}

/// One finding. Field names are the JSON form.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Which check: a word that does not change.
    pub check: &'static str,
    /// How bad it is.
    pub grade: Grade,
    /// The finding.
    pub what: String,
    /// The remedy; empty if none.
    pub advice: String,
}

/// The subjects of the checks, and the findings.
struct Doctor {
    root: PathBuf,
    /// The root is this machine's.
    is_here: bool,
    findings: Vec<Finding>,
}

impl Doctor {
    fn add(&mut self, check: &'static str, grade: Grade, what: String, advice: &str) {
        let what = crate::without_numbers(&what);
        self.findings.push(Finding { check, grade, what, advice: advice.to_string() });
    }

    fn ok(&mut self, check: &'static str, what: String) {
        self.add(check, Grade::Ok, what, "");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    // ---- the machine -------------------------------------------------------------------------

    fn libc(&mut self) {
        let version = sys::libc_version();
        let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found >= OLDEST_LIBC {
            self.ok("libc", format!("glibc {version}"));
        } else {
            let what = format!("glibc {version}: the library needs 2.34");
            self.add("libc", Grade::Stop, what, "Use a system with glibc 2.34 or newer.");
        }
    }

    fn kernel(&mut self) {
        let Some(release) = self.text("proc/sys/kernel/osrelease") else { return };
        let release = release.trim();
        let mut numbers = release.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
        let found: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found < (5, 6) {
            let what = format!("Linux {release}: connections are handed over by a relay process");
            self.add("kernel", Grade::Slow, what, "Use Linux 5.6 or newer (6.5 is best).");
        } else {
            self.ok("kernel", format!("Linux {release}"));
        }
    }

    fn library(&mut self) {
        if !self.is_here {
            return;
        }
        match run::find_library() {
            Ok(path) => match File::open(&path) {
                Ok(_) => self.ok("library", path.display().to_string()),
                Err(e) => self.add(
                    "library",
                    Grade::Stop,
                    format!("{}: {e}", path.display()),
                    "Let everybody read it (chmod 644, and 755 for its folders).",
                ),
            },
            Err(why) => self.add(
                "library",
                Grade::Stop,
                why.to_string(),
                "Install the package, or set SDP_LIBRARY.",
            ),
        }
    }

    /// `/etc/ld.so.preload` and `LD_PRELOAD`: whether the files that they name are there.
    fn preload(&mut self) {
        let list = self.text("etc/ld.so.preload").unwrap_or_default();
        let variable = std::env::var("LD_PRELOAD").unwrap_or_default();
        let variable = if self.is_here { variable.as_str() } else { "" };
        let ours = |text: &str| -> Vec<String> {
            let words = text.split(|c: char| c.is_whitespace() || c == ':');
            words.filter(|w| w.contains("libsdp")).map(String::from).collect()
        };
        for (place, text) in [("/etc/ld.so.preload", list.as_str()), ("LD_PRELOAD", variable)] {
            for name in ours(text) {
                let file = self.path(name.trim_start_matches('/'));
                if name.contains('/') && !file.exists() {
                    self.add(
                        "preload",
                        Grade::Stop,
                        format!("{place} names {name}, which is not there"),
                        "Install the library there, or take its name out.",
                    );
                } else {
                    self.ok("preload", format!("{place} names {name}"));
                }
            }
        }
    }

    fn yama(&mut self) {
        let Some(scope) = self.text("proc/sys/kernel/yama/ptrace_scope") else {
            return self.ok("yama", "no Yama in this kernel".to_string());
        };
        let grade = match scope.trim() {
            "0" => return self.ok("yama", "ptrace_scope 0".to_string()),
            "1" => Grade::Note,
            _ => Grade::Slow,
        };
        let what = format!(
            "Yama keeps processes of one user apart (ptrace_scope {}): each new lane costs a meeting, \
             and some hand-overs a relay process",
            scope.trim()
        );
        let advice = "Where short connections matter: sysctl kernel.yama.ptrace_scope=0.";
        self.add("yama", grade, what, advice);
    }

    fn proc_mount(&mut self) {
        if self.is_here && !Path::new("/proc/self/status").exists() {
            let what = "/proc is not mounted: the tools see nothing".to_string();
            self.add("proc", Grade::Slow, what, "Mount /proc in the container or jail.");
            return;
        }
        let mounts = self.text("proc/self/mounts").unwrap_or_default();
        let of_proc = |line: &&str| line.split(' ').nth(2) == Some("proc");
        let hides = |line: &str| {
            line.contains("hidepid=")
                && !line.contains("hidepid=0")
                && !line.contains("hidepid=off")
        };
        if mounts.lines().filter(of_proc).any(hides) {
            let what = "/proc hides other users' processes (hidepid)".to_string();
            self.add(
                "proc",
                Grade::Note,
                what,
                "Run the tools as root, or as the group of the mount.",
            );
        } else {
            self.ok("proc", "mounted".to_string());
        }
    }

    fn calls(&mut self) {
        if !self.is_here {
            return;
        }
        let attempts = sys::attempts();
        if attempts.iter().all(|(_, result)| result.is_ok()) {
            self.ok("calls", "the system calls of a lane are allowed".to_string());
        }
        for (name, result) in attempts {
            let Err(why) = result else { continue };
            let (grade, cost) = match name {
                "memfd_create" | "eventfd" => (Grade::Stop, "no lane can be made"),
                "sock_diag" => (Grade::Note, "/proc is read instead"),
                "pidfd_getfd" | "pidfd_open" => {
                    (Grade::Slow, "connections are handed over by a relay process")
                }
                _ => (Grade::Slow, "each new lane costs a meeting"),
            };
            let advice = "Allow it in the seccomp filter or policy of this container or service.";
            self.add("calls", grade, format!("{name} is refused ({why}): {cost}"), advice);
        }
    }

    // ---- a process: this one for those started here, or a running one --------------------------

    fn status(&self, pid: &str, field: &str) -> Option<String> {
        let text = self.text(&format!("proc/{pid}/status"))?;
        let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().to_string())
    }

    /// A soft limit; `None`: unlimited, or not to be known.
    fn limit(&self, pid: &str, name: &str) -> Option<u64> {
        let text = self.text(&format!("proc/{pid}/limits"))?;
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    }

    fn process(&mut self, pid: &str, who: &str) {
        self.seccomp(pid, who);
        self.capabilities(pid, who);
        self.namespaces(pid, who);
        self.descriptors(pid, who);
        if let Some(limit) = self.limit(pid, "Max file size")
            && limit < 2 * u64::from(Tunables::DEFAULT.ring_bytes) + (2 << 20)
        {
            let what =
                format!("{who} may not make files of more than {limit} bytes: no memory for lanes");
            self.add(
                "file-size",
                Grade::Stop,
                what,
                "ulimit -f unlimited, or LimitFSIZE=infinity.",
            );
        }
    }

    fn seccomp(&mut self, pid: &str, who: &str) {
        match self.status(pid, "Seccomp").as_deref() {
            Some("2") => self.add(
                "seccomp",
                Grade::Note,
                format!(
                    "{who} runs under a seccomp filter: each new lane costs a meeting; programs that \
                     install one themselves are on TCP"
                ),
                "Nothing, if the filter is wanted; what it refuses is listed under calls.",
            ),
            Some("1") => self.add(
                "seccomp",
                Grade::Stop,
                format!("{who} is in seccomp's strict mode"),
                "Nothing: it can only read and write.",
            ),
            Some(_) => self.ok("seccomp", format!("{who} has no filter")),
            None => {}
        }
    }

    fn capabilities(&mut self, pid: &str, who: &str) {
        const PTRACE: u64 = 1 << 19;
        let Some(effective) = self.status(pid, "CapEff") else { return };
        let Ok(effective) = u64::from_str_radix(&effective, 16) else { return };
        let uid = self.status(pid, "Uid").unwrap_or_default();
        if effective & PTRACE != 0 {
            self.ok("capabilities", format!("{who} may look at every process"));
        } else if uid.starts_with("0\t") {
            let what = format!(
                "{who} is root without CAP_SYS_PTRACE: the tools do not see other users' processes, and \
                 some hand-overs between users need a relay process"
            );
            self.add(
                "capabilities",
                Grade::Slow,
                what,
                "Give it: docker run --cap-add SYS_PTRACE.",
            );
        } else {
            let what = format!("{who} is no root: the tools show its own user's processes only");
            self.add("capabilities", Grade::Note, what, "");
        }
    }

    fn namespaces(&mut self, pid: &str, who: &str) {
        if let Some(map) = self.text(&format!("proc/{pid}/uid_map")) {
            let ids: u64 =
                map.lines().filter_map(|l| l.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
            if map.trim().is_empty() {
                let what = format!("{who} is in a user namespace without a map of users");
                let advice = "Map the user ids (unshare --map-root-user, or newuidmap).";
                self.add("user-namespace", Grade::Stop, what, advice);
            } else if ids < u64::from(u32::MAX) {
                let what = format!(
                    "{who} is in a user namespace with {ids} mapped ids: lanes reach users that both \
                     ends have mapped"
                );
                self.add("user-namespace", Grade::Note, what, Reason::UidUnmapped.advice());
            } else {
                self.ok("user-namespace", format!("{who} sees all user ids"));
            }
        }
        let net = |pid: &str| fs::read_link(self.path(&format!("proc/{pid}/ns/net"))).ok();
        if let (Some(own), Some(first)) = (net(pid), net("1"))
            && own != first
        {
            let what = format!("{who} is in a network namespace of its own: lanes stay inside it");
            let advice =
                "Start both ends in one network namespace (one pod, or --network=container:).";
            self.add("net-namespace", Grade::Note, what, advice);
        }
    }

    fn descriptors(&mut self, pid: &str, who: &str) {
        let Some(limit) = self.limit(pid, "Max open files") else { return };
        let open = fs::read_dir(self.path(&format!("proc/{pid}/fd"))).map_or(0, Iterator::count);
        if open as u64 + 16 > limit {
            let what = format!("{who} has {open} of {limit} descriptors open");
            self.add(
                "descriptors",
                Grade::Stop,
                what,
                "Raise its limit: prlimit --nofile, LimitNOFILE=.",
            );
        } else if limit < FEW_DESCRIPTORS {
            let what = format!(
                "{who} may open {limit} files only: each process takes a few for its lanes"
            );
            self.add("descriptors", Grade::Slow, what, "ulimit -n 4096, or LimitNOFILE=4096.");
        } else {
            self.ok("descriptors", format!("{who} may open {limit} files"));
        }
    }

    /// The library's parts in a running process.
    fn running(&mut self, pid: u32) {
        let number = pid.to_string();
        let name = self.status(&number, "Name").unwrap_or_default();
        let who = format!("process {pid} ({})", clean(&name));
        if !self.path(&format!("proc/{number}")).exists() {
            self.add("process", Grade::Stop, format!("there is no process {pid}"), "");
            return;
        }
        match self.text(&format!("proc/{number}/maps")) {
            None => {
                let what = format!("{who} may not be looked at");
                self.add("process", Grade::Note, what, "Ask as root.");
            }
            Some(maps) if maps.contains("/libsdp.so") => {
                if maps.lines().any(|l| l.contains("/libsdp.so") && l.ends_with("(deleted)")) {
                    let what = format!("{who} has a library that was replaced meanwhile");
                    self.add("process", Grade::Note, what, "Restart it to have the new one.");
                } else {
                    self.ok("process", format!("{who} has the library"));
                }
            }
            Some(_) => {
                let what = format!("{who} does not have the library");
                let advice = "Start it with sdp run, or LD_PRELOAD, or /etc/ld.so.preload; with --pid and \
                              its program's name the reason may show.";
                self.add("process", Grade::Stop, what, advice);
                if let Ok(exe) = fs::read_link(self.path(&format!("proc/{number}/exe"))) {
                    self.program(&exe);
                }
            }
        }
        self.process(&number, &who);
        if self.is_here {
            self.connections(pid, &who);
        }
    }

    /// Why connections of a process are on TCP, by its own account and by the other ends'.
    fn connections(&mut self, pid: u32, who: &str) {
        const SHOWN: usize = 8;
        let mut found: BTreeMap<(u32, String), usize> = BTreeMap::new();
        for process in procs::find(Some(pid)) {
            for row in
                process.view.rows.iter().filter(|row| row.role != sdp_stats::Role::Listener as u8)
            {
                let code = row.halves.iter().filter(|half| !half.is_sdp()).find_map(|h| h.reason);
                if let Some(code) = code {
                    let other =
                        stat::peer_note(row).map_or(String::new(), |note| format!("; {note}"));
                    *found.entry((code, other)).or_default() += 1;
                }
            }
        }
        for ((code, other), count) in found.into_iter().take(SHOWN) {
            let ends = if count == 1 { "a connection" } else { "connections" };
            let what = format!("{who} has {ends} on TCP ({count}): {}{other}", ReasonCode(code));
            let advice = Reason::from_code(code).map_or("", Reason::advice);
            self.add("connections", Grade::Note, what, advice);
        }
    }

    /// Whether two processes can have a lane between them.
    fn pair(&mut self, one: u32, two: u32) {
        let link =
            |pid: u32, name: &str| fs::read_link(self.path(&format!("proc/{pid}/ns/{name}"))).ok();
        let both = format!("processes {one} and {two}");
        if let (Some(a), Some(b)) = (link(one, "net"), link(two, "net")) {
            if a == b {
                self.ok("net-namespace", format!("{both} are in one network namespace"));
            } else {
                let what =
                    format!("{both} are in different network namespaces: no lane between them");
                let advice =
                    "Start both in one network namespace (one pod, or --network=container:).";
                self.add("net-namespace", Grade::Stop, what, advice);
            }
        }
        let user = |pid: u32| self.status(&pid.to_string(), "Uid");
        if let (Some(a), Some(b)) = (user(one), user(two))
            && a != b
        {
            let what = format!(
                "{both} belong to different users: a lane between them costs more CPU time to set up, and \
                 carries as much"
            );
            self.add("users", Grade::Note, what, "");
        } else {
            self.ok("users", format!("{both} belong to one user"));
        }
    }

    // ---- a program ---------------------------------------------------------------------------

    fn program(&mut self, command: &Path) {
        let program = match Program::of(command) {
            Ok(program) => program,
            Err(why) => {
                self.add("program", Grade::Stop, why.to_string(), "");
                return;
            }
        };
        let name = program.path.display().to_string();
        if program.is_set_id || program.has_capabilities {
            let kind = if program.is_set_id { "set-id" } else { "a program with capabilities" };
            self.add(
                "set-id",
                Grade::Stop,
                format!("{name} is {kind}: the loader ignores LD_PRELOAD"),
                "Name the library in /etc/ld.so.preload, or start it as the user whom it becomes.",
            );
        } else {
            self.ok("set-id", format!("{name} is an ordinary program"));
        }
        let (what, advice) = match (&program.loading, program.is_foreign) {
            (_, true) => (
                format!("{name} is of 32 bits or of another machine: the library is not loaded"),
                "Use a build of it for this machine.",
            ),
            _ if program.is_go => (
                format!(
                    "{name} is a Go program: Go calls the kernel itself, whatever is preloaded"
                ),
                "Nothing: its connections stay on TCP, and the other ends' with them.",
            ),
            (Loading::Static, _) => (
                format!("{name} is linked statically: nothing can be preloaded"),
                "Use a build of it that is linked dynamically.",
            ),
            (Loading::Loader(loader), _) if loader.contains("ld-musl") => (
                format!("{name} uses musl ({loader}): the library is for glibc"),
                "Use a build of it for glibc.",
            ),
            (Loading::Loader(loader), _) => {
                return self.ok("libc-of-program", format!("{name} is loaded by {loader}"));
            }
            (Loading::Unknown, _) => {
                (format!("{name} is no program that the loader knows"), "Name the program itself.")
            }
        };
        self.add("libc-of-program", Grade::Stop, what, advice);
    }

    // ---- where earlier stacks had them -----------------------------------------------------------

    /// Files of the historic stacks that nothing reads any more, and what has taken their place.
    fn historic(&mut self) {
        const RULES: &str = "Rules are in /etc/libsdp.conf: sdp config convert --to use --output /etc/libsdp.conf FILE.";
        const PLACES: [(&str, &str); 6] = [
            ("etc/sdp.conf", RULES),
            ("usr/local/etc/libsdp.conf", RULES),
            ("usr/local/topspin/etc/libsdp.conf", RULES),
            ("usr/local/ofed/etc/libsdp.conf", RULES),
            ("sys/module/ib_sdp/parameters", "Tunables are shown and set by: sdp tune."),
            ("proc/net/sdp", "Connections are shown by: sdpnetstat -Sn, sdp stat."),
        ];
        for (name, advice) in PLACES {
            if self.path(name).exists() {
                let what = format!("/{name} of an earlier stack is there, and is not read");
                self.add("historic", Grade::Note, what, advice);
            }
        }
        // Ours is a link to libsdp.so.1.
        let old = self.path("usr/lib64/libsdp.so");
        let is_link = fs::symlink_metadata(&old).is_ok_and(|m| m.file_type().is_symlink());
        if old.exists() && !is_link {
            let what =
                "/usr/lib64/libsdp.so is no link to libsdp.so.1: a library of an earlier stack"
                    .to_string();
            self.add("historic", Grade::Note, what, "Preload libsdp.so.1, or remove the old one.");
        }
    }

    // ---- settings ----------------------------------------------------------------------------

    fn rules(&mut self, program: Option<&Path>) {
        let file = self.path("etc/libsdp.conf");
        let other = (!self.is_here).then_some(file.as_path()).filter(|p| p.exists());
        let texts = match Texts::load(Vec::new(), other) {
            Ok(texts) => texts,
            Err(why) => {
                let what = format!("{why}: every connection may use both, whatever the file says");
                let advice = "Make it a regular file that every user can read (mode 644).";
                self.add("rules", Grade::Slow, what, advice);
                return;
            }
        };
        let mut config = texts.config();
        let (_, errors, _) = render(&texts, &config);
        if errors > 0 {
            let first = config.diagnostics().iter().find(|d| d.severity() == RuleSeverity::Error);
            let place =
                first.map_or(String::new(), |d| format!(", the first in line {}", d.place.line));
            let what =
                format!("{}: {errors} bad lines{place}", texts.name(sdp_config::Source::File));
            self.add("rules", Grade::Slow, what, "See each with: sdp config check.");
        }
        config.check_reachability();
        let name = program.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "any program".to_string());
        let always = |role| config.always(role, name.as_bytes());
        if always(Role::Server) == Some(Family::Tcp) && always(Role::Client) == Some(Family::Tcp) {
            let what = format!("the rules say tcp for every connection of {name}");
            self.add(
                "rules",
                Grade::Stop,
                what,
                "See which with: sdp explain PROGRAM ADDRESS:PORT.",
            );
        } else if errors == 0 {
            let file =
                texts.path.as_ref().map_or("no rule file".into(), |p| p.display().to_string());
            self.ok("rules", format!("{file}, {} rules", config.rules().len()));
        }
        self.tunables(&texts);
    }

    fn tunables(&mut self, texts: &Texts) {
        let variables = || std::env::vars_os().filter(|_| self.is_here);
        let bad: Vec<String> = variables()
            .filter_map(|(name, value)| {
                let entry = format!("{}={}", name.to_string_lossy(), value.to_string_lossy());
                match Tunables::DEFAULT.clone().set_from_env(entry.as_bytes())? {
                    Err(SetError::BadValue(key)) => {
                        Some(format!("{entry} (it takes {})", key.range))
                    }
                    _ => None,
                }
            })
            .collect();
        let all = show::tunables(texts, variables());
        for entry in bad {
            let what = format!("the environment has {entry:?}, which has no effect");
            self.add("tunables", Grade::Slow, what, "Mend the value, or unset it.");
        }
        for tunable in all {
            if tunable.key == "fabrics" && !tunable.value.contains("shm") {
                let what = format!(
                    "fabrics is {:?} ({}): no lane between processes of this host",
                    tunable.value, tunable.origin
                );
                self.add("tunables", Grade::Stop, what, "Unset it.");
            } else if tunable.key == "test_lane_flip" && tunable.value != "0" {
                let what =
                    format!("test_lane_flip is set ({}): lanes switch at random", tunable.origin);
                self.add("tunables", Grade::Slow, what, "Unset it; it is for tests.");
            }
        }
    }
}

/// Without characters that could drive a terminal.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Lines of `text` at most `width` wide, behind `indent` blanks from the second on.
pub(crate) fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let len = word.chars().count();
        if column > indent && column + len + 1 > width {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += len;
    }
    out
}

/// How many findings ask for something to be done.
fn to_do(findings: &[Finding]) -> usize {
    findings.iter().filter(|f| f.grade >= Grade::Slow).count()
}

fn text(findings: &[Finding], width: usize) -> String {
    // The checks' names, where the terminal has the room.
    let indent = if width >= 60 { 22 } else { 2 };
    let mut out = String::new();
    for finding in findings {
        let head = format!("{:<4} {:<16} ", finding.grade.word(), finding.check);
        if indent == 2 {
            let _ = write!(out, "{}\n  ", head.trim_end());
        } else {
            out += &head;
        }
        let _ = writeln!(out, "{}", wrapped(&clean(&finding.what), indent, width));
        if !finding.advice.is_empty() {
            let _ = writeln!(
                out,
                "{:indent$}{}",
                "",
                wrapped(&format!("→ {}", finding.advice), indent, width)
            );
        }
    }
    let _ = match to_do(findings) {
        0 => writeln!(out, "\nnothing must be done"),
        1 => writeln!(out, "\n1 thing to do"),
        n => writeln!(out, "\n{n} things to do"),
    };
    out
}

/// Looks at what NFS over RDMA needs; a server that was not named is on this host, or on none.
fn examine_nfs(options: &Options, server: Option<&str>) -> Result<Vec<Finding>, Failure> {
    let root = options.sysroot.clone();
    let is_here = devices::is_this_host(&root);
    let mut doctor = Doctor { root, is_here, findings: Vec::new() };
    let at = crate::nfs::server_address(server.unwrap_or("127.0.0.1"))?;
    doctor.nfs(at, server.is_some());
    Ok(doctor.findings)
}

/// Looks at everything.
pub fn examine(options: &Options) -> Vec<Finding> {
    let root = options.sysroot.clone();
    let is_here = devices::is_this_host(&root);
    let mut doctor = Doctor { root, is_here, findings: Vec::new() };
    if is_here {
        doctor.libc();
    }
    doctor.kernel();
    doctor.library();
    doctor.preload();
    doctor.yama();
    doctor.proc_mount();
    doctor.calls();
    doctor.rdma();
    doctor.containers();
    doctor.process("self", "this shell");
    doctor.historic();
    doctor.rules(options.program.as_deref());
    if let Some(program) = &options.program {
        doctor.program(program);
    }
    for pid in &options.pid {
        doctor.running(*pid);
    }
    if let Some(peer) = &options.peer {
        doctor.peer(peer);
    }
    if let [one, two] = options.pid.as_slice() {
        doctor.pair(*one, *two);
    }
    doctor.findings
}

/// Runs the sub-command; the result is whether nothing must be done.
///
/// # Errors
/// The JSON form cannot be made.
pub fn main(options: &Options) -> Result<bool, Failure> {
    if let Some(at) = &options.answer {
        return ping::answer(&ping::endpoint(at)?).map(|()| true);
    }
    let root = &options.sysroot;
    match fs::metadata(root) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(Failure::new(format!("--sysroot {}", root.display()), "no folder")),
        Err(e) => return Err(Failure::new(format!("--sysroot {}", root.display()), e)),
    }
    if let Some(peer) = &options.peer {
        ping::endpoint(peer)?;
    }
    let findings = match &options.nfs {
        Some(server) => examine_nfs(options, server.as_deref())?,
        None => examine(options),
    };
    show(&findings, options.json)
}

/// Prints findings; the result is whether nothing must be done.
///
/// # Errors
/// The JSON form cannot be made.
pub(crate) fn show(findings: &[Finding], is_json: bool) -> Result<bool, Failure> {
    let is_well = to_do(findings) == 0;
    let out = match is_json {
        true => crate::json(&serde_json::json!({
            "schema": SCHEMA, "ok": is_well, "findings": findings,
        }))?,
        false => text(findings, sys::terminal_width()),
    };
    crate::print(&out);
    Ok(is_well)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_the_terminal() {
        let findings = [Finding {
            check: "seccomp",
            grade: Grade::Slow,
            what: "a long sentence of many words that goes on and on until the line is full".into(),
            advice: "Do this, and that, and then something else, as long as it takes.".into(),
        }];
        for width in [40, 60, 80] {
            let text = text(&findings, width);
            assert!(text.lines().all(|l| l.chars().count() <= width), "{width}\n{text}");
        }
    }
}

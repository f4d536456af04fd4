//! `sdpnetstat`: connections in netstat's columns.
//!
//! `sdp` are connections with a live SDP lane, out of the pages of processes; with neither `-S` nor
//! `-t`, the kernel's TCP connections follow, without the carriers of those. Modes of the historic
//! tool that the system's own netstat, ss and ip answer (routes, interfaces, statistics) do not
//! exist here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use sdp_stats::reader::{ReasonCode, RowView};
use sdp_stats::{Reason, Role};

use crate::kernel::{self, Entry};
use crate::names::{self, Names};
use crate::procs::{self, Process};

/// Connections over the Sockets Direct Protocol, in netstat's columns
#[derive(Debug, Clone, Parser)]
#[command(
    name = "sdpnetstat",
    version,
    disable_help_flag = true,
    disable_version_flag = true,
    after_help = "Routes, interfaces, groups, statistics, other protocols: see ip and ss."
)]
pub struct Options {
    /// SDP connections only
    #[arg(short = 'S', long)]
    pub sdp: bool,
    /// TCP connections only
    #[arg(short = 't', long)]
    pub tcp: bool,
    /// Numbers instead of names
    #[arg(short = 'n', long)]
    pub numeric: bool,
    /// Numbers instead of names of hosts
    #[arg(long)]
    pub numeric_hosts: bool,
    /// Numbers instead of names of ports
    #[arg(long)]
    pub numeric_ports: bool,
    /// Numbers instead of names of users
    #[arg(long)]
    pub numeric_users: bool,
    /// Listening sockets too
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Listening sockets only
    #[arg(short = 'l', long)]
    pub listening: bool,
    /// Process id and name of the program
    #[arg(short = 'p', long)]
    pub program: bool,
    /// User and inode
    #[arg(short = 'e', long, action = clap::ArgAction::Count)]
    pub extend: u8,
    /// Again each second, until interrupted
    #[arg(short = 'c', long)]
    pub continuous: bool,
    /// Help
    #[arg(short = 'h', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// Version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    pub version: Option<bool>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Socket {
    proto: &'static str,
    receive_queue: u64,
    send_queue: u64,
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
    state: u8,
    uid: u32,
    inode: u64,
    owner: Option<(u32, String)>,
}

const LISTEN: u8 = 10;

impl Options {
    fn wants(&self, state: u8) -> bool {
        match state {
            LISTEN => self.all || self.listening,
            _ => self.all || !self.listening,
        }
    }
}

/// SDP connections and listeners of all pages. A connection that several processes hold is listed
/// once, with the process that uses its lane.
fn sdp_sockets(processes: &[Process]) -> Vec<Socket> {
    let mut seen = HashSet::new();
    let mut sockets = Vec::new();
    for process in processes {
        for row in &process.view.rows {
            let is_listener = row.role == Role::Listener as u8;
            // A listener whose rules say tcp is the kernel's own.
            let is_sdp = match is_listener {
                true => row.halves[0].reason != Some(Reason::RuleTcp.code().into()),
                false => row.has_live_lane(),
            };
            if !is_sdp || !seen.insert((row.carrier, row.inode)) {
                continue;
            }
            sockets.push(Socket {
                proto: "sdp",
                receive_queue: row.halves[1].queued.into(),
                send_queue: row.halves[0].queued.into(),
                local: (names::address(&row.local), row.local.port),
                remote: (names::address(&row.remote), row.remote.port),
                state: if is_listener { LISTEN } else { row.state },
                uid: process.uid,
                inode: row.inode.into(),
                owner: Some((process.pid, process.view.program.clone())),
            });
        }
    }
    sockets
}

/// A socket of the kernel's as a line.
fn tcp_socket(s: Entry) -> Socket {
    Socket {
        proto: if s.is_v6 { "tcp6" } else { "tcp" },
        receive_queue: s.receive_queue,
        send_queue: s.send_queue,
        local: s.local,
        remote: s.remote,
        state: s.state,
        uid: s.uid,
        inode: s.inode,
        owner: None,
    }
}

/// Which process has a socket open, by inode; of other users' processes for root only.
fn owners() -> HashMap<u64, (u32, String)> {
    let mut owners = HashMap::new();
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    for process in entries(Path::new("/proc")) {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        for descriptor in entries(&process.path().join("fd")) {
            let link = std::fs::read_link(descriptor.path()).unwrap_or_default();
            let link = link.to_string_lossy();
            let inode = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            if let Some(inode) = inode.and_then(|n| n.parse().ok()) {
                owners.entry(inode).or_insert_with(|| (pid, name.clone()));
            }
        }
    }
    owners
}

fn table(options: &Options, names: &Names, sockets: &[Socket]) -> String {
    let mut out = String::new();
    let which = match (options.all, options.listening) {
        (true, _) => "(servers and established)",
        (_, true) => "(only servers)",
        _ => "(w/o servers)",
    };
    let _ = writeln!(out, "Active Internet connections {which}");
    let mut head = format!(
        "{:<5} {:>6} {:>6} {:<23} {:<23} {:<11}",
        "Proto", "Recv-Q", "Send-Q", "Local Address", "Foreign Address", "State"
    );
    if options.extend > 0 {
        let _ = write!(head, " {:<10} {:<10}", "User", "Inode");
    }
    if options.program {
        let _ = write!(head, " {:<19}", "PID/Program name");
    }
    let _ = writeln!(out, "{}", head.trim_end());
    for socket in sockets.iter().filter(|s| options.wants(s.state)) {
        let mut line = format!(
            "{:<5} {:>6} {:>6} {:<23} {:<23} {:<11}",
            socket.proto,
            socket.receive_queue,
            socket.send_queue,
            names.netstat_end(socket.local.0, socket.local.1),
            names.netstat_end(socket.remote.0, socket.remote.1),
            names::state(socket.state),
        );
        if options.extend > 0 {
            let _ = write!(line, " {:<10} {:<10}", names.user(socket.uid), socket.inode);
        }
        if options.program {
            let owner = socket.owner.as_ref();
            let owner = owner.map_or("-".to_string(), |(pid, name)| format!("{pid}/{name}"));
            let _ = write!(line, " {owner:<19}");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// Names that the options want.
fn wanted_names(options: &Options) -> Names {
    let mut names = if options.numeric { Names::none() } else { Names::load() };
    if options.numeric_hosts {
        names.forget_hosts();
    }
    if options.numeric_ports {
        names.forget_ports();
    }
    if options.numeric_users {
        names.forget_users();
    }
    names
}

/// Why there are no SDP connections, where the library has some on TCP, or others' are not shown; for stderr.
fn why_none(processes: &[Process]) -> Option<String> {
    let is_open = |row: &&RowView| row.role != Role::Listener as u8;
    let rows = || processes.iter().flat_map(|process| process.view.rows.iter()).filter(is_open);
    if rows().any(|row| row.has_live_lane()) {
        return None;
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows() {
        let code = row.halves.iter().find_map(|half| half.reason);
        let word = code.map_or("no reason yet".to_string(), |code| ReasonCode(code).to_string());
        *reasons.entry(word).or_default() += 1;
    }
    let all: Vec<_> = reasons.iter().map(|(word, count)| format!("{word} {count}")).collect();
    let ends = match rows().count() {
        0 => "no connection of a process with the library".to_string(),
        1 => format!("1 connection end with the library is on TCP: {}", all.join(", ")),
        n => format!("{n} connection ends with the library are on TCP: {}", all.join(", ")),
    };
    Some(format!("{ends}{}", crate::stat::others_note()))
}

/// The present sockets.
fn sockets(options: &Options, processes: &[Process]) -> Vec<Socket> {
    let sdp = sdp_sockets(processes);
    let both = options.sdp == options.tcp;
    let carriers: HashSet<u64> =
        sdp.iter().filter(|s| s.state != LISTEN).map(|s| s.inode).collect();
    let mut sockets = if both || options.sdp { sdp } else { Vec::new() };
    if both || options.tcp {
        // A page keeps 32 bits of the inode.
        let is_carrier = |s: &Socket| carriers.contains(&(s.inode & 0xffff_ffff));
        let mut owners = if options.program { owners() } else { HashMap::new() };
        let mut tcp: Vec<_> = kernel::list(Path::new("/proc/self"))
            .into_iter()
            .map(tcp_socket)
            .filter(|s| !is_carrier(s))
            .collect();
        for socket in &mut tcp {
            socket.owner = owners.remove(&socket.inode);
        }
        sockets.extend(tcp);
    }
    sockets
}

/// Runs the command.
pub fn main(options: &Options) {
    let names = wanted_names(options);
    loop {
        let processes = procs::find(None);
        let sockets = sockets(options, &processes);
        let is_read = crate::try_print(&table(options, &names, &sockets)).is_ok();
        if options.sdp
            && !options.continuous
            && let Some(why) = why_none(&processes)
        {
            eprintln!("sdpnetstat: {why}");
        }
        if !options.continuous || !is_read {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1389 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0
   1: 0100007F:1389 0100007F:A0E6 01 00000010:00000020 00:00000000 00000000     0        0 77 1 0
rubbish
";

    fn of_text(proto: &'static str) -> Vec<Socket> {
        kernel::entries(TCP).map(|e| Socket { proto, ..tcp_socket(e) }).collect()
    }

    fn options(arguments: &[&str]) -> Options {
        Options::try_parse_from([&["sdpnetstat"], arguments].concat()).unwrap()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read() {
        let sockets = of_text("tcp");
        assert_eq!(sockets.len(), 2);
        assert_eq!(sockets[0].local, ("127.0.0.1".parse().unwrap(), 5001));
        assert_eq!((sockets[1].send_queue, sockets[1].receive_queue), (16, 32));
        assert_eq!((sockets[1].inode, sockets[0].uid), (77, 1000));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn columns_are_those_of_netstat() {
        let sockets = of_text("sdp");
        let text = table(&options(&["-Sn"]), &Names::none(), &sockets);
        let expected = "\
Active Internet connections (w/o servers)
Proto Recv-Q Send-Q Local Address           Foreign Address         State
sdp       32     16 127.0.0.1:5001          127.0.0.1:41190         ESTABLISHED
";
        assert_eq!(text, expected);
        let text = table(&options(&["-S", "-a", "-n", "-p", "-e"]), &Names::none(), &sockets);
        let expected = "\
Active Internet connections (servers and established)
Proto Recv-Q Send-Q Local Address           Foreign Address         State       User       Inode      PID/Program name
sdp        0      0 127.0.0.1:5001          0.0.0.0:*               LISTEN      1000       4242       -
sdp       32     16 127.0.0.1:5001          127.0.0.1:41190         ESTABLISHED 0          77         -
";
        assert_eq!(text, expected);
        let text = table(&options(&["-Sln"]), &Names::none(), &sockets);
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("(only servers)") && text.contains("LISTEN"));
    }
}

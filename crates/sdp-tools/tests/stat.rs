//! `sdp stat` and `sdpnetstat` against the page of a running process.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;

use common::{make_page, sdp};
use sdp_stats::{
    ConnState, Direction, Endpoint, Fabric, Lane, Mode, NewRow, Reason, Role, Verdict,
};
use serde_json::{Value, json};

/// Not a test: a process with a page of three rows, until its stdin ends.
#[test]
fn role() {
    if std::env::var_os("SDP_TEST_ROLE").is_none() {
        return;
    }
    let (_fd, page) = make_page(b"pretend\"er");
    let base = NewRow {
        carrier: 1,
        inode: 4_000_000_001,
        fd: 7,
        local: Endpoint::v4([127, 0, 0, 1], 6379),
        remote: Endpoint::v4([127, 0, 0, 1], 40_001),
        is_v6: false,
        is_adopted: false,
        role: Role::Server,
        state: ConnState::Established,
    };
    let live = page.open_row(&base);
    let word = AtomicU32::new(0);
    page.count_seen(Verdict::at(&word), Reason::TooYoung);
    page.promoted(live, Direction::Send, Fabric::Shm);
    page.show_mode(live, Direction::Send, Mode::Combined);
    page.show_flow(live, Direction::Send, 11, 65_536, 300);
    page.show_flow(live, Direction::Receive, 0, 0, 20);
    page.count_sdp(Verdict::at(&word), Fabric::Shm);
    page.moved(live, Direction::Send, Lane::Sdp, 2048);
    let remote = Endpoint::v6([0xfe; 16], 9);
    let candidate = page.open_row(&NewRow { carrier: 2, inode: 2, fd: 8, remote, ..base });
    page.show_reason(candidate, Direction::Send, Reason::TooYoung);
    page.count_seen(Verdict::at(&AtomicU32::new(0)), Reason::TooYoung);
    let listener = NewRow {
        carrier: 3,
        inode: 3,
        fd: 3,
        local: Endpoint::v4([0; 4], 6379),
        remote: Endpoint::v4([0; 4], 0),
        role: Role::Listener,
        state: ConnState::Listen,
        ..base
    };
    page.open_row(&listener);
    eprintln!("up");
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

struct Pretender(Child);

impl Pretender {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture"]).env("SDP_TEST_ROLE", "stat");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        Self(child)
    }

    fn stat(&self, extra: &[&str]) -> String {
        let pid = self.0.id().to_string();
        let output = sdp().args(["stat", "--pid", &pid]).args(extra).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Pretender {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn stat_shows_connections() {
    let pretender = Pretender::start();
    let pid = pretender.0.id();
    let value: Value = serde_json::from_str(&pretender.stat(&["--json"])).unwrap();
    assert_eq!(value["schema"], 1);
    let process = &value["processes"][0];
    assert_eq!(process["pid"], pid);
    assert_eq!(process["program"], "pretend\"er");
    assert_eq!((&process["seen"], &process["sdp"]), (&json!(2), &json!(1)));
    assert_eq!(process["reasons"], json!({"too-young": 1}));
    let connections = process["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 3);
    assert_eq!(connections[0]["local"], "127.0.0.1:6379");
    assert_eq!(
        connections[0]["send"],
        json!({"lane": "sdp", "fabric": "shm", "mode": "combined", "reason": null,
               "sdp_bytes": 2048, "tcp_bytes": 0, "queued": 300, "credits": 11,
               "threshold": 65536, "promoted": 1, "demoted": 0})
    );
    assert_eq!(connections[1]["send"]["reason"], "too-young");
    assert_eq!(connections[2]["state"], "LISTEN");

    let text = pretender.stat(&[]);
    assert!(text.contains("shm/combined") && text.contains("tcp:too-young"), "{text}");
    let text = pretender.stat(&["--prometheus"]);
    let line = format!(
        "sdp_bytes_total{{pid=\"{pid}\",program=\"pretend\\\"er\",lane=\"sdp\",direction=\"sent\"}} 2048"
    );
    assert!(text.lines().any(|l| l == line), "{text}");

    // Without --pid it is found too.
    let all = sdp().args(["stat", "--json"]).output().unwrap();
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    assert!(all["processes"].as_array().unwrap().iter().any(|p| p["pid"] == pid));
}

#[test]
fn sdpnetstat_shows_live_lanes_once() {
    let pretender = Pretender::start();
    let pid = pretender.0.id();
    let netstat = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_sdpnetstat")).args(arguments).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let owner = format!("{pid}/");
        let mine = text.lines().filter(|l| l.contains(&owner)).map(String::from);
        mine.collect::<Vec<_>>()
    };
    let expected = format!(
        "sdp       20    300 127.0.0.1:6379          127.0.0.1:40001         ESTABLISHED {pid}/pretend\"er"
    );
    assert_eq!(netstat(&["-Snp"]), [expected.as_str()]);
    let all = netstat(&["-S", "-a", "-n", "-p"]);
    assert_eq!(all.len(), 2, "the candidate has no live lane: {all:?}");
    assert!(all[1].contains("0.0.0.0:6379") && all[1].contains("LISTEN"));
    assert_eq!(netstat(&["-Snpl"]).len(), 1);
    assert_eq!(netstat(&["-tanp"]).len(), 0);
}

#[test]
fn processes_without_a_page_are_an_error_with_a_reason() {
    let mut child = Command::new("sleep").arg("10").spawn().unwrap();
    let output = sdp().args(["stat", "--pid", &child.id().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no counters"));
    child.kill().unwrap();
    child.wait().unwrap();
    let output = sdp().args(["stat", "--pid", "4194305"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no such process"));
}

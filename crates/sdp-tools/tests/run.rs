//! `sdp run`: exit statuses, signals, environment, and reports made from pages that a test process
//! hands in the way the library does.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU32;

use common::{HandIn, Scratch, hand_in, make_page, sdp};
use sdp_stats::{
    ConnState, Counter, Direction, Endpoint, Fabric, Lane, NewRow, Reason, Role, Verdict,
};
use serde_json::{Value, json};

fn status(arguments: &[&str]) -> i32 {
    sdp().arg("run").args(arguments).stderr(Stdio::null()).status().unwrap().code().unwrap()
}

fn report(arguments: &[&str], command: &mut Command) -> (Value, i32) {
    let scratch = Scratch::new(&format!("report-{}", random_name()));
    let file = scratch.file("report.json");
    let status = command.arg("run").arg("--report").arg(&file).args(arguments).status().unwrap();
    let text = std::fs::read_to_string(&file).expect("a report was written");
    (serde_json::from_str(&text).expect("the report is JSON"), status.code().unwrap())
}

fn random_name() -> String {
    let mut bytes = [0; 8];
    sdp_tools::sys::random(&mut bytes).unwrap();
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

#[test]
fn exit_statuses() {
    assert_eq!(status(&["true"]), 0);
    assert_eq!(status(&["--", "sh", "-c", "exit 7"]), 7);
    assert_eq!(status(&["sh", "-c", "kill -9 $$"]), 128 + 9);
    assert_eq!(status(&["sh", "-c", "kill -TERM $$"]), 128 + 15);
    assert_eq!(status(&["no-such-command-anywhere"]), 127);
    assert_eq!(status(&["/no/such/file"]), 127);
    assert_eq!(status(&["/"]), 126);
    assert_eq!(status(&["/etc/passwd"]), 126);
    assert_eq!(status(&[]), 125);
    assert_eq!(status(&["--no-such-option", "true"]), 125);
    assert_eq!(status(&["--rule", "use nonsense", "true"]), 125);
    assert_eq!(status(&["--set", "recv_poll=soon", "true"]), 125);
    assert_eq!(status(&["--log", "12", "true"]), 125);
    assert_eq!(status(&["--config", "/no/such/file", "true"]), 125);
    assert_eq!(status(&["--report", "/no/such/dir/report", "true"]), 125);
    assert_eq!(status(&["--config", "/dev/null", "--no-config", "true"]), 125);
    let missing = sdp().env("SDP_LIBRARY", "/no/lib").args(["run", "true"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/lib"));
}

#[test]
fn nothing_is_added_to_the_output() {
    let script = "echo out; echo err >&2; cat";
    let output = sdp().args(["run", "sh", "-c", script]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
}

#[test]
fn options_after_the_command_are_its_own() {
    let output = sdp().args(["run", "echo", "--summary", "--", "-n"]).output().unwrap();
    assert_eq!(output.stdout, b"--summary -- -n\n");
}

#[test]
fn the_environment_carries_rules_tunables_and_library() {
    let script = "echo $LD_PRELOAD; echo $SDP_RECV_POLL; echo $LIBSDP_CONFIG_FILE; echo \"$SDP_RULES\"; echo ${SDP_REPORT-none}";
    let run = |arguments: &[&str], outer: &[(&str, &str)]| {
        let mut command = sdp();
        command.envs(outer.iter().copied()).arg("run").args(arguments).args(["sh", "-c", script]);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect::<Vec<_>>()
    };
    let library = std::fs::canonicalize(common::harmless_library()).unwrap();
    let lines = run(
        &[
            "--set",
            "recv_poll=5",
            "--config",
            "/dev/null",
            "--rule",
            "use sdp client * *:1",
            "--tcp",
            "--log",
            "3",
        ],
        &[("SDP_RULES", "use both client * *:9"), ("LD_PRELOAD", library.to_str().unwrap())],
    );
    let expected = [
        library.to_str().unwrap(),
        "5",
        "/dev/null",
        "log min-level 3 destination stderr",
        "use tcp server * *:*",
        "use tcp client * *:*",
        "use sdp client * *:1",
        "use both client * *:9",
        "none",
    ];
    assert_eq!(lines, expected);
    let lines = run(&["--no-config"], &[]);
    assert_eq!(lines[1..], ["", "", "", "none"]);
}

#[test]
fn a_command_without_the_library_gives_an_empty_report() {
    let (report, code) = report(&["sh", "-c", "exit 3"], &mut sdp());
    assert_eq!(code, 3);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["command"], json!(["sh", "-c", "exit 3"]));
    assert_eq!(report["exit"], json!({"code": 3}));
    assert_eq!(report["processes"], 0);
    assert_eq!(report["connections"], json!({"seen": 0, "sdp": 0, "tcp": 0}));
    assert_eq!(report["reasons"], json!({}));
    assert!(report["wall_s"].as_f64().unwrap() >= 0.0);
    assert!(report["user_s"].is_f64() && report["system_s"].is_f64());
    let output = sdp().args(["run", "--summary", "true"]).output().unwrap();
    assert_eq!(output.stdout, b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no process handed in counters"));
}

#[test]
fn a_report_may_go_to_stdout_and_names_a_signal() {
    let output = sdp().args(["run", "--report", "-", "sh", "-c", "kill -9 $$"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["exit"], json!({"signal": 9}));
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn cpu_of_the_command_is_counted() {
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
    let (report, _) = report(&["sh", "-c", script], &mut sdp());
    let cpu = report["user_s"].as_f64().unwrap() + report["system_s"].as_f64().unwrap();
    assert!(cpu > 0.0, "{report}");
}

#[test]
fn signals_are_handed_on() {
    for (signal, name) in [(libc::SIGTERM, "TERM"), (libc::SIGUSR1, "USR1"), (libc::SIGHUP, "HUP")]
    {
        let script =
            format!("trap 'echo got; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child =
            sdp().args(["run", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        sdp_tools::sys::kill(child.id(), signal);
        assert_eq!(lines.next().unwrap().unwrap(), "got", "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn the_command_gets_its_signal_mask_and_dispositions_back() {
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    let sets = |command: &mut Command| -> Vec<u64> {
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let hex = output.split_whitespace().filter_map(|w| u64::from_str_radix(w, 16).ok());
        // Signals 32 and 33 are the C library's own.
        hex.map(|set| set & !(3 << 31)).collect()
    };
    let direct = sets(Command::new("sh").args(["-c", script]));
    assert_eq!(direct.len(), 2);
    assert_eq!(direct, sets(sdp().args(["run", "--summary", "sh", "-c", script])));
}

#[test]
fn it_works_where_child_signals_are_ignored() {
    let script = format!("trap '' CHLD; exec {} run sh -c 'exit 4'", env!("CARGO_BIN_EXE_sdp"));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("SDP_LIBRARY", common::harmless_library());
    assert_eq!(command.status().unwrap().code(), Some(4));
}

// ---- the library's side ------------------------------------------------------------------------

/// Not a test: what this file does when it is started under `sdp run` by a test below.
#[test]
fn role() {
    let Ok(role) = std::env::var("SDP_TEST_ROLE") else { return };
    match role.as_str() {
        "one-of-each" => one_of_each(),
        "killed" => killed(),
        "many" => many(),
        "hostile" => hostile(),
        "survivor" => survivor(),
        "executing" => executing(),
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

fn run_role(role: &str) -> (Value, i32) {
    let me = std::env::current_exe().unwrap();
    let me = me.to_str().unwrap();
    let mut command = sdp();
    command.env("SDP_TEST_ROLE", role).stdout(Stdio::null()).stderr(Stdio::null());
    report(&[me, "--exact", "role", "--nocapture"], &mut command)
}

fn row(carrier: u64) -> NewRow {
    NewRow {
        carrier,
        inode: carrier,
        fd: 5,
        local: Endpoint::v4([127, 0, 0, 1], 80),
        remote: Endpoint::v4([127, 0, 0, 1], 4000),
        is_v6: false,
        is_adopted: false,
        role: Role::Server,
        state: ConnState::Established,
    }
}

fn one_of_each() {
    let (fd, page) = make_page(b"one");
    hand_in(&fd, HandIn::Abstract);
    drop(fd);
    let words = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
    for (i, word) in words.iter().enumerate() {
        let id = page.open_row(&row(i as u64));
        page.count_seen(Verdict::at(word), Reason::TooYoung);
        page.moved(id, Direction::Send, Lane::Kernel, 10);
        if i == 0 {
            page.promoted(id, Direction::Send, Fabric::Shm);
            page.moved(id, Direction::Send, Lane::Sdp, 1000);
            page.moved(id, Direction::Receive, Lane::Sdp, 500);
            page.sent_messages(id, 500, 2);
            page.count_sdp(Verdict::at(word), Fabric::Shm);
            page.demoted(id, Direction::Send, Reason::Shared);
        }
        if i == 1 {
            page.count_reason(Verdict::at(word), Reason::RuleTcp);
            page.close_row(id);
        }
    }
}

#[test]
fn counters_reach_the_report() {
    let (report, code) = run_role("one-of-each");
    assert_eq!(code, 0);
    assert_eq!(report["processes"], 1);
    assert_eq!(report["connections"], json!({"seen": 3, "sdp": 1, "tcp": 2}));
    assert_eq!(report["reasons"], json!({"too-young": 1, "rule-tcp": 1}));
    assert_eq!(
        report["bytes"],
        json!({"sdp_sent": 1000, "sdp_received": 500, "tcp_sent": 30, "tcp_received": 0})
    );
    assert_eq!(report["transfers"]["bcopy"], 2);
    assert_eq!(report["fabrics"], json!({"shm": 1, "verbs": 0}));
    assert_eq!(report["switches"], json!({"promoted": 1, "demoted": 1}));
    assert_eq!(report["demotions"], json!({"shared": 1}));
    assert_eq!(report["unreported"], 0);
}

fn killed() {
    let (fd, page) = make_page(b"killed");
    hand_in(&fd, HandIn::Path);
    let id = page.open_row(&row(1));
    page.count_seen(Verdict::at(&AtomicU32::new(0)), Reason::Exec);
    page.moved(id, Direction::Receive, Lane::Kernel, 77);
    sdp_tools::sys::kill(std::process::id(), libc::SIGKILL);
    std::thread::sleep(std::time::Duration::from_secs(10));
}

#[test]
fn a_killed_process_loses_nothing() {
    let (report, code) = run_role("killed");
    assert_eq!(code, 137);
    assert_eq!(report["processes"], 1);
    assert_eq!(report["bytes"]["tcp_received"], 77);
    assert_eq!(report["reasons"], json!({"exec": 1}));
}

/// More processes than are kept mapped: each a fork that ends at once.
const MANY: u64 = 700;

fn many() {
    for i in 0..MANY {
        // SAFETY: the child only uses what was set up before and leaves with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let (fd, page) = make_page(b"many");
            hand_in(&fd, HandIn::Abstract);
            let id = page.open_row(&row(i));
            page.moved(id, Direction::Send, Lane::Sdp, i);
            page.count_sdp(Verdict::at(&AtomicU32::new(0)), Fabric::Shm);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        let status = {
            let mut status = 0;
            // SAFETY: status is valid for writing.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            std::process::ExitStatus::from_raw(status)
        };
        assert!(status.success());
    }
}

#[test]
fn pages_of_ended_processes_are_folded() {
    let (report, code) = run_role("many");
    assert_eq!(code, 0);
    assert_eq!(report["processes"], MANY);
    assert_eq!(report["connections"], json!({"seen": MANY, "sdp": MANY, "tcp": 0}));
    assert_eq!(report["bytes"]["sdp_sent"], MANY * (MANY - 1) / 2);
}

fn hostile() {
    let (fd, page) = make_page(b"good");
    page.count_seen(Verdict::at(&AtomicU32::new(0)), Reason::Exec);
    hand_in(&fd, HandIn::WrongToken);
    hand_in(&fd, HandIn::NoDescriptor);
    // Wrong size; not sealed; not a page.
    let small = sdp_tools::sys::sealed_memfd(c"sdp-stats", 4096).unwrap();
    hand_in(&small, HandIn::Abstract);
    let file = std::fs::File::open("/dev/null").unwrap();
    hand_in(&file.into(), HandIn::Abstract);
    let blank = sdp_tools::sys::sealed_memfd(c"sdp-stats", sdp_stats::SIZE as u64).unwrap();
    hand_in(&blank, HandIn::Abstract);
    hand_in(&fd, HandIn::Abstract);
}

#[test]
fn what_is_no_page_is_refused_and_counted() {
    let (report, code) = run_role("hostile");
    assert_eq!(code, 0);
    assert_eq!(report["processes"], 1);
    assert_eq!(report["connections"]["seen"], 1);
    assert_eq!(report["unreported"], 5);
}

fn survivor() {
    let (fd, page) = make_page(b"survivor");
    hand_in(&fd, HandIn::Abstract);
    let id = page.open_row(&row(1));
    page.moved(id, Direction::Send, Lane::Kernel, 5);
    // SAFETY: the child only sleeps and leaves.
    if unsafe { libc::fork() } == 0 {
        page.moved(id, Direction::Send, Lane::Kernel, 5);
        std::thread::sleep(std::time::Duration::from_millis(300));
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    while page_sent(page) < 10 {
        std::thread::yield_now();
    }
}

fn page_sent(page: &sdp_stats::Page) -> u64 {
    // SAFETY: a page is SIZE bytes of integers; another process's stores are met by atomic loads.
    let words = unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(page).cast::<std::sync::atomic::AtomicU64>(),
            sdp_stats::SIZE / 8,
        )
    };
    let words: Vec<u64> =
        words.iter().map(|w| w.load(std::sync::atomic::Ordering::Relaxed)).collect();
    let view = sdp_stats::reader::parse(&words).unwrap();
    view.sums.counter(Direction::Send, Counter::TcpBytes)
}

/// Hands in a page, then becomes a program that hands in another.
fn executing() {
    use std::os::unix::process::CommandExt;
    let (fd, page) = make_page(b"before");
    hand_in(&fd, HandIn::Abstract);
    let id = page.open_row(&row(1));
    page.moved(id, Direction::Send, Lane::Kernel, 5);
    let me = std::env::current_exe().unwrap();
    let failed =
        Command::new(me).args(["--exact", "role"]).env("SDP_TEST_ROLE", "one-of-each").exec();
    panic!("{failed}");
}

#[test]
fn a_process_that_executes_is_one_process() {
    let (report, code) = run_role("executing");
    assert_eq!(code, 0);
    assert_eq!(report["processes"], 1);
    assert_eq!(report["bytes"]["tcp_sent"], 35);
}

#[test]
fn processes_that_live_on_count_as_they_stand() {
    let (report, code) = run_role("survivor");
    assert_eq!(code, 0);
    assert_eq!(report["bytes"]["tcp_sent"], 10);
}

/// Times that the collector's thread of a running `sdp run` has gone to sleep.
fn collector_sleeps(pid: u32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut named = tasks.map(|task| task.path()).filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "collect")
    });
    let status = std::fs::read_to_string(named.next()?.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

#[test]
fn the_collector_sleeps_until_something_happens() {
    let scratch = Scratch::new("asleep");
    let file = scratch.file("report.json");
    let mut run = sdp();
    run.arg("run").arg("--report").arg(&file).arg("cat").stdin(Stdio::piped());
    let mut run = run.spawn().unwrap();
    // A thread that looked now and then would go to sleep again between any two looks of ours.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let mut before = None;
    loop {
        let sleeps = collector_sleeps(run.id());
        if sleeps.is_some() && sleeps == before {
            break;
        }
        assert!(std::time::Instant::now() < end, "it never stayed asleep");
        before = sleeps;
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"processes\""));
}

#[test]
fn nothing_is_left_behind() {
    let scratch = Scratch::new("left");
    let mut command = sdp();
    command.env("TMPDIR", &scratch.0);
    let status = command.args(["run", "--summary", "true"]).stderr(Stdio::null()).status().unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
}

//! `sdp perf` end to end, both pairs on TCP (a harmless library stands in for ours): the figures
//! are well-formed, and none claims SDP without proof. No figure is judged.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

fn perf(arguments: &[&str]) -> Value {
    let mut command = common::sdp();
    command.arg("perf").args(arguments).args(["--seconds", "0.1", "--json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn check(value: &Value, unit: &str) {
    assert_eq!(value["schema"], 1);
    assert_eq!(value["unit"], unit);
    for side in ["tcp", "sdp"] {
        let figure = &value[side]["value"];
        let at = |name: &str| figure[name].as_f64().unwrap();
        assert!(
            0.0 < at("min") && at("min") <= at("median") && at("median") <= at("max"),
            "{value}"
        );
        assert!(value[side]["cpu"]["median"].as_f64().unwrap() > 0.0, "{value}");
    }
    let ratio = &value["ratio"];
    assert!(ratio["low"].as_f64() <= ratio["median"].as_f64());
    assert!(ratio["median"].as_f64() <= ratio["high"].as_f64());
    assert_eq!(value["sdp_share"], Value::Null, "no counters, no claim");
}

#[test]
fn each_test_runs() {
    check(&perf(&["latency", "--rounds", "2"]), "us");
    check(&perf(&["latency", "--rounds", "2", "--connections", "5", "--epoll"]), "us");
    check(&perf(&["latency", "--rounds", "2", "--connections", "3", "--pin", "none"]), "us");
    check(&perf(&["latency", "--rounds", "2", "--size", "100000", "--gap-us", "100"]), "us");
    check(&perf(&["stream", "--rounds", "2", "--pin", "one"]), "GB/s");
    check(&perf(&["stream", "--rounds", "2", "--connections", "3", "--epoll"]), "GB/s");
    check(&perf(&["stream", "--rounds", "1", "--size", "3"]), "GB/s");
    check(&perf(&["rate", "--rounds", "2"]), "Mmsg/s");
    check(&perf(&["connect", "--rounds", "2"]), "us");
    check(&perf(&["call", "--rounds", "2"]), "us");
    for more in [&["latency", "--epoll"][..], &["stream"], &["connect"]] {
        let value = perf(&[more, &["--rounds", "2", "--against", "unix"]].concat());
        assert_eq!(value["test"]["against"], "unix");
        check(&value, value["unit"].as_str().unwrap());
    }
    let value = perf(&["latency", "--rounds", "2"]);
    for side in ["tcp", "sdp"] {
        let at = |name: &str| value[side][name]["median"].as_f64().unwrap();
        assert!(at("p99_us") <= at("p999_us") && value["test"]["against"] == "tcp", "{value}");
    }
    check(&perf(&["latency", "--rounds", "2", "--connections", "3", "--concurrent"]), "us");
    check(&perf(&["latency", "--rounds", "2", "--hogs", "1", "--without", "server"]), "us");
}

#[test]
fn a_report_is_one_page_that_needs_nothing_else() {
    let folder = std::env::temp_dir().join(format!("sdp-report-{}", std::process::id()));
    let mut command = common::sdp();
    command.args(["perf", "report", "--rounds", "1", "--seconds", "0.02", "--out"]).arg(&folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    let form: Value =
        serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let tests = form.as_array().unwrap();
    assert_eq!((tests.len(), page.matches("<div class=\"row\">").count()), (14, 14));
    assert!(["http", "<script", "<link", "<img", "url(", "NaN"].iter().all(|w| !page.contains(w)));
    assert!(page.contains("p99.9") && page.contains("prefers-color-scheme:dark"));
    assert!(page.contains("not known"), "no counters, no claim");
}

#[test]
fn tables_have_a_verdict_per_line() {
    let lines = perf(&["without", "--only", "64 B"]);
    let lines = lines.as_array().unwrap();
    assert_eq!(lines.len(), 2, "one end each");
    for line in lines {
        check(line, "us");
        assert_eq!(line["ratio"]["pairs"], 200);
        let verdict = line["verdict"].as_str().unwrap();
        assert!(["won", "drawn", "lost"].contains(&verdict));
    }
    assert_eq!(perf(&["matrix", "--only", "no such line"]).as_array().unwrap().len(), 0);
}

#[test]
fn quiet_connections_are_counted() {
    let mut command = common::sdp();
    command.args(["perf", "idle", "--connections", "5", "--bulk", "2", "--bulk-mib", "1"]);
    command.args(["--silence", "0.1", "--give-back", "0", "--json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((value["schema"].as_u64(), value["connections"].as_u64()), (Some(1), Some(5)));
    for run in ["tcp", "sdp"] {
        for moment in ["after_small", "after_bulk", "after_silence"] {
            let held = &value[run][moment];
            assert!(held["pss_kib"].as_f64().unwrap() > 0.0, "{value}");
            assert!(held["descriptors"].as_u64().unwrap() > 10, "{value}");
        }
    }
    assert_eq!(value["sdp_share"], Value::Null, "no counters, no claim");
}

#[test]
fn paired_comparisons_have_two_hundred_pairs() {
    let value = perf(&["latency", "--paired"]);
    check(&value, "us");
    assert_eq!(value["ratio"]["pairs"], 200);
}

#[test]
fn the_text_says_that_nothing_is_proved() {
    let mut command = common::sdp();
    command.args(["perf", "latency", "--rounds", "1", "--seconds", "0.05"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("nothing proves"), "{text}");
}

#[test]
fn bad_options_are_one_line() {
    for arguments in [
        &["latency", "--paired", "--rounds", "10"][..],
        &["stream", "--size", "0"],
        &["rate", "--set", "recv_poll=soon"],
        &["idle", "--connections", "3", "--bulk", "4"],
        &["matrix", "--seconds", "0"],
    ] {
        let output = common::sdp().arg("perf").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.starts_with("sdp perf: ") && text.lines().count() == 1, "{text}");
    }
}

/// `sdp perf serve` on loopback, until it is dropped.
struct Serving {
    child: Child,
    at: String,
}

impl Serving {
    fn start() -> Self {
        let mut command = common::sdp();
        command.args(["perf", "serve", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.split(['t', ';']).find(|word| word.starts_with(" 127.")).unwrap();
        Self { child, at: at.trim().to_string() }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn another_machine_is_measured_with_and_nobody_claims_rdma() {
    let serving = Serving::start();
    let peer = ["--peer", &serving.at, "--rounds", "2"];
    for (arguments, unit) in [
        (&["latency"][..], "us"),
        (&["latency", "--connections", "3", "--epoll"], "us"),
        (&["bandwidth", "--size", "100000"], "GB/s"),
        (&["rate", "--connections", "2"], "Mmsg/s"),
    ] {
        let value = perf(&[arguments, &peer].concat());
        check(&value, unit);
        let ends = &value["ends"];
        assert_eq!((&ends["peer"], &ends["fabric"]), (&Value::from(&*serving.at), &Value::Null));
        for (transport, end) in
            [("tcp", "here"), ("tcp", "there"), ("sdp", "here"), ("sdp", "there")]
        {
            let cpu = ends["cpu_ns_per_byte"][transport][end].as_f64().unwrap();
            assert!(cpu > 0.0, "{transport} {end}: {value}");
        }
    }
    let all = perf(&["between", &serving.at, "--rounds", "1"]);
    let units: Vec<_> = all.as_array().unwrap().iter().map(|one| &one["unit"]).collect();
    assert_eq!(units, ["us", "GB/s", "Mmsg/s"]);
    let mut command = common::sdp();
    command.args(["perf", "rate", "--rounds", "1", "--seconds", "0.05", "--peer", &serving.at]);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(text.contains("both rows are TCP") && text.contains("CPU ns/B"), "{text}");
}

/// Why a measurement fails: one line.
fn fault(arguments: &[&str]) -> String {
    let output = common::sdp().arg("perf").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("sdp perf: ") && text.lines().count() == 1, "{text}");
    text
}

#[test]
fn what_stands_in_the_way_of_another_machine_is_a_sentence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        for line in [
            "{\"hello\":{\"protocol\":77,\"version\":\"9\\u001b[2J\"}}\n",
            "SSH-2.0-x\r\n",
            "{\"refused\":\"no\\u0007\"}\n",
            "{\"cpu\":{\"tcp\":1,\"sdp\":1}}\n",
            "{\"hello\":{\"protocol\":1,\"version\":\"9\"}}\n{\"ports\":{\"tcp\":70000,\"sdp\":-1}}\n",
            "",
        ] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; 1024];
            assert!(stream.read(&mut hello).unwrap() > 0);
            stream.write_all(line.as_bytes()).unwrap();
        }
    });
    for expected in [
        "sdp 9?[2J and speaks version 77",
        "is no sdp perf serve",
        "does not measure: no?",
        "is no sdp perf serve",
        "is no sdp perf serve",
        "ended the measurement",
    ] {
        let text = fault(&["latency", "--peer", &at]);
        assert!(text.contains(expected), "{expected}: {text}");
    }
    other.join().unwrap();
    let text = fault(&["latency", "--peer", &at]);
    assert!(
        text.contains("nobody listens at port") && text.contains("sdp perf serve 127"),
        "{text}"
    );
    for (arguments, expected) in [
        (&["connect", "--peer", &at][..], "latency, stream and rate"),
        (&["stream", "--peer", &at, "--size", "268435456", "--connections", "2"], "more than"),
        (&["rate", "--peer", &at, "--rounds", "1", "--seconds", "600"], "longer than a minute"),
        (&["rate", "--peer", "no host"], "no host"),
    ] {
        assert!(fault(arguments).contains(expected), "{arguments:?}");
    }
}

#[test]
fn one_who_asks_for_something_else_is_sent_away_and_the_next_one_served() {
    let serving = Serving::start();
    let ask = |lines: &str| {
        let mut stream = TcpStream::connect(&serving.at).unwrap();
        stream.write_all(lines.as_bytes()).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut said = Vec::new();
        // Reset where something was not read.
        let _ = stream.read_to_end(&mut said);
        String::from_utf8(said).unwrap()
    };
    let until = |lines: &str, expected: &dyn Fn(&str) -> bool| {
        // The one before may still be on its way out.
        for _ in 0..1000 {
            let said = ask(lines);
            if !said.contains("another measurement") {
                assert!(expected(&said), "{lines:.80}: {said}");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("busy for ever");
    };
    let hello = "{\"hello\":{\"protocol\":1,\"version\":\"x\"}}\n";
    let wanted = |kind: &str, size: u64| {
        format!(
            "{hello}{{\"start\":{{\"kind\":\"{kind}\",\"size\":{size},\"connections\":1,\"epoll\":false}}}}\n"
        )
    };
    // Who has heard the last word is not told that the measurement still runs.
    for turn in 0..300 {
        let mut stream = TcpStream::connect(&serving.at).unwrap();
        stream.write_all(format!("{hello}\"cpu\"\n").as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert!(lines.next().unwrap().unwrap().contains("hello"), "{turn}");
        assert!(lines.next().unwrap().unwrap().contains("not its turn"), "{turn}");
    }
    until("GET / HTTP/1.0\r\n\r\n", &str::is_empty);
    until(&"x".repeat(100_000), &str::is_empty);
    until("\"cpu\"\n", &str::is_empty);
    until(&hello.replace('1', "2"), &|said| said.lines().count() == 1 && said.contains("hello"));
    until(&format!("{hello}\"cpu\"\n"), &|said| said.contains("not its turn"));
    until(&format!("{hello}\"end\"\n"), &|said| said.contains("not its turn"));
    until(&wanted("call", 1), &|said| said.contains("latency, stream and rate"));
    until(&wanted("latency", 1 << 40), &|said| said.contains("more than"));
    until(&wanted("sh -c id", 1), &|said| said.lines().count() == 1);
    let twice = wanted("latency", 64) + &wanted("latency", 64)[hello.len()..];
    until(&twice, &|said| said.contains("ports") && said.contains("not its turn"));
    // While one is there, others hear that.
    let mut first = TcpStream::connect(&serving.at).unwrap();
    first.write_all(hello.as_bytes()).unwrap();
    let mut answer = [0; 10];
    while first.read(&mut answer).unwrap() > 0 && !answer.starts_with(b"{\"hello\"") {
        // The one before was on its way out.
        std::thread::sleep(Duration::from_millis(10));
        first = TcpStream::connect(&serving.at).unwrap();
        first.write_all(hello.as_bytes()).unwrap();
    }
    assert!(fault(&["latency", "--peer", &serving.at]).contains("another measurement runs there"));
    drop(first);
    until(&format!("{hello}\"cpu\"\n"), &|said| said.contains("not its turn"));
    check(&perf(&["latency", "--rounds", "1", "--peer", &serving.at]), "us");
}

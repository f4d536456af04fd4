//! `sdp perf` end to end, both pairs on TCP (a harmless library stands in for ours): what is
//! measured is well-formed and nobody claims SDP without proof. No figure is judged.

mod common;

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
    check(&perf(&["latency", "--rounds", "2", "--connections", "3", "--concurrent"]), "us");
    check(&perf(&["latency", "--rounds", "2", "--hogs", "1", "--without", "server"]), "us");
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

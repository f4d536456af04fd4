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
    ] {
        let output = common::sdp().arg("perf").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.starts_with("sdp perf: ") && text.lines().count() == 1, "{text}");
    }
}

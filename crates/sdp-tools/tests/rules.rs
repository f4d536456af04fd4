//! `sdp config check` and `sdp explain` as commands.

mod common;

use common::{Scratch, sdp};
use serde_json::{Value, json};

#[test]
fn errors_fail_the_check_and_warnings_do_not() {
    let scratch = Scratch::new("rules");
    let file = scratch.file("a.conf");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = sdp().args(["config", "check"]).arg(&file).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, out) = check("use both server * *:*\nuse both client * *:*\n");
    assert_eq!(code, 0);
    assert!(
        out.ends_with("2 rules, 0 errors, 0 warnings; what no rule matches gets both\n"),
        "{out}"
    );
    let (code, out) = check("use sdp client java\nuse tcp client java *:389\n");
    assert_eq!(code, 0);
    assert!(out.contains("[never-reached]") && out.contains("2 warnings"), "{out}");
    let (code, out) = check("use sdp client * *:*\nuse sdp server x *:*\nmatch listen *:80\n");
    assert_eq!(code, 0);
    assert!(out.contains("note: 2 rules (first ") && out.contains("[strict-server]"), "{out}");
    let (code, out) = check("use sdp client java *:x\n");
    assert_eq!(code, 1);
    assert!(out.contains(":1:23: error: ") && out.contains("1 error,"), "{out}");
    let missing = sdp().args(["config", "check", "/no/such/file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    // Without a name it is the file that programs would use.
    let output = sdp().env("LIBSDP_CONFIG_FILE", &file).args(["config", "check"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn explanations_for_scripts() {
    let scratch = Scratch::new("explain");
    let file = scratch.file("a.conf");
    std::fs::write(&file, "use tcp server sshd *:*\nuse sdp server * *:5432\n").unwrap();
    let mut command = sdp();
    command.args(["explain", "--server", "--json", "--config"]).arg(&file);
    let output = command.args(["postgres", "0.0.0.0:5432"]).output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = file.to_str().unwrap();
    assert_eq!(
        value,
        json!({
            "schema": 1, "verdict": "sdp", "effective": "sdp", "file": name, "line": 2, "rule": "use sdp server * *:5432",
            "trace": [
                {"file": name, "line": 1, "rule": "use tcp server sshd *:*", "result": "other program"},
                {"file": name, "line": 2, "rule": "use sdp server * *:5432", "result": "matches"},
            ]
        })
    );
    let output = sdp().args(["explain", "x", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn only_regular_files_are_read() {
    let scratch = Scratch::new("fifo");
    let pipe = scratch.file("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for arguments in [vec!["config", "check"], vec!["run", "--config"]] {
        let mut command = sdp();
        command.args(&arguments).arg(&pipe);
        if arguments[0] == "run" {
            command.arg("true");
        }
        let output = command.output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("not a regular file"), "{text}");
    }
}

#[test]
fn simple_mode_reads_no_file() {
    let explain = |simple: bool, arguments: &[&str]| -> Value {
        let mut command = sdp();
        if simple {
            command.env("SIMPLE_LIBSDP", "").env("LIBSDP_CONFIG_FILE", "/no/such/file");
        } else {
            command.env("LIBSDP_CONFIG_FILE", "");
        }
        let output = command
            .args(["explain", "--json", "x", "10.0.0.1:1"])
            .args(arguments)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(explain(false, &[])["verdict"], "both");
    assert_eq!(explain(true, &[])["verdict"], "sdp");
    assert_eq!(explain(true, &["--rule", "use tcp client * *:1"])["verdict"], "tcp");
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    assert_eq!(sdp().args(["stat", "--no-such"]).output().unwrap().status.code(), Some(2));
    assert_eq!(sdp().args(["run", "--no-such"]).output().unwrap().status.code(), Some(125));
    let output = sdp().args(["tune", "recv_poll=1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("--save"), "{text}");
}

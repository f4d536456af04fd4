//! Rule files of a thousand lines: their verdicts do not depend on how they are searched, and a
//! verdict takes few steps. Times are printed by `cargo test --release -p sdp-config --test
//! thousand_rules -- --ignored --nocapture`.

use std::fmt::Write;
use std::time::Instant;

use sdp_config::{Config, Family, MAX_RULES, Role};

const LINES: usize = 1000;
const PROGRAM: &[u8] = b"db2sysc";

fn v4(n: u32) -> [u8; 16] {
    std::net::Ipv4Addr::from(n).to_ipv6_mapped().octets()
}

fn v6(n: u128) -> [u8; 16] {
    std::net::Ipv6Addr::from(0xfd00 << 112 | n).octets()
}

/// Files of a thousand lines, none of which matches `10.255.255.255` or `fd00::` port 9 in this program.
fn files() -> Vec<(&'static str, String)> {
    let file = |line: &dyn Fn(usize) -> String| {
        (0..LINES).fold(String::new(), |mut text, i| {
            let _ = writeln!(text, "{}", line(i));
            text
        })
    };
    vec![
        ("hosts", file(&|i| format!("use tcp client * 10.0.{}.{}:*", i / 250, i % 250 + 1))),
        ("ports", file(&|i| format!("use both client db2* *:{}", 5000 + i))),
        ("hosts of IPv6", file(&|i| format!("use tcp client db2sysc fd00::{:x}:0/112:*", i + 1))),
        ("programs", file(&|i| format!("use tcp client program-{i}-* 10.0.0.0/8:*"))),
        ("servers", file(&|i| format!("use sdp server * 10.0.{}.{}:5001", i / 250, i % 250 + 1))),
        (
            "mixed",
            file(&|i| match i % 4 {
                0 => format!("use tcp client java-{i} *:389"),
                1 => format!("use sdp client db2* 10.{}.0.0/16:50000-50010 # database", i / 4),
                2 => format!("use both server db2sysc *:{}", 1000 + i),
                _ => format!("match destination 192.168.{}.0/24:7 program *", i / 4),
            }),
        ),
        ("match", file(&|i| format!("match program tool{i}"))),
    ]
}

fn load(text: &str) -> Box<Config> {
    let mut config = Box::new(Config::new());
    config.load_text(b"", text.as_bytes());
    let errors: Vec<_> =
        config.diagnostics().iter().filter(|d| d.problem.code() != "mixed-dialects").collect();
    assert!(errors.is_empty(), "{errors:?}");
    config.prepare(PROGRAM);
    config
}

#[test]
fn every_line_counts() {
    for (name, text) in files() {
        let config = load(&text);
        let expected = if name == "match" { 2 * LINES } else { LINES };
        assert_eq!(config.rules().len(), expected, "{name}");
    }
    let config = load(&files()[0].1);
    for i in [0, 1, 7, 8, 249, 250, 998, 999] {
        let address = v4(0x0a00_0000 | (i as u32 / 250) << 8 | (i as u32 % 250 + 1));
        let verdict = config.decide(Role::Client, address, 80);
        assert_eq!((verdict.family, verdict.rule), (Family::Tcp, Some(i)));
        assert_eq!(verdict.place.map(|p| p.line as usize), Some(i + 1));
    }
    assert_eq!(config.decide(Role::Client, v4(0x0aff_ffff), 80).family, Family::Both);
}

/// The first match decides, however it is looked for, also where rules overlap.
#[test]
fn the_index_answers_as_the_rules_do() {
    let mut texts = files();
    let overlapping = (0..LINES).fold(String::new(), |mut text, i| {
        let family = ["sdp", "tcp", "both"][i % 3];
        let role = ["server", "client"][i % 2];
        let program = ["*", "db2*", "java", "db2sysc"][i % 4];
        let address = [
            "*".to_string(),
            format!("10.{}.0.0/{}", i % 5, 8 + i % 20),
            format!("fd00::{:x}/{}", i % 7, 120 - i % 100),
            format!("::ffff:10.0.0.{}", i % 9),
        ];
        let ports = format!("{}-{}", i % 40 * 3 + 1, i % 50 * 4 + 121);
        let _ = writeln!(text, "use {family} {role} {program} {}:{ports}", address[i % 4]);
        text
    });
    texts.push(("overlapping", overlapping));
    for (name, text) in texts {
        let mut config = Box::new(Config::new());
        config.load_text(b"", text.as_bytes());
        for program in [PROGRAM, b"java", b"tool7", b""] {
            config.prepare(program);
            for role in [Role::Server, Role::Client] {
                for n in 0..600u32 {
                    let address = if n % 2 == 0 {
                        v4(0x0a00_0000 + ((n % 5) << 16) + n / 5)
                    } else {
                        v6(u128::from(n % 8) << (n % 3 * 16))
                    };
                    let port = (n * 7 % 400) as u16;
                    assert_eq!(
                        config.decide(role, address, port),
                        config.evaluate(role, program, address, port),
                        "{name} {role:?} {n}"
                    );
                }
            }
        }
    }
}

/// The rules that name the program bound the cost of a verdict: eight of IPv4 or four of IPv6 a
/// step.
#[test]
fn a_verdict_takes_few_steps() {
    for (name, text) in files() {
        let config = load(&text);
        let (v4, v6) = (config.steps(Role::Client, true), config.steps(Role::Client, false));
        let expected = match name {
            "hosts" => (125, 0),
            "ports" => (125, 250),
            "hosts of IPv6" => (0, 250),
            "programs" | "servers" | "match" => (0, 0),
            "mixed" => (63, 0),
            _ => unreachable!("{name}"),
        };
        assert_eq!((v4, v6), expected, "{name}");
    }
    let full = "use tcp client * 10.0.0.1:*\n".repeat(MAX_RULES);
    assert_eq!(load(&full).steps(Role::Client, true), MAX_RULES / 8);
}

#[test]
fn nothing_is_left_of_rules_that_were_cleared() {
    let mut config = load(&files()[0].1);
    config.clear();
    assert_eq!((config.rules().len(), config.steps(Role::Client, true)), (0, 0));
    assert_eq!(config.decide(Role::Client, v4(0x0a00_0001), 80).family, Family::Both);
    config.load_text(b"", b"use tcp client * 10.0.0.1:*\n");
    config.prepare(PROGRAM);
    assert_eq!(config.decide(Role::Client, v4(0x0a00_0001), 80).family, Family::Tcp);
    assert_eq!(config.decide(Role::Client, v4(0x0a00_0002), 80).family, Family::Both);
}

#[test]
#[ignore = "prints times"]
fn times() {
    for (name, text) in files() {
        let mut config = Box::new(Config::new());
        let mut least = [u128::MAX; 2];
        for _ in 0..20 {
            config.clear();
            let start = Instant::now();
            config.load_text(b"", text.as_bytes());
            config.prepare(PROGRAM);
            least[0] = least[0].min(start.elapsed().as_nanos());
            let start = Instant::now();
            for n in 0..1000 {
                let address = std::hint::black_box(v4(0x0aff_ffff - n % 2));
                std::hint::black_box(config.decide(Role::Client, address, 9));
                let address = std::hint::black_box(v6(u128::from(n % 2)));
                std::hint::black_box(config.decide(Role::Client, address, 9));
            }
            least[1] = least[1].min(start.elapsed().as_nanos() / 2000);
        }
        println!(
            "{name:<14} {} rules: parsed in {} us, evaluated in {} ns",
            config.rules().len(),
            least[0] / 1000,
            least[1]
        );
    }
}

//! The language of `libsdp.conf` against its description (`docs/spec/libsdp-conf.md`): each
//! example, each tolerance, and how the historic parsers read it.

use sdp_config::{Config, Dialect, Family, LogDestination, Problem, Role, Severity, Source};

fn load(text: &str) -> Box<Config> {
    let mut config = Box::new(Config::new());
    config.load_text(b"", text.as_bytes());
    config
}

fn problems(config: &Config) -> Vec<Problem> {
    config.diagnostics().iter().map(|d| d.problem).collect()
}

/// `role family program address ports`, one per rule, to compare with.
fn show(config: &Config) -> Vec<String> {
    use sdp_config::AddressMatch;
    let show_one = |r: &sdp_config::Rule| {
        let address = match r.address {
            AddressMatch::Any => "*".to_string(),
            AddressMatch::V4 { addr, prefix } => {
                format!("{}/{prefix}", std::net::Ipv4Addr::from(addr))
            }
            AddressMatch::V6 { addr, prefix } => {
                format!("{}/{prefix}", std::net::Ipv6Addr::from(addr))
            }
        };
        let ports = match (r.ports.first, r.ports.last) {
            (0, 65535) => "*".to_string(),
            (a, b) if a == b => a.to_string(),
            (a, b) => format!("{a}-{b}"),
        };
        let program = String::from_utf8_lossy(config.text(r.program)).into_owned();
        format!("{} {} {program} {address}:{ports}", r.role.word(), r.family.word())
    };
    config.rules().iter().map(show_one).collect()
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
    std::net::Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets()
}

mod examples {
    use super::Problem::{self, *};

    /// Lines, the rules they give, and the diagnostics.
    pub(super) const LINES: &[(&str, &[&str], &[Problem])] = &[
        // Lines that the historic parsers of both generations accept.
        ("use sdp connect * 192.168.1.0/24:*", &["client sdp * 192.168.1.0/24:*"], &[]),
        ("use sdp connect * 1234:5678::0/64:*", &["client sdp * 1234:5678::/64:*"], &[]),
        ("use sdp listen ttcp * : 5001 - 5002", &["server sdp ttcp *:5001-5002"], &[]),
        ("use sdp connect * 10.0.0.1/8 : 22", &["client sdp * 10.0.0.0/8:22"], &[HostBits]),
        ("use sdp listen ttcp *:5001 # note", &["server sdp ttcp *:5001"], &[]),
        ("use sdp listen ttcp *:5001# note", &["server sdp ttcp *:5001"], &[]),
        ("use both server * *:* ", &["server both * *:*"], &[]),
        ("use both client * *:*", &["client both * *:*"], &[]),
        ("use tcp client java *:389", &["client tcp java *:389"], &[]),
        ("usesdplisten x *:1", &["server sdp x *:1"], &[]),
        ("use sdp connect * fe80::1:5001", &["client sdp * fe80::1/128:5001"], &[]),
        ("use sdp server * :::*", &["server sdp * ::/128:*"], &[]),
        ("use sdp server * *:0", &["server sdp * *:0"], &[]),
        ("\tuse\tsdp  server *\t*:7", &["server sdp * *:7"], &[]),
        ("log", &[], &[]),
        ("", &[], &[]),
        ("   ", &[], &[]),
        ("# use sdp server * *:*", &[], &[]),
        ("   # comment", &[], &[]),
        // Lines that they reject and this one reads, with a warning where others would fail.
        ("use sdp listen log *:5001", &["server sdp log *:5001"], &[]),
        ("use sdp listen 123 *:5001", &["server sdp 123 *:5001"], &[]),
        ("use sdp connect * FE80::1:5001", &["client sdp * fe80::1/128:5001"], &[AddressSpelling]),
        (
            "use sdp connect * [fe80::1]:5001",
            &["client sdp * fe80::1/128:5001"],
            &[AddressSpelling],
        ),
        ("USE sdp Server * *:*", &["server sdp * *:*"], &[KeywordCase, KeywordCase]),
        ("use sdp client java", &["client sdp java *:*"], &[MissingTarget]),
        ("use sdp server db2*", &["server sdp db2* *:*"], &[MissingTarget]),
        (" use tcp server db2*", &["server tcp db2* *:*"], &[MissingTarget]),
        ("use both server *", &["server both * *:*"], &[MissingTarget]),
        ("use both server * : ", &["server both * *:*"], &[MissingTarget, MissingPort]),
        ("use both client * : ", &["client both * *:*"], &[MissingTarget, MissingPort]),
        ("use sdp client java # comment", &["client sdp java *:*"], &[MissingTarget]),
        ("use sdp client * 10.0.0.0/8", &["client sdp * 10.0.0.0/8:*"], &[MissingPort]),
        ("use sdp client * fe80::1", &["client sdp * fe80::1/128:*"], &[MissingPort]),
        ("use sdp server * :80", &["server sdp * *:80"], &[MissingTarget]),
        ("use sdp server *:5001", &["server sdp * *:5001"], &[NoProgram]),
        ("use sdp server 10.0.0.0/8:5001 # x", &["server sdp * 10.0.0.0/8:5001"], &[NoProgram]),
        ("use both server * *.*", &["server both * *:*"], &[StarDotStar]),
        ("use sdp client * 0.0.0.0/0:*", &["client sdp * *:*"], &[]),
        // Lines that no parser reads.
        ("use sdp connect * myhost:5001", &[], &[BadAddress]),
        ("use sdp connect * 10.0.0.0/255.0.0.0:22", &[], &[BadPrefix]),
        ("use sdp connect * *:010", &[], &[BadPort]),
        ("use sdp connect * *:65536", &[], &[PortTooBig]),
        ("use sdp connect * *:9-3", &[], &[ReversedPorts]),
        ("use sdp connect * 10.0.0.0/33:1", &[], &[BadPrefix]),
        ("use sdp connect * *:1 *:2", &[], &[TrailingText]),
        ("use sdp connect * 10.0.0.1 22", &[], &[TrailingText]),
        ("use dsp connect * *:1", &[], &[MissingFamily]),
        ("use sdp both * *:1", &[], &[MissingRole]),
        ("use sdp server", &[], &[MissingProgram]),
        ("use sdp server # all", &[], &[MissingProgram]),
        ("sdp server * *:*", &[], &[UnknownStatement]),
        ("include /etc/x", &[], &[UnknownStatement]),
        ("use sdp server x\0 *:1", &[], &[NulByte]),
        // Log.
        ("log min-level 9 destination file libsdp.log", &[], &[]),
        ("log min-level 1 destination stderr", &[], &[]),
        ("log destination syslog", &[], &[]),
        ("log min-level 0", &[], &[LevelRange]),
        ("log min-level high", &[], &[BadLogLevel]),
        ("log destination", &[], &[BadLogDestination]),
        ("log destination file", &[], &[BadLogDestination]),
        ("log level 3", &[], &[BadLogKeyword]),
        // Options.
        ("option recv_poll 700", &[], &[]),
        ("option recv_poll 700 # historic", &[], &[]),
        ("option recv_poll", &[], &[MissingKey]),
        ("option", &[], &[MissingKey]),
        ("option recv_pol 1", &[], &[UnknownKey]),
        ("option recv_poll soon", &[], &[BadValue]),
        // The other dialect.
        ("match listen *:5001 program ttcp", &["server sdp ttcp *:5001"], &[]),
        ("match program ttcp listen *:5001", &["server sdp ttcp *:5001"], &[]),
        ("match shared *:5002", &["server both * *:5002"], &[]),
        ("match destination 192.168.1.0/24", &["client sdp * 192.168.1.0/24:*"], &[]),
        ("match program db2*", &["server sdp db2* *:*", "client sdp db2* *:*"], &[]),
        ("match destination *.*", &["client sdp * *:*"], &[]),
        ("match listen *.*", &["server sdp * *:*"], &[]),
        ("match shared *:*", &["server both * *:*"], &[]),
        (
            "match destination *:1 listen *:2",
            &["server sdp * *:2", "client sdp * *:1"],
            &[SplitMatch],
        ),
        ("match", &[], &[BadMatch]),
        ("match all", &[], &[BadMatch]),
        ("match program", &[], &[BadMatch]),
        ("match listen host:1", &[], &[BadAddress]),
    ];
}

#[test]
fn every_example_line() {
    for (line, rules, expected) in examples::LINES {
        let config = load(&format!("{line}\n"));
        assert_eq!(show(&config), *rules, "{line}");
        let mut found = problems(&config);
        // `:` has an empty address and an empty port; order does not matter.
        let mut wanted = expected.to_vec();
        found.sort_by_key(|p| p.code());
        wanted.sort_by_key(|p| p.code());
        assert_eq!(found, wanted, "{line}");
        if expected.iter().any(|p| p.severity() == Severity::Error) {
            assert!(rules.is_empty(), "{line}: an error costs the line");
        }
    }
}

#[test]
fn places_point_at_the_culprit() {
    let config = load("use sdp client * *:1\n\n  use sdp server ttcp * : 5001 - 99999\nnope\n");
    let found: Vec<_> = config
        .diagnostics()
        .iter()
        .map(|d| (d.place.line, d.place.column, d.place.len, d.problem.code(), d.to_string()))
        .collect();
    assert_eq!(
        found,
        [
            (3, 34, 5, "port-too-big", "3:34: error: a port above 65535".to_string()),
            (4, 1, 4, "unknown-statement", "4:1: error: not a statement of this file".to_string()),
        ]
    );
    assert_eq!(config.rules().len(), 1);
}

#[test]
fn carriage_returns_and_a_missing_last_newline_are_tolerated() {
    let config = load("use sdp server * *:1\r\nuse tcp client * *:2\r\nuse sdp client x *:3");
    assert_eq!(show(&config), ["server sdp * *:1", "client tcp * *:2", "client sdp x *:3"]);
    assert_eq!(problems(&config), [Problem::CarriageReturn, Problem::NoNewline]);
}

#[test]
fn first_match_per_role_and_both_when_nothing_matches() {
    let config = load(
        "use tcp client * *:389\nuse sdp client java *:*\nuse tcp server * 10.0.0.0/8:*\n\
         use both server * *:8080\nuse sdp server * *:*\n",
    );
    let client = |p: &str, port| config.evaluate(Role::Client, p.as_bytes(), v4(1, 2, 3, 4), port);
    assert_eq!(client("java", 389).family, Family::Tcp);
    assert_eq!(client("java", 389).place.unwrap().line, 1);
    assert_eq!(client("java", 50000).family, Family::Sdp);
    assert_eq!(client("redis", 50000).family, Family::Both);
    assert_eq!(client("redis", 50000).rule, None);
    let server = |addr, port| config.evaluate(Role::Server, b"x", addr, port).family;
    assert_eq!(server(v4(10, 0, 0, 1), 8080), Family::Tcp);
    assert_eq!(server(v4(0, 0, 0, 0), 8080), Family::Both);
    assert_eq!(server(v4(0, 0, 0, 0), 80), Family::Sdp);
    assert_eq!(server([1; 16], 80), Family::Sdp);
}

#[test]
fn the_program_decides_early_only_where_the_address_cannot_matter() {
    let config = load(
        "use tcp server ssh* *:*\nuse sdp server * *:80\nuse sdp server db *:*\n\
         use both client * *:9\n",
    );
    assert_eq!(config.always(Role::Server, b"sshd"), Some(Family::Tcp));
    assert_eq!(config.always(Role::Server, b"db"), Some(Family::Sdp));
    assert_eq!(config.always(Role::Server, b"web"), None);
    assert_eq!(config.always(Role::Client, b"web"), Some(Family::Both));
}

#[test]
fn front_rules_come_first_and_their_log_statements_win() {
    let mut config = Box::new(Config::new());
    config.load_text(
        b"use tcp client * *:*\nlog min-level 3 destination stderr",
        b"log min-level 9 destination syslog\nuse sdp client * *:*\n",
    );
    let verdict = config.evaluate(Role::Client, b"x", v4(1, 1, 1, 1), 1);
    assert_eq!(verdict.family, Family::Tcp);
    assert_eq!(verdict.place.unwrap().source, Source::Front);
    assert_eq!(config.log().min_level, 3);
    assert_eq!(config.log().destination, LogDestination::Stderr);
    assert_eq!(problems(&config), []);
}

#[test]
fn a_front_rule_does_not_change_the_dialect_of_the_file() {
    let mut config = Box::new(Config::new());
    config.load_text(b"use sdp client * *:7", b"match listen *:5001\n");
    assert_eq!(config.default_family(), Family::Tcp);
    let unmatched = config.evaluate(Role::Client, b"x", v4(1, 1, 1, 1), 8);
    assert_eq!(unmatched.family, Family::Tcp);
    assert_eq!(config.rules()[1].dialect, Dialect::Topspin);
    let mixed = load("match listen *:5001\nuse sdp client * *:7\n");
    assert_eq!(mixed.default_family(), Family::Both);
    assert_eq!(problems(&mixed), [Problem::MixedDialects]);
}

#[test]
fn rules_that_are_never_reached_are_named() {
    let mut config = load(
        "use sdp client java *:*\nuse tcp client java *:389\nuse tcp server java *:389\n\
         use sdp server db2* 10.0.0.0/8:*\nuse tcp server db2sysc 10.1.0.0/16:50000\n\
         use tcp server db2* *:*\n",
    );
    config.check_reachability();
    let lines: Vec<_> = config.diagnostics().iter().map(|d| (d.problem, d.place.line)).collect();
    assert_eq!(lines, [(Problem::NeverReached, 2), (Problem::NeverReached, 5)]);
}

#[test]
fn options_and_log_reach_their_values() {
    let config = load("option ring_bytes 131072\nlog destination file x.log min-level 7\n");
    assert_eq!(config.tunables().ring_bytes, 131_072);
    assert_eq!(config.log().min_level, 7);
    let LogDestination::File(name) = config.log().destination else { panic!("not a file") };
    assert_eq!(config.text(name), b"x.log");
}

#[test]
fn simple_mode_is_sdp_only() {
    let mut config = Box::new(Config::new());
    config.set_simple();
    assert_eq!(config.evaluate(Role::Client, b"x", v4(1, 1, 1, 1), 1).family, Family::Sdp);
}

#[test]
fn bounds_are_diagnostics() {
    let config = load(&"use sdp server * *:1\n".repeat(sdp_config::MAX_RULES + 44));
    assert_eq!(config.rules().len(), sdp_config::MAX_RULES);
    assert_eq!(problems(&config), [Problem::TooManyRules; 44]);
    let config = load(&"junk\n".repeat(100));
    assert_eq!(config.diagnostics().len(), sdp_config::MAX_DIAGNOSTICS);
    assert_eq!(config.dropped_diagnostics(), 36);
    let long = |i| format!("use sdp server {:0>500} *:1\n", i);
    let config = load(&(0..126).map(long).collect::<String>());
    assert_eq!(config.rules().len(), 122);
    assert_eq!(problems(&config), [Problem::TooMuchText; 4]);
    let config = load(&long(0).repeat(1000));
    assert_eq!((config.rules().len(), problems(&config).len()), (1000, 0), "one text");
    let config = load(&format!("use sdp server {} *:1\nuse sdp server * *:2\n", "a".repeat(2000)));
    assert_eq!(problems(&config), [Problem::LineTooLong]);
    assert_eq!(config.rules().len(), 1);
}

/// 64-bit linear congruential generator: the same bytes for the same seed for ever.
struct Lcg(u64);

impl Lcg {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % below
    }
}

/// Pieces of the language.
const PIECES: &[&str] = &[
    "use",
    "USE",
    "log",
    "option",
    "match",
    "sdp",
    "tcp",
    "both",
    "server",
    "client",
    "listen",
    "connect",
    "destination",
    "min-level",
    "file",
    "stderr",
    "program",
    "shared",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "#",
    "*",
    "*:*",
    ":",
    "-",
    "/",
    ".",
    "10.0.0.1",
    "/8",
    "/129",
    "fe80::",
    "[::1]",
    "]",
    "[",
    "::",
    "5001",
    "65536",
    "0",
    "00",
    "\0",
    "\u{fc}",
    "recv_poll",
    "x[a-",
    "*.*",
    ":*",
    "ring_bytes",
    "99999999999999999999",
];

/// Random lines out of the language's own pieces and random bytes: no panic, and the properties of
/// every configuration hold.
#[test]
fn random_files_do_no_harm() {
    let mut config = Box::new(Config::new());
    let rounds = std::env::var("SDP_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok());
    for seed in 0..rounds.unwrap_or(20_000u64) {
        let mut rng = Lcg(seed);
        let mut text = Vec::new();
        for _ in 0..rng.next(40) {
            if rng.next(12) == 0 {
                text.push(rng.next(256) as u8);
            } else {
                text.extend_from_slice(PIECES[rng.next(PIECES.len())].as_bytes());
            }
            if rng.next(3) == 0 {
                text.push(b' ');
            }
        }
        let cut = rng.next(text.len() + 1);
        config.clear();
        config.load_text(&text[..cut], &text[cut..]);
        config.prepare(b"x");
        config.check_reachability();
        holds(&config, &text, seed);
    }
}

/// The properties of every configuration.
fn holds(config: &Config, text: &[u8], seed: u64) {
    let lines = text.iter().filter(|b| **b == b'\n').count() as u32 + 2;
    for d in config.diagnostics() {
        assert!((1..=lines).contains(&d.place.line), "seed {seed}: {d}");
        assert!(
            d.place.column >= 1 && usize::from(d.place.column) <= text.len() + 1,
            "seed {seed}"
        );
    }
    for rule in config.rules() {
        assert!(rule.ports.first <= rule.ports.last, "seed {seed}");
        assert!(!config.text(rule.program).is_empty(), "seed {seed}");
    }
    for role in [Role::Server, Role::Client] {
        let any = config.evaluate(role, b"x", v4(10, 0, 0, 1), 5001);
        assert_eq!(config.decide(role, v4(10, 0, 0, 1), 5001), any, "seed {seed}");
        if let Some(always) = config.always(role, b"x") {
            assert_eq!(always, any.family, "seed {seed}");
        }
        if let Some(number) = any.rule {
            assert_eq!(config.rules()[number].role, role, "seed {seed}");
        }
    }
}

//! Lines from runbooks and guides of the historic stacks, as they stand there, and how each
//! generation of parsers read them. A line that one of them accepted is read here as it was meant;
//! one that none accepted has a diagnostic.

use sdp_config::{Config, Dialect, Family, Role, Severity};

fn load(text: &str) -> Box<Config> {
    let mut config = Box::new(Config::new());
    config.load_text(b"", text.as_bytes());
    config
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
    std::net::Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets()
}

/// A line; whether the old parser read it, up to 1.1.107 and as of 1.1.108; whether it has a meaning here.
const VECTORS: &[(&str, bool, bool, bool)] = &[
    ("use sdp connect * 192.168.1.0/24:*\n", true, true, true),
    ("use sdp connect * 1234:5678::0/64:*\n", false, true, true),
    ("use sdp connect * FE80::1:5001\n", false, false, true),
    ("use sdp connect * [fe80::1]:5001\n", false, false, true),
    ("use sdp listen ttcp * : 5001 - 5002\n", true, true, true),
    ("use sdp connect * 10.0.0.1/8 : 22\n", true, false, true),
    ("use sdp listen ttcp *:5001 # note\n", true, true, true),
    ("use sdp listen ttcp *:5001 # note", false, false, true),
    ("use sdp listen ttcp *:5001 # note\r\n", false, false, true),
    ("use sdp listen log *:5001\n", false, false, true),
    ("use sdp listen 123 *:5001\n", false, false, true),
    ("use sdp connect * myhost:5001\n", false, false, false),
    ("USE sdp connect * *:5001\n", false, false, true),
    ("use sdp connect * *:010\n", false, false, false),
];

#[test]
fn what_an_old_parser_read_is_read() {
    for (line, early, late, here) in VECTORS {
        let config = load(line);
        let errors = config.diagnostics().iter().any(|d| d.severity() == Severity::Error);
        assert_eq!((config.rules().len() == 1, errors), (*here, !*here), "{line:?}");
        assert!(*here || !(*early || *late), "{line:?}: an old parser read it");
        if *early && *late {
            assert!(config.diagnostics().is_empty(), "{line:?}: nothing to warn of");
        }
    }
    let log = load("log\n");
    assert!(log.diagnostics().is_empty() && log.rules().is_empty());
}

/// The DB2 article's set-up: listings in their order.
#[test]
fn the_article_of_2012() {
    let shipped = load("use both server * *:* \nuse both client * *:*\n");
    assert!(shipped.diagnostics().is_empty());
    for role in [Role::Server, Role::Client] {
        let verdict = shipped.evaluate(role, b"db2sysc", v4(192, 0, 2, 1), 50_000);
        assert_eq!((verdict.family, verdict.rule.is_some()), (Family::Both, true));
    }
    // In print the first rule named the database; as it stands it covers the second, and a check says so.
    let mut ldap = load("use sdp client java\nuse tcp client java *:389\n");
    ldap.check_reachability();
    let codes: Vec<_> = ldap.diagnostics().iter().map(|d| d.problem.code()).collect();
    assert_eq!(codes, ["missing-target", "never-reached"]);
    let ldap = load("use tcp client java *:389\nuse sdp client java 192.0.2.0/24:*\n");
    let of = |port| ldap.evaluate(Role::Client, b"java", v4(192, 0, 2, 9), port).family;
    assert_eq!((of(389), of(50_000)), (Family::Tcp, Family::Sdp));
    for (lines, family) in [
        ("use sdp server db2*\n use tcp server db2*\n", Family::Sdp),
        (" use both server *\n", Family::Both),
    ] {
        let config = load(lines);
        assert!(config.diagnostics().iter().all(|d| d.severity() == Severity::Warning));
        assert_eq!(config.evaluate(Role::Server, b"db2sysc", v4(0, 0, 0, 0), 1).family, family);
    }
    let log = load("log min-level 9 destination file libsdp.log\n");
    assert_eq!((log.log().min_level, log.asks_for_log()), (9, true));
    // Guides that lost their asterisks.
    let bare = load("use both server * : \nuse both client * : \n");
    assert_eq!(bare.rules().len(), 2);
}

/// The host drivers' guide, whose language names the sockets that get SDP.
#[test]
fn the_guide_of_the_other_language() {
    let config = load(
        "log min-level 1 destination stderr\nmatch listen *:5001 program ttcp\nmatch shared *:5002\n\
         match destination 192.168.1.0/24\nmatch program db2*\n",
    );
    assert!(config.diagnostics().is_empty(), "{:?}", config.diagnostics());
    assert!(config.rules().iter().all(|r| r.dialect == Dialect::Topspin));
    let server = |p: &[u8], port| config.evaluate(Role::Server, p, v4(0, 0, 0, 0), port).family;
    assert_eq!(server(b"ttcp", 5001), Family::Sdp);
    assert_eq!(server(b"iperf", 5001), Family::Tcp);
    assert_eq!(server(b"iperf", 5002), Family::Both);
    assert_eq!(server(b"db2sysc", 7), Family::Sdp);
    let client = |p: &[u8], a| config.evaluate(Role::Client, p, a, 9).family;
    assert_eq!(client(b"ttcp", v4(192, 168, 1, 5)), Family::Sdp);
    assert_eq!(client(b"ttcp", v4(192, 168, 2, 5)), Family::Tcp);
    assert_eq!(client(b"db2", v4(192, 168, 2, 5)), Family::Sdp);
    for (line, role, family) in [
        ("match destination *.*\n", Role::Client, Family::Sdp),
        ("match listen *.*\n", Role::Server, Family::Sdp),
        ("match shared *:*\n", Role::Server, Family::Both),
    ] {
        let config = load(line);
        assert!(config.diagnostics().is_empty(), "{line}");
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        assert_eq!(config.evaluate(role, b"x", v4(10, 0, 0, 1), 1).family, family);
        assert_eq!(config.evaluate(other, b"x", v4(10, 0, 0, 1), 1).family, Family::Tcp);
    }
}

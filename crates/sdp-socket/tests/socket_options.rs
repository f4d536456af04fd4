//! `docs/spec/socket-options.md` is the tables, and the tables know what the kernel's headers know. With `SDP_BLESS=1`
//! the test writes the file instead.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path};

use sdp_socket::options::{Row, Verdict, When, flags, historic, ip, requests, socket, tcp};

const HEAD: &str = "\
# Socket options, requests and flags

What becomes of a connection's SDP lane when a program uses one. Three verdicts:

* **works**: the library sees to it, on the lane as over TCP.
* **TCP's**: it concerns the TCP socket, which every connection keeps, or nothing. The lane stays;
  the kernel answers.
* **leaves (*reason*)**: the connection goes back to TCP for good, before the call; *reason* is the
  word in reports ([reason-codes.md](../reason-codes.md)). *Hands over*: bytes that are unread in
  the ring become the kernel's first.

The options that leave for some values only are also asked for where they may have been set unseen:
of a connection whose listener had one set, for connections inherit them, or that came by exec or
SCM_RIGHTS. `SO_PEEK_OFF` is asked for whenever a connection is about to get a lane. (On a lane, a
call that the library does not see changes the TCP socket only; so does, of the others, one before.)

What is not listed is newer than the library. An option of `SOL_SOCKET` or `IPPROTO_TCP` leaves
(`unsuitable-socket`, hands over), for these levels say what a stream delivers and how it ends.
Options of `IPPROTO_IP`, `IPPROTO_IPV6` and of other levels, requests and flags are TCP's; flags of
`preadv2` and `pwritev2` leave.

This file is made from the tables in `crates/sdp-socket/src/options`; a test keeps them equal, and
holds the tables complete against the kernel's headers (`SDP_BLESS=1 cargo test -p sdp-socket --test
socket_options` rewrites it).
";

fn verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Works => "works".into(),
        Verdict::Unconcerned => "TCP's".into(),
        Verdict::Leaves(leaving) => {
            let when = match leaving.when {
                When::Always => "",
                When::Set => ", unless 0",
                When::AboveOne => ", above 1",
                When::NotNegative => ", unless negative",
                When::Limited => ", unless without limit",
            };
            let over = if leaving.hands_over { "; hands over" } else { "" };
            format!("leaves (`{}`{when}){over}", leaving.reason.word())
        }
    }
}

fn section(text: &mut String, title: &str, rows: &[Row]) {
    let _ = write!(text, "\n## {title}\n\n| name | verdict | |\n|---|---|---|\n");
    for row in rows {
        let names: Vec<String> = row.names.iter().map(|(name, _)| format!("`{name}`")).collect();
        let names = names.join(", ");
        let _ = writeln!(text, "| {names} | {} | {} |", verdict(row.verdict), row.note);
    }
}

#[test]
fn the_documentation_is_the_tables() {
    let mut text = HEAD.to_string();
    for (title, rows) in [
        ("`SOL_SOCKET`", socket::OPTIONS),
        ("`IPPROTO_TCP`", tcp::OPTIONS),
        ("`SOL_SDP` (1025), and the level of `AF_INET_SDP` (27)", historic::OPTIONS),
        ("`IPPROTO_IP`", ip::OPTIONS),
        ("`IPPROTO_IPV6`", ip::OPTIONS6),
        ("`ioctl`", requests::IOCTLS),
        ("`fcntl`", requests::FCNTLS),
        ("Flags of calls that send", flags::SENDS),
        ("Flags of calls that receive", flags::RECEIVES),
        ("Flags of `preadv2` and `pwritev2`", flags::VECTORS),
        ("Flags of `splice`, `tee`, `vmsplice`", flags::SPLICES),
        ("Kinds and flags of `socket`, `socketpair`, `accept4`", flags::SOCKETS),
    ] {
        section(&mut text, title, rows);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/socket-options.md");
    if std::env::var_os("SDP_BLESS").is_some() {
        fs::write(path, &text).expect("the file can be written");
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "docs/spec/socket-options.md differs from the tables; see its head");
}

/// Names with their numbers that a header defines, by `#define` or in an `enum`.
type Names = BTreeMap<String, u32>;

fn number(text: &str) -> Option<u32> {
    let text = text.trim_matches(['(', ')', ',']);
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

/// What a header gives `name` for: a number, the name of another, or one and an addend.
fn value(words: &[&str], known: &Names) -> Option<u32> {
    let (first, rest) = words.split_first()?;
    let value = number(first).or_else(|| known.get(first.trim_matches(['(', ')'])).copied())?;
    match rest {
        ["+", more, ..] => Some(value + number(more)?),
        _ => Some(value),
    }
}

/// The installed headers that know a kind. One that this machine does not have is passed over, but not all of them.
fn headers(files: &[&str]) -> Names {
    let mut names = Names::new();
    let mut found = 0;
    for file in files {
        let roots =
            ["/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"];
        let path = roots.iter().map(|root| Path::new(root).join(file)).find(|path| path.exists());
        let Some(text) = path.and_then(|path| fs::read_to_string(path).ok()) else { continue };
        found += 1;
        for line in text.lines() {
            let line = line.split("/*").next().unwrap_or("").trim();
            let line = line.replace("((__kernel_rwf_t)", "").replace("__", "");
            let defined =
                line.strip_prefix('#').map(str::trim).and_then(|l| l.strip_prefix("define"));
            let words: Vec<&str> = match defined {
                Some(defined) => defined.split_whitespace().collect(),
                None => line.split_whitespace().filter(|word| *word != "=").collect(),
            };
            if let [name, rest @ ..] = words.as_slice()
                && let Some(value) = value(rest, &names)
            {
                // The first one holds: a later one is for machines whose numbers differ.
                names.entry((*name).to_string()).or_insert(value);
            }
        }
    }
    assert!(found > 0, "no kernel headers here (Debian: linux-libc-dev, libc6-dev)");
    names
}

/// Every name of the headers with one of these beginnings is in a table, with the same number, or excepted: those with a
/// beginning in `others` are none of the kind. Names that the tables have beyond are of newer kernels.
fn complete(
    kind: &str,
    files: &[&str],
    begin: &[&str],
    others: &[&str],
    rows: &[Row],
    least: usize,
) {
    let names = headers(files);
    let table: Vec<(&str, u32)> = rows.iter().flat_map(|row| row.names.iter().copied()).collect();
    let mut seen = 0;
    for (name, number) in &names {
        if !begin.iter().any(|begin| name.starts_with(begin))
            || others.iter().any(|other| name.starts_with(other))
        {
            continue;
        }
        seen += 1;
        let in_table = table.iter().find(|(known, _)| known == name);
        let in_table = in_table.unwrap_or_else(|| panic!("{kind}: {name} {number} has no verdict"));
        assert_eq!(in_table.1, *number, "{kind}: the number of {name}");
    }
    assert!(seen >= least, "{kind}: only {seen} names were found in {files:?}");
    for (i, (name, _)) in table.iter().enumerate() {
        assert!(
            !table[..i].iter().any(|(other, _)| other == name),
            "{kind}: {name} is there twice"
        );
    }
    let verdict_of =
        |number| rows.iter().filter(move |row| row.names.iter().any(|n| n.1 == number));
    for (name, number) in &table {
        assert_eq!(verdict_of(*number).count(), 1, "{kind}: {name}'s number has two verdicts");
    }
}

#[test]
fn every_option_of_sol_socket_has_a_verdict() {
    let files = ["asm-generic/socket.h"];
    complete("SOL_SOCKET", &files, &["SO_", "SCM_"], &[], socket::OPTIONS, 75);
}

#[test]
fn every_option_of_tcp_has_a_verdict() {
    // Values of options, and what else is about TCP.
    let others = [
        "TCP_MSS",
        "TCP_MAXWIN",
        "TCP_MAX_WINSHIFT",
        "TCP_REPAIR_ON",
        "TCP_REPAIR_OFF",
        "TCP_MD5SIG_MAXKEYLEN",
        "TCP_MD5SIG_FLAG",
        "TCP_COOKIE_MIN",
        "TCP_COOKIE_MAX",
        "TCP_COOKIE_PAIR",
        "TCP_COOKIE_IN_ALWAYS",
        "TCP_COOKIE_OUT_NEVER",
        "TCP_S_DATA",
        "TCP_RECEIVE_ZEROCOPY_FLAG",
        "TCP_AO_MAXKEYLEN",
        "TCP_AO_KEYF",
        "TCP_CA_",
        "TCP_FLAG_",
        "TCP_NLA_",
        "TCP_ESTABLISHED",
        "TCP_NO_QUEUE",
        "TCP_RECV_QUEUE",
        "TCP_SEND_QUEUE",
        "TCP_QUEUES_NR",
        "TCP_FASTOPEN_",
        "TCP_NUM_",
    ];
    // Options that begin as one of those.
    let options = ["TCP_FASTOPEN_CONNECT", "TCP_FASTOPEN_KEY", "TCP_FASTOPEN_NO_COOKIE"];
    let files = ["linux/tcp.h", "netinet/tcp.h"];
    complete("IPPROTO_TCP", &files, &["TCP_"], &others, tcp::OPTIONS, 35);
    complete("IPPROTO_TCP", &files, &options, &[], tcp::OPTIONS, 3);
}

#[test]
fn every_option_of_ip_has_a_verdict() {
    let others =
        ["IP_PMTUDISC_", "IP_DEFAULT_", "IP_MAX_MEMBERSHIPS", "MCAST_EXCLUDE", "MCAST_INCLUDE"];
    let files = ["linux/in.h", "bits/in.h", "netinet/in.h"];
    complete("IPPROTO_IP", &files, &["IP_", "MCAST_"], &others, ip::OPTIONS, 45);
    let files = ["linux/netfilter_ipv4/ip_tables.h"];
    complete(
        "IPPROTO_IP",
        &files,
        &["IPT_SO_"],
        &["IPT_SO_SET_MAX", "IPT_SO_GET_MAX"],
        ip::OPTIONS,
        1,
    );
}

#[test]
fn every_option_of_ipv6_has_a_verdict() {
    let others = [
        "IPV6_FL_",
        "IPV6_FLOWINFO_FLOWLABEL",
        "IPV6_FLOWINFO_PRIORITY",
        "IPV6_PRIORITY_",
        "IPV6_TLV_",
        "IPV6_PMTUDISC_",
        "IPV6_PREFER_SRC_",
        "IPV6_RTHDR_LOOSE",
        "IPV6_RTHDR_STRICT",
        "IPV6_RTHDR_TYPE_",
        "IPV6_RXHOPOPTS",
        "IPV6_RXDSTOPTS",
        "IPV6_MIN_MTU",
        "IPV6_SRCRT",
        "IPV6_OPT_",
    ];
    let files = ["linux/in6.h", "bits/in.h"];
    complete("IPPROTO_IPV6", &files, &["IPV6_"], &others, ip::OPTIONS6, 55);
}

#[test]
fn every_request_has_a_verdict() {
    let files = ["asm-generic/ioctls.h", "asm-generic/sockios.h", "linux/sockios.h"];
    let begin = ["SIO", "FIO", "TIOCINQ", "TIOCOUTQ"];
    complete("ioctl", &files, &begin, &[], requests::IOCTLS, 90);
}

#[test]
fn every_command_has_a_verdict() {
    let others = [
        "F_RDLCK",
        "F_WRLCK",
        "F_UNLCK",
        "F_EXLCK",
        "F_SHLCK",
        "F_OWNER_",
        "F_SEAL_",
        "F_LINUX_SPECIFIC_BASE",
        "F_OK",
        "F_LOCK",
        "F_TLOCK",
        "F_ULOCK",
        "F_TEST",
    ];
    let files = ["asm-generic/fcntl.h", "linux/fcntl.h"];
    complete("fcntl", &files, &["F_"], &others, requests::FCNTLS, 30);
}

#[test]
fn every_flag_has_a_verdict() {
    let files = ["bits/socket.h", "linux/socket.h"];
    complete("send", &files, &["MSG_"], &[], flags::SENDS, 20);
    complete("receive", &files, &["MSG_"], &[], flags::RECEIVES, 20);
    complete("socket", &["bits/socket_type.h"], &["SOCK_"], &[], flags::SOCKETS, 9);
    complete("splice", &["bits/fcntl-linux.h"], &["SPLICE_F_"], &[], flags::SPLICES, 4);
    complete("preadv2", &["linux/fs.h"], &["RWF_"], &["RWF_SUPPORTED"], flags::VECTORS, 5);
}

/// A name or number that the tables lack is found.
#[test]
#[should_panic(expected = "SO_SNDBUF 7 has no verdict")]
fn a_missing_option_is_found() {
    let short = &socket::OPTIONS[..3];
    complete("SOL_SOCKET", &["asm-generic/socket.h"], &["SO_SNDBUF"], &[], short, 1);
}

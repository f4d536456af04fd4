//! `sdp config convert`: a rule file in one of the two historic languages, written in the other.
//!
//! `use` can say everything that `match` can. A conversion back is possible where sockets that no
//! rule names get TCP, no client has a choice, and no `tcp` rule makes an exception from a later
//! one; the command refuses a rule that has no other form with its line, and writes nothing.
//! Comments, `log` and `option` statements stay where they are. Converting a file to the language
//! it is in makes it as strict as the historic parsers want it.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sdp_config::{AddressMatch, Config, Dialect, Family, PortRange, Role, Rule};

use crate::rules::{Texts, render};
use crate::{Failure, sys, tune};

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// `use sdp|tcp|both server|client …` (OFED)
    Use,
    /// `match destination|listen|shared|program …` (Topspin, Cisco)
    Match,
}

/// `sdp config convert …`
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The language to write
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    pub to: Language,
    /// Write to this file instead of standard output; it takes its place when it is whole, and may be the one read
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The file (default: the one that programs would use)
    pub file: Option<PathBuf>,
}

/// An address as rules have it.
pub(crate) fn address(address: AddressMatch) -> String {
    match address {
        AddressMatch::Any => "*".to_string(),
        AddressMatch::V4 { addr, prefix: 32 } => Ipv4Addr::from(addr).to_string(),
        AddressMatch::V4 { addr, prefix } => format!("{}/{prefix}", Ipv4Addr::from(addr)),
        AddressMatch::V6 { addr, prefix: 128 } => Ipv6Addr::from(addr).to_string(),
        AddressMatch::V6 { addr, prefix } => format!("{}/{prefix}", Ipv6Addr::from(addr)),
    }
}

/// Ports as rules have them.
pub(crate) fn ports(ports: PortRange) -> String {
    match (ports.first, ports.last) {
        (0, u16::MAX) => "*".to_string(),
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}

fn target(rule: &Rule) -> String {
    format!("{}:{}", address(rule.address), ports(rule.ports))
}

fn program(config: &Config, rule: &Rule) -> String {
    String::from_utf8_lossy(config.text(rule.program)).into_owned()
}

fn is_for_everything(config: &Config, rule: &Rule) -> bool {
    config.text(rule.program) == b"*"
        && rule.address == AddressMatch::Any
        && rule.ports == PortRange::ANY
}

fn as_use(config: &Config, rule: &Rule) -> String {
    let (family, role) = (rule.family.word(), rule.role.word());
    format!("use {family} {role} {} {}", program(config, rule), target(rule))
}

/// A rule with SDP in the older language.
fn as_match(config: &Config, rule: &Rule) -> String {
    let word = match (rule.role, rule.family) {
        (Role::Client, _) => "destination",
        (Role::Server, Family::Both) => "shared",
        (Role::Server, _) => "listen",
    };
    let program = program(config, rule);
    let of = if program == "*" { String::new() } else { format!(" program {program}") };
    format!("match {word} {}{of}", target(rule))
}

/// Rules of one line as lines of a language.
fn written(config: &Config, rules: &[&Rule], language: Language) -> Vec<String> {
    if language == Language::Use {
        return rules.iter().map(|rule| as_use(config, rule)).collect();
    }
    let everything = |r: &Rule| r.address == AddressMatch::Any && r.ports == PortRange::ANY;
    if let [one, two] = rules
        && [one, two].iter().all(|r| r.family == Family::Sdp && everything(r))
    {
        return vec![format!("match program {}", program(config, one))];
    }
    let said = rules.iter().filter(|rule| rule.family != Family::Tcp);
    said.map(|rule| as_match(config, rule)).collect()
}

/// Whether a socket may exist that both rules match.
fn may_overlap(config: &Config, a: &Rule, b: &Rule) -> bool {
    let is_name = |text: &[u8]| !text.iter().any(|c| b"*?[\\".contains(c));
    let (p, q) = (config.text(a.program), config.text(b.program));
    let same_program = p == q || !is_name(p) || !is_name(q);
    let same_port = a.ports.first <= b.ports.last && b.ports.first <= a.ports.last;
    let same_address = match (a.address, b.address) {
        (AddressMatch::Any, _) | (_, AddressMatch::Any) => true,
        (AddressMatch::V4 { addr: x, prefix: m }, AddressMatch::V4 { addr: y, prefix: n }) => {
            (x ^ y).checked_shr(32 - u32::from(m.min(n))).unwrap_or(0) == 0
        }
        (AddressMatch::V6 { addr: x, prefix: m }, AddressMatch::V6 { addr: y, prefix: n }) => {
            (x ^ y).checked_shr(128 - u32::from(m.min(n))).unwrap_or(0) == 0
        }
        _ => false,
    };
    a.role == b.role && same_program && same_port && same_address
}

/// Why a rule cannot be said with `match`, if so.
fn unsayable(
    config: &Config,
    rule: &Rule,
    later: &[&Rule],
    otherwise: Family,
) -> Option<&'static str> {
    match (rule.family, rule.role) {
        (Family::Both, Role::Client) => {
            Some("a client that may use both: match destination means SDP only")
        }
        (Family::Tcp, _) => {
            let hidden = |r: &&Rule| r.family != Family::Tcp && may_overlap(config, rule, r);
            // The rule for everything, written or not, has the last word.
            (otherwise != Family::Tcp || later.iter().any(hidden))
                .then_some("an exception from a later rule")
        }
        _ => None,
    }
}

/// Where the comment of a line begins; its end if there is none.
fn comment_at(line: &str) -> usize {
    // A pattern may hold the character, without a blank before it.
    let begins = |at: &usize| *at == 0 || line[..*at].ends_with([' ', '\t']);
    line.match_indices('#').map(|(at, _)| at).find(begins).unwrap_or(line.len())
}

/// Keywords of a `log` or `option` statement in lower case; names as they are.
fn strict(line: &str) -> String {
    const KEYWORDS: [&str; 7] =
        ["log", "option", "destination", "min-level", "stderr", "syslog", "file"];
    let mut after_file = false;
    let word = |word: &str| {
        let lower = word.to_ascii_lowercase();
        let is_keyword = !after_file && KEYWORDS.contains(&lower.as_str());
        after_file = is_keyword && lower == "file";
        if is_keyword { lower } else { word.to_string() }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// The text in another language.
///
/// # Errors
/// Each rule that it cannot say, as `LINE: why`.
pub fn convert(text: &str, language: Language) -> Result<String, Vec<String>> {
    let mut config = Box::new(Config::new());
    config.load_text(b"", text.as_bytes());
    let reached = Reached::of(&config);
    let (more, mut refused) = reached.behind(language);
    if language == Language::Match {
        for (at, rule) in reached.rules.iter().enumerate() {
            let rest = reached.rest[rule.role as usize];
            if let Some(why) = unsayable(&config, rule, &reached.rules[at + 1..], rest) {
                refused.push(format!("line {}: {why}", rule.place.line));
            }
        }
    }
    if language == Language::Match
        && more.is_empty()
        && reached.rules.iter().all(|rule| rule.family == Family::Tcp)
    {
        refused.push("nothing gets SDP: a file without a match statement would mean both".into());
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    let mut out = lines(text, &config, &reached.rules, language);
    for line in more {
        let _ = writeln!(out, "{line}");
    }
    Ok(out)
}

/// The rules that count: rules behind a rule for everything never do.
struct Reached<'a> {
    rules: Vec<&'a Rule>,
    /// By role: what is left gets this family.
    rest: [Family; 2],
    /// By role: there is a rule for everything.
    is_closed: [bool; 2],
}

impl<'a> Reached<'a> {
    fn of(config: &'a Config) -> Self {
        let (rest, is_closed) = ([config.default_family(); 2], [false; 2]);
        let mut reached = Self { rules: Vec::new(), rest, is_closed };
        for rule in config.rules() {
            let role = rule.role as usize;
            if !reached.is_closed[role] {
                reached.rules.push(rule);
                if is_for_everything(config, rule) {
                    (reached.is_closed[role], reached.rest[role]) = (true, rule.family);
                }
            }
        }
        reached
    }

    /// Lines to add at the end of the file, and what the language cannot say.
    fn behind(&self, language: Language) -> (Vec<String>, Vec<String>) {
        let (mut more, mut refused) = (Vec::new(), Vec::new());
        for role in [Role::Server, Role::Client] {
            if self.is_closed[role as usize] {
                continue;
            }
            match (language, self.rest[role as usize]) {
                // `match` files say so by themselves, `use` files do not.
                (Language::Use, Family::Tcp) => more.push(format!("use tcp {} * *:*", role.word())),
                (Language::Match, Family::Both) if role == Role::Client => {
                    let why = "what no client rule matches gets both: match cannot say that";
                    refused.push(why.into());
                }
                (Language::Match, Family::Both) => more.push("match shared *:*".to_string()),
                (Language::Match, Family::Sdp) => more.push(match role {
                    Role::Server => "match listen *:*".to_string(),
                    Role::Client => "match destination *:*".to_string(),
                }),
                _ => {}
            }
        }
        (more, refused)
    }
}

/// The lines of the file, each rule in `language`, notes where they were.
fn lines(text: &str, config: &Config, rules: &[&Rule], language: Language) -> String {
    let mut out = String::new();
    for (number, line) in text.lines().enumerate() {
        let here: Vec<&Rule> =
            rules.iter().filter(|r| r.place.line as usize == number + 1).copied().collect();
        let is_rule = config.rules().iter().any(|r| r.place.line as usize == number + 1);
        let (statement, note) = line.split_at(comment_at(line));
        let (statement, note) = (statement.trim(), note.trim_end());
        if is_rule {
            let lines = written(config, &here, language);
            if lines.is_empty() && !note.is_empty() {
                let _ = writeln!(out, "{note}");
            }
            for (nth, line) in lines.iter().enumerate() {
                let note =
                    if nth == 0 && !note.is_empty() { format!(" {note}") } else { String::new() };
                let _ = writeln!(out, "{line}{note}");
            }
        } else if statement.is_empty() {
            let _ = writeln!(out, "{}", line.trim_end());
        } else {
            let gap = if note.is_empty() { "" } else { " " };
            let _ = writeln!(out, "{}{gap}{note}", strict(statement));
        }
    }
    out
}

/// Runs the sub-command.
///
/// # Errors
/// The file cannot be read, has errors, or cannot be said in that language.
pub fn main(options: &Options) -> Result<(), Failure> {
    let texts = Texts::load(Vec::new(), options.file.as_deref())?;
    let Some(path) = &texts.path else { return Err(Failure("there is no rule file".into())) };
    let name = path.display();
    if options.output.is_none() && sys::is_stdout(path) {
        let why = "is standard output, too: the shell has emptied it before it was read. Restore it, and \
                   convert it in place with --output";
        return Err(Failure::new(name, why));
    }
    let mut config = Box::new(Config::new());
    config.load_text(b"", &texts.file);
    let (found, errors, _) = render(&texts, &config);
    if errors > 0 {
        eprint!("{found}");
        return Err(Failure::new(name, "has errors; mend them first"));
    }
    let Ok(text) = std::str::from_utf8(&texts.file) else {
        return Err(Failure::new(name, "is not UTF-8"));
    };
    match convert(text, options.to) {
        Ok(out) => match &options.output {
            Some(file) => tune::replace(file, &out).map_err(|e| Failure::new(file.display(), e)),
            None => {
                crate::print(&out);
                Ok(())
            }
        },
        Err(refused) => {
            for why in &refused {
                eprintln!("{name}: {why}");
            }
            Err(Failure::new(name, "cannot be said with match statements; nothing was written"))
        }
    }
}

/// The language of a rule.
pub(crate) const fn dialect(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Ofed => "use",
        Dialect::Topspin => "match",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdicts for sockets of every kind: the meaning of a file.
    fn meaning(text: &str) -> Vec<Family> {
        let mut config = Box::new(Config::new());
        config.load_text(b"", text.as_bytes());
        let addresses: [std::net::IpAddr; 6] = [
            "0.0.0.0".parse().unwrap(),
            "192.168.1.7".parse().unwrap(),
            "192.168.2.7".parse().unwrap(),
            "10.0.0.1".parse().unwrap(),
            "1234:5678::1".parse().unwrap(),
            "fe80::1".parse().unwrap(),
        ];
        let mut all = Vec::new();
        for role in [Role::Server, Role::Client] {
            for program in ["java", "ttcp", "db2sysc", "x", "log", "123"] {
                for address in addresses {
                    let octets = match address {
                        std::net::IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                        std::net::IpAddr::V6(a) => a.octets(),
                    };
                    for port in [0, 1, 7, 22, 80, 389, 5001, 5002, 5003, 65535] {
                        all.push(config.evaluate(role, program.as_bytes(), octets, port).family);
                    }
                }
            }
        }
        all
    }

    fn diagnostics(text: &str) -> usize {
        let mut config = Box::new(Config::new());
        config.load_text(b"", text.as_bytes());
        config.diagnostics().len()
    }

    /// Every line that a rule file of the field has had, and the vectors of the historic parsers.
    const LINES: &[&str] = &[
        "use both server * *:* ",
        "use both client * *:*",
        "use sdp client java",
        "use tcp client java *:389",
        "use sdp server db2*",
        " use tcp server db2*",
        " use both server *",
        "use both server * : ",
        "use both client * : ",
        "match listen *:5001 program ttcp",
        "match shared *:5002",
        "match destination 192.168.1.0/24",
        "match program db2*",
        "match destination *.*",
        "match listen *.*",
        "match shared *:*",
        "match destination *:1 listen *:2",
        "use sdp connect * 192.168.1.0/24:*",
        "use sdp connect * 1234:5678::0/64:*",
        "use sdp connect * FE80::1:5001",
        "use sdp connect * [fe80::1]:5001",
        "use sdp listen ttcp * : 5001 - 5002",
        "use sdp connect * 10.0.0.1/8 : 22",
        "use sdp listen ttcp *:5001 # note",
        "use sdp listen log *:5001",
        "use sdp listen 123 *:5001",
        "USE sdp Server * *:*",
        "use sdp connect * 0.0.0.0/0:7",
        "use sdp connect * ::/0:7",
    ];

    #[test]
    fn each_line_of_the_field_keeps_its_meaning() {
        for line in LINES {
            let text = format!("{line}\n");
            let used = convert(&text, Language::Use).unwrap();
            assert!(meaning(&used) == meaning(&text), "{line} became\n{used}");
            assert_eq!(diagnostics(&used), 0, "{line} became\n{used}");
            if let Ok(matched) = convert(&text, Language::Match) {
                assert!(meaning(&matched) == meaning(&text), "{line} became\n{matched}");
                assert_eq!(diagnostics(&matched), 0, "{line} became\n{matched}");
                let back = convert(&matched, Language::Use).unwrap();
                assert!(meaning(&back) == meaning(&text), "{line} became\n{back}");
            }
            if line.starts_with("match") {
                let matched = convert(&text, Language::Match).expect(line);
                let back = convert(&used, Language::Match).expect(line);
                assert!(meaning(&matched) == meaning(&back), "{line}");
            }
        }
    }

    /// Any two, and any three, of them in a file.
    #[test]
    fn files_of_several_lines_keep_their_meaning() {
        let (mut said, mut all) = (0, 0);
        let mut check = |text: &str| {
            let used = convert(text, Language::Use).unwrap();
            assert!(meaning(&used) == meaning(text), "{text} became\n{used}");
            all += 1;
            if let Ok(matched) = convert(text, Language::Match) {
                assert!(meaning(&matched) == meaning(text), "{text} became\n{matched}");
                said += 1;
            }
        };
        let end = "use tcp client * *:*\nuse tcp server * *:*\n";
        for (i, a) in LINES.iter().enumerate() {
            for (j, b) in LINES.iter().enumerate() {
                check(&format!("{a}\n{b}\n"));
                check(&format!("{a}\n{b}\n{end}"));
                let c = LINES[(i * 7 + j * 3) % LINES.len()];
                check(&format!("{a}\n{b}\n{c}\n{end}"));
            }
        }
        assert!(said > all / 4, "{said} of {all}");
    }

    #[test]
    fn comments_logs_and_options_stay() {
        let text = "# head\n\nLOG min-level 9 destination FILE File.log\noption recv_poll 0 # quick\n\
                    match listen *:5001   # five\n";
        let expected = "# head\n\nlog min-level 9 destination file File.log\n\
                        option recv_poll 0 # quick\nuse sdp server * *:5001 # five\n\
                        use tcp server * *:*\nuse tcp client * *:*\n";
        assert_eq!(convert(text, Language::Use).unwrap(), expected);
    }

    #[test]
    fn line_ends_become_plain() {
        for text in ["use sdp listen ttcp *:5001", "use sdp listen ttcp *:5001\r\n"] {
            assert_eq!(convert(text, Language::Use).unwrap(), "use sdp server ttcp *:5001\n");
        }
        for line in [
            "log",
            "log min-level 9 destination file libsdp.log",
            "log min-level 1 destination stderr",
            "log destination syslog",
        ] {
            for language in [Language::Use, Language::Match] {
                let text = format!("{line}\nmatch listen *:1\n");
                assert!(convert(&text, language).unwrap().starts_with(&format!("{line}\n")));
            }
        }
    }

    #[test]
    fn what_cannot_be_said_is_refused_with_its_line() {
        let text = "use tcp client * *:389\nuse sdp client * *:*\nuse tcp server * *:*\n";
        let why = convert(text, Language::Match).unwrap_err();
        assert_eq!(why, ["line 1: an exception from a later rule"]);
        let why = convert("use both client * *:*\n", Language::Match).unwrap_err();
        assert!(why[0].starts_with("line 1: a client that may use both"), "{why:?}");
        let why = convert("use sdp client * *:7\n", Language::Match).unwrap_err();
        assert!(why[0].contains("no client rule"), "{why:?}");
        // An exception that meets no later rule is no exception.
        let text = "use tcp client a *:389\nuse sdp client b *:*\nuse tcp client * *:*\n\
                    use tcp server * *:*\n";
        assert_eq!(convert(text, Language::Match).unwrap(), "match destination *:* program b\n");
    }
}

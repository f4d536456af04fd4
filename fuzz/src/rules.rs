//! Rule files from a grammar and from noise: loading does not panic and is the same each time, a line
//! that is bad costs itself and nothing else, and every question has an answer.

use sdp_config::{Config, Role};

use crate::random::Random;

const WORDS: &[&str] = &[
    "use",
    "sdp",
    "tcp",
    "both",
    "server",
    "client",
    "listen",
    "connect",
    "log",
    "min-level",
    "destination",
    "stderr",
    "syslog",
    "file",
    "option",
    "match",
    "program",
    "shared",
    "*",
    "*:*",
    "*:80",
    "10.0.0.0/8:1-65535",
    "127.0.0.1",
    "[::1]:80",
    "::/0:*",
    "fe80::1/64",
    "0",
    "9",
    "99999999999999999999",
    "-1",
    "1-0",
    "65536",
    ":",
    "/",
    "-",
    ".",
    "#",
    "ssh*",
    "*?[",
    "\"x\"",
    "promote_calls",
    "ring_bytes",
    "recv_poll",
    "sdp_zcopy_thresh",
    "\t",
    "\\",
    "\u{feff}",
    "é",
];
const GOOD: &[&str] = &[
    "use tcp server * *:22",
    "use both client * *:*",
    "use sdp server oracle* 192.168.0.0/16:1-9999",
    "use tcp client postgres 10.0.0.1:5432",
    "log min-level 9 destination syslog",
    "# nothing",
    "",
];
/// Rules at most in one generated file, below what a configuration holds.
const LINES_MAX: u64 = 24;

/// One file.
pub fn round(random: &mut Random) {
    let mut lines: Vec<Vec<u8>> = (0..random.below(LINES_MAX)).map(|_| line(random)).collect();
    let text = join(&lines);
    let front = if random.once_in(3) { line(random) } else { Vec::new() };
    let config = load(&front, &text);
    let last = lines.len() as u64 + 1;
    assert!(config.diagnostics().iter().all(|d| u64::from(d.place.line) <= last), "no such line");
    questions(random, &config, &load(&front, &text));
    // A line that says nothing by itself changes nothing between others.
    let noise = noise_line(random);
    let alone = load(&[], &noise);
    let says_nothing = alone.rules().is_empty()
        && format!("{:?}", alone.log()) == format!("{:?}", Config::new().log())
        && format!("{:?}", alone.tunables()) == format!("{:?}", Config::new().tunables());
    if says_nothing {
        let at = random.below(lines.len() as u64 + 1) as usize;
        lines.insert(at, noise);
        let with_noise = load(&front, &join(&lines));
        assert_eq!(with_noise.rules().len(), config.rules().len(), "{lines:?}");
        let tunables = format!("{:?}", with_noise.tunables());
        assert_eq!(tunables, format!("{:?}", config.tunables()), "{lines:?}");
    }
    // Noise without any structure.
    let noise = random.bytes(4096);
    questions(random, &load(&noise, &noise), &load(&noise, &noise));
}

fn load(front: &[u8], file: &[u8]) -> Box<Config> {
    let mut config = Box::new(Config::new());
    config.load_text(front, file);
    config
}

fn join(lines: &[Vec<u8>]) -> Vec<u8> {
    lines.join(&b'\n')
}

fn line(random: &mut Random) -> Vec<u8> {
    match random.below(3) {
        0 => noise_line(random),
        1 => random.pick(GOOD).as_bytes().to_vec(),
        _ => {
            let mut bytes = random.pick(GOOD).as_bytes().to_vec();
            for _ in 0..random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = *random.pick(b" *:/-.#09azAZ\t\x00\xff[]");
                }
            }
            bytes
        }
    }
}

fn noise_line(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(14) {
        bytes.extend(random.pick(WORDS).as_bytes());
        if !random.once_in(4) {
            bytes.push(b' ');
        }
    }
    if random.once_in(8) {
        let more = random.bytes(2000);
        bytes.extend(more.iter().filter(|b| **b != b'\n'));
    }
    bytes
}

/// Both copies answer alike.
fn questions(random: &mut Random, config: &Config, copy: &Config) {
    assert_eq!(config.rules().len(), copy.rules().len());
    for _ in 0..16 {
        let role = *random.pick(&[Role::Server, Role::Client]);
        let mut addr = [0u8; 16];
        addr.fill_with(|| random.next() as u8);
        if random.once_in(2) {
            addr = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
        }
        let port = random.next() as u16;
        let program = random.pick(&["postgres", "sshd", "", "oracle_x"]).as_bytes();
        let (one, two) =
            (config.evaluate(role, program, addr, port), copy.evaluate(role, program, addr, port));
        assert_eq!(one.rule, two.rule);
        assert!(one.rule.is_none_or(|number| number < config.rules().len()));
    }
}

//! The demonstration: Redis and its own benchmark, unmodified, over TCP and over SDP in turn.
//!
//! Both runs load the library; the TCP run with every rule answering tcp, so that the comparison is
//! between lanes and nothing else. Rounds alternate, the table shows medians. The proof that the
//! bytes went over SDP is taken from two witnesses: the library's own report, and the kernel's
//! counter of the loopback device, which the SDP lane does not touch.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::json::Json;
use crate::process::{is_present, output_of, run, target_dir};
use crate::{artifacts, install};

/// Alternating rounds; odd, so that the median is a measured value.
const ROUNDS: usize = 3;

/// How long the server may take to answer the first time.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Pause between two attempts to reach the starting server.
const START_RETRY: Duration = Duration::from_millis(10);

/// Bytes of the value that is written and read back for comparison.
const VALUE_LEN: usize = 3_000_000;

/// What the benchmark is asked to do: label, clients, requests, value bytes, command.
const LOADS: &[(&str, u32, u32, u32, &str)] = &[
    ("GET     3 B,  1 client", 1, 20_000, 3, "get"),
    ("GET     3 B, 20 clients", 20, 100_000, 3, "get"),
    ("SET   1 KiB, 20 clients", 20, 60_000, 1024, "set"),
    ("GET  64 KiB,  8 clients", 8, 8_000, 65_536, "get"),
];

const LANES: [Lane; 2] = [Lane::Tcp, Lane::Sdp];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Tcp,
    Sdp,
}

/// What one run over one lane gave.
#[derive(Debug, Default)]
struct Round {
    /// Requests per second, one per load.
    rates: Vec<f64>,
    /// Processor seconds of server and clients.
    cpu_s: f64,
    /// Payload that the programs sent and received, by lane, both ends.
    sdp_bytes: f64,
    tcp_bytes: f64,
    /// What the loopback device carried meanwhile.
    device_bytes: f64,
}

/// Builds, runs both lanes in turn, prints table and proof.
pub(crate) fn run_demo() -> Result<(), String> {
    require_redis()?;
    artifacts::build()?;
    let scratch = target_dir().join("demo");
    std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    println!("\nRedis {}", redis_version()?);
    let mut rounds: [Vec<Round>; 2] = Default::default();
    for round in 1..=ROUNDS {
        for (lane, done) in LANES.into_iter().zip(&mut rounds) {
            print!("round {round} of {ROUNDS}, {lane:?} ");
            flush();
            done.push(one_round(lane, &scratch)?);
            println!(" done");
        }
    }
    let [tcp, sdp] = rounds;
    print_table(&tcp, &sdp);
    print_proof(&tcp, &sdp)
}

fn require_redis() -> Result<(), String> {
    let programs = ["redis-server", "redis-benchmark", "redis-cli"];
    if programs.iter().all(|program| is_present(program)) {
        return Ok(());
    }
    if install::may_install_packages() {
        install::packages(&["redis-server", "redis-tools"])
    } else {
        Err("demo: needs redis-server, redis-benchmark and redis-cli; on Debian and Ubuntu:\n  \
             apt-get install redis-server redis-tools"
            .to_owned())
    }
}

fn redis_version() -> Result<String, String> {
    let text = output_of(Command::new("redis-server").arg("--version"))?;
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Ok(version.unwrap_or("of unknown version").to_owned())
}

fn flush() {
    let _ = std::io::stdout().flush();
}

/// `sdp run` in front of a program, with its report in `report`.
fn under(lane: Lane, report: &Path, program: &str) -> Command {
    let mut command = Command::new(artifacts::sdp());
    command.args(["run", "--no-config"]);
    if lane == Lane::Tcp {
        command.arg("--tcp");
    }
    command.arg("--report").arg(report).args(["--", program]);
    command
}

fn one_round(lane: Lane, scratch: &Path) -> Result<Round, String> {
    let device_before = loopback_bytes()?;
    let address = free_address()?;
    let port = address.port().to_string();
    let mut reports = vec![scratch.join("server.json")];
    let mut server = under(lane, &reports[0], "redis-server");
    server.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"]);
    server.current_dir(scratch).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = Server(server.spawn().map_err(|e| format!("sdp run: {e}"))?);
    server.wait_ready(address)?;

    let mut round = Round::default();
    for (index, (_, clients, requests, bytes, test)) in LOADS.iter().enumerate() {
        print!(".");
        flush();
        if *test == "get" {
            fill(&port, *bytes)?;
        }
        let report = scratch.join(format!("client{index}.json"));
        let mut client = under(lane, &report, "redis-benchmark");
        client.args(["-h", "127.0.0.1", "-p", &port, "--csv", "-t", test]);
        client.args(["-c", &clients.to_string(), "-n", &requests.to_string()]);
        client.args(["-d", &bytes.to_string()]);
        round.rates.push(rate_of(&output_of(&mut client)?)?);
        reports.push(report);
    }
    let report = scratch.join("cli.json");
    compare_value(lane, &report, &port, scratch)?;
    reports.push(report);
    // By a client without the library: its request goes over TCP whatever the rules say.
    let _ = output_of(Command::new("redis-cli").args(["-p", &port, "shutdown", "nosave"]));
    server.wait_end()?;
    for report in &reports {
        round.add(&read_report(report)?);
    }
    round.device_bytes = loopback_bytes()? - device_before;
    Ok(round)
}

/// Sets the key that redis-benchmark reads, so that a GET has something to answer.
fn fill(port: &str, bytes: u32) -> Result<(), String> {
    let mut client = Command::new("redis-benchmark");
    client.args(["-h", "127.0.0.1", "-p", port, "-q", "-t", "set", "-c", "1", "-n", "1"]);
    output_of(client.args(["-d", &bytes.to_string()])).map(drop)
}

/// Writes a value that has every byte in it and reads it back.
fn compare_value(lane: Lane, report: &Path, port: &str, scratch: &Path) -> Result<(), String> {
    let value: Vec<u8> = (0..VALUE_LEN).map(|i| (i * 31 + i / 251) as u8).collect();
    let path = scratch.join("value");
    std::fs::write(&path, &value).map_err(|e| format!("{}: {e}", path.display()))?;
    let input = std::fs::File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut set = under(lane, report, "redis-cli");
    set.args(["-p", port, "-x", "set", "demo"]).stdin(input).stdout(Stdio::null());
    run(&mut set)?;
    let mut get = under(lane, report, "redis-cli");
    get.args(["-p", port, "--raw", "get", "demo"]).stdin(Stdio::null());
    let out = get.output().map_err(|e| format!("redis-cli: {e}"))?;
    // redis-cli --raw ends with a line feed of its own.
    if out.stdout.strip_suffix(b"\n") == Some(value.as_slice()) {
        Ok(())
    } else {
        Err(format!("demo: over {lane:?} the value came back different"))
    }
}

fn rate_of(csv: &str) -> Result<f64, String> {
    let line = csv.lines().last().unwrap_or_default();
    let rate = line.split(',').nth(1).and_then(|field| field.trim_matches('"').parse().ok());
    rate.ok_or_else(|| format!("demo: redis-benchmark said {csv:?}"))
}

fn free_address() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("bind: {e}"))?;
    listener.local_addr().map_err(|e| format!("getsockname: {e}"))
}

/// A server that is killed if it is still there when we leave.
struct Server(Child);

impl Server {
    fn wait_ready(&mut self, address: SocketAddr) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Err(format!("demo: redis-server ended: {status}"));
            }
            if answers(address) {
                return Ok(());
            }
            std::thread::sleep(START_RETRY);
        }
        Err("demo: redis-server does not answer".to_owned())
    }

    fn wait_end(&mut self) -> Result<(), String> {
        let status = self.0.wait().map_err(|e| format!("wait: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("demo: redis-server: {status}")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"+PONG\r\n")
    };
    ask().unwrap_or(false)
}

/// Bytes the loopback device received since it exists.
fn loopback_bytes() -> Result<f64, String> {
    let path = "/proc/self/net/dev";
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    bytes.ok_or_else(|| format!("{path}: no loopback device"))
}

fn read_report(path: &PathBuf) -> Result<Json, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Json::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}

impl Round {
    fn add(&mut self, report: &Json) {
        let number = |json: &Json| json.number().unwrap_or(0.0);
        let bytes = report.get("bytes");
        self.sdp_bytes += number(bytes.get("sdp_sent")) + number(bytes.get("sdp_received"));
        self.tcp_bytes += number(bytes.get("tcp_sent")) + number(bytes.get("tcp_received"));
        self.cpu_s += number(report.get("user_s")) + number(report.get("system_s"));
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// One figure of a round.
type Reading = fn(&Round) -> f64;

fn print_table(tcp: &[Round], sdp: &[Round]) {
    println!("\n{:<26} {:>12} {:>12} {:>7}", "requests per second", "TCP", "SDP", "ratio");
    for (index, (label, ..)) in LOADS.iter().enumerate() {
        let rate = |rounds: &[Round]| {
            median(rounds.iter().map(|round| round.rates.get(index).copied().unwrap_or(0.0)))
        };
        let (before, after) = (rate(tcp), rate(sdp));
        println!("{label:<26} {before:>12.0} {after:>12.0} {:>6.2}x", after / before.max(1.0));
    }
    let cpu = |rounds: &[Round]| median(rounds.iter().map(|round| round.cpu_s));
    let (before, after) = (cpu(tcp), cpu(sdp));
    let ratio = after / before.max(0.001);
    println!("{:<26} {before:>12.2} {after:>12.2} {ratio:>6.2}x", "processor seconds");
    println!("medians of {ROUNDS} alternating rounds");
}

fn print_proof(tcp: &[Round], sdp: &[Round]) -> Result<(), String> {
    const MB: f64 = 1e6;
    println!("\n{:<26} {:>12} {:>12}", "where the bytes went, MB", "TCP run", "SDP run");
    let sum = |rounds: &[Round], of: Reading| rounds.iter().map(of).sum::<f64>() / MB;
    let rows: [(&str, Reading); 3] = [
        ("payload on the TCP lane", |round| round.tcp_bytes),
        ("payload on the SDP lane", |round| round.sdp_bytes),
        ("carried by device lo", |round| round.device_bytes),
    ];
    for (label, of) in rows {
        println!("{label:<26} {:>12.1} {:>12.1}", sum(tcp, of), sum(sdp, of));
    }
    println!(
        "payload is counted at both ends; a {VALUE_LEN}-byte value came back identical each time"
    );
    let on_sdp = sum(sdp, |round| round.sdp_bytes);
    let share = on_sdp / (on_sdp + sum(sdp, |round| round.tcp_bytes)).max(1e-9);
    println!("\n{:.1} % of the payload of the SDP run went over SDP", share * 100.0);
    if share >= 0.9 { Ok(()) } else { Err("demo: the SDP run did not use SDP".to_owned()) }
}

//! `sdp nfs`: NFS over RDMA.

mod mount;
mod proxy;
mod values;

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Barrier,
        mpsc::{self, Sender},
    },
    time::Duration,
};

use clap::{Args, Subcommand};
use sdp_nfs::{
    allow::Network,
    control,
    counts::Counts,
    gateway::{self, Gateway, Settings},
    notify, poll,
};
use serde_json::{Value, json};

use values::{address, number, sum, text};

use crate::{Failure, devices};

/// Version of the JSON form.
const SCHEMA: u32 = 1;

/// The commands of `sdp nfs`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Let clients with RDMA use an NFS server that has none
    Gateway(GatewayOptions),
    /// Let clients that have TCP only use an NFS server by RDMA
    Proxy(proxy::Options),
    /// Show this host's gateways and proxies, their clients, and what they have counted
    Stat(StatOptions),
    /// Mount by RDMA, by a proxy, or by TCP, and say which and why
    Mount(mount::Options),
}

/// Options of `sdp nfs gateway`.
#[derive(Debug, Clone, Args)]
pub struct GatewayOptions {
    /// Let clients of this network in: ADDRESS, ADDRESS/BITS, or any. Repeat it for more. There is no
    /// default, because the server sees every client behind the gateway as this host, which its
    /// export table often trusts
    #[arg(long, required = true, value_name = "NETWORK")]
    pub allow: Vec<Network>,
    /// Listen on this address of an RDMA device; repeat it for more [default: the first address that
    /// a device has]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub listen: Vec<String>,
    /// The NFS server, by TCP
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    pub server: String,
    /// Connect to the server from this address, for which its export table can have lines of its own
    #[arg(long, value_name = "ADDRESS")]
    pub source: Option<IpAddr>,
    /// Mebibytes of registered memory for transfers, for each address
    #[arg(long, value_name = "MIB", default_value_t = (gateway::MEMORY >> 20) as u32)]
    pub memory: u32,
    /// Replace the gateway that runs on this address: it stops listening, this one listens, and its
    /// clients come over without an error. Without one it starts as ever
    #[arg(long)]
    pub takeover: bool,
}

/// Options of `sdp nfs stat`.
#[derive(Debug, Clone, Args)]
pub struct StatOptions {
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print the text format of Prometheus
    #[arg(long)]
    pub prometheus: bool,
    /// Look again after so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub watch: Option<u32>,
}

/// The address of an NFS server that is spoken to by TCP.
pub(crate) fn server_address(text: &str) -> Result<SocketAddr, Failure> {
    address(text, gateway::SERVER_PORT)
}

/// The first address of RDMA devices that is not link-local.
pub(crate) fn first_address(devices: &[devices::Device]) -> Option<IpAddr> {
    let ports = devices.iter().flat_map(|device| &device.ports);
    let addresses = ports.flat_map(|port| &port.gids).filter_map(|gid| gid.gid.parse().ok());
    let addresses = addresses.map(|address: std::net::Ipv6Addr| address.to_canonical());
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = addresses.filter(usable).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.first().copied()
}

/// Where a gateway listens, by its options.
fn addresses(options: &GatewayOptions) -> Result<Vec<SocketAddr>, Failure> {
    let mut all = Vec::new();
    for text in &options.listen {
        let one = address(text, gateway::PORT)?;
        if all.contains(&one) {
            return Err(Failure::new(one, "it is named twice"));
        }
        all.push(one);
    }
    if all.is_empty() {
        let first = first_address(&devices::devices(Path::new("/")));
        let none = || Failure::new("no RDMA device has an address", "see `sdp doctor --nfs`");
        all.push(SocketAddr::new(first.ok_or_else(none)?, gateway::PORT));
    }
    Ok(all)
}

/// A gateway that listens, and can be asked.
fn open(settings: &Settings, end: &OwnedFd) -> Result<Gateway, gateway::Failure> {
    let end = end.try_clone().map_err(|e| gateway::Failure(format!("signals: {e}")))?;
    let mut gateway = Gateway::new(settings.clone(), end)?;
    if let Err(e) = gateway.offer_status() {
        crate::warn(format_args!("sdp nfs gateway: no socket for `sdp nfs stat`: {e}"));
    }
    Ok(gateway)
}

/// Waits until a device that was lost is there again; `None`: this process is to end before.
fn reopen(settings: &Settings, end: &OwnedFd) -> Option<Gateway> {
    let set = poll::Set::new().ok()?;
    set.watch(end.as_raw_fd(), 0).ok()?;
    let settings = Settings { takeover: false, others: None, ..settings.clone() };
    loop {
        let mut is_end = false;
        set.wait(1000, |_| is_end = true);
        if is_end {
            return None;
        }
        if let Ok(gateway) = open(&settings, end) {
            return Some(gateway);
        }
    }
}

/// Serves one address until a signal ends it. One of several whose device is lost waits for it.
fn serve(
    settings: &Settings,
    end: &OwnedFd,
    told: &Sender<Result<(), gateway::Failure>>,
) -> (Counts, Result<(), gateway::Failure>) {
    let mut counts = Counts::default();
    let mut gateway = match open(settings, end) {
        Ok(gateway) => gateway,
        Err(why) => {
            let _ = told.send(Err(why));
            return (counts, Ok(()));
        }
    };
    let _ = told.send(Ok(()));
    loop {
        let served = gateway.run();
        counts.add(&gateway.counts());
        // Its sockets go before those of the next one come.
        drop(gateway);
        let Err(why) = served else { return (counts, Ok(())) };
        if settings.gateways == 1 {
            return (counts, Err(why));
        }
        crate::warn(format_args!("sdp nfs gateway: {}: {why}", settings.listen));
        match reopen(settings, end) {
            Some(opened) => gateway = opened,
            None => return (counts, Ok(())),
        }
        crate::warn(format_args!("sdp nfs gateway: {} is listened on again", settings.listen));
    }
}

fn gateway(options: &GatewayOptions) -> Result<(), Failure> {
    let listen = addresses(options)?;
    let server = server_address(&options.server)?;
    let end = poll::end_requests().map_err(|e| Failure::new("signals", e))?;
    let failed = |e: gateway::Failure| Failure(e.0);
    let count = listen.len();
    let others = options.takeover.then(|| Arc::new(Barrier::new(count)));
    let each = listen.iter().map(|listen| Settings {
        source: options.source,
        memory: (options.memory as usize) << 20,
        takeover: options.takeover,
        others: others.clone(),
        gateways: count,
        ..Settings::new(*listen, server, options.allow.clone())
    });
    let each: Vec<Settings> = each.collect();
    let names: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
    let (tell, told) = mpsc::channel();
    let (counts, served) = std::thread::scope(|scope| {
        let start = |settings| {
            let (tell, end) = (tell.clone(), &end);
            scope.spawn(move || serve(settings, end, &tell))
        };
        let threads: Vec<_> = each.iter().map(start).collect();
        for _ in &threads {
            if let Ok(Err(why)) = told.recv() {
                // The threads of the other addresses have no clients yet.
                crate::warn(format_args!("sdp nfs: {}", failed(why)));
                std::process::exit(crate::status(1));
            }
        }
        crate::print(&format!("listens on {} for the server {server}\n", names.join(", ")));
        if let Err(e) = notify::tell(notify::READY) {
            crate::warn(format_args!("sdp nfs gateway: NOTIFY_SOCKET: {e}"));
        }
        let (mut all, mut result) = (Counts::default(), Ok(()));
        for thread in threads {
            match thread.join() {
                Ok((counts, served)) => {
                    all.add(&counts);
                    result = result.and(served);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        (all, result)
    });
    let mut out = String::new();
    let rules = sdp_rpcrdma::rule::Rule::ALL.iter().zip(counts.rules);
    let rules = rules.filter(|(_, count)| *count != 0).map(|(rule, count)| (rule.name(), count));
    for (name, count) in counts.named().into_iter().chain(rules) {
        out += &format!("{name} {count}\n");
    }
    crate::print(&out);
    served.map_err(failed)
}

/// What the gateways and the proxies of this host say.
fn statuses() -> (Vec<Value>, Vec<Value>) {
    let said = control::ask_all().into_iter();
    let said = said.filter_map(|(_, text)| serde_json::from_str::<Value>(&text).ok());
    let (proxies, gateways) = said.partition(proxy::is_proxy);
    (gateways, proxies)
}

/// Less than so many microseconds took this share of the calls, in hundredths.
fn quantile(histogram: &Value, hundredths: u64) -> String {
    let places: Vec<u64> = histogram.as_array().into_iter().flatten().map(number).collect();
    let all: u64 = places.iter().sum();
    let mut so_far = 0;
    for (place, count) in places.iter().enumerate() {
        so_far += count;
        if all != 0 && so_far * 100 >= all * hundredths {
            return format!("{} us", 1u64 << place);
        }
    }
    "-".to_string()
}

/// A line for each object of numbers that is not empty.
fn listed(all: &[(&str, &Value)]) -> String {
    let mut out = String::new();
    for (name, of) in all {
        let each = of.as_object().into_iter().flatten();
        let each: Vec<String> = each.map(|(what, n)| format!("{what} {}", number(n))).collect();
        if !each.is_empty() {
            let _ = writeln!(out, "  {name}: {}", each.join(", "));
        }
    }
    out
}

fn table(gateways: &[Value]) -> String {
    let mut out = String::new();
    for gateway in gateways {
        let words = ["listen", "device", "server"].map(|name| text(&gateway[name]));
        let [listen, device, server] = words;
        let memory = &gateway["memory"];
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let _ = writeln!(
            out,
            "{listen} ({device}) for {server}: memory {:.0} MiB, {:.1} used{}",
            mib(number(&memory["bytes"])),
            mib(number(&memory["bytes"]) - number(&memory["free"]).min(number(&memory["bytes"]))),
            if gateway["ending"] == true { ", ending" } else { "" },
        );
        let _ = writeln!(
            out,
            "  {:<24} {:>7} {:>7} {:>7} {:>10} {:>9} {:>9} {:>9} {:>9} {:>7}",
            "client",
            "credits",
            "flight",
            "waiting",
            "calls",
            "inline",
            "READ MiB",
            "WRITE MiB",
            "callbacks",
            "broken"
        );
        let empty = Vec::new();
        let clients = gateway["clients"].as_array().unwrap_or(&empty);
        let total = [("all, also gone", gateway)];
        let named = clients.iter().map(|client| (None, client));
        for (name, of) in named.chain(total.map(|(name, of)| (Some(name), of))) {
            let counts = &of["counts"];
            let plain = |name: &str| match &of[name] {
                Value::Null => "-".to_string(),
                value => number(value).to_string(),
            };
            let _ = writeln!(
                out,
                "  {:<24} {:>7} {:>7} {:>7} {:>10} {:>9} {:>9.1} {:>9.1} {:>9} {:>7}",
                name.map_or_else(|| text(&of["address"]), str::to_string),
                plain("credits"),
                plain("in_flight"),
                plain("waiting"),
                number(&counts["calls"]),
                number(&counts["calls_inline"]),
                mib(number(&counts["bytes_written"])),
                mib(number(&counts["bytes_read"])),
                number(&counts["callbacks"]),
                sum(&counts["rules"]),
            );
        }
        let spans = &gateway["microseconds"];
        for (name, about) in [
            ("forward", "arrived to whole"),
            ("server", "the server's time"),
            ("reply", "reply to the device"),
        ] {
            let [half, most] = [50, 99].map(|share| quantile(&spans[name], share));
            let _ = writeln!(out, "  {about:<24} half below {half}, 99 % below {most}");
        }
        out += &listed(&[
            ("refused", &gateway["refused"]),
            ("refused because", &gateway["refusals"]),
            ("ended", &gateway["ended"]),
            ("broken", &gateway["counts"]["rules"]),
        ]);
    }
    if gateways.is_empty() {
        out += "no gateway or proxy of this user's runs here\n";
    }
    out
}

/// Counters of whole gateways, or proxies, with the text format's names.
fn prometheus(prefix: &str, gateways: &[Value]) -> String {
    let mut kinds: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    for gateway in gateways {
        let labels = format!("listen=\"{}\"", text(&gateway["listen"]).replace(['\\', '"'], ""));
        let mut add = |name: String, more: String, count: u64| {
            kinds.entry(name).or_default().push((format!("{labels}{more}"), count));
        };
        for (name, count) in gateway["counts"].as_object().into_iter().flatten() {
            if count.is_u64() {
                add(format!("{prefix}_{name}_total"), String::new(), number(count));
            }
        }
        for (rule, count) in gateway["counts"]["rules"].as_object().into_iter().flatten() {
            let more = format!(",rule=\"{rule}\"");
            add(format!("{prefix}_rules_broken_total"), more, number(count));
        }
        for (kind, of) in [("refused", &gateway["refusals"]), ("ended", &gateway["ended"])] {
            for (reason, count) in of.as_object().into_iter().flatten() {
                let more = format!(",reason=\"{reason}\"");
                add(format!("{prefix}_{kind}_total"), more, number(count));
            }
        }
    }
    let mut out = String::new();
    for (name, samples) in kinds {
        let _ = writeln!(out, "# HELP {name} See sdp nfs stat.\n# TYPE {name} counter");
        for (labels, count) in samples {
            let _ = writeln!(out, "{name}{{{labels}}} {count}");
        }
    }
    out
}

fn stat(options: &StatOptions) -> Result<(), Failure> {
    loop {
        let (gateways, proxies) = statuses();
        let out = match (options.json, options.prometheus) {
            (true, _) => {
                crate::json(&json!({ "schema": SCHEMA, "gateways": gateways, "proxies": proxies }))?
            }
            (false, true) => {
                prometheus("sdp_nfs", &gateways) + &prometheus("sdp_nfs_proxy", &proxies)
            }
            // No gateway is no news where there is a proxy.
            (false, false) if gateways.is_empty() && !proxies.is_empty() => proxy::table(&proxies),
            (false, false) => table(&gateways) + &proxy::table(&proxies),
        };
        let gone = crate::try_print(&out).is_err();
        match options.watch {
            Some(seconds) if !gone => std::thread::sleep(Duration::from_secs(seconds.into())),
            _ => return Ok(()),
        }
    }
}

/// Runs the sub-command.
///
/// # Errors
/// What is missing, or the device is gone.
pub fn main(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Gateway(options) => gateway(options),
        Command::Proxy(options) => proxy::main(options),
        Command::Stat(options) => stat(options),
        Command::Mount(options) => mount::main(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway() -> Value {
        let mut server = vec![0; 26];
        (server[4], server[9]) = (98, 2);
        json!({
            "listen": "10.9.0.1:20049", "device": "rxe0", "server": "127.0.0.1:2049",
            "memory": { "bytes": 8 << 20, "free": 6 << 20 }, "ending": false,
            "clients": [{ "address": "10.9.0.2", "credits": 32, "in_flight": 3, "waiting": 0,
                "counts": { "calls": 100, "bytes_read": 1 << 20, "rules": {} } }],
            "refused": { "10.8.0.1": 2 }, "refusals": { "not-allowed": 2 }, "ended": { "client-gone": 1 },
            "counts": { "calls": 104, "rules": { "position": 5 } },
            "microseconds": { "forward": [], "server": server, "reply": [] },
        })
    }

    #[test]
    fn a_table_of_clients() {
        let out = table(&[gateway()]);
        for part in [
            "10.9.0.1:20049 (rxe0) for 127.0.0.1:2049: memory 8 MiB, 2.0 used",
            "half below 16 us, 99 % below 512 us",
            "refused: 10.8.0.1 2",
            "refused because: not-allowed 2",
            "broken: position 5",
            "ended: client-gone 1",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
        let row: Vec<&str> = out.lines().nth(2).unwrap().split_whitespace().collect();
        let wanted = ["10.9.0.2", "32", "3", "0", "100", "0", "0.0", "1.0", "0", "0"];
        assert_eq!(row, wanted);
        assert!(out.lines().nth(3).unwrap().ends_with('5'), "{out}");
        assert_eq!(table(&[]), "no gateway or proxy of this user's runs here\n");
    }

    #[test]
    fn samples_for_prometheus() {
        let out = prometheus("sdp_nfs", &[gateway()]);
        for line in [
            "sdp_nfs_calls_total{listen=\"10.9.0.1:20049\"} 104",
            "sdp_nfs_rules_broken_total{listen=\"10.9.0.1:20049\",rule=\"position\"} 5",
            "sdp_nfs_refused_total{listen=\"10.9.0.1:20049\",reason=\"not-allowed\"} 2",
            "sdp_nfs_ended_total{listen=\"10.9.0.1:20049\",reason=\"client-gone\"} 1",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}: {out}");
        }
    }

    #[test]
    fn addresses_with_and_without_a_port() {
        let of = |text: &str| address(text, 2049).unwrap().to_string();
        assert_eq!(of("10.9.0.1"), "10.9.0.1:2049");
        assert_eq!(of("10.9.0.1:20"), "10.9.0.1:20");
        assert_eq!(of("fd00::1"), "[fd00::1]:2049");
        assert_eq!(of("[fd00::1]"), "[fd00::1]:2049");
        assert_eq!(of("[fd00::1]:20"), "[fd00::1]:20");
        assert!(address("10.9.0.1:x", 1).is_err());
    }
}

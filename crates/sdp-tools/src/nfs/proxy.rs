//! `sdp nfs proxy`: NFS on TCP for this host's clients, RPC-over-RDMA to a server.

use std::{fmt::Write, net::TcpListener};

use clap::Args;
use sdp_nfs::{
    counts::LocalCounts,
    gateway, mount, notify, poll,
    proxy::{self, Proxy, Settings},
};
use serde_json::Value;

use super::values::{address, number, sum, text};
use crate::Failure;

/// Options of `sdp nfs proxy`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The server, by RDMA: a gateway, or any other that listens for RPC-over-RDMA; several addresses
    /// of one server, whose MOUNT service is asked at the first
    #[arg(value_name = "SERVER[:PORT]", required = true)]
    pub servers: Vec<String>,
    /// Connections to the server for each client, whose calls are spread over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=proxy::QUEUE_PAIRS_MAX as i64))]
    pub queue_pairs: u8,
    /// Listen on this address of this host alone, for NFS by TCP
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value_t = format!("127.0.0.1:{}", proxy::PORT))]
    pub listen: String,
    /// Relay the server's MOUNT service, which has no form for RDMA, from this address; version 4
    /// needs none
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value_t = format!("127.0.0.1:{}", proxy::MOUNT_PORT))]
    pub mount_listen: String,
    /// The port of the server's MOUNT service [default: what the server's rpcbind says]
    #[arg(long, value_name = "PORT")]
    pub mount_port: Option<u16>,
    /// The address of this host's RDMA device [default: the one that leads to the server]
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// Let in programs of ordinary users, on ports above 1023: to the server they may say that they
    /// are any user
    #[arg(long)]
    pub insecure: bool,
    /// Mebibytes of registered memory for transfers
    #[arg(long, value_name = "MIB", default_value_t = (proxy::MEMORY >> 20) as u32)]
    pub memory: u32,
}

fn counted(counts: &LocalCounts) -> String {
    let rules = sdp_rpcrdma::rule::Rule::ALL.iter().zip(counts.rules);
    let rules = rules.filter(|(_, count)| *count != 0).map(|(rule, count)| (rule.name(), count));
    let all = counts.named().into_iter().chain(rules);
    all.map(|(name, count)| format!("{name} {count}\n")).collect()
}

/// Serves until a signal ends it.
///
/// # Errors
/// What is missing, or the device is gone.
pub(super) fn main(options: &Options) -> Result<(), Failure> {
    let each = options.servers.iter().map(|server| address(server, gateway::PORT));
    let servers = each.collect::<Result<Vec<_>, _>>()?;
    let Some(server) = servers.first().copied() else { return Ok(()) };
    let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let queue_pairs = usize::from(options.queue_pairs).max(servers.len());
    let listen = address(&options.listen, proxy::PORT)?;
    let at = address(&options.mount_listen, proxy::MOUNT_PORT)?;
    let from = options.from.as_deref().map(|from| address(from, 0)).transpose()?;
    let (insecure, memory) = (options.insecure, (options.memory as usize) << 20);
    let end = poll::end_requests().map_err(|e| Failure::new("signals", e))?;
    let failed = |e: gateway::Failure| Failure(e.0);
    let timeout = gateway::TIMEOUT;
    let settings = Settings { listen, servers, queue_pairs, from, insecure, memory, timeout };
    let mut proxy = Proxy::new(settings, end).map_err(failed)?;
    if !at.ip().is_loopback() {
        return Err(Failure::new(at, "it is no address of this host alone"));
    }
    let relay = TcpListener::bind(at).map_err(|e| Failure::new(at, e))?;
    mount::serve(relay, server.ip(), options.mount_port, insecure);
    proxy.relays_mount(at);
    if let Err(e) = proxy.offer_status() {
        crate::warn(format_args!("sdp nfs proxy: no socket for `sdp nfs stat`: {e}"));
    }
    let names = names.join(", ");
    crate::print(&format!("listens on {listen} for {names} by RDMA, on {at} for MOUNT\n"));
    if let Err(e) = notify::tell(notify::READY) {
        crate::warn(format_args!("sdp nfs proxy: NOTIFY_SOCKET: {e}"));
    }
    let served = proxy.run();
    crate::print(&counted(&proxy.counts()));
    served.map_err(failed)
}

/// Whether a status is a proxy's.
pub(super) fn is_proxy(status: &Value) -> bool {
    status["role"] == "proxy"
}

/// Proxies and their clients.
pub(super) fn table(proxies: &[Value]) -> String {
    let mut out = String::new();
    for proxy in proxies {
        let [listen, device] = ["listen", "device"].map(|name| text(&proxy[name]));
        let servers: Vec<String> =
            proxy["servers"].as_array().into_iter().flatten().map(text).collect();
        let server = servers.join(", ");
        let memory = &proxy["memory"];
        let _ = writeln!(
            out,
            "proxy {listen} for {server} by RDMA ({device}): memory {} MiB, {} of {} areas used{}",
            number(&memory["bytes"]) >> 20,
            number(&memory["used"]),
            number(&memory["areas"]),
            if proxy["ending"] == true { ", ending" } else { "" },
        );
        let names = ["state", "credits", "flight", "waiting", "calls", "long", "again", "failed"];
        let _ = write!(out, "  {:<24}", "client");
        names.iter().for_each(|name| {
            let _ = write!(out, " {name:>8}");
        });
        out.push('\n');
        let row = |out: &mut String, name: &str, of: &Value, is_all: bool| {
            let plain = |name: &str| match &of[name] {
                _ if is_all => "-".to_string(),
                Value::String(_) => text(&of[name]),
                value => number(value).to_string(),
            };
            let counts = &of["counts"];
            let _ = write!(out, "  {name:<24}");
            for cell in ["state", "credits", "in_flight", "waiting"].map(plain) {
                let _ = write!(out, " {cell:>8}");
            }
            for name in ["calls", "calls_long", "again", "failed"] {
                let _ = write!(out, " {:>8}", number(&counts[name]));
            }
            out.push('\n');
        };
        for client in proxy["clients"].as_array().into_iter().flatten() {
            row(&mut out, &text(&client["address"]), client, false);
        }
        row(&mut out, "all, also gone", proxy, true);
        let broken = sum(&proxy["counts"]["rules"]);
        let _ = writeln!(out, "  refused {}, broken {broken}", number(&proxy["refused"]));
        out += &super::listed(&[
            ("refused because", &proxy["refusals"]),
            ("ended", &proxy["ended"]),
            ("broken", &proxy["counts"]["rules"]),
        ]);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_of_clients() {
        let status = json!({
            "role": "proxy", "listen": "127.0.0.1:12049", "servers": ["10.9.0.1:20049"],
            "device": "rxe0", "memory": { "bytes": 64 << 20, "areas": 112, "used": 3 },
            "clients": [{ "address": "127.0.0.1:790", "state": "up", "credits": 32,
                "in_flight": 2, "waiting": 1, "counts": { "calls": 9, "calls_long": 4 } }],
            "refused": 5, "refusals": { "port": 5 }, "ended": { "client-gone": 1 },
            "counts": { "calls": 11, "calls_long": 4, "again": 2, "rules": { "xid": 3 } },
        });
        assert!(is_proxy(&status));
        let out = table(&[status]);
        let first = "proxy 127.0.0.1:12049 for 10.9.0.1:20049 by RDMA (rxe0): memory 64 MiB, \
                     3 of 112 areas used";
        assert!(out.lines().any(|line| line == first), "{out}");
        let row = |at: usize| out.lines().nth(at).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row(2), ["127.0.0.1:790", "up", "32", "2", "1", "9", "4", "0", "0"]);
        assert_eq!(row(3)[3..], ["-", "-", "-", "-", "11", "4", "2", "0"]);
        for part in ["refused 5, broken 3", "because: port 5", "ended: client-gone 1", "xid 3"] {
            assert!(out.contains(part), "{part}: {out}");
        }
    }
}

//! `sdp nfs`: NFS over RDMA.

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::Path,
};

use clap::{Args, Subcommand};
use sdp_nfs::{
    allow::Network,
    gateway::{self, Gateway, Settings},
    poll,
};

use crate::{Failure, devices};

/// The commands of `sdp nfs`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Let clients with RDMA use an NFS server that has none
    Gateway(GatewayOptions),
}

/// Options of `sdp nfs gateway`.
#[derive(Debug, Clone, Args)]
pub struct GatewayOptions {
    /// Let clients of this network in: ADDRESS, ADDRESS/BITS, or any. Repeat it for more. There is no
    /// default, because the server sees every client behind the gateway as this host, which its
    /// export table often trusts
    #[arg(long, required = true, value_name = "NETWORK")]
    pub allow: Vec<Network>,
    /// Listen on this address of an RDMA device [default: the first one that has an address]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub listen: Option<String>,
    /// The NFS server, by TCP
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    pub server: String,
    /// Connect to the server from this address, for which its export table can have lines of its own
    #[arg(long, value_name = "ADDRESS")]
    pub source: Option<IpAddr>,
    /// Mebibytes of registered memory for transfers
    #[arg(long, value_name = "MIB", default_value_t = (gateway::MEMORY >> 20) as u32)]
    pub memory: u32,
}

/// The first address of a host or an address, with its port or the usual one.
fn address(text: &str, port: u16) -> Result<SocketAddr, Failure> {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found = match text.rsplit_once(':') {
        Some((_, digits)) if digits.parse::<u16>().is_ok() => text.to_socket_addrs(),
        _ => (text, port).to_socket_addrs(),
    };
    let mut found = found.map_err(|e| Failure::new(text, e))?;
    found.next().ok_or_else(|| Failure::new(text, "no address"))
}

/// The first address of an RDMA device of this host that is not link-local.
fn first_address() -> Result<IpAddr, Failure> {
    let devices = devices::devices(Path::new("/"));
    let ports = devices.iter().flat_map(|device| &device.ports);
    let addresses = ports.flat_map(|port| &port.gids).filter_map(|gid| gid.gid.parse().ok());
    let addresses = addresses.map(|address: std::net::Ipv6Addr| address.to_canonical());
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = addresses.filter(usable).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    let first = addresses.first().copied();
    first.ok_or_else(|| Failure::new("no RDMA device has an address", "see `sdp devices`"))
}

fn gateway(options: &GatewayOptions) -> Result<(), Failure> {
    let listen = match &options.listen {
        Some(text) => address(text, gateway::PORT)?,
        None => SocketAddr::new(first_address()?, gateway::PORT),
    };
    let server = address(&options.server, gateway::SERVER_PORT)?;
    let settings = Settings {
        listen,
        server,
        allow: options.allow.clone(),
        source: options.source,
        memory: (options.memory as usize) << 20,
    };
    let end = poll::end_requests().map_err(|e| Failure::new("signals", e))?;
    let failed = |e: gateway::Failure| Failure(e.0);
    let mut gateway = Gateway::new(settings, end).map_err(failed)?;
    crate::print(&format!("listens on {listen} for the server {server}\n"));
    let served = gateway.run();
    let mut out = String::new();
    let counts = gateway.counts();
    let rules = sdp_rpcrdma::rule::Rule::ALL.iter().zip(counts.rules);
    let rules = rules.filter(|(_, count)| *count != 0).map(|(rule, count)| (rule.name(), count));
    for (name, count) in counts.named().into_iter().chain(rules) {
        out += &format!("{name} {count}\n");
    }
    crate::print(&out);
    served.map_err(failed)
}

/// Runs the sub-command.
///
/// # Errors
/// What is missing, or the device is gone.
pub fn main(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Gateway(options) => gateway(options),
    }
}

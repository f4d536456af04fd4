//! Addresses that are typed, and values of a status.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use serde_json::Value;

use crate::Failure;

/// The first address of a host or an address, with its port or the usual one.
pub(super) fn address(text: &str, port: u16) -> Result<SocketAddr, Failure> {
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

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A text of a gateway's, without characters that could drive a terminal.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").chars().filter(|c| !c.is_control()).collect()
}

pub(super) fn sum(map: &Value) -> u64 {
    map.as_object().into_iter().flatten().map(|(_, count)| number(count)).sum()
}

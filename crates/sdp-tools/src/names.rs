//! Numbers to names: TCP states, lanes, addresses, and the names that `/etc` has of users, ports
//! and hosts.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use sdp_stats::Endpoint;

/// A TCP state number as netstat calls it.
pub const fn state(number: u8) -> &'static str {
    match number {
        1 => "ESTABLISHED",
        2 => "SYN_SENT",
        3 => "SYN_RECV",
        4 => "FIN_WAIT1",
        5 => "FIN_WAIT2",
        6 => "TIME_WAIT",
        7 => "CLOSE",
        8 => "CLOSE_WAIT",
        9 => "LAST_ACK",
        10 => "LISTEN",
        11 => "CLOSING",
        _ => "UNKNOWN",
    }
}

/// A fabric number.
pub const fn fabric(number: u8) -> &'static str {
    match number {
        0 => "-",
        1 => "shm",
        2 => "verbs",
        _ => "?",
    }
}

/// A flow-control mode number.
pub const fn mode(number: u8) -> &'static str {
    match number {
        0 => "-",
        1 => "buffered",
        2 => "combined",
        3 => "pipelined",
        _ => "?",
    }
}

/// How the process came to the socket.
pub const fn role(number: u8) -> &'static str {
    match number {
        1 => "client",
        2 => "server",
        3 => "listener",
        4 => "inherited",
        _ => "?",
    }
}

/// The address of an end; v4-mapped ones as IPv4.
pub fn address(end: &Endpoint) -> IpAddr {
    Ipv6Addr::from(end.addr).to_canonical()
}

/// An end out of an address and a port.
pub fn endpoint((address, port): (IpAddr, u16)) -> Endpoint {
    match address {
        IpAddr::V4(a) => Endpoint::v4(a.octets(), port),
        IpAddr::V6(a) => Endpoint::v6(a.octets(), port),
    }
}

/// `address:port`, with brackets around IPv6.
pub fn end(end: &Endpoint) -> String {
    match address(end) {
        IpAddr::V4(a) => format!("{a}:{}", end.port),
        IpAddr::V6(a) => format!("[{a}]:{}", end.port),
    }
}

/// Names out of files in `/etc`. No query ever leaves the machine.
#[derive(Debug, Default)]
pub struct Names {
    users: HashMap<u32, String>,
    ports: HashMap<u16, String>,
    hosts: HashMap<IpAddr, String>,
}

impl Names {
    /// Knows nothing: everything stays a number.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads `/etc/passwd`, `/etc/services` and `/etc/hosts`.
    pub fn load() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/etc/passwd"), &read("/etc/services"), &read("/etc/hosts"))
    }

    fn parse(passwd: &str, services: &str, hosts: &str) -> Self {
        let mut names = Self::default();
        for line in passwd.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(Ok(uid))) = (fields.next(), fields.nth(1).map(str::parse)) {
                names.users.entry(uid).or_insert_with(|| name.to_string());
            }
        }
        let words = |line: &'_ str| -> Vec<String> {
            let line = line.split('#').next().unwrap_or_default();
            line.split_whitespace().map(String::from).collect()
        };
        for line in services.lines().map(words) {
            if let [name, port, ..] = line.as_slice()
                && let Some(Ok(port)) = port.strip_suffix("/tcp").map(str::parse)
            {
                names.ports.entry(port).or_insert_with(|| name.clone());
            }
        }
        for line in hosts.lines().map(words) {
            if let [address, name, ..] = line.as_slice()
                && let Ok(address) = address.parse()
            {
                names.hosts.entry(address).or_insert_with(|| name.clone());
            }
        }
        names
    }

    /// From now on hosts are numbers.
    pub fn forget_hosts(&mut self) {
        self.hosts.clear();
    }

    /// From now on ports are numbers.
    pub fn forget_ports(&mut self) {
        self.ports.clear();
    }

    /// From now on users are numbers.
    pub fn forget_users(&mut self) {
        self.users.clear();
    }

    /// A user's name, or number.
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// `host:port` as netstat writes it: wildcards as `*`, no brackets.
    pub fn netstat_end(&self, address: IpAddr, port: u16) -> String {
        let host = match self.hosts.get(&address) {
            Some(name) => name.clone(),
            None => address.to_string(),
        };
        let port = match (port, self.ports.get(&port)) {
            (0, _) => "*".to_string(),
            (_, Some(name)) => name.clone(),
            (port, None) => port.to_string(),
        };
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_give_names() {
        let names = Names::parse(
            "root:x:0:0:root:/root:/bin/sh\nbroken\nredis:x:105:1::/:\n",
            "# comment\nssh 22/tcp # remote\nntp 123/udp\n",
            "127.0.0.1 localhost lo\n::1 ip6-localhost\nrubbish here\n",
        );
        assert_eq!(names.user(105), "redis");
        assert_eq!(names.user(7), "7");
        let v4: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(names.netstat_end(v4, 22), "localhost:ssh");
        assert_eq!(names.netstat_end("10.0.0.1".parse().unwrap(), 123), "10.0.0.1:123");
        assert_eq!(Names::none().netstat_end("::".parse().unwrap(), 0), ":::*");
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        assert_eq!(end(&Endpoint::v4([10, 0, 0, 1], 80)), "10.0.0.1:80");
        assert_eq!(end(&Endpoint::v6([0; 16], 80)), "[::]:80");
    }

    #[test]
    fn unknown_numbers_have_a_word() {
        for n in 0..=255u8 {
            assert!(![state(n), fabric(n), mode(n), role(n)].contains(&""));
        }
    }
}

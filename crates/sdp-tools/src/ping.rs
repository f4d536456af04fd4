//! `sdp doctor --peer` and `--answer`: whether messages reach another host by RDMA.
//!
//! The fabric that the library uses, on both sides: the device that has the address, the kernel's
//! connection manager, a queue pair, a few messages there and back. Each message is compared and
//! shown without characters that could drive a terminal; a request that is no ping is refused, and
//! a client has a few seconds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use sdp_fabric_verbs::{
    Address, Error,
    endpoint::{VerbsRx, VerbsTx},
    fabric::{Id, Options, VerbsFabric},
};
use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric, Gather, PostError, QpError, ReceiveQueue, SendOptions, SendQueue},
    work::WorkId,
};

use crate::Failure;

/// The port where pings are answered, unless another one is named.
pub const PORT: u16 = 7797;
/// How the private data of a request begins, and of an answer.
const REQUEST: &[u8] = b"sdp-ping 1 ";
const REPLY: &[u8] = b"sdp-pong 1 ";
/// Messages there and back.
const ROUNDS: u32 = 10;
/// Bytes of one.
const LENGTH: usize = 32;
/// How long the whole may take, and how long the answering side waits for one client.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Clients at the same time; others are refused.
const CLIENTS: usize = 16;
/// Between two looks.
const BRIEFLY: Duration = Duration::from_micros(20);
const LONGER: Duration = Duration::from_millis(5);

/// The result of a ping.
#[derive(Debug)]
pub struct Pong {
    /// The device here.
    pub device: String,
    /// The other end's library.
    pub version: String,
    /// The quickest message there and back.
    pub quickest: Duration,
}

/// Why there was no answer.
#[derive(Debug)]
pub struct Silence {
    /// The event.
    pub what: String,
    /// The remedy.
    pub advice: String,
}

fn silence(what: impl Into<String>, advice: impl Into<String>) -> Silence {
    Silence { what: what.into(), advice: advice.into() }
}

/// `ADDRESS`, `NAME`, or either with a port.
///
/// # Errors
/// It is none, or no name of a host.
pub fn endpoint(text: &str) -> Result<SocketAddr, Failure> {
    endpoint_or(text, PORT)
}

/// [`endpoint`], with this port unless one is named.
///
/// # Errors
/// As there.
pub fn endpoint_or(text: &str, port: u16) -> Result<SocketAddr, Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::new(format_args!("{text:?}"), why);
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found = match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => text.to_socket_addrs(),
        // An IPv6 address with a zone has colons and no brackets.
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => {
            return Err(bad(&"a port is a number of at most 65535"));
        }
        _ => (text, port).to_socket_addrs(),
    };
    found.map_err(|e| bad(&e))?.next().ok_or_else(|| bad(&"no address"))
}

fn address(at: &SocketAddr) -> Address {
    match at {
        SocketAddr::V4(at) => Address::v4(at.ip().octets(), at.port()),
        SocketAddr::V6(at) => Address::v6(at.ip().octets(), at.port(), at.scope_id()),
    }
}

/// The address of this host that leads to another one. Nothing is sent.
fn own(peer: &SocketAddr) -> std::io::Result<SocketAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    socket.local_addr()
}

fn open(at: &SocketAddr) -> Result<VerbsFabric, Silence> {
    let ip = at.ip();
    VerbsFabric::open(&address(at), &Options::default()).map_err(|error| match error {
        Error::NoDevice => silence(
            format!("no RDMA device of this host that may be used has the address {ip}"),
            "See sdp devices; for soft-RoCE: rdma link add rxe0 type rxe netdev NAME.",
        ),
        Error::MemLock => silence(error.to_string(), "Raise ulimit -l to 8192 or more."),
        Error::Descriptors => silence(error.to_string(), "Raise ulimit -n to 1024 or more."),
        Error::Iwarp | Error::OldKernel | Error::Full | Error::Os(..) => {
            silence(format!("the device with {ip}: {error}"), "See the other findings.")
        }
    })
}

/// The content of a message behind its header: nothing.
struct Nothing;

impl Gather for Nothing {
    fn len(&self) -> usize {
        0
    }

    fn copy_to(&mut self, _: usize, _: &[std::cell::Cell<u8>]) {}
}

fn send(tx: &mut VerbsTx, number: u32, bytes: &[u8]) -> Result<(), PostError> {
    // One message at a time: the other end has a buffer for it.
    tx.allow(number.wrapping_add(1));
    let options = SendOptions { signalled: false, solicited: true, control: false };
    tx.post_send(WorkId(number.into()), bytes, &mut Nothing, options)
}

/// The next message, if it has come: its length and its first bytes.
fn take(rx: &mut VerbsRx) -> Result<Option<(usize, [u8; LENGTH])>, QpError> {
    let Some(message) = rx.poll_receive()? else { return Ok(None) };
    let mut bytes = [0; LENGTH];
    rx.copy_header(message, &mut bytes);
    rx.release(message);
    Ok(Some((message.len as usize, bytes)))
}

fn private(prefix: &[u8]) -> PrivateData {
    let text = [prefix, env!("CARGO_PKG_VERSION").as_bytes()].concat();
    PrivateData::new(&text).unwrap_or_else(|| unreachable!("{} bytes", text.len()))
}

/// The version in the answer of a host that knows pings.
fn version(data: &[u8]) -> Option<String> {
    let rest = data.strip_prefix(REPLY)?;
    let text = rest.iter().take_while(|b| **b != 0).take(32);
    Some(text.map(|b| if (0x20..0x7f).contains(b) { char::from(*b) } else { '?' }).collect())
}

/// Asks a host that answers by `sdp doctor --answer`.
///
/// # Errors
/// Where it ended, and the remedy.
pub fn ask(peer: &SocketAddr) -> Result<Pong, Silence> {
    let ip = peer.ip();
    let there = format!(
        "There: a device with that address (sdp devices), UDP port 4791 open for RoCE, and sdp doctor --answer {ip}."
    );
    let own = own(peer).map_err(|e| silence(format!("no way to {ip}: {e}"), "See ip route."))?;
    let mut fabric = open(&own)?;
    let device = String::from_utf8_lossy(fabric.device_name()).into_owned();
    let end = Instant::now() + TIMEOUT;
    let id = fabric
        .connect(address(peer), private(REQUEST))
        .map_err(|why| silence(format!("{device} has no way to {ip} ({why:?})"), &*there))?;
    let data = loop {
        match fabric.poll_cm() {
            Some(CmEvent::Established(of, data)) if of == id => break data,
            Some(CmEvent::Rejected(of, why)) if of == id => {
                return Err(match why {
                    Reject::Consumer(_) => silence(
                        format!(
                            "whoever listens at {peer} by RDMA knows no pings, or has too many"
                        ),
                        format!("Name the port of sdp doctor --answer {ip}."),
                    ),
                    _ => silence(
                        format!("{ip} answers by RDMA, but nobody listens at port {}", peer.port()),
                        format!("Start there: sdp doctor --answer {ip}"),
                    ),
                });
            }
            Some(CmEvent::Unreachable(of)) if of == id => {
                return Err(silence(format!("{ip} does not answer {device} by RDMA"), there));
            }
            Some(_) => {}
            None if Instant::now() >= end => {
                return Err(silence(
                    format!("{ip} does not answer {device} by RDMA in time"),
                    there,
                ));
            }
            None => std::thread::sleep(BRIEFLY),
        }
    };
    let Some(version) = version(data.as_slice()) else {
        return Err(silence(format!("whoever answered at {peer} is no sdp doctor"), there));
    };
    let Some((mut tx, mut rx)) = fabric.take_queues(id) else {
        return Err(silence(format!("the queue pair to {ip} ended at once"), there));
    };
    let mut quickest = TIMEOUT;
    for round in 0..ROUNDS {
        let broken = |how: String| {
            let what = format!("connected, but message {} of {ROUNDS} to {ip} {how}", round + 1);
            silence(what, "Let packets of the port's MTU through (rdma-mtu, firewalls on the way).")
        };
        let mut message = [round as u8; LENGTH];
        message[..REQUEST.len()].copy_from_slice(REQUEST);
        let begun = Instant::now();
        send(&mut tx, round, &message).map_err(|why| broken(format!("was not taken: {why:?}")))?;
        loop {
            match take(&mut rx) {
                Ok(Some(found)) if found == (LENGTH, message) => break,
                Ok(Some(_)) => return Err(broken("came back as another".into())),
                Err(why) => return Err(broken(format!("was lost: {why:?}"))),
                Ok(None) if Instant::now() >= end => return Err(broken("had no answer".into())),
                Ok(None) => {
                    fabric.progress();
                    std::thread::yield_now();
                }
            }
        }
        quickest = quickest.min(begun.elapsed());
    }
    drop((tx, rx));
    fabric.disconnect(id);
    fabric.progress();
    Ok(Pong { device, version, quickest })
}

/// A client.
struct Client {
    id: Id,
    tx: VerbsTx,
    rx: VerbsRx,
    until: Instant,
    sent: u32,
}

impl Client {
    /// Answers the messages that have come; false: that was the client's last.
    fn answer(&mut self) -> bool {
        // Others are served between two visits.
        for _ in 0..ROUNDS {
            match take(&mut self.rx) {
                Ok(Some((LENGTH, bytes))) => {
                    if send(&mut self.tx, self.sent, &bytes).is_err() {
                        return false;
                    }
                    self.sent = self.sent.wrapping_add(1);
                }
                Ok(None) => break,
                Ok(Some(_)) | Err(_) => return false,
            }
        }
        Instant::now() < self.until
    }
}

/// Answers pings at an address of this host, until the user ends it.
///
/// # Errors
/// No device has the address, or its port is taken.
pub fn answer(at: &SocketAddr) -> Result<(), Failure> {
    let mut fabric = open(at).map_err(|s| Failure(format!("{}. {}", s.what, s.advice)))?;
    let listens = fabric.listen(address(at));
    listens.map_err(|why| Failure(format!("port {} of {}: {why:?}", at.port(), at.ip())))?;
    let device = String::from_utf8_lossy(fabric.device_name()).into_owned();
    crate::print(&format!("answering at {at} on {device}; end with ^C\n"));
    let mut clients: Vec<Client> = Vec::new();
    loop {
        while let Some(event) = fabric.poll_cm() {
            match event {
                CmEvent::Request(id, data) => {
                    let is_ping = data.as_slice().starts_with(REQUEST);
                    if !is_ping || clients.len() >= CLIENTS {
                        fabric.reject(id, 1);
                    } else if fabric.accept(id, private(REPLY)).is_ok() {
                        match fabric.take_queues(id) {
                            Some((tx, rx)) => {
                                let until = Instant::now() + TIMEOUT;
                                clients.push(Client { id, tx, rx, until, sent: 0 });
                            }
                            None => fabric.disconnect(id),
                        }
                    }
                }
                CmEvent::Disconnected(id) => clients.retain(|client| client.id != id),
                _ => {}
            }
        }
        for mut client in std::mem::take(&mut clients) {
            if client.answer() {
                clients.push(client);
            } else {
                let id = client.id;
                drop(client);
                fabric.disconnect(id);
            }
        }
        if fabric.is_lost() {
            return Err(Failure(format!("{device} is gone")));
        }
        std::thread::sleep(if clients.is_empty() { LONGER } else { BRIEFLY });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_the_usual_one() {
        let is = |text: &str, expected: &str| {
            assert_eq!(endpoint(text).unwrap(), expected.parse::<SocketAddr>().unwrap(), "{text}");
        };
        is("10.0.0.1", "10.0.0.1:7797");
        is("10.0.0.1:9", "10.0.0.1:9");
        is("fe80::1", "[fe80::1]:7797");
        is("[fe80::1]:9", "[fe80::1]:9");
        assert!(endpoint("10.0.0.1:70000").is_err() && endpoint("").is_err());
    }

    #[test]
    fn what_a_stranger_answers_is_text_or_nothing() {
        assert_eq!(version(b"sdp-pong 1 0.1.0\0\0").as_deref(), Some("0.1.0"));
        assert_eq!(version(b"sdp-pong 1 \x1b[2J").as_deref(), Some("?[2J"));
        assert_eq!(version(&[REPLY, &[b'x'; 100]].concat()).map(|v| v.len()), Some(32));
        assert_eq!(version(b"sdp-pong 2 0.1.0"), None);
        assert_eq!(version(&[]), None);
    }
}

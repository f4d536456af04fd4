//! What these tests share: records, gateways, a proxy, and a client before it.

#![allow(dead_code, reason = "not every file uses all of it")]

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    thread::{self, JoinHandle},
    time::Duration,
};

use sdp_nfs::{
    counts::LocalCounts,
    gateway::{self, Gateway},
    proxy::{Proxy, Settings},
};
use sdp_rpcrdma::rpc::mark;
use serde_json::Value;

/// Far beyond what anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const IP: [u8; 4] = [10, 9, 0, 1];

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub(crate) fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_be_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap())
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

pub(crate) fn record(bytes: &[u8]) -> Vec<u8> {
    [&mark(bytes.len() as u32)[..], bytes].concat()
}

/// A gateway that listens, until the socket that is returned is shut down or dropped; then `tell` says what
/// became of it. No memory of it is lost.
pub(crate) fn start_gateway<T: Send + 'static>(
    settings: gateway::Settings,
    tell: impl FnOnce(&Gateway) -> T + Send + 'static,
) -> (UnixStream, JoinHandle<T>) {
    let (end, theirs) = UnixStream::pair().unwrap();
    let (told, is_open) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        let mut gateway = Gateway::new(settings, theirs.into()).expect("a gateway");
        told.send(()).unwrap();
        gateway.run().expect("served");
        assert_eq!(gateway.free_memory(), gateway.memory(), "a block was lost");
        tell(&gateway)
    });
    is_open.recv().expect("it listens");
    (end, thread)
}

pub(crate) struct Service<C> {
    pub(crate) end: Option<UnixStream>,
    pub(crate) thread: Option<JoinHandle<C>>,
}

impl<C> Service<C> {
    pub(crate) fn finish(&mut self) -> C {
        drop(self.end.take());
        self.thread.take().unwrap().join().expect("it ended well")
    }
}

/// What it has counted, and its status.
pub(crate) type Ended = (LocalCounts, Value);

pub(crate) fn proxy(settings: Settings) -> (Service<Ended>, SocketAddr) {
    let (end, theirs) = UnixStream::pair().unwrap();
    let (told, address) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        let mut proxy = Proxy::new(settings, theirs.into()).expect("a proxy");
        told.send(proxy.address().unwrap()).unwrap();
        proxy.run().expect("served");
        assert_eq!(proxy.areas().0, 0, "an area was lost");
        (proxy.counts(), serde_json::from_str(&proxy.status()).unwrap())
    });
    let address = address.recv().expect("it listens");
    (Service { end: Some(end), thread: Some(thread) }, address)
}

/// For a proxy before one server.
pub(crate) fn settings(server: SocketAddr) -> Settings {
    Settings {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        servers: vec![server],
        queue_pairs: 1,
        from: Some((IP, 0).into()),
        insecure: true,
        memory: 8 << 20,
        timeout: LIMIT,
    }
}

pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(&record(bytes)).unwrap();
    }

    /// The next record; `None`: the connection has ended.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head).ok()?;
        assert!(head[0] & 0x80 != 0, "one fragment");
        let mut bytes = vec![0; (u32::from_be_bytes(head) & 0x7fff_ffff) as usize];
        self.0.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }
}

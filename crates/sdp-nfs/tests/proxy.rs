//! The proxy on the stand-in for RDMA devices: clients by TCP, a gateway by RDMA, and a server of
//! this file behind that; long calls and replies, callbacks, lost connections, hostile clients.

mod common;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Client, Ended, IP, LIMIT, Service, pattern, proxy, record, settings, word, words};
use sdp_fake_verbs::Network;
use sdp_nfs::{
    counts::{Counts, LocalCounts},
    gateway::{self, Gateway},
    proxy::{Proxy, Settings},
};
use serde_json::{Value, json};
use socket2::SockRef;

/// Procedures of the server below.
const ECHO: u32 = 100;
const COUNTED: u32 = 101;
const CALL_BACK: u32 = 102;
const TOO_LONG: u32 = 103;
const HELD: u32 = 104;
const HANG_UP: u32 = 105;

/// A call of an unknown program, whose reply may have any length: what it wants, and bytes.
fn call(xid: u32, procedure: u32, wanted: u32, bytes: &[u8]) -> Vec<u8> {
    let head = [xid, 0, 2, 400_000, 3, procedure, 0, 0, 0, 0, wanted];
    [words(&head), bytes.to_vec()].concat()
}

/// What the server has seen.
#[derive(Default)]
struct Seen {
    /// How often a call of an XID has come.
    times: BTreeMap<u32, u32>,
    callback_replies: u32,
    held: Vec<(TcpStream, u32)>,
}

fn serve(mut stream: TcpStream, seen: &Mutex<Seen>) {
    let mut head = [0; 4];
    while stream.read_exact(&mut head).is_ok() {
        let mut call = vec![0; (u32::from_be_bytes(head) & 0x7fff_ffff) as usize];
        if stream.read_exact(&mut call).is_err() {
            return;
        }
        if word(&call, 1) == 1 {
            seen.lock().unwrap().callback_replies += 1;
            continue;
        }
        let xid = word(&call, 0);
        let times = *seen.lock().unwrap().times.entry(xid).and_modify(|n| *n += 1).or_insert(1);
        let head = words(&[xid, 1, 0, 0, 0, 0]);
        let sent = match word(&call, 5) {
            // As many bytes as are wanted, and the sum of those that came.
            ECHO | TOO_LONG => {
                let sum = call[44..].iter().map(|byte| u32::from(*byte)).sum();
                let body = pattern(word(&call, 10) as usize);
                record(&[head, words(&[call.len() as u32, sum]), body].concat())
            }
            COUNTED => record(&[head, words(&[times])].concat()),
            CALL_BACK => [record(&words(&[77, 0, 2, 5])), record(&head)].concat(),
            HELD if times == 1 => {
                seen.lock().unwrap().held.push((stream.try_clone().unwrap(), xid));
                continue;
            }
            HANG_UP if times < 5 => return,
            _ => record(&head),
        };
        if stream.write_all(&sent).is_err() {
            return;
        }
    }
}

fn gateway(listen: SocketAddr, server: SocketAddr) -> Service<Counts> {
    let allow = vec!["any".parse().unwrap()];
    let usual = gateway::Settings::new(listen, server, allow);
    let settings = gateway::Settings { memory: 16 << 20, timeout: LIMIT, silence: LIMIT, ..usual };
    let (end, thread) = common::start_gateway(settings, Gateway::counts);
    Service { end: Some(end), thread: Some(thread) }
}

/// A server, a gateway and a proxy.
struct Rig {
    seen: Arc<Mutex<Seen>>,
    server: SocketAddr,
    rdma: SocketAddr,
    gateway: Option<Service<Counts>>,
    proxy: Service<Ended>,
    address: SocketAddr,
}

impl Rig {
    fn new(memory: usize) -> Self {
        Self::with(memory, LIMIT)
    }

    fn with(memory: usize, timeout: Duration) -> Self {
        Network::private().expect("memory for a network");
        static PORT: AtomicU16 = AtomicU16::new(20049);
        let rdma = SocketAddr::from((IP, PORT.fetch_add(1, Ordering::Relaxed)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            for one in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(one, &shared));
            }
        });
        let gateway = Some(gateway(rdma, server));
        let (proxy, address) = proxy(Settings { memory, timeout, ..settings(rdma) });
        Self { seen, server, rdma, gateway, proxy, address }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client(stream)
    }

    fn finish(mut self) -> (LocalCounts, Counts) {
        let (counts, _) = self.proxy.finish();
        (counts, self.gateway.take().unwrap().finish())
    }

    /// Why its clients ended.
    fn ends(mut self) -> Value {
        self.proxy.finish().1["ended"].clone()
    }

    /// The server's connections end that have a call which was held.
    fn hang_up(&self) {
        for (stream, _) in self.seen.lock().unwrap().held.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Waits until the server has `calls` calls that it does not answer.
    fn hold(&self, calls: usize) {
        while self.seen.lock().unwrap().held.len() < calls {
            thread::yield_now();
        }
    }
}

/// Bytes that come back.
trait Echo {
    fn echo(&mut self, xid: u32, len: usize, wanted: u32);
}

impl Echo for Client {
    fn echo(&mut self, xid: u32, len: usize, wanted: u32) {
        let bytes = pattern(len);
        let sum = bytes.iter().map(|byte| u32::from(*byte)).sum();
        self.send(&call(xid, ECHO, wanted, &bytes));
        let reply = self.receive().expect("a reply");
        let head = words(&[xid, 1, 0, 0, 0, 0, 44 + len as u32, sum]);
        assert!(reply == [head, pattern(wanted as usize)].concat(), "{len} {wanted}");
    }
}

#[test]
fn calls_and_replies_of_any_length() {
    let rig = Rig::new(8 << 20);
    let mut client = rig.connect();
    let lengths = [0, 1, 3900, 4000, 4052, 4053, 4096, 100_001, 131_072, 1 << 20];
    for (at, len) in lengths.into_iter().enumerate() {
        client.echo(at as u32, len, lengths[lengths.len() - 1 - at] as u32);
    }
    let (counts, gateway) = rig.finish();
    assert_eq!(counts.calls, lengths.len() as u64);
    assert_eq!(gateway.calls, counts.calls);
    assert!(counts.calls_long >= 5 && counts.replies_long >= 5, "{counts:?}");
    assert!(counts.replies_inline >= 2 && counts.failed == 0, "{counts:?}");
    assert_eq!(gateway.calls_long, counts.calls_long);
}

#[test]
fn many_calls_at_once_by_several_clients() {
    let rig = Rig::new(8 << 20);
    let mut clients: Vec<Client> = (0..3).map(|_| rig.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        for xid in 0..40u32 {
            let len = if xid % 5 == 0 { 200_000 } else { 100 * at };
            client.send(&call(xid, ECHO, 10_000 * (xid % 3), &pattern(len)));
        }
    }
    for client in &mut clients {
        let mut xids: Vec<u32> = (0..40)
            .map(|_| {
                let reply = client.receive().expect("a reply");
                let wanted = 10_000 * (word(&reply, 0) % 3) as usize;
                assert_eq!(reply[32..], pattern(wanted));
                word(&reply, 0)
            })
            .collect();
        xids.sort_unstable();
        assert_eq!(xids, (0..40).collect::<Vec<_>>());
    }
    let (counts, _) = rig.finish();
    assert_eq!((counts.calls, counts.connects), (120, 3));
}

#[test]
fn fragments_are_joined() {
    let rig = Rig::new(8 << 20);
    let mut client = rig.connect();
    for (xid, len) in [(1, 100), (2, 9000), (3, 300_000)] {
        let bytes = call(xid, ECHO, 4, &pattern(len));
        let step = bytes.len() / 5;
        let mut pieces = bytes.chunks(step).peekable();
        while let Some(piece) = pieces.next() {
            let last = if pieces.peek().is_none() { 1 << 31 } else { 0 };
            client.0.write_all(&(piece.len() as u32 | last).to_be_bytes()).unwrap();
            client.0.write_all(piece).unwrap();
        }
        let reply = client.receive().expect("a reply");
        assert_eq!((word(&reply, 0), word(&reply, 6)), (xid, 44 + len as u32));
    }
    rig.finish();
}

#[test]
fn callbacks_and_their_answers_go_through() {
    let rig = Rig::new(8 << 20);
    let mut client = rig.connect();
    client.send(&call(5, CALL_BACK, 0, &[]));
    let mut got = [client.receive().unwrap(), client.receive().unwrap()];
    got.sort();
    assert_eq!(got, [words(&[5, 1, 0, 0, 0, 0]), words(&[77, 0, 2, 5])]);
    client.send(&words(&[77, 1, 0, 0, 0, 0]));
    client.echo(6, 1, 1);
    let (counts, _) = rig.finish();
    assert_eq!((counts.callbacks, counts.callbacks_dropped), (1, 0));
}

#[test]
fn a_lost_gateway_costs_no_call_and_the_xids_stay() {
    let mut rig = Rig::new(24 << 20);
    let mut client = rig.connect();
    client.echo(1, 10, 10);
    // One call is with the server when the gateway goes, in a message and in memory.
    client.send(&call(2, HELD, 0, &[]));
    client.send(&call(3, HELD, 0, &pattern(50_000)));
    rig.hold(2);
    // The server's connections end, so the gateway's client does.
    rig.hang_up();
    let mut xids = [word(&client.receive().unwrap(), 0), word(&client.receive().unwrap(), 0)];
    xids.sort_unstable();
    assert_eq!(xids, [2, 3]);
    // The gateway itself goes, and a call comes while there is none.
    rig.gateway.take().unwrap().finish();
    client.send(&call(4, COUNTED, 0, &pattern(9000)));
    thread::sleep(Duration::from_millis(300));
    rig.gateway = Some(gateway(rig.rdma, rig.server));
    let reply = client.receive().expect("a reply");
    assert_eq!((word(&reply, 0), word(&reply, 6)), (4, 1));
    let seen = rig.seen.lock().unwrap().times.clone();
    assert_eq!(seen, BTreeMap::from([(1, 1), (2, 2), (3, 2), (4, 1)]));
    let (counts, _) = rig.finish();
    assert_eq!((counts.again, counts.connects), (2, 3));
}

#[test]
fn what_the_transport_refuses_is_an_error_of_rpc() {
    let rig = Rig::new(8 << 20);
    let mut client = rig.connect();
    // A reply of version 3 that is far longer than it may be.
    let mut bytes = call(9, TOO_LONG, 500_000, &[]);
    bytes[12..16].copy_from_slice(&100_003u32.to_be_bytes());
    client.send(&bytes);
    assert_eq!(client.receive().unwrap(), words(&[9, 1, 0, 0, 0, 5]));
    client.echo(10, 1, 1);
    let (counts, _) = rig.finish();
    assert_eq!(counts.failed, 1);
}

#[test]
fn hostile_clients_end_and_harm_no_other() {
    let rig = Rig::new(24 << 20);
    let mut other = rig.connect();
    other.echo(1, 1, 1);
    let hostile: [Vec<u8>; 5] = [
        words(&[0x7fff_ffff, 0, 0]),
        words(&[0x8000_0004, 0]),
        record(&words(&[1, 2, 3])),
        vec![0; 400],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    for bytes in hostile {
        let mut client = rig.connect();
        // It may have ended before all was written.
        let _ = client.0.write_all(&bytes);
        assert_eq!(client.receive(), None, "{bytes:?}");
        other.echo(2, 1, 1);
    }
    // One that goes in the middle of a long call, and one that never takes its replies.
    let mut gone = rig.connect();
    let half = record(&call(1, ECHO, 1 << 20, &pattern(1 << 20)));
    gone.0.write_all(&half[..500_000]).unwrap();
    drop(gone);
    let mut silent = rig.connect();
    for xid in 0..10 {
        silent.send(&call(xid, ECHO, 100_000, &[]));
    }
    drop(silent);
    // One XID twice: one reply.
    let mut twice = rig.connect();
    twice.echo(69, 1, 1);
    twice.send(&call(70, HELD, 0, &[]));
    twice.send(&call(70, HELD, 0, &[]));
    twice.echo(71, 1, 1);
    other.echo(3, 200_000, 200_000);
    drop((other, twice));
    let (counts, _) = rig.finish();
    assert_eq!(counts.repeated, 1, "{counts:?}");
}

#[test]
fn without_a_server_a_client_is_not_kept() {
    let mut rig = Rig::new(8 << 20);
    rig.gateway.take().unwrap().finish();
    assert_eq!(rig.connect().receive(), None);
    rig.gateway = Some(gateway(rig.rdma, rig.server));
    rig.connect().echo(1, 1, 1);
    rig.finish();
}

#[test]
fn only_this_host_and_only_privileged_ports() {
    Network::private().expect("memory for a network");
    let listen = (Ipv4Addr::UNSPECIFIED, 0).into();
    let settings = Settings { listen, insecure: false, ..settings((IP, 1).into()) };
    let (_end, theirs) = UnixStream::pair().unwrap();
    let refused = Proxy::new(settings.clone(), theirs.into()).unwrap_err().to_string();
    assert!(refused.contains("no address of this host alone"), "{refused}");
    let (mut service, address) =
        proxy(Settings { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..settings });
    let mut client = Client(TcpStream::connect(address).unwrap());
    assert_eq!(client.receive(), None);
    let (counts, told) = service.finish();
    assert_eq!(counts, LocalCounts::default());
    assert_eq!((&told["ended"], &told["refusals"]), (&json!({}), &json!({ "port": 1 })));
}

#[test]
fn replies_that_nobody_waits_for_are_not_kept() {
    let mut rig = Rig::new(8 << 20);
    let mut client = rig.connect();
    client.echo(1, 1, 1);
    rig.gateway.take().unwrap().finish();
    // More than sockets buffer, while there is no server that could be sent any.
    const MOST: usize = 64 << 20;
    let reply = record(&[words(&[5, 1]), vec![0; 4088]].concat());
    client.0.set_nonblocking(true).unwrap();
    let (mut sent, mut full) = (0, 0);
    while full < 50 && sent < MOST {
        match client.0.write(&reply[sent % reply.len()..]) {
            Ok(count) => (sent, full) = (sent + count, 0),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                full += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(sent < MOST, "all of it was taken");
    drop(client);
    rig.ends();
}

#[test]
fn a_client_that_never_pauses_lets_others_go_on() {
    let rig = Rig::new(24 << 20);
    let mut other = rig.connect();
    other.echo(1, 1, 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for head in [[7, 0, 2, 400_000, 3, HELD], [7, 1, 0, 0, 0, 0]] {
            let (mut client, stop) = (rig.connect(), &stop);
            let one = record(&[words(&head), words(&[0; 5])].concat());
            scope.spawn(move || {
                let many = one.repeat(2000);
                while !stop.load(Ordering::Relaxed) {
                    client.0.write_all(&many).unwrap();
                }
            });
        }
        // From here on there is always more to read.
        rig.hold(1);
        for xid in 2..6 {
            let echoed =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.echo(xid, 1, 1)));
            if echoed.is_err() {
                stop.store(true, Ordering::Relaxed);
                panic!("the other client had no reply");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (counts, _) = rig.finish();
    assert!(counts.calls >= 6, "{counts:?}");
}

#[test]
fn an_end_that_comes_together_with_bytes_is_seen() {
    let rig = Rig::new(8 << 20);
    for _ in 0..3 {
        let mut client = rig.connect();
        client.echo(1, 1, 1);
        // Half a record and the end of the stream are one packet.
        let half = &record(&call(2, ECHO, 0, &pattern(9000)))[..3000];
        SockRef::from(&client.0).send_with_flags(half, libc::MSG_MORE).unwrap();
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.receive(), None);
    }
    assert_eq!(rig.ends(), json!({ "client-gone": 3 }));
}

#[test]
fn a_server_that_drops_every_connection_is_not_asked_without_a_pause() {
    let rig = Rig::new(8 << 20);
    let mut client = rig.connect();
    let begin = Instant::now();
    client.send(&call(3, HANG_UP, 0, &[]));
    assert_eq!(client.receive(), Some(words(&[3, 1, 0, 0, 0, 0])));
    // Four times it was dropped, and each pause is twice the one before.
    assert!(begin.elapsed() > Duration::from_secs(1), "{:?}", begin.elapsed());
    let (counts, _) = rig.finish();
    assert_eq!((counts.again, counts.connects), (4, 5));
}

#[test]
fn a_call_with_a_sequence_number_does_not_go_twice() {
    let rig = Rig::new(8 << 20);
    let mut client = rig.connect();
    // RPCSEC_GSS; the server has seen its number when the connection is lost.
    let mut bytes = call(4, HELD, 0, &[]);
    bytes[24..28].copy_from_slice(&6u32.to_be_bytes());
    client.send(&bytes);
    rig.hold(1);
    rig.hang_up();
    // So the client sends another one, on another connection.
    assert_eq!(client.receive(), None);
    assert_eq!(rig.seen.lock().unwrap().times[&4], 1);
    let mut again = rig.connect();
    again.send(&bytes);
    assert_eq!(again.receive(), Some(words(&[4, 1, 0, 0, 0, 0])));
    drop(again);
    assert_eq!(rig.ends()["sequence"], 1);
}

#[test]
fn a_client_that_takes_no_replies_leaves_memory_to_others() {
    let rig = Rig::new(24 << 20);
    // More than sockets buffer.
    let mut stopped = rig.connect();
    for xid in 0..20 {
        stopped.send(&call(xid, ECHO, 1 << 20, &[]));
    }
    let mut other = rig.connect();
    for xid in 1..4 {
        other.echo(xid, 1 << 20, 1 << 20);
    }
    drop((stopped, other));
    rig.finish();
}

#[test]
fn half_a_record_and_replies_that_are_not_taken_end_a_client() {
    let rig = Rig::with(24 << 20, Duration::from_millis(300));
    let mut half = rig.connect();
    half.0.write_all(&record(&call(1, ECHO, 0, &pattern(9000)))[..5000]).unwrap();
    assert_eq!(half.receive(), None);
    let mut stopped = rig.connect();
    for xid in 0..20 {
        stopped.send(&call(xid, ECHO, 1 << 20, &[]));
    }
    // All buffers on the way fill first.
    thread::sleep(Duration::from_secs(4));
    rig.connect().echo(1, 1, 1);
    let mut ends = rig.ends();
    ends.as_object_mut().unwrap().remove("client-gone");
    assert_eq!(ends, json!({ "half-record": 1, "takes-nothing": 1 }));
}

#[test]
fn calls_of_one_client_are_spread_over_queue_pairs_and_addresses() {
    let rig = Rig::new(24 << 20);
    let second = SocketAddr::from((IP, rig.rdma.port() + 1000));
    let mut other = gateway(second, rig.server);
    let (mut proxy, address) = proxy(Settings {
        servers: vec![rig.rdma, second],
        queue_pairs: 4,
        memory: 24 << 20,
        ..settings(rig.rdma)
    });
    let mut client = Client(TcpStream::connect(address).unwrap());
    client.0.set_read_timeout(Some(LIMIT)).unwrap();
    let ask = |client: &mut Client| {
        for xid in 0..40u32 {
            let len = if xid % 7 == 0 { 200_000 } else { 100 };
            client.send(&call(xid, ECHO, 10_000 * (xid % 3), &pattern(len)));
        }
        let mut xids: Vec<u32> = (0..40)
            .map(|_| {
                let reply = client.receive().expect("a reply");
                assert_eq!(reply[32..], pattern(10_000 * (word(&reply, 0) % 3) as usize));
                word(&reply, 0)
            })
            .collect();
        xids.sort_unstable();
        assert_eq!(xids, (0..40).collect::<Vec<_>>());
    };
    ask(&mut client);
    // A callback, and its answer by the same queue pair.
    client.send(&call(5, CALL_BACK, 0, &[]));
    let mut got = [client.receive().unwrap(), client.receive().unwrap()];
    got.sort();
    assert_eq!(got, [words(&[5, 1, 0, 0, 0, 0]), words(&[77, 0, 2, 5])]);
    client.send(&words(&[77, 1, 0, 0, 0, 0]));
    while rig.seen.lock().unwrap().callback_replies == 0 {
        thread::yield_now();
    }
    // One address goes: its calls go by the other one.
    let by_other = other.finish().calls;
    assert!((5..=36).contains(&by_other), "{by_other} of 41");
    ask(&mut client);
    let (counts, told) = proxy.finish();
    assert_eq!((counts.connects, counts.failed, counts.callbacks_dropped), (6, 0, 0), "{told}");
    let (_, gateway) = rig.finish();
    assert_eq!(gateway.calls + by_other, 81);
}

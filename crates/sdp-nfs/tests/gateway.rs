//! The gateway on the stand-in for RDMA devices, between a client made by hand and a server of this
//! file: forms of calls and replies, hostile clients and servers, ends.

mod common;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    Address,
    endpoint::{VerbsRx, VerbsTx},
    fabric::{Id, Options, VerbsFabric},
};
use sdp_fake_verbs::Network;
use sdp_nfs::{counts::Counts, gateway::Settings, null, null_rdma};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, Gather, MemoryRegion, ReceiveQueue, SendOptions, SendQueue},
    key::Access,
    work::WorkId,
};
use sdp_rpcrdma::{private_data::Offer, rpc::mark, rule::Rule};
use serde_json::{Value, json};
use socket2::SockRef;

/// Far beyond what anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const IP: [u8; 4] = [10, 9, 0, 1];
/// Bytes of private data that a request has.
const PRIVATE_DATA: usize = 56;
const OFFER: Offer = Offer { remote_invalidation: true, sends: 4096, receives: 4096 };

/// Procedures of the server below, beside those of NFS 3.
const READ: u32 = 6;
const WRITE: u32 = 7;
const SILENCE: u32 = 100;
const LONG: u32 = 101;
const FRAGMENTS: u32 = 102;
const STRANGE: u32 = 103;
const HUGE_MARK: u32 = 104;
const CALL_BACK: u32 = 105;
const HANG_UP: u32 = 106;
const HALF: u32 = 107;
const HALF_AND_SILENCE: u32 = 108;
const NOTHINGS: u32 = 109;
const ENDLESS_NOTHING: u32 = 110;
const WITHOUT_HEAD: u32 = 111;
const TWICE: u32 = 112;
const MANY_CALL_BACKS: u32 = 113;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_be_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap())
}

fn call(xid: u32, procedure: u32, rest: &[u32]) -> Vec<u8> {
    let head = [xid, 0, 2, 100_003, 3, procedure, 0, 0, 0, 0];
    words(&[&head[..], rest].concat())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(17, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)))
}

fn record(bytes: &[u8]) -> Vec<u8> {
    [&mark(bytes.len() as u32)[..], bytes].concat()
}

/// What the server sends for a call.
fn answer(call: &[u8]) -> Vec<u8> {
    let xid = word(call, 0);
    let head = words(&[xid, 1, 0, 0, 0, 0]);
    match word(call, 5) {
        READ => {
            let len = word(call, 10);
            let mut reply = [head, words(&[0, 0, len, 1, len])].concat();
            reply.extend(pattern(len as usize));
            reply.resize(reply.len().next_multiple_of(4), 0);
            record(&reply)
        }
        WRITE => record(&[head, words(&[call.len() as u32, sum(call)])].concat()),
        LONG => record(&[head, pattern(word(call, 10) as usize)].concat()),
        FRAGMENTS => {
            let body = [head, words(&[7; 10])].concat();
            let mut sent = Vec::new();
            for piece in body[..60].chunks(7) {
                sent.extend((piece.len() as u32).to_be_bytes());
                sent.extend(piece);
            }
            sent.extend(record(&body[60..]));
            sent
        }
        STRANGE => {
            let strange = words(&[xid ^ 0xffff, 1, 0, 0, 0, 0]);
            [record(&strange), record(&words(&[1, 9, 9])), record(&head)].concat()
        }
        HUGE_MARK => words(&[0x7fff_ffff, 0, 0]),
        NOTHINGS => [vec![0; 4 * 60], record(&head)].concat(),
        ENDLESS_NOTHING => vec![0; 4 * 1000],
        WITHOUT_HEAD => record(&words(&[xid])),
        TWICE => [record(&head), record(&head)].concat(),
        MANY_CALL_BACKS => {
            let back = |at: u32, len| record(&[words(&[500 + at, 0]), vec![0; len]].concat());
            let all = (0..100).map(|at| back(at, if at == 50 { 8192 } else { 40 }));
            [all.collect::<Vec<_>>().concat(), record(&head)].concat()
        }
        CALL_BACK => [record(&words(&[77, 0, 2, 5])), record(&head)].concat(),
        _ => record(&head),
    }
}

/// Serves one connection, as long as it lasts.
fn serve(mut stream: TcpStream) {
    let mut head = [0; 4];
    while stream.read_exact(&mut head).is_ok() {
        let mut bytes = vec![0; (u32::from_be_bytes(head) & 0x7fff_ffff) as usize];
        if stream.read_exact(&mut bytes).is_err() {
            return;
        }
        // The client's answer to a callback is told on as the answer to nothing.
        if word(&bytes, 1) == 1 || word(&bytes, 5) == SILENCE {
            continue;
        }
        if word(&bytes, 5) == HALF_AND_SILENCE {
            stream.write_all(&answer(&bytes)[..20]).unwrap();
            continue;
        }
        if word(&bytes, 5) == HALF {
            // With the end of the stream, in one packet.
            let half = &answer(&bytes)[..20];
            let _ = SockRef::from(&stream).send_with_flags(half, libc::MSG_MORE);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            continue;
        }
        if word(&bytes, 5) == HANG_UP || stream.write_all(&answer(&bytes)).is_err() {
            return;
        }
    }
}

/// A gateway with its server, and a client's device.
struct Rig {
    fabric: VerbsFabric,
    to: Address,
    port: u16,
    end: Option<UnixStream>,
    gateway: Option<JoinHandle<(Counts, Value)>>,
    /// Connections that the server has now.
    served: Arc<AtomicU16>,
}

impl Rig {
    fn new(allow: &str, has_server: bool) -> Self {
        Self::with(allow, has_server, LIMIT)
    }

    fn with(allow: &str, has_server: bool, timeout: Duration) -> Self {
        Network::private().expect("memory for a network");
        static PORT: AtomicU16 = AtomicU16::new(20049);
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let served = Arc::new(AtomicU16::new(0));
        if has_server {
            let served = Arc::clone(&served);
            thread::spawn(move || {
                listener.incoming().flatten().for_each(|one| {
                    let served = Arc::clone(&served);
                    served.fetch_add(1, Ordering::Relaxed);
                    thread::spawn(move || {
                        serve(one);
                        served.fetch_sub(1, Ordering::Relaxed);
                    });
                })
            });
        }
        let allow = vec![allow.parse().unwrap()];
        let listen = SocketAddr::from((IP, port));
        let usual = Settings::new(listen, server, allow);
        let settings = Settings { memory: 8 << 20, timeout, silence: LIMIT, ..usual };
        let (end, gateway) = common::start_gateway(settings, |gateway| {
            let status = serde_json::from_str(&gateway.status()).expect("a status");
            (gateway.counts(), status)
        });
        let options = Options {
            promise: 100,
            memory: Some(16 << 20),
            shared_receives: false,
            ..Options::default()
        };
        let fabric = VerbsFabric::open(&Address::v4(IP, 0), &options).expect("a fabric");
        let (to, end, gateway) = (Address::v4(IP, port), Some(end), Some(gateway));
        Self { fabric, to, port, end, gateway, served }
    }

    fn event(&mut self) -> CmEvent<Id> {
        let begin = Instant::now();
        loop {
            match self.fabric.poll_cm() {
                // Of a connection that a test has seen ending.
                Some(CmEvent::Disconnected(_)) | None => {}
                Some(event) => return event,
            }
            assert!(begin.elapsed() < LIMIT, "no event");
            thread::yield_now();
        }
    }

    fn connect_with(&mut self, data: &[u8]) -> Option<Peer> {
        let data = PrivateData::new(data).unwrap();
        let id = self.fabric.connect(self.to, data).expect("a connect");
        match self.event() {
            CmEvent::Established(_, data) => {
                let server = Offer { remote_invalidation: false, ..OFFER };
                assert_eq!(Offer::find(data.as_slice()), server);
                let (tx, rx) = self.fabric.take_queues(id).expect("queues");
                Some(Peer { id, tx, rx, sent: 0 })
            }
            CmEvent::Rejected(..) => None,
            other => panic!("{other:?}"),
        }
    }

    fn connect(&mut self) -> Peer {
        self.connect_with(&OFFER.to_bytes()).expect("let in")
    }

    /// Memory for the gateway to read and write, filled.
    fn memory(&mut self, bytes: Vec<u8>) -> (MemoryRegion, &'static [std::cell::Cell<u8>]) {
        self.memory_with(bytes, Access { remote_read: true, remote_write: true })
    }

    fn memory_with(
        &mut self,
        bytes: Vec<u8>,
        access: Access,
    ) -> (MemoryRegion, &'static [std::cell::Cell<u8>]) {
        let bytes = std::cell::Cell::from_mut(bytes.leak()).as_slice_of_cells();
        let (at, len) = (bytes.as_ptr() as u64, bytes.len() as u64);
        (self.fabric.register(at, len, access).expect("registered"), bytes)
    }

    /// Ends the gateway as a signal does; what it has counted.
    fn finish(self) -> Counts {
        self.finish_told().0
    }

    /// What the gateway has counted, and its status, at its end.
    fn finish_told(mut self) -> (Counts, Value) {
        drop(self.end.take());
        self.gateway.take().unwrap().join().expect("it ended well")
    }

    /// Waits until the number of the connections of the server is `connections`.
    fn has_served(&mut self, connections: u16) {
        let begin = Instant::now();
        while self.served.load(Ordering::Relaxed) != connections {
            self.fabric.progress();
            assert!(begin.elapsed() < LIMIT, "{:?} instead of {connections}", self.served);
            thread::yield_now();
        }
    }
}

struct Nothing;

impl Gather for Nothing {
    fn len(&self) -> usize {
        0
    }
    fn copy_to(&mut self, _: usize, _: &[std::cell::Cell<u8>]) {}
}

/// The client's end of a connection.
struct Peer {
    id: Id,
    tx: VerbsTx,
    rx: VerbsRx,
    sent: u32,
}

impl Peer {
    fn send(&mut self, message: &[u8]) {
        self.tx.allow(self.sent + 1000);
        let options = SendOptions::default();
        self.tx.post_send(WorkId(0), message, &mut Nothing, options).expect("posted");
        self.sent += 1;
    }

    /// The next message; `None`: the connection has ended.
    fn receive(&mut self, rig: &mut Rig) -> Option<Vec<u8>> {
        let begin = Instant::now();
        loop {
            match self.rx.poll_receive() {
                Ok(Some(message)) => {
                    let mut bytes = vec![0; message.len as usize];
                    self.rx.copy_header(message, &mut bytes);
                    self.rx.release(message);
                    return Some(bytes);
                }
                Ok(None) => {}
                Err(_) => return None,
            }
            rig.fabric.progress();
            assert!(begin.elapsed() < LIMIT, "no message");
            thread::yield_now();
        }
    }

    fn ask(&mut self, rig: &mut Rig, lists: &[u32], call: &[u8]) -> Vec<u8> {
        self.send(&[words(&[word(call, 0), 1, 32]), words(lists), call.to_vec()].concat());
        self.receive(rig).expect("a reply")
    }

    /// A NULL call is answered: the connection works.
    fn works(&mut self, rig: &mut Rig, xid: u32) {
        let reply = self.ask(rig, &[0, 0, 0, 0], &call(xid, 0, &[]));
        assert_eq!(reply, words(&[xid, 1, 32, 0, 0, 0, 0, xid, 1, 0, 0, 0, 0]));
    }
}

/// Key, length, and both words of the address.
fn segment(region: &MemoryRegion, at: u32, len: u32) -> [u32; 4] {
    let addr = region.addr + u64::from(at);
    [region.rkey.0, len, (addr >> 32) as u32, addr as u32]
}

fn bytes_of(cells: &[std::cell::Cell<u8>]) -> Vec<u8> {
    cells.iter().map(std::cell::Cell::get).collect()
}

#[test]
fn null_is_asked_by_rdma() {
    let rig = Rig::new("any", true);
    let from = Some(SocketAddr::from((IP, 0)));
    let ask = |port: u16| null_rdma::ask(SocketAddr::from((IP, port)), from, null::NFS, 3);
    let port = rig.port;
    let (_, answer) = ask(port).expect("an answer");
    assert_eq!(answer, null::Answer::Done);
    assert!(ask(1).unwrap_err().to_string().contains("nobody listens there"));
    assert_eq!(rig.finish().calls, 1);
    let rig = Rig::new("10.8.0.0/16", true);
    let refused = ask(rig.port).unwrap_err().to_string();
    assert!(refused.contains("this host is refused"), "{refused}");
    assert_eq!(rig.finish().calls, 0);
}

#[test]
fn a_read_comes_into_the_clients_memory() {
    let mut rig = Rig::new("10.9.0.0/16", true);
    let mut peer = rig.connect();
    peer.works(&mut rig, 1);
    for (xid, len) in [(2, 1), (3, 4999), (4, 9000), (5, 131_073), (6, 1 << 20)] {
        let (region, memory) = rig.memory(vec![0xee; len as usize + 8]);
        let cut = len / 3;
        let chunk = [segment(&region, 0, cut), segment(&region, cut, len - cut + 4)].concat();
        let lists = [&[0, 0, 1, 2], &chunk[..], &[0, 0]].concat();
        let reply = peer.ask(&mut rig, &lists, &call(xid, READ, &[len]));
        let found = bytes_of(memory);
        assert_eq!(found[..len as usize], pattern(len as usize), "{len}");
        assert_eq!(found[len as usize..], [0xee; 8], "no padding is written");
        let written = [segment(&region, 0, cut), segment(&region, cut, len - cut)].concat();
        let header = [&[xid, 1, 32, 0, 0, 1, 2], &written[..], &[0, 0]].concat();
        let body = [xid, 1, 0, 0, 0, 0, 0, 0, len, 1, len];
        assert_eq!(reply, words(&[&header[..], &body].concat()), "{len}");
    }
    let counts = rig.finish();
    assert_eq!((counts.calls, counts.replies_write, counts.replies_inline), (6, 5, 1));
}

#[test]
fn a_write_is_read_from_the_clients_memory() {
    let mut rig = Rig::new("any", true);
    let mut peer = rig.connect();
    for (xid, len) in [(1, 3), (2, 8192), (3, 5001), (4, 1 << 20)] {
        let bytes = pattern(len as usize);
        let (region, _) = rig.memory(bytes.clone());
        let head = call(xid, WRITE, &[len]);
        let at = head.len() as u32;
        let cut = len / 2;
        let (first, second) = (segment(&region, 0, cut), segment(&region, cut, len - cut));
        let lists = [&[0, 1, at], &first[..], &[1, at], &second[..], &[0, 0, 0]].concat();
        let mut whole = [head.clone(), bytes].concat();
        whole.resize(whole.len().next_multiple_of(4), 0);
        let reply = peer.ask(&mut rig, &lists, &head);
        let told = [reply.len() as u32, word(&reply, 13), word(&reply, 14)];
        assert_eq!(told, [60, whole.len() as u32, sum(&whole)], "{len}");
        // The whole call in the client's memory.
        let (region, _) = rig.memory(whole.clone());
        let lists = [&[1, 1, 0], &segment(&region, 0, whole.len() as u32)[..], &[0, 0, 0]].concat();
        peer.send(&words(&[&[xid, 1, 32], &lists[..]].concat()));
        let reply = peer.receive(&mut rig).expect("a reply");
        assert_eq!(word(&reply, 14), sum(&whole), "{len}");
    }
    let counts = rig.finish();
    assert_eq!((counts.calls_read, counts.calls_long), (8, 4));
}

#[test]
fn replies_that_are_long_in_pieces_or_for_nobody() {
    let mut rig = Rig::new("any", true);
    let mut peer = rig.connect();
    let (region, memory) = rig.memory(vec![0; 100_000]);
    let chunk = segment(&region, 0, 100_000);
    let lists = [&[0, 0, 0, 1, 1], &chunk[..]].concat();
    let reply = peer.ask(&mut rig, &lists, &call(1, LONG, &[50_000]));
    assert_eq!(word(&reply, 3), 1, "RDMA_NOMSG");
    assert_eq!(word(&reply, 9), 50_024);
    assert_eq!(bytes_of(&memory[24..50_024]), pattern(50_000));
    let reply = peer.ask(&mut rig, &lists, &call(2, LONG, &[1000]));
    assert_eq!((word(&reply, 3), word(&reply, 9)), (0, 0), "inline, the chunk unused");
    // Without a chunk, and with one that is too small.
    let error = |xid| words(&[xid, 1, 32, 4, 2]);
    assert_eq!(peer.ask(&mut rig, &[0, 0, 0, 0], &call(3, LONG, &[4097])), error(3));
    assert_eq!(peer.ask(&mut rig, &[0, 0, 0, 0], &call(4, LONG, &[1 << 20])), error(4));
    let small = [&[0, 0, 0, 1, 1], &segment(&region, 0, 4096)[..]].concat();
    assert_eq!(peer.ask(&mut rig, &small, &call(5, LONG, &[6000])), error(5));
    let reply = peer.ask(&mut rig, &[0, 0, 0, 0], &call(6, FRAGMENTS, &[]));
    assert_eq!(reply[28..], words(&[6, 1, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]));
    let reply = peer.ask(&mut rig, &[0, 0, 0, 0], &call(7, STRANGE, &[]));
    assert_eq!(word(&reply, 7), 7);
    peer.works(&mut rig, 8);
    let counts = rig.finish();
    assert_eq!(counts.unknown_records, 2);
    assert_eq!(counts.rules[Rule::ReplyTooLong as usize], 3);
}

#[test]
fn a_callback_goes_to_the_client_and_its_answer_back() {
    let mut rig = Rig::new("any", true);
    let mut peer = rig.connect();
    let first = peer.ask(&mut rig, &[0, 0, 0, 0], &call(5, CALL_BACK, &[]));
    assert_eq!(first, words(&[77, 1, 2, 0, 0, 0, 0, 77, 0, 2, 5]), "its XID and its credits");
    let second = peer.receive(&mut rig).unwrap();
    assert_eq!(word(&second, 0), 5);
    peer.send(&words(&[77, 1, 2, 0, 0, 0, 0, 77, 1, 0]));
    peer.works(&mut rig, 6);
    // Nobody has asked for this one.
    peer.send(&words(&[78, 1, 2, 0, 0, 0, 0, 78, 1, 0]));
    peer.works(&mut rig, 7);
    let counts = rig.finish();
    assert_eq!((counts.callbacks, counts.rules[Rule::Xid as usize]), (1, 1));
}

/// Lists that no call may have, behind the credits: the rule, the words, and the call.
fn wrong_lists() -> Vec<(&'static str, Vec<u32>, Vec<u8>)> {
    let null = call(9, 0, &[]);
    let mut all: Vec<(&str, Vec<u32>, Vec<u8>)> = Vec::new();
    let mut add = |rule, lists: &[u32]| all.push((rule, lists.to_vec(), null.clone()));
    for procedure in [2, 5, 6, u32::MAX] {
        add("procedure", &[procedure, 0, 0, 0]);
    }
    add("truncated", &[0, 0, 1, u32::MAX]);
    add("truncated", &[0, 0, 0, 1, u32::MAX]);
    add("truncated", &[0, 0, 0, 1, 0x1000_0000]);
    for lists in [&[0, 2, 0, 0][..], &[0, 0, 2, 0], &[0, 0, 0, 2], &[0, u32::MAX, 0, 0]] {
        add("discriminator", lists);
    }
    // Read chunks: position, key, length, address.
    add("length", &[0, 1, 40, 1, u32::MAX, 0, 0, 1, 40, 1, u32::MAX, 0, 0, 0, 0, 0]);
    add("length", &[0, 1, 40, 1, 2 << 20, 0, 0, 0, 0, 0]);
    for position in [0, 1, 38, 41, 44, u32::MAX, u32::MAX - 3] {
        add("position", &[0, 1, position, 1, 8, 0, 0, 0, 0, 0]);
    }
    add("position", &[1, 1, 0, 1, 80, 0, 0, 1, 84, 1, 8, 0, 0, 0, 0, 0]);
    add("read-chunks", &[0, 1, 36, 1, 8, 0, 0, 1, 40, 1, 8, 0, 0, 0, 0, 0]);
    let three = [0, 4, 8].map(|position| [1, position, 1, 80, 0, 0]).concat();
    add("read-chunks", &[&[1][..], &three, &[0, 0, 0]].concat());
    add("write-chunks", &[0, 0, 1, 1, 1, 8, 0, 0, 1, 1, 1, 8, 0, 0, 0, 0]);
    let many = [1, 8, 0, 0].repeat(33);
    add("segments", &[&[0, 0, 1, 33], &many[..], &[0, 0]].concat());
    add("segments", &[&[0, 0, 0, 1, 33], &many[..]].concat());
    add("segments", &[&[0][..], &[1, 40, 1, 8, 0, 0].repeat(33), &[0, 0, 0]].concat());
    for lists in
        [&[1, 0, 0, 0][..], &[1, 1, 0, 1, 0, 0, 0, 0, 0, 0], &[1, 1, 4, 1, 80, 0, 0, 0, 0, 0]]
    {
        add("nothing-to-read", lists);
    }
    all.push(("xid", vec![0, 0, 0, 0], call(10, 0, &[])));
    all.push(("not-a-call", vec![0, 0, 0, 0], words(&[9, 2])));
    all.push(("not-a-call", vec![0, 0, 0, 0], words(&[9])));
    all.push(("not-a-call", vec![0, 0, 0, 0], Vec::new()));
    all
}

#[test]
fn hostile_headers_cost_the_call_and_nothing_else() {
    let mut rig = Rig::new("any", true);
    let mut peer = rig.connect();
    let mut other = rig.connect();
    let mut wanted = std::collections::BTreeMap::new();
    let mut broken = |rule| *wanted.entry(rule).or_insert(0) += 1;
    let error = words(&[9, 1, 32, 4, 2]);
    for (rule, lists, call) in wrong_lists() {
        peer.send(&[words(&[9, 1, 32]), words(&lists), call].concat());
        assert_eq!(peer.receive(&mut rig).as_ref(), Some(&error), "{rule} {lists:?}");
        broken(rule);
    }
    // A whole header, cut at each byte.
    let (region, memory) = rig.memory(pattern(4096));
    let at = segment(&region, 0, 4096);
    let lists = [&[0, 1, 40], &at[..], &[0, 1, 1], &at[..], &[0, 1, 1], &at[..]].concat();
    let whole = [words(&[9, 1, 32]), words(&lists)].concat();
    for len in 0..whole.len() {
        peer.send(&whole[..len]);
        if len < 28 {
            broken("too-short");
        } else {
            assert_eq!(peer.receive(&mut rig).as_ref(), Some(&error), "{len}");
            broken("truncated");
        }
    }
    // Memory with what is no call, and with one of another XID.
    for (rule, bytes) in [("not-a-call", vec![7; 80]), ("xid", call(10, 0, &[]))] {
        let (region, _) = rig.memory(bytes.clone());
        let chunk = segment(&region, 0, bytes.len() as u32);
        peer.send(&words(&[&[9, 1, 32, 1, 1, 0], &chunk[..], &[0, 0, 0]].concat()));
        assert_eq!(peer.receive(&mut rig).as_ref(), Some(&error), "{rule}");
        broken(rule);
    }
    for version in [0, 2, u32::MAX] {
        peer.send(&words(&[9, version, 32, 0, 0, 0, 0]));
        let answer = words(&[9, version, 32, 4, 1, 1, 1]);
        assert_eq!(peer.receive(&mut rig), Some(answer));
        broken("version");
    }
    for (rule, procedure) in [("done", 3), ("error-to-responder", 4)] {
        peer.send(&words(&[9, 1, 32, procedure, 0, 0, 0]));
        broken(rule);
    }
    peer.works(&mut rig, 10);
    other.works(&mut rig, 10);
    assert_eq!(bytes_of(memory), pattern(4096), "nothing was written");
    let (_, told) = rig.finish_told();
    assert_eq!(told["counts"]["rules"], json!(wanted));
}

#[test]
fn what_ends_one_client_harms_no_other() {
    let mut rig = Rig::new("any", true);
    let mut other = rig.connect();
    let (region, _) = rig.memory(vec![0; 8192]);
    // A key that leads nowhere, an end beyond the memory, a right that is missing; for a READ and
    // for a WRITE.
    let mut nowhere = region;
    nowhere.rkey.0 ^= 0x5555;
    for procedure in [READ, WRITE] {
        let is_read = procedure == READ;
        let access = Access { remote_read: is_read, remote_write: !is_read };
        let (without, memory) = rig.memory_with(vec![0xee; 8192], access);
        for chunk in
            [segment(&nowhere, 0, 8192), segment(&region, 1, 8192), segment(&without, 0, 8192)]
        {
            let mut peer = rig.connect();
            let call = call(1, procedure, &[8192]);
            let lists = match is_read {
                true => [&[0, 0, 1, 1], &chunk[..], &[0, 0]].concat(),
                false => [&[0, 1, call.len() as u32], &chunk[..], &[0, 0, 0]].concat(),
            };
            peer.send(&[words(&[1, 1, 32]), words(&lists), call].concat());
            assert_eq!(peer.receive(&mut rig), None, "{procedure}");
            other.works(&mut rig, procedure);
        }
        assert_eq!(bytes_of(memory), [0xee; 8192]);
    }
    // More calls than credits, and one XID twice.
    for same in [false, true] {
        let mut peer = rig.connect();
        for xid in 0..40 {
            let xid = if same { 7 } else { xid };
            peer.tx.allow(peer.sent + 1000);
            let call = [words(&[xid, 1, 32, 0, 0, 0, 0]), call(xid, SILENCE, &[])].concat();
            // The connection may have ended already.
            if peer.tx.post_send(WorkId(0), &call, &mut Nothing, SendOptions::default()).is_err() {
                break;
            }
            peer.sent += 1;
            rig.fabric.progress();
        }
        assert_eq!(peer.receive(&mut rig), None, "{same}");
        other.works(&mut rig, 20 + u32::from(same));
    }
    // A server that hangs up, also in a record, and one that sends no records.
    for procedure in [HANG_UP, HALF, HUGE_MARK, ENDLESS_NOTHING, WITHOUT_HEAD] {
        let mut peer = rig.connect();
        peer.works(&mut rig, 9);
        peer.send(&[words(&[1, 1, 32, 0, 0, 0, 0]), call(1, procedure, &[])].concat());
        assert_eq!(peer.receive(&mut rig), None, "{procedure}");
        other.works(&mut rig, procedure);
    }
    let (_, told) = rig.finish_told();
    let mut ended = told["ended"].clone();
    // Too many calls fail the client's own queue, or are counted, whichever comes first.
    let credits =
        ["queue-pair", "credits", "client-gone"].map(|why| ended[why].as_u64().unwrap_or(0));
    assert_eq!(credits.iter().sum::<u64>(), 1, "{ended}");
    for why in ["queue-pair", "credits", "client-gone"] {
        ended.as_object_mut().unwrap().remove(why);
    }
    let wanted = json!({ "transfer": 6, "twice-in-flight": 1, "server-gone": 2, "server-record": 3, "drained": 1 });
    assert_eq!(ended, wanted);
}

#[test]
fn a_strange_servers_records_cost_nobody_anything() {
    let mut rig = Rig::new("any", true);
    let mut peer = rig.connect();
    // Fragments of nothing, one reply twice, callbacks that are never answered.
    for (xid, procedure) in [(1, NOTHINGS), (2, TWICE)] {
        let reply = peer.ask(&mut rig, &[0, 0, 0, 0], &call(xid, procedure, &[]));
        assert_eq!(word(&reply, 7), xid);
        peer.works(&mut rig, 10 + xid);
    }
    peer.send(&[words(&[3, 1, 32, 0, 0, 0, 0]), call(3, MANY_CALL_BACKS, &[])].concat());
    let got = [(); 3].map(|()| word(&peer.receive(&mut rig).expect("a message"), 7));
    assert_eq!(got, [500, 501, 3]);
    peer.works(&mut rig, 4);
    // Their client goes, and one whose call the server has; the server's connections go with them.
    let mut other = rig.connect();
    other.send(&[words(&[5, 1, 32, 0, 0, 0, 0]), call(5, SILENCE, &[])].concat());
    other.works(&mut rig, 6);
    rig.has_served(2);
    for id in [peer.id, other.id] {
        rig.fabric.disconnect(id);
    }
    rig.has_served(0);
    let (counts, told) = rig.finish_told();
    assert_eq!((counts.callbacks, counts.unknown_records), (2, 1));
    // Sixteen wait; one of them was too long from the beginning.
    assert_eq!(counts.callbacks_dropped, 100 - 2 - 16);
    assert_eq!(told["ended"], json!({ "client-gone": 2 }));
}

#[test]
fn a_client_that_takes_no_replies_harms_no_other() {
    let mut rig = Rig::new("any", true);
    let mut other = rig.connect();
    let mut peer = rig.connect();
    // Its receive buffers are full after a hundred replies.
    for xid in 0..2000 {
        let null = [words(&[xid, 1, 32, 0, 0, 0, 0]), call(xid, 0, &[])].concat();
        peer.tx.allow(peer.sent + 1000);
        if peer.tx.post_send(WorkId(0), &null, &mut Nothing, SendOptions::default()).is_err() {
            break;
        }
        peer.sent += 1;
        rig.fabric.progress();
        if xid % 100 == 0 {
            other.works(&mut rig, xid);
        }
    }
    other.works(&mut rig, 1);
    rig.finish();
}

#[test]
fn private_data_of_any_kind() {
    let mut rig = Rig::new("any", true);
    let offer = |receives: u8| [0xf6, 0xab, 0x0e, 0x18, 1, 1, 0, receives];
    let mut limits = vec![(vec![], 1024)];
    for len in 1..=PRIVATE_DATA {
        // Magic without an end, an offer that is cut off, and one at the end.
        limits.push(([0xf6, 0xab, 0x0e].repeat(len.div_ceil(3))[..len].to_vec(), 1024));
        let cut = (4 + len % 4).min(len);
        limits.push(([vec![9; len - cut], offer(3)[..cut].to_vec()].concat(), 1024));
        if len >= 8 {
            let receives = [0, 1, 3, 255][len % 4];
            let before = [0xf6, 0xab, 0x0e].repeat(20)[..len - 8].to_vec();
            let limit = (u32::from(receives) + 1).min(4) * 1024;
            limits.push(([before, offer(receives).to_vec()].concat(), limit));
        }
    }
    // Another form, and two offers: the first one holds.
    limits.push((vec![0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3], 1024));
    limits.push(([offer(1), offer(3)].concat(), 2048));
    for (data, limit) in &limits {
        let limit = *limit;
        let mut peer = rig.connect_with(data).expect("let in");
        // Header, head of the reply, and data: to the byte.
        let fits = limit - 28 - 24;
        let reply = peer.ask(&mut rig, &[0, 0, 0, 0], &call(1, LONG, &[fits]));
        assert_eq!(reply.len() as u32, limit, "{data:?}");
        let reply = peer.ask(&mut rig, &[0, 0, 0, 0], &call(2, LONG, &[fits + 4]));
        assert_eq!(reply, words(&[2, 1, 32, 4, 2]), "{data:?}");
        // The next one has its buffers.
        rig.fabric.disconnect(peer.id);
        rig.has_served(0);
    }
    rig.finish();
}

#[test]
fn who_is_not_named_is_refused_and_so_is_everybody_without_a_server() {
    let mut rig = Rig::new("10.8.0.0/16", true);
    assert!(rig.connect_with(&OFFER.to_bytes()).is_none());
    let (counts, told) = rig.finish_told();
    assert_eq!(counts, Counts::default());
    assert_eq!(told["refusals"], json!({ "not-allowed": 1 }));
    let mut rig = Rig::new("10.9.0.1", false);
    assert!(rig.connect_with(&OFFER.to_bytes()).is_none(), "no server");
    assert_eq!(rig.finish_told().1["refusals"], json!({ "no-server": 1 }));
}

#[test]
fn calls_wait_for_memory_and_none_is_lost() {
    let mut rig = Rig::new("any", true);
    let mut peers: Vec<Peer> = (0..3).map(|_| rig.connect()).collect();
    let len = 1 << 20;
    let regions: Vec<_> = (0..12).map(|_| rig.memory(vec![0; len as usize])).collect();
    // 8 MiB of memory, twelve replies of 1 MiB.
    for (at, peer) in peers.iter_mut().enumerate() {
        for xid in 0..4 {
            let chunk = segment(&regions[4 * at + xid as usize].0, 0, len);
            let lists = [&[xid, 1, 32, 0, 0, 1, 1], &chunk[..], &[0, 0]].concat();
            peer.send(&[words(&lists), call(xid, READ, &[len])].concat());
        }
    }
    for (at, peer) in peers.iter_mut().enumerate() {
        for _ in 0..4 {
            let reply = peer.receive(&mut rig).expect("a reply");
            let xid = word(&reply, 0) as usize;
            assert_eq!(bytes_of(regions[4 * at + xid].1), pattern(len as usize));
        }
        peer.works(&mut rig, 99);
    }
    let counts = rig.finish();
    assert_eq!(counts.replies_write, 12);
    assert!(counts.waited > 0, "{counts:?}");
}

#[test]
fn a_server_that_is_silent_in_a_record_ends_and_an_idle_one_does_not() {
    let mut rig = Rig::with("any", true, Duration::from_millis(300));
    let mut idle = rig.connect();
    idle.works(&mut rig, 1);
    let mut half = rig.connect();
    half.send(&[words(&[1, 1, 32, 0, 0, 0, 0]), call(1, HALF_AND_SILENCE, &[])].concat());
    assert_eq!(half.receive(&mut rig), None);
    idle.works(&mut rig, 2);
    rig.finish();
}

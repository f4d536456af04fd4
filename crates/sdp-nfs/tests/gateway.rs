//! The gateway on the stand-in for RDMA devices, between a client made by hand and a server of this
//! file: forms of calls and replies, hostile clients and servers, ends.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::atomic::{AtomicU16, Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    Address,
    endpoint::{VerbsRx, VerbsTx},
    fabric::{Id, Options, VerbsFabric},
};
use sdp_fake_verbs::Network;
use sdp_nfs::{
    counts::Counts,
    gateway::{Gateway, Settings},
    null, null_rdma,
};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, Gather, MemoryRegion, ReceiveQueue, SendOptions, SendQueue},
    key::Access,
    work::WorkId,
};
use sdp_rpcrdma::{private_data::Offer, rpc::mark, rule::Rule};
use socket2::SockRef;

/// Far beyond what anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const IP: [u8; 4] = [10, 9, 0, 1];
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
    gateway: Option<JoinHandle<Counts>>,
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
        if has_server {
            thread::spawn(move || {
                listener.incoming().flatten().for_each(|one| {
                    thread::spawn(move || serve(one));
                })
            });
        }
        let (end, theirs) = UnixStream::pair().unwrap();
        let allow = vec![allow.parse().unwrap()];
        let listen = SocketAddr::from((IP, port));
        let (source, memory) = (None, 8 << 20);
        let settings = Settings { listen, server, allow, source, memory, timeout };
        let (told, is_open) = std::sync::mpsc::channel();
        let gateway = thread::spawn(move || {
            let mut gateway = Gateway::new(settings, theirs.into()).expect("a gateway");
            told.send(()).unwrap();
            gateway.run().expect("served");
            assert_eq!(gateway.free_memory(), gateway.memory(), "a block was lost");
            gateway.counts()
        });
        is_open.recv().expect("it listens");
        let options = Options {
            promise: 100,
            memory: Some(16 << 20),
            shared_receives: false,
            ..Options::default()
        };
        let fabric = VerbsFabric::open(&Address::v4(IP, 0), &options).expect("a fabric");
        Self { fabric, to: Address::v4(IP, port), port, end: Some(end), gateway: Some(gateway) }
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
                Some(Peer { tx, rx, sent: 0 })
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
        let bytes = std::cell::Cell::from_mut(bytes.leak()).as_slice_of_cells();
        let access = Access { remote_read: true, remote_write: true };
        let (at, len) = (bytes.as_ptr() as u64, bytes.len() as u64);
        (self.fabric.register(at, len, access).expect("registered"), bytes)
    }

    /// Ends the gateway as a signal does; what it has counted.
    fn finish(mut self) -> Counts {
        drop(self.end.take());
        self.gateway.take().unwrap().join().expect("it ended well")
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

#[test]
fn hostile_headers_cost_the_call_and_nothing_else() {
    let mut rig = Rig::new("any", true);
    let mut peer = rig.connect();
    let mut other = rig.connect();
    let null = call(9, 0, &[]);
    let refused: [&[u32]; 6] = [
        &[2, 0, 0, 0],
        &[5, 0, 0, 0],
        &[0, 1, 1],
        &[0, 0, 1, u32::MAX],
        &[0, 1, 40, 1, u32::MAX, 0, 0, 1, 40, 1, u32::MAX, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0],
    ];
    for lists in refused {
        let reply = peer.ask(&mut rig, lists, &null);
        assert_eq!(reply, words(&[9, 1, 32, 4, 2]), "{lists:?}");
    }
    peer.send(&words(&[9, 2, 32, 0, 0, 0, 0]));
    assert_eq!(peer.receive(&mut rig).unwrap(), words(&[9, 2, 32, 4, 1, 1, 1]));
    for dropped in [&[9u32, 1, 32][..], &[9, 1, 32, 3, 0, 0, 0], &[9, 1, 32, 4, 2, 0, 0]] {
        peer.send(&words(dropped));
    }
    peer.send(&[]);
    peer.works(&mut rig, 10);
    other.works(&mut rig, 10);
    let counts = rig.finish();
    assert_eq!(counts.rules.iter().sum::<u64>(), 11);
}

#[test]
fn what_ends_one_client_harms_no_other() {
    let mut rig = Rig::new("any", true);
    let mut other = rig.connect();
    let (region, _) = rig.memory(vec![0; 8192]);
    // A key that leads nowhere, for a READ and for a WRITE.
    let mut nowhere = region;
    nowhere.rkey.0 ^= 0x5555;
    for procedure in [READ, WRITE] {
        let mut peer = rig.connect();
        let chunk = segment(&nowhere, 0, 8192);
        let call = call(1, procedure, &[8192]);
        let lists = match procedure {
            READ => [&[0, 0, 1, 1], &chunk[..], &[0, 0]].concat(),
            _ => [&[0, 1, call.len() as u32], &chunk[..], &[0, 0, 0]].concat(),
        };
        peer.send(&[words(&[1, 1, 32]), words(&lists), call].concat());
        assert_eq!(peer.receive(&mut rig), None, "{procedure}");
        other.works(&mut rig, procedure);
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
    for procedure in [HANG_UP, HALF, HUGE_MARK] {
        let mut peer = rig.connect();
        peer.works(&mut rig, 9);
        peer.send(&[words(&[1, 1, 32, 0, 0, 0, 0]), call(1, procedure, &[])].concat());
        assert_eq!(peer.receive(&mut rig), None, "{procedure}");
        other.works(&mut rig, procedure);
    }
    rig.finish();
}

#[test]
fn private_data_of_any_kind() {
    let mut rig = Rig::new("any", true);
    let limits: [(&[u8], u32); 4] = [
        (&[], 1024),
        (&[0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 0], 1024),
        (&[0xf6, 0xab, 0x0e, 0x18, 1, 0, 255, 255], 4096),
        (&[9, 9, 0xf6, 0xab, 0x0e, 0x18, 1, 1, 0, 1], 2048),
    ];
    for (data, limit) in limits {
        let mut peer = rig.connect_with(data).expect("let in");
        // Header, head of the reply, and data: to the byte.
        let fits = limit - 28 - 24;
        let reply = peer.ask(&mut rig, &[0, 0, 0, 0], &call(1, LONG, &[fits]));
        assert_eq!(reply.len() as u32, limit);
        let reply = peer.ask(&mut rig, &[0, 0, 0, 0], &call(2, LONG, &[fits + 4]));
        assert_eq!(reply, words(&[2, 1, 32, 4, 2]), "{data:?}");
    }
    rig.finish();
}

#[test]
fn who_is_not_named_is_refused_and_so_is_everybody_without_a_server() {
    let mut rig = Rig::new("10.8.0.0/16", true);
    assert!(rig.connect_with(&OFFER.to_bytes()).is_none());
    assert_eq!(rig.finish(), Counts::default());
    let mut rig = Rig::new("10.9.0.1", false);
    assert!(rig.connect_with(&OFFER.to_bytes()).is_none(), "no server");
    rig.finish();
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

//! The proxy before a server that sends what no server may: headers, replies in memory, reaches for
//! memory that it was not given, private data. On the stand-in for RDMA devices.

mod common;

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::Instant,
};

use common::{Client, Ended, IP, LIMIT, Service, proxy, settings, word, words};
use sdp_fabric_verbs::{
    Address,
    endpoint::{VerbsRx, VerbsTx},
    fabric::{Id, Options, VerbsFabric},
};
use sdp_fake_verbs::Network;
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, Gather, ReceiveQueue, SendOptions, SendQueue},
    key::{LocalSlice, RemoteSlice, Rkey},
    work::WorkId,
};
use sdp_rpcrdma::private_data::Offer;
use serde_json::json;

/// A server by RDMA that sends what a test wants, and a client of the proxy before it.
struct Strange {
    fabric: VerbsFabric,
    proxy: Service<Ended>,
    client: Client,
    up: Option<(Id, VerbsTx, VerbsRx)>,
    sent: u32,
}

/// Bytes behind none.
struct Nothing;

impl Gather for Nothing {
    fn len(&self) -> usize {
        0
    }
    fn copy_to(&mut self, _: usize, _: &[std::cell::Cell<u8>]) {}
}

impl Strange {
    fn new() -> Self {
        Network::private().expect("memory for a network");
        static PORT: AtomicU16 = AtomicU16::new(30049);
        let server = SocketAddr::from((IP, PORT.fetch_add(1, Ordering::Relaxed)));
        let options = Options {
            promise: 100,
            memory: Some(16 << 20),
            shared_receives: false,
            ..Options::default()
        };
        let mut fabric = VerbsFabric::open(&Address::v4(IP, 0), &options).expect("a fabric");
        fabric.listen(Address::v4(IP, server.port())).expect("it listens");
        let (proxy, address) = proxy(settings(server));
        let client = Client(TcpStream::connect(address).unwrap());
        client.0.set_read_timeout(Some(LIMIT)).unwrap();
        Self { fabric, proxy, client, up: None, sent: 0 }
    }

    /// Accepts the proxy's next connection.
    fn accept(&mut self, data: &[u8]) {
        let begin = Instant::now();
        loop {
            if let Some(CmEvent::Request(id, theirs)) = self.fabric.poll_cm() {
                let ours = Offer { remote_invalidation: false, sends: 4096, receives: 4096 };
                assert_eq!(Offer::find(theirs.as_slice()), ours);
                self.fabric.accept(id, PrivateData::new(data).unwrap()).expect("accepted");
                let (tx, rx) = self.fabric.take_queues(id).expect("queues");
                (self.up, self.sent) = (Some((id, tx, rx)), 0);
                return;
            }
            assert!(begin.elapsed() < LIMIT, "no request");
            thread::yield_now();
        }
    }

    /// The next message of the proxy; `None`: the connection has ended.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let begin = Instant::now();
        loop {
            let (_, _, rx) = self.up.as_mut().expect("accepted");
            match rx.poll_receive() {
                Ok(Some(message)) => {
                    let mut bytes = vec![0; message.len as usize];
                    rx.copy_header(message, &mut bytes);
                    rx.release(message);
                    return Some(bytes);
                }
                Ok(None) => {}
                Err(_) => return None,
            }
            self.fabric.progress();
            assert!(begin.elapsed() < LIMIT, "no message");
            thread::yield_now();
        }
    }

    fn send(&mut self, message: &[u8]) {
        let (_, tx, _) = self.up.as_mut().expect("accepted");
        tx.allow(self.sent + 1000);
        tx.post_send(WorkId(0), message, &mut Nothing, SendOptions::default()).expect("posted");
        self.sent += 1;
    }

    /// The client sends a call, whose reply may have any length or is short; the words that come.
    fn asked(&mut self, xid: u32, is_long: bool) -> Vec<u32> {
        // NULL, and a procedure that is not known.
        self.client.send(&words(&[xid, 0, 2, 400_000, 3, u32::from(is_long), 0, 0, 0, 0]));
        let header = self.receive().expect("a call");
        header.chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
    }
}

const ANY: Offer = Offer { remote_invalidation: false, sends: 4096, receives: 4096 };

#[test]
fn hostile_replies_cost_the_call_and_nothing_else() {
    let mut rig = Strange::new();
    rig.accept(&ANY.to_bytes());
    let mut wanted = BTreeMap::new();
    let mut broken = |rule: &'static str| *wanted.entry(rule).or_insert(0u32) += 1;
    let good = words(&[7, 1, 0, 0, 0, 0]);
    let failed = words(&[7, 1, 0, 0, 0, 5]);
    let segment = [1, 8, 0, 0];
    let mut fail: Vec<(&str, Vec<u32>, Vec<u8>)> = Vec::new();
    let mut add =
        |rule, lists: &[u32], body: &[u8]| fail.push((rule, lists.to_vec(), body.to_vec()));
    add("err-vers", &[4, 1, 1, 1], &[]);
    add("err-chunk", &[4, 2], &[]);
    add("err-chunk", &[4, u32::MAX], &[]);
    for procedure in [2, 5, u32::MAX] {
        add("procedure", &[procedure, 0, 0, 0], &good);
    }
    for lists in [&[0][..], &[0, 0], &[0, 1, 0], &[0, 0, 1, u32::MAX], &[0, 0, 0, 1, u32::MAX]] {
        add("truncated", lists, &[]);
    }
    for lists in [&[0, 2, 0, 0][..], &[0, 0, 2, 0], &[0, 0, 0, 2]] {
        add("discriminator", lists, &good);
    }
    add("segments", &[&[0, 0, 0, 1, 33], &segment.repeat(33)[..]].concat(), &[]);
    add("read-list-in-reply", &[&[0, 1, 0], &segment[..], &[0, 0, 0]].concat(), &good);
    add("write-chunks", &[&[0, 0, 1, 1], &segment[..], &[0, 0]].concat(), &good);
    add("reply-chunk", &[&[0, 0, 0, 1, 1], &segment[..]].concat(), &good);
    add("reply-chunk", &[&[1, 0, 0, 1, 1], &segment[..]].concat(), &[]);
    add("nothing-to-read", &[1, 0, 0, 0], &[]);
    add("xid", &[0, 0, 0, 0], &words(&[8, 1, 0, 0, 0, 0]));
    add("not-a-call", &[0, 0, 0, 0], &words(&[7, 2, 0, 0]));
    add("not-a-call", &[0, 0, 0, 0], &[]);
    for (rule, lists, body) in fail {
        assert_eq!(rig.asked(7, false)[..4], [7, 1, 32, 0]);
        rig.send(&[words(&[7, 1, 32]), words(&lists), body].concat());
        assert_eq!(rig.client.receive().as_ref(), Some(&failed), "{rule} {lists:?}");
        broken(rule);
    }
    // What is nobody's is dropped; then the reply comes. Credits of any number do no harm.
    for (rule, message) in [
        ("version", words(&[7, 2, 32, 0, 0, 0, 0])),
        ("version", words(&[7, 0, 32, 4, 2])),
        ("done", words(&[7, 1, 32, 3, 0, 0, 0])),
        ("xid", words(&[8, 1, u32::MAX, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0])),
        ("err-chunk", words(&[8, 1, 32, 4, 2])),
        ("xid", words(&[8, 1, 32, 0, 0, 0, 0, 9, 0, 2, 5])),
    ] {
        for credits in [0, u32::MAX] {
            rig.asked(7, false);
            rig.send(&message);
            rig.send(&[words(&[7, 1, credits, 0, 0, 0, 0]), good.clone()].concat());
            assert_eq!(rig.client.receive().as_ref(), Some(&good), "{rule}");
            broken(rule);
        }
    }
    rig.asked(7, false);
    for len in 0..16 {
        rig.send(&vec![0; len]);
        broken("too-short");
    }
    // Callbacks: one twice, and more than may wait.
    for (rule, xid) in [("", 77), ("twice-in-flight", 77), ("", 78), ("credits", 79)] {
        rig.send(&words(&[xid, 1, 2, 0, 0, 0, 0, xid, 0, 2, 5]));
        if rule.is_empty() {
            assert_eq!(rig.client.receive(), Some(words(&[xid, 0, 2, 5])));
        } else {
            broken(rule);
        }
    }
    rig.send(&[words(&[7, 1, 32, 0, 0, 0, 0]), good.clone()].concat());
    assert_eq!(rig.client.receive(), Some(good));
    let (counts, told) = rig.proxy.finish();
    assert_eq!(told["counts"]["rules"], json!(wanted));
    assert_eq!((counts.connects, counts.callbacks), (1, 2));
}

#[test]
fn replies_in_memory_that_are_none() {
    let mut rig = Strange::new();
    rig.accept(&ANY.to_bytes());
    let good = words(&[7, 1, 0, 0, 0, 0]);
    let failed = words(&[7, 1, 0, 0, 0, 5]);
    let mut memory = vec![0u8; 4096];
    let access = sdp_rdma::key::Access::default();
    let at = memory.as_mut_ptr().expose_provenance() as u64;
    let region = rig.fabric.register(at, 4096, access).expect("registered");
    for (rule, bytes, is_told) in [
        ("", &good[..], [24, 0]),
        ("not-a-call", &[7; 24], [24, 0]),
        ("not-a-call", &failed[..4], [8, 0]),
        ("nothing-to-read", &good, [7, 0]),
        ("reply-chunk", &good, [u32::MAX, 0]),
        ("reply-chunk", &good, [24, 4]),
    ] {
        let header = rig.asked(7, true);
        // Reply chunk of one segment: key, length, address.
        assert_eq!((header[3], &header[4..8]), (0, &[0, 0, 1, 1][..]), "{header:?}");
        let [key, _, high, low] = header[8..12] else { unreachable!() };
        memory[..bytes.len()].copy_from_slice(bytes);
        memory[bytes.len()..24].fill(0xff);
        let local = LocalSlice { addr: region.addr, len: 24, lkey: region.lkey };
        let addr = u64::from(high) << 32 | u64::from(low);
        let remote = RemoteSlice { addr, len: 24, rkey: Rkey(key) };
        let (_, tx, _) = rig.up.as_mut().unwrap();
        tx.post_write(WorkId(1), local, remote).expect("posted");
        let [len, more] = is_told;
        rig.send(&words(&[7, 1, 32, 1, 0, 0, 1, 1, key, len, high, low + more]));
        let wanted = if rule.is_empty() { &good } else { &failed };
        assert_eq!(rig.client.receive().as_ref(), Some(wanted), "{rule}");
    }
    let (counts, told) = rig.proxy.finish();
    let wanted = json!({ "not-a-call": 2, "nothing-to-read": 1, "reply-chunk": 2 });
    assert_eq!((&told["counts"]["rules"], counts.replies_long), (&wanted, 1));
}

#[test]
fn a_server_that_reaches_for_more_loses_the_connection() {
    let mut rig = Strange::new();
    rig.accept(&ANY.to_bytes());
    let mut memory = vec![0u8; 4096];
    let access = sdp_rdma::key::Access::default();
    let at = memory.as_mut_ptr().expose_provenance() as u64;
    let region = rig.fabric.register(at, 4096, access).expect("registered");
    let mut header = rig.asked(7, true);
    for what in 0..3 {
        let [key, _, high, low] = header[8..12] else { unreachable!() };
        let addr = u64::from(high) << 32 | u64::from(low);
        let local = LocalSlice { addr: region.addr, len: 4096, lkey: region.lkey };
        // To read what may be written, behind the end, and by another key.
        let (_, tx, _) = rig.up.as_mut().unwrap();
        let remote = |addr, key| RemoteSlice { addr, len: 4096, rkey: Rkey(key) };
        match what {
            0 => tx.post_read(WorkId(1), local, remote(addr, key)),
            1 => tx.post_write(WorkId(1), local, remote(addr + (64 << 20), key)),
            _ => tx.post_write(WorkId(1), local, remote(addr, key ^ 0x5555)),
        }
        .expect("posted");
        assert_eq!(rig.receive(), None, "{what}");
        // The proxy connects again, and the call comes again.
        let (id, ..) = rig.up.take().unwrap();
        rig.fabric.disconnect(id);
        rig.accept(&ANY.to_bytes());
        let again = rig.receive().expect("the call again");
        header = again.chunks_exact(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect();
        assert_eq!(header[0], 7);
    }
    rig.send(&words(&[7, 1, 32, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0]));
    assert_eq!(rig.client.receive(), Some(words(&[7, 1, 0, 0, 0, 0])));
    let (counts, _) = rig.proxy.finish();
    assert_eq!((counts.again, counts.connects), (3, 4));
}

#[test]
fn private_data_of_any_length_and_messages_that_nobody_wants() {
    let mut rig = Strange::new();
    let offer = |sends: u8, receives: u8| [0xf6, 0xab, 0x0e, 0x18, 1, 0, sends, receives];
    // Data, the longest message, and bytes of the header: who says nothing sends no more than 1024
    // bytes, so memory for the reply is offered.
    let mut all = vec![(vec![], 1024, 48)];
    for len in (1..196usize).step_by(13).chain([196]) {
        all.push(([0xf6, 0xab, 0x0e].repeat(len.div_ceil(3))[..len].to_vec(), 1024, 48));
        if len >= 8 {
            let receives = [0, 1, 255][len % 3];
            let bytes = [vec![9; len - 8], offer(3, receives).to_vec()].concat();
            all.push((bytes, (u32::from(receives) + 1).min(4) * 1024, 28));
        }
    }
    for (xid, (data, limit, header)) in all.iter().enumerate() {
        rig.accept(data);
        if xid != 0 {
            // The call of before.
            rig.receive().expect("a call");
            rig.send(&words(&[xid as u32, 1, 32, 0, 0, 0, 0, xid as u32, 1, 0, 0, 0, 0]));
            rig.client.receive().expect("a reply");
        }
        // A call that fits to the byte is one message; another is in memory.
        let fits = *limit as usize - header - 40;
        for (len, procedure) in [(fits, 0), (fits + 4, 1)] {
            let xid = xid as u32 + 1;
            let head = words(&[xid, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]);
            rig.client.send(&[head, vec![0; len]].concat());
            let message = rig.receive().expect("a call");
            assert_eq!(word(&message, 3), procedure, "{data:?}");
            if procedure == 0 {
                rig.send(&words(&[xid, 1, 32, 0, 0, 0, 0, xid, 1, 0, 0, 0, 0]));
                assert_eq!(rig.client.receive(), Some(words(&[xid, 1, 0, 0, 0, 0])));
            }
        }
        // Messages that nobody wants; then the server goes, with a call.
        for _ in 0..30 {
            rig.send(&words(&[1 << 30, 1, 32, 0, 0, 0, 0, 1 << 30, 1, 0, 0, 0, 0]));
        }
        let (id, ..) = rig.up.take().unwrap();
        rig.fabric.disconnect(id);
    }
    rig.accept(&ANY.to_bytes());
    drop(rig.client);
    let (counts, _) = rig.proxy.finish();
    assert_eq!((counts.connects, counts.again), (all.len() as u64 + 1, all.len() as u64));
}

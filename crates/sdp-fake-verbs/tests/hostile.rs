//! The other end of a meeting may lie in any way: an end that cannot prove itself is not believed,
//! no byte is wrong, nothing is left behind, and no other connection suffers.

mod common;

use std::sync::{Mutex, MutexGuard};

use common::{
    Device, HAS_OWN_RECEIVES, PROMISE, address,
    device::Text,
    ends::{Connection, Forge, RAW, Random, is_live, local},
    free_port, network, tries,
};
use sdp_fabric_tests::Harness;
use sdp_fabric_verbs::{
    budget::RESERVE,
    cm::{REPLY_DATA, REQUEST_DATA},
    fabric::Offer,
};
use sdp_fake_verbs::{Live, Road};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, PostError, QpError, ReceiveQueue, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_remote::{RecvError, SendError, Wait};

/// One test at a time: objects left behind are counted.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    network();
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

const MS: u64 = 1_000_000;

/// Both send and receive for a while; `Err`: one end called the other a liar.
fn exchange(pair: &mut Connection, rounds: usize, random: &mut Random) -> Result<(), String> {
    for _ in 0..rounds {
        pair.ask();
        for of in 0..2 {
            let now = pair.now;
            match pair.end(of).send(1 + random.below(5000), now) {
                Ok(_) | Err(SendError::Wait(_)) => {}
                Err(error) => return Err(format!("{error:?}")),
            }
            pair.manage();
            match pair.end(1 - of).recv(1 << 16) {
                Ok(1..) | Err(RecvError::WouldBlock) => {}
                other => return Err(format!("{other:?}")),
            }
            if let Err(SendError::Broken(reason)) = pair.end(of).tend(now) {
                return Err(format!("{reason:?}"));
            }
        }
        pair.step(7 * MS);
    }
    Ok(())
}

/// Until all has arrived.
fn finish(pair: &mut Connection, story: &str) -> Result<(), String> {
    for _ in 0..1000 {
        let (a, c) = (&pair.acceptor, &pair.connector);
        if a.sent == c.received && c.sent == a.received {
            return Ok(());
        }
        pair.manage();
        for of in 0..2 {
            let now = pair.now;
            match pair.end(of).recv(1 << 20) {
                Ok(1..) | Err(RecvError::WouldBlock) => {}
                other => return Err(format!("{other:?}")),
            }
            let _ = pair.end(of).tend(now);
        }
        pair.step(5 * MS);
    }
    panic!("{story}: bytes are missing");
}

fn nothing_is_left(story: &str) {
    assert_eq!(network().live(), Live::default(), "{story}");
}

/// Bytes of a request that its proof covers: version and prefix lengths, port, nonce, MAC.
const PROVEN: std::ops::Range<usize> = 32..56;

fn flip(bytes: &mut [u8], random: &mut Random, within: std::ops::Range<usize>) {
    let at = within.start + random.below(within.len());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

/// The same of a reply.
const PROVEN_REPLY: std::ops::Range<usize> = 24..52;

fn is_reply(bytes: &[u8]) -> bool {
    bytes.len() == REPLY_DATA
}

/// Lies about an end's identity, in requests and in replies: none may be believed.
const LIES: [(&str, Forge); 9] = [
    ("a bit of the proof", |bytes, random| {
        let proven = if is_reply(bytes) { PROVEN_REPLY } else { PROVEN };
        flip(bytes, random, proven);
    }),
    ("another version", |bytes, random| {
        bytes[if is_reply(bytes) { 24 } else { 32 }] ^= (1 + random.below(15) as u8) << 4;
    }),
    ("absurd lengths of prefixes", |bytes, random| {
        bytes[if is_reply(bytes) { 25 } else { 33 }] = 0xf0 | random.below(16) as u8;
    }),
    ("no prefix at all, or more than there is to say", |bytes, random| match is_reply(bytes) {
        true => flip(bytes, random, 56..REPLY_DATA),
        false => bytes[33] = 0,
    }),
    ("another port, or bytes that are to be zero", |bytes, random| {
        let at = if is_reply(bytes) { 25..28 } else { 34..36 };
        flip(bytes, random, at);
    }),
    ("another nonce", |bytes, random| {
        let at = if is_reply(bytes) { 28..36 } else { 36..44 };
        flip(bytes, random, at);
    }),
    ("all zeros", |bytes, _| bytes.fill(0)),
    ("noise", |bytes, random| bytes.iter_mut().for_each(|byte| *byte = random.next() as u8)),
    ("the proof cut short", |bytes, random| {
        let end = if is_reply(bytes) { PROVEN_REPLY.end } else { PROVEN.end };
        let from = end - 1 - random.below(12);
        bytes[from..].iter_mut().for_each(|byte| *byte = 0);
        // Any value may have been there.
        bytes[end - 14] ^= 1;
    }),
];

#[test]
fn lies_about_who_one_is() {
    let _turn = turn();
    for (name, lie) in LIES {
        for seed in 1..=tries(12) {
            for liar in 0..2 {
                let story = format!("{name}, told by end {liar}, seed {seed}");
                let mut random = Random(seed * 77 + 1);
                let mut pair = Connection::new();
                pair.end(liar).forge = Some((lie, seed * 31 + 5));
                exchange(&mut pair, 6, &mut random).unwrap_or_else(|e| panic!("{story}: {e}"));
                finish(&mut pair, &story).unwrap_or_else(|e| panic!("{story}: {e}"));
                let other = pair.end(1 - liar);
                assert!(other.disbelieved > 0, "{story}: nobody noticed");
                assert_eq!(other.by_sdp(), 0, "{story}: believed");
                // The end that lied is believed as soon as it tells the truth.
                pair.end(liar).forge = None;
                if liar == 0 {
                    exchange(&mut pair, 30, &mut random).unwrap_or_else(|e| panic!("{story}: {e}"));
                    finish(&mut pair, &story).unwrap_or_else(|e| panic!("{story}: {e}"));
                    assert!(pair.connector.by_sdp() > 0, "{story}: never met");
                }
                drop(pair);
                nothing_is_left(&story);
            }
        }
    }
}

/// Lies about an end's buffers and their sizes, which nothing proves: an end that believes them
/// gets an error, or goes on; no byte is wrong.
#[test]
fn lies_about_buffers() {
    let _turn = turn();
    let lie: Forge = |bytes, random| {
        let reply = bytes.len() == REPLY_DATA;
        let fields = if reply { 0..24 } else { 0..32 };
        for _ in 0..1 + random.below(4) {
            let at = fields.start + random.below(fields.len());
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6)];
        }
    };
    let mut met = 0;
    for seed in 1..=tries(150) {
        for liar in 0..2 {
            let story = format!("end {liar}, seed {seed}");
            let mut random = Random(seed * 13 + 7);
            let mut pair = Connection::new();
            pair.end(liar).forge = Some((lie, seed * 101 + 3));
            let outcome =
                exchange(&mut pair, 12, &mut random).and_then(|()| finish(&mut pair, &story));
            met += u32::from(pair.end(1 - liar).by_sdp() > 0);
            drop((pair, outcome));
            nothing_is_left(&story);
        }
    }
    println!("{met} of {} met", 2 * tries(150));
    assert!(u64::from(met) > tries(20), "{met}");
}

/// A request or a reply that was right once, or is right for another connection.
#[test]
fn replays() {
    let _turn = turn();
    // Two connections to one listener: requests are for one of them.
    let mut random = Random(9);
    let mut first = Connection::new();
    let mut second = Connection::new();
    second.service = first.service;
    exchange(&mut first, 10, &mut random).expect("honest");
    assert!(is_live(&first.acceptor.shared));
    drop(first);
    // The first one's reply came with another nonce than the one that is asked with now.
    static REQUEST: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static REPLY: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    REQUEST.lock().expect("one test").clear();
    REPLY.lock().expect("one test").clear();
    let replay: Forge = |bytes, _| {
        let kept = if bytes.len() == REPLY_DATA { &REPLY } else { &REQUEST };
        let mut kept = kept.lock().expect("one test");
        if kept.is_empty() {
            kept.extend_from_slice(bytes);
        } else {
            bytes.copy_from_slice(&kept);
        }
    };
    // A reply of before is never right again: the nonce of the request is in it.
    second.connector.forge = Some((replay, 1));
    exchange(&mut second, 10, &mut random).expect("honest");
    let begun = second.acceptor.begun;
    assert_eq!(begun, 1, "the first reply is kept as it is");
    network().break_pairs(|_| true);
    exchange(&mut second, 60, &mut random).expect("goes on over TCP");
    finish(&mut second, "replies").expect("goes on over TCP");
    assert!(second.acceptor.disbelieved > 0);
    assert_eq!(second.acceptor.begun, begun, "an old reply was believed");
    drop(second);
    nothing_is_left("replies");
    // An earlier request is of an end that once knew; then its PROOF is missing. Its bytes arrive
    // all the same.
    let mut third = Connection::new();
    third.acceptor.forge = Some((replay, 1));
    exchange(&mut third, 10, &mut random).expect("honest");
    network().break_pairs(|_| true);
    exchange(&mut third, 60, &mut random).expect("goes on over TCP");
    finish(&mut third, "requests").expect("goes on over TCP");
    drop(third);
    nothing_is_left("requests");
}

/// Any bytes of any length, judged directly: no panic, and only honest requests are believed.
#[test]
fn noise_is_judged() {
    let _turn = turn();
    let mut random = Random(4711);
    let pair = Connection::new();
    let (asker, answerer) = (&pair.acceptor, &pair.connector);
    let mut meeting = sdp_remote::Meeting::new(sdp_remote::Role::Acceptor);
    let local = local(&Offer { log2: 16, key: 1, kept: 4096 });
    let honest = meeting.ask(&asker.identity(), &local, [7; 8]).expect("enough to prove with");
    let mut believed = 0;
    for round in 0..tries(60_000) {
        let mut bytes = honest.as_slice().to_vec();
        match round % 4 {
            0 => flip(&mut bytes, &mut random, PROVEN),
            1 => bytes.truncate(random.below(REQUEST_DATA + 1)),
            2 => bytes.resize(REQUEST_DATA + random.below(200), random.next() as u8),
            _ => {
                bytes = (0..random.below(256)).map(|_| random.next() as u8).collect();
            }
        }
        let is_honest = bytes.starts_with(honest.as_slice());
        let mut judge = sdp_remote::Meeting::new(sdp_remote::Role::Connector);
        let answer = judge.answer(&answerer.identity(), &local, &bytes, [9; 8]);
        assert!(is_honest || answer.is_err(), "{bytes:?}");
        believed += u32::from(answer.is_ok());
        let mut asked = sdp_remote::Meeting::new(sdp_remote::Role::Acceptor);
        let _ = asked.ask(&asker.identity(), &local, [7; 8]);
        assert!(asked.learn(&asker.identity(), &bytes).is_err());
    }
    assert!(u64::from(believed) > tries(1000), "{believed}");
    drop(pair);
    nothing_is_left("noise");
}

/// A peer that sends more than it was promised loses its queue pair; its neighbour on the same device goes on.
#[test]
fn who_exceeds_its_credit_hurts_itself_alone() {
    let _turn = turn();
    let mut device = Device::new(0);
    let mut bad = device.pair();
    let mut good = device.pair();
    let options = SendOptions::default();
    // As a sender does that was promised everything.
    for number in 0..4 * PROMISE {
        bad.a.tx.exceed();
        match bad.a.tx.post_send(WorkId(u64::from(number)), b"header", &mut Text(b"x"), options) {
            Ok(()) => {}
            Err(PostError::Full | PostError::Failed(_)) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    while device.advance() {}
    let mut got = 0;
    let end = loop {
        match bad.b.rx.poll_receive() {
            Ok(Some(_)) => got += 1,
            // The rest waits at its sender, and takes nothing from others.
            Ok(None) if HAS_OWN_RECEIVES => break None,
            Ok(None) => panic!("still alive after {got} messages"),
            Err(error) => break Some(error),
        }
    };
    let violation = (!HAS_OWN_RECEIVES).then_some(QpError::Framing);
    assert_eq!((end, got), (violation, PROMISE + RESERVE));
    for number in 0..200u64 {
        good.a
            .tx
            .post_send(WorkId(number), b"header", &mut Text(&[3; 900]), options)
            .expect("posted");
        while device.advance() {}
        let message = good.b.rx.poll_receive().expect("alive").expect("a message");
        good.b.rx.release(message);
        while good.a.tx.poll_completion().is_some() {}
    }
    drop((bad, good, device));
    nothing_is_left("more than was promised");
}

/// A crowd of requests without an answer: those beyond the backlog are refused, and all places come
/// back.
#[test]
fn a_crowd_of_requests() {
    let _turn = turn();
    let mut device = Device::new(0);
    let service = address(free_port());
    device.b.listen(service).expect("a listener");
    let noise = PrivateData::new(&[0xee; REQUEST_DATA]).expect("fits");
    let asked: Vec<_> = (0..60).filter_map(|_| device.a.connect(service, noise).ok()).collect();
    let (mut requests, mut refused) = (Vec::new(), 0);
    for _ in 0..300 {
        if let Some(CmEvent::Request(id, data)) = device.b.poll_cm() {
            assert_eq!(data, noise);
            requests.push(id);
        }
        refused += u32::from(matches!(device.a.poll_cm(), Some(CmEvent::Rejected(..))));
    }
    assert_eq!(requests.len() + refused as usize, asked.len());
    assert!(refused > 0 && !requests.is_empty());
    for id in asked {
        device.a.disconnect(id);
    }
    for id in requests {
        device.b.reject(id, 1);
    }
    while device.advance() {}
    assert_eq!(network().live().qps, 0);
    drop(device.pair());
    drop(device);
    nothing_is_left("a crowd");
}

/// A peer that meets and then does nothing any more: later bytes go to TCP, and no call waits for
/// it.
#[test]
fn a_peer_that_stops_answering() {
    let _turn = turn();
    let mut random = Random(3);
    let mut pair = Connection::new();
    exchange(&mut pair, 20, &mut random).expect("honest");
    assert!(is_live(&pair.acceptor.shared) && pair.connector.by_sdp() > 0);
    let mut was_full = false;
    for _ in 0..4000 {
        let now = pair.now;
        match pair.acceptor.send(4000, now) {
            Ok(_) | Err(SendError::Wait(Wait::Credit { .. } | Wait::Unsegmented)) => {}
            Err(SendError::Wait(Wait::Carrier)) => {
                was_full = true;
                break;
            }
            other => panic!("{other:?}"),
        }
        let _ = pair.acceptor.tend(now);
        pair.acceptor.manage();
        pair.step(MS);
    }
    assert!(was_full, "TCP's buffers are full at some time");
    assert!(pair.acceptor.sent - RAW > 500_000, "{}", pair.acceptor.sent);
    // It comes to itself.
    finish(&mut pair, "back again").expect("honest");
    drop(pair);
    nothing_is_left("a peer that stops");
}

/// The road is cut where nothing reports it, behind a message that no end waits for: the bytes come
/// by TCP all the same.
#[test]
fn a_message_is_lost_without_a_word() {
    let _turn = turn();
    for messages in 1..12 {
        let story = format!("{messages} messages");
        let mut random = Random(messages);
        let mut pair = Connection::new();
        exchange(&mut pair, 20, &mut random).expect("honest");
        assert!(is_live(&pair.acceptor.shared));
        // All that was sent has been acknowledged.
        finish(&mut pair, &story).expect("honest");
        for half in 0..2 {
            if half == 1 {
                network().set_road(Road::Cut);
            }
            for _ in 0..messages {
                let now = pair.now;
                let _ = pair.acceptor.send(700, now);
            }
            // Between the halves the confirmations of the first are taken.
            while pair.acceptor.tx.as_mut().is_some_and(|tx| tx.room() == 0) {
                finish(&mut pair, &story).expect("honest");
            }
        }
        finish(&mut pair, &story).expect("honest");
        network().set_road(Road::Open);
        drop(pair);
        nothing_is_left(&story);
    }
}

//! A peer that writes any bytes it likes: a violation, or nothing; never a panic, never a wrong
//! byte.

mod common;

use common::{Pair, Random, options};
use sdp_rdma::{
    fabric::{Gather, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_remote::{Carrier, Reason, RecvError, SendError};

struct Nothing;

impl Gather for Nothing {
    fn len(&self) -> usize {
        0
    }
    fn copy_to(&mut self, _: usize, _: &[std::cell::Cell<u8>]) {}
}

fn post(pair: &mut Pair, bytes: &[u8]) {
    let tx = pair.acceptor.tx.as_mut().expect("a queue pair");
    let _ = tx.post_send(WorkId(1 << 40), bytes, &mut Nothing, SendOptions::default());
    pair.world.run();
}

#[test]
fn messages_of_any_bytes() {
    let mut random = Random(77);
    let (mut violations, mut ended) = (0, 0);
    for seed in 0..400 {
        let mut pair = Pair::new(seed, options());
        pair.meet();
        // The header of an honest credit update, then changed in some bytes; or noise.
        let mseq = 1 + pair.acceptor.outbound.counts().updates as u8;
        let mut bytes = vec![0xff, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, mseq + 1, 0, 0, 0, 1];
        if random.below(3) == 0 {
            bytes = (0..random.below(60)).map(|_| random.next() as u8).collect();
        } else {
            for _ in 0..random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = [0, 1, 0x40, 0x41, 0xfd, 0xfe, 0x7f, 0xff][random.below(8)];
            }
        }
        post(&mut pair, &bytes);
        match pair.connector.recv(5000, false) {
            Err(RecvError::Broken(_)) => {
                violations += 1;
                // The other half says so too, and stays so.
                let now = pair.world.now_ns();
                let sent = pair.connector.send(1, now);
                assert!(matches!(sent, Err(SendError::Broken(_))), "{sent:?}");
                let again = pair.connector.recv(1, false);
                assert!(matches!(again, Err(RecvError::Broken(_))), "{again:?}");
            }
            Err(RecvError::WouldBlock) if pair.connector.shared.is_link_dead() => {
                ended += 1;
                exchange(&mut pair, 3000);
            }
            Err(RecvError::WouldBlock) => {
                let now = pair.world.now_ns();
                let _ = pair.connector.tend(now);
            }
            other => panic!("{other:?} after {bytes:?}"),
        }
    }
    assert!(violations > 10 && ended > 150, "{violations} {ended}");
}

/// Both ends send bytes, and get the other's.
fn exchange(pair: &mut Pair, count: usize) {
    let mut left = [count; 2];
    for _ in 0..2000 {
        pair.world.run_for(1_000_000);
        pair.manage();
        let now = pair.world.now_ns();
        for (of, left) in left.iter_mut().enumerate() {
            let end = pair.end(of);
            if *left != 0 {
                match end.send(*left, now) {
                    Ok(sent) => *left -= sent,
                    Err(SendError::Wait(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
            let _ = end.tend(now);
            let got = end.recv(1 << 16, false);
            assert!(matches!(got, Ok(1..) | Err(RecvError::WouldBlock)), "{got:?}");
        }
        let (a, c) = (&pair.acceptor, &pair.connector);
        if left == [0; 2] && a.sent == c.received && c.sent == a.received {
            return;
        }
    }
    panic!("bytes are missing\n{}", pair.world.trace());
}

/// A device reports a message twice: what lies behind the first is no message, and the bytes that the peer has not been told
/// of come by TCP.
#[test]
fn a_message_that_is_reported_and_not_there() {
    for bytes in [[0x41; 40].to_vec(), vec![0xff, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1]] {
        let mut pair = Pair::new(9, options());
        pair.meet();
        exchange(&mut pair, 5000);
        assert!(pair.connector.inbound.counts().bytes != 0, "nothing went by the queue pair");
        let (before, now) = (pair.connector.received, pair.world.now_ns());
        assert_eq!(pair.acceptor.send(900, now), Ok(900));
        post(&mut pair, &bytes);
        assert_eq!(pair.acceptor.send(700, now), Ok(700));
        pair.world.run();
        exchange(&mut pair, 5000);
        assert!(!pair.connector.shared.is_broken() && !pair.acceptor.shared.is_broken());
        assert_eq!(pair.connector.received - before, 900 + 700 + 5000);
    }
}

/// A process on the queue pair is not even listened to before its PROOF was read.
#[test]
fn nobody_is_believed_before_its_proof() {
    let mut pair = Pair::new(1, options());
    pair.ask();
    for _ in 0..20 {
        pair.world.run_for(1_000_000);
        pair.manage();
    }
    // Both have a queue pair; no carrier was read.
    post(&mut pair, &[0; 30]);
    let end = &mut pair.connector;
    let (rx, shared) = (end.rx.as_mut().expect("a queue pair"), &end.shared);
    assert_eq!(end.inbound.gather(rx, &end.tcp, shared), Ok(()));
    let now = pair.world.now_ns();
    assert!(pair.connector.send(10, now).is_ok());
    assert!(!pair.connector.outbound.is_on_sdp());
}

#[test]
fn markers_of_any_bytes() {
    let mut random = Random(5);
    for seed in 0..100 {
        let mut pair = Pair::new(seed, options());
        pair.ask();
        for _ in 0..20 {
            pair.world.run_for(1_000_000);
            pair.manage();
        }
        let now = pair.world.now_ns();
        let _ = pair.acceptor.tend(now);
        let mut proof = [0; 48];
        assert_eq!(pair.connector.tcp.peek(&mut proof), Ok(48));
        pair.meet();
        let mut forged = proof;
        let kind = random.below(3);
        match kind {
            // The same once more: it stands at another place now.
            0 => {}
            1 => forged[16 + random.below(32)] ^= 1 << random.below(8),
            _ => forged[16..].iter_mut().for_each(|byte| *byte = random.next() as u8),
        }
        assert_eq!(pair.acceptor.tcp.send([&forged, &[]]), Ok(48));
        let got = pair.connector.recv(500, false);
        assert!(matches!(got, Err(RecvError::Broken(Reason::Marker(_)))), "{kind} {got:?}");
    }
}

/// Bytes on the carrier while the stream is on the queue pair can only be a marker.
#[test]
fn payload_on_the_wrong_road() {
    let mut pair = Pair::new(2, options());
    pair.meet();
    let now = pair.world.now_ns();
    assert_eq!(pair.acceptor.send(100, now), Ok(100));
    pair.world.run();
    assert_eq!(pair.connector.recv(500, false), Ok(100));
    assert_eq!(pair.acceptor.tcp.send([b"not a marker", &[]]), Ok(12));
    let got = pair.connector.recv(500, false);
    assert!(matches!(got, Err(RecvError::Broken(Reason::Consumer(_)))), "{got:?}");
}

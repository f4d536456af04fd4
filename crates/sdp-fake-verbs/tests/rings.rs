//! Connections whose messages are written into rings, on the stand-in: the conformance suite, and
//! what a peer can do that keeps to no rule.

mod common;

use std::sync::{Mutex, MutexGuard};

use common::{
    device::Text,
    network,
    rings::{KEPT, Rings},
};
use sdp_fabric_tests::{Harness, Side};
use sdp_fabric_verbs::budget::RING_RECEIVES;
use sdp_rdma::{
    fabric::{PeerRing, PostError, QpError, ReceiveQueue, Received, SendOptions, SendQueue},
    key::Rkey,
    work::WorkId,
};

sdp_fabric_tests::conformance!(rings, Rings, skipped = 2);

const PLAIN: SendOptions = SendOptions { signalled: false, solicited: false, control: false };
const HEADER: &[u8] = &[7; 16];

type Ends = sdp_fabric_tests::Pair<<Rings as Harness>::Tx, <Rings as Harness>::Rx>;

/// Until the receiving half has a message, or its queue pair has failed.
fn next(rings: &mut Rings, ends: &mut Ends) -> Result<Option<Received>, QpError> {
    for _ in 0..20 {
        rings.advance();
        match ends.b.rx.poll_receive() {
            Ok(None) => {}
            found => return found,
        }
    }
    Ok(None)
}

fn send(ends: &mut Ends, number: u64, len: usize) -> Result<(), PostError> {
    let bytes = vec![number as u8; len];
    ends.a.tx.post_send(WorkId(number), HEADER, &mut Text(&bytes), PLAIN)
}

/// A pair whose neighbour on the same device goes on whatever happens to it.
fn with_neighbour(rings: &mut Rings, story: impl FnOnce(&mut Rings, &mut Ends, PeerRing)) {
    let mut good = rings.pair();
    let ring = rings.ring_of(Side::B);
    let mut bad = rings.pair();
    story(rings, &mut bad, ring);
    for number in 0..200 {
        send(&mut good, number, 900).expect("posted");
        let message = next(rings, &mut good).expect("alive").expect("a message");
        assert_eq!(message.len as usize, HEADER.len() + 900);
        good.b.rx.release(message);
        while good.a.tx.poll_completion().is_some() {}
    }
}

#[test]
fn what_was_not_written_cannot_be_freed() {
    let mut rings = Rings::new(0);
    with_neighbour(&mut rings, |rings, ends, _| {
        send(ends, 1, 100).expect("posted");
        let first = next(rings, ends).expect("alive").expect("a message");
        // Nothing was ever written to the sender's ring.
        ends.a.tx.pretend_freed(1);
        send(ends, 2, 100).expect("posted");
        send(ends, 3, 100).expect("posted");
        assert_eq!(next(rings, ends), Err(QpError::Framing));
        // What had arrived stays readable.
        let mut header = [0; 16];
        assert_eq!(ends.b.rx.0.copy_header(first, &mut header), 16);
        assert_eq!(header, HEADER);
        ends.b.rx.release(first);
    });
}

/// A key that a peer guesses opens nothing of another connection's.
#[test]
fn memory_that_is_advertised_to_another_peer_is_not_read() {
    use sdp_rdma::key::{Access, LocalSlice, RemoteSlice};
    let readable = Access { remote_read: true, remote_write: false };
    let mut rings = Rings::new(0);
    let mut good = rings.pair();
    let secret = rings.allocate(Side::B, 100);
    let region = rings.register(Side::B, secret, 100, readable).expect("a region");
    let near = rings.allocate(Side::A, 100);
    let into = rings.register(Side::A, near, 100, Access::default()).expect("a region");
    let slices = |into: sdp_rdma::fabric::MemoryRegion| {
        let local = LocalSlice { addr: near, len: 100, lkey: into.lkey };
        (local, RemoteSlice { addr: secret, len: 100, rkey: region.rkey })
    };
    rings.store(Side::B, secret, &[9; 100]);
    let mut bad = rings.pair();
    let own = rings.register(Side::A, near, 100, Access::default()).expect("a region");
    for (ends, into, is_refused) in [(&mut bad, own, true), (&mut good, into, false)] {
        let (local, remote) = slices(into);
        ends.a.tx.post_read(WorkId(1), local, remote).expect("posted");
        let mut done = None;
        for _ in 0..20 {
            rings.advance();
            done = done.or_else(|| ends.a.tx.poll_completion());
        }
        let is_done = done.expect("a completion").status == sdp_rdma::work::Status::Success;
        let mut bytes = [0; 100];
        rings.load(Side::A, near, &mut bytes);
        assert_eq!((is_done, bytes == [9; 100]), (!is_refused, !is_refused));
    }
}

#[test]
fn freed_bytes_do_not_go_back() {
    let mut rings = Rings::new(0);
    with_neighbour(&mut rings, |rings, ends, _| {
        let reply = ends.b.tx.post_send(WorkId(0), HEADER, &mut Text(&[1; 200]), PLAIN);
        reply.expect("posted");
        for freed in [10, 9] {
            ends.a.tx.pretend_freed(freed);
            send(ends, u64::from(freed), 100).expect("posted");
        }
        let message = next(rings, ends).expect("alive").expect("a message");
        ends.b.rx.release(message);
        assert_eq!(next(rings, ends), Err(QpError::Framing));
    });
}

#[test]
fn a_write_beyond_the_ring_is_refused() {
    let mut rings = Rings::new(0);
    with_neighbour(&mut rings, |rings, ends, _| {
        let mut ring = rings.ring_of(Side::B);
        ring.log2 += 2;
        ends.a.tx.reach(ring);
        let size = 1usize << (ring.log2 - 2);
        let mut written = 0;
        let mut number = 0;
        let failed = loop {
            // The first ones are within it, and read.
            ends.a.tx.exceed_room(written / 16);
            match send(ends, number, 8000 - HEADER.len()) {
                Ok(()) => written += 8000,
                Err(error) => break error,
            }
            number += 1;
            match next(rings, ends) {
                Ok(Some(message)) => ends.b.rx.release(message),
                Ok(None) => {}
                Err(_) => break PostError::Failed(QpError::Disconnected),
            }
            assert!(written as usize <= 2 * size, "written beyond the ring");
        };
        assert!(matches!(failed, PostError::Failed(_)), "{failed:?}");
    });
}

#[test]
fn another_connection_s_ring_is_out_of_reach() {
    let mut rings = Rings::new(0);
    with_neighbour(&mut rings, |rings, ends, ring| {
        ends.a.tx.reach(ring);
        let _ = send(ends, 1, 4000);
        assert!(next(rings, ends).is_err(), "its own queue pair has failed");
        assert!(matches!(send(ends, 2, 100), Err(PostError::Failed(_))));
    });
    let mut guess = Rings::new(0);
    with_neighbour(&mut guess, |rings, ends, ring| {
        ends.a.tx.reach(PeerRing { log2: ring.log2, key: Rkey(ring.key.0 + 1) });
        let _ = send(ends, 1, 4000);
        assert!(next(rings, ends).is_err(), "no such key");
    });
}

#[test]
fn more_messages_than_receives_wait_at_their_sender() {
    let mut rings = Rings::new(0);
    with_neighbour(&mut rings, |rings, ends, _| {
        ends.a.tx.exceed();
        let mut posted = 0;
        while posted < 4 * RING_RECEIVES {
            match send(ends, u64::from(posted), 0) {
                Ok(()) => posted += 1,
                Err(PostError::Full) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        assert!(posted > RING_RECEIVES, "{posted}");
        let mut got = 0;
        while got < posted {
            let message = next(rings, ends).expect("alive").expect("each message");
            ends.b.rx.release(message);
            got += 1;
        }
    });
}

/// One test at a time: what is left is counted.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[test]
fn a_ring_may_be_as_small_as_memory_is_short() {
    let _turn = turn();
    network();
    let limits = [1 << 20, 8 << 20, 16 << 20, 64 << 20];
    let sizes = limits.map(|memory| {
        let options =
            sdp_fabric_verbs::fabric::Options { memory: Some(memory), ..common::options() };
        let mut fabric = sdp_fabric_verbs::fabric::RingFabric::open(&common::address(0), &options)
            .expect("a fabric");
        // SAFETY: memory that stays.
        let offer = unsafe { fabric.offer(common::rings::kept()) }.expect("a ring");
        assert!(offer.kept <= KEPT && offer.kept * 2 >= 1 << offer.log2);
        assert!(offer.longest() <= (1 << (offer.log2 - 2)) + 16);
        offer.log2
    });
    assert_eq!(sizes, [14, 16, 18, 18]);
}

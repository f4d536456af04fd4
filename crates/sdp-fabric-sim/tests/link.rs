//! The contract of a link, on the simulated one.

use std::cell::Cell;

use sdp_fabric_sim::sim_link::{BUFFER_BYTES, BUFFERS, SimLane, SimLink};
use sdp_fabric_tests::{link::Ends, link_conformance};
use sdp_link::{Link, TxCursor, TxSaved};
use sdp_rdma::{
    fabric::{Gather, ReceiveQueue, SendOptions, SendQueue},
    work::WorkId,
};

link_conformance!(explicit_credits, Simulated);

struct Simulated(SimLane);

impl Ends for Simulated {
    type Link<'a> = SimLink<'a>;

    fn new() -> Self {
        Self(SimLane::new())
    }

    fn ends(&self) -> [SimLink<'_>; 2] {
        [self.0.end(0), self.0.end(1)]
    }
}

struct Byte;

impl Gather for Byte {
    fn len(&self) -> usize {
        1
    }
    fn copy_to(&mut self, _: usize, to: &[Cell<u8>]) {
        to.iter().for_each(|cell| cell.set(7));
    }
}

/// A message takes a buffer whatever its size, the last ones are for control messages, and the count
/// of posted buffers follows reports and releases.
#[test]
fn credits_are_buffers() {
    let lane = SimLane::new();
    let fresh = TxSaved { position: 0, freed: 0, private: 0 };
    let mut tx = lane.end(0).open_tx(0, fresh).expect("fresh");
    let mut rx = lane.end(1).open_rx(0, 0, 0).expect("fresh");
    assert_eq!(u64::from(rx.posted()), BUFFERS);
    let data = SendOptions::default();
    let control = SendOptions { control: true, ..data };
    let mut post = |options| tx.post_send(WorkId(0), &[0xff; 16], &mut Byte, options).is_ok();
    let mut posted = 0;
    while post(data) {
        posted += 1;
    }
    assert!(posted < BUFFERS && post(control));
    while post(control) {}
    tx.publish();
    assert_eq!(tx.cursors().0, BUFFERS * BUFFER_BYTES);
    assert_eq!(tx.room(), 0);
    let first = rx.poll_receive().expect("sound").expect("a message");
    let second = rx.poll_receive().expect("sound").expect("a message");
    assert_eq!(u64::from(rx.posted()), BUFFERS - 2);
    rx.release(second); // behind one that is kept
    assert_eq!(u64::from(rx.posted()), BUFFERS - 2);
    rx.release(first);
    assert_eq!(u64::from(rx.posted()), BUFFERS);
}

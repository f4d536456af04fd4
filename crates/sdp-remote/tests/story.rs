//! Both directions of a connection, byte by byte, while queue pairs come and go.

mod common;

use common::{Pair, options};
use sdp_remote::RecvError;

#[test]
fn two_ends_meet_and_speak_over_the_queue_pair() {
    let mut pair = Pair::new(1, options());
    pair.meet();
    let now = pair.world.now_ns();
    assert_eq!(pair.acceptor.send(500, now), Ok(500));
    assert!(pair.acceptor.outbound.is_on_sdp());
    assert_eq!(pair.connector.recv(1000, false), Err(RecvError::WouldBlock));
    pair.world.run();
    assert_eq!(pair.connector.recv(100, true), Ok(100));
    assert_eq!(pair.connector.recv(100, false), Ok(100));
    assert_eq!(pair.connector.recv(1000, false), Ok(400));
    assert!(pair.connector.inbound.is_on_sdp());
    assert_eq!(pair.connector.send(1, now), Ok(1));
    pair.world.run();
    assert_eq!(pair.acceptor.recv(1000, false), Ok(1));
    let counts = pair.connector.inbound.counts();
    assert_eq!((counts.bytes, counts.carrier_bytes, counts.markers), (500, 0, 1));
}

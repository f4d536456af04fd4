//! A client whose host has died without a word: the gateway notices it, and its connection to the
//! server ends, so that the server frees what it had locked. In a network of its own, whose road is
//! cut.

mod common;

use std::{
    io::Read,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    Address,
    fabric::{Options, VerbsFabric},
};
use sdp_fake_verbs::{Network, Road, Step};
use sdp_nfs::gateway::{PORT, Settings};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric},
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const IP: [u8; 4] = [10, 9, 0, 1];

/// Whether nothing has come, an end neither.
fn is_open_still(server: &mut TcpStream) -> bool {
    matches!(server.read(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn a_dead_client_is_noticed_and_its_connection_to_the_server_ends() {
    let network = Network::private().expect("memory for a network");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listen = SocketAddr::from((IP, PORT));
    let server = listener.local_addr().unwrap();
    let usual = Settings::new(listen, server, vec!["any".parse().unwrap()]);
    let silence = Duration::from_millis(200);
    let settings = Settings { memory: 8 << 20, timeout: LIMIT, silence, ..usual };
    let (end, gateway) = common::start_gateway(settings, |gateway| {
        serde_json::from_str::<Value>(&gateway.status()).expect("a status")
    });
    let mut fabric = VerbsFabric::open(&Address::v4(IP, 0), &Options::default()).expect("a fabric");
    let data = PrivateData::new(&[]).unwrap();
    fabric.connect(Address::v4(IP, PORT), data).expect("a connect");
    let begin = Instant::now();
    while !matches!(fabric.poll_cm(), Some(CmEvent::Established(..))) {
        assert!(begin.elapsed() < LIMIT, "not let in");
        thread::yield_now();
    }
    let (mut server, _) = listener.accept().unwrap();
    // The gateway asks whether the client is there, which is alive.
    server.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let (asked, begin) = (network.calls(Step::PostSend), Instant::now());
    while network.calls(Step::PostSend) == asked {
        assert!(begin.elapsed() < LIMIT, "nobody has asked the client");
        assert!(is_open_still(&mut server), "it ended with its client alive");
    }
    assert!(is_open_still(&mut server), "it ended with its client alive");
    network.set_road(Road::Cut);
    let begin = Instant::now();
    while is_open_still(&mut server) {
        // The device gives up its tries.
        network.expire();
        assert!(begin.elapsed() < LIMIT, "the server still has the connection");
    }
    network.set_road(Road::Open);
    drop(end);
    let status = gateway.join().expect("it ended well");
    assert_eq!(status["ended"], json!({ "transfer": 1 }));
}

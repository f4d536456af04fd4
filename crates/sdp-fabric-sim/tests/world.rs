//! Properties that only the simulated world has: determinism, faults, partitions, time limits,
//! strict callers.

use sdp_fabric_sim::{
    Credits, FaultOptions, LinkOptions, Ratio, RnrRetry, SimFabric, SimId, SimRx, SimTx, Span,
    World, WorldOptions,
};
use sdp_fabric_tests::message::{DATA, Message, Random, SIGNALLED};
use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric, PostError, QpError, ReceiveQueue, SendQueue},
    work::Status,
};

struct Ends {
    world: World,
    client: SimFabric,
    server: SimFabric,
    active: SimId,
    passive: SimId,
    a: (SimTx, SimRx),
    b: (SimTx, SimRx),
}

fn none() -> PrivateData {
    PrivateData::new(&[]).expect("fits")
}

fn connected(seed: u64, options: WorldOptions) -> Ends {
    let world = World::new(seed, options);
    let (mut client, mut server) = (world.node(), world.node());
    server.listen(server.service(1)).expect("a listener");
    let active = client.connect(server.service(1), none()).expect("a connect");
    world.run_for(1_000_000);
    let Some(CmEvent::Request(passive, _)) = server.poll_cm() else { panic!("no request") };
    server.accept(passive, none()).expect("an acceptance");
    world.run_for(1_000_000);
    assert_eq!(client.poll_cm(), Some(CmEvent::Established(active, none())));
    let a = client.take_queues(active).expect("queues");
    let b = server.take_queues(passive).expect("queues");
    Ends { world, client, server, active, passive, a, b }
}

/// Random traffic with every fault there is; the world it happened in.
fn eventful(seed: u64) -> World {
    let faults = FaultOptions {
        drop_connection: Ratio::per_million(2_000),
        kill_peer: Ratio::per_million(500),
        fail_queue_pair: Ratio::per_million(500),
        destructive_max: 2,
        receiver_not_ready: Ratio::per_million(50_000),
        ..FaultOptions::SLOW
    };
    let mut ends = connected(seed, WorldOptions { faults, ..WorldOptions::default() });
    let mut random = Random::new(seed);
    for number in 0..400 {
        // Refused posts are part of the story too.
        let _ = Message::random(&mut random, number, 3000).post(&mut ends.a.0, SIGNALLED);
        let _ = Message::random(&mut random, number, 3000).post(&mut ends.b.0, DATA);
        while ends.a.0.poll_completion().is_some() {}
        for rx in [&mut ends.a.1, &mut ends.b.1] {
            while let Ok(Some(received)) = rx.poll_receive() {
                rx.release(received);
            }
        }
        for _ in 0..random.below(4) {
            ends.world.step();
        }
    }
    ends.world.run();
    while ends.client.poll_cm().is_some() || ends.server.poll_cm().is_some() {}
    ends.world
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut lines = 0;
    for seed in 0..20 {
        let (first, second) = (eventful(seed), eventful(seed));
        assert_eq!(first.trace(), second.trace(), "seed {seed}");
        assert_eq!(first.trace_hash(), second.trace_hash(), "seed {seed}");
        assert_eq!(first.now_ns(), second.now_ns());
        lines += first.trace_count();
    }
    assert!(lines > 10_000, "{lines} lines in 20 traces are no stories");
}

#[test]
fn another_seed_gives_another_trace() {
    let mut hashes: Vec<_> = (0..20).map(|seed| eventful(seed).trace_hash()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20);
}

/// Every fault, delay and destruction occurs somewhere in a few seeds: none is dead code.
#[test]
fn every_fault_happens() {
    let traces: String = (0..40).map(|seed| eventful(seed).trace()).collect();
    for fault in [
        "fault: connection dropped",
        "fault: killed",
        "fault: device error",
        "fault: held up",
        "fault: stalled",
        "receiver not ready",
        "Flushed",
    ] {
        assert!(traces.contains(fault), "{fault} never happened");
    }
}

/// A queue pair that is held up is overtaken by another on the same link; without the fault and with
/// one latency for all, they stay in order.
#[test]
fn queue_pairs_overtake_each_other() {
    let mut orders = Vec::new();
    for chance in [0, 500_000] {
        let options = WorldOptions {
            faults: FaultOptions {
                overtake: Ratio::per_million(chance),
                overtake_delay: Span::new(50_000, 60_000),
                ..FaultOptions::NONE
            },
            link: LinkOptions { latency: Span::new(1000, 1000), ..LinkOptions::default() },
            ..WorldOptions::default()
        };
        let mut ends = connected(3, options);
        let active = ends.client.connect(ends.server.service(1), none()).expect("a connect");
        ends.world.run_for(1_000_000);
        let Some(CmEvent::Request(passive, _)) = ends.server.poll_cm() else { panic!() };
        ends.server.accept(passive, none()).expect("an acceptance");
        ends.world.run_for(1_000_000);
        let (mut tx, _) = ends.client.take_queues(active).expect("queues");
        let (_, mut rx) = ends.server.take_queues(passive).expect("queues");
        let mut order = Vec::new();
        for number in 0..200 {
            // One after the other, one microsecond apart; then time for requests that are held up.
            let post = if number % 2 == 0 { &mut ends.a.0 } else { &mut tx };
            if number < 40 {
                assert_eq!(Message::new(number, 10).post(post, DATA), Ok(()));
            }
            for _ in 0..10 {
                ends.world.run_for(100);
                for rx in [&mut ends.b.1, &mut rx] {
                    while let Ok(Some(received)) = rx.poll_receive() {
                        let mut header = [0; 8];
                        rx.copy_header(received, &mut header);
                        let first = (0..40).find(|n| Message::new(*n, 10).bytes(0, 8) == header);
                        order.push(first.expect("a message that was sent"));
                        rx.release(received);
                    }
                }
            }
        }
        assert_eq!(order.len(), 40);
        orders.push(order);
    }
    assert!(orders[0].is_sorted(), "{:?}", orders[0]);
    assert!(!orders[1].is_sorted(), "{:?}", orders[1]);
    for parity in 0..2 {
        let of_one: Vec<_> = orders[1].iter().filter(|n| **n % 2 == parity).collect();
        assert!(of_one.is_sorted(), "within a queue pair: {of_one:?}");
    }
}

/// With no retries, a message without a buffer ends the connection: a protocol that overdraws its
/// credits is caught.
#[test]
fn overdrawn_credits_end_the_connection() {
    for retries in [0, 3] {
        let rnr = RnrRetry::Times(retries);
        let credits = Credits::Explicit { buffers: 4, buffer_bytes: 500, rnr };
        let mut ends = connected(1, WorldOptions { credits, ..WorldOptions::default() });
        for number in 0..5 {
            assert_eq!(Message::new(number, 10).post(&mut ends.a.0, SIGNALLED), Ok(()));
        }
        ends.world.run();
        let statuses: Vec<_> =
            std::iter::from_fn(|| ends.a.0.poll_completion()).map(|done| done.status).collect();
        let taken = [Status::Success; 4].into_iter().chain([Status::RetryExceeded]);
        assert_eq!(statuses, taken.collect::<Vec<_>>());
        let ended = Err(PostError::Failed(QpError::Fatal));
        assert_eq!(Message::new(9, 1).post(&mut ends.a.0, DATA), ended);
        // The four that had a buffer are there, then the error.
        for _ in 0..4 {
            assert!(matches!(ends.b.1.poll_receive(), Ok(Some(_))));
        }
        assert_eq!(ends.b.1.poll_receive(), Err(QpError::Disconnected));
        assert_eq!(ends.client.poll_cm(), Some(CmEvent::Disconnected(ends.active)));
        assert_eq!(ends.server.poll_cm(), Some(CmEvent::Disconnected(ends.passive)));
    }
}

/// A buffer in time: a retry that finds one goes through.
#[test]
fn a_retry_that_finds_a_buffer_goes_through() {
    let credits = Credits::Explicit { buffers: 1, buffer_bytes: 500, rnr: RnrRetry::Times(1000) };
    let mut ends = connected(1, WorldOptions { credits, ..WorldOptions::default() });
    for number in 0..3 {
        assert_eq!(Message::new(number, 10).post(&mut ends.a.0, SIGNALLED), Ok(()));
    }
    for number in 0..3 {
        ends.world.run_for(100_000);
        let received = ends.b.1.poll_receive().expect("alive").expect("a message");
        Message::new(number, 10).check(&ends.b.1, received);
        assert_eq!(ends.b.1.poll_receive(), Ok(None), "there is one buffer");
        ends.b.1.release(received);
    }
    ends.world.run();
    let done = std::iter::from_fn(|| ends.a.0.poll_completion());
    assert!(done.map(|done| done.status).eq([Status::Success; 3]));
}

#[test]
fn a_connect_without_an_answer_times_out() {
    let world = World::new(1, WorldOptions::default());
    let (mut client, mut server) = (world.node(), world.node());
    server.listen(server.service(1)).expect("a listener");
    let active = client.connect(server.service(1), none()).expect("a connect");
    world.run_for(1_000_000_001);
    assert_eq!(client.poll_cm(), Some(CmEvent::Unreachable(active)));
    // The listener's answer comes too late.
    world.run();
    let Some(CmEvent::Request(passive, _)) = server.poll_cm() else { panic!("no request") };
    assert_eq!(server.accept(passive, none()), Err(Reject::Stale));
    assert!(client.take_queues(active).is_none());
    world.run();
    assert_eq!((client.poll_cm(), server.poll_cm()), (None, None));
}

#[test]
fn a_dead_or_cut_off_node_is_unreachable() {
    for timeout in [Some(5_000_000), None] {
        for is_dead in [true, false] {
            let options = WorldOptions { connect_timeout_ns: timeout, ..WorldOptions::default() };
            let world = World::new(1, options);
            let (mut client, mut server) = (world.node(), world.node());
            server.listen(server.service(1)).expect("a listener");
            if is_dead {
                world.kill(server.node());
                assert!(!world.is_alive(server.node()));
            } else {
                world.set_link_up(client.node(), server.node(), false);
            }
            let active = client.connect(server.service(1), none()).expect("a connect");
            world.run();
            assert_eq!(client.poll_cm(), Some(CmEvent::Unreachable(active)));
        }
    }
}

/// Killed between request and answer: the connect ends, with and without a time limit.
#[test]
fn a_listener_that_dies_with_a_request_is_unreachable() {
    for timeout in [Some(5_000_000), None] {
        let options = WorldOptions { connect_timeout_ns: timeout, ..WorldOptions::default() };
        let world = World::new(1, options);
        let (mut client, mut server) = (world.node(), world.node());
        server.listen(server.service(1)).expect("a listener");
        let active = client.connect(server.service(1), none()).expect("a connect");
        world.run_for(1_000_000);
        assert!(matches!(server.poll_cm(), Some(CmEvent::Request(..))));
        world.kill(server.node());
        world.run();
        assert_eq!(client.poll_cm(), Some(CmEvent::Unreachable(active)));
        assert_eq!(server.listen(server.service(2)), Err(Reject::InvalidService));
    }
}

/// Messages wait at a cut link; mended in time nothing is lost, otherwise the connection ends.
#[test]
fn a_partition_delays_or_ends() {
    for is_mended in [true, false] {
        let mut ends = connected(1, WorldOptions::default());
        let (client, server) = (ends.client.node(), ends.server.node());
        ends.world.set_link_up(client, server, false);
        for number in 0..3 {
            assert_eq!(Message::new(number, 100).post(&mut ends.a.0, SIGNALLED), Ok(()));
        }
        ends.world.run_for(50_000_000);
        assert_eq!(ends.b.1.poll_receive(), Ok(None));
        if is_mended {
            ends.world.set_link_up(client, server, true);
        }
        ends.world.run();
        if is_mended {
            for number in 0..3 {
                let received = ends.b.1.poll_receive().expect("alive").expect("a message");
                Message::new(number, 100).check(&ends.b.1, received);
                ends.b.1.release(received);
                assert_eq!(ends.a.0.poll_completion().map(|d| d.status), Some(Status::Success));
            }
        } else {
            assert_eq!(ends.b.1.poll_receive(), Err(QpError::Disconnected));
            let statuses = std::iter::from_fn(|| ends.a.0.poll_completion());
            let expected = [Status::RetryExceeded, Status::Flushed, Status::Flushed];
            assert!(statuses.map(|done| done.status).eq(expected));
        }
    }
}

#[test]
fn a_device_error_ends_both_sides() {
    let mut ends = connected(1, WorldOptions::default());
    ends.world.fail_queue_pair(ends.active);
    ends.world.run();
    let fatal = Err(PostError::Failed(QpError::Fatal));
    assert_eq!(Message::new(1, 1).post(&mut ends.a.0, DATA), fatal);
    let gone = Err(PostError::Failed(QpError::Disconnected));
    assert_eq!(Message::new(1, 1).post(&mut ends.b.0, DATA), gone);
    assert_eq!(ends.client.poll_cm(), Some(CmEvent::Disconnected(ends.active)));
    assert_eq!(ends.server.poll_cm(), Some(CmEvent::Disconnected(ends.passive)));
}

/// A message longer than a buffer cannot be posted, and another node's connection cannot be used.
#[test]
fn handles_of_another_node_are_unknown() {
    let mut ends = connected(1, WorldOptions::default());
    assert!(ends.client.take_queues(ends.passive).is_none());
    assert_eq!(ends.client.accept(ends.passive, none()), Err(Reject::Stale));
    ends.client.disconnect(ends.passive);
    ends.world.run();
    assert_eq!(Message::new(1, 1).post(&mut ends.b.0, DATA), Ok(()));
    let elsewhere = ends.server.service(9);
    assert_eq!(ends.client.listen(elsewhere), Err(Reject::InvalidService));
}

#[test]
#[should_panic(expected = "not borrowed")]
fn releasing_twice_is_a_bug_of_the_caller() {
    let mut ends = connected(1, WorldOptions::default());
    assert_eq!(Message::new(1, 10).post(&mut ends.a.0, DATA), Ok(()));
    ends.world.run();
    let received = ends.b.1.poll_receive().expect("alive").expect("a message");
    ends.b.1.release(received);
    ends.b.1.release(received);
}

#[test]
#[should_panic(expected = "copy of 20 bytes from 10 of a message of 26")]
fn reading_beyond_a_message_is_a_bug_of_the_caller() {
    let mut ends = connected(1, WorldOptions::default());
    assert_eq!(Message::new(1, 10).post(&mut ends.a.0, DATA), Ok(()));
    ends.world.run();
    let received = ends.b.1.poll_receive().expect("alive").expect("a message");
    Message::new(1, 10).check_part(&ends.b.1, received, 10, 20);
}

#[test]
#[should_panic(expected = "released ahead of an older one")]
fn releasing_too_far_ahead_is_a_bug_of_the_caller() {
    let credits = Credits::Implicit { window_bytes: 10_000, message_bytes: 1000 };
    let mut ends = connected(1, WorldOptions { credits, ..WorldOptions::default() });
    for number in 0..20 {
        assert_eq!(Message::new(number, 10).post(&mut ends.a.0, DATA), Ok(()));
    }
    ends.world.run();
    let _kept = ends.b.1.poll_receive();
    while let Ok(Some(received)) = ends.b.1.poll_receive() {
        ends.b.1.release(received);
    }
}

#[test]
#[should_panic(expected = "a window of 1000 is less than")]
fn a_window_that_cannot_hold_a_message_is_refused() {
    let credits = Credits::Implicit { window_bytes: 1000, message_bytes: 500 };
    World::new(1, WorldOptions { credits, ..WorldOptions::default() });
}

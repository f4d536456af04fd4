//! Each call of the provider and the connection manager fails, one after the other: the connection
//! stays on TCP or goes back to it, every byte arrives once, and nothing is left when both ends
//! have gone.

mod common;

use std::sync::{Mutex, MutexGuard};

use common::{
    Device, PROMISE, address,
    device::Text,
    ends::{Connection, Random, is_live},
    free_service, network, options, tries,
};
use sdp_fabric_tests::{Harness, Side};
use sdp_fabric_verbs::{
    Error,
    abi::{cm, verbs},
    fabric::VerbsFabric,
};
use sdp_fake_verbs::{Live, Network, Road, Step};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, ReceiveQueue, SendOptions, SendQueue},
    work::{Status, WorkId},
};
use sdp_remote::{RecvError, SendError};
use sdp_sys::Errno;

/// One test at a time: a failing step fails for all.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> (MutexGuard<'static, ()>, Network) {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let network = network();
    for step in Step::ALL {
        network.fail(*step, 0, 0, 0);
    }
    network.set_road(Road::Open);
    (turn, network)
}

const MS: u64 = 1_000_000;
/// Rounds of a story in which both ends send.
const ROUNDS: usize = 60;
/// Rounds within which all that was sent has to arrive.
const LAST_ROUNDS: usize = 1200;
/// Rounds after which an attempt without an answer is given up.
const ROUNDS_MAX: usize = 12;

/// Seeds of random stories: so many, or those that the environment asks for.
fn seeds(count: u64) -> std::ops::RangeInclusive<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("SDP_TEST_SEED").unwrap_or(1);
    first..=first + number("SDP_TEST_COUNT").unwrap_or(count) - 1
}

/// The results that a program may get while the peer keeps to the rules.
fn sent(outcome: Result<usize, SendError>, story: &str) {
    assert!(matches!(outcome, Ok(_) | Err(SendError::Wait(_))), "{story}: {outcome:?}");
}

fn received(outcome: Result<usize, RecvError>, story: &str) {
    assert!(matches!(outcome, Ok(1..) | Err(RecvError::WouldBlock)), "{story}: {outcome:?}");
}

/// The outcome of a story.
#[derive(Debug, Default)]
struct Outcome {
    by_sdp: u64,
    meetings: u32,
    /// Both ends had a queue pair when it ended.
    is_up: bool,
}

/// Two ends that meet, send in both directions and go; `meanwhile` is called in each round.
fn play(story: &str, seed: u64, mut meanwhile: impl FnMut(usize, &mut Connection)) -> Outcome {
    let network = network();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut pair = Connection::new();
    let mut asked_at = 0;
    for round in 0..ROUNDS {
        meanwhile(round, &mut pair);
        if !pair.acceptor.has_asked {
            asked_at = round;
            pair.ask();
        } else if round - asked_at > ROUNDS_MAX {
            pair.acceptor.give_up();
        }
        for of in 0..2 {
            let now = pair.now;
            sent(pair.end(of).send(1 + random.below(6000), now), story);
            pair.manage();
            received(pair.end(1 - of).recv(1 + random.below(9000)), story);
            let _ = pair.end(of).tend(now);
        }
        pair.step((1 + random.below(40) as u64) * MS);
    }
    for round in 0.. {
        pair.manage();
        let now = pair.now;
        for of in 0..2 {
            received(pair.end(of).recv(1 << 20), story);
            let tended = pair.end(of).tend(now);
            assert!(!matches!(tended, Err(SendError::Broken(_))), "{story}: {tended:?}");
        }
        let (a, c) = (&pair.acceptor, &pair.connector);
        if a.sent == c.received && c.sent == a.received {
            break;
        }
        assert!(
            round < LAST_ROUNDS,
            "{story}: bytes are missing: {} of {}, {} of {}",
            c.received,
            a.sent,
            a.received,
            c.sent
        );
        pair.step(5 * MS);
    }
    let ends = [&pair.acceptor, &pair.connector];
    assert!(!ends.iter().any(|end| end.shared.is_broken()), "{story}: called a violation");
    let outcome = Outcome {
        by_sdp: ends.iter().map(|end| end.by_sdp()).sum(),
        meetings: pair.acceptor.begun,
        is_up: ends.iter().all(|end| is_live(&end.shared)),
    };
    // No queue pair beyond the one that is up, or the two of an attempt.
    for _ in 0..20 {
        pair.manage();
    }
    assert!(network.live().qps <= 2, "{story}: {:?}", network.live());
    drop(pair);
    let left = network.live();
    assert_eq!(left, Live::default(), "{story}: left behind");
    outcome
}

fn calls_of_a_good_run(network: Network) -> Vec<u32> {
    let outcome = play("nothing fails", 1, |_, _| ());
    assert!(outcome.is_up && outcome.by_sdp > 100_000, "{outcome:?}");
    Step::ALL.iter().map(|step| network.calls(*step)).collect()
}

/// Which of a step's calls are made to fail: each of the first ones, then fewer and fewer.
fn chosen(calls: u32) -> impl Iterator<Item = u32> {
    let mut next = 1;
    std::iter::from_fn(move || {
        let now = next;
        // Once more, on another kind of device: fewer.
        next += 1 + now / if common::HAS_OWN_RECEIVES { 2 } else { 5 };
        (now <= calls.min(1500) + 1).then_some(now)
    })
}

const STATUSES: [i32; 9] = [
    verbs::WC_LOC_LEN_ERR,
    verbs::WC_LOC_QP_OP_ERR,
    verbs::WC_LOC_PROT_ERR,
    verbs::WC_WR_FLUSH_ERR,
    verbs::WC_LOC_ACCESS_ERR,
    verbs::WC_REM_INV_REQ_ERR,
    verbs::WC_REM_OP_ERR,
    verbs::WC_RETRY_EXC_ERR,
    verbs::WC_RNR_RETRY_EXC_ERR,
];
const ERRNOS: [i32; 4] = [libc::ENOMEM, libc::EINVAL, libc::EIO, libc::ENODEV];

fn numbers(step: Step) -> &'static [i32] {
    match step {
        Step::SendCompletion | Step::ReceiveCompletion => &STATUSES,
        _ => &ERRNOS,
    }
}

fn is_of_events(step: Step) -> bool {
    matches!(step, Step::EventLost | Step::EventTwice | Step::EventChanged)
}

/// One call fails: all else goes on, and but for those at the opening the ends meet in the end.
#[test]
fn every_call_in_turn() {
    let (_turn, network) = turn();
    let calls = calls_of_a_good_run(network);
    let mut stories = 0;
    for (step, calls) in Step::ALL.iter().zip(calls) {
        if is_of_events(*step) {
            continue;
        }
        for nth in chosen(calls) {
            let number = numbers(*step)[nth as usize % numbers(*step).len()];
            network.fail(*step, nth, 1, number);
            let story = format!("call {nth} of {step:?} fails with {number}");
            play(&story, u64::from(nth), |_, _| ());
            network.fail(*step, 0, 0, 0);
            stories += 1;
        }
    }
    println!("{stories} stories");
    assert!(stories > if common::HAS_OWN_RECEIVES { 100 } else { 200 }, "{stories}");
}

/// From one call on all of a step fail.
#[test]
fn every_call_from_one_on() {
    let (_turn, network) = turn();
    let calls = calls_of_a_good_run(network);
    for (step, calls) in Step::ALL.iter().zip(calls) {
        if is_of_events(*step) {
            continue;
        }
        for nth in [1, 2, 3, calls / 2] {
            let number = numbers(*step)[nth as usize % numbers(*step).len()];
            network.fail(*step, nth.max(1), u32::MAX, number);
            play(&format!("{step:?} fails with {number} from call {nth} on"), 7, |_, _| ());
            network.fail(*step, 0, 0, 0);
        }
    }
}

/// Events that are lost, doubled, or come as others: in every wrong order.
#[test]
fn events_in_every_wrong_order() {
    let (_turn, network) = turn();
    let calls = calls_of_a_good_run(network);
    let events = calls[Step::EventLost as usize];
    assert!(events >= 5, "{events}");
    for nth in 1..=tries(u64::from(events) + 2) as u32 {
        for step in [Step::EventLost, Step::EventTwice] {
            network.fail(step, nth, 1, 0);
            play(&format!("{step:?} {nth}"), u64::from(nth), |_, _| ());
            network.fail(step, 0, 0, 0);
        }
        for kind in 0..=17 {
            if kind == cm::EVENT_CONNECT_REQUEST {
                continue;
            }
            network.fail(Step::EventChanged, nth, 1, kind as i32);
            play(&format!("event {nth} comes as {kind}"), u64::from(nth), |_, _| ());
            network.fail(Step::EventChanged, 0, 0, 0);
        }
    }
    // Out of the blue, at any time, to listeners as well.
    let mut random = Random(5);
    for seed in 0..tries(60) {
        let (at, kind) = (random.below(ROUNDS), random.below(18) as u32);
        if kind == cm::EVENT_CONNECT_REQUEST {
            continue;
        }
        play(&format!("event {kind} in round {at}"), seed, |round, _| {
            if round == at {
                network.tell_all(kind, 0);
            }
        });
    }
}

/// The device breaks queue pairs, the road is cut or answers are lost, at any time and in both
/// directions. Some drivers report it by the connection manager alone, and wait until the device is
/// closed. Without connections there is one id that hears.
#[test]
fn a_device_without_queue_pairs_goes() {
    let (_turn, network) = turn();
    let mut fabric = VerbsFabric::open(&address(0), &options()).expect("a fabric");
    assert!(!fabric.progress() && !fabric.is_lost());
    network.remove_device_quietly(0);
    assert!(fabric.progress() && fabric.is_lost());
    drop(fabric);
    assert_eq!(network.live(), Live::default());
}

/// A port goes down at any moment of a meeting, or later: connections meet, or meet again, when it is
/// up. Nothing was said to peers meanwhile, for a device that loses such a message loses all later ones.
#[test]
fn a_port_goes_down_and_comes_back() {
    let (_turn, network) = turn();
    let meetings = (0..10).map(|from| (from, 3));
    for (from, down) in meetings.chain([(15, 1), (15, 5), (15, 12)]) {
        let story = format!("down from round {from} on, for {down}");
        let outcome = play(&story, 7, |round, _| match round {
            _ if round == from => {
                network.set_port(0, false);
                network.set_road(Road::Cut);
            }
            _ if round == from + down => {
                network.expire();
                network.set_road(Road::Open);
            }
            _ if round == from + down + 2 => network.set_port(0, true),
            _ => {}
        });
        let least = if from == 15 { 2 } else { 1 };
        assert!(outcome.is_up && outcome.meetings >= least, "{story}: {outcome:?}");
    }
}

/// A message of the connection manager that waits when the port goes down is not answered.
#[test]
fn a_port_goes_down_in_a_meeting() {
    let (_turn, network) = turn();
    let none = PrivateData::new(&[]).expect("fits");
    for answer in ["accept", "refuse", "confirm", "go"] {
        let mut device = Device::new(0);
        let service = free_service();
        device.b.listen(service).expect("a free service");
        device.a.connect(service, none).expect("a connect");
        assert_eq!(device.a.poll_cm(), None, "it has asked");
        let request = |device: &mut Device| match device.b.poll_cm() {
            Some(CmEvent::Request(id, _)) => id,
            other => panic!("{answer}: {other:?}"),
        };
        if answer == "confirm" {
            let id = request(&mut device);
            device.b.accept(id, none).expect("an acceptance");
        }
        network.set_port(0, false);
        match answer {
            "accept" => {
                let id = request(&mut device);
                assert!(device.b.accept(id, none).is_err());
            }
            "refuse" => {
                let id = request(&mut device);
                device.b.reject(id, 1);
            }
            "confirm" => assert!(matches!(device.a.poll_cm(), Some(CmEvent::Unreachable(_)))),
            _ => {}
        }
        device.b.unlisten(service);
        while device.advance() {}
        network.set_port(0, true);
        while device.advance() {}
        while let Some(event) = device.b.poll_cm() {
            if let CmEvent::Request(id, _) = event {
                device.b.reject(id, 1);
            }
        }
        while device.a.poll_cm().is_some() {}
        let pair = device.pair();
        drop((pair, device));
        assert_eq!(network.live(), Live::default(), "{answer}");
    }
}

/// A queue pair that could not be stopped leaves its place with work in flight: later completions
/// of that belong to no connection, and say nothing about the requests of the next one there.
#[test]
fn work_outlives_its_queue_pair() {
    let (_turn, network) = turn();
    let mut device = Device::new(0);
    let signalled = SendOptions { signalled: true, ..SendOptions::default() };
    let post = |tx: &mut common::CreditedTx, id: u64| {
        tx.post_send(WorkId(id), b"header", &mut Text(b"text"), signalled).expect("room");
    };
    network.set_road(Road::Mute);
    let mut first = device.pair();
    (0..8).for_each(|id| post(&mut first.a.tx, id));
    assert_eq!(first.a.tx.poll_completion(), None, "nothing has ended");
    network.fail(Step::ToErr, 1, u32::MAX, libc::EIO);
    drop(first);
    device.disconnect(Side::A);
    // Once: the next look finds the later completions.
    device.a.get().progress();
    network.fail(Step::ToErr, 0, 0, 0);
    assert_eq!(network.live().qps, 1, "the first is gone at this end");

    let mut second = device.pair();
    post(&mut second.a.tx, 100);
    while device.advance() {}
    assert_eq!(second.a.tx.poll_completion(), None, "nothing of the second has ended");
    network.set_road(Road::Open);
    network.expire();
    while device.advance() {}
    let end = second.a.tx.poll_completion().expect("its end");
    assert_eq!(end.id, WorkId(100));
    assert_eq!(second.a.tx.poll_completion(), None, "once");
    drop((second, device));
    assert_eq!(network.live(), Live::default());
}

/// Receive buffers come back from queue pairs that end in any way, with messages in them that
/// nobody has read or released: more connections than there are buffers for, one after the other.
#[test]
fn receive_buffers_come_back() {
    let (_turn, network) = turn();
    let mut random = Random(11);
    let mut device = Device::new(0);
    let receives = device.b.get().budget().receives;
    let connections = 4 * receives / PROMISE as usize;
    for number in 0..connections {
        let mut pair = device.pair();
        let count = 1 + random.below(PROMISE as usize);
        for id in 0..count as u64 {
            let bytes = [number as u8; 300];
            let options = SendOptions::default();
            pair.a.tx.post_send(WorkId(id), b"header", &mut Text(&bytes), options).expect("room");
        }
        let mut kept = Vec::new();
        for _ in 0..random.below(count + 1) {
            let message = pair.b.rx.poll_receive().expect("alive");
            kept.push(message.unwrap_or_else(|| panic!("no buffer for connection {number}")));
        }
        for message in kept.drain(..).take(random.below(count)) {
            let mut bytes = [0; 306];
            assert_eq!(pair.b.rx.copy_header(message, &mut bytes), 306);
            assert!(bytes[6..].iter().all(|byte| *byte == number as u8), "connection {number}");
            pair.b.rx.release(message);
        }
        match number % 4 {
            0 => device.disconnect(Side::A),
            1 => network.break_pairs(|_| true),
            // It cannot be stopped before it goes.
            2 => network.fail(Step::ToErr, 1, u32::MAX, libc::EIO),
            _ => {}
        }
        if number % 3 == 0 {
            while device.advance() {}
        }
        drop(pair);
        device.disconnect(Side::B);
        device.disconnect(Side::A);
        while device.advance() {}
        network.fail(Step::ToErr, 0, 0, 0);
        assert_eq!(network.live().qps, 0, "connection {number}");
    }
    assert!(!device.a.get().is_lost() && !device.b.get().is_lost());
    println!("{connections} connections, {receives} buffers");
    drop(device);
    assert_eq!(network.live(), Live::default());
}

/// What the call for a shared receive queue fails with tells whether the device has none. All else
/// is a failure as at any other step.
#[test]
fn who_has_no_shared_receive_queues() {
    let (_turn, network) = turn();
    for number in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL] {
        network.fail(Step::CreateSrq, 1, u32::MAX, number);
        let mut device = Device::new(0);
        assert_eq!(network.live().srqs, 0);
        let mut pair = device.pair();
        let options = SendOptions::default();
        pair.a.tx.post_send(WorkId(1), b"header", &mut Text(b"text"), options).expect("room");
        assert!(pair.b.rx.poll_receive().expect("alive").is_some(), "{number}");
    }
    let failures = [
        (libc::ENOMEM, Error::MemLock),
        (libc::ENODEV, Error::NoDevice),
        (libc::EIO, Error::Os("ibv_create_srq", Errno(libc::EIO))),
    ];
    for (number, error) in failures {
        network.fail(Step::CreateSrq, 1, 1, number);
        assert_eq!(VerbsFabric::open(&address(0), &options()).err(), Some(error));
        assert_eq!(network.live(), Live::default(), "{number}");
    }
}

/// Descriptors get other numbers while the fabric is in the middle of a step, and go on; one that
/// gets none is the device's loss.
#[test]
fn numbers_change_without_the_fabric() {
    let (_turn, network) = turn();
    let mut device = Device::new(0);
    let mut fabric = device.a.get();
    let numbers = fabric.numbers();
    for from in numbers.all() {
        let to = sdp_sys::fd::duplicate_above(from, from + 1, false).expect("a number");
        // Another thread's.
        assert!(std::thread::scope(|scope| {
            scope.spawn(|| numbers.renumber(from, to)).join().expect("no panic")
        }));
        assert!(!numbers.renumber(from, to), "once");
        sdp_sys::fd::close(from);
        assert!(fabric.descriptors().contains(&to) && !fabric.descriptors().contains(&from));
    }
    drop(fabric);
    let mut pair = device.pair();
    let options = SendOptions::default();
    pair.a.tx.post_send(WorkId(1), b"header", &mut Text(b"text"), options).expect("room");
    assert!(pair.b.rx.poll_receive().expect("alive").is_some());
    assert!(!device.a.get().is_lost());

    let [file, ..] = numbers.all();
    assert!(numbers.renumber(file, -1));
    sdp_sys::fd::close(file);
    assert!(device.a.get().progress());
    assert!(device.a.get().is_lost());
    drop((numbers, pair, device));
    assert_eq!(network.live(), Live::default());
}

/// The device takes some of the messages that it is given together, and refuses the rest: those have
/// not gone well.
#[test]
fn a_device_refuses_some_of_a_list() {
    const MESSAGES: u64 = 5;
    for refused in 1..=MESSAGES {
        let (_turn, network) = turn();
        let mut device = Device::new(0);
        let mut pair = device.pair();
        let signalled = SendOptions { signalled: true, ..SendOptions::default() };
        let calls = network.calls(Step::PostSend);
        network.fail(Step::PostSend, calls + refused as u32, 1, libc::ENOMEM);
        for id in 1..MESSAGES {
            let mut payload = Text(&[id as u8; 300]);
            pair.a.tx.post_send_before(WorkId(id), b"header", &mut payload, signalled).unwrap();
        }
        assert_eq!(pair.a.tx.poll_completion(), None, "nothing has gone");
        let mut payload = Text(&[MESSAGES as u8; 300]);
        let _ = pair.a.tx.post_send(WorkId(MESSAGES), b"header", &mut payload, signalled);
        while device.advance() {}
        let ends: Vec<_> = std::iter::from_fn(|| pair.a.tx.poll_completion()).collect();
        let well = ends.iter().filter(|end| end.status == Status::Success);
        let well: Vec<u64> = well.map(|end| end.id.0).collect();
        assert_eq!(well, (1..refused).collect::<Vec<_>>(), "{refused}: {ends:?}");
        let arrived = std::iter::from_fn(|| pair.b.rx.poll_receive().ok().flatten()).count();
        assert_eq!(arrived as u64, refused - 1);
        assert_eq!(ends.len() as u64, MESSAGES, "each is told of: {ends:?}");
        drop((pair, device));
        assert_eq!(network.live(), Live::default());
    }
}

#[test]
fn roads_that_end() {
    let (_turn, network) = turn();
    let (mut by_sdp, mut meetings) = (0, 0);
    for seed in seeds(80) {
        let mut random = Random(seed);
        let outcome = play(&format!("seed {seed}"), seed, |_, _| match random.below(30) {
            0 => network.break_pairs(|number| number % 3 != 0),
            1 => network.set_road(Road::Cut),
            2 => network.set_road(Road::Mute),
            3 => network.expire(),
            4..10 => network.set_road(Road::Open),
            _ => {}
        });
        network.set_road(Road::Open);
        by_sdp += outcome.by_sdp;
        meetings += outcome.meetings;
    }
    println!("{by_sdp} bytes by SDP, {meetings} meetings");
    assert!(by_sdp > 1_000_000 && meetings > 120, "{by_sdp} bytes by SDP, {meetings} meetings");
}

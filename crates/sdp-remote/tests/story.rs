//! Both directions of a connection, byte by byte, while queue pairs come and go.
//!
//! Every byte of a stream is known by its position ([`common::byte_at`]), so each one is checked where it
//! is delivered: one that is lost, doubled or misplaced fails the test at once.

mod common;

use common::{Pair, Random, options};
use sdp_fabric_sim::{FaultOptions, Ratio, Span};
use sdp_remote::{RecvError, SendError, Wait};

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

/// Messages so far apart that each is followed by a probe: none of them asks for a completion of its own.
#[test]
fn what_a_probe_has_overtaken_is_not_kept() {
    let mut pair = Pair::new(1, options());
    pair.meet();
    for _ in 0..200 {
        let now = pair.world.now_ns();
        assert_eq!(pair.acceptor.send(500, now), Ok(500));
        for _ in 0..15 {
            pair.world.run_for(10_000_000);
            let now = pair.world.now_ns();
            pair.acceptor.tend(now).unwrap();
            pair.connector.tend(now).unwrap();
            if pair.connector.recv(1000, false).is_ok() {
                assert_eq!(pair.connector.send(10, now), Ok(10));
            }
            let _ = pair.acceptor.recv(1000, false);
        }
        assert!(pair.acceptor.outbound.is_on_sdp());
    }
    assert_eq!(pair.acceptor.outbound.counts().spills, 0);
    assert_eq!(pair.connector.received, pair.acceptor.sent);
}

/// The acceptor's PROOF stands behind bytes that the connector's program, which only sends, never reads.
#[test]
fn who_only_sends_sees_the_proof_behind_what_it_does_not_read() {
    let mut pair = Pair::new(1, options());
    let now = pair.world.now_ns();
    assert_eq!(pair.acceptor.send(28, now), Ok(28));
    pair.meet();
    let now = pair.world.now_ns();
    assert_eq!(pair.connector.send(500, now), Ok(500));
    assert!(pair.connector.outbound.is_on_sdp());
    pair.world.run();
    assert_eq!(pair.acceptor.recv(1000, false), Ok(500));
    assert_eq!(pair.connector.recv(1000, false), Ok(28));
    assert_eq!(pair.acceptor.send(7, now), Ok(7));
    pair.world.run();
    assert_eq!(pair.connector.recv(1000, false), Ok(7));
    assert_eq!(pair.connector.inbound.counts().markers, 1);
}

/// An end that only receives need not look around at each message: not before the peer is to be told
/// of credits.
#[test]
fn an_end_that_only_receives_is_settled() {
    let mut pair = Pair::new(1, options());
    pair.meet();
    let mut settled = [0; 2];
    for _ in 0..100 {
        let now = pair.world.now_ns();
        let sent = pair.connector.send(500, now);
        assert!(matches!(sent, Ok(500) | Err(SendError::Wait(_))), "{sent:?}");
        pair.world.run();
        while pair.acceptor.recv(1000, false).is_ok() {
            let acceptor = &pair.acceptor;
            assert!(!acceptor.outbound.is_on_sdp());
            settled[usize::from(
                acceptor.outbound.is_settled(None::<&sdp_fabric_sim::SimTx>, &acceptor.shared),
            )] += 1;
        }
        for of in 0..2 {
            assert!(pair.end(of).tend(now).is_ok());
        }
        pair.world.run();
    }
    assert!(settled[1] > settled[0] && settled[0] > 0, "{settled:?}");
}

/// Queue pairs that end before their proofs, one after the other: each end keeps seals of four attempts at most, and
/// forgets them as the peer's markers come. The connection meets in the end.
#[test]
fn attempts_that_come_to_nothing_are_forgotten() {
    let mut pair = Pair::new(1, options());
    for attempt in 1..=12 {
        pair.ask();
        for _ in 0..200 {
            pair.world.run_for(1_000_000);
            pair.manage();
        }
        assert_eq!((pair.acceptor.begun, pair.connector.begun), (attempt, attempt));
        // No call has looked: no PROOF is written.
        pair.acceptor.shared.link_died();
        pair.connector.shared.link_died();
        pair.manage();
        let now = pair.world.now_ns();
        for of in [0, 1, 0, 1] {
            let _ = pair.end(of).tend(now);
            let _ = pair.end(of).look();
        }
    }
    pair.meet();
    let now = pair.world.now_ns();
    assert_eq!(pair.acceptor.send(500, now), Ok(500));
    assert!(pair.acceptor.outbound.is_on_sdp());
    pair.world.run();
    assert_eq!(pair.connector.recv(1000, false), Ok(500));
}

/// Delivers everything in flight, updates of credit included, and compares the ends.
fn settle(pair: &mut Pair) {
    let mut rests = 0;
    for _ in 0..4000 {
        pair.world.run_for(2_000_000);
        pair.manage();
        let now = pair.world.now_ns();
        for of in 0..2 {
            let tended = pair.end(of).tend(now);
            assert!(
                !matches!(tended, Err(SendError::Broken(_) | SendError::Carrier(_))),
                "{tended:?}"
            );
            let got = pair.end(of).recv(100_000, false);
            assert!(matches!(got, Ok(1..) | Err(RecvError::WouldBlock)), "{got:?}");
        }
        let is_there = pair.acceptor.sent == pair.connector.received
            && pair.connector.sent == pair.acceptor.received;
        rests = if is_there { rests + 1 } else { 0 };
        if rests > 20 {
            return;
        }
    }
    panic!(
        "not delivered: {} of {}, {} of {}\n{}",
        pair.connector.received,
        pair.acceptor.sent,
        pair.acceptor.received,
        pair.connector.sent,
        pair.world.trace()
    );
}

/// A program's possible actions, at random; a queue pair is killed now and then, at either end.
fn act(pair: &mut Pair, random: &mut Random, kills: usize) {
    let of = random.below(2);
    let now = pair.world.now_ns();
    match random.below(100) {
        0..30 => {
            let most = [20_000, 700, 700, 700][random.below(4)];
            let len = 1 + random.below(most);
            let sent = pair.end(of).send(len, now);
            assert!(matches!(sent, Ok(1..) | Err(SendError::Wait(_))), "{sent:?}");
            if let Err(SendError::Wait(Wait::Credit { until })) = sent
                && random.below(4) == 0
            {
                // The other end reads nothing until then.
                pair.world.run_for(until - now);
            }
        }
        30..60 => {
            let room = 1 + random.below(5000);
            let got = pair.end(of).recv(room, false);
            assert!(matches!(got, Ok(1..) | Err(RecvError::WouldBlock)), "{got:?}");
        }
        60..65 => {
            let shown = pair.end(of).recv(1 + random.below(3000), true);
            assert!(matches!(shown, Ok(1..) | Err(RecvError::WouldBlock)), "{shown:?}");
        }
        65..70 => assert!(pair.end(of).look().is_ok()),
        70..80 => {
            let tended = pair.end(of).tend(now);
            assert!(matches!(tended, Ok(_) | Err(SendError::Wait(_))), "{tended:?}");
        }
        80..95 => {
            let time = [100, 3_000, 100_000, 2_000_000, 25_000_000];
            pair.world.run_for(time[random.below(5)]);
        }
        95..97 => {
            pair.manage();
            pair.ask();
        }
        97 => pair.end(of).outbound.to_kernel(),
        98 => pair.end(of).outbound.allow_sdp(),
        _ if random.below(100) < kills => {
            // The connection manager would report this; the other end learns of it late.
            pair.end(of).host.forget(common::NUMBER);
            pair.end(of).shared.link_died();
        }
        _ => {}
    }
}

struct Sums {
    bytes: u64,
    carrier_bytes: u64,
    resumes: u64,
    spills: u64,
    skipped: u64,
    meetings: u32,
    /// Sends and receives that needed nothing but the queue pair.
    steady: [u64; 2],
}

impl Sums {
    const NONE: Self = Self {
        bytes: 0,
        carrier_bytes: 0,
        resumes: 0,
        spills: 0,
        skipped: 0,
        meetings: 0,
        steady: [0; 2],
    };

    fn add_steady(&mut self, steady: [u64; 2]) {
        self.steady.iter_mut().zip(steady).for_each(|(sum, more)| *sum += more);
    }
}

fn story(seed: u64, faults: FaultOptions, kills: usize, steps: usize) -> Sums {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut pair = Pair::new(seed, sdp_fabric_sim::WorldOptions { faults, ..options() });
    pair.meet();
    for _ in 0..steps {
        act(&mut pair, &mut random, kills);
    }
    pair.acceptor.outbound.allow_sdp();
    pair.connector.outbound.allow_sdp();
    settle(&mut pair);
    let mut sums = Sums::NONE;
    for of in 0..2 {
        sums.add_steady(pair.end(of).steady);
        let (inbound, outbound) = (pair.end(of).inbound.counts(), pair.end(of).outbound.counts());
        sums.bytes += inbound.bytes;
        sums.carrier_bytes += inbound.carrier_bytes;
        sums.skipped += inbound.skipped;
        sums.resumes += outbound.resumes;
        sums.spills += outbound.spills;
    }
    sums.meetings = pair.acceptor.begun;
    sums
}

fn stories(seeds: std::ops::Range<u64>, faults: FaultOptions, kills: usize) -> Sums {
    let mut all = Sums::NONE;
    for seed in seeds {
        let one = story(seed, faults, kills, 3000);
        all.bytes += one.bytes;
        all.carrier_bytes += one.carrier_bytes;
        all.resumes += one.resumes;
        all.spills += one.spills;
        all.skipped += one.skipped;
        all.meetings += one.meetings;
        all.add_steady(one.steady);
    }
    assert!(all.steady.iter().all(|calls| *calls > 0), "{:?}", all.steady);
    all
}

#[test]
fn bytes_arrive_once_and_in_order_over_both_roads() {
    let sums = stories(1..20, FaultOptions::NONE, 0);
    let Sums { bytes, carrier_bytes, spills, .. } = sums;
    assert!(
        bytes > 500_000 && carrier_bytes > 10_000 && spills > 10,
        "{bytes} {carrier_bytes} {spills}"
    );
}

#[test]
fn queue_pairs_may_die_at_any_step() {
    let sums = stories(100..140, FaultOptions::NONE, 50);
    assert!(sums.meetings > 100, "{} meetings", sums.meetings);
    assert!(sums.resumes > 40 && sums.skipped > 0, "{} {}", sums.resumes, sums.skipped);
}

/// The queue pair is slower than the carrier, by up to a second, and drops connections by itself.
#[test]
fn the_queue_pair_may_be_late_and_fail_by_itself() {
    let faults = FaultOptions {
        drop_connection: Ratio::per_million(3_000),
        fail_queue_pair: Ratio::per_million(3_000),
        destructive_max: 40,
        overtake: Ratio::per_million(100_000),
        overtake_delay: Span::new(1_000, 5_000_000),
        ..FaultOptions::SLOW
    };
    let sums = stories(200..230, faults, 20);
    assert!(sums.resumes > 30, "{} resumes", sums.resumes);
}

/// A reader that does not read gets as many bytes as TCP would take.
#[test]
fn without_credit_bytes_spill_to_the_carrier() {
    let mut pair = Pair::new(3, options());
    pair.meet();
    let begin = pair.world.now_ns();
    let mut now = begin;
    let mut sent = 0;
    while sent < 200_000 {
        match pair.acceptor.send(1000, now) {
            Ok(len) => sent += len,
            Err(SendError::Wait(Wait::Credit { until })) => {
                assert!(until <= now + 101_000_000);
                now = until;
            }
            Err(error) => panic!("{error:?} after {sent}"),
        }
    }
    assert_eq!(pair.acceptor.outbound.counts().spills, 1);
    // The first wait, and those behind 64 KiB and 192 KiB, each a quarter of the one before; in
    // the first one 100 ns for each byte on the carrier.
    assert!(now - begin <= 133_000_000, "{}", now - begin);
    settle(&mut pair);
    // With its credit back the half returns to the queue pair.
    let switches = pair.acceptor.outbound.counts().switches;
    let now = pair.world.now_ns();
    assert!(pair.acceptor.send(10, now).is_ok());
    assert_eq!(pair.acceptor.outbound.counts().switches, switches + 1);
    settle(&mut pair);
}

/// The proofs go by the carrier, each behind what its end has sent there before.
#[test]
fn a_sender_waits_for_the_proof_of_an_end_that_it_has_met() {
    let mut pair = Pair::new(5, options());
    pair.ask();
    while pair.acceptor.begun == 0 || pair.connector.begun == 0 {
        pair.world.run_for(100_000);
        pair.manage();
    }
    let begin = pair.world.now_ns();
    let mut sent = 0;
    let next = loop {
        match pair.connector.send(1000, begin) {
            Ok(len) => sent += len,
            Err(error) => break error,
        }
    };
    let SendError::Wait(Wait::Credit { until }) = next else { panic!("{next:?}") };
    assert_eq!(sent, 64 * 1024);
    assert!(!pair.connector.may_go_on(begin) && pair.connector.may_go_on(until + 1_000_000));
    // Behind a wait in vain twice as many bytes go.
    let mut more = 0;
    while let Ok(len) = pair.connector.send(1000, until + 1_000_000) {
        more += len;
    }
    assert_eq!(more, 128 * 1024);
    settle(&mut pair);
    let now = pair.world.now_ns();
    assert_eq!(pair.connector.send(10, now), Ok(10));
    assert!(pair.connector.outbound.is_on_sdp());
    assert_eq!(pair.connector.outbound.counts().spills, 0);
    settle(&mut pair);
}

/// A sender whose peer was late for a moment has not filled the kernel meanwhile.
#[test]
fn a_reader_that_was_late_gets_few_bytes_by_the_carrier() {
    let mut pair = Pair::new(3, options());
    pair.meet();
    let mut now = pair.world.now_ns();
    let (mut sent, mut by_carrier) = (0, 0);
    // A wait that was in vain, and what goes before the next one.
    let next = loop {
        match pair.acceptor.send(1000, now) {
            Ok(len) if pair.acceptor.outbound.is_on_sdp() => sent += len,
            Ok(len) => (sent, by_carrier) = (sent + len, by_carrier + len),
            Err(SendError::Wait(Wait::Credit { until })) if by_carrier == 0 => now = until,
            Err(error) => break error,
        }
    };
    assert!(matches!(next, SendError::Wait(Wait::Credit { until }) if until > now), "{next:?}");
    assert_eq!(by_carrier, 64 * 1024);
    settle(&mut pair);
    assert_eq!(pair.acceptor.send(10, pair.world.now_ns()), Ok(10));
    assert!(pair.acceptor.outbound.is_on_sdp());
    settle(&mut pair);
}

/// An end that closes says what it has taken, and does not send again what it was told of.
#[test]
fn the_end_of_a_direction_sends_nothing_again_that_was_taken() {
    let mut pair = Pair::new(1, options());
    pair.meet();
    let now = pair.world.now_ns();
    assert_eq!(pair.acceptor.send(500, now), Ok(500));
    pair.world.run();
    assert_eq!(pair.connector.recv(1000, false), Ok(500));
    let now = pair.world.now_ns();
    pair.connector.finish(now).expect("an end");
    pair.world.run();
    pair.acceptor.gather();
    let now = pair.world.now_ns();
    pair.acceptor.finish(now).expect("an end");
    assert!(!pair.acceptor.outbound.is_on_sdp());
    assert_eq!(pair.connector.recv(1000, false), Err(RecvError::WouldBlock));
    let counts = pair.connector.inbound.counts();
    assert_eq!((counts.bytes, counts.carrier_bytes, counts.skipped), (500, 0, 0));
}

/// A device sends from the kept bytes, so that these keep their place when they went by the carrier
/// instead: there is no way back to the queue pair before the peer has said that it has them.
#[test]
fn no_way_back_while_a_device_may_send_kept_bytes() {
    let mut pair = Pair::new(1, options());
    pair.meet();
    let now = pair.world.now_ns();
    assert_eq!(pair.acceptor.send(500, now), Ok(500));
    pair.acceptor.outbound.to_kernel();
    assert_eq!(pair.acceptor.send(100, now), Ok(100));
    pair.acceptor.outbound.allow_sdp();
    let goes = |pair: &Pair| pair.acceptor.outbound.goes_by_sdp(&pair.acceptor.shared);
    for _ in 0..10 {
        assert!(!goes(&pair), "the message is under way");
        assert_eq!(pair.acceptor.send(100, now), Ok(100));
    }
    pair.world.run();
    // The peer follows, and says of itself that it has the message.
    while pair.connector.recv(1000, false).is_ok() {}
    let now = pair.world.now_ns();
    let _ = pair.connector.tend(now);
    pair.world.run();
    pair.acceptor.gather();
    let _ = pair.acceptor.tend(now);
    assert!(goes(&pair));
    assert_eq!(pair.acceptor.send(100, now), Ok(100));
    assert!(pair.acceptor.outbound.is_on_sdp());
    settle(&mut pair);
}

/// A sender that was refused goes on when the peer has made room, or has made none for too long.
#[test]
fn a_sender_that_was_refused_goes_on_when_there_is_room() {
    let mut pair = Pair::new(1, options());
    pair.meet();
    let now = pair.world.now_ns();
    let refused = loop {
        match pair.acceptor.send(700, now) {
            Ok(_) => {}
            Err(refused) => break refused,
        }
    };
    let SendError::Wait(Wait::Credit { until }) = refused else { panic!("{refused:?}") };
    assert!(!pair.acceptor.may_go_on(now) && !pair.acceptor.may_go_on(until - 1));
    assert!(pair.acceptor.may_go_on(until));
    pair.world.run();
    while pair.connector.recv(1000, false).is_ok() {}
    let _ = pair.connector.tend(now);
    pair.world.run();
    pair.acceptor.gather();
    assert!(pair.acceptor.may_go_on(now));
    assert_eq!(pair.acceptor.send(700, now), Ok(700));
    assert_eq!(pair.acceptor.outbound.counts().spills, 0);
}

#[test]
fn posted_work_that_never_completes_is_resumed_after_600_ms() {
    let mut pair = Pair::new(4, options());
    pair.meet();
    let now = pair.world.now_ns();
    assert_eq!(pair.acceptor.send(600, now), Ok(600));
    // The world stands still; only the caller's clock goes on, to the times that it is given.
    let next = pair.acceptor.tend(now).expect("nothing is pending").expect("something is watched");
    assert!(next <= now + 50_000_000);
    let next = pair.acceptor.tend(next).expect("nothing is pending").expect("something is watched");
    assert!(next <= now + 600_000_000);
    assert!(pair.acceptor.tend(now + 599_000_000).is_ok());
    assert!(!pair.acceptor.shared.is_link_dead());
    let _ = pair.acceptor.tend(now + 601_000_000);
    assert!(pair.acceptor.shared.is_link_dead());
    // Whether the other end may have closed is asked in between.
    assert_eq!(pair.connector.recv(600, false), Err(RecvError::WouldBlock));
    let _ = pair.acceptor.tend(now + 601_000_000);
    assert_eq!(pair.connector.recv(600, false), Ok(600));
    assert_eq!(pair.connector.inbound.counts().carrier_bytes, 600);
}

#[test]
fn an_orderly_end_is_told_from_a_death() {
    for is_orderly in [true, false] {
        let mut pair = Pair::new(5, options());
        pair.meet();
        let now = pair.world.now_ns();
        assert_eq!(pair.acceptor.send(300, now), Ok(300));
        if is_orderly {
            pair.acceptor.outbound.to_kernel();
            assert!(pair.acceptor.tend(now).is_ok());
            assert!(!pair.acceptor.outbound.has_backlog());
        }
        pair.world.run();
        let close = std::net::Shutdown::Write;
        pair.acceptor.tcp.0.shutdown(close).expect("a socket");
        assert_eq!(pair.connector.recv(1000, false), Ok(300));
        let end = pair.connector.recv(1000, false);
        if is_orderly {
            assert_eq!(end, Ok(0));
        } else {
            assert_eq!(end, Err(RecvError::Cut { is_final: false }));
            pair.acceptor.host.forget(common::NUMBER);
            pair.world.run();
            pair.connector.manage();
            let end = pair.connector.recv(1000, false);
            assert_eq!(end, Err(RecvError::Cut { is_final: true }));
        }
    }
}
